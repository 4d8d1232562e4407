//! Queue pairs of an endpoint, found by number from outside and by slot in the endpoint's own tables.
//!
//! Numbers are spread over an index space of 18 bits. Slots are dense, as many as there were queue
//! pairs at a time, so that tables by slot (timers, lists, the worker's entries) take memory only
//! for present queue pairs. A queue pair keeps its slot until it is removed.

use alloc::boxed::Box;

use roced_types::Qpn;

use crate::{qp::Qp, table::Table};

/// Queue pairs by slot.
#[derive(Debug)]
pub(super) struct QpSlots {
    table: Table<Box<Qp>>,
}

impl QpSlots {
    /// Creates slots for `capacity` queue pairs.
    pub(super) fn new(capacity: u32) -> Self {
        Self { table: Table::sparse(Qpn::INDEX_COUNT, capacity) }
    }

    /// Slot of the queue pair with this index in its number.
    #[inline]
    pub(super) fn find(&self, index: u32) -> Option<u32> {
        self.table.slot_of(index)
    }

    /// Queue pair in a slot.
    #[inline]
    pub(super) fn get(&self, slot: u32) -> Option<&Qp> {
        self.table.in_slot(slot).map(|qp| &**qp)
    }

    /// Queue pair in a slot, mutable.
    #[inline]
    pub(super) fn get_mut(&mut self, slot: u32) -> Option<&mut Qp> {
        self.table.in_slot_mut(slot).map(|qp| &mut **qp)
    }

    /// Assigns a slot to a queue pair.
    ///
    /// # Errors
    /// Returns the queue pair if its number is in use or no slot is free.
    pub(super) fn insert(&mut self, qp: Box<Qp>) -> Result<u32, Box<Qp>> {
        let index = qp.qpn().index();
        self.table.insert(index, qp)?;
        Ok(self.table.slot_of(index).expect("it was just inserted"))
    }

    /// Removes the queue pair in a slot and frees the slot.
    pub(super) fn remove(&mut self, slot: u32) -> Option<Box<Qp>> {
        let index = self.get(slot)?.qpn().index();
        self.table.remove(index)
    }

    /// Number of slots that were ever in use.
    pub(super) fn used(&self) -> u32 {
        self.table.slots_used()
    }

    /// All queue pairs, in the order of slots.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Qp> {
        self.table.iter().map(|qp| &**qp)
    }
}
