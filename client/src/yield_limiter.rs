//! Yielding the core while a thread polls before it sleeps.
//!
//! With few cores, the thread may wait for the daemon's worker on its own core, and a yield lets
//! it work. Where other threads compute, a yield lasts for their time slices, several
//! milliseconds each: [`YieldPause`].

use std::{
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::Instant,
};

use roced_abi::yield_pause::YieldPause;

/// A yield that took longer was used by a thread that computes: the shortest time slice of Linux is
/// 0.7 ms.
const LONG_YIELD_NS: u64 = 500_000;

/// Yields, unless that takes long. Threads may share one.
#[derive(Debug)]
pub(crate) struct YieldLimiter {
    since: Instant,
    /// The pause, in nanoseconds from `since`. Threads that change both words at once may lose a
    /// change.
    not_before_ns: AtomicU64,
    next_pause_ns: AtomicU64,
}

impl YieldLimiter {
    pub(crate) fn new() -> Self {
        let YieldPause { not_before_ns, next_ns, .. } = YieldPause::new(LONG_YIELD_NS);
        Self { since: Instant::now(), not_before_ns: not_before_ns.into(), next_pause_ns: next_ns.into() }
    }

    /// Lets other threads run, and returns the time after that; it is `now` before. Returns `None`,
    /// without a yield, while they compute: the thread had better sleep, because the kernel prefers
    /// one that wakes.
    pub(crate) fn yield_core(&self, now: Instant) -> Option<Instant> {
        let (mut pause, before_ns) = (self.pause(), self.nanos(now));
        if !pause.may_yield(before_ns) {
            return None;
        }
        thread::yield_now();
        let after = Instant::now();
        pause.on_return(before_ns, self.nanos(after));
        self.not_before_ns.store(pause.not_before_ns, Ordering::Relaxed);
        self.next_pause_ns.store(pause.next_ns, Ordering::Relaxed);
        Some(after)
    }

    fn nanos(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.since).as_nanos() as u64
    }

    fn pause(&self) -> YieldPause {
        YieldPause {
            long_ns: LONG_YIELD_NS,
            not_before_ns: self.not_before_ns.load(Ordering::Relaxed),
            next_ns: self.next_pause_ns.load(Ordering::Relaxed),
        }
    }
}
