//! Bytes to meaning and back.

use std::hint::black_box;

use roced_transport::{
    io::{FrameMut, Segments},
    psn::Psn,
    wire::{Aeth, Bth, Headers, Path, Syndrome, dest_qpn, opcode, parse},
};
use roced_types::Qpn;

use crate::{
    TIMES,
    engine::path::{IPV4, path},
};

/// Bytes of payload of a middle packet.
const PAYLOAD: usize = 4096;

/// Bytes that an AF_XDP chunk holds: a frame of path MTU 4096 lies in two.
const CHUNK: usize = 3840;

/// Every piece once.
pub(crate) fn run() {
    let path = path(IPV4, 1, 2);
    let bth = |opcode| Bth::new(opcode, Qpn::from_wire(0x1234), Psn::new(7));
    let middle = Headers::new(bth(opcode::RC_WRITE_MIDDLE));
    let ack = Headers { aeth: Some(Aeth { syndrome: Syndrome::ACK, msn: 7 }), ..Headers::new(bth(opcode::RC_ACK)) };
    let payload = vec![0x5a; PAYLOAD];
    let mut frame = vec![0; path.frame_bytes(&middle, PAYLOAD)];
    let mut small = vec![0; path.frame_bytes(&ack, 0)];
    piece_emit_4096_copy_and_icrc(&path, &middle, &payload, &mut frame);
    piece_emit_ack(&path, &ack, &mut small);
    let pieces: Vec<&[u8]> = frame.chunks(CHUNK).collect();
    piece_peek_qpn(&pieces);
    piece_parse_4096(&pieces);
    piece_parse_ack(&[&small]);
    piece_icrc_4096(&pieces);
}

#[inline(never)]
fn piece_emit_4096_copy_and_icrc(path: &Path, headers: &Headers, payload: &[u8], memory: &mut [u8]) {
    for _ in 0..TIMES {
        let mut rest = payload;
        let mut frame = FrameMut::over(memory.chunks_mut(CHUNK));
        let filled = path.fill(&mut frame, black_box(headers), payload.len(), |piece| {
            let (now, later) = rest.split_at(piece.len());
            piece.copy_from_slice(now);
            rest = later;
            Ok(())
        });
        filled.expect("no fill was given up");
    }
}

#[inline(never)]
fn piece_emit_ack(path: &Path, headers: &Headers, memory: &mut [u8]) {
    for _ in 0..TIMES {
        path.fill(&mut FrameMut::single(memory), black_box(headers), 0, |_| Ok(())).expect("no fill was given up");
    }
}

#[inline(never)]
fn piece_peek_qpn(frame: &Segments<'_>) {
    for _ in 0..TIMES {
        black_box(dest_qpn(black_box(frame)));
    }
}

#[inline(never)]
fn piece_parse_4096(frame: &Segments<'_>) {
    for _ in 0..TIMES {
        assert_eq!(black_box(&parse(black_box(frame)).expect("as it was filled")).payload_len(), PAYLOAD);
    }
}

#[inline(never)]
fn piece_parse_ack(frame: &Segments<'_>) {
    for _ in 0..TIMES {
        assert_eq!(black_box(&parse(black_box(frame)).expect("as it was filled")).payload_len(), 0);
    }
}

/// With the parsing that comes before.
#[inline(never)]
fn piece_icrc_4096(frame: &Segments<'_>) {
    for _ in 0..TIMES {
        let packet = parse(black_box(frame)).expect("as it was filled");
        black_box(&packet).check_integrity().expect("as it was filled");
    }
}
