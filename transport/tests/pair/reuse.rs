//! Programs that reuse or take away the memory of a message as soon as the peer's answer says that
//! it arrived, though no completion has said so: unsignaled messages have none. Where nothing was
//! lost nothing may read that memory again.

use roced_transport::{
    clock::Nanos,
    counters::QpCount,
    mr::{Mr, MrKey, Scope},
    wire::opcode::{self, Operation},
    work::SendWork,
};
use roced_types::{SendOp, Sge, Status, send_flags};

use crate::{
    host::{Fate, MEMORY, PD, Pair, Settings, VA, no_fault, sge, work},
    selective::{LIMIT, repairs, warm},
};

const OTHER_KEY: MrKey = MrKey(0x00cd_ef02);

/// A region of its own over the first page of host 0.
fn register(pair: &mut Pair) {
    let mr =
        Mr { key: OTHER_KEY, pd: PD, access: 0, va: VA, length: 4096, object: MEMORY, offset: 0, scope: Scope::Region };
    pair.hosts[0].endpoint.insert_mr(mr).expect("room");
}

#[test]
fn memory_that_is_taken_away_after_the_peers_answer_is_not_read_again() {
    for op in [SendOp::Send, SendOp::Write] {
        let mut pair = warm(Settings::default());
        register(&mut pair);
        pair.hosts[1].post_recv(7, &[sge(500_000, 100)]);
        let sges = [Sge { lkey: OTHER_KEY.0, ..sge(0, 100) }];
        pair.hosts[0].post(&SendWork { flags: 0, ..work(1, op, &sges, 500_000) });
        while pair.hosts[1].app.writes.is_empty() {
            pair.turn(&mut no_fault);
        }
        // The peer's program has answered by other means: the memory goes.
        pair.hosts[0].endpoint.remove_mr(OTHER_KEY);
        pair.now = pair.now + Nanos::from_millis(1);
        pair.settle();
        assert_eq!(pair.hosts[0].state(), "RTS", "{op:?}");
        pair.hosts[0].post(&work(2, SendOp::Write, &[sge(0, 10)], 0));
        pair.settle();
        assert_eq!(pair.hosts[0].take(), [(2, Status::Success)]);
        assert_eq!(pair.hosts[0].count(QpCount::LocalProtection), 0);
    }
}

/// The solicitation reads nothing; losses are found by its answer, or by the next one.
#[test]
fn an_unsignaled_message_that_was_lost_is_sent_again_with_its_bytes() {
    for lost in 0..3 {
        let mut pair = warm(Settings::default());
        for wr_id in 0..3 {
            let to = 500_000 + wr_id * 1000;
            pair.hosts[0].post(&SendWork { flags: 0, ..work(wr_id, SendOp::Write, &[sge(wr_id * 1000, 1000)], to) });
        }
        let mut seen = 0;
        let start = pair.now;
        while pair.hosts[0].app.memory[..3000] != pair.hosts[1].app.memory[500_000..503_000] {
            assert!(pair.now - start < Nanos::from_micros(300), "packet {lost}");
            pair.turn(&mut |from, _, _| {
                seen += usize::from(from == 0);
                if from == 0 && seen == lost + 1 { Fate::Drop } else { Fate::Deliver }
            });
            pair.now = pair.now + Nanos::from_micros(5);
        }
        pair.settle();
        assert_eq!((pair.hosts[0].state(), pair.hosts[0].count(QpCount::AckTimeout)), ("RTS", 0));
    }
}

#[test]
fn a_lost_solicitation_does_not_end_the_queue_pair_before_the_ack_timer() {
    let mut pair = warm(Settings { timeout: 10, retry_cnt: 2, ..Settings::default() });
    pair.hosts[0].post(&SendWork { flags: 0, ..work(1, SendOp::Write, &[sge(0, 1000)], 500_000) });
    assert!(pair.run(LIMIT, |_, _, _| Fate::Drop));
    assert_eq!(pair.hosts[0].take(), [(1, Status::TransportRetryExceeded)]);
    assert_eq!(pair.hosts[0].count(QpCount::AckTimeout), 3);
}

/// Work that waits for messages without a requested ACK solicits one at once, and not after the
/// time of a probe.
#[test]
fn work_that_waits_for_an_unsignaled_message_requests_its_ack_at_once() {
    let settings = Settings { window: 32, rd_atomic: 1, ..Settings::default() };
    // A READ that takes all of the window, and a local invalidation.
    for op in [SendOp::Read, SendOp::LocalInvalidate] {
        let mut pair = warm(settings);
        register(&mut pair);
        pair.hosts[0].post(&SendWork { flags: 0, ..work(1, SendOp::Write, &[sge(0, 10)], 0) });
        let into = [sge(8192, 32 * 1024)];
        let later = if op == SendOp::Read {
            work(2, op, &into, 600_000)
        } else {
            SendWork { rkey: OTHER_KEY.0, flags: send_flags::SIGNALED, ..work(2, op, &[], 0) }
        };
        let start = pair.now;
        pair.hosts[0].post(&later);
        while pair.hosts[0].app.completions.is_empty() {
            assert!(pair.now - start < Nanos::from_micros(80), "{op:?} waits for a probe");
            pair.turn(&mut no_fault);
            pair.now = pair.now + Nanos::from_micros(5);
        }
        assert_eq!(pair.hosts[0].take(), [(2, Status::Success)]);
        assert_eq!(repairs(&pair)[2], 0, "{op:?}");
    }
}

/// The ACK of a message that asked by itself comes later than any round trip so far after the peer
/// was asked how far it is; the answer to that is still to come.
#[test]
fn a_late_ack_of_a_message_that_asked_is_no_answer_to_a_later_question() {
    let mut pair = warm(Settings::default());
    register(&mut pair);
    pair.hosts[0].post(&work(1, SendOp::Write, &[sge(0, 10)], 0));
    pair.hosts[0].post(&SendWork { flags: 0, ..work(2, SendOp::Write, &[sge(0, 10)], 0) });
    let invalidate = work(3, SendOp::LocalInvalidate, &[], 0);
    pair.hosts[0].post(&SendWork { rkey: OTHER_KEY.0, flags: send_flags::SIGNALED, ..invalidate });
    let mut sent = [0; 2];
    assert!(pair.run(Nanos::from_millis(10), |from, _, _| {
        sent[from] += 1;
        match (from, sent[from]) {
            (0, 2) => Fate::Late(1),
            (0, 3) => Fate::Late(12),
            (1, 1) => Fate::Late(6),
            _ => Fate::Deliver,
        }
    }));
    assert_eq!(pair.hosts[0].take(), [(1, Status::Success), (3, Status::Success)]);
    assert_eq!((repairs(&pair), pair.hosts[0].count(QpCount::AckRequested)), ([0; 3], 1));
}

#[test]
fn a_drain_behind_an_unsignaled_message_asks_at_once() {
    use roced_types::{QpAttributes, attribute, event, state};
    let mut pair = warm(Settings::default());
    pair.hosts[0].post(&SendWork { flags: 0, ..work(1, SendOp::Write, &[sge(0, 10)], 0) });
    pair.turn(&mut no_fault);
    let host = &mut pair.hosts[0];
    let drain = QpAttributes { state: state::SQD, sq_drained_event: 1, ..QpAttributes::default() };
    host.endpoint.modify_qp(host.qpn, attribute::STATE | attribute::SQ_DRAINED_EVENT, &drain, None).expect("from RTS");
    let start = pair.now;
    loop {
        if pair.hosts[0].endpoint.poll_event().is_some_and(|event| event.kind == event::SQ_DRAINED) {
            break;
        }
        assert!(pair.now - start < Nanos::from_micros(60), "it waits for a probe");
        pair.turn(&mut no_fault);
        pair.now = pair.now + Nanos::from_micros(5);
    }
}

/// The solicitation is a SEND or WRITE of no bytes behind all acknowledged packets: nothing is
/// executed, by any responder. It needs no right that the last acknowledged request did not need.
#[test]
fn the_question_is_a_duplicate_of_no_bytes() {
    for (before, question) in [
        (SendOp::Write, opcode::RC_WRITE_ONLY),
        (SendOp::WriteImm, opcode::RC_WRITE_ONLY),
        (SendOp::Send, opcode::RC_SEND_ONLY),
        (SendOp::Read, opcode::RC_SEND_ONLY),
        (SendOp::FetchAdd, opcode::RC_SEND_ONLY),
    ] {
        let mut pair = warm(Settings { credits: [false; 2], ..Settings::default() });
        pair.hosts[1].post_recv(6, &[sge(510_000, 100)]);
        pair.hosts[0].post(&work(0, before, &[sge(8192, 8)], 600_000));
        pair.settle();
        let is_taken = matches!(before, SendOp::WriteImm | SendOp::Send);
        pair.hosts[1].post_recv(7, &[sge(500_000, 100)]);
        let counts = [QpCount::WriteRequests, QpCount::SendRequests, QpCount::DuplicateRequest];
        let counted = counts.map(|count| pair.hosts[1].count(count));
        pair.hosts[0].post(&SendWork { flags: 0, ..work(1, SendOp::Send, &[sge(0, 10)], 0) });
        let begin = pair.trace.len();
        pair.settle();
        let psn = (pair.settings.psn + 21) & 0x00ff_ffff;
        let frames: Vec<_> = pair.trace[begin..].iter().filter(|(from, ..)| *from == 0).collect();
        assert_eq!(frames, [&(0, opcode::RC_SEND_ONLY, psn), &(0, question, psn - 1)], "{before:?}");
        let now = counts.map(|count| pair.hosts[1].count(count));
        assert_eq!(now, [counted[0], counted[1] + 1, counted[2] + 1], "{before:?}");
        assert_eq!(pair.hosts[1].take().len(), 1 + usize::from(is_taken), "no other receive is taken");
    }
}

/// Before anything is acknowledged in a life there is no duplicate to ask by: the oldest packet is.
/// Where its memory is gone the question goes out all the same, because nothing else is left.
#[test]
fn the_first_message_of_a_life_is_asked_about_though_its_ack_is_lost_and_its_memory_gone() {
    for is_gone in [false, true] {
        let mut pair = Pair::new(Settings { retry_cnt: 0, ..Settings::default() });
        register(&mut pair);
        let sges = [Sge { lkey: OTHER_KEY.0, ..sge(0, 100) }];
        pair.hosts[0].post(&SendWork { flags: 0, ..work(1, SendOp::Write, &sges, 500_000) });
        while pair.hosts[1].app.writes.is_empty() || pair.sent(1, Operation::Ack) == 0 {
            pair.turn(&mut |from, _, _| if from == 1 { Fate::Drop } else { Fate::Deliver });
        }
        if is_gone {
            pair.hosts[0].endpoint.remove_mr(OTHER_KEY);
        }
        let begin = pair.trace.len();
        pair.settle();
        let (_, _, psn) = pair.trace[begin];
        assert_eq!(psn, if is_gone { pair.settings.psn - 1 } else { pair.settings.psn });
        assert_eq!((pair.hosts[0].state(), pair.hosts[0].count(QpCount::AckTimeout)), ("RTS", 0));
        pair.hosts[0].post(&work(2, SendOp::Write, &[sge(0, 10)], 0));
        pair.settle();
        assert_eq!(pair.hosts[0].take(), [(2, Status::Success)]);
    }
}

/// The second packet of the first message of a life cannot be sent, and the first did not ask: it
/// is sent again, and asks.
#[test]
fn a_first_message_that_fails_in_its_middle_asks_by_its_first_packet() {
    let mut pair = Pair::new(Settings { timeout: 0, ..Settings::default() });
    let host = &mut pair.hosts[0];
    let gone = Sge { lkey: OTHER_KEY.0, ..sge(0, 1024) };
    host.post(&work(1, SendOp::Write, &[sge(0, 1024), gone], 500_000));
    pair.settle();
    let sent: Vec<_> = pair.trace.iter().filter(|(from, ..)| *from == 0).collect();
    assert_eq!(sent, [&(0, opcode::RC_WRITE_FIRST, pair.settings.psn); 2]);
    assert_eq!(pair.hosts[0].take(), [(1, Status::LocalProtection)]);
}
