//! The sending side: packets sent, packets that the answers allow, completions.

use std::collections::{BTreeMap, VecDeque};

use roced_transport::io::WorkCompletion;
use roced_types::{CompletionOp, Status};

use super::{Settings, credits::Limit};
use crate::{
    frame::{Kind, Reth},
    reference::{Memory, Op, Packet, Posted, Work, unwrap},
    violation::{Checked, demand},
};

/// The model of the transport as requester. The PSN that it holds for acknowledged lies between two
/// PSNs: the lower one if it takes no answer before its turn, the upper one if it keeps them all.
#[derive(Debug)]
pub(crate) struct RequesterShadow {
    settings: Settings,
    /// Work from the oldest that is needed on.
    queue: VecDeque<Posted>,
    end: u64,
    posted: u64,
    frontier: u64,
    una_least: u64,
    una_most: u64,
    /// All before this is acknowledged, but for READs and atomic operations.
    acknowledged: u64,
    /// Answers of READs and atomic operations, by PSN.
    answers: BTreeMap<u64, Vec<Packet>>,
    /// Answers before this PSN are placed, and bytes of the one at it.
    placed: u64,
    placed_bytes: usize,
    /// READ and atomic requests that were sent: their ends.
    asked: VecDeque<u64>,
    /// The id of the next work request that may complete.
    complete: u64,
    /// A NAK that ends the queue pair: its PSN and code.
    fatal: Option<(u64, u8)>,
    failed: bool,
    limit: Limit,
}

impl RequesterShadow {
    pub(crate) fn new(settings: Settings) -> Self {
        let psn = settings.psns[0];
        Self {
            settings,
            queue: VecDeque::new(),
            end: psn,
            posted: 0,
            frontier: psn,
            una_least: psn,
            una_most: psn,
            acknowledged: psn,
            answers: BTreeMap::new(),
            placed: psn,
            placed_bytes: 0,
            asked: VecDeque::new(),
            complete: 0,
            fatal: None,
            failed: false,
            limit: Limit::new(),
        }
    }

    pub(crate) const fn is_over(&self) -> bool {
        self.failed || self.fatal.is_some()
    }

    pub(crate) fn post(&mut self, work: Work) {
        let first = self.end;
        self.end += work.psns(self.settings.mtu);
        self.posted += 1;
        self.queue.push_back(Posted { work, first, end: self.end, ssn: self.posted });
    }

    /// The PSN that it may hold for the oldest unacknowledged one.
    pub(crate) const fn una(&self) -> u64 {
        self.una_most
    }

    fn at(&self, psn: u64) -> Option<&Posted> {
        self.queue.iter().find(|posted| (posted.first..posted.end).contains(&psn))
    }

    /// An answer is about to be given to the transport.
    pub(crate) fn on_answer(&mut self, packet: Packet) {
        let psn = unwrap(packet.psn, self.una_most);
        if psn < self.frontier {
            self.limit.on_answer(&packet, self.settings.credits && psn + 1 >= self.una_most);
        }
        if psn < self.una_least || psn >= self.frontier {
            return;
        }
        let is_result = packet.kind().0 != Kind::Ack;
        let syndrome = packet.aeth.map_or(0, |aeth| aeth.syndrome);
        let is_ack = !is_result && syndrome < 0x20;
        let to = if is_ack { psn + 1 } else { psn };
        if !is_result && syndrome > 0x60 {
            self.fatal.get_or_insert((psn, syndrome));
        }
        self.acknowledged = self.acknowledged.max(to);
        // The least: messages without answers of their own, up to the first READ or atomic
        // operation, and answers that come in their turn.
        self.una_least = self.walk(self.una_least, |psn, answered| !answered && psn < to);
        if is_result {
            if psn == self.una_least && self.at(psn).is_some_and(|posted| posted.work.op.is_answered()) {
                self.una_least = psn + 1;
            }
            let list = self.answers.entry(psn).or_default();
            if !list.contains(&packet) {
                list.push(packet);
            }
        }
        let (acknowledged, answers) = (self.acknowledged, &self.answers);
        let keeps = self.settings.keeps[1];
        let least = self.una_least;
        self.una_most = self.walk(self.una_most.max(least), |psn, answered| {
            if answered { keeps && answers.contains_key(&psn) } else { psn < if keeps { acknowledged } else { least } }
        });
    }

    /// From `psn` on, the first PSN that is not acknowledged by that rule.
    fn walk(&self, mut psn: u64, is_acknowledged: impl Fn(u64, bool) -> bool) -> u64 {
        while let Some(posted) = self.at(psn) {
            if !is_acknowledged(psn, posted.work.op.is_answered()) {
                break;
            }
            psn += 1;
        }
        psn
    }

    /// Bytes of an answer come to the sink.
    pub(crate) fn check_placed(&mut self, at: u32, bytes: &[u8]) -> Checked {
        let next = self.next_placed();
        let Some((psn, place, length)) = next.filter(|(psn, ..)| *psn < self.una_most) else {
            demand!(false, "lockstep", "{} bytes at {at} of an answer that is not here: {next:?}", bytes.len());
            return Ok(());
        };
        let from = self.placed_bytes;
        let holds = |packet: &Packet| match packet.original {
            Some(found) => found.to_ne_bytes()[from..].starts_with(bytes),
            None => packet.payload.get(from..).is_some_and(|rest| rest.starts_with(bytes)),
        };
        demand!(
            at == place + from as u32 && self.answers.get(&psn).is_some_and(|packets| packets.iter().any(holds)),
            "lockstep",
            "{} bytes at {at}, which are not those of the answer of PSN {} for {place}",
            bytes.len(),
            psn & 0xff_ffff
        );
        self.placed_bytes += bytes.len();
        if self.placed_bytes == length {
            (self.placed, self.placed_bytes) = (psn + 1, 0);
        }
        Ok(())
    }

    /// The PSN of the next answer with bytes, where they go, and how many they are.
    fn next_placed(&self) -> Option<(u64, u32, usize)> {
        let posted = self
            .queue
            .iter()
            .find(|posted| posted.end > self.placed && posted.work.op.is_answered() && posted.work.length > 0)?;
        let psn = self.placed.max(posted.first);
        let skip = (psn - posted.first) as u32 * self.settings.mtu;
        let length = (posted.work.length - skip).min(self.settings.mtu);
        Some((psn, posted.work.local + skip, length as usize))
    }

    pub(crate) fn check_completion(&mut self, cqe: &WorkCompletion) -> Checked {
        let found = self.queue.iter().position(|posted| posted.work.id == cqe.wr_id);
        let Some(posted) = found.map(|at| self.queue[at].clone()).filter(|_| cqe.wr_id >= self.complete) else {
            demand!(false, "lockstep", "request {} completes again, or was never posted", cqe.wr_id);
            return Ok(());
        };
        let skipped = self.queue.iter().find(|before| {
            (self.complete..cqe.wr_id).contains(&before.work.id) && (before.work.signaled || self.failed)
        });
        demand!(skipped.is_none(), "lockstep", "request {} completes before {skipped:?}", cqe.wr_id);
        self.complete = cqe.wr_id + 1;
        match cqe.status {
            Status::Success => self.check_success(cqe, &posted)?,
            status => self.check_failure(status, &posted)?,
        }
        self.forget();
        Ok(())
    }

    fn check_success(&self, cqe: &WorkCompletion, posted: &Posted) -> Checked {
        let unplaced = self.next_placed().filter(|(psn, ..)| *psn < posted.end);
        demand!(
            !self.failed && posted.work.signaled && posted.end <= self.una_most && unplaced.is_none(),
            "lockstep",
            "request {} succeeds; its last PSN is {}, acknowledged up to {}, to be placed {unplaced:?}",
            cqe.wr_id,
            (posted.end - 1) & 0xff_ffff,
            self.una_most & 0xff_ffff
        );
        let (op, bytes) = match posted.work.op {
            Op::Send => (CompletionOp::Send, 0),
            Op::Write => (CompletionOp::Write, 0),
            Op::Read => (CompletionOp::Read, posted.work.length),
            Op::CompareSwap => (CompletionOp::CompareSwap, 8),
            Op::FetchAdd => (CompletionOp::FetchAdd, 8),
            Op::Reserved(_) => unreachable!("only the peer's application asks for it"),
        };
        demand!(
            (cqe.op, cqe.byte_len) == (op, bytes),
            "lockstep",
            "request {} completes as {:?} with {} bytes: {posted:?}",
            cqe.wr_id,
            cqe.op,
            cqe.byte_len
        );
        Ok(())
    }

    fn check_failure(&mut self, status: Status, posted: &Posted) -> Checked {
        let refused =
            |code: u8| self.fatal.is_some_and(|(psn, nak)| nak == code && posted.end > psn && posted.first <= psn);
        let plausible = match status {
            Status::WorkRequestFlushed => true,
            Status::RemoteInvalidRequest => refused(0x61),
            Status::RemoteAccess => refused(0x62),
            Status::RemoteOperation => refused(0x63),
            // Whether there was a reason is looked at where the network is known.
            Status::TransportRetryExceeded => true,
            _ => false,
        };
        demand!(plausible, "lockstep", "request {} ends with {status:?}, NAK {:x?}", posted.work.id, self.fatal);
        self.failed = true;
        Ok(())
    }

    /// All that must have happened has.
    pub(crate) fn check_progress(&mut self) -> Checked {
        let late = self
            .queue
            .iter()
            .find(|posted| posted.work.id >= self.complete && posted.work.signaled && posted.end <= self.una_least);
        demand!(late.is_none(), "lockstep", "acknowledged and not complete: {late:?}");
        let unplaced = self.next_placed().filter(|(psn, ..)| *psn < self.una_least);
        demand!(unplaced.is_none(), "lockstep", "answered and not placed: {unplaced:?}");
        self.forget();
        Ok(())
    }

    /// Entries without any further rule are dropped.
    fn forget(&mut self) {
        let unplaced = self.next_placed().map_or(u64::MAX, |(psn, ..)| psn);
        while let Some(front) = self.queue.front() {
            let waits = front.work.signaled && front.work.id >= self.complete;
            if waits || front.end > self.una_least || front.end > unplaced {
                break;
            }
            self.queue.pop_front();
        }
        let from = self.queue.front().map_or(self.end, |front| front.first);
        self.answers = self.answers.split_off(&from);
    }

    /// A request leaves the transport.
    pub(crate) fn check_request(&mut self, packet: &Packet, memory: &Memory) -> Checked {
        let psn = unwrap(packet.psn, self.frontier);
        if self.is_ping(packet, psn) {
            return Ok(());
        }
        demand!(psn <= self.frontier, "lockstep", "PSN {} is sent before {}", packet.psn, self.frontier & 0xff_ffff);
        demand!(psn >= self.una_least, "lockstep", "PSN {} was acknowledged and is sent again", packet.psn);
        let Some(posted) = self.at(psn) else {
            demand!(false, "lockstep", "PSN {} is of nothing that was posted", packet.psn);
            return Ok(());
        };
        let read = packet.reth.filter(|_| posted.work.op == Op::Read);
        let psns = read.map_or(1, |reth| u64::from(reth.length.div_ceil(self.settings.mtu).max(1)));
        let wanted = posted.packet(psn, psns, self.settings.mtu, memory.source());
        let sent = Packet { ack_request: false, mig_req: false, dest_qpn: 0, ..packet.clone() };
        // Nothing compares with the operand that a FETCH_ADD leaves unused.
        let wanted = match (wanted.atomic, sent.atomic) {
            (Some(atomic), Some(other)) if posted.work.op == Op::FetchAdd => {
                Packet { atomic: Some(crate::frame::AtomicEth { compare: other.compare, ..atomic }), ..wanted }
            }
            _ => wanted,
        };
        demand!(sent == wanted, "lockstep", "PSN {} is sent as {sent:02x?}, it is {wanted:02x?}", packet.psn);
        let posted = posted.clone();
        let (answered, fenced, begins) = (posted.work.op.is_answered(), posted.work.fenced, psn == posted.first);
        let end = psn + psns;
        if end <= self.frontier {
            return Ok(());
        }
        // Of READ responses a window may be held besides.
        let held = if posted.work.op == Op::Read { self.settings.window } else { 0 };
        demand!(
            end <= self.una_most + self.settings.window + held,
            "lockstep",
            "PSN {} is sent {} behind the oldest, the window is {}",
            packet.psn,
            end - self.una_most,
            self.settings.window
        );
        while self.asked.front().is_some_and(|end| *end <= self.una_most) {
            self.asked.pop_front();
        }
        let asked = self.asked.len() as u32;
        demand!(
            !(answered && asked >= self.settings.rd_atomic || fenced && begins && asked > 0),
            "lockstep",
            "PSN {} is sent with {asked} READs and atomic operations under way (fenced: {fenced})",
            packet.psn
        );
        self.limit.check(packet, psn, &posted, self.una_most)?;
        if answered {
            self.asked.push_back(end);
        }
        self.frontier = end;
        Ok(())
    }

    /// A request that names no memory, one before the oldest: it asks for an ACK, and nothing else
    /// comes of it.
    fn is_ping(&self, packet: &Packet, psn: u64) -> bool {
        let names_none = match packet.opcode {
            0x04 => true,
            0x0a => packet.reth == Some(Reth { va: 0, rkey: 0, length: 0 }),
            _ => false,
        };
        names_none
            && packet.ack_request
            && packet.payload.is_empty()
            && (self.una_least..=self.una_most).contains(&(psn + 1))
    }
}
