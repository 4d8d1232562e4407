//! One send work request, as the model knows it: its packets, the places of its bytes, its required
//! end.

use roced_transport::work::DatagramTo;

use crate::pattern::Pieces;

/// Operation of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Send,
    Write,
    Read,
    CompareSwap,
    FetchAdd,
    Flush,
    AtomicWrite,
    /// Takes no PSN.
    LocalInvalidate,
}

impl Kind {
    pub(crate) const fn is_atomic(self) -> bool {
        matches!(self, Self::CompareSwap | Self::FetchAdd)
    }

    /// Changes eight bytes at once.
    pub(crate) const fn is_of_a_word(self) -> bool {
        self.is_atomic() || matches!(self, Self::AtomicWrite)
    }

    /// Its answer puts something into memory.
    pub(crate) const fn brings(self) -> bool {
        self.is_atomic() || matches!(self, Self::Read)
    }

    /// Has an answer of its own; no ACK ends it.
    pub(crate) const fn wants_answer(self) -> bool {
        self.brings() || matches!(self, Self::Flush | Self::AtomicWrite)
    }
}

/// How a message must end, if the connection lives that long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Success,
    RemoteAccess,
    RemoteInvalid,
    LocalProtection,
    LocalLength,
    LocalOperation,
}

/// Data that a READ must bring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    /// The message's bytes in the sea.
    Sea,
    /// Words that count up, from this byte of the counting memory on.
    Counting(u32),
    /// The message's bytes in the sea, which the SEND before it puts into the receive of that
    /// index.
    Receive(u64),
    /// The word that the atomic operation just before it leaves.
    Word,
}

/// A send work request.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub(crate) wr_id: u64,
    /// A bit for each row of the table that it belongs to.
    pub(crate) rows: u64,
    pub(crate) kind: Kind,
    /// Of a datagram: where to.
    pub(crate) to: DatagramTo,
    pub(crate) imm: Option<[u8; 4]>,
    pub(crate) solicited: bool,
    pub(crate) signaled: bool,
    pub(crate) fenced: bool,
    pub(crate) inline: bool,
    /// Its bytes, in the sea.
    pub(crate) data: Pieces,
    pub(crate) length: u32,
    /// Of a READ.
    pub(crate) expected: Expected,
    /// Where a READ puts them, or an atomic operation its original value, in our sink.
    pub(crate) into: Pieces,
    /// Where a WRITE puts them, in the peer's sink.
    pub(crate) remote: u32,
    pub(crate) remote_va: u64,
    pub(crate) rkey: u32,
    /// It makes `rkey` open nothing any more; the responder has seen to that (of LOCAL_INV: our own
    /// side).
    pub(crate) invalidates: bool,
    pub(crate) invalidated: bool,
    pub(crate) lkey: u32,
    /// Its bytes are in memory that is used again; it was, and perhaps deregistered.
    pub(crate) reuses: bool,
    pub(crate) reused: Option<bool>,
    /// The last message of the peer that its application had when this was posted.
    pub(crate) tells: Option<u64>,
    /// Operands of an atomic operation, and the original value when it was executed.
    pub(crate) swap_or_add: u64,
    pub(crate) compare: u64,
    pub(crate) found: Option<u64>,
    pub(crate) outcome: Outcome,
    /// It may end with "remote access error": its key was taken back meanwhile.
    pub(crate) may_fail: bool,
    /// Its key is one that is taken back now and then: of this generation.
    pub(crate) generation: Option<u32>,
    /// Its key was taken back before it was posted.
    pub(crate) stale: bool,
    /// Bytes of it that may be written at all.
    pub(crate) writable: u32,
    /// PSN of its first packet, counted without end, and how many it takes.
    pub(crate) first: u64,
    pub(crate) packets: u32,
    pub(crate) posted_at: u64,
    /// Which receive it takes.
    pub(crate) recv: Option<u64>,
    /// The PSN behind the last READ or atomic operation before it.
    pub(crate) answered_until: u64,
}

impl Message {
    /// The PSN behind its last one.
    pub(crate) fn end(&self) -> u64 {
        self.first + u64::from(self.packets)
    }

    /// The word after an executed atomic operation.
    pub(crate) fn left(&self) -> Option<u64> {
        let found = self.found?;
        Some(match self.kind {
            Kind::FetchAdd => found.wrapping_add(self.swap_or_add),
            Kind::CompareSwap if found != self.compare => found,
            _ => self.swap_or_add,
        })
    }

    pub(crate) fn takes_receive(&self) -> bool {
        self.kind == Kind::Send || self.imm.is_some()
    }

    /// Its place in the opcode table of a reliable connection: packet `at` of `packets`.
    pub(crate) fn opcode(&self, at: u32) -> u8 {
        let (first, last) = (at == 0, at + 1 == self.packets);
        let base = match self.kind {
            Kind::Send => 0x00,
            Kind::Write => 0x06,
            Kind::Read => return 0x0c,
            Kind::CompareSwap => return 0x13,
            Kind::FetchAdd => return 0x14,
            Kind::Flush => return 0x1c,
            Kind::AtomicWrite => return 0x1d,
            // It has none, as no packet has all bits.
            Kind::LocalInvalidate => return 0xff,
        };
        if self.invalidates && last {
            return if first { 0x17 } else { 0x16 };
        }
        base + match (first, last, self.imm.is_some()) {
            (true, false, _) => 0,
            (false, false, _) => 1,
            (false, true, false) => 2,
            (false, true, true) => 3,
            (true, true, false) => 4,
            (true, true, true) => 5,
        }
    }
}
