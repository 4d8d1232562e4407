//! Cost of a frame of ESP with AES-GCM: `cargo bench -p roced-esp`.
//!
//! Each figure is the best of many short rounds, so that neighbors on the machine disturb it
//! little; frames lie in the cache. Sizes are those of the UDP datagram. Compare only figures of
//! one run.

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use roced_esp::{AesGcm, KeyMaterial, Lifetime, OutboundParameters, OutboundSa};
use roced_transport::{
    io::{Egress, FrameMut},
    psn::Psn,
    wire::{
        Bth, Headers, Path, PathSpec, Roce,
        esp::{Encapsulation, EspFrame, Numbering, ReplayWindow, Spi},
        opcode, parse,
    },
};
use roced_types::{Qpn, gid_of};
use zeroize::Zeroizing;

/// UDP header, BTH, ICRC.
const HEADERS_BYTES: usize = 8 + 12 + 4;

fn main() {
    println!(
        "{:<22} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}  ns, GB/s of the datagram",
        "", "seal", "GB/s", "pieces", "open", "GB/s", "pieces"
    );
    for key_bytes in [16, 32] {
        for datagram_bytes in [128, 1088, 4160] {
            measure(key_bytes, datagram_bytes);
        }
    }
}

fn key(key_bytes: usize) -> KeyMaterial {
    KeyMaterial::new(Zeroizing::new(vec![0x11; key_bytes + 4])).expect("a key with its salt")
}

fn plain_frame(payload_bytes: usize) -> Vec<u8> {
    let path = Path::new(&PathSpec {
        via: Egress::Nic { flow: 0 },
        source_mac: [2; 6],
        dest_mac: [4; 6],
        vlan: None,
        source: gid_of([10, 9, 0, 1].into()),
        destination: gid_of([10, 9, 0, 2].into()),
        traffic_class: 0,
        hop_limit: 64,
        flow_label: 0,
        roce: Roce::V2 { udp_source_port: 0xc000 },
    })
    .expect("both are IPv4");
    let headers = Headers::new(Bth::new(opcode::RC_SEND_MIDDLE, Qpn::from_wire(0x1234), Psn::new(7)));
    let mut frame = vec![0; path.frame_bytes(&headers, payload_bytes)];
    path.fill(&mut FrameMut::single(&mut frame), &headers, payload_bytes, |_| Ok(())).expect("no thread gave up");
    frame
}

fn measure(key_bytes: usize, datagram_bytes: usize) {
    let (numbering, encapsulation) = (Numbering::Extended, Encapsulation::Esp);
    let spi = Spi::new(0x1001).expect("it is not reserved");
    let parameters = OutboundParameters { spi, encapsulation, numbering, lifetime: Lifetime::default() };
    let outbound = OutboundSa::new(parameters, &key(key_bytes)).expect("the kernel has random bytes");
    let mut sender = outbound.sender().expect("the first");
    let plain = plain_frame(datagram_bytes - HEADERS_BYTES);
    let (first, second) = plain.split_at(plain.len() * 3 / 4);
    let mut scratch = vec![0; sender.buffer_bytes(plain.len())];
    let room = encapsulation.header_bytes();

    // The frame is sealed once more in the place of the last one: its headers are put back.
    let in_place = best(|| {
        scratch[room..room + 42].copy_from_slice(&plain[..42]);
        sender.seal(black_box(&mut scratch), plain.len()).map(|frame| frame.len())
    });
    let pieces = best(|| sender.seal_pieces(black_box(&[first, second]), &mut scratch).map(|frame| frame.len()));

    // A replay window would refuse the frame the second time: it is checked and not marked.
    let sealed = sender.seal_pieces(&[&plain], &mut scratch).expect("many numbers are left").to_vec();
    let (gcm, window) = (AesGcm::new(&key(key_bytes)), ReplayWindow::new(numbering));
    let mut opened = vec![0; sealed.len()];
    let mut open = |pieces: &[&[u8]]| {
        let frame = EspFrame::read(pieces).expect("a frame of ESP");
        let sequence = window.check(frame.sequence_low()).expect("nothing was marked");
        let plain = frame.open(sequence, numbering, &gcm, &mut opened).and_then(|frame| frame.plain());
        plain.expect("the sealed frame").len()
    };
    let (first, second) = sealed.split_at(sealed.len() * 3 / 4);
    let whole = best(|| open(black_box(&[&sealed])));
    let cut = best(|| open(black_box(&[first, second])));
    assert!(parse(&[&opened[..plain.len()]]).is_ok());

    let rate = |nanoseconds: f64| datagram_bytes as f64 / nanoseconds;
    println!(
        "{:<22} {in_place:>9.0} {:>9.1} {pieces:>9.0} {whole:>9.0} {:>9.1} {cut:>9.0}",
        format!("AES-{}, {datagram_bytes} B", key_bytes * 8),
        rate(in_place),
        rate(whole)
    );
}

/// Nanoseconds of one call, in the best of the rounds that fit into a fraction of a second.
fn best<T>(mut call: impl FnMut() -> T) -> f64 {
    const CALLS: u32 = 1_000;
    let (mut best, start) = (Duration::MAX, Instant::now());
    while start.elapsed() < Duration::from_millis(100) {
        let round = Instant::now();
        for _ in 0..CALLS {
            black_box(call());
        }
        best = best.min(round.elapsed());
    }
    best.as_nanos() as f64 / f64::from(CALLS)
}
