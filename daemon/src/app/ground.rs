//! The network as clients' sessions have it: what the kernel says, and whose frames the XDP programs take.

use std::{collections::BTreeSet, io, net::IpAddr};

use anyhow::{Context as _, ensure};
use nix::errno::Errno;
use roced_shared::{ids::DeviceId, steer};
use tracing::warn;

use super::start::ServedDevice;
use crate::{
    clients::outside::{Network, Port},
    net::{FollowId, GidEntry, Net, NextHop, NoRoute},
};

/// Both, lent for one step of the control thread.
pub(super) struct Ground<'a> {
    pub(super) net: &'a mut Net,
    pub(super) devices: &'a mut [ServedDevice],
}

impl Ground<'_> {
    /// Makes the addresses whose frames are ours those of the device's GIDs and groups.
    pub(super) fn set_addresses(&mut self, device: DeviceId) -> anyhow::Result<()> {
        let served = self.devices.iter_mut().find(|served| served.id == device);
        let served = served.expect("devices do not come and go while the daemon runs");
        let gids: BTreeSet<IpAddr> = self.net.device(device).gids.entries().map(|(_, gid)| gid.address).collect();
        // What groups there are is a matter of limits, so that this cannot be a client's doing.
        ensure!(
            gids.len() as u32 <= steer::GIDS_MAX,
            "device {} has more than {} addresses: take some off its interface",
            served.config.name,
            steer::GIDS_MAX
        );
        let addresses: Vec<IpAddr> = gids.iter().copied().chain(self.net.groups(device)).collect();
        served.program.set_addresses(&addresses).with_context(|| format!("device {}", served.config.name))
    }
}

impl Network for Ground<'_> {
    fn port(&self, device: DeviceId) -> Port {
        let seen = self.net.device(device);
        Port {
            mac: seen.mac,
            link_up: seen.link_up,
            link_mtu_bytes: seen.usable_mtu_bytes(),
            speed_mbit_per_s: seen.speed_mbit_per_s,
            gid_entries: seen.gids.len() as u32,
        }
    }

    fn gid(&self, device: DeviceId, index: u32) -> Option<GidEntry> {
        self.net.device(device).gids.get(index).copied()
    }

    fn follow(
        &mut self,
        device: DeviceId,
        source: GidEntry,
        destination: IpAddr,
    ) -> Result<(FollowId, NextHop), NoRoute> {
        self.net.follow(device, source, destination)
    }

    fn unfollow(&mut self, id: FollowId) {
        self.net.unfollow(id);
    }

    fn join(&mut self, device: DeviceId, source: GidEntry, group: IpAddr) -> io::Result<()> {
        self.net.join(device, &source, group)?;
        self.set_addresses(device).map_err(|error| {
            warn!(%group, "no frames of a multicast group: {error:#}");
            self.leave(device, source, group);
            Errno::ENOMEM.into()
        })
    }

    fn leave(&mut self, device: DeviceId, source: GidEntry, group: IpAddr) {
        self.net.leave(device, &source, group);
        if let Err(error) = self.set_addresses(device) {
            // Frames of a group without members: dropped, and counted.
            warn!(%group, "frames of a multicast group still come: {error:#}");
        }
    }
}
