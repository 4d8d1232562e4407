//! Facts common to roced-lab and the BPF program: the bytes of the config and the order of the
//! counters. `faults.h` has the same facts, and the tests of `switch` run the program, so that a
//! difference shows.

use zerocopy::{FromZeros, Immutable, IntoBytes, KnownLayout};

/// Most rules at a time.
pub const RULES_MAX: usize = 8;

/// A chance of 2^32 in [`Config`] is "always".
const ALWAYS: f64 = 4_294_967_296.0;

/// `struct rule`.
#[derive(Clone, Copy, Debug, FromZeros, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RuleBytes {
    /// BTH opcode.
    pub opcode: u32,
    /// `enum action`.
    pub action: u32,
    /// Which frame of that opcode, from 1.
    pub nth: u64,
}

/// `struct config`.
#[derive(Clone, Copy, Debug, FromZeros, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Config {
    /// In 2^-32.
    pub drop_chance: u64,
    /// In 2^-32.
    pub duplicate_chance: u64,
    /// In 2^-32.
    pub corrupt_chance: u64,
    /// In 2^-32, of the frames that may be marked.
    pub mark_chance: u64,
    /// Zero leaves the queue to the kernel.
    pub queue_plus_one: u32,
    /// How many of `rule` count.
    pub rules: u32,
    /// Chances are for frames of this BTH opcode alone, plus one; zero: for all.
    pub only_plus_one: u32,
    /// Zero.
    pub reserved: u32,
    /// The rules.
    pub rule: [RuleBytes; RULES_MAX],
}

/// A probability as a chance in 2^-32.
pub fn chance(probability: f64) -> u64 {
    // A float cast saturates, so nothing outside 0..=1 could wrap.
    (probability * ALWAYS) as u64
}

/// Names of the counters, in the order of `enum counter`.
pub const COUNTERS: [&str; 6] = ["frames", "dropped", "duplicated", "corrupted", "steered", "marked"];
