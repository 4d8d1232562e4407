//! File descriptors that clients pass.
//!
//! A descriptor may be of anything: closing the last one of a socket may linger, and closing one of
//! a FUSE file waits for an answer of its server, which may be the client. The control thread
//! therefore closes none itself before it has seen that it is of a tmpfs file.
#![expect(unsafe_code, reason = "takes ownership of file descriptors that came by SCM_RIGHTS")]

use std::{
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
    thread,
};

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, OFlag, fcntl},
    sys::statfs::{TMPFS_MAGIC, fstatfs},
};

use crate::users::UserAccount;

/// A descriptor from a client, of any kind.
#[derive(Debug)]
pub struct Descriptor {
    /// Gone when it was taken or is being closed.
    fd: Option<OwnedFd>,
    user: UserAccount,
}

/// A message from a client's socket.
#[derive(Debug)]
pub struct Incoming {
    /// Bytes of it.
    pub length: usize,
    /// There were more descriptors than we take, or more than this process may have.
    pub truncated: bool,
    /// Accompanying descriptors: one where one is accepted, or two, because the room is rounded up.
    pub descriptors: Vec<Descriptor>,
}

/// Receives a message and its descriptors, without waiting. The kernel drops the descriptors for
/// which there is no room, and all of a user that has too many in closing.
///
/// A system call of our own, for the library's wrapper forgets the descriptors that there are when
/// some are missing, and they would stay open.
pub fn receive(socket: &OwnedFd, bytes: &mut [u8], user: &UserAccount) -> Result<Incoming, Errno> {
    /// Of a control message with one descriptor, in words.
    const WORDS: usize = 3;
    const { assert!(size_of::<[u64; WORDS]>() == size_of::<libc::cmsghdr>() + 8, "a header and a padded descriptor") };
    let mut room = [0u64; WORDS];
    let mut piece = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: all zeros is a message header without pointers.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    (header.msg_iov, header.msg_iovlen) = (&raw mut piece, 1);
    if user.may_pass_descriptors() {
        (header.msg_control, header.msg_controllen) = ((&raw mut room).cast(), size_of_val(&room));
    }
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the header names `bytes` and `room` with their lengths, and both live through the
    // call.
    let length = Errno::result(unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, flags) })?;
    let mut descriptors = Vec::new();
    // SAFETY: the kernel filled the header; its control buffer lives and is aligned for its
    // messages; there is room for one.
    if let Some(message) = unsafe { libc::CMSG_FIRSTHDR(&raw const header).as_ref() }
        && (message.cmsg_level, message.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS)
    {
        let count = (message.cmsg_len - size_of::<libc::cmsghdr>()) / size_of::<RawFd>();
        // SAFETY: the message's data, `count` descriptors, follow its header.
        let all = unsafe { std::slice::from_raw_parts(libc::CMSG_DATA(message).cast::<RawFd>(), count) };
        descriptors.extend(all.iter().map(|fd| {
            // SAFETY: the kernel has just created each for this process, and no other code knows of
            // it.
            let fd = unsafe { OwnedFd::from_raw_fd(*fd) };
            Descriptor { fd: Some(fd), user: user.clone() }
        }));
    }
    let length = usize::try_from(length).expect("an error was told apart above");
    Ok(Incoming { length, truncated: header.msg_flags & libc::MSG_CTRUNC != 0, descriptors })
}

impl Descriptor {
    /// The user that passed it.
    pub(crate) fn user(&self) -> &UserAccount {
        &self.user
    }

    /// The descriptor, of any kind, and its user: for a thread that may be delayed by it.
    pub(crate) fn into_any_file(mut self) -> (OwnedFd, UserAccount) {
        (self.fd.take().expect("it is there until it is taken or dropped"), self.user.clone())
    }

    /// The descriptor, if it is of a tmpfs file or memfd: of pages in memory, so that no access
    /// waits for another party.
    pub fn into_shared_file(mut self) -> Result<SharedFile, Errno> {
        let fd = self.fd.as_ref().expect("it is there until it is taken or dropped");
        // Nothing here waits, for any kind of file: only shared memory answers this request, all
        // others return EINVAL, or EBADF for O_PATH.
        fcntl(fd, FcntlArg::F_GET_SEALS)?;
        // The other kind that answers is hugetlbfs, where a hole may stay one.
        if fstatfs(fd)?.filesystem_type() != TMPFS_MAGIC {
            return Err(Errno::ENODEV);
        }
        let fd = self.fd.take().expect("it is there until it is taken or dropped");
        let mode = OFlag::from_bits_retain(fcntl(&fd, FcntlArg::F_GETFL)?) & OFlag::O_ACCMODE;
        Ok(SharedFile { fd, writable: mode == OFlag::O_RDWR })
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        let Some(fd) = self.fd.take() else { return };
        if fcntl(&fd, FcntlArg::F_GET_SEALS).is_ok() {
            // Shared memory: closing it does not wait.
            return;
        }
        let counted = self.user.begin_closing();
        let close = move || {
            drop(fd);
            drop(counted);
        };
        // Without a thread the closure is dropped here, and closes: it may wait, but there is
        // nothing else left to do.
        let _ = thread::Builder::new().name("roced-close".into()).spawn(close);
    }
}

/// A tmpfs file or memfd of a client.
#[derive(Debug)]
pub struct SharedFile {
    fd: OwnedFd,
    /// The client has it open for reading and writing.
    pub(crate) writable: bool,
}

impl AsFd for SharedFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        time::{Duration, Instant},
    };

    use nix::sys::memfd::{MFdFlags, memfd_create};

    use super::*;
    use crate::users::UserAccounts;

    fn descriptor(fd: OwnedFd, user: UserAccount) -> Descriptor {
        Descriptor { fd: Some(fd), user }
    }

    #[test]
    fn only_files_in_memory_are_taken() {
        let made = memfd_create(c"test", MFdFlags::MFD_CLOEXEC).expect("a memfd");
        let again = File::open(format!("/proc/self/fd/{}", made.as_raw_fd())).expect("to read");
        assert!(descriptor(made, UserAccounts::default().user(1)).into_shared_file().expect("it is").writable);
        assert!(!descriptor(again.into(), UserAccounts::default().user(1)).into_shared_file().expect("it is").writable);
        let refused = |fd: OwnedFd| {
            descriptor(fd, UserAccounts::default().user(1)).into_shared_file().map(drop).expect_err("it is refused")
        };
        assert_eq!(refused(File::open("/proc/self/maps").expect("there").into()), Errno::EINVAL);
        let path = nix::fcntl::open("/dev/shm", OFlag::O_PATH, nix::sys::stat::Mode::empty()).expect("there");
        assert_eq!(refused(path), Errno::EBADF);
    }

    #[test]
    fn other_files_are_closed_by_threads_that_count() {
        let user = UserAccounts::default().user(1);
        let file = || File::open("/proc/self/maps").expect("there").into();
        drop((descriptor(file(), user.clone()), descriptor(file(), user.clone())));
        let begin = Instant::now();
        while user.closing() > 0 {
            assert!(begin.elapsed() < Duration::from_secs(20), "they are not closed");
            thread::yield_now();
        }
    }
}
