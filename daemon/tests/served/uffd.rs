//! Pages that do not arrive, or cannot be written yet: an accessing thread waits.
#![expect(unsafe_code, reason = "system calls that no crate wraps")]

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use libc::c_int;
use nix::errno::Errno;

#[repr(C)]
struct Handshake {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct Register {
    start: u64,
    length: u64,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
struct WriteProtect {
    start: u64,
    length: u64,
    mode: u64,
}

/// `UFFD_API`, `UFFDIO_REGISTER_MODE_MISSING`, `UFFDIO_REGISTER_MODE_WP`, `UFFDIO_WRITEPROTECT_MODE_WP`.
const API: u64 = 0xaa;
const MISSING: u64 = 1;
const WRITES: u64 = 2;
const PROTECT: u64 = 1;

/// `UFFD_USER_MODE_ONLY`: needs no privilege.
const USER_MODE_ONLY: c_int = 1;

nix::ioctl_readwrite!(shake_hands, 0xaa, 0x3f, Handshake);
nix::ioctl_readwrite!(register, 0xaa, 0x00, Register);
nix::ioctl_readwrite!(write_protect, 0xaa, 0x06, WriteProtect);

/// Until this is closed every thread that accesses a missing page of the `bytes` bytes at `start`
/// waits, as behind a thread that punches a hole there; `None` where no process may have that. Only
/// the daemon may access them.
pub(crate) fn withhold(start: usize, bytes: usize) -> Option<OwnedFd> {
    let fd = open(0)?;
    watch(&fd, start, bytes, MISSING);
    Some(fd)
}

/// Until this is closed every thread that writes to the `bytes` bytes at `start`, whole pages of
/// private memory, waits, as for a page that the system has moved out; `None` where no process may
/// have that.
pub(crate) fn hold_writes(start: usize, bytes: usize) -> Option<OwnedFd> {
    let fd = open(USER_MODE_ONLY)?;
    watch(&fd, start, bytes, WRITES);
    let mut range = WriteProtect { start: start as u64, length: bytes as u64, mode: PROTECT };
    // SAFETY: the structure lives through the call, which changes no byte of the range.
    unsafe { write_protect(fd.as_raw_fd(), &raw mut range) }.expect("writes can be waited for");
    Some(fd)
}

fn open(flags: c_int) -> Option<OwnedFd> {
    // SAFETY: the call takes flags and makes a descriptor.
    let fd = Errno::result(unsafe { libc::syscall(libc::SYS_userfaultfd, flags | libc::O_CLOEXEC) }).ok()?;
    // SAFETY: the kernel has just created it, and no other code knows of it.
    let fd = unsafe { OwnedFd::from_raw_fd(RawFd::try_from(fd).expect("a descriptor")) };
    let mut handshake = Handshake { api: API, features: 0, ioctls: 0 };
    // SAFETY: the structure lives through the call.
    unsafe { shake_hands(fd.as_raw_fd(), &raw mut handshake) }.expect("it is known");
    Some(fd)
}

fn watch(fd: &OwnedFd, start: usize, bytes: usize, mode: u64) {
    let mut range = Register { start: start as u64, length: bytes as u64, mode, ioctls: 0 };
    // SAFETY: the structure lives through the call, which changes no byte of the range.
    unsafe { register(fd.as_raw_fd(), &raw mut range) }.expect("such accesses can be waited for");
}
