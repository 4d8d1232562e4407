//! Duration of a wait for a copy thread, and the part of it that counts.
//!
//! The part that counts is the loss of others: time in which the worker's core only waits, in which
//! the copy thread computes in the kernel on behalf of its program, or in which it is blocked. Time
//! in which both are ready to run and the machine has no core for them does not count: a worker
//! that waits moves the copy thread to its own core, and offers that core all the time.

use std::time::Duration;

/// How long an access may block. A guess: a disk takes less, and a peer's ACK timeout is seldom
/// shorter.
const BLOCKED_MAX: Duration = Duration::from_millis(20);

/// How long an access may take when the machine has no core for it.
const STARVED_MAX: Duration = Duration::from_millis(500);

/// Time before any attribution: waking a copy thread costs up to 20 us, an access less.
pub(super) const FIRST_LOOK_AFTER: Duration = Duration::from_micros(50);

/// How often it is looked at afterward: that costs some microseconds.
const LOOK_INTERVAL: Duration = Duration::from_millis(1);

/// The awaited access, and the activity meanwhile.
pub(super) trait Scene {
    /// Does something else until it is worth to look again.
    fn step(&mut self);

    /// The one that it waits for shall have the core of the one that waits.
    fn lend_core(&mut self);

    /// Once true, it remains so.
    fn is_done(&mut self) -> bool;

    /// Since the wait began.
    fn waited(&self) -> Duration;

    /// Time of a core used since the first call by the waiting thread or by the awaited one,
    /// whichever is more.
    fn used(&mut self) -> Duration;

    /// Returns true if the awaited thread itself waits, for something other than a core.
    fn is_blocked(&self) -> bool;
}

/// Waits. Says how much of it counts.
///
/// # Errors
/// It takes too long: blocked for [`BLOCKED_MAX`], or as long as more than `most` counts.
pub(super) fn wait(scene: &mut impl Scene, most: Duration) -> Result<Duration, TooLong> {
    let mut next_look = FIRST_LOOK_AFTER;
    while !scene.is_done() {
        scene.step();
        let waited = scene.waited();
        if waited < next_look {
            continue;
        }
        if next_look == FIRST_LOOK_AFTER {
            scene.lend_core();
        }
        // This is far beyond a poll iteration already.
        let used = FIRST_LOOK_AFTER + scene.used();
        let is_held = waited >= BLOCKED_MAX.min(most) && scene.is_blocked();
        // A thread seen asleep may have been done before.
        if (is_held || used > most || waited >= STARVED_MAX) && !scene.is_done() {
            return Err(TooLong(waited));
        }
        next_look = waited + most.saturating_sub(used).clamp(FIRST_LOOK_AFTER, LOOK_INTERVAL);
    }
    let waited = scene.waited();
    Ok(if waited > FIRST_LOOK_AFTER { waited.min(FIRST_LOOK_AFTER + scene.used()) } else { waited })
}

/// Time waited without success.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooLong(pub(super) Duration);

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// A copy thread that is done after some time, in a world where each step takes `step`.
    struct Fake {
        now: Duration,
        step: Duration,
        done_at: Duration,
        blocked: bool,
        /// Hundredths of the time in which the core is used.
        used: u32,
        seen_at: Option<Duration>,
        /// Done, and asleep, in the moment in which it is looked at.
        parks: bool,
        parked: Cell<bool>,
        /// How often.
        lent: u32,
    }

    impl Fake {
        fn done_at(done_at: Duration) -> Self {
            let step = Duration::from_micros(3);
            Self {
                now: Duration::ZERO,
                step,
                done_at,
                blocked: false,
                used: 100,
                seen_at: None,
                parks: false,
                parked: Cell::new(false),
                lent: 0,
            }
        }

        fn wait(&mut self, most: Duration) -> Result<Duration, Duration> {
            wait(self, most).map_err(|TooLong(waited)| waited)
        }
    }

    impl Scene for Fake {
        fn step(&mut self) {
            self.now += self.step;
        }

        fn lend_core(&mut self) {
            self.lent += 1;
        }

        fn is_done(&mut self) -> bool {
            self.now >= self.done_at || self.parked.get()
        }

        fn waited(&self) -> Duration {
            self.now
        }

        fn used(&mut self) -> Duration {
            (self.now - *self.seen_at.get_or_insert(self.now)) * self.used / 100
        }

        fn is_blocked(&self) -> bool {
            self.parked.set(self.parks);
            self.blocked || self.parks
        }
    }

    const LEFT: Duration = Duration::from_millis(200);

    #[test]
    fn all_that_is_waited_counts_when_a_core_is_used() {
        for done_at in [MS / 100, MS / 10, MS, 19 * MS, 199 * MS] {
            let counts = Fake::done_at(done_at).wait(LEFT).expect("below the rest of the budget");
            assert!(counts >= done_at && counts < done_at + MS / 10, "{counts:?} of {done_at:?}");
        }
    }

    #[test]
    fn time_without_a_core_does_not_count() {
        let mut starved = Fake { used: 0, ..Fake::done_at(400 * MS) };
        assert_eq!((starved.wait(LEFT), starved.lent), (Ok(FIRST_LOOK_AFTER), 1));
        let never = Fake { used: 0, ..Fake::done_at(Duration::MAX) }.wait(LEFT).expect_err("it never comes");
        assert!(never >= STARVED_MAX && never < STARVED_MAX + 2 * LOOK_INTERVAL);
    }

    #[test]
    fn a_blocked_thread_is_awaited_until_its_budget_is_spent() {
        for (left, held) in
            [(LEFT, BLOCKED_MAX), (5 * MS, 5 * MS), (MS / 10, MS / 10), (Duration::ZERO, FIRST_LOOK_AFTER)]
        {
            for used in [0, 100] {
                let mut blocked = Fake { blocked: true, used, ..Fake::done_at(Duration::MAX) };
                let waited = blocked.wait(left).expect_err("it never comes");
                assert!(waited >= held && waited < held + 2 * LOOK_INTERVAL, "{waited:?} of {held:?}");
            }
        }
    }

    #[test]
    fn a_computing_thread_is_awaited_until_its_budget_is_spent() {
        for left in [LEFT, 5 * MS, MS, MS / 10] {
            let waited = Fake::done_at(Duration::MAX).wait(left).expect_err("it never comes");
            assert!(waited >= left && waited < left + MS / 10, "{waited:?} of {left:?}");
        }
    }

    #[test]
    fn a_thread_that_finishes_at_the_last_moment_is_not_abandoned() {
        let mut late = Fake { parks: true, ..Fake::done_at(Duration::MAX) };
        assert!(late.wait(LEFT).is_ok());
    }
}
