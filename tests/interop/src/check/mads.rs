//! Datagrams of the connection manager (IBTA v1 12.6, annex A17), and the agreement of the data
//! packets with them: starting PSNs, UDP source ports.

use std::{collections::BTreeMap, net::IpAddr};

use super::{psn::distance, rules::Findings};
use crate::{
    compare::{port_of_label, source_port},
    scenario::Side,
    trace::{Datagram, Seen, Service},
};

const BYTES: usize = 256;
const QKEY: u32 = 0x8001_0000;
/// The header of the datagram.
const HEADER: usize = 24;

const REQ: u16 = 0x10;
const REP: u16 = 0x13;
const DREQ: u16 = 0x15;

/// Reserved bits of a message: first byte from the end of the header on, number of bytes, mask.
type Reserved = (usize, usize, u8);

/// Of each message, by its attribute.
const RESERVED: [(u16, &[Reserved]); 9] = [
    // Behind the first, options that no side uses, and the alternate path.
    (
        REQ,
        &[
            (4, 4, 0xff),
            (24, 8, 0xff),
            (36, 3, 0xff),
            (40, 3, 0xff),
            (50, 1, 0x08),
            (90, 1, 0x0f),
            (91, 1, 0xc0),
            (94, 1, 0x07),
            (95, 1, 0x07),
            (96, 44, 0xff),
        ],
    ),
    (0x11, &[(8, 1, 0x3f), (9, 1, 0x07)]),
    (0x12, &[(8, 1, 0x3f), (9, 1, 0x01)]),
    (REP, &[(8, 4, 0xff), (15, 5, 0xff), (23, 1, 0xff), (27, 1, 0x0f)]),
    (0x14, &[]),
    (DREQ, &[(11, 1, 0xff)]),
    (0x16, &[]),
    (0x17, &[(6, 2, 0xff)]),
    (0x18, &[(6, 2, 0xff), (11, 1, 0xff)]),
];

fn be24(bytes: &[u8], at: usize) -> u32 {
    be32(bytes, at) >> 8
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// As a GID.
fn gid(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// One datagram by itself. Returns its error.
fn check_alone(seen: &Seen, mad: &Datagram) -> Result<(), String> {
    let bytes = &mad.bytes[..];
    if bytes.len() != BYTES || seen.opcode != 0x64 {
        return Err(format!("{} bytes, opcode 0x{:02x}", bytes.len(), seen.opcode));
    }
    if (mad.qkey, mad.source_qpn) != (QKEY, 1) {
        return Err(format!("Q_Key 0x{:08x}, from queue pair {}", mad.qkey, mad.source_qpn));
    }
    if seen.ip.hop_limit != 64 {
        return Err(format!("hop limit {}", seen.ip.hop_limit));
    }
    // Version, class and its version, Send; no status.
    if bytes[..8] != [1, 7, 2, 3, 0, 0, 0, 0] || bytes[18..24] != [0; 6] {
        return Err(format!("header {:02x?}", &bytes[..HEADER]));
    }
    let attribute = u16::from_be_bytes([bytes[16], bytes[17]]);
    let body = &bytes[HEADER..];
    let Some((_, reserved)) = RESERVED.iter().find(|it| it.0 == attribute) else {
        return Err(format!("attribute 0x{attribute:04x}"));
    };
    let is_set = |(at, count, mask): &&Reserved| body[*at..at + count].iter().any(|byte| byte & mask != 0);
    if let Some((at, count, mask)) = reserved.iter().find(is_set) {
        let bytes = &body[*at..at + count];
        return Err(format!("attribute 0x{attribute:04x}, reserved bits 0x{mask:02x} of byte {at}: {bytes:02x?}"));
    }
    match attribute {
        REQ => check_adapter(&body[16..24]).and_then(|()| check_req(seen, body)),
        REP => check_adapter(&body[28..36]),
        0x17 => check_addresses(seen, &body[16..52]),
        _ => Ok(()),
    }
}

/// By its GUID the peer tells connections of one host from those of others.
fn check_adapter(guid: &[u8]) -> Result<(), String> {
    if *guid == [0; 8] { Err("no CA GUID".into()) } else { Ok(()) }
}

fn check_req(seen: &Seen, body: &[u8]) -> Result<(), String> {
    if body[48..50] != [0xff; 2] || body[52..56] != [0xff; 4] {
        return Err(format!("P_Key and LIDs {:02x?}", &body[48..56]));
    }
    if body[56..72] != gid(seen.ip.source) || body[72..88] != gid(seen.ip.destination) {
        return Err(format!("GIDs {:02x?} between {} and {}", &body[56..88], seen.ip.source, seen.ip.destination));
    }
    check_addresses(seen, &body[140..176])
}

/// The header by which a request names IP addresses.
fn check_addresses(seen: &Seen, header: &[u8]) -> Result<(), String> {
    let octets = |address: IpAddr| match address {
        IpAddr::V4(v4) => (0x40, v4.to_ipv6_compatible().octets()),
        IpAddr::V6(v6) => (0x60, v6.octets()),
    };
    let ((version, from), (_, to)) = (octets(seen.ip.source), octets(seen.ip.destination));
    if header[..2] != [0, version] || header[4..20] != from || header[20..36] != to {
        return Err(format!("addresses {header:02x?} between {} and {}", seen.ip.source, seen.ip.destination));
    }
    Ok(())
}

/// One end of a connection, by the datagram of the other end's that names it.
#[derive(Clone, Copy, Debug)]
struct ConnectedEnd {
    other_qpn: u32,
    /// PSN of the first request to it.
    first_psn: u32,
    source_port: u16,
    is_begun: bool,
}

/// An end of a connection, by the side that has it and its QPN.
type EndKey = (Side, u32);

/// Connections as the datagrams make them, in the order of the frames of one port.
#[derive(Debug, Default)]
struct ConnectedEnds {
    /// QPN, starting PSN and flow label in a REQ, by its sender and number.
    requests: BTreeMap<(Side, u32), (u32, u32, u32)>,
    ends: BTreeMap<EndKey, ConnectedEnd>,
}

impl ConnectedEnds {
    fn take(&mut self, seen: &Seen, mad: &Datagram) {
        if mad.bytes.len() != BYTES {
            return;
        }
        let body = &mad.bytes[HEADER..];
        match u16::from_be_bytes([mad.bytes[16], mad.bytes[17]]) {
            REQ => {
                let request = (be24(body, 32), be24(body, 44), be32(body, 88) >> 12);
                self.requests.insert((seen.from, be32(body, 0)), request);
            }
            REP => {
                let Some(&(qpn, psn, label)) = self.requests.get(&(seen.from.other(), be32(body, 4))) else { return };
                let (own_qpn, own_psn) = (be24(body, 12), be24(body, 20));
                let port = if label == 0 { source_port(qpn, own_qpn) } else { port_of_label(label) };
                let mut connect = |key: EndKey, other_qpn, first_psn| {
                    let end = ConnectedEnd { other_qpn, first_psn, source_port: port, is_begun: false };
                    // A repetition.
                    if self.ends.get(&key).is_none_or(|it| (it.other_qpn, it.first_psn) != (other_qpn, first_psn)) {
                        self.ends.insert(key, end);
                    }
                };
                connect((seen.from.other(), qpn), own_qpn, psn);
                connect((seen.from, own_qpn), qpn, own_psn);
            }
            _ => {}
        }
    }

    fn of(&mut self, seen: &Seen) -> Option<&mut ConnectedEnd> {
        let is_connected = seen.intact && seen.service != Service::Ud;
        self.ends.get_mut(&(seen.from.other(), seen.dest_qpn)).filter(|_| is_connected)
    }
}

/// Datagrams that `side` sent, and its packets of connections that datagrams made.
pub(super) fn check(frames: &[Seen], side: Side, findings: &mut Findings) {
    let mut ends = ConnectedEnds::default();
    for seen in frames.iter().filter(|seen| seen.intact) {
        if let Some(mad) = &seen.mad {
            ends.take(seen, mad);
            if seen.from == side
                && let Err(why) = check_alone(seen, mad)
            {
                findings.add("mad", seen, why);
            }
        } else if let Some(end) = ends.of(seen)
            && seen.from == side
        {
            if seen.source_port != end.source_port {
                findings.add("source-port", seen, format!("{}, not {}", seen.source_port, end.source_port));
            }
            if !seen.kind.is_response() && !end.is_begun {
                end.is_begun = true;
                if distance(seen.psn, end.first_psn) != 0 {
                    findings.add("first-psn", seen, format!("{}, not {}", seen.psn, end.first_psn));
                }
            }
        }
    }
}

/// Gives packets of connections with a flow label the UDP source port that they would have without:
/// made of both QPNs, by which connections are told apart.
pub(crate) fn forget_labels(frames: &mut [Seen]) {
    let mut ends = ConnectedEnds::default();
    for seen in frames.iter_mut().filter(|seen| seen.intact) {
        if let Some(mad) = seen.mad.clone() {
            ends.take(seen, &mad);
        } else if let Some(end) = ends.of(seen)
            && seen.source_port == end.source_port
        {
            seen.source_port = source_port(seen.dest_qpn, end.other_qpn);
        }
    }
}
