//! One client's socket: messages in and out, whole, without ever waiting.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::Instant,
};

use nix::errno::Errno;
use roced_abi::control::{Call, MAGIC, MESSAGE_BYTES, MapAndRegMr, MapMemory, Message};
use roced_memory::{
    accounts::{ClientAccount, ClientAccounts},
    client_socket::{ClientSocket, SendingState, SentMessage, TakenMessage, ThreadReports},
    descriptor::{Descriptor, Incoming},
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
    /// A thread of its user's receives one, since then.
    UnderWay(Instant),
    /// Something that no client of ours sends.
    Broken(&'static str),
}

/// A connected client.
#[derive(Debug)]
pub struct ClientConnection {
    /// A thread of the user's closes it: messages with descriptors may be left in it.
    socket: ClientSocket,
    process: ClientProcess,
    account: ClientAccount,
}

impl ClientConnection {
    /// The client at the other end of `socket`.
    pub fn new(socket: OwnedFd, process: ClientProcess, accounts: &ClientAccounts) -> Self {
        let account = accounts.account(process.account);
        account.begin_thread();
        Self { socket: ClientSocket::new(socket, account.clone()), process, account }
    }

    /// Threads of its user report by this token.
    pub fn report_to(&self, reports: &ThreadReports, token: u64) {
        self.socket.report_to(reports, token);
    }

    /// Closes it, of a user of which nothing is served: [`ClientAccount::is_stuck`].
    pub fn turn_away(self) {
        self.socket.turn_away();
    }

    /// The account of its user.
    pub fn account(&self) -> &ClientAccount {
        &self.account
    }

    /// The client process.
    pub fn process(&self) -> ClientProcess {
        self.process
    }

    /// The next message.
    pub fn receive(&self) -> ReceivedCall {
        // One byte more than a message, so that a longer one is told apart.
        let (incoming, bytes) = match self.socket.take(MESSAGE_BYTES + 1) {
            TakenMessage::Later(since) => return ReceivedCall::UnderWay(since),
            TakenMessage::Now(Ok(Some(incoming)), bytes) => (incoming, bytes),
            TakenMessage::Now(Ok(None), _) => return ReceivedCall::Postponed,
            TakenMessage::Now(Err(Errno::EAGAIN | Errno::EINTR), _) => return ReceivedCall::Nothing,
            TakenMessage::Now(Err(_), _) => return ReceivedCall::Closed,
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
    pub fn send(&self, message: &Message, fds: Vec<OwnedFd>) -> SentMessage {
        self.socket.send(message.as_bytes(), fds)
    }

    /// Sends `message`, which is dropped if there is no room for it.
    pub fn send_if_room(&self, message: &Message) -> SentMessage {
        self.socket.send_if_room(message.as_bytes())
    }

    /// Messages to it that a thread of its user's sends.
    pub fn sending(&self) -> SendingState {
        self.socket.sending()
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
        io::IoSlice,
        os::fd::{AsRawFd as _, RawFd},
        thread,
        time::Duration,
    };

    use nix::sys::socket::{AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, send, sendmsg, socketpair};

    use super::*;

    fn pair() -> (ClientConnection, OwnedFd) {
        let (ours, theirs) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).expect("a socket pair");
        (
            ClientConnection::new(
                ours,
                ClientProcess { pid: 1, uid: 0, account: AccountId(0), access: ClientAccess::ALL },
                &ClientAccounts::default(),
            ),
            theirs,
        )
    }

    /// By a thread of the user's or here.
    fn received(connection: &ClientConnection) -> ReceivedCall {
        loop {
            match connection.receive() {
                ReceivedCall::UnderWay(_) => thread::yield_now(),
                received => return received,
            }
        }
    }

    #[test]
    fn only_whole_messages_of_ours_come_through() {
        let (connection, theirs) = pair();
        let put = |bytes: &[u8]| send(theirs.as_raw_fd(), bytes, MsgFlags::empty()).expect("room");
        assert!(matches!(received(&connection), ReceivedCall::Nothing));
        let message = Message::new(1, 2, &7u32);
        put(message.as_bytes());
        assert!(matches!(received(&connection), ReceivedCall::Message(got, None) if *got == message));
        put(&message.as_bytes()[..MESSAGE_BYTES - 1]);
        assert!(matches!(received(&connection), ReceivedCall::Broken(_)));
        put(&[message.as_bytes(), &[0]].concat());
        assert!(matches!(received(&connection), ReceivedCall::Broken(_)));
        put(&[0; MESSAGE_BYTES]);
        assert!(matches!(received(&connection), ReceivedCall::Broken(_)));
        drop(theirs);
        assert!(matches!(received(&connection), ReceivedCall::Closed));
        connection.send(&message, Vec::new());
        while connection.sending() != SendingState::Closed {
            thread::yield_now();
        }
        assert_eq!(connection.send(&message, Vec::new()), SentMessage::Closed);
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
        connection.process.uid = 4_000_000_003;
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
            assert!(matches!(received(&connection), ReceivedCall::Broken(_)), "{op} {raw:?}");
            // All received descriptors are closed by another thread, because their kind is unknown;
            // too many at a time would be refused.
            until("all are closed", &|| connection.account.closing() == 0);
        }
        put_with(&theirs, MapMemory::OP, &[raw]);
        let ReceivedCall::Message(_, Some(ours)) = received(&connection) else { panic!("it belongs there") };
        drop(theirs);
        // Our copy keeps the other end open, that of the last one and no other.
        assert!(matches!(received(&connection), ReceivedCall::Nothing));
        drop(ours);
        until("our copy is closed", &|| matches!(received(&connection), ReceivedCall::Closed));
    }

    #[test]
    fn a_client_that_does_not_read_is_noticed() {
        let (connection, _theirs) = pair();
        let message = Message::new(1, 2, &7u32);
        let sent = (0..100_000).map(|_| {
            let sent = connection.send(&message, Vec::new());
            while matches!(connection.sending(), SendingState::UnderWay(_)) {
                thread::yield_now();
            }
            sent
        });
        let sent = sent.into_iter().find(|sent| !matches!(sent, SentMessage::Yes | SentMessage::Later));
        assert_eq!(sent, Some(SentMessage::Full));
    }
}
