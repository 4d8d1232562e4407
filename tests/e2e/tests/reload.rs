//! Reading the config again while the daemon runs.

use std::fs;

use anyhow::{Result, ensure};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{
    PEER_IPV4, Settings,
    lab::{Host, Lab, SOON},
    perf::{self, Server},
    program::within,
};

fn reload(lab: &Lab, config: &str, says: &str) -> Result<()> {
    fs::write(lab.config(Host::A), config)?;
    kill(Pid::from_raw(lab.daemon(Host::A)?), Signal::SIGHUP)?;
    ensure!(within(SOON, || Ok(lab.log(Host::A)?.contains(says)))?, "no {says:?} in {}", lab.log(Host::A)?);
    Ok(())
}

pub(crate) fn keys_are_applied_or_named_and_connections_survive(_: &Settings) -> Result<()> {
    let lab = Lab::up(&[])?;
    let daemon = lab.daemon(Host::A)?;
    let _server = Server::start(&lab, Host::B, &[])?;
    let load = lab.start(Host::A, "roce-perf", &["bw", PEER_IPV4, "--op", "write", "--seconds", "4", "--json"])?;
    let before = fs::read_to_string(lab.config(Host::A))?;
    reload(&lab, &before, "no change")?;
    let after = format!(
        "{before}xdp_mode = \"generic\"\nwindow_packets = 77\n\n[log]\nlevel = \"debug\"\n\n[limits.client]\nqps = 1\n"
    );
    reload(&lab, &after, "keys=\"log.level, limits.client.qps, device[0].xdp_mode\"")?;
    ensure!(lab.log(Host::A)?.contains("restart roced to apply these keys"), "{}", lab.log(Host::A)?);
    let generic = || Ok(lab.ctl(Host::A, "status")?["devices"][0]["xdp_mode"] == "generic");
    ensure!(within(SOON, generic)?, "{:#}", lab.ctl(Host::A, "status")?);
    ensure!(within(SOON, || Ok(lab.log(Host::A)?.contains("DEBUG")))?, "the log level is as before");
    load.end(SOON)?.success()?;
    let two = lab
        .run(Host::A, "roce-perf", &["bw", PEER_IPV4, "--op", "write", "--qps", "2", "--seconds", "1"], SOON)?
        .failure()?;
    ensure!(two.contains("limit"), "a second queue pair is refused otherwise: {two}");
    // And back.
    let applied = || -> Result<usize> { Ok(lab.log(Host::A)?.matches("config read again: applied").count()) };
    let times = applied()?;
    reload(&lab, &before, "applied")?;
    ensure!(within(SOON, || Ok(applied()? > times))?, "{}", lab.log(Host::A)?);
    let native = || Ok(lab.ctl(Host::A, "status")?["devices"][0]["xdp_mode"] == "native");
    ensure!(within(SOON, native)?, "{:#}", lab.ctl(Host::A, "status")?);
    perf::transfer_all(&lab, PEER_IPV4, "1M", &[])?;
    ensure!(lab.daemon(Host::A)? == daemon, "the daemon was started anew");
    Ok(())
}

pub(crate) fn a_wrong_config_changes_nothing(_: &Settings) -> Result<()> {
    let lab = Lab::up(&[])?;
    let before = fs::read_to_string(lab.config(Host::A))?;
    let wrong = format!("{before}xdp_mode = \"generic\"\nwindow_packets = \"many\"\n");
    reload(&lab, &wrong, "the config is wrong: nothing was changed")?;
    ensure!(lab.log(Host::A)?.contains("device[0].window_packets"), "{}", lab.log(Host::A)?);
    ensure!(lab.ctl(Host::A, "status")?["devices"][0]["xdp_mode"] == "native", "a wrong config was applied");
    let _server = Server::start(&lab, Host::B, &[])?;
    perf::transfer_all(&lab, PEER_IPV4, "1M", &[])?;
    // Right in itself, but not for this interface: veth has no zero-copy.
    let load = lab.start(Host::A, "roce-perf", &["bw", PEER_IPV4, "--op", "write", "--seconds", "3", "--json"])?;
    let impossible = format!("{before}copy_mode = \"zerocopy\"\n");
    reload(&lab, &impossible, "the new options cannot be applied: the earlier ones stay")?;
    let serves = || Ok(lab.ctl(Host::A, "status")?["devices"][0]["state"] == "serving");
    ensure!(within(SOON, serves)?, "{:#}", lab.ctl(Host::A, "status")?);
    load.end(SOON)?.success()?;
    // Named by the next reload as well.
    reload(&lab, &before, "no change")
}

/// A denied network is reached no more, connections to it fail, and its frames are dropped; as soon
/// as it is allowed again all goes.
pub(crate) fn denied_peers_are_kept_out_both_ways(_: &Settings) -> Result<()> {
    let lab = Lab::up(&[])?;
    let before = fs::read_to_string(lab.config(Host::A))?;
    let server = Server::start(&lab, Host::B, &[])?;
    let load = lab.start(Host::A, "roce-perf", &["bw", PEER_IPV4, "--op", "write", "--seconds", "20", "--json"])?;
    // Not only a queue pair: the peer repeats nothing, and owes nothing, before data flows.
    let sends = || Ok(lab.counter(Host::A, "device/*", "request_packets")? > 1000);
    ensure!(within(SOON, sends)?, "{:#}", lab.ctl(Host::A, "qps")?);
    let network = format!("{PEER_IPV4}/32");
    let after = format!("{before}\n[net]\ndenied_peers = [\"{network}\"]\n");
    reload(&lab, &after, "keys=\"net.denied_peers\"")?;
    load.end(SOON)?.failure()?;
    // The daemon of the peer repeats until its retries are used up.
    let dropped = || Ok(lab.counter(Host::A, "device/*", "drop_denied_source")? > 0);
    ensure!(within(SOON, dropped)?, "no frame of the denied peer was dropped");
    drop(server);
    let _server = Server::start(&lab, Host::B, &[])?;
    let refused =
        lab.run(Host::A, "roce-perf", &["bw", PEER_IPV4, "--op", "write", "--seconds", "1"], SOON)?.failure()?;
    ensure!(refused.contains("no route"), "{refused}");
    reload(&lab, &before, "applied")?;
    perf::transfer_all(&lab, PEER_IPV4, "1M", &[])
}
