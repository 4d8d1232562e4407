//! Shared receive queues: several queue pairs of host 1 take from one.

use roced_transport::{
    clock::Nanos,
    counters::QpCount,
    qp::{Qp, QpConfig, ServiceType},
    reject::{Disposition, DropReason, Reject},
    srq::{Srq, SrqConfig},
    wire::{
        bth::Bth,
        headers::Headers,
        ieth::Ieth,
        opcode::{self, Opcode},
    },
    work::RecvWork,
};
use roced_types::{Pdn, QpAttributes, Qpn, SendOp, Sge, Srqn, Status, attribute, event, state};

use crate::{
    datagram::inject,
    host::{CQ, Fate, OUR_QKEY, PD, Pair, SIZES, Settings, bth, forged, no_fault, sge, work},
    keys::{WINDOW, bound_by},
};

fn pair(settings: Settings) -> Pair {
    Pair::new(Settings { srq: Some(PD), ..settings })
}

fn post(pair: &mut Pair, wr_id: u64, sges: &[Sge]) {
    let srqn = pair.srqn();
    let endpoint = &mut pair.hosts[1].endpoint;
    assert!(endpoint.srq_room(srqn) > 0);
    endpoint.post_srq_recv(srqn, &RecvWork { wr_id, sges }).expect("it is there");
}

fn left(pair: &Pair) -> u32 {
    pair.hosts[1].endpoint.srq(pair.srqn()).expect("there").len()
}

fn set_limit(pair: &mut Pair, limit: u32) {
    let srqn = pair.srqn();
    pair.hosts[1].endpoint.set_srq_limit(srqn, limit).expect("there");
}

fn limit_events(pair: &mut Pair) -> Vec<Srqn> {
    let endpoint = &mut pair.hosts[1].endpoint;
    std::iter::from_fn(|| endpoint.poll_srq_limit()).collect()
}

fn events(pair: &mut Pair) -> Vec<(Qpn, u32)> {
    let endpoint = &mut pair.hosts[1].endpoint;
    std::iter::from_fn(|| endpoint.poll_event()).map(|event| (event.qpn, event.kind)).collect()
}

fn go(pair: &mut Pair, state: u32) {
    let host = &mut pair.hosts[1];
    let attributes = QpAttributes { state, ..QpAttributes::default() };
    host.endpoint.modify_qp(host.qpn, attribute::STATE, &attributes, None).expect("from anywhere");
}

/// Messages of several packets on two connections, packet by packet in turn: each has a buffer of
/// its own from its first packet on.
#[test]
fn messages_that_interleave_take_an_entry_each() {
    let mut pair = pair(Settings { window: 1, ..Settings::default() });
    pair.connect_another(6);
    for at in 0..6 {
        post(&mut pair, 100 + at, &[sge(500_000 + at * 10_000, 10_000)]);
    }
    for (connection, wr_id) in [(5, 0), (6, 1), (5, 2), (6, 3)] {
        pair.turn_to(connection);
        pair.hosts[0].post(&work(wr_id, SendOp::Send, &[sge(wr_id * 10_000, 9_000)], 0));
    }
    pair.settle();
    let received: Vec<_> = pair.hosts[1].app.completions.drain(..).collect();
    assert_eq!(received.len(), 4);
    let mut ids: Vec<_> = received.iter().map(|cqe| cqe.wr_id).collect();
    ids.sort_unstable();
    assert_eq!(ids, [100, 101, 102, 103], "each once");
    // Of each queue pair in order, and each buffer has one whole message.
    for (index, messages) in [(5, [0, 2]), (6, [1, 3])] {
        let qpn = Qpn::new(pair.hosts[1].qpn.endpoint(), index);
        for (cqe, message) in received.iter().filter(|cqe| cqe.qpn == qpn).zip(messages) {
            assert_eq!((cqe.status, cqe.byte_len), (Status::Success, 9_000));
            let buffer = (500_000 + (cqe.wr_id - 100) * 10_000) as usize;
            let sent = &pair.hosts[0].app.memory[message * 10_000..][..9_000];
            assert!(pair.hosts[1].app.memory[buffer..][..9_000] == *sent, "message {message}");
        }
    }
    assert_eq!(left(&pair), 2);
}

#[test]
fn an_empty_queue_is_an_rnr_nak_and_later_messages_are_received() {
    let mut pair = pair(Settings { min_rnr_timer: 1, ..Settings::default() });
    pair.hosts[0].post(&work(1, SendOp::Send, &[sge(0, 3000)], 0));
    pair.hosts[0].post(&work(2, SendOp::WriteImm, &[], 0));
    assert!(!pair.run(Nanos::from_millis(2), no_fault), "it tries for ever");
    assert!(pair.hosts[1].count(QpCount::RnrNakSent) > 0);
    post(&mut pair, 7, &[sge(500_000, 3000)]);
    post(&mut pair, 8, &[]);
    pair.settle();
    assert_eq!(pair.hosts[1].take(), [(7, Status::Success), (8, Status::Success)]);
}

/// A SEND with lost, repeated and late packets takes one entry; a WRITE without immediate, a READ
/// and a duplicate take none.
#[test]
fn a_shared_receive_is_taken_once_under_any_network_faults() {
    let mut pair = pair(Settings { timeout: 8, ..Settings::default() });
    for wr_id in 0..40 {
        post(&mut pair, 100 + wr_id, &[sge(500_000, 3000)]);
    }
    for wr_id in 0..10 {
        pair.hosts[0].post(&work(wr_id, SendOp::Send, &[sge(0, 3000)], 0));
        pair.hosts[0].post(&work(20 + wr_id, SendOp::Write, &[sge(0, 3000)], 500_000));
        pair.hosts[0].post(&work(40 + wr_id, SendOp::Read, &[sge(600_000, 3000)], 0));
        pair.hosts[0].post(&work(60 + wr_id, SendOp::WriteImm, &[sge(0, 2000)], 500_000));
    }
    let mut nth = 0;
    let fate = |_: usize, _: Opcode, _: usize| {
        nth += 1;
        match nth % 23 {
            3 => Fate::Drop,
            7 => Fate::Duplicate,
            11 => Fate::Late(6),
            _ => Fate::Deliver,
        }
    };
    assert!(pair.run(Nanos::from_millis(120_000), fate), "it comes to rest");
    let expected: Vec<_> = (100..120).map(|wr_id| (wr_id, Status::Success)).collect();
    assert_eq!(pair.hosts[1].take(), expected);
    assert_eq!(left(&pair), 20);
}

/// A packet that is held for its turn has taken no receive: another queue pair may.
#[test]
fn an_early_message_takes_its_entry_in_its_turn() {
    let mut pair = Pair::established(Settings { srq: Some(PD), ..Settings::default() });
    for wr_id in 0..3 {
        post(&mut pair, wr_id, &[sge(500_000, 100)]);
    }
    set_limit(&mut pair, 2);
    let only = bth(&pair, opcode::RC_SEND_ONLY);
    let frames = [1, 2].map(|ahead| {
        let headers = Headers::new(Bth { psn: only.psn.plus(ahead), ..only });
        forged(&pair, &headers, &[7; 10])
    });
    for frame in &frames {
        assert_eq!(pair.deliver(1, frame), Disposition::Buffered);
    }
    assert_eq!((left(&pair), limit_events(&mut pair)), (3, vec![]));
    let first = forged(&pair, &Headers::new(only), &[7; 10]);
    assert_eq!(pair.deliver(1, &first), Disposition::Accepted);
    assert_eq!(pair.hosts[1].take(), [(0, Status::Success), (1, Status::Success), (2, Status::Success)]);
    assert_eq!((left(&pair), limit_events(&mut pair)), (0, vec![pair.srqn()]));
}

/// The message of a SEND with invalidate has its receive while the key waits to be made invalid;
/// when the queue pair is reset by then it goes back.
#[test]
fn a_message_that_waits_for_its_key_has_its_entry() {
    for resets in [false, true] {
        let mut pair = bound_by(WINDOW, Settings { srq: Some(PD), ..Settings::default() });
        pair.hosts[1].holds_keys = true;
        post(&mut pair, 1, &[sge(500_000, 100)]);
        post(&mut pair, 2, &[sge(500_000, 100)]);
        let headers =
            Headers { ieth: Some(Ieth { rkey: WINDOW }), ..Headers::new(bth(&pair, opcode::RC_SEND_ONLY_INVALIDATE)) };
        let frame = forged(&pair, &headers, &[1; 10]);
        assert_eq!(pair.deliver(1, &frame), Disposition::Accepted);
        pair.turn(&mut no_fault);
        assert_eq!((left(&pair), pair.hosts[1].key_changes.len()), (1, 1));
        if resets {
            go(&mut pair, state::RESET);
            assert_eq!(left(&pair), 2);
        }
        pair.hosts[1].holds_keys = false;
        pair.settle();
        let expected: &[_] = if resets { &[] } else { &[(1, Status::Success)] };
        assert_eq!((pair.hosts[1].take(), left(&pair)), (expected.to_vec(), 1 + u32::from(resets)));
    }
}

#[test]
fn the_limit_fires_once_and_is_disarmed() {
    let mut pair = pair(Settings::default());
    for wr_id in 0..10 {
        post(&mut pair, wr_id, &[]);
    }
    set_limit(&mut pair, 8);
    let send = |pair: &mut Pair, count| {
        (0..count).for_each(|wr_id| pair.hosts[0].post(&work(wr_id, SendOp::Send, &[], 0)));
        pair.settle();
    };
    send(&mut pair, 2);
    assert_eq!(limit_events(&mut pair), [], "exactly the limit is not below it");
    send(&mut pair, 1);
    assert_eq!(limit_events(&mut pair), [pair.srqn()]);
    assert_eq!(pair.hosts[1].endpoint.srq(pair.srqn()).expect("there").limit(), 0);
    send(&mut pair, 3);
    assert_eq!(limit_events(&mut pair), [], "once");
    // Below it already: reported at once. Disarmed, or armed anew before the report: once at most.
    set_limit(&mut pair, 5);
    set_limit(&mut pair, 6);
    assert_eq!(limit_events(&mut pair), [pair.srqn()]);
    set_limit(&mut pair, 5);
    set_limit(&mut pair, 0);
    send(&mut pair, 4);
    assert_eq!(limit_events(&mut pair), []);
    assert_eq!(left(&pair), 0);
}

#[test]
fn a_failed_queue_pair_flushes_only_its_own_receives() {
    let mut pair = pair(Settings::default());
    for wr_id in 0..4 {
        post(&mut pair, wr_id, &[sge(500_000, 10_000)]);
    }
    // In the middle of a message.
    pair.hosts[0].post(&work(1, SendOp::Send, &[sge(0, 9000)], 0));
    pair.run(Nanos::from_millis(1), |from, _, nth| if from == 0 && nth > 2 { Fate::Drop } else { Fate::Deliver });
    assert_eq!(left(&pair), 3);
    events(&mut pair);
    go(&mut pair, state::ERR);
    pair.run(Nanos::from_millis(1), |_, _, _| Fate::Drop);
    assert_eq!(pair.hosts[1].take(), [(0, Status::WorkRequestFlushed)]);
    let qpn = pair.hosts[1].qpn;
    assert_eq!(events(&mut pair), [(qpn, event::QP_LAST_WQE)]);
    assert_eq!(left(&pair), 3);
    // Another takes them.
    pair.connect_another(7);
    pair.hosts[0].post(&work(2, SendOp::Send, &[sge(0, 100)], 0));
    pair.run(Nanos::from_millis(100), no_fault);
    assert_eq!(pair.hosts[1].take(), [(1, Status::Success)]);
    assert_eq!(events(&mut pair), [], "of the other one");
}

#[test]
fn a_queue_pair_that_ends_by_itself_tells_its_last_wqe_too() {
    let mut pair = pair(Settings::default());
    post(&mut pair, 1, &[sge(500_000, 10)]);
    post(&mut pair, 2, &[sge(500_000, 10)]);
    pair.hosts[0].post(&work(1, SendOp::Send, &[sge(0, 11)], 0));
    pair.settle();
    assert_eq!(pair.hosts[1].take(), [(1, Status::LocalLength)]);
    let kinds: Vec<_> = events(&mut pair).into_iter().map(|(_, kind)| kind).collect();
    assert_eq!(kinds, [event::QP_REQUEST_ERROR, event::QP_LAST_WQE]);
    assert_eq!(left(&pair), 1);
}

#[test]
fn an_unused_receive_returns_to_the_shared_queue_on_reset_or_removal() {
    for ends in [false, true] {
        let mut pair = pair(Settings::default());
        post(&mut pair, 1, &[sge(500_000, 10_000)]);
        post(&mut pair, 2, &[sge(500_000, 10_000)]);
        pair.hosts[0].post(&work(1, SendOp::Send, &[sge(0, 9000)], 0));
        pair.run(Nanos::from_millis(1), |from, _, nth| if from == 0 && nth > 2 { Fate::Drop } else { Fate::Deliver });
        assert_eq!(left(&pair), 1);
        if ends {
            let qpn = pair.hosts[1].qpn;
            pair.hosts[1].endpoint.remove_qp(qpn).expect("there");
        } else {
            go(&mut pair, state::RESET);
        }
        assert_eq!(left(&pair), 2);
        assert_eq!(pair.hosts[1].take(), []);
        pair.connect_another(7);
        for wr_id in [2, 3] {
            pair.hosts[0].post(&work(wr_id, SendOp::Send, &[sge(0, 100)], 0));
        }
        pair.run(Nanos::from_millis(100), no_fault);
        assert_eq!(pair.hosts[1].take(), [(1, Status::Success), (2, Status::Success)], "in their order");
    }
}

#[test]
fn work_names_the_regions_of_the_queues_own_domain() {
    let mut pair = Pair::new(Settings { srq: Some(Pdn(77)), ..Settings::default() });
    post(&mut pair, 1, &[sge(500_000, 100)]);
    pair.hosts[0].post(&work(1, SendOp::Send, &[sge(0, 100)], 0));
    pair.settle();
    assert_eq!(pair.hosts[1].take(), [(1, Status::LocalProtection)]);
}

#[test]
fn a_full_queue_says_when_it_has_room() {
    let mut pair = pair(Settings::default());
    for wr_id in 0..SIZES.recv_wrs {
        post(&mut pair, wr_id.into(), &[]);
    }
    let srqn = pair.srqn();
    assert_eq!(pair.hosts[1].endpoint.srq_room(srqn), 0);
    assert_eq!(pair.hosts[1].endpoint.take_unblocked_srq(), None);
    pair.hosts[0].post(&work(1, SendOp::Send, &[], 0));
    pair.settle();
    assert_eq!(pair.hosts[1].endpoint.take_unblocked_srq(), Some(srqn));
    assert_eq!(pair.hosts[1].endpoint.take_unblocked_srq(), None);
    assert_eq!(pair.hosts[1].endpoint.srq_room(srqn), 1);
    // Asked again and again, it is named once.
    for _ in 0..3 {
        post(&mut pair, 1, &[]);
        assert_eq!(pair.hosts[1].endpoint.srq_room(srqn), 0);
        pair.hosts[0].post(&work(1, SendOp::Send, &[], 0));
        pair.settle();
    }
    let endpoint = &mut pair.hosts[1].endpoint;
    assert_eq!([endpoint.take_unblocked_srq(), endpoint.take_unblocked_srq()], [Some(srqn), None]);
}

#[test]
fn an_unreliable_connection_takes_from_a_shared_queue_too() {
    let mut pair = pair(Settings { service: ServiceType::Uc, ..Settings::default() });
    pair.hosts[0].post(&work(1, SendOp::Send, &[sge(0, 3000)], 0));
    pair.settle();
    post(&mut pair, 5, &[sge(500_000, 3000)]);
    // A message that began without any is lost, and takes none.
    pair.hosts[0].post(&work(2, SendOp::WriteImm, &[sge(0, 3000)], 500_000));
    pair.settle();
    assert_eq!(pair.hosts[1].take(), [(5, Status::Success)]);
    assert_eq!(left(&pair), 0);
}

/// Datagrams take one each; a refused or too long one takes none, and leaves none behind with its
/// queue pair.
#[test]
fn datagrams_take_from_a_shared_queue_too() {
    let with = |pd| Pair::new(Settings { service: ServiceType::Ud, srq: Some(pd), ..Settings::default() });
    let mut pair = with(PD);
    let qpn = pair.hosts[1].qpn;
    let dropped = |reason| Disposition::Dropped(reason);
    assert_eq!(inject(&mut pair, qpn, OUR_QKEY, b"nobody waits"), dropped(DropReason::ReceiverNotReady));
    post(&mut pair, 1, &[]);
    post(&mut pair, 2, &[sge(500_000, 100)]);
    set_limit(&mut pair, 2);
    assert_eq!(inject(&mut pair, qpn, OUR_QKEY ^ 1, b"hello"), dropped(DropReason::BadQkey));
    assert_eq!(inject(&mut pair, qpn, OUR_QKEY, b"too long"), dropped(DropReason::InvalidRequest));
    assert_eq!(
        (left(&pair), limit_events(&mut pair)),
        (2, vec![]),
        "nothing is taken, so nothing fell below the limit"
    );

    let mut pair = with(PD);
    pair.connect_another(6);
    for wr_id in 0..3 {
        post(&mut pair, wr_id, &[sge(500_000, 100)]);
    }
    for index in [5, 6, 5] {
        pair.turn_to(index);
        let qpn = pair.hosts[1].qpn;
        assert_eq!(inject(&mut pair, qpn, OUR_QKEY, b"well"), Disposition::Accepted);
        assert_eq!(pair.hosts[1].app.completions.last().map(|cqe| cqe.qpn), Some(qpn));
        assert_eq!(pair.hosts[1].app.memory[500_040..500_044], *b"well");
    }
    assert_eq!(pair.hosts[1].take(), [(0, Status::Success), (1, Status::Success), (2, Status::Success)]);

    // Regions are those of the queue's domain.
    let mut pair = with(Pdn(77));
    post(&mut pair, 1, &[sge(500_000, 100)]);
    assert_eq!(inject(&mut pair, qpn, OUR_QKEY, b"well"), dropped(DropReason::InvalidRequest));
    assert_eq!(pair.hosts[1].take(), [(1, Status::LocalProtection)]);
}

#[test]
fn missing_objects_are_refused() {
    let mut pair = pair(Settings::default());
    let (srqn, endpoint) = (pair.srqn(), pair.hosts[1].qpn.endpoint());
    let other = Srqn::new(pair.hosts[0].qpn.endpoint(), srqn.index());
    let missing = Srqn::new(endpoint, 0);
    let host = &mut pair.hosts[1];
    for srqn in [other, missing, Srqn::new(endpoint, 9)] {
        assert_eq!(host.endpoint.srq_room(srqn), 0);
        let posted = host.endpoint.post_srq_recv(srqn, &RecvWork { wr_id: 1, sges: &[] });
        assert_eq!(posted, Err(Reject::NoSuchSrq(srqn)));
        assert_eq!(host.endpoint.set_srq_limit(srqn, 1), Err(Reject::NoSuchSrq(srqn)));
        assert!(host.endpoint.srq(srqn).is_none() && host.endpoint.remove_srq(srqn).is_none());
    }
    let srq = |srqn| Box::new(Srq::new(SrqConfig { srqn, pd: PD, sizes: SIZES }));
    let refused = |outcome: Result<(), (Box<Srq>, Reject)>| outcome.expect_err("refused").1;
    assert_eq!(refused(host.endpoint.insert_srq(srq(srqn))), Reject::NoRoom);
    assert_eq!(refused(host.endpoint.insert_srq(srq(other))), Reject::NoSuchSrq(other));
    let config = QpConfig {
        qpn: Qpn::new(endpoint, 9),
        service: ServiceType::Rc,
        pd: PD,
        send_cq: CQ,
        recv_cq: CQ,
        sizes: SIZES,
        signal_all: false,
        window_packets: 64,
        credits: true,
    };
    let qp = Qp::new(config).with_srq(srq(missing).config());
    let outcome = host.endpoint.insert_qp(Box::new(qp)).map_err(|(_, reject)| reject);
    assert_eq!(outcome, Err(Reject::NoSuchSrq(missing)));
    assert_eq!(host.endpoint.remove_srq(srqn).expect("there").len(), 0);
}
