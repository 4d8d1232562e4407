//! Log of refused connections. Programs and unknown peers cause the lines, so each account has a
//! bounded rate, and all unknown peers together one.

use std::time::Instant;

use roced_cm::{RefusedConnection, wire::PortSpace};
use roced_types::{AccountId, address_of};
use tracing::{info, warn};

use crate::log_limiter::{AccountLogLimiter, LogLimiter};

/// Rates of the lines.
#[derive(Debug, Default)]
pub(super) struct RefusalLog {
    of_accounts: AccountLogLimiter,
    of_unknown: LogLimiter,
}

impl RefusalLog {
    /// Writes a line, unless there were many of that account.
    pub(super) fn note(&mut self, refused: &RefusedConnection, now: Instant) {
        let RefusedConnection { peer, service_id, account, cause } = refused;
        let admitted = match account {
            Some(account) => self.of_accounts.admit(*account, now),
            None => self.of_unknown.admit(now),
        };
        let Some(held_back) = admitted else { return };
        let (local, peer) = (address_of(peer.local), address_of(peer.remote));
        let (space, port) = match service_id.port() {
            Some((PortSpace::Tcp, port)) => ("tcp", port.to_string()),
            Some((PortSpace::Udp, port)) => ("udp", port.to_string()),
            Some((PortSpace::Ipoib, port)) => ("ipoib", port.to_string()),
            None => ("other", format!("{:#x}", service_id.0)),
        };
        let account = account.map(|account| account.0);
        if cause.is_limit() {
            warn!(%peer, %local, space, port, account, %cause, held_back, "connection refused");
        } else {
            info!(%peer, %local, space, port, account, %cause, held_back, "connection refused");
        }
    }

    /// Writes a line about a program that has reached a limit of its user, unless there were many.
    pub(super) fn note_limit(&mut self, account: AccountId, limit: &str) {
        if let Some(held_back) = self.of_accounts.admit(account, Instant::now()) {
            warn!(
                account = account.0,
                limit, held_back, "programs of a user have reached a limit of the connection manager"
            );
        }
    }
}
