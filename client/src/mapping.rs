//! Mappings of memory shared between the daemon and this process.
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

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, SealFlag, fcntl},
    sys::{
        mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, munmap},
        stat::fstat,
    },
};
use roced_abi::{
    doorbell::{DOORBELL_BLOCK_BYTES, MappedDoorbells, WORKER_STATE_BYTES, WorkerState},
    layout::{CqLayout, QpLayout, SrqLayout, doorbell_block_offset, worker_state_offset},
    ring::{Consumer, MappedRing, Producer, RingShape},
};

use crate::error::{Error, Result};

/// Mode in which a memfd is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// For reading.
    ReadOnly,
    /// For reading and writing. Every page is touched at once, so that no page is missing later and
    /// the cost falls on this process.
    Populated,
}

/// Mapped pages of a memfd, unmapped on drop, or memory of the program.
#[derive(Debug)]
pub(crate) struct ClientMapping {
    base: NonNull<u8>,
    bytes: usize,
    /// True if this type created the mapping.
    ours: bool,
}

// SAFETY: the mapping belongs to no thread, and `base` and `bytes` never change; the memory behind
// it is accessed through atomics and through copies that tolerate concurrent writers.
unsafe impl Send for ClientMapping {}
// SAFETY: as above.
unsafe impl Sync for ClientMapping {}

impl ClientMapping {
    /// Maps the first `bytes` bytes of `fd`.
    pub(crate) fn new(fd: &OwnedFd, bytes: usize, mode: Mode) -> Result<Arc<Self>> {
        let length = NonZeroUsize::new(bytes).ok_or(Error::Protocol { what: "memory of no bytes" })?;
        let there = fstat(fd).map_err(Error::kernel("fstat"))?.st_size;
        // An access beyond the end of a file raises SIGBUS.
        if u64::try_from(there).unwrap_or(0) < bytes as u64 {
            return Err(Error::Protocol { what: "memory shorter than its layout" });
        }
        let (protection, flags) = match mode {
            Mode::ReadOnly => (ProtFlags::PROT_READ, MapFlags::MAP_SHARED),
            Mode::Populated => {
                (ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_SHARED | MapFlags::MAP_POPULATE)
            }
        };
        // SAFETY: a new mapping at an address chosen by the kernel affects no existing memory.
        let base = unsafe { mmap(None, length, protection, flags, fd, 0) }.map_err(Error::kernel("mmap"))?;
        let mapping = Self { base: base.cast(), bytes, ours: true };
        if mode == Mode::Populated {
            // Populating by mmap does not report pages for which there is no memory.
            // SAFETY: changes no byte of a mapping that was made just now.
            let populated = unsafe { madvise(base, bytes, MmapAdvise::MADV_POPULATE_WRITE) };
            // Older kernels do not know it.
            populated
                .or_else(|errno| if errno == Errno::EINVAL { Ok(()) } else { Err(errno) })
                .map_err(Error::kernel("madvise"))?;
            // From now on no process maps it for writing or takes pages out of it, which would delay
            // a worker of the daemon. Kernels before 5.1 do not know the seal, and a daemon that
            // demands it says so when the memory is used.
            let _ = fcntl(fd, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_FUTURE_WRITE | SealFlag::F_SEAL_SEAL));
        }
        Ok(Arc::new(mapping))
    }

    /// Wraps memory that the program has mapped.
    ///
    /// # Safety
    /// For the lifetime of the returned value, `bytes` bytes from `base` stay mapped, for reading
    /// and for every operation performed through it, and the program holds no references to them
    /// that rule out these operations.
    pub(crate) unsafe fn of_program(base: NonNull<u8>, bytes: usize) -> Arc<Self> {
        Arc::new(Self { base, bytes, ours: false })
    }

    /// Returns the address of byte `offset`, after checking that `bytes` bytes from there are
    /// inside.
    pub(crate) fn at(&self, offset: usize, bytes: usize) -> NonNull<u8> {
        assert!(
            offset.checked_add(bytes).is_some_and(|end| end <= self.bytes),
            "{bytes} bytes at {offset} lie outside {} bytes of memory",
            self.bytes
        );
        // SAFETY: `offset <= self.bytes`, checked one line up.
        unsafe { self.base.add(offset) }
    }

    /// Copies `bytes` to `offset`. Concurrent readers and writers are allowed.
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        let to = self.at(offset, bytes.len());
        // SAFETY: `at` checked the range; `bytes` is not in it, because a Rust reference into a
        // mapping requires an unsafe call that rules this out.
        unsafe { racing_copy(NonNull::from(bytes).cast(), to, bytes.len()) };
    }

    /// Copies the bytes at `offset` to `into`. With concurrent writers, `into` is a mixture.
    pub(crate) fn read(&self, offset: usize, into: &mut [u8]) {
        let from = self.at(offset, into.len());
        // SAFETY: as in `write`.
        unsafe { racing_copy(from, NonNull::from(&mut *into).cast(), into.len()) };
    }

    /// Sets `bytes` bytes from `offset` to `value`. Concurrent readers and writers are allowed.
    pub(crate) fn fill(&self, offset: usize, bytes: usize, value: u8) {
        let to = self.at(offset, bytes);
        // SAFETY: `at` checked the range.
        unsafe { racing_fill(to, bytes, value) };
    }

    /// Loads byte `offset`. Writes that precede it are visible afterward.
    pub(crate) fn byte(&self, offset: usize) -> u8 {
        // SAFETY: `at` checked that the byte is mapped, for the lifetime of `self`; a byte is
        // always aligned.
        unsafe { self.at(offset, 1).cast::<AtomicU8>().as_ref() }.load(Ordering::Acquire)
    }

    /// The eight bytes at `offset`, a multiple of eight, as an atomic.
    pub(crate) fn word(&self, offset: usize) -> &AtomicU64 {
        let aligned = self.base.as_ptr().addr().wrapping_add(offset).is_multiple_of(8);
        assert!(aligned, "an atomic operation at {offset}, where no multiple of eight is");
        // SAFETY: `at` checked that the bytes are mapped, for the lifetime of `self`, and the line
        // above that they are aligned. Rust references to them exist only as atomics, or by an
        // unsafe call that rules this out.
        unsafe { self.at(offset, 8).cast().as_ref() }
    }

    /// The first word of the mapping, as an atomic.
    pub(crate) fn first_word(&self) -> &AtomicU32 {
        // SAFETY: `at` checked that the word is mapped, for the lifetime of `self`; a mapping
        // begins on a page. In this process only this function accesses the word.
        unsafe { self.at(0, 4).cast().as_ref() }
    }
}

impl Drop for ClientMapping {
    fn drop(&mut self) {
        if !self.ours {
            return;
        }
        // SAFETY: exactly the range that `new` mapped; every holder of an address keeps `self`
        // alive.
        let unmapped = unsafe { munmap(self.base.cast::<c_void>(), self.bytes) };
        debug_assert_eq!(unmapped, Ok(()), "unmapping a whole mapping of ours");
    }
}

/// Producer ring of this process.
pub(crate) type ProducerRing = Producer<MappedRing<Arc<ClientMapping>>>;
/// Consumer ring of this process.
pub(crate) type ConsumerRing = Consumer<MappedRing<Arc<ClientMapping>>>;

/// Returns the send ring and the receive ring of a queue pair.
pub(crate) fn qp_rings(mapping: &Arc<ClientMapping>, layout: QpLayout) -> (ProducerRing, ProducerRing) {
    let send = ring_at(mapping, 0, layout.send);
    (Producer::new(send), Producer::new(ring_at(mapping, layout.recv_offset, layout.recv)))
}

/// Returns the ring of a shared receive queue.
pub(crate) fn srq_ring(mapping: &Arc<ClientMapping>, layout: SrqLayout) -> ProducerRing {
    Producer::new(ring_at(mapping, 0, layout.recv))
}

/// Returns the per-worker CQ rings of a completion queue.
pub(crate) fn cq_rings(mapping: &Arc<ClientMapping>, layout: CqLayout) -> Vec<ConsumerRing> {
    (0..layout.cq_rings)
        .map(|cq_ring| Consumer::new(ring_at(mapping, layout.cq_ring_offset(cq_ring), layout.cq_ring)))
        .collect()
}

fn ring_at(mapping: &Arc<ClientMapping>, offset: usize, shape: RingShape) -> MappedRing<Arc<ClientMapping>> {
    let base = mapping.at(offset, shape.bytes());
    // SAFETY: `at` checked that the ring lies inside the mapping, which the Arc keeps; layouts
    // place rings on cache lines and apart from one another, and in this process only this ring
    // accesses them, by atomics.
    unsafe { MappedRing::new(base, shape, Arc::clone(mapping)) }
}

/// Returns the doorbell block of worker `index`.
pub(crate) fn doorbells(mapping: &Arc<ClientMapping>, index: u32) -> MappedDoorbells<Arc<ClientMapping>> {
    let base = mapping.at(doorbell_block_offset(index), DOORBELL_BLOCK_BYTES);
    // SAFETY: `at` checked that the block lies inside the mapping, which the Arc keeps; doorbell
    // blocks lie on cache lines and are accessed only by atomics.
    unsafe { MappedDoorbells::new(base, Arc::clone(mapping)) }
}

/// Returns the state that worker `index` of the daemon publishes.
pub(crate) fn worker_state(mapping: &Arc<ClientMapping>, index: u32) -> WorkerState<Arc<ClientMapping>> {
    let base = mapping.at(worker_state_offset(index), WORKER_STATE_BYTES);
    // SAFETY: `at` checked that the state lies inside the mapping, which the Arc keeps; states lie
    // on cache lines and are only loaded here.
    unsafe { WorkerState::new(base, Arc::clone(mapping)) }
}

/// Copies bytes that other threads and processes may read and write concurrently.
///
/// `ptr::copy` may not: a race on it is undefined behavior. On x86-64 the string instruction has
/// the effect of a loop over `AtomicU8`, at full speed, and the compiler assumes nothing about it.
///
/// # Safety
/// Both ranges must be mapped and not overlap.
pub(crate) unsafe fn racing_copy(from: NonNull<u8>, to: NonNull<u8>, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: reads and writes exactly the two ranges that the caller vouches for; the direction
    // flag is clear on entry to `asm!`.
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

/// Sets bytes that other threads and processes may read and write concurrently, as [`racing_copy`].
///
/// # Safety
/// The range must be mapped.
unsafe fn racing_fill(to: NonNull<u8>, bytes: usize, value: u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: writes exactly the range that the caller vouches for; the direction flag is clear on
    // entry to `asm!`.
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
