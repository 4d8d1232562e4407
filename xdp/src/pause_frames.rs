//! Pauses of the other end of the link (PFC, IEEE 802.3 annex 31D) while frames wait in the RX ring
//! of a queue: for interfaces with a MAC that sends none.
//!
//! ```text
//!   frames wait:   over half of the ring ──► XOFF, again at half of its time
//!                  a quarter or less     ──► XON, if the time is not over
//! ```
//!
//! A best effort: a worker that sleeps sees the ring late, and the ring of the driver is not looked
//! at. A pause has a limit, so that a receiver that stands still does not stop the network before
//! it.

use std::sync::{
    Arc,
    atomic::{AtomicU32, AtomicU64, Ordering},
};

use roced_transport::clock::Nanos;

use crate::{dcb::PrioritySet, pauses::quantum_ps};

/// Bytes of the shortest frame, without FCS.
pub(crate) const FRAME_BYTES: usize = 60;

/// Time in which a worker takes a chunk: a guess, by which a pause lasts until a quarter of the
/// ring is used.
const TIME_OF_CHUNK: Nanos = Nanos(1000);

/// The shortest pause: a few turns of a worker, in which it takes the frames that have arrived.
const PAUSE_MIN: Nanos = Nanos::from_micros(50);

/// The longest pause.
const PAUSE_MAX: Nanos = Nanos::from_millis(1);

/// Pauses that the queues of an interface ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GeneratedPauses {
    /// Priorities to be paused.
    pub priorities: PrioritySet,
    /// Address of the interface, the source of the frames.
    pub mac: [u8; 6],
    /// The longest time without a break.
    pub most: Nanos,
}

/// The other end of a link, which all queues pause; clones are of the same link.
#[derive(Clone, Debug)]
pub struct PausedNeighbor(Arc<NeighborWords>);

#[derive(Debug)]
struct NeighborWords {
    /// End of its last pause.
    until: AtomicU64,
    mbit_per_s: AtomicU32,
}

impl PausedNeighbor {
    /// At the other end of a link of this rate in Mbit/s, by which a pause has its time.
    pub fn new(mbit_per_s: u32) -> Self {
        Self(Arc::new(NeighborWords { until: AtomicU64::new(0), mbit_per_s: AtomicU32::new(mbit_per_s) }))
    }

    /// The link has this rate from now on.
    pub fn set_link_rate(&self, mbit_per_s: u32) {
        self.0.mbit_per_s.store(mbit_per_s, Ordering::Relaxed);
    }

    fn quantum_ps(&self) -> u64 {
        quantum_ps(self.0.mbit_per_s.load(Ordering::Relaxed))
    }

    fn until(&self) -> Nanos {
        Nanos(self.0.until.load(Ordering::Relaxed))
    }
}

/// Pauses of one queue.
#[derive(Debug)]
pub(crate) struct PauseGenerator {
    pauses: GeneratedPauses,
    neighbor: PausedNeighbor,
    /// Chunks that wait when the ring is full.
    ring: u32,
    /// End of the last pause that it asked for.
    until: Nanos,
    /// Frames have waited since then, without a time in which they were few.
    since: Option<Nanos>,
    pub(crate) frames: u64,
    /// Times that frames waited for longer than a pause may take.
    pub(crate) storms: u64,
    is_storm: bool,
}

impl PauseGenerator {
    pub(crate) fn new(pauses: GeneratedPauses, neighbor: PausedNeighbor, ring: u32) -> Self {
        Self { pauses, neighbor, ring, until: Nanos(0), since: None, frames: 0, storms: 0, is_storm: false }
    }

    /// At `now` so many chunks wait: duration of the pause to be asked for, 0 to end one.
    pub(crate) fn wanted(&mut self, now: Nanos, waiting: u32) -> Option<Nanos> {
        if waiting <= self.ring / 4 {
            (self.since, self.is_storm) = (None, false);
            // Another queue may have asked for more since.
            return (self.until > now && self.until == self.neighbor.until()).then_some(Nanos(0));
        }
        if waiting <= self.ring / 2 {
            return None;
        }
        // A pause that is over, and was not renewed, is a break.
        let since = self.since.filter(|_| self.is_storm || now < self.until + PAUSE_MAX).unwrap_or(now);
        self.since = Some(since);
        if now - since >= self.pauses.most {
            self.storms += u64::from(!self.is_storm);
            self.is_storm = true;
            return None;
        }
        let longest = Nanos(u64::from(u16::MAX) * self.neighbor.quantum_ps() / 1000);
        let pause =
            Nanos(u64::from(waiting - self.ring / 4) * TIME_OF_CHUNK.0).clamp(PAUSE_MIN, PAUSE_MAX).min(longest);
        (self.neighbor.until() < now + Nanos(pause.0 / 2)).then_some(pause)
    }

    /// A frame with that pause left.
    pub(crate) fn on_sent(&mut self, now: Nanos, pause: Nanos) {
        self.until = now + pause;
        self.neighbor.0.until.store(self.until.0, Ordering::Relaxed);
        self.frames += 1;
    }

    /// The frame that asks for a pause.
    pub(crate) fn frame(&self, pause: Nanos) -> [u8; FRAME_BYTES] {
        let quanta = (pause.0 * 1000 / self.neighbor.quantum_ps()).min(u16::MAX.into()) as u16;
        let mut frame = [0; FRAME_BYTES];
        frame[..6].copy_from_slice(&[0x01, 0x80, 0xc2, 0, 0, 1]);
        frame[6..12].copy_from_slice(&self.pauses.mac);
        frame[12..18].copy_from_slice(&[0x88, 0x08, 1, 1, 0, self.pauses.priorities.bits()]);
        for priority in self.pauses.priorities.iter() {
            let at = 18 + 2 * usize::from(priority);
            frame[at..at + 2].copy_from_slice(&quanta.to_be_bytes());
        }
        frame
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RING: u32 = 1024;
    const START: Nanos = Nanos::from_millis(1000);

    fn pauses() -> GeneratedPauses {
        let priorities = [3].into_iter().collect();
        GeneratedPauses { priorities, mac: [2, 0, 0, 0, 0, 1], most: Nanos::from_millis(200) }
    }

    fn generator() -> PauseGenerator {
        PauseGenerator::new(pauses(), PausedNeighbor::new(10_000), RING)
    }

    #[test]
    fn a_pause_begins_at_half_of_the_ring_and_ends_at_a_quarter() {
        let mut generator = generator();
        assert_eq!(generator.wanted(START, 512), None);
        let pause = generator.wanted(START, 600).expect("more than half");
        assert_eq!(pause, Nanos::from_micros(600 - 256));
        generator.on_sent(START, pause);
        assert_eq!(generator.wanted(START + Nanos(100), 600), None, "it lasts");
        assert!(generator.wanted(START + Nanos::from_micros(200), 600).is_some(), "the rest is less than half");
        assert_eq!(generator.wanted(START + Nanos::from_micros(200), 300), None, "neither");
        assert_eq!(generator.wanted(START + Nanos::from_micros(300), 256), Some(Nanos(0)));
        generator.on_sent(START + Nanos::from_micros(300), Nanos(0));
        assert_eq!(generator.wanted(START + Nanos::from_micros(301), 0), None);
        assert_eq!(generator.frames, 2);
    }

    #[test]
    fn pauses_have_a_least_and_a_most() {
        let mut generator = generator();
        assert_eq!(generator.wanted(START, 1024), Some(Nanos::from_micros(768)));
        let neighbor = PausedNeighbor::new(10_000);
        let mut large = PauseGenerator::new(pauses(), neighbor.clone(), 65_536);
        assert_eq!(large.wanted(START, 65_536), Some(PAUSE_MAX));
        let mut small = PauseGenerator::new(pauses(), neighbor.clone(), 8);
        assert_eq!(small.wanted(START, 8), Some(PAUSE_MIN));
        // No frame says more than 65,535 quanta.
        for (mbit_per_s, longest) in [(100_000, 335_539), (800_000, 41_942)] {
            neighbor.set_link_rate(mbit_per_s);
            assert_eq!(large.wanted(START, 65_536), Some(Nanos(longest)), "{mbit_per_s}");
            let quanta = large.frame(Nanos(longest))[24..26].try_into().map(u16::from_be_bytes);
            assert!(quanta.is_ok_and(|quanta| quanta >= 65_534), "{quanta:?}");
        }
    }

    #[test]
    fn no_queue_ends_the_pause_of_another() {
        let neighbor = PausedNeighbor::new(10_000);
        let [mut one, mut other] = [(); 2].map(|()| PauseGenerator::new(pauses(), neighbor.clone(), RING));
        let pause = one.wanted(START, RING).expect("it is full");
        one.on_sent(START, pause);
        assert_eq!(other.wanted(START, 600), None, "it is paused for longer");
        let later = START + Nanos::from_micros(500);
        let pause = other.wanted(later, RING).expect("it is full as well");
        other.on_sent(later, pause);
        assert_eq!(one.wanted(later, 0), None);
        assert_eq!(other.wanted(later, 0), Some(Nanos(0)));
    }

    #[test]
    fn a_receiver_that_stands_still_pauses_for_a_limited_time() {
        let mut generator = generator();
        let mut last = START;
        for micros in (0..1_000_000).step_by(10) {
            let now = START + Nanos::from_micros(micros);
            if let Some(pause) = generator.wanted(now, RING) {
                generator.on_sent(now, pause);
                last = now;
            }
        }
        let most = Nanos::from_millis(200);
        assert!(last < START + most && generator.until <= START + most + PAUSE_MAX);
        assert_eq!(generator.storms, 1);
        // It takes frames again.
        let later = START + Nanos::from_millis(2000);
        assert_eq!(generator.wanted(later, 0), None);
        assert!(generator.wanted(later, RING).is_some());
    }

    #[test]
    fn the_frame_has_the_bytes_of_annex_31d() {
        let mut expected = vec![0x01, 0x80, 0xc2, 0, 0, 1, 2, 0, 0, 0, 0, 1, 0x88, 0x08, 1, 1, 0, 8];
        // 51.2 us are 1,000 quanta of 51.2 ns.
        expected.extend([0, 0, 0, 0, 0, 0, 0x03, 0xe8]);
        expected.resize(FRAME_BYTES, 0);
        assert_eq!(generator().frame(Nanos(51_200))[..], expected);
    }
}
