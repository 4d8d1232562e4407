//! Queue pairs of clients that are gone: they begin nothing, and answer until they are removed.

use roced_transport::{clock::Nanos, counters::QpCount, wire::Operation};
use roced_types::{SendOp, Status};

use crate::{
    host::{Fate, Pair, Settings, no_fault, sge, work},
    selective::warm,
};

fn silence(pair: &mut Pair, at: usize) {
    let host = &mut pair.hosts[at];
    host.endpoint.silence(host.qpn);
}

#[test]
fn a_silent_queue_pair_answers_requests_and_sends_none() {
    let mut pair = warm(Settings::default());
    pair.hosts[1].post_recv(1, &[sge(50_000, 1000)]);
    pair.hosts[1].take();
    let requests = pair.hosts[1].count(QpCount::RequestPackets);
    // One posted before, one after.
    pair.hosts[1].post(&work(7, SendOp::Write, &[sge(0, 5000)], 30_000));
    silence(&mut pair, 1);
    pair.hosts[1].post(&work(8, SendOp::Write, &[sge(0, 5000)], 30_000));
    pair.hosts[0].post(&work(1, SendOp::Write, &[sge(0, 5000)], 10_000));
    pair.hosts[0].post(&work(2, SendOp::Send, &[sge(0, 1000)], 0));
    pair.hosts[0].post(&work(3, SendOp::Read, &[sge(20_000, 5000)], 40_000));
    // No receive is left: the answer is an RNR NAK.
    pair.hosts[0].post(&work(4, SendOp::Send, &[sge(0, 1000)], 0));
    pair.run(Nanos::from_micros(500), no_fault);
    assert_eq!(pair.hosts[0].take(), [(1, Status::Success), (2, Status::Success), (3, Status::Success)]);
    assert!(pair.hosts[0].count(QpCount::RnrNakReceived) > 0);
    assert_eq!(pair.hosts[1].count(QpCount::RequestPackets), requests, "requests of a client that is gone");
    assert_eq!(pair.hosts[0].count(QpCount::AckTimeout), 0);
}

/// The lost request of the silent side is not repeated, and its retries do not run out: a failed
/// queue pair would not answer.
#[test]
fn a_silent_queue_pair_answers_however_long_its_own_requests_wait() {
    let mut pair = warm(Settings::default());
    pair.hosts[1].post(&work(7, SendOp::Write, &[sge(0, 100)], 30_000));
    pair.turn(&mut |from, _, _| if from == 1 { Fate::Drop } else { Fate::Deliver });
    silence(&mut pair, 1);
    let requests = pair.hosts[1].count(QpCount::RequestPackets);
    assert!(requests > 0);
    pair.run(Nanos::from_millis(60_000), no_fault);
    assert_eq!((pair.hosts[1].state(), pair.hosts[1].take()), ("RTS", Vec::new()));
    pair.hosts[0].post(&work(1, SendOp::Write, &[sge(0, 5000)], 10_000));
    pair.run(Nanos::from_millis(1), no_fault);
    assert_eq!(pair.hosts[0].take(), [(1, Status::Success)]);
    assert_eq!(pair.hosts[1].count(QpCount::RequestPackets), requests);
    assert!(pair.sent(1, Operation::Ack) > 0);
}
