//! ACK extended transport header: how a request fared (IBTA v1 9.3.5, 9.7.5.1).

use crate::clock::Nanos;

/// An ACK extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aeth {
    /// How it fared.
    pub syndrome: Syndrome,
    /// Messages that the responder has completed, 24 bits that wrap.
    pub msn: u32,
}

/// The syndrome byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syndrome {
    /// Done.
    Ack {
        /// End-to-end flow control credits, five bits as encoded; [`Syndrome::NO_CREDITS`] says
        /// that they are not in use.
        credit: u8,
    },
    /// No receive work request was there: wait [`rnr_delay`] and send it again.
    Rnr {
        /// How long, five bits as encoded.
        timer: u8,
    },
    /// Refused.
    Nak(NakCode),
    /// An undefined value.
    Reserved(u8),
}

/// Why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum NakCode {
    /// A packet before it is missing.
    PsnSequence = 0x60,
    /// It breaks the rules of its operation.
    InvalidRequest = 0x61,
    /// Its key, range or right does not hold.
    RemoteAccess = 0x62,
    /// The responder itself failed.
    RemoteOperation = 0x63,
    /// Reliable datagram only.
    InvalidRdRequest = 0x64,
}

impl Syndrome {
    /// The credit value that says "no end-to-end flow control".
    pub const NO_CREDITS: u8 = 0x1f;

    /// The ACK we send: no end-to-end flow control.
    pub const ACK: Self = Self::Ack { credit: Self::NO_CREDITS };

    /// The meaning of `byte`.
    #[inline]
    pub const fn from_byte(byte: u8) -> Self {
        match byte {
            0x00..=0x1f => Self::Ack { credit: byte },
            0x20..=0x3f => Self::Rnr { timer: byte & 0x1f },
            0x60 => Self::Nak(NakCode::PsnSequence),
            0x61 => Self::Nak(NakCode::InvalidRequest),
            0x62 => Self::Nak(NakCode::RemoteAccess),
            0x63 => Self::Nak(NakCode::RemoteOperation),
            0x64 => Self::Nak(NakCode::InvalidRdRequest),
            _ => Self::Reserved(byte),
        }
    }

    /// The byte.
    #[inline]
    pub const fn to_byte(self) -> u8 {
        match self {
            Self::Ack { credit } => credit & 0x1f,
            Self::Rnr { timer } => 0x20 | timer & 0x1f,
            Self::Nak(code) => code as u8,
            Self::Reserved(byte) => byte,
        }
    }
}

impl Aeth {
    /// Bytes on the wire.
    pub const BYTES: usize = 4;

    /// The header in `bytes`.
    #[inline]
    pub const fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        let [syndrome, msn0, msn1, msn2] = *bytes;
        Self { syndrome: Syndrome::from_byte(syndrome), msn: u32::from_be_bytes([0, msn0, msn1, msn2]) }
    }

    /// The header as bytes; the low 24 bits of the MSN.
    #[inline]
    pub const fn to_bytes(self) -> [u8; Self::BYTES] {
        let [_, msn0, msn1, msn2] = self.msn.to_be_bytes();
        [self.syndrome.to_byte(), msn0, msn1, msn2]
    }
}

/// How long an RNR NAK with `timer` (five bits) asks to wait (IBTA v1 table 45).
pub const fn rnr_delay(timer: u8) -> Nanos {
    /// Hundredths of a millisecond.
    const DELAYS: [u32; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072,
        4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    Nanos::from_micros(DELAYS[(timer & 0x1f) as usize] as u64 * 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_syndrome_byte_comes_back() {
        for byte in 0..=255 {
            assert_eq!(Syndrome::from_byte(byte).to_byte(), byte);
        }
        assert_eq!(Syndrome::from_byte(0x2c), Syndrome::Rnr { timer: 12 });
        assert_eq!(Syndrome::from_byte(0x1f), Syndrome::ACK);
        assert_eq!(Syndrome::from_byte(0x5f), Syndrome::Reserved(0x5f));
        assert_eq!(Syndrome::from_byte(0x80), Syndrome::Reserved(0x80));
    }

    #[test]
    fn the_msn_has_24_bits() {
        let aeth = Aeth { syndrome: Syndrome::Nak(NakCode::PsnSequence), msn: 0xab01_0203 };
        assert_eq!(aeth.to_bytes(), [0x60, 1, 2, 3]);
        assert_eq!(Aeth::from_bytes(&[0x60, 1, 2, 3]).msn, 0x01_0203);
    }

    #[test]
    fn rnr_delays_are_the_specifications() {
        assert_eq!(rnr_delay(0), Nanos::from_micros(655_360));
        assert_eq!(rnr_delay(1), Nanos::from_micros(10));
        assert_eq!(rnr_delay(12), Nanos::from_micros(640));
        assert_eq!(rnr_delay(31), Nanos::from_micros(491_520));
        // From 2 on each value is twice the one two before it, as far as hundredths go.
        for timer in 4..32 {
            assert_eq!(rnr_delay(timer).0, rnr_delay(timer - 2).0 * 2, "timer {timer}");
        }
    }
}
