//! Packets that follow CNPs by a rate: READ responses, those of unreliable connections, and with
//! DCQCN requests. Without a rate no virtual time passes between packets.

use roced_transport::{
    clock::Nanos,
    congestion::{
        control::{CongestionControl, CongestionState},
        notification::NotificationCount,
    },
    psn::Psn,
    qp::ServiceType,
    reject::Disposition,
    wire::{
        Bth, Headers,
        opcode::{self, Opcode, Operation},
    },
    work::SendWork,
};
use roced_types::{SendOp, Status};

use crate::host::{Fate, Pair, Settings, no_fault, sge, work};

const BYTES: usize = 400 * 1024;

/// Time of that much at 10 Gbit/s.
const AT_LINE: Nanos = Nanos::from_micros(335);

/// Every packet with data of that host is marked.
fn marks_of(host: usize) -> impl FnMut(usize, Opcode, usize) -> Fate {
    move |from, opcode, _| {
        let has_data =
            opcode.info().is_some_and(|info| matches!(info.operation, Operation::Write | Operation::ReadResponse));
        if from == host && has_data { Fate::Mark } else { Fate::Deliver }
    }
}

fn state(pair: &Pair, at: usize) -> Option<CongestionState> {
    let host = &pair.hosts[at];
    host.endpoint.qp(host.qpn).expect("there").progress().congestion
}

/// Time in which host 0 transfers [`BYTES`] while all packets of their sender are marked.
fn transfer(pair: &mut Pair, op: SendOp, sender: usize) -> Nanos {
    pair.hosts[0].post(&work(1, op, &[sge(0, BYTES)], 500_000));
    let begin = pair.now;
    assert!(pair.run(Nanos::from_millis(2000), marks_of(sender)), "it ends");
    assert_eq!(pair.hosts[0].take(), [(1, Status::Success)]);
    pair.now - begin
}

fn handled(pair: &Pair, at: usize) -> u64 {
    pair.hosts[at].endpoint.notification_counters().get(NotificationCount::Handled)
}

/// The reader asks for as much as it likes, as adapters do.
#[test]
fn a_responder_slows_down_by_notifications() {
    for control in [CongestionControl::Window, CongestionControl::Dcqcn] {
        let mut pair =
            Pair::established(Settings { congestion: [CongestionControl::Off, control], ..Settings::default() });
        let took = transfer(&mut pair, SendOp::Read, 1);
        assert!(took > AT_LINE && handled(&pair, 1) > 0, "{took:?}");
        let rate = state(&pair, 1).expect("it reacts").rate_bytes_per_s;
        assert!(rate.is_some_and(|rate| rate < 1_250_000_000), "{rate:?}");
    }
    let mut pair = Pair::established(Settings::default());
    let took = transfer(&mut pair, SendOp::Read, 1);
    assert!(took < AT_LINE, "nothing reacts: {took:?}");
}

/// In RTR a queue pair answers READs, and it may never go on to RTS.
#[test]
fn a_responder_in_rtr_slows_down() {
    let congestion = [CongestionControl::Off, CongestionControl::Window];
    let mut pair = Pair::unconnected(Settings { congestion, ..Settings::default() });
    pair.connect_one(0);
    pair.connect_to_rtr(1);
    let took = transfer(&mut pair, SendOp::Read, 1);
    assert!(took > AT_LINE && handled(&pair, 1) > 0, "{took:?}");
}

/// Responses go before the NAK that ends the queue pair, and the error state has no timers.
#[test]
fn a_limited_responder_that_fails_says_so() {
    let congestion = [CongestionControl::Off, CongestionControl::Window];
    let mut pair = Pair::established(Settings { congestion, ..Settings::default() });
    pair.hosts[0].post(&work(1, SendOp::Read, &[sge(0, BYTES)], 500_000));
    pair.hosts[0].post(&SendWork { rkey: 0xdead, ..work(2, SendOp::Write, &[sge(0, 8)], 500_000) });
    assert!(pair.run(Nanos::from_millis(2000), marks_of(1)), "it ends");
    assert_eq!(pair.hosts[0].take(), [(1, Status::Success), (2, Status::RemoteAccess)]);
    assert!(handled(&pair, 1) > 0);
}

#[test]
fn an_unreliable_connection_slows_down() {
    for (control, is_slow) in
        [(CongestionControl::Window, true), (CongestionControl::Dcqcn, true), (CongestionControl::Off, false)]
    {
        let settings = Settings { service: ServiceType::Uc, congestion: [control; 2], ..Settings::default() };
        let mut pair = Pair::established(settings);
        let took = transfer(&mut pair, SendOp::Write, 0);
        assert_eq!((took > AT_LINE, handled(&pair, 0) > 0), (is_slow, is_slow), "{control:?}: {took:?}");
        let window = state(&pair, 0).and_then(|state| state.request_window);
        assert_eq!(window, None, "nothing is acknowledged");
    }
}

/// A rate follows a CNP if a packet left by it since the last one.
#[test]
fn a_notification_that_no_rate_follows_counts_as_ignored() {
    use CongestionControl::{Dcqcn, Window};
    for (service, control) in [(ServiceType::Uc, Window), (ServiceType::Uc, Dcqcn), (ServiceType::Rc, Dcqcn)] {
        let settings = Settings { service, congestion: [control; 2], ..Settings::default() };
        let mut pair = Pair::new(settings);
        let bth = Bth { becn: true, ..Bth::new(opcode::CNP, pair.hosts[0].qpn, Psn::new(0)) };
        let frame = pair.frame(1, &Headers::new(bth), &[]);
        let counted = |pair: &mut Pair| {
            assert_eq!(pair.deliver(0, &frame), Disposition::Accepted);
            let counters = pair.hosts[0].endpoint.notification_counters();
            [NotificationCount::Handled, NotificationCount::Ignored].map(|it| counters.get(it))
        };
        assert_eq!(counted(&mut pair), [0, 1], "nothing was sent: {service:?}, {control:?}");
        pair.hosts[0].post(&work(1, SendOp::Write, &[sge(0, 8)], 500_000));
        assert!(pair.run(Nanos::from_millis(2000), no_fault));
        assert_eq!(counted(&mut pair), [1, 1], "{service:?}, {control:?}");
        assert_eq!(counted(&mut pair), [1, 2], "nothing since the last one: {service:?}, {control:?}");
    }
}

#[test]
fn requests_follow_the_rate_with_dcqcn_and_the_window_without() {
    let took = [CongestionControl::Dcqcn, CongestionControl::Window].map(|control| {
        let mut pair = Pair::established(Settings { congestion: [control; 2], ..Settings::default() });
        let took = transfer(&mut pair, SendOp::Write, 0);
        let rate = state(&pair, 0).expect("it reacts").rate_bytes_per_s;
        assert_eq!(rate.is_some(), control == CongestionControl::Dcqcn);
        took
    });
    assert!(took[0] > AT_LINE, "{took:?}");
}

/// The network marks packets before the sender knows: few may be under way.
#[test]
fn a_limited_sender_has_sixteen_packets_in_flight() {
    let congestion = [CongestionControl::Dcqcn; 2];
    let mut pair = Pair::established(Settings { turn_frames: 128, congestion, ..Settings::default() });
    pair.hosts[0].post(&work(1, SendOp::Write, &[sge(0, BYTES)], 500_000));
    assert!(pair.run(Nanos::from_millis(1), no_fault));
    assert_eq!(pair.hosts[0].take(), [(1, Status::Success)]);
    pair.hosts[0].post(&work(2, SendOp::Write, &[sge(0, BYTES)], 500_000));
    let (mut marks, mut most) = (marks_of(0), 0);
    for _ in 0..200 {
        if !pair.run_to_next(&mut marks) {
            break;
        }
        let host = &pair.hosts[0];
        let progress = host.endpoint.qp(host.qpn).expect("there").progress();
        if progress.congestion.and_then(|state| state.rate_bytes_per_s).is_some() {
            most = most.max(progress.in_flight_packets);
        }
    }
    assert!((1..=16).contains(&most), "{most}");
}

/// A window that opens at once would fill a queue before the first CNP comes.
#[test]
fn after_the_limit_the_window_opens_by_acknowledgments() {
    let congestion = [CongestionControl::Dcqcn; 2];
    let mut pair = Pair::established(Settings { turn_frames: 128, congestion, ..Settings::default() });
    let window = |pair: &Pair| state(pair, 0).and_then(|state| state.request_window).expect("it has one");
    pair.hosts[0].post(&work(1, SendOp::Write, &[sge(0, BYTES)], 500_000));
    assert!(pair.run(Nanos::from_millis(1), no_fault));
    assert_eq!(pair.hosts[0].take(), [(1, Status::Success)]);
    let before = window(&pair);
    transfer(&mut pair, SendOp::Write, 0);
    let after = window(&pair);
    assert!(before > 60.0 && (8.0..20.0).contains(&after), "{before} and {after} packets");
}

/// Small messages cost their own bytes, not those of a full packet.
#[test]
fn small_messages_are_charged_by_their_bytes() {
    let congestion = [CongestionControl::Dcqcn; 2];
    let mut pair = Pair::established(Settings { congestion, ..Settings::default() });
    transfer(&mut pair, SendOp::Write, 0);
    let rate = state(&pair, 0).and_then(|state| state.rate_bytes_per_s).expect("it is limited");
    let begin = pair.now;
    for wr_id in 0..50 {
        pair.hosts[0].post(&work(wr_id, SendOp::Write, &[sge(0, 8)], 500_000));
    }
    assert!(pair.run(Nanos::from_millis(100), no_fault));
    assert_eq!(pair.hosts[0].take().len(), 50);
    let full = Nanos(50 * 1024 * 1_000_000_000 / rate);
    assert!(pair.now - begin < Nanos(full.0 / 2), "{:?} of {full:?}", pair.now - begin);
}
