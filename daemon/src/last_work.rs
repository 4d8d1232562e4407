//! How long the last work of a queue pair or a session is sent, before it ends.
//!
//! One that finds no room waits a while, so that the control thread makes no turns without progress:
//! a NIC may be slow, and may also take nothing from now on.

use std::time::{Duration, Instant};

/// In all.
pub(crate) const LAST_WORK_TIME_MAX: Duration = Duration::from_secs(1);

/// After a batch without frames.
const PAUSE: Duration = Duration::from_millis(1);

/// A batch that workers have sent.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SentBatch {
    pub(crate) frames: u32,
    pub(crate) is_left: bool,
}

/// Last work while it is sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LastWork {
    since: Instant,
    due: Instant,
    /// Frames that it may have yet.
    frames: u32,
}

impl LastWork {
    /// Its first batch is due; batches are sent until they have so many frames.
    pub(crate) fn new(frames: u32) -> Self {
        let since = Instant::now();
        Self { since, due: since, frames }
    }

    /// When the next batch is to be sent, or was.
    pub(crate) const fn due(&self) -> Instant {
        self.due
    }

    /// A batch was sent; true if another one follows.
    pub(crate) fn goes_on(&mut self, batch: SentBatch) -> bool {
        let now = Instant::now();
        self.frames = self.frames.saturating_sub(batch.frames);
        let goes_on = batch.is_left && self.frames > 0 && now < self.since + LAST_WORK_TIME_MAX;
        self.due = if goes_on && batch.frames == 0 { now + PAUSE } else { now };
        goes_on
    }
}
