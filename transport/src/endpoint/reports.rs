//! Reports of queue pairs: events for their clients, and failures for operators.

use super::Endpoint;
use crate::{
    congestion::notification::NotificationCount,
    qp::{Qp, QpEvent, QpFailure},
    turns::class_pause::PauseStorm,
};

impl Endpoint {
    /// There may be something for [`Self::poll_event`], [`Self::poll_failure`],
    /// [`Self::poll_srq_limit`], [`Self::poll_key_change`] or [`Self::poll_pause_storm`].
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

    /// Takes the begin or the end of a storm of pauses ([`Self::set_pauses`]), for operators.
    pub fn poll_pause_storm(&mut self) -> Option<PauseStorm> {
        let storm = self.schedule.senders.take_storm()?;
        let count = if storm.begins { NotificationCount::PauseStorm } else { NotificationCount::PauseStormEnd };
        self.notifications.counters.count(count);
        Some(storm)
    }
}
