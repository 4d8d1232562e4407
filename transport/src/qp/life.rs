//! The life of a connection, from RTR to RESET: which packets belong to it.
//!
//! A packet names its queue pair, the addresses and a PSN. One of an earlier life of the same
//! connection names the same, and PSNs often begin at the same number (UCX and NCCL begin at 0).
//! What tells lives apart is the UDP source port: it is the same for all packets that a queue pair
//! sends in one life, and roced uses another one in the next.
//!
//! ```text
//!   this life's port        taken, held when early
//!   a port of a past life   refused, once this life has a port of its own; before that, doubted for a while
//!   any other port          taken in its turn; from then on it is this life's port (a rerouted flow)
//! ```
//!
//! Other makes use the same port in every life, and a rerouted flow changes it in mid-life. With
//! both nothing is held for [`QUARANTINE`], so that they are as safe as with go-back-N, and a peer
//! that takes another port with each packet is served by plain go-back-N. Requests and responses
//! are learned separately: nothing says that a peer uses one port for both.
//!
//! While a life has no port of its own yet, a packet from a past one may be a late frame or the
//! first of a peer that keeps its port. So it is dropped, and asked for after [`DOUBT`], in which a
//! peer that has changed its port has shown that: then such packets are dropped for [`QUARANTINE`]
//! more, even if nothing of this life could be taken yet. A peer that was seen to keep its port is
//! not doubted again.

use crate::clock::Nanos;

/// How long a life that follows another life of the same queue pair, or a change of port, holds no
/// early packets. Longer than any frame stays in a network: switches discard frames after half a
/// second at the most, and the timewait of connection managers is of this order.
pub const QUARANTINE: Nanos = Nanos::from_millis(1000);

/// How long packets from a past life's port are dropped at the begin of a life: so far may the
/// first packet be behind a late one. Some round trips with a loss; it costs the second life of a
/// queue pair as much where the peer keeps its port.
const DOUBT: Nanos = Nanos::from_millis(2);

/// Lives whose ports are known.
const PAST: usize = 4;

/// The source of one side's packets: requests for the responder, or responses for the completer.
#[derive(Debug, Default)]
pub(super) struct SourcePort {
    port: PortState,
    past: PastPorts,
    /// The port has changed in this life: the peer has none of its own.
    moved: bool,
    /// The peer kept its port from one life to the next.
    keeps: bool,
}

/// The port of this life.
#[derive(Debug)]
enum PortState {
    /// Nothing was taken yet. From the first packet from a past port on, such are doubted until
    /// `doubts_until`; what was doubted may still be to be asked for.
    Unknown { doubts_until: Nanos, asks: bool },
    /// Early packets are held from `holds_from` on.
    Known { port: u16, holds_from: Nanos },
}

impl Default for PortState {
    fn default() -> Self {
        Self::Unknown { doubts_until: Nanos::NEVER, asks: false }
    }
}

/// The ports of the lives before, the last first.
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
    /// What is known when this life is over.
    pub(super) fn next_life(&self) -> Self {
        let past = match self.port {
            // Such a peer may come back to any port.
            _ if self.moved => PastPorts::default(),
            PortState::Known { port, .. } if !self.past.contains(port) => self.past.with(port),
            _ => self.past,
        };
        Self { past, keeps: self.keeps, ..Self::default() }
    }

    /// A packet from `port` is of a past life.
    #[inline]
    pub(super) fn refuses(&self, port: u16) -> bool {
        match self.port {
            PortState::Known { port: known, .. } if known != port => {
                self.past.contains(port) && !self.past.contains(known)
            }
            _ => false,
        }
    }

    /// A packet from `port`, which is not [refused](Self::refuses), is of a past life, or the first
    /// of a peer that keeps its port: it is to be asked for at the time given.
    #[inline]
    pub(super) fn doubts(&mut self, port: u16, now: Nanos) -> Option<Nanos> {
        match &mut self.port {
            PortState::Unknown { doubts_until, asks } if !self.keeps && self.past.contains(port) => {
                if *doubts_until == Nanos::NEVER {
                    (*doubts_until, *asks) = (now + DOUBT, true);
                }
                (now < *doubts_until).then_some(*doubts_until)
            }
            // The peer has another port in this life. Its packets come by themselves, and what
            // comes from past ports is late.
            PortState::Unknown { doubts_until, asks } if self.past.count > 0 && !self.past.contains(port) => {
                (*doubts_until, *asks) = (now + QUARANTINE, false);
                None
            }
            _ => None,
        }
    }

    /// When what was doubted is to be asked for.
    pub(super) const fn asks_at(&self) -> Nanos {
        match self.port {
            PortState::Unknown { doubts_until, asks: true } => doubts_until,
            _ => Nanos::NEVER,
        }
    }

    /// It is asked for.
    pub(super) const fn on_asked(&mut self) {
        if let PortState::Unknown { asks, .. } = &mut self.port {
            *asks = false;
        }
    }

    /// A packet from `port` was taken; in a life that is `later` than the queue pair's first or
    /// not.
    #[inline]
    pub(super) fn on_taken(&mut self, port: u16, later: bool, now: Nanos) {
        if !matches!(self.port, PortState::Known { port: known, .. } if known == port) {
            self.learn(port, later, now);
        }
    }

    #[cold]
    fn learn(&mut self, port: u16, later: bool, now: Nanos) {
        let holds_at_once = match self.port {
            PortState::Unknown { .. } => !later,
            // What came first from a port of a past life may have been of that life.
            PortState::Known { port, .. } => {
                self.moved |= !self.past.contains(port);
                false
            }
        };
        self.keeps = self.past.contains(port);
        self.port = PortState::Known { port, holds_from: if holds_at_once { now } else { now + QUARANTINE } };
    }

    /// A packet from `port` that is ahead of its turn may be held.
    pub(super) fn may_hold(&self, port: u16, now: Nanos) -> bool {
        matches!(self.port, PortState::Known { port: known, holds_from } if known == port && now >= holds_from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A source that took packets from these ports in lives of one port each, and is in the next
    /// life.
    fn after(ports: &[u16]) -> SourcePort {
        ports.iter().fold(SourcePort::default(), |mut source, port| {
            source.on_taken(*port, false, Nanos(0));
            source.next_life()
        })
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
    fn what_a_past_life_sent_first_is_refused_from_the_first_packet_of_this_life_on() {
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
    fn nothing_is_held_before_a_packet_was_taken_nor_soon_after_a_change() {
        let mut source = SourcePort::default();
        assert!(!source.may_hold(1, Nanos::NEVER), "nothing is known yet");
        source.on_taken(1, false, Nanos(5));
        assert!(source.may_hold(1, Nanos(5)) && !source.may_hold(2, Nanos(5)));
        source.on_taken(2, false, Nanos(7));
        assert!(!source.may_hold(2, QUARANTINE) && source.may_hold(2, Nanos(7) + QUARANTINE));
    }

    #[test]
    fn a_later_life_holds_after_its_quarantine() {
        let mut source = SourcePort::default();
        source.on_taken(1, true, Nanos(5));
        source.on_taken(1, true, Nanos(500));
        assert!(!source.may_hold(1, QUARANTINE));
        assert!(source.may_hold(1, Nanos(5) + QUARANTINE));
    }
}
