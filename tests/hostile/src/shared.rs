//! Memory that the daemon hands out, mapped by this client and written without any care.
#![expect(unsafe_code, reason = "maps memory that is shared with the daemon")]

use std::{
    num::NonZeroUsize,
    os::fd::AsFd,
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64},
    },
};

use anyhow::{Context as _, Result};
use nix::sys::{
    mman::{MapFlags, ProtFlags, mmap, munmap},
    stat::fstat,
};
use roced_abi::ring::{MappedRing, Producer, RingShape};

/// A mapping of a whole file.
#[derive(Debug)]
pub(crate) struct Shared {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to no thread; every access is atomic.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    /// Maps `file` from its first to its last byte.
    pub(crate) fn whole(file: impl AsFd) -> Result<Arc<Self>> {
        let bytes = usize::try_from(fstat(&file)?.st_size)?;
        let length = NonZeroUsize::new(bytes).context("an empty file")?;
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice affects no existing memory.
        let base = unsafe { mmap(None, length, protection, MapFlags::MAP_SHARED, file, 0) }.context("mmap")?;
        Ok(Arc::new(Self { base: base.cast(), bytes }))
    }

    /// Number of 64-bit words.
    pub(crate) fn words(&self) -> usize {
        self.bytes / 8
    }

    /// Word `index`.
    pub(crate) fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.words(), "a word of the mapping");
        // SAFETY: inside the mapping, checked one line up; a mapping begins on a page.
        unsafe { self.base.add(index * 8).cast().as_ref() }
    }

    /// Half of a word, at `offset` bytes, a multiple of four.
    pub(crate) fn half(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4) && offset + 4 <= self.bytes, "a place in the mapping");
        // SAFETY: inside the mapping and aligned, checked one line up.
        unsafe { self.base.add(offset).cast().as_ref() }
    }

    /// The producer of the ring at `offset`.
    pub(crate) fn producer(self: &Arc<Self>, offset: usize, shape: RingShape) -> Producer<MappedRing<Arc<Self>>> {
        assert!(offset + shape.bytes() <= self.bytes, "a ring inside the mapping");
        // SAFETY: inside the mapping, checked one line up, which the ring keeps; every access of
        // this process is atomic.
        Producer::new(unsafe { MappedRing::new(self.base.add(offset), shape, Arc::clone(self)) })
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: exactly the mapped range; every holder of an address keeps `self` alive.
        let unmapped = unsafe { munmap(self.base.cast(), self.bytes) };
        debug_assert_eq!(unmapped, Ok(()), "unmapping a whole mapping of ours");
    }
}
