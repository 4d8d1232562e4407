//! Multicast groups stand in the map beside our own addresses, and are ours as long as they do.
//! Needs root.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use libbpf_rs::{MapCore as _, MapFlags};
use roced_steering::{self, Verdict};
use roced_types::gid_of;
use roced_xdp_tests::{Program, frame::Frame, is_root, model};

const OURS: [&str; 2] = ["10.77.0.2", "fd00:77::2"];
const GROUPS: [&str; 2] = ["239.77.1.2", "ff0e::77:2"];
/// The last differs from one of [`GROUPS`] in a bit that its MAC address does not have.
const OTHERS: [&str; 4] = ["239.77.1.3", "ff0e::77:3", "ff02::1", "239.205.1.2"];

fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn program() -> Program {
    let mut program = Program::load();
    OURS.into_iter().for_each(|ours| program.add_address(address(ours)));
    program.add_socket(0);
    program
}

fn frame_to(group: &str) -> Frame {
    Frame { destination: address(group), payload: vec![7; 1100], ..Frame::default() }
}

#[test]
fn frames_of_a_group_are_ours_from_the_first_member_to_the_last() {
    if !is_root("frames_of_a_group_are_ours_from_the_first_member_to_the_last") {
        return;
    }
    let mut program = program();
    for group in GROUPS {
        let plain = frame_to(group);
        let tagged = Frame { tags: vec![(0x8100, 100)], ..plain.clone() };
        for frame in [&plain, &tagged] {
            assert_eq!(program.run(&frame.bytes()), Verdict::PassNotOurs, "{group} has no member");
        }
        program.add_address(address(group));
        for frame in [&plain, &tagged] {
            assert_eq!(program.run(&frame.bytes()), Verdict::Redirected, "{group}");
        }
        // Nothing else of that group is.
        assert_eq!(program.run(&Frame { port: 5353, ..plain.clone() }.bytes()), Verdict::PassNotRoce, "{group}");
        let igmp_or_icmp = if plain.destination.is_ipv4() { 2 } else { 58 };
        assert_eq!(program.run(&Frame { protocol: Some(igmp_or_icmp), ..plain.clone() }.bytes()), Verdict::PassNotRoce);
        assert_eq!(program.run(&Frame { udp_length_lie: 1, ..plain.clone() }.bytes()), Verdict::PassMalformed);
        for other in OTHERS {
            assert_eq!(program.run(&frame_to(other).bytes()), Verdict::PassNotOurs, "{other} is not {group}");
        }
        let known: Vec<_> = OURS.into_iter().chain([group]).map(address).collect();
        for frame in [plain.bytes(), tagged.bytes()] {
            assert_eq!(model::judge(&frame, &known, false), Verdict::Redirected);
        }
        program.remove_address(address(group));
        assert_eq!(program.run(&plain.bytes()), Verdict::PassNotOurs, "{group} has no member any more");
    }
    for ours in OURS {
        assert_eq!(program.run(&frame_to(ours).bytes()), Verdict::Redirected, "{ours}");
    }
}

/// As many groups as limits allow leave room for as many addresses of our own.
#[test]
fn groups_do_not_take_the_room_of_our_own_addresses() {
    if !is_root("groups_do_not_take_the_room_of_our_own_addresses") {
        return;
    }
    let mut program = program();
    for number in 0..roced_steering::GROUPS_MAX {
        program.add_address(Ipv4Addr::from_bits(0xef00_0000 + number).into());
    }
    let own = |number| IpAddr::from(Ipv6Addr::from_bits(0xfd00_0078 << 96 | u128::from(number)));
    for number in 0..roced_steering::GIDS_MAX - OURS.len() as u32 {
        program.add_address(own(number));
    }
    let one_more = gid_of(own(roced_steering::GIDS_MAX));
    program.map(roced_steering::MAP_ADDRESSES).update(&one_more, &[1], MapFlags::ANY).expect_err("it is full");
    for ours in ["10.77.0.2", "fd00:78::5", "239.0.0.1", "239.0.15.255"] {
        assert_eq!(program.run(&frame_to(ours).bytes()), Verdict::Redirected, "{ours}");
    }
    assert_eq!(program.run(&frame_to("239.0.16.0").bytes()), Verdict::PassNotOurs);
}
