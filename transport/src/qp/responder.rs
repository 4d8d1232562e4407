//! The responder: executes the peer's requests, strictly in PSN order.
//!
//! Each packet passes `check_psn` (expected, behind or ahead), `check_order` (continues the message
//! in progress or begins one), then its operation. Pending acknowledgments are stored in `owed`
//! and sent by [`Responder::transmit`], so that many requests share an ACK.

mod answers;
mod execution;

use roced_types::{CompletionOp, Status};

pub(crate) use self::answers::LastAcknowledgment;
use super::{
    Context, QpBase,
    atomic::ATOMIC_BYTES,
    credits::CreditOffer,
    life::{Fit, SourcePort},
    replay::{Duplicate, Replay, ReplayMemory},
    segment::{length_fits, packets},
    send_queue::MESSAGE_BYTES_MAX,
};
use crate::{
    clock::Nanos,
    counters::QpCount,
    io::App,
    mr::{MrKey, Right},
    out_of_order,
    psn::Psn,
    reject::DropReason,
    wire::{
        aeth::NakCode,
        frame::Packet,
        opcode::{Operation, Position},
        reth::Reth,
    },
};

/// Distance up to which packets ahead of their turn count before the peer has shown that it has
/// more under way: the usual window. Packets farther ahead are dropped without a NAK.
pub(crate) const AHEAD_FIRST: u16 = 128;

/// Message in progress.
#[derive(Clone, Copy, Debug)]
enum IncomingMessage {
    None,
    Send { received: u32 },
    Write { key: MrKey, va: u64, length: u32, done: u32 },
}

/// Acknowledgment owed to the peer: one for all packets since the last (ACK coalescing).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PendingAck {
    Nothing,
    /// Everything before the expected PSN is complete.
    Ack,
    /// Everything up to this PSN is complete: a plain peer repeats it and asks.
    AckUpTo(Psn),
    /// The expected PSN is missing.
    SequenceNak,
    /// No receive work is available for the expected PSN.
    RnrNak,
    /// The request at this PSN is refused; the last answer of this queue pair. The count is the
    /// number of messages executed before it.
    Nak(NakCode, Psn, u32),
}

/// Execution state of the peer's requests.
#[derive(Debug)]
pub(crate) struct Responder {
    expected: Psn,
    /// Number of PSNs of the requests executed in this life, of 2^32 and more 2^32 - 1.
    executed: u32,
    msn: u32,
    message: IncomingMessage,
    owed: PendingAck,
    /// Acknowledgment that the owed sequence NAK or RNR NAK includes: still owed when the NAK
    /// becomes needless.
    within: PendingAck,
    /// A NAK was given for the expected PSN: no other follows for it.
    nak_given: bool,
    /// That NAK was an RNR NAK.
    not_ready: bool,
    /// Time of the NAK for the expected PSN, unless the packet arrives before.
    nak_due: Nanos,
    /// SEND with invalidate of which the last packet is executed except for the invalidation.
    invalidating: Option<Invalidating>,
    /// Highest PSN that arrived during an invalidation; some of the packets up to it may not have
    /// been buffered.
    overtaken: Option<Psn>,
    /// READs and atomic operations being answered, or kept for duplicates.
    replay: Replay,
    /// Source port of the requests of this life.
    source: SourcePort,
    /// Greatest distance ahead of its turn at which a packet counts: twice the distance that the
    /// peer was seen to have under way.
    ahead_max: u16,
    /// Credits advertised to the peer.
    offer: CreditOffer,
}

/// A SEND with invalidate that waits until all requests before it are answered, and then until no
/// table accepts the key. Its packet remains the expected one; packets that arrive meanwhile are
/// early.
#[derive(Clone, Copy, Debug)]
struct Invalidating {
    key: MrKey,
    received: u32,
    solicited: bool,
    /// Farthest packet that arrived meanwhile.
    overtaken: Option<Psn>,
}

/// A complete message that takes receive work.
#[derive(Clone, Copy, Debug)]
struct Finished {
    op: CompletionOp,
    bytes: u32,
    imm: Option<[u8; 4]>,
    solicited: bool,
    invalidated: Option<MrKey>,
}

/// Reason to refuse a request.
pub(super) enum RequestRefused {
    /// No receive work: try again later.
    NotReady,
    /// The borrowed payload is gone: the packet counts as never sent.
    Unsent,
    /// Not refused: [`Responder::on_invalidated`] completes the request.
    Later,
    /// Violation of a rule, key, range or right: the queue pair fails. The local receive, if one
    /// was taken, completes with this status.
    Fatal(NakCode, Status),
}

pub(super) const INVALID: RequestRefused = RequestRefused::Fatal(NakCode::InvalidRequest, Status::WorkRequestFlushed);
pub(super) const ACCESS: RequestRefused = RequestRefused::Fatal(NakCode::RemoteAccess, Status::WorkRequestFlushed);
/// Refusal of a key that the peer may not invalidate.
const UNKNOWN_KEY: RequestRefused = RequestRefused::Fatal(NakCode::RemoteAccess, Status::RemoteInvalidRequest);

impl Responder {
    pub(crate) fn new() -> Self {
        Self {
            expected: Psn::default(),
            executed: 0,
            msn: 0,
            message: IncomingMessage::None,
            owed: PendingAck::Nothing,
            within: PendingAck::Nothing,
            nak_given: false,
            not_ready: false,
            nak_due: Nanos::NEVER,
            invalidating: None,
            overtaken: None,
            replay: Replay::new(),
            source: SourcePort::default(),
            ahead_max: AHEAD_FIRST,
            offer: CreditOffer::default(),
        }
    }

    pub(crate) fn reset(&mut self) {
        self.begin(Psn::default(), 0);
    }

    /// Enters RTR: the first request will have `psn`; `depth` READs and atomic operations are
    /// answered at a time.
    pub(crate) fn begin(&mut self, psn: Psn, depth: u32) {
        (self.expected, self.msn, self.message, self.owed) = (psn, 0, IncomingMessage::None, PendingAck::Nothing);
        self.executed = 0;
        self.expect_anew();
        (self.invalidating, self.overtaken) = (None, None);
        self.replay.reset(depth);
        self.source = self.source.next_life();
        self.ahead_max = AHEAD_FIRST;
        self.offer = CreditOffer::default();
    }

    /// Changes the number of READs and atomic operations answered at a time. The newest requests
    /// are kept: their answers may be lost, and requested again.
    pub(crate) fn renew_depth(&mut self, depth: u32) {
        self.replay.resize(depth);
    }

    /// This early packet belongs to this life and may be buffered: packets in their turn have shown
    /// the peer's port, and that it is no plain peer.
    pub(crate) fn may_buffer(&self, packet: &Packet<'_>, now: Nanos) -> bool {
        let is_selective = !is_plain(packet) && !self.offer.is_to_plain();
        is_selective && self.source.may_buffer(packet.roce.source_port(), now)
    }

    /// Notes that buffered packets of `run` PSNs in a row were due: the peer had as many under way.
    pub(crate) fn on_run(&mut self, run: u32) {
        self.ahead_max = self.ahead_max.max(run.saturating_mul(2).min(out_of_order::WINDOW) as u16);
    }

    /// Knowledge about the source port of the requests.
    pub(super) const fn source(&self) -> &SourcePort {
        &self.source
    }

    /// Provides memory for the requests that it keeps; returns unneeded memory.
    pub(crate) fn provide(&mut self, memory: ReplayMemory) -> ReplayMemory {
        self.replay.provide(memory)
    }

    /// PSN of the request that is executed next.
    pub(crate) const fn expected(&self) -> Psn {
        self.expected
    }

    /// The expected request found no receive work: it and all following ones will be sent again.
    pub(crate) const fn is_waiting_for_receiver(&self) -> bool {
        self.not_ready
    }

    /// Time of the next call of [`Self::on_timeout`].
    pub(crate) const fn deadline(&self) -> Nanos {
        self.nak_due
    }

    /// Gives a sequence NAK if the expected request is overdue.
    pub(crate) fn on_timeout(&mut self, now: Nanos) {
        if self.nak_due <= now {
            self.give_sequence_nak();
        }
    }

    /// Notes that requests behind the expected one arrived. A NAK for the expected one is due at
    /// `due`, unless it arrives before.
    pub(crate) fn on_hole(&mut self, due: Nanos, now: Nanos) {
        // During an invalidation the expected request has arrived.
        if self.nak_given || self.nak_due != Nanos::NEVER || self.invalidating.is_some() {
            return;
        }
        self.nak_due = due;
        self.on_timeout(now);
    }

    /// Asks for packets that arrived during an invalidation and were not buffered. Called after all
    /// buffered packets were processed; nothing else would report the others missing.
    pub(crate) fn ask_for_overtaken(&mut self, now: Nanos) {
        let is_missing = |psn: &Psn| psn.distance_from(self.expected) >= 0;
        if self.invalidating.is_none() && self.overtaken.take().filter(is_missing).is_some() {
            self.on_hole(now, now);
        }
    }

    /// Notes that all packets behind the expected request were discarded. If a NAK was given
    /// although nothing was missing, the peer may wait for an acknowledgment of the requests
    /// before.
    pub(crate) fn on_hole_forgotten(&mut self) {
        self.nak_due = Nanos::NEVER;
        if self.nak_given && !self.not_ready && self.owed == PendingAck::Nothing {
            self.owed = PendingAck::Ack;
        }
    }

    /// Notes that a receive was posted. Returns true when the peer knows of none: an unsolicited
    /// ACK tells it.
    pub(crate) fn on_receive_posted(&mut self, base: &QpBase) -> bool {
        let tells = self.owed == PendingAck::Nothing && self.offer.is_due(self.msn, base);
        if tells {
            self.owed = PendingAck::Ack;
        }
        tells
    }

    fn give_sequence_nak(&mut self) {
        (self.nak_given, self.nak_due) = (true, Nanos::NEVER);
        self.owe_nak(PendingAck::SequenceNak);
    }

    /// Owes a NAK that asks for the expected request. The NAK also acknowledges everything before.
    fn owe_nak(&mut self, nak: PendingAck) {
        self.within = self.owed_of_the_past();
        self.owed = nak;
    }

    /// A NAK that asks for the expected request is owed.
    const fn asks(&self) -> bool {
        matches!(self.owed, PendingAck::SequenceNak | PendingAck::RnrNak)
    }

    /// Acknowledgment owed apart from a NAK for the expected request.
    const fn owed_of_the_past(&self) -> PendingAck {
        if self.asks() { self.within } else { self.owed }
    }

    const fn owed_of_the_past_mut(&mut self) -> &mut PendingAck {
        if self.asks() { &mut self.within } else { &mut self.owed }
    }

    /// Expects the PSN after an executed request or packet.
    fn on_executed(&mut self, psns: u32) {
        self.expected = self.expected.plus(psns);
        self.executed = self.executed.saturating_add(psns);
        self.expect_anew();
    }

    /// Clears the NAK state for a new expected PSN.
    fn expect_anew(&mut self) {
        (self.nak_given, self.not_ready, self.nak_due) = (false, false, Nanos::NEVER);
    }

    /// Processes a request. `answers` is the knowledge about the port of the peer's answers.
    pub(crate) fn on_packet<A: App>(
        &mut self,
        packet: &Packet<'_>,
        answers: &SourcePort,
        cx: &mut Context<'_, A>,
    ) -> Result<(), DropReason> {
        let is_guess = self.check_psn(packet, answers, cx)?;
        match self.execute(packet, cx) {
            Ok(psns) => {
                self.on_executed(psns);
                self.source.on_taken(packet.roce.source_port(), cx.base.is_later_life(), cx.now);
                self.offer.on_executed(is_plain(packet));
                // The packet that a NAK reported missing has arrived; that NAK may have stood for
                // an ACK.
                if packet.bth.ack_request || self.owed != PendingAck::Nothing {
                    self.owed = PendingAck::Ack;
                }
                Ok(())
            }
            Err(RequestRefused::Unsent) => Err(DropReason::LoopbackSourceGone),
            Err(RequestRefused::Later) => {
                // It has arrived and found its receive, so no NAK is due; an ACK is owed when it is
                // complete.
                self.expect_anew();
                self.source.on_taken(packet.roce.source_port(), cx.base.is_later_life(), cx.now);
                self.owed = self.owed_of_the_past();
                Ok(())
            }
            // A peer that has moved repeats it: this role, or the other, learns its port by what can
            // be executed.
            Err(_) if is_guess => Err(self.source.refuse(cx.now)),
            Err(RequestRefused::NotReady) => {
                self.owe_nak(PendingAck::RnrNak);
                // Following packets are ahead of one that will be sent again: no NAK for them (IBTA
                // v1 9.7.5.2.8).
                (self.nak_given, self.not_ready, self.nak_due) = (true, true, Nanos::NEVER);
                Err(DropReason::ReceiverNotReady)
            }
            Err(RequestRefused::Fatal(code, status)) => Err(self.refuse(code, status, cx)),
        }
    }

    /// Returns true if the packet is due, and no more than a guess.
    fn check_psn<A: App>(
        &mut self,
        packet: &Packet<'_>,
        answers: &SourcePort,
        cx: &mut Context<'_, A>,
    ) -> Result<bool, DropReason> {
        let (port, ahead) = (packet.roce.source_port(), packet.bth.psn.distance_from(self.expected));
        let is_guess = !self.source.is_own(port) && self.check_other(packet, ahead, answers, cx)?;
        let (base, now) = (&mut *cx.base, cx.now);
        // Packets farther ahead tell nothing: any PSN is one of a past life.
        if (0..=i32::from(self.ahead_max)).contains(&ahead)
            && let Some(due) = self.source.doubts(port, now)
        {
            self.on_hole(due, now);
            return Err(DropReason::OtherSourcePort);
        }
        // Not buffered, and requested again like every other: a READ request takes as many PSNs as its
        // responses, so that even the next one may be far ahead. Of other ports it has no effect.
        let early =
            if ahead > i32::from(self.ahead_max) { DropReason::BeyondWindow } else { DropReason::OutOfSequence };
        if early == DropReason::BeyondWindow && !self.source.is_own(port) {
            return Err(early);
        }
        if let Some(invalidating) = &mut self.invalidating
            && ahead >= 0
        {
            // In execution, or early: buffered, or requested after the invalidation.
            let is_farthest = |known: Psn| packet.bth.psn.distance_from(known) > 0;
            if ahead > 0 && invalidating.overtaken.is_none_or(is_farthest) {
                invalidating.overtaken = Some(packet.bth.psn);
            }
            return Err(if ahead == 0 { DropReason::Duplicate } else { early });
        }
        if ahead > 0 {
            let delay = if base.recovery.is_selective() { base.recovery.reorder_delay } else { Nanos(0) };
            self.on_hole(now + delay, now);
            return Err(early);
        }
        if ahead < 0 { Err(self.on_duplicate(packet, base)) } else { Ok(is_guess) }
    }

    /// Checks a packet from another port than that of this life's requests.
    #[cold]
    fn check_other<A: App>(
        &mut self,
        packet: &Packet<'_>,
        ahead: i32,
        answers: &SourcePort,
        cx: &Context<'_, A>,
    ) -> Result<bool, DropReason> {
        let fit = match ahead {
            0 if has_right_key(packet, cx) => Fit::Keyed,
            0 => Fit::Due,
            ..0 => Fit::Repeated,
            1.. => Fit::Not,
        };
        self.source.check_other(packet.roce.source_port(), fit, Some(answers), cx.now)
    }

    /// Answers a request behind the expected PSN again; it was executed before.
    fn on_duplicate(&mut self, packet: &Packet<'_>, base: &mut QpBase) -> DropReason {
        if let Some(duplicate) = duplicate_of(packet, base.mtu()) {
            if !self.replay.replay(&duplicate, base.mtu()) {
                return DropReason::UnknownDuplicate;
            }
            if duplicate.operation == Operation::ReadRequest {
                base.counters.count(QpCount::ReadRequests);
            }
        } else if matches!(packet.info.operation, Operation::Send | Operation::Write) {
            self.acknowledge_again(packet);
        } else {
            // Reserved opcode: no such request was executed.
            return DropReason::UnknownDuplicate;
        }
        base.counters.count(QpCount::DuplicateRequest);
        DropReason::Duplicate
    }

    /// Acknowledges a duplicate SEND or WRITE again, up to the newest request (IBTA v1 C9-105).
    fn acknowledge_again(&mut self, packet: &Packet<'_>) {
        let psn = packet.bth.psn;
        let owed = self.owed_of_the_past_mut();
        match owed {
            PendingAck::Nothing | PendingAck::AckUpTo(_) if ends(packet) || !is_plain(packet) => {
                *owed = PendingAck::Ack
            }
            PendingAck::AckUpTo(more) if psn.distance_from(*more) <= 0 => {}
            PendingAck::Nothing | PendingAck::AckUpTo(_) if packet.bth.ack_request => *owed = PendingAck::AckUpTo(psn),
            _ => {}
        }
    }

    /// Executes the expected packet; returns its number of PSNs.
    fn execute<A: App>(&mut self, packet: &Packet<'_>, cx: &mut Context<'_, A>) -> Result<u32, RequestRefused> {
        self.check_order(packet)?;
        if !length_fits(packet, cx.base.mtu()) {
            return Err(INVALID);
        }
        match packet.info.operation {
            Operation::Send => self.on_send(packet, cx),
            Operation::Write => self.on_write(packet, cx),
            Operation::ReadRequest => self.on_read(packet, cx),
            Operation::CompareSwap | Operation::FetchAdd => self.on_atomic(packet, cx),
            Operation::Flush | Operation::AtomicWrite => self.on_placement(packet, cx),
            // Operations that this responder does not support (IBTA v1 9.9.3: unsupported opcode).
            _ => Err(INVALID),
        }
    }

    /// Checks that the packet continues the message in progress, or begins one if none is (IBTA v1
    /// 9.7.4.1.4).
    fn check_order(&self, packet: &Packet<'_>) -> Result<(), RequestRefused> {
        let begins = matches!(packet.info.position, Position::First | Position::Only);
        let fits = match self.message {
            IncomingMessage::None => begins,
            IncomingMessage::Send { .. } => !begins && packet.info.operation == Operation::Send,
            IncomingMessage::Write { .. } => !begins && packet.info.operation == Operation::Write,
        };
        if fits { Ok(()) } else { Err(INVALID) }
    }
}

/// Range that a duplicate request with an answer of its own repeats; `None` for a request that is
/// only acknowledged.
fn duplicate_of(packet: &Packet<'_>, mtu: usize) -> Option<Duplicate> {
    let (operation, psn) = (packet.info.operation, packet.bth.psn);
    match (operation, packet.reth, packet.atomic) {
        (Operation::ReadRequest, Some(reth), _) => {
            let packets = packets(reth.length.into(), mtu);
            Some(Duplicate { operation, psn, packets, va: reth.va, key: reth.rkey, length: reth.length })
        }
        (Operation::Flush | Operation::AtomicWrite, Some(reth), _) => {
            Some(Duplicate { operation, psn, packets: 1, va: reth.va, key: reth.rkey, length: 0 })
        }
        (Operation::CompareSwap | Operation::FetchAdd, _, Some(atomic)) => {
            let length = ATOMIC_BYTES as u32;
            Some(Duplicate { operation, psn, packets: 1, va: atomic.va, key: atomic.rkey, length })
        }
        _ => None,
    }
}

/// Detects a plain peer: Linux rxe, which sends MigReq as 0. It may wait for ever if an ACK for the
/// end of a message arrives while it sends that message again, and the ACK for the second
/// transmission is lost (`docs/conformance.md`). Such a peer gets the ACK of a message when it has
/// sent all of it; before that, if it asks, an ACK of the packets it has sent and no more: its
/// window may be shorter than the message, and without an answer it would never reach the end.
pub(crate) const fn is_plain(packet: &Packet<'_>) -> bool {
    !packet.bth.mig_req
}

/// The packet is the last of its message.
pub(crate) const fn ends(packet: &Packet<'_>) -> bool {
    matches!(packet.info.position, Position::Last | Position::Only)
}

/// The request names a range of memory with a key that permits it.
fn has_right_key<A: App>(packet: &Packet<'_>, cx: &Context<'_, A>) -> bool {
    let may = |right, key, va, length| cx.base.check_peer(cx.mrs, key, right, va, length).is_ok();
    match (packet.info.operation, &packet.reth, &packet.atomic) {
        (Operation::Write, Some(reth), _) if reth.length > 0 => {
            may(Right::RemoteWrite, reth.rkey, reth.va, reth.length as usize)
        }
        (Operation::ReadRequest, Some(reth), _) if reth.length > 0 => {
            may(Right::RemoteRead, reth.rkey, reth.va, reth.length as usize)
        }
        (Operation::CompareSwap | Operation::FetchAdd, _, Some(atomic)) => {
            may(Right::RemoteAtomic, atomic.rkey, atomic.va, ATOMIC_BYTES)
        }
        _ => false,
    }
}

/// Checks that the peer may access the whole range that it names. A request of no bytes names none
/// (IBTA v1 C9-88).
fn check_remote<A: App>(reth: &Reth, right: Right, needed: u32, cx: &Context<'_, A>) -> Result<(), RequestRefused> {
    if cx.base.attributes.access & needed == 0 {
        return Err(ACCESS);
    }
    if u64::from(reth.length) > MESSAGE_BYTES_MAX {
        return Err(INVALID);
    }
    if reth.length > 0 {
        cx.base.check_peer(cx.mrs, reth.rkey, right, reth.va, reth.length as usize).map_err(|_| ACCESS)?;
    }
    Ok(())
}
