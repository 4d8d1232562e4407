//! Many misbehaviors and many deaths.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use nix::sys::signal::Signal;
use roced_client::ServiceType;

use super::accounts::holdings_at_rest;
use crate::{
    actor::{ActArguments, Actor},
    acts::Role,
    finding::Finding,
    network::Host,
    process::Holdings,
    random::Seeded,
    stage::{FAIR_PERCENT, Stage, last_lines, transfer},
    victim::Victim,
};

/// Misbehavior of two users beside a verified transfer of another.
pub(super) fn misbehavior(stage: &Stage) -> Result<Vec<Finding>> {
    let mut pair = stage.hosts()?;
    let mut victim = Victim::start(&transfer(&pair.a, &pair.b, ServiceType::Rc, 4096, 32))?;
    victim.measure(Duration::from_millis(500));
    let alone = victim.measure(Duration::from_secs(3));
    let script = Actor::ready(&ActArguments::new(Role::Scripted, &pair.a.socket).times(1000))?;
    let scripted = script.number(Duration::from_secs(300)).context("the scripted misbehavior")?;
    drop(script);
    let of_scripts = victim.take();

    let total = stage.rounds(50_000, 1_000_000);
    let actors: Vec<Actor> = (0..2)
        .map(|nth| {
            let arguments = ActArguments::new(Role::Misbehave, &pair.a.socket).by(nth).times(total / 2);
            Actor::ready(&ActArguments { seed: stage.seed + u64::from(nth), ..arguments })
        })
        .collect::<Result<_>>()?;
    victim.take();
    let [mut ended_sessions, mut files, mut done] = [0.0; 3];
    for actor in &actors {
        for figure in [&mut ended_sessions, &mut files, &mut done] {
            *figure += actor.number(Duration::from_secs(3600)).context("the random misbehavior")?;
        }
    }
    let beside = victim.take();
    drop(actors);
    // Sessions that end take some time; other work on this machine takes some as well.
    let mut after = victim.measure(Duration::from_secs(2));
    for _ in 0..4 {
        if after.gbit_per_s < alone.gbit_per_s && after.wrong + after.lost == 0 && after.ended.is_none() {
            after = victim.measure(Duration::from_secs(2));
        }
    }
    let is_alive = pair.a.is_alive();
    if !is_alive {
        eprintln!("misbehavior: the daemon has ended: {}", last_lines(&pair.a.log_text()));
    }
    let ended = of_scripts.ended.or(beside.ended).or(after.ended);
    Ok(vec![
        Finding::reported("scripted misbehaviors", scripted, ""),
        Finding::reported("random misbehaviors", done, ""),
        Finding::reported("sessions that they ended", ended_sessions, ""),
        Finding::reported("files of the daemon that were scribbled on", files, ""),
        Finding::at_least("daemon alive", f64::from(is_alive), "", 1.0),
        Finding::at_most(
            "wrong or lost messages of another",
            (of_scripts.wrong + beside.wrong + after.wrong + beside.lost + after.lost) as f64,
            "",
            0.0,
        ),
        Finding::at_most("connections of another lost", f64::from(ended.is_some()), "", 0.0),
        Finding::at_least(
            "goodput beside random ones, of that alone",
            beside.gbit_per_s / alone.gbit_per_s * 100.0,
            "%",
            FAIR_PERCENT,
        ),
        Finding::at_least("goodput afterward, of that alone", after.gbit_per_s / alone.gbit_per_s * 100.0, "%", 50.0),
    ])
}

/// Clients and queue pairs, as operators see them.
fn objects(host: &Host) -> Result<[u64; 2]> {
    let status = host.ask("\"status\"")?;
    let sessions = status["sessions"].as_array().context("sessions")?;
    let qps = sessions.iter().filter_map(|session| session["qps"].as_u64()).sum();
    Ok([sessions.len() as u64, qps])
}

/// Lives of clients that end by SIGKILL after a random time of random operations.
/// Returns the number of those that have ended by themselves.
fn kill_clients(stage: &Stage, host: &Host, count: u32) -> Result<u32> {
    let mut random = Seeded::new(stage.seed);
    let mut ended = 0;
    for round in 0..count {
        let arguments = ActArguments::new(Role::RandomLife, &host.socket).by(round % 3);
        let actor = Actor::ready(&ActArguments { seed: random.next(), ..arguments })?;
        thread::sleep(Duration::from_micros(random.below(15_000)));
        if let Ok(why) = actor.line(Duration::ZERO) {
            eprintln!("client-kills: client {round} has {why}");
            ended += 1;
        }
        drop(actor);
    }
    Ok(ended)
}

/// Mappings of the allocator that threads add when they run at the same time for the first time.
const ALLOCATOR_MAPPINGS: f64 = 16.0;

pub(super) fn client_kills(stage: &Stage) -> Result<Vec<Finding>> {
    let mut pair = stage.hosts()?;
    // Allocators and tables have grown to their size after some.
    kill_clients(stage, &pair.a, 20)?;
    thread::sleep(Duration::from_secs(3));
    let (before, objects_before) = (pair.a.holdings()?, objects(&pair.a)?);
    let count = stage.rounds(100, 1000);
    let ended = kill_clients(&Stage { seed: stage.seed + 1, ..stage.clone() }, &pair.a, count)?;
    let after = holdings_at_rest(&pair.a, &before)?;
    let objects_after = objects(&pair.a)?;
    let more = |of: fn(&Holdings) -> u64| of(&after) as f64 - of(&before) as f64;
    let mebibytes = |of: fn(&Holdings) -> u64| more(of) / f64::from(1 << 20);
    Ok(vec![
        Finding::reported("clients killed", count.into(), ""),
        Finding::at_most("clients that ended by themselves", ended.into(), "", 0.0),
        Finding::at_least("daemon alive", f64::from(pair.a.is_alive()), "", 1.0),
        Finding::at_most("sessions that stay", objects_after[0] as f64 - objects_before[0] as f64, "", 0.0),
        Finding::at_most("queue pairs that stay", objects_after[1] as f64 - objects_before[1] as f64, "", 0.0),
        Finding::at_most("descriptors that stay", more(|all| all.descriptors), "", 0.0),
        Finding::at_most("mappings of files that stay", more(|all| all.mappings), "", 0.0),
        Finding::at_most("other mappings that stay", more(|all| all.anonymous_mappings), "", ALLOCATOR_MAPPINGS),
        Finding::at_most("threads that stay", more(|all| all.threads), "", 0.0),
        Finding::at_most("private memory that stays", mebibytes(|all| all.private_bytes), "MiB", 1.0),
        Finding::at_most("locked memory that stays", mebibytes(|all| all.locked_bytes), "MiB", 1.0),
    ])
}

/// The daemon ends by SIGKILL at random instants of its clients; each of them must notice.
pub(super) fn daemon_kills(stage: &Stage) -> Result<Vec<Finding>> {
    let mut pair = stage.hosts()?;
    let mut random = Seeded::new(stage.seed);
    let count = stage.rounds(10, 100);
    let (mut hanging, mut restart_ms) = (0, 0.0_f64);
    let before = pair.a.holdings()?;
    for _ in 0..count {
        let mut actors: Vec<Actor> = (0..3)
            .map(|nth| {
                let arguments = ActArguments::new(Role::RandomLife, &pair.a.socket).by(nth);
                Actor::ready(&ActArguments { seed: random.next(), ..arguments })
            })
            .collect::<Result<_>>()?;
        thread::sleep(Duration::from_millis(random.below(50)));
        pair.a.stop(Signal::SIGKILL)?;
        hanging +=
            actors.iter_mut().filter_map(|actor| (!actor.ends_within(Duration::from_secs(15))).then_some(())).count();
        drop(actors);
        let begin = Instant::now();
        pair.a.start()?;
        restart_ms = restart_ms.max(begin.elapsed().as_secs_f64() * 1e3);
    }
    let after = holdings_at_rest(&pair.a, &before)?;
    let private = after.private_bytes as f64 - before.private_bytes as f64;
    Ok(vec![
        Finding::reported("kills of the daemon", count.into(), ""),
        Finding::at_most("clients that hang", hanging as f64, "", 0.0),
        Finding::reported("longest start", restart_ms, "ms"),
        Finding::at_most(
            "descriptors more than in the first life",
            after.descriptors as f64 - before.descriptors as f64,
            "",
            0.0,
        ),
        Finding::at_most("private memory more than in the first life", private / f64::from(1 << 20), "MiB", 1.0),
    ])
}
