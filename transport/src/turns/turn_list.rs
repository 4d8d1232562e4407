//! A list of slots that wait for their turns, and those that had one without room on the wire.

use super::fair::FairList;

/// Slots without room on the wire after which a list has no more turns in a call. More than one: a
/// NIC queue without room must not hold up another queue, hand-over, or the flush of a queue pair
/// that has failed.
const HELD_MAX: usize = 16;

/// A list, with the slots of it that had their turn without room on the wire: they are not listed
/// until the call ends.
#[derive(Debug)]
pub(crate) struct TurnList {
    pub(crate) list: FairList,
    held: [u32; HELD_MAX],
    pub(crate) held_count: usize,
    /// A slot has sent since the last call ended.
    pub(crate) has_sent: bool,
}

impl TurnList {
    pub(crate) fn new(slots: u32, turn_cost: u32) -> Self {
        Self { list: FairList::new(slots, turn_cost), held: [0; HELD_MAX], held_count: 0, has_sent: false }
    }

    /// A slot is listed, and few enough are held that another is tried.
    #[inline]
    pub(crate) const fn has_turn(&self) -> bool {
        !self.list.is_empty() && self.held_count < HELD_MAX
    }

    pub(crate) fn hold(&mut self, slot: u32) {
        self.held[self.held_count] = slot;
        self.held_count += 1;
    }

    pub(crate) fn is_held(&self, slot: u32) -> bool {
        self.held[..self.held_count].contains(&slot)
    }

    /// Those that are held keep their place if others sent; else the next call tries others.
    pub(crate) fn end_call(&mut self) {
        let held = &self.held[..core::mem::take(&mut self.held_count)];
        if core::mem::take(&mut self.has_sent) {
            held.iter().rev().for_each(|slot| self.list.push_front(*slot));
        } else {
            if !held.is_empty() {
                self.list.pass();
            }
            held.iter().for_each(|slot| self.list.push_back(*slot));
        }
    }
}
