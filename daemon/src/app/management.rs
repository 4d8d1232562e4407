//! Management datagrams from the workers to the connection manager.

use super::{Daemon, NetworkView};
use crate::environment::Environment;

/// Datagrams before everything else has its turn. A guess: each takes microseconds.
const MADS: usize = 64;

impl Daemon {
    /// Takes management datagrams, a bounded number.
    pub(super) fn on_mads(&mut self) {
        let mut network_view = NetworkView { net: &mut self.net, devices: &mut self.devices };
        let mut environment = Environment { workers: &mut self.workers, network: &mut network_view };
        let clients = &mut self.clients;
        self.mads.drain(MADS, |mad| clients.on_mad(&mad, &mut environment));
    }
}
