//! Requests of strangers: a host that has never answered may not exist, and then its request waits
//! for a confirmation until its time is over.

use alloc::collections::BTreeMap;

use super::IdKey;

/// Unconfirmed requests of strangers that a listener has at a time. Its program has a queue pair for
/// each, and a session has 256 completion channels by default.
pub(super) const STRANGERS_MAX: u32 = 128;

/// Identifiers of requests of strangers that are not confirmed yet, by listener.
#[derive(Debug, Default)]
pub(super) struct Strangers {
    listeners: BTreeMap<IdKey, IdKey>,
    counts: BTreeMap<IdKey, u32>,
}

impl Strangers {
    pub(super) fn add(&mut self, request: IdKey, listener: IdKey) {
        self.listeners.insert(request, listener);
        *self.counts.entry(listener).or_insert(0) += 1;
    }

    /// Its host has confirmed, or the request is over. Others are ignored.
    pub(super) fn remove(&mut self, request: IdKey) {
        let Some(listener) = self.listeners.remove(&request) else { return };
        let Some(count) = self.counts.get_mut(&listener) else { return };
        *count -= 1;
        if *count == 0 {
            self.counts.remove(&listener);
        }
    }

    /// Those of a listener.
    pub(super) fn count(&self, listener: IdKey) -> u32 {
        self.counts.get(&listener).copied().unwrap_or(0)
    }

    /// Whether the listener of a request has so many that each is waited for only shortly.
    pub(super) fn are_many_beside(&self, request: IdKey) -> bool {
        self.listeners.get(&request).is_some_and(|listener| self.count(*listener) > STRANGERS_MAX / 2)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.listeners.is_empty() && self.counts.is_empty()
    }
}
