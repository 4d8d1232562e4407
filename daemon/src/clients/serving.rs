//! Service of one call: waits before it, its reply.

use std::time::{Duration, Instant};

use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};
use roced_abi::control::{
    AllocMemory, Call as _, CreateCq, CreateQp, CreateSrq, DestroyQp, MapAndRegMr, MapAndRegMrRequest, MapMemory,
    MapMemoryRequest, MemoryRequest, Message, OpenDevice, ResizeCq, call_name,
};
use roced_memory::{
    client_socket::{SendingState, SentMessage},
    descriptor::Descriptor,
};
use tracing::debug;

use super::{Clients, SessionEnd};
use crate::{
    calls::{
        self, CallHandler, Registry,
        session::{MAPPED_MEMORY, Session, SessionStage, WaitingCall},
    },
    client_socket::connection::ReceivedCall,
    environment::Environment,
    last_work::{LAST_WORK_TIME_MAX, LastWork, SentBatch},
};

/// Frames of the work that a queue pair has posted before a call destroys it: its rings and its
/// send queue may be full of datagrams. UC messages may have more: they are cut.
const FRAMES: u32 = 8192;

/// How long a call waits before its user's mappings are counted again.
const UNMAPPING_PAUSE: Duration = Duration::from_millis(1);

/// How long a request with descriptors stays in its socket while too many of its user's are being
/// closed.
const CLOSING_PAUSE: Duration = Duration::from_millis(20);

/// How often a session is looked at of which a thread of its user's sends or receives a message; it
/// reports when it has.
const THREAD_LOOK: Duration = Duration::from_secs(1);

/// How a step of the service of a session ended.
pub(super) enum ServiceStep {
    /// A call was carried out, and others of the session may follow.
    GoOn,
    /// A call was carried out, the last one of this turn.
    Last,
    /// There was no call.
    Nothing,
    /// A call waits; until then no other of the session is read.
    Wait(Instant, WaitingCall),
    /// The session is over.
    End(SessionEnd),
}

impl ServiceStep {
    /// A whole call was carried out, or tried.
    pub(super) const fn is_call(&self) -> bool {
        matches!(self, Self::GoOn | Self::Last | Self::End(_))
    }
}

impl Clients {
    /// Serves one call of a session, or a part of one.
    pub(super) fn serve_one(&mut self, number: u32, environment: &mut Environment<'_>) -> ServiceStep {
        let Some(session) = self.sessions.get_mut(&number) else { return ServiceStep::Nothing };
        if session.connection.account().is_stuck() {
            return ServiceStep::End(SessionEnd::Fault("descriptors of its user do not close".into()));
        }
        let was_open = matches!(session.stage, SessionStage::Open(_));
        let is_cm = matches!(session.stage, SessionStage::Cm);
        let waiting = session.waiting.take();
        if waiting.is_some() {
            listen(&self.epoll, session, true);
        }
        match replies_wait(session) {
            RepliesWait::No => {}
            RepliesWait::Yes => {
                return ServiceStep::Wait(Instant::now() + THREAD_LOOK, waiting.unwrap_or(WaitingCall::Unreceived));
            }
            RepliesWait::End(end) => return ServiceStep::End(end),
        }
        let (received, mut last_work) = match waiting {
            Some(WaitingCall::Received { message, descriptor, last_work }) => {
                (ReceivedCall::Message(message, descriptor), last_work)
            }
            Some(WaitingCall::Unreceived | WaitingCall::Throttled | WaitingCall::Connection) | None => {
                (session.connection.receive(), LastWork::new(FRAMES))
            }
        };
        let has_batch = matches!(&received, ReceivedCall::Message(message, _) if message.header.op == DestroyQp::OP);
        let end = match received {
            ReceivedCall::Message(message, descriptor)
                if has_batch && send_batch(&mut self.registry, session, &message, &mut last_work, environment) =>
            {
                let due = last_work.due();
                return ServiceStep::Wait(due, WaitingCall::Received { message, descriptor, last_work });
            }
            ReceivedCall::Message(message, descriptor) if awaits_unmapping(&self.registry, session, &message) => {
                let call = WaitingCall::Received { message, descriptor, last_work };
                return ServiceStep::Wait(Instant::now() + UNMAPPING_PAUSE, call);
            }
            ReceivedCall::Postponed => {
                return ServiceStep::Wait(Instant::now() + CLOSING_PAUSE, WaitingCall::Unreceived);
            }
            ReceivedCall::UnderWay(since) if since.elapsed() < THREAD_MAX => {
                return ServiceStep::Wait(Instant::now() + THREAD_LOOK, WaitingCall::Unreceived);
            }
            ReceivedCall::UnderWay(_) => Some(no_thread()),
            ReceivedCall::Message(message, descriptor) => {
                serve_message(&mut self.registry, session, &message, descriptor, environment)
            }
            ReceivedCall::Nothing => return ServiceStep::Nothing,
            ReceivedCall::Closed => Some(SessionEnd::Closed),
            ReceivedCall::Broken(what) => Some(SessionEnd::Fault(what.into())),
        };
        if is_cm {
            self.registry.cm.flush(environment);
            self.watch_cm_channels();
        }
        if !was_open {
            self.note_opened(number);
        }
        match end {
            Some(end) => ServiceStep::End(end),
            // One batch of posted work a turn.
            None if has_batch => ServiceStep::Last,
            None => ServiceStep::GoOn,
        }
    }
}

/// Has the epoll set tell of further messages of a session, or only of its end: no other is served
/// before a call that waits.
pub(super) fn listen(epoll: &Epoll, session: &Session, to_messages: bool) {
    let mut flags = EpollFlags::EPOLLRDHUP;
    flags.set(EpollFlags::EPOLLIN, to_messages);
    // It cannot fail: the socket is in the set.
    let _ = epoll.modify(&session.connection, &mut EpollEvent::new(flags, session.id.0.into()));
}

/// Sends a batch of the work that was posted to a queue pair before the call that destroys it; true
/// if the call waits for another one. The patience with a NIC that takes nothing is for all queue
/// pairs of the session together: it may destroy thousands.
pub(super) fn send_batch(
    registry: &mut Registry,
    session: &mut Session,
    message: &Message,
    last_work: &mut LastWork,
    environment: &mut Environment<'_>,
) -> bool {
    let SessionStage::Open(objects) = &mut session.stage else { return false };
    let mut handler = CallHandler { registry, session: session.id, objects, environment };
    let batch = handler.send_posted(message.body());
    match batch {
        SentBatch { frames: 0, is_left: true } => {
            let since = session.stuck_since.get_or_insert_with(Instant::now);
            last_work.goes_on(batch) && since.elapsed() < LAST_WORK_TIME_MAX
        }
        // There was nothing to send.
        SentBatch { frames: 0, .. } => false,
        _ => {
            session.stuck_since = None;
            last_work.goes_on(batch)
        }
    }
}

/// The call may be refused for mappings that threads of its user are about to unmap. It waits, but
/// not for long.
pub(super) fn awaits_unmapping(registry: &Registry, session: &mut Session, message: &Message) -> bool {
    let maps = matches!(
        message.header.op,
        OpenDevice::OP
            | AllocMemory::OP
            | MapMemory::OP
            | MapAndRegMr::OP
            | CreateCq::OP
            | ResizeCq::OP
            | CreateQp::OP
            | CreateSrq::OP
    );
    let account = session.connection.account();
    let lacks_bytes = || {
        let left = registry.ledger.left(session.connection.process().account, MAPPED_MEMORY);
        account.chores() > 0 && left < bytes_to_map(message)
    };
    if !maps || !registry.quota.is_nearly_used(account) && !lacks_bytes() {
        session.unmapping_since = None;
        return false;
    }
    let since = session.unmapping_since.get_or_insert_with(Instant::now);
    since.elapsed() < LAST_WORK_TIME_MAX
}

/// Memory that a call maps, bytes; of queues more than it does.
fn bytes_to_map(message: &Message) -> u64 {
    const QUEUES: u64 = 64 << 20;
    match message.header.op {
        AllocMemory::OP => message.body::<MemoryRequest>().bytes,
        MapMemory::OP => message.body::<MapMemoryRequest>().bytes,
        MapAndRegMr::OP => message.body::<MapAndRegMrRequest>().memory.bytes,
        _ => QUEUES,
    }
}

/// Carries out one request. `Some` when the session ends by it.
pub(super) fn serve_message(
    registry: &mut Registry,
    session: &mut Session,
    message: &Message,
    descriptor: Option<Descriptor>,
    environment: &mut Environment<'_>,
) -> Option<SessionEnd> {
    let (reply, fds) = calls::answer(registry, session, message, descriptor, environment);
    session.was_refused |= matches!(session.stage, SessionStage::OneTooMany(_));
    debug!(session = %session.id, call = call_name(message.header.op), refused = reply.header.status, "call");
    match session.connection.send(&reply, fds) {
        SentMessage::Yes if matches!(session.stage, SessionStage::OneTooMany(_)) => Some(SessionEnd::Closed),
        SentMessage::Yes | SentMessage::Later => None,
        SentMessage::Full => Some(does_not_read()),
        SentMessage::Closed => Some(SessionEnd::Closed),
    }
}

fn does_not_read() -> SessionEnd {
    SessionEnd::Fault("it does not read its replies, or other programs of its user leave very many unread".into())
}

/// Replies of a session, some of which may wait.
pub(super) enum RepliesWait {
    /// None waits.
    No,
    /// The user's thread sends them.
    Yes,
    /// It ends.
    End(SessionEnd),
}

/// Looks whether replies of a session wait for the user's thread.
pub(super) fn replies_wait(session: &Session) -> RepliesWait {
    match session.connection.sending() {
        SendingState::Idle if matches!(session.stage, SessionStage::OneTooMany(_)) && session.was_refused => {
            RepliesWait::End(SessionEnd::Closed)
        }
        SendingState::Idle => RepliesWait::No,
        SendingState::UnderWay(since) if since.elapsed() < THREAD_MAX => RepliesWait::Yes,
        SendingState::UnderWay(_) => RepliesWait::End(no_thread()),
        SendingState::Full => RepliesWait::End(does_not_read()),
        SendingState::Closed => RepliesWait::End(SessionEnd::Closed),
    }
}

/// How long a message may wait for the user's thread: some of the user's wake very many waiters.
pub(super) const THREAD_MAX: Duration = Duration::from_secs(10);

/// Why a session with messages that wait too long ends.
pub(super) fn no_thread() -> SessionEnd {
    SessionEnd::Fault("messages to programs of its user wake so many waiters that its own do not get on".into())
}
