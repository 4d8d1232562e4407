//! Answers of the responder: ACKs, NAKs, READ responses, ATOMIC ACKs.

use roced_types::event;

use super::{PendingAck, Responder};
use crate::{
    counters::QpCount,
    io::{App, EmitError, Wire},
    mr::Right,
    psn::Psn,
    qp::{
        Context, QpBase, State, Transmission,
        replay::{Pending, ReplayedRequest},
        segment::place,
    },
    reject::DropReason,
    wire::{
        aeth::{Aeth, NakCode, Syndrome},
        atomic::AtomicAck,
        frame::Packet,
        headers::Headers,
        opcode::{self, Operation, Position},
    },
};

/// ACK of all requests that a queue pair has executed, and marks of their repetitions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LastAcknowledgment {
    pub(crate) headers: Headers,
    /// Number of PSNs that the peer has sent in this life, up to that of the ACK.
    psns: u32,
    /// UDP source port of the peer, if it has used only one.
    source_port: Option<u16>,
}

impl LastAcknowledgment {
    /// Maximum number of PSNs that are behind another: half the PSN space.
    const PSNS_MAX: u32 = 1 << 23;

    /// The peer may have sent this request before, in the life that the ACK belongs to. In a life
    /// of 2^23 PSNs and more these are all PSNs behind that of the ACK: adapters have as many in
    /// flight, and a lower limit would refuse their repetitions.
    pub(crate) fn covers(&self, packet: &Packet<'_>) -> bool {
        self.covers_psn(packet.bth.psn, is_solicitation(packet))
            && self.source_port.is_none_or(|port| port == packet.roce.source_port())
    }

    /// A peer to which nothing was acknowledged solicits an ACK by the PSN before its first.
    fn covers_psn(&self, psn: Psn, solicits: bool) -> bool {
        let covered = self.psns.saturating_add(solicits.into()).min(Self::PSNS_MAX);
        self.headers.bth.psn.offset_from(psn) < covered
    }
}

/// A WRITE that has no effect, by which a peer solicits an ACK.
fn is_solicitation(packet: &Packet<'_>) -> bool {
    packet.bth.opcode == opcode::RC_WRITE_ONLY && packet.payload_len() == 0
}

impl Responder {
    /// READ responses or ATOMIC ACKs are to be sent.
    pub(crate) fn owes_memory(&self) -> bool {
        self.replay.front().is_some()
    }

    /// Sends one READ response or ATOMIC ACK, or else the owed acknowledgment.
    pub(crate) fn transmit<A: App, W: Wire>(&mut self, cx: &mut Context<'_, A>, wire: &mut W) -> Transmission {
        let failed = cx.base.state == State::Error;
        // READ responses go first: an ACK for requests behind a READ would declare its responses
        // lost. So would a refusal, and requests accepted before it are answered (IBTA v1
        // 9.7.5.2.7). A queue pair that its client has moved to the error state gives no answer
        // that reads memory.
        let ended = failed && !matches!(self.owed, PendingAck::Nak(..));
        let front = self.replay.front();
        if let Some((request, pending)) = &front {
            if request.is_atomic() {
                return self.send_atomic_ack(request, cx, wire);
            }
            if !ended || request.operation != Operation::ReadRequest {
                return self.send_read_response(request, *pending, cx, wire);
            }
            // A repetition delays nothing: its requester may have had the answer.
            if self.replay.give_up_repetition() {
                return Transmission::Dropped(DropReason::ReplayLost);
            }
        }
        // A failed queue pair reports the reason and its executed requests; it asks for nothing.
        let owed = if failed { self.owed_of_the_past() } else { self.owed };
        let (syndrome, psn, msn) = match owed {
            PendingAck::Nothing => return Transmission::Idle,
            PendingAck::Ack | PendingAck::AckUpTo(_) => {
                // A READ still in front is one that the queue pair does not answer in the error
                // state.
                let read = front.as_ref().map(|(request, _)| request);
                let Some((psn, msn)) = self.acknowledged(owed, read) else { return Transmission::Idle };
                (self.offer.syndrome(msn, cx.base), psn, msn)
            }
            PendingAck::SequenceNak => (Syndrome::Nak(NakCode::PsnSequence), self.expected, self.msn),
            PendingAck::RnrNak => {
                (Syndrome::Rnr { timer: cx.base.attributes.min_rnr_timer as u8 }, self.expected, self.msn)
            }
            PendingAck::Nak(code, psn, before) => (Syndrome::Nak(code), psn, before),
        };
        let headers = Self::answer(syndrome, psn, msn, cx.base);
        if cx.base.emit(wire, &headers, 0, |_| Ok(())).is_err() {
            return Transmission::Full;
        }
        cx.base.counters.count(QpCount::ResponsePackets);
        self.owed = PendingAck::Nothing;
        match owed {
            PendingAck::Ack | PendingAck::AckUpTo(_) => return Transmission::Acknowledged,
            PendingAck::SequenceNak => cx.base.counters.count(QpCount::SequenceNakSent),
            PendingAck::RnrNak => cx.base.counters.count(QpCount::RnrNakSent),
            PendingAck::Nothing | PendingAck::Nak(..) => {}
        }
        Transmission::Progress
    }

    /// Passes on the last answers of a queue pair that is being destroyed, in their order: those
    /// that read no memory, up to the first READ that was never answered; then an ACK of everything
    /// before that, or the NAK with which the queue pair failed.
    pub(crate) fn final_answers(&self, base: &QpBase, mut keep: impl FnMut(Headers)) {
        let mut unanswered = None;
        let mut said = None;
        for (request, answered) in self.replay.waiting() {
            if request.operation != Operation::ReadRequest {
                said = Some(request.first_psn);
                keep(Self::short_answer(&request, Syndrome::ACK, base));
            } else if !answered {
                unanswered = Some(request);
                break;
            }
        }
        let owed = self.owed_of_the_past();
        match owed {
            PendingAck::Nak(code, psn, before) if unanswered.is_none() => {
                keep(Self::answer(Syndrome::Nak(code), psn, before, base));
            }
            PendingAck::Ack | PendingAck::AckUpTo(_) | PendingAck::Nak(..) => {
                if let Some((psn, msn)) = self.acknowledged(owed, unanswered.as_ref())
                    && said.is_none_or(|said| psn.distance_from(said) > 0)
                {
                    keep(Self::answer(Syndrome::ACK, psn, msn, base));
                }
            }
            // The peer asks again, and finds no queue pair.
            PendingAck::Nothing | PendingAck::SequenceNak | PendingAck::RnrNak => {}
        }
    }

    /// ACK of all executed requests, up to the first READ that was never answered; `None` if no
    /// message was executed.
    pub(crate) fn last_acknowledgment(&self, base: &QpBase) -> Option<LastAcknowledgment> {
        // Answers that read no memory are among the final ones.
        let is_lost =
            |(request, answered): &(ReplayedRequest, bool)| request.operation == Operation::ReadRequest && !answered;
        let unanswered = self.replay.waiting().find(is_lost).map(|(request, _)| request);
        let (psn, msn) = self.acknowledged(PendingAck::Ack, unanswered.as_ref()).filter(|(_, msn)| *msn > 0)?;
        Some(LastAcknowledgment {
            headers: Self::answer(Syndrome::ACK, psn, msn, base),
            psns: self.executed_until(psn),
            source_port: self.source.only_port(),
        })
    }

    /// Number of PSNs executed in this life up to one of them, or more than
    /// [`LastAcknowledgment::PSNS_MAX`].
    fn executed_until(&self, psn: Psn) -> u32 {
        self.executed - self.expected.minus(1).offset_from(psn)
    }

    /// PSN and MSN of an owed ACK. It covers nothing from `unanswered` on, a READ with responses
    /// that the ACK would declare lost; `None` if there is nothing before that.
    fn acknowledged(&self, owed: PendingAck, unanswered: Option<&ReplayedRequest>) -> Option<(Psn, u32)> {
        let psn = if let PendingAck::AckUpTo(psn) = owed { psn } else { self.expected.minus(1) };
        match unanswered {
            Some(read) if psn.distance_from(read.first_psn) >= 0 => {
                let before = Psn::new(read.msn).minus(1).get();
                (before > 0).then(|| (read.first_psn.minus(1), before))
            }
            _ => Some((psn, self.msn)),
        }
    }

    /// Headers of an ACK or NAK.
    fn answer(syndrome: Syndrome, psn: Psn, msn: u32, base: &QpBase) -> Headers {
        Headers { aeth: Some(Aeth { syndrome, msn }), ..Headers::new(base.bth(opcode::RC_ACK, psn)) }
    }

    /// Headers of an answer that reads no memory: an ATOMIC ACK, or an empty READ response for
    /// FLUSH and atomic WRITE.
    fn short_answer(request: &ReplayedRequest, syndrome: Syndrome, base: &QpBase) -> Headers {
        let is_atomic = request.is_atomic();
        let opcode = if is_atomic { opcode::RC_ATOMIC_ACK } else { opcode::RC_READ_RESPONSE_ONLY };
        Headers {
            aeth: Some(Aeth { syndrome, msn: request.msn }),
            atomic_ack: is_atomic.then_some(AtomicAck { original: request.original }),
            ..Headers::new(base.bth(opcode, request.first_psn))
        }
    }

    fn send_read_response<A: App, W: Wire>(
        &mut self,
        request: &ReplayedRequest,
        pending: Pending,
        cx: &mut Context<'_, A>,
        wire: &mut W,
    ) -> Transmission {
        if cx.base.is_paced(cx.now) || cx.base.waits_for_account(cx.now) {
            return Transmission::Idle;
        }
        let mtu = cx.base.mtu();
        let (begins, ends) = (pending.next == pending.start, pending.next + 1 == pending.end);
        let place = place(begins, ends);
        let skip = pending.next * mtu as u32;
        let payload = (request.length - skip).min(mtu as u32) as usize;
        let psn = request.first_psn.plus(pending.next);
        let headers = Headers {
            aeth: (place != Position::Middle)
                .then(|| Aeth { syndrome: self.offer.syndrome(request.msn, cx.base), msn: request.msn }),
            ..Headers::new(cx.base.bth(opcode::rc(Operation::ReadResponse, place, false), psn))
        };
        let va = request.va.wrapping_add(skip.into());
        let emitted = if payload == 0 {
            cx.base.emit(wire, &headers, 0, |_| Ok(()))
        } else {
            // Checked for each packet: the region may be gone since the request.
            match cx.base.check_peer(cx.mrs, request.key, Right::RemoteRead, va, payload) {
                Err(_) => Err(EmitError::Aborted),
                Ok(span) => cx.base.emit_span(wire, &headers, span, cx.app),
            }
        };
        match emitted {
            Ok(()) => {
                cx.base.on_paced_sent(cx.now, payload);
                self.on_answered(psn, cx.base);
                Transmission::Progress
            }
            Err(EmitError::Full) => Transmission::Full,
            // IBTA v1 9.7.5.2: a duplicate is answered or dropped; only a new request is refused by
            // a NAK.
            Err(EmitError::Aborted) if self.replay.give_up_repetition() => {
                Transmission::Dropped(DropReason::ReplayLost)
            }
            Err(EmitError::Aborted) => {
                // IBTA v1 9.7.5.2.6: a NAK takes the place of the response that cannot be given,
                // and of all behind it.
                self.owed = PendingAck::Nak(NakCode::RemoteAccess, psn, Psn::new(request.msn).minus(1).get());
                self.replay.forget_pending();
                cx.base.counters.count(QpCount::RemoteAccessSent);
                if cx.base.state != State::Error {
                    cx.base.fail_with_event(event::QP_ACCESS_ERROR);
                }
                Transmission::Progress
            }
        }
    }

    /// It contains memory, as a READ response does, and follows the rate of the account.
    fn send_atomic_ack<A: App, W: Wire>(
        &mut self,
        request: &ReplayedRequest,
        cx: &mut Context<'_, A>,
        wire: &mut W,
    ) -> Transmission {
        if cx.base.waits_for_account(cx.now) {
            return Transmission::Idle;
        }
        let headers = Self::short_answer(request, self.offer.syndrome(request.msn, cx.base), cx.base);
        if cx.base.emit(wire, &headers, 0, |_| Ok(())).is_err() {
            return Transmission::Full;
        }
        self.on_answered(request.first_psn, cx.base);
        Transmission::Progress
    }

    /// Notes that the answer with this PSN was sent.
    fn on_answered(&mut self, psn: Psn, base: &mut QpBase) {
        base.counters.count(QpCount::ResponsePackets);
        self.replay.advance();
        let says_all = psn.plus(1) == self.expected;
        let owed = self.owed_of_the_past_mut();
        if *owed == PendingAck::Ack && says_all {
            // The answer has acknowledged that as well.
            *owed = PendingAck::Nothing;
        }
        if self.invalidating.is_some() && base.state != State::Error {
            self.invalidate_when_answered(base);
        }
    }
}

#[cfg(test)]
mod tests {
    use roced_types::Qpn;

    use super::*;
    use crate::wire::bth::Bth;

    /// Of a life that began at a PSN, after requests of so many.
    fn after(first: Psn, requests: &[u32]) -> LastAcknowledgment {
        let mut responder = Responder::new();
        responder.begin(first, 1);
        requests.iter().for_each(|psns| responder.on_executed(*psns));
        let last = responder.expected.minus(1);
        let headers = Headers::new(Bth::new(opcode::RC_ACK, Qpn::from_wire(1), last));
        LastAcknowledgment { headers, psns: responder.executed_until(last), source_port: None }
    }

    /// Offsets behind the ACK's PSN that are covered: below the number returned.
    fn covered(last: &LastAcknowledgment, solicits: bool) -> u32 {
        let covers = |behind: &u32| last.covers_psn(last.headers.bth.psn.minus(*behind), solicits);
        let count = (0..1 << 24).filter(covers).count() as u32;
        assert!(count == 0 || covers(&(count - 1)), "without a gap");
        count
    }

    #[test]
    fn repetitions_reach_back_to_the_first_psn_of_their_life() {
        for first in [0, 5, 0x00ff_fffe] {
            let last = after(Psn::new(first), &[1, 3, 1]);
            assert_eq!((covered(&last, false), covered(&last, true)), (5, 6), "from {first}");
        }
    }

    /// There the PSN has no lower bound, also where it has come round to the first one.
    #[test]
    fn repetitions_of_a_long_life_reach_back_by_half_the_psn_space() {
        const HALF: u32 = 1 << 23;
        for (requests, count) in [
            (&[HALF - 1][..], HALF - 1),
            (&[HALF], HALF),
            (&[HALF, HALF], HALF),
            (&[HALF, HALF, 7], HALF),
            (&[HALF; 513], HALF),
        ] {
            let last = after(Psn::new(9), requests);
            assert_eq!((covered(&last, false), covered(&last, true)), (count, HALF), "{} requests", requests.len());
        }
    }

    /// The ACK ends before a READ that was not answered.
    #[test]
    fn psns_behind_the_acknowledgment_do_not_count() {
        let mut responder = Responder::new();
        responder.begin(Psn::new(0x00ff_ffff), 1);
        responder.on_executed(2);
        responder.on_executed(5);
        assert_eq!(responder.executed_until(Psn::new(0)), 2);
    }
}
