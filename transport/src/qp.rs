//! Queue pairs: the state common to every service (attributes, queues, completions), and the roles
//! that provide the transport service.
//!
//! ```text
//!              ┌── Reliable      reliable connection: requester, completer, responder
//!   Qp ────────┤
//!  (base,      ├── Unreliable    unreliable connection: sender, receiver
//!   queues)    └── Datagram      unreliable datagram
//! ```
//!
//! `on_packet` never sends: it leaves pending answers with the roles, and only `transmit` sends.

mod atomic;
mod base;
mod completer;
mod config;
mod context;
mod credits;
mod datagram;
mod deferred;
mod events;
mod flush;
mod key_change;
mod life;
mod likelihood;
mod notification;
mod origin;
mod out_of_order;
mod ownership;
mod placement;
mod probe;
mod progress;
mod reliable;
mod replay;
mod requester;
mod responder;
mod retry;
mod rnr_wait;
mod roles;
mod scatter;
mod segment;
mod selective;
mod send_queue;
mod service_type;
mod state;
mod unreliable;

use alloc::sync::Arc;

use roced_types::{AccountId, EndpointIds, QpAttributes, Qpn, SessionId, attribute, event};

use self::{
    base::QpBase,
    context::Context,
    events::QpEvents,
    key_change::{KeyChanges, Waiter},
    out_of_order::OutOfOrder,
    reliable::Reliable,
    roles::Roles,
    send_queue::SendQueue,
};
pub use self::{
    config::QpConfig,
    events::{FailureCause, LossCounts, QpEvent, QpFailure, Subject},
    key_change::{KeyChange, KeyRequest},
    life::QUARANTINE,
    progress::QpProgress,
    replay::{DEPTH_MAX as RD_ATOMIC_MAX, ReplayMemory},
    service_type::ServiceType,
    state::State,
};
pub(crate) use self::{
    context::{EndpointContext, Transmission},
    responder::{LastAcknowledgment, ends, is_plain},
};
#[cfg(test)]
pub(crate) use self::{
    life::OTHER_PORT_BAR_MEAN,
    likelihood::{JUMP_MAX, JUMP_MIN, JUMP_TIME, OTHER_PORT_PSNS, RUN_MIN, RUN_REACH},
    responder::AHEAD_FIRST,
};
pub use crate::path_state::PathState;
use crate::{
    clock::Nanos,
    congestion::{control::CongestionControl, delay_guard::DelayGuard, notification::NotificationPoint},
    counters::{QpCount, QpCounters, QpTally, QpTotals},
    io::{App, Wire},
    partition::{Partitions, Pkey},
    recovery::RecoveryConfig,
    recv_queue::RecvQueue,
    reject::{Disposition, DropReason, Reject},
    srq::{SrqConfig, Srqs},
    turns::{fair::FairOwner, in_flight::InFlightShare, pacing::rate_of},
    wire::{frame::Packet, headers::Headers, path::Path},
    work::{RecvWork, SendWork},
};

/// A queue pair. Its state is plain data, allocated at creation, except the ring of READs and
/// atomic operations kept for duplicates: the depth of that ring is set later ([`ReplayMemory`]).
///
/// An [`Endpoint`](crate::endpoint::Endpoint) owns it from `insert_qp` to `remove_qp` and changes
/// it by `modify_qp`; its own methods only read. [`QpConfig`] has an example of these calls.
#[derive(Debug)]
pub struct Qp {
    base: QpBase,
    send_queue: SendQueue,
    recv_queue: RecvQueue,
    roles: Roles,
    /// Packets that arrived out of order.
    out_of_order: OutOfOrder,
    /// The send queue was found full: report when it has room.
    pub(crate) send_room_wanted: bool,
    /// The same for the receive queue.
    pub(crate) recv_room_wanted: bool,
    account: AccountId,
    client: SessionId,
    /// Of the account: see [`FairOwner`].
    weight: u8,
    /// Its share of the packets in flight.
    pub(crate) share: InFlightShare,
    /// Number of multicast groups that it is attached to.
    pub(crate) attachments: u32,
}

impl Qp {
    /// Creates a queue pair in state RESET.
    ///
    /// # Panics
    /// If the numbers of work requests are not granted ones, powers of two.
    pub fn new(config: QpConfig) -> Self {
        Self {
            base: QpBase {
                config,
                endpoint_ids: config.qpn.endpoint().into(),
                recovery: RecoveryConfig::GO_BACK_N,
                congestion: CongestionControl::Off,
                delay_guard: DelayGuard::default(),
                account_turns: None,
                is_waived: false,
                rate: None,
                state: State::Reset,
                attributes: QpAttributes::default(),
                pkey: Pkey::DEFAULT,
                path: PathState::Resolving,
                borrows: false,
                counters: QpTally::default(),
                events: QpEvents::default(),
                failure: None,
                is_failure_new: false,
                tell_drained: false,
                established: false,
                lives: 0,
                is_buffered: false,
                buffered_answers: 0,
                keys: KeyChanges::default(),
                srq: None,
                grant: 0,
                wants_grant: false,
                is_silent: false,
                receives: 0,
                notification: NotificationPoint::default(),
            },
            send_queue: SendQueue::new(&config.sizes),
            recv_queue: RecvQueue::new(&config.sizes),
            roles: Roles::new(config.service, config.window_packets),
            out_of_order: OutOfOrder::new(config.qpn),
            send_room_wanted: false,
            recv_room_wanted: false,
            account: AccountId::default(),
            client: SessionId::default(),
            weight: FairOwner::default().weight,
            share: InFlightShare::default(),
            attachments: 0,
        }
    }

    /// Attaches a shared receive queue of its endpoint as source of receive work. Its own queue
    /// then holds the receive taken from there: granted sizes of one receive, with as many
    /// scatter/gather entries as the shared queue has.
    ///
    /// # Panics
    /// If the queue pair has fewer scatter/gather entries.
    #[must_use]
    pub fn with_srq(mut self, srq: &SrqConfig) -> Self {
        assert!(self.base.config.sizes.recv_sges >= srq.sizes.recv_sges, "taken work must fit");
        self.base.srq = Some(*srq);
        self
    }

    /// Queue pair number.
    pub fn qpn(&self) -> Qpn {
        self.base.config.qpn
    }

    /// Creation parameters.
    pub const fn config(&self) -> &QpConfig {
        &self.base.config
    }

    /// Current state.
    pub const fn state(&self) -> State {
        self.base.state
    }

    /// Short name of the state.
    pub const fn state_name(&self) -> &'static str {
        self.base.state.name()
    }

    /// Name of the path state. The path of a datagram belongs to its address handle.
    pub const fn path_name(&self) -> &'static str {
        match self.base.config.service {
            ServiceType::Ud => "datagram",
            ServiceType::Rc | ServiceType::Uc => self.base.path.name(),
        }
    }

    /// State of the path to the peer.
    pub const fn path(&self) -> &PathState {
        &self.base.path
    }

    /// Counters of this queue pair.
    pub const fn counters(&self) -> &QpCounters {
        self.base.counters.own()
    }

    /// Adds its counts, including past ones, to these totals from now on, or to none.
    pub(crate) fn count_into(&mut self, totals: Option<&Arc<QpTotals>>) {
        self.base.counters.count_into(totals);
    }

    /// Passes the pending answers to `keep`, ready to be sent when the queue pair is gone.
    pub(crate) fn final_answers(&self, mut keep: impl FnMut(Path, Headers)) {
        if let Roles::Reliable(Reliable { responder, .. }) = &self.roles
            && let Some(path) = self.base.ready_path()
        {
            responder.final_answers(&self.base, |headers| keep(*path, headers));
        }
    }

    /// Acknowledgment of all requests that it has executed, to answer repetitions after its end.
    /// `None` without a path, if it has failed, and if nothing was executed in this life. A client
    /// that moves it to the error state has taken note of the executed requests.
    pub(crate) fn last_acknowledgment(&self) -> Option<(Path, LastAcknowledgment)> {
        let Roles::Reliable(Reliable { responder, .. }) = &self.roles else { return None };
        let path = self.base.ready_path().filter(|_| self.base.failure.is_none())?;
        Some((*path, responder.last_acknowledgment(&self.base)?))
    }

    /// Attributes, including the state.
    pub fn attributes(&self) -> QpAttributes {
        QpAttributes {
            state: self.base.state.number(),
            path_resolving: u32::from(self.base.config.service != ServiceType::Ud && self.base.is_resolving()),
            sq_draining: u32::from(self.is_draining()),
            ..self.base.attributes
        }
    }

    /// Number of send work requests that may be posted: of [`roced_types::QpSizes::send_wrs`],
    /// those that are not posted, or have ended.
    pub fn send_room(&self) -> u32 {
        self.send_queue.room()
    }

    /// Number of receive work requests that may be posted.
    pub(crate) fn recv_room(&self) -> u32 {
        self.recv_queue.room()
    }

    /// Accepts send work. In RESET the work is discarded and counted; before RTS it waits; in ERR
    /// it is flushed (IBTA v1 10.3.1).
    pub(crate) fn post_send(&mut self, work: &SendWork<'_>) {
        if self.base.state == State::Reset {
            return self.base.counters.count(QpCount::ForgottenInReset);
        }
        self.send_queue.push(work);
    }

    /// Accepts receive work, like [`Self::post_send`]. Returns true when an answer must be sent, or
    /// the work flushed.
    pub(crate) fn post_recv(&mut self, work: &RecvWork<'_>) -> bool {
        if self.base.state == State::Reset {
            self.base.counters.count(QpCount::ForgottenInReset);
            return false;
        }
        self.recv_queue.push(work);
        self.base.receives = self.recv_queue.len();
        self.base.state == State::Error || self.base.state.receives() && self.roles.on_receive_posted(&self.base)
    }

    /// Provides memory for a following change of attributes; returns unneeded memory.
    pub(crate) fn provide(&mut self, memory: ReplayMemory) -> ReplayMemory {
        match &mut self.roles {
            Roles::Reliable(Reliable { responder, .. }) => responder.provide(memory),
            Roles::Unreliable(_) | Roles::Datagram(_) => memory,
        }
    }

    /// Changes state or attributes. `path` accompanies the address vector.
    pub(crate) fn modify(
        &mut self,
        mask: u32,
        attributes: &QpAttributes,
        path: Option<PathState>,
        partitions: &Partitions,
        srqs: &mut Srqs,
    ) -> Result<(), Reject> {
        let from = self.base.state;
        let to = state::check_change(self.base.config.service, from, mask, attributes)?;
        let pkey = if mask & attribute::PKEY_INDEX == 0 {
            Some(self.base.pkey)
        } else {
            partitions.get(attributes.pkey_index)
        };
        let pkey = pkey.ok_or(Reject::InvalidAttribute {
            attribute: attribute::PKEY_INDEX,
            value: attributes.pkey_index.into(),
        })?;
        // IBTA v1 10.3.1.5: a queue that drains can change only to RESET and ERR.
        if self.is_draining() && !matches!(to, State::Reset | State::Error) {
            return Err(Reject::InvalidState { from: from.number(), to: to.number() });
        }
        state::apply(mask, attributes, &mut self.base.attributes);
        self.base.pkey = pkey;
        if let Some(path) = path {
            self.base.path = path;
        }
        if mask & (attribute::RATE_LIMIT | attribute::AV) != 0 {
            self.roles.set_rate(rate_of(&self.base.attributes));
        }
        self.base.state = to;
        match (from, to) {
            (_, State::Reset) => {
                self.return_receive(srqs);
                self.reset();
            }
            (State::Init, State::ReadyToReceive) => {
                self.base.note_borrowing();
                self.base.lives = self.base.lives.saturating_add(1);
                if let Some(rate) = &mut self.base.rate {
                    rate.reset();
                }
                self.roles.begin_to_receive(&self.base);
            }
            (State::ReadyToReceive, State::ReadyToSend) => self.roles.begin_to_send(&self.base, &self.send_queue),
            (State::ReadyToSend, State::SendQueueDrain) => {
                self.base.tell_drained = mask & attribute::SQ_DRAINED_EVENT != 0 && attributes.sq_drained_event == 1;
                self.tell_if_drained();
            }
            (State::SendQueueDrain, State::SendQueueDrain) => self.roles.renew_attributes(mask, &self.base),
            _ => {}
        }
        Ok(())
    }

    /// Fails the queue pair because its port is gone; false in RESET and ERR.
    pub(crate) fn lose_port(&mut self) -> bool {
        let fails = !matches!(self.base.state, State::Reset | State::Error);
        if fails {
            self.base.state = State::Error;
            self.base.failure = Some(FailureCause::Event(event::DEVICE_FATAL));
            self.base.events.add(event::QP_FATAL);
        }
        fails
    }

    /// In SQD with incomplete requests.
    fn is_draining(&self) -> bool {
        self.base.state == State::SendQueueDrain && !self.is_drained()
    }

    /// All requests that were begun are complete, including local operations.
    fn is_drained(&self) -> bool {
        self.roles.is_drained() && !self.base.keys.waits(Waiter::Requester)
    }

    /// Raises the drained event in SQD when the last request that was begun is complete.
    fn tell_if_drained(&mut self) {
        if self.base.tell_drained && self.base.state == State::SendQueueDrain && self.is_drained() {
            self.base.tell_drained = false;
            self.base.events.add(event::SQ_DRAINED);
        }
    }

    /// Sets numbers and loss recovery of the endpoint that the queue pair now belongs to.
    pub(crate) const fn set_endpoint(&mut self, ids: EndpointIds, recovery: RecoveryConfig) {
        (self.base.endpoint_ids, self.base.recovery) = (ids, recovery);
    }

    /// Checks that its shared receive queue, if any, exists in this endpoint.
    pub(crate) fn check_srq(&self, srqs: &Srqs, ids: EndpointIds) -> Result<(), Reject> {
        match self.base.srq {
            Some(srq) if srqs.get(srq.srqn).is_none() || !ids.contains(srq.srqn.endpoint()) => {
                Err(Reject::NoSuchSrq(srq.srqn))
            }
            _ => Ok(()),
        }
    }

    /// Returns an unused receive to its shared queue.
    pub(crate) fn return_receive(&mut self, srqs: &mut Srqs) {
        if let Some(srq) = self.base.srq {
            srqs.put_back(srq.srqn, &mut self.recv_queue);
        }
    }

    /// Replaces the path after a change of the next hop.
    pub(crate) fn set_path(&mut self, path: PathState) {
        self.base.path = path;
    }

    /// Processes a packet for this queue pair with a valid ICRC. Its source is checked before
    /// anything changes.
    pub(crate) fn on_packet<A: App>(
        &mut self,
        packet: &Packet<'_>,
        endpoint: &mut EndpointContext<'_, A>,
    ) -> Disposition {
        let outcome = self.try_packet(packet, endpoint);
        self.tell_if_drained();
        match outcome {
            Ok(()) => {
                self.base.note_established();
                self.base.counters.count(QpCount::ReceivedPackets);
                self.base.counters.add(QpCount::ReceivedBytes, packet.payload_len() as u64);
                Disposition::Accepted
            }
            Err(reason) => Disposition::Dropped(reason),
        }
    }

    /// Processes a packet from the out-of-order buffer that is now due.
    pub(crate) fn on_buffered_packet<A: App>(
        &mut self,
        packet: &Packet<'_>,
        endpoint: &mut EndpointContext<'_, A>,
    ) -> Disposition {
        self.base.is_buffered = true;
        let disposition = self.on_packet(packet, endpoint);
        self.base.is_buffered = false;
        disposition
    }

    fn try_packet<A: App>(
        &mut self,
        packet: &Packet<'_>,
        endpoint: &mut EndpointContext<'_, A>,
    ) -> Result<(), DropReason> {
        let is_answer = packet.info.operation.is_response();
        let state = self.base.state;
        if !(if is_answer { state.sends() } else { state.receives() }) {
            return Err(DropReason::WrongState);
        }
        let (roles, mut cx) = self.split(endpoint);
        roles.on_packet(packet, &mut cx)
    }

    /// Handles a timeout; an early call is harmless.
    pub(crate) fn on_timeout<A: App>(&mut self, endpoint: &mut EndpointContext<'_, A>) {
        if let Some(rate) = &mut self.base.rate {
            rate.on_timeout(endpoint.now);
        }
        if let Some(turns) = &mut self.base.account_turns {
            turns.on_timeout(endpoint.now);
        }
        if self.base.state.receives() {
            let (roles, mut cx) = self.split(endpoint);
            roles.on_timeout(&mut cx);
        }
    }

    /// Address handle that its oldest send waits for.
    pub(crate) const fn waits_for_ah(&self) -> Option<u32> {
        match &self.roles {
            Roles::Datagram(datagram) => datagram.waits_for_ah(),
            _ => None,
        }
    }

    /// Time of the next call of [`Self::on_timeout`].
    #[inline]
    pub(crate) fn deadline(&self) -> Nanos {
        if !self.base.state.receives() {
            // The last answers of a failed queue pair follow its rates as well.
            return if self.base.state == State::Error { self.base.rate_deadline() } else { Nanos::NEVER };
        }
        self.roles.deadline(&self.base).min(self.out_of_order.deadline(&self.base.recovery))
    }

    /// Sets the number of packets that it may add to those in flight, until the next call.
    pub(crate) const fn set_grant(&mut self, packets: u32) {
        (self.base.grant, self.base.wants_grant) = (packets, false);
    }

    /// From now on it sends requests, or only answers; returns whether it was silent.
    pub(crate) const fn set_silent(&mut self, is_silent: bool) -> bool {
        core::mem::replace(&mut self.base.is_silent, is_silent)
    }

    /// It is silent, and its service has no answers.
    pub(crate) fn has_nothing_to_say(&self) -> bool {
        self.base.is_silent && self.base.config.service != ServiceType::Rc
    }

    /// It would have sent more packets than granted.
    pub(crate) const fn wants_grant(&self) -> bool {
        self.base.wants_grant
    }

    /// Packets in flight: sent, or expected as responses, and not acknowledged.
    pub(crate) fn in_flight(&self) -> u32 {
        match &self.roles {
            Roles::Reliable(it) if self.base.state.sends() => it.in_flight(),
            // These services have no acknowledgments.
            _ => 0,
        }
    }

    /// Sends one frame, or flushes a burst of work in states ERR and SQE.
    pub(crate) fn transmit<A: App, W: Wire>(
        &mut self,
        endpoint: &mut EndpointContext<'_, A>,
        wire: &mut W,
    ) -> Transmission {
        self.base.receives = self.recv_queue.len();
        self.base.buffered_answers = self.out_of_order.buffered_answers();
        let visit = match self.base.state {
            // The flush does not wait for the wire.
            State::Error => match self.flush(endpoint) {
                Transmission::Idle => {
                    // The receives are flushed: answers advertise none.
                    self.base.receives = 0;
                    let (roles, mut cx) = self.split(endpoint);
                    roles.transmit_final_answers(&mut cx, wire)
                }
                visit => visit,
            },
            State::SendQueueError => self.flush_sends(endpoint),
            _ => {
                let (roles, mut cx) = self.split(endpoint);
                let visit = roles.transmit(&mut cx, wire);
                // A queue pair that has just failed made progress: the next visit flushes the rest
                // of its work.
                if self.base.state == State::Error && visit == Transmission::Idle {
                    Transmission::Progress
                } else {
                    visit
                }
            }
        };
        self.tell_if_drained();
        visit
    }

    /// It requested a key change that is not yet passed on.
    pub(crate) const fn has_key_wish(&self) -> bool {
        self.base.keys.has_wish()
    }

    /// Takes a key change request that is not yet passed on, and gives it `ticket`.
    pub(crate) fn take_key_wish(&mut self, ticket: u64) -> Option<KeyRequest> {
        self.base.keys.take_wish(ticket)
    }

    /// Handles the end of the key change under `ticket`, which was made in every table or cannot be
    /// made.
    pub(crate) fn finish_key_change<A: App>(&mut self, ticket: u64, done: bool, endpoint: &mut EndpointContext<'_, A>) {
        let Some(waiter) = self.base.keys.finish(ticket) else { return };
        // In a queue pair that has failed meanwhile nothing waits for the change: its work is
        // flushed.
        if self.base.state.receives() {
            let (roles, mut cx) = self.split(endpoint);
            roles.on_key_change(waiter, done, &mut cx);
        }
        self.tell_if_drained();
    }

    /// Handles requests that arrived during a key invalidation, after the buffered ones were
    /// processed.
    pub(crate) fn ask_for_overtaken(&mut self, now: Nanos) {
        if let Roles::Reliable(Reliable { responder, .. }) = &mut self.roles
            && self.base.state.receives()
        {
            responder.ask_for_overtaken(now);
        }
    }

    /// An event is pending.
    pub(crate) const fn has_event(&self) -> bool {
        !self.base.events.is_empty()
    }

    /// Takes a pending event.
    pub(crate) fn take_event(&mut self) -> Option<QpEvent> {
        self.base.events.take(&self.base.config)
    }

    /// It failed, and that is not reported yet.
    pub(crate) const fn has_failure(&self) -> bool {
        self.base.is_failure_new
    }

    /// Takes its unreported failure.
    pub(crate) fn take_failure(&mut self) -> Option<QpFailure> {
        let cause = self.base.failure.filter(|_| core::mem::take(&mut self.base.is_failure_new))?;
        let (peer, peer_qpn) = (self.base.attributes.dgid, self.base.dest_qpn());
        let losses = LossCounts::of(self.counters());
        Some(QpFailure { qpn: self.qpn(), peer, peer_qpn, cause, losses })
    }

    /// The roles, and the context in which they are called.
    fn split<'t, A: App>(&'t mut self, endpoint: &'t mut EndpointContext<'_, A>) -> (&'t mut Roles, Context<'t, A>) {
        (&mut self.roles, Context::new(&mut self.base, &mut self.send_queue, &mut self.recv_queue, endpoint))
    }

    fn reset(&mut self) {
        self.send_queue.clear();
        self.recv_queue.clear();
        self.roles.reset(self.base.config.window_packets);
        self.base.attributes = QpAttributes::default();
        self.base.path = PathState::Resolving;
        (self.base.events, self.base.failure, self.base.is_failure_new) = (QpEvents::default(), None, false);
        self.base.borrows = false;
        (self.base.tell_drained, self.base.established) = (false, false);
        self.base.keys.clear();
        self.base.notification = NotificationPoint::default();
        if let Some(turns) = &mut self.base.account_turns {
            turns.release();
        }
    }
}
