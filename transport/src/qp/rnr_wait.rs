//! Wait after an RNR NAK.
//!
//! IBTA v1 9.7.5.2.8 counts the wait from the arrival of the NAK. A poll iteration reads the clock
//! once, at its beginning; the NAK may have arrived later, while frames were processed or another
//! program had the core, so its age is unknown. The clock of the next poll iteration is certainly
//! later: the wait counts from there.

use crate::clock::Nanos;

/// State of a wait before sending to a receiver that was not ready.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RnrWait {
    /// The NAK was processed in the poll iteration that began at `polled_at`.
    Heard { polled_at: Nanos, delay_ns: u32 },
    /// The wait ends at this time.
    Until(Nanos),
}

impl RnrWait {
    /// Wait of `delay`, which is at most 655.36 ms (IBTA v1 table 45), after a NAK that was processed
    /// in the poll iteration at `polled_at`.
    pub(crate) fn new(polled_at: Nanos, delay: Nanos) -> Self {
        Self::Heard { polled_at, delay_ns: u32::try_from(delay.0).unwrap_or(u32::MAX) }
    }

    /// Updates the wait to `now`. `None` when the wait is over.
    pub(crate) fn at(self, now: Nanos) -> Option<Self> {
        match self {
            Self::Heard { polled_at, delay_ns } if now > polled_at => Some(Self::Until(now + Nanos(delay_ns.into()))),
            Self::Until(until) if now >= until => None,
            same => Some(same),
        }
    }

    /// Next time to update the wait.
    pub(crate) fn deadline(self) -> Nanos {
        match self {
            Self::Heard { polled_at, .. } => polled_at + Nanos(1),
            Self::Until(until) => until,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_counts_from_the_poll_iteration_after_that_of_the_nak() {
        let heard = RnrWait::new(Nanos(100), Nanos(50));
        let same_iteration = heard.at(Nanos(100)).expect("no time has passed that is known");
        assert_eq!(same_iteration.deadline(), Nanos(101));
        // The worker had lost its core: it learns the time only long after that poll iteration.
        let counting = same_iteration.at(Nanos(1000)).expect("the NAK may have come just now");
        assert_eq!(counting.deadline(), Nanos(1050));
        assert!(counting.at(Nanos(1049)).is_some());
        assert!(counting.at(Nanos(1050)).is_none());
    }
}
