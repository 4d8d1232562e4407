//! Pauses of a thread that yields its core while it polls: client and worker alike.
//!
//! `sched_yield` gives the core to the other threads that can run on it. Client and worker use it
//! for microseconds and wait again; a computing thread uses its time slice, several of them one
//! slice each, and Linux 6.6 to 6.18 may take a thread that yields often for one that wants little:
//! it waits for up to a second. After a long yield a thread therefore does not yield for a while,
//! and for twice as long the next time.

/// The first pause: a long yield may have been the beginning of a computation.
const SHORTEST_NS: u64 = 1_000_000;
/// The longest pause: a small part of the time may be lost to yields.
const LONGEST_NS: u64 = 1_000_000_000;

/// Pauses between yields of one thread. Times are in nanoseconds of one clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct YieldPause {
    /// A yield that took longer was used by a computing thread.
    pub long_ns: u64,
    /// No yield before that.
    pub not_before_ns: u64,
    /// The pause after the next long yield.
    pub next_ns: u64,
}

impl YieldPause {
    /// State of a thread that has not yielded yet. Yields over `long_ns` are long.
    pub const fn new(long_ns: u64) -> Self {
        Self { long_ns, not_before_ns: 0, next_ns: SHORTEST_NS }
    }

    /// Records that the thread has its core again at `now_ns`, after a yield that began at
    /// `since_ns`.
    pub fn on_return(&mut self, since_ns: u64, now_ns: u64) {
        if now_ns.saturating_sub(since_ns) > self.long_ns {
            self.not_before_ns = now_ns.saturating_add(self.next_ns);
            self.next_ns = (self.next_ns * 2).min(LONGEST_NS);
        } else {
            self.next_ns = SHORTEST_NS;
        }
    }

    /// Returns true if the thread may yield at `now_ns`.
    pub const fn may_yield(&self, now_ns: u64) -> bool {
        now_ns >= self.not_before_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn long_yields_are_made_ever_more_rarely() {
        let mut pause = YieldPause::new(MS / 2);
        assert!(pause.may_yield(0));
        for (now, expected) in [(10, 1), (20, 2), (30, 4)] {
            pause.on_return((now - 3) * MS, now * MS);
            assert!(!pause.may_yield((now + expected) * MS - 1) && pause.may_yield((now + expected) * MS));
        }
        pause.on_return(40 * MS, 40 * MS + 10_000);
        assert!(pause.may_yield(41 * MS), "a short one causes no pause");
        pause.on_return(50 * MS, 53 * MS);
        assert!(pause.may_yield(54 * MS), "and ends the longer pauses");
        for step in 0..40 {
            pause.on_return((100 + step) * MS, (103 + step) * MS);
        }
        assert!(pause.may_yield((103 + 39 + 1_000) * MS), "a pause has an end");
    }
}
