//! Descriptors of the daemon with another end, at a client.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::sys::socket::{Shutdown, shutdown};

use super::{accounts::ClientAccount, descriptor::has_only_bytes, unread::unread_cost};

/// A descriptor of ours whose other side a client has: a socket, an eventfd. A thread of the user's
/// closes it, because the client may have made that long: by descriptors that it left in the
/// socket, by very many waiters on either.
#[derive(Debug)]
pub struct SharedFd {
    /// Gone when it is being closed.
    fd: Option<OwnedFd>,
    account: Option<ClientAccount>,
}

impl SharedFd {
    /// One of the user, or of the daemon alone, which is closed at once.
    pub fn new(fd: OwnedFd, account: Option<ClientAccount>) -> Self {
        Self { fd: Some(fd), account }
    }

    /// Closes a socket that has ended, once the other end has received all that is left in it.
    pub(crate) fn end_unread(&mut self) {
        if let Some(account) = &self.account
            && let Some(fd) = self.fd.take_if(|fd| unread_cost(fd).is_some_and(|cost| cost > 0))
        {
            account.close_ended();
            account.end_unread(fd, 0, None);
        }
    }

    /// The descriptor, to be closed otherwise.
    pub(crate) const fn take(&mut self) -> Option<OwnedFd> {
        self.fd.take()
    }

    /// Has a thread of the user do something with it that its programs can make long, and close it.
    pub(crate) fn close_after(mut self, before: impl FnOnce(&OwnedFd) + Send + 'static) {
        match (self.fd.take(), &self.account) {
            (Some(fd), Some(account)) => account.close_later(fd, before),
            (Some(fd), None) => before(&fd),
            (None, _) => {}
        }
    }

    /// Closes a connected socket of a user that is stuck: here and now if it has brought no
    /// descriptors, so that it does not wait for threads that do not come back. How many it may
    /// bring, in sockets that it has connected, is limited by the kernel.
    pub(crate) fn turn_away(&mut self) {
        // Nothing more can be sent to it.
        let fd = self.fd.take_if(|fd| shutdown(fd.as_raw_fd(), Shutdown::Read).is_ok() && has_only_bytes(fd));
        drop(fd);
    }
}

impl AsFd for SharedFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_ref().expect("it is there until it is dropped").as_fd()
    }
}

impl Drop for SharedFd {
    fn drop(&mut self) {
        if let (Some(fd), Some(account)) = (self.fd.take(), &self.account) {
            account.close_later(fd, |_| {});
        }
    }
}
