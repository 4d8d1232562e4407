//! Events that were given out and those that were acknowledged: an object may not end between.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Counts for one object.
#[derive(Debug, Default)]
pub(crate) struct Acknowledgments {
    /// Given out and not acknowledged.
    open: Mutex<u64>,
    none_open: Condvar,
}

impl Acknowledgments {
    /// An event was given out.
    pub(crate) fn give(&self) {
        *self.lock() += 1;
    }

    /// So many were acknowledged.
    pub(crate) fn acknowledge(&self, events: u32) {
        let mut open = self.lock();
        *open = open.saturating_sub(events.into());
        if *open == 0 {
            self.none_open.notify_all();
        }
    }

    /// Waits until all are acknowledged, as verbs require when the object is destroyed.
    pub(crate) fn wait(&self) {
        let open = self.lock();
        drop(self.none_open.wait_while(open, |open| *open > 0));
    }

    fn lock(&self) -> MutexGuard<'_, u64> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
