//! Sending as little again as can be: what the completer knows beyond what go-back-N needs.
//!
//! The standard's wire has no word for "I have what follows". But a peer that keeps what follows a
//! loss says so when the loss is repaired: its ACK covers more than can have been sent again and
//! arrived. So the first NAK sends everything again from the packet that it names; an ACK beyond
//! the cursor, or for a packet that left less than a round trip ago, moves the cursor on to where
//! sending had come, and marks the peer as one that keeps. So does an answer that comes twice, for
//! the peer has what it was sent for the second time. To such a peer a NAK sends one packet again.
//! Two signs end that:
//!
//! * a NAK for the very next READ request, or for the very next packet and the one behind that:
//!   several were lost in a row, so all goes again until an ACK beyond the cursor says enough;
//! * an ACK for the packet that was sent again and not one more: nothing behind it is there, and
//!   the mark is taken back.
//!
//! READ responses are placed in order. Those ahead of a gap are held by the endpoint, as requests
//! are at a responder; the READ request is sent again from the lowest missing PSN to the first that
//! is there, and the second time to its end, which serves all that is missing of it. Responders
//! drop a repetition that begins lower than one before, and some one that does not end where the
//! request ended: after a few of those in vain only the rest of requests is asked for. A probe
//! finds that a repetition was lost. A response that is held already says nothing of that: it may
//! be of the first answer, of an earlier repetition or the network's.

use super::{
    Context, QpBase,
    completer::Completer,
    probe::TailProbe,
    requester::{AckRequest, Reason, Requester, SentAgain, SentRequest},
    send_queue::SendQueue,
};
use crate::{clock::Nanos, counters::QpCount, io::App, out_of_order::HELD_MAX, psn::Psn};

/// So many parts of READ requests are asked for in vain, and then no more: some responders answer a
/// repetition only if it ends where the request ended.
const PARTS_TRIED_MAX: u8 = 3;

/// So many packets in a row are sent again alone, each when a NAK names it, and then all is. At the
/// end of a message it is one, for what the peer holds behind two that end messages it gives up.
const ALONE_MAX: u8 = 2;

/// What was learned about peer and path, and what is under way.
#[derive(Debug)]
pub(crate) struct Selective {
    probe: TailProbe,
    /// The peer was seen to keep what follows a loss.
    keeps: bool,
    /// The cursor went back for a NAK, and the peer may be seen to keep what was sent before.
    went_back: Option<Rewind>,
    /// One packet was sent again, and nothing is known of it yet.
    again: Option<SingleRepair>,
    /// Packets in a row that were sent again alone, the last included.
    alone: u8,
    /// Packets in a row that were sent again because the ACK of the one before said nothing of
    /// them.
    presumed: u8,
    /// The peer missed a READ, or an operation with one answer, which is sent again alone. Its
    /// answer says nothing of what the peer has behind it.
    missed: Option<AnswerRepair>,
    /// Responses with these PSNs, the end not included, were asked for again.
    repeated: Option<(Psn, Psn)>,
    /// When the response that is missing is asked for again, if it does not come before.
    gap_due: Nanos,
    /// A response that is there, behind those that are missing.
    gap_end: Option<Psn>,
    /// Responses before this one were asked for again in parts: each may end its answer.
    parts_end: Option<Psn>,
    /// The READ request with this PSN was the last of which a part was asked for.
    part_of: Option<Psn>,
    /// Parts of READ requests that were asked for, until one was answered as such; `None` from then
    /// on.
    parts_tried: Option<u8>,
    /// Behind READs that are not complete all before this PSN is acknowledged.
    acknowledged: Option<Psn>,
    /// Answers behind the oldest that is missing were not held: the first and the last of them.
    dropped: Option<(Psn, Psn)>,
    /// Up to here answers were dropped, and asked for again for no other reason.
    asked_for_dropped: Option<Psn>,
    /// The peer was asked how much it has of what lies before this PSN.
    solicited: Option<(Psn, Nanos)>,
}

/// So many packets in a row are presumed lost before another NAK or probe. Where a probe was
/// needless the ACKs are those of the first sending, and each would have the next packet sent
/// again.
const PRESUMED_MAX: u8 = 4;

/// The cursor went back for a NAK at `at`.
#[derive(Clone, Copy, Debug)]
struct Rewind {
    at: Nanos,
    /// The packet that the NAK named, and the frontier of that moment.
    psn: Psn,
    end: Psn,
    /// A packet that was sent again half a round trip later at least, and when. The ACK of the
    /// packet that the NAK named comes before this one can be answered.
    late: Option<(Psn, Nanos)>,
}

/// A packet that was sent again alone.
#[derive(Clone, Copy, Debug)]
struct SingleRepair {
    psn: Psn,
    at: Nanos,
    /// The frontier of that moment.
    frontier: Psn,
}

/// A request with an answer of its own that is sent again alone.
#[derive(Clone, Copy, Debug)]
struct AnswerRepair {
    /// The PSN behind its last response.
    end: Psn,
    /// The frontier of the moment in which it left.
    frontier: Psn,
    /// A NAK named it: the peer has received something behind it.
    named: bool,
    /// The peer has not all that was sent before.
    told: bool,
}

fn farther(one: Psn, other: Psn) -> Psn {
    if one.distance_from(other) > 0 { one } else { other }
}

impl Selective {
    /// The first packet will have `psn`.
    pub(crate) fn new(psn: Psn) -> Self {
        Self {
            probe: TailProbe::new(psn),
            keeps: false,
            went_back: None,
            again: None,
            alone: 0,
            presumed: 0,
            missed: None,
            repeated: None,
            gap_due: Nanos::NEVER,
            gap_end: None,
            parts_end: None,
            part_of: None,
            parts_tried: Some(0),
            acknowledged: None,
            dropped: None,
            asked_for_dropped: None,
            solicited: None,
        }
    }

    /// How long an answer takes at the most, as far as is known.
    pub(crate) fn patience(&self) -> Nanos {
        self.probe.rtt().patience()
    }

    pub(crate) fn deadline(&self) -> Nanos {
        self.probe.deadline().min(self.gap_due)
    }

    /// A packet was sent at the cursor.
    pub(crate) fn on_sent(&mut self, sent: &SentRequest, oldest: Psn, base: &QpBase, now: Nanos) {
        if !sent.is_new && sent.wants_answer {
            // Its answers are on their way once more: what is still held from the first time shows
            // no other loss.
            let end = sent.psn.plus(sent.packets);
            match &mut self.repeated {
                Some((_, known)) if sent.continues && *known == sent.psn => *known = end,
                _ if sent.psn == oldest => self.repeated = Some((sent.psn, end)),
                _ => {}
            }
        }
        if let Some(back) = &mut self.went_back
            && back.late.is_none()
            && !sent.is_new
            && now - back.at >= self.probe.rtt().soonest()
        {
            back.late = Some((sent.psn, now));
        }
        let floor = base.recovery.probe_floor;
        if !base.recovery.is_selective() {
            if sent.is_new && sent.asks == AckRequest::Now {
                self.probe.measure(sent.psn, now);
            }
            return;
        }
        match sent.asks {
            AckRequest::Now if sent.is_new => {
                self.probe.on_asked(sent.psn, sent.psn.plus(sent.packets - 1), now, floor)
            }
            AckRequest::Now => self.probe.on_asked_again(now, floor),
            AckRequest::Later => self.probe.on_unasked(sent.psn, now, floor),
            AckRequest::Not => {}
        }
    }

    /// The oldest request was sent again, alone.
    pub(crate) fn on_sent_again(
        &mut self,
        psn: Psn,
        SentAgain { packets, wants_answer, reason, is_part }: SentAgain,
        frontier: Psn,
        base: &QpBase,
        now: Nanos,
    ) {
        let missing = (reason == Reason::Missing).then_some(psn);
        self.presumed = if reason == Reason::Presumed { self.presumed + 1 } else { 0 };
        self.probe.on_sent_again(missing, now, base.recovery.probe_floor);
        if wants_answer {
            let end = psn.plus(packets);
            self.repeated = Some((psn, end));
            if is_part {
                self.parts_tried = self.parts_tried.map(|tried| tried + 1);
                self.parts_end = Some(self.parts_end.map_or(end, |known| farther(known, end)));
            }
            if reason == Reason::Probe || self.missed.is_some() {
                let named = reason == Reason::Missing;
                self.missed = Some(AnswerRepair { end, frontier, named, told: false });
            }
        } else {
            (self.again, self.missed) = (Some(SingleRepair { psn, at: now, frontier }), None);
        }
    }

    /// The peer was asked how much it has of what lies before `cursor`.
    pub(crate) fn on_solicited(&mut self, cursor: Psn, base: &QpBase, now: Nanos) {
        self.solicited = Some((cursor, now));
        self.probe.on_solicited(now, base.recovery.probe_floor);
    }

    /// The oldest that waits is now `oldest`.
    pub(crate) fn on_progress(&mut self, oldest: Psn, requester: &mut Requester, base: &QpBase, now: Nanos) {
        if !base.recovery.is_selective() {
            self.probe.on_measured(oldest, now);
            return;
        }
        let is_behind = |psn: Psn| psn.distance_from(oldest) < 0;
        let soon = self.probe.rtt().soonest();
        if let Some(back) = self.went_back
            && (is_behind(requester.cursor()) || back.late.is_some_and(|(psn, at)| is_behind(psn) && now - at < soon))
        {
            (self.keeps, self.went_back) = (true, None);
            requester.skip_to_frontier();
        }
        requester.forget_oldest();
        if self.missed.is_some_and(|missed| missed.end == oldest && missed.frontier != oldest) {
            requester.solicit_ack();
        }
        (self.gap_due, self.gap_end) = (Nanos::NEVER, None);
        self.parts_end = self.parts_end.filter(|end| !is_behind(*end) && *end != oldest);
        self.again = self.again.filter(|again| !is_behind(again.frontier) && again.frontier != oldest);
        self.repeated = self.repeated.filter(|(_, end)| !is_behind(*end) && *end != oldest);
        self.acknowledged = self.acknowledged.filter(|to| !is_behind(*to) && *to != oldest);
        self.dropped = self.dropped.filter(|(_, last)| !is_behind(*last));
        self.asked_for_dropped = self.asked_for_dropped.filter(|last| !is_behind(*last));
        self.solicited = self.solicited.filter(|(to, _)| !is_behind(*to) && *to != oldest);
        self.missed =
            self.missed.filter(|missed| !missed.told && !is_behind(missed.frontier) && missed.frontier != oldest);
        self.probe.on_progress(oldest, now, base.recovery.probe_floor);
    }

    /// The cursor went back: everything is sent again.
    pub(crate) fn on_gone_back(&mut self) {
        (self.went_back, self.again, self.repeated) = (None, None, None);
        (self.gap_due, self.gap_end) = (Nanos::NEVER, None);
        (self.missed, self.dropped, self.solicited) = (None, None, None);
        self.probe.stop();
    }

    /// Nothing is outstanding.
    pub(crate) fn stop(&mut self) {
        self.gap_due = Nanos::NEVER;
        self.probe.stop();
    }

    /// Work behind a READ that is not complete is acknowledged, up to `to`.
    pub(crate) fn remember_acknowledged(&mut self, to: Psn) {
        if self.acknowledged.is_none_or(|known| to.distance_from(known) > 0) {
            self.acknowledged = Some(to);
        }
    }

    /// An answer that brings nothing, to a packet that is answered already. Where that was sent
    /// again because the peer missed one before it, the peer had kept it.
    pub(crate) fn on_answered_again(&mut self, psn: Psn, now: Nanos) {
        let soon = self.probe.rtt().soonest();
        let shows = |back: &mut Rewind| {
            psn.distance_from(back.psn) > 0 && psn.distance_from(back.end) < 0 && now - back.at >= soon
        };
        // What was asked by a question is answered already, too.
        self.keeps |= self.solicited.is_none() && self.went_back.take_if(shows).is_some();
    }

    /// An answer behind the oldest that is missing was not held.
    pub(crate) fn remember_dropped(&mut self, psn: Psn) {
        self.dropped = Some(self.dropped.map_or((psn, psn), |(first, last)| {
            (if psn.distance_from(first) < 0 { psn } else { first }, farther(last, psn))
        }));
    }

    /// Answers from one to the other were held and are not any more. If they were asked for again
    /// that answer may have come meanwhile, as one that was held already: it is not waited for.
    pub(crate) fn on_given_up(&mut self, nearest: Psn, farthest: Psn) {
        self.repeated = None;
        self.remember_dropped(nearest);
        self.remember_dropped(farthest);
    }

    /// Of a READ request no more need be asked for again than what is missing, as far as is known.
    fn may_ask_for_parts(&self) -> bool {
        // What is held is too old where a round trip takes longer, and asked for besides.
        let is_near = self.patience() < HELD_MAX;
        is_near && self.parts_tried.is_none_or(|tried| tried < PARTS_TRIED_MAX)
    }

    /// The response with this PSN was asked for again, and not all behind it.
    pub(super) fn is_part_asked(&self, psn: Psn) -> bool {
        self.parts_end.is_some_and(|end| psn.distance_from(end) < 0)
    }

    /// The answer to a part of a READ request ended where no request that was sent once ends: the
    /// peer answers parts.
    pub(super) fn on_part_answered(&mut self) {
        self.parts_tried = None;
    }

    /// The response with this PSN was asked for again.
    fn is_repeated(&self, psn: Psn) -> bool {
        self.repeated.is_some_and(|(from, end)| psn.distance_from(from) >= 0 && psn.distance_from(end) < 0)
    }
}

impl Completer {
    /// The peer misses the oldest packet: it is sent again, alone to a peer that keeps the others.
    pub(super) fn repair_missing<A: App>(
        &mut self,
        base: &mut QpBase,
        queue: &mut SendQueue,
        requester: &mut Requester,
        cx: &mut Context<'_, A>,
    ) {
        let psn = self.unacknowledged();
        // A READ counts as one: where the next request is missing too, those behind it are, and one
        // by one they would take a round trip each.
        let follows = self.selective.again.take().is_some_and(|again| again.psn.plus(1) == psn);
        let ends_message = queue.is_empty() || queue.entry(queue.head()).end_psn() == psn.plus(1);
        let alone_max = if ends_message { 1 } else { ALONE_MAX };
        let in_a_row = follows && self.selective.alone >= alone_max
            || self.selective.missed.is_some_and(|missed| missed.end == psn);
        // Whatever was asked before says nothing of what is sent again now.
        self.selective.solicited = None;
        if !self.spend_retry(base, queue, cx) {
            return;
        }
        if self.selective.keeps && !in_a_row {
            self.selective.alone = if follows { self.selective.alone + 1 } else { 1 };
            self.selective.missed =
                Some(AnswerRepair { end: psn, frontier: requester.frontier(), named: true, told: false });
            self.send_oldest_again(requester);
        } else {
            self.go_back(queue, requester);
            self.selective.went_back = Some(Rewind { at: cx.now, psn, end: requester.frontier(), late: None });
        }
    }

    /// The oldest packet was sent again as a question: its ACK says nothing of the others.
    pub(super) fn on_asked_by_oldest(&mut self) {
        self.selective.again = None;
    }

    /// An ACK that complains of nothing. When it answers a packet that was sent again alone, and
    /// not all that was sent before that, the rest is lost: the peer has nothing behind, or it
    /// would complain. Where it covers that one packet and not one more, all is sent again; where
    /// it covers others, which may only have been slow to be answered, the next alone.
    pub(super) fn on_plain_ack(&mut self, queue: &SendQueue, requester: &mut Requester, now: Nanos, floor: Nanos) {
        let (oldest, soon) = (self.unacknowledged(), self.selective.probe.rtt().soonest());
        let Some(again) = self.selective.again.filter(|again| oldest.distance_from(again.psn) > 0) else { return };
        self.selective.again = None;
        // Sooner than a round trip it is the ACK of the first sending.
        if now - again.at < soon {
            return;
        }
        if oldest == again.psn.plus(1) {
            if soon == Nanos(0) {
                // Nothing was measured yet: on a path that takes longer than was waited it is the
                // first sending's, and others follow soon.
                let frontier = requester.frontier();
                self.selective.missed = Some(AnswerRepair { end: oldest, frontier, named: false, told: true });
                self.selective.probe.hasten(now + (now - again.at).max(floor));
                return;
            }
            self.selective.keeps = false;
            self.go_back(queue, requester);
        } else if self.selective.presumed < PRESUMED_MAX {
            requester.presume_oldest_lost();
        }
    }

    /// An ACK of what is acknowledged already, when the peer was asked about more: the rest is
    /// lost. One that brings something new may be of a packet that asked before, and others may
    /// follow. Where the network takes several ways the question may have overtaken what it asked
    /// about.
    pub(super) fn on_nothing_new(&mut self, queue: &SendQueue, requester: &mut Requester, base: &QpBase, now: Nanos) {
        let soon = self.selective.probe.rtt().soonest();
        if self.selective.solicited.take_if(|(_, at)| now - *at >= soon).is_none() {
            return;
        }
        let oldest = self.unacknowledged();
        if let Some(missed) = &mut self.selective.missed {
            // Where it has nothing of what was behind it keeps nothing.
            missed.told = true;
            self.selective.keeps &= !missed.named || missed.end != oldest;
        }
        match base.recovery.reorder_delay {
            Nanos(0) => self.probe_lost(queue, requester),
            delay => self.selective.probe.hasten(now + delay),
        }
    }

    /// The oldest that waits is probably lost: it is sent again, or all is where the peer said that
    /// it has not all.
    fn probe_lost(&mut self, queue: &SendQueue, requester: &mut Requester) {
        if self.selective.missed.take_if(|missed| missed.told).is_some() {
            self.go_back(queue, requester);
        } else {
            requester.probe_oldest();
        }
    }

    /// Answers came that lie behind a READ response that did not, `held` among them. That is asked
    /// for at `due`, unless it comes before.
    pub(super) fn on_hole<A: App>(
        &mut self,
        due: Nanos,
        held: Option<Psn>,
        base: &mut QpBase,
        queue: &mut SendQueue,
        requester: &mut Requester,
        cx: &mut Context<'_, A>,
    ) {
        if self.is_asked_for_oldest(requester) {
            return;
        }
        if self.selective.gap_due == Nanos::NEVER {
            // What a question did not hear of has arrived after all.
            self.selective.probe.put_off(cx.now, base.recovery.probe_floor);
        }
        self.selective.gap_due = self.selective.gap_due.min(due);
        self.selective.gap_end = held.or(self.selective.gap_end);
        if self.selective.gap_due <= cx.now {
            self.ask_again(base, queue, requester, cx);
        }
    }

    /// A READ is complete, or goes on: what is known of the work behind it holds now. Another READ
    /// behind it has lost its responses, unless they are held: then their turn comes before the
    /// timer does. If they were dropped nothing will come by itself.
    pub(super) fn on_gap_filled<A: App>(
        &mut self,
        base: &mut QpBase,
        queue: &mut SendQueue,
        requester: &mut Requester,
        cx: &mut Context<'_, A>,
    ) {
        if self.behind.is_some() {
            self.act_on_behind(base, queue, requester, cx);
        }
        if !base.recovery.is_selective() || !base.state.sends() {
            return;
        }
        if let Some(to) = self.selective.acknowledged
            && !self.is_inside_read(queue)
            && self.advance(to, base, queue, requester, cx).is_err()
        {
            let due = cx.now + base.recovery.reorder_delay;
            self.selective.gap_due =
                if self.is_asked_for_oldest(requester) { Nanos::NEVER } else { self.selective.gap_due.min(due) };
        }
        if self.behind.is_some() {
            self.act_on_behind(base, queue, requester, cx);
        }
        if let Some((_, last)) = self.selective.dropped
            && base.state.sends()
            && self.is_before_answer(queue)
        {
            self.selective.asked_for_dropped = Some(last);
            self.ask_again(base, queue, requester, cx);
        }
    }

    /// A timer other than the ACK timer may have run out.
    pub(super) fn on_selective_timeout<A: App>(
        &mut self,
        base: &mut QpBase,
        queue: &mut SendQueue,
        requester: &mut Requester,
        cx: &mut Context<'_, A>,
    ) {
        if self.selective.gap_due <= cx.now {
            self.ask_again(base, queue, requester, cx);
        }
        // A READ is answered by itself, and asked for again where that is lost.
        if self.selective.probe.take_asking(cx.now) && !base.is_beside() && !self.awaits_answer(queue) {
            requester.solicit_ack();
        }
        // Beside us nothing is lost: what is late is late because this host is busy.
        let asks_late = self.selective.probe.asks_late();
        let is_due = self.selective.probe.take_due(cx.now) && !base.is_beside();
        if !is_due || requester.is_about_to_send(self.unacknowledged()) || !base.is_reachable() {
            return;
        }
        if asks_late {
            // Nothing followed that would have asked: from now on it costs less to do so at once.
            requester.ask_for_a_while();
            requester.solicit_ack();
        } else {
            base.counters.count(QpCount::AdaptiveRetransmission);
            self.probe_lost(queue, requester);
        }
    }

    /// A READ response is missing: an implied NAK (IBTA v1 9.7.5.1.4). It is asked for once: what
    /// else comes from behind it before that can be answered says nothing new. So it costs no more
    /// than one for each that goes forward.
    fn ask_again<A: App>(
        &mut self,
        base: &mut QpBase,
        queue: &mut SendQueue,
        requester: &mut Requester,
        cx: &mut Context<'_, A>,
    ) {
        self.selective.gap_due = Nanos::NEVER;
        if self.is_asked_for_oldest(requester) {
            return;
        }
        // What was dropped here spends no retry, nor does it count as lost: the last word on it may
        // be of before it was asked for again.
        if self.selective.asked_for_dropped.is_none() {
            base.counters.count(QpCount::ImpliedNak);
            if !self.spend_retry(base, queue, cx) {
                return;
            }
        }
        let end = self.end_of_part(base, queue, requester);
        // Later READs are executed again behind the oldest, so that what they bring is no older.
        match self.selective.dropped {
            Some((first, _)) if first.distance_from(queue.entry(queue.head()).end_psn()) < 0 => {
                self.go_back(queue, requester);
            }
            dropped => {
                if dropped.is_some() {
                    self.go_back_behind_oldest(base, queue, requester);
                }
                self.send_oldest_again(requester);
                requester.ask_up_to(end);
            }
        }
    }

    /// The answer that is missing was asked for again, or is about to be.
    fn is_asked_for_oldest(&self, requester: &Requester) -> bool {
        let oldest = self.unacknowledged();
        self.selective.is_repeated(oldest) || requester.is_about_to_send(oldest)
    }

    /// What is there of the oldest READ is not asked for with what is missing. Where more is
    /// missing of the same request the second time asks for all of it, or each gap would take a
    /// round trip.
    fn end_of_part(&mut self, base: &QpBase, queue: &SendQueue, requester: &Requester) -> Option<Psn> {
        let end = self.selective.gap_end.take().filter(|_| self.selective.may_ask_for_parts())?;
        let entry = queue.entry(queue.head());
        if !entry.is_read() {
            return None;
        }
        let chunk = requester.read_chunk(base.attributes.max_rd_atomic);
        let begins = self.place(queue).1 / chunk * chunk;
        let request = entry.first_psn.plus(begins);
        let behind = entry.first_psn.plus((begins + chunk).min(entry.packets));
        let is_first = self.selective.part_of.replace(request) != Some(request);
        (is_first && end.distance_from(behind) < 0).then_some(end)
    }

    /// The cursor goes back to what lies behind the oldest READ or atomic operation, if it is
    /// there.
    fn go_back_behind_oldest(&mut self, base: &QpBase, queue: &SendQueue, requester: &mut Requester) {
        let position = queue.head();
        let entry = queue.entry(position);
        if requester.cursor().distance_from(entry.end_psn()) > 0 {
            let chunk = if entry.is_read() { requester.read_chunk(base.attributes.max_rd_atomic) } else { 1 };
            let requests = entry.packets.div_ceil(chunk) - self.place(queue).1 / chunk;
            requester.rewind(position.wrapping_add(1), 0, entry.end_psn());
            requester.on_begun(requests);
        }
        self.on_gone_back();
    }

    /// The oldest that waits has an answer of its own.
    pub(super) fn awaits_answer(&self, queue: &SendQueue) -> bool {
        !queue.is_empty() && queue.entry(queue.head()).wants_answer()
    }

    /// The oldest that waits is the first packet of a READ, or an operation with one answer.
    fn is_before_answer(&self, queue: &SendQueue) -> bool {
        !queue.is_empty() && queue.entry(queue.head()).wants_answer() && self.place(queue).1 == 0
    }

    /// The oldest that waits lies in the middle of a READ.
    fn is_inside_read(&self, queue: &SendQueue) -> bool {
        !queue.is_empty() && queue.entry(queue.head()).is_read() && self.place(queue).1 > 0
    }
}
