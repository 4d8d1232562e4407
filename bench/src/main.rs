//! The benchmark: roced beside what limits it (raw AF_XDP frames on the same kind of link) and beside what a user would pick instead
//! (TCP), one after the other, round after round, in one run.
//!
//! ```text
//!   host a (namespace)                                     host b (namespace)
//!     roced, roce-perf, perftest   eth0 ═══ veth ═══ eth0    roced, roce-perf serve, perftest
//!     raw frames                   eth1 ═══ veth ═══ eth1    raw frames
//!     TCP without offloads         eth2 ═══ veth ═══ eth2    TCP
//!     TCP with veth's offloads     eth3 ═══ veth ═══ eth3    TCP
//! ```
//!
//! All pairs have one queue and the same MTU; nobody is pinned to a core, and everybody has the ordinary scheduling class, as the daemon has
//! by default. What counts are ratios of neighbors in the same round; absolute figures say more about the machine.

mod cli;
mod contest;
mod contestants;
mod cpu;
mod host;
mod machine;
mod network;
mod programs;
mod ratios;
mod raw;
mod rdma;
mod report;
mod samehost;
mod sample;
mod scale;
mod tcp;

use std::{path::Path, time::Duration};

use anyhow::Context;
use clap::Parser as _;

use crate::{
    cli::Cli,
    contest::Results,
    contestants::{Arena, Contestant},
    host::{Host, Settings},
    machine::Machine,
    network::{Network, Side},
    programs::Programs,
    report::Report,
    scale::Scale,
};

fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    let wanted = |one: &Contestant| cli.wants(&one.name, one.in_ratios);
    let contestants: Vec<_> = contestants::all().into_iter().filter(wanted).collect();
    if cli.list {
        contestants.iter().for_each(|one| println!("{}", one.name));
        return Ok(());
    }
    let report = measure(&cli, &contestants)?;
    print!("{}", report.text());
    report.write(&cli)
}

fn measure(cli: &Cli, contestants: &[Contestant]) -> anyhow::Result<Report> {
    let machine = Machine::look();
    let built = std::env::current_exe()?.parent().context("this program lies in a folder")?.to_owned();
    let scratch = tempfile::tempdir()?;
    let network = Network::new(&cli.name, cli.mtu)?;
    let settings = Settings { device: cli.device.clone(), worker: cli.worker.clone() };
    let host = |side| start_host(&network, side, &built, scratch.path(), &settings);
    let (mut a, mut b) = (host(Side::A)?, host(Side::B)?);
    let found =
        compare(cli, contestants, &Programs { network: &network, a: &a, b: &b, built: &built, folder: scratch.path() });
    let (results, scale) = found.map_err(|error| {
        let fallen = [&mut a, &mut b].into_iter().filter_map(Host::fallen);
        fallen.fold(error, |error, fallen| error.context(fallen))
    })?;
    let status = a.status()?;
    Ok(Report::new(cli, machine, results, scale, &status))
}

fn compare(cli: &Cli, contestants: &[Contestant], programs: &Programs<'_>) -> anyhow::Result<(Results, Option<Scale>)> {
    let time = Duration::from_secs_f64(cli.seconds());
    let results = contest::run(&Arena::new(*programs)?, contestants, cli.rounds(), time)?;
    if cli.no_scale || !cli.only.is_empty() {
        return Ok((results, None));
    }
    eprintln!("10,000 queue pairs, 100 clients");
    Ok((results, Some(scale::measure(programs, cli.rounds().min(3), time)?)))
}

fn start_host(network: &Network, side: Side, built: &Path, folder: &Path, settings: &Settings) -> anyhow::Result<Host> {
    Host::new(network, side, built, folder, settings).with_context(|| format!("host {}", side.letter()))
}
