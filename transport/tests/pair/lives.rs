//! Packets of an earlier life of a connection: the same addresses, the same queue pair numbers,
//! PSNs that lie close. None may be executed in place of one of this life, and none may cost a
//! healthy connection more than go-back-N would.

use roced_transport::{
    clock::Nanos,
    counters::QpCount,
    io::Egress,
    psn::Psn,
    qp::PathState,
    recovery::RecoveryConfig,
    reject::{Disposition, DropReason},
    wire::{Aeth, NakCode, Syndrome, bth::Bth, headers::Headers, opcode, reth::Reth},
};
use roced_types::{QpAttributes, SendOp, Status, attribute, state};

use crate::{
    host::{Fate, KEY, Pair, Settings, VA, bth, forged, no_fault, one, sge, work},
    selective::{HELD, LIMIT, answers, dropped, repairs, warm},
};

/// Where stale packets write, if they do.
const STALE_AT: u64 = 900_000;

/// A WRITE ONLY of an earlier life, as host 0 sent it, `ahead` of the PSN that host 1 expects now.
fn stale_write(pair: &Pair, psn: u32, ahead: u32) -> Vec<u8> {
    let reth = Some(Reth { va: VA + STALE_AT, rkey: KEY, length: 8 });
    let bth = Bth { psn: Psn::new(psn).plus(ahead), ..bth(pair, opcode::RC_WRITE_ONLY) };
    forged(pair, &Headers { reth, ..Headers::new(bth) }, b"stalestu")
}

/// Posts `count` WRITEs of 1000 bytes, one behind the other in memory, and checks that all arrive.
fn writes_arrive(pair: &mut Pair, count: u64) {
    for wr_id in 0..count {
        pair.hosts[0].post(&work(wr_id, SendOp::Write, &[sge(wr_id * 1000, 1000)], 500_000 + wr_id * 1000));
    }
    pair.settle();
    let expected: Vec<_> = (0..count).map(|wr_id| (wr_id, Status::Success)).collect();
    assert_eq!(pair.hosts[0].take(), expected);
    let bytes = count as usize * 1000;
    assert!(pair.hosts[0].app.memory[..bytes] == pair.hosts[1].app.memory[500_000..500_000 + bytes]);
}

/// Takes both ends through RESET to another life, in which frames leave from UDP source ports of
/// their own if `new_port`.
fn reconnect(pair: &mut Pair, new_port: bool) {
    for host in &mut pair.hosts {
        let reset = QpAttributes { state: state::RESET, ..QpAttributes::default() };
        host.endpoint.modify_qp(host.qpn, attribute::STATE, &reset, None).expect("from anywhere");
    }
    pair.life += u16::from(new_port);
    pair.connect();
}

#[test]
fn a_request_of_an_earlier_life_is_not_executed_in_its_turn() {
    for established in [false, true] {
        for ahead in [2, 5, 40, 3_000, 20_000] {
            let mut pair = Pair::new(Settings::default());
            let mut psn = pair.settings.psn;
            if established {
                writes_arrive(&mut pair, 20);
                psn += 20;
            }
            let stale = stale_write(&pair, psn, ahead);
            pair.deliver(1, &stale);
            let before = pair.hosts[1].app.memory[STALE_AT as usize..][..8].to_vec();
            writes_arrive(&mut pair, 50);
            assert_eq!(pair.hosts[1].app.memory[STALE_AT as usize..][..8], before, "{ahead} ahead");
        }
    }
}

/// A window so small that each packet asks for an ACK, as packets do that are sent again one by one
/// because they were lost.
#[test]
fn a_request_of_an_earlier_life_is_not_executed_behind_packets_that_all_ask() {
    for ahead in [4, 5, 40] {
        let mut pair = Pair::new(Settings { window: 4, ..Settings::default() });
        writes_arrive(&mut pair, 20);
        let stale = stale_write(&pair, pair.settings.psn + 20, ahead);
        assert_eq!(pair.deliver(1, &stale), HELD);
        let before = pair.hosts[1].app.memory[STALE_AT as usize..][..8].to_vec();
        pair.hosts[0].post(&work(1, SendOp::Write, &[sge(0, 50_000)], 500_000));
        pair.settle();
        assert_eq!(pair.hosts[0].take(), [(1, Status::Success)]);
        assert_eq!(pair.hosts[1].app.memory[STALE_AT as usize..][..8], before, "{ahead} ahead");
        assert!(pair.hosts[0].app.memory[..50_000] == pair.hosts[1].app.memory[500_000..550_000]);
    }
}

/// Sends from another UDP source port from now on, as a rerouted flow does.
fn move_port(pair: &mut Pair, at: usize, life: u16) {
    pair.life = life;
    let path = PathState::Ready(pair.path_via(at, Egress::Nic { flow: 1 }));
    let qpn = pair.hosts[at].qpn;
    pair.hosts[at].endpoint.set_path(qpn, path).expect("there");
}

/// A connection in its second life. A WRITE was done in either.
fn second_life(settings: Settings, new_port: bool) -> Pair {
    let mut pair = Pair::new(settings);
    writes_arrive(&mut pair, 1);
    reconnect(&mut pair, new_port);
    writes_arrive(&mut pair, 1);
    pair
}

/// A frame as it was sent in the life before.
fn of_past_life(pair: &mut Pair, make: impl FnOnce(&mut Pair) -> Vec<u8>) -> Vec<u8> {
    pair.life -= 1;
    let frame = make(pair);
    pair.life += 1;
    frame
}

/// For any PSN and any number of arrivals: nothing is executed, answered or requested.
#[test]
fn a_request_from_the_port_of_a_past_life_is_refused_for_good() {
    for ahead in 0..4 {
        let mut pair = second_life(Settings::default(), true);
        let stale = of_past_life(&mut pair, |pair| stale_write(pair, pair.settings.psn + 1, ahead));
        for round in 0..5 {
            assert_eq!(pair.deliver(1, &stale), dropped(DropReason::OtherSourcePort), "{ahead} ahead, round {round}");
            pair.settle();
            pair.now = pair.now + Nanos::from_millis(round);
        }
        writes_arrive(&mut pair, 10);
        assert!(!pair.hosts[1].app.writes.contains(&(STALE_AT, 8)), "{ahead} ahead");
        assert_eq!(repairs(&pair), [0; 3]);
    }
}

#[test]
fn an_answer_from_the_port_of_a_past_life_is_refused_for_good() {
    for recovery in [RecoveryConfig::default(), RecoveryConfig::GO_BACK_N] {
        let mut pair = second_life(Settings { recovery: [recovery; 2], ..Settings::default() }, true);
        let stale = of_past_life(&mut pair, |pair| {
            let aeth = Some(Aeth { syndrome: Syndrome::ACK, msn: 3 });
            let bth = Bth::new(opcode::RC_ACK, pair.hosts[0].qpn, Psn::new(pair.settings.psn).plus(2));
            pair.frame(1, &Headers { aeth, ..Headers::new(bth) }, &[])
        });
        for wr_id in 1..4 {
            pair.hosts[0].post(&work(wr_id, SendOp::Write, &[sge(0, 1000)], 0));
        }
        pair.turn(&mut |_, _, _| Fate::Drop);
        for _ in 0..10 {
            assert_eq!(pair.deliver(0, &stale), dropped(DropReason::OtherSourcePort));
            pair.now = pair.now + Nanos::from_millis(1);
        }
        assert!(pair.hosts[0].take().is_empty(), "nothing arrived");
        pair.settle();
        assert_eq!(pair.hosts[0].take(), [1, 2, 3].map(|wr_id| (wr_id, Status::Success)));
    }
}

/// Adapters make the port of both numbers, in each life the same. The second begins some
/// milliseconds later.
#[test]
fn a_peer_that_uses_the_same_port_in_all_lives_is_served_in_each() {
    for recovery in [RecoveryConfig::default(), RecoveryConfig::GO_BACK_N] {
        let mut pair = Pair::new(Settings { timeout: 0, recovery: [recovery; 2], ..Settings::default() });
        writes_arrive(&mut pair, 1);
        reconnect(&mut pair, false);
        let start = pair.now;
        writes_arrive(&mut pair, 1);
        assert!(pair.now - start < Nanos::from_millis(8), "{recovery:?}: {:?}", pair.now - start);
        let before = repairs(&pair);
        for _ in 0..3 {
            reconnect(&mut pair, false);
            writes_arrive(&mut pair, 50);
            assert_eq!(repairs(&pair), before);
        }
    }
}

/// A late frame overtakes the first of this life, and has the PSN that is expected.
#[test]
fn packets_of_a_past_life_are_refused_before_the_first_packet() {
    for recovery in [RecoveryConfig::default(), RecoveryConfig::GO_BACK_N] {
        let mut pair = Pair::new(Settings { retry_cnt: 0, recovery: [recovery; 2], ..Settings::default() });
        writes_arrive(&mut pair, 20);
        reconnect(&mut pair, true);
        pair.hosts[0].post(&work(0, SendOp::Write, &[sge(0, 1000)], 500_000));
        pair.turn(&mut |_, _, _| Fate::Late(3));
        for ahead in 0..3 {
            let stale = of_past_life(&mut pair, |pair| stale_write(pair, pair.settings.psn, ahead));
            assert_eq!(pair.deliver(1, &stale), dropped(DropReason::OtherSourcePort));
            let stale = of_past_life(&mut pair, |pair| {
                let aeth = Some(Aeth { syndrome: Syndrome::ACK, msn: 1 });
                let bth = Bth::new(opcode::RC_ACK, pair.hosts[0].qpn, Psn::new(pair.settings.psn));
                pair.frame(1, &Headers { aeth, ..Headers::new(bth) }, &[])
            });
            assert_eq!(pair.deliver(0, &stale), dropped(DropReason::OtherSourcePort));
            assert!(pair.hosts[0].take().is_empty(), "nothing arrived");
        }
        pair.settle();
        assert_eq!(pair.hosts[0].take(), [(0, Status::Success)]);
        assert_eq!(repairs(&pair), [0; 3]);
        writes_arrive(&mut pair, 50);
        assert!(!pair.hosts[1].app.writes.contains(&(STALE_AT, 8)));
    }
}

/// A frame of the past life comes first, from the only port that is known. This life's own packets
/// are taken all the same, and that port never again.
#[test]
fn a_life_that_began_with_a_packet_of_a_past_one_continues() {
    let mut pair = Pair::new(Settings { retry_cnt: 0, ..Settings::default() });
    writes_arrive(&mut pair, 1);
    let stale = stale_write(&pair, pair.settings.psn, 0);
    reconnect(&mut pair, true);
    pair.deliver(1, &stale);
    for wr_id in 0..3 {
        pair.hosts[0].post(&work(wr_id, SendOp::Write, &[sge(wr_id * 1000, 1000)], 500_000 + wr_id * 1000));
    }
    pair.settle();
    assert_eq!(pair.hosts[0].take(), [0, 1, 2].map(|wr_id| (wr_id, Status::Success)));
    let stale = of_past_life(&mut pair, |pair| stale_write(pair, pair.settings.psn, 3));
    assert_eq!(pair.deliver(1, &stale), dropped(DropReason::OtherSourcePort));
}

/// A rerouted flow, with no retry to spare or no timer: nothing is lost by it, so nothing is sent
/// again.
#[test]
fn a_peer_that_changes_its_port_is_followed_at_once() {
    for recovery in [RecoveryConfig::default(), RecoveryConfig::GO_BACK_N] {
        for (retry_cnt, timeout) in [(0, 14), (7, 0), (7, 14)] {
            for at in 0..2 {
                let mut pair = warm(Settings { retry_cnt, timeout, recovery: [recovery; 2], ..Settings::default() });
                for life in 1..4 {
                    move_port(&mut pair, at, life);
                    writes_arrive(&mut pair, 50);
                    pair.hosts[1 - at].post(&work(1, SendOp::Read, &[sge(0, 9000)], 0));
                    pair.settle();
                    assert_eq!(pair.hosts[1 - at].take(), [(1, Status::Success)]);
                }
                assert_eq!(repairs(&pair), [0; 3], "retry_cnt {retry_cnt} timeout {timeout}, host {at}");
            }
        }
    }
}

/// A network card that sprays, or a bond of two links: each message comes from another port.
/// Nothing is held for such a peer.
#[test]
fn a_peer_of_many_ports_is_taken_as_it_is() {
    for ports in [2, 3, 60] {
        let mut pair = warm(Settings { retry_cnt: 0, ..Settings::default() });
        for message in 1..60 {
            move_port(&mut pair, 0, message % ports);
            pair.hosts[0].post(&work(u64::from(message), SendOp::Write, &[sge(0, 10)], 0));
            pair.turn(&mut no_fault);
            pair.now = pair.now + Nanos::from_micros(5);
        }
        pair.settle();
        assert_eq!(pair.hosts[0].take().len(), 59);
        assert_eq!(repairs(&pair), [0; 3], "{ports} ports");
        let early = stale_write(&pair, pair.settings.psn + 20 + 59, 3);
        assert_eq!(pair.deliver(1, &early), dropped(DropReason::OutOfSequence));
        // Nor is any of its ports refused in its next life.
        reconnect(&mut pair, false);
        for message in 0..2 * ports {
            move_port(&mut pair, 0, message % ports);
            writes_arrive(&mut pair, 1);
        }
    }
}

#[test]
fn a_read_response_of_an_earlier_life_is_not_placed() {
    for (established, ahead) in [(false, 1), (false, 2), (false, 7), (false, 12), (true, 2), (true, 7), (true, 12)] {
        let settings = Settings::default();
        let mut pair = if established { Pair::established(settings) } else { Pair::new(settings) };
        // In the same place of the message, with other bytes.
        pair.hosts[0].post(&work(1, SendOp::Read, &[sge(0, 16 * 1024)], 600_000));
        pair.hosts[0].endpoint.poll_transmit(pair.now, 32, &mut pair.hosts[0].app, &mut pair.hosts[0].nic);
        let first = Psn::new(pair.settings.psn);
        let bth = Bth { psn: first.plus(ahead), ..Bth::new(opcode::RC_READ_RESPONSE_MIDDLE, pair.hosts[0].qpn, first) };
        let stale = pair.frame(1, &Headers::new(bth), &[0xee; 1024]);
        pair.deliver(0, &stale);
        pair.settle();
        assert_eq!(pair.hosts[0].take(), [(1, Status::Success)]);
        assert!(
            pair.hosts[0].app.memory[..16 * 1024] == pair.hosts[1].app.memory[600_000..600_000 + 16 * 1024],
            "{ahead} ahead"
        );
    }
}

/// A NAK for each executed packet, because a packet lies ahead of it, made 50 WRITEs take 5.6 s.
#[test]
fn one_stale_packet_does_not_turn_acknowledgements_into_naks() {
    for ahead in [2, 30, 900, 3_000, 20_000] {
        let mut pair = warm(Settings::default());
        let stale = stale_write(&pair, pair.settings.psn + 20, ahead);
        pair.deliver(1, &stale);
        let start = pair.now;
        writes_arrive(&mut pair, 50);
        assert!(pair.now - start < Nanos::from_millis(6), "{ahead} ahead: {:?}", pair.now - start);
        let [again, timeouts, _] = repairs(&pair);
        assert!(again <= 70 && timeouts == 0, "{ahead} ahead: {again} sent again");
    }
}

#[test]
fn a_nak_for_an_unsent_packet_acknowledges_the_sent_ones() {
    let mut pair = warm(Settings { timeout: 0, ..Settings::default() });
    pair.hosts[0].post(&work(1, SendOp::Write, &[sge(0, 3000)], 0));
    pair.turn(&mut |_, _, _| Fate::Drop);
    let aeth = Some(Aeth { syndrome: Syndrome::Nak(NakCode::PsnSequence), msn: 21 });
    let first = Psn::new(pair.settings.psn + 23);
    let nak = pair.frame(1, &Headers { aeth, ..Headers::new(Bth::new(opcode::RC_ACK, pair.hosts[0].qpn, first)) }, &[]);
    assert_eq!(pair.deliver(0, &nak), Disposition::Accepted);
    assert_eq!(pair.hosts[0].take(), [(1, Status::Success)]);
    assert_eq!(pair.hosts[0].count(QpCount::RetransmittedPackets), 0);
}

/// Go-back-N does not believe it either: it would request the READ and the rest again.
#[test]
fn an_acknowledgement_behind_a_read_gap_is_not_kept_where_it_may_be_of_an_earlier_life() {
    for later_life in [true, false] {
        let mut pair = warm(Settings::default());
        if later_life {
            reconnect(&mut pair, false);
        }
        writes_arrive(&mut pair, 1);
        let psn = pair.settings.psn + if later_life { 1 } else { 21 };
        pair.hosts[0].post(&work(1, SendOp::Read, &[sge(0, 1000)], 600_000));
        pair.hosts[0].post(&work(2, SendOp::Write, &[sge(5000, 1000)], 700_000));
        pair.turn(&mut |_, _, _| Fate::Drop);
        let aeth = Some(Aeth { syndrome: Syndrome::ACK, msn: 9 });
        let bth = Bth::new(opcode::RC_ACK, pair.hosts[0].qpn, Psn::new(psn + 1));
        let stale = pair.frame(1, &Headers { aeth, ..Headers::new(bth) }, &[]);
        pair.deliver(0, &stale);
        pair.settle();
        assert_eq!(pair.hosts[0].take(), [(1, Status::Success), (2, Status::Success)]);
        let arrived = pair.hosts[0].app.memory[5000..6000] == pair.hosts[1].app.memory[700_000..701_000];
        assert_eq!(arrived, later_life, "in the first life it is the peer's word");
    }
}

/// As UCX and NCCL do: all lives begin with PSN 0. Buffering must survive everything that go-back-N
/// survives.
#[test]
fn a_life_with_the_same_psns_survives_all_frames_of_the_one_before() {
    for (new_port, recovery) in
        [(true, RecoveryConfig::default()), (false, RecoveryConfig::default()), (false, RecoveryConfig::GO_BACK_N)]
    {
        let settings = Settings { psn: 0, recovery: [recovery; 2], ..Settings::default() };
        let mut pair = Pair::new(settings);
        let stale: Vec<_> = (0..400).map(|ahead| stale_write(&pair, 0, ahead)).collect();
        reconnect(&mut pair, new_port);
        let mut next = 0;
        for wr_id in 0..200u64 {
            pair.hosts[0].post(&work(wr_id, SendOp::Write, &[sge(wr_id * 1000, 1000)], 500_000 + wr_id * 1000));
            for _ in 0..4 {
                pair.turn(&mut no_fault);
                pair.now = pair.now + Nanos::from_micros(5);
                // Two for each step of ours: at every distance in turn, but never the expected one.
                if next < stale.len() && next != wr_id as usize && next != wr_id as usize + 1 {
                    pair.deliver(1, &stale[next]);
                }
                next += 1;
            }
        }
        pair.settle();
        assert_eq!(pair.hosts[0].take(), (0..200).map(|wr_id| (wr_id, Status::Success)).collect::<Vec<_>>());
        assert!(pair.hosts[0].app.memory[..200_000] == pair.hosts[1].app.memory[500_000..700_000]);
        assert!(!pair.hosts[1].app.writes.contains(&(STALE_AT, 8)));
    }
}

#[test]
fn nothing_is_held_in_the_first_second_of_a_life_that_follows_another() {
    let mut pair = warm(Settings::default());
    reconnect(&mut pair, false);
    writes_arrive(&mut pair, 1);
    let psn = pair.settings.psn + 1;
    let ahead = |pair: &mut Pair| {
        let frame = stale_write(pair, psn, 1);
        pair.deliver(1, &frame)
    };
    assert_eq!(ahead(&mut pair), dropped(DropReason::OutOfSequence));
    pair.now = pair.now + roced_transport::qp::QUARANTINE;
    assert_eq!(ahead(&mut pair), HELD);
}

#[test]
fn a_packet_that_comes_twice_with_different_bytes_is_not_trusted() {
    let mut pair = warm(Settings::default());
    let psn = pair.settings.psn + 20;
    let stale = stale_write(&pair, psn, 1);
    assert_eq!(pair.deliver(1, &stale), HELD);
    // Asked for an ACK, marked on its way: the same packet.
    let reth = Some(Reth { va: VA + STALE_AT, rkey: KEY, length: 8 });
    let bth = Bth { psn: Psn::new(psn + 1), ack_request: true, fecn: true, ..bth(&pair, opcode::RC_WRITE_ONLY) };
    let same = forged(&pair, &Headers { reth, ..Headers::new(bth) }, b"stalestu");
    assert_eq!(pair.deliver(1, &same), dropped(DropReason::Duplicate));
    let other = forged(&pair, &Headers { reth, ..Headers::new(bth) }, b"stalestx");
    assert_eq!(pair.deliver(1, &other), dropped(DropReason::OutOfOrderConflict));
    assert_eq!(pair.hosts[1].drops()["drop_out_of_order_discarded"], 1);
    writes_arrive(&mut pair, 4);
    assert!(!pair.hosts[1].app.writes.contains(&(STALE_AT, 8)));
}

/// A peer that dies leaves holes that are never filled: packets behind them are discarded, and
/// others may buffer again.
#[test]
fn packets_kept_for_a_silent_peer_are_discarded() {
    let recovery = RecoveryConfig { out_of_order_packets: 64, ..RecoveryConfig::default() };
    let mut pair = warm(Settings { recovery: [recovery; 2], ..Settings::default() });
    let psn = pair.settings.psn + 20;
    for ahead in 1..=32 {
        let stale = stale_write(&pair, psn, ahead);
        assert_eq!(pair.deliver(1, &stale), HELD);
    }
    pair.connect_another(6);
    writes_arrive(&mut pair, 1);
    for _ in 0..10 {
        pair.now = pair.now + Nanos::from_millis(1);
        let _nak = answers(&mut pair);
    }
    assert_eq!(pair.hosts[1].drops()["drop_out_of_order_discarded"], 32);
    for ahead in 1..=32 {
        let stale = stale_write(&pair, pair.settings.psn + 1, ahead);
        assert_eq!(pair.deliver(1, &stale), HELD, "all of the pool is free again");
    }
}

#[test]
fn packets_kept_too_long_are_not_executed() {
    let mut pair = warm(Settings::default());
    let stale = stale_write(&pair, pair.settings.psn + 20, 1);
    assert_eq!(pair.deliver(1, &stale), HELD);
    pair.now = pair.now + Nanos::from_millis(5);
    // No timer was looked at meanwhile.
    writes_arrive(&mut pair, 10);
    assert!(!pair.hosts[1].app.writes.contains(&(STALE_AT, 8)));
}

/// Lost in the middle of a stream: recovery as before.
#[test]
fn a_life_that_is_established_holds() {
    let mut pair = warm(Settings::default());
    pair.hosts[0].post(&work(1, SendOp::Write, &[sge(0, 20_000)], 500_000));
    assert!(pair.run(LIMIT, one(0, opcode::RC_WRITE_MIDDLE, 3, Fate::Drop)));
    assert_eq!(pair.hosts[0].take(), [(1, Status::Success)]);
    assert!(pair.hosts[1].count(QpCount::OutOfOrderBuffered) > 0);
}

/// An answer that names the queue pair of host 0, as another life of its peer sent it.
fn stale_ack(pair: &mut Pair, ahead: u32) -> Vec<u8> {
    pair.life += 1;
    let bth = Bth::new(opcode::RC_ACK, pair.hosts[0].qpn, Psn::new(pair.settings.psn).plus(ahead));
    let aeth = Some(Aeth { syndrome: Syndrome::ACK, msn: 0 });
    let frame = pair.frame(1, &Headers { aeth, ..Headers::new(bth) }, &[]);
    pair.life -= 1;
    frame
}

/// Posts a READ of three packets and a WRITE, and has them sent.
fn post_read_and_write(pair: &mut Pair) {
    pair.hosts[0].post(&work(1, SendOp::Read, &[sge(8192, 3000)], 600_000));
    pair.hosts[0].post(&work(2, SendOp::Write, &[sge(0, 1000)], 0));
    pair.hosts[0].endpoint.poll_transmit(pair.now, 32, &mut pair.hosts[0].app, &mut pair.hosts[0].nic);
}

/// Before an answer of this life was accepted, its life is unknown: the acknowledgment of a WRITE
/// behind a READ is not remembered until the READ is complete.
#[test]
fn an_answer_of_an_earlier_life_behind_a_read_acknowledges_nothing() {
    let mut pair = Pair::new(Settings { timeout: 0, ..Settings::default() });
    post_read_and_write(&mut pair);
    let stale = stale_ack(&mut pair, 3);
    pair.deliver(0, &stale);
    pair.run(LIMIT, |_, opcode, _| if opcode == opcode::RC_WRITE_ONLY { Fate::Drop } else { Fate::Deliver });
    assert_eq!(pair.hosts[0].take(), [(1, Status::Success)], "the WRITE never arrived");
}

#[test]
fn an_answer_that_brings_nothing_forward_teaches_no_source_port() {
    let mut pair = Pair::new(Settings { timeout: 0, ..Settings::default() });
    post_read_and_write(&mut pair);
    let stale = stale_ack(&mut pair, 1);
    pair.deliver(0, &stale);
    pair.settle();
    assert_eq!(pair.hosts[0].take(), [(1, Status::Success), (2, Status::Success)]);
    assert_eq!(pair.hosts[0].drops().get("drop_other_source_port").copied().unwrap_or(0), 0);
}

/// A READ of 16 packets, a response of an earlier life `ahead` of it when `before` were taken, and
/// responses of this life that are lost.
fn reads_right(ahead: u32, before: usize, lost: &[usize]) -> bool {
    let mut pair = warm(Settings { rd_atomic: 4, ..Settings::default() });
    pair.settings.psn += 20;
    pair.hosts[0].post(&work(1, SendOp::Read, &[sge(11, 16 * 1024)], 600_000));
    let psn = Psn::new(pair.settings.psn).plus(ahead);
    let stale = Headers::new(Bth::new(opcode::RC_READ_RESPONSE_MIDDLE, pair.hosts[0].qpn, psn));
    let stale = pair.frame(1, &stale, &[0x5a; 1024]);
    let (mut seen, mut given) = (0, false);
    while pair.hosts[0].app.completions.is_empty() {
        if !given && seen > 0 && pair.hosts[0].app.writes.len() >= before {
            given = true;
            assert_eq!(pair.deliver(0, &stale), Disposition::Buffered);
        }
        let mut fate = |from, _, _| {
            seen += from;
            if from == 1 && lost.contains(&(seen - 1)) { Fate::Drop } else { Fate::Deliver }
        };
        let next = pair.hosts.iter().map(|host| host.endpoint.poll_timeout()).min().expect("two hosts");
        let soon = pair.now + Nanos::from_micros(5);
        pair.now = if pair.turn(&mut fate) { soon } else { next.max(soon) };
    }
    assert_eq!(pair.hosts[0].take(), [(1, Status::Success)]);
    pair.hosts[0].app.memory[11..][..16 * 1024] == pair.hosts[1].app.memory[600_000..][..16 * 1024]
}

/// Its port is that of this life, as that of a peer which keeps it; it is buffered, and the genuine
/// packet is lost. Retransmissions that arrive directly one after the other show that the buffered
/// packet was not sent, for any request.
#[test]
fn a_stale_response_does_not_replace_a_lost_one() {
    let (tail, middle): (Vec<usize>, Vec<usize>) = ((1..16).collect(), (3..9).collect());
    for ahead in [3, 4, 8] {
        for (before, lost) in [(1, &tail[..]), (0, &tail[..]), (0, &[1, 8]), (0, &middle), (0, &[3, 4, 5, 8]), (0, &[])]
        {
            assert!(reads_right(ahead, before, lost), "{ahead} ahead, behind {before}, {lost:?} lost");
        }
    }
}
