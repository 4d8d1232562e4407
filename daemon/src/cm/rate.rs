//! Rates of work that strangers cause.

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
    refilled: Instant,
}

impl RateBudget {
    pub(super) fn new(rate: Rate) -> Self {
        Self { rate, left: rate.at_once, refilled: Instant::now() }
    }

    /// One more, if there may be.
    pub(super) fn take(&mut self) -> bool {
        let more = (self.refilled.elapsed().as_micros() / self.rate.every.as_micros()) as u32;
        if more > 0 {
            self.left = self.left.saturating_add(more).min(self.rate.at_once);
            self.refilled = Instant::now();
        }
        let may = self.left > 0;
        self.left -= u32::from(may);
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_has_a_burst_and_then_one_at_a_time() {
        let never = Duration::from_secs(3600);
        let mut budget = RateBudget::new(Rate { at_once: 3, every: never });
        assert_eq!([(); 5].map(|()| budget.take()), [true, true, true, false, false]);
        budget.refilled -= never;
        assert_eq!([(); 2].map(|()| budget.take()), [true, false]);
        budget.refilled -= never * 9;
        assert_eq!([(); 4].map(|()| budget.take()), [true, true, true, false], "no more than the burst");
    }
}
