//! Transport services.

use roced_shared::abi::{control::service, wqe::SendOp};

/// What a queue pair promises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ServiceType {
    /// Reliable connection: SEND, WRITE and READ to one peer. What completes with success has arrived, in order, once.
    #[default]
    Rc,
    /// Unreliable connection: SEND and WRITE to one peer, in order. A send completes when it has left; a message of which the network lost a
    /// part is lost whole, and nobody is told.
    Uc,
    /// Unreliable datagram: SENDs of one packet each to anybody ([`crate::AddressHandle`]), from anybody who knows the Q_Key. A send
    /// completes when it has left. In front of what arrives stands the place of a GRH ([`crate::GRH_BYTES`]).
    Ud,
}

/// Bytes in front of a datagram in its receive buffer: an IPv6 header, or an IPv4 header in the last 20 of them. A completion's
/// `byte_len` counts them.
pub const GRH_BYTES: usize = 40;

/// The receiver of a datagram to a multicast group.
pub const MULTICAST_QPN: u32 = 0x00ff_ffff;

impl ServiceType {
    /// The number of `abi::control::service`.
    pub(crate) const fn number(self) -> u32 {
        match self {
            Self::Rc => service::RC,
            Self::Uc => service::UC,
            Self::Ud => service::UD,
        }
    }

    /// The short name.
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
