//! The receive queue: buffers that wait for messages, in order.

use alloc::{boxed::Box, vec};

use roced_shared::abi::{layout::QpSizes, wqe::Sge};

use crate::work::RecvWork;

#[derive(Clone, Copy, Debug, Default)]
struct RecvEntry {
    wr_id: u64,
    sges: u8,
}

/// A ring of receive work; its memory is made with the queue pair.
#[derive(Debug)]
pub(crate) struct RecvQueue {
    entries: Box<[RecvEntry]>,
    sges: Box<[Sge]>,
    sges_per_entry: usize,
    head: u32,
    tail: u32,
}

impl RecvQueue {
    /// An empty queue of granted sizes.
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

    pub(crate) const fn room(&self) -> u32 {
        self.entries.len() as u32 - self.tail.wrapping_sub(self.head)
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    /// Appends checked work.
    ///
    /// # Panics
    /// When there is no room: the caller asked [`Self::room`].
    pub(crate) fn push(&mut self, work: &RecvWork<'_>) {
        assert!(self.room() > 0, "work is posted only into room");
        let slot = self.slot(self.tail);
        self.sges[slot * self.sges_per_entry..][..work.sges.len()].copy_from_slice(work.sges);
        self.entries[slot] = RecvEntry { wr_id: work.wr_id, sges: work.sges.len() as u8 };
        self.tail = self.tail.wrapping_add(1);
    }

    /// The buffers of the oldest entry.
    pub(crate) fn front(&self) -> Option<&[Sge]> {
        if self.is_empty() {
            return None;
        }
        let slot = self.slot(self.head);
        Some(&self.sges[slot * self.sges_per_entry..][..self.entries[slot].sges.into()])
    }

    /// Removes the oldest entry and gives its `wr_id`.
    pub(crate) fn pop(&mut self) -> Option<u64> {
        if self.is_empty() {
            return None;
        }
        let wr_id = self.entries[self.slot(self.head)].wr_id;
        self.head = self.head.wrapping_add(1);
        Some(wr_id)
    }

    /// Removes all.
    pub(crate) fn clear(&mut self) {
        self.head = self.tail;
    }

    const fn slot(&self, position: u32) -> usize {
        position as usize & (self.entries.len() - 1)
    }
}
