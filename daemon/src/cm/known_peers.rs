//! Peers of which the address is no forgery: they have named a connection of ours, by a number that
//! only its peer learns.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Instant,
};

use roced_cm::PeerAddress;

use crate::worker::mad_filters::MadFilters;

/// Known peers. A guess; those that were heard the longest ago are forgotten.
const KNOWN_MAX: usize = 1 << 12;

/// Known peers, with the time at which they were heard last.
#[derive(Debug)]
pub(super) struct KnownPeers {
    heard: BTreeMap<PeerAddress, Instant>,
    oldest: BTreeSet<(Instant, PeerAddress)>,
    /// Their addresses, for workers.
    filters: Arc<MadFilters>,
}

impl KnownPeers {
    /// No peer is known yet; `filters` have those that are.
    pub(super) fn new(filters: Arc<MadFilters>) -> Self {
        Self { heard: BTreeMap::new(), oldest: BTreeSet::new(), filters }
    }

    /// A peer has named a connection of ours.
    pub(super) fn heard(&mut self, peer: PeerAddress, now: Instant) {
        if let Some(before) = self.heard.insert(peer, now) {
            self.oldest.remove(&(before, peer));
        } else {
            self.filters.add_peer(&peer.remote);
        }
        self.oldest.insert((now, peer));
        if self.heard.len() > KNOWN_MAX
            && let Some((_, oldest)) = self.oldest.pop_first()
        {
            self.heard.remove(&oldest);
            self.filters.remove_peer(&oldest.remote);
        }
    }

    /// Whether a peer is known.
    pub(super) fn contains(&self, peer: &PeerAddress) -> bool {
        self.heard.contains_key(peer)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use roced_types::DeviceId;

    use super::*;

    fn peer(host: u16) -> PeerAddress {
        let [high, low] = host.to_be_bytes();
        let remote = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, high, low];
        PeerAddress { device: DeviceId(0), vlan: None, local: [1; 16], remote }
    }

    #[test]
    fn the_peer_that_was_silent_the_longest_is_forgotten_first() {
        let filters = Arc::new(MadFilters::new(0));
        let (mut known, start) = (KnownPeers::new(Arc::clone(&filters)), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        for host in 0..=KNOWN_MAX as u16 {
            known.heard(peer(host), at(host.into()));
            // The first is heard again and again.
            known.heard(peer(0), at(host.into()));
        }
        assert!(known.contains(&peer(0)) && !known.contains(&peer(1)));
        assert_eq!(filters.peers(), KNOWN_MAX as u64, "workers know the same");
        assert_eq!((known.heard.len(), known.oldest.len()), (KNOWN_MAX, KNOWN_MAX));
    }
}
