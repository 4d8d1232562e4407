//! An AF_XDP socket for the map of sockets. It is bound to nothing: a test run stops at the
//! decision to redirect, and the map asks only for a socket of this family.
#![expect(unsafe_code, reason = "socket(2) for a family that nix does not name")]

use std::{
    io,
    os::fd::{FromRawFd as _, OwnedFd},
};

/// A new AF_XDP socket.
pub(crate) fn open() -> io::Result<OwnedFd> {
    // SAFETY: no pointers; any result is checked below.
    let fd = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `fd` is open (checked above), fresh from the kernel, and no other code knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
