//! Atomic operations: results and effects, and execution once under any network faults.

use roced_transport::{
    clock::Nanos,
    counters::QpCount,
    mr::MrKey,
    psn::Psn,
    recovery::RecoveryConfig,
    reject::{Disposition, DropReason},
    wire::{
        AtomicAck, AtomicEth, Syndrome,
        aeth::{Aeth, NakCode},
        bth::Bth,
        headers::Headers,
        opcode::{self, Operation},
    },
    work::SendWork,
};
use roced_types::{CompletionOp, SendOp, Sge, Status, access, event, send_flags};

use crate::{
    faults::Random,
    host::{Fate, KEY, MEMORY_BYTES, Pair, Settings, VA, bth, forged, no_fault, one, sge, work},
};

const LIMIT: Nanos = Nanos::from_millis(10_000);
/// Where the number lies at the peer.
const NUMBER: u64 = 4096;

fn fetch_add<'a>(wr_id: u64, sges: &'a [Sge], add: u64) -> SendWork<'a> {
    SendWork { swap_or_add: add, ..work(wr_id, SendOp::FetchAdd, sges, NUMBER) }
}

fn compare_swap<'a>(wr_id: u64, sges: &'a [Sge], compare: u64, swap: u64) -> SendWork<'a> {
    SendWork { swap_or_add: swap, compare, ..work(wr_id, SendOp::CompareSwap, sges, NUMBER) }
}

fn number_at(pair: &Pair, host: usize, offset: u64) -> u64 {
    u64::from_ne_bytes(pair.hosts[host].app.memory[offset as usize..][..8].try_into().expect("eight bytes"))
}

fn set_number(pair: &mut Pair, value: u64) {
    pair.hosts[1].app.memory[NUMBER as usize..][..8].copy_from_slice(&value.to_ne_bytes());
}

#[test]
fn atomic_operations_return_the_old_value_and_store_the_new_one() {
    let mut pair = Pair::new(Settings::default());
    set_number(&mut pair, 7);
    let here: Vec<[Sge; 1]> = (0..4).map(|at| [sge(64 + at * 8, 8)]).collect();
    pair.hosts[0].post(&fetch_add(1, &here[0], u64::MAX - 5));
    pair.hosts[0].post(&fetch_add(2, &here[1], 6));
    pair.hosts[0].post(&compare_swap(3, &here[2], 7, 0x1122_3344_5566_7788));
    pair.hosts[0].post(&compare_swap(4, &here[3], 7, 99));
    pair.settle();
    let found: Vec<u64> = (0..4).map(|at| number_at(&pair, 0, 64 + at * 8)).collect();
    // 7 - 6 = 1 with 2^64, 1 + 6 = 7, swapped, not swapped.
    assert_eq!(found, [7, 1, 7, 0x1122_3344_5566_7788]);
    assert_eq!(number_at(&pair, 1, NUMBER), 0x1122_3344_5566_7788);
    let completions: Vec<_> = pair.hosts[0].app.completions.iter().map(|cqe| (cqe.op, cqe.byte_len)).collect();
    let (add, swap) = (CompletionOp::FetchAdd, CompletionOp::CompareSwap);
    assert_eq!(completions, [(add, 8), (add, 8), (swap, 8), (swap, 8)]);
    assert_eq!(pair.hosts[0].take(), [1, 2, 3, 4].map(|wr_id| (wr_id, Status::Success)));
    assert_eq!(pair.hosts[1].count(QpCount::AtomicRequests), 4);
}

#[test]
fn an_answer_is_scattered_like_any_data() {
    let mut pair = Pair::new(Settings::default());
    set_number(&mut pair, 0x0102_0304_0506_0708);
    pair.hosts[0].post(&fetch_add(1, &[sge(100, 3), sge(200, 0), sge(300, 5)], 1));
    pair.settle();
    let memory = &pair.hosts[0].app.memory;
    assert_eq!([&memory[100..103], &memory[300..305]].concat(), 0x0102_0304_0506_0708_u64.to_ne_bytes());
}

/// Host 0's work ends with `status`, nothing was executed, and both queue pairs fail.
fn is_refused(settings: Settings, refused: &SendWork<'_>, status: Status, counted: QpCount) {
    let mut pair = Pair::new(settings);
    pair.hosts[0].post(&work(1, SendOp::Write, &[], 0));
    pair.hosts[0].post(refused);
    pair.settle();
    assert_eq!(pair.hosts[0].take(), [(1, Status::Success), (refused.wr_id, status)]);
    assert_eq!(pair.hosts[1].count(counted), 1);
    assert_eq!((pair.hosts[0].state(), pair.hosts[1].state()), ("ERR", "ERR"));
    let told = if status == Status::RemoteAccess { event::QP_ACCESS_ERROR } else { event::QP_REQUEST_ERROR };
    assert_eq!(pair.hosts[1].endpoint.poll_event().map(|event| event.kind), Some(told));
    assert!(pair.hosts[1].app.originals.is_empty(), "nothing was executed");
}

#[test]
fn an_address_that_is_no_multiple_of_eight_is_an_invalid_request() {
    let here = [sge(64, 8)];
    for skew in 1..8 {
        for work in [fetch_add(2, &here, 1), compare_swap(2, &here, 0, 1)] {
            let work = SendWork { remote_va: VA + NUMBER + skew, ..work };
            is_refused(Settings::default(), &work, Status::RemoteInvalidRequest, QpCount::RemoteInvalidSent);
        }
    }
}

/// A region may be registered under addresses that are aligned otherwise than its memory.
#[test]
fn memory_that_is_not_aligned_is_an_invalid_request_too() {
    let mut pair = Pair::new(Settings::default());
    let region = pair.hosts[1].endpoint.remove_mr(KEY).expect("there");
    pair.hosts[1].endpoint.insert_mr(roced_transport::mr::Mr { offset: 4, length: 4096 + 64, ..region }).expect("room");
    pair.hosts[0].post(&fetch_add(1, &[sge(64, 8)], 1));
    pair.settle();
    assert_eq!(pair.hosts[0].take(), [(1, Status::RemoteInvalidRequest)]);
    assert!(pair.hosts[1].app.originals.is_empty(), "nothing was executed");
}

#[test]
fn key_range_and_right_are_checked() {
    let here = [sge(64, 8)];
    for work in [fetch_add(2, &here, 1), compare_swap(2, &here, 0, 1)] {
        let access = |settings, work: SendWork<'_>| {
            is_refused(settings, &work, Status::RemoteAccess, QpCount::RemoteAccessSent);
        };
        access(Settings::default(), SendWork { rkey: KEY.0 ^ 1, ..work });
        access(Settings::default(), SendWork { remote_va: VA - 8, ..work });
        access(Settings::default(), SendWork { remote_va: VA + MEMORY_BYTES as u64, ..work });
        access(Settings::default(), SendWork { remote_va: !7, ..work });
        let others = access::ALL & !access::REMOTE_ATOMIC;
        access(Settings { access: others, ..Settings::default() }, work);
    }
    let mut pair = Pair::new(Settings::default());
    let region = pair.hosts[1].endpoint.remove_mr(KEY).expect("there");
    let other = MrKey(0x0077_7701);
    let weaker = roced_transport::mr::Mr { key: other, access: access::ALL & !access::REMOTE_ATOMIC, ..region };
    pair.hosts[1].endpoint.insert_mr(weaker).expect("room");
    pair.hosts[0].post(&SendWork { rkey: other.0, ..fetch_add(1, &here, 1) });
    pair.settle();
    assert_eq!(pair.hosts[0].take(), [(1, Status::RemoteAccess)]);
}

#[test]
fn the_last_eight_bytes_of_a_region_may_be_reached() {
    let mut pair = Pair::new(Settings::default());
    let last = MEMORY_BYTES as u64 - 8;
    let before = number_at(&pair, 1, last);
    pair.hosts[0].post(&SendWork { remote_va: VA + last, ..fetch_add(1, &[sge(64, 8)], 1) });
    pair.settle();
    assert_eq!(pair.hosts[0].take(), [(1, Status::Success)]);
    assert_eq!((number_at(&pair, 0, 64), number_at(&pair, 1, last)), (before, before.wrapping_add(1)));
}

#[test]
fn an_answer_of_other_than_eight_bytes_has_no_place_here() {
    for length in [0, 7, 9, 16] {
        let mut pair = Pair::new(Settings::default());
        pair.hosts[0].post(&fetch_add(1, &[sge(64, length)], 1));
        pair.settle();
        assert_eq!(pair.hosts[0].take(), [(1, Status::LocalLength)], "{length} bytes");
        assert_eq!(pair.trace.len(), 0, "nothing was sent");
    }
    let mut pair = Pair::new(Settings { rd_atomic: 0, ..Settings::default() });
    pair.hosts[0].post(&fetch_add(1, &[sge(64, 8)], 1));
    pair.settle();
    assert_eq!(pair.hosts[0].take(), [(1, Status::LocalQpOperation)]);
}

#[test]
fn a_place_for_the_answer_that_does_not_open_fails_the_request() {
    let mut pair = Pair::new(Settings::default());
    pair.hosts[0].post(&fetch_add(1, &[Sge { lkey: KEY.0 ^ 0x100, ..sge(64, 8) }], 1));
    pair.hosts[0].post(&fetch_add(2, &[sge(64, 8)], 1));
    pair.settle();
    assert_eq!(pair.hosts[0].take(), [(1, Status::LocalProtection), (2, Status::WorkRequestFlushed)]);
}

/// Three additions under one fault: each is executed once, and each gets its own answer.
fn survives(fate: impl FnMut(usize, opcode::Opcode, usize) -> Fate) -> Pair {
    survives_with(RecoveryConfig::default(), fate)
}

fn survives_with(recovery: RecoveryConfig, fate: impl FnMut(usize, opcode::Opcode, usize) -> Fate) -> Pair {
    let mut pair = Pair::established(Settings { recovery: [recovery; 2], ..Settings::default() });
    set_number(&mut pair, 100);
    let here: Vec<[Sge; 1]> = (0..3).map(|at| [sge(64 + at * 8, 8)]).collect();
    for at in 0..3 {
        pair.hosts[0].post(&fetch_add(at, &here[at as usize], 1));
    }
    assert!(pair.run(LIMIT, fate), "it comes to rest");
    assert_eq!(pair.hosts[0].take(), [0, 1, 2].map(|wr_id| (wr_id, Status::Success)));
    assert_eq!(pair.hosts[1].app.originals, [100, 101, 102], "each once");
    let found: Vec<u64> = (0..3).map(|at| number_at(&pair, 0, 64 + at * 8)).collect();
    assert_eq!(found, [100, 101, 102], "each its own answer");
    assert_eq!(pair.hosts[1].count(QpCount::AtomicRequests), 3);
    pair
}

#[test]
fn a_lost_request_is_asked_for() {
    let pair = survives(one(0, opcode::RC_FETCH_ADD, 1, Fate::Drop));
    assert_eq!(pair.hosts[1].count(QpCount::SequenceNakSent), 1);
    assert_eq!(pair.hosts[0].count(QpCount::AckTimeout), 0);
    found_at_last(0, opcode::RC_FETCH_ADD);
}

#[test]
fn a_lost_answer_is_an_implied_nak_and_is_given_again_not_executed_again() {
    let pair = survives(one(1, opcode::RC_ATOMIC_ACK, 0, Fate::Drop));
    assert_eq!(pair.hosts[0].count(QpCount::ImpliedNak), 1);
    assert_eq!(pair.hosts[0].count(QpCount::AckTimeout), 0);
    assert!(pair.hosts[1].count(QpCount::DuplicateRequest) > 0);
    found_at_last(1, opcode::RC_ATOMIC_ACK);
}

/// Nothing comes behind the last frame of its kind: a probe finds its loss, or with plain go-back-N
/// the ACK timer.
fn found_at_last(from: usize, opcode: opcode::Opcode) {
    for (recovery, time_outs) in [(RecoveryConfig::default(), 0), (RecoveryConfig::GO_BACK_N, 1)] {
        let pair = survives_with(recovery, one(from, opcode, 2, Fate::Drop));
        assert_eq!(pair.hosts[0].count(QpCount::AckTimeout), time_outs);
        assert_eq!(pair.hosts[0].count(QpCount::AdaptiveRetransmission), 1 - time_outs);
    }
}

/// Answers behind the one that was lost wait for it, and are not asked for again.
#[test]
fn answers_behind_a_lost_one_are_held() {
    let pair = survives(one(1, opcode::RC_ATOMIC_ACK, 0, Fate::Drop));
    assert_eq!(pair.hosts[0].count(QpCount::OutOfOrderBuffered), 2);
    assert_eq!(pair.hosts[0].count(QpCount::RetransmittedPackets), 1);
}

#[test]
fn a_duplicate_gets_the_saved_answer() {
    let pair = survives(one(0, opcode::RC_FETCH_ADD, 0, Fate::Duplicate));
    assert_eq!(pair.hosts[1].drops()["drop_duplicate"], 1);
    // Long after, with another value in memory: still the first result.
    let mut pair = Pair::new(Settings::default());
    set_number(&mut pair, 5);
    let headers = |operation| Headers {
        atomic: Some(AtomicEth { va: VA + NUMBER, rkey: KEY, swap_or_add: 1, compare: 5 }),
        ..Headers::new(bth(&pair, operation))
    };
    let frame = forged(&pair, &headers(opcode::RC_COMPARE_SWAP), &[]);
    let other = forged(&pair, &headers(opcode::RC_FETCH_ADD), &[]);
    assert_eq!(pair.deliver(1, &frame), Disposition::Accepted);
    set_number(&mut pair, 77);
    assert_eq!(pair.deliver(1, &frame), Disposition::Dropped(DropReason::Duplicate));
    assert_eq!(pair.deliver(1, &other), Disposition::Dropped(DropReason::UnknownDuplicate), "another operation");
    let answers = answers_of(&mut pair);
    assert_eq!(answers, [5], "one answer for both");
    assert_eq!(pair.deliver(1, &frame), Disposition::Dropped(DropReason::Duplicate));
    assert_eq!(answers_of(&mut pair), [5]);
    assert_eq!((number_at(&pair, 1, NUMBER), pair.hosts[1].app.originals.len()), (77, 1));
}

/// Answers of host 1 to atomic requests now.
fn answers_of(pair: &mut Pair) -> Vec<u64> {
    let host = &mut pair.hosts[1];
    host.endpoint.poll_transmit(pair.now, 32, &mut host.app, &mut host.nic);
    let frames: Vec<_> = host.nic.frames.drain(..).collect();
    let original = |frame: &Vec<u8>| {
        let packet = roced_transport::wire::parse(&[frame]).expect("our frame parses");
        packet.atomic_ack.map(|AtomicAck { original }| original)
    };
    frames.iter().filter_map(original).collect()
}

#[test]
fn a_duplicate_without_a_kept_result_is_dropped() {
    let mut pair = Pair::new(Settings { rd_atomic: 2, ..Settings::default() });
    let request = |at: i32| {
        let psn = Psn::new(pair.settings.psn.wrapping_add_signed(at));
        let atomic = Some(AtomicEth { va: VA + NUMBER, rkey: KEY, swap_or_add: 1, compare: 0 });
        forged(&pair, &Headers { atomic, ..Headers::new(Bth { psn, ..bth(&pair, opcode::RC_FETCH_ADD) }) }, &[])
    };
    let frames: Vec<_> = (-1..4).map(request).collect();
    let unknown = Disposition::Dropped(DropReason::UnknownDuplicate);
    assert_eq!(pair.deliver(1, &frames[0]), unknown, "never executed");
    for frame in &frames[1..] {
        assert_eq!(pair.deliver(1, frame), Disposition::Accepted);
        assert_eq!(answers_of(&mut pair).len(), 1);
    }
    assert_eq!(pair.deliver(1, &frames[2]), unknown, "two others came after it");
    assert_eq!(pair.deliver(1, &frames[3]), Disposition::Dropped(DropReason::Duplicate));
    assert_eq!(pair.hosts[1].app.originals.len(), 4);
}

#[test]
fn more_at_a_time_than_agreed_are_invalid_and_not_executed() {
    let mut pair = Pair::new(Settings { rd_atomic: 2, ..Settings::default() });
    let mut dispositions = Vec::new();
    for at in 0..3 {
        let psn = Psn::new(pair.settings.psn + at);
        let atomic = Some(AtomicEth { va: VA + NUMBER, rkey: KEY, swap_or_add: 1, compare: 0 });
        let headers = Headers { atomic, ..Headers::new(Bth { psn, ..bth(&pair, opcode::RC_FETCH_ADD) }) };
        let frame = forged(&pair, &headers, &[]);
        dispositions.push(pair.deliver(1, &frame));
    }
    assert_eq!(dispositions[2], Disposition::Dropped(DropReason::InvalidRequest));
    assert_eq!(pair.hosts[1].app.originals.len(), 2);
}

/// READs and atomic operations share the agreed limit; 128 is the most.
#[test]
fn as_many_as_agreed_are_under_way_at_a_time() {
    for most in [1, 3, 16, 128] {
        let mut pair = Pair::new(Settings { rd_atomic: most, window: 512, ..Settings::default() });
        let mut posted = 0;
        let (mut under_way, mut peak) = (0u32, 0);
        while posted < 300 {
            while posted < 300 && pair.hosts[0].endpoint.send_room(pair.hosts[0].qpn) > 0 {
                let here = [sge(posted * 8, 8)];
                let op = if posted % 3 == 0 { SendOp::Read } else { SendOp::FetchAdd };
                pair.hosts[0].post(&work(posted, op, &here, NUMBER));
                posted += 1;
            }
            pair.turn(&mut |from, opcode, _| {
                match (from, opcode.info().expect("known").operation) {
                    (0, Operation::ReadRequest | Operation::FetchAdd) => under_way += 1,
                    (1, Operation::ReadResponse | Operation::AtomicAck) => under_way -= 1,
                    _ => {}
                }
                peak = peak.max(under_way);
                Fate::Deliver
            });
        }
        pair.settle();
        assert_eq!(pair.hosts[0].take().len(), 300);
        // The send queue holds 64.
        assert!(peak <= most && peak >= most.min(32), "{peak} at a time where {most} are agreed");
        assert_eq!(pair.hosts[0].count(QpCount::RetransmittedPackets), 0);
    }
}

#[test]
fn a_fenced_request_waits_for_the_atomic_operations_before_it() {
    let mut pair = Pair::new(Settings::default());
    pair.hosts[0].post(&fetch_add(1, &[sge(64, 8)], 1));
    let here = [sge(64, 8)];
    let write = work(2, SendOp::Write, &here, 8192);
    pair.hosts[0].post(&SendWork { flags: send_flags::FENCE | send_flags::SIGNALED, ..write });
    pair.settle();
    let place = |wanted| pair.trace.iter().position(|(_, opcode, _)| *opcode == wanted).expect("sent");
    assert!(place(opcode::RC_ATOMIC_ACK) < place(opcode::RC_WRITE_ONLY));
    assert_eq!(number_at(&pair, 1, 8192), number_at(&pair, 0, 64), "it carries the earlier value");
}

#[test]
fn a_nak_is_no_answer_and_neither_is_a_read_response() {
    for read in [false, true] {
        let mut pair = Pair::new(Settings::default());
        pair.hosts[1].post(&fetch_add(1, &[sge(64, 8)], 1));
        pair.turn(&mut |_, _, _| Fate::Drop);
        let nak = Some(Aeth { syndrome: Syndrome::Nak(NakCode::RemoteAccess), msn: 0 });
        let headers = if read {
            let aeth = Some(Aeth { syndrome: Syndrome::ACK, msn: 0 });
            Headers { aeth, ..Headers::new(bth(&pair, opcode::RC_READ_RESPONSE_ONLY)) }
        } else {
            let atomic_ack = Some(AtomicAck { original: 3 });
            Headers { aeth: nak, atomic_ack, ..Headers::new(bth(&pair, opcode::RC_ATOMIC_ACK)) }
        };
        let payload = [0; 8];
        let frame = forged(&pair, &headers, if read { &payload } else { &[] });
        assert_eq!(pair.deliver(1, &frame), Disposition::Dropped(DropReason::UnexpectedResponse));
        assert!(pair.hosts[1].app.writes.is_empty(), "nothing was placed");
        pair.settle();
        let status = if read { Status::Success } else { Status::BadResponse };
        assert_eq!(pair.hosts[1].take(), [(1, status)]);
    }
}

#[test]
fn an_ack_does_not_answer_an_atomic_request() {
    let mut pair = Pair::new(Settings::default());
    pair.hosts[1].post(&fetch_add(1, &[sge(64, 8)], 1));
    pair.turn(&mut |_, _, _| Fate::Drop);
    let aeth = Some(Aeth { syndrome: Syndrome::ACK, msn: 1 });
    let frame = forged(&pair, &Headers { aeth, ..Headers::new(bth(&pair, opcode::RC_ACK)) }, &[]);
    assert_eq!(pair.deliver(1, &frame), Disposition::Accepted);
    assert_eq!(pair.hosts[1].take(), [], "it waits for the earlier value");
    assert_eq!(pair.hosts[1].count(QpCount::ImpliedNak), 1);
    pair.settle();
    assert_eq!(pair.hosts[1].take(), [(1, Status::Success)]);
}

/// Both hosts add to one number of host 1's (host 1 by itself, in between), READs and WRITEs among
/// them, while frames are lost, repeated, damaged and overtaken by a seed.
#[test]
fn every_operation_is_executed_once_under_any_network_faults() {
    for seed in 1..200_u64 {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let mut pair = Pair::new(Settings {
            timeout: 8,
            psn: 0x00ff_ffff - random.below(60) as u32,
            rd_atomic: [1, 2, 16, 128][random.below(4) as usize],
            window: [1, 4, 64][random.below(3) as usize],
            ..Settings::default()
        });
        set_number(&mut pair, 0);
        let mut atomics = 0;
        for wr_id in 0..50 {
            let here = [sge(100_000 + wr_id * 8, 8)];
            match random.below(5) {
                0 => pair.hosts[0].post(&work(wr_id, SendOp::Read, &[sge(200_000, 3000)], 300_000)),
                1 => pair.hosts[0].post(&work(wr_id, SendOp::Write, &[sge(0, 2000)], 400_000)),
                _ => {
                    pair.hosts[0].post(&fetch_add(1000 + atomics, &here, 1));
                    atomics += 1;
                    continue;
                }
            }
        }
        let rate = [0, 20, 60][random.below(3) as usize];
        let fate = |_: usize, _: opcode::Opcode, _: usize| match random.below(1000) {
            roll if roll < rate => Fate::Drop,
            roll if roll < 2 * rate => Fate::Duplicate,
            roll if roll < 3 * rate => Fate::Corrupt,
            roll if roll < 4 * rate => Fate::Late(1 + random.below(10) as usize),
            _ => Fate::Deliver,
        };
        assert!(pair.run(Nanos::from_millis(120_000), fate), "seed {seed}: it comes to rest");
        assert_eq!(number_at(&pair, 1, NUMBER), atomics, "seed {seed}");
        assert_eq!(pair.hosts[1].app.originals, (0..atomics).collect::<Vec<_>>(), "seed {seed}: each once, in order");
        let answers: Vec<u64> =
            (0..50).map(|wr_id| number_at(&pair, 0, 100_000 + wr_id * 8)).filter(|found| *found < atomics).collect();
        assert!(answers.is_sorted_by(|a, b| a < b) && answers.len() as u64 == atomics, "seed {seed}: {answers:?}");
        assert!(pair.hosts[0].take().iter().all(|(_, status)| *status == Status::Success), "seed {seed}");
        assert!(pair.run(LIMIT, no_fault));
    }
}
