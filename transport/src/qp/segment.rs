//! A message in packets: what every connected service does alike.

use super::{Link, Turn, scatter::SgeCursor};
use crate::{
    io::{Abort, App, EmitError, Wire},
    wire::{frame::Packet, headers::Headers, opcode::Position},
    work::WorkData,
};

/// PSNs that a message of `length` bytes takes: one at least.
pub(super) fn packets(length: u64, mtu: usize) -> u32 {
    // A message is at most 2^31 bytes and an MTU at least 256, so this fits 24 bits.
    length.div_ceil(mtu as u64).max(1) as u32
}

/// Where packet `packet` of `packets` stands in its message.
pub(super) const fn position(packet: u32, packets: u32) -> Position {
    match (packet == 0, packet + 1 == packets) {
        (true, true) => Position::Only,
        (true, false) => Position::First,
        (false, true) => Position::Last,
        (false, false) => Position::Middle,
    }
}

/// FIRST and MIDDLE carry the path MTU, LAST at least one byte, none more than the MTU (IBTA v1 9.7.4.1.6).
pub(super) fn length_fits(packet: &Packet<'_>, mtu: usize) -> bool {
    let payload = packet.payload_len();
    match packet.info.position {
        Position::First | Position::Middle => payload == mtu,
        Position::Last => (1..=mtu).contains(&payload),
        Position::Only => payload <= mtu,
    }
}

impl Link {
    /// Sends one frame with `payload_bytes` of a work request's data, from byte `skip` on.
    pub(super) fn emit_data<A: App, W: Wire>(
        &mut self,
        wire: &mut W,
        headers: &Headers,
        data: WorkData<'_>,
        skip: u64,
        payload_bytes: usize,
        turn: &mut Turn<'_, A>,
    ) -> Result<(), EmitError> {
        let pd = self.pd();
        let (mrs, app) = (turn.mrs, &mut *turn.app);
        match data {
            WorkData::Inline(bytes) => {
                let mut rest = &bytes[skip as usize..];
                self.emit(wire, headers, payload_bytes, |piece| {
                    let (now, later) = rest.split_at(piece.len());
                    piece.copy_from_slice(now);
                    rest = later;
                    Ok(())
                })
            }
            WorkData::Sges(sges) => {
                let mut cursor = SgeCursor::new(sges, skip);
                self.emit(wire, headers, payload_bytes, |piece| cursor.read(mrs, pd, app, piece).map_err(|_| Abort))
            }
        }
    }
}
