//! The program over frames that are cut, lie about themselves or are not RoCE for us. Needs root.
//!
//! For any frame, the program passes it or gives it to the socket, and never touches it
//! ([`Program::run`] checks).

use std::net::IpAddr;

use roced_captures::frames_of;
use roced_steering::{ROCE_V1, ROCE_V2, Verdict};
use roced_xdp_tests::{
    Program,
    frame::{self, Frame},
    is_root, model,
};

const OURS: [&str; 3] = ["10.77.0.2", "fd00:77::2", "fe80::5054:ff:fe77:2"];

fn ours() -> Vec<IpAddr> {
    OURS.iter().map(|address| address.parse().expect("an address")).collect()
}

fn program() -> Program {
    let mut program = Program::load();
    for address in ours() {
        program.add_address_by(address, ROCE_V1 | ROCE_V2);
    }
    program.add_socket(0);
    program
}

fn v6() -> IpAddr {
    "fd00:77::2".parse().expect("an address")
}

/// One frame of each kind that is RoCE for us.
fn right_frames() -> Vec<Frame> {
    let tagged = |tags: &[(u16, u16)]| Frame { tags: tags.to_vec(), ..Frame::default() };
    vec![
        Frame::default(),
        Frame { destination: v6(), ..Frame::default() },
        tagged(&[(0x8100, 100)]),
        tagged(&[(0x88a8, 7)]),
        tagged(&[(0x88a8, 7), (0x8100, 0xe064)]),
        tagged(&[(0x8100, 7), (0x8100, 8)]),
        Frame { destination: v6(), ..tagged(&[(0x88a8, 7), (0x8100, 100)]) },
        Frame { options: vec![1; 4], ..Frame::default() },
        Frame { options: vec![1; 40], tags: vec![(0x8100, 1)], ..Frame::default() },
        Frame { fragment: 0, ..Frame::default() },
        Frame { payload: Vec::new(), ..Frame::default() },
        // Ethernet pads to 60 bytes, and some links append more.
        Frame { payload: vec![9; 4], padding: 14, ..Frame::default() },
        Frame { destination: v6(), padding: 4, ..Frame::default() },
        // The kernel's own UDP takes a datagram that ends before its IP packet; its meaning is for
        // the transport to decide.
        Frame { udp_length_lie: -4, ..Frame::default() },
        Frame { grh: true, ..Frame::default() },
        Frame { grh: true, destination: v6(), ..tagged(&[(0x8100, 100)]) },
        Frame { grh: true, payload: vec![9; 4], padding: 14, ..Frame::default() },
    ]
}

/// Frames that stay the kernel's, and why.
fn wrong_frames() -> Vec<(Frame, Verdict)> {
    let frame = Frame::default;
    let v6 = || Frame { destination: v6(), ..Frame::default() };
    let grh = || Frame { grh: true, ..Frame::default() };
    let to = |address: &str| Frame { destination: address.parse().expect("an address"), ..Frame::default() };
    vec![
        (Frame { tags: vec![(0x88a8, 1), (0x8100, 2), (0x8100, 3)], ..frame() }, Verdict::PassNotIp),
        (Frame { tags: vec![(0x9100, 1)], ..frame() }, Verdict::PassNotIp),
        (Frame { ether_type: Some(0x0806), ..frame() }, Verdict::PassNotIp), // ARP
        (Frame { ether_type: Some(0x8915), ..frame() }, Verdict::PassMalformed), // IPv4 that says it is a GRH
        (Frame { ether_type: Some(0x8915), ..v6() }, Verdict::PassNotRoce),  // UDP in a GRH
        (Frame { ether_type: Some(0x86dd), ..grh() }, Verdict::PassNotRoce), // a BTH in IPv6
        (Frame { protocol: Some(59), ..grh() }, Verdict::PassNotRoce),
        (Frame { destination: "10.77.0.1".parse().expect("an address"), ..grh() }, Verdict::PassNotOurs),
        (Frame { ip_length_lie: 1, ..grh() }, Verdict::PassMalformed),
        (Frame { ip_length_lie: 5, padding: 4, ..grh() }, Verdict::PassMalformed),
        (Frame { ether_type: Some(60), ..frame() }, Verdict::PassNotIp), // a length (IEEE 802.3), not a type
        (Frame { port: 4790, ..frame() }, Verdict::PassNotRoce),
        (Frame { port: 4791_u16.swap_bytes(), ..frame() }, Verdict::PassNotRoce),
        (Frame { port: 53, ..v6() }, Verdict::PassNotRoce),
        (Frame { protocol: Some(6), ..frame() }, Verdict::PassNotRoce),
        (Frame { protocol: Some(1), ..frame() }, Verdict::PassNotRoce),
        (Frame { protocol: Some(6), ..v6() }, Verdict::PassNotRoce),
        (Frame { protocol: Some(0), ..v6() }, Verdict::PassNotRoce), // hop-by-hop options
        (Frame { protocol: Some(43), ..v6() }, Verdict::PassNotRoce), // routing
        (Frame { protocol: Some(60), ..v6() }, Verdict::PassNotRoce), // destination options
        (Frame { protocol: Some(51), ..v6() }, Verdict::PassNotRoce), // authentication
        (to("10.77.0.1"), Verdict::PassNotOurs),
        (to("2.0.77.10"), Verdict::PassNotOurs),
        (to("255.255.255.255"), Verdict::PassNotOurs),
        (to("224.0.0.1"), Verdict::PassNotOurs),
        (to("fd00:77::1"), Verdict::PassNotOurs),
        (to("ff02::1"), Verdict::PassNotOurs),
        (to("::ffff:10.77.0.2"), Verdict::PassNotOurs),
        (Frame { fragment: 0x2000, ..frame() }, Verdict::PassFragment), // the first
        (Frame { fragment: 0x2001, ..frame() }, Verdict::PassFragment), // one between
        (Frame { fragment: 0x1fff, ..frame() }, Verdict::PassFragment), // the last
        (Frame { fragment: 0x0001, protocol: Some(6), ..frame() }, Verdict::PassFragment),
        (Frame { protocol: Some(44), ..v6() }, Verdict::PassFragment),
        (Frame { ip_length_lie: 1, ..frame() }, Verdict::PassMalformed),
        (Frame { ip_length_lie: 1, ..v6() }, Verdict::PassMalformed),
        (Frame { ip_length_lie: 65_000, ..frame() }, Verdict::PassMalformed),
        (Frame { ip_length_lie: -1, ..frame() }, Verdict::PassMalformed), // the UDP datagram ends after its packet
        (Frame { ip_length_lie: -1, ..v6() }, Verdict::PassMalformed),
        (Frame { ip_length_lie: -88, ..frame() }, Verdict::PassMalformed), // an IP packet of no bytes
        (Frame { ip_length_lie: -68, ..v6() }, Verdict::PassMalformed),
        (Frame { ip_length_lie: 5, padding: 4, ..frame() }, Verdict::PassMalformed),
        (Frame { udp_length_lie: 1, ..frame() }, Verdict::PassMalformed),
        (Frame { udp_length_lie: 1, ..v6() }, Verdict::PassMalformed),
        (Frame { udp_length_lie: 1, padding: 14, ..frame() }, Verdict::PassMalformed), // padding is not payload
        (Frame { udp_length_lie: -61, ..frame() }, Verdict::PassMalformed),            // shorter than its own header
        (Frame { udp_length_lie: -68, ..v6() }, Verdict::PassMalformed),
    ]
}

#[test]
fn roce_frames_for_local_addresses_are_redirected() {
    if !is_root("roce_frames_for_local_addresses_are_redirected") {
        return;
    }
    let mut program = program();
    for frame in right_frames() {
        assert_eq!(program.run(&frame.bytes()), Verdict::Redirected, "{frame:?}");
        assert_eq!(model::judge(&frame.bytes(), &ours(), true), Verdict::Redirected, "the model on {frame:?}");
    }
}

#[test]
fn other_frames_pass_to_the_kernel_under_their_verdict() {
    if !is_root("other_frames_pass_to_the_kernel_under_their_verdict") {
        return;
    }
    let mut program = program();
    for (frame, verdict) in wrong_frames() {
        assert_eq!(program.run(&frame.bytes()), verdict, "{frame:?}");
        assert_eq!(model::judge(&frame.bytes(), &ours(), true), verdict, "the model on {frame:?}");
    }
}

/// The IP header's own lengths: version, header length. The rest of the frame is right.
#[test]
fn an_ip_header_that_lies_about_itself_is_malformed() {
    if !is_root("an_ip_header_that_lies_about_itself_is_malformed") {
        return;
    }
    let mut program = program();
    for first in 0..=u8::MAX {
        let (mut v4_frame, mut v6_frame) =
            (Frame::default().bytes(), Frame { destination: v6(), ..Frame::default() }.bytes());
        (v4_frame[14], v6_frame[14]) = (first, first);
        let expected = |right| if right { Verdict::Redirected } else { Verdict::PassMalformed };
        assert_eq!(program.run(&v6_frame), expected(first >> 4 == 6), "IPv6 with first byte {first:#x}");
        // A longer header than the true one moves the UDP header into the payload, where the port
        // is another.
        let verdict = match first {
            0x45 => Verdict::Redirected,
            0x46..=0x4f => Verdict::PassNotRoce,
            _ => Verdict::PassMalformed,
        };
        assert_eq!(program.run(&v4_frame), verdict, "IPv4 with first byte {first:#x}");
    }
}

#[test]
fn a_frame_cut_anywhere_is_malformed() {
    if !is_root("a_frame_cut_anywhere_is_malformed") {
        return;
    }
    let mut program = program();
    let mut whole: Vec<Vec<u8>> =
        right_frames().iter().filter(|f| f.padding == 0 && f.udp_length_lie == 0).map(Frame::bytes).collect();
    whole.extend(
        ["rc_send_zero.pcap", "rc_send_ipv6.pcap", "rc_write_imm.pcap", "rc_send_fml_mtu256.pcap"]
            .map(|file| frames_of(file)[0].bytes.clone()),
    );
    for frame in whole {
        assert_eq!(program.run(&frame), Verdict::Redirected);
        for length in 14..frame.len() {
            assert_eq!(program.run(&frame[..length]), Verdict::PassMalformed, "{length} of {} bytes", frame.len());
        }
        // Drivers do not hand such frames up, and the kernel does not run the program over them.
        assert!(program.try_run(&frame[..13], None).is_err());
    }
}

/// Every byte of the headers, one at a time, through values that matter; a plain model gives the
/// right verdict.
#[test]
fn a_wrong_byte_anywhere_is_judged_as_the_model_judges_it() {
    if !is_root("a_wrong_byte_anywhere_is_judged_as_the_model_judges_it") {
        return;
    }
    let (mut program, ours) = (program(), ours());
    program.honor_pauses(1 << 3, 51_200);
    let mut seen = [0u64; Verdict::ALL.len()];
    let frames = right_frames().into_iter().map(|frame| frame.bytes());
    for right in frames.chain([frame::from_hex(frame::PAUSE_OF_PRIORITY_3)]) {
        for at in 0..right.len().min(110) {
            for wrong in [0, 1, 6, 8, 17, 44, 0x20, 0x45, 0x60, 0x81, 0xff, right[at] ^ 1, right[at] ^ 0x80] {
                let mut bytes = right.clone();
                bytes[at] = wrong;
                let expected =
                    if model::is_pfc(&bytes) { Verdict::DropPause } else { model::judge(&bytes, &ours, true) };
                assert_eq!(program.run(&bytes), expected, "byte {at} is {wrong:#x} in {right:02x?}");
                seen[expected as usize] += 1;
            }
        }
    }
    let unseen: Vec<_> = Verdict::ALL.into_iter().filter(|&verdict| seen[verdict as usize] == 0).collect();
    assert_eq!(unseen, [Verdict::PassNoSocket], "every verdict that a frame alone can cause occurs");
}

#[test]
fn each_roce_is_taken_where_it_was_asked_for() {
    if !is_root("each_roce_is_taken_where_it_was_asked_for") {
        return;
    }
    let frames = [Frame::default(), Frame { grh: true, ..Frame::default() }];
    let verdicts = |roce| {
        let mut program = Program::load();
        program.add_socket(0);
        program.add_address_by(ours()[0], roce);
        frames.each_ref().map(|frame| program.run(&frame.bytes()))
    };
    assert_eq!(verdicts(ROCE_V2), [Verdict::Redirected, Verdict::PassNotOurs]);
    assert_eq!(verdicts(ROCE_V1), [Verdict::PassNotOurs, Verdict::Redirected]);
    assert_eq!(verdicts(ROCE_V1 | ROCE_V2), [Verdict::Redirected; 2]);
    assert_eq!(model::judge(&frames[1].bytes(), &ours(), false), Verdict::PassNotOurs);
}
