//! The pieces of the data path, each in a function `piece_*` that does it [`TIMES`] times.
//! `scripts/pieces` runs this under callgrind, which counts the instructions of each, and compares
//! them with the recorded figures: a regression shows even where time is only noise.
//!
//! Everything here is the same in every run: no clock, no random order. Run without callgrind it
//! only shows that it runs.

#[expect(dead_code, reason = "a benchmark of its own; only its pair of endpoints is used here")]
#[path = "../../../transport/benches/engine.rs"]
mod engine;
mod keys;
mod queues;
mod whole;
mod wire;

/// How often each piece is repeated.
pub(crate) const TIMES: u32 = 1000;

fn main() {
    wire::run();
    keys::run();
    queues::run();
    whole::run();
}
