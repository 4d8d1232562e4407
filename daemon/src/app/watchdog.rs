//! Notices a worker that makes no progress any more.
//!
//! The control thread looks once a second. After [`PATIENCE`] the daemon ends itself, for its
//! clients would hang and the kernel would not get its traffic back. Systemd's watchdog, which
//! waits for longer, is for the control thread.

use std::time::{Duration, Instant};

use roced_types::WorkerId;

/// How often to look.
pub(super) const PERIOD: Duration = Duration::from_secs(1);

/// How long a worker may be stuck: far longer than any poll iteration, also on a machine that swaps or was
/// suspended; a guess.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

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
    stuck: Option<(WorkerId, Instant)>,
    looked: Option<Instant>,
}

impl Watchdog {
    /// Examines the workers: `stuck` is a worker that has not polled since the last call.
    pub(super) fn look(&mut self, now: Instant, stuck: Option<WorkerId>) -> Health {
        // If this thread was delayed, so was the whole machine, by a suspension for example. Then
        // no worker is at fault.
        let held_up = self.looked.is_some_and(|looked| now - looked > 3 * PERIOD);
        self.looked = Some(now);
        let Some(worker) = stuck.filter(|_| !held_up) else {
            self.stuck = None;
            return Health::Good;
        };
        let since = match self.stuck {
            Some((same, since)) if same == worker => since,
            _ => now,
        };
        self.stuck = Some((worker, since));
        let so_far = now - since + PERIOD;
        if so_far < PATIENCE { Health::Stuck(worker, so_far) } else { Health::Dead(worker, so_far) }
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
        assert_eq!(watchdog.look(begin, None), Health::Good);
        for second in 1..PATIENCE.as_secs() {
            let seen = watchdog.look(begin + PERIOD * second as u32, Some(worker));
            assert_eq!(seen, Health::Stuck(worker, Duration::from_secs(second)));
        }
        let end = begin + PATIENCE;
        assert_eq!(watchdog.look(end, Some(worker)), Health::Dead(worker, PATIENCE));
        assert_eq!(watchdog.look(end + PERIOD, None), Health::Good);
        assert_eq!(watchdog.look(end + 2 * PERIOD, Some(worker)), Health::Stuck(worker, PERIOD));
    }

    #[test]
    fn a_suspended_machine_attributes_no_stall() {
        let begin = Instant::now();
        let mut watchdog = Watchdog::default();
        watchdog.look(begin, Some(WorkerId(0)));
        assert_eq!(watchdog.look(begin + Duration::from_secs(600), Some(WorkerId(0))), Health::Good);
    }
}
