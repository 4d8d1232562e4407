//! Full queues, full completion queues, states, paths that come and go.

use roced_transport::{clock::Nanos, counters::QpCount, qp::PathState, reject::Reject};
use roced_types::{QpAttributes, SendOp, Status, attribute, event, state};

use crate::host::{Fate, Pair, SIZES, Settings, no_fault, sge, work};

#[test]
fn a_full_send_queue_says_when_it_has_room() {
    let mut pair = Pair::new(Settings::default());
    for wr_id in 0..SIZES.send_wrs {
        pair.hosts[0].post(&work(wr_id.into(), SendOp::Write, &[], 0));
    }
    let qpn = pair.hosts[0].qpn;
    assert_eq!(pair.hosts[0].endpoint.send_room(qpn), 0);
    assert_eq!(pair.hosts[0].endpoint.take_unblocked(), None);
    pair.settle();
    assert_eq!(pair.hosts[0].endpoint.take_unblocked(), Some(qpn));
    assert_eq!(pair.hosts[0].endpoint.take_unblocked(), None);
    assert_eq!(pair.hosts[0].endpoint.send_room(qpn), SIZES.send_wrs);
}

#[test]
fn a_full_receive_queue_says_when_it_has_room() {
    let mut pair = Pair::new(Settings::default());
    for wr_id in 0..SIZES.recv_wrs {
        pair.hosts[1].post_recv(wr_id.into(), &[]);
    }
    let qpn = pair.hosts[1].qpn;
    assert_eq!(pair.hosts[1].endpoint.recv_room(qpn), 0);
    pair.hosts[0].post(&work(1, SendOp::Send, &[], 0));
    pair.settle();
    assert_eq!(pair.hosts[1].endpoint.take_unblocked(), Some(qpn));
    assert_eq!(pair.hosts[1].endpoint.recv_room(qpn), 1);
}

#[test]
fn a_completion_queue_without_room_ends_the_queue_pair_loudly() {
    let mut pair = Pair::new(Settings::default());
    pair.hosts[0].app.cq_room = 2;
    for wr_id in 0..5 {
        pair.hosts[0].post(&work(wr_id, SendOp::Write, &[], 0));
    }
    pair.settle();
    assert_eq!(pair.hosts[0].take().len(), 2);
    assert_eq!(pair.hosts[0].state(), "ERR");
    assert!(pair.hosts[0].count(QpCount::CqOverrun) > 0);
    assert_eq!(pair.hosts[0].endpoint.poll_event().map(|event| event.kind), Some(event::CQ_ERROR));
    let failure = pair.hosts[0].endpoint.poll_failure().expect("it failed");
    assert_eq!(failure.cause.to_string(), "completion queue overrun");
}

#[test]
fn going_to_error_flushes_everything_in_order() {
    let mut pair = Pair::new(Settings::default());
    for wr_id in 0..5 {
        pair.hosts[0].post(&work(wr_id, SendOp::Write, &[sge(0, 5000)], 0));
        pair.hosts[0].post_recv(100 + wr_id, &[]);
    }
    let host = &mut pair.hosts[0];
    let error = QpAttributes { state: state::ERR, ..QpAttributes::default() };
    host.endpoint.modify_qp(host.qpn, attribute::STATE, &error, None).expect("from anywhere");
    pair.settle();
    let expected: Vec<_> = (0..5).chain(100..105).map(|wr_id| (wr_id, Status::WorkRequestFlushed)).collect();
    assert_eq!(pair.hosts[0].take(), expected);
    // Later posts are flushed as well.
    pair.hosts[0].post(&work(9, SendOp::Write, &[], 0));
    pair.hosts[0].post_recv(10, &[]);
    pair.settle();
    assert_eq!(pair.hosts[0].take(), [(9, Status::WorkRequestFlushed), (10, Status::WorkRequestFlushed)]);
    assert_eq!(pair.trace.len(), 0);
}

#[test]
fn a_reset_queue_pair_is_as_new() {
    let mut pair = Pair::new(Settings::default());
    pair.hosts[0].post(&work(1, SendOp::Write, &[sge(0, 100_000)], 0));
    for _ in 0..2 {
        pair.turn(&mut no_fault);
    }
    for host in &mut pair.hosts {
        host.endpoint.modify_qp(host.qpn, attribute::STATE, &QpAttributes::default(), None).expect("from anywhere");
    }
    pair.settle();
    assert!(pair.hosts[0].take().is_empty(), "posted work is forgotten");
    pair.connect();
    pair.hosts[0].post(&work(2, SendOp::Read, &[sge(0, 50_000)], 0));
    pair.settle();
    assert_eq!(pair.hosts[0].take(), [(2, Status::Success)]);
}

#[test]
fn a_removed_queue_pair_leaves_nothing_behind() {
    let mut pair = Pair::new(Settings::default());
    pair.hosts[0].post(&work(1, SendOp::Write, &[sge(0, 50_000)], 0));
    for _ in 0..3 {
        pair.turn(&mut no_fault);
    }
    let host = &mut pair.hosts[0];
    host.endpoint.remove_qp(host.qpn).expect("there");
    assert!(!host.endpoint.wants_transmit());
    assert_eq!(host.endpoint.poll_timeout(), Nanos::NEVER);
    assert!(host.endpoint.counters().get(QpCount::RequestPackets) > 0, "its counts are kept");
    assert_eq!(host.endpoint.set_path(host.qpn, PathState::Resolving), Err(Reject::NoSuchQp(host.qpn)));
}

#[test]
fn frames_wait_while_the_next_hop_is_asked_for() {
    let mut pair = Pair::new(Settings::default());
    let (qpn, path) = (pair.hosts[0].qpn, pair.path(0));
    pair.hosts[0].endpoint.set_path(qpn, PathState::Resolving).expect("there");
    pair.hosts[0].post(&work(1, SendOp::Write, &[sge(0, 10)], 0));
    pair.run(Nanos::from_millis(1000), no_fault);
    assert_eq!((pair.trace.len(), pair.hosts[0].count(QpCount::AckTimeout)), (0, 0));
    pair.hosts[0].endpoint.set_path(qpn, PathState::Ready(path)).expect("there");
    pair.settle();
    assert_eq!(pair.hosts[0].take(), [(1, Status::Success)]);
}

#[test]
fn an_unreachable_next_hop_is_a_network_that_loses_all() {
    let mut pair = Pair::new(Settings { retry_cnt: 1, ..Settings::default() });
    let qpn = pair.hosts[0].qpn;
    pair.hosts[0].endpoint.set_path(qpn, PathState::Unreachable).expect("there");
    pair.hosts[0].post(&work(1, SendOp::Write, &[sge(0, 10)], 0));
    pair.settle();
    assert_eq!(pair.hosts[0].take(), [(1, Status::TransportRetryExceeded)]);
    assert_eq!(pair.hosts[0].count(QpCount::Unreachable), 2);
    assert_eq!(pair.trace.len(), 0);
}

#[test]
fn a_rate_limit_is_kept() {
    let mut pair = Pair::new(Settings { mtu: 1024, ..Settings::default() });
    let host = &mut pair.hosts[0];
    let limit = QpAttributes { rate_limit_kbit_per_s: 80_000, ..QpAttributes::default() };
    host.endpoint.modify_qp(host.qpn, attribute::RATE_LIMIT, &limit, None).expect("allowed in RTS");
    host.post(&work(1, SendOp::Write, &[sge(0, 500_000)], 0));
    let start = pair.now;
    pair.settle();
    let took = pair.hosts[0].app.completions[0].time.0 - start.0;
    // 500,000 bytes and their headers (about 62 each 1024) at 10 MB/s.
    assert!((52_000_000..56_000_000).contains(&took), "{took} ns");
    assert_eq!(pair.hosts[0].take(), [(1, Status::Success)]);
}

#[test]
fn a_timeout_of_zero_waits_for_ever() {
    let mut pair = Pair::new(Settings { timeout: 0, ..Settings::default() });
    pair.hosts[0].post(&work(1, SendOp::Write, &[sge(0, 10)], 0));
    assert!(pair.run(Nanos::from_millis(60_000), |_, _, _| Fate::Drop), "no timer runs");
    assert_eq!(pair.hosts[0].state(), "RTS");
}
