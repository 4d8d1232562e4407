//! The reliable connection: three roles, each with its own PSNs.
//!
//! ```text
//!   work ──► SendQueue ──► Requester ──► frames          what to send next
//!               ▲                │
//!               └── Completer ◄──┴────── ACKs, responses   what is done, what to send again
//!
//!   RecvQueue ──► Responder ◄─────────── requests        what to execute
//!                     └────────────────► ACKs, NAKs, READ responses, ATOMIC ACKs
//! ```

use roced_shared::abi::control::attribute;

use super::{
    Link, Turn, Visit, completer::Completer, key_change::Waiter, recv_queue::RecvQueue, requester::Requester,
    responder::Responder, send_queue::SendQueue,
};
use crate::{
    clock::Nanos,
    io::{App, Wire},
    psn::Psn,
    reject::DropReason,
    wire::frame::Packet,
};

/// The roles of one end.
#[derive(Debug)]
pub(crate) struct Reliable {
    pub(super) requester: Requester,
    pub(super) completer: Completer,
    pub(super) responder: Responder,
    /// Whose turn it is to send: the requester's, or the responder's.
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

    /// To RTR: its attributes are set.
    pub(crate) fn begin_to_receive(&mut self, link: &Link) {
        self.responder.begin(Psn::new(link.attributes.rq_psn), link.attributes.max_dest_rd_atomic);
    }

    /// To RTS: its attributes are set.
    pub(crate) fn begin_to_send(&mut self, link: &Link, queue: &SendQueue) {
        let psn = Psn::new(link.attributes.sq_psn);
        self.requester.begin(psn, queue.head());
        self.completer.begin(psn, link);
    }

    /// Attributes changed while the send queue is drained.
    pub(crate) fn renew_attributes(&mut self, mask: u32, link: &Link) {
        self.completer.renew_retries(link);
        if mask & attribute::MAX_DEST_RD_ATOMIC != 0 {
            self.responder.renew_depth(link.attributes.max_dest_rd_atomic);
        }
    }

    /// All that was begun is done.
    pub(crate) fn is_drained(&self) -> bool {
        self.requester.is_between_requests() && self.completer.unacknowledged() == self.requester.frontier()
    }

    /// Packets before the cursor that are not acknowledged.
    pub(crate) fn under_way(&self) -> u32 {
        self.requester.cursor().offset_from(self.completer.unacknowledged())
    }

    pub(crate) fn set_rate(&mut self, bytes_per_s: u64) {
        self.requester.set_rate(bytes_per_s);
    }

    pub(crate) fn on_packet<A: App>(
        &mut self,
        packet: &Packet<'_>,
        link: &mut Link,
        send_queue: &mut SendQueue,
        recv_queue: &mut RecvQueue,
        turn: &mut Turn<'_, A>,
    ) -> Result<(), DropReason> {
        if packet.info.operation.is_response() {
            self.completer.on_packet(packet, link, send_queue, &mut self.requester, turn)
        } else {
            self.responder.on_packet(packet, link, recv_queue, turn)
        }
    }

    pub(crate) fn on_timeout<A: App>(&mut self, link: &mut Link, queue: &mut SendQueue, turn: &mut Turn<'_, A>) {
        self.responder.on_timeout(turn.now);
        if link.state.sends() {
            self.requester.on_timeout(turn.now);
            self.completer.on_timeout(link, queue, &mut self.requester, turn);
        }
    }

    /// A change of keys that one of the roles waited for was made in every table, or cannot be made.
    pub(crate) fn on_key_change<A: App>(
        &mut self,
        waiter: Waiter,
        done: bool,
        link: &mut Link,
        send_queue: &mut SendQueue,
        recv_queue: &mut RecvQueue,
        turn: &mut Turn<'_, A>,
    ) {
        match waiter {
            Waiter::Requester if done => {
                self.requester.on_local_done();
                self.completer.complete_local(link, send_queue, turn);
            }
            Waiter::Requester => self.completer.fail_local(link, send_queue, turn),
            Waiter::Responder => self.responder.on_invalidated(done, link, recv_queue, turn),
        }
    }

    pub(crate) fn deadline(&self, link: &Link) -> Nanos {
        let answers = self.responder.deadline();
        if link.state.sends() { answers.min(self.completer.deadline()).min(self.requester.deadline()) } else { answers }
    }

    /// Sends one frame. Requests and answers take turns: neither a peer that reads without end nor a client that always has work
    /// shuts the other direction out.
    pub(crate) fn transmit<A: App, W: Wire>(
        &mut self,
        link: &mut Link,
        queue: &mut SendQueue,
        turn: &mut Turn<'_, A>,
        wire: &mut W,
    ) -> Visit {
        if link.is_resolving() {
            return Visit::Idle;
        }
        self.requests_first = !self.requests_first;
        let requests_first = self.requests_first;
        match self.transmit_one(requests_first, link, queue, turn, wire) {
            Visit::Idle => self.transmit_one(!requests_first, link, queue, turn, wire),
            visit => visit,
        }
    }

    /// A queue pair that has failed says why.
    pub(crate) fn transmit_last_words<A: App, W: Wire>(
        &mut self,
        link: &mut Link,
        turn: &mut Turn<'_, A>,
        wire: &mut W,
    ) -> Visit {
        self.responder.transmit(link, turn, wire)
    }

    fn transmit_one<A: App, W: Wire>(
        &mut self,
        request: bool,
        link: &mut Link,
        queue: &mut SendQueue,
        turn: &mut Turn<'_, A>,
        wire: &mut W,
    ) -> Visit {
        if !request {
            return self.responder.transmit(link, turn, wire);
        }
        if !link.state.sends() {
            return Visit::Idle;
        }
        let visit = self.requester.transmit(link, &mut self.completer, queue, turn, wire);
        // A request that cannot be sent fails when all before it are done.
        self.completer.fail_refused(link, queue, &self.requester, turn);
        visit
    }
}
