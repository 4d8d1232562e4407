//! Origin of a received packet: conditions that its headers must meet before it may change anything.

use roced_types::Qpn;

use super::{PathState, Qp, ServiceType};
use crate::{ah::AhTable, io::FrameOrigin, reject::DropReason, wire::frame::Packet};

impl Qp {
    /// It is connected to one other queue pair, which alone sends to it.
    pub(crate) fn has_peer(&self) -> bool {
        self.base.config.service != ServiceType::Ud
    }

    /// Sends wait.
    pub(crate) const fn has_sends(&self) -> bool {
        !self.send_queue.is_empty()
    }

    /// Path of the oldest send of a queue pair of datagrams; none without one, or if its address
    /// handle is none.
    pub(crate) fn path_of_datagram<'a>(&self, ahs: &'a AhTable) -> Option<&'a PathState> {
        let sends = &self.send_queue;
        let oldest = (!sends.is_empty()).then(|| sends.entry(sends.head()))?;
        ahs.find(self.base.pd(), oldest.to().ah).map(|handle| &handle.path)
    }

    /// Checks service, addresses and origin, which apply to any packet and need no ICRC. A forged
    /// packet must know them; otherwise it changes nothing.
    #[inline]
    pub(crate) fn check_origin(&self, packet: &Packet<'_>, origin: FrameOrigin) -> Result<(), DropReason> {
        self.check_headers(packet)?;
        self.check_way(origin)
    }

    /// Checks that a packet came by the way of the path.
    #[inline]
    pub(super) fn check_way(&self, origin: FrameOrigin) -> Result<(), DropReason> {
        match &self.base.path {
            // Frames between queue pairs of this daemon never come from the network, nor others by
            // another way.
            PathState::Ready(path) if self.has_peer() && path.via().is_local() != (origin == FrameOrigin::Local) => {
                Err(DropReason::ForgedSource)
            }
            _ => Ok(()),
        }
    }

    /// Checks service, partition, addresses and VLAN, and that the state receives.
    #[inline]
    pub(crate) fn check_headers(&self, packet: &Packet<'_>) -> Result<(), DropReason> {
        if packet.info.service != self.base.config.service.wire() {
            return Err(DropReason::WrongService);
        }
        if !self.base.state.receives() {
            return Err(DropReason::WrongState);
        }
        if !packet.bth.pkey.may_speak_to(self.base.pkey) {
            return Err(DropReason::BadPkey);
        }
        if self.base.config.service == ServiceType::Ud {
            // Any source is valid. Packets to a group, and only those, carry the multicast QPN.
            let to_group = packet.bth.dest_qpn == Qpn::MULTICAST;
            return if is_group(&packet.destination) == to_group { Ok(()) } else { Err(DropReason::WrongAddress) };
        }
        self.check_addresses(packet)
    }

    /// Checks that addresses and VLAN are those of the peer.
    #[inline]
    pub(super) fn check_addresses(&self, packet: &Packet<'_>) -> Result<(), DropReason> {
        let to_us = match &self.base.path {
            PathState::Ready(path) => packet.destination == *path.source() && packet.roce.is_same_version(path.roce()),
            PathState::Resolving | PathState::Unreachable => true,
        };
        if packet.source != self.base.attributes.dgid || !to_us {
            return Err(DropReason::WrongAddress);
        }
        match &self.base.path {
            PathState::Ready(path) if !path.takes_vlan(packet.vlan_id()) => Err(DropReason::WrongVlan),
            _ => Ok(()),
        }
    }
}

/// The GID names a multicast group.
const fn is_group(gid: &[u8; 16]) -> bool {
    match gid {
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, first, ..] => *first >> 4 == 0xe,
        [first, ..] => *first == 0xff,
    }
}
