//! Memory placement extensions: FLUSH and atomic WRITE (annex A19).
//!
//! Both take one PSN, count against `max_rd_atomic`, and are answered by an empty READ response.
//! The peer's earlier writes are in memory that is coherent for every processor as soon as their
//! packets are executed, so a FLUSH for global visibility has nothing left to do. Clients share no
//! persistent memory with the daemon, so no key grants a FLUSH for persistence.

use roced_types::{SendOp, access, flush};

use super::{
    Context, QpBase,
    atomic::ATOMIC_BYTES,
    replay::ReplayedRequest,
    responder::{ACCESS, INVALID, RequestRefused},
    send_queue::SendEntry,
};
use crate::{
    io::{App, AtomicOperation, EmitError, Wire},
    mr::{MrKey, Right},
    psn::Psn,
    wire::{bth::Bth, feth::Feth, frame::Packet, headers::Headers, opcode, reth::Reth},
};

/// Sends the request for `entry`.
pub(super) fn send<W: Wire>(entry: &SendEntry, base: &mut QpBase, psn: Psn, wire: &mut W) -> Result<(), EmitError> {
    let is_flush = entry.op == SendOp::Flush;
    let opcode = if is_flush { opcode::RC_FLUSH } else { opcode::RC_ATOMIC_WRITE };
    // A FLUSH keeps its operands, length and kind, in the fields of an atomic operation's operands.
    let length = if is_flush { entry.swap_or_add as u32 } else { ATOMIC_BYTES as u32 };
    let headers = Headers {
        feth: is_flush.then(|| Feth::from_bytes(&(entry.compare as u32).to_be_bytes())),
        reth: Some(Reth { va: entry.remote_va, rkey: MrKey(entry.rkey), length }),
        ..Headers::new(Bth { ack_request: true, ..base.bth(opcode, psn) })
    };
    let bytes = entry.swap_or_add.to_ne_bytes();
    let mut rest = if is_flush { &[][..] } else { &bytes };
    base.emit(wire, &headers, rest.len(), |piece| {
        let (now, later) = rest.split_at(piece.len());
        piece.copy_from_slice(now);
        rest = later;
        Ok(())
    })
}

/// Writes the eight bytes of an atomic WRITE in one access.
pub(super) fn write<A: App>(packet: &Packet<'_>, cx: &mut Context<'_, A>) -> Result<ReplayedRequest, RequestRefused> {
    let reth = packet.reth.ok_or(INVALID)?;
    if cx.base.attributes.access & access::REMOTE_WRITE == 0 {
        return Err(ACCESS);
    }
    let mut bytes = [0; ATOMIC_BYTES];
    let aligned = reth.va.is_multiple_of(ATOMIC_BYTES as u64);
    if packet.payload_len() != bytes.len() || reth.length as usize != bytes.len() || !aligned {
        return Err(INVALID);
    }
    let mut at = 0;
    for piece in packet.payload() {
        bytes[at..at + piece.len()].copy_from_slice(piece);
        at += piece.len();
    }
    let span = cx.base.check_peer(cx.mrs, reth.rkey, Right::RemoteWrite, reth.va, bytes.len()).map_err(|_| ACCESS)?;
    // Virtual addresses of the region are not aligned like its memory: the processor could not
    // access the operand in one piece.
    if !span.offset().is_multiple_of(ATOMIC_BYTES as u64) {
        return Err(INVALID);
    }
    let operation = AtomicOperation::Write { value: u64::from_ne_bytes(bytes) };
    cx.app.atomic(span, operation).map_err(|_| ACCESS)?;
    Ok(request(packet, &reth))
}

/// Checks a FLUSH; all requests before it have been executed.
pub(super) fn check_flush<A: App>(packet: &Packet<'_>, cx: &Context<'_, A>) -> Result<ReplayedRequest, RequestRefused> {
    let (Some(feth), Some(reth)) = (packet.feth, packet.reth) else { return Err(INVALID) };
    if feth.placement == 0 || feth.placement & !(flush::GLOBAL | flush::PERSISTENT) != 0 {
        return Err(INVALID);
    }
    if feth.placement & flush::PERSISTENT != 0 || cx.base.attributes.access & access::FLUSH_GLOBAL == 0 {
        return Err(ACCESS);
    }
    match feth.selectivity {
        flush::RANGE if reth.length == 0 => {}
        flush::RANGE => {
            cx.base.check_peer(cx.mrs, reth.rkey, Right::Flush, reth.va, reth.length as usize).map_err(|_| ACCESS)?;
        }
        flush::REGION => cx.base.check_peer_key(cx.mrs, reth.rkey, Right::Flush).map_err(|_| ACCESS)?,
        _ => return Err(INVALID),
    }
    Ok(request(packet, &reth))
}

/// Replay ring entry of the request, for duplicates.
const fn request(packet: &Packet<'_>, reth: &Reth) -> ReplayedRequest {
    ReplayedRequest {
        operation: packet.info.operation,
        first_psn: packet.bth.psn,
        packets: 1,
        va: reth.va,
        key: reth.rkey,
        // Of the answer.
        length: 0,
        msn: 0,
        original: 0,
    }
}
