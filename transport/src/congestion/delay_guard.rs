//! Guard of a congestion window by delay, for networks that mark nothing: round trips that stay
//! above a limit are taken for a queue on the way.
//!
//! A single round trip says little, because hosts are late as well. Only a run of them counts, by
//! the smallest: each of them waited at least as long. A limit is fixed: one that follows the
//! smallest round trip ever measured takes a queue that was there before for the path itself, and
//! favors connections that came first.

use crate::clock::Nanos;

/// Round trips above the limit, in a row, that count as a queue.
const RUN: u8 = 4;

/// Part of a delay above the limit by which the window becomes smaller: four fifths, as in Swift
/// (SIGCOMM 2020). In parts of [`ALL`].
const CUT: u64 = ALL * 4 / 5;

/// Largest cut: half.
const CUT_MAX: u64 = ALL / 2;

/// All of a window.
const ALL: u64 = 1 << 16;

/// Limit of the round trips of a connection, and those above it so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DelayGuard {
    /// Longest round trip without a queue, in microseconds; 0 for no limit.
    limit_us: u16,
    /// Smallest round trip of the run.
    least_us: u16,
    /// Round trips above the limit in a row.
    run: u8,
}

impl DelayGuard {
    /// A guard with this limit, 0 for none; more than 65 ms counts as 65 ms.
    pub(crate) fn new(limit: Nanos) -> Self {
        Self { limit_us: micros(limit), least_us: 0, run: 0 }
    }

    /// Takes a measured round trip. Returns the part of the window that is to go, of 65,536, when
    /// there is a queue.
    pub(crate) fn on_round_trip(&mut self, round_trip: Nanos) -> Option<u16> {
        if self.limit_us == 0 {
            return None;
        }
        let round_trip = micros(round_trip);
        if round_trip <= self.limit_us {
            self.run = 0;
            return None;
        }
        self.least_us = if self.run == 0 { round_trip } else { self.least_us.min(round_trip) };
        self.run += 1;
        if self.run < RUN {
            return None;
        }
        self.run = 0;
        let above = u64::from(self.least_us - self.limit_us);
        u16::try_from((CUT * above / u64::from(self.least_us)).min(CUT_MAX)).ok()
    }
}

/// Whole microseconds of a time, at most 65,535.
fn micros(time: Nanos) -> u16 {
    u16::try_from(time.0 / 1000).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Nanos = Nanos::from_micros(250);

    /// Result of the last of so many equal round trips.
    fn after(guard: &mut DelayGuard, times: u8, micros: u64) -> Option<u16> {
        (0..times).map(|_| guard.on_round_trip(Nanos::from_micros(micros))).last().flatten()
    }

    #[test]
    fn four_round_trips_above_the_limit_make_a_queue() {
        let mut guard = DelayGuard::new(LIMIT);
        assert_eq!(after(&mut guard, 3, 500), None);
        assert_eq!(after(&mut guard, 1, 500), Some(26_214), "0.8 of the half that is above the limit");
        assert_eq!(after(&mut guard, 3, 500), None, "the next cut needs four more");
        assert_eq!(after(&mut guard, 1, 250), None, "at the limit is not above it");
        assert_eq!(after(&mut guard, 3, 500), None, "a short one ends the run");
    }

    #[test]
    fn the_smallest_round_trip_of_the_run_counts() {
        let mut guard = DelayGuard::new(LIMIT);
        after(&mut guard, 3, 60_000);
        assert_eq!(after(&mut guard, 1, 260), Some(2016), "0.8 * 10 / 260");
        after(&mut guard, 3, 300);
        assert_eq!(after(&mut guard, 1, 60_000), Some(8738), "0.8 * 50 / 300");
    }

    #[test]
    fn a_cut_is_half_at_most_and_times_do_not_overflow() {
        let mut guard = DelayGuard::new(Nanos::from_micros(1));
        assert_eq!(after(&mut guard, 4, 50_000), Some(32_768));
        assert_eq!(after(&mut guard, 4, u64::MAX / 1000), Some(32_768));
        let mut longest = DelayGuard::new(Nanos::from_millis(100));
        assert_eq!(after(&mut longest, 8, 1_000_000), None, "none is above 65,535 us");
    }

    #[test]
    fn without_a_limit_nothing_counts() {
        assert_eq!(after(&mut DelayGuard::new(Nanos(0)), 100, 60_000), None);
        assert_eq!(after(&mut DelayGuard::default(), 100, 60_000), None);
    }
}
