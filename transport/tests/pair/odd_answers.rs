//! Answers of the peer itself that no peer gives: each byte of the AETH, at PSNs in flight, behind
//! them and never sent, on both sides of the wrap, with any message number. They have the meaning
//! of the standard or none, and no other queue pair notices. And receivers that are never ready, as
//! often as the standard lets them say so.

use roced_transport::{
    clock::Nanos,
    counters::QpCount,
    psn::Psn,
    reject::{Disposition, DropReason},
    turns::fair::FairOwner,
    wire::{
        Aeth, AtomicAck, Syndrome,
        headers::Headers,
        opcode::{self, Opcode},
    },
};
use roced_types::{AccountId, SendOp, SessionId, Status};

use crate::{
    forged::{WARM, give, headers},
    host::{Pair, Settings, no_fault, sge, work},
    selective::{dropped, warm},
};

/// Packets in flight.
const PACKETS: u32 = 16;

/// Message numbers: that of the peer, none, and far from both.
const MSNS: [u32; 4] = [WARM, 0, 0x00ff_ffff, 0x0080_0000];

/// A pair with [`PACKETS`] packets of a WRITE under way; the PSNs wrap in their middle.
fn under_way() -> Pair {
    let mut pair = warm(Settings { psn: Psn::new(0).minus(WARM + PACKETS / 2).get(), ..Settings::default() });
    pair.hosts[0].post(&work(7, SendOp::Write, &[sge(0, PACKETS as usize * 1024)], 500_000));
    send(&mut pair);
    assert_eq!(pair.hosts[0].nic.frames.len(), PACKETS as usize);
    pair
}

/// Host 0 sends; nothing arrives yet.
fn send(pair: &mut Pair) {
    let host = &mut pair.hosts[0];
    host.endpoint.poll_transmit(pair.now, 64, &mut host.app, &mut host.nic);
}

/// Gives host 0 an answer of its peer, `ahead` of the oldest PSN in flight.
fn answer(pair: &mut Pair, opcode: Opcode, code: u8, ahead: i32, msn: u32, payload: &[u8]) -> Disposition {
    let info = opcode.info().expect("known");
    let aeth = info.has_aeth.then_some(Aeth { syndrome: Syndrome::from_byte(code), msn });
    let atomic_ack = info.has_atomic_ack.then_some(AtomicAck { original: 5 });
    let psn = WARM.wrapping_add_signed(ahead) & 0x00ff_ffff;
    give(pair, 0, false, &Headers { aeth, atomic_ack, ..headers(pair, 0, opcode, psn) }, payload)
}

/// The connection goes on in both directions.
fn goes_on(pair: &mut Pair) {
    pair.hosts[1].post_recv(9, &[sge(900_000, 3000)]);
    pair.hosts[0].post(&work(8, SendOp::Send, &[sge(11, 3000)], 0));
    pair.hosts[0].post(&work(9, SendOp::Read, &[sge(20_000, 3000)], 700_000));
    pair.settle();
    assert_eq!(pair.hosts[0].take(), [(8, Status::Success), (9, Status::Success)]);
    assert_eq!(pair.hosts[1].take(), [(9, Status::Success)]);
    assert!(pair.hosts[0].app.memory[20_000..23_000] == pair.hosts[1].app.memory[700_000..703_000]);
}

fn check_ack(code: u8, ahead: i32, msn: u32) {
    let mut pair = under_way();
    let given = answer(&mut pair, opcode::RC_ACK, code, ahead, msn, &[]);
    let says = format!("{code:#04x} at {ahead}, MSN {msn:#x}: {given:?}");
    let in_flight = (0..PACKETS as i32).contains(&ahead);
    let ends = match code {
        0x61 | 0x64 => Some(Status::RemoteInvalidRequest),
        0x62 => Some(Status::RemoteAccess),
        0x63 => Some(Status::RemoteOperation),
        _ => None,
    };
    let has_meaning = code < 0x40 || (0x60..0x65).contains(&code);
    match (ahead, code) {
        // It may offer receives.
        (..0, ..0x20) => {
            assert!([Disposition::Accepted, dropped(DropReason::StaleResponse)].contains(&given), "{says}")
        }
        (..0, _) => assert_eq!(given, dropped(DropReason::StaleResponse), "{says}"),
        // The first PSN that was not sent: all before it arrived.
        _ if in_flight && has_meaning || ahead == PACKETS as i32 && code == 0x60 => {
            assert_eq!(given, Disposition::Accepted, "{says}");
        }
        _ => assert_eq!(given, dropped(DropReason::UnexpectedResponse), "{says}"),
    }
    pair.settle();
    let status = ends.filter(|_| in_flight);
    assert_eq!(pair.hosts[0].take(), [(7, status.unwrap_or(Status::Success))], "{says}");
    if status.is_some() {
        assert_eq!(pair.hosts[0].state(), "ERR", "{says}");
        return;
    }
    let counts = [QpCount::AckTimeout, QpCount::RnrRetryExceeded, QpCount::RetryExceeded];
    assert_eq!(counts.map(|what| pair.hosts[0].count(what)), [0; 3], "{says}");
    let (here, there) = (&pair.hosts[0].app.memory, &pair.hosts[1].app.memory);
    assert!(here[..16 * 1024] == there[500_000..500_000 + 16 * 1024], "{says}");
    goes_on(&mut pair);
}

#[test]
fn each_syndrome_has_its_meaning_on_both_sides_of_the_wrap_or_none() {
    let half = PACKETS as i32 / 2;
    for code in 0..=u8::MAX {
        let msn = MSNS[usize::from(code) % MSNS.len()];
        for ahead in [half - 1, half] {
            check_ack(code, ahead, msn);
        }
    }
}

#[test]
fn an_answer_of_a_psn_that_is_not_in_flight_changes_nothing() {
    let end = PACKETS as i32;
    let places =
        [-(1 << 23), 1 - (1 << 23), -70_000, -300, -2, -1, 0, 1, end - 1, end, end + 1, 300, 70_000, (1 << 23) - 1];
    for code in [0x00, 0x01, 0x1e, 0x1f, 0x20, 0x21, 0x3f, 0x45, 0x60, 0x61, 0x62, 0x63, 0x64, 0x65, 0x7f, 0xff] {
        for (ahead, msn) in places.into_iter().zip(MSNS.into_iter().cycle()) {
            check_ack(code, ahead, msn);
        }
    }
}

/// A READ, an atomic operation and a WRITE are under way, the wrap in the middle of the READ. They
/// end in order: nothing succeeds behind a failed one.
#[test]
fn any_answer_to_reads_and_atomic_operations_ends_in_order_and_harms_no_other_queue_pair() {
    let opcodes = [
        opcode::RC_READ_RESPONSE_FIRST,
        opcode::RC_READ_RESPONSE_MIDDLE,
        opcode::RC_READ_RESPONSE_LAST,
        opcode::RC_READ_RESPONSE_ONLY,
        opcode::RC_ATOMIC_ACK,
        opcode::RC_ACK,
    ];
    let bytes = [7; 1024];
    let (mut ends, mut goes_on) = (0, 0);
    for opcode in opcodes {
        for code in [0x00, 0x1f, 0x21, 0x45, 0x60, 0x62, 0xff] {
            for ahead in [-1, 0, 7, 8, 14, 15, 16, 17, 20, 1 << 22] {
                let settings = Settings { psn: Psn::new(0).minus(WARM + 8).get(), ..Settings::default() };
                let mut pair = warm(settings);
                pair.hosts[0].post(&work(1, SendOp::Read, &[sge(0, 15 * 1024)], 500_000));
                pair.hosts[0].post(&work(2, SendOp::FetchAdd, &[sge(50_000, 8)], 600_000));
                pair.hosts[0].post(&work(3, SendOp::Write, &[sge(60_000, 4 * 1024)], 700_000));
                send(&mut pair);
                let length = if opcode.info().expect("known").payload { 1024 } else { 0 };
                let msn = MSNS[ahead as usize % MSNS.len()];
                let given = answer(&mut pair, opcode, code, ahead, msn, &bytes[..length]);
                let says = format!("{opcode:?} {code:#04x} at {ahead}: {given:?}");
                pair.connect_another(6);
                pair.hosts[0].post(&work(4, SendOp::Write, &[sge(0, 5000)], 800_000));
                pair.settle();
                let (other, ours): (Vec<_>, Vec<_>) = pair.hosts[0].take().into_iter().partition(|(id, _)| *id == 4);
                assert_eq!(other, [(4, Status::Success)], "{says}");
                assert_eq!(ours.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [1, 2, 3], "{says}");
                let failed = ours.iter().position(|(_, status)| *status != Status::Success);
                let behind = &ours[failed.map_or(3, |at| at + 1)..];
                assert!(behind.iter().all(|(_, status)| *status == Status::WorkRequestFlushed), "{says}: {ours:?}");
                pair.turn_to(5);
                assert_eq!(pair.hosts[0].state(), if failed.is_some() { "ERR" } else { "RTS" }, "{says}");
                *(if failed.is_some() { &mut ends } else { &mut goes_on }) += 1;
            }
        }
    }
    assert!(ends > 20 && goes_on > 200, "{ends} ended, {goes_on} went on");
}

/// Turns until a WRITE of another account is done, and the stormy one's packets meanwhile. The
/// stormy queue pair sends to a receiver that is never ready, if it `storms`.
fn beside(storms: bool) -> (usize, u64) {
    let owner = |account| FairOwner { account: AccountId(account), client: SessionId(account), weight: 1 };
    // 10 us, the shortest time there is.
    let mut pair = Pair::unconnected(Settings { min_rnr_timer: 1, turn_frames: 8, ..Settings::default() });
    pair.connect();
    for host in &mut pair.hosts {
        host.endpoint.remove_qp(host.qpn).expect("there");
    }
    pair.owner = owner(1);
    pair.connect_another(6);
    if storms {
        pair.hosts[0].post(&work(1, SendOp::Send, &[sge(0, 60 * 1024)], 0));
    }
    pair.owner = owner(2);
    pair.connect_another(7);
    (0..8).for_each(|_| pair.hosts[0].post(&work(2, SendOp::Write, &[sge(0, 64 * 1024)], 500_000)));
    for turns in 1..10_000 {
        pair.turn(&mut no_fault);
        pair.now = pair.now + Nanos::from_micros(5);
        if pair.hosts[0].app.completions.len() == 8 {
            assert!(pair.hosts[0].take().iter().all(|(id, status)| (*id, *status) == (2, Status::Success)));
            return (turns, pair.hosts[0].count(QpCount::RnrNakReceived));
        }
    }
    panic!("it never ended");
}

#[test]
fn a_receiver_that_is_never_ready_leaves_others_their_share() {
    let ((alone, none), (beside, naks)) = (beside(false), beside(true));
    assert!(none == 0 && naks > 10, "{none} and {naks} RNR NAKs");
    assert!(beside <= alone * 9 / 4, "{beside} turns beside a storm, {alone} without one");
}

/// A NAK for each PSN in flight and again, at once: one wait, one retry, and each packet is sent
/// once more.
#[test]
fn a_burst_of_rnr_naks_is_one_wait() {
    let mut pair = under_way();
    for _ in 0..100 {
        for ahead in 0..PACKETS as i32 {
            answer(&mut pair, opcode::RC_ACK, 0x21, ahead, WARM, &[]);
        }
    }
    send(&mut pair);
    assert_eq!(pair.hosts[0].nic.frames.len(), PACKETS as usize, "it waits");
    pair.settle();
    assert_eq!(pair.hosts[0].take(), [(7, Status::Success)], "the others were answered");
    assert!(pair.hosts[0].count(QpCount::RetransmittedPackets) <= u64::from(PACKETS));
}

/// After each wait the packet is refused again, and twice: the retries are as many as was said.
#[test]
fn rnr_retries_run_out_in_a_storm() {
    for rnr_retry in 0..7 {
        let mut pair = warm(Settings { rnr_retry, ..Settings::default() });
        pair.hosts[0].post(&work(7, SendOp::Write, &[sge(0, 10)], 0));
        let mut sent = 0;
        while pair.hosts[0].app.completions.is_empty() {
            send(&mut pair);
            if !pair.hosts[0].nic.frames.is_empty() {
                sent += pair.hosts[0].nic.frames.drain(..).count() as u32;
                for _ in 0..2 {
                    answer(&mut pair, opcode::RC_ACK, 0x21, 0, WARM, &[]);
                }
            }
            pair.now = pair.now + Nanos::from_micros(5);
            let host = &mut pair.hosts[0];
            host.endpoint.on_timeout(pair.now, 16, &mut host.app);
            assert!(sent <= 7);
        }
        assert_eq!(sent, rnr_retry + 1);
        assert_eq!(pair.hosts[0].take(), [(7, Status::RnrRetryExceeded)]);
    }
}
