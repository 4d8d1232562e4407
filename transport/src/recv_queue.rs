//! The receive queue: buffers that wait for messages, in order.

use alloc::{boxed::Box, vec};

use roced_types::{QpSizes, Sge};

use crate::work::RecvWork;

#[derive(Clone, Copy, Debug, Default)]
struct RecvEntry {
    wr_id: u64,
    sges: u8,
}

/// Ring of receive work, allocated with the queue pair or the shared receive queue.
#[derive(Debug)]
pub(crate) struct RecvQueue {
    entries: Box<[RecvEntry]>,
    sges: Box<[Sge]>,
    sges_per_entry: usize,
    head: u32,
    tail: u32,
}

impl RecvQueue {
    /// Creates an empty queue of granted sizes.
    pub(crate) fn new(sizes: &QpSizes) -> Self {
        let entries = sizes.recv_wrs as usize;
        assert!(entries.is_power_of_two(), "granted sizes are powers of two");
        Self {
            entries: vec![RecvEntry::default(); entries].into_boxed_slice(),
            sges: vec![Sge::default(); entries * sizes.recv_sges as usize].into_boxed_slice(),
            sges_per_entry: sizes.recv_sges as usize,
            head: 0,
            tail: 0,
        }
    }

    /// Memory that a queue of granted sizes allocates, bytes.
    pub(crate) const fn memory_bytes(sizes: &QpSizes) -> u64 {
        let entry = size_of::<RecvEntry>() as u64 + sizes.recv_sges as u64 * size_of::<Sge>() as u64;
        sizes.recv_wrs as u64 * entry
    }

    pub(crate) const fn len(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }

    pub(crate) const fn room(&self) -> u32 {
        self.entries.len() as u32 - self.len()
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    /// Appends checked work.
    ///
    /// # Panics
    /// If there is no room; callers check [`Self::room`].
    pub(crate) fn push(&mut self, work: &RecvWork<'_>) {
        assert!(self.room() > 0, "work is posted only into room");
        let slot = self.slot(self.tail);
        self.sges[slot * self.sges_per_entry..][..work.sges.len()].copy_from_slice(work.sges);
        self.entries[slot] = RecvEntry { wr_id: work.wr_id, sges: work.sges.len() as u8 };
        self.tail = self.tail.wrapping_add(1);
    }

    /// Buffers of the oldest entry.
    pub(crate) fn front(&self) -> Option<&[Sge]> {
        if self.is_empty() {
            return None;
        }
        let slot = self.slot(self.head);
        Some(&self.sges[slot * self.sges_per_entry..][..self.entries[slot].sges.into()])
    }

    /// Removes the oldest entry and returns its `wr_id`.
    pub(crate) fn pop(&mut self) -> Option<u64> {
        if self.is_empty() {
            return None;
        }
        let wr_id = self.entries[self.slot(self.head)].wr_id;
        self.head = self.head.wrapping_add(1);
        Some(wr_id)
    }

    /// Moves the oldest entry to the end of `to`, which has room; false if the queue is empty.
    pub(crate) fn move_oldest(&mut self, to: &mut Self) -> bool {
        let Some(sges) = self.front() else { return false };
        to.push(&RecvWork { wr_id: self.entries[self.slot(self.head)].wr_id, sges });
        self.head = self.head.wrapping_add(1);
        true
    }

    /// Moves the oldest entry of `from` to the front, if there is an entry and room for it.
    pub(crate) fn put_back(&mut self, from: &mut Self) {
        if self.room() == 0 || from.is_empty() {
            return;
        }
        // Append to the slot before the oldest, as if it were the last.
        let tail = self.tail;
        self.head = self.head.wrapping_sub(1);
        self.tail = self.head;
        from.move_oldest(self);
        self.tail = tail;
    }

    /// Removes all entries.
    pub(crate) fn clear(&mut self) {
        self.head = self.tail;
    }

    const fn slot(&self, position: u32) -> usize {
        position as usize & (self.entries.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(wrs: u32) -> RecvQueue {
        RecvQueue::new(&QpSizes { send_wrs: 1, recv_wrs: wrs, send_sges: 1, recv_sges: 2, inline_bytes: 0 })
    }

    fn ids(queue: &mut RecvQueue) -> vec::Vec<u64> {
        core::iter::from_fn(|| queue.pop()).collect()
    }

    #[test]
    fn an_entry_moves_whole_and_comes_back_before_the_others() {
        let (mut shared, mut own) = (queue(2), queue(1));
        let sges = [Sge { va: 1, length: 2, lkey: 3 }, Sge { va: 4, length: 5, lkey: 6 }];
        shared.push(&RecvWork { wr_id: 10, sges: &sges });
        shared.push(&RecvWork { wr_id: 11, sges: &[] });
        assert!(shared.move_oldest(&mut own));
        assert_eq!((own.front(), shared.len(), own.len()), (Some(&sges[..]), 1, 1));
        shared.put_back(&mut own);
        assert!(own.is_empty());
        assert_eq!((shared.front(), shared.room()), (Some(&sges[..]), 0));
        assert_eq!(ids(&mut shared), [10, 11]);
        assert!(!shared.move_oldest(&mut own));
    }

    #[test]
    fn an_entry_that_finds_its_place_taken_stays_where_it_is() {
        let (mut shared, mut own) = (queue(1), queue(1));
        shared.push(&RecvWork { wr_id: 10, sges: &[] });
        shared.move_oldest(&mut own);
        shared.put_back(&mut own);
        assert_eq!((shared.len(), own.len()), (1, 0), "an empty queue takes it");
        shared.move_oldest(&mut own);
        shared.push(&RecvWork { wr_id: 11, sges: &[] });
        shared.put_back(&mut own);
        assert_eq!((ids(&mut shared), ids(&mut own)), (vec![11], vec![10]));
    }
}
