//! Daemons and clients that are killed under load: an unrelated program does not notice, a peer
//! learns of it at once.

use std::{thread, time::Duration};

use anyhow::{Context as _, Result, ensure};
use nix::{
    sys::signal::{Signal, kill},
    time::{ClockId, clock_gettime},
    unistd::Pid,
};
use serde_json::Value;

use crate::{
    PEER_IPV4, Settings,
    lab::{Host, Lab, SOON},
    perf::{self, Report, Server},
    program::{Program, within},
};

/// Within this the dead are noticed.
const A_SECOND: Duration = Duration::from_secs(1);

/// A transfer that would go on for a long time.
const LONG_LOAD: [&str; 8] = ["bw", PEER_IPV4, "--op", "write", "--seconds", "100", "--size", "256K"];

pub(crate) fn a_killed_daemon(settings: &Settings) -> Result<()> {
    let lab = Lab::up(&[])?;
    let _server = Server::start(&lab, Host::B, &[])?;
    let ping = Program::start(lab.on(Host::A, "ping", &["-i", "0.05", "-W", "1", "-c", "80", PEER_IPV4]))?;
    let load = lab.start(Host::A, "roce-perf", &LONG_LOAD)?;
    let mut bereft = Vec::new();
    for waiting in ["spin", "block", "poll"] {
        let mut client = lab.start(Host::A, settings.client, &["bereft", waiting])?;
        client.expect("waiting", SOON)?;
        bereft.push((waiting, client));
    }
    thread::sleep(Duration::from_millis(500));
    ensure!(xdp_is_attached(&lab, Host::A)?, "no XDP program while the daemon runs");

    let killed = Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC)?);
    kill(Pid::from_raw(lab.daemon(Host::A)?), Signal::SIGKILL)?;
    ensure!(within(A_SECOND, || Ok(!xdp_is_attached(&lab, Host::A)?))?, "XDP is still there after a second");
    for (waiting, mut client) in bereft {
        let line = client.line(SOON).with_context(|| format!("the client that waits by {waiting}"))?;
        let learned: u64 = line.strip_prefix("learned ").with_context(|| line.clone())?.parse()?;
        let took = Duration::from_nanos(learned).saturating_sub(killed);
        print!("\n    a client that waits by {waiting} learned of it after {took:.1?}");
        ensure!(took < A_SECOND, "the client that waits by {waiting} learned of it after {took:?}");
        client.end(SOON)?.success()?;
    }
    let message = load.end(SOON)?.failure()?;
    ensure!(message.contains("daemon"), "roce-perf does not say that the daemon is gone: {message}");

    // Its sockets are closed and its clients know, but the process may still be freeing its memory;
    // this waits for its end, as a service manager does.
    lab.stop_daemon(Host::A, Signal::SIGKILL)?;
    lab.start_daemon(Host::A)?;
    perf::transfer_all(&lab, PEER_IPV4, "1M", &[])?;
    let answers = ping.end(SOON)?.success()?;
    ensure!(answers.contains(" 0% packet loss"), "the kernel's own traffic suffered: {answers}");
    Ok(())
}

/// Also when it is attached in the network stack and not in the driver.
pub(crate) fn a_killed_daemon_with_generic_xdp(_: &Settings) -> Result<()> {
    let lab = Lab::up(&["--mtu", "1500"])?;
    lab.stop_daemon(Host::A, Signal::SIGTERM)?;
    let config = std::fs::read_to_string(lab.config(Host::A))?;
    std::fs::write(lab.config(Host::A), config + "xdp_mode = \"generic\"\n")?;
    lab.start_daemon(Host::A)?;
    ensure!(lab.ctl(Host::A, "status")?["devices"][0]["xdp_mode"] == "generic", "the daemon says another mode");
    ensure!(xdp_is_attached(&lab, Host::A)?, "no XDP program while the daemon runs");
    let _server = Server::start(&lab, Host::B, &[])?;
    perf::transfer_all(&lab, PEER_IPV4, "1M", &[])?;
    lab.stop_daemon(Host::A, Signal::SIGKILL)?;
    ensure!(within(A_SECOND, || Ok(!xdp_is_attached(&lab, Host::A)?))?, "XDP is still there after a second");
    Ok(())
}

fn xdp_is_attached(lab: &Lab, host: Host) -> Result<bool> {
    let link = lab.run(host, "ip", &["-d", "link", "show", "dev", "eth0"], SOON)?.success()?;
    Ok(link.contains("xdp"))
}

pub(crate) fn a_killed_client(_: &Settings) -> Result<()> {
    let lab = Lab::up(&[])?;
    let _server = Server::start(&lab, Host::B, &[])?;
    let _other_server = Server::start_at(&lab, Host::B, "18600", &[])?;
    let other_peer = format!("{PEER_IPV4}:18600");
    let arguments = ["bw", &other_peer, "--op", "write", "--seconds", "4", "--qps", "2", "--json"];
    let survivor = lab.start(Host::A, "roce-perf", &arguments)?;
    let victim = lab.start(Host::A, "roce-perf", &LONG_LOAD)?;
    let (survivor_pid, victim_pid) = (survivor.pid().as_raw().into(), victim.pid().as_raw().into());
    let both_run = || Ok(qps_of(&lab, survivor_pid)? == 2 && qps_of(&lab, victim_pid)? == 1);
    ensure!(
        within(SOON, both_run)?,
        "rocectl qps does not show the queue pairs of both: {:#}",
        lab.ctl(Host::A, "qps")?
    );
    thread::sleep(Duration::from_millis(300));

    victim.signal(Signal::SIGKILL)?;
    ensure!(within(A_SECOND, || Ok(qps_of(&lab, victim_pid)? == 0))?, "queue pairs of the dead after a second");
    let sessions = lab.ctl(Host::A, "status")?;
    ensure!(!names_pid(&sessions["sessions"], victim_pid), "a session of the dead: {sessions:#}");
    ensure!(qps_of(&lab, survivor_pid)? == 2, "the survivor lost its queue pairs");
    Report::read(&survivor.end(SOON)?.success()?)?;
    Ok(())
}

/// The dead send a bounded number of frames yet, as many as one queue pair can have posted, and
/// calls of other programs are served meanwhile.
pub(crate) fn a_killed_client_with_full_send_queues(settings: &Settings) -> Result<()> {
    const QPS: usize = 256;
    const POSTED: u64 = 4096;
    let lab = Lab::up(&[])?;
    let mut victim = lab.start(Host::A, settings.client, &["keep-full", PEER_IPV4, &QPS.to_string()])?;
    let pid = victim.pid().as_raw().into();
    victim.expect("full", SOON)?;
    let mut other = lab.start(Host::A, settings.client, &["time-calls", "2000"])?;
    other.expect("calls", SOON)?;

    victim.signal(Signal::SIGKILL)?;
    // When this has returned its socket is closed.
    let _killed = victim.end(SOON)?;
    let sent = || lab.counter(Host::A, "device/*", "request_packets");
    let at_death = sent()?;
    ensure!(within(SOON, || Ok(qps_of(&lab, pid)? == 0))?, "queue pairs of the dead");
    let after = sent()? - at_death;
    print!("\n    {after} frames after the death of a program with {QPS} full queues");
    // The daemon learns of the death a little later than this program.
    ensure!(after <= 2 * POSTED, "{after} frames after the death of their program");
    print!("; {}", other.line(SOON)?);
    other.end(SOON)?.success()?;
    Ok(())
}

fn qps_of(lab: &Lab, pid: i64) -> Result<usize> {
    let report = lab.ctl(Host::A, "qps")?;
    let qps = report["qps"].as_array().context("qps")?;
    Ok(qps.iter().filter(|qp| qp["pid"] == pid).count())
}

fn names_pid(sessions: &Value, pid: i64) -> bool {
    sessions.as_array().is_some_and(|sessions| sessions.iter().any(|session| session["pid"] == pid))
}

/// SIGTERM: clients are told, the interface is the kernel's again, the exit code is 0.
/// Signals that other daemons take for requests.
pub(crate) fn signals_without_a_meaning_stop_nothing(settings: &Settings) -> Result<()> {
    let lab = Lab::up(&[])?;
    let mut client = lab.start(Host::A, settings.client, &["bereft", "block"])?;
    client.expect("waiting", SOON)?;
    let daemon = lab.daemon(Host::A)?;
    for signal in [Signal::SIGUSR1, Signal::SIGUSR2] {
        kill(Pid::from_raw(daemon), signal)?;
        ensure!(
            within(SOON, || Ok(lab.log(Host::A)?.contains(&format!("{signal} ignored"))))?,
            "{signal} is not logged"
        );
        ensure!(lab.daemon(Host::A)? == daemon, "{signal} ended the daemon");
    }
    lab.stop_daemon(Host::A, Signal::SIGTERM)?;
    client.line(A_SECOND).context("the client does not learn of an orderly stop")?;
    lab.start_daemon(Host::A)
}

pub(crate) fn an_orderly_stop(settings: &Settings) -> Result<()> {
    let lab = Lab::up(&[])?;
    let mut client = lab.start(Host::A, settings.client, &["bereft", "block"])?;
    client.expect("waiting", SOON)?;
    lab.stop_daemon(Host::A, Signal::SIGTERM)?;
    client.line(A_SECOND).context("the client does not learn of an orderly stop")?;
    ensure!(!xdp_is_attached(&lab, Host::A)?, "XDP stays after an orderly stop");
    lab.start_daemon(Host::A)
}
