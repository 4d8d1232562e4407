//! The completer: processes the peer's answers to requests.
//!
//! It owns the oldest unacknowledged PSN and the retry state: the ACK timer and both retry counts.
//! A lost READ response or ATOMIC ACK shows as an answer beyond it (an implied NAK, IBTA v1
//! 9.7.5.1.4). The completer requests a lost response once; after that only the timer requests it
//! again. `selective.rs` keeps retransmissions few and early.

mod answer;
mod retries;

use roced_types::{SendOp, Status};

use self::answer::{asks_to_stop, check_response, is_ack, is_plain_ack, is_sequence_nak, stays_valid};
use super::{
    Context, QpBase,
    deferred::{DeferredAnswer, PeerAnswer},
    key_change::KeyRequest,
    life::{Fit, SourcePort},
    requester::{AckRequest, Requester, SentAgain, SentRequest},
    retry::ack_timeout,
    scatter::SgeCursor,
    selective::Selective,
    send_queue::{SendEntry, SendQueue},
};
use crate::{
    clock::Nanos,
    counters::QpCount,
    io::{App, Payload, PlaceFault},
    psn::Psn,
    reject::DropReason,
    wire::{
        aeth::{NakCode, Syndrome},
        frame::Packet,
        opcode::Operation,
    },
    work::WorkData,
};

/// Completion and retry state of the send queue.
#[derive(Debug)]
pub(crate) struct Completer {
    unacknowledged: Psn,
    /// Operation of the last packet acknowledged in this life.
    last: Option<SendOp>,
    retries_left: u32,
    rnr_retries_left: u32,
    /// The highest PSN for which an answer was requested, or soon will be.
    asked: Psn,
    ack_deadline: Nanos,
    /// PSN of the last implied NAK that was acted upon; only progress or the timer allows another.
    gap_asked: Option<Psn>,
    /// Last sequence NAK that was acted upon.
    nak: Option<RepeatedNak>,
    /// Answer about a request behind READs or atomic operations that are not completely answered.
    pub(super) behind: Option<DeferredAnswer>,
    /// Source port of the answers of this life.
    source: SourcePort,
    /// The answer being processed certainly belongs to this life: its statements about requests
    /// behind a gap hold once the gap is filled.
    trusted: bool,
    /// The answer being processed comes from another port than the peer's: a faulty one changes
    /// nothing.
    is_guess: bool,
    /// Loss state beyond go-back-N.
    pub(super) selective: Selective,
}

impl Default for Completer {
    fn default() -> Self {
        Self {
            unacknowledged: Psn::default(),
            last: None,
            retries_left: 0,
            rnr_retries_left: 0,
            asked: Psn::default(),
            ack_deadline: Nanos::NEVER,
            gap_asked: None,
            nak: None,
            behind: None,
            source: SourcePort::default(),
            trusted: false,
            is_guess: false,
            selective: Selective::new(Psn::default()),
        }
    }
}

/// A sequence NAK that was acted upon. Some peers repeat it for each packet that arrives behind the
/// missing one. Those packets were sent before the NAK arrived and may sit in a queue that delays
/// them for longer than any measured round trip.
#[derive(Clone, Copy, Debug)]
struct RepeatedNak {
    psn: Psn,
    at: Nanos,
    /// Arrival of the last repetition.
    last: Nanos,
    /// Number of repetitions still expected.
    left: u32,
}

impl RepeatedNak {
    /// Registers another NAK with the same PSN. True if it refers to the first transmission, as far
    /// as can be told. A retransmission is behind all packets sent before it, so its loss shows
    /// when the peer has reported on all of those, or has sent no such NAK for `silence`.
    fn is_repeated(&mut self, now: Nanos, patience: Nanos, silence: Nanos) -> bool {
        let same = now - self.at < patience || self.left > 0 && now - self.last < silence;
        (self.last, self.left) = (now, self.left.saturating_sub(1));
        same
    }
}

/// An answer lies beyond a READ or atomic operation that is not completely answered.
pub(super) struct Gap;

impl Completer {
    /// Ends the life and keeps only the facts about the peer's ports that serve the next one.
    pub(crate) fn reset(&mut self) {
        *self = Self { source: self.source.next_life(), ..Self::default() };
    }

    /// Enters RTS: the first packet will have `psn`.
    pub(crate) fn begin(&mut self, psn: Psn, base: &QpBase) {
        self.reset();
        (self.unacknowledged, self.asked, self.selective) = (psn, psn.minus(1), Selective::new(psn));
        self.renew_retries(base);
    }

    /// Smoothed round-trip time; 0 before the first measurement.
    pub(crate) const fn round_trip(&self) -> Nanos {
        self.selective.round_trip()
    }

    /// Oldest PSN that waits for an answer.
    pub(crate) const fn unacknowledged(&self) -> Psn {
        self.unacknowledged
    }

    /// Operation of the last packet acknowledged in this life; `None` before the first
    /// acknowledgment.
    pub(crate) const fn last_acknowledged(&self) -> Option<SendOp> {
        self.last
    }

    /// An answer was requested that covers all packets before `psn`.
    pub(crate) const fn has_asked(&self, psn: Psn) -> bool {
        self.asked.distance_from(psn) >= -1
    }

    /// Time of the next timeout.
    pub(crate) fn deadline(&self) -> Nanos {
        let behind = self.behind.map_or(Nanos::NEVER, |behind| behind.due);
        self.ack_deadline.min(self.selective.deadline()).min(behind).min(self.source.asks_at())
    }

    /// True if this answer, which lies behind a gap, may be buffered: it belongs to this life and
    /// is not a READ response of a later work request. A READ must return data at least as new as
    /// the READ before it, and the earlier READ will be executed again.
    pub(crate) fn may_buffer(&self, packet: &Packet<'_>, queue: &SendQueue, now: Nanos) -> bool {
        let is_answer = matches!(packet.info.operation, Operation::ReadResponse | Operation::AtomicAck);
        is_answer && self.source.may_buffer(packet.roce.source_port(), now) && stays_valid(packet, queue)
    }

    /// Notes that a request was sent.
    pub(crate) fn on_sent(&mut self, sent: &SentRequest, base: &QpBase, now: Nanos) {
        // `AckRequest::Later` counts as asked: even if the packet that asks later never leaves, the
        // ACK timer ends the wait.
        if sent.asks != AckRequest::Not {
            self.on_asked(sent.psn.plus(sent.packets - 1), base, now);
        }
        self.selective.on_sent(sent, self.unacknowledged, base, now);
    }

    /// Notes that only the oldest request was sent again.
    pub(crate) fn on_sent_again(&mut self, again: SentAgain, frontier: Psn, base: &QpBase, now: Nanos) {
        // Every retransmission requests an ACK.
        self.on_asked(self.unacknowledged.plus(again.packets - 1), base, now);
        self.selective.on_sent_again(self.unacknowledged, again, frontier, base, now);
    }

    /// Notes that the peer was asked how far it has received the packets before `cursor`.
    pub(crate) fn on_solicited(&mut self, cursor: Psn, base: &QpBase, now: Nanos) {
        self.on_asked(cursor.minus(1), base, now);
        self.selective.on_solicited(cursor, base, now);
    }

    /// Notes that an answer was requested, up to `last`: the timer runs from the first missing
    /// answer (IBTA v1 9.7.6.1.3). The peer answers only when asked, and a rate limit or a wire
    /// without room can delay the packet that asks indefinitely.
    fn on_asked(&mut self, last: Psn, base: &QpBase, now: Nanos) {
        if last.distance_from(self.asked) > 0 {
            self.asked = last;
        }
        if self.ack_deadline == Nanos::NEVER {
            self.restart_timer(base, now);
        }
    }

    /// No answer was requested for any packet in flight.
    pub(crate) const fn expects_nothing(&self) -> bool {
        self.asked.distance_from(self.unacknowledged) < 0
    }

    /// Knowledge about the source port of the answers.
    pub(super) const fn source(&self) -> &SourcePort {
        &self.source
    }

    /// Processes an ACK, NAK, READ response or ATOMIC ACK. `requests` is the knowledge about the
    /// port of the peer's requests.
    pub(crate) fn on_packet<A: App>(
        &mut self,
        packet: &Packet<'_>,
        requests: &SourcePort,
        requester: &mut Requester,
        cx: &mut Context<'_, A>,
    ) -> Result<(), DropReason> {
        let psn = packet.bth.psn;
        let port = packet.roce.source_port();
        // Accept nothing before the oldest PSN and nothing that was never sent, except a sequence
        // NAK for the next packet to be sent: that peer has all packets before it.
        let ahead = psn.distance_from(self.unacknowledged);
        let beyond = psn.distance_from(requester.frontier());
        self.is_guess = !self.source.is_own(port) && {
            let is_near = ahead > 0 && ((-1..=0).contains(&beyond) || psn == self.asked);
            let is_due = ahead == 0 || is_near && packet.info.operation == Operation::Ack;
            let fit = if is_due && !asks_to_stop(packet) { Fit::Due } else { Fit::Not };
            self.source.check_other(port, fit, Some(requests), cx.now)?
        };
        if ahead < 0 {
            let is_ours = self.source.may_buffer(port, cx.now);
            let raised = is_ours && requester.on_credits(packet, self.unacknowledged, cx.base);
            if is_ours && (is_plain_ack(packet) || packet.info.operation == Operation::ReadResponse) {
                self.selective.on_answered_again(psn, cx.now);
            }
            if ahead == -1 && is_plain_ack(packet) {
                self.on_nothing_new(cx.send_queue, requester, cx.base, cx.now);
            }
            // IBTA v1 9.7.7.2: an unsolicited ACK advertises credits.
            return if raised { Ok(()) } else { Err(DropReason::StaleResponse) };
        }
        if beyond > 0 || beyond == 0 && !is_sequence_nak(packet) {
            return Err(DropReason::UnexpectedResponse);
        }
        if self.source.doubts(port, cx.now).is_some() {
            return Err(DropReason::OtherSourcePort);
        }
        let before = self.unacknowledged;
        self.trusted = self.source.may_buffer(port, cx.now);
        let taken = match packet.info.operation {
            Operation::ReadResponse => self.on_read_response(packet, requester, cx),
            Operation::AtomicAck => self.on_atomic_ack(packet, requester, cx),
            Operation::Ack => self.on_ack(packet, requester, cx),
            // The answer to a request that we never send.
            _ => Err(DropReason::UnexpectedResponse),
        };
        if self.unacknowledged != before || !cx.base.state.sends() {
            // An answer without progress does not prove its life: a NAK may name any PSN. An answer
            // behind a gap may still acknowledge packets before the gap.
            self.source.on_taken(port, cx.base.is_later_life(), cx.now);
        }
        if self.is_guess && self.unacknowledged == before && taken.is_err() {
            return Err(self.source.refuse(cx.now));
        }
        taken?;
        // Other answers may belong to an earlier life. An answer that made progress belongs to this
        // life; it may have filled a gap before much that was acknowledged already.
        if self.trusted || self.unacknowledged != before {
            requester.on_credits(packet, before, cx.base);
        }
        Ok(())
    }

    /// Handles a possible expiry of the ACK timer.
    pub(crate) fn on_timeout<A: App>(&mut self, requester: &mut Requester, cx: &mut Context<'_, A>) {
        if self.source.asks_at() <= cx.now {
            self.source.on_asked();
            requester.solicit_ack();
        }
        if self.behind.is_some_and(|behind| behind.due <= cx.now) {
            self.end_refused(cx);
            return;
        }
        if requester.is_waiting_for_receiver() {
            self.selective.stop();
            return;
        }
        if self.ack_deadline > cx.now {
            self.on_selective_timeout(requester, cx);
            return;
        }
        cx.base.counters.count(QpCount::AckTimeout);
        requester.on_ack_timeout(self.awaits_response(cx.send_queue), self.unacknowledged);
        self.gap_asked = None;
        self.retry(requester, cx);
    }

    /// Completes the local operation at the head of the queue.
    pub(crate) fn complete_local<A: App>(&mut self, cx: &mut Context<'_, A>) {
        if let Some(entry) = cx.send_queue.pop() {
            cx.complete_send(&entry, Status::Success);
        }
    }

    /// Fails the local operation at the head of the queue, which cannot be carried out.
    pub(crate) fn fail_local<A: App>(&mut self, cx: &mut Context<'_, A>) {
        if !cx.send_queue.is_empty() {
            let status = KeyRequest::refusal(cx.send_queue.entry(cx.send_queue.head()));
            self.fail_oldest(status, cx);
        }
    }

    /// Fails the entry that cannot be sent, once it is the oldest.
    #[inline]
    pub(crate) fn fail_refused<A: App>(&mut self, requester: &Requester, cx: &mut Context<'_, A>) {
        if let Some((position, status)) = requester.refused()
            && position == cx.send_queue.head()
            && cx.base.state.sends()
        {
            self.fail_oldest(status, cx);
        }
    }

    fn on_ack<A: App>(
        &mut self,
        packet: &Packet<'_>,
        requester: &mut Requester,
        cx: &mut Context<'_, A>,
    ) -> Result<(), DropReason> {
        let psn = packet.bth.psn;
        let Some(aeth) = packet.aeth else {
            return Err(DropReason::BadLength);
        };
        let before = self.unacknowledged;
        match aeth.syndrome {
            Syndrome::Ack { .. } => match self.advance(psn.plus(1), requester, cx) {
                Ok(()) => self.on_plain_ack(cx.send_queue, requester, cx.now, cx.base.recovery.probe_floor),
                Err(Gap) => self.on_gap(None, requester, cx)?,
            },
            Syndrome::Nak(NakCode::PsnSequence) => {
                cx.base.counters.count(QpCount::SequenceNakReceived);
                match self.advance(psn, requester, cx) {
                    Ok(()) => self.on_sequence_nak(requester, cx),
                    Err(Gap) => {
                        self.remember(psn, PeerAnswer::Missing, cx.base, requester);
                        self.on_gap(None, requester, cx)?;
                    }
                }
            }
            Syndrome::Rnr { timer } => {
                cx.base.counters.count(QpCount::RnrNakReceived);
                match self.advance(psn, requester, cx) {
                    Ok(()) => self.on_rnr(timer, requester, cx),
                    Err(Gap) => {
                        self.remember(psn, PeerAnswer::NotReady(timer), cx.base, requester);
                        self.on_gap(None, requester, cx)?;
                    }
                }
            }
            Syndrome::Nak(code) => match self.advance(psn, requester, cx) {
                Ok(()) => self.on_remote_error(code, cx),
                Err(Gap) => self.remember_refusal(psn, code, cx.base, cx.now),
            },
            Syndrome::Reserved(_) => return Err(DropReason::UnexpectedResponse),
        }
        if self.unacknowledged != before {
            self.on_gap_filled(requester, cx);
        }
        self.fail_refused(requester, cx);
        Ok(())
    }

    fn on_read_response<A: App>(
        &mut self,
        packet: &Packet<'_>,
        requester: &mut Requester,
        cx: &mut Context<'_, A>,
    ) -> Result<(), DropReason> {
        let (psn, before) = (packet.bth.psn, self.unacknowledged);
        // A READ response acknowledges all requests before it (IBTA v1 9.7.5.1.2).
        if self.advance(psn, requester, cx).is_err() {
            return Err(self.on_response_gap(before, packet, requester, cx));
        }
        let answers = |entry: &&SendEntry| entry.is_read() || entry.is_placement();
        let Some(entry) = cx.send_queue.oldest().filter(answers) else {
            return Err(DropReason::UnexpectedResponse);
        };
        let (op, is_read, at) = (entry.op, entry.is_read(), psn.offset_from(entry.first_psn));
        let chunk = requester.read_chunk(cx.base.attributes.max_rd_atomic);
        let ends_entry = at + 1 == entry.packets;
        let ends_chunk = ends_entry || (at + 1).is_multiple_of(chunk);
        let ends = packet.info.position.ends();
        let ends_as_asked = ends == ends_chunk || ends && self.selective.is_part_asked(psn);
        let mtu = cx.base.mtu();
        if let Err(status) = check_response(packet, entry, at, ends_as_asked, mtu) {
            if cx.base.is_buffered {
                // It will be requested again.
                self.selective.remember_dropped(psn);
                return Err(DropReason::OutOfOrderDiscarded);
            }
            if self.is_guess {
                return Err(DropReason::OtherSourcePort);
            }
            self.fail_oldest(status, cx);
            return Err(DropReason::UnexpectedResponse);
        }
        if let WorkData::Sges(sges) = cx.send_queue.data(cx.send_queue.head()) {
            let mut cursor = SgeCursor::new(sges, u64::from(at) * mtu as u64);
            let placed = packet.pieces().try_for_each(|piece| cursor.place(cx.mrs, cx.base.pd(), cx.app, piece));
            match placed {
                Ok(()) => {}
                Err(PlaceFault::Source) => return Err(DropReason::LoopbackSourceGone),
                Err(PlaceFault::Target) => {
                    cx.base.counters.count(QpCount::LocalProtection);
                    self.fail_oldest(Status::LocalProtection, cx);
                    return Ok(());
                }
            }
        }
        if ends && !ends_chunk {
            self.selective.on_part_answered();
        }
        if ends_chunk {
            requester.on_answered();
        }
        (self.unacknowledged, self.last) = (psn.plus(1), Some(op));
        if ends_entry && let Some(entry) = cx.send_queue.pop() {
            cx.complete_send(&entry, Status::Success);
        }
        requester.on_acknowledged(1, is_read, self.unacknowledged, cx.now);
        self.on_progress(is_read, cx.base, cx.send_queue, requester, cx.now);
        self.on_gap_filled(requester, cx);
        self.fail_refused(requester, cx);
        Ok(())
    }

    fn on_atomic_ack<A: App>(
        &mut self,
        packet: &Packet<'_>,
        requester: &mut Requester,
        cx: &mut Context<'_, A>,
    ) -> Result<(), DropReason> {
        let (psn, before) = (packet.bth.psn, self.unacknowledged);
        if self.advance(psn, requester, cx).is_err() {
            return Err(self.on_response_gap(before, packet, requester, cx));
        }
        let entry = cx.send_queue.oldest().copied().filter(SendEntry::is_atomic);
        let (Some(entry), Some(answer)) = (entry, packet.atomic_ack) else {
            return Err(DropReason::UnexpectedResponse);
        };
        if !is_ack(packet) {
            if self.is_guess {
                return Err(DropReason::OtherSourcePort);
            }
            self.fail_oldest(Status::BadResponse, cx);
            return Err(DropReason::UnexpectedResponse);
        }
        if let WorkData::Sges(sges) = cx.send_queue.data(cx.send_queue.head()) {
            // As verbs define it: in the byte order of this host; the operation itself used the
            // byte order of the peer's host.
            let original = answer.original.to_ne_bytes();
            if SgeCursor::new(sges, 0).place(cx.mrs, cx.base.pd(), cx.app, Payload::Bytes(&original)).is_err() {
                cx.base.counters.count(QpCount::LocalProtection);
                self.fail_oldest(Status::LocalProtection, cx);
                return Ok(());
            }
        }
        requester.on_answered();
        (self.unacknowledged, self.last) = (psn.plus(1), Some(entry.op));
        cx.send_queue.pop();
        cx.complete_send(&entry, Status::Success);
        requester.on_acknowledged(1, false, self.unacknowledged, cx.now);
        self.on_progress(false, cx.base, cx.send_queue, requester, cx.now);
        self.on_gap_filled(requester, cx);
        self.fail_refused(requester, cx);
        Ok(())
    }

    /// Handles an answer behind a READ or atomic operation that is not completely answered;
    /// `before` is the oldest unacknowledged PSN before this answer.
    fn on_response_gap<A: App>(
        &mut self,
        before: Psn,
        packet: &Packet<'_>,
        requester: &mut Requester,
        cx: &mut Context<'_, A>,
    ) -> DropReason {
        if self.unacknowledged != before {
            // It belongs to this life and may be buffered even if it is the first answer.
            self.source.on_taken(packet.roce.source_port(), cx.base.is_later_life(), cx.now);
        }
        let buffered = self.may_buffer(packet, cx.send_queue, cx.now).then_some(packet.bth.psn);
        if buffered.is_none() {
            self.selective.remember_dropped(packet.bth.psn);
        }
        // The answer is not accepted now, whether or not this call requests the missing one.
        let _asked = self.on_gap(buffered, requester, cx);
        DropReason::ResponseGap
    }

    /// Acknowledges everything before `to`, up to the first READ or atomic operation: those
    /// complete only with their own last answer.
    pub(super) fn advance<A: App>(
        &mut self,
        to: Psn,
        requester: &mut Requester,
        cx: &mut Context<'_, A>,
    ) -> Result<(), Gap> {
        let before = self.unacknowledged;
        let mut gap = Ok(());
        while self.unacknowledged.distance_from(to) < 0 {
            let entry = *cx.send_queue.entry(cx.send_queue.head());
            if entry.wants_answer() {
                gap = Err(Gap);
                // The first answer of a life shows by progress that it belongs to that.
                self.trusted |= self.unacknowledged != before && self.source.buffers_at_once(cx.base.is_later_life());
                if self.trusted {
                    self.selective.remember_acknowledged(to);
                } else {
                    self.selective.remember_dropped(to.minus(1));
                }
                break;
            }
            self.last = Some(entry.op);
            if to.distance_from(entry.end_psn()) < 0 {
                self.unacknowledged = to;
                break;
            }
            self.unacknowledged = entry.end_psn();
            cx.send_queue.pop();
            cx.complete_send(&entry, Status::Success);
        }
        if self.unacknowledged != before {
            let packets = self.unacknowledged.offset_from(before);
            requester.on_acknowledged(packets, false, self.unacknowledged, cx.now);
            self.on_progress(false, cx.base, cx.send_queue, requester, cx.now);
        }
        gap
    }

    fn on_progress(
        &mut self,
        is_response: bool,
        base: &QpBase,
        queue: &SendQueue,
        requester: &mut Requester,
        now: Nanos,
    ) {
        self.renew_retries(base);
        (self.gap_asked, self.nak) = (None, None);
        let oldest = self.unacknowledged;
        if self.behind.is_some() {
            self.behind = self.behind.filter(|behind| oldest.distance_from(behind.psn) <= 0);
            self.put_off_refusal(base, now);
        }
        if let Some(round_trip) = self.selective.on_progress(oldest, requester, base, now) {
            requester.on_round_trip(is_response, round_trip);
        }
        if requester.cursor().distance_from(oldest) < 0 {
            let (position, packet) = self.place(queue);
            requester.skip_to(position, packet, oldest);
        }
        if requester.cursor() == oldest {
            self.ack_deadline = Nanos::NEVER;
            self.selective.stop();
        } else if self.asked.distance_from(oldest) >= 0 {
            self.restart_timer(base, now);
        } else {
            // No answer was requested yet for the outstanding packets.
            self.ack_deadline = Nanos::NEVER;
        }
    }

    /// Position in the queue of the oldest unacknowledged PSN.
    pub(super) fn place(&self, queue: &SendQueue) -> (u32, u32) {
        let position = queue.head();
        let Some(entry) = queue.oldest() else {
            return (position, 0);
        };
        let packet = self.unacknowledged.offset_from(entry.first_psn);
        // An entry that was never sent has no PSNs yet.
        (position, if packet < entry.packets { packet } else { 0 })
    }

    fn restart_timer(&mut self, base: &QpBase, now: Nanos) {
        self.ack_deadline = now + ack_timeout(base.attributes.timeout);
    }

    /// Resets both retry counts to the attributes.
    pub(crate) fn renew_retries(&mut self, base: &QpBase) {
        self.retries_left = base.attributes.retry_cnt;
        self.rnr_retries_left = base.attributes.rnr_retry;
    }
}
