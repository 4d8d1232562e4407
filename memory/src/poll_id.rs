//! Identities of poll iterations.

use std::sync::atomic::{AtomicU64, Ordering};

/// Workers that there were, and the control thread.
static WORKERS: AtomicU64 = AtomicU64::new(1);

/// Turns of the control thread, of which each look at memory is one.
static LOOKS: AtomicU64 = AtomicU64::new(0);

/// Identity of a poll iteration of a worker, unique among all workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollId(u64);

impl PollId {
    /// Bits of a poll iteration's number; the worker's lies above. The daemon ends before they do.
    const TURN_BITS: u32 = 48;

    /// The first poll iteration of one more worker.
    pub fn first() -> Self {
        Self(WORKERS.fetch_add(1, Ordering::Relaxed) << Self::TURN_BITS)
    }

    /// When the control thread looks at something.
    pub(crate) fn of_control() -> Self {
        Self(LOOKS.fetch_add(1, Ordering::Relaxed))
    }

    /// The same worker's next.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// The worker.
    pub(crate) const fn worker(self) -> u64 {
        self.0 >> Self::TURN_BITS
    }

    /// Of how many there are moments, so far.
    pub(crate) fn workers() -> usize {
        WORKERS.load(Ordering::Relaxed) as usize
    }
}
