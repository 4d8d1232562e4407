//! The host's network, as identifiers need it.

use core::{net::IpAddr, ops::RangeInclusive};

use roced_types::{AccountId, DeviceId};

use super::{CmErrno, IdKey};
use crate::{connection::PeerAddress, wire::CaGuid};

/// An address of this host on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceAddress {
    /// Device.
    pub device: DeviceId,
    /// Its node GUID.
    pub adapter: CaGuid,
    /// Index of the address in its GID table.
    pub gid_index: u32,
    /// Address.
    pub address: IpAddr,
    /// VLAN of the address.
    pub vlan: Option<u16>,
    /// Largest path MTU of the port, bytes: 256 to 4096, or 0.
    pub mtu_bytes: u32,
}

/// The host's network.
pub trait Host {
    /// The device that has a local address. `scope` is the interface of a link-local one.
    ///
    /// # Errors
    /// [`CmErrno::AddressNotAvailable`] if the address is not of this host, [`CmErrno::NoDevice`]
    /// if it is on no device.
    fn local(&mut self, address: IpAddr, scope: u32) -> Result<DeviceAddress, CmErrno>;

    /// The local address of a datagram's destination, on its device.
    ///
    /// # Errors
    /// [`CmErrno::NoDevice`] if the device no longer has it.
    fn local_on(&mut self, peer: PeerAddress) -> Result<DeviceAddress, CmErrno>;

    /// The interface of an address on a device, for link-local addresses.
    fn scope_of(&mut self, address: &DeviceAddress) -> u32;

    /// The local address from which the route leads to `destination`; `source` is that address if
    /// the program chose it.
    ///
    /// # Errors
    /// [`CmErrno::NetUnreachable`] without a route, [`CmErrno::NoDevice`] if no device is on it.
    fn route(&mut self, source: Option<IpAddr>, destination: IpAddr, scope: u32) -> Result<DeviceAddress, CmErrno>;

    /// A device with an active port, for the loopback address.
    fn any_device(&mut self) -> Option<DeviceAddress>;

    /// Whether frames can be sent to the peer now. If not, its neighbor is asked, and
    /// [`Identifiers::on_neighbor`](super::Identifiers::on_neighbor) follows when it answers.
    fn is_reachable(&mut self, peer: PeerAddress) -> bool;

    /// A peer that has answered this host not long ago: its address is not forged.
    fn is_known(&self, peer: &PeerAddress) -> bool;

    /// Requests of a listener that were sent to its channel and that the program has not taken, at
    /// most.
    fn untaken_requests(&mut self, channel: u32, listener: IdKey) -> u32;

    /// Joins a multicast group by the interface of `source`.
    ///
    /// # Errors
    /// The kernel's, as its number.
    fn join(&mut self, source: &DeviceAddress, group: IpAddr) -> Result<(), i32>;

    /// Leaves it.
    fn leave(&mut self, source: &DeviceAddress, group: IpAddr);

    /// The program may have ports below 1024.
    fn is_privileged(&self) -> bool;

    /// The user of the program, that has half of the ports to choose from at most.
    fn account(&self) -> AccountId;

    /// Ports to choose from.
    fn ephemeral_ports(&self) -> RangeInclusive<u16>;

    /// IPv6 listeners are not for IPv4 (`net.ipv6.bindv6only`).
    fn is_ipv6_only(&self) -> bool;
}
