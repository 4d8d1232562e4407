//! Clocks of the kernel.

use nix::time::{ClockId, clock_gettime};

/// Time of that clock, in nanoseconds.
///
/// ```
/// let monotonic = nix::time::ClockId::CLOCK_MONOTONIC;
/// assert!(roced_memory::clock::nanos_of(monotonic) <= roced_memory::clock::nanos_of(monotonic));
/// ```
///
/// # Panics
/// No Linux has that clock.
pub fn nanos_of(clock: ClockId) -> u64 {
    let time = clock_gettime(clock).expect("a clock of every Linux");
    // Neither begins before zero, and 64 bits of nanoseconds are 584 years.
    time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64
}
