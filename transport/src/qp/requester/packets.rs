//! Packets of requests: new ones, retransmissions, solicitations of an ACK.

use roced_types::{SendOp, Status};

use crate::{
    clock::Nanos,
    counters::QpCount,
    io::{App, EmitError, Wire},
    mr::MrKey,
    psn::Psn,
    qp::{
        atomic,
        base::QpBase,
        completer::Completer,
        context::{Context, Transmission},
        placement,
        requester::{Reason, Requester, SentAgain, coarse},
        segment::position,
        send_queue::{SendEntry, SendQueue},
    },
    wire::{
        bth::Bth,
        headers::Headers,
        ieth::Ieth,
        opcode::{self, Operation, Position},
        reth::Reth,
    },
};

impl Requester {
    /// Asks the peer how far it has received the packets sent. Before the first acknowledgment the
    /// oldest packet itself asks, because the PSN before it belongs to no request of this life.
    pub(crate) fn ask<A: App, W: Wire>(
        &mut self,
        completer: &mut Completer,
        cx: &mut Context<'_, A>,
        wire: &mut W,
    ) -> Transmission {
        if completer.last_acknowledged().is_some() {
            return self.send_solicitation(cx.base, completer, cx.now, wire);
        }
        let visit = self.send_oldest(Reason::Probe, completer, cx, wire);
        if visit == Transmission::Progress {
            (self.solicits, self.unasked) = (false, 0);
            completer.on_solicited(self.psn, cx.base, cx.now);
            completer.on_asked_by_oldest();
        }
        visit
    }

    /// Asks by a duplicate of the last acknowledged packet: a responder only acknowledges it again,
    /// up to the newest request (IBTA v1 C9-105), and reads nothing else of it. Therefore the
    /// duplicate has no payload, and reads no memory, which the client may have revoked since the
    /// peer's client answered. It is a WRITE if that packet belonged to a WRITE, otherwise a SEND,
    /// which needs no right.
    pub(crate) fn send_solicitation<W: Wire>(
        &mut self,
        base: &mut QpBase,
        completer: &mut Completer,
        now: Nanos,
        wire: &mut W,
    ) -> Transmission {
        let psn = completer.unacknowledged().minus(1);
        // If nothing was acknowledged yet and the memory is gone: the operation that does least if
        // it is executed after all.
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
        base.counters.count(QpCount::AckRequested);
        completer.on_solicited(self.psn, base, now);
        Transmission::Progress
    }

    /// Sends the oldest unacknowledged packet again, or requests the rest of its READ request. The
    /// cursor is there only during this call.
    pub(crate) fn send_oldest<A: App, W: Wire>(
        &mut self,
        reason: Reason,
        completer: &mut Completer,
        cx: &mut Context<'_, A>,
        wire: &mut W,
    ) -> Transmission {
        let cursor = (self.entry, self.packet, self.psn);
        let (wanting, refused, unasked) = (self.wanting_before_cursor, self.refused.take(), self.unasked);
        ((self.entry, self.packet), self.psn) = (completer.place(cx.send_queue), completer.unacknowledged());
        self.wanting_before_cursor = self.answered;
        self.unasked = self.window;
        let entry = *cx.send_queue.entry(self.entry);
        let end = self.again_up_to.filter(|end| entry.is_read() && end.distance_from(self.psn) > 0);
        let sent = if entry.is_read() {
            self.send_read_request(cx.base, cx.send_queue, &entry, 0, end, wire)
                .inspect(|packets| self.count(cx.base, &entry, *packets, cx.now))
        } else {
            self.send_at_cursor(&entry, 0, cx, wire)
        };
        let is_gone = self.refused.is_some();
        if is_gone && reason != Reason::Probe {
            // It can no longer be sent, and it is the oldest: the cursor stays with it, and it
            // fails.
            self.oldest_again = None;
            return Transmission::Idle;
        }
        (self.entry, self.packet, self.psn) = cursor;
        // `unasked` is restored as well: the answer does not cover the last packets sent, and they
        // must still be asked about while packets are repaired.
        (self.wanting_before_cursor, self.refused, self.unasked) = (wanting, refused, unasked);
        match sent {
            Err(_) if is_gone => {
                // The client has revoked the memory. It may know that the packet arrived, so the
                // peer is asked.
                self.oldest_again = None;
                self.send_solicitation(cx.base, completer, cx.now, wire)
            }
            Ok(packets) => {
                self.oldest_again = None;
                let is_part = end.is_some_and(|end| completer.unacknowledged().plus(packets) == end);
                let again = SentAgain { packets, wants_answer: entry.wants_answer(), reason, is_part };
                completer.on_sent_again(again, self.frontier, cx.base, cx.now);
                Transmission::Progress
            }
            Err(visit) => visit,
        }
    }

    pub(crate) fn send_at_cursor<A: App, W: Wire>(
        &mut self,
        entry: &SendEntry,
        in_flight: u32,
        cx: &mut Context<'_, A>,
        wire: &mut W,
    ) -> Result<u32, Transmission> {
        let packets = if entry.is_read() {
            self.send_read_request(cx.base, cx.send_queue, entry, in_flight, None, wire)
        } else if entry.wants_answer() {
            self.send_operation(cx.base, entry, wire)
        } else {
            self.send_packet(entry, cx, wire)
        }?;
        self.count(cx.base, entry, packets, cx.now);
        if cx.base.paces_requests() && !entry.is_read() {
            let (mtu, sent) = (cx.base.mtu() as u64, u64::from(self.packet));
            cx.base.on_paced_sent(cx.now, entry.length().saturating_sub(sent * mtu).min(mtu) as usize);
        }
        Ok(packets)
    }

    /// Requests the rest of the chunk at the cursor. Chunks begin at fixed packets of the message,
    /// so that a repetition never exceeds one original request (a responder would not know it).
    pub(crate) fn send_read_request<W: Wire>(
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
            self.congestion_window(true).on_full();
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
    pub(crate) fn send_operation<W: Wire>(
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

    pub(crate) fn send_packet<A: App, W: Wire>(
        &mut self,
        entry: &SendEntry,
        cx: &mut Context<'_, A>,
        wire: &mut W,
    ) -> Result<u32, Transmission> {
        let mtu = cx.base.mtu();
        let position = position(self.packet, entry.packets);
        let is_last = matches!(position, Position::Last | Position::Only);
        let is_first = matches!(position, Position::First | Position::Only);
        let skip = u64::from(self.packet) * mtu as u64;
        let payload = (entry.length() - skip).min(mtu as u64) as usize;
        let (operation, imm) = match entry.op {
            SendOp::Send | SendOp::SendInvalidate => (Operation::Send, None),
            SendOp::SendImm => (Operation::Send, Some(entry.imm)),
            SendOp::WriteImm => (Operation::Write, Some(entry.imm)),
            // Only SEND and WRITE operations arrive here.
            _ => (Operation::Write, None),
        };
        let imm = imm.filter(|_| is_last);
        let ieth = (is_last && entry.op == SendOp::SendInvalidate).then_some(Ieth { rkey: MrKey(entry.rkey) });
        // The end of a message asks; so does a packet at each fraction of the window, because
        // otherwise nothing would open it again, and the last packet that may leave.
        let is_last_granted = cx.base.grant <= 1 && self.psn == self.frontier;
        let asks_at_end = is_last && !self.may_stay_unasked(cx.base, entry, cx.now);
        let ack_request = asks_at_end || is_last_granted || self.unasked + 1 >= self.ask_interval(cx.base);
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
                // IBTA v1 9.2.3: only in a message that completes a receive.
                solicited: is_last && entry.is_solicited() && entry.takes_receive(),
                ack_request,
                ..cx.base.bth(opcode, self.psn)
            })
        };
        let emitted = cx.emit_part(wire, &headers, self.entry, skip, payload);
        match emitted {
            Ok(()) => {
                if self.unasked == 0 {
                    self.unasked_since = coarse(cx.now);
                }
                self.unasked = if ack_request { 0 } else { self.unasked + 1 };
                Ok(1)
            }
            Err(EmitError::Full) => Err(Transmission::Full),
            Err(EmitError::Aborted) => {
                cx.base.counters.count(QpCount::LocalProtection);
                Err(self.refuse(Status::LocalProtection))
            }
        }
    }
}
