//! Sending of requests as the specification has it (IBTA v1 9.7.5): a window, go-back-N, a timer
//! and a count of tries.

use std::collections::VecDeque;

use super::{
    make::{Make, Restart},
    memory::Memory,
    packet::Packet,
    rnr_time, unwrap,
    work::{Op, Posted, Work},
};
use crate::frame::Kind;

/// How a work request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Success,
    Flushed,
    RemoteInvalid,
    RemoteAccess,
    RemoteOperation,
    RetryExceeded,
    BadResponse,
}

/// A completed work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Done {
    pub(crate) id: u64,
    pub(crate) signaled: bool,
    pub(crate) status: Status,
}

/// Creation attributes of a requester.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) mtu: u32,
    /// The ACK timer, in nanoseconds.
    pub(crate) timeout: u64,
    pub(crate) retry_cnt: u32,
    pub(crate) rd_atomic: usize,
    pub(crate) dest_qpn: u32,
}

/// The sending side.
#[derive(Debug)]
pub(crate) struct Requester {
    make: Make,
    terms: Terms,
    /// Work that is not complete.
    queue: VecDeque<Posted>,
    /// Behind all that was posted.
    end: u64,
    posted: u64,
    /// Sent next; behind all that was sent; the oldest unacknowledged.
    next: u64,
    frontier: u64,
    pub(crate) una: u64,
    retries_left: u32,
    timer: u64,
    rnr_until: u64,
    /// The only packet that may be sent until it is acknowledged.
    one: Option<u64>,
    /// A gap in the answers was acted upon, at this PSN.
    gap_at: Option<u64>,
    /// The SSN of the last message that a credit was given for.
    limit: Option<u64>,
    since_asked: u64,
    pub(crate) done: Vec<Done>,
    pub(crate) failed: bool,
}

const NEVER: u64 = u64::MAX;

impl Requester {
    pub(crate) fn new(make: Make, terms: Terms, psn: u64) -> Self {
        Self {
            make,
            terms,
            queue: VecDeque::new(),
            end: psn,
            posted: 0,
            next: psn,
            frontier: psn,
            una: psn,
            retries_left: terms.retry_cnt,
            timer: NEVER,
            rnr_until: 0,
            one: None,
            gap_at: None,
            limit: None,
            since_asked: 0,
            done: Vec::new(),
            failed: false,
        }
    }

    pub(crate) fn post(&mut self, work: Work) {
        if self.failed {
            self.done.push(Done { id: work.id, signaled: work.signaled, status: Status::Flushed });
            return;
        }
        let first = self.end;
        self.end += work.psns(self.terms.mtu);
        self.posted += 1;
        self.queue.push_back(Posted { work, first, end: self.end, ssn: self.posted });
    }

    /// When it wants to be called by [`Self::on_timeout`], or asked for packets.
    pub(crate) fn poll_timeout(&self, now: u64) -> u64 {
        let rnr = if self.rnr_until > now { self.rnr_until } else { NEVER };
        self.timer.min(rnr)
    }

    pub(crate) fn on_timeout(&mut self, now: u64) {
        if self.timer > now {
            return;
        }
        self.timer = NEVER;
        if self.una >= self.frontier {
            return;
        }
        if self.retries_left == 0 {
            self.fail(Status::RetryExceeded);
            return;
        }
        self.retries_left -= 1;
        self.gap_at = None;
        self.go_back(self.make.restart != Restart::All);
    }

    /// The answer of the peer.
    pub(crate) fn on_answer(&mut self, packet: &Packet, memory: &mut Memory, now: u64) {
        let psn = unwrap(packet.psn, self.una);
        if psn < self.una || psn >= self.frontier || self.failed {
            return;
        }
        let syndrome = packet.aeth.map_or(0, |aeth| aeth.syndrome);
        match packet.kind().0 {
            Kind::Ack => match syndrome {
                0..0x20 => {
                    self.advance(psn + 1, now);
                    let msn = packet.aeth.map_or(0, |aeth| aeth.msn);
                    let msn = unwrap(msn, (1 << 32) + self.posted) - (1 << 32);
                    self.limit = super::credits(syndrome).map(|credits| msn + credits);
                }
                0x20..0x40 => {
                    if self.advance(psn, now) {
                        self.rnr_until = now + rnr_time(syndrome);
                        (self.next, self.timer) = (self.una, NEVER);
                    }
                }
                0x60 => {
                    if self.advance(psn, now) {
                        self.go_back(self.make.restart == Restart::One);
                        self.timer = now + self.terms.timeout;
                    }
                }
                _ => {
                    self.advance(psn, now);
                    self.fail(match syndrome {
                        0x61 => Status::RemoteInvalid,
                        0x62 => Status::RemoteAccess,
                        _ => Status::RemoteOperation,
                    });
                }
            },
            Kind::ReadResponse | Kind::AtomicAck => self.on_result(packet, psn, memory, now),
            _ => {}
        }
    }

    fn on_result(&mut self, packet: &Packet, psn: u64, memory: &mut Memory, now: u64) {
        // It acknowledges all before it.
        if !self.advance(psn, now) {
            return;
        }
        let Some(head) = self.queue.front().cloned() else { return };
        let skip = (psn - head.first) as u32 * self.terms.mtu;
        let at = (head.work.local + skip) as usize;
        match (packet.kind().0, head.work.op) {
            (Kind::ReadResponse, Op::Read) => {
                let bytes = head.work.length.saturating_sub(skip).min(self.terms.mtu) as usize;
                if packet.payload.len() != bytes {
                    self.fail(Status::BadResponse);
                    return;
                }
                memory.sink[at..at + bytes].copy_from_slice(&packet.payload);
            }
            (Kind::AtomicAck, op) if op.is_atomic() => {
                let found = packet.original.unwrap_or_default();
                memory.sink[at..at + 8].copy_from_slice(&found.to_ne_bytes());
            }
            _ => {
                self.fail(Status::BadResponse);
                return;
            }
        }
        self.una = psn + 1;
        if self.una == head.end {
            self.complete_head();
        }
        self.on_progress(now);
    }

    /// All before `to` is acknowledged, but for messages with answers of their own. False when such
    /// an answer is missing.
    fn advance(&mut self, to: u64, now: u64) -> bool {
        let before = self.una;
        let mut whole = true;
        while self.una < to {
            let Some(head) = self.queue.front() else { break };
            if head.work.op.is_answered() {
                whole = false;
                break;
            }
            let is_sent_again = self.next < head.end && self.frontier >= head.end;
            if self.make.needs_ack_of_end && to >= head.end && is_sent_again {
                // Linux rxe: no end of a message that is on its way once more.
                break;
            }
            self.una = to.min(head.end);
            if self.una == head.end {
                self.complete_head();
            }
        }
        if self.una != before {
            self.on_progress(now);
        }
        if !whole && self.gap_at != Some(self.una) {
            // An implied NAK (IBTA v1 9.7.5.1.4): asked for again once.
            self.gap_at = Some(self.una);
            self.go_back(self.make.restart == Restart::One);
            self.timer = now + self.terms.timeout;
        }
        whole
    }

    fn complete_head(&mut self) {
        if let Some(Posted { work, .. }) = self.queue.pop_front() {
            self.done.push(Done { id: work.id, signaled: work.signaled, status: Status::Success });
        }
    }

    fn on_progress(&mut self, now: u64) {
        self.retries_left = self.terms.retry_cnt;
        self.next = self.next.max(self.una);
        self.one = self.one.filter(|one| *one >= self.una);
        self.timer = if self.una < self.frontier { now + self.terms.timeout } else { NEVER };
    }

    fn go_back(&mut self, one: bool) {
        self.next = self.una;
        self.one = one.then_some(self.una);
        let head = self.queue.front();
        if let Some(head) = head.filter(|head| self.make.reads_from_start && head.work.op == Op::Read) {
            self.next = head.first.max(self.una.saturating_sub(self.make.window));
            if self.next != head.first {
                self.next = self.una;
            }
        }
    }

    /// The packets that it sends now.
    pub(crate) fn transmit(&mut self, memory: &Memory, now: u64) -> Vec<Packet> {
        let mut packets = Vec::new();
        while let Some((packet, psns)) = self.next_packet(memory, now) {
            self.next += psns;
            self.frontier = self.frontier.max(self.next);
            if self.timer == NEVER {
                self.timer = now + self.terms.timeout;
            }
            packets.push(packet);
        }
        packets
    }

    fn next_packet(&mut self, memory: &Memory, now: u64) -> Option<(Packet, u64)> {
        if self.failed || self.rnr_until > now || self.next >= self.end {
            return None;
        }
        if self.one.is_some_and(|one| self.next > one) {
            return None;
        }
        let at = self.queue.iter().position(|posted| self.next < posted.end)?;
        let posted = &self.queue[at];
        let psns = if posted.work.op == Op::Read { posted.end - self.next } else { 1 };
        if !self.has_room(at, psns) {
            return None;
        }
        let mut packet = posted.packet(self.next, psns, self.terms.mtu, memory.source());
        let after = self.next + psns;
        self.since_asked += 1;
        let stops = after >= self.end || !self.has_room_behind(after) || self.one == Some(self.next);
        let asks = after == posted.end || self.since_asked >= self.make.asks_each || stops || self.is_limited(posted);
        if asks {
            self.since_asked = 0;
        }
        (packet.ack_request, packet.mig_req, packet.dest_qpn) = (asks, self.make.mig_req, self.terms.dest_qpn);
        Some((packet, psns))
    }

    /// The message at `at` may send its next packet, of so many PSNs.
    fn has_room(&self, at: usize, psns: u64) -> bool {
        let posted = &self.queue[at];
        let flies = self.next > self.una;
        if flies && self.next + psns > self.una + self.make.window {
            return false;
        }
        let answered = self.queue.iter().take(at).filter(|before| before.work.op.is_answered()).count();
        if posted.work.op.is_answered() && answered >= self.terms.rd_atomic {
            return false;
        }
        if posted.work.fenced && answered > 0 {
            return false;
        }
        // Without a credit a packet at a time (IBTA v1 9.7.7.2.5).
        !(flies && self.is_limited(posted))
    }

    fn has_room_behind(&self, after: u64) -> bool {
        after < self.una + self.make.window
    }

    fn is_limited(&self, posted: &Posted) -> bool {
        let limit = self.limit.filter(|_| self.make.obeys_credits);
        posted.work.takes_receive() && limit.is_some_and(|limit| posted.ssn > limit)
    }

    fn fail(&mut self, status: Status) {
        self.failed = true;
        self.timer = NEVER;
        let mut status = status;
        for Posted { work, .. } in std::mem::take(&mut self.queue) {
            self.done.push(Done { id: work.id, signaled: work.signaled, status });
            status = Status::Flushed;
        }
    }
}
