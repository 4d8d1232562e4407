//! Unsignaled messages: they request no ACK of their own, and are recovered all the same.

use roced_transport::{clock::Nanos, counters::QpCount, io::Egress, qp::PathState, wire::opcode, work::SendWork};
use roced_types::{SendOp, Status};

use crate::{
    host::{Fate, Pair, Settings, no_fault, one, sge, work},
    selective::{LIMIT, warm},
};

const BYTES: usize = 64;

/// As posted by a program that waits for none of them.
fn quiet(wr_id: u64) -> SendWork<'static> {
    static SGES: std::sync::LazyLock<[roced_types::Sge; 1]> = std::sync::LazyLock::new(|| [sge(0, BYTES)]);
    SendWork { flags: 0, ..work(wr_id, SendOp::Write, &SGES[..], 0) }
}

/// One each 10 us, as of a program that waits for its peer's answer by other means.
fn one_by_one(pair: &mut Pair, count: u64, fate: &mut impl FnMut(usize, opcode::Opcode, usize) -> Fate) {
    for wr_id in 0..count {
        pair.hosts[0].post(&quiet(wr_id));
        for _ in 0..2 {
            pair.turn(fate);
            pair.now = pair.now + Nanos::from_micros(5);
        }
    }
}

fn acks(pair: &Pair, begin: usize) -> usize {
    pair.trace[begin..].iter().filter(|(from, opcode, _)| (*from, *opcode) == (1, opcode::RC_ACK)).count()
}

#[test]
fn messages_that_follow_each_other_ask_now_and_then() {
    let mut pair = warm(Settings::default());
    let begin = pair.trace.len();
    one_by_one(&mut pair, 1000, &mut no_fault);
    pair.settle();
    let acks = acks(&pair, begin);
    // One in 50 us is one for five or six.
    assert!((150..=250).contains(&acks), "{acks} ACKs for 1000 messages");
    assert_eq!(pair.hosts[0].count(QpCount::AckRequested), 1, "the last, which none followed");
    assert!(pair.hosts[0].take().is_empty(), "no client hears of them");
}

/// Where a probe would have to ask each time, the messages do, but for one now and then that finds
/// out.
#[test]
fn messages_that_come_rarely_ask_by_themselves() {
    let mut pair = warm(Settings::default());
    for wr_id in 0..170 {
        pair.hosts[0].post(&quiet(wr_id));
        pair.run(Nanos::from_millis(1), no_fault);
        pair.now = pair.now + Nanos::from_millis(1);
    }
    assert_eq!(pair.hosts[0].count(QpCount::AckRequested), 10, "one of 17");
}

#[test]
fn one_that_is_waited_for_asks() {
    let mut pair = warm(Settings::default());
    let begin = pair.trace.len();
    pair.hosts[0].post(&quiet(1));
    pair.hosts[0].post(&work(2, SendOp::Write, &[sge(0, BYTES)], 0));
    pair.settle();
    assert_eq!((pair.hosts[0].take(), acks(&pair, begin)), (vec![(2, Status::Success)], 1));
    assert_eq!(pair.hosts[0].count(QpCount::RetransmittedPackets), 0);
}

#[test]
fn a_lost_one_arrives_though_none_follows() {
    let mut pair = warm(Settings { retry_cnt: 0, ..Settings::default() });
    pair.hosts[0].post(&quiet(1));
    let start = pair.now;
    assert!(pair.run(LIMIT, one(0, opcode::RC_WRITE_ONLY, 0, Fate::Drop)));
    assert_eq!(pair.hosts[1].app.writes, [(0, BYTES)]);
    assert!(pair.now - start < Nanos::from_micros(400), "{:?}", pair.now - start);
}

#[test]
fn a_peer_that_is_gone_is_noticed_all_the_same() {
    for recovery in [Settings::default().recovery, crate::recovery::go_back_n().recovery] {
        let mut pair = Pair::new(Settings { timeout: 10, retry_cnt: 1, recovery, ..Settings::default() });
        pair.hosts[0].post(&quiet(1));
        assert!(pair.run(LIMIT, |_, _, _| Fate::Drop));
        assert_eq!(pair.hosts[0].take(), [(1, Status::TransportRetryExceeded)]);
    }
}

/// No probe goes where there is no way; the ACK timer runs all the same.
#[test]
fn a_peer_that_cannot_be_reached_is_noticed_all_the_same() {
    let mut pair = warm(Settings { timeout: 10, retry_cnt: 1, ..Settings::default() });
    let qpn = pair.hosts[0].qpn;
    pair.hosts[0].endpoint.set_path(qpn, PathState::Unreachable).expect("it is there");
    pair.hosts[0].post(&quiet(1));
    assert!(pair.run(LIMIT, no_fault));
    assert_eq!(pair.hosts[0].take(), [(1, Status::TransportRetryExceeded)]);
}

/// On the way to a peer on this very device nothing is lost, so that no probe goes there.
#[test]
fn beside_us_each_message_asks() {
    let mut pair = warm(Settings::default());
    let (qpn, beside) = (pair.hosts[0].qpn, pair.path_via(0, Egress::SameDevice));
    pair.hosts[0].endpoint.set_path(qpn, PathState::Ready(beside)).expect("it is there");
    let begin = pair.trace.len();
    one_by_one(&mut pair, 100, &mut no_fault);
    assert_eq!(acks(&pair, begin), 100);
}

/// Where nothing would ask later each message does, and where a completion is made for each.
#[test]
fn each_message_requests_an_ack_if_no_later_one_will() {
    let signals_all = Settings { signal_all: true, ..Settings::default() };
    for settings in [crate::recovery::go_back_n(), signals_all] {
        let mut pair = Pair::new(settings);
        one_by_one(&mut pair, 100, &mut no_fault);
        assert_eq!(acks(&pair, 0), 100);
    }
}
