//! For a terminal: ratios first.

use std::fmt::Write as _;

use super::{BenchReport, REFERENCE_MACHINE};
use crate::{
    connections::Connections,
    fairness::Beside,
    sample::{Sample, Spread},
    scale::Scale,
};

/// A row of the table of figures: a contestant's medians over the rounds.
pub(super) struct Row {
    pub(super) name: String,
    pub(super) cells: Vec<String>,
}

/// Headings of the cells.
pub(super) const COLUMNS: [&str; 7] = ["Gbit/s", "1000/s", "p50 us", "p99 us", "CPU s/GB", "calls/packet", "again"];

impl BenchReport {
    /// Everything.
    pub(crate) fn text(&self) -> String {
        let mut text = String::from(
            "\nRatios: medians over the rounds (least to most); near: of those rounds in which the cores were near\n",
        );
        let mut line = |values: std::fmt::Arguments<'_>| writeln!(text, "{values}").expect("a string takes all");
        for (ratio, spread) in self.ratios() {
            let verdict = match ratio.goal.is_met(spread.median) {
                Some(true) => "ok",
                Some(false) => "SHORT",
                None => "",
            };
            let Spread { median, min, max, .. } = spread;
            let (name, goal) = (ratio.name, ratio.goal.text());
            let near = self.near(ratio);
            line(format_args!(
                "  {name:42} {median:7.3}  ({min:.3} to {max:.3})   near {near:10}   {goal:15} {verdict}"
            ));
        }
        line(format_args!(
            "\nThe baseline: raw AF_XDP, million frames a second, and its figures on {REFERENCE_MACHINE}"
        ));
        for baseline in self.baselines() {
            let verdict = if baseline.is_weak() { "BASELINE WEAK" } else { "" };
            let (name, mpps, reference) = (baseline.name, baseline.mpps, baseline.reference);
            line(format_args!("  {name:12} {mpps:.3}   {reference:.2}   {verdict}"));
        }
        if let Some(scale) = &self.scale {
            line(format_args!("\nScale"));
            scale_lines(scale).iter().for_each(|(name, value)| line(format_args!("  {name:60} {value}")));
        }
        if let Some(connections) = &self.connections {
            line(format_args!("\nConnections by the connection manager"));
            connection_lines(connections).iter().for_each(|(name, value)| line(format_args!("  {name:60} {value}")));
        }
        if !self.fairness.is_empty() {
            line(format_args!("\nFairness: goodput, % of half of that alone; p99, times of that beside an equal"));
            for [aggressor, share, p99] in fairness_rows(&self.fairness) {
                line(format_args!("  {aggressor:42} {share:24} {p99}"));
            }
        }
        line(format_args!("\nFigures: medians"));
        line(format_args!("  {:24} {}", "", COLUMNS.map(|name| format!("{name:>12}")).join(" ")));
        for Row { name, cells } in self.rows() {
            let cells: Vec<_> = cells.iter().map(|cell| format!("{cell:>12}")).collect();
            line(format_args!("  {name:24} {}", cells.join(" ")));
        }
        line(format_args!("\n  {}\n  {}", self.machine.line(), self.machine.revision()));
        self.settings.iter().for_each(|(name, value)| line(format_args!("  {name}: {value}")));
        if self.shared {
            line(format_args!("  THE MACHINE WAS SHARED: no figure here is more than a hint"));
        }
        text
    }

    /// The figures of all contestants that took part.
    pub(super) fn rows(&self) -> Vec<Row> {
        let all = crate::contestants::all();
        let row = |name: &str| {
            let samples = self.results.of(name)?;
            let median = |of: &dyn Fn(&Sample) -> Option<f64>, digits: usize| {
                let spread = Spread::of(samples.iter().filter_map(of));
                spread.map_or_else(|| "-".into(), |it| format!("{:.digits$}", it.median))
            };
            let rtt = |of: fn(&crate::sample::Rtt) -> f64| move |sample: &Sample| sample.rtt_us.as_ref().map(of);
            let cells = vec![
                median(&|sample| sample.gbit_per_s, 2),
                median(&|sample| sample.messages_per_s.map(|rate| rate / 1000.0), 1),
                median(&rtt(|rtt| rtt.p50), 1),
                median(&rtt(|rtt| rtt.p99), 1),
                median(&|sample| sample.cpu_s_per_gb, 3),
                self.syscalls.get(name).map_or_else(|| "-".into(), |calls| format!("{calls:.3}")),
                median(&|sample| sample.retransmitted.map(|count| count as f64), 0),
            ];
            Some(Row { name: name.to_owned(), cells })
        };
        all.iter().filter_map(|one| row(&one.name)).collect()
    }
}

/// Lines about scale.
pub(super) fn scale_lines(scale: &Scale) -> Vec<(String, String)> {
    let ratio = |spread: Option<Spread>| {
        spread.map_or_else(|| "-".into(), |it| format!("{:.3} ({:.3} to {:.3})", it.median, it.min, it.max))
    };
    let qps = scale.qps;
    let memory = scale.bytes_per_qp;
    vec![
        (format!("{qps} queue pairs made and connected by one side, s"), format!("{:.2}", scale.made_in_s)),
        ("... and by both sides".into(), format!("{:.2}", scale.both_made_in_s)),
        ("daemon memory for each idle queue pair, bytes: PSS".into(), memory.pss.to_string()),
        ("... RSS".into(), memory.rss.to_string()),
        ("... anonymous".into(), memory.anonymous.to_string()),
        ("processor share of a daemon that has them, idle".into(), format!("{:.4}", scale.idle_cpu_share)),
        ("WRITE 1 MiB beside them, to without them".into(), ratio(scale.throughput_beside_idle_qps)),
        (
            format!("WRITE 64 KiB by {} clients, to one client", scale.clients),
            ratio(scale.throughput_of_clients_vs_one),
        ),
    ]
}

/// Rows about fairness: aggressor, share, p99.
pub(super) fn fairness_rows(fairness: &[Beside]) -> Vec<[String; 3]> {
    let percent = |it: Spread| format!("{:.0} ({:.0} to {:.0})", it.median, it.min, it.max);
    let times = |it: Spread| format!("{:.1} ({:.1} to {:.1})", it.median, it.min, it.max);
    let row = |it: &Beside| {
        [it.aggressor.clone(), percent(it.share_percent), it.p99_of_equal.map_or_else(|| "-".into(), times)]
    };
    fairness.iter().map(row).collect()
}

/// Lines about connections.
pub(super) fn connection_lines(connections: &Connections) -> Vec<(String, String)> {
    let Connections { connect_us, per_s, at_once, cmtime } = connections;
    let rate = per_s.map_or_else(|| "-".into(), |it| format!("{:.0} ({:.0} to {:.0})", it.median, it.min, it.max));
    let [here, there] = at_once.established;
    let memory = at_once.bytes_each;
    let cmtime = cmtime.map_or_else(|| "-".into(), |it| format!("{:.0}, {:.0}", it.connect_us, it.all_us));
    vec![
        ("connections a second, queue pairs made and connected; goal: at least 2000".into(), rate),
        ("one connection after resolution, p50 us; goal: at most 1000".into(), format!("{:.0}", connect_us.p50)),
        ("... p99 us".into(), format!("{:.0}", connect_us.p99)),
        (
            format!("{} at once: established at this end, at the other, refused", at_once.asked),
            format!("{here}, {there}, {}", at_once.refused),
        ),
        ("... to the last answer, s".into(), format!("{:.2}", at_once.in_s)),
        ("... ended at once, to the last program told, s".into(), format!("{:.2}", at_once.ended_in_s)),
        ("... identifiers and connections left in the end".into(), at_once.left.to_string()),
        ("daemon memory for each idle connection and its queue pair, bytes: PSS".into(), memory.pss.to_string()),
        ("... RSS".into(), memory.rss.to_string()),
        ("... anonymous".into(), memory.anonymous.to_string()),
        ("processor share of a daemon that has them, idle".into(), format!("{:.4}", at_once.idle_cpu_share)),
        ("cmtime -c 1000, us for each connection: to connect, all steps".into(), cmtime),
    ]
}
