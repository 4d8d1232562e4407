//! A descriptor that is readable while one of several others is: an epoll instance.
//!
//! It is made by system calls, past the C library. Libraries that are preloaded to replace sockets
//! replace epoll as well (librspreload since rdma-core 65), and hold a lock of theirs while
//! librdmacm asks for devices.
#![expect(unsafe_code, reason = "system calls of epoll")]

use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};

use nix::errno::Errno;

/// An epoll instance that is never asked for its events.
#[derive(Debug)]
pub(crate) struct Readiness(OwnedFd);

impl Readiness {
    /// Readable while none of the descriptors is watched: never.
    pub(crate) fn new() -> nix::Result<Self> {
        // SAFETY: takes no memory.
        let fd = Errno::result(unsafe { libc::syscall(libc::SYS_epoll_create1, libc::EPOLL_CLOEXEC) })?;
        let fd = RawFd::try_from(fd).map_err(|_| Errno::EMFILE)?;
        // SAFETY: the call has made it, and nothing else owns it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Watches `fd` for `events` (`EPOLLIN` and others).
    pub(crate) fn watch(&self, fd: &impl AsFd, events: libc::c_int) -> nix::Result<()> {
        let mut event = libc::epoll_event { events: events.cast_unsigned(), u64: 0 };
        let fd = fd.as_fd().as_raw_fd();
        // SAFETY: the kernel reads `event` within the call.
        let result =
            unsafe { libc::syscall(libc::SYS_epoll_ctl, self.0.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &raw mut event) };
        Errno::result(result).map(drop)
    }
}

impl AsFd for Readiness {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
