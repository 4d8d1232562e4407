//! The unreliable datagram service: messages of one packet each, to any destination and from any
//! source that knows the Q_Key (IBTA v1 9.8.3 and 10.2).
//!
//! ```text
//!   work with address handle ──► transmit ──► frame      complete when it has left
//!   RecvQueue ──► on_packet ◄──────────────── frame      40 bytes for a GRH, then the message
//! ```
//!
//! A bad datagram never harms the queue pair: it is dropped and counted.

use roced_types::{CompletionOp, PRIVILEGED_QKEY, SendOp, Status};

use super::{
    Context, PathState, QpBase, State, Transmission,
    base::Received,
    scatter::SgeCursor,
    segment::{Part, emit_part},
};
use crate::{
    clock::Nanos,
    counters::QpCount,
    io::{App, EmitError, Payload, Wire},
    psn::Psn,
    reject::DropReason,
    turns::{gate::Gate, pacing::PacedFrame},
    wire::{Deth, bth::Bth, frame::Packet, headers::Headers, opcode},
};

/// Bytes before a message in its receive buffer, reserved for a GRH: an IPv6 header, or an IPv4
/// header after 20 bytes of zeros (annex A17).
const GRH_BYTES: usize = 40;

/// Send and receive state of a datagram queue pair.
#[derive(Debug, Default)]
pub(crate) struct Datagram {
    /// PSN of the next datagram. Receivers ignore it.
    psn: Psn,
    gate: Gate,
    /// Address handle with the unresolved next hop that the oldest send waits for.
    waits_for_ah: Option<u32>,
}

impl Datagram {
    pub(crate) fn begin_to_send(&mut self, base: &QpBase) {
        self.psn = Psn::new(base.attributes.sq_psn);
    }

    /// PSN of the next packet sent.
    pub(super) const fn next(&self) -> Psn {
        self.psn
    }

    pub(crate) fn set_rate(&mut self, kbit_per_s: u32) {
        self.gate.set_rate(kbit_per_s);
    }

    pub(crate) fn on_timeout(&mut self, now: Nanos) {
        self.gate.on_timeout(now);
    }

    pub(crate) fn deadline(&self) -> Nanos {
        self.gate.deadline()
    }

    /// Address handle that the oldest send waits for.
    pub(crate) const fn waits_for_ah(&self) -> Option<u32> {
        self.waits_for_ah
    }

    pub(crate) fn on_packet<A: App>(&mut self, packet: &Packet<'_>, cx: &mut Context<'_, A>) -> Result<(), DropReason> {
        // Every opcode of this service has a DETH.
        let deth = packet.deth.ok_or(DropReason::BadLength)?;
        if deth.qkey != cx.base.attributes.qkey {
            return Err(DropReason::BadQkey);
        }
        // Inspected before it is taken: a receive that is too short stays posted, and the shared
        // queue does not fall below its limit.
        let sges = cx.next_receive().ok_or(DropReason::ReceiverNotReady)?;
        let bytes = GRH_BYTES + packet.payload_len();
        if bytes as u64 > SgeCursor::new(sges, 0).remaining() {
            return Err(DropReason::InvalidRequest);
        }
        cx.provide_receive();
        let sges = cx.recv_queue.front().ok_or(DropReason::ReceiverNotReady)?;
        let mut cursor = SgeCursor::new(sges, 0);
        let pd = cx.base.recv_pd();
        let placed = cursor.place(cx.mrs, pd, cx.app, Payload::Bytes(&grh(packet)));
        let placed =
            placed.and_then(|()| packet.pieces().try_for_each(|piece| cursor.place(cx.mrs, pd, cx.app, piece)));
        if placed.is_err() {
            // The receive is at fault, not the datagram.
            cx.fail_recv();
            return Err(DropReason::InvalidRequest);
        }
        cx.base.counters.count(QpCount::SendRequests);
        if let Some(wr_id) = cx.recv_queue.pop() {
            let received = Received {
                wr_id,
                status: Status::Success,
                op: CompletionOp::Recv,
                bytes: bytes as u32,
                imm: packet.imm,
                solicited: packet.bth.solicited,
                invalidated: None,
                source: Some((deth.source_qpn, packet.is_ipv4())),
            };
            cx.complete_recv(&received);
        }
        Ok(())
    }

    /// Sends the oldest datagram.
    pub(crate) fn transmit<A: App, W: Wire>(&mut self, cx: &mut Context<'_, A>, wire: &mut W) -> Transmission {
        self.waits_for_ah = None;
        if cx.base.state != State::ReadyToSend || cx.send_queue.is_empty() || self.gate.is_closed(cx.now) {
            return Transmission::Idle;
        }
        let entry = *cx.send_queue.entry(cx.send_queue.head());
        let imm = match entry.op {
            SendOp::Send => None,
            SendOp::SendImm => Some(entry.imm),
            // IBTA v1 table 34: datagrams support no other operation.
            _ => return fail(Status::LocalQpOperation, cx),
        };
        // An unknown number in this protection domain is an error of the program.
        let Some(to) = cx.ahs.find(cx.base.pd(), entry.to().ah) else {
            return fail(Status::LocalQpOperation, cx);
        };
        if entry.length() > u64::from(to.mtu_bytes) {
            return fail(Status::LocalLength, cx);
        }
        let bytes = entry.length() as usize;
        match &to.path {
            PathState::Resolving => {
                self.waits_for_ah = Some(entry.to().ah);
                return Transmission::Idle;
            }
            PathState::Unreachable => cx.base.counters.count(QpCount::Unreachable),
            PathState::Ready(path) if !path.via().is_local() && cx.base.waits_for_account(cx.now) => {
                return Transmission::Idle;
            }
            PathState::Ready(path) => {
                let qkey =
                    if entry.to().qkey & PRIVILEGED_QKEY != 0 { cx.base.attributes.qkey } else { entry.to().qkey };
                let opcode = if imm.is_some() { opcode::UD_SEND_ONLY_IMM } else { opcode::UD_SEND_ONLY };
                let headers = Headers {
                    deth: Some(Deth { qkey, source_qpn: cx.base.config.qpn }),
                    imm,
                    ..Headers::new(Bth {
                        solicited: entry.is_solicited(),
                        pkey: cx.base.pkey,
                        ..Bth::new(opcode, entry.to().qpn, self.psn)
                    })
                };
                let part = Part { data: cx.send_queue.data(cx.send_queue.head()), skip: 0, bytes };
                match emit_part(path, cx.base.pd(), wire, &headers, part, cx.mrs, cx.app) {
                    Ok(()) => {}
                    Err(EmitError::Full) => return Transmission::Full,
                    Err(EmitError::Aborted) => {
                        cx.base.counters.count(QpCount::LocalProtection);
                        return fail(Status::LocalProtection, cx);
                    }
                }
                cx.base.counters.count(QpCount::RequestPackets);
                cx.base.counters.add(QpCount::SentBytes, bytes as u64);
                let frame = PacedFrame {
                    bytes: bytes + path.overhead_bytes(),
                    burst_bytes: cx.base.attributes.rate_limit_burst_bytes,
                    kbit_per_s: to.static_rate_kbit_per_s,
                };
                self.gate.on_sent(cx.now, frame);
                self.psn = self.psn.plus(1);
            }
        }
        cx.send_queue.pop();
        cx.complete_send(&entry, Status::Success);
        Transmission::Progress
    }
}

/// Fails the oldest send, which cannot be sent: the send queue stops.
fn fail<A: App>(status: Status, cx: &mut Context<'_, A>) -> Transmission {
    cx.fail_oldest_send(status);
    Transmission::Progress
}

/// GRH area before the message in its buffer.
fn grh(packet: &Packet<'_>) -> [u8; GRH_BYTES] {
    let mut grh = [0; GRH_BYTES];
    // Without IPv4 options: the area has no room for them.
    let ip = packet.ip_header();
    grh[GRH_BYTES - ip.len()..].copy_from_slice(ip);
    grh
}
