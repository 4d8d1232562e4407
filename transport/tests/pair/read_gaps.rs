//! READ: gaps between responses, and the packets buffered behind them.

use roced_transport::{
    clock::Nanos,
    counters::QpCount,
    psn::Psn,
    recovery::RecoveryConfig,
    wire::{
        Aeth, Syndrome,
        bth::Bth,
        headers::Headers,
        opcode::{self, Operation},
    },
};
use roced_types::{QpAttributes, SendOp, Status, attribute};

use crate::{
    host::{Fate, Pair, Settings, bth, forged, one, sge, work},
    selective::{HELD, LIMIT, repairs, survives, warm},
};

/// A READ of one chunk of 16 packets; responses with these numbers are lost.
fn read_without(lost: &[usize]) -> Pair {
    let mut pair = warm(Settings { rd_atomic: 4, ..Settings::default() });
    let mut seen = 0;
    survives(&mut pair, SendOp::Read, 16 * 1024, |from, _, _| {
        seen += from;
        if from == 1 && lost.contains(&(seen - 1)) { Fate::Drop } else { Fate::Deliver }
    });
    let order: Vec<u64> = pair.hosts[0].app.writes.iter().map(|(offset, _)| *offset).collect();
    assert!(order.len() == 16 && order.is_sorted(), "each once and in order: {order:?}");
    assert_eq!(pair.hosts[0].count(QpCount::AckTimeout), 0);
    pair
}

#[test]
fn read_responses_behind_a_gap_are_held() {
    let pair = read_without(&[5]);
    assert_eq!(pair.hosts[0].count(QpCount::OutOfOrderBuffered), 10);
    assert_eq!(pair.hosts[0].count(QpCount::ImpliedNak), 1);
    let requests: Vec<u32> =
        pair.trace.iter().filter(|(_, opcode, _)| *opcode == opcode::RC_READ_REQUEST).map(|(.., psn)| *psn).collect();
    let [first, second] = requests[..] else { panic!("asked once again: {requests:?}") };
    assert_eq!(second, (first + 5) & 0x00ff_ffff, "from the lowest that is missing");
    assert_eq!(pair.sent(1, Operation::ReadResponse), 16 + 1, "to the first that is there");
}

/// The first repetition brings the responses missing before the first buffered one, the second the
/// rest of the request.
#[test]
fn two_repetitions_serve_every_gap_of_a_read_request() {
    for (lost, repetitions, responses) in
        [(&[5][..], 1, 1), (&[5, 9], 2, 1 + 7), (&[0, 14], 2, 1 + 2), (&[1, 3, 5, 7, 9, 11, 13], 2, 1 + 13)]
    {
        let pair = read_without(lost);
        assert_eq!(pair.sent(0, Operation::ReadRequest), 1 + repetitions, "without {lost:?}");
        assert_eq!(pair.sent(1, Operation::ReadResponse), 16 + responses, "without {lost:?}");
        assert_eq!(pair.hosts[0].count(QpCount::AdaptiveRetransmission), 0);
    }
}

/// The rate blocks for longer than the ACK timer runs: the one retry is spent on the repetition,
/// not on waiting for it. Buffered packets are too old by then, and requested as well.
#[test]
fn a_retry_is_spent_only_on_repeated_requests() {
    let mut pair = warm(Settings { retry_cnt: 1, timeout: 10, ..Settings::default() });
    let host = &mut pair.hosts[0];
    // 17 ms for the request; its answer determines the cost.
    let limit = QpAttributes { rate_limit_kbit_per_s: 8000, ..QpAttributes::default() };
    host.endpoint.modify_qp(host.qpn, attribute::RATE_LIMIT, &limit, None).expect("allowed in RTS");
    survives(&mut pair, SendOp::Read, 16 * 1024, one(1, opcode::RC_READ_RESPONSE_MIDDLE, 4, Fate::Drop));
    assert_eq!((pair.hosts[0].count(QpCount::ImpliedNak), repairs(&pair)), (2, [2, 0, 0]));
}

#[test]
fn a_repeated_response_may_be_lost_too() {
    // Response 5 comes again as number 16, and with all behind it as 17 to 27: that is lost, or all
    // of them.
    for (again, probes) in [(16..17, 1), (16..28, 2)] {
        let lost: Vec<usize> = [5].into_iter().chain(again).collect();
        let pair = read_without(&lost);
        assert_eq!(pair.sent(0, Operation::ReadRequest), 2 + probes);
        assert_eq!(pair.hosts[0].count(QpCount::ImpliedNak), 1);
        assert_eq!(pair.hosts[0].count(QpCount::AdaptiveRetransmission), probes as u64);
    }
}

/// Once each of these was taken for an answer to the last request, asked again and spent a retry.
#[test]
fn a_response_that_is_held_already_asks_for_nothing() {
    let mut pair = warm(Settings { rd_atomic: 4, ..Settings::default() });
    let mut seen = 0;
    // Response 5 is lost, and 5 of the repetition; those behind either come one by one, while the
    // requester has its turns.
    survives(&mut pair, SendOp::Read, 16 * 1024, |from, _, _| {
        seen += from;
        match (from, seen - from) {
            (1, 5 | 16) => Fate::Drop,
            (1, number @ 6..27) => Fate::Late(number - 5),
            _ => Fate::Deliver,
        }
    });
    assert_eq!(pair.hosts[0].count(QpCount::ImpliedNak), 1);
    assert_eq!(pair.hosts[0].count(QpCount::AdaptiveRetransmission), 1);
    assert_eq!(pair.sent(0, Operation::ReadRequest), 3);
}

/// Once a time-out forgot that it had asked again: the next packet of any kind that came asked once
/// more, and spent another retry.
#[test]
fn out_of_order_packets_request_nothing_after_a_timeout() {
    let mut pair = warm(Settings { timeout: 8, ..Settings::default() });
    pair.hosts[0].post(&work(1, SendOp::Read, &[sge(11, 16 * 1024)], 600_000));
    let mut seen = 0;
    // Response 5 is lost, and then all that asks for it, while the peer's own requests go on.
    let mut fate = |from, opcode, nth| {
        let is_response = from == 1 && opcode != opcode::RC_WRITE_ONLY && opcode != opcode::RC_ACK;
        seen += usize::from(is_response);
        match (from, opcode) {
            (0, opcode::RC_READ_REQUEST) if nth > 0 => Fate::Drop,
            (1, _) if is_response && seen == 6 => Fate::Drop,
            _ => Fate::Deliver,
        }
    };
    while pair.hosts[0].count(QpCount::AckTimeout) < 5 {
        pair.hosts[1].post(&work(9, SendOp::Write, &[sge(0, 10)], 0));
        pair.turn(&mut fate);
        pair.now = pair.now + Nanos::from_micros(20);
        assert!(pair.hosts[0].take().is_empty(), "it is not given up");
    }
    pair.settle();
    assert_eq!(pair.hosts[0].take(), [(1, Status::Success)]);
    assert_eq!(pair.hosts[0].count(QpCount::ImpliedNak), 1);
    assert!(pair.hosts[0].app.memory[11..11 + 16 * 1024] == pair.hosts[1].app.memory[600_000..600_000 + 16 * 1024]);
}

/// Two late responses that arrive directly one after the other discard the packets buffered behind
/// them, which only a request brings again.
#[test]
fn responses_that_were_given_up_are_asked_for_without_a_probe() {
    let mut pair = warm(Settings { rd_atomic: 4, ..Settings::default() });
    let mut seen = 0;
    // The last two of the first chunk; those of the next are held.
    survives(&mut pair, SendOp::Read, 32 * 1024, |from, _, _| {
        seen += from;
        if from == 1 && [14, 15].contains(&(seen - 1)) { Fate::Late(1) } else { Fate::Deliver }
    });
    assert_eq!((repairs(&pair)[1..].to_vec(), pair.hosts[0].count(QpCount::ImpliedNak)), (vec![0, 0], 2));
}

/// Responses that were lost in sequence arrive again in sequence, and packets buffered behind them
/// are discarded: all are requested again at once, not by each arriving response.
#[test]
fn packets_discarded_by_a_repetition_are_requested_once() {
    let mut pair = warm(Settings { rd_atomic: 4, ..Settings::default() });
    let mut seen = 0;
    survives(&mut pair, SendOp::Read, 32 * 1024, |from, _, _| {
        seen += from;
        if from == 1 && [7, 8, 9].contains(&(seen - 1)) { Fate::Drop } else { Fate::Deliver }
    });
    assert_eq!((repairs(&pair)[1..].to_vec(), pair.hosts[0].count(QpCount::ImpliedNak)), (vec![0, 0], 2));
    assert_eq!(pair.sent(1, Operation::ReadResponse), 32 + 3 + 22);
}

/// The last response overtakes the others, and once more when it is requested again. The others
/// arrive directly one after the other, so it is discarded; its repetition has arrived as well, and
/// nothing waits for that.
#[test]
fn a_response_that_came_twice_and_was_given_up_is_asked_for_without_a_probe() {
    let mut pair = warm(Settings { rd_atomic: 4, ..Settings::default() });
    let mut seen = 0;
    survives(&mut pair, SendOp::Read, 4 * 1024, |from, _, _| {
        seen += from;
        match (from, seen - from) {
            (1, 0..=2) => Fate::Late(6),
            (1, 4..=6) => Fate::Drop,
            _ => Fate::Deliver,
        }
    });
    assert_eq!(repairs(&pair)[1..], [0, 0]);
    assert_eq!((pair.hosts[0].count(QpCount::ImpliedNak), pair.sent(0, Operation::ReadRequest)), (2, 3));
}

/// A packet without room is lost, and nothing buffered behind it shows this.
#[test]
fn responses_without_room_are_asked_for_without_a_probe() {
    let recovery = RecoveryConfig { out_of_order_packets: 8, ..RecoveryConfig::default() };
    let mut pair = warm(Settings { recovery: [recovery; 2], rd_atomic: 4, ..Settings::default() });
    let mut seen = 0;
    // The last of the first chunk; of the next some are held.
    survives(&mut pair, SendOp::Read, 32 * 1024, |from, _, _| {
        seen += from;
        if from == 1 && seen - 1 == 15 { Fate::Drop } else { Fate::Deliver }
    });
    assert!(pair.hosts[0].drops()["drop_out_of_order_no_buffer"] > 0, "{:?}", pair.hosts[0].drops());
    assert_eq!((repairs(&pair)[1..].to_vec(), pair.hosts[0].count(QpCount::ImpliedNak)), (vec![0, 0], 2));
}

#[test]
fn an_ack_behind_a_gap_is_not_forgotten() {
    let mut pair = warm(Settings::default());
    pair.hosts[0].post(&work(1, SendOp::Read, &[sge(0, 3000)], 600_000));
    pair.hosts[0].post(&work(2, SendOp::Write, &[sge(5000, 9000)], 700_000));
    pair.hosts[0].post(&work(3, SendOp::Read, &[sge(20_000, 3000)], 600_000));
    assert!(pair.run(LIMIT, one(1, opcode::RC_READ_RESPONSE_MIDDLE, 0, Fate::Drop)));
    assert_eq!(pair.hosts[0].take(), [1, 2, 3].map(|wr_id| (wr_id, Status::Success)));
    assert_eq!(repairs(&pair), [2, 0, 0], "the READ requests, and nothing between them");
    assert_eq!(pair.sent(0, Operation::ReadRequest), 4);
    assert!(pair.hosts[0].app.memory[20_000..23_000] == pair.hosts[1].app.memory[600_000..603_000]);
}

/// The first answer of a life overtakes a READ response, and acknowledges a packet before the READ
/// as well as one behind it. Once the latter was forgotten: a buffered answer was not due, or the
/// packet was sent again.
#[test]
fn the_first_answer_of_a_life_is_not_forgotten_behind_a_gap() {
    for last in [SendOp::AtomicWrite, SendOp::Write] {
        let recovery = RecoveryConfig { reorder_delay: Nanos::from_micros(100), ..RecoveryConfig::default() };
        let mut pair = Pair::new(Settings { recovery: [recovery; 2], ..Settings::default() });
        pair.hosts[0].post(&work(1, SendOp::Write, &[sge(5000, 10)], 700_000));
        pair.hosts[0].post(&work(2, SendOp::Read, &[sge(0, 1000)], 600_000));
        pair.hosts[0].post(&work(3, SendOp::Write, &[sge(5000, 10)], 700_000));
        pair.hosts[0].post(&work(4, last, &[], 700_000));
        assert!(pair.run(LIMIT, one(1, opcode::RC_READ_RESPONSE_ONLY, 0, Fate::Late(1))));
        assert!(
            pair.trace
                .iter()
                .find(|(from, ..)| *from == 1)
                .is_some_and(|(_, opcode, _)| *opcode == opcode::RC_READ_RESPONSE_ONLY)
        );
        assert_eq!(pair.hosts[0].take(), [1, 2, 3, 4].map(|wr_id| (wr_id, Status::Success)), "{last:?}");
        assert_eq!((repairs(&pair), pair.hosts[0].count(QpCount::ImpliedNak)), ([0; 3], 0), "{last:?}");
    }
}

/// A peer that acknowledges each packet does so many times before the repetition can be answered,
/// and the responses of a later READ come meanwhile.
#[test]
fn answers_behind_a_gap_that_was_asked_for_spend_no_retry() {
    for (reorder_delay, response) in [(0, false), (0, true), (50, false), (50, true)] {
        let recovery = RecoveryConfig { reorder_delay: Nanos::from_micros(reorder_delay), ..RecoveryConfig::default() };
        let mut pair = warm(Settings { retry_cnt: 2, timeout: 20, recovery: [recovery; 2], ..Settings::default() });
        let first = pair.settings.psn + 20;
        pair.hosts[0].post(&work(1, SendOp::Read, &[sge(0, 1000)], 600_000));
        pair.hosts[0].post(&work(2, SendOp::Write, &[sge(5000, 10)], 700_000));
        pair.hosts[0].post(&work(3, SendOp::Read, &[sge(20_000, 1000)], 600_000));
        let mut silent = |from, _, _| if from == 1 { Fate::Drop } else { Fate::Deliver };
        while pair.hosts[1].app.memory[700_000..700_010] != pair.hosts[0].app.memory[5000..5010] {
            pair.turn(&mut silent);
        }
        let aeth = |msn| Some(Aeth { syndrome: Syndrome::ACK, msn });
        let bth = |opcode, psn| Bth::new(opcode, pair.hosts[0].qpn, Psn::new(psn));
        let ack = pair.frame(1, &Headers { aeth: aeth(22), ..Headers::new(bth(opcode::RC_ACK, first + 1)) }, &[]);
        let later = Headers { aeth: aeth(23), ..Headers::new(bth(opcode::RC_READ_RESPONSE_ONLY, first + 2)) };
        let later = pair.frame(1, &later, &pair.hosts[1].app.memory[600_000..601_000]);
        // For less than a round trip after the gap showed first.
        for _ in 0..20 {
            if response {
                pair.deliver(0, &later);
            }
            pair.deliver(0, &ack);
            pair.now = pair.now + Nanos::from_micros(5);
            pair.turn(&mut silent);
        }
        assert_eq!(pair.hosts[0].take(), [], "it is not given up: {reorder_delay} us, response: {response}");
        assert_eq!(pair.hosts[0].count(QpCount::ImpliedNak), 1, "{reorder_delay} us, response: {response}");
        assert!(pair.run(LIMIT, |_, _, _| Fate::Deliver));
        assert_eq!(pair.hosts[0].take(), [1, 2, 3].map(|wr_id| (wr_id, Status::Success)));
        assert!(pair.hosts[0].app.memory[20_000..21_000] == pair.hosts[1].app.memory[600_000..601_000]);
    }
}

#[test]
fn a_nak_behind_a_gap_is_not_forgotten() {
    let mut pair = warm(Settings::default());
    pair.hosts[0].post(&work(1, SendOp::Read, &[sge(0, 3000)], 600_000));
    pair.hosts[0].post(&work(2, SendOp::Write, &[sge(5000, 9000)], 700_000));
    let mut lost = 0;
    assert!(pair.run(LIMIT, |_, opcode, nth| {
        if nth == 0 && matches!(opcode, opcode::RC_READ_RESPONSE_MIDDLE | opcode::RC_WRITE_MIDDLE) {
            lost += 1;
            return Fate::Drop;
        }
        Fate::Deliver
    }));
    assert_eq!(lost, 2);
    assert_eq!(pair.hosts[0].take(), [1, 2].map(|wr_id| (wr_id, Status::Success)));
    let [_, 0, 0] = repairs(&pair) else { panic!("no timer: {:?}", repairs(&pair)) };
    assert!(pair.hosts[1].app.memory[700_000..709_000] == pair.hosts[0].app.memory[5000..14_000]);
}

#[test]
fn gaps_in_several_reads_are_filled_one_after_the_other_without_a_timer() {
    let mut pair = warm(Settings { rd_atomic: 16, ..Settings::default() });
    for wr_id in 0..8 {
        pair.hosts[0].post(&work(wr_id, SendOp::Read, &[sge(wr_id * 8000, 8000)], 600_000));
    }
    let mut seen = 0;
    assert!(pair.run(LIMIT, |from, _, _| {
        seen += from;
        if from == 1 && seen < 64 && seen % 5 == 3 { Fate::Drop } else { Fate::Deliver }
    }));
    assert_eq!(pair.hosts[0].take().len(), 8);
    assert_eq!(pair.hosts[0].count(QpCount::AckTimeout), 0);
    for at in 0..8 {
        assert!(pair.hosts[0].app.memory[at * 8000..][..8000] == pair.hosts[1].app.memory[600_000..608_000]);
    }
}

#[test]
fn a_forged_answer_behind_a_gap_is_nothing_when_its_turn_comes() {
    let mut pair = Pair::established(Settings::default());
    pair.hosts[1].post(&work(1, SendOp::Read, &[sge(0, 1000)], 0));
    pair.hosts[1].post(&work(2, SendOp::Write, &[sge(0, 2000)], 0));
    pair.turn(&mut |_, _, _| Fate::Drop);
    let first = bth(&pair, opcode::RC_READ_RESPONSE_ONLY);
    let aeth = Some(Aeth { syndrome: Syndrome::ACK, msn: 0 });
    let headers = Headers { aeth, ..Headers::new(Bth { psn: first.psn.plus(1), ..first }) };
    let frame = forged(&pair, &headers, &[]);
    assert_eq!(pair.deliver(1, &frame), HELD);
    pair.settle();
    assert_eq!(pair.hosts[1].take(), [(1, Status::Success), (2, Status::Success)]);
    assert_eq!(pair.hosts[1].drops()["drop_unexpected_response"], 1);
    assert!(pair.hosts[1].app.memory[..1000] == pair.hosts[0].app.memory[..1000]);
}

/// The response of one READ is late, within the delay, and those of others overtake it. They are
/// dropped, for the order of READs, and asked for again: that is no fault of the peer or the
/// network.
#[test]
fn reads_that_overtake_another_within_the_reorder_delay_spend_no_retry() {
    for (retry_cnt, reads, bytes) in [(7, 2, 100), (1, 3, 100), (0, 2, 100), (0, 3, 100), (0, 2, 3000), (0, 3, 3000)] {
        let recovery = RecoveryConfig { reorder_delay: Nanos::from_micros(100), ..RecoveryConfig::default() };
        let mut pair = warm(Settings { retry_cnt, recovery: [recovery; 2], ..Settings::default() });
        for id in 0..reads {
            pair.hosts[0].post(&work(id, SendOp::Read, &[sge(400_000 + id * 4096, bytes)], 600_000));
        }
        let mut answers = 0;
        pair.run(LIMIT, |from, _, _| {
            answers += from;
            if from == 1 && answers == 1 { Fate::Late(3) } else { Fate::Deliver }
        });
        let expected: Vec<_> = (0..reads).map(|id| (id, Status::Success)).collect();
        assert_eq!(pair.hosts[0].take(), expected, "{reads} READs of {bytes}, retry_cnt {retry_cnt}");
        assert_eq!(pair.hosts[0].count(QpCount::ImpliedNak), 0);
        assert_eq!(pair.hosts[0].count(QpCount::RetryExceeded), 0);
    }
}
