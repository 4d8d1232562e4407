//! Cost of registering for a machine, without registering: the same bytes are copied, the same
//! calls map and move other memory, on a thread of the same priority.
#![expect(unsafe_code, reason = "maps memory and copies bytes that others write to")]

use std::{
    os::fd::{AsRawFd, OwnedFd},
    sync::atomic::AtomicU64,
    thread,
};

use nix::{
    sys::memfd::{MFdFlags, memfd_create},
    unistd::ftruncate,
};

const PIECE_BYTES: usize = 2 << 20;

/// Copies `words` to a file of its own, piece by piece, each of which is mapped and then moved over
/// the one before.
pub(crate) fn copy_elsewhere(words: &[AtomicU64]) {
    thread::scope(|scope| scope.spawn(|| copy(words)).join().expect("it can be copied"));
}

fn copy(words: &[AtomicU64]) {
    let bytes = size_of_val(words);
    let file: OwnedFd = memfd_create(c"copy", MFdFlags::MFD_CLOEXEC).expect("a memfd");
    ftruncate(&file, bytes as i64).expect("it grows");
    let place = map(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0, PIECE_BYTES);
    for from in (0..bytes).step_by(PIECE_BYTES) {
        let length = PIECE_BYTES.min(bytes - from);
        first(true);
        let fresh = map(libc::MAP_SHARED, file.as_raw_fd(), from, length);
        let source = words.as_ptr().addr() + from;
        // SAFETY: `length` bytes are mapped at both places; those at the first others change
        // meanwhile, which an instruction of the machine does not mind.
        unsafe {
            std::arch::asm!("rep movsb", inout("rcx") length => _, inout("rdi") fresh => _, inout("rsi") source => _,
                options(nostack, preserves_flags));
            // SAFETY: both places are this function's own.
            let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
            assert_eq!(libc::syscall(libc::SYS_mremap, fresh, length, length, flags, place), place as i64);
        }
        first(false);
    }
    // SAFETY: it is this function's own.
    assert_eq!(unsafe { libc::syscall(libc::SYS_munmap, place, PIECE_BYTES) }, 0);
}

/// Where the kernel maps it, populated.
fn map(flags: i32, fd: i32, offset: usize, bytes: usize) -> usize {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = flags | libc::MAP_POPULATE;
    // SAFETY: a new mapping at a place of the kernel's choice.
    let at = unsafe { libc::syscall(libc::SYS_mmap, 0usize, bytes, protection, flags, fd, offset) };
    assert!(at > 0, "it can be mapped");
    at as usize
}

/// Where it may, this thread goes before others, as the one does that exchanges pages.
fn first(first: bool) {
    let (policy, priority) = if first { (libc::SCHED_FIFO, 1) } else { (libc::SCHED_OTHER, 0) };
    let parameters = libc::sched_param { sched_priority: priority };
    // SAFETY: the kernel reads the structure. Without the right nothing changes.
    unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) };
}
