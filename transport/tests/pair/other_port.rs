//! Packets from another UDP source port than the peer's: what they may do is little, whatever they
//! say, and a peer that has moved is heard again.

use roced_transport::{
    clock::Nanos,
    counters::QpCount,
    io::Egress,
    mr::MrKey,
    qp::{PathState, ServiceType},
    reject::{Disposition, DropReason},
    wire::{
        Aeth, NakCode, Syndrome,
        atomic::{AtomicAck, AtomicEth},
        headers::Headers,
        opcode::{self, Opcode},
        reth::Reth,
    },
};
use roced_types::{QpAttributes, SendOp, Status, attribute, state};

use crate::{
    forged::{OTHER_PORT_BAR_MAX, WARM, give, headers},
    host::{KEY, Pair, Settings, VA, no_fault, sge, work},
    selective::{HELD, dropped, repairs, warm},
};

const OTHER: Disposition = dropped(DropReason::OtherSourcePort);
const WRONG_KEY: MrKey = MrKey(KEY.0 ^ 0x5500);

fn write(pair: &Pair, key: MrKey, ahead: u32) -> Headers {
    let reth = Some(Reth { va: VA + 900_000, rkey: key, length: 6 });
    Headers { reth, ..headers(pair, 1, opcode::RC_WRITE_ONLY, ahead) }
}

/// A connection goes on: the next message arrives, with nothing sent again.
fn goes_on(pair: &mut Pair, what: &str) {
    let before = repairs(pair);
    pair.hosts[0].post(&work(7, SendOp::Write, &[sge(0, 3000)], 100_000));
    pair.settle();
    assert_eq!(pair.hosts[0].take(), [(7, Status::Success)], "{what}");
    assert_eq!(repairs(pair), before, "{what}");
    assert_eq!(pair.hosts.each_ref().map(|host| host.state()), ["RTS"; 2], "{what}");
}

/// With the very PSN that is due: a peer repeats it from its own port.
#[test]
fn a_faulty_request_from_another_port_changes_nothing() {
    let reth = |va, key, length| Some(Reth { va, rkey: key, length });
    let atomic = Some(AtomicEth { va: VA + 1, rkey: KEY, swap_or_add: 0, compare: 0 });
    let faulty: [(&str, Opcode, Headers, usize); 7] = {
        let pair = Pair::new(Settings::default());
        let of = |opcode| headers(&pair, 1, opcode, WARM);
        [
            ("a wrong key", opcode::RC_WRITE_ONLY, write(&pair, WRONG_KEY, WARM), 6),
            ("a range beyond", opcode::RC_READ_REQUEST, of(opcode::RC_READ_REQUEST), 0),
            ("no message before", opcode::RC_SEND_MIDDLE, of(opcode::RC_SEND_MIDDLE), 1024),
            ("too short", opcode::RC_SEND_FIRST, of(opcode::RC_SEND_FIRST), 100),
            ("too long for the receive", opcode::RC_SEND_ONLY, of(opcode::RC_SEND_ONLY), 200),
            ("not aligned", opcode::RC_FETCH_ADD, of(opcode::RC_FETCH_ADD), 0),
            ("no such operation", opcode::RC_RESERVED_1A, of(opcode::RC_RESERVED_1A), 0),
        ]
    };
    for (what, opcode, headers, bytes) in faulty {
        let mut pair = warm(Settings::default());
        pair.hosts[1].post_recv(1, &[sge(0, 100)]);
        let headers = match opcode {
            opcode::RC_READ_REQUEST => Headers { reth: reth(u64::MAX / 2, KEY, 6), ..headers },
            opcode::RC_FETCH_ADD => Headers { atomic, ..headers },
            _ => headers,
        };
        let before = pair.hosts[1].endpoint.counters();
        assert_eq!(give(&mut pair, 1, true, &headers, &vec![1; bytes]), OTHER, "{what}");
        let send = crate::forged::headers(&pair, 1, opcode::RC_SEND_ONLY, WARM);
        assert_eq!(give(&mut pair, 1, true, &send, b"guess"), OTHER, "{what}: that was a guess");
        assert!(pair.hosts[1].endpoint.counters().iter().eq(before.iter()), "{what}: nothing is counted");
        assert!(pair.hosts[1].app.completions.is_empty(), "{what}");
        goes_on(&mut pair, what);
    }
}

/// The NAK would have its peer wait, and the hole behind would not be asked for.
#[test]
fn a_request_from_another_port_that_finds_no_receive_is_not_answered() {
    let mut pair = warm(Settings::default());
    let send = headers(&pair, 1, opcode::RC_SEND_ONLY, WARM);
    assert_eq!(give(&mut pair, 1, true, &send, b"guess"), OTHER);
    pair.settle();
    assert_eq!(pair.hosts[1].count(QpCount::RnrNakSent), 0);
    goes_on(&mut pair, "no receive");
}

#[test]
fn a_faulty_answer_from_another_port_changes_nothing() {
    let nak = |code| Syndrome::Nak(code);
    for (op, opcode, syndrome, bytes) in [
        (SendOp::Write, opcode::RC_ACK, Syndrome::Rnr { timer: 0 }, 0),
        (SendOp::Write, opcode::RC_ACK, nak(NakCode::RemoteAccess), 0),
        (SendOp::Write, opcode::RC_READ_RESPONSE_ONLY, Syndrome::ACK, 100),
        (SendOp::Read, opcode::RC_READ_RESPONSE_ONLY, Syndrome::ACK, 10),
        (SendOp::Read, opcode::RC_READ_RESPONSE_FIRST, nak(NakCode::InvalidRequest), 1024),
        (SendOp::Read, opcode::RC_ATOMIC_ACK, Syndrome::ACK, 0),
        (SendOp::FetchAdd, opcode::RC_ATOMIC_ACK, nak(NakCode::RemoteAccess), 0),
        (SendOp::FetchAdd, opcode::RC_READ_RESPONSE_ONLY, Syndrome::ACK, 8),
    ] {
        let what = format!("{op:?} {opcode:?} {syndrome:?}");
        let mut pair = warm(Settings { rnr_retry: 0, ..Settings::default() });
        let length = if op == SendOp::FetchAdd { 8 } else { 3000 };
        pair.hosts[0].post(&work(9, op, &[sge(0, length)], 8));
        pair.hosts[0].endpoint.poll_transmit(pair.now, 64, &mut pair.hosts[0].app, &mut pair.hosts[0].nic);
        let atomic_ack = (opcode == opcode::RC_ATOMIC_ACK).then_some(AtomicAck { original: 0x5a5a });
        let headers =
            Headers { aeth: Some(Aeth { syndrome, msn: WARM }), atomic_ack, ..headers(&pair, 0, opcode, WARM) };
        assert_eq!(give(&mut pair, 0, true, &headers, &vec![1; bytes]), OTHER, "{what}");
        assert!(pair.hosts[0].app.completions.is_empty(), "{what}");
        pair.settle();
        assert_eq!(pair.hosts[0].take(), [(9, Status::Success)], "{what}");
        assert_eq!(repairs(&pair), [0; 3], "{what}");
        goes_on(&mut pair, &what);
    }
}

#[test]
fn a_faulty_packet_of_an_unreliable_connection_from_another_port_changes_nothing() {
    let mut pair = Pair::new(Settings { service: ServiceType::Uc, ..Settings::default() });
    let write = |pair: &Pair, opcode, key, length| {
        let reth = Some(Reth { va: VA + 900_000, rkey: key, length });
        let first = Headers { reth, ..headers(pair, 1, opcode, 0) };
        if opcode == opcode::UC_WRITE_LAST { Headers { reth: None, ..first } } else { first }
    };
    let first = write(&pair, opcode::UC_WRITE_FIRST, KEY, 1100);
    assert_eq!(give(&mut pair, 1, false, &first, &[7; 1024]), Disposition::Accepted);
    let mut wrong = write(&pair, opcode::UC_WRITE_ONLY, WRONG_KEY, 6);
    wrong.bth.psn = wrong.bth.psn.plus(1);
    assert_eq!(give(&mut pair, 1, true, &wrong, b"FORGED"), OTHER);
    let mut last = write(&pair, opcode::UC_WRITE_LAST, KEY, 1100);
    last.bth.psn = last.bth.psn.plus(1);
    assert_eq!(give(&mut pair, 1, true, &last, &[7; 76]), OTHER, "that was a guess");
    assert_eq!(give(&mut pair, 1, false, &last, &[7; 76]), Disposition::Accepted, "the message goes on");
}

/// Host 1 answers and never asks, and the other way around: each is known by that.
#[test]
fn a_peer_of_one_role_is_known_by_its_port_in_the_other() {
    let mut pair = warm(Settings::default());
    pair.hosts[0].post_recv(1, &[sge(0, 100)]);
    for ahead in [1, 0, 5_000, 0] {
        let send = headers(&pair, 0, opcode::RC_SEND_ONLY, ahead);
        assert_eq!(give(&mut pair, 0, true, &send, b"FORGED"), OTHER, "{ahead}");
    }
    pair.hosts[1].post(&work(5, SendOp::Write, &[sge(0, 5000)], 0));
    pair.hosts[1].endpoint.poll_transmit(pair.now, 64, &mut pair.hosts[1].app, &mut pair.hosts[1].nic);
    for ahead in [2, 4, 4] {
        let aeth = Some(Aeth { syndrome: Syndrome::ACK, msn: 0 });
        let ack = Headers { aeth, ..headers(&pair, 1, opcode::RC_ACK, ahead) };
        assert_eq!(give(&mut pair, 1, true, &ack, &[]), OTHER, "{ahead}");
    }
    pair.settle();
    assert_eq!(pair.hosts[1].take(), [(5, Status::Success)]);
    // From its own port the first request counts, and one from another with the PSN that is due.
    for (other_port, ahead) in [(false, 0), (true, 1)] {
        pair.now = pair.now + OTHER_PORT_BAR_MAX;
        let send = headers(&pair, 0, opcode::RC_SEND_ONLY, 5 + ahead);
        let before = pair.hosts[0].app.completions.len();
        pair.hosts[0].post_recv(2, &[sge(0, 100)]);
        assert_eq!(give(&mut pair, 0, other_port, &send, b"text"), Disposition::Accepted, "{other_port}");
        assert_eq!(pair.hosts[0].app.completions.len(), before + 1);
    }
}

/// A peer that has moved is known in the other role by what was accepted from its new port: also
/// answers that have a requester wait, or end it, come from it.
#[test]
fn a_peer_that_has_moved_answers_from_its_new_port() {
    for has_key in [true, false] {
        let mut pair = warm(Settings::default());
        pair.hosts[1].post(&work(1, SendOp::Write, &[sge(0, 10)], 0));
        pair.settle();
        assert_eq!(pair.hosts[1].take(), [(1, Status::Success)]);
        move_port(&mut pair, 1);
        pair.hosts[0].post(&work(2, SendOp::Write, &[sge(0, 10)], 0));
        pair.settle();
        assert_eq!(pair.hosts[0].take(), [(2, Status::Success)]);
        pair.now = pair.now + Nanos::from_millis(2000);
        if has_key {
            // There is no receive for it yet.
            pair.hosts[1].post(&work(3, SendOp::Send, &[sge(0, 10)], 0));
            for _ in 0..200 {
                pair.now = pair.now + Nanos::from_millis(20);
                pair.turn(&mut no_fault);
            }
            pair.hosts[0].post_recv(4, &[sge(0, 100)]);
            pair.settle();
            assert_eq!(
                (pair.hosts[1].take(), pair.hosts[0].take()),
                (vec![(3, Status::Success)], vec![(4, Status::Success)])
            );
        } else {
            pair.hosts[1].post(&work(3, SendOp::Write, &[sge(0, 10)], u64::MAX / 2));
            pair.settle();
            assert_eq!(pair.hosts[1].take(), [(3, Status::RemoteAccess)]);
        }
    }
}

/// One lucky guess, after which the peer goes on from its own port.
#[test]
fn a_forged_packet_does_not_make_a_peer_roam() {
    let mut pair = warm(Settings::default());
    pair.hosts[1].post_recv(1, &[sge(0, 100)]);
    let send = headers(&pair, 1, opcode::RC_SEND_ONLY, WARM);
    assert_eq!(give(&mut pair, 1, true, &send, b"FORGED"), Disposition::Accepted);
    let own = write(&pair, KEY, WARM + 1);
    assert_eq!(give(&mut pair, 1, false, &own, b"theirs"), Disposition::Accepted);
    for ahead in [2 + 5, 2] {
        pair.hosts[1].post_recv(2, &[sge(0, 100)]);
        let send = headers(&pair, 1, opcode::RC_SEND_ONLY, WARM + ahead);
        assert_eq!(give(&mut pair, 1, true, &send, b"FORGED"), OTHER, "{ahead}");
    }
}

/// Sends from another UDP source port from now on.
fn move_port(pair: &mut Pair, life: u16) {
    pair.life = life;
    let path = PathState::Ready(pair.path_via(0, Egress::Nic { flow: 1 }));
    let qpn = pair.hosts[0].qpn;
    pair.hosts[0].endpoint.set_path(qpn, path).expect("there");
}

/// A message from each of these ports, one after the other.
fn spray(pair: &mut Pair, ports: impl Iterator<Item = u16>) {
    for port in ports {
        move_port(pair, port);
        pair.hosts[0].post(&work(1, SendOp::Write, &[sge(0, 10)], 0));
        pair.settle();
    }
}

/// In the same life, and in the next.
#[test]
fn a_peer_that_holds_its_port_still_roams_no_more() {
    for is_next_life in [false, true] {
        let mut pair = warm(Settings::default());
        spray(&mut pair, 1..40);
        let mut ahead = WARM + 39;
        let early = write(&pair, KEY, ahead + 3);
        assert_eq!(give(&mut pair, 1, true, &early, b"FORGED"), dropped(DropReason::OutOfSequence), "it roams");
        if is_next_life {
            for host in &mut pair.hosts {
                let reset = QpAttributes { state: state::RESET, ..QpAttributes::default() };
                host.endpoint.modify_qp(host.qpn, attribute::STATE, &reset, None).expect("from anywhere");
            }
            pair.connect();
            ahead = 0;
        } else {
            pair.now = pair.now + Nanos::from_millis(1001);
        }
        spray(&mut pair, [39; 3].into_iter());
        let early = write(&pair, KEY, ahead + 6);
        assert_eq!(give(&mut pair, 1, true, &early, b"FORGED"), OTHER, "next life: {is_next_life}");
    }
}

/// No frame of the past life is on its way after so long: a peer may have come back to its port.
#[test]
fn the_port_of_a_past_life_is_not_refused_for_ever() {
    let mut pair = warm(Settings::default());
    for host in &mut pair.hosts {
        let reset = QpAttributes { state: state::RESET, ..QpAttributes::default() };
        host.endpoint.modify_qp(host.qpn, attribute::STATE, &reset, None).expect("from anywhere");
    }
    pair.life = 1;
    pair.connect();
    spray(&mut pair, [1; 3].into_iter());
    let next = write(&pair, KEY, 3);
    pair.life = 0;
    assert_eq!(give(&mut pair, 1, false, &next, b"stale "), OTHER);
    pair.now = pair.now + Nanos::from_millis(10_001);
    assert_eq!(give(&mut pair, 1, false, &next, b"moved "), Disposition::Accepted);
}

/// A flood of guesses keeps other ports barred; a request with a key is known by it, and shows the
/// new port.
#[test]
fn a_peer_that_moves_is_heard_in_a_flood_by_its_first_request_with_a_key() {
    for op in [SendOp::Write, SendOp::Read, SendOp::FetchAdd] {
        let mut pair = warm(Settings { timeout: 10, ..Settings::default() });
        for guess in 0..1000 {
            let send = headers(&pair, 1, opcode::RC_SEND_ONLY, WARM + 5 + guess);
            give(&mut pair, 1, true, &send, b"FORGED");
            pair.now = pair.now + Nanos::from_micros(10);
        }
        move_port(&mut pair, 1);
        pair.hosts[0].post(&work(7, op, &[sge(0, 8)], 0));
        pair.settle();
        assert_eq!(pair.hosts[0].take(), [(7, Status::Success)], "{op:?}");
        assert_eq!(repairs(&pair), [0; 3], "{op:?}");
    }
}

/// Forged frames at one interval, so that the first that comes when a bar ends would always be one
/// of them if all bars were equally long.
#[test]
fn a_peer_that_moves_is_heard_in_a_flood_that_keeps_step() {
    let mut pair = warm(Settings { timeout: 0, ..Settings::default() });
    pair.hosts[1].post_recv(1, &[sge(0, 100)]);
    let mut millis = 0;
    loop {
        // Right before the peer's repetition, once in two milliseconds.
        let forged = headers(&pair, 1, opcode::RC_SEND_ONLY, WARM + 5 + millis % 1000);
        if millis % 20 == 0 {
            give(&mut pair, 1, true, &forged, b"FORGED");
        }
        pair.now = pair.now + Nanos::from_micros(100);
        if millis % 2 == 0 {
            pair.life = 1;
            let moved = headers(&pair, 1, opcode::RC_SEND_ONLY, WARM);
            let disposition = give(&mut pair, 1, false, &moved, b"moved");
            pair.life = 0;
            if disposition == Disposition::Accepted {
                break;
            }
        }
        pair.now = pair.now + Nanos::from_micros(900);
        millis += 1;
        assert!(millis < 2000, "it is kept out");
    }
}

/// A port that is known to nobody, far ahead: the peer's own packets are not doubted for it.
#[test]
fn a_packet_far_ahead_does_not_delay_the_next_life() {
    let mut pair = warm(Settings { timeout: 0, ..Settings::default() });
    for host in &mut pair.hosts {
        let reset = QpAttributes { state: state::RESET, ..QpAttributes::default() };
        host.endpoint.modify_qp(host.qpn, attribute::STATE, &reset, None).expect("from anywhere");
    }
    pair.connect();
    for ahead in [200, 5_000, 1 << 22] {
        let forged = write(&pair, KEY, ahead);
        assert_eq!(give(&mut pair, 1, true, &forged, b"FORGED"), dropped(DropReason::BeyondWindow));
    }
    let start = pair.now;
    pair.hosts[0].post(&work(7, SendOp::Write, &[sge(0, 10)], 0));
    pair.settle();
    assert_eq!(pair.hosts[0].take(), [(7, Status::Success)]);
    assert!(pair.now - start < Nanos::from_millis(20), "{:?}", pair.now - start);
}

/// A READ request takes as many PSNs as its answer has packets.
#[test]
fn the_window_grows_with_the_sequence_numbers_under_way() {
    let mut pair = warm(Settings::default());
    let read = |pair: &Pair, ahead: u32| {
        let reth = Some(Reth { va: VA, rkey: KEY, length: 40 * 1024 });
        Headers { reth, ..headers(pair, 1, opcode::RC_READ_REQUEST, WARM + ahead) }
    };
    for (ahead, expected) in [(40, HELD), (80, HELD), (120, HELD), (0, Disposition::Accepted)] {
        let request = read(&pair, ahead);
        assert_eq!(give(&mut pair, 1, false, &request, &[]), expected, "{ahead}");
    }
    for (ahead, expected) in [(160 + 240, HELD), (160 + 280, dropped(DropReason::BeyondWindow))] {
        let request = read(&pair, ahead);
        assert_eq!(give(&mut pair, 1, false, &request, &[]), expected, "{ahead}");
    }
}

/// A packet of an unreliable connection from the port of this life, counted from the first PSN.
fn give_uc(pair: &mut Pair, life: u16, ahead: u32) -> bool {
    pair.life = life;
    let reth = Some(Reth { va: VA + 900_000, rkey: KEY, length: 6 });
    let headers = Headers { reth, ..headers(pair, 1, opcode::UC_WRITE_ONLY, ahead) };
    let disposition = give(pair, 1, false, &headers, b"moving");
    pair.life = 0;
    pair.now = pair.now + Nanos::from_micros(100);
    disposition == Disposition::Accepted
}

/// Its port changes while packets are lost.
#[test]
fn an_unreliable_peer_that_changes_its_port_in_a_burst_of_losses_is_heard_again() {
    for lost in [3, 4, 200, 3_000, 100_000] {
        let mut pair = Pair::new(Settings { service: ServiceType::Uc, ..Settings::default() });
        assert!((0..5).all(|ahead| give_uc(&mut pair, 0, ahead)));
        let mut ahead = 5 + lost;
        let mut missed = 0;
        while !give_uc(&mut pair, 1, ahead) {
            (ahead, missed) = (ahead + 1, missed + 1);
            assert!(missed <= 10_010 + (10_000 + lost) / 250, "{lost} lost, and {missed} unsuccessful");
        }
        assert!((1..100).all(|more| give_uc(&mut pair, 1, ahead + more)));
    }
}

/// While the peer is heard nothing of the kind counts, however long it goes on, and neither does a
/// short one after a silence.
#[test]
fn a_forger_that_counts_up_is_not_taken_for_an_unreliable_peer_that_has_moved() {
    let mut pair = Pair::new(Settings { service: ServiceType::Uc, ..Settings::default() });
    for ahead in 0..500 {
        assert!(give_uc(&mut pair, 0, ahead));
        assert!((0..40).all(|more| !give_uc(&mut pair, 1, 1_000 + 40 * ahead + more)));
    }
    pair.now = pair.now + Nanos::from_millis(5000);
    assert!((0..100).all(|more| !give_uc(&mut pair, 2, 500 + 100_000 + more)));
    assert!(give_uc(&mut pair, 0, 500));
}
