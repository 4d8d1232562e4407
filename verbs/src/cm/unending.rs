//! A wait without an end.
#![expect(unsafe_code, reason = "a semaphore of the C library")]

use std::{cell::UnsafeCell, mem, sync::OnceLock};

use crate::errno::Errno;

/// A semaphore that is never posted.
struct Never(UnsafeCell<libc::sem_t>);

// SAFETY: semaphores are for several threads.
unsafe impl Sync for Never {}
// SAFETY: as above; it is initialized where it stays.
unsafe impl Send for Never {}

/// Waits until a signal interrupts the wait; its handler decides whether the wait goes on. The
/// thread may be canceled here.
pub(super) fn wait() -> Errno {
    static NEVER: OnceLock<Box<Never>> = OnceLock::new();
    let never = NEVER.get_or_init(|| {
        // SAFETY: bytes that the next call initializes.
        let never = Box::new(Never(UnsafeCell::new(unsafe { mem::zeroed() })));
        // SAFETY: the box keeps its place.
        unsafe { libc::sem_init(never.0.get(), 0, 0) };
        never
    });
    // SAFETY: it was initialized above.
    while unsafe { libc::sem_wait(never.0.get()) } == 0 {}
    Errno(libc::EINTR)
}
