//! The rules themselves, held against frames of two of Linux's rxe (`tests/captures`): as they were
//! recorded, and with one thing made wrong. Host A of the recordings stands for rxe, host B for
//! roced.

mod congestion;
mod last_ack;
mod lives;
mod mads;

use std::collections::BTreeSet;

use roced_captures::directory;

use super::{psn::distance, rules::SLACK_NS, *};
use crate::trace;

const HOST_A: [u8; 6] = [0x52, 0x54, 0x00, 0x77, 0x00, 0x01];

fn recorded(file: &str) -> Vec<Seen> {
    trace::read(&directory().join(file), HOST_A, &BTreeSet::new()).expect("it is read")
}

/// Rules that `frames` break, of A, or on B's port of B.
fn broken(file: &str, frames: &[Seen]) -> Vec<&'static str> {
    let sides = if file.contains("tapB") { &[Side::Roced][..] } else { &Side::BOTH };
    let lives = Lives::of(&[frames.to_vec(), frames.to_vec()], None);
    rules(sides.iter().map(|side| check(frames, *side, &lives)))
}

fn rules(found: impl Iterator<Item = Findings>) -> Vec<&'static str> {
    let mut rules: Vec<_> = found.flat_map(|found| found.violations).map(|violation| violation.rule).collect();
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

/// Of 92 recordings, the frames on A's port. Connection managers speak by datagrams, and one frame
/// was made wrong.
#[test]
fn recorded_frames_of_linux_break_no_rule() {
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

/// roced's question is a packet without bytes, of the newest PSN that was acknowledged to it and of
/// that packet's class.
#[test]
fn a_question_is_of_the_newest_that_was_acknowledged() {
    // Host A speaks for roced.
    let host_b = [0x52, 0x54, 0x00, 0x77, 0x00, 0x02];
    let frames =
        trace::read(&directory().join("rc_send_fml_mtu256.pcap"), host_b, &BTreeSet::new()).expect("it is read");
    let acks: Vec<_> = frames.iter().filter(|seen| seen.kind == Kind::Ack).collect();
    let last = acks.last().expect("ACKs");
    let asked = |opcode, psn, after_ns| {
        let mut frames = frames.clone();
        let mut question = frames.iter().find(|seen| seen.from == Side::Roced).expect("a SEND").clone();
        (question.opcode, question.psn, question.at_ns) = (opcode, psn, last.at_ns + after_ns);
        (question.begins, question.ends, question.ack_request, question.payload_bytes) = (true, true, true, 0);
        question.number = frames.len() + 1;
        frames.push(question);
        let lives = Lives::of(&[frames.clone(), frames.clone()], None);
        rules([check(&frames, Side::Roced, &lives)].into_iter())
    };
    assert_eq!(asked(0x04, last.psn, 3_000_000_000), [""; 0]);
    assert!(asked(0x0a, last.psn, 3_000_000_000).contains(&"same-again"), "another class");
    assert!(asked(0x04, last.psn - 1, 3_000_000_000).contains(&"same-again"), "an older one");
}

#[test]
fn a_request_before_the_end_of_the_rnr_timer_is_seen() {
    let rules = changed("nak_rnr.pcap", |frames| {
        let nak = at(frames, 0, Kind::Ack);
        frames[nak + 1].at_ns = frames[nak].at_ns + 500_000;
    });
    assert_eq!(rules, ["rnr-timer"]);
}

/// A repetition that no RNR NAK was the reason of, because it had not been looked at: a copy of the
/// first SEND, so long after the NAK.
fn on_its_way(frames: &mut Vec<Seen>, nth: usize, after_ns: u64) {
    let nak = at(frames, nth, Kind::Ack);
    let mut again = frames[0].clone();
    again.at_ns = frames[nak].at_ns + after_ns;
    frames.insert(nak + 1, again);
}

#[test]
fn requests_in_flight_at_the_rnr_nak_are_not_attributed_to_it() {
    let rules = changed("nak_rnr.pcap", |frames| on_its_way(frames, 1, 20_000));
    assert_eq!(rules, [""; 0], "it comes again when the time is over");
    let rules = changed("nak_rnr.pcap", |frames| {
        on_its_way(frames, 1, 20_000);
        let nak = at(frames, 1, Kind::Ack);
        let mut refused = frames[nak].clone();
        refused.at_ns += 500_000;
        frames.insert(nak + 2, refused);
        // 0.64 ms after the first NAK; the other came while that time ran.
        frames[nak + 3].at_ns = frames[nak].at_ns + 700_000;
    });
    assert_eq!(rules, [""; 0], "it was refused as well");
}

#[test]
fn an_rnr_nak_that_comes_twice_is_waited_for_once() {
    let mut frames = recorded("nak_rnr.pcap");
    let nak = at(&frames, 1, Kind::Ack);
    // As the switch repeats it; and the repetition, 0.64 ms after the first.
    let mut again = frames[nak].clone();
    again.at_ns += 50_000;
    frames[nak + 1].at_ns = frames[nak].at_ns + 650_000;
    frames.insert(nak + 1, again);
    let of_requester = |frames: &[Seen]| {
        let lives = Lives::of(&[frames.to_vec(), frames.to_vec()], None);
        rules([check(frames, Side::Rxe, &lives)].into_iter())
    };
    assert_eq!(of_requester(&frames), [""; 0]);
    frames[nak + 2].at_ns = frames[nak].at_ns + 630_000;
    assert_eq!(of_requester(&frames), ["rnr-timer"]);
}

#[test]
fn requests_in_flight_at_every_rnr_nak_are_suspicious() {
    let rules = changed("nak_rnr.pcap", |frames| {
        on_its_way(frames, 1, 20_000);
        on_its_way(frames, 2, 20_000);
    });
    assert_eq!(rules, ["rnr-timer"]);
    let rules = changed("nak_rnr.pcap", |frames| {
        on_its_way(frames, 1, 20_000);
        on_its_way(frames, 1, 10_000);
    });
    assert_eq!(rules, ["rnr-timer"]);
}

/// All is sent again from an older packet on, as far as the one that is refused just then.
#[test]
fn requests_after_an_older_packet_are_not_attributed_to_the_rnr_nak() {
    let rules = changed("nak_rnr.pcap", |frames| {
        for seen in frames.iter_mut() {
            seen.psn += 1;
            seen.msn += 1;
        }
        let mut before = frames[0].clone();
        before.psn -= 1;
        let mut acknowledged = frames[9].clone();
        (acknowledged.psn, acknowledged.msn, acknowledged.at_ns) = (before.psn, 1, frames[1].at_ns - 1);
        frames.splice(..0, [before.clone()]);
        frames.insert(2, acknowledged);
        for nth in [2, 1] {
            on_its_way(frames, nth, 20_000);
            let nak = at(frames, nth, Kind::Ack);
            frames[nak + 1].psn += 1;
            let mut older = before.clone();
            older.at_ns = frames[nak].at_ns - 10_000;
            frames.insert(nak, older);
        }
    });
    assert_eq!(rules, [""; 0]);
}

#[test]
fn rnr_naks_are_as_many_as_refused_requests() {
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
fn an_ack_of_a_lost_packet_is_seen() {
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

/// To rxe roced acknowledges a packet within a message that is sent again and asks, regardless of
/// earlier acknowledgments.
#[test]
fn an_ack_may_go_back_to_a_request_repeated_within_a_message() {
    let asked = |times: usize, asks: bool| {
        changed("rc_send_fml_mtu256.pcap", |frames| {
            let first = at(frames, 0, Kind::Send);
            assert!(frames[first].from == Side::Rxe && !frames[first].ends);
            let ack = frames.iter().rposition(|seen| seen.kind == Kind::Ack).expect("an ACK");
            let after_ns = frames.last().expect("frames").at_ns + 1000;
            let (mut again, mut back) = (frames[first].clone(), frames[ack].clone());
            (again.ack_request, again.at_ns, again.number) = (asks, after_ns, frames.len() + 1);
            (back.psn, back.at_ns) = (again.psn, after_ns + 1000);
            frames.extend(std::iter::repeat_n(again, times));
            frames.push(back);
        })
        .contains(&"ack-order")
    };
    assert_eq!([asked(1, true), asked(1, false), asked(0, true)], [false, true, true]);
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
fn an_unacknowledged_request_is_seen() {
    let rules = changed("rc_send_only_ipv4.pcap", |frames| {
        frames.retain(|seen| seen.kind != Kind::Ack);
        let last = frames.len() - 1;
        frames[last].at_ns += 100 * SLACK_NS[0];
    });
    assert_eq!(rules, ["ack-coverage"]);
}

#[test]
fn retransmission_of_an_acknowledged_packet_is_seen() {
    let rules = changed("rc_send_only_ipv4.pcap", |frames| {
        let mut again = frames[0].clone();
        again.at_ns += 100 * SLACK_NS[0];
        frames.push(again);
    });
    assert_eq!(rules, ["acknowledged-again"]);
}

/// The first response of a READ is late, and with it come those that were held. Then roced asks by
/// the last of them.
#[test]
fn held_responses_are_acknowledged_by_the_one_that_was_missing() {
    let file = "rc_read_fml.pcap";
    let mut frames = recorded(file);
    for seen in &mut frames {
        seen.from = if seen.from == Side::Rxe { Side::Roced } else { Side::Rxe };
    }
    let [first, last] = [0, 2].map(|nth| at(&frames, nth, Kind::ReadResponse));
    let asked = at(&frames, 0, Kind::ReadRequest);
    let question = Seen {
        opcode: requester::SEND_ONLY,
        kind: Kind::Send,
        psn: frames[last].psn,
        ack_request: true,
        dma_bytes: None,
        ..frames[asked].clone()
    };
    frames[first..=last].rotate_left(1);
    frames.insert(last + 1, question.clone());
    let judged = |frames: &[Seen]| {
        let lives = Lives::of(&[frames.to_vec(), frames.to_vec()], None);
        rules([check(frames, Side::Roced, &lives)].into_iter())
    };
    assert_eq!(judged(&frames), [""; 0]);
    frames.swap(last, last + 1);
    assert_eq!(judged(&frames), ["same-again"], "before it came");
}

#[test]
fn each_frame_is_checked_by_itself() {
    let one = |change: fn(&mut Seen)| changed("rc_send_pad1.pcap", |frames| change(&mut frames[0]));
    assert!(one(|seen| seen.pad = 0).contains(&"pad"));
    assert!(one(|seen| seen.version = 1).contains(&"header"));
    assert!(one(|seen| seen.pkey = 0x1234).contains(&"header"));
    assert!(one(|seen| seen.intact = false).contains(&"icrc"));
    let long = changed("rc_send_fml_mtu256.pcap", |frames| frames[1].payload_bytes += 4);
    assert!(long.contains(&"length"), "{long:?}");
}
