//! A whole queue pair of the plain model: it executes and sends, and answers as its make does.

use std::collections::VecDeque;

use super::{
    make::{Acks, Make},
    memory::Memory,
    packet::Packet,
    requester::{Requester, Terms},
    responder::{Answer, Arrived, Effect, Receive, Responder, Verdict},
    unwrap, wire,
    work::Work,
};
use crate::frame::{Aeth, Kind};

/// The queue pair.
#[derive(Debug)]
pub(crate) struct Peer {
    make: Make,
    dest_qpn: u32,
    mtu: u32,
    rnr_timer: u8,
    pub(crate) memory: Memory,
    pub(crate) requester: Requester,
    responder: Responder,
    /// Receives that completed.
    pub(crate) arrived: Vec<Arrived>,
    answers: VecDeque<Packet>,
    /// When an ACK is due.
    ack_at: u64,
    /// A NAK was given for the expected PSN; it was an RNR NAK.
    nak_given: bool,
    not_ready: bool,
    /// It refused a request: nothing is executed or answered any more.
    pub(crate) refused: bool,
}

const NEVER: u64 = u64::MAX;

impl Peer {
    pub(crate) fn new(make: Make, terms: Terms, rnr_timer: u8, psns: [u64; 2], memory: Memory) -> Self {
        Self {
            make,
            dest_qpn: terms.dest_qpn,
            mtu: terms.mtu,
            rnr_timer,
            memory,
            requester: Requester::new(make, terms, psns[0]),
            responder: Responder::new(terms.mtu, terms.rd_atomic as u32, psns[1]),
            arrived: Vec::new(),
            answers: VecDeque::new(),
            ack_at: NEVER,
            nak_given: false,
            not_ready: false,
            refused: false,
        }
    }

    pub(crate) fn post(&mut self, work: Work) {
        self.requester.post(work);
    }

    pub(crate) fn post_receive(&mut self, receive: Receive) {
        self.responder.receives.push_back(receive);
    }

    pub(crate) fn poll_timeout(&self, now: u64) -> u64 {
        self.requester.poll_timeout(now).min(self.ack_at)
    }

    pub(crate) fn on_timeout(&mut self, now: u64) {
        self.requester.on_timeout(now);
        if self.ack_at <= now {
            self.acknowledge();
        }
    }

    /// A frame with a valid ICRC.
    pub(crate) fn on_packet(&mut self, packet: &Packet, now: u64) {
        if !packet.is_request() {
            self.requester.on_answer(packet, &mut self.memory, now);
        } else if !self.refused {
            self.on_request(packet, now);
        }
    }

    /// All that it sends now.
    pub(crate) fn transmit(&mut self, now: u64) -> Vec<Packet> {
        let mut packets: Vec<Packet> = self.answers.drain(..).collect();
        for packet in &mut packets {
            (packet.mig_req, packet.dest_qpn) = (self.make.mig_req, self.dest_qpn);
        }
        packets.extend(self.requester.transmit(&self.memory, now));
        packets
    }

    fn on_request(&mut self, packet: &Packet, now: u64) {
        let expected = self.responder.expected;
        let psn = unwrap(packet.psn, expected);
        if psn > expected {
            if !self.not_ready && (!self.nak_given || self.make.naks_each) {
                self.nak_given = true;
                self.answer(expected, 0x60);
            }
            return;
        }
        if psn < expected {
            self.on_duplicate(packet, psn, now);
            return;
        }
        let (verdict, effects) = self.responder.execute(packet, &mut self.memory);
        match verdict {
            Verdict::Done(psns) => {
                (self.nak_given, self.not_ready) = (false, false);
                self.arrived.extend(effects.into_iter().filter_map(|effect| match effect {
                    Effect::Received(arrived) => Some(arrived),
                    _ => None,
                }));
                let ends = packet.kind().2;
                if self.responder.kept_at(psn).is_some() {
                    self.answer_kept(psn, psns);
                } else if packet.ack_request || (ends && self.make.acks == Acks::Each) {
                    self.owe(now);
                }
            }
            Verdict::NotReady => {
                // A later packet is ahead of a packet that will come again: no NAK for it (IBTA v1
                // 9.7.5.2.8).
                (self.nak_given, self.not_ready) = (true, true);
                self.answer(expected, 0x20 | self.rnr_timer);
            }
            Verdict::Refused(code) => {
                self.refused = true;
                self.answer(expected, code);
            }
        }
    }

    fn on_duplicate(&mut self, packet: &Packet, psn: u64, now: u64) {
        match packet.kind().0 {
            Kind::ReadRequest => {
                let psns = packet.reth.map_or(0, |reth| u64::from(reth.length.div_ceil(self.mtu).max(1)));
                self.answer_kept(psn, psns);
            }
            Kind::Atomic => self.answer_kept(psn, 1),
            // IBTA v1 C9-105: only acknowledged again.
            _ if packet.ack_request || self.make.acks == Acks::Each => self.owe(now),
            _ => {}
        }
    }

    /// Answers `psns` PSNs of a kept request again, or for the first time.
    fn answer_kept(&mut self, psn: u64, psns: u64) {
        let Some(kept) = self.responder.kept_at(psn).copied().filter(|kept| psn + psns <= kept.end) else { return };
        match kept.what {
            Answer::Atomic { found } => {
                let aeth = Some(Aeth { syndrome: self.credit_code(), msn: kept.msn });
                let original = Some(found);
                self.answers.push_back(Packet { opcode: 0x12, psn: wire(psn), aeth, original, ..Packet::default() });
            }
            Answer::Read { .. } => {
                for at in psn..psn + psns {
                    let response = self.responder.response(&kept, at, (psn, psn + psns), &self.memory);
                    let aeth = Aeth { syndrome: self.credit_code(), msn: kept.msn };
                    let response = response.map(|response| Packet { aeth: response.aeth.map(|_| aeth), ..response });
                    self.answers.extend(response);
                }
            }
        }
    }

    /// An ACK for all that was executed: now, or when it is due.
    fn owe(&mut self, now: u64) {
        if let Acks::Coalesced(time) = self.make.acks {
            self.ack_at = self.ack_at.min(now + time);
        } else {
            self.acknowledge();
        }
    }

    fn acknowledge(&mut self) {
        self.ack_at = NEVER;
        if !self.refused {
            self.answer(self.responder.expected - 1, self.credit_code());
        }
    }

    fn answer(&mut self, psn: u64, syndrome: u8) {
        let aeth = Some(Aeth { syndrome, msn: self.responder.msn });
        self.answers.push_back(Packet { opcode: 0x11, psn: wire(psn), aeth, ..Packet::default() });
    }

    /// Credits of an ACK: the highest code that promises no more than there are receives.
    fn credit_code(&self) -> u8 {
        if !self.make.offers_credits {
            return 0x1f;
        }
        let receives = self.responder.receives.len() as u64;
        (0..=4).rev().find(|code| super::credits(*code).is_some_and(|credits| credits <= receives)).unwrap_or(0)
    }
}
