//! Hosts that send to host a, behind a switch with a port of 200 Mbit/s, and the use of that port.

use std::{iter, process::Command, thread, time::Duration};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::{
    OWN_IPV4,
    lab::{Host, Lab, SOON},
    perf::{Report, Server},
    program::{Program, within},
};

/// From the begin of the senders: slow start, and the first notifications.
pub(crate) const WARM_UP: Duration = Duration::from_millis(500);

/// How data gets to host a.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    /// WRITEs of the senders.
    Write,
    /// READs of host a.
    Read,
}

/// A load of one or more hosts.
#[derive(Clone, Copy)]
pub(crate) struct Load {
    /// The hosts that send.
    pub(crate) from: &'static [Host],
    pub(crate) by: By,
    /// Traffic classes (IP) of their connections, by turns.
    pub(crate) traffic_classes: &'static [&'static str],
    /// Code of the ACK timeout of their connections.
    pub(crate) timeout: &'static str,
}

/// Two senders of WRITEs.
pub(crate) const TWO: Load = Load { from: &[Host::B, Host::C], by: By::Write, traffic_classes: &["0"], timeout: "14" };

/// Hosts that send to host a.
pub(crate) struct Senders<'a> {
    lab: &'a Lab,
    load: Load,
    programs: Vec<Program>,
    _servers: Vec<Server>,
}

impl<'a> Senders<'a> {
    /// Starts them for so many seconds; all have a connection afterward.
    pub(crate) fn start(lab: &'a Lab, load: Load, seconds: u64) -> Result<Self> {
        let seconds = seconds.to_string();
        let (mut servers, mut programs) = (Vec::new(), Vec::new());
        let bw = |at, server: &str, op, traffic_class| {
            let arguments = ["bw", server, "--op", op, "--size", "64K", "--seconds", &seconds, "--json"];
            let path = ["--traffic-class", traffic_class, "--timeout", load.timeout];
            lab.start(at, "roce-perf", &[&arguments[..], &path].concat())
        };
        if load.by == By::Write {
            servers.push(Server::start(lab, Host::A, &[])?);
        }
        for (host, traffic_class) in iter::zip(load.from, load.traffic_classes.iter().cycle()) {
            match load.by {
                By::Write => programs.push(bw(*host, OWN_IPV4, "write", traffic_class)?),
                By::Read => {
                    servers.push(Server::start(lab, *host, &[])?);
                    programs.push(bw(Host::A, &host.ipv4(), "read", traffic_class)?);
                }
            }
        }
        let connected = |host| Ok(lab.ctl(host, "qps")?["qps"].as_array().is_some_and(|qps| !qps.is_empty()));
        for host in load.from {
            ensure!(within(SOON, || connected(*host))?, "host {host} has no connection");
        }
        Ok(Self { lab, load, programs, _servers: servers })
    }

    /// Bytes that each has sent so far, headers included.
    pub(crate) fn sent(&self) -> Result<Vec<u64>> {
        let sent = self.load.from.iter().map(|host| self.lab.counter(*host, "device/roce0/queue/*", "nic_tx_bytes"));
        sent.collect()
    }

    /// Waits for their end; every byte was verified.
    pub(crate) fn end(self) -> Result<()> {
        self.end_and(|| Ok(()))
    }

    /// As [`Self::end`], and `action` afterward, with the server of host a still there.
    pub(crate) fn end_and<T>(self, action: impl FnOnce() -> Result<T>) -> Result<T> {
        for program in self.programs {
            Report::read(&program.end(SOON)?.success()?)?;
        }
        action()
    }
}

/// The port toward the receiver, and bytes of the senders, in a time without begin and end.
pub(crate) struct PortShares {
    pub(crate) queue: Value,
    pub(crate) sent: Vec<u64>,
    pub(crate) qdisc_drops: u64,
}

impl PortShares {
    /// Takes `seconds` of senders that send for longer.
    pub(crate) fn of(lab: &Lab, load: Load, seconds: u64) -> Result<Self> {
        let senders = Senders::start(lab, load, seconds + 4)?;
        thread::sleep(WARM_UP);
        lab.reset_queues()?;
        let before = senders.sent()?;
        let queue = lab.queue(Host::A, seconds)?;
        let after = senders.sent()?;
        let qdisc_drops = qdisc_drops(lab)?;
        senders.end()?;
        let sent = after.iter().zip(before).map(|(after, before)| after - before).collect();
        println!("\n    {queue}, sent {sent:?}");
        Ok(Self { queue, sent, qdisc_drops })
    }

    pub(crate) fn number(&self, name: &str) -> Result<u64> {
        self.queue[name].as_u64().with_context(|| format!("no {name} in {}", self.queue))
    }

    pub(crate) fn utilization(&self) -> Result<f64> {
        self.queue["utilization"].as_f64().context("utilization")
    }

    /// Jain's index: 1 for equal shares, and one of the senders' number when one of them has all.
    pub(crate) fn fairness(&self) -> f64 {
        let (mut sum, mut squares) = (0.0, 0.0);
        for bytes in &self.sent {
            sum += *bytes as f64;
            squares += (*bytes as f64).powi(2);
        }
        sum.powi(2) / (self.sent.len() as f64 * squares)
    }
}

/// Frames that the qdisc of the receiver's port dropped. It has more room than the queue before it.
fn qdisc_drops(lab: &Lab) -> Result<u64> {
    let mut tc = Command::new("tc");
    tc.args(["-n", &format!("{}-middle", lab.name()), "-s", "-j", "qdisc", "show", "dev", "a0"]);
    let qdiscs: Vec<Value> = serde_json::from_str(&Program::run(tc, SOON)?.success()?)?;
    let is_rate = |qdisc: &&Value| qdisc["kind"] == "tbf" || qdisc["kind"] == "htb";
    qdiscs.iter().find(is_rate).context("neither TBF nor HTB on port a0")?["drops"].as_u64().context("drops")
}
