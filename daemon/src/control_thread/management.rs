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

/// Time for peers to answer that connections end with the daemon: a lost datagram is repeated once
/// within it.
const DISCONNECTING_MAX: Duration = Duration::from_millis(500);

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
    let end = Instant::now() + DISCONNECTING_MAX;
    while clients.is_disconnecting() {
        let now = Instant::now();
        if now >= end {
            return;
        }
        // Neighbors may have to be asked for before a datagram leaves.
        let changes = network_view.net.on_deadline();
        let mut environment = Environment { workers, network: network_view };
        clients.on_changes(&changes, &mut environment);
        clients.on_cm_deadline(now, &mut environment);
        let deadlines = [clients.cm_deadline(), network_view.net.deadline()];
        let until = deadlines.into_iter().flatten().fold(end, Instant::min);
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
        while clients.take_datagrams(MADS, &mut environment) && Instant::now() < end {}
    }
}
