//! `rocectl counters`: one table for each group.

use std::collections::BTreeMap;

use roced_report::CountersReport;

use crate::{
    table::{
        Column::{Number, Text},
        TableSection,
    },
    units,
};

/// Formats the groups with the name prefix `prefix` as tables. Zero counters, and groups of zeros
/// only, are left out unless `all`.
pub(crate) fn render(report: &CountersReport, all: bool, prefix: Option<&str>) -> String {
    let mut text = String::new();
    let mut zeros = 0;
    let wanted = |name: &str| prefix.is_none_or(|prefix| name.starts_with(prefix));
    for (name, counters) in report.counters.iter().filter(|(name, _)| wanted(name)) {
        let hidden = if all { 0 } else { counters.values().filter(|value| **value == 0).count() };
        zeros += hidden;
        if hidden < counters.len() {
            group(name, counters, all).append(&mut text, "");
        }
    }
    if !report.counters.keys().any(|name| wanted(name)) {
        return no_such_group(report, prefix);
    }
    if zeros > 0 {
        let gap = if text.is_empty() { "" } else { "\n" };
        let plural = if zeros == 1 { "counter is" } else { "counters are" };
        text += &format!("{gap}{zeros} {plural} 0 (--all shows them)\n");
    }
    text
}

/// Formats one group; zero counters are left out unless `all`.
pub(crate) fn group(title: &str, counters: &BTreeMap<String, u64>, all: bool) -> TableSection {
    let mut section = TableSection::new(title, &[Text("counter"), Number("value")]);
    for (name, value) in counters.iter().filter(|(_, value)| all || **value > 0) {
        section.row([name.clone(), units::count(*value)]);
    }
    section
}

fn no_such_group(report: &CountersReport, prefix: Option<&str>) -> String {
    let names: Vec<&str> = report.counters.keys().map(String::as_str).collect();
    match prefix {
        Some(prefix) => format!("no group begins with {prefix}; there are: {}\n", names.join(", ")),
        None => "the daemon has no counters\n".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> CountersReport {
        let group =
            |entries: &[(&str, u64)]| entries.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        CountersReport {
            counters: [
                ("device/roce0".to_owned(), group(&[("xdp_redirected", 12_345), ("xdp_pass_not_ip", 0)])),
                ("worker/0".to_owned(), group(&[("forwarded_in", 0)])),
            ]
            .into(),
        }
    }

    #[test]
    fn zeros_are_hidden_and_their_number_is_told() {
        let text = render(&report(), false, None);
        assert!(text.contains("xdp_redirected  12,345"), "{text}");
        assert!(!text.contains("xdp_pass_not_ip") && !text.contains("worker/0"), "{text}");
        assert!(text.ends_with("\n2 counters are 0 (--all shows them)\n"), "{text}");
    }

    #[test]
    fn all_shows_zeros() {
        let text = render(&report(), true, None);
        assert!(text.contains("xdp_pass_not_ip") && text.contains("forwarded_in"), "{text}");
        assert!(!text.contains("--all"), "{text}");
    }

    #[test]
    fn a_prefix_chooses_groups_and_a_wrong_one_names_those_there_are() {
        assert!(!render(&report(), true, Some("worker")).contains("device/roce0"));
        assert_eq!(render(&report(), false, Some("worker")), "1 counter is 0 (--all shows them)\n");
        assert!(render(&report(), true, Some("disk")).contains("there are: device/roce0, worker/0"));
    }
}
