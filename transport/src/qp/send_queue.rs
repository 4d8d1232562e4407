//! The send queue: work that was posted and is not complete. All its memory is allocated with the
//! queue pair.

use alloc::{boxed::Box, vec};

use roced_types::{QpSizes, Qpn, SendOp, Sge, send_flags};

use crate::{
    psn::Psn,
    work::{DatagramTo, SendWork, WorkData},
};

/// Longest message (IBTA v1 9.7.1: 2^31).
pub(crate) const MESSAGE_BYTES_MAX: u64 = 1 << 31;

/// One send work request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendEntry {
    pub(crate) wr_id: u64,
    pub(crate) op: SendOp,
    flags: u8,
    pub(crate) imm: [u8; 4],
    pub(crate) remote_va: u64,
    pub(crate) rkey: u32,
    pub(crate) swap_or_add: u64,
    pub(crate) compare: u64,
    sges: u8,
    length: u32,
    /// PSN of its first packet; set when that packet is first sent.
    pub(crate) first_psn: Psn,
    /// Number of its PSNs; set with `first_psn`.
    pub(crate) packets: u32,
}

impl SendEntry {
    const EMPTY: Self = Self {
        wr_id: 0,
        op: SendOp::Send,
        flags: 0,
        imm: [0; 4],
        remote_va: 0,
        rkey: 0,
        swap_or_add: 0,
        compare: 0,
        sges: 0,
        length: 0,
        first_psn: Psn::new(0),
        packets: 0,
    };

    /// Message length in bytes. A length above [`MESSAGE_BYTES_MAX`] fails when the entry is due to
    /// be sent.
    pub(crate) const fn length(&self) -> u64 {
        self.length as u64
    }

    /// Destination of a datagram. It is stored in place of the operands, which a SEND does not
    /// have.
    pub(crate) const fn to(&self) -> DatagramTo {
        DatagramTo {
            ah: (self.swap_or_add >> 32) as u32,
            qpn: Qpn::from_wire(self.swap_or_add as u32),
            qkey: self.compare as u32,
        }
    }

    /// Message number (SSN) of a message that takes a receive. It is stored in place of an operand,
    /// which such a message does not have.
    pub(crate) const fn ssn(&self) -> u32 {
        self.compare as u32
    }

    /// Sets [`Self::ssn`].
    pub(crate) const fn set_ssn(&mut self, ssn: u32) {
        self.compare = ssn as u64;
    }

    pub(crate) const fn is_fenced(&self) -> bool {
        self.flags & send_flags::FENCE != 0
    }

    pub(crate) const fn is_signaled(&self) -> bool {
        self.flags & send_flags::SIGNALED != 0
    }

    pub(crate) const fn is_solicited(&self) -> bool {
        self.flags & send_flags::SOLICITED != 0
    }

    pub(crate) const fn is_send(&self) -> bool {
        matches!(self.op, SendOp::Send | SendOp::SendImm | SendOp::SendInvalidate)
    }

    /// It takes a receive of the peer.
    pub(crate) const fn takes_receive(&self) -> bool {
        self.is_send() || matches!(self.op, SendOp::WriteImm)
    }

    pub(crate) const fn is_read(&self) -> bool {
        matches!(self.op, SendOp::Read)
    }

    pub(crate) const fn is_atomic(&self) -> bool {
        matches!(self.op, SendOp::CompareSwap | SendOp::FetchAdd)
    }

    /// A FLUSH or an atomic WRITE: answered by an empty READ response.
    pub(crate) const fn is_placement(&self) -> bool {
        matches!(self.op, SendOp::Flush | SendOp::AtomicWrite)
    }

    /// Local operation: sends nothing to the peer.
    pub(crate) const fn is_local(&self) -> bool {
        self.op.is_local()
    }

    /// It completes by an answer of its own; no ACK acknowledges it.
    pub(crate) const fn wants_answer(&self) -> bool {
        self.is_read() || self.is_atomic() || self.is_placement()
    }

    /// PSN after its last one.
    pub(crate) const fn end_psn(&self) -> Psn {
        self.first_psn.plus(self.packets)
    }
}

/// A ring of entries at ever-growing positions; `head..tail` are present.
#[derive(Debug)]
pub(crate) struct SendQueue {
    entries: Box<[SendEntry]>,
    sges: Box<[Sge]>,
    sges_per_entry: u32,
    inline: Box<[u8]>,
    inline_per_entry: u32,
    head: u32,
    tail: u32,
}

impl SendQueue {
    /// Creates an empty queue of granted sizes.
    pub(crate) fn new(sizes: &QpSizes) -> Self {
        let entries = sizes.send_wrs as usize;
        assert!(entries.is_power_of_two(), "granted sizes are powers of two");
        Self {
            entries: vec![SendEntry::EMPTY; entries].into_boxed_slice(),
            sges: vec![Sge::default(); entries * sizes.send_sges as usize].into_boxed_slice(),
            sges_per_entry: sizes.send_sges,
            inline: vec![0; entries * sizes.inline_bytes as usize].into_boxed_slice(),
            inline_per_entry: sizes.inline_bytes,
            head: 0,
            tail: 0,
        }
    }

    /// Memory that a queue of granted sizes allocates, bytes.
    pub(crate) const fn memory_bytes(sizes: &QpSizes) -> u64 {
        let entry = size_of::<SendEntry>() as u64
            + sizes.send_sges as u64 * size_of::<Sge>() as u64
            + sizes.inline_bytes as u64;
        sizes.send_wrs as u64 * entry
    }

    pub(crate) const fn room(&self) -> u32 {
        self.entries.len() as u32 - self.tail.wrapping_sub(self.head)
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    pub(crate) const fn head(&self) -> u32 {
        self.head
    }

    pub(crate) const fn tail(&self) -> u32 {
        self.tail
    }

    /// Appends checked work.
    ///
    /// # Panics
    /// If there is no room; callers check [`Self::room`].
    pub(crate) fn push(&mut self, work: &SendWork<'_>) {
        assert!(self.room() > 0, "work is posted only into room");
        let slot = self.slot(self.tail);
        let (sges, length) = match work.data {
            WorkData::Sges(sges) => {
                self.sges[slot * self.sges_per_entry as usize..][..sges.len()].copy_from_slice(sges);
                // Cannot overflow: 32 * 2^32.
                let bytes: u64 = sges.iter().map(|sge| u64::from(sge.length)).sum();
                // A larger length is too long, whichever it is.
                (sges.len() as u8, u32::try_from(bytes).unwrap_or(u32::MAX))
            }
            WorkData::Inline(bytes) => {
                self.inline[slot * self.inline_per_entry as usize..][..bytes.len()].copy_from_slice(bytes);
                (0, bytes.len() as u32)
            }
        };
        let (swap_or_add, compare) = match work.op {
            SendOp::Send | SendOp::SendImm => {
                (u64::from(work.to.ah) << 32 | u64::from(work.to.qpn.get()), work.to.qkey.into())
            }
            _ => (work.swap_or_add, work.compare),
        };
        self.entries[slot] = SendEntry {
            wr_id: work.wr_id,
            op: work.op,
            flags: work.flags,
            imm: work.imm,
            remote_va: work.remote_va,
            rkey: work.rkey,
            swap_or_add,
            compare,
            sges,
            length,
            first_psn: Psn::new(0),
            packets: 0,
        };
        self.tail = self.tail.wrapping_add(1);
    }

    /// The oldest entry, at [`Self::head`].
    pub(crate) fn oldest(&self) -> Option<&SendEntry> {
        if self.is_empty() { None } else { Some(self.entry(self.head)) }
    }

    /// The entry at `position`, `head <= position < tail`.
    pub(crate) fn entry(&self, position: u32) -> &SendEntry {
        debug_assert!(position.wrapping_sub(self.head) < self.tail.wrapping_sub(self.head));
        &self.entries[self.slot(position)]
    }

    pub(crate) fn entry_mut(&mut self, position: u32) -> &mut SendEntry {
        debug_assert!(position.wrapping_sub(self.head) < self.tail.wrapping_sub(self.head));
        let slot = self.slot(position);
        &mut self.entries[slot]
    }

    /// Data of the entry at `position`.
    pub(crate) fn data(&self, position: u32) -> WorkData<'_> {
        let slot = self.slot(position);
        let entry = &self.entries[slot];
        if entry.flags & send_flags::INLINE != 0 {
            WorkData::Inline(&self.inline[slot * self.inline_per_entry as usize..][..entry.length as usize])
        } else {
            WorkData::Sges(&self.sges[slot * self.sges_per_entry as usize..][..entry.sges.into()])
        }
    }

    /// Removes the oldest entry.
    pub(crate) fn pop(&mut self) -> Option<SendEntry> {
        if self.is_empty() {
            return None;
        }
        let entry = self.entries[self.slot(self.head)];
        self.head = self.head.wrapping_add(1);
        Some(entry)
    }

    /// Removes all entries.
    pub(crate) fn clear(&mut self) {
        self.head = self.tail;
    }

    const fn slot(&self, position: u32) -> usize {
        position as usize & (self.entries.len() - 1)
    }
}
