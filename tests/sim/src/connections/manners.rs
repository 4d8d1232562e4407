//! Properties of a seed: hosts, limits, and the likelihood of each thing that programs do.

use std::{ops::RangeInclusive, time::Duration};

use crate::random::Random;

/// Likelihoods are in parts per million.
#[derive(Clone, Debug)]
pub(crate) struct Manners {
    pub(crate) hosts: usize,
    /// Nothing new begins after that.
    pub(crate) active: Duration,
    pub(crate) programs: u64,
    /// Connections that a program asks for, at most.
    pub(crate) connects: u64,
    /// They are asked for within this time.
    pub(crate) within: Duration,
    pub(crate) queue_pairs: usize,
    pub(crate) connections_max: usize,
    pub(crate) of_account_max: u32,
    pub(crate) ephemeral: RangeInclusive<u16>,
    pub(crate) backlogs: [u32; 3],
    pub(crate) ipv6: u32,
    pub(crate) datagram: u32,
    pub(crate) unreliable: u32,
    /// To the own host.
    pub(crate) to_itself: u32,
    /// To a port without a listener.
    pub(crate) nowhere: u32,
    /// Programs take events, and decide, after at most so long.
    pub(crate) slowest: Duration,
    /// A program waits for seconds with its decision, up to minutes.
    pub(crate) hesitates: u32,
    pub(crate) refuses: u32,
    /// It does nothing about an event.
    pub(crate) ignores: u32,
    /// It gives an attempt up that is under way.
    pub(crate) regrets: u32,
    /// It destroys an identifier instead of a disconnect.
    pub(crate) abrupt: u32,
    /// It leaves the end of a connection to the peer.
    pub(crate) passive: u32,
    /// Data comes before the confirmation.
    pub(crate) data_first: u32,
    pub(crate) killed: u32,
    pub(crate) crashes: u64,
    pub(crate) stops: u64,
    pub(crate) removals: u64,
    /// Of neighbors.
    pub(crate) silent: u32,
    /// Of connections: an ACK timeout of the program.
    pub(crate) ack_timeouts: u32,
}

impl Manners {
    pub(crate) fn draw(random: &mut Random) -> Self {
        let keep = random.pick(&[1, 2, 2, 4]);
        let rate = |random: &mut Random, rates: &[u32]| if random.one_in(keep) { random.pick(rates) } else { 0 };
        let seconds = |random: &mut Random, from: &[u64]| Duration::from_secs(random.pick(from));
        Self {
            hosts: random.pick(&[2, 2, 3]),
            active: seconds(random, &[20, 100, 400]),
            programs: random.within(2, 8),
            connects: random.pick(&[2, 6, 20, 20, 100]),
            within: seconds(random, &[0, 1, 30, 300]),
            queue_pairs: random.pick(&[6, 24, 500]),
            connections_max: random.pick(&[10_000, 10_000, 10_000, 12]),
            of_account_max: random.pick(&[1_000, 1_000, 1_000, 12]),
            ephemeral: 40_000..=random.pick(&[40_003, 40_063, 41_000]),
            backlogs: random.pick(&[[0, 0, 0], [0, 8, 1], [1, 2, 3]]),
            ipv6: random.pick(&[0, 300_000, 1_000_000]),
            datagram: random.pick(&[0, 200_000, 600_000]),
            unreliable: random.pick(&[0, 0, 100_000]),
            to_itself: rate(random, &[50_000, 300_000]),
            nowhere: rate(random, &[50_000, 200_000]),
            slowest: Duration::from_millis(random.pick(&[0, 5, 300, 2_000])),
            hesitates: rate(random, &[20_000, 200_000]),
            refuses: rate(random, &[50_000, 300_000]),
            ignores: rate(random, &[20_000, 200_000]),
            regrets: rate(random, &[50_000, 300_000]),
            abrupt: rate(random, &[50_000, 500_000]),
            passive: random.pick(&[0, 200_000, 500_000]),
            data_first: rate(random, &[200_000, 900_000]),
            killed: rate(random, &[100_000, 600_000]),
            crashes: if random.one_in(keep) { random.within(1, 3) } else { 0 },
            stops: if random.one_in(keep) { 1 } else { 0 },
            removals: if random.one_in(keep * 2) { 1 } else { 0 },
            silent: rate(random, &[100_000, 400_000]),
            ack_timeouts: rate(random, &[100_000, 500_000]),
        }
    }
}

impl Manners {
    /// A host may forget a connection of a program that is gone before the peer knows.
    pub(crate) const fn has_few_places(&self) -> bool {
        self.connections_max < 1_000
    }
}

/// A time up to `most`.
pub(crate) fn up_to(random: &mut Random, most: Duration) -> Duration {
    Duration::from_nanos(random.below(most.as_nanos() as u64 + 1))
}
