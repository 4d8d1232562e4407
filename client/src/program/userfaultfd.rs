//! The write-protection part of the kernel's userfaultfd: `linux/userfaultfd.h`.
#![expect(unsafe_code, reason = "ioctls with structures of the kernel")]

use std::{
    ops::Range,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

use libc::c_int;
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
};

use crate::error::{Error, Result};

const API: u64 = 0xaa;
/// Write protection of private pages (Linux 5.7).
const FEATURE_WRITE_PROTECT: u64 = 1 << 0;
/// Write protection of shared pages (Linux 5.19).
const FEATURE_WRITE_PROTECT_SHARED: u64 = 1 << 12;
/// Flag for [`open`]: reports only faults of programs, not those of system calls. The only mode
/// without privileges.
const USER_MODE_ONLY: c_int = 1;
const REGISTER_WRITE_PROTECT: u64 = 1 << 1;
const WRITE_PROTECT: u64 = 1 << 0;

#[repr(C)]
struct Handshake {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct Span {
    start: u64,
    length: u64,
}

#[repr(C)]
struct Register {
    range: Span,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
struct WriteProtect {
    range: Span,
    mode: u64,
}

mod raw {
    use super::{Handshake, Register, Span, WriteProtect};

    nix::ioctl_readwrite!(api, 0xaa, 0x3f, Handshake);
    nix::ioctl_readwrite!(register, 0xaa, 0x00, Register);
    nix::ioctl_read!(unregister, 0xaa, 0x01, Span);
    nix::ioctl_read!(wake, 0xaa, 0x02, Span);
    nix::ioctl_readwrite!(write_protect, 0xaa, 0x06, WriteProtect);
}

fn span(range: &Range<usize>) -> Span {
    Span { start: range.start as u64, length: range.len() as u64 }
}

/// Opens a userfaultfd of this process. Closing it undoes all of its effects.
///
/// # Errors
/// The kernel is too old, or denies it to this program.
pub(super) fn open() -> Result<OwnedFd> {
    let fd = match open_with(0) {
        Err(Errno::EPERM) => open_with(USER_MODE_ONLY),
        other => other,
    };
    let fd = fd.map_err(|errno| Error::NoPageExchange { errno })?;
    let features = FEATURE_WRITE_PROTECT | FEATURE_WRITE_PROTECT_SHARED;
    let mut handshake = Handshake { api: API, features, ioctls: 0 };
    // SAFETY: the structure is the kernel's for this call, and outlives it.
    unsafe { raw::api(fd.as_raw_fd(), &raw mut handshake) }.map_err(|errno| Error::NoPageExchange { errno })?;
    Ok(fd)
}

fn open_with(flags: c_int) -> nix::Result<OwnedFd> {
    // SAFETY: the call takes flags and creates a descriptor.
    let fd =
        Errno::result(unsafe { libc::syscall(libc::SYS_userfaultfd, flags | libc::O_CLOEXEC | libc::O_NONBLOCK) })?;
    // SAFETY: the kernel has just created the descriptor, so it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(c_int::try_from(fd).expect("a descriptor")) })
}

/// Registers `range`, which can be write-protected from now on.
pub(super) fn register(fd: BorrowedFd<'_>, range: &Range<usize>) -> Result<()> {
    let mut request = Register { range: span(range), mode: REGISTER_WRITE_PROTECT, ioctls: 0 };
    // SAFETY: as in `open`; it changes no byte and no mapping.
    let result = unsafe { raw::register(fd.as_raw_fd(), &raw mut request) };
    result.map(drop).map_err(Error::kernel("UFFDIO_REGISTER"))
}

/// Removes the protection and wakes the waiting threads.
pub(super) fn unregister(fd: BorrowedFd<'_>, range: &Range<usize>) -> Result<()> {
    let mut request = span(range);
    // SAFETY: as in `register`.
    let result = unsafe { raw::unregister(fd.as_raw_fd(), &raw mut request) };
    result.map(drop).map_err(Error::kernel("UFFDIO_UNREGISTER"))?;
    // The kernel itself wakes only threads that wait for missing pages.
    wake(fd, range)
}

/// Write-protects `range`: after the return no thread writes there, and writers wait.
pub(super) fn write_protect(fd: BorrowedFd<'_>, range: &Range<usize>) -> Result<()> {
    let mut request = WriteProtect { range: span(range), mode: WRITE_PROTECT };
    // SAFETY: as in `register`.
    let result = unsafe { raw::write_protect(fd.as_raw_fd(), &raw mut request) };
    result.map(drop).map_err(Error::kernel("UFFDIO_WRITEPROTECT"))
}

/// Returns true if a thread waits for a page.
pub(super) fn a_thread_waits(fd: BorrowedFd<'_>) -> bool {
    let mut looked = [PollFd::new(fd, PollFlags::POLLIN)];
    // A failure counts as no waiter.
    poll(&mut looked, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}

/// Makes threads that wait for `range` try again.
pub(super) fn wake(fd: BorrowedFd<'_>, range: &Range<usize>) -> Result<()> {
    let mut request = span(range);
    // SAFETY: as in `register`.
    let result = unsafe { raw::wake(fd.as_raw_fd(), &raw mut request) };
    result.map(drop).map_err(Error::kernel("UFFDIO_WAKE"))
}
