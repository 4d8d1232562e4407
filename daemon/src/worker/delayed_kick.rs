//! When the system call that sends acknowledgments alone may wait for other frames.
//!
//! The frames of a poll iteration cost one system call, and half of the calls of a request and its
//! reply between two programs would be for acknowledgments alone. A program that has just received
//! a message often replies at once. A poll iteration that published completions, and has nothing
//! but acknowledgments to send, therefore yields the core to the clients first; a reply then leaves
//! by the same call.
//!
//! Yielding the core may cost a time slice if another thread computes on it: [`YieldPause`].

use roced_abi::yield_pause::YieldPause;
use roced_transport::clock::Nanos;

/// A yield that took longer was used by a computing thread. A guess: several times the reply time
/// of a client.
const LONG_YIELD: Nanos = Nanos::from_micros(30);

/// Whether acknowledgments wait, now and in a while.
#[derive(Clone, Copy, Debug)]
pub struct DelayedKick {
    /// When acknowledgments began to wait, if any do.
    since: Option<Nanos>,
    pause: YieldPause,
}

impl DelayedKick {
    /// Creates the state of a worker that delays nothing yet.
    pub const fn new() -> Self {
        Self { since: None, pause: YieldPause::new(LONG_YIELD.0) }
    }

    /// A poll iteration begins at `now`. Says whether acknowledgments waited for it: they do not
    /// wait longer.
    pub fn on_poll(&mut self, now: Nanos) -> bool {
        let Some(since) = self.since.take() else { return false };
        self.pause.on_return(since.0, now.0);
        true
    }

    /// The poll iteration that began at `now` would have its acknowledgments wait for the next.
    /// Says whether it may; the core is to be yielded in that case.
    pub fn wait(&mut self, now: Nanos) -> bool {
        let may = self.pause.may_yield(now.0);
        self.since = may.then_some(now);
        may
    }

    /// Acknowledgments wait for the next poll iteration.
    pub const fn is_waiting(&self) -> bool {
        self.since.is_some()
    }
}

impl Default for DelayedKick {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn micros(micros: u64) -> Nanos {
        Nanos::from_micros(micros)
    }

    #[test]
    fn a_delayed_kick_is_not_delayed_again() {
        let mut delayed_kick = DelayedKick::new();
        assert!(!delayed_kick.on_poll(micros(1)));
        assert!(delayed_kick.wait(micros(1)) && delayed_kick.is_waiting());
        assert!(delayed_kick.on_poll(micros(2)) && !delayed_kick.is_waiting());
        assert!(!delayed_kick.on_poll(micros(3)));
    }

    /// Offers that are taken for long are made ever more rarely, until one is not.
    #[test]
    fn after_a_long_delay_the_core_is_not_yielded_for_a_while() {
        let (mut delayed_kick, mut now) = (DelayedKick::new(), micros(0));
        for pause_ms in [1, 2, 4] {
            assert!(delayed_kick.wait(now));
            now = Nanos(now.0 + 3_000_000);
            assert!(delayed_kick.on_poll(now));
            assert!(!delayed_kick.wait(Nanos(now.0 + pause_ms * 1_000_000 - 1)) && !delayed_kick.is_waiting());
            now = Nanos(now.0 + pause_ms * 1_000_000);
        }
        assert!(delayed_kick.wait(now));
        now = Nanos(now.0 + 5_000);
        assert!(delayed_kick.on_poll(now) && delayed_kick.wait(now), "a short yield causes no pause");
        now = Nanos(now.0 + 3_000_000);
        assert!(
            delayed_kick.on_poll(now) && delayed_kick.wait(Nanos(now.0 + 1_000_000)),
            "and makes up for those before"
        );
    }

    #[test]
    fn a_pause_has_an_end() {
        let (mut delayed_kick, mut now) = (DelayedKick::new(), micros(0));
        for _ in 0..40 {
            assert!(delayed_kick.wait(now));
            now = Nanos(now.0 + 3_000_000);
            delayed_kick.on_poll(now);
            now = Nanos(now.0 + 1_000_000_000);
        }
    }
}
