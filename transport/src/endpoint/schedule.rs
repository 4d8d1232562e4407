//! The schedule of an endpoint: which queue pairs may have something to send, wait for something,
//! or have something to report, and their timers. Everything is kept by slot, and cleared here when
//! a queue pair is removed.

use super::{Endpoint, EndpointConfig, transmission::Metered};
use crate::{
    ah::AhTable,
    clock::Nanos,
    io::Wire,
    qp::{PathState, Qp},
    slot_list::SlotList,
    timers::Timers,
    turns::{
        FRAME_COST, FULL_FRAME_COST, TURN_FRAMES,
        class_counters::ClassCounters,
        classes::{CLASSES, LOCAL, TrafficClasses},
        in_flight::InFlight,
        senders::Senders,
    },
};

/// Cost of four frames of the largest MTU: with less, accounts would often go around without a
/// turn; with more, those with small frames would keep the others waiting for more of them.
const TURN_COST: u32 = 4 * FULL_FRAME_COST;

/// Lists and timers of the queue pairs. Those that send have their turns by account and client, by
/// the bytes and frames that they sent.
#[derive(Debug)]
pub(super) struct Schedule {
    pub(super) timers: Timers,
    /// Queue pairs that may have something to send.
    pub(super) senders: Senders,
    /// Queue pairs that it has room for.
    slots: u32,
    /// Classes of the senders, if they were set.
    classes: Option<TrafficClasses>,
    pub(super) in_flight: InFlight,
    /// Queue pairs with room where there was none.
    pub(super) unblocked: SlotList,
    /// Queue pairs with an unreported event.
    pub(super) events: SlotList,
    /// Queue pairs with an unreported failure.
    pub(super) failures: SlotList,
    /// Queue pairs with an unreported change of keys.
    pub(super) key_changes: SlotList,
    /// Queue pairs of which a send waits for an address handle, or did when this was last updated.
    pub(super) waiting: SlotList,
}

impl Endpoint {
    /// Has its queue pairs take turns by the classes of their packets, from now on: those of
    /// connections by their path, and of a queue pair of datagrams by that of the oldest one: it
    /// may hold up those behind it. Those without a resolved path are of the class of priority 0.
    ///
    /// # Panics
    /// When it has queue pairs.
    pub fn set_classes(&mut self, classes: TrafficClasses) {
        assert!(self.qps().next().is_none(), "classes are set before queue pairs are added");
        self.schedule.senders = Senders::with_classes(self.schedule.slots, TURN_COST, &classes);
        self.schedule.in_flight.set_classes(self.schedule.slots, &classes);
        self.schedule.classes = Some(classes);
    }

    /// Frames and bytes of each class to the NIC, with classes. CNPs, answers of removed queue pairs
    /// and management datagrams are in none.
    pub fn class_counters(&self) -> Option<&ClassCounters> {
        self.schedule.senders.counters()
    }

    /// The other end of the link pauses priorities (PFC), by their number, until these times; those
    /// that have passed are no pauses. Frames of a class leave only while none of its
    /// priorities is paused; without classes this has no effect. The watchdog
    /// ([`TrafficClasses::watchdog`]) ends pauses without an end
    /// ([`Endpoint::poll_pause_storm`]). To be called before others, so that these know of the
    /// last pause.
    ///
    /// CNPs, answers of removed queue pairs and management datagrams are not held up.
    pub fn set_pauses(&mut self, until: &[Nanos; CLASSES]) {
        self.schedule.senders.set_pauses(until);
    }
}

impl Schedule {
    pub(super) fn new(config: &EndpointConfig) -> Self {
        let list = || SlotList::new(config.max_qps);
        Self {
            timers: Timers::new(config.max_qps),
            senders: Senders::new(config.max_qps, TURN_COST),
            slots: config.max_qps,
            classes: None,
            in_flight: InFlight::new(config.total_window_packets, TURN_FRAMES as u32, config.max_qps),
            unblocked: list(),
            events: list(),
            failures: list(),
            key_changes: list(),
            waiting: list(),
        }
    }

    /// A queue pair may have something to report.
    #[inline]
    pub(super) fn has_reports(&self) -> bool {
        let has_lists = !self.events.is_empty() || !self.failures.is_empty() || !self.key_changes.is_empty();
        has_lists || self.senders.has_storm_report()
    }

    /// Adds a queue pair in a new slot.
    pub(super) fn add(&mut self, slot: u32, qp: &Qp, ahs: &AhTable) {
        self.timers.add(slot);
        let class = self.class_of(qp, ahs);
        self.senders.add(slot, qp.owner(), class);
        self.in_flight.add(slot, qp.owner(), class);
    }

    /// Time has passed.
    #[inline]
    pub(super) fn on_time(&mut self, now: Nanos) {
        self.in_flight.on_time(now);
        self.senders.on_time(now);
        self.in_flight.set_closed(self.senders.closed());
    }

    /// Takes out the queue pair that has its turn at `now`, with the frames of that, and limits the
    /// bytes before them if its class gives way to others.
    #[inline]
    pub(super) fn next_sender(&mut self, now: Nanos, wire: &mut impl Wire) -> Option<(u32, usize)> {
        let slot = self.senders.pop(now);
        self.in_flight.set_closed(self.senders.closed());
        let slot = slot?;
        self.limit_ahead(slot, wire);
        Some((slot, self.senders.frames(slot)))
    }

    /// Limits the bytes before the frames of a queue pair, if its class gives way to others.
    #[inline]
    pub(super) fn limit_ahead(&self, slot: u32, wire: &mut impl Wire) {
        if let Some(classes) = &self.classes {
            wire.limit_ahead(if self.senders.is_first(slot) { usize::MAX } else { classes.ahead_bytes_max });
        }
    }

    /// Other frames than those of queue pairs have no such limit.
    #[inline]
    pub(super) fn end_limit_ahead(&self, wire: &mut impl Wire) {
        if self.classes.is_some() {
            wire.limit_ahead(usize::MAX);
        }
    }

    /// A visit to the rest of a queue pair has ended.
    pub(super) fn end_rest(&mut self, wire: &mut impl Wire) {
        self.senders.end_rest();
        self.end_limit_ahead(wire);
    }

    /// A call that sends ends.
    #[inline]
    pub(super) fn end_call(&mut self, wire: &mut impl Wire) {
        self.senders.end_call();
        self.end_limit_ahead(wire);
    }

    /// The path or the state of a queue pair may have changed, or its oldest datagram, and with it
    /// the class of its packets.
    pub(super) fn classify(&mut self, slot: u32, qp: &Qp, ahs: &AhTable) {
        if self.classes.is_none() {
            return;
        }
        let class = self.class_of(qp, ahs);
        self.senders.set_class(slot, qp.owner(), class);
        self.in_flight.set_class(slot, qp.owner(), class);
    }

    /// Class of a queue pair; without classes any. One that flushes its work waits for no frames to
    /// the NIC.
    fn class_of(&self, qp: &Qp, ahs: &AhTable) -> u8 {
        let Some(classes) = &self.classes else { return 0 };
        if qp.is_flushing() {
            return LOCAL;
        } else if qp.has_peer() {
            return classes.of(qp.path());
        }
        match qp.path_of_datagram(ahs) {
            Some(path @ PathState::Ready(_)) => classes.of(path),
            _ => classes.of_unresolved_datagrams(),
        }
    }

    /// The class of a queue pair, if that of its next frame may be another: it is one for datagrams,
    /// or has failed.
    pub(super) fn class_in_visit(&self, qp: &Qp, ahs: &AhTable) -> Option<u8> {
        (self.classes.is_some() && qp.may_change_class()).then(|| self.class_of(qp, ahs))
    }

    /// A queue pair has sent these frames by `wire` at `now`.
    pub(super) fn charge<W>(&mut self, now: Nanos, slot: u32, frames: usize, wire: &Metered<'_, W>) {
        // A visit has few frames.
        self.senders.charge(now, slot, frames as u32 * FRAME_COST + wire.bytes as u32, wire.nic_bytes);
        self.senders.count_sent(slot, wire.nic_frames, wire.nic_bytes);
    }

    /// Removes a queue pair from everything.
    pub(super) fn remove(&mut self, slot: u32, qp: &mut Qp) {
        self.in_flight.remove(slot, &mut qp.share);
        self.timers.remove(slot);
        self.senders.forget(slot);
        let Self { unblocked, events, failures, key_changes, waiting, .. } = self;
        for list in [unblocked, events, failures, key_changes, waiting] {
            list.remove(slot);
        }
    }

    /// Updates everything but the list of senders to the state of a queue pair.
    pub(super) fn update(&mut self, slot: u32, qp: &mut Qp, ahs: &AhTable) {
        self.classify(slot, qp, ahs);
        self.timers.ensure(slot, qp.deadline());
        let packets = qp.in_flight();
        self.in_flight.count(&mut qp.share, packets);
        let send = qp.send_room_wanted && qp.send_room() > 0;
        let recv = qp.recv_room_wanted && qp.recv_room() > 0;
        if send || recv {
            qp.send_room_wanted &= !send;
            qp.recv_room_wanted &= !recv;
            self.unblocked.push_back(slot);
        }
        if qp.has_key_wish() {
            self.key_changes.push_back(slot);
        }
        if qp.waits_for_ah().is_some() {
            self.waiting.push_back(slot);
        }
        if qp.has_event() {
            self.events.push_back(slot);
        }
        if qp.has_failure() {
            self.failures.push_back(slot);
        }
    }
}
