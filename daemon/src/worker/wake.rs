//! How one thread of the daemon wakes a worker that blocks.
//!
//! A worker that goes to sleep announces it, checks everything once more and blocks
//! ([`super::idle`]). A thread that gives it work reads the word afterward and writes the eventfd
//! only if it is set: a busy worker costs its callers no system call.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    sync::atomic::AtomicU32,
};

use nix::sys::eventfd::{EfdFlags, EventFd};
use roced_abi::doorbell::{announce_awake, announce_sleep, must_wake};

/// Wakes one worker; shared by all threads of the daemon. Clients have eventfds of their
/// own.
#[derive(Debug)]
pub struct Waker {
    asleep: AtomicU32,
    event: EventFd,
}

impl Waker {
    /// The waker of a worker that is awake.
    ///
    /// # Errors
    /// The kernel's, when it gives no eventfd.
    pub fn new() -> io::Result<Self> {
        let event = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(Self { asleep: AtomicU32::new(0), event })
    }

    /// Wakes the worker if it sleeps. The caller has published its work before.
    pub fn wake(&self) {
        if must_wake(&self.asleep) {
            // A counter that is full (EAGAIN) wakes just as well, and nothing else can fail on an
            // eventfd of our own.
            let _ = self.event.write(1);
        }
    }

    /// The worker says that it goes to sleep. It looks at everything once more after this.
    pub fn announce_sleep(&self) {
        announce_sleep(&self.asleep);
    }

    /// The worker announces that it is awake, and forgets the source of the wake-up.
    pub fn announce_awake(&self) {
        announce_awake(&self.asleep);
        // EAGAIN when something else woke it.
        let _ = self.event.read();
    }

    /// True while the worker blocks, or is about to.
    pub fn is_asleep(&self) -> bool {
        must_wake(&self.asleep)
    }
}

impl AsFd for Waker {
    /// Readable after a wake-up.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
