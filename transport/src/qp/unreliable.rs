//! The unreliable connection: messages in packets, nothing acknowledged, nothing sent again (IBTA
//! v1 9.8).
//!
//! ```text
//!   work ──► SendQueue ──► Sender ──► frames        complete when the last packet has left
//!   RecvQueue ──► Receiver ◄───────── frames        a gap drops the message, and only that
//! ```
//!
//! No packet is answered, and no bad packet harms the queue pair: the message is dropped, and its
//! receive work waits for the next one. Packets that arrive late or twice are dropped alone:
//! messages are accepted in the order in which they were sent, each at most once.

use roced_types::{CompletionOp, SendOp, Status, access};

use super::{
    Context, QpBase, State, Transmission,
    base::Received,
    key_change::{KeyRequest, Waiter},
    likelihood::Likelihood,
    scatter::SgeCursor,
    segment::{length_fits, packets, position},
    send_queue::MESSAGE_BYTES_MAX,
};
use crate::{
    clock::Nanos,
    counters::QpCount,
    io::{App, EmitError, PlaceFault, Wire},
    mr::{MrKey, Right},
    psn::Psn,
    reject::DropReason,
    turns::{gate::Gate, pacing::PacedFrame},
    wire::{
        bth::Bth,
        frame::Packet,
        headers::Headers,
        opcode::{self, Operation},
        reth::Reth,
    },
};

/// Send and receive state of one end.
#[derive(Debug, Default)]
pub(crate) struct Unreliable {
    sender: Sender,
    receiver: Receiver,
}

impl Unreliable {
    pub(crate) fn begin_to_receive(&mut self, base: &QpBase) {
        let expected = Psn::new(base.attributes.rq_psn);
        self.receiver = Receiver { expected, message: Inbound::None, likelihood: Likelihood::default() };
    }

    pub(crate) fn begin_to_send(&mut self, base: &QpBase) {
        (self.sender.psn, self.sender.packet) = (Psn::new(base.attributes.sq_psn), 0);
    }

    /// All requests that were begun are complete.
    pub(crate) fn is_drained(&self) -> bool {
        self.sender.packet == 0
    }

    /// PSN of the next packet sent.
    pub(super) const fn next(&self) -> Psn {
        self.sender.psn
    }

    /// PSN of the next packet of the peer.
    pub(super) const fn expected(&self) -> Psn {
        self.receiver.expected
    }

    pub(crate) fn set_rate(&mut self, kbit_per_s: u32) {
        self.sender.gate.set_rate(kbit_per_s);
    }

    pub(crate) fn on_packet<A: App>(&mut self, packet: &Packet<'_>, cx: &mut Context<'_, A>) -> Result<(), DropReason> {
        self.receiver.on_packet(packet, cx)
    }

    /// Handles the end of the BIND_MW or LOCAL_INV that is the oldest send: it was carried out, or
    /// cannot be.
    pub(crate) fn on_key_change<A: App>(&mut self, done: bool, cx: &mut Context<'_, A>) {
        if cx.send_queue.is_empty() {
            return;
        }
        let entry = *cx.send_queue.entry(cx.send_queue.head());
        if done {
            cx.send_queue.pop();
            cx.complete_send(&entry, Status::Success);
        } else {
            cx.fail_oldest_send(KeyRequest::refusal(&entry));
        }
    }

    pub(crate) fn on_timeout(&mut self, now: Nanos) {
        self.sender.gate.on_timeout(now);
    }

    pub(crate) fn deadline(&self) -> Nanos {
        self.sender.gate.deadline()
    }

    pub(crate) fn transmit<A: App, W: Wire>(&mut self, cx: &mut Context<'_, A>, wire: &mut W) -> Transmission {
        self.sender.transmit(cx, wire)
    }
}

/// Segments the oldest send into packets.
#[derive(Debug, Default)]
struct Sender {
    /// PSN of the next packet.
    psn: Psn,
    /// Packets of the oldest entry that have left.
    packet: u32,
    gate: Gate,
}

impl Sender {
    fn transmit<A: App, W: Wire>(&mut self, cx: &mut Context<'_, A>, wire: &mut W) -> Transmission {
        // IBTA v1 10.3.1.5: a queue that drains begins no request.
        let may_send = cx.base.state == State::ReadyToSend || cx.base.state == State::SendQueueDrain && self.packet > 0;
        if !may_send || cx.send_queue.is_empty() || cx.base.is_resolving() || self.gate.is_closed(cx.now) {
            return Transmission::Idle;
        }
        if cx.base.is_paced(cx.now) || cx.base.waits_for_account(cx.now) {
            return Transmission::Idle;
        }
        let entry = *cx.send_queue.entry(cx.send_queue.head());
        if entry.is_local() {
            if !cx.base.keys.waits(Waiter::Requester) {
                cx.base.keys.want(KeyRequest::of_work(&entry));
            }
            return Transmission::Idle;
        }
        let (operation, imm) = match entry.op {
            SendOp::Send => (Operation::Send, None),
            SendOp::SendImm => (Operation::Send, Some(entry.imm)),
            SendOp::Write => (Operation::Write, None),
            SendOp::WriteImm => (Operation::Write, Some(entry.imm)),
            // IBTA v1 table 34: an unreliable connection supports no other operations.
            _ => return self.fail(Status::LocalQpOperation, cx),
        };
        if entry.length() > MESSAGE_BYTES_MAX {
            return self.fail(Status::LocalLength, cx);
        }
        let mtu = cx.base.mtu();
        let packets = packets(entry.length(), mtu);
        if cx.base.is_unreachable() {
            // The rest of the message is treated as sent, at once: it may have millions of packets.
            cx.base.counters.count(QpCount::Unreachable);
            self.psn = self.psn.plus(packets - self.packet);
            self.packet = 0;
            cx.send_queue.pop();
            cx.complete_send(&entry, Status::Success);
            return Transmission::Progress;
        }
        let position = position(self.packet, packets);
        let (begins, ends) = (position.begins(), position.ends());
        let skip = u64::from(self.packet) * mtu as u64;
        let payload_bytes = (entry.length() - skip).min(mtu as u64) as usize;
        let imm = imm.filter(|_| ends);
        let headers = Headers {
            reth: (begins && operation == Operation::Write).then_some(Reth {
                va: entry.remote_va,
                rkey: MrKey(entry.rkey),
                length: entry.length() as u32,
            }),
            imm,
            ..Headers::new(Bth {
                solicited: ends && entry.is_solicited() && entry.takes_receive(),
                ..cx.base.bth(opcode::uc(operation, position, imm.is_some()), self.psn)
            })
        };
        match cx.emit_part(wire, &headers, cx.send_queue.head(), skip, payload_bytes) {
            Ok(()) => {}
            Err(EmitError::Full) => return Transmission::Full,
            Err(EmitError::Aborted) => {
                cx.base.counters.count(QpCount::LocalProtection);
                return self.fail(Status::LocalProtection, cx);
            }
        }
        cx.base.counters.count(QpCount::RequestPackets);
        let burst_bytes = cx.base.attributes.rate_limit_burst_bytes;
        let frame = PacedFrame { bytes: payload_bytes + cx.base.overhead(), burst_bytes, kbit_per_s: 0 };
        self.gate.on_sent(cx.now, frame);
        cx.base.on_paced_sent(cx.now, payload_bytes);
        self.psn = self.psn.plus(1);
        self.packet += 1;
        if ends {
            self.packet = 0;
            cx.send_queue.pop();
            // IBTA v1 9.8.3: complete when its last packet has left.
            cx.complete_send(&entry, Status::Success);
        }
        Transmission::Progress
    }

    /// Fails the oldest send, which cannot be sent to its end: the send queue stops.
    fn fail<A: App>(&mut self, status: Status, cx: &mut Context<'_, A>) -> Transmission {
        self.packet = 0;
        cx.fail_oldest_send(status);
        Transmission::Progress
    }
}

/// Message in progress.
#[derive(Clone, Copy, Debug, Default)]
enum Inbound {
    /// None, or a lost one: only a first packet starts another.
    #[default]
    None,
    Send {
        received: u32,
    },
    Write {
        key: MrKey,
        va: u64,
        length: u32,
        done: u32,
    },
}

/// Receive state: expected PSN and message in progress.
#[derive(Debug, Default)]
struct Receiver {
    expected: Psn,
    message: Inbound,
    /// Likelihood that packets are the peer's.
    likelihood: Likelihood,
}

impl Receiver {
    fn on_packet<A: App>(&mut self, packet: &Packet<'_>, cx: &mut Context<'_, A>) -> Result<(), DropReason> {
        let (port, ahead) = (packet.roce.source_port(), packet.bth.psn.distance_from(self.expected));
        let is_guess = self.likelihood.check(port, ahead, cx.now)?;
        if is_guess {
            return self.on_guess(packet, ahead, cx);
        }
        let before = self.expected;
        let taken = self.take(packet, ahead, cx);
        if self.expected != before {
            self.likelihood.on_taken(port, cx.now);
        }
        taken
    }

    /// Processes a packet from another port than the peer's: it must be right to change anything.
    #[cold]
    fn on_guess<A: App>(&mut self, packet: &Packet<'_>, ahead: i32, cx: &mut Context<'_, A>) -> Result<(), DropReason> {
        let before = (self.expected, self.message);
        if self.take(packet, ahead, cx).is_err() {
            (self.expected, self.message) = before;
            return Err(self.likelihood.refuse(cx.now));
        }
        self.likelihood.on_taken(packet.roce.source_port(), cx.now);
        Ok(())
    }

    fn take<A: App>(&mut self, packet: &Packet<'_>, ahead: i32, cx: &mut Context<'_, A>) -> Result<(), DropReason> {
        // The message in progress ends here unless this packet continues it.
        let message = core::mem::take(&mut self.message);
        let message = if packet.info.position.begins() {
            // IBTA v1 9.8.2.2: after any loss, a first packet begins a new message, in place of an
            // incomplete one.
            Inbound::None
        } else if ahead == 0 {
            message
        } else {
            return Err(DropReason::OutOfSequence);
        };
        self.expected = packet.bth.psn.plus(1);
        if !length_fits(packet, cx.base.mtu()) {
            return Err(DropReason::InvalidRequest);
        }
        self.message = match (packet.info.operation, message) {
            (Operation::Send, Inbound::Send { received }) => on_send(packet, received, cx)?,
            (Operation::Send, Inbound::None) if packet.info.position.begins() => {
                cx.base.counters.count(QpCount::SendRequests);
                on_send(packet, 0, cx)?
            }
            (Operation::Write, message @ Inbound::Write { .. }) => on_write(packet, message, cx)?,
            (Operation::Write, Inbound::None) => {
                // Only a first packet has a RETH.
                let reth = packet.reth.ok_or(DropReason::OutOfSequence)?;
                check_range(&reth, cx)?;
                cx.base.counters.count(QpCount::WriteRequests);
                let message = Inbound::Write { key: reth.rkey, va: reth.va, length: reth.length, done: 0 };
                on_write(packet, message, cx)?
            }
            // The packet belongs to the middle of a lost message, or of another.
            (_, Inbound::None) => return Err(DropReason::OutOfSequence),
            _ => return Err(DropReason::InvalidRequest),
        };
        Ok(())
    }
}

/// Processes one packet of a SEND of which `received` bytes have arrived.
fn on_send<A: App>(packet: &Packet<'_>, received: u32, cx: &mut Context<'_, A>) -> Result<Inbound, DropReason> {
    cx.provide_receive();
    let sges = cx.recv_queue.front().ok_or(DropReason::ReceiverNotReady)?;
    let mut cursor = SgeCursor::new(sges, received.into());
    let payload = packet.payload_len();
    if payload as u64 > cursor.remaining() || u64::from(received) + payload as u64 > MESSAGE_BYTES_MAX {
        return Err(DropReason::InvalidRequest);
    }
    let placed = packet.pieces().try_for_each(|piece| cursor.place(cx.mrs, cx.base.recv_pd(), cx.app, piece));
    match placed {
        Ok(()) => {}
        Err(PlaceFault::Source) => return Err(DropReason::LoopbackSourceGone),
        Err(PlaceFault::Target) => {
            cx.fail_recv();
            return Err(DropReason::InvalidRequest);
        }
    }
    let received = received + payload as u32;
    if !packet.info.position.ends() {
        return Ok(Inbound::Send { received });
    }
    finish(packet, CompletionOp::Recv, received, cx);
    Ok(Inbound::None)
}

/// Processes one packet of a WRITE.
fn on_write<A: App>(packet: &Packet<'_>, message: Inbound, cx: &mut Context<'_, A>) -> Result<Inbound, DropReason> {
    let Inbound::Write { key, va, length, done } = message else { return Err(DropReason::InvalidRequest) };
    let (payload, left, ends) = (packet.payload_len(), (length - done) as usize, packet.info.position.ends());
    // The last packet carries exactly the remaining bytes, the others fewer.
    if (ends && payload != left) || (!ends && payload >= left) {
        return Err(DropReason::InvalidRequest);
    }
    if packet.imm.is_some() {
        cx.provide_receive();
        if cx.recv_queue.is_empty() {
            return Err(DropReason::ReceiverNotReady);
        }
    }
    if payload > 0 {
        // Each packet checks its own piece: the region may be gone since the first.
        let at = va.wrapping_add(done.into());
        let denied = |_| DropReason::RemoteAccess;
        let mut span = cx.base.check_peer(cx.mrs, key, Right::RemoteWrite, at, payload).map_err(denied)?;
        for piece in packet.pieces() {
            let (now, later) = span.split_at(piece.len());
            cx.app.place(now, piece).map_err(|fault| match fault {
                PlaceFault::Target => DropReason::RemoteAccess,
                PlaceFault::Source => DropReason::LoopbackSourceGone,
            })?;
            span = later;
        }
    }
    if !ends {
        return Ok(Inbound::Write { key, va, length, done: done + payload as u32 });
    }
    if packet.imm.is_some() {
        finish(packet, CompletionOp::RecvWriteImm, length, cx);
    }
    Ok(Inbound::None)
}

/// Checks that the peer may write to the whole range that it names. A WRITE of no bytes names none
/// (IBTA v1 C9-88).
fn check_range<A: App>(reth: &Reth, cx: &Context<'_, A>) -> Result<(), DropReason> {
    if cx.base.attributes.access & access::REMOTE_WRITE == 0 {
        return Err(DropReason::RemoteAccess);
    }
    if u64::from(reth.length) > MESSAGE_BYTES_MAX {
        return Err(DropReason::InvalidRequest);
    }
    if reth.length > 0 {
        let whole = cx.base.check_peer(cx.mrs, reth.rkey, Right::RemoteWrite, reth.va, reth.length as usize);
        whole.map_err(|_| DropReason::RemoteAccess)?;
    }
    Ok(())
}

/// Completes a message that takes receive work, at its last packet.
fn finish<A: App>(packet: &Packet<'_>, op: CompletionOp, bytes: u32, cx: &mut Context<'_, A>) {
    if let Some(wr_id) = cx.recv_queue.pop() {
        let (imm, solicited) = (packet.imm, packet.bth.solicited);
        let status = Status::Success;
        let (invalidated, source) = (None, None);
        cx.complete_recv(&Received { wr_id, status, op, bytes, imm, solicited, invalidated, source });
    }
}
