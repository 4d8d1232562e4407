//! Which frames belong together, of recordings as other connections would have made them.

use super::*;
use crate::{compare::source_port, trace::Service};

const SECOND_NS: u64 = 1_000_000_000;
/// PSN of the first packet in every recording that has no name for it.
pub(super) const FIRST: u32 = 4096;

/// A recording, between queue pairs `[ours, theirs]` (theirs asks), with PSNs that begin at
/// `first`, at that time.
pub(super) fn between([ours, theirs]: [u32; 2], file: &str, first: u32, at_ns: u64) -> Vec<Seen> {
    let mut frames = recorded(file);
    let began_ns = frames[0].at_ns;
    for seen in &mut frames {
        seen.dest_qpn = if seen.from == Side::Rxe { ours } else { theirs };
        // Ours is the life's, and says nothing of the peer.
        let life = 0xc000 | (at_ns / SECOND_NS) as u16;
        seen.source_port = if seen.from == Side::Rxe { source_port(ours, theirs) } else { life };
        seen.psn = seen.psn.wrapping_sub(FIRST).wrapping_add(first) & 0xff_ffff;
        seen.at_ns = seen.at_ns - began_ns + at_ns;
    }
    frames
}

/// One as if no frame were lost between the ports.
fn one(frames: &[Seen]) -> [Vec<Seen>; 2] {
    [frames.to_vec(), frames.to_vec()]
}

/// Rules that are broken, and how many frames could not be told apart.
fn judged(ports: &[Vec<Seen>; 2], mtu: Option<u32>) -> (Vec<&'static str>, usize) {
    let lives = Lives::of(ports, mtu);
    let found = Side::BOTH.map(|side| check(&ports[side as usize], side, &lives));
    let unrelated = found.iter().map(|found| found.unrelated).sum();
    (rules(found.into_iter()), unrelated)
}

const GOOD: (Vec<&str>, usize) = (Vec::new(), 0);

#[test]
fn a_number_that_is_used_by_another_connection_is_another_life() {
    for first in [FIRST + 1, FIRST + 0x100, FIRST + 0x40_0000] {
        let before = between([0x111, 0x21], "rc_send_only_ipv4.pcap", FIRST, 0);
        let after = between([0x111, 0x22], "rc_send_only_ipv4.pcap", first, SECOND_NS);
        assert_eq!(judged(&one(&[before, after].concat()), None), GOOD, "from PSN {first} on");
    }
}

/// Only roced's numbers differ, and its frames do not name them.
#[test]
fn a_number_of_theirs_that_returns_is_told_apart_by_the_power_failure_between() {
    let before = between([0x111, 0x21], "rc_send_only_ipv4.pcap", FIRST, 0);
    let after = between([0x112, 0x21], "rc_send_only_ipv4.pcap", FIRST + 0x100, SECOND_NS);
    let mut ports = one(&[before, after].concat());
    assert_eq!(judged(&ports, None), (Vec::new(), ports[0].len()));
    assert_eq!(by_guest(&ports, SECOND_NS).map(|guest| judged(&guest, None)), [GOOD, GOOD]);
    let last = ports.iter_mut().map(|frames| frames.last_mut().expect("frames"));
    last.for_each(|seen| seen.msn += 1);
    assert_eq!(by_guest(&ports, SECOND_NS).map(|guest| judged(&guest, None).0), [vec![], vec!["msn"]]);
}

/// Three SENDs; then a WRITE of five packets and another, as they would look to a checker that
/// takes them for more of the same, all but one that goes on where the SENDs ended.
#[test]
fn a_pair_that_was_reset_begins_another_life_wherever_its_psns_are() {
    for off in [-0x40_0000, -100, -4, -1, 0, 1, 2, 4, 10, 0x40_0000] {
        let before = between([0x111, 0x21], "rc_send_only_ipv4.pcap", FIRST, 0);
        let first = FIRST.wrapping_add_signed(off);
        for (file, mtu) in [("rc_write_fml.pcap", 1024), ("rc_send_fml_mtu256.pcap", 256)] {
            let after = between([0x111, 0x21], file, first, SECOND_NS);
            assert_eq!(judged(&one(&[before.clone(), after].concat()), None), GOOD, "{off} PSNs away, path MTU {mtu}");
        }
    }
}

#[test]
fn a_pair_that_was_refused_and_reset_begins_another_life() {
    for off in [2, 4, 100] {
        let before = between([0x111, 0x21], "nak_rem_access_write.pcap", FIRST, 0);
        let after = between([0x111, 0x21], "rc_send_only_ipv4.pcap", FIRST + off, SECOND_NS);
        assert_eq!(judged(&one(&[before, after].concat()), None), GOOD, "{off} PSNs away");
    }
}

/// The switch may lose any frame: the port of its sender shows it.
#[test]
fn a_life_of_which_nothing_arrived_was_one() {
    for off in [10, 0x40_0000] {
        let lost = between([0x111, 0x21], "retry_exceeded_badqpn.pcap", FIRST, 0);
        let after = between([0x111, 0x21], "rc_send_only_ipv4.pcap", FIRST + off, SECOND_NS);
        let ports = [after.clone(), [lost, after].concat()];
        assert_eq!(judged(&ports, None), GOOD, "{off} PSNs away");
    }
}

#[test]
fn no_recording_has_more_than_one_life() {
    let files = roced_captures::files();
    for file in files.iter().filter(|file| !file.contains("tapB") && !file.starts_with("cm_")) {
        assert_eq!(Lives::of(&one(&recorded(file)), None).longest(), usize::from(!file.contains("ud_")), "{file}");
    }
}

#[test]
fn a_long_read_is_no_new_life() {
    let mtu = 256;
    let packets = (1 << 20) + 10;
    let mut frames = recorded("rc_read_only.pcap");
    let second = at(&frames, 1, Kind::ReadRequest);
    frames[0].dma_bytes = Some(packets * mtu);
    for seen in &mut frames[second..] {
        seen.psn += packets - 1;
    }
    let response = at(&frames, 0, Kind::ReadResponse);
    frames.remove(response);
    assert_eq!(judged(&one(&frames), Some(mtu)), GOOD);
}

/// A READ without an answer tells the path MTU only by the PSNs that it takes.
#[test]
fn a_path_mtu_that_no_packet_fills_is_found() {
    let mut frames = recorded("rc_read_only.pcap");
    let (response, second) = (at(&frames, 0, Kind::ReadResponse), at(&frames, 1, Kind::ReadRequest));
    frames[0].dma_bytes = Some(3 * 1024);
    for seen in &mut frames[second..] {
        seen.psn += 2;
    }
    frames.remove(response);
    assert_eq!(judged(&one(&frames), None), GOOD);
}

#[test]
fn a_hole_in_the_psns_is_no_new_life_even_where_a_message_begins() {
    for packets in [1, 2] {
        let mut frames = recorded("rc_send_only_ipv4.pcap");
        let lost = FIRST + 1..FIRST + 1 + packets;
        // Its sender is asked for it without success.
        frames.retain(|seen| seen.kind.is_response() || !lost.contains(&seen.psn));
        let mut more = frames[0].clone();
        (more.psn, more.at_ns) = (FIRST + 3, more.at_ns + SECOND_NS);
        frames.push(more);
        let (rules, _) = judged(&one(&frames), None);
        assert!(rules.contains(&"psn-order"), "{packets}: {rules:?}");
    }
}

#[test]
fn other_bytes_the_second_time_are_no_new_life_where_a_message_begins() {
    let mut frames = recorded("rc_send_only_ipv4.pcap");
    let mut again = frames[1].clone();
    again.payload_sum ^= 1;
    frames.insert(3, again);
    assert_eq!(judged(&one(&frames), None).0, ["same-again"]);
}

#[test]
fn message_numbers_that_begin_anew_in_the_middle_are_seen() {
    let rules = changed("rc_send_only_ipv4.pcap", |frames| {
        let last = at(frames, 2, Kind::Ack);
        frames[last].msn = 1;
    });
    assert_eq!(rules, ["msn"]);
}

/// Damage may change any field of it, also those that tell its connection.
#[test]
fn a_corrupted_first_packet_hides_nothing() {
    for change in [
        |seen: &mut Seen| seen.dest_qpn ^= 1,
        |seen: &mut Seen| seen.service = Service::Ud,
        |seen: &mut Seen| seen.psn ^= 0x40_0000,
    ] {
        let sent = recorded("rc_send_only_ipv4.pcap");
        let mut arrived = sent.clone();
        arrived[0].intact = false;
        change(&mut arrived[0]);
        // All three are acknowledged at their port.
        assert_eq!(judged(&[arrived, sent], None).0, ["ack"]);
    }
}

/// Two pairs of QPNs that make the same port of rxe's, and whether theirs make it with the other's
/// as well.
fn of_one_port(ambiguous: bool) -> [[u32; 2]; 2] {
    let first = [0x111, 0x21];
    let port = source_port(first[0], first[1]);
    let ours = if ambiguous { first[0] } else { 0x345 };
    let is_it = |theirs: &u32| {
        let crossed = source_port(first[0], *theirs) == port || source_port(ours, first[1]) == port;
        source_port(ours, *theirs) == port && crossed == ambiguous
    };
    [first, [ours, (0x22..0xff_ffff).find(is_it).expect("there are 2^14 ports")]]
}

#[test]
fn connections_that_share_a_port_are_told_apart() {
    let pairs = of_one_port(false);
    let [first, second] = pairs.map(|pair| between(pair, "rc_send_only_ipv4.pcap", FIRST, 0));
    // At the same time.
    let frames: Vec<_> = first.into_iter().zip(second).flat_map(|(first, second)| [first, second]).collect();
    assert_eq!(judged(&one(&frames), None), GOOD);
    let mut wrong = frames.clone();
    wrong.last_mut().expect("frames").msn += 1;
    assert_eq!(judged(&one(&wrong), None).0, ["msn"]);
}

#[test]
fn packets_of_either_of_two_connections_are_counted_and_checked_separately() {
    let pairs = of_one_port(true);
    let [first, second] = pairs.map(|pair| between(pair, "rc_send_only_ipv4.pcap", FIRST, 0));
    let mut frames = [first, second].concat();
    let count = frames.len();
    assert_eq!(judged(&one(&frames), None), (Vec::new(), count));
    frames[0].pad = 3;
    assert_eq!(judged(&one(&frames), None).0, ["pad"]);
}

/// Of three connections one of theirs makes the same port with every one of ours: the others tell
/// which is left.
#[test]
fn connections_are_told_apart_by_those_that_are_certain() {
    // As Linux once numbered them, and roced.
    let pairs = [[0x90, 0x2_5b3d], [0x91, 0x2_3ff7], [0x92, 0x3_a9b7]];
    assert!(pairs.iter().all(|[ours, _]| source_port(*ours, pairs[1][1]) == source_port(0x91, pairs[1][1])));
    let all = pairs.map(|pair| between(pair, "rc_send_only_ipv4.pcap", FIRST, 0));
    assert_eq!(judged(&one(&all.concat()), None), GOOD);
}

#[test]
fn the_same_queue_pairs_by_other_addresses_are_another_connection() {
    let before = between([0x111, 0x21], "rc_mix_ipv6.pcap", FIRST, 0);
    let after = between([0x111, 0x21], "rc_mix.pcap", FIRST + 1, SECOND_NS);
    assert_eq!(judged(&one(&[before, after].concat()), None), GOOD);
}

#[test]
fn an_answer_to_nothing_is_seen() {
    let rules = changed("rc_send_only_ipv4.pcap", |frames| frames.retain(|seen| seen.kind == Kind::Ack));
    assert_eq!(rules, ["answer"]);
}
