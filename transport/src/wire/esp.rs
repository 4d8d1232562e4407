//! IPsec ESP in transport mode (RFC 4303) around frames of RoCEv2, without cryptography and keys.
//!
//! ```text
//!   plain   Ethernet VLAN? | IP |                    UDP BTH ... payload pad ICRC
//!   ESP     Ethernet VLAN? | IP | SPI sequence IV  | UDP BTH ... payload pad ICRC  1 2  2  17 | ICV
//!                               └ authenticated ┘  └───────────── ciphertext ───────────────┘
//!   in UDP  Ethernet VLAN? | IP | UDP 4500 | SPI sequence IV | ciphertext                     | ICV
//!
//!   out     Path::fill ─► PlainFrame::read ─► seal, with a number of SequenceSource ─► the NIC
//!   in      the NIC ─► EspFrame::read ─► ReplayWindow::check ─► open ─► ReplayWindow::mark ─► plain
//! ```
//!
//! The ICRC inside is that of the packet without ESP: protocol 17 and the length of the plain
//! packet. A sender builds the plain frame and seals it; a receiver restores the plain frame.
//! Transport mode has one IP header: DSCP, ECN, hop limit and flow label are those of the plain
//! frame, so congestion marks and priorities work as without ESP.
//!
//! An [`Aead`] is AES-GCM as RFC 4106 has it: a nonce of a salt, which belongs to the key, and an
//! IV of 8 bytes that is sent; an ICV of 16 bytes.

mod open;
mod refusal;
mod replay;
mod seal;
mod sequence;

pub use open::{EspFrame, OpenedFrame};
pub use refusal::{EspRefusal, EspRefusals};
pub use replay::{REPLAY_WINDOW, ReplayWindow};
pub use seal::{EspHeader, PlainFrame};
pub use sequence::{EspSequence, Numbering, SequenceRun, SequenceSource, SequenceSpent};

use super::{
    network::{IPV4_BYTES, UDP_BYTES, fold, sum_words},
    path::largest_path_mtu,
};
use thiserror::Error;

/// Bytes of an IV.
pub const IV_BYTES: usize = 8;

/// Bytes of an ICV. Shorter ones (RFC 4106 6) are not supported.
pub const ICV_BYTES: usize = 16;

/// SPI, sequence number, IV.
const HEADER_BYTES: usize = 16;

/// Pad length and next header.
const TRAILER_BYTES: usize = 2;

/// Most bytes behind a plain frame when it is sealed: pad, trailer, ICV.
pub const TAIL_BYTES_MAX: usize = PAD_BYTES_MAX + TRAILER_BYTES + ICV_BYTES;

/// Most bytes of pad that we send.
const PAD_BYTES_MAX: usize = 3;

/// The IP protocol ESP.
const PROTOCOL_ESP: u8 = 50;

/// Next header of a dummy packet (RFC 4303 2.6).
const NEXT_HEADER_NONE: u8 = 59;

/// UDP port of ESP in UDP, of both sides (RFC 3948). A NAT device between would break the ICRC,
/// which covers the addresses, so that no other port occurs.
const ESP_UDP_PORT: u16 = 4500;

/// AES-GCM with a key and its salt, or another AEAD with the same sizes.
pub trait Aead {
    /// Encrypts `in_out` in place and returns the ICV over it and `aad`. An IV is used once.
    fn seal(&self, iv: [u8; IV_BYTES], aad: &[u8], in_out: &mut [u8]) -> [u8; ICV_BYTES];

    /// Decrypts `sealed`, ciphertext and ICV, to `plain`, which has the length of the ciphertext.
    ///
    /// # Errors
    /// [`BadIcv`]. The bytes of `plain` have no meaning.
    fn open(&self, iv: [u8; IV_BYTES], aad: &[u8], sealed: &[u8], plain: &mut [u8]) -> Result<(), BadIcv>;

    /// Decrypts `sealed`, ciphertext and ICV, in place: the plaintext takes the place of the
    /// ciphertext.
    ///
    /// # Errors
    /// [`BadIcv`]. The bytes of `sealed` have no meaning.
    fn open_in_place(&self, iv: [u8; IV_BYTES], aad: &[u8], sealed: &mut [u8]) -> Result<(), BadIcv>;
}

/// The ICV is not that of ciphertext and header: forged, changed, or sealed with another key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the ICV does not hold")]
pub struct BadIcv;

/// A security parameters index. 1 to 255 are reserved, and 0 says that a packet is not ESP (RFC
/// 4303 2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Spi(u32);

impl Spi {
    /// The SPI `number`, or `None` if it is reserved.
    pub const fn new(number: u32) -> Option<Self> {
        if number > 255 { Some(Self(number)) } else { None }
    }

    /// Its number.
    pub const fn get(self) -> u32 {
        self.0
    }
}

/// Headers between IP and ciphertext.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encapsulation {
    /// ESP behind IP.
    Esp,
    /// ESP behind a UDP header (RFC 3948).
    EspInUdp,
}

impl Encapsulation {
    /// Bytes between IP header and ciphertext. A plain frame to be sealed in place lies that far
    /// behind the begin of its buffer.
    pub const fn header_bytes(self) -> usize {
        match self {
            Self::Esp => HEADER_BYTES,
            Self::EspInUdp => UDP_BYTES + HEADER_BYTES,
        }
    }

    /// Bytes by which ESP makes a frame of RoCEv2 longer. Its UDP datagram is a multiple of four
    /// bytes, so the pad is always two.
    pub const fn overhead_bytes(self) -> usize {
        self.header_bytes() + pad_bytes(0) + TRAILER_BYTES + ICV_BYTES
    }

    /// Largest path MTU for which the longest packet fits a link with an MTU of `link_mtu_bytes`,
    /// or `None` if even 256 does not: that of a plain frame on a link which is smaller by
    /// [`Self::overhead_bytes`].
    pub const fn largest_path_mtu(self, link_mtu_bytes: u32, ipv4: bool) -> Option<u32> {
        match link_mtu_bytes.checked_sub(self.overhead_bytes() as u32) {
            Some(left) => largest_path_mtu(left, ipv4),
            None => None,
        }
    }
}

/// Bytes of pad behind a payload: payload, pad and trailer are a multiple of four (RFC 4303 2.4).
const fn pad_bytes(payload_bytes: usize) -> usize {
    (TRAILER_BYTES.wrapping_sub(payload_bytes)) & PAD_BYTES_MAX
}

/// Additional authenticated data of a packet (RFC 4106 5): SPI and the low half of the number, as
/// sent, or with the high half, which is not sent, between them.
struct Aad {
    bytes: [u8; 12],
    used: usize,
}

impl Aad {
    fn new(spi: Spi, sequence: EspSequence, numbering: Numbering) -> Self {
        let [s0, s1, s2, s3] = spi.get().to_be_bytes();
        let [h0, h1, h2, h3, l0, l1, l2, l3] = sequence.get().to_be_bytes();
        match numbering {
            Numbering::Short => Self { bytes: [s0, s1, s2, s3, l0, l1, l2, l3, 0, 0, 0, 0], used: 8 },
            Numbering::Extended => Self { bytes: [s0, s1, s2, s3, h0, h1, h2, h3, l0, l1, l2, l3], used: 12 },
        }
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.used]
    }
}

/// Writes protocol and length of the IP packet that begins with `ip_header` and has `payload_bytes`
/// behind it; of IPv4 the checksum as well. `None` if the packet is longer than IP can say.
fn set_protocol(ip_header: &mut [u8], protocol: u8, payload_bytes: usize) -> Option<()> {
    if ip_header[0] >> 4 == 4 {
        let total = u16::try_from(ip_header.len() + payload_bytes).ok()?;
        ip_header[2..4].copy_from_slice(&total.to_be_bytes());
        ip_header[9] = protocol;
        ip_header[10..12].fill(0);
        let sum = fold(sum_words(ip_header));
        ip_header[10..12].copy_from_slice(&(!sum).to_be_bytes());
    } else {
        ip_header[4..6].copy_from_slice(&u16::try_from(payload_bytes).ok()?.to_be_bytes());
        ip_header[6] = protocol;
    }
    Some(())
}

const _: () = assert!(IPV4_BYTES == 20 && Encapsulation::Esp.overhead_bytes() == 36);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_spis_are_none() {
        assert_eq!([0, 1, 255].map(Spi::new), [None; 3]);
        assert_eq!([256, u32::MAX].map(|number| Spi::new(number).map(Spi::get)), [Some(256), Some(u32::MAX)]);
    }

    #[test]
    fn a_pad_aligns_to_four() {
        assert_eq!([0, 1, 2, 3, 4, 5].map(pad_bytes), [2, 1, 0, 3, 2, 1]);
        for payload in 0..100 {
            assert_eq!((payload + pad_bytes(payload) + TRAILER_BYTES) % 4, 0);
        }
    }

    #[test]
    fn esp_takes_its_bytes_from_the_path_mtu() {
        let (esp, udp) = (Encapsulation::Esp, Encapsulation::EspInUdp);
        assert_eq!((esp.overhead_bytes(), udp.overhead_bytes()), (36, 44));
        let largest = |link| [esp, udp].map(|it| [true, false].map(|ipv4| it.largest_path_mtu(link, ipv4)));
        assert_eq!(largest(1500), [[Some(1024); 2]; 2]);
        assert_eq!(largest(4200), [[Some(4096), Some(2048)], [Some(2048); 2]]);
        assert_eq!(largest(9000), [[Some(4096); 2]; 2]);
        // IP, UDP, BTH, RETH, immediate data, ICRC: 64 with IPv4, 84 with IPv6.
        for (encapsulation, ipv4, needed) in
            [(esp, true, 4196), (esp, false, 4216), (udp, true, 4204), (udp, false, 4224)]
        {
            assert_eq!(encapsulation.largest_path_mtu(needed, ipv4), Some(4096));
            assert_eq!(encapsulation.largest_path_mtu(needed - 1, ipv4), Some(2048));
        }
        assert_eq!([0, 35, 36, 355].map(|link| esp.largest_path_mtu(link, true)), [None; 4]);
        assert_eq!(esp.largest_path_mtu(356, true), Some(256));
    }
}
