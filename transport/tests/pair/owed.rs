//! Owed answers: for any other event of a queue pair, executed requests are answered, and received
//! answers are not forgotten.

use roced_transport::{
    clock::Nanos,
    counters::QpCount,
    psn::Psn,
    reject::{Disposition, DropReason},
    wire::{
        Aeth, NakCode, Syndrome,
        bth::Bth,
        headers::Headers,
        opcode::{self, Opcode, Operation},
        reth::Reth,
    },
    work::SendWork,
};
use roced_types::{QpAttributes, SendOp, Status, attribute, state};

use crate::{
    host::{Fate, KEY, Pair, Settings, VA, bth, forged, no_fault, sge, work},
    selective::{LIMIT, answers, repairs, warm},
};

fn go(pair: &mut Pair, at: usize, to: u32) {
    let host = &mut pair.hosts[at];
    let attributes = QpAttributes { state: to, ..QpAttributes::default() };
    host.endpoint.modify_qp(host.qpn, attribute::STATE, &attributes, None).expect("allowed");
}

#[test]
fn a_nak_follows_the_answers_to_earlier_requests() {
    for reads in [1, 3] {
        for small_nic in [false, true] {
            let mut pair = warm(Settings::default());
            if small_nic {
                pair.hosts[1].nic.room = 1;
            }
            pair.hosts[0].post(&SendWork { swap_or_add: 5, ..work(1, SendOp::FetchAdd, &[sge(0, 8)], 600_000) });
            for read in 0..reads {
                pair.hosts[0].post(&work(2 + read, SendOp::Read, &[sge(8192 + read * 8192, 5000)], 600_000));
            }
            pair.hosts[0].post(&SendWork { rkey: KEY.0 ^ 1, ..work(9, SendOp::Write, &[sge(0, 10)], 0) });
            pair.hosts[0].post(&work(10, SendOp::Write, &[sge(0, 10)], 0));
            pair.settle();
            let mut expected: Vec<_> = (1..2 + reads).map(|wr_id| (wr_id, Status::Success)).collect();
            expected.extend([(9, Status::RemoteAccess), (10, Status::WorkRequestFlushed)]);
            assert_eq!(pair.hosts[0].take(), expected, "{reads} READs");
            assert!(pair.hosts[0].app.memory[8192..8192 + 5000] == pair.hosts[1].app.memory[600_000..605_000]);
        }
    }
}

/// The region that a READ needs goes away before its responses left: the NAK takes the place of the
/// first that cannot be given.
#[test]
fn a_read_that_cannot_be_answered_any_more_is_refused_in_its_place() {
    let mut pair = warm(Settings::default());
    pair.hosts[1].nic.room = 0;
    pair.hosts[0].post(&SendWork { swap_or_add: 5, ..work(1, SendOp::FetchAdd, &[sge(0, 8)], 600_000) });
    pair.hosts[0].post(&work(2, SendOp::Read, &[sge(8192, 5000)], 600_000));
    pair.hosts[0].post(&SendWork { rkey: KEY.0 ^ 1, ..work(9, SendOp::Write, &[sge(0, 10)], 0) });
    for _ in 0..4 {
        pair.turn(&mut no_fault);
    }
    assert_eq!(pair.hosts[1].state(), "ERR", "the WRITE was refused");
    pair.hosts[1].endpoint.remove_mr(KEY);
    pair.hosts[1].nic.room = 64;
    pair.settle();
    assert_eq!(
        pair.hosts[0].take(),
        [(1, Status::Success), (2, Status::RemoteAccess), (9, Status::WorkRequestFlushed)]
    );
}

/// A program destroys its queue pair directly after the awaited message.
#[test]
fn an_acknowledgement_that_is_owed_survives_the_move_to_err() {
    let mut pair = warm(Settings { timeout: 0, ..Settings::default() });
    pair.hosts[1].post_recv(7, &[sge(0, 100)]);
    pair.hosts[1].nic.room = 0;
    pair.hosts[0].post(&work(1, SendOp::Send, &[sge(0, 100)], 0));
    for _ in 0..4 {
        pair.turn(&mut no_fault);
    }
    assert_eq!(pair.hosts[1].take(), [(7, Status::Success)]);
    go(&mut pair, 1, state::ERR);
    pair.hosts[1].nic.room = 64;
    pair.settle();
    assert_eq!(pair.hosts[0].take(), [(1, Status::Success)]);
    assert_eq!(repairs(&pair), [0; 3]);
}

/// A WRITE of four packets from a peer that says MigReq 0; which of them ask.
fn plain_packet(pair: &Pair, number: u32, asks: bool) -> Vec<u8> {
    let (opcode, payload) = match number {
        0 => (opcode::RC_WRITE_FIRST, 1024),
        3 => (opcode::RC_WRITE_LAST, 1024),
        _ => (opcode::RC_WRITE_MIDDLE, 1024),
    };
    let first = bth(pair, opcode);
    let reth = (number == 0).then_some(Reth { va: VA, rkey: KEY, length: 4096 });
    let bth = Bth { psn: first.psn.plus(number), mig_req: false, ack_request: asks, ..first };
    forged(pair, &Headers { reth, ..Headers::new(bth) }, &vec![1; payload])
}

/// Its window may be shorter than the message that it sends again: it never comes to the end
/// without an answer. The answer is no word about the end, which it may not have sent again.
#[test]
fn a_plain_peer_that_asks_within_a_complete_message_is_answered_as_far_as_it_asked() {
    let mut pair = Pair::new(Settings::default());
    for number in 0..4 {
        let frame = plain_packet(&pair, number, number == 3);
        assert_eq!(pair.deliver(1, &frame), Disposition::Accepted);
    }
    assert_eq!(answers(&mut pair), [(Syndrome::ACK, 3)]);
    for (number, asks, said) in
        [(0, false, None), (1, true, Some(1)), (2, true, Some(2)), (2, false, None), (3, true, Some(3))]
    {
        let frame = plain_packet(&pair, number, asks);
        pair.deliver(1, &frame);
        let expected: Vec<_> = said.into_iter().map(|psn| (Syndrome::ACK, psn)).collect();
        assert_eq!(answers(&mut pair), expected, "packet {number}");
    }
}

#[test]
fn an_rnr_nak_behind_a_read_gap_is_acted_upon() {
    let mut pair = warm(Settings { min_rnr_timer: 1, timeout: 0, retry_cnt: 1, ..Settings::default() });
    pair.hosts[0].post(&work(1, SendOp::Read, &[sge(0, 3000)], 600_000));
    pair.hosts[0].post(&work(2, SendOp::Send, &[sge(5000, 9000)], 0));
    let start = pair.now;
    let mut lost = 0;
    while pair.hosts[0].take().last() != Some(&(2, Status::Success)) {
        pair.turn(&mut |_, opcode, _| {
            if opcode == opcode::RC_READ_RESPONSE_LAST && lost == 0 {
                lost += 1;
                return Fate::Drop;
            }
            Fate::Deliver
        });
        pair.now = pair.now + Nanos::from_micros(5);
        if pair.now - start > Nanos::from_micros(60) && pair.hosts[1].endpoint.recv_room(pair.hosts[1].qpn) == 64 {
            pair.hosts[1].post_recv(7, &[sge(0, 9000)]);
        }
        assert!(pair.now - start < Nanos::from_micros(400), "no timer runs, and none is needed");
    }
    assert_eq!(pair.hosts[0].count(QpCount::AdaptiveRetransmission), 0);
}

/// Answer of host 1 about a PSN of host 0.
pub(crate) fn said(pair: &Pair, psn: u32, syndrome: Syndrome) -> Vec<u8> {
    let bth = Bth::new(opcode::RC_ACK, pair.hosts[0].qpn, Psn::new(psn));
    pair.frame(1, &Headers { aeth: Some(Aeth { syndrome, msn: 0 }), ..Headers::new(bth) }, &[])
}

/// The second of two messages finds no receive either, and says so while the time of the first
/// still runs: its own time counts.
#[test]
fn the_rnr_nak_of_a_later_request_begins_a_wait_of_its_own() {
    let mut pair = Pair::new(Settings::default());
    pair.hosts[0].post(&work(1, SendOp::Send, &[sge(0, 10)], 0));
    pair.hosts[0].post(&work(2, SendOp::Send, &[sge(0, 10)], 0));
    pair.turn(&mut |_, _, _| Fate::Drop);
    let (start, first) = (pair.now, pair.settings.psn);
    // 640 us.
    let not_ready = Syndrome::Rnr { timer: 12 };
    for (micros, psn, syndrome) in [(0, first, not_ready), (100, first, Syndrome::ACK), (500, first + 1, not_ready)] {
        pair.now = start + Nanos::from_micros(micros);
        let frame = said(&pair, psn, syndrome);
        assert_eq!(pair.deliver(0, &frame), Disposition::Accepted);
        pair.turn(&mut |_, _, _| Fate::Drop);
    }
    let sent = pair.sent(0, Operation::Send);
    for (micros, more) in [(520, 0), (700, 0), (1100, 0), (1200, 1)] {
        pair.now = start + Nanos::from_micros(micros);
        pair.turn(&mut |_, _, _| Fate::Drop);
        assert_eq!(pair.sent(0, Operation::Send) - sent, more, "after {micros} us");
    }
}

#[test]
fn a_fatal_nak_that_overtakes_read_responses_does_not_flush_the_read() {
    for go_back_n in [false, true] {
        let settings = if go_back_n { crate::recovery::go_back_n() } else { Settings::default() };
        let mut pair = warm(settings);
        pair.hosts[0].post(&work(1, SendOp::Read, &[sge(8192, 3000)], 600_000));
        pair.hosts[0].post(&work(2, SendOp::Write, &[sge(0, 10)], 0));
        pair.hosts[0].post(&work(3, SendOp::Write, &[sge(0, 10)], 0));
        // The responses take 60 us more, the refusal comes at once.
        let late = |from: usize, _: Opcode, _: usize| if from == 1 { Fate::Late(8) } else { Fate::Deliver };
        pair.turn(&mut { late });
        pair.turn(&mut { late });
        let nak = said(&pair, pair.settings.psn + 20 + 3, Syndrome::Nak(NakCode::RemoteAccess));
        pair.deliver(0, &nak);
        pair.run(LIMIT, |from, _, _| if from == 0 { Fate::Drop } else { Fate::Deliver });
        assert_eq!(
            pair.hosts[0].take(),
            [(1, Status::Success), (2, Status::RemoteAccess), (3, Status::WorkRequestFlushed)],
            "go-back-N: {go_back_n}"
        );
        assert!(pair.hosts[0].app.memory[8192..8192 + 3000] == pair.hosts[1].app.memory[600_000..603_000]);
    }
}

#[test]
fn a_fatal_nak_ends_the_queue_pair_soon_though_the_read_is_never_answered() {
    let mut pair = warm(Settings { timeout: 20, ..Settings::default() });
    pair.hosts[0].post(&work(1, SendOp::Read, &[sge(8192, 3000)], 600_000));
    pair.hosts[0].post(&work(2, SendOp::Write, &[sge(0, 10)], 0));
    pair.turn(&mut |_, _, _| Fate::Drop);
    let nak = said(&pair, pair.settings.psn + 20 + 3, Syndrome::Nak(NakCode::RemoteAccess));
    pair.deliver(0, &nak);
    let start = pair.now;
    pair.run(Nanos::from_millis(20), |_, _, _| Fate::Drop);
    assert_eq!(pair.hosts[0].take(), [(1, Status::WorkRequestFlushed), (2, Status::RemoteAccess)]);
    assert!(pair.now - start <= Nanos::from_millis(20));
}

/// Some responders say it again for each packet behind the one that they miss.
#[test]
fn repeated_naks_within_one_round_trip_spend_one_retry() {
    for go_back_n in [false, true] {
        let recovery = if go_back_n { crate::recovery::go_back_n().recovery } else { Settings::default().recovery };
        let mut pair = warm(Settings { retry_cnt: 2, timeout: 20, recovery, ..Settings::default() });
        // The path has become longer since it was measured last: 400 us.
        let far = |_: usize, _: Opcode, _: usize| Fate::Late(40);
        for wr_id in 0..400 {
            pair.hosts[0].post(&work(wr_id, SendOp::Write, &[sge(0, 10)], 0));
            assert!(pair.run(LIMIT, far));
        }
        pair.hosts[0].take();
        let first = pair.settings.psn + 420;
        pair.hosts[0].post(&work(1000, SendOp::Write, &[sge(0, 30_000)], 500_000));
        let mut lost = false;
        let mut fate = |from, opcode, _| {
            if (from, opcode) == (0, opcode::RC_WRITE_FIRST) && !lost {
                lost = true;
                return Fate::Drop;
            }
            Fate::Late(40)
        };
        let start = pair.now;
        while pair.hosts[0].app.completions.is_empty() {
            assert!(pair.now - start < Nanos::from_millis(100));
            pair.turn(&mut fate);
            pair.now = pair.now + Nanos::from_micros(5);
            // From 420 us on for the 300 us in which the packets behind the lost one arrive.
            if (Nanos::from_micros(420)..Nanos::from_micros(720)).contains(&(pair.now - start)) {
                let nak = said(&pair, first, Syndrome::Nak(NakCode::PsnSequence));
                pair.deliver(0, &nak);
            }
        }
        assert_eq!(pair.hosts[0].take(), [(1000, Status::Success)], "go-back-N: {go_back_n}");
    }
}

#[test]
fn answered_atomics_are_known_after_a_change_of_their_number() {
    for depth in [1, 4, 16, 64] {
        let mut pair = warm(Settings::default());
        pair.hosts[0].post(&SendWork { swap_or_add: 3, ..work(1, SendOp::FetchAdd, &[sge(0, 8)], 600_000) });
        let before = pair.hosts[1].app.memory[600_000..600_008].to_vec();
        // The answer is lost; host 1 changes how many it answers at a time.
        for _ in 0..3 {
            pair.turn(&mut |from, _, _| if from == 1 { Fate::Drop } else { Fate::Deliver });
        }
        go(&mut pair, 1, state::SQD);
        let host = &mut pair.hosts[1];
        let change = QpAttributes { max_dest_rd_atomic: depth, ..QpAttributes::default() };
        host.endpoint.modify_qp(host.qpn, attribute::MAX_DEST_RD_ATOMIC, &change, None).expect("drained");
        go(&mut pair, 1, state::RTS);
        pair.settle();
        assert_eq!(pair.hosts[0].take(), [(1, Status::Success)], "depth {depth}");
        assert_eq!(pair.hosts[0].app.memory[..8], before);
        assert_eq!(pair.hosts[1].app.originals.len(), 1, "executed once");
    }
}

/// Undefined opcodes of the reliable connection (masked atomics of some adapters among them): the
/// peer is told.
#[test]
fn a_reserved_opcode_of_the_service_is_an_invalid_request() {
    for code in [0x15, 0x18, 0x19, 0x1a, 0x1b, 0x1e, 0x1f] {
        for payload in [0, 28, 44] {
            let mut pair = warm(Settings::default());
            let known = bth(&pair, opcode::RC_SEND_ONLY);
            let bth = Bth { opcode: Opcode(code), psn: known.psn.plus(20), ..known };
            let frame = forged(&pair, &Headers::new(bth), &vec![0; payload]);
            pair.deliver(1, &frame);
            assert_eq!(answers(&mut pair), [(Syndrome::Nak(NakCode::InvalidRequest), 20)], "{code:#x}");
            assert_eq!(pair.hosts[1].state(), "ERR");
        }
    }
}

/// Adapters take small timeouts for a larger one, so programs live with them there.
#[test]
fn a_small_ack_timeout_is_as_long_as_an_adapters() {
    for (code, millis) in [(1, 16), (8, 16), (12, 16), (13, 33), (14, 67)] {
        let mut pair = Pair::new(Settings { timeout: code, retry_cnt: 0, ..crate::recovery::go_back_n() });
        pair.hosts[0].post(&work(1, SendOp::Write, &[sge(0, 10)], 0));
        let start = pair.now;
        assert!(pair.run(LIMIT, |_, _, _| Fate::Drop));
        let end = pair.hosts[0].app.completions[0].time;
        assert_eq!((end - start).0 / 1_000_000, millis, "code {code}");
    }
}

/// The answer to an atomic operation is lost; that of each WRITE behind it shows so.
#[test]
fn acknowledgments_behind_an_answer_that_was_asked_for_again_spend_no_retry() {
    let mut pair = warm(Settings { retry_cnt: 1, timeout: 0, ..Settings::default() });
    pair.hosts[0].post(&SendWork { swap_or_add: 5, ..work(1, SendOp::FetchAdd, &[sge(0, 8)], 600_000) });
    for wr_id in 2..6 {
        pair.hosts[0].post(&work(wr_id, SendOp::Write, &[sge(0, 10)], 0));
    }
    pair.turn(&mut |_, _, _| Fate::Drop);
    for behind in 1..5 {
        let ack = said(&pair, pair.settings.psn + 20 + behind, Syndrome::ACK);
        pair.deliver(0, &ack);
        pair.now = pair.now + Nanos::from_micros(30);
        pair.turn(&mut |_, _, _| Fate::Drop);
    }
    assert_eq!(pair.hosts[0].take(), []);
    assert_eq!(pair.hosts[0].count(QpCount::ImpliedNak), 1);
}

/// A peer that complains of each packet behind the one that it misses, at the end of a queue that
/// takes much longer than the round trips that were measured when it was empty: 128 packets of 1
/// KiB and a bottleneck of 1 Gbit/s take a millisecond. It is one loss.
#[test]
fn naks_repeated_from_a_long_queue_spend_one_retry() {
    for go_back_n in [false, true] {
        let recovery = if go_back_n { crate::recovery::go_back_n().recovery } else { Settings::default().recovery };
        let mut pair = warm(Settings { retry_cnt: 7, timeout: 20, recovery, window: 128, ..Settings::default() });
        let first = pair.settings.psn + 20;
        pair.hosts[0].post(&work(1000, SendOp::Write, &[sge(0, 128 * 1024)], 500_000));
        let start = pair.now;
        while pair.now - start < Nanos::from_micros(1000) {
            pair.turn(&mut |_, _, _| Fate::Drop);
            pair.now = pair.now + Nanos::from_micros(8);
            let nak = said(&pair, first, Syndrome::Nak(NakCode::PsnSequence));
            pair.deliver(0, &nak);
        }
        assert_eq!(pair.hosts[0].take(), [], "go-back-N: {go_back_n}");
    }
}

/// The retransmission is lost as well, and each packet behind it causes a NAK: more than those of
/// the first time can cause.
#[test]
fn naks_beyond_those_of_the_first_sending_tell_of_another_loss() {
    let mut pair = warm(Settings { timeout: 20, ..crate::recovery::go_back_n() });
    let first = pair.settings.psn + 20;
    pair.hosts[0].post(&work(1, SendOp::Write, &[sge(0, 10 * 1024)], 500_000));
    pair.turn(&mut |_, _, _| Fate::Drop);
    let mut again = Vec::new();
    // Nine packets behind the lost one, and a queue that takes 30 us a packet.
    for number in 1..=18 {
        pair.now = pair.now + Nanos::from_micros(30);
        let nak = said(&pair, first, Syndrome::Nak(NakCode::PsnSequence));
        pair.deliver(0, &nak);
        let begin = pair.trace.len();
        pair.turn(&mut |_, _, _| Fate::Drop);
        if pair.trace[begin..].contains(&(0, opcode::RC_WRITE_FIRST, first & 0x00ff_ffff)) {
            again.push(number);
        }
    }
    assert_eq!(again, [1, 10]);
}

/// After a silence that emptied the queue, a NAK is about a retransmission.
#[test]
fn a_nak_after_a_silence_tells_of_another_loss() {
    let mut pair = warm(Settings { timeout: 20, ..crate::recovery::go_back_n() });
    let first = pair.settings.psn + 20;
    pair.hosts[0].post(&work(1, SendOp::Write, &[sge(0, 100 * 1024)], 500_000));
    pair.turn(&mut |_, _, _| Fate::Drop);
    for (micros, again) in [(0, true), (30, false), (60, false), (400, true)] {
        pair.now = pair.now + Nanos::from_micros(micros);
        let nak = said(&pair, first, Syndrome::Nak(NakCode::PsnSequence));
        pair.deliver(0, &nak);
        let begin = pair.trace.len();
        pair.turn(&mut |_, _, _| Fate::Drop);
        assert_eq!(
            pair.trace[begin..].contains(&(0, opcode::RC_WRITE_FIRST, first & 0x00ff_ffff)),
            again,
            "after {micros} us"
        );
    }
}

/// The NAK in place of a READ response counts neither the READ nor the requests executed behind it:
/// a peer that completes by the MSN would take the READ for done.
#[test]
fn a_refused_read_is_not_counted_in_its_nak() {
    let mut pair = warm(Settings::default());
    pair.hosts[1].nic.room = 0;
    pair.hosts[0].post(&work(1, SendOp::Read, &[sge(8192, 500)], 600_000));
    pair.hosts[0].post(&work(2, SendOp::Write, &[sge(0, 10)], 0));
    for _ in 0..4 {
        pair.turn(&mut no_fault);
    }
    pair.hosts[1].endpoint.remove_mr(KEY);
    pair.hosts[1].nic.room = 64;
    pair.settle();
    let (_, _, aeth) = *pair.answers.last().expect("a NAK");
    assert_eq!(aeth, Aeth { syndrome: Syndrome::Nak(NakCode::RemoteAccess), msn: 20 });
}

/// Requests that are not answered yet keep their place when fewer are answered at a time.
#[test]
fn a_smaller_depth_forgets_no_answer_that_is_owed() {
    let mut pair = warm(Settings::default());
    pair.hosts[1].nic.room = 0;
    for wr_id in 0..3 {
        pair.hosts[0].post(&SendWork { swap_or_add: 1, ..work(wr_id, SendOp::FetchAdd, &[sge(0, 8)], 600_000) });
    }
    for _ in 0..4 {
        pair.turn(&mut no_fault);
    }
    assert_eq!(pair.hosts[1].app.originals.len(), 3, "executed");
    go(&mut pair, 1, state::SQD);
    let host = &mut pair.hosts[1];
    let change = QpAttributes { max_dest_rd_atomic: 1, ..QpAttributes::default() };
    let _refused = host.endpoint.modify_qp(host.qpn, attribute::MAX_DEST_RD_ATOMIC, &change, None);
    pair.hosts[1].nic.room = 64;
    pair.settle();
    let all: Vec<_> = (0..3).map(|wr_id| (wr_id, Status::Success)).collect();
    assert_eq!(pair.hosts[0].take(), all);
}

/// A peer that is answered no more than it has sent, and asks twice before anything leaves: the
/// larger answer is given.
#[test]
fn of_two_acknowledgements_to_a_plain_peer_the_larger_is_given() {
    for asked in [[0, 2], [2, 0]] {
        let mut pair = Pair::new(Settings { credits: [false; 2], ..Settings::default() });
        let first = bth(&pair, opcode::RC_WRITE_FIRST);
        let give = |pair: &mut Pair, ahead: u32| {
            let opcode = [opcode::RC_WRITE_FIRST, opcode::RC_WRITE_MIDDLE, opcode::RC_WRITE_MIDDLE][ahead as usize];
            let reth = (ahead == 0).then_some(Reth { va: VA, rkey: KEY, length: 8000 });
            let bth = Bth { opcode, psn: first.psn.plus(ahead), mig_req: false, ack_request: true, ..first };
            let frame = forged(pair, &Headers { reth, ..Headers::new(bth) }, &[1; 1024]);
            pair.deliver(1, &frame)
        };
        assert!((0..3).all(|ahead| give(&mut pair, ahead) == Disposition::Accepted));
        assert_eq!(answers(&mut pair), [(Syndrome::ACK, 2)]);
        for ahead in asked {
            give(&mut pair, ahead);
        }
        assert_eq!(answers(&mut pair), [(Syndrome::ACK, 2)], "asked {asked:?}");
    }
}

/// The peer refuses a request, and says of a READ before it that it is not ready: nonsense, but no
/// reason to be woken at each tick until the time of that is over.
#[test]
fn a_refusal_ends_the_queue_pair_in_its_time_though_a_receiver_is_waited_for() {
    let mut pair = warm(Settings { timeout: 0, ..Settings::default() });
    pair.hosts[0].post(&work(1, SendOp::Read, &[sge(8192, 3000)], 600_000));
    pair.hosts[0].post(&work(2, SendOp::Write, &[sge(0, 10)], 0));
    pair.turn(&mut |_, _, _| Fate::Drop);
    let first = pair.settings.psn + 20;
    // 655 ms.
    for (psn, syndrome) in [(first + 3, Syndrome::Nak(NakCode::RemoteAccess)), (first, Syndrome::Rnr { timer: 0 })] {
        let frame = said(&pair, psn, syndrome);
        assert_eq!(pair.deliver(0, &frame), Disposition::Accepted);
    }
    let start = pair.now;
    for _ in 0..10 {
        pair.turn(&mut |_, _, _| Fate::Drop);
        pair.now = pair.hosts[0].endpoint.poll_timeout().min(start + Nanos::from_millis(20)).max(pair.now + Nanos(1));
    }
    assert_eq!(pair.hosts[0].take(), [(1, Status::WorkRequestFlushed), (2, Status::RemoteAccess)]);
}

/// IBTA v1 9.7.5.1: NAK codes and syndromes without a meaning say nothing.
#[test]
fn a_reserved_syndrome_is_dropped() {
    for byte in (0x40..0x60).chain(0x65..=0xff) {
        let mut pair = warm(Settings::default());
        pair.hosts[0].post(&work(1, SendOp::Write, &[sge(0, 10)], 0));
        pair.turn(&mut |_, _, _| Fate::Drop);
        let frame = said(&pair, pair.settings.psn + 20, Syndrome::Reserved(byte));
        assert_eq!(pair.deliver(0, &frame), Disposition::Dropped(DropReason::UnexpectedResponse), "{byte:#x}");
        pair.settle();
        assert_eq!(pair.hosts[0].take(), [(1, Status::Success)]);
    }
}

/// The READ waits for room when the program ends the queue pair. The ACK says nothing of it.
#[test]
fn an_owed_ack_before_a_read_survives_the_move_to_err() {
    let mut pair = warm(Settings { timeout: 14, retry_cnt: 1, ..Settings::default() });
    pair.hosts[1].post_recv(7, &[sge(0, 100)]);
    pair.hosts[1].nic.room = 0;
    pair.hosts[0].post(&work(1, SendOp::Send, &[sge(0, 100)], 0));
    pair.hosts[0].post(&work(2, SendOp::Read, &[sge(8192, 100)], 600_000));
    for _ in 0..4 {
        pair.turn(&mut no_fault);
    }
    assert_eq!(pair.hosts[1].take(), [(7, Status::Success)]);
    go(&mut pair, 1, state::ERR);
    pair.hosts[1].nic.room = 64;
    pair.settle();
    let ends = pair.hosts[0].take();
    assert_eq!(ends.first(), Some(&(1, Status::Success)), "{ends:?}");
}

#[test]
fn an_executed_atomic_is_answered_after_the_move_to_err() {
    let mut pair = warm(Settings { timeout: 14, retry_cnt: 1, ..Settings::default() });
    pair.hosts[1].nic.room = 0;
    pair.hosts[0].post(&SendWork { swap_or_add: 5, ..work(1, SendOp::FetchAdd, &[sge(0, 8)], 600_000) });
    for _ in 0..4 {
        pair.turn(&mut no_fault);
    }
    assert_eq!(pair.hosts[1].app.originals.len(), 1);
    go(&mut pair, 1, state::ERR);
    pair.hosts[1].nic.room = 64;
    pair.settle();
    assert_eq!(pair.hosts[0].take(), [(1, Status::Success)]);
}

/// Answers without memory are sent up to the first READ, for any end of the queue pair; an ACK of
/// requests behind that would imply that its responses are lost.
#[test]
fn answers_that_take_no_memory_are_given_up_to_the_first_read() {
    for end in ["ERR", "RESET", "removed"] {
        let mut pair = warm(Settings { timeout: 14, retry_cnt: 1, credits: [false; 2], ..Settings::default() });
        pair.hosts[1].post_recv(7, &[sge(0, 100)]);
        pair.hosts[1].nic.room = 0;
        let eight = [sge(0, 8)];
        pair.hosts[0].post(&SendWork { swap_or_add: 5, ..work(1, SendOp::FetchAdd, &eight, 600_000) });
        pair.hosts[0].post(&SendWork { swap_or_add: 5, ..work(2, SendOp::AtomicWrite, &[], 600_000) });
        pair.hosts[0].post(&work(3, SendOp::Send, &[sge(0, 100)], 0));
        pair.hosts[0].post(&work(4, SendOp::Read, &[sge(8192, 3000)], 600_000));
        pair.hosts[0].post(&SendWork { swap_or_add: 5, ..work(5, SendOp::FetchAdd, &eight, 600_000) });
        for _ in 0..6 {
            pair.turn(&mut no_fault);
        }
        assert_eq!(pair.hosts[1].app.originals.len(), 3, "all were executed");
        pair.trace.clear();
        let host = &mut pair.hosts[1];
        match end {
            "ERR" => go(&mut pair, 1, state::ERR),
            "RESET" => go(&mut pair, 1, state::RESET),
            _ => drop(host.endpoint.remove_qp(host.qpn).expect("there")),
        }
        pair.hosts[1].nic.room = 64;
        pair.settle();
        let first = Psn::new(pair.settings.psn).plus(20);
        let said: Vec<_> = pair
            .trace
            .iter()
            .filter(|(from, ..)| *from == 1)
            .map(|(_, opcode, psn)| (*opcode, Psn::new(*psn).offset_from(first)))
            .collect();
        let expected = [(opcode::RC_ATOMIC_ACK, 0), (opcode::RC_READ_RESPONSE_ONLY, 1), (opcode::RC_ACK, 2)];
        assert_eq!(said, expected, "{end}");
        let ends = pair.hosts[0].take();
        assert_eq!(ends[..3], [(1, Status::Success), (2, Status::Success), (3, Status::Success)], "{end}");
        assert_eq!(ends[3].1, Status::TransportRetryExceeded, "{end}");
        let msns: Vec<_> = pair
            .answers
            .iter()
            .filter(|(from, psn, _)| *from == 1 && *psn == first.plus(2).get())
            .map(|(.., aeth)| aeth.msn)
            .collect();
        assert_eq!(msns, [23], "{end}");
    }
}

/// IBTA v1 9.7.5.2.8: one that the network repeats comes when the request was sent again.
#[test]
fn a_repeated_rnr_nak_spends_one_retry() {
    let mut pair = warm(Settings { rnr_retry: 1, min_rnr_timer: 1, ..Settings::default() });
    let psn = Psn::new(pair.settings.psn).plus(20).get();
    pair.hosts[0].post(&work(1, SendOp::Send, &[sge(0, 10)], 0));
    pair.turn(&mut |_, _, _| Fate::Drop);
    let nak = said(&pair, psn, Syndrome::Rnr { timer: 1 });
    pair.deliver(0, &nak);
    let before = pair.sent(0, Operation::Send);
    for _ in 0..20 {
        pair.turn(&mut |_, _, _| Fate::Drop);
        pair.now = pair.now + Nanos::from_micros(1);
        if pair.sent(0, Operation::Send) > before {
            break;
        }
    }
    pair.deliver(0, &nak);
    assert_eq!(pair.hosts[0].state(), "RTS", "within a microsecond of its being sent again");
}

/// The ACK of the duplicate WRITE says the newest, and the READ behind it is asked for again
/// already: no retry is spent.
#[test]
fn an_ack_of_a_duplicate_between_two_reads_is_no_implied_nak() {
    let mut pair = warm(Settings { retry_cnt: 2, ..Settings::default() });
    pair.hosts[0].post(&work(1, SendOp::Read, &[sge(8192, 1000)], 600_000));
    pair.hosts[0].post(&work(2, SendOp::Write, &[sge(0, 10)], 0));
    pair.hosts[0].post(&work(3, SendOp::Read, &[sge(16384, 1000)], 600_000));
    let mut lost = 0;
    let done = pair.run(Nanos::from_millis(1000), |from, _, _| {
        if from == 1 && lost < 3 {
            lost += 1;
            return Fate::Drop;
        }
        Fate::Deliver
    });
    assert!(done);
    assert_eq!(pair.hosts[0].take(), [(1, Status::Success), (2, Status::Success), (3, Status::Success)]);
    assert!(pair.hosts[0].count(QpCount::ImpliedNak) <= 1, "{}", pair.hosts[0].count(QpCount::ImpliedNak));
}

#[test]
fn an_empty_write_with_immediate_waits_for_its_receive() {
    let mut pair = warm(Settings { min_rnr_timer: 1, ..Settings::default() });
    pair.hosts[0].post(&SendWork { rkey: 0, ..work(1, SendOp::WriteImm, &[], 0) });
    pair.run(Nanos::from_micros(300), no_fault);
    assert!(pair.hosts[1].count(QpCount::RnrNakSent) > 0);
    pair.hosts[1].post_recv(7, &[]);
    pair.settle();
    assert_eq!((pair.hosts[0].take(), pair.hosts[1].take()), (vec![(1, Status::Success)], vec![(7, Status::Success)]));
}
