//! Events and faults of seeds, counted.

use std::fmt;

/// Names of all counts.
pub const NAMES: [&str; TALLIED] = [
    "connects",
    "established",
    "services found",
    "refused",
    "no listener",
    "stale",
    "unreachable",
    "disconnected",
    "DREQ unanswered",
    "TIMEWAIT exits",
    "no neighbor",
    "calls refused",
    "given up after accept",
    "killed",
    "crashes",
    "orderly stops",
    "device gone",
    "to itself",
    "lost",
    "duplicated",
    "late",
    "of earlier",
    "cut off",
    "MRAs",
    "repetitions",
    "known by data",
    "queue pair failed",
];

/// Number of counts.
const TALLIED: usize = 27;

/// An event or a fault, in the order of [`NAMES`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum Count {
    Connects,
    Established,
    Found,
    Refused,
    NoListener,
    Stale,
    Unreachable,
    Disconnected,
    DreqUnanswered,
    TimeWaitExits,
    NoNeighbor,
    CallsRefused,
    GivenUp,
    Killed,
    Crashes,
    Stops,
    DeviceGone,
    ToItself,
    Lost,
    Duplicated,
    Late,
    Earlier,
    CutOff,
    Mras,
    Repetitions,
    KnownByData,
    Failed,
}

/// Counts of events and faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionTally([u64; TALLIED]);

impl ConnectionTally {
    pub(crate) const fn count(&mut self, of: Count) {
        self.0[of as usize] += 1;
    }

    /// Adds those of another seed.
    pub fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, more)| *sum += more);
    }

    /// Names of those that are zero.
    pub fn zeros(&self) -> Vec<&'static str> {
        NAMES.iter().zip(self.0).filter(|(_, count)| *count == 0).map(|(name, _)| *name).collect()
    }
}

impl fmt::Display for ConnectionTally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts: Vec<_> = NAMES.iter().zip(self.0).map(|(name, count)| format!("{name} {count}")).collect();
        f.write_str(&counts.join(", "))
    }
}
