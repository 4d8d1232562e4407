//! Pauses of priorities by the other end of a host's link, and storms that the watchdog ends.

use roced_transport::{clock::Nanos, turns::classes};

use super::World;
use crate::random::Random;

/// Between two changes of the pauses of a host, nanoseconds.
const GAPS: [u64; 4] = [2_000, 30_000, 400_000, 3_000_000];

/// Duration of a pause, nanoseconds. The longest is a storm ([`crate::host::WATCHDOG`]); connections
/// have at least seven retries of 4.2 ms.
const PAUSES: [u64; 4] = [0, 5_000, 90_000, 2_500_000];

/// Pauses of both hosts, if their seed has any.
#[derive(Debug)]
pub(crate) struct Pauses {
    random: Random,
    /// Frames may wait without a reason that a connection knows of.
    pub(crate) is_on: bool,
    /// Time of the next change of each.
    pub(crate) next: [u64; 2],
}

impl Pauses {
    /// Of half of the hosts with classes, in half of the seeds. By bits of the seed, so that no draw
    /// changes.
    pub(crate) fn draw(seed: u64, has_classes: [bool; 2]) -> Self {
        let is_on = [0, 1].map(|at| has_classes[at] && seed >> (7 + at) & 1 == 1 && seed >> 9 & 1 == 1);
        let next = is_on.map(|is_on| if is_on { 0 } else { u64::MAX });
        Self { random: Random::new(seed.rotate_left(29) ^ 0x5046_4300), is_on: is_on.contains(&true), next }
    }
}

impl World {
    /// The other end of the link of a host changes its pauses, if it is time.
    pub(super) fn change_pauses(&mut self, at: usize) {
        if self.pauses.next[at] > self.now {
            return;
        }
        let (now, random) = (self.now, &mut self.pauses.random);
        let is_over = self.sent >= self.enough;
        let pause = |random: &mut Random| if is_over || random.one_in(2) { 0 } else { random.pick(&PAUSES) };
        let until: [Nanos; classes::CLASSES] = std::array::from_fn(|_| Nanos(now + pause(random)));
        self.pauses.next[at] = if is_over { u64::MAX } else { now + random.pick(&GAPS) };
        self.endpoints[at].set_pauses(&until);
    }
}
