//! Resources that one user takes from others, or from the daemon.

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use roced_client::{Gid, ServiceType};

use crate::{
    actor::{ActArguments, Actor, FIRST_UID},
    acts::Role,
    finding::Finding,
    network::{Host, INTERFACE, run},
    process::Holdings,
    stage::{Stage, transfer},
    victim::{Transfer, Victim},
};

const MEBIBYTE: f64 = (1 << 20) as f64;

/// Waits until the daemon's holdings are as before, and returns those at last.
pub(super) fn holdings_at_rest(host: &Host, before: &Holdings) -> Result<Holdings> {
    let begin = Instant::now();
    loop {
        let now = host.holdings()?;
        let is_back = now.descriptors <= before.descriptors
            && now.mappings <= before.mappings
            && now.threads <= before.threads
            && now.private_bytes <= before.private_bytes + (1 << 20);
        if is_back || begin.elapsed() > Duration::from_secs(10) {
            return Ok(now);
        }
        thread::sleep(Duration::from_millis(100));
    }
}

/// The default of `limits.account.daemon_memory_mib`.
const ACCOUNT_MIB: f64 = 1024.0;

pub(super) fn private_memory(stage: &Stage) -> Result<Vec<Finding>> {
    let pair = stage.hosts()?;
    let act = ActArguments::new(Role::LargeQueuePairs, &pair.a.socket).times(stage.rounds(600, 1024));
    let start = || Actor::start(&act);
    let first = pair.a.holdings()?;
    // Tables have grown and code is in memory once as many were there.
    let actor = start()?;
    actor.number(Duration::from_secs(120))?;
    drop(actor);
    let before = holdings_at_rest(&pair.a, &first)?;
    let actor = start()?;
    let count = actor.number(Duration::from_secs(120))?;
    let with = pair.a.holdings()?;
    drop(actor);
    let after = holdings_at_rest(&pair.a, &before)?;
    let private = |holdings: &Holdings| holdings.private_bytes as f64 / MEBIBYTE;
    Ok(vec![
        Finding::reported("queue pairs of the largest size", count, ""),
        Finding::reported("private memory of the daemon for them", private(&with) - private(&before), "MiB"),
        Finding::at_most(
            "private memory of the daemon for one account, of its limit",
            (private(&with) - private(&before)) / ACCOUNT_MIB * 100.0,
            "%",
            // A session has some beside its queue pairs.
            102.0,
        ),
        Finding::at_most("private memory that stays after its end", private(&after) - private(&before), "MiB", 1.0),
    ])
}

/// A memory cgroup of version 1 or 2, removed on drop.
struct MemoryCgroup(PathBuf);

impl MemoryCgroup {
    fn new(name: &str) -> Option<Self> {
        let roots = ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"];
        let root = roots.into_iter().map(Path::new).find(|root| {
            root.join("memory.usage_in_bytes").exists()
                || fs::read_to_string(root.join("cgroup.subtree_control")).is_ok_and(|all| all.contains("memory"))
        })?;
        let folder = root.join(name);
        fs::create_dir(&folder).ok()?;
        Some(Self(folder))
    }

    fn add(&self, pid: u32) -> Result<()> {
        fs::write(self.0.join("cgroup.procs"), pid.to_string()).context("cgroup.procs")
    }

    fn bytes(&self) -> Result<u64> {
        let read = |name| fs::read_to_string(self.0.join(name));
        let text = read("memory.usage_in_bytes").or_else(|_| read("memory.current"))?;
        Ok(text.trim().parse()?)
    }
}

impl Drop for MemoryCgroup {
    fn drop(&mut self) {
        // Its processes have ended, but not always their memory.
        for _ in 0..50 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

pub(super) fn untouched_memory(stage: &Stage) -> Result<Vec<Finding>> {
    // Before the hosts, because the daemon must end first.
    let cgroup = MemoryCgroup::new(&format!("roced-hostile-{}", std::process::id()));
    let pair = stage.hosts()?;
    let before = pair.a.holdings()?;
    let charged = match &cgroup {
        Some(cgroup) => {
            cgroup.add(pair.a.pid()?)?;
            cgroup.bytes()?
        }
        None => 0,
    };
    let bytes = 256 << 20;
    let actor = Actor::ready(&ActArguments { bytes, ..ActArguments::new(Role::UntouchedMemory, &pair.a.socket) })?;
    let written = actor.number(Duration::from_secs(120))?;
    let with = pair.a.holdings()?;
    let shared = with.shared_bytes.saturating_sub(before.shared_bytes) as f64 / MEBIBYTE;
    let mut findings = vec![
        Finding::reported("memory written that its owner never touched", written / MEBIBYTE, "MiB"),
        Finding::reported("shared memory that the daemon maps and locks", shared, "MiB"),
    ];
    if let Some(cgroup) = &cgroup {
        let charged = cgroup.bytes()?.saturating_sub(charged) as f64 / MEBIBYTE;
        findings.push(Finding::at_most("memory charged to the daemon's cgroup", charged, "MiB", 32.0));
    } else {
        eprintln!("untouched-memory: no memory cgroup here; the figure of the daemon's mappings stands for it");
        findings.push(Finding::at_most("memory touched by the daemon first", shared, "MiB", 32.0));
    }
    drop(actor);
    drop(pair);
    Ok(findings)
}

pub(super) fn all_queue_pairs(stage: &Stage) -> Result<Vec<Finding>> {
    let pair = stage.hosts()?;
    let greedy = Actor::start(&ActArguments::new(Role::TakeQueuePairs, &pair.a.socket).times(64))?;
    let taken = greedy.number(Duration::from_secs(300))?;
    let other = Actor::start(&ActArguments::new(Role::LargeQueuePairs, &pair.a.socket).by(1).times(1))?;
    let left = other.number(Duration::from_secs(60)).unwrap_or(0.0);
    Ok(vec![
        Finding::reported("queue pairs that one user has", taken, ""),
        Finding::at_least("queue pairs that another user gets then", left, "", 1.0),
    ])
}

/// Two users of the subordinate range of one owner, as `/etc/subuid` of the daemon's host says.
pub(super) fn all_sessions(stage: &Stage) -> Result<Vec<Finding>> {
    let (first, second) = (FIRST_UID, FIRST_UID + 1);
    // `ip netns exec` binds these files over those of /etc for the daemon alone.
    let prefix = std::env::var("HOSTILE_NAME").unwrap_or_else(|_| format!("hostile-{}", std::process::id()));
    let folder = PathBuf::from(format!("/etc/netns/{prefix}-a"));
    fs::create_dir_all(&folder)?;
    fs::write(folder.join("subuid"), format!("60000:{first}:2\n"))?;
    fs::write(folder.join("subgid"), format!("60000:{first}:2\n"))?;
    let findings = all_sessions_of(stage, second);
    fs::remove_dir_all(&folder)?;
    // Others may have files there.
    let _ = fs::remove_dir("/etc/netns");
    findings
}

fn all_sessions_of(stage: &Stage, _second: u32) -> Result<Vec<Finding>> {
    let pair = stage.hosts()?;
    let mut actors = Vec::new();
    let mut taken = 0.0;
    for nth in 0..2 {
        let actor = Actor::start(&ActArguments::new(Role::TakeSessions, &pair.a.socket).by(nth).times(1024))?;
        taken += actor.number(Duration::from_secs(120))?;
        actors.push(actor);
    }
    let other = Actor::start(&ActArguments::new(Role::TakeSessions, &pair.a.socket).by(9).times(1))?;
    let left = other.number(Duration::from_secs(60)).unwrap_or(0.0);
    Ok(vec![
        Finding::reported("sessions that two subordinate users of one owner have", taken, ""),
        Finding::at_least("sessions that another user gets then", left, "", 1.0),
    ])
}

/// Neighbors that the kernel looks for at a time for one account.
const ASKED_MAX: f64 = 64.0;

/// The kernel's table is one of the whole machine: without minutes, the hosts are a part of it.
pub(super) fn silent_neighbors(stage: &Stage) -> Result<Vec<Finding>> {
    let hosts = stage.rounds(600, 8000);
    let mut pair = stage.hosts()?;
    run("ip", &["-n", &pair.a.space, "route", "add", "10.78.0.0/16", "dev", INTERFACE])?;
    // New neighbors: ten for another program of the kernel's, and one for another user.
    for last in 100..=110 {
        let address = format!("10.77.0.{last}/24");
        run("ip", &["-n", &pair.b.space, "address", "add", &address, "dev", INTERFACE])?;
    }
    let actor = Actor::start(&ActArguments::new(Role::AbsentHosts, &pair.a.socket).times(hosts))?;
    let (begin, mut most, mut kept, mut found) = (Instant::now(), 0, 0, 0);
    let mut others = 101..=110;
    while begin.elapsed() < Duration::from_secs(8) {
        most = most.max(neighbors(&pair.a, Some("incomplete"))?);
        kept = kept.max(neighbors(&pair.a, None)?);
        if begin.elapsed() > Duration::from_millis(500)
            && let Some(last) = others.next()
        {
            let address = format!("10.77.0.{last}");
            found += u32::from(pair.a.run("ping", &["-c", "1", "-W", "1", &address]).is_ok());
        }
        thread::sleep(Duration::from_millis(50));
    }
    let made = actor.number(Duration::from_secs(120))?;
    let to_new = Transfer {
        to: (pair.b.socket.clone(), Gid::from(std::net::IpAddr::from([10, 77, 0, 100]))),
        ..transfer(&pair.a, &pair.b, ServiceType::Rc, 64, 1)
    };
    let begin = Instant::now();
    let mut victim = Victim::start(&to_new)?;
    while victim.take().messages == 0 && begin.elapsed() < Duration::from_secs(30) {
        thread::sleep(Duration::from_millis(5));
    }
    let connected_ms = begin.elapsed().as_secs_f64() * 1000.0;
    drop(victim);
    drop(actor);
    Ok(vec![
        Finding::reported("address handles made", made, ""),
        Finding::at_most("neighbors that the kernel looks for at a time", most as f64, "", ASKED_MAX),
        Finding::reported("neighbors in its table", kept as f64, ""),
        Finding::at_least("new neighbors that another program of the host finds, of 10", found.into(), "", 10.0),
        Finding::at_most("first message of another user to a new neighbor", connected_ms, "ms", 1000.0),
        Finding::at_least("daemon alive", f64::from(pair.a.is_alive()), "", 1.0),
    ])
}

/// Neighbors in the kernel's table, those in a state or all.
fn neighbors(host: &Host, state: Option<&str>) -> Result<usize> {
    let arguments = ["-n", &host.space, "neighbor", "show", "nud", state.unwrap_or("all")];
    Ok(run("ip", &arguments)?.lines().count())
}
