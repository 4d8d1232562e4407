//! The fixed parts of a queue pair, and the state of its path.

use roced_types::{Cqn, Pdn, QpSizes, Qpn};

use super::service_type::ServiceType;
use crate::{io::Egress, wire::path::Path};

/// What a queue pair is made of; it does not change in its life.
#[derive(Clone, Copy, Debug)]
pub struct QpConfig {
    /// Its number.
    pub qpn: Qpn,
    /// What it promises.
    pub service: ServiceType,
    /// Whose memory regions it may name.
    pub pd: Pdn,
    /// Where sends complete.
    pub send_cq: Cqn,
    /// Where receives complete.
    pub recv_cq: Cqn,
    /// Granted sizes.
    pub sizes: QpSizes,
    /// Every send makes a completion.
    pub signal_all: bool,
    /// Packets that may be on their way to the peer, or READ responses asked of it, at a time.
    pub window_packets: u32,
    /// End-to-end flow control (IBTA v1 9.7.7.2): posted receives are offered to the peer, and its
    /// offers obeyed. Of a reliable connection.
    pub credits: bool,
}

/// How frames get to the peer.
#[derive(Clone, Copy, Debug)]
pub enum PathState {
    /// The next hop's address is being asked for: frames wait.
    Resolving,
    /// Known.
    Ready(Path),
    /// The next hop does not answer: frames are counted and lost, so that retries run out.
    Unreachable,
}

impl PathState {
    /// A word for it, as `rocectl qps` shows it.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Resolving => "resolving",
            Self::Ready(path) => match path.via() {
                Egress::Nic { .. } | Egress::Group { .. } => "nic",
                Egress::HandOver { .. } | Egress::Beside => "local",
            },
            Self::Unreachable => "unreachable",
        }
    }
}
