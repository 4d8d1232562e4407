//! Management datagrams from the workers to the connection manager.

use std::{
    os::fd::AsFd as _,
    time::{Duration, Instant},
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::{Daemon, NetworkView};
use crate::{clients::Clients, environment::Environment, worker::management::MadReceiver};

/// Datagrams before everything else has its turn. A guess: each takes microseconds.
const MADS: usize = 64;

/// Time for peers to answer that connections end with the daemon: a lost datagram is repeated once
/// within it.
const DISCONNECTING_MAX: Duration = Duration::from_millis(500);

impl Daemon {
    /// Takes management datagrams, a bounded number. If some are left the fd stays readable.
    pub(super) fn on_mads(&mut self) {
        let mut network_view = NetworkView { net: &mut self.net, devices: &mut self.devices };
        let mut environment = Environment { workers: &mut self.workers, network: &mut network_view };
        self.mads.drain(|mad| self.clients.on_mad(&mad, &environment));
        if self.clients.take_datagrams(MADS, &mut environment) {
            self.mads.ring();
        }
    }
}

/// Tells the peers of all connections that these end, and waits for their answers for a bounded
/// time. The clients have been stopped.
pub(super) fn disconnect(mads: &MadReceiver, clients: &mut Clients, environment: &mut Environment<'_>) {
    let end = Instant::now() + DISCONNECTING_MAX;
    while clients.is_disconnecting() {
        let now = Instant::now();
        if now >= end {
            return;
        }
        clients.on_cm_deadline(now, environment);
        let until = clients.cm_deadline().map_or(end, |deadline| deadline.min(end));
        // Rounded up, so that a deadline has passed when we wake for it.
        let left = until.saturating_duration_since(now) + Duration::from_micros(999);
        // A signal ends the wait early.
        let _ = poll(
            &mut [PollFd::new(mads.as_fd(), PollFlags::POLLIN)],
            PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO),
        );
        mads.drain(|mad| clients.on_mad(&mad, environment));
        while clients.take_datagrams(MADS, environment) && Instant::now() < end {}
    }
}
