//! Frames in: a frame of ESP becomes the plain frame that it was made of.

use super::{
    Aad, Aead, ESP_UDP_PORT, Encapsulation, EspRefusal, EspSequence, HEADER_BYTES, ICV_BYTES, IV_BYTES,
    NEXT_HEADER_NONE, Numbering, PROTOCOL_ESP, Spi, TRAILER_BYTES, set_protocol,
};
use crate::{
    io::{SEGMENTS_MAX, Segments},
    reject::DropReason,
    wire::{
        bytes_at,
        network::{Ip, NetworkHeader, PROTOCOL_UDP, Roce, UDP_BYTES},
    },
};

/// A received frame of ESP with all lengths checked. Nothing in it is authentic before
/// [`Self::open`].
#[derive(Clone, Copy, Debug)]
pub struct EspFrame<'a> {
    frame: &'a Segments<'a>,
    encapsulation: Encapsulation,
    spi: Spi,
    sequence_low: u32,
    iv: [u8; IV_BYTES],
    source: [u8; 16],
    destination: [u8; 16],
    ip_at: usize,
    ip_end: usize,
    /// Where the ciphertext begins in the frame.
    ciphertext_at: usize,
    /// Where the packet ends in the frame, with the ICV.
    end: usize,
}

impl<'a> EspFrame<'a> {
    /// Checks headers and lengths of a frame, which has its headers in the first piece.
    ///
    /// # Errors
    /// [`EspRefusal::NotEsp`], [`EspRefusal::BadLength`], [`EspRefusal::BadIpChecksum`] or
    /// [`EspRefusal::ReservedSpi`].
    pub fn read(frame: &'a Segments<'a>) -> Result<Self, EspRefusal> {
        let [first, ..] = frame else { return Err(EspRefusal::BadLength) };
        if frame.len() > SEGMENTS_MAX {
            return Err(EspRefusal::BadLength);
        }
        let frame_bytes = frame.iter().map(|piece| piece.len()).sum::<usize>();
        let (encapsulation, read) = match Ip::read(first, PROTOCOL_ESP) {
            Err(DropReason::NotRoce) => (Encapsulation::EspInUdp, Ip::read(first, PROTOCOL_UDP)),
            esp => (Encapsulation::Esp, esp),
        };
        let (ip_at, ip) = read.map_err(EspRefusal::of_headers)?;
        let ip_end = ip_at + ip.header_bytes;
        let end = ip_end + ip.payload_bytes;
        if end > frame_bytes {
            return Err(EspRefusal::BadLength);
        }
        let esp_at = match encapsulation {
            Encapsulation::Esp => ip_end,
            Encapsulation::EspInUdp => behind_udp(first, ip_end, end)?,
        };
        let header: &[u8; HEADER_BYTES] = bytes_at(first, esp_at).ok_or(EspRefusal::BadLength)?;
        let &[s0, s1, s2, s3, n0, n1, n2, n3, ref iv @ ..] = header;
        let ciphertext_at = esp_at + HEADER_BYTES;
        // At least a trailer, aligned to four (RFC 4303 2.4).
        let ciphertext_bytes = end.checked_sub(ciphertext_at + ICV_BYTES).ok_or(EspRefusal::BadLength)?;
        if ciphertext_bytes == 0 || ciphertext_bytes % 4 != 0 {
            return Err(EspRefusal::BadLength);
        }
        Ok(Self {
            frame,
            encapsulation,
            spi: Spi::new(u32::from_be_bytes([s0, s1, s2, s3])).ok_or(EspRefusal::ReservedSpi)?,
            sequence_low: u32::from_be_bytes([n0, n1, n2, n3]),
            iv: *iv,
            source: ip.source,
            destination: ip.destination,
            ip_at,
            ip_end,
            ciphertext_at,
            end,
        })
    }

    /// Of the security association.
    pub const fn spi(&self) -> Spi {
        self.spi
    }

    /// The half of the packet's number that is sent.
    pub const fn sequence_low(&self) -> u32 {
        self.sequence_low
    }

    /// GID of the sender.
    pub const fn source(&self) -> &[u8; 16] {
        &self.source
    }

    /// GID of the receiver.
    pub const fn destination(&self) -> &[u8; 16] {
        &self.destination
    }

    /// How ESP is encapsulated.
    pub const fn encapsulation(&self) -> Encapsulation {
        self.encapsulation
    }

    /// Bytes that are encrypted.
    pub const fn ciphertext_bytes(&self) -> usize {
        self.end - self.ciphertext_at - ICV_BYTES
    }

    /// Decrypts the frame, as packet `sequence`, to `scratch`, which is as long as the frame at
    /// least.
    ///
    /// # Errors
    /// [`EspRefusal::BadIcv`], and [`EspRefusal::BadLength`] if `scratch` is too short. The bytes of
    /// `scratch` have no meaning.
    ///
    /// # Panics
    /// When `sequence` does not end with [`Self::sequence_low`]: it is that of another frame.
    pub fn open<'s>(
        &self,
        sequence: EspSequence,
        numbering: Numbering,
        aead: &impl Aead,
        scratch: &'s mut [u8],
    ) -> Result<OpenedFrame<'s>, EspRefusal> {
        assert_eq!(sequence.low(), self.sequence_low, "the number is that of this frame");
        let first = self.frame[0];
        let (plaintext_bytes, sealed_bytes) = (self.ciphertext_bytes(), self.end - self.ciphertext_at);
        let scratch = scratch.get_mut(..self.ip_end + sealed_bytes).ok_or(EspRefusal::BadLength)?;
        let (head, sealed) = scratch.split_at_mut(self.ip_end);
        head.copy_from_slice(&first[..self.ip_end]);
        let aad = Aad::new(self.spi, sequence, numbering);
        if let Some(whole) = first.get(self.ciphertext_at..self.end) {
            aead.open(self.iv, aad.bytes(), whole, &mut sealed[..plaintext_bytes])?;
        } else {
            gather(self.frame, self.ciphertext_at, sealed);
            aead.open_in_place(self.iv, aad.bytes(), sealed)?;
        }
        Ok(OpenedFrame { frame: &mut scratch[..self.ip_end + plaintext_bytes], ip_at: self.ip_at, ip_end: self.ip_end })
    }
}

/// Where ESP begins behind the UDP header at `udp_at` of a packet that ends at `end`.
///
/// The UDP checksum is not looked at: the ICV says more, and a zero one is usual (RFC 3948 2.1).
fn behind_udp(first: &[u8], udp_at: usize, end: usize) -> Result<usize, EspRefusal> {
    let &[_, _, d0, d1, l0, l1, _, _] = bytes_at::<UDP_BYTES>(first, udp_at).ok_or(EspRefusal::BadLength)?;
    if u16::from_be_bytes([d0, d1]) != ESP_UDP_PORT {
        return Err(EspRefusal::NotEsp);
    }
    if udp_at + usize::from(u16::from_be_bytes([l0, l1])) != end {
        return Err(EspRefusal::BadLength);
    }
    // A keepalive is one byte, and IKE begins with an SPI of 0 (RFC 3948 2).
    let esp_at = udp_at + UDP_BYTES;
    match bytes_at::<4>(first, esp_at) {
        Some([0, 0, 0, 0]) => Err(EspRefusal::NotEsp),
        None if end == esp_at + 1 => Err(EspRefusal::NotEsp),
        None => Err(EspRefusal::BadLength),
        Some(_) => Ok(esp_at),
    }
}

/// Copies the bytes from `at` of the pieces until `target` is full.
fn gather(frame: &Segments<'_>, at: usize, target: &mut [u8]) {
    let (mut skip, mut filled) = (at, 0);
    for piece in frame {
        let behind = piece.get(skip..).unwrap_or_default();
        skip -= piece.len() - behind.len();
        let now = behind.len().min(target.len() - filled);
        target[filled..filled + now].copy_from_slice(&behind[..now]);
        filled += now;
    }
}

/// An authentic frame: headers as received, plaintext, trailer.
#[derive(Debug)]
pub struct OpenedFrame<'s> {
    frame: &'s mut [u8],
    ip_at: usize,
    ip_end: usize,
}

impl<'s> OpenedFrame<'s> {
    /// The plain frame: protocol, length and IPv4 checksum are those that the sender's had. Its
    /// addresses are those of the frame of ESP, because transport mode has one IP header.
    ///
    /// # Errors
    /// [`EspRefusal::BadPad`], [`EspRefusal::Dummy`], [`EspRefusal::NotUdp`] or
    /// [`EspRefusal::NotRoce`].
    pub fn plain(self) -> Result<&'s [u8], EspRefusal> {
        let Self { frame, ip_at, ip_end } = self;
        let (rest, &[pad_bytes, next_header]) = frame[ip_end..].split_last_chunk().expect("`read` checked its length");
        if next_header == NEXT_HEADER_NONE {
            return Err(EspRefusal::Dummy);
        }
        let payload_bytes = rest.len().checked_sub(pad_bytes.into()).ok_or(EspRefusal::BadPad)?;
        // A receiver checks the pad (RFC 4303 2.4).
        if !rest[payload_bytes..].iter().zip(1..=u8::MAX).all(|(byte, number)| *byte == number) {
            return Err(EspRefusal::BadPad);
        }
        if next_header != PROTOCOL_UDP {
            return Err(EspRefusal::NotUdp);
        }
        let frame = &mut frame[..ip_end + payload_bytes];
        let ip_header = &mut frame[ip_at..ip_end];
        set_protocol(ip_header, PROTOCOL_UDP, payload_bytes).expect("it is shorter than the received packet");
        match NetworkHeader::read(frame, frame.len()) {
            Ok(NetworkHeader { roce: Roce::V2 { .. }, end, .. }) if end == frame.len() => Ok(frame),
            _ => Err(EspRefusal::NotRoce),
        }
    }
}

const _: () = assert!(TRAILER_BYTES == 2);
