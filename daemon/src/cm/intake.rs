//! Received datagrams before the connection manager takes them.
//!
//! Any host can send as many as the wire carries, in the name of any address, and each costs the
//! control thread microseconds. So they do not wait in one line:
//!
//! ```text
//!   names a connection with its sender ─► answers ──────────────┐ eight of sixteen
//!   request of a peer that has done so ─► known ────────────────┤ four
//!   request of another address ─────────► unknown peers ────────────┤ two, at a bounded rate
//!   all others of known peers ──────────► unknown of known ─────┤ one, at a bounded rate
//!   all others, at a bounded rate ──────► unknown of unknown peers ─┴ one ─► manager
//! ```
//!
//! A number of a connection is random, and only its peer learns it. So a forged address is found
//! among the unknown peers, unless it is that of a known peer. Addresses with equal right take
//! turns, also peers that send answers without end. That which any host can send is looked at at a
//! bounded rate only, after many at once. Beyond it datagrams wait with the workers, which have
//! told these kinds apart before, less exactly, and drop them for less
//! ([`received_mads`](crate::worker::received_mads)).

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
use crate::worker::received_mads::MadRoom;

/// Shares of each line. Each address has one, chosen by a hash with a random key.
const SHARES: usize = 256;

/// Datagrams of one share that wait at a time: of answers and of requests of known peers as many as
/// workers pass, of all others fewer.
const ANSWERS_MAX: usize = 512;
const OF_KNOWN_MAX: usize = 128;
const SHARE_MAX: usize = 64;

/// Datagrams of a line that wait at a time: 2.6 MiB.
const LINE_MAX: usize = 8192;

/// Datagrams of a line with a rate that wait here in a flood: at 4,000 a second each gets its turn
/// within 256 ms. Of unknown peers' requests 4,096 more wait with the workers, for a second.
const HELD_MAX: usize = 1024;

/// Turns of the lines repeat after so many datagrams.
const TURNS: u32 = 16;

/// Datagrams that any host can send, of each such line: as many as one peer is answered, and more
/// than a listener accepts of unknown peers. At once, while the control thread takes them as they
/// come, as many as a hundred hosts with 80 connections each send to one that has lost all by a
/// restart.
const TAKEN: Rate = Rate { at_once: 8192, every: Duration::from_micros(250) };

/// A datagram with the addresses that it came from and to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IncomingMad {
    pub(super) from: PeerAddress,
    pub(super) bytes: [u8; MAD_BYTES],
}

/// How long datagrams that the rate keeps back wait, so that one wake-up is for several: eight.
const RATE_WAIT: Duration = Duration::from_millis(2);

/// The lines in which datagrams wait.
#[derive(Debug)]
pub(super) struct Intake {
    answers: ShareQueues,
    of_known: ShareQueues,
    of_unknown: ShareQueues,
    unconnected_of_known: ShareQueues,
    unconnected_of_unknown: ShareQueues,
    /// Of unknown peers the first come have it: a host that sends many DREQs, because this one has
    /// lost its connections by a restart, gets more of it than its turn among all forged addresses.
    unknown_taken: RateBudget,
    /// Counts datagrams.
    turn: u32,
    /// Answers and requests without room.
    pub(super) dropped: u64,
    /// Datagrams about nothing of this host without room.
    pub(super) unknown_dropped: u64,
}

impl Default for Intake {
    fn default() -> Self {
        Self {
            answers: ShareQueues::new(ANSWERS_MAX, None),
            of_known: ShareQueues::new(OF_KNOWN_MAX, None),
            of_unknown: ShareQueues::new(SHARE_MAX, Some(TAKEN)),
            unconnected_of_known: ShareQueues::new(SHARE_MAX, Some(TAKEN)),
            unconnected_of_unknown: ShareQueues::new(SHARE_MAX, None),
            unknown_taken: RateBudget::new(TAKEN),
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
        let is_known = is_answer || known.contains(&mad.from);
        if is_answer {
            known.heard(mad.from, now);
        }
        let line = match (is_answer, is_request(&mad.bytes)) {
            (true, _) => &mut self.answers,
            (false, true) if is_known => &mut self.of_known,
            (false, true) => &mut self.of_unknown,
            (false, false) => {
                let is_put = if is_known {
                    self.unconnected_of_known.put(mad)
                } else {
                    let line = &mut self.unconnected_of_unknown;
                    line.has_room(&mad.from) && self.unknown_taken.take(now) && line.put(mad)
                };
                self.unknown_dropped += u64::from(!is_put);
                return;
            }
        };
        self.dropped += u64::from(!line.put(mad));
    }

    /// Room for datagrams that workers keep.
    pub(super) fn room(&mut self, now: Instant) -> MadRoom {
        let room = |line: &ShareQueues| HELD_MAX.saturating_sub(line.len);
        MadRoom {
            of_unknown: room(&self.of_unknown),
            unconnected_of_known: room(&self.unconnected_of_known),
            unconnected_of_unknown: room(&self.unconnected_of_unknown).min(self.unknown_taken.left(now) as usize),
        }
    }

    /// Takes the next datagram. Each line has its turns in sixteen datagrams: a host floods any of
    /// them once it has a connection.
    pub(super) fn take(&mut self, now: Instant) -> Option<IncomingMad> {
        self.turn = (self.turn + 1) % TURNS;
        let first = match self.turn {
            0 | 8 => &mut self.of_unknown,
            3 | 6 | 11 | 14 => &mut self.of_known,
            5 => &mut self.unconnected_of_known,
            13 => &mut self.unconnected_of_unknown,
            _ => &mut self.answers,
        };
        first.take(now).or_else(|| self.lines().find_map(|line| line.take(now)))
    }

    /// The most useful first.
    fn lines(&mut self) -> impl Iterator<Item = &mut ShareQueues> {
        let Self { answers, of_known, of_unknown, unconnected_of_known, unconnected_of_unknown, .. } = self;
        [answers, of_known, of_unknown, unconnected_of_known, unconnected_of_unknown].into_iter()
    }

    /// A datagram can be taken now.
    pub(super) fn is_ready(&mut self, now: Instant) -> bool {
        self.lines().any(|line| line.ready_at().is_some_and(|at| at <= now))
    }

    /// When datagrams that wait for the rate of their line are to be taken, here or from workers:
    /// some at a time.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let held =
            [self.of_unknown.ready_at(), self.unconnected_of_known.ready_at(), self.unknown_taken.exhausted_until()];
        Some(held.into_iter().flatten().min()? + RATE_WAIT)
    }
}

/// Queues that take turns.
#[derive(Debug)]
struct ShareQueues {
    queues: Vec<VecDeque<IncomingMad>>,
    /// Those with datagrams, in the order of their turns.
    turns: VecDeque<usize>,
    hash: RandomState,
    share_max: usize,
    /// Datagrams of all.
    len: usize,
    /// Of datagrams that are taken, if it has a bound.
    rate: Option<RateBudget>,
    created: Instant,
}

impl ShareQueues {
    fn new(share_max: usize, rate: Option<Rate>) -> Self {
        Self {
            queues: (0..SHARES).map(|_| VecDeque::new()).collect(),
            turns: VecDeque::with_capacity(SHARES),
            hash: RandomState::new(),
            share_max,
            len: 0,
            rate: rate.map(RateBudget::new),
            created: Instant::now(),
        }
    }

    fn share_of(&self, peer: &PeerAddress) -> usize {
        self.hash.hash_one(peer.remote) as usize % SHARES
    }

    fn has_room(&self, peer: &PeerAddress) -> bool {
        self.len < LINE_MAX && self.queues[self.share_of(peer)].len() < self.share_max
    }

    /// False if the share has no room.
    fn put(&mut self, mad: IncomingMad) -> bool {
        let has_room = self.has_room(&mad.from);
        if has_room {
            let share = self.share_of(&mad.from);
            if self.queues[share].is_empty() {
                self.turns.push_back(share);
            }
            self.queues[share].push_back(mad);
            self.len += 1;
        }
        has_room
    }

    fn take(&mut self, now: Instant) -> Option<IncomingMad> {
        let share = *self.turns.front()?;
        if self.rate.as_mut().is_some_and(|rate| !rate.take(now)) {
            return None;
        }
        self.turns.pop_front();
        let mad = self.queues[share].pop_front();
        self.len -= usize::from(mad.is_some());
        if !self.queues[share].is_empty() {
            self.turns.push_back(share);
        }
        mad
    }

    /// When there is one to take.
    fn ready_at(&self) -> Option<Instant> {
        let at = self.rate.as_ref().map_or(self.created, RateBudget::next);
        (!self.turns.is_empty()).then_some(at)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use roced_cm::wire::Attribute;
    use roced_types::DeviceId;

    use super::*;
    use crate::worker::mad_filters::MadFilters;

    fn mad(host: u16, number: u8) -> IncomingMad {
        let [high, low] = host.to_be_bytes();
        let remote = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, high, low];
        let from = PeerAddress { device: DeviceId(0), vlan: None, local: [1; 16], remote };
        let mut bytes = [number; MAD_BYTES];
        bytes[..4].copy_from_slice(&[1, 7, 2, 3]);
        bytes[16..18].copy_from_slice(&Attribute::Req.number().to_be_bytes());
        IncomingMad { from, bytes }
    }

    /// About a connection that this host may not have.
    fn answer(host: u16, number: u8) -> IncomingMad {
        let mut mad = mad(host, number);
        mad.bytes[16..18].copy_from_slice(&Attribute::Dreq.number().to_be_bytes());
        mad
    }

    fn known_peers() -> KnownPeers {
        KnownPeers::new(Arc::new(MadFilters::new(0)))
    }

    fn taken(intake: &mut Intake) -> Vec<IncomingMad> {
        std::iter::from_fn(|| intake.take(Instant::now())).collect()
    }

    /// Every address of unknown peers floods; the request of a known peer and answers come through.
    #[test]
    fn a_flood_of_unknown_peers_delays_no_known_peer() {
        let (mut intake, mut known, now) = (Intake::default(), known_peers(), Instant::now());
        intake.put(mad(1, 1), true, &mut known, now);
        assert_eq!(intake.take(now), Some(mad(1, 1)));
        for host in 2..40_000 {
            intake.put(mad(host, 0), false, &mut known, now);
        }
        assert_eq!(intake.dropped, 40_000 - 2 - LINE_MAX as u64);
        assert_eq!(intake.room(now).of_unknown, 0, "workers keep those that come now");
        intake.put(mad(1, 2), false, &mut known, now);
        intake.put(mad(1, 3), true, &mut known, now);
        let first: Vec<_> = (0..3).filter_map(|_| intake.take(now)).collect();
        assert_eq!((first[0], first[1]), (mad(1, 3), mad(1, 2)));
        assert_eq!(first[2].bytes[4], 0, "then unknown peers again");
    }

    /// Datagrams in the name of a known peer that name nothing of this host take no room of its
    /// requests, and few turns; how often they are looked at has a bound.
    #[test]
    fn datagrams_about_unknown_connections_keep_no_request_waiting() {
        let (mut intake, mut known, now) = (Intake::default(), known_peers(), Instant::now());
        intake.put(mad(1, 1), true, &mut known, now);
        assert_eq!(intake.take(now), Some(mad(1, 1)));
        for number in 0..200 {
            intake.put(answer(1, number), false, &mut known, now);
        }
        intake.put(mad(1, 2), false, &mut known, now);
        assert_eq!((intake.dropped, intake.unknown_dropped), (0, 200 - SHARE_MAX as u64));
        let all = taken(&mut intake);
        assert_eq!(all.len(), SHARE_MAX + 1);
        assert!(all.iter().position(|taken| *taken == mad(1, 2)).is_some_and(|at| at < 4));
    }

    /// How often datagrams of known peers about nothing are looked at has a bound, which addresses
    /// share in turns: one that floods spends its own part alone.
    #[test]
    fn datagrams_of_known_peers_about_nothing_are_looked_at_at_a_rate() {
        let (mut intake, mut known, now) = (Intake::default(), known_peers(), Instant::now());
        let share = |intake: &Intake, host: u16| intake.unconnected_of_known.share_of(&mad(host, 0).from);
        let other =
            (2..).find(|host| share(&intake, *host) != share(&intake, 1)).expect("not all hosts have one share");
        [1, other].into_iter().for_each(|host| known.heard(mad(host, 0).from, now));
        let mut looked_at = [0; 2];
        loop {
            (0..10).for_each(|_| intake.put(answer(1, 0), false, &mut known, now));
            intake.put(answer(other, 1), false, &mut known, now);
            let taken = [intake.take(now), intake.take(now)];
            taken.iter().flatten().for_each(|mad| looked_at[usize::from(mad.bytes[4])] += 1);
            if taken.contains(&None) {
                break;
            }
        }
        assert_eq!(looked_at.iter().sum::<u32>(), TAKEN.at_once);
        assert!(looked_at[1] > looked_at[0] / 2, "{looked_at:?}");
        // Requests, and unknown peers, do not wait for that.
        for now_or_never in [mad(1, 5), answer(other + 1, 6)] {
            intake.put(now_or_never, false, &mut known, now);
            assert!(intake.is_ready(now));
            assert_eq!(intake.take(now), Some(now_or_never));
        }
        let due = intake.deadline().expect("some wait");
        assert!(!intake.is_ready(now) && due <= now + TAKEN.every + RATE_WAIT);
        let taken = (0..100).filter(|_| intake.take(due).is_some()).count();
        assert!((8..=9).contains(&taken), "{taken} in 2 ms");
    }

    /// Of unknown peers the first come, so that one that sends many has its part beside all
    /// addresses that a flood forges; a full share spends none of the rate.
    #[test]
    fn datagrams_of_unknown_peers_about_nothing_come_in_at_a_rate() {
        let (mut intake, mut known, now) = (Intake::default(), known_peers(), Instant::now());
        for _ in 0..10_000 {
            intake.put(answer(1, 0), false, &mut known, now);
        }
        assert_eq!(taken(&mut intake).len(), SHARE_MAX);
        let mut come = |intake: &mut Intake, host| {
            intake.put(answer(host, 0), false, &mut known, now);
            u32::from(intake.take(now).is_some())
        };
        let came: u32 = (2..20_000).map(|host| come(&mut intake, host)).sum();
        assert_eq!(came, TAKEN.at_once - SHARE_MAX as u32);
        assert_eq!((intake.room(now).unconnected_of_unknown, intake.is_ready(now)), (0, false));
        let due = intake.deadline().expect("workers keep some");
        assert_eq!(intake.room(due).unconnected_of_unknown, 9, "in 2 ms");
        assert_eq!(intake.deadline(), None);
    }

    /// Requests of unknown peers: many at once, then at a rate, by turns of their addresses.
    #[test]
    fn requests_of_unknown_peers_are_looked_at_at_a_rate() {
        let (mut intake, mut known, now) = (Intake::default(), known_peers(), Instant::now());
        let mut flood = |intake: &mut Intake, hosts: std::ops::Range<u16>| {
            hosts.for_each(|host| intake.put(mad(host, 0), false, &mut known, now));
        };
        let mut looked_at = 0;
        for round in 0..20_u16 {
            flood(&mut intake, round * 1000..round * 1000 + 1000);
            looked_at += std::iter::from_fn(|| intake.take(now)).count();
        }
        assert_eq!(looked_at, TAKEN.at_once as usize);
        let room = intake.room(now);
        assert_eq!((room.of_unknown, room.unconnected_of_unknown), (0, HELD_MAX));
        let due = intake.deadline().expect("some wait");
        assert!(!intake.is_ready(now) && intake.is_ready(due) && due > now);
        let in_time = (0..100).filter(|_| intake.take(due).is_some()).count();
        assert!((8..=9).contains(&in_time), "{in_time} in 2 ms");
        // A known peer does not wait.
        intake.put(mad(9, 1), true, &mut known, due);
        intake.put(mad(9, 2), false, &mut known, due);
        assert_eq!([intake.take(due), intake.take(due)], [Some(mad(9, 1)), Some(mad(9, 2))]);
    }

    #[test]
    fn known_peers_leave_unknown_peers_a_turn() {
        let (mut intake, mut known, now) = (Intake::default(), known_peers(), Instant::now());
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
        let (mut intake, mut known, now) = (Intake::default(), known_peers(), Instant::now());
        let share = |host: u16| intake.answers.share_of(&mad(host, 0).from);
        let other = (2..).find(|host| share(*host) != share(1)).expect("not all hosts have one share");
        for _ in 0..1000 {
            intake.put(mad(1, 0), true, &mut known, now);
        }
        intake.put(mad(other, 7), true, &mut known, now);
        assert_eq!(intake.dropped, 1000 - ANSWERS_MAX as u64);
        assert_eq!((intake.take(now), intake.take(now)), (Some(mad(1, 0)), Some(mad(other, 7))));
    }

    /// A peer that answers without end keeps no request of another known peer waiting.
    #[test]
    fn answers_leave_requests_of_known_peers_a_turn() {
        let (mut intake, mut known, now) = (Intake::default(), known_peers(), Instant::now());
        for number in 0..50 {
            intake.put(mad(1, number), true, &mut known, now);
        }
        intake.put(mad(1, 99), false, &mut known, now);
        assert!((0..4).any(|_| intake.take(now) == Some(mad(1, 99))));
    }

    #[test]
    fn unknown_peers_take_turns_by_address() {
        let (mut intake, mut known, now) = (Intake::default(), known_peers(), Instant::now());
        for number in 0..=255 {
            intake.put(mad(1, number), false, &mut known, now);
        }
        assert_eq!(intake.dropped, 256 - SHARE_MAX as u64);
        let share = |host: u16| intake.of_unknown.share_of(&mad(host, 0).from);
        let other = (2..).find(|host| share(*host) != share(1)).expect("not all hosts have one share");
        intake.put(mad(other, 7), false, &mut known, now);
        assert_eq!((intake.take(now), intake.take(now)), (Some(mad(1, 0)), Some(mad(other, 7))));
        assert!(intake.is_ready(now));
        assert_eq!(taken(&mut intake).len(), SHARE_MAX - 1);
        assert!(!intake.is_ready(now));
    }
}
