//! READ requests that the responder keeps: those it answers now, and those it may have to answer again.
//!
//! A ring of `max_dest_rd_atomic` requests in PSN order. A new one takes the place of the oldest, which the requester has been
//! answered by then (or it broke its promise). A duplicate is answered from here, from any packet of the message on.

use alloc::{boxed::Box, vec};

use crate::{mr::MrKey, psn::Psn};

/// Most requests kept for one queue pair, so the most READs that a peer may have outstanding, and we. As many as the adapters
/// that we know of; more costs 56 bytes each in every queue pair.
pub const DEPTH_MAX: u32 = 16;

/// A READ request that was accepted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReadRequest {
    pub(crate) first_psn: Psn,
    pub(crate) packets: u32,
    pub(crate) va: u64,
    pub(crate) key: MrKey,
    pub(crate) length: u32,
    /// Message sequence number of its responses.
    pub(crate) msn: u32,
}

/// Responses still to be sent, as packet numbers within the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pending {
    /// The first of this answer: it is a FIRST or an ONLY.
    pub(crate) start: u32,
    /// The next to be sent.
    pub(crate) next: u32,
    /// Behind the last.
    pub(crate) end: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    request: ReadRequest,
    pending: Option<Pending>,
    /// It was answered to its end before; what is pending now is a repetition.
    answered: bool,
}

/// What a duplicate READ asks for, within a request that is kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Duplicate {
    pub(crate) psn: Psn,
    pub(crate) packets: u32,
    pub(crate) va: u64,
    pub(crate) key: MrKey,
    pub(crate) length: u32,
}

/// The ring.
#[derive(Debug)]
pub(crate) struct ReadReplay {
    slots: Box<[Slot]>,
    depth: usize,
    /// Requests ever accepted; the newest lies at `(count - 1) % depth`.
    count: usize,
    pending: u32,
}

impl ReadReplay {
    /// An empty ring that keeps nothing before [`Self::reset`] gave it a depth.
    pub(crate) fn new() -> Self {
        Self { slots: vec![Slot::default(); DEPTH_MAX as usize].into_boxed_slice(), depth: 0, count: 0, pending: 0 }
    }

    /// Forgets all and keeps `depth` requests from now on.
    pub(crate) fn reset(&mut self, depth: u32) {
        (self.depth, self.count, self.pending) = (depth.min(DEPTH_MAX) as usize, 0, 0);
    }

    /// Responses wait to be sent.
    pub(crate) const fn has_pending(&self) -> bool {
        self.pending > 0
    }

    /// Accepts a request; false when `depth` others were not answered yet. A repetition that is still under way gives way: the
    /// requester has the responses, or it would not ask for more.
    pub(crate) fn push(&mut self, request: ReadRequest) -> bool {
        if self.depth == 0 {
            return false;
        }
        let slot = &mut self.slots[self.count % self.depth];
        if self.count >= self.depth && slot.pending.is_some() {
            if !slot.answered {
                return false;
            }
            self.pending -= 1;
        }
        let pending = Some(Pending { start: 0, next: 0, end: request.packets });
        *slot = Slot { request, pending, answered: false };
        self.count += 1;
        self.pending += 1;
        true
    }

    /// Answers a duplicate again; false when it fits no request that is kept.
    pub(crate) fn replay(&mut self, duplicate: &Duplicate, mtu: usize) -> bool {
        let Some(at) = self.kept().find(|at| self.slots[*at].request.covers(duplicate, mtu)) else {
            return false;
        };
        let slot = &mut self.slots[at];
        let start = duplicate.psn.offset_from(slot.request.first_psn);
        let end = start + duplicate.packets;
        match &mut slot.pending {
            // What it asks for lies ahead in the answer that is under way.
            Some(pending) if pending.next <= start && end <= pending.end => {}
            Some(pending) => *pending = Pending { start, next: start, end: end.max(pending.end) },
            none => {
                *none = Some(Pending { start, next: start, end });
                self.pending += 1;
            }
        }
        true
    }

    /// The oldest request with responses to be sent.
    pub(crate) fn front(&self) -> Option<(ReadRequest, Pending)> {
        if self.pending == 0 {
            return None;
        }
        self.kept().find_map(|at| self.slots[at].pending.map(|pending| (self.slots[at].request, pending)))
    }

    /// One response of [`Self::front`] was sent.
    pub(crate) fn advance(&mut self) {
        let Some(at) = self.kept().find(|at| self.slots[*at].pending.is_some()) else {
            return;
        };
        let slot = &mut self.slots[at];
        if let Some(pending) = &mut slot.pending {
            pending.next += 1;
            if pending.next == pending.end {
                slot.pending = None;
                slot.answered = true;
                self.pending -= 1;
            }
        }
    }

    /// Places of the requests kept, oldest first.
    fn kept(&self) -> impl Iterator<Item = usize> + use<> {
        let (depth, count) = (self.depth, self.count);
        (count.saturating_sub(depth)..count).map(move |at| at % depth)
    }
}

impl ReadRequest {
    /// The duplicate asks for a part of this very request: same key, and its address is where its PSN says (IBTA v1 C9-107).
    fn covers(&self, duplicate: &Duplicate, mtu: usize) -> bool {
        let skip = duplicate.psn.offset_from(self.first_psn);
        let Some(bytes) = u64::from(skip).checked_mul(mtu as u64) else {
            return false;
        };
        skip < self.packets
            && duplicate.packets <= self.packets - skip
            && duplicate.key == self.key
            && duplicate.va == self.va.wrapping_add(bytes)
            && bytes + u64::from(duplicate.length) <= u64::from(self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MTU: usize = 1024;

    fn request(psn: u32, packets: u32) -> ReadRequest {
        ReadRequest {
            first_psn: Psn::new(psn),
            packets,
            va: 0x1000,
            key: MrKey(5),
            length: packets * MTU as u32,
            msn: 1,
        }
    }

    fn duplicate(psn: u32, packets: u32, skip: u64) -> Duplicate {
        Duplicate {
            psn: Psn::new(psn),
            packets,
            va: 0x1000 + skip * MTU as u64,
            key: MrKey(5),
            length: packets * MTU as u32,
        }
    }

    #[test]
    fn an_answered_request_is_answered_again_from_its_middle() {
        let mut replay = ReadReplay::new();
        replay.reset(1);
        assert!(replay.push(request(0x00ff_fffe, 4)));
        for _ in 0..4 {
            replay.advance();
        }
        assert!(!replay.has_pending());
        assert!(replay.replay(&duplicate(0, 2, 2), MTU));
        assert_eq!(replay.front().expect("pending").1, Pending { start: 2, next: 2, end: 4 });
    }

    #[test]
    fn what_was_not_asked_before_is_not_answered() {
        let mut replay = ReadReplay::new();
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
        let mut replay = ReadReplay::new();
        replay.reset(2);
        assert!(replay.push(request(0, 1)) && replay.push(request(1, 1)));
        assert!(!replay.push(request(2, 1)));
        replay.advance();
        assert!(replay.push(request(2, 1)));
        assert!(!replay.replay(&duplicate(0, 1, 0), MTU), "the oldest gave up its place");
    }

    /// The requester asked again, then the first answer came after all, and it asks for more.
    #[test]
    fn a_repetition_under_way_gives_way_to_a_new_request() {
        let mut replay = ReadReplay::new();
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
        assert!(!replay.has_pending());
    }

    #[test]
    fn a_duplicate_of_the_answer_under_way_begins_it_anew() {
        let mut replay = ReadReplay::new();
        replay.reset(2);
        assert!(replay.push(request(0, 8)));
        for _ in 0..5 {
            replay.advance();
        }
        assert!(replay.replay(&duplicate(6, 2, 6), MTU));
        assert_eq!(replay.front().expect("pending").1, Pending { start: 0, next: 5, end: 8 });
        assert!(replay.replay(&duplicate(2, 6, 2), MTU));
        assert_eq!(replay.front().expect("pending").1, Pending { start: 2, next: 2, end: 8 });
    }
}
