//! Outstanding receives of a shared receive queue.

use std::sync::Mutex;

use crate::{
    outstanding::{Cookie, Queue},
    socket::lock,
};

/// Outstanding receives of a shared receive queue. Each has a slot, because several queue pairs
/// take receives and complete them in any order.
#[derive(Debug)]
pub(crate) struct SharedWork {
    pub(crate) tag: u32,
    slots: Mutex<Slots>,
}

#[derive(Debug)]
struct Slots {
    /// For each slot, the program's `wr_id` and the number by which the daemon knows the receive:
    /// the slot in the low bits, and above them a use count, so that an old number matches no
    /// receive.
    slots: Box<[SrqSlot]>,
    free: Vec<u32>,
}

#[derive(Clone, Copy, Debug)]
struct SrqSlot {
    wr_id: u64,
    number: u32,
    outstanding: bool,
}

impl SharedWork {
    /// Creates slots for `depth` receives, a power of two.
    pub(crate) fn new(tag: u32, depth: u32) -> Self {
        assert!(depth.is_power_of_two(), "granted sizes are powers of two");
        let slot = |number| SrqSlot { wr_id: 0, number, outstanding: false };
        let slots = Slots { slots: (0..depth).map(slot).collect(), free: (0..depth).rev().collect() };
        Self { tag, slots: Mutex::new(slots) }
    }

    pub(crate) fn len(&self) -> u32 {
        let slots = lock(&self.slots);
        (slots.slots.len() - slots.free.len()) as u32
    }

    /// Records a receive and returns its number for the daemon; `None` if there is no room.
    pub(crate) fn add(&self, wr_id: u64) -> Option<u32> {
        let mut slots = lock(&self.slots);
        let at = slots.free.pop()?;
        let slot = &mut slots.slots[at as usize];
        (slot.wr_id, slot.outstanding) = (wr_id, true);
        Some(slot.number)
    }

    /// Completes the receive of `cookie` and returns its `wr_id`. `None` if it is not outstanding,
    /// or belongs to another queue.
    pub(crate) fn complete(&self, cookie: Cookie) -> Option<u64> {
        if cookie.queue() != Queue::Recv || cookie.tag() != self.tag {
            return None;
        }
        let mut slots = lock(&self.slots);
        let depth = slots.slots.len() as u32;
        let at = cookie.sequence() & (depth - 1);
        let slot = &mut slots.slots[at as usize];
        if !slot.outstanding || slot.number != cookie.sequence() {
            return None;
        }
        slot.outstanding = false;
        slot.number = slot.number.wrapping_add(depth);
        let wr_id = slot.wr_id;
        slots.free.push(at);
        Some(wr_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cookie(number: u32) -> Cookie {
        Cookie::new(Queue::Recv, 5, number)
    }

    #[test]
    fn receives_complete_in_any_order_each_once() {
        let work = SharedWork::new(5, 4);
        let numbers: Vec<_> = (10..14).map(|wr_id| work.add(wr_id).expect("room")).collect();
        assert_eq!((work.add(14), work.len()), (None, 4));
        assert_eq!(work.complete(cookie(numbers[2])), Some(12));
        assert_eq!(work.complete(cookie(numbers[2])), None, "done before");
        assert_eq!(work.complete(Cookie::new(Queue::Recv, 6, numbers[1])), None, "of another queue");
        assert_eq!(work.complete(Cookie::new(Queue::Send, 5, numbers[1])), None, "no receive");
        assert_eq!((work.complete(cookie(numbers[0])), work.len()), (Some(10), 2));
        // The slot is reused, with another number.
        let again = work.add(20).expect("room");
        assert!(!numbers.contains(&again));
        assert_eq!(work.complete(cookie(numbers[0])), None, "an old number");
        assert_eq!(work.complete(cookie(again)), Some(20));
    }

    #[test]
    fn numbers_wrap() {
        let work = SharedWork::new(5, 1);
        for wr_id in 0..3 {
            lock(&work.slots).slots[0].number = u32::MAX - 1 + wr_id as u32 % 2;
            let number = work.add(wr_id).expect("room");
            assert_eq!(work.complete(cookie(number)), Some(wr_id));
        }
    }
}
