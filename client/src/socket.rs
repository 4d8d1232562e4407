//! The control socket: calls and replies, interleaved events, and file descriptors passed along.
#![expect(unsafe_code, reason = "takes ownership of file descriptors that came by SCM_RIGHTS")]

use std::{
    collections::VecDeque,
    fs,
    io::{IoSlice, IoSliceMut},
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
    path::{Path, PathBuf},
    process,
    sync::{
        Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use nix::{
    cmsg_space,
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        eventfd::{EfdFlags, EventFd},
        socket::{
            AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, UnixAddr, connect,
            recvmsg, sendmsg, socket,
        },
    },
};
use roced_abi::{
    DEFAULT_SOCKET, SOCKET_VARIABLE, VERSION,
    control::{self, Call, Event, Handle, Hello, HelloReply, HelloRequest, MAGIC, MESSAGE_BYTES, Message, call_name},
};
use roced_types::event::EventSubject;
use zerocopy::{FromBytes, IntoBytes};

use crate::{
    cancellation::NoCancellation,
    environment::trusted_variable,
    error::{Error, Result},
    readiness::Readiness,
    yield_limiter::YieldLimiter,
};

/// Timeout of a call. Control calls are microseconds of work; a daemon that needs longer is stopped
/// or starved.
const CALL_SECONDS: u64 = 20;

/// Time that a call polls for its reply, yielding, before it sleeps: most calls are answered within
/// microseconds, and a wake-up costs ten times that. Beside threads that compute it sleeps at once.
const POLL_BEFORE_SLEEP: Duration = Duration::from_micros(50);

/// Calls of all threads that are under way at a time, others wait: the daemon ends a session that
/// does not read its replies, and a socket has room for some dozens.
const UNDER_WAY_MAX: usize = 16;

/// Maximum number of file descriptors in one reply: two memfds and an eventfd for each of 64
/// workers.
const FDS_MAX: usize = 66;

/// Maximum number of queued events; beyond it the oldest is dropped.
const EVENTS_MAX: usize = 1024;

/// Socket path of the daemon, from the environment or the default.
pub(crate) fn default_path() -> PathBuf {
    let named = trusted_variable(SOCKET_VARIABLE).filter(|path| !path.is_empty());
    named.map_or_else(|| DEFAULT_SOCKET.into(), PathBuf::from)
}

/// A session with the daemon.
#[derive(Debug)]
pub(crate) struct DaemonSession {
    socket: OwnedFd,
    /// Process that opened the session. A forked child that used it would take replies of its
    /// parent.
    pid: u32,
    calls: Mutex<Calls>,
    /// A thread has stopped receiving for all, or has received something.
    received: Condvar,
    /// A call is no longer under way.
    ended: Condvar,
    events: Mutex<VecDeque<Event>>,
    /// Counts 1 while an event waits in `events`.
    event_doorbell: EventFd,
    /// Readable when an event waits, the socket has data, or the daemon is gone.
    readiness: Readiness,
    gone: AtomicBool,
    yields: YieldLimiter,
    /// The daemon has the descriptor of this process's memory.
    proxies: AtomicBool,
}

/// Calls of all threads. One of those that wait for a reply receives for all of them.
#[derive(Debug, Default)]
struct Calls {
    /// Sequence number of the last call.
    sequence: u32,
    under_way: Vec<CallUnderWay>,
    /// A thread receives.
    is_receiving: bool,
    /// Threads that wait for [`DaemonSession::received`], and for [`DaemonSession::ended`]: a
    /// notification is a system call.
    waiting: u32,
    waiting_for_room: u32,
}

/// A call without a reply, or with one that its thread has not taken yet.
#[derive(Debug)]
struct CallUnderWay {
    sequence: u32,
    op: u32,
    reply: Option<ReceivedReply>,
}

/// A message, and the file descriptors beside it.
type ReceivedReply = (Message, Vec<OwnedFd>);

impl DaemonSession {
    /// Connects to the daemon and performs the handshake.
    pub(crate) fn open(path: &Path) -> Result<(Self, HelloReply)> {
        let address = UnixAddr::new(path).map_err(|_| Error::SocketPath { path: path.into() })?;
        let socket = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None)
            .map_err(Error::kernel("socket"))?;
        connect(socket.as_raw_fd(), &address).map_err(|errno| match errno {
            Errno::ENOENT | Errno::ECONNREFUSED | Errno::ENOTDIR | Errno::EPROTOTYPE => {
                Error::NoDaemon { path: path.into() }
            }
            Errno::EACCES | Errno::EPERM => Error::NotPermitted { path: path.into() },
            errno => Error::Kernel { call: "connect", errno },
        })?;
        Self::over(socket)
    }

    /// Performs the handshake over a connected socket.
    pub(crate) fn over(socket: OwnedFd) -> Result<(Self, HelloReply)> {
        let event_doorbell = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
            .map_err(Error::kernel("eventfd"))?;
        let readiness = Readiness::new().map_err(Error::kernel("epoll_create"))?;
        readiness.watch(&event_doorbell, libc::EPOLLIN).map_err(Error::kernel("epoll_ctl"))?;
        readiness.watch(&socket, libc::EPOLLIN | libc::EPOLLRDHUP).map_err(Error::kernel("epoll_ctl"))?;
        let session = Self {
            socket,
            pid: process::id(),
            calls: Mutex::default(),
            received: Condvar::new(),
            ended: Condvar::new(),
            events: Mutex::default(),
            event_doorbell,
            readiness,
            gone: AtomicBool::new(false),
            yields: YieldLimiter::new(),
            proxies: AtomicBool::new(false),
        };
        let hello = session.call::<Hello>(HelloRequest { version: VERSION, program: program_name() })?;
        if hello.version != VERSION {
            return Err(Error::Version { daemon: hello.version.into() });
        }
        Ok((session, hello))
    }

    /// Makes a call with no file descriptors in the reply.
    pub(crate) fn call<C: Call>(&self, request: C::Request) -> Result<C::Reply> {
        let (reply, []) = self.call_with_fds::<C, 0>(request)?;
        Ok(reply)
    }

    /// Makes a call with `N` file descriptors in the reply.
    pub(crate) fn call_with_fds<C: Call, const N: usize>(
        &self,
        request: C::Request,
    ) -> Result<(C::Reply, [OwnedFd; N])> {
        let (reply, fds) = self.call_with_any_fds::<C>(request)?;
        let fds =
            fds.try_into().map_err(|_| Error::Protocol { what: "other file descriptors than the call brings" })?;
        Ok((reply, fds))
    }

    /// Makes a call with a number of file descriptors stated by the reply.
    pub(crate) fn call_with_any_fds<C: Call>(&self, request: C::Request) -> Result<(C::Reply, Vec<OwnedFd>)> {
        self.call_beside::<C>(request, None)
    }

    /// Makes a call that passes a file descriptor.
    pub(crate) fn call_with<C: Call>(&self, request: C::Request, fd: BorrowedFd<'_>) -> Result<C::Reply> {
        let (reply, _none) = self.call_beside::<C>(request, Some(fd))?;
        Ok(reply)
    }

    /// Makes a call about proxied memory. The first passes `fd`, of the memory of this process; the
    /// daemon would only have to close further ones.
    pub(crate) fn call_proxied<C: Call>(&self, request: C::Request, fd: BorrowedFd<'_>) -> Result<C::Reply> {
        let fd = (!self.proxies.load(Ordering::Relaxed)).then_some(fd);
        let (reply, _none) = self.call_beside::<C>(request, fd)?;
        self.proxies.store(true, Ordering::Relaxed);
        Ok(reply)
    }

    fn call_beside<C: Call>(
        &self,
        request: C::Request,
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<(C::Reply, Vec<OwnedFd>)> {
        if !self.is_of_this_process() {
            return Err(Error::OtherProcess);
        }
        // A thread that ended here would receive for the others for ever.
        let _whole = NoCancellation::new();
        let (sequence, deadline) = self.begin::<C>(&request, fd)?;
        let (reply, fds) = self.reply_to(sequence, call_name(C::OP), deadline)?;
        if reply.header.status != 0 {
            return Err(Error::refused(C::OP, reply.header.status, reply.body()));
        }
        Ok((reply.body(), fds))
    }

    /// Sends a call as soon as there is room for one. Returns its sequence number, and when the
    /// reply is late. The wait ends: each call that takes the room ends, with a reply or its time.
    fn begin<C: Call>(&self, request: &C::Request, fd: Option<BorrowedFd<'_>>) -> Result<(u32, Instant)> {
        let mut calls = lock(&self.calls);
        while calls.under_way.len() == UNDER_WAY_MAX && !self.is_gone() {
            calls.waiting_for_room += 1;
            calls = self.ended.wait(calls).unwrap_or_else(PoisonError::into_inner);
            calls.waiting_for_room -= 1;
        }
        calls.sequence = calls.sequence.wrapping_add(1);
        let sequence = calls.sequence;
        let deadline = call_deadline();
        match self.send(&Message::new(C::OP, sequence, request), fd, call_name(C::OP), deadline) {
            Ok(()) => {
                calls.under_way.push(CallUnderWay { sequence, op: C::OP, reply: None });
                Ok((sequence, deadline))
            }
            Err(error) => {
                self.tell_of_room(&calls);
                Err(error)
            }
        }
    }

    /// Waits for the reply to a call, and receives for other threads meanwhile.
    fn reply_to(&self, sequence: u32, call: &'static str, deadline: Instant) -> Result<ReceivedReply> {
        let mut calls = lock(&self.calls);
        let (mut deadline, mut was_late) = (deadline, false);
        let result = loop {
            let own = calls.under_way.iter_mut().find(|other| other.sequence == sequence);
            if let Some(reply) = own.and_then(|own| own.reply.take()) {
                break Ok(reply);
            }
            if calls.is_receiving {
                let left = deadline.saturating_duration_since(Instant::now());
                if !left.is_zero() {
                    calls = self.wait_for_receiver(calls, left);
                } else if was_late {
                    break Err(self.silent(call));
                } else {
                    // A program that was stopped meanwhile may have the reply in its socket, which
                    // the thread that receives knows best.
                    (deadline, was_late) = (call_deadline(), true);
                }
                continue;
            }
            calls.is_receiving = true;
            drop(calls);
            let received = self.receive(call, deadline);
            calls = lock(&self.calls);
            calls.is_receiving = false;
            if let Err(error) = received.and_then(|received| self.take_in(&mut calls, received)) {
                break Err(error);
            }
            self.tell_waiting(&calls);
        };
        calls.under_way.retain(|other| other.sequence != sequence);
        self.tell_waiting(&calls);
        self.tell_of_room(&calls);
        result
    }

    /// Wakes a thread that waits for room, or all of them when the session has ended.
    fn tell_of_room(&self, calls: &Calls) {
        match calls.waiting_for_room {
            0 => {}
            _ if self.is_gone() => self.ended.notify_all(),
            _ => self.ended.notify_one(),
        }
    }

    /// Wakes those that wait for the thread that received: one may have its reply now, and one
    /// receives next.
    fn tell_waiting(&self, calls: &Calls) {
        if calls.waiting > 0 {
            self.received.notify_all();
        }
    }

    fn wait_for_receiver<'a>(&self, mut calls: MutexGuard<'a, Calls>, limit: Duration) -> MutexGuard<'a, Calls> {
        calls.waiting += 1;
        let mut calls = self.received.wait_timeout(calls, limit).unwrap_or_else(PoisonError::into_inner).0;
        calls.waiting -= 1;
        calls
    }

    /// Keeps an event, or the reply to a call for its thread.
    fn take_in(&self, calls: &mut Calls, (message, fds): ReceivedReply) -> Result<()> {
        if message.header.op == control::EVENT {
            self.keep_event(&message);
            return Ok(());
        }
        let header = message.header;
        let is_for =
            |call: &&mut CallUnderWay| (call.sequence, call.op) == (header.sequence, header.op) && call.reply.is_none();
        let call = calls.under_way.iter_mut().find(is_for).ok_or_else(|| self.broken("a reply to another call"))?;
        call.reply = Some((message, fds));
        Ok(())
    }

    /// Destroys an object, and drops its events: those that the daemon sent before its reply have
    /// been received by then. Fails only if the session has ended, which destroys the object as
    /// well.
    pub(crate) fn destroy<C: Call<Request = Handle>>(&self, subject: EventSubject, handle: u32) {
        if let Err(Error::OtherProcess) = self.call::<C>(Handle { handle }) {
            // A thread of the parent may have held the lock of the events for ever.
            return;
        }
        let mut events = lock(&self.events);
        events.retain(|event| (EventSubject::of(event.kind), event.handle) != (subject, handle));
        if events.is_empty() {
            // EAGAIN if the count is 0.
            let _ = self.event_doorbell.read();
        }
    }

    /// Returns the next event, or `None`. Does not wait: while a thread receives replies, that
    /// thread receives events as well, and [`Self::readiness`] tells of them.
    pub(crate) fn next_event(&self) -> Result<Option<Event>> {
        if !self.is_of_this_process() {
            return Err(Error::OtherProcess);
        }
        let _whole = NoCancellation::new();
        loop {
            if let Some(event) = self.take_event() {
                return Ok(Some(event));
            }
            let mut calls = lock(&self.calls);
            // A call may have received one meanwhile.
            if let Some(event) = self.take_event() {
                return Ok(Some(event));
            }
            if calls.is_receiving {
                return Ok(None);
            }
            let Some(received) = self.try_receive()? else { return Ok(None) };
            self.take_in(&mut calls, received)?;
            self.tell_waiting(&calls);
        }
    }

    /// Readable when [`Self::next_event`] has a result, which may be that the daemon is gone.
    pub(crate) fn readiness(&self) -> BorrowedFd<'_> {
        self.readiness.as_fd()
    }

    /// False in a child of the process that opened the session.
    pub(crate) fn is_of_this_process(&self) -> bool {
        self.pid == process::id()
    }

    /// True once the daemon is known to be gone.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    /// Checks whether the daemon is gone.
    pub(crate) fn look(&self) -> bool {
        if !self.is_gone() {
            // `POLLHUP` is reported without being requested.
            let mut fds = [PollFd::new(self.socket.as_fd(), PollFlags::empty())];
            if poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0) {
                self.set_gone();
            }
        }
        self.is_gone()
    }

    /// Marks the daemon as gone, or unusable.
    pub(crate) fn set_gone(&self) {
        self.gone.store(true, Ordering::Relaxed);
        // Wakes every waiter on the file descriptor, regardless of the reason.
        let _ = nix::sys::socket::shutdown(self.socket.as_raw_fd(), nix::sys::socket::Shutdown::Both);
    }

    fn broken(&self, what: &'static str) -> Error {
        self.set_gone();
        Error::Protocol { what }
    }

    fn silent(&self, call: &'static str) -> Error {
        // A later reply would be taken for the reply to the next call.
        self.set_gone();
        Error::DaemonSilent { call, seconds: CALL_SECONDS }
    }

    fn take_event(&self) -> Option<Event> {
        let mut events = lock(&self.events);
        let event = events.pop_front();
        if events.is_empty() {
            // EAGAIN if the count is 0.
            let _ = self.event_doorbell.read();
        }
        event
    }

    fn keep_event(&self, message: &Message) {
        let mut events = lock(&self.events);
        if events.len() == EVENTS_MAX {
            events.pop_front();
        }
        events.push_back(message.body());
        // EAGAIN if the count is at its maximum, at which the descriptor is readable anyway.
        let _ = self.event_doorbell.write(1);
    }

    fn send(&self, message: &Message, fd: Option<BorrowedFd<'_>>, call: &'static str, deadline: Instant) -> Result<()> {
        let raw = fd.map(|fd| [fd.as_raw_fd()]);
        let rights = raw.as_ref().map(|raw| ControlMessage::ScmRights(raw));
        loop {
            if self.is_gone() {
                return Err(Error::DaemonGone);
            }
            let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
            let pieces = [IoSlice::new(message.as_bytes())];
            match sendmsg::<()>(self.socket.as_raw_fd(), &pieces, rights.as_slice(), flags, None) {
                Ok(_) => return Ok(()),
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => self.wait(PollFlags::POLLOUT, call, deadline)?,
                // The refusal that ended the session may still be in the socket: it says more than
                // "gone".
                Err(Errno::EPIPE | Errno::ECONNRESET) => return Ok(()),
                Err(errno) => return Err(Error::Kernel { call: "send", errno }),
            }
        }
    }

    fn receive(&self, call: &'static str, deadline: Instant) -> Result<(Message, Vec<OwnedFd>)> {
        let look_until = Instant::now() + POLL_BEFORE_SLEEP;
        loop {
            if let Some(received) = self.try_receive()? {
                return Ok(received);
            }
            let now = Instant::now();
            if now >= look_until || self.yields.yield_core(now).is_none() {
                self.wait(PollFlags::POLLIN, call, deadline)?;
            }
        }
    }

    fn wait(&self, flags: PollFlags, call: &'static str, deadline: Instant) -> Result<()> {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(self.socket.as_fd(), flags)], timeout) {
            Ok(0) => Err(self.silent(call)),
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(errno) => Err(Error::Kernel { call: "poll", errno }),
        }
    }

    /// Receives one message, if the socket has one.
    fn try_receive(&self) -> Result<Option<(Message, Vec<OwnedFd>)>> {
        // One byte more than a message, to detect a longer one.
        let mut bytes = [0; MESSAGE_BYTES + 1];
        let mut space = cmsg_space!([RawFd; FDS_MAX]);
        let mut pieces = [IoSliceMut::new(&mut bytes)];
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_CMSG_CLOEXEC;
        let received = match recvmsg::<()>(self.socket.as_raw_fd(), &mut pieces, Some(&mut space), flags) {
            Ok(received) => received,
            Err(Errno::EAGAIN | Errno::EINTR) => return Ok(None),
            Err(Errno::ECONNRESET) => {
                self.set_gone();
                return Err(Error::DaemonGone);
            }
            Err(errno) => return Err(Error::Kernel { call: "recvmsg", errno }),
        };
        let length = received.bytes;
        let truncated = received.flags.contains(MsgFlags::MSG_CTRUNC);
        let mut fds = Vec::new();
        for message in received.cmsgs().map_err(Error::kernel("recvmsg"))? {
            if let ControlMessageOwned::ScmRights(raw) = message {
                // SAFETY: the kernel has just created these descriptors for this process, so they
                // have no other owner.
                fds.extend(raw.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
            }
        }
        if length == 0 {
            self.set_gone();
            return Err(Error::DaemonGone);
        }
        if truncated {
            return Err(self.broken("file descriptors were lost: is this process at its limit of open files?"));
        }
        let message =
            Message::read_from_bytes(&bytes[..length]).map_err(|_| self.broken("a message of another length"))?;
        if message.header.magic != MAGIC {
            return Err(self.broken("a message that is not roced's"));
        }
        Ok(Some((message, fds)))
    }
}

impl AsFd for DaemonSession {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn call_deadline() -> Instant {
    Instant::now() + Duration::from_secs(CALL_SECONDS)
}

/// Name of this program, for the daemon's reports: as in `/proc/self/comm`, which is the main
/// thread's; zeros when it cannot be read.
fn program_name() -> [u8; 16] {
    let mut name = [0; 16];
    let comm = fs::read("/proc/self/comm").unwrap_or_default();
    let comm = comm.strip_suffix(b"\n").unwrap_or(&comm);
    let length = comm.len().min(name.len());
    name[..length].copy_from_slice(&comm[..length]);
    name
}

/// Locks `mutex`, ignoring poisoning: all locked state is consistent between statements.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
