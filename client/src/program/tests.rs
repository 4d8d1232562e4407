//! Tests of page exchange under a running program, which must not notice it.
#![expect(unsafe_code, reason = "maps memory, and reaches it from several threads as programs in other languages do")]

use std::{
    ptr::{self, NonNull},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
};

use super::*;

/// SharedPages exclusively by tests that fork: a child depends on the state of all threads, and tests
/// share more of it than a program would.
pub(super) static FORKS: std::sync::RwLock<()> = std::sync::RwLock::new(());

pub(super) fn no_fork() -> std::sync::RwLockReadGuard<'static, ()> {
    FORKS.read().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Private memory without a file.
struct Plain {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it belongs to no thread, and is accessed by atomics and volatile accesses only.
unsafe impl Sync for Plain {}

impl Plain {
    fn new(bytes: usize) -> Self {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping affects no existing memory.
        let base = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED);
        Self { base: NonNull::new(base.cast()).expect("it is not at 0"), bytes }
    }

    fn range(&self) -> Range<usize> {
        let start = self.base.as_ptr().expose_provenance();
        start..start + self.bytes
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.bytes / 8);
        // SAFETY: inside, aligned, and mapped for the lifetime of `self`.
        unsafe { self.base.cast::<AtomicU64>().add(index).as_ref() }
    }

    /// Reads word `index` from the file.
    fn in_file(&self, held: &SharedPages, index: usize) -> u64 {
        let mut bytes = [0; 8];
        let file = held.file().expect("it is there");
        let offset = (self.range().start + 8 * index) as i64;
        assert_eq!(nix::sys::uio::pread(&file, &mut bytes, offset), Ok(8));
        u64::from_ne_bytes(bytes)
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        // SAFETY: a mapping of this test, not used any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

fn is_private(range: &Range<usize>) -> bool {
    let areas = areas::all().expect("it can be read");
    areas::within(&areas, range).expect("it is mapped").iter().all(Area::is_plain)
}

/// Returns the number of pages of this range that the file of this process contains.
fn pages_in_file(range: &Range<usize>) -> usize {
    let pages = lock(&PAGES);
    let file = &pages.as_ref().expect("something was held").file;
    let in_file = |page: &usize| {
        use nix::unistd::{Whence, lseek};
        lseek(file, *page as i64, Whence::SeekData) == Ok(*page as i64)
    };
    range.clone().step_by(PAGE_BYTES).filter(in_file).count()
}

#[test]
fn private_memory_becomes_shared_and_private_again_with_its_bytes() {
    let _no_fork = no_fork();
    let memory = Plain::new(5 << 20);
    let words = memory.bytes / 8;
    // Every second page was never touched before.
    let value = |index: usize| if (index / 512).is_multiple_of(2) { index as u64 + 1 } else { 0 };
    (0..words)
        .filter(|index| value(*index) > 0)
        .for_each(|index| memory.word(index).store(value(index), Ordering::Relaxed));
    // Not whole pages.
    let asked = memory.range().start + 8..memory.range().end - 8;
    let held = SharedPages::new(&asked, true, PrivateMemory::Auto).expect("it can be shared");
    assert_eq!(held.range(), memory.range());
    assert!(!is_private(&memory.range()));
    for index in 0..words {
        assert_eq!(memory.word(index).load(Ordering::Relaxed), value(index), "{index}");
        if index % 511 == 0 {
            assert_eq!(memory.in_file(&held, index), value(index), "{index}");
        }
    }
    // From now on, program and file see each other's writes.
    memory.word(7).store(77, Ordering::Relaxed);
    assert_eq!(memory.in_file(&held, 7), 77);
    let file = held.file().expect("it is there");
    let at = memory.range().start as i64;
    assert_eq!(nix::sys::uio::pwrite(&file, &88u64.to_ne_bytes(), at), Ok(8));
    assert_eq!(memory.word(0).load(Ordering::Relaxed), 88);
    drop(held);
    assert!(is_private(&memory.range()));
    assert_eq!(pages_in_file(&memory.range()), 0);
    assert_eq!((memory.word(0).load(Ordering::Relaxed), memory.word(7).load(Ordering::Relaxed)), (88, 77));
    assert!((8..words).all(|index| memory.word(index).load(Ordering::Relaxed) == value(index)));
    // The memory belongs to the program alone.
    assert_eq!(nix::sys::uio::pwrite(&file, &99u64.to_ne_bytes(), at), Ok(8));
    assert_eq!(memory.word(0).load(Ordering::Relaxed), 88);
    exchange::punch(file.as_fd(), &memory.range()).expect("it is ours");
}

#[test]
fn pages_stay_shared_while_anything_lies_over_them() {
    let _no_fork = no_fork();
    let memory = Plain::new(8 * PAGE_BYTES);
    (0..8).for_each(|page| memory.word(512 * page).store(page as u64 + 1, Ordering::Relaxed));
    let part = |pages: Range<usize>| {
        let start = memory.range().start;
        start + pages.start * PAGE_BYTES..start + pages.end * PAGE_BYTES
    };
    let inner = SharedPages::new(&part(2..4), true, PrivateMemory::Auto).expect("it can be shared");
    let outer = SharedPages::new(&part(0..6), true, PrivateMemory::Auto).expect("with the shared pages in it");
    let right = SharedPages::new(&part(5..8), true, PrivateMemory::Auto).expect("it overlaps");
    memory.word(512 * 3).store(33, Ordering::Relaxed);
    assert_eq!((memory.in_file(&outer, 512 * 3), memory.in_file(&inner, 512 * 3)), (33, 33));
    drop(outer);
    assert!(is_private(&part(0..2)) && is_private(&part(4..5)));
    assert!(!is_private(&part(2..4)) && !is_private(&part(5..8)));
    assert_eq!(pages_in_file(&memory.range()), 5);
    drop(inner);
    drop(right);
    assert!(is_private(&memory.range()));
    let values: Vec<_> = (0..8).map(|page| memory.word(512 * page).load(Ordering::Relaxed)).collect();
    assert_eq!(values, [1, 2, 3, 33, 5, 6, 7, 8]);
}

/// Two threads count continuously while the pages under their counters are exchanged.
#[test]
fn no_update_is_lost() {
    let _no_fork = no_fork();
    const ROUNDS: usize = 60;
    let memory = Plain::new(3 << 20);
    let words = memory.bytes / 8;
    let stop = AtomicBool::new(false);
    let hammer = |seed: usize| {
        let (memory, stop) = (&memory, &stop);
        move || {
            let (mut done, mut at) = (vec![0u64; 64], seed);
            while !stop.load(Ordering::Relaxed) {
                at = (at * 5 + 3) % 64;
                // Plain loads and stores of this thread's own words, as in programs.
                let word = memory.word(at * (words / 64) + seed);
                word.store(word.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                // And one word that both threads increment.
                memory.word(words - 1).fetch_add(1, Ordering::Relaxed);
                done[at] += 1;
            }
            done
        }
    };
    thread::scope(|scope| {
        let hammers = [scope.spawn(hammer(1)), scope.spawn(hammer(2))];
        for round in 0..ROUNDS {
            let start = memory.range().start + round % 7 * PAGE_BYTES;
            drop(SharedPages::new(&(start..memory.range().end), true, PrivateMemory::Auto).expect("it can be shared"));
        }
        stop.store(true, Ordering::Relaxed);
        let mut total = 0;
        for (seed, hammer) in (1..).zip(hammers) {
            for (at, done) in hammer.join().expect("it counts").into_iter().enumerate() {
                assert_eq!(memory.word(at * (words / 64) + seed).load(Ordering::Relaxed), done, "word {at} of {seed}");
                total += done;
            }
        }
        assert!(total > 0);
        assert_eq!(memory.word(words - 1).load(Ordering::Relaxed), total);
    });
    assert!(is_private(&memory.range()));
}

#[test]
fn a_waiting_access_is_seen_and_continues_if_no_page_was_exchanged() {
    let _no_fork = no_fork();
    let memory = Plain::new(PAGE_BYTES);
    memory.word(0).store(1, Ordering::Relaxed);
    let faults = userfaultfd::open().expect("it is allowed");
    let faults = faults.as_fd();
    userfaultfd::register(faults, &memory.range()).expect("plain memory");
    userfaultfd::write_protect(faults, &memory.range()).expect("it is registered");
    assert!(!userfaultfd::a_thread_waits(faults));
    thread::scope(|scope| {
        let writer = scope.spawn(|| memory.word(0).store(2, Ordering::Relaxed));
        let begin = std::time::Instant::now();
        while !userfaultfd::a_thread_waits(faults) && begin.elapsed().as_secs() < 20 {
            thread::yield_now();
        }
        let held = (userfaultfd::a_thread_waits(faults), writer.is_finished(), memory.word(0).load(Ordering::Relaxed));
        // The writer continues regardless of the outcome of this test.
        userfaultfd::unregister(faults, &memory.range()).expect("it is registered");
        assert_eq!(held, (true, false, 1));
    });
    assert!(!userfaultfd::a_thread_waits(faults) && memory.word(0).load(Ordering::Relaxed) == 2);
}

#[test]
fn the_stack_and_parts_of_heap_pages_can_be_shared() {
    let _no_fork = no_fork();
    let on_stack = [5u8; 3000];
    let at = on_stack.as_ptr().expose_provenance();
    let on_heap: Vec<Box<[u8; 100]>> = (0..100).map(|index| Box::new([index; 100])).collect();
    let boxed = on_heap[50].as_ptr().expose_provenance();
    for round in 0..50 {
        let stack = SharedPages::new(&(at..at + on_stack.len()), true, PrivateMemory::Auto).expect("this very stack");
        let heap = SharedPages::new(&(boxed..boxed + 100), true, PrivateMemory::Auto).expect("with its neighbors");
        // SAFETY: it is mapped; a volatile read, because the compiler knows the value written.
        let byte = unsafe { ptr::read_volatile(&raw const on_stack[round]) };
        assert_eq!(byte, 5);
        let more: Vec<_> = (0..100).map(|index| Box::new([index; 64])).collect();
        assert!(more.iter().zip(0..).all(|(bytes, index)| bytes[0] == index));
        drop((stack, heap));
    }
    assert!(on_heap.iter().zip(0..).all(|(bytes, index)| bytes.iter().all(|byte| *byte == index)));
}

#[test]
fn memory_that_cannot_be_shared_is_refused_and_unchanged() {
    let _no_fork = no_fork();
    let memory = Plain::new(4 * PAGE_BYTES);
    let start = memory.range().start;
    let refused =
        |range: Range<usize>, write| SharedPages::new(&range, write, PrivateMemory::Auto).expect_err("it is refused");
    assert!(matches!(refused(start..start, false), Error::NotMapped { .. }));
    assert!(matches!(refused(usize::MAX - 10..usize::MAX, false), Error::NotMapped { .. }));
    assert!(matches!(refused(0x1000..0x2000, false), Error::NotMapped { .. }));
    // A constant of this program lies in its file.
    static CONSTANT: [u8; 100] = [7; 100];
    let constant = (&raw const CONSTANT).addr();
    let file = refused(constant..constant + 100, false);
    assert!(matches!(&file, Error::OtherMemory { name, .. } if name.contains('/')), "{file}");
    // SAFETY: a mapping of this test; only its first word is used below.
    assert_eq!(unsafe { libc::mprotect(memory.base.as_ptr().add(PAGE_BYTES).cast(), PAGE_BYTES, libc::PROT_READ) }, 0);
    memory.word(0).store(5, Ordering::Relaxed);
    let unwritable = refused(memory.range(), true);
    assert!(matches!(unwritable, Error::NoRights { address } if address == start + PAGE_BYTES), "{unwritable}");
    assert!(is_private(&memory.range()));
    // It can be shared for reading, and is not writable afterward either.
    let held = SharedPages::new(&memory.range(), false, PrivateMemory::Auto).expect("to read");
    let rights = |page: usize| {
        let page = start + page * PAGE_BYTES;
        let areas = areas::all().expect("it can be read");
        let part = areas::within(&areas, &(page..page + PAGE_BYTES)).expect("mapped").remove(0);
        (part.readable, part.writable)
    };
    assert_eq!((rights(0), rights(1)), ((true, true), (true, false)));
    drop(held);
    assert_eq!((rights(0), rights(1)), ((true, true), (true, false)));
    assert_eq!(memory.word(0).load(Ordering::Relaxed), 5);
}

/// A program that unmaps registered memory breaks its promise, but must harm only itself.
#[test]
fn memory_that_was_unmapped_or_moved_is_not_touched() {
    let _no_fork = no_fork();
    let memory = Plain::new(4 * PAGE_BYTES);
    let range = memory.range();
    let held = SharedPages::new(&range, true, PrivateMemory::Auto).expect("it can be shared");
    memory.word(512).store(9, Ordering::Relaxed);
    // The second page moves elsewhere, and other memory takes its place.
    let other = Plain::new(PAGE_BYTES);
    let moved = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: mappings of this test.
    unsafe {
        let page = memory.base.as_ptr().add(PAGE_BYTES);
        let at = libc::mremap(page.cast(), PAGE_BYTES, PAGE_BYTES, moved, other.base.as_ptr());
        assert_ne!(at, libc::MAP_FAILED);
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        assert_ne!(libc::mmap(page.cast(), PAGE_BYTES, protection, flags | libc::MAP_FIXED, -1, 0), libc::MAP_FAILED);
    }
    memory.word(512).store(10, Ordering::Relaxed);
    drop(held);
    assert!(is_private(&range));
    assert_eq!((memory.word(512).load(Ordering::Relaxed), other.word(0).load(Ordering::Relaxed)), (10, 9));
    drop(other);
    // Unmapped memory is forgotten. (A mapping without rights takes its place, to keep other tests
    // from getting these addresses.)
    let held = SharedPages::new(&range, true, PrivateMemory::Auto).expect("once more");
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // SAFETY: a mapping of this test, not used any more.
    let gone = unsafe { libc::mmap(memory.base.as_ptr().cast(), memory.bytes, libc::PROT_NONE, flags, -1, 0) };
    assert_ne!(gone, libc::MAP_FAILED);
    drop(held);
    assert_eq!(pages_in_file(&range), 0);
}

/// Forks; the exit code of the child reports that all of its checks passed.
fn in_child(act: impl FnOnce() -> bool) {
    // SAFETY: the child does little, and needs no thread of the parent; fork of the C library makes
    // its allocator usable there.
    match unsafe { libc::fork() } {
        0 => {
            let good = std::panic::catch_unwind(std::panic::AssertUnwindSafe(act)).unwrap_or(false);
            // SAFETY: ends the process at once.
            unsafe { libc::_exit(if good { 42 } else { 1 }) }
        }
        child => {
            assert!(child > 0);
            let mut status = 0;
            // SAFETY: waits for the child created above.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 42, "the child ended with {status:#x}");
        }
    }
}

#[test]
fn a_child_has_its_own() {
    let _alone = FORKS.write().unwrap_or_else(std::sync::PoisonError::into_inner);
    let memory = Plain::new(4 * PAGE_BYTES);
    let steps = Plain::new(PAGE_BYTES);
    // SAFETY: a mapping of this test: a page shared by both processes, for taking turns.
    unsafe {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        let at = steps.base.as_ptr().cast();
        assert_ne!(libc::mmap(at, PAGE_BYTES, protection, flags | libc::MAP_FIXED, -1, 0), libc::MAP_FAILED);
    }
    let step = steps.word(0);
    let wait_for = |value| {
        while step.load(Ordering::Acquire) != value {
            thread::yield_now();
        }
    };
    (0..4).for_each(|page| memory.word(512 * page).store(page as u64 + 1, Ordering::Relaxed));
    let held =
        SharedPages::new(&(memory.range().start..memory.range().start + 3 * PAGE_BYTES), true, PrivateMemory::Auto)
            .expect("it can be shared");
    // The stack on which fork runs is shared as well.
    let on_stack = AtomicU64::new(70);
    let stack_at = (&raw const on_stack).addr();
    let stack = SharedPages::new(&(stack_at..stack_at + 8), true, PrivateMemory::Auto).expect("this very stack");
    thread::scope(|scope| {
        scope.spawn(|| {
            wait_for(1);
            (0..4).for_each(|page| memory.word(512 * page).store(100, Ordering::Relaxed));
            step.store(2, Ordering::Release);
        });
        in_child(|| {
            on_stack.store(71, Ordering::Relaxed);
            step.store(1, Ordering::Release);
            wait_for(2);
            let seen: Vec<_> = (0..4).map(|page| memory.word(512 * page).load(Ordering::Relaxed)).collect();
            (0..4).for_each(|page| memory.word(512 * page).store(55, Ordering::Relaxed));
            // No memory is shared here, but it can be.
            let private = is_private(&memory.range());
            drop(SharedPages::new(&memory.range(), true, PrivateMemory::Auto).expect("it can be shared in the child"));
            seen == [1, 2, 3, 4] && private && memory.word(0).load(Ordering::Relaxed) == 55
        });
    });
    let seen: Vec<_> = (0..4).map(|page| memory.word(512 * page).load(Ordering::Relaxed)).collect();
    assert_eq!(seen, [100; 4]);
    assert_eq!((memory.in_file(&held, 0), memory.in_file(&held, 1024)), (100, 100), "the parent shares on");
    let file = stack.file().expect("it is there");
    let mut bytes = [0; 8];
    assert_eq!(nix::sys::uio::pread(&file, &mut bytes, stack_at as i64), Ok(8));
    assert_eq!((on_stack.load(Ordering::Relaxed), u64::from_ne_bytes(bytes)), (70, 70), "the stack as well");
}

/// Without privileges the kernel refuses its own writes to a page under exchange, and blocks only
/// those of the program.
#[test]
fn a_program_without_privileges_exchanges_pages_too() {
    let _alone = FORKS.write().unwrap_or_else(std::sync::PoisonError::into_inner);
    if !nix::unistd::geteuid().is_root() {
        return println!("skipped: needs root, to give it up");
    }
    let memory = Plain::new(2 << 20);
    let (words, stop) = (memory.bytes / 8, AtomicBool::new(false));
    in_child(|| {
        // SAFETY: this thread is the only one of the child. The library's wrapper would look for
        // others.
        assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) }, 0);
        thread::scope(|scope| {
            let hammer = scope.spawn(|| {
                let mut done = 0;
                while !stop.load(Ordering::Relaxed) {
                    memory.word(done as usize * 512 % words).fetch_add(1, Ordering::Relaxed);
                    done += 1;
                }
                done
            });
            for _ in 0..100 {
                drop(SharedPages::new(&memory.range(), true, PrivateMemory::Auto).expect("it needs no privilege"));
            }
            stop.store(true, Ordering::Relaxed);
            let done: u64 = hammer.join().expect("it counts");
            done > 0 && (0..words).map(|index| memory.word(index).load(Ordering::Relaxed)).sum::<u64>() == done
        })
    });
}
