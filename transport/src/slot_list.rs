//! A list of slots, each at most once, in which every operation takes constant time.
//!
//! The links lie in an array by slot, so a slot leaves the list from any place. All memory is asked
//! for at first, zeroed: links of slots that were never listed are never written, and cost nothing.
//!
//! ```text
//!   ends ──► first ◄──► ... ◄──► last ──► ends        a ring; links of a slot that is not listed are 0
//! ```

use alloc::{boxed::Box, vec};

/// Neighbors in the ring, as nodes, by [`NEXT`] and [`PREVIOUS`]; 0 when the node is not in it. An
/// array, of which zeros are the kernel's.
type ListNode = [u32; 2];
const NEXT: usize = 0;
const PREVIOUS: usize = 1;

/// The node between the last slot and the first.
const ENDS: u32 = 1;
/// The node of slot 0.
const FIRST: u32 = 2;

/// A queue of slots.
#[derive(Debug)]
pub(crate) struct SlotList {
    links: Box<[ListNode]>,
    listed: u32,
}

impl SlotList {
    /// An empty list for the slots below `slots`.
    pub(crate) fn new(slots: u32) -> Self {
        let mut links = vec![[0; 2]; slots as usize + FIRST as usize].into_boxed_slice();
        links[ENDS as usize] = [ENDS; 2];
        Self { links, listed: 0 }
    }

    /// No slot is listed. Looks at no link.
    #[inline]
    pub(crate) const fn is_empty(&self) -> bool {
        self.listed == 0
    }

    /// Lists a slot as the last, unless it is listed.
    ///
    /// # Panics
    /// When the slot is not below the number given to [`Self::new`].
    #[inline]
    pub(crate) fn push_back(&mut self, slot: u32) {
        self.insert(slot, self.links[ENDS as usize][PREVIOUS]);
    }

    /// Takes the first slot out.
    #[inline]
    pub(crate) fn pop_front(&mut self) -> Option<u32> {
        if self.is_empty() {
            return None;
        }
        let first = self.first()?;
        self.remove(first);
        Some(first)
    }

    /// Takes a slot out, if it is listed.
    #[inline]
    pub(crate) fn remove(&mut self, slot: u32) {
        let [next, previous] = core::mem::take(&mut self.links[(slot + FIRST) as usize]);
        if next != 0 {
            self.links[previous as usize][NEXT] = next;
            self.links[next as usize][PREVIOUS] = previous;
            self.listed -= 1;
        }
    }

    /// The first slot.
    pub(crate) fn first(&self) -> Option<u32> {
        self.links[ENDS as usize][NEXT].checked_sub(FIRST)
    }

    /// The slot behind one that is listed.
    pub(crate) fn after(&self, slot: u32) -> Option<u32> {
        self.links[(slot + FIRST) as usize][NEXT].checked_sub(FIRST)
    }

    fn insert(&mut self, slot: u32, previous: u32) {
        let node = slot + FIRST;
        if self.links[node as usize][NEXT] != 0 {
            return;
        }
        let next = self.links[previous as usize][NEXT];
        self.links[node as usize] = [next, previous];
        self.links[previous as usize][NEXT] = node;
        self.links[next as usize][PREVIOUS] = node;
        self.listed += 1;
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::{collections::VecDeque, vec::Vec};

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_slot_is_listed_once() {
        let mut list = SlotList::new(4);
        [3, 0, 3, 0].into_iter().for_each(|slot| list.push_back(slot));
        assert_eq!([(); 3].map(|()| list.pop_front()), [Some(3), Some(0), None]);
    }

    #[test]
    #[should_panic(expected = "index out of bounds")]
    fn a_slot_beyond_the_capacity_is_refused() {
        SlotList::new(4).push_back(4);
    }

    proptest! {
        /// Against a plain queue.
        #[test]
        fn list_behaves_as_a_queue_without_duplicates(steps in proptest::collection::vec((0u8..4, 0u32..6), 1..200)) {
            let mut list = SlotList::new(6);
            let mut model: VecDeque<u32> = VecDeque::new();
            for (step, slot) in steps {
                match step {
                    0 | 1 if !model.contains(&slot) => model.push_back(slot),
                    2 => model.retain(|other| *other != slot),
                    _ => {}
                }
                match step {
                    0 | 1 => list.push_back(slot),
                    2 => list.remove(slot),
                    _ => prop_assert_eq!(list.pop_front(), model.pop_front()),
                }
                let listed: Vec<u32> = std::iter::successors(list.first(), |slot| list.after(*slot)).collect();
                prop_assert_eq!(listed, model.iter().copied().collect::<Vec<_>>());
                prop_assert_eq!(list.is_empty(), model.is_empty());
            }
        }
    }
}
