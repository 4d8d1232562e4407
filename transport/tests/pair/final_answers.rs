//! Queue pairs that are removed or reset before their owed answers have left.

use roced_transport::{
    clock::Nanos,
    counters::QpCount,
    reject::DropReason,
    wire::{Operation, opcode},
};
use roced_types::{QpAttributes, SendOp, Status, attribute, state};

use crate::{
    host::{Fate, Pair, Settings, no_fault, sge, work},
    selective::warm,
};

/// Host 1 has executed the requests of host 0, and has no room on the wire for its answers.
fn executed_behind_a_full_ring(settings: Settings) -> Pair {
    let mut pair = Pair::new(settings);
    pair.hosts[1].nic.room = 0;
    pair.hosts[0].post(&work(1, SendOp::Write, &[sge(0, 5000)], 10_000));
    for _ in 0..4 {
        pair.turn(&mut no_fault);
    }
    assert!(pair.hosts[1].app.memory[10_000..15_000] == pair.hosts[0].app.memory[..5000], "it was executed");
    assert!(pair.hosts[0].take().is_empty() && pair.hosts[1].nic.frames.is_empty());
    pair
}

fn drain_and_expect_success(pair: &mut Pair) {
    assert!(pair.hosts[1].endpoint.wants_transmit());
    pair.hosts[1].nic.room = 4096;
    pair.run(Nanos::from_micros(50), no_fault);
    assert_eq!(pair.hosts[0].take(), [(1, Status::Success)]);
    assert_eq!(pair.hosts[0].count(QpCount::RetransmittedPackets), 0);
    assert_eq!((pair.sent(1, Operation::Ack), pair.hosts[1].count(QpCount::ResponsePackets)), (1, 1));
    assert!(!pair.hosts[1].endpoint.wants_transmit());
}

#[test]
fn owed_ack_outlives_the_removal_of_its_queue_pair() {
    let mut pair = executed_behind_a_full_ring(Settings::default());
    let qpn = pair.hosts[1].qpn;
    assert!(pair.hosts[1].endpoint.remove_qp(qpn).is_some());
    drain_and_expect_success(&mut pair);
}

#[test]
fn owed_ack_outlives_the_reset_of_its_queue_pair() {
    let mut pair = executed_behind_a_full_ring(Settings::default());
    let host = &mut pair.hosts[1];
    host.endpoint.modify_qp(host.qpn, attribute::STATE, &QpAttributes::default(), None).expect("from anywhere");
    drain_and_expect_success(&mut pair);
}

#[test]
fn refused_reset_leaves_the_owed_ack_with_its_queue_pair() {
    let mut pair = executed_behind_a_full_ring(Settings::default());
    let host = &mut pair.hosts[1];
    let excess = host.endpoint.modify_qp(
        host.qpn,
        attribute::STATE | attribute::QKEY,
        &QpAttributes { state: state::RESET, ..QpAttributes::default() },
        None,
    );
    assert!(excess.is_err());
    drain_and_expect_success(&mut pair);
}

/// A queue pair with sent answers owes nothing.
#[test]
fn removal_without_an_owed_answer_sends_nothing() {
    let mut pair = Pair::new(Settings::default());
    pair.hosts[0].post(&work(1, SendOp::Write, &[sge(0, 5000)], 10_000));
    pair.settle();
    let acks = pair.sent(1, Operation::Ack);
    let qpn = pair.hosts[1].qpn;
    pair.hosts[1].endpoint.remove_qp(qpn).expect("there");
    assert!(!pair.hosts[1].endpoint.wants_transmit());
    pair.settle();
    assert_eq!(pair.sent(1, Operation::Ack), acks);
}

/// An ACK of requests behind a READ would imply that the READ's responses are lost: the message
/// before it is acknowledged, that behind it is not.
#[test]
fn ack_behind_responses_that_are_owed_is_not_kept() {
    let mut pair = executed_behind_a_full_ring(Settings::default());
    pair.hosts[0].post(&work(2, SendOp::Read, &[sge(0, 3000)], 0));
    pair.hosts[0].post(&work(3, SendOp::Write, &[sge(0, 10)], 0));
    for _ in 0..4 {
        pair.turn(&mut no_fault);
    }
    let qpn = pair.hosts[1].qpn;
    pair.hosts[1].endpoint.remove_qp(qpn).expect("there");
    drain_and_expect_success(&mut pair);
}

#[test]
fn refusal_outlives_the_removal_of_its_queue_pair() {
    let mut pair = Pair::new(Settings { access: 0, ..Settings::default() });
    pair.hosts[1].nic.room = 0;
    pair.hosts[0].post(&work(1, SendOp::Write, &[sge(0, 10)], 0));
    for _ in 0..4 {
        pair.turn(&mut no_fault);
    }
    let host = &mut pair.hosts[1];
    host.endpoint.remove_qp(host.qpn).expect("there");
    host.nic.room = 4096;
    pair.settle();
    assert_eq!(pair.hosts[0].take(), [(1, Status::RemoteAccess)]);
}

/// Each of them executes a message and is removed; the list of last answers has room for 64.
#[test]
fn lost_final_answers_are_counted() {
    let mut pair = executed_behind_a_full_ring(Settings::default());
    for life in 0..65 {
        let host = &mut pair.hosts[1];
        host.endpoint.remove_qp(host.qpn).expect("there");
        let lost = u64::from(life == 64);
        assert_eq!(host.endpoint.drops().get(DropReason::FinalAnswerLost), lost, "after {life} others");
        pair.hosts[0].endpoint.remove_qp(pair.hosts[0].qpn).expect("there");
        pair.connect_another(100 + life);
        pair.hosts[0].post(&work(1, SendOp::Write, &[sge(0, 10)], 0));
        for _ in 0..4 {
            pair.turn(&mut no_fault);
        }
    }
    pair.hosts[1].nic.room = 4096;
    pair.turn(&mut no_fault);
    let acks = pair.trace.iter().filter(|(from, seen, _)| (*from, *seen) == (1, opcode::RC_ACK)).count();
    assert!(acks <= 32, "they count for the budget of a turn");
    pair.settle();
    let acks = pair.trace.iter().filter(|(from, seen, _)| (*from, *seen) == (1, opcode::RC_ACK)).count();
    assert_eq!(acks, 65, "of 66 that were owed, one by the queue pair that is there");
}

/// The additional acknowledgment of an RNR NAK or a sequence NAK is sent, even if the queue pair
/// ends before that leaves.
#[test]
fn an_acknowledgement_within_a_nak_survives_the_end_of_its_queue_pair() {
    for end in ["ERR", "RESET", "removed"] {
        for rnr in [true, false] {
            let mut pair = warm(Settings { timeout: 0, credits: [false; 2], ..Settings::default() });
            pair.hosts[1].post_recv(7, &[sge(0, 100)]);
            pair.hosts[1].nic.room = 0;
            pair.hosts[0].post(&work(1, SendOp::Send, &[sge(0, 100)], 0));
            pair.hosts[0].post(&work(2, if rnr { SendOp::Send } else { SendOp::Write }, &[sge(0, 100)], 0));
            pair.hosts[0].post(&work(3, SendOp::Write, &[sge(0, 100)], 0));
            let mut number = 0;
            for _ in 0..4 {
                pair.turn(&mut |_, _, _| {
                    number += 1;
                    if !rnr && number == 2 { Fate::Drop } else { Fate::Deliver }
                });
            }
            assert_eq!(pair.hosts[1].take(), [(7, Status::Success)], "it was executed, and its program knows");
            let host = &mut pair.hosts[1];
            let state = if end == "ERR" { state::ERR } else { state::RESET };
            let attributes = QpAttributes { state, ..QpAttributes::default() };
            if end == "removed" {
                host.endpoint.remove_qp(host.qpn).expect("there");
            } else {
                host.endpoint.modify_qp(host.qpn, attribute::STATE, &attributes, None).expect("from anywhere");
            }
            pair.hosts[1].nic.room = 64;
            pair.run(Nanos::from_millis(100), no_fault);
            assert_eq!(pair.hosts[0].take().first(), Some(&(1, Status::Success)), "{end}, RNR {rnr}");
        }
    }
}
