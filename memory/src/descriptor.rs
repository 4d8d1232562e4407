//! File descriptors that clients pass.
//!
//! A descriptor may be of anything: closing the last one of a socket may linger, closing one of a
//! FUSE file waits for an answer of its server, which may be the client, and closing the last one
//! of a large file frees its pages. A thread of the user's therefore closes every one. For the same
//! reason no message is received without room for all of its descriptors: the kernel drops the
//! rest, in the thread that receives.
#![expect(unsafe_code, reason = "takes ownership of file descriptors that came by SCM_RIGHTS")]

use std::{
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
    sync::atomic::Ordering,
};

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, OFlag, fcntl},
    sys::statfs::{TMPFS_MAGIC, fstatfs},
};

use crate::{
    accounts::ClientAccount,
    spare_numbers::{DESCRIPTORS_MAX, SPARE_HELD, SpareNumbers},
};

/// Room for a control message with [`DESCRIPTORS_MAX`] descriptors, in words.
const ROOM_WORDS: usize = 2 + DESCRIPTORS_MAX.div_ceil(2);

/// A descriptor from a client, of any kind.
#[derive(Debug)]
pub struct Descriptor {
    /// Gone when it was taken or is being closed.
    fd: Option<OwnedFd>,
    account: ClientAccount,
}

/// A message from a client's socket.
#[derive(Debug)]
pub struct Incoming {
    /// Bytes of it.
    pub length: usize,
    /// The process has too many descriptors open: none of these may be kept.
    pub exhausted: bool,
    /// Accompanying descriptors, all of them.
    pub descriptors: Vec<Descriptor>,
}

/// Receives a message and all of its descriptors, without waiting. `None`: there is one, with
/// descriptors, and too many of its user's wait to be closed; it is to be received later.
pub fn receive(socket: impl AsFd, bytes: &mut [u8], account: &ClientAccount) -> Result<Option<Incoming>, Errno> {
    let socket = socket.as_fd();
    // Without room for descriptors the kernel tells whether there are some. None is dropped: the
    // message stays.
    let (length, has_descriptors) = receive_into(socket, bytes, &mut [], libc::MSG_PEEK)?;
    // No more of a stream than that was seen.
    let whole = bytes.len().min(length.max(1));
    let bytes = &mut bytes[..whole];
    if !has_descriptors {
        let (length, _) = receive_into(socket, bytes, &mut [], 0)?;
        return Ok(Some(Incoming { length, exhausted: false, descriptors: Vec::new() }));
    }
    if !account.may_pass_descriptors() {
        return Ok(None);
    }
    let mut room = [0u64; ROOM_WORDS];
    let is_slow = account.waking().is_distrusted();
    let Some(received) = SpareNumbers::get().lend(is_slow, || receive_into(socket, bytes, &mut room, 0)) else {
        return Ok(None);
    };
    let (length, _) = received?;
    let (usual, mut exhausted) = (SpareNumbers::get().usual, false);
    let descriptors = descriptors_in(&room).map(|fd| {
        let is_spare = fd.as_raw_fd() as u64 >= usual;
        exhausted |= is_spare;
        Descriptor { fd: Some(fd), account: account.clone() }
    });
    let descriptors = descriptors.collect();
    Ok(Some(Incoming { length, exhausted, descriptors }))
}

/// Takes the rest of a socket into which nothing more comes, as far as it is bytes alone; false
/// if there is a message with descriptors.
pub(crate) fn has_only_bytes(socket: impl AsFd) -> bool {
    let (socket, mut byte) = (socket.as_fd(), [0]);
    loop {
        match receive_into(socket, &mut byte, &mut [], libc::MSG_PEEK) {
            Ok((_, true)) => return false,
            Ok((0, false)) | Err(Errno::EAGAIN) => return true,
            Ok((_, false)) => {}
            Err(_) => return false,
        }
        // Without descriptors, as was seen.
        if receive_into(socket, &mut byte, &mut [], 0).is_err() {
            return false;
        }
    }
}

/// Receives a message, and its control messages to `room`: its length, and whether some control
/// messages had no room.
///
/// A system call of our own, because the library's wrapper forgets the descriptors that there are
/// when some are missing, and they would stay open.
fn receive_into(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
    room: &mut [u64],
    flags: i32,
) -> Result<(usize, bool), Errno> {
    let mut piece = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: all zeros is a message header without pointers.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    (header.msg_iov, header.msg_iovlen) = (&raw mut piece, 1);
    if !room.is_empty() {
        (header.msg_control, header.msg_controllen) = (room.as_mut_ptr().cast(), size_of_val(room));
    }
    let flags = flags | libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the header names `bytes` and `room` with their lengths, and both live through the
    // call.
    let length = Errno::result(unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, flags) })?;
    let length = usize::try_from(length).expect("an error was told apart above");
    Ok((length, header.msg_flags & libc::MSG_CTRUNC != 0))
}

/// The descriptors that the kernel has written to `room`, which was zero before: a header and they.
fn descriptors_in(room: &[u64; ROOM_WORDS]) -> impl Iterator<Item = OwnedFd> {
    const { assert!(size_of::<libc::cmsghdr>() == 16, "two words") };
    let header: *const libc::cmsghdr = room.as_ptr().cast();
    // SAFETY: the room is aligned for a header and larger than one; any bytes are one.
    let libc::cmsghdr { cmsg_len, cmsg_level, cmsg_type, .. } = unsafe { *header };
    let is_rights = (cmsg_level, cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS);
    let bytes = if is_rights { cmsg_len.saturating_sub(size_of::<libc::cmsghdr>()) } else { 0 };
    let count = (bytes / size_of::<RawFd>()).min(DESCRIPTORS_MAX);
    (0..count).map(|at| {
        let word = room[2 + at / 2].to_ne_bytes();
        let half =
            if at % 2 == 0 { [word[0], word[1], word[2], word[3]] } else { [word[4], word[5], word[6], word[7]] };
        // SAFETY: the kernel has just created each for this process, and no other code knows of it.
        unsafe { OwnedFd::from_raw_fd(RawFd::from_ne_bytes(half)) }
    })
}

/// Closes a descriptor in a thread of its user's.
fn close_later(fd: OwnedFd, account: &ClientAccount) {
    let is_spare = SpareNumbers::get().usual <= fd.as_raw_fd() as u64;
    if is_spare {
        SPARE_HELD.fetch_add(1, Ordering::Relaxed);
    }
    let counted = account.begin_closing(1);
    account.later(move || {
        drop(fd);
        drop(counted);
        if is_spare {
            SPARE_HELD.fetch_sub(1, Ordering::Relaxed);
        }
    });
}

impl Descriptor {
    /// The user that passed it.
    pub(crate) fn account(&self) -> &ClientAccount {
        &self.account
    }

    /// The descriptor, of any kind, and its user: for a thread that may be delayed by it.
    pub(crate) fn into_any_file(mut self) -> (OwnedFd, ClientAccount) {
        (self.fd.take().expect("it is there until it is taken or dropped"), self.account.clone())
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
        let mode = OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL)?) & OFlag::O_ACCMODE;
        let fd = self.fd.take().expect("it is there until it is taken or dropped");
        Ok(SharedFile { fd: Some(fd), account: self.account.clone(), writable: mode == OFlag::O_RDWR })
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        if let Some(fd) = self.fd.take() {
            close_later(fd, &self.account);
        }
    }
}

/// A tmpfs file or memfd of a client. Closing it may free all of its pages, or very many locks.
#[derive(Debug)]
pub struct SharedFile {
    /// Gone when it is being closed.
    fd: Option<OwnedFd>,
    account: ClientAccount,
    /// The client has it open for reading and writing.
    pub(crate) writable: bool,
}

impl AsFd for SharedFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_ref().expect("it is there until it is dropped").as_fd()
    }
}

impl Drop for SharedFile {
    fn drop(&mut self) {
        if let Some(fd) = self.fd.take() {
            close_later(fd, &self.account);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        thread,
        time::{Duration, Instant},
    };

    use nix::sys::memfd::{MFdFlags, memfd_create};

    use roced_types::AccountId;

    use super::*;
    use crate::accounts::ClientAccounts;

    fn descriptor(fd: OwnedFd, account: ClientAccount) -> Descriptor {
        Descriptor { fd: Some(fd), account }
    }

    #[test]
    fn only_files_in_memory_are_taken() {
        let made = memfd_create(c"test", MFdFlags::MFD_CLOEXEC).expect("a memfd");
        let again = File::open(format!("/proc/self/fd/{}", made.as_raw_fd())).expect("to read");
        assert!(
            descriptor(made, ClientAccounts::default().account(AccountId(1)))
                .into_shared_file()
                .expect("it is")
                .writable
        );
        assert!(
            !descriptor(again.into(), ClientAccounts::default().account(AccountId(1)))
                .into_shared_file()
                .expect("it is")
                .writable
        );
        let refused = |fd: OwnedFd| {
            descriptor(fd, ClientAccounts::default().account(AccountId(1)))
                .into_shared_file()
                .map(drop)
                .expect_err("it is refused")
        };
        assert_eq!(refused(File::open("/proc/self/maps").expect("there").into()), Errno::EINVAL);
        let path = nix::fcntl::open("/dev/shm", OFlag::O_PATH, nix::sys::stat::Mode::empty()).expect("there");
        assert_eq!(refused(path), Errno::EBADF);
    }

    #[test]
    fn other_files_are_closed_by_threads_that_count() {
        let account = ClientAccounts::default().account(AccountId(1));
        let file = || File::open("/proc/self/maps").expect("there").into();
        drop((descriptor(file(), account.clone()), descriptor(file(), account.clone())));
        let begin = Instant::now();
        while account.closing() > 0 {
            assert!(begin.elapsed() < Duration::from_secs(20), "they are not closed");
            thread::yield_now();
        }
    }
}
