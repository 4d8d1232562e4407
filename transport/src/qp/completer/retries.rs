//! Retries and failures: NAKs, gaps of responses, and the end of a queue pair after them.

use roced_types::Status;

use super::RepeatedNak;
use crate::{
    clock::Nanos,
    counters::QpCount,
    io::App,
    psn::Psn,
    qp::{
        completer::Completer,
        context::Context,
        deferred::PeerAnswer,
        events::FailureCause,
        requester::Requester,
        retry::RNR_RETRY_FOREVER,
        send_queue::{SendEntry, SendQueue},
    },
    reject::DropReason,
    wire::aeth::{NakCode, rnr_delay},
};

impl Completer {
    /// Handles the loss of an answer before the current one, which has PSN `buffered` if it is
    /// buffered.
    pub(crate) fn on_gap<A: App>(
        &mut self,
        buffered: Option<Psn>,
        requester: &mut Requester,
        cx: &mut Context<'_, A>,
    ) -> Result<(), DropReason> {
        if cx.base.recovery.is_selective() {
            self.on_missing_response(cx.now + cx.base.recovery.reorder_delay, buffered, requester, cx);
            return Ok(());
        }
        if self.gap_asked == Some(self.unacknowledged) {
            return Err(DropReason::ResponseGap);
        }
        cx.base.counters.count(QpCount::ImpliedNak);
        self.retry(requester, cx);
        self.gap_asked = Some(self.unacknowledged);
        Ok(())
    }

    /// Sends everything unacknowledged again, if a retry is left. Does nothing if a retry is
    /// already pending and none of its packets has been sent: duplicate NAKs, a wire without room
    /// and a rate limit use up no retries.
    pub(crate) fn retry<A: App>(&mut self, requester: &mut Requester, cx: &mut Context<'_, A>) {
        if requester.cursor() != self.unacknowledged && self.spend_retry(cx) {
            requester.on_loss(self.awaits_response(cx.send_queue), false, self.unacknowledged);
            self.go_back(cx.send_queue, requester);
        }
    }

    /// Uses up one retry; without one left, fails the oldest request.
    pub(crate) fn spend_retry<A: App>(&mut self, cx: &mut Context<'_, A>) -> bool {
        let Some(left) = self.retries_left.checked_sub(1) else {
            cx.base.counters.count(QpCount::RetryExceeded);
            self.fail_oldest(Status::TransportRetryExceeded, cx);
            return false;
        };
        self.retries_left = left;
        true
    }

    /// The oldest unacknowledged packet is a READ response.
    pub(crate) fn awaits_response(&self, queue: &SendQueue) -> bool {
        queue.oldest().is_some_and(SendEntry::is_read)
    }

    /// Moves the cursor back to the oldest unacknowledged packet.
    pub(crate) fn go_back(&mut self, queue: &SendQueue, requester: &mut Requester) {
        let (position, packet) = self.place(queue);
        requester.rewind(position, packet, self.unacknowledged);
        self.on_gone_back();
    }

    /// Resets the state of outstanding packets, which are sent again from the cursor on.
    pub(crate) fn on_gone_back(&mut self) {
        self.selective.on_gone_back();
        // A refusal stays; the peer repeats any other answer.
        self.behind = self.behind.filter(|behind| matches!(behind.said, PeerAnswer::Refused(_)));
        // Nothing is outstanding now; the timer starts with the next packet.
        self.ack_deadline = Nanos::NEVER;
    }

    /// Sends the oldest unacknowledged packet again, as a retry. As in [`Self::go_back`] the timer
    /// starts when the packet has left, so that a wire without room or a rate limit does not use up
    /// another retry.
    pub(crate) fn send_oldest_again(&mut self, requester: &mut Requester) {
        requester.send_oldest_again();
        self.ack_deadline = Nanos::NEVER;
    }

    pub(crate) fn on_rnr<A: App>(&mut self, timer: u8, requester: &mut Requester, cx: &mut Context<'_, A>) {
        if requester.is_waiting_for_receiver() {
            // Nothing was sent since the last RNR NAK: this one is a duplicate or a repetition. The
            // last one determines the wait.
            requester.wait_for_receiver(cx.now, rnr_delay(timer));
            return;
        }
        if cx.base.attributes.rnr_retry != RNR_RETRY_FOREVER {
            if self.rnr_retries_left == 0 {
                cx.base.counters.count(QpCount::RnrRetryExceeded);
                self.fail_oldest(Status::RnrRetryExceeded, cx);
                return;
            }
            self.rnr_retries_left -= 1;
        }
        // The peer answers, if only with a delay: time-outs on either side of an RNR NAK are not
        // consecutive. However long the receiver takes, losses in between do not accumulate.
        self.retries_left = cx.base.attributes.retry_cnt;
        self.go_back(cx.send_queue, requester);
        requester.wait_for_receiver(cx.now, rnr_delay(timer));
    }

    /// Handles a sequence NAK: the peer misses the oldest packet, or the next one to be sent. Sends
    /// it again, alone or with all behind it. Repetitions for each packet behind the missing one
    /// count as one NAK.
    pub(crate) fn on_sequence_nak<A: App>(&mut self, requester: &mut Requester, cx: &mut Context<'_, A>) {
        let oldest = self.unacknowledged;
        let patience = self.selective.patience();
        let silence = patience.max(cx.base.recovery.probe_floor);
        let last_nak = self.nak.as_mut().filter(|nak| nak.psn == oldest);
        let again = last_nak.is_some_and(|nak| nak.is_repeated(cx.now, patience, silence));
        if again || oldest == requester.frontier() || requester.is_about_to_send(oldest) {
            return;
        }
        // The oldest is missing, and one of the packets behind it has caused this NAK.
        let left = requester.cursor().offset_from(oldest).saturating_sub(2);
        self.nak = Some(RepeatedNak { psn: oldest, at: cx.now, last: cx.now, left });
        if cx.base.recovery.is_selective() {
            self.repair_missing(requester, cx);
        } else {
            self.retry(requester, cx);
        }
    }

    /// Fails the oldest request, which the responder refused; the responder executes no more.
    pub(crate) fn on_remote_error<A: App>(&mut self, code: NakCode, cx: &mut Context<'_, A>) {
        let (status, count) = match code {
            NakCode::RemoteAccess => (Status::RemoteAccess, QpCount::RemoteAccessReceived),
            NakCode::RemoteOperation => (Status::RemoteOperation, QpCount::RemoteOperationReceived),
            // 0x60 was handled before, and codes without a meaning were dropped; 0x61 is left, and
            // 0x64, which belongs to reliable datagrams.
            _ => (Status::RemoteInvalidRequest, QpCount::RemoteInvalidReceived),
        };
        cx.base.counters.count(count);
        self.fail_oldest(status, cx);
    }

    /// Flushes all requests before `psn`, which will get no answer: no request succeeds behind a
    /// request that failed.
    pub(crate) fn flush_before<A: App>(&mut self, psn: Psn, cx: &mut Context<'_, A>) {
        while self.unacknowledged.distance_from(psn) < 0 {
            let entry = *cx.send_queue.entry(cx.send_queue.head());
            if psn.distance_from(entry.end_psn()) < 0 {
                // The request itself is partly acknowledged.
                break;
            }
            cx.send_queue.pop();
            self.unacknowledged = entry.end_psn();
            cx.complete_send(&entry, Status::WorkRequestFlushed);
        }
    }

    /// Fails the oldest request, and the queue pair with it; the rest is flushed.
    pub(crate) fn fail_oldest<A: App>(&mut self, status: Status, cx: &mut Context<'_, A>) {
        self.ack_deadline = Nanos::NEVER;
        self.selective.stop();
        cx.base.fail(FailureCause::Send(status));
        if let Some(entry) = cx.send_queue.pop() {
            cx.complete_send(&entry, status);
        }
    }
}
