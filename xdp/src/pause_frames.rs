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

use roced_transport::clock::Nanos;

use crate::{dcb::PrioritySet, pauses::quantum_ps};

/// Bytes of the shortest frame, without FCS.
pub(crate) const FRAME_BYTES: usize = 60;

/// Time in which a worker takes a frame: a guess, by which a pause lasts until a quarter of the
/// ring is used.
const TIME_OF_FRAME: Nanos = Nanos(1000);

/// The shortest pause: a few turns of a worker, in which it takes the frames that have arrived.
const PAUSE_MIN: Nanos = Nanos::from_micros(50);

/// The longest pause.
const PAUSE_MAX: Nanos = Nanos::from_millis(1);

/// Pauses that a queue asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GeneratedPauses {
    /// Priorities to be paused.
    pub priorities: PrioritySet,
    /// Rate of the link in Mbit/s, by which a pause has its time.
    pub link_mbit_per_s: u32,
    /// Address of the interface, the source of the frames.
    pub mac: [u8; 6],
    /// The longest time without a break.
    pub most: Nanos,
}

/// Pauses of one queue.
#[derive(Debug)]
pub(crate) struct PauseGenerator {
    pauses: GeneratedPauses,
    /// Frames that wait when the ring is full.
    ring: u32,
    /// End of the last pause.
    until: Nanos,
    /// Frames have waited since then, without a time in which they were few.
    since: Option<Nanos>,
    pub(crate) frames: u64,
    /// Times that frames waited for longer than a pause may take.
    pub(crate) storms: u64,
    is_storm: bool,
}

impl PauseGenerator {
    pub(crate) fn new(pauses: GeneratedPauses, ring: u32) -> Self {
        Self { pauses, ring, until: Nanos(0), since: None, frames: 0, storms: 0, is_storm: false }
    }

    /// At `now` so many frames wait: duration of the pause to be asked for, 0 to end one.
    pub(crate) fn wanted(&mut self, now: Nanos, waiting: u32) -> Option<Nanos> {
        if waiting <= self.ring / 4 {
            (self.since, self.is_storm) = (None, false);
            return (self.until > now).then_some(Nanos(0));
        }
        if waiting <= self.ring / 2 && self.since.is_none() {
            return None;
        }
        let since = *self.since.get_or_insert(now);
        if now - since >= self.pauses.most {
            self.storms += u64::from(!self.is_storm);
            self.is_storm = true;
            return None;
        }
        let pause = Nanos(u64::from(waiting - self.ring / 4) * TIME_OF_FRAME.0).clamp(PAUSE_MIN, PAUSE_MAX);
        let is_due = waiting > self.ring / 2 && self.until < now + Nanos(pause.0 / 2);
        is_due.then_some(pause)
    }

    /// A frame with that pause left.
    pub(crate) fn on_sent(&mut self, now: Nanos, pause: Nanos) {
        self.until = now + pause;
        self.frames += 1;
    }

    /// The frame that asks for a pause.
    pub(crate) fn frame(&self, pause: Nanos) -> [u8; FRAME_BYTES] {
        let quanta = (pause.0 * 1000 / quantum_ps(self.pauses.link_mbit_per_s)).min(u16::MAX.into()) as u16;
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

    fn generator() -> PauseGenerator {
        let priorities = [3].into_iter().collect();
        let most = Nanos::from_millis(200);
        let pauses = GeneratedPauses { priorities, link_mbit_per_s: 10_000, mac: [2, 0, 0, 0, 0, 1], most };
        PauseGenerator::new(pauses, RING)
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
        let most = GeneratedPauses { most: Nanos::from_millis(5), ..generator.pauses };
        let mut large = PauseGenerator::new(most, 65_536);
        assert_eq!(large.wanted(START, 65_536), Some(PAUSE_MAX));
        let mut small = PauseGenerator::new(most, 8);
        assert_eq!(small.wanted(START, 8), Some(PAUSE_MIN));
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
