//! The life of a connection, from RTR to RESET: which packets belong to it.
//!
//! A packet names its queue pair, the addresses and a PSN. A packet of an earlier life of the same
//! connection names the same, and PSNs often begin at the same number (UCX and NCCL begin at 0).
//! The UDP source port distinguishes lives: it is the same for all packets that a queue pair sends
//! in one life, and roced uses another one in the next.
//!
//! ```text
//!   this life's port        accepted; buffered when early
//!   port of a past life     refused once this life has a port of its own; before, doubted a while
//!   any other port          accepted where it fits exactly; becomes this life's port (a new flow)
//! ```
//!
//! The port also stands against forged packets: a party off the path does not see it. A packet from
//! another port is accepted only if its PSN is the one that is due, and one that misses it bars
//! other ports for [`BARRED`]. So a forger that knows all but PSN and port has a few guesses at the
//! PSN a second, however many packets it sends. A peer that changes its port costs nothing where no
//! packet is lost; otherwise its retransmissions are refused for that time.
//!
//! Other implementations use the same port in every life, and a peer may change it in mid-life. In
//! both cases nothing is buffered for [`QUARANTINE`], so that such connections are as safe as with
//! go-back-N; a peer that has changed it twice has no fixed port, and is served by plain go-back-N
//! from any. Ports of requests and of responses are learned separately: a peer need not use one
//! port for both.
//!
//! While a life has no port of its own yet, a packet from a past port may be a late frame or the
//! first packet of a peer that keeps its port. Therefore it is dropped, and requested again after
//! [`DOUBT`]. Within that time a peer that has changed its port has shown the new one: from then on
//! packets from past ports are dropped for another [`QUARANTINE`], even if no packet of this life
//! could be accepted yet. A peer that was seen to keep its port is not doubted again.

use crate::{clock::Nanos, reject::DropReason};

/// Time after the first accepted packet of a later life of a queue pair, or after a change of port,
/// in which no early packets are buffered. Longer than any frame stays in a network: switches
/// discard frames after half a second at the most, and the timewait of connection managers is of
/// this order.
pub const QUARANTINE: Nanos = Nanos::from_millis(1000);

/// Time for which packets from a past life's port are dropped at the beginning of a life: the
/// greatest delay of this life's first packet behind a late one. A few round trips with a loss; the
/// second life of a queue pair is delayed by as much if the peer keeps its port.
const DOUBT: Nanos = Nanos::from_millis(2);

/// Time for which all other ports than this life's are refused after a packet from another one that
/// did not fit. More than the shortest ACK timer of adapters (16.8 ms), so that the second
/// retransmission of a peer with a new port is accepted.
pub(crate) const BARRED: Nanos = Nanos::from_millis(20);

/// Number of past lives with known ports.
const PAST: usize = 4;

/// How well a packet from another port than this life's fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    /// It has the PSN that is due.
    Due,
    /// It repeats a request. It is answered, because the peer may have changed its port and missed
    /// an answer; the next guess at the PSN that is due has to wait nevertheless, or a forger would
    /// come to it by trying one PSN after the other.
    Repeated,
    Not,
}

/// Source port of one side's packets: requests for the responder, or responses for the completer.
#[derive(Debug, Default)]
pub(super) struct SourcePort {
    port: PortState,
    past: PastPorts,
    /// The port has changed in this life: the peer has no fixed port.
    moved: bool,
    /// It has changed at least twice in one life.
    roams: bool,
    /// Other ports are refused until this time.
    barred_until: Nanos,
    /// The peer kept its port from one life to the next.
    keeps: bool,
}

/// Port of this life.
#[derive(Debug)]
enum PortState {
    /// No packet was accepted yet. From the first packet of a past port on, such packets are
    /// doubted until `doubts_until`; if `asks`, the doubted packets are still to be requested
    /// again.
    Unknown { doubts_until: Nanos, asks: bool },
    /// Early packets are buffered from `buffers_from` on.
    Known { port: u16, buffers_from: Nanos },
}

impl Default for PortState {
    fn default() -> Self {
        Self::Unknown { doubts_until: Nanos::NEVER, asks: false }
    }
}

/// Ports of past lives, latest first.
#[derive(Clone, Copy, Debug, Default)]
struct PastPorts {
    ports: [u16; PAST],
    count: u8,
}

impl PastPorts {
    fn contains(&self, port: u16) -> bool {
        self.ports[..usize::from(self.count)].contains(&port)
    }

    fn with(self, port: u16) -> Self {
        let [first, second, third, _] = self.ports;
        Self { ports: [port, first, second, third], count: PAST.min(usize::from(self.count) + 1) as u8 }
    }
}

impl SourcePort {
    /// Source port state at the start of the next life.
    pub(super) fn next_life(&self) -> Self {
        let past = match self.port {
            // Such a peer may return to any port.
            _ if self.moved => PastPorts::default(),
            PortState::Known { port, .. } if !self.past.contains(port) => self.past.with(port),
            _ => self.past,
        };
        Self { past, keeps: self.keeps, roams: self.roams, ..Self::default() }
    }

    /// No packet was accepted in this life.
    pub(super) const fn is_unknown(&self) -> bool {
        matches!(self.port, PortState::Unknown { .. })
    }

    /// The port of this life is `port`.
    #[inline]
    pub(super) const fn is_own(&self, port: u16) -> bool {
        matches!(self.port, PortState::Known { port: known, .. } if known == port)
    }

    /// Checks a packet from `port`, which is not [this life's](Self::is_own).
    ///
    /// # Errors
    /// [`DropReason::OtherSourcePort`]: it changes nothing.
    #[cold]
    pub(super) fn check_other(&mut self, port: u16, fit: Fit, now: Nanos) -> Result<(), DropReason> {
        let PortState::Known { port: known, buffers_from } = self.port else { return Ok(()) };
        let began_in_doubt = self.past.contains(known);
        if self.past.contains(port) && !began_in_doubt {
            return Err(DropReason::OtherSourcePort);
        }
        // The first packet of this life may have been one of a past life.
        if self.roams || began_in_doubt && now < buffers_from {
            return Ok(());
        }
        if now < self.barred_until {
            return Err(DropReason::OtherSourcePort);
        }
        if fit != Fit::Due {
            self.barred_until = now + BARRED;
        }
        if fit == Fit::Not { Err(DropReason::OtherSourcePort) } else { Ok(()) }
    }

    /// Examines a packet from `port` that passed [`Self::check_other`]. `Some` if it may belong
    /// to a past life or be the first of a peer that keeps its port: it must be dropped, and
    /// requested again at the time given.
    #[inline]
    pub(super) fn doubts(&mut self, port: u16, now: Nanos) -> Option<Nanos> {
        match &mut self.port {
            PortState::Unknown { doubts_until, asks } if !self.keeps && self.past.contains(port) => {
                if *doubts_until == Nanos::NEVER {
                    (*doubts_until, *asks) = (now + DOUBT, true);
                }
                (now < *doubts_until).then_some(*doubts_until)
            }
            // The peer has another port in this life. Its packets arrive without a request, and
            // packets from past ports are late.
            PortState::Unknown { doubts_until, asks } if self.past.count > 0 && !self.past.contains(port) => {
                (*doubts_until, *asks) = (now + QUARANTINE, false);
                None
            }
            _ => None,
        }
    }

    /// Time at which doubted packets are to be requested again.
    pub(super) const fn asks_at(&self) -> Nanos {
        match self.port {
            PortState::Unknown { doubts_until, asks: true } => doubts_until,
            _ => Nanos::NEVER,
        }
    }

    /// Notes that the doubted packets were requested again.
    pub(super) const fn on_asked(&mut self) {
        if let PortState::Unknown { asks, .. } = &mut self.port {
            *asks = false;
        }
    }

    /// Notes that a packet from `port` was accepted; `later` if this is not the queue pair's first
    /// life.
    #[inline]
    pub(super) fn on_taken(&mut self, port: u16, later: bool, now: Nanos) {
        if !self.is_own(port) {
            self.learn(port, later, now);
        }
    }

    #[cold]
    fn learn(&mut self, port: u16, later: bool, now: Nanos) {
        let buffers_at_once = match self.port {
            PortState::Unknown { .. } => !later,
            // The first packet, from a port of a past life, may have belonged to that life.
            PortState::Known { port, .. } => {
                let has_moved = !self.past.contains(port);
                self.roams |= self.moved && has_moved;
                self.moved |= has_moved;
                false
            }
        };
        self.keeps = self.past.contains(port);
        self.port = PortState::Known { port, buffers_from: if buffers_at_once { now } else { now + QUARANTINE } };
    }

    /// Port of all packets accepted in this life, if they had only one.
    pub(super) fn only_port(&self) -> Option<u16> {
        match self.port {
            PortState::Known { port, .. } if !self.moved => Some(port),
            _ => None,
        }
    }

    /// A packet from `port` that arrived early may be buffered.
    pub(super) fn may_buffer(&self, port: u16, now: Nanos) -> bool {
        matches!(self.port, PortState::Known { port: known, buffers_from } if known == port && now >= buffers_from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A source that accepted packets from these ports in lives of one port each, and is in the
    /// next life.
    fn after(ports: &[u16]) -> SourcePort {
        ports.iter().fold(SourcePort::default(), |mut source, port| {
            source.on_taken(*port, false, Nanos(0));
            source.next_life()
        })
    }

    impl SourcePort {
        /// Packets from `port` are of a past life.
        fn refuses(&mut self, port: u16) -> bool {
            !self.is_own(port) && self.check_other(port, Fit::Due, Nanos(0)).is_err()
        }
    }

    fn past(source: &SourcePort) -> &[u16] {
        &source.past.ports[..usize::from(source.past.count)]
    }

    #[test]
    fn ports_of_past_lives_are_refused_once_this_life_has_its_own() {
        let mut source = after(&[1, 2]);
        assert!(!source.refuses(1) && !source.refuses(2), "a peer may use the same port again");
        source.on_taken(3, true, Nanos(5));
        assert!(source.refuses(1) && source.refuses(2) && !source.refuses(3) && !source.refuses(4));
        source.on_taken(4, true, Nanos(5));
        assert!(source.refuses(1) && !source.refuses(3) && !source.refuses(4), "a rerouted flow");
    }

    #[test]
    fn a_peer_that_uses_one_port_in_all_lives_is_not_refused() {
        let mut source = after(&[1, 1, 1]);
        source.on_taken(1, true, Nanos(5));
        assert!(!source.refuses(1) && !source.refuses(2));
        assert_eq!(past(&source.next_life()), [1]);
    }

    #[test]
    fn a_past_port_is_doubted_for_long_once_another_was_seen() {
        let mut source = after(&[1]);
        assert_eq!(source.doubts(1, Nanos(5)), Some(Nanos(5) + DOUBT));
        let until = Nanos(7) + QUARANTINE;
        assert_eq!(
            (source.doubts(2, Nanos(7)), source.asks_at()),
            (None, Nanos::NEVER),
            "not taken: it is ahead of its turn"
        );
        assert_eq!((source.doubts(1, Nanos(8) + DOUBT), source.doubts(1, until)), (Some(until), None));
        let mut first = SourcePort::default();
        assert_eq!((first.doubts(1, Nanos(5)), first.doubts(2, Nanos(5))), (None, None), "there was no life before");
    }

    #[test]
    fn a_past_port_is_doubted_for_a_while_before_this_life_has_its_own() {
        let mut source = after(&[1]);
        let until = Nanos(5) + DOUBT;
        assert_eq!((source.doubts(1, Nanos(5)), source.doubts(1, DOUBT)), (Some(until), Some(until)));
        assert_eq!(source.asks_at(), until);
        source.on_asked();
        assert_eq!((source.doubts(1, until), source.asks_at()), (None, Nanos::NEVER), "it keeps its port");
        source.on_taken(1, true, until);
        let mut source = source.next_life();
        assert_eq!(source.doubts(1, Nanos(5)), None, "as in the life before");
        let mut source = after(&[1]);
        source.doubts(1, Nanos(5));
        source.on_taken(2, true, Nanos(6));
        assert!(source.refuses(1) && source.doubts(1, Nanos(6)).is_none() && source.asks_at() == Nanos::NEVER);
    }

    #[test]
    fn packets_of_a_past_life_are_refused_after_the_first_packet_of_this_life() {
        let mut source = after(&[1]);
        source.on_taken(1, true, Nanos(5));
        source.on_taken(2, true, Nanos(6));
        assert!(source.refuses(1) && !source.refuses(2));
        assert_eq!(past(&source.next_life()), [2, 1]);
    }

    #[test]
    fn the_last_lives_are_remembered() {
        let mut source = after(&[1, 2, 3, 4, 5]);
        source.on_taken(6, true, Nanos(5));
        assert_eq!([1, 2, 3, 4, 5, 6].map(|port| source.refuses(port)), [false, true, true, true, true, false]);
    }

    #[test]
    fn a_life_in_which_nothing_was_taken_forgets_nothing() {
        let source = after(&[1]).next_life().next_life();
        assert_eq!(past(&source), [1]);
    }

    #[test]
    fn a_peer_of_several_ports_is_refused_none_in_its_next_life() {
        let mut source = after(&[9]);
        source.on_taken(1, true, Nanos(5));
        source.on_taken(2, true, Nanos(5));
        let mut source = source.next_life();
        source.on_taken(2, true, Nanos(5));
        assert!(!source.refuses(1) && !source.refuses(9));
    }

    #[test]
    fn only_a_peer_of_one_port_is_known_by_it() {
        let mut source = SourcePort::default();
        assert_eq!(source.only_port(), None);
        source.on_taken(1, false, Nanos(5));
        source.on_taken(1, false, Nanos(6));
        assert_eq!(source.only_port(), Some(1));
        source.on_taken(2, false, Nanos(7));
        source.on_taken(2, false, Nanos(8));
        assert_eq!(source.only_port(), None);
    }

    #[test]
    fn nothing_is_held_before_a_packet_was_taken_nor_soon_after_a_change() {
        let mut source = SourcePort::default();
        assert!(!source.may_buffer(1, Nanos::NEVER), "nothing is known yet");
        source.on_taken(1, false, Nanos(5));
        assert!(source.may_buffer(1, Nanos(5)) && !source.may_buffer(2, Nanos(5)));
        source.on_taken(2, false, Nanos(7));
        assert!(!source.may_buffer(2, QUARANTINE) && source.may_buffer(2, Nanos(7) + QUARANTINE));
    }

    #[test]
    fn a_later_life_holds_after_its_quarantine() {
        let mut source = SourcePort::default();
        source.on_taken(1, true, Nanos(5));
        source.on_taken(1, true, Nanos(500));
        assert!(!source.may_buffer(1, QUARANTINE));
        assert!(source.may_buffer(1, Nanos(5) + QUARANTINE));
    }

    #[test]
    fn another_port_has_one_guess_in_a_while() {
        let mut source = SourcePort::default();
        assert_eq!(source.check_other(1, Fit::Not, Nanos(5)), Ok(()), "the first packet comes from any port");
        source.on_taken(1, false, Nanos(5));
        let refused = Err(DropReason::OtherSourcePort);
        assert_eq!(source.check_other(2, Fit::Not, Nanos(10)), refused);
        assert_eq!(source.check_other(2, Fit::Due, Nanos(11)), refused, "that was a guess");
        assert_eq!(source.check_other(3, Fit::Not, Nanos(9) + BARRED), refused);
        let next = Nanos(10) + BARRED;
        assert_eq!(source.check_other(2, Fit::Repeated, next), Ok(()), "refused packets bar nothing");
        assert_eq!(source.check_other(2, Fit::Due, next), refused, "a repetition was a guess as well");
        assert_eq!(source.check_other(2, Fit::Due, next + BARRED), Ok(()));
    }

    #[test]
    fn a_peer_that_changes_its_port_twice_has_none() {
        let mut source = SourcePort::default();
        for port in [1, 2] {
            source.on_taken(port, false, Nanos(5));
            assert!(source.check_other(7, Fit::Not, Nanos(u64::from(port) * 2 * BARRED.0)).is_err(), "{port}");
        }
        source.on_taken(3, false, Nanos(6));
        assert_eq!(source.check_other(7, Fit::Not, Nanos(7)), Ok(()));
        let mut next = source.next_life();
        next.on_taken(3, true, Nanos(8));
        assert_eq!(next.check_other(7, Fit::Not, Nanos(9)), Ok(()), "it did so before");
    }
}
