//! `roced-hostile`: hostile clients and hostile peers against a running daemon, and a verified
//! transfer of another user beside them. `scripts/hostile` runs it.
//!
//! Each attack makes two hosts (network namespaces with a veth pair and a daemon each), acts by
//! child processes of unprivileged users, which speak the control protocol by themselves, or by
//! forged frames, and measures figures against bars. A figure beyond its bar fails the run.

mod actor;
mod acts;
mod attacks;
mod finding;
mod forger;
mod latency;
mod network;
mod process;
mod random;
mod raw_client;
mod shared;
mod stage;
mod victim;

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context as _, Result, ensure};
use clap::{Parser, Subcommand};
use nix::unistd::Uid;

use crate::{
    actor::ActArguments,
    attacks::{ATTACKS, Attack},
    finding::{Finding, Findings},
    stage::Stage,
};

/// Attacks on a running daemon, each with figures and bars.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// Duration of each attack of forged frames; with it all rounds of the other attacks. Without:
    /// seconds.
    #[arg(long, value_name = "N")]
    minutes: Option<u64>,
    /// Also write each figure as a line of JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Only attacks with this in their name. May be repeated.
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Name all attacks.
    #[arg(long)]
    list: bool,
    /// The daemon to attack.
    #[arg(long, value_name = "FILE", default_value = "target/release/roced")]
    roced: PathBuf,
    /// Seed of all random acts.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Subcommand)]
enum Command {
    /// Act as a hostile program.
    #[command(hide = true)]
    Act(ActArguments),
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    match &arguments.command {
        Some(Command::Act(act)) => acts::act(act).map(|()| ExitCode::SUCCESS),
        None => attack_all(&arguments),
    }
}

fn attack_all(arguments: &Arguments) -> Result<ExitCode> {
    let is_wanted =
        |attack: &&Attack| arguments.only.is_empty() || arguments.only.iter().any(|text| attack.name.contains(text));
    let wanted: Vec<&Attack> = ATTACKS.iter().filter(is_wanted).collect();
    ensure!(!wanted.is_empty(), "no attack has that name; --list names all");
    if arguments.list {
        let list: String = wanted.iter().map(|attack| format!("{:<26} {}\n", attack.name, attack.about)).collect();
        roced_output::print(list)?;
        return Ok(ExitCode::SUCCESS);
    }
    ensure!(Uid::effective().is_root(), "network namespaces and other users need root");
    process::become_user(0, 0)?;
    let program = arguments.roced.canonicalize().with_context(|| arguments.roced.display().to_string())?;
    let stage = Stage { program, minutes: arguments.minutes, seed: arguments.seed };
    let mut findings = Findings::begin(arguments.json.as_deref())?;
    for attack in wanted {
        match (attack.run)(&stage) {
            Ok(figures) => figures.iter().try_for_each(|figure| findings.add(attack.name, figure))?,
            Err(error) => {
                eprintln!("{}: {error:#}", attack.name);
                findings.add(attack.name, &Finding::at_most("attack without a figure", f64::NAN, "", 0.0))?;
            }
        }
    }
    Ok(if findings.end()? { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
