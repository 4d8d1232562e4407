//! Management datagrams as checkers read them: at the offsets of IBTA v1 12.6, without the code
//! under test.

use super::numbers::digest;

/// Kinds of message, in the order of their attribute numbers, from 0x10 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum MadKind {
    Req,
    Mra,
    Rej,
    Rep,
    Rtu,
    Dreq,
    Drep,
    SidrReq,
    SidrRep,
}

impl MadKind {
    pub(crate) const ALL: [Self; 9] =
        [Self::Req, Self::Mra, Self::Rej, Self::Rep, Self::Rtu, Self::Dreq, Self::Drep, Self::SidrReq, Self::SidrRep];
}

/// A message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SeenMad {
    pub(crate) kind: MadKind,
    /// The sender's number of the connection; 0 is none.
    pub(crate) own: u32,
    /// The receiver's.
    pub(crate) other: u32,
    /// Queue pair of a REQ or REP; of a DREQ the receiver's.
    pub(crate) qpn: u32,
    /// Reason of a REJ, status of a SIDR_REP.
    pub(crate) reason: u16,
    /// Digest of all bytes.
    pub(crate) digest: u64,
}

/// Bytes of a management datagram, and where its message begins.
pub(crate) const BYTES: usize = 256;
const BODY: usize = 24;

/// Headers of a frame behind IP: UDP, BTH, DETH.
const BEHIND_IP: usize = 8 + 12 + 8;

impl SeenMad {
    /// The message in the payload of a datagram.
    pub(crate) fn of_bytes(bytes: &[u8]) -> Option<Self> {
        if bytes.len() != BYTES || bytes[..4] != [1, 7, 2, 3] {
            return None;
        }
        let attribute = usize::from(u16::from_be_bytes([bytes[16], bytes[17]]));
        let kind = *MadKind::ALL.get(attribute.checked_sub(0x10)?)?;
        let word = |at: usize| u32::from_be_bytes(std::array::from_fn(|byte| bytes[BODY + at + byte]));
        let short = |at: usize| u16::from_be_bytes([bytes[BODY + at], bytes[BODY + at + 1]]);
        let (own, other) = match kind {
            MadKind::Req | MadKind::SidrReq => (word(0), 0),
            MadKind::SidrRep => (0, word(0)),
            _ => (word(0), word(4)),
        };
        let qpn = match kind {
            MadKind::Req => word(32) >> 8,
            MadKind::Rep => word(12) >> 8,
            MadKind::Dreq | MadKind::SidrRep => word(8) >> 8,
            _ => 0,
        };
        let reason = match kind {
            MadKind::Rej => short(10),
            MadKind::SidrRep => bytes[BODY + 4].into(),
            _ => 0,
        };
        Some(Self { kind, own, other, qpn, reason, digest: digest(bytes) })
    }

    /// The message in a frame to queue pair 1.
    pub(crate) fn of_frame(frame: &[u8]) -> Option<Self> {
        let ip = if frame.get(12..14)? == [0x08, 0x00] { 20 } else { 40 };
        let at = 14 + ip + BEHIND_IP;
        Self::of_bytes(frame.get(at..at + BYTES)?)
    }
}
