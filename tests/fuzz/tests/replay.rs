//! Every seed and every regression, then some seconds of mutations by a seed: the same runs each
//! time.

use std::{
    env, fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
};

use roced_fuzz::{Seed, TARGETS, Target};

/// xorshift64*: the same seed, the same runs.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    fn below(&mut self, bound: usize) -> usize {
        self.next() as usize % bound.max(1)
    }

    /// A few changes of a run: bytes flipped or set, pieces taken out, doubled, or brought from
    /// another run.
    fn mutate(&mut self, bytes: &mut Vec<u8>, other: &[u8]) {
        for _ in 0..=self.below(4) {
            let at = self.below(bytes.len() + 1);
            let length = self.below(40).min(bytes.len() - at);
            match self.below(7) {
                0 | 1 if at < bytes.len() => bytes[at] ^= 1 << self.below(8),
                2 if at < bytes.len() => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][self.below(5)],
                3 if at < bytes.len() => bytes[at] = self.next() as u8,
                4 => _ = bytes.drain(at..at + length),
                5 => {
                    let piece = bytes[at..at + length].to_vec();
                    _ = bytes.splice(at..at, piece);
                }
                _ => {
                    let from = self.below(other.len() + 1);
                    let piece = &other[from..(from + length.max(8)).min(other.len())];
                    _ = bytes.splice(at..at, piece.iter().copied());
                }
            }
        }
        bytes.truncate(8192);
    }
}

/// One run. One that fails is kept in a file.
fn run(target: &Target, name: &str, bytes: &[u8]) {
    if catch_unwind(AssertUnwindSafe(|| (target.run)(bytes))).is_err() {
        let kept = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-failed", target.name));
        fs::write(&kept, bytes).expect("Cargo made that folder");
        panic!("{name} fails; replay it with scripts/fuzz {} --replay {}", target.name, kept.display());
    }
}

/// `runs` mutations; `ROCED_FUZZ_RUNS` asks for another number.
fn replay(name: &str, runs: u64) {
    let target = Target::named(name).expect("a target");
    let seeds = (target.seeds)();
    assert!(seeds.len() >= 5, "{} seeds", seeds.len());
    for Seed { name, bytes } in seeds.iter().chain(&target.regressions()) {
        run(target, name, bytes);
    }
    let runs = env::var("ROCED_FUZZ_RUNS").map_or(runs, |runs| runs.parse().expect("a number of runs"));
    let mut random = Random(0x5eed);
    for number in 0..runs {
        let mut bytes = seeds[random.below(seeds.len())].bytes.clone();
        let other = &seeds[random.below(seeds.len())].bytes;
        random.mutate(&mut bytes, other);
        run(target, &format!("mutation {number}"), &bytes);
    }
}

macro_rules! targets {
    ($($name:ident: $runs:literal)*) => {
        $(
            #[test]
            fn $name() {
                replay(stringify!($name), $runs);
            }
        )*

        /// A target that is not here would not be run.
        #[test]
        fn all_targets_are_here() {
            assert_eq!(TARGETS.iter().map(|target| target.name).collect::<Vec<_>>(), [$(stringify!($name)),*]);
        }
    };
}

// A second or two of each in a debug build; those of 1,000 or 2,000 ask the kernel for memory and sockets in
// each run.
targets! { frame: 20_000 responder: 20_000 completer: 20_000 datagram: 20_000 esp: 20_000 control: 1_000 client_rings: 1_000 connections: 5_000 memory: 2_000 }
