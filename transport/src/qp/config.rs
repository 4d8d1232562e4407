//! The fixed parts of a queue pair.

use roced_types::{Cqn, Pdn, QpSizes, Qpn};

use super::service_type::ServiceType;

/// Creation parameters of a queue pair; constant for its life.
#[derive(Clone, Copy, Debug)]
pub struct QpConfig {
    /// Its number.
    pub qpn: Qpn,
    /// Its transport service.
    pub service: ServiceType,
    /// Protection domain of the memory regions that it may name.
    pub pd: Pdn,
    /// Completion queue of sends.
    pub send_cq: Cqn,
    /// Completion queue of receives.
    pub recv_cq: Cqn,
    /// Granted sizes.
    pub sizes: QpSizes,
    /// Every send adds a completion.
    pub signal_all: bool,
    /// Maximum number of packets in flight to the peer, or of READ responses requested from it.
    pub window_packets: u32,
    /// End-to-end flow control (IBTA v1 9.7.7.2), for reliable connections: advertises posted
    /// receives to the peer and obeys the credits that the peer advertises.
    pub credits: bool,
}
