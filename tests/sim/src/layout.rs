//! Where things lie in a host's memory, and which keys open it.
//!
//! ```text
//!   source region   the host's half of the sea, never written
//!   sink region     for each slot (one queue pair at a time):
//!                   | WRITEs land here | written, then read back | receive buffers | READs land here | words for atomic operations |
//!   reused regions  source memory of a slot that its application uses again
//!   counting region  words that count up all the time; READs alone use it
//!   behind all slots: | buffers of the shared receive queue |
//! ```
//!
//! A slot has a key of its own over its part of the sink that is taken back now and then; each such
//! key opens a region of another number, so that the use of an old one is seen.

use roced_types::{MemoryObjectId, Pdn};

use crate::pattern::SOURCE_BYTES;

pub(crate) const PD: Pdn = Pdn(1);
pub(crate) const OTHER_PD: Pdn = Pdn(2);

pub(crate) const SOURCE: MemoryObjectId = MemoryObjectId(1);
pub(crate) const SINK: MemoryObjectId = MemoryObjectId(2);
/// Nothing ever opens it.
pub(crate) const FORBIDDEN: MemoryObjectId = MemoryObjectId(3);

/// Words that count up all the time.
pub(crate) const COUNTING: MemoryObjectId = MemoryObjectId(4);

pub(crate) const SOURCE_VA: u64 = 0x1000_0000;
pub(crate) const SINK_VA: u64 = 0x7000_0000;
pub(crate) const COUNTING_VA: u64 = 0x2000_0000;
pub(crate) const REUSE_VA: u64 = 0x3000_0000;

pub(crate) const SOURCE_KEY: u32 = 0x0050_0001;
pub(crate) const SINK_KEY: u32 = 0x0051_0002;
/// Opens the sink for reading only.
pub(crate) const READ_KEY: u32 = 0x0052_0003;
/// Of another protection domain.
pub(crate) const OTHER_PD_KEY: u32 = 0x0053_0004;
/// Opens the words that count up, for reading.
pub(crate) const COUNTING_KEY: u32 = 0x0054_0005;
/// An address handle of that domain. Those of the slots have the slots' numbers.
pub(crate) const OTHER_PD_AH: u32 = 7;
/// Address handles of a host.
pub(crate) const HANDLES: u32 = 8;
/// Opens nothing.
pub(crate) const NO_KEY: u32 = 0x0077_7701;

/// Source memory of a slot that its application uses again.
pub(crate) const REUSE_BYTES: u32 = 2 * RECV_BYTES;
pub(crate) const WRITE_BYTES: u32 = 64 << 10;
pub(crate) const BACK_BYTES: u32 = 40 << 10;
pub(crate) const RECV_SLOTS: u32 = 16;
pub(crate) const RECV_BYTES: u32 = 8 << 10;
/// Buffers of a host's shared receive queue, behind all slots.
pub(crate) const SHARED_BUFFERS: u32 = 32;
pub(crate) const READ_BYTES: u32 = 96 << 10;
pub(crate) const WORDS: u32 = 8;

/// Where the parts of a slot begin.
pub(crate) const BACK_AT: u32 = WRITE_BYTES;
pub(crate) const RECV_AT: u32 = BACK_AT + BACK_BYTES;
pub(crate) const READ_AT: u32 = RECV_AT + RECV_SLOTS * RECV_BYTES;
pub(crate) const WORDS_AT: u32 = READ_AT + READ_BYTES;
/// The word that an atomic operation changes and a READ behind it brings back.
pub(crate) const BACK_WORD_AT: u32 = WORDS_AT + WORDS * 8;
pub(crate) const SLOT_BYTES: u32 = BACK_WORD_AT + 8;

/// Bytes of a host's sink with so many slots.
pub(crate) const fn sink_bytes(slots: usize) -> usize {
    slots * SLOT_BYTES as usize + (SHARED_BUFFERS * RECV_BYTES) as usize
}

/// Longest WRITE or READ.
pub(crate) const MESSAGE_BYTES: u32 = 40 << 10;

const _: () = assert!(MESSAGE_BYTES <= BACK_BYTES && SOURCE_BYTES > MESSAGE_BYTES as usize);

/// The key of that generation over a slot.
pub(crate) const fn slot_key(slot: usize, generation: u32) -> u32 {
    ((0xe000 + slot as u32) << 8) | generation & 0xff
}

/// A host's own key of that generation over a slot, which it makes invalid itself.
pub(crate) const fn own_key(slot: usize, generation: u32) -> u32 {
    ((0xd000 + slot as u32) << 8) | generation & 0xff
}

/// The region that such a key opens.
pub(crate) const fn own_region(slot: usize, generation: u32) -> MemoryObjectId {
    MemoryObjectId(1 << 30 | slot_region(slot, generation).0)
}

/// The region that a slot's key opens.
pub(crate) const fn slot_region(slot: usize, generation: u32) -> MemoryObjectId {
    MemoryObjectId(1 << 31 | (slot as u32) << 24 | generation & 0x00ff_ffff)
}

/// The key of that generation over a slot's memory that is used again.
pub(crate) const fn reuse_key(slot: usize, generation: u32) -> u32 {
    ((0xc000 + slot as u32) << 8) | generation & 0xff
}

/// The region that it opens.
pub(crate) const fn reuse_region(slot: usize, generation: u32) -> MemoryObjectId {
    MemoryObjectId(1 << 30 | (slot as u32) << 24 | generation & 0x00ff_ffff)
}

/// (slot, generation) of such a region.
pub(crate) const fn reuse_slot(object: MemoryObjectId) -> Option<(usize, u32)> {
    if object.0 >> 30 != 1 {
        return None;
    }
    Some(((object.0 >> 24 & 0x3f) as usize, object.0 & 0x00ff_ffff))
}

/// (slot, generation) of such a region, and whether it is the host's own key's.
pub(crate) const fn region_slot(object: MemoryObjectId) -> Option<(usize, u32, bool)> {
    if object.0 >> 31 == 0 {
        return None;
    }
    Some(((object.0 >> 24 & 0x3f) as usize, object.0 & 0x00ff_ffff, object.0 >> 30 & 1 != 0))
}
