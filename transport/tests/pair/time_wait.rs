//! Queue pairs that are removed before their last ACK has arrived.

use roced_transport::{
    clock::Nanos,
    counters::QpCount,
    mr::MrKey,
    psn::Psn,
    recovery::RecoveryConfig,
    reject::{Disposition, DropReason},
    wire::{
        Operation,
        bth::Bth,
        frame,
        headers::Headers,
        opcode::{self, Opcode},
        reth::Reth,
    },
    work::SendWork,
};
use roced_types::{QpAttributes, SendOp, Status, attribute, flush, state};

use crate::host::{Fate, KEY, PKEYS, Pair, Settings, VA, bth, forged, no_fault, one, sge, work};

/// Host 1 has executed a request, its program has removed the queue pair, and the ACK is lost.
fn removed_before_a_lost_ack(settings: Settings) -> Pair {
    let mut pair = executed_before_a_lost_ack(settings);
    remove(&mut pair);
    pair
}

fn executed_before_a_lost_ack(settings: Settings) -> Pair {
    let mut pair = Pair::new(settings);
    pair.hosts[1].post_recv(7, &[sge(0, 5000)]);
    pair.hosts[0].post(&work(1, SendOp::Send, &[sge(0, 5000)], 0));
    for _ in 0..4 {
        pair.turn(&mut |_, opcode, _| if opcode == opcode::RC_ACK { Fate::Drop } else { Fate::Deliver });
    }
    assert_eq!(pair.hosts[1].take(), [(7, Status::Success)], "its program knows");
    assert!(pair.hosts[0].take().is_empty());
    pair
}

fn remove(pair: &mut Pair) {
    let host = &mut pair.hosts[1];
    host.endpoint.remove_qp(host.qpn).expect("there");
}

/// Host 1's program moves its queue pair to the error state.
fn end(pair: &mut Pair) {
    let host = &mut pair.hosts[1];
    let error = QpAttributes { state: state::ERR, ..QpAttributes::default() };
    host.endpoint.modify_qp(host.qpn, attribute::STATE, &error, None).expect("from anywhere");
}

/// The last packet of that request, again.
fn repetition(pair: &Pair) -> Bth {
    let psn = Psn::new(pair.settings.psn).plus(4);
    Bth { psn, ack_request: true, ..bth(pair, opcode::RC_SEND_LAST) }
}

/// What host 1 does with a packet from host 0, and how many frames it sends in answer.
fn answers(pair: &mut Pair, headers: &Headers, payload_bytes: usize) -> (Disposition, usize) {
    let frame = forged(pair, headers, &vec![0; payload_bytes]);
    answers_frame(pair, &frame)
}

fn answers_frame(pair: &mut Pair, frame: &[u8]) -> (Disposition, usize) {
    let disposition = pair.deliver(1, frame);
    let host = &mut pair.hosts[1];
    host.endpoint.poll_transmit(pair.now, 64, &mut host.app, &mut host.nic);
    (disposition, host.nic.frames.drain(..).count())
}

const SILENCE: (Disposition, usize) = (Disposition::Dropped(DropReason::NoSuchQp), 0);
const ANSWER: (Disposition, usize) = (Disposition::Dropped(DropReason::Duplicate), 1);

#[test]
fn a_removed_queue_pair_acknowledges_repetitions() {
    for (ipv6, rocev1) in [(false, false), (true, false), (true, true)] {
        let settings = Settings { ipv6, rocev1: [rocev1; 2], ..Settings::default() };
        let mut pair = removed_before_a_lost_ack(settings);
        pair.run(Nanos::from_millis(200), no_fault);
        assert_eq!(pair.hosts[0].take(), [(1, Status::Success)]);
        assert_eq!((pair.hosts[1].count(QpCount::DuplicateRequest), pair.sent(1, Operation::Ack)), (1, 2));
        assert_eq!(pair.hosts[0].state(), "RTS");
    }
}

/// However many repetitions are lost, and whichever of them.
#[test]
fn each_repetition_is_acknowledged() {
    let mut pair = removed_before_a_lost_ack(Settings::default());
    let is_lost = |at, nth| at == 1 && nth < 5;
    pair.run(Nanos::from_millis(1000), |at, _, nth| if is_lost(at, nth) { Fate::Drop } else { Fate::Deliver });
    assert_eq!(pair.hosts[0].take(), [(1, Status::Success)]);
}

/// The next message was not executed, and is reported as failed.
#[test]
fn a_removed_queue_pair_acknowledges_nothing_more() {
    let mut pair = removed_before_a_lost_ack(Settings { timeout: 8, ..Settings::default() });
    pair.hosts[0].post(&work(2, SendOp::Send, &[sge(0, 10)], 0));
    pair.settle();
    assert_eq!(pair.hosts[0].take(), [(1, Status::Success), (2, Status::TransportRetryExceeded)]);
}

#[test]
fn only_repetitions_that_ask_are_answered() {
    let mut pair = removed_before_a_lost_ack(Settings::default());
    let last = repetition(&pair);
    assert_eq!(answers(&mut pair, &Headers::new(last), 904), ANSWER);
    let first = Psn::new(pair.settings.psn);
    let silent = |opcode: Opcode, psn| Headers::new(Bth { opcode, psn, ack_request: false, ..last });
    assert_eq!(answers(&mut pair, &silent(opcode::RC_SEND_FIRST, first), 1024), SILENCE);
    assert_eq!(answers(&mut pair, &silent(opcode::RC_SEND_LAST, last.psn), 904), ANSWER, "a message ends");
    assert_eq!(answers(&mut pair, &silent(opcode::RC_SEND_ONLY, last.psn.plus(1)), 10), SILENCE, "it is new");
    let middle = Headers::new(Bth { opcode: opcode::RC_SEND_MIDDLE, psn: first.plus(1), ..last });
    assert_eq!(answers(&mut pair, &middle, 1024), ANSWER, "it asks for an ACK");
}

/// Forging requests gains nothing: an ACK has four bytes more than a SEND of no bytes, the shortest
/// of them.
#[test]
fn an_answer_is_no_longer_than_the_shortest_request_and_an_aeth() {
    for (ipv6, rocev1) in [(false, false), (true, false), (true, true)] {
        let settings = Settings { ipv6, rocev1: [rocev1; 2], ..Settings::default() };
        let mut pair = removed_before_a_lost_ack(settings);
        let only = Bth { opcode: opcode::RC_SEND_ONLY, ..repetition(&pair) };
        let request = forged(&pair, &Headers::new(only), &[]);
        assert_eq!(pair.deliver(1, &request), ANSWER.0);
        let host = &mut pair.hosts[1];
        host.endpoint.poll_transmit(pair.now, 64, &mut host.app, &mut host.nic);
        let answers: Vec<usize> = host.nic.frames.drain(..).map(|frame| frame.len()).collect();
        assert_eq!(answers, [request.len() + 4], "IPv6: {ipv6}, RoCEv1: {rocev1}");
    }
}

/// Their results are gone.
#[test]
fn reads_are_not_answered() {
    let mut pair = removed_before_a_lost_ack(Settings::default());
    let reth = Some(Reth { va: VA, rkey: KEY, length: 8 });
    let read = Headers { reth, ..Headers::new(Bth { opcode: opcode::RC_READ_REQUEST, ..repetition(&pair) }) };
    assert_eq!(answers(&mut pair, &read, 0), SILENCE);
}

/// An unknown peer, another partition, another transport service, or a damaged packet.
#[test]
fn only_the_peer_is_answered() {
    let mut pair = removed_before_a_lost_ack(Settings { pkey_index: [1; 2], ..Settings::default() });
    let last = Bth { pkey: PKEYS[1], ..repetition(&pair) };
    assert_eq!(answers(&mut pair, &Headers::new(last), 904), ANSWER);
    assert_eq!(answers(&mut pair, &Headers::new(Bth { pkey: PKEYS[3], ..last }), 904), SILENCE);
    assert_eq!(answers(&mut pair, &Headers::new(Bth { opcode: opcode::UC_SEND_LAST, ..last }), 904), SILENCE);
    let mut damaged = forged(&pair, &Headers::new(last), &[0; 904]);
    *damaged.last_mut().expect("an ICRC") ^= 1;
    assert_eq!(answers_frame(&mut pair, &damaged), (Disposition::Dropped(DropReason::BadIcrc), 0));
    pair.hosts[0].gid[15] = 9;
    assert_eq!(answers(&mut pair, &Headers::new(last), 904), SILENCE);
}

/// A peer that takes the number of a removed queue pair for that of its next connection repeats
/// nothing, unless its first PSN is among the executed ones.
#[test]
fn packets_before_the_first_of_its_life_are_no_repetitions() {
    let mut pair = removed_before_a_lost_ack(Settings::default());
    let last = repetition(&pair);
    let first = Psn::new(pair.settings.psn);
    let only = |psn| Headers::new(Bth { opcode: opcode::RC_SEND_ONLY, psn, ..last });
    assert_eq!(answers(&mut pair, &only(first), 10), ANSWER);
    for before in [1, 2, 1000, 0x007f_fffb] {
        assert_eq!(answers(&mut pair, &only(first.minus(before)), 10), SILENCE, "{before} before");
    }
    let reth = Some(Reth { va: 0, rkey: MrKey(0), length: 0 });
    let question = |psn| Headers { reth, ..Headers::new(Bth { opcode: opcode::RC_WRITE_ONLY, psn, ..last }) };
    assert_eq!(answers(&mut pair, &question(first.minus(1)), 0), ANSWER, "a peer without acknowledgments asks");
    assert_eq!(answers(&mut pair, &question(first.minus(2)), 0), SILENCE);
}

/// The UDP source port of a peer that has used only one tells its connections apart.
#[test]
fn packets_from_another_source_port_are_no_repetitions() {
    let mut pair = removed_before_a_lost_ack(Settings::default());
    let last = Headers::new(repetition(&pair));
    assert_eq!(answers(&mut pair, &last, 904), ANSWER);
    pair.life += 1;
    assert_eq!(answers(&mut pair, &last, 904), SILENCE);
}

/// Its repetitions may come from any.
#[test]
fn a_peer_of_several_source_ports_is_answered_at_each() {
    let mut pair = Pair::new(Settings::default());
    let first = Psn::new(pair.settings.psn);
    let reth = Some(Reth { va: VA, rkey: KEY, length: 8 });
    let write = |psn, pair: &Pair| Headers { reth, ..Headers::new(Bth { psn, ..bth(pair, opcode::RC_WRITE_ONLY) }) };
    for psn in [first, first.plus(1)] {
        let headers = write(psn, &pair);
        assert_eq!(answers(&mut pair, &headers, 8).0, Disposition::Accepted);
        pair.life += 1;
    }
    remove(&mut pair);
    let headers = write(first, &pair);
    assert_eq!(answers(&mut pair, &headers, 8), ANSWER);
}

/// As `rdma_disconnect` does, before the queue pair is destroyed.
#[test]
fn a_queue_pair_in_the_error_state_is_silent_until_it_is_removed() {
    let mut pair = executed_before_a_lost_ack(Settings::default());
    let last = Headers::new(repetition(&pair));
    end(&mut pair);
    assert_eq!(answers(&mut pair, &last, 904), (Disposition::Dropped(DropReason::WrongState), 0));
    pair.hosts[0].post(&work(2, SendOp::Send, &[sge(0, 10)], 0));
    remove(&mut pair);
    pair.settle();
    assert_eq!(pair.hosts[0].take(), [(1, Status::Success), (2, Status::TransportRetryExceeded)]);
}

/// Its last answer was the NAK.
#[test]
fn a_failed_queue_pair_acknowledges_nothing_after_its_end() {
    let mut pair = executed_before_a_lost_ack(Settings::default());
    let last = Headers::new(repetition(&pair));
    let refused = Bth { psn: last.bth.psn.plus(1), ..bth(&pair, opcode::RC_WRITE_ONLY) };
    let reth = Some(Reth { va: VA, rkey: MrKey(KEY.0 ^ 1), length: 8 });
    assert_eq!(answers(&mut pair, &Headers { reth, ..Headers::new(refused) }, 8).1, 1, "a NAK");
    end(&mut pair);
    remove(&mut pair);
    assert_eq!(answers(&mut pair, &last, 904), SILENCE);
}

/// Another queue pair of the same number begins anew, also if it goes without having executed
/// anything.
#[test]
fn a_number_in_use_again_forgets_its_past() {
    let mut pair = removed_before_a_lost_ack(Settings::default());
    let last = repetition(&pair);
    let index = pair.hosts[1].qpn.index();
    pair.hosts[0].endpoint.remove_qp(pair.hosts[0].qpn).expect("there");
    pair.connect_another(index);
    let host = &mut pair.hosts[1];
    host.endpoint.remove_qp(host.qpn).expect("there");
    assert_eq!(answers(&mut pair, &Headers::new(last), 904), SILENCE);
}

/// Its peer's number may have another queue pair by then, for which the ACK is not.
#[test]
fn answers_end_in_time() {
    let mut pair = removed_before_a_lost_ack(Settings::default());
    let last = Headers::new(repetition(&pair));
    pair.now = pair.now + Nanos::from_millis(9_000);
    assert_eq!(answers(&mut pair, &last, 904), ANSWER);
    pair.now = pair.now + Nanos::from_millis(1_001);
    assert_eq!(answers(&mut pair, &last, 904), SILENCE);
}

#[test]
fn nothing_is_answered_by_a_port_that_is_gone() {
    let mut pair = removed_before_a_lost_ack(Settings::default());
    let last = repetition(&pair);
    pair.hosts[1].endpoint.fail_qps(0, 1);
    assert_eq!(answers(&mut pair, &Headers::new(last), 904), SILENCE);
}

/// Repetitions without end keep no more than 64 answers, and one for those that follow each other.
#[test]
fn repetitions_take_a_bounded_room() {
    let mut pair = removed_before_a_lost_ack(Settings::default());
    pair.hosts[1].nic.room = 0;
    let frame = forged(&pair, &Headers::new(repetition(&pair)), &[0; 904]);
    for _ in 0..1000 {
        assert_eq!(answers_frame(&mut pair, &frame), (Disposition::Dropped(DropReason::Duplicate), 0));
    }
    pair.hosts[1].nic.room = 4096;
    assert_eq!(answers_frame(&mut pair, &frame).1, 1);
    assert_eq!(pair.hosts[1].endpoint.drops().get(DropReason::FinalAnswerLost), 0);
}

/// Half of the room is for answers that are sent once, however many repetitions come.
#[test]
fn repetitions_leave_room_for_owed_answers() {
    let mut pair = removed_before_a_lost_ack(Settings::default());
    let last = Bth { mig_req: false, ..repetition(&pair) };
    pair.hosts[1].nic.room = 0;
    for nth in 0..100 {
        let psn = Psn::new(pair.settings.psn).plus(1 + nth % 2);
        let middle = Headers::new(Bth { opcode: opcode::RC_SEND_MIDDLE, psn, ..last });
        assert_eq!(answers(&mut pair, &middle, 1024).0, ANSWER.0);
    }
    let lost = |pair: &Pair| pair.hosts[1].endpoint.drops().get(DropReason::FinalAnswerLost);
    // Every second one is the same as in the last place.
    let refused = (100 - 32) / 2;
    assert_eq!(lost(&pair), refused);
    for index in 0..32 {
        pair.hosts[0].endpoint.remove_qp(pair.hosts[0].qpn).expect("there");
        pair.connect_another(100 + index);
        pair.hosts[0].post(&work(1, SendOp::Write, &[sge(0, 10)], 0));
        for _ in 0..4 {
            pair.turn(&mut no_fault);
        }
        remove(&mut pair);
    }
    assert_eq!(lost(&pair), refused, "each of 32 owed answers found room");
}

/// A READ without an answer fails; the executed request before it does not, and repetitions do not
/// follow each other without a pause.
#[test]
fn a_read_without_a_result_fails() {
    for recovery in [RecoveryConfig::default(), RecoveryConfig::GO_BACK_N] {
        let mut pair = Pair::new(Settings { timeout: 8, recovery: [recovery; 2], ..Settings::default() });
        for (wr_id, op) in [(1, SendOp::Send), (2, SendOp::Read), (3, SendOp::Send)] {
            if op == SendOp::Send {
                pair.hosts[1].post_recv(wr_id, &[sge(0, 100)]);
            }
            pair.hosts[0].post(&work(wr_id, op, &[sge(0, 100)], 0));
        }
        for _ in 0..4 {
            pair.turn(&mut |at, _, _| if at == 1 { Fate::Drop } else { Fate::Deliver });
        }
        assert_eq!(pair.hosts[1].take(), [(1, Status::Success), (3, Status::Success)]);
        let host = &mut pair.hosts[1];
        host.endpoint.remove_qp(host.qpn).expect("there");
        pair.settle();
        let (ok, retries, flushed) = (Status::Success, Status::TransportRetryExceeded, Status::WorkRequestFlushed);
        assert_eq!(pair.hosts[0].take(), [(1, ok), (2, retries), (3, flushed)]);
        assert!(pair.sent(0, Operation::ReadRequest) <= 16, "{}", pair.sent(0, Operation::ReadRequest));
        assert!(pair.sent(1, Operation::Ack) <= 16, "{}", pair.sent(1, Operation::Ack));
    }
}

/// Such a peer waits for ever if it is told of the end of a message while it sends that message
/// again, and the answer to its end is lost.
#[test]
fn a_plain_peer_is_acknowledged_no_more_than_it_has_sent_again() {
    let mut pair = removed_before_a_lost_ack(Settings::default());
    let last = Bth { mig_req: false, ..repetition(&pair) };
    let answer = |pair: &mut Pair, bth| {
        let frame = forged(pair, &Headers::new(bth), &[0; 904]);
        pair.deliver(1, &frame);
        let host = &mut pair.hosts[1];
        host.endpoint.poll_transmit(pair.now, 64, &mut host.app, &mut host.nic);
        let frames: Vec<_> = host.nic.frames.drain(..).collect();
        assert_eq!(frames.len(), 1);
        frame::parse(&[&frames[0][..]]).expect("ours").bth.psn
    };
    let first = Psn::new(pair.settings.psn);
    let middle = Bth { opcode: opcode::RC_SEND_MIDDLE, psn: first.plus(2), ..last };
    assert_eq!(answer(&mut pair, middle), first.plus(2));
    assert_eq!(answer(&mut pair, last), first.plus(4));
    assert_eq!(answer(&mut pair, Bth { mig_req: true, ..middle }), first.plus(4), "an adapter");
}

/// However the sender recovers losses, and whatever it knew before.
#[test]
fn requests_that_were_not_executed_fail_before_long() {
    for recovery in [RecoveryConfig::default(), RecoveryConfig::GO_BACK_N] {
        for window in [1, 4, 64] {
            let settings =
                Settings { timeout: 8, window, credits: [false; 2], recovery: [recovery; 2], ..Settings::default() };
            let mut pair = Pair::established(settings);
            for wr_id in 1..=2 {
                pair.hosts[1].post_recv(wr_id, &[sge(0, 5000)]);
                pair.hosts[0].post(&work(wr_id, SendOp::Send, &[sge(0, 5000)], 0));
            }
            pair.run(
                Nanos::from_micros(500),
                |at, _, _| if at == 1 && window == 64 { Fate::Drop } else { Fate::Deliver },
            );
            assert_eq!(pair.hosts[1].take(), [(1, Status::Success), (2, Status::Success)]);
            let host = &mut pair.hosts[1];
            host.endpoint.remove_qp(host.qpn).expect("there");
            let before = pair.now;
            for wr_id in 3..=9 {
                pair.hosts[0].post(&work(wr_id, SendOp::Send, &[sge(0, 2000)], 0));
            }
            pair.settle();
            let statuses: Vec<_> = pair.hosts[0].take().into_iter().map(|(_, status)| status).collect();
            assert_eq!(statuses[..3], [Status::Success, Status::Success, Status::TransportRetryExceeded]);
            assert!(pair.now.0 - before.0 < 400_000_000, "{} ms", (pair.now.0 - before.0) / 1_000_000);
            assert!(pair.trace.len() < 1000, "{}", pair.trace.len());
        }
    }
}

/// The answer of the atomic operation leaves with the queue pair, and the ACK behind it is lost.
#[test]
fn requests_behind_an_atomic_operation_are_acknowledged() {
    for op in [SendOp::FetchAdd, SendOp::Flush] {
        let mut pair = Pair::new(Settings { timeout: 8, credits: [false; 2], ..Settings::default() });
        pair.hosts[1].post_recv(2, &[sge(0, 100)]);
        let (into, compare) = ([sge(8, 8)], flush::operand(flush::GLOBAL, flush::REGION));
        let into = if op == SendOp::FetchAdd { &into[..] } else { &[] };
        pair.hosts[0].post(&SendWork { compare, ..work(1, op, into, 0) });
        pair.hosts[0].post(&work(2, SendOp::Send, &[sge(0, 100)], 0));
        pair.hosts[1].nic.room = 0;
        for _ in 0..4 {
            pair.turn(&mut no_fault);
        }
        let host = &mut pair.hosts[1];
        assert_eq!(host.take(), [(2, Status::Success)]);
        host.endpoint.remove_qp(host.qpn).expect("there");
        host.nic.room = 4096;
        pair.run(Nanos::from_millis(200), one(1, opcode::RC_ACK, 0, Fate::Drop));
        assert_eq!(pair.hosts[0].take(), [(1, Status::Success), (2, Status::Success)], "{op:?}");
    }
}
