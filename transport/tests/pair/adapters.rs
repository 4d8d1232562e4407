//! Adapters as peers, played by plain models: a responder that keeps nothing ahead, and a requester
//! that goes back whenever it has to.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use roced_transport::{
    clock::Nanos,
    counters::QpCount,
    psn::Psn,
    wire::{
        Aeth, NakCode, Syndrome,
        atomic::{AtomicAck, AtomicEth},
        bth::Bth,
        headers::Headers,
        opcode::{self, Opcode, Operation, Position},
        reth::Reth,
    },
    work::SendWork,
};
use roced_types::{SendOp, Status};

use crate::host::{KEY, Pair, Settings, VA, bth, forged, sge, work};

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
    seed: u64,
    questions: u32,
    /// Last PSNs of READs and atomic operations with a sent last answer.
    answered: BTreeSet<u32>,
    depth: usize,
    /// It answers a READ that comes again only if it ends where the first one ended.
    to_the_end: bool,
    parts: u32,
}

impl Adapter {
    fn chance(&mut self, in_hundred: u64) -> bool {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 33) % 100 < in_hundred
    }

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
            if packet.info.operation == Operation::Send && packet.info.position.begins() && self.chance(rnr) {
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
            seed: seed * 77 + 1,
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
                && adapter.chance([60, 4][(seed / 8 % 2) as usize])
            {
                let sizes = [0, 8, 1024, 5000, 20_000];
                let bytes = sizes[(adapter.seed >> 40) as usize % 5];
                let ops =
                    [SendOp::Send, SendOp::Write, SendOp::Read, SendOp::FetchAdd, SendOp::SendImm, SendOp::WriteImm];
                let op = ops[(adapter.seed >> 50) as usize % 6];
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
                if adapter.chance(loss) {
                    // Looked at all the same.
                    let (expected, nak, msn) = (adapter.expected, adapter.nak_given, adapter.msn);
                    adapter.on_frame(&pair, &frame, 0);
                    (adapter.expected, adapter.nak_given, adapter.msn) = (expected, nak, msn);
                    continue;
                }
                for answer in adapter.on_frame(&pair, &frame, rnr) {
                    if !adapter.chance(loss) {
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

/// One request as an adapter cuts it: packets of one PSN each, or a READ of several PSNs.
#[derive(Clone)]
struct Piece {
    psn: u32,
    psns: u32,
    opcode: Opcode,
    reth: Option<Reth>,
    bytes: usize,
    /// Messages up to this one.
    message: u32,
    asks: bool,
}

/// An adapter goes back whenever it has to; our responder executes each request once, in order,
/// acknowledges nothing that did not come, counts messages, and answers READs and atomic operations
/// as they were.
#[test]
fn an_adapter_that_goes_back_is_served_as_the_rules_say() {
    let mut counts = [0; 5];
    for seed in 0..100_u64 {
        let mut pair = Pair::new(Settings { rd_atomic: 4, min_rnr_timer: 1, ..Settings::default() });
        let first = Psn::new(pair.settings.psn);
        let mut random = Adapter {
            first,
            expected: 0,
            next_new: 0,
            msn: 0,
            nak_given: false,
            sent: Default::default(),
            seed: seed * 31 + 7,
            questions: 0,
            answered: Default::default(),
            depth: 4,
            to_the_end: false,
            parts: 0,
        };
        let loss = [0, 3, 8, 15][(seed % 4) as usize];
        let (mut pieces, mut psn, mut sends, mut atomics) = (Vec::new(), 0, 0_u64, 0);
        for message in 1..=40_u32 {
            let kind = {
                random.chance(0);
                (random.seed >> 45) % 4
            };
            let size = {
                random.chance(0);
                [1_usize, 900, 1024, 3000][(random.seed >> 45) as usize % 4]
            };
            let reth = Some(Reth { va: VA + 300_000 + u64::from(message) * 4096, rkey: KEY, length: size as u32 });
            let count = size.div_ceil(1024) as u32;
            match kind {
                0 | 1 => {
                    sends += u64::from(kind == 0);
                    let operation = if kind == 0 { Operation::Send } else { Operation::Write };
                    for at in 0..count {
                        let position = match (at == 0, at + 1 == count) {
                            (true, true) => Position::Only,
                            (true, false) => Position::First,
                            (false, true) => Position::Last,
                            _ => Position::Middle,
                        };
                        let reth = reth.filter(|_| kind == 1 && at == 0);
                        let bytes = (size - at as usize * 1024).min(1024);
                        pieces.push(Piece {
                            psn,
                            psns: 1,
                            opcode: opcode::rc(operation, position, false),
                            reth,
                            bytes,
                            message,
                            asks: at + 1 == count,
                        });
                        psn += 1;
                    }
                }
                2 => {
                    pieces.push(Piece {
                        psn,
                        psns: count,
                        opcode: opcode::RC_READ_REQUEST,
                        reth,
                        bytes: 0,
                        message,
                        asks: true,
                    });
                    psn += count;
                }
                _ => {
                    atomics += 1;
                    pieces.push(Piece {
                        psn,
                        psns: 1,
                        opcode: opcode::RC_FETCH_ADD,
                        reth: None,
                        bytes: 0,
                        message,
                        asks: true,
                    });
                    psn += 1;
                }
            }
        }
        let end = psn;
        let frame = |pair: &Pair, piece: &Piece, skip: u32| {
            let bth = Bth { psn: first.plus(piece.psn + skip), ack_request: piece.asks, ..bth(pair, piece.opcode) };
            let reth = piece.reth.map(|reth| Reth {
                va: reth.va + u64::from(skip) * 1024,
                length: reth.length - skip * 1024,
                ..reth
            });
            let atomic = (piece.opcode == opcode::RC_FETCH_ADD).then_some(AtomicEth {
                va: VA + 800_000,
                rkey: KEY,
                swap_or_add: 1,
                compare: 0,
            });
            forged(pair, &Headers { reth, atomic, ..Headers::new(bth) }, &vec![piece.message as u8; piece.bytes])
        };
        let mut came = vec![false; end as usize];
        let (mut una, mut cursor, mut frontier, mut implied, mut progress) = (0_u32, 0_u32, 0_u32, None, pair.now);
        let (mut posted, mut originals) = (0_u64, Vec::new());
        let wants = |psn: u32| {
            let piece = pieces.iter().find(|piece| psn < piece.psn + piece.psns).expect("one");
            (piece.opcode == opcode::RC_READ_REQUEST || piece.opcode == opcode::RC_FETCH_ADD).then_some(piece)
        };
        for _ in 0..200_000 {
            if una == end {
                break;
            }
            if posted < sends && random.chance(5) {
                pair.hosts[1].post_recv(posted, &[sge(0, 4096)]);
                posted += 1;
            }
            // So many answers at a time as were agreed.
            let open = pieces
                .iter()
                .filter(|piece| piece.psn + piece.psns > una && piece.psn < cursor && wants(piece.psn).is_some())
                .count();
            if cursor < end && cursor < una + 24 {
                let piece = pieces.iter().find(|piece| cursor < piece.psn + piece.psns).expect("one").clone();
                if wants(piece.psn).is_none() || open < 4 || cursor == una {
                    let bytes = frame(&pair, &piece, cursor - piece.psn);
                    let next = piece.psn + piece.psns;
                    if !random.chance(loss) {
                        came[piece.psn as usize..next as usize].fill(true);
                        pair.deliver(1, &bytes);
                    }
                    cursor = next;
                    frontier = frontier.max(cursor);
                }
            }
            let host = &mut pair.hosts[1];
            host.endpoint.on_timeout(pair.now, 16, &mut host.app);
            if random.chance(40) {
                host.endpoint.poll_transmit(pair.now, 8, &mut host.app, &mut host.nic);
            }
            let answers: Vec<_> = pair.hosts[1].nic.frames.drain(..).collect();
            let missing = came.iter().position(|came| !came).unwrap_or(came.len()) as u32;
            for answer in answers {
                let parts: Vec<&[u8]> = answer.chunks(3840).collect();
                let packet = roced_transport::wire::parse(&parts).expect("parses");
                let (psn, before) = (packet.bth.psn.distance_from(first), una);
                let aeth = packet.aeth;
                let msn = |to: i32| {
                    pieces
                        .iter()
                        .filter(|piece| {
                            (piece.psn as i32) < to && (piece.psns > 1 || wants(piece.psn).is_some() || piece.asks)
                        })
                        .count() as u32
                };
                let said = psn as u32;
                let lost = random.chance(loss);
                let (to, goes_back) = match (packet.info.operation, aeth.map(|aeth| aeth.syndrome)) {
                    (Operation::Ack, Some(Syndrome::Ack { .. })) => {
                        assert!(psn < missing as i32, "seed {seed}: acknowledges {psn}, {missing} never came");
                        assert_eq!(aeth.expect("there").msn, msn(psn + 1), "seed {seed}: MSN of the ACK of {psn}");
                        ((psn + 1) as u32, false)
                    }
                    (Operation::Ack, Some(Syndrome::Nak(NakCode::PsnSequence) | Syndrome::Rnr { .. })) => {
                        assert!(said <= missing && said < frontier, "seed {seed}: NAK of {psn}");
                        assert_eq!(aeth.expect("there").msn, msn(psn), "seed {seed}: MSN of the NAK of {psn}");
                        (said, true)
                    }
                    (Operation::ReadResponse | Operation::AtomicAck, _) => {
                        let piece = wants(said).expect("a READ or an atomic operation").clone();
                        assert!(said < missing, "seed {seed}: answers a packet that did not come");
                        if let Some(aeth) = aeth {
                            assert_eq!(aeth.msn, piece.message, "seed {seed}");
                        }
                        if let Some(atomic) = packet.atomic_ack {
                            let known = originals.iter().find(|(psn, _)| *psn == said);
                            assert!(
                                known.is_none_or(|(_, was)| *was == atomic.original),
                                "seed {seed}: another result"
                            );
                            originals.push((said, atomic.original));
                        } else {
                            let reth = piece.reth.expect("of a READ");
                            let at = (reth.va - VA) as usize + (said - piece.psn) as usize * 1024;
                            let bytes: Vec<u8> = packet.payload().flatten().copied().collect();
                            assert!(bytes == pair.hosts[1].app.memory[at..at + bytes.len()], "seed {seed}");
                            assert_eq!(packet.info.position.ends(), said + 1 == piece.psn + piece.psns, "seed {seed}");
                        }
                        (said, false)
                    }
                    other => panic!("seed {seed}: {other:?} of {psn}"),
                };
                if lost {
                    continue;
                }
                let is_answer = packet.info.operation != Operation::Ack;
                while una < to && wants(una).is_none() {
                    una += 1;
                }
                if una < to {
                    // An implied NAK.
                    if implied != Some(una) {
                        (implied, cursor) = (Some(una), una);
                    }
                } else if is_answer && una == said {
                    una += 1;
                } else if goes_back && una == said {
                    cursor = una;
                }
                if una != before {
                    (progress, implied) = (pair.now, implied.filter(|psn| *psn >= una));
                    cursor = cursor.max(una);
                }
            }
            pair.now = pair.now + Nanos::from_micros(3);
            if pair.now - progress > Nanos::from_millis(2) {
                (cursor, implied, progress) = (una, None, pair.now);
            }
        }
        assert_eq!((una, pair.hosts[1].state()), (end, "RTS"), "seed {seed}: {:?}", pair.hosts[1].drops());
        let all: Vec<_> = (0..sends).map(|id| (id, Status::Success)).collect();
        assert_eq!((pair.hosts[1].take(), pair.hosts[1].app.originals.len()), (all, atomics), "seed {seed}");
        for (sum, what) in counts.iter_mut().zip([
            QpCount::SequenceNakSent,
            QpCount::RnrNakSent,
            QpCount::DuplicateRequest,
            QpCount::OutOfOrderBuffered,
            QpCount::ResponsePackets,
        ]) {
            *sum += pair.hosts[1].count(what);
        }
    }
    assert!(counts.iter().all(|count| *count > 100));
}
