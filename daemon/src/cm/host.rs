//! The network of this host as identifiers see it.

use std::{collections::BTreeMap, net::IpAddr, ops::RangeInclusive};

use roced_cm::{
    PeerAddress,
    identifiers::{CmErrno, DeviceAddress, Host, IdKey},
    wire::CaGuid,
};
use roced_types::{AccountId, DeviceId, address_of, node_guid};

use super::{CmDevice, IdOwner, channel::EventChannel, known_peers::KnownPeers, mad_routes::MadRoutes};
use crate::{
    accounts::access::DeviceSet,
    environment::{Environment, Network},
    net::{GidTableEntry, RoceVersion},
    worker::received_mads::ReceivedMad,
};

/// What a path of Linux leaves for headers: IPv6 or GRH, UDP, BTH, XRC, atomic, ICRC.
const HEADERS_BYTES: u32 = 96;

/// Ports to choose from if the kernel does not tell its own (`net.ipv4.ip_local_port_range`).
const EPHEMERAL_PORTS: RangeInclusive<u16> = 32_768..=60_999;

/// The network, borrowed for one step of the control thread.
pub(super) struct CmHost<'a, 'e> {
    devices: &'a [CmDevice],
    known: &'a KnownPeers,
    routes: &'a mut MadRoutes,
    channels: &'a mut BTreeMap<u32, EventChannel>,
    environment: &'a mut Environment<'e>,
    /// Of the program that calls.
    owner: Option<IdOwner>,
}

impl<'a, 'e> CmHost<'a, 'e> {
    pub(super) const fn new(
        devices: &'a [CmDevice],
        known: &'a KnownPeers,
        routes: &'a mut MadRoutes,
        channels: &'a mut BTreeMap<u32, EventChannel>,
        environment: &'a mut Environment<'e>,
        owner: Option<IdOwner>,
    ) -> Self {
        Self { devices, known, routes, channels, environment, owner }
    }

    /// The GID of a device that is `address`, by RoCEv2; on interface `scope` if that is not 0.
    fn find(&self, devices: impl Iterator<Item = DeviceId>, address: IpAddr, scope: u32) -> Option<DeviceAddress> {
        let network = &*self.environment.network;
        let mut devices = devices;
        devices.find_map(|device| {
            let is_on = |entry: &GidTableEntry| scope == 0 || entry.ifindex == scope;
            let (gid_index, entry) = gid_of_address(network, device, address, is_on)?;
            Some(self.device_address(device, gid_index, &entry))
        })
    }

    fn device_address(&self, device: DeviceId, gid_index: u32, entry: &GidTableEntry) -> DeviceAddress {
        let port = self.environment.network.port(device);
        let fits = |bytes: &u32| *bytes + HEADERS_BYTES <= port.link_mtu_bytes && *bytes <= port.path_mtu_bytes();
        DeviceAddress {
            device,
            adapter: CaGuid(u64::from_be_bytes(node_guid(port.mac))),
            gid_index,
            address: entry.address,
            vlan: entry.vlan,
            mtu_bytes: [4096, 2048, 1024, 512, 256].into_iter().find(fits).unwrap_or(0),
        }
    }

    /// Those that the program may use.
    fn all(&self) -> impl Iterator<Item = DeviceId> + use<'a> {
        let allowed = self.owner.as_ref().map_or(DeviceSet::ALL, |owner| owner.devices);
        self.devices.iter().map(|device| device.id).filter(move |device| allowed.has(*device))
    }
}

/// The GIDs of a device that speak RoCEv2, with their indices.
fn gids(network: &dyn Network, device: DeviceId) -> impl Iterator<Item = (u32, GidTableEntry)> {
    let entries =
        (0..network.port(device).gid_entries).filter_map(move |index| Some((index, network.gid(device, index)?)));
    entries.filter(|(_, entry)| entry.roce == RoceVersion::V2)
}

/// The GID of a device that is `address` and fits: VLAN interfaces of a device may have the same
/// link-local address.
fn gid_of_address(
    network: &dyn Network,
    device: DeviceId,
    address: IpAddr,
    fits: impl Fn(&GidTableEntry) -> bool,
) -> Option<(u32, GidTableEntry)> {
    gids(network, device).find(|(_, entry)| entry.address == address && fits(entry))
}

/// The GID of a local address on its device and VLAN, with its index.
fn gid_of_peer(network: &dyn Network, peer: &PeerAddress) -> Option<(u32, GidTableEntry)> {
    gid_of_address(network, peer.device, address_of(peer.local), |entry| entry.vlan == peer.vlan)
}

/// The GID entry of a local address on its device and VLAN.
pub(super) fn entry_of(network: &dyn Network, peer: &PeerAddress) -> Option<GidTableEntry> {
    gid_of_peer(network, peer).map(|(_, entry)| entry)
}

/// Addresses of a received datagram. The VLAN is that of the address it came to; a datagram of
/// another VLAN is not for it, and one from an address of this host is forged: those of this host
/// are handed over.
pub(super) fn peer_of(mad: &ReceivedMad, environment: &Environment<'_>) -> Option<PeerAddress> {
    if mad.is_roce_v1 {
        // Answers go by RoCEv2.
        return None;
    }
    let network = &*environment.network;
    if network.has_address(address_of(mad.remote)) {
        return None;
    }
    let is_known = !network.port(mad.device).strips_vlan_tags || mad.vlan.is_some();
    let fits = |entry: &GidTableEntry| !is_known || entry.vlan == mad.vlan;
    let (_, entry) = gid_of_address(network, mad.device, address_of(mad.local), fits)?;
    Some(PeerAddress { device: mad.device, vlan: entry.vlan, local: mad.local, remote: mad.remote })
}

/// Addresses of a datagram to this host itself, as its receiver sees them.
pub(super) fn handed_over(
    to: &PeerAddress,
    devices: &[CmDevice],
    environment: &Environment<'_>,
) -> Option<PeerAddress> {
    let network = &*environment.network;
    let own = devices.iter().filter(|device| device.id == to.device);
    let others = devices.iter().filter(|device| device.id != to.device);
    let address = address_of(to.remote);
    // A link-local address is one of the sender's own link.
    let is_link_local = matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
    let fits = |entry: &GidTableEntry| !is_link_local || entry.vlan == to.vlan;
    let mut found = own.chain(others).filter_map(|device| {
        let (_, entry) = gid_of_address(network, device.id, address, fits)?;
        Some((device.id, entry))
    });
    let (device, entry) = found.next()?;
    Some(PeerAddress { device, vlan: entry.vlan, local: to.remote, remote: to.local })
}

impl Host for CmHost<'_, '_> {
    fn local(&mut self, address: IpAddr, scope: u32) -> Result<DeviceAddress, CmErrno> {
        if let Some(found) = self.find(self.all(), address, scope) {
            return Ok(found);
        }
        let is_local = self.environment.network.has_address(address);
        Err(if is_local { CmErrno::NoDevice } else { CmErrno::AddressNotAvailable })
    }

    fn local_on(&mut self, peer: PeerAddress) -> Result<DeviceAddress, CmErrno> {
        let (gid_index, entry) = gid_of_peer(&*self.environment.network, &peer).ok_or(CmErrno::NoDevice)?;
        Ok(self.device_address(peer.device, gid_index, &entry))
    }

    fn scope_of(&mut self, address: &DeviceAddress) -> u32 {
        let network = &*self.environment.network;
        network.gid(address.device, address.gid_index).map_or(0, |entry| entry.ifindex)
    }

    fn route(&mut self, source: Option<IpAddr>, destination: IpAddr, scope: u32) -> Result<DeviceAddress, CmErrno> {
        let network = &mut *self.environment.network;
        let chosen = network.source_for(destination, scope);
        // A group is on the link of an address that the program chose, with any routes.
        let source = match source {
            Some(source) if chosen.is_some() || destination.is_multicast() => source,
            _ => chosen.ok_or(CmErrno::NetUnreachable)?,
        };
        self.find(self.all(), source, scope).ok_or(CmErrno::NoDevice)
    }

    fn any_device(&mut self) -> Option<DeviceAddress> {
        let network = &*self.environment.network;
        let device = self.all().find(|device| network.port(*device).link_up)?;
        let (gid_index, entry) = gids(network, device).next()?;
        Some(self.device_address(device, gid_index, &entry))
    }

    fn is_reachable(&mut self, peer: PeerAddress) -> bool {
        handed_over(&peer, self.devices, self.environment).is_some()
            || self.routes.is_reachable(peer, self.account(), self.environment)
    }

    fn is_known(&self, peer: &PeerAddress) -> bool {
        // Datagrams of this host's own addresses are handed over.
        self.known.contains(peer) || self.environment.network.has_address(address_of(peer.remote))
    }

    fn untaken_requests(&mut self, channel: u32, listener: IdKey) -> u32 {
        self.channels.get_mut(&channel).map_or(0, |channel| channel.untaken(listener) as u32)
    }

    fn join(&mut self, source: &DeviceAddress, group: IpAddr) -> Result<(), i32> {
        let network = &mut *self.environment.network;
        let entry = network.gid(source.device, source.gid_index).ok_or(CmErrno::NoDevice.number())?;
        network.join(source.device, entry, group).map_err(|error| error.raw_os_error().unwrap_or_default())
    }

    fn leave(&mut self, source: &DeviceAddress, group: IpAddr) {
        self.environment.network.leave(source.device, source.vlan, group);
    }

    fn is_privileged(&self) -> bool {
        self.owner.as_ref().is_some_and(|owner| owner.is_privileged)
    }

    fn account(&self) -> AccountId {
        self.owner.as_ref().map_or(AccountId(0), |owner| owner.account.id())
    }

    fn ephemeral_ports(&self) -> RangeInclusive<u16> {
        ephemeral_ports().unwrap_or(EPHEMERAL_PORTS)
    }

    fn is_ipv6_only(&self) -> bool {
        std::fs::read_to_string("/proc/sys/net/ipv6/bindv6only").is_ok_and(|text| text.trim() == "1")
    }
}

fn ephemeral_ports() -> Option<RangeInclusive<u16>> {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok()?;
    let mut numbers = text.split_whitespace().map(str::parse);
    let (first, last) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    (first <= last).then_some(first..=last)
}

#[cfg(test)]
mod tests {
    use std::io;

    use roced_types::{WorkerId, gid_of};

    use super::*;
    use crate::{
        environment::{DevicePort, WorkerAccess},
        net::{Asker, FollowId, NextHop, NoRoute},
        worker::{
            command::{Answer, Command},
            mailbox::CallError,
            sent_mads::OutgoingMad,
        },
    };

    const DEVICE: DeviceId = DeviceId(0);

    /// Addresses and groups of one device.
    struct AddressTable {
        gids: Vec<Option<GidTableEntry>>,
        joined: Vec<(Option<u16>, IpAddr)>,
    }

    struct NoWorkers;

    impl WorkerAccess for NoWorkers {
        fn call(&mut self, _: WorkerId, _: Command) -> Result<Answer, CallError> {
            Err(CallError::Timeout)
        }

        fn send_mad(&mut self, _: WorkerId, _: OutgoingMad) -> bool {
            false
        }
    }

    impl Network for AddressTable {
        fn port(&self, _: DeviceId) -> DevicePort {
            DevicePort {
                mac: [2, 0, 0, 0, 0, 1],
                link_up: true,
                link_mtu_bytes: 1500,
                speed_mbit_per_s: 10_000,
                gid_entries: self.gids.len() as u32,
                strips_vlan_tags: false,
                ecn: true,
            }
        }

        fn gid(&self, _: DeviceId, index: u32) -> Option<GidTableEntry> {
            *self.gids.get(index as usize)?
        }

        fn has_address(&self, address: IpAddr) -> bool {
            self.gids.iter().flatten().any(|entry| entry.address == address)
        }

        fn source_for(&mut self, _: IpAddr, scope: u32) -> Option<IpAddr> {
            self.gids.iter().flatten().find(|entry| scope == 0 || entry.ifindex == scope).map(|entry| entry.address)
        }

        fn follow(
            &mut self,
            _: DeviceId,
            from: GidTableEntry,
            to: IpAddr,
            _: Asker,
        ) -> Result<(FollowId, NextHop), NoRoute> {
            Err(NoRoute { from: from.address, destination: to })
        }

        fn must_ask(&mut self, _: DeviceId, _: GidTableEntry, _: IpAddr) -> bool {
            unreachable!("no way is asked for")
        }

        fn unfollow(&mut self, _: FollowId, _: Asker) {}

        fn join(&mut self, _: DeviceId, source: GidTableEntry, group: IpAddr) -> io::Result<()> {
            self.joined.push((source.vlan, group));
            Ok(())
        }

        fn leave(&mut self, _: DeviceId, vlan: Option<u16>, group: IpAddr) {
            let at = self.joined.iter().position(|joined| *joined == (vlan, group)).expect("it was joined");
            self.joined.remove(at);
        }
    }

    fn entry(address: &str, ifindex: u32, vlan: Option<u16>) -> Option<GidTableEntry> {
        let address = address.parse().expect("an address");
        Some(GidTableEntry { address, ifindex, vlan, prefix_len: 64, roce: RoceVersion::V2 })
    }

    fn with_host<T>(network: &mut AddressTable, act: impl FnOnce(&mut CmHost<'_, '_>) -> T) -> T {
        let devices = [CmDevice { id: DEVICE, worker: WorkerId(0) }];
        let (known, mut routes, mut channels) = (
            KnownPeers::new(std::sync::Arc::new(crate::worker::mad_filters::MadFilters::new(0))),
            MadRoutes::default(),
            BTreeMap::new(),
        );
        let mut environment = Environment { workers: &mut NoWorkers, network };
        act(&mut CmHost::new(&devices, &known, &mut routes, &mut channels, &mut environment, None))
    }

    /// As VLAN interfaces of one adapter have it.
    #[test]
    fn a_link_local_address_on_several_vlans_is_found_by_interface_and_vlan() {
        let gids = [(5, None), (6, Some(6)), (7, Some(7))].map(|(ifindex, vlan)| entry("fe80::1", ifindex, vlan));
        let mut network = AddressTable { gids: gids.to_vec(), joined: Vec::new() };
        let address: IpAddr = "fe80::1".parse().expect("an address");
        let elsewhere: IpAddr = "fe80::2".parse().expect("an address");
        with_host(&mut network, |host| {
            for (index, gid) in gids.iter().flatten().enumerate() {
                let local = host.local(address, gid.ifindex).expect("it is local");
                assert_eq!((local.gid_index, local.vlan), (index as u32, gid.vlan));
                assert_eq!(host.route(None, elsewhere, gid.ifindex), Ok(local));
                let peer =
                    PeerAddress { device: DEVICE, vlan: gid.vlan, local: gid_of(address), remote: gid_of(elsewhere) };
                assert_eq!(host.local_on(peer), Ok(local));
                assert_eq!(host.scope_of(&local), gid.ifindex);
                assert_eq!(entry_of(host.environment.network, &peer), Some(*gid));
                let to_itself = PeerAddress { remote: gid_of(address), ..peer };
                let handed = handed_over(&to_itself, host.devices, host.environment).expect("it is this host");
                assert_eq!(handed.vlan, gid.vlan);
            }
            assert_eq!(host.local(address, 9), Err(CmErrno::NoDevice));
        });
    }

    #[test]
    fn a_group_is_left_also_after_its_address_is_gone_or_elsewhere() {
        let group = IpAddr::from([239, 1, 2, 3]);
        for after in [None, entry("10.0.0.1", 8, Some(7))] {
            let mut network = AddressTable { gids: vec![entry("10.0.0.1", 5, None)], joined: Vec::new() };
            let source = with_host(&mut network, |host| {
                let source = host.local(IpAddr::from([10, 0, 0, 1]), 0).expect("it is local");
                host.join(&source, group).expect("the kernel joins");
                source
            });
            network.gids = vec![after];
            with_host(&mut network, |host| host.leave(&source, group));
            assert!(network.joined.is_empty(), "{after:?}");
        }
    }
}
