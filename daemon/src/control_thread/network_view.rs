//! The network as seen by clients' sessions: the state of the kernel, and the addresses in the XDP
//! programs.

use std::{collections::BTreeSet, io, net::IpAddr};

use anyhow::{Context as _, ensure};
use ipnet::IpNet;
use nix::errno::Errno;
use roced_transport::denied_sources::GidPrefix;
use roced_types::{DeviceId, gid_of};
use tracing::warn;

use super::served_device::ServedDevice;
use crate::{
    config::{EcnChoice, RoceVersions},
    environment::{DevicePort, Network},
    net::{Asker, FollowId, GidTableEntry, Net, NextHop, NoRoute, RoceVersion},
};

/// Both, borrowed for one step of the control thread.
pub(super) struct NetworkView<'a> {
    pub(super) net: &'a mut Net,
    pub(super) devices: &'a mut [ServedDevice],
}

/// The GIDs that each address has, in the order of their indices. With RoCEv1 there are two, that
/// one's first: the order of Linux, which programs have learned by heart.
pub(super) const fn versions(roce: RoceVersions) -> &'static [RoceVersion] {
    match roce {
        RoceVersions::V2 => &[RoceVersion::V2],
        RoceVersions::Both => &[RoceVersion::V1, RoceVersion::V2],
    }
}

/// GIDs of the addresses of a network.
pub(super) fn gid_prefix(network: &IpNet) -> GidPrefix {
    let mapped = if network.addr().is_ipv4() { 96 } else { 0 };
    GidPrefix::new(gid_of(network.addr()), mapped + network.prefix_len())
}

impl NetworkView<'_> {
    fn served(&self, device: DeviceId) -> &ServedDevice {
        let served = self.devices.iter().find(|served| served.id == device);
        served.expect("devices stay while the daemon runs")
    }

    fn versions(&self, device: DeviceId) -> &'static [RoceVersion] {
        versions(self.served(device).config.roce)
    }

    /// Sets the addresses of the XDP program to the device's GIDs and groups.
    pub(super) fn set_addresses(&mut self, device: DeviceId) -> anyhow::Result<()> {
        let served = self.devices.iter_mut().find(|served| served.id == device);
        let served = served.expect("devices stay while the daemon runs");
        let gids: BTreeSet<IpAddr> = self.net.device(device).gids.entries().map(|(_, gid)| gid.address).collect();
        // Limits bound the groups, so that no client can cause this.
        ensure!(
            gids.len() as u32 <= roced_steering::GIDS_MAX,
            "device {} has more than {} addresses: take some off its interface",
            served.config.name,
            roced_steering::GIDS_MAX
        );
        let addresses: Vec<IpAddr> = gids.iter().copied().chain(self.net.groups(device)).collect();
        let roce = match served.config.roce {
            RoceVersions::V2 => roced_steering::ROCE_V2,
            RoceVersions::Both => roced_steering::ROCE_V1 | roced_steering::ROCE_V2,
        };
        // Without an attachment they are set as soon as there is one.
        let Some(attachment) = served.attachment_mut() else { return Ok(()) };
        let set = attachment.program.set_addresses(&addresses, roce);
        set.with_context(|| format!("device {}", served.config.name))
    }
}

impl Network for NetworkView<'_> {
    fn port(&self, device: DeviceId) -> DevicePort {
        let seen = self.net.device(device);
        DevicePort {
            mac: seen.mac,
            link_up: seen.link_up && self.served(device).is_usable(),
            link_mtu_bytes: seen.usable_mtu_bytes(),
            speed_mbit_per_s: seen.speed_mbit_per_s,
            gid_entries: (seen.gids.len() * self.versions(device).len()) as u32,
            strips_vlan_tags: self.served(device).strips_vlan_tags(),
            ecn: self.served(device).config.ecn == EcnChoice::On,
        }
    }

    fn gid(&self, device: DeviceId, index: u32) -> Option<GidTableEntry> {
        let versions = self.versions(device);
        let count = versions.len() as u32;
        let entry = *self.net.device(device).gids.get(index / count)?;
        Some(GidTableEntry { roce: versions[(index % count) as usize], ..entry })
    }

    fn has_address(&self, address: IpAddr) -> bool {
        self.net.has_address(address)
    }

    fn source_for(&mut self, destination: IpAddr, scope: u32) -> Option<IpAddr> {
        self.net.source_for(destination, scope)
    }

    fn follow(
        &mut self,
        device: DeviceId,
        source: GidTableEntry,
        destination: IpAddr,
        asker: Asker,
    ) -> Result<(FollowId, NextHop), NoRoute> {
        self.net.follow(device, source, destination, asker)
    }

    fn must_ask(&mut self, device: DeviceId, source: GidTableEntry, destination: IpAddr) -> bool {
        self.net.must_ask(device, source, destination)
    }

    fn unfollow(&mut self, id: FollowId, asker: Asker) {
        self.net.unfollow(id, asker);
    }

    fn join(&mut self, device: DeviceId, source: GidTableEntry, group: IpAddr) -> io::Result<()> {
        self.net.join(device, &source, group)?;
        self.set_addresses(device).map_err(|error| {
            warn!(%group, "no frames of a multicast group: {error:#}");
            self.leave(device, source.vlan, group);
            Errno::ENOMEM.into()
        })
    }

    fn leave(&mut self, device: DeviceId, vlan: Option<u16>, group: IpAddr) {
        self.net.leave(device, vlan, group);
        if let Err(error) = self.set_addresses(device) {
            // Frames of a group without members: dropped, and counted.
            warn!(%group, "frames of a multicast group still come: {error:#}");
        }
    }
}
