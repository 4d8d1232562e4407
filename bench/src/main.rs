//! The benchmark: roced beside its limit (raw AF_XDP frames on the same kind of link) and beside
//! the usual alternative (TCP), one after the other, round after round, in one run.
//!
//! ```text
//!   host a (namespace)                                     host b (namespace)
//!     roced, roce-perf, perftest   eth0 ═══ veth ═══ eth0    roced, roce-perf serve, perftest
//!     raw frames                   eth1 ═══ veth ═══ eth1    raw frames
//!     TCP without offloads         eth2 ═══ veth ═══ eth2    TCP
//!     TCP with veth's offloads     eth3 ═══ veth ═══ eth3    TCP
//!     as the first, with --napi    eth4 ═══ veth ═══ eth4    as the first
//!     ... with two workers         eth5 ═══ veth ═══ eth5    as the first
//!     ... with two workers         eth6 ═══ veth ═══ eth6    ... its frames arrive at each other's queue
//!     raw frames, with --napi      eth7 ═══ veth ═══ eth7    raw frames
//! ```
//!
//! All pairs have the same MTU, and one queue but for those with two workers. Where a host has one
//! worker, that is pinned to a core, host a's to the first and host b's to the second, and so is
//! the thread that sends or receives raw frames; programs and TCP run wherever the kernel lets
//! them. All contestants have the same scheduling class, by default the ordinary one, as the daemon
//! has. The results are the ratios of neighbors in the same round; absolute figures say more about
//! the machine.

mod apart;
mod cli;
mod cmtime;
mod connections;
mod contest;
mod contestants;
mod cpu;
mod fairness;
mod host;
mod machine;
mod network;
mod programs;
mod ratios;
mod raw;
mod rdma;
mod report;
mod reserve;
mod samehost;
mod sample;
mod scale;
mod syscalls;
mod tcp;

use std::{path::Path, time::Duration};

use anyhow::Context;
use clap::Parser as _;

use crate::{
    cli::BenchArgs,
    contestants::{Arena, Contestant},
    host::{Host, Settings},
    machine::Machine,
    network::{BenchNetwork, NetworkSide, Pair},
    programs::{ProgramPlace, Programs},
    report::{BenchReport, Found},
    reserve::Reserve,
};

/// How long each is run to count its system calls.
const SYSCALLS_TIME: Duration = Duration::from_millis(300);

fn main() -> anyhow::Result<()> {
    let cli = BenchArgs::parse();
    let can = |one: &Contestant| !cli.napi.is_empty() || !one.what.pair().is_some_and(Pair::moves_napi);
    let wanted = |one: &Contestant| can(one) && cli.wants(&one.name, one.in_ratios);
    let contestants: Vec<_> = contestants::all().into_iter().filter(wanted).collect();
    if cli.list {
        let names: String = contestants.iter().map(|one| format!("{}\n", one.name)).collect();
        return Ok(roced_output::print(names)?);
    }
    let report = measure(&cli, &contestants)?;
    // Hours of measuring are in the files, even if the output is full.
    let printed = roced_output::print(report.text());
    report.write(&cli)?;
    Ok(printed?)
}

fn measure(cli: &BenchArgs, contestants: &[Contestant]) -> anyhow::Result<BenchReport> {
    let machine = Machine::look();
    let _reserve = cli.keep_memory.map(Reserve::take).transpose()?;
    if cli.fifo {
        // Threads and programs that are started from here on inherit it.
        network::run("chrt", &["--fifo", "--pid", "1", &std::process::id().to_string()])?;
    }
    let built = std::env::current_exe()?.parent().context("this program lies in a folder")?.to_owned();
    let network = BenchNetwork::new(&cli.name, cli.mtu)?;
    let hosts = |pair| {
        let start = |side| start_host(&network, (pair, side), &built, cli);
        anyhow::Ok([start(NetworkSide::A)?, start(NetworkSide::B)?])
    };
    let mut plain = hosts(Pair::Roce)?;
    let is_wanted = |pair: &Pair| contestants.iter().any(|one| one.what.pair() == Some(*pair));
    let others = [Pair::RoceNapi, Pair::RoceTwo, Pair::RoceCrossed].into_iter().filter(is_wanted);
    let mut others = others.map(|pair| Ok((pair, hosts(pair)?))).collect::<anyhow::Result<Vec<_>>>()?;
    let place = ProgramPlace { network: &network, built: &built, folder: &cli.folder };
    let programs = others.iter().map(|(pair, hosts)| Programs::new(place, *pair, hosts)).collect();
    let found = compare(cli, contestants, Programs::new(place, Pair::Roce, &plain), programs);
    let mut found = found.map_err(|error| {
        let fallen = plain.iter_mut().chain(others.iter_mut().flat_map(|(_, hosts)| hosts)).filter_map(Host::fallen);
        fallen.fold(error, |error, fallen| error.context(fallen))
    })?;
    let status = plain[0].status()?;
    if cli.wants_fairness() {
        // Between hosts of its own, and without the daemons of these, which poll.
        drop((plain, others));
        eprintln!("fairness");
        found.fairness = fairness::measure(&built, &cli.folder, cli.rounds().min(3))?;
    }
    Ok(BenchReport::new(cli, machine, found, &status))
}

fn compare(
    cli: &BenchArgs,
    contestants: &[Contestant],
    programs: Programs<'_>,
    others: Vec<Programs<'_>>,
) -> anyhow::Result<Found> {
    let time = Duration::from_secs_f64(cli.seconds());
    let arena = Arena::new(programs, others, contestants)?;
    let results = contest::run(&arena, contestants, cli.rounds(), time)?;
    let mut found = Found { results, ..Found::default() };
    if !cli.no_syscalls {
        eprintln!("system calls");
        let counted = contestants.iter().filter(|one| syscalls::is_counted(&one.name, &found.results));
        let counted: Vec<_> = counted.cloned().collect();
        found.syscalls = syscalls::per_packet(&arena, &counted, programs.place.folder, time.min(SYSCALLS_TIME))?;
    }
    drop(arena);
    if !cli.no_scale && cli.only.is_empty() {
        eprintln!("10,000 queue pairs, 100 clients");
        found.scale = Some(scale::measure(&programs, cli.rounds().min(3), time)?);
    }
    if cli.wants_connections() {
        eprintln!("connections by the connection manager");
        found.connections = Some(connections::measure(&programs, cli.rounds().min(3))?);
    }
    Ok(found)
}

/// A daemon on a host, with the settings that its pair is there for.
fn start_host(
    network: &BenchNetwork,
    (pair, side): (Pair, NetworkSide),
    built: &Path,
    cli: &BenchArgs,
) -> anyhow::Result<Host> {
    let mut settings =
        Settings { device: cli.device.clone(), worker: cli.worker.clone(), more_workers: pair.queues() - 1 };
    if pair.queues() == 1 {
        settings.worker.push(format!("core = {}", side.core()));
    }
    match (pair, side) {
        (Pair::RoceNapi, NetworkSide::A) => settings.worker.extend(cli.napi_sender_worker.iter().cloned()),
        (Pair::RoceNapi, NetworkSide::B) => {
            settings.device.extend(cli.napi.iter().cloned());
            settings.worker.extend(cli.napi_worker.iter().cloned());
        }
        (Pair::RoceCrossed, NetworkSide::B) => {
            settings.device.push("queues = [{ queue = 0, worker = 1 }, { queue = 1, worker = 0 }]".to_owned());
        }
        _ => {}
    }
    let host = Host::new(network, (pair, side), built, &cli.folder, &settings);
    host.with_context(|| format!("host {}", side.letter()))
}
