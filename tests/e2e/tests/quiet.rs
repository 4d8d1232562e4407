//! Idle programs that cost nothing, and ended ones that leave nothing behind.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};

use crate::{
    PEER_IPV4, Settings,
    lab::{Host, Lab, SOON},
    perf::{self, Server},
    program::Program,
};

/// With the sleep policy, connected clients included, a daemon that has nothing to do takes less
/// than 1 % of a core.
pub(crate) fn an_idle_daemon_sleeps(settings: &Settings) -> Result<()> {
    let lab = Lab::up(&["--idle", "sleep", "--queues", "2", "--workers", "2"])?;
    let _server = Server::start(&lab, Host::B, &[])?;
    perf::transfer_all(&lab, PEER_IPV4, "1M", &[])?;
    let mut client = lab.start(Host::A, settings.client, &["bereft", "block"])?;
    client.expect("waiting", SOON)?;
    thread::sleep(Duration::from_millis(500));
    let daemon = lab.daemon(Host::A)?;
    let (before, begin) = (cpu_time(daemon)?, Instant::now());
    thread::sleep(Duration::from_secs(5));
    let share = (cpu_time(daemon)? - before).as_secs_f64() / begin.elapsed().as_secs_f64();
    print!("\n    an idle daemon takes {:.3} % of a core", share * 100.0);
    ensure!(share < 0.01, "an idle daemon takes {:.1} % of a core", share * 100.0);
    Ok(())
}

/// Processor time of all threads of a process so far.
fn cpu_time(pid: i32) -> Result<Duration> {
    let mut sum = 0;
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        let text = fs::read_to_string(thread?.path().join("schedstat"))?;
        sum += text.split(' ').next().context("schedstat")?.parse::<u64>()?;
    }
    Ok(Duration::from_nanos(sum))
}

/// Down leaves no network namespace, no process, no file; neither does an up that fails.
pub(crate) fn a_lab_leaves_nothing(_: &Settings) -> Result<()> {
    let lab = Lab::up(&["--switch"])?;
    let name = lab.name().to_owned();
    let daemons = [lab.daemon(Host::A)?, lab.daemon(Host::B)?];
    // A program that was left running there.
    let mut left = lab.start(Host::A, "sleep", &["1000"])?;
    drop(lab);
    ensure!(!left.runs()?, "a program goes on after the lab is down");
    ensure_nothing(&name)?;
    for daemon in daemons {
        ensure!(!goes_on(daemon), "a daemon goes on after the lab is down");
    }

    let failed = Lab::up(&["--idle", "restlessly"]).err().context("a config that is wrong, and yet the lab is up")?;
    ensure!(failed.to_string().contains("restlessly"), "the daemon's log is not shown: {failed}");
    ensure_nothing(&format!("e2e-{}", std::process::id()))
}

/// A process that has ended may still wait for its parent to ask how.
fn goes_on(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

fn ensure_nothing(prefix: &str) -> Result<()> {
    for folder in ["/run/netns", "/run/roced-lab"] {
        let Ok(entries) = fs::read_dir(folder) else { continue };
        for entry in entries {
            let name = entry?.file_name().to_string_lossy().into_owned();
            ensure!(!name.starts_with(prefix), "{folder}/{name} was left behind");
        }
    }
    Ok(())
}

/// Every frame that one daemon sent was redirected to the other by XDP, and no other frame was.
pub(crate) fn xdp_counters_account_for_every_frame(settings: &Settings) -> Result<()> {
    let lab = Lab::up(&[])?;
    let _server = Server::start(&lab, Host::B, &[])?;
    perf::transfer_all(&lab, PEER_IPV4, settings.bytes(), &[])?;
    Program::run(lab.on(Host::A, "ping", &["-c", "3", "-i", "0.1", PEER_IPV4]), SOON)?.success()?;
    for (from, to) in [(Host::A, Host::B), (Host::B, Host::A)] {
        let sent = lab.counter(from, "device/*/queue/*", "nic_tx_frames")?;
        let redirected = lab.counter(to, "device/*", "xdp_redirected")?;
        let received = lab.counter(to, "device/*/queue/*", "nic_rx_frames")?;
        print!("\n    {from} sent {sent} frames, XDP redirected {redirected} on {to}, which received {received}");
        ensure!(sent > 0 && sent == redirected && sent == received, "frames went missing");
    }
    Ok(())
}
