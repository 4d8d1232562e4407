//! Frames before timers, after a worker stood still: its process was stopped, its virtual machine
//! paused, its core given to others.
//!
//! Answers that came meanwhile wait in the rings. There may be more frames than a poll iteration
//! takes, and the timers of queue pairs with answers behind those would fire first: a
//! retry would be spent, and a connection without retries would fail, with the answer at hand.

use roced_transport::clock::Nanos;

/// Poll iterations that are further apart follow a pause. About the shortest ACK timeout that
/// programs use; after a sleep as long nothing waits, and timers fire at once.
const PAUSE: Nanos = Nanos::from_millis(1);

/// Poll iterations that may take frames before timers fire: as many as empty rings of 16,384
/// frames. A flood that goes on after a pause delays timers for some milliseconds.
const ITERATIONS_MAX: u32 = 256;

/// Whether a worker has frames left to take that came while it stood still.
#[derive(Debug)]
pub(super) struct CatchUp {
    polled_at: Nanos,
    /// Poll iterations that may hold timers yet.
    left: u32,
    /// A queue gave as many frames as one iteration takes: there may be more.
    is_behind: bool,
}

impl CatchUp {
    pub(super) const fn new(now: Nanos) -> Self {
        Self { polled_at: now, left: 0, is_behind: false }
    }

    /// A poll iteration begins.
    #[inline]
    pub(super) fn on_poll(&mut self, now: Nanos) {
        if now - self.polled_at > PAUSE {
            self.left = ITERATIONS_MAX;
        }
        (self.polled_at, self.is_behind) = (now, false);
    }

    /// A queue gave `taken` frames, of `most`.
    #[inline]
    pub(super) fn on_taken(&mut self, taken: usize, most: usize) {
        self.is_behind |= taken == most;
    }

    /// All frames of this iteration were taken: whether timers wait for those of the next.
    #[inline]
    pub(super) fn holds_timers(&mut self) -> bool {
        self.left = if self.is_behind { self.left.saturating_sub(1) } else { 0 };
        self.left > 0
    }
}
