//! Pages that do not arrive: an accessing thread waits.
#![expect(unsafe_code, reason = "asks the kernel by calls that nobody wraps")]

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

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

/// `UFFD_API`, and `UFFDIO_REGISTER_MODE_MISSING`.
const API: u64 = 0xaa;
const MISSING: u64 = 1;

nix::ioctl_readwrite!(shake_hands, 0xaa, 0x3f, Handshake);
nix::ioctl_readwrite!(register, 0xaa, 0x00, Register);

/// Until this is closed every thread that accesses a missing page of the `bytes` bytes at `start`
/// waits, as behind a thread that punches a hole there; `None` where no process may have that. Only
/// the daemon may access them.
pub(crate) fn withhold(start: usize, bytes: usize) -> Option<OwnedFd> {
    // SAFETY: the call takes flags and makes a descriptor.
    let fd = Errno::result(unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) }).ok()?;
    // SAFETY: the kernel has just created it, and no other code knows of it.
    let fd = unsafe { OwnedFd::from_raw_fd(RawFd::try_from(fd).expect("a descriptor")) };
    let mut handshake = Handshake { api: API, features: 0, ioctls: 0 };
    // SAFETY: the structure lives through the call.
    unsafe { shake_hands(fd.as_raw_fd(), &raw mut handshake) }.expect("it is known");
    let mut range = Register { start: start as u64, length: bytes as u64, mode: MISSING, ioctls: 0 };
    // SAFETY: the structure lives through the call, which changes no byte of the range.
    unsafe { register(fd.as_raw_fd(), &raw mut range) }.expect("missing pages can be waited for");
    Some(fd)
}
