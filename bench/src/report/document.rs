//! The page for people, in Markdown.

use std::fmt::Write as _;

use super::{
    BenchReport, REFERENCE_MACHINE,
    table::{COLUMNS, connection_lines, fairness_rows, scale_lines},
};

const HEAD: &str = "not edited by hand. Each ratio is of two contestants in the same \
                    round, and the value is the median of the rounds, with the least and the most; \"near\" is \
                    the median of those rounds in which a core answered the other one quickly before and after both (see below), because a host moves the cores of a virtual machine. Raw AF_XDP is the limit: frames of the \
                    same size on the same kind of link, as many in flight as RDMA would have, through the daemon's lowest layer and nothing else.\n\
                    Explanations and attempts: [performance-notes.md](performance-notes.md). Drawn, with `--plot docs/performance`: \
                    [throughput](performance/throughput.svg), [latency](performance/latency.svg).\n";

impl BenchReport {
    /// The page.
    pub(super) fn document(&self) -> String {
        let mut text = format!("# Performance\n\nMade by `scripts/bench {}`; {HEAD}", self.options);
        let mut line = |values: std::fmt::Arguments<'_>| writeln!(text, "{values}").expect("a string takes all");
        if self.shared {
            line(format_args!(
                "\n**The machine was shared with other work during this run: take the figures as hints only.**"
            ));
        }
        if self.baselines().iter().any(super::Baseline::is_weak) {
            line(format_args!("\n**Baseline weak: raw AF_XDP was slower than it was on {REFERENCE_MACHINE}.**"));
        }
        line(format_args!(
            "\n## Ratios\n\n| ratio | median | least to most | near: median, rounds | goal |\n|---|---|---|---|---|"
        ));
        for (ratio, spread) in self.ratios() {
            let verdict = match ratio.goal.is_met(spread.median) {
                Some(true) => ", met",
                Some(false) => ", **not met**",
                None => "",
            };
            line(format_args!(
                "| `{}` | {:.3} | {:.3} to {:.3} | {} | {}{verdict} |",
                ratio.name,
                spread.median,
                spread.min,
                spread.max,
                self.near(ratio),
                ratio.goal.text()
            ));
        }
        line(format_args!("\n## Machine and settings\n\n- {}\n- {}", self.machine.line(), self.machine.revision()));
        self.settings.iter().for_each(|(name, value)| line(format_args!("- {name}: {value}")));
        for baseline in self.baselines() {
            let (name, mpps, reference) = (baseline.name, baseline.mpps, baseline.reference);
            line(format_args!("- `{name}`: {mpps:.3} million frames a second; on {REFERENCE_MACHINE} {reference:.2}"));
        }
        if let Some(scale) = &self.scale {
            line(format_args!("\n## Scale\n\n| | |\n|---|---|"));
            scale_lines(scale).iter().for_each(|(name, value)| line(format_args!("| {name} | {value} |")));
        }
        if let Some(connections) = &self.connections {
            line(format_args!("\n## Connections by the connection manager\n\n| | |\n|---|---|"));
            connection_lines(connections).iter().for_each(|(name, value)| line(format_args!("| {name} | {value} |")));
        }
        if !self.fairness.is_empty() {
            line(format_args!("\n## Fairness\n"));
            line(format_args!(
                "A transfer (SEND of 8 KiB, 64 under way) beside one program of another user ([fairness.md](fairness.md)).\n"
            ));
            line(format_args!(
                "| beside | goodput, % of half of that alone; promised: 80 | p99 of a message, times of that beside an equal; promised: at most 3 |\n|---|---|---|"
            ));
            for [aggressor, share, p99] in fairness_rows(&self.fairness) {
                line(format_args!("| {aggressor} | {share} | {p99} |"));
            }
        }
        line(format_args!(
            "\n## Figures\n\n| contestant | {} |\n|---|{}",
            COLUMNS.join(" | "),
            "---|".repeat(COLUMNS.len())
        ));
        for row in self.rows() {
            line(format_args!("| `{}` | {} |", row.name, row.cells.join(" | ")));
        }
        text
    }
}
