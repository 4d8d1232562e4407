//! Out-of-order packets of a queue pair: which packets to buffer, which one is next, and when to
//! discard them.
//!
//! A buffered packet has no effect before its turn: no byte in client memory, no receive work, no
//! ACK. Programs poll the last byte of a message, and a WRITE placed early would be overwritten by
//! an earlier one that arrives late.
//!
//! A buffered packet is executed by its PSN alone, so it must belong to this life of the connection
//! (`life.rs`) and to this pass over its PSN. Therefore nothing is buffered before a packet of this
//! life was accepted, from another source port, from farther ahead than twice the distance that the
//! peer was seen to have under way, or for long. Of two packets with one PSN and different bytes
//! neither is used. Where the network keeps order, missing packets that arrive directly one after
//! the other show that the peer is about to send all packets behind them again.

use roced_types::Qpn;

use super::{EndpointContext, Qp, reliable::Reliable, roles::Roles};
use crate::{
    clock::Nanos,
    counters::QpCount,
    io::{App, Segments},
    out_of_order::{BUFFERED_MAX, NotBuffered, OutOfOrderList, OutOfOrderPool, OutOfOrderSide},
    psn::Psn,
    recovery::RecoveryConfig,
    reject::DropReason,
    wire::{
        frame::{self, Packet},
        opcode::Operation,
    },
};

/// Total of [`DIRECT`] and [`DIRECT_ASKING`] at which the packets buffered behind a gap are
/// discarded: missing packets arrive directly one after the other.
const DIRECT_MAX: u8 = 4;

/// Weight of one missing packet that arrives. A requester that repairs loss after loss asks for an
/// ACK with each retransmission; one that sends for the first time seldom does before the end of a
/// message.
const DIRECT: u8 = 2;
const DIRECT_ASKING: u8 = 1;

/// Packets that a queue pair buffers in its endpoint's pool.
#[derive(Debug)]
pub(crate) struct OutOfOrder {
    requests: Buffer,
    responses: Buffer,
    /// Last early response that was not buffered, or no longer is. Its request has to be sent
    /// again.
    unkept: Option<Psn>,
}

/// Buffered packets of one side.
#[derive(Debug)]
struct Buffer {
    list: OutOfOrderList,
    /// PSN that was missing at the last check.
    missing: Psn,
    /// Total weight of the missing packets that arrived since a buffered packet was last processed.
    direct: u8,
    /// PSNs of buffered packets processed since the last check.
    run: u32,
}

impl Buffer {
    const fn new(qpn: Qpn, side: OutOfOrderSide) -> Self {
        Self { list: OutOfOrderList::new(qpn.index(), side), missing: Psn::new(0), direct: 0, run: 0 }
    }
}

impl OutOfOrder {
    pub(crate) const fn new(qpn: Qpn) -> Self {
        let (requests, responses) =
            (Buffer::new(qpn, OutOfOrderSide::Requests), Buffer::new(qpn, OutOfOrderSide::Responses));
        Self { requests, responses, unkept: None }
    }

    /// Number of buffered responses.
    pub(super) const fn buffered_answers(&self) -> u32 {
        self.responses.list.count()
    }

    const fn is_empty(&self) -> bool {
        self.requests.list.is_empty() && self.responses.list.is_empty() && self.unkept.is_none()
    }

    /// Records that a packet with this PSN, and perhaps others before it, is not buffered. The peer
    /// sends a request again after a NAK; a response must be requested again.
    fn miss(&mut self, side: OutOfOrderSide, psn: Psn) {
        if side == OutOfOrderSide::Responses && self.unkept.is_none_or(|known| psn.distance_from(known) > 0) {
            self.unkept = Some(psn);
        }
    }

    const fn buffer(&mut self, side: OutOfOrderSide) -> &mut Buffer {
        match side {
            OutOfOrderSide::Requests => &mut self.requests,
            OutOfOrderSide::Responses => &mut self.responses,
        }
    }

    const fn list(&mut self, side: OutOfOrderSide) -> &mut OutOfOrderList {
        &mut self.buffer(side).list
    }

    /// Time at which the oldest packet exceeds the time limit.
    pub(super) fn deadline(&self, recovery: &RecoveryConfig) -> Nanos {
        let oldest = self.requests.list.oldest_arrival().min(self.responses.list.oldest_arrival());
        if oldest == Nanos::NEVER { oldest } else { oldest + buffered_max(recovery) }
    }
}

/// Time limit for buffered packets. A multipath network may need a longer one.
fn buffered_max(recovery: &RecoveryConfig) -> Nanos {
    BUFFERED_MAX.max(Nanos(recovery.reorder_delay.0.saturating_mul(2)))
}

impl Qp {
    /// At least one packet is buffered, or a response is marked as not buffered.
    pub(crate) const fn has_buffered(&self) -> bool {
        !self.out_of_order.is_empty()
    }

    /// Decides whether to buffer a packet dropped for this reason. Only a reliable connection
    /// repairs losses. Nothing is buffered for a plain peer, because buffered packets are
    /// acknowledged before the peer sends them again; requests in their turn show its kind, and a
    /// forged packet cannot.
    pub(crate) fn may_buffer(&self, packet: &Packet<'_>, reason: DropReason, now: Nanos) -> Option<OutOfOrderSide> {
        if !self.base.recovery.is_selective() {
            return None;
        }
        let roles = self.roles.reliable()?;
        let side = match reason {
            DropReason::OutOfSequence if roles.responder.may_buffer(packet, now) => OutOfOrderSide::Requests,
            DropReason::ResponseGap if roles.completer.may_buffer(packet, &self.send_queue, now) => {
                OutOfOrderSide::Responses
            }
            _ => return None,
        };
        self.expected_by(side).map(|_| side)
    }

    /// Buffers a packet accepted by [`Self::may_buffer`].
    pub(crate) fn buffer_packet(
        &mut self,
        pool: &mut OutOfOrderPool,
        side: OutOfOrderSide,
        packet: &Packet<'_>,
        frame: &Segments<'_>,
        now: Nanos,
    ) -> Result<(), NotBuffered> {
        let expected = self.expected_by(side).ok_or(NotBuffered::NoRoom)?;
        let buffer = self.out_of_order.buffer(side);
        if buffer.list.is_empty() {
            (buffer.missing, buffer.direct) = (expected, 0);
        }
        match pool.insert(&mut buffer.list, packet.bth.psn, expected, frame, now) {
            Err(NotBuffered::Twice) => self.check_twice(pool, side, packet),
            Err(no_room) => {
                self.out_of_order.miss(side, packet.bth.psn);
                Err(no_room)
            }
            Ok(()) => {
                self.base.counters.count(QpCount::OutOfOrderBuffered);
                Ok(())
            }
        }
    }

    /// Handles a packet with a PSN that is already buffered. If the two differ, one of them belongs
    /// to an earlier life of the connection or is forged, and nothing tells which one: both are
    /// dropped, and the PSN is requested again when it is due.
    fn check_twice(
        &mut self,
        pool: &mut OutOfOrderPool,
        side: OutOfOrderSide,
        packet: &Packet<'_>,
    ) -> Result<(), NotBuffered> {
        let list = self.out_of_order.list(side);
        let Some(slot) = pool.find(list, packet.bth.psn) else { return Err(NotBuffered::NoRoom) };
        if frame::parse(&[pool.frame(slot)]).is_ok_and(|buffered| is_same(&buffered, packet)) {
            return Err(NotBuffered::Twice);
        }
        pool.release(list, slot);
        self.out_of_order.miss(side, packet.bth.psn);
        Err(NotBuffered::Conflict)
    }

    /// Slot of a buffered packet with the expected PSN.
    pub(crate) fn next_buffered(&self, pool: &OutOfOrderPool) -> Option<(OutOfOrderSide, u32)> {
        let find = |side, buffer: &Buffer| Some((side, pool.find(&buffer.list, self.expected_by(side)?)?));
        find(OutOfOrderSide::Requests, &self.out_of_order.requests)
            .or_else(|| find(OutOfOrderSide::Responses, &self.out_of_order.responses))
    }

    /// Releases a packet that was processed.
    pub(crate) fn release(&mut self, pool: &mut OutOfOrderPool, side: OutOfOrderSide, slot: u32) {
        let expected = self.expected_by(side);
        let buffer = self.out_of_order.buffer(side);
        // A READ request has as many PSNs as its answer; one that was dropped has none.
        let psns = expected.map_or(0, |expected| expected.distance_from(pool.psn(slot)).max(0) as u32);
        pool.release(&mut buffer.list, slot);
        (buffer.direct, buffer.run) = (0, buffer.run.saturating_add(psns));
    }

    /// Discards packets that will never become due; returns their number. These are packets that a
    /// requester sends again anyway (RNR NAK), packets that nothing waits for (error,
    /// another state), and packets behind the expected PSN, which only a lying peer can cause.
    pub(crate) fn discard_needless(&mut self, pool: &mut OutOfOrderPool) -> u32 {
        let mut forgotten = 0;
        for side in [OutOfOrderSide::Requests, OutOfOrderSide::Responses] {
            let expected = self.expected_by(side);
            if side == OutOfOrderSide::Responses && expected.is_none() {
                self.out_of_order.unkept = None;
            }
            let list = self.out_of_order.list(side);
            if expected.is_none_or(|expected| list.is_behind(expected)) {
                forgotten += pool.release_all(list);
            }
        }
        forgotten
    }

    /// Discards packets that exceed the time limit; returns their number.
    pub(crate) fn discard_expired(&mut self, pool: &mut OutOfOrderPool, now: Nanos) -> u32 {
        let longest = buffered_max(&self.base.recovery);
        if now < longest || now < self.out_of_order.deadline(&self.base.recovery) {
            return 0;
        }
        let moment = now - longest;
        let requests = pool.release_older(&mut self.out_of_order.requests.list, moment);
        let farthest = self.out_of_order.responses.list.farthest();
        let responses = pool.release_older(&mut self.out_of_order.responses.list, moment);
        if responses > 0 {
            self.out_of_order.miss(OutOfOrderSide::Responses, farthest);
        }
        if let Some(Reliable { responder, .. }) = self.roles.reliable_mut()
            && requests > 0
            && self.out_of_order.requests.list.is_empty()
        {
            responder.on_hole_forgotten();
        }
        requests + responses
    }

    /// Discards all packets; returns their number.
    pub(crate) fn discard_all_buffered(&mut self, pool: &mut OutOfOrderPool) -> u32 {
        self.out_of_order.unkept = None;
        pool.release_all(&mut self.out_of_order.requests.list) + pool.release_all(&mut self.out_of_order.responses.list)
    }

    /// Notes that a packet was accepted without being buffered. Two missing packets that arrive
    /// directly one after the other on a network that keeps order were sent again, and all behind
    /// them will be; or the buffered packets were never sent in this life. Discarded answers are
    /// requested again when they are due. Returns the number of discarded packets.
    pub(crate) fn on_direct(&mut self, pool: &mut OutOfOrderPool, asks: bool) -> u32 {
        let mut given_up = 0;
        for side in [OutOfOrderSide::Requests, OutOfOrderSide::Responses] {
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
            if let (OutOfOrderSide::Responses, Some(expected), Some(roles)) =
                (side, expected, self.roles.reliable_mut())
            {
                roles.completer.selective.on_given_up(expected, farthest);
            }
        }
        given_up
    }

    /// Checks for gaps after all due packets were processed: packets still buffered lie behind a
    /// gap, possibly a new one. If a missing packet arrived by itself, the next gets the whole
    /// reorder delay.
    pub(crate) fn on_exposed<A: App>(&mut self, pool: &OutOfOrderPool, endpoint: &mut EndpointContext<'_, A>) {
        let [run, _] = [&mut self.out_of_order.requests.run, &mut self.out_of_order.responses.run].map(core::mem::take);
        if let Some(Reliable { responder, .. }) = self.roles.reliable_mut() {
            responder.on_run(run);
        }
        for side in [OutOfOrderSide::Requests, OutOfOrderSide::Responses] {
            let Some(missing) = self.expected_by(side).filter(|_| !self.out_of_order.list(side).is_empty()) else {
                continue;
            };
            let buffer = self.out_of_order.buffer(side);
            let is_direct = buffer.missing != missing && buffer.direct > 0;
            buffer.missing = missing;
            let delay = self.base.recovery.reorder_delay;
            let due = match is_direct {
                true => endpoint.now + delay,
                false => buffer.list.oldest_arrival() + delay,
            };
            let buffered = pool.first_psn(&buffer.list);
            let (Roles::Reliable(Reliable { requester, completer, responder, .. }), mut cx) = self.split(endpoint)
            else {
                continue;
            };
            match side {
                OutOfOrderSide::Requests => responder.on_hole(due, cx.now),
                OutOfOrderSide::Responses => completer.on_missing_response(due, buffered, requester, &mut cx),
            }
        }
        if self.out_of_order.unkept.is_some() {
            self.ask_for_unkept(endpoint);
        }
    }

    /// Requests a response that was not buffered and is now due: it will not arrive unasked.
    fn ask_for_unkept<A: App>(&mut self, endpoint: &mut EndpointContext<'_, A>) {
        let missing = self.expected_by(OutOfOrderSide::Responses);
        self.out_of_order.unkept =
            self.out_of_order.unkept.filter(|unkept| missing.is_some_and(|missing| unkept.distance_from(missing) >= 0));
        if self.out_of_order.unkept.is_some()
            && self.out_of_order.responses.list.is_empty()
            && let (Roles::Reliable(Reliable { requester, completer, .. }), mut cx) = self.split(endpoint)
            && completer.awaits_answer(cx.send_queue)
        {
            completer.on_missing_response(cx.now, None, requester, &mut cx);
        }
    }

    /// Expected PSN; `None` when packets of this side are not accepted, or will all be sent again.
    fn expected_by(&self, side: OutOfOrderSide) -> Option<Psn> {
        let roles = self.roles.reliable()?;
        let state = self.base.state;
        match side {
            OutOfOrderSide::Requests => {
                (state.receives() && !roles.responder.is_waiting_for_receiver()).then(|| roles.responder.expected())
            }
            OutOfOrderSide::Responses => state.sends().then(|| roles.completer.unacknowledged()),
        }
    }
}

/// The two are the same packet, sent twice. The ACK request, the marks of switches and the
/// additional content of an ACK may differ, as may the position of a READ response in its answer,
/// because a repetition may begin and end elsewhere.
fn is_same(buffered: &Packet<'_>, other: &Packet<'_>) -> bool {
    let is_alike = buffered.bth.opcode == other.bth.opcode
        || buffered.info.operation == Operation::ReadResponse && other.info.operation == Operation::ReadResponse;
    is_alike
        && (buffered.reth, buffered.atomic, buffered.atomic_ack) == (other.reth, other.atomic, other.atomic_ack)
        && (buffered.imm, buffered.ieth, buffered.feth) == (other.imm, other.ieth, other.feth)
        && buffered.payload_len() == other.payload_len()
        && is_same_payload(buffered, other)
}

/// Compares the payloads; that of the buffered packet is contiguous.
fn is_same_payload(buffered: &Packet<'_>, other: &Packet<'_>) -> bool {
    let mut rest = buffered.payload().next().unwrap_or_default();
    other.payload().all(|piece| {
        let Some((now, later)) = rest.split_at_checked(piece.len()) else { return false };
        rest = later;
        now == piece
    })
}
