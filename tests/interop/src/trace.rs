//! A capture at one port of the switch: the frames that one side sent, and those that it was sent,
//! as a list. Read by fixed places and without a line of roced's own parser: Ethernet, IPv4 without
//! options or IPv6, UDP, BTH and the headers of the opcode.

use std::{
    collections::BTreeSet,
    fs::File,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::Path,
};

use anyhow::{Context as _, Result, ensure};
use pcap_file::pcap::PcapReader;

use crate::scenario::Side;

/// Transport services, by the high three bits of the opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Service {
    Rc,
    Uc,
    Ud,
    /// Notifications of congestion (annex A17.9).
    Cnp,
}

/// Kinds of packets, by the low five.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Send,
    Write,
    ReadRequest,
    ReadResponse,
    Ack,
    Atomic,
    AtomicAck,
    Notification,
}

impl Kind {
    pub(crate) fn is_response(self) -> bool {
        matches!(self, Self::ReadResponse | Self::Ack | Self::AtomicAck)
    }
}

/// A frame.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    /// Its number in the capture, from 1, as tshark counts.
    pub(crate) number: usize,
    /// Since the epoch.
    pub(crate) at_ns: u64,
    pub(crate) from: Side,
    /// Its ICRC holds.
    pub(crate) intact: bool,
    pub(crate) service: Service,
    pub(crate) kind: Kind,
    pub(crate) opcode: u8,
    pub(crate) begins: bool,
    pub(crate) ends: bool,
    pub(crate) solicited: bool,
    pub(crate) mig_req: bool,
    pub(crate) pad: u8,
    pub(crate) version: u8,
    pub(crate) pkey: u16,
    /// FECN, BECN and reserved bits.
    pub(crate) byte4: u8,
    pub(crate) dest_qpn: u32,
    pub(crate) ack_request: bool,
    pub(crate) psn: u32,
    /// Address and length in the RETH.
    pub(crate) dma_va: Option<u64>,
    pub(crate) dma_bytes: Option<u32>,
    pub(crate) syndrome: Option<u8>,
    pub(crate) msn: u32,
    pub(crate) has_imm: bool,
    pub(crate) payload_bytes: u32,
    /// Tells payloads apart.
    pub(crate) payload_sum: u64,
    pub(crate) ip: Ip,
    pub(crate) source_port: u16,
    pub(crate) udp_checksum: u16,
    /// Bytes behind the IP packet.
    pub(crate) trailer_bytes: usize,
    /// Of a packet to queue pair 1.
    pub(crate) mad: Option<Datagram>,
}

impl Seen {
    /// How many PSNs it stands for: a READ request for those of its responses.
    pub(crate) fn packets(&self, mtu: u32) -> u32 {
        match self.kind {
            Kind::ReadRequest => self.dma_bytes.unwrap_or(0).div_ceil(mtu).max(1),
            _ => 1,
        }
    }

    pub(crate) fn is_only_write(&self) -> bool {
        self.kind == Kind::Write && self.begins && self.ends
    }
}

/// A management datagram.
#[derive(Clone, Debug)]
pub(crate) struct Datagram {
    pub(crate) qkey: u32,
    pub(crate) source_qpn: u32,
    pub(crate) bytes: Vec<u8>,
}

/// The relevant fields of an IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ip {
    pub(crate) is_v4: bool,
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    pub(crate) traffic_class: u8,
    pub(crate) hop_limit: u8,
    /// IPv4: identification.
    pub(crate) id: u16,
    /// IPv4: may not be cut into fragments.
    pub(crate) dont_fragment: bool,
    /// IPv6.
    pub(crate) flow_label: u32,
}

/// The frames of a capture. `rxe_mac` says which are rxe's; `damaged` are the numbers of those
/// with a wrong ICRC.
pub(crate) fn read(file: &Path, rxe_mac: [u8; 6], damaged: &BTreeSet<usize>) -> Result<Vec<Seen>> {
    let mut reader = PcapReader::new(File::open(file).with_context(|| file.display().to_string())?)?;
    let mut frames = Vec::new();
    let mut number = 0;
    while let Some(packet) = reader.next_packet() {
        let packet = packet?;
        number += 1;
        let from = if packet.data.get(6..12) == Some(&rxe_mac[..]) { Side::Rxe } else { Side::Roced };
        let intact = !damaged.contains(&number);
        match parse(&packet.data) {
            Some(seen) => {
                let at_ns = packet.timestamp.as_nanos() as u64;
                frames.push(Seen { number, at_ns, from, intact, ..seen });
            }
            // A frame that was damaged on the way may be anything.
            None => ensure!(!intact, "{}: frame {number} is no RoCE packet that is known", file.display()),
        }
    }
    Ok(frames)
}

fn bytes<const COUNT: usize>(frame: &[u8], at: usize) -> Option<[u8; COUNT]> {
    frame.get(at..)?.first_chunk().copied()
}

fn be16(frame: &[u8], at: usize) -> Option<u16> {
    bytes(frame, at).map(u16::from_be_bytes)
}

fn be32(frame: &[u8], at: usize) -> Option<u32> {
    bytes(frame, at).map(u32::from_be_bytes)
}

/// Tells payloads apart.
pub(crate) fn sum(payload: &[u8]) -> u64 {
    payload.iter().fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

/// Side, number, time and whether it holds are for the caller to fill in.
fn parse(frame: &[u8]) -> Option<Seen> {
    let (ip, udp_at, end) = match be16(frame, 12)? {
        0x0800 => {
            let ip = Ip {
                is_v4: true,
                source: Ipv4Addr::from(bytes(frame, 26)?).into(),
                destination: Ipv4Addr::from(bytes(frame, 30)?).into(),
                traffic_class: *frame.get(15)?,
                hop_limit: *frame.get(22)?,
                id: be16(frame, 18)?,
                dont_fragment: frame.get(20)? & 0x40 != 0,
                flow_label: 0,
            };
            (ip, 34, 14 + usize::from(be16(frame, 16)?))
        }
        0x86dd => {
            let word = be32(frame, 14)?;
            let ip = Ip {
                is_v4: false,
                source: Ipv6Addr::from(bytes(frame, 22)?).into(),
                destination: Ipv6Addr::from(bytes(frame, 38)?).into(),
                traffic_class: (word >> 20) as u8,
                hop_limit: *frame.get(21)?,
                id: 0,
                dont_fragment: true,
                flow_label: word & 0xf_ffff,
            };
            (ip, 54, 54 + usize::from(be16(frame, 18)?))
        }
        _ => return None,
    };
    let packet = frame.get(udp_at + 8..end.checked_sub(4)?)?;
    let opcode = *packet.first()?;
    let (service, kind, begins, ends, has_imm, extension_bytes) = describe(opcode)?;
    let flags = *packet.get(1)?;
    let pad = flags >> 4 & 3;
    // In the order of the wire, the first header may be the RETH, AtomicETH, AETH or DETH.
    let first = packet.get(12..12 + extension_bytes)?;
    let has_reth = kind == Kind::ReadRequest || (kind == Kind::Write && begins);
    let aeth = if kind.is_response() && extension_bytes > 0 { be32(first, 0) } else { None };
    let payload = packet.get(12 + extension_bytes..packet.len().checked_sub(usize::from(pad))?)?;
    let dest_qpn = be32(packet, 4)? & 0xff_ffff;
    let mad = if service == Service::Ud && dest_qpn == 1 {
        let (qkey, source_qpn) = (be32(first, 0)?, be32(first, 4)? & 0xff_ffff);
        Some(Datagram { qkey, source_qpn, bytes: payload.to_vec() })
    } else {
        None
    };
    Some(Seen {
        number: 0,
        at_ns: 0,
        from: Side::Roced,
        intact: true,
        service,
        kind,
        opcode,
        begins,
        ends,
        solicited: flags & 0x80 != 0,
        mig_req: flags & 0x40 != 0,
        pad,
        version: flags & 0xf,
        pkey: be16(packet, 2)?,
        byte4: *packet.get(4)?,
        dest_qpn,
        ack_request: packet.get(8)? & 0x80 != 0,
        psn: be32(packet, 8)? & 0xff_ffff,
        dma_va: has_reth.then(|| bytes(first, 0).map(u64::from_be_bytes)).flatten(),
        dma_bytes: has_reth.then(|| be32(first, 12)).flatten(),
        syndrome: aeth.map(|word| (word >> 24) as u8),
        msn: aeth.unwrap_or(0) & 0xff_ffff,
        has_imm,
        payload_bytes: payload.len() as u32,
        payload_sum: sum(payload),
        ip,
        source_port: be16(frame, udp_at)?,
        udp_checksum: be16(frame, udp_at + 6)?,
        trailer_bytes: frame.len() - end,
        mad,
    })
}

/// Of an opcode: service, kind, begins a message, ends it, has immediate data, bytes of extension
/// headers (IBTA v1 table 38).
fn describe(opcode: u8) -> Option<(Service, Kind, bool, bool, bool, usize)> {
    // The 16 reserved bytes of a notification are its payload here.
    if opcode == 0x81 {
        return Some((Service::Cnp, Kind::Notification, true, true, false, 0));
    }
    let service = match opcode >> 5 {
        0 => Service::Rc,
        1 => Service::Uc,
        3 => Service::Ud,
        _ => return None,
    };
    let (kind, begins, ends, has_imm, bytes) = match opcode & 0x1f {
        0x00 => (Kind::Send, true, false, false, 0),
        0x01 => (Kind::Send, false, false, false, 0),
        0x02 => (Kind::Send, false, true, false, 0),
        0x03 => (Kind::Send, false, true, true, 4),
        0x04 => (Kind::Send, true, true, false, 0),
        0x05 => (Kind::Send, true, true, true, 4),
        0x06 => (Kind::Write, true, false, false, 16),
        0x07 => (Kind::Write, false, false, false, 0),
        0x08 => (Kind::Write, false, true, false, 0),
        0x09 => (Kind::Write, false, true, true, 4),
        0x0a => (Kind::Write, true, true, false, 16),
        0x0b => (Kind::Write, true, true, true, 20),
        0x0c => (Kind::ReadRequest, true, true, false, 16),
        0x0d => (Kind::ReadResponse, true, false, false, 4),
        0x0e => (Kind::ReadResponse, false, false, false, 0),
        0x0f => (Kind::ReadResponse, false, true, false, 4),
        0x10 => (Kind::ReadResponse, true, true, false, 4),
        0x11 => (Kind::Ack, true, true, false, 4),
        0x12 => (Kind::AtomicAck, true, true, false, 12),
        0x13 | 0x14 => (Kind::Atomic, true, true, false, 28),
        0x16 => (Kind::Send, false, true, false, 4),
        0x17 => (Kind::Send, true, true, false, 4),
        _ => return None,
    };
    let deth_bytes = if service == Service::Ud { 8 } else { 0 };
    Some((service, kind, begins, ends, has_imm, bytes + deth_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One that roced sent.
    #[test]
    fn a_notification_of_congestion_is_read() {
        const FRAME: [&str; 5] = [
            "525400100003764e4d9f00010800",
            "45c0003c000040004011260d0a0a00010a0a0003",
            "c12312b700280000",
            "8100ffff400000110000000000000000000000000000000000000000",
            "01020304",
        ];
        let digits = FRAME.concat();
        let bytes: Vec<u8> = (0..digits.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).expect("two digits"))
            .collect();
        let seen = parse(&bytes).expect("it is read");
        assert_eq!((seen.service, seen.kind, seen.dest_qpn), (Service::Cnp, Kind::Notification, 0x11));
        assert_eq!((seen.byte4, seen.pkey, seen.psn, seen.ip.traffic_class), (0x40, 0xffff, 0, 0xc0));
        assert_eq!((seen.payload_bytes, seen.payload_sum), (16, sum(&[0; 16])));
        assert_ne!(sum(&[0; 16]), sum(&[0; 15]));
        assert_ne!(sum(&[0; 16]), sum(&1_u128.to_be_bytes()));
    }
}
