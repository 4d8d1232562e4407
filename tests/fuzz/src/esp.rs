//! Target `esp`: any bytes as a frame of ESP, sealed frames that were changed, and sealed plaintext
//! of any content.
//!
//! A frame is read or refused, the same whole and in pieces. The receiver opens a changed frame
//! only if nothing from the header of ESP on was changed, and none twice. A peer with the key may
//! seal anything: it is refused for its reason, or it is a frame of RoCEv2 that can be sealed
//! again and comes back the same.

use roced_esp::{AesGcm, InboundParameters, InboundSa, KeyMaterial};
use roced_transport::{
    io::Segments,
    wire::esp::{
        Aead, Encapsulation, EspFrame, EspHeader, EspRefusal, EspSequence, Numbering, PlainFrame, SequenceSource, Spi,
        TAIL_BYTES_MAX,
    },
};
use zeroize::Zeroizing;

use crate::{input::Input, seeds::Seed};

/// Two VLAN tags, IPv4 with all options, UDP, ESP: they lie in the first piece.
const FIRST_PIECE_BYTES: usize = 14 + 8 + 60 + 8 + 16;

/// A jumbo frame; longer ones say nothing new.
const FRAME_BYTES_MAX: usize = 9100;

const IV: [u8; 8] = [7; 8];

/// Kinds of runs, by the two low bits of the first byte.
mod kind {
    pub(super) const ANY: u8 = 0;
    pub(super) const CHANGED: u8 = 1;
    pub(super) const PLAINTEXT: u8 = 2;
}

/// Bits of the first byte.
const IN_UDP: u8 = 4;
const EXTENDED: u8 = 8;

/// One run.
pub(crate) fn run(bytes: &[u8]) {
    let mut input = Input(bytes);
    let control = input.byte();
    let cuts = [input.u16(), input.u16()].map(usize::from);
    let encapsulation = if control & IN_UDP == 0 { Encapsulation::Esp } else { Encapsulation::EspInUdp };
    let numbering = if control & EXTENDED == 0 { Numbering::Short } else { Numbering::Extended };
    let receiver = Receiver { numbering, cuts };
    match control & 3 {
        kind::CHANGED => receiver.check_changed(&mut input, encapsulation),
        kind::PLAINTEXT => receiver.check_plaintext(&mut input),
        _ => {
            // No bytes have the ICV of a key that they do not know.
            let opened = receiver.open(input.take(FRAME_BYTES_MAX));
            assert!(opened.is_err(), "{opened:?}");
        }
    }
}

fn key() -> KeyMaterial {
    KeyMaterial::new(Zeroizing::new((0..20).collect())).expect("20 bytes")
}

/// A key that no receiver has.
fn other_key() -> KeyMaterial {
    KeyMaterial::new(Zeroizing::new((1..21).collect())).expect("20 bytes")
}

fn header(numbering: Numbering) -> EspHeader {
    let sequence: Option<EspSequence> = SequenceSource::new(numbering, None, None).reserve(1).expect("one").next();
    let spi = Spi::new(0x1001).expect("it is not reserved");
    EspHeader { spi, sequence: sequence.expect("the first"), numbering, iv: IV }
}

fn seal(
    key: &KeyMaterial,
    plain: &[u8],
    encapsulation: Encapsulation,
    numbering: Numbering,
) -> Result<Vec<u8>, EspRefusal> {
    let mut buffer = [&vec![0; encapsulation.header_bytes()], plain, &[0; TAIL_BYTES_MAX]].concat();
    let frame = PlainFrame::read(&mut buffer, plain.len(), encapsulation)?;
    Ok(frame.seal(&header(numbering), &AesGcm::new(key)).to_vec())
}

#[derive(Clone, Copy)]
struct Receiver {
    numbering: Numbering,
    cuts: [usize; 2],
}

impl Receiver {
    /// The plain frame of `frame`, as an association between its addresses opens it.
    fn open(self, frame: &[u8]) -> Result<Vec<u8>, EspRefusal> {
        let (first, rest) = frame.split_at((FIRST_PIECE_BYTES + self.cuts[0]).min(frame.len()));
        let (second, third) = rest.split_at(self.cuts[1].min(rest.len()));
        let whole = self.open_pieces(&[frame]);
        assert_eq!(whole, self.open_pieces(&[first, second, third]), "whole or cut, it is the same");
        whole
    }

    fn open_pieces(self, pieces: &Segments<'_>) -> Result<Vec<u8>, EspRefusal> {
        let frame = EspFrame::read(pieces)?;
        let parameters = InboundParameters {
            spi: frame.spi(),
            source: *frame.source(),
            destination: *frame.destination(),
            encapsulation: frame.encapsulation(),
            numbering: self.numbering,
        };
        let mut inbound = InboundSa::new(parameters, &key());
        let mut scratch = vec![0; pieces.iter().map(|piece| piece.len()).sum()];
        let opened = inbound.open(&frame, &mut scratch).map(<[u8]>::to_vec);
        let is_authentic = inbound.packets() == 1;
        assert_eq!(inbound.highest_sequence(), u64::from(frame.sequence_low()) * u64::from(is_authentic));
        assert_eq!(
            opened.as_ref().err().map_or(0, |refusal| inbound.refusals().get(*refusal)),
            u64::from(opened.is_err())
        );
        if is_authentic {
            assert_eq!(inbound.open(&frame, &mut scratch), Err(EspRefusal::Replayed), "a frame is taken once");
        }
        opened
    }

    fn check_changed(self, input: &mut Input<'_>, encapsulation: Encapsulation) {
        let changes: [[u8; 3]; 4] = [(); 4].map(|()| input.array());
        let length = usize::from(input.u16());
        let plain = input.take(FRAME_BYTES_MAX);
        let Ok(sealed) = seal(&key(), plain, encapsulation, self.numbering) else { return };
        let mut changed = sealed.clone();
        for [low, high, by] in changes {
            let at = usize::from(u16::from_le_bytes([low, high])) % changed.len();
            changed[at] ^= by;
        }
        if length > 0 {
            changed.truncate(length);
        }
        let esp_at = sealed.len() - esp_bytes(&sealed);
        let opened = self.open(&changed);
        if changed == sealed {
            let opened = opened.expect("an unchanged frame");
            assert_eq!(opened, plain[..opened.len()], "but for Ethernet padding");
        } else if let Ok(opened) = opened {
            // No AEAD covers the headers in front of ESP. It lies elsewhere if they have VLAN tags
            // or options of IP more or less, and it is the same.
            let esp = &sealed[esp_at..];
            assert!(changed.windows(esp.len()).any(|window| window == esp), "a changed frame is not opened");
            let datagram = esp.len() - Encapsulation::Esp.overhead_bytes();
            assert!(plain.windows(datagram).any(|window| window == &opened[opened.len() - datagram..]));
        }
    }

    /// Plaintext of any content, behind headers of IPv4.
    fn check_plaintext(self, input: &mut Input<'_>) {
        let mut ciphertext = input.take(FRAME_BYTES_MAX).to_vec();
        ciphertext.resize(ciphertext.len().next_multiple_of(4).max(4), 0);
        let plaintext = ciphertext.clone();
        let EspHeader { spi, sequence, .. } = header(self.numbering);
        let [spi, low] = [spi.get(), sequence.low()].map(u32::to_be_bytes);
        let aad = match self.numbering {
            Numbering::Short => [spi, low].concat(),
            Numbering::Extended => [spi, [0; 4], low].concat(),
        };
        let icv = AesGcm::new(&key()).seal(IV, &aad, &mut ciphertext);
        let esp = [&spi[..], &low, &IV, &ciphertext, &icv].concat();
        let opened = self.open(&[&ipv4_headers(esp.len()), &esp[..]].concat());
        let [.., pad, next_header] = plaintext[..] else { unreachable!("four bytes at least") };
        match opened {
            Ok(plain) => {
                assert_eq!(next_header, 17);
                assert_eq!(plain[34..], plaintext[..plaintext.len() - 2 - usize::from(pad)]);
                let again = seal(&key(), &plain, Encapsulation::EspInUdp, self.numbering).expect("a frame of RoCEv2");
                assert_eq!(self.open(&again), Ok(plain));
            }
            Err(EspRefusal::Dummy) => assert_eq!(next_header, 59),
            Err(EspRefusal::NotUdp) => assert!(![17, 59].contains(&next_header)),
            Err(EspRefusal::BadPad) => assert!(pad > 0 && next_header != 59),
            Err(refusal) => assert_eq!(refusal, EspRefusal::NotRoce),
        }
    }
}

/// Bytes of ESP in a frame that we sealed, from the SPI to the end.
fn esp_bytes(sealed: &[u8]) -> usize {
    let pieces = [sealed];
    let frame = EspFrame::read(&pieces).expect("a sealed frame");
    16 + frame.ciphertext_bytes() + 16
}

/// Ethernet and IPv4 in front of `esp_bytes` of ESP.
fn ipv4_headers(esp_bytes: usize) -> Vec<u8> {
    let mut headers = vec![0; 12];
    let [l0, l1] = (20 + esp_bytes as u16).to_be_bytes();
    headers.extend([8, 0, 0x45, 0, l0, l1, 0, 0, 0x40, 0, 64, 50, 0, 0, 10, 9, 0, 1, 10, 9, 0, 2]);
    let sum: u32 = headers[14..].chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
    headers[24..26].copy_from_slice(&(!((sum & 0xffff) + (sum >> 16)) as u16).to_be_bytes());
    headers
}

/// Each recorded frame of RoCEv2, in each kind of run: sealed with another key, sealed and not
/// changed, its datagram as plaintext.
pub(crate) fn seeds() -> Vec<Seed> {
    let kinds = |(number, frame): (usize, roced_captures::CapturedFrame)| {
        let options = (number as u8 & 3) << 2;
        let numbering = if options & EXTENDED == 0 { Numbering::Short } else { Numbering::Extended };
        let sealed = seal(&other_key(), &frame.bytes, Encapsulation::Esp, numbering).ok()?;
        let udp_at = frame.bytes.len().checked_sub(esp_bytes(&sealed) - Encapsulation::Esp.overhead_bytes())?;
        let run = |kind: u8, rest: &[&[u8]]| [&[kind | options, 0, 0, 0, 0], &rest.concat()[..]].concat();
        let seed = |kind: &str, bytes| Seed {
            name: format!("{}-{}-{kind}", frame.file.trim_end_matches(".pcap"), frame.index),
            bytes,
        };
        Some([
            seed("any", run(kind::ANY, &[&sealed])),
            seed("changed", run(kind::CHANGED, &[&[0; 14], &frame.bytes])),
            seed("plaintext", run(kind::PLAINTEXT, &[&frame.bytes[udp_at..], &[1, 2, 2, 17]])),
        ])
    };
    // One in eight of them, which leaves some hundreds.
    roced_captures::frames().into_iter().enumerate().step_by(8).filter_map(kinds).flatten().collect()
}
