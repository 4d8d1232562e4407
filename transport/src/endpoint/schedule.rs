//! The schedule of an endpoint: which queue pairs may have something to send, wait for something,
//! or have something to report, and their timers. Everything is kept by slot, and cleared here when
//! a queue pair is removed.

use super::{EndpointConfig, QUANTUM};
use crate::{
    qp::Qp,
    slot_list::SlotList,
    timers::Timers,
    turns::{fair::FairList, in_flight::InFlight},
};

/// Cost of a frame that its bytes do not have, in bytes: about the time of a worker for a frame of
/// 64 bytes, with the copy of this many more. A guess.
const FRAME_COST: u32 = 512;

/// Cost of four frames of the largest MTU: with less, accounts would often go around without a
/// turn; with more, those with small frames would keep the others waiting for more of them.
const TURN_COST: u32 = 4 * (4096 + FRAME_COST);

/// Lists and timers of the queue pairs. Those that send have their turns by account and client, by
/// the bytes and frames that they sent.
#[derive(Debug)]
pub(super) struct Schedule {
    pub(super) timers: Timers,
    /// Queue pairs that may have something to send.
    pub(super) senders: FairList,
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

impl Schedule {
    pub(super) fn new(config: &EndpointConfig) -> Self {
        let list = || SlotList::new(config.max_qps);
        Self {
            timers: Timers::new(config.max_qps),
            senders: FairList::new(config.max_qps, TURN_COST),
            in_flight: InFlight::new(config.total_window_packets, QUANTUM as u32, config.max_qps),
            unblocked: list(),
            events: list(),
            failures: list(),
            key_changes: list(),
            waiting: list(),
        }
    }

    /// A queue pair may have something to report.
    #[inline]
    pub(super) const fn has_reports(&self) -> bool {
        !self.events.is_empty() || !self.failures.is_empty() || !self.key_changes.is_empty()
    }

    /// Adds a queue pair in a new slot.
    pub(super) fn add(&mut self, slot: u32, qp: &Qp) {
        self.timers.add(slot);
        self.senders.add(slot, qp.owner());
        self.in_flight.add(slot, qp.owner());
    }

    /// A queue pair has sent that.
    pub(super) fn charge(&mut self, slot: u32, frames: usize, bytes: usize) {
        // A visit has few frames.
        self.senders.charge(slot, frames as u32 * FRAME_COST + bytes as u32);
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
    pub(super) fn update(&mut self, slot: u32, qp: &mut Qp) {
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
