//! What every role of a queue pair needs: its state, its path, how work completes.

use roced_types::{CompletionOp, Cqn, Pdn, QpAttributes, Qpn, Sge, Status, event};

use super::{
    Context, PathState, QpConfig, RecvQueue, State,
    events::QpEvents,
    key_change::KeyChanges,
    send_queue::{SendEntry, SendQueue},
};
use crate::{
    clock::Nanos,
    counters::{QpCount, QpTally},
    io::{Abort, App, Egress, EmitError, Wire, WorkCompletion},
    mr::{AccessError, MemSpan, MrKey, MrTable, Right},
    partition::Pkey,
    psn::Psn,
    recovery::RecoveryConfig,
    srq::{SrqConfig, Srqs},
    wire::{bth::Bth, headers::Headers, opcode::Opcode, path::Path},
};

/// Payload of a full packet that is lent: no wire bounds it. Some ten times what its headers cost,
/// and little enough that other queue pairs need not wait long for a turn.
const LENT_BYTES_MAX: usize = 32 << 10;

/// What every role needs.
#[derive(Debug)]
pub(crate) struct QpBase {
    pub(super) config: QpConfig,
    pub(super) recovery: RecoveryConfig,
    pub(super) state: State,
    pub(super) attributes: QpAttributes,
    /// The partition that it is in.
    pub(super) pkey: Pkey,
    pub(super) path: PathState,
    /// Its peer is of the same endpoint, and they lend each other payload. Both know when they
    /// begin to receive, and it stays so: both must cut messages alike.
    pub(super) lends: bool,
    pub(super) counters: QpTally,
    pub(super) events: QpEvents,
    /// The client wants to hear when the send queue has drained.
    pub(super) tell_drained: bool,
    /// A request has come since the queue pair began to receive.
    pub(super) established: bool,
    /// How often it has begun to receive.
    pub(super) lives: u32,
    /// The packet that is looked at was held for its turn. A response that does not fit may be of
    /// an earlier life after all, and does not fail the queue pair.
    pub(super) is_held: bool,
    /// Answers that are held until those before them come.
    pub(super) held_answers: u32,
    pub(super) keys: KeyChanges,
    /// Where its receive work comes from, if not from its own queue.
    pub(super) srq: Option<SrqConfig>,
    /// How many packets it may add to what is under way in this visit.
    pub(super) grant: u32,
    /// That was too few.
    pub(super) wants_grant: bool,
    /// It has failed, and the client was told that it takes no more from there.
    pub(super) last_wqe_told: bool,
    /// Receives in its own queue, that of a message under way included, when it last posted or
    /// sent.
    pub(super) receives: u32,
}

/// A receive work request that ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Received {
    pub(super) wr_id: u64,
    pub(super) status: Status,
    pub(super) op: CompletionOp,
    pub(super) bytes: u32,
    pub(super) imm: Option<[u8; 4]>,
    pub(super) solicited: bool,
    /// A key of ours that opens nothing any more.
    pub(super) invalidated: Option<MrKey>,
    /// Of a datagram: who sent it, and whether by IPv4. A GRH stands in front of it then.
    pub(super) source: Option<(Qpn, bool)>,
}

impl Received {
    pub(super) const fn failed(wr_id: u64, status: Status) -> Self {
        let op = CompletionOp::Recv;
        Self { wr_id, status, op, bytes: 0, imm: None, solicited: false, invalidated: None, source: None }
    }
}

impl QpBase {
    pub(super) fn pd(&self) -> Pdn {
        self.config.pd
    }

    /// What a peer may touch.
    pub(super) fn check_peer<'t>(
        &self,
        mrs: &'t MrTable,
        key: MrKey,
        right: Right,
        va: u64,
        length: usize,
    ) -> Result<MemSpan<'t>, AccessError> {
        mrs.check_peer(self.config.pd, self.config.qpn, key, right, va, length)
    }

    /// May a peer do that to whatever the key opens?
    pub(super) fn check_peer_key(&self, mrs: &MrTable, key: MrKey, right: Right) -> Result<(), AccessError> {
        mrs.check_peer_key(self.config.pd, self.config.qpn, key, right)
    }

    /// Whose memory regions receive work may name.
    pub(super) fn recv_pd(&self) -> Pdn {
        self.srq.map_or(self.config.pd, |srq| srq.pd)
    }

    /// A message begins that takes receive work, or one goes on that has it: with a shared queue,
    /// the next entry there becomes ours.
    pub(super) fn provide_receive<A: App>(&self, queue: &mut RecvQueue, cx: &mut Context<'_, A>) {
        if let Some(srq) = &self.srq
            && queue.is_empty()
        {
            cx.srqs.take(srq.srqn, queue);
        }
    }

    /// The buffers that [`Self::provide_receive`] would have in front.
    pub(super) fn next_receive<'q>(&self, queue: &'q RecvQueue, srqs: &'q Srqs) -> Option<&'q [Sge]> {
        queue.front().or_else(|| srqs.front(self.srq.as_ref()?.srqn))
    }

    /// IBTA v1 11.6.3.1: a queue pair that has failed takes no more from its shared queue, and what
    /// it had is flushed.
    pub(super) fn tell_last_wqe(&mut self) {
        if self.srq.is_some() && !self.last_wqe_told {
            self.last_wqe_told = true;
            self.events.add(event::QP_LAST_WQE);
        }
    }

    /// Payload of a full packet.
    pub(super) fn mtu(&self) -> usize {
        if self.lends { LENT_BYTES_MAX } else { self.attributes.path_mtu_bytes as usize }
    }

    /// The state is RTR: do we and the peer lend each other payload? What is lent is copied before
    /// the turn of the endpoint ends, so the peer must be of the same one.
    pub(super) fn note_way(&mut self) {
        self.lends = self.is_beside() && self.dest_qpn().endpoint() == self.config.qpn.endpoint();
    }

    /// The peer is of this very device: nothing is lost on the way to it.
    pub(super) fn is_beside(&self) -> bool {
        matches!(&self.path, PathState::Ready(path) if path.via() == Egress::Beside)
    }

    /// The path, when frames get anywhere. Packets of lent payload fit no other.
    pub(super) fn way(&self) -> Option<&Path> {
        match &self.path {
            PathState::Ready(path) if !self.lends || path.via() == Egress::Beside => Some(path),
            PathState::Ready(_) | PathState::Unreachable | PathState::Resolving => None,
        }
    }

    pub(super) fn dest_qpn(&self) -> Qpn {
        Qpn::from_wire(self.attributes.dest_qpn)
    }

    /// The header of a packet to the peer.
    pub(super) fn bth(&self, opcode: Opcode, psn: Psn) -> Bth {
        Bth { pkey: self.pkey, ..Bth::new(opcode, self.dest_qpn(), psn) }
    }

    /// The queue pair has failed; its work is flushed from now on.
    pub(super) fn fail(&mut self) {
        self.state = State::Error;
    }

    /// The queue pair has failed and no completion says so.
    pub(super) fn fail_with_event(&mut self, kind: u32) {
        self.fail();
        self.events.add(kind);
    }

    /// An earlier life of this queue pair is over.
    pub(super) const fn is_later_life(&self) -> bool {
        self.lives > 1
    }

    /// The first request that comes while we only receive says that the peer is ready to send (IBTA
    /// v1 11.6.3.1).
    pub(super) fn note_established(&mut self) {
        if !self.established && self.state == State::ReadyToReceive {
            self.established = true;
            self.events.add(event::COMMUNICATION_ESTABLISHED);
        }
    }

    /// The oldest send fails, and with it the send queue alone: what an unreliable service promises
    /// its receiver is not touched (IBTA v1 10.3.1, state SQE).
    pub(super) fn fail_oldest_send<A: App>(&mut self, status: Status, queue: &mut SendQueue, cx: &mut Context<'_, A>) {
        self.state = State::SendQueueError;
        if let Some(entry) = queue.pop() {
            self.complete_send(&entry, status, cx);
        }
    }

    /// The oldest receive names memory that it may not, or that is gone: the queue pair ends.
    pub(super) fn fail_recv<A: App>(&mut self, queue: &mut RecvQueue, cx: &mut Context<'_, A>) {
        self.counters.count(QpCount::LocalProtection);
        self.fail_with_event(event::QP_FATAL);
        if let Some(wr_id) = queue.pop() {
            self.complete_recv(&Received::failed(wr_id, Status::LocalProtection), cx);
        }
    }

    /// The next hop's address is not known yet: nothing can leave.
    pub(super) const fn is_resolving(&self) -> bool {
        matches!(self.path, PathState::Resolving)
    }

    /// The next hop does not answer.
    pub(super) const fn is_unreachable(&self) -> bool {
        matches!(self.path, PathState::Unreachable)
    }

    /// Completes a send; one that was not asked to be signaled is silent on success.
    pub(super) fn complete_send<A: App>(&mut self, entry: &SendEntry, status: Status, cx: &mut Context<'_, A>) {
        if status == Status::Success {
            self.counters.count(QpCount::CompletedRequests);
            if !entry.is_signaled() && !self.config.signal_all {
                return;
            }
        }
        let byte_len = if entry.wants_answer() && status == Status::Success { entry.length() as u32 } else { 0 };
        let op = entry.op.completion();
        let completion = WorkCompletion { byte_len, ..self.completion(entry.wr_id, status, op, cx.now) };
        self.complete(self.config.send_cq, &completion, cx);
    }

    pub(super) fn complete_recv<A: App>(&mut self, received: &Received, cx: &mut Context<'_, A>) {
        use roced_types::completion_flags::{GRH, IMM, INVALIDATED, IPV4, SOLICITED};
        let flags = if received.imm.is_some() { IMM } else { 0 }
            | if received.solicited { SOLICITED } else { 0 }
            | if received.invalidated.is_some() { INVALIDATED } else { 0 }
            | received.source.map_or(0, |(_, ipv4)| if ipv4 { GRH | IPV4 } else { GRH });
        let key = received.invalidated.map(|key| key.0.to_ne_bytes());
        let src_qpn = received.source.map_or(self.attributes.dest_qpn, |(qpn, _)| qpn.get());
        let completion = WorkCompletion {
            byte_len: received.bytes,
            imm: received.imm.or(key).unwrap_or_default(),
            flags,
            src_qpn,
            ..self.completion(received.wr_id, received.status, received.op, cx.now)
        };
        self.complete(self.config.recv_cq, &completion, cx);
    }

    pub(super) fn completion(&self, wr_id: u64, status: Status, op: CompletionOp, now: Nanos) -> WorkCompletion {
        WorkCompletion {
            wr_id,
            qpn: self.config.qpn,
            status,
            op,
            flags: 0,
            byte_len: 0,
            imm: [0; 4],
            src_qpn: self.attributes.dest_qpn,
            time: now,
        }
    }

    pub(super) fn complete<A: App>(&mut self, cqn: Cqn, completion: &WorkCompletion, cx: &mut Context<'_, A>) {
        if cx.app.complete(cqn, completion).is_err() {
            // A completion is lost, so the client no longer knows where its buffers are: the queue
            // pair ends.
            self.counters.count(QpCount::CqOverrun);
            if self.state != State::Error {
                self.fail_with_event(event::QP_FATAL);
            }
            self.events.add_cq_error(cqn == self.config.send_cq);
        }
    }

    /// Sends one frame on the path. One whose next hop cannot be reached is counted and as good as
    /// sent.
    pub(super) fn emit<W: Wire>(
        &mut self,
        wire: &mut W,
        headers: &Headers,
        payload_bytes: usize,
        payload: impl FnMut(&mut [u8]) -> Result<(), Abort>,
    ) -> Result<(), EmitError> {
        let Some(path) = self.way() else {
            self.counters.count(QpCount::Unreachable);
            return Ok(());
        };
        let bytes = path.frame_bytes(headers, payload_bytes);
        wire.emit(path.via(), bytes, |frame| path.fill(frame, headers, payload_bytes, payload))?;
        self.counters.add(QpCount::SentBytes, payload_bytes as u64);
        Ok(())
    }

    /// Sends one frame with a piece of client memory, as [`Self::emit`].
    pub(super) fn emit_span<A: App, W: Wire>(
        &mut self,
        wire: &mut W,
        headers: &Headers,
        span: MemSpan<'_>,
        app: &mut A,
    ) -> Result<(), EmitError> {
        let mut rest = span;
        let read = |piece: &mut [u8]| {
            let (now, later) = rest.split_at(piece.len());
            rest = later;
            app.read(now, piece).map_err(|_| Abort)
        };
        if !self.lends {
            return self.emit(wire, headers, span.len(), read);
        }
        let Some(path) = self.way() else {
            self.counters.count(QpCount::Unreachable);
            return Ok(());
        };
        let bytes = path.lent_frame_bytes(headers, span.len());
        wire.emit(path.via(), bytes, |frame| {
            path.fill_lent(frame, headers, span.len(), |frame| {
                frame.lend(span);
                Ok(())
            })
        })?;
        self.counters.add(QpCount::SentBytes, span.len() as u64);
        Ok(())
    }

    /// Frames get to the next hop, as far as is known.
    pub(super) const fn is_reachable(&self) -> bool {
        matches!(self.path, PathState::Ready(_))
    }

    /// Bytes of a frame around a full packet, for pacing.
    pub(super) fn overhead(&self) -> usize {
        match &self.path {
            PathState::Ready(path) => path.overhead_bytes(),
            PathState::Unreachable | PathState::Resolving => 0,
        }
    }
}
