//! Frames of ESP with an AEAD of the test: layout, round trips, pads, and damage.

mod model;

use std::sync::LazyLock;

use model::{
    bth_at, cut, fix_ipv4_checksum, fix_udp_checksum,
    frames::{Recipe, recipe},
    ip_at, is_v1, udp_at,
};
use proptest::{prelude::*, sample::Index};
use roced_captures::frames;
use roced_transport::{
    io::{SEGMENTS_MAX, Segments},
    wire::{
        esp::{
            Aead, BadIcv, Encapsulation, EspFrame, EspHeader, EspRefusal, EspSequence, ICV_BYTES, IV_BYTES, Numbering,
            PlainFrame, ReplayWindow, SequenceSource, Spi, TAIL_BYTES_MAX,
        },
        parse,
    },
};

const ENCAPSULATIONS: [Encapsulation; 2] = [Encapsulation::Esp, Encapsulation::EspInUdp];
const NUMBERINGS: [Numbering; 2] = [Numbering::Short, Numbering::Extended];
const UDP: u8 = 17;

/// Not secret, but it notices any change of one byte: a stream of the IV, and FNV-1a twice.
struct Weak;

impl Weak {
    fn mask(iv: [u8; IV_BYTES], bytes: &mut [u8]) {
        let mut state = u64::from_be_bytes(iv);
        for byte in bytes {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(0x5eed);
            *byte ^= (state >> 56) as u8;
        }
    }

    fn icv(iv: [u8; IV_BYTES], aad: &[u8], ciphertext: &[u8]) -> [u8; ICV_BYTES] {
        let mut sums = [0xcbf2_9ce4_8422_2325_u64, 0x1234_5678_9abc_def1];
        for byte in iv.iter().chain(&[aad.len() as u8]).chain(aad).chain(ciphertext) {
            sums = sums.map(|sum| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3));
        }
        sums.map(u64::to_be_bytes).as_flattened().try_into().expect("two words")
    }
}

impl Aead for Weak {
    fn seal(&self, iv: [u8; IV_BYTES], aad: &[u8], in_out: &mut [u8]) -> [u8; ICV_BYTES] {
        Self::mask(iv, in_out);
        Self::icv(iv, aad, in_out)
    }

    fn open(&self, iv: [u8; IV_BYTES], aad: &[u8], sealed: &[u8], plain: &mut [u8]) -> Result<(), BadIcv> {
        let (ciphertext, icv) = sealed.split_last_chunk().ok_or(BadIcv)?;
        plain.copy_from_slice(ciphertext);
        Self::mask(iv, plain);
        if *icv == Self::icv(iv, aad, ciphertext) { Ok(()) } else { Err(BadIcv) }
    }

    fn open_in_place(&self, iv: [u8; IV_BYTES], aad: &[u8], sealed: &mut [u8]) -> Result<(), BadIcv> {
        let copy = sealed.to_vec();
        self.open(iv, aad, &copy, &mut sealed[..copy.len() - ICV_BYTES])
    }
}

/// The fifth number.
fn fifth() -> EspSequence {
    SequenceSource::new(Numbering::Short, None, None).reserve(5).expect("many").last().expect("five")
}

fn header(numbering: Numbering) -> EspHeader {
    let spi = Spi::new(0x0102_0304).expect("it is not reserved");
    EspHeader { spi, sequence: fifth(), numbering, iv: [0xc0, 1, 2, 3, 4, 5, 6, 7] }
}

fn seal(plain: &[u8], encapsulation: Encapsulation, numbering: Numbering) -> Result<Vec<u8>, EspRefusal> {
    let room = encapsulation.header_bytes();
    let mut buffer = [&vec![0xee; room], plain, &[0xee; TAIL_BYTES_MAX]].concat();
    let frame = PlainFrame::read(&mut buffer, plain.len(), encapsulation)?;
    let sealed_bytes = frame.sealed_bytes();
    let sealed = frame.seal(&header(numbering), &Weak).to_vec();
    assert_eq!(sealed.len(), sealed_bytes);
    Ok(sealed)
}

fn open(frame: &Segments<'_>, numbering: Numbering) -> Result<Vec<u8>, EspRefusal> {
    let read = EspFrame::read(frame)?;
    let mut scratch = vec![0xdd; frame.iter().map(|piece| piece.len()).sum()];
    let sequence = ReplayWindow::new(numbering).check(read.sequence_low())?;
    let opened = read.open(sequence, numbering, &Weak, &mut scratch)?;
    opened.plain().map(<[u8]>::to_vec)
}

/// A frame of ESP made with nothing of the code under test but the AEAD: `plain` with `trailer`
/// behind its packet.
fn craft(plain: &[u8], encapsulation: Encapsulation, numbering: Numbering, trailer: &[u8]) -> Vec<u8> {
    let (ip, udp) = (ip_at(plain), udp_at(plain));
    let mut ciphertext = [&plain[udp..], trailer].concat();
    let iv = header(numbering).iv;
    let (spi, high, low) = ([1, 2, 3, 4], [0; 4], [0, 0, 0, 5]);
    let aad = match numbering {
        Numbering::Short => [spi, low].concat(),
        Numbering::Extended => [spi, high, low].concat(),
    };
    let icv = Weak.seal(iv, &aad, &mut ciphertext);
    let esp = [&spi[..], &low, &iv, &ciphertext, &icv].concat();
    let (protocol, outer) = match encapsulation {
        Encapsulation::Esp => (50, vec![]),
        Encapsulation::EspInUdp => {
            (UDP, [4500, 4500, esp.len() as u16 + 8, 0].map(u16::to_be_bytes).as_flattened().to_vec())
        }
    };
    let mut frame = [&plain[..udp], &outer, &esp].concat();
    let is_v4 = frame[ip] >> 4 == 4;
    let (length_at, length) = if is_v4 { (ip + 2, frame.len() - ip) } else { (ip + 4, frame.len() - ip - 40) };
    frame[length_at..length_at + 2].copy_from_slice(&(length as u16).to_be_bytes());
    frame[if is_v4 { ip + 9 } else { ip + 6 }] = protocol;
    if is_v4 {
        fix_ipv4_checksum(&mut frame);
    } else if encapsulation == Encapsulation::EspInUdp {
        fix_udp_checksum(&mut frame);
    }
    frame
}

/// A captured frame of each address family.
fn samples() -> Vec<Vec<u8>> {
    static SAMPLES: LazyLock<Vec<Vec<u8>>> = LazyLock::new(first_of_each_family);
    SAMPLES.clone()
}

fn first_of_each_family() -> Vec<Vec<u8>> {
    let of = |version: u8| {
        let is_one = |frame: &Vec<u8>| !is_v1(frame) && frame[ip_at(frame)] >> 4 == version && parse(&[frame]).is_ok();
        frames().into_iter().map(|frame| frame.bytes).find(is_one).expect("a capture of each family")
    };
    [4, 6].map(of).to_vec()
}

/// The headers of `plain` with a payload of `payload_bytes`, a multiple of four, up to the ICRC.
fn with_payload(plain: &[u8], payload_bytes: usize) -> Vec<u8> {
    let (ip, udp, bth) = (ip_at(plain), udp_at(plain), bth_at(plain));
    let payload = (0..payload_bytes + 4).map(|at| at as u8);
    let mut frame: Vec<u8> = plain[..bth + 12].iter().copied().chain(payload).collect();
    let total = if frame[ip] >> 4 == 4 { (ip + 2, frame.len() - ip) } else { (ip + 4, frame.len() - udp) };
    for (at, length) in [total, (udp + 4, frame.len() - udp)] {
        frame[at..at + 2].copy_from_slice(&(length as u16).to_be_bytes());
    }
    if frame[ip] >> 4 == 4 {
        fix_ipv4_checksum(&mut frame);
    }
    frame
}

proptest! {
    /// Sealed and opened, whole and in pieces, each frame of RoCEv2 is the same, and each sealed
    /// frame is the crafted one.
    #[test]
    fn opening_undoes_sealing(
        recipe in recipe(),
        cuts in proptest::collection::vec(any::<Index>(), 0..SEGMENTS_MAX),
        padding in proptest::collection::vec(any::<u8>(), 0..20),
        encapsulation in proptest::sample::select(&ENCAPSULATIONS[..]),
        numbering in proptest::sample::select(&NUMBERINGS[..]),
    ) {
        let recipe: Recipe = recipe;
        let plain = recipe.build(&[]);
        let sealed = seal(&plain, encapsulation, numbering);
        if is_v1(&plain) {
            prop_assert_eq!(sealed, Err(EspRefusal::NotRoce));
            return Ok(());
        }
        let sealed = sealed.expect("a frame of RoCEv2");
        prop_assert_eq!(&sealed, &craft(&plain, encapsulation, numbering, &[1, 2, 2, UDP]));
        prop_assert_eq!(sealed.len(), plain.len() + encapsulation.overhead_bytes());

        // The headers lie in the first piece; behind the packet lies padding.
        let padded = [&sealed[..], &padding].concat();
        let headers = udp_at(&sealed) + encapsulation.header_bytes();
        let mut places: Vec<_> = cuts.iter().map(|cut| headers + cut.index(padded.len() - headers + 1)).collect();
        places.sort_unstable();
        prop_assert_eq!(open(&cut(&padded, &places), numbering), Ok(plain));
    }

    /// Any bytes, and a sealed frame with any bytes changed: no panic, and no frame that was not
    /// sealed.
    #[test]
    fn changed_frames_are_not_opened(
        changes in proptest::collection::vec((any::<Index>(), 1..=255u8), 1..4),
        length in any::<Index>(),
        any in proptest::collection::vec(any::<u8>(), 0..200),
        encapsulation in proptest::sample::select(&ENCAPSULATIONS[..]),
    ) {
        let _any = open(&[&any], Numbering::Short);
        for plain in samples() {
            let sealed = seal(&plain, encapsulation, Numbering::Extended).expect("a frame of RoCEv2");
            let mut changed = sealed.clone();
            for (at, by) in &changes {
                *at.get_mut(&mut changed) ^= by;
            }
            let esp = udp_at(&plain) + encapsulation.header_bytes() - 16;
            if let Ok(opened) = open(&[&changed], Numbering::Extended) {
                // No AEAD covers the headers in front of ESP.
                prop_assert_eq!(&changed[esp..], &sealed[esp..]);
                prop_assert_eq!(&opened[udp_at(&plain)..], &plain[udp_at(&plain)..]);
            }
            let short = length.index(sealed.len());
            prop_assert!(open(&[&sealed[..short]], Numbering::Extended).is_err());
        }
    }
}

#[test]
fn frames_of_every_size_come_back() {
    for sample in samples() {
        for payload_bytes in (0..=4096).step_by(4) {
            let plain = with_payload(&sample, payload_bytes);
            for encapsulation in ENCAPSULATIONS {
                let sealed = seal(&plain, encapsulation, Numbering::Extended).expect("a frame of RoCEv2");
                assert_eq!(open(&[&sealed], Numbering::Extended).as_ref(), Ok(&plain), "{payload_bytes}");
            }
        }
    }
}

/// Another sender may hide the length by up to 255 bytes of pad.
#[test]
fn every_right_pad_is_taken_and_no_other() {
    for plain in samples() {
        let take =
            |trailer: &[u8]| open(&[&craft(&plain, Encapsulation::Esp, Numbering::Short, trailer)], Numbering::Short);
        for pad in (2..=255u8).step_by(4) {
            let mut trailer: Vec<u8> = (1..=pad).chain([pad, UDP]).collect();
            assert_eq!(take(&trailer).as_ref(), Ok(&plain), "{pad}");
            for wrong in [0, usize::from(pad) / 2, usize::from(pad) - 1] {
                trailer[wrong] ^= 0x80;
                assert_eq!(take(&trailer), Err(EspRefusal::BadPad), "{pad}, {wrong}");
                trailer[wrong] ^= 0x80;
            }
        }
        // Longer than the packet, and all of the packet.
        let (mut short, udp) = (plain.clone(), udp_at(&plain));
        short.truncate(udp + 8);
        let take =
            |trailer: &[u8]| open(&[&craft(&short, Encapsulation::Esp, Numbering::Short, trailer)], Numbering::Short);
        assert_eq!(take(&[1, 2, 200, UDP]), Err(EspRefusal::BadPad));
        short.truncate(udp);
        let take =
            |trailer: &[u8]| open(&[&craft(&short, Encapsulation::Esp, Numbering::Short, trailer)], Numbering::Short);
        assert_eq!(take(&[1, 2, 2, UDP]), Err(EspRefusal::NotRoce));
        assert_eq!(take(&[1, 2, 3, UDP]), Err(EspRefusal::BadPad));
    }
}

#[test]
fn other_packets_inside_are_refused_by_their_reason() {
    for plain in samples() {
        for encapsulation in ENCAPSULATIONS {
            let take = |plain: &[u8], trailer: &[u8]| {
                open(&[&craft(plain, encapsulation, Numbering::Short, trailer)], Numbering::Short)
            };
            assert_eq!(take(&plain, &[1, 2, 2, UDP]).as_ref(), Ok(&plain));
            assert_eq!(take(&plain, &[9, 9, 2, 59]), Err(EspRefusal::Dummy));
            assert_eq!(take(&plain, &[1, 2, 2, 6]), Err(EspRefusal::NotUdp));
            assert_eq!(take(&plain, &[1, 2, 2, 50]), Err(EspRefusal::NotUdp));
            let udp = udp_at(&plain);
            // Another port, and a datagram that is shorter than the packet, or longer.
            for (at, to) in [(udp + 3, 0xb8), (udp + 5, plain[udp + 5] - 4), (udp + 5, plain[udp + 5] + 4)] {
                let mut other = plain.clone();
                other[at] = to;
                assert_eq!(take(&other, &[1, 2, 2, UDP]), Err(EspRefusal::NotRoce), "{at}");
                assert_eq!(seal(&other, encapsulation, Numbering::Short), Err(EspRefusal::NotRoce), "{at}");
            }
        }
    }
}

#[test]
fn frames_that_are_not_esp_are_refused_by_their_reason() {
    let read = |frame: &[u8]| EspFrame::read(&[frame]).map(|frame| frame.encapsulation());
    for plain in samples() {
        assert_eq!(read(&plain), Err(EspRefusal::NotEsp));
        let ip = ip_at(&plain);
        let esp = seal(&plain, Encapsulation::Esp, Numbering::Short).expect("a frame of RoCEv2");
        let in_udp = seal(&plain, Encapsulation::EspInUdp, Numbering::Short).expect("a frame of RoCEv2");
        assert_eq!([&esp, &in_udp].map(|frame| read(frame)), ENCAPSULATIONS.map(Ok));
        let change = |frame: &[u8], at: usize, bytes: &[u8]| {
            let mut frame = frame.to_vec();
            frame[at..at + bytes.len()].copy_from_slice(bytes);
            frame
        };
        let at = udp_at(&plain);
        assert_eq!(read(&change(&esp, at, &[0, 0, 0, 255])), Err(EspRefusal::ReservedSpi));
        assert_eq!(read(&change(&in_udp, at + 8, &[0, 0, 0, 255])), Err(EspRefusal::ReservedSpi));
        // IKE, another port, another length.
        assert_eq!(read(&change(&in_udp, at + 8, &[0; 4])), Err(EspRefusal::NotEsp));
        assert_eq!(read(&change(&in_udp, at + 2, &[0x12, 0xb7])), Err(EspRefusal::NotEsp));
        assert_eq!(read(&change(&in_udp, at + 5, &[in_udp[at + 5] - 4])), Err(EspRefusal::BadLength));
        // A keepalive.
        let mut keepalive = in_udp[..at + 9].to_vec();
        keepalive[at + 4..].copy_from_slice(&[0, 9, 0, 0, 0xff]);
        let length = if plain[ip] >> 4 == 4 { (ip + 2, at + 9 - ip) } else { (ip + 4, 9) };
        keepalive[length.0..length.0 + 2].copy_from_slice(&(length.1 as u16).to_be_bytes());
        if plain[ip] >> 4 == 4 {
            fix_ipv4_checksum(&mut keepalive);
            assert_eq!(read(&change(&esp, ip + 10, &[!esp[ip + 10]])), Err(EspRefusal::BadIpChecksum));
            let mut fragment = change(&esp, ip + 6, &[0x20]);
            fix_ipv4_checksum(&mut fragment);
            assert_eq!(read(&fragment), Err(EspRefusal::NotEsp));
        }
        assert_eq!(read(&keepalive), Err(EspRefusal::NotEsp));
        assert_eq!(EspFrame::read(&[]).map(|_| ()), Err(EspRefusal::BadLength));
    }
}

#[test]
fn a_packet_that_ip_cannot_name_is_not_sealed() {
    let plain = with_payload(&samples()[0], 65_535 - 20 - 8 - 12 - 4 - 3);
    assert!(parse(&[&plain]).is_ok());
    assert_eq!(seal(&plain, Encapsulation::Esp, Numbering::Short), Err(EspRefusal::BadLength));
    let plain = with_payload(&samples()[0], 65_535 - 20 - 8 - 12 - 4 - 3 - 36);
    let sealed = seal(&plain, Encapsulation::Esp, Numbering::Short).expect("65,532 bytes of IP");
    assert_eq!(open(&[&sealed], Numbering::Short).as_ref(), Ok(&plain));
    assert_eq!(seal(&plain, Encapsulation::EspInUdp, Numbering::Short), Err(EspRefusal::BadLength));
}

/// A frame longer than the receiver's memory, which the network decides.
#[test]
fn a_scratch_that_is_too_short_refuses_the_frame() {
    for plain in samples() {
        let sealed = seal(&plain, Encapsulation::Esp, Numbering::Short).expect("a frame of RoCEv2");
        let pieces = [&sealed[..]];
        let read = EspFrame::read(&pieces).expect("a frame of ESP");
        let mut scratch = vec![0; sealed.len() - 16];
        assert!(read.open(fifth(), Numbering::Short, &Weak, &mut scratch).is_ok());
        let shorter = read.open(fifth(), Numbering::Short, &Weak, &mut scratch[1..]);
        assert_eq!(shorter.map(|_| ()).err(), Some(EspRefusal::BadLength));
    }
}
