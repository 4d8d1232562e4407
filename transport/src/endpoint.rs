//! An endpoint: the queue pairs of one worker on one device, with their memory regions and timers.
//!
//! ```text
//!   on_frame ──┐                                   ┌──► App (memory, completions)
//!   post_send ─┼─► queue pair ─► list of senders ──┤
//!   on_timeout ┘                    poll_transmit ─┴──► Wire (frames)
//! ```
//!
//! A call that gives a queue pair work puts it in the list of senders; [`Endpoint::poll_transmit`]
//! visits them in turn, a few frames each: accounts by the cost of their frames, then the clients
//! of an account, then the queue pairs of a client. Internally, queue pairs are numbered by slots
//! (`endpoint/slots.rs`): adding or removing one, and reading the counters, take the same time with
//! ten queue pairs as with a hundred thousand. All memory is allocated by [`Endpoint::new`], by the
//! creator of a [`Qp`], by its insertion, and by the caller of [`Endpoint::provide`]. Without the
//! last, [`Endpoint::modify_qp`] allocates the memory of answers to repeated requests.

mod final_answers;
mod frames;
mod groups;
mod keys;
mod management;
mod notifications;
mod reports;
mod resources;
mod schedule;
mod slots;
mod srqs;
mod time_wait;
mod transmission;

use alloc::{boxed::Box, sync::Arc};

use roced_types::{EndpointId, EndpointIds, QpAttributes, Qpn, attribute, state};

pub use self::transmission::{Transmitted, TransmittedOf};
use self::{
    final_answers::FinalAnswers, resources::Resources, schedule::Schedule, slots::QpSlots, time_wait::TimeWait,
    transmission::Metered,
};
use crate::{
    ah::AhEntry,
    clock::Nanos,
    congestion::{control::CongestionControl, dcqcn::DcqcnParameters, notification::Notifications},
    counters::{QpCounters, QpTotals},
    denied_sources::DeniedSources,
    io::{App, Wire},
    management::Management,
    multicast::Groups,
    out_of_order::OutOfOrderPool,
    own_addresses::OwnAddresses,
    partition::Partitions,
    qp::{PathState, Qp, ReplayMemory, Transmission},
    recovery::RecoveryConfig,
    reject::{DropCounters, DropReason, Reject},
    work::{RecvWork, SendWork},
};

/// Parts of an endpoint.
#[derive(Clone, Copy, Debug)]
pub struct EndpointConfig {
    /// Its number, in queue pair numbers as well ([`Endpoint::with_ids`]).
    pub id: EndpointId,
    /// Memory regions that it can hold.
    pub max_mrs: u32,
    /// Address handles that it can hold: numbers below this.
    pub max_ahs: u32,
    /// Shared receive queues that it can hold: indices below this.
    pub max_srqs: u32,
    /// Attachments of queue pairs of the whole device to multicast groups that it can hold.
    pub max_attachments: u32,
    /// Capacity in queue pairs, for any indices.
    pub max_qps: u32,
    /// Limit on packets in flight of all queue pairs together; the limit of each is
    /// [`crate::qp::QpConfig::window_packets`].
    pub total_window_packets: u32,
    /// Options of loss recovery.
    pub recovery: RecoveryConfig,
    /// Partitions of the device.
    pub partitions: Partitions,
}

/// The transport of one worker on one device.
///
/// One thread calls it; no call waits or reads a clock. `now` is in [`Nanos`] of one monotonic
/// clock, and never decreases. A `budget` is a number of frames or timers. Calls about a queue pair
/// that it does not have return [`Reject::NoSuchQp`], `None` or a room of 0. The
/// [front page](crate) has the order of calls, an iteration of a worker, and a complete program.
#[derive(Debug)]
pub struct Endpoint {
    id: EndpointId,
    /// Numbers that stand for it in queue pair numbers.
    ids: EndpointIds,
    qps: QpSlots,
    resources: Resources,
    groups: Groups,
    own_addresses: OwnAddresses,
    denied_sources: DeniedSources,
    schedule: Schedule,
    recovery: RecoveryConfig,
    congestion: (CongestionControl, Arc<DcqcnParameters>),
    delay_guard: Nanos,
    partitions: Partitions,
    /// Out-of-order packets of all queue pairs.
    out_of_order: OutOfOrderPool,
    /// Answers that removed queue pairs owed their peers.
    final_answers: FinalAnswers,
    /// Removed queue pairs, which acknowledge repetitions.
    time_wait: TimeWait,
    /// Datagrams of queue pair 1.
    management: Management,
    notifications: Notifications,
    /// Ticket of the last key change.
    ticket: u64,
    drops: DropCounters,
    /// Totals of all queue pairs, removed ones included.
    totals: Arc<QpTotals>,
}

impl Endpoint {
    /// Creates an endpoint without queue pairs.
    ///
    /// # Panics
    /// When `max_qps` or `max_srqs` exceeds the number of indices in a QPN or SRQN.
    pub fn new(config: EndpointConfig) -> Self {
        assert!(config.max_qps.max(config.max_srqs) <= Qpn::INDEX_COUNT, "indices have {} bits", Qpn::INDEX_BITS);
        Self {
            id: config.id,
            ids: config.id.into(),
            qps: QpSlots::new(config.max_qps),
            resources: Resources::new(&config),
            groups: Groups::new(config.max_attachments),
            own_addresses: OwnAddresses::default(),
            denied_sources: DeniedSources::default(),
            schedule: Schedule::new(&config),
            recovery: config.recovery,
            congestion: (CongestionControl::Off, Arc::new(DcqcnParameters::default())),
            delay_guard: Nanos(0),
            partitions: config.partitions,
            out_of_order: OutOfOrderPool::new(if config.recovery.is_selective() {
                config.recovery.out_of_order_packets
            } else {
                0
            }),
            final_answers: FinalAnswers::new(),
            time_wait: TimeWait::new(config.max_qps),
            management: Management::new(),
            notifications: Notifications::new(config.max_qps),
            ticket: 0,
            drops: DropCounters::default(),
            totals: Arc::default(),
        }
    }

    /// Gives it other numbers in queue pair numbers than [`EndpointConfig::id`] alone.
    #[must_use]
    pub const fn with_ids(mut self, ids: EndpointIds) -> Self {
        self.ids = ids;
        self
    }

    /// From now on no datagram from the network comes from one of these addresses. Returns the
    /// former ones, to be freed elsewhere.
    pub const fn set_own_addresses(&mut self, addresses: OwnAddresses) -> OwnAddresses {
        core::mem::replace(&mut self.own_addresses, addresses)
    }

    /// From now on no frame is accepted from these networks. Returns the former ones, to be freed
    /// elsewhere.
    pub const fn set_denied_sources(&mut self, denied: DeniedSources) -> DeniedSources {
        core::mem::replace(&mut self.denied_sources, denied)
    }

    /// Accepts send work for a queue pair. The caller has checked [`Self::send_room`].
    ///
    /// # Errors
    /// [`Reject::NoSuchQp`].
    pub fn post_send(&mut self, qpn: Qpn, work: &SendWork<'_>) -> Result<(), Reject> {
        let (slot, qp) = self.find_mut(qpn)?;
        qp.post_send(work);
        if qp.may_change_class() {
            self.classify(slot);
        }
        self.schedule(slot);
        Ok(())
    }

    /// Accepts receive work for a queue pair. The caller has checked [`Self::recv_room`].
    ///
    /// # Errors
    /// As [`Self::post_send`].
    pub fn post_recv(&mut self, qpn: Qpn, work: &RecvWork<'_>) -> Result<(), Reject> {
        let (slot, qp) = self.find_mut(qpn)?;
        if qp.post_recv(work) {
            if qp.may_change_class() {
                self.classify(slot);
            }
            self.schedule(slot);
        }
        Ok(())
    }

    /// Number of send work requests that may be posted. After 0, [`Self::take_unblocked`] returns
    /// the queue pair once there is room.
    pub fn send_room(&mut self, qpn: Qpn) -> u32 {
        let Ok((_, qp)) = self.find_mut(qpn) else { return 0 };
        let room = qp.send_room();
        qp.send_room_wanted |= room == 0;
        room
    }

    /// Number of receive work requests that may be posted, like [`Self::send_room`].
    pub fn recv_room(&mut self, qpn: Qpn) -> u32 {
        let Ok((_, qp)) = self.find_mut(qpn) else { return 0 };
        let room = qp.recv_room();
        qp.recv_room_wanted |= room == 0;
        room
    }

    /// There may be something for [`Self::take_unblocked`] or [`Self::take_unblocked_srq`].
    #[inline]
    pub fn has_unblocked(&self) -> bool {
        !self.schedule.unblocked.is_empty() || self.resources.srqs.has_unblocked()
    }

    /// Returns a queue pair that had no room when its room was queried and has room now.
    pub fn take_unblocked(&mut self) -> Option<Qpn> {
        let slot = self.schedule.unblocked.pop_front()?;
        self.qps.get(slot).map(Qp::qpn)
    }

    /// Handles expired timers, at most `budget`; returns their number.
    pub fn on_timeout(&mut self, now: Nanos, budget: usize, app: &mut impl App) -> usize {
        self.schedule.on_time(now);
        for fired in 0..budget {
            let Some(slot) = self.schedule.timers.poll(now) else { return fired };
            if let Some(qp) = self.qps.get_mut(slot) {
                qp.on_timeout(&mut self.resources.context(now, app));
                self.drops.add(DropReason::OutOfOrderDiscarded, qp.discard_expired(&mut self.out_of_order, now).into());
                self.after(slot);
            }
        }
        budget
    }

    /// Time by which [`Self::on_timeout`] must be called; [`Nanos::NEVER`] if no timer runs.
    pub fn poll_timeout(&self) -> Nanos {
        self.schedule.timers.next().min(self.schedule.in_flight.deadline()).min(self.schedule.senders.deadline())
    }

    /// Sends at most `budget` frames.
    pub fn poll_transmit(
        &mut self,
        now: Nanos,
        budget: usize,
        app: &mut impl App,
        wire: &mut impl Wire,
    ) -> Transmitted {
        self.time_wait.on_time(now);
        self.schedule.on_time(now);
        if !self.wants_transmit() {
            return Transmitted::default();
        }
        let mut sent = Transmitted::default();
        if self.notifications.wants_transmit() {
            sent = self.transmit_notifications(now, budget, wire);
        }
        sent += self.transmit_final_answers(budget - sent.visits, wire);
        let mut management = Transmitted::default();
        if self.management.wants_transmit() {
            management = self.transmit_management(budget - sent.visits, wire);
            sent += management;
        }
        while sent.visits < budget {
            self.admit_from_line();
            let Some((slot, frames)) = self.schedule.next_sender(now, wire) else { break };
            let before = sent.visits;
            let visit = self.visit(now, slot, frames.min(budget - before), &mut sent, app, wire);
            match visit {
                Transmission::Idle => {}
                Transmission::Full if sent.visits == before => self.schedule.senders.hold(slot),
                Transmission::Progress | Transmission::Acknowledged | Transmission::Dropped(_) | Transmission::Full => {
                    self.schedule.senders.push_back(slot)
                }
            }
        }
        if management.visits > 0 && self.schedule.senders.held() > 0 {
            self.management.yield_next();
        }
        self.schedule.end_call(wire);
        sent
    }

    /// Sends at most `budget` frames of one queue pair, silent or not, as soon as it is called,
    /// unless its class is paused, or its account has sent so much before its turns that half a
    /// second of the highest rate would not pay for it. At the rates of its class and of the device
    /// it has its turns, one in turn with those of all others.
    pub fn transmit_of(
        &mut self,
        now: Nanos,
        qpn: Qpn,
        budget: usize,
        app: &mut impl App,
        wire: &mut impl Wire,
    ) -> TransmittedOf {
        let mut sent = Transmitted::default();
        let Ok((slot, qp)) = self.find_mut(qpn) else { return TransmittedOf::default() };
        let is_silent = qp.set_silent(false);
        self.schedule.on_time(now);
        let is_overdrawn = self.qps.get(slot).is_some_and(|qp| qp.is_overdrawn(now));
        if is_overdrawn || self.schedule.senders.holds_rest(now, slot) {
            let Some(qp) = self.qps.get_mut(slot) else { return TransmittedOf::default() };
            qp.set_silent(is_silent);
            return TransmittedOf { visits: 0, is_left: qp.has_sends() };
        }
        self.schedule.limit_ahead(slot, wire);
        let budget = self.schedule.senders.begin_rest(slot, budget);
        if let Some(qp) = self.qps.get_mut(slot) {
            qp.waive_account_rate(true);
        }
        let visit = self.visit(now, slot, budget, &mut sent, app, wire);
        self.schedule.end_rest(wire);
        if let Some(qp) = self.qps.get_mut(slot) {
            qp.waive_account_rate(false);
            qp.set_silent(is_silent);
        }
        // An ordinary visit continues from here.
        self.schedule(slot);
        TransmittedOf { visits: sent.visits, is_left: visit != Transmission::Idle }
    }

    /// From now on the queue pair sends requests only by [`Self::transmit_of`]: its client is gone.
    /// Until it is removed it executes those of its peer, and answers them; its own do not time
    /// out.
    pub fn silence(&mut self, qpn: Qpn) {
        if let Ok((slot, qp)) = self.find_mut(qpn) {
            qp.set_silent(true);
            self.update_schedule(slot);
        }
    }

    /// Returns true if there may be something to send: the caller must not sleep.
    #[inline]
    pub fn wants_transmit(&self) -> bool {
        !self.schedule.senders.is_empty()
            || self.schedule.in_flight.can_admit()
            || !self.final_answers.is_empty()
            || self.management.wants_transmit()
            || self.notifications.wants_transmit()
    }

    /// Adds a queue pair.
    ///
    /// # Errors
    /// Returns the queue pair if its number belongs to another endpoint ([`Reject::NoSuchQp`]) or
    /// is in use ([`Reject::NoRoom`]), or if its shared receive queue is not in this endpoint
    /// ([`Reject::NoSuchSrq`]).
    pub fn insert_qp(&mut self, mut qp: Box<Qp>) -> Result<(), (Box<Qp>, Reject)> {
        let qpn = qp.qpn();
        if !self.ids.contains(qpn.endpoint()) {
            return Err((qp, Reject::NoSuchQp(qpn)));
        }
        if let Err(reject) = qp.check_srq(&self.resources.srqs, self.ids) {
            return Err((qp, reject));
        }
        qp.set_endpoint(self.ids, self.recovery);
        qp.set_congestion(self.congestion.0, &self.congestion.1, self.delay_guard);
        let slot = self.qps.insert(qp).map_err(|qp| (qp, Reject::NoRoom))?;
        let qp = self.qps.get_mut(slot).expect("it was just inserted");
        qp.count_into(Some(&self.totals));
        self.schedule.add(slot, qp, &self.resources.ahs);
        self.time_wait.forget(qpn);
        self.after(slot);
        Ok(())
    }

    /// Removes a queue pair, which completes nothing from now on. Answers that it owes its peer are
    /// sent as soon as there is room, and repetitions of executed SENDs and WRITEs acknowledged.
    pub fn remove_qp(&mut self, qpn: Qpn) -> Option<Box<Qp>> {
        let slot = self.slot(qpn)?;
        let mut qp = self.qps.remove(slot)?;
        self.drops.add(DropReason::FinalAnswerLost, self.final_answers.keep(&qp));
        self.time_wait.keep(&qp);
        self.schedule.remove(slot, &mut qp);
        self.notifications.owed.remove(slot);
        self.drops.add(DropReason::OutOfOrderDiscarded, qp.discard_all_buffered(&mut self.out_of_order).into());
        qp.return_receive(&mut self.resources.srqs);
        qp.count_into(None);
        if core::mem::take(&mut qp.attachments) > 0 {
            self.groups.forget(qpn);
        }
        Some(qp)
    }

    /// Memory for a following change of a queue pair; returns the unused part. Without it
    /// [`Self::modify_qp`] allocates.
    pub fn provide(&mut self, qpn: Qpn, memory: ReplayMemory) -> ReplayMemory {
        match self.find_mut(qpn) {
            Ok((_, qp)) => qp.provide(memory),
            Err(_) => memory,
        }
    }

    /// Changes a queue pair's state or attributes. `path` is given when the address vector is.
    ///
    /// # Errors
    /// [`Reject`]; nothing has changed.
    pub fn modify_qp(
        &mut self,
        qpn: Qpn,
        mask: u32,
        attributes: &QpAttributes,
        path: Option<PathState>,
    ) -> Result<(), Reject> {
        let (slot, _) = self.find_mut(qpn)?;
        let qp = self.qps.get_mut(slot).expect("just found");
        let others = self.final_answers.len();
        let resets = mask & attribute::STATE != 0 && attributes.state == state::RESET;
        let lost = if resets { self.final_answers.keep(qp) } else { 0 };
        if let Err(reject) = qp.modify(mask, attributes, path, &self.partitions, &mut self.resources.srqs) {
            self.final_answers.truncate(others);
            return Err(reject);
        }
        self.drops.add(DropReason::FinalAnswerLost, lost);
        self.after(slot);
        Ok(())
    }

    /// Fails the queue pairs in `budget` slots from slot `from` on, each with the event
    /// [`QP_FATAL`](roced_types::event::QP_FATAL), because the port that their frames leave and
    /// arrive by is gone. Queue pairs in RESET and ERR stay as they are. Returns the slot to
    /// continue with, `None` after the last.
    ///
    /// Management datagrams that wait to be sent are discarded ([`DropReason::ManagementLost`]).
    pub fn fail_qps(&mut self, from: u32, budget: u32) -> Option<u32> {
        self.drops.add(DropReason::ManagementLost, self.management.discard());
        if from == 0 {
            self.time_wait.clear();
        }
        let end = self.qps.used().min(from.saturating_add(budget));
        for slot in from..end {
            if self.qps.get_mut(slot).is_some_and(Qp::lose_port) {
                self.after(slot);
            }
        }
        (end < self.qps.used()).then_some(end)
    }

    /// Replaces the path of a queue pair after a change of its next hop.
    ///
    /// # Errors
    /// [`Reject::NoSuchQp`].
    pub fn set_path(&mut self, qpn: Qpn, path: PathState) -> Result<(), Reject> {
        let (slot, qp) = self.find_mut(qpn)?;
        qp.set_path(path);
        self.after(slot);
        Ok(())
    }

    /// Queue pair with this number.
    pub fn qp(&self, qpn: Qpn) -> Option<&Qp> {
        self.qps.get(self.slot(qpn)?)
    }

    /// Slot of a queue pair: a number below [`EndpointConfig::max_qps`], unique until the queue
    /// pair is removed. Slots are dense.
    pub fn slot(&self, qpn: Qpn) -> Option<u32> {
        self.qps.find(qpn.index()).filter(|slot| self.qps.get(*slot).is_some_and(|qp| qp.qpn() == qpn))
    }

    /// All queue pairs, in no particular order. Takes time in proportion to their number.
    pub fn qps(&self) -> impl Iterator<Item = &Qp> {
        self.qps.iter()
    }

    /// Attributes of a queue pair.
    pub fn query_qp(&self, qpn: Qpn) -> Option<QpAttributes> {
        self.qp(qpn).map(Qp::attributes)
    }

    /// Adds an address handle under a number.
    ///
    /// # Errors
    /// [`Reject::NoRoom`].
    pub fn insert_ah(&mut self, number: u32, handle: AhEntry) -> Result<(), Reject> {
        self.resources.ahs.insert(number, handle)
    }

    /// Replaces the path of an address handle; returns false if there is no such handle.
    pub fn set_ah_path(&mut self, number: u32, path: PathState, mtu_bytes: u32) -> bool {
        let there = self.resources.ahs.set_path(number, path, mtu_bytes);
        self.schedule_waiting(number);
        there
    }

    /// Datagrams that wait for the destination of an address handle are lost: it is unreachable
    /// from now on. False if none can wait.
    pub fn abandon_ah(&mut self, number: u32) -> bool {
        let is_abandoned = self.resources.ahs.abandon(number);
        if is_abandoned {
            self.schedule_waiting(number);
        }
        is_abandoned
    }

    /// Removes an address handle. Nothing is sent by it from now on.
    pub fn remove_ah(&mut self, number: u32) -> Option<AhEntry> {
        let removed = self.resources.ahs.remove(number);
        self.schedule_waiting(number);
        removed
    }

    /// Totals of all queue pairs, removed ones included.
    pub fn counters(&self) -> QpCounters {
        self.totals.get()
    }

    /// Packets dropped, by reason.
    pub const fn drops(&self) -> &DropCounters {
        &self.drops
    }

    fn find_mut(&mut self, qpn: Qpn) -> Result<(u32, &mut Qp), Reject> {
        let slot = self.slot(qpn).ok_or(Reject::NoSuchQp(qpn))?;
        let qp = self.qps.get_mut(slot).ok_or(Reject::NoSuchQp(qpn))?;
        Ok((slot, qp))
    }

    /// Schedules and updates a queue pair after a call that may have given it something to send.
    fn after(&mut self, slot: u32) {
        self.schedule(slot);
        self.update_schedule(slot);
    }

    /// Schedules the queue pairs with sends that wait for this address handle. Walks only queue
    /// pairs that wait for one: a client can create and remove handles without end.
    fn schedule_waiting(&mut self, number: u32) {
        let mut next = self.schedule.waiting.first();
        while let Some(slot) = next {
            next = self.schedule.waiting.after(slot);
            match self.qps.get(slot).and_then(Qp::waits_for_ah) {
                Some(awaited) if awaited == number => {
                    self.classify(slot);
                    self.schedule(slot);
                }
                Some(_) => {}
                None => self.schedule.waiting.remove(slot),
            }
        }
    }

    /// The first queue pair in line goes to the end of the list of senders, if there is room for
    /// its packets. Those that were held up in this call wait on.
    fn admit_from_line(&mut self) {
        let (mut passed, mut last) = (0, None);
        for _ in 0..=2 * self.schedule.senders.held() {
            let Some(slot) = self.schedule.in_flight.next_in_line(passed) else { return };
            if self.schedule.senders.is_held(slot) {
                let place = self.schedule.in_flight.pass_over(slot);
                // A class with this one alone.
                passed |= if last == Some(slot) { place } else { 0 };
                last = Some(slot);
            } else if let Some(qp) = self.qps.get_mut(slot) {
                self.schedule.in_flight.admit(slot, &mut qp.share);
                self.schedule(slot);
                return;
            }
        }
    }

    /// Lets the queue pair in `index` send at most `budget` frames, adds them to `sent`, and
    /// returns how the visit ended.
    fn visit(
        &mut self,
        now: Nanos,
        slot: u32,
        budget: usize,
        sent: &mut Transmitted,
        app: &mut impl App,
        wire: &mut impl Wire,
    ) -> Transmission {
        let mut visit = Transmission::Idle;
        let Some(qp) = self.qps.get_mut(slot) else { return visit };
        let mut endpoint = self.resources.context(now, app);
        let was_admitted = qp.share.is_admitted();
        let grant = self.schedule.in_flight.grant(&mut qp.share);
        if qp.has_nothing_to_say() {
            return visit;
        }
        qp.set_grant(grant);
        qp.begin_visit();
        let (before, in_flight) = (sent.visits, qp.in_flight());
        let mut wire = Metered::new(wire);
        let class = self.schedule.class_in_visit(qp, endpoint.ahs);
        for _ in 0..qp.frames_of_account(now, budget) {
            visit = qp.transmit(&mut endpoint, &mut wire);
            sent.visits += usize::from(visit.is_progress());
            match visit {
                Transmission::Acknowledged => sent.acks += 1,
                Transmission::Dropped(reason) => self.drops.count(reason),
                Transmission::Progress | Transmission::Idle | Transmission::Full => {}
            }
            if !visit.is_progress() || class.is_some() && self.schedule.class_in_visit(qp, endpoint.ahs) != class {
                break;
            }
        }
        qp.on_visited(now, wire.nic_bytes, visit != Transmission::Idle);
        self.schedule.charge(now, slot, sent.visits - before, &wire);
        if was_admitted {
            self.schedule.in_flight.charge(slot, qp.in_flight().saturating_sub(in_flight));
        }
        // With more to send it is in line again before the next one is admitted.
        if qp.wants_grant() || was_admitted && visit.is_progress() {
            self.schedule.in_flight.stand_in_line(slot, &qp.share);
        }
        self.update_schedule(slot);
        visit
    }

    /// The oldest datagram of a queue pair may be another, or have its path.
    fn classify(&mut self, slot: u32) {
        if let Some(qp) = self.qps.get(slot) {
            self.schedule.classify(slot, qp, &self.resources.ahs);
        }
    }

    fn schedule(&mut self, slot: u32) {
        self.schedule.senders.push_back(slot);
    }

    /// Updates the schedule to the state of a queue pair.
    fn update_schedule(&mut self, slot: u32) {
        let Some(qp) = self.qps.get_mut(slot) else { return };
        if qp.has_buffered() {
            self.drops.add(DropReason::OutOfOrderDiscarded, qp.discard_needless(&mut self.out_of_order).into());
        }
        self.schedule.update(slot, qp, &self.resources.ahs);
    }
}
