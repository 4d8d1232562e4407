//! Applications of one direction: work that one host posts, and the effects that it and the other
//! must see.

use std::collections::VecDeque;

use super::host::{LANDING_AT, RECV_AT, RECV_BYTES, RECV_SLOTS, RESULTS, RESULTS_AT, RING_BYTES, WORDS, WORDS_AT};
use crate::{
    layout::{NO_KEY, SINK_KEY, SINK_VA, SOURCE_KEY, SOURCE_VA},
    model::RECEIVE_ID,
    pattern::{SOURCE_BYTES, sea},
    random::Random,
    reference::{Arrived, Memory, Op, Receive, Status, Work},
    violation::{Checked, demand},
};

/// Where the bytes are that a READ must bring: in the sea.
#[derive(Clone, Copy, Debug)]
enum Proof {
    Nothing,
    /// Bytes of the sea are in the other host's sink.
    There {
        at: u32,
        sea: usize,
        length: u32,
    },
    /// Bytes of the sea are in our own sink.
    Here {
        at: u32,
        sea: usize,
        length: u32,
    },
    /// That value is in our own sink.
    Found {
        at: u32,
        value: u64,
    },
}

/// A work request that is not known to be complete.
#[derive(Clone, Debug)]
struct Pending {
    id: u64,
    signaled: bool,
    takes_receive: bool,
    proof: Proof,
}

/// A receive of the other host that a work request of ours takes.
#[derive(Clone, Copy, Debug)]
struct Taker {
    by_write: bool,
    bytes: u32,
    imm: Option<[u8; 4]>,
    solicited: bool,
    sea: usize,
}

/// Work from one host to the other.
#[derive(Debug)]
pub(crate) struct Application {
    host: usize,
    mtu: u32,
    depth: usize,
    /// Longest WRITE or READ.
    longest: u32,
    /// Work that is still to be posted, and not before this moment.
    quota: u32,
    pub(crate) think_until: u64,
    next_id: u64,
    pending: VecDeque<Pending>,
    takers: VecDeque<Taker>,
    /// Receives of the other host that were taken.
    taken: u64,
    write_at: u32,
    read_at: u32,
    results: u32,
    /// Words of the other host when all that was posted is executed.
    words: [u64; WORDS as usize],
    /// The last WRITE: where it lands, where its bytes are from.
    written: Option<(u32, usize, u32)>,
    pub(crate) failed: Option<Status>,
    /// The last work request must be refused, with that.
    pub(crate) refusal: Option<(u64, Status)>,
}

impl Application {
    pub(crate) fn new(host: usize, mtu: u32, random: &mut Random) -> Self {
        let depth = random.pick(&[1, 3, 6]);
        Self {
            host,
            mtu,
            depth,
            longest: if depth > 3 { 12 << 10 } else { 24 << 10 },
            quota: random.within(20, 70) as u32,
            think_until: 0,
            next_id: 0,
            pending: VecDeque::new(),
            takers: VecDeque::new(),
            taken: 0,
            write_at: 0,
            read_at: 0,
            results: 0,
            words: [0; WORDS as usize],
            written: None,
            failed: None,
            refusal: None,
        }
    }

    /// Nothing is under way, and nothing will be.
    pub(crate) fn is_drained(&self) -> bool {
        self.failed.is_some() || (self.quota == 0 && self.pending.is_empty())
    }

    /// The next work request, if there is to be one now.
    pub(crate) fn next(&mut self, now: u64, random: &mut Random) -> Option<Work> {
        let has_room = self.quota > 0 && self.pending.len() < self.depth;
        if !has_room || self.think_until > now || self.failed.is_some() {
            return None;
        }
        self.quota -= 1;
        // Now and then a posted request stays alone for a while.
        if random.one_in(8) {
            self.think_until = now + random.pick(&[5_000, 100_000, 1_000_000]);
        }
        let must_signal = self.quota == 0 || self.pending.len() + 1 >= self.depth;
        let signaled = must_signal || random.one_in(2);
        let fenced = random.one_in(16);
        Some(match random.below(10) {
            0..=2 => self.send(random, signaled, fenced),
            3..=5 => self.write(random, signaled, fenced),
            6 | 7 => self.read(random, signaled, fenced),
            _ => self.atomic(random, signaled, fenced),
        })
    }

    /// Work that ends in a refusal, behind a READ and an atomic operation that must be answered all
    /// the same.
    pub(crate) fn refused(&mut self, random: &mut Random) -> Vec<Work> {
        let first = self.atomic(random, true, false);
        let second = self.read(random, true, false);
        // The transport never sends opcodes outside the specification; other makes do.
        if self.host == 1 && random.one_in(3) {
            return vec![first, second, self.reserved(random)];
        }
        let good = match random.below(3) {
            0 => self.write(random, true, false),
            1 => self.read(random, true, false),
            _ => self.atomic(random, true, false),
        };
        // The others have no length, so that no key is looked at (IBTA v1 C9-88).
        let length = if good.op.is_atomic() { 8 } else { good.length.max(1) };
        let bad = Work { rkey: NO_KEY, imm: None, length, ..good };
        let last = self.pending.back_mut().expect("just posted");
        (last.proof, last.takes_receive) = (Proof::Nothing, false);
        if good.imm.is_some() {
            self.takers.pop_back();
        }
        self.refusal = Some((bad.id, Status::RemoteAccess));
        vec![first, second, bad]
    }

    /// A request of an opcode without a meaning, which no responder can execute.
    fn reserved(&mut self, random: &mut Random) -> Work {
        let op = Op::Reserved(random.pick(&[0x15, 0x18, 0x19, 0x1a, 0x1b, 0x1e, 0x1f]));
        let length = random.pick(&[0, 28, 44]);
        let (local, _) = self.source(random, length);
        let bad = Work { local, length, ..self.base(op, true, false) };
        self.keep(&bad, Proof::Nothing);
        self.refusal = Some((bad.id, Status::RemoteInvalid));
        bad
    }

    fn length(&self, random: &mut Random, longest: u32) -> u32 {
        let mtu = u64::from(self.mtu);
        let length = match random.below(8) {
            0 => random.below(4),
            1 | 2 => mtu * random.within(1, 4),
            3..=5 => random.below(u64::from(longest)),
            _ => random.below(6 * mtu),
        };
        (length as u32).min(longest)
    }

    fn base(&mut self, op: Op, signaled: bool, fenced: bool) -> Work {
        let id = self.next_id;
        self.next_id += 1;
        Work {
            id,
            op,
            imm: None,
            solicited: false,
            signaled,
            fenced,
            local: 0,
            length: 0,
            remote_va: 0,
            rkey: 0,
            swap_or_add: 0,
            compare: 0,
        }
    }

    fn keep(&mut self, work: &Work, proof: Proof) {
        let takes_receive = work.takes_receive();
        self.pending.push_back(Pending { id: work.id, signaled: work.signaled, takes_receive, proof });
    }

    /// A piece of our source, and where in the sea it is.
    fn source(&self, random: &mut Random, length: u32) -> (u32, usize) {
        let local = random.below((SOURCE_BYTES as u32 - length).into()) as u32;
        (local, self.host * SOURCE_BYTES + local as usize)
    }

    fn send(&mut self, random: &mut Random, signaled: bool, fenced: bool) -> Work {
        let length = self.length(random, RECV_BYTES);
        let (local, sea) = self.source(random, length);
        let imm = random.one_in(3).then(|| (random.next() as u32).to_be_bytes());
        let solicited = random.one_in(4);
        let work = Work { imm, solicited, local, length, ..self.base(Op::Send, signaled, fenced) };
        self.takers.push_back(Taker { by_write: false, bytes: length, imm, solicited, sea });
        self.keep(&work, Proof::Nothing);
        work
    }

    fn write(&mut self, random: &mut Random, signaled: bool, fenced: bool) -> Work {
        let length = self.length(random, self.longest);
        let (local, sea) = self.source(random, length);
        let imm = random.one_in(3).then(|| (random.next() as u32).to_be_bytes());
        let at = take(&mut self.write_at, length);
        let remote_va = SINK_VA + u64::from(at);
        let work = Work { imm, local, length, remote_va, rkey: SINK_KEY, ..self.base(Op::Write, signaled, fenced) };
        if imm.is_some() {
            self.takers.push_back(Taker { by_write: true, bytes: length, imm, solicited: false, sea });
        }
        self.written = Some((at, sea, length));
        self.keep(&work, Proof::There { at, sea, length });
        work
    }

    fn read(&mut self, random: &mut Random, signaled: bool, fenced: bool) -> Work {
        // The data just written is read back; a later WRITE does not come there for a while.
        let back = self.written.take().filter(|_| random.one_in(2));
        let (remote_va, rkey, sea, length) = match back {
            Some((at, sea, length)) => (SINK_VA + u64::from(at), SINK_KEY, sea, length),
            None => {
                let length = self.length(random, self.longest);
                let at = random.below((SOURCE_BYTES as u32 - length).into());
                (SOURCE_VA + at, SOURCE_KEY, (1 - self.host) * SOURCE_BYTES + at as usize, length)
            }
        };
        let at = take(&mut self.read_at, length);
        let work = Work { local: LANDING_AT + at, length, remote_va, rkey, ..self.base(Op::Read, signaled, fenced) };
        self.keep(&work, Proof::Here { at: LANDING_AT + at, sea, length });
        work
    }

    fn atomic(&mut self, random: &mut Random, signaled: bool, fenced: bool) -> Work {
        let word = random.below(WORDS.into()) as u32;
        let found = self.words[word as usize];
        let op = if random.one_in(2) { Op::FetchAdd } else { Op::CompareSwap };
        let compare = if random.one_in(3) { random.next() } else { found };
        let swap_or_add = random.next();
        let local = RESULTS_AT + self.results % RESULTS * 8;
        self.results += 1;
        let work = Work {
            local,
            length: 8,
            remote_va: SINK_VA + u64::from(WORDS_AT + 8 * word),
            rkey: SINK_KEY,
            swap_or_add,
            compare,
            ..self.base(op, signaled, fenced)
        };
        self.words[word as usize] = match op {
            Op::FetchAdd => found.wrapping_add(swap_or_add),
            _ if compare == found => swap_or_add,
            _ => found,
        };
        self.keep(&work, Proof::Found { at: local, value: found });
        work
    }

    /// A receive of the other host, number `index` of all.
    pub(crate) const fn receive(index: u64) -> Receive {
        let at = RECV_AT + (index as u32 % RECV_SLOTS) * RECV_BYTES;
        Receive { wr_id: RECEIVE_ID + index, at, bytes: RECV_BYTES }
    }

    /// A receive of the other host, the owner of `memory`, completes.
    pub(crate) fn check_arrived(&mut self, arrived: &Arrived, memory: &Memory) -> Checked {
        let index = self.taken;
        self.taken += 1;
        let Some(taker) = self.takers.pop_front() else {
            demand!(false, "peer-data", "host {}: nothing was sent for {arrived:?}", 1 - self.host);
            return Ok(());
        };
        let Taker { by_write, bytes, imm, solicited, .. } = taker;
        let receive = Self::receive(index);
        let wanted = Arrived { wr_id: receive.wr_id, by_write, bytes, imm, solicited };
        demand!(*arrived == wanted, "peer-data", "host {}: {arrived:?} instead of {wanted:?}", 1 - self.host);
        let holds = by_write || is_there(memory, receive.at, taker.sea, bytes);
        demand!(holds, "peer-data", "host {}: {arrived:?} has other bytes than were sent", 1 - self.host);
        Ok(())
    }

    /// A completion of ours; `memories` are those of both hosts.
    pub(crate) fn check_done(&mut self, id: u64, status: Status, memories: [&Memory; 2]) -> Checked {
        while let Some(pending) = self.pending.pop_front() {
            let last = pending.id == id;
            demand!(
                last || (pending.id < id && !pending.signaled && self.failed.is_none()),
                "peer-completion",
                "host {}: work {id} completes with {status:?} before {pending:?}",
                self.host
            );
            if last && status != Status::Success {
                self.failed.get_or_insert(status);
                return Ok(());
            }
            self.check_proof(&pending, memories)?;
            if last {
                demand!(
                    pending.signaled && self.refusal.is_none_or(|(refused, _)| refused != id),
                    "peer-completion",
                    "host {}: {pending:?} succeeds",
                    self.host
                );
                return Ok(());
            }
        }
        demand!(false, "peer-completion", "host {}: work {id} completes and is not under way", self.host);
        Ok(())
    }

    fn check_proof(&self, pending: &Pending, memories: [&Memory; 2]) -> Checked {
        let (own, other) = (memories[self.host], memories[1 - self.host]);
        let holds = match pending.proof {
            Proof::Nothing => true,
            Proof::There { at, sea, length } => is_there(other, at, sea, length),
            Proof::Here { at, sea, length } => is_there(own, at, sea, length),
            Proof::Found { at, value } => own.word(at as usize) == value,
        };
        demand!(holds, "peer-data", "host {}: {pending:?} is complete, and its bytes are others", self.host);
        let waiting = self.pending.iter().filter(|pending| pending.takes_receive).count();
        demand!(
            !pending.takes_receive || self.takers.len() <= waiting,
            "peer-completion",
            "host {}: {pending:?} is complete, and its receive is not",
            self.host
        );
        Ok(())
    }

    /// For a person.
    pub(crate) fn waiting(&self) -> String {
        format!("host {}: {} to post, under way {:?}", self.host, self.quota, self.pending.front())
    }
}

fn is_there(memory: &Memory, at: u32, from: usize, length: u32) -> bool {
    memory.sink[at as usize..][..length as usize] == sea()[from..][..length as usize]
}

/// Room in a ring, in one piece.
fn take(at: &mut u32, length: u32) -> u32 {
    if *at + length > RING_BYTES {
        *at = 0;
    }
    let place = *at;
    *at += length;
    place
}
