//! End-to-end flow control: message credits of a reliable connection (IBTA v1 9.7.7.2).
//!
//! In each AETH a responder advertises the receives that are posted; a requester sends messages
//! that take a receive only within them. Both count messages like the responder's MSN: each SEND,
//! WRITE and atomic operation, and each READ request on the wire.
//!
//! ```text
//!   responder   MSN, posted receives ──► AETH (MSN, code) ──► limit = MSN + credits   requester
//! ```
//!
//! Beyond the limit the requester sends one packet at a time, which asks for an answer: an RNR NAK,
//! or an ACK with a new limit. Hence a lost offer delays nothing for longer than a round trip.
//! Nothing is limited before the first offer of a life: the specification would begin a connection
//! with one packet and a round trip, but a receiver that is not ready reports this by an RNR NAK as
//! well.

use crate::{
    psn::Psn,
    qp::{QpBase, send_queue::SendEntry},
    wire::aeth::{Aeth, Syndrome},
};

/// Credits of each code (IBTA v1 table 46). The code after the last, [`Syndrome::NO_CREDITS`],
/// advertises none because no flow control is in use.
const CREDITS: [u32; 31] = [
    0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144,
    8192, 12288, 16384, 24576, 32768,
];

/// Greatest distance of an MSN behind the last message sent; an MSN further behind belongs to
/// another life. Exceeds the number of packets, hence of messages, in any window.
const MSN_AGE_MAX: i32 = 1 << 22;

/// Code of the largest count not above `receives`.
pub(crate) fn encode(receives: u32) -> u8 {
    (CREDITS.partition_point(|credits| *credits <= receives) - 1) as u8
}

/// Count of a code; `None` without flow control.
pub(crate) fn decode(code: u8) -> Option<u32> {
    CREDITS.get(usize::from(code)).copied()
}

/// Distance of message number `number` from `base`: message numbers wrap like PSNs.
const fn distance(number: u32, base: u32) -> i32 {
    Psn::new(number).distance_from(Psn::new(base))
}

/// Credit limit of a requester.
#[derive(Debug, Default)]
pub(crate) struct CreditLimit {
    /// Messages sent, counted like the peer's MSN; only the low 24 bits are significant.
    sent: u32,
    /// Last message for which a receive is known to be posted (LSN), once the peer advertised any.
    limit: Option<u32>,
    /// Last packet sent beyond the limit.
    probe: Option<Psn>,
}

impl CreditLimit {
    /// Number of the next message to be sent (SSN); the first is 1.
    pub(crate) const fn next(&self) -> u32 {
        Psn::new(self.sent.wrapping_add(1)).get()
    }

    /// Counts a message, or a READ request, all packets of which were sent for the first time.
    pub(crate) const fn on_message_sent(&mut self) {
        self.sent = self.next();
    }

    /// Applies the credits of an answer, or the absence of flow control. The limit never goes back:
    /// answers that arrive late advertised less. Returns true when more may be sent than before.
    pub(crate) fn on_answer(&mut self, aeth: &Aeth) -> bool {
        let Syndrome::Ack { credit } = aeth.syndrome else { return false };
        let Some(credits) = decode(credit) else { return self.limit.take().is_some() };
        if !(0..=MSN_AGE_MAX).contains(&distance(self.sent, aeth.msn)) {
            return false;
        }
        let limit = aeth.msn.wrapping_add(credits);
        let raised = self.limit.is_none_or(|known| distance(limit, known) > 0);
        if raised {
            self.limit = Some(limit);
        }
        raised
    }

    /// The message needs a receive that the peer is not known to have. A SEND has its receive once
    /// the peer has accepted one of its packets.
    pub(crate) fn is_beyond(&self, entry: &SendEntry, oldest: Psn) -> bool {
        let Some(limit) = self.limit else { return false };
        entry.takes_receive()
            && distance(entry.ssn(), limit) > 0
            && !(entry.is_send() && oldest.distance_from(entry.first_psn) > 0)
    }

    /// A packet beyond the limit, before the one at `cursor`, was sent and is not answered.
    pub(crate) fn awaits_probe(&self, cursor: Psn, oldest: Psn) -> bool {
        self.probe.is_some_and(|probe| probe.distance_from(oldest) >= 0 && probe.distance_from(cursor) < 0)
    }

    /// Notes that the packet with `psn`, which is beyond the limit, was sent, or may have been.
    pub(crate) const fn on_probe(&mut self, psn: Psn) {
        self.probe = Some(psn);
    }
}

/// Credits advertised by a responder.
#[derive(Debug, Default)]
pub(crate) struct CreditOffer {
    /// Last message for which the peer was told that a receive is posted.
    limit: u32,
    /// Unsolicited offers are allowed: a request of this life was executed, and it came from no
    /// plain peer. A plain peer uses no credits, and an unexpected ACK harms it
    /// (`docs/conformance.md`).
    tells: bool,
}

impl CreditOffer {
    /// Notes that a request was executed.
    pub(crate) const fn on_executed(&mut self, is_plain: bool) {
        self.tells = !is_plain;
    }

    /// No request of this life was executed, or the last came from a plain peer.
    pub(crate) const fn is_to_plain(&self) -> bool {
        !self.tells
    }

    /// Syndrome of an answer with this MSN, which is about to be sent. With a shared receive queue
    /// no count belongs to one queue pair (IBTA v1 10.2.9), so none is advertised.
    pub(crate) fn syndrome(&mut self, msn: u32, base: &QpBase) -> Syndrome {
        if !base.offers_credits() {
            return Syndrome::ACK;
        }
        let credit = encode(base.receives);
        let limit = msn + CREDITS[usize::from(credit)];
        if distance(limit, self.limit) > 0 {
            self.limit = limit;
        }
        Syndrome::Ack { credit }
    }

    /// True when a receive is posted and the peer, by the last offer, would send no message that
    /// takes one. Later offers travel in the answers that the peer asks for.
    pub(crate) fn is_due(&self, msn: u32, base: &QpBase) -> bool {
        self.tells && base.offers_credits() && base.receives > 0 && distance(self.limit, msn) <= 0
    }
}

impl QpBase {
    fn offers_credits(&self) -> bool {
        self.config.credits && self.srq.is_none()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ACK: fn(u32, u8) -> Aeth = |msn, credit| Aeth { syndrome: Syndrome::Ack { credit }, msn: msn & 0x00ff_ffff };

    /// A requester that has sent `sent` messages.
    fn after(sent: u32) -> CreditLimit {
        CreditLimit { sent, ..CreditLimit::default() }
    }

    /// Messages it may still send.
    fn left(limit: &CreditLimit) -> Option<i32> {
        Some(distance(limit.limit?, limit.sent))
    }

    #[test]
    fn codes_are_the_specifications_and_a_count_is_rounded_down() {
        assert_eq!([4, 5, 6, 7, 8, 30].map(decode), [4, 6, 8, 12, 16, 32768].map(Some));
        assert_eq!(decode(Syndrome::NO_CREDITS), None);
        for code in 0..31 {
            let count = decode(code).expect("a count");
            assert_eq!(encode(count), code);
            assert_eq!(encode(count + 1), if count < 4 { code + 1 } else { code });
            if code > 6 {
                assert_eq!(count, 2 * decode(code - 2).expect("a count"), "code {code}");
            }
        }
        assert_eq!((encode(5), encode(7), encode(32767), encode(u32::MAX)), (4, 5, 29, 30));
    }

    #[test]
    fn nothing_is_limited_before_the_first_offer_nor_without_flow_control() {
        let mut limit = after(3);
        assert_eq!(left(&limit), None);
        for syndrome in [Syndrome::Rnr { timer: 1 }, Syndrome::Nak(crate::wire::aeth::NakCode::PsnSequence)] {
            assert!(!limit.on_answer(&Aeth { syndrome, msn: 1 }));
            assert_eq!(left(&limit), None);
        }
        limit.on_answer(&ACK(3, 2));
        assert_eq!(left(&limit), Some(2));
        assert!(limit.on_answer(&ACK(3, Syndrome::NO_CREDITS)));
        assert_eq!(left(&limit), None);
    }

    #[test]
    fn the_limit_never_goes_back_and_crosses_the_wrap() {
        let mut limit = after(0x00ff_fffd);
        assert!(limit.on_answer(&ACK(0x00ff_fffd, 4)));
        assert_eq!(left(&limit), Some(4));
        assert!(!limit.on_answer(&ACK(0x00ff_fffc, 4)), "late");
        (0..4).for_each(|_| limit.on_message_sent());
        assert_eq!((limit.next(), left(&limit)), (2, Some(0)));
        assert!(!limit.on_answer(&ACK(0x00ff_ffff, 2)), "as much as is known");
        assert!(limit.on_answer(&ACK(0, 2)));
        assert_eq!(left(&limit), Some(1));
    }

    #[test]
    fn a_count_of_another_life_is_not_believed() {
        let mut limit = after(10);
        for msn in [11, 1000, 0x0080_0000, 0x0080_000b] {
            assert!(!limit.on_answer(&ACK(msn, 3)), "MSN {msn}");
        }
        assert_eq!(left(&limit), None);
    }

    proptest! {
        /// With receives posted at any time and answers lost and delayed, the limit never exceeds
        /// the posted receives, and an answer that arrives allows the count of its code.
        #[test]
        fn a_requester_respects_the_credit_limit(
            start in prop_oneof![Just(0_u32), 0x00ff_fff0_u32..0x0100_0000],
            steps in proptest::collection::vec((0_u32..4, 0_usize..6), 1..300),
        ) {
            let mut requester = after(start);
            let (mut msn, mut receives) = (start, 0_u32);
            let mut answers = alloc::vec![];
            for (what, which) in steps {
                match what {
                    0 => receives += which as u32,
                    1 if left(&requester).is_some_and(|left| left > 0) => {
                        prop_assert!(receives > 0);
                        requester.on_message_sent();
                        (msn, receives) = (msn.wrapping_add(1), receives - 1);
                    }
                    2 => answers.push(ACK(msn, encode(receives))),
                    _ => if let Some(aeth) = answers.get(which.min(answers.len().wrapping_sub(1))) {
                        let before = left(&requester);
                        requester.on_answer(aeth);
                        prop_assert!(left(&requester) >= before);
                    }
                }
                prop_assert!(left(&requester).is_none_or(|left| left <= receives as i32));
            }
            requester.on_answer(&ACK(msn, encode(receives)));
            let Syndrome::Ack { credit } = ACK(msn, encode(receives)).syndrome else { unreachable!() };
            prop_assert!(left(&requester).expect("known") >= CREDITS[usize::from(credit)] as i32);
        }
    }
}
