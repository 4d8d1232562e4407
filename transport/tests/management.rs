//! Queue pair 1: received management datagrams held to frames of Linux's connection manager, each
//! check, bounds of both queues, and sent frames held to the same captures.

mod model;

use std::collections::VecDeque;

use model::{bth_at, fix_icrc, fix_ipv4_checksum, frames::Recipe, headers_of, ip_at};
use roced_captures::{CapturedFrame, files, frames_of};
use roced_transport::{
    clock::Nanos,
    counters::QpCount,
    endpoint::{Endpoint, EndpointConfig},
    io::{
        Abort, App, AtomicOperation, BorrowedPayload, CqOverrun, Egress, EmitError, FrameMut, MemoryFault, PlaceFault,
        Wire, WorkCompletion,
    },
    management::{MAD_BYTES, ManagementDatagram},
    mr::MemSpan,
    partition::{Partitions, Pkey},
    psn::Psn,
    recovery::RecoveryConfig,
    reject::{Disposition, DropReason, Reject},
    wire::{Bth, Deth, Headers, Packet, Path, PathSpec, Roce, Vlan, opcode, parse},
};
use roced_types::{Cqn, EndpointId, Qpn};

/// No queue pair, no memory.
struct NoApp;

impl App for NoApp {
    fn write(&mut self, _: MemSpan<'_>, _: &[u8]) -> Result<(), MemoryFault> {
        unreachable!("queue pair 1 has no memory")
    }

    fn copy(&mut self, _: MemSpan<'_>, _: BorrowedPayload) -> Result<(), PlaceFault> {
        unreachable!("queue pair 1 has no memory")
    }

    fn read(&mut self, _: MemSpan<'_>, _: &mut [u8]) -> Result<(), MemoryFault> {
        unreachable!("queue pair 1 has no memory")
    }

    fn atomic(&mut self, _: MemSpan<'_>, _: AtomicOperation) -> Result<u64, MemoryFault> {
        unreachable!("queue pair 1 has no memory")
    }

    fn complete(&mut self, _: Cqn, _: &WorkCompletion) -> Result<(), CqOverrun> {
        unreachable!("queue pair 1 has no completion queue")
    }
}

/// A wire with room for some frames.
#[derive(Default)]
struct Frames {
    sent: VecDeque<Vec<u8>>,
    room: usize,
}

impl Wire for Frames {
    fn emit(
        &mut self,
        _: Egress,
        frame_bytes: usize,
        fill: impl FnOnce(&mut FrameMut<'_>) -> Result<(), Abort>,
    ) -> Result<(), EmitError> {
        self.room = self.room.checked_sub(1).ok_or(EmitError::Full)?;
        let mut bytes = vec![0xee; frame_bytes];
        let mut frame = FrameMut::over(bytes.chunks_mut(100));
        fill(&mut frame).map_err(|Abort| EmitError::Aborted)?;
        assert_eq!(frame.remaining(), 0);
        self.sent.push_back(bytes);
        Ok(())
    }
}

fn endpoint_of(pkeys: &[Pkey]) -> Endpoint {
    Endpoint::new(EndpointConfig {
        id: EndpointId::new(3).expect("small"),
        max_mrs: 1,
        max_ahs: 1,
        max_srqs: 0,
        max_attachments: 1,
        max_qps: 1,
        total_window_packets: 1,
        recovery: RecoveryConfig::default(),
        partitions: Partitions::new(pkeys),
    })
}

fn endpoint() -> Endpoint {
    endpoint_of(&[Pkey::DEFAULT])
}

fn give(endpoint: &mut Endpoint, frame: &[u8]) -> Disposition {
    endpoint.on_frame(Nanos(1), &[frame], &mut NoApp)
}

const fn ipv4(last: [u8; 4]) -> [u8; 16] {
    let [a, b, c, d] = last;
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d]
}

fn spec() -> PathSpec {
    PathSpec {
        via: Egress::Nic { flow: 0 },
        source_mac: [0x52, 0x54, 0, 0x77, 0, 1],
        dest_mac: [0x52, 0x54, 0, 0x77, 0, 2],
        vlan: None,
        source: ipv4([10, 77, 0, 1]),
        destination: ipv4([10, 77, 0, 2]),
        traffic_class: 0,
        hop_limit: 64,
        flow_label: 0,
        roce: Roce::V2 { udp_source_port: 55_410 },
    }
}

/// A datagram that passes all checks.
fn right() -> Recipe {
    let deth = Deth { qkey: 0x8001_0000, source_qpn: Qpn::GSI };
    let bth = Bth::new(opcode::UD_SEND_ONLY, Qpn::GSI, Psn::new(9));
    let headers = Headers { deth: Some(deth), ..Headers::new(bth) };
    Recipe { spec: spec(), headers, payload: (0..MAD_BYTES).map(|at| at as u8).collect() }
}

/// The frames to queue pair 1 in the captures of connection management.
fn captured() -> Vec<CapturedFrame> {
    let cm = files().into_iter().filter(|file| file.starts_with("cm_"));
    cm.flat_map(|file| frames_of(&file)).filter(|frame| packet(frame).bth.dest_qpn == Qpn::GSI).collect()
}

fn packet(frame: &CapturedFrame) -> Packet<'_> {
    parse(&[&frame.bytes]).expect("a captured frame")
}

fn payload_of(packet: &Packet<'_>) -> [u8; MAD_BYTES] {
    let payload: Vec<u8> = packet.payload().flatten().copied().collect();
    payload.try_into().expect("a whole datagram")
}

fn bytes_of(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).expect("ASCII"), 16).expect("hexadecimal");
    digits.chunks(2).map(byte).collect()
}

#[test]
fn all_datagrams_of_linux_are_accepted_as_they_are() {
    let mut endpoint = endpoint();
    let frames = captured();
    assert_eq!(frames.len(), 24);
    for frame in &frames {
        let packet = packet(frame);
        assert_eq!(give(&mut endpoint, &frame.bytes), Disposition::Accepted, "{} {}", frame.file, frame.index);
        let expected = ManagementDatagram {
            local: packet.destination,
            remote: packet.source,
            vlan: None,
            traffic_class: 0,
            roce: Roce::V2 { udp_source_port: 55_410 },
            bytes: payload_of(&packet),
        };
        assert_eq!(endpoint.poll_management(), Some(expected));
        assert_eq!(endpoint.poll_management(), None);
    }
    let counters = endpoint.counters();
    assert_eq!((counters.get(QpCount::ReceivedPackets), counters.get(QpCount::ReceivedBytes)), (24, 24 * 256));
    assert!(endpoint.drops().iter().all(|(_, count)| count == 0));
}

/// The first REQ of rping, as written down from the capture by hand.
#[test]
fn the_golden_request_is_received_byte_by_byte() {
    let front = bytes_of(
        "525400770002 525400770001 0800 4500013412f54000401112280a4d00010a4d0002 d87212b701200000
         6400ffff0000000180000010 8001000000000001",
    );
    let mut mad = bytes_of(
        "01070203 00000000 00000002 938fc59a 00100000 00000000 9ac58f93 00000000 00000000 01061c06 505400ff fe770001
         00000000 00000000 0000aa01 00000001 000000a0 d2afeba7 ffff37f0 ffffffff 00000000 00000000 0000ffff 0a4d0001
         00000000 00000000 0000ffff 0a4d0002 c0450000 00400098",
    );
    mad.resize(mad.len() + 11 * 4, 0);
    mad.extend(bytes_of("0040e676 00000000 00000000 00000000 0a4d0001 00000000 00000000 00000000 0a4d0002"));
    mad.resize(MAD_BYTES, 0);
    let frame = [&front[..], &mad, &bytes_of("e77b568f")].concat();
    assert_eq!(frame.len(), 322);
    assert_eq!(frames_of("cm_rping_ipv4.pcap")[0].bytes, frame);
    let mut endpoint = endpoint();
    assert_eq!(give(&mut endpoint, &frame), Disposition::Accepted);
    let datagram = endpoint.poll_management().expect("a datagram");
    assert_eq!((datagram.local, datagram.remote), (ipv4([10, 77, 0, 2]), ipv4([10, 77, 0, 1])));
    assert_eq!(datagram.bytes, mad[..]);
}

/// Every datagram of Linux sent by us is the captured frame, but for the fields that are ours to
/// choose: IPv4 identification 0, MigReq 1 as adapters have it, no request for an ACK, our PSN.
#[test]
fn sent_frames_are_those_of_linux() {
    let mut endpoint = endpoint();
    let mut wire = Frames::default();
    for (number, frame) in captured().iter().enumerate() {
        let packet = packet(frame);
        let spec = PathSpec {
            source_mac: frame.bytes[6..12].try_into().expect("six bytes"),
            dest_mac: frame.bytes[..6].try_into().expect("six bytes"),
            source: packet.source,
            destination: packet.destination,
            ..spec()
        };
        let path = Path::new(&spec).expect("one family");
        endpoint.send_management(path, &payload_of(&packet)).expect("room");
        wire.room = 1;
        assert!(endpoint.wants_transmit());
        assert_eq!(endpoint.poll_transmit(Nanos(1), 8, &mut NoApp, &mut wire).visits, 1);
        assert!(!endpoint.wants_transmit());
        let sent = wire.sent.pop_front().expect("a frame");
        assert_eq!(sent, with_our_choices(&frame.bytes, number as u8), "{} {}", frame.file, frame.index);
    }
    let counters = endpoint.counters();
    assert_eq!((counters.get(QpCount::RequestPackets), counters.get(QpCount::SentBytes)), (24, 24 * 256));
}

fn with_our_choices(captured: &[u8], psn: u8) -> Vec<u8> {
    let mut bytes = captured.to_vec();
    let (ip, bth) = (ip_at(&bytes), bth_at(&bytes));
    if bytes[ip] >> 4 == 4 {
        bytes[ip + 4..ip + 6].fill(0);
        fix_ipv4_checksum(&mut bytes);
    }
    bytes[bth + 1] |= 0x40;
    bytes[bth + 8..bth + 12].copy_from_slice(&[0, 0, 0, psn]);
    fix_icrc(&mut bytes);
    bytes
}

#[test]
fn each_check_refuses_and_counts() {
    let mut cases = vec![("right", Ok(()), right())];
    let mut case = |name, expected, change: &dyn Fn(&mut Recipe)| {
        let mut recipe = right();
        change(&mut recipe);
        cases.push((name, expected, recipe));
    };
    let deth = |recipe: &mut Recipe, change: &dyn Fn(&mut Deth)| change(recipe.headers.deth.as_mut().expect("a DETH"));
    case("immediate data", Err(DropReason::WrongService), &|recipe| {
        recipe.headers.bth.opcode = opcode::UD_SEND_ONLY_IMM;
        recipe.headers.imm = Some([0; 4]);
    });
    case("a connection", Err(DropReason::WrongService), &|recipe| {
        recipe.headers.bth.opcode = opcode::RC_SEND_ONLY;
        recipe.headers.deth = None;
    });
    case("QPN 0", Err(DropReason::NoSuchQp), &|recipe| recipe.headers.bth.dest_qpn = Qpn::from_wire(0));
    case("a limited member", Ok(()), &|recipe| recipe.headers.bth.pkey = Pkey(0x7fff));
    case("another partition", Err(DropReason::BadPkey), &|recipe| recipe.headers.bth.pkey = Pkey(0xfffe));
    case("another Q_Key", Err(DropReason::BadQkey), &|recipe| deth(recipe, &|deth| deth.qkey = 0x8001_0001));
    case("a Q_Key without privilege", Err(DropReason::BadQkey), &|recipe| {
        deth(recipe, &|deth| deth.qkey = 0x0001_0000);
    });
    case("another source", Err(DropReason::WrongSourceQp), &|recipe| {
        deth(recipe, &|deth| deth.source_qpn = Qpn::from_wire(2));
    });
    for bytes in [0, 252, 255, 257, 260, 512] {
        case("another length", Err(DropReason::BadLength), &|recipe| recipe.payload.resize(bytes, 0));
    }
    for source in [[224, 0, 0, 1], [239, 1, 2, 3], [255; 4], [0; 4], [127, 0, 0, 1]] {
        case("from no host", Err(DropReason::ForgedSource), &|recipe| recipe.spec.source = ipv4(source));
        case("to no host", Err(DropReason::WrongAddress), &|recipe| recipe.spec.destination = ipv4(source));
    }
    case("the ICRC covers the address", Ok(()), &|recipe| recipe.spec.source = ipv4([10, 77, 0, 7]));
    for (name, expected, recipe) in &cases {
        check(name, *expected, &recipe.build(&[]), &mut endpoint());
    }
    let mut damaged = right().build(&[]);
    damaged[100] ^= 1;
    check("a damaged byte", Err(DropReason::BadIcrc), &damaged, &mut endpoint());
}

#[track_caller]
fn check(name: &str, expected: Result<(), DropReason>, frame: &[u8], endpoint: &mut Endpoint) {
    let drops = |endpoint: &Endpoint| endpoint.drops().iter().map(|(_, count)| count).sum::<u64>();
    let before = drops(endpoint);
    let disposition = give(endpoint, frame);
    match expected {
        Ok(()) => {
            assert_eq!((disposition, drops(endpoint)), (Disposition::Accepted, before), "{name}");
            assert!(endpoint.poll_management().is_some(), "{name}");
        }
        Err(reason) => {
            assert_eq!((disposition, drops(endpoint)), (Disposition::Dropped(reason), before + 1), "{name}");
            assert_eq!(endpoint.drops().get(reason), 1, "{name}");
        }
    }
    assert_eq!(endpoint.poll_management(), None, "{name}");
}

#[test]
fn a_limited_member_takes_datagrams_of_full_members_of_any_of_its_partitions() {
    let from = |pkey| {
        let mut recipe = right();
        recipe.headers.bth.pkey = Pkey(pkey);
        give(&mut endpoint_of(&[Pkey(0x8001), Pkey(0x0007)]), &recipe.build(&[]))
    };
    assert_eq!([0x8001, 0x0001, 0x8007].map(from), [Disposition::Accepted; 3]);
    assert_eq!([0x0007, 0xffff].map(from), [Disposition::Dropped(DropReason::BadPkey); 2]);
}

/// The address of a group with members of this endpoint is that of no host.
#[test]
fn a_group_does_not_reach_queue_pair_1() {
    let mut endpoint = endpoint();
    let group = ipv4([239, 1, 2, 3]);
    endpoint.attach(Qpn::new(EndpointId::new(2).expect("small"), 5), group).expect("room");
    let mut recipe = right();
    recipe.spec.destination = group;
    check("to a group", Err(DropReason::WrongAddress), &recipe.build(&[]), &mut endpoint);
}

#[test]
fn the_datagram_names_vlan_class_and_version_of_roce() {
    let received = |change: &dyn Fn(&mut PathSpec)| {
        let mut recipe = right();
        change(&mut recipe.spec);
        let mut endpoint = endpoint();
        assert_eq!(give(&mut endpoint, &recipe.build(&[])), Disposition::Accepted);
        endpoint.poll_management().expect("a datagram")
    };
    let vlan = |id| Some(Vlan { id, priority: 5, rx_stripped: false });
    assert_eq!(received(&|spec| spec.vlan = vlan(77)).vlan, Some(77));
    assert_eq!(received(&|spec| spec.vlan = vlan(0)).vlan, None, "a priority alone");
    assert_eq!(received(&|spec| spec.traffic_class = 0x68).traffic_class, 0x68);
    assert_eq!(received(&|spec| spec.roce = Roce::V1).roce, Roce::V1);
    let ipv6 = |last| [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last];
    let datagram = received(&|spec| (spec.source, spec.destination) = (ipv6(1), ipv6(2)));
    assert_eq!((datagram.remote, datagram.local), (ipv6(1), ipv6(2)));
}

#[test]
fn a_datagram_in_pieces_is_whole() {
    let frame = right().build(&[]);
    for at in [54, 62, 63, 100, 317, 318, 321] {
        let mut endpoint = endpoint();
        let (first, second) = frame.split_at(at.max(62));
        let disposition = endpoint.on_frame(Nanos(1), &[first, second], &mut NoApp);
        assert_eq!(disposition, Disposition::Accepted, "cut at {at}");
        assert_eq!(endpoint.poll_management().expect("a datagram").bytes, right().payload[..]);
    }
}

#[test]
fn a_full_queue_drops_and_counts_until_one_is_taken() {
    let mut endpoint = endpoint();
    let send = |endpoint: &mut Endpoint, number: u8| {
        let mut recipe = right();
        recipe.payload[0] = number;
        give(endpoint, &recipe.build(&[]))
    };
    for number in 0..64 {
        assert_eq!(send(&mut endpoint, number), Disposition::Accepted);
    }
    assert_eq!(send(&mut endpoint, 64), Disposition::Dropped(DropReason::ManagementQueueFull));
    assert_eq!(endpoint.drops().get(DropReason::ManagementQueueFull), 1);
    assert_eq!(endpoint.poll_management().map(|datagram| datagram.bytes[0]), Some(0));
    assert_eq!(send(&mut endpoint, 65), Disposition::Accepted);
    let rest: Vec<u8> = std::iter::from_fn(|| endpoint.poll_management()).map(|datagram| datagram.bytes[0]).collect();
    assert_eq!(rest, (1..64).chain([65]).collect::<Vec<_>>());
}

#[test]
fn datagrams_are_sent_in_order_a_few_at_a_time_as_there_is_room() {
    let mut endpoint = endpoint();
    let path = Path::new(&spec()).expect("IPv4");
    for number in 0..64 {
        endpoint.send_management(path, &[number; MAD_BYTES]).expect("room");
    }
    assert_eq!(endpoint.send_management(path, &[64; MAD_BYTES]), Err(Reject::NoRoom));
    let mut wire = Frames::default();
    let mut transmit = |wire: &mut Frames, budget, room| {
        wire.room = room;
        endpoint.poll_transmit(Nanos(1), budget, &mut NoApp, wire).visits
    };
    assert_eq!(transmit(&mut wire, 128, 0), 0, "no room");
    assert_eq!(transmit(&mut wire, 128, 3), 3, "little room");
    assert_eq!(transmit(&mut wire, 128, 99), 4, "as many as a call sends");
    assert_eq!(transmit(&mut wire, 2, 99), 2, "the budget");
    assert_eq!(wire.sent.len(), 3 + 4 + 2);
    while transmit(&mut wire, 128, 99) > 0 {}
    assert_eq!(wire.sent.len(), 64);
    for (number, frame) in (0..).zip(&wire.sent) {
        let pieces = [&frame[..]];
        let packet = parse(&pieces).expect("our frame parses");
        packet.check_integrity().expect("our frame is whole");
        let headers = headers_of(&packet);
        let expected = Recipe { payload: vec![number; MAD_BYTES], ..right() };
        let bth = Bth { psn: Psn::new(number.into()), ..expected.headers.bth };
        assert_eq!((headers, payload_of(&packet)), (Headers { bth, ..expected.headers }, [number; MAD_BYTES]));
    }
}

/// A lost port: datagrams of before must not leave by the next one, maybe minutes later.
#[test]
fn datagrams_that_wait_do_not_outlive_their_port() {
    let mut endpoint = endpoint();
    let path = Path::new(&spec()).expect("IPv4");
    for _ in 0..3 {
        endpoint.send_management(path, &[1; MAD_BYTES]).expect("room");
    }
    assert_eq!(endpoint.fail_qps(0, 8), None);
    assert!(!endpoint.wants_transmit());
    assert_eq!(endpoint.drops().get(DropReason::ManagementLost), 3);
}
