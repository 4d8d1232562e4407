//! Replay ring: requests with answers of their own (READs, atomic operations) that the responder
//! keeps, because it is answering them or may have to answer them again.
//!
//! A ring of `max_dest_rd_atomic` requests in PSN order. A new request replaces the oldest, to
//! which the requester has the answer by then (unless it exceeds its limit). Duplicates are
//! answered from the ring: a READ from any packet of the message on, with the current memory
//! content; an atomic operation with the original value found at its only execution.
//!
//! Most queue pairs answer few requests at a time, or none, so the memory of the ring is provided
//! with its depth ([`ReplayMemory`]), not with the queue pair.

use alloc::vec::Vec;
use core::ops::Range;

use roced_types::{QpAttributes, attribute};

use crate::{mr::MrKey, psn::Psn, wire::opcode::Operation};

/// Maximum number of requests kept for one queue pair, hence of READs and atomic operations that
/// the peer, or this side, may have outstanding. Each costs 56 bytes in a queue pair with that
/// depth.
pub const DEPTH_MAX: u32 = 128;

/// An accepted request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReplayedRequest {
    pub(crate) operation: Operation,
    pub(crate) first_psn: Psn,
    pub(crate) packets: u32,
    pub(crate) va: u64,
    pub(crate) key: MrKey,
    pub(crate) length: u32,
    /// Message sequence number of its responses.
    pub(crate) msn: u32,
    /// Original value found by an atomic operation.
    pub(crate) original: u64,
}

/// Responses still to be sent, as packet numbers within the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pending {
    /// First packet of the latest requested range, sent as FIRST or ONLY. It may lie ahead of
    /// `next`.
    pub(crate) start: u32,
    /// Next packet to be sent.
    pub(crate) next: u32,
    /// Packet after the last.
    pub(crate) end: u32,
}

impl Pending {
    const NOTHING: Self = Self { start: 0, next: 0, end: 0 };
}

#[derive(Clone, Copy, Debug)]
struct ReplaySlot {
    request: ReplayedRequest,
    /// [`Pending::NOTHING`] if none: the tag of an `Option` would cost every slot 8 bytes.
    pending: Pending,
    /// The request was answered completely before; pending responses are a repetition.
    answered: bool,
}

impl ReplaySlot {
    fn is_pending(&self) -> bool {
        self.pending != Pending::NOTHING
    }
}

/// Range of a kept request that a duplicate requests again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Duplicate {
    pub(crate) operation: Operation,
    pub(crate) psn: Psn,
    pub(crate) packets: u32,
    pub(crate) va: u64,
    pub(crate) key: MrKey,
    pub(crate) length: u32,
}

/// Memory for the requests that a queue pair keeps. The code that modifies the queue pair allocates
/// it, because the thread that runs the queue pair does not allocate.
#[derive(Debug, Default)]
pub struct ReplayMemory(Vec<ReplaySlot>);

impl ReplayMemory {
    /// The most that a queue pair may have, bytes.
    pub(crate) const BYTES_MAX: u64 = DEPTH_MAX as u64 * size_of::<ReplaySlot>() as u64;

    /// Memory that a queue pair needs for a change of these attributes: none if the change does not
    /// set the number of requests answered at a time.
    pub fn for_change(mask: u32, attributes: &QpAttributes) -> Self {
        let depth = if mask & attribute::MAX_DEST_RD_ATOMIC == 0 { 0 } else { attributes.max_dest_rd_atomic };
        Self(Vec::with_capacity(depth.min(DEPTH_MAX) as usize))
    }
}

/// The replay ring.
#[derive(Debug)]
pub(crate) struct Replay {
    /// Filled from the front, up to `depth`.
    slots: Vec<ReplaySlot>,
    depth: usize,
    /// Maximum number of requests that may wait for their answer: `depth`, or fewer after a
    /// reduction while answers are still owed.
    allowed: usize,
    /// Number of requests ever accepted; request `n` is at `n % depth` while it is kept.
    count: usize,
    pending: u32,
    /// No request before this number has responses to be sent.
    first: usize,
}

impl Replay {
    /// Creates an empty ring that keeps nothing until [`Self::reset`] sets a depth.
    pub(crate) fn new() -> Self {
        Self { slots: Vec::new(), depth: 0, allowed: 0, count: 0, pending: 0, first: 0 }
    }

    /// Takes `memory` if it is larger than the present memory; returns the smaller one. Keeps all
    /// requests.
    pub(crate) fn provide(&mut self, memory: ReplayMemory) -> ReplayMemory {
        let ReplayMemory(mut slots) = memory;
        if slots.capacity() > self.slots.capacity() {
            slots.append(&mut self.slots);
            core::mem::swap(&mut self.slots, &mut slots);
        }
        ReplayMemory(slots)
    }

    /// Forgets all requests and sets the depth, in memory that was provided; allocates memory if
    /// that is too small.
    pub(crate) fn reset(&mut self, depth: u32) {
        (self.depth, self.count, self.pending, self.first) = (depth.min(DEPTH_MAX) as usize, 0, 0, 0);
        self.allowed = self.depth;
        self.slots.clear();
        self.slots.reserve_exact(self.depth);
    }

    /// Sets the depth and keeps the newest requests, and more as long as the oldest of them is owed
    /// an answer. Memory as for [`Self::reset`].
    pub(crate) fn resize(&mut self, depth: u32) {
        // Filled from the front, then used as a ring: the oldest request lies where the next one
        // goes.
        if self.slots.len() == self.depth && self.depth > 0 {
            self.slots.rotate_left(self.count % self.depth);
        }
        let owed = self.slots.iter().position(ReplaySlot::is_pending).map_or(0, |oldest| self.slots.len() - oldest);
        self.allowed = depth.min(DEPTH_MAX) as usize;
        let depth = self.allowed.max(owed);
        self.slots.drain(..self.slots.len().saturating_sub(depth));
        self.slots.reserve_exact(depth.saturating_sub(self.slots.len()));
        (self.depth, self.count, self.first) = (depth, self.slots.len(), 0);
        self.pending = self.slots.iter().filter(|slot| slot.is_pending()).count() as u32;
    }

    /// Drops all pending responses.
    pub(crate) fn forget_pending(&mut self) {
        self.slots.iter_mut().for_each(|slot| slot.pending = Pending::NOTHING);
        self.pending = 0;
    }

    /// [`Self::push`] would accept a request: fewer than allowed wait for their answer.
    pub(crate) fn has_room(&self) -> bool {
        if self.allowed < self.depth {
            let waits = |slot: &&ReplaySlot| slot.is_pending() && !slot.answered;
            return self.slots.iter().filter(waits).count() < self.allowed;
        }
        let next = self.count.checked_rem(self.depth);
        next.is_some_and(|at| self.slots.get(at).is_none_or(|slot| !slot.is_pending() || slot.answered))
    }

    /// Accepts a request; false if as many others as allowed are not answered yet. A repetition in
    /// progress is replaced: the requester has its responses, or it would not request more.
    pub(crate) fn push(&mut self, request: ReplayedRequest) -> bool {
        if !self.has_room() {
            return false;
        }
        let pending = Pending { start: 0, next: 0, end: request.packets };
        let new = ReplaySlot { request, pending, answered: false };
        match self.slots.get_mut(self.count % self.depth) {
            Some(slot) => {
                self.pending -= u32::from(slot.is_pending());
                *slot = new;
            }
            None => self.slots.push(new),
        }
        if self.pending == 0 {
            self.first = self.count;
        }
        self.count += 1;
        self.pending += 1;
        true
    }

    /// Answers a duplicate again; false if it matches no kept request.
    pub(crate) fn replay(&mut self, duplicate: &Duplicate, mtu: usize) -> bool {
        // Newest first: PSNs repeat after 2^24 packets, and requests of an earlier pass may still
        // be here.
        let Some(number) = self.kept().rev().find(|number| self.slot(*number).request.covers(duplicate, mtu)) else {
            return false;
        };
        let slot = &mut self.slots[number % self.depth];
        let start = duplicate.psn.offset_from(slot.request.first_psn);
        let end = start + duplicate.packets;
        if !slot.is_pending() {
            slot.pending = Pending { start, next: start, end };
            self.first = if self.pending == 0 { number } else { self.first.min(number) };
            self.pending += 1;
            return true;
        }
        // The range of an earlier duplicate is answered as well: one answer for both, including the
        // responses between them.
        let pending = &mut slot.pending;
        pending.end = pending.end.max(end);
        if start <= pending.next {
            (pending.start, pending.next) = (start, start);
        } else if pending.next != pending.start {
            pending.start = start;
        }
        true
    }

    /// Oldest request with responses to be sent.
    pub(crate) fn front(&self) -> Option<(ReplayedRequest, Pending)> {
        let slot = self.slot(self.front_number()?);
        slot.is_pending().then_some((slot.request, slot.pending))
    }

    /// Requests with responses to be sent, oldest first, and whether each was answered completely
    /// before.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = (ReplayedRequest, bool)> {
        let waiting = self.kept().map(|number| self.slot(number)).filter(|slot| slot.is_pending());
        waiting.map(|slot| (slot.request, slot.answered))
    }

    /// Notes that one response of [`Self::front`] was sent.
    pub(crate) fn advance(&mut self) {
        let Some(number) = self.front_number() else { return };
        self.first = number;
        let slot = &mut self.slots[number % self.depth];
        if slot.is_pending() {
            slot.pending.next += 1;
            if slot.pending.next == slot.pending.end {
                slot.pending = Pending::NOTHING;
                slot.answered = true;
                self.pending -= 1;
                self.first += 1;
            }
        }
    }

    /// A request waits for its first answer, or for the rest of it.
    pub(crate) fn owes_first_answer(&self) -> bool {
        self.pending > 0 && self.slots.iter().any(|slot| slot.is_pending() && !slot.answered)
    }

    /// Ends the answer to [`Self::front`] if it is a repetition: its request was answered
    /// completely before. False if it was not.
    pub(crate) fn give_up_repetition(&mut self) -> bool {
        let Some(number) = self.front_number() else { return false };
        let slot = &mut self.slots[number % self.depth];
        if slot.answered {
            slot.pending = Pending::NOTHING;
            self.pending -= 1;
        }
        slot.answered
    }

    fn front_number(&self) -> Option<usize> {
        if self.pending == 0 {
            return None;
        }
        (self.first.max(self.kept().start)..self.count).find(|number| self.slot(*number).is_pending())
    }

    fn slot(&self, number: usize) -> &ReplaySlot {
        &self.slots[number % self.depth]
    }

    /// Numbers of the kept requests, oldest first.
    const fn kept(&self) -> Range<usize> {
        self.count.saturating_sub(self.depth)..self.count
    }
}

impl ReplayedRequest {
    /// The operation is answered by an ATOMIC ACK.
    pub(crate) const fn is_atomic(&self) -> bool {
        matches!(self.operation, Operation::CompareSwap | Operation::FetchAdd)
    }

    /// The duplicate requests a part of this very request: same operation and key, and an address
    /// that matches its PSN (IBTA v1 C9-107). The part ends with a packet of this request. A
    /// duplicate that ends within a packet belongs to an earlier life, and its answer would end the
    /// READ of this life too soon.
    fn covers(&self, duplicate: &Duplicate, mtu: usize) -> bool {
        let skip = duplicate.psn.offset_from(self.first_psn);
        let Some(bytes) = u64::from(skip).checked_mul(mtu as u64) else {
            return false;
        };
        skip < self.packets
            && duplicate.operation == self.operation
            && duplicate.packets <= self.packets - skip
            && duplicate.key == self.key
            && duplicate.va == self.va.wrapping_add(bytes)
            && u64::from(duplicate.length)
                == (u64::from(duplicate.packets) * mtu as u64).min(u64::from(self.length) - bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MTU: usize = 1024;

    fn request(psn: u32, packets: u32) -> ReplayedRequest {
        ReplayedRequest {
            operation: Operation::ReadRequest,
            first_psn: Psn::new(psn),
            packets,
            va: 0x1000,
            key: MrKey(5),
            length: packets * MTU as u32,
            msn: 1,
            original: 0,
        }
    }

    fn duplicate(psn: u32, packets: u32, skip: u64) -> Duplicate {
        Duplicate {
            operation: Operation::ReadRequest,
            psn: Psn::new(psn),
            packets,
            va: 0x1000 + skip * MTU as u64,
            key: MrKey(5),
            length: packets * MTU as u32,
        }
    }

    #[test]
    fn an_answered_request_is_answered_again_from_its_middle() {
        let mut replay = Replay::new();
        replay.reset(1);
        assert!(replay.push(request(0x00ff_fffe, 4)));
        for _ in 0..4 {
            replay.advance();
        }
        assert!(replay.front().is_none());
        assert!(replay.replay(&duplicate(0, 2, 2), MTU));
        assert_eq!(replay.front().expect("pending").1, Pending { start: 2, next: 2, end: 4 });
    }

    #[test]
    fn a_repetition_of_an_unknown_request_is_not_answered() {
        let mut replay = Replay::new();
        replay.reset(2);
        assert!(replay.push(request(100, 4)));
        assert!(!replay.replay(&duplicate(99, 1, 0), MTU));
        assert!(!replay.replay(&duplicate(104, 1, 4), MTU));
        assert!(!replay.replay(&duplicate(101, 4, 1), MTU));
        assert!(!replay.replay(&duplicate(101, 1, 2), MTU));
        assert!(!replay.replay(&Duplicate { key: MrKey(6), ..duplicate(101, 1, 1) }, MTU));
        assert!(replay.replay(&duplicate(101, 3, 1), MTU));
    }

    #[test]
    fn more_than_the_depth_at_a_time_is_refused() {
        let mut replay = Replay::new();
        replay.reset(2);
        assert!(replay.push(request(0, 1)) && replay.push(request(1, 1)));
        assert!(!replay.push(request(2, 1)));
        replay.advance();
        assert!(replay.push(request(2, 1)));
        assert!(!replay.replay(&duplicate(0, 1, 0), MTU), "the oldest gave up its place");
    }

    /// The requester asks again, the first answer arrives after all, and it sends another request.
    #[test]
    fn a_repetition_under_way_gives_way_to_a_new_request() {
        let mut replay = Replay::new();
        replay.reset(1);
        assert!(replay.push(request(0, 2)));
        assert!(!replay.push(request(2, 2)), "not answered yet");
        replay.advance();
        replay.advance();
        assert!(replay.replay(&duplicate(0, 2, 0), MTU));
        assert!(replay.push(request(2, 2)));
        assert_eq!(replay.front().expect("the new one").0.first_psn, Psn::new(2));
        replay.advance();
        replay.advance();
        assert!(replay.front().is_none());
    }

    #[test]
    fn a_duplicate_of_the_answer_under_way_begins_it_anew() {
        let mut replay = Replay::new();
        replay.reset(2);
        assert!(replay.push(request(0, 8)));
        for _ in 0..5 {
            replay.advance();
        }
        assert!(replay.replay(&duplicate(6, 2, 6), MTU));
        assert_eq!(replay.front().expect("pending").1, Pending { start: 6, next: 5, end: 8 });
        assert!(replay.replay(&duplicate(2, 6, 2), MTU));
        assert_eq!(replay.front().expect("pending").1, Pending { start: 2, next: 2, end: 8 });
    }

    #[test]
    fn a_repetition_must_have_the_operation_of_the_original() {
        let fetch_add =
            |psn, original| ReplayedRequest { operation: Operation::FetchAdd, length: 8, original, ..request(psn, 1) };
        let again = Duplicate { operation: Operation::FetchAdd, length: 8, ..duplicate(7, 1, 0) };
        let mut replay = Replay::new();
        replay.reset(3);
        assert!(replay.push(fetch_add(7, 1)));
        replay.advance();
        for other in [Operation::ReadRequest, Operation::CompareSwap] {
            assert!(!replay.replay(&Duplicate { operation: other, ..again }, MTU), "{other:?}");
        }
        // 2^24 packets later another request has the same PSN.
        assert!(replay.push(fetch_add(7, 2)));
        replay.advance();
        assert!(replay.replay(&again, MTU));
        assert_eq!(replay.front().map(|(request, _)| request.original), Some(2), "the newer one");
    }

    #[test]
    fn another_depth_keeps_the_newest() {
        for (before, pushed, after) in
            [(4, 3, 2), (4, 4, 8), (4, 7, 3), (4, 9, 4), (4, 6, 1), (4, 0, 2), (0, 0, 2), (4, 6, 0)]
        {
            let mut replay = Replay::new();
            replay.reset(before);
            for psn in 0..pushed {
                assert!(replay.push(request(psn, 1)));
                replay.advance();
            }
            replay.resize(after);
            for psn in 0..pushed {
                let kept = psn + before.min(after).min(pushed) >= pushed;
                assert_eq!(replay.replay(&duplicate(psn, 1, 0), MTU), kept, "{psn} of {pushed}, {before} to {after}");
            }
            while replay.front().is_some() {
                replay.advance();
            }
            for psn in pushed..pushed + 3 * after {
                assert!(replay.push(request(psn, 1)));
                replay.advance();
                let oldest = (psn + 1).saturating_sub(after);
                assert!((oldest.max(pushed)..=psn).all(|psn| replay.replay(&duplicate(psn, 1, 0), MTU)));
                while replay.front().is_some() {
                    replay.advance();
                }
            }
        }
    }

    /// Four requests wait for their answer when the limit becomes two: all are answered, and others
    /// are accepted once fewer than two wait.
    #[test]
    fn a_smaller_depth_forgets_no_answer_that_is_owed() {
        for answered in 0..=3 {
            let mut replay = Replay::new();
            replay.reset(4);
            for psn in 0..6 {
                assert!(replay.push(request(psn, 1)));
                if psn < 2 + answered {
                    replay.advance();
                }
            }
            replay.resize(2);
            let mut waiting = 4 - answered;
            for psn in 6 - waiting..6 {
                assert_eq!(replay.has_room(), waiting < 2, "{waiting} wait");
                assert_eq!(replay.front().map(|(request, _)| request.first_psn), Some(Psn::new(psn)));
                replay.advance();
                waiting -= 1;
            }
            assert!(replay.push(request(6, 1)) && replay.push(request(7, 1)) && !replay.push(request(8, 1)));
            assert!(replay.replay(&duplicate(6, 1, 0), MTU));
        }
    }

    #[test]
    fn memory_that_was_provided_is_used_and_the_rest_comes_back() {
        let depth = |depth| ReplayMemory(Vec::with_capacity(depth));
        let mut replay = Replay::new();
        assert_eq!(replay.provide(depth(4)).0.capacity(), 0);
        let provided = replay.slots.as_ptr();
        replay.reset(4);
        assert!((0..4).all(|psn| replay.push(request(psn, 1))) && !replay.push(request(4, 1)));
        assert_eq!(replay.slots.as_ptr(), provided, "nothing was allocated");
        assert_eq!(replay.provide(depth(3)).0.capacity(), 3, "it has more");
        assert_eq!(replay.provide(depth(8)).0.capacity(), 4);
        assert!(replay.replay(&duplicate(2, 1, 0), MTU), "nothing is forgotten");
    }

    #[test]
    fn only_a_change_of_the_number_brings_memory() {
        let attributes = QpAttributes { max_dest_rd_atomic: 16, ..QpAttributes::default() };
        let room = |mask| ReplayMemory::for_change(mask, &attributes).0.capacity();
        assert_eq!((room(attribute::MAX_DEST_RD_ATOMIC | attribute::AV), room(attribute::AV)), (16, 0));
        let absurd = QpAttributes { max_dest_rd_atomic: u32::MAX, ..attributes };
        let most = ReplayMemory::for_change(attribute::MAX_DEST_RD_ATOMIC, &absurd).0.capacity();
        assert_eq!(most, DEPTH_MAX as usize);
    }

    /// A slot has 56 bytes; a queue pair has up to 128 slots.
    #[test]
    fn a_slot_is_as_small_as_it_was_promised() {
        assert_eq!(size_of::<ReplaySlot>(), 56);
    }

    #[test]
    fn duplicates_of_parts_are_answered_together() {
        let mut replay = Replay::new();
        replay.reset(1);
        assert!(replay.push(request(0, 8)));
        (0..8).for_each(|_| replay.advance());
        let part = |psn, packets| duplicate(psn, packets, u64::from(psn));
        let pending = |replay: &Replay| replay.front().map(|(_, pending)| pending).expect("pending");
        assert!(replay.replay(&part(2, 2), MTU));
        assert_eq!(pending(&replay), Pending { start: 2, next: 2, end: 4 });
        assert!(replay.replay(&part(6, 1), MTU));
        assert_eq!(pending(&replay), Pending { start: 2, next: 2, end: 7 });
        replay.advance();
        assert!(replay.replay(&part(5, 1), MTU));
        assert_eq!(pending(&replay), Pending { start: 5, next: 3, end: 7 });
    }

    /// For any sequence of requests, the front is the oldest request with responses to be sent, as
    /// a scan of all requests finds it.
    #[test]
    fn the_front_is_the_oldest_that_waits() {
        let mut replay = Replay::new();
        replay.reset(5);
        let (mut psn, mut seed) = (0, 1u32);
        for _ in 0..10_000 {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            match seed >> 16 & 3 {
                0 if replay.push(request(psn, 2)) => psn += 2,
                1 => _ = replay.replay(&duplicate((psn.saturating_sub(seed >> 20 & 15)) & !1, 2, 0), MTU),
                _ => replay.advance(),
            }
            let slots = replay.kept().map(|number| replay.slot(number));
            let oldest = slots.clone().find(|slot| slot.is_pending()).map(|slot| slot.request.first_psn);
            assert_eq!(replay.front().map(|(request, _)| request.first_psn), oldest);
            assert_eq!(slots.filter(|slot| slot.is_pending()).count(), replay.pending as usize);
        }
    }
}
