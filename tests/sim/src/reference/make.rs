//! Makes of queue pairs: points that the specification leaves open, as adapters and Linux rxe have
//! decided them.

use crate::random::Random;

/// Which requests are acknowledged when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acks {
    /// Packets that ask, last packets of messages, and each duplicate: at once.
    Each,
    /// Packets that ask, and nothing else.
    Asked,
    /// Packets that ask, after so many nanoseconds at the most: one for all that came by then.
    Coalesced(u64),
}

/// How much is sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Restart {
    /// Everything from the lost packet on.
    All,
    /// One packet, which asks; the rest when that is acknowledged.
    One,
    /// One packet after a time-out, and everything after a NAK.
    OneAfterTimeout,
}

/// The behavior of a make.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Make {
    /// Which of [`Make::NAMES`].
    pub(crate) number: usize,
    pub(crate) mig_req: bool,
    pub(crate) acks: Acks,
    /// Each packet ahead of the expected one is answered by a NAK.
    pub(crate) naks_each: bool,
    pub(crate) restart: Restart,
    /// Packets in flight.
    pub(crate) window: u64,
    /// Asks for an ACK each so many packets, beside the last of a message.
    pub(crate) asks_each: u64,
    /// Receives that are posted are offered as end-to-end credits.
    pub(crate) offers_credits: bool,
    /// Ours are obeyed.
    pub(crate) obeys_credits: bool,
    /// An ACK for the end of a message that is being sent again does not end it: another must come
    /// when all of it was sent.
    pub(crate) needs_ack_of_end: bool,
    /// A READ of which a part is missing is asked for as a whole.
    pub(crate) reads_from_start: bool,
}

impl Make {
    /// Names of all makes, as a run prints them.
    pub(crate) const NAMES: [&'static str; 8] = [
        "one NAK",
        "repeated NAKs",
        "MigReq 0",
        "ACK when asked",
        "coalesced ACKs",
        "one-packet restart",
        "small credits",
        "armed for migration",
    ];

    /// One of that number, with the variations of its kind.
    pub(crate) fn draw(number: usize, random: &mut Random) -> Self {
        let plain = Self {
            number,
            mig_req: true,
            acks: Acks::Each,
            naks_each: false,
            restart: Restart::All,
            window: random.pick(&[8, 32, 128]),
            asks_each: random.pick(&[16, 1 << 20]),
            offers_credits: false,
            obeys_credits: true,
            needs_ack_of_end: false,
            reads_from_start: false,
        };
        match number {
            0 => plain,
            1 => Self { naks_each: true, ..plain },
            2 => {
                // Linux rxe: 128 packets under way and a request for an ACK each 64; here with
                // shorter messages, so that both stop within one.
                let asks_each = random.pick(&[4, 4, 16, 64]);
                Self {
                    mig_req: false,
                    window: 2 * asks_each,
                    asks_each,
                    obeys_credits: false,
                    needs_ack_of_end: true,
                    reads_from_start: true,
                    ..plain
                }
            }
            3 => Self { acks: Acks::Asked, ..plain },
            4 => Self { acks: Acks::Coalesced(random.pick(&[5_000, 50_000, 500_000])), ..plain },
            5 => Self { restart: Restart::One, ..plain },
            6 => Self { offers_credits: true, ..plain },
            _ => {
                Self { mig_req: false, restart: Restart::OneAfterTimeout, asks_each: random.pick(&[1, 3, 16]), ..plain }
            }
        }
    }

    pub(crate) const fn name(&self) -> &'static str {
        Self::NAMES[self.number]
    }
}
