//! Answers that are owed: requests that a responder executed before it refused one are answered
//! before the NAK of the refusal, and its requester has the answers.
//!
//! IBTA v1 9.7.5.1.2 and 9.9.2.4: responses leave in the order of the requests; a NAK has its place
//! behind the answers to all before the refused request. So on the wire all responses of READs and
//! all ATOMIC ACKs come before it, and a requester with undisturbed answers has them when it learns
//! of the refusal: it flushes nothing in front of the refused request.

use crate::{
    frame::Seen,
    stream::{Hit, Stream},
    violation::{Checked, demand},
};

impl Stream {
    /// A READ response or an ATOMIC ACK leaves.
    pub(crate) fn on_reply(&mut self, psn: u64) {
        self.owed.replied.insert(psn);
        self.advance_replied(psn);
    }

    /// The last response of the READ that ends at that PSN leaves.
    pub(crate) fn on_answered_to_end(&mut self, end: u64) {
        self.owed.answered = self.owed.answered.max(end);
    }

    /// The request at `psn` is refused. IBTA v1 9.7.5.2: that is so of a new one alone; a READ that
    /// was answered is not refused when it comes again.
    pub(crate) fn check_not_answered(&self, psn: u64) -> Checked {
        let answered = self.owed.answered;
        demand!(
            psn >= answered,
            "refusal",
            "PSN {} is refused, and READs up to {} were answered to their end",
            psn & 0xff_ffff,
            answered & 0xff_ffff
        );
        Ok(())
    }

    fn advance_replied(&mut self, to: u64) {
        // Messages that are not kept any more are complete.
        let first = self.messages.front().map_or(self.end, |message| message.first);
        let from = self.owed.from.max(first);
        self.owed.from = self.reach(from, to, |psn| self.owed.replied.contains(&psn));
        self.owed.replied = self.owed.replied.split_off(&self.owed.from);
    }

    /// The request at `psn` is refused: a fatal NAK leaves.
    pub(crate) fn check_owed(&mut self, psn: u64) -> Checked {
        self.advance_replied(psn);
        let from = self.owed.from;
        demand!(
            from >= psn,
            "owed-answer",
            "PSN {} is refused, and {} was accepted before it and never answered: {:?}",
            psn & 0xff_ffff,
            from & 0xff_ffff,
            self.find(from).and_then(|(id, _)| self.message(id))
        );
        Ok(())
    }

    /// The network did something to an answer, so that the requester does not have it in its turn.
    pub(crate) fn on_answer_hit(&mut self, psn: u64, arrives_at: Option<u64>) {
        let from = self.una_at_least;
        self.owed.hit.retain(|hit| hit.psn >= from);
        self.owed.hit.push(Hit { psn, arrives_at });
    }

    /// The requester has given up the answers that it held behind this one: those up to `una`,
    /// which would have had their turn now, and those behind a further gap.
    pub(crate) fn on_answers_given_up(&mut self, seen: &Seen<'_>) {
        let behind = self.unwrap_psn(seen.psn) + 1;
        let has_answer = |psn: &u64| {
            self.find(*psn).and_then(|(id, _)| self.message(id)).is_some_and(|message| message.kind.wants_answer())
        };
        let held: Vec<_> =
            (behind..self.una).chain(self.answered.range(behind..).copied()).filter(has_answer).collect();
        held.into_iter().for_each(|psn| self.on_answer_hit(psn, None));
    }

    /// The requester learns that a request was refused.
    pub(crate) fn on_refused(&mut self, psn: u32, now: u64) {
        let psn = self.unwrap_psn(psn);
        self.owed.refused.get_or_insert((psn, now));
    }

    /// A request is flushed because one behind it was refused, and for no other reason: that is so
    /// only when an answer to a READ or an atomic operation before the refused one was lost, for
    /// the responder does not answer any more. For answers that the refusal has overtaken a
    /// requester waits at least its patience.
    pub(crate) fn check_flushed(&mut self, id: u64) -> Checked {
        let Some((refused, at)) = self.owed.refused else { return Ok(()) };
        let message = self.message(id).expect("kept");
        // A requester that drops answers behind a late one asks for them again, and the responder
        // does not answer any more.
        if message.first < self.sent_again_until {
            return Ok(());
        }
        let hits = || self.owed.hit.iter().filter(|hit| (self.una_at_least..refused).contains(&hit.psn));
        demand!(
            hits().count() > 0,
            "owed-answer",
            "request {} is flushed, PSN {} was refused, and no answer before it was lost: acknowledged up to {}, {message:?}",
            message.wr_id,
            refused & 0xff_ffff,
            self.una_at_least & 0xff_ffff
        );
        let patience = self.owed.patience;
        let is_soon = |hit: &Hit| hit.arrives_at.is_some_and(|arrival| arrival < at + patience);
        demand!(
            !hits().all(is_soon),
            "owed-answer",
            "request {} is flushed, and all answers before PSN {}, which was refused at {at} ns, are there within {patience} ns",
            message.wr_id,
            refused & 0xff_ffff
        );
        Ok(())
    }
}
