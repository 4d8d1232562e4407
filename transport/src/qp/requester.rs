//! The requester: cuts work into packets and decides what is sent next.
//!
//! It keeps a cursor into the send queue. What lies before the cursor and behind the completer's
//! oldest unacknowledged PSN is in flight; [`Requester::rewind`] puts the cursor back there, and
//! everything from it on is sent again (go-back-N), or [`Requester::send_oldest_again`] leaves the
//! cursor where it is and sends the oldest packet once more.
//!
//! READs are asked for in chunks, each a READ request of its own on the wire, so that the responses
//! on their way to us never are more than the window either: nothing else holds a responder back.

use roced_types::{SendOp, Status};

use super::{
    Context, QpBase, State, Transmission,
    atomic::{self, ATOMIC_BYTES},
    completer::Completer,
    credits::CreditLimit,
    key_change::{KeyRequest, Waiter},
    placement,
    rnr_wait::RnrWait,
    segment::{Part, packets, position},
    send_queue::{MESSAGE_BYTES_MAX, SendEntry, SendQueue},
};
use crate::{
    clock::Nanos,
    congestion::pacing::Pacer,
    counters::QpCount,
    io::{App, EmitError, Wire},
    mr::MrKey,
    psn::Psn,
    wire::{
        bth::Bth,
        frame::Packet,
        headers::Headers,
        ieth::Ieth,
        opcode::{self, Operation, Position},
        reth::Reth,
    },
};

/// A window is asked to be acknowledged this many times over, so that it opens again before it is
/// closed.
const ACK_REQUESTS_PER_WINDOW: u32 = 8;

/// How long an unsignaled message may have gone unasked for before the next one asks: half of what
/// a tail probe waits at least, so that none is sent while messages follow each other.
const UNASKED_MAX: Nanos = Nanos::from_micros(50);

/// Where none followed and a probe had to ask, and when a life begins, so many messages ask at once
/// before one is left to the next again.
const ASKING_AFTER_PROBE: u32 = 16;

/// Chunks that a READ is cut into per window, when the peer takes that many requests.
const READ_CHUNKS_PER_WINDOW: u32 = 8;

/// What to send next.
#[derive(Debug)]
pub(crate) struct Requester {
    window: u32,
    /// Position in the send queue of the entry that is sent next, packets of it that are sent, and
    /// the PSN that comes next.
    entry: u32,
    packet: u32,
    psn: Psn,
    /// The PSN after the highest ever sent, and its place in the queue.
    frontier: Psn,
    frontier_place: (u32, u32),
    /// READ and atomic requests that were all answered, ever; and those before the cursor and
    /// before the frontier, which count the same way, for they begin at fixed packets.
    answered: u32,
    wanting_before_cursor: u32,
    wanting_before_frontier: u32,
    /// The oldest packet that waits for an answer is sent once more before anything else, for this
    /// reason.
    oldest_again: Option<Reason>,
    /// Where that is a READ, no more than the responses before this one are asked for.
    again_up_to: Option<Psn>,
    /// The peer is asked how much it has, before anything else.
    solicits: bool,
    /// Packets since one asked for an ACK, and when the first of them was sent.
    unasked: u32,
    unasked_since: Nanos,
    /// Messages that ask, whether somebody waits to hear of them or not.
    asking: u32,
    rnr_wait: Option<RnrWait>,
    /// The rate let nothing leave before this moment.
    paced_until: Option<Nanos>,
    /// The entry at the cursor cannot be sent, for this reason.
    refused: Option<Status>,
    pacer: Pacer,
    /// How far the peer's receives go.
    pub(super) credits: CreditLimit,
}

/// Why the oldest packet is sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// It is missing.
    Missing,
    /// Its answer is late.
    Probe,
    /// The answer to the one before it said nothing of it.
    Presumed,
}

/// A packet that was sent.
pub(crate) struct SentRequest {
    pub(crate) psn: Psn,
    /// PSNs that it takes.
    pub(crate) packets: u32,
    /// For the first time.
    pub(crate) is_new: bool,
    /// A READ or an atomic operation.
    pub(crate) wants_answer: bool,
    /// Not the first of its work request.
    pub(crate) continues: bool,
    pub(crate) asks: AckRequest,
}

/// The oldest request, or a part of it, sent once more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SentAgain {
    /// PSNs that it takes.
    pub(crate) packets: u32,
    /// A READ or an atomic operation.
    pub(crate) wants_answer: bool,
    pub(crate) reason: Reason,
    /// Of a READ, and not up to its end or that of the request that asked for it first.
    pub(crate) is_part: bool,
}

/// Whether a packet asks for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AckRequest {
    /// It does.
    Now,
    /// It does not, though it ends a message: one that nobody waits to hear of.
    Later,
    /// A packet of the same message will.
    Not,
}

impl Requester {
    pub(crate) fn new(window_packets: u32) -> Self {
        Self {
            window: window_packets.clamp(1, 1 << 22),
            entry: 0,
            packet: 0,
            psn: Psn::default(),
            frontier: Psn::default(),
            frontier_place: (0, 0),
            answered: 0,
            wanting_before_cursor: 0,
            wanting_before_frontier: 0,
            oldest_again: None,
            again_up_to: None,
            solicits: false,
            unasked: 0,
            unasked_since: Nanos(0),
            asking: 0,
            rnr_wait: None,
            paced_until: None,
            refused: None,
            pacer: Pacer::default(),
            credits: CreditLimit::default(),
        }
    }

    /// Ready to send: the first packet of the entry at `position` will have `psn`.
    pub(crate) fn begin(&mut self, psn: Psn, position: u32) {
        (self.entry, self.packet, self.psn, self.frontier) = (position, 0, psn, psn);
        self.frontier_place = (position, 0);
        // Nobody can be asked by a duplicate before something was acknowledged.
        self.asking = ASKING_AFTER_PROBE;
        self.credits = CreditLimit::default();
    }

    pub(crate) fn set_rate(&mut self, bytes_per_s: u64) {
        self.pacer.set_rate(bytes_per_s);
    }

    /// The PSN after the highest ever sent.
    pub(crate) const fn frontier(&self) -> Psn {
        self.frontier
    }

    /// The PSN that is sent next.
    pub(crate) const fn cursor(&self) -> Psn {
        self.psn
    }

    /// The cursor stands before a request that was never begun.
    pub(crate) fn is_between_requests(&self) -> bool {
        self.packet == 0 && self.psn == self.frontier
    }

    /// The position of the entry that cannot be sent, and why.
    pub(crate) const fn refused(&self) -> Option<(u32, Status)> {
        match self.refused {
            Some(status) => Some((self.entry, status)),
            None => None,
        }
    }

    /// Everything from `psn`, packet `packet` of the entry at `position`, is sent again.
    pub(crate) fn rewind(&mut self, position: u32, packet: u32, psn: Psn) {
        (self.entry, self.packet, self.psn) = (position, packet, psn);
        self.wanting_before_cursor = self.answered;
        (self.oldest_again, self.solicits) = (None, false);
        self.refused = None;
        // The first packet again asks for an ACK: the sooner we know.
        self.unasked = self.window;
    }

    /// So many READ and atomic requests before the cursor are not all answered.
    pub(crate) fn on_begun(&mut self, requests: u32) {
        self.wanting_before_cursor = self.answered.wrapping_add(requests);
    }

    /// An answer that is not of the past: up to one packet before `oldest`, as an ACK that nothing
    /// asked for is. True when its credits let more be sent.
    pub(crate) fn on_credits(&mut self, packet: &Packet<'_>, oldest: Psn, base: &QpBase) -> bool {
        let psn = packet.bth.psn;
        let is_of_now = psn.distance_from(oldest) >= -1 && psn.distance_from(self.frontier) < 0;
        let aeth = packet.aeth.filter(|_| is_of_now && base.config.credits);
        aeth.is_some_and(|aeth| self.credits.on_answer(&aeth))
    }

    /// All before `psn`, packet `packet` of the entry at `position`, is done: the cursor is not
    /// behind it.
    pub(crate) fn skip_to(&mut self, position: u32, packet: u32, psn: Psn) {
        if self.psn.distance_from(psn) < 0 {
            (self.entry, self.packet, self.psn) = (position, packet, psn);
            self.wanting_before_cursor = self.answered;
            // It was sent before, and that has arrived.
            self.refused = None;
        }
    }

    /// What was sent from the cursor on need not be sent again.
    pub(crate) fn skip_to_frontier(&mut self) {
        if self.psn != self.frontier {
            ((self.entry, self.packet), self.psn) = (self.frontier_place, self.frontier);
            self.wanting_before_cursor = self.wanting_before_frontier;
            self.refused = None;
            // Packets that were not sent again may be beyond the limit.
            self.credits.on_probe(self.frontier.minus(1));
        }
    }

    /// Messages come too rarely to leave the asking to the next.
    pub(crate) fn ask_for_a_while(&mut self) {
        self.asking = ASKING_AFTER_PROBE;
    }

    /// The oldest packet that waits for an answer is sent once more, whatever the cursor does: it
    /// is missing.
    pub(crate) fn send_oldest_again(&mut self) {
        (self.oldest_again, self.again_up_to) = (Some(Reason::Missing), None);
    }

    /// The same, because it is probably lost as the one before it was.
    pub(crate) fn presume_oldest_lost(&mut self) {
        (self.oldest_again, self.again_up_to) = (Some(Reason::Presumed), None);
    }

    /// The responses from `end` on are there: they are not asked for with the oldest.
    pub(crate) fn ask_up_to(&mut self, end: Option<Psn>) {
        self.again_up_to = end;
    }

    /// The same, because its answer is late. Where its memory is gone the peer is only asked.
    pub(crate) fn probe_oldest(&mut self) {
        if self.oldest_again.is_none() {
            (self.oldest_again, self.again_up_to) = (Some(Reason::Probe), None);
        }
    }

    /// The peer is asked how much it has of what was sent.
    pub(crate) fn solicit_ack(&mut self) {
        self.solicits = true;
    }

    /// The packet with `oldest`, the oldest that waits for an answer, is the next to be sent.
    pub(crate) fn is_about_to_send(&self, oldest: Psn) -> bool {
        self.oldest_again.is_some() || self.psn == oldest
    }

    /// It was answered: whatever is the oldest now was not meant.
    pub(crate) fn forget_oldest(&mut self) {
        self.oldest_again = None;
    }

    /// The oldest READ or atomic request is all answered. None counts when it is behind the cursor:
    /// it was to be sent again.
    pub(crate) fn on_answered(&mut self) {
        self.answered = self.answered.wrapping_add(1);
        if self.unanswered() > u32::MAX / 2 {
            self.wanting_before_cursor = self.answered;
        }
    }

    /// READ and atomic requests before the cursor that are not all answered.
    const fn unanswered(&self) -> u32 {
        self.wanting_before_cursor.wrapping_sub(self.answered)
    }

    /// The receiver was not ready, as the poll at `polled_at` learns: nothing is sent for `delay`.
    pub(crate) fn wait_for_receiver(&mut self, polled_at: Nanos, delay: Nanos) {
        self.rnr_wait = Some(RnrWait::Heard { polled_at, delay });
    }

    pub(crate) const fn is_waiting_for_receiver(&self) -> bool {
        self.rnr_wait.is_some()
    }

    pub(crate) fn on_timeout(&mut self, now: Nanos) {
        self.rnr_wait = self.rnr_wait.and_then(|wait| wait.at(now));
        self.paced_until = self.paced_until.filter(|until| *until > now);
    }

    /// The local operation at the cursor is done.
    pub(crate) fn on_local_done(&mut self) {
        self.entry = self.entry.wrapping_add(1);
        // All before it was complete, so the cursor is at the frontier.
        self.frontier_place = (self.entry, 0);
    }

    /// When it can go on, if it waits for a moment.
    pub(crate) fn deadline(&self) -> Nanos {
        self.rnr_wait.map(RnrWait::deadline).or(self.paced_until).unwrap_or(Nanos::NEVER)
    }

    /// How far behind the oldest that waits a packet of this request may be. What is held here for
    /// its turn is not on its way any more: more is asked for in its place, up to a window of it,
    /// for the places that it takes are for all.
    fn window_of(&self, position: u32, queue: &SendQueue, base: &QpBase) -> u32 {
        let extends = position == queue.head() && queue.entry(position).is_read();
        self.window + if extends { base.held_answers.min(self.window) } else { 0 }
    }

    /// Packets of one READ request.
    pub(crate) fn read_chunk(&self, max_rd_atomic: u32) -> u32 {
        (self.window / max_rd_atomic.clamp(1, READ_CHUNKS_PER_WINDOW)).max(1)
    }

    /// Sends the packet at the cursor.
    pub(crate) fn transmit<A: App, W: Wire>(
        &mut self,
        base: &mut QpBase,
        completer: &mut Completer,
        queue: &mut SendQueue,
        cx: &mut Context<'_, A>,
        wire: &mut W,
    ) -> Transmission {
        let oldest = completer.unacknowledged();
        // When the cursor is there it is sent anyway.
        self.oldest_again = self.oldest_again.filter(|_| oldest != self.psn);
        self.solicits &= oldest != self.psn;
        let in_flight = self.psn.offset_from(oldest);
        let ends = self.refused.is_some() || self.entry == queue.tail();
        if ends && base.state == State::SendQueueDrain && self.is_unasked(in_flight, completer) {
            self.solicits = true;
        }
        let again = self.oldest_again;
        if again.is_none() && !self.solicits && ends {
            return Transmission::Idle;
        }
        self.on_timeout(cx.now);
        if self.rnr_wait.is_some() {
            return Transmission::Idle;
        }
        if self.pacer.next_send() > cx.now {
            self.paced_until = Some(self.pacer.next_send());
            return Transmission::Idle;
        }
        if let Some(reason) = again {
            return self.send_oldest(reason, base, completer, queue, cx, wire);
        }
        if self.solicits {
            return self.ask(base, completer, queue, cx, wire);
        }
        match self.send_new(in_flight, base, completer, queue, cx, wire) {
            // It may wait for the acknowledgement of messages that nobody asked about.
            Transmission::Idle
                if self.awaits_ack(in_flight, oldest, base, queue) && self.is_unasked(in_flight, completer) =>
            {
                self.ask(base, completer, queue, cx, wire)
            }
            visit => visit,
        }
    }

    /// What was sent last asks for no ACK. It may not be what left last: where the peer has what is
    /// behind a packet that was sent again.
    const fn is_unasked(&self, in_flight: u32, completer: &Completer) -> bool {
        in_flight > 0 && (self.unasked > 0 || !completer.has_asked(self.psn))
    }

    /// What stands at the cursor does not begin before all that was sent is acknowledged, or a part
    /// of it.
    fn awaits_ack(&self, in_flight: u32, oldest: Psn, base: &QpBase, queue: &SendQueue) -> bool {
        if self.refused.is_some() || self.entry == queue.tail() {
            return self.refused.is_some();
        }
        let entry = queue.entry(self.entry);
        let waits = base.state == State::SendQueueDrain || self.credits.awaits_probe(self.psn, oldest);
        waits || entry.is_local() || entry.is_read() || in_flight >= self.window && self.unasked >= in_flight
    }

    /// Sends the packet at the cursor, in its turn.
    fn send_new<A: App, W: Wire>(
        &mut self,
        in_flight: u32,
        base: &mut QpBase,
        completer: &mut Completer,
        queue: &mut SendQueue,
        cx: &mut Context<'_, A>,
        wire: &mut W,
    ) -> Transmission {
        if queue.entry(self.entry).is_local() {
            return self.start_local(base, queue);
        }
        if in_flight >= self.window_of(self.entry, queue, base) {
            return Transmission::Idle;
        }
        // What is under way and was not asked about would count for ever: one more packet asks.
        if base.grant == 0 && self.psn == self.frontier && (in_flight == 0 || completer.has_asked(self.psn)) {
            base.wants_grant = true;
            return Transmission::Idle;
        }
        if let Err(visit) = self.start_entry(base, queue) {
            return visit;
        }
        let (entry, oldest) = (*queue.entry(self.entry), completer.unacknowledged());
        let is_beyond = self.credits.is_beyond(&entry, oldest);
        if is_beyond {
            if self.credits.awaits_probe(self.psn, oldest) {
                return Transmission::Idle;
            }
            // Its answer says whether the receiver is ready.
            self.unasked = self.window;
        }
        let packets = match self.send_at_cursor(base, queue, &entry, in_flight, cx, wire) {
            Ok(packets) => packets,
            Err(visit) => return visit,
        };
        if is_beyond {
            self.credits.on_probe(self.psn);
        }
        let sent = SentRequest {
            psn: self.psn,
            packets,
            is_new: self.psn == self.frontier,
            wants_answer: entry.wants_answer(),
            continues: self.packet > 0,
            asks: match self.unasked {
                0 => AckRequest::Now,
                _ if entry.packets == 1 => AckRequest::Later,
                _ => AckRequest::Not,
            },
        };
        base.grant = base.grant.saturating_sub(packets);
        self.advance(&entry, packets);
        completer.on_sent(&sent, base, cx.now);
        Transmission::Progress
    }

    /// Asks the peer how much it has of what was sent. Before it has acknowledged anything, by the
    /// oldest packet itself: the PSN before that is of no request of this life.
    fn ask<A: App, W: Wire>(
        &mut self,
        base: &mut QpBase,
        completer: &mut Completer,
        queue: &mut SendQueue,
        cx: &mut Context<'_, A>,
        wire: &mut W,
    ) -> Transmission {
        if completer.last_acknowledged().is_some() {
            return self.send_solicitation(base, completer, cx.now, wire);
        }
        let visit = self.send_oldest(Reason::Probe, base, completer, queue, cx, wire);
        if visit == Transmission::Progress {
            (self.solicits, self.unasked) = (false, 0);
            completer.on_solicited(self.psn, base, cx.now);
            completer.on_asked_by_oldest();
        }
        visit
    }

    /// Asks by a duplicate of the last packet that was acknowledged: a responder only acknowledges
    /// it again, up to the newest (IBTA v1 C9-105), and reads nothing else of it. So it has no
    /// bytes, and no memory is read for it that the client may have taken away since the peer's
    /// client answered. It is a WRITE where that packet was of one, and else a SEND, which needs no
    /// right.
    fn send_solicitation<W: Wire>(
        &mut self,
        base: &mut QpBase,
        completer: &mut Completer,
        now: Nanos,
        wire: &mut W,
    ) -> Transmission {
        let psn = completer.unacknowledged().minus(1);
        // Where nothing was acknowledged yet and the memory is gone, the one that does least if it
        // is executed after all.
        let is_write = matches!(completer.last_acknowledged(), None | Some(SendOp::Write | SendOp::WriteImm));
        let opcode = if is_write { opcode::RC_WRITE_ONLY } else { opcode::RC_SEND_ONLY };
        let headers = Headers {
            reth: is_write.then_some(Reth { va: 0, rkey: MrKey(0), length: 0 }),
            ..Headers::new(Bth { ack_request: true, ..base.bth(opcode, psn) })
        };
        if base.emit(wire, &headers, 0, |_| Ok(())).is_err() {
            return Transmission::Full;
        }
        (self.solicits, self.unasked) = (false, 0);
        base.counters.count(QpCount::RequestPackets);
        base.counters.count(QpCount::AckSolicited);
        completer.on_solicited(self.psn, base, now);
        Transmission::Progress
    }

    /// Sends the oldest packet that waits for an answer, or asks for the rest of the READ request
    /// that it is in. The cursor is there for that moment only.
    fn send_oldest<A: App, W: Wire>(
        &mut self,
        reason: Reason,
        base: &mut QpBase,
        completer: &mut Completer,
        queue: &mut SendQueue,
        cx: &mut Context<'_, A>,
        wire: &mut W,
    ) -> Transmission {
        let cursor = (self.entry, self.packet, self.psn);
        let (wanting, refused, unasked) = (self.wanting_before_cursor, self.refused.take(), self.unasked);
        ((self.entry, self.packet), self.psn) = (completer.place(queue), completer.unacknowledged());
        self.wanting_before_cursor = self.answered;
        self.unasked = self.window;
        let entry = *queue.entry(self.entry);
        let end = self.again_up_to.filter(|end| entry.is_read() && end.distance_from(self.psn) > 0);
        let sent = if entry.is_read() {
            self.send_read_request(base, queue, &entry, 0, end, wire)
                .inspect(|packets| self.count(base, *packets, cx.now))
        } else {
            self.send_at_cursor(base, queue, &entry, 0, cx, wire)
        };
        let is_gone = self.refused.is_some();
        if is_gone && reason != Reason::Probe {
            // It cannot be sent any more, and it is the oldest: the cursor stays with it, and it
            // fails.
            self.oldest_again = None;
            return Transmission::Idle;
        }
        (self.entry, self.packet, self.psn) = cursor;
        // Its answer says nothing of what was sent last, or nobody would ask about that while
        // packets are repaired.
        (self.wanting_before_cursor, self.refused, self.unasked) = (wanting, refused, unasked);
        match sent {
            Err(_) if is_gone => {
                // Its client has taken its memory away. It may know that it arrived, so the peer is
                // asked.
                self.oldest_again = None;
                self.send_solicitation(base, completer, cx.now, wire)
            }
            Ok(packets) => {
                self.oldest_again = None;
                let is_part = end.is_some_and(|end| completer.unacknowledged().plus(packets) == end);
                let again = SentAgain { packets, wants_answer: entry.wants_answer(), reason, is_part };
                completer.on_sent_again(again, self.frontier, base, cx.now);
                Transmission::Progress
            }
            Err(visit) => visit,
        }
    }

    fn send_at_cursor<A: App, W: Wire>(
        &mut self,
        base: &mut QpBase,
        queue: &SendQueue,
        entry: &SendEntry,
        in_flight: u32,
        cx: &mut Context<'_, A>,
        wire: &mut W,
    ) -> Result<u32, Transmission> {
        let packets = if entry.is_read() {
            self.send_read_request(base, queue, entry, in_flight, None, wire)
        } else if entry.wants_answer() {
            self.send_operation(base, entry, wire)
        } else {
            self.send_packet(base, queue, entry, cx, wire)
        }?;
        self.count(base, packets, cx.now);
        Ok(packets)
    }

    /// Gives an entry its PSNs when its first packet is due for the first time.
    fn start_entry(&mut self, base: &QpBase, queue: &mut SendQueue) -> Result<(), Transmission> {
        if !self.is_between_requests() {
            return Ok(());
        }
        // IBTA v1 10.3.1.5: a queue that drains begins nothing.
        if base.state == State::SendQueueDrain {
            return Err(Transmission::Idle);
        }
        let entry = queue.entry_mut(self.entry);
        // IBTA v1 C10-110: a fenced request begins when all READs and atomic operations before it
        // are complete.
        if entry.is_fenced() && self.unanswered() > 0 {
            return Err(Transmission::Idle);
        }
        if entry.length() > MESSAGE_BYTES_MAX {
            return Err(self.refuse(Status::LocalLength));
        }
        let wrong_length = entry.is_atomic() && entry.length() != ATOMIC_BYTES as u64
            || entry.is_placement() && entry.length() != 0
            || entry.op == SendOp::Flush && entry.swap_or_add > u32::MAX.into();
        if wrong_length {
            return Err(self.refuse(Status::LocalLength));
        }
        if entry.wants_answer() && base.attributes.max_rd_atomic == 0 {
            return Err(self.refuse(Status::LocalQpOperation));
        }
        entry.first_psn = self.psn;
        entry.packets = packets(entry.length(), base.mtu());
        if entry.takes_receive() {
            entry.set_ssn(self.credits.next());
        }
        Ok(())
    }

    /// A local operation begins when all before it are complete, and all behind it wait until it is
    /// done: more order than IBTA v1 10.8.3 asks for, and no other than a program can rely on.
    fn start_local(&self, base: &mut QpBase, queue: &SendQueue) -> Transmission {
        let begins = self.entry == queue.head() && base.state == State::ReadyToSend;
        if begins && !base.keys.waits(Waiter::Requester) {
            base.keys.want(Waiter::Requester, KeyRequest::of_work(queue.entry(self.entry)));
        }
        Transmission::Idle
    }

    fn refuse(&mut self, status: Status) -> Transmission {
        self.refused = Some(status);
        Transmission::Idle
    }

    /// Asks for the rest of the chunk at the cursor. Chunks begin at fixed packets of the message,
    /// so that asking again never asks for more than one request asked before (a responder would
    /// not know it).
    fn send_read_request<W: Wire>(
        &mut self,
        base: &mut QpBase,
        queue: &SendQueue,
        entry: &SendEntry,
        in_flight: u32,
        up_to: Option<Psn>,
        wire: &mut W,
    ) -> Result<u32, Transmission> {
        if self.unanswered() >= base.attributes.max_rd_atomic {
            return Err(Transmission::Idle);
        }
        let chunk = self.read_chunk(base.attributes.max_rd_atomic);
        let end = ((self.packet / chunk + 1) * chunk).min(entry.packets);
        let rest = end - self.packet;
        let packets = up_to.map_or(rest, |psn| rest.min(psn.offset_from(self.psn)));
        if in_flight > 0 && in_flight + packets > self.window_of(self.entry, queue, base) {
            return Err(Transmission::Idle);
        }
        let skip = u64::from(self.packet) * base.mtu() as u64;
        let length = (u64::from(packets) * base.mtu() as u64).min(entry.length() - skip);
        let headers = Headers {
            reth: Some(Reth { va: entry.remote_va.wrapping_add(skip), rkey: MrKey(entry.rkey), length: length as u32 }),
            ..Headers::new(Bth { ack_request: true, ..base.bth(opcode::RC_READ_REQUEST, self.psn) })
        };
        base.emit(wire, &headers, 0, |_| Ok(())).map_err(|_| Transmission::Full)?;
        self.wanting_before_cursor = self.wanting_before_cursor.wrapping_add(1);
        self.unasked = 0;
        Ok(packets)
    }

    /// Sends a request of one packet that has an answer of its own.
    fn send_operation<W: Wire>(
        &mut self,
        base: &mut QpBase,
        entry: &SendEntry,
        wire: &mut W,
    ) -> Result<u32, Transmission> {
        if self.unanswered() >= base.attributes.max_rd_atomic {
            return Err(Transmission::Idle);
        }
        let sent = if entry.is_placement() {
            placement::send(entry, base, self.psn, wire)
        } else {
            base.emit(wire, &atomic::request(entry, base, self.psn), 0, |_| Ok(()))
        };
        sent.map_err(|_| Transmission::Full)?;
        self.wanting_before_cursor = self.wanting_before_cursor.wrapping_add(1);
        self.unasked = 0;
        Ok(1)
    }

    fn send_packet<A: App, W: Wire>(
        &mut self,
        base: &mut QpBase,
        queue: &SendQueue,
        entry: &SendEntry,
        cx: &mut Context<'_, A>,
        wire: &mut W,
    ) -> Result<u32, Transmission> {
        let mtu = base.mtu();
        let position = position(self.packet, entry.packets);
        let is_last = matches!(position, Position::Last | Position::Only);
        let is_first = matches!(position, Position::First | Position::Only);
        let skip = u64::from(self.packet) * mtu as u64;
        let payload = (entry.length() - skip).min(mtu as u64) as usize;
        let (operation, imm) = match entry.op {
            SendOp::Send | SendOp::SendInvalidate => (Operation::Send, None),
            SendOp::SendImm => (Operation::Send, Some(entry.imm)),
            SendOp::WriteImm => (Operation::Write, Some(entry.imm)),
            // What is no SEND nor WRITE does not come here.
            _ => (Operation::Write, None),
        };
        let imm = imm.filter(|_| is_last);
        let ieth = (is_last && entry.op == SendOp::SendInvalidate).then_some(Ieth { rkey: MrKey(entry.rkey) });
        // The end of a message asks; so does a part of the window, or nothing would ever open it,
        // and the last packet that may leave.
        let is_last_granted = base.grant <= 1 && self.psn == self.frontier;
        let asks_at_end = is_last && !self.may_stay_unasked(base, entry, cx.now);
        let ack_request = asks_at_end || is_last_granted || self.unasked + 1 >= self.window / ACK_REQUESTS_PER_WINDOW;
        let opcode = match (ieth, position) {
            (None, _) => opcode::rc(operation, position, imm.is_some()),
            (Some(_), Position::Only) => opcode::RC_SEND_ONLY_INVALIDATE,
            (Some(_), _) => opcode::RC_SEND_LAST_INVALIDATE,
        };
        let headers = Headers {
            reth: (is_first && operation == Operation::Write).then_some(Reth {
                va: entry.remote_va,
                rkey: MrKey(entry.rkey),
                length: entry.length() as u32,
            }),
            imm,
            ieth,
            ..Headers::new(Bth {
                // IBTA v1 9.2.3: of a message that completes a receive, and of no other.
                solicited: is_last && entry.is_solicited() && entry.takes_receive(),
                ack_request,
                ..base.bth(opcode, self.psn)
            })
        };
        let part = Part { data: queue.data(self.entry), skip, bytes: payload };
        let emitted = base.emit_part(wire, &headers, part, cx);
        match emitted {
            Ok(()) => {
                if self.unasked == 0 {
                    self.unasked_since = cx.now;
                }
                self.unasked = if ack_request { 0 } else { self.unasked + 1 };
                Ok(1)
            }
            Err(EmitError::Full) => Err(Transmission::Full),
            Err(EmitError::Aborted) => {
                base.counters.count(QpCount::LocalProtection);
                Err(self.refuse(Status::LocalProtection))
            }
        }
    }

    /// A message of one packet whose completion nobody waits for need not be answered by itself: an
    /// ACK costs what a message costs. One that follows asks, or a tail probe, where there are any.
    fn may_stay_unasked(&self, base: &QpBase, entry: &SendEntry, now: Nanos) -> bool {
        entry.packets == 1
            && self.asking == 0
            && !entry.is_signaled()
            && !base.config.signal_all
            && base.recovery.is_selective()
            && !base.is_beside()
            && (self.unasked == 0 || now - self.unasked_since < UNASKED_MAX)
    }

    fn count(&mut self, base: &mut QpBase, packets: u32, now: Nanos) {
        base.counters.count(QpCount::RequestPackets);
        if self.psn.distance_from(self.frontier) < 0 {
            base.counters.count(QpCount::RetransmittedPackets);
        }
        // A READ costs the peer's sending rate, not ours; it is paced all the same, as one full
        // packet a PSN.
        self.pacer.on_sent(now, (base.mtu() + base.overhead()) * packets as usize);
    }

    fn advance(&mut self, entry: &SendEntry, packets: u32) {
        self.packet += packets;
        self.psn = self.psn.plus(packets);
        if self.packet == entry.packets {
            (self.entry, self.packet) = (self.entry.wrapping_add(1), 0);
            self.asking = self.asking.saturating_sub(1);
        }
        if self.psn.distance_from(self.frontier) > 0 {
            (self.frontier, self.frontier_place) = (self.psn, (self.entry, self.packet));
            self.wanting_before_frontier = self.wanting_before_cursor;
            if self.packet == 0 || entry.is_read() {
                self.credits.on_message_sent();
            }
        }
    }
}
