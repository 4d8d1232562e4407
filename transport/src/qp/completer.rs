//! The completer: what the peer's answers say about work that was sent.
//!
//! It owns the oldest unacknowledged PSN and everything about trying again: the ACK timer, the two
//! retry counts. A lost READ response or ATOMIC ACK shows as an answer beyond it (an implied NAK,
//! IBTA v1 9.7.5.1.4); what is lost is asked for once, and after that only the timer asks again.
//! How little is sent again, and how soon, is told in `selective.rs`.

use core::ops::RangeInclusive;

use roced_types::{SendOp, Status};

use super::{
    Context, QpBase,
    deferred::{DeferredAnswer, PeerAnswer},
    key_change::KeyRequest,
    life::SourcePort,
    requester::{AckRequest, Requester, SentAgain, SentRequest},
    retry::{RNR_RETRY_FOREVER, ack_timeout},
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
        aeth::{NakCode, Syndrome, rnr_delay},
        frame::Packet,
        opcode::Operation,
    },
    work::WorkData,
};

/// What is done.
#[derive(Debug)]
pub(crate) struct Completer {
    unacknowledged: Psn,
    /// What the last packet was of that was acknowledged in this life.
    last: Option<SendOp>,
    retries_left: u32,
    rnr_retries_left: u32,
    /// The highest PSN that an answer was asked for, or will be soon.
    asked: Psn,
    ack_deadline: Nanos,
    /// An implied NAK was acted upon at this PSN; only progress or the timer allows another.
    gap_asked: Option<Psn>,
    /// The last sequence NAK that was acted upon.
    nak: Option<RepeatedNak>,
    /// What the peer said of a request behind READs or atomic operations that are not all answered.
    pub(super) behind: Option<DeferredAnswer>,
    /// Where the answers of this life come from.
    source: SourcePort,
    /// The answer that is looked at is certainly of this life: what it says of requests behind a
    /// gap may be believed when the gap is filled.
    trusted: bool,
    /// What it knows beyond what go-back-N needs.
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
            selective: Selective::new(Psn::default()),
        }
    }
}

/// A sequence NAK that was acted upon. Some peers say it again for each packet behind the one that
/// they miss: of those that were sent before, which may stand in a queue that is longer than any
/// round trip that was measured.
#[derive(Clone, Copy, Debug)]
struct RepeatedNak {
    psn: Psn,
    at: Nanos,
    /// When the last of them came.
    last: Nanos,
    /// So many more may come.
    left: u32,
}

impl RepeatedNak {
    /// Another of the same PSN comes: it speaks of the first sending, as far as can be told. What
    /// was sent again is behind all that was sent before, so its loss shows when those have been
    /// spoken of, or when nobody has spoken for so long.
    fn is_repeated(&mut self, now: Nanos, patience: Nanos, silence: Nanos) -> bool {
        let same = now - self.at < patience || self.left > 0 && now - self.last < silence;
        (self.last, self.left) = (now, self.left.saturating_sub(1));
        same
    }
}

/// An answer lies beyond a READ or atomic operation that is not all answered.
pub(super) struct Gap;

impl Completer {
    /// The life is over; what it tells about the next is kept.
    pub(crate) fn reset(&mut self) {
        *self = Self { source: self.source.next_life(), ..Self::default() };
    }

    /// Ready to send: the first packet will have `psn`.
    pub(crate) fn begin(&mut self, psn: Psn, base: &QpBase) {
        self.reset();
        (self.unacknowledged, self.asked, self.selective) = (psn, psn.minus(1), Selective::new(psn));
        self.renew_retries(base);
    }

    /// The oldest PSN that waits for an answer.
    pub(crate) const fn unacknowledged(&self) -> Psn {
        self.unacknowledged
    }

    /// What the last packet was of that was acknowledged in this life; `None` before the first was.
    pub(crate) const fn last_acknowledged(&self) -> Option<SendOp> {
        self.last
    }

    /// An answer was asked for that covers all before `psn`.
    pub(crate) const fn has_asked(&self, psn: Psn) -> bool {
        self.asked.distance_from(psn) >= -1
    }

    /// When a timer runs out.
    pub(crate) fn deadline(&self) -> Nanos {
        let behind = self.behind.map_or(Nanos::NEVER, |behind| behind.due);
        self.ack_deadline.min(self.selective.deadline()).min(behind).min(self.source.asks_at())
    }

    /// This answer lies behind a gap, and may wait for its turn: it is of this life, and not a READ
    /// response of a later work request. What a READ brings must be as new as what the READ before
    /// it brings, and that will be executed again.
    pub(crate) fn may_hold(&self, packet: &Packet<'_>, queue: &SendQueue, now: Nanos) -> bool {
        let is_answer = matches!(packet.info.operation, Operation::ReadResponse | Operation::AtomicAck);
        is_answer && self.source.may_hold(packet.roce.source_port(), now) && is_settled(packet, queue)
    }

    /// A request was sent.
    pub(crate) fn on_sent(&mut self, sent: &SentRequest, base: &QpBase, now: Nanos) {
        // One that does not ask now is as good as asked about: whatever becomes of that, the ACK
        // timer ends it.
        if sent.asks != AckRequest::Not {
            self.on_asked(sent.psn.plus(sent.packets - 1), base, now);
        }
        self.selective.on_sent(sent, self.unacknowledged, base, now);
    }

    /// The oldest request was sent again, and nothing else.
    pub(crate) fn on_sent_again(&mut self, again: SentAgain, frontier: Psn, base: &QpBase, now: Nanos) {
        // What is sent again always asks.
        self.on_asked(self.unacknowledged.plus(again.packets - 1), base, now);
        self.selective.on_sent_again(self.unacknowledged, again, frontier, base, now);
    }

    /// The peer was asked how much of what lies before `cursor` it has.
    pub(crate) fn on_solicited(&mut self, cursor: Psn, base: &QpBase, now: Nanos) {
        self.on_asked(cursor.minus(1), base, now);
        self.selective.on_solicited(cursor, base, now);
    }

    /// An answer was asked for, up to `last`: the timer runs from the first that is missing (IBTA
    /// v1 9.7.6.1.3). Nobody answers before he is asked, however long it takes until a packet that
    /// asks may leave: a rate, a wire without room.
    fn on_asked(&mut self, last: Psn, base: &QpBase, now: Nanos) {
        if last.distance_from(self.asked) > 0 {
            self.asked = last;
        }
        if self.ack_deadline == Nanos::NEVER {
            self.restart_timer(base, now);
        }
    }

    /// An ACK, NAK or READ response.
    pub(crate) fn on_packet<A: App>(
        &mut self,
        packet: &Packet<'_>,
        base: &mut QpBase,
        queue: &mut SendQueue,
        requester: &mut Requester,
        cx: &mut Context<'_, A>,
    ) -> Result<(), DropReason> {
        let psn = packet.bth.psn;
        let port = packet.roce.source_port();
        if self.source.refuses(port) {
            return Err(DropReason::OtherSourcePort);
        }
        // Nothing before the oldest, nothing that was never sent; but a peer that misses the first
        // packet that was not sent yet has all before it.
        let ahead = psn.distance_from(self.unacknowledged);
        if ahead < 0 {
            let is_ours = self.source.may_hold(port, cx.now);
            let raised = is_ours && requester.on_credits(packet, self.unacknowledged, base);
            if is_ours && (is_plain_ack(packet) || packet.info.operation == Operation::ReadResponse) {
                self.selective.on_answered_again(psn, cx.now);
            }
            if ahead == -1 && is_plain_ack(packet) {
                self.on_nothing_new(queue, requester, base, cx.now);
            }
            // IBTA v1 9.7.7.2: an ACK that nothing asked for offers credits.
            return if raised { Ok(()) } else { Err(DropReason::StaleResponse) };
        }
        let beyond = psn.distance_from(requester.frontier());
        if beyond > 0 || beyond == 0 && !is_sequence_nak(packet) {
            return Err(DropReason::UnexpectedResponse);
        }
        if self.source.doubts(port, cx.now).is_some() {
            return Err(DropReason::OtherSourcePort);
        }
        let before = self.unacknowledged;
        self.trusted = self.source.may_hold(port, cx.now);
        let taken = match packet.info.operation {
            Operation::ReadResponse => self.on_read_response(packet, base, queue, requester, cx),
            Operation::AtomicAck => self.on_atomic_ack(packet, base, queue, requester, cx),
            Operation::Ack => self.on_ack(packet, base, queue, requester, cx),
            // The answer to what we never ask.
            _ => Err(DropReason::UnexpectedResponse),
        };
        if self.unacknowledged != before || !base.state.sends() {
            // What brought nothing forward shows no life: any may be complained of. One behind a
            // gap may acknowledge what is before the gap.
            self.source.on_taken(port, base.is_later_life(), cx.now);
        }
        taken?;
        // Another answer may be of an earlier life. One that brought something may have filled a
        // gap before much that is acknowledged already, and is of now all the same.
        if self.trusted || self.unacknowledged != before {
            requester.on_credits(packet, before, base);
        }
        Ok(())
    }

    /// The ACK timer may have run out.
    pub(crate) fn on_timeout<A: App>(
        &mut self,
        base: &mut QpBase,
        queue: &mut SendQueue,
        requester: &mut Requester,
        cx: &mut Context<'_, A>,
    ) {
        if self.source.asks_at() <= cx.now {
            self.source.on_asked();
            requester.solicit_ack();
        }
        if self.behind.is_some_and(|behind| behind.due <= cx.now) {
            self.end_refused(base, queue, cx);
            return;
        }
        if requester.is_waiting_for_receiver() {
            self.selective.stop();
            return;
        }
        if self.ack_deadline > cx.now {
            self.on_selective_timeout(base, queue, requester, cx);
            return;
        }
        base.counters.count(QpCount::AckTimeout);
        self.gap_asked = None;
        self.retry(base, queue, requester, cx);
    }

    /// The local operation that is the oldest entry is done.
    pub(crate) fn complete_local<A: App>(&mut self, base: &mut QpBase, queue: &mut SendQueue, cx: &mut Context<'_, A>) {
        if let Some(entry) = queue.pop() {
            base.complete_send(&entry, Status::Success, cx);
        }
    }

    /// The local operation that is the oldest entry cannot be carried out.
    pub(crate) fn fail_local<A: App>(&mut self, base: &mut QpBase, queue: &mut SendQueue, cx: &mut Context<'_, A>) {
        if !queue.is_empty() {
            let status = KeyRequest::refusal(queue.entry(queue.head()));
            self.fail_oldest(base, queue, status, cx);
        }
    }

    /// When the entry that cannot be sent is the oldest, it fails.
    pub(crate) fn fail_refused<A: App>(
        &mut self,
        base: &mut QpBase,
        queue: &mut SendQueue,
        requester: &Requester,
        cx: &mut Context<'_, A>,
    ) {
        if let Some((position, status)) = requester.refused()
            && position == queue.head()
            && base.state.sends()
        {
            self.fail_oldest(base, queue, status, cx);
        }
    }

    fn on_ack<A: App>(
        &mut self,
        packet: &Packet<'_>,
        base: &mut QpBase,
        queue: &mut SendQueue,
        requester: &mut Requester,
        cx: &mut Context<'_, A>,
    ) -> Result<(), DropReason> {
        let psn = packet.bth.psn;
        let Some(aeth) = packet.aeth else {
            return Err(DropReason::BadLength);
        };
        let before = self.unacknowledged;
        match aeth.syndrome {
            Syndrome::Ack { .. } => match self.advance(psn.plus(1), base, queue, requester, cx) {
                Ok(()) => self.on_plain_ack(queue, requester, cx.now, base.recovery.probe_floor),
                Err(Gap) => self.on_gap(None, base, queue, requester, cx)?,
            },
            Syndrome::Nak(NakCode::PsnSequence) => {
                base.counters.count(QpCount::SequenceNakReceived);
                match self.advance(psn, base, queue, requester, cx) {
                    Ok(()) => self.on_sequence_nak(base, queue, requester, cx),
                    Err(Gap) => {
                        self.remember(psn, PeerAnswer::Missing, base, requester);
                        self.on_gap(None, base, queue, requester, cx)?;
                    }
                }
            }
            Syndrome::Rnr { timer } => {
                base.counters.count(QpCount::RnrNakReceived);
                match self.advance(psn, base, queue, requester, cx) {
                    Ok(()) => self.on_rnr(timer, base, queue, requester, cx),
                    Err(Gap) => {
                        self.remember(psn, PeerAnswer::NotReady(timer), base, requester);
                        self.on_gap(None, base, queue, requester, cx)?;
                    }
                }
            }
            Syndrome::Nak(code) => match self.advance(psn, base, queue, requester, cx) {
                Ok(()) => self.on_remote_error(code, base, queue, cx),
                Err(Gap) => self.remember_refusal(psn, code, base, cx.now),
            },
            Syndrome::Reserved(_) => return Err(DropReason::UnexpectedResponse),
        }
        if self.unacknowledged != before {
            self.on_gap_filled(base, queue, requester, cx);
        }
        self.fail_refused(base, queue, requester, cx);
        Ok(())
    }

    fn on_read_response<A: App>(
        &mut self,
        packet: &Packet<'_>,
        base: &mut QpBase,
        queue: &mut SendQueue,
        requester: &mut Requester,
        cx: &mut Context<'_, A>,
    ) -> Result<(), DropReason> {
        let (psn, before) = (packet.bth.psn, self.unacknowledged);
        // It acknowledges all requests before it (IBTA v1 9.7.5.1.2).
        if self.advance(psn, base, queue, requester, cx).is_err() {
            return Err(self.on_response_gap(before, packet, base, queue, requester, cx));
        }
        let answers = |entry: &SendEntry| entry.is_read() || entry.is_placement();
        if queue.is_empty() || !answers(queue.entry(queue.head())) {
            return Err(DropReason::UnexpectedResponse);
        }
        let position = queue.head();
        let entry = *queue.entry(position);
        let at = psn.offset_from(entry.first_psn);
        let chunk = requester.read_chunk(base.attributes.max_rd_atomic);
        let ends_entry = at + 1 == entry.packets;
        let ends_chunk = ends_entry || (at + 1).is_multiple_of(chunk);
        let may_end = ends_chunk || self.selective.is_part_asked(psn);
        if let Err(status) = check_response(packet, &entry, at, ends_chunk..=may_end, base.mtu()) {
            if base.is_held {
                // It is asked for again.
                self.selective.remember_dropped(psn);
                return Err(DropReason::HeldInVain);
            }
            self.fail_oldest(base, queue, status, cx);
            return Err(DropReason::UnexpectedResponse);
        }
        if let WorkData::Sges(sges) = queue.data(position) {
            let mut cursor = SgeCursor::new(sges, u64::from(at) * base.mtu() as u64);
            let placed = packet.pieces().try_for_each(|piece| cursor.place(cx.mrs, base.pd(), cx.app, piece));
            match placed {
                Ok(()) => {}
                Err(PlaceFault::Lender) => return Err(DropReason::LenderGone),
                Err(PlaceFault::Target) => {
                    base.counters.count(QpCount::LocalProtection);
                    self.fail_oldest(base, queue, Status::LocalProtection, cx);
                    return Ok(());
                }
            }
        }
        if packet.info.position.ends() && !ends_chunk {
            self.selective.on_part_answered();
        }
        let next = psn.plus(1);
        if ends_chunk {
            requester.on_answered();
        }
        (self.unacknowledged, self.last) = (next, Some(entry.op));
        if ends_entry {
            queue.pop();
            base.complete_send(&entry, Status::Success, cx);
        }
        self.on_progress(base, queue, requester, cx.now);
        self.on_gap_filled(base, queue, requester, cx);
        self.fail_refused(base, queue, requester, cx);
        Ok(())
    }

    fn on_atomic_ack<A: App>(
        &mut self,
        packet: &Packet<'_>,
        base: &mut QpBase,
        queue: &mut SendQueue,
        requester: &mut Requester,
        cx: &mut Context<'_, A>,
    ) -> Result<(), DropReason> {
        let (psn, before) = (packet.bth.psn, self.unacknowledged);
        if self.advance(psn, base, queue, requester, cx).is_err() {
            return Err(self.on_response_gap(before, packet, base, queue, requester, cx));
        }
        let position = queue.head();
        let entry = (!queue.is_empty()).then(|| *queue.entry(position)).filter(SendEntry::is_atomic);
        let (Some(entry), Some(answer)) = (entry, packet.atomic_ack) else {
            return Err(DropReason::UnexpectedResponse);
        };
        if !is_ack(packet) {
            self.fail_oldest(base, queue, Status::BadResponse, cx);
            return Err(DropReason::UnexpectedResponse);
        }
        if let WorkData::Sges(sges) = queue.data(position) {
            // As verbs define it: in the byte order of this host, as the operation itself was in
            // the other's.
            let original = answer.original.to_ne_bytes();
            if SgeCursor::new(sges, 0).place(cx.mrs, base.pd(), cx.app, Payload::Bytes(&original)).is_err() {
                base.counters.count(QpCount::LocalProtection);
                self.fail_oldest(base, queue, Status::LocalProtection, cx);
                return Ok(());
            }
        }
        requester.on_answered();
        (self.unacknowledged, self.last) = (psn.plus(1), Some(entry.op));
        queue.pop();
        base.complete_send(&entry, Status::Success, cx);
        self.on_progress(base, queue, requester, cx.now);
        self.on_gap_filled(base, queue, requester, cx);
        self.fail_refused(base, queue, requester, cx);
        Ok(())
    }

    /// An answer came that lies behind a READ or atomic operation that is not all answered; the
    /// oldest was `before` until then.
    fn on_response_gap<A: App>(
        &mut self,
        before: Psn,
        packet: &Packet<'_>,
        base: &mut QpBase,
        queue: &mut SendQueue,
        requester: &mut Requester,
        cx: &mut Context<'_, A>,
    ) -> DropReason {
        if self.unacknowledged != before {
            // It is of this life, and may be held though it is the first.
            self.source.on_taken(packet.roce.source_port(), base.is_later_life(), cx.now);
        }
        let held = self.may_hold(packet, queue, cx.now).then_some(packet.bth.psn);
        if held.is_none() {
            self.selective.remember_dropped(packet.bth.psn);
        }
        // Whether it asks again or did before, the answer is not taken now.
        let _asked = self.on_gap(held, base, queue, requester, cx);
        DropReason::ResponseGap
    }

    /// Everything before `to` is acknowledged, but for READs and atomic operations: those end with
    /// their own last answer only.
    pub(super) fn advance<A: App>(
        &mut self,
        to: Psn,
        base: &mut QpBase,
        queue: &mut SendQueue,
        requester: &mut Requester,
        cx: &mut Context<'_, A>,
    ) -> Result<(), Gap> {
        let before = self.unacknowledged;
        let mut gap = Ok(());
        while self.unacknowledged.distance_from(to) < 0 {
            let entry = *queue.entry(queue.head());
            if entry.wants_answer() {
                gap = Err(Gap);
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
            queue.pop();
            base.complete_send(&entry, Status::Success, cx);
        }
        if self.unacknowledged != before {
            self.on_progress(base, queue, requester, cx.now);
        }
        gap
    }

    fn on_progress(&mut self, base: &QpBase, queue: &SendQueue, requester: &mut Requester, now: Nanos) {
        self.renew_retries(base);
        (self.gap_asked, self.nak) = (None, None);
        let oldest = self.unacknowledged;
        self.behind = self.behind.filter(|behind| oldest.distance_from(behind.psn) <= 0);
        self.put_off_refusal(base, now);
        self.selective.on_progress(self.unacknowledged, requester, base, now);
        let (position, packet) = self.place(queue);
        requester.skip_to(position, packet, self.unacknowledged);
        if requester.cursor() == self.unacknowledged {
            self.ack_deadline = Nanos::NEVER;
            self.selective.stop();
        } else if self.asked.distance_from(self.unacknowledged) >= 0 {
            self.restart_timer(base, now);
        } else {
            // What waits was not asked for yet.
            self.ack_deadline = Nanos::NEVER;
        }
    }

    /// Where the oldest unacknowledged PSN lies in the queue.
    pub(super) fn place(&self, queue: &SendQueue) -> (u32, u32) {
        let position = queue.head();
        if queue.is_empty() {
            return (position, 0);
        }
        let entry = queue.entry(position);
        let packet = self.unacknowledged.offset_from(entry.first_psn);
        // An entry that was never sent has no PSNs yet.
        (position, if packet < entry.packets { packet } else { 0 })
    }

    /// What lies before an answer, `held` if that is kept, is missing.
    fn on_gap<A: App>(
        &mut self,
        held: Option<Psn>,
        base: &mut QpBase,
        queue: &mut SendQueue,
        requester: &mut Requester,
        cx: &mut Context<'_, A>,
    ) -> Result<(), DropReason> {
        if base.recovery.is_selective() {
            self.on_hole(cx.now + base.recovery.reorder_delay, held, base, queue, requester, cx);
            return Ok(());
        }
        if self.gap_asked == Some(self.unacknowledged) {
            return Err(DropReason::ResponseGap);
        }
        base.counters.count(QpCount::ImpliedNak);
        self.retry(base, queue, requester, cx);
        self.gap_asked = Some(self.unacknowledged);
        Ok(())
    }

    /// Sends everything unacknowledged again, if a retry is left. Nothing happens when that was
    /// said before and none of it has been sent yet: a NAK that comes twice, a wire without room or
    /// a rate do not use up retries.
    pub(super) fn retry<A: App>(
        &mut self,
        base: &mut QpBase,
        queue: &mut SendQueue,
        requester: &mut Requester,
        cx: &mut Context<'_, A>,
    ) {
        if requester.cursor() != self.unacknowledged && self.spend_retry(base, queue, cx) {
            self.go_back(queue, requester);
        }
    }

    /// Takes one of the retries that are left; without one the oldest request fails.
    pub(super) fn spend_retry<A: App>(
        &mut self,
        base: &mut QpBase,
        queue: &mut SendQueue,
        cx: &mut Context<'_, A>,
    ) -> bool {
        let Some(left) = self.retries_left.checked_sub(1) else {
            base.counters.count(QpCount::RetryExceeded);
            self.fail_oldest(base, queue, Status::TransportRetryExceeded, cx);
            return false;
        };
        self.retries_left = left;
        true
    }

    /// The cursor goes back to the oldest unacknowledged packet.
    pub(super) fn go_back(&mut self, queue: &SendQueue, requester: &mut Requester) {
        let (position, packet) = self.place(queue);
        requester.rewind(position, packet, self.unacknowledged);
        self.on_gone_back();
    }

    /// What was outstanding, or is behind the oldest, is sent anew.
    pub(super) fn on_gone_back(&mut self) {
        self.selective.on_gone_back();
        // A refusal stays; what else was said will be said again.
        self.behind = self.behind.filter(|behind| matches!(behind.said, PeerAnswer::Refused(_)));
        // Nothing is outstanding now; the timer starts with the next packet.
        self.ack_deadline = Nanos::NEVER;
    }

    /// The oldest unacknowledged packet is sent once more, for a retry. As when all is: the timer
    /// starts when it has left, so that a wire without room or a rate do not use up another.
    pub(super) fn send_oldest_again(&mut self, requester: &mut Requester) {
        requester.send_oldest_again();
        self.ack_deadline = Nanos::NEVER;
    }

    pub(super) fn on_rnr<A: App>(
        &mut self,
        timer: u8,
        base: &mut QpBase,
        queue: &mut SendQueue,
        requester: &mut Requester,
        cx: &mut Context<'_, A>,
    ) {
        if requester.is_waiting_for_receiver() {
            // Nothing was sent since the last one: it came twice, or was said twice. The wait is
            // that of the last.
            requester.wait_for_receiver(cx.now, rnr_delay(timer));
            return;
        }
        if base.attributes.rnr_retry != RNR_RETRY_FOREVER {
            if self.rnr_retries_left == 0 {
                base.counters.count(QpCount::RnrRetryExceeded);
                self.fail_oldest(base, queue, Status::RnrRetryExceeded, cx);
                return;
            }
            self.rnr_retries_left -= 1;
        }
        // The peer answers, if only to put us off: time-outs between two such answers are not of
        // one row. However long the receiver takes, what is lost meanwhile does not add up.
        self.retries_left = base.attributes.retry_cnt;
        self.go_back(queue, requester);
        requester.wait_for_receiver(cx.now, rnr_delay(timer));
    }

    /// The peer misses the oldest packet, or the next that will be sent. It is sent again, alone or
    /// with all behind it. A peer that says so for each packet behind the one that it misses says
    /// it once.
    pub(super) fn on_sequence_nak<A: App>(
        &mut self,
        base: &mut QpBase,
        queue: &mut SendQueue,
        requester: &mut Requester,
        cx: &mut Context<'_, A>,
    ) {
        let oldest = self.unacknowledged;
        let patience = self.selective.patience();
        let silence = patience.max(base.recovery.probe_floor);
        let complaint = self.nak.as_mut().filter(|complaint| complaint.psn == oldest);
        let again = complaint.is_some_and(|complaint| complaint.is_repeated(cx.now, patience, silence));
        if again || oldest == requester.frontier() || requester.is_about_to_send(oldest) {
            return;
        }
        // The oldest is missing, and one of those behind it has said so.
        let left = requester.cursor().offset_from(oldest).saturating_sub(2);
        self.nak = Some(RepeatedNak { psn: oldest, at: cx.now, last: cx.now, left });
        if base.recovery.is_selective() {
            self.repair_missing(base, queue, requester, cx);
        } else {
            self.retry(base, queue, requester, cx);
        }
    }

    /// The responder refused the oldest request and does no more.
    pub(super) fn on_remote_error<A: App>(
        &mut self,
        code: NakCode,
        base: &mut QpBase,
        queue: &mut SendQueue,
        cx: &mut Context<'_, A>,
    ) {
        let (status, count) = match code {
            NakCode::RemoteAccess => (Status::RemoteAccess, QpCount::RemoteAccessReceived),
            NakCode::RemoteOperation => (Status::RemoteOperation, QpCount::RemoteOperationReceived),
            // 0x60 was taken care of, and codes without a meaning were dropped; 0x61 is left, and
            // 0x64, which is of reliable datagrams.
            _ => (Status::RemoteInvalidRequest, QpCount::RemoteInvalidReceived),
        };
        base.counters.count(count);
        self.fail_oldest(base, queue, status, cx);
    }

    /// All before `psn` that waits for an answer will get none: it is flushed, for nothing succeeds
    /// behind a request that did not.
    pub(super) fn flush_before<A: App>(
        &mut self,
        psn: Psn,
        base: &mut QpBase,
        queue: &mut SendQueue,
        cx: &mut Context<'_, A>,
    ) {
        while self.unacknowledged.distance_from(psn) < 0 {
            let entry = *queue.entry(queue.head());
            if psn.distance_from(entry.end_psn()) < 0 {
                // The request itself, in its middle.
                break;
            }
            queue.pop();
            self.unacknowledged = entry.end_psn();
            base.complete_send(&entry, Status::WorkRequestFlushed, cx);
        }
    }

    /// The oldest request fails, and the queue pair with it; the rest is flushed.
    fn fail_oldest<A: App>(
        &mut self,
        base: &mut QpBase,
        queue: &mut SendQueue,
        status: Status,
        cx: &mut Context<'_, A>,
    ) {
        self.ack_deadline = Nanos::NEVER;
        self.selective.stop();
        base.fail();
        if let Some(entry) = queue.pop() {
            base.complete_send(&entry, status, cx);
        }
    }

    fn restart_timer(&mut self, base: &QpBase, now: Nanos) {
        self.ack_deadline = now + ack_timeout(base.attributes.timeout);
    }

    /// As many retries as the attributes say.
    pub(crate) fn renew_retries(&mut self, base: &QpBase) {
        self.retries_left = base.attributes.retry_cnt;
        self.rnr_retries_left = base.attributes.rnr_retry;
    }
}

/// A response must be as long as its place says, and end where a request of ours ended, as `ends`
/// says. Whether it begins one we do not mind: a request that was repeated from its middle begins
/// anew there.
fn check_response(
    packet: &Packet<'_>,
    entry: &SendEntry,
    at: u32,
    ends: RangeInclusive<bool>,
    mtu: usize,
) -> Result<(), Status> {
    let expected = (entry.length() - u64::from(at) * mtu as u64).min(mtu as u64);
    if packet.payload_len() as u64 == expected && ends.contains(&packet.info.position.ends()) && is_ack(packet) {
        Ok(())
    } else {
        Err(Status::BadResponse)
    }
}

/// An answer that stays true however long it waits, or one of the first READ that waits. READ
/// responses behind that say what was there before it is executed again. The walk ends at the
/// packet, which is in flight, so it is no longer than the window.
fn is_settled(packet: &Packet<'_>, queue: &SendQueue) -> bool {
    if packet.payload_len() == 0 {
        return true;
    }
    let mut position = queue.head();
    while position != queue.tail() {
        let entry = queue.entry(position);
        if packet.bth.psn.distance_from(entry.end_psn()) < 0 {
            return entry.is_read();
        }
        if entry.is_read() {
            return false;
        }
        position = position.wrapping_add(1);
    }
    false
}

fn is_sequence_nak(packet: &Packet<'_>) -> bool {
    packet.info.operation == Operation::Ack
        && packet.aeth.is_some_and(|aeth| aeth.syndrome == Syndrome::Nak(NakCode::PsnSequence))
}

fn is_plain_ack(packet: &Packet<'_>) -> bool {
    packet.info.operation == Operation::Ack && is_ack(packet)
}

fn is_ack(packet: &Packet<'_>) -> bool {
    packet.aeth.is_none_or(|aeth| matches!(aeth.syndrome, Syndrome::Ack { .. }))
}
