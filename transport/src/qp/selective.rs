//! Selective retransmission: loss state beyond go-back-N.
//!
//! The wire protocol cannot express "I have the packets that follow". But a peer that buffers the
//! packets behind a loss shows it when the loss is repaired: its ACK covers more than can have been
//! sent again and arrived. Therefore the first NAK sends everything again from the packet that it
//! names. An ACK beyond the cursor, or for a packet that left less than a round trip ago, moves the
//! cursor forward to the frontier and marks the peer as one that buffers packets. An answer that
//! arrives twice marks it as well, because the peer already had the packet that was sent again. For
//! a marked peer a NAK causes one retransmission. Two signs end that:
//!
//! * a NAK for the very next READ request, or for the very next packet and the one behind that:
//!   several were lost in a row, so everything is sent again until an ACK beyond the cursor stops
//!   it;
//! * an ACK for exactly the packet that was sent again: the peer has nothing behind it, and the
//!   mark is removed.
//!
//! READ responses are placed in order. The endpoint buffers those ahead of a gap, as it buffers
//! requests for a responder; the READ request is sent again from the lowest missing PSN to the
//! first response that is present, and the second time to its end, which covers everything missing
//! of it. Responders drop a repetition that begins lower than an earlier one, and some drop one
//! that does not end where the request ended: after a few of those without success, repetitions
//! extend to the end of the request. A probe detects a lost repetition. A response that is buffered
//! already does not show the loss: it may belong to the first answer or an earlier repetition, or
//! be a duplicate made by the network.

mod read_parts;
#[cfg(test)]
mod tests;

use super::{
    Context, QpBase,
    completer::Completer,
    probe::TailProbe,
    requester::{AckRequest, Reason, Requester, SentAgain, SentRequest},
    send_queue::SendQueue,
};
use crate::{clock::Nanos, counters::QpCount, io::App, out_of_order::BUFFERED_MAX, psn::Psn};

/// Maximum number of parts of READ requests that are requested without success: some responders
/// answer a repetition only if it ends where the request ended.
const PARTS_TRIED_MAX: u8 = 3;

/// Number of parts requested without success once one was answered as such: it stays.
const PARTS_ANSWERED: u8 = u8::MAX;

/// Maximum number of packets in a row that are sent again alone, each when a NAK names it, before
/// everything is sent again. One at the end of a message, because a peer discards the packets
/// buffered behind two that end messages.
const ALONE_MAX: u8 = 2;

/// Facts learned about peer and path, and state of the repair in progress.
#[derive(Debug)]
pub(crate) struct Selective {
    probe: TailProbe,
    /// The peer was seen to buffer packets behind a loss.
    buffers: bool,
    /// The cursor went back for a NAK, and the peer may yet show that it buffered packets sent
    /// before.
    went_back: Option<Rewind>,
    /// Unacknowledged packets before this one were sent more than once. If a NAK names one of them,
    /// its next copy may be on its way already, and acknowledgments show nothing.
    again_to: Option<Psn>,
    /// Packet that was sent again alone, outcome unknown.
    again: Option<SingleRepair>,
    /// Number of packets in a row that were sent again alone, including the last.
    alone: u8,
    /// Number of packets in a row that were sent again because the ACK of the one before did not
    /// cover them.
    presumed: u8,
    /// READ, or operation with one answer, that the peer missed and that is sent again alone. Its
    /// answer does not show which packets the peer has behind it.
    missed: Option<AnswerRepair>,
    /// Range of responses that were requested again; the end is exclusive.
    repeated: Option<(Psn, Psn)>,
    /// Time at which the missing response is requested again, unless it arrives before.
    gap_due: Nanos,
    /// A response that is present, behind the missing ones.
    gap_end: Option<Psn>,
    /// Responses before this one were requested again in parts: each may end its answer.
    parts_end: Option<Psn>,
    /// PSN of the last READ request of which a part was requested.
    part_of: Option<Psn>,
    /// Number of parts of READ requests that were requested, or [`PARTS_ANSWERED`].
    parts_tried: u8,
    /// Everything before this PSN, behind incomplete READs, is acknowledged.
    acknowledged: Option<Psn>,
    /// First and last of the answers behind the oldest missing one that were not buffered.
    dropped: Option<(Psn, Psn)>,
    /// Last of the dropped answers that were requested again only because they were dropped.
    asked_for_dropped: Option<Psn>,
    /// The peer was asked, at this time, how far it has received the packets before this PSN.
    solicited: Option<(Psn, Nanos)>,
}

/// Maximum number of packets in a row that are presumed lost before another NAK or probe. After a
/// needless probe the ACKs belong to the first transmission, and each would cause the next packet
/// to be sent again.
const PRESUMED_MAX: u8 = 4;

/// The cursor went back for a NAK at `at`.
#[derive(Clone, Copy, Debug)]
struct Rewind {
    at: Nanos,
    /// Packet named by the NAK, and the frontier at that time.
    psn: Psn,
    end: Psn,
    /// A packet sent again at least half a round trip later, and its time. The ACK of the packet
    /// that the NAK named arrives before this one can be answered.
    late: Option<(Psn, Nanos)>,
}

/// A packet that was sent again alone.
#[derive(Clone, Copy, Debug)]
struct SingleRepair {
    psn: Psn,
    at: Nanos,
    /// Frontier at that time.
    frontier: Psn,
    /// Its ACK came, but sooner than one can: only a NAK for the next packet still means anything.
    is_answered: bool,
}

/// A request with an answer of its own that is sent again alone.
#[derive(Clone, Copy, Debug)]
struct AnswerRepair {
    /// PSN after its last response.
    end: Psn,
    /// Frontier when it left.
    frontier: Psn,
    /// A NAK named it: the peer has received a packet behind it.
    named: bool,
    /// The peer reported that it lacks some of the packets sent before.
    told: bool,
}

fn farther(one: Psn, other: Psn) -> Psn {
    if one.distance_from(other) > 0 { one } else { other }
}

impl Selective {
    /// Smoothed round-trip time; 0 before the first measurement.
    pub(crate) const fn round_trip(&self) -> Nanos {
        self.probe.rtt().smooth()
    }

    /// Creates the state of a life with first packet `psn`.
    pub(crate) fn new(psn: Psn) -> Self {
        Self {
            probe: TailProbe::new(psn),
            buffers: false,
            went_back: None,
            again_to: None,
            again: None,
            alone: 0,
            presumed: 0,
            missed: None,
            repeated: None,
            gap_due: Nanos::NEVER,
            gap_end: None,
            parts_end: None,
            part_of: None,
            parts_tried: 0,
            acknowledged: None,
            dropped: None,
            asked_for_dropped: None,
            solicited: None,
        }
    }

    /// Maximum time that an answer takes, as far as is known.
    pub(crate) fn patience(&self) -> Nanos {
        self.probe.rtt().patience()
    }

    pub(crate) fn deadline(&self) -> Nanos {
        self.probe.deadline().min(self.gap_due)
    }

    /// Notes that a packet was sent at the cursor.
    pub(crate) fn on_sent(&mut self, sent: &SentRequest, oldest: Psn, base: &QpBase, now: Nanos) {
        if !sent.is_new && sent.wants_answer {
            // Its answers will arrive again: responses still buffered from the first time show no
            // other loss.
            let end = sent.psn.plus(sent.packets);
            match &mut self.repeated {
                Some((_, known)) if sent.continues && *known == sent.psn => *known = end,
                _ if sent.psn == oldest => self.repeated = Some((sent.psn, end)),
                _ => {}
            }
        }
        if !sent.is_new {
            self.note_again(sent.psn.plus(sent.packets));
            if let Some(back) = &mut self.went_back
                && back.late.is_none()
                && now - back.at >= self.probe.rtt().soonest()
            {
                back.late = Some((sent.psn, now));
            }
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

    /// Notes that the oldest request was sent again, alone.
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
        self.note_again(psn.plus(packets));
        self.probe.on_sent_again(missing, now, base.recovery.probe_floor);
        if wants_answer {
            let end = psn.plus(packets);
            self.repeated = Some((psn, end));
            if is_part {
                self.parts_tried = self.parts_tried.saturating_add(1);
                self.parts_end = Some(self.parts_end.map_or(end, |known| farther(known, end)));
            }
            if reason == Reason::Probe || self.missed.is_some() {
                let named = reason == Reason::Missing;
                self.missed = Some(AnswerRepair { end, frontier, named, told: false });
            }
        } else {
            (self.again, self.missed) = (Some(SingleRepair { psn, at: now, frontier, is_answered: false }), None);
        }
    }

    /// Notes that the packet before `end` was sent again.
    fn note_again(&mut self, end: Psn) {
        self.again_to = Some(self.again_to.map_or(end, |known| farther(known, end)));
    }

    /// Notes that the peer was asked how far it has received the packets before `cursor`.
    pub(crate) fn on_solicited(&mut self, cursor: Psn, base: &QpBase, now: Nanos) {
        self.solicited = Some((cursor, now));
        self.probe.on_solicited(now, base.recovery.probe_floor);
    }

    /// Processes progress: the oldest unacknowledged PSN is now `oldest`. Returns the round trip if
    /// one was measured.
    #[inline]
    pub(crate) fn on_progress(
        &mut self,
        oldest: Psn,
        requester: &mut Requester,
        base: &QpBase,
        now: Nanos,
    ) -> Option<Nanos> {
        if !base.recovery.is_selective() {
            return self.probe.on_measured(oldest, now);
        }
        requester.forget_oldest();
        if self.is_repairing() {
            self.advance_repair(oldest, requester, now);
        }
        self.probe.on_progress(oldest, now, base.recovery.probe_floor)
    }

    /// True if some state refers to packets that [`Self::advance_repair`] compares with the oldest.
    /// Without a loss there is none, and every response of a READ makes progress.
    fn is_repairing(&self) -> bool {
        let is_sent_again =
            self.went_back.is_some() || self.again.is_some() || self.missed.is_some() || self.repeated.is_some();
        let has_gap = self.gap_due != Nanos::NEVER || self.gap_end.is_some() || self.parts_end.is_some();
        let has_known = self.acknowledged.is_some() || self.dropped.is_some() || self.asked_for_dropped.is_some();
        is_sent_again || has_gap || has_known || self.solicited.is_some() || self.again_to.is_some()
    }

    /// Processes progress during a repair: the state of packets before `oldest` is obsolete.
    fn advance_repair(&mut self, oldest: Psn, requester: &mut Requester, now: Nanos) {
        let is_behind = |psn: Psn| psn.distance_from(oldest) < 0;
        let soon = self.probe.rtt().soonest();
        if let Some(back) = self.went_back
            && (is_behind(requester.cursor()) || back.late.is_some_and(|(psn, at)| is_behind(psn) && now - at < soon))
        {
            (self.buffers, self.went_back) = (true, None);
            requester.skip_to_frontier();
        }
        if self.missed.is_some_and(|missed| missed.end == oldest && missed.frontier != oldest) {
            requester.solicit_ack();
        }
        self.again_to = self.again_to.filter(|to| !is_behind(*to) && *to != oldest);
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
    }

    /// Notes that the cursor went back: everything is sent again.
    pub(crate) fn on_gone_back(&mut self) {
        (self.went_back, self.again, self.repeated) = (None, None, None);
        (self.gap_due, self.gap_end) = (Nanos::NEVER, None);
        (self.missed, self.dropped, self.solicited) = (None, None, None);
        self.probe.stop();
    }

    /// Stops the timers: nothing is outstanding.
    pub(crate) fn stop(&mut self) {
        self.gap_due = Nanos::NEVER;
        self.probe.stop();
    }

    /// Notes that work behind an incomplete READ is acknowledged, up to `to`.
    pub(crate) fn remember_acknowledged(&mut self, to: Psn) {
        if self.acknowledged.is_none_or(|known| to.distance_from(known) > 0) {
            self.acknowledged = Some(to);
        }
    }

    /// Processes an answer without progress, to a packet that is answered already. If that packet
    /// was sent again because the peer missed one before it, the peer had kept it.
    pub(crate) fn on_answered_again(&mut self, psn: Psn, now: Nanos) {
        let soon = self.probe.rtt().soonest();
        let shows = |back: &mut Rewind| {
            psn.distance_from(back.psn) > 0 && psn.distance_from(back.end) < 0 && now - back.at >= soon
        };
        // The answer to a solicitation repeats an earlier one as well, and shows nothing.
        self.buffers |= self.solicited.is_none() && self.went_back.take_if(shows).is_some();
    }

    /// Notes that an answer behind the oldest missing one was not buffered.
    pub(crate) fn remember_dropped(&mut self, psn: Psn) {
        self.dropped = Some(self.dropped.map_or((psn, psn), |(first, last)| {
            (if psn.distance_from(first) < 0 { psn } else { first }, farther(last, psn))
        }));
    }

    /// Notes that buffered answers from `nearest` to `farthest` were discarded. If they were
    /// requested again, the new answer may have arrived meanwhile, and been dropped as already
    /// buffered: it is not waited for.
    pub(crate) fn on_given_up(&mut self, nearest: Psn, farthest: Psn) {
        self.repeated = None;
        self.remember_dropped(nearest);
        self.remember_dropped(farthest);
    }

    /// A repetition of a READ request may be limited to the missing part, as far as is known.
    fn may_ask_for_parts(&self) -> bool {
        // With longer round trips the buffered responses expire, and are requested as well.
        let is_near = self.patience() < BUFFERED_MAX;
        is_near && (self.parts_tried < PARTS_TRIED_MAX || self.parts_tried == PARTS_ANSWERED)
    }

    /// The response with this PSN belongs to a part that was requested again.
    pub(super) fn is_part_asked(&self, psn: Psn) -> bool {
        self.parts_end.is_some_and(|end| psn.distance_from(end) < 0)
    }

    /// Notes that an answer ended where no original request ends: the peer answers parts of READ
    /// requests.
    pub(super) fn on_part_answered(&mut self) {
        self.parts_tried = PARTS_ANSWERED;
    }

    /// The response with this PSN was requested again.
    fn is_repeated(&self, psn: Psn) -> bool {
        self.repeated.is_some_and(|(from, end)| psn.distance_from(from) >= 0 && psn.distance_from(end) < 0)
    }
}

impl Completer {
    /// Retransmits the oldest packet, which the peer misses; alone if the peer buffers the others.
    pub(super) fn repair_missing<A: App>(&mut self, requester: &mut Requester, cx: &mut Context<'_, A>) {
        let psn = self.unacknowledged();
        // One READ suffices: if the next request is missing as well, so are those behind it, and
        // one by one each would take a round trip.
        let follows = self.selective.again.take().is_some_and(|again| again.psn.plus(1) == psn);
        let ends_message =
            cx.send_queue.is_empty() || cx.send_queue.entry(cx.send_queue.head()).end_psn() == psn.plus(1);
        let alone_max = if ends_message { 1 } else { ALONE_MAX };
        let in_a_row = follows && self.selective.alone >= alone_max
            || self.selective.missed.is_some_and(|missed| missed.end == psn);
        // Earlier solicitations tell nothing about the packets sent again now.
        self.selective.solicited = None;
        if !self.spend_retry(cx) {
            return;
        }
        let is_alone = self.selective.buffers && !in_a_row;
        requester.on_loss(self.awaits_response(cx.send_queue), is_alone, psn);
        if is_alone {
            self.selective.alone = if follows { self.selective.alone + 1 } else { 1 };
            self.selective.missed =
                Some(AnswerRepair { end: psn, frontier: requester.frontier(), named: true, told: false });
            self.send_oldest_again(requester);
        } else {
            let is_first = self.selective.again_to.is_none_or(|to| psn.distance_from(to) >= 0);
            self.go_back(cx.send_queue, requester);
            let back = Rewind { at: cx.now, psn, end: requester.frontier(), late: None };
            self.selective.went_back = is_first.then_some(back);
        }
    }

    /// Notes that the oldest packet was sent again as a solicitation: its ACK tells nothing about
    /// the others.
    pub(super) fn on_asked_by_oldest(&mut self) {
        self.selective.again = None;
    }

    /// Processes a plain ACK, which reports nothing missing. If it answers a packet that was sent
    /// again alone, but not all packets sent before that, the rest is lost: the peer has nothing
    /// behind, or it would send a NAK. If it covers exactly that one packet, everything is sent
    /// again; if it covers others, which may only have been answered slowly, the next one alone.
    pub(super) fn on_plain_ack(&mut self, queue: &SendQueue, requester: &mut Requester, now: Nanos, floor: Nanos) {
        let (oldest, soon) = (self.unacknowledged(), self.selective.probe.rtt().soonest());
        let is_answer = |again: &mut SingleRepair| oldest.distance_from(again.psn) > 0 && !again.is_answered;
        let Some(again) = self.selective.again.take_if(is_answer) else { return };
        // Sooner than a round trip, it is the ACK of the first transmission.
        if now - again.at < soon {
            self.selective.again = Some(SingleRepair { is_answered: true, ..again });
            return;
        }
        if oldest == again.psn.plus(1) {
            if soon == Nanos(0) {
                // Nothing was measured yet: on a path slower than this wait the ACK belongs to the
                // first transmission, and others follow soon.
                let frontier = requester.frontier();
                self.selective.missed = Some(AnswerRepair { end: oldest, frontier, named: false, told: true });
                self.selective.probe.hasten(now + (now - again.at).max(floor));
                return;
            }
            self.selective.buffers = false;
            self.go_back(queue, requester);
        } else if self.selective.presumed < PRESUMED_MAX {
            requester.presume_oldest_lost();
        }
    }

    /// Processes an ACK without progress after the peer was asked about more: the rest is lost. An
    /// ACK with progress may answer a packet that asked before, and others may follow. In a
    /// multipath network the solicitation may have overtaken the packets that it asked about.
    pub(super) fn on_nothing_new(&mut self, queue: &SendQueue, requester: &mut Requester, base: &QpBase, now: Nanos) {
        let (soon, reorder_delay) = (self.selective.probe.rtt().soonest(), base.recovery.reorder_delay);
        let Some((_, at)) = self.selective.solicited.filter(|(_, at)| now - *at >= soon) else { return };
        if soon == Nanos(0) {
            // Nothing was measured yet: on a path slower than this wait the ACK answers a packet
            // that was sent again before, and another follows soon.
            self.selective.probe.hasten(now + (now - at).max(base.recovery.probe_floor).max(reorder_delay));
            return;
        }
        self.selective.solicited = None;
        let oldest = self.unacknowledged();
        if let Some(missed) = &mut self.selective.missed {
            // A peer that has nothing behind the missing packet buffers nothing.
            missed.told = true;
            self.selective.buffers &= !missed.named || missed.end != oldest;
        }
        match reorder_delay {
            Nanos(0) => self.probe_lost(queue, requester),
            delay => self.selective.probe.hasten(now + delay),
        }
    }

    /// Retransmits the oldest unacknowledged packet, which is probably lost, or everything if the
    /// peer reported that it lacks more.
    fn probe_lost(&mut self, queue: &SendQueue, requester: &mut Requester) {
        if self.selective.missed.take_if(|missed| missed.told).is_some() {
            self.go_back(queue, requester);
        } else {
            requester.probe_oldest();
        }
    }

    /// Handles answers that arrived behind a missing READ response, `buffered` if one is buffered.
    /// The missing response is requested at `due`, unless it arrives before.
    pub(super) fn on_missing_response<A: App>(
        &mut self,
        due: Nanos,
        buffered: Option<Psn>,
        requester: &mut Requester,
        cx: &mut Context<'_, A>,
    ) {
        if self.is_asked_for_oldest(requester) {
            return;
        }
        if self.selective.gap_due == Nanos::NEVER {
            // Packets that a solicitation reported missing have arrived after all.
            self.selective.probe.put_off(cx.now, cx.base.recovery.probe_floor);
        }
        self.selective.gap_due = self.selective.gap_due.min(due);
        self.selective.gap_end = buffered.or(self.selective.gap_end);
        if self.selective.gap_due <= cx.now {
            self.ask_again(requester, cx);
        }
    }

    /// Handles a READ that is complete, or continues: the facts known about the work behind it
    /// apply now. If another READ behind it waits, its responses are lost unless they are buffered;
    /// buffered ones are processed before the timer expires. Dropped responses do not arrive by
    /// themselves.
    #[inline]
    pub(super) fn on_gap_filled<A: App>(&mut self, requester: &mut Requester, cx: &mut Context<'_, A>) {
        if self.behind.is_some() || self.selective.acknowledged.is_some() || self.selective.dropped.is_some() {
            self.act_on_known(requester, cx);
        }
    }

    /// Applies the facts known about the work behind a READ, as in [`Self::on_gap_filled`].
    #[inline(never)]
    fn act_on_known<A: App>(&mut self, requester: &mut Requester, cx: &mut Context<'_, A>) {
        if self.behind.is_some() {
            self.act_on_behind(requester, cx);
        }
        if !cx.base.recovery.is_selective() || !cx.base.state.sends() {
            return;
        }
        if let Some(to) = self.selective.acknowledged
            && !self.is_inside_read(cx.send_queue)
            && self.advance(to, requester, cx).is_err()
        {
            let due = cx.now + cx.base.recovery.reorder_delay;
            self.selective.gap_due =
                if self.is_asked_for_oldest(requester) { Nanos::NEVER } else { self.selective.gap_due.min(due) };
        }
        if self.behind.is_some() {
            self.act_on_behind(requester, cx);
        }
        if let Some((_, last)) = self.selective.dropped
            && cx.base.state.sends()
            && self.is_before_answer(cx.send_queue)
        {
            self.selective.asked_for_dropped = Some(last);
            self.ask_again(requester, cx);
        }
    }

    /// Handles a possible expiry of a timer other than the ACK timer.
    pub(super) fn on_selective_timeout<A: App>(&mut self, requester: &mut Requester, cx: &mut Context<'_, A>) {
        if self.selective.gap_due <= cx.now {
            self.ask_again(requester, cx);
        }
        // A READ is answered by itself, and requested again if the answer is lost.
        if self.selective.probe.take_asking(cx.now) && !cx.base.is_same_device() && !self.awaits_answer(cx.send_queue) {
            requester.solicit_ack();
        }
        // No packet to a peer on this device is lost: a late answer means that this host is busy.
        let asks_late = self.selective.probe.asks_late();
        let is_due = self.selective.probe.take_due(cx.now) && !cx.base.is_same_device();
        if !is_due || requester.is_about_to_send(self.unacknowledged()) || !cx.base.is_reachable() {
            return;
        }
        if asks_late {
            // No packet followed that would have asked: from now on it costs less to ask
            // immediately.
            requester.ask_for_a_while();
            requester.solicit_ack();
        } else {
            cx.base.counters.count(QpCount::AdaptiveRetransmission);
            self.probe_lost(cx.send_queue, requester);
        }
    }

    /// Requests a missing READ response: an implied NAK (IBTA v1 9.7.5.1.4). It is requested once,
    /// because other responses from behind it that arrive before the repetition tell nothing new.
    /// Hence progress costs at most one repetition per response.
    fn ask_again<A: App>(&mut self, requester: &mut Requester, cx: &mut Context<'_, A>) {
        self.selective.gap_due = Nanos::NEVER;
        if self.is_asked_for_oldest(requester) {
            return;
        }
        // Responses dropped here use up no retry and do not count as lost: the last report about
        // them may date from before they were requested again.
        if self.selective.asked_for_dropped.is_none() {
            cx.base.counters.count(QpCount::ImpliedNak);
            if !self.spend_retry(cx) {
                return;
            }
            requester.on_loss(self.awaits_response(cx.send_queue), true, self.unacknowledged());
        }
        let end = self.end_of_part(cx.base, cx.send_queue, requester);
        // Later READs are executed again behind the oldest, so that they return no older data.
        match self.selective.dropped {
            Some((first, _)) if first.distance_from(cx.send_queue.entry(cx.send_queue.head()).end_psn()) < 0 => {
                self.go_back(cx.send_queue, requester);
            }
            dropped => {
                if dropped.is_some() {
                    self.go_back_behind_oldest(cx.base, cx.send_queue, requester);
                }
                self.send_oldest_again(requester);
                requester.ask_up_to(end);
            }
        }
    }

    /// The missing answer was requested again, or is about to be.
    fn is_asked_for_oldest(&self, requester: &Requester) -> bool {
        let oldest = self.unacknowledged();
        self.selective.is_repeated(oldest) || requester.is_about_to_send(oldest)
    }

    /// The oldest unacknowledged request has an answer of its own.
    pub(super) fn awaits_answer(&self, queue: &SendQueue) -> bool {
        !queue.is_empty() && queue.entry(queue.head()).wants_answer()
    }

    /// The oldest unacknowledged packet is the first of a READ, or an operation with one answer.
    fn is_before_answer(&self, queue: &SendQueue) -> bool {
        !queue.is_empty() && queue.entry(queue.head()).wants_answer() && self.place(queue).1 == 0
    }

    /// The oldest unacknowledged packet is in the middle of a READ.
    fn is_inside_read(&self, queue: &SendQueue) -> bool {
        !queue.is_empty() && queue.entry(queue.head()).is_read() && self.place(queue).1 > 0
    }
}
