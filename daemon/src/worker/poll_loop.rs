//! A worker and its poll loop. Each step of an iteration is bounded, and no iteration allocates.
//!
//! ```text
//!   doorbells ─► work from rings ─► frames from NIC queues ─► frames from workers
//!       ─► datagrams of the control thread ─► timers ─► frames out ─► borrowed payload
//!       ─► wake workers ─► completions to clients ─► kick NIC queues
//!       ─► events and management datagrams to the control thread ─► commands
//! ```
//!
//! Commands that wait when an iteration begins are carried out at its end, after the work that was
//! posted before them: a program may post datagrams and destroy their queue pair at once, for an
//! adapter sends them. If an iteration is not enough for that work, commands before those that take
//! away a means of sending send some more (`posted.rs`).
//!
//! Completions are published before the system call that sends, which takes longer than a client
//! needs to reply. If only acknowledgments are to be sent, the call may wait for the replies
//! ([`DelayedKick`]).
//!
//! The control thread gets a received datagram after that: a program that hears by it that a peer
//! disconnects finds the completions of all frames before it, and may destroy its queue pair.
//!
//! A frame belongs to the endpoint that its destination QPN names. One that arrived by the NIC is
//! for an endpoint of that NIC's device, on this worker or, forwarded, on another; any other number
//! is dropped and counted by the endpoint of the queue it arrived on. One for queue pair 1 stays on
//! the worker that received it.

use std::{
    io,
    os::fd::BorrowedFd,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use nix::{errno::Errno, time::ClockId};
use roced_abi::doorbell::WorkerState;
use roced_memory::{access_log, clock::nanos_of, mapping::Mapping};
use roced_transport::{
    clock::Nanos,
    endpoint::{Endpoint, Transmitted, TransmittedOf},
    io::{FrameOrigin, Segments},
    wire::frame::{dest_qpn, destination},
};
use roced_types::{EndpointId, Qpn, SessionId, WorkerId};

use super::{
    catch_up::CatchUp,
    client_fault::ClientFault,
    command::{Inbox, QueueInbox},
    delayed_kick::DelayedKick,
    endpoints::{EndpointLocation, Endpoints},
    events::{EventSender, WorkerEvent},
    handoff::{BufferKind, Handoff, PacketBuffer},
    idle::{Idle, Policy, Rest, SOCKETS_POLLED, WorkerSleeper},
    metrics::WorkerCounters,
    nic::Nic,
    qp_table::{QpTable, entry_of},
    received_mads::MadSender,
    route::{FrameRoute, route},
    sent_mads::{MadOutlet, OutgoingMads},
    tx_dispatch::TxDispatch,
    wake::Waker,
    worker_memory::WorkerMemory,
};

/// Commands per poll iteration. The control thread waits for each answer, so more than one is rare.
const COMMANDS: usize = 8;
/// Work requests per poll iteration, of all clients together: a few times a batch of
/// [`FRAMES_OUT`], so that posting is never the bottleneck.
const WORK_REQUESTS: u32 = 256;
/// Queue pairs looked at per poll iteration.
const VISITS: u32 = 64;
/// Frames taken from one NIC queue per poll iteration: two of the kernel's default NAPI batches
/// would be 128, one is enough to amortize a poll iteration.
const FRAMES_IN: usize = 64;
/// Frames taken from other workers, or from this one by hand-over, per poll iteration.
const PACKET_BUFFERS_IN: usize = 64;
/// Timers of one endpoint fired per poll iteration.
const TIMERS: usize = 64;
/// Frames of one endpoint sent per poll iteration: half of the capacity of one system call (set by
/// `xdp::socket`), so that an iteration stays short.
pub(super) const FRAMES_OUT: usize = 128;
/// Management datagrams of the control thread in a poll iteration: a guess, those of some endpoints.
const MADS_OUT: usize = 16;
/// The longest sleep: the heartbeat for the watchdog counts at least that often.
const SLEEP_MAX: Nanos = Nanos::from_millis(500);
/// The longest with frames to send and no room: nothing wakes a worker when room comes.
const SLEEP_FULL: Nanos = Nanos::from_micros(500);
/// The longest while a NIC is about to send them, beside threads that compute.
const SLEEP_SENDING: Nanos = Nanos::from_micros(100);

/// One endpoint with the NIC queues of its device that this worker owns.
#[derive(Debug)]
pub struct WorkerEndpoint<N> {
    /// Its place: device, worker and numbers.
    pub place: EndpointLocation,
    /// The transport.
    pub endpoint: Endpoint,
    /// Queues of the NIC; those that send come first.
    pub queues: Vec<N>,
    /// Queue pairs it can hold.
    pub max_qps: u32,
}

impl<N> WorkerEndpoint<N> {
    /// All frames of a poll iteration may be management datagrams: those of one queue take no room
    /// of another's.
    pub(super) fn make_room_for_mads(&mut self) {
        self.endpoint.set_management_room(FRAMES_IN * self.queues.len().max(1));
    }
}

/// Parts of a worker.
#[derive(Debug)]
pub struct WorkerParts<N> {
    /// Its number.
    pub id: WorkerId,
    /// How it waits.
    pub policy: Policy,
    /// Its endpoints.
    pub worker_endpoints: Vec<WorkerEndpoint<N>>,
    /// Locations of all endpoints.
    pub endpoints: Arc<Endpoints>,
    /// Commands.
    pub inbox: Inbox,
    /// NIC queues that come and go.
    pub queue_inbox: QueueInbox<N>,
    /// Frames from and to other workers.
    pub handoff: Handoff,
    /// Events for the control thread.
    pub events: EventSender,
    /// Received management datagrams for the control thread.
    pub mads: MadSender,
    /// Management datagrams of the control thread, to be sent.
    pub outgoing: Arc<OutgoingMads>,
    /// Wakes it.
    pub waker: Arc<Waker>,
    /// Its sleep state, for clients.
    pub state: WorkerState<Arc<Mapping>>,
    /// Poll iterations, counted where the control thread can see them.
    pub heartbeat: Arc<AtomicU64>,
    /// Sessions it can serve.
    pub max_sessions: u32,
    /// Memory objects it can hold.
    pub max_objects: u32,
    /// Completion queues it can complete into.
    pub max_cq_rings: u32,
}

/// A worker. Everything it will ever need is made here.
#[derive(Debug)]
pub struct Worker<N> {
    pub(super) id: WorkerId,
    pub(super) worker_endpoints: Vec<WorkerEndpoint<N>>,
    /// The first entry of each endpoint slot's queue pairs.
    pub(super) first_entries: Vec<u32>,
    /// The first number of each endpoint slot's shared receive queues, likewise.
    pub(super) first_srqs: Vec<u32>,
    pub(super) endpoints: Arc<Endpoints>,
    pub(super) qp_table: QpTable,
    pub(super) worker_memory: WorkerMemory,
    pub(super) handoff: Handoff,
    pub(super) events: EventSender,
    pub(super) sleeper: WorkerSleeper<Arc<Mapping>>,
    pub(super) counters: WorkerCounters,
    pub(super) stopping: bool,
    /// A frame that pauses the other end of a link does not wait for others.
    must_flush: bool,
    pub(super) outgoing: MadOutlet,
    pub(super) mads: MadSender,
    inbox: Option<Inbox>,
    queue_inbox: Option<QueueInbox<N>>,
    idle: Idle,
    delayed_kick: DelayedKick,
    catch_up: CatchUp,
    heartbeat: Arc<AtomicU64>,
    /// A fault that the control thread was not told of yet, for lack of room.
    pub(super) fault: Option<WorkerEvent>,
    /// A change of keys, as above.
    pub(super) key_change: Option<WorkerEvent>,
}

/// Reads CLOCK_MONOTONIC.
pub fn monotonic_now() -> Nanos {
    Nanos(nanos_of(ClockId::CLOCK_MONOTONIC))
}

impl<N: Nic> Worker<N> {
    /// A worker that has not polled yet.
    ///
    /// # Errors
    /// The kernel's, when it gives no epoll set or refuses a socket in it.
    pub fn new(mut parts: WorkerParts<N>) -> io::Result<Self> {
        let sleeper = WorkerSleeper::new(parts.waker, parts.state)?;
        let (mut first_entries, mut first_srqs) = (Vec::new(), Vec::new());
        let (mut qps, mut srqs) = (0, 0);
        for worker_endpoint in &parts.worker_endpoints {
            first_entries.push(qps);
            qps += worker_endpoint.max_qps;
            first_srqs.push(srqs);
            srqs += worker_endpoint.endpoint.max_srqs();
        }
        let outgoing = MadOutlet::new(parts.outgoing, parts.worker_endpoints.len());
        parts.worker_endpoints.iter_mut().for_each(WorkerEndpoint::make_room_for_mads);
        let worker = Self {
            id: parts.id,
            worker_endpoints: parts.worker_endpoints,
            first_entries,
            first_srqs,
            endpoints: parts.endpoints,
            qp_table: QpTable::new(parts.max_sessions, qps, srqs),
            worker_memory: WorkerMemory::new(parts.id, parts.max_objects, parts.max_cq_rings),
            handoff: parts.handoff,
            events: parts.events,
            sleeper,
            counters: WorkerCounters::default(),
            stopping: false,
            must_flush: false,
            mads: parts.mads,
            outgoing,
            inbox: Some(parts.inbox),
            queue_inbox: Some(parts.queue_inbox),
            idle: Idle::new(parts.policy, monotonic_now()),
            delayed_kick: DelayedKick::new(),
            catch_up: CatchUp::new(monotonic_now()),
            heartbeat: parts.heartbeat,
            fault: None,
            key_change: None,
        };
        worker.watch_sockets()?;
        Ok(worker)
    }

    /// Adds the sockets beyond [`SOCKETS_POLLED`] to the sleeper's set.
    pub(super) fn watch_sockets(&self) -> Result<(), Errno> {
        self.sockets().skip(SOCKETS_POLLED).try_for_each(|socket| self.sleeper.add_socket(socket))
    }

    /// Removes them, those that are there.
    pub(super) fn unwatch_sockets(&self) {
        self.sockets().skip(SOCKETS_POLLED).for_each(|socket| self.sleeper.remove_socket(socket));
    }

    fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.worker_endpoints.iter().flat_map(|worker_endpoint| &worker_endpoint.queues).map(Nic::socket)
    }

    /// Its number.
    pub fn id(&self) -> WorkerId {
        self.id
    }

    /// Polls until the control thread says stop.
    pub fn run(&mut self) {
        access_log::i_am(self.id);
        while !self.stopping {
            let now = monotonic_now();
            let did_something = self.poll(now);
            match self.idle.after_poll(now, did_something) {
                Rest::Again if !self.delayed_kick.is_waiting() => std::hint::spin_loop(),
                Rest::Again | Rest::Yield => std::thread::yield_now(),
                Rest::Block => self.sleep(),
            }
        }
    }

    /// One poll iteration. Says whether there was anything to do.
    pub fn poll(&mut self, now: Nanos) -> bool {
        self.counters.polls += 1;
        self.heartbeat.store(self.counters.polls, Ordering::Relaxed);
        access_log::on_poll(now);
        let waited = self.delayed_kick.on_poll(now);
        self.catch_up.on_poll(now);
        self.take_pauses(now);
        let commands = self.waiting_commands();
        let mut done = self.set_nic_queues();
        done += self.take_doorbells();
        done += self.take_work();
        done += self.take_frames(now);
        done += self.take_packet_buffers(now);
        done += self.take_outgoing_mads(now);
        if !self.catch_up.holds_timers() {
            for worker_endpoint in &mut self.worker_endpoints {
                done += worker_endpoint.endpoint.on_timeout(now, TIMERS, &mut self.worker_memory);
            }
        }
        self.worker_memory.settle();
        let sent = self.emit_frames(now);
        self.take_borrowed(now);
        done += sent.visits;
        self.handoff.wake_receivers();
        let publications = self.worker_memory.publish();
        self.counters.publications += publications as u64;
        let may_wait = !std::mem::take(&mut self.must_flush)
            && !waited
            && commands == 0
            && publications > 0
            && sent.is_only_acks()
            && self.idle.offers_the_core();
        if may_wait && self.delayed_kick.wait(now) {
            self.counters.acks_waited += 1;
        } else {
            self.kick();
        }
        done += publications + self.tell_events() + self.pass_mads();
        done += self.carry_out_commands(commands);
        done > 0
    }

    /// Sends frames and nothing else, and returns their number.
    pub(super) fn send_more(&mut self) -> usize {
        let now = monotonic_now();
        self.take_pauses(now);
        let sent = self.emit_frames(now).visits;
        self.finish_sends(now);
        sent
    }

    /// Brings frames that were sent on their way.
    pub(super) fn finish_sends(&mut self, now: Nanos) {
        self.take_borrowed(now);
        self.handoff.wake_receivers();
        self.kick();
    }

    fn waiting_commands(&self) -> usize {
        self.inbox.as_ref().expect("in its place between commands").waiting(COMMANDS)
    }

    fn carry_out_commands(&mut self, commands: usize) -> usize {
        if commands == 0 {
            return 0;
        }
        // The inbox is taken out so that a command may change everything else.
        let mut inbox = self.inbox.take().expect("returned below");
        let done = inbox.drain(commands, |command| self.carry_out(command));
        self.inbox = Some(inbox);
        self.counters.commands += done as u64;
        done
    }

    fn set_nic_queues(&mut self) -> usize {
        if self.queue_inbox.as_ref().expect("in its place between commands").is_empty() {
            return 0;
        }
        let mut queue_inbox = self.queue_inbox.take().expect("returned below");
        let done = queue_inbox.drain(COMMANDS, |queues| self.set_queues(queues));
        self.queue_inbox = Some(queue_inbox);
        self.counters.commands += done as u64;
        done
    }

    pub(super) fn take_doorbells(&mut self) -> usize {
        let rung = self.qp_table.drain_doorbells(!self.has_fault());
        let mut doorbells = rung.doorbells;
        self.counters.doorbells += doorbells as u64;
        if let Some((session, fault)) = rung.fault {
            self.note_fault(session, fault);
        }
        if self.worker_endpoints.iter().any(|worker_endpoint| worker_endpoint.endpoint.has_unblocked()) {
            doorbells += self.take_unblocked();
        }
        doorbells
    }

    /// Has the queues visited that have room for work again.
    fn take_unblocked(&mut self) -> usize {
        let mut taken = 0;
        for (worker_endpoint, first_srq) in self.worker_endpoints.iter_mut().zip(&self.first_srqs) {
            while let Some(srqn) = worker_endpoint.endpoint.take_unblocked_srq() {
                self.qp_table.want_srq_visit(first_srq + srqn.index());
                taken += 1;
            }
        }
        for (worker_endpoint, first_entry) in self.worker_endpoints.iter_mut().zip(&self.first_entries) {
            // At most one entry for each queue pair.
            while let Some(qpn) = worker_endpoint.endpoint.take_unblocked() {
                if let Some(entry) = entry_of(*first_entry, &worker_endpoint.endpoint, qpn) {
                    self.qp_table.want_visit(entry);
                }
                taken += 1;
            }
        }
        taken
    }

    pub(super) fn take_work(&mut self) -> usize {
        let mut taken = 0;
        let mut visits = 0;
        while taken < WORK_REQUESTS && visits < VISITS && self.fault.is_none() {
            let Some(entry) = self.qp_table.next_visit() else { break };
            visits += 1;
            let served = match self.qp_table.srq_in(entry) {
                None => {
                    let endpoint_slot = self.first_entries.partition_point(|first| *first <= entry) - 1;
                    self.qp_table.serve(entry, &mut self.worker_endpoints[endpoint_slot].endpoint)
                }
                Some(index) => {
                    let endpoint_slot = self.first_srqs.partition_point(|first| *first <= index) - 1;
                    self.qp_table.serve_srq(index, &mut self.worker_endpoints[endpoint_slot].endpoint)
                }
            };
            taken += served.taken;
            self.fault = served.fault.map(|(session, fault)| WorkerEvent::Fault { session, fault });
        }
        self.counters.work_requests += u64::from(taken);
        taken as usize
    }

    /// A fault waits to be told: no ring is looked at before that, so that a second does not take
    /// its place.
    pub(super) const fn has_fault(&self) -> bool {
        self.fault.is_some()
    }

    /// A session violated the ABI; its work is no longer taken.
    pub(super) fn note_fault(&mut self, session: SessionId, fault: ClientFault) {
        self.fault = Some(WorkerEvent::Fault { session, fault });
    }

    fn take_frames(&mut self, now: Nanos) -> usize {
        let mut frames = 0;
        for WorkerEndpoint { place, endpoint, queues, .. } in &mut self.worker_endpoints {
            for queue in queues {
                self.must_flush |= queue.pause_neighbor(now);
                let taken = queue.rx_burst(FRAMES_IN, |frame| {
                    match route(frame, place, &self.endpoints) {
                        FrameRoute::Forward(owner) => {
                            // Counted if there is no buffer; the peer retransmits.
                            let _dropped = self.handoff.forward(owner.0 as usize, frame);
                            return;
                        }
                        FrameRoute::Group => {
                            share((FrameOrigin::Wire, frame), place, endpoint, &self.endpoints, &mut self.handoff);
                        }
                        FrameRoute::Local => {}
                    }
                    endpoint.on_frame(now, frame, &mut self.worker_memory);
                });
                self.catch_up.on_taken(taken, FRAMES_IN);
                frames += taken;
            }
        }
        frames
    }

    fn take_packet_buffers(&mut self, now: Nanos) -> usize {
        let mut taken = 0;
        while taken < PACKET_BUFFERS_IN {
            let Some(packet_buffer) = self.handoff.take_in() else { break };
            taken += 1;
            self.take_packet_buffer(now, packet_buffer);
        }
        self.catch_up.on_taken(taken, PACKET_BUFFERS_IN);
        taken
    }

    /// Borrowed payload is copied before anything else in this iteration: after a completion, or
    /// the removal of a key, no reader of borrowed memory remains.
    fn take_borrowed(&mut self, now: Nanos) {
        while let Some(packet_buffer) = self.handoff.take_borrowed() {
            self.take_packet_buffer(now, packet_buffer);
        }
    }

    fn take_packet_buffer(&mut self, now: Nanos, packet_buffer: PacketBuffer) {
        let frame: &[&[u8]] = &[packet_buffer.frame()];
        let endpoint_slot = match packet_buffer.group_of() {
            Some(device) => {
                self.worker_endpoints.iter().position(|worker_endpoint| worker_endpoint.place.device == device)
            }
            // The sender looked up the owner by the same number.
            None => dest_qpn(frame).and_then(|qpn| self.slot_of_qpn(qpn)),
        };
        if let Some(endpoint_slot) = endpoint_slot {
            let WorkerEndpoint { place, endpoint, .. } = &mut self.worker_endpoints[endpoint_slot];
            // A packet sent to a group by a queue pair of this worker goes to all members; possibly
            // none is here.
            let is_own = packet_buffer.group_of().is_some() && packet_buffer.kind() == BufferKind::HandedOver;
            if !packet_buffer.borrowed().is_empty() {
                endpoint.on_borrowed_frame(
                    now,
                    packet_buffer.frame(),
                    packet_buffer.borrowed(),
                    &mut self.worker_memory,
                );
            } else if !is_own || share((FrameOrigin::Local, frame), place, endpoint, &self.endpoints, &mut self.handoff)
            {
                endpoint.on_frame_from(packet_buffer.origin(), now, frame, &mut self.worker_memory);
            }
        }
        self.handoff.give_back(packet_buffer);
    }

    /// Takes management datagrams of the control thread, each to the endpoint of its device.
    fn take_outgoing_mads(&mut self, now: Nanos) -> usize {
        for taken in 0..MADS_OUT {
            let Some(mad) = self.outgoing.pop() else { return taken };
            let mut endpoints = self.worker_endpoints.iter_mut().enumerate();
            let found = endpoints.find(|(_, worker_endpoint)| worker_endpoint.place.device == mad.device);
            match found.map(|(at, found)| (at, found.endpoint.send_management(mad.path, &mad.bytes))) {
                Some((at, Ok(()))) => {
                    self.outgoing.on_room(at);
                    self.counters.mads_sent += 1;
                }
                Some((at, Err(_))) if self.outgoing.hold(at, mad, now) => return taken,
                Some((_, Err(_))) | None => self.counters.mads_send_dropped += 1,
            }
        }
        MADS_OUT
    }

    /// Before the endpoints know of the time: a storm of pauses is over when none has come by now.
    fn take_pauses(&mut self, now: Nanos) {
        for WorkerEndpoint { endpoint, queues, .. } in &mut self.worker_endpoints {
            for until in queues.iter_mut().filter_map(|queue| queue.take_pauses(now)) {
                endpoint.set_pauses(&until);
            }
        }
    }

    /// Sends frames to the NIC queues and other workers.
    fn emit_frames(&mut self, now: Nanos) -> Transmitted {
        let mut sent = Transmitted::default();
        for at in 0..self.worker_endpoints.len() {
            sent += self.emit(at, |endpoint, memory, wire| endpoint.poll_transmit(now, FRAMES_OUT, memory, wire));
        }
        sent
    }

    /// Sends at most `budget` frames of one queue pair of an endpoint.
    pub(super) fn transmit_of(&mut self, now: Nanos, at: usize, qpn: Qpn, budget: usize) -> TransmittedOf {
        self.emit(at, |endpoint, memory, wire| endpoint.transmit_of(now, qpn, budget, memory, wire))
    }

    fn emit<T>(
        &mut self,
        at: usize,
        transmit: impl FnOnce(&mut Endpoint, &mut WorkerMemory, &mut TxDispatch<'_, N>) -> T,
    ) -> T {
        let WorkerEndpoint { place, endpoint, queues, .. } = &mut self.worker_endpoints[at];
        let sending = queues.iter().take_while(|queue| queue.can_transmit()).count();
        let mut tx_dispatch = TxDispatch {
            device: place.device,
            queues: &mut queues[..sending],
            handoff: &mut self.handoff,
            endpoints: &self.endpoints,
        };
        transmit(endpoint, &mut self.worker_memory, &mut tx_dispatch)
    }

    fn kick(&mut self) {
        self.worker_endpoints.iter_mut().flat_map(|worker_endpoint| &mut worker_endpoint.queues).for_each(Nic::flush);
    }

    fn sleep(&mut self) {
        let mut frames_there = false;
        let mut wants_transmit = false;
        let mut deadline = Nanos::NEVER;
        for worker_endpoint in &mut self.worker_endpoints {
            for queue in &mut worker_endpoint.queues {
                frames_there |= queue.prepare_sleep();
            }
            wants_transmit |= worker_endpoint.endpoint.wants_transmit();
            deadline = deadline.min(worker_endpoint.endpoint.poll_timeout());
        }
        let limit =
            if wants_transmit || self.fault.is_some() || self.key_change.is_some() { SLEEP_FULL } else { SLEEP_MAX };
        // The clock is read again: the poll iteration may have been long, and a timer must not be
        // slept over.
        let now = monotonic_now();
        access_log::on_rest(now);
        let mut at_most = (deadline - now).min(limit);
        if at_most == Nanos(0) {
            return;
        }
        if frames_there {
            // There may be nothing to do but wait for a driver that is slow to take frames, or for
            // a thread that lets it. Frames to receive end the sleep at once.
            if self.idle.may_yield(now) {
                return std::thread::yield_now();
            }
            at_most = at_most.min(SLEEP_SENDING);
        }
        let inbox = self.inbox.as_ref().expect("in its place between poll iterations");
        let queue_inbox = self.queue_inbox.as_ref().expect("likewise");
        let has_work = || {
            !inbox.is_empty()
                || !queue_inbox.is_empty()
                || !self.outgoing.is_idle()
                || self.handoff.has_arrivals()
                || self.qp_table.any_doorbell()
                || self.qp_table.any_ready()
        };
        let has_work = || {
            let has_work = has_work();
            access_log::pause();
            has_work
        };
        let sockets = self.worker_endpoints.iter().flat_map(|worker_endpoint| &worker_endpoint.queues).map(Nic::socket);
        self.sleeper.sleep(at_most, sockets, has_work).expect("sockets and an epoll set of our own can be polled");
        self.counters.sleeps = self.sleeper.sleeps();
    }

    /// Slot of the endpoint that a queue pair number names.
    pub(super) fn slot_of_qpn(&self, qpn: Qpn) -> Option<usize> {
        // A few at most: one for each device.
        self.worker_endpoints.iter().position(|worker_endpoint| worker_endpoint.place.ids.contains(qpn.endpoint()))
    }

    /// Slot of an endpoint.
    pub(super) fn slot_of_endpoint(&self, endpoint: EndpointId) -> Option<usize> {
        // A few at most: one for each device.
        self.worker_endpoints.iter().position(|worker_endpoint| worker_endpoint.place.endpoint == endpoint)
    }
}

/// Gives a copy to every other worker with members of the frame's multicast group; returns true if
/// the group has members.
fn share(
    (origin, frame): (FrameOrigin, &Segments<'_>),
    place: &EndpointLocation,
    endpoint: &Endpoint,
    endpoints: &Endpoints,
    handoff: &mut Handoff,
) -> bool {
    let Some(group) = destination(frame) else { return false };
    // One bit for each worker; there are as many as endpoints at the most.
    let (mut served, mut has_members) = (1_u64 << place.worker.0, false);
    for owner in endpoint.members(&group).filter_map(|qpn| endpoints.of_qpn(qpn)) {
        has_members = true;
        if served >> owner.worker.0 & 1 == 0 {
            served |= 1 << owner.worker.0;
            // Counted when there is no room.
            let _dropped = handoff.forward_to_group(owner.worker.0 as usize, place.device, origin, frame);
        }
    }
    has_members
}
