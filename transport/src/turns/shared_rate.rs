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

/// Longest time for which bytes are owed, where it is not that of so many turns: more is forgiven.
/// Only bytes that leave without a turn, as the rest of a queue pair after the end of its client,
/// are owed for longer than the burst.
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

/// The rate, and the times up to which it is given out. Any thread may change the rate: it counts
/// from the next turn on.
///
/// Turns are booked one behind the other, which says when to look again. The bytes that left are
/// counted apart from them, and a turn that has begun waits until all but a burst of them is paid:
/// turns that were not used in their time, given back, or exceeded by their last frame have no more
/// than the rate leave.
#[derive(Debug, Default)]
pub struct SharedRate {
    /// 0: no limit.
    kbit_per_s: AtomicU32,
    /// Begin of the next turn.
    next_turn: AtomicU64,
    /// Time by which the bytes that left are paid.
    paid_at: AtomicU64,
    delayed: AtomicU64,
    /// Turns that were booked before the last change of the rate are void.
    changes: AtomicU32,
}

impl SharedRate {
    /// A rate; 0 for no limit.
    pub fn new(kbit_per_s: u32) -> Self {
        Self { kbit_per_s: AtomicU32::new(kbit_per_s), ..Self::default() }
    }

    /// Sets the rate; 0 for no limit. Bytes that left are paid for as long as they would have been.
    pub fn set(&self, kbit_per_s: u32) {
        if self.kbit_per_s.swap(kbit_per_s, Ordering::Relaxed) != kbit_per_s {
            self.next_turn.store(0, Ordering::Relaxed);
            self.changes.fetch_add(1, Ordering::Relaxed);
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

    /// It was never in use: a new one is the same.
    pub fn is_unused(&self) -> bool {
        self.paid_at.load(Ordering::Relaxed) == 0
    }

    fn paid_at(&self) -> Nanos {
        Nanos(self.paid_at.load(Ordering::Relaxed))
    }

    /// Bytes left at `now`.
    fn owe(&self, now: Nanos, bytes: u64, kbit_per_s: u32) {
        let latest = now + DEBT.max(Nanos(turn_of(kbit_per_s).0 * DEBT_TURNS));
        let after = |paid_at| {
            let paid_at = Nanos(paid_at);
            Some((paid_at.max(now) + time_of(bytes, kbit_per_s)).min(latest.max(paid_at)).0)
        };
        let _ = self.paid_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, after);
    }
}

/// A turn that was booked.
#[derive(Clone, Copy, Debug)]
struct BookedTurn {
    /// [`Nanos::NEVER`] of none.
    begin: Nanos,
    /// Bytes that may leave in it; of none, those by which the last one was exceeded.
    bytes: u32,
    /// [`SharedRate::changes`] when it was booked.
    changes: u32,
}

impl BookedTurn {
    const NONE: Self = Self::exceeded(0);

    const fn exceeded(bytes: u32) -> Self {
        Self { begin: Nanos::NEVER, bytes, changes: 0 }
    }

    const fn is_none(&self) -> bool {
        self.begin.0 == Nanos::NEVER.0
    }
}

/// Turns of one sender at a shared rate. Senders book their turns one behind the other, so that one
/// that looks all the time takes none from one that sleeps until its turn. A turn is one of bytes:
/// it ends when they have left, or when its sender has no more or is gone.
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

    /// So much is owed that nothing may leave without a turn.
    pub(crate) fn is_overdrawn(&self, now: Nanos) -> bool {
        self.is_limited() && self.rate.paid_at() > now + Nanos(DEBT.0 / 2)
    }

    /// Frames of a turn, or of the rest of the booked one, at most `most`.
    #[inline]
    pub(crate) fn frames(&self, most: usize) -> usize {
        let kbit_per_s = self.rate.kbit_per_s();
        let most = frames_of(kbit_per_s, most);
        let is_booked = kbit_per_s > 0 && !self.booked.is_none();
        if is_booked { (self.booked.bytes as usize / FULL_FRAME as usize).clamp(1, most) } else { most }
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
        if self.booked.is_none() || self.booked.changes != self.rate.changes.load(Ordering::Relaxed) {
            return self.book(now, kbit_per_s);
        }
        if self.has_begun(now) && self.has_lost(now, kbit_per_s) {
            // Unless it is the last one, its time is not given back: of many such turns each has a
            // new time.
            let (begin, time) = (self.booked.begin, time_of(self.booked.bytes.into(), kbit_per_s));
            let (last, line) = ((begin + time).0, &self.rate.next_turn);
            let _ = line.compare_exchange(last, begin.0, Ordering::Relaxed, Ordering::Relaxed);
            return self.book(now, kbit_per_s);
        }
        if !self.has_begun(now) && Nanos(self.rate.next_turn.load(Ordering::Relaxed)) <= self.booked.begin {
            // Others have ended, and the line is shorter than the wait.
            self.release();
            return self.book(now, kbit_per_s);
        }
        self.booked.begin
    }

    /// Others have had the time of the booked turn, or bytes without a turn: more is to be paid than
    /// a burst and the bytes of this turn.
    fn has_lost(&self, now: Nanos, kbit_per_s: u32) -> bool {
        let sent = bytes_of_turn(kbit_per_s).saturating_sub(self.booked.bytes.into());
        self.rate.paid_at() > now + burst_of(kbit_per_s) + time_of(sent, kbit_per_s)
    }

    /// Books a turn behind all others, and behind the bytes that a burst does not cover.
    fn book(&mut self, now: Nanos, kbit_per_s: u32) -> Nanos {
        // Before the rate and the line are looked at: a change beside this voids the turn.
        let changes = self.rate.changes.load(Ordering::Relaxed);
        let exceeded = if self.booked.is_none() { self.booked.bytes } else { 0 };
        let earliest = now.max(self.rate.paid_at()) - burst_of(kbit_per_s);
        let time = turn_of(kbit_per_s) + time_of(exceeded.into(), kbit_per_s);
        let after = |next| Some((Nanos(next).max(earliest) + time).0);
        let next = self.rate.next_turn.fetch_update(Ordering::Relaxed, Ordering::Relaxed, after).unwrap_or_default();
        let begin = Nanos(next).max(earliest);
        self.booked = BookedTurn { begin, bytes: bytes_of_turn(kbit_per_s) as u32, changes };
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
        if bytes == 0 {
            return;
        }
        self.rate.owe(now, bytes as u64, kbit_per_s);
        if !self.has_begun(now) {
            return;
        }
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        if bytes >= self.booked.bytes {
            self.booked = BookedTurn::exceeded(bytes - self.booked.bytes);
            return;
        }
        self.booked.bytes -= bytes;
        // The next visit is as long.
        if self.booked.bytes < bytes {
            self.release();
        }
    }

    /// The sender has nothing to send, or is gone: the rest of its turn is for others.
    pub(crate) fn release(&mut self) {
        if self.booked.is_none() {
            return;
        }
        let BookedTurn { bytes, changes, .. } = core::mem::replace(&mut self.booked, BookedTurn::NONE);
        let kbit_per_s = self.rate.kbit_per_s();
        if kbit_per_s == 0 || changes != self.rate.changes.load(Ordering::Relaxed) {
            return;
        }
        let time = time_of(bytes.into(), kbit_per_s);
        let after = |next| Some((Nanos(next) - time).0);
        let _ = self.rate.next_turn.fetch_update(Ordering::Relaxed, Ordering::Relaxed, after);
    }
}

impl Drop for RateTurns {
    fn drop(&mut self) {
        self.release();
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

    fn burst_bytes(kbit_per_s: u32) -> usize {
        (burst_of(kbit_per_s).0 * u64::from(kbit_per_s) / 8_000_000) as usize
    }

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
            // A burst, and a turn of each that ends later.
            let more = (bytes_of_turn(kbit_per_s) * 4) as usize + burst_bytes(kbit_per_s);
            assert!(all + second / 50 > second && all < second + second / 50 + more, "{sent:?} of {second}");
            assert!(sent.iter().all(|sent| sent * 4 > all), "each has its turns: {sent:?}");
        }
    }

    #[test]
    fn rates_are_independent_of_each_other() {
        let sent = sent(&mut [(); 2].map(|()| RateTurns::new(shared(MEGABYTE))));
        assert!(sent.iter().all(|sent| sent.abs_diff(1_000_000 + BURST_BYTES) < 20_000), "{sent:?}");
    }

    /// Bytes of before the change are paid for as long as they would have been: a burst of it.
    #[test]
    fn a_new_rate_counts_from_the_next_turn_on() {
        let rate = shared(MEGABYTE);
        let (mut turns, mut now, mut bytes) = (RateTurns::new(rate.clone()), START, [0_usize; 2]);
        for (second, kbit_per_s) in [MEGABYTE, 4 * MEGABYTE].into_iter().enumerate() {
            rate.set(kbit_per_s);
            let (begin, burst) = (now, Nanos::from_micros(BURST_FRAMES * FULL_FRAME));
            while now < begin + burst + Nanos::from_millis(1000) {
                if turns.turn_begin(now) <= now {
                    turns.on_sent(now, 4160);
                    bytes[second] += if now < begin + burst { 0 } else { 4160 };
                }
                now = now + Nanos::from_micros(10);
            }
        }
        assert!(bytes[0].abs_diff(1_000_000) < 20_000 && bytes[1].abs_diff(4_000_000) < 80_000, "{bytes:?}");
        rate.set(0);
        assert_eq!((turns.turn_begin(now), turns.is_limited()), (Nanos(0), false));
    }

    /// As acknowledgments, which do not wait.
    #[test]
    fn bytes_without_a_turn_are_paid_before_the_next_one() {
        let rate = shared(MEGABYTE);
        let [mut turns, mut other] = [(); 2].map(|()| RateTurns::new(rate.clone()));
        turns.on_sent(START, BURST_BYTES + 4160);
        let booked = turns.turn_begin(START);
        assert_eq!(booked, START + Nanos::from_micros(4160));
        turns.on_sent(START, 1000);
        assert_eq!(turns.turn_begin(START), booked, "it is looked at when it begins");
        assert_eq!(turns.turn_begin(booked), booked + Nanos::from_micros(1000));
        assert_eq!(other.turn_begin(booked), booked + Nanos::from_micros(1000 + 4160), "behind it");
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
            let (most, burst) = (kbit_per_s as usize * 125 * 8, 2 * burst_bytes(kbit_per_s));
            assert!(bytes + most / 50 > most && bytes < most + burst, "{senders} at {kbit_per_s}: {bytes} of {most}");
        }
    }

    /// Bytes that a sender sends in `time`; it begins with a small frame in each of its turns.
    fn with_small_frames(turns: &mut RateTurns, now: Nanos) -> usize {
        if turns.turn_begin(now) > now {
            return 0;
        }
        let small = if turns.booked.bytes > 1000 { turns.booked.bytes as usize - 500 } else { 0 };
        let sent = if small > 0 { small } else { FULL_FRAME as usize };
        turns.on_sent(now, sent);
        sent
    }

    #[test]
    fn turns_that_a_last_frame_exceeds_have_the_rate() {
        for (kbit_per_s, senders) in [(1000, 20), (1000, 200), (10_000, 1000), (100_000, 4000)] {
            let rate = shared(kbit_per_s);
            let mut all: Vec<_> = (0..senders).map(|_| RateTurns::new(rate.clone())).collect();
            let (mut bytes, end) = (0, START + Nanos::from_millis(20_000));
            let mut due: BTreeSet<(Nanos, usize)> = (0..senders).map(|at| (START, at)).collect();
            while let Some((now, at)) = due.pop_first().filter(|(now, _)| *now < end) {
                bytes += with_small_frames(&mut all[at], now);
                due.insert((all[at].turn_begin(now).max(now + Nanos(1)), at));
            }
            let most = kbit_per_s as usize * 125 * 20;
            assert!(bytes + most / 20 > most, "{senders} at {kbit_per_s}: {bytes} of {most}");
            assert!(bytes < most + 2 * burst_bytes(kbit_per_s), "{senders} at {kbit_per_s}: {bytes} of {most}");
        }
    }

    /// The next turns are later by as much, so that none of them has to be given up.
    #[test]
    fn turns_that_are_exceeded_are_farther_apart() {
        let rate = shared(1000);
        let mut all: Vec<_> = (0..20).map(|_| RateTurns::new(rate.clone())).collect();
        let end = START + Nanos::from_millis(30_000);
        let mut due: BTreeSet<(Nanos, usize)> = (0..20).map(|at| (START, at)).collect();
        let (mut last, mut longest) = ([START; 20], Nanos(0));
        while let Some((now, at)) = due.pop_first().filter(|(now, _)| *now < end) {
            if all[at].turn_begin(now) <= now {
                all[at].on_sent(now, 5160);
                // The first turn of each was booked without it.
                let is_later = last[at] > START + Nanos::from_millis(3000);
                longest = if is_later { longest.max(now - last[at]) } else { longest };
                last[at] = now;
            }
            due.insert((all[at].turn_begin(now).max(now + Nanos(1)), at));
        }
        // 20 turns of 5,160 bytes.
        assert!(longest < Nanos::from_millis(1000), "{longest:?}");
    }

    /// It may have bytes of which the new rate is far less.
    #[test]
    fn a_turn_of_a_higher_rate_is_void() {
        let rate = shared(10_000_000);
        let mut turns = RateTurns::new(rate.clone());
        assert!(turns.turn_begin(START) <= START);
        assert_eq!(turns.frames(TURN_FRAMES), TURN_FRAMES);
        rate.set(1000);
        turns.turn_begin(START);
        assert_eq!(turns.booked.bytes, FULL_FRAME as u32);
    }

    /// No worker looks for a while; after it all turns have begun.
    #[test]
    fn a_stall_leaves_a_burst() {
        for (kbit_per_s, senders, stall) in
            [(10_000_000, 1000, 50), (10_000_000, 1000, 110), (1_000_000, 1000, 20), (MEGABYTE, 100, 250)]
        {
            let rate = shared(kbit_per_s);
            let mut all: Vec<_> = (0..senders).map(|_| RateTurns::new(rate.clone())).collect();
            all.iter_mut().for_each(|turns| assert!(turns.turn_begin(START) > Nanos(0)));
            let mut now = START + Nanos::from_millis(stall);
            let (end, mut bytes, mut looks) = (now + Nanos::from_millis(20), 0, 0);
            let mut due: BTreeSet<(Nanos, usize)> = (0..senders).map(|at| (now, at)).collect();
            let mut most_at_once = 0;
            while let Some((time, at)) = due.pop_first().filter(|(time, _)| *time < end) {
                (now, looks) = (time.max(now), looks + 1);
                if all[at].turn_begin(now) <= now {
                    let sent = bytes_of_turn(kbit_per_s) as usize;
                    all[at].on_sent(now, sent);
                    bytes += sent;
                }
                if now < START + Nanos::from_millis(stall) + Nanos::from_micros(10) {
                    most_at_once = bytes;
                }
                due.insert((all[at].turn_begin(now).max(now + Nanos(1)), at));
            }
            let burst = burst_bytes(kbit_per_s) + 2 * bytes_of_turn(kbit_per_s) as usize;
            assert!(most_at_once <= burst + kbit_per_s as usize / 800, "{senders} at {kbit_per_s}: {most_at_once}");
            let due = kbit_per_s as usize * 125 / 50;
            assert!(bytes + due / 20 > due && bytes <= due + burst, "{senders} at {kbit_per_s}: {bytes} of {due}");
            assert!(looks < 4 * senders + 4 * bytes / FULL_FRAME as usize, "{looks} looks");
        }
    }

    /// Senders that wait and are gone take nothing with them, also while others wait.
    #[test]
    fn turns_of_those_that_are_gone_are_for_others() {
        let rate = shared(1000);
        let mut last = RateTurns::new(rate.clone());
        last.on_sent(START, BURST_BYTES + 4160);
        for _ in 0..2000 {
            let mut gone = RateTurns::new(rate.clone());
            assert!(gone.turn_begin(START) > START);
        }
        assert!(last.turn_begin(START) <= START + Nanos::from_millis(34), "{:?}", last.turn_begin(START));
    }

    /// One that waits behind them sees it when it looks again.
    #[test]
    fn the_turn_behind_those_that_are_gone_is_sooner() {
        let rate = shared(MEGABYTE);
        RateTurns::new(rate.clone()).on_sent(START, BURST_BYTES);
        let mut before: Vec<_> = (0..100).map(|_| RateTurns::new(rate.clone())).collect();
        before.iter_mut().for_each(|turns| assert!(turns.turn_begin(START) >= START));
        let mut last = RateTurns::new(rate.clone());
        assert_eq!(last.turn_begin(START), START + Nanos::from_micros(416_000));
        before.truncate(50);
        assert_eq!(last.turn_begin(START), START + Nanos::from_micros(208_000));
        assert_eq!(last.turn_begin(START), START + Nanos::from_micros(208_000));
    }

    /// Turns are booked and given back much later.
    #[test]
    fn time_without_frames_is_lost() {
        let rate = shared(1000);
        let mut idle: Vec<_> = (0..200).map(|_| RateTurns::new(rate.clone())).collect();
        idle.iter_mut().for_each(|turns| assert!(turns.turn_begin(START) > Nanos(0)));
        let begin = START + Nanos::from_millis(8000);
        idle.iter_mut().for_each(RateTurns::release);
        let mut all: Vec<_> = (0..100).map(|_| RateTurns::new(rate.clone())).collect();
        let mut due: BTreeSet<(Nanos, usize)> = (0..100).map(|at| (begin, at)).collect();
        let (mut bytes, end) = (0, begin + Nanos::from_millis(1000));
        while let Some((now, at)) = due.pop_first().filter(|(now, _)| *now < end) {
            if all[at].turn_begin(now) <= now {
                all[at].on_sent(now, 4160);
                bytes += 4160;
            }
            due.insert((all[at].turn_begin(now).max(now + Nanos(1)), at));
        }
        assert!((120_000..125_000 + 2 * BURST_BYTES).contains(&bytes), "{bytes}");
    }

    /// A program connects by another rule again and again.
    #[test]
    fn changes_of_the_rate_give_no_burst() {
        let rate = shared(1000);
        let (mut turns, mut bytes) = (RateTurns::new(rate.clone()), 0);
        for tick in 0..10_000 {
            let now = START + Nanos::from_micros(tick * 100);
            if tick % 300 == 0 {
                rate.set(if tick % 600 == 0 { 2000 } else { 1000 });
            }
            if turns.turn_begin(now) <= now {
                turns.on_sent(now, 4160);
                bytes += 4160;
            }
        }
        assert!(bytes < 250_000 + BURST_BYTES + 4160, "a second at 2 Mbit/s: {bytes}");
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
    }

    #[test]
    fn a_debt_is_bounded() {
        let mut rate = RateTurns::new(shared(MEGABYTE));
        rate.on_sent(START, 1 << 30);
        assert_eq!(rate.turn_begin(START), START + DEBT - burst_of(MEGABYTE));
    }

    #[test]
    fn without_a_rate_nothing_is_closed() {
        let mut rate = RateTurns::new(shared(0));
        rate.on_sent(START, 1 << 30);
        assert!(rate.turn_begin(START) <= START);
    }
}
