//! Copies of the kernel's tables, and the destinations that a message of netlink concerns.

use std::io;

use netlink_packet_route::{
    RouteNetlinkMessage, address::AddressMessage, link::LinkMessage, neighbour::NeighbourMessage,
};
use roced_xdp::netlink::Requests;

use crate::net::{
    gid::Addresses,
    link::Interfaces,
    neighbor::{NeighborNews, Neighbors},
};

/// State received from netlink so far.
#[derive(Debug, Default)]
pub(super) struct Mirror {
    pub(super) links: Interfaces,
    pub(super) addresses: Addresses,
    pub(super) neighbors: Neighbors,
}

impl Mirror {
    /// As everything is now.
    pub(super) fn read(requests: &mut Requests) -> io::Result<Self> {
        let mut mirror = Self::default();
        for question in [
            RouteNetlinkMessage::GetLink(LinkMessage::default()),
            RouteNetlinkMessage::GetAddress(AddressMessage::default()),
            RouteNetlinkMessage::GetNeighbour(NeighbourMessage::default()),
        ] {
            for answer in requests.dump(question)? {
                mirror.take(&answer);
            }
        }
        Ok(mirror)
    }

    /// Takes one message; says which destinations may be reached otherwise now.
    pub(super) fn take(&mut self, message: &RouteNetlinkMessage) -> Concerns {
        use RouteNetlinkMessage as M;
        match message {
            M::NewLink(link) => self.links.set(link),
            M::DelLink(link) => self.links.remove(link),
            M::NewAddress(address) => self.addresses.set(address),
            M::DelAddress(address) => self.addresses.remove(address),
            M::NewNeighbour(neighbor) => return Concerns::of(self.neighbors.set(neighbor)),
            M::DelNeighbour(neighbor) => return Concerns::of(self.neighbors.remove(neighbor)),
            M::NewRoute(_) | M::DelRoute(_) | M::NewRule(_) | M::DelRule(_) => {}
            _ => return Concerns::Nothing,
        }
        Concerns::Routes
    }
}

/// Destinations that a message of netlink concerns.
pub(super) enum Concerns {
    Nothing,
    /// Those that are reached by a neighbor.
    Neighbor(NeighborNews),
    /// All.
    Routes,
}

impl Concerns {
    fn of(news: Option<NeighborNews>) -> Self {
        news.map_or(Self::Nothing, Self::Neighbor)
    }
}
