//! Queue pair 1, the general services interface (IBTA v1 3.9.4): management datagrams of connection
//! managers, between the wire and the owner of the endpoint.
//!
//! ```text
//!   frame to QPN 1 ──► checks ──► received ──► poll_management
//!   send_management ──► to_send ──► poll_transmit ──► frame to QPN 1
//! ```
//!
//! Both queues are bounded, and all their memory is allocated with the endpoint. A datagram has no
//! acknowledgment: connection managers repeat those that were lost.

use alloc::collections::VecDeque;
use core::net::Ipv6Addr;

use roced_types::{PRIVILEGED_QKEY, Qpn};

use crate::{
    io::{EmitError, Wire},
    partition::Partitions,
    psn::Psn,
    reject::{DropReason, Reject},
    wire::{Deth, Roce, bth::Bth, frame::Packet, headers::Headers, opcode, path::Path},
};

/// Bytes of a management datagram, always full (IBTA v1 13.4.2).
pub const MAD_BYTES: usize = 256;

/// Q_Key of every general services interface.
const GSI_QKEY: u32 = PRIVILEGED_QKEY | 0x0001_0000;

/// Received datagrams that wait for the owner of the endpoint, unless it says how many.
const RECEIVED_MAX: usize = 64;

/// Datagrams that wait to be sent. A guess; 28 KiB.
const TO_SEND_MAX: usize = 64;

/// Datagrams sent in a call of `poll_transmit`, before the queue pairs have their turn: a quarter of
/// the share of one of these.
const PER_CALL: usize = 4;

/// A management datagram from the wire that passed all checks of queue pair 1. Its content is not
/// checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ManagementDatagram {
    /// The destination GID.
    pub local: [u8; 16],
    /// The source GID.
    pub remote: [u8; 16],
    /// The VLAN of its tag, if it has one with a number other than 0.
    pub vlan: Option<u16>,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// By which RoCE it came.
    pub roce: Roce,
    /// The datagram.
    pub bytes: [u8; MAD_BYTES],
}

/// Datagrams in both directions.
#[derive(Debug)]
pub(crate) struct Management {
    received: VecDeque<ManagementDatagram>,
    received_max: usize,
    to_send: VecDeque<(Path, [u8; MAD_BYTES])>,
    /// PSN of the next datagram. Receivers ignore it.
    psn: Psn,
    /// Datagrams took room on the wire that queue pairs lacked: the next call is theirs.
    yields: bool,
}

impl Management {
    pub(crate) fn new() -> Self {
        Self {
            received: VecDeque::with_capacity(RECEIVED_MAX),
            received_max: RECEIVED_MAX,
            to_send: VecDeque::with_capacity(TO_SEND_MAX),
            psn: Psn::default(),
            yields: false,
        }
    }

    /// Sets how many received datagrams wait at most.
    pub(crate) fn set_received_max(&mut self, datagrams: usize) {
        self.received_max = datagrams;
        self.received.reserve(datagrams.saturating_sub(self.received.len()));
    }

    /// Takes the oldest received datagram.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<ManagementDatagram> {
        self.received.pop_front()
    }

    /// Keeps the datagram of a checked packet.
    pub(crate) fn keep(&mut self, packet: &Packet<'_>) -> Result<(), DropReason> {
        if self.received.len() >= self.received_max {
            return Err(DropReason::ManagementQueueFull);
        }
        let mut bytes = [0; MAD_BYTES];
        let mut at = 0;
        for piece in packet.payload() {
            bytes[at..at + piece.len()].copy_from_slice(piece);
            at += piece.len();
        }
        self.received.push_back(ManagementDatagram {
            local: packet.destination,
            remote: packet.source,
            vlan: packet.vlan_id(),
            traffic_class: packet.traffic_class,
            roce: packet.roce,
            bytes,
        });
        Ok(())
    }

    /// Queues a datagram to be sent.
    pub(crate) fn post(&mut self, path: Path, bytes: &[u8; MAD_BYTES]) -> Result<(), Reject> {
        if self.to_send.len() == TO_SEND_MAX {
            return Err(Reject::NoRoom);
        }
        self.to_send.push_back((path, *bytes));
        Ok(())
    }

    #[inline]
    pub(crate) fn wants_transmit(&self) -> bool {
        !self.to_send.is_empty()
    }

    /// Discards the datagrams that wait to be sent, and returns their number.
    pub(crate) fn discard(&mut self) -> u64 {
        let discarded = self.to_send.len() as u64;
        self.to_send.clear();
        discarded
    }

    /// Leaves the next call of `poll_transmit` to the queue pairs.
    pub(crate) const fn yield_next(&mut self) {
        self.yields = true;
    }

    /// Sends at most `budget` datagrams, in their order: the first without room ends the call.
    #[cold]
    pub(crate) fn transmit(&mut self, budget: usize, wire: &mut impl Wire) -> usize {
        if core::mem::take(&mut self.yields) {
            return 0;
        }
        let most = budget.min(PER_CALL);
        for sent in 0..most {
            let Some((path, bytes)) = self.to_send.front() else { return sent };
            let headers = Headers {
                deth: Some(Deth { qkey: GSI_QKEY, source_qpn: Qpn::GSI }),
                ..Headers::new(Bth::new(opcode::UD_SEND_ONLY, Qpn::GSI, self.psn))
            };
            let mut rest = &bytes[..];
            let emitted = wire.emit(path.via(), path.frame_bytes(&headers, MAD_BYTES), |frame| {
                path.fill(frame, &headers, MAD_BYTES, |piece| {
                    let (now, later) = rest.split_at(piece.len());
                    piece.copy_from_slice(now);
                    rest = later;
                    Ok(())
                })
            });
            if emitted == Err(EmitError::Full) {
                return sent;
            }
            self.psn = self.psn.plus(1);
            self.to_send.pop_front();
        }
        most
    }
}

/// Checks a packet to queue pair 1 before it may change anything.
pub(crate) fn check(packet: &Packet<'_>, partitions: &Partitions) -> Result<(), DropReason> {
    // Among the opcodes with a DETH are those of other services, and one with immediate data.
    let Some(deth) = packet.deth.filter(|_| packet.bth.opcode == opcode::UD_SEND_ONLY) else {
        return Err(DropReason::WrongService);
    };
    // IBTA v1 10.9: queue pair 1 is in all partitions of its port.
    if !partitions.accept(packet.bth.pkey) {
        return Err(DropReason::BadPkey);
    }
    if deth.qkey != GSI_QKEY {
        return Err(DropReason::BadQkey);
    }
    // A privileged program can have the Q_Key, but not the number.
    if deth.source_qpn != Qpn::GSI {
        return Err(DropReason::WrongSourceQp);
    }
    if packet.payload_len() != MAD_BYTES {
        return Err(DropReason::BadLength);
    }
    if !is_host(packet.source) || !is_host(packet.destination) {
        return Err(DropReason::WrongAddress);
    }
    packet.check_integrity()
}

/// A GID that one host can have: no group, no broadcast, and neither unspecified nor loopback. The
/// broadcast address of a subnet is not known here.
fn is_host(gid: [u8; 16]) -> bool {
    let address = Ipv6Addr::from(gid);
    match address.to_ipv4_mapped() {
        // 240/4 is reserved, with the broadcast address; 0/8 is "this network" (RFC 6890).
        Some(ipv4) => (1..224).contains(&ipv4.octets()[0]) && !ipv4.is_loopback(),
        None => !address.is_multicast() && !address.is_unspecified() && !address.is_loopback(),
    }
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;

    use super::*;

    #[test]
    fn an_address_of_one_host_is_no_group_no_broadcast_and_no_loopback() {
        let text = |address: &str| address.parse::<Ipv6Addr>().expect("an address").octets();
        for host in ["::ffff:10.77.0.1", "::ffff:1.0.0.1", "::ffff:223.255.255.255", "fe80::1", "2001:db8::1"] {
            assert!(is_host(text(host)), "{host}");
        }
        let ipv4 = [[0, 0, 0, 0], [0, 0, 0, 1], [127, 0, 0, 1], [224, 0, 0, 1], [240, 0, 0, 1], [255; 4]];
        for other in ipv4.map(|octets| Ipv4Addr::from(octets).to_ipv6_mapped()) {
            assert!(!is_host(other.octets()), "{other}");
        }
        for other in ["::", "::1", "ff02::1", "ff1e::7"] {
            assert!(!is_host(text(other)), "{other}");
        }
    }
}
