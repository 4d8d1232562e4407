//! By these workers tell management datagrams apart: numbers of connections with their peers, and
//! addresses of known peers. The control thread writes them.

use std::{
    hash::{BuildHasher as _, RandomState},
    sync::atomic::{AtomicU8, Ordering},
};

use roced_cm::{
    CmObserver, PeerAddress,
    wire::{CommId, MAD_BYTES, receiver_number},
};

/// Places of the numbers for each connection that there may be: a number that an unknown peer makes
/// up shares one with a probability of at most an eighth, and that while there are all. A reload
/// with another limit does not change it.
const PLACES_OF_CONNECTION: usize = 8;

/// Fewest and most places of the numbers: 4 KiB and 8 MiB. By default there are 1 MiB.
const NUMBER_PLACES: [usize; 2] = [1 << 12, 1 << 23];

/// Places of the known peers: of 4,096, six of a hundred addresses that an unknown peer makes up
/// share one.
const PEER_PLACES: usize = 1 << 16;

/// A set that other threads read: it has all that was added, and some others.
///
/// Each member counts in its place. One thread writes; no other memory is ordered by it.
#[derive(Debug)]
struct CountingFilter {
    /// Members of each place, of which there are a power of two. One that has ever had 255 stays
    /// full.
    counts: Box<[AtomicU8]>,
}

impl CountingFilter {
    /// An empty set of `places`, rounded up to a power of two.
    fn new(places: usize) -> Self {
        Self { counts: (0..places.next_power_of_two()).map(|_| AtomicU8::new(0)).collect() }
    }

    fn count(&self, hash: u64) -> &AtomicU8 {
        &self.counts[hash as usize & (self.counts.len() - 1)]
    }

    fn add(&self, hash: u64) {
        let count = self.count(hash);
        count.store(count.load(Ordering::Relaxed).saturating_add(1), Ordering::Relaxed);
    }

    /// Removes a member that was added.
    fn remove(&self, hash: u64) {
        let count = self.count(hash);
        let members = count.load(Ordering::Relaxed);
        debug_assert!(members > 0, "not a member");
        if members != u8::MAX {
            count.store(members.saturating_sub(1), Ordering::Relaxed);
        }
    }

    fn may_contain(&self, hash: u64) -> bool {
        self.count(hash).load(Ordering::Relaxed) > 0
    }
}

/// Numbers and peers. An address is its hash, with a random key.
#[derive(Debug)]
pub struct MadFilters {
    numbers: CountingFilter,
    peers: CountingFilter,
    hash: RandomState,
}

impl MadFilters {
    /// Without members, for so many connections.
    pub fn new(connections_max: usize) -> Self {
        let [fewest, most] = NUMBER_PLACES;
        let numbers = connections_max.saturating_mul(PLACES_OF_CONNECTION).clamp(fewest, most);
        Self {
            numbers: CountingFilter::new(numbers),
            peers: CountingFilter::new(PEER_PLACES),
            hash: RandomState::new(),
        }
    }

    /// Hash of an address, by its GID.
    pub(super) fn hash_of(&self, remote: &[u8; 16]) -> u64 {
        self.hash.hash_one(remote)
    }

    /// Whether a datagram of the address may name a connection with it.
    pub(super) fn may_be_answer(&self, address: u64, bytes: &[u8; MAD_BYTES]) -> bool {
        receiver_number(bytes).is_some_and(|id| self.numbers.may_contain(number_of(address, id)))
    }

    /// Whether the address may be that of a known peer.
    pub(super) fn may_be_known(&self, address: u64) -> bool {
        self.peers.may_contain(address)
    }

    /// Known peers, each as often as it was added.
    #[cfg(test)]
    pub(crate) fn peers(&self) -> u64 {
        self.peers.counts.iter().map(|count| u64::from(count.load(Ordering::Relaxed))).sum()
    }

    /// Adds a known peer, for a reason of the caller's.
    pub fn add_peer(&self, remote: &[u8; 16]) {
        self.peers.add(self.hash_of(remote));
    }

    /// Takes back one [`Self::add_peer`] of this peer.
    pub fn remove_peer(&self, remote: &[u8; 16]) {
        self.peers.remove(self.hash_of(remote));
    }
}

/// A number of a connection with an address: a number is of no use to another one.
fn number_of(address: u64, id: CommId) -> u64 {
    address ^ u64::from(id.0)
}

impl CmObserver for MadFilters {
    fn on_number(&self, id: CommId, peer: &PeerAddress) {
        self.numbers.add(number_of(self.hash_of(&peer.remote), id));
    }

    fn on_number_gone(&self, id: CommId, peer: &PeerAddress) {
        self.numbers.remove(number_of(self.hash_of(&peer.remote), id));
    }

    fn on_connected(&self, peer: &PeerAddress) {
        self.add_peer(&peer.remote);
    }

    fn on_disconnected(&self, peer: &PeerAddress) {
        self.remove_peer(&peer.remote);
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
        (0..255).for_each(|hash| filter.remove(hash));
        assert!(filter.may_contain(0));
    }

    #[test]
    fn numbers_have_places_by_the_limit_of_connections() {
        let places = |connections| MadFilters::new(connections).numbers.counts.len();
        let expected = [1 << 12, 1 << 12, 1 << 13, 1 << 20, 1 << 23, 1 << 23];
        assert_eq!([0, 1, 1000, 1 << 17, 1 << 20, usize::MAX].map(places), expected);
    }
}
