//! Changes of neighbors' MAC addresses: a pause between two that are told.
//!
//! Each is a round trip to a worker for every path to that neighbor, and any host on the link can
//! announce another address for it at any rate. The first is told at once, as a failover needs; the
//! next ones, with the address of that time, after ever longer pauses.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use super::neighbor::NeighborKey;

/// The pause after a change; after each of the following ones it is twice as long. Guesses: a
/// change of 16,000 paths takes some 0.3 s, and a failover that goes back and forth is known soon.
const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(4);

#[derive(Debug)]
struct ChangePause {
    length: Duration,
    /// There was another change in it.
    has_more: bool,
}

/// Neighbors that have changed a short time ago.
#[derive(Debug, Default)]
pub(super) struct MacChanges {
    pauses: BTreeMap<NeighborKey, ChangePause>,
    by_end: BTreeSet<(Instant, NeighborKey)>,
}

impl MacChanges {
    /// A neighbor has another address; true if that is to be told now.
    pub(super) fn on_change(&mut self, neighbor: NeighborKey, now: Instant) -> bool {
        if let Some(pause) = self.pauses.get_mut(&neighbor) {
            pause.has_more = true;
            return false;
        }
        self.pause(neighbor, PAUSE_MIN, now);
        true
    }

    fn pause(&mut self, neighbor: NeighborKey, length: Duration, now: Instant) {
        let until = now + length;
        self.pauses.insert(neighbor, ChangePause { length, has_more: false });
        self.by_end.insert((until, neighbor));
    }

    /// When [`Self::on_time`] wants to be called.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.by_end.first().map(|(until, _)| *until)
    }

    /// A neighbor at the end of a pause in which it has changed again: to be told now.
    pub(super) fn on_time(&mut self, now: Instant) -> Option<NeighborKey> {
        while let Some((until, neighbor)) = self.by_end.first().copied().filter(|(until, _)| *until <= now) {
            self.by_end.remove(&(until, neighbor));
            let pause = self.pauses.remove(&neighbor).expect("each end is of a pause");
            if pause.has_more {
                self.pause(neighbor, (2 * pause.length).min(PAUSE_MAX), now);
                return Some(neighbor);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEIGHBOR: NeighborKey = (1, std::net::IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2)));
    const OTHER: NeighborKey = (2, NEIGHBOR.1);

    #[test]
    fn a_single_change_is_told_at_once_and_leaves_nothing() {
        let (mut changes, now) = (MacChanges::default(), Instant::now());
        assert!(changes.on_change(NEIGHBOR, now) && changes.on_change(OTHER, now));
        assert_eq!(changes.deadline(), Some(now + PAUSE_MIN));
        assert_eq!((changes.on_time(now + PAUSE_MIN), changes.deadline()), (None, None));
        assert!(changes.pauses.is_empty() && changes.on_change(NEIGHBOR, now + PAUSE_MIN));
    }

    #[test]
    fn changes_without_end_are_told_ever_more_rarely_and_the_last_one_is() {
        let (mut changes, begin) = (MacChanges::default(), Instant::now());
        let mut told = Vec::new();
        for millisecond in 0..20_000 {
            let now = begin + Duration::from_millis(millisecond);
            if changes.on_change(NEIGHBOR, now) || changes.on_time(now).is_some() {
                told.push(millisecond);
            }
        }
        assert_eq!(told, [0, 500, 1500, 3500, 7500, 11_500, 15_500, 19_500]);
        let end = changes.deadline().expect("a pause");
        assert_eq!(changes.on_time(end), Some(NEIGHBOR), "there was another one since");
        let end = changes.deadline().expect("a pause");
        assert_eq!((changes.on_time(end), changes.deadline()), (None, None));
    }
}
