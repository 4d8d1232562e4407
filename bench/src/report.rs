//! Results of a run, for a person and for programs.

mod document;
mod plot;
mod table;

use std::{collections::BTreeMap, fs, io::Write as _, path::Path};

use anyhow::Context;
use serde_json::{Map, Value, json};

use crate::{
    apart::NEAR_NS,
    cli::{BenchArgs, as_given},
    connections::Connections,
    contest::Results,
    fairness::Beside,
    machine::Machine,
    network::NetworkSide,
    ratios::{Figure, RATIOS, Ratio},
    sample::Spread,
    scale::Scale,
};

/// Raw AF_XDP on one machine while nothing else ran: contestant, and millions of frames a second.
/// Another kind of machine has others.
const REFERENCES: [(&str, f64); 2] = [("raw_4154", 0.43), ("raw_64", 0.80)];

/// That machine.
const REFERENCE_MACHINE: &str = "a quiet machine of 2 cores with Linux 6.18 under SCHED_FIFO";

/// Below this part of them the machine was busy, or is slower, and a run proves little.
const WEAK_BELOW: f64 = 0.9;

/// One run.
#[derive(Debug)]
pub(crate) struct BenchReport {
    machine: Machine,
    results: Results,
    syscalls: BTreeMap<String, f64>,
    scale: Option<Scale>,
    connections: Option<Connections>,
    fairness: Vec<Beside>,
    settings: Vec<(&'static str, String)>,
    shared: bool,
    /// As scripts/bench had them.
    options: String,
}

/// All that was measured.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// The rounds.
    pub(crate) results: Results,
    /// System calls for each packet, by contestant.
    pub(crate) syscalls: Vec<(String, f64)>,
    /// Many queue pairs, many clients.
    pub(crate) scale: Option<Scale>,
    /// Connections by the connection manager.
    pub(crate) connections: Option<Connections>,
    /// A transfer beside each kind of hostile program.
    pub(crate) fairness: Vec<Beside>,
}

/// Raw AF_XDP beside its reference.
struct Baseline {
    name: &'static str,
    mpps: f64,
    reference: f64,
}

impl Baseline {
    fn is_weak(&self) -> bool {
        self.mpps < WEAK_BELOW * self.reference
    }
}

impl BenchReport {
    /// A report of the results; `status` is as a daemon reports it.
    pub(crate) fn new(cli: &BenchArgs, machine: Machine, found: Found, status: &Value) -> Self {
        let own: Vec<&str> = cli.device.iter().chain(&cli.worker).map(String::as_str).collect();
        let own = if own.is_empty() { "defaults".to_owned() } else { format!("defaults, but {}", own.join(", ")) };
        let moved: Vec<&str> = cli.napi.iter().chain(&cli.napi_worker).map(String::as_str).collect();
        let own = match moved.as_slice() {
            [] => own,
            lines => format!("{own}; of those called napi, the one that receives has {} as well", lines.join(", ")),
        };
        let own = match cli.napi_sender_worker.as_slice() {
            [] => own,
            lines => format!("{own}, and the one that sends {}", lines.join(", ")),
        };
        let memory = match cli.keep_memory {
            None => "as it was".to_owned(),
            Some(gib) => format!(
                "{gib} GiB were touched before the first round, and one page of each 128 KiB of them kept, so that free memory stays this machine's"
            ),
        };
        let device = &status["devices"][0];
        let word = |value: &Value| value.as_str().unwrap_or("unknown").to_owned();
        let mut settings = vec![
            ("rounds", cli.rounds().to_string()),
            ("seconds of each measurement", cli.seconds().to_string()),
            (
                "links",
                format!("veth pairs between two namespaces, MTU {}, 1 queue; of those called workers_2, 2", cli.mtu),
            ),
            ("XDP mode", word(&device["xdp_mode"])),
            ("AF_XDP mode", word(&device["queues"][0]["mode"])),
            ("daemons' config", own),
            (
                "cores",
                format!(
                    "the worker of host a is pinned to core {}, that of host b to core {}, and so are the threads of raw frames; workers of hosts with two, programs and TCP are free",
                    NetworkSide::A.core(),
                    NetworkSide::B.core()
                ),
            ),
            ("memory", memory),
            ("scheduling", format!("{} for all threads", if cli.fifo { "SCHED_FIFO" } else { "the ordinary class" })),
            ("measurements that failed and were made again", found.results.failures.to_string()),
        ];
        if let Some(Spread { median, min, max, .. }) = found.results.cores_apart_ns() {
            let text = format!(
                "{median:.0} ns for a cache line there and back, {min:.0} to {max:.0}; near is below {NEAR_NS:.0}"
            );
            settings.push(("from core to core", text));
        }
        let Found { results, syscalls, scale, connections, fairness } = found;
        let syscalls = syscalls.into_iter().collect();
        let options = as_given(std::env::args().skip(1));
        Self { machine, results, syscalls, scale, connections, fairness, settings, shared: cli.shared, options }
    }

    fn ratios(&self) -> impl Iterator<Item = (&'static Ratio, Spread)> {
        RATIOS.iter().filter_map(|ratio| Some((ratio, ratio.over(&self.results)?)))
    }

    /// Of a ratio, in the rounds in which the cores were near one another: the median, and how many
    /// rounds those were.
    fn near(&self, ratio: &Ratio) -> String {
        ratio
            .over_near(&self.results)
            .map_or_else(|| "-".into(), |near| format!("{:.3} of {}", near.median, near.rounds))
    }

    fn median(&self, name: &str, figure: Figure) -> Option<f64> {
        let samples = self.results.of(name)?;
        Spread::of(samples.iter().filter_map(|sample| figure.of(sample))).map(|spread| spread.median)
    }

    fn baselines(&self) -> Vec<Baseline> {
        let one = |&(name, reference): &(&'static str, f64)| {
            Some(Baseline { name, mpps: self.median(name, Figure::Rate)? * 1e-6, reference })
        };
        REFERENCES.iter().filter_map(one).collect()
    }

    fn json(&self) -> Value {
        let ratios: Map<String, Value> =
            self.ratios().map(|(ratio, spread)| (ratio.name.to_owned(), json!(spread.median))).collect();
        let spreads: Map<String, Value> =
            self.ratios().map(|(ratio, spread)| (ratio.name.to_owned(), json!(spread))).collect();
        let near = |ratio: &Ratio| Some((ratio.name.to_owned(), json!(ratio.over_near(&self.results)?)));
        let near: Map<String, Value> = RATIOS.iter().filter_map(near).collect();
        let settings: Map<String, Value> =
            self.settings.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
        let baselines: Map<String, Value> = self
            .baselines()
            .iter()
            .map(|it| (it.name.to_owned(), json!({ "mpps": it.mpps, "reference_mpps": it.reference })))
            .collect();
        json!({
            "ratios": ratios,
            "ratio_spreads": spreads,
            "ratio_spreads_cores_near": near,
            "baseline": baselines,
            "baseline_weak": self.baselines().iter().any(Baseline::is_weak),
            "shared_machine": self.shared,
            "machine": self.machine,
            "settings": settings,
            "scale": self.scale,
            "connections": self.connections,
            "fairness": self.fairness,
            "syscalls_per_packet": self.syscalls,
            "samples": self.results,
        })
    }

    /// Writes the requested files.
    pub(crate) fn write(&self, cli: &BenchArgs) -> anyhow::Result<()> {
        if let Some(path) = &cli.json {
            let text = serde_json::to_string_pretty(&self.json())? + "\n";
            if path == Path::new("-") {
                std::io::stdout().write_all(text.as_bytes())?;
            } else {
                fs::write(path, text).with_context(|| path.display().to_string())?;
            }
        }
        if let Some(folder) = &cli.plot {
            fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
            self.plot(folder)?;
        }
        if let Some(path) = &cli.document {
            fs::write(path, self.document()).with_context(|| path.display().to_string())?;
        }
        Ok(())
    }
}
