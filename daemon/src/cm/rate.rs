//! Rates of work that unknown peers cause.

use std::time::{Duration, Instant};

/// A rate: so many at once, and then one after each interval.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    pub(super) at_once: u32,
    pub(super) every: Duration,
}

/// That which may be done now at a rate.
#[derive(Debug)]
pub(super) struct RateBudget {
    rate: Rate,
    left: u32,
    /// Intervals before this time have been counted.
    refilled: Instant,
}

impl RateBudget {
    pub(super) fn new(rate: Rate) -> Self {
        Self { rate, left: rate.at_once, refilled: Instant::now() }
    }

    /// One more, if there may be.
    pub(super) fn take(&mut self, now: Instant) -> bool {
        let may = self.left(now) > 0;
        self.left -= u32::from(may);
        may
    }

    /// How many there may be at once.
    pub(super) fn left(&mut self, now: Instant) -> u32 {
        let intervals = now.saturating_duration_since(self.refilled).as_nanos() / self.rate.every.as_nanos();
        let room = self.rate.at_once - self.left;
        match u32::try_from(intervals) {
            // What is left of an interval counts for the next one.
            Ok(more) if more < room => {
                (self.left, self.refilled) = (self.left + more, self.refilled + self.rate.every * more)
            }
            _ => (self.left, self.refilled) = (self.rate.at_once, now.max(self.refilled)),
        }
        self.left
    }

    /// When there may be one more, which is at once if some are left.
    pub(super) fn next(&self) -> Instant {
        if self.left > 0 { self.refilled } else { self.refilled + self.rate.every }
    }

    /// When there may be one more, if none is left now.
    pub(super) fn exhausted_until(&self) -> Option<Instant> {
        (self.left == 0).then(|| self.next())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_has_a_burst_and_then_one_at_a_time() {
        let every = Duration::from_secs(3600);
        let mut budget = RateBudget::new(Rate { at_once: 3, every });
        let start = budget.refilled;
        let mut at = |hours: u32| {
            let now = start + every * hours;
            (0..5).filter(|_| budget.take(now)).count()
        };
        assert_eq!([at(0), at(1), at(2), at(4), at(20)], [3, 1, 1, 2, 3], "no more than the burst");
        assert_eq!(at(1 << 20), 3);
        assert_eq!(at(0), 0, "a clock that steps back gives none");
    }

    /// Each call comes a little before a second interval is over.
    #[test]
    fn the_rest_of_an_interval_is_not_lost() {
        let every = Duration::from_micros(100);
        let mut budget = RateBudget::new(Rate { at_once: 10, every });
        let start = budget.refilled;
        (0..10).for_each(|_| assert!(budget.take(start)));
        let calls = (1..=1000).map(|call| start + Duration::from_micros(190) * call);
        let taken: usize = calls.map(|now| (0..3).filter(|_| budget.take(now)).count()).sum();
        assert_eq!(taken, 1900);
        assert_eq!(budget.next(), start + every * 1901);
    }
}
