//! Memory that its application has used again, because the peer's application said that the message
//! arrived: nothing reads it, unless something of the message was lost.
//!
//! No rule of the specification gives the memory back before the completion. Programs take it back
//! all the same, because an unsignaled message has none, and adapters let them: without a loss
//! nothing is sent again. Where a frame of the message or its ACK was lost, damaged or late, or the
//! ACK timer ran out, an adapter sends again as well; there nothing is demanded. Neither is where
//! the peer made a key invalid, for which it answers late.

use crate::{
    frame::Seen,
    message::Message,
    stream::Stream,
    violation::{Checked, demand},
};

impl Stream {
    /// The application has used the memory of all messages up to `until` again, or taken it away.
    pub(crate) fn on_reused(&mut self, until: u64, deregistered: bool) {
        let base = self.posted() - self.messages.len() as u64;
        let used = (until + 1).saturating_sub(base) as usize;
        for message in self.messages.iter_mut().take(used) {
            if message.reuses {
                // It may have been written to first, and be taken away now.
                message.reused = Some(deregistered || message.reused == Some(true));
            }
        }
    }

    /// A packet of the message leaves.
    pub(super) fn check_reused(&self, message: &Message, psn: u32, bytes: usize) -> Checked {
        demand!(
            message.reused.is_none() || bytes == 0 || self.is_excused(message),
            "reuse",
            "PSN {psn} leaves with {bytes} bytes; the peer has said that message {} arrived, and its memory is used again",
            message.wr_id
        );
        Ok(())
    }

    /// The message failed for its memory.
    pub(super) fn check_taken_away(&self, message: &Message) -> Checked {
        demand!(
            message.reused != Some(true) || self.is_excused(message),
            "reuse",
            "message {} fails for its memory, which was taken away when the peer said that the message arrived",
            message.wr_id
        );
        Ok(())
    }

    /// All before `to` is acknowledged. A go-back-N requester sends all again that was under way
    /// when a loss before it is made good.
    pub(super) fn on_made_good(&mut self, to: u64) {
        if self.timed_out || self.disturbed.iter().any(|psn| *psn < to) {
            self.sent_again_until = self.frontier;
        }
        self.disturbed.retain(|psn| *psn >= to);
        (self.timed_out, self.peer_was_slow) = (false, false);
    }

    /// A packet that came before its turn was not held: it is as good as lost.
    pub(crate) fn on_not_held(&mut self, seen: &Seen<'_>) {
        let psn = self.unwrap_psn(seen.psn);
        if psn >= self.una_at_least {
            self.on_disturbed(psn);
        }
    }

    /// Some unacknowledged packet was lost, damaged or late, or the ACK timer ran out; or one of
    /// these happened and all is sent again. A peer that has failed acknowledges nothing.
    fn is_excused(&self, message: &Message) -> bool {
        self.is_unheard
            || self.timed_out
            || self.peer_was_slow
            || !self.disturbed.is_empty()
            || message.first < self.sent_again_until
    }
}
