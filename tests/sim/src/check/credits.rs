//! End-to-end flow control: the offers of a responder, and that a requester keeps to them.

use crate::{
    connection::End,
    frame::Seen,
    message::{Kind, Message},
    stream::Stream,
    violation::{Checked, demand},
};

/// Credits of each code (IBTA v1 table 46).
const CREDITS: [u64; 31] = [
    0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144,
    8192, 12288, 16384, 24576, 32768,
];

/// No flow control.
const NONE: u8 = 31;

impl End {
    /// An answer leaves. It offers as many receives as are posted, rounded down, or has no flow
    /// control.
    pub(crate) fn check_offer(&self, seen: &Seen<'_>) -> Checked {
        let Some(code) = seen.aeth.map(|aeth| aeth.syndrome).filter(|syndrome| *syndrome < 0x20) else { return Ok(()) };
        if self.failed {
            // The call in which it left has flushed receives as well.
            return Ok(());
        }
        // Of a shared queue it has posted none itself.
        let posted = self.receives.posted.saturating_sub(self.receives.completed);
        let offers = self.stream.settings.credits && !self.is_shared;
        let right = if offers { CREDITS.iter().rposition(|count| *count <= posted).expect("0 is") as u8 } else { NONE };
        demand!(
            code == right,
            "credits",
            "PSN {} is answered with credit code {code}, {posted} receives are posted: {right}",
            seen.psn
        );
        Ok(())
    }
}

impl Stream {
    /// An answer reaches the requester, which had nothing from `una` on acknowledged, as far as is
    /// certain. `psn` is the answer's own.
    pub(super) fn note_credits(&mut self, seen: &Seen<'_>, psn: u64, una: u64) {
        let Some(aeth) = seen.aeth.filter(|aeth| aeth.syndrome < 0x20 && psn < self.frontier) else { return };
        let Some(credits) = CREDITS.get(usize::from(aeth.syndrome)) else {
            self.credits.is_known = false;
            return;
        };
        // It counts no more than was sent.
        let sent = self.requests_base + self.requests.len() as u64;
        let msn = sent - (sent.wrapping_sub(aeth.msn.into()) & 0x00ff_ffff);
        self.credits.limit = self.credits.limit.max(msn + credits);
        // One of the past may be passed over, and so may one behind a gap.
        self.credits.is_known |= self.settings.credits && (una..self.una_at_least).contains(&psn);
    }

    /// A packet of message `id` leaves for the first time.
    pub(crate) fn check_limit(&mut self, id: u64, psn: u64, asks: bool) -> Checked {
        let message = self.message(id).expect("found");
        let has_receive = self.has_receive(message);
        let number = self.msn_at(message.end()).unwrap_or(0);
        let limit = self.credits.limit;
        let is_ahead = |number: u32| (1..1 << 23).contains(&(number.wrapping_sub(limit as u32) & 0x00ff_ffff));
        let is_beyond = self.credits.is_known && is_ahead(number);
        if !message.takes_receive() || has_receive || !is_beyond {
            return Ok(());
        }
        demand!(
            asks,
            "credits",
            "PSN {} of message {number} is beyond the limit and asks for no answer",
            psn & 0xff_ffff
        );
        let una = self.una;
        let probe = self.credits.probe.replace((psn, number));
        // A packet beyond the limit then may be within it now, or its message may have a receive.
        let has_receive =
            |psn| self.find(psn).and_then(|(id, _)| self.message(id)).is_some_and(|it| self.has_receive(it));
        let probe = probe.filter(|(psn, number)| *psn >= una && is_ahead(*number) && !has_receive(*psn));
        demand!(
            probe.is_none(),
            "credits",
            "PSN {} of message {number} is sent, the limit is {}, and PSN {} beyond it has no answer",
            psn & 0xff_ffff,
            limit,
            probe.map_or(0, |(psn, _)| psn & 0xff_ffff)
        );
        Ok(())
    }

    /// The first packet of a SEND that is taken takes its receive: the rest of it needs none,
    /// regardless of the limit (IBTA v1 9.7.7.2).
    fn has_receive(&self, message: &Message) -> bool {
        message.kind == Kind::Send && message.first < self.una
    }
}
