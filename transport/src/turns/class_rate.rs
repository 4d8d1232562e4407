//! Highest rate of a traffic class: one for all endpoints of a device, each of which has its own
//! turns.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};

use super::{TURN_FRAMES, classes::CLASSES};
use crate::clock::Nanos;

/// Time that a class with a rate catches up when a worker looks at it late: it wakes within that.
const BURST: Nanos = Nanos::from_micros(250);

/// Longest time that a class pays back, where it is not more turns than there can be workers, each
/// of which may have booked one. Debts are of queue pairs that send their rest at once, because
/// their client is gone.
const DEBT: Nanos = Nanos::from_millis(1000);
const DEBT_TURNS: u64 = 64;

/// Time of the frames of a turn.
const TURN: Nanos = Nanos::from_micros(100);

/// Bytes of a full frame.
const FULL_FRAME: u64 = 4160;

/// When the next turn of each class of a device begins; clones are of the same device.
#[derive(Clone, Debug, Default)]
pub struct ClassRates(Arc<[AtomicU64; CLASSES]>);

/// The rate of one class, as one endpoint keeps it. Endpoints book their turns one behind the other,
/// so that one that looks at its class all the time takes none from one that sleeps until its turn.
#[derive(Debug)]
pub(crate) struct ClassRate {
    class: u8,
    /// 0: no limit.
    kbit_per_s: u32,
    next_turn: ClassRates,
    /// When the turn begins that was booked, if one was.
    booked: Option<Nanos>,
}

impl ClassRate {
    pub(crate) fn new(class: u8, kbit_per_s: u32, rates: &ClassRates) -> Self {
        Self { class, kbit_per_s, next_turn: rates.clone(), booked: None }
    }

    #[inline]
    pub(crate) const fn is_limited(&self) -> bool {
        self.kbit_per_s > 0
    }

    /// Frames of a turn, at most `most`.
    pub(crate) fn frames(&self, most: usize) -> usize {
        if !self.is_limited() {
            return most;
        }
        let bytes = u64::from(self.kbit_per_s) * TURN.0 / 8_000_000;
        ((bytes / FULL_FRAME) as usize).clamp(1, most)
    }

    /// When the next frames may leave, booked at `now`.
    #[inline]
    pub(crate) fn turn_begin(&mut self, now: Nanos) -> Nanos {
        if !self.is_limited() {
            return Nanos(0);
        }
        match self.booked {
            Some(begin) => begin,
            None => self.book(now),
        }
    }

    fn book(&mut self, now: Nanos) -> Nanos {
        let (earliest, turn) = (now - BURST, self.turn());
        let after = |next| Some((Nanos(next).max(earliest) + turn).0);
        let next = self.word().fetch_update(Ordering::Relaxed, Ordering::Relaxed, after).unwrap_or_default();
        let begin = Nanos(next).max(earliest);
        self.booked = Some(begin);
        begin
    }

    /// A visit is over, and these bytes left.
    #[inline]
    pub(crate) fn on_sent(&mut self, now: Nanos, bytes: usize) {
        if !self.is_limited() {
            return;
        }
        let paid = if self.booked.take().is_some() { self.turn() } else { Nanos(0) };
        let time = self.time_of(bytes as u64);
        let latest = now + DEBT.max(Nanos(self.turn().0 * DEBT_TURNS));
        let after = |next| Some(((Nanos(next) + (time - paid)).min(latest) - (paid - time)).0);
        let _ = self.word().fetch_update(Ordering::Relaxed, Ordering::Relaxed, after);
    }

    /// Time of a turn of full frames.
    fn turn(&self) -> Nanos {
        self.time_of(self.frames(TURN_FRAMES) as u64 * FULL_FRAME)
    }

    fn time_of(&self, bytes: u64) -> Nanos {
        Nanos(bytes * 8_000_000 / u64::from(self.kbit_per_s))
    }

    fn word(&self) -> &AtomicU64 {
        &self.next_turn.0[usize::from(self.class) % CLASSES]
    }
}

#[cfg(test)]
mod tests {
    use alloc::{vec, vec::Vec};

    use super::*;

    /// 1 MB/s.
    const MEGABYTE: u32 = 8000;

    const START: Nanos = Nanos::from_millis(1000);

    /// Bytes that each of these sends in a second, a turn at a time. The first is looked at every
    /// microsecond, the others 10 us after their deadlines.
    fn sent(rates: &mut [ClassRate]) -> Vec<usize> {
        let mut sent = vec![0; rates.len()];
        let mut next = vec![START; rates.len()];
        let mut now = START;
        while now < START + Nanos::from_millis(1000) {
            for (at, rate) in rates.iter_mut().enumerate() {
                if next[at] > now {
                    continue;
                }
                if rate.turn_begin(now) <= now {
                    let bytes = rate.frames(TURN_FRAMES) * FULL_FRAME as usize;
                    rate.on_sent(now, bytes);
                    sent[at] += bytes;
                }
                let begin = rate.turn_begin(now).max(now);
                next[at] = if at == 0 { now } else { begin + Nanos::from_micros(10) };
            }
            now = now + Nanos::from_micros(1);
        }
        sent
    }

    #[test]
    fn endpoints_of_a_device_share_a_rate() {
        for kbit_per_s in [1000, 100_000, 1_000_000, 10_000_000] {
            let (second, rates) = (kbit_per_s as usize * 125, ClassRates::default());
            let sent = sent(&mut [3; 3].map(|class| ClassRate::new(class, kbit_per_s, &rates)));
            let all: usize = sent.iter().sum();
            assert!(all.abs_diff(second) * 50 < second + 150 * 16 * FULL_FRAME as usize, "{sent:?} of {second}");
            assert!(sent.iter().all(|sent| sent * 4 > all), "each has its turns: {sent:?}");
        }
    }

    #[test]
    fn classes_and_devices_have_rates_of_their_own() {
        let rates = ClassRates::default();
        let sent = sent(&mut [3, 4].map(|class| ClassRate::new(class, MEGABYTE, &rates)));
        assert!(sent.iter().all(|sent| sent.abs_diff(1_000_000) < 20_000), "{sent:?}");
        assert!(ClassRate::new(3, MEGABYTE, &ClassRates::default()).turn_begin(START) <= START);
    }

    #[test]
    fn the_next_turn_begins_when_the_bytes_of_the_last_have_passed() {
        let mut rate = ClassRate::new(0, MEGABYTE, &ClassRates::default());
        assert!(rate.turn_begin(START) <= START);
        rate.on_sent(START, 1250);
        assert_eq!(rate.turn_begin(START), START + Nanos::from_micros(1000), "1,250 us, of which it catches up 250");
    }

    /// A turn that is not used is the next one's.
    #[test]
    fn a_booked_turn_without_frames_costs_nothing() {
        let mut rate = ClassRate::new(0, MEGABYTE, &ClassRates::default());
        for _ in 0..10 {
            assert!(rate.turn_begin(START) <= START);
            rate.on_sent(START, 0);
        }
    }

    #[test]
    fn a_debt_is_bounded() {
        let mut rate = ClassRate::new(0, MEGABYTE, &ClassRates::default());
        rate.on_sent(START, 1 << 30);
        assert_eq!(rate.turn_begin(START), START + DEBT);
    }

    #[test]
    fn without_a_rate_nothing_is_closed() {
        let mut rate = ClassRate::new(0, 0, &ClassRates::default());
        rate.on_sent(START, 1 << 30);
        assert!(rate.turn_begin(START) <= START);
    }
}
