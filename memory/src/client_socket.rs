//! Sockets of which a client has the other end: messages in and out, without ever waiting.
//!
//! A thread of the user's sends and takes messages whenever that may take long
//! (`waking.rs`). It does so in order, and reports to the thread that owns the socket.

use std::{
    collections::VecDeque,
    io::IoSlice,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Instant,
};

use nix::{
    errno::Errno,
    sys::{
        eventfd::{EfdFlags, EventFd},
        socket::{ControlMessage, MsgFlags, sendmsg},
    },
};

use super::{
    accounts::ClientAccount,
    descriptor::{self, Incoming},
    held_charge::HeldCharge,
    shared_fd::SharedFd,
    unread::{UNREAD_OF_SOCKET, unread_cost},
    waking::WakeTrust,
};

/// Messages of one socket that wait for the user's thread, at most.
const WAITING_MAX: usize = 64;

/// Result of sending a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SentMessage {
    /// It is in the socket.
    Yes,
    /// The user's thread sends it.
    Later,
    /// There is no room for it.
    Full,
    /// The client has closed.
    Closed,
}

/// Messages that the user's thread sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendingState {
    /// None.
    Idle,
    /// It is at it since then.
    UnderWay(Instant),
    /// One found no room; [`ClientSocket::send_waiting`] has it try again.
    Full,
    /// The client has closed.
    Closed,
}

/// Result of taking a message.
#[derive(Debug)]
pub enum TakenMessage {
    /// The same as of [`descriptor::receive`], and the bytes.
    Now(Result<Option<Incoming>, Errno>, Box<[u8]>),
    /// The user's thread takes it, since then.
    Later(Instant),
}

/// Sockets on which threads of users have done something.
#[derive(Clone, Debug)]
pub struct ThreadReports(Arc<Reports>);

#[derive(Debug)]
struct Reports {
    of: Mutex<Vec<u64>>,
    bell: EventFd,
}

impl ThreadReports {
    /// No report yet.
    ///
    /// # Errors
    /// The kernel's, when it gives no eventfd.
    pub fn new() -> Result<Self, Errno> {
        let bell = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(Self(Arc::new(Reports { of: Mutex::default(), bell })))
    }

    /// The tokens of the sockets with news, and unreadable until the next ones.
    pub fn take(&self) -> Vec<u64> {
        // EAGAIN when there was none.
        let _ = self.0.bell.read();
        std::mem::take(&mut *self.0.of.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn add(&self, token: u64) {
        self.0.of.lock().unwrap_or_else(PoisonError::into_inner).push(token);
        // A counter that is full (EAGAIN) is as readable as can be.
        let _ = self.0.bell.write(1);
    }
}

impl AsFd for ThreadReports {
    /// Readable when there are some.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.bell.as_fd()
    }
}

/// A socket of which a client has the other end. Messages that wait when it is dropped go
/// with it.
#[derive(Debug)]
pub struct ClientSocket(Arc<SocketState>);

#[derive(Debug)]
struct SocketState {
    fd: SharedFd,
    account: ClientAccount,
    reports: OnceLock<(ThreadReports, u64)>,
    sends: WakeTrust,
    takes: WakeTrust,
    outbox: Mutex<WaitingMessages>,
    inbox: Mutex<TakingState>,
    is_dropped: AtomicBool,
    /// Descriptors in messages that the client had not received at the last look.
    unread: AtomicU32,
    charge: Option<HeldCharge>,
}

#[derive(Debug, Default)]
struct WaitingMessages {
    waiting: VecDeque<WaitingMessage>,
    /// The user's thread has one more in hand, which may not be in the socket yet.
    is_in_hand: bool,
    /// The user's thread sends them, since then.
    since: Option<Instant>,
    /// Why the last one was not sent.
    unsent: Option<SentMessage>,
}

#[derive(Debug)]
struct WaitingMessage {
    bytes: Box<[u8]>,
    fds: Vec<OwnedFd>,
    /// Without room it waits on, and is not dropped.
    is_owed: bool,
}

#[derive(Debug, Default)]
enum TakingState {
    #[default]
    Idle,
    UnderWay(Instant),
    Done(Result<Option<Incoming>, Errno>, Box<[u8]>),
}

impl ClientSocket {
    /// One of which the client has had the other end for any time.
    pub fn new(fd: OwnedFd, account: ClientAccount) -> Self {
        Self::with_trust(fd, account, WakeTrust::default(), None)
    }

    /// One of which the client has no descriptor yet. `charge` is for its memory, and lasts until
    /// the client has received all that is left in it when it is dropped.
    pub fn before_client(fd: OwnedFd, account: ClientAccount, charge: HeldCharge) -> Self {
        Self::with_trust(fd, account, WakeTrust::of_new(), Some(charge))
    }

    fn with_trust(fd: OwnedFd, account: ClientAccount, sends: WakeTrust, charge: Option<HeldCharge>) -> Self {
        account.close_ended();
        Self(Arc::new(SocketState {
            fd: SharedFd::new(fd, Some(account.clone())),
            account,
            reports: OnceLock::new(),
            sends,
            takes: WakeTrust::default(),
            outbox: Mutex::default(),
            inbox: Mutex::default(),
            is_dropped: AtomicBool::new(false),
            unread: AtomicU32::new(0),
            charge,
        }))
    }

    /// Closes it, of a user of which nothing is served: [`ClientAccount::is_stuck`]. Before it is
    /// used.
    pub fn turn_away(mut self) {
        if let Some(state) = Arc::get_mut(&mut self.0) {
            state.fd.turn_away();
        }
    }

    /// Threads of the user report by this token when they have done something here.
    pub fn report_to(&self, reports: &ThreadReports, token: u64) {
        // It is set once, by the maker.
        let _ = self.0.reports.set((reports.clone(), token));
    }

    /// Sends a message, after those that wait.
    pub fn send(&self, bytes: &[u8], fds: Vec<OwnedFd>) -> SentMessage {
        self.send_as(bytes, fds, true)
    }

    /// The same of one that is dropped if there is no room for it.
    pub fn send_if_room(&self, bytes: &[u8]) -> SentMessage {
        self.send_as(bytes, Vec::new(), false)
    }

    fn send_as(&self, bytes: &[u8], fds: Vec<OwnedFd>, is_owed: bool) -> SentMessage {
        let state = &self.0;
        let mut outbox = state.outbox();
        if let Some(unsent) = outbox.unsent {
            return unsent;
        }
        if outbox.since.is_none()
            && let Some(sent) = state.account.waking().here(&state.sends, || state.send_now(bytes, &fds))
        {
            return sent;
        }
        if outbox.waiting.len() >= WAITING_MAX {
            return SentMessage::Full;
        }
        outbox.waiting.push_back(WaitingMessage { bytes: bytes.into(), fds, is_owed });
        self.begin_sending(outbox);
        SentMessage::Later
    }

    /// Retries messages that found no room, if there are any.
    pub fn send_waiting(&self) {
        let mut outbox = self.0.outbox();
        if outbox.unsent == Some(SentMessage::Full) {
            outbox.unsent = None;
            self.begin_sending(outbox);
        }
    }

    fn begin_sending(&self, mut outbox: MutexGuard<'_, WaitingMessages>) {
        if outbox.since.is_none() {
            outbox.since = Some(Instant::now());
            drop(outbox);
            self.later(SocketState::send_all);
        }
    }

    /// Messages that the user's thread sends.
    pub fn sending(&self) -> SendingState {
        let outbox = self.0.outbox();
        match (outbox.since, outbox.unsent) {
            (Some(since), _) => SendingState::UnderWay(since),
            (None, Some(SentMessage::Full)) => SendingState::Full,
            (None, Some(_)) => SendingState::Closed,
            (None, None) => SendingState::Idle,
        }
    }

    /// Messages that are not in the socket yet. One that is sent now counts, also for a moment after
    /// it is in the socket.
    pub fn waiting(&self) -> usize {
        let outbox = self.0.outbox();
        outbox.waiting.len() + usize::from(outbox.is_in_hand)
    }

    /// Takes a message of up to `most` bytes.
    pub fn take(&self, most: usize) -> TakenMessage {
        let state = &self.0;
        let mut inbox = state.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        match std::mem::take(&mut *inbox) {
            TakingState::Done(result, bytes) => return TakenMessage::Now(result, bytes),
            TakingState::UnderWay(since) => {
                *inbox = TakingState::UnderWay(since);
                return TakenMessage::Later(since);
            }
            TakingState::Idle => {}
        }
        let mut bytes = vec![0; most].into_boxed_slice();
        if let Some(result) = state.account.waking().here(&state.takes, || state.take_now(&mut bytes)) {
            return TakenMessage::Now(result, bytes);
        }
        let since = Instant::now();
        *inbox = TakingState::UnderWay(since);
        drop(inbox);
        self.later(|state| state.take_later(bytes));
        TakenMessage::Later(since)
    }

    /// Has the user's thread do something, if this socket is there at that time: one that waits for
    /// a thread in a long walk occupies no number.
    fn later(&self, act: impl FnOnce(&SocketState) + Send + 'static) {
        let state = Arc::downgrade(&self.0);
        self.0.account.waking().add(move || {
            if let Some(state) = state.upgrade() {
                act(&state);
            }
        });
    }
}

impl Drop for ClientSocket {
    /// The user's thread may be at a message of this socket: the others go without it. No client
    /// has had their descriptors.
    fn drop(&mut self) {
        self.0.is_dropped.store(true, Ordering::Relaxed);
        let unsent = std::mem::take(&mut self.0.outbox().waiting);
        drop(unsent);
    }
}

impl AsFd for ClientSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.fd.as_fd()
    }
}

impl SocketState {
    fn outbox(&self) -> MutexGuard<'_, WaitingMessages> {
        self.outbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Descriptors that the client has not received.
    fn look_at_unread(&self) -> u32 {
        let unread = self.unread.load(Ordering::Relaxed);
        if unread == 0 || unread_cost(&self.fd) != Some(0) {
            return unread;
        }
        self.unread.store(0, Ordering::Relaxed);
        self.account.release_unread(unread);
        0
    }

    fn send_now(&self, bytes: &[u8], fds: &[OwnedFd]) -> (SentMessage, bool) {
        if fds.is_empty() {
            return self.send_rights(bytes, fds);
        }
        let (unread, count) = (self.look_at_unread(), fds.len() as u32);
        if unread > 0 && unread + count > UNREAD_OF_SOCKET || !self.account.charge_unread(count) {
            return (SentMessage::Full, false);
        }
        let sent = self.send_rights(bytes, fds);
        if sent.0 == SentMessage::Yes {
            self.unread.store(unread + count, Ordering::Relaxed);
        } else {
            self.account.release_unread(count);
        }
        sent
    }

    fn send_rights(&self, bytes: &[u8], fds: &[OwnedFd]) -> (SentMessage, bool) {
        let raw: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
        let rights = [ControlMessage::ScmRights(&raw)];
        let control = if raw.is_empty() { &[][..] } else { &rights[..] };
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        let sent = loop {
            break match sendmsg::<()>(self.fd.as_fd().as_raw_fd(), &[IoSlice::new(bytes)], control, flags, None) {
                Ok(_) => SentMessage::Yes,
                Err(Errno::EINTR) => continue,
                // Too many descriptors in flight (ETOOMANYREFS) are those of unread messages.
                Err(Errno::EAGAIN | Errno::ENOBUFS | Errno::ENOMEM | Errno::ETOOMANYREFS) => SentMessage::Full,
                Err(_) => SentMessage::Closed,
            };
        };
        (sent, sent == SentMessage::Yes)
    }

    /// Without a message there was no walk.
    fn take_now(&self, bytes: &mut [u8]) -> (Result<Option<Incoming>, Errno>, bool) {
        let result = descriptor::receive(&self.fd, bytes, &self.account);
        let was_message = matches!(&result, Ok(Some(incoming)) if incoming.length > 0);
        (result, was_message)
    }

    fn report(&self) {
        if let Some((reports, token)) = self.reports.get() {
            reports.add(*token);
        }
    }

    /// In the user's thread.
    fn send_all(&self) {
        loop {
            let mut outbox = self.outbox();
            if self.is_dropped.load(Ordering::Relaxed) {
                outbox.waiting.clear();
            }
            let message = outbox.waiting.pop_front();
            outbox.is_in_hand = message.is_some();
            let Some(message) = message else {
                outbox.since = None;
                drop(outbox);
                return self.report();
            };
            drop(outbox);
            let sent = self.account.waking().measured(&self.sends, || self.send_now(&message.bytes, &message.fds));
            let is_dropped = sent == SentMessage::Full && !message.is_owed;
            if sent != SentMessage::Yes && !is_dropped {
                let mut outbox = self.outbox();
                outbox.waiting.push_front(message);
                outbox.is_in_hand = false;
                outbox.unsent = Some(sent);
                outbox.since = None;
                drop(outbox);
                return self.report();
            }
        }
    }

    /// In the user's thread.
    fn take_later(&self, mut bytes: Box<[u8]>) {
        if self.is_dropped.load(Ordering::Relaxed) {
            return;
        }
        let result = self.account.waking().measured(&self.takes, || self.take_now(&mut bytes));
        *self.inbox.lock().unwrap_or_else(PoisonError::into_inner) = TakingState::Done(result, bytes);
        self.report();
    }
}

impl Drop for SocketState {
    /// Replies without descriptors that were not received are memory, and count as well.
    fn drop(&mut self) {
        let unread = self.look_at_unread();
        if unread_cost(&self.fd).is_some_and(|cost| cost > 0)
            && let Some(fd) = self.fd.take()
        {
            self.account.end_unread(fd, unread, self.charge.take());
        } else if unread > 0 {
            self.account.release_unread(unread);
        }
        self.account.close_ended();
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::Read as _,
        os::unix::net::UnixStream,
        sync::mpsc::{self, Sender},
        thread,
        time::Duration,
    };

    use nix::sys::socket::{AddressFamily, SockFlag, SockType, recv, socketpair};

    use roced_types::AccountId;

    use super::*;
    use crate::accounts::ClientAccounts;

    fn pair(account: &ClientAccount) -> (ClientSocket, OwnedFd) {
        let (ours, theirs) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).expect("a pair");
        (ClientSocket::new(ours, account.clone()), theirs)
    }

    /// The user's thread is in a walk until the returned value goes.
    fn long_walk(account: &ClientAccount) -> Sender<()> {
        let (end, ended) = mpsc::channel();
        account.waking().add(move || _ = ended.recv());
        end
    }

    fn eventually(event: &str, has_come: impl Fn() -> bool) {
        let begin = Instant::now();
        while !has_come() {
            assert!(begin.elapsed() < Duration::from_secs(20), "{event}");
            thread::yield_now();
        }
    }

    /// The next message, and `None` at the end.
    fn received(theirs: &OwnedFd) -> Option<u8> {
        let mut bytes = [0; 8];
        (recv(theirs.as_raw_fd(), &mut bytes, MsgFlags::empty()) == Ok(1)).then_some(bytes[0])
    }

    /// Of a descriptor that waits for its reader.
    fn watched() -> (UnixStream, OwnedFd) {
        let (watch, fd) = UnixStream::pair().expect("a pair");
        watch.set_read_timeout(Some(Duration::from_secs(20))).expect("an option");
        (watch, fd.into())
    }

    #[test]
    fn a_socket_that_ends_leaves_nothing_to_a_thread_in_a_long_walk() {
        let account = ClientAccounts::default().account(AccountId(1));
        let walk = long_walk(&account);
        let (socket, theirs) = pair(&account);
        let (mut watch, fd) = watched();
        assert_eq!(socket.send(&[1], vec![fd]), SentMessage::Later);
        assert_eq!(socket.send(&[2], Vec::new()), SentMessage::Later);
        assert!(matches!(socket.take(8), TakenMessage::Later(_)));
        drop(socket);
        assert_eq!(watch.read(&mut [0]).expect("no time-out"), 0, "the descriptor of the reply is closed");
        assert_eq!(received(&theirs), None, "and the socket");
        drop(walk);
    }

    /// It has taken a message of which the descriptors are the client's, and ends before that is
    /// seen.
    #[test]
    fn descriptors_that_were_taken_go_with_their_socket() {
        let account = ClientAccounts::default().account(AccountId(1));
        let (socket, theirs) = pair(&account);
        let (mut watch, fd) = watched();
        let rights = [ControlMessage::ScmRights(&[fd.as_raw_fd()])];
        sendmsg::<()>(theirs.as_raw_fd(), &[IoSlice::new(&[1])], &rights, MsgFlags::empty(), None).expect("room");
        drop(fd);
        assert!(matches!(socket.take(8), TakenMessage::Later(_)));
        eventually("taken", || matches!(*socket.0.inbox.lock().expect("no panic"), TakingState::Done(..)));
        drop(socket);
        assert_eq!(watch.read(&mut [0]).expect("no time-out"), 0);
        eventually("closed by a thread of the user", || account.closing() == 0);
    }

    #[test]
    fn so_many_messages_wait_and_are_sent_in_order() {
        let account = ClientAccounts::default().account(AccountId(1));
        let walk = long_walk(&account);
        let (socket, theirs) = pair(&account);
        let reports = ThreadReports::new().expect("an eventfd");
        socket.report_to(&reports, 7);
        for number in 0..WAITING_MAX {
            assert_eq!(socket.send(&[number as u8], Vec::new()), SentMessage::Later);
        }
        assert_eq!(socket.send(&[0xff], Vec::new()), SentMessage::Full);
        assert_eq!(socket.waiting(), WAITING_MAX);
        assert!(matches!(socket.sending(), SendingState::UnderWay(_)) && reports.take().is_empty());
        drop(walk);
        eventually("all are sent", || socket.sending() == SendingState::Idle);
        eventually("it reports", || reports.take() == [7]);
        for number in 0..WAITING_MAX {
            assert_eq!(received(&theirs), Some(number as u8));
        }
    }

    /// A message is among those that wait, or in the socket, or both, while the thread sends it.
    #[test]
    fn a_message_that_is_sent_now_is_counted() {
        const MESSAGES: u32 = 20;
        let account = ClientAccounts::default().account(AccountId(1));
        for _ in 0..500 {
            let walk = long_walk(&account);
            let (socket, theirs) = pair(&account);
            for _ in 0..MESSAGES {
                assert_eq!(socket.send(&[1], Vec::new()), SentMessage::Later);
            }
            drop(walk);
            let mut counts = Vec::new();
            while matches!(socket.sending(), SendingState::UnderWay(_)) {
                let waiting = socket.waiting() as u32;
                counts.push((waiting, unread_cost(&socket).expect("the kernel tells")));
            }
            assert_eq!(socket.sending(), SendingState::Idle);
            let cost = unread_cost(&socket).expect("the kernel tells") / MESSAGES;
            for (waiting, bytes) in counts {
                assert!(waiting + bytes / cost >= MESSAGES, "{waiting} wait, {bytes} bytes in the socket, {cost} each");
            }
            drop(theirs);
        }
    }

    /// Sends a message with descriptors.
    fn reply(socket: &ClientSocket, descriptors: usize) -> SentMessage {
        let file = || OwnedFd::from(UnixStream::pair().expect("a pair").0);
        let sent = socket.send(&[1], (0..descriptors).map(|_| file()).collect());
        if sent != SentMessage::Later {
            return sent;
        }
        eventually("the user's thread has tried", || !matches!(socket.sending(), SendingState::UnderWay(_)));
        if socket.sending() == SendingState::Full { SentMessage::Full } else { SentMessage::Yes }
    }

    #[test]
    fn a_client_leaves_few_descriptors_unread() {
        let accounts = ClientAccounts::default();
        let (socket, theirs) = pair(&accounts.account(AccountId(1)));
        let sent = (0..20).take_while(|_| reply(&socket, 60) == SentMessage::Yes).count();
        assert_eq!((sent, accounts.account(AccountId(1)).unread()), (4, 240));
        (0..sent).for_each(|_| assert_eq!(received(&theirs), Some(1)));
        socket.send_waiting();
        eventually("there is room", || socket.sending() == SendingState::Idle);
        assert_eq!(reply(&socket, 1), SentMessage::Yes);
        let unread = accounts.account(AccountId(1)).unread();
        assert!(unread <= 61, "{unread}: all but the last ones were received");
    }

    #[test]
    fn descriptors_that_ended_sessions_left_unread_count_until_they_are_closed() {
        let accounts = ClientAccounts::default();
        let account = accounts.account(AccountId(1));
        let theirs: Vec<_> = (0..6)
            .map(|_| {
                let (socket, theirs) = pair(&account);
                assert_eq!(reply(&socket, 3), SentMessage::Yes);
                theirs
            })
            .collect();
        for theirs in &theirs {
            assert_eq!(received(theirs), Some(1));
            assert_eq!(received(theirs), None, "the client is told of the end");
        }
        drop(theirs);
        let (socket, other) = pair(&account);
        assert_eq!(reply(&socket, 3), SentMessage::Yes);
        drop(socket);
        eventually("the socket was ended", || account.chores() == 0);
        assert!(account.unread() >= 3, "it was not received");
        drop(other);
        eventually("none is unread", || {
            account.close_ended();
            account.unread() == 0
        });
    }

    #[test]
    fn a_user_with_unread_replies_in_many_ended_sockets_is_known() {
        let accounts = ClientAccounts::default();
        let account = accounts.account(AccountId(1));
        let theirs: Vec<_> = (0..256)
            .map(|_| {
                let (socket, theirs) = pair(&account);
                assert_eq!(reply(&socket, 0), SentMessage::Yes);
                theirs
            })
            .collect();
        eventually("all were ended", || account.leaves_much_unread());
        assert!(!accounts.account(AccountId(2)).leaves_much_unread());
        drop(theirs);
        eventually("they are closed", || !account.leaves_much_unread());
    }
}
