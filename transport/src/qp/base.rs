//! Common state of every queue pair role: state, attributes, path, completion of work.

use alloc::boxed::Box;

use roced_types::{CompletionOp, EndpointIds, Pdn, QpAttributes, Qpn, Status, event};

use super::{
    PathState, QpConfig, State,
    events::{FailureCause, QpEvents},
    key_change::KeyChanges,
};
use crate::{
    clock::Nanos,
    congestion::{
        control::CongestionControl, delay_guard::DelayGuard, notification::NotificationPoint, send_rate::SendRate,
    },
    counters::{QpCount, QpTally},
    io::{Abort, App, Egress, EmitError, Wire},
    mr::{AccessError, MemSpan, MrKey, MrTable, Right},
    partition::Pkey,
    psn::Psn,
    recovery::RecoveryConfig,
    srq::SrqConfig,
    turns::account_turns::AccountTurns,
    wire::{bth::Bth, headers::Headers, opcode::Opcode, path::Path},
};

/// Payload bytes of a full packet that carries borrowed payload; no wire limits it. Copying takes
/// about ten times as long as handling the headers, yet is short enough that other queue pairs need
/// not wait long to be served.
const BORROWED_BYTES_MAX: usize = 32 << 10;

/// Packets in flight of a sender with a limited rate.
pub(super) const LIMITED_WINDOW: u32 = 16;

/// State common to every role.
#[derive(Debug)]
pub(crate) struct QpBase {
    pub(super) config: QpConfig,
    /// Numbers of its endpoint in queue pair numbers.
    pub(super) endpoint_ids: EndpointIds,
    pub(super) recovery: RecoveryConfig,
    pub(super) congestion: CongestionControl,
    pub(super) delay_guard: DelayGuard,
    /// Turns at the rate of its account, if it has one or may have one.
    pub(super) account_turns: Option<AccountTurns>,
    /// It sends its rest without regard to that rate.
    pub(super) is_waived: bool,
    /// Of packets that follow CNPs by a rate, if anything reacts to congestion.
    pub(super) rate: Option<Box<SendRate>>,
    pub(super) state: State,
    pub(super) attributes: QpAttributes,
    /// Its partition.
    pub(super) pkey: Pkey,
    pub(super) path: PathState,
    /// Its peer belongs to the same endpoint, and their packets carry borrowed payload. Both sides
    /// decide this on entering RTR and keep it, because both must segment messages alike.
    pub(super) borrows: bool,
    pub(super) counters: QpTally,
    pub(super) events: QpEvents,
    /// Cause of its failure since the last RESET.
    pub(super) failure: Option<FailureCause>,
    /// The failure is not reported yet.
    pub(super) is_failure_new: bool,
    /// The client asked for an event when the send queue has drained.
    pub(super) tell_drained: bool,
    /// A request has arrived since the queue pair entered RTR.
    pub(super) established: bool,
    /// Number of times it has entered RTR.
    pub(super) lives: u32,
    /// The packet being processed comes from the out-of-order buffer. A response that does not
    /// match may still belong to an earlier life; it does not fail the queue pair.
    pub(super) is_buffered: bool,
    /// Answers in the out-of-order buffer, waiting for earlier ones.
    pub(super) buffered_answers: u32,
    pub(super) keys: KeyChanges,
    /// Source of its receive work, if not its own queue.
    pub(super) srq: Option<SrqConfig>,
    /// Packets that it may add to those in flight during this visit.
    pub(super) grant: u32,
    /// The grant was too small.
    pub(super) wants_grant: bool,
    /// It begins and repeats no request unless asked: its client is gone.
    pub(super) is_silent: bool,
    /// Receives in its own queue when it last posted or sent, including the receive of a message in
    /// progress.
    pub(super) receives: u32,
    pub(super) notification: NotificationPoint,
}

/// Completion of a receive work request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Received {
    pub(super) wr_id: u64,
    pub(super) status: Status,
    pub(super) op: CompletionOp,
    pub(super) bytes: u32,
    pub(super) imm: Option<[u8; 4]>,
    pub(super) solicited: bool,
    /// Local key that the message invalidated.
    pub(super) invalidated: Option<MrKey>,
    /// For a datagram: source QPN, and whether it came by IPv4. A GRH then precedes the message.
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

    /// Whether the rate of its account lets no packet with data leave at `now` by a NIC; it has a
    /// deadline in that case.
    #[inline]
    pub(super) fn waits_for_account(&mut self, now: Nanos) -> bool {
        let is_free = self.is_waived || self.is_local();
        self.account_turns.as_mut().is_some_and(|turns| turns.is_closed(now, is_free))
    }

    /// Its frames leave by no NIC.
    #[inline]
    pub(super) fn is_local(&self) -> bool {
        matches!(&self.path, PathState::Ready(path) if path.via().is_local())
    }

    /// Whether its rate lets no packet leave at `now`; it has a deadline in that case.
    #[inline]
    pub(super) fn is_paced(&mut self, now: Nanos) -> bool {
        self.rate.as_mut().is_some_and(|rate| rate.is_closed(now))
    }

    /// A packet that follows the rate left at `now`, with so many bytes of payload.
    #[inline]
    pub(super) fn on_paced_sent(&mut self, now: Nanos, payload: usize) {
        let bytes = payload + if self.rate.is_some() { self.overhead() } else { 0 };
        if let Some(rate) = &mut self.rate {
            rate.on_sent(now, bytes);
        }
    }

    /// Requests follow the rate.
    #[inline]
    pub(super) fn paces_requests(&self) -> bool {
        self.congestion == CongestionControl::Dcqcn
    }

    /// Packets that may be in flight without congestion of `window`: a sender with a limited rate
    /// needs few, and more would fill a queue before the first CNP comes.
    #[inline]
    pub(super) fn window_at_rate(&self, window: u32) -> u32 {
        let is_limited = self.paces_requests() && self.rate_bytes_per_s().is_some();
        if is_limited { window.min(LIMITED_WINDOW) } else { window }
    }

    /// Something reacts to congestion.
    pub(super) fn reacts(&self) -> bool {
        self.rate.is_some() && !self.is_same_device()
    }

    /// When the packet that waits for the rate, or that of its account, may leave;
    /// [`Nanos::NEVER`] if none waits.
    #[inline]
    pub(super) fn rate_deadline(&self) -> Nanos {
        self.rate.as_ref().map_or(Nanos::NEVER, |rate| rate.deadline()).min(self.account_deadline())
    }

    /// As [`Self::rate_deadline`], of the rate of its account alone.
    #[inline]
    pub(super) fn account_deadline(&self) -> Nanos {
        self.account_turns.as_ref().map_or(Nanos::NEVER, AccountTurns::deadline)
    }

    /// Its rate in bytes per second; `None` if it has no bound.
    pub(super) fn rate_bytes_per_s(&self) -> Option<u64> {
        self.rate.as_ref().and_then(|rate| rate.bytes_per_s())
    }

    /// Checks that a peer may access a memory range.
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

    /// Checks that the key permits the peer this access, regardless of the range.
    pub(super) fn check_peer_key(&self, mrs: &MrTable, key: MrKey, right: Right) -> Result<(), AccessError> {
        mrs.check_peer_key(self.config.pd, self.config.qpn, key, right)
    }

    /// Protection domain of the memory regions that receive work may name.
    pub(super) fn recv_pd(&self) -> Pdn {
        self.srq.map_or(self.config.pd, |srq| srq.pd)
    }

    /// Reports that a failed queue pair takes no more from its shared queue and has flushed the
    /// receives it had taken (IBTA v1 11.6.3.1).
    pub(super) fn tell_last_wqe(&mut self) {
        if self.srq.is_some() {
            self.events.add_last_wqe();
        }
    }

    /// Payload of a full packet.
    pub(super) fn mtu(&self) -> usize {
        if self.borrows { BORROWED_BYTES_MAX } else { self.attributes.path_mtu_bytes as usize }
    }

    /// In RTR: decides whether the packets of this queue pair and its peer carry borrowed payload.
    /// Such payload is copied before the poll iteration of the endpoint ends, so the peer must
    /// belong to the same endpoint.
    pub(super) fn note_borrowing(&mut self) {
        self.borrows = self.is_same_device() && self.endpoint_ids.contains(self.dest_qpn().endpoint());
    }

    /// The peer is on this device: no packet to it is lost.
    pub(super) fn is_same_device(&self) -> bool {
        matches!(&self.path, PathState::Ready(path) if path.via() == Egress::SameDevice)
    }

    /// The path, if frames can reach the peer. Packets with borrowed payload fit no path but a
    /// local one.
    pub(super) fn ready_path(&self) -> Option<&Path> {
        match &self.path {
            PathState::Ready(path) if !self.borrows || path.via() == Egress::SameDevice => Some(path),
            PathState::Ready(_) | PathState::Unreachable | PathState::Resolving => None,
        }
    }

    pub(super) fn dest_qpn(&self) -> Qpn {
        Qpn::from_wire(self.attributes.dest_qpn)
    }

    /// Base transport header of a packet to the peer.
    pub(super) fn bth(&self, opcode: Opcode, psn: Psn) -> Bth {
        Bth { pkey: self.pkey, ..Bth::new(opcode, self.dest_qpn(), psn) }
    }

    /// Moves the queue pair to the error state; later visits flush its work.
    pub(super) fn fail(&mut self, cause: FailureCause) {
        self.state = State::Error;
        self.note_failure(cause);
    }

    /// Keeps the cause of a failure, to be reported.
    pub(super) const fn note_failure(&mut self, cause: FailureCause) {
        (self.failure, self.is_failure_new) = (Some(cause), true);
    }

    /// Fails the queue pair with an event, when no completion reports the failure.
    pub(super) fn fail_with_event(&mut self, kind: u32) {
        self.fail(FailureCause::Event(kind));
        self.events.add(kind);
    }

    /// An earlier life of this queue pair has ended.
    pub(super) const fn is_later_life(&self) -> bool {
        self.lives > 1
    }

    /// Raises the communication-established event at the first request that arrives in RTR: it
    /// shows that the peer is ready to send (IBTA v1 11.6.3.1).
    pub(super) fn note_established(&mut self) {
        if !self.established && self.state == State::ReadyToReceive {
            self.established = true;
            self.events.add(event::COMMUNICATION_ESTABLISHED);
        }
    }

    /// The next hop's address is not known yet: no frame can leave.
    pub(super) const fn is_resolving(&self) -> bool {
        matches!(self.path, PathState::Resolving)
    }

    /// The next hop does not answer.
    pub(super) const fn is_unreachable(&self) -> bool {
        matches!(self.path, PathState::Unreachable)
    }

    /// Sends one frame on the path. A frame to an unreachable next hop is counted and treated as
    /// sent.
    pub(super) fn emit<W: Wire>(
        &mut self,
        wire: &mut W,
        headers: &Headers,
        payload_bytes: usize,
        payload: impl FnMut(&mut [u8]) -> Result<(), Abort>,
    ) -> Result<(), EmitError> {
        let Some(path) = self.ready_path() else {
            self.counters.count(QpCount::Unreachable);
            return Ok(());
        };
        let bytes = path.frame_bytes(headers, payload_bytes);
        wire.emit(path.via(), bytes, |frame| path.fill(frame, headers, payload_bytes, payload))?;
        self.counters.add(QpCount::SentBytes, payload_bytes as u64);
        Ok(())
    }

    /// Sends one frame with a piece of client memory as payload, like [`Self::emit`].
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
        if !self.borrows {
            return self.emit(wire, headers, span.len(), read);
        }
        let Some(path) = self.ready_path() else {
            self.counters.count(QpCount::Unreachable);
            return Ok(());
        };
        let bytes = path.borrowed_frame_bytes(headers, span.len());
        wire.emit(path.via(), bytes, |frame| {
            path.fill_borrowed(frame, headers, span.len(), |frame| {
                frame.borrow(span);
                Ok(())
            })
        })?;
        self.counters.add(QpCount::SentBytes, span.len() as u64);
        Ok(())
    }

    /// The next hop is reachable, as far as is known.
    pub(super) const fn is_reachable(&self) -> bool {
        matches!(self.path, PathState::Ready(_))
    }

    /// Bytes that a frame adds to the payload of a full packet, for pacing.
    pub(super) fn overhead(&self) -> usize {
        match &self.path {
            PathState::Ready(path) => path.overhead_bytes(),
            PathState::Unreachable | PathState::Resolving => 0,
        }
    }
}
