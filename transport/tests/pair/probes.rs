//! Probes: lost last packets are found without a timer, and no peer is probed without success.

use roced_transport::{
    clock::Nanos,
    counters::QpCount,
    psn::Psn,
    recovery::RecoveryConfig,
    wire::{
        Aeth, Syndrome,
        bth::Bth,
        headers::Headers,
        opcode::{self, Opcode},
    },
    work::SendWork,
};
use roced_types::{QpAttributes, SendOp, Status, attribute, state};

use crate::{
    host::{Fate, Pair, Settings, no_fault, one, sge, work},
    selective::{LIMIT, repairs, survives, warm},
};

/// Lost last packets, or lost answers to them: found within some round trips, not by the ACK timer,
/// and no retry is spent.
#[test]
fn lost_tails_are_found_by_a_probe_and_spend_no_retry() {
    for (op, from, lost) in [
        (SendOp::Write, 0, opcode::RC_WRITE_LAST),
        (SendOp::Send, 0, opcode::RC_SEND_LAST),
        (SendOp::Write, 1, opcode::RC_ACK),
        (SendOp::Send, 1, opcode::RC_ACK),
        (SendOp::Read, 0, opcode::RC_READ_REQUEST),
        (SendOp::Read, 1, opcode::RC_READ_RESPONSE_LAST),
    ] {
        let mut pair = warm(Settings { retry_cnt: 0, ..Settings::default() });
        let mut left = 1;
        let took = survives(&mut pair, op, 5000, |sender, opcode, _| {
            if (sender, opcode) == (from, lost) && left > 0 {
                left -= 1;
                return Fate::Drop;
            }
            Fate::Deliver
        });
        // The probe, and the last packet where the probe was another.
        let [1..=2, 0, 1] = repairs(&pair) else { panic!("{op:?} without {lost}: {:?}", repairs(&pair)) };
        assert!(took < Nanos::from_micros(200), "{op:?} without {lost}: {took:?}");
        let written: usize = pair.hosts.iter().flat_map(|host| &host.app.writes).map(|(_, length)| length).sum();
        assert_eq!(written, 5000, "nothing is executed twice");
    }
}

#[test]
fn the_first_packet_of_a_connection_may_be_the_lost_one() {
    let mut pair = Pair::new(Settings { retry_cnt: 0, ..Settings::default() });
    let took = survives(&mut pair, SendOp::Write, 10, one(0, opcode::RC_WRITE_ONLY, 0, Fate::Drop));
    assert_eq!(repairs(&pair), [1, 0, 1]);
    assert!(took < Nanos::from_micros(1100), "{took:?}");
}

/// Eight probes, each after twice the time; the rest is the ACK timer's, with all of its retries.
#[test]
fn probes_come_slower_and_end() {
    let mut pair = warm(Settings { timeout: 0, ..Settings::default() });
    let begin = pair.trace.len();
    pair.hosts[0].post(&work(1, SendOp::Write, &[sge(0, 10)], 0));
    let start = pair.now;
    let mut times = Vec::new();
    while pair.now - start < Nanos::from_millis(60) {
        if pair.turn(&mut |_, _, _| Fate::Drop) {
            times.push((pair.now - start).0 / 1000);
        }
        pair.now = pair.now + Nanos::from_micros(5);
    }
    assert_eq!(pair.trace.len() - begin, 9);
    let gaps: Vec<u64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    for (number, gap) in gaps.iter().enumerate() {
        let expected = 100 << number;
        assert!((expected..=expected + 20).contains(gap), "{gaps:?}");
    }
    assert_eq!(repairs(&pair), [8, 0, 8]);
    pair.settle();
    assert!(pair.hosts[0].take().is_empty(), "no timer is left, and no answer came");
}

#[test]
fn the_ack_timer_counts_as_it_did() {
    for retry_cnt in [0, 2, 7] {
        let mut pair = Pair::new(Settings { retry_cnt, timeout: 10, ..Settings::default() });
        pair.hosts[0].post(&work(1, SendOp::Write, &[sge(0, 10)], 0));
        assert!(pair.run(LIMIT, |_, _, _| Fate::Drop));
        assert_eq!(pair.hosts[0].take(), [(1, Status::TransportRetryExceeded)]);
        assert_eq!(pair.hosts[0].count(QpCount::AckTimeout), u64::from(retry_cnt) + 1);
    }
}

#[test]
fn a_receiver_that_is_not_ready_is_not_probed() {
    let mut pair = warm(Settings { min_rnr_timer: 20, ..Settings::default() });
    pair.hosts[0].post(&work(1, SendOp::Send, &[sge(0, 10)], 0));
    pair.run(Nanos::from_millis(9), no_fault);
    assert_eq!(pair.hosts[0].count(QpCount::AdaptiveRetransmission), 0);
    assert_eq!(pair.hosts[0].count(QpCount::RnrNakReceived), 1);
    pair.hosts[1].post_recv(2, &[sge(0, 10)]);
    pair.settle();
    assert_eq!(pair.hosts[0].take(), [(1, Status::Success)]);
}

#[test]
fn slow_sending_is_no_missing_answer() {
    let mut pair = warm(Settings::default());
    let host = &mut pair.hosts[0];
    let limit = QpAttributes { rate_limit_kbit_per_s: 8000, ..QpAttributes::default() };
    host.endpoint.modify_qp(host.qpn, attribute::RATE_LIMIT, &limit, None).expect("allowed in RTS");
    survives(&mut pair, SendOp::Write, 9000, no_fault);
    assert_eq!(repairs(&pair), [0; 3]);
}

/// A path longer than anything measured, and than the value presumed before: probed packets measure
/// nothing, so the wait stays long until there is a measurement.
#[test]
fn a_long_path_is_probed_until_it_is_measured_and_not_ever_after() {
    for op in [SendOp::Write, SendOp::Read] {
        let mut pair = Pair::new(Settings { timeout: 18, ..Settings::default() });
        // Ten milliseconds each way.
        let far = |_: usize, _: Opcode, _: usize| Fate::Late(2000);
        for _ in 0..2 {
            survives(&mut pair, op, 3000, far);
        }
        let [_, 0, 1..=5] = repairs(&pair) else { panic!("{:?}", repairs(&pair)) };
        let begin = (repairs(&pair), pair.trace.len());
        for _ in 0..5 {
            survives(&mut pair, op, 3000, far);
        }
        assert_eq!(repairs(&pair), begin.0);
        assert_eq!(pair.trace.len() - begin.1, 5 * 4, "three packets one way, one the other");
    }
}

/// Before anything is acknowledged there is no last acknowledged packet: no request has a PSN from
/// before the life.
#[test]
fn the_question_has_a_psn_of_this_life() {
    let mut pair = Pair::new(Settings::default());
    pair.hosts[0].post(&SendWork { flags: 0, ..work(1, SendOp::Write, &[sge(0, 10)], 500_000) });
    let mut lost = false;
    assert!(pair.run(LIMIT, |from: usize, _: Opcode, _| {
        if from == 0 && !lost {
            lost = true;
            return Fate::Drop;
        }
        Fate::Deliver
    }));
    assert_eq!(pair.hosts[0].count(QpCount::AckTimeout), 0);
    let first = pair.settings.psn;
    assert!(pair.trace.iter().all(|(from, _, psn)| *from == 1 || *psn >= first), "{:?}", pair.trace);
}

/// The first burst of a life is lost once, before any round trip was measured; from then on the
/// network delivers all. Neither the ACK timer nor a wait that grows with each packet is needed to
/// send it again.
#[test]
fn a_first_burst_that_is_lost_is_sent_again_soon() {
    for (timeout, packets) in
        [14, 20, 0].into_iter().flat_map(|timeout| [2, 8, 32, 64].map(|packets| (timeout, packets)))
    {
        let mut pair = Pair::new(Settings { timeout, ..Settings::default() });
        pair.hosts[0].post(&work(1, SendOp::Write, &[sge(0, packets * 1024)], 500_000));
        let mut seen = 0;
        let rested = pair.run(Nanos::from_millis(600_000), |from, _, _| {
            seen += usize::from(from == 0);
            if from == 0 && seen <= packets { Fate::Drop } else { Fate::Deliver }
        });
        assert_eq!(pair.hosts[0].take(), [(1, Status::Success)], "timeout {timeout}, {packets} packets");
        assert!(rested && pair.now < Nanos::from_millis(20), "timeout {timeout}, {packets} packets: {:?}", pair.now);
    }
}

/// A client begins to send before its peer's queue pair is ready to receive: as above, and the
/// network loses nothing.
#[test]
fn a_first_burst_before_the_peer_is_ready_is_sent_again_soon() {
    for (timeout, bytes) in
        [14, 18, 0].into_iter().flat_map(|timeout| [100, 8 * 1024, 64 * 1024].map(|bytes| (timeout, bytes)))
    {
        let mut pair = Pair::unconnected(Settings { timeout, ..Settings::default() });
        pair.connect_one(0);
        pair.hosts[0].post(&work(1, SendOp::Write, &[sge(0, bytes)], 500_000));
        pair.run(Nanos::from_micros(1500), no_fault);
        pair.connect_one(1);
        let rested = pair.run(Nanos::from_millis(600_000), no_fault);
        assert_eq!(pair.hosts[0].take(), [(1, Status::Success)], "timeout {timeout}, {bytes} bytes");
        assert!(rested && pair.now < Nanos::from_millis(30), "timeout {timeout}, {bytes} bytes: {:?}", pair.now);
    }
}

/// Packets that were sent again measure no round trip, and have two ACKs. The second arrives right
/// behind a question about packets sent later: nothing tells that it does not answer that.
#[test]
fn an_ack_before_the_first_measurement_shows_no_loss() {
    for reorder_delay in [0, 100] {
        let recovery = RecoveryConfig {
            reorder_delay: Nanos::from_micros(reorder_delay),
            probe_floor: Nanos::from_millis(1),
            ..RecoveryConfig::default()
        };
        let mut pair = Pair::new(Settings { window: 17, recovery: [recovery; 2], ..Settings::default() });
        survives(&mut pair, SendOp::Write, 3000, one(0, opcode::RC_WRITE_FIRST, 0, Fate::Drop));
        let before = repairs(&pair);
        pair.hosts[0].post(&work(2, SendOp::Write, &[sge(11, 40 * 1024)], 600_000));
        let mut silent = |from, _, _| if from == 1 { Fate::Drop } else { Fate::Deliver };
        pair.turn(&mut silent);
        // The drain asks for an ACK.
        let (host, drain) = (&mut pair.hosts[0], QpAttributes { state: state::SQD, ..QpAttributes::default() });
        host.endpoint.modify_qp(host.qpn, attribute::STATE, &drain, None).expect("from RTS");
        pair.turn(&mut silent);
        let last = Psn::new(pair.settings.psn).plus(2);
        assert_eq!(pair.trace.iter().rfind(|(from, ..)| *from == 0), Some(&(0, opcode::RC_WRITE_ONLY, last.get())));
        let bth = Bth::new(opcode::RC_ACK, pair.hosts[0].qpn, last);
        let aeth = Some(Aeth { syndrome: Syndrome::ACK, msn: 1 });
        let ack = pair.frame(1, &Headers { aeth, ..Headers::new(bth) }, &[]);
        pair.deliver(0, &ack);
        for _ in 0..20 {
            pair.now = pair.now + Nanos::from_micros(5);
            pair.turn(&mut silent);
        }
        assert_eq!(repairs(&pair), before, "reorder delay {reorder_delay} us");
        pair.settle();
        assert_eq!(pair.hosts[0].take(), [(2, Status::Success)]);
    }
}
