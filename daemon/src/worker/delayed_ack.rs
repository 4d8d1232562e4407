//! When an acknowledgement may wait for company.
//!
//! The frames of a poll iteration cost one system call, and half of the calls of a request and its
//! reply between two programs would be for acknowledgments alone. A program that has just received
//! a message often replies at once. A poll iteration that published completions, and has nothing
//! but acknowledgments to send, therefore yields the core to the clients first; a reply then leaves
//! by the same call.
//!
//! Yielding the core may cost a time slice if another thread computes on it. After one such delay
//! the worker does not yield for a while, and for twice as long the next time.

use roced_transport::clock::Nanos;

/// A yield that took longer was used by a computing thread. A guess: several times the reply time
/// of a client.
const LONG: Nanos = Nanos::from_micros(30);
/// The first pause without offers: one that was taken for long may have been the beginning of
/// something.
const SHORTEST: Nanos = Nanos::from_millis(1);
/// The longest: a thousandth of the time may be lost to offers.
const LONGEST: Nanos = Nanos::from_millis(1_000);

/// Whether acknowledgements wait, now and in a while.
#[derive(Clone, Copy, Debug)]
pub struct DelayedAck {
    /// When acknowledgements began to wait, if any do.
    since: Option<Nanos>,
    /// None wait before that.
    not_before: Nanos,
    /// How long none wait after the next disappointment.
    next_pause: Nanos,
}

impl DelayedAck {
    /// Of a worker that has kept nothing waiting yet.
    pub const fn new() -> Self {
        Self { since: None, not_before: Nanos(0), next_pause: SHORTEST }
    }

    /// A poll iteration begins at `now`. Says whether acknowledgements waited for it: they do not
    /// wait longer.
    pub fn on_poll(&mut self, now: Nanos) -> bool {
        let Some(since) = self.since.take() else { return false };
        if now - since > LONG {
            self.not_before = Nanos(now.0.saturating_add(self.next_pause.0));
            self.next_pause = Nanos(self.next_pause.0 * 2).min(LONGEST);
        } else {
            self.next_pause = SHORTEST;
        }
        true
    }

    /// The poll iteration that began at `now` would have its acknowledgements wait for the next.
    /// Says whether it may; then the core is to be offered.
    pub fn wait(&mut self, now: Nanos) -> bool {
        let may = now >= self.not_before;
        self.since = may.then_some(now);
        may
    }

    /// Acknowledgements wait for the next poll iteration.
    pub const fn is_waiting(&self) -> bool {
        self.since.is_some()
    }
}

impl Default for DelayedAck {
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
    fn a_delayed_ack_is_not_delayed_again() {
        let mut delayed_ack = DelayedAck::new();
        assert!(!delayed_ack.on_poll(micros(1)));
        assert!(delayed_ack.wait(micros(1)) && delayed_ack.is_waiting());
        assert!(delayed_ack.on_poll(micros(2)) && !delayed_ack.is_waiting());
        assert!(!delayed_ack.on_poll(micros(3)));
    }

    /// Offers that are taken for long are made ever more rarely, until one is not.
    #[test]
    fn after_a_long_delay_the_core_is_not_yielded_for_a_while() {
        let (mut delayed_ack, mut now) = (DelayedAck::new(), micros(0));
        for pause_ms in [1, 2, 4] {
            assert!(delayed_ack.wait(now));
            now = Nanos(now.0 + 3_000_000);
            assert!(delayed_ack.on_poll(now));
            assert!(!delayed_ack.wait(Nanos(now.0 + pause_ms * 1_000_000 - 1)) && !delayed_ack.is_waiting());
            now = Nanos(now.0 + pause_ms * 1_000_000);
        }
        assert!(delayed_ack.wait(now));
        now = Nanos(now.0 + 5_000);
        assert!(delayed_ack.on_poll(now) && delayed_ack.wait(now), "a short one is no disappointment");
        now = Nanos(now.0 + 3_000_000);
        assert!(
            delayed_ack.on_poll(now) && delayed_ack.wait(Nanos(now.0 + 1_000_000)),
            "and makes up for those before"
        );
    }

    #[test]
    fn a_pause_has_an_end() {
        let (mut delayed_ack, mut now) = (DelayedAck::new(), micros(0));
        for _ in 0..40 {
            assert!(delayed_ack.wait(now));
            now = Nanos(now.0 + 3_000_000);
            delayed_ack.on_poll(now);
            now = Nanos(now.0 + LONGEST.0);
        }
    }
}
