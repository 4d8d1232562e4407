//! The reliable connection: three roles, each with its own PSNs.
//!
//! ```text
//!   work ──► SendQueue ──► Requester ──► frames            next packet
//!               ▲                │
//!               └── Completer ◄──┴────── ACKs, responses   completion, retransmission
//!
//!   RecvQueue ──► Responder ◄─────────── requests          execution
//!                     └────────────────► ACKs, NAKs, READ responses, ATOMIC ACKs
//! ```

use roced_types::attribute;

use super::{
    Context, QpBase, Transmission, completer::Completer, key_change::Waiter, requester::Requester,
    responder::Responder, send_queue::SendQueue,
};
use crate::{
    clock::Nanos,
    congestion::control::CongestionControl,
    io::{App, Wire},
    psn::Psn,
    reject::DropReason,
    wire::frame::Packet,
};

/// Roles of one end.
#[derive(Debug)]
pub(crate) struct Reliable {
    pub(super) requester: Requester,
    pub(super) completer: Completer,
    pub(super) responder: Responder,
    /// The requester was served first in the last visit; requester and responder alternate.
    requests_first: bool,
}

impl Reliable {
    pub(crate) fn new(window_packets: u32) -> Self {
        Self {
            requester: Requester::new(window_packets),
            completer: Completer::default(),
            responder: Responder::new(),
            requests_first: false,
        }
    }

    pub(crate) fn reset(&mut self, window_packets: u32) {
        self.requester = Requester::new(window_packets);
        self.completer.reset();
        self.responder.reset();
    }

    /// Enters RTR: its attributes are set.
    pub(crate) fn begin_to_receive(&mut self, base: &QpBase) {
        self.responder.begin(Psn::new(base.attributes.rq_psn), base.attributes.max_dest_rd_atomic);
    }

    /// Enters RTS: its attributes are set.
    pub(crate) fn begin_to_send(&mut self, base: &QpBase, queue: &SendQueue) {
        let psn = Psn::new(base.attributes.sq_psn);
        self.requester.begin(psn, queue.head());
        let control = if base.is_same_device() { CongestionControl::Off } else { base.congestion };
        self.requester.begin_congestion(control, base.delay_guard, psn);
        self.completer.begin(psn, base);
    }

    /// Applies attributes that changed while the send queue is drained.
    pub(crate) fn renew_attributes(&mut self, mask: u32, base: &QpBase) {
        self.completer.renew_retries(base);
        if mask & attribute::MAX_DEST_RD_ATOMIC != 0 {
            self.responder.renew_depth(base.attributes.max_dest_rd_atomic);
        }
    }

    /// All requests that were begun are complete.
    pub(crate) fn is_drained(&self) -> bool {
        self.requester.is_between_requests() && self.completer.unacknowledged() == self.requester.frontier()
    }

    /// Packets before the cursor that are not acknowledged.
    pub(crate) fn in_flight(&self) -> u32 {
        self.requester.cursor().offset_from(self.completer.unacknowledged())
    }

    pub(crate) fn set_rate(&mut self, kbit_per_s: u32) {
        self.requester.set_rate(kbit_per_s);
    }

    #[inline]
    pub(crate) fn on_packet<A: App>(&mut self, packet: &Packet<'_>, cx: &mut Context<'_, A>) -> Result<(), DropReason> {
        if packet.info.operation.is_response() {
            self.completer.on_packet(packet, self.responder.source(), &mut self.requester, cx)
        } else {
            self.responder.on_packet(packet, self.completer.source(), cx)
        }
    }

    pub(crate) fn on_timeout<A: App>(&mut self, cx: &mut Context<'_, A>) {
        self.responder.on_timeout(cx.now);
        if cx.base.state.sends() && !cx.base.is_silent {
            self.requester.on_timeout(cx.now);
            self.completer.on_timeout(&mut self.requester, cx);
        }
    }

    /// Handles the end of a key change that one of the roles waits for: it was made in every table,
    /// or cannot be made.
    pub(crate) fn on_key_change<A: App>(&mut self, waiter: Waiter, done: bool, cx: &mut Context<'_, A>) {
        match waiter {
            Waiter::Requester if done => {
                self.requester.on_local_done();
                self.completer.complete_local(cx);
            }
            Waiter::Requester => self.completer.fail_local(cx),
            Waiter::Responder => self.responder.on_invalidated(done, cx),
        }
    }

    #[inline]
    pub(crate) fn deadline(&self, base: &QpBase) -> Nanos {
        let answers = self.responder.deadline().min(base.rate_deadline());
        if base.state.sends() && !base.is_silent {
            answers.min(self.completer.deadline()).min(self.requester.deadline())
        } else {
            answers
        }
    }

    /// Sends one frame. Requests and answers alternate: neither a peer that reads without end nor a
    /// client that always has work starves the other direction.
    #[inline]
    pub(crate) fn transmit<A: App, W: Wire>(&mut self, cx: &mut Context<'_, A>, wire: &mut W) -> Transmission {
        if cx.base.is_resolving() {
            return Transmission::Idle;
        }
        self.requests_first = !self.requests_first;
        let requests_first = self.requests_first;
        match self.transmit_one(requests_first, cx, wire) {
            Transmission::Idle => self.transmit_one(!requests_first, cx, wire),
            visit => visit,
        }
    }

    /// Sends the last answers of a failed queue pair, which report the reason.
    pub(crate) fn transmit_final_answers<A: App, W: Wire>(
        &mut self,
        cx: &mut Context<'_, A>,
        wire: &mut W,
    ) -> Transmission {
        self.responder.transmit(cx, wire)
    }

    #[inline]
    fn transmit_one<A: App, W: Wire>(&mut self, request: bool, cx: &mut Context<'_, A>, wire: &mut W) -> Transmission {
        if !request {
            return self.responder.transmit(cx, wire);
        }
        if !cx.base.state.sends() || cx.base.is_silent {
            return Transmission::Idle;
        }
        let visit = self.requester.transmit(&mut self.completer, cx, wire);
        // A request that cannot be sent fails once all requests before it are complete.
        self.completer.fail_refused(&self.requester, cx);
        visit
    }
}
