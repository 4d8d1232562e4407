//! Tables that use memory for present entries only, and allocate once.
//!
//! ```text
//!   number ──► slots: a u32 for each number that there can be ──► entries, one behind the other
//! ```
//!
//! Limits are large (a million queue pairs, of which most hosts never have a hundred), and the
//! thread that uses a table must not allocate. All room is therefore allocated at first, but not
//! written: slots are zeros, which the kernel provides without memory, entries are filled from the
//! front, and parts that were never written have no memory.
//!
//! There may be many more numbers than entries ([`Table::sparse`]). The slot of an entry, its place
//! among the entries, stays the same until it is removed, and slots are below the number of entries
//! that there can be.

use alloc::{boxed::Box, vec, vec::Vec};

/// Entries by number, below a limit.
#[derive(Debug)]
pub struct Table<T> {
    /// 0, or one more than an index into `entries`.
    slots: Box<[u32]>,
    entries: Vec<Option<T>>,
    /// Entries that are empty.
    free: Vec<u32>,
    entries_max: u32,
}

impl<T> Table<T> {
    /// An empty table for the numbers below `capacity`.
    pub fn new(capacity: u32) -> Self {
        Self::sparse(capacity, capacity)
    }

    /// An empty table for `capacity` entries with numbers below `numbers`.
    pub fn sparse(numbers: u32, capacity: u32) -> Self {
        Self {
            slots: vec![0; numbers as usize].into_boxed_slice(),
            entries: Vec::with_capacity(capacity as usize),
            free: Vec::with_capacity(capacity as usize),
            entries_max: capacity,
        }
    }

    /// Numbers are below this.
    pub const fn capacity(&self) -> u32 {
        self.slots.len() as u32
    }

    /// The entry with this number.
    #[inline]
    pub fn get(&self, number: u32) -> Option<&T> {
        self.in_slot(self.slot_of(number)?)
    }

    /// As [`Self::get`], to change it.
    #[inline]
    pub fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.in_slot_mut(self.slot_of(number)?)
    }

    /// The slot of the entry with this number.
    #[inline]
    pub fn slot_of(&self, number: u32) -> Option<u32> {
        self.slots.get(number as usize)?.checked_sub(1)
    }

    /// The entry in this slot.
    #[inline]
    pub fn in_slot(&self, slot: u32) -> Option<&T> {
        self.entries.get(slot as usize)?.as_ref()
    }

    /// As [`Self::in_slot`], to change it.
    #[inline]
    pub fn in_slot_mut(&mut self, slot: u32) -> Option<&mut T> {
        self.entries.get_mut(slot as usize)?.as_mut()
    }

    /// Number of slots that were ever used.
    pub fn slots_used(&self) -> u32 {
        self.entries.len() as u32
    }

    /// Every entry, in the order of slots. Walks all slots that were ever used.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.entries.iter().flatten()
    }

    /// Room for this number, which is below the limit and not taken, and for one more entry.
    pub fn has_room(&self, number: u32) -> bool {
        self.slots.get(number as usize) == Some(&0) && !self.is_full()
    }

    fn is_full(&self) -> bool {
        self.free.is_empty() && self.entries.len() as u32 == self.entries_max
    }

    /// Gives `entry` this number.
    ///
    /// # Errors
    /// Gives it back where [`Self::has_room`] says no.
    pub fn insert(&mut self, number: u32, entry: T) -> Result<(), T> {
        let is_full = self.is_full();
        let Some(slot @ 0) = self.slots.get_mut(number as usize).filter(|_| !is_full) else { return Err(entry) };
        if let Some(free) = self.free.pop() {
            self.entries[free as usize] = Some(entry);
            *slot = free + 1;
        } else {
            self.entries.push(Some(entry));
            *slot = self.entries.len() as u32;
        }
        Ok(())
    }

    /// Removes the entry with this number.
    pub fn remove(&mut self, number: u32) -> Option<T> {
        let at = core::mem::take(self.slots.get_mut(number as usize)?).checked_sub(1)?;
        self.free.push(at);
        self.entries[at as usize].take()
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::{collections::BTreeMap, vec::Vec};

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn entries_are_as_many_as_are_used_and_nothing_is_moved() {
        let mut table = Table::new(1_000_000);
        let (slots, entries, free) = (table.slots.as_ptr(), table.entries.as_ptr(), table.free.as_ptr());
        for round in 0..5 {
            for number in (0..1000).map(|at| at * 999 + round) {
                assert_eq!(table.insert(number, number), Ok(()));
            }
            for number in (0..1000).map(|at| at * 999 + round) {
                assert_eq!(table.remove(number), Some(number));
            }
        }
        assert_eq!((table.entries.len(), table.free.len()), (1000, 1000));
        assert_eq!((table.slots.as_ptr(), table.entries.as_ptr(), table.free.as_ptr()), (slots, entries, free));
    }

    #[test]
    fn there_is_nothing_beyond_the_limit() {
        for capacity in [0, 1, 300] {
            let mut table = Table::new(capacity);
            assert!((0..capacity).all(|number| table.insert(number, 7u8) == Ok(())));
            for number in [capacity, capacity + 1, 1 << 20, u32::MAX] {
                assert_eq!(
                    (table.get(number).copied(), table.remove(number), table.insert(number, 9)),
                    (None, None, Err(9))
                );
                assert!(!table.has_room(number));
            }
        }
    }

    #[test]
    fn sparse_numbers_have_dense_slots() {
        let mut table = Table::sparse(1 << 18, 3);
        assert_eq!([262_143, 0, 77].map(|number| table.insert(number, number)), [Ok(()); 3]);
        assert_eq!([262_143, 0, 77, 78].map(|number| table.slot_of(number)), [Some(0), Some(1), Some(2), None]);
        assert_eq!((table.has_room(78), table.insert(78, 78)), (false, Err(78)), "three entries at most");
        assert_eq!((table.remove(0), table.insert(78, 78), table.slot_of(78)), (Some(0), Ok(()), Some(1)));
        assert_eq!((table.in_slot(1), table.in_slot(2), table.in_slot(3)), (Some(&78), Some(&77), None));
        assert_eq!(table.in_slot_mut(2), Some(&mut 77));
        assert_eq!(table.iter().copied().collect::<Vec<_>>(), [262_143, 78, 77]);
    }

    proptest! {
        #[test]
        fn it_is_a_map(steps in proptest::collection::vec((0u32..10, any::<bool>()), 1..200)) {
            let mut table = Table::new(8);
            let mut model = BTreeMap::new();
            for (step, (number, inserts)) in steps.into_iter().enumerate() {
                if inserts {
                    let fits = number < 8 && !model.contains_key(&number);
                    prop_assert_eq!(table.has_room(number), fits);
                    prop_assert_eq!(table.insert(number, step), if fits { Ok(()) } else { Err(step) });
                    if fits {
                        model.insert(number, step);
                    }
                } else {
                    prop_assert_eq!(table.remove(number), model.remove(&number));
                }
                let seen: Vec<_> = (0..10).filter_map(|number| Some((number, *table.get(number)?))).collect();
                prop_assert_eq!(seen, model.clone().into_iter().collect::<Vec<_>>());
            }
        }
    }
}
