//! What a side asks: in PSN order, message by message, and again when it must.

use std::collections::BTreeSet;

use super::{Count, Findings, SLACK_NS};
use crate::{
    scenario::Side,
    trace::{Kind, Seen, Service},
};

/// How late what a NAK asks for is sent again, by [`Side`], when it was not the NAK that did it but a timer.
const LATE_NS: [u64; 2] = [SLACK_NS[0], 200_000_000];

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
    not_before_ns: u64,
}

#[derive(Debug)]
pub(super) struct Requester {
    count: Count,
    mtu: u32,
    sent: Vec<Sent>,
    /// Everything before it is acknowledged, and since when.
    acknowledged: i64,
    acknowledged_at_ns: Vec<(i64, u64)>,
    /// Answers of READs and atomic operations that came: nothing else acknowledges those.
    answered: BTreeSet<i64>,
    /// NAKs and RNR NAKs whose PSN was not sent since.
    asked: Vec<Asked>,
    /// A message of these has begun.
    under_way: Option<Kind>,
    ended: bool,
}

impl Requester {
    pub(super) fn new(first: u32, mtu: u32) -> Self {
        Self {
            count: Count::new(first),
            mtu,
            sent: Vec::new(),
            acknowledged: 0,
            acknowledged_at_ns: Vec::new(),
            answered: BTreeSet::new(),
            asked: Vec::new(),
            under_way: None,
            ended: false,
        }
    }

    pub(super) fn check(mut self, life: &[&Seen], side: Side, findings: &mut Findings) {
        for seen in life {
            if seen.from == side {
                self.on_request(seen, findings);
            } else if seen.intact {
                self.on_answer(seen);
            }
        }
        // 9.7.5.2.8: what was asked for again is sent again. Whoever asked last may have asked when all was over.
        let Some(last) = life.last() else { return };
        for asked in self.asked.iter().filter(|it| it.psn >= self.acknowledged && !self.ended) {
            if last.at_ns > asked.not_before_ns + SLACK_NS[side as usize] {
                findings.add("nak-answered", &asked.frame, "what this NAK asks for is never sent again");
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
        for at in (0..self.asked.len()).rev() {
            let asked = &self.asked[at];
            if asked.psn != psn {
                continue;
            }
            // 9.7.5.2.8: not before the time that the RNR NAK asks for is over.
            if seen.at_ns < asked.not_before_ns {
                let early_us = (asked.not_before_ns - seen.at_ns) / 1000;
                findings.add(
                    "rnr-timer",
                    seen,
                    format!("sent {early_us} us before the RNR timer of frame {} runs out", asked.frame.number),
                );
            }
            if seen.at_ns > asked.not_before_ns + LATE_NS[seen.from as usize] {
                let late_ms = (seen.at_ns - asked.not_before_ns) / 1_000_000;
                findings.add("nak-late", &asked.frame, format!("what it asks for is sent again after {late_ms} ms"));
            }
            self.asked.swap_remove(at);
        }
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
        let packets = match seen.kind {
            Kind::ReadRequest => seen.dma_bytes.unwrap_or(0).div_ceil(self.mtu).max(1),
            _ => 1,
        };
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
        let same = match seen.kind {
            // From its middle on, it ends where it ended.
            Kind::ReadRequest => {
                sent.kind == Kind::ReadRequest
                    && psn + i64::from(seen.dma_bytes.unwrap_or(0).div_ceil(self.mtu).max(1)) - 1 <= sent.last
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
                format!("not what PSN {psn} was before: opcode 0x{:02x}, then 0x{:02x}", sent.opcode, seen.opcode),
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

    fn on_answer(&mut self, seen: &Seen) {
        let psn = self.count.of(seen.psn);
        let syndrome = seen.syndrome.unwrap_or(0);
        let acknowledged = match syndrome >> 5 {
            0 => psn + 1,
            1 => {
                let not_before_ns = seen.at_ns + rnr_delay_ns(syndrome & 31);
                self.asked.retain(|asked| asked.psn != psn);
                self.asked.push(Asked { psn, frame: seen.clone(), not_before_ns });
                psn
            }
            _ if syndrome == 0x60 => {
                self.asked.retain(|asked| asked.psn != psn);
                self.asked.push(Asked { psn, frame: seen.clone(), not_before_ns: seen.at_ns });
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
        while self.acknowledged < acknowledged.min(self.sent.len() as i64) {
            let wants_answer = matches!(self.sent[self.acknowledged as usize].kind, Kind::ReadRequest | Kind::Atomic);
            if wants_answer && !self.answered.remove(&self.acknowledged) {
                break;
            }
            self.acknowledged += 1;
        }
        if self.acknowledged > before {
            self.acknowledged_at_ns.push((self.acknowledged, seen.at_ns));
            self.asked.retain(|asked| asked.psn >= self.acknowledged);
        }
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
