//! `roced-sim`: many seeds, or one with everything that happened. See docs/simulator.md.

use std::{
    io::IsTerminal as _,
    panic::catch_unwind,
    process::ExitCode,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Instant,
};

use clap::Parser;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use roced_sim::{Outcome, Table, Violation};

/// Seeds from which on every operation must have met every fault.
const FULL_RUN: u64 = 5_000;

/// Violations that are told before the run gives up.
const VIOLATIONS_MAX: usize = 10;

/// Whole endpoints in a simulated network, by seed.
#[derive(Parser)]
struct Arguments {
    /// Run seeds 0 to N-1.
    #[arg(long, value_name = "N", default_value_t = 100)]
    seeds: u64,
    /// Run this seed only.
    #[arg(long, value_name = "N", conflicts_with = "seeds")]
    seed: Option<u64>,
    /// Print each frame and event.
    #[arg(long, requires = "seed")]
    trace: bool,
    /// Threads; as many as there are processors if not said.
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// End at the first violation.
    #[arg(long)]
    first: bool,
}

/// What all threads bring together.
#[derive(Default)]
struct Sum {
    table: Table,
    frames: u64,
    fewest: u64,
    qps: (usize, usize),
    violations: Vec<String>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(seed) = arguments.seed {
        return one(seed, arguments.trace);
    }
    let started = Instant::now();
    let sum = many(&arguments);
    println!("{}", sum.table);
    println!(
        "{} seeds, {} frames (at least {} a seed), {} to {} queue pairs, {:.1} s",
        arguments.seeds,
        sum.frames,
        sum.fewest,
        sum.qps.0,
        sum.qps.1,
        started.elapsed().as_secs_f64()
    );
    let zeros = if arguments.seeds >= FULL_RUN { sum.table.zeros() } else { Vec::new() };
    for (operation, fault) in &zeros {
        println!("never happened: {operation} with {fault}");
    }
    for violation in &sum.violations {
        println!("{violation}");
    }
    if sum.violations.is_empty() && zeros.is_empty() {
        println!("no violation");
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Runs a seed. An assertion that fails in the engine is a violation as well, where panics unwind; elsewhere it ends the program.
fn run(seed: u64, trace: bool) -> Outcome {
    catch_unwind(|| roced_sim::run(seed, trace)).unwrap_or_else(|_| {
        let text = "an assertion failed, see above".to_owned();
        Outcome { frames: 0, qps: 0, table: Table::default(), violation: Some(Violation { checker: "panic", text }) }
    })
}

fn one(seed: u64, trace: bool) -> ExitCode {
    let outcome = run(seed, trace);
    println!("seed {seed}: {} frames, {} queue pairs", outcome.frames, outcome.qps);
    match outcome.violation {
        None => ExitCode::SUCCESS,
        Some(violation) => {
            println!("violation of {}: seed {seed}: {}", violation.checker, violation.text);
            ExitCode::FAILURE
        }
    }
}

fn many(arguments: &Arguments) -> Sum {
    let threads =
        arguments.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, std::num::NonZero::get));
    let bar = ProgressBar::new(arguments.seeds);
    if !std::io::stderr().is_terminal() {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    let style =
        ProgressStyle::with_template("{wide_bar} {pos}/{len} seeds, {eta} left").expect("a template that parses");
    bar.set_style(style);
    let next = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let sum = Mutex::new(Sum { fewest: u64::MAX, qps: (usize::MAX, 0), ..Sum::default() });
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= arguments.seeds {
                        break;
                    }
                    let outcome = run(seed, false);
                    let mut sum = sum.lock().expect("no thread panics while it adds");
                    sum.table.add(&outcome.table);
                    sum.frames += outcome.frames;
                    sum.qps = (sum.qps.0.min(outcome.qps), sum.qps.1.max(outcome.qps));
                    match outcome.violation {
                        None => sum.fewest = sum.fewest.min(outcome.frames),
                        Some(violation) => {
                            let text = format!("violation of {}: seed {seed}: {}", violation.checker, violation.text);
                            sum.violations.push(text);
                            if arguments.first || sum.violations.len() >= VIOLATIONS_MAX {
                                stop.store(true, Ordering::Relaxed);
                            }
                        }
                    }
                    bar.inc(1);
                }
            });
        }
    });
    bar.finish_and_clear();
    sum.into_inner().expect("no thread panics while it adds")
}
