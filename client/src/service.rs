//! Transport services.

use roced_types::{SendOp, service};

/// Transport service of a queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ServiceType {
    /// Reliable connection: SEND, WRITE and READ to one peer. Work that completes with success has
    /// arrived, in order and exactly once.
    #[default]
    Rc,
    /// Unreliable connection: SEND and WRITE to one peer, in order. A send completes when it has
    /// been transmitted; a message that loses any packet is dropped whole, without notice.
    Uc,
    /// Unreliable datagram: SENDs of one packet each to any destination ([`crate::AddressHandle`]),
    /// from every sender that knows the Q_Key. A send completes when it has been transmitted.
    /// Received data is preceded by space for a GRH ([`crate::GRH_BYTES`]).
    Ud,
}

/// Bytes in front of a datagram in its receive buffer: an IPv6 header, or an IPv4 header in the
/// last 20 of them. The `byte_len` of a completion includes them.
pub const GRH_BYTES: usize = 40;

/// Destination queue pair number of a datagram to a multicast group.
pub const MULTICAST_QPN: u32 = 0x00ff_ffff;

impl ServiceType {
    /// The number in `roced_types::service`.
    pub(crate) const fn number(self) -> u32 {
        match self {
            Self::Rc => service::RC,
            Self::Uc => service::UC,
            Self::Ud => service::UD,
        }
    }

    /// Short name: RC, UC or UD.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
        }
    }

    pub(crate) const fn has(self, op: SendOp) -> bool {
        match self {
            Self::Rc => true,
            Self::Ud => matches!(op, SendOp::Send | SendOp::SendImm),
            Self::Uc => {
                op.is_local() || matches!(op, SendOp::Send | SendOp::SendImm | SendOp::Write | SendOp::WriteImm)
            }
        }
    }
}
