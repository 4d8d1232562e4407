//! Packets that a requester sends, and the answers that it may believe.

use crate::{
    frame::{Kind as FrameKind, Reth, Seen},
    message::{Kind, Message, Outcome},
    stream::{KEPT, Stream},
    violation::{Checked, demand},
};

/// RNR timer codes in units of 10 us (IBTA v1 table 45).
const RNR_UNITS: [u64; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096,
    6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

/// A SEND of nothing, or a WRITE of nothing to nowhere, that asks for an ACK: with the PSN before
/// the oldest it is a duplicate, which a responder only acknowledges (IBTA v1 C9-105).
fn is_ping(seen: &Seen<'_>) -> bool {
    let nowhere = Reth { va: 0, rkey: 0, length: 0 };
    let is_empty = seen.opcode == 0x04 || (seen.opcode, seen.reth) == (0x0a, Some(nowhere));
    is_empty && seen.ack_request && seen.payload.is_empty()
}

/// Classification of a request on the wire.
pub(crate) struct Sent {
    pub(crate) rows: u64,
    pub(crate) what: What,
    /// The PSN behind its last one.
    pub(crate) end: u64,
}

/// How often the packet of a request was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    First,
    Again,
    /// It is of no message and asks which packets have arrived.
    Question,
    /// A SEND of no bytes is sent again, or that is asked.
    AgainOrQuestion,
}

impl Stream {
    /// A request leaves: it must be the packet of the message that its PSN says, and its turn.
    pub(crate) fn check_request(&mut self, seen: &Seen<'_>, now: u64) -> Result<Sent, crate::violation::Violation> {
        let psn = self.unwrap_psn(seen.psn);
        if (self.una_at_least..=self.una).contains(&(psn + 1)) && is_ping(seen) {
            let is_alike = |message: &Message| message.length == 0 && message.opcode(0) == seen.opcode;
            let is_again = psn >= self.una_at_least
                && seen.opcode == 0x04
                && self.find(psn).and_then(|(id, _)| self.message(id)).is_some_and(is_alike);
            if is_again && psn == self.una_at_least {
                self.note_attempt(now);
            }
            let what = if is_again { What::AgainOrQuestion } else { What::Question };
            return Ok(Sent { rows: self.rows_at(psn), what, end: psn + 1 });
        }
        self.check_not_ready(psn, now)?;
        demand!(psn <= self.frontier, "psn", "PSN {} sent where {} comes next", seen.psn, self.frontier & 0xff_ffff);
        demand!(
            psn >= self.una_at_least,
            "go-back",
            "PSN {} sent again, acknowledged up to {}",
            seen.psn,
            self.una_at_least & 0xff_ffff
        );
        let Some((id, at)) = self.find(psn) else {
            demand!(false, "psn", "PSN {} is of no message that was posted", seen.psn);
            unreachable!()
        };
        let packets = self.check_packet(id, at, seen)?;
        let again = psn < self.frontier;
        demand!(again || !self.is_held_back, "drain", "PSN {} is sent first, and the send queue is drained", seen.psn);
        let message = self.message(id).expect("found");
        // IBTA v1 C10-110: a fenced request begins when all READs and atomic operations before it
        // are complete.
        demand!(
            again || at > 0 || !message.fenced || self.una >= message.answered_until,
            "fence",
            "fenced request {id} begins; a READ or atomic operation before it has no answer, acknowledged up to {}",
            self.una & 0xff_ffff
        );
        let behind = psn + u64::from(packets);
        if again && seen.kind == FrameKind::ReadRequest {
            self.note_part(psn, behind);
        }
        if !again && (at == 0 || seen.kind == FrameKind::ReadRequest) {
            let message = self.message(id).expect("found");
            self.note_request(if message.kind == Kind::Read { behind } else { message.end() });
        }
        if !again {
            self.check_limit(id, psn, seen.ack_request)?;
        }
        let before = self.frontier;
        self.frontier = before.max(behind);
        // Of READ responses a window may be held besides, each in place of one that is on its way
        // no more.
        let held = if seen.kind == FrameKind::ReadRequest { self.settings.window } else { 0 };
        let window = u64::from(self.settings.window.max(packets) + held);
        demand!(
            self.frontier - self.una <= window,
            "window",
            "{} PSNs in flight, window {window}",
            self.frontier - self.una
        );
        demand!(
            now >= self.rnr_until,
            "rnr",
            "PSN {} sent {} ns before the receiver is ready",
            seen.psn,
            self.rnr_until - now
        );
        if again {
            self.check_again(seen)?;
        } else if self.message(id).expect("found").invalidates {
            // Until its key opens nothing any more the responder may drop the packets that follow.
            self.asked_again += window;
            self.excuse(window);
        }
        self.check_borne(seen, again)?;
        let oldest = (self.una_at_least..=self.una).contains(&psn);
        demand!(
            !self.go_back || oldest,
            "go-back",
            "PSN {} is the first after a NAK or time-out, and should be {}",
            seen.psn,
            self.una & 0xff_ffff
        );
        (self.go_back, self.waiting) = (false, false);
        if oldest {
            self.note_attempt(now);
        }
        if before == self.una_at_least {
            // Nothing else was in flight: the timer begins.
            self.timer_from = now;
        }
        let what = if again { What::Again } else { What::First };
        Ok(Sent { rows: self.message(id).expect("found").rows, what, end: behind })
    }

    /// The oldest request leaves. One that leaves before the last can have been answered is the
    /// same attempt. A go-back-N requester believes NAKs that come twice.
    fn note_attempt(&mut self, now: u64) {
        if !self.keeps || self.attempts == 0 || now - self.attempted_at >= self.round_trip {
            self.attempts += 1;
            self.attempted_at = now;
        }
    }

    /// A packet is sent again: because the responder said so, or it did not answer for a while; the
    /// latter only now and then where the network lets everything through.
    fn check_again(&mut self, seen: &Seen<'_>) -> Checked {
        if self.asked_again > 0 {
            self.asked_again -= 1;
            return Ok(());
        }
        self.unasked += 1;
        let sent = self.frontier - self.start;
        demand!(
            self.is_disturbed || self.unasked <= 8 + sent / 8,
            "again",
            "PSN {} is sent again: {} packets of {sent} were, and nothing was lost",
            seen.psn,
            self.unasked
        );
        Ok(())
    }

    /// Nothing is sent again because frames took paths of different delays. Responses of one READ
    /// at a time are held, so that READs keep their order: those of another that overtake are asked
    /// for again.
    fn check_borne(&mut self, seen: &Seen<'_>, again: bool) -> Checked {
        let is_under_way = |message: &&Message| message.end() > self.una_at_least && message.first < self.frontier;
        let reads = self.messages.iter().filter(is_under_way).filter(|message| message.kind == Kind::Read);
        if reads.count() > 1 {
            self.excuse(0);
        }
        let borne = self.is_borne();
        // Before it knows of any that was acknowledged it asks by the oldest itself, and needs an
        // answer soon once at the most.
        let asks = seen.ack_request && self.una_at_least == self.start && again && borne;
        let is_question = asks && !std::mem::replace(&mut self.asked_by_oldest, true);
        demand!(!again || !borne || is_question, "reorder", "PSN {} is sent again, and was only overtaken", seen.psn);
        Ok(())
    }

    /// Unacknowledged packets are late at the most, and that by no more than the receiver bears.
    pub(crate) fn is_borne(&self) -> bool {
        self.borne_from.is_some_and(|from| self.una_at_least >= from)
    }

    /// Nor is a response taken for lost, or a retry spent, because others overtook it.
    pub(crate) fn check_implied(&self, implied: u64) -> Checked {
        let borne = self.borne_from.is_some() && !self.may_imply;
        demand!(!borne || implied == 0, "reorder", "{implied} answers count as lost, and were only overtaken");
        Ok(())
    }

    /// The responder asked for all packets in flight again.
    pub(crate) fn on_asked_again(&mut self) {
        self.asked_again += self.frontier - self.una_at_least;
    }

    /// Packet `at` of the message has the opcode, headers and bytes of its place; gives the PSNs
    /// that it takes.
    pub(crate) fn check_packet(&self, id: u64, at: u32, seen: &Seen<'_>) -> Result<u32, crate::violation::Violation> {
        let message = self.message(id).expect("found");
        let mtu = self.mtu();
        demand!(
            seen.opcode == message.opcode(at) | self.settings.service.opcodes(),
            "psn",
            "PSN {} has opcode 0x{:02x}, packet {at} of {} is 0x{:02x}",
            seen.psn,
            seen.opcode,
            message.packets,
            message.opcode(at) | self.settings.service.opcodes()
        );
        let skip = at * mtu;
        if let Some(atomic) = seen.atomic {
            let said = (atomic.va, atomic.rkey, atomic.swap_or_add, atomic.compare);
            let meant = (message.remote_va, message.rkey, message.swap_or_add, message.compare);
            demand!(said == meant, "payload", "PSN {} asks for {said:x?}, the message for {meant:x?}", seen.psn);
            return Ok(1);
        }
        if let (Kind::Flush | Kind::AtomicWrite, Some(reth)) = (message.kind, seen.reth) {
            let value = message.swap_or_add.to_ne_bytes();
            let (length, feth, payload) = match message.kind {
                Kind::Flush => (message.swap_or_add as u32, Some(message.compare as u32), &[][..]),
                _ => (8, None, &value[..]),
            };
            demand!(
                (reth.va, reth.rkey, reth.length) == (message.remote_va, message.rkey, length)
                    && (seen.feth, seen.payload) == (feth, payload),
                "payload",
                "PSN {} is {reth:x?}, FETH {:?} and {:?} of {message:x?}",
                seen.psn,
                seen.feth,
                seen.payload
            );
            return Ok(1);
        }
        if message.kind == Kind::Read {
            let reth = seen.reth.expect("a READ request has one");
            let (va, key) = (message.remote_va.wrapping_add(skip.into()), message.rkey);
            demand!(
                (reth.va, reth.rkey) == (va, key),
                "payload",
                "READ of key 0x{:08x} at 0x{:x}, message says 0x{key:08x} at 0x{va:x}",
                reth.rkey,
                reth.va
            );
            let packets = reth.length.div_ceil(mtu).max(1);
            let whole = at + packets == message.packets && skip + reth.length == message.length;
            let inner = at + packets < message.packets && reth.length.is_multiple_of(mtu);
            demand!(whole || inner, "payload", "READ of {} bytes at {skip} of {}", reth.length, message.length);
            return Ok(packets);
        }
        if let Some(reth) = seen.reth {
            demand!(
                (reth.va, reth.rkey, reth.length) == (message.remote_va, message.rkey, message.length),
                "payload",
                "RETH {reth:x?} on a WRITE of {} bytes, key 0x{:08x} at 0x{:x}",
                message.length,
                message.rkey,
                message.remote_va
            );
        }
        let last = at + 1 == message.packets;
        demand!(
            seen.imm == message.imm.filter(|_| last)
                && seen.solicited == (last && message.solicited && message.takes_receive()),
            "payload",
            "immediate {:?} and solicited {} on packet {at} of {}",
            seen.imm,
            seen.solicited,
            message.packets
        );
        let invalidates = (last && message.invalidates).then_some(message.rkey);
        demand!(
            seen.ieth == invalidates,
            "payload",
            "key {:x?} to be invalid on packet {at} of {}, the message has {invalidates:x?}",
            seen.ieth,
            message.packets
        );
        let bytes = (message.length - skip).min(mtu) as usize;
        self.check_reused(message, seen.psn, bytes)?;
        demand!(
            seen.payload.len() == bytes && (message.reused.is_some() || message.data.holds(skip, seen.payload)),
            "payload",
            "PSN {}: {} bytes that are not the {bytes} of the message at {skip}",
            seen.psn,
            seen.payload.len()
        );
        demand!(
            message.outcome != Outcome::LocalProtection || skip + bytes as u32 <= message.writable,
            "payload",
            "PSN {} is of memory that does not open",
            seen.psn
        );
        Ok(1)
    }

    /// An answer reaches the requester. Gives its syndrome, and whether it is one that the
    /// requester must have looked at; `None` for one that it cannot have.
    pub(crate) fn on_answer(&mut self, seen: &Seen<'_>, now: u64) -> Option<(u8, bool)> {
        let psn = self.unwrap_psn(seen.psn);
        let before = self.una_at_least;
        let answered = self.take_answer(seen, psn, now);
        self.note_credits(seen, psn, before);
        answered
    }

    fn take_answer(&mut self, seen: &Seen<'_>, psn: u64, now: u64) -> Option<(u8, bool)> {
        let syndrome = seen.aeth.map_or(0, |aeth| aeth.syndrome);
        // A NAK of the next PSN acknowledges all that was sent.
        let end = self.frontier + u64::from(seen.kind == FrameKind::Ack && syndrome == 0x60);
        if psn < self.una_at_least || psn >= end {
            return None;
        }
        let fresh = (self.una..self.frontier).contains(&psn);
        if seen.kind == FrameKind::Ack && syndrome >> 5 != 0 {
            self.on_asked_again();
            self.excuse(if syndrome >> 5 == 1 { self.settings.window.into() } else { 0 });
        }
        if self.una_at_least == self.start && psn > self.start {
            // Nothing is held before the first was taken.
            self.excuse(0);
        }
        let own = matches!(seen.kind, FrameKind::ReadResponse | FrameKind::AtomicAck);
        let next = if !own && syndrome >> 5 == 0 { psn + 1 } else { psn };
        self.acknowledge(next, own.then_some((psn, seen.kind)), now);
        let named = self.una == psn && self.una_at_least == psn;
        if !own && syndrome >> 5 > 1 {
            self.not_ready = None;
        }
        match syndrome >> 5 {
            _ if own => return None,
            0 => {}
            1 => {
                self.rnr_naks += 1;
                if !named {
                    // Acted upon when the requests before it are answered.
                    self.rnr_behind = Some(psn);
                }
                let delay = RNR_UNITS[usize::from(syndrome & 31)] * 10_000;
                self.on_not_ready(psn, delay);
                if named {
                    self.go_back = true;
                    // One that comes while nothing was sent since the last says nothing new.
                    if !self.waiting {
                        self.rnr_until = now + delay;
                    }
                }
                self.waiting |= (self.una_at_least..=self.una).contains(&psn);
            }
            // Each PSN has one NAK: a second is the network's, and need not be believed. A
            // requester that keeps early answers does not go back.
            _ if syndrome == 0x60 => {
                let is_first = self.naks_heard.insert(psn);
                self.go_back |= is_first && named && !self.keeps;
            }
            _ => {}
        }
        Some((syndrome, fresh))
    }

    /// All before `to` is acknowledged, but for READs and atomic operations; and perhaps a packet
    /// of one of those.
    fn acknowledge(&mut self, to: u64, own: Option<(u64, FrameKind)>, now: u64) {
        let certain = self.una == self.una_at_least;
        let own = own.filter(|(psn, kind)| {
            let fits = |message: &Message| match kind {
                FrameKind::AtomicAck => message.kind.is_atomic(),
                _ => message.kind.wants_answer() && !message.kind.is_atomic(),
            };
            self.find(*psn).and_then(|(id, _)| self.message(id)).is_some_and(fits)
        });
        let at_least = self.reach(self.una_at_least, to, |psn| own.is_some_and(|(own, _)| own == psn));
        if self.keeps {
            self.acknowledged = self.acknowledged.max(to);
            self.answered.extend(own.map(|(psn, _)| psn));
            self.una = self.reach(self.una, self.acknowledged, |psn| self.answered.contains(&psn));
            self.answered = self.answered.split_off(&self.una);
        } else {
            self.una = at_least;
        }
        let went_on = at_least > self.una_at_least;
        self.una_at_least = at_least;
        if went_on {
            self.alive_at = now;
            self.on_made_good(at_least);
        }
        if went_on && certain && self.una == at_least {
            let said_before = self.rnr_behind.is_some_and(|psn| psn >= self.una_at_least);
            (self.attempts, self.rnr_naks, self.timer_from) = (0, said_before.into(), now);
        }
        if went_on {
            // The request that the RNR NAK refused has arrived; a further RNR NAK is for another
            // request.
            self.waiting = false;
        }
        self.on_oldest(now);
    }

    /// How far `from` gets when all before `to` is acknowledged, and these PSNs have answers of
    /// their own.
    pub(super) fn reach(&self, from: u64, to: u64, is_answered: impl Fn(u64) -> bool) -> u64 {
        let mut reached = from;
        while let Some((id, _)) = self.find(reached) {
            let message = self.message(id).expect("found");
            if message.kind.wants_answer() {
                if reached > to || !is_answered(reached) {
                    break;
                }
                reached += 1;
            } else if reached < to {
                reached = message.end().min(to);
            } else {
                break;
            }
        }
        reached
    }

    /// A READ request leaves. Where it was sent before, and not up to there, the answer may end
    /// there.
    fn note_part(&mut self, psn: u64, end: u64) {
        if self.request_end(psn).is_some_and(|known| end < known) {
            self.part_ends.insert(end);
        }
        if self.part_ends.len() > KEPT {
            self.part_ends.pop_first();
        }
    }

    /// A READ of an earlier life was taken for a repetition of one of now: the answer ends with it.
    pub(crate) fn on_other_part(&mut self, seen: &Seen<'_>) {
        if let (FrameKind::ReadRequest, Some(reth)) = (seen.kind, seen.reth) {
            let packets = u64::from(reth.length.div_ceil(self.mtu()).max(1));
            let psn = self.unwrap_psn(seen.psn);
            self.note_part(psn, psn + packets);
        }
    }

    /// The network disturbed the request that ends with this PSN, or an answer to it.
    pub(crate) fn on_disturbed(&mut self, psn: u64) {
        self.disturbed.push(psn);
    }

    /// A request completed: all of it is acknowledged, and all before it.
    pub(crate) fn on_complete(&mut self, end: u64) {
        self.una_at_least = self.una_at_least.max(end);
    }

    /// The transport says that the ACK timer ran out.
    pub(crate) fn on_timeout(&mut self, now: u64) -> Checked {
        let ran = now - self.timer_from;
        let timeout = self.settings.ack_timeout();
        demand!(ran >= timeout, "timer", "the ACK timer of {timeout} ns ran out after {ran} ns at most");
        demand!(self.una_at_least < self.frontier, "timer", "the ACK timer ran out and nothing is in flight");
        self.timer_from = now;
        (self.go_back, self.timed_out) = (true, true);
        self.check_timer_of_not_ready()
    }
}
