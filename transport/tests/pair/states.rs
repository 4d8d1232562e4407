//! States beyond the straight way: a send queue that drains, attributes that change meanwhile, and
//! events that tell of it.

use roced_transport::{
    clock::Nanos,
    counters::QpCount,
    qp::{QpEvent, ServiceType, Subject},
    reject::Reject,
    wire::opcode::Operation,
};
use roced_types::{QpAttributes, SendOp, Status, access, attribute, event, state};

use crate::host::{CQ, Fate, Host, Pair, Settings, no_fault, sge, work};

fn modify(host: &mut Host, mask: u32, attributes: &QpAttributes) -> Result<(), Reject> {
    host.endpoint.modify_qp(host.qpn, mask, attributes, None)
}

fn go(host: &mut Host, state: u32) -> Result<(), Reject> {
    modify(host, attribute::STATE, &QpAttributes { state, ..QpAttributes::default() })
}

/// To SQD, to be told when it has drained.
fn drain(host: &mut Host) {
    let attributes = QpAttributes { state: state::SQD, sq_drained_event: 1, ..QpAttributes::default() };
    modify(host, attribute::STATE | attribute::SQ_DRAINED_EVENT, &attributes).expect("from RTS");
}

fn is_draining(host: &Host) -> bool {
    host.endpoint.query_qp(host.qpn).expect("there").sq_draining == 1
}

fn events(host: &mut Host) -> Vec<u32> {
    std::iter::from_fn(|| host.endpoint.poll_event()).map(|event| event.kind).collect()
}

#[test]
fn a_draining_queue_finishes_begun_requests_and_begins_none() {
    let mut pair = Pair::new(Settings { window: 4, ..Settings::default() });
    pair.hosts[0].post(&work(1, SendOp::Write, &[sge(0, 20 * 1024)], 0));
    pair.hosts[0].post(&work(2, SendOp::Write, &[sge(0, 1024)], 0));
    pair.turn(&mut no_fault);
    drain(&mut pair.hosts[0]);
    assert!(is_draining(&pair.hosts[0]));
    assert_eq!(events(&mut pair.hosts[0]), []);
    pair.settle();
    assert_eq!(pair.hosts[0].take(), [(1, Status::Success)]);
    assert_eq!(pair.sent(0, Operation::Write), 20);
    assert!(!is_draining(&pair.hosts[0]));
    assert_eq!(events(&mut pair.hosts[0]), [event::SQ_DRAINED], "once");
    // Work posted meanwhile waits as well; then all continues in order.
    pair.hosts[0].post(&work(3, SendOp::Write, &[sge(0, 1)], 0));
    pair.settle();
    assert_eq!(pair.hosts[0].take(), []);
    go(&mut pair.hosts[0], state::RTS).expect("drained");
    pair.settle();
    assert_eq!(pair.hosts[0].take(), [(2, Status::Success), (3, Status::Success)]);
    assert_eq!(events(&mut pair.hosts[0]), []);
}

#[test]
fn an_idle_queue_drains_at_once_and_reports_only_on_request() {
    let mut pair = Pair::new(Settings::default());
    drain(&mut pair.hosts[0]);
    assert_eq!(events(&mut pair.hosts[0]), [event::SQ_DRAINED]);
    go(&mut pair.hosts[1], state::SQD).expect("from RTS");
    assert_eq!(events(&mut pair.hosts[1]), []);
    assert!(!is_draining(&pair.hosts[1]));
}

#[test]
fn while_a_queue_drains_the_only_ways_lead_to_reset_and_error() {
    for (to, allowed) in [(state::RTS, false), (state::SQD, false), (state::ERR, true), (state::RESET, true)] {
        let mut pair = Pair::new(Settings::default());
        pair.hosts[0].post(&work(1, SendOp::Write, &[sge(0, 5000)], 0));
        pair.turn(&mut no_fault);
        drain(&mut pair.hosts[0]);
        let outcome = go(&mut pair.hosts[0], to);
        let refused = Reject::InvalidState { from: state::SQD, to };
        assert_eq!(outcome, if allowed { Ok(()) } else { Err(refused) }, "{to}");
    }
}

#[test]
fn packets_lost_while_a_queue_drains_are_retransmitted() {
    let mut pair = Pair::new(Settings { timeout: 8, ..Settings::default() });
    pair.hosts[0].post(&work(1, SendOp::Write, &[sge(0, 3000)], 500_000));
    pair.hosts[0].post(&work(2, SendOp::Read, &[sge(600_000, 3000)], 0));
    pair.turn(&mut no_fault);
    drain(&mut pair.hosts[0]);
    let mut nth = 0;
    let lossy = |_, _, _| {
        nth += 1;
        if nth % 3 == 0 { Fate::Drop } else { Fate::Deliver }
    };
    assert!(pair.run(Nanos::from_millis(60_000), lossy), "it comes to rest");
    assert_eq!(pair.hosts[0].take(), [(1, Status::Success), (2, Status::Success)]);
    assert_eq!(events(&mut pair.hosts[0]), [event::SQ_DRAINED]);
}

#[test]
fn a_drained_queue_pair_receives_as_before() {
    let mut pair = Pair::new(Settings::default());
    drain(&mut pair.hosts[1]);
    pair.hosts[1].post_recv(9, &[sge(700_000, 2000)]);
    pair.hosts[0].post(&work(1, SendOp::Send, &[sge(0, 2000)], 0));
    pair.hosts[0].post(&work(2, SendOp::Read, &[sge(600_000, 3000)], 0));
    pair.settle();
    assert_eq!(pair.hosts[0].take(), [(1, Status::Success), (2, Status::Success)]);
    assert_eq!(pair.hosts[1].take(), [(9, Status::Success)]);
}

#[test]
fn attributes_of_a_drained_queue_pair_change_and_count_from_then_on() {
    let mut pair = Pair::new(Settings { rnr_retry: 0, ..Settings::default() });
    pair.hosts[0].post(&work(1, SendOp::Write, &[sge(0, 100)], 0));
    pair.turn(&mut no_fault);
    drain(&mut pair.hosts[0]);
    pair.settle();
    let change = QpAttributes {
        timeout: 9,
        retry_cnt: 1,
        rnr_retry: 3,
        max_rd_atomic: 2,
        max_dest_rd_atomic: 3,
        min_rnr_timer: 1,
        access: access::REMOTE_READ,
        ..QpAttributes::default()
    };
    let mask = attribute::TIMEOUT
        | attribute::RETRY_CNT
        | attribute::RNR_RETRY
        | attribute::MAX_QP_RD_ATOMIC
        | attribute::MAX_DEST_RD_ATOMIC
        | attribute::MIN_RNR_TIMER
        | attribute::ACCESS_FLAGS;
    modify(&mut pair.hosts[0], mask, &change).expect("drained");
    let now = pair.hosts[0].endpoint.query_qp(pair.hosts[0].qpn).expect("there");
    assert_eq!(
        (now.timeout, now.retry_cnt, now.rnr_retry, now.max_rd_atomic, now.max_dest_rd_atomic, now.min_rnr_timer),
        (9, 1, 3, 2, 3, 1)
    );
    assert_eq!((now.access, now.path_mtu_bytes, now.state), (access::REMOTE_READ, 1024, state::SQD));
    go(&mut pair.hosts[0], state::RTS).expect("drained");
    // With the rnr_retry of before, the first RNR NAK would be the last.
    pair.hosts[0].take();
    pair.hosts[0].post(&work(2, SendOp::Send, &[sge(0, 100)], 0));
    pair.turn(&mut no_fault);
    pair.turn(&mut no_fault);
    pair.turn(&mut no_fault);
    pair.hosts[1].post_recv(3, &[sge(700_000, 100)]);
    pair.settle();
    assert_eq!(pair.hosts[0].take(), [(2, Status::Success)]);
    // And the answers are given in the new number: the peer's READs.
    pair.hosts[1].post(&work(4, SendOp::Read, &[sge(600_000, 3000)], 0));
    pair.settle();
    assert_eq!(pair.hosts[1].take().last(), Some(&(4, Status::Success)));
}

#[test]
fn a_query_returns_the_attributes_that_were_set() {
    let pair = Pair::new(Settings { timeout: 11, retry_cnt: 5, rnr_retry: 2, rd_atomic: 3, ..Settings::default() });
    let (host, peer) = (&pair.hosts[0], &pair.hosts[1]);
    let expected = QpAttributes {
        state: state::RTS,
        access: access::ALL,
        path_mtu_bytes: 1024,
        dest_qpn: peer.qpn.get(),
        rq_psn: pair.settings.psn,
        sq_psn: pair.settings.psn,
        max_rd_atomic: 3,
        max_dest_rd_atomic: 3,
        min_rnr_timer: 12,
        timeout: 11,
        retry_cnt: 5,
        rnr_retry: 2,
        dgid: peer.gid,
        ..QpAttributes::default()
    };
    assert_eq!(host.endpoint.query_qp(host.qpn), Some(expected));
}

/// IBTA v1 10.3.1: no work is taken in RESET. A client that posts all the same finds no completion,
/// and a counter that says why.
#[test]
fn work_that_comes_in_reset_is_counted_and_forgotten() {
    let mut pair = Pair::new(Settings::default());
    go(&mut pair.hosts[0], state::RESET).expect("from anywhere");
    pair.hosts[0].post(&work(1, SendOp::Write, &[], 0));
    pair.hosts[0].post(&work(2, SendOp::Write, &[], 0));
    pair.hosts[0].post_recv(3, &[]);
    assert_eq!(pair.hosts[0].count(QpCount::ForgottenInReset), 3);
    go(&mut pair.hosts[1], state::RESET).expect("from anywhere");
    (0..2).for_each(|at| pair.connect_one(at));
    pair.hosts[0].post(&work(4, SendOp::Write, &[], 0));
    pair.settle();
    assert_eq!(pair.hosts[0].take(), [(4, Status::Success)]);
}

#[test]
fn the_first_request_in_rtr_says_that_the_peer_is_ready() {
    let mut pair = Pair::new(Settings::default());
    pair.connect_another(6);
    // Host 1 goes back and stays in RTR.
    go(&mut pair.hosts[1], state::RESET).expect("from anywhere");
    pair.connect_one(1);
    assert_eq!(events(&mut pair.hosts[1]), [], "nothing came while it only received");
    pair.hosts[0].post(&work(1, SendOp::Write, &[], 0));
    pair.settle();
    assert_eq!(events(&mut pair.hosts[1]), [], "it was in RTS");

    let mut pair = Pair::unconnected(Settings::default());
    pair.connect_one(0);
    pair.connect_to_rtr(1);
    pair.hosts[0].post(&work(1, SendOp::Write, &[], 0));
    pair.hosts[0].post(&work(2, SendOp::Write, &[], 0));
    pair.settle();
    assert_eq!(events(&mut pair.hosts[1]), [event::COMMUNICATION_ESTABLISHED], "once");
}

#[test]
fn an_event_names_the_fault_of_the_peer() {
    for (rights, length, kind) in
        [(access::REMOTE_READ, 10, event::QP_ACCESS_ERROR), (access::ALL, 2000, event::QP_REQUEST_ERROR)]
    {
        let mut pair = Pair::new(Settings { access: rights, ..Settings::default() });
        pair.hosts[1].post_recv(1, &[sge(0, 1)]);
        let op = if length == 10 { SendOp::Write } else { SendOp::Send };
        pair.hosts[0].post(&work(1, op, &[sge(0, length)], 0));
        pair.settle();
        assert_eq!(events(&mut pair.hosts[1]), [kind]);
    }
}

#[test]
fn a_lost_completion_is_told_of_its_queue_and_of_its_queue_pair() {
    let mut pair = Pair::new(Settings::default());
    pair.hosts[0].app.cq_room = 0;
    pair.hosts[0].post(&work(1, SendOp::Write, &[], 0));
    pair.settle();
    let host = &mut pair.hosts[0];
    let qpn = host.qpn;
    let mut events: Vec<_> = std::iter::from_fn(|| host.endpoint.poll_event()).collect();
    events.sort_by_key(|event| event.kind);
    let expected = [
        QpEvent { qpn, subject: Subject::Cq(CQ), kind: event::CQ_ERROR },
        QpEvent { qpn, subject: Subject::Qp(qpn), kind: event::QP_FATAL },
    ];
    assert_eq!(events, expected);
}

#[test]
fn an_unreliable_connection_drains_when_its_last_packet_has_left() {
    let mut pair = Pair::new(Settings { service: ServiceType::Uc, ..Settings::default() });
    pair.hosts[0].nic.room = 2;
    pair.hosts[0].post(&work(1, SendOp::Write, &[sge(0, 5000)], 500_000));
    pair.hosts[0].post(&work(2, SendOp::Write, &[sge(0, 10)], 600_000));
    let Host { endpoint, app, nic, .. } = &mut pair.hosts[0];
    endpoint.poll_transmit(pair.now, 32, app, nic);
    drain(&mut pair.hosts[0]);
    assert!(is_draining(&pair.hosts[0]));
    pair.hosts[0].nic.room = 100;
    pair.settle();
    assert_eq!(pair.hosts[0].take(), [(1, Status::Success)]);
    assert_eq!(events(&mut pair.hosts[0]), [event::SQ_DRAINED]);
    go(&mut pair.hosts[0], state::RTS).expect("drained");
    pair.settle();
    assert_eq!(pair.hosts[0].take(), [(2, Status::Success)]);
}

#[test]
fn queue_pairs_fail_with_their_port_except_those_in_reset_and_error() {
    let mut pair = Pair::new(Settings::default());
    let host = &mut pair.hosts[0];
    host.post(&work(1, SendOp::Write, &[sge(0, 20 * 1024)], 0));
    host.post_recv(2, &[sge(700_000, 2000)]);
    assert_eq!(host.endpoint.fail_qps(0, 0), Some(0), "nothing within this budget");
    assert_eq!(host.endpoint.fail_qps(0, 16), None);
    assert_eq!(events(host), [event::QP_FATAL]);
    assert_eq!(host.endpoint.fail_qps(0, 16), None);
    assert_eq!(events(host), [], "once");
    pair.settle();
    let mut done = pair.hosts[0].take();
    done.sort_unstable_by_key(|(wr_id, _)| *wr_id);
    assert_eq!(done, [(1, Status::WorkRequestFlushed), (2, Status::WorkRequestFlushed)]);
    go(&mut pair.hosts[0], state::RESET).expect("from any state");
    assert_eq!(pair.hosts[0].endpoint.fail_qps(0, 16), None);
    assert_eq!((events(&mut pair.hosts[0]), pair.hosts[0].state()), (vec![], "RESET"));
}
