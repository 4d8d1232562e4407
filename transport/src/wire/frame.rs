//! Frames in: [`parse`] checks every length once and gives a [`Packet`].
//!
//! ```text
//!   first piece                                                  further pieces
//!   Ethernet VLAN? | IP UDP BTH extension headers | payload ...  ... payload | pad | ICRC | Ethernet padding
//!                  └─────────── head ─────────────┘└────────── body ──────────────┘
//! ```

use roced_types::Qpn;

use super::{
    Aeth, AtomicAck, AtomicEth, Bth, Deth, Feth, Ieth, Imm, OpcodeInfo, Reth, bytes_at, ecn,
    icrc::{ICRC_BYTES, Icrc},
    network::{IPV4_BYTES, IPV6_BYTES, NetworkHeader, Roce, peek_bth, udp_checksum_holds},
};
use crate::{
    io::{BorrowedPayload, Payload, SEGMENTS_MAX, Segments},
    reject::DropReason,
};

/// A frame with all lengths checked. Accessors cannot fail.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// The base transport header.
    pub bth: Bth,
    /// Entry of the table for its opcode.
    pub info: &'static OpcodeInfo,
    /// GID of the sender.
    pub source: [u8; 16],
    /// GID of the receiver.
    pub destination: [u8; 16],
    /// DSCP and ECN, from the IPv4 type of service or the IPv6 traffic class.
    pub traffic_class: u8,
    /// Time to live or hop limit.
    pub hop_limit: u8,
    /// Tag control information of the VLAN tag next to the IP header.
    pub vlan: Option<u16>,
    /// Version of RoCE.
    pub roce: Roce,
    /// Of a datagram.
    pub deth: Option<Deth>,
    /// Of a FLUSH.
    pub feth: Option<Feth>,
    /// Of a READ request, a FLUSH, an atomic WRITE, and of the first packet of a WRITE.
    pub reth: Option<Reth>,
    /// Of an atomic request.
    pub atomic: Option<AtomicEth>,
    /// Of an ACK, of an atomic ACK, and of READ responses but the middle ones.
    pub aeth: Option<Aeth>,
    /// Of an atomic ACK.
    pub atomic_ack: Option<AtomicAck>,
    /// Of the last packet of a message that hands over 32 bits.
    pub imm: Option<Imm>,
    /// Of the last packet of a SEND that takes back a key.
    pub ieth: Option<Ieth>,
    /// IP header or GRH to last extension header.
    head: &'a [u8],
    ip_header_bytes: usize,
    /// Payload and pad, in pieces that may be empty.
    body: [&'a [u8]; SEGMENTS_MAX],
    /// Borrowed payload, if any.
    borrowed: &'a [BorrowedPayload],
    payload_bytes: usize,
    icrc: [u8; ICRC_BYTES],
}

impl<'a> Packet<'a> {
    /// The VLAN that it came by. A tag that only gives a priority (VLAN 0, IEEE 802.1Q 6.9) names
    /// none.
    pub const fn vlan_id(&self) -> Option<u16> {
        match self.vlan {
            Some(control) if control & 0x0fff != 0 => Some(control & 0x0fff),
            _ => None,
        }
    }

    /// A switch on its way was congested (annex A17; RoCEv1 has no marks). The ICRC does not cover
    /// the mark, because any router may set it.
    #[inline]
    pub const fn is_marked(&self) -> bool {
        self.traffic_class & ecn::MASK == ecn::MARKED && matches!(self.roce, Roce::V2 { .. })
    }

    /// Bytes of payload, without the pad.
    pub const fn payload_len(&self) -> usize {
        self.payload_bytes
    }

    /// The IP header, without the options that an IPv4 header may have, or the GRH.
    pub fn ip_header(&self) -> &'a [u8] {
        let bytes = if self.is_ipv4() { IPV4_BYTES } else { IPV6_BYTES };
        &self.head[..bytes]
    }

    /// Whether it came by IPv4.
    pub fn is_ipv4(&self) -> bool {
        self.head[0] >> 4 == 4
    }

    /// The payload, piece by piece: [`Self::payload_len`] bytes in all, no piece empty.
    pub fn pieces(&self) -> impl Iterator<Item = Payload<'a>> + use<'a> {
        self.payload().map(Payload::Bytes).chain(self.borrowed.iter().copied().map(Payload::Borrowed))
    }

    /// The payload that is in the frame, piece by piece, no piece empty: [`Self::payload_len`]
    /// bytes in all, or none if it is borrowed.
    pub fn payload(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let mut left = if self.borrowed.is_empty() { self.payload_bytes } else { 0 };
        self.body
            .into_iter()
            .map(move |piece| {
                let now = piece.len().min(left);
                left -= now;
                &piece[..now]
            })
            .filter(|piece| !piece.is_empty())
    }

    /// Checks the sums that cover the whole packet: the UDP checksum, if there is one, and the
    /// ICRC. Nothing in the packet may be believed before.
    ///
    /// # Errors
    /// [`DropReason::BadUdpChecksum`] or [`DropReason::BadIcrc`].
    pub fn check_integrity(&self) -> Result<(), DropReason> {
        let pieces = self.body.into_iter();
        let has_udp = matches!(self.roce, Roce::V2 { .. });
        if has_udp && !udp_checksum_holds(self.head, self.ip_header_bytes, pieces.chain([&self.icrc[..]])) {
            return Err(DropReason::BadUdpChecksum);
        }
        let mut icrc = Icrc::over_headers(self.head, self.ip_header_bytes, self.roce);
        for piece in self.body.iter().filter(|piece| !piece.is_empty()) {
            icrc.add(piece);
        }
        if icrc.finish() == self.icrc { Ok(()) } else { Err(DropReason::BadIcrc) }
    }
}

/// Takes a frame apart, and checks that all its lengths agree. It looks at nothing that covers the
/// payload: see [`Packet::check_integrity`]; nor at the partition key, which the
/// queue pair checks.
///
/// # Errors
/// [`DropReason::NotRoce`], [`DropReason::BadIpChecksum`], [`DropReason::BadVersion`],
/// [`DropReason::UnknownOpcode`] or [`DropReason::BadLength`].
pub fn parse<'a>(frame: &Segments<'a>) -> Result<Packet<'a>, DropReason> {
    parse_with(frame, &[])
}

/// As [`parse`], of a frame with borrowed payload: in `frame` pad and ICRC follow the headers. It
/// never was on a wire, so that nothing in it covers the payload.
///
/// # Errors
/// As [`parse`].
pub fn parse_borrowed<'a>(frame: &'a [u8], borrowed: &'a [BorrowedPayload]) -> Result<Packet<'a>, DropReason> {
    parse_with(&[frame], borrowed)
}

#[inline(always)]
fn parse_with<'a>(frame: &Segments<'a>, borrowed: &'a [BorrowedPayload]) -> Result<Packet<'a>, DropReason> {
    let [first, further @ ..] = frame else { return Err(DropReason::BadLength) };
    if further.len() >= SEGMENTS_MAX {
        return Err(DropReason::BadLength);
    }
    let borrowed_bytes = borrowed.iter().map(BorrowedPayload::len).sum::<usize>();
    let frame_bytes = first.len() + further.iter().map(|piece| piece.len()).sum::<usize>() + borrowed_bytes;
    let network = NetworkHeader::read(first, frame_bytes)?;

    let bth_at = network.bth_at;
    let bytes: &[u8; Bth::BYTES] = bytes_at(first, bth_at).ok_or(DropReason::BadLength)?;
    if bth_at + Bth::BYTES + ICRC_BYTES > network.end {
        return Err(DropReason::BadLength);
    }
    if Bth::version(bytes) != 0 {
        return Err(DropReason::BadVersion);
    }
    let bth = Bth::from_bytes(bytes);
    let info = bth.opcode.info().ok_or(DropReason::UnknownOpcode)?;

    let body_at = bth_at + info.header_bytes;
    let head = first.get(network.ip_at..body_at).ok_or(DropReason::BadLength)?;
    let body_bytes = network.end.checked_sub(body_at + ICRC_BYTES).ok_or(DropReason::BadLength)?;
    let payload_bytes = body_bytes.checked_sub(usize::from(bth.pad)).ok_or(DropReason::BadLength)?;
    // The ICRC is at a multiple of four, also without payload. All of the payload is borrowed, or
    // nothing.
    let is_consistent = borrowed_bytes == 0 || borrowed_bytes == payload_bytes;
    if body_bytes % 4 != 0 || (body_bytes > 0 && !info.payload) || !is_consistent {
        return Err(DropReason::BadLength);
    }

    let mut rest = Extensions(&head[head.len() - info.header_bytes + Bth::BYTES..]);
    rest.skip(usize::from(info.has_rdeth) * 4);
    let deth = rest.take_if(info.has_deth).map(Deth::from_bytes);
    rest.skip(usize::from(info.has_xrceth) * 4);
    let feth = rest.take_if(info.has_feth).map(Feth::from_bytes);
    let reth = rest.take_if(info.has_reth).map(Reth::from_bytes);
    let atomic = rest.take_if(info.has_atomic).map(AtomicEth::from_bytes);
    let aeth = rest.take_if(info.has_aeth).map(Aeth::from_bytes);
    let atomic_ack = rest.take_if(info.has_atomic_ack).map(AtomicAck::from_bytes);
    let imm = rest.take_if(info.has_imm).copied();
    let ieth = rest.take_if(info.has_ieth).map(Ieth::from_bytes);

    let (body, icrc) = cut(&first[body_at..], further, body_bytes - borrowed_bytes);
    Ok(Packet {
        bth,
        info,
        source: network.source,
        destination: network.destination,
        traffic_class: network.traffic_class,
        hop_limit: network.hop_limit,
        vlan: network.vlan,
        roce: network.roce,
        deth,
        feth,
        reth,
        atomic,
        aeth,
        atomic_ack,
        imm,
        ieth,
        head,
        ip_header_bytes: network.bth_at - network.roce.udp_bytes() - network.ip_at,
        body,
        borrowed,
        payload_bytes,
        icrc,
    })
}

/// The extension headers that were not taken yet. The table determines their length, so a header of
/// the table is present; a missing one would read as absent.
struct Extensions<'a>(&'a [u8]);

impl<'a> Extensions<'a> {
    fn skip(&mut self, bytes: usize) {
        self.0 = self.0.get(bytes..).unwrap_or_default();
    }

    fn take_if<const N: usize>(&mut self, there: bool) -> Option<&'a [u8; N]> {
        if !there {
            return None;
        }
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(taken)
    }
}

/// The next `body_bytes` behind the headers piece by piece, and the ICRC behind them, which may lie
/// astride.
#[inline(always)]
fn cut<'a>(first: &'a [u8], further: &Segments<'a>, body_bytes: usize) -> ([&'a [u8]; SEGMENTS_MAX], [u8; ICRC_BYTES]) {
    // The usual frame lies in one piece.
    if let Some((all, rest)) = first.split_at_checked(body_bytes)
        && let Some(icrc) = rest.first_chunk()
    {
        return ([all, &[], &[], &[]], *icrc);
    }
    let mut body: [&[u8]; SEGMENTS_MAX] = [&[]; SEGMENTS_MAX];
    let mut icrc = [0; ICRC_BYTES];
    let (mut body_left, mut icrc_filled) = (body_bytes, 0);
    for (piece, slot) in core::iter::once(&first).chain(further).zip(&mut body) {
        let (now, rest) = piece.split_at(piece.len().min(body_left));
        *slot = now;
        body_left -= now.len();
        let more = rest.len().min(ICRC_BYTES - icrc_filled);
        icrc[icrc_filled..icrc_filled + more].copy_from_slice(&rest[..more]);
        icrc_filled += more;
    }
    (body, icrc)
}

/// The destination QPN of a frame, or `None` if it is not RoCE. For every frame that [`parse`]
/// accepts, it equals that of the parsed packet.
pub fn dest_qpn(frame: &Segments<'_>) -> Option<Qpn> {
    let first = frame.first()?;
    let bth: &[u8; Bth::BYTES] = bytes_at(first, peek_bth(first)?)?;
    Some(Bth::from_bytes(bth).dest_qpn)
}

/// The GID that a frame is for, or `None` when its headers do not hold.
pub fn destination(frame: &Segments<'_>) -> Option<[u8; 16]> {
    let frame_bytes = frame.iter().map(|piece| piece.len()).sum();
    Some(NetworkHeader::read(frame.first()?, frame_bytes).ok()?.destination)
}
