//! The parser reads the builder's output: random paths, headers, payloads, and frames in pieces.

mod model;

use model::{
    bth_at, cut, fix_udp_checksum,
    frames::{Recipe, buildable, recipe},
    headers_of, ip_at, ip_end, is_v1, udp_at,
};
use proptest::{prelude::*, sample::Index};
use roced_transport::{
    io::{Abort, Egress, FrameMut},
    mr::MrKey,
    psn::Psn,
    reject::DropReason,
    wire::{
        Bth, Deth, Headers, Opcode, Packet, Path, PathSpec, Reth, Roce, Service, Vlan, dest_qpn, largest_path_mtu,
        opcode, pad_bytes, parse, udp_source_port,
    },
};
use roced_types::Qpn;

/// One to three places in `from..=to`, ascending, perhaps the same.
fn places(cuts: &[Index], from: usize, to: usize) -> Vec<usize> {
    let mut places: Vec<_> = cuts.iter().map(|cut| from + cut.index(to - from + 1)).collect();
    places.sort_unstable();
    places
}

fn assert_is(packet: &Packet<'_>, recipe: &Recipe) {
    let Recipe { spec, headers, payload } = recipe;
    let pad = pad_bytes(payload.len()) as u8;
    assert_eq!(headers_of(packet), Headers { bth: Bth { pad, ..headers.bth }, ..*headers });
    assert_eq!(packet.info, headers.info());
    assert_eq!((packet.source, packet.destination), (spec.source, spec.destination));
    assert_eq!((packet.traffic_class, packet.hop_limit), (spec.traffic_class, spec.hop_limit));
    assert_eq!(packet.vlan, spec.vlan.map(|vlan| u16::from(vlan.priority) * 8192 + vlan.id));
    assert_eq!(packet.roce, spec.roce);
    assert_eq!(packet.payload_len(), payload.len());
    assert!(packet.payload().all(|piece| !piece.is_empty()));
    assert_eq!(&packet.payload().flatten().copied().collect::<Vec<_>>(), payload);
}

proptest! {
    #[test]
    fn built_frames_are_parsed(
        recipe in recipe(),
        built in proptest::collection::vec(any::<Index>(), 0..=3),
        read in proptest::collection::vec(any::<Index>(), 0..=3),
        padding in proptest::collection::vec(any::<u8>(), 0..64),
    ) {
        let whole = recipe.build(&[]);
        let frame = recipe.build(&places(&built, 0, whole.len()));
        prop_assert_eq!(&frame, &whole);
        prop_assert_eq!(&frame[frame.len() - 4..], model::icrc(&frame));
        prop_assert_eq!(ip_end(&frame), frame.len());
        let ip = ip_at(&frame);
        if is_v1(&frame) {
            prop_assert_eq!((frame[ip + 6], bth_at(&frame)), (0x1b, ip + 40));
        } else {
            prop_assert_eq!(&frame[udp_at(&frame) + 6..bth_at(&frame)], [0, 0]);
        }
        if frame[ip] >> 4 == 6 {
            let label = [frame[ip + 1] & 0x0f, frame[ip + 2], frame[ip + 3]];
            prop_assert_eq!(&label, &(recipe.spec.flow_label % (1 << 20)).to_be_bytes()[1..]);
        }

        let padded = [&frame[..], &padding].concat();
        let pieces = cut(&padded, &places(&read, recipe.body_at(), padded.len()));
        let packet = parse(&pieces).expect("built packets are read back");
        assert_is(&packet, &recipe);
        prop_assert_eq!(packet.check_integrity(), Ok(()));
        prop_assert_eq!(dest_qpn(&pieces), Some(recipe.headers.bth.dest_qpn));
    }

    /// Others may send a UDP checksum: a right one is taken, in pieces of odd length too, any other
    /// refused.
    #[test]
    fn a_udp_checksum_holds_or_is_refused(
        recipe in recipe(),
        read in proptest::collection::vec(any::<Index>(), 0..=3),
        off in 1..=0xffffu16,
    ) {
        let mut frame = recipe.build(&[]);
        prop_assume!(!is_v1(&frame));
        fix_udp_checksum(&mut frame);
        let cuts = places(&read, recipe.body_at(), frame.len());
        let packet = cut(&frame, &cuts);
        prop_assert_eq!(parse(&packet).expect("it is one").check_integrity(), Ok(()));

        let at = udp_at(&frame) + 6;
        let right = u16::from_be_bytes([frame[at], frame[at + 1]]);
        let wrong = right.wrapping_add(off);
        // 0 is no checksum at all, and in one's complement 0xffff is 0.
        prop_assume!(wrong != 0 && wrong % 0xffff != right % 0xffff);
        frame[at..at + 2].copy_from_slice(&wrong.to_be_bytes());
        let packet = cut(&frame, &cuts);
        prop_assert_eq!(parse(&packet).expect("it is one").check_integrity(), Err(DropReason::BadUdpChecksum));
    }
}

/// IPv4 options and a service tag come from others; the builder makes none.
#[test]
fn options_and_a_service_tag_are_tolerated() {
    let recipe = sample();
    let mut frame = recipe.build(&[]);
    let ip = ip_at(&frame);
    for words in 0..=10 {
        let mut longer = frame.clone();
        longer.splice(ip + 20..ip + 20, (0..words * 4).map(|_| 1));
        longer[ip] = 0x45 + words as u8;
        let total = (longer.len() - ip) as u16;
        longer[ip + 2..ip + 4].copy_from_slice(&total.to_be_bytes());
        model::fix_ipv4_checksum(&mut longer);
        model::fix_icrc(&mut longer);
        let pieces = [&longer[..]];
        let packet = parse(&pieces).expect("options are tolerated");
        assert_is(&packet, &recipe);
        assert_eq!(packet.check_integrity(), Ok(()));
        assert_eq!(dest_qpn(&pieces), Some(recipe.headers.bth.dest_qpn));
        fix_udp_checksum(&mut longer);
        assert_eq!(parse(&[&longer]).expect("options are tolerated").check_integrity(), Ok(()));
    }
    frame.splice(12..12, [0x88, 0xa8, 0x12, 0x34]);
    let packet = parse(&[&frame]).expect("a service tag is tolerated");
    assert_is(&packet, &recipe);
    assert_eq!(packet.check_integrity(), Ok(()));
}

/// Headers that the transport does not speak stand in front of others that it reads.
#[test]
fn headers_behind_an_rdeth_or_xrceth_are_read_at_their_offset() {
    let insert = |headers: Headers, payload: &[u8], opcode: Opcode| {
        let recipe = Recipe { headers, payload: payload.to_vec(), ..sample() };
        let mut frame = recipe.build(&[]);
        let (ip, udp, bth) = (ip_at(&frame), udp_at(&frame), bth_at(&frame));
        frame[bth] = opcode.0;
        frame.splice(bth + 12..bth + 12, [0xee; 4]);
        for (at, bytes) in [(ip + 2, frame.len() - ip), (udp + 4, frame.len() - udp)] {
            frame[at..at + 2].copy_from_slice(&(bytes as u16).to_be_bytes());
        }
        model::fix_ipv4_checksum(&mut frame);
        model::fix_icrc(&mut frame);
        let pieces = [&frame[..]];
        let packet = parse(&pieces).expect("the table has it");
        assert_eq!(packet.check_integrity(), Ok(()));
        assert_eq!(packet.bth.opcode, opcode);
        let bth = Bth { pad: packet.bth.pad, opcode, ..headers.bth };
        assert_eq!(headers_of(&packet), Headers { bth, ..headers });
        assert!(packet.payload().flatten().eq(payload));
    };
    let Recipe { headers: write, payload, .. } = sample();
    insert(write, &payload, opcode::XRC_WRITE_ONLY_IMM);
    let bth = |opcode| Bth { opcode, ..write.bth };
    let deth = Some(Deth { qkey: 0x0102_0304, source_qpn: Qpn::from_wire(0x05_0607) });
    let datagram = Headers { deth, reth: None, ..Headers { bth: bth(opcode::UD_SEND_ONLY_IMM), ..write } };
    insert(datagram, &payload, opcode::RD_SEND_ONLY_IMM);
}

/// Linux's numbers, worked out apart; QPNs that need all 48 bits of the product, labels with more
/// than 20 bits.
#[test]
fn udp_source_ports_are_those_of_linux() {
    let port = |label, local, remote| udp_source_port(label, Qpn::from_wire(local), Qpn::from_wire(remote));
    assert_eq!(port(0x0, 0xabcdef, 0x123456), 0xc3c8);
    assert_eq!(port(0x0, 0xffffff, 0xffffff), 0xff21);
    assert_eq!(port(0x0, 0x68, 0xdc), 0xd961);
    assert_eq!(port(0x12345, 0x1, 0x2), 0xe341);
    assert_eq!(port(0xfffff, 0x1, 0x2), 0xffc0);
    assert_eq!(port(0xf00000, 0x68, 0xdc), 0xd961);
}

/// A WRITE over IPv4 with a VLAN tag.
fn sample() -> Recipe {
    let gid = |last| std::net::Ipv4Addr::new(10, 77, 0, last).to_ipv6_mapped().octets();
    let bth = Bth::new(opcode::RC_WRITE_ONLY_IMM, Qpn::from_wire(0x1234), Psn::new(7));
    Recipe {
        spec: PathSpec {
            via: Egress::Nic { flow: 1 },
            source_mac: [2; 6],
            dest_mac: [4; 6],
            vlan: Some(Vlan { id: 0x123, priority: 5, rx_stripped: false }),
            source: gid(1),
            destination: gid(2),
            traffic_class: 0x6a,
            hop_limit: 64,
            flow_label: 0,
            roce: Roce::V2 { udp_source_port: 0xc123 },
        },
        headers: Headers {
            reth: Some(Reth { va: 0x1000, rkey: MrKey(0x77), length: 5 }),
            imm: Some([1, 2, 3, 4]),
            ..Headers::new(bth)
        },
        payload: vec![1, 2, 3, 4, 5],
    }
}

/// A receiver that has another idea of the family would send to the wrong place.
#[test]
fn a_path_is_of_one_family() {
    let mut spec = sample().spec;
    assert!(Path::new(&spec).is_ok());
    spec.source = [0x20; 16];
    Path::new(&spec).expect_err("IPv6 to IPv4");
    std::mem::swap(&mut spec.source, &mut spec.destination);
    Path::new(&spec).expect_err("IPv4 to IPv6");
}

#[test]
fn a_payload_that_gives_up_aborts_the_frame() {
    let Recipe { spec, headers, payload } = sample();
    let path = Path::new(&spec).expect("both GIDs are IPv4");
    let mut memory = vec![0; path.frame_bytes(&headers, payload.len())];
    let mut frame = FrameMut::single(&mut memory);
    assert_eq!(path.fill(&mut frame, &headers, payload.len(), |_| Err(Abort)), Err(Abort));
}

/// Headers that the opcode does not have would shift all that follows.
#[test]
#[should_panic(expected = "opcode 0x0b has other extension headers")]
fn headers_that_the_opcode_does_not_have_are_our_own_fault() {
    let mut recipe = sample();
    recipe.headers.imm = None;
    recipe.build(&[]);
}

/// Every kind of packet, with the largest payload that the link's path MTU allows, is no longer
/// than the link allows; twice the path MTU (if there is such) would be.
#[test]
fn the_largest_path_mtu_fits_and_the_next_does_not() {
    let mut spec = sample().spec;
    for ipv4 in [true, false] {
        if !ipv4 {
            (spec.source, spec.destination) = ([0x20; 16], [0x21; 16]);
        }
        let path = Path::new(&spec).expect("both GIDs are of one family");
        for link in (0..=5000).chain([9000, 65_535, u32::MAX]) {
            let mtu = path.largest_mtu(link);
            assert_eq!(mtu, largest_path_mtu(link, ipv4));
            let longest = |payload: usize| {
                let opcodes = buildable().into_iter().filter_map(|opcode| opcode.info());
                let headers = opcodes.filter(|info| info.payload && info.service != Service::Ud);
                let headers = headers.map(|info| info.header_bytes).max().expect("there are opcodes");
                // Ethernet and VLAN are not part of a link's MTU.
                (path.overhead_bytes() - 18 + headers + payload) as u32
            };
            match mtu {
                Some(mtu) => assert!(longest(mtu as usize) <= link && [256, 512, 1024, 2048, 4096].contains(&mtu)),
                None => assert!(longest(256) > link),
            }
            if let Some(mtu) = mtu.filter(|mtu| *mtu < 4096) {
                assert!(longest(2 * mtu as usize) > link);
            }
        }
    }
    assert_eq!([1500, 4200, 4160, 4159].map(|link| largest_path_mtu(link, true)), [1024, 4096, 4096, 2048].map(Some));
    assert_eq!([1500, 4200, 4180, 4179].map(|link| largest_path_mtu(link, false)), [1024, 4096, 4096, 2048].map(Some));
    assert_eq!([339, 340].map(|link| largest_path_mtu(link, false)), [None, Some(256)]);
}
