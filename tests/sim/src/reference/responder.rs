//! Execution of requests as the specification has it: one after the other, in PSN order (IBTA v1
//! 9.7.4).

use std::{collections::VecDeque, fmt};

use super::{
    memory::{Memory, Open},
    packet::Packet,
    wire,
};
use crate::frame::{Aeth, Kind};

/// A receive work request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Receive {
    pub(crate) wr_id: u64,
    pub(crate) at: u32,
    pub(crate) bytes: u32,
}

/// A completed receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrived {
    pub(crate) wr_id: u64,
    /// By a WRITE with immediate, not a SEND.
    pub(crate) by_write: bool,
    pub(crate) bytes: u32,
    pub(crate) imm: Option<[u8; 4]>,
    pub(crate) solicited: bool,
}

/// Something that execution does.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Bytes come to the sink.
    Write {
        at: u32,
        bytes: Vec<u8>,
    },
    /// A word of the sink changes at once.
    Atomic {
        at: u32,
        before: u64,
        after: u64,
    },
    Received(Arrived),
}

impl fmt::Debug for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Write { at, bytes } => write!(f, "{} bytes at {at}", bytes.len()),
            Self::Atomic { at, before, after } => write!(f, "a word at {at} from {before:#x} to {after:#x}"),
            Self::Received(arrived) => arrived.fmt(f),
        }
    }
}

/// How the execution of a request ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is done, and took so many PSNs.
    Done(u64),
    /// It needs a receive, and there is none.
    NotReady,
    /// It is refused with this NAK code.
    Refused(u8),
}

/// A message of which more is to come.
#[derive(Clone, Copy, Debug)]
enum Under {
    None,
    Send { received: u32 },
    Write { key: u32, va: u64, left: u32, length: u32 },
}

/// A READ or atomic operation that may be asked for again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kept {
    pub(crate) first: u64,
    pub(crate) end: u64,
    pub(crate) msn: u32,
    pub(crate) what: Answer,
}

/// The answer to a kept request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Answer {
    /// Bytes of a range.
    Read { key: u32, va: u64, length: u32 },
    /// The value that an atomic operation found.
    Atomic { found: u64 },
}

/// The executing side.
#[derive(Debug)]
pub(crate) struct Responder {
    mtu: u32,
    /// READs and atomic operations that it keeps.
    depth: usize,
    pub(crate) expected: u64,
    pub(crate) msn: u32,
    under: Under,
    pub(crate) receives: VecDeque<Receive>,
    pub(crate) kept: VecDeque<Kept>,
    /// From which PSN on the MSN is which.
    history: VecDeque<(u64, u32)>,
}

/// Counts of messages that are remembered, for ACKs of PSNs behind the last.
const HISTORY: usize = 4096;

/// NAK codes as an AETH has them.
const INVALID: Verdict = Verdict::Refused(0x61);
const ACCESS: Verdict = Verdict::Refused(0x62);

impl Responder {
    pub(crate) fn new(mtu: u32, depth: u32, expected: u64) -> Self {
        Self {
            mtu,
            depth: depth as usize,
            expected,
            msn: 0,
            under: Under::None,
            receives: VecDeque::new(),
            kept: VecDeque::new(),
            history: VecDeque::from([(0, 0)]),
        }
    }

    /// Executes the expected request. Nothing has changed unless it is done.
    pub(crate) fn execute(&mut self, packet: &Packet, memory: &mut Memory) -> (Verdict, Vec<Effect>) {
        let mut effects = Vec::new();
        let verdict = self.carry_out(packet, memory, &mut effects);
        if let Verdict::Done(psns) = verdict {
            for effect in &effects {
                match effect {
                    Effect::Write { at, bytes } => memory.sink[*at as usize..][..bytes.len()].copy_from_slice(bytes),
                    Effect::Atomic { at, after, .. } => {
                        memory.sink[*at as usize..][..8].copy_from_slice(&after.to_ne_bytes());
                    }
                    Effect::Received(_) => {}
                }
            }
            self.expected += psns;
        } else {
            effects.clear();
        }
        (verdict, effects)
    }

    /// The MSN of an answer to PSN `psn`.
    pub(crate) fn msn_at(&self, psn: u64) -> u32 {
        self.history.iter().rev().find(|(from, _)| *from <= psn).map_or(0, |(_, msn)| *msn)
    }

    /// The kept request with answers of this PSN.
    pub(crate) fn kept_at(&self, psn: u64) -> Option<&Kept> {
        self.kept.iter().find(|kept| (kept.first..kept.end).contains(&psn))
    }

    /// Response `psn` of a kept READ, as one of the responses from `from` to before `end`.
    pub(crate) fn response(&self, kept: &Kept, psn: u64, (from, end): (u64, u64), memory: &Memory) -> Option<Packet> {
        let Answer::Read { key, va, length } = kept.what else { return None };
        let skip = (psn - kept.first) as u32 * self.mtu;
        let bytes = (length - skip).min(self.mtu);
        let payload = if length == 0 {
            Vec::new()
        } else {
            memory.read(memory.open(key, va + u64::from(skip), bytes)?, bytes as usize).to_vec()
        };
        let opcode = match (psn == from, psn + 1 == end) {
            (true, true) => 0x10,
            (true, false) => 0x0d,
            (false, false) => 0x0e,
            (false, true) => 0x0f,
        };
        let aeth = (opcode != 0x0e).then_some(Aeth { syndrome: 0x1f, msn: kept.msn });
        Some(Packet { opcode, psn: wire(psn), aeth, payload, ..Packet::default() })
    }

    fn carry_out(&mut self, packet: &Packet, memory: &Memory, effects: &mut Vec<Effect>) -> Verdict {
        let (kind, begins, ends) = packet.kind();
        let fits = match self.under {
            Under::None => begins,
            Under::Send { .. } => kind == Kind::Send && !begins,
            Under::Write { .. } => kind == Kind::Write && !begins,
        };
        // FIRST and MIDDLE carry exactly the path MTU, LAST at least a byte (IBTA v1 9.7.4.1.6).
        let bytes = packet.payload.len() as u32;
        let length_fits = match (begins, ends) {
            (_, false) => bytes == self.mtu,
            (false, true) => (1..=self.mtu).contains(&bytes),
            (true, true) => bytes <= self.mtu,
        };
        if !fits || !length_fits {
            return INVALID;
        }
        match kind {
            Kind::Send => self.send(packet, ends, effects),
            Kind::Write => self.write(packet, ends, memory, effects),
            Kind::ReadRequest => self.read(packet, memory),
            Kind::Atomic => self.atomic(packet, memory, effects),
            _ => INVALID,
        }
    }

    fn send(&mut self, packet: &Packet, ends: bool, effects: &mut Vec<Effect>) -> Verdict {
        let Some(receive) = self.receives.front().copied() else { return Verdict::NotReady };
        let received = if let Under::Send { received } = self.under { received } else { 0 };
        let bytes = packet.payload.len() as u32;
        if received + bytes > receive.bytes {
            return INVALID;
        }
        if bytes > 0 {
            effects.push(Effect::Write { at: receive.at + received, bytes: packet.payload.clone() });
        }
        self.under = if ends { Under::None } else { Under::Send { received: received + bytes } };
        if ends {
            self.take_receive(false, received + bytes, packet, effects);
            self.count(self.expected);
        }
        Verdict::Done(1)
    }

    fn write(&mut self, packet: &Packet, ends: bool, memory: &Memory, effects: &mut Vec<Effect>) -> Verdict {
        let (key, va, left, length) = match (self.under, packet.reth) {
            (Under::Write { key, va, left, length }, _) => (key, va, left, length),
            (_, Some(reth)) => (reth.rkey, reth.va, reth.length, reth.length),
            _ => return INVALID,
        };
        let bytes = packet.payload.len() as u32;
        // A request of no bytes names no memory (IBTA v1 C9-88).
        if left > 0 && !matches!(memory.open(key, va, left), Some(Open::Sink(_))) {
            return ACCESS;
        }
        if (ends && bytes != left) || (!ends && bytes >= left) {
            return INVALID;
        }
        if packet.imm.is_some() && self.receives.is_empty() {
            return Verdict::NotReady;
        }
        if let (Some(Open::Sink(at)), true) = (memory.open(key, va, bytes), bytes > 0) {
            effects.push(Effect::Write { at: at as u32, bytes: packet.payload.clone() });
        }
        self.under = if ends {
            Under::None
        } else {
            Under::Write { key, va: va + u64::from(bytes), left: left - bytes, length }
        };
        if ends {
            if packet.imm.is_some() {
                self.take_receive(true, length, packet, effects);
            }
            self.count(self.expected);
        }
        Verdict::Done(1)
    }

    fn read(&mut self, packet: &Packet, memory: &Memory) -> Verdict {
        let Some(reth) = packet.reth else { return INVALID };
        if reth.length > 0 && memory.open(reth.rkey, reth.va, reth.length).is_none() {
            return ACCESS;
        }
        let psns = u64::from(reth.length.div_ceil(self.mtu).max(1));
        // IBTA v1 C9-148: a READ counts when it begins.
        self.count(self.expected);
        self.keep(psns, Answer::Read { key: reth.rkey, va: reth.va, length: reth.length });
        Verdict::Done(psns)
    }

    fn atomic(&mut self, packet: &Packet, memory: &Memory, effects: &mut Vec<Effect>) -> Verdict {
        let Some(atomic) = packet.atomic else { return INVALID };
        if atomic.va % 8 != 0 {
            return INVALID;
        }
        let Some(Open::Sink(at)) = memory.open(atomic.rkey, atomic.va, 8) else { return ACCESS };
        let before = memory.word(at);
        let after = match packet.opcode {
            0x14 => before.wrapping_add(atomic.swap_or_add),
            _ if before == atomic.compare => atomic.swap_or_add,
            _ => before,
        };
        effects.push(Effect::Atomic { at: at as u32, before, after });
        self.count(self.expected);
        self.keep(1, Answer::Atomic { found: before });
        Verdict::Done(1)
    }

    fn take_receive(&mut self, by_write: bool, bytes: u32, packet: &Packet, effects: &mut Vec<Effect>) {
        let receive = self.receives.pop_front().expect("looked at before");
        let (imm, solicited) = (packet.imm, packet.solicited);
        effects.push(Effect::Received(Arrived { wr_id: receive.wr_id, by_write, bytes, imm, solicited }));
    }

    /// A message is complete, from the answer to `psn` on.
    fn count(&mut self, psn: u64) {
        self.msn = (self.msn + 1) & 0x00ff_ffff;
        self.history.push_back((psn, self.msn));
        if self.history.len() > HISTORY {
            self.history.pop_front();
        }
    }

    fn keep(&mut self, psns: u64, what: Answer) {
        if self.kept.len() == self.depth {
            self.kept.pop_front();
        }
        self.kept.push_back(Kept { first: self.expected, end: self.expected + psns, msn: self.msn, what });
    }
}
