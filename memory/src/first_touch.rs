//! Pages that a client has not touched: an access of ours raises SIGBUS there, and makes no page.
//!
//! A page of a shared file belongs to the control group of the process that touches it first. A
//! client that registers memory without touching it, or that punches holes in it, would have the
//! daemon pay for its pages. So the kernel is told, by a userfaultfd of this process, that missing
//! pages of clients' memory are not ours to make: an access of ours is a SIGBUS, of which
//! `sigbus.rs` makes the end of the session. Pages that were moved to a swap area are not missing.
#![expect(unsafe_code, reason = "a system call without wrapper, and ioctls with structures of the kernel")]

use std::{
    ops::Range,
    os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
    sync::OnceLock,
};

use libc::c_int;
use nix::errno::Errno;

const API: u64 = 0xaa;
/// Missing pages of shared memory (Linux 4.11).
const FEATURE_MISSING_SHARED: u64 = 1 << 5;
/// A SIGBUS in place of a message to the holder of the descriptor (Linux 4.14).
const FEATURE_SIGBUS: u64 = 1 << 7;
/// For faults of this program, not of its system calls: needs no privilege (Linux 5.11).
const USER_MODE_ONLY: c_int = 1;
const REGISTER_MISSING: u64 = 1 << 0;

#[repr(C)]
struct MissingPagesHandshake {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct MissingPagesRange {
    start: u64,
    length: u64,
    mode: u64,
    ioctls: u64,
}

mod raw {
    use super::{MissingPagesHandshake, MissingPagesRange};

    nix::ioctl_readwrite!(api, 0xaa, 0x3f, MissingPagesHandshake);
    nix::ioctl_readwrite!(register, 0xaa, 0x00, MissingPagesRange);
}

/// The userfaultfd of this process, or why there is none.
static FAULTS: OnceLock<Result<OwnedFd, Errno>> = OnceLock::new();

/// Checks that clients pay for all pages of their memory, for a warning when the daemon starts.
///
/// # Errors
/// The kernel's: it has no userfaultfd, or forbids it to this process. Missing pages that the
/// daemon touches count as its own.
pub fn clients_pay() -> Result<(), Errno> {
    FAULTS.get_or_init(open).as_ref().map(drop).map_err(|errno| *errno)
}

/// No access of ours makes a page in this mapping of clients' memory, of which it is the whole, as
/// far as the kernel lets us have that.
///
/// # Errors
/// `ENOMEM`. A later unmapping ends it.
pub(super) fn leave_to_client(mapping: &Range<usize>) -> Result<(), Errno> {
    let Ok(faults) = FAULTS.get_or_init(open) else { return Ok(()) };
    let (start, length) = (mapping.start as u64, mapping.len() as u64);
    let mut request = MissingPagesRange { start, length, mode: REGISTER_MISSING, ioctls: 0 };
    // SAFETY: the structure is the kernel's for this call, which changes no byte of the mapping.
    unsafe { raw::register(faults.as_raw_fd(), &raw mut request) }.map(drop)
}

fn open() -> Result<OwnedFd, Errno> {
    let faults = open_with(USER_MODE_ONLY)?;
    let mut handshake =
        MissingPagesHandshake { api: API, features: FEATURE_MISSING_SHARED | FEATURE_SIGBUS, ioctls: 0 };
    // SAFETY: as above.
    unsafe { raw::api(faults.as_raw_fd(), &raw mut handshake) }?;
    Ok(faults)
}

fn open_with(flags: c_int) -> Result<OwnedFd, Errno> {
    // SAFETY: the call takes flags and makes a descriptor.
    let fd =
        Errno::result(unsafe { libc::syscall(libc::SYS_userfaultfd, flags | libc::O_CLOEXEC | libc::O_NONBLOCK) })?;
    // SAFETY: the kernel has just made it, and no other code knows of it.
    Ok(unsafe { OwnedFd::from_raw_fd(RawFd::try_from(fd).map_err(|_| Errno::EBADF)?) })
}
