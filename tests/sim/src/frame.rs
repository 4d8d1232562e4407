//! A small parser of its own, so that no checker relies on the transport's parser. It takes the
//! transport's frames apart by fixed places: Ethernet, IPv4 without options or IPv6, UDP, BTH and
//! the headers of the opcode.

use std::fmt;

use crate::service::Service;

/// Kinds of packets, by the low five bits of the opcode (IBTA v1 table 38).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Send,
    Write,
    ReadRequest,
    ReadResponse,
    Ack,
    Atomic,
    AtomicAck,
    Flush,
    AtomicWrite,
    /// A request of an opcode that the specification gives no meaning.
    Reserved,
}

/// A datagram extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Deth {
    pub(crate) qkey: u32,
    pub(crate) source_qpn: u32,
}

/// An ACK extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Aeth {
    pub(crate) syndrome: u8,
    pub(crate) msn: u32,
}

/// An RDMA extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reth {
    pub(crate) va: u64,
    pub(crate) rkey: u32,
    pub(crate) length: u32,
}

/// An atomic extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AtomicEth {
    pub(crate) va: u64,
    pub(crate) rkey: u32,
    pub(crate) swap_or_add: u64,
    pub(crate) compare: u64,
}

/// Header fields of a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen<'f> {
    pub(crate) service: Service,
    pub(crate) opcode: u8,
    pub(crate) kind: Kind,
    pub(crate) begins: bool,
    pub(crate) ends: bool,
    pub(crate) solicited: bool,
    pub(crate) ack_request: bool,
    pub(crate) dest_qpn: u32,
    pub(crate) psn: u32,
    pub(crate) deth: Option<Deth>,
    pub(crate) reth: Option<Reth>,
    /// Type and selectivity of a FLUSH.
    pub(crate) feth: Option<u32>,
    pub(crate) aeth: Option<Aeth>,
    pub(crate) atomic: Option<AtomicEth>,
    /// The original value of an atomic operation.
    pub(crate) original: Option<u64>,
    pub(crate) imm: Option<[u8; 4]>,
    /// A key that is to open nothing any more.
    pub(crate) ieth: Option<u32>,
    pub(crate) payload: &'f [u8],
}

impl Seen<'_> {
    /// A request, not an answer.
    pub(crate) const fn is_request(&self) -> bool {
        !matches!(self.kind, Kind::ReadResponse | Kind::Ack | Kind::AtomicAck)
    }
}

impl fmt::Display for Seen<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let aeth =
            self.aeth.map(|aeth| format!(" syndrome {:#04x} msn {}", aeth.syndrome, aeth.msn)).unwrap_or_default();
        let reth = self.reth.map(|reth| format!(" va {:#x} key {:#x} of {}", reth.va, reth.rkey, reth.length));
        write!(
            f,
            "{:#08x} {:?}{}{} psn {}{}{} {} bytes",
            self.dest_qpn,
            self.kind,
            if self.begins { " first" } else { "" },
            if self.ends { " last" } else { "" },
            self.psn,
            if self.ack_request { " A" } else { "" },
            aeth + &reth.unwrap_or_default(),
            self.payload.len()
        )
    }
}

/// Where the BTH begins.
pub(crate) fn bth_at(frame: &[u8]) -> usize {
    14 + if frame[12] == 0x08 { 20 } else { 40 } + 8
}

/// The bytes in front of a datagram for the receiver of this frame: an IPv6 header, or an IPv4
/// header behind zeros (annex A17).
pub(crate) fn grh(frame: &[u8]) -> [u8; 40] {
    let ip = &frame[14..bth_at(frame) - 8];
    let mut grh = [0; 40];
    grh[40 - ip.len()..].copy_from_slice(ip);
    grh
}

/// Whether its IP header is that of IPv4.
pub(crate) fn is_ipv4(frame: &[u8]) -> bool {
    frame[14] >> 4 == 4
}

/// (kind, begins, ends, RETH, AETH, immediate) of the low bits of an opcode.
const fn describe(opcode: u8) -> Option<(Kind, bool, bool, bool, bool, bool)> {
    use Kind::{Ack, Atomic, AtomicAck, AtomicWrite, Flush, ReadRequest, ReadResponse, Reserved, Send, Write};
    Some(match opcode {
        0x00 => (Send, true, false, false, false, false),
        0x01 => (Send, false, false, false, false, false),
        0x02 => (Send, false, true, false, false, false),
        0x03 => (Send, false, true, false, false, true),
        0x04 => (Send, true, true, false, false, false),
        0x05 => (Send, true, true, false, false, true),
        0x06 => (Write, true, false, true, false, false),
        0x07 => (Write, false, false, false, false, false),
        0x08 => (Write, false, true, false, false, false),
        0x09 => (Write, false, true, false, false, true),
        0x0a => (Write, true, true, true, false, false),
        0x0b => (Write, true, true, true, false, true),
        0x0c => (ReadRequest, true, true, true, false, false),
        0x0d => (ReadResponse, true, false, false, true, false),
        0x0e => (ReadResponse, false, false, false, false, false),
        0x0f => (ReadResponse, false, true, false, true, false),
        0x10 => (ReadResponse, true, true, false, true, false),
        0x11 => (Ack, true, true, false, true, false),
        0x12 => (AtomicAck, true, true, false, true, false),
        0x16 => (Send, false, true, false, false, false),
        0x17 => (Send, true, true, false, false, false),
        0x1c => (Flush, true, true, true, false, false),
        0x1d => (AtomicWrite, true, true, true, false, false),
        0x13 | 0x14 => (Atomic, true, true, false, false, false),
        0x15 | 0x18..=0x1b | 0x1e | 0x1f => (Reserved, true, true, false, false, false),
        _ => return None,
    })
}

/// Kind of the packets of an opcode of a reliable connection, and whether they begin and end a
/// message.
pub(crate) const fn kind(opcode: u8) -> Option<(Kind, bool, bool)> {
    match describe(opcode) {
        Some((kind, begins, ends, ..)) => Some((kind, begins, ends)),
        None => None,
    }
}

/// Takes a frame of the transport apart; `None` when it is none that this parser knows.
pub(crate) fn parse(frame: &[u8]) -> Option<Seen<'_>> {
    let at = bth_at(frame);
    let bth = frame.get(at..at + 12)?;
    let opcode = bth[0];
    let service = Service::of_opcode(opcode)?;
    let (kind, begins, ends, has_reth, has_aeth, has_imm) = describe(opcode & 0x1f)?;
    // Without answers there is but SEND and WRITE.
    if !service.is_reliable() && (!matches!(kind, Kind::Send | Kind::Write) || matches!(opcode & 0x1f, 0x16 | 0x17)) {
        return None;
    }
    if service == Service::Datagram && !(begins && ends && kind == Kind::Send) {
        return None;
    }
    let pad = usize::from(bth[1] >> 4 & 3);
    let mut next = at + 12;
    let mut take = |bytes: usize| {
        next += bytes;
        frame.get(next - bytes..next)
    };
    let number = |bytes: &[u8]| bytes.iter().fold(0u64, |number, byte| number << 8 | u64::from(*byte));
    let deth = if service == Service::Datagram {
        let bytes = take(8)?;
        Some(Deth { qkey: number(&bytes[..4]) as u32, source_qpn: number(&bytes[5..]) as u32 })
    } else {
        None
    };
    let feth = if kind == Kind::Flush { Some(number(take(4)?) as u32) } else { None };
    let reth = if has_reth {
        let bytes = take(16)?;
        Some(Reth { va: number(&bytes[..8]), rkey: number(&bytes[8..12]) as u32, length: number(&bytes[12..]) as u32 })
    } else {
        None
    };
    let atomic = if kind == Kind::Atomic {
        let bytes = take(28)?;
        Some(AtomicEth {
            va: number(&bytes[..8]),
            rkey: number(&bytes[8..12]) as u32,
            swap_or_add: number(&bytes[12..20]),
            compare: number(&bytes[20..]),
        })
    } else {
        None
    };
    let aeth = if has_aeth {
        let bytes = take(4)?;
        Some(Aeth { syndrome: bytes[0], msn: number(&bytes[1..]) as u32 })
    } else {
        None
    };
    let original = if kind == Kind::AtomicAck { Some(number(take(8)?)) } else { None };
    let imm = if has_imm { take(4)?.first_chunk().copied() } else { None };
    let ieth = if matches!(opcode, 0x16 | 0x17) { Some(number(take(4)?) as u32) } else { None };
    let payload = frame.get(next..frame.len().checked_sub(4 + pad)?)?;
    Some(Seen {
        service,
        opcode,
        kind,
        begins,
        ends,
        solicited: bth[1] & 0x80 != 0,
        ack_request: bth[8] & 0x80 != 0,
        dest_qpn: number(&bth[5..8]) as u32,
        psn: number(&bth[9..12]) as u32,
        deth,
        reth,
        feth,
        aeth,
        atomic,
        original,
        imm,
        ieth,
        payload,
    })
}

/// A frame as a line of a trace has it.
pub(crate) fn line(bytes: &[u8]) -> String {
    parse(bytes).map(|seen| seen.to_string()).unwrap_or_default()
}
