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

/// Longest time for which bytes that leave without a turn are owed, where it is not that of so many
/// turns: more is forgiven. That is of frames that wait for no rate, as CNPs; those of ended
/// queue pairs are owed without a bound, and wait from half of this time on.
const DEBT: Nanos = Nanos::from_millis(1000);
const DEBT_TURNS: u64 = 64;

/// Bytes of the smallest turn. One is as long as the last was used, so that a sender of small
/// messages does not take the time of full frames from those behind it; one that was used
/// up is followed by one of twice the length.
const TURN_MIN: u64 = 256;

/// Lengths of turns are kept in units of so many bytes.
const UNIT: u64 = 16;

/// Time of the frames of a turn.
const TURN: Nanos = Nanos::from_micros(100);

/// Bytes of a full frame.
pub(super) const FULL_FRAME: u64 = 4160;

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
            self.changes.fetch_add(1, Ordering::Release);
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

    /// Bytes left at `now`, which are paid at `latest`.
    fn owe(&self, now: Nanos, bytes: u64, kbit_per_s: u32, latest: Nanos) {
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
    /// Bytes of all of it, in [`UNIT`]s; of none, those of the next one, if the rate has as many.
    units: u16,
    /// [`SharedRate::changes`] when it was booked.
    changes: u16,
}

impl BookedTurn {
    const NONE: Self = Self { begin: Nanos::NEVER, bytes: 0, units: (FULL_FRAME / UNIT) as u16, changes: 0 };

    const fn is_none(&self) -> bool {
        self.begin.0 == Nanos::NEVER.0
    }

    /// Bytes that have left in it.
    fn sent(&self) -> u64 {
        (u64::from(self.units) * UNIT).saturating_sub(self.bytes.into())
    }

    /// It was used up, and exceeded by so many bytes.
    fn used_up(self, exceeded: u32) -> Self {
        Self { bytes: exceeded, units: self.units.saturating_mul(2), ..Self::NONE }
    }

    /// Its sender has no more.
    fn ended(self) -> Self {
        Self { units: self.sent().div_ceil(UNIT) as u16, ..Self::NONE }
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
        // Before the rate and the line are looked at: a change beside this voids the turn.
        let changes = self.rate.changes.load(Ordering::Acquire) as u16;
        let kbit_per_s = self.rate.kbit_per_s();
        if kbit_per_s == 0 {
            return Nanos(0);
        }
        if self.booked.is_none() || self.booked.changes != changes {
            return self.book(now, kbit_per_s, changes);
        }
        if self.has_begun(now) && self.has_lost(now, kbit_per_s) {
            // Unless it is the last one, its time is not given back: of many such turns each has a
            // new time.
            let (begin, time) = (self.booked.begin, time_of(self.booked.bytes.into(), kbit_per_s));
            let (last, line) = ((begin + time).0, &self.rate.next_turn);
            let _ = line.compare_exchange(last, begin.0, Ordering::Relaxed, Ordering::Relaxed);
            return self.book(now, kbit_per_s, changes);
        }
        if !self.has_begun(now) && Nanos(self.rate.next_turn.load(Ordering::Relaxed)) <= self.booked.begin {
            // Others have ended, and the line is shorter than the wait.
            self.release();
            return self.book(now, kbit_per_s, changes);
        }
        self.booked.begin
    }

    /// Others have had the time of the booked turn, or bytes without a turn: more is to be paid
    /// than a burst and the bytes of this turn.
    fn has_lost(&self, now: Nanos, kbit_per_s: u32) -> bool {
        self.rate.paid_at() > now + burst_of(kbit_per_s) + time_of(self.booked.sent(), kbit_per_s)
    }

    /// It was booked at another rate.
    fn is_void(&self) -> bool {
        self.booked.changes != self.rate.changes.load(Ordering::Relaxed) as u16
    }

    /// Books a turn behind all others, and behind the bytes that a burst does not cover.
    fn book(&mut self, now: Nanos, kbit_per_s: u32, changes: u16) -> Nanos {
        let exceeded = if self.booked.is_none() { self.booked.bytes } else { 0 };
        let earliest = now.max(self.rate.paid_at()) - burst_of(kbit_per_s);
        let bytes = (u64::from(self.booked.units) * UNIT).clamp(TURN_MIN, bytes_of_turn(kbit_per_s));
        let time = time_of(bytes + u64::from(exceeded), kbit_per_s);
        let after = |next| Some((Nanos(next).max(earliest) + time).0);
        let next = self.rate.next_turn.fetch_update(Ordering::Relaxed, Ordering::Relaxed, after).unwrap_or_default();
        let begin = Nanos(next).max(earliest);
        self.booked = BookedTurn { begin, bytes: bytes as u32, units: (bytes / UNIT) as u16, changes };
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
        let latest = now + DEBT.max(Nanos(time_of(bytes_of_turn(kbit_per_s), kbit_per_s).0 * DEBT_TURNS));
        self.rate.owe(now, bytes as u64, kbit_per_s, latest);
        if !self.has_begun(now) {
            return;
        }
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        if bytes >= self.booked.bytes {
            self.booked = self.booked.used_up(bytes - self.booked.bytes);
            return;
        }
        self.booked.bytes -= bytes;
        if self.booked.bytes < bytes {
            // The next frames are as long: it is used up as well.
            let turn = self.booked;
            self.release();
            self.booked = turn.used_up(0);
        }
    }

    /// These bytes of the rest of an ended queue pair left at `now`, in no turn.
    pub(crate) fn on_rest_sent(&mut self, now: Nanos, bytes: usize) {
        let kbit_per_s = self.rate.kbit_per_s();
        if kbit_per_s > 0 && bytes > 0 {
            self.rate.owe(now, bytes as u64, kbit_per_s, Nanos::NEVER);
        }
    }

    /// Frames of such a rest that may leave at `now`, at most `most`, one at least.
    pub(crate) fn frames_of_rest(&self, now: Nanos, most: usize) -> usize {
        let kbit_per_s = self.rate.kbit_per_s();
        if kbit_per_s == 0 {
            return most;
        }
        let time = now + Nanos(DEBT.0 / 2) - self.rate.paid_at().max(now);
        ((u64::from(kbit_per_s) * time.0 / 8_000_000 / FULL_FRAME) as usize).clamp(1, most)
    }

    /// The sender has nothing to send, or is gone: the rest of its turn is for others.
    pub(crate) fn release(&mut self) {
        if self.booked.is_none() {
            return;
        }
        let (turn, is_void) = (self.booked, self.is_void());
        self.booked = turn.ended();
        let kbit_per_s = self.rate.kbit_per_s();
        if kbit_per_s == 0 || is_void {
            return;
        }
        let time = time_of(turn.bytes.into(), kbit_per_s);
        let after = |next| Some((Nanos(next) - time).0);
        let _ = self.rate.next_turn.fetch_update(Ordering::Relaxed, Ordering::Relaxed, after);
    }
}

impl Drop for RateTurns {
    fn drop(&mut self) {
        self.release();
    }
}

/// Bytes of the longest turn: full frames.
fn bytes_of_turn(kbit_per_s: u32) -> u64 {
    frames_of(kbit_per_s, TURN_FRAMES) as u64 * FULL_FRAME
}

fn burst_of(kbit_per_s: u32) -> Nanos {
    BURST.max(time_of(BURST_FRAMES * FULL_FRAME, kbit_per_s))
}

fn time_of(bytes: u64, kbit_per_s: u32) -> Nanos {
    Nanos(bytes * 8_000_000 / u64::from(kbit_per_s))
}

#[cfg(test)]
mod tests;
