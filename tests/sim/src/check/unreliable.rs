//! Services without answers: packets leave once and in their turn. An unreliable connection: the
//! packets that its sender sends, and those that its receiver takes. Each packet leaves once, in
//! its turn. A message goes on where the one before ended, or it is lost; late packets and
//! duplicates do not count.

use super::requester::{Sent, What};
use crate::{
    frame::Seen,
    stream::Stream,
    violation::{Checked, Violation, demand},
};

impl Stream {
    /// A packet without an answer leaves.
    pub(crate) fn check_unanswered(&mut self, seen: &Seen<'_>, now: u64) -> Result<Sent, Violation> {
        let psn = self.unwrap_psn(seen.psn);
        demand!(psn == self.frontier, "psn", "PSN {} sent where {} comes next", seen.psn, self.frontier & 0xff_ffff);
        let Some((id, at)) = self.find(psn) else {
            demand!(false, "psn", "PSN {} is of no message that was posted", seen.psn);
            unreachable!()
        };
        self.check_packet(id, at, seen)?;
        self.check_destination(id, seen)?;
        let end = psn + 1;
        // No answer says that it arrived: it is done.
        (self.frontier, self.una, self.una_at_least, self.alive_at) = (end, end, end, now);
        Ok(Sent { rows: self.message(id).expect("found").rows, what: What::First, end })
    }

    /// A datagram goes where it was posted to, with the Q_Key that is asked for.
    fn check_destination(&self, id: u64, seen: &Seen<'_>) -> Checked {
        let Some(deth) = seen.deth else { return Ok(()) };
        let to = self.message(id).expect("found").to;
        // The top bit asks for the queue pair's own.
        let qkey = if to.qkey >> 31 == 0 { to.qkey } else { self.settings.qkey };
        demand!(
            (seen.dest_qpn, deth.qkey) == (to.qpn.get(), qkey),
            "datagram",
            "PSN {} goes to {:#x} with {deth:?}, posted to {to:?}",
            seen.psn,
            seen.dest_qpn
        );
        Ok(())
    }

    /// A packet reaches the receiver, whole. Gives the message that it goes on with, and which of
    /// its packets it is.
    pub(crate) fn admit(&mut self, seen: &Seen<'_>) -> Option<(u64, u32)> {
        let psn = self.unwrap_psn(seen.psn);
        let inbox = self.inbox;
        if psn < inbox.expected {
            return None;
        }
        let (id, at) = self.find(psn).expect("messages without answers are kept");
        let follows = psn == inbox.expected;
        let goes_on = at == 0 || follows && inbox.under_way == Some(id);
        self.inbox.under_way = goes_on.then_some(id);
        if at == 0 || follows {
            self.inbox.expected = psn + 1;
        }
        goes_on.then_some((id, at))
    }
}
