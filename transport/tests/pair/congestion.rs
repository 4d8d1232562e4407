//! Reaction to congestion: notifications, marks and losses make windows smaller, once a round trip;
//! a small window is no standstill.

use roced_transport::{
    clock::Nanos,
    congestion::{
        control::{CongestionControl, CongestionState},
        notification::{NotificationConfig, NotificationCount},
    },
    counters::QpCount,
    psn::Psn,
    recovery::RecoveryConfig,
    reject::Disposition,
    wire::{
        bth::Bth,
        headers::Headers,
        opcode::{self, Opcode, Operation},
    },
};
use roced_types::{SendOp, Status};

use crate::host::{Fate, Pair, Settings, no_fault, one, sge, work};

/// Both hosts react.
fn reacting() -> Pair {
    Pair::established(Settings { turn_frames: 128, congestion: [CongestionControl::Window; 2], ..Settings::default() })
}

/// Host 0 posts this much, in one message.
fn post(pair: &mut Pair, op: SendOp, packets: usize) {
    pair.hosts[0].post(&work(1, op, &[sge(0, packets * 1024)], 500_000));
}

fn state(pair: &Pair) -> CongestionState {
    let host = &pair.hosts[0];
    host.endpoint.qp(host.qpn).expect("there").progress().congestion.expect("it reacts")
}

fn request_window(pair: &Pair) -> f64 {
    state(pair).request_window.expect("a reliable connection")
}

/// Packets of the message that host `from` sends in each of so many turns.
fn packets_of_turns(pair: &mut Pair, from: usize, operation: Operation, turns: usize) -> Vec<usize> {
    let mut count = |_| {
        let before = pair.sent(from, operation);
        pair.turn(&mut no_fault);
        pair.now = pair.now + Nanos::from_micros(5);
        pair.sent(from, operation) - before
    };
    (0..turns).map(&mut count).collect()
}

/// Host 0 gets a notification of host 1.
fn notify(pair: &mut Pair) {
    let bth = Bth { becn: true, ..Bth::new(opcode::CNP, pair.hosts[0].qpn, Psn::new(0)) };
    let frame = pair.frame(1, &Headers::new(bth), &[]);
    assert_eq!(pair.deliver(0, &frame), Disposition::Accepted);
}

fn counted(pair: &Pair, what: NotificationCount) -> u64 {
    pair.hosts[0].endpoint.notification_counters().get(what)
}

/// Runs to the end; all must have arrived.
fn finish(pair: &mut Pair, fate: impl FnMut(usize, Opcode, usize) -> Fate) {
    assert!(pair.run(Nanos::from_millis(60_000), fate), "it comes to rest");
    assert_eq!(pair.hosts[0].take(), [(1, Status::Success)]);
}

#[test]
fn a_window_begins_with_sixteen_packets_and_opens_to_all() {
    let mut pair = reacting();
    post(&mut pair, SendOp::Write, 400);
    assert_eq!(packets_of_turns(&mut pair, 0, Operation::Write, 4), [16, 32, 64, 64]);
    finish(&mut pair, no_fault);
    assert_eq!(request_window(&pair), 64.0);
}

#[test]
fn notifications_of_one_round_halve_the_window_once() {
    let mut pair = reacting();
    post(&mut pair, SendOp::Write, 450);
    packets_of_turns(&mut pair, 0, Operation::Write, 4);
    for _ in 0..3 {
        notify(&mut pair);
    }
    assert_eq!((counted(&pair, NotificationCount::Handled), counted(&pair, NotificationCount::Ignored)), (3, 0));
    assert!((31.9..=32.0).contains(&request_window(&pair)), "{:?}", state(&pair));
    let sent = packets_of_turns(&mut pair, 0, Operation::Write, 3);
    assert!(sent[0] <= 32 && sent.iter().all(|packets| (30..=34).contains(packets)), "{sent:?}");
    notify(&mut pair);
    assert!(request_window(&pair) < 20.0, "the next round has one of its own: {:?}", state(&pair));
    finish(&mut pair, no_fault);
    assert_eq!(pair.hosts[0].count(QpCount::RetransmittedPackets), 0);
}

/// All data is marked, and each eighth packet causes a notification. The window is often
/// smaller than the interval in which a large one asks for ACKs: no probe has to ask.
#[test]
fn a_small_window_goes_on_without_probes() {
    let mut pair = reacting();
    let at_once = NotificationConfig { interval: Nanos(0), ..NotificationConfig::default() };
    pair.hosts[1].endpoint.set_notifications(at_once);
    post(&mut pair, SendOp::Write, 400);
    let mut smallest = f64::MAX;
    for _ in 0..4000 {
        pair.turn(&mut |from, _, _| if from == 0 { Fate::Mark } else { Fate::Deliver });
        pair.now = pair.now + Nanos::from_micros(5);
        smallest = smallest.min(request_window(&pair));
    }
    assert!(smallest < 4.0, "{smallest}");
    finish(&mut pair, no_fault);
    assert!(counted(&pair, NotificationCount::Handled) > 5);
    assert_eq!(pair.hosts[0].count(QpCount::AdaptiveRetransmission), 0);
    assert_eq!(pair.hosts[0].count(QpCount::AckTimeout), 0);
}

#[test]
fn marked_responses_make_a_reader_ask_for_less() {
    let mut pair = reacting();
    post(&mut pair, SendOp::Read, 400);
    let free = packets_of_turns(&mut pair, 1, Operation::ReadResponse, 6);
    assert!(free[4] >= 48, "{free:?}");
    for _ in 0..10 {
        pair.turn(&mut |from, _, _| if from == 1 { Fate::Mark } else { Fate::Deliver });
        pair.now = pair.now + Nanos::from_micros(5);
    }
    let windows_then = state(&pair);
    assert!(windows_then.response_window.is_some_and(|window| window < 16.0), "{windows_then:?}");
    assert_eq!(windows_then.request_window, Some(16.0), "the other direction is another");
    finish(&mut pair, no_fault);
}

/// So many turns, each of which is a round trip.
fn turns_of(pair: &mut Pair, turns: usize, each: Nanos) {
    for _ in 0..turns {
        pair.turn(&mut no_fault);
        pair.now = pair.now + each;
    }
}

#[test]
fn long_round_trips_make_the_window_of_their_direction_smaller() {
    let (near, far) = (Nanos::from_micros(50), Nanos::from_micros(400));
    for (op, is_read) in [(SendOp::Write, false), (SendOp::Read, true)] {
        let settings = Settings { congestion: [CongestionControl::Window; 2], ..Settings::default() };
        let mut pair = Pair::established(Settings { delay_guard: Nanos::from_micros(250), ..settings });
        let windows = |pair: &Pair| {
            let state = state(pair);
            let both = (state.request_window.expect("reliable"), state.response_window.expect("reliable"));
            if is_read { (both.1, both.0) } else { both }
        };
        (0..5).for_each(|_| post(&mut pair, op, 450));
        turns_of(&mut pair, 8, near);
        let wide = windows(&pair).0;
        assert!(wide >= 32.0, "short round trips cut nothing: {wide}");
        turns_of(&mut pair, 3, far);
        let (used, other) = windows(&pair);
        assert!(used >= wide, "four in a row are needed: {used} after {wide}");
        turns_of(&mut pair, 30, far);
        let (used, other_later) = windows(&pair);
        assert!(used < wide / 2.0, "{op:?}: {used} after {wide}");
        assert_eq!(other_later, other, "{op:?}: the other direction is another");
        assert!(pair.run(Nanos::from_millis(60_000), no_fault), "it comes to rest");
        assert_eq!(pair.hosts[0].take(), [(1, Status::Success); 5]);
    }
    let mut unguarded = reacting();
    post(&mut unguarded, SendOp::Write, 450);
    turns_of(&mut unguarded, 20, far);
    assert_eq!(request_window(&unguarded), 64.0, "without a guard delay means nothing");
}

/// One lost packet of 64 has any cause, a lost tenth is congestion. The first loss of all counts as
/// many: the peer is not known to keep the packets behind it.
#[test]
fn many_lost_packets_halve_the_window_and_one_does_not() {
    for (every, is_halved) in [(1000, false), (8, true)] {
        let mut pair = reacting();
        post(&mut pair, SendOp::Write, 400);
        finish(&mut pair, one(0, opcode::RC_WRITE_MIDDLE, 20, Fate::Drop));
        post(&mut pair, SendOp::Write, 400);
        finish(&mut pair, no_fault);
        let before = request_window(&pair);
        post(&mut pair, SendOp::Write, 400);
        let first = pair.sent(0, Operation::Write) + 200;
        let is_lost = |nth| nth == first || (first..first + 64).contains(&nth) && nth % every == 0;
        finish(&mut pair, |from, opcode, nth| match from == 0 && opcode == opcode::RC_WRITE_MIDDLE && is_lost(nth) {
            true => Fate::Drop,
            false => Fate::Deliver,
        });
        let size = request_window(&pair);
        assert_eq!(size < before, is_halved, "one in {every}: {before}, {size}");
    }
}

#[test]
fn without_congestion_control_notifications_are_ignored() {
    let mut pair = Pair::established(Settings { turn_frames: 128, ..Settings::default() });
    post(&mut pair, SendOp::Write, 400);
    assert_eq!(packets_of_turns(&mut pair, 0, Operation::Write, 2), [64, 64]);
    notify(&mut pair);
    assert_eq!((counted(&pair, NotificationCount::Handled), counted(&pair, NotificationCount::Ignored)), (0, 1));
    assert_eq!(packets_of_turns(&mut pair, 0, Operation::Write, 2), [64, 64]);
    finish(&mut pair, no_fault);
}

/// The first packet is overtaken, so that all is sent again from there and the window is halved;
/// then an ACK covers all that asked. The packets behind it fill the smaller window, and the last of
/// them was long before the next that would ask: one asks at once.
#[test]
fn a_window_that_was_halved_is_not_full_of_packets_that_did_not_ask() {
    let mut pair = Pair::established(Settings {
        turn_frames: 128,
        window: 256,
        congestion: [CongestionControl::Window; 2],
        ..Settings::default()
    });
    pair.hosts[0].post(&work(0, SendOp::Write, &[sge(0, 3 * 1024)], 500_000));
    post(&mut pair, SendOp::Write, 100);
    let mut sent = 0;
    pair.turn(&mut |from, _, _| {
        sent += usize::from(from == 0);
        match (from, sent - 1) {
            (0, 0) => Fate::Late(1),
            (0, 11..) => Fate::Late(2),
            _ => Fate::Deliver,
        }
    });
    assert_eq!((sent, request_window(&pair)), (16, 16.0));
    // A slow sender: the ACK comes before it has sent more than the first packet again.
    pair.settings.turn_frames = 1;
    assert!(pair.run(Nanos::from_millis(60_000), no_fault), "it comes to rest");
    assert_eq!(pair.hosts[0].take(), [(0, Status::Success), (1, Status::Success)]);
    assert_eq!(pair.hosts[0].count(QpCount::AckTimeout), 0);
}

/// FLUSH and atomic WRITE are requests, although READ responses answer them: an answer shows that
/// the peer is there, and ACK timeouts long ago do not add up.
#[test]
fn answers_of_any_kind_end_a_row_of_timeouts() {
    let settings = Settings { recovery: [RecoveryConfig::GO_BACK_N; 2], ..Settings::default() };
    let mut pair = Pair::established(Settings { congestion: [CongestionControl::Window; 2], ..settings });
    for wr_id in 0..6 {
        pair.hosts[0].post(&work(wr_id, SendOp::AtomicWrite, &[], 4096));
        let mut is_first = true;
        let lost = |from, _, _| match from == 0 && std::mem::take(&mut is_first) {
            true => Fate::Drop,
            false => Fate::Deliver,
        };
        assert!(pair.run(Nanos::from_millis(60_000), lost), "it comes to rest");
        assert_eq!(pair.hosts[0].take(), [(wr_id, Status::Success)]);
    }
    assert_eq!(pair.hosts[0].count(QpCount::AckTimeout), 6);
    assert_eq!((state(&pair).request_window, state(&pair).response_window), (Some(0.25), Some(16.0)));
}

/// Marks without end: less than one packet in a round trip, and all arrives all the same. Then
/// without marks the window opens again.
#[test]
fn less_than_one_packet_is_sent_in_a_round_trip() {
    let mut pair = reacting();
    post(&mut pair, SendOp::Write, 200);
    packets_of_turns(&mut pair, 0, Operation::Write, 2);
    // One in each round: an answer ends it.
    while request_window(&pair) >= 0.1 {
        notify(&mut pair);
        let before = pair.answers.len();
        while pair.answers.len() == before {
            assert!(pair.run_to_next(&mut no_fault), "something is to come");
        }
    }
    let (begin, sent) = (pair.now, pair.sent(0, Operation::Write));
    while pair.sent(0, Operation::Write) < sent + 3 {
        assert!(pair.run_to_next(&mut no_fault), "the gap has a timer");
    }
    let took = pair.now - begin;
    assert!(took >= Nanos::from_micros(3 * 10), "three packets in {took:?}");
    finish(&mut pair, no_fault);
    assert!(request_window(&pair) > 8.0, "{:?}", state(&pair));
}

#[test]
fn a_window_that_was_idle_begins_with_sixteen_packets() {
    let mut pair = reacting();
    post(&mut pair, SendOp::Write, 400);
    finish(&mut pair, no_fault);
    assert_eq!(request_window(&pair), 64.0);
    pair.now = pair.now + Nanos::from_millis(30);
    post(&mut pair, SendOp::Write, 400);
    assert_eq!(packets_of_turns(&mut pair, 0, Operation::Write, 3), [16, 32, 64]);
    finish(&mut pair, no_fault);
}
