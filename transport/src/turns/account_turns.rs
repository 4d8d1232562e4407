//! Turns of a queue pair at the highest rate of its account.

use alloc::sync::Arc;

use super::shared_rate::{RateTurns, SharedRate};
use crate::clock::Nanos;

/// A queue pair that waits looks at the rate so often at least: it may be another one.
const LOOK: Nanos = Nanos::from_millis(100);

/// Lets packets with data of one queue pair through in its turns, and says when to look again.
#[derive(Debug)]
pub(crate) struct AccountTurns {
    turns: RateTurns,
    /// A packet waits for the booked turn: until then, or a look at the rate. [`Nanos::NEVER`] if none
    /// waits.
    waits_until: Nanos,
}

impl AccountTurns {
    pub(crate) const fn new(rate: Arc<SharedRate>) -> Self {
        Self { turns: RateTurns::new(rate), waits_until: Nanos::NEVER }
    }

    /// Whether no packet with data may leave at `now`; one that `is_free` leaves by no NIC, or at
    /// once. If so, [`Self::deadline`] says until when.
    #[inline]
    pub(crate) fn is_closed(&mut self, now: Nanos, is_free: bool) -> bool {
        let begin = if is_free || !self.turns.is_limited() { now } else { self.turns.turn_begin(now) };
        self.waits_until = if begin > now { begin.min(now + LOOK) } else { Nanos::NEVER };
        begin > now
    }

    /// A visit begins: whether a packet waits is found anew.
    #[inline]
    pub(crate) const fn begin_visit(&mut self) {
        self.waits_until = Nanos::NEVER;
    }

    /// Frames of a turn, at most `most`.
    #[inline]
    pub(crate) fn frames(&self, most: usize) -> usize {
        self.turns.frames(most)
    }

    /// As [`Self::frames`], of a rest that leaves at `now` without a turn.
    pub(crate) fn frames_of_rest(&self, now: Nanos, most: usize) -> usize {
        self.turns.frames_of_rest(now, most)
    }

    /// A visit is over, with these bytes of frames to a NIC; its queue pair may have more to send.
    /// Outside a turn they count if they are a rest, and not if they are acknowledgments: a peer
    /// that asks for many would take the rate.
    #[inline]
    pub(crate) fn on_sent(&mut self, now: Nanos, bytes: usize, is_rest: bool, has_more: bool) {
        if is_rest {
            self.turns.on_rest_sent(now, bytes);
        } else if self.turns.has_begun(now) || !self.turns.is_limited() {
            self.turns.on_sent(now, bytes);
        }
        if !has_more && self.waits_until == Nanos::NEVER {
            self.turns.release();
        }
    }

    /// No packet waits: the rest of its turn is for others.
    pub(crate) fn release(&mut self) {
        self.waits_until = Nanos::NEVER;
        self.turns.release();
    }

    /// So much of the rate is given out that a rest does not leave at once.
    pub(crate) fn is_overdrawn(&self, now: Nanos) -> bool {
        self.turns.is_overdrawn(now)
    }

    /// Time has passed.
    pub(crate) fn on_timeout(&mut self, now: Nanos) {
        if self.waits_until <= now {
            self.waits_until = Nanos::NEVER;
        }
    }

    /// Time at which the waiting packet may leave; [`Nanos::NEVER`] if none waits.
    #[inline]
    pub(crate) const fn deadline(&self) -> Nanos {
        self.waits_until
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    const NOW: Nanos = Nanos::from_millis(500);

    /// The burst, and a frame.
    const NINE_FRAMES: usize = 9 * 4160;

    fn limited() -> Arc<SharedRate> {
        Arc::new(SharedRate::new(8000))
    }

    /// Another queue pair sends its rest.
    fn spend(rate: &Arc<SharedRate>, bytes: usize) {
        let mut other = AccountTurns::new(rate.clone());
        other.on_sent(NOW, bytes, true, false);
    }

    #[test]
    fn queue_pairs_of_an_account_have_their_turns_one_behind_the_other() {
        let rate = limited();
        let mut all = [(); 3].map(|()| AccountTurns::new(rate.clone()));
        spend(&rate, NINE_FRAMES);
        let mut last = NOW;
        for turns in &mut all {
            assert_eq!(turns.deadline(), Nanos::NEVER);
            assert!(turns.is_closed(NOW, false) && turns.deadline() > last);
            last = turns.deadline();
        }
        assert_eq!(last, NOW + Nanos::from_micros(3 * 4160));
        all[2].on_timeout(last);
        assert_eq!((all[2].deadline(), all[2].is_closed(last, false)), (Nanos::NEVER, false));
    }

    #[test]
    fn a_rest_that_leaves_at_once_is_a_debt_of_the_account() {
        let rate = limited();
        let [mut gone, mut other] = [(); 2].map(|()| AccountTurns::new(rate.clone()));
        spend(&rate, NINE_FRAMES);
        assert!(!gone.is_closed(NOW, true));
        gone.on_sent(NOW, 100_000, true, false);
        assert!(other.is_closed(NOW, false) && other.deadline() == NOW + LOOK);
        assert!(!gone.is_overdrawn(NOW));
        gone.on_sent(NOW, 500_000, true, false);
        assert!(gone.is_overdrawn(NOW), "half a second");
    }

    #[test]
    fn without_a_rate_nothing_waits() {
        let rate = limited();
        let mut turns = AccountTurns::new(rate.clone());
        spend(&rate, 1 << 20);
        assert!(turns.is_closed(NOW, false));
        rate.set(0);
        assert_eq!((turns.is_closed(NOW, false), turns.deadline(), turns.frames(16)), (false, Nanos::NEVER, 16));
    }

    #[test]
    fn a_new_rate_is_seen_by_those_that_wait_for_the_old_one() {
        let rate = limited();
        spend(&rate, NINE_FRAMES);
        let mut before: Vec<_> = (0..250).map(|_| AccountTurns::new(rate.clone())).collect();
        assert!(before.iter_mut().all(|turns| turns.is_closed(NOW, false)));
        let mut turns = AccountTurns::new(rate.clone());
        assert!(turns.is_closed(NOW, false) && turns.deadline() == NOW + LOOK, "its turn is in a second");
        let later = NOW + LOOK;
        rate.set(80_000);
        turns.on_timeout(later);
        assert!(!turns.is_closed(later, false));
    }

    #[test]
    fn acknowledgments_of_a_peer_do_not_take_the_rate() {
        let rate = limited();
        let mut turns = AccountTurns::new(rate);
        turns.on_sent(NOW, 1 << 20, false, false);
        assert!(!turns.is_closed(NOW, false));
    }
}
