//! The order that a reliable connection guarantees between its requests, with and without a loss:
//! `docs/ordering.md`.
//!
//! Columns of the table are the later request, rows the earlier one; each cell has its test here.

use roced_transport::{
    clock::Nanos,
    wire::opcode::{Opcode, Operation},
    work::SendWork,
};
use roced_types::{SendOp, Status};

use crate::{
    faults::Random,
    host::{Fate, Pair, Settings, sge, work},
    selective::{LIMIT, warm},
};

/// A word of host 1 that grows as time goes on.
const WORD: usize = 600_000;

fn word(memory: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(memory[at..at + 8].try_into().expect("eight bytes"))
}

/// Runs until all is complete, while the word of host 1 grows with each turn; gives whether it came
/// to rest in time.
fn run_counting(pair: &mut Pair, mut fate: impl FnMut(usize, Opcode, usize) -> Fate, count: usize) {
    let end = pair.now + LIMIT;
    while pair.hosts[0].app.completions.len() < count {
        assert!(pair.now < end, "it comes to rest");
        let at = pair.now.0.to_ne_bytes();
        // A READ of several packets sees the word in each of them.
        for packet in 0..8 {
            pair.hosts[1].app.memory[WORD + packet * 1024..][..8].copy_from_slice(&at);
        }
        if pair.turn(&mut fate) {
            pair.now = pair.now + Nanos::from_micros(5);
        } else {
            let next = pair.hosts.iter().map(|host| host.endpoint.poll_timeout()).min().unwrap_or(Nanos::NEVER);
            pair.now = next.max(pair.now + Nanos::from_micros(5)).min(end);
        }
    }
}

/// Values of the word in each of `reads` READs of `bytes`, with one response in `loss` lost.
fn reads_after_reads(reads: u64, bytes: usize, loss: u64, seed: u64, go_back_n: bool) -> Vec<u64> {
    let settings = if go_back_n { crate::recovery::go_back_n() } else { Settings::default() };
    let mut pair = warm(settings);
    for wr_id in 0..reads {
        pair.hosts[0].post(&work(wr_id, SendOp::Read, &[sge(wr_id * 8192, bytes)], WORD as u64));
    }
    let mut random = Random(seed * 977 + 1);
    let fate = |from, _, _| if from == 1 && random.below(loss) == 0 { Fate::Drop } else { Fate::Deliver };
    run_counting(&mut pair, fate, reads as usize);
    let done = pair.hosts[0].take();
    assert!(
        done.iter().all(|(_, status)| *status == Status::Success),
        "{done:?} of {reads} READs of {bytes}, one in {loss} lost, seed {seed}"
    );
    (0..reads).map(|read| word(&pair.hosts[0].app.memory, read as usize * 8192)).collect()
}

#[test]
fn read_after_read_never_sees_older_data() {
    for go_back_n in [false, true] {
        for reads in [2, 5, 16] {
            for bytes in [8, 1024, 3000, 8192] {
                for loss in [5, 8, 1000] {
                    for seed in 1..12 {
                        let seen = reads_after_reads(reads, bytes, loss, seed, go_back_n);
                        assert!(
                            seen.is_sorted(),
                            "{reads} READs of {bytes}, one in {loss} lost, seed {seed}, {go_back_n}: {seen:?}"
                        );
                    }
                }
            }
        }
    }
}

/// Runs `earlier` and then `later`, with the `lost`-th frame of either direction lost; all must
/// complete.
fn in_order(earlier: &SendWork<'_>, later: &SendWork<'_>, lost: Option<(usize, usize)>) -> Pair {
    let mut pair = warm(Settings::default());
    pair.hosts[1].app.memory[WORD..WORD + 8].fill(0);
    for wr_id in 10..12 {
        pair.hosts[1].post_recv(wr_id, &[sge(WORD as u64, 4096)]);
    }
    pair.hosts[0].app.memory[0..4096].fill(1);
    pair.hosts[0].app.memory[4096..8192].fill(2);
    pair.hosts[0].post(earlier);
    pair.hosts[0].post(later);
    let mut seen = [0; 2];
    let fate = |from: usize, _: Opcode, _: usize| {
        seen[from] += 1;
        if Some((from, seen[from])) == lost { Fate::Drop } else { Fate::Deliver }
    };
    assert!(pair.run(LIMIT, fate), "it comes to rest");
    assert_eq!(pair.hosts[0].take(), [(1, Status::Success), (2, Status::Success)]);
    pair
}

fn losses() -> impl Iterator<Item = Option<(usize, usize)>> {
    std::iter::once(None).chain((0..2).flat_map(|from| (1..9).map(move |nth| Some((from, nth)))))
}

#[test]
fn read_after_write_and_after_send_sees_their_data() {
    for op in [SendOp::Write, SendOp::WriteImm, SendOp::Send] {
        for lost in losses() {
            let (first, into) = ([sge(0, 4096)], [sge(9000, 4096)]);
            let pair = in_order(&work(1, op, &first, WORD as u64), &work(2, SendOp::Read, &into, WORD as u64), lost);
            assert!(pair.hosts[0].app.memory[9000..13_096] == [1; 4096], "{op:?} with {lost:?} lost");
        }
    }
}

#[test]
fn a_later_write_or_send_overwrites_earlier_bytes() {
    for earlier in [SendOp::Write, SendOp::WriteImm, SendOp::Send] {
        for later in [SendOp::Write, SendOp::WriteImm, SendOp::Send] {
            for lost in losses() {
                let (first, second) = ([sge(0, 4096)], [sge(4096, 4096)]);
                let pair =
                    in_order(&work(1, earlier, &first, WORD as u64), &work(2, later, &second, WORD as u64), lost);
                assert!(
                    pair.hosts[1].app.memory[WORD..WORD + 4096] == [2; 4096],
                    "{later:?} after {earlier:?} with {lost:?} lost"
                );
            }
        }
    }
}

#[test]
fn an_atomic_operation_sees_earlier_writes() {
    for op in [SendOp::Write, SendOp::Send] {
        for lost in losses() {
            let (first, into) = ([sge(0, 4096)], [sge(9000, 8)]);
            let later = SendWork { swap_or_add: 7, ..work(2, SendOp::FetchAdd, &into, WORD as u64) };
            let pair = in_order(&work(1, op, &first, WORD as u64), &later, lost);
            let before = u64::from_ne_bytes([1; 8]);
            assert_eq!(word(&pair.hosts[0].app.memory, 9000), before, "{op:?} with {lost:?} lost");
            assert_eq!(word(&pair.hosts[1].app.memory, WORD), before + 7, "once");
        }
    }
}

/// Atomic operations and READs in turn: each READ sees the operations before it, and no operation
/// is executed twice.
#[test]
fn read_after_atomic_sees_its_result() {
    for lost in losses() {
        let mut pair = warm(Settings::default());
        pair.hosts[1].app.memory[WORD..WORD + 8].fill(0);
        for number in 0..8 {
            let (into, found) = ([sge(20_000 + number * 8, 8)], [sge(21_000 + number * 8, 8)]);
            pair.hosts[0].post(&SendWork { swap_or_add: 1, ..work(number, SendOp::FetchAdd, &found, WORD as u64) });
            pair.hosts[0].post(&work(number, SendOp::Read, &into, WORD as u64));
        }
        let mut seen = [0; 2];
        let fate = |from: usize, _: Opcode, _: usize| {
            seen[from] += 1;
            if Some((from, seen[from])) == lost { Fate::Drop } else { Fate::Deliver }
        };
        assert!(pair.run(LIMIT, fate), "it comes to rest");
        assert_eq!(pair.hosts[0].take().len(), 16);
        for number in 0..8u64 {
            assert_eq!(word(&pair.hosts[0].app.memory, 21_000 + number as usize * 8), number, "{lost:?}");
            assert!(word(&pair.hosts[0].app.memory, 20_000 + number as usize * 8) > number, "{lost:?}");
        }
        assert_eq!(word(&pair.hosts[1].app.memory, WORD), 8);
        assert!(pair.sent(0, Operation::ReadRequest) >= 8);
    }
}
