//! Where it was measured.

use std::{fs, process::Command};

use serde::Serialize;

/// The machine and its settings.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Machine {
    cpu: String,
    cores: usize,
    memory_gib: u64,
    kernel: String,
    commit: String,
    date: String,
    /// Load average before the first round.
    load: String,
    /// Processor time that a hypervisor gave to others since boot, in parts of all.
    steal: Option<f64>,
    /// Free pages are told to the host of a virtual machine from blocks of 2 to that power on; it
    /// may take them back, and bringing them again is slow.
    page_reporting_order: Option<u32>,
}

impl Machine {
    /// This one, now.
    pub(crate) fn look() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let first = |text: &str, start: &str| {
            let line = text.lines().find(|line| line.starts_with(start)).unwrap_or_default();
            line.split_once(':').map_or("unknown", |(_, value)| value.trim()).to_owned()
        };
        let memory = first(&read("/proc/meminfo"), "MemTotal");
        let memory_kib: u64 = memory.split(' ').next().and_then(|kib| kib.parse().ok()).unwrap_or(0);
        Self {
            cpu: first(&read("/proc/cpuinfo"), "model name"),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            memory_gib: memory_kib.div_ceil(1 << 20),
            // The version, without the suffix of a builder.
            kernel: read("/proc/sys/kernel/osrelease").trim().split('-').next().unwrap_or_default().to_owned(),
            commit: said_by("git", &["describe", "--always", "--dirty", "--exclude=*"]),
            date: said_by("date", &["-u", "+%Y-%m-%d"]),
            load: read("/proc/loadavg").split(' ').next().unwrap_or_default().to_owned(),
            steal: steal(&read("/proc/stat")),
            page_reporting_order: read("/sys/module/page_reporting/parameters/page_reporting_order")
                .trim()
                .parse()
                .ok(),
        }
    }

    /// In a line.
    pub(crate) fn line(&self) -> String {
        let Self { cpu, cores, memory_gib, kernel, load, .. } = self;
        let reporting = self.page_reporting_order.map(|order| format!("free page reporting from order {order} on, "));
        format!(
            "{cores} cores of {cpu}, {memory_gib} GiB, Linux {kernel}, {}load {load} before the first round",
            reporting.unwrap_or_default()
        )
    }

    /// The measured revision, and its date.
    pub(crate) fn revision(&self) -> String {
        format!("commit {}, {}", self.commit, self.date)
    }
}

fn said_by(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let text = output.ok().filter(|output| output.status.success()).map(|output| output.stdout);
    text.map_or("unknown".into(), |text| String::from_utf8_lossy(&text).trim().to_owned())
}

fn steal(stat: &str) -> Option<f64> {
    let ticks: Vec<f64> = stat.lines().next()?.split_whitespace().skip(1).filter_map(|it| it.parse().ok()).collect();
    let all: f64 = ticks.iter().take(8).sum();
    (all > 0.0).then_some(ticks.get(7)? / all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stolen_time_is_the_eighth_number() {
        assert_eq!(steal("cpu  10 0 10 70 0 0 0 10 0 0\n"), Some(0.1));
        assert_eq!(steal(""), None);
    }
}
