//! Rules for one answer of the peer.

use roced_types::Status;

use crate::{
    qp::send_queue::{SendEntry, SendQueue},
    wire::{
        aeth::{NakCode, Syndrome},
        frame::Packet,
        opcode::Operation,
    },
};

/// Checks that a response has the length that its position requires, and `ends_as_asked`. Its
/// beginning is not checked: a request that was repeated from its middle begins anew there.
#[inline]
pub(super) fn check_response(
    packet: &Packet<'_>,
    entry: &SendEntry,
    at: u32,
    ends_as_asked: bool,
    mtu: usize,
) -> Result<(), Status> {
    let expected = (entry.length() - u64::from(at) * mtu as u64).min(mtu as u64);
    if packet.payload_len() as u64 == expected && ends_as_asked && is_ack(packet) {
        Ok(())
    } else {
        Err(Status::BadResponse)
    }
}

/// True for an answer with content that stays valid while it is buffered, or for one that belongs
/// to the first waiting READ. Responses of later READs become stale, because the first READ is
/// executed again. The walk ends at the packet, which is in flight, so it is no longer than the
/// window.
pub(super) fn stays_valid(packet: &Packet<'_>, queue: &SendQueue) -> bool {
    if packet.payload_len() == 0 {
        return true;
    }
    let mut position = queue.head();
    while position != queue.tail() {
        let entry = queue.entry(position);
        if packet.bth.psn.distance_from(entry.end_psn()) < 0 {
            return entry.is_read();
        }
        if entry.is_read() {
            return false;
        }
        position = position.wrapping_add(1);
    }
    false
}

/// The answer ends the connection, has it wait, or means nothing: it is a NAK, but none that asks
/// for a packet.
pub(super) fn asks_to_stop(packet: &Packet<'_>) -> bool {
    packet.aeth.is_some_and(|aeth| match aeth.syndrome {
        Syndrome::Nak(code) => code != NakCode::PsnSequence,
        Syndrome::Ack { .. } => false,
        Syndrome::Rnr { .. } | Syndrome::Reserved(_) => true,
    })
}

pub(super) fn is_sequence_nak(packet: &Packet<'_>) -> bool {
    packet.info.operation == Operation::Ack
        && packet.aeth.is_some_and(|aeth| aeth.syndrome == Syndrome::Nak(NakCode::PsnSequence))
}

pub(super) fn is_plain_ack(packet: &Packet<'_>) -> bool {
    packet.info.operation == Operation::Ack && is_ack(packet)
}

pub(super) fn is_ack(packet: &Packet<'_>) -> bool {
    packet.aeth.is_none_or(|aeth| matches!(aeth.syndrome, Syndrome::Ack { .. }))
}
