//! Work of the control thread that a client can make long.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use roced_client::Device;

use super::workers::messages_beside;
use crate::{
    actor::{ActArguments, Actor, FIRST_UID},
    acts::Role,
    finding::Finding,
    latency::ControlProbe,
    network::{HostPair, INTERFACE, run},
    stage::{SILENCE_MS, Stage, calls_beside, free_memory, settle},
};

fn silence(stage: &Stage, act: Role, count: u32, bytes: u64, seconds: u64) -> Result<(f64, f64)> {
    let mut pair = stage.hosts()?;
    let arguments = ActArguments { bytes, ..ActArguments::new(act, &pair.a.socket).times(count) };
    let calls = calls_beside(&mut pair.a, &arguments, Duration::from_secs(seconds))?;
    Ok((calls.most_ms(), calls.permille_ms(990)))
}

fn silent(text: &str, most_ms: f64) -> Finding {
    Finding::at_most(format!("{text}: longest wait of another's call"), most_ms, "ms", SILENCE_MS)
}

pub(super) fn lingering_descriptors(stage: &Stage) -> Result<Vec<Finding>> {
    let ways = [
        ("in a message that is cut", Role::LingerTruncated),
        ("in the queue of a session that ends", Role::LingerQueued),
        ("in a completion channel", Role::LingerChannel),
    ];
    ways.into_iter()
        .map(|(text, role)| {
            // Five: the watchdog must not end the daemon before the figure is taken.
            let (most, _) = silence(stage, role, 5, 0, 6)?;
            Ok(silent(&format!("5 sockets, SO_LINGER 1 s, {text}"), most))
        })
        .collect()
}

pub(super) fn long_wait_queues(stage: &Stage) -> Result<Vec<Finding>> {
    let entries = stage.rounds(200_000, 2_000_000);
    let (most, p99) = silence(stage, Role::WaitQueueSession, entries, 0, 3)?;
    let mut findings = vec![
        Finding::reported(format!("{entries} epoll entries at a session: another's call, p99"), p99, "ms"),
        silent(&format!("{entries} epoll entries at a session"), most),
    ];
    let beside = messages_beside(stage, Role::WaitQueueChannel, entries, 0, Duration::from_secs(3))?;
    findings
        .extend(beside.into_iter().map(|finding| Finding { text: format!("channel: {}", finding.text), ..finding }));
    Ok(findings)
}

pub(super) fn large_file_close(stage: &Stage) -> Result<Vec<Finding>> {
    // Of the default limit of a client's memory, a part.
    let bytes = (free_memory()? / 4).min(3 << 30) & !((1 << 21) - 1);
    let mut pair = stage.hosts()?;
    let act = ActArguments { bytes, ..ActArguments::new(Role::LargeFile, &pair.a.socket) };
    let probe = ControlProbe::start(&pair.a.socket)?;
    let mut actor = Actor::ready(&act)?;
    thread::sleep(Duration::from_millis(300));
    // The figure is of the end alone: filling the file takes the machine's memory bandwidth.
    probe.finish()?;
    let probe = ControlProbe::start(&pair.a.socket)?;
    thread::sleep(Duration::from_millis(100));
    actor.go();
    thread::sleep(Duration::from_secs(2));
    settle(&probe);
    let calls = probe.finish()?;
    drop(actor);
    let gibibytes = bytes as f64 / f64::from(1 << 30);
    Ok(vec![
        Finding::reported("size of the file", gibibytes, "GiB"),
        Finding::at_most("longest wait of another's call, for each GiB", calls.most_ms() / gibibytes, "ms", 25.0),
        Finding::at_least("daemon alive", f64::from(pair.a.is_alive()), "", 1.0),
    ])
}

/// Other programs open the device meanwhile, and after it.
pub(super) fn unread_replies(stage: &Stage) -> Result<Vec<Finding>> {
    let mut pair = stage.hosts()?;
    let failures = |times: u32| {
        let open = || -> Result<()> {
            let name = Device::list_at(&pair.a.socket)?.into_iter().next().context("no device")?;
            Device::open_at(&pair.a.socket, &name).map(drop).map_err(Into::into)
        };
        f64::from((0..times).map(|_| u32::from(open().is_err())).sum::<u32>())
    };
    let before = failures(20);
    let actor = Actor::start(&ActArguments::new(Role::UnreadReplies, &pair.a.socket).times(60_000))?;
    let mut during = 0.0;
    for _ in 0..100 {
        during += failures(1);
        thread::sleep(Duration::from_millis(50));
    }
    let begin = Instant::now();
    actor.line(Duration::from_secs(120))?;
    let waited = begin.elapsed().as_secs_f64();
    let after = failures(20);
    drop(actor);
    Ok(vec![
        Finding::reported("until all calls were sent", waited, "s"),
        Finding::at_most("devices of another user that did not open before, of 20", before, "", 0.0),
        Finding::at_most("... while replies are left unread, of 100", during, "", 0.0),
        Finding::at_most("... beside all unread replies, of 20", after, "", 0.0),
        Finding::at_least("daemon alive", f64::from(pair.a.is_alive()), "", 1.0),
    ])
}

pub(super) fn pipelined_calls(stage: &Stage) -> Result<Vec<Finding>> {
    let mut pair = stage.hosts()?;
    let act = ActArguments::new(Role::Calls, &pair.a.socket).times(64);
    let calls = calls_beside(&mut pair.a, &act, Duration::from_secs(5))?;
    Ok(vec![
        Finding::reported("another's call, median", calls.permille_ms(500), "ms"),
        silent("64 sessions, 16 calls each", calls.most_ms()),
    ])
}

pub(super) fn neighbor_change(stage: &Stage) -> Result<Vec<Finding>> {
    let config = "[limits.client]\nqps = 4096\n";
    let mut pair = stage.hosts_with(config)?;
    let act = ActArguments::new(Role::IdleQueuePairs, &pair.a.socket).times(4096);
    let actor = Actor::start(&act)?;
    let count = actor.number(Duration::from_secs(120))?;
    let probe = ControlProbe::start(&pair.a.socket)?;
    thread::sleep(Duration::from_millis(100));
    for last in 1..=10 {
        set_neighbor(&pair, last)?;
        thread::sleep(Duration::from_millis(200));
    }
    settle(&probe);
    let calls = probe.finish()?;
    drop(actor);
    Ok(vec![
        Finding::reported("connected queue pairs", count, ""),
        Finding::at_most("longest wait of another's call", calls.most_ms(), "ms", 50.0),
        Finding::at_least("daemon alive", f64::from(pair.a.is_alive()), "", 1.0),
    ])
}

/// As a host on the link does that announces other addresses in the peer's name.
pub(super) fn restless_neighbor(stage: &Stage) -> Result<Vec<Finding>> {
    let mut pair = stage.hosts_with("[limits.client]\nqps = 4096\n")?;
    let actor = Actor::start(&ActArguments::new(Role::IdleQueuePairs, &pair.a.socket).times(4096))?;
    let count = actor.number(Duration::from_secs(120))?;
    let calls_of = |act: &dyn Fn() -> Result<()>| -> Result<_> {
        let probe = ControlProbe::start(&pair.a.socket)?;
        act()?;
        settle(&probe);
        probe.finish()
    };
    let seconds = stage.duration(4);
    let alone = calls_of(&|| {
        thread::sleep(seconds);
        Ok(())
    })?;
    let line = |at: u32| {
        let (peer, mac) = (pair.b.address, format!("02:00:00:00:{:02x}:{:02x}", at / 200 % 200, at % 200));
        format!("neighbor replace {peer} lladdr {mac} dev {INTERFACE} nud reachable\n")
    };
    let file = pair.folder().join("changes");
    let changes = std::cell::Cell::new(0);
    let beside = calls_of(&|| {
        let begin = Instant::now();
        while begin.elapsed() < seconds {
            let at = changes.get();
            std::fs::write(&file, (at..at + 500).map(line).collect::<String>())?;
            run("ip", &["-n", &pair.a.space, "-batch", &file.to_string_lossy()])?;
            changes.set(at + 500);
        }
        Ok(())
    })?;
    drop(actor);
    let ratio = beside.permille_ms(500) / alone.permille_ms(500);
    Ok(vec![
        Finding::reported("connected queue pairs", count, ""),
        Finding::reported("changes a second", f64::from(changes.get()) / seconds.as_secs_f64(), ""),
        Finding::reported("another's call, median, without them", alone.permille_ms(500), "ms"),
        Finding::at_most("another's call, median, of that without them", ratio, "times", 2.0),
        silent("beside them", beside.most_ms()),
        Finding::at_least("daemon alive", f64::from(pair.a.is_alive()), "", 1.0),
    ])
}

fn set_neighbor(pair: &HostPair, last: u8) -> Result<()> {
    let (peer, mac) = (pair.b.address.to_string(), format!("02:00:00:00:00:{last:02x}"));
    let arguments =
        ["-n", &pair.a.space, "neighbor", "replace", &peer, "lladdr", &mac, "dev", INTERFACE, "nud", "permanent"];
    run("ip", &arguments).map(drop)
}

pub(super) fn log_budget(stage: &Stage) -> Result<Vec<Finding>> {
    let pair = stage.hosts()?;
    let noisy = Actor::ready(&ActArguments::new(Role::Faults, &pair.a.socket).times(u32::MAX))?;
    thread::sleep(Duration::from_millis(500));
    let mut quiet = Vec::new();
    // In several seconds, since a budget is one of a second.
    for _ in 0..3 {
        let actor = Actor::ready(&ActArguments::new(Role::Faults, &pair.a.socket).by(1).times(1))?;
        actor.line(Duration::from_secs(20))?;
        quiet.push(actor.pid());
        thread::sleep(Duration::from_millis(700));
    }
    drop(noisy);
    thread::sleep(Duration::from_millis(300));
    let log = pair.a.log_text();
    let of_quiet = |line: &&str| line.contains(&format!("uid={}", FIRST_UID + 1)) && line.contains("its fault");
    let seen = log.lines().filter(of_quiet).count();
    Ok(vec![
        Finding::reported(
            "log lines of the noisy user",
            log.lines().filter(|line| line.contains(&format!("uid={FIRST_UID} "))).count() as f64,
            "",
        ),
        Finding::at_least(
            format!("faults of another user in the log, of {}", quiet.len()),
            seen as f64,
            "",
            quiet.len() as f64,
        ),
    ])
}
