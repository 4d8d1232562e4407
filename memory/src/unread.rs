//! Descriptors in replies that programs have not received.
//!
//! The kernel counts descriptors that wait in sockets for the user that sent them, and refuses
//! every further message with descriptors once there are as many as its process may open. The
//! sender of all replies is the daemon: with many unread replies of one user's programs it could
//! answer no other's. Therefore a socket has few, a user has a share, and sockets of sessions that
//! have ended count until their program has closed its end or has received all.
#![expect(unsafe_code, reason = "reads the length of a socket's queue")]

use std::{
    collections::{BTreeMap, VecDeque},
    os::fd::{AsFd, AsRawFd as _, OwnedFd},
    sync::{Mutex, MutexGuard, PoisonError},
};

use super::held_charge::HeldCharge;

/// Most of one socket. A reply has 66 at most.
pub(crate) const UNREAD_OF_SOCKET: u32 = 256;

/// Sockets of ended sessions and channels of a user with anything unread, which is memory of the
/// kernel that the daemon's cgroup pays for; beyond that no connection of the user is served, and
/// it has no further channel.
const ENDED_OF_USER: usize = 256;

/// Memory of these, bytes: as many sockets with full buffers. Those of completion channels may be
/// larger.
const ENDED_BYTES_OF_USER: u64 = (ENDED_OF_USER as u64) << 16;

/// Sockets that are looked at when another comes or goes.
const LOOKS: usize = 4;

/// Those of all users of a daemon.
#[derive(Debug, Default)]
pub(crate) struct UnreadDescriptors(Mutex<UnreadPool>);

#[derive(Debug, Default)]
struct UnreadPool {
    by_user: BTreeMap<u32, u32>,
    ended: VecDeque<EndedSocket>,
}

/// Socket of a session or channel that has ended: the other end has replies or events.
#[derive(Debug)]
pub(crate) struct EndedSocket {
    pub(crate) uid: u32,
    pub(crate) fd: OwnedFd,
    /// Descriptors in the replies.
    pub(crate) count: u32,
    /// For its memory, if that counts for the account of its user.
    pub(crate) charge: Option<HeldCharge>,
}

impl UnreadDescriptors {
    fn pool(&self) -> MutexGuard<'_, UnreadPool> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts so many more of the user, where all users have `all`. False if that is more than its
    /// share: three quarters of those that others leave.
    pub(crate) fn charge(&self, all: u64, uid: u32, count: u32) -> bool {
        let mut pool = self.pool();
        let own = pool.by_user.get(&uid).copied().unwrap_or(0);
        let others = pool.by_user.values().map(|&count| u64::from(count)).sum::<u64>() - u64::from(own);
        let fits = u64::from(own) + u64::from(count) <= all.saturating_sub(others) / 4 * 3;
        if fits {
            *pool.by_user.entry(uid).or_default() += count;
        }
        fits
    }

    /// So many of the user were received, or were not sent.
    pub(crate) fn release(&self, uid: u32, count: u32) {
        self.pool().release(uid, count);
    }

    /// Keeps a socket of a session that has ended.
    pub(crate) fn keep(&self, socket: EndedSocket) {
        self.pool().ended.push_back(socket);
    }

    /// Looks at the sockets that were not looked at for longest, and takes out those that are
    /// empty, to be closed in the name of their users.
    pub(crate) fn take_empty(&self) -> Vec<EndedSocket> {
        let mut pool = self.pool();
        let mut empty = Vec::new();
        for _ in 0..LOOKS.min(pool.ended.len()) {
            let Some(socket) = pool.ended.pop_front() else { break };
            if unread_cost(&socket.fd) == Some(0) {
                pool.release(socket.uid, socket.count);
                empty.push(socket);
            } else {
                pool.ended.push_back(socket);
            }
        }
        empty
    }

    /// True if the user has as many ended sockets with unread replies as it may.
    pub(crate) fn has_many_ended(&self, uid: u32) -> bool {
        let pool = self.pool();
        let of_user = || pool.ended.iter().filter(|ended| ended.uid == uid);
        let bytes = || of_user().filter_map(|ended| unread_cost(&ended.fd)).map(u64::from).sum::<u64>();
        of_user().count() >= ENDED_OF_USER || bytes() >= ENDED_BYTES_OF_USER
    }

    /// Those of the user.
    pub(crate) fn count(&self, uid: u32) -> u32 {
        self.pool().by_user.get(&uid).copied().unwrap_or(0)
    }
}

impl UnreadPool {
    fn release(&mut self, uid: u32, count: u32) {
        if count == 0 {
            return;
        }
        let own = self.by_user.get_mut(&uid).expect("charged before");
        *own -= count;
        if *own == 0 {
            self.by_user.remove(&uid);
        }
    }
}

/// Memory of the kernel for messages that the other end of a socket pair has not received, bytes:
/// the same for each message of one length. `None` if the kernel does not tell.
pub fn unread_cost(socket: impl AsFd) -> Option<u32> {
    let mut cost: libc::c_int = 0;
    // SAFETY: the descriptor is open, and the kernel writes one integer there.
    let result = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut cost) };
    if result == 0 { u32::try_from(cost).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_its_share_and_leaves_others_theirs() {
        let unread = UnreadDescriptors::default();
        assert!(unread.charge(400, 1, 300) && !unread.charge(400, 1, 1));
        assert!(unread.charge(400, 2, 75) && !unread.charge(400, 2, 1));
        unread.release(1, 200);
        assert!(unread.charge(400, 2, 100));
        assert_eq!((unread.count(1), unread.count(2), unread.count(3)), (100, 175, 0));
    }
}
