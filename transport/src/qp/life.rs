//! The life of a connection, from RTR to RESET: which packets belong to it.
//!
//! A packet names its queue pair, the addresses and a PSN. One of an earlier life of the same connection names the same, and PSNs
//! often begin at the same number (UCX and NCCL begin at 0). What tells lives apart is the UDP source port: it is the same for
//! all packets that a queue pair sends in one life, and roced uses another one in the next. Other makes use the same port in every
//! life; with them a life that follows another holds no early packets for [`QUARANTINE`], so that it is as safe as go-back-N.
//!
//! ```text
//!   first packet taken: its port is learned ─► same port: ours
//!                                           └► another: refused; taken when it comes again after it was asked for
//! ```
//!
//! Asked for it is by a NAK, or by time: a peer sends again by itself what nobody acknowledges.
//!
//! So a peer whose port changes in mid-life (a rerouted flow) costs one retransmission, and one whose port changes with every packet
//! is found out by a few. Requests and responses are learned separately: nothing says that a peer uses one port for both.

use crate::{clock::Nanos, psn::Psn};

/// How long a life that follows another life of the same queue pair holds no early packets. Longer than any frame stays in a
/// network: switches discard frames after half a second at the most, and the timewait of connection managers is of this order.
pub const QUARANTINE: Nanos = Nanos::from_millis(1000);

/// What comes again so much later was sent again, not repeated by the network. A guess: several round trips of a building, and less than
/// any ACK timer.
const SENT_AGAIN_MIN: Nanos = Nanos::from_millis(1);

/// So many packets from two other ports each, and the peer's ports are not looked at any more: it has none of its own.
const MOVES_MAX: u8 = 4;

/// The source of one side's packets: requests for the responder, or responses for the completer.
#[derive(Debug, Default)]
pub(super) struct Source {
    port: Option<u16>,
    doubt: Option<Doubt>,
    /// Packets that came from two other ports, before and after they were asked for.
    moves: u8,
    holds_from: Nanos,
}

/// A packet in its turn came from another port.
#[derive(Clone, Copy, Debug)]
struct Doubt {
    turn: Psn,
    port: u16,
    at: Nanos,
    /// It was asked for again since.
    asked: bool,
}

/// What a packet's source port says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// It is of this life.
    Ours,
    /// It may be of an earlier one, and nothing like it came before: it is to be asked for.
    Doubted,
    /// It may be of an earlier one, still.
    Foreign,
}

impl Source {
    /// A packet whose turn is `turn` came from `port`.
    #[inline]
    pub(super) fn admit(&mut self, port: u16, turn: Psn, now: Nanos) -> Admission {
        match self.port {
            Some(known) if known != port && self.moves < MOVES_MAX => self.admit_other(port, turn, now),
            _ => Admission::Ours,
        }
    }

    #[cold]
    fn admit_other(&mut self, port: u16, turn: Psn, now: Nanos) -> Admission {
        match self.doubt {
            Some(doubt) if doubt.turn == turn && (doubt.asked || now - doubt.at >= SENT_AGAIN_MIN) => {
                self.moves += u8::from(doubt.port != port);
                (self.port, self.doubt) = (Some(port), None);
                Admission::Ours
            }
            Some(doubt) if doubt.turn == turn => Admission::Foreign,
            _ => {
                self.doubt = Some(Doubt { turn, port, at: now, asked: false });
                Admission::Doubted
            }
        }
    }

    /// The packet whose turn it is was asked for: by a NAK, or by sending again what it answers.
    pub(super) const fn on_asked(&mut self) {
        if let Some(doubt) = &mut self.doubt {
            doubt.asked = true;
        }
    }

    /// A packet from `port` was taken. The first begins what is known; in a life that is `later` than the queue pair's first,
    /// the time in which nothing is held begins, too.
    #[inline]
    pub(super) fn on_taken(&mut self, port: u16, later: bool, now: Nanos) {
        if self.port.is_none() {
            self.port = Some(port);
            self.holds_from = if later { now + QUARANTINE } else { now };
        }
        self.doubt = None;
    }

    /// A packet from `port` is certainly of another life, or of a peer that has just changed its port.
    pub(super) fn is_other(&self, port: u16) -> bool {
        self.moves < MOVES_MAX && self.port.is_some_and(|known| known != port)
    }

    /// A packet from `port` that is ahead of its turn may be held.
    pub(super) fn may_hold(&self, port: u16, now: Nanos) -> bool {
        self.port == Some(port) && self.moves < MOVES_MAX && now >= self.holds_from
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TURN: Psn = Psn::new(7);

    #[test]
    fn the_first_port_is_learned_and_others_are_doubted_until_asked_for() {
        let mut source = Source::default();
        assert_eq!(source.admit(1, TURN, Nanos(9)), Admission::Ours);
        assert!(!source.is_other(2) && !source.may_hold(1, Nanos(5)), "nothing is known yet");
        source.on_taken(1, false, Nanos(5));
        assert!(source.is_other(2) && source.may_hold(1, Nanos(5)) && !source.may_hold(2, Nanos(5)));
        assert_eq!(source.admit(2, TURN, Nanos(9)), Admission::Doubted);
        assert_eq!(source.admit(2, TURN, Nanos(9)), Admission::Foreign, "it came twice, and nobody asked");
        source.on_asked();
        assert_eq!(source.admit(1, TURN, Nanos(9)), Admission::Ours);
        source.on_taken(1, false, Nanos(9));
        assert_eq!(source.admit(2, TURN.plus(1), Nanos(9)), Admission::Doubted, "that doubt is over");
        source.on_asked();
        assert_eq!(source.admit(2, TURN.plus(1), Nanos(9)), Admission::Ours, "the peer has moved");
        assert_eq!(source.admit(1, TURN.plus(2), Nanos(9)), Admission::Doubted);
        assert_eq!(source.admit(1, TURN.plus(2), Nanos(8) + SENT_AGAIN_MIN), Admission::Foreign);
        assert_eq!(source.admit(1, TURN.plus(2), Nanos(9) + SENT_AGAIN_MIN), Admission::Ours, "it was sent again");
    }

    #[test]
    fn a_peer_of_many_ports_is_found_out_by_a_few_packets() {
        let mut source = Source::default();
        source.on_taken(0, false, Nanos(5));
        for turn in 0..u32::from(MOVES_MAX) {
            let (turn, port) = (TURN.plus(turn), 2 * turn as u16 + 1);
            assert_eq!(source.admit(port, turn, Nanos(9)), Admission::Doubted);
            source.on_asked();
            assert_eq!(source.admit(port + 1, turn, Nanos(9)), Admission::Ours);
        }
        for port in 40..50 {
            assert_eq!(source.admit(port, TURN, Nanos(9)), Admission::Ours);
            assert!(!source.may_hold(port, Nanos::NEVER), "but which life its packets are of is not known");
        }
    }

    #[test]
    fn a_later_life_holds_after_its_quarantine() {
        let mut source = Source::default();
        source.on_taken(1, true, Nanos(5));
        source.on_taken(1, true, Nanos(500));
        assert!(!source.may_hold(1, QUARANTINE));
        assert!(source.may_hold(1, Nanos(5) + QUARANTINE));
    }
}
