//! Requests of a side: in PSN order, message by message, and again when it must.

use std::{collections::BTreeSet, ops::Range};

use super::{
    lives::Life,
    psn::Count,
    rules::{Findings, SLACK_NS},
};
use crate::{
    scenario::Side,
    trace::{Kind, Seen, Service},
};

/// How late the packets that a NAK asks for are sent again, by [`Side`], when it was not the NAK
/// that did it but a timer.
const LATE_NS: [u64; 2] = [SLACK_NS[0], 200_000_000];

pub(super) const SEND_ONLY: u8 = 0x04;
const WRITE_ONLY: u8 = 0x0a;

/// A PSN that was sent.
#[derive(Clone, Copy, Debug)]
struct Sent {
    kind: Kind,
    opcode: u8,
    payload_bytes: u32,
    payload_sum: u64,
    /// Of a READ: its last PSN.
    last: i64,
}

/// An answer that asks for something.
#[derive(Debug)]
struct Asked {
    psn: i64,
    frame: Seen,
    /// When the time that an RNR NAK asks for is over, counted from when it passed the port: the
    /// requester had it no sooner. Where more came, of the first, because a requester that waits
    /// need not mind the others.
    not_before_ns: u64,
    /// Of the last.
    expected_ns: u64,
    /// The PSN was sent before that time was over.
    early: Option<Seen>,
}

#[derive(Debug)]
pub(super) struct Requester {
    count: Count,
    mtu: u32,
    sent: Vec<Sent>,
    /// Everything before it is acknowledged, and since when.
    acknowledged: i64,
    acknowledged_at_ns: Vec<(i64, u64)>,
    /// An answer came that acknowledges everything before it, but for answers that are missing.
    told: i64,
    /// Answers of READs and atomic operations that came: nothing else acknowledges those.
    answered: BTreeSet<i64>,
    /// NAKs and RNR NAKs with a PSN that was not sent since.
    asked: Vec<Asked>,
    /// The packet that the last RNR NAK asked for was sent too early at first.
    was_early: bool,
    /// The PSN behind the last packet that was sent.
    following: i64,
    /// A message of these has begun.
    under_way: Option<Kind>,
    ended: bool,
}

impl Requester {
    pub(super) fn new(life: &Life) -> Self {
        Self {
            count: Count::new(life.first),
            mtu: life.mtu,
            sent: Vec::new(),
            acknowledged: 0,
            acknowledged_at_ns: Vec::new(),
            told: 0,
            answered: BTreeSet::new(),
            asked: Vec::new(),
            was_early: false,
            following: 0,
            under_way: None,
            ended: false,
        }
    }

    pub(super) fn check(mut self, life: &[&Seen], side: Side, findings: &mut Findings) {
        self.follow(life, side, findings);
        // 9.7.5.2.8: packets that were asked for again are sent again. The last NAK may have come
        // when all was over.
        let Some(last) = life.last() else { return };
        for asked in self.asked.iter().filter(|it| it.psn >= self.acknowledged && !self.ended) {
            if last.at_ns > asked.expected_ns + SLACK_NS[side as usize] {
                findings.add("nak-answered", &asked.frame, "the packet that this NAK asks for is never sent again");
            }
        }
    }

    /// The PSNs that still wait to be acknowledged when all is over; none where a NAK has ended it.
    pub(super) fn open(mut self, life: &[&Seen], side: Side) -> Range<i64> {
        self.follow(life, side, &mut Findings::default());
        let next = self.sent.len() as i64;
        if self.ended { next..next } else { self.acknowledged..next }
    }

    fn follow(&mut self, life: &[&Seen], side: Side, findings: &mut Findings) {
        for seen in life {
            if seen.from == side {
                self.on_request(seen, findings);
            } else {
                self.on_answer(seen, findings);
            }
        }
    }

    fn on_request(&mut self, seen: &Seen, findings: &mut Findings) {
        let psn = self.count.of(seen.psn);
        let next = self.sent.len() as i64;
        if psn > next || psn < 0 {
            findings.add("psn-order", seen, format!("PSN {} where {next} packets were sent", psn));
            return;
        }
        if psn == next {
            self.on_new(seen, findings);
        } else {
            self.on_again(seen, psn, findings);
        }
        self.on_asked_for(seen, psn, findings);
        self.following = psn + i64::from(seen.packets(self.mtu));
    }

    /// It may be the packet that an answer asked for.
    fn on_asked_for(&mut self, seen: &Seen, psn: i64, findings: &mut Findings) {
        let Some(at) = self.asked.iter().position(|asked| asked.psn == psn) else { return };
        let asked = &mut self.asked[at];
        if seen.at_ns >= asked.not_before_ns {
            if seen.at_ns > asked.expected_ns + LATE_NS[seen.from as usize] {
                let late_ms = (seen.at_ns - asked.expected_ns) / 1_000_000;
                findings.add("nak-late", &asked.frame, format!("its packet is retransmitted after {late_ms} ms"));
            }
            self.settle(at);
            return;
        }
        // A requester that has looked at the RNR NAK begins with this packet: behind the one before
        // it, it was on its way already.
        let was_on_its_way = self.following == psn;
        if was_on_its_way {
            return;
        }
        if asked.early.is_some() || self.was_early {
            asked.add_early(seen, findings);
        } else {
            // Once it may have been, because a timer ran out. Then the effect of the RNR NAK is
            // still to come.
            asked.early = Some(seen.clone());
        }
    }

    /// That answer asks no more.
    fn settle(&mut self, at: usize) {
        let asked = self.asked.swap_remove(at);
        if asked.frame.is_rnr_nak() {
            self.was_early = asked.early.is_some();
        }
    }

    /// 9.7.5.2.8: a NAK, or RNR NAK, of a packet.
    fn on_nak(&mut self, seen: &Seen, psn: i64, findings: &mut Findings) {
        let delay_ns = if seen.is_rnr_nak() { rnr_delay_ns(seen.syndrome.unwrap_or(0) & 31) } else { 0 };
        let expected_ns = seen.at_ns + delay_ns;
        let mut asked = Asked { psn, frame: seen.clone(), not_before_ns: expected_ns, expected_ns, early: None };
        if let Some(at) = self.asked.iter().position(|asked| asked.psn == psn) {
            let before = &self.asked[at];
            match &before.early {
                // It was refused, and nothing else was sent when the time was over: that is the
                // effect of the one before.
                Some(early) if seen.is_rnr_nak() && seen.at_ns >= before.not_before_ns => {
                    before.add_early(early, findings);
                }
                early if before.frame.is_rnr_nak() == seen.is_rnr_nak() => {
                    asked.not_before_ns = before.not_before_ns;
                    asked.early = early.clone();
                }
                _ => (),
            }
            self.asked.swap_remove(at);
        }
        self.asked.push(asked);
    }

    /// 9.7.4.1.4: which packet may follow which.
    fn on_new(&mut self, seen: &Seen, findings: &mut Findings) {
        let fits = match self.under_way {
            None => seen.begins,
            Some(kind) => !seen.begins && seen.kind == kind,
        };
        if !fits {
            findings.add("opcode-order", seen, format!("opcode 0x{:02x} after {:?}", seen.opcode, self.under_way));
        }
        self.under_way = (!seen.ends).then_some(seen.kind);
        let packets = seen.packets(self.mtu);
        let last = self.sent.len() as i64 + i64::from(packets) - 1;
        let sent = Sent {
            kind: seen.kind,
            opcode: seen.opcode,
            payload_bytes: seen.payload_bytes,
            payload_sum: seen.payload_sum,
            last,
        };
        self.sent.extend(std::iter::repeat_n(sent, packets as usize));
        self.count.near = self.sent.len() as i64;
    }

    fn on_again(&mut self, seen: &Seen, psn: i64, findings: &mut Findings) {
        if seen.service == Service::Uc {
            findings.add("psn-order", seen, "a packet of an unreliable connection is sent again");
            return;
        }
        let sent = self.sent[psn as usize];
        if seen.asks_only(sent.kind) && self.is_newest_acknowledged(psn, seen) {
            return;
        }
        let same = match seen.kind {
            // From its middle on, it ends where it ended.
            Kind::ReadRequest => {
                sent.kind == Kind::ReadRequest && psn + i64::from(seen.packets(self.mtu)) - 1 <= sent.last
            }
            _ => {
                (sent.opcode, sent.payload_bytes, sent.payload_sum)
                    == (seen.opcode, seen.payload_bytes, seen.payload_sum)
            }
        };
        if !same {
            findings.add(
                "same-again",
                seen,
                format!(
                    "not the packet that PSN {psn} had before: opcode 0x{:02x}, then 0x{:02x}",
                    sent.opcode, seen.opcode
                ),
            );
        }
        // When the PSN was first acknowledged.
        let known = self.acknowledged_at_ns.partition_point(|(acknowledged, _)| *acknowledged <= psn);
        if let Some((_, at_ns)) = self.acknowledged_at_ns.get(known)
            && seen.at_ns > at_ns + SLACK_NS[seen.from as usize]
        {
            findings.add(
                "acknowledged-again",
                seen,
                format!("acknowledged {} ms before", (seen.at_ns - at_ns) / 1_000_000),
            );
        }
    }

    /// As far as its sender need know when `seen` leaves.
    fn is_newest_acknowledged(&self, psn: i64, seen: &Seen) -> bool {
        let behind = self.acknowledged_at_ns.partition_point(|(acknowledged, _)| *acknowledged <= psn + 1);
        let newer = self.acknowledged_at_ns.get(behind);
        psn < self.acknowledged && newer.is_none_or(|(_, at_ns)| seen.at_ns <= at_ns + SLACK_NS[seen.from as usize])
    }

    fn on_answer(&mut self, seen: &Seen, findings: &mut Findings) {
        let psn = self.count.of(seen.psn);
        if psn > self.sent.len() as i64 {
            // Of another life; its sender is judged by its own port.
            return;
        }
        let syndrome = seen.syndrome.unwrap_or(0);
        let acknowledged = match syndrome >> 5 {
            0 => psn + 1,
            _ if seen.is_rnr_nak() || syndrome == 0x60 => {
                self.on_nak(seen, psn, findings);
                psn
            }
            _ => {
                self.ended = true;
                psn
            }
        };
        if seen.kind != Kind::Ack {
            self.answered.insert(psn);
        }
        let before = self.acknowledged;
        // An answer behind a missing response has its turn with it where it was held. rxe holds
        // nothing.
        self.told = if seen.from == Side::Rxe { self.told.max(acknowledged) } else { acknowledged };
        while self.acknowledged < self.told.min(self.sent.len() as i64) {
            let wants_answer = matches!(self.sent[self.acknowledged as usize].kind, Kind::ReadRequest | Kind::Atomic);
            if wants_answer && !self.answered.remove(&self.acknowledged) {
                break;
            }
            self.acknowledged += 1;
        }
        if self.acknowledged > before {
            self.acknowledged_at_ns.push((self.acknowledged, seen.at_ns));
            while let Some(at) = self.asked.iter().position(|asked| asked.psn < self.acknowledged) {
                self.settle(at);
            }
        }
    }
}

impl Asked {
    fn add_early(&self, early: &Seen, findings: &mut Findings) {
        let early_us = (self.not_before_ns - early.at_ns) / 1000;
        let what = format!("sent {early_us} us before the RNR timer of frame {} runs out", self.frame.number);
        findings.add("rnr-timer", early, what);
    }
}

impl Seen {
    /// roced's question for an ACK: a duplicate, of no bytes, of a packet of `kind`.
    fn asks_only(&self, kind: Kind) -> bool {
        let is_empty = match self.opcode {
            SEND_ONLY => kind != Kind::Write,
            WRITE_ONLY => kind == Kind::Write && self.dma_bytes == Some(0),
            _ => false,
        };
        self.from == Side::Roced
            && self.service == Service::Rc
            && is_empty
            && self.ack_request
            && self.payload_bytes == 0
    }

    fn is_rnr_nak(&self) -> bool {
        self.syndrome.is_some_and(|syndrome| syndrome >> 5 == 1)
    }
}

/// How long an RNR NAK with this timer asks to wait (IBTA v1 table 45).
fn rnr_delay_ns(timer: u8) -> u64 {
    /// Microseconds.
    const DELAYS: [u64; 32] = [
        655_360, 10, 20, 30, 40, 60, 80, 120, 160, 240, 320, 480, 640, 960, 1_280, 1_920, 2_560, 3_840, 5_120, 7_680,
        10_240, 15_360, 20_480, 30_720, 40_960, 61_440, 81_920, 122_880, 163_840, 245_760, 327_680, 491_520,
    ];
    DELAYS[usize::from(timer & 31)] * 1000
}
