//! Answers of a responder: to packets that arrived, and never more than that.

use crate::{
    frame::{Kind as FrameKind, Seen},
    message::{Kind, Outcome},
    operation::{Trait, trait_bit},
    stream::Stream,
    violation::{Checked, demand},
};

impl Stream {
    /// A request reaches the responder, whole.
    pub(crate) fn on_request(&mut self, seen: &Seen<'_>) {
        let psn = self.unwrap_psn(seen.psn);
        let packets = seen
            .reth
            .filter(|_| seen.kind == FrameKind::ReadRequest)
            .map_or(1, |reth| reth.length.div_ceil(self.mtu()).max(1));
        if let Some((id, _)) = self.find(psn)
            && let Some(message) = self.message(id)
            && (matches!(message.outcome, Outcome::RemoteAccess | Outcome::RemoteInvalid) || message.may_fail)
        {
            self.refusal_arrived = true;
        }
        let end = psn + u64::from(packets);
        if self.is_invalidating(psn) {
            self.meanwhile = self.meanwhile.max(end);
            self.peer_was_slow = true;
        }
        if psn > self.covered {
            if self.covered == self.start {
                // Nothing is held before the first was taken.
                self.excuse(0);
            }
            if !self.beyond.contains(&(psn, end)) {
                self.beyond.push((psn, end));
            }
            return;
        }
        self.covered = self.covered.max(end);
        while let Some(at) = self.beyond.iter().position(|(first, _)| *first <= self.covered) {
            let (_, end) = self.beyond.swap_remove(at);
            self.covered = self.covered.max(end);
        }
    }

    /// An answer leaves. Gives the rows of the message that it is about.
    pub(crate) fn check_answer(&mut self, seen: &Seen<'_>) -> Result<u64, crate::violation::Violation> {
        let psn = self.unwrap_psn(seen.psn);
        let is_nak = seen.kind == FrameKind::Ack && seen.aeth.is_some_and(|aeth| aeth.syndrome == 0x60);
        // A NAK that a frame of an earlier life provoked may name a PSN that was not sent yet.
        let end = self.frontier + u64::from(is_nak && self.provokes(psn));
        demand!(psn < end, "ack", "an answer for PSN {}, which was never sent", seen.psn);
        if seen.kind == FrameKind::ReadResponse {
            self.check_response(seen, psn)?;
            self.on_reply(psn);
            return Ok(self.rows_at(psn));
        }
        if seen.kind == FrameKind::AtomicAck {
            self.check_atomic_ack(seen, psn)?;
            self.on_reply(psn);
            return Ok(self.rows_at(psn));
        }
        let aeth = seen.aeth.expect("an ACK has one");
        // The PSN that the answer says is next.
        let next = if aeth.syndrome >> 5 == 0 { psn + 1 } else { psn };
        let msn = self.msn_at(next);
        demand!(
            msn.is_none_or(|msn| msn == aeth.msn) || aeth.syndrome > 0x60,
            "msn",
            "syndrome 0x{:02x}, PSN {}: MSN {} where {msn:?} messages are complete",
            aeth.syndrome,
            seen.psn,
            aeth.msn
        );
        match aeth.syndrome {
            0..0x20 => self.check_ack(seen, psn)?,
            0x20..0x40 => self.check_rnr(seen, psn)?,
            0x60 => self.check_sequence_nak(seen, psn)?,
            _ => self.check_refusal(seen, psn, aeth.syndrome)?,
        }
        Ok(self.rows_at(psn))
    }

    fn check_ack(&mut self, seen: &Seen<'_>, psn: u64) -> Checked {
        demand!(psn < self.covered, "ack", "ACK of PSN {}, and {} has not arrived", seen.psn, self.covered & 0xff_ffff);
        let unexecuted = self.unexecuted();
        demand!(psn < unexecuted, "ack", "ACK of PSN {}, and {} was not executed", seen.psn, unexecuted & 0xff_ffff);
        let last = self.last_ack.replace(psn).unwrap_or(psn);
        demand!(psn >= last, "ack", "ACK of PSN {} after one of {}", seen.psn, last & 0xff_ffff);
        Ok(())
    }

    /// The PSN of a NAK is the expected one: all before it was executed, and it was not.
    fn check_expected(&mut self, seen: &Seen<'_>, psn: u64) -> Checked {
        let (written, unexecuted) = (self.written, self.unexecuted());
        demand!(
            (written..=unexecuted).contains(&psn),
            "nak-psn",
            "NAK of PSN {}: executed up to {}, not from {} on",
            seen.psn,
            written & 0xff_ffff,
            unexecuted & 0xff_ffff
        );
        Ok(())
    }

    fn check_sequence_nak(&mut self, seen: &Seen<'_>, psn: u64) -> Checked {
        self.check_expected(seen, psn)?;
        // A responder that makes a key invalid may have had to drop the very packet meanwhile.
        let is_behind = psn < self.meanwhile;
        let ahead = self.beyond.iter().any(|(first, _)| *first > psn) || self.covered > psn + u64::from(!is_behind);
        demand!(ahead || self.provokes(psn), "nak-psn", "NAK of PSN {} and nothing came ahead of it", seen.psn);
        let borne = self.borne_from.is_some_and(|from| psn >= from);
        demand!(!borne || is_behind || !ahead, "reorder", "NAK of PSN {}, which is only overtaken", seen.psn);
        if !ahead {
            // Each is a reason for one, and that may cost a retry.
            if let Some(at) = self.provoked.iter().position(|(low, high)| (*low..=*high).contains(&psn)) {
                self.provoked.remove(at);
            }
            self.on_disturbed(psn);
            self.excuse(0);
        }
        let last = self.last_nak.replace(psn);
        demand!(last.is_none_or(|last| psn > last), "nak-once", "a second NAK of PSN {}", seen.psn);
        Ok(())
    }

    /// A key is being made invalid, and a request with this PSN comes too early.
    pub(crate) fn is_invalidating(&mut self, psn: u64) -> bool {
        self.skip_executed();
        let next = self.message(self.executed.id);
        next.is_some_and(|next| next.invalidates && !next.invalidated && next.end() <= self.covered.min(psn))
    }

    /// A request of an earlier life came when this PSN was expected, or may have been.
    fn provokes(&self, psn: u64) -> bool {
        self.provoked.iter().any(|(low, high)| (*low..=*high).contains(&psn))
    }

    fn check_rnr(&mut self, seen: &Seen<'_>, psn: u64) -> Checked {
        self.check_expected(seen, psn)?;
        let (id, at) = self.find(psn).expect("sent before");
        let message = self.message_mut(id).expect("found");
        let takes = message.kind == Kind::Send || (message.imm.is_some() && at + 1 == message.packets);
        message.rows |= trait_bit(Trait::ReceiverNotReady);
        // Packets that follow are dropped until this one comes again, and they may overtake
        // it.
        self.excuse(self.settings.window.into());
        demand!(takes, "rnr", "RNR NAK of PSN {}, which takes no receive", seen.psn);
        Ok(())
    }

    fn check_refusal(&mut self, seen: &Seen<'_>, psn: u64, syndrome: u8) -> Checked {
        let (id, _) = self.find(psn).expect("sent before");
        let message = self.message(id).expect("found");
        let expected = match message.outcome {
            Outcome::RemoteInvalid => syndrome == 0x61,
            Outcome::RemoteAccess => syndrome == 0x62,
            _ => syndrome == 0x62 && message.may_fail,
        };
        demand!(expected, "refusal", "NAK 0x{syndrome:02x} of PSN {} for {message:?}", seen.psn);
        self.check_not_answered(psn)?;
        self.check_owed(psn)?;
        let message = self.message(id).expect("found");
        // A key that is none any more is found out when all bytes of the message are there.
        if message.invalidates && psn + 1 == message.end() {
            return Ok(());
        }
        self.check_expected(seen, psn)
    }

    /// The original value of an atomic operation, the one time that it was executed.
    fn check_atomic_ack(&mut self, seen: &Seen<'_>, psn: u64) -> Checked {
        let Some((id, _)) = self.find(psn) else { return Ok(()) };
        let message = self.message(id).expect("found");
        demand!(
            message.kind.is_atomic() && message.found.is_some() && message.found == seen.original,
            "atomic",
            "ATOMIC ACK of PSN {} with {:x?}: {message:x?}",
            seen.psn,
            seen.original
        );
        let msn = self.msn_at(psn + 1);
        demand!(
            seen.aeth.is_some_and(|aeth| msn.is_none_or(|msn| msn == aeth.msn)),
            "msn",
            "ATOMIC ACK of PSN {}: {:?}, and the request is message {msn:?}",
            seen.psn,
            seen.aeth
        );
        Ok(())
    }

    fn check_response(&mut self, seen: &Seen<'_>, psn: u64) -> Checked {
        demand!(
            psn < self.covered || self.beyond.iter().any(|(first, end)| (*first..*end).contains(&psn)),
            "ack",
            "READ response of PSN {}, which was not asked for",
            seen.psn
        );
        let Some((id, at)) = self.find(psn) else { return Ok(()) };
        let message = self.message(id).expect("found");
        let answers = message.kind.wants_answer() && !message.kind.is_atomic();
        demand!(answers, "read-response", "READ response of PSN {}, which is no READ", seen.psn);
        demand!(
            !matches!(message.outcome, Outcome::RemoteAccess | Outcome::RemoteInvalid),
            "stale-key",
            "a READ that must be refused is answered: {message:?}"
        );
        self.skip_executed();
        // Annex A19: the range of a FLUSH, and the eight bytes of an atomic WRITE, are visible
        // before the answer is. A READ, too, sees all that comes before it.
        demand!(
            self.executed.id > id,
            "placement",
            "PSN {} is answered, and message {} is executed next: {:?}",
            seen.psn,
            self.executed.id,
            self.message(id)
        );
        let message = self.message(id).expect("found");
        if message.kind != Kind::Read {
            demand!(
                seen.payload.is_empty() && seen.begins && seen.ends,
                "read-response",
                "PSN {} is answered by {} bytes: {message:?}",
                seen.psn,
                seen.payload.len()
            );
            return self.check_response_msn(seen, message.end());
        }
        let skip = at * self.mtu();
        let bytes = (message.length - skip).min(self.mtu()) as usize;
        // Data that the requester has had already may have been overwritten since.
        let wanted = psn >= self.una;
        demand!(
            seen.payload.len() == bytes && (!wanted || self.may_bring(id, skip, seen.payload)),
            "read-response",
            "PSN {}: {} bytes that are not the {bytes} of the READ at {skip}",
            seen.psn,
            seen.payload.len()
        );
        let Some(end) = self.request_end(psn) else { return Ok(()) };
        if seen.ends && psn + 1 == end {
            self.on_answered_to_end(end);
        }
        let may_end = psn + 1 == end || self.part_ends.contains(&(psn + 1));
        demand!(
            if seen.ends { may_end } else { psn + 1 != end },
            "read-response",
            "PSN {} has opcode 0x{:02x}, and the request ends before PSN {}",
            seen.psn,
            seen.opcode,
            end & 0xff_ffff
        );
        self.check_response_msn(seen, end)
    }

    /// The MSN of a response to the request that ends there.
    fn check_response_msn(&self, seen: &Seen<'_>, end: u64) -> Checked {
        let msn = self.msn_at(end);
        demand!(
            seen.aeth.is_none_or(|aeth| msn.is_none_or(|msn| msn == aeth.msn)),
            "msn",
            "READ response of PSN {}: {:?}, and the request is message {msn:?}",
            seen.psn,
            seen.aeth
        );
        Ok(())
    }
}
