//! Queue pair 1 of an endpoint, beside its queue pairs.

use super::{Endpoint, transmission::Transmitted};
use crate::{
    counters::QpCount,
    io::Wire,
    management::{self, MAD_BYTES, ManagementDatagram},
    reject::{Disposition, DropReason, Reject},
    wire::{frame::Packet, path::Path},
};

impl Endpoint {
    /// Sets how many received management datagrams wait for [`Self::poll_management`] at most: as
    /// many as frames come between two calls. 64 without a call. Allocates.
    pub fn set_management_room(&mut self, datagrams: usize) {
        self.management.set_received_max(datagrams);
    }

    /// Takes a received management datagram. Those beyond [`Self::set_management_room`] are dropped
    /// and counted ([`DropReason::ManagementQueueFull`]).
    #[inline]
    pub fn poll_management(&mut self) -> Option<ManagementDatagram> {
        self.management.take()
    }

    /// Queues a management datagram for [`Self::poll_transmit`], from queue pair 1 to that of the
    /// other end of `path`, in the default partition.
    ///
    /// # Errors
    /// [`Reject::NoRoom`] if 64 wait already; nothing is sent.
    pub fn send_management(&mut self, path: Path, bytes: &[u8; MAD_BYTES]) -> Result<(), Reject> {
        self.management.post(path, bytes)
    }

    /// Checks a packet to queue pair 1 before it may change anything.
    pub(super) fn check_management(&self, packet: &Packet<'_>) -> Result<(), DropReason> {
        management::check(packet, &self.partitions)
    }

    /// Keeps a checked packet to queue pair 1 for [`Self::poll_management`].
    #[cold]
    pub(super) fn keep_management(&mut self, packet: &Packet<'_>) -> Disposition {
        if let Err(reason) = self.management.keep(packet) {
            return Disposition::Dropped(reason);
        }
        self.totals.add(QpCount::ReceivedPackets, 1);
        self.totals.add(QpCount::ReceivedBytes, MAD_BYTES as u64);
        Disposition::Accepted
    }

    /// Sends management datagrams, at most `budget`.
    #[cold]
    pub(super) fn transmit_management(&mut self, budget: usize, wire: &mut impl Wire) -> Transmitted {
        let visits = self.management.transmit(budget, wire);
        self.totals.add(QpCount::RequestPackets, visits as u64);
        self.totals.add(QpCount::SentBytes, (visits * MAD_BYTES) as u64);
        Transmitted { visits, acks: 0 }
    }
}
