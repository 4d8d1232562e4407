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
//! another port is accepted only if its PSN is the one that is due and it can be executed, and one
//! that misses bars other ports for [`OTHER_PORT_BAR_MEAN`] on average. So a forger that knows all
//! but PSN and port has a few guesses at the PSN a second, however many packets it sends. A peer
//! that changes its port costs nothing where no packet is lost; otherwise its retransmissions are
//! refused for that time. A flood of guesses keeps it out for longer, except from its first request
//! with a key: that is a guess at 56 bits, and never barred. The length of a bar is not to be
//! foreseen: guesses that keep step with it would be the first to come whenever one ends.
//!
//! Other implementations use the same port in every life, and a peer may change it in mid-life. In
//! both cases nothing is buffered for [`QUARANTINE`], so that such connections are as safe as with
//! go-back-N. A peer that has changed it [`ROAMING_MOVES`] times, each time within [`QUARANTINE`],
//! has no fixed port: it is served by plain go-back-N from any, until it has held one for that
//! time. Ports of requests and of responses are learned separately: a peer need not use one port
//! for both. As long as one of them is unknown, other ports than that of the other role are
//! guesses.
//!
//! While a life has no port of its own yet, a packet from a past port may be a late frame or the
//! first packet of a peer that keeps its port. Therefore it is dropped, and requested again after
//! [`PAST_PORT_DROP_TIME`]. Within that time a peer that has changed its port has shown the new
//! one: from then on packets from past ports are dropped for another [`QUARANTINE`], even if no
//! packet of this life could be accepted yet. A peer that was seen to keep its port is not doubted
//! again.

use crate::{clock::Nanos, reject::DropReason};

/// Time after the first accepted packet of a later life of a queue pair, or after a change of port,
/// in which no early packets are buffered. Longer than any frame stays in a network: switches
/// discard frames after half a second at the most, and the timewait of connection managers is of
/// this order.
pub const QUARANTINE: Nanos = Nanos::from_millis(1000);

/// Time for which packets from a past life's port are dropped at the beginning of a life: the
/// greatest delay of this life's first packet behind a late one. A few round trips with a loss; the
/// second life of a queue pair is delayed by as much if the peer keeps its port.
const PAST_PORT_DROP_TIME: Nanos = Nanos::from_millis(2);

/// Time for which all other ports than this life's are refused after a packet from another one that
/// did not fit, on average: it is from a half of this to three halves. More than the shortest ACK
/// timer of adapters (16.8 ms), so that the third retransmission of a peer with a new port is
/// accepted.
pub(crate) const OTHER_PORT_BAR_MEAN: Nanos = Nanos::from_millis(20);

/// Time from the first packet of a life on for which the ports of past lives are refused: much
/// longer than their frames stay in a network. Later a peer may have moved to one of them.
const PAST_REFUSED_SECONDS: u32 = 10;

/// Changes of the port, each soon after the one before, that show a peer without a fixed port. A
/// forged packet that is accepted causes two: that to its port, and that back.
const ROAMING_MOVES: u8 = 8;

/// Number of past lives with known ports.
const PAST: usize = 4;

/// How well a packet from another port than this life's fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    /// It has the PSN that is due.
    Due,
    /// It has the PSN that is due, and a key of 32 bits that permits the request.
    Keyed,
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
    /// Number of its last changes in this life of which each came soon after the one before; 0 when
    /// it has never changed.
    moves: u8,
    /// Other ports are refused until this time.
    barred_until: Nanos,
    /// Ports of past lives are refused before this time, in seconds: there are many of these.
    past_until: u32,
    /// The peer kept its port from one life to the next.
    keeps_port: bool,
}

/// Port of this life.
#[derive(Debug)]
enum PortState {
    /// No packet was accepted yet. From the first packet of a past port on, such packets are
    /// doubted until `doubts_until`; if `asks`, the doubted packets are still to be requested
    /// again. `has_other`: another port was seen.
    Unknown { doubts_until: Nanos, asks: bool, has_other: bool },
    /// Early packets are buffered from `buffers_from` on, a while after the last change.
    Known { port: u16, buffers_from: Nanos },
}

impl Default for PortState {
    fn default() -> Self {
        Self::Unknown { doubts_until: Nanos::NEVER, asks: false, has_other: false }
    }
}

/// Whole seconds of a time; a clock has 136 years of them.
const fn seconds(now: Nanos) -> u32 {
    (now.0 / 1_000_000_000) as u32
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
            _ if self.moves > 0 => PastPorts::default(),
            PortState::Known { port, .. } if !self.past.contains(port) => self.past.with(port),
            _ => self.past,
        };
        Self { past, keeps_port: self.keeps_port, ..Self::default() }
    }

    /// No packet was accepted in this life.
    pub(super) const fn is_unknown(&self) -> bool {
        matches!(self.port, PortState::Unknown { .. })
    }

    /// Packets from the port of the first packet that is accepted may be buffered at once. `later`
    /// if this is not the queue pair's first life.
    pub(super) const fn buffers_at_once(&self, later: bool) -> bool {
        self.is_unknown() && !later
    }

    /// The port of this life is `port`.
    #[inline]
    pub(super) const fn is_own(&self, port: u16) -> bool {
        matches!(self.port, PortState::Known { port: known, .. } if known == port)
    }

    /// Port by which the peer is known in the other role as well.
    fn shown(&self, now: Nanos) -> Option<u16> {
        match self.port {
            PortState::Known { port, buffers_from }
                if !self.roams(now) && (now >= buffers_from || !self.past.contains(port)) =>
            {
                Some(port)
            }
            _ => None,
        }
    }

    /// The peer has no fixed port at present.
    fn roams(&self, now: Nanos) -> bool {
        let PortState::Known { buffers_from, .. } = self.port else { return false };
        self.moves >= ROAMING_MOVES && now < buffers_from
    }

    /// Checks a packet from `port`, which is not [this life's](Self::is_own). `role` is the port of
    /// the other role, if there is one. True if the packet is a guess: it may change nothing unless
    /// it can be executed, and [`Self::refuse`] must be called otherwise.
    ///
    /// # Errors
    /// [`DropReason::OtherSourcePort`]: it changes nothing.
    #[cold]
    pub(super) fn check_other(
        &mut self,
        port: u16,
        fit: Fit,
        role: Option<&Self>,
        now: Nanos,
    ) -> Result<bool, DropReason> {
        let shown = role.and_then(|role| role.shown(now));
        let PortState::Known { port: known, buffers_from } = self.port else {
            return if shown.is_some_and(|shown| shown != port) { self.check_guess(fit, now) } else { Ok(false) };
        };
        let began_in_doubt = self.past.contains(known);
        if self.past.contains(port) && !began_in_doubt && seconds(now) < self.past_until {
            return Err(DropReason::OtherSourcePort);
        }
        // The first packet of this life may have been one of a past life. A peer that has moved may
        // have been heard from there in the other role.
        if self.roams(now) || began_in_doubt && now < buffers_from || shown == Some(port) {
            return Ok(false);
        }
        self.check_guess(fit, now)
    }

    fn check_guess(&mut self, fit: Fit, now: Nanos) -> Result<bool, DropReason> {
        match fit {
            Fit::Keyed => return Ok(true),
            _ if now < self.barred_until => return Err(DropReason::OtherSourcePort),
            Fit::Due => return Ok(true),
            Fit::Repeated | Fit::Not => {}
        }
        let refused = self.refuse(now);
        if fit == Fit::Repeated { Ok(true) } else { Err(refused) }
    }

    /// Bars other ports after a guess that failed, and gives the reason for its drop.
    #[cold]
    pub(super) const fn refuse(&mut self, now: Nanos) -> DropReason {
        // A clock of nanoseconds is read at times of this host's own.
        let drawn = now.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 44;
        let until = Nanos(now.0 + OTHER_PORT_BAR_MEAN.0 / 2 + ((OTHER_PORT_BAR_MEAN.0 * drawn) >> 20));
        if until.0 > self.barred_until.0 {
            self.barred_until = until;
        }
        DropReason::OtherSourcePort
    }

    /// Examines a packet from `port` that passed [`Self::check_other`]. `Some` if it may belong
    /// to a past life or be the first of a peer that keeps its port: it must be dropped, and
    /// requested again at the time given.
    #[inline]
    pub(super) fn doubts(&mut self, port: u16, now: Nanos) -> Option<Nanos> {
        match &mut self.port {
            PortState::Unknown { doubts_until, asks, .. } if !self.keeps_port && self.past.contains(port) => {
                if *doubts_until == Nanos::NEVER {
                    (*doubts_until, *asks) = (now + PAST_PORT_DROP_TIME, true);
                }
                (now < *doubts_until).then_some(*doubts_until)
            }
            // The peer has another port in this life. Its packets arrive without a request, and
            // packets from past ports are late. Further packets do not prolong it.
            PortState::Unknown { doubts_until, asks, has_other }
                if !*has_other && self.past.count > 0 && !self.past.contains(port) =>
            {
                (*doubts_until, *asks, *has_other) = (now + QUARANTINE, false, true);
                None
            }
            _ => None,
        }
    }

    /// Time at which doubted packets are to be requested again.
    pub(super) const fn asks_at(&self) -> Nanos {
        match self.port {
            PortState::Unknown { doubts_until, asks: true, .. } => doubts_until,
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
        let buffers_at_once = self.buffers_at_once(later);
        match self.port {
            PortState::Unknown { .. } => self.past_until = seconds(now) + PAST_REFUSED_SECONDS,
            // The first packet, from a port of a past life, may have belonged to that life.
            PortState::Known { port: known, buffers_from } => {
                if !self.past.contains(known) || now >= buffers_from {
                    self.moves = if now < buffers_from { self.moves.saturating_add(1) } else { 1 };
                }
            }
        }
        self.keeps_port = self.past.contains(port);
        self.port = PortState::Known { port, buffers_from: if buffers_at_once { now } else { now + QUARANTINE } };
    }

    /// Port of all packets accepted in this life, if they had only one.
    pub(super) fn only_port(&self) -> Option<u16> {
        match self.port {
            PortState::Known { port, .. } if self.moves == 0 => Some(port),
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
            !self.is_own(port) && self.check_other(port, Fit::Due, None, Nanos(0)).is_err()
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
        assert_eq!(source.doubts(1, Nanos(5)), Some(Nanos(5) + PAST_PORT_DROP_TIME));
        let until = Nanos(7) + QUARANTINE;
        assert_eq!(
            (source.doubts(2, Nanos(7)), source.asks_at()),
            (None, Nanos::NEVER),
            "not taken: it is ahead of its turn"
        );
        assert_eq!((source.doubts(1, Nanos(8) + PAST_PORT_DROP_TIME), source.doubts(1, until)), (Some(until), None));
        let mut first = SourcePort::default();
        assert_eq!((first.doubts(1, Nanos(5)), first.doubts(2, Nanos(5))), (None, None), "there was no life before");
    }

    #[test]
    fn a_past_port_is_doubted_for_a_while_before_this_life_has_its_own() {
        let mut source = after(&[1]);
        let until = Nanos(5) + PAST_PORT_DROP_TIME;
        assert_eq!((source.doubts(1, Nanos(5)), source.doubts(1, PAST_PORT_DROP_TIME)), (Some(until), Some(until)));
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

    const REFUSED: Result<bool, DropReason> = Err(DropReason::OtherSourcePort);

    #[test]
    fn another_port_has_one_guess_in_a_while() {
        let mut source = SourcePort::default();
        assert_eq!(source.check_other(1, Fit::Not, None, Nanos(5)), Ok(false), "the first comes from any port");
        source.on_taken(1, false, Nanos(5));
        assert_eq!(source.check_other(2, Fit::Not, None, Nanos(10)), REFUSED);
        let until = source.barred_until;
        assert_eq!(source.check_other(2, Fit::Due, None, Nanos(11)), REFUSED, "that was a guess");
        assert_eq!(source.check_other(3, Fit::Not, None, Nanos(until.0 - 1)), REFUSED);
        assert_eq!(source.check_other(2, Fit::Keyed, None, Nanos(11)), Ok(true), "by its key");
        assert_eq!(source.check_other(2, Fit::Repeated, None, until), Ok(true), "refused packets bar nothing");
        assert_eq!(source.check_other(2, Fit::Due, None, until), REFUSED, "a repetition was a guess as well");
        assert_eq!(source.check_other(2, Fit::Due, None, until + OTHER_PORT_BAR_MEAN + OTHER_PORT_BAR_MEAN), Ok(true));
    }

    /// Half of [`OTHER_PORT_BAR_MEAN`] to three halves, all over that.
    #[test]
    fn bars_differ_in_length() {
        let mut parts = [0; 4];
        for at in 0..4000 {
            let now = Nanos(at * 1_000_003);
            let mut source = SourcePort::default();
            source.refuse(now);
            parts
                [((source.barred_until.0 - now.0 - OTHER_PORT_BAR_MEAN.0 / 2) * 4 / OTHER_PORT_BAR_MEAN.0) as usize] +=
                1;
        }
        assert!(parts.iter().all(|count| (900..1100).contains(count)), "{parts:?}");
    }

    #[test]
    fn a_role_without_a_port_has_that_of_the_other() {
        let (mut source, mut role) = (SourcePort::default(), SourcePort::default());
        role.on_taken(1, false, Nanos(5));
        assert_eq!(source.check_other(1, Fit::Not, Some(&role), Nanos(6)), Ok(false));
        assert_eq!(source.check_other(2, Fit::Due, Some(&role), Nanos(6)), Ok(true), "it has two ports");
        assert_eq!(source.check_other(2, Fit::Not, Some(&role), Nanos(6)), REFUSED);
        assert_eq!(source.check_other(1, Fit::Not, Some(&role), Nanos(7)), Ok(false));
        // What may be a late packet of the past life shows nothing.
        let mut role = after(&[1]);
        role.on_taken(1, true, Nanos(7));
        assert_eq!(SourcePort::default().check_other(2, Fit::Not, Some(&role), Nanos(8)), Ok(false));
        assert_eq!(SourcePort::default().check_other(2, Fit::Not, Some(&role), Nanos(8) + QUARANTINE), REFUSED);
    }

    #[test]
    fn a_peer_that_changes_its_port_again_and_again_has_none_until_it_holds_one() {
        let mut source = SourcePort::default();
        source.on_taken(1, false, Nanos(5));
        for port in 2..2 + u16::from(ROAMING_MOVES) {
            assert_eq!(source.check_other(99, Fit::Due, None, Nanos(6)), Ok(true), "{port}");
            source.on_taken(port, false, Nanos(6));
        }
        assert_eq!(source.check_other(7, Fit::Not, None, Nanos(7)), Ok(false));
        let mut next = source.next_life();
        next.on_taken(3, true, Nanos(8));
        assert_eq!(next.check_other(7, Fit::Not, None, Nanos(9)), REFUSED, "each life shows it");
        let later = Nanos(6) + QUARANTINE;
        source.on_taken(9, false, later);
        assert_eq!(source.check_other(7, Fit::Not, None, later), REFUSED);
        source.on_taken(10, false, later + OTHER_PORT_BAR_MEAN);
        assert_eq!(
            source.check_other(7, Fit::Not, None, later + OTHER_PORT_BAR_MEAN + OTHER_PORT_BAR_MEAN),
            REFUSED,
            "that was one"
        );
    }
}
