//! Identifiers that wait for a neighbor, by peer and by user: the neighbors that one user waits for
//! take no turn from those of another.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    vec::Vec,
};
use core::ops::Bound;

use roced_types::AccountId;

use crate::connection::PeerAddress;

/// Identifiers that wait for a neighbor, by their keys.
#[derive(Debug)]
pub(super) struct NeighborWaits<K> {
    by_peer: BTreeMap<PeerAddress, BTreeSet<K>>,
    /// By account.
    accounts: BTreeMap<AccountId, AccountWaits>,
}

/// Peers that the identifiers of a user wait for, each with their number.
#[derive(Debug, Default)]
struct AccountWaits {
    peers: BTreeMap<PeerAddress, u32>,
    /// Those behind it have the next turn.
    last_turn: Option<PeerAddress>,
}

impl<K> Default for NeighborWaits<K> {
    fn default() -> Self {
        Self { by_peer: BTreeMap::new(), accounts: BTreeMap::new() }
    }
}

impl<K: Copy + Ord> NeighborWaits<K> {
    pub(super) fn insert(&mut self, account: AccountId, peer: PeerAddress, key: K) {
        if self.by_peer.entry(peer).or_default().insert(key) {
            *self.accounts.entry(account).or_default().peers.entry(peer).or_insert(0) += 1;
        }
    }

    pub(super) fn remove(&mut self, account: AccountId, peer: PeerAddress, key: K) {
        let Some(keys) = self.by_peer.get_mut(&peer) else { return };
        if !keys.remove(&key) {
            return;
        }
        if keys.is_empty() {
            self.by_peer.remove(&peer);
        }
        let Some(waits) = self.accounts.get_mut(&account) else { return };
        if let Some(count) = waits.peers.get_mut(&peer) {
            *count -= 1;
            if *count == 0 {
                waits.peers.remove(&peer);
            }
        }
        if waits.peers.is_empty() {
            self.accounts.remove(&account);
        }
    }

    /// An identifier that waits for a peer.
    pub(super) fn first_at(&self, peer: PeerAddress) -> Option<K> {
        self.by_peer.get(&peer)?.first().copied()
    }

    /// The next user with identifiers that wait.
    pub(super) fn account_behind(&self, last: Option<AccountId>) -> Option<AccountId> {
        let start = last.map_or(Bound::Unbounded, Bound::Excluded);
        self.accounts.range((start, Bound::Unbounded)).next().map(|(account, _)| *account)
    }

    /// Gives up to `count` of the peers that a user waits for their turn, but for those that `skip`
    /// names. Passes on to the next ones from call to call.
    pub(super) fn take_turns(
        &mut self,
        account: AccountId,
        count: usize,
        skip: impl Fn(PeerAddress) -> bool,
    ) -> Vec<PeerAddress> {
        let Some(waits) = self.accounts.get_mut(&account) else { return Vec::new() };
        let start = waits.last_turn.map_or(Bound::Unbounded, Bound::Excluded);
        let behind = waits.peers.range((start, Bound::Unbounded));
        let before = waits.last_turn.into_iter().flat_map(|last| waits.peers.range(..=last));
        let peers = behind.chain(before).map(|(peer, _)| *peer);
        let taken: Vec<_> = peers.filter(|peer| !skip(*peer)).take(count).collect();
        waits.last_turn = taken.last().copied().or(waits.last_turn);
        taken
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_peer.is_empty() && self.accounts.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use roced_types::DeviceId;

    use super::*;

    fn peer(last: u8) -> PeerAddress {
        PeerAddress { device: DeviceId(0), vlan: None, local: [1; 16], remote: [last; 16] }
    }

    #[test]
    fn each_user_has_turns_and_each_peer_of_a_user() {
        let mut waits = NeighborWaits::default();
        for number in 0..100 {
            waits.insert(AccountId(7), peer(number), u32::from(number));
        }
        waits.insert(AccountId(8), peer(200), 200);
        assert_eq!(
            (waits.account_behind(None), waits.account_behind(Some(AccountId(7)))),
            (Some(AccountId(7)), Some(AccountId(8)))
        );
        assert_eq!(waits.account_behind(Some(AccountId(8))), None);
        let all = |range: core::ops::Range<u8>| range.map(peer).collect::<Vec<_>>();
        assert_eq!(waits.take_turns(AccountId(7), 60, |_| false), all(0..60));
        let second = waits.take_turns(AccountId(7), 60, |other| other == peer(60));
        assert_eq!(second, [all(61..100), all(0..21)].concat());
        assert_eq!(waits.take_turns(AccountId(8), 60, |_| false), [peer(200)]);
        assert_eq!(waits.take_turns(AccountId(8), 60, |_| true), []);
        assert_eq!(waits.take_turns(AccountId(9), 60, |_| false), []);
    }

    #[test]
    fn identifiers_that_wait_for_one_peer_are_one_turn() {
        let mut waits = NeighborWaits::default();
        for number in 1..=3 {
            waits.insert(AccountId(7), peer(1), number);
        }
        waits.insert(AccountId(7), peer(1), 3);
        assert_eq!(waits.take_turns(AccountId(7), 60, |_| false), [peer(1)]);
        for number in 1..=3 {
            assert_eq!((waits.first_at(peer(1)), waits.is_empty()), (Some(number), false));
            waits.remove(AccountId(7), peer(1), number);
            waits.remove(AccountId(7), peer(1), number);
        }
        assert_eq!((waits.first_at(peer(1)), waits.account_behind(None)), (None, None));
        assert!(waits.is_empty());
    }
}
