//! Neighbors: the MAC address behind an IP address, as the kernel's own ARP and neighbor discovery
//! find it.

use std::{collections::BTreeMap, io, net::IpAddr};

use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState},
};
use roced_xdp::netlink::Requests;

/// The kernel's state of a neighbor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Neighbor {
    /// Its MAC address. `stale`: nothing has confirmed it for a while.
    Known { mac: [u8; 6], stale: bool },
    /// It is being asked for.
    Asked,
    /// It does not answer.
    Silent,
}

/// A neighbor: its interface and address.
pub(super) type NeighborKey = (u32, IpAddr);

/// News of the kernel about a neighbor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NeighborNews {
    pub(super) neighbor: NeighborKey,
    pub(super) change: NeighborChange,
    /// The kernel does not look for it, or no longer.
    pub(super) is_verdict: bool,
}

/// How a neighbor is reached, compared with before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NeighborChange {
    /// As before.
    None,
    /// By another MAC address.
    Mac,
    /// It is known now, or no longer.
    Known,
}

impl NeighborChange {
    fn between(before: Option<Neighbor>, now: Option<Neighbor>) -> Self {
        match (before, now) {
            (Some(Neighbor::Known { mac: before, .. }), Some(Neighbor::Known { mac, .. })) => {
                if before == mac {
                    Self::None
                } else {
                    Self::Mac
                }
            }
            (Some(Neighbor::Silent), Some(Neighbor::Silent))
            | (Some(Neighbor::Asked) | None, Some(Neighbor::Asked) | None) => Self::None,
            _ => Self::Known,
        }
    }
}

/// All neighbors by interface and address.
#[derive(Debug, Default)]
pub(super) struct Neighbors(BTreeMap<NeighborKey, Neighbor>);

impl Neighbors {
    /// A neighbor is, or has changed.
    pub(super) fn set(&mut self, message: &NeighbourMessage) -> Option<NeighborNews> {
        let key = key_of(message)?;
        let mac = message.attributes.iter().find_map(|attribute| match attribute {
            NeighbourAttribute::LinkLayerAddress(mac) => mac.first_chunk().copied(),
            _ => None,
        });
        let neighbor = match (message.header.state, mac) {
            (NeighbourState::Failed, _) => Neighbor::Silent,
            (NeighbourState::Incomplete | NeighbourState::None, _) | (_, None) => Neighbor::Asked,
            (state, Some(mac)) => Neighbor::Known { mac, stale: state == NeighbourState::Stale },
        };
        let change = NeighborChange::between(self.0.insert(key, neighbor), Some(neighbor));
        Some(NeighborNews { neighbor: key, change, is_verdict: neighbor != Neighbor::Asked })
    }

    /// A neighbor is forgotten. The kernel does not tell of those that it looks for, only of their
    /// end.
    pub(super) fn remove(&mut self, message: &NeighbourMessage) -> Option<NeighborNews> {
        let key = key_of(message)?;
        let change = NeighborChange::between(self.0.remove(&key), None);
        Some(NeighborNews { neighbor: key, change, is_verdict: true })
    }

    pub(super) fn get(&self, ifindex: u32, address: IpAddr) -> Option<Neighbor> {
        self.0.get(&(ifindex, address)).copied()
    }

    /// The kernel was made to ask. It does not tell that it does, only how it ends: until then its
    /// earlier verdict is none.
    pub(super) fn set_asked(&mut self, ifindex: u32, address: IpAddr) {
        match self.0.get_mut(&(ifindex, address)) {
            Some(Neighbor::Known { stale, .. }) => *stale = false,
            Some(neighbor @ Neighbor::Silent) => *neighbor = Neighbor::Asked,
            Some(Neighbor::Asked) | None => {}
        }
    }
}

/// The neighbor of a message; `None` of an entry for others.
fn key_of(message: &NeighbourMessage) -> Option<NeighborKey> {
    if message.header.flags.contains(NeighbourFlags::Proxy) {
        return None;
    }
    let address = message.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::Destination(NeighbourAddress::Inet(address)) => Some((*address).into()),
        NeighbourAttribute::Destination(NeighbourAddress::Inet6(address)) => Some((*address).into()),
        _ => None,
    });
    Some((message.header.ifindex, address?))
}

/// Makes the kernel ask for a neighbor, or confirm one that is stale, as if it had a packet for it
/// (`NTF_USE`).
pub(super) fn ask(requests: &mut Requests, ifindex: u32, address: IpAddr) -> io::Result<()> {
    let mut question = entry(ifindex, address);
    question.header.flags = NeighbourFlags::Use;
    requests.create(RouteNetlinkMessage::NewNeighbour(question))
}

/// Makes the kernel forget a neighbor that did not answer, which it would keep in its table for up
/// to 15 s. It looks for it again as soon as it has a packet for it.
pub(super) fn free(requests: &mut Requests, ifindex: u32, address: IpAddr) -> io::Result<()> {
    match requests.set(RouteNetlinkMessage::DelNeighbour(entry(ifindex, address))) {
        // It has freed it by itself.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

fn entry(ifindex: u32, address: IpAddr) -> NeighbourMessage {
    let mut entry = NeighbourMessage::default();
    entry.header.family = match address {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    };
    entry.header.ifindex = ifindex;
    entry.header.state = NeighbourState::None;
    entry.attributes.push(NeighbourAttribute::Destination(match address {
        IpAddr::V4(address) => NeighbourAddress::Inet(address),
        IpAddr::V6(address) => NeighbourAddress::Inet6(address),
    }));
    entry
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));
    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

    fn message(state: NeighbourState, mac: Option<[u8; 6]>) -> NeighbourMessage {
        let mut message = NeighbourMessage::default();
        message.header.ifindex = 3;
        message.header.state = state;
        message.attributes.push(NeighbourAttribute::Destination(ADDRESS.into()));
        message.attributes.extend(mac.map(|mac| NeighbourAttribute::LinkLayerAddress(mac.to_vec())));
        message
    }

    fn after(state: NeighbourState, mac: Option<[u8; 6]>) -> Option<Neighbor> {
        let mut neighbors = Neighbors::default();
        neighbors.set(&message(state, mac));
        assert_eq!(neighbors.get(4, ADDRESS), None, "not on another interface");
        neighbors.get(3, ADDRESS)
    }

    #[test]
    fn the_states_that_have_an_address_are_usable_and_no_others() {
        use NeighbourState as S;
        for state in [S::Reachable, S::Delay, S::Probe, S::Permanent, S::Noarp] {
            assert_eq!(after(state, Some(MAC)), Some(Neighbor::Known { mac: MAC, stale: false }), "{state}");
        }
        assert_eq!(after(S::Stale, Some(MAC)), Some(Neighbor::Known { mac: MAC, stale: true }));
        // The kernel remembers the last address of one that fails.
        assert_eq!(after(S::Failed, Some(MAC)), Some(Neighbor::Silent));
        assert_eq!(after(S::Incomplete, Some(MAC)), Some(Neighbor::Asked));
        assert_eq!(after(S::Reachable, None), Some(Neighbor::Asked));
    }

    #[test]
    fn an_entry_for_others_is_no_neighbor() {
        let mut neighbors = Neighbors::default();
        let mut proxy = message(NeighbourState::Permanent, Some(MAC));
        proxy.header.flags = NeighbourFlags::Proxy;
        neighbors.set(&proxy);
        assert_eq!(neighbors.get(3, ADDRESS), None);
        neighbors.set(&message(NeighbourState::Reachable, Some(MAC)));
        assert_eq!(neighbors.remove(&proxy), None);
        assert!(neighbors.get(3, ADDRESS).is_some());
    }

    #[test]
    fn only_another_way_to_a_neighbor_is_a_change() {
        use NeighbourState as S;
        let mut neighbors = Neighbors::default();
        let other = Some([2, 0, 0, 0, 0, 3]);
        for (state, mac, change, is_verdict) in [
            (S::Incomplete, None, NeighborChange::None, false),
            (S::Failed, None, NeighborChange::Known, true),
            (S::Failed, Some(MAC), NeighborChange::None, true),
            (S::Reachable, Some(MAC), NeighborChange::Known, true),
            (S::Stale, Some(MAC), NeighborChange::None, true),
            (S::Stale, other, NeighborChange::Mac, true),
            (S::Probe, other, NeighborChange::None, true),
            (S::Incomplete, None, NeighborChange::Known, false),
        ] {
            let news = NeighborNews { neighbor: (3, ADDRESS), change, is_verdict };
            assert_eq!(neighbors.set(&message(state, mac)), Some(news), "{state}");
        }
        for is_known in [true, false] {
            let news = neighbors.remove(&message(S::Failed, None)).expect("a neighbor");
            assert_eq!((news.change, news.is_verdict), (NeighborChange::None, true), "{is_known}");
        }
    }

    #[test]
    fn being_asked_ends_an_older_verdict_and_is_done_once_for_a_stale_one() {
        let mut neighbors = Neighbors::default();
        neighbors.set(&message(NeighbourState::Failed, None));
        neighbors.set_asked(3, ADDRESS);
        assert_eq!(neighbors.get(3, ADDRESS), Some(Neighbor::Asked));
        neighbors.set(&message(NeighbourState::Stale, Some(MAC)));
        assert_eq!(neighbors.get(3, ADDRESS), Some(Neighbor::Known { mac: MAC, stale: true }));
        neighbors.set_asked(3, ADDRESS);
        let confirmed = Some(Neighbor::Known { mac: MAC, stale: false });
        assert_eq!(neighbors.get(3, ADDRESS), confirmed, "the kernel tells when it turns out otherwise");
        neighbors.remove(&message(NeighbourState::Stale, Some(MAC)));
        assert_eq!(neighbors.get(3, ADDRESS), None);
    }
}
