//! Interface of client sessions and of the connection manager to the rest of the daemon: its
//! workers, and its view of the network.

use std::{io, net::IpAddr};

use roced_transport::wire::path::largest_path_mtu;
use roced_types::{DeviceId, WorkerId};

use crate::{
    net::{Asker, FollowId, GidTableEntry, NextHop, NoRoute},
    worker::{
        command::{Answer, Command},
        mailbox::CallError,
        sent_mads::OutgoingMad,
        workers,
    },
};

/// The workers. A call comes back with an answer or after a deadline.
pub trait WorkerAccess {
    /// Sends a command to `worker` and waits for its answer.
    ///
    /// # Errors
    /// [`CallError`] when there is none.
    fn call(&mut self, worker: WorkerId, command: Command) -> Result<Answer, CallError>;

    /// Has `worker` send a management datagram; false if it has no room for it.
    fn send_mad(&mut self, worker: WorkerId, mad: OutgoingMad) -> bool;
}

impl WorkerAccess for workers::Workers {
    fn call(&mut self, worker: WorkerId, command: Command) -> Result<Answer, CallError> {
        Self::call(self, worker, command)
    }

    fn send_mad(&mut self, worker: WorkerId, mad: OutgoingMad) -> bool {
        Self::send_mad(self, worker, mad).is_ok()
    }
}

/// How a device's port is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DevicePort {
    /// MAC address.
    pub mac: [u8; 6],
    /// Up, with a carrier.
    pub link_up: bool,
    /// MTU of the link, or the largest packet of the device's queues if that is less, bytes.
    pub link_mtu_bytes: u32,
    /// Speed, Mbit/s, 0 when not known.
    pub speed_mbit_per_s: u32,
    /// Indices of the GID table, empty ones included.
    pub gid_entries: u32,
    /// The device strips VLAN tags of received frames, so that the VLAN of a frame without a tag is
    /// unknown.
    pub strips_vlan_tags: bool,
    /// Packets of connections say that a congested switch may mark them.
    pub ecn: bool,
}

impl DevicePort {
    /// Largest path MTU that the link carries for either address family; 0 when it is none.
    pub const fn path_mtu_bytes(&self) -> u32 {
        match largest_path_mtu(self.link_mtu_bytes, false) {
            Some(bytes) => bytes,
            None => 0,
        }
    }
}

/// The kernel's network as the daemon follows it.
pub trait Network {
    /// A device's port.
    fn port(&self, device: DeviceId) -> DevicePort;

    /// The GID at `index` of a device's table.
    fn gid(&self, device: DeviceId, index: u32) -> Option<GidTableEntry>;

    /// An interface of this host has the address.
    fn has_address(&self, address: IpAddr) -> bool;

    /// The address of this host from which the kernel sends to `destination`, by interface `scope`
    /// if that is not 0.
    fn source_for(&mut self, destination: IpAddr, scope: u32) -> Option<IpAddr>;

    /// Follows how `destination` is reached from `source`, a GID of `device`. Each call wants an
    /// [`Self::unfollow`]. Questions for its neighbor count for `asker`.
    ///
    /// # Errors
    /// [`NoRoute`]: nothing is followed.
    fn follow(
        &mut self,
        device: DeviceId,
        source: GidTableEntry,
        destination: IpAddr,
        asker: Asker,
    ) -> Result<(FollowId, NextHop), NoRoute>;

    /// Whether `destination` is followed only by asking its neighbor first: the kernel does not know
    /// its MAC address.
    fn must_ask(&mut self, device: DeviceId, source: GidTableEntry, destination: IpAddr) -> bool;

    /// One follower less, of this asker.
    fn unfollow(&mut self, id: FollowId, asker: Asker);

    /// Joins a multicast group by the interface of `source`, a GID of `device`: from now on its
    /// frames come. Each call wants a [`Self::leave`].
    ///
    /// # Errors
    /// The kernel's.
    fn join(&mut self, device: DeviceId, source: GidTableEntry, group: IpAddr) -> io::Result<()>;

    /// One member less of those that joined by an address of VLAN `vlan`. The address may be gone.
    fn leave(&mut self, device: DeviceId, vlan: Option<u16>, group: IpAddr);
}

/// Both, borrowed for one step of the control thread.
pub struct Environment<'a> {
    /// The workers.
    pub workers: &'a mut dyn WorkerAccess,
    /// The network.
    pub network: &'a mut dyn Network,
}
