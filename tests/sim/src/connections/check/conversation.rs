//! Datagrams of a host since it started: each has a cause, is repeated as it was and not too soon,
//! and is counted.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use roced_cm::{CmCounters, wire::Attribute};

use crate::{
    connections::{
        mad::{MadKind, SeenMad},
        tally::{ConnectionTally, Count},
    },
    violation::{Checked, demand},
};

/// A message that was sent.
#[derive(Clone, Copy, Debug)]
struct SentMad {
    last: Duration,
    times: u32,
    digest: u64,
}

/// Messages by kind, peer, the sender's number and the receiver's; a question whether the peer has
/// forgotten a connection apart from a DREQ.
type MadName = (MadKind, usize, u32, u32);
type SentName = (MadName, bool);

/// Datagrams of a host since it started.
#[derive(Debug, Default)]
pub(crate) struct Conversation {
    sent: BTreeMap<SentName, SentMad>,
    received: BTreeMap<MadName, u32>,
    /// Connections that a peer has agreed to end: by our number.
    ended: BTreeSet<(usize, u32)>,
    /// Numbers that peers have named as theirs.
    heard: BTreeSet<(usize, u32)>,
    /// Their queue pairs.
    queue_pairs: BTreeMap<(usize, u32), u32>,
    /// Sent in all, repetitions alone, and received, of each kind.
    counts: [[u64; 3]; MadKind::ALL.len()],
}

/// Repetitions of a message, at most: REQs for 74 s, and as long after an MRA.
const TIMES_MAX: u32 = 48;

impl Conversation {
    /// A datagram leaves to host `peer`.
    pub(crate) fn on_sent(
        &mut self,
        seen: &SeenMad,
        peer: usize,
        now: Duration,
        tally: &mut ConnectionTally,
    ) -> Checked {
        let SeenMad { kind, own, other, .. } = *seen;
        self.counts[kind as usize][0] += 1;
        let got = |of: MadKind, ours: u32| self.received.get(&(of, peer, other, ours)).copied().unwrap_or(0);
        let has_cause = match kind {
            MadKind::Req | MadKind::SidrReq => own != 0,
            MadKind::Rep => own != 0 && got(MadKind::Req, 0) > 0,
            MadKind::Rtu => got(MadKind::Rep, own) > 0,
            MadKind::Drep => got(MadKind::Dreq, own) > 0,
            MadKind::SidrRep => got(MadKind::SidrReq, 0) > 0,
            MadKind::Mra => got(MadKind::Req, 0) > 1 || got(MadKind::Rep, own) > 1,
            MadKind::Dreq if is_question(seen) => self.is_asked_for_again(peer, other),
            MadKind::Dreq => self.queue_pairs.get(&(peer, other)) == Some(&seen.qpn),
            MadKind::Rej => other == 0 || self.heard.contains(&(peer, other)),
        };
        demand!(has_cause, "conversation", "to host {peer}: {seen:?} has no cause");
        let is_answered = match kind {
            MadKind::Dreq => !is_question(seen) && self.ended.contains(&(peer, own)),
            MadKind::Rep => got(MadKind::Rtu, own) > 0,
            _ => false,
        };
        demand!(!is_answered, "repetition", "to host {peer}: {seen:?} is answered");
        if kind == MadKind::Mra {
            tally.count(Count::Mras);
        }
        self.check_repetition(seen, peer, now, tally)
    }

    /// Another connection of the peer has the queue pair of this one.
    fn is_asked_for_again(&self, peer: usize, number: u32) -> bool {
        let Some(of_this) = self.queue_pairs.get(&(peer, number)) else { return false };
        let mut others = self.queue_pairs.range((peer, 0)..=(peer, u32::MAX));
        others.any(|((_, other), qpn)| *other != number && qpn == of_this)
    }

    fn check_repetition(&mut self, seen: &SeenMad, peer: usize, now: Duration, tally: &mut ConnectionTally) -> Checked {
        let soonest = match seen.kind {
            MadKind::Req | MadKind::Rep | MadKind::Dreq => Duration::from_millis(250),
            MadKind::SidrReq => Duration::from_secs(4),
            MadKind::Rtu => Duration::ZERO,
            MadKind::Mra | MadKind::Rej | MadKind::Drep | MadKind::SidrRep => return Ok(()),
        };
        let is_question = is_question(seen);
        let name = ((seen.kind, peer, seen.own, seen.other), is_question);
        let Some(before) = self.sent.get_mut(&name) else {
            self.sent.insert(name, SentMad { last: now, times: 1, digest: seen.digest });
            return Ok(());
        };
        let gap = now - before.last;
        (before.last, before.times) = (now, before.times + 1);
        self.counts[seen.kind as usize][1] += 1;
        tally.count(Count::Repetitions);
        demand!(
            // The peer's request, which comes again, causes each question.
            gap >= soonest && before.times <= TIMES_MAX || seen.kind == MadKind::Rtu || is_question,
            "repetition",
            "to host {peer}: {seen:?} again after {gap:?}, the {}. time",
            before.times
        );
        demand!(before.digest == seen.digest, "repetition", "to host {peer}: {seen:?} with other bytes");
        Ok(())
    }

    /// A datagram comes from host `peer`.
    pub(crate) fn on_received(&mut self, seen: &SeenMad, peer: usize) {
        self.counts[seen.kind as usize][2] += 1;
        *self.received.entry((seen.kind, peer, seen.own, seen.other)).or_insert(0) += 1;
        self.heard.insert((peer, seen.own));
        // It names ours, and answers a DREQ.
        let dreq = ((MadKind::Dreq, peer, seen.other, seen.own), false);
        if seen.kind == MadKind::Drep && self.sent.contains_key(&dreq) {
            self.ended.insert((peer, seen.other));
        }
        if matches!(seen.kind, MadKind::Req | MadKind::Rep) {
            self.queue_pairs.insert((peer, seen.own), seen.qpn);
        }
    }

    /// Counters equal the datagrams.
    pub(crate) fn check_counters(&self, host: usize, counters: &CmCounters) -> Checked {
        for ((kind, attribute), [sent, repeated, received]) in MadKind::ALL.iter().zip(Attribute::ALL).zip(self.counts)
        {
            let of = counters.of(attribute);
            demand!(
                (of.sent + of.repeated, of.received) == (sent, received),
                "counters",
                "host {host}: {sent} {kind:?} sent and {received} received, counted are {of:?}"
            );
            let is_exact =
                matches!(kind, MadKind::Req | MadKind::Rep | MadKind::Rtu | MadKind::Dreq | MadKind::SidrReq);
            demand!(
                !is_exact || of.repeated == repeated,
                "counters",
                "host {host}: {repeated} repetitions of {kind:?}, counted are {of:?}"
            );
        }
        Ok(())
    }
}

/// A DREQ for no queue pair: its receiver answers if it has forgotten the connection.
fn is_question(seen: &SeenMad) -> bool {
    seen.kind == MadKind::Dreq && seen.qpn == 0
}
