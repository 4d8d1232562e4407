//! An endpoint: the queue pairs of one worker on one device, with their memory regions and timers.
//!
//! ```text
//!   on_frame ──┐                                   ┌──► App (memory, completions)
//!   post_send ─┼─► queue pair ─► list of senders ──┤
//!   on_timeout ┘                    poll_transmit ─┴──► Wire (frames)
//! ```
//!
//! A call that gives a queue pair work puts it at the end of the list of senders;
//! [`Endpoint::poll_transmit`] visits them in turn, a few frames each. Internally, queue pairs are
//! numbered by slots (`endpoint/slots.rs`): adding or removing one, and reading the counters, take
//! the same time with ten queue pairs as with a hundred thousand. All memory is allocated by
//! [`Endpoint::new`], by the creator of a [`Qp`], and by its insertion.

mod final_answers;
mod frames;
mod groups;
mod keys;
mod slots;
mod srqs;

use alloc::{boxed::Box, sync::Arc};
use core::ops::AddAssign;

use roced_types::{EndpointId, QpAttributes, Qpn, attribute, state};

use self::{final_answers::FinalAnswers, slots::QpSlots};
use crate::{
    ah::{AhEntry, AhTable},
    clock::Nanos,
    congestion::in_flight::InFlight,
    counters::{QpCounters, QpTotals},
    io::{App, Wire},
    mr::MrTable,
    multicast::Groups,
    out_of_order::OutOfOrderPool,
    partition::Partitions,
    qp::{Context, PathState, Qp, QpEvent, ReplayMemory, Transmission},
    recovery::RecoveryConfig,
    reject::{DropCounters, DropReason, Reject},
    slot_list::SlotList,
    srq::Srqs,
    timers::Timers,
    work::{RecvWork, SendWork},
};

/// Frames that one queue pair sends before the next has its turn.
const QUANTUM: usize = 16;

/// Queue pairs that find no room on the wire before a call of [`Endpoint::poll_transmit`] ends.
/// More than one: a NIC queue without room must not hold up another queue, hand-over, or the flush
/// of a queue pair that has failed.
const FULL_MAX: usize = 16;

/// Parts of an endpoint.
#[derive(Clone, Copy, Debug)]
pub struct EndpointConfig {
    /// Its place in queue pair numbers.
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
    pub window_packets: u32,
    /// How losses are made good.
    pub recovery: RecoveryConfig,
    /// The partitions that the device is in.
    pub partitions: Partitions,
}

/// Result of [`Endpoint::poll_transmit`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transmitted {
    /// Frames emitted, and other steps of queue pairs that had something to do.
    pub visits: usize,
    /// Those of them that were an acknowledgment and nothing else: they may be delayed for a
    /// moment.
    pub acks: usize,
}

impl Transmitted {
    /// There is something, and nothing but acknowledgements.
    pub const fn is_only_acks(self) -> bool {
        self.acks > 0 && self.acks == self.visits
    }
}

impl AddAssign for Transmitted {
    fn add_assign(&mut self, more: Self) {
        self.visits += more.visits;
        self.acks += more.acks;
    }
}

/// The transport of one worker on one device.
#[derive(Debug)]
pub struct Endpoint {
    id: EndpointId,
    qps: QpSlots,
    mrs: MrTable,
    ahs: AhTable,
    srqs: Srqs,
    groups: Groups,
    timers: Timers,
    recovery: RecoveryConfig,
    partitions: Partitions,
    /// Packets of all queue pairs that came before their turn.
    held: OutOfOrderPool,
    /// Queue pairs that may have something to send.
    senders: SlotList,
    in_flight: InFlight,
    /// Queue pairs with room where there was none.
    unblocked: SlotList,
    /// Queue pairs with an unreported event.
    events: SlotList,
    /// Queue pairs with an unreported change of keys.
    key_changes: SlotList,
    /// Queue pairs of which a send waits for an address handle, or did when these last changed.
    waiting: SlotList,
    /// Answers that removed queue pairs owed their peers.
    final_answers: FinalAnswers,
    /// The ticket of the last change of keys.
    ticket: u64,
    drops: DropCounters,
    /// Totals of all queue pairs, removed ones included.
    totals: Arc<QpTotals>,
}

impl Endpoint {
    /// An endpoint without queue pairs.
    ///
    /// # Panics
    /// When `max_qps` or `max_srqs` is more than a number can tell apart.
    pub fn new(config: EndpointConfig) -> Self {
        assert!(config.max_qps.max(config.max_srqs) <= Qpn::INDEX_COUNT, "indices have {} bits", Qpn::INDEX_BITS);
        let list = || SlotList::new(config.max_qps);
        Self {
            id: config.id,
            qps: QpSlots::new(config.max_qps),
            mrs: MrTable::new(config.max_mrs),
            ahs: AhTable::new(config.max_ahs),
            srqs: Srqs::new(config.max_srqs),
            groups: Groups::new(config.max_attachments),
            timers: Timers::new(config.max_qps),
            recovery: config.recovery,
            partitions: config.partitions,
            held: OutOfOrderPool::new(if config.recovery.is_selective() {
                config.recovery.out_of_order_packets
            } else {
                0
            }),
            senders: list(),
            in_flight: InFlight::new(config.window_packets, QUANTUM as u32, config.max_qps),
            unblocked: list(),
            events: list(),
            key_changes: list(),
            waiting: list(),
            final_answers: FinalAnswers::new(),
            ticket: 0,
            drops: DropCounters::default(),
            totals: Arc::default(),
        }
    }

    /// Takes send work for a queue pair; the caller asked [`Self::send_room`].
    ///
    /// # Errors
    /// [`Reject::NoSuchQp`].
    pub fn post_send(&mut self, qpn: Qpn, work: &SendWork<'_>) -> Result<(), Reject> {
        let (index, qp) = self.find_mut(qpn)?;
        qp.post_send(work);
        self.schedule(index);
        Ok(())
    }

    /// Takes receive work for a queue pair; the caller asked [`Self::recv_room`].
    ///
    /// # Errors
    /// As [`Self::post_send`].
    pub fn post_recv(&mut self, qpn: Qpn, work: &RecvWork<'_>) -> Result<(), Reject> {
        let (index, qp) = self.find_mut(qpn)?;
        if qp.post_recv(work) {
            self.schedule(index);
        }
        Ok(())
    }

    /// How much send work may be posted. After a 0, [`Self::take_unblocked`] names the queue pair
    /// when there is room.
    pub fn send_room(&mut self, qpn: Qpn) -> u32 {
        let Ok((_, qp)) = self.find_mut(qpn) else { return 0 };
        let room = qp.send_room();
        qp.send_room_wanted |= room == 0;
        room
    }

    /// How much receive work may be posted, as [`Self::send_room`].
    pub fn recv_room(&mut self, qpn: Qpn) -> u32 {
        let Ok((_, qp)) = self.find_mut(qpn) else { return 0 };
        let room = qp.recv_room();
        qp.recv_room_wanted |= room == 0;
        room
    }

    /// A queue pair that had no room when it was asked and has some now.
    pub fn take_unblocked(&mut self) -> Option<Qpn> {
        let slot = self.unblocked.pop_front()?;
        self.qps.get(slot).map(Qp::qpn)
    }

    /// Fires timers that have run out, at most `budget`; gives how many.
    pub fn on_timeout(&mut self, now: Nanos, budget: usize, app: &mut impl App) -> usize {
        for fired in 0..budget {
            let Some(index) = self.timers.poll(now) else { return fired };
            if let Some(qp) = self.qps.get_mut(index) {
                qp.on_timeout(&mut Context { now, mrs: &self.mrs, ahs: &self.ahs, srqs: &mut self.srqs, app });
                self.drops.add(DropReason::OutOfOrderDiscarded, qp.forget_old(&mut self.held, now).into());
                self.after(index);
            }
        }
        budget
    }

    /// When [`Self::on_timeout`] wants to be called, at the latest; [`Nanos::NEVER`] when no timer
    /// runs.
    pub fn poll_timeout(&self) -> Nanos {
        self.timers.next().min(self.in_flight.deadline())
    }

    /// Sends at most `budget` frames.
    pub fn poll_transmit(
        &mut self,
        now: Nanos,
        budget: usize,
        app: &mut impl App,
        wire: &mut impl Wire,
    ) -> Transmitted {
        let mut sent = self.transmit_final_answers(budget, wire);
        let (mut held_up, mut full) = ([0; FULL_MAX], 0);
        self.in_flight.on_time(now);
        while sent.visits < budget && full < FULL_MAX {
            self.admit_from_line(&held_up[..full]);
            let Some(index) = self.senders.pop_front() else { break };
            let Some(qp) = self.qps.get_mut(index) else { continue };
            let before = sent.visits;
            let mut cx = Context { now, mrs: &self.mrs, ahs: &self.ahs, srqs: &mut self.srqs, app };
            let mut visit = Transmission::Progress;
            let mut left = QUANTUM.min(budget - sent.visits);
            let grant = self.in_flight.grant(&mut qp.share);
            qp.set_grant(grant);
            while left > 0 && visit.is_progress() {
                visit = qp.transmit(&mut cx, wire);
                sent.visits += usize::from(visit.is_progress());
                match visit {
                    Transmission::Acknowledged => sent.acks += 1,
                    Transmission::Dropped(reason) => self.drops.count(reason),
                    Transmission::Progress | Transmission::Idle | Transmission::Full => {}
                }
                left -= 1;
            }
            if qp.wants_grant() {
                self.in_flight.stand_in_line(index, &qp.share);
            }
            match visit {
                Transmission::Idle => {}
                Transmission::Full if sent.visits == before => {
                    held_up[full] = index;
                    full += 1;
                }
                Transmission::Progress | Transmission::Acknowledged | Transmission::Dropped(_) | Transmission::Full => {
                    self.senders.push_back(index)
                }
            }
            self.settle(index);
        }
        if sent.visits > 0 {
            // They keep their place; the others have had their turn.
            held_up[..full].iter().rev().for_each(|index| self.senders.push_front(*index));
        } else {
            // No retransmission was possible: the next call tries others.
            held_up[..full].iter().for_each(|index| self.senders.push_back(*index));
        }
        sent
    }

    /// Something may be there to send: do not sleep.
    pub fn wants_transmit(&self) -> bool {
        !self.senders.is_empty() || self.in_flight.can_admit() || !self.final_answers.is_empty()
    }

    /// Something that a client must be told.
    pub fn poll_event(&mut self) -> Option<QpEvent> {
        while let Some(index) = self.events.pop_front() {
            let Some(qp) = self.qps.get_mut(index) else { continue };
            let event = qp.take_event();
            if qp.has_event() {
                self.events.push_back(index);
            }
            if event.is_some() {
                return event;
            }
        }
        None
    }

    /// Adds a queue pair.
    ///
    /// # Errors
    /// The queue pair back: its number is not of this endpoint ([`Reject::NoSuchQp`]) or taken
    /// ([`Reject::NoRoom`]), or its shared receive queue is not here ([`Reject::NoSuchSrq`]).
    pub fn insert_qp(&mut self, mut qp: Box<Qp>) -> Result<(), (Box<Qp>, Reject)> {
        let qpn = qp.qpn();
        if qpn.endpoint() != self.id {
            return Err((qp, Reject::NoSuchQp(qpn)));
        }
        if let Err(reject) = qp.check_srq(&self.srqs) {
            return Err((qp, reject));
        }
        qp.set_recovery(self.recovery);
        let slot = self.qps.insert(qp).map_err(|qp| (qp, Reject::NoRoom))?;
        if let Some(qp) = self.qps.get_mut(slot) {
            qp.count_into(Some(&self.totals));
        }
        self.timers.add(slot);
        self.after(slot);
        Ok(())
    }

    /// Removes a queue pair; it completes nothing any more. Answers that it owes its peer are sent
    /// as soon as there is room.
    pub fn remove_qp(&mut self, qpn: Qpn) -> Option<Box<Qp>> {
        let slot = self.slot(qpn)?;
        let mut qp = self.qps.remove(slot)?;
        self.drops.add(DropReason::FinalAnswerLost, self.final_answers.keep(&qp));
        self.in_flight.remove(slot, &mut qp.share);
        self.drops.add(DropReason::OutOfOrderDiscarded, qp.forget_all_held(&mut self.held).into());
        qp.return_receive(&mut self.srqs);
        qp.count_into(None);
        self.timers.remove(slot);
        for list in [&mut self.senders, &mut self.unblocked, &mut self.events, &mut self.key_changes, &mut self.waiting]
        {
            list.remove(slot);
        }
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
    /// [`Reject`]; nothing was changed then.
    pub fn modify_qp(
        &mut self,
        qpn: Qpn,
        mask: u32,
        attributes: &QpAttributes,
        path: Option<PathState>,
    ) -> Result<(), Reject> {
        let (index, _) = self.find_mut(qpn)?;
        let qp = self.qps.get_mut(index).expect("just found");
        let others = self.final_answers.len();
        let resets = mask & attribute::STATE != 0 && attributes.state == state::RESET;
        let lost = if resets { self.final_answers.keep(qp) } else { 0 };
        if let Err(reject) = qp.modify(mask, attributes, path, &self.partitions, &mut self.srqs) {
            self.final_answers.truncate(others);
            return Err(reject);
        }
        self.drops.add(DropReason::FinalAnswerLost, lost);
        self.schedule(index);
        self.settle(index);
        Ok(())
    }

    /// The next hop of a queue pair's path changed.
    ///
    /// # Errors
    /// [`Reject::NoSuchQp`].
    pub fn set_path(&mut self, qpn: Qpn, path: PathState) -> Result<(), Reject> {
        let (index, qp) = self.find_mut(qpn)?;
        qp.set_path(path);
        self.schedule(index);
        Ok(())
    }

    /// A queue pair.
    pub fn qp(&self, qpn: Qpn) -> Option<&Qp> {
        self.qps.get(self.slot(qpn)?)
    }

    /// A queue pair's slot: a number below [`EndpointConfig::max_qps`] that no other has until it
    /// is removed. Slots are dense.
    pub fn slot(&self, qpn: Qpn) -> Option<u32> {
        if qpn.endpoint() == self.id { self.qps.find(qpn.index()) } else { None }
    }

    /// Every queue pair, in no order. Walks them all.
    pub fn qps(&self) -> impl Iterator<Item = &Qp> {
        self.qps.iter()
    }

    /// A queue pair's attributes.
    pub fn query_qp(&self, qpn: Qpn) -> Option<QpAttributes> {
        self.qp(qpn).map(Qp::attributes)
    }

    /// Adds an address handle under a number.
    ///
    /// # Errors
    /// [`Reject::NoRoom`].
    pub fn insert_ah(&mut self, number: u32, handle: AhEntry) -> Result<(), Reject> {
        self.ahs.insert(number, handle)
    }

    /// The way to an address handle's destination changed; false when there is no such handle.
    pub fn set_ah_path(&mut self, number: u32, path: PathState, mtu_bytes: u32) -> bool {
        let there = self.ahs.set_path(number, path, mtu_bytes);
        self.schedule_waiting(number);
        there
    }

    /// Removes an address handle: nothing is sent by it any more.
    pub fn remove_ah(&mut self, number: u32) -> Option<AhEntry> {
        let removed = self.ahs.remove(number);
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

    /// Something happened to a queue pair that may have given it something to send.
    fn after(&mut self, index: u32) {
        self.schedule(index);
        self.settle(index);
    }

    /// Schedules the queue pairs with sends that wait for this address handle. Walks only queue
    /// pairs that wait for one: a client can create and remove handles without end.
    fn schedule_waiting(&mut self, number: u32) {
        let mut next = self.waiting.first();
        while let Some(slot) = next {
            next = self.waiting.after(slot);
            match self.qps.get(slot).and_then(Qp::waits_for_ah) {
                Some(awaited) if awaited == number => self.schedule(slot),
                Some(_) => {}
                None => self.waiting.remove(slot),
            }
        }
    }

    /// Waiting queue pairs go to the end of the list of senders, as many as there is room for,
    /// except those that are rate-limited: they are put back there in any case.
    fn admit_from_line(&mut self, held_up: &[u32]) {
        while let Some(slot) = self.in_flight.next_in_line() {
            if let Some(qp) = self.qps.get_mut(slot) {
                self.in_flight.admit(&mut qp.share);
                if !held_up.contains(&slot) {
                    self.schedule(slot);
                }
            }
        }
    }

    fn schedule(&mut self, slot: u32) {
        self.senders.push_back(slot);
    }

    /// Brings timers, events and waiting posters up to a queue pair's state.
    fn settle(&mut self, index: u32) {
        let Some(qp) = self.qps.get_mut(index) else { return };
        if qp.holds_any() {
            self.drops.add(DropReason::OutOfOrderDiscarded, qp.forget_held(&mut self.held).into());
        }
        self.timers.ensure(index, qp.deadline());
        let packets = qp.in_flight();
        self.in_flight.count(&mut qp.share, packets);
        let send = qp.send_room_wanted && qp.send_room() > 0;
        let recv = qp.recv_room_wanted && qp.recv_room() > 0;
        if send || recv {
            qp.send_room_wanted &= !send;
            qp.recv_room_wanted &= !recv;
            self.unblocked.push_back(index);
        }
        if qp.has_key_wish() {
            self.key_changes.push_back(index);
        }
        if qp.waits_for_ah().is_some() {
            self.waiting.push_back(index);
        }
        if qp.has_event() {
            self.events.push_back(index);
        }
    }
}
