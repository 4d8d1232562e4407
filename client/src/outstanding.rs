//! Outstanding work requests, recorded in memory that only this process can change.
//!
//! The daemon receives a number of this library, the [`Cookie`], as `wr_id`; the `wr_id` of the
//! program is restored from this record. Each completion is matched to exactly its request, an
//! unsignaled request is known to be done when a later request completes, and the outstanding work
//! is known when the daemon dies.
//!
//! ```text
//!            oldest                next
//!   ids  ...  | a  b  c  d  e  f   |  ...      posted under the lock of the queue,
//!                      ^                       reaped under the lock of the completion queue
//!                      completion of d: a to d are done
//! ```

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Queue of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queue {
    Send,
    Recv,
}

/// Value passed to the daemon as `wr_id`: `queue:1 | tag:31 | sequence:32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cookie(pub(crate) u64);

impl Cookie {
    pub(crate) fn new(queue: Queue, tag: u32, sequence: u32) -> Self {
        Self(u64::from(queue == Queue::Recv) << 63 | u64::from(tag & 0x7fff_ffff) << 32 | u64::from(sequence))
    }

    pub(crate) fn queue(self) -> Queue {
        if self.0 >> 63 == 1 { Queue::Recv } else { Queue::Send }
    }

    pub(crate) fn tag(self) -> u32 {
        (self.0 >> 32) as u32 & 0x7fff_ffff
    }

    pub(crate) fn sequence(self) -> u32 {
        self.0 as u32
    }
}

/// Outstanding work of one queue.
#[derive(Debug)]
pub(crate) struct Outstanding {
    /// For each slot, the program's `wr_id` and the operation byte.
    slots: Box<[(AtomicU64, AtomicU32)]>,
    /// Sequence number of the next request.
    next: AtomicU32,
    /// Sequence number of the oldest request that has not completed.
    oldest: AtomicU32,
}

impl Outstanding {
    /// Creates a record for `depth` requests, a power of two.
    pub(crate) fn new(depth: u32) -> Self {
        assert!(depth.is_power_of_two(), "granted sizes are powers of two");
        let slots = (0..depth).map(|_| Default::default()).collect();
        Self { slots, next: AtomicU32::new(0), oldest: AtomicU32::new(0) }
    }

    pub(crate) fn depth(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Number of outstanding requests.
    pub(crate) fn len(&self) -> u32 {
        let oldest = self.oldest.load(Ordering::Acquire);
        self.next.load(Ordering::Acquire).wrapping_sub(oldest)
    }

    /// Sequence number that [`Self::add`] will return; `None` if there is no room.
    pub(crate) fn next_sequence(&self) -> Option<u32> {
        (self.len() < self.depth()).then(|| self.next.load(Ordering::Relaxed))
    }

    /// Records a request and returns its sequence number; `None` if there is no room. One poster at
    /// a time.
    pub(crate) fn add(&self, wr_id: u64, operation: u8) -> Option<u32> {
        let next = self.next_sequence()?;
        let (id, op) = self.slot(next);
        id.store(wr_id, Ordering::Relaxed);
        op.store(operation.into(), Ordering::Relaxed);
        self.next.store(next.wrapping_add(1), Ordering::Release);
        Some(next)
    }

    /// True if the request `sequence` is outstanding. One reaper at a time.
    pub(crate) fn holds(&self, sequence: u32) -> bool {
        let oldest = self.oldest.load(Ordering::Relaxed);
        sequence.wrapping_sub(oldest) < self.next.load(Ordering::Acquire).wrapping_sub(oldest)
    }

    /// Completes the request `sequence` and all before it, and returns its `wr_id` and operation.
    /// `None` if it is not outstanding. One reaper at a time.
    pub(crate) fn complete(&self, sequence: u32) -> Option<(u64, u8)> {
        if !self.holds(sequence) {
            return None;
        }
        let (id, op) = self.slot(sequence);
        let request = (id.load(Ordering::Relaxed), op.load(Ordering::Relaxed) as u8);
        self.oldest.store(sequence.wrapping_add(1), Ordering::Release);
        Some(request)
    }

    /// Takes the oldest request, if its completion will never arrive.
    pub(crate) fn give_up(&self) -> Option<(u64, u8)> {
        self.complete(self.oldest.load(Ordering::Relaxed))
    }

    /// Removes the last `requests` requests, which the daemon has not seen. One poster at a time.
    pub(crate) fn take_back(&self, requests: u32) {
        // If the daemon is gone, a reaper may have given up some of them.
        let requests = requests.min(self.len());
        self.next.store(self.next.load(Ordering::Relaxed).wrapping_sub(requests), Ordering::Release);
    }

    /// Removes all requests, after a reset of the queue pair.
    pub(crate) fn clear(&self) {
        self.oldest.store(self.next.load(Ordering::Acquire), Ordering::Release);
    }

    fn slot(&self, sequence: u32) -> &(AtomicU64, AtomicU32) {
        &self.slots[(sequence & (self.depth() - 1)) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_completion_frees_all_before_it_and_an_unknown_one_none() {
        let queue = Outstanding::new(4);
        for wr_id in 10..14 {
            assert_eq!(queue.add(wr_id, 1), Some(wr_id as u32 - 10));
        }
        assert_eq!(queue.add(14, 1), None, "four fit");
        assert_eq!([0, 3, 4, u32::MAX].map(|sequence| queue.holds(sequence)), [true, true, false, false]);
        assert_eq!(queue.complete(4), None, "never posted");
        assert_eq!(queue.complete(2), Some((12, 1)));
        assert_eq!(queue.len(), 1);
        assert_eq!(queue.complete(2), None, "completed before");
        assert_eq!(queue.complete(1), None, "done when 2 was");
        assert_eq!((queue.give_up(), queue.give_up()), (Some((13, 1)), None));
    }

    #[test]
    fn entries_taken_back_are_never_seen() {
        let queue = Outstanding::new(4);
        for wr_id in 10..14 {
            queue.add(wr_id, 1);
        }
        assert_eq!(queue.complete(0), Some((10, 1)));
        queue.take_back(2);
        assert_eq!((queue.len(), queue.complete(2)), (1, None));
        assert_eq!((queue.add(20, 2), queue.complete(2)), (Some(2), Some((20, 2))));
        queue.take_back(1);
        assert_eq!(queue.len(), 0, "nothing is left to take back");
    }

    #[test]
    fn sequence_numbers_wrap() {
        let queue = Outstanding::new(2);
        queue.next.store(u32::MAX, Ordering::Relaxed);
        queue.oldest.store(u32::MAX, Ordering::Relaxed);
        assert_eq!((queue.add(1, 0), queue.add(2, 0), queue.add(3, 0)), (Some(u32::MAX), Some(0), None));
        assert_eq!(queue.complete(0), Some((2, 0)));
        assert_eq!(queue.len(), 0);
    }

    #[test]
    fn a_cookie_keeps_its_parts() {
        let cookie = Cookie::new(Queue::Recv, 0x7fff_ffff, 0xffff_fffe);
        assert_eq!((cookie.queue(), cookie.tag(), cookie.sequence()), (Queue::Recv, 0x7fff_ffff, 0xffff_fffe));
        assert_eq!(Cookie::new(Queue::Send, 0x8000_0001, 0).tag(), 1);
        assert_eq!(Cookie::new(Queue::Send, 1, 0).queue(), Queue::Send);
    }
}
