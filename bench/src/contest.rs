//! The rounds: each contestant once in each round, and each round begins with another.

use std::{collections::BTreeMap, time::Duration};

use serde::Serialize;

use crate::{
    apart,
    contestants::{Arena, Contestant},
    sample::{Sample, Spread},
};

/// Samples of all contestants, by name, round after round.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(transparent)]
pub(crate) struct Results {
    samples: BTreeMap<String, Vec<Sample>>,
    /// Measurements that failed and were made again.
    #[serde(skip)]
    pub(crate) failures: u32,
}

impl Results {
    /// The samples of a contestant.
    pub(crate) fn of(&self, name: &str) -> Option<&[Sample]> {
        self.samples.get(name).map(Vec::as_slice)
    }

    /// One round more of a contestant.
    pub(crate) fn add(&mut self, name: &str, sample: Sample) {
        self.samples.entry(name.to_owned()).or_default().push(sample);
    }

    /// How far the cores were from one another.
    pub(crate) fn cores_apart_ns(&self) -> Option<Spread> {
        Spread::of(self.samples.values().flatten().map(|sample| sample.cores_apart_ns))
    }
}

/// Measures all contestants `rounds` times. A contestant that fails is tried once more, which is
/// counted; a second failure ends the run, because a comparison without it would be another one.
pub(crate) fn run(
    arena: &Arena<'_>,
    contestants: &[Contestant],
    rounds: usize,
    time: Duration,
) -> anyhow::Result<Results> {
    let mut results = Results::default();
    for round in 0..rounds {
        eprintln!("round {} of {rounds}", round + 1);
        // By a few at a time, so that contestants that are compared mostly stay together.
        let first = round * contestants.len() / rounds;
        let (late, early) = contestants.split_at(first);
        for contestant in early.iter().chain(late) {
            let before = apart::nanoseconds();
            let sample = arena.measure(contestant.what, time).or_else(|error| {
                eprintln!("   {:24} FAILED, tries again: {error:#}", contestant.name);
                results.failures += 1;
                arena.measure(contestant.what, time)
            });
            let mut sample = sample.map_err(|error| error.context(format!("measuring {}", contestant.name)))?;
            sample.cores_apart_ns = before.max(apart::nanoseconds());
            eprintln!("   {:24} {}", contestant.name, in_short(&sample));
            results.add(&contestant.name, sample);
        }
    }
    Ok(results)
}

fn in_short(sample: &Sample) -> String {
    let mut text = Vec::new();
    if let Some(rtt) = &sample.rtt_us {
        text.push(format!("p50 {:.1} us, p99 {:.1} us", rtt.p50, rtt.p99));
    }
    if let Some(speed) = sample.gbit_per_s {
        text.push(format!("{speed:.2} Gbit/s"));
    }
    if let Some(rate) = sample.messages_per_s {
        text.push(format!("{rate:.0} /s"));
    }
    if let Some(again @ 1..) = sample.retransmitted {
        text.push(format!("{again} sent again or lost"));
    }
    text.push(format!("cores {:.0} ns apart", sample.cores_apart_ns));
    text.join(", ")
}
