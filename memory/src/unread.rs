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
    ops::Bound,
    os::fd::{AsFd, AsRawFd as _, OwnedFd},
    sync::{Mutex, MutexGuard, PoisonError},
};

use roced_types::AccountId;

use super::held_charge::HeldCharge;

/// Most unread descriptors of one socket. A reply has 66 at most.
pub(crate) const UNREAD_OF_SOCKET: u32 = 256;

/// Sockets of ended sessions and channels of a user with anything unread, which is memory of the
/// kernel that the daemon's cgroup pays for; beyond that no connection of the user is served, and
/// it has no further channel.
const ENDED_OF_ACCOUNT: usize = 256;

/// Memory of the ended sockets of a user, bytes: as many sockets with full buffers. Those of completion channels may be
/// larger.
const ENDED_BYTES_OF_ACCOUNT: u64 = (ENDED_OF_ACCOUNT as u64) << 16;

/// Sockets of its user that are looked at when another comes or goes, and sockets of all users that
/// are looked at in turn.
const LOOKS: usize = 4;

/// Descriptors that lie unread in sockets, of all users of a daemon.
#[derive(Debug, Default)]
pub(crate) struct UnreadDescriptors(Mutex<UnreadPool>);

#[derive(Debug, Default)]
struct UnreadPool {
    by_account: BTreeMap<AccountId, u32>,
    ended: BTreeMap<AccountId, EndedOfAccount>,
    /// The account that was looked at last in turn.
    last: AccountId,
}

/// Sockets of ended sessions and channels of one account.
#[derive(Debug, Default)]
struct EndedOfAccount {
    /// The one that was not looked at for longest comes first.
    sockets: VecDeque<EndedSocket>,
    /// Sum of theirs: no less than the kernel has now, because nothing is sent into them now.
    bytes: u64,
}

/// Socket of a session or channel that has ended: the other end has replies or events.
#[derive(Debug)]
pub(crate) struct EndedSocket {
    pub(crate) account: AccountId,
    pub(crate) fd: OwnedFd,
    /// Descriptors in the replies.
    pub(crate) count: u32,
    /// For its memory, if that counts for the account of its user.
    pub(crate) charge: Option<HeldCharge>,
    /// Memory of the kernel for them when the socket was last looked at.
    bytes: u32,
}

impl EndedSocket {
    /// Nothing more is sent into it.
    pub(crate) fn new(account: AccountId, fd: OwnedFd, count: u32, charge: Option<HeldCharge>) -> Self {
        let bytes = unread_cost(&fd).unwrap_or(0);
        Self { account, fd, count, charge, bytes }
    }
}

impl UnreadDescriptors {
    fn pool(&self) -> MutexGuard<'_, UnreadPool> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts so many more of the user, where all users have `all`. False if that is more than its
    /// share: three quarters of those that others leave.
    pub(crate) fn charge(&self, all: u64, account: AccountId, count: u32) -> bool {
        let mut pool = self.pool();
        let own = pool.by_account.get(&account).copied().unwrap_or(0);
        let others = pool.by_account.values().map(|&count| u64::from(count)).sum::<u64>() - u64::from(own);
        let fits = u64::from(own) + u64::from(count) <= all.saturating_sub(others) / 4 * 3;
        if fits {
            *pool.by_account.entry(account).or_default() += count;
        }
        fits
    }

    /// So many of the user were received, or were not sent.
    pub(crate) fn release(&self, account: AccountId, count: u32) {
        self.pool().release(account, count);
    }

    /// Keeps a socket of a session that has ended.
    pub(crate) fn keep(&self, socket: EndedSocket) {
        let mut pool = self.pool();
        let ended = pool.ended.entry(socket.account).or_default();
        ended.bytes += u64::from(socket.bytes);
        ended.sockets.push_back(socket);
    }

    /// Looks at the sockets that were not looked at for longest, some of this user and some of all
    /// users in turn, and takes out those that are empty, to be closed in the name of their users.
    pub(crate) fn take_empty(&self, account: AccountId) -> Vec<EndedSocket> {
        let mut pool = self.pool();
        let mut empty = Vec::new();
        let of_account = pool.ended.get(&account).map_or(0, |ended| ended.sockets.len());
        for _ in 0..LOOKS.min(of_account) {
            empty.extend(pool.look_at(account));
        }
        for _ in 0..LOOKS {
            // The sockets of this user were looked at just now.
            let Some(account) = pool.next_account().filter(|next| *next != account || pool.ended.len() > 1) else {
                break;
            };
            pool.last = account;
            empty.extend(pool.look_at(account));
        }
        empty
    }

    /// True if the user has as many ended sockets with unread replies as it may, or as many bytes
    /// in them: those that there were when the sockets were looked at.
    pub(crate) fn has_many_ended(&self, account: AccountId) -> bool {
        let pool = self.pool();
        let is_many = |of_account: &EndedOfAccount| {
            of_account.sockets.len() >= ENDED_OF_ACCOUNT || of_account.bytes >= ENDED_BYTES_OF_ACCOUNT
        };
        pool.ended.get(&account).is_some_and(is_many)
    }

    /// Number of descriptors that lie unread in the sockets of the user.
    pub(crate) fn count(&self, account: AccountId) -> u32 {
        self.pool().by_account.get(&account).copied().unwrap_or(0)
    }
}

impl UnreadPool {
    fn release(&mut self, account: AccountId, count: u32) {
        if count == 0 {
            return;
        }
        let own = self.by_account.get_mut(&account).expect("charged before");
        *own -= count;
        if *own == 0 {
            self.by_account.remove(&account);
        }
    }

    /// The one after the last, in a circle, of those with ended sockets.
    fn next_account(&self) -> Option<AccountId> {
        let after = (Bound::Excluded(self.last), Bound::Unbounded);
        let mut next = self.ended.range(after).chain(&self.ended);
        next.next().map(|(&account, _)| account)
    }

    /// Looks at one socket of the user. Returns it if it is empty.
    fn look_at(&mut self, account: AccountId) -> Option<EndedSocket> {
        let of_account = self.ended.get_mut(&account)?;
        let mut socket = of_account.sockets.pop_front()?;
        let cost = unread_cost(&socket.fd);
        let bytes = cost.unwrap_or(socket.bytes);
        of_account.bytes -= u64::from(socket.bytes);
        if cost != Some(0) {
            of_account.bytes += u64::from(bytes);
            of_account.sockets.push_back(EndedSocket { bytes, ..socket });
            return None;
        }
        if of_account.sockets.is_empty() {
            self.ended.remove(&account);
        }
        socket.bytes = 0;
        self.release(account, socket.count);
        Some(socket)
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
    use std::{
        io::{ErrorKind, Read as _, Write as _},
        os::unix::net::UnixStream,
    };

    use super::*;

    const ONE: AccountId = AccountId(1);
    const TWO: AccountId = AccountId(2);
    const THREE: AccountId = AccountId(3);

    /// A socket of an ended session with so much unread, or as much as it takes, and the other end.
    fn ended(account: AccountId, bytes: usize) -> (EndedSocket, UnixStream) {
        let (mut ours, theirs) = UnixStream::pair().expect("a pair");
        for end in [&ours, &theirs] {
            end.set_nonblocking(true).expect("a socket");
        }
        let mut left = bytes;
        while left > 0 {
            match ours.write(&vec![0; left.min(4096)]) {
                Ok(written) => left -= written,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => panic!("{error}"),
            }
        }
        (EndedSocket::new(account, ours.into(), 0, None), theirs)
    }

    fn receive(mut theirs: &UnixStream, most: usize) {
        let mut left = most;
        while left > 0 {
            match theirs.read(&mut vec![0; left.min(4096)]) {
                Ok(received) if received > 0 => left -= received,
                _ => break,
            }
        }
    }

    fn bytes(unread: &UnreadDescriptors, account: AccountId) -> u64 {
        unread.pool().ended.get(&account).map_or(0, |ended| ended.bytes)
    }

    #[test]
    fn a_user_has_its_share_and_leaves_others_theirs() {
        let unread = UnreadDescriptors::default();
        assert!(unread.charge(400, ONE, 300) && !unread.charge(400, ONE, 1));
        assert!(unread.charge(400, TWO, 75) && !unread.charge(400, TWO, 1));
        unread.release(ONE, 200);
        assert!(unread.charge(400, TWO, 100));
        assert_eq!((unread.count(ONE), unread.count(TWO), unread.count(THREE)), (100, 175, 0));
    }

    #[test]
    fn bytes_of_ended_sockets_fall_when_they_are_looked_at() {
        let unread = UnreadDescriptors::default();
        let (first, theirs) = ended(ONE, 1 << 16);
        let (second, other) = ended(ONE, 1 << 16);
        let of_each = u64::from(first.bytes);
        assert!(of_each >= 1 << 16);
        unread.keep(first);
        unread.keep(second);
        assert_eq!((bytes(&unread, ONE), bytes(&unread, TWO)), (2 * of_each, 0));

        receive(&theirs, 1 << 15);
        assert_eq!(bytes(&unread, ONE), 2 * of_each, "nothing was looked at");
        assert!(unread.take_empty(TWO).is_empty());
        let left = bytes(&unread, ONE);
        assert!((of_each + 1..2 * of_each).contains(&left), "{left} of {of_each} each");

        receive(&theirs, 1 << 16);
        assert_eq!(unread.take_empty(ONE).len(), 1);
        assert_eq!(bytes(&unread, ONE), of_each);
        drop(other);
        assert_eq!(unread.take_empty(ONE).len(), 1, "its program has closed its end");
        assert!(unread.pool().ended.is_empty());
    }

    /// The question is asked at each connection, so it looks at no socket.
    #[test]
    fn unread_bytes_are_limited_by_the_figures_of_the_last_look() {
        let unread = UnreadDescriptors::default();
        let mut theirs = Vec::new();
        while bytes(&unread, ONE) < ENDED_BYTES_OF_ACCOUNT {
            assert!(theirs.len() < ENDED_OF_ACCOUNT, "the kernel lets a socket have less than its share");
            assert!(!unread.has_many_ended(ONE));
            let (socket, other) = ended(ONE, usize::MAX);
            unread.keep(socket);
            theirs.push(other);
        }
        assert!(unread.has_many_ended(ONE) && !unread.has_many_ended(TWO));
        for other in &theirs {
            receive(other, usize::MAX);
        }
        assert!(unread.has_many_ended(ONE), "nothing was looked at");
        assert!(!unread.take_empty(ONE).is_empty());
        assert!(!unread.has_many_ended(ONE));
    }

    /// One that has received all is served again at once, and one that never comes back has its
    /// sockets closed, however many others have left.
    #[test]
    fn sockets_of_many_users_delay_looks_at_none() {
        let unread = UnreadDescriptors::default();
        let mut others = Vec::new();
        for _ in 0..64 {
            let (socket, theirs) = ended(ONE, 1);
            unread.keep(socket);
            others.push(theirs);
        }
        for account in [TWO, THREE] {
            let (socket, theirs) = ended(account, 1);
            unread.keep(socket);
            drop(theirs);
        }
        let taken: Vec<_> = unread.take_empty(TWO).iter().map(|socket| socket.account).collect();
        assert_eq!(taken, [TWO, THREE]);
        assert_eq!(unread.pool().ended[&ONE].sockets.len(), 64);
    }
}
