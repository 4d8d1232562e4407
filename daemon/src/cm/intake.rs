//! Received datagrams before the connection manager takes them.
//!
//! Any host can send as many as the wire carries, in the name of any address, and each costs the
//! control thread microseconds. So they do not wait in one line:
//!
//! ```text
//!   names a connection with its sender ────────► answers, by address ────────┐ nine of sixteen
//!   request of a peer that has done so before ─► known, by address ──────────┤ four
//!   request of another address ────────────────► strangers, by address ──────┤ two
//!   all others ─► at a bounded rate ───────────► about unknown, by address ──┴ one ──► connection manager
//! ```
//!
//! A number of a connection is random, and only its peer learns it. So a forged address is found
//! among the strangers, unless it is that of a known peer. Addresses with equal right take turns,
//! also peers that send answers without end. That which names nothing of this host is answered at a
//! bounded rate only, and not looked at more often. Workers have told these kinds apart before, less
//! exactly ([`received_mads`](crate::worker::received_mads)).

use std::{
    collections::VecDeque,
    hash::{BuildHasher as _, RandomState},
    time::{Duration, Instant},
};

use roced_cm::{
    PeerAddress,
    wire::{MAD_BYTES, is_request},
};

use super::{
    known_peers::KnownPeers,
    rate::{Rate, RateBudget},
};

/// Shares of each line. Each address has one, chosen by a hash with a random key.
const SHARES: usize = 256;

/// Datagrams of one share that wait at a time: 5 MiB of each line. A peer has no more requests
/// than that under way.
const SHARE_MAX: usize = 64;

/// Turns of the lines repeat after so many datagrams.
const TURNS: u32 = 16;

/// Datagrams about nothing of this host: twice as many as one peer is answered.
const UNKNOWN_TAKEN: Rate = Rate { at_once: 2048, every: Duration::from_micros(125) };

/// A datagram with the addresses that it came from and to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IncomingMad {
    pub(super) from: PeerAddress,
    pub(super) bytes: [u8; MAD_BYTES],
}

/// The lines in which datagrams wait.
#[derive(Debug)]
pub(super) struct Intake {
    answers: ShareQueues,
    of_known: ShareQueues,
    of_strangers: ShareQueues,
    about_unknown: ShareQueues,
    unknown_taken: RateBudget,
    /// Counts datagrams.
    turn: u32,
    /// Answers and requests without room.
    pub(super) dropped: u64,
    /// Datagrams about nothing of this host beyond their rate or without room.
    pub(super) unknown_dropped: u64,
}

impl Default for Intake {
    fn default() -> Self {
        Self {
            answers: ShareQueues::new(),
            of_known: ShareQueues::new(),
            of_strangers: ShareQueues::new(),
            about_unknown: ShareQueues::new(),
            unknown_taken: RateBudget::new(UNKNOWN_TAKEN),
            turn: 0,
            dropped: 0,
            unknown_dropped: 0,
        }
    }
}

impl Intake {
    /// Adds a datagram to its line, or drops and counts it. `is_answer`: it names a connection with
    /// its sender, which is known from now on.
    pub(super) fn put(&mut self, mad: IncomingMad, is_answer: bool, known: &mut KnownPeers, now: Instant) {
        let has_room = if is_answer {
            known.heard(mad.from, now);
            self.answers.put(mad)
        } else if !is_request(&mad.bytes) {
            let is_put = self.unknown_taken.take() && self.about_unknown.put(mad);
            self.unknown_dropped += u64::from(!is_put);
            return;
        } else if known.contains(&mad.from) {
            self.of_known.put(mad)
        } else {
            self.of_strangers.put(mad)
        };
        self.dropped += u64::from(!has_room);
    }

    /// Takes the next datagram. Each line has its turns in sixteen datagrams: a host floods any of
    /// them once it has a connection.
    pub(super) fn take(&mut self) -> Option<IncomingMad> {
        self.turn = (self.turn + 1) % TURNS;
        let Self { answers, of_known, of_strangers, about_unknown, .. } = self;
        let lines = match self.turn {
            0 | 8 => [of_strangers, answers, of_known, about_unknown],
            3 | 6 | 11 | 14 => [of_known, answers, of_strangers, about_unknown],
            5 => [about_unknown, answers, of_known, of_strangers],
            _ => [answers, of_known, of_strangers, about_unknown],
        };
        lines.into_iter().find_map(ShareQueues::take)
    }

    /// No datagram waits.
    pub(super) fn is_empty(&self) -> bool {
        let Self { answers, of_known, of_strangers, about_unknown, .. } = self;
        [answers, of_known, of_strangers, about_unknown].into_iter().all(ShareQueues::is_empty)
    }
}

/// Queues that take turns.
#[derive(Debug)]
struct ShareQueues {
    queues: Vec<VecDeque<IncomingMad>>,
    /// Those with datagrams, in the order of their turns.
    turns: VecDeque<usize>,
    hash: RandomState,
}

impl ShareQueues {
    fn new() -> Self {
        Self {
            queues: (0..SHARES).map(|_| VecDeque::new()).collect(),
            turns: VecDeque::with_capacity(SHARES),
            hash: RandomState::new(),
        }
    }

    fn share_of(&self, peer: &PeerAddress) -> usize {
        self.hash.hash_one(peer.remote) as usize % SHARES
    }

    /// False if the share has no room.
    fn put(&mut self, mad: IncomingMad) -> bool {
        let share = self.share_of(&mad.from);
        let queue = &mut self.queues[share];
        if queue.len() >= SHARE_MAX {
            return false;
        }
        if queue.is_empty() {
            self.turns.push_back(share);
        }
        queue.push_back(mad);
        true
    }

    fn take(&mut self) -> Option<IncomingMad> {
        let share = self.turns.pop_front()?;
        let mad = self.queues[share].pop_front();
        if !self.queues[share].is_empty() {
            self.turns.push_back(share);
        }
        mad
    }

    fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use roced_cm::wire::Attribute;
    use roced_types::DeviceId;

    use super::*;

    fn mad(host: u16, number: u8) -> IncomingMad {
        let [high, low] = host.to_be_bytes();
        let remote = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, high, low];
        let from = PeerAddress { device: DeviceId(0), vlan: None, local: [1; 16], remote };
        let mut bytes = [number; MAD_BYTES];
        bytes[16..18].copy_from_slice(&Attribute::Req.number().to_be_bytes());
        IncomingMad { from, bytes }
    }

    /// About a connection that this host may not have.
    fn answer(host: u16, number: u8) -> IncomingMad {
        let mut mad = mad(host, number);
        mad.bytes[16..18].copy_from_slice(&Attribute::Dreq.number().to_be_bytes());
        mad
    }

    fn taken(intake: &mut Intake) -> Vec<IncomingMad> {
        std::iter::from_fn(|| intake.take()).collect()
    }

    /// Every address of strangers floods; the request of a known peer and answers come through.
    #[test]
    fn a_flood_of_strangers_keeps_no_known_peer_waiting() {
        let (mut intake, mut known, now) = (Intake::default(), KnownPeers::default(), Instant::now());
        intake.put(mad(1, 1), true, &mut known, now);
        assert_eq!(intake.take(), Some(mad(1, 1)));
        for host in 2..40_000 {
            intake.put(mad(host, 0), false, &mut known, now);
        }
        assert_eq!(intake.dropped, 40_000 - 2 - (SHARES * SHARE_MAX) as u64);
        intake.put(mad(1, 2), false, &mut known, now);
        intake.put(mad(1, 3), true, &mut known, now);
        let first: Vec<_> = (0..3).filter_map(|_| intake.take()).collect();
        assert_eq!((first[0], first[1]), (mad(1, 3), mad(1, 2)));
        assert_eq!(first[2].bytes[0], 0, "then strangers again");
    }

    /// Datagrams in the name of a known peer that name nothing of this host take no room of its
    /// requests, and few turns; how often they are looked at has a bound.
    #[test]
    fn datagrams_about_unknown_connections_keep_no_request_waiting() {
        let (mut intake, mut known, now) = (Intake::default(), KnownPeers::default(), Instant::now());
        intake.put(mad(1, 1), true, &mut known, now);
        assert_eq!(intake.take(), Some(mad(1, 1)));
        for number in 0..200 {
            intake.put(answer(1, number), false, &mut known, now);
        }
        intake.put(mad(1, 2), false, &mut known, now);
        assert_eq!((intake.dropped, intake.unknown_dropped), (0, 200 - SHARE_MAX as u64));
        let all = taken(&mut intake);
        assert_eq!(all.len(), SHARE_MAX + 1);
        assert!(all.iter().position(|taken| *taken == mad(1, 2)).is_some_and(|at| at < 4));
        let looked_at = |host: u16| {
            intake.put(answer(host, 0), false, &mut known, now);
            u32::from(intake.take().is_some())
        };
        let looked_at: u32 = (0..20_000).map(looked_at).sum();
        let per_second = Duration::from_secs(1).as_micros() / UNKNOWN_TAKEN.every.as_micros();
        let most = UNKNOWN_TAKEN.at_once + (now.elapsed().as_secs_f64() * per_second as f64) as u32;
        assert!(looked_at < most, "{looked_at} of at most {most}");
    }

    #[test]
    fn known_peers_leave_strangers_a_turn() {
        let (mut intake, mut known, now) = (Intake::default(), KnownPeers::default(), Instant::now());
        for number in 0..50 {
            intake.put(mad(1, number), true, &mut known, now);
        }
        intake.put(mad(2, 0), false, &mut known, now);
        let all = taken(&mut intake);
        assert_eq!(all.len(), 51);
        assert_eq!(all.iter().position(|taken| *taken == mad(2, 0)), Some(TURNS as usize / 2 - 1));
    }

    /// A peer floods with answers about a connection that it has.
    #[test]
    fn answers_of_a_peer_take_turns_with_those_of_others() {
        let (mut intake, mut known, now) = (Intake::default(), KnownPeers::default(), Instant::now());
        let share = |host: u16| intake.answers.share_of(&mad(host, 0).from);
        let other = (2..).find(|host| share(*host) != share(1)).expect("not all hosts have one share");
        for _ in 0..1000 {
            intake.put(mad(1, 0), true, &mut known, now);
        }
        intake.put(mad(other, 7), true, &mut known, now);
        assert_eq!(intake.dropped, 1000 - SHARE_MAX as u64);
        assert_eq!((intake.take(), intake.take()), (Some(mad(1, 0)), Some(mad(other, 7))));
    }

    /// A peer that answers without end keeps no request of another known peer waiting.
    #[test]
    fn answers_leave_requests_of_known_peers_a_turn() {
        let (mut intake, mut known, now) = (Intake::default(), KnownPeers::default(), Instant::now());
        for number in 0..50 {
            intake.put(mad(1, number), true, &mut known, now);
        }
        intake.put(mad(1, 99), false, &mut known, now);
        assert!((0..4).any(|_| intake.take() == Some(mad(1, 99))));
    }

    #[test]
    fn strangers_take_turns_by_address() {
        let (mut intake, mut known, now) = (Intake::default(), KnownPeers::default(), Instant::now());
        for number in 0..=255 {
            intake.put(mad(1, number), false, &mut known, now);
        }
        assert_eq!(intake.dropped, 256 - SHARE_MAX as u64);
        let share = |host: u16| intake.of_strangers.share_of(&mad(host, 0).from);
        let other = (2..).find(|host| share(*host) != share(1)).expect("not all hosts have one share");
        intake.put(mad(other, 7), false, &mut known, now);
        assert_eq!((intake.take(), intake.take()), (Some(mad(1, 0)), Some(mad(other, 7))));
        assert!(!intake.is_empty());
        assert_eq!(taken(&mut intake).len(), SHARE_MAX - 1);
        assert!(intake.is_empty());
    }
}
