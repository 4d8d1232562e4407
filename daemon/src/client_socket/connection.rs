//! One client's socket: messages in and out, whole, without ever waiting.

use std::{
    io::IoSlice,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
};

use nix::{
    errno::Errno,
    sys::socket::{ControlMessage, MsgFlags, sendmsg},
};
use roced_abi::control::{Call, MAGIC, MESSAGE_BYTES, MapAndRegMr, MapMemory, Message};
use roced_memory::{
    descriptor::{self, Descriptor, Incoming},
    users::{SharedFd, UserAccount, UserAccounts},
};
use roced_types::AccountId;
use zerocopy::{FromBytes, IntoBytes};

use crate::accounts::access::ClientAccess;

/// The process at the other end, as reported by the kernel when it connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientProcess {
    /// Process.
    pub pid: i32,
    /// User.
    pub uid: u32,
    /// Account that it counts for.
    pub account: AccountId,
    /// By the rules of the operator.
    pub access: ClientAccess,
}

/// Result of a receive.
#[derive(Debug)]
pub enum ReceivedCall {
    /// A request, and the file descriptor beside it, if its call takes one.
    Message(Box<Message>, Option<Descriptor>),
    /// Nothing, for now.
    Nothing,
    /// The client has closed.
    Closed,
    /// A request that cannot be received yet: too many descriptors of its user's wait to be closed.
    Postponed,
    /// Something that no client of ours sends.
    Broken(&'static str),
}

/// Result of a send to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SentReply {
    /// It is on its way.
    Yes,
    /// The client does not read its replies.
    Full,
    /// The client has closed.
    Closed,
}

/// A connected client.
#[derive(Debug)]
pub struct ClientConnection {
    /// A thread of the user's closes it: messages with descriptors may be left in it.
    socket: SharedFd,
    peer: ClientProcess,
    user: UserAccount,
}

impl ClientConnection {
    /// The client at the other end of `socket`.
    pub fn new(socket: OwnedFd, peer: ClientProcess, users: &UserAccounts) -> Self {
        let user = users.user(peer.account.0);
        user.begin_thread();
        Self { socket: SharedFd::new(socket, Some(user.clone())), peer, user }
    }

    /// Closes it, of a user of which nothing is served: [`UserAccount::is_stuck`].
    pub fn turn_away(self) {
        self.socket.turn_away();
    }

    /// The account of its user.
    pub fn user(&self) -> &UserAccount {
        &self.user
    }

    /// The client process.
    pub fn peer(&self) -> ClientProcess {
        self.peer
    }

    /// The next message.
    pub fn receive(&self) -> ReceivedCall {
        // One byte more than a message, so that a longer one is told apart.
        let mut bytes = [0; MESSAGE_BYTES + 1];
        let incoming = match descriptor::receive(&self.socket, &mut bytes, &self.user) {
            Ok(Some(incoming)) => incoming,
            Ok(None) => return ReceivedCall::Postponed,
            Err(Errno::EAGAIN | Errno::EINTR) => return ReceivedCall::Nothing,
            Err(_) => return ReceivedCall::Closed,
        };
        let Incoming { length, exhausted, mut descriptors } = incoming;
        let descriptor = descriptors.pop();
        if !descriptors.is_empty() {
            return ReceivedCall::Broken("more file descriptors than a request may have");
        }
        if exhausted {
            return ReceivedCall::Broken("a file descriptor that cannot be taken: roced has too many open");
        }
        match (length, Message::read_from_bytes(&bytes[..length])) {
            (0, _) => ReceivedCall::Closed,
            (_, Ok(message)) if message.header.magic != MAGIC => ReceivedCall::Broken("a message that is not roced's"),
            (_, Ok(message)) if descriptor.is_some() && !takes_descriptor(message.header.op) => {
                ReceivedCall::Broken("a file descriptor beside a request that takes none")
            }
            (_, Ok(message)) => ReceivedCall::Message(Box::new(message), descriptor),
            (_, Err(_)) => ReceivedCall::Broken("a message of another length"),
        }
    }

    /// Sends `message` with `fds` beside it.
    pub fn send(&self, message: &Message, fds: &[OwnedFd]) -> SentReply {
        let raw: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
        let rights = [ControlMessage::ScmRights(&raw)];
        let control = if raw.is_empty() { &[][..] } else { &rights[..] };
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        loop {
            return match sendmsg::<()>(
                self.as_fd().as_raw_fd(),
                &[IoSlice::new(message.as_bytes())],
                control,
                flags,
                None,
            ) {
                Ok(_) => SentReply::Yes,
                Err(Errno::EINTR) => continue,
                // Too many descriptors in flight (ETOOMANYREFS) are those of unread replies.
                Err(Errno::EAGAIN | Errno::ENOBUFS | Errno::ENOMEM | Errno::ETOOMANYREFS) => SentReply::Full,
                Err(_) => SentReply::Closed,
            };
        }
    }
}

impl AsFd for ClientConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The call takes a file descriptor beside its request.
const fn takes_descriptor(op: u32) -> bool {
    matches!(op, MapMemory::OP | MapAndRegMr::OP)
}

#[cfg(test)]
mod tests {
    use std::{
        thread,
        time::{Duration, Instant},
    };

    use nix::sys::socket::{AddressFamily, SockFlag, SockType, send, socketpair};

    use super::*;

    fn pair() -> (ClientConnection, OwnedFd) {
        let (ours, theirs) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).expect("a socket pair");
        (
            ClientConnection::new(
                ours,
                ClientProcess { pid: 1, uid: 0, account: AccountId(0), access: ClientAccess::ALL },
                &UserAccounts::default(),
            ),
            theirs,
        )
    }

    #[test]
    fn only_whole_messages_of_ours_come_through() {
        let (connection, theirs) = pair();
        let put = |bytes: &[u8]| send(theirs.as_raw_fd(), bytes, MsgFlags::empty()).expect("room");
        assert!(matches!(connection.receive(), ReceivedCall::Nothing));
        let message = Message::new(1, 2, &7u32);
        put(message.as_bytes());
        assert!(matches!(connection.receive(), ReceivedCall::Message(got, None) if *got == message));
        put(&message.as_bytes()[..MESSAGE_BYTES - 1]);
        assert!(matches!(connection.receive(), ReceivedCall::Broken(_)));
        put(&[message.as_bytes(), &[0]].concat());
        assert!(matches!(connection.receive(), ReceivedCall::Broken(_)));
        put(&[0; MESSAGE_BYTES]);
        assert!(matches!(connection.receive(), ReceivedCall::Broken(_)));
        drop(theirs);
        assert!(matches!(connection.receive(), ReceivedCall::Closed));
        assert_eq!(connection.send(&message, &[]), SentReply::Closed);
    }

    fn put_with(theirs: &OwnedFd, op: u32, raw: &[RawFd]) {
        let message = Message::new(op, 2, &7u32);
        let rights = [ControlMessage::ScmRights(raw)];
        sendmsg::<()>(theirs.as_raw_fd(), &[IoSlice::new(message.as_bytes())], &rights, MsgFlags::empty(), None)
            .expect("room");
    }

    #[test]
    fn descriptors_come_one_at_a_time_and_only_where_they_belong() {
        let (mut connection, theirs) = pair();
        // A user of this test's own.
        connection.peer.uid = 4_000_000_003;
        let raw = theirs.as_raw_fd();
        let until = |what: &str, holds: &dyn Fn() -> bool| {
            let begin = Instant::now();
            while !holds() {
                assert!(begin.elapsed() < Duration::from_secs(20), "never: {what}");
                thread::yield_now();
            }
        };
        for (op, raw) in
            [(1, &[raw][..]), (1, &[raw, raw, raw]), (MapMemory::OP, &[raw, raw]), (MapAndRegMr::OP, &[raw, raw])]
        {
            put_with(&theirs, op, raw);
            assert!(matches!(connection.receive(), ReceivedCall::Broken(_)), "{op} {raw:?}");
            // All received descriptors are closed by another thread, because their kind is unknown;
            // too many at a time would be refused.
            until("all are closed", &|| connection.user.closing() == 0);
        }
        put_with(&theirs, MapMemory::OP, &[raw]);
        let ReceivedCall::Message(_, Some(ours)) = connection.receive() else { panic!("it belongs there") };
        drop(theirs);
        // Our copy keeps the other end open, that of the last one and no other.
        assert!(matches!(connection.receive(), ReceivedCall::Nothing));
        drop(ours);
        until("our copy is closed", &|| matches!(connection.receive(), ReceivedCall::Closed));
    }

    #[test]
    fn a_client_that_does_not_read_is_noticed() {
        let (connection, _theirs) = pair();
        let message = Message::new(1, 2, &7u32);
        let sent = (0..100_000).map(|_| connection.send(&message, &[])).find(|sent| *sent != SentReply::Yes);
        assert_eq!(sent, Some(SentReply::Full));
    }
}
