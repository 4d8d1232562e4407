//! Metrics and their labels, by names in alert rules, in the dashboard, in the tests of both and in
//! documents: `rocectl metrics` exports each. A rule on a metric that is gone is silent forever.
//!
//! Names stand as literals in the exporter, and those of counters where they are counted; the group
//! of a counter is the beginning of its metric.

use std::{collections::BTreeSet, fs, path::Path};

use anyhow::{Context, Result, ensure};

use crate::{files::files_below, quoted::HISTORY};

/// The source that names all metrics but counters of groups.
const EXPORTER: &str = "ctl/src/metrics.rs";

/// Beginnings of metrics, each with a source that names the counters of that group.
pub(crate) const GROUPS: [(&str, &str); 8] = [
    ("", "transport/src/counters.rs"),
    ("", "transport/src/congestion/notification.rs"),
    ("", "transport/src/turns/class_counters.rs"),
    ("control_", "daemon/src/cm/counters.rs"),
    ("", "xdp/src/pauses.rs"),
    ("queue_", "xdp/src/queue.rs"),
    ("worker_", "daemon/src/worker/handoff.rs"),
    ("worker_", "daemon/src/worker/metrics.rs"),
];

/// Folders and files with rules, queries and series.
const READERS: [&str; 3] = ["config/monitoring", "tests/monitoring", "scripts/monitoring"];

/// Labels that Prometheus adds.
const ADDED: [&str; 4] = ["alertname", "instance", "job", "severity"];

/// Metrics and labels that are not exported.
///
/// # Errors
///
/// A file cannot be read, or names no metric.
pub(crate) fn unknown(workspace: &Path) -> Result<Vec<String>> {
    let read = |file: &Path| fs::read_to_string(workspace.join(file)).with_context(|| file.display().to_string());
    let mut exported = Exported::of(&read(Path::new(EXPORTER))?);
    for (group, source) in GROUPS {
        let names = literals(&read(Path::new(source))?);
        ensure!(!names.is_empty(), "{source} names no counters");
        exported.metrics.extend(names.iter().map(|name| format!("{group}{name}_total")));
    }
    let mut broken = Vec::new();
    for file in files_below(workspace)? {
        let is_document = file.extension().is_some_and(|it| it == "md") && file != Path::new(HISTORY);
        if !is_document && !READERS.iter().any(|reader| file.starts_with(reader)) {
            continue;
        }
        for (at, line) in read(&file)?.lines().enumerate() {
            let faults = if is_document { exported.counters_unknown(line) } else { exported.faults(line) };
            broken.extend(faults.into_iter().map(|fault| format!("{}:{}: {fault}", file.display(), at + 1)));
        }
    }
    Ok(broken)
}

struct Exported {
    /// Names without the prefix of all.
    metrics: BTreeSet<String>,
    labels: BTreeSet<String>,
}

impl Exported {
    /// Metrics and labels in the exporter's own source.
    fn of(exporter: &str) -> Self {
        let first = |call: &str| {
            let calls = exporter.split(call).skip(1);
            let names = calls.filter_map(|rest| rest.trim_start().strip_prefix('"')?.split('"').next());
            names.map(str::to_owned).collect::<BTreeSet<_>>()
        };
        let words = literals(exporter);
        let mut metrics = first(".gauge(");
        metrics.extend(first(".counter(").iter().map(|name| format!("{name}_total")));
        // Under the names of node_exporter.
        metrics.extend(words.iter().flat_map(|name| ["", "_total"].map(|end| format!("infiniband_{name}{end}"))));
        Self { metrics, labels: words.into_iter().chain(ADDED.map(str::to_owned)).collect() }
    }

    /// Faults of a line of rules or queries.
    fn faults(&self, line: &str) -> Vec<String> {
        let metrics = names(line).filter(|name| !self.metrics.contains(*name));
        let metrics = metrics.map(|name| format!("rocectl metrics has no roced_{name}"));
        let labels = labels(line).into_iter().filter(|label| !self.labels.contains(*label));
        metrics.chain(labels.map(|label| format!("no metric has a label {label}"))).collect()
    }

    /// Faults of a line of a document, where only the end tells a counter from other names. A name
    /// with capitals is a placeholder.
    fn counters_unknown(&self, line: &str) -> Vec<String> {
        let is_counter = |name: &&str| name.ends_with("_total") && !name.contains(char::is_uppercase);
        let counters = names(line).filter(is_counter).filter(|name| !self.metrics.contains(*name));
        counters.map(|name| format!("rocectl metrics has no roced_{name}")).collect()
    }
}

const fn is_of_name(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || letter == '_'
}

/// Names of metrics, without the prefix of all.
fn names(line: &str) -> impl Iterator<Item = &str> {
    line.split(|letter| !is_of_name(letter)).filter_map(|word| word.strip_prefix("roced_"))
}

/// Labels of selectors, as in `{device="roce0"}`, and of templates.
fn labels(line: &str) -> Vec<&str> {
    let selected = line.match_indices('=').filter_map(|(at, _)| {
        let value = line[at + 1..].trim_start_matches(['~', '\\']);
        let before = line[..at].trim_end_matches('!');
        let label = before.rsplit(|letter| !is_of_name(letter)).next()?;
        let is_selector = before[..before.len() - label.len()].ends_with(['{', ',']);
        (value.starts_with('"') && is_selector && !label.is_empty()).then_some(label)
    });
    let templates = line.split("$labels.").skip(1).filter_map(|rest| rest.split(|it| !is_of_name(it)).next());
    selected.chain(templates).collect()
}

/// Literals of a source that are names, those of its tests and comments not included.
pub(crate) fn literals(source: &str) -> BTreeSet<String> {
    let shipped = source.split("#[cfg(test)]").next().unwrap_or("");
    let lines = shipped.lines().filter(|line| !line.trim_start().starts_with("//"));
    let texts = lines.flat_map(|line| line.split('"').skip(1).step_by(2));
    texts.filter(|text| !text.is_empty() && text.chars().all(is_of_name)).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exported() -> Exported {
        let mut exported = Exported::of(
            "families.gauge(\"up\", \"help\", vec![(\"state\", 1)], 1);\n self.counter(\n  \"calls\", \"\");\n\
             (\"rx\", \"rx_bytes\");\n// \"gone\"\n#[cfg(test)]\n(\"late\")",
        );
        exported.metrics.insert("queue_full_total".into());
        exported
    }

    #[test]
    fn rules_on_metrics_that_are_gone_are_found() {
        for right in [
            "expr: rate(roced_queue_full_total[5m]) > roced_up and roced_calls_total",
            "\"roced_infiniband_rx_bytes_total\" roced-metrics",
        ] {
            assert_eq!(exported().faults(right), [""; 0]);
        }
        let wrong = "roced_up_total + roced_calls + roced_infiniband_gone";
        let faults =
            ["up_total", "calls", "infiniband_gone"].map(|name| format!("rocectl metrics has no roced_{name}"));
        assert_eq!(exported().faults(wrong), faults);
    }

    #[test]
    fn labels_that_no_metric_has_are_found() {
        let right = r#"{state="on",instance!="a"} {state=~\"$state\"} {{ $labels.state }} --x="y" 0*x == "z""#;
        assert_eq!(exported().faults(right), [""; 0]);
        let wrong = r#"{state="on",late=~"a"} {gone=\"a\"} {{ $labels.lost }}"#;
        let faults = ["late", "gone", "lost"].map(|label| format!("no metric has a label {label}"));
        assert_eq!(exported().faults(wrong), faults);
    }

    #[test]
    fn documents_name_counters_that_there_are() {
        assert_eq!(exported().counters_unknown("`roced_abi`, `roced_calls_total`, `roced_x_COUNTER_total`"), [""; 0]);
        assert_eq!(exported().counters_unknown("roced_up_total"), ["rocectl metrics has no roced_up_total"]);
    }
}
