//! An adapter as responder, played by a plain model that keeps nothing ahead.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use roced_transport::{
    clock::Nanos,
    psn::Psn,
    wire::{
        Aeth, NakCode, Syndrome,
        atomic::AtomicAck,
        bth::Bth,
        headers::Headers,
        opcode::{self, Opcode, Operation},
    },
    work::SendWork,
};
use roced_types::{SendOp, Status};

use crate::host::{Pair, Settings, sge, work};

/// Random numbers of a model.
pub(crate) struct Draws(pub(crate) u64);

impl Draws {
    pub(crate) fn chance(&mut self, in_hundred: u64) -> bool {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % 100 < in_hundred
    }

    pub(crate) fn number(&mut self, below: usize) -> usize {
        self.chance(0);
        (self.0 >> 45) as usize % below
    }
}

/// A responder as an adapter is: nothing kept ahead, one NAK for each expected PSN, an answer where
/// it is asked for only.
struct Adapter {
    first: Psn,
    expected: u32,
    next_new: u32,
    msn: u32,
    nak_given: bool,
    /// By PSN: opcode, address, length, payload, immediate, PSNs; first transmissions.
    sent: BTreeMap<u32, (Opcode, u64, u32, Vec<u8>, u32)>,
    draws: Draws,
    questions: u32,
    /// Last PSNs of READs and atomic operations with a sent last answer.
    answered: BTreeSet<u32>,
    depth: usize,
    /// It answers a READ that comes again only if it ends where the first one ended.
    to_the_end: bool,
    parts: u32,
}

impl Adapter {
    fn answer(&self, pair: &Pair, opcode: Opcode, psn: u32, syndrome: Option<Syndrome>, payload: &[u8]) -> Vec<u8> {
        let bth = Bth::new(opcode, pair.hosts[0].qpn, self.first.plus(psn));
        let atomic_ack = (opcode == opcode::RC_ATOMIC_ACK).then_some(AtomicAck { original: 1 });
        let aeth = syndrome.map(|syndrome| Aeth { syndrome, msn: self.msn });
        pair.frame(1, &Headers { aeth, atomic_ack, ..Headers::new(bth) }, payload)
    }

    /// Its answers to a frame; every rule of a requester is checked.
    fn on_frame(&mut self, pair: &Pair, frame: &[u8], rnr: u64) -> Vec<Vec<u8>> {
        let pieces: Vec<&[u8]> = frame.chunks(3840).collect();
        let packet = roced_transport::wire::parse(&pieces).expect("parses");
        if packet.info.operation.is_response() {
            return vec![];
        }
        let psn = packet.bth.psn.offset_from(self.first) & 0x00ff_ffff;
        let payload: Vec<u8> = packet.payload().flatten().copied().collect();
        let (va, length) = packet.reth.map_or((0, 0), |reth| (reth.va, reth.length));
        let is_read = packet.info.operation == Operation::ReadRequest;
        let psns = if is_read { length.div_ceil(1024).max(1) } else { 1 };
        let ends = packet.info.position.ends();
        if psn == self.next_new {
            self.sent.insert(psn, (packet.bth.opcode, va, length, payload.clone(), psns));
            self.next_new += psns;
            let waits = self.sent.iter().filter(|(psn, (opcode, .., psns))| {
                let operation = opcode.info().expect("known").operation;
                let answers = matches!(operation, Operation::ReadRequest | Operation::FetchAdd);
                answers && !self.answered.contains(&(*psn + psns - 1))
            });
            assert!(waits.count() <= self.depth, "more READs and atomic operations than agreed");
        } else {
            let (at, known) = self.sent.range(..=psn).next_back().expect("a PSN of this life");
            assert!(psn < self.next_new, "PSN {psn} skips some");
            let empty = payload.is_empty() && packet.bth.ack_request && length == 0 && !is_read && ends;
            if is_read {
                let skip = psn - at;
                let rest = known.2 - skip * 1024;
                assert_eq!((known.0, known.1 + u64::from(skip) * 1024), (packet.bth.opcode, va), "READ {at}");
                let is_part = length < rest && length > 0 && length.is_multiple_of(1024);
                assert!(is_part || length == rest, "{length} of {rest} bytes of READ {at}");
                self.parts += u32::from(is_part);
                if is_part && self.to_the_end {
                    return vec![];
                }
            } else if (known.0, known.1, known.2, &known.3) != (packet.bth.opcode, va, length, &payload) || *at != psn {
                assert!(empty, "PSN {psn}: neither a sent packet nor a question");
                assert!(psn < self.expected, "a question that would be executed: {psn}");
                self.questions += 1;
            }
        }
        if psn > self.expected {
            if self.nak_given {
                return vec![];
            }
            self.nak_given = true;
            return vec![self.answer(
                pair,
                opcode::RC_ACK,
                self.expected,
                Some(Syndrome::Nak(NakCode::PsnSequence)),
                &[],
            )];
        }
        let is_atomic = matches!(packet.info.operation, Operation::CompareSwap | Operation::FetchAdd);
        if psn == self.expected {
            if packet.info.operation == Operation::Send && packet.info.position.begins() && self.draws.chance(rnr) {
                self.nak_given = true;
                return vec![self.answer(pair, opcode::RC_ACK, psn, Some(Syndrome::Rnr { timer: 1 }), &[])];
            }
            self.nak_given = false;
            self.expected += psns;
            self.msn += u32::from(ends);
        }
        if is_read {
            return (0..psns)
                .map(|at| {
                    let bytes = (length - at * 1024).min(1024) as usize;
                    let (opcode, aeth) = match (at == 0, at + 1 == psns) {
                        (true, true) => (opcode::RC_READ_RESPONSE_ONLY, true),
                        (true, false) => (opcode::RC_READ_RESPONSE_FIRST, true),
                        (false, true) => (opcode::RC_READ_RESPONSE_LAST, true),
                        (false, false) => (opcode::RC_READ_RESPONSE_MIDDLE, false),
                    };
                    self.answer(pair, opcode, psn + at, aeth.then_some(Syndrome::ACK), &vec![7; bytes])
                })
                .collect();
        }
        if is_atomic {
            return vec![self.answer(pair, opcode::RC_ATOMIC_ACK, psn, Some(Syndrome::ACK), &[])];
        }
        if packet.bth.ack_request {
            return vec![self.answer(pair, opcode::RC_ACK, self.expected - 1, Some(Syndrome::ACK), &[])];
        }
        vec![]
    }
}

/// For any losses on the way to an adapter and back, with and without receives: no frame breaks a
/// rule, and all work ends well.
#[test]
fn nothing_that_is_sent_surprises_an_adapter() {
    let (mut questions, mut parts) = (0, 0);
    for seed in 0..100_u64 {
        let mut pair = Pair::new(Settings {
            timeout: 12,
            rd_atomic: 1 + (seed % 4) as u32,
            window: 16 << (seed % 3),
            ..Settings::default()
        });
        let first = Psn::new(pair.settings.psn);
        let mut adapter = Adapter {
            first,
            expected: 0,
            next_new: 0,
            msn: 0,
            nak_given: false,
            sent: Default::default(),
            draws: Draws(seed * 77 + 1),
            questions: 0,
            answered: Default::default(),
            depth: 1 + (seed % 4) as usize,
            to_the_end: seed % 3 == 0,
            parts: 0,
        };
        let (loss, rnr) = ([0, 2, 5, 10][(seed % 4) as usize], [0, 20][(seed / 4 % 2) as usize]);
        let (mut posted, mut done, total) = (0_u64, Vec::new(), 60);
        let mut flying: VecDeque<(Nanos, Vec<u8>)> = Default::default();
        let end = pair.now + Nanos::from_millis(60_000);
        while done.last() != Some(&(total - 1, Status::Success)) && pair.now < end {
            while posted < total
                && pair.hosts[0].endpoint.send_room(pair.hosts[0].qpn) > 44
                && adapter.draws.chance([60, 4][(seed / 8 % 2) as usize])
            {
                let sizes = [0, 8, 1024, 5000, 20_000];
                let bytes = sizes[(adapter.draws.0 >> 40) as usize % 5];
                let ops =
                    [SendOp::Send, SendOp::Write, SendOp::Read, SendOp::FetchAdd, SendOp::SendImm, SendOp::WriteImm];
                let op = ops[(adapter.draws.0 >> 50) as usize % 6];
                let bytes = if op == SendOp::FetchAdd { 8 } else { bytes };
                let brings = matches!(op, SendOp::Read | SendOp::FetchAdd);
                let sges = [sge(1000 * posted + if brings { 700_000 } else { 0 }, bytes)];
                let silent = seed % 2 == 1 && posted % 4 != 3;
                let work = work(posted, op, &sges, 600_000);
                let flags = if silent { 0 } else { work.flags };
                pair.hosts[0].post(&SendWork { flags, ..work });
                posted += 1;
            }
            let host = &mut pair.hosts[0];
            host.endpoint.on_timeout(pair.now, 16, &mut host.app);
            host.endpoint.poll_transmit(pair.now, 16, &mut host.app, &mut host.nic);
            let frames: Vec<_> = host.nic.frames.drain(..).collect();
            for frame in frames {
                if adapter.draws.chance(loss) {
                    // Looked at all the same.
                    let (expected, nak, msn) = (adapter.expected, adapter.nak_given, adapter.msn);
                    adapter.on_frame(&pair, &frame, 0);
                    (adapter.expected, adapter.nak_given, adapter.msn) = (expected, nak, msn);
                    continue;
                }
                for answer in adapter.on_frame(&pair, &frame, rnr) {
                    if !adapter.draws.chance(loss) {
                        flying.push_back((pair.now + Nanos::from_micros(20), answer));
                    }
                }
            }
            pair.now = pair.now + Nanos::from_micros(7);
            while flying.front().is_some_and(|(due, _)| *due <= pair.now) {
                let (_, frame) = flying.pop_front().expect("there");
                let pieces: Vec<&[u8]> = frame.chunks(3840).collect();
                let packet = roced_transport::wire::parse(&pieces).expect("parses");
                if packet.info.operation != Operation::Ack && packet.info.position.ends() {
                    adapter.answered.insert(packet.bth.psn.offset_from(first));
                }
                pair.deliver(0, &frame);
            }
            done.extend(pair.hosts[0].take());
        }
        let expected: Vec<_> =
            (0..total).filter(|id| seed % 2 == 0 || id % 4 == 3).map(|id| (id, Status::Success)).collect();
        assert_eq!(done, expected, "seed {seed}, drops {:?}", pair.hosts[0].drops());
        questions += adapter.questions;
        assert!(!adapter.to_the_end || adapter.parts <= 3, "seed {seed}: {} parts without an answer", adapter.parts);
        parts += adapter.parts;
    }
    assert!(questions > 0 && parts > 100, "{questions} questions, {parts} parts");
}
