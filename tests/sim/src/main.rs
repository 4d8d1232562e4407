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
use roced_sim::{ConnectionOutcome, ConnectionTally, MAKES, MakeOutcome, Outcome, Table, Violation, say};

/// Seeds from which on every operation must have met every fault.
const FULL_RUN: u64 = 5_000;

/// In such a run each make of peers must have been in one of so many seeds.
const MAKE_SHARE: u64 = 10;

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
    /// End after so many.
    #[arg(long, value_name = "N", default_value_t = 10)]
    violations: usize,
    /// End at the first violation of this checker.
    #[arg(long, value_name = "CHECKER")]
    until: Option<String>,
    /// Seeds of the connection manager alone.
    #[arg(long)]
    connections: bool,
    /// So many connections at once, in each seed of the connection manager.
    #[arg(long, value_name = "N", requires = "connections")]
    crowd: Option<u32>,
}

/// Results of all threads.
#[derive(Default)]
struct Sum {
    table: Table,
    frames: u64,
    fewest: u64,
    qps: (usize, usize),
    /// Frames with peers of other makes, and seeds of each make.
    make_frames: u64,
    makes: [u64; MAKES.len()],
    /// Frames and events of connections.
    connection_frames: u64,
    tally: ConnectionTally,
    violations: Vec<String>,
}

impl Sum {
    /// Adds the results of a seed, and returns its violations.
    fn add(
        &mut self,
        outcome: Option<Outcome>,
        with_make: Option<MakeOutcome>,
        connections: ConnectionOutcome,
    ) -> Vec<Violation> {
        let mut violations = Vec::new();
        if let Some(outcome) = outcome {
            self.table.add(&outcome.table);
            self.frames += outcome.frames;
            self.qps = (self.qps.0.min(outcome.qps), self.qps.1.max(outcome.qps));
            if outcome.violation.is_none() {
                self.fewest = self.fewest.min(outcome.frames);
            }
            violations.extend(outcome.violation);
        }
        if let Some(with_make) = with_make {
            self.make_frames += with_make.frames;
            with_make.make.into_iter().for_each(|make| self.makes[make] += 1);
            violations.extend(with_make.violation);
        }
        self.connection_frames += connections.frames;
        self.tally.add(&connections.tally);
        violations.extend(connections.violation);
        violations
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(seed) = arguments.seed {
        return one(seed, &arguments);
    }
    let started = Instant::now();
    let sum = many(&arguments);
    if arguments.connections {
        say(format_args!("{} seeds of connections, {:.1} s", arguments.seeds, started.elapsed().as_secs_f64()));
        return report(&arguments, &sum, true);
    }
    say(format_args!("{}", sum.table));
    say(format_args!(
        "{} seeds, {} frames (at least {} a seed), {} to {} queue pairs, {:.1} s",
        arguments.seeds,
        sum.frames,
        sum.fewest,
        sum.qps.0,
        sum.qps.1,
        started.elapsed().as_secs_f64()
    ));
    let makes = MAKES.iter().zip(sum.makes).map(|(name, seeds)| format!("{name} {seeds}")).collect::<Vec<_>>();
    say(format_args!("peers of other makes, {} frames: {}", sum.make_frames, makes.join(", ")));
    let is_full = arguments.seeds >= FULL_RUN && sum.violations.is_empty();
    let zeros = if arguments.seeds >= FULL_RUN { sum.table.zeros() } else { Vec::new() };
    let rare = MAKES.iter().zip(sum.makes).filter(|(_, seeds)| is_full && seeds * MAKE_SHARE < arguments.seeds);
    let rare: Vec<_> = rare.collect();
    for (name, seeds) in &rare {
        say(format_args!("too rare: make \"{name}\" in {seeds} seeds"));
    }
    for (operation, fault) in &zeros {
        say(format_args!("never happened: {operation} with {fault}"));
    }
    report(&arguments, &sum, zeros.is_empty() && rare.is_empty())
}

/// Reports connections, and all violations.
fn report(arguments: &Arguments, sum: &Sum, is_full: bool) -> ExitCode {
    say(format_args!("connections, {} frames: {}", sum.connection_frames, sum.tally));
    let is_long = arguments.seeds >= FULL_RUN && arguments.crowd.is_none();
    let zeros = if is_long { sum.tally.zeros() } else { Vec::new() };
    for name in &zeros {
        say(format_args!("never happened to a connection: {name}"));
    }
    for violation in &sum.violations {
        say(format_args!("{violation}"));
    }
    if sum.violations.is_empty() && zeros.is_empty() && is_full {
        say(format_args!("no violation"));
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Runs a seed. An assertion that fails in the transport is a violation as well, where panics
/// unwind; elsewhere it ends the program.
fn run(seed: u64, trace: bool) -> Outcome {
    catch_unwind(|| roced_sim::run(seed, trace)).unwrap_or_else(|_| Outcome {
        frames: 0,
        qps: 0,
        table: Table::default(),
        violation: Some(panicked()),
    })
}

/// The same with a peer of another make.
fn run_make(seed: u64, trace: bool) -> MakeOutcome {
    catch_unwind(|| roced_sim::run_make(seed, trace)).unwrap_or_else(|_| MakeOutcome {
        frames: 0,
        make: None,
        violation: Some(panicked()),
    })
}

/// The same with connections.
fn run_connections(seed: u64, crowd: Option<u32>, trace: bool) -> ConnectionOutcome {
    let run = || match crowd {
        Some(connections) => roced_sim::run_crowd(seed, connections, trace),
        None => roced_sim::run_connections(seed, trace),
    };
    catch_unwind(run).unwrap_or_else(|_| ConnectionOutcome {
        frames: 0,
        tally: ConnectionTally::default(),
        violation: Some(panicked()),
    })
}

fn panicked() -> Violation {
    Violation { checker: "panic", text: "an assertion failed, see above".to_owned() }
}

/// A violation as it is told.
fn told(seed: u64, violation: &Violation) -> String {
    format!("violation of {}: seed {seed}: {}", violation.checker, violation.text)
}

fn one(seed: u64, arguments: &Arguments) -> ExitCode {
    let trace = arguments.trace;
    let mut violation = None;
    if !arguments.connections {
        let outcome = run(seed, trace);
        say(format_args!("seed {seed}: {} frames, {} queue pairs", outcome.frames, outcome.qps));
        violation = outcome.violation.or_else(|| {
            let MakeOutcome { frames, make, violation } = run_make(seed, trace);
            say(format_args!("seed {seed}: {frames} frames with make {:?}", make.map(|make| MAKES[make])));
            violation
        });
    }
    let violation = violation.or_else(|| {
        let ConnectionOutcome { frames, tally, violation } = run_connections(seed, arguments.crowd, trace);
        say(format_args!("seed {seed}: {frames} frames of connections: {tally}"));
        violation
    });
    let Some(violation) = violation else { return ExitCode::SUCCESS };
    say(format_args!("{}", told(seed, &violation)));
    ExitCode::FAILURE
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
                    let (outcome, with_make) = if arguments.connections {
                        (None, None)
                    } else {
                        (Some(run(seed, false)), Some(run_make(seed, false)))
                    };
                    let connections = run_connections(seed, arguments.crowd, false);
                    let mut sum = sum.lock().expect("no thread panics while it adds");
                    let violations = sum.add(outcome, with_make, connections);
                    for violation in &violations {
                        sum.violations.push(told(seed, violation));
                        let is_last = arguments.until.as_deref() == Some(violation.checker);
                        if arguments.first || is_last || sum.violations.len() >= arguments.violations {
                            stop.store(true, Ordering::Relaxed);
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
