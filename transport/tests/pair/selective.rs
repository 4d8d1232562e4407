//! Minimal retransmission on the standard's wire: out-of-order packets are buffered until their
//! turn, a peer that buffers is sent only missing packets, probes find lost last packets. Each rule
//! by one scenario, with particular losses.

use roced_transport::{
    clock::Nanos,
    counters::QpCount,
    recovery::RecoveryConfig,
    reject::{Disposition, DropReason},
    wire::{
        NakCode, Syndrome,
        bth::Bth,
        headers::Headers,
        opcode::{self, Opcode},
        reth::Reth,
    },
};
use roced_types::{QpAttributes, SendOp, Status, attribute, state};

use crate::host::{Fate, KEY, Pair, Settings, VA, bth, forged, one, sge, work};

pub(crate) const LIMIT: Nanos = Nanos::from_millis(10_000);
pub(crate) const HELD: Disposition = Disposition::Buffered;

pub(crate) const fn dropped(reason: DropReason) -> Disposition {
    Disposition::Dropped(reason)
}

/// Compares retransmitted packets, timeouts and probes of host 0 with the expected ones, and
/// returns them.
pub(crate) fn repairs(pair: &Pair) -> [u64; 3] {
    [QpCount::RetransmittedPackets, QpCount::AckTimeout, QpCount::AdaptiveRetransmission]
        .map(|what| pair.hosts[0].count(what))
}

/// Gives host 1 a WRITE of one packet, `bytes` to `offset`, that is `ahead` of the first PSN.
fn give_write(pair: &mut Pair, ahead: u32, offset: u64, bytes: &[u8]) -> Disposition {
    let first = bth(pair, opcode::RC_WRITE_ONLY);
    let reth = Some(Reth { va: VA + offset, rkey: KEY, length: bytes.len() as u32 });
    let bth = Bth { psn: first.psn.plus(ahead), ack_request: true, ..first };
    let frame = forged(pair, &Headers { reth, ..Headers::new(bth) }, bytes);
    pair.deliver(1, &frame)
}

/// The same, a SEND.
fn give_send(pair: &mut Pair, ahead: u32) -> Disposition {
    let first = bth(pair, opcode::RC_SEND_ONLY);
    let bth = Bth { psn: first.psn.plus(ahead), ack_request: true, ..first };
    let frame = forged(pair, &Headers::new(bth), &[7; 10]);
    pair.deliver(1, &frame)
}

/// Fate of a packet of a WRITE of two packets, from a peer that sends MigReq as 0.
fn give_plain(pair: &mut Pair, ahead: u32) -> Disposition {
    let opcode = if ahead.is_multiple_of(2) { opcode::RC_WRITE_FIRST } else { opcode::RC_WRITE_LAST };
    let first = bth(pair, opcode);
    let reth = ahead.is_multiple_of(2).then_some(Reth { va: VA, rkey: KEY, length: 1100 });
    let bth = Bth { psn: first.psn.plus(ahead), mig_req: false, ack_request: true, ..first };
    let payload = if reth.is_some() { 1024 } else { 76 };
    let frame = forged(pair, &Headers { reth, ..Headers::new(bth) }, &vec![1; payload]);
    pair.deliver(1, &frame)
}

/// Answers of host 1 now: each syndrome with its PSN, counted from the first.
pub(crate) fn answers(pair: &mut Pair) -> Vec<(Syndrome, u32)> {
    let mut said = Vec::new();
    let first = bth(pair, opcode::RC_ACK).psn;
    let host = &mut pair.hosts[1];
    host.endpoint.on_timeout(pair.now, 16, &mut host.app);
    host.endpoint.poll_transmit(pair.now, 32, &mut host.app, &mut host.nic);
    for frame in host.nic.frames.drain(..) {
        let pieces = [&frame[..]];
        let packet = roced_transport::wire::parse(&pieces).expect("our frame parses");
        // Credits are `credits.rs`'s matter.
        let syndrome = match packet.aeth.expect("an ACK").syndrome {
            Syndrome::Ack { .. } => Syndrome::ACK,
            other => other,
        };
        said.push((syndrome, packet.bth.psn.offset_from(first)));
    }
    said
}

const NAK: Syndrome = Syndrome::Nak(NakCode::PsnSequence);

pub(crate) fn with(recovery: RecoveryConfig) -> Settings {
    Settings { recovery: [recovery; 2], ..Settings::default() }
}

fn with_delay(micros: u64) -> Settings {
    with(RecoveryConfig { reorder_delay: Nanos::from_micros(micros), ..RecoveryConfig::default() })
}

fn with_room(out_of_order_packets: u32) -> Settings {
    with(RecoveryConfig { out_of_order_packets, ..RecoveryConfig::default() })
}

/// A message of `bytes` from host 0 under one fault; checks data and completions. Gives how long it
/// took.
pub(crate) fn survives(
    pair: &mut Pair,
    op: SendOp,
    bytes: usize,
    fate: impl FnMut(usize, Opcode, usize) -> Fate,
) -> Nanos {
    let start = pair.now;
    if op == SendOp::Send {
        pair.hosts[1].post_recv(9, &[sge(600_000, bytes)]);
    }
    pair.hosts[0].post(&work(1, op, &[sge(11, bytes)], 600_000));
    assert!(pair.run(LIMIT, fate), "it comes to rest");
    let end = pair.hosts[0].app.completions.first().map(|completion| completion.time);
    assert_eq!(pair.hosts[0].take(), [(1, Status::Success)]);
    let (here, there) = (&pair.hosts[0].app.memory, &pair.hosts[1].app.memory);
    assert!(here[11..11 + bytes] == there[600_000..600_000 + bytes], "every byte is there");
    if op == SendOp::Send {
        assert_eq!(pair.hosts[1].take(), [(9, Status::Success)]);
    }
    end.expect("there was one") - start
}

/// A pair that has measured its round trip.
pub(crate) fn warm(settings: Settings) -> Pair {
    let mut pair = Pair::new(settings);
    for wr_id in 0..20 {
        pair.hosts[0].post(&work(wr_id, SendOp::Write, &[sge(0, 10)], 0));
        pair.settle();
    }
    pair.hosts[0].take();
    pair.hosts[1].app.writes.clear();
    pair
}

// Responder.

#[test]
fn an_early_packet_has_no_effect_before_its_turn() {
    let mut pair = Pair::established(Settings::default());
    pair.hosts[1].post_recv(1, &[sge(100, 10)]);
    pair.hosts[1].post_recv(2, &[sge(200, 10)]);
    assert_eq!(give_write(&mut pair, 2, 500, &[2; 8]), HELD);
    assert_eq!(give_send(&mut pair, 1), HELD);
    assert_eq!(answers(&mut pair), [(NAK, 0)]);
    assert!(pair.hosts[1].app.writes.is_empty() && pair.hosts[1].take().is_empty());
    assert_eq!(give_write(&mut pair, 0, 500, &[1; 8]), Disposition::Accepted);
    assert_eq!(pair.hosts[1].app.writes, [(500, 8), (100, 10), (500, 8)], "each in its turn");
    assert_eq!(pair.hosts[1].app.memory[500..508], [2; 8], "the later WRITE wins");
    assert_eq!(pair.hosts[1].take(), [(1, Status::Success)]);
    assert_eq!(answers(&mut pair), [(Syndrome::ACK, 2)]);
    assert_eq!(pair.hosts[1].count(QpCount::OutOfOrderBuffered), 2);
    assert_eq!(pair.hosts[1].count(QpCount::ReceivedPackets), 2 + 3);
    assert!(pair.hosts[1].drops().is_empty());
}

#[test]
fn each_hole_has_one_nak_and_the_next_hole_its_own_at_once() {
    let mut pair = Pair::established(Settings::default());
    for ahead in [1, 2, 5, 4, 7] {
        assert_eq!(give_write(&mut pair, ahead, 0, &[1]), HELD);
    }
    assert_eq!(answers(&mut pair), [(NAK, 0)]);
    assert_eq!(give_write(&mut pair, 0, 0, &[1]), Disposition::Accepted);
    assert_eq!(answers(&mut pair), [(NAK, 3)]);
    assert_eq!(give_write(&mut pair, 8, 0, &[1]), HELD);
    assert_eq!(answers(&mut pair), []);
    assert_eq!(give_write(&mut pair, 3, 0, &[1]), Disposition::Accepted);
    assert_eq!(answers(&mut pair), [(NAK, 6)]);
    assert_eq!(give_write(&mut pair, 6, 0, &[1]), Disposition::Accepted);
    assert_eq!(answers(&mut pair), [(Syndrome::ACK, 8)]);
    assert_eq!(pair.hosts[1].count(QpCount::SequenceNakSent), 3);
    assert_eq!(pair.hosts[1].app.writes.len(), 9);
}

#[test]
fn a_nak_that_an_ack_replaces_is_not_counted_as_sent() {
    let mut pair = Pair::established(Settings::default());
    assert_eq!([give_write(&mut pair, 1, 10, &[2]), give_write(&mut pair, 0, 0, &[1])][0], HELD);
    assert_eq!(answers(&mut pair), [(Syndrome::ACK, 1)]);
    assert_eq!(pair.hosts[1].count(QpCount::SequenceNakSent), 0);
    assert_eq!(give_write(&mut pair, 3, 10, &[2]), HELD);
    assert_eq!(answers(&mut pair), [(NAK, 2)]);
    assert_eq!(pair.hosts[1].count(QpCount::SequenceNakSent), 1);

    let mut pair = Pair::established(Settings::default());
    let (not_ready, timer) = (dropped(DropReason::ReceiverNotReady), Settings::default().min_rnr_timer as u8);
    assert_eq!([give_send(&mut pair, 0), give_send(&mut pair, 0)], [not_ready; 2]);
    assert_eq!(answers(&mut pair), [(Syndrome::Rnr { timer }, 0)]);
    assert_eq!(pair.hosts[1].count(QpCount::RnrNakSent), 1);
}

#[test]
fn a_hole_that_fills_within_the_reorder_delay_has_no_nak() {
    let mut pair = Pair::established(with_delay(100));
    assert_eq!(give_write(&mut pair, 1, 0, &[1]), HELD);
    pair.now = pair.now + Nanos::from_micros(60);
    assert_eq!(give_write(&mut pair, 3, 0, &[1]), HELD);
    assert_eq!(answers(&mut pair), []);
    assert_eq!(give_write(&mut pair, 0, 0, &[1]), Disposition::Accepted);
    // The delay of the remaining hole runs since the packet behind it arrived.
    pair.now = pair.now + Nanos::from_micros(90);
    assert_eq!(answers(&mut pair), [(Syndrome::ACK, 1)]);
    pair.now = pair.now + Nanos::from_micros(20);
    assert_eq!(answers(&mut pair), [(NAK, 2)]);
    pair.now = pair.now + Nanos::from_micros(1000);
    assert_eq!(answers(&mut pair), []);
}

#[test]
fn an_rnr_nak_frees_out_of_order_packets_until_the_retransmission() {
    let mut pair = Pair::established(Settings::default());
    assert_eq!(give_send(&mut pair, 1), HELD);
    assert_eq!(give_send(&mut pair, 0), dropped(DropReason::ReceiverNotReady));
    assert_eq!(pair.hosts[1].drops()["drop_out_of_order_discarded"], 1);
    assert_eq!(answers(&mut pair), [(Syndrome::Rnr { timer: 12 }, 0)]);
    assert_eq!(give_send(&mut pair, 1), dropped(DropReason::OutOfSequence));
    assert_eq!(answers(&mut pair), []);
    for wr_id in 1..=3 {
        pair.hosts[1].post_recv(wr_id, &[sge(0, 10)]);
    }
    assert_eq!(give_send(&mut pair, 0), Disposition::Accepted);
    assert_eq!(give_send(&mut pair, 2), HELD);
    assert_eq!(give_send(&mut pair, 1), Disposition::Accepted);
    assert_eq!(pair.hosts[1].take().len(), 3);
}

/// The buffered packet itself finds no receive work in its turn: the packets behind it are
/// discarded.
#[test]
fn a_held_packet_may_find_the_receiver_not_ready() {
    let mut pair = Pair::established(Settings::default());
    pair.hosts[1].post_recv(1, &[sge(0, 10)]);
    assert_eq!((give_send(&mut pair, 1), give_send(&mut pair, 2)), (HELD, HELD));
    assert_eq!(give_send(&mut pair, 0), Disposition::Accepted);
    assert_eq!(answers(&mut pair), [(Syndrome::Rnr { timer: 12 }, 1)]);
    assert_eq!(pair.hosts[1].drops()["drop_receiver_not_ready"], 1);
    assert_eq!(pair.hosts[1].drops()["drop_out_of_order_discarded"], 1);
}

#[test]
fn errors_state_changes_and_removal_free_out_of_order_packets() {
    let fill = || {
        let mut pair = Pair::established(with_room(2));
        assert_eq!(give_write(&mut pair, 1, 0, &[1]), HELD);
        assert_eq!(give_write(&mut pair, 2, 0, &[1]), dropped(DropReason::OutOfOrderNoBuffer));
        pair
    };
    // A request without right fails the queue pair.
    let mut pair = fill();
    assert_eq!(give_write(&mut pair, 0, 1 << 40, &[1]), dropped(DropReason::RemoteAccess));
    assert_eq!(pair.hosts[1].drops()["drop_out_of_order_discarded"], 1);
    for to in [state::ERR, state::RESET] {
        let mut pair = fill();
        let host = &mut pair.hosts[1];
        let attributes = QpAttributes { state: to, ..QpAttributes::default() };
        host.endpoint.modify_qp(host.qpn, attribute::STATE, &attributes, None).expect("from anywhere");
        assert_eq!(host.drops()["drop_out_of_order_discarded"], 1);
        if to == state::RESET {
            pair.connect_one(1);
            assert_eq!(give_write(&mut pair, 0, 0, &[1]), dropped(DropReason::OtherSourcePort));
            pair.now = pair.now + Nanos::from_millis(2);
            assert_eq!(give_write(&mut pair, 0, 0, &[1]), Disposition::Accepted);
            pair.now = pair.now + roced_transport::qp::QUARANTINE;
            assert_eq!(give_write(&mut pair, 2, 0, &[1]), HELD, "there is room again");
            assert_eq!(give_write(&mut pair, 1, 0, &[1]), Disposition::Accepted);
            assert_eq!(pair.hosts[1].app.writes.len(), 3, "nothing of before");
        }
    }
    let mut pair = fill();
    let host = &mut pair.hosts[1];
    host.endpoint.remove_qp(host.qpn).expect("there");
    assert_eq!(host.drops()["drop_out_of_order_discarded"], 1);
}

#[test]
fn a_plain_peer_is_acknowledged_a_message_when_it_has_sent_all_of_it() {
    let mut pair = Pair::new(Settings::default());
    assert_eq!(give_plain(&mut pair, 0), Disposition::Accepted);
    assert_eq!(give_plain(&mut pair, 2), dropped(DropReason::OutOfSequence), "not held");
    assert_eq!(answers(&mut pair), [(NAK, 1)]);
    for ahead in 1..4 {
        assert_eq!(give_plain(&mut pair, ahead), Disposition::Accepted);
    }
    assert_eq!(answers(&mut pair), [(Syndrome::ACK, 3)]);
    // Its ACK is lost: it sends all again.
    for (ahead, acknowledged) in [(0, 0), (1, 3), (2, 2), (3, 3)] {
        assert_eq!(give_plain(&mut pair, ahead), dropped(DropReason::Duplicate));
        assert_eq!(answers(&mut pair), [(Syndrome::ACK, acknowledged)]);
    }
}

/// As Linux rxe does when a message is longer than its window: it asks within, and sends the same
/// again until it has an answer.
#[test]
fn a_plain_peer_that_asks_within_a_message_is_answered_each_time() {
    let mut pair = Pair::new(Settings::default());
    let give = |pair: &mut Pair, ahead: u32| {
        let first = bth(pair, if ahead == 0 { opcode::RC_WRITE_FIRST } else { opcode::RC_WRITE_MIDDLE });
        let reth = (ahead == 0).then_some(Reth { va: VA, rkey: KEY, length: 9000 });
        let bth = Bth { psn: first.psn.plus(ahead), mig_req: false, ack_request: ahead == 2, ..first };
        let frame = forged(pair, &Headers { reth, ..Headers::new(bth) }, &[1; 1024]);
        pair.deliver(1, &frame)
    };
    for ahead in 0..4 {
        assert_eq!(give(&mut pair, ahead), Disposition::Accepted);
    }
    assert_eq!(answers(&mut pair), [(Syndrome::ACK, 3)]);
    // The ACK is lost, and lost again.
    for _ in 0..2 {
        for (ahead, acknowledged) in [(0, None), (1, None), (2, Some((Syndrome::ACK, 2))), (3, None)] {
            assert_eq!(give(&mut pair, ahead), dropped(DropReason::Duplicate));
            assert_eq!(answers(&mut pair), Vec::from_iter(acknowledged));
        }
    }
}

#[test]
fn past_its_share_a_packet_is_dropped_and_comes_again() {
    let mut pair = Pair::established(with_room(4));
    let dispositions: Vec<_> = (1..=4).map(|ahead| give_write(&mut pair, ahead, 0, &[1])).collect();
    let full = dropped(DropReason::OutOfOrderNoBuffer);
    assert_eq!(dispositions, [HELD, HELD, full, full]);
    assert_eq!(answers(&mut pair), [(NAK, 0)]);
    assert_eq!(give_write(&mut pair, 0, 0, &[1]), Disposition::Accepted);
    assert_eq!(answers(&mut pair), [(Syndrome::ACK, 2)], "it knows of nothing behind");
    assert_eq!(give_write(&mut pair, 4, 0, &[1]), HELD);
    assert_eq!(answers(&mut pair), [(NAK, 3)]);
}

#[test]
fn a_held_packet_that_comes_again_is_a_duplicate_and_not_answered() {
    let mut pair = Pair::established(Settings::default());
    assert_eq!(give_write(&mut pair, 1, 0, &[1]), HELD);
    assert_eq!(answers(&mut pair), [(NAK, 0)]);
    assert_eq!(give_write(&mut pair, 1, 0, &[1]), dropped(DropReason::Duplicate));
    assert_eq!(answers(&mut pair), []);
    assert_eq!(give_write(&mut pair, 0, 0, &[1]), Disposition::Accepted);
    assert_eq!(pair.hosts[1].app.writes.len(), 2, "executed once");
}

/// A READ takes a PSN for each response; a peer that lies puts other requests there.
#[test]
fn packets_kept_for_a_lying_peer_are_freed() {
    let mut pair = Pair::established(with_room(2));
    assert_eq!(give_write(&mut pair, 2, 0, &[1]), HELD);
    let read = bth(&pair, opcode::RC_READ_REQUEST);
    let reth = Some(Reth { va: VA, rkey: KEY, length: 5000 });
    let frame = forged(&pair, &Headers { reth, ..Headers::new(read) }, &[]);
    assert_eq!(pair.deliver(1, &frame), Disposition::Accepted);
    assert_eq!(pair.hosts[1].drops()["drop_out_of_order_discarded"], 1);
    assert_eq!(give_write(&mut pair, 6, 0, &[1]), HELD);
}

#[test]
fn early_packets_of_every_kind_are_executed_in_order() {
    for op in [SendOp::Send, SendOp::Write, SendOp::WriteImm] {
        for lost in 0..3 {
            let mut pair = Pair::new(Settings::default());
            let middle = if op == SendOp::Send { opcode::RC_SEND_MIDDLE } else { opcode::RC_WRITE_MIDDLE };
            if op == SendOp::WriteImm {
                pair.hosts[1].post_recv(9, &[]);
            }
            survives(&mut pair, op, 5000, one(0, middle, lost, Fate::Drop));
            assert_eq!(pair.hosts[1].count(QpCount::OutOfOrderBuffered), 3 - lost as u64);
            assert_eq!(pair.hosts[1].count(QpCount::SequenceNakSent), 1);
            let order: Vec<u64> = pair.hosts[1].app.writes.iter().map(|(offset, _)| *offset).collect();
            assert!(order.len() == 5 && order.is_sorted(), "{order:?}");
        }
    }
}

// Requester.

/// A path of 40 us there and little back. Of the packets that host 0 sends those with these numbers
/// are lost.
pub(crate) fn far(lost: &[usize]) -> impl FnMut(usize, Opcode, usize) -> Fate + use<'_> {
    let mut sent = 0;
    move |from, _, _| {
        sent += 1 - from;
        match from {
            0 if lost.contains(&(sent - 1)) => Fate::Drop,
            0 => Fate::Late(8),
            _ => Fate::Deliver,
        }
    }
}

/// A WRITE of `packets` packets from host 0, eight in 5 us, of which those with these numbers are
/// lost. Returns the cost beyond that of every WRITE: retransmitted packets, timeouts, probes; and
/// the duration.
fn write_far_in(pair: &mut Pair, packets: usize, lost: &[usize]) -> ([u64; 3], Nanos) {
    let before = repairs(pair);
    pair.hosts[0].nic.room = 8;
    let took = survives(pair, SendOp::Write, packets * 1024, far(lost));
    let after = repairs(pair);
    (std::array::from_fn(|at| after[at] - before[at]), took)
}

fn write_far(pair: &mut Pair, packets: usize, lost: &[usize]) -> [u64; 3] {
    write_far_in(pair, packets, lost).0
}

/// 400 packets over that path: fifty turns, and there and back.
const WHOLE: Nanos = Nanos::from_micros(400 / 8 * 5 + 50);

/// A connection over that path that knows its round trip.
fn known(recovery: [RecoveryConfig; 2]) -> Pair {
    let mut pair = Pair::new(Settings { window: 128, recovery, ..Settings::default() });
    for _ in 0..10 {
        assert_eq!(write_far(&mut pair, 10, &[]), [0; 3]);
    }
    pair
}

#[test]
fn a_peer_that_keeps_is_found_out_and_sent_one_packet_again() {
    let mut pair = known([RecoveryConfig::default(); 2]);
    let [again, 0, 0] = write_far(&mut pair, 400, &[100]) else { panic!("the NAK is enough: {:?}", repairs(&pair)) };
    assert!((2..=90).contains(&again), "at most the packets under way: {again}");
    assert_eq!(write_far(&mut pair, 400, &[100]), [1, 0, 0]);
    assert_eq!(write_far(&mut pair, 400, &[30, 60, 230]), [3, 0, 0]);
    assert_eq!(pair.hosts[1].count(QpCount::SequenceNakSent), 5);
}

#[test]
fn a_peer_that_does_not_keep_is_sent_everything_again() {
    let mut pair = known([RecoveryConfig::default(), RecoveryConfig::GO_BACK_N]);
    for _ in 0..3 {
        let [again, 0, 0] = write_far(&mut pair, 400, &[100]) else { panic!("a NAK is enough: {:?}", repairs(&pair)) };
        assert!(again >= 60, "all that was under way: {again}");
    }
    assert_eq!(pair.hosts[1].count(QpCount::SequenceNakSent), 3);
    assert_eq!(pair.hosts[1].count(QpCount::OutOfOrderBuffered), 0);
}

/// Packets behind two retransmissions that arrive directly one after the other were discarded, and
/// a window was retransmitted.
#[test]
fn two_packets_lost_in_a_row_are_each_sent_again_alone() {
    let mut pair = known([RecoveryConfig::default(); 2]);
    write_far(&mut pair, 400, &[100]);
    let given_up = |pair: &Pair| pair.hosts[1].drops().get("drop_out_of_order_discarded").copied().unwrap_or(0);
    let before = given_up(&pair);
    for lost in [&[100, 101][..], &[0, 1], &[50, 51, 250, 251], &[398], &[397, 398]] {
        assert_eq!(write_far(&mut pair, 400, lost), [lost.len() as u64, 0, 0], "{lost:?} lost");
    }
    assert_eq!(given_up(&pair), before);
    // The next may be one of many.
    let [3..=90, 0, 0] = write_far(&mut pair, 400, &[100, 101, 102]) else { panic!("{:?}", repairs(&pair)) };
}

#[test]
fn a_burst_of_losses_is_not_repaired_one_round_trip_a_packet() {
    let mut pair = known([RecoveryConfig::default(); 2]);
    write_far(&mut pair, 400, &[100]);
    let lost: Vec<usize> = (100..140).collect();
    let (repairs, took) = write_far_in(&mut pair, 400, &lost);
    let [40..140, 0, 0] = repairs else { panic!("NAKs are enough: {repairs:?}") };
    assert!(took < WHOLE + Nanos::from_micros(4 * 50), "{took:?}");
}

/// READs of one packet each, of which the first request is lost and those behind the second. If the
/// first is retransmitted alone its answer does not show the packets that the peer has behind it,
/// so the peer is asked.
#[test]
fn a_read_retransmitted_alone_requests_the_state_of_the_peer() {
    for (lost, kept) in [(&[0, 2, 3, 4, 5, 6, 7][..], 1), (&[0, 7], 6), (&[0], 7)] {
        let mut pair = known([RecoveryConfig::default(); 2]);
        write_far(&mut pair, 400, &[100]);
        let before = repairs(&pair);
        (0..8).for_each(|id| pair.hosts[0].post(&work(id, SendOp::Read, &[sge(id * 1024, 1024)], 600_000)));
        let start = pair.now;
        assert!(pair.run(LIMIT, far(lost)));
        let completions = &pair.hosts[0].app.completions;
        let took = Nanos(completions.iter().map(|it| it.time.0).max().expect("eight")) - start;
        assert_eq!(pair.hosts[0].take(), (0..8).map(|id| (id, Status::Success)).collect::<Vec<_>>());
        let [again, time_outs, probes] = std::array::from_fn(|at| repairs(&pair)[at] - before[at]);
        assert_eq!((again, time_outs, probes), (8 - kept, 0, 0), "lost {lost:?}");
        assert!(took < Nanos::from_micros(4 * 50), "lost {lost:?}: {took:?}");
    }
}

/// Two READ requests in a row are lost. Once each of those behind them was complained of and sent
/// again alone, a round trip each, while new ones kept coming: it never ended.
#[test]
fn read_requests_lost_in_a_row_are_not_repaired_one_by_one() {
    let mut pair = known([RecoveryConfig::default(); 2]);
    write_far(&mut pair, 400, &[100]);
    let (before, naks) = (repairs(&pair), pair.hosts[1].count(QpCount::SequenceNakSent));
    pair.hosts[1].nic.room = 8;
    (0..5).for_each(|id| pair.hosts[0].post(&work(id, SendOp::Read, &[sge(11, 400 * 1024)], 600_000)));
    assert!(pair.run(LIMIT, far(&[30, 31])));
    assert_eq!(pair.hosts[0].take(), (0..5).map(|id| (id, Status::Success)).collect::<Vec<_>>());
    assert!(pair.hosts[0].app.memory[11..][..400 * 1024] == pair.hosts[1].app.memory[600_000..][..400 * 1024]);
    let naks = pair.hosts[1].count(QpCount::SequenceNakSent) - naks;
    assert!(naks <= 3, "{naks} NAKs");
    assert_eq!(repairs(&pair)[1..], before[1..], "no time-outs, no probes");
}

/// The end of a message is lost, so no NAK comes. A probe shows the position of the peer; the ACK
/// of the packet from there on covers that one and nothing else: go back.
#[test]
fn an_ack_for_one_packet_and_not_one_more_says_that_nothing_is_kept() {
    let mut pair = known([RecoveryConfig::default(); 2]);
    write_far(&mut pair, 400, &[100]);
    // Packet 95 was the last that asked for an ACK and got it.
    let lost: Vec<usize> = (100..200).collect();
    let (repairs, took) = write_far_in(&mut pair, 200, &lost);
    assert_eq!(repairs, [101, 0, 1], "the probe and the lost packets, once");
    assert!(took < WHOLE + Nanos::from_micros(6 * 50), "{took:?}");
}

#[test]
fn the_packet_that_is_sent_again_may_be_lost_too() {
    let mut lost = vec![100];
    for probes in 0..4 {
        let mut pair = known([RecoveryConfig::default(); 2]);
        write_far(&mut pair, 400, &[100]);
        let begin = pair.trace.len();
        let (repairs, took) = write_far_in(&mut pair, 400, &lost);
        assert_eq!(repairs, [probes + 1, 0, probes]);
        // Each probe waits twice as long as the one before, the first some two round trips.
        assert!(took < WHOLE + Nanos::from_micros((1 << probes) * 120), "{probes}: {took:?}");
        let sent: Vec<u32> = pair.trace[begin..].iter().filter(|(from, ..)| *from == 0).map(|(.., psn)| *psn).collect();
        lost.push(sent.iter().rposition(|psn| *psn == sent[100]).expect("it was sent"));
    }
}

#[test]
fn a_nak_that_comes_twice_is_acted_upon_once() {
    let mut pair = Pair::new(Settings { window: 128, retry_cnt: 1, ..Settings::default() });
    for _ in 0..10 {
        write_far(&mut pair, 10, &[]);
    }
    write_far(&mut pair, 400, &[100]);
    let mut there = far(&[100]);
    let before = repairs(&pair);
    survives(
        &mut pair,
        SendOp::Write,
        400 * 1024,
        |from, opcode, nth| {
            if from == 1 { Fate::Duplicate } else { there(from, opcode, nth) }
        },
    );
    assert_eq!(repairs(&pair), [before[0] + 1, before[1], before[2]]);
}

#[test]
fn a_packet_late_within_the_reorder_delay_costs_nothing() {
    for turns in [1, 2, 5, 15] {
        for (op, from, late) in [
            (SendOp::Write, 0, opcode::RC_WRITE_MIDDLE),
            (SendOp::Write, 0, opcode::RC_WRITE_FIRST),
            (SendOp::Send, 0, opcode::RC_SEND_MIDDLE),
            (SendOp::Read, 1, opcode::RC_READ_RESPONSE_MIDDLE),
            (SendOp::Read, 1, opcode::RC_READ_RESPONSE_FIRST),
        ] {
            let mut pair = warm(with_delay(100));
            survives(&mut pair, op, 9000, one(from, late, 0, Fate::Late(turns)));
            assert_eq!(repairs(&pair), [0; 3], "{op:?} {turns}");
            let asked = [0, 1]
                .map(|at| pair.hosts[at].count(QpCount::SequenceNakSent) + pair.hosts[at].count(QpCount::ImpliedNak));
            assert_eq!(asked, [0; 2], "{op:?} {turns}");
            assert!(pair.hosts[1 - from].count(QpCount::OutOfOrderBuffered) >= 7, "{op:?} {turns}");
        }
    }
}

#[test]
fn all_packets_in_any_order_within_the_reorder_delay_cost_nothing() {
    let mut pair = warm(with_delay(200));
    let mut turns = [7, 0, 3, 11, 1, 9, 5].into_iter().cycle();
    let mut fate = move |_: usize, _: Opcode, _: usize| Fate::Late(turns.next().expect("for ever"));
    for op in [SendOp::Write, SendOp::Send, SendOp::Read] {
        survives(&mut pair, op, 60_000, &mut fate);
    }
    assert_eq!(repairs(&pair), [0; 3]);
}

#[test]
fn packets_later_than_the_reorder_delay_are_requested_once() {
    let mut pair = warm(with_delay(100));
    survives(&mut pair, SendOp::Write, 9000, one(0, opcode::RC_WRITE_MIDDLE, 0, Fate::Late(40)));
    assert_eq!(pair.hosts[1].count(QpCount::SequenceNakSent), 1);
    let mut pair = warm(with_delay(100));
    survives(&mut pair, SendOp::Read, 9000, one(1, opcode::RC_READ_RESPONSE_MIDDLE, 0, Fate::Late(40)));
    assert_eq!(pair.hosts[0].count(QpCount::ImpliedNak), 1);
}
