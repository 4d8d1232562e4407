//! A number that several peers and the program that has it change at once, by atomic operations
//! only.

use std::{sync::atomic::Ordering, thread};

use anyhow::{Result, ensure};
use roced_client::{Access, CompletionOp, ConnectOptions, MemoryRegion, RemoteMemory, SendRequest};

use crate::end::{End, hear, say};

/// Additions under way at a time.
const DEPTH: u64 = 16;

/// Has a number, to which `peers` peers come; adds 1 to it `rounds` times while they change it. At
/// a word from the test it tells the number.
pub(crate) fn keep_number(peers: usize, rounds: u64) -> Result<()> {
    let end = End::open()?;
    let region = end.pd.allocate(4096, Access::REMOTE_ATOMIC)?;
    let mut ends = vec![end];
    while ends.len() < peers {
        ends.push(ends[0].another()?);
    }
    for end in &ends {
        end.meet(Some(&region), &ConnectOptions::default())?;
    }
    for round in 0..rounds {
        region.atomic(0).fetch_add(1, Ordering::Relaxed);
        if round.is_multiple_of(64) {
            thread::yield_now();
        }
    }
    hear()?;
    say(&format!("number {}", region.atomic(0).load(Ordering::Relaxed)))
}

/// Adds 1 to a peer's number `rounds` times, many at a time, and once more for each ten by compare
/// and swap. The values that come back must be those of a number with several writers: never the
/// same twice, never less.
pub(crate) fn count(rounds: u64) -> Result<()> {
    let end = End::open()?;
    let found = end.pd.allocate(4096, Access::LOCAL_WRITE)?;
    let theirs = end.meet(None, &ConnectOptions::default())?;
    let mut last = add_many(&end, &found, theirs, rounds)?;
    for _ in 0..rounds / 10 {
        last = increment_by_swap(&end, &found, theirs, last)?;
    }
    say("counted")
}

/// Returns the value that the last addition found.
fn add_many(end: &End, found: &MemoryRegion, theirs: RemoteMemory, rounds: u64) -> Result<u64> {
    let place = |round: u64| (round % DEPTH) as usize * 8;
    let post = |round| {
        let sges = [found.sge(place(round)..place(round) + 8)];
        end.qp.post_send(&SendRequest::fetch_add(&sges, theirs, 1).id(round).signaled())
    };
    (0..DEPTH.min(rounds)).try_for_each(post)?;
    let mut least = 0;
    for round in 0..rounds {
        let completion = end.completion()?.ok()?;
        ensure!((completion.wr_id, completion.op, completion.byte_len) == (round, CompletionOp::FetchAdd, 8));
        let value = found.atomic(place(round)).load(Ordering::Relaxed);
        ensure!(value >= least, "addition {round} found {value}, and an earlier one {least} - 1");
        least = value + 1;
        if round + DEPTH < rounds {
            post(round + DEPTH)?;
        }
    }
    Ok(least)
}

/// Tries until no other change came in between; returns the present value, as far as we know.
fn increment_by_swap(end: &End, found: &MemoryRegion, theirs: RemoteMemory, guess: u64) -> Result<u64> {
    let mut compare = guess;
    loop {
        let sges = [found.sge(0..8)];
        end.qp.post_send(&SendRequest::compare_swap(&sges, theirs, compare, compare + 1).signaled())?;
        ensure!(end.completion()?.ok()?.op == CompletionOp::CompareSwap);
        let before = found.atomic(0).load(Ordering::Relaxed);
        if before == compare {
            return Ok(compare + 1);
        }
        ensure!(before > compare, "the number went down, from {compare} to {before}");
        compare = before;
    }
}
