//! Turns of a queue pair at the highest rate of its account.

use alloc::sync::Arc;

use super::shared_rate::{RateTurns, SharedRate};
use crate::clock::Nanos;

/// Lets packets with data of one queue pair through in its turns, and says when to look again.
#[derive(Debug)]
pub(crate) struct AccountTurns {
    turns: RateTurns,
    /// A packet waits for the booked turn.
    is_waiting: bool,
    /// It sends its rest at once.
    pub(crate) is_waived: bool,
}

impl AccountTurns {
    pub(crate) const fn new(rate: Arc<SharedRate>) -> Self {
        Self { turns: RateTurns::new(rate), is_waiting: false, is_waived: false }
    }

    /// Whether no packet with data may leave at `now`. If so, [`Self::deadline`] says until when.
    #[inline]
    pub(crate) fn is_closed(&mut self, now: Nanos) -> bool {
        self.is_waiting = self.turns.is_limited() && !self.is_waived && self.turns.turn_begin(now) > now;
        self.is_waiting
    }

    /// Frames of a turn, at most `most`.
    #[inline]
    pub(crate) fn frames(&self, most: usize) -> usize {
        if self.is_waived { most } else { self.turns.frames(most) }
    }

    /// A visit is over, with these bytes of frames to a NIC, acknowledgments included.
    #[inline]
    pub(crate) fn on_sent(&mut self, now: Nanos, bytes: usize) {
        self.turns.on_sent(now, bytes);
    }

    /// Time has passed.
    pub(crate) fn on_timeout(&mut self, now: Nanos) {
        self.is_waiting &= self.deadline() > now;
    }

    /// Time at which the waiting packet may leave; [`Nanos::NEVER`] if none waits.
    #[inline]
    pub(crate) fn deadline(&self) -> Nanos {
        self.turns.booked().filter(|_| self.is_waiting).unwrap_or(Nanos::NEVER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Nanos = Nanos::from_millis(500);

    /// The burst, and a frame.
    const NINE_FRAMES: usize = 9 * 4160;

    fn limited() -> Arc<SharedRate> {
        Arc::new(SharedRate::new(8000))
    }

    #[test]
    fn queue_pairs_of_an_account_have_their_turns_one_behind_the_other() {
        let rate = limited();
        let mut all = [(); 3].map(|()| AccountTurns::new(rate.clone()));
        all[0].on_sent(NOW, NINE_FRAMES);
        let mut last = NOW;
        for turns in &mut all {
            assert_eq!(turns.deadline(), Nanos::NEVER);
            assert!(turns.is_closed(NOW) && turns.deadline() > last);
            last = turns.deadline();
        }
        assert_eq!(last, NOW + Nanos::from_micros(3 * 4160));
        all[2].on_timeout(last);
        assert_eq!((all[2].deadline(), all[2].is_closed(last)), (Nanos::NEVER, false));
    }

    #[test]
    fn a_rest_that_leaves_at_once_is_a_debt_of_the_account() {
        let rate = limited();
        let [mut gone, mut other] = [(); 2].map(|()| AccountTurns::new(rate.clone()));
        gone.on_sent(NOW, NINE_FRAMES);
        gone.is_waived = true;
        assert!(!gone.is_closed(NOW));
        gone.on_sent(NOW, 100_000);
        assert!(other.is_closed(NOW) && other.deadline() > NOW + Nanos::from_millis(100));
    }

    #[test]
    fn without_a_rate_nothing_waits() {
        let rate = limited();
        let mut turns = AccountTurns::new(rate.clone());
        turns.on_sent(NOW, 1 << 20);
        assert!(turns.is_closed(NOW));
        rate.set(0);
        assert_eq!((turns.is_closed(NOW), turns.deadline(), turns.frames(16)), (false, Nanos::NEVER, 16));
    }
}
