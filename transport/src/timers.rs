//! One deadline for each queue pair, in a hierarchical wheel.
//!
//! Nine levels of 64 slots, the lowest 8.192 us wide, cover all of time; setting and firing cost
//! the same for ten queue pairs as for a hundred thousand, and nothing allocates. A queue pair's
//! deadline mostly moves later (each ACK restarts the timer), so the wheel is lazy:
//! [`Timers::ensure`] touches it only for an earlier deadline, and a timer that fires too early is
//! armed anew.

use crate::{clock::Nanos, table::Table};

/// As many as a 64-bit time in ticks has digits.
const LEVELS: usize = (64 - TICK_BITS).div_ceil(SLOT_BITS) as usize;
const SLOT_BITS: u32 = 6;
const SLOTS: usize = 1 << SLOT_BITS;
/// log2 of a tick in nanoseconds: ACK timeouts begin at 8.192 us (4.096 us * 2).
const TICK_BITS: u32 = 13;
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Node {
    next: u32,
    previous: u32,
    tick: u64,
    place: u16,
}

impl Node {
    const IDLE: u16 = u16::MAX;

    const fn idle() -> Self {
        Self { next: NONE, previous: NONE, tick: 0, place: Self::IDLE }
    }
}

/// The deadlines of all queue pairs of an endpoint, by table index.
#[derive(Debug)]
pub struct Timers {
    now: u64,
    /// No slot begins before this tick, so that a poll that comes earlier looks at none.
    not_before: u64,
    occupied: [u64; LEVELS],
    heads: [[u32; SLOTS]; LEVELS],
    nodes: Table<Node>,
}

impl Timers {
    /// Timers for the indices below `capacity`.
    pub fn new(capacity: u32) -> Self {
        let nodes = Table::new(capacity);
        Self { now: 0, not_before: u64::MAX, occupied: [0; LEVELS], heads: [[NONE; SLOTS]; LEVELS], nodes }
    }

    /// Knows `index` from now on, which is below the capacity.
    pub fn add(&mut self, index: u32) {
        let _ = self.nodes.insert(index, Node::idle());
    }

    /// Forgets `index`, armed or not.
    pub fn remove(&mut self, index: u32) {
        if self.nodes.get(index).is_some() {
            self.cancel(index);
            self.nodes.remove(index);
        }
    }

    fn node(&mut self, index: u32) -> &mut Node {
        self.nodes.get_mut(index).expect("an index that was added")
    }

    /// Makes sure that `index` is fired at `deadline` or earlier.
    pub fn ensure(&mut self, index: u32, deadline: Nanos) {
        if deadline == Nanos::NEVER {
            return;
        }
        // Rounded up: a timer may fire late by a tick, never early.
        let tick = (deadline.0 >> TICK_BITS) + 1;
        let node = *self.node(index);
        if node.place != Node::IDLE {
            if node.tick <= tick {
                return;
            }
            self.unlink(index);
        }
        self.link(index, tick);
    }

    /// Disarms `index`.
    fn cancel(&mut self, index: u32) {
        if self.node(index).place != Node::IDLE {
            self.unlink(index);
        }
    }

    /// The next expired index, which is then disarmed. `None` if there is none at `now`.
    #[inline]
    pub fn poll(&mut self, now: Nanos) -> Option<u32> {
        let now = now.0 >> TICK_BITS;
        if now < self.not_before {
            self.now = self.now.max(now);
            return None;
        }
        self.poll_slots(now)
    }

    fn poll_slots(&mut self, now: u64) -> Option<u32> {
        loop {
            let earliest = self.earliest();
            let start = earliest.map_or(u64::MAX, |(_, _, start)| start);
            let (level, slot) = match earliest {
                Some((level, slot, _)) if start <= now => (level, slot),
                _ => {
                    self.now = self.now.max(now);
                    self.not_before = start;
                    return None;
                }
            };
            self.now = self.now.max(start);
            let index = self.heads[level][slot];
            self.unlink(index);
            if level == 0 {
                return Some(index);
            }
            // Time came down to this slot: its entries go to finer ones.
            let tick = self.node(index).tick;
            self.link(index, tick);
        }
    }

    /// When the next timer may fire: never later than it does. [`Nanos::NEVER`] when none is armed.
    pub fn next(&self) -> Nanos {
        self.earliest().map_or(Nanos::NEVER, |(_, _, start)| Nanos(start << TICK_BITS))
    }

    /// The first occupied slot in time, and the tick at which it begins.
    fn earliest(&self) -> Option<(usize, usize, u64)> {
        // Of two that begin at once the coarser comes first: its entries may belong before those of
        // the finer one.
        (0..LEVELS)
            .rev()
            .filter(|level| self.occupied[*level] != 0)
            .map(|level| {
                let shift = SLOT_BITS * level as u32;
                let here = (self.now >> shift) & (SLOTS as u64 - 1);
                let ahead = u64::from(self.occupied[level].rotate_right(here as u32).trailing_zeros());
                let start = ((self.now >> shift) + ahead) << shift;
                (level, ((here + ahead) as usize) & (SLOTS - 1), start)
            })
            .min_by_key(|(_, _, start)| *start)
    }

    fn link(&mut self, index: u32, tick: u64) {
        let place_tick = tick.max(self.now);
        let digits = (place_tick ^ self.now) | (SLOTS as u64 - 1);
        let level = ((63 - digits.leading_zeros()) / SLOT_BITS) as usize;
        let shift = SLOT_BITS * level as u32;
        let slot = ((place_tick >> shift) as usize) & (SLOTS - 1);
        self.not_before = self.not_before.min(place_tick >> shift << shift);
        let head = self.heads[level][slot];
        *self.node(index) = Node { next: head, previous: NONE, tick, place: (level * SLOTS + slot) as u16 };
        if head != NONE {
            self.node(head).previous = index;
        }
        self.heads[level][slot] = index;
        self.occupied[level] |= 1 << slot;
    }

    fn unlink(&mut self, index: u32) {
        let Node { next, previous, place, .. } = *self.node(index);
        let (level, slot) = (place as usize / SLOTS, place as usize % SLOTS);
        if previous == NONE {
            self.heads[level][slot] = next;
            if next == NONE {
                self.occupied[level] &= !(1 << slot);
            }
        } else {
            self.node(previous).next = next;
        }
        if next != NONE {
            self.node(next).previous = previous;
        }
        self.node(index).place = Node::IDLE;
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::{collections::BTreeMap, vec::Vec};

    use proptest::prelude::*;

    use super::*;

    const TICK: u64 = 1 << TICK_BITS;

    #[test]
    fn a_timer_fires_once_and_not_early() {
        let mut timers = Timers::new(4);
        timers.add(2);
        timers.ensure(2, Nanos::from_millis(67));
        assert_eq!(timers.poll(Nanos::from_millis(67)), None);
        assert!(timers.next() <= Nanos(Nanos::from_millis(67).0 + TICK));
        assert_eq!(timers.poll(Nanos(Nanos::from_millis(67).0 + TICK)), Some(2));
        assert_eq!(timers.poll(Nanos::from_millis(1000)), None);
        assert_eq!(timers.next(), Nanos::NEVER);
    }

    #[test]
    fn a_deadline_at_the_end_of_time_has_a_place() {
        let mut timers = Timers::new(1);
        timers.add(0);
        let far = Nanos(u64::MAX - 2 * TICK);
        timers.ensure(0, far);
        assert_eq!(timers.poll(Nanos(far.0 - TICK)), None);
        assert_eq!(timers.poll(Nanos(far.0 + TICK)), Some(0));
    }

    proptest! {
        /// Against a map from index to deadline.
        #[test]
        fn the_wheel_is_a_map(steps in proptest::collection::vec((0u32..16, 0u64..1 << 36, 0u64..1 << 34, 0u8..3), 1..200)) {
            let mut timers = Timers::new(16);
            (0..16).for_each(|index| timers.add(index));
            let mut model: BTreeMap<u32, u64> = BTreeMap::new();
            let mut now = 0;
            for (index, delay, step, action) in steps {
                match action {
                    0 => {
                        timers.ensure(index, Nanos(now + delay));
                        let tick = (now + delay) / TICK + 1;
                        model.entry(index).and_modify(|old| *old = tick.min(*old)).or_insert(tick);
                    }
                    1 => {
                        timers.cancel(index);
                        model.remove(&index);
                    }
                    _ => {
                        now += step;
                        prop_assert!(model.values().all(|tick| timers.next().0 <= tick * TICK));
                        let mut fired: Vec<u32> = std::iter::from_fn(|| timers.poll(Nanos(now))).collect();
                        fired.sort_unstable();
                        let due: Vec<u32> = model.iter().filter(|(_, tick)| **tick <= now / TICK).map(|(index, _)| *index).collect();
                        model.retain(|_, tick| *tick > now / TICK);
                        prop_assert_eq!(fired, due);
                        prop_assert!(timers.next().0 > now, "the caller sleeps until then");
                    }
                }
            }
        }
    }
}
