//! When a worker stops to yield its core.
//!
//! `sched_yield` gives the core to the other threads that can run on it. Clients use it for
//! microseconds and wait again; a computing thread uses its time slice, several of them one slice
//! each, and Linux 6.6 to 6.18 may take a thread that yields often for one that wants little: it
//! waits for up to a second. After a long yield a worker therefore does not yield for a while, and
//! for twice as long the next time.

use roced_transport::clock::Nanos;

/// The first pause: a long yield may have been the beginning of a computation.
const SHORTEST: Nanos = Nanos::from_millis(1);
/// The longest pause: a small part of the time may be lost to yields.
const LONGEST: Nanos = Nanos::from_millis(1_000);

/// Whether to yield.
#[derive(Clone, Copy, Debug)]
pub(super) struct YieldPause {
    /// A yield that took longer was used by a computing thread.
    long: Nanos,
    /// No yield before that.
    not_before: Nanos,
    /// The pause after the next long yield.
    next: Nanos,
}

impl YieldPause {
    /// Of a worker that has not yielded yet. Yields over `long` are long.
    pub(super) const fn new(long: Nanos) -> Self {
        Self { long, not_before: Nanos(0), next: SHORTEST }
    }

    /// The worker has its core again at `now`, after a yield that began at `since`.
    pub(super) fn on_return(&mut self, since: Nanos, now: Nanos) {
        if now - since > self.long {
            self.not_before = Nanos(now.0.saturating_add(self.next.0));
            self.next = Nanos(self.next.0 * 2).min(LONGEST);
        } else {
            self.next = SHORTEST;
        }
    }

    /// Whether the worker may yield at `now`.
    pub(super) fn may_yield(&self, now: Nanos) -> bool {
        now >= self.not_before
    }
}
