//! One queue pair: what every service has (state, attributes, queues, completions), and the service that it gives.
//!
//! ```text
//!              ┌── Reliable      reliable connection: requester, completer, responder
//!   Qp ────────┤
//!  (link,      ├── Unreliable    unreliable connection: sender, receiver
//!   queues)    └── Datagram      unreliable datagram
//! ```
//!
//! `on_packet` never sends: it leaves what is owed with its service, and `transmit` is the only way out.

mod atomic;
mod completer;
mod datagram;
mod early;
mod events;
mod key_change;
mod placement;
mod probe;
mod recv_queue;
mod reliable;
mod replay;
mod requester;
mod responder;
mod retry;
mod rtt;
mod scatter;
mod segment;
mod selective;
mod send_queue;
mod service;
mod state;
mod unreliable;

use roced_shared::{
    abi::{
        control::{QpAttributes, attribute, event},
        cqe::{CompletionOp, Cqe, Status},
        layout::QpSizes,
        wqe::Sge,
    },
    ids::{Cqn, Pdn, Qpn},
};

pub use self::events::{QpEvent, Subject};
pub(crate) use self::recv_queue::RecvQueue;
use self::{
    early::Early,
    events::Events,
    key_change::{KeyChanges, Waiter},
    send_queue::{SendEntry, SendQueue},
    service::Roles,
};
pub use self::{
    key_change::{KeyChange, KeyWish},
    replay::DEPTH_MAX as RD_ATOMIC_MAX,
    service::ServiceType,
    state::State,
};
use crate::{
    ah::AhTable,
    clock::Nanos,
    counters::{QpCount, QpCounters},
    io::{Abort, App, EmitError, Wire},
    mr::{Denied, MemSpan, MrKey, MrTable, Right},
    partition::{Partitions, Pkey},
    psn::Psn,
    recovery::RecoveryConfig,
    reject::{Disposition, DropReason, Reject},
    srq::{SrqConfig, Srqs},
    wire::{bth::Bth, frame::Packet, headers::Headers, opcode::Opcode, path::Path},
    work::{RecvWork, SendWork},
};

/// What a queue pair is made of; it does not change in its life.
#[derive(Clone, Copy, Debug)]
pub struct QpConfig {
    /// Its number.
    pub qpn: Qpn,
    /// What it promises.
    pub service: ServiceType,
    /// Whose memory regions it may name.
    pub pd: Pdn,
    /// Where sends complete.
    pub send_cq: Cqn,
    /// Where receives complete.
    pub recv_cq: Cqn,
    /// Granted sizes.
    pub sizes: QpSizes,
    /// Every send makes a completion.
    pub signal_all: bool,
    /// Packets that may be on their way to the peer, or READ responses asked of it, at a time.
    pub window_packets: u32,
}

/// How frames get to the peer.
#[derive(Clone, Copy, Debug)]
pub enum PathState {
    /// The next hop's address is being asked for: frames wait.
    Resolving,
    /// Known.
    Ready(Path),
    /// The next hop does not answer: frames are counted and lost, so that retries run out.
    Unreachable,
}

impl PathState {
    /// A word for it, as `rocectl qps` shows it.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Resolving => "resolving",
            Self::Ready(path) => match path.via() {
                crate::io::Via::Nic { .. } | crate::io::Via::Group { .. } => "nic",
                crate::io::Via::HandOver => "local",
            },
            Self::Unreachable => "unreachable",
        }
    }
}

/// What one call may touch besides the queue pair.
pub(crate) struct Turn<'t, A> {
    pub(crate) now: Nanos,
    pub(crate) mrs: &'t MrTable,
    pub(crate) ahs: &'t AhTable,
    pub(crate) srqs: &'t mut Srqs,
    pub(crate) app: &'t mut A,
}

/// How a visit of [`Qp::transmit`] ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Visit {
    /// Something was done; there may be more.
    Progress,
    /// Nothing to do until something happens.
    Idle,
    /// The wire has no room.
    Full,
}

/// What every role needs.
#[derive(Debug)]
pub(crate) struct Link {
    config: QpConfig,
    recovery: RecoveryConfig,
    state: State,
    attributes: QpAttributes,
    /// The partition that it is in.
    pkey: Pkey,
    path: PathState,
    counters: QpCounters,
    events: Events,
    /// The client wants to hear when the send queue has drained.
    tell_drained: bool,
    /// A request has come since the queue pair began to receive.
    established: bool,
    keys: KeyChanges,
    /// Where its receive work comes from, if not from its own queue.
    srq: Option<SrqConfig>,
    /// It has failed, and the client was told that it takes no more from there.
    last_wqe_told: bool,
}

/// A queue pair. Its state is plain data; everything that it will ever need is allocated when it is made.
#[derive(Debug)]
pub struct Qp {
    link: Link,
    send_queue: SendQueue,
    recv_queue: RecvQueue,
    roles: Roles,
    /// Packets that came before their turn.
    early: Early,
    /// Somebody found this queue full and wants to be told when it is not.
    pub(crate) send_room_wanted: bool,
    /// See above.
    pub(crate) recv_room_wanted: bool,
    /// It stands in its endpoint's list of senders.
    pub(crate) scheduled: bool,
    /// It stands in its endpoint's list of events.
    pub(crate) event_listed: bool,
    /// It stands in its endpoint's list of key changes.
    pub(crate) key_change_listed: bool,
}

/// Flushed completions of one visit: enough to be quick, few enough for the other queue pairs of the turn.
const FLUSH_BURST: u32 = 64;

impl Qp {
    /// A queue pair in state RESET.
    pub fn new(config: QpConfig) -> Self {
        Self {
            link: Link {
                config,
                recovery: RecoveryConfig::GO_BACK_N,
                state: State::Reset,
                attributes: QpAttributes::default(),
                pkey: Pkey::DEFAULT,
                path: PathState::Resolving,
                counters: QpCounters::default(),
                events: Events::default(),
                tell_drained: false,
                established: false,
                keys: KeyChanges::default(),
                srq: None,
                last_wqe_told: false,
            },
            send_queue: SendQueue::new(&config.sizes),
            recv_queue: RecvQueue::new(&config.sizes),
            roles: Roles::new(config.service, config.window_packets),
            early: Early::new(config.qpn),
            send_room_wanted: false,
            recv_room_wanted: false,
            scheduled: false,
            event_listed: false,
            key_change_listed: false,
        }
    }

    /// It takes receive work from this shared queue of its endpoint. Its own queue then holds what it has taken: granted sizes of one
    /// receive, with as many scatter/gather entries as the shared queue has.
    ///
    /// # Panics
    /// With fewer scatter/gather entries.
    #[must_use]
    pub fn with_srq(mut self, srq: &SrqConfig) -> Self {
        assert!(self.link.config.sizes.recv_sges >= srq.sizes.recv_sges, "what is taken must fit");
        self.link.srq = Some(*srq);
        self
    }

    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.link.config.qpn
    }

    /// What it was made of.
    pub const fn config(&self) -> &QpConfig {
        &self.link.config
    }

    /// Its state.
    pub const fn state(&self) -> State {
        self.link.state
    }

    /// The short name of its state.
    pub const fn state_name(&self) -> &'static str {
        self.link.state.name()
    }

    /// How frames get to its peer, in a word. A datagram's way is its address handle's affair.
    pub const fn path_name(&self) -> &'static str {
        match self.link.config.service {
            ServiceType::Ud => "datagram",
            ServiceType::Rc | ServiceType::Uc => self.link.path.name(),
        }
    }

    /// How frames get to its peer.
    pub const fn path(&self) -> &PathState {
        &self.link.path
    }

    /// Its counters.
    pub const fn counters(&self) -> &QpCounters {
        &self.link.counters
    }

    /// Its attributes, state included.
    pub fn attributes(&self) -> QpAttributes {
        QpAttributes {
            state: self.link.state.number(),
            path_resolving: u32::from(self.link.config.service != ServiceType::Ud && self.link.is_resolving()),
            sq_draining: u32::from(self.is_draining()),
            ..self.link.attributes
        }
    }

    /// Send work requests that may be posted.
    pub(crate) fn send_room(&self) -> u32 {
        self.send_queue.room()
    }

    /// Receive work requests that may be posted.
    pub(crate) fn recv_room(&self) -> u32 {
        self.recv_queue.room()
    }

    /// Takes send work. In RESET it is dropped; before RTS it waits; in ERR it is flushed (IBTA v1 10.3.1).
    pub(crate) fn post_send(&mut self, work: &SendWork<'_>) {
        if self.link.state != State::Reset {
            self.send_queue.push(work);
        }
    }

    /// Takes receive work, as [`Self::post_send`].
    pub(crate) fn post_recv(&mut self, work: &RecvWork<'_>) {
        if self.link.state != State::Reset {
            self.recv_queue.push(work);
        }
    }

    /// Changes state or attributes. `path` is given with the address vector.
    pub(crate) fn modify(
        &mut self,
        mask: u32,
        attributes: &QpAttributes,
        path: Option<PathState>,
        partitions: &Partitions,
        srqs: &mut Srqs,
    ) -> Result<(), Reject> {
        let from = self.link.state;
        let to = state::check_change(self.link.config.service, from, mask, attributes)?;
        let pkey = if mask & attribute::PKEY_INDEX == 0 {
            Some(self.link.pkey)
        } else {
            partitions.get(attributes.pkey_index)
        };
        let pkey = pkey.ok_or(Reject::InvalidAttribute {
            attribute: attribute::PKEY_INDEX,
            value: attributes.pkey_index.into(),
        })?;
        // IBTA v1 10.3.1.5: while the queue drains there is no way but to RESET and to ERR.
        if self.is_draining() && !matches!(to, State::Reset | State::Error) {
            return Err(Reject::InvalidState { from: from.number(), to: to.number() });
        }
        state::apply(mask, attributes, &mut self.link.attributes);
        self.link.pkey = pkey;
        if let Some(path) = path {
            self.link.path = path;
        }
        if mask & attribute::RATE_LIMIT != 0 {
            self.roles.set_rate(attributes.rate_limit_bytes_per_s);
        }
        self.link.state = to;
        match (from, to) {
            (_, State::Reset) => {
                self.return_receive(srqs);
                self.reset();
            }
            (State::Init, State::ReadyToReceive) => self.roles.begin_to_receive(&self.link),
            (State::ReadyToReceive, State::ReadyToSend) => self.roles.begin_to_send(&self.link, &self.send_queue),
            (State::ReadyToSend, State::SendQueueDrain) => {
                self.link.tell_drained = mask & attribute::SQ_DRAINED_EVENT != 0 && attributes.sq_drained_event == 1;
                self.tell_if_drained();
            }
            (State::SendQueueDrain, State::SendQueueDrain) => self.roles.renew_attributes(mask, &self.link),
            _ => {}
        }
        Ok(())
    }

    /// In SQD, with requests that are not done.
    fn is_draining(&self) -> bool {
        self.link.state == State::SendQueueDrain && !self.is_drained()
    }

    /// All that was begun is done, local operations too.
    fn is_drained(&self) -> bool {
        self.roles.is_drained() && !self.link.keys.waits(Waiter::Requester)
    }

    /// In SQD: has the last request that was begun been done?
    fn tell_if_drained(&mut self) {
        if self.link.tell_drained && self.link.state == State::SendQueueDrain && self.is_drained() {
            self.link.tell_drained = false;
            self.link.events.add(event::SQ_DRAINED);
        }
    }

    /// It belongs to an endpoint now, which makes losses good in this way.
    pub(crate) fn set_recovery(&mut self, recovery: RecoveryConfig) {
        self.link.recovery = recovery;
    }

    /// The shared queue that it takes from, if it does, is here.
    pub(crate) fn check_srq(&self, srqs: &Srqs) -> Result<(), Reject> {
        match self.link.srq {
            Some(srq) if srqs.get(srq.srqn).is_none() || srq.srqn.endpoint() != self.qpn().endpoint() => {
                Err(Reject::NoSuchSrq(srq.srqn))
            }
            _ => Ok(()),
        }
    }

    /// What it has taken from a shared queue and not used goes back there.
    pub(crate) fn return_receive(&mut self, srqs: &mut Srqs) {
        if let Some(srq) = self.link.srq {
            srqs.put_back(srq.srqn, &mut self.recv_queue);
        }
    }

    /// The next hop changed.
    pub(crate) fn set_path(&mut self, path: PathState) {
        self.link.path = path;
    }

    /// A packet for this queue pair whose ICRC holds. Its source is checked before anything changes.
    pub(crate) fn on_packet<A: App>(&mut self, packet: &Packet<'_>, turn: &mut Turn<'_, A>) -> Disposition {
        let outcome = self.try_packet(packet, turn);
        self.tell_if_drained();
        match outcome {
            Ok(()) => {
                self.link.note_established();
                self.link.counters.count(QpCount::ReceivedPackets);
                self.link.counters.add(QpCount::ReceivedBytes, packet.payload_len() as u64);
                Disposition::Accepted
            }
            Err(reason) => Disposition::Dropped(reason),
        }
    }

    fn try_packet<A: App>(&mut self, packet: &Packet<'_>, turn: &mut Turn<'_, A>) -> Result<(), DropReason> {
        let is_answer = packet.info.operation.is_response();
        let state = self.link.state;
        if !(if is_answer { state.sends() } else { state.receives() }) {
            return Err(DropReason::WrongState);
        }
        self.roles.on_packet(packet, &mut self.link, &mut self.send_queue, &mut self.recv_queue, turn)
    }

    /// Checks that hold for any packet and need no ICRC: service and addresses. A forged packet must know them, and changes
    /// nothing if it does not.
    pub(crate) fn check_origin(&self, packet: &Packet<'_>) -> Result<(), DropReason> {
        if packet.info.service != self.link.config.service.wire() {
            return Err(DropReason::WrongService);
        }
        if !self.link.state.receives() {
            return Err(DropReason::WrongState);
        }
        if !packet.bth.pkey.may_speak_to(self.link.pkey) {
            return Err(DropReason::BadPkey);
        }
        if self.link.config.service == ServiceType::Ud {
            // From anybody; what was sent to a group has its number for queue pairs, too.
            let to_group = packet.bth.dest_qpn == Qpn::MULTICAST;
            return if is_group(&packet.destination) == to_group { Ok(()) } else { Err(DropReason::WrongAddress) };
        }
        let to_us = match &self.link.path {
            PathState::Ready(path) => packet.destination == *path.source() && packet.roce.is_same_version(path.roce()),
            PathState::Resolving | PathState::Unreachable => true,
        };
        if packet.source != self.link.attributes.dgid || !to_us {
            return Err(DropReason::WrongAddress);
        }
        Ok(())
    }

    /// Its timer ran out, or was looked at early.
    pub(crate) fn on_timeout<A: App>(&mut self, turn: &mut Turn<'_, A>) {
        if self.link.state.receives() {
            self.roles.on_timeout(&mut self.link, &mut self.send_queue, turn);
        }
    }

    /// Its oldest send waits for an address handle's next hop.
    pub(crate) const fn waits_for_path(&self) -> bool {
        matches!(&self.roles, Roles::Datagram(datagram) if datagram.waits_for_path())
    }

    /// When [`Self::on_timeout`] wants to be called.
    pub(crate) fn deadline(&self) -> Nanos {
        if self.link.state.receives() { self.roles.deadline(&self.link) } else { Nanos::NEVER }
    }

    /// Sends one frame, or flushes a burst of work in states ERR and SQE.
    pub(crate) fn transmit<A: App, W: Wire>(&mut self, turn: &mut Turn<'_, A>, wire: &mut W) -> Visit {
        let visit = match self.link.state {
            // The flush does not wait for the wire.
            State::Error => match self.flush(turn) {
                Visit::Idle => self.roles.transmit_last_words(&mut self.link, turn, wire),
                visit => visit,
            },
            State::SendQueueError => self.flush_sends(turn),
            _ => {
                let visit = self.roles.transmit(&mut self.link, &mut self.send_queue, turn, wire);
                // One that has failed just now did something: what is behind it is flushed by the next visit.
                if self.link.state == State::Error && visit == Visit::Idle { Visit::Progress } else { visit }
            }
        };
        self.tell_if_drained();
        visit
    }

    /// There is a change of keys that it waits for and nobody was told of.
    pub(crate) const fn has_key_wish(&self) -> bool {
        self.link.keys.has_wish()
    }

    /// A change of keys that it waits for and nobody was told of; it goes under `ticket`.
    pub(crate) fn take_key_wish(&mut self, ticket: u64) -> Option<KeyWish> {
        self.link.keys.take_wish(ticket)
    }

    /// The change under `ticket` was made in every table, or cannot be made.
    pub(crate) fn finish_key_change<A: App>(&mut self, ticket: u64, done: bool, turn: &mut Turn<'_, A>) {
        let Some(waiter) = self.link.keys.finish(ticket) else { return };
        // Nobody waits for it in a queue pair that has failed meanwhile: its work is flushed.
        if self.link.state.receives() {
            let (send, recv) = (&mut self.send_queue, &mut self.recv_queue);
            self.roles.on_key_change(waiter, done, &mut self.link, send, recv, turn);
        }
        self.tell_if_drained();
    }

    /// There is an event that nobody was told of yet.
    pub(crate) const fn has_event(&self) -> bool {
        !self.link.events.is_empty()
    }

    /// An event that nobody was told of yet.
    pub(crate) fn take_event(&mut self) -> Option<QpEvent> {
        self.link.events.take(&self.link.config)
    }

    fn flush<A: App>(&mut self, turn: &mut Turn<'_, A>) -> Visit {
        for _ in 0..FLUSH_BURST {
            if let Some(entry) = self.send_queue.pop() {
                self.link.complete_send(&entry, Status::WorkRequestFlushed, turn);
            } else if let Some(wr_id) = self.recv_queue.pop() {
                self.link.complete_recv(&Received::failed(wr_id, Status::WorkRequestFlushed), turn);
            } else {
                self.link.tell_last_wqe();
                return Visit::Idle;
            }
        }
        Visit::Progress
    }

    fn flush_sends<A: App>(&mut self, turn: &mut Turn<'_, A>) -> Visit {
        for _ in 0..FLUSH_BURST {
            // One whose completion found no room has ended the queue pair: the receives are flushed too.
            if self.link.state != State::SendQueueError {
                return Visit::Progress;
            }
            let Some(entry) = self.send_queue.pop() else { return Visit::Idle };
            self.link.complete_send(&entry, Status::WorkRequestFlushed, turn);
        }
        Visit::Progress
    }

    fn reset(&mut self) {
        self.send_queue.clear();
        self.recv_queue.clear();
        self.roles.reset(self.link.config.window_packets);
        self.link.attributes = QpAttributes::default();
        self.link.path = PathState::Resolving;
        self.link.events = Events::default();
        (self.link.tell_drained, self.link.established, self.link.last_wqe_told) = (false, false, false);
        self.link.keys.clear();
    }
}

/// The GID is that of a multicast group.
const fn is_group(gid: &[u8; 16]) -> bool {
    match gid {
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, first, ..] => *first >> 4 == 0xe,
        [first, ..] => *first == 0xff,
    }
}

/// A receive work request that ends.
#[derive(Clone, Copy, Debug)]
struct Received {
    wr_id: u64,
    status: Status,
    op: CompletionOp,
    bytes: u32,
    imm: Option<[u8; 4]>,
    solicited: bool,
    /// A key of ours that opens nothing any more.
    invalidated: Option<MrKey>,
    /// Of a datagram: who sent it, and whether by IPv4. A GRH stands in front of it then.
    source: Option<(Qpn, bool)>,
}

impl Received {
    const fn failed(wr_id: u64, status: Status) -> Self {
        let op = CompletionOp::Recv;
        Self { wr_id, status, op, bytes: 0, imm: None, solicited: false, invalidated: None, source: None }
    }
}

impl Link {
    fn pd(&self) -> Pdn {
        self.config.pd
    }

    /// What a peer may touch.
    fn check_peer<'t>(
        &self,
        mrs: &'t MrTable,
        key: MrKey,
        right: Right,
        va: u64,
        length: usize,
    ) -> Result<MemSpan<'t>, Denied> {
        mrs.check_peer(self.config.pd, self.config.qpn, key, right, va, length)
    }

    /// May a peer do that to whatever the key opens?
    fn check_peer_key(&self, mrs: &MrTable, key: MrKey, right: Right) -> Result<(), Denied> {
        mrs.check_peer_key(self.config.pd, self.config.qpn, key, right)
    }

    /// Whose memory regions receive work may name.
    fn recv_pd(&self) -> Pdn {
        self.srq.map_or(self.config.pd, |srq| srq.pd)
    }

    /// A message begins that takes receive work, or one goes on that has it: with a shared queue, the next entry there becomes ours.
    fn provide_receive<A: App>(&self, queue: &mut RecvQueue, turn: &mut Turn<'_, A>) {
        if let Some(srq) = &self.srq
            && queue.is_empty()
        {
            turn.srqs.take(srq.srqn, queue);
        }
    }

    /// The buffers that [`Self::provide_receive`] would have in front.
    fn next_receive<'q>(&self, queue: &'q RecvQueue, srqs: &'q Srqs) -> Option<&'q [Sge]> {
        queue.front().or_else(|| srqs.front(self.srq.as_ref()?.srqn))
    }

    /// IBTA v1 11.6.3.1: a queue pair that has failed takes no more from its shared queue, and what it had is flushed.
    fn tell_last_wqe(&mut self) {
        if self.srq.is_some() && !self.last_wqe_told {
            self.last_wqe_told = true;
            self.events.add(event::QP_LAST_WQE);
        }
    }

    fn mtu(&self) -> usize {
        self.attributes.path_mtu_bytes as usize
    }

    fn dest_qpn(&self) -> Qpn {
        Qpn::from_wire(self.attributes.dest_qpn)
    }

    /// The header of a packet to the peer.
    fn bth(&self, opcode: Opcode, psn: Psn) -> Bth {
        Bth { pkey: self.pkey, ..Bth::new(opcode, self.dest_qpn(), psn) }
    }

    /// The queue pair has failed; its work is flushed from now on.
    fn fail(&mut self) {
        self.state = State::Error;
    }

    /// The queue pair has failed and no completion says so.
    fn fail_with_event(&mut self, kind: u32) {
        self.fail();
        self.events.add(kind);
    }

    /// The first request that comes while we only receive says that the peer is ready to send (IBTA v1 11.6.3.1).
    fn note_established(&mut self) {
        if !self.established && self.state == State::ReadyToReceive {
            self.established = true;
            self.events.add(event::COMMUNICATION_ESTABLISHED);
        }
    }

    /// The oldest send fails, and with it the send queue alone: what an unreliable service promises its receiver is not touched
    /// (IBTA v1 10.3.1, state SQE).
    fn fail_oldest_send<A: App>(&mut self, status: Status, queue: &mut SendQueue, turn: &mut Turn<'_, A>) {
        self.state = State::SendQueueError;
        if let Some(entry) = queue.pop() {
            self.complete_send(&entry, status, turn);
        }
    }

    /// The oldest receive names memory that it may not, or that is gone: the queue pair ends.
    fn fail_recv<A: App>(&mut self, queue: &mut RecvQueue, turn: &mut Turn<'_, A>) {
        self.counters.count(QpCount::LocalProtection);
        self.fail_with_event(event::QP_FATAL);
        if let Some(wr_id) = queue.pop() {
            self.complete_recv(&Received::failed(wr_id, Status::LocalProtection), turn);
        }
    }

    /// The next hop's address is not known yet: nothing can leave.
    const fn is_resolving(&self) -> bool {
        matches!(self.path, PathState::Resolving)
    }

    /// The next hop does not answer.
    const fn is_unreachable(&self) -> bool {
        matches!(self.path, PathState::Unreachable)
    }

    /// Completes a send; one that was not asked to be signaled is silent on success.
    fn complete_send<A: App>(&mut self, entry: &SendEntry, status: Status, turn: &mut Turn<'_, A>) {
        if status == Status::Success {
            self.counters.count(QpCount::CompletedRequests);
            if !entry.is_signaled() && !self.config.signal_all {
                return;
            }
        }
        let byte_len = if entry.wants_answer() && status == Status::Success { entry.length as u32 } else { 0 };
        let opcode = entry.op.completion() as u8;
        let cqe = Cqe { opcode, byte_len, ..self.cqe(entry.wr_id, status, turn.now) };
        self.complete(self.config.send_cq, &cqe, turn);
    }

    fn complete_recv<A: App>(&mut self, received: &Received, turn: &mut Turn<'_, A>) {
        use roced_shared::abi::cqe::cqe_flags::{GRH, IMM, INVALIDATED, IPV4, SOLICITED};
        let flags = if received.imm.is_some() { IMM } else { 0 }
            | if received.solicited { SOLICITED } else { 0 }
            | if received.invalidated.is_some() { INVALIDATED } else { 0 }
            | received.source.map_or(0, |(_, ipv4)| if ipv4 { GRH | IPV4 } else { GRH });
        let key = received.invalidated.map(|key| key.0.to_ne_bytes());
        let src_qpn = received.source.map_or(self.attributes.dest_qpn, |(qpn, _)| qpn.get());
        let cqe = Cqe {
            opcode: received.op as u8,
            byte_len: received.bytes,
            imm: received.imm.or(key).unwrap_or_default(),
            flags,
            src_qpn,
            ..self.cqe(received.wr_id, received.status, turn.now)
        };
        self.complete(self.config.recv_cq, &cqe, turn);
    }

    fn cqe(&self, wr_id: u64, status: Status, now: Nanos) -> Cqe {
        Cqe {
            wr_id,
            qpn: self.config.qpn.get(),
            status: status as u8,
            src_qpn: self.attributes.dest_qpn,
            timestamp_ns: now.0,
            ..Cqe::default()
        }
    }

    fn complete<A: App>(&mut self, cqn: Cqn, cqe: &Cqe, turn: &mut Turn<'_, A>) {
        if turn.app.complete(cqn, cqe).is_err() {
            // A completion is lost, so the client no longer knows where its buffers are: the queue pair ends.
            self.counters.count(QpCount::CqOverrun);
            if self.state != State::Error {
                self.fail_with_event(event::QP_FATAL);
            }
            self.events.add_cq_error(cqn == self.config.send_cq);
        }
    }

    /// Sends one frame on the path. One whose next hop cannot be reached is counted and as good as sent.
    fn emit<W: Wire>(
        &mut self,
        wire: &mut W,
        headers: &Headers,
        payload_bytes: usize,
        payload: impl FnMut(&mut [u8]) -> Result<(), Abort>,
    ) -> Result<(), EmitError> {
        match &self.path {
            PathState::Ready(path) => {
                let bytes = path.frame_bytes(headers, payload_bytes);
                wire.emit(path.via(), bytes, |frame| path.fill(frame, headers, payload_bytes, payload))?;
                self.counters.add(QpCount::SentBytes, payload_bytes as u64);
            }
            PathState::Unreachable | PathState::Resolving => self.counters.count(QpCount::Unreachable),
        }
        Ok(())
    }

    /// Frames get to the next hop, as far as is known.
    const fn is_reachable(&self) -> bool {
        matches!(self.path, PathState::Ready(_))
    }

    /// Bytes of a frame around a full packet, for pacing.
    fn overhead(&self) -> usize {
        match &self.path {
            PathState::Ready(path) => path.overhead_bytes(),
            PathState::Unreachable | PathState::Resolving => 0,
        }
    }
}
