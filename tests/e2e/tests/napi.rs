//! Where the kernel polls the queues: data is right in either way, and the former settings come
//! back.

use std::{fs, process::Command, time::Duration};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;

use crate::{
    PEER_IPV4, PEER_IPV6, Settings,
    lab::{Host, Lab, SOON},
    perf::{self, Server},
    program::{Program, within},
};

const HOSTS: [Host; 2] = [Host::A, Host::B];

/// Both hosts' NAPI runs in threads on the cores of their workers while they serve; when a daemon
/// ends, its interface is as before.
pub(crate) fn threads_move_data_and_are_gone_afterward(settings: &Settings) -> Result<()> {
    let lab = Lab::up(&["--napi", "threaded", "--queues", "2"])?;
    let threads = HOSTS.map(|host| threads(&lab, host));
    for (host, threads) in HOSTS.into_iter().zip(threads) {
        let threads = threads?;
        ensure!(threads.len() == 2, "host {host} has two queues, and threads {threads:?}");
        ensure!(lab.ctl(host, "status")?["devices"][0]["napi"] == "threaded", "host {host} reports another way");
        ensure!(gro(&lab, host)?, "GRO of host {host} is off");
        for thread in &threads {
            let pid = pid_of(thread)?.with_context(|| format!("{thread} is not there"))?;
            let core = lab.ctl(host, "status")?["workers"][0]["core"].as_u64().context("a worker that is pinned")?;
            ensure!(allowed(pid)? == core.to_string(), "{thread} is not on core {core}, but {}", allowed(pid)?);
        }
        let _server = Server::start(&lab, Host::B, &[])?;
        perf::transfer_all(&lab, PEER_IPV4, settings.bytes(), &[])?;
        perf::transfer_all(&lab, PEER_IPV6, "4M", &["--mtu", "1024"])?;
        lab.stop_daemon(host, Signal::SIGTERM)?;
        for thread in &threads {
            ensure!(within(SOON, || Ok(pid_of(thread)?.is_none()))?, "{thread} is still there");
        }
        ensure!(!gro(&lab, host)?, "GRO of host {host} stays on");
        lab.start_daemon(host)?;
    }
    Ok(())
}

/// A daemon in a real-time class takes the threads along: beside its busy workers those of a lower
/// class would starve.
pub(crate) fn threads_follow_the_daemon_into_a_real_time_class(_: &Settings) -> Result<()> {
    const FIFO: u32 = 1;
    let lab = Lab::up(&["--napi", "threaded"])?;
    let classes = || threads(&lab, Host::B)?.iter().map(|thread| class(thread)).collect::<Result<Vec<_>>>();
    ensure!(classes()?.iter().all(|class| *class == Some((0, 0))), "of the ordinary class: {:?}", classes()?);
    lab.stop_daemon(Host::B, Signal::SIGTERM)?;
    let start = lab.command("start");
    let mut higher = Command::new("chrt");
    higher.args(["--fifo", "7"]).arg(start.get_program()).args(["start", "b"]);
    higher.envs(start.get_envs().filter_map(|(name, value)| Some((name, value?))));
    Program::run(higher, SOON)?.success()?;
    let classes: Vec<_> = classes()?.into_iter().flatten().collect();
    ensure!(classes == [(FIFO, 7)], "a thread for the one queue, in the daemon's class: {classes:?}");
    let _server = Server::start(&lab, Host::B, &[])?;
    perf::transfer_all(&lab, PEER_IPV4, "4M", &[])
}

/// The driver's way changes nothing of the interface; a way that does not exist is refused by name.
pub(crate) fn the_drivers_way_touches_nothing(_: &Settings) -> Result<()> {
    let lab = Lab::up(&["--napi", "driver"])?;
    ensure!(lab.ctl(Host::A, "status")?["devices"][0]["napi"] == "driver", "another way is reported");
    ensure!(!gro(&lab, Host::A)? && threads(&lab, Host::A)?.is_empty(), "it was changed");
    let refused = Lab::up(&["--napi", "elsewhere"]).err().context("a way that does not exist")?;
    ensure!(refused.to_string().contains("elsewhere"), "{refused}");
    Ok(())
}

/// The names of the NAPI threads that a daemon says it has.
fn threads(lab: &Lab, host: Host) -> Result<Vec<String>> {
    let mut log = lab.command("log");
    log.arg(host.to_string());
    let path = Program::run(log, SOON)?.success()?;
    let text = fs::read_to_string(path.trim())?;
    let words = text.split(|at: char| at.is_whitespace() || ['"', ',', '='].contains(&at));
    Ok(words.filter(|word| word.starts_with("napi/")).map(str::to_owned).collect())
}

fn gro(lab: &Lab, host: Host) -> Result<bool> {
    let features = lab.run(host, "ethtool", &["-k", "eth0"], Duration::from_secs(10))?.success()?;
    let line = features.lines().find(|line| line.starts_with("generic-receive-offload:"));
    Ok(line.context("no line about GRO")?.contains(": on"))
}

/// The process of a kernel thread.
fn pid_of(name: &str) -> Result<Option<u32>> {
    // The kernel keeps 15 characters.
    let name = &name[..name.len().min(15)];
    for entry in fs::read_dir("/proc")? {
        let entry = entry?.file_name();
        let Some(pid) = entry.to_str().and_then(|name| name.parse().ok()) else { continue };
        // It may have ended since.
        if fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim_end() == name) {
            return Ok(Some(pid));
        }
    }
    Ok(None)
}

/// Scheduling policy and real-time priority of a kernel thread, as `/proc/PID/stat` has them, while
/// it is there.
fn class(name: &str) -> Result<Option<(u32, u32)>> {
    let Some(pid) = pid_of(name)? else { return Ok(None) };
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // Behind the name, which may have spaces, stands field 3.
    let (_, fields) = stat.rsplit_once(')').context("a name")?;
    let mut fields = fields.split_whitespace().skip(40 - 3);
    let mut next = || fields.next().and_then(|field| field.parse().ok()).context("a number");
    let (priority, policy) = (next()?, next()?);
    Ok(Some((policy, priority)))
}

/// The cores that a thread may run on, as the kernel lists them.
fn allowed(pid: u32) -> Result<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    Ok(line.context("a list of cores")?.trim().to_owned())
}
