//! What the responder sends: ACKs and NAKs, READ responses, atomic ACKs.

use roced_shared::abi::control::event;

use super::{Owed, Responder};
use crate::{
    counters::QpCount,
    io::{App, EmitError, Wire},
    mr::Right,
    psn::Psn,
    qp::{
        Link, State, Turn, Visit,
        replay::{Pending, Request},
        segment::position,
    },
    reject::DropReason,
    wire::{
        aeth::{Aeth, NakCode, Syndrome},
        atomic::AtomicAck,
        headers::Headers,
        opcode::{self, Operation, Position},
    },
};

impl Responder {
    /// Sends one READ response or ATOMIC ACK, or else what is owed.
    pub(crate) fn transmit<A: App, W: Wire>(&mut self, link: &mut Link, turn: &mut Turn<'_, A>, wire: &mut W) -> Visit {
        let failed = link.state == State::Error;
        // An ACK for what came after a READ would say that its responses are lost: they go first. A refusal says so, too, and what was
        // accepted before it is answered (IBTA v1 9.7.5.2.7); a queue pair that its client has ended answers nothing that takes memory.
        let refuses = matches!(self.owed, Owed::Nak(..));
        if (!failed || refuses)
            && let Some((request, pending)) = self.replay.front()
        {
            return if matches!(request.operation, Operation::CompareSwap | Operation::FetchAdd) {
                self.send_atomic_ack(&request, link, wire)
            } else {
                self.send_read_response(&request, pending, link, turn, wire)
            };
        }
        // A queue pair that has failed says why, and what it did; it asks for nothing.
        let owed = if failed { self.owed_of_the_past() } else { self.owed };
        let (syndrome, psn) = match owed {
            Owed::Nothing => return Visit::Idle,
            Owed::Ack if failed && self.replay.front().is_some() => return Visit::Idle,
            Owed::Ack => (self.offer.syndrome(self.msn, link), self.expected.minus(1)),
            Owed::AckUpTo(psn) => (self.offer.syndrome(self.msn, link), psn),
            Owed::SequenceNak => (Syndrome::Nak(NakCode::PsnSequence), self.expected),
            Owed::RnrNak => (Syndrome::Rnr { timer: link.attributes.min_rnr_timer as u8 }, self.expected),
            Owed::Nak(code, psn, _) => (Syndrome::Nak(code), psn),
        };
        let headers = self.answer(syndrome, psn, link);
        if link.emit(wire, &headers, 0, |_| Ok(())).is_err() {
            return Visit::Full;
        }
        link.counters.count(QpCount::ResponsePackets);
        self.owed = Owed::Nothing;
        if matches!(owed, Owed::Ack | Owed::AckUpTo(_)) {
            return Visit::Acknowledged;
        }
        Visit::Progress
    }

    /// The answer that is owed as the last word of a queue pair that goes: an ACK, or the NAK with which it ended. None while responses are owed
    /// that would have to go first.
    pub(crate) fn farewell(&self, link: &Link) -> Option<Headers> {
        if self.replay.front().is_some() {
            return None;
        }
        let (syndrome, psn) = match self.owed_of_the_past() {
            Owed::Ack => (Syndrome::ACK, self.expected.minus(1)),
            Owed::AckUpTo(psn) => (Syndrome::ACK, psn),
            Owed::Nak(code, psn, _) => (Syndrome::Nak(code), psn),
            // The peer asks again, and finds nobody.
            Owed::Nothing | Owed::SequenceNak | Owed::RnrNak => return None,
        };
        Some(self.answer(syndrome, psn, link))
    }

    /// An ACK or NAK. All executed messages are counted, but by a refusal: that counts those before what it refuses.
    fn answer(&self, syndrome: Syndrome, psn: Psn, link: &Link) -> Headers {
        let msn = if let Owed::Nak(_, _, before) = self.owed { before } else { self.msn };
        Headers { aeth: Some(Aeth { syndrome, msn }), ..Headers::new(link.bth(opcode::RC_ACK, psn)) }
    }

    fn send_read_response<A: App, W: Wire>(
        &mut self,
        request: &Request,
        pending: Pending,
        link: &mut Link,
        turn: &mut Turn<'_, A>,
        wire: &mut W,
    ) -> Visit {
        let mtu = link.mtu();
        let place = position(pending.next - pending.start, pending.end - pending.start);
        let skip = pending.next * mtu as u32;
        let payload = (request.length - skip).min(mtu as u32) as usize;
        let psn = request.first_psn.plus(pending.next);
        let headers = Headers {
            aeth: (place != Position::Middle)
                .then(|| Aeth { syndrome: self.offer.syndrome(request.msn, link), msn: request.msn }),
            ..Headers::new(link.bth(opcode::rc(Operation::ReadResponse, place, false), psn))
        };
        let va = request.va.wrapping_add(skip.into());
        let emitted = if payload == 0 {
            link.emit(wire, &headers, 0, |_| Ok(()))
        } else {
            // Checked anew for each packet: the region may be gone since the request.
            match link.check_peer(turn.mrs, request.key, Right::RemoteRead, va, payload) {
                Err(_) => Err(EmitError::Aborted),
                Ok(span) => link.emit_span(wire, &headers, span, turn.app),
            }
        };
        match emitted {
            Ok(()) => {
                self.on_answered(psn, link);
                Visit::Progress
            }
            Err(EmitError::Full) => Visit::Full,
            // IBTA v1 9.7.5.2: a duplicate is answered or dropped; only a new request is refused by a NAK.
            Err(EmitError::Aborted) if self.replay.give_up_repetition() => Visit::Dropped(DropReason::RepetitionLost),
            Err(EmitError::Aborted) => {
                // IBTA v1 9.7.5.2.6: a NAK takes the place of the response that cannot be given, and of all behind it.
                self.owed = Owed::Nak(NakCode::RemoteAccess, psn, Psn::new(request.msn).minus(1).get());
                self.replay.forget_pending();
                link.counters.count(QpCount::RemoteAccessSent);
                if link.state != State::Error {
                    link.fail_with_event(event::QP_ACCESS_ERROR);
                }
                Visit::Progress
            }
        }
    }

    fn send_atomic_ack<W: Wire>(&mut self, request: &Request, link: &mut Link, wire: &mut W) -> Visit {
        let headers = Headers {
            aeth: Some(Aeth { syndrome: self.offer.syndrome(request.msn, link), msn: request.msn }),
            atomic_ack: Some(AtomicAck { original: request.original }),
            ..Headers::new(link.bth(opcode::RC_ATOMIC_ACK, request.first_psn))
        };
        if link.emit(wire, &headers, 0, |_| Ok(())).is_err() {
            return Visit::Full;
        }
        self.on_answered(request.first_psn, link);
        Visit::Progress
    }

    /// The answer with this PSN was sent.
    fn on_answered(&mut self, psn: Psn, link: &mut Link) {
        link.counters.count(QpCount::ResponsePackets);
        self.replay.advance();
        let says_all = psn.plus(1) == self.expected;
        let owed = self.owed_of_the_past_mut();
        if *owed == Owed::Ack && says_all {
            // It has said that, too.
            *owed = Owed::Nothing;
        }
        if self.invalidating.is_some() && link.state != State::Error {
            self.invalidate_when_answered(link);
        }
    }
}
