//! An adapter as requester, played by a plain model that goes back whenever it has to.

use roced_transport::{
    clock::Nanos,
    counters::QpCount,
    psn::Psn,
    wire::{
        AtomicEth, Bth, Headers, NakCode, Packet, Reth, Syndrome,
        opcode::{self, Opcode, Operation, Position},
    },
};
use roced_types::Status;

use crate::{
    adapters::Draws,
    host::{KEY, Pair, Settings, VA, bth, forged, sge},
};

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

impl Piece {
    /// Whether it is a READ or an atomic operation.
    fn wants_answer(&self) -> bool {
        self.opcode == opcode::RC_READ_REQUEST || self.opcode == opcode::RC_FETCH_ADD
    }
}

/// The pieces of all messages, in order, with the numbers of SENDs and atomic operations.
#[derive(Default)]
struct Pieces {
    all: Vec<Piece>,
    end: u32,
    sends: u64,
    atomics: usize,
}

impl Pieces {
    fn drawn(draws: &mut Draws) -> Self {
        let mut pieces = Self::default();
        for message in 1..=40_u32 {
            let kind = draws.number(4);
            let size = [1_usize, 900, 1024, 3000][draws.number(4)];
            let reth = Reth { va: VA + 300_000 + u64::from(message) * 4096, rkey: KEY, length: size as u32 };
            match kind {
                0 => {
                    pieces.sends += 1;
                    pieces.add_packets(message, Operation::Send, size, None);
                }
                1 => pieces.add_packets(message, Operation::Write, size, Some(reth)),
                2 => pieces.add_answered(message, opcode::RC_READ_REQUEST, size.div_ceil(1024) as u32, Some(reth)),
                _ => {
                    pieces.atomics += 1;
                    pieces.add_answered(message, opcode::RC_FETCH_ADD, 1, None);
                }
            }
        }
        pieces
    }

    fn add_packets(&mut self, message: u32, operation: Operation, size: usize, reth: Option<Reth>) {
        let count = size.div_ceil(1024) as u32;
        for at in 0..count {
            let position = match (at == 0, at + 1 == count) {
                (true, true) => Position::Only,
                (true, false) => Position::First,
                (false, true) => Position::Last,
                _ => Position::Middle,
            };
            self.add(Piece {
                psn: self.end,
                psns: 1,
                opcode: opcode::rc(operation, position, false),
                reth: reth.filter(|_| at == 0),
                bytes: (size - at as usize * 1024).min(1024),
                message,
                asks: at + 1 == count,
            });
        }
    }

    fn add_answered(&mut self, message: u32, opcode: Opcode, psns: u32, reth: Option<Reth>) {
        self.add(Piece { psn: self.end, psns, opcode, reth, bytes: 0, message, asks: true });
    }

    fn add(&mut self, piece: Piece) {
        self.end += piece.psns;
        self.all.push(piece);
    }

    fn at(&self, psn: u32) -> &Piece {
        self.all.iter().find(|piece| psn < piece.psn + piece.psns).expect("one")
    }

    /// The READ or atomic operation at `psn`, if it is one.
    fn wanted(&self, psn: u32) -> Option<&Piece> {
        Some(self.at(psn)).filter(|piece| piece.wants_answer())
    }

    /// The MSN once all PSNs before `to` were executed.
    fn msn(&self, to: i32) -> u32 {
        let ends = |piece: &&Piece| piece.psns > 1 || piece.wants_answer() || piece.asks;
        self.all.iter().filter(|piece| (piece.psn as i32) < to).filter(ends).count() as u32
    }
}

/// A requester of one outgoing order: it goes back to the oldest PSN without an answer.
struct Requester {
    seed: u64,
    first: Psn,
    pieces: Pieces,
    /// By PSN: it has reached the responder once.
    came: Vec<bool>,
    una: u32,
    cursor: u32,
    frontier: u32,
    implied: Option<u32>,
    progress: Nanos,
    /// Results of atomic operations by PSN.
    originals: Vec<(u32, u64)>,
}

impl Requester {
    fn new(seed: u64, pair: &Pair, pieces: Pieces) -> Self {
        Self {
            seed,
            first: Psn::new(pair.settings.psn),
            came: vec![false; pieces.end as usize],
            pieces,
            una: 0,
            cursor: 0,
            frontier: 0,
            implied: None,
            progress: pair.now,
            originals: Vec::new(),
        }
    }

    fn is_done(&self) -> bool {
        self.una == self.pieces.end
    }

    fn frame(&self, pair: &Pair, piece: &Piece, skip: u32) -> Vec<u8> {
        let bth = Bth { psn: self.first.plus(piece.psn + skip), ack_request: piece.asks, ..bth(pair, piece.opcode) };
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
    }

    /// Sends the next piece, if the window and the agreed number of answers at a time allow it.
    fn send(&mut self, pair: &mut Pair, draws: &mut Draws, loss: u64) {
        if self.cursor >= self.pieces.end || self.cursor >= self.una + 24 {
            return;
        }
        let is_open =
            |piece: &&Piece| piece.psn + piece.psns > self.una && piece.psn < self.cursor && piece.wants_answer();
        let open = self.pieces.all.iter().filter(is_open).count();
        let piece = self.pieces.at(self.cursor).clone();
        if piece.wants_answer() && open >= 4 && self.cursor != self.una {
            return;
        }
        let bytes = self.frame(pair, &piece, self.cursor - piece.psn);
        let next = piece.psn + piece.psns;
        if !draws.chance(loss) {
            self.came[piece.psn as usize..next as usize].fill(true);
            pair.deliver(1, &bytes);
        }
        self.cursor = next;
        self.frontier = self.frontier.max(self.cursor);
    }

    /// Checks an answer against the rules of a responder, before which PSN `missing` never came.
    /// Returns the PSN up to which it answers, and whether it makes a requester go back.
    fn check(&mut self, pair: &Pair, packet: &Packet<'_>, missing: u32) -> (u32, bool) {
        let (seed, psn) = (self.seed, packet.bth.psn.distance_from(self.first));
        let said = psn as u32;
        match (packet.info.operation, packet.aeth.map(|aeth| aeth.syndrome)) {
            (Operation::Ack, Some(Syndrome::Ack { .. })) => {
                assert!(psn < missing as i32, "seed {seed}: acknowledges {psn}, {missing} never came");
                let msn = packet.aeth.expect("there").msn;
                assert_eq!(msn, self.pieces.msn(psn + 1), "seed {seed}: MSN of the ACK of {psn}");
                ((psn + 1) as u32, false)
            }
            (Operation::Ack, Some(Syndrome::Nak(NakCode::PsnSequence) | Syndrome::Rnr { .. })) => {
                assert!(said <= missing && said < self.frontier, "seed {seed}: NAK of {psn}");
                let msn = packet.aeth.expect("there").msn;
                assert_eq!(msn, self.pieces.msn(psn), "seed {seed}: MSN of the NAK of {psn}");
                (said, true)
            }
            (Operation::ReadResponse | Operation::AtomicAck, _) => {
                assert!(said < missing, "seed {seed}: answers a packet that did not come");
                self.check_response(pair, packet, said);
                (said, false)
            }
            other => panic!("seed {seed}: {other:?} of {psn}"),
        }
    }

    fn check_response(&mut self, pair: &Pair, packet: &Packet<'_>, said: u32) {
        let seed = self.seed;
        let piece = self.pieces.wanted(said).expect("a READ or an atomic operation");
        if let Some(aeth) = packet.aeth {
            assert_eq!(aeth.msn, piece.message, "seed {seed}");
        }
        if let Some(atomic) = packet.atomic_ack {
            let known = self.originals.iter().find(|(psn, _)| *psn == said);
            assert!(known.is_none_or(|(_, was)| *was == atomic.original), "seed {seed}: another result");
            self.originals.push((said, atomic.original));
        } else {
            let reth = piece.reth.expect("of a READ");
            let at = (reth.va - VA) as usize + (said - piece.psn) as usize * 1024;
            let bytes: Vec<u8> = packet.payload().flatten().copied().collect();
            assert!(bytes == pair.hosts[1].app.memory[at..at + bytes.len()], "seed {seed}");
            assert_eq!(packet.info.position.ends(), said + 1 == piece.psn + piece.psns, "seed {seed}");
        }
    }

    /// Advances by an answer up to `to`, or goes back.
    fn advance(&mut self, packet: &Packet<'_>, to: u32, goes_back: bool, now: Nanos) {
        let (said, before) = (packet.bth.psn.distance_from(self.first) as u32, self.una);
        let is_answer = packet.info.operation != Operation::Ack;
        while self.una < to && self.pieces.wanted(self.una).is_none() {
            self.una += 1;
        }
        if self.una < to {
            // An implied NAK.
            if self.implied != Some(self.una) {
                (self.implied, self.cursor) = (Some(self.una), self.una);
            }
        } else if is_answer && self.una == said {
            self.una += 1;
        } else if goes_back && self.una == said {
            self.cursor = self.una;
        }
        if self.una != before {
            (self.progress, self.implied) = (now, self.implied.filter(|psn| *psn >= self.una));
            self.cursor = self.cursor.max(self.una);
        }
    }

    /// Goes back to the oldest PSN without an answer, if it has waited for too long.
    fn on_time(&mut self, now: Nanos) {
        if now - self.progress > Nanos::from_millis(2) {
            (self.cursor, self.implied, self.progress) = (self.una, None, now);
        }
    }
}

/// Some time of our responder; its answers.
fn answers_of_responder(pair: &mut Pair, draws: &mut Draws) -> Vec<Vec<u8>> {
    let host = &mut pair.hosts[1];
    host.endpoint.on_timeout(pair.now, 16, &mut host.app);
    if draws.chance(40) {
        host.endpoint.poll_transmit(pair.now, 8, &mut host.app, &mut host.nic);
    }
    host.nic.frames.drain(..).collect()
}

/// An adapter goes back whenever it has to; our responder executes each request once, in order,
/// acknowledges nothing that did not come, counts messages, and answers READs and atomic operations
/// as they were.
#[test]
fn an_adapter_that_goes_back_is_served_as_the_rules_say() {
    let mut counts = [0; 5];
    for seed in 0..100_u64 {
        let mut pair = Pair::new(Settings { rd_atomic: 4, min_rnr_timer: 1, ..Settings::default() });
        let mut draws = Draws(seed * 31 + 7);
        let loss = [0, 3, 8, 15][(seed % 4) as usize];
        let pieces = Pieces::drawn(&mut draws);
        let (end, sends, atomics) = (pieces.end, pieces.sends, pieces.atomics);
        let mut requester = Requester::new(seed, &pair, pieces);
        let mut posted = 0_u64;
        for _ in 0..200_000 {
            if requester.is_done() {
                break;
            }
            if posted < sends && draws.chance(5) {
                pair.hosts[1].post_recv(posted, &[sge(0, 4096)]);
                posted += 1;
            }
            requester.send(&mut pair, &mut draws, loss);
            let answers = answers_of_responder(&mut pair, &mut draws);
            let missing = requester.came.iter().position(|came| !came).unwrap_or(requester.came.len()) as u32;
            for answer in answers {
                let parts: Vec<&[u8]> = answer.chunks(3840).collect();
                let packet = roced_transport::wire::parse(&parts).expect("parses");
                let lost = draws.chance(loss);
                let (to, goes_back) = requester.check(&pair, &packet, missing);
                if !lost {
                    requester.advance(&packet, to, goes_back, pair.now);
                }
            }
            pair.now = pair.now + Nanos::from_micros(3);
            requester.on_time(pair.now);
        }
        assert_eq!((requester.una, pair.hosts[1].state()), (end, "RTS"), "seed {seed}: {:?}", pair.hosts[1].drops());
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
