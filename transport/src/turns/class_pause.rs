//! Pauses of a traffic class by the other end of the link (PFC, IEEE 802.1Q 36), and the watchdog
//! that ends one without an end.
//!
//! ```text
//!   not paused ──pause──► paused ──detection time with frames, none left──► storm
//!       ▲                   │                                                 │
//!       └──its end──────────┘◄────── restoration time without a pause ────────┘
//! ```

use crate::clock::Nanos;

/// A paused class with frames is looked at again after that time at the latest: the other end may
/// end a pause early. A guess: a tenth of a pause that 10 Gbit/s needs to empty a buffer of 1 MB.
const LOOK: Nanos = Nanos::from_micros(100);

/// In a storm it ends rarely.
const LOOK_IN_STORM: Nanos = Nanos::from_millis(2);

/// Action when a class is in a storm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StormAction {
    /// Its frames leave in spite of pauses, until none was received for the restoration time.
    #[default]
    Ignore,
    /// It stays paused; the storm is reported.
    Report,
}

/// Rules of the watchdog of pauses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PauseWatchdog {
    /// A class is in a storm when it was paused for that long without a break, and had frames none
    /// of which left. [`Nanos::NEVER`]: no watchdog.
    pub detection: Nanos,
    /// The storm is over when it was not paused for that long.
    pub restoration: Nanos,
    /// Action in a storm.
    pub action: StormAction,
}

impl Default for PauseWatchdog {
    /// The times of SONiC's watchdog.
    fn default() -> Self {
        Self {
            detection: Nanos::from_millis(200),
            restoration: Nanos::from_millis(200),
            action: StormAction::default(),
        }
    }
}

/// The begin or the end of a storm of pauses, for operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PauseStorm {
    /// Number of the class.
    pub class: u8,
    /// It begins.
    pub begins: bool,
}

/// The pauses of one class, as one endpoint obeys them.
#[derive(Debug)]
pub(crate) struct ClassPause {
    watchdog: PauseWatchdog,
    /// End of the last pause.
    until: Nanos,
    /// When it was last seen paused: a pause may be ended before its time.
    seen: Nanos,
    /// Frames wait for its end since then, and were seen last.
    held: Option<(Nanos, Nanos)>,
    is_storm: bool,
    /// The storm that was reported last.
    is_reported: bool,
}

impl ClassPause {
    pub(crate) const fn new(watchdog: PauseWatchdog) -> Self {
        Self { watchdog, until: Nanos(0), seen: Nanos(0), held: None, is_storm: false, is_reported: false }
    }

    /// The class is paused until `until`, or not if that has passed.
    pub(crate) const fn set(&mut self, until: Nanos) {
        // A gap before it may have been too short for a worker.
        self.until = until;
    }

    /// When frames that wait may be looked at again; `None` if they may leave at `now`.
    #[inline]
    pub(crate) fn closed_until(&mut self, now: Nanos) -> Option<Nanos> {
        if self.until <= now { None } else { self.hold(now) }
    }

    #[cold]
    fn hold(&mut self, now: Nanos) -> Option<Nanos> {
        // Between two looks that are far from each other it may have been free to send.
        let recent = self.held.filter(|(_, last)| now - *last < Nanos(self.watchdog.detection.0 / 2));
        let since = recent.map_or(now, |(since, _)| since);
        self.held = Some((since, now));
        self.is_storm |= now - since >= self.watchdog.detection;
        let is_ignored = self.is_storm && self.watchdog.action == StormAction::Ignore;
        let look = if self.is_storm { LOOK_IN_STORM } else { LOOK };
        if is_ignored { None } else { Some(self.until.min(now + look)) }
    }

    /// Frames left.
    #[inline]
    pub(crate) const fn on_sent(&mut self) {
        self.held = None;
    }

    /// No frames wait.
    #[inline]
    pub(crate) const fn on_empty(&mut self) {
        self.held = None;
    }

    /// Time has passed.
    #[inline]
    pub(crate) fn on_time(&mut self, now: Nanos) {
        if self.until <= now {
            self.held = None;
        } else {
            self.seen = now;
        }
        self.is_storm &= now < self.until.max(self.seen) + self.watchdog.restoration;
    }

    /// [`Self::take_storm`] has one.
    #[inline]
    pub(crate) const fn has_storm_report(&self) -> bool {
        self.is_storm != self.is_reported
    }

    /// A storm has begun or ended since this was last called.
    pub(crate) fn take_storm(&mut self) -> Option<bool> {
        let changes = self.has_storm_report();
        self.is_reported = self.is_storm;
        changes.then_some(self.is_storm)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    const START: Nanos = Nanos::from_millis(1000);

    fn after(millis: u64) -> Nanos {
        START + Nanos::from_millis(millis)
    }

    #[test]
    fn a_pause_ends_by_its_time_or_by_another() {
        let mut pause = ClassPause::new(PauseWatchdog::default());
        assert_eq!(pause.closed_until(START), None);
        pause.set(after(3));
        assert_eq!(pause.closed_until(START), Some(START + LOOK));
        let last = after(3) - Nanos(1);
        assert_eq!(pause.closed_until(last), Some(after(3)));
        assert_eq!(pause.closed_until(after(3)), None);
        pause.set(after(9));
        assert!(pause.closed_until(after(5)).is_some());
        pause.set(after(5));
        assert_eq!(pause.closed_until(after(5)), None);
    }

    /// Pauses of 3 ms, renewed each 2 ms, from `from` to `to`; frames wait all the time, and one
    /// leaves whenever it may. Returns the milliseconds in which one left.
    fn storm(pause: &mut ClassPause, from: u64, to: u64) -> Vec<u64> {
        let mut left = Vec::new();
        for millis in from..to {
            if millis % 2 == 0 {
                pause.set(after(millis + 3));
            }
            if pause.closed_until(after(millis)).is_none() {
                pause.on_sent();
                left.push(millis);
            }
        }
        left
    }

    #[test]
    fn a_storm_is_ignored_until_no_pause_was_received_for_the_restoration_time() {
        let mut pause = ClassPause::new(PauseWatchdog::default());
        let left = storm(&mut pause, 0, 300);
        assert_eq!(left, (200..300).collect::<Vec<_>>());
        assert_eq!((pause.take_storm(), pause.take_storm()), (Some(true), None));
        // The last pause ends at 301 ms.
        pause.on_time(after(500));
        assert_eq!(pause.take_storm(), None);
        assert!(!storm(&mut pause, 500, 502).is_empty(), "still a storm");
        pause.on_time(after(703));
        assert_eq!(pause.take_storm(), Some(false));
        assert!(storm(&mut pause, 704, 800).is_empty());
    }

    /// A frame that ends the pause before its time is no sign of the storm's end.
    #[test]
    fn a_storm_outlasts_a_pause_that_is_ended() {
        let mut pause = ClassPause::new(PauseWatchdog::default());
        storm(&mut pause, 0, 300);
        pause.on_time(after(300));
        assert_eq!(pause.take_storm(), Some(true));
        pause.set(Nanos(0));
        pause.on_time(after(300));
        assert_eq!(pause.take_storm(), None);
        assert_eq!(storm(&mut pause, 302, 400).len(), 98, "no class is paused anew");
        pause.set(Nanos(0));
        pause.on_time(after(700));
        assert_eq!(pause.take_storm(), Some(false));
    }

    /// A worker wakes after the end of a pause and finds the next one.
    #[test]
    fn gaps_that_no_worker_could_use_are_no_break() {
        let mut pause = ClassPause::new(PauseWatchdog::default());
        let mut left = None;
        for round in 0..100 {
            let now = START + Nanos(round * 3_030_000) + Nanos::from_micros(60);
            pause.set(now + Nanos::from_micros(2940));
            pause.on_time(now);
            if pause.closed_until(now).is_none() {
                left = left.or(Some(round * 3));
                pause.on_sent();
            }
        }
        assert!(left.is_some_and(|millis| (198..210).contains(&millis)), "{left:?}");
    }

    /// A worker that sleeps for longer than the restoration time finds a new pause when it wakes.
    #[test]
    fn a_storm_lasts_while_pauses_come_that_are_seen_late() {
        let mut pause = ClassPause::new(PauseWatchdog::default());
        storm(&mut pause, 0, 300);
        assert_eq!(pause.take_storm(), Some(true));
        for woken in [800, 1300, 1800] {
            pause.set(after(woken + 3));
            pause.on_time(after(woken));
            assert_eq!((pause.take_storm(), pause.closed_until(after(woken))), (None, None));
        }
    }

    /// A worker that stood still has not seen the end of a pause.
    #[test]
    fn time_without_a_look_is_no_part_of_a_storm() {
        for on_time_between in [false, true] {
            let mut pause = ClassPause::new(PauseWatchdog::default());
            pause.set(after(3));
            assert!(pause.closed_until(START).is_some());
            if on_time_between {
                pause.on_time(after(150));
            }
            pause.set(after(303));
            assert!(pause.closed_until(after(300)).is_some());
            assert_eq!(pause.take_storm(), None);
        }
        let mut pause = ClassPause::new(PauseWatchdog::default());
        pause.set(after(1000));
        assert!([0, 120, 240, 360].iter().all(|millis| pause.closed_until(after(*millis)).is_some()));
        assert!([380, 460, 540].iter().all(|millis| pause.closed_until(after(*millis)).is_some()));
        assert_eq!(pause.closed_until(after(560)), None, "200 ms after the first look of a row");
    }

    #[test]
    fn a_reported_storm_stays_paused() {
        let rules = PauseWatchdog { action: StormAction::Report, ..PauseWatchdog::default() };
        let mut pause = ClassPause::new(rules);
        assert!(storm(&mut pause, 0, 1000).is_empty());
        assert_eq!((pause.take_storm(), pause.take_storm()), (Some(true), None));
    }

    #[test]
    fn without_frames_or_with_those_that_leave_there_is_no_storm() {
        let mut pause = ClassPause::new(PauseWatchdog::default());
        for round in 0..10 {
            assert!(storm(&mut pause, 200 * round, 200 * round + 150).is_empty());
            pause.on_empty();
        }
        let mut pause = ClassPause::new(PauseWatchdog::default());
        for round in 0..10 {
            let left = storm(&mut pause, 200 * round, 200 * round + 150);
            assert!(left.is_empty(), "{left:?}");
            let gap = after(200 * round + 160);
            pause.on_time(gap);
            assert_eq!(pause.closed_until(gap), None);
        }
        assert_eq!(pause.take_storm(), None);
        let mut pause = ClassPause::new(PauseWatchdog { detection: Nanos::NEVER, ..PauseWatchdog::default() });
        assert!(storm(&mut pause, 0, 1000).is_empty());
    }
}
