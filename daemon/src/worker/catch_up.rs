//! Frames before timers, after a worker stood still: its process was stopped, its virtual machine
//! paused, its core given to others.
//!
//! Answers that came meanwhile wait in the rings of its NIC queues, and in packet buffers that
//! other workers forwarded. There may be more frames than a poll iteration takes, and the timers of
//! queue pairs with answers behind those would fire first: a retry would be spent, and a connection
//! without retries would fail, with the answer at hand. Frames that another worker has not
//! forwarded yet, or a driver not delivered, are not known here, and are not waited for.

use roced_transport::clock::Nanos;

/// Poll iterations that are further apart follow a pause: a quarter of the shortest ACK timeout,
/// 16.8 ms. After a sleep as long nothing waits, and timers fire at once.
const PAUSE: Nanos = Nanos::from_millis(4);

/// Time in which frames are taken before timers fire: enough for a full ring of 16,384 frames. A
/// flood that goes on after a pause, or further pauses, delay timers by no more.
const HOLD_MAX: Nanos = Nanos::from_millis(20);

/// Whether a worker has frames left to take that came while it stood still.
#[derive(Debug)]
pub(super) struct CatchUp {
    /// Begin of this poll iteration.
    polled_at: Nanos,
    /// Timers wait no longer than this.
    until: Nanos,
    /// A queue gave as many frames as one iteration takes: there may be more.
    is_behind: bool,
}

impl CatchUp {
    pub(super) const fn new(now: Nanos) -> Self {
        Self { polled_at: now, until: Nanos(0), is_behind: false }
    }

    /// A poll iteration begins.
    #[inline]
    pub(super) fn on_poll(&mut self, now: Nanos) {
        // While timers are held, further pauses prolong nothing.
        if now - self.polled_at > PAUSE && !self.holds_timers() {
            self.until = now + HOLD_MAX;
        }
        (self.polled_at, self.is_behind) = (now, false);
    }

    /// A queue gave `taken` frames, of `most`.
    #[inline]
    pub(super) fn on_taken(&mut self, taken: usize, most: usize) {
        self.is_behind |= taken == most;
    }

    /// All frames of this iteration were taken: whether timers wait for those of the next.
    #[inline]
    pub(super) fn holds_timers(&self) -> bool {
        self.is_behind && self.polled_at < self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longest time between two poll iterations in which timers fire, of 1,000 that give full
    /// bursts after a pause.
    fn longest_hold(apart: Nanos) -> Nanos {
        let (mut catch_up, mut now) = (CatchUp::new(Nanos(0)), 2 * PAUSE.0);
        let (mut fired_at, mut longest) = (now, 0);
        for _ in 0..1000 {
            catch_up.on_poll(Nanos(now));
            catch_up.on_taken(64, 64);
            if !catch_up.holds_timers() {
                longest = longest.max(now - fired_at);
                fired_at = now;
            }
            now += apart.0;
        }
        Nanos(longest)
    }

    #[test]
    fn a_flood_behind_a_pause_delays_timers_for_a_limited_time() {
        assert_eq!(longest_hold(Nanos::from_micros(50)), HOLD_MAX);
    }

    /// A worker that loses its core again and again never takes all frames of a flood.
    #[test]
    fn pauses_within_a_flood_delay_timers_no_longer() {
        let apart = Nanos::from_millis(5);
        assert!(apart > PAUSE);
        assert!(longest_hold(apart) <= HOLD_MAX + apart, "{:?}", longest_hold(apart));
    }

    #[test]
    fn timers_wait_behind_a_pause_while_frames_do() {
        let mut catch_up = CatchUp::new(Nanos(0));
        let mut holds = |now: u64, taken| {
            catch_up.on_poll(Nanos(now));
            catch_up.on_taken(taken, 64);
            catch_up.holds_timers()
        };
        assert!(!holds(1, 64), "there was no pause");
        assert!(!holds(2 * PAUSE.0, 63), "no frame waits");
        assert!(holds(4 * PAUSE.0, 64) && holds(4 * PAUSE.0 + 1, 64) && !holds(4 * PAUSE.0 + 2, 63));
        assert!(holds(6 * PAUSE.0, 64), "a busy worker stood still");
    }
}
