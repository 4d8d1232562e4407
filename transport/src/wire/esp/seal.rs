//! Frames out: a plain frame becomes one of ESP in place.

use super::{
    Aad, Aead, ESP_UDP_PORT, Encapsulation, EspRefusal, EspSequence, HEADER_BYTES, ICV_BYTES, IV_BYTES, Numbering,
    PROTOCOL_ESP, Spi, TAIL_BYTES_MAX, TRAILER_BYTES, pad_bytes, set_protocol,
};
use crate::wire::network::{IPV6_BYTES, NetworkHeader, PROTOCOL_UDP, Roce, UDP_BYTES, fold, sum_words};

/// Fields in front of the ciphertext, and the way of numbering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EspHeader {
    /// Of the security association.
    pub spi: Spi,
    /// Of the packet.
    pub sequence: EspSequence,
    /// Whether the high half of the number is authenticated.
    pub numbering: Numbering,
    /// Used once with a key.
    pub iv: [u8; IV_BYTES],
}

/// A plain frame of RoCEv2 in a buffer with room in front and behind, its headers checked.
///
/// ```text
///   buffer   [header_bytes of the encapsulation][plain frame][TAIL_BYTES_MAX]
///   sealed   [Ethernet IP][header][ciphertext                        ][ICV]
/// ```
///
/// The headers up to IP move to the begin of the buffer, the payload stays.
#[derive(Debug)]
pub struct PlainFrame<'a> {
    buffer: &'a mut [u8],
    encapsulation: Encapsulation,
    ip_at: usize,
    /// Where the IP header ends in the frame, and the UDP header begins.
    ip_end: usize,
    /// Bytes of UDP header to ICRC.
    payload_bytes: usize,
}

impl<'a> PlainFrame<'a> {
    /// The plain frame of `plain_bytes` that lies in `buffer` behind the header bytes of
    /// `encapsulation`. Ethernet padding behind the packet is not sealed.
    ///
    /// # Errors
    /// [`EspRefusal::NotRoce`], or [`EspRefusal::BadLength`] if the sealed packet would be longer
    /// than IP can say.
    ///
    /// # Panics
    /// When the buffer has no room for the longest tail, [`TAIL_BYTES_MAX`].
    pub fn read(buffer: &'a mut [u8], plain_bytes: usize, encapsulation: Encapsulation) -> Result<Self, EspRefusal> {
        let plain_at = encapsulation.header_bytes();
        assert!(plain_at + plain_bytes + TAIL_BYTES_MAX <= buffer.len(), "the buffer has room for the tail");
        let plain = &buffer[plain_at..plain_at + plain_bytes];
        let network = NetworkHeader::read(plain, plain_bytes).map_err(|_| EspRefusal::NotRoce)?;
        if let Roce::V1 = network.roce {
            return Err(EspRefusal::NotRoce);
        }
        let ip_end = network.bth_at - UDP_BYTES;
        let frame = Self { buffer, encapsulation, ip_at: network.ip_at, ip_end, payload_bytes: network.end - ip_end };
        let packet_bytes = frame.sealed_bytes() - frame.ip_at;
        if packet_bytes > usize::from(u16::MAX) { Err(EspRefusal::BadLength) } else { Ok(frame) }
    }

    /// Bytes of the sealed frame.
    pub const fn sealed_bytes(&self) -> usize {
        self.ip_end + self.encapsulation.header_bytes() + self.ciphertext_bytes() + ICV_BYTES
    }

    /// Bytes that are encrypted, which the byte limits of a security association count (RFC 4301
    /// 4.4.2.1).
    pub const fn ciphertext_bytes(&self) -> usize {
        self.payload_bytes + pad_bytes(self.payload_bytes) + TRAILER_BYTES
    }

    /// Seals it. Returns the frame of ESP, which begins where the buffer does.
    pub fn seal(self, header: &EspHeader, aead: &impl Aead) -> &'a mut [u8] {
        let (sealed_bytes, ciphertext_bytes) = (self.sealed_bytes(), self.ciphertext_bytes());
        let Self { buffer, encapsulation, ip_at, ip_end, payload_bytes } = self;
        let frame = &mut buffer[..sealed_bytes];
        let (is_in_udp, header_bytes) = match encapsulation {
            Encapsulation::Esp => (false, HEADER_BYTES),
            Encapsulation::EspInUdp => (true, UDP_BYTES + HEADER_BYTES),
        };
        frame.copy_within(header_bytes..header_bytes + ip_end, 0);
        let (head, rest) = frame.split_at_mut(ip_end);
        let protocol = if is_in_udp { PROTOCOL_UDP } else { PROTOCOL_ESP };
        set_protocol(&mut head[ip_at..], protocol, rest.len()).expect("`read` checked the length");
        let (outer, rest) = rest.split_at_mut(header_bytes - HEADER_BYTES);
        if is_in_udp {
            // Without a checksum, which IPv6 gets when the ciphertext is known.
            let bytes = (UDP_BYTES + rest.len()) as u16;
            let fields = [ESP_UDP_PORT, ESP_UDP_PORT, bytes, 0].map(u16::to_be_bytes);
            outer.copy_from_slice(fields.as_flattened());
        }
        let (esp, rest) = rest.split_at_mut(HEADER_BYTES);
        esp[..4].copy_from_slice(&header.spi.get().to_be_bytes());
        esp[4..8].copy_from_slice(&header.sequence.low().to_be_bytes());
        esp[8..].copy_from_slice(&header.iv);
        let (ciphertext, icv) = rest.split_at_mut(ciphertext_bytes);
        write_trailer(&mut ciphertext[payload_bytes..]);
        let aad = Aad::new(header.spi, header.sequence, header.numbering);
        icv.copy_from_slice(&aead.seal(header.iv, aad.bytes(), ciphertext));
        if is_in_udp && frame[ip_at] >> 4 == 6 {
            set_udp_checksum(&mut frame[ip_at..]);
        }
        frame
    }
}

/// Pad, pad length and next header: 1, 2, 3 and so on (RFC 4303 2.4).
fn write_trailer(trailer: &mut [u8]) {
    let pad = trailer.len() - TRAILER_BYTES;
    for (byte, number) in trailer[..pad].iter_mut().zip(1..=u8::MAX) {
        *byte = number;
    }
    trailer[pad] = pad as u8;
    trailer[pad + 1] = PROTOCOL_UDP;
}

/// The UDP checksum of a packet that begins with its IPv6 header: none may be 0 (RFC 8200 8.1).
fn set_udp_checksum(packet: &mut [u8]) {
    let (ip, datagram) = packet.split_at_mut(IPV6_BYTES);
    let pseudo = sum_words(&ip[8..]) + u32::from(PROTOCOL_UDP) + sum_words(&datagram[4..6]);
    let sum = !fold(u32::from(fold(pseudo)) + u32::from(fold(sum_words(datagram))));
    let sum = if sum == 0 { 0xffff } else { sum };
    datagram[6..8].copy_from_slice(&sum.to_be_bytes());
}
