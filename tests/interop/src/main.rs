//! roced against Linux's own RoCE, rdma_rxe, with stock programs at both ends. `scripts/interop`
//! builds the needed programs and runs this.
//!
//! ```text
//!   plan ─► for each scenario:  bench: faults, captures ─► drive: server and client ─► both ends' words ─► expect
//!                                                    └─► verify: tshark, ICRC, rules of the transport ─► table
//! ```

mod bench;
mod check;
mod cm;
mod cm_test;
mod compare;
mod document;
mod drive;
mod expect;
mod guest;
mod parting;
mod plan;
mod process;
mod report;
mod scenario;
mod stale;
mod told;
mod trace;
mod verify;

use std::{
    fmt::Display,
    fs,
    path::{Path, PathBuf},
    thread::{self, ScopedJoinHandle},
    time::Instant,
};

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use roced_output::print;

use crate::{
    bench::{Bench, Options},
    report::Outcome,
    scenario::Scenario,
};

/// roced against Linux rdma_rxe.
#[derive(Parser)]
struct Arguments {
    /// Where kernel and initrd of the guest lie.
    #[arg(long, default_value = "target/interop")]
    image: PathBuf,
    /// The debug builds of cargo; the release builds lie beside them.
    #[arg(long, default_value = "target/debug")]
    programs: PathBuf,
    /// Where to keep captures and the report. Existing files are overwritten.
    #[arg(long, default_value = "target/interop/last")]
    folder: PathBuf,
    /// A few scenarios instead of all.
    #[arg(long)]
    short: bool,
    /// Those with this text in their line of the list.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// `device.credits` of our daemon: "on" or "off".
    #[arg(long, value_name = "CHOICE", default_value = "on", value_parser = ["on", "off"])]
    credits: String,
    /// `device.ecn` of our daemon: "on", with a window that follows marks, a switch that marks, and
    /// packets of rxe that may be marked where programs have an option for it; or "off".
    #[arg(long, value_name = "CHOICE", default_value = "off", value_parser = ["on", "off"])]
    ecn: String,
    /// Say which there are, and run none.
    #[arg(long)]
    list: bool,
    /// Write the results of a full run that went well into this page, `docs/interop.md`.
    #[arg(long, value_name = "PAGE", conflicts_with_all = ["short", "only", "list", "look"])]
    document: Option<PathBuf>,
    /// Look again at the captures in these folders, and run none.
    #[arg(long, value_name = "FOLDER", num_args = 1..)]
    look: Vec<PathBuf>,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let options = Options { credits: arguments.credits.clone(), ecn: arguments.ecn == "on" };
    let mut scenarios = if arguments.short { plan::short() } else { plan::all() };
    if let Some(text) = &arguments.only {
        scenarios.retain(|scenario| scenario.to_string().contains(text.as_str()));
        ensure!(!scenarios.is_empty(), "no scenario has '{text}' in its line; --list says which there are");
    }
    if arguments.list {
        return Ok(print(lines(&scenarios))?);
    }
    for folder in &arguments.look {
        let verdict = verify::verify(None, folder, options.ecn)?;
        print(format_args!(
            "{}: {} frames, {:?} of roced and rxe, {} of them on connections that cannot be told apart, {:?}, ours {:#?}, of rxe {:#?}\n",
            folder.display(),
            verdict.frames(),
            verdict.sent,
            verdict.unrelated,
            verdict.marks,
            verdict.ours,
            verdict.theirs
        ))?;
    }
    if !arguments.look.is_empty() {
        return Ok(());
    }
    fs::create_dir_all(&arguments.folder).with_context(|| arguments.folder.display().to_string())?;
    let started = Instant::now();
    let mut bench = Bench::up(&arguments.image, &arguments.programs, &arguments.folder, &options)?;
    let (up_s, count) = (started.elapsed().as_secs_f32(), scenarios.len());
    print(format_args!("interop: the guest is up after {up_s:.1} s; {count} scenarios\n"))?;
    let outcomes = run_all(&mut bench, &scenarios, &arguments.folder)?;
    drop(bench);
    let table = report::table(&outcomes);
    fs::write(arguments.folder.join("table.md"), &table)?;
    let left_out: String = plan::LEFT_OUT.iter().map(|left_out| format!("left out: {left_out}\n")).collect();
    print(format_args!("\n{table}\n{left_out}"))?;
    let (differences, without_reason) = report::differences_table(&outcomes);
    fs::write(arguments.folder.join("differences.md"), &differences)?;
    print(lines(&without_reason))?;
    print(format_args!("\nHow the same operations look, of roced and of rxe:\n{differences}\n"))?;
    let failed = outcomes.iter().filter(|outcome| !outcome.is_good()).count();
    let (passed, all) = (outcomes.len() - failed, outcomes.len());
    let summary = format!("{passed} of {all} scenarios passed, {} s", started.elapsed().as_secs());
    print(format_args!("interop: {summary}\n"))?;
    ensure!(failed == 0, "{failed} scenarios failed");
    ensure!(without_reason.is_empty(), "{} differences have no reason", without_reason.len());
    if let Some(page) = &arguments.document {
        let summary = format!("{summary} ({})", document::machine(&arguments.image)?);
        document::write(page, &differences, &summary, &table)?;
    }
    Ok(())
}

/// Runs them; while one runs, the captures of the one before are checked.
fn run_all(bench: &mut Bench, scenarios: &[Scenario], folder: &Path) -> Result<Vec<Outcome>> {
    let ecn = bench.ecn();
    thread::scope(|scope| {
        let mut outcomes = Vec::new();
        let mut before: Option<ScopedJoinHandle<'_, Outcome>> = None;
        for (number, scenario) in scenarios.iter().enumerate() {
            let began = Instant::now();
            let place = folder.join(format!("{:03}", number + 1));
            fs::create_dir_all(&place)?;
            let ended = drive::run(bench, scenario, number, &place);
            let mended = bench.mend()?;
            let took = began.elapsed();
            finish(before.take(), scenarios.len(), &mut outcomes)?;
            before = Some(scope.spawn(move || Outcome::new(*scenario, ecn, took, ended, mended, &place)));
        }
        finish(before, scenarios.len(), &mut outcomes)?;
        Ok(outcomes)
    })
}

fn lines(items: &[impl Display]) -> String {
    items.iter().map(|item| format!("{item}\n")).collect()
}

fn finish(outcome: Option<ScopedJoinHandle<'_, Outcome>>, of: usize, outcomes: &mut Vec<Outcome>) -> Result<()> {
    let Some(outcome) = outcome else { return Ok(()) };
    let outcome = outcome.join().expect("no panic");
    print(format_args!("{:3}/{of} {outcome}\n", outcomes.len() + 1))?;
    outcomes.push(outcome);
    Ok(())
}
