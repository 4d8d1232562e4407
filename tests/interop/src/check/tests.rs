//! The rules themselves, held against what two of Linux's rxe once said to each other (`tests/captures`): as it was recorded, and with one
//! thing made wrong. Host A of the recordings stands for rxe, host B for roced.

use std::collections::BTreeSet;

use roced_captures::directory;

use super::*;
use crate::trace;

const HOST_A: [u8; 6] = [0x52, 0x54, 0x00, 0x77, 0x00, 0x01];

fn recorded(file: &str) -> Vec<Seen> {
    trace::read(&directory().join(file), HOST_A, &BTreeSet::new()).expect("it is read")
}

/// Rules that `frames` break, of A, or on B's port of B.
fn broken(file: &str, frames: &[Seen]) -> Vec<&'static str> {
    let sides = if file.contains("tapB") { &[Side::Roced][..] } else { &Side::BOTH };
    let firsts: FirstPsns = Side::BOTH.iter().flat_map(|side| first_psns(frames, *side)).collect();
    let mut rules: Vec<_> = sides
        .iter()
        .flat_map(|side| check(frames, *side, None, &firsts).violations)
        .map(|violation| violation.rule)
        .collect();
    rules.sort_unstable();
    rules.dedup();
    rules
}

/// A recording with one thing changed.
fn changed(file: &str, change: impl FnOnce(&mut Vec<Seen>)) -> Vec<&'static str> {
    let mut frames = recorded(file);
    assert_eq!(broken(file, &frames), [""; 0], "{file} as it was");
    change(&mut frames);
    broken(file, &frames)
}

fn at(frames: &[Seen], nth: usize, kind: Kind) -> usize {
    let mut found = frames.iter().enumerate().filter(|(_, seen)| seen.kind == kind);
    found.nth(nth).expect("it has that many").0
}

/// Of 92 recordings, what was recorded on A's port. Connection managers speak by datagrams, and one frame was made wrong.
#[test]
fn what_linux_said_breaks_no_rule() {
    let mut frames = 0;
    for file in roced_captures::files().iter().filter(|file| !file.contains("tapB") && !file.starts_with("cm_")) {
        let recorded = recorded(file);
        frames += recorded.len();
        assert_eq!(broken(file, &recorded), [""; 0], "{file}");
    }
    assert!(frames > 500, "{frames} frames");
}

#[test]
fn a_psn_left_out_is_seen() {
    assert!(changed("rc_send_fml_mtu256.pcap", |frames| frames.retain(|seen| seen.number != 2)).contains(&"psn-order"));
    assert!(changed("uc_send_fml.pcap", |frames| frames.retain(|seen| seen.number != 2)).contains(&"psn-order"));
}

#[test]
fn a_packet_out_of_its_message_is_seen() {
    let rules = changed("rc_send_fml_mtu256.pcap", |frames| (frames[1].begins, frames[1].payload_bytes) = (true, 256));
    assert_eq!(rules, ["opcode-order"]);
}

#[test]
fn other_bytes_the_second_time_are_seen() {
    let rules = changed("loss_send_middle.pcap", |frames| {
        let last = frames.iter().rposition(|seen| seen.kind == Kind::Send).expect("SENDs");
        let psn = frames[last].psn;
        assert!(frames[..last].iter().any(|seen| seen.psn == psn && seen.kind == Kind::Send), "it is sent again");
        frames[last].payload_sum ^= 1;
    });
    assert_eq!(rules, ["same-again"]);
}

#[test]
fn what_is_sent_before_the_rnr_timer_is_seen() {
    let rules = changed("nak_rnr.pcap", |frames| {
        let nak = at(frames, 0, Kind::Ack);
        frames[nak + 1].at_ns = frames[nak].at_ns + 500_000;
    });
    assert_eq!(rules, ["rnr-timer"]);
}

#[test]
fn rnr_naks_are_as_many_as_what_they_refuse() {
    let again = |frames: &[Seen], kind| frames[at(frames, 0, kind)].clone();
    let one = changed("nak_rnr.pcap", |frames| frames.insert(2, again(frames, Kind::Ack)));
    assert_eq!(one, ["rnr"]);
    let two = changed("nak_rnr.pcap", |frames| {
        frames.insert(2, again(frames, Kind::Ack));
        frames.insert(1, again(frames, Kind::Send));
    });
    assert_eq!(two, [""; 0], "it came twice before it was refused");
}

#[test]
fn a_nak_that_is_not_heeded_is_seen() {
    let rules = changed("loss_send_middle.pcap", |frames| {
        let nak = frames.iter().position(|seen| seen.syndrome == Some(0x60)).expect("a NAK");
        let wanted = frames[nak].psn;
        frames.retain(|seen| seen.number <= nak + 1 || seen.kind.is_response() || distance(seen.psn, wanted) < 0);
        frames.retain(|seen| seen.number <= nak + 1 || !seen.kind.is_response());
        let mut later = frames[0].clone();
        later.at_ns = frames[nak].at_ns + 100 * SLACK_NS[0];
        frames.push(later);
    });
    assert!(rules.contains(&"nak-answered"), "{rules:?}");
}

#[test]
fn an_ack_of_what_did_not_arrive_is_seen() {
    let rules = changed("rc_send_only_ipv4.pcap", |frames| {
        let ack = at(frames, 2, Kind::Ack);
        frames[ack].psn += 1;
    });
    assert!(rules.contains(&"ack"), "{rules:?}");
}

#[test]
fn acks_that_go_back_are_seen() {
    let rules = changed("rc_send_only_ipv4.pcap", |frames| {
        let (first, last) = (at(frames, 0, Kind::Ack), at(frames, 2, Kind::Ack));
        frames[last].psn = frames[first].psn;
    });
    assert!(rules.contains(&"ack-order"), "{rules:?}");
}

#[test]
fn a_wrong_message_number_is_seen() {
    for file in ["rc_send_only_ipv4.pcap", "rc_read_fml.pcap", "rc_atomic_fadd.pcap"] {
        let rules = changed(file, |frames| {
            let answer = frames.iter().rposition(|seen| seen.syndrome.is_some()).expect("an answer");
            frames[answer].msn += 1;
        });
        assert_eq!(rules, ["msn"], "{file}");
    }
}

#[test]
fn naks_without_reason_wrong_or_twice_are_seen() {
    let nak = |frames: &[Seen]| frames.iter().position(|seen| seen.syndrome == Some(0x60)).expect("a NAK");
    let again =
        changed("loss_send_middle.tapB.pcap", |frames| frames.insert(nak(frames) + 1, frames[nak(frames)].clone()));
    assert_eq!(again, ["nak-once"]);
    let ahead = changed("loss_send_middle.tapB.pcap", |frames| {
        let at = nak(frames);
        frames[at].psn += 1;
    });
    assert!(ahead.contains(&"nak-psn"), "{ahead:?}");
    let sudden = changed("rc_send_only_ipv4.pcap", |frames| {
        let ack = at(frames, 2, Kind::Ack);
        frames[ack].syndrome = Some(0x60);
        frames[ack].psn += 1;
    });
    assert!(sudden.contains(&"nak-psn"), "{sudden:?}");
}

#[test]
fn responses_out_of_their_place_are_seen() {
    let short = changed("rc_read_fml.pcap", |frames| {
        let last = frames.iter().position(|seen| seen.kind == Kind::ReadResponse && seen.ends).expect("a last one");
        frames[last].payload_bytes -= 4;
    });
    assert_eq!(short, ["read-response"]);
    let unasked = changed("rc_read_fml.pcap", |frames| {
        let last = frames.iter().rposition(|seen| seen.kind == Kind::ReadResponse).expect("responses");
        let mut more = frames[last].clone();
        more.psn += 1;
        frames.push(more);
    });
    assert!(unasked.contains(&"answer"), "{unasked:?}");
}

#[test]
fn a_request_that_nobody_acknowledges_is_seen() {
    let rules = changed("rc_send_only_ipv4.pcap", |frames| {
        frames.retain(|seen| seen.kind != Kind::Ack);
        let last = frames.len() - 1;
        frames[last].at_ns += 100 * SLACK_NS[0];
    });
    assert_eq!(rules, ["ack-coverage"]);
}

#[test]
fn what_is_acknowledged_and_sent_again_is_seen() {
    let rules = changed("rc_send_only_ipv4.pcap", |frames| {
        let mut again = frames[0].clone();
        again.at_ns += 100 * SLACK_NS[0];
        frames.push(again);
    });
    assert_eq!(rules, ["acknowledged-again"]);
}

#[test]
fn what_a_frame_says_by_itself_is_looked_at() {
    let one = |change: fn(&mut Seen)| changed("rc_send_pad1.pcap", |frames| change(&mut frames[0]));
    assert!(one(|seen| seen.pad = 0).contains(&"pad"));
    assert!(one(|seen| seen.version = 1).contains(&"header"));
    assert!(one(|seen| seen.pkey = 0x1234).contains(&"header"));
    assert!(one(|seen| seen.intact = false).contains(&"icrc"));
    let long = changed("rc_send_fml_mtu256.pcap", |frames| frames[1].payload_bytes += 4);
    assert!(long.contains(&"length"), "{long:?}");
}
