//! Target `frame`: any bytes as a frame.
//!
//! It parses or it does not; cut into pieces it does the same. A frame that parses has the
//! destination that [`dest_qpn`] says, payload pieces that add up, the ICRC that a second
//! calculation gives or a refusal, and can be built again from its own fields. An endpoint without
//! queue pairs takes just the frames that queue pair 1 may take, and passes on their datagrams
//! unchanged.

use std::cell::RefCell;

use roced_transport::{
    clock::Nanos,
    endpoint::{Endpoint, EndpointConfig},
    io::{Egress, FrameMut},
    management::ManagementDatagram,
    partition::Partitions,
    recovery::RecoveryConfig,
    reject::{Disposition, DropReason},
    wire::{Headers, Packet, Path, PathSpec, dest_qpn, parse},
};
use roced_types::{DeviceId, EndpointId};

use crate::{client::Client, input::Input, packet};

/// Longest headers: two VLAN tags, IPv4 with all options, UDP, and the longest that the table has.
/// They lie in the first piece.
const FIRST_PIECE_BYTES: usize = 14 + 8 + 60 + 8 + 80;

/// A jumbo frame; longer ones say nothing new.
const FRAME_BYTES_MAX: usize = 9100;

thread_local! {
    /// An endpoint without queue pairs, for all runs.
    static ENDPOINT: RefCell<Endpoint> = RefCell::new(Endpoint::new(EndpointConfig {
        id: EndpointId::new(3).expect("small"),
        max_mrs: 1,
        max_ahs: 1,
        max_srqs: 0,
        max_attachments: 0,
        max_qps: 1,
        total_window_packets: 1,
        recovery: RecoveryConfig::default(),
        partitions: Partitions::default(),
    }));
}

/// One run.
pub(crate) fn run(bytes: &[u8]) {
    let mut input = Input(bytes);
    let control = input.byte();
    let cuts = [input.u16(), input.u16()].map(usize::from);
    let mut frame = input.take(FRAME_BYTES_MAX).to_vec();
    check(&frame, cuts);
    if control & 1 != 0 && packet::seal(&mut frame).is_some() {
        check(&frame, cuts);
    }
}

fn check(frame: &[u8], cuts: [usize; 2]) {
    let whole = [frame];
    let parsed = parse(&whole);
    let pieces = cut(frame, cuts);
    let in_pieces = parse(&pieces);
    assert_eq!(parsed.as_ref().err(), in_pieces.as_ref().err(), "cut or whole, the same is wrong");
    let _anything = dest_qpn(&pieces);
    let expected = parsed.as_ref().ok().filter(|packet| is_management(packet)).map(datagram_of);
    check_endpoint(&pieces, expected.as_ref());
    let (Ok(packet), Ok(in_pieces)) = (parsed, in_pieces) else { return };
    assert_eq!(dest_qpn(&whole), Some(packet.bth.dest_qpn));
    assert_eq!(fields(&packet), fields(&in_pieces));
    let payload = payload_of(&packet);
    assert_eq!(payload, payload_of(&in_pieces), "the payload does not change with the cuts");
    assert!(packet.info.payload || payload.is_empty());
    let integrity = packet.check_integrity();
    assert_eq!(integrity, in_pieces.check_integrity());
    if integrity != Err(DropReason::BadUdpChecksum) {
        let right = packet::icrc(frame).expect("a frame that parses has a place for it");
        let end = frame.len() - behind(&packet, frame);
        assert_eq!(integrity.is_ok(), frame[end - 4..end] == right, "a second calculation agrees");
    }
    build_again(&packet, &payload);
}

/// The endpoint takes the frame if it is a management datagram, and nothing else.
fn check_endpoint(pieces: &[&[u8]], expected: Option<&ManagementDatagram>) {
    ENDPOINT.with_borrow_mut(|endpoint| {
        let disposition = endpoint.on_frame(Nanos(1), pieces, &mut Client::default());
        assert_eq!(disposition == Disposition::Accepted, expected.is_some(), "{disposition:?}");
        assert_eq!(endpoint.poll_management().as_ref(), expected);
    });
}

/// Queue pair 1 of a full member of the default partition may take it.
fn is_management(packet: &Packet<'_>) -> bool {
    let is_host = |gid: &[u8; 16]| match gid {
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, first, ..] => matches!(first, 1..=126 | 128..=223),
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last] => *last > 1,
        [first, ..] => *first != 0xff,
    };
    packet.bth.dest_qpn.get() == 1
        && packet.bth.opcode.0 == 0x64
        && packet.bth.pkey.0 & 0x7fff == 0x7fff
        && packet.deth.is_some_and(|deth| deth.qkey == 0x8001_0000 && deth.source_qpn.get() == 1)
        && packet.payload_len() == 256
        && is_host(&packet.source)
        && is_host(&packet.destination)
        && packet.check_integrity().is_ok()
}

fn datagram_of(packet: &Packet<'_>) -> ManagementDatagram {
    ManagementDatagram {
        local: packet.destination,
        remote: packet.source,
        vlan: packet.vlan.map(|control| control & 0x0fff).filter(|id| *id != 0),
        traffic_class: packet.traffic_class,
        roce: packet.roce,
        bytes: payload_of(packet).try_into().expect("256 bytes"),
    }
}

/// Bytes of Ethernet padding behind the packet: the lengths that `parse` believed say where it
/// ends.
fn behind(packet: &Packet<'_>, frame: &[u8]) -> usize {
    let mut ip = 12;
    while matches!(frame[ip..ip + 2], [0x81, 0] | [0x88, 0xa8]) {
        ip += 4;
    }
    ip += 2;
    let ip_bytes = if frame[ip] >> 4 == 4 { usize::from(frame[ip] & 15) * 4 } else { 40 };
    let body = packet.payload_len() + usize::from(packet.bth.pad);
    frame.len() - (ip + ip_bytes + 8 + packet.info.header_bytes + body + 4)
}

/// Up to three pieces; the headers stay in the first.
fn cut(frame: &[u8], cuts: [usize; 2]) -> Vec<&[u8]> {
    let (first, rest) = frame.split_at((FIRST_PIECE_BYTES + cuts[0]).min(frame.len()));
    let (second, third) = rest.split_at(cuts[1].min(rest.len()));
    vec![first, second, third]
}

fn payload_of(packet: &Packet<'_>) -> Vec<u8> {
    assert!(packet.payload().all(|piece| !piece.is_empty()), "no piece is empty");
    let payload: Vec<u8> = packet.payload().flatten().copied().collect();
    assert_eq!(payload.len(), packet.payload_len());
    payload
}

/// Everything else that a packet says.
fn fields(packet: &Packet<'_>) -> (Headers, PathSpec) {
    let headers = Headers {
        bth: packet.bth,
        deth: packet.deth,
        feth: packet.feth,
        reth: packet.reth,
        atomic: packet.atomic,
        aeth: packet.aeth,
        atomic_ack: packet.atomic_ack,
        imm: packet.imm,
        ieth: packet.ieth,
    };
    let spec = PathSpec {
        via: Egress::HandOver { to: DeviceId(0) },
        source_mac: [2; 6],
        dest_mac: [4; 6],
        vlan: None,
        source: packet.source,
        destination: packet.destination,
        traffic_class: packet.traffic_class,
        hop_limit: packet.hop_limit,
        flow_label: 0,
        roce: packet.roce,
    };
    (headers, spec)
}

/// The frame that the builder makes of a packet's fields parses to the same fields.
fn build_again(packet: &Packet<'_>, payload: &[u8]) {
    let (headers, spec) = fields(packet);
    let info = packet.info;
    if info.has_rdeth || info.has_xrceth {
        return;
    }
    // IPv6 packets may carry a mapped IPv4 address on one side; the builder makes none of those.
    let Ok(path) = Path::new(&spec) else { return };
    let mut built = vec![0; path.frame_bytes(&headers, payload.len())];
    let mut rest = payload;
    path.fill(&mut FrameMut::single(&mut built), &headers, payload.len(), |piece| {
        let (now, later) = rest.split_at(piece.len());
        piece.copy_from_slice(now);
        rest = later;
        Ok(())
    })
    .expect("no fill was given up");
    let pieces = [&built[..]];
    let again = parse(&pieces).expect("a built frame parses");
    again.check_integrity().expect("a built frame is whole");
    assert_eq!(fields(&again), (headers, spec));
    assert_eq!(payload_of(&again), payload);
}
