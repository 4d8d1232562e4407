//! Page exchange: replaces the pages under addresses that the program uses, without losing a
//! concurrent write.
//!
//! ```text
//!   fresh pages ─ locks free? ─ write-protect old pages ─ copy ─ replace them ─ resume writers
//!                               └ writers to the pages wait, readers do not ┘
//! ```
//!
//! The kernel's userfaultfd blocks the writers and does not block readers: no page is ever missing,
//! even if the exchange stops halfway. (The alternative, to move the old pages away and to block
//! every access to the empty range, costs the same, blocks readers as well, and a process forked
//! meanwhile finds the range empty.) The exchange proceeds in pieces, so that no thread waits for
//! long.
//!
//! Between the protection and the replacement this code writes only to its own stack and to the
//! fresh pages, because the pages under exchange may contain any other data. It therefore runs on a
//! thread of its own. It makes system calls directly: libraries that track the mappings of a
//! program replace functions of libc, and these mappings are not meant for them.
#![expect(unsafe_code, reason = "maps, moves and unmaps memory of the program by system calls")]

use std::{
    ops::Range,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    ptr::NonNull,
    thread,
    time::{Duration, Instant},
};

use libc::{c_int, c_long};
use nix::{
    errno::Errno,
    sys::resource::{UsageWho, getrusage},
};

use super::{
    PAGE_BYTES,
    areas::Area,
    pace::{ExchangeCost, Pace},
    scheduling::Scheduling,
    userfaultfd as uffd,
};
use crate::{
    error::{Error, Result},
    mapping::racing_copy,
};

/// Pause before the next piece if threads waited for the last one. Without it these threads compete
/// for locks of the address space, and a thread preempted with such a lock delays the exchange
/// while the exchange blocks other threads.
const PAUSE: Duration = Duration::from_micros(100);

/// Divisor of the duration of a piece that gives the minimum pause after it. The kernel suspends
/// threads of a real-time policy for 50 ms once they have run for 950 ms of a second, regardless of
/// the threads that they block (observed: 50.0 ms of an idle core).
const PAUSE_PART: u32 = 12;

/// Maximum number of attempts to find the locks free.
const LOOKS: u32 = 20;

/// A page exchange in this process.
#[derive(Debug)]
pub(super) struct Exchange<'f> {
    /// File of the shared pages: each page lies at the offset that equals its address.
    file: BorrowedFd<'f>,
    faults: OwnedFd,
    scheduling: Scheduling,
    /// Pause before the next piece.
    pause: Duration,
    pace: Pace,
    begin: Instant,
    cost: ExchangeCost,
}

/// Kind of the new pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PageKind {
    /// Pages of the file.
    Shared,
    Private,
}

impl<'f> Exchange<'f> {
    /// Creates an exchange, on the thread that performs it.
    ///
    /// # Errors
    /// The kernel lacks a required feature, or denies it to this program.
    pub(super) fn new(file: BorrowedFd<'f>) -> Result<Self> {
        let (pace, begin, cost) = (Pace::new(), Instant::now(), ExchangeCost::default());
        let scheduling = Scheduling::take();
        Ok(Self { file, faults: uffd::open()?, scheduling, pause: Duration::ZERO, pace, begin, cost })
    }

    /// Returns the total cost.
    pub(super) fn cost(self) -> ExchangeCost {
        ExchangeCost { took: self.begin.elapsed(), ..self.cost }
    }

    /// Copies the bytes of `area`, which is private, into the file, at the offset that equals their
    /// address, and maps the file in their place.
    pub(super) fn share(&mut self, area: &Area) -> Result<()> {
        self.in_chunks(area, PageKind::Shared)
    }

    /// Copies the bytes of `area`, which is shared, into private pages, and maps those in their
    /// place.
    pub(super) fn unshare(&mut self, area: &Area) -> Result<()> {
        self.in_chunks(area, PageKind::Private)
    }

    fn in_chunks(&mut self, area: &Area, kind: PageKind) -> Result<()> {
        let here = 0u8;
        assert!(!area.range.contains(&(&raw const here).addr()), "this thread's stack lies outside of the area");
        let mut start = area.range.start;
        while start < area.range.end {
            let chunk = start..self.pace.end(start).min(area.range.end);
            start = chunk.end;
            thread::sleep(self.pause);
            let begin = Instant::now();
            // A thread that is preempted while it changes mappings makes other threads wait in
            // their faults.
            self.scheduling.go_first();
            let done = self.one(&chunk, area, kind);
            self.scheduling.end_urgent();
            let waited_for = done?;
            self.cost.pieces_waited_for += u32::from(waited_for);
            self.pause = (begin.elapsed() / PAUSE_PART).max(if waited_for { PAUSE } else { Duration::ZERO });
        }
        Ok(())
    }

    /// Exchanges one piece. Returns true if a thread waited for it.
    fn one(&mut self, chunk: &Range<usize>, area: &Area, kind: PageKind) -> Result<bool> {
        let fresh = match kind {
            PageKind::Shared => {
                populate_read(chunk)?;
                Fresh::map(chunk.len(), libc::MAP_SHARED, self.file.as_raw_fd(), chunk.start)?
            }
            PageKind::Private => Fresh::private(chunk.len())?,
        };
        self.scheduling.begin_urgent();
        self.register(chunk)?;
        let faults = self.faults.as_fd();
        let begin = Instant::now();
        let done = uffd::write_protect(faults, chunk).and_then(|()| {
            let copying = Instant::now();
            // SAFETY: `chunk` is mapped, as the caller of `register_at` promised, and readable, as
            // was checked. Other threads may read it, but none writes it now.
            unsafe { fresh.copy_from(chunk.start) };
            self.pace.copied(chunk.len(), copying.elapsed());
            match kind {
                PageKind::Shared => show(self.file, chunk, area).map(|()| Some(fresh)),
                PageKind::Private => fresh.move_to(chunk, area).map(|()| None),
            }
        });
        let waited_for = uffd::a_thread_waits(faults);
        let done = match done {
            // The protected pages are gone: threads that wait for them have to be woken.
            Ok(rest) => uffd::wake(faults, chunk).map(|()| rest),
            // Removes the protection and wakes the waiting threads.
            Err(error) => uffd::unregister(faults, chunk).and(Err(error)),
        };
        self.cost.longest = self.cost.longest.max(begin.elapsed());
        self.cost.pieces += 1;
        drop(done?);
        Ok(waited_for)
    }

    /// Registers `chunk` with userfaultfd, at a moment when no thread that waits for a core owns a
    /// lock that the exchange needs. The kernel passes a lock to a sleeping waiter, which owns it
    /// until it has run. The locks are therefore taken repeatedly, until taking them does not
    /// sleep.
    fn register(&self, chunk: &Range<usize>) -> Result<()> {
        let faults = self.faults.as_fd();
        for _ in 0..LOOKS {
            let before = sleeps();
            // Splits off a mapping for the chunk, which takes the locks of the old pages.
            uffd::register(faults, chunk)?;
            take_locks(self.file, chunk.start)?;
            if sleeps() == before {
                return Ok(());
            }
            uffd::unregister(faults, chunk)?;
        }
        uffd::register(faults, chunk)
    }
}

/// Pages unknown to any other code.
#[derive(Debug)]
pub(super) struct Fresh {
    base: NonNull<u8>,
    bytes: usize,
}

impl Fresh {
    pub(super) fn private(bytes: usize) -> Result<Self> {
        Self::map(bytes, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
    }

    fn map(bytes: usize, flags: c_int, fd: c_int, offset: usize) -> Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // Populated before writers are blocked, so that they wait for the copy only.
        let flags = flags | libc::MAP_POPULATE;
        // SAFETY: a new mapping at an address chosen by the kernel affects no existing memory.
        let base = unsafe { libc::syscall(libc::SYS_mmap, 0usize, bytes, protection, flags, fd, offset) };
        let base = checked("mmap", base)?;
        Ok(Self { base: pointer(base as usize), bytes })
    }

    /// Copies the bytes at `address` into these pages.
    ///
    /// # Safety
    /// As many bytes are mapped for reading at `address`.
    pub(super) unsafe fn copy_from(&self, address: usize) {
        // SAFETY: the caller vouches for the source; the destination is a mapping known only to
        // this code, so they do not overlap.
        unsafe { racing_copy(pointer(address), self.base, self.bytes) };
    }

    /// Moves these pages to `chunk`, with the protection of `area`.
    pub(super) fn move_to(self, chunk: &Range<usize>, area: &Area) -> Result<()> {
        let at = self.base.as_ptr().addr();
        let protection = protection_of(area);
        if protection != libc::PROT_READ | libc::PROT_WRITE {
            // SAFETY: a mapping of this code, unknown to any other.
            let result = unsafe { libc::syscall(libc::SYS_mprotect, at, self.bytes, protection) };
            checked("mprotect", result)?;
        }
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: `self` is a mapping unknown to any other code. It replaces memory with the same
        // bytes, which no thread writes now; for all other threads the kernel replaces it in one
        // step.
        let result = unsafe { libc::syscall(libc::SYS_mremap, at, self.bytes, self.bytes, flags, chunk.start) };
        checked("mremap", result)?;
        // The mapping is no longer to be unmapped here.
        std::mem::forget(self);
        Ok(())
    }
}

/// Maps `file` in place of `chunk`, with the protection of `area`. Moving an existing mapping of
/// the file would take the lock of the file's mappings three times; another thread that wants the
/// lock (as the kernel's memory monitor does) gets it in between, and delays the exchange until it
/// has run on a core.
fn show(file: BorrowedFd<'_>, chunk: &Range<usize>, area: &Area) -> Result<()> {
    // Populated, because a thread in a fault owns locks as well.
    let (flags, fd) = (libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_POPULATE, file.as_raw_fd());
    // SAFETY: the mapping replaces memory with the same bytes, which no thread writes now; for all
    // other threads the kernel replaces it in one step.
    let result =
        unsafe { libc::syscall(libc::SYS_mmap, chunk.start, chunk.len(), protection_of(area), flags, fd, chunk.start) };
    checked("mmap", result).map(drop)
}

fn protection_of(area: &Area) -> c_int {
    let rights = |there: bool, right: c_int| if there { right } else { 0 };
    rights(area.readable, libc::PROT_READ)
        | rights(area.writable, libc::PROT_WRITE)
        | rights(area.executable, libc::PROT_EXEC)
}

/// Number of times that this thread waited for anything but a core.
fn sleeps() -> Option<c_long> {
    getrusage(UsageWho::RUSAGE_THREAD).ok().map(|usage| usage.voluntary_context_switches())
}

/// Takes and releases the locks of the address space and of the file's mappings.
fn take_locks(file: BorrowedFd<'_>, offset: usize) -> Result<()> {
    let (protection, fd) = (libc::PROT_READ, file.as_raw_fd());
    // SAFETY: a new mapping at an address chosen by the kernel affects no existing memory.
    let at = unsafe { libc::syscall(libc::SYS_mmap, 0usize, PAGE_BYTES, protection, libc::MAP_SHARED, fd, offset) };
    let at = checked("mmap", at)?;
    // SAFETY: just mapped, and unknown to any other code.
    checked("munmap", unsafe { libc::syscall(libc::SYS_munmap, at, PAGE_BYTES) }).map(drop)
}

impl Drop for Fresh {
    fn drop(&mut self) {
        // SAFETY: a mapping of this code, unknown to any other. Unmapping fails only if the kernel
        // has no memory to split mappings; the mapping stays in that case, without harm.
        unsafe { libc::syscall(libc::SYS_munmap, self.base.as_ptr().addr(), self.bytes) };
    }
}

/// Populates every page of `range` for reading: an unpopulated page cannot be protected.
fn populate_read(range: &Range<usize>) -> Result<()> {
    populate(range, false)
}

/// Populates every page of `range`, for writing if `write` is set.
pub(super) fn populate(range: &Range<usize>, write: bool) -> Result<()> {
    let advice = if write { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    // SAFETY: changes no byte.
    let result = unsafe { libc::syscall(libc::SYS_madvise, range.start, range.len(), advice) };
    checked("madvise", result).map(drop)
}

/// Sets whether a forked child inherits the mapping at `range`.
pub(super) fn fork_with(range: &Range<usize>, there: bool) {
    let advice = if there { libc::MADV_DOFORK } else { libc::MADV_DONTFORK };
    // SAFETY: changes no byte of this process. A failure leaves the setting unchanged and cannot be
    // reported here.
    unsafe { libc::syscall(libc::SYS_madvise, range.start, range.len(), advice) };
}

/// Discards the contents of `file` at `range`.
pub(super) fn punch(file: BorrowedFd<'_>, range: &Range<usize>) -> Result<()> {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: affects only the file, and the caller guarantees that this part of it is not mapped.
    let result = unsafe { libc::syscall(libc::SYS_fallocate, file.as_raw_fd(), mode, range.start, range.len()) };
    checked("fallocate", result).map(drop)
}

fn checked(call: &'static str, result: c_long) -> Result<c_long> {
    Errno::result(result).map_err(Error::kernel(call))
}

fn pointer(address: usize) -> NonNull<u8> {
    debug_assert!(address >= PAGE_BYTES, "nothing is mapped at 0");
    NonNull::new(std::ptr::with_exposed_provenance_mut(address)).expect("nothing is mapped at 0")
}
