//! Progress of a queue pair, for an operator's report.

use super::{FailureCause, Qp, roles::Roles};
use crate::{clock::Nanos, congestion::control::CongestionState};

/// Positions, outstanding work and last failure of a queue pair at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct QpProgress {
    /// PSN of the next new request packet; `None` before RTS.
    pub next_psn: Option<u32>,
    /// PSN of the oldest request packet without an acknowledgment; `None` without one.
    pub oldest_psn: Option<u32>,
    /// PSN of the next request packet of the peer; `None` before RTR and for datagrams.
    pub expected_psn: Option<u32>,
    /// Send work requests that are not complete.
    pub sends: u32,
    /// Receive work requests in its own queue that are not complete.
    pub receives: u32,
    /// Packets without an acknowledgment.
    pub in_flight_packets: u32,
    /// Smoothed round-trip time; 0 before the first measurement.
    pub round_trip: Nanos,
    /// Of a connection that reacts to congestion.
    pub congestion: Option<CongestionState>,
    /// Cause of its failure since the last RESET.
    pub failure: Option<FailureCause>,
}

impl Qp {
    /// Its progress.
    pub fn progress(&self) -> QpProgress {
        let (base, state) = (&self.base, self.base.state);
        let sends = self.send_queue.tail().wrapping_sub(self.send_queue.head());
        let common =
            QpProgress { sends, receives: self.recv_queue.len(), failure: base.failure, ..QpProgress::default() };
        let (next, expected) = match &self.roles {
            Roles::Reliable(it) => (it.requester.frontier(), Some(it.responder.expected())),
            Roles::Unreliable(it) => (it.next(), Some(it.expected())),
            Roles::Datagram(it) => (it.next(), None),
        };
        let in_flight = self.in_flight();
        let oldest = self.roles.reliable().filter(|_| in_flight > 0).map(|it| it.completer.unacknowledged().get());
        QpProgress {
            next_psn: state.sends().then_some(next.get()),
            oldest_psn: oldest,
            expected_psn: expected.filter(|_| state.receives()).map(crate::psn::Psn::get),
            in_flight_packets: in_flight,
            round_trip: self.roles.reliable().map_or(Nanos(0), |it| it.completer.round_trip()),
            congestion: self.congestion(),
            ..common
        }
    }

    fn congestion(&self) -> Option<CongestionState> {
        let windows = self.roles.reliable().map(|it| it.requester.congestion_windows());
        (self.base.reacts()).then(|| CongestionState {
            request_window: windows.map(|(requests, _)| requests),
            response_window: windows.map(|(_, responses)| responses),
            rate_bytes_per_s: self.base.rate_bytes_per_s(),
        })
    }
}
