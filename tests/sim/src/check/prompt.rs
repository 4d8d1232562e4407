//! No waiting for nothing: where the network did nothing to a connection's frames, work that waits
//! goes on when the last answer is here, or a request asks for it at once.
//!
//! LOCAL_INV, the drain of a send queue, a READ that needs the window and everything else that
//! waits for the acknowledgment of messages may stand behind messages without a request for an ACK.
//! Then no answer is on its way, and a requester that does not ask waits for a probe or a timer. So
//! a silence is measured: from the moment in which the last frame of the connection arrived to that
//! in which its requester goes on.

use crate::{
    connection::Drain,
    message::Kind,
    stream::Stream,
    violation::{Checked, demand},
};

/// Longest silence, in nanoseconds: half of the shortest probe there is.
const SILENCE_MAX: u64 = 10_000;

impl Stream {
    /// Since when work waits for the acknowledgment of sent packets, if some does: all before it is
    /// sent.
    fn awaits_ack(&self, drain: Drain) -> Option<u64> {
        // A requester that keeps early answers may have all that lies before `una`.
        if self.una >= self.frontier {
            return None;
        }
        if let Drain::Draining { since } = drain
            && self.find(self.frontier).is_none_or(|(_, at)| at == 0)
        {
            return Some(since);
        }
        let place = self.messages.partition_point(|message| message.first < self.frontier);
        let next =
            self.messages.get(place).filter(|message| message.first == self.frontier && message.recv.is_none())?;
        let window = u64::from(self.settings.window);
        let is_full = self.frontier - self.una >= window;
        let waits = match next.kind {
            Kind::LocalInvalidate => true,
            Kind::Read => is_full || u64::from(next.packets) >= window,
            _ => is_full,
        };
        waits.then_some(next.posted_at)
    }

    /// The requester is about to go on. `quiet_from` is when the last frame of the connection
    /// arrived.
    pub(crate) fn check_silence(&self, quiet_from: u64, drain: Drain, now: u64) -> Checked {
        let Some(since) = self.awaits_ack(drain) else { return Ok(()) };
        if self.timed_out || self.waiting || !self.disturbed.is_empty() || self.frontier <= self.sent_again_until {
            return Ok(());
        }
        // A peer that was making a key invalid may have dropped it, which is a loss like others.
        if self.una < self.meanwhile {
            return Ok(());
        }
        let silence = now.saturating_sub(since.max(quiet_from).max(self.rnr_until));
        demand!(
            silence <= SILENCE_MAX,
            "prompt",
            "work waits for the acknowledgment of PSN {} to {}, and nothing was on its way for {silence} ns",
            self.una & 0xff_ffff,
            (self.frontier - 1) & 0xff_ffff
        );
        Ok(())
    }
}
