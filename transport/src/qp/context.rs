//! The context of one call of a queue pair: its common state, its queues, and the state that the
//! endpoint shares among its queue pairs. Every role gets it; roles keep only their own state.

use roced_types::{CompletionOp, Cqn, Sge, Status, event};

use super::{
    QpBase, State,
    base::Received,
    events::FailureCause,
    send_queue::{SendEntry, SendQueue},
};
use crate::{
    ah::AhTable,
    clock::Nanos,
    counters::QpCount,
    io::{App, WorkCompletion},
    mr::MrTable,
    recv_queue::RecvQueue,
    reject::DropReason,
    srq::Srqs,
};

/// State of the endpoint that a call of a queue pair may access, and the time of the call.
pub(crate) struct EndpointContext<'t, A> {
    pub(crate) now: Nanos,
    pub(crate) mrs: &'t MrTable,
    pub(crate) ahs: &'t AhTable,
    pub(crate) srqs: &'t mut Srqs,
    pub(crate) app: &'t mut A,
}

/// State that the roles of a queue pair share in one call, with the [`EndpointContext`] of the call.
pub(super) struct Context<'t, A> {
    pub(super) base: &'t mut QpBase,
    pub(super) send_queue: &'t mut SendQueue,
    pub(super) recv_queue: &'t mut RecvQueue,
    pub(super) now: Nanos,
    pub(super) mrs: &'t MrTable,
    pub(super) ahs: &'t AhTable,
    pub(super) srqs: &'t mut Srqs,
    pub(super) app: &'t mut A,
}

impl<'t, A: App> Context<'t, A> {
    pub(super) fn new(
        base: &'t mut QpBase,
        send_queue: &'t mut SendQueue,
        recv_queue: &'t mut RecvQueue,
        endpoint: &'t mut EndpointContext<'_, A>,
    ) -> Self {
        let EndpointContext { now, mrs, ahs, srqs, app } = endpoint;
        Self { base, send_queue, recv_queue, now: *now, mrs, ahs, srqs, app }
    }

    /// Provides receive work for a message that begins, or that continues and already has its
    /// receive: with a shared queue, moves the next entry there to the queue pair's own queue.
    pub(super) fn provide_receive(&mut self) {
        if let Some(srq) = &self.base.srq
            && self.recv_queue.is_empty()
        {
            self.srqs.take(srq.srqn, self.recv_queue);
        }
    }

    /// Buffers that [`Self::provide_receive`] would bring to the front.
    pub(super) fn next_receive(&self) -> Option<&[Sge]> {
        self.recv_queue.front().or_else(|| self.srqs.front(self.base.srq.as_ref()?.srqn))
    }

    /// Fails the oldest send, and only the send queue with it: the receive side of an unreliable
    /// service continues (IBTA v1 10.3.1, state SQE).
    pub(super) fn fail_oldest_send(&mut self, status: Status) {
        self.base.state = State::SendQueueError;
        self.base.note_failure(FailureCause::Send(status));
        if let Some(entry) = self.send_queue.pop() {
            self.complete_send(&entry, status);
        }
    }

    /// Fails the queue pair because the oldest receive names memory that it may not access, or that
    /// is gone.
    pub(super) fn fail_recv(&mut self) {
        self.base.counters.count(QpCount::LocalProtection);
        self.base.fail_with_event(event::QP_FATAL);
        if let Some(wr_id) = self.recv_queue.pop() {
            self.complete_recv(&Received::failed(wr_id, Status::LocalProtection));
        }
    }

    /// Completes a send. An unsignaled send that succeeds adds no completion.
    pub(super) fn complete_send(&mut self, entry: &SendEntry, status: Status) {
        if status == Status::Success {
            self.base.counters.count(QpCount::CompletedRequests);
            if !entry.is_signaled() && !self.base.config.signal_all {
                return;
            }
        }
        let byte_len = if entry.wants_answer() && status == Status::Success { entry.length() as u32 } else { 0 };
        let op = entry.op.completion();
        let completion = WorkCompletion { byte_len, ..self.completion(entry.wr_id, status, op) };
        self.complete(self.base.config.send_cq, &completion);
    }

    pub(super) fn complete_recv(&mut self, received: &Received) {
        use roced_types::completion_flags::{GRH, IMM, INVALIDATED, IPV4, SOLICITED};
        let flags = if received.imm.is_some() { IMM } else { 0 }
            | if received.solicited { SOLICITED } else { 0 }
            | if received.invalidated.is_some() { INVALIDATED } else { 0 }
            | received.source.map_or(0, |(_, ipv4)| if ipv4 { GRH | IPV4 } else { GRH });
        let key = received.invalidated.map(|key| key.0.to_ne_bytes());
        let src_qpn = received.source.map_or(self.base.attributes.dest_qpn, |(qpn, _)| qpn.get());
        let completion = WorkCompletion {
            byte_len: received.bytes,
            imm: received.imm.or(key).unwrap_or_default(),
            flags,
            src_qpn,
            ..self.completion(received.wr_id, received.status, received.op)
        };
        self.complete(self.base.config.recv_cq, &completion);
    }

    fn completion(&self, wr_id: u64, status: Status, op: CompletionOp) -> WorkCompletion {
        WorkCompletion {
            wr_id,
            qpn: self.base.config.qpn,
            status,
            op,
            flags: 0,
            byte_len: 0,
            imm: [0; 4],
            src_qpn: self.base.attributes.dest_qpn,
            time: self.now,
        }
    }

    fn complete(&mut self, cqn: Cqn, completion: &WorkCompletion) {
        if self.app.complete(cqn, completion).is_err() {
            // A completion is lost, so the client no longer knows the owner of its buffers: fail
            // the queue pair.
            self.base.counters.count(QpCount::CqOverrun);
            if self.base.state != State::Error {
                self.base.fail(FailureCause::Event(event::CQ_ERROR));
                self.base.events.add(event::QP_FATAL);
            }
            self.base.events.add_cq_error(cqn == self.base.config.send_cq);
        }
    }
}

/// Result of one call of [`super::Qp::transmit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transmission {
    /// Work was done; more may be pending.
    Progress,
    /// As [`Self::Progress`]: only an acknowledgment was sent.
    Acknowledged,
    /// As [`Self::Progress`]: an answer that can no longer be given was dropped, for this reason.
    Dropped(DropReason),
    /// Nothing to do until the next event.
    Idle,
    /// The wire has no room.
    Full,
}

impl Transmission {
    /// The call did work of any kind.
    pub(crate) const fn is_progress(self) -> bool {
        matches!(self, Self::Progress | Self::Acknowledged | Self::Dropped(_))
    }
}
