//! The executing side: executed requests, their order, and the answers about them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use roced_transport::io::WorkCompletion;
use roced_types::{CompletionOp, Status, completion_flags};

use super::{Did, Settings};
use crate::{
    frame::Kind,
    reference::{Answer, Arrived, Effect, Memory, Packet, Receive, Responder, Verdict, credits, unwrap},
    violation::{Checked, demand},
};

/// READs that were asked for, remembered for their answers.
const ASKED: usize = 256;

/// The model of the transport as responder. Its expected PSN may be behind the transport's by
/// requests that the transport kept, if those show nothing; they are executed here when the
/// transport shows that it has.
#[derive(Debug)]
pub(crate) struct ResponderShadow {
    settings: Settings,
    model: Responder,
    memory: Memory,
    /// Requests that came before their turn.
    ahead: BTreeMap<u64, Vec<Packet>>,
    /// Effects that the transport must show.
    wanted: VecDeque<Effect>,
    /// PSNs of answers that were never sent, in order.
    owed: VecDeque<(u64, u64)>,
    /// READs as they were asked for, again or not: from, end.
    asked: VecDeque<(u64, u64)>,
    /// The expected request is without a receive; it was refused.
    not_ready: Option<u64>,
    /// One that was kept was without a receive when the transport had its turn: it may have been
    /// told so.
    kept_not_ready: Option<u64>,
    refused: Option<(u64, u8)>,
    /// The last PSN of a sequence NAK, and of an ACK.
    nak: Option<u64>,
    acknowledged: Option<u64>,
    /// The peer sends MigReq as 0.
    plain_peer: bool,
    /// Duplicates that its peer asked about within a message: an ACK may be of the PSN of one.
    asked_again: BTreeSet<u64>,
    /// The refusal was sent.
    told: bool,
}

impl ResponderShadow {
    pub(crate) fn new(settings: Settings) -> Self {
        Self {
            settings,
            model: Responder::new(settings.mtu, settings.rd_atomic, settings.psns[1]),
            memory: Memory::new(0, settings.sink_bytes),
            ahead: BTreeMap::new(),
            wanted: VecDeque::new(),
            owed: VecDeque::new(),
            asked: VecDeque::new(),
            not_ready: None,
            kept_not_ready: None,
            refused: None,
            nak: None,
            acknowledged: None,
            plain_peer: false,
            asked_again: BTreeSet::new(),
            told: false,
        }
    }

    pub(crate) fn post_receive(&mut self, receive: Receive) {
        self.model.receives.push_back(receive);
    }

    pub(crate) const fn is_over(&self) -> bool {
        self.refused.is_some()
    }

    pub(crate) fn is_whole(&self) -> bool {
        self.wanted.is_empty()
    }

    /// The transport has had its turn: looks which request it may have found without a receive,
    /// behind others that show nothing.
    pub(crate) fn on_turn(&mut self) {
        let mut psn = self.model.expected;
        while let Some(packet) = self.ahead.get(&psn).and_then(|packets| packets.first()) {
            let takes_receive = packet.kind().0 == Kind::Send || packet.imm.is_some();
            if takes_receive && self.model.receives.is_empty() {
                self.kept_not_ready = Some(psn);
            }
            psn += match packet.reth {
                Some(reth) if packet.kind().0 == Kind::ReadRequest => {
                    u64::from(reth.length.div_ceil(self.settings.mtu).max(1))
                }
                Some(reth) if reth.length == 0 && !takes_receive => 1,
                _ => return,
            };
        }
    }

    pub(crate) fn missing(&self) -> String {
        format!("{:?} of PSN {}", self.wanted.front(), (self.model.expected - 1) & 0xff_ffff)
    }

    pub(crate) fn on_request(&mut self, packet: Packet) {
        self.plain_peer |= !packet.mig_req;
        let psn = unwrap(packet.psn, self.model.expected);
        match psn.cmp(&self.model.expected) {
            _ if self.refused.is_some() => {}
            std::cmp::Ordering::Equal => self.execute(&packet),
            std::cmp::Ordering::Less => self.on_duplicate(&packet, psn),
            std::cmp::Ordering::Greater => {
                let list = self.ahead.entry(psn).or_default();
                if !list.contains(&packet) {
                    list.push(packet);
                }
            }
        }
    }

    fn execute(&mut self, packet: &Packet) {
        let psn = self.model.expected;
        let (verdict, effects) = self.model.execute(packet, &mut self.memory);
        self.wanted.extend(effects);
        match verdict {
            Verdict::Done(psns) => {
                self.not_ready = None;
                if self.model.kept_at(psn).is_some() {
                    self.owed.push_back((psn, psn + psns));
                    self.ask(psn, psn + psns);
                }
                // A packet that came before its turn and is behind it now is a duplicate.
                let later = self.ahead.split_off(&self.model.expected);
                for (psn, packets) in std::mem::replace(&mut self.ahead, later) {
                    packets.iter().for_each(|packet| self.on_duplicate(packet, psn));
                }
            }
            Verdict::NotReady => self.not_ready = Some(psn),
            Verdict::Refused(code) => self.refused = Some((psn, code)),
        }
    }

    /// A READ may be answered again, and a peer with MigReq 0 that asks within a message may hear
    /// of that packet alone, or of the last such; nothing else happens.
    fn on_duplicate(&mut self, packet: &Packet, psn: u64) {
        if !packet.mig_req && packet.ack_request && !packet.kind().2 {
            self.asked_again.insert(psn);
        }
        if let (Kind::ReadRequest, Some(reth)) = (packet.kind().0, packet.reth) {
            self.ask(psn, psn + u64::from(reth.length.div_ceil(self.settings.mtu).max(1)));
        }
    }

    fn ask(&mut self, from: u64, end: u64) {
        if self.asked.contains(&(from, end)) {
            return;
        }
        self.asked.push_back((from, end));
        if self.asked.len() > ASKED {
            self.asked.pop_front();
        }
    }

    /// The transport may have executed the expected request from those that it kept. False when it
    /// cannot.
    fn go_on(&mut self) -> bool {
        if !self.settings.keeps[0] || self.plain_peer || self.refused.is_some() {
            return false;
        }
        let Some(packet) = self.ahead.get(&self.model.expected).and_then(|packets| packets.first()).cloned() else {
            return false;
        };
        let before = self.model.expected;
        self.execute(&packet);
        self.model.expected > before
    }

    /// The transport did something that a request did.
    pub(crate) fn check_effect(&mut self, did: Did, over: bool) -> Checked {
        if let Did::Received(cqe) = &did
            && cqe.status == Status::WorkRequestFlushed
        {
            while !over && !self.is_over() && self.wanted.is_empty() && self.go_on() {}
            demand!(over || self.is_over(), "lockstep", "receive {:#x} is flushed without a reason", cqe.wr_id);
            let flushed = self.model.receives.pop_front();
            demand!(
                flushed.is_some_and(|receive| receive.wr_id == cqe.wr_id),
                "lockstep",
                "receive {:#x} is flushed, the next one is {flushed:?}",
                cqe.wr_id
            );
            return Ok(());
        }
        while self.wanted.is_empty() && self.go_on() {}
        let Some(wanted) = self.wanted.pop_front() else {
            demand!(false, "lockstep", "{did:?}, and PSN {} is expected and not here", self.model.expected & 0xff_ffff);
            return Ok(());
        };
        let (fits, rest) = compare(&did, &wanted);
        demand!(fits, "lockstep", "{did:?}, where {wanted:?} comes next");
        if let Some(rest) = rest {
            self.wanted.push_front(rest);
        }
        Ok(())
    }

    /// The transport has executed all before `psn`, or may have.
    fn reaches(&mut self, psn: u64) -> bool {
        while self.model.expected < psn && self.go_on() && self.wanted.is_empty() {}
        self.model.expected >= psn && self.wanted.is_empty()
    }

    pub(crate) fn check_answer(&mut self, packet: &Packet, memory: &Memory) -> Checked {
        demand!(!packet.ack_request && packet.reth.is_none(), "lockstep", "an answer that asks: {packet:?}");
        let psn = unwrap(packet.psn, self.model.expected);
        match (packet.kind().0, packet.aeth.map(|aeth| aeth.syndrome)) {
            (Kind::Ack, Some(syndrome)) if syndrome < 0x20 => self.check_ack(packet, psn),
            (Kind::Ack, _) => self.check_nak(packet, psn),
            _ => self.check_result(packet, psn, memory),
        }
    }

    fn check_ack(&mut self, packet: &Packet, psn: u64) -> Checked {
        demand!(
            self.reaches(psn + 1),
            "lockstep",
            "an ACK of PSN {}, and PSN {} is executed next",
            packet.psn,
            self.model.expected & 0xff_ffff
        );
        self.check_owed(packet, psn + 1)?;
        let behind = psn + 1 < self.model.expected && self.asked_again.contains(&psn);
        let falls_back = self.acknowledged.is_some_and(|acknowledged| psn < acknowledged);
        demand!(!falls_back || behind, "lockstep", "an ACK of PSN {} behind the one before", packet.psn);
        self.acknowledged = self.acknowledged.max(Some(psn));
        if behind {
            // Of several the last is answered for all.
            self.asked_again = self.asked_again.split_off(&(psn + 1));
            self.check_msn_of_duplicate(packet, psn)?;
        } else {
            self.check_msn(packet, psn)?;
            self.check_offer(packet)?;
        }
        self.check_credits(packet)
    }

    /// Answers of READs and atomic operations come before the ACK that covers them (IBTA v1
    /// 9.7.5.1.4: the other way round they count as lost).
    fn check_owed(&self, packet: &Packet, end: u64) -> Checked {
        let owed = self.owed.front().filter(|(from, _)| *from < end);
        demand!(
            owed.is_none(),
            "lockstep",
            "{:?} of PSN {} before the answer of PSN {}",
            packet.aeth,
            packet.psn,
            owed.map_or(0, |(from, _)| from & 0xff_ffff)
        );
        Ok(())
    }

    fn check_msn(&self, packet: &Packet, psn: u64) -> Checked {
        let msn = self.model.msn_at(psn);
        demand!(
            packet.aeth.is_some_and(|aeth| aeth.msn == msn),
            "lockstep",
            "{:?} in an answer of PSN {}, where {msn} messages are complete",
            packet.aeth,
            packet.psn
        );
        Ok(())
    }

    /// The ACK of an older PSN, to a duplicate: the count at that PSN is true, and so is each up to
    /// the present one, as the MSN counts the requests that are complete when the answer is given
    /// (IBTA v1 9.7.7.1).
    fn check_msn_of_duplicate(&self, packet: &Packet, psn: u64) -> Checked {
        let (least, most) = (self.model.msn_at(psn), self.model.msn);
        let age = |msn: u32| most.wrapping_sub(msn) & 0x00ff_ffff;
        demand!(
            packet.aeth.is_some_and(|aeth| age(aeth.msn) <= age(least)),
            "lockstep",
            "{:?} in an answer of PSN {} to a duplicate, where {least} messages were complete, and {most} are",
            packet.aeth,
            packet.psn
        );
        Ok(())
    }

    /// No more credits than receives (IBTA v1 9.7.7.2).
    fn check_credits(&self, packet: &Packet) -> Checked {
        let offered = packet.aeth.and_then(|aeth| credits(aeth.syndrome));
        let receives = self.model.receives.len() as u64;
        demand!(
            offered.is_none_or(|offered| offered <= receives),
            "lockstep",
            "{offered:?} credits with {receives} receives posted"
        );
        Ok(())
    }

    /// The ACK of the newest says how many receives there are, rounded down to the value of a code,
    /// or nothing without flow control.
    fn check_offer(&self, packet: &Packet) -> Checked {
        let receives = self.model.receives.len() as u64;
        let most = (0..0x1f).rev().find(|code| credits(*code).is_some_and(|credits| credits <= receives));
        let right = most.filter(|_| self.settings.credits).unwrap_or(0x1f);
        demand!(
            self.is_over() || packet.aeth.is_some_and(|aeth| aeth.syndrome == right),
            "lockstep",
            "{:?} in the ACK of PSN {}, with {receives} receives posted: {right:#x}",
            packet.aeth,
            packet.psn
        );
        Ok(())
    }

    fn check_nak(&mut self, packet: &Packet, psn: u64) -> Checked {
        let syndrome = packet.aeth.map_or(0xff, |aeth| aeth.syndrome);
        demand!(
            self.reaches(psn) && psn == self.model.expected,
            "lockstep",
            "NAK {syndrome:#x} of PSN {}, and PSN {} is executed next",
            packet.psn,
            self.model.expected & 0xff_ffff
        );
        self.check_owed(packet, psn)?;
        self.check_msn(packet, psn - 1)?;
        match syndrome {
            0x20..0x40 => {
                let not_ready = [self.not_ready, self.kept_not_ready].contains(&Some(psn));
                demand!(
                    not_ready && syndrome & 0x1f == self.settings.rnr_timer,
                    "lockstep",
                    "an RNR NAK {syndrome:#x} of PSN {}, which is not without a receive",
                    packet.psn
                );
            }
            0x60 => {
                demand!(
                    self.nak != Some(psn) && self.ahead.keys().any(|ahead| *ahead > psn),
                    "lockstep",
                    "a sequence NAK of PSN {}, behind which nothing came, or which was complained of",
                    packet.psn
                );
                self.nak = Some(psn);
            }
            code => {
                if self.refused.is_none() {
                    self.go_on();
                }
                demand!(
                    self.refused == Some((psn, code)) && !self.told,
                    "lockstep",
                    "NAK {code:#x} of PSN {}, the model has {:x?}",
                    packet.psn,
                    self.refused
                );
                self.told = true;
            }
        }
        Ok(())
    }

    /// A READ response or an ATOMIC ACK, byte for byte.
    fn check_result(&mut self, packet: &Packet, psn: u64, memory: &Memory) -> Checked {
        let executed = self.reaches(psn + 1);
        let kept = self.model.kept_at(psn).copied().filter(|_| executed);
        let Some(kept) = kept else {
            demand!(false, "lockstep", "an answer of PSN {}, which was not asked for: {packet:?}", packet.psn);
            return Ok(());
        };
        let allowed = match kept.what {
            Answer::Atomic { found } => packet.opcode == 0x12 && packet.original == Some(found),
            Answer::Read { .. } => self.asked.iter().filter(|(from, end)| (*from..*end).contains(&psn)).any(|asked| {
                self.model.response(&kept, psn, *asked, memory).is_some_and(|response| {
                    (response.opcode, &response.payload) == (packet.opcode, &packet.payload)
                        && response.aeth.is_some() == packet.aeth.is_some()
                })
            }),
        };
        demand!(allowed, "lockstep", "PSN {} is answered otherwise than {kept:?}: {packet:02x?}", packet.psn);
        if let Some(aeth) = packet.aeth {
            demand!(
                aeth.syndrome < 0x20 && aeth.msn == kept.msn,
                "lockstep",
                "{aeth:?} in the answer of PSN {}: {kept:?}",
                packet.psn
            );
            self.check_credits(packet)?;
        }
        self.on_answered(packet, psn)
    }

    /// Answers leave for the first time in the order of their requests.
    fn on_answered(&mut self, packet: &Packet, psn: u64) -> Checked {
        let Some((from, end)) = self.owed.front_mut() else { return Ok(()) };
        demand!(psn <= *from, "lockstep", "the answer of PSN {} before that of PSN {}", packet.psn, *from & 0xff_ffff);
        if psn == *from {
            *from += 1;
            if from == end {
                self.owed.pop_front();
            }
        }
        Ok(())
    }
}

/// Whether the transport had the wanted effect, and the rest of that effect.
fn compare(did: &Did, wanted: &Effect) -> (bool, Option<Effect>) {
    match (did, wanted) {
        (Did::Write { at, bytes }, Effect::Write { at: place, bytes: all }) => {
            let fits = at == place && all.starts_with(bytes);
            let rest = (fits && bytes.len() < all.len())
                .then(|| Effect::Write { at: at + bytes.len() as u32, bytes: all[bytes.len()..].to_vec() });
            (fits, rest)
        }
        (Did::Atomic { at, before, after }, Effect::Atomic { at: place, before: found, after: then }) => {
            ((at, before, after) == (place, found, then), None)
        }
        (Did::Received(cqe), Effect::Received(arrived)) => (is_completion_of(cqe, arrived), None),
        _ => (false, None),
    }
}

fn is_completion_of(cqe: &WorkCompletion, arrived: &Arrived) -> bool {
    let op = if arrived.by_write { CompletionOp::RecvWriteImm } else { CompletionOp::Recv };
    let flag = |set: bool, flag: u8| if set { flag } else { 0 };
    let flags =
        flag(arrived.imm.is_some(), completion_flags::IMM) | flag(arrived.solicited, completion_flags::SOLICITED);
    (cqe.wr_id, cqe.status, cqe.op, cqe.byte_len, cqe.flags)
        == (arrived.wr_id, Status::Success, op, arrived.bytes, flags)
        && arrived.imm.is_none_or(|imm| imm == cqe.imm)
}
