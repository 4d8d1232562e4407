//! Puts other pages under addresses that the program's threads use, without losing a byte that they write meanwhile.
//!
//! ```text
//!   fresh pages elsewhere ── locks free? ── write-protect the old ones ── copy ── put the fresh ones in their place ── let writers go on
//!                                           └────────────── whoever writes there waits, whoever reads does not ──────────────┘
//! ```
//!
//! The kernel's userfaultfd holds the writers, and does not hold readers: so nothing is ever missing, whatever becomes of us on the way. (The
//! other way, to move the old pages off and to hold whoever touches the empty place, costs the same, holds readers too, and a process
//! that is forked from within sees nothing there.) It is done in chunks, so that nobody waits for long.
//!
//! Between the protection and the move this code writes to nothing but its own stack and the fresh pages, for what it works on may be the page
//! that anything else lies on. So it runs on a thread of its own. It makes system calls itself: libraries that want to know
//! what a program maps replace the functions of libc, and this is not theirs to see.
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
    turns::Turns,
    userfaultfd as uffd,
};
use crate::{
    error::{Error, Result},
    mapping::racing_copy,
};

/// How long those who waited have to go on before the next piece: else they want locks of the address space while we do, and who is preempted
/// with one holds us up while we hold others.
const PAUSE: Duration = Duration::from_micros(100);

/// Which part of the time that a piece took is a pause in any case. The kernel takes the core for 50 ms from threads that go first when they have had it for 950 ms
/// of a second, and does not ask whom they hold (seen: by 50.0 ms of an idle core).
const PAUSE_PART: u32 = 12;

/// How often it is tried to find the locks free.
const LOOKS: u32 = 20;

/// Exchanges pages of this process.
#[derive(Debug)]
pub(super) struct Exchange<'f> {
    /// Of the shared pages: each lies at the offset that is its address.
    file: BorrowedFd<'f>,
    faults: OwnedFd,
    turns: Turns,
    /// Before the next piece.
    pause: Duration,
    pace: Pace,
    begin: Instant,
    cost: ExchangeCost,
}

/// What the new pages are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PageKind {
    /// Of the file.
    Shared,
    Private,
}

impl<'f> Exchange<'f> {
    /// On the thread that is to do it.
    ///
    /// # Errors
    /// The kernel does not have what is needed, or not for this program.
    pub(super) fn new(file: BorrowedFd<'f>) -> Result<Self> {
        let (pace, begin, cost) = (Pace::new(), Instant::now(), ExchangeCost::default());
        let turns = Turns::take();
        Ok(Self { file, faults: uffd::open()?, turns, pause: Duration::ZERO, pace, begin, cost })
    }

    /// What all of it has cost.
    pub(super) fn cost(self) -> ExchangeCost {
        ExchangeCost { took: self.begin.elapsed(), ..self.cost }
    }

    /// Puts the bytes of `area`, which is private, into the file, at the offset that is their address, and shows the file there.
    pub(super) fn share(&mut self, area: &Area) -> Result<()> {
        self.in_chunks(area, PageKind::Shared)
    }

    /// Puts the bytes of `area`, which is shared, into private pages, and those into its place.
    pub(super) fn unshare(&mut self, area: &Area) -> Result<()> {
        self.in_chunks(area, PageKind::Private)
    }

    fn in_chunks(&mut self, area: &Area, kind: PageKind) -> Result<()> {
        let here = 0u8;
        assert!(!area.range.contains(&(&raw const here).addr()), "this thread's stack is nobody else's memory");
        let mut start = area.range.start;
        while start < area.range.end {
            let chunk = start..self.pace.end(start).min(area.range.end);
            start = chunk.end;
            thread::sleep(self.pause);
            let begin = Instant::now();
            // A thread that is preempted while it changes what is mapped keeps others waiting in their faults.
            self.turns.go_first();
            let done = self.one(&chunk, area, kind);
            self.turns.end_urgent();
            let waited_for = done?;
            self.cost.pieces_waited_for += u32::from(waited_for);
            self.pause = (begin.elapsed() / PAUSE_PART).max(if waited_for { PAUSE } else { Duration::ZERO });
        }
        Ok(())
    }

    /// Says whether somebody waited.
    fn one(&mut self, chunk: &Range<usize>, area: &Area, kind: PageKind) -> Result<bool> {
        let fresh = match kind {
            PageKind::Shared => {
                populate_read(chunk)?;
                Fresh::map(chunk.len(), libc::MAP_SHARED, self.file.as_raw_fd(), chunk.start)?
            }
            PageKind::Private => Fresh::private(chunk.len())?,
        };
        self.turns.begin_urgent();
        self.register(chunk)?;
        let faults = self.faults.as_fd();
        let begin = Instant::now();
        let done = uffd::write_protect(faults, chunk).and_then(|()| {
            let copying = Instant::now();
            // SAFETY: `chunk` is mapped, as the caller of `register_at` promised, and may be read, as was looked up. Other threads read
            // there, none writes now.
            unsafe { fresh.copy_from(chunk.start) };
            self.pace.copied(chunk.len(), copying.elapsed());
            match kind {
                PageKind::Shared => show(self.file, chunk, area).map(|()| Some(fresh)),
                PageKind::Private => fresh.move_to(chunk, area).map(|()| None),
            }
        });
        let waited_for = uffd::someone_waits(faults);
        let done = match done {
            // What was protected is gone: those who wait for it have to be told.
            Ok(rest) => uffd::wake(faults, chunk).map(|()| rest),
            // Takes the protection off and tells them.
            Err(error) => uffd::unregister(faults, chunk).and(Err(error)),
        };
        self.cost.longest = self.cost.longest.max(begin.elapsed());
        self.cost.pieces += 1;
        drop(done?);
        Ok(waited_for)
    }

    /// Registers `chunk` with userfaultfd, and returns when nobody has a lock that the exchange needs and waits for a core: the kernel gives a lock to those who wait
    /// for it while they sleep, and they have it until they have run. So locks are taken until that goes without sleeping.
    fn register(&self, chunk: &Range<usize>) -> Result<()> {
        let faults = self.faults.as_fd();
        for _ in 0..LOOKS {
            let before = sleeps();
            // Makes a mapping of its own of it: the locks of the old pages.
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

/// Pages that nobody knows yet.
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
        // Populated before writers are held, so that they wait for a copy only.
        let flags = flags | libc::MAP_POPULATE;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let base = unsafe { libc::syscall(libc::SYS_mmap, 0usize, bytes, protection, flags, fd, offset) };
        let base = checked("mmap", base)?;
        Ok(Self { base: pointer(base as usize), bytes })
    }

    /// Copies what lies at `address` there.
    ///
    /// # Safety
    /// As many bytes are mapped for reading there.
    pub(super) unsafe fn copy_from(&self, address: usize) {
        // SAFETY: the caller vouches for one range; the other is a mapping of our own that nobody else knows, so they do not overlap.
        unsafe { racing_copy(pointer(address), self.base, self.bytes) };
    }

    /// Puts it in the place of `chunk`, with the protection of `area`.
    pub(super) fn move_to(self, chunk: &Range<usize>, area: &Area) -> Result<()> {
        let at = self.base.as_ptr().addr();
        let protection = protection_of(area);
        if protection != libc::PROT_READ | libc::PROT_WRITE {
            // SAFETY: our own mapping, which nobody else knows.
            let result = unsafe { libc::syscall(libc::SYS_mprotect, at, self.bytes, protection) };
            checked("mprotect", result)?;
        }
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: `self` is a mapping that nobody else knows. In its new place lies memory with the same bytes, which nobody writes now; the
        // kernel does it in one step for all other threads.
        let result = unsafe { libc::syscall(libc::SYS_mremap, at, self.bytes, self.bytes, flags, chunk.start) };
        checked("mremap", result)?;
        // It is not ours to unmap any more.
        std::mem::forget(self);
        Ok(())
    }
}

/// Shows `file` in the place of `chunk`, with the protection of `area`. Moving a mapping of it there would take the lock of the file's mappings three times, and who comes for it
/// meanwhile (the kernel's memory monitor does) gets it in between, and holds us up until it has a core.
fn show(file: BorrowedFd<'_>, chunk: &Range<usize>, area: &Area) -> Result<()> {
    // Populated: a thread in a fault has locks, too.
    let (flags, fd) = (libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_POPULATE, file.as_raw_fd());
    // SAFETY: in its place lies memory with the same bytes, which nobody writes now; the kernel does it in one step for all other threads.
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

/// How often this thread has waited for anything but a core.
fn sleeps() -> Option<c_long> {
    getrusage(UsageWho::RUSAGE_THREAD).ok().map(|usage| usage.voluntary_context_switches())
}

/// Takes the locks of the address space and of the file's mappings, and gives them back.
fn take_locks(file: BorrowedFd<'_>, offset: usize) -> Result<()> {
    let (protection, fd) = (libc::PROT_READ, file.as_raw_fd());
    // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
    let at = unsafe { libc::syscall(libc::SYS_mmap, 0usize, PAGE_BYTES, protection, libc::MAP_SHARED, fd, offset) };
    let at = checked("mmap", at)?;
    // SAFETY: it was mapped a moment ago, and nobody else knows it.
    checked("munmap", unsafe { libc::syscall(libc::SYS_munmap, at, PAGE_BYTES) }).map(drop)
}

impl Drop for Fresh {
    fn drop(&mut self) {
        // SAFETY: our own mapping, which nobody else knows. It fails only where the kernel has no memory to split mappings, and
        // then it stays, to no harm.
        unsafe { libc::syscall(libc::SYS_munmap, self.base.as_ptr().addr(), self.bytes) };
    }
}

/// Maps every page of `range` that has none yet, for reading: what is not mapped cannot be protected.
fn populate_read(range: &Range<usize>) -> Result<()> {
    populate(range, false)
}

/// Maps every page of `range` that has none yet, for writing if `write` says so.
pub(super) fn populate(range: &Range<usize>, write: bool) -> Result<()> {
    let advice = if write { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    // SAFETY: it changes no byte.
    let result = unsafe { libc::syscall(libc::SYS_madvise, range.start, range.len(), advice) };
    checked("madvise", result).map(drop)
}

/// Says whether a forked child has a mapping at `range`.
pub(super) fn fork_with(range: &Range<usize>, there: bool) {
    let advice = if there { libc::MADV_DOFORK } else { libc::MADV_DONTFORK };
    // SAFETY: it changes no byte of this process. What fails leaves things as they are: there is nobody to tell.
    unsafe { libc::syscall(libc::SYS_madvise, range.start, range.len(), advice) };
}

/// Forgets what `file` has at `range`.
pub(super) fn punch(file: BorrowedFd<'_>, range: &Range<usize>) -> Result<()> {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: it touches only the file, and the caller says that nobody maps this part of it.
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
