//! Executes cases with several seeds, on all processors.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use roced_transport::clock::Nanos;
use serde::Serialize;

use crate::{
    bar::Bar,
    cases::{Case, all},
    outcome::RunOutcome,
    picture::Picture,
    run::run,
};

/// Results of all cases.
#[derive(Debug, Serialize)]
pub struct FabricReport {
    /// Every bar, with the worst value of all seeds.
    pub bars: Vec<Bar>,
    /// Rules of the simulator that were broken: none.
    pub violations: Vec<String>,
    /// Each run with the first seed.
    pub runs: Vec<RunRow>,
    /// Queue and rates of the first run of each case.
    #[serde(skip)]
    pub pictures: Vec<Picture>,
}

/// Figures of a run with the first seed.
#[derive(Clone, Debug, Serialize)]
pub struct RunRow {
    /// Case and run.
    pub name: String,
    /// Payload of all flows, Gbit/s.
    pub gbit_per_s: f64,
    /// Jain's index of fairness of the flows.
    pub jain: f64,
    /// The smallest share of a flow to the largest.
    pub min_to_max: f64,
    /// Length of the watched queue that is exceeded in one percent of the time, bytes.
    pub queue_p99_bytes: u64,
    /// Frames that switches dropped, from the beginning.
    pub drops: u64,
    /// The same, in the measured time.
    pub drops_measured: u64,
    /// Frames that hosts dropped for lack of room in their ring.
    pub overruns: u64,
    /// Frames that switches marked.
    pub marks: u64,
    /// Pauses of neighbors.
    pub pauses: u64,
    /// Frames that hosts sent.
    pub frames: u64,
    /// Events of the run.
    pub events: u64,
    /// Time that the run took, in seconds.
    pub took_s: f64,
}

impl RunRow {
    fn new(name: String, outcome: &RunOutcome, measured_from: Nanos, took: Duration) -> Self {
        Self {
            name,
            gbit_per_s: outcome.gbit_per_s(),
            jain: outcome.jain(),
            min_to_max: outcome.min_to_max(),
            queue_p99_bytes: outcome.queue_p99(),
            drops: outcome.total.dropped,
            drops_measured: outcome.drops_after(measured_from),
            overruns: outcome.overruns,
            marks: outcome.total.marked,
            pauses: outcome.total.pauses,
            frames: outcome.frames,
            events: outcome.events,
            took_s: took.as_secs_f64(),
        }
    }
}

/// Results of a case with one seed.
struct SeedResult {
    values: Vec<f64>,
    violations: Vec<String>,
    rows: Vec<RunRow>,
    picture: Option<Picture>,
}

/// Cases with one of the words in their name, or all.
pub(crate) fn chosen(only: &[String], is_quick: bool) -> Vec<Case> {
    let is_named = |case: &Case| only.is_empty() || only.iter().any(|word| case.name.contains(word.as_str()));
    all().into_iter().filter(|case| is_named(case) && (!is_quick || case.is_quick)).collect()
}

/// Number of calls of `progress` in [`execute`] with the same arguments.
pub fn runs(only: &[String], is_quick: bool, seeds: u64) -> u64 {
    chosen(only, is_quick).len() as u64 * seeds
}

/// Executes cases that have one of the words in their name, all if there are none; with `is_quick`
/// only those of the short form. Each with seeds from 1 to `seeds`. After each it calls `progress`.
pub fn execute(only: &[String], is_quick: bool, seeds: u64, progress: &(impl Fn() + Sync)) -> FabricReport {
    let cases = chosen(only, is_quick);
    let jobs: Vec<_> = (0..cases.len()).flat_map(|case| (1..=seeds).map(move |seed| (case, seed))).collect();
    let (next, results) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let threads = thread::available_parallelism().map_or(1, |threads| threads.get());
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some((case, seed)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let result = execute_case(&cases[*case], *seed);
                    results.lock().expect("no thread panics").push((*case, *seed, result));
                    progress();
                }
            });
        }
    });
    let mut results = results.into_inner().expect("no thread panics");
    results.sort_by_key(|(case, seed, _)| (*case, *seed));
    let mut report = FabricReport { bars: Vec::new(), violations: Vec::new(), runs: Vec::new(), pictures: Vec::new() };
    for (number, case) in cases.iter().enumerate() {
        let mut worst: Option<Vec<f64>> = None;
        for (_, _, result) in results.iter_mut().filter(|(case, ..)| *case == number) {
            report.violations.append(&mut result.violations);
            report.runs.append(&mut result.rows);
            report.pictures.extend(result.picture.take());
            worst = Some(match worst {
                None => result.values.clone(),
                Some(worst) => {
                    let pairs = worst.iter().zip(&result.values).zip(&case.bars);
                    pairs.map(|((a, b), bar)| bar.goal.worse(*a, *b)).collect()
                }
            });
        }
        for (bar, value) in case.bars.iter().zip(worst.unwrap_or_default()) {
            report.bars.push(Bar {
                name: format!("{}: {}", case.name, bar.name),
                value,
                goal: bar.goal.text(),
                met: bar.goal.is_met(value),
            });
        }
    }
    report
}

/// Executes all runs of a case.
fn execute_case(case: &Case, seed: u64) -> SeedResult {
    let (mut outcomes, mut rows, mut violations) = (Vec::new(), Vec::new(), Vec::new());
    for (name, spec) in &case.runs {
        let begin = Instant::now();
        let outcome = run(spec, seed);
        let name = format!("{}: {name}", case.name);
        violations.extend(outcome.violation.iter().map(|text| format!("{name}, seed {seed}: {text}")));
        if seed == 1 {
            rows.push(RunRow::new(name, &outcome, spec.measured_from, begin.elapsed()));
        }
        outcomes.push(outcome);
    }
    let values = case.bars.iter().map(|bar| (bar.value)(&outcomes)).collect();
    let picture = (seed == 1).then(|| Picture::new(case.name, &outcomes[0]));
    SeedResult { values, violations, rows, picture }
}
