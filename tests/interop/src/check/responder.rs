//! Answers of a side: to packets that arrived, and never more than that.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    lives::Life,
    psn::Count,
    rules::{Findings, SLACK_NS},
};
use crate::{
    scenario::Side,
    trace::{Kind, Seen, Service},
};

/// READ requests that are looked at for one response: parts of one READ are asked for once or
/// twice.
const PARTS_MAX: usize = 64;

/// Bits of a PSN on the wire. One before the first is negative here.
const PSN_MASK: i64 = 0xff_ffff;

/// A request that arrived.
#[derive(Clone, Copy, Debug)]
struct Arrived {
    kind: Kind,
    begins: bool,
    ends: bool,
    has_imm: bool,
    at_ns: u64,
    ack_request: bool,
    /// How often it has arrived.
    times: u32,
    /// PSNs that it stands for, and bytes that a READ asks for.
    packets: u32,
    bytes: u32,
}

#[derive(Debug)]
pub(super) struct Responder {
    count: Count,
    mtu: u32,
    arrived: BTreeMap<i64, Arrived>,
    /// PSNs behind READ requests, also of parts.
    read_ends: BTreeSet<i64>,
    /// Everything before it has arrived.
    covered: i64,
    /// Everything before it has arrived in its turn, so that even a responder that keeps nothing
    /// took it; and when each did.
    in_turn: i64,
    in_turn_at_ns: Vec<u64>,
    /// The highest that has arrived.
    highest: i64,
    /// Of the messages with a completion that counts, the PSN by which it does, in order. For those
    /// before `counted`.
    completions: Vec<i64>,
    counted: i64,
    /// How often each PSN has arrived since it was refused for want of a receive.
    refused: BTreeMap<i64, u32>,
    last_ack: i64,
    last_nak: Option<i64>,
    /// Answers cover everything before it.
    answered: i64,
    ended: bool,
}

impl Responder {
    pub(super) fn new(life: &Life) -> Self {
        Self {
            count: Count::new(life.first),
            mtu: life.mtu,
            arrived: BTreeMap::new(),
            read_ends: BTreeSet::new(),
            covered: 0,
            in_turn: 0,
            in_turn_at_ns: Vec::new(),
            highest: -1,
            completions: Vec::new(),
            counted: 0,
            refused: BTreeMap::new(),
            last_ack: -1,
            last_nak: None,
            answered: 0,
            ended: false,
        }
    }

    pub(super) fn check(mut self, life: &[&Seen], side: Side, findings: &mut Findings) {
        for seen in life {
            if seen.from != side {
                if seen.intact {
                    self.on_request(seen);
                }
            } else if seen.service == Service::Rc {
                self.on_answer(seen, findings);
            }
        }
        self.check_coverage(life, side, findings);
    }

    fn on_request(&mut self, seen: &Seen) {
        let psn = self.count.of(seen.psn);
        let bytes = seen.dma_bytes.unwrap_or(0);
        let packets = seen.packets(self.mtu);
        let arrived = Arrived {
            kind: seen.kind,
            begins: seen.begins,
            ends: seen.ends,
            has_imm: seen.has_imm,
            at_ns: seen.at_ns,
            ack_request: seen.ack_request,
            times: 1,
            packets,
            bytes,
        };
        self.arrived
            .entry(psn)
            .and_modify(|it| {
                it.at_ns = seen.at_ns;
                it.times += 1;
                it.ack_request |= seen.ack_request;
                // A part of a READ may have been asked for before the rest of it.
                (it.packets, it.bytes) = (it.packets.max(packets), it.bytes.max(bytes));
            })
            .or_insert(arrived);
        if seen.kind == Kind::ReadRequest {
            self.read_ends.insert(psn + i64::from(packets));
        }
        self.highest = self.highest.max(psn);
        if psn == self.in_turn {
            self.in_turn += i64::from(packets);
            self.in_turn_at_ns.resize(self.in_turn as usize, seen.at_ns);
        }
        self.cover();
    }

    fn cover(&mut self) {
        while let Some(arrived) = self.arrived.get(&self.covered) {
            // C9-148: READs and atomic operations count when they begin to be answered, others when
            // they are there.
            if arrived.ends && self.covered >= self.counted {
                self.completions.push(self.covered);
            }
            self.covered += i64::from(arrived.packets);
            self.counted = self.counted.max(self.covered);
        }
        self.count.near = self.covered;
    }

    /// Messages that are complete when everything before `psn` is executed.
    fn complete_before(&self, psn: i64) -> i64 {
        self.completions.partition_point(|completion| *completion < psn) as i64
    }

    fn on_answer(&mut self, seen: &Seen, findings: &mut Findings) {
        let psn = self.count.of(seen.psn);
        match seen.kind {
            Kind::ReadResponse => self.on_response(seen, psn, findings),
            Kind::AtomicAck => {
                if self.arrived.get(&psn).is_none_or(|it| it.kind != Kind::Atomic) {
                    findings.add("answer", seen, "an ATOMIC ACK of no atomic operation that arrived");
                }
            }
            _ => self.on_ack(seen, psn, findings),
        }
        let syndrome = seen.syndrome.unwrap_or(0);
        let next = if syndrome >> 5 == 0 { psn + 1 } else { psn };
        self.answered = self.answered.max(next);
        if seen.syndrome.is_some() && next <= self.covered {
            self.check_msn(seen, next, findings);
        }
    }

    /// The MSN is that of the last message that is complete by that PSN. More may have arrived, and
    /// be complete, by then.
    fn check_msn(&self, seen: &Seen, next: i64, findings: &mut Findings) {
        let (least, most) = (self.complete_before(next), self.completions.len() as i64);
        if !(least..=most).any(|it| it & PSN_MASK == i64::from(seen.msn)) {
            findings.add("msn", seen, format!("MSN {}, and {least} to {most} messages are complete", seen.msn));
        }
    }

    fn on_ack(&mut self, seen: &Seen, psn: i64, findings: &mut Findings) {
        let syndrome = seen.syndrome.unwrap_or(0);
        match syndrome {
            0..0x20 => {
                if psn >= self.covered {
                    findings.add(
                        "ack",
                        seen,
                        format!("ACK of PSN {}, and {} has not arrived", psn & PSN_MASK, self.covered & PSN_MASK),
                    );
                }
                if psn < self.last_ack && !(seen.from == Side::Roced && self.asks_again_within(psn)) {
                    findings.add(
                        "ack-order",
                        seen,
                        format!("ACK of PSN {} after one of {}", psn & PSN_MASK, self.last_ack & PSN_MASK),
                    );
                }
                self.last_ack = self.last_ack.max(psn);
            }
            0x20..0x40 => self.on_rnr(seen, psn, findings),
            0x60 => self.on_nak(seen, psn, findings),
            _ => {
                self.ended = true;
                if psn > self.covered || !self.arrived.contains_key(&psn) {
                    findings.add(
                        "nak",
                        seen,
                        format!("NAK 0x{syndrome:02x} of PSN {psn}, which has not arrived in its turn"),
                    );
                }
            }
        }
    }

    /// A packet within its message came again and asks. To a peer like rxe roced acknowledges that
    /// much and no more (`docs/conformance.md`), also behind an ACK of all that was still under way
    /// when the packet came.
    fn asks_again_within(&self, psn: i64) -> bool {
        self.arrived.get(&psn).is_some_and(|it| it.times > 1 && it.ack_request && !it.ends)
    }

    fn on_rnr(&mut self, seen: &Seen, psn: i64, findings: &mut Findings) {
        // Two may have arrived before the first was refused.
        if let Some(more) = self.refused.get_mut(&psn).filter(|more| **more > 0) {
            *more -= 1;
            return;
        }
        let takes = |it: &Arrived| (it.kind == Kind::Send && it.begins) || (it.kind == Kind::Write && it.has_imm);
        if !self.arrived.get(&psn).is_some_and(takes) {
            findings.add("rnr", seen, format!("RNR NAK of PSN {psn}, which takes no receive or has not arrived"));
            return;
        }
        // It and all behind it count as not arrived.
        let times = self.arrived.split_off(&psn).get(&psn).map_or(1, |it| it.times);
        self.refused.insert(psn, times - 1);
        self.covered = self.covered.min(psn);
        self.in_turn = self.in_turn.min(psn);
        self.in_turn_at_ns.truncate(psn as usize);
        self.counted = self.counted.min(psn);
        self.completions.truncate(self.complete_before(psn) as usize);
        self.highest = psn - 1;
        self.last_nak = None;
    }

    /// 9.7.5.2.8: names the expected PSN, has a reason, and comes once for each.
    fn on_nak(&mut self, seen: &Seen, psn: i64, findings: &mut Findings) {
        if psn > self.covered {
            findings.add("nak-psn", seen, format!("NAK of PSN {psn}, and {} has not arrived", self.covered));
        } else if let Some(at_ns) = self.in_turn_at_ns.get(psn as usize)
            && at_ns + SLACK_NS[seen.from as usize] < seen.at_ns
        {
            findings.add(
                "nak-psn",
                seen,
                format!("NAK of PSN {psn}, which arrived {} ms before", (seen.at_ns - at_ns) / 1_000_000),
            );
        }
        if self.highest <= psn {
            findings.add("nak-psn", seen, format!("NAK of PSN {psn}, and nothing came ahead of it"));
        }
        if self.last_nak == Some(psn) {
            findings.add("nak-once", seen, format!("a second NAK of PSN {psn}"));
        }
        self.last_nak = Some(psn);
    }

    /// READ responses carry the bytes of their place, and end where a request for them ends: of one
    /// that came again for a part as well.
    fn on_response(&mut self, seen: &Seen, psn: i64, findings: &mut Findings) {
        let end = |(first, it): &(&i64, &Arrived)| **first + i64::from(it.packets);
        let asked = self.arrived.range(..=psn).rev().take(PARTS_MAX).filter(|it| psn < end(it));
        let Some((first, read)) = asked.filter(|(_, it)| it.kind == Kind::ReadRequest).max_by_key(end) else {
            findings.add("answer", seen, format!("a READ response of PSN {psn}, for which no READ has arrived"));
            return;
        };
        let place = psn - first;
        let bytes = read.bytes.saturating_sub(place as u32 * self.mtu).min(self.mtu);
        if seen.payload_bytes != bytes {
            findings.add("read-response", seen, format!("{} bytes in place of {bytes}", seen.payload_bytes));
        }
        let is_last = place + 1 == i64::from(read.packets);
        let fits = if seen.ends { self.read_ends.contains(&(psn + 1)) } else { !is_last };
        if !fits {
            findings.add(
                "read-response",
                seen,
                format!("opcode 0x{:02x} for packet {place} of {}", seen.opcode, read.packets),
            );
        }
    }

    /// A request for an acknowledgment gets one.
    fn check_coverage(&self, life: &[&Seen], side: Side, findings: &mut Findings) {
        let Some(last) = life.last() else { return };
        if self.ended || last.service != Service::Rc || self.answered >= self.covered {
            return;
        }
        let forgotten = self
            .arrived
            .range(self.answered..self.covered)
            .find(|(_, it)| it.ack_request && it.at_ns + SLACK_NS[side as usize] < last.at_ns);
        if let Some((psn, _)) = forgotten {
            findings.add("ack-coverage", last, format!("PSN {psn} asks for an ACK and gets none"));
        }
    }
}
