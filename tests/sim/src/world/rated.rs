//! Traffic of the class with a rate: frames of it may wait for that, although nothing else is on
//! its way.

use super::World;
use crate::host;

/// Time that the rate catches up at once, in nanoseconds. A sender may wait after half of it,
/// because a whole turn is booked before it is used.
const CAUGHT_UP_NS: u64 = 250_000;

/// Bytes of a host in the class with a rate, as time that they take at that rate.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RatedTraffic {
    /// When all of them have left at the rate.
    until: u64,
}

impl RatedTraffic {
    /// The rate may hold up further frames.
    fn may_wait(self, now: u64) -> bool {
        self.until > now + CAUGHT_UP_NS / 2
    }
}

impl World {
    /// A frame of a connection leaves a host.
    pub(super) fn on_rated(&mut self, from: usize, connection: usize, bytes: usize) {
        if self.has_rate(from, connection) {
            let traffic = &mut self.rated[from];
            traffic.until = traffic.until.max(self.now) + bytes as u64 * 8_000_000 / u64::from(host::RATE_KBIT_PER_S);
        }
    }

    /// Frames of the connection may wait for the rate of its class at one of its hosts.
    pub(super) fn may_wait_for_rate(&self, connection: usize) -> bool {
        (0..2).any(|at| self.has_rate(at, connection) && self.rated[at].may_wait(self.now))
    }

    fn has_rate(&self, at: usize, connection: usize) -> bool {
        self.has_classes[at] && host::has_rate(self.model.connections[connection].slot)
    }
}
