//! Memory that the daemon made and both map.
#![expect(unsafe_code, reason = "maps memory that is shared with the daemon, and copies to and from it")]

use std::{
    ffi::c_void,
    num::NonZeroUsize,
    os::fd::OwnedFd,
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering},
    },
};

use nix::sys::{
    mman::{MapFlags, ProtFlags, mmap, munmap},
    stat::fstat,
};
use roced_shared::abi::{
    doorbell::{DOORBELL_PAGE_BYTES, MappedDoorbells, WORKER_STATE_BYTES, WorkerState},
    layout::{CqLayout, QpLayout, SrqLayout, doorbell_page_offset, worker_state_offset},
    ring::{Consumer, MappedRing, Producer, RingShape},
};

use crate::error::{Error, Result};

/// How a memfd is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// For reading.
    ReadOnly,
    /// For reading and writing, every page touched at once, so that none is missing later and this process pays for it.
    Populated,
}

/// The pages of a memfd, mapped for as long as this lives, or memory of the program.
#[derive(Debug)]
pub(crate) struct ClientMapping {
    base: NonNull<u8>,
    bytes: usize,
    /// Mapped by us.
    ours: bool,
}

// SAFETY: the mapping belongs to no thread, and `base` and `bytes` never change; what lies behind is reached through atomics and
// through copies that allow for anybody writing there at any time.
unsafe impl Send for ClientMapping {}
// SAFETY: as above.
unsafe impl Sync for ClientMapping {}

impl ClientMapping {
    /// Maps `bytes` of `fd`.
    pub(crate) fn new(fd: &OwnedFd, bytes: usize, mode: Mode) -> Result<Arc<Self>> {
        let length = NonZeroUsize::new(bytes).ok_or(Error::Protocol { what: "memory of no bytes" })?;
        let there = fstat(fd).map_err(Error::kernel("fstat"))?.st_size;
        // Beyond the end of a file each access is a SIGBUS.
        if u64::try_from(there).unwrap_or(0) < bytes as u64 {
            return Err(Error::Protocol { what: "memory shorter than its layout" });
        }
        let (protection, flags) = match mode {
            Mode::ReadOnly => (ProtFlags::PROT_READ, MapFlags::MAP_SHARED),
            Mode::Populated => {
                (ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_SHARED | MapFlags::MAP_POPULATE)
            }
        };
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let base = unsafe { mmap(None, length, protection, flags, fd, 0) }.map_err(Error::kernel("mmap"))?;
        Ok(Arc::new(Self { base: base.cast(), bytes, ours: true }))
    }

    /// Memory that the program has mapped.
    ///
    /// # Safety
    /// `bytes` bytes from `base` stay mapped, for reading and whatever is done to them by this, for as long as this lives, and the program
    /// does not have references to them that rule out what is done.
    pub(crate) unsafe fn of_program(base: NonNull<u8>, bytes: usize) -> Arc<Self> {
        Arc::new(Self { base, bytes, ours: false })
    }

    /// Byte `offset`'s address.
    pub(crate) fn at(&self, offset: usize, bytes: usize) -> NonNull<u8> {
        assert!(
            offset.checked_add(bytes).is_some_and(|end| end <= self.bytes),
            "{bytes} bytes at {offset} lie outside {} bytes of memory",
            self.bytes
        );
        // SAFETY: `offset <= self.bytes`, checked one line up.
        unsafe { self.base.add(offset) }
    }

    /// Copies `bytes` to `offset`; others may read and write there meanwhile.
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        let to = self.at(offset, bytes.len());
        // SAFETY: `at` checked the range; `bytes` is not in it, for nobody has a Rust reference into a mapping but by an unsafe call that
        // rules this out.
        unsafe { racing_copy(NonNull::from(bytes).cast(), to, bytes.len()) };
    }

    /// Copies what lies at `offset` to `into`; others may write there meanwhile, then `into` is a mix.
    pub(crate) fn read(&self, offset: usize, into: &mut [u8]) {
        let from = self.at(offset, into.len());
        // SAFETY: as in `write`.
        unsafe { racing_copy(from, NonNull::from(&mut *into).cast(), into.len()) };
    }

    /// Sets `bytes` bytes from `offset`; others may read and write there meanwhile.
    pub(crate) fn fill(&self, offset: usize, bytes: usize, value: u8) {
        let to = self.at(offset, bytes);
        // SAFETY: `at` checked the range.
        unsafe { racing_fill(to, bytes, value) };
    }

    /// Byte `offset` now. What was written before it is visible afterward.
    pub(crate) fn byte(&self, offset: usize) -> u8 {
        // SAFETY: `at` checked that the byte is mapped, for as long as `self` lives; a byte is always aligned.
        unsafe { self.at(offset, 1).cast::<AtomicU8>().as_ref() }.load(Ordering::Acquire)
    }

    /// The eight bytes at `offset`, a multiple of eight, as an atomic.
    pub(crate) fn word(&self, offset: usize) -> &AtomicU64 {
        let aligned = self.base.as_ptr().addr().wrapping_add(offset).is_multiple_of(8);
        assert!(aligned, "an atomic operation at {offset}, where no multiple of eight is");
        // SAFETY: `at` checked that they are mapped, for as long as `self` lives, and the line above that they are aligned. Nobody has a Rust reference to them but as atomics, or by an unsafe call that rules this out.
        unsafe { self.at(offset, 8).cast().as_ref() }
    }

    /// The word at the start, as an atomic.
    pub(crate) fn first_word(&self) -> &AtomicU32 {
        // SAFETY: `at` checked that it is mapped, for as long as `self` lives; a mapping begins on a page. In this process it is only
        // reached by this function.
        unsafe { self.at(0, 4).cast().as_ref() }
    }
}

impl Drop for ClientMapping {
    fn drop(&mut self) {
        if !self.ours {
            return;
        }
        // SAFETY: exactly what `new` mapped; whoever was given an address keeps `self` alive.
        let unmapped = unsafe { munmap(self.base.cast::<c_void>(), self.bytes) };
        debug_assert_eq!(unmapped, Ok(()), "unmapping a whole mapping of ours");
    }
}

/// A ring that this process fills.
pub(crate) type ProducerRing = Producer<MappedRing<Arc<ClientMapping>>>;
/// A ring that this process empties.
pub(crate) type ConsumerRing = Consumer<MappedRing<Arc<ClientMapping>>>;

/// The send and the receive ring of a queue pair.
pub(crate) fn qp_rings(mapping: &Arc<ClientMapping>, layout: QpLayout) -> (ProducerRing, ProducerRing) {
    let send = ring_at(mapping, 0, layout.send);
    (Producer::new(send), Producer::new(ring_at(mapping, layout.recv_offset, layout.recv)))
}

/// The ring of a shared receive queue.
pub(crate) fn srq_ring(mapping: &Arc<ClientMapping>, layout: SrqLayout) -> ProducerRing {
    Producer::new(ring_at(mapping, 0, layout.recv))
}

/// The lanes of a completion queue.
pub(crate) fn cq_rings(mapping: &Arc<ClientMapping>, layout: CqLayout) -> Vec<ConsumerRing> {
    (0..layout.cq_rings)
        .map(|cq_ring| Consumer::new(ring_at(mapping, layout.cq_ring_offset(cq_ring), layout.cq_ring)))
        .collect()
}

fn ring_at(mapping: &Arc<ClientMapping>, offset: usize, shape: RingShape) -> MappedRing<Arc<ClientMapping>> {
    let base = mapping.at(offset, shape.bytes());
    // SAFETY: `at` checked that the ring lies inside the mapping, which the Arc keeps; layouts place rings on cache lines and apart
    // from one another, and everything in this process that touches them is this ring, by atomics.
    unsafe { MappedRing::new(base, shape, Arc::clone(mapping)) }
}

/// The bell page of worker `index`.
pub(crate) fn doorbells(mapping: &Arc<ClientMapping>, index: u32) -> MappedDoorbells<Arc<ClientMapping>> {
    let base = mapping.at(doorbell_page_offset(index), DOORBELL_PAGE_BYTES);
    // SAFETY: `at` checked that the page lies inside the mapping, which the Arc keeps; bell pages lie on cache lines, and only
    // atomics touch them.
    unsafe { MappedDoorbells::new(base, Arc::clone(mapping)) }
}

/// What the daemon's worker `index` says of itself.
pub(crate) fn worker_state(mapping: &Arc<ClientMapping>, index: u32) -> WorkerState<Arc<ClientMapping>> {
    let base = mapping.at(worker_state_offset(index), WORKER_STATE_BYTES);
    // SAFETY: `at` checked that the state lies inside the mapping, which the Arc keeps; states lie on cache lines; we only load.
    unsafe { WorkerState::new(base, Arc::clone(mapping)) }
}

/// Copies bytes that other threads and processes may read and write meanwhile. `ptr::copy` may not: a race on it is undefined
/// behavior. On x86-64 the string instruction does what a loop over `AtomicU8` would do, at full speed, and the compiler assumes
/// nothing about it.
///
/// # Safety
/// Both ranges must be mapped and not overlap.
pub(crate) unsafe fn racing_copy(from: NonNull<u8>, to: NonNull<u8>, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: reads and writes exactly the two ranges that the caller vouches for; the direction flag is clear on entry to `asm!`.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") bytes => _, inout("rdi") to.as_ptr() => _, inout("rsi") from.as_ptr() => _,
            options(nostack, preserves_flags)
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    for offset in 0..bytes {
        // SAFETY: inside the two ranges that the caller vouches for; bytes are always aligned.
        let (from, to) =
            unsafe { (from.add(offset).cast::<AtomicU8>().as_ref(), to.add(offset).cast::<AtomicU8>().as_ref()) };
        to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// Sets bytes that other threads and processes may read and write meanwhile, as [`racing_copy`].
///
/// # Safety
/// The range must be mapped.
unsafe fn racing_fill(to: NonNull<u8>, bytes: usize, value: u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: writes exactly the range that the caller vouches for; the direction flag is clear on entry to `asm!`.
    unsafe {
        std::arch::asm!(
            "rep stosb",
            inout("rcx") bytes => _, inout("rdi") to.as_ptr() => _, in("al") value,
            options(nostack, preserves_flags)
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    for offset in 0..bytes {
        // SAFETY: inside the range that the caller vouches for; bytes are always aligned.
        unsafe { to.add(offset).cast::<AtomicU8>().as_ref() }.store(value, Ordering::Relaxed);
    }
}
