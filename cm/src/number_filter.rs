//! Numbers in use, for threads that sort datagrams before the connection manager sees them.

use alloc::boxed::Box;
use core::sync::atomic::{AtomicU8, Ordering};

use crate::wire::{CommId, MAD_BYTES, receiver_number};

/// Places: of 10,000 connections, four of a hundred numbers that a stranger makes up share one.
const PLACES: usize = 1 << 18;

/// A set of which other threads may read: it has all that was added, and some others.
///
/// Each member counts in its place, of which there are a power of two. One thread writes.
#[derive(Debug)]
pub struct CountingFilter {
    /// Members of each place. One that has ever had more than a byte counts stays full.
    counts: Box<[AtomicU8]>,
}

impl CountingFilter {
    /// An empty set of `places`, rounded up to a power of two.
    pub fn new(places: usize) -> Self {
        Self { counts: (0..places.next_power_of_two()).map(|_| AtomicU8::new(0)).collect() }
    }

    fn count(&self, hash: usize) -> &AtomicU8 {
        &self.counts[hash & (self.counts.len() - 1)]
    }

    /// Adds a member by its hash.
    pub fn add(&self, hash: usize) {
        let count = self.count(hash);
        count.store(count.load(Ordering::Relaxed).saturating_add(1), Ordering::Relaxed);
    }

    /// Removes a member that was added.
    pub fn remove(&self, hash: usize) {
        let count = self.count(hash);
        let members = count.load(Ordering::Relaxed);
        if members != u8::MAX {
            count.store(members - 1, Ordering::Relaxed);
        }
    }

    /// Whether there may be a member of that hash. No memory but the filter's own is ordered by it.
    pub fn may_contain(&self, hash: usize) -> bool {
        self.count(hash).load(Ordering::Relaxed) > 0
    }
}

/// The numbers of a host's connections.
#[derive(Debug)]
pub struct NumberFilter(CountingFilter);

impl Default for NumberFilter {
    fn default() -> Self {
        Self(CountingFilter::new(PLACES))
    }
}

impl NumberFilter {
    /// Numbers are random: they are their own hash.
    pub(crate) fn add(&self, id: CommId) {
        self.0.add(id.0 as usize);
    }

    pub(crate) fn remove(&self, id: CommId) {
        self.0.remove(id.0 as usize);
    }

    /// No number is in use.
    pub fn is_empty(&self) -> bool {
        self.0.counts.iter().all(|count| count.load(Ordering::Relaxed) == 0)
    }

    /// Whether a datagram may name a connection of this host. Not: whether it comes from its peer.
    pub fn may_be_named(&self, bytes: &[u8; MAD_BYTES]) -> bool {
        receiver_number(bytes).is_some_and(|id| self.0.may_contain(id.0 as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_holds_until_its_last_member_is_gone() {
        let filter = CountingFilter::new(5);
        assert_eq!(filter.counts.len(), 8);
        filter.add(3);
        filter.add(11);
        assert!(filter.may_contain(19) && !filter.may_contain(4));
        filter.remove(3);
        assert!(filter.may_contain(11));
        filter.remove(11);
        assert!(!filter.may_contain(11));
    }

    #[test]
    fn a_place_that_was_full_stays_so() {
        let filter = CountingFilter::new(1);
        (0..300).for_each(|hash| filter.add(hash));
        (0..300).for_each(|hash| filter.remove(hash));
        assert!(filter.may_contain(0));
    }
}
