//! The network of a host, as its identifiers see it: one device with an IPv4 and an IPv6 address.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    ops::RangeInclusive,
};

use roced_cm::{
    PeerAddress,
    identifiers::{CmErrno, DeviceAddress, Host, IdKey},
    wire::CaGuid,
};
use roced_types::{AccountId, DeviceId, address_of};

/// The only device of a host.
pub(crate) const DEVICE: DeviceId = DeviceId(0);

/// Surroundings of a host.
#[derive(Debug)]
pub(crate) struct Surroundings {
    host: usize,
    pub(crate) has_device: bool,
    /// Peers that frames can be sent to.
    pub(crate) neighbors: BTreeSet<[u8; 16]>,
    /// Those that were asked for and have not answered.
    pub(crate) asked: BTreeSet<[u8; 16]>,
    /// Peers that have named a connection of this host.
    pub(crate) known: BTreeSet<PeerAddress>,
    /// Requests of each listener that its program has not taken.
    pub(crate) untaken: BTreeMap<IdKey, u32>,
    pub(crate) ephemeral: RangeInclusive<u16>,
    /// Of the program that calls.
    pub(crate) account: AccountId,
}

/// An address of a host.
pub(crate) const fn address(host: usize, is_ipv6: bool) -> IpAddr {
    if is_ipv6 {
        IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, host as u16 + 1))
    } else {
        IpAddr::V4(Ipv4Addr::new(10, 10, 0, host as u8 + 1))
    }
}

/// The host that has an address.
pub(crate) fn host_of(address: IpAddr) -> usize {
    let last = match address {
        IpAddr::V4(v4) => v4.octets()[3],
        IpAddr::V6(v6) => v6.octets()[15],
    };
    usize::from(last) - 1
}

impl Surroundings {
    pub(crate) const fn new(host: usize, ephemeral: RangeInclusive<u16>) -> Self {
        Self {
            host,
            has_device: true,
            neighbors: BTreeSet::new(),
            asked: BTreeSet::new(),
            known: BTreeSet::new(),
            untaken: BTreeMap::new(),
            ephemeral,
            account: AccountId(0),
        }
    }

    const fn on_device(&self, is_ipv6: bool) -> DeviceAddress {
        DeviceAddress {
            device: DEVICE,
            adapter: CaGuid(0x100 + self.host as u64),
            gid_index: is_ipv6 as u32,
            address: address(self.host, is_ipv6),
            vlan: None,
            mtu_bytes: 1024,
        }
    }
}

impl Host for Surroundings {
    fn local(&mut self, of: IpAddr, _: u32) -> Result<DeviceAddress, CmErrno> {
        if of != address(self.host, of.is_ipv6()) {
            return Err(CmErrno::AddressNotAvailable);
        }
        if self.has_device { Ok(self.on_device(of.is_ipv6())) } else { Err(CmErrno::NoDevice) }
    }

    fn local_on(&mut self, peer: PeerAddress) -> Result<DeviceAddress, CmErrno> {
        self.local(address_of(peer.local), 0)
    }

    fn scope_of(&mut self, _: &DeviceAddress) -> u32 {
        0
    }

    fn route(&mut self, source: Option<IpAddr>, destination: IpAddr, _: u32) -> Result<DeviceAddress, CmErrno> {
        self.local(source.unwrap_or_else(|| address(self.host, destination.is_ipv6())), 0)
    }

    fn any_device(&mut self) -> Option<DeviceAddress> {
        self.has_device.then(|| self.on_device(false))
    }

    fn is_reachable(&mut self, peer: PeerAddress) -> bool {
        let is_there = peer.local == peer.remote || self.neighbors.contains(&peer.remote);
        if !is_there {
            self.asked.insert(peer.remote);
        }
        is_there
    }

    fn is_known(&self, peer: &PeerAddress) -> bool {
        peer.local == peer.remote || self.known.contains(peer)
    }

    fn untaken_requests(&mut self, _: u32, listener: IdKey) -> u32 {
        self.untaken.get(&listener).copied().unwrap_or(0)
    }

    fn join(&mut self, _: &DeviceAddress, _: IpAddr) -> Result<(), i32> {
        Err(CmErrno::NetUnreachable.number())
    }

    fn leave(&mut self, _: &DeviceAddress, _: IpAddr) {}

    fn is_privileged(&self) -> bool {
        false
    }

    fn account(&self) -> AccountId {
        self.account
    }

    fn ephemeral_ports(&self) -> RangeInclusive<u16> {
        self.ephemeral.clone()
    }

    fn is_ipv6_only(&self) -> bool {
        false
    }
}
