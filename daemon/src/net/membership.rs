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

use super::GidTableEntry;

/// By device, interface and group.
type GroupMembership = (DeviceId, u32, IpAddr);

/// Memberships, with the number of users of each.
#[derive(Debug, Default)]
pub(super) struct Memberships(BTreeMap<GroupMembership, (UdpSocket, u32)>);

impl Memberships {
    /// One more wants `group` on the interface of `source`, which is of the same family.
    pub(super) fn join(&mut self, device: DeviceId, source: &GidTableEntry, group: IpAddr) -> io::Result<()> {
        let place = (device, source.ifindex, group);
        if let Some((_, users)) = self.0.get_mut(&place) {
            *users += 1;
            return Ok(());
        }
        self.0.insert(place, (member(source, group)?, 1));
        Ok(())
    }

    /// One less does.
    pub(super) fn leave(&mut self, device: DeviceId, source: &GidTableEntry, group: IpAddr) {
        let place = (device, source.ifindex, group);
        let Some((_, users)) = self.0.get_mut(&place) else { return };
        *users -= 1;
        if *users == 0 {
            self.0.remove(&place);
        }
    }

    /// The groups of a device, each at least once.
    pub(super) fn groups(&self, device: DeviceId) -> impl Iterator<Item = IpAddr> {
        self.0.keys().filter(move |(of, ..)| *of == device).map(|(.., group)| *group)
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
