//! Socket options of AF_XDP that no library wraps.
#![expect(unsafe_code, reason = "getsockopt(2) and setsockopt(2) with the structures of AF_XDP")]

use std::{
    ffi::c_int,
    io,
    os::fd::{AsRawFd as _, BorrowedFd},
};

/// `XDP_MAX_TX_SKB_BUDGET` of `linux/if_xdp.h`, since Linux 6.17; libc does not have it yet.
const XDP_MAX_TX_SKB_BUDGET: c_int = 9;

/// Whether the driver reads and writes the UMEM itself.
pub(super) fn is_zerocopy(socket: BorrowedFd<'_>) -> io::Result<bool> {
    let mut options = libc::xdp_options { flags: 0 };
    let mut length = size_of_val(&options) as libc::socklen_t;
    // SAFETY: `options` is writable for `length` bytes, both live across the call, and any flags
    // are valid bits of a u32.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_XDP,
            libc::XDP_OPTIONS,
            (&raw mut options).cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(options.flags & libc::XDP_OPTIONS_ZEROCOPY != 0)
}

/// Lets one system call send up to `descriptors` in copy mode, where the kernel stops after 32 by
/// itself.
pub(super) fn set_tx_budget(socket: BorrowedFd<'_>, descriptors: u32) -> io::Result<()> {
    // SAFETY: `descriptors` is readable for the length given and lives across the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_XDP,
            XDP_MAX_TX_SKB_BUDGET,
            (&raw const descriptors).cast(),
            size_of_val(&descriptors) as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
