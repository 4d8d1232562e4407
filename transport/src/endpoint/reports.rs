//! Reports of queue pairs: events for their clients, and failures for operators.

use super::Endpoint;
use crate::qp::{Qp, QpEvent, QpFailure};

impl Endpoint {
    /// There may be something for [`Self::poll_event`], [`Self::poll_failure`],
    /// [`Self::poll_srq_limit`] or [`Self::poll_key_change`].
    #[inline]
    pub fn has_reports(&self) -> bool {
        self.schedule.has_reports() || self.resources.srqs.has_event()
    }

    /// Takes an event for a client.
    pub fn poll_event(&mut self) -> Option<QpEvent> {
        while let Some(slot) = self.schedule.events.pop_front() {
            let Some(qp) = self.qps.get_mut(slot) else { continue };
            let event = qp.take_event();
            if qp.has_event() {
                self.schedule.events.push_back(slot);
            }
            if event.is_some() {
                return event;
            }
        }
        None
    }

    /// Takes the failure of a queue pair, for operators: each is reported once, and not after the
    /// queue pair was reset or removed.
    pub fn poll_failure(&mut self) -> Option<QpFailure> {
        while let Some(slot) = self.schedule.failures.pop_front() {
            if let Some(failure) = self.qps.get_mut(slot).and_then(Qp::take_failure) {
                return Some(failure);
            }
        }
        None
    }
}
