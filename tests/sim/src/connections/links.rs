//! The network between hosts: it loses, repeats and delays frames, brings old ones again, and cuts
//! hosts off for a while.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use super::{
    mad::MadKind,
    manners::{Manners, up_to},
    tally::{ConnectionTally, Count},
};
use crate::random::Random;

/// A frame on its way.
#[derive(Clone, Debug)]
pub(crate) struct Flight {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) sent: Duration,
    /// Which start of its host sent it.
    pub(crate) life: u32,
    pub(crate) frame: Vec<u8>,
}

/// A time without frames from one host to another.
#[derive(Clone, Copy, Debug)]
struct Cut {
    from: usize,
    to: usize,
    since: Duration,
    until: Duration,
}

/// Frames of before that are kept.
const SAMPLES: usize = 64;

/// The network.
#[derive(Debug)]
pub(crate) struct Links {
    random: Random,
    delay: Duration,
    jitter: Duration,
    /// Parts per million of frames.
    loss: u32,
    twice: u32,
    late: u32,
    earlier: u32,
    /// Kinds of message that are lost more often, and how often. Only those that are answers, for
    /// the others are counted on to arrive within some tries.
    unlucky: ([MadKind; 2], u32),
    cuts: Vec<Cut>,
    flying: BTreeMap<(Duration, u64), Flight>,
    samples: VecDeque<Flight>,
    sent: u64,
}

impl Links {
    pub(crate) fn draw(random: &mut Random, manners: &Manners) -> Self {
        let answers = [MadKind::Rej, MadKind::Rtu, MadKind::Drep, MadKind::Mra];
        let unlucky = [random.pick(&answers), random.pick(&answers)];
        let more = if random.one_in(3) { random.pick(&[300_000, 600_000]) } else { 0 };
        let is_calm = random.one_in(8);
        let mut rate = |rates: &[u32]| if is_calm || random.one_in(2) { 0 } else { random.pick(rates) };
        let (loss, twice) = (rate(&[10_000, 50_000, 150_000, 300_000]), rate(&[20_000, 200_000]));
        let (late, earlier) = (rate(&[10_000, 50_000]), rate(&[10_000, 50_000]));
        let cuts = if is_calm || random.one_in(2) { 0 } else { random.within(1, 3) };
        let cuts = (0..cuts).flat_map(|_| Self::draw_cuts(random, manners)).collect();
        Self {
            delay: Duration::from_micros(random.pick(&[20, 1_000, 40_000])),
            jitter: Duration::from_micros(random.pick(&[0, 1_000, 100_000])),
            unlucky: (unlucky, if is_calm { 0 } else { more }),
            twice,
            late,
            earlier,
            cuts,
            ..Self::lossy(random, loss)
        }
    }

    /// With loss alone.
    pub(crate) fn lossy(random: &mut Random, loss: u32) -> Self {
        Self {
            random: Random::new(random.next()),
            delay: Duration::from_micros(100),
            jitter: Duration::ZERO,
            loss,
            twice: 0,
            late: 0,
            earlier: 0,
            unlucky: ([MadKind::Rej; 2], 0),
            cuts: Vec::new(),
            flying: BTreeMap::new(),
            samples: VecDeque::new(),
            sent: 0,
        }
    }

    fn draw_cuts(random: &mut Random, manners: &Manners) -> Vec<Cut> {
        let from = random.below(manners.hosts as u64) as usize;
        let to = (from + 1) % manners.hosts;
        let since = up_to(random, manners.active);
        let until = since + Duration::from_secs(random.pick(&[1, 5, 20, 70, 120]));
        let there = Cut { from, to, since, until };
        let back = Cut { from: to, to: from, ..there };
        if random.one_in(3) { vec![there] } else { vec![there, back] }
    }

    /// When the next frame arrives.
    pub(crate) fn next(&self) -> Option<Duration> {
        self.flying.first_key_value().map(|((at, _), _)| *at)
    }

    pub(crate) fn take(&mut self, now: Duration) -> Option<Flight> {
        let entry = self.flying.first_entry().filter(|entry| entry.key().0 <= now)?;
        Some(entry.remove())
    }

    /// Frames between two hosts were cut off at some time of an interval.
    pub(crate) fn were_cut(&self, one: usize, other: usize, since: Duration, until: Duration) -> bool {
        let concerns = |cut: &&Cut| (cut.from, cut.to) == (one, other) || (cut.to, cut.from) == (one, other);
        self.cuts.iter().filter(concerns).any(|cut| cut.since < until && since < cut.until)
    }

    /// A frame leaves; its fate in a word.
    pub(crate) fn send(
        &mut self,
        flight: Flight,
        kind: MadKind,
        now: Duration,
        tally: &mut ConnectionTally,
    ) -> &'static str {
        self.bring_earlier(now, tally);
        self.sample(&flight);
        if self.were_cut_one_way(&flight, now) {
            tally.count(Count::CutOff);
            return "cut off";
        }
        let unlucky = if self.unlucky.0.contains(&kind) { self.unlucky.1 } else { 0 };
        if self.random.chance(self.loss) || self.random.chance(unlucky) {
            tally.count(Count::Lost);
            return "lost";
        }
        let mut at = now + self.delay + up_to(&mut self.random, self.jitter);
        let mut fate = "";
        if self.random.chance(self.late) {
            at += Duration::from_millis(self.random.pick(&[50, 700, 5_000]));
            tally.count(Count::Late);
            fate = "late";
        }
        if self.random.chance(self.twice) {
            let again = at + Duration::from_millis(self.random.pick(&[0, 1, 300, 2_000]));
            tally.count(Count::Duplicated);
            self.put(again, flight.clone());
            fate = "twice";
        }
        self.put(at, flight);
        fate
    }

    fn were_cut_one_way(&self, flight: &Flight, now: Duration) -> bool {
        let covers = |cut: &Cut| (cut.from, cut.to) == (flight.from, flight.to) && cut.since <= now && now < cut.until;
        self.cuts.iter().any(covers)
    }

    fn put(&mut self, at: Duration, flight: Flight) {
        self.sent += 1;
        self.flying.insert((at, self.sent), flight);
    }

    fn sample(&mut self, flight: &Flight) {
        if self.earlier == 0 || !self.random.one_in(3) {
            return;
        }
        if self.samples.len() == SAMPLES {
            let any = self.random.below(SAMPLES as u64) as usize;
            self.samples.remove(any);
        }
        self.samples.push_back(flight.clone());
    }

    /// A frame of before comes once more, after a fraction of a second or minutes.
    fn bring_earlier(&mut self, now: Duration, tally: &mut ConnectionTally) {
        if self.samples.is_empty() || !self.random.chance(self.earlier) {
            return;
        }
        let any = self.random.below(self.samples.len() as u64) as usize;
        let after = Duration::from_millis(self.random.pick(&[0, 100, 1_000, 10_000, 100_000]));
        tally.count(Count::Earlier);
        self.put(now + after, self.samples[any].clone());
    }
}
