//! Packets of a queue pair that came before their turn: which are worth keeping, whose turn it is,
//! when there is none to come.
//!
//! Nothing of a held packet has any effect before its turn: no byte in client memory, no receive
//! work, no ACK. Programs poll the last byte of a message, and a WRITE placed early would be
//! overwritten by an earlier one that came late.
//!
//! A held packet is executed on the word of its PSN, so it must be of this life of the connection
//! (`life.rs`) and of this pass over its PSN. Therefore nothing is held before a packet of this
//! life was taken, nothing from another source port, nothing far ahead or for long; of two packets
//! with one PSN and different bytes neither is believed; and where the network keeps order, missing
//! packets that arrive one directly after the other show that all behind them is about to come
//! again.

use roced_types::Qpn;

use super::{Context, Qp, reliable::Reliable, responder::is_plain, roles::Roles};
use crate::{
    clock::Nanos,
    counters::QpCount,
    io::{App, Segments},
    out_of_order::{HELD_MAX, HeldSide, NotBuffered, OutOfOrderList, OutOfOrderPool},
    psn::Psn,
    recovery::RecoveryConfig,
    reject::DropReason,
    wire::{
        frame::{self, Packet},
        opcode::Operation,
    },
};

/// Missing packets one directly after the other come to so much, and what is held behind them is
/// given up.
const DIRECT_MAX: u8 = 4;

/// What one comes to. A requester that repairs loss after loss asks with each packet that it sends
/// again; one that sends for the first time does so seldom before a message ends.
const DIRECT: u8 = 2;
const DIRECT_ASKING: u8 = 1;

/// What a queue pair holds in its endpoint's pool.
#[derive(Debug)]
pub(crate) struct OutOfOrder {
    requests: Buffer,
    responses: Buffer,
    /// The last response that came before its turn and is not held any more, or never was. Its
    /// request has to be sent again.
    unkept: Option<Psn>,
}

/// One side of it.
#[derive(Debug)]
struct Buffer {
    list: OutOfOrderList,
    /// The PSN that was missing when it was looked at last.
    missing: Psn,
    /// What the missing packets come to that came since the last one that was held had its turn.
    direct: u8,
}

impl Buffer {
    const fn new(qpn: Qpn, side: HeldSide) -> Self {
        Self { list: OutOfOrderList::new(qpn.index(), side), missing: Psn::new(0), direct: 0 }
    }
}

impl OutOfOrder {
    pub(crate) const fn new(qpn: Qpn) -> Self {
        let (requests, responses) = (Buffer::new(qpn, HeldSide::Requests), Buffer::new(qpn, HeldSide::Responses));
        Self { requests, responses, unkept: None }
    }

    /// Answers that are held.
    pub(super) const fn held_answers(&self) -> u32 {
        self.responses.list.count()
    }

    const fn is_empty(&self) -> bool {
        self.requests.list.is_empty() && self.responses.list.is_empty() && self.unkept.is_none()
    }

    /// A packet with this PSN is not kept, and others before it perhaps. A request comes again when
    /// it is complained of; a response does when it is asked for again.
    fn miss(&mut self, side: HeldSide, psn: Psn) {
        if side == HeldSide::Responses && self.unkept.is_none_or(|known| psn.distance_from(known) > 0) {
            self.unkept = Some(psn);
        }
    }

    const fn buffer(&mut self, side: HeldSide) -> &mut Buffer {
        match side {
            HeldSide::Requests => &mut self.requests,
            HeldSide::Responses => &mut self.responses,
        }
    }

    const fn list(&mut self, side: HeldSide) -> &mut OutOfOrderList {
        &mut self.buffer(side).list
    }

    /// When the oldest packet has been held for too long.
    pub(super) fn deadline(&self, recovery: &RecoveryConfig) -> Nanos {
        let oldest = self.requests.list.oldest_arrival().min(self.responses.list.oldest_arrival());
        if oldest == Nanos::NEVER { oldest } else { oldest + held_max(recovery) }
    }
}

/// How long a packet is held. A network that takes several ways may need longer than others.
fn held_max(recovery: &RecoveryConfig) -> Nanos {
    HELD_MAX.max(Nanos(recovery.reorder_delay.0.saturating_mul(2)))
}

impl Qp {
    /// Something is held.
    pub(crate) const fn holds_any(&self) -> bool {
        !self.out_of_order.is_empty()
    }

    /// A packet dropped for this reason is to be held instead. Only a reliable connection makes
    /// good what is missing. Nothing is held for a plain peer: what is held is acknowledged before
    /// it is sent again.
    pub(crate) fn may_hold(&self, packet: &Packet<'_>, reason: DropReason, now: Nanos) -> Option<HeldSide> {
        if !self.base.recovery.is_selective() {
            return None;
        }
        let roles = self.roles.reliable()?;
        let side = match reason {
            DropReason::OutOfSequence if !is_plain(packet) && roles.responder.may_hold(packet, now) => {
                HeldSide::Requests
            }
            DropReason::ResponseGap if roles.completer.may_hold(packet, &self.send_queue, now) => HeldSide::Responses,
            _ => return None,
        };
        self.expected_by(side).map(|_| side)
    }

    /// Keeps a packet of [`Self::may_hold`].
    pub(crate) fn hold(
        &mut self,
        pool: &mut OutOfOrderPool,
        side: HeldSide,
        packet: &Packet<'_>,
        frame: &Segments<'_>,
        now: Nanos,
    ) -> Result<(), NotBuffered> {
        let expected = self.expected_by(side).ok_or(NotBuffered::NoRoom)?;
        let buffer = self.out_of_order.buffer(side);
        if buffer.list.is_empty() {
            (buffer.missing, buffer.direct) = (expected, 0);
        }
        match pool.hold(&mut buffer.list, packet.bth.psn, expected, frame, now) {
            Err(NotBuffered::Twice) => self.check_twice(pool, side, packet),
            Err(no_room) => {
                self.out_of_order.miss(side, packet.bth.psn);
                Err(no_room)
            }
            Ok(()) => {
                self.base.counters.count(QpCount::OutOfOrderHeld);
                Ok(())
            }
        }
    }

    /// A packet came that is held already. Where they differ one of them is of an earlier life of
    /// the connection, or forged, and nothing tells which: both go, and the PSN is asked for when
    /// it is missed.
    fn check_twice(
        &mut self,
        pool: &mut OutOfOrderPool,
        side: HeldSide,
        packet: &Packet<'_>,
    ) -> Result<(), NotBuffered> {
        let list = self.out_of_order.list(side);
        let Some(slot) = pool.find(list, packet.bth.psn) else { return Err(NotBuffered::NoRoom) };
        if frame::parse(&[pool.frame(slot)]).is_ok_and(|held| is_same(&held, packet)) {
            return Err(NotBuffered::Twice);
        }
        pool.release(list, slot);
        self.out_of_order.miss(side, packet.bth.psn);
        Err(NotBuffered::Conflict)
    }

    /// The slot of a packet whose turn it is.
    pub(crate) fn next_held(&self, pool: &OutOfOrderPool) -> Option<(HeldSide, u32)> {
        let find = |side, buffer: &Buffer| Some((side, pool.find(&buffer.list, self.expected_by(side)?)?));
        find(HeldSide::Requests, &self.out_of_order.requests)
            .or_else(|| find(HeldSide::Responses, &self.out_of_order.responses))
    }

    /// A packet had its turn.
    pub(crate) fn release(&mut self, pool: &mut OutOfOrderPool, side: HeldSide, slot: u32) {
        let buffer = self.out_of_order.buffer(side);
        pool.release(&mut buffer.list, slot);
        buffer.direct = 0;
    }

    /// Frees what no turn will come for; gives how many packets that were. What a requester sends
    /// again anyway (RNR NAK) or nobody waits for any more (error, another state) goes, and what
    /// lies behind its turn, which only a peer that lies can bring about.
    pub(crate) fn forget_held(&mut self, pool: &mut OutOfOrderPool) -> u32 {
        let mut forgotten = 0;
        for side in [HeldSide::Requests, HeldSide::Responses] {
            let expected = self.expected_by(side);
            if side == HeldSide::Responses && expected.is_none() {
                self.out_of_order.unkept = None;
            }
            let list = self.out_of_order.list(side);
            if expected.is_none_or(|expected| list.is_behind(expected)) {
                forgotten += pool.release_all(list);
            }
        }
        forgotten
    }

    /// Frees what has been held for too long; gives how many packets that were.
    pub(crate) fn forget_old(&mut self, pool: &mut OutOfOrderPool, now: Nanos) -> u32 {
        let longest = held_max(&self.base.recovery);
        if now < longest || now < self.out_of_order.deadline(&self.base.recovery) {
            return 0;
        }
        let moment = now - longest;
        let requests = pool.release_older(&mut self.out_of_order.requests.list, moment);
        let farthest = self.out_of_order.responses.list.farthest();
        let responses = pool.release_older(&mut self.out_of_order.responses.list, moment);
        if responses > 0 {
            self.out_of_order.miss(HeldSide::Responses, farthest);
        }
        if let Some(Reliable { responder, .. }) = self.roles.reliable_mut()
            && requests > 0
            && self.out_of_order.requests.list.is_empty()
        {
            responder.on_hole_forgotten();
        }
        requests + responses
    }

    /// Frees everything; gives how many packets that were.
    pub(crate) fn forget_all_held(&mut self, pool: &mut OutOfOrderPool) -> u32 {
        self.out_of_order.unkept = None;
        pool.release_all(&mut self.out_of_order.requests.list) + pool.release_all(&mut self.out_of_order.responses.list)
    }

    /// A packet was taken that was not held. Two of them that were missing, one directly after the
    /// other on a network that keeps order, were sent again, and then all behind them will be; or
    /// what is held was never sent in this life. Answers that are given up are asked for again when
    /// their turn comes. Gives how many packets are given up.
    pub(crate) fn on_direct(&mut self, pool: &mut OutOfOrderPool, asks: bool) -> u32 {
        let mut given_up = 0;
        for side in [HeldSide::Requests, HeldSide::Responses] {
            let expected = self.expected_by(side);
            let buffer = self.out_of_order.buffer(side);
            if buffer.list.is_empty() || expected == Some(buffer.missing) {
                continue;
            }
            buffer.direct = buffer.direct.saturating_add(if asks { DIRECT_ASKING } else { DIRECT });
            if buffer.direct < DIRECT_MAX || self.base.recovery.reorder_delay != Nanos(0) {
                continue;
            }
            let farthest = buffer.list.farthest();
            given_up += pool.release_all(&mut buffer.list);
            self.out_of_order.miss(side, farthest);
            if let (HeldSide::Responses, Some(expected), Some(roles)) = (side, expected, self.roles.reliable_mut()) {
                roles.completer.selective.on_given_up(expected, farthest);
            }
        }
        given_up
    }

    /// All that had its turn is done. What is still held lies behind a hole, which may be a new
    /// one. Where a missing packet came by itself the next has the whole delay to follow.
    pub(crate) fn on_exposed<A: App>(&mut self, pool: &OutOfOrderPool, cx: &mut Context<'_, A>) {
        for side in [HeldSide::Requests, HeldSide::Responses] {
            let Some(missing) = self.expected_by(side).filter(|_| !self.out_of_order.list(side).is_empty()) else {
                continue;
            };
            let buffer = self.out_of_order.buffer(side);
            let is_direct = buffer.missing != missing && buffer.direct > 0;
            buffer.missing = missing;
            let delay = self.base.recovery.reorder_delay;
            let due = match is_direct {
                true => cx.now + delay,
                false => buffer.list.oldest_arrival() + delay,
            };
            let held = pool.first_psn(&buffer.list);
            let Roles::Reliable(Reliable { requester, completer, responder, .. }) = &mut self.roles else { continue };
            match side {
                HeldSide::Requests => responder.on_hole(due, cx.now),
                HeldSide::Responses => {
                    completer.on_hole(due, held, &mut self.base, &mut self.send_queue, requester, cx)
                }
            }
        }
        if self.out_of_order.unkept.is_some() {
            self.ask_for_unkept(cx);
        }
    }

    /// A response that was not kept has its turn now, and does not come by itself.
    fn ask_for_unkept<A: App>(&mut self, cx: &mut Context<'_, A>) {
        let missing = self.expected_by(HeldSide::Responses);
        self.out_of_order.unkept =
            self.out_of_order.unkept.filter(|unkept| missing.is_some_and(|missing| unkept.distance_from(missing) >= 0));
        if self.out_of_order.unkept.is_some()
            && self.out_of_order.responses.list.is_empty()
            && let Roles::Reliable(Reliable { requester, completer, .. }) = &mut self.roles
            && completer.awaits_answer(&self.send_queue)
        {
            completer.on_hole(cx.now, None, &mut self.base, &mut self.send_queue, requester, cx);
        }
    }

    /// The PSN whose turn it is; `None` when packets of this side are not taken, or will all come
    /// again.
    fn expected_by(&self, side: HeldSide) -> Option<Psn> {
        let roles = self.roles.reliable()?;
        let state = self.base.state;
        match side {
            HeldSide::Requests => {
                (state.receives() && !roles.responder.is_waiting_for_receiver()).then(|| roles.responder.expected())
            }
            HeldSide::Responses => state.sends().then(|| roles.completer.unacknowledged()),
        }
    }
}

/// Both are the same packet, sent twice: whether it asks for an ACK, what switches mark and what an
/// ACK says besides may differ, and where in its answer a READ response stands, for a repetition
/// may begin and end elsewhere.
fn is_same(held: &Packet<'_>, other: &Packet<'_>) -> bool {
    let is_alike = held.bth.opcode == other.bth.opcode
        || held.info.operation == Operation::ReadResponse && other.info.operation == Operation::ReadResponse;
    is_alike
        && (held.reth, held.atomic, held.atomic_ack) == (other.reth, other.atomic, other.atomic_ack)
        && (held.imm, held.ieth, held.feth) == (other.imm, other.ieth, other.feth)
        && held.payload_len() == other.payload_len()
        && is_same_payload(held, other)
}

/// What is held lies in one piece.
fn is_same_payload(held: &Packet<'_>, other: &Packet<'_>) -> bool {
    let mut rest = held.payload().next().unwrap_or_default();
    other.payload().all(|piece| {
        let Some((now, later)) = rest.split_at_checked(piece.len()) else { return false };
        rest = later;
        now == piece
    })
}
