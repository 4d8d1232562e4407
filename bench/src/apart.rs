//! How far the two cores are from one another.
//!
//! A cache line that one core writes and the other reads goes from cache to cache, and a link
//! between two namespaces consists of such transfers. The host of a virtual machine moves its
//! cores: from neighbors that answer within 100 ns to such as take 450 ns, and back within a
//! second. Figures of one kind do not compare with those of the other.

use std::{
    sync::{
        Barrier,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::Instant,
};

use crate::{cpu, network::NetworkSide};

/// There and back in less: the cores share a cache.
pub(crate) const NEAR_NS: f64 = 200.0;

/// There and back so often, and so many times; the best is taken, because an interruption makes it
/// longer, never shorter.
const TURNS: u32 = 1000;
const TIMES: u32 = 5;

/// After so many unsuccessful looks, the other one may want this core.
const LOOKS: u32 = 10_000;

/// Time of a cache line from the core of host a to that of host b and back, nanoseconds.
pub(crate) fn nanoseconds() -> f64 {
    let (line, ready) = (CacheLine(AtomicU32::new(0)), Barrier::new(2));
    thread::scope(|scope| {
        scope.spawn(|| {
            cpu::run_on(NetworkSide::B.core());
            ready.wait();
            for turn in 0..TURNS * TIMES {
                line.wait_for(2 * turn + 1);
                line.0.store(2 * turn + 2, Ordering::Release);
            }
        });
        let asks = scope.spawn(|| {
            cpu::run_on(NetworkSide::A.core());
            ready.wait();
            let mut best = f64::INFINITY;
            for time in 0..TIMES {
                let begin = Instant::now();
                for turn in time * TURNS..(time + 1) * TURNS {
                    line.0.store(2 * turn + 1, Ordering::Release);
                    line.wait_for(2 * turn + 2);
                }
                best = best.min(begin.elapsed().as_secs_f64() * 1e9 / f64::from(TURNS));
            }
            best
        });
        asks.join().expect("no panic")
    })
}

/// On a cache line of its own.
#[repr(align(128))]
struct CacheLine(AtomicU32);

impl CacheLine {
    fn wait_for(&self, value: u32) {
        let mut looks = 0;
        while self.0.load(Ordering::Acquire) != value {
            looks += 1;
            if looks % LOOKS == 0 {
                thread::yield_now();
            }
            std::hint::spin_loop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_takes_longer_than_an_instruction_and_less_than_a_disk() {
        let there_and_back = nanoseconds();
        assert!((2.0..1e6).contains(&there_and_back), "{there_and_back} ns");
    }
}
