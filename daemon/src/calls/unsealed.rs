//! Files of queues, until they are sealed.
//!
//! A client that takes pages out of a file of its rings or doorbells delays the worker that goes
//! there. The client library seals each file once it has mapped it. Where one is not sealed when the
//! queue is used for the first time, a thread of its user's seals it, or the queue is refused, as
//! `limits.client.unsealed_memory` says.

use std::{collections::VecDeque, os::fd::OwnedFd};

use nix::errno::Errno;
use roced_abi::control::Refusal;
use roced_memory::{
    mapping::{has_no_holes_to_come, seal_later},
    quota::Quota,
    shared_fd::SharedFd,
};
use roced_types::AccountId;

use super::refused::Refused;
use crate::config::UnsealedChoice;

/// The errno of a refusal of memory of which its client can take pages.
pub(crate) const UNSEALED: Errno = Errno::EPERM;

/// Files of a session that are not sealed: each is a descriptor of ours. Beyond that the oldest is
/// sealed, whether its queue is used or not.
const FILES: usize = 64;

/// The queue of a file, by its handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueFile {
    /// Doorbells of the session.
    Doorbells,
    /// A completion queue, or its new rings.
    Cq(u32),
    /// A shared receive queue.
    Srq(u32),
    /// A queue pair.
    Qp(u32),
}

/// A descriptor of ours of a file of queues of that account.
pub(crate) fn kept(fd: &OwnedFd, quota: &Quota, account: AccountId) -> Result<SharedFd, Refused> {
    let fd = fd.try_clone().map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(0)))?;
    Ok(SharedFd::new(fd, quota.account(account)))
}

/// Files of the queues of a session that were not seen sealed, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct UnsealedQueues(VecDeque<(QueueFile, SharedFd)>);

impl UnsealedQueues {
    /// There is room for one more, after those that are sealed were forgotten.
    pub(crate) fn make_room(&mut self, choice: UnsealedChoice) -> Result<(), Refused> {
        while self.0.pop_front_if(|(_, file)| has_no_holes_to_come(&*file)).is_some() {}
        if self.0.len() < FILES {
            return Ok(());
        }
        if choice == UnsealedChoice::Refused {
            return Err(Refused::limit(FILES as u64));
        }
        self.0.pop_front().into_iter().for_each(|(_, file)| seal_later(file));
        Ok(())
    }

    /// Keeps the file of a queue.
    pub(crate) fn add(&mut self, queue: QueueFile, file: SharedFd) {
        self.0.push_back((queue, file));
    }

    /// The queue is used from now on.
    pub(crate) fn seal(&mut self, queue: QueueFile, choice: UnsealedChoice) -> Result<(), Refused> {
        while let Some(at) = self.0.iter().position(|(other, _)| *other == queue) {
            let is_sealed = has_no_holes_to_come(&self.0[at].1);
            if !is_sealed && choice == UnsealedChoice::Refused {
                return Err(Refused::with(Refusal::BadFile, UNSEALED as u32, 0u64));
            }
            let (_, file) = self.0.remove(at).expect("found a few lines up");
            if !is_sealed {
                seal_later(file);
            }
        }
        Ok(())
    }

    /// The queue is gone.
    pub(crate) fn forget(&mut self, queue: QueueFile) {
        self.0.retain(|(other, _)| *other != queue);
    }
}
