//! Groups of the process at the other end of a socket, by the kernel's word. It tells those that the
//! process had when it connected.
#![expect(unsafe_code, reason = "asks for SO_PEERGROUPS, which nix does not know")]

use std::os::fd::{AsFd, AsRawFd};

use nix::{errno::Errno, unistd::Gid};

/// Supplementary groups of the process at the other end of a socket.
///
/// # Errors
/// The kernel's.
pub(crate) fn groups_of(socket: &impl AsFd) -> Result<Vec<Gid>, Errno> {
    // Linux gives a process no more.
    let mut groups = vec![0 as libc::gid_t; 65_536];
    let mut bytes = size_of_val(groups.as_slice()) as libc::socklen_t;
    // SAFETY: `groups` has room for `bytes` bytes, of which the kernel writes as many as it tells.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERGROUPS,
            groups.as_mut_ptr().cast(),
            &raw mut bytes,
        )
    };
    Errno::result(result)?;
    groups.truncate(bytes as usize / size_of::<libc::gid_t>());
    Ok(groups.into_iter().map(Gid::from_raw).collect())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use nix::unistd::getgroups;

    use super::*;

    #[test]
    fn the_kernel_tells_the_groups_of_the_other_process() {
        let (ours, _theirs) = UnixStream::pair().expect("sockets");
        let mut told = groups_of(&ours).expect("it is told");
        let mut own = getgroups().expect("it is told");
        told.sort_by_key(|gid| gid.as_raw());
        own.sort_by_key(|gid| gid.as_raw());
        assert_eq!(told, own);
    }
}
