//! Multicast groups that the kernel is a member of for us: it tells routers and switches (IGMP,
//! MLD), and lets the frames through the NIC's filter. Each membership is a socket that is good for
//! nothing else; however this process ends, the kernel leaves.

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, UdpSocket},
};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use roced_types::DeviceId;
use tracing::warn;

use super::GidTableEntry;

/// By device, VLAN and group.
type MembershipKey = (DeviceId, Option<u16>, IpAddr);

/// A membership of the kernel.
#[derive(Debug)]
struct Membership {
    /// The interface that it is on, or was on last.
    ifindex: u32,
    /// Keeps the membership. `None` while there is no interface.
    socket: Option<UdpSocket>,
    users: u32,
}

/// All memberships.
#[derive(Debug, Default)]
pub(super) struct Memberships(BTreeMap<MembershipKey, Membership>);

impl Memberships {
    /// One more wants `group` on the interface of `source`, which is of the same family.
    pub(super) fn join(&mut self, device: DeviceId, source: &GidTableEntry, group: IpAddr) -> io::Result<()> {
        let key = (device, source.vlan, group);
        if let Some(membership) = self.0.get_mut(&key) {
            membership.users += 1;
            return Ok(());
        }
        let socket = Some(member(source, group)?);
        self.0.insert(key, Membership { ifindex: source.ifindex, socket, users: 1 });
        Ok(())
    }

    /// One less does.
    pub(super) fn leave(&mut self, device: DeviceId, vlan: Option<u16>, group: IpAddr) {
        let key = (device, vlan, group);
        let Some(membership) = self.0.get_mut(&key) else { return };
        membership.users -= 1;
        if membership.users == 0 {
            self.0.remove(&key);
        }
    }

    /// The groups of a device, each at least once.
    pub(super) fn groups(&self, device: DeviceId) -> impl Iterator<Item = IpAddr> {
        self.0.keys().filter(move |(of, ..)| *of == device).map(|(.., group)| *group)
    }

    /// Memberships end with their interface, so they are joined again on the one that has the
    /// device's addresses `gids` now. `is_gone` says of which interfaces there is nothing left,
    /// even if another has the same index.
    pub(super) fn follow(&mut self, device: DeviceId, gids: &[GidTableEntry], is_gone: impl Fn(u32) -> bool) {
        for ((_, vlan, group), membership) in self.0.iter_mut().filter(|((of, ..), _)| *of == device) {
            if is_gone(membership.ifindex) {
                membership.socket = None;
            }
            let fits = |gid: &&GidTableEntry| gid.vlan == *vlan && gid.address.is_ipv4() == group.is_ipv4();
            let Some(source) = gids.iter().find(fits) else { continue };
            if membership.socket.is_some() && source.ifindex == membership.ifindex {
                continue;
            }
            match member(source, *group) {
                Ok(socket) => (membership.socket, membership.ifindex) = (Some(socket), source.ifindex),
                Err(error) => warn!(
                    %group,
                    address = %source.address,
                    "the multicast group cannot be joined again: no frames of it until an address changes: {error}"
                ),
            }
        }
    }
}

/// A separate socket for each, because the kernel limits the memberships of one. It is bound to no
/// port: nothing ever arrives there.
fn member(source: &GidTableEntry, group: IpAddr) -> io::Result<UdpSocket> {
    let family = if group.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let socket = UdpSocket::from(socket(family, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?);
    match (source.address, group) {
        (IpAddr::V4(interface), IpAddr::V4(group)) => socket.join_multicast_v4(&group, &interface)?,
        (IpAddr::V6(_), IpAddr::V6(group)) => socket.join_multicast_v6(&group, source.ifindex)?,
        _ => return Err(io::ErrorKind::InvalidInput.into()),
    }
    Ok(socket)
}
