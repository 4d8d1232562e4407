//! Management datagrams from the workers to the connection manager.

use super::{Daemon, NetworkView};
use crate::environment::Environment;

/// Datagrams before everything else has its turn. A guess: each takes microseconds.
pub(super) const MADS: usize = 64;

impl Daemon {
    /// Takes management datagrams, a bounded number. If some are left the fd stays readable, or
    /// [`Clients::are_mads_due`](crate::clients::Clients::are_mads_due) later.
    pub(super) fn on_mads(&mut self) {
        let mut network_view = NetworkView { net: &mut self.net, devices: &mut self.devices };
        let mut environment = Environment { workers: &mut self.workers, network: &mut network_view };
        self.mads.drain(self.clients.room_for_mads(), |mad| self.clients.on_mad(&mad, &environment));
        if self.clients.take_datagrams(MADS, &mut environment) {
            self.mads.ring();
        }
    }
}
