//! One traffic class of an endpoint: the slots that wait in it, its rate and its pauses, and its
//! credit among classes with shares.

use super::{
    TURN_FRAMES,
    class_pause::{ClassPause, PauseWatchdog},
    classes::Selection,
    shared_rate::RateTurns,
    turn_list::TurnList,
};
use crate::clock::Nanos;

/// One class, with the slots that wait in it.
#[derive(Debug)]
pub(crate) struct ClassList {
    pub(crate) turns: TurnList,
    pub(crate) rate: RateTurns,
    pub(crate) pause: ClassPause,
    /// Its rate or a pause was found to close it: until then.
    closed_until: Option<Nanos>,
    /// Bytes that others have sent at its rate while a rest waits: as many may leave of the rest.
    pub(crate) rest_credit: usize,
    /// Frames of a turn at its rate.
    pub(crate) frames: usize,
    /// Cost that it may have until its turn ends; of classes with shares.
    pub(crate) credit: i64,
    /// Cost of a turn; 0 for a class without a share.
    pub(crate) quantum: i64,
}

impl ClassList {
    pub(crate) fn new(
        selection: Selection,
        rate: RateTurns,
        watchdog: PauseWatchdog,
        slots: u32,
        turn_cost: u32,
    ) -> Self {
        let quantum = match selection {
            Selection::Strict => 0,
            Selection::Ets { percent } => (i64::from(turn_cost) * i64::from(percent) / 100).max(1),
        };
        let (turns, pause) = (TurnList::new(slots, turn_cost), ClassPause::new(watchdog));
        let frames = rate.frames(TURN_FRAMES);
        Self { turns, rate, pause, closed_until: None, rest_credit: 0, frames, credit: 0, quantum }
    }

    /// Slots wait, and one may send. If only its rate or a pause keeps them, [`Self::closed_until`]
    /// says until when.
    #[inline]
    pub(crate) fn is_ready(&mut self, now: Nanos) -> bool {
        self.turns.has_turn() && !self.is_closed(now)
    }

    #[inline]
    fn is_closed(&mut self, now: Nanos) -> bool {
        self.closed_until = match self.pause.closed_until(now) {
            None => Some(self.rate.turn_begin(now)).filter(|begin| *begin > now),
            paused => paused,
        };
        self.closed_until.is_some()
    }

    /// When it may be looked at again, if it was found closed.
    #[inline]
    pub(crate) const fn closed_until(&self) -> Option<Nanos> {
        self.closed_until
    }

    /// It is paused until `until`, or not if that has passed.
    pub(crate) const fn set_pause(&mut self, until: Nanos) {
        self.pause.set(until);
        self.closed_until = None;
    }

    /// These bytes left for the NIC.
    #[inline]
    pub(crate) fn on_sent(&mut self, now: Nanos, bytes: usize) {
        self.rate.on_sent(now, bytes);
        if bytes > 0 {
            self.pause.on_sent();
        }
    }

    /// A call that takes turns ends: without work the class needs none, unless it has a rest.
    #[inline]
    pub(crate) fn end_call(&mut self, has_rest: bool) {
        if self.turns.list.is_empty() && !has_rest {
            self.rate.release();
        }
    }

    /// Time has passed.
    #[inline]
    pub(crate) fn on_time(&mut self, now: Nanos) {
        self.closed_until = self.closed_until.filter(|until| *until > now);
        self.pause.on_time(now);
        if self.turns.list.is_empty() {
            // A class without work saves no credit.
            self.credit = self.credit.min(0);
            self.pause.on_empty();
        }
    }

    /// Turns of a class with a share, until it has credit.
    pub(crate) const fn turns_to_credit(&self) -> i64 {
        if self.credit > 0 { 0 } else { -self.credit / self.quantum + 1 }
    }
}
