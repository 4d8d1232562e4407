//! The requester: segments work into packets and decides which packet to send next.
//!
//! It keeps a cursor into the send queue. Packets from the completer's oldest unacknowledged PSN up
//! to the cursor are in flight. [`Requester::rewind`] puts the cursor back there, and everything
//! from it on is sent again (go-back-N); [`Requester::send_oldest_again`] leaves the cursor in
//! place and sends only the oldest packet again.
//!
//! READs are requested in chunks, each a READ request of its own on the wire, so that the responses
//! in flight never exceed the window either: nothing else limits a responder.

mod packets;
mod sent;

use roced_types::{SendOp, Status};

pub(crate) use self::sent::{AckRequest, Reason, SentAgain, SentRequest};
use super::{
    Context, QpBase, State, Transmission,
    atomic::ATOMIC_BYTES,
    base::LIMITED_WINDOW,
    completer::Completer,
    credits::CreditLimit,
    key_change::{KeyRequest, Waiter},
    rnr_wait::RnrWait,
    segment::packets,
    send_queue::{MESSAGE_BYTES_MAX, SendEntry, SendQueue},
};
use crate::{
    clock::Nanos,
    congestion::{control::CongestionControl, delay_guard::DelayGuard, window::CongestionWindow},
    counters::QpCount,
    io::{App, Wire},
    psn::Psn,
    turns::pacing::{PacedFrame, Pacer},
    wire::frame::Packet,
};

/// ACK requests per window, so that the window opens again before it is exhausted.
const ACK_REQUESTS_PER_WINDOW: u32 = 8;

/// Maximum time for which packets go without an ACK request before the next unsignaled message
/// asks: half the minimum wait of a tail probe, so that no probe is sent while messages follow each
/// other.
const UNASKED_MAX: Nanos = Nanos::from_micros(50);

/// Messages that ask immediately at the beginning of a life, and after no message followed so that
/// a probe had to ask; after them asking is left to later messages again.
const ASKING_AFTER_PROBE: u8 = 16;

/// Chunks of a READ per window, if the peer accepts that many requests.
const READ_CHUNKS_PER_WINDOW: u32 = 8;

/// Send cursor and pending retransmissions.
#[derive(Debug)]
pub(crate) struct Requester {
    window: u32,
    /// Position in the send queue of the next entry to send, number of its packets that were sent,
    /// and the next PSN.
    entry: u32,
    packet: u32,
    psn: Psn,
    /// PSN after the highest ever sent, and its position in the queue.
    frontier: Psn,
    frontier_place: (u32, u32),
    /// READ and atomic requests completely answered since the start; and those before the cursor
    /// and before the frontier, counted the same way, because requests begin at fixed packets.
    answered: u32,
    wanting_before_cursor: u32,
    wanting_before_frontier: u32,
    /// Reason to send the oldest unacknowledged packet again before anything else.
    oldest_again: Option<Reason>,
    /// If that is a READ, only the responses before this one are requested.
    again_up_to: Option<Psn>,
    /// The peer is to be asked how far it has received, before anything else.
    solicits: bool,
    /// Packets since the last ACK request, and the time when the first of them was sent, in
    /// [`coarse`] units.
    unasked: u32,
    unasked_since: u32,
    /// Number of messages that still ask, even if they are unsignaled.
    asking: u8,
    rnr_wait: Option<RnrWait>,
    /// A packet waits for the pacer.
    is_paced: bool,
    /// Status with which the entry at the cursor fails, because it cannot be sent.
    refused: Option<Status>,
    pacer: Pacer,
    /// Credit limit set by the peer's receives.
    pub(super) credits: CreditLimit,
    /// Of requests, and of the READ responses that are asked for: the two directions of a network
    /// are congested independently.
    requests: CongestionWindow,
    responses: CongestionWindow,
    guard: DelayGuard,
}

/// A time in units of 1.024 us, modulo 2^32: four bytes of a queue pair in place of eight.
const fn coarse(time: Nanos) -> u32 {
    (time.0 >> 10) as u32
}

impl Requester {
    pub(crate) fn new(window_packets: u32) -> Self {
        let window = CongestionWindow::new(CongestionControl::Off, Psn::default());
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
            unasked_since: 0,
            asking: 0,
            rnr_wait: None,
            is_paced: false,
            refused: None,
            pacer: Pacer::default(),
            credits: CreditLimit::default(),
            requests: window,
            responses: window,
            guard: DelayGuard::default(),
        }
    }

    /// Enters RTS: the first packet of the entry at `position` will have `psn`.
    pub(crate) fn begin(&mut self, psn: Psn, position: u32) {
        (self.entry, self.packet, self.psn, self.frontier) = (position, 0, psn, psn);
        self.frontier_place = (position, 0);
        // A duplicate cannot ask the peer before a packet was acknowledged.
        self.asking = ASKING_AFTER_PROBE;
        self.credits = CreditLimit::default();
    }

    /// Enters RTS: `control` reacts to congestion on the way to the peer, and `guard` sees it by
    /// delay.
    pub(crate) const fn begin_congestion(&mut self, control: CongestionControl, guard: DelayGuard, psn: Psn) {
        let window = CongestionWindow::new(control, psn);
        (self.requests, self.responses, self.guard) = (window, window, guard);
    }

    pub(crate) fn set_rate(&mut self, kbit_per_s: u32) {
        self.pacer.set_rate(kbit_per_s);
    }

    /// PSN after the highest ever sent.
    pub(crate) const fn frontier(&self) -> Psn {
        self.frontier
    }

    /// PSN that is sent next.
    pub(crate) const fn cursor(&self) -> Psn {
        self.psn
    }

    /// The cursor is before a request that was never begun.
    pub(crate) fn is_between_requests(&self) -> bool {
        self.packet == 0 && self.psn == self.frontier
    }

    /// Position of the entry that cannot be sent, and the status with which it fails.
    pub(crate) const fn refused(&self) -> Option<(u32, Status)> {
        match self.refused {
            Some(status) => Some((self.entry, status)),
            None => None,
        }
    }

    /// Moves the cursor back: everything from `psn`, packet `packet` of the entry at `position`, is
    /// sent again.
    pub(crate) fn rewind(&mut self, position: u32, packet: u32, psn: Psn) {
        (self.entry, self.packet, self.psn) = (position, packet, psn);
        self.wanting_before_cursor = self.answered;
        (self.oldest_again, self.solicits) = (None, false);
        self.refused = None;
        // The first packet asks for an ACK, for the earliest possible answer.
        self.unasked = self.window;
    }

    /// Sets the number of READ and atomic requests before the cursor that are not completely
    /// answered.
    pub(crate) fn on_begun(&mut self, requests: u32) {
        self.wanting_before_cursor = self.answered.wrapping_add(requests);
    }

    /// Applies the credits of an answer that is not outdated: at most one packet before `oldest`,
    /// like an unsolicited ACK. True when they let more be sent.
    pub(crate) fn on_credits(&mut self, packet: &Packet<'_>, oldest: Psn, base: &QpBase) -> bool {
        let Some(aeth) = packet.aeth.filter(|_| base.config.credits) else { return false };
        let psn = packet.bth.psn;
        let is_of_now = psn.distance_from(oldest) >= -1 && psn.distance_from(self.frontier) < 0;
        is_of_now && self.credits.on_answer(&aeth)
    }

    /// Moves the cursor forward to `psn`, packet `packet` of the entry at `position`: everything
    /// before `psn` is acknowledged.
    pub(crate) fn skip_to(&mut self, position: u32, packet: u32, psn: Psn) {
        (self.entry, self.packet, self.psn) = (position, packet, psn);
        self.wanting_before_cursor = self.answered;
        // The entry was sent before, and that transmission has arrived.
        self.refused = None;
    }

    /// Moves the cursor to the frontier: the packets from the cursor on need not be sent again.
    pub(crate) fn skip_to_frontier(&mut self) {
        if self.psn != self.frontier {
            ((self.entry, self.packet), self.psn) = (self.frontier_place, self.frontier);
            self.wanting_before_cursor = self.wanting_before_frontier;
            self.refused = None;
            // Packets that were not sent again may be beyond the credit limit.
            self.credits.on_probe(self.frontier.minus(1));
        }
    }

    /// Makes the next messages ask: messages come too rarely to leave asking to the next one.
    pub(crate) fn ask_for_a_while(&mut self) {
        self.asking = ASKING_AFTER_PROBE;
    }

    /// Requests a retransmission of the oldest unacknowledged packet, which is missing; the cursor
    /// stays.
    pub(crate) fn send_oldest_again(&mut self) {
        (self.oldest_again, self.again_up_to) = (Some(Reason::Missing), None);
    }

    /// As [`Self::send_oldest_again`], because the packet is probably lost like the one before it.
    pub(crate) fn presume_oldest_lost(&mut self) {
        (self.oldest_again, self.again_up_to) = (Some(Reason::Presumed), None);
    }

    /// Limits the retransmission of a READ: the responses from `end` on are present.
    pub(crate) fn ask_up_to(&mut self, end: Option<Psn>) {
        self.again_up_to = end;
    }

    /// As [`Self::send_oldest_again`], because the answer is late. If the packet's memory is gone
    /// the peer is only asked.
    pub(crate) fn probe_oldest(&mut self) {
        if self.oldest_again.is_none() {
            (self.oldest_again, self.again_up_to) = (Some(Reason::Probe), None);
        }
    }

    /// Requests that the peer is asked how far it has received the packets sent.
    pub(crate) fn solicit_ack(&mut self) {
        self.solicits = true;
    }

    /// The packet with `oldest`, the oldest unacknowledged PSN, is the next to be sent.
    pub(crate) fn is_about_to_send(&self, oldest: Psn) -> bool {
        self.oldest_again.is_some() || self.psn == oldest
    }

    /// Cancels a retransmission of the oldest packet: that packet was answered, and another is the
    /// oldest now.
    pub(crate) fn forget_oldest(&mut self) {
        self.oldest_again = None;
    }

    /// Notes that the oldest READ or atomic request is completely answered. A request behind the
    /// cursor, which was to be sent again, reduces no count.
    pub(crate) fn on_answered(&mut self) {
        self.answered = self.answered.wrapping_add(1);
        if self.unanswered() > u32::MAX / 2 {
            self.wanting_before_cursor = self.answered;
        }
    }

    /// Number of READ and atomic requests before the cursor that are not completely answered.
    const fn unanswered(&self) -> u32 {
        self.wanting_before_cursor.wrapping_sub(self.answered)
    }

    /// Starts the wait after an RNR NAK, processed in the poll iteration at `polled_at`: nothing is
    /// sent for `delay`.
    pub(crate) fn wait_for_receiver(&mut self, polled_at: Nanos, delay: Nanos) {
        self.rnr_wait = Some(RnrWait::new(polled_at, delay));
    }

    pub(crate) const fn is_waiting_for_receiver(&self) -> bool {
        self.rnr_wait.is_some()
    }

    pub(crate) fn on_timeout(&mut self, now: Nanos) {
        self.rnr_wait = self.rnr_wait.and_then(|wait| wait.at(now));
        self.is_paced &= self.pacer.next_send() > now;
    }

    /// Notes that the local operation at the cursor is complete.
    pub(crate) fn on_local_done(&mut self) {
        self.entry = self.entry.wrapping_add(1);
        // All entries before it were complete, so the cursor is at the frontier.
        self.frontier_place = (self.entry, 0);
    }

    /// Time at which it can continue, if it waits for one.
    pub(crate) fn deadline(&self) -> Nanos {
        let paced_until = if self.is_paced { self.pacer.next_send() } else { Nanos::NEVER };
        self.rnr_wait.map_or(paced_until, RnrWait::deadline)
    }

    /// Maximum distance of a packet of this request from the oldest unacknowledged PSN. Buffered
    /// responses are no longer in flight: more are requested in their place, but at most another
    /// window, because all queue pairs share the buffer.
    fn window_of(&self, position: u32, queue: &SendQueue, base: &QpBase) -> u32 {
        if !queue.entry(position).is_read() {
            return self.request_window(base);
        }
        let limit = self.responses.limit(self.window);
        limit + if position == queue.head() { base.buffered_answers.min(limit) } else { 0 }
    }

    /// Requests that may be in flight.
    fn request_window(&self, base: &QpBase) -> u32 {
        self.requests.limit(base.window_at_rate(self.window))
    }

    /// Packets after the last ACK request with which the next one asks, so that a small window
    /// opens again as well.
    fn ask_interval(&self, base: &QpBase) -> u32 {
        (self.window / ACK_REQUESTS_PER_WINDOW).min(self.request_window(base) / 2)
    }

    /// Notes that packets up to `oldest` were acknowledged: responses of a READ, or requests.
    #[inline]
    pub(crate) fn on_acknowledged(&mut self, packets: u32, are_responses: bool, oldest: Psn, now: Nanos) {
        let (frontier, most) = (self.frontier, self.window);
        if self.requests.is_off() {
            return;
        }
        let both = (&mut self.requests, &mut self.responses);
        let (window, other) = if are_responses { (both.1, both.0) } else { both };
        window.on_acknowledged(packets, oldest, frontier, most, now);
        other.follow_round(oldest, frontier);
    }

    /// The peer says that the network marks requests.
    pub(crate) fn on_notification(&mut self) {
        self.requests.on_mark(self.frontier);
    }

    /// The rate of requests is limited. After the limit the window opens by acknowledgments, and
    /// not at once, which would fill a queue before the first CNP comes.
    pub(crate) fn on_rate_limited(&mut self) {
        self.requests.bound(LIMITED_WINDOW);
    }

    /// A round trip was measured, from a request to its ACK or the first of its responses.
    #[inline]
    pub(crate) fn on_round_trip(&mut self, is_response: bool, round_trip: Nanos) {
        if let Some(part) = self.guard.on_round_trip(round_trip) {
            let frontier = self.frontier;
            self.congestion_window(is_response).on_delay(part, frontier);
        }
    }

    /// A READ response came with a mark.
    pub(crate) fn on_marked_response(&mut self) {
        self.responses.on_mark(self.frontier);
    }

    /// Notes the loss of `oldest`, a READ response, or a request or its ACK: only that one is sent
    /// again, or all from it on.
    pub(crate) fn on_loss(&mut self, is_response: bool, is_alone: bool, oldest: Psn) {
        let frontier = self.frontier;
        let window = self.congestion_window(is_response);
        if is_alone {
            window.on_loss(frontier);
        } else {
            window.on_losses(oldest.plus(1));
        }
    }

    /// Notes that the ACK timer has expired.
    pub(crate) fn on_ack_timeout(&mut self, awaits_response: bool, oldest: Psn) {
        self.congestion_window(awaits_response).on_ack_timeout(oldest.plus(1));
    }

    /// Congestion windows of requests and of READ responses, in packets.
    pub(crate) fn congestion_windows(&self) -> (f64, f64) {
        (self.requests.packets(), self.responses.packets())
    }

    /// Number of packets of one READ request.
    pub(crate) fn read_chunk(&self, max_rd_atomic: u32) -> u32 {
        (self.window / max_rd_atomic.clamp(1, READ_CHUNKS_PER_WINDOW)).max(1)
    }

    /// Sends the next packet.
    pub(crate) fn transmit<A: App, W: Wire>(
        &mut self,
        completer: &mut Completer,
        cx: &mut Context<'_, A>,
        wire: &mut W,
    ) -> Transmission {
        let oldest = completer.unacknowledged();
        // If the cursor is there, the packet is sent anyway.
        self.oldest_again = self.oldest_again.filter(|_| oldest != self.psn);
        self.solicits &= oldest != self.psn;
        let in_flight = self.psn.offset_from(oldest);
        let ends = self.refused.is_some() || self.entry == cx.send_queue.tail();
        if ends && cx.base.state == State::SendQueueDrain && self.is_unasked(in_flight, completer) {
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
        self.is_paced = self.pacer.next_send() > cx.now;
        let is_held = self.is_paced || cx.base.paces_requests() && cx.base.is_paced(cx.now);
        if is_held || cx.base.waits_for_account(cx.now) {
            return Transmission::Idle;
        }
        if let Some(reason) = again {
            return self.send_oldest(reason, completer, cx, wire);
        }
        if self.solicits {
            return self.ask(completer, cx, wire);
        }
        match self.send_new(in_flight, completer, cx, wire) {
            // It may wait for the acknowledgment of messages that did not ask.
            Transmission::Idle
                if self.awaits_ack(in_flight, completer, cx.base, cx.send_queue)
                    && self.is_unasked(in_flight, completer) =>
            {
                self.ask(completer, cx, wire)
            }
            visit => visit,
        }
    }

    /// The packet before the cursor has not asked for an ACK. It need not be the last packet that
    /// left: the peer may have the packets behind a retransmission.
    const fn is_unasked(&self, in_flight: u32, completer: &Completer) -> bool {
        in_flight > 0 && (self.unasked > 0 || !completer.has_asked(self.psn))
    }

    /// The entry at the cursor cannot begin until some or all packets sent before are acknowledged.
    fn awaits_ack(&self, in_flight: u32, completer: &Completer, base: &QpBase, queue: &SendQueue) -> bool {
        if self.refused.is_some() || self.entry == queue.tail() {
            return self.refused.is_some();
        }
        let entry = queue.entry(self.entry);
        let waits =
            base.state == State::SendQueueDrain || self.credits.awaits_probe(self.psn, completer.unacknowledged());
        let is_full = in_flight >= self.window_of(self.entry, queue, base);
        waits
            || entry.is_local()
            || entry.is_read()
            || is_full && (self.unasked >= in_flight || completer.expects_nothing())
    }

    /// Sends the packet at the cursor, in order.
    fn send_new<A: App, W: Wire>(
        &mut self,
        in_flight: u32,
        completer: &mut Completer,
        cx: &mut Context<'_, A>,
        wire: &mut W,
    ) -> Transmission {
        if cx.send_queue.entry(self.entry).is_local() {
            return self.start_local(cx.base, cx.send_queue);
        }
        let are_responses = cx.send_queue.entry(self.entry).is_read();
        if in_flight >= self.window_of(self.entry, cx.send_queue, cx.base) {
            self.congestion_window(are_responses).on_full();
            return Transmission::Idle;
        }
        if in_flight == 0 && !self.requests.is_off() {
            self.requests.on_begin(cx.now);
            self.responses.on_begin(cx.now);
        }
        // Unacknowledged packets that did not ask would count as in flight for ever: one more
        // packet asks.
        if cx.base.grant == 0 && self.psn == self.frontier && (in_flight == 0 || completer.has_asked(self.psn)) {
            cx.base.wants_grant = true;
            return Transmission::Idle;
        }
        if let Err(visit) = self.start_entry(cx.base, cx.send_queue) {
            return visit;
        }
        let (entry, oldest) = (*cx.send_queue.entry(self.entry), completer.unacknowledged());
        let is_beyond = self.credits.is_beyond(&entry, oldest);
        if is_beyond {
            if self.credits.awaits_probe(self.psn, oldest) {
                return Transmission::Idle;
            }
            // Its answer shows whether the receiver is ready.
            self.unasked = self.window;
        }
        let packets = match self.send_at_cursor(&entry, in_flight, cx, wire) {
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
        cx.base.grant = cx.base.grant.saturating_sub(packets);
        self.advance(&entry, packets);
        if let Some(gap) = self.congestion_window(are_responses).gap(packets, completer.round_trip()) {
            self.pacer.wait_until(cx.now + gap);
        }
        completer.on_sent(&sent, cx.base, cx.now);
        Transmission::Progress
    }

    /// Congestion window of READ responses, or of requests.
    const fn congestion_window(&mut self, of_responses: bool) -> &mut CongestionWindow {
        if of_responses { &mut self.responses } else { &mut self.requests }
    }

    /// Assigns PSNs to an entry when its first packet is due for the first time.
    fn start_entry(&mut self, base: &QpBase, queue: &mut SendQueue) -> Result<(), Transmission> {
        if !self.is_between_requests() {
            return Ok(());
        }
        // IBTA v1 10.3.1.5: a queue that drains begins no request.
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

    /// Begins a local operation when all entries before it are complete; all entries behind it wait
    /// until it is complete. This order is stricter than IBTA v1 10.8.3 requires and violates none
    /// that a program can rely on.
    fn start_local(&self, base: &mut QpBase, queue: &SendQueue) -> Transmission {
        let begins = self.entry == queue.head() && base.state == State::ReadyToSend;
        if begins && !base.keys.waits(Waiter::Requester) {
            base.keys.want(KeyRequest::of_work(queue.entry(self.entry)));
        }
        Transmission::Idle
    }

    fn refuse(&mut self, status: Status) -> Transmission {
        self.refused = Some(status);
        Transmission::Idle
    }

    /// An unsignaled message of one packet need not be acknowledged by itself: an ACK costs as much
    /// as a message. A following message asks, or a tail probe if probes are in use.
    fn may_stay_unasked(&self, base: &QpBase, entry: &SendEntry, now: Nanos) -> bool {
        entry.packets == 1
            && self.asking == 0
            && !entry.is_signaled()
            && !base.config.signal_all
            && base.recovery.is_selective()
            && !base.is_same_device()
            && (self.unasked == 0 || coarse(now).wrapping_sub(self.unasked_since) < coarse(UNASKED_MAX))
    }

    fn count(&mut self, base: &mut QpBase, entry: &SendEntry, packets: u32, now: Nanos) {
        base.counters.count(QpCount::RequestPackets);
        if self.psn.distance_from(self.frontier) < 0 {
            base.counters.count(QpCount::RetransmittedPackets);
        }
        if self.pacer.is_limited() {
            // The responses of a READ use the peer's sending rate, not ours, but are paced as well.
            let (mtu, packets) = (base.mtu() as u64, u64::from(packets));
            let payload = entry.length().saturating_sub(u64::from(self.packet) * mtu).min(packets * mtu);
            let bytes = payload as usize + base.overhead() * packets as usize;
            let burst_bytes = base.attributes.rate_limit_burst_bytes;
            self.pacer.on_sent(now, PacedFrame { bytes, burst_bytes, kbit_per_s: 0 });
        }
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
