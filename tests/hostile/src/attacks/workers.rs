//! Work of a worker that a client can make long.

use std::time::Duration;

use anyhow::Result;
use roced_client::ServiceType;

use crate::{
    actor::{ActArguments, Actor},
    acts::Role,
    finding::Finding,
    process::processor_time,
    stage::{FAIR_PERCENT, Stage, free_memory, transfer},
    victim::Victim,
};

/// Figures of a transfer of small messages, one at a time, beside `act`.
pub(super) fn messages_beside(
    stage: &Stage,
    act: Role,
    count: u32,
    bytes: u64,
    time: Duration,
) -> Result<Vec<Finding>> {
    let mut pair = stage.hosts()?;
    let mut victim = Victim::start(&transfer(&pair.a, &pair.b, ServiceType::Rc, 64, 1))?;
    victim.measure(Duration::from_millis(500));
    let alone = victim.measure(time);
    let equal_act =
        ActArguments { peer: Some(pair.b.socket.clone()), ..ActArguments::new(Role::ManyQueuePairs, &pair.a.socket) };
    let equal_actor = Actor::ready(&equal_act.by(1))?;
    let equal = victim.measure(time);
    drop(equal_actor);
    victim.measure(Duration::from_millis(500));
    let actor = Actor::ready(&ActArguments { bytes, ..ActArguments::new(act, &pair.a.socket).times(count) })?;
    victim.measure(Duration::from_millis(300));
    let before = processor_time(actor.pid())?;
    let beside = victim.measure(time);
    let spent = processor_time(actor.pid()).unwrap_or(before).saturating_sub(before);
    drop(actor);
    let ended = beside.ended.is_some();
    drop(victim);
    let p99 = beside.latencies.permille_ms(990);
    let share = beside.messages as f64 / alone.messages as f64 * 100.0;
    Ok(vec![
        Finding::reported("messages a second alone", alone.messages as f64 / time.as_secs_f64(), "1/s"),
        Finding::reported("processor time of the attacker", spent.as_secs_f64() / time.as_secs_f64() * 100.0, "%"),
        Finding::at_least("messages beside, of those alone", share, "%", FAIR_PERCENT),
        Finding::reported("message alone, p99", alone.latencies.permille_ms(990), "ms"),
        Finding::reported("message beside one equal, p99", equal.latencies.permille_ms(990), "ms"),
        Finding::reported("message beside, p99", p99, "ms"),
        Finding::at_most(
            "message beside, p99, of that beside one equal",
            p99 / equal.latencies.permille_ms(990),
            "times",
            3.0,
        ),
        Finding::at_most("message beside, longest", beside.latencies.most_ms(), "ms", 100.0),
        Finding::at_most(
            "wrong or lost messages, lost connections",
            (beside.wrong + beside.lost + u64::from(ended)) as f64,
            "",
            0.0,
        ),
        Finding::at_least("daemon alive", f64::from(pair.a.is_alive()), "", 1.0),
    ])
}

pub(super) fn shared_ring(stage: &Stage) -> Result<Vec<Finding>> {
    messages_beside(stage, Role::SharedRing, 1, 0, Duration::from_secs(3))
}

pub(super) fn doorbells(stage: &Stage) -> Result<Vec<Finding>> {
    messages_beside(stage, Role::Doorbells, 700, 0, Duration::from_secs(3))
}

pub(super) fn holes(stage: &Stage) -> Result<Vec<Finding>> {
    let bytes = (free_memory()? / 4).min(2 << 30) & !((1 << 21) - 1);
    messages_beside(stage, Role::Holes, 1, bytes, Duration::from_secs(3))
}

/// Stalls of some ten milliseconds, each in a session of its own, as fast as one user can open
/// them.
pub(super) fn short_stalls(stage: &Stage) -> Result<Vec<Finding>> {
    const BYTES: u64 = 32 << 20;
    /// Many times as many as have a fifth of a second in all.
    const SESSIONS: f64 = 400.0;
    let mut findings = messages_beside(stage, Role::ShortStalls, 1, BYTES, Duration::from_secs(5))?;
    let pair = stage.hosts()?;
    let act = ActArguments { bytes: BYTES, ..ActArguments::new(Role::ShortStalls, &pair.a.socket) };
    let sessions = Actor::ready(&act)?.number(Duration::from_secs(60))?;
    findings.push(Finding::at_most("sessions that ended until the user was refused", sessions, "", SESSIONS));
    Ok(findings)
}

/// A transfer of one queue pair, beside another user's with 256: its share of the sum.
pub(super) fn many_queue_pairs(stage: &Stage) -> Result<Vec<Finding>> {
    let mut pair = stage.hosts()?;
    let mut victim = Victim::start(&transfer(&pair.a, &pair.b, ServiceType::Rc, 8192, 64))?;
    let time = Duration::from_secs(4);
    victim.measure(Duration::from_secs(1));
    let alone = victim.measure(time);
    let mut findings = vec![Finding::reported("goodput alone", alone.gbit_per_s, "Gbit/s")];
    let mut equal = f64::NAN;
    for count in [1, 256] {
        let act = ActArguments {
            peer: Some(pair.b.socket.clone()),
            ..ActArguments::new(Role::ManyQueuePairs, &pair.a.socket)
        };
        let actor = Actor::ready(&act.times(count))?;
        victim.measure(Duration::from_secs(1));
        let beside = victim.measure(time);
        drop(actor);
        // Its queue pairs end meanwhile.
        victim.measure(Duration::from_secs(2));
        let p99 = beside.latencies.permille_ms(990);
        findings.push(Finding::reported(format!("goodput beside {count} queue pairs"), beside.gbit_per_s, "Gbit/s"));
        findings.push(Finding::reported(format!("message beside {count} queue pairs, p99"), p99, "ms"));
        if count == 1 {
            equal = beside.gbit_per_s;
        } else {
            let share = beside.gbit_per_s / equal * 100.0;
            findings.push(Finding::at_least("goodput beside 256, of that beside one equal", share, "%", 80.0));
        }
        findings.push(Finding::at_most(format!("wrong messages beside {count}"), beside.wrong as f64, "", 0.0));
    }
    drop(victim);
    findings.push(Finding::at_least("daemon alive", f64::from(pair.a.is_alive()), "", 1.0));
    Ok(findings)
}

/// A transfer beside one aggressor of another user after the other: its part of its fair share, and
/// its p99 of that beside an equal.
pub(super) fn aggressors(stage: &Stage) -> Result<Vec<Finding>> {
    let mut pair = stage.hosts()?;
    let bytes = u64::from(stage.rounds(256, 1536)) << 20;
    let kinds = [
        ("an equal", Role::ManyQueuePairs, 1),
        ("1,000 queue pairs", Role::ManyQueuePairs, 1000),
        ("64-byte messages", Role::SmallMessages, 1),
        ("huge messages", Role::HugeMessages, 1),
        ("READs of the peer", Role::PeerReads, 1),
        ("64 queue pairs of the peer that write", Role::PeerWrites, 64),
        ("WRITEs of the peer to proxied memory", Role::ProxiedMemory, 1),
        ("atomic operations of the peer", Role::Atomics, 1),
        ("completions never reaped", Role::NeverReaps, 1),
        ("requests that fail", Role::PostsErrors, 1),
        ("registrations", Role::Registers, 1),
        ("control calls", Role::Calls, 16),
    ];
    let mut victim = Victim::start(&transfer(&pair.a, &pair.b, ServiceType::Rc, 8192, 64))?;
    victim.measure(Duration::from_secs(1));
    let alone = victim.measure(Duration::from_secs(3)).gbit_per_s;
    let mut findings = vec![Finding::reported("alone: goodput", alone, "Gbit/s")];
    let mut equal_p99 = None;
    for (text, role, count) in kinds {
        let peer = Some(pair.b.socket.clone());
        let act = ActArguments { peer, bytes, ..ActArguments::new(role, &pair.a.socket).times(count) };
        let mut actor = Actor::ready(&act)?;
        victim.measure(Duration::from_millis(500));
        let beside = victim.measure(Duration::from_secs(3));
        let was_there = actor.is_alive();
        drop(actor);
        victim.measure(Duration::from_secs(1));
        let (goodput, p99) = (beside.gbit_per_s, beside.latencies.permille_ms(990));
        let name = |figure: &str| format!("beside {text}: {figure}");
        // Its fair share is a half; an equal may take less.
        findings.push(Finding::at_least(name("goodput, of half of that alone"), goodput / alone * 200.0, "%", 80.0));
        if let Some(equal) = equal_p99 {
            findings.push(Finding::at_most(name("p99, of that beside an equal"), p99 / equal, "times", 3.0));
        } else {
            findings.push(Finding::reported(name("p99"), p99, "ms"));
            equal_p99 = Some(p99);
        }
        let broken = beside.wrong + beside.lost + u64::from(beside.ended.is_some());
        findings.push(Finding::at_most(name("wrong or lost messages, lost connections"), broken as f64, "", 0.0));
        if !was_there {
            eprintln!("aggressors: {text}: the aggressor has ended");
        }
    }
    drop(victim);
    findings.push(Finding::at_least("daemon alive", f64::from(pair.a.is_alive()), "", 1.0));
    Ok(findings)
}
