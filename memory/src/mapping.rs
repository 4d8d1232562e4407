//! Pages that the daemon and a client both map: sealed memfds that the daemon makes, or parts of
//! files that a client brings.
//!
//! A memfd that we make is sealed against shrinking; should an access of ours meet a missing page
//! (SIGBUS) all the same, only that mapping is lost (`sigbus.rs`). No seal takes the write right
//! from a mapping that there is. Files that a client writes are sealed once it has mapped them: by
//! the client, see [`has_no_holes_to_come`], and those of queues by us if it does not, see
//! [`seal_later`].
//!
//! Each is one mapping to the kernel, too, for as long as it lives: none is ever merged with
//! another (the kernel does that to neighbors that show one file's bytes in a row). So unmapping
//! one never splits anything, nor does exchanging its pages, and neither can fail for the number of
//! mappings that there are, which `quota.rs` counts.
#![expect(unsafe_code, reason = "maps memory that is shared with clients")]

use std::{
    ffi::{CStr, c_void},
    mem::ManuallyDrop,
    num::NonZeroUsize,
    ops::Range,
    os::fd::{AsFd, OwnedFd},
    ptr::{self, NonNull},
};

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, SealFlag, fcntl},
    sys::{
        memfd::{MFdFlags, memfd_create},
        mman::{MapFlags, ProtFlags, mmap},
    },
    unistd::ftruncate,
};

use super::{first_touch, quota::Room, shared_fd::SharedFd, sigbus::Watch};

/// Bytes of a page, the unit in which files are mapped.
const PAGE: usize = 4096;

/// Bytes that are unmapped in one go. Meanwhile no other thread can map anything: 16 MiB of touched
/// pages take below a millisecond.
const PIECE: usize = 16 << 20;

/// Parties besides the daemon that may write to a memfd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writers {
    /// Every holder of the fd, until one of them takes that right from the others.
    BothUntilSealed,
    /// None: the fd can only be mapped for reading.
    DaemonOnly,
}

/// Pages that we share with a client, mapped for reading and writing for as long as this lives.
#[derive(Debug)]
pub struct Mapping {
    /// Goes before the mapping does.
    watch: ManuallyDrop<Watch>,
    base: NonNull<u8>,
    bytes: usize,
    /// Its share of the quota.
    room: Room,
}

// SAFETY: the mapping belongs to no thread, and `base` and `bytes` never change; its bytes are
// accessed through atomics or through the copies of `ClientMemory`, which allow for writes of any
// party at any time.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Makes a memfd of `bytes` zeros, maps and seals it. The fd is for the client; we no longer
    /// need it.
    ///
    /// # Errors
    /// The kernel's: no memory, no file descriptors, or `EINVAL` for 0 bytes.
    pub fn create(name: &CStr, bytes: usize, writers: Writers, room: Room) -> Result<(Self, OwnedFd), Errno> {
        let length = NonZeroUsize::new(bytes).ok_or(Errno::EINVAL)?;
        let fd = memfd_create(name, MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?;
        ftruncate(&fd, i64::try_from(bytes).map_err(|_| Errno::EFBIG)?)?;
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let base = unsafe { mmap(None, length, protection, MapFlags::MAP_SHARED, &fd, 0)? };
        let mapping = Self::watched(base, bytes, room)?;
        let mut seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW;
        seals |= match writers {
            Writers::BothUntilSealed => SealFlag::empty(),
            // Our own mapping is older than the seal and stays writable.
            Writers::DaemonOnly => SealFlag::F_SEAL_SEAL | SealFlag::F_SEAL_FUTURE_WRITE,
        };
        fcntl(&fd, FcntlArg::F_ADD_SEALS(seals))?;
        Ok((mapping, fd))
    }

    /// Maps a part of a client's file: whole pages, at least one.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn of(file: impl AsFd, part: Range<u64>, writable: bool, room: Room) -> Result<Self, Errno> {
        let bytes = part.end.checked_sub(part.start).and_then(|bytes| usize::try_from(bytes).ok());
        let bytes = bytes.filter(|bytes| *bytes > 0).ok_or(Errno::EINVAL)?;
        let base = map_apart(file, part.start, bytes, writable, &room)?;
        let mapping = Self::watched(base, bytes, room)?;
        mapping.leave_to_client()?;
        Ok(mapping)
    }

    /// No access of ours makes a page that its client has not touched: see `first_touch.rs`.
    pub(super) fn leave_to_client(&self) -> Result<(), Errno> {
        let start = self.base.as_ptr().expose_provenance();
        first_touch::leave_to_client(&(start..start + self.bytes))
    }

    /// The new mapping.
    fn watched(base: NonNull<c_void>, bytes: usize, room: Room) -> Result<Self, Errno> {
        let start = base.as_ptr().expose_provenance();
        match Watch::new(&(start..start + bytes)) {
            Ok(watch) => Ok(Self { watch: ManuallyDrop::new(watch), base: base.cast(), bytes, room }),
            Err(errno) => {
                // SAFETY: it was mapped just now, and no other code knows of it.
                unsafe { Leftover::new(base, bytes, room) }.unmap();
                Err(errno)
            }
        }
    }

    /// Bytes mapped.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Never: a mapping has at least a byte.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The address of byte `offset`, from which at least `bytes` bytes are mapped for as long as
    /// `self` lives.
    ///
    /// # Panics
    /// If they are not: the caller has computed the layout for which the mapping was made.
    pub fn at(&self, offset: usize, bytes: usize) -> NonNull<u8> {
        assert!(self.contains(offset, bytes), "{bytes} bytes at {offset} lie outside a mapping of {}", self.bytes);
        // SAFETY: `offset <= self.bytes`, checked one line up, so the result is inside the mapping
        // or one past its end.
        unsafe { self.base.add(offset) }
    }

    fn contains(&self, offset: usize, bytes: usize) -> bool {
        offset.checked_add(bytes).is_some_and(|end| end <= self.bytes)
    }

    /// Its pages are gone, and zeros are in their place.
    pub(super) fn is_lost(&self) -> bool {
        self.watch.is_lost()
    }

    /// Keeps the pages in memory once they were touched, so that no access of ours waits for a
    /// disk.
    pub(super) fn lock(&self) -> Result<(), Errno> {
        // SAFETY: mlock2 changes no byte and no address; the range is our own mapping.
        let result = unsafe {
            libc::mlock2(self.base.as_ptr().cast::<c_void>(), self.bytes, libc::MLOCK_ONFAULT as libc::c_uint)
        };
        Errno::result(result).map(drop)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it is dropped here and used nowhere afterward.
        unsafe { ManuallyDrop::drop(&mut self.watch) };
        // SAFETY: exactly the mapped range; `base` is private, and holders of an address keep
        // `self` alive.
        let pages = unsafe { Leftover::new(self.base.cast(), self.bytes, std::mem::take(&mut self.room)) };
        // The last mapping of a file frees all of it, which may be far more than our mapping, and
        // locks that its client left at it. The room is given back afterward.
        match pages.room().account() {
            Some(account) => account.later(|| pages.unmap()),
            None => pages.unmap(),
        }
    }
}

/// Processes can no longer take pages out of this file, by a hole or by cutting it. While one does,
/// every access to it waits, for 0.3 to 1 s a GiB and mapping: of these seals the kernel makes a
/// refusal of that (Linux 5.1). Mappings for writing that there are stay so.
pub fn has_no_holes_to_come(file: impl AsFd) -> bool {
    // Nothing here waits, not even for a process that punches a hole at this moment.
    let seals = fcntl(file, FcntlArg::F_GET_SEALS).map_or(SealFlag::empty(), SealFlag::from_bits_retain);
    seals.intersects(SealFlag::F_SEAL_FUTURE_WRITE | SealFlag::F_SEAL_WRITE) && seals.contains(SealFlag::F_SEAL_SHRINK)
}

/// Seals a file that a client has mapped, so that no process takes pages out of it or maps
/// it for writing, and closes it. A thread of the user's does that: while a process punches a hole
/// in a file, a thread that seals it waits.
pub fn seal_later(file: SharedFd) {
    file.close_after(|fd| {
        // A kernel before 5.1 does not know the seal.
        let _ = fcntl(fd, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_FUTURE_WRITE | SealFlag::F_SEAL_SEAL));
    });
}

/// Maps `bytes` bytes of `file` from `offset` on such that the kernel does not make one mapping of
/// it and another of the same file: to unmap either would be to split them then, which the kernel
/// refuses at its limit of mappings. It is made with a page more on both sides, and those are given
/// back: so there is a page at least between any two that are made here.
fn map_apart(
    file: impl AsFd,
    offset: u64,
    bytes: usize,
    writable: bool,
    room: &Room,
) -> Result<NonNull<c_void>, Errno> {
    // A private mapping that is only read shows the file's own pages, and the kernel lets a process
    // leave missing pages to others in it, which it denies in a shared one of a file that is not
    // open for writing.
    let (protection, kind) = if writable {
        (ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_SHARED)
    } else {
        (ProtFlags::PROT_READ, MapFlags::MAP_PRIVATE)
    };
    // A part at the beginning of its file follows no other.
    let before = if offset == 0 { 0 } else { PAGE };
    let first = offset.checked_sub(before as u64).and_then(|first| libc::off_t::try_from(first).ok());
    let whole = bytes.checked_add(before + PAGE).and_then(NonZeroUsize::new).ok_or(Errno::EOVERFLOW)?;
    let first = first.ok_or(Errno::EOVERFLOW)?;
    // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
    let start = unsafe { mmap(None, whole, protection, kind, file, first)? };
    // SAFETY: the mapping is `before`, `bytes` and a page long.
    let (base, end) = unsafe { (start.byte_add(before), start.byte_add(before + bytes)) };
    for (at, length) in [(start, before), (end, PAGE)] {
        if length > 0 {
            // SAFETY: of the mapping made just now, and no other code knows of it.
            unsafe { Leftover::new(at, length, room.uncounted()) }.unmap();
        }
    }
    Ok(base)
}

/// Unused pages.
#[derive(Debug)]
pub(crate) struct Leftover {
    start: usize,
    bytes: usize,
    room: Room,
}

impl Leftover {
    /// # Safety
    /// The pages must be mapped and unused from now on.
    unsafe fn new(base: NonNull<c_void>, bytes: usize, room: Room) -> Self {
        Self { start: base.as_ptr().expose_provenance(), bytes, room }
    }

    /// Its room in the quota.
    pub(crate) const fn room(&self) -> &Room {
        &self.room
    }

    /// Unmaps the pages, or keeps them for later. From the end on, in pieces: so each leaves one
    /// mapping, and none is split.
    pub(crate) fn unmap(mut self) {
        while self.bytes > 0 {
            let rest = (self.bytes - 1) / PIECE * PIECE;
            let piece = ptr::with_exposed_provenance_mut(self.start + rest);
            // SAFETY: the promise of `new`; bytes behind `self.bytes` are no longer ours.
            if unsafe { libc::munmap(piece, self.bytes - rest) } != 0 {
                return Room::keep(self);
            }
            self.bytes = rest;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use nix::{sys::mman::munmap, unistd::write};

    use super::*;

    fn map(fd: impl AsFd, bytes: usize, protection: ProtFlags) -> Result<NonNull<c_void>, Errno> {
        let length = NonZeroUsize::new(bytes).expect("tests map something");
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        unsafe { mmap(None, length, protection, MapFlags::MAP_SHARED, fd, 0) }
    }

    #[test]
    fn read_only_memory_cannot_be_written_by_its_descriptor() {
        let (mapping, fd) = Mapping::create(c"test", 4096, Writers::DaemonOnly, Room::default()).expect("a page");
        assert_eq!(map(&fd, 4096, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE), Err(Errno::EPERM));
        assert_eq!(write(&fd, b"x"), Err(Errno::EPERM));
        let theirs = map(&fd, 4096, ProtFlags::PROT_READ).expect("reading is allowed");
        // SAFETY: both are a page of the same memfd, aligned, mapped, and only used through
        // atomics.
        let (ours, theirs) = unsafe { (mapping.at(0, 4).cast::<AtomicU32>().as_ref(), theirs.cast::<AtomicU32>()) };
        ours.store(7, Ordering::Release);
        // SAFETY: as above.
        assert_eq!(unsafe { theirs.as_ref() }.load(Ordering::Acquire), 7);
        // SAFETY: mapped a few lines up and no longer used.
        unsafe { munmap(theirs.cast(), 4096) }.expect("it is a mapping");
    }
}
