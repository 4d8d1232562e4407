//! One fault, and the reaction of each side with plain go-back-N, as adapters do and the recorded
//! captures show. Recovery beyond it is in `selective.rs`.

use roced_transport::{
    clock::Nanos,
    counters::QpCount,
    mr::{Mr, MrKey},
    recovery::RecoveryConfig,
    wire::{
        bth::Bth,
        headers::Headers,
        opcode::{self, Opcode, Operation},
    },
};
use roced_types::{QpAttributes, SendOp, Sge, Status, attribute};

use crate::host::{Fate, KEY, Pair, Settings, bth, forged, no_fault, one, sge, work};

const LIMIT: Nanos = Nanos::from_millis(10_000);

pub(crate) fn go_back_n() -> Settings {
    Settings { recovery: [RecoveryConfig::GO_BACK_N; 2], ..Settings::default() }
}

/// A message of five packets of this operation, under one fault; checks data and completion.
fn survives(op: SendOp, fate: impl FnMut(usize, Opcode, usize) -> Fate) -> Pair {
    let mut pair = Pair::new(go_back_n());
    pair.hosts[1].post_recv(9, &[sge(300_000, 8000)]);
    let to = if op == SendOp::Send { 300_000 } else { 600_000 };
    pair.hosts[0].post(&work(1, op, &[sge(11, 5000)], 600_000));
    assert!(pair.run(LIMIT, fate), "it comes to rest");
    assert_eq!(pair.hosts[0].take(), [(1, Status::Success)]);
    let (here, there) = (&pair.hosts[0].app.memory, &pair.hosts[1].app.memory);
    assert!(here[11..5011] == there[to..to + 5000], "every byte is there");
    if op == SendOp::Send {
        assert_eq!(pair.hosts[1].take(), [(9, Status::Success)]);
    }
    pair
}

#[test]
fn a_lost_middle_is_asked_for_once_and_sent_again() {
    for (op, middle) in [(SendOp::Send, opcode::RC_SEND_MIDDLE), (SendOp::Write, opcode::RC_WRITE_MIDDLE)] {
        let pair = survives(op, one(0, middle, 1, Fate::Drop));
        assert_eq!(pair.hosts[1].count(QpCount::SequenceNakSent), 1);
        assert_eq!(pair.hosts[0].count(QpCount::SequenceNakReceived), 1);
        assert_eq!(pair.hosts[0].count(QpCount::AckTimeout), 0);
        assert_eq!(pair.hosts[0].count(QpCount::RetransmittedPackets), 3, "it and the packets behind it");
    }
}

#[test]
fn a_lost_first_is_sent_again_with_its_address() {
    let pair = survives(SendOp::Write, one(0, opcode::RC_WRITE_FIRST, 0, Fate::Drop));
    assert_eq!(pair.hosts[1].count(QpCount::SequenceNakSent), 1);
}

#[test]
fn a_corrupt_packet_is_a_lost_packet() {
    let pair = survives(SendOp::Send, one(0, opcode::RC_SEND_MIDDLE, 1, Fate::Corrupt));
    assert_eq!(pair.hosts[1].drops()["drop_bad_icrc"], 1);
    assert_eq!(pair.hosts[1].count(QpCount::SequenceNakSent), 1);
}

#[test]
fn a_lost_last_is_found_by_the_timer() {
    for (op, last) in [(SendOp::Send, opcode::RC_SEND_LAST), (SendOp::Write, opcode::RC_WRITE_LAST)] {
        let pair = survives(op, one(0, last, 0, Fate::Drop));
        assert_eq!(pair.hosts[0].count(QpCount::AckTimeout), 1);
    }
}

#[test]
fn a_lost_ack_is_given_again_and_nothing_is_executed_twice() {
    let mut acks = 0;
    let pair = survives(SendOp::Send, |from, opcode, _| {
        acks += usize::from(opcode == opcode::RC_ACK);
        if from == 1 && opcode == opcode::RC_ACK && acks <= 1 { Fate::Drop } else { Fate::Deliver }
    });
    assert_eq!(pair.hosts[0].count(QpCount::AckTimeout), 1);
    assert!(pair.hosts[1].count(QpCount::DuplicateRequest) > 0);
    assert_eq!(pair.hosts[1].count(QpCount::SendRequests), 1);
}

#[test]
fn a_duplicate_is_acknowledged_and_not_executed() {
    let pair = survives(SendOp::Send, one(0, opcode::RC_SEND_MIDDLE, 1, Fate::Duplicate));
    assert_eq!(pair.hosts[1].drops()["drop_duplicate"], 1);
    assert_eq!(pair.hosts[0].count(QpCount::RetransmittedPackets), 0);
    let written: usize = pair.hosts[1].app.writes.iter().map(|(_, length)| length).sum();
    assert_eq!(written, 5000, "no byte is written twice");
}

#[test]
fn a_lost_read_request_is_found_by_the_timer() {
    let pair = survives(SendOp::Read, one(0, opcode::RC_READ_REQUEST, 0, Fate::Drop));
    assert_eq!(pair.hosts[0].count(QpCount::AckTimeout), 1);
}

#[test]
fn a_lost_read_response_is_asked_for_from_the_middle() {
    for lost in 0..3 {
        let pair = survives(SendOp::Read, one(1, opcode::RC_READ_RESPONSE_MIDDLE, lost, Fate::Drop));
        assert_eq!(pair.hosts[0].count(QpCount::ImpliedNak), 1);
        assert_eq!(pair.hosts[0].count(QpCount::AckTimeout), 0);
        assert_eq!(pair.sent(0, Operation::ReadRequest), 2);
        assert_eq!(pair.sent(1, Operation::ReadResponse), 5 + 4 - lost, "from the lost one on");
        let written: usize = pair.hosts[0].app.writes.iter().map(|(_, length)| length).sum();
        assert_eq!(written, 5000, "no byte is placed twice");
    }
}

#[test]
fn after_a_time_out_a_gap_is_asked_for_anew() {
    let mut responses = 0;
    let pair = survives(SendOp::Read, |from, _, _| {
        responses += from;
        // The second; all four of the repetition; the first one of the next, with others that show
        // the gap.
        if from == 1 && matches!(responses, 2 | 6..=10) { Fate::Drop } else { Fate::Deliver }
    });
    assert_eq!(pair.hosts[0].count(QpCount::AckTimeout), 1);
    assert_eq!(pair.hosts[0].count(QpCount::ImpliedNak), 2);
}

#[test]
fn a_lost_last_read_response_is_found_by_the_timer() {
    let pair = survives(SendOp::Read, one(1, opcode::RC_READ_RESPONSE_LAST, 0, Fate::Drop));
    assert_eq!(pair.hosts[0].count(QpCount::AckTimeout), 1);
    assert_eq!(pair.sent(1, Operation::ReadResponse), 6);
}

#[test]
fn the_retransmission_may_be_lost_too() {
    let mut lost = 0;
    survives(SendOp::Write, |from, opcode, _| {
        if from == 0 && opcode == opcode::RC_WRITE_MIDDLE && lost < 6 {
            lost += 1;
            return Fate::Drop;
        }
        Fate::Deliver
    });
}

#[test]
fn an_ack_behind_a_read_with_lost_responses_implies_a_nak() {
    let mut pair = Pair::new(go_back_n());
    pair.hosts[0].post(&work(1, SendOp::Read, &[sge(0, 2000)], 600_000));
    pair.hosts[0].post(&work(2, SendOp::Write, &[sge(5000, 10)], 700_000));
    assert!(pair.run(LIMIT, |from, opcode, nth| {
        let response = opcode.info().expect("known").operation == Operation::ReadResponse;
        if from == 1 && response && nth == 0 { Fate::Drop } else { Fate::Deliver }
    }));
    assert_eq!(pair.hosts[0].take(), [(1, Status::Success), (2, Status::Success)]);
    assert_eq!(pair.hosts[0].count(QpCount::ImpliedNak), 1);
    assert_eq!(pair.hosts[0].count(QpCount::AckTimeout), 0);
    assert!(pair.hosts[0].app.memory[..2000] == pair.hosts[1].app.memory[600_000..602_000]);
}

#[test]
fn a_receiver_that_is_not_ready_is_waited_for() {
    let mut pair = Pair::new(Settings { min_rnr_timer: 12, ..go_back_n() });
    pair.hosts[0].post(&work(1, SendOp::Send, &[sge(0, 3000)], 0));
    let start = pair.now;
    assert!(!pair.run(Nanos::from_millis(2), no_fault), "it waits");
    assert!(pair.hosts[0].take().is_empty());
    let tries = pair.hosts[1].count(QpCount::RnrNakSent);
    assert!((3..=4).contains(&tries), "0.64 ms each: {tries}");
    pair.hosts[1].post_recv(5, &[sge(400_000, 3000)]);
    pair.settle();
    assert_eq!(pair.hosts[0].take(), [(1, Status::Success)]);
    assert_eq!(pair.hosts[1].take(), [(5, Status::Success)]);
    assert_eq!(pair.hosts[0].count(QpCount::AckTimeout), 0);
    assert_eq!(pair.hosts[1].count(QpCount::SequenceNakSent), 0, "packets behind an RNR NAK get no NAK");
    assert!(pair.now - start >= Nanos::from_micros(640 * 3));
}

#[test]
fn a_write_with_immediate_waits_for_receive_work_at_its_end() {
    let mut pair = Pair::new(go_back_n());
    pair.hosts[0].post(&work(1, SendOp::WriteImm, &[sge(0, 3000)], 50_000));
    pair.run(Nanos::from_millis(1), no_fault);
    assert!(pair.hosts[1].count(QpCount::RnrNakSent) > 0);
    pair.hosts[1].post_recv(5, &[]);
    pair.settle();
    assert_eq!((pair.hosts[0].take(), pair.hosts[1].take()), (vec![(1, Status::Success)], vec![(5, Status::Success)]));
}

#[test]
fn retries_end_after_retry_cnt() {
    for retry_cnt in [0, 2, 7] {
        let mut pair = Pair::new(Settings { retry_cnt, ..go_back_n() });
        pair.hosts[0].post(&work(1, SendOp::Write, &[sge(0, 10)], 0));
        pair.hosts[0].post(&work(2, SendOp::Write, &[sge(0, 10)], 0));
        assert!(pair.run(LIMIT, |_, _, _| Fate::Drop));
        assert_eq!(pair.hosts[0].take(), [(1, Status::TransportRetryExceeded), (2, Status::WorkRequestFlushed)]);
        assert_eq!(pair.hosts[0].count(QpCount::AckTimeout), u64::from(retry_cnt) + 1);
        assert_eq!(pair.hosts[0].state(), "ERR");
    }
}

#[test]
fn rnr_retries_end_after_rnr_retry_and_seven_is_unlimited() {
    for rnr_retry in [0, 2, 6] {
        let mut pair = Pair::new(Settings { rnr_retry, ..go_back_n() });
        pair.hosts[0].post(&work(1, SendOp::Send, &[], 0));
        pair.settle();
        assert_eq!(pair.hosts[0].take(), [(1, Status::RnrRetryExceeded)]);
        assert_eq!(pair.hosts[1].count(QpCount::RnrNakSent), u64::from(rnr_retry) + 1);
    }
    let mut pair = Pair::new(Settings { rnr_retry: 7, min_rnr_timer: 1, ..go_back_n() });
    pair.hosts[0].post(&work(1, SendOp::Send, &[], 0));
    assert!(!pair.run(Nanos::from_millis(100), no_fault));
    assert!(pair.hosts[1].count(QpCount::RnrNakSent) > 100);
    assert_eq!(pair.hosts[0].state(), "RTS");
}

/// The receiver takes long, and of each two packets that ask whether it is ready one is lost.
#[test]
fn an_rnr_nak_gives_the_retries_back() {
    for recovery in [RecoveryConfig::GO_BACK_N, RecoveryConfig::default()] {
        let settings =
            Settings { timeout: 8, retry_cnt: 1, min_rnr_timer: 1, recovery: [recovery; 2], ..Settings::default() };
        let mut pair = Pair::new(settings);
        pair.hosts[0].post(&work(1, SendOp::Send, &[sge(0, 10)], 0));
        let lost =
            |from: usize, _: Opcode, nth: usize| if from == 0 && nth % 2 == 1 { Fate::Drop } else { Fate::Deliver };
        assert!(!pair.run(Nanos::from_millis(500), lost));
        assert!(pair.hosts[1].count(QpCount::RnrNakSent) > 10);
        pair.hosts[1].post_recv(9, &[sge(100, 10)]);
        assert!(pair.run(LIMIT, lost));
        assert_eq!(pair.hosts[0].take(), [(1, Status::Success)]);
        assert_eq!(pair.hosts[1].take(), [(9, Status::Success)]);
    }
}

#[test]
fn progress_gives_the_retries_back() {
    let mut pair = Pair::new(Settings { retry_cnt: 1, mtu: 256, window: 16, ..go_back_n() });
    pair.hosts[0].post(&work(1, SendOp::Write, &[sge(0, 400 * 256)], 500_000));
    let mut sent = 0;
    assert!(pair.run(LIMIT, |from, _, _| {
        sent += usize::from(from == 0);
        if from == 0 && sent % 40 == 0 { Fate::Drop } else { Fate::Deliver }
    }));
    assert_eq!(pair.hosts[0].take(), [(1, Status::Success)]);
}

/// Packets of a long message leave more slowly than the ACK timer runs, and the peer is asked at
/// the message's end only.
#[test]
fn the_timer_runs_for_requests_of_an_ack() {
    for recovery in [RecoveryConfig::GO_BACK_N, RecoveryConfig::default()] {
        // 10 ms a packet, 4 ms a time-out.
        let settings = Settings { retry_cnt: 0, timeout: 10, recovery: [recovery; 2], ..Settings::default() };
        let mut pair = Pair::new(settings);
        let host = &mut pair.hosts[0];
        let limit = QpAttributes { rate_limit_kbit_per_s: 800, ..QpAttributes::default() };
        host.endpoint.modify_qp(host.qpn, attribute::RATE_LIMIT, &limit, None).expect("allowed in RTS");
        host.post(&work(1, SendOp::Write, &[sge(0, 7000)], 0));
        assert!(pair.run(Nanos::from_millis(1000), no_fault));
        assert_eq!(pair.hosts[0].take(), [(1, Status::Success)]);
        let counts = [QpCount::AckTimeout, QpCount::RetransmittedPackets].map(|what| pair.hosts[0].count(what));
        assert_eq!(counts, [0, 0]);
    }
}

/// The packet that a NAK asks for is sent again before the peer was asked anything, and is lost:
/// the timer finds that.
#[test]
fn retransmissions_have_a_timer() {
    let mut pair = Pair::new(go_back_n());
    let host = &mut pair.hosts[0];
    let limit = QpAttributes { rate_limit_kbit_per_s: 800, ..QpAttributes::default() };
    host.endpoint.modify_qp(host.qpn, attribute::RATE_LIMIT, &limit, None).expect("allowed in RTS");
    host.post(&work(1, SendOp::Write, &[sge(0, 7000)], 0));
    // The first packet twice; the NAK is for the second.
    let mut firsts = 0;
    let lost = |from: usize, opcode: Opcode, _: usize| {
        firsts += usize::from(from == 0 && opcode == opcode::RC_WRITE_FIRST);
        if from == 0 && opcode == opcode::RC_WRITE_FIRST && firsts <= 2 { Fate::Drop } else { Fate::Deliver }
    };
    assert!(pair.run(Nanos::from_millis(10_000), lost));
    assert_eq!((pair.hosts[0].take(), pair.hosts[0].count(QpCount::AckTimeout)), (vec![(1, Status::Success)], 1));
}

#[test]
fn no_timer_runs_when_nothing_is_outstanding() {
    let mut pair = Pair::new(go_back_n());
    pair.hosts[0].post(&work(1, SendOp::Write, &[sge(0, 10)], 0));
    pair.settle();
    pair.run(Nanos::from_millis(10_000), no_fault);
    assert_eq!(pair.hosts[0].count(QpCount::AckTimeout), 0);
}

#[test]
fn a_frame_that_was_overtaken_is_recovered_from() {
    for turns in [1, 3, 10] {
        survives(SendOp::Write, one(0, opcode::RC_WRITE_MIDDLE, 0, Fate::Late(turns)));
        survives(SendOp::Send, one(0, opcode::RC_SEND_MIDDLE, 0, Fate::Late(turns)));
        survives(SendOp::Read, one(1, opcode::RC_READ_RESPONSE_MIDDLE, 0, Fate::Late(turns)));
        survives(SendOp::Write, one(1, opcode::RC_ACK, 0, Fate::Late(turns)));
    }
}

#[test]
fn retries_are_spent_only_on_retransmissions() {
    // 100 ms a packet, time-outs after 1 ms.
    let mut pair = Pair::new(Settings { timeout: 8, retry_cnt: 1, ..go_back_n() });
    let host = &mut pair.hosts[0];
    let limit = QpAttributes { rate_limit_kbit_per_s: 80, ..QpAttributes::default() };
    host.endpoint.modify_qp(host.qpn, attribute::RATE_LIMIT, &limit, None).expect("allowed in RTS");
    host.post(&work(1, SendOp::Write, &[sge(0, 1000)], 0));
    assert!(pair.run(LIMIT, one(0, opcode::RC_WRITE_ONLY, 0, Fate::Drop)));
    assert_eq!(pair.hosts[0].take(), [(1, Status::Success)]);
    assert_eq!(pair.hosts[0].count(QpCount::AckTimeout), 1);
    // The same where the NIC has no room for a while.
    pair.hosts[0].post(&work(2, SendOp::Write, &[sge(0, 1000)], 0));
    pair.run(Nanos::from_micros(110), |_, _, _| Fate::Drop);
    pair.hosts[0].nic.room = 0;
    pair.run(Nanos::from_millis(1000), no_fault);
    pair.hosts[0].nic.room = 100;
    pair.settle();
    assert_eq!(pair.hosts[0].take(), [(2, Status::Success)]);
}

#[test]
fn a_late_ack_for_an_unrepeatable_request_fails_nothing() {
    let mut pair = Pair::new(go_back_n());
    let other = Mr { key: MrKey(0x0055_5501), ..pair.hosts[0].endpoint.remove_mr(KEY).expect("there") };
    for mr in [other, Mr { key: KEY, ..other }] {
        pair.hosts[0].endpoint.insert_mr(mr).expect("room");
    }
    pair.hosts[0].post(&work(1, SendOp::Write, &[sge(0, 100)], 0));
    pair.hosts[0].post(&work(2, SendOp::Write, &[Sge { lkey: other.key.0, ..sge(0, 100) }], 0));
    // Both arrive, their ACK does not yet; then the second's memory goes away, and both are sent
    // again.
    pair.turn(&mut |from, _, _| if from == 1 { Fate::Drop } else { Fate::Deliver });
    pair.turn(&mut |_, _, _| Fate::Drop);
    pair.hosts[0].endpoint.remove_mr(other.key).expect("there");
    pair.now = pair.now + Nanos::from_millis(100);
    pair.turn(&mut no_fault);
    pair.settle();
    assert_eq!(pair.hosts[0].take(), [(1, Status::Success), (2, Status::Success)]);
    assert_eq!(pair.hosts[0].state(), "RTS");
}

#[test]
fn an_rnr_nak_that_comes_twice_counts_once() {
    let mut pair = Pair::new(Settings { rnr_retry: 1, ..go_back_n() });
    pair.hosts[0].post(&work(1, SendOp::Send, &[], 0));
    let mut naks = 0;
    pair.run(Nanos::from_micros(300), |from, _, _| {
        naks += from;
        if from == 1 { Fate::Duplicate } else { Fate::Deliver }
    });
    assert_eq!(naks, 1);
    pair.hosts[1].post_recv(2, &[]);
    pair.settle();
    assert_eq!(pair.hosts[0].take(), [(1, Status::Success)]);
}

#[test]
fn a_nak_that_comes_twice_sends_again_once() {
    let mut pair = Pair::new(Settings { retry_cnt: 1, ..go_back_n() });
    pair.hosts[0].post(&work(1, SendOp::Write, &[sge(0, 5000)], 0));
    assert!(pair.run(LIMIT, |from, opcode, nth| match (from, opcode, nth) {
        (0, opcode::RC_WRITE_MIDDLE, 0) => Fate::Drop,
        (1, opcode::RC_ACK, 0) => Fate::Duplicate,
        _ => Fate::Deliver,
    }));
    assert_eq!(pair.hosts[0].take(), [(1, Status::Success)]);
    assert_eq!(pair.hosts[0].count(QpCount::RetransmittedPackets), 4);
}

/// A message and, in the same burst, the packets of another in the wrong order: the first one's ACK
/// is not forgotten over the NAK that is not needed any more.
#[test]
fn an_ack_that_is_owed_survives_a_nak_that_became_needless() {
    let mut pair = Pair::new(go_back_n());
    pair.hosts[1].post_recv(1, &[sge(0, 10)]);
    pair.hosts[1].post_recv(2, &[sge(0, 2000)]);
    for (opcode, after, payload) in
        [(opcode::RC_SEND_ONLY, 0, 10), (opcode::RC_SEND_LAST, 2, 10), (opcode::RC_SEND_FIRST, 1, 1024)]
    {
        let ack_request = opcode != opcode::RC_SEND_FIRST;
        let bth = bth(&pair, opcode);
        let frame =
            forged(&pair, &Headers::new(Bth { psn: bth.psn.plus(after), ack_request, ..bth }), &vec![1; payload]);
        pair.deliver(1, &frame);
    }
    pair.turn(&mut no_fault);
    assert_eq!(pair.trace, [(1, opcode::RC_ACK, bth(&pair, opcode::RC_ACK).psn.plus(1).get())]);
}

#[test]
fn work_behind_a_failed_request_is_flushed_even_if_invalid() {
    let mut pair = Pair::new(Settings { retry_cnt: 0, ..go_back_n() });
    pair.hosts[0].post(&work(1, SendOp::Write, &[sge(0, 10)], 0));
    pair.hosts[0].post(&work(2, SendOp::Write, &[Sge { lkey: 1, ..sge(0, 10) }], 0));
    pair.run(LIMIT, |_, _, _| Fate::Drop);
    assert_eq!(pair.hosts[0].take(), [(1, Status::TransportRetryExceeded), (2, Status::WorkRequestFlushed)]);
    let mut pair = Pair::new(go_back_n());
    pair.hosts[0].post(&work(1, SendOp::Write, &[sge(0, 10)], u64::MAX / 2));
    pair.hosts[0].post(&work(2, SendOp::Write, &[Sge { lkey: 1, ..sge(0, 10) }], 0));
    pair.settle();
    assert_eq!(pair.hosts[0].take(), [(1, Status::RemoteAccess), (2, Status::WorkRequestFlushed)]);
}

/// The peer has executed the WRITE, but the READ before it can have no answer any more.
#[test]
fn nothing_succeeds_behind_a_read_that_was_flushed() {
    let mut pair = Pair::new(Settings::default());
    pair.hosts[0].post(&work(1, SendOp::Read, &[sge(0, 2000)], 600_000));
    pair.hosts[0].post(&work(2, SendOp::Write, &[sge(5000, 10)], 700_000));
    pair.hosts[0].post(&work(3, SendOp::Write, &[sge(5000, 10)], u64::MAX / 2));
    pair.hosts[0].post(&work(4, SendOp::Write, &[sge(5000, 10)], 700_000));
    assert!(pair.run(LIMIT, |_, opcode, _| {
        let response = opcode.info().expect("known").operation == Operation::ReadResponse;
        if response { Fate::Drop } else { Fate::Deliver }
    }));
    let flushed = Status::WorkRequestFlushed;
    assert_eq!(pair.hosts[0].take(), [(1, flushed), (2, flushed), (3, Status::RemoteAccess), (4, flushed)]);
}

#[test]
fn work_behind_a_local_fault_is_flushed_at_once() {
    for sound in [0, 1024, 2048] {
        let mut pair = Pair::new(Settings::default());
        let wrong = Sge { lkey: 1, ..sge(0, 10) };
        pair.hosts[0].post(&work(1, SendOp::Write, &[sge(0, sound), wrong], 700_000));
        pair.hosts[0].post(&work(2, SendOp::Write, &[sge(0, 10)], 700_000));
        pair.hosts[0].post_recv(3, &[]);
        pair.turn(&mut no_fault);
        let flushed = Status::WorkRequestFlushed;
        assert_eq!(pair.hosts[0].take(), [(1, Status::LocalProtection), (2, flushed), (3, flushed)]);
    }
}
