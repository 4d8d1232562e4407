//! End-to-end flow control of the sending side: how far the peer's answers let it go (IBTA v1
//! 9.7.7.2).

use crate::{
    reference::{Op, Packet, Posted, credits, unwrap},
    violation::{Checked, demand},
};

/// Far from the wrap of the count.
const BASE: u64 = 1 << 32;

/// Knowledge of the limit. It is the highest that any answer allowed, so it is never below the
/// transport's.
#[derive(Debug)]
pub(crate) struct Limit {
    /// Messages that were sent, as the peer's MSN counts them.
    sent: u64,
    /// The last message that a receive was offered for.
    limit: u64,
    /// The transport must have taken an offer.
    is_known: bool,
    /// The packet that was sent beyond the limit last, and the number of its message.
    probe: Option<(u64, u64)>,
}

impl Limit {
    pub(crate) const fn new() -> Self {
        Self { sent: BASE, limit: 0, is_known: false, probe: None }
    }

    /// An answer to sent packets is about to be given to the transport. `must_count`: it is not of
    /// the past.
    pub(crate) fn on_answer(&mut self, packet: &Packet, must_count: bool) {
        let Some(aeth) = packet.aeth.filter(|aeth| aeth.syndrome < 0x20) else { return };
        match credits(aeth.syndrome) {
            Some(credits) => {
                self.limit = self.limit.max(unwrap(aeth.msn, self.sent) + credits);
                self.is_known |= must_count;
            }
            None => self.is_known = false,
        }
    }

    /// A packet leaves for the first time; all before `una` may be acknowledged. Beyond the limit
    /// one packet at a time goes, and asks.
    pub(crate) fn check(&mut self, packet: &Packet, psn: u64, posted: &Posted, una: u64) -> Checked {
        let number = self.sent + 1;
        // A READ counts with each of its requests.
        if posted.work.op == Op::Read || psn + 1 == posted.end {
            self.sent = number;
        }
        // Of a SEND of which a packet was taken the receive is taken as well.
        let has_receive = posted.work.op == Op::Send && una > posted.first;
        if !self.is_known || number <= self.limit || !posted.work.takes_receive() || has_receive {
            return Ok(());
        }
        demand!(
            packet.ack_request,
            "lockstep",
            "PSN {} of message {} is beyond the limit {} and does not ask",
            packet.psn,
            number - BASE,
            self.limit as i64 - BASE as i64
        );
        // A packet beyond the limit then may be within it now.
        let probe = self.probe.replace((psn, number)).filter(|(psn, number)| *psn >= una && *number > self.limit);
        demand!(
            probe.is_none(),
            "lockstep",
            "PSN {} of message {} is sent, the limit is {}, and PSN {} beyond it has no answer",
            packet.psn,
            number - BASE,
            self.limit as i64 - BASE as i64,
            probe.map_or(0, |(psn, _)| psn & 0xff_ffff)
        );
        Ok(())
    }
}
