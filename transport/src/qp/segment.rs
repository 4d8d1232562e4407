//! Segmentation of messages into packets, common to all connected services.

use roced_types::Pdn;

use super::{context::Context, scatter::SgeCursor};
use crate::{
    counters::QpCount,
    io::{Abort, App, EmitError, FrameMut, Wire},
    mr::MrTable,
    wire::{frame::Packet, headers::Headers, opcode::Position, path::Path},
    work::WorkData,
};

/// Number of PSNs of a message of `length` bytes, at least one.
pub(super) fn packets(length: u64, mtu: usize) -> u32 {
    // A message is at most 2^31 bytes and an MTU at least 256, so this fits 24 bits.
    length.div_ceil(mtu as u64).max(1) as u32
}

/// Position of packet `packet` of `packets` in its message.
pub(super) const fn position(packet: u32, packets: u32) -> Position {
    place(packet == 0, packet + 1 == packets)
}

/// Position of a packet, given whether it begins and whether it ends its message.
pub(super) const fn place(begins: bool, ends: bool) -> Position {
    match (begins, ends) {
        (true, true) => Position::Only,
        (true, false) => Position::First,
        (false, true) => Position::Last,
        (false, false) => Position::Middle,
    }
}

/// Checks the payload length: FIRST and MIDDLE carry the path MTU, LAST at least one byte, none
/// more than the MTU (IBTA v1 9.7.4.1.6).
pub(super) fn length_fits(packet: &Packet<'_>, mtu: usize) -> bool {
    let payload = packet.payload_len();
    match packet.info.position {
        Position::First | Position::Middle => payload == mtu,
        Position::Last => (1..=mtu).contains(&payload),
        Position::Only => payload <= mtu,
    }
}

/// A part of a work request's data.
#[derive(Clone, Copy)]
pub(super) struct Part<'a> {
    pub(super) data: WorkData<'a>,
    /// Bytes before the part.
    pub(super) skip: u64,
    pub(super) bytes: usize,
}

/// Sends one frame by `path`, which leads to this very endpoint, with a part of the data of a work
/// request of a queue pair in `pd` as borrowed payload.
fn borrow_part<A: App, W: Wire>(
    path: &Path,
    pd: Pdn,
    wire: &mut W,
    headers: &Headers,
    part: Part<'_>,
    mrs: &MrTable,
    app: &mut A,
) -> Result<(), EmitError> {
    // Inline data is not client memory and cannot be borrowed.
    let WorkData::Sges(sges) = part.data else { return emit_part(path, pd, wire, headers, part, mrs, app) };
    let mut cursor = SgeCursor::new(sges, part.skip);
    wire.emit(path.via(), path.borrowed_frame_bytes(headers, part.bytes), |frame| {
        let borrow = |frame: &mut FrameMut<'_>| cursor.borrow(mrs, pd, frame, part.bytes).map_err(|_| Abort);
        path.fill_borrowed(frame, headers, part.bytes, borrow)
    })
}

/// Sends one frame by `path` with a part of the data of a work request of a queue pair in `pd`.
pub(super) fn emit_part<A: App, W: Wire>(
    path: &Path,
    pd: Pdn,
    wire: &mut W,
    headers: &Headers,
    part: Part<'_>,
    mrs: &MrTable,
    app: &mut A,
) -> Result<(), EmitError> {
    let frame_bytes = path.frame_bytes(headers, part.bytes);
    match part.data {
        WorkData::Inline(bytes) => {
            let mut rest = &bytes[part.skip as usize..];
            let copy = |piece: &mut [u8]| {
                let (now, later) = rest.split_at(piece.len());
                piece.copy_from_slice(now);
                rest = later;
                Ok(())
            };
            wire.emit(path.via(), frame_bytes, |frame| path.fill(frame, headers, part.bytes, copy))
        }
        WorkData::Sges(sges) => {
            let mut cursor = SgeCursor::new(sges, part.skip);
            let gather = |piece: &mut [u8]| cursor.read(mrs, pd, app, piece).map_err(|_| Abort);
            wire.emit(path.via(), frame_bytes, |frame| path.fill(frame, headers, part.bytes, gather))
        }
    }
}

impl<A: App> Context<'_, A> {
    /// Sends one frame on the path with the data of the work request at `position` of the send
    /// queue, `bytes` of them from `skip` on. A frame to an unreachable next hop is counted and
    /// treated as sent.
    pub(super) fn emit_part<W: Wire>(
        &mut self,
        wire: &mut W,
        headers: &Headers,
        position: u32,
        skip: u64,
        bytes: usize,
    ) -> Result<(), EmitError> {
        let base = &mut *self.base;
        let Some(path) = base.ready_path() else {
            base.counters.count(QpCount::Unreachable);
            return Ok(());
        };
        let part = Part { data: self.send_queue.data(position), skip, bytes };
        if base.borrows && bytes > 0 {
            borrow_part(path, base.pd(), wire, headers, part, self.mrs, self.app)?;
        } else {
            emit_part(path, base.pd(), wire, headers, part, self.mrs, self.app)?;
        }
        base.counters.add(QpCount::SentBytes, bytes as u64);
        Ok(())
    }
}
