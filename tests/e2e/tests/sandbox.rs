//! Confinement of a daemon that serves.

use std::{collections::BTreeSet, fs, time::Duration};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;

use crate::{
    PEER_IPV4, Settings,
    lab::{Host, Lab, SOON},
    perf::{self, Server},
    program::within,
};

/// A field of a thread's status.
fn field<'s>(status: &'s str, name: &str) -> Result<&'s str> {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.map(str::trim).with_context(|| format!("no {name} in\n{status}"))
}

/// The kind of a thread, by its name.
fn kind(name: &str) -> &'static str {
    match name {
        "roced" => "control",
        "roced-attach" => "attach",
        "roced-copy" => "copy",
        "roced-log" => "log",
        "roced-user" => "user",
        _ if name.starts_with("roced-w") => "worker",
        _ => "unknown",
    }
}

/// Numbers of Linux's capabilities.
fn bit(capability: &str) -> u64 {
    let numbers =
        [("CAP_NET_ADMIN", 12), ("CAP_NET_RAW", 13), ("CAP_IPC_LOCK", 14), ("CAP_SYS_NICE", 23), ("CAP_BPF", 39)];
    let number = numbers.iter().find(|(name, _)| *name == capability).map(|(_, number)| number);
    1 << number.expect("one that the daemon may keep")
}

/// The kinds of the daemon's threads, each confined as the daemon reports it.
fn confined(lab: &Lab) -> Result<BTreeSet<&'static str>> {
    let report = lab.ctl(Host::A, "status")?["sandbox"].take();
    ensure!(report["in_force"] == true, "{report:#}");
    let mut kinds = BTreeSet::new();
    for task in fs::read_dir(format!("/proc/{}/task", lab.daemon(Host::A)?))? {
        let Ok(status) = fs::read_to_string(task?.path().join("status")) else { continue };
        let kind = kind(field(&status, "Name")?);
        let reported = report["threads"].as_array().context("a list")?;
        let reported = reported.iter().find(|thread| thread["thread"] == kind).with_context(|| status.clone())?;
        let capabilities = reported["capabilities"].as_array().context("a list")?;
        let expected = capabilities.iter().filter_map(|name| name.as_str()).map(bit).fold(0, |all, bit| all | bit);
        for set in ["CapPrm", "CapEff"] {
            let held = u64::from_str_radix(field(&status, set)?, 16)?;
            ensure!(held == expected, "{kind}: {set} is {held:x}, not {capabilities:?}");
        }
        for set in ["CapInh", "CapBnd", "CapAmb"] {
            ensure!(u64::from_str_radix(field(&status, set)?, 16)? == 0, "{kind}: {set}\n{status}");
        }
        ensure!(field(&status, "NoNewPrivs")? == "1" && field(&status, "Seccomp")? == "2", "{kind}\n{status}");
        kinds.insert(kind);
    }
    Ok(kinds)
}

pub(crate) fn every_thread_is_confined_and_serves(_: &Settings) -> Result<()> {
    let lab = Lab::up(&[])?;
    // Those of users come and go.
    let are_all_there = || -> Result<bool> {
        let kinds = confined(&lab)?;
        Ok(["attach", "control", "log", "worker"].iter().all(|kind| kinds.contains(kind)))
    };
    ensure!(are_all_there()?, "{:?}", confined(&lab)?);
    let _server = Server::start(&lab, Host::B, &[])?;
    perf::transfer_all(&lab, PEER_IPV4, "1M", &[])?;
    // An attachment after the start takes all that the attach thread has kept.
    lab.run(Host::A, "rocectl", &["device", "remove", "roce0"], SOON)?.success()?;
    lab.run(Host::A, "rocectl", &["device", "add", "roce0"], SOON)?.success()?;
    let serves = || Ok(lab.ctl(Host::A, "status")?["devices"][0]["state"] == "serving");
    ensure!(within(SOON, serves)?, "{:#}", lab.ctl(Host::A, "status")?);
    perf::transfer_all(&lab, PEER_IPV4, "1M", &[])?;
    ensure!(are_all_there()?, "{:?}", confined(&lab)?);
    let filter = fs::read_to_string(format!("/proc/{}/coredump_filter", lab.daemon(Host::A)?))?;
    ensure!(filter.trim() == "00000031", "a core dump would have memory of clients: {filter}");
    lab.stop_daemon(Host::A, Signal::SIGTERM)?;
    ensure!(lab.log(Host::A)?.contains("stopped"), "{}", lab.log(Host::A)?);
    lab.start_daemon(Host::A)
}

pub(crate) fn without_it_the_daemon_says_so(_: &Settings) -> Result<()> {
    let lab = Lab::up(&[])?;
    lab.stop_daemon(Host::A, Signal::SIGTERM)?;
    let config = lab.config(Host::A);
    let config = config.to_str().expect("a plain path");
    let daemon = lab.start(Host::A, "roced", &["run", "--no-sandbox", "--config", config])?;
    let says = || Ok(lab.ctl(Host::A, "status").is_ok_and(|status| status["sandbox"]["in_force"] == false));
    let said = within(Duration::from_secs(10), says)?;
    daemon.signal(Signal::SIGTERM)?;
    daemon.end(SOON)?;
    ensure!(said, "the report does not say that the daemon is not confined");
    lab.start_daemon(Host::A)
}
