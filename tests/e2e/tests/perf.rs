//! `roce-perf` between the hosts.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::{
    lab::{Host, Lab, SOON},
    program::{Program, within},
};

/// The port of `roce-perf serve` unless it is told another.
const PORT: &str = "18511";

/// `roce-perf serve` on a host; ends with the value.
pub(crate) struct Server {
    _program: Program,
}

impl Server {
    /// Starts it and waits until it listens.
    pub(crate) fn start(lab: &Lab, host: Host, arguments: &[&str]) -> Result<Self> {
        Self::start_at(lab, host, PORT, arguments)
    }

    /// As [`Self::start`], at another port.
    pub(crate) fn start_at(lab: &Lab, host: Host, port: &str, arguments: &[&str]) -> Result<Self> {
        let bind = format!("[::]:{port}");
        let mut program = lab.start(host, "roce-perf", &[&["serve", "--bind", &bind], arguments].concat())?;
        let listens = within(SOON, || {
            ensure!(program.runs()?, "roce-perf serve has ended");
            if arguments.contains(&"--cm") {
                return Ok(lab.counter(host, "control", "cm_listeners")? > 0);
            }
            let filter = format!("sport = :{port}");
            Ok(!lab.run(host, "ss", &["-Hltn", &filter], SOON)?.success()?.is_empty())
        })?;
        ensure!(listens, "roce-perf serve does not listen");
        Ok(Self { _program: program })
    }
}

/// Report of `roce-perf`.
pub(crate) struct Report(pub(crate) Value);

impl Report {
    /// Reads its output.
    pub(crate) fn read(text: &str) -> Result<Self> {
        let report: Value = serde_json::from_str(text).with_context(|| format!("no JSON: {text}"))?;
        ensure!(report["verified"] == true, "not every byte was verified: {report:#}");
        Ok(Self(report))
    }

    /// A number of it.
    pub(crate) fn number(&self, name: &str) -> Result<u64> {
        self.0[name].as_u64().with_context(|| format!("no number {name} in {:#}", self.0))
    }
}

/// `roce-perf` from `host`, against a [`Server`]; every byte verified.
pub(crate) fn run(lab: &Lab, host: Host, arguments: &[&str], limit: Duration) -> Result<Report> {
    let mut all = arguments.to_vec();
    all.push("--json");
    Report::read(&lab.run(host, "roce-perf", &all, limit)?.success()?)
}

/// SEND, WRITE and READ of `bytes` each between all that differs: message sizes, several queue
/// pairs.
pub(crate) fn transfer_all(lab: &Lab, peer: &str, bytes: &str, more: &[&str]) -> Result<()> {
    for (op, size, qps) in [("send", "4000", "3"), ("write", "64K", "4"), ("read", "100000", "4"), ("write", "1M", "1")]
    {
        let mut arguments = vec!["bw", peer, "--op", op, "--size", size, "--qps", qps, "--bytes", bytes];
        arguments.extend(more);
        run(lab, Host::A, &arguments, Duration::from_secs(60)).with_context(|| format!("{op} of {size}"))?;
    }
    Ok(())
}
