//! Memory that regions lie in and that we map: bytes go in and out by bounds-checked copies, never
//! by a Rust reference, because the client's threads write there at any moment.
#![expect(unsafe_code, reason = "copies to and from memory that is shared with clients")]

use std::{ops::Range, os::fd::OwnedFd, ptr::NonNull};

use nix::{errno::Errno, sys::stat::fstat};
use roced_transport::io::AtomicOperation;
use roced_types::SessionId;

use super::{
    access_log::touch,
    copies,
    descriptor::SharedFile,
    mapping::{Mapping, Writers},
    quota::Room,
};

/// Owner of memory before one is assigned: sessions have numbers from 1 on.
const NONE: SessionId = SessionId(0);

/// Origin of the memory before it was mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryKind {
    /// Allocated by the daemon for the client.
    Allocated,
    /// Private memory of the program, with its pages moved to a file of the client library.
    Migrated,
    /// A file in memory that the program itself shares.
    FileBacked,
    /// Memory of the program that the daemon does not map: `proxied.rs`.
    Proxied,
}

/// Memory that regions lie in.
#[derive(Debug)]
pub struct ClientMemory {
    mapping: Mapping,
    kind: MemoryKind,
    writable: bool,
    owner: SessionId,
}

impl ClientMemory {
    /// Makes `bytes` (rounded up to whole pages) of zeroed memory; its pages are locked as they are
    /// touched. The fd is for the client, which touches every page before the daemon does, and
    /// seals it.
    ///
    /// # Errors
    /// The kernel's: no memory, more locked memory than allowed, `EINVAL` for 0 bytes.
    pub fn create(bytes: u64, room: Room) -> Result<(Self, OwnedFd), Errno> {
        let bytes = usize::try_from(bytes).ok().and_then(|bytes| bytes.checked_next_multiple_of(4096));
        let (mapping, fd) =
            Mapping::create(c"roced-memory", bytes.ok_or(Errno::EFBIG)?, Writers::BothUntilSealed, room)?;
        mapping.leave_to_client()?;
        mapping.lock()?;
        Ok((Self { mapping, kind: MemoryKind::Allocated, writable: true, owner: NONE }, fd))
    }

    /// Maps a part of a client's file; its pages are locked as they are touched.
    ///
    /// # Errors
    /// `EOVERFLOW` if the part does not lie inside; `EACCES` if the client may not write there but
    /// requests writing; any other error of the kernel.
    pub fn map(
        file: &SharedFile,
        part: Range<u64>,
        writable: bool,
        kind: MemoryKind,
        room: Room,
    ) -> Result<Self, Errno> {
        let size = u64::try_from(fstat(file)?.st_size).unwrap_or(0);
        if part.end > size {
            return Err(Errno::EOVERFLOW);
        }
        if writable && !file.writable {
            return Err(Errno::EACCES);
        }
        let mapping = Mapping::of(file, part, writable, room)?;
        mapping.lock()?;
        Ok(Self { mapping, kind, writable, owner: NONE })
    }

    /// The same, of that session.
    pub fn of(self, owner: SessionId) -> Self {
        Self { owner, ..self }
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.mapping.len() as u64
    }

    /// Returns false: there is at least a page.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Kind of the memory.
    pub fn kind(&self) -> MemoryKind {
        self.kind
    }

    /// Returns true if the memory may be written. If not, no region in it has rights to write:
    /// nothing else keeps [`Self::write`] from it.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// Its pages are gone, and zeros are in their place: the client cut its file short, or the
    /// kernel had no memory for a hole in it.
    pub(crate) fn is_lost(&self) -> bool {
        self.mapping.is_lost()
    }

    /// Copies `bytes` to `offset`. A program that polls the last byte, or the last aligned 2, 4 or
    /// 8 bytes, sees all older bytes of this call and of every earlier one once it sees those.
    ///
    /// # Panics
    /// When they do not fit: a `MemSpan` was checked against the registered range, and that against
    /// [`Self::len`] and [`Self::is_writable`].
    pub fn write(&self, offset: u64, bytes: &[u8]) {
        let to = self.at(offset, bytes.len());
        touch(self.owner, self.owner);
        // SAFETY: `at` checked that `bytes.len()` bytes are mapped from `to`; `bytes` is our own
        // memory, which no mapping of a memfd overlaps. Our side has no reference to mapped bytes.
        unsafe { copies::write(to, bytes) };
    }

    /// Copies `bytes` bytes of `from`, which may be this very memory, to `offset`, in the order of
    /// [`Self::write`]. Bytes that the client changes meanwhile arrive old, new or mixed.
    ///
    /// # Panics
    /// When either range does not lie inside, as [`Self::write`].
    pub fn copy(&self, offset: u64, from: &Self, from_offset: u64, bytes: usize) {
        let (to, at) = (self.at(offset, bytes), from.at(from_offset, bytes));
        touch(from.owner, self.owner);
        // SAFETY: `at` checked that `bytes` bytes are mapped from both.
        unsafe { copies::copy(to, at, bytes) };
    }

    /// Copies the bytes at `offset` to `into`. Bytes that the client changes meanwhile arrive old,
    /// new or mixed.
    ///
    /// # Panics
    /// When the range does not lie inside, as [`Self::write`].
    pub fn read(&self, offset: u64, into: &mut [u8]) {
        let from = self.at(offset, into.len());
        touch(self.owner, self.owner);
        // SAFETY: `at` checked that `into.len()` bytes are mapped from `from`; `into` is our own
        // memory, which no mapping of a memfd overlaps.
        unsafe { copies::read(from, into) };
    }

    /// Executes an atomic operation on the eight bytes at `offset`, and returns the value before.
    /// Atomic against every worker and against the client's own atomics: all map the same pages.
    ///
    /// # Panics
    /// When they do not lie inside, as [`Self::write`], or `offset` is no multiple of eight: the
    /// engine checks that.
    pub fn atomic(&self, offset: u64, operation: AtomicOperation) -> u64 {
        assert!(offset.is_multiple_of(8), "an atomic operation is aligned");
        let at = self.at(offset, 8);
        touch(self.owner, self.owner);
        // SAFETY: `at` checked that 8 bytes are mapped from there, for as long as `self` lives; a
        // mapping begins on a page, so a multiple of eight in it is aligned. This process has no
        // reference to these bytes except as atomics.
        unsafe { copies::atomic(at, operation) }
    }

    fn at(&self, offset: u64, bytes: usize) -> NonNull<u8> {
        self.mapping.at(usize::try_from(offset).unwrap_or(usize::MAX), bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        ffi::c_void,
        io,
        num::NonZeroUsize,
        os::fd::AsFd,
        sync::{
            Arc, OnceLock,
            atomic::{AtomicU64, Ordering},
        },
        time::{Duration, Instant},
    };

    use nix::{
        fcntl::{FallocateFlags, FcntlArg, SealFlag, fallocate, fcntl},
        sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap},
        unistd::ftruncate,
    };
    use proptest::prelude::*;

    use roced_types::AccountId;

    use super::*;
    use crate::{accounts::ClientAccounts, first_touch, mapping::has_no_holes_to_come, quota::Quota};

    fn map(fd: impl AsFd, bytes: usize, protection: ProtFlags) -> Result<NonNull<c_void>, Errno> {
        let length = NonZeroUsize::new(bytes).expect("tests map something");
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        unsafe { mmap(None, length, protection, MapFlags::MAP_SHARED, fd, 0) }
    }

    /// Memory of which a client has touched every page.
    fn touched(bytes: u64) -> (ClientMemory, OwnedFd) {
        let (memory, fd) = ClientMemory::create(bytes, Room::default()).map_err(io::Error::from).expect("a page");
        write_all(&fd, memory.len() as usize);
        (memory, fd)
    }

    fn write_all(fd: impl AsFd, bytes: usize) {
        assert_eq!(nix::sys::uio::pwrite(fd, &vec![0; bytes], 0), Ok(bytes), "every page is touched");
    }

    #[test]
    fn a_page_that_no_client_has_touched_is_not_made_by_an_access_of_ours() {
        if first_touch::clients_pay().is_err() {
            return println!("skipped: no userfaultfd here");
        }
        let blocks = |fd: &OwnedFd| fstat(fd).expect("a file").st_blocks;
        let (memory, fd) = ClientMemory::create(8192, Room::default()).expect("two pages");
        assert_eq!(nix::sys::uio::pwrite(&fd, b"x", 4096), Ok(1));
        let (before, mut bytes) = (blocks(&fd), [0; 2]);
        memory.read(4096, &mut bytes);
        memory.write(4097, b"y");
        assert_eq!((bytes, memory.is_lost(), blocks(&fd)), ([b'x', 0], false, before));
        memory.write(0, b"z");
        assert_eq!((memory.is_lost(), blocks(&fd)), (true, before));
        // In a mapping for reading as well, of a file that is not open for writing.
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd));
        let readable: OwnedFd = std::fs::File::open(path).expect("to read").into();
        let room = Room::default();
        let mapping = Mapping::of(&readable, 0..8192, false, room).expect("two pages");
        let memory = ClientMemory { mapping, kind: MemoryKind::FileBacked, writable: false, owner: NONE };
        memory.read(4096, &mut bytes);
        assert_eq!((bytes, memory.is_lost()), (*b"xy", false));
        assert_eq!(nix::sys::uio::pwrite(&fd, b"w", 4096), Ok(1));
        memory.read(4096, &mut bytes);
        assert_eq!(bytes, *b"wy", "it shows the file, not a copy");
        memory.read(0, &mut bytes);
        assert_eq!((memory.is_lost(), blocks(&fd)), (true, before));
    }

    #[test]
    fn a_client_cannot_resize_mapped_memory_nor_punch_holes_once_it_is_sealed() {
        let (memory, fd) = ClientMemory::create(5000, Room::default()).expect("two pages");
        assert_eq!(memory.len(), 8192);
        assert_eq!(ftruncate(&fd, 4096), Err(Errno::EPERM));
        assert_eq!(ftruncate(&fd, 12288), Err(Errno::EPERM));
        assert_eq!(fcntl(&fd, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_WRITE)), Err(Errno::EBUSY), "it is mapped");
        let punched = || {
            let mode = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
            fallocate(&fd, mode, 0, 4096)
        };
        assert_eq!((punched(), has_no_holes_to_come(&fd)), (Ok(()), false));
        write_all(&fd, 8192);
        let theirs = map(&fd, 8192, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE).expect("a client can map it");
        fcntl(&fd, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_FUTURE_WRITE)).expect("a client can seal it");
        assert_eq!((punched(), has_no_holes_to_come(&fd)), (Err(Errno::EPERM), true));
        // SAFETY: a page of shared memory, which no code refers to.
        let removed = unsafe { madvise(theirs, 4096, MmapAdvise::MADV_REMOVE) };
        assert_eq!(removed, Err(Errno::EPERM), "by a mapping");
        memory.write(8191, &[7]);
        // SAFETY: inside the two pages, mapped until the process ends.
        let last = unsafe { theirs.cast::<std::sync::atomic::AtomicU8>().add(8191).as_ref() };
        assert_eq!(last.load(Ordering::Relaxed), 7);
        assert_eq!(ClientMemory::create(0, Room::default()).map(drop), Err(Errno::EINVAL));
        assert_eq!(ClientMemory::create(u64::MAX, Room::default()).map(drop), Err(Errno::EFBIG));
    }

    #[test]
    fn the_last_byte_is_inside_and_the_next_is_not() {
        let (memory, _fd) = touched(4096);
        memory.write(4095, &[1]);
        memory.write(4096, &[]);
        let outside = |act: &dyn Fn()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(act)).is_err();
        assert!(outside(&|| memory.write(4095, &[1, 2])));
        assert!(outside(&|| memory.read(4096, &mut [0])));
        assert!(outside(&|| memory.write(u64::MAX, &[1])));
        assert!(outside(&|| memory.write(u64::MAX - 1, &[0; 16])));
    }

    /// Two mappings of one memfd, as two processes have them: no operation of either is lost.
    #[test]
    fn atomic_operations_hold_against_another_mapping() {
        const ROUNDS: u64 = 100_000;
        let (memory, fd) = touched(4096);
        let theirs = map(&fd, 4096, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE).expect("a client can map it");
        // SAFETY: the second word of a page that is mapped until the end of the process, used only
        // as an atomic.
        let word: &AtomicU64 = unsafe { theirs.cast::<AtomicU64>().add(1).as_ref() };
        std::thread::scope(|scope| {
            scope.spawn(|| (0..ROUNDS).for_each(|_| _ = word.fetch_add(1, Ordering::Relaxed)));
            scope.spawn(|| (0..ROUNDS).for_each(|_| _ = memory.atomic(8, AtomicOperation::FetchAdd { add: 1 })));
            let mut swapped = 0;
            while swapped < ROUNDS {
                let compare = word.load(Ordering::Relaxed);
                let swap = AtomicOperation::CompareSwap { compare, swap: compare + 1 };
                swapped += u64::from(memory.atomic(8, swap) == compare);
            }
        });
        assert_eq!(word.load(Ordering::Relaxed), 3 * ROUNDS);
        let refused = std::panic::catch_unwind(|| memory.atomic(4, AtomicOperation::FetchAdd { add: 1 }));
        assert!(refused.is_err(), "not aligned");
    }

    #[test]
    fn dropped_memory_is_unmapped() {
        // A length of its own, so that no other test's mapping is taken for it.
        let (memory, fd) = ClientMemory::create(123 << 12, Room::default()).expect("123 pages");
        let start = memory.at(0, 1).as_ptr().addr();
        let mine = format!("{start:x}-{:x} ", start + (123 << 12));
        let mapped = || std::fs::read_to_string("/proc/self/maps").map(|maps| maps.contains(&mine));
        assert!(mapped().expect("maps can be read"));
        drop((memory, fd));
        assert!(!mapped().expect("maps can be read"));
    }

    /// Notes at its end whether a range of addresses is mapped.
    #[derive(Debug)]
    struct Witness(Arc<(OnceLock<String>, OnceLock<bool>)>);

    impl Drop for Witness {
        fn drop(&mut self) {
            let maps = std::fs::read_to_string("/proc/self/maps").expect("maps can be read");
            let is_mapped = self.0.0.get().is_some_and(|range| maps.contains(range));
            self.0.1.set(is_mapped).expect("it ends once");
        }
    }

    #[test]
    fn memory_counts_for_its_account_until_a_thread_of_the_user_has_unmapped_it() {
        const BYTES: usize = 20_011 << 12;
        let quota = Quota::new(10, 10).unmapped_by(ClientAccounts::default());
        let seen = Arc::new((OnceLock::new(), OnceLock::new()));
        let room = quota.take(AccountId(1), 1).expect("room").with_charge(Box::new(Witness(Arc::clone(&seen))));
        let (memory, fd) = ClientMemory::create(BYTES as u64, room).expect("room");
        let start = memory.at(0, 1).as_ptr().addr();
        // The end goes first; the beginning is mapped until the last piece.
        seen.0.set(format!("{start:x}-")).expect("it is set once");
        write_all(&fd, BYTES);
        drop((memory, fd));
        let begin = Instant::now();
        while seen.1.get().is_none() {
            assert!(begin.elapsed() < Duration::from_secs(20), "it is never given back");
            std::thread::yield_now();
        }
        assert_eq!(seen.1.get(), Some(&false));
    }

    proptest! {
        /// Against a plain vector: any place and length, so that every alignment of the tail
        /// occurs.
        #[test]
        fn bytes_come_back_as_written(writes in proptest::collection::vec((0u64..200, proptest::collection::vec(any::<u8>(), 0..56)), 1..12)) {
            let (memory, _fd) = touched(4096);
            let mut model = vec![0; 4096];
            for (offset, bytes) in writes {
                memory.write(offset, &bytes);
                model[offset as usize..][..bytes.len()].copy_from_slice(&bytes);
                let mut all = vec![0; 4096];
                memory.read(0, &mut all);
                prop_assert!(all == model);
            }
        }
    }
}
