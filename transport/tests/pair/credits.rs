//! End-to-end flow control: a sender keeps to the receives that its peer offers, and is not held up
//! by an offer that got lost.

use roced_transport::{
    clock::Nanos,
    counters::QpCount,
    psn::Psn,
    recovery::RecoveryConfig,
    reject::Disposition,
    wire::{
        aeth::{Aeth, NakCode, Syndrome},
        bth::Bth,
        headers::Headers,
        opcode::{self, Opcode, Operation},
    },
};
use roced_types::{QpAttributes, SendOp, Status, attribute, state};

use crate::{
    host::{Fate, Pair, Settings, bth, no_fault, sge, work},
    owed::said,
};

const LIMIT: Nanos = Nanos::from_millis(10_000);

const CODES: [u32; 10] = [0, 1, 2, 3, 4, 6, 8, 12, 16, 24];

/// Two hosts of which the first was told the count of the second's receives: `receives` of them are
/// left.
fn told(settings: Settings, receives: u64) -> Pair {
    let mut pair = Pair::new(settings);
    pair.hosts[1].post_recv(100, &[sge(0, 8000)]);
    (0..receives).for_each(|receive| pair.hosts[1].post_recv(101 + receive, &[sge(0, 8000)]));
    pair.hosts[0].post(&work(100, SendOp::Send, &[], 0));
    pair.settle();
    assert_eq!(pair.hosts[0].take(), [(100, Status::Success)]);
    assert_eq!(pair.hosts[1].take(), [(100, Status::Success)]);
    pair
}

/// The codes of host `from`'s ACKs, in order.
fn codes(pair: &Pair, from: usize) -> Vec<u8> {
    let of = |(sender, _, aeth): &(usize, u32, Aeth)| match aeth.syndrome {
        Syndrome::Ack { credit } if *sender == from => Some(credit),
        _ => None,
    };
    pair.answers.iter().filter_map(of).collect()
}

fn rnr_naks(pair: &Pair) -> u64 {
    pair.hosts[1].count(QpCount::RnrNakSent)
}

#[test]
fn each_answer_offers_the_receives_that_are_posted() {
    for receives in 0..20 {
        let mut pair = told(Settings::default(), receives);
        let most = CODES.iter().rposition(|count| u64::from(*count) <= receives).expect("0 is");
        assert_eq!(codes(&pair, 1), [most as u8]);
        // READ responses and ATOMIC ACKs as well.
        pair.hosts[0].post(&work(1, SendOp::Read, &[sge(0, 10)], 0));
        pair.hosts[0].post(&work(2, SendOp::FetchAdd, &[sge(0, 8)], 0));
        pair.settle();
        assert_eq!(codes(&pair, 1), [most as u8; 3]);
    }
}

#[test]
fn a_sender_without_credits_sends_one_packet_and_waits() {
    for op in [SendOp::Send, SendOp::SendImm, SendOp::WriteImm] {
        let mut pair = told(Settings { min_rnr_timer: 20, ..Settings::default() }, 0);
        let begin = pair.trace.len();
        (0..8).for_each(|id| pair.hosts[0].post(&work(id, op, &[sge(0, 100)], 0)));
        pair.run(Nanos::from_millis(9), no_fault);
        let sent: Vec<_> = pair.trace[begin..].iter().map(|(sender, ..)| *sender).collect();
        assert_eq!(sent, [0, 1], "{op:?}: the first, and its RNR NAK");
        (0..8).for_each(|id| pair.hosts[1].post_recv(id, &[sge(0, 100)]));
        pair.settle();
        let all: Vec<_> = (0..8).map(|id| (id, Status::Success)).collect();
        assert_eq!((pair.hosts[0].take(), pair.hosts[1].take()), (all.clone(), all));
        assert_eq!(rnr_naks(&pair), 1, "the rest goes within the new count");
    }
}

#[test]
fn messages_go_out_within_the_count_and_one_beyond() {
    let mut pair = told(Settings { min_rnr_timer: 20, ..Settings::default() }, 4);
    (0..12).for_each(|id| pair.hosts[0].post(&work(id, SendOp::Send, &[sge(0, 100)], 0)));
    let begin = pair.trace.len();
    pair.turn(&mut |_, _, _| Fate::Deliver);
    let first = pair.trace[begin..].iter().filter(|(sender, ..)| *sender == 0).count();
    assert_eq!(first, 5);
    pair.run(Nanos::from_millis(9), no_fault);
    assert_eq!(pair.hosts[1].take().len(), 4);
    assert_eq!(rnr_naks(&pair), 1);
    assert_eq!(pair.sent(0, Operation::Send), 1 + 5);
}

#[test]
fn a_long_message_without_credits_begins_with_one_packet() {
    // Its receive is posted, and the sender does not know: acceptance of a SEND by the peer shows
    // it.
    let mut pair = told(Settings::default(), 0);
    pair.hosts[1].post_recv(1, &[sge(0, 8000)]);
    let lost = |from: usize, opcode, _: usize| {
        if from == 1 && opcode == opcode::RC_ACK { Fate::Drop } else { Fate::Deliver }
    };
    pair.turn(&mut lost.clone());
    pair.hosts[0].post(&work(1, SendOp::Send, &[sge(0, 7000)], 0));
    let begin = pair.trace.len();
    pair.turn(&mut |_, _, _| Fate::Deliver);
    assert_eq!(pair.trace[begin..].iter().filter(|(sender, ..)| *sender == 0).count(), 1);
    pair.settle();
    assert_eq!((pair.hosts[0].take(), pair.hosts[1].take()), (vec![(1, Status::Success)], vec![(1, Status::Success)]));
    assert_eq!(rnr_naks(&pair), 0);
    assert_eq!(pair.hosts[0].count(QpCount::RetransmittedPackets), 0);
}

#[test]
fn a_long_write_with_immediate_without_credits_goes_on_packet_by_packet() {
    let mut pair = told(Settings { min_rnr_timer: 1, ..Settings::default() }, 0);
    pair.hosts[0].post(&work(1, SendOp::WriteImm, &[sge(0, 5000)], 50_000));
    pair.run(Nanos::from_millis(1), no_fault);
    assert!(rnr_naks(&pair) > 0, "its last packet needs a receive");
    pair.hosts[1].post_recv(1, &[]);
    pair.settle();
    assert_eq!((pair.hosts[0].take(), pair.hosts[1].take()), (vec![(1, Status::Success)], vec![(1, Status::Success)]));
    assert!(pair.hosts[0].app.memory[..5000] == pair.hosts[1].app.memory[50_000..55_000]);
}

#[test]
fn a_receive_that_is_posted_after_the_count_ran_out_is_offered_at_once() {
    let mut pair = told(Settings::default(), 0);
    assert_eq!(codes(&pair, 1), [0]);
    pair.hosts[1].post_recv(1, &[sge(0, 100)]);
    pair.settle();
    assert_eq!(codes(&pair, 1), [0, 1]);
    assert_eq!(pair.answers[0].1, pair.answers[1].1, "it repeats the acknowledgment");
    (2..20).for_each(|id| pair.hosts[1].post_recv(id, &[sge(0, 100)]));
    pair.settle();
    assert_eq!(codes(&pair, 1), [0, 1], "the peer has one");
    assert_eq!(pair.hosts[0].drops(), Default::default(), "it was looked at");
}

#[test]
fn receives_that_keep_up_cause_no_answer_of_their_own() {
    let mut pair = told(Settings::default(), 16);
    let begin = pair.answers.len();
    for id in 0..200 {
        pair.hosts[0].post(&work(id, SendOp::Send, &[sge(0, 100)], 0));
        pair.hosts[1].post_recv(1000 + id, &[sge(0, 100)]);
        pair.settle();
    }
    assert_eq!(pair.answers.len() - begin, 200, "an ACK for each message");
    assert_eq!(pair.hosts[0].take().len(), 200);
}

#[test]
fn nothing_is_told_before_a_request_came_or_without_flow_control() {
    for credits in [[true, true], [true, false], [false, true]] {
        let mut pair = Pair::new(Settings { credits, ..Settings::default() });
        pair.hosts[1].post_recv(1, &[sge(0, 100)]);
        pair.settle();
        assert_eq!(pair.trace, [], "nothing was received");
        (0..3).for_each(|id| pair.hosts[0].post(&work(id, SendOp::Send, &[sge(0, 100)], 0)));
        pair.run(Nanos::from_millis(1), no_fault);
        if !credits[1] {
            assert!(codes(&pair, 1).iter().all(|code| *code == Syndrome::NO_CREDITS));
        }
        (2..5).for_each(|id| pair.hosts[1].post_recv(id, &[sge(0, 100)]));
        pair.settle();
        assert_eq!(pair.hosts[0].take().len(), 3, "{credits:?}");
    }
}

#[test]
fn without_flow_control_a_sender_is_not_limited() {
    let mut pair = told(Settings { credits: [false, true], ..Settings::default() }, 0);
    assert_eq!(codes(&pair, 1), [0]);
    (0..8).for_each(|id| pair.hosts[0].post(&work(id, SendOp::Send, &[sge(0, 100)], 0)));
    pair.turn(&mut |_, _, _| Fate::Deliver);
    assert_eq!(pair.sent(0, Operation::Send), 1 + 8);
}

#[test]
fn a_queue_pair_with_a_shared_receive_queue_offers_none() {
    let mut pair = Pair::new(Settings { srq: Some(crate::host::PD), ..Settings::default() });
    let srqn = pair.srqn();
    let post = |pair: &mut Pair, wr_id| {
        let work = roced_transport::work::RecvWork { wr_id, sges: &[sge(0, 100)] };
        pair.hosts[1].endpoint.post_srq_recv(srqn, &work).expect("there");
    };
    post(&mut pair, 1);
    pair.hosts[0].post(&work(1, SendOp::Send, &[sge(0, 100)], 0));
    pair.settle();
    post(&mut pair, 2);
    pair.settle();
    assert_eq!(codes(&pair, 1), [Syndrome::NO_CREDITS]);
}

/// WRITEs, READs and atomic operations take no receive; each counts as the peer's MSN counts it, so
/// that the limit stays right.
#[test]
fn requests_without_receives_are_not_limited_and_are_counted() {
    for recovery in [RecoveryConfig::GO_BACK_N, RecoveryConfig::default()] {
        // READs of several requests on the wire each.
        let settings = Settings { window: 16, rd_atomic: 4, recovery: [recovery; 2], ..Settings::default() };
        let mut pair = told(settings, 0);
        let mut id = 0;
        for round in 0..20 {
            for op in [SendOp::Write, SendOp::Read, SendOp::FetchAdd, SendOp::Flush] {
                let length = match op {
                    SendOp::FetchAdd => 8,
                    SendOp::Flush => 0,
                    _ => 20_000,
                };
                let mut request = work(id, op, &[], 4096);
                let sges = [sge(8192, length)];
                request.data = roced_transport::work::WorkData::Sges(if length == 0 { &[] } else { &sges });
                if op == SendOp::Flush {
                    (request.swap_or_add, request.compare) = (8, 1);
                }
                pair.hosts[0].post(&request);
                id += 1;
            }
            let mut drops = 0;
            let fault = |_: usize, _: Opcode, _: usize| {
                drops += 1;
                if drops % 17 == 3 { Fate::Drop } else { Fate::Deliver }
            };
            assert!(pair.run(LIMIT, fault), "round {round}");
            assert!(pair.hosts[0].take().iter().all(|(_, status)| *status == Status::Success));
        }
        // The count is still that of the peer: three receives let three SENDs go, and one more.
        (0..3).for_each(|id| pair.hosts[1].post_recv(id, &[sge(0, 100)]));
        pair.settle();
        pair.hosts[0].post(&work(id, SendOp::Write, &[], 0));
        pair.settle();
        let begin = pair.sent(0, Operation::Send);
        (0..8).for_each(|id| pair.hosts[0].post(&work(id, SendOp::Send, &[], 0)));
        pair.turn(&mut |_, _, _| Fate::Deliver);
        assert_eq!(pair.sent(0, Operation::Send) - begin, 4);
    }
}

/// The ACK that offers late receives gets lost. The next message requests one, so that nothing
/// waits.
#[test]
fn a_lost_offer_is_made_good_by_the_next_message() {
    let mut pair = told(Settings::default(), 0);
    (1..5).for_each(|id| pair.hosts[1].post_recv(id, &[sge(0, 100)]));
    pair.turn(&mut |_, _, _| Fate::Drop);
    assert_eq!(codes(&pair, 1), [0, 4]);
    (1..5).for_each(|id| pair.hosts[0].post(&work(id, SendOp::Send, &[sge(0, 100)], 0)));
    for _ in 0..6 {
        pair.turn(&mut |_, _, _| Fate::Deliver);
        pair.now = pair.now + Nanos::from_micros(5);
    }
    assert_eq!(pair.hosts[0].take().len(), 4);
    assert_eq!((rnr_naks(&pair), pair.hosts[0].count(QpCount::RetransmittedPackets)), (0, 0));
}

/// One receive at a time, under any losses: all messages arrive, once, in order.
#[test]
fn receives_that_come_one_at_a_time_are_enough() {
    for (recovery, lose_every) in
        [0, 11, 5].into_iter().flat_map(|lose| [(RecoveryConfig::GO_BACK_N, lose), (RecoveryConfig::default(), lose)])
    {
        let settings = Settings { recovery: [recovery; 2], min_rnr_timer: 1, timeout: 8, ..Settings::default() };
        let mut pair = Pair::new(settings);
        let ops = [SendOp::Send, SendOp::WriteImm, SendOp::Write, SendOp::SendImm];
        (0..60).for_each(|id| pair.hosts[0].post(&work(id, ops[id as usize % 4], &[sge(0, 3000)], 100_000)));
        let (mut taken, mut random) = (0, 1_u32);
        let start = pair.now;
        while taken < 45 {
            pair.hosts[1].post_recv(taken, &[sge(0, 3000)]);
            while pair.hosts[1].app.completions.is_empty() {
                pair.run(Nanos::from_micros(30), |_, _, _| {
                    random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    if lose_every > 0 && (random >> 16) % lose_every == 0 { Fate::Drop } else { Fate::Deliver }
                });
                pair.now = pair.now + Nanos::from_micros(1);
                assert_eq!(pair.hosts[0].state(), "RTS", "{recovery:?}, one lost of {lose_every}: receive {taken}");
                assert!(pair.now - start < LIMIT, "{recovery:?}, one lost of {lose_every}: receive {taken} waits");
            }
            assert_eq!(pair.hosts[1].take(), [(taken, Status::Success)]);
            taken += 1;
        }
        pair.settle();
        let all: Vec<_> = (0..60).map(|id| (id, Status::Success)).collect();
        assert_eq!(pair.hosts[0].take(), all);
    }
}

#[test]
fn an_offer_of_the_past_or_of_another_life_changes_nothing() {
    let mut pair = told(Settings { min_rnr_timer: 20, ..Settings::default() }, 2);
    let psn = pair.settings.psn;
    let forged = |pair: &Pair, psn: u32, credit: u8, msn: u32| {
        let header = Bth { psn: Psn::new(psn), dest_qpn: pair.hosts[0].qpn, ..bth(pair, opcode::RC_ACK) };
        let aeth = Some(Aeth { syndrome: Syndrome::Ack { credit }, msn });
        pair.frame(1, &Headers { aeth, ..Headers::new(header) }, &[])
    };
    // Fewer than before, more messages than were sent, a PSN long acknowledged, one that was never
    // sent.
    for (psn, credit, msn) in [(psn, 0, 1), (psn, 4, 2), (psn, 4, 0x80_0000), (psn - 1, 4, 1), (psn + 1, 4, 1)] {
        let frame = forged(&pair, psn, credit, msn);
        pair.deliver(0, &frame);
    }
    (0..8).for_each(|id| pair.hosts[0].post(&work(id, SendOp::Send, &[], 0)));
    pair.turn(&mut |_, _, _| Fate::Deliver);
    assert_eq!(pair.sent(0, Operation::Send), 1 + 3, "two receives, and one message beyond");
}

/// An answer that arrives behind the NAK of a later request fills the gap before that: its credits
/// count as if it had come in its turn.
#[test]
fn a_late_answer_offers_credits_when_later_requests_are_acknowledged_already() {
    let mut pair = told(Settings { min_rnr_timer: 20, ..Settings::default() }, 0);
    (1..5).for_each(|id| pair.hosts[1].post_recv(id, &[sge(0, 100)]));
    pair.turn(&mut |_, _, _| Fate::Drop);
    pair.hosts[0].post(&work(1, SendOp::Read, &[], 0));
    pair.hosts[0].post(&work(2, SendOp::Write, &[], 0));
    pair.turn(&mut |from, _, _| if from == 1 { Fate::Drop } else { Fate::Deliver });
    let first = pair.settings.psn + 1;
    for (opcode, psn, syndrome, msn) in [
        (opcode::RC_ACK, first + 2, Syndrome::Nak(NakCode::PsnSequence), 3),
        (opcode::RC_READ_RESPONSE_ONLY, first, Syndrome::Ack { credit: 4 }, 2),
    ] {
        let header = Bth { psn: Psn::new(psn), dest_qpn: pair.hosts[0].qpn, ..bth(&pair, opcode) };
        let frame = pair.frame(1, &Headers { aeth: Some(Aeth { syndrome, msn }), ..Headers::new(header) }, &[]);
        pair.deliver(0, &frame);
    }
    assert_eq!(pair.hosts[0].take(), [(1, Status::Success), (2, Status::Success)]);
    (0..8).for_each(|id| pair.hosts[0].post(&work(id, SendOp::Send, &[], 0)));
    pair.turn(&mut |_, _, _| Fate::Deliver);
    assert_eq!(pair.sent(0, Operation::Send), 1 + 4, "messages 4 to 6 are within the limit, and one beyond");
}

/// Before the first answer of a life was taken an ACK behind a READ is asked for again, not
/// believed, because it may be of an earlier life.
#[test]
fn an_answer_that_is_not_believed_offers_nothing() {
    let mut pair = Pair::new(Settings { min_rnr_timer: 20, ..Settings::default() });
    pair.hosts[1].post_recv(1, &[sge(0, 100)]);
    pair.hosts[0].post(&work(1, SendOp::Read, &[], 0));
    pair.hosts[0].post(&work(2, SendOp::Send, &[], 0));
    pair.turn(&mut |_, _, _| Fate::Drop);
    let header =
        Bth { psn: Psn::new(pair.settings.psn + 1), dest_qpn: pair.hosts[0].qpn, ..bth(&pair, opcode::RC_ACK) };
    let aeth = Some(Aeth { syndrome: Syndrome::Ack { credit: 10 }, msn: 1 });
    let frame = pair.frame(1, &Headers { aeth, ..Headers::new(header) }, &[]);
    pair.deliver(0, &frame);
    pair.settle();
    assert_eq!(pair.hosts[0].take(), [(1, Status::Success), (2, Status::Success)]);
    let begin = pair.sent(0, Operation::Send);
    (0..8).for_each(|id| pair.hosts[0].post(&work(id, SendOp::Send, &[], 0)));
    pair.turn(&mut |_, _, _| Fate::Deliver);
    assert_eq!(pair.sent(0, Operation::Send) - begin, 1, "its receives are used up");
}

#[test]
fn a_limited_sender_drains() {
    let mut pair = told(Settings { min_rnr_timer: 20, ..Settings::default() }, 0);
    pair.hosts[1].post_recv(1, &[sge(0, 8000)]);
    (1..4).for_each(|id| pair.hosts[0].post(&work(id, SendOp::Send, &[sge(0, 5000)], 0)));
    pair.turn(&mut |_, _, _| Fate::Deliver);
    let host = &mut pair.hosts[0];
    let drain = QpAttributes { state: state::SQD, ..QpAttributes::default() };
    host.endpoint.modify_qp(host.qpn, attribute::STATE, &drain, None).expect("from RTS");
    pair.settle();
    assert_eq!(pair.hosts[0].take(), [(1, Status::Success)]);
    let host = &mut pair.hosts[0];
    assert_eq!(host.endpoint.query_qp(host.qpn).expect("there").sq_draining, 0);
    let resume = QpAttributes { state: state::RTS, ..QpAttributes::default() };
    host.endpoint.modify_qp(host.qpn, attribute::STATE, &resume, None).expect("from SQD");
    (2..4).for_each(|id| pair.hosts[1].post_recv(id, &[sge(0, 8000)]));
    pair.settle();
    assert_eq!(pair.hosts[0].take(), [(2, Status::Success), (3, Status::Success)]);
}

/// A fresh connection. The first answers are a NAK and an ACK, which show that the peer kept the
/// following packets up to the last one that requested an ACK, and that it has no receive. The
/// packets sent behind that requested none, and the rest of the message waits for them: an ACK must
/// be requested.
#[test]
fn a_sender_beyond_its_credits_always_has_a_timer() {
    for op in [SendOp::Write, SendOp::WriteImm, SendOp::Send] {
        let mut pair = Pair::new(Settings { window: 128, timeout: 12, ..Settings::default() });
        let first = pair.settings.psn;
        if op == SendOp::Send {
            // The SEND begins behind the last packet that asked: none of it is known to have its
            // receive.
            pair.hosts[0].post(&work(1, SendOp::Write, &[sge(0, 16 * 1024)], 500_000));
        }
        pair.hosts[0].post(&work(2, op, &[sge(0, 200 * 1024)], 500_000));
        let mut lost = |_: usize, _: Opcode, _: usize| Fate::Drop;
        pair.hosts[0].nic.room = 20;
        pair.turn(&mut lost);
        assert_eq!(pair.trace.len(), 20, "four behind the last that asked");
        pair.hosts[0].nic.room = 1;
        let nak = said(&pair, first + 1, Syndrome::Nak(NakCode::PsnSequence));
        pair.deliver(0, &nak);
        pair.turn(&mut lost);
        let msn = u32::from(op == SendOp::Send);
        let bth = Bth::new(opcode::RC_ACK, pair.hosts[0].qpn, Psn::new(first + 15));
        let aeth = Some(Aeth { syndrome: Syndrome::Ack { credit: 0 }, msn });
        let ack = pair.frame(1, &Headers { aeth, ..Headers::new(bth) }, &[]);
        assert_eq!(pair.deliver(0, &ack), Disposition::Accepted);
        // The peer answers no more: that ends with the retries.
        let rest = pair.run(LIMIT, lost);
        assert_eq!(
            (rest, pair.hosts[0].take().last()),
            (true, Some(&(2, Status::TransportRetryExceeded))),
            "{op:?}: {:?}, next timer {:?}",
            pair.hosts[0].state(),
            pair.hosts[0].endpoint.poll_timeout()
        );
    }
}
