//! Frames that lie: each lie by its name. Sums and ICRC are made right again, so that nothing but
//! the lie is wrong.

mod model;

use std::net::Ipv4Addr;

use model::{bth_at, cut, fix_icrc, fix_ipv4_checksum, frames::Recipe, ip_at, udp_at};
use roced_transport::{
    io::Egress,
    psn::Psn,
    reject::DropReason::{self, BadIcrc, BadIpChecksum, BadLength, BadVersion, NotRoce, UnknownOpcode},
    wire::{Aeth, Bth, Headers, Opcode, PathSpec, Roce, Syndrome, Vlan, dest_qpn, opcode, parse},
};
use roced_types::Qpn;

fn take(pieces: &[&[u8]]) -> Result<(), DropReason> {
    parse(pieces)?.check_integrity()
}

fn frame(gids: ([u8; 16], [u8; 16]), vlan: Option<Vlan>, headers: Headers, payload: &[u8]) -> Vec<u8> {
    let spec = PathSpec {
        via: Egress::Nic { flow: 0 },
        source_mac: [2; 6],
        dest_mac: [4; 6],
        vlan,
        source: gids.0,
        destination: gids.1,
        traffic_class: 0,
        hop_limit: 64,
        flow_label: 0,
        roce: Roce::V2 { udp_source_port: 0xc000 },
    };
    let frame = Recipe { spec, headers, payload: payload.to_vec() }.build(&[]);
    assert_eq!(take(&[&frame]), Ok(()));
    frame
}

const V6: ([u8; 16], [u8; 16]) = ([0xfd; 16], [0xfe; 16]);

fn v4() -> ([u8; 16], [u8; 16]) {
    let gid = |last| Ipv4Addr::new(10, 77, 0, last).to_ipv6_mapped().octets();
    (gid(1), gid(2))
}

fn bth(opcode: Opcode) -> Bth {
    Bth::new(opcode, Qpn::from_wire(0x55), Psn::new(9))
}

/// A SEND with `payload`, over IPv4 and over IPv6, with a VLAN tag and without.
fn sends(payload: &[u8]) -> Vec<Vec<u8>> {
    let headers = Headers::new(bth(opcode::RC_SEND_ONLY));
    let vlan = Some(Vlan { id: 7, priority: 1, rx_stripped: false });
    [(v4(), None), (v4(), vlan), (V6, None), (V6, vlan)]
        .map(|(gids, vlan)| frame(gids, vlan, headers, payload))
        .to_vec()
}

fn is_v4(frame: &[u8]) -> bool {
    frame[ip_at(frame)] >> 4 == 4
}

/// Adds `by` to the IP length and makes the checksum right.
fn stretch_ip(frame: &mut [u8], by: i32) {
    let at = ip_at(frame) + if is_v4(frame) { 2 } else { 4 };
    stretch(frame, at, by);
    if is_v4(frame) {
        fix_ipv4_checksum(frame);
    }
}

fn stretch_udp(frame: &mut [u8], by: i32) {
    stretch(frame, udp_at(frame) + 4, by);
}

fn stretch(frame: &mut [u8], at: usize, by: i32) {
    let length = i32::from(u16::from_be_bytes([frame[at], frame[at + 1]])) + by;
    frame[at..at + 2].copy_from_slice(&u16::try_from(length).expect("a length in range").to_be_bytes());
}

#[test]
fn a_length_that_lies_is_refused() {
    for frame in sends(&[1, 2, 3, 4, 5]) {
        // With room behind, so that only the disagreement is wrong.
        let roomy = [&frame[..], &[0; 64]].concat();
        for by in [-5, -4, -1, 1, 4, 5, 64] {
            let mut ip_lies = roomy.clone();
            stretch_ip(&mut ip_lies, by);
            assert_eq!(take(&[&ip_lies]), Err(BadLength), "IP {by}");
            let mut udp_lies = roomy.clone();
            stretch_udp(&mut udp_lies, by);
            assert_eq!(take(&[&udp_lies]), Err(BadLength), "UDP {by}");
        }
        // Both tell the same lie.
        for (by, expected) in [(1, BadLength), (64, BadIcrc), (68, BadLength), (-1, BadLength), (-4, BadIcrc)] {
            let mut both_lie = roomy.clone();
            stretch_ip(&mut both_lie, by);
            stretch_udp(&mut both_lie, by);
            assert_eq!(take(&[&both_lie]), Err(expected), "both {by}");
        }
    }
}

/// Headers, pad and ICRC need their room: one byte less, and one word less, is none; down to a UDP
/// length of nothing at all.
#[test]
fn a_packet_shorter_than_its_headers_pad_and_icrc_is_refused() {
    for frame in sends(&[]) {
        let udp_bytes = frame.len() - udp_at(&frame);
        for by in 1..=udp_bytes {
            let mut short = frame.clone();
            stretch_udp(&mut short, -(by as i32));
            stretch_ip(&mut short, -(by as i32));
            assert_eq!(take(&[&short]), Err(BadLength), "{by} less");
            // The byte in place of the opcode is ignored.
            let opcode = bth_at(&frame);
            short[opcode] = 0xff;
            assert_eq!(take(&[&short]), Err(BadLength), "{by} less");
        }
        for pad in 1..=3 {
            let mut padded = frame.clone();
            let flags = bth_at(&frame) + 1;
            padded[flags] |= pad << 4;
            fix_icrc(&mut padded);
            assert_eq!(take(&[&padded]), Err(BadLength), "pad {pad} and no payload");
        }
    }
    // Each opcode needs its own headers: right with just those, refused with a word less.
    for code in 0..=255 {
        let Some(info) = Opcode(code).info() else { continue };
        for gids in [v4(), V6] {
            let mut exact = frame(gids, None, Headers::new(bth(opcode::RC_SEND_ONLY)), &[0; 64]);
            let at = bth_at(&exact);
            exact[at] = code;
            let less = at + info.header_bytes + 4;
            let by = less as i32 - exact.len() as i32;
            stretch_ip(&mut exact, by);
            stretch_udp(&mut exact, by);
            fix_icrc(&mut exact);
            assert_eq!(take(&[&exact]), Ok(()), "opcode 0x{code:02x}");
            stretch_ip(&mut exact, -4);
            stretch_udp(&mut exact, -4);
            // 12 bytes of BTH and 4 of ICRC are needed before the opcode can be believed.
            assert_eq!(take(&[&exact]), Err(BadLength), "opcode 0x{code:02x}");
        }
    }
}

#[test]
fn an_ip_length_shorter_than_its_header_is_refused() {
    for mut frame in sends(&[1]).into_iter().filter(|frame| is_v4(frame)) {
        let ip = ip_at(&frame);
        for total in [0u16, 1, 19] {
            frame[ip + 2..ip + 4].copy_from_slice(&total.to_be_bytes());
            fix_ipv4_checksum(&mut frame);
            assert_eq!(take(&[&frame]), Err(BadLength));
        }
    }
}

#[test]
fn a_payload_that_is_no_multiple_of_four_is_refused() {
    for frame in sends(&[1, 2, 3, 4, 5]) {
        for less in 1..=3 {
            let mut odd = frame.clone();
            stretch_ip(&mut odd, -less);
            stretch_udp(&mut odd, -less);
            fix_icrc(&mut odd);
            assert_eq!(take(&[&odd]), Err(BadLength));
        }
    }
}

#[test]
fn a_payload_of_an_operation_without_one_is_refused() {
    for code in 0..=255 {
        let Some(info) = Opcode(code).info() else { continue };
        for mut frame in sends(&[0; 64]) {
            let at = bth_at(&frame);
            frame[at] = code;
            fix_icrc(&mut frame);
            let expected = if info.payload { Ok(()) } else { Err(BadLength) };
            assert_eq!(take(&[&frame]), expected, "opcode 0x{code:02x}");
        }
    }
}

#[test]
fn another_version_and_unknown_opcodes_have_their_names() {
    let mut unknown = 0;
    for frame in sends(&[1]) {
        let at = bth_at(&frame);
        for version in 1..=15 {
            let mut newer = frame.clone();
            newer[at + 1] |= version;
            // The rest of the frame has an unknown format.
            newer[at] = 0xff;
            fix_icrc(&mut newer);
            assert_eq!(take(&[&newer]), Err(BadVersion));
        }
        for code in (0..=255).filter(|code| Opcode(*code).info().is_none()) {
            let mut strange = frame.clone();
            strange[at] = code;
            fix_icrc(&mut strange);
            assert_eq!(take(&[&strange]), Err(UnknownOpcode));
            unknown += 1;
        }
    }
    assert_eq!(unknown, 4 * (256 - 84 - 7));
}

/// Changes the byte `at` of the IP header to `value`, with a correct checksum, and returns the
/// result.
fn with_ip_byte(frame: &[u8], at: usize, value: u8) -> Result<(), DropReason> {
    let mut changed = frame.to_vec();
    let ip = ip_at(frame);
    changed[ip + at] = value;
    if is_v4(frame) && changed[ip] == 0x45 {
        fix_ipv4_checksum(&mut changed);
        fix_icrc(&mut changed);
    }
    take(&[&changed])
}

#[test]
fn other_frames_are_not_taken_for_roce() {
    for frame in sends(&[1, 2, 3, 4]) {
        if is_v4(&frame) {
            assert_eq!(with_ip_byte(&frame, 9, 6), Err(NotRoce), "TCP");
            assert_eq!(with_ip_byte(&frame, 6, 0x20), Err(NotRoce), "more fragments");
            assert_eq!(with_ip_byte(&frame, 6, 0x60), Err(NotRoce), "more fragments, though don't fragment");
            assert_eq!(with_ip_byte(&frame, 7, 1), Err(NotRoce), "a later fragment");
            assert_eq!(with_ip_byte(&frame, 6, 0x1f), Err(NotRoce), "a later fragment");
            assert_eq!(with_ip_byte(&frame, 6, 0), Ok(()), "may be fragmented");
            assert_eq!(with_ip_byte(&frame, 0, 0x65), Err(NotRoce), "version 6");
            assert_eq!(with_ip_byte(&frame, 0, 0x44), Err(BadLength), "a header of four words");
            assert_eq!(with_ip_byte(&frame, 0, 0x46), Err(BadIpChecksum), "an option that is none");
        } else {
            assert_eq!(with_ip_byte(&frame, 6, 44), Err(NotRoce), "a fragment header");
            assert_eq!(with_ip_byte(&frame, 6, 0), Err(NotRoce), "hop-by-hop options");
            assert_eq!(with_ip_byte(&frame, 0, 0x45), Err(NotRoce), "version 4");
            assert_eq!(with_ip_byte(&frame, 5, 0), Err(BadLength), "a jumbogram");
        }
        let udp = udp_at(&frame);
        let mut other_port = frame.clone();
        other_port[udp + 3] ^= 1;
        assert_eq!(take(&[&other_port]), Err(NotRoce));
        assert_eq!(dest_qpn(&[&other_port]), None);
        let mut arp = frame.clone();
        let ethertype = ip_at(&frame) - 2;
        arp[ethertype..ethertype + 2].copy_from_slice(&[0x08, 0x06]);
        assert_eq!(take(&[&arp]), Err(NotRoce));
        assert_eq!(dest_qpn(&[&arp]), None);
        let mut tagged = frame.clone();
        while ip_at(&tagged) < 14 + 3 * 4 {
            assert_eq!(take(&[&tagged]), Ok(()));
            tagged.splice(12..12, [0x81, 0, 0, 9]);
        }
        assert_eq!(take(&[&tagged]), Err(NotRoce), "three VLAN tags");
    }
}

#[test]
fn an_ipv4_checksum_that_does_not_hold_is_refused() {
    for frame in sends(&[1]).into_iter().filter(|frame| is_v4(frame)) {
        let at = ip_at(&frame) + 10;
        for bit in 0..16 {
            let mut wrong = frame.clone();
            wrong[at + bit / 8] ^= 1 << (bit % 8);
            assert_eq!(take(&[&wrong]), Err(BadIpChecksum));
        }
    }
}

#[test]
fn headers_lie_in_the_first_piece_and_pieces_are_few() {
    let headers = Headers {
        aeth: Some(Aeth { syndrome: Syndrome::ACK, msn: 3 }),
        ..Headers::new(bth(opcode::RC_READ_RESPONSE_ONLY))
    };
    let frame = frame(V6, None, headers, &[7; 40]);
    let body = bth_at(&frame) + 16;
    for at in 0..frame.len() {
        let expected = if at < body { Err(BadLength) } else { Ok(()) };
        assert_eq!(take(&cut(&frame, &[at])), expected, "cut at {at}");
    }
    assert_eq!(take(&[]), Err(BadLength));
    assert_eq!(take(&[&[]]), Err(BadLength));
    assert_eq!((dest_qpn(&[]), dest_qpn(&[&[]])), (None, None));
    assert_eq!(take(&cut(&frame, &[body, body + 9, body + 9])), Ok(()), "four pieces, one of them empty");
    assert_eq!(take(&cut(&frame, &[body, body + 9, body + 9, body + 20])), Err(BadLength), "five pieces");
}
