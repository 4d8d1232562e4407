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

/// All neighbors by interface and address.
#[derive(Debug, Default)]
pub(super) struct Neighbors(BTreeMap<(u32, IpAddr), Neighbor>);

impl Neighbors {
    /// A neighbor is, or has changed: which, by interface and address.
    pub(super) fn set(&mut self, message: &NeighbourMessage) -> Option<(u32, IpAddr)> {
        let address = address_of(message)?;
        if message.header.flags.contains(NeighbourFlags::Proxy) {
            return None;
        }
        let mac = message.attributes.iter().find_map(|attribute| match attribute {
            NeighbourAttribute::LinkLayerAddress(mac) => mac.first_chunk().copied(),
            _ => None,
        });
        let neighbor = match (message.header.state, mac) {
            (NeighbourState::Failed, _) => Neighbor::Silent,
            (NeighbourState::Incomplete | NeighbourState::None, _) | (_, None) => Neighbor::Asked,
            (state, Some(mac)) => Neighbor::Known { mac, stale: state == NeighbourState::Stale },
        };
        self.0.insert((message.header.ifindex, address), neighbor);
        Some((message.header.ifindex, address))
    }

    /// A neighbor is forgotten: which, by interface and address.
    pub(super) fn remove(&mut self, message: &NeighbourMessage) -> Option<(u32, IpAddr)> {
        let key = (message.header.ifindex, address_of(message)?);
        self.0.remove(&key).map(|_| key)
    }

    pub(super) fn get(&self, ifindex: u32, address: IpAddr) -> Option<Neighbor> {
        self.0.get(&(ifindex, address)).copied()
    }

    /// Known, and nothing to be asked.
    pub(super) fn is_confirmed(&self, ifindex: u32, address: IpAddr) -> bool {
        matches!(self.get(ifindex, address), Some(Neighbor::Known { stale: false, .. }))
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

fn address_of(message: &NeighbourMessage) -> Option<IpAddr> {
    message.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::Destination(NeighbourAddress::Inet(address)) => Some((*address).into()),
        NeighbourAttribute::Destination(NeighbourAddress::Inet6(address)) => Some((*address).into()),
        _ => None,
    })
}

/// Makes the kernel ask for a neighbor, or confirm one that is stale, as if it had a packet for it
/// (`NTF_USE`).
pub(super) fn ask(requests: &mut Requests, ifindex: u32, address: IpAddr) -> io::Result<()> {
    let mut question = NeighbourMessage::default();
    question.header.family = match address {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    };
    question.header.ifindex = ifindex;
    question.header.state = NeighbourState::None;
    question.header.flags = NeighbourFlags::Use;
    question.attributes.push(NeighbourAttribute::Destination(match address {
        IpAddr::V4(address) => NeighbourAddress::Inet(address),
        IpAddr::V6(address) => NeighbourAddress::Inet6(address),
    }));
    requests.create(RouteNetlinkMessage::NewNeighbour(question))
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
    }

    #[test]
    fn being_asked_ends_an_older_verdict_and_is_done_once_for_a_stale_one() {
        let mut neighbors = Neighbors::default();
        neighbors.set(&message(NeighbourState::Failed, None));
        neighbors.set_asked(3, ADDRESS);
        assert_eq!(neighbors.get(3, ADDRESS), Some(Neighbor::Asked));
        neighbors.set(&message(NeighbourState::Stale, Some(MAC)));
        assert!(!neighbors.is_confirmed(3, ADDRESS));
        neighbors.set_asked(3, ADDRESS);
        assert!(neighbors.is_confirmed(3, ADDRESS), "the kernel tells when it turns out otherwise");
        neighbors.remove(&message(NeighbourState::Stale, Some(MAC)));
        assert_eq!(neighbors.get(3, ADDRESS), None);
    }
}
