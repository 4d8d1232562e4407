//! Pool of out-of-order packets, stored as whole frames until they are due.
//!
//! An endpoint has one pool of slots for all its queue pairs; each queue pair has two lists in it,
//! one of requests and one of responses. A frame is copied here once, because the frames of a NIC
//! queue return to it, after its ICRC and origin were checked. It is parsed again like any frame
//! when it is due. The pool does not parse it.
//!
//! ```text
//!   buckets  PSN ──► slot ─► slot        next packet by queue pair, side and PSN
//!   list     first ◄──► ... ◄──► last    packets of a queue pair, in the order of arrival
//!   free     slot ─► slot ─► ...
//! ```
//!
//! A queue pair may use as many slots as are free: one queue pair alone uses half of the pool; of
//! `n` that use as much as possible, each uses one part in `n + 1`. Hence there is always room for
//! one more queue pair.

use alloc::{boxed::Box, vec};

use crate::{clock::Nanos, io::Segments, psn::Psn};

/// Maximum length of a buffered frame: path MTU 4096 and room for headers, including tags.
const SLOT_BYTES: usize = 4352;

/// Maximum distance of a packet ahead of its turn: several windows of the usual 128 packets. A
/// packet farther ahead is more likely of an earlier life of the connection than in flight.
pub(crate) const WINDOW: u32 = 1 << 10;

/// Maximum time in the buffer, unless twice the configured reordering delay is longer: many round
/// trips within a building, and less than the shortest ACK timer of adapters, after which everything
/// is sent again anyway.
pub(crate) const BUFFERED_MAX: Nanos = Nanos::from_millis(4);

const NONE: u32 = u32::MAX;

/// Side of a queue pair that buffers packets: requests for its responder, or responses for its
/// completer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutOfOrderSide {
    Requests,
    Responses,
}

/// Buffered packets of a queue pair on one side.
#[derive(Debug)]
pub(crate) struct OutOfOrderList {
    owner: Owner,
    first: u32,
    last: u32,
    count: u32,
    /// Packet farthest ahead.
    farthest: Psn,
    /// Arrival of the oldest packet; [`Nanos::NEVER`] if there is none.
    oldest_arrival: Nanos,
}

/// A queue pair's table index, and the side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Owner(u32);

impl OutOfOrderList {
    /// Creates an empty list for the queue pair at `index` of its endpoint's table.
    pub(crate) const fn new(index: u32, side: OutOfOrderSide) -> Self {
        let owner = Owner(index << 1 | side as u32);
        Self { owner, first: NONE, last: NONE, count: 0, farthest: Psn::new(0), oldest_arrival: Nanos::NEVER }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Number of packets in it.
    pub(crate) const fn count(&self) -> u32 {
        self.count
    }

    /// Arrival of the oldest packet in the list; [`Nanos::NEVER`] if it is empty.
    pub(crate) const fn oldest_arrival(&self) -> Nanos {
        self.oldest_arrival
    }

    /// Packet farthest ahead of all that were buffered since the list was empty.
    pub(crate) const fn farthest(&self) -> Psn {
        self.farthest
    }

    /// All packets of the list are behind `psn` and will never be due.
    pub(crate) const fn is_behind(&self, psn: Psn) -> bool {
        self.farthest.distance_from(psn) < 0
    }
}

#[derive(Clone, Copy, Debug)]
struct PacketSlot {
    owner: Owner,
    psn: Psn,
    frame_bytes: u32,
    arrived: Nanos,
    /// In the list of its owner.
    previous: u32,
    next: u32,
    /// In its bucket, or among the free.
    link: u32,
}

/// Reason why a packet is not buffered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotBuffered {
    /// The pool or the queue pair's share of it is full, or the packet is too far ahead or too
    /// long.
    NoRoom,
    /// It is buffered already.
    Twice,
    /// It was buffered already with other bytes; both were discarded.
    Conflict,
}

/// The pool.
#[derive(Debug)]
pub(crate) struct OutOfOrderPool {
    frames: Box<[u8]>,
    slots: Box<[PacketSlot]>,
    buckets: Box<[u32]>,
    free: u32,
    free_count: u32,
}

impl OutOfOrderPool {
    /// Creates a pool for `capacity` packets.
    pub(crate) fn new(capacity: u32) -> Self {
        let empty = PacketSlot {
            owner: Owner(0),
            psn: Psn::new(0),
            frame_bytes: 0,
            arrived: Nanos(0),
            previous: NONE,
            next: NONE,
            link: NONE,
        };
        let mut slots = vec![empty; capacity as usize].into_boxed_slice();
        let count = slots.len() as u32;
        for (at, slot) in slots.iter_mut().enumerate().take(capacity.saturating_sub(1) as usize) {
            slot.link = at as u32 + 1;
        }
        Self {
            // Zeroed memory is the kernel's until it is written to, so unused slots cost nothing.
            frames: vec![0; capacity as usize * SLOT_BYTES].into_boxed_slice(),
            slots,
            buckets: vec![NONE; capacity.next_power_of_two() as usize].into_boxed_slice(),
            free: if count == 0 { NONE } else { 0 },
            free_count: count,
        }
    }

    /// Copies the frame of a packet that is ahead of `expected`.
    pub(crate) fn insert(
        &mut self,
        list: &mut OutOfOrderList,
        psn: Psn,
        expected: Psn,
        frame: &Segments<'_>,
        now: Nanos,
    ) -> Result<(), NotBuffered> {
        if self.find(list, psn).is_some() {
            return Err(NotBuffered::Twice);
        }
        let frame_bytes = frame.iter().map(|piece| piece.len()).sum::<usize>();
        let ahead = psn.offset_from(expected);
        if list.count >= self.free_count || ahead > WINDOW || frame_bytes > SLOT_BYTES {
            return Err(NotBuffered::NoRoom);
        }
        let at = self.free;
        let mut into = &mut self.frames[at as usize * SLOT_BYTES..][..frame_bytes];
        for piece in frame {
            let (now, later) = into.split_at_mut(piece.len());
            now.copy_from_slice(piece);
            into = later;
        }
        let bucket = self.bucket(list.owner, psn);
        let slot = &mut self.slots[at as usize];
        (self.free, self.free_count) = (slot.link, self.free_count - 1);
        *slot = PacketSlot {
            owner: list.owner,
            psn,
            frame_bytes: frame_bytes as u32,
            arrived: now,
            previous: list.last,
            next: NONE,
            link: self.buckets[bucket],
        };
        self.buckets[bucket] = at;
        match list.last {
            NONE => (list.first, list.oldest_arrival) = (at, now),
            last => self.slots[last as usize].next = at,
        }
        list.last = at;
        if list.count == 0 || psn.distance_from(list.farthest) > 0 {
            list.farthest = psn;
        }
        list.count += 1;
        Ok(())
    }

    /// PSN of the oldest packet.
    pub(crate) fn first_psn(&self, list: &OutOfOrderList) -> Option<Psn> {
        (list.count > 0).then(|| self.slots[list.first as usize].psn)
    }

    /// Slot of the packet with this PSN.
    pub(crate) fn find(&self, list: &OutOfOrderList, psn: Psn) -> Option<u32> {
        if list.count == 0 {
            return None;
        }
        let mut at = self.buckets[self.bucket(list.owner, psn)];
        while at != NONE {
            let slot = &self.slots[at as usize];
            if slot.owner == list.owner && slot.psn == psn {
                return Some(at);
            }
            at = slot.link;
        }
        None
    }

    /// PSN of the packet in a slot.
    pub(crate) const fn psn(&self, at: u32) -> Psn {
        self.slots[at as usize].psn
    }

    /// Frame in a slot.
    pub(crate) fn frame(&self, at: u32) -> &[u8] {
        &self.frames[at as usize * SLOT_BYTES..][..self.slots[at as usize].frame_bytes as usize]
    }

    /// Frees a slot of `list`.
    pub(crate) fn release(&mut self, list: &mut OutOfOrderList, at: u32) {
        let PacketSlot { owner, psn, previous, next, link, .. } = self.slots[at as usize];
        debug_assert_eq!(owner, list.owner, "a slot of this list");
        let bucket = self.bucket(owner, psn);
        if self.buckets[bucket] == at {
            self.buckets[bucket] = link;
        } else {
            let mut before = self.buckets[bucket];
            while self.slots[before as usize].link != at {
                before = self.slots[before as usize].link;
            }
            self.slots[before as usize].link = link;
        }
        match previous {
            NONE => {
                list.first = next;
                list.oldest_arrival = self.slots.get(next as usize).map_or(Nanos::NEVER, |slot| slot.arrived);
            }
            previous => self.slots[previous as usize].next = next,
        }
        match next {
            NONE => list.last = previous,
            next => self.slots[next as usize].previous = previous,
        }
        list.count -= 1;
        self.slots[at as usize].link = self.free;
        (self.free, self.free_count) = (at, self.free_count + 1);
    }

    /// Frees all packets of `list`; returns their number.
    pub(crate) fn release_all(&mut self, list: &mut OutOfOrderList) -> u32 {
        let count = list.count;
        while list.count > 0 {
            self.release(list, list.first);
        }
        count
    }

    /// Frees the packets of `list` that were buffered at `moment` or before; returns their number.
    pub(crate) fn release_older(&mut self, list: &mut OutOfOrderList, moment: Nanos) -> u32 {
        let count = list.count;
        while list.oldest_arrival <= moment {
            self.release(list, list.first);
        }
        count - list.count
    }

    /// Bucket of a PSN. Neighboring PSNs of one list have different buckets, and other lists begin
    /// elsewhere. A chain is therefore at most as long as the number of lists with packets in it,
    /// times [`WINDOW`] by the number of buckets.
    fn bucket(&self, owner: Owner, psn: Psn) -> usize {
        owner.0.wrapping_mul(0x9e37_79b1).wrapping_add(psn.get()) as usize & (self.buckets.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::{collections::BTreeMap, vec::Vec};

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_queue_pair_alone_may_hold_half_and_others_still_begin() {
        let mut pool = OutOfOrderPool::new(12);
        let mut lists = [0, 1, 2].map(|index| OutOfOrderList::new(index, OutOfOrderSide::Requests));
        let mut fill = |list: &mut OutOfOrderList| {
            (1..20).take_while(|psn| pool.insert(list, Psn::new(*psn), Psn::new(0), &[&[1]], Nanos(0)).is_ok()).count()
        };
        let counts: Vec<usize> = lists.iter_mut().map(&mut fill).collect();
        assert_eq!(counts, [6, 3, 2]);
    }

    #[test]
    fn distant_long_or_duplicate_packets_are_not_kept() {
        let mut pool = OutOfOrderPool::new(8);
        let mut list = OutOfOrderList::new(3, OutOfOrderSide::Responses);
        let expected = Psn::new(0x00ff_fff0);
        let mut insert =
            |ahead: u32, frame: &[u8]| pool.insert(&mut list, expected.plus(ahead), expected, &[frame], Nanos(0));
        assert_eq!(insert(WINDOW + 1, &[1]), Err(NotBuffered::NoRoom));
        assert_eq!(insert(5, &[0; SLOT_BYTES + 1]), Err(NotBuffered::NoRoom));
        assert_eq!(insert(WINDOW, &[1]), Ok(()));
        assert_eq!(insert(5, &[0; SLOT_BYTES]), Ok(()));
        assert_eq!(insert(5, &[1]), Err(NotBuffered::Twice));
    }

    #[test]
    fn a_frame_in_pieces_comes_back_whole() {
        let mut pool = OutOfOrderPool::new(4);
        let mut list = OutOfOrderList::new(0, OutOfOrderSide::Requests);
        pool.insert(&mut list, Psn::new(7), Psn::new(5), &[&[1, 2], &[], &[3]], Nanos(9)).expect("room");
        assert_eq!(pool.frame(pool.find(&list, Psn::new(7)).expect("buffered")), [1, 2, 3]);
        assert_eq!(list.oldest_arrival(), Nanos(9));
        assert_eq!((pool.release_older(&mut list, Nanos(8)), list.is_empty()), (0, false));
        pool.insert(&mut list, Psn::new(8), Psn::new(5), &[&[4]], Nanos(11)).expect("room");
        assert!(list.is_behind(Psn::new(9)) && !list.is_behind(Psn::new(8)));
        assert_eq!((pool.release_older(&mut list, Nanos(10)), list.oldest_arrival()), (1, Nanos(11)));
        assert_eq!((pool.release_older(&mut list, Nanos(11)), list.oldest_arrival()), (1, Nanos::NEVER));
    }

    #[test]
    fn a_pool_of_nothing_holds_nothing() {
        let mut pool = OutOfOrderPool::new(0);
        let mut list = OutOfOrderList::new(0, OutOfOrderSide::Requests);
        assert_eq!(pool.insert(&mut list, Psn::new(1), Psn::new(0), &[&[1]], Nanos(0)), Err(NotBuffered::NoRoom));
        assert_eq!((pool.find(&list, Psn::new(1)), pool.release_all(&mut list)), (None, 0));
    }

    proptest! {
        /// Compared with a map from list and PSN to the contents of the frame.
        #[test]
        fn the_pool_is_a_map(steps in proptest::collection::vec((0usize..4, 0u32..40, 0u8..8), 1..300)) {
            let mut pool = OutOfOrderPool::new(16);
            let mut lists = [(0, OutOfOrderSide::Requests), (0, OutOfOrderSide::Responses), (1, OutOfOrderSide::Requests), (77, OutOfOrderSide::Requests)]
                .map(|(index, side)| OutOfOrderList::new(index, side));
            let mut model: BTreeMap<(usize, u32), u8> = BTreeMap::new();
            for (number, (list, ahead, action)) in steps.into_iter().enumerate() {
                let (next, mark) = (Psn::new(0x00ff_fff0), number as u8);
                let psn = next.plus(ahead);
                let count = model.keys().filter(|(of, _)| *of == list).count();
                match action {
                    0..=4 => {
                        let expected = match model.contains_key(&(list, ahead)) {
                            true => Err(NotBuffered::Twice),
                            false if count >= 16 - model.len() => Err(NotBuffered::NoRoom),
                            false => Ok(()),
                        };
                        prop_assert_eq!(pool.insert(&mut lists[list], psn, next, &[&[mark]], Nanos(number as u64)), expected);
                        if expected.is_ok() {
                            model.insert((list, ahead), mark);
                        }
                    }
                    5 | 6 => {
                        let found = pool.find(&lists[list], psn);
                        prop_assert_eq!(found.map(|at| pool.frame(at)[0]), model.remove(&(list, ahead)));
                        found.into_iter().for_each(|at| pool.release(&mut lists[list], at));
                    }
                    _ => {
                        prop_assert_eq!(pool.release_all(&mut lists[list]) as usize, count);
                        model.retain(|(of, _), _| *of != list);
                    }
                }
                for (at, list) in lists.iter().enumerate() {
                    prop_assert_eq!(list.is_empty(), !model.keys().any(|(of, _)| *of == at));
                }
            }
        }
    }
}
