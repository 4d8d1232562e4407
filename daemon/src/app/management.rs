//! Management datagrams from the workers: the place of the connection manager. There is none yet:
//! each datagram is counted and dropped.

use roced_types::address_of;

use super::Daemon;

/// Datagrams before everything else has its turn. A guess: each takes microseconds.
const MADS: usize = 64;

impl Daemon {
    /// Takes management datagrams, a bounded number.
    pub(super) fn on_mads(&mut self) {
        let Self { mads, net, management, .. } = self;
        mads.drain(MADS, |mad| {
            if net.device(mad.device).gids.contains(address_of(mad.local)) {
                management.unclaimed += 1;
            } else {
                management.wrong_address += 1;
            }
        });
    }
}
