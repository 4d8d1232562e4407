//! All of it together: two endpoints that hand each other frames through memory.

use std::hint::black_box;

use roced_transport::clock::Nanos;
use roced_types::SendOp;

use crate::engine::Pair;

/// Messages of 1 MiB at path MTU 4096, 1024 packets in all: as figures are divided by
/// [`crate::TIMES`], they show 2.4 % more than a packet.
const MESSAGES: u64 = 4;

/// Every piece once.
pub(crate) fn run() {
    piece_engine_write(&mut Pair::new(4096));
    piece_engine_read(&mut Pair::new(4096));
}

/// Both ends together: cut, filled, summed, parsed, checked, placed, acknowledged.
#[inline(never)]
fn piece_engine_write(pair: &mut Pair) {
    pair.carry_messages(SendOp::Write, MESSAGES, clock());
    // Not the last thing it does, because then it would be a jump, and no call that callgrind sees.
    black_box(pair);
}

#[inline(never)]
fn piece_engine_read(pair: &mut Pair) {
    pair.carry_messages(SendOp::Read, MESSAGES, clock());
    black_box(pair);
}

/// A poll iteration takes 10 us, regardless of the real time here.
fn clock() -> impl FnMut() -> Nanos {
    let mut turns = 0;
    move || {
        turns += 1;
        Nanos::from_micros(10 * turns)
    }
}
