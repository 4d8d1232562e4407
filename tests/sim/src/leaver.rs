//! The end of a connection that leaves: its plan, and the answers that its removed queue pair may
//! still send (checker `left-after-all`).

use roced_transport::reject::{Disposition, DropReason};

use crate::{
    frame::{Kind as FrameKind, Seen},
    message::{Kind, Message},
    stream::Stream,
    violation::{Checked, demand},
};

/// The AETH syndrome of an ACK that says nothing of credits.
const PLAIN_ACK: u8 = 0x1f;

/// The end of a connection that leaves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leaver {
    pub(crate) host: usize,
    /// It does not wait until its own requests are acknowledged.
    pub(crate) is_hasty: bool,
    /// It leaves when the connection has no more than so many frames left, done or not.
    pub(crate) early: Option<u64>,
    /// It moves its queue pair to the error state before it removes it.
    pub(crate) ends: bool,
}

/// An end that left.
#[derive(Clone, Debug)]
pub(crate) struct Left {
    /// Its queue pair has executed all of the peer's packets before the first of these PSNs, and
    /// may have executed those up to the second.
    certain: u64,
    pub(crate) possible: u64,
    /// It may have owed the answer to a READ, and acknowledges nothing behind it.
    reads: bool,
    /// Answers that read no memory, which it may have owed.
    owed: u64,
    /// PSN and MSN of its ACK.
    ack: Option<(u32, u32)>,
    /// Frames that it may answer, those that it had before it left included, and its ACKs.
    asked: u64,
    acks: u64,
}

/// An end that left, of a connection that is no more.
#[derive(Debug)]
pub(crate) struct Past {
    pub(crate) host: usize,
    pub(crate) qpn: u32,
    pub(crate) peer: u32,
    pub(crate) left: Left,
    /// Its number is in use again.
    pub(crate) is_replaced: bool,
}

impl Past {
    pub(crate) fn is(&self, host: usize, qpn: u32) -> bool {
        (self.host, self.qpn) == (host, qpn)
    }
}

impl Left {
    /// It may owe the answer to a READ.
    pub(crate) fn with_reads(self) -> Self {
        Self { reads: true, ..self }
    }

    /// The peer's message was executed before it left.
    pub(crate) fn has_executed(&self, message: &Message) -> bool {
        message.end() <= self.certain
    }

    /// It may have been.
    pub(crate) fn may_have_executed(&self, message: &Message) -> bool {
        message.end() <= self.possible
    }

    /// An answer of the end leaves.
    pub(crate) fn check_answer(&mut self, seen: &Seen<'_>) -> Checked {
        if matches!(seen.kind, FrameKind::AtomicAck | FrameKind::ReadResponse) {
            demand!(
                self.owed > 0 && seen.payload.is_empty() && self.acks == 0,
                "left-after-all",
                "a queue pair that was removed sends {:?} of PSN {}",
                seen.kind,
                seen.psn
            );
            self.owed -= 1;
            return Ok(());
        }
        let aeth = seen.aeth.filter(|aeth| seen.kind == FrameKind::Ack && aeth.syndrome == PLAIN_ACK);
        demand!(
            aeth.is_some(),
            "left-after-all",
            "a queue pair that was removed sends {:?} of PSN {} with {:x?}",
            seen.kind,
            seen.psn,
            seen.aeth
        );
        let ack = (seen.psn, aeth.map_or(0, |aeth| aeth.msn));
        let behind = |psn: u64| ((psn as u32).wrapping_sub(seen.psn + 1) << 8) as i32 >> 8;
        let is_least = self.reads || behind(self.certain) <= 0;
        demand!(
            is_least && behind(self.possible) >= 0 && self.ack.is_none_or(|before| before == ack),
            "left-after-all",
            "a queue pair that was removed acknowledges {ack:?}: {self:x?}"
        );
        self.ack = Some(ack);
        self.acks += 1;
        demand!(
            self.acks <= self.asked,
            "left-after-all",
            "a queue pair that was removed acknowledges PSN {} and was not asked: {self:x?}",
            seen.psn
        );
        Ok(())
    }

    /// A frame was given to the end's host.
    pub(crate) fn check_taken(&mut self, seen: &Seen<'_>, corrupt: bool, disposition: Disposition) -> Checked {
        let is_answered = disposition == Disposition::Dropped(DropReason::Duplicate);
        let asks = seen.ack_request || seen.ends;
        let ahead = (seen.psn.wrapping_sub(self.possible as u32) << 8) as i32 >= 0;
        let may_be = matches!(seen.kind, FrameKind::Send | FrameKind::Write) && asks && !ahead && !corrupt;
        demand!(
            !is_answered || seen.service.is_reliable() && may_be,
            "left-after-all",
            "a queue pair that was removed answers {:?} of PSN {}: {self:x?}",
            seen.kind,
            seen.psn
        );
        self.asked += u64::from(is_answered);
        Ok(())
    }
}

impl Stream {
    /// The peer's end that executes these requests leaves, with so many receives completed.
    pub(crate) fn left(&mut self, completed: u64) -> Left {
        let possible = self.unexecuted().min(self.covered);
        let received = |message: &&Message| message.recv.is_some_and(|index| index < completed);
        let received = self.messages.iter().rfind(received).map_or(self.start, Message::end);
        let (executed, _) = self.expected();
        // The bytes of a message that waits for its key are there before it is executed.
        let certain = executed.min(possible).max(received);
        let from = self.una_at_least;
        let waits = |message: &&Message| message.end() > from && message.first < possible;
        let brings = |message: &&Message| message.kind == Kind::Read;
        let answered = self.messages.iter().filter(|message| message.kind.wants_answer());
        // A repetition is answered whether the peer has had the answer before or not.
        let is_owed = |message: &&Message| waits(message) || self.repeated.contains(&message.first);
        Left {
            certain,
            possible: possible.max(certain),
            reads: answered.clone().filter(waits).any(|message| brings(&message)),
            owed: answered.filter(|message| !brings(message)).filter(is_owed).count() as u64,
            ack: None,
            asked: 1,
            acks: 0,
        }
    }

    /// All that was posted is executed.
    pub(crate) fn is_executed(&mut self) -> bool {
        self.skip_executed();
        self.executed.id == self.posted() && self.covered >= self.end && self.takers.is_empty()
    }

    /// A READ or an atomic operation before the end of a message may have no answer.
    pub(crate) fn awaits_result_before(&self, message: &Message) -> bool {
        let may_wait = |other: &&Message| other.end() > self.una_at_least && other.first < message.end();
        self.messages.iter().filter(may_wait).any(|other| other.kind.wants_answer())
    }
}
