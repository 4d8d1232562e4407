//! The wait that a receiver which was not ready asked for.
//!
//! IBTA v1 9.7.5.2.8 counts it from when the NAK came. A turn reads one clock, at its beginning;
//! the NAK may have come while frames were looked at since then, or while another program had the
//! core, so nobody knows how long after. The next turn's clock is surely later: from there it
//! counts.

use crate::clock::Nanos;

/// Nothing may be sent to a receiver that was not ready.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RnrWait {
    /// It said so in the turn that began at `polled_at`.
    Heard { polled_at: Nanos, delay: Nanos },
    /// It counts.
    Until(Nanos),
}

impl RnrWait {
    /// It has become `now`. `None` when the wait is over.
    pub(crate) fn at(self, now: Nanos) -> Option<Self> {
        match self {
            Self::Heard { polled_at, delay } if now > polled_at => Some(Self::Until(now + delay)),
            Self::Until(until) if now >= until => None,
            same => Some(same),
        }
    }

    /// When to look again.
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
    fn it_counts_from_the_turn_after_the_one_that_heard() {
        let heard = RnrWait::Heard { polled_at: Nanos(100), delay: Nanos(50) };
        let same_turn = heard.at(Nanos(100)).expect("no time has passed that is known");
        assert_eq!(same_turn.deadline(), Nanos(101));
        // The worker had lost its core: it is long after the turn that it knows the time again.
        let counting = same_turn.at(Nanos(1000)).expect("the NAK may have come just now");
        assert_eq!(counting.deadline(), Nanos(1050));
        assert!(counting.at(Nanos(1049)).is_some());
        assert!(counting.at(Nanos(1050)).is_none());
    }
}
