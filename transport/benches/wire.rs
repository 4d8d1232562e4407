//! Cost of a packet in the wire code: `cargo bench -p roced-transport --bench wire`.
//!
//! Each figure is the best of many short rounds, so that neighbors on the machine disturb it
//! little; frame and payload lie in the cache. Compare only figures of one run.

mod path;

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use roced_transport::{
    io::FrameMut,
    mr::MrKey,
    psn::Psn,
    wire::{Aeth, Bth, Headers, Path, Reth, Syndrome, dest_qpn, opcode, parse},
};
use roced_types::Qpn;

use self::path::{IPV4, path};

fn main() {
    println!("{:<36} {:>9} {:>9} {:>9} {:>9} {:>9}  ns", "", "dest_qpn", "parse", "+check", "fill", "fill GB/s");
    let bth = |opcode| Bth::new(opcode, Qpn::from_wire(0x1234), Psn::new(7));
    let ack = Headers { aeth: Some(Aeth { syndrome: Syndrome::ACK, msn: 7 }), ..Headers::new(bth(opcode::RC_ACK)) };
    let reth = Some(Reth { va: 0x1000, rkey: MrKey(7), length: 4096 });
    let write = Headers { reth, ..Headers::new(bth(opcode::RC_WRITE_ONLY)) };
    let middle = Headers::new(bth(opcode::RC_SEND_MIDDLE));
    for (family, path) in [("IPv4", path(IPV4, 1, 2)), ("IPv6", path([0x20; 12], 1, 2))] {
        measure(&format!("{family} ACK"), &path, &ack, 0, 1);
        measure(&format!("{family} SEND middle"), &path, &middle, 1024, 1);
        measure(&format!("{family} SEND middle"), &path, &middle, 4096, 1);
        measure(&format!("{family} WRITE only"), &path, &write, 4096, 1);
        measure(&format!("{family} WRITE only"), &path, &write, 4096, 2);
    }
}

fn measure(name: &str, path: &Path, headers: &Headers, payload_bytes: usize, pieces: usize) {
    let payload = vec![0x5a; payload_bytes];
    let frame_bytes = path.frame_bytes(headers, payload_bytes);
    let mut memory = vec![0; frame_bytes];
    let fill = |memory: &mut [u8]| {
        let mut rest = &payload[..];
        let mut frame = FrameMut::over(memory.chunks_mut(frame_bytes.div_ceil(pieces)));
        path.fill(&mut frame, black_box(headers), payload_bytes, |piece| {
            let (now, later) = rest.split_at(piece.len());
            piece.copy_from_slice(now);
            rest = later;
            Ok(())
        })
    };
    fill(&mut memory).expect("no thread gave up");
    let built = memory.clone();
    let frame: Vec<_> = built.chunks(frame_bytes.div_ceil(pieces)).collect();

    let peeked = best(|| dest_qpn(black_box(&frame)));
    // The packet stays where it was made, as in the transport.
    let parsed = best(|| parse(black_box(&frame)).map(|packet| black_box(&packet).payload_len()));
    let checked = best(|| parse(black_box(&frame)).and_then(|packet| packet.check_integrity()));
    let filled = best(|| fill(black_box(&mut memory)));
    println!(
        "{:<36} {peeked:>9.1} {parsed:>9.1} {checked:>9.1} {filled:>9.1} {:>9.1}",
        format!("{name}, {payload_bytes} B, {pieces} piece{}", if pieces == 1 { "" } else { "s" }),
        frame_bytes as f64 / filled
    );
}

/// Nanoseconds of one call, in the best of the rounds that fit into a fraction of a second.
fn best<T>(mut call: impl FnMut() -> T) -> f64 {
    const CALLS: u32 = 1_000;
    let (mut best, start) = (Duration::MAX, Instant::now());
    while start.elapsed() < Duration::from_millis(50) {
        let round = Instant::now();
        for _ in 0..CALLS {
            black_box(call());
        }
        best = best.min(round.elapsed());
    }
    best.as_nanos() as f64 / f64::from(CALLS)
}
