//! The network of a host, as tests and the fuzzer have it.

use std::{
    net::{IpAddr, Ipv6Addr},
    ops::RangeInclusive,
};

use roced_cm::{
    PeerAddress,
    identifiers::{CmErrno, DeviceAddress, Host, IdKey},
    wire::CaGuid,
};
use roced_types::{AccountId, DeviceId, address_of};

/// The network of host `number`: 10.0.0.`number` on device 0, fe80::`number` on two VLANs of it;
/// 10.1.0.`number` on no device.
pub(crate) struct FakeHost {
    pub(crate) number: u8,
    pub(crate) is_neighbor_known: bool,
    pub(crate) is_privileged: bool,
    /// Requests that the program has not taken.
    pub(crate) untaken: u32,
    /// The peers are known.
    pub(crate) knows_peers: bool,
    pub(crate) joined: Vec<IpAddr>,
    pub(crate) ephemeral_ports: RangeInclusive<u16>,
}

impl FakeHost {
    pub(crate) const fn new(number: u8, ephemeral_ports: RangeInclusive<u16>) -> Self {
        Self {
            number,
            is_neighbor_known: true,
            is_privileged: false,
            untaken: 0,
            knows_peers: true,
            joined: Vec::new(),
            ephemeral_ports,
        }
    }

    pub(crate) fn address(&self) -> IpAddr {
        IpAddr::from([10, 0, 0, self.number])
    }

    /// Of each of its VLAN interfaces 5 and 6, whose VLANs have the same numbers.
    pub(crate) fn link_local(&self) -> Ipv6Addr {
        Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, self.number.into())
    }

    pub(crate) fn device_address(&self) -> DeviceAddress {
        DeviceAddress {
            device: DeviceId(0),
            adapter: CaGuid(self.number.into()),
            gid_index: 1,
            address: self.address(),
            vlan: None,
            mtu_bytes: 1024,
        }
    }
}

impl Host for FakeHost {
    fn is_known(&self, _: &PeerAddress) -> bool {
        self.knows_peers
    }

    fn local(&mut self, address: IpAddr, scope: u32) -> Result<DeviceAddress, CmErrno> {
        if address == self.address() {
            return Ok(self.device_address());
        }
        if address == IpAddr::V6(self.link_local()) && matches!(scope, 5 | 6) {
            return Ok(DeviceAddress { gid_index: scope, address, vlan: Some(scope as u16), ..self.device_address() });
        }
        let is_local = address == IpAddr::from([10, 1, 0, self.number]);
        Err(if is_local { CmErrno::NoDevice } else { CmErrno::AddressNotAvailable })
    }

    fn local_on(&mut self, peer: PeerAddress) -> Result<DeviceAddress, CmErrno> {
        self.local(address_of(peer.local), peer.vlan.map_or(0, u32::from))
    }

    fn scope_of(&mut self, address: &DeviceAddress) -> u32 {
        address.vlan.map_or(0, u32::from)
    }

    fn route(&mut self, source: Option<IpAddr>, destination: IpAddr, scope: u32) -> Result<DeviceAddress, CmErrno> {
        match destination {
            IpAddr::V6(v6) if v6.is_unicast_link_local() => self.local(self.link_local().into(), scope),
            IpAddr::V4(v4) if v4.octets()[..3] == [10, 0, 0] || v4.is_multicast() => {
                self.local(source.unwrap_or_else(|| self.address()), 0)
            }
            IpAddr::V4(v4) if v4.octets()[..3] == [10, 1, 0] => Err(CmErrno::NoDevice),
            _ => Err(CmErrno::NetUnreachable),
        }
    }

    fn any_device(&mut self) -> Option<DeviceAddress> {
        Some(self.device_address())
    }

    fn is_reachable(&mut self, _: PeerAddress) -> bool {
        self.is_neighbor_known
    }

    fn join(&mut self, _: &DeviceAddress, group: IpAddr) -> Result<(), i32> {
        self.joined.push(group);
        Ok(())
    }

    fn leave(&mut self, _: &DeviceAddress, group: IpAddr) {
        let at = self.joined.iter().position(|joined| *joined == group).expect("it was joined");
        self.joined.remove(at);
    }

    fn is_privileged(&self) -> bool {
        self.is_privileged
    }

    fn untaken_requests(&mut self, _: u32, _: IdKey) -> u32 {
        self.untaken
    }

    fn account(&self) -> AccountId {
        AccountId(1)
    }

    fn ephemeral_ports(&self) -> RangeInclusive<u16> {
        self.ephemeral_ports.clone()
    }

    fn is_ipv6_only(&self) -> bool {
        false
    }
}
