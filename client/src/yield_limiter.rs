//! Yielding the core while a thread polls before it sleeps.
//!
//! With few cores, the thread may wait for the daemon's worker on its own core, and a yield lets
//! it work. Where other threads compute, a yield lasts for their time slices, several
//! milliseconds each. After such a yield the thread does not yield for a while, and for twice as
//! long the next time.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

/// A yield that took longer was used by a thread that computes: the shortest time slice of Linux is
/// 0.7 ms.
const LONG_YIELD: Duration = Duration::from_micros(500);
const SHORTEST_PAUSE_NS: u64 = 1_000_000;
const LONGEST_PAUSE_NS: u64 = 1_000_000_000;

/// Yields, unless that takes long. Threads may share one.
#[derive(Debug)]
pub(crate) struct YieldLimiter {
    since: Instant,
    /// Nanoseconds from `since`: no yield before that.
    not_before: AtomicU64,
    /// The pause after the next long yield, ns.
    next_pause: AtomicU64,
}

impl YieldLimiter {
    pub(crate) fn new() -> Self {
        Self { since: Instant::now(), not_before: AtomicU64::new(0), next_pause: AtomicU64::new(SHORTEST_PAUSE_NS) }
    }

    /// Lets other threads run. Returns false, without doing so, while they compute: the thread had
    /// better sleep, for the kernel prefers one that wakes.
    pub(crate) fn yield_core(&self) -> bool {
        let before = self.since.elapsed();
        if !self.may_yield(before) {
            return false;
        }
        thread::yield_now();
        self.on_return(before, self.since.elapsed());
        true
    }

    fn may_yield(&self, now: Duration) -> bool {
        now.as_nanos() as u64 >= self.not_before.load(Ordering::Relaxed)
    }

    fn on_return(&self, before: Duration, now: Duration) {
        if now - before < LONG_YIELD {
            return self.next_pause.store(SHORTEST_PAUSE_NS, Ordering::Relaxed);
        }
        let pause = self.next_pause.load(Ordering::Relaxed);
        self.not_before.store(now.as_nanos() as u64 + pause, Ordering::Relaxed);
        self.next_pause.store((pause * 2).min(LONGEST_PAUSE_NS), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_yields_are_made_ever_more_rarely() {
        let limiter = YieldLimiter::new();
        let at = Duration::from_millis;
        assert!(limiter.may_yield(at(0)));
        for (now, pause) in [(10, 1), (20, 2), (30, 4)] {
            limiter.on_return(at(now - 3), at(now));
            assert!(
                !limiter.may_yield(at(now + pause) - Duration::from_nanos(1)) && limiter.may_yield(at(now + pause))
            );
        }
        limiter.on_return(at(40), at(40) + Duration::from_micros(10));
        assert!(limiter.may_yield(at(41)), "a short one causes no pause");
        limiter.on_return(at(50), at(53));
        assert!(limiter.may_yield(at(54)), "and ends the longer pauses");
        for step in 0..40 {
            limiter.on_return(at(100 + step), at(103 + step));
        }
        assert!(limiter.may_yield(at(103 + 39 + 1_000)), "a pause has an end");
    }
}
