//! A highest rate of several senders, each of which has its own turns: of the endpoints of a
//! device, or of the queue pairs of an account.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::TURN_FRAMES;
use crate::clock::Nanos;

/// Time that a rate catches up when a worker looks at it late, and full frames that it catches up at
/// least: a worker that sleeps wakes within that, beside other threads within a few milliseconds.
const BURST: Nanos = Nanos::from_micros(250);
const BURST_FRAMES: u64 = 8;

/// Longest time that is paid back, where it is not more turns than there can be workers, each of
/// which may have booked one. Debts are of queue pairs that send their rest at once, because their
/// client is gone.
const DEBT: Nanos = Nanos::from_millis(1000);
const DEBT_TURNS: u64 = 64;

/// Time of the frames of a turn.
const TURN: Nanos = Nanos::from_micros(100);

/// Bytes of a full frame.
const FULL_FRAME: u64 = 4160;

/// Frames of a turn at this rate, at most `most`; 0 is no limit.
fn frames_of(kbit_per_s: u32, most: usize) -> usize {
    if kbit_per_s == 0 {
        return most;
    }
    let bytes = u64::from(kbit_per_s) * TURN.0 / 8_000_000;
    ((bytes / FULL_FRAME) as usize).clamp(1, most)
}

/// The rate, and the time at which the next turn begins. Any thread may change the rate: it counts
/// from the next turn on.
#[derive(Debug, Default)]
pub struct SharedRate {
    /// 0: no limit.
    kbit_per_s: AtomicU32,
    next_turn: AtomicU64,
    delayed: AtomicU64,
    /// Turns that were booked before the last change of the rate are void.
    changes: AtomicU32,
}

impl SharedRate {
    /// A rate; 0 for no limit.
    pub fn new(kbit_per_s: u32) -> Self {
        Self { kbit_per_s: AtomicU32::new(kbit_per_s), ..Self::default() }
    }

    /// Sets the rate; 0 for no limit.
    pub fn set(&self, kbit_per_s: u32) {
        if self.kbit_per_s.swap(kbit_per_s, Ordering::Relaxed) != kbit_per_s {
            self.changes.fetch_add(1, Ordering::Relaxed);
            self.next_turn.fetch_min(1, Ordering::Relaxed);
        }
    }

    /// The rate; 0 for no limit.
    #[inline]
    pub fn kbit_per_s(&self) -> u32 {
        self.kbit_per_s.load(Ordering::Relaxed)
    }

    /// Turns that had to wait for the rate.
    pub fn delayed_turns(&self) -> u64 {
        self.delayed.load(Ordering::Relaxed)
    }

    /// Turns are given out for more than half of the longest debt.
    fn is_overdrawn(&self, now: Nanos) -> bool {
        self.kbit_per_s() > 0 && Nanos(self.next_turn.load(Ordering::Relaxed)) > now + Nanos(DEBT.0 / 2)
    }

    /// It was never in use: a new one is the same.
    pub fn is_unused(&self) -> bool {
        self.next_turn.load(Ordering::Relaxed) == 0
    }

    /// Moves the next turn by the time of bytes that left without one: those of before are moved by
    /// none of it.
    fn pay(&self, now: Nanos, bytes: u64, kbit_per_s: u32) {
        let (earliest, time) = (now - burst_of(kbit_per_s), time_of(bytes, kbit_per_s));
        let latest = now + DEBT.max(Nanos(turn_of(kbit_per_s).0 * DEBT_TURNS));
        let after = |next| {
            let next = Nanos(next).max(earliest);
            Some((next + time).min(latest.max(next)).0)
        };
        let _ = self.next_turn.fetch_update(Ordering::Relaxed, Ordering::Relaxed, after);
    }
}

/// A turn that was booked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BookedTurn {
    /// [`Nanos::NEVER`] of none.
    begin: Nanos,
    /// Bytes that may leave in it.
    left: u32,
    /// [`SharedRate::changes`] when it was booked.
    changes: u32,
}

impl BookedTurn {
    const NONE: Self = Self { begin: Nanos::NEVER, left: 0, changes: 0 };
}

/// Turns of one sender at a shared rate. Senders book their turns one behind the other, so that one
/// that looks all the time takes none from one that sleeps until its turn. A turn is one of bytes:
/// it ends when they have left, or when its sender has no more.
#[derive(Debug)]
pub(crate) struct RateTurns {
    rate: Arc<SharedRate>,
    booked: BookedTurn,
}

/// Each queue pair has turns.
const _: () = assert!(size_of::<RateTurns>() == 24);

impl RateTurns {
    pub(crate) const fn new(rate: Arc<SharedRate>) -> Self {
        Self { rate, booked: BookedTurn::NONE }
    }

    #[inline]
    pub(crate) fn is_limited(&self) -> bool {
        self.rate.kbit_per_s() > 0
    }

    /// As many turns are given out that nothing may leave beside them.
    pub(crate) fn is_overdrawn(&self, now: Nanos) -> bool {
        self.rate.is_overdrawn(now)
    }

    /// Frames of a turn, or of the rest of the booked one, at most `most`.
    #[inline]
    pub(crate) fn frames(&self, most: usize) -> usize {
        let kbit_per_s = self.rate.kbit_per_s();
        let most = frames_of(kbit_per_s, most);
        let is_booked = kbit_per_s > 0 && self.booked != BookedTurn::NONE;
        if is_booked { (self.booked.left as usize / FULL_FRAME as usize).clamp(1, most) } else { most }
    }

    /// The booked turn has begun.
    pub(crate) fn has_begun(&self, now: Nanos) -> bool {
        self.booked.begin <= now
    }

    /// When the next frames may leave, booked at `now`.
    #[inline]
    pub(crate) fn turn_begin(&mut self, now: Nanos) -> Nanos {
        let kbit_per_s = self.rate.kbit_per_s();
        if kbit_per_s == 0 {
            return Nanos(0);
        }
        let has_passed = self.has_begun(now) && self.booked.begin + burst_of(kbit_per_s) < now;
        if has_passed || self.booked.changes != self.rate.changes.load(Ordering::Relaxed) {
            self.release();
        }
        if self.booked == BookedTurn::NONE { self.book(now, kbit_per_s) } else { self.booked.begin }
    }

    fn book(&mut self, now: Nanos, kbit_per_s: u32) -> Nanos {
        let (earliest, time) = (now - burst_of(kbit_per_s), turn_of(kbit_per_s));
        let after = |next| Some((Nanos(next).max(earliest) + time).0);
        let next = self.rate.next_turn.fetch_update(Ordering::Relaxed, Ordering::Relaxed, after).unwrap_or_default();
        let begin = Nanos(next).max(earliest);
        let changes = self.rate.changes.load(Ordering::Relaxed);
        self.booked = BookedTurn { begin, left: bytes_of_turn(kbit_per_s) as u32, changes };
        if begin > now {
            self.rate.delayed.fetch_add(1, Ordering::Relaxed);
        }
        begin
    }

    /// These bytes left at `now`: in the booked turn, if that has begun.
    #[inline]
    pub(crate) fn on_sent(&mut self, now: Nanos, bytes: usize) {
        let kbit_per_s = self.rate.kbit_per_s();
        if kbit_per_s == 0 {
            self.booked = BookedTurn::NONE;
            return;
        }
        let mut bytes = bytes as u64;
        if self.has_begun(now) {
            let in_turn = bytes.min(self.booked.left.into());
            bytes -= in_turn;
            self.booked.left -= in_turn as u32;
            // The next visit is as long.
            if u64::from(self.booked.left) < in_turn {
                self.release();
            }
        }
        if bytes > 0 {
            self.rate.pay(now, bytes, kbit_per_s);
        }
    }

    /// The sender has nothing to send: the rest of its turn is for others.
    pub(crate) fn release(&mut self) {
        let BookedTurn { left, changes, .. } = core::mem::replace(&mut self.booked, BookedTurn::NONE);
        let kbit_per_s = self.rate.kbit_per_s();
        if left == 0 || kbit_per_s == 0 || changes != self.rate.changes.load(Ordering::Relaxed) {
            return;
        }
        let time = time_of(left.into(), kbit_per_s);
        let after = |next| Some((Nanos(next) - time).0);
        let _ = self.rate.next_turn.fetch_update(Ordering::Relaxed, Ordering::Relaxed, after);
    }
}

/// Bytes of a turn: full frames.
fn bytes_of_turn(kbit_per_s: u32) -> u64 {
    frames_of(kbit_per_s, TURN_FRAMES) as u64 * FULL_FRAME
}

/// Time of a turn of full frames.
fn turn_of(kbit_per_s: u32) -> Nanos {
    time_of(bytes_of_turn(kbit_per_s), kbit_per_s)
}

fn burst_of(kbit_per_s: u32) -> Nanos {
    BURST.max(time_of(BURST_FRAMES * FULL_FRAME, kbit_per_s))
}

fn time_of(bytes: u64, kbit_per_s: u32) -> Nanos {
    Nanos(bytes * 8_000_000 / u64::from(kbit_per_s))
}

#[cfg(test)]
mod tests {
    use alloc::{collections::BTreeSet, vec, vec::Vec};

    use super::*;

    /// 1 MB/s.
    const MEGABYTE: u32 = 8000;

    const START: Nanos = Nanos::from_millis(1000);

    /// That of rates below 1 Gbit/s, bytes.
    const BURST_BYTES: usize = (BURST_FRAMES * FULL_FRAME) as usize;

    fn shared(kbit_per_s: u32) -> Arc<SharedRate> {
        Arc::new(SharedRate::new(kbit_per_s))
    }

    /// Bytes that each of these sends in a second, a turn at a time. The first is looked at every
    /// microsecond, the others 10 us after their deadlines.
    fn sent(rates: &mut [RateTurns]) -> Vec<usize> {
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
    fn senders_share_a_rate() {
        for kbit_per_s in [1000, 100_000, 1_000_000, 10_000_000] {
            let (second, rate) = (kbit_per_s as usize * 125, shared(kbit_per_s));
            let sent = sent(&mut [(); 3].map(|()| RateTurns::new(rate.clone())));
            let all: usize = sent.iter().sum();
            assert!(all.abs_diff(second) * 50 < second + 150 * 16 * FULL_FRAME as usize, "{sent:?} of {second}");
            assert!(sent.iter().all(|sent| sent * 4 > all), "each has its turns: {sent:?}");
        }
    }

    #[test]
    fn rates_are_independent_of_each_other() {
        let sent = sent(&mut [(); 2].map(|()| RateTurns::new(shared(MEGABYTE))));
        assert!(sent.iter().all(|sent| sent.abs_diff(1_000_000 + BURST_BYTES) < 20_000), "{sent:?}");
    }

    #[test]
    fn a_new_rate_counts_from_the_next_turn_on() {
        let rate = shared(MEGABYTE);
        let (mut turns, mut now, mut bytes) = (RateTurns::new(rate.clone()), START, [0_usize; 2]);
        while now < START + Nanos::from_millis(2000) {
            let second = usize::from(now >= START + Nanos::from_millis(1000));
            rate.set(if second == 0 { MEGABYTE } else { 4 * MEGABYTE });
            if turns.turn_begin(now) <= now {
                turns.on_sent(now, 4160);
                bytes[second] += 4160;
            }
            now = now + Nanos::from_micros(10);
        }
        assert!(
            bytes[0].abs_diff(1_000_000 + BURST_BYTES) < 20_000 && bytes[1].abs_diff(4_000_000) < 80_000,
            "{bytes:?}"
        );
        rate.set(0);
        assert_eq!((turns.turn_begin(now), turns.is_limited()), (Nanos(0), false));
    }

    /// As acknowledgments, which do not wait.
    #[test]
    fn bytes_that_leave_before_the_booked_turn_move_the_next_ones_and_not_it() {
        let rate = shared(MEGABYTE);
        let [mut turns, mut other] = [(); 2].map(|()| RateTurns::new(rate.clone()));
        turns.on_sent(START, BURST_BYTES + 4160);
        let booked = turns.turn_begin(START);
        assert!(booked > START);
        turns.on_sent(START, 1000);
        assert_eq!(turns.turn_begin(START), booked);
        let after = other.turn_begin(START) - booked;
        assert_eq!(after, Nanos::from_micros(4160 + 1000), "a full frame and those bytes");
    }

    #[test]
    fn the_next_turn_begins_when_the_bytes_of_the_last_have_passed() {
        let mut rate = RateTurns::new(shared(MEGABYTE));
        assert!(rate.turn_begin(START) <= START);
        rate.on_sent(START, BURST_BYTES + 1250);
        assert_eq!(rate.turn_begin(START), START + Nanos::from_micros(1250));
    }

    /// A turn that is not used is the next one's.
    #[test]
    fn a_booked_turn_without_frames_costs_nothing() {
        let mut rate = RateTurns::new(shared(MEGABYTE));
        for _ in 0..10 {
            assert!(rate.turn_begin(START) <= START);
            rate.on_sent(START, 0);
            rate.release();
        }
    }

    /// Each of many waits for its own turn, which another one's frame does not take back.
    #[test]
    fn many_senders_have_no_more_than_the_rate() {
        for (kbit_per_s, senders) in [(1000, 100), (10_000, 1000), (1_000_000, 4000)] {
            let rate = shared(kbit_per_s);
            let mut all: Vec<_> = (0..senders).map(|_| RateTurns::new(rate.clone())).collect();
            let (mut bytes, end) = (0, START + Nanos::from_millis(8000));
            let mut due: BTreeSet<(Nanos, usize)> = (0..senders).map(|at| (START, at)).collect();
            while let Some((now, at)) = due.pop_first().filter(|(now, _)| *now < end) {
                let turns = &mut all[at];
                if turns.turn_begin(now) <= now {
                    // A bit more than its turn has.
                    let sent = turns.frames(TURN_FRAMES) * FULL_FRAME as usize + 64;
                    turns.on_sent(now, sent);
                    bytes += sent;
                }
                due.insert((turns.turn_begin(now).max(now + Nanos(1)), at));
            }
            let most = kbit_per_s as usize * 125 * 8;
            assert!(
                bytes.abs_diff(most) * 50 < most + 100 * BURST_BYTES,
                "{senders} at {kbit_per_s}: {bytes} of {most}"
            );
        }
    }

    /// A turn is one of bytes, in as many visits as they take.
    #[test]
    fn small_frames_have_a_turn_together() {
        let mut turns = RateTurns::new(shared(MEGABYTE));
        turns.on_sent(START, BURST_BYTES + 1);
        let begin = turns.turn_begin(START);
        for _ in 0..40 {
            turns.on_sent(begin, 100);
            assert_eq!(turns.turn_begin(begin), begin);
        }
        turns.on_sent(begin, 100);
        assert!(turns.turn_begin(begin) > begin, "60 bytes are left, no frame");
        // A turn is void when its time has passed.
        let later = begin + Nanos::from_millis(500);
        assert!(turns.turn_begin(later) >= later - Nanos::from_millis(34));
    }

    #[test]
    fn a_debt_is_bounded() {
        let mut rate = RateTurns::new(shared(MEGABYTE));
        rate.on_sent(START, 1 << 30);
        assert_eq!(rate.turn_begin(START), START + DEBT);
    }

    #[test]
    fn without_a_rate_nothing_is_closed() {
        let mut rate = RateTurns::new(shared(0));
        rate.on_sent(START, 1 << 30);
        assert!(rate.turn_begin(START) <= START);
    }
}
