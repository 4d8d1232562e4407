//! Frames of a forger off the path: it knows the addresses, the partition and here the queue pair
//! number as well, and guesses PSN and UDP source port. It brings in no byte, ends no connection
//! and costs a genuine transfer nothing but time.

use roced_transport::{
    clock::Nanos,
    counters::QpCount,
    io::{Egress, FrameOrigin},
    own_addresses::OwnAddresses,
    psn::Psn,
    qp::{PathState, ServiceType},
    reject::{Disposition, DropReason},
    wire::{
        Aeth, Deth, NakCode, Syndrome,
        bth::Bth,
        headers::Headers,
        opcode::{self, Opcode},
        reth::Reth,
    },
};
use roced_types::{SendOp, Status};

use crate::{
    host::{KEY, OUR_QKEY, Pair, Settings, VA, forged, no_fault, sge, work},
    selective::{HELD, LIMIT, dropped, repairs, warm},
};

/// Messages that [`warm`] sends.
pub(crate) const WARM: u32 = 20;

/// Ports that no life of a pair has.
const OTHER_LIFE: u16 = 700;

/// How long another port must wait after a wrong guess, at most, and a third of it at least.
pub(crate) const OTHER_PORT_BAR_MAX: Nanos = Nanos::from_millis(30);

/// Gives host `at` a frame of its peer, from another UDP source port if `other_port`.
pub(crate) fn give(pair: &mut Pair, at: usize, other_port: bool, headers: &Headers, payload: &[u8]) -> Disposition {
    let life = pair.life;
    pair.life += if other_port { OTHER_LIFE } else { 0 };
    let frame = pair.frame(1 - at, headers, payload);
    pair.life = life;
    pair.deliver(at, &frame)
}

/// Headers of a packet for host `at`, `ahead` of the first PSN.
pub(crate) fn headers(pair: &Pair, at: usize, opcode: Opcode, ahead: u32) -> Headers {
    Headers::new(Bth::new(opcode, pair.hosts[at].qpn, Psn::new(pair.settings.psn).plus(ahead)))
}

fn forge_send(pair: &mut Pair, other_port: bool, ahead: u32) -> Disposition {
    let headers = headers(pair, 1, opcode::RC_SEND_ONLY, ahead);
    give(pair, 1, other_port, &headers, b"FORGED")
}

/// Another PSN in each frame, in any order, so that the right one is among them.
#[test]
fn a_forger_that_tries_all_sequence_numbers_is_not_heard() {
    for step in [1_i64, -1] {
        let mut pair = warm(Settings::default());
        pair.hosts[1].post_recv(1, &[sge(0, 100)]);
        for guess in (-400..400_i64).map(|guess| guess * step) {
            let disposition = forge_send(&mut pair, true, (i64::from(WARM) + guess) as u32);
            assert!(matches!(disposition, Disposition::Dropped(_)), "{guess}: {disposition:?}");
            pair.now = pair.now + Nanos::from_micros(1);
        }
        assert!(pair.hosts[1].app.completions.is_empty());
        pair.hosts[0].post(&work(7, SendOp::Send, &[sge(0, 10)], 0));
        pair.settle();
        assert_eq!(pair.hosts[0].take(), [(7, Status::Success)]);
        assert_eq!(pair.hosts[1].take(), [(1, Status::Success)]);
        assert!(pair.hosts[1].app.memory[..10] == pair.hosts[0].app.memory[..10], "the genuine message");
    }
}

/// Its queue pair is idle for as long: guesses are counted by time.
#[test]
fn a_forger_has_one_guess_in_a_while() {
    let mut pair = warm(Settings::default());
    pair.hosts[1].post_recv(1, &[sge(0, 100)]);
    assert_eq!(forge_send(&mut pair, true, WARM + 1), dropped(DropReason::OtherSourcePort));
    pair.now = pair.now + Nanos(OTHER_PORT_BAR_MAX.0 / 3 - 1);
    assert_eq!(forge_send(&mut pair, true, WARM), dropped(DropReason::OtherSourcePort));
    pair.now = pair.now + OTHER_PORT_BAR_MAX;
    assert_eq!(forge_send(&mut pair, true, WARM), Disposition::Accepted, "a peer that has changed its port");
}

/// Dropped, and of the peer's port alone asked for, once: a READ request takes many PSNs.
#[test]
fn packets_far_ahead_are_not_buffered() {
    let mut pair = warm(Settings::default());
    let before = pair.trace.len();
    for (is_other_port, naks) in [(true, 0), (false, 1)] {
        for ahead in [129, 1_000, 30_000, 1 << 22] {
            let reason = if is_other_port { DropReason::OtherSourcePort } else { DropReason::BeyondWindow };
            assert_eq!(forge_send(&mut pair, is_other_port, WARM + ahead), dropped(reason), "{ahead}");
        }
        pair.settle();
        assert_eq!(pair.hosts[1].count(QpCount::SequenceNakSent), naks);
        assert_eq!(pair.trace.len() - before, naks as usize, "nothing else is sent");
    }
}

/// MigReq as the forger likes it: packets in their turn have shown a peer without.
#[test]
fn a_forged_packet_does_not_tell_the_kind_of_the_peer() {
    let mut pair = warm(Settings::default());
    assert_eq!(forge_send(&mut pair, false, WARM + 3), HELD);
    let mut pair = Pair::new(Settings::default());
    pair.hosts[1].post_recv(1, &[sge(0, 100)]);
    let mut plain = headers(&pair, 1, opcode::RC_SEND_ONLY, 0);
    plain.bth.mig_req = false;
    assert_eq!(give(&mut pair, 1, false, &plain, b"genuine"), Disposition::Accepted);
    assert_eq!(forge_send(&mut pair, false, 3), dropped(DropReason::OutOfSequence), "go-back-N");
}

/// A peer that has had much under way may have twice as much.
#[test]
fn the_window_grows_with_the_packets_under_way() {
    let mut pair = warm(Settings::default());
    let mut give_write = |ahead| {
        let reth = Some(Reth { va: VA, rkey: KEY, length: 6 });
        let headers = Headers { reth, ..headers(&pair, 1, opcode::RC_WRITE_ONLY, WARM + ahead) };
        give(&mut pair, 1, false, &headers, b"behind")
    };
    assert_eq!(give_write(200), dropped(DropReason::BeyondWindow));
    for ahead in 1..=128 {
        assert_eq!(give_write(ahead), HELD, "{ahead}");
    }
    assert_eq!(give_write(0), Disposition::Accepted);
    assert_eq!([129 + 256, 129 + 257].map(give_write), [HELD, dropped(DropReason::BeyondWindow)]);
}

/// Answers of all kinds, with PSNs in flight and beside, while the genuine ones are under way.
#[test]
fn forged_answers_from_another_port_end_no_connection_and_complete_nothing() {
    let syndromes = [
        Syndrome::Nak(NakCode::InvalidRequest),
        Syndrome::Nak(NakCode::RemoteAccess),
        Syndrome::Nak(NakCode::RemoteOperation),
        Syndrome::Nak(NakCode::PsnSequence),
        Syndrome::Rnr { timer: 1 },
        Syndrome::ACK,
    ];
    for syndrome in syndromes {
        for from in 0..40 {
            let mut pair = warm(Settings::default());
            pair.hosts[0].post(&work(7, SendOp::Write, &[sge(0, 32 * 1024)], 500_000));
            pair.hosts[0].endpoint.poll_transmit(pair.now, 64, &mut pair.hosts[0].app, &mut pair.hosts[0].nic);
            // One that misses comes first, so that no other counts.
            for ahead in [5_000, from, from + 1] {
                let aeth = Some(Aeth { syndrome, msn: WARM });
                let headers = Headers { aeth, ..headers(&pair, 0, opcode::RC_ACK, WARM + ahead) };
                let disposition = give(&mut pair, 0, true, &headers, &[]);
                assert_eq!(disposition, dropped(DropReason::OtherSourcePort), "{syndrome:?} {ahead}");
            }
            assert!(pair.hosts[0].app.completions.is_empty());
            pair.settle();
            assert_eq!(pair.hosts[0].take(), [(7, Status::Success)], "{syndrome:?} {from}");
            assert_eq!(repairs(&pair), [0; 3], "{syndrome:?} {from}");
        }
    }
}

fn write(pair: &Pair, ahead: u32) -> Headers {
    let reth = Some(Reth { va: VA + 900_000, rkey: KEY, length: 6 });
    Headers { reth, ..headers(pair, 1, opcode::UC_WRITE_ONLY, ahead) }
}

#[test]
fn a_forged_packet_of_an_unreliable_connection_must_fit_the_peer() {
    let mut pair = Pair::new(Settings { service: ServiceType::Uc, ..Settings::default() });
    for wr_id in 0..5 {
        pair.hosts[0].post(&work(wr_id, SendOp::Write, &[sge(0, 10)], 0));
        pair.settle();
    }
    for (other_port, ahead) in [(true, 4), (true, 0), (true, 1), (false, 5_000), (false, 1 << 21), (false, 1 << 23)] {
        let headers = write(&pair, 5 + ahead);
        let disposition = give(&mut pair, 1, other_port, &headers, b"FORGED");
        assert!(matches!(disposition, Disposition::Dropped(_)), "{other_port} {ahead}: {disposition:?}");
    }
    pair.hosts[0].post(&work(9, SendOp::Write, &[sge(0, 10)], 0));
    pair.settle();
    assert!(!pair.hosts[1].app.writes.iter().any(|(at, _)| *at == 900_000));
    assert_eq!(pair.hosts[1].app.writes.len(), 6, "the genuine ones");
    // Its own burst was lost: it is taken again after as long as that took.
    let headers = write(&pair, 6 + 5_000);
    pair.now = pair.now + Nanos::from_micros(500);
    assert_eq!(give(&mut pair, 1, false, &headers, b"burst "), Disposition::Accepted);
}

/// An unreliable connection, too, goes on where the peer's port changes.
#[test]
fn an_unreliable_peer_that_changes_its_port_is_followed() {
    let mut pair = Pair::new(Settings { service: ServiceType::Uc, ..Settings::default() });
    for life in 0..6 {
        let first = life * 3;
        for ahead in [first, first + 1, first + 2] {
            let headers = write(&pair, ahead);
            pair.life += life as u16;
            let frame = forged(&pair, &headers, b"moving");
            pair.life -= life as u16;
            assert_eq!(pair.deliver(1, &frame), Disposition::Accepted, "{life}");
        }
    }
}

/// Programs of one host: a frame from the network with their addresses is none of theirs.
#[test]
fn connections_within_a_host_take_nothing_from_the_network_nor_others_from_here() {
    for via in [Egress::SameDevice, Egress::HandOver { to: roced_types::DeviceId(1) }, Egress::Nic { flow: 1 }] {
        let mut pair = warm(Settings::default());
        let is_local = via.is_local();
        let path = PathState::Ready(pair.path_via(1, via));
        let qpn = pair.hosts[1].qpn;
        pair.hosts[1].endpoint.set_path(qpn, path).expect("there");
        let headers = Headers {
            reth: Some(Reth { va: VA, rkey: KEY, length: 6 }),
            ..headers(&pair, 1, opcode::RC_WRITE_ONLY, WARM)
        };
        let frame = pair.frame(0, &headers, b"FORGED");
        for origin in [FrameOrigin::Wire, FrameOrigin::Local] {
            let host = &mut pair.hosts[1];
            let disposition = host.endpoint.on_frame_from(origin, pair.now, &[&frame], &mut host.app);
            let fits = is_local == (origin == FrameOrigin::Local);
            let refused = dropped(DropReason::ForgedSource);
            assert_eq!(disposition, if fits { Disposition::Accepted } else { refused }, "{via:?} {origin:?}");
        }
    }
}

/// The source of a datagram that comes from the network is another host's.
#[test]
fn no_datagram_from_the_network_comes_from_here() {
    let mut pair = Pair::new(Settings { service: ServiceType::Ud, ..Settings::default() });
    let source = pair.hosts[0].gid;
    let headers = Headers {
        deth: Some(Deth { qkey: OUR_QKEY, source_qpn: pair.hosts[0].qpn }),
        ..headers(&pair, 1, opcode::UD_SEND_ONLY, 0)
    };
    for (own, origin, is_taken) in [
        (OwnAddresses::default(), FrameOrigin::Wire, true),
        (OwnAddresses::new([source]), FrameOrigin::Wire, false),
        (OwnAddresses::new([source]), FrameOrigin::Local, true),
    ] {
        pair.hosts[1].post_recv(1, &[sge(0, 100)]);
        let frame = pair.frame(0, &headers, b"text");
        let host = &mut pair.hosts[1];
        host.endpoint.set_own_addresses(own);
        let disposition = host.endpoint.on_frame_from(origin, pair.now, &[&frame], &mut host.app);
        let expected = if is_taken { Disposition::Accepted } else { dropped(DropReason::ForgedSource) };
        assert_eq!(disposition, expected, "{origin:?}");
    }
    pair.run(LIMIT, no_fault);
}
