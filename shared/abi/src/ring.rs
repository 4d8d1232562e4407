//! A single-producer single-consumer ring in memory that two processes share.
//!
//! ```text
//!   +0    produced  u32   entries ever produced, modulo 2^32; only the producer writes it
//!   +64   consumed  u32   entries ever consumed, modulo 2^32; only the consumer writes it
//!   +128  slots     entries x stride bytes
//! ```
//!
//! Each side keeps its own index in private memory and publishes it, and treats the index of the
//! other side as untrusted: an impossible index ([`RingCorrupt`]) ends the session, and never leads
//! out of the ring. Entries are moved as relaxed 64-bit words, so that a peer that writes during
//! the copy causes wrong numbers and no undefined behavior; the caller then checks the copy.
//!
//! The algorithm is written against [`RingMemory`] and contains no unsafe code. [`MappedRing`] is
//! that memory in a mapping; under loom a plain vector of loom's atomics takes its place.

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// How many slots of how many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingShape {
    entries: u32,
    stride_words: u32,
}

impl RingShape {
    /// Bytes before the first slot: the two indices, a cache line each.
    pub const INDEX_BYTES: usize = 128;

    /// `entries` slots of `stride_bytes` each.
    ///
    /// # Panics
    /// When `entries` is not a power of two from 1 to 2^24, or `stride_bytes` is not a multiple of
    /// 8 from 8 to 4096.
    pub const fn new(entries: u32, stride_bytes: u32) -> Self {
        assert!(entries.is_power_of_two() && entries <= 1 << 24, "ring entries: a power of two up to 2^24");
        assert!(
            stride_bytes.is_multiple_of(8) && stride_bytes >= 8 && stride_bytes <= 4096,
            "ring stride: whole words"
        );
        Self { entries, stride_words: stride_bytes / 8 }
    }

    /// Number of slots.
    pub const fn entries(self) -> u32 {
        self.entries
    }

    /// 64-bit words of a slot.
    pub const fn stride_words(self) -> usize {
        self.stride_words as usize
    }

    /// Bytes of indices and slots together.
    pub const fn bytes(self) -> usize {
        Self::INDEX_BYTES + self.entries as usize * self.stride_words as usize * 8
    }

    const fn first_word(self, index: u32) -> usize {
        (index & (self.entries - 1)) as usize * self.stride_words as usize
    }
}

/// The other side's index is out of range: that side is broken or hostile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingCorrupt;

/// Where a ring's indices and words lie.
pub trait RingMemory {
    /// The ring's shape, from our own memory.
    fn shape(&self) -> RingShape;
    /// The producer's published index.
    fn produced(&self) -> &AtomicU32;
    /// The consumer's published index.
    fn consumed(&self) -> &AtomicU32;
    /// Word `index` of the slots, `index < entries * stride_words`.
    fn word(&self, index: usize) -> &AtomicU64;
}

/// The side that fills slots.
#[derive(Debug)]
pub struct Producer<M> {
    memory: M,
    next: u32,
    consumed: u32,
}

impl<M: RingMemory> Producer<M> {
    /// Creates the producer of a ring in zeroed memory; once per ring.
    pub const fn new(memory: M) -> Self {
        Self { memory, next: 0, consumed: 0 }
    }

    /// Free slots according to the index of the consumer.
    ///
    /// # Errors
    /// [`RingCorrupt`] if the index of the consumer lies outside the produced range.
    pub fn room(&mut self) -> Result<u32, RingCorrupt> {
        let consumed = self.memory.consumed().load(Ordering::Acquire);
        let used = self.next.wrapping_sub(consumed);
        // It may only move forward, and never past the filled slots.
        if used > self.next.wrapping_sub(self.consumed) {
            return Err(RingCorrupt);
        }
        self.consumed = consumed;
        Ok(self.memory.shape().entries() - used)
    }

    /// Fills the next slot; false when there is none. The consumer sees nothing before
    /// [`Self::publish`].
    ///
    /// # Errors
    /// [`RingCorrupt`] as [`Self::room`]. The consumer's index is looked at only when the ring
    /// seems full.
    ///
    /// # Panics
    /// When `words` is longer than a slot.
    pub fn push(&mut self, words: &[u64]) -> Result<bool, RingCorrupt> {
        let shape = self.memory.shape();
        assert!(words.len() <= shape.stride_words(), "an entry fits its slot");
        if self.next.wrapping_sub(self.consumed) >= shape.entries() && self.room()? == 0 {
            return Ok(false);
        }
        let first = shape.first_word(self.next);
        for (offset, word) in words.iter().enumerate() {
            self.memory.word(first + offset).store(*word, Ordering::Relaxed);
        }
        self.next = self.next.wrapping_add(1);
        Ok(true)
    }

    /// Removes the last `entries` that were pushed and not published. Published entries cannot be
    /// removed: the caller counts the pushes since the last publication.
    pub const fn take_back(&mut self, entries: u32) {
        self.next = self.next.wrapping_sub(entries);
    }

    /// Lets the consumer see all that was pushed.
    pub fn publish(&self) {
        self.memory.produced().store(self.next, Ordering::Release);
    }
}

/// The side that empties slots.
#[derive(Debug)]
pub struct Consumer<M> {
    memory: M,
    next: u32,
    produced: u32,
}

impl<M: RingMemory> Consumer<M> {
    /// Creates the consumer of a ring in zeroed memory; once per ring.
    pub const fn new(memory: M) -> Self {
        Self { memory, next: 0, produced: 0 }
    }

    /// Filled slots according to the index of the producer.
    ///
    /// # Errors
    /// [`RingCorrupt`] when the producer's index lies more than a ring ahead of ours, or moved
    /// backward.
    pub fn available(&mut self) -> Result<u32, RingCorrupt> {
        let produced = self.memory.produced().load(Ordering::Acquire);
        let filled = produced.wrapping_sub(self.next);
        if filled > self.memory.shape().entries() || filled < self.produced.wrapping_sub(self.next) {
            return Err(RingCorrupt);
        }
        self.produced = produced;
        Ok(filled)
    }

    /// Copies the next entry into `words` (its first words, when shorter than a slot); false when
    /// there is none. The slot is the producer's again only after [`Self::release`].
    ///
    /// # Errors
    /// [`RingCorrupt`] as [`Self::available`]. The producer's index is looked at only when the ring
    /// seems empty.
    ///
    /// # Panics
    /// When `words` is longer than a slot.
    pub fn pop(&mut self, words: &mut [u64]) -> Result<bool, RingCorrupt> {
        let shape = self.memory.shape();
        assert!(words.len() <= shape.stride_words(), "an entry fits its slot");
        if self.next == self.produced && self.available()? == 0 {
            return Ok(false);
        }
        let first = shape.first_word(self.next);
        for (offset, word) in words.iter_mut().enumerate() {
            *word = self.memory.word(first + offset).load(Ordering::Relaxed);
        }
        self.next = self.next.wrapping_add(1);
        Ok(true)
    }

    /// Gives every popped slot back to the producer.
    pub fn release(&self) {
        self.memory.consumed().store(self.next, Ordering::Release);
    }
}

#[cfg(not(loom))]
pub use mapped::MappedRing;

#[cfg(not(loom))]
mod mapped {
    #![expect(unsafe_code, reason = "a ring lies in memory shared with another process")]

    use core::ptr::NonNull;

    use super::{AtomicU32, AtomicU64, RingMemory, RingShape};

    /// A ring inside a mapping. `K` keeps the mapping alive (an `Arc` of it, say).
    #[derive(Debug)]
    pub struct MappedRing<K> {
        base: NonNull<u8>,
        shape: RingShape,
        _keep: K,
    }

    // SAFETY: `base` points into a mapping that `_keep` keeps alive wherever the ring goes, and
    // everything behind it is reached through atomics.
    unsafe impl<K: Send> Send for MappedRing<K> {}

    impl<K> MappedRing<K> {
        /// The ring that begins at `base`.
        ///
        /// # Safety
        /// From `base`, 64-byte aligned, `shape.bytes()` bytes must stay mapped readable and
        /// writable for the lifetime of `keep`, and this process may access them only through
        /// atomics.
        pub unsafe fn new(base: NonNull<u8>, shape: RingShape, keep: K) -> Self {
            assert!(base.as_ptr().addr().is_multiple_of(64), "a ring begins on a cache line");
            Self { base, shape, _keep: keep }
        }
    }

    impl<K> RingMemory for MappedRing<K> {
        fn shape(&self) -> RingShape {
            self.shape
        }

        fn produced(&self) -> &AtomicU32 {
            // SAFETY: the first bytes of the ring, aligned to 64 (checked in `new`), mapped while
            // `self` lives (`new`'s contract).
            unsafe { self.base.cast().as_ref() }
        }

        fn consumed(&self) -> &AtomicU32 {
            // SAFETY: offset 64 is inside INDEX_BYTES; otherwise as `produced`.
            unsafe { self.base.add(64).cast().as_ref() }
        }

        fn word(&self, index: usize) -> &AtomicU64 {
            assert!(index < self.shape.entries as usize * self.shape.stride_words as usize, "a word of the ring");
            // SAFETY: `index` was checked one line up against the shape that `new` was promised
            // room for; 128 + 8 * index is 8-byte aligned.
            unsafe { self.base.add(RingShape::INDEX_BYTES + index * 8).cast().as_ref() }
        }
    }
}
