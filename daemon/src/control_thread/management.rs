//! Management datagrams from the workers to the connection manager.

use std::{
    os::fd::AsFd as _,
    time::{Duration, Instant},
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use tracing::warn;

use super::{Daemon, NetworkView};
use crate::{
    clients::Clients,
    environment::Environment,
    worker::{received_mads::MadReceiver, workers::Workers},
};

/// Datagrams before everything else has its turn. A guess: each takes microseconds.
const MADS: usize = 64;

/// Time for peers to answer that connections end with the daemon, since the last answer: a lost
/// datagram is repeated once within it.
const ANSWER_MAX: Duration = Duration::from_millis(500);

/// Time for all of them: thousands of answers on a busy host.
const DISCONNECTING_MAX: Duration = Duration::from_secs(5);

/// How long peers may take to answer, each of those that are left.
struct AnswerWait {
    /// Connections without an answer, at least so far.
    least: usize,
    /// When the next answer is too late, and when all are.
    end: Instant,
    latest: Instant,
}

impl AnswerWait {
    fn new(waiting: usize, now: Instant) -> Self {
        Self { least: waiting, end: now + ANSWER_MAX, latest: now + DISCONNECTING_MAX }
    }

    /// A round that began at `began` has left `waiting` connections without an answer: whether to
    /// look again. An answer that came in time counts however late the round was.
    fn goes_on(&mut self, waiting: usize, began: Instant) -> bool {
        if waiting < self.least {
            self.least = waiting;
            self.end = self.latest.min(began + ANSWER_MAX);
        }
        waiting > 0 && began < self.end
    }
}

impl Daemon {
    /// Takes management datagrams, a bounded number. If some are left the fd stays readable, or
    /// [`Clients::are_mads_due`] later.
    pub(super) fn on_mads(&mut self) {
        let mut network_view = NetworkView { net: &mut self.net, devices: &mut self.devices };
        let mut environment = Environment { workers: &mut self.workers, network: &mut network_view };
        self.mads.drain(self.clients.room_for_mads(), |mad| self.clients.on_mad(&mad, &environment));
        if self.clients.take_datagrams(MADS, &mut environment) {
            self.mads.ring();
        }
    }
}

/// Tells the peers of all connections that these end, and waits for their answers for a bounded
/// time. The clients have been stopped.
pub(super) fn disconnect(
    mads: &MadReceiver,
    clients: &mut Clients,
    workers: &mut Workers,
    network_view: &mut NetworkView<'_>,
) {
    let mut wait = AnswerWait::new(clients.disconnecting(), Instant::now());
    let mut now = Instant::now();
    while wait.goes_on(clients.disconnecting(), now) {
        now = Instant::now();
        // Neighbors may have to be asked for before a datagram leaves.
        let changes = network_view.net.on_deadline();
        let mut environment = Environment { workers, network: network_view };
        clients.on_changes(&changes, &mut environment);
        clients.on_cm_deadline(now, &mut environment);
        let deadlines = [clients.cm_deadline(), network_view.net.deadline()];
        let until = deadlines.into_iter().flatten().fold(wait.end, Instant::min);
        // Rounded up, so that a deadline has passed when we wake for it.
        let left = until.saturating_duration_since(now) + Duration::from_micros(999);
        let mut readable = [mads.as_fd(), network_view.net.fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        // A signal ends the wait early.
        let _ = poll(&mut readable, PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO));
        let hears_network = readable[1].any() == Some(true);
        let changes = if hears_network { network_view.net.on_readable() } else { Ok(Vec::new()) };
        let mut environment = Environment { workers, network: network_view };
        match changes {
            Ok(changes) => clients.on_changes(&changes, &mut environment),
            Err(error) => return warn!(%error, "some peers may not hear that their connections end"),
        }
        mads.drain(clients.room_for_mads(), |mad| clients.on_mad(&mad, &environment));
        while clients.take_datagrams(MADS, &mut environment) && now.elapsed() < ANSWER_MAX {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_that_answer_are_waited_for_and_silent_ones_for_half_a_second() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut silent = AnswerWait::new(7, start);
        assert!(silent.goes_on(7, at(0)) && silent.goes_on(7, at(499)) && !silent.goes_on(7, at(500)));
        // The host is busy: it looks late, and finds an answer that waited.
        let mut busy = AnswerWait::new(7, start);
        assert!(busy.goes_on(6, at(900)) && busy.goes_on(6, at(1399)));
        assert!(busy.goes_on(1, at(1500)) && !busy.goes_on(0, at(1500)));
        let mut slow = AnswerWait::new(700, start);
        let rounds = (1..700).take_while(|round| slow.goes_on(700 - round, at(*round as u64 * 100))).count();
        assert_eq!(rounds, 49, "five seconds for all");
    }
}
