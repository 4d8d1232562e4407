//! Things found by a number that the control thread chose: regions by `MemoryObjectId`, CQ rings by
//! `Cqn`.
//!
//! Numbers come and go over the daemon's life, so they are no indices; a lookup is one
//! multiplication and a short probe. All room is made once, and pages of it that are never used are
//! never touched.

/// A table from numbers to things, of fixed capacity.
#[derive(Debug)]
pub struct IdTable<T> {
    entries: Vec<(u32, T)>,
    /// Open addressing with linear probing: [`Self::EMPTY`], or one more than an index into
    /// `entries`.
    slots: Box<[u32]>,
}

impl<T> IdTable<T> {
    const EMPTY: u32 = 0;

    /// A table with room for `capacity` things.
    pub fn new(capacity: u32) -> Self {
        // Half full at most, so that a probe is short.
        let slots = (capacity.max(1) as usize * 2).next_power_of_two();
        Self { entries: Vec::with_capacity(capacity as usize), slots: vec![Self::EMPTY; slots].into_boxed_slice() }
    }

    /// Adds `thing` as number `id`.
    ///
    /// # Errors
    /// Gives `thing` back when the table is full or the number is taken.
    pub fn insert(&mut self, id: u32, thing: T) -> Result<(), T> {
        if self.entries.len() == self.entries.capacity() {
            return Err(thing);
        }
        let mut slot = self.home(id);
        while self.slots[slot] != Self::EMPTY {
            if self.entry_of(slot).0 == id {
                return Err(thing);
            }
            slot = self.after(slot);
        }
        self.entries.push((id, thing));
        self.slots[slot] = self.entries.len() as u32;
        Ok(())
    }

    /// Returns the entry with number `id`.
    pub fn get(&self, id: u32) -> Option<&T> {
        let slot = self.find(id)?;
        Some(&self.entry_of(slot).1)
    }

    /// Number `id`, to change.
    pub fn get_mut(&mut self, id: u32) -> Option<&mut T> {
        let slot = self.find(id)?;
        let at = self.slots[slot] as usize - 1;
        Some(&mut self.entries[at].1)
    }

    /// Takes number `id` out.
    pub fn remove(&mut self, id: u32) -> Option<T> {
        let slot = self.find(id)?;
        let at = self.slots[slot] as usize - 1;
        self.close_gap(slot);
        let (_, removed) = self.entries.swap_remove(at);
        if let Some((moved, _)) = self.entries.get(at) {
            // The last one took the removed one's place: its slot still holds its old place.
            let old = self.entries.len() as u32 + 1;
            let mut slot = self.home(*moved);
            while self.slots[slot] != old {
                slot = self.after(slot);
            }
            self.slots[slot] = at as u32 + 1;
        }
        Some(removed)
    }

    /// Number of things.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Nothing in it.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn entry_of(&self, slot: usize) -> &(u32, T) {
        &self.entries[self.slots[slot] as usize - 1]
    }

    fn home(&self, id: u32) -> usize {
        // Fibonacci hashing: the high bits of the product are the well mixed ones.
        let bits = self.slots.len().trailing_zeros();
        (u64::from(id).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - bits.max(1))) as usize & (self.slots.len() - 1)
    }

    fn after(&self, slot: usize) -> usize {
        (slot + 1) & (self.slots.len() - 1)
    }

    fn find(&self, id: u32) -> Option<usize> {
        let mut slot = self.home(id);
        while self.slots[slot] != Self::EMPTY {
            if self.entry_of(slot).0 == id {
                return Some(slot);
            }
            slot = self.after(slot);
        }
        None
    }

    /// Empties `gap` and moves later entries of its run forward, so that no probe stops short of
    /// them.
    fn close_gap(&mut self, mut gap: usize) {
        let mask = self.slots.len() - 1;
        let mut slot = self.after(gap);
        while self.slots[slot] != Self::EMPTY {
            let home = self.home(self.entry_of(slot).0);
            // It may move to the gap unless its home lies after the gap (cyclically).
            if slot.wrapping_sub(home) & mask >= slot.wrapping_sub(gap) & mask {
                self.slots[gap] = self.slots[slot];
                gap = slot;
            }
            slot = self.after(slot);
        }
        self.slots[gap] = Self::EMPTY;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_full_table_gives_the_thing_back() {
        let mut table = IdTable::new(2);
        assert_eq!(table.insert(5, 'a'), Ok(()));
        assert_eq!(table.insert(5, 'b'), Err('b'));
        assert_eq!(table.insert(0, 'c'), Ok(()));
        assert_eq!(table.insert(u32::MAX, 'd'), Err('d'));
        assert_eq!((table.get(5), table.get(0), table.get(u32::MAX)), (Some(&'a'), Some(&'c'), None));
    }

    proptest! {
        #[test]
        fn the_table_is_a_map(steps in proptest::collection::vec((any::<bool>(), 0u32..40, any::<u16>()), 1..300)) {
            let mut table = IdTable::new(16);
            let mut model: HashMap<u32, u16> = HashMap::new();
            for (insert, id, thing) in steps {
                if insert {
                    let refused = model.contains_key(&id) || model.len() == 16;
                    prop_assert_eq!(table.insert(id, thing).is_err(), refused);
                    if !refused {
                        model.insert(id, thing);
                    }
                } else {
                    prop_assert_eq!(table.remove(id), model.remove(&id));
                }
                prop_assert_eq!(table.len(), model.len());
                for (id, thing) in &model {
                    prop_assert_eq!(table.get(*id), Some(thing));
                }
            }
        }
    }
}
