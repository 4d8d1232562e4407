//! A [`Pacer`], and until when its sender waits.

use super::pacing::{PacedFrame, Pacer};
use crate::clock::Nanos;

/// Lets a sender through at its rate, and says when to look again.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Gate {
    pacer: Pacer,
    closed_until: Option<Nanos>,
}

impl Gate {
    /// Sets the rate; 0 for no limit.
    pub(crate) fn set_rate(&mut self, kbit_per_s: u32) {
        self.pacer.set_rate(kbit_per_s);
        self.closed_until = None;
    }

    /// Whether nothing may leave at `now`. If so, [`Self::deadline`] says until when.
    pub(crate) fn is_closed(&mut self, now: Nanos) -> bool {
        self.closed_until = Some(self.pacer.next_send()).filter(|next| *next > now);
        self.closed_until.is_some()
    }

    /// A frame left at `now`.
    pub(crate) fn on_sent(&mut self, now: Nanos, frame: PacedFrame) {
        self.pacer.on_sent(now, frame);
    }

    /// Time has passed.
    pub(crate) fn on_timeout(&mut self, now: Nanos) {
        self.closed_until = self.closed_until.filter(|until| *until > now);
    }

    /// Time at which the waiting queue pair may continue; [`Nanos::NEVER`] if none waits.
    pub(crate) fn deadline(&self) -> Nanos {
        self.closed_until.unwrap_or(Nanos::NEVER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gated_queue_pair_learns_its_deadline() {
        let mut gate = Gate::default();
        gate.set_rate(8000);
        let now = Nanos::from_millis(5);
        assert!(!gate.is_closed(now));
        assert_eq!(gate.deadline(), Nanos::NEVER);
        gate.on_sent(now, PacedFrame { bytes: 1000, burst_bytes: 0, kbit_per_s: 0 });
        assert!(gate.is_closed(now));
        let until = gate.deadline();
        assert!(now < until && until <= now + Nanos::from_millis(1));
        gate.on_timeout(until);
        assert_eq!((gate.deadline(), gate.is_closed(until)), (Nanos::NEVER, false));
    }
}
