//! Keys that change while packets are under way: memory windows, LOCAL_INV, SEND with invalidate.

use roced_transport::{
    clock::Nanos,
    counters::QpCount,
    mr::{Mr, MrKey, Scope},
    qp::ServiceType,
    recovery::{Recovery, RecoveryConfig},
    reject::{Disposition, DropReason},
    wire::{
        NakCode, Syndrome,
        bth::Bth,
        headers::Headers,
        ieth::Ieth,
        opcode::{self, Opcode, Operation},
        reth::Reth,
    },
    work::SendWork,
};
use roced_types::{BindWindow, CompletionOp, SendOp, Sge, Status, access, completion_flags};

use crate::{
    host::{Fate, KEY, Pair, Settings, VA, bth, forged, no_fault, one, sge, work},
    selective::answers,
};

/// Of a window of type 2 (its index is even), and its key after the next bind.
pub(crate) const WINDOW: MrKey = MrKey(0x0011_2201);
const NEXT: MrKey = MrKey(0x0011_2202);
/// Of a window of type 1.
const SHARED: MrKey = MrKey(0x0011_2301);
/// Where a window begins, and how long it is.
const AT: u64 = 5000;
const BYTES: u64 = 3000;
pub(crate) const LIMIT: Nanos = Nanos::from_millis(10_000);

fn bind(wr_id: u64, key: MrKey) -> SendWork<'static> {
    let window = BindWindow { va: VA + AT, length: BYTES, lkey: KEY.0, access: access::REMOTE };
    SendWork {
        rkey: key.0,
        swap_or_add: window.length,
        compare: window.compare(),
        ..work(wr_id, SendOp::BindWindow, &[], AT)
    }
}

fn invalidate(wr_id: u64, key: MrKey) -> SendWork<'static> {
    SendWork { rkey: key.0, ..work(wr_id, SendOp::LocalInvalidate, &[], 0) }
}

pub(crate) fn send_invalidate<'a>(wr_id: u64, sges: &'a [Sge], key: MrKey) -> SendWork<'a> {
    SendWork { rkey: key.0, ..work(wr_id, SendOp::SendInvalidate, sges, 0) }
}

fn write<'a>(wr_id: u64, sges: &'a [Sge], key: MrKey, to: u64) -> SendWork<'a> {
    SendWork { rkey: key.0, ..work(wr_id, SendOp::Write, sges, to) }
}

/// Host 1 has bound a window with this key.
fn bound(key: MrKey) -> Pair {
    bound_by(key, Settings::default())
}

pub(crate) fn bound_by(key: MrKey, settings: Settings) -> Pair {
    let mut pair = Pair::established(settings);
    pair.hosts[1].post(&bind(1, key));
    pair.settle();
    assert_eq!(pair.hosts[1].take(), [(1, Status::Success)]);
    pair
}

/// Result of a WRITE of `length` bytes to `to` by that key, and state of host 1's queue pair.
fn write_ends(pair: &mut Pair, key: MrKey, to: u64, length: usize) -> Status {
    pair.hosts[0].post(&write(77, &[sge(0, length)], key, to));
    pair.settle();
    let ended = pair.hosts[0].take();
    assert_eq!((ended.len(), ended[0].0), (1, 77));
    ended[0].1
}

#[test]
fn a_window_opens_its_part_of_the_region_and_no_byte_more() {
    for key in [WINDOW, SHARED] {
        for (to, length, status) in [
            (AT, BYTES as usize, Status::Success),
            (AT + BYTES - 1, 1, Status::Success),
            (AT - 1, 1, Status::RemoteAccess),
            (AT + BYTES, 1, Status::RemoteAccess),
            (AT, BYTES as usize + 1, Status::RemoteAccess),
        ] {
            assert_eq!(write_ends(&mut bound(key), key, to, length), status, "{length} bytes at {to}");
        }
        // The other eight bits of the key count.
        assert_eq!(write_ends(&mut bound(key), MrKey(key.0 + 1), AT, 1), Status::RemoteAccess);
    }
}

#[test]
fn a_window_is_no_place_for_local_work() {
    let mut pair = bound(WINDOW);
    pair.hosts[1].post(&work(2, SendOp::Write, &[Sge { lkey: WINDOW.0, ..sge(AT, 10) }], 0));
    pair.settle();
    assert_eq!(pair.hosts[1].take(), [(2, Status::LocalProtection)]);
}

#[test]
fn a_window_of_type_two_opens_to_the_queue_pair_that_bound_it() {
    for (key, status) in [(WINDOW, Status::RemoteAccess), (SHARED, Status::Success)] {
        let mut pair = bound(key);
        pair.connect_another(6);
        assert_eq!(write_ends(&mut pair, key, AT, 10), status);
    }
    // Nor may another queue pair's peer take it back.
    let mut pair = bound(WINDOW);
    pair.connect_another(6);
    pair.hosts[1].post_recv(9, &[sge(0, 100)]);
    pair.hosts[0].post(&send_invalidate(1, &[], WINDOW));
    pair.settle();
    assert_eq!(pair.hosts[0].take(), [(1, Status::RemoteAccess)]);
    pair.turn_to(5);
    assert_eq!(write_ends(&mut pair, WINDOW, AT, 10), Status::Success);
}

#[test]
fn an_invalidated_key_opens_nothing() {
    let mut pair = bound(WINDOW);
    assert_eq!(write_ends(&mut pair, WINDOW, AT, 10), Status::Success);
    pair.hosts[1].post(&invalidate(2, WINDOW));
    pair.settle();
    let cqe = pair.hosts[1].app.completions[0];
    assert_eq!((cqe.wr_id, cqe.status, cqe.op), (2, Status::Success, CompletionOp::LocalInvalidate));
    assert_eq!(write_ends(&mut pair, WINDOW, AT, 10), Status::RemoteAccess);

    let mut pair = bound(WINDOW);
    pair.hosts[1].post(&invalidate(2, WINDOW));
    pair.hosts[1].post(&bind(3, NEXT));
    pair.settle();
    assert_eq!(pair.hosts[1].take(), [(2, Status::Success), (3, Status::Success)]);
    assert_eq!(write_ends(&mut pair, NEXT, AT, 10), Status::Success);
    assert_eq!(write_ends(&mut pair, WINDOW, AT, 10), Status::RemoteAccess, "its name of before");
}

#[test]
fn a_change_that_cannot_be_made_fails_its_work() {
    let wrong_region = SendWork { compare: u64::from(KEY.0 ^ 0x100), ..bind(2, WINDOW) };
    for (work, status) in [(wrong_region, Status::WindowBind), (invalidate(2, WINDOW), Status::LocalQpOperation)] {
        let mut pair = Pair::new(Settings::default());
        pair.hosts[0].post(&write(1, &[sge(0, 5000)], KEY, 0));
        pair.hosts[0].post(&work);
        pair.hosts[0].post(&write(3, &[], KEY, 0));
        pair.settle();
        let expected = [(1, Status::Success), (2, status), (3, Status::WorkRequestFlushed)];
        assert_eq!((pair.hosts[0].take(), pair.hosts[0].state()), (expected.to_vec(), "ERR"));
    }
}

/// Everything before is complete when it begins, nothing behind begins before it is done.
#[test]
fn a_local_operation_keeps_its_place() {
    let mut pair = bound(WINDOW);
    pair.hosts[1].holds_keys = true;
    pair.hosts[1].post(&write(2, &[sge(0, 5000)], KEY, 0));
    pair.hosts[1].post(&work(3, SendOp::Read, &[sge(20_000, 5000)], 0));
    pair.hosts[1].post(&invalidate(4, WINDOW));
    pair.hosts[1].post(&write(5, &[sge(0, 10)], KEY, 0));
    while pair.hosts[1].key_changes.is_empty() {
        pair.now = pair.now + Nanos::from_micros(5);
        pair.turn(&mut no_fault);
    }
    assert_eq!(pair.hosts[1].take(), [(2, Status::Success), (3, Status::Success)]);
    assert!(!pair.run(LIMIT, no_fault) || pair.sent(1, Operation::Write) == 5);
    assert_eq!(pair.sent(1, Operation::Write), 5, "the work behind it waits");
    // Meanwhile the other direction goes on.
    assert_eq!(write_ends(&mut pair, KEY, 0, 3000), Status::Success);
    pair.hosts[1].holds_keys = false;
    pair.settle();
    assert_eq!(pair.hosts[1].take(), [(4, Status::Success), (5, Status::Success)]);
    assert_eq!(pair.hosts[1].count(QpCount::AckTimeout), 0);
}

#[test]
fn a_send_with_invalidate_brings_its_data_and_takes_the_key() {
    for (length, last) in [(0, opcode::RC_SEND_ONLY_INVALIDATE), (3000, opcode::RC_SEND_LAST_INVALIDATE)] {
        let mut pair = bound(WINDOW);
        pair.hosts[1].post_recv(9, &[sge(300_000, 4000)]);
        pair.hosts[0].post(&send_invalidate(2, &[sge(11, length)], WINDOW));
        pair.settle();
        assert_eq!(pair.hosts[0].take(), [(2, Status::Success)]);
        assert!(pair.trace.iter().any(|(_, opcode, _)| *opcode == last));
        let cqe = pair.hosts[1].app.completions[0];
        assert_eq!(
            (cqe.wr_id, cqe.status, cqe.op, cqe.byte_len),
            (9, Status::Success, CompletionOp::Recv, length as u32)
        );
        assert_eq!((cqe.flags, u32::from_ne_bytes(cqe.imm)), (completion_flags::INVALIDATED, WINDOW.0));
        let (here, there) = (&pair.hosts[0].app.memory, &pair.hosts[1].app.memory);
        assert!(here[11..11 + length] == there[300_000..300_000 + length]);
        assert_eq!(write_ends(&mut pair, WINDOW, AT, 10), Status::RemoteAccess);
    }
}

#[test]
fn a_key_that_is_not_the_peers_to_take_is_refused() {
    let refused = |pair: &mut Pair, key| {
        pair.hosts[1].post_recv(9, &[sge(300_000, 4000)]);
        pair.hosts[1].app.writes.clear();
        pair.hosts[0].post(&send_invalidate(2, &[sge(11, 100)], key));
        pair.settle();
        assert_eq!(pair.hosts[0].take(), [(2, Status::RemoteAccess)]);
        let recv = pair.hosts[1].take();
        assert_eq!(recv.last(), Some(&(9, Status::RemoteInvalidRequest)));
        assert!(pair.hosts[1].app.writes.is_empty(), "nothing was placed");
    };
    refused(&mut Pair::new(Settings::default()), WINDOW);
    refused(&mut bound(WINDOW), NEXT);
    // Not a region, nor a window that all may use.
    refused(&mut bound(WINDOW), KEY);
    refused(&mut bound(SHARED), SHARED);
    // The control side knows better than the endpoint.
    let mut pair = bound(WINDOW);
    pair.hosts[1].holds_keys = true;
    pair.hosts[1].post_recv(9, &[sge(300_000, 4000)]);
    pair.hosts[0].post(&send_invalidate(2, &[sge(11, 100)], WINDOW));
    while pair.hosts[1].key_changes.is_empty() {
        pair.turn(&mut no_fault);
    }
    pair.hosts[1].endpoint.remove_mr(WINDOW).expect("there");
    pair.hosts[1].holds_keys = false;
    pair.settle();
    assert_eq!(pair.hosts[0].take(), [(2, Status::RemoteAccess)]);
    assert_eq!(pair.hosts[1].take(), [(9, Status::RemoteInvalidRequest)]);
    assert_eq!(pair.hosts[1].state(), "ERR");
}

/// Packets that arrive during an invalidation are neither executed early nor acknowledged. They are
/// buffered, or retransmitted without request.
#[test]
fn requests_that_arrive_during_an_invalidation_are_executed_after_it() {
    for (held_turns, recovery) in [0, 1, 5, 40]
        .into_iter()
        .flat_map(|turns| [(turns, RecoveryConfig::default()), (turns, RecoveryConfig::GO_BACK_N)])
    {
        let mut pair = bound_by(WINDOW, Settings { recovery: [recovery; 2], ..Settings::default() });
        pair.hosts[1].holds_keys = true;
        for at in 0..3 {
            pair.hosts[1].post_recv(90 + at, &[sge(300_000 + at * 4000, 4000)]);
        }
        pair.hosts[0].post(&send_invalidate(2, &[sge(11, 2000)], WINDOW));
        // By the key, behind: refused. Then nothing is executed any more.
        pair.hosts[0].post(&work(3, SendOp::Send, &[sge(11, 3000)], 0));
        pair.hosts[0].post(&write(4, &[sge(0, 10)], WINDOW, AT));
        for _ in 0..held_turns + 6 {
            pair.now = pair.now + Nanos::from_micros(5);
            pair.turn(&mut no_fault);
        }
        assert_eq!(pair.hosts[1].key_changes.len(), 1);
        assert_eq!((pair.hosts[0].take(), pair.hosts[1].take()), (vec![], vec![]), "not complete on either side");
        assert!(pair.hosts[1].app.writes.iter().all(|(at, _)| *at < 304_000), "nothing behind it is executed");
        pair.hosts[1].holds_keys = false;
        pair.settle();
        assert_eq!(
            pair.hosts[0].take(),
            [(2, Status::Success), (3, Status::Success), (4, Status::RemoteAccess)],
            "held for {held_turns} turns"
        );
        assert_eq!(pair.hosts[1].take()[..2], [(90, Status::Success), (91, Status::Success)]);
        assert_eq!(pair.hosts[0].count(QpCount::AckTimeout), 0);
        let naks = u64::from(recovery.kind == Recovery::GoBackN);
        assert_eq!(pair.hosts[1].count(QpCount::SequenceNakSent), naks, "{recovery:?}");
    }
}

/// Packets without room meanwhile are requested when the invalidation is done: nothing behind them
/// would be.
#[test]
fn packets_dropped_during_an_invalidation_are_requested_after_it() {
    for out_of_order_packets in [0, 8] {
        let recovery = RecoveryConfig { out_of_order_packets, ..RecoveryConfig::default() };
        let mut pair = bound_by(WINDOW, Settings { recovery: [recovery; 2], ..Settings::default() });
        pair.hosts[1].holds_keys = true;
        pair.hosts[1].post_recv(9, &[sge(300_000, 4000)]);
        pair.hosts[0].post(&send_invalidate(2, &[sge(11, 2000)], WINDOW));
        pair.hosts[0].post(&work(3, SendOp::Write, &[sge(0, 16_000)], 400_000));
        (0..6).for_each(|_| assert!(pair.turn(&mut no_fault) || pair.hosts[1].holds_keys));
        assert!(pair.hosts[1].drops().values().sum::<u64>() > 0, "not all is held");
        pair.hosts[1].holds_keys = false;
        pair.settle();
        assert_eq!(pair.hosts[0].take(), [(2, Status::Success), (3, Status::Success)]);
        assert_eq!(pair.hosts[1].count(QpCount::SequenceNakSent), 1);
        assert_eq!(pair.hosts[0].count(QpCount::AckTimeout), 0);
        assert_eq!(pair.hosts[0].count(QpCount::AdaptiveRetransmission), 0);
        assert!(pair.hosts[1].app.memory[400_000..416_000] == pair.hosts[0].app.memory[..16_000]);
    }
}

#[test]
fn a_send_with_invalidate_is_executed_once_despite_losses() {
    type Lost = (usize, Opcode);
    let lost: [Lost; 3] = [(0, opcode::RC_SEND_LAST_INVALIDATE), (1, opcode::RC_ACK), (0, opcode::RC_SEND_FIRST)];
    for (from, opcode) in lost {
        for fate in [Fate::Drop, Fate::Duplicate, Fate::Late(3)] {
            let mut pair = bound(WINDOW);
            pair.hosts[1].post_recv(9, &[sge(300_000, 4000)]);
            pair.hosts[0].post(&send_invalidate(2, &[sge(11, 3000)], WINDOW));
            assert!(pair.run(LIMIT, one(from, opcode, 0, fate)));
            assert_eq!(pair.hosts[0].take(), [(2, Status::Success)], "{opcode} {fate:?}");
            assert_eq!(pair.hosts[1].take(), [(9, Status::Success)]);
            assert_eq!(pair.hosts[1].state(), "RTS");
        }
    }
}

#[test]
fn a_duplicate_of_a_request_in_execution_is_dropped() {
    let mut pair = bound(WINDOW);
    pair.hosts[1].holds_keys = true;
    pair.hosts[1].post_recv(9, &[sge(300_000, 4000)]);
    pair.settle();
    let before = pair.sent(1, Operation::Ack);
    let headers =
        Headers { ieth: Some(Ieth { rkey: WINDOW }), ..Headers::new(bth(&pair, opcode::RC_SEND_ONLY_INVALIDATE)) };
    let frame = forged(&pair, &headers, &[1; 10]);
    assert_eq!(pair.deliver(1, &frame), Disposition::Accepted);
    assert_eq!(pair.deliver(1, &frame), Disposition::Dropped(DropReason::Duplicate));
    pair.turn(&mut no_fault);
    assert_eq!(pair.hosts[1].key_changes.len(), 1, "asked for once");
    assert_eq!(pair.sent(1, Operation::Ack), before);
}

/// The next packet arrived first, and the NAK had not left yet.
#[test]
fn a_send_with_invalidate_that_was_overtaken_is_not_complained_of() {
    let mut pair = bound(WINDOW);
    pair.hosts[1].holds_keys = true;
    pair.hosts[1].post_recv(9, &[sge(300_000, 4000)]);
    pair.hosts[1].post_recv(10, &[sge(304_000, 4000)]);
    // An offer of these receives.
    pair.settle();
    let before = pair.sent(1, Operation::Ack);
    let first = bth(&pair, opcode::RC_SEND_ONLY_INVALIDATE);
    let headers = Headers { ieth: Some(Ieth { rkey: WINDOW }), ..Headers::new(first) };
    let invalidating = forged(&pair, &headers, &[1; 10]);
    let behind = Headers::new(Bth { opcode: opcode::RC_SEND_ONLY, psn: first.psn.plus(1), ..first });
    let behind = forged(&pair, &behind, &[2; 10]);
    assert_eq!(pair.deliver(1, &behind), Disposition::Buffered);
    assert_eq!(pair.deliver(1, &invalidating), Disposition::Accepted);
    pair.turn(&mut no_fault);
    assert_eq!(pair.sent(1, Operation::Ack), before, "neither NAK nor ACK");
    pair.hosts[1].holds_keys = false;
    pair.turn(&mut no_fault);
    assert_eq!(pair.hosts[1].take(), [(9, Status::Success), (10, Status::Success)]);
}

/// A late answer has no effect: neither after a reset, nor in a queue pair of the same number.
#[test]
fn a_late_answer_is_nobodys() {
    for removed in [false, true] {
        let mut pair = bound(WINDOW);
        pair.hosts[1].holds_keys = true;
        pair.hosts[1].post(&invalidate(2, WINDOW));
        while pair.hosts[1].key_changes.is_empty() {
            pair.turn(&mut no_fault);
        }
        let late = pair.hosts[1].key_changes.pop_front().expect("asked for");
        let host = &mut pair.hosts[1];
        if removed {
            let qp = host.endpoint.remove_qp(host.qpn).expect("there");
            host.endpoint.insert_qp(Box::new(roced_transport::qp::Qp::new(*qp.config()))).expect("free");
        } else {
            use roced_types::{QpAttributes, attribute, state};
            let reset = QpAttributes { state: state::RESET, ..QpAttributes::default() };
            host.endpoint.modify_qp(host.qpn, attribute::STATE, &reset, None).expect("from anywhere");
        }
        pair.connect_one(1);
        pair.hosts[1].post(&invalidate(3, WINDOW));
        let host = &mut pair.hosts[1];
        host.endpoint.finish_key_change(pair.now, late.qpn, late.ticket, true, &mut host.app);
        while pair.hosts[1].key_changes.is_empty() {
            pair.turn(&mut no_fault);
        }
        let host = &mut pair.hosts[1];
        host.endpoint.finish_key_change(pair.now, late.qpn, late.ticket, true, &mut host.app);
        assert_eq!(pair.hosts[1].take(), [], "3 has not been answered");
        pair.hosts[1].holds_keys = false;
        pair.turn(&mut no_fault);
        assert_eq!(pair.hosts[1].take(), [(3, Status::Success)]);
    }
}

#[test]
fn a_queue_pair_that_fails_meanwhile_flushes_waiting_work() {
    let mut pair = bound(WINDOW);
    pair.hosts[1].holds_keys = true;
    pair.hosts[1].post_recv(9, &[sge(300_000, 4000)]);
    pair.hosts[0].post(&send_invalidate(2, &[], WINDOW));
    pair.hosts[1].post(&invalidate(3, WINDOW));
    while pair.hosts[1].key_changes.len() < 2 {
        pair.turn(&mut no_fault);
    }
    use roced_types::{QpAttributes, attribute, state};
    let host = &mut pair.hosts[1];
    let failed = QpAttributes { state: state::ERR, ..QpAttributes::default() };
    host.endpoint.modify_qp(host.qpn, attribute::STATE, &failed, None).expect("from anywhere");
    host.holds_keys = false;
    pair.turn(&mut no_fault);
    pair.turn(&mut no_fault);
    let mut ended = pair.hosts[1].take();
    ended.sort_unstable_by_key(|(wr_id, _)| *wr_id);
    assert_eq!(ended, [(3, Status::WorkRequestFlushed), (9, Status::WorkRequestFlushed)]);
}

/// A table entry of a window is like any other to the transport: an entry set by the control side
/// opens.
#[test]
fn keys_set_by_the_control_thread_open_at_once() {
    let mut pair = Pair::new(Settings::default());
    let qpn = pair.hosts[1].qpn;
    let region = pair.hosts[1].endpoint.remove_mr(KEY).expect("there");
    let zero_based = Mr { key: WINDOW, va: 0, length: 64, offset: AT, scope: Scope::WindowOf(qpn), ..region };
    pair.hosts[1].endpoint.set_mr(zero_based).expect("room");
    pair.hosts[0].post(&SendWork { remote_va: 60, rkey: WINDOW.0, ..work(1, SendOp::Write, &[sge(0, 4)], 0) });
    pair.hosts[0].post(&SendWork { remote_va: 61, rkey: WINDOW.0, ..work(2, SendOp::Write, &[sge(0, 4)], 0) });
    pair.settle();
    assert_eq!(pair.hosts[0].take(), [(1, Status::Success), (2, Status::RemoteAccess)]);
    assert_eq!(pair.hosts[1].app.writes, [(AT + 60, 4)]);
}

/// An unreliable connection binds and invalidates as a reliable one does; a late sender is not
/// told.
#[test]
fn an_unreliable_connection_has_windows() {
    let settings = Settings { service: ServiceType::Uc, ..Settings::default() };
    for key in [WINDOW, SHARED] {
        let mut pair = bound_by(key, settings);
        let before = pair.hosts[1].app.memory.clone();
        assert_eq!(write_ends(&mut pair, key, AT + BYTES - 10, 10), Status::Success);
        assert!(pair.hosts[1].app.memory != before, "it arrived");
        let after = pair.hosts[1].app.memory.clone();
        assert_eq!(write_ends(&mut pair, key, AT + BYTES - 10, 11), Status::Success, "it has left");
        assert!(pair.hosts[1].app.memory == after, "not a byte behind the window, nor before that");
        pair.hosts[1].post(&invalidate(2, key));
        pair.hosts[1].post(&work(3, SendOp::Send, &[], 0));
        pair.settle();
        assert_eq!(pair.hosts[1].take(), [(2, Status::Success), (3, Status::Success)]);
        assert_eq!(write_ends(&mut pair, key, AT, 10), Status::Success, "it has left");
        assert!(pair.hosts[1].app.memory == after, "the window is closed");
        assert_eq!((pair.hosts[0].state(), pair.hosts[1].state()), ("RTS", "RTS"));
    }
}

#[test]
fn a_change_that_cannot_be_made_stops_the_send_queue_of_an_unreliable_connection() {
    let mut pair = Pair::new(Settings { service: ServiceType::Uc, ..Settings::default() });
    pair.hosts[1].post(&work(1, SendOp::Send, &[], 0));
    pair.hosts[1].post(&invalidate(2, WINDOW));
    pair.hosts[1].post(&work(3, SendOp::Send, &[], 0));
    pair.settle();
    let flushed = (3, Status::WorkRequestFlushed);
    assert_eq!(pair.hosts[1].take(), [(1, Status::Success), (2, Status::LocalQpOperation), flushed]);
    assert_eq!(pair.hosts[1].state(), "SQE");
}

/// Packets behind a SEND with invalidate are dropped during the invalidation where nothing is
/// buffered (a peer with MigReq 0, the first second of a later life, a frame with borrowed
/// payload). They must then be requested: otherwise only the peer's ACK timer would bring them.
#[test]
fn packets_that_overtook_an_invalidation_and_were_dropped_are_requested() {
    for mig_req in [true, false] {
        let mut pair = bound_by(WINDOW, Settings::default());
        pair.hosts[1].holds_keys = true;
        for wr_id in 9..11 {
            pair.hosts[1].post_recv(wr_id, &[sge(300_000, 4000)]);
        }
        let first = Bth { mig_req, ack_request: true, ..bth(&pair, opcode::RC_SEND_ONLY_INVALIDATE) };
        let headers = Headers { ieth: Some(Ieth { rkey: WINDOW }), ..Headers::new(first) };
        let frame = forged(&pair, &headers, &[1; 10]);
        // An offer of these receives.
        answers(&mut pair);
        assert_eq!(pair.deliver(1, &frame), Disposition::Accepted);
        let behind = Bth { opcode: opcode::RC_SEND_ONLY, psn: first.psn.plus(1), ..first };
        let frame = forged(&pair, &Headers::new(behind), &[2; 10]);
        pair.deliver(1, &frame);
        pair.turn(&mut no_fault);
        pair.hosts[1].holds_keys = false;
        let begin = pair.answers.len();
        pair.run(Nanos::from_millis(50), no_fault);
        let said: Vec<_> = pair.answers[begin..].iter().map(|(_, _, aeth)| aeth.syndrome).collect();
        if mig_req {
            assert_eq!(pair.hosts[1].take().len(), 2);
        } else {
            assert!(
                said.contains(&Syndrome::Nak(NakCode::PsnSequence)),
                "said {said:?}, and the peer waits for its ACK timer"
            );
        }
    }
}

/// The control side takes longer than anything is held.
#[test]
fn packets_kept_behind_a_slow_invalidation_are_requested() {
    let mut pair = bound_by(WINDOW, Settings { timeout: 0, ..Settings::default() });
    pair.hosts[1].holds_keys = true;
    for wr_id in 9..11 {
        pair.hosts[1].post_recv(wr_id, &[sge(300_000, 4000)]);
    }
    let first = Bth { ack_request: true, ..bth(&pair, opcode::RC_SEND_ONLY_INVALIDATE) };
    let headers = Headers { ieth: Some(Ieth { rkey: WINDOW }), ..Headers::new(first) };
    let frame = forged(&pair, &headers, &[1; 10]);
    assert_eq!(pair.deliver(1, &frame), Disposition::Accepted);
    let behind = Bth { opcode: opcode::RC_SEND_ONLY, psn: first.psn.plus(1), ..first };
    let frame = forged(&pair, &Headers::new(behind), &[2; 10]);
    assert_eq!(pair.deliver(1, &frame), Disposition::Buffered);
    pair.run(Nanos::from_millis(10), no_fault);
    pair.hosts[1].holds_keys = false;
    let begin = pair.answers.len();
    pair.run(Nanos::from_millis(50), no_fault);
    let said: Vec<_> = pair.answers[begin..].iter().map(|(_, _, aeth)| aeth.syndrome).collect();
    assert!(said.contains(&Syndrome::Nak(NakCode::PsnSequence)), "said {said:?}");
}

/// An RNR NAK that has not left when the SEND with invalidate comes again and finds its receive is
/// no word about it any more.
#[test]
fn an_rnr_nak_that_became_needless_is_not_given() {
    let mut pair = bound_by(WINDOW, Settings::default());
    pair.hosts[1].holds_keys = true;
    let first = Bth { ack_request: true, ..bth(&pair, opcode::RC_SEND_ONLY_INVALIDATE) };
    let headers = Headers { ieth: Some(Ieth { rkey: WINDOW }), ..Headers::new(first) };
    let frame = forged(&pair, &headers, &[1; 10]);
    pair.deliver(1, &frame);
    pair.hosts[1].post_recv(9, &[sge(300_000, 4000)]);
    assert_eq!(pair.deliver(1, &frame), Disposition::Accepted);
    assert_eq!(answers(&mut pair), [], "it is being executed");
}

/// The acknowledgment that the needless RNR NAK would have given is given all the same, though the
/// key takes its time.
#[test]
fn an_acknowledgement_within_a_needless_rnr_nak_is_given() {
    let mut pair = bound_by(WINDOW, Settings { credits: [false; 2], ..Settings::default() });
    pair.hosts[1].holds_keys = true;
    let first = Bth { ack_request: true, ..bth(&pair, opcode::RC_WRITE_ONLY) };
    let reth = Some(Reth { va: VA, rkey: KEY, length: 10 });
    let frame = forged(&pair, &Headers { reth, ..Headers::new(first) }, &[1; 10]);
    assert_eq!(pair.deliver(1, &frame), Disposition::Accepted);
    let behind = Bth { opcode: opcode::RC_SEND_ONLY_INVALIDATE, psn: first.psn.plus(1), ..first };
    let frame = forged(&pair, &Headers { ieth: Some(Ieth { rkey: WINDOW }), ..Headers::new(behind) }, &[1; 10]);
    assert_eq!(pair.deliver(1, &frame), Disposition::Dropped(DropReason::ReceiverNotReady));
    pair.hosts[1].post_recv(9, &[sge(300_000, 4000)]);
    assert_eq!(pair.deliver(1, &frame), Disposition::Accepted);
    assert_eq!(answers(&mut pair), [(Syndrome::ACK, 0)]);
}
