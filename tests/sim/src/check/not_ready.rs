//! A receiver that is not ready for a request behind READs: the RNR NAK comes while answers before
//! that request are missing. A requester that keeps answers acts upon it when they are here: the
//! request is sent again when the time of the NAK has passed since then, and no ACK timer has to
//! run out for it.
//!
//! One that goes back sends all from the gap on again, and is told again.

use crate::{
    stream::{NotReady, Stream},
    violation::{Checked, demand},
};

/// Besides the delay and two round trips, in nanoseconds: a NIC without room, frames that arrive at
/// multiples of some time.
const SLACK: u64 = 100_000;

impl Stream {
    /// An RNR NAK reaches the requester, and the requests before it are acknowledged.
    pub(super) fn on_not_ready(&mut self, psn: u64, delay: u64) {
        if self.keeps && psn > self.una_at_least {
            self.not_ready = Some(NotReady { psn, delay, due: None });
        }
    }

    /// The oldest has become another, or the peer has said something else.
    pub(super) fn on_oldest(&mut self, now: u64) {
        let (oldest, una, wait) = (self.una_at_least, self.una, 2 * self.round_trip + SLACK);
        self.not_ready = self.not_ready.filter(|not_ready| not_ready.psn >= una.max(oldest));
        if let Some(not_ready) = &mut self.not_ready
            && not_ready.psn == oldest
        {
            // It begins to count.
            self.rnr_naks = self.rnr_naks.max(1);
            not_ready.due.get_or_insert(now + not_ready.delay + wait);
        }
    }

    /// A request leaves.
    pub(super) fn check_not_ready(&mut self, psn: u64, now: u64) -> Checked {
        let Some(NotReady { psn: named, due, .. }) = self.not_ready else { return Ok(()) };
        let is_excused = due.is_some() && (!self.disturbed.is_empty() || self.may_pause);
        if psn == named || is_excused {
            self.not_ready = None;
        }
        demand!(
            is_excused || due.is_none_or(|due| now <= due),
            "not-ready",
            "the receiver was not ready for PSN {}, which is the oldest and should have been sent again {} ns ago",
            named & 0xff_ffff,
            now - due.unwrap_or(now)
        );
        Ok(())
    }

    /// The ACK timer runs out.
    pub(super) fn check_timer_of_not_ready(&mut self) -> Checked {
        let waits = self.not_ready.take().is_some_and(|not_ready| not_ready.due.is_some());
        demand!(
            !waits || !self.disturbed.is_empty(),
            "not-ready",
            "the ACK timer ran out at PSN {}, for which the receiver was not ready",
            self.una_at_least & 0xff_ffff
        );
        Ok(())
    }
}
