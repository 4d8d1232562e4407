//! A network that loses, repeats and damages: everything arrives all the same, in time, and the
//! counters show the faults.

use std::{iter, time::Duration};

use anyhow::{Context as _, Result, ensure};

use crate::{
    PEER_IPV4, Settings,
    lab::{Host, Lab, SOON},
    perf::{self, Server},
};

/// A gigabyte with one frame in a hundred lost takes no longer.
const LIMIT: Duration = Duration::from_secs(120);

/// Counts of one run, on both hosts, from its begin to its end.
struct Counted<'a> {
    lab: &'a Lab,
    before: Vec<u64>,
}

/// Counters of faults of the network.
const NAMES: [&str; 8] = [
    "retransmitted_packets",
    "local_ack_timeout_err",
    "packet_seq_err",
    "implied_nak_seq_err",
    "seq_nak_sent",
    "duplicate_request",
    "drop_stale_response",
    "drop_bad_icrc",
];

impl<'a> Counted<'a> {
    fn begin(lab: &'a Lab) -> Result<Self> {
        let mut counted = Self { lab, before: vec![0; NAMES.len()] };
        counted.before = counted.so_far()?;
        Ok(counted)
    }

    fn so_far(&self) -> Result<Vec<u64>> {
        let mut counts = Vec::new();
        for (name, before) in iter::zip(NAMES, &self.before) {
            let both = self.lab.counter(Host::A, "device/*", name)? + self.lab.counter(Host::B, "device/*", name)?;
            counts.push(both - before);
        }
        Ok(counts)
    }

    /// Prints them and gives them to `check`.
    fn end(&self, title: &str, check: impl Fn(&dyn Fn(&str) -> u64) -> bool) -> Result<()> {
        let counts = self.so_far()?;
        let list: Vec<_> = iter::zip(NAMES, &counts).map(|(name, count)| format!("{name} {count}")).collect();
        print!("\n    {title}: {}", list.join(", "));
        let count = |wanted: &str| counts[NAMES.iter().position(|name| *name == wanted).expect("one of NAMES")];
        ensure!(check(&count), "{title}: the counters do not say so: {}", list.join(", "));
        Ok(())
    }
}

/// A WRITE and a READ run under `fault`; `check` says whether the counters tell of it.
fn run(settings: &Settings, fault: &[&str], done: &str, check: impl Fn(&dyn Fn(&str) -> u64) -> bool) -> Result<()> {
    let lab = Lab::up(&["--switch"])?;
    let _server = Server::start(&lab, Host::B, &[])?;
    for op in ["write", "read"] {
        lab.fault(fault)?;
        let counted = Counted::begin(&lab)?;
        let arguments = ["bw", PEER_IPV4, "--op", op, "--size", "1M", "--bytes", settings.fault_bytes()];
        let report =
            perf::run(&lab, Host::A, &arguments, LIMIT).with_context(|| format!("{op}, {}", fault.join(" ")))?;
        let faults = lab.faults()?;
        ensure!(faults[done] > 0, "no frame was {done}: {faults:?}");
        let title = format!(
            "{op} of {}, {} frames {done} of {}, {:.1} s",
            settings.fault_bytes(),
            faults[done],
            faults["frames"],
            report.0["seconds"].as_f64().unwrap_or(f64::NAN)
        );
        counted.end(&title, &check)?;
    }
    Ok(())
}

pub(crate) fn one_frame_in_a_hundred_lost(settings: &Settings) -> Result<()> {
    run(settings, &["--drop", "1%"], "dropped", |count| {
        count("retransmitted_packets") > 0
            && count("packet_seq_err") + count("implied_nak_seq_err") + count("local_ack_timeout_err") > 0
    })
}

pub(crate) fn one_frame_in_a_hundred_twice(settings: &Settings) -> Result<()> {
    run(settings, &["--duplicate", "1%"], "duplicated", |count| {
        count("duplicate_request") + count("drop_stale_response") > 0
    })
}

pub(crate) fn one_frame_in_a_hundred_damaged(settings: &Settings) -> Result<()> {
    run(settings, &["--corrupt", "1%"], "corrupted", |count| {
        count("drop_bad_icrc") > 0 && count("retransmitted_packets") > 0
    })
}

/// Each frame that recovery hangs on, lost once at the end of a message, where nothing behind it
/// tells of the loss.
pub(crate) fn a_lost_last_frame_is_sent_again(_: &Settings) -> Result<()> {
    let lab = Lab::up(&["--switch"])?;
    let _server = Server::start(&lab, Host::B, &[])?;
    let cases = [
        // roce-perf ends each batch of WRITEs with an immediate, and with a depth of 1 every one.
        ("write", "rc_write_last_imm"),
        ("write", "rc_write_first"),
        ("write", "rc_ack"),
        ("send", "rc_send_last"),
        ("read", "rc_read_request"),
        ("read", "rc_read_response_last"),
        ("read", "rc_read_response_middle"),
    ];
    for (op, opcode) in cases {
        for action in ["drop", "duplicate", "corrupt"] {
            lab.fault(&["--nth", &format!("{opcode}:1:{action}")])?;
            let arguments =
                ["bw", PEER_IPV4, "--op", op, "--size", "16K", "--depth", "1", "--bytes", "64K", "--mtu", "1024"];
            perf::run(&lab, Host::A, &arguments, SOON).with_context(|| format!("{opcode}:1:{action}"))?;
            let faults = lab.faults()?;
            ensure!(faults["dropped"] + faults["duplicated"] + faults["corrupted"] == 1, "{opcode}: {faults:?}");
        }
    }
    Ok(())
}
