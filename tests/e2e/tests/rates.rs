//! Highest rates of accounts and devices, on a host with two workers.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{
    OWN_IPV4, PEER_IPV4, Settings,
    lab::{Host, Lab, SOON},
    perf::{Server, run},
    program::within,
};

/// Mbit/s of payload with queue pairs on both workers.
fn rate(lab: &Lab, from: Host, peer: &str, op: &str, qps: &str, seconds: &str) -> Result<f64> {
    let arguments = ["bw", peer, "--op", op, "--size", "64K", "--qps", qps, "--seconds", seconds];
    let report = run(lab, from, &arguments, Duration::from_secs(60))?;
    Ok(report.0["gbit_per_s"].as_f64().context("gbit_per_s")? * 1000.0)
}

/// Waits that `rocectl accounts` tells.
fn delayed_turns(lab: &Lab) -> Result<u64> {
    let accounts = lab.ctl(Host::B, "accounts")?;
    let accounts = accounts["accounts"].as_array().context("accounts")?;
    Ok(accounts.iter().filter_map(|account| account["delayed_turns"].as_u64()).sum())
}

/// WRITEs to a peer and READs by it together with all connections of the account, and the new rate
/// after a reload for a connection that is there.
pub(crate) fn an_account_has_its_highest_rate(settings: &Settings) -> Result<()> {
    let seconds = if settings.full { "8" } else { "2" };
    let lab = Lab::up(&["--workers", "2", "--queues", "2"])?;
    let before = fs::read_to_string(lab.config(Host::B))?;
    let limited = |mbit: u32| format!("{before}\n[limits.account]\nmax_rate_mbit = {mbit}\n");
    let reload = |config: &str| {
        let applied = |lab: &Lab| Ok::<_, anyhow::Error>(lab.log(Host::B)?.matches("applied").count());
        let times = applied(&lab)?;
        fs::write(lab.config(Host::B), config)?;
        kill(Pid::from_raw(lab.daemon(Host::B)?), Signal::SIGHUP)?;
        ensure!(within(SOON, || Ok(applied(&lab)? > times))?, "{}", lab.log(Host::B)?);
        Ok(())
    };
    let _servers = [Server::start(&lab, Host::A, &[])?, Server::start(&lab, Host::B, &[])?];
    let without = rate(&lab, Host::B, OWN_IPV4, "write", "4", seconds)?;
    ensure!(delayed_turns(&lab)? == 0, "nothing waits without a rate");
    reload(&limited(200))?;
    let mut all = Vec::new();
    for (from, peer, op, qps) in
        [(Host::B, OWN_IPV4, "write", "1"), (Host::B, OWN_IPV4, "send", "32"), (Host::A, PEER_IPV4, "read", "4")]
    {
        all.push(rate(&lab, from, peer, op, qps, seconds)?);
    }
    let to_limited = rate(&lab, Host::A, PEER_IPV4, "write", "4", seconds)?;
    let waits = delayed_turns(&lab)?;
    let load = lab.start(
        Host::B,
        "roce-perf",
        &["bw", OWN_IPV4, "--op", "write", "--size", "64K", "--qps", "4", "--seconds", "4", "--json"],
    )?;
    reload(&limited(50))?;
    let sent = || lab.counter(Host::B, "device/*/queue/*", "nic_tx_bytes");
    let (begin, first) = (Instant::now(), sent()?);
    thread::sleep(Duration::from_secs(2));
    let bytes = sent()? - first;
    let lower = bytes as f64 * 8.0 / begin.elapsed().as_secs_f64() / 1e6;
    load.end(SOON)?.success()?;
    println!(
        "\n    Mbit/s without a rate {without:.0}, with 200: {all:.1?} ({waits} waits), after a reload with 50: {lower:.1}; from a peer {to_limited:.0}"
    );
    ensure!(without > 600.0, "{without} Mbit/s without a rate: too few to see one");
    // With headers, and less where a worker is late by more than a burst.
    ensure!(all.iter().all(|rate| (130.0..200.0).contains(rate)), "{all:.1?} Mbit/s, of 200");
    ensure!(waits > 100, "{waits} waits are told");
    ensure!((35.0..51.0).contains(&lower), "{lower:.1} Mbit/s, of 50");
    ensure!(to_limited > without / 3.0, "a peer's WRITEs wait for the rate of their receiver: {to_limited} Mbit/s");
    Ok(())
}

/// All accounts and workers of a device together.
pub(crate) fn a_device_has_its_highest_rate(settings: &Settings) -> Result<()> {
    let seconds = if settings.full { "8" } else { "2" };
    let lab = Lab::up(&["--workers", "2", "--queues", "2"])?;
    let config = |config: String| config.replacen("[[device]]\n", "[[device]]\nmax_rate_mbit = 200\n", 1);
    lab.change_config(Host::B, config)?;
    ensure!(lab.ctl(Host::B, "status")?["devices"][0]["max_rate_mbit"] == 200, "status does not tell the rate");
    let _server = Server::start(&lab, Host::A, &[])?;
    let rates =
        [rate(&lab, Host::B, OWN_IPV4, "write", "1", seconds)?, rate(&lab, Host::B, OWN_IPV4, "send", "8", seconds)?];
    println!("\n    Mbit/s of a device with 200: {rates:.1?}");
    ensure!(rates.iter().all(|rate| (130.0..200.0).contains(rate)), "{rates:.1?} Mbit/s, of 200");
    Ok(())
}
