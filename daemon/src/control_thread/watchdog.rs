//! Notices a worker that no longer makes progress.
//!
//! The control thread looks once a second. After [`STUCK_TIME_MAX`] the daemon ends itself, because
//! its clients would hang and the kernel would not get its traffic back. Systemd's watchdog, which
//! waits for longer, is for the control thread.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use roced_types::WorkerId;

/// How often to look.
pub(super) const PERIOD: Duration = Duration::from_secs(1);

/// How long a worker may be stuck: far longer than any poll iteration, also on a machine that swaps
/// or was suspended; a guess.
pub(super) const STUCK_TIME_MAX: Duration = Duration::from_secs(20);

/// Health of the workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Health {
    /// All workers poll or sleep.
    Good,
    /// This worker has not polled for that long.
    Stuck(WorkerId, Duration),
    /// This worker has not polled for longer than is acceptable.
    Dead(WorkerId, Duration),
}

/// Observations so far.
#[derive(Debug, Default)]
pub(super) struct Watchdog {
    /// Since when each stuck worker is.
    since: BTreeMap<WorkerId, Instant>,
    looked: Option<Instant>,
}

impl Watchdog {
    /// Examines the workers: those in `stuck` have not polled since the last call. Tells of the one
    /// that is stuck for longest.
    pub(super) fn look(&mut self, now: Instant, stuck: &[WorkerId]) -> Health {
        self.since.retain(|worker, _| stuck.contains(worker));
        // If this thread was delayed, so was the whole machine, by a suspension for example. That
        // time counts for no worker.
        let gap = self.looked.map_or(Duration::ZERO, |looked| now - looked);
        self.looked = Some(now);
        if gap > 3 * PERIOD {
            self.since.values_mut().for_each(|since| *since += gap);
            return Health::Good;
        }
        for worker in stuck {
            self.since.entry(*worker).or_insert(now);
        }
        let Some((worker, since)) = self.since.iter().min_by_key(|(_, since)| **since) else { return Health::Good };
        let so_far = now - *since + PERIOD;
        if so_far < STUCK_TIME_MAX { Health::Stuck(*worker, so_far) } else { Health::Dead(*worker, so_far) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_stays_stuck_is_dead_in_the_end_and_one_that_turns_again_is_not() {
        let begin = Instant::now();
        let mut watchdog = Watchdog::default();
        let worker = WorkerId(1);
        assert_eq!(watchdog.look(begin, &[]), Health::Good);
        for second in 1..STUCK_TIME_MAX.as_secs() {
            let seen = watchdog.look(begin + PERIOD * second as u32, &[worker]);
            assert_eq!(seen, Health::Stuck(worker, Duration::from_secs(second)));
        }
        let end = begin + STUCK_TIME_MAX;
        assert_eq!(watchdog.look(end, &[worker]), Health::Dead(worker, STUCK_TIME_MAX));
        assert_eq!(watchdog.look(end + PERIOD, &[]), Health::Good);
        assert_eq!(watchdog.look(end + 2 * PERIOD, &[worker]), Health::Stuck(worker, PERIOD));
    }

    #[test]
    fn a_worker_that_stalls_now_and_then_hides_no_other() {
        let begin = Instant::now();
        let mut watchdog = Watchdog::default();
        for second in 1..STUCK_TIME_MAX.as_secs() as u32 {
            let stuck = if second % 5 == 0 { &[WorkerId(0), WorkerId(1)][..] } else { &[WorkerId(1)] };
            let seen = watchdog.look(begin + PERIOD * second, stuck);
            assert_eq!(seen, Health::Stuck(WorkerId(1), PERIOD * second));
        }
        assert_eq!(watchdog.look(begin + STUCK_TIME_MAX, &[WorkerId(1)]), Health::Dead(WorkerId(1), STUCK_TIME_MAX));
    }

    #[test]
    fn a_suspended_machine_attributes_no_stall() {
        let begin = Instant::now();
        let mut watchdog = Watchdog::default();
        let worker = WorkerId(0);
        watchdog.look(begin, &[worker]);
        let later = begin + Duration::from_secs(600);
        assert_eq!(watchdog.look(later, &[worker]), Health::Good);
        assert_eq!(watchdog.look(later + PERIOD, &[worker]), Health::Stuck(worker, 2 * PERIOD), "the rest counts");
    }
}
