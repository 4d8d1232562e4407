//! Execution of requests: SEND, WRITE, READ, atomic operations, FLUSH, and refusals.

use roced_types::{CompletionOp, Status, access, event};

use super::{Finished, IncomingMessage, Invalidating, PendingAck, UNKNOWN_KEY, check_remote, ends};
use crate::{
    counters::QpCount,
    io::{App, PlaceFault},
    mr::Right,
    qp::{
        atomic::{self, ATOMIC_BYTES},
        base::{QpBase, Received},
        context::Context,
        key_change::Waiter,
        placement,
        replay::ReplayedRequest,
        responder::{ACCESS, INVALID, RequestRefused, Responder},
        scatter::SgeCursor,
        segment::packets,
        send_queue::MESSAGE_BYTES_MAX,
    },
    reject::DropReason,
    wire::{aeth::NakCode, frame::Packet, ieth::Ieth, opcode::Operation},
};

impl Responder {
    pub(crate) fn on_send<A: App>(
        &mut self,
        packet: &Packet<'_>,
        cx: &mut Context<'_, A>,
    ) -> Result<u32, RequestRefused> {
        cx.provide_receive();
        let sges = cx.recv_queue.front().ok_or(RequestRefused::NotReady)?;
        let (received, begins) = match self.message {
            IncomingMessage::Send { received } => (received, false),
            _ => (0, true),
        };
        if let Some(ieth) = packet.ieth {
            // Before any effect, as far as this endpoint can know.
            cx.mrs.check_invalidate(cx.base.pd(), cx.base.config.qpn, ieth.rkey).map_err(|_| UNKNOWN_KEY)?;
        }
        let payload = packet.payload_len();
        let mut cursor = SgeCursor::new(sges, received.into());
        if payload as u64 > cursor.remaining() || u64::from(received) + payload as u64 > MESSAGE_BYTES_MAX {
            return Err(RequestRefused::Fatal(NakCode::InvalidRequest, Status::LocalLength));
        }
        packet.pieces().try_for_each(|piece| cursor.place(cx.mrs, cx.base.recv_pd(), cx.app, piece)).map_err(
            |fault| match fault {
                PlaceFault::Target => RequestRefused::Fatal(NakCode::RemoteOperation, Status::LocalProtection),
                PlaceFault::Source => RequestRefused::Unsent,
            },
        )?;
        if begins {
            cx.base.counters.count(QpCount::SendRequests);
        }
        let received = received + payload as u32;
        self.message = IncomingMessage::Send { received };
        if !ends(packet) {
            return Ok(1);
        }
        self.message = IncomingMessage::None;
        let (solicited, imm) = (packet.bth.solicited, packet.imm);
        if let Some(Ieth { rkey: key }) = packet.ieth {
            self.invalidating = Some(Invalidating { key, received, solicited, overtaken: self.overtaken.take() });
            self.invalidate_when_answered(cx.base);
            return Err(RequestRefused::Later);
        }
        let message = Finished { op: CompletionOp::Recv, bytes: received, imm, solicited, invalidated: None };
        self.finish(message, cx);
        Ok(1)
    }

    /// Requests the key change of a SEND with invalidate once all requests before it were answered
    /// once: the responses of a READ are read from memory when they leave, and the READ may need
    /// this very key.
    pub(crate) fn invalidate_when_answered(&mut self, base: &mut QpBase) {
        if let Some(Invalidating { key, .. }) = self.invalidating
            && !base.keys.waits(Waiter::Responder)
            && !self.replay.owes_first_answer()
        {
            base.keys.want_invalid(key);
        }
    }

    /// Handles the end of the key change of a SEND with invalidate: no table accepts the key any
    /// more, or the peer may not invalidate it.
    pub(crate) fn on_invalidated<A: App>(&mut self, done: bool, cx: &mut Context<'_, A>) {
        let Some(Invalidating { key, received, solicited, overtaken }) = self.invalidating.take() else { return };
        if !done {
            // Counted as refused here; the packet itself was accepted some time ago.
            let _reason = self.refuse(NakCode::RemoteAccess, Status::RemoteInvalidRequest, cx);
            return;
        }
        self.on_executed(1);
        self.owed = PendingAck::Ack;
        self.overtaken = overtaken;
        let message =
            Finished { op: CompletionOp::Recv, bytes: received, imm: None, solicited, invalidated: Some(key) };
        self.finish(message, cx);
    }

    pub(crate) fn on_write<A: App>(
        &mut self,
        packet: &Packet<'_>,
        cx: &mut Context<'_, A>,
    ) -> Result<u32, RequestRefused> {
        let (key, va, length, done) = match (self.message, packet.reth) {
            (IncomingMessage::Write { key, va, length, done }, _) => (key, va, length, done),
            (_, Some(reth)) => {
                check_remote(&reth, Right::RemoteWrite, access::REMOTE_WRITE, cx)?;
                (reth.rkey, reth.va, reth.length, 0)
            }
            // By the opcode table, a FIRST or ONLY of WRITE has a RETH.
            _ => return Err(INVALID),
        };
        let payload = packet.payload_len();
        let left = length - done;
        // The last packet carries exactly the remaining bytes, the others fewer.
        if (ends(packet) && payload != left as usize) || (!ends(packet) && payload >= left as usize) {
            return Err(INVALID);
        }
        let immediate = packet.imm.is_some();
        if immediate {
            cx.provide_receive();
            if cx.recv_queue.is_empty() {
                return Err(RequestRefused::NotReady);
            }
        }
        if payload > 0 {
            // The check of the first packet is valid only for its poll iteration; the region may be
            // gone since, so each packet checks its own piece.
            let at = va.wrapping_add(done.into());
            let mut span = cx.base.check_peer(cx.mrs, key, Right::RemoteWrite, at, payload).map_err(|_| ACCESS)?;
            for piece in packet.pieces() {
                let (now, later) = span.split_at(piece.len());
                cx.app.place(now, piece).map_err(|fault| match fault {
                    PlaceFault::Target => ACCESS,
                    PlaceFault::Source => RequestRefused::Unsent,
                })?;
                span = later;
            }
        }
        if matches!(self.message, IncomingMessage::None) {
            cx.base.counters.count(QpCount::WriteRequests);
        }
        self.message = IncomingMessage::Write { key, va, length, done: done + payload as u32 };
        if ends(packet) {
            self.message = IncomingMessage::None;
            if immediate {
                let (imm, solicited) = (packet.imm, packet.bth.solicited);
                let op = CompletionOp::RecvWriteImm;
                let message = Finished { op, bytes: length, imm, solicited, invalidated: None };
                self.finish(message, cx);
            } else {
                self.msn = (self.msn + 1) & 0x00ff_ffff;
            }
        }
        Ok(1)
    }

    pub(crate) fn on_read<A: App>(
        &mut self,
        packet: &Packet<'_>,
        cx: &mut Context<'_, A>,
    ) -> Result<u32, RequestRefused> {
        let reth = packet.reth.ok_or(INVALID)?;
        check_remote(&reth, Right::RemoteRead, access::REMOTE_READ, cx)?;
        let psns = packets(reth.length.into(), cx.base.mtu());
        // IBTA v1 C9-148: a READ counts when its answer begins.
        let msn = (self.msn + 1) & 0x00ff_ffff;
        let request = ReplayedRequest {
            operation: Operation::ReadRequest,
            first_psn: packet.bth.psn,
            packets: psns,
            va: reth.va,
            key: reth.rkey,
            length: reth.length,
            msn,
            original: 0,
        };
        if !self.replay.push(request) {
            return Err(INVALID);
        }
        self.msn = msn;
        cx.base.counters.count(QpCount::ReadRequests);
        Ok(psns)
    }

    pub(crate) fn on_atomic<A: App>(
        &mut self,
        packet: &Packet<'_>,
        cx: &mut Context<'_, A>,
    ) -> Result<u32, RequestRefused> {
        let atomic = packet.atomic.ok_or(INVALID)?;
        // Checked first: an executed request must be kept, or its duplicate could not be answered.
        if !self.replay.has_room() {
            return Err(INVALID);
        }
        let operation = packet.info.operation;
        let original = atomic::execute(&atomic, operation, cx)?;
        self.msn = (self.msn + 1) & 0x00ff_ffff;
        self.replay.push(ReplayedRequest {
            operation,
            first_psn: packet.bth.psn,
            packets: 1,
            va: atomic.va,
            key: atomic.rkey,
            length: ATOMIC_BYTES as u32,
            msn: self.msn,
            original,
        });
        cx.base.counters.count(QpCount::AtomicRequests);
        Ok(1)
    }

    /// Executes a FLUSH or an atomic WRITE.
    pub(crate) fn on_placement<A: App>(
        &mut self,
        packet: &Packet<'_>,
        cx: &mut Context<'_, A>,
    ) -> Result<u32, RequestRefused> {
        // Checked first, as for an atomic operation.
        if !self.replay.has_room() {
            return Err(INVALID);
        }
        let (request, count) = if packet.info.operation == Operation::Flush {
            (placement::check_flush(packet, cx)?, QpCount::FlushRequests)
        } else {
            (placement::write(packet, cx)?, QpCount::AtomicWriteRequests)
        };
        self.msn = (self.msn + 1) & 0x00ff_ffff;
        self.replay.push(ReplayedRequest { msn: self.msn, ..request });
        cx.base.counters.count(count);
        Ok(1)
    }

    /// Completes a message that takes receive work, at its last packet.
    fn finish<A: App>(&mut self, message: Finished, cx: &mut Context<'_, A>) {
        self.msn = (self.msn + 1) & 0x00ff_ffff;
        if let Some(wr_id) = cx.recv_queue.pop() {
            let Finished { op, bytes, imm, solicited, invalidated } = message;
            cx.complete_recv(&Received {
                wr_id,
                status: Status::Success,
                op,
                bytes,
                imm,
                solicited,
                invalidated,
                source: None,
            });
        }
    }

    /// Fails the queue pair with a NAK.
    pub(crate) fn refuse<A: App>(&mut self, code: NakCode, status: Status, cx: &mut Context<'_, A>) -> DropReason {
        self.owed = PendingAck::Nak(code, self.expected, self.msn);
        cx.base.fail_with_event(match code {
            NakCode::RemoteAccess => event::QP_ACCESS_ERROR,
            NakCode::InvalidRequest => event::QP_REQUEST_ERROR,
            _ => event::QP_FATAL,
        });
        if status != Status::WorkRequestFlushed
            && let Some(wr_id) = cx.recv_queue.pop()
        {
            cx.complete_recv(&Received::failed(wr_id, status));
        }
        let (count, reason) = match code {
            NakCode::RemoteAccess => (QpCount::RemoteAccessSent, DropReason::RemoteAccess),
            NakCode::RemoteOperation => (QpCount::RemoteOperationSent, DropReason::InvalidRequest),
            _ => (QpCount::RemoteInvalidSent, DropReason::InvalidRequest),
        };
        cx.base.counters.count(count);
        reason
    }
}
