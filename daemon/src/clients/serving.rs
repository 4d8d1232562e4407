//! Service of one call: waits before it, its reply.

use std::time::{Duration, Instant};

use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};
use roced_abi::control::{
    AllocMemory, Call as _, CreateCq, CreateQp, CreateSrq, MapAndRegMr, MapMemory, Message, OpenDevice, ResizeCq,
    call_name,
};
use roced_memory::{
    client_socket::{SendingState, SentMessage},
    descriptor::Descriptor,
};
use tracing::debug;

use super::{
    SessionEnd,
    control::{self, CallHandler, Registry},
    session::{Session, SessionStage},
};
use crate::{
    environment::Environment,
    last_work::{LastWork, PATIENCE, SentBatch},
};

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
            last_work.goes_on(batch) && since.elapsed() < PATIENCE
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
pub(super) fn awaits_unmapping(registry: &Registry, session: &mut Session, op: u32) -> bool {
    let maps = matches!(
        op,
        OpenDevice::OP
            | AllocMemory::OP
            | MapMemory::OP
            | MapAndRegMr::OP
            | CreateCq::OP
            | ResizeCq::OP
            | CreateQp::OP
            | CreateSrq::OP
    );
    if !maps || !registry.quota.is_nearly_used(session.connection.user()) {
        session.unmapping_since = None;
        return false;
    }
    let since = session.unmapping_since.get_or_insert_with(Instant::now);
    since.elapsed() < PATIENCE
}

/// Carries out one request. `Some` when the session ends by it.
pub(super) fn serve_message(
    registry: &mut Registry,
    session: &mut Session,
    message: &Message,
    descriptor: Option<Descriptor>,
    environment: &mut Environment<'_>,
) -> Option<SessionEnd> {
    let (reply, fds) = control::answer(registry, session, message, descriptor, environment);
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
