//! One traffic class of an endpoint: the slots that wait in it, its rate, and its credit among
//! classes with shares.

use super::{TURN_FRAMES, class_rate::ClassRate, classes::Selection, turn_list::TurnList};
use crate::clock::Nanos;

/// One class, with the slots that wait in it.
#[derive(Debug)]
pub(crate) struct ClassList {
    pub(crate) turns: TurnList,
    pub(crate) rate: ClassRate,
    /// Frames of a turn at its rate.
    pub(crate) frames: usize,
    /// Cost that it may have until its turn ends; of classes with shares.
    pub(crate) credit: i64,
    /// Cost of a turn; 0 for a class without a share.
    pub(crate) quantum: i64,
}

impl ClassList {
    pub(crate) fn new(selection: Selection, rate: ClassRate, slots: u32, turn_cost: u32) -> Self {
        let quantum = match selection {
            Selection::Strict => 0,
            Selection::Ets { percent } => (i64::from(turn_cost) * i64::from(percent) / 100).max(1),
        };
        let frames = rate.frames(TURN_FRAMES);
        Self { turns: TurnList::new(slots, turn_cost), rate, frames, credit: 0, quantum }
    }

    /// Slots wait, and its rate lets one send.
    #[inline]
    pub(crate) fn is_ready(&mut self, now: Nanos) -> bool {
        self.turns.has_turn() && !self.rate.is_closed(now)
    }

    /// Turns of a class with a share, until it has credit.
    pub(crate) const fn turns_to_credit(&self) -> i64 {
        if self.credit > 0 { 0 } else { -self.credit / self.quantum + 1 }
    }
}
