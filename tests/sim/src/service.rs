//! Promises of a connection.

use roced_transport::qp::ServiceType;

/// A transport service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Service {
    /// Everything arrives once and in order, or the connection ends.
    Reliable,
    /// A message arrives whole or not at all.
    Unreliable,
    /// Messages of one packet to any queue pair.
    Datagram,
}

impl Service {
    /// The service that the high bits of an opcode name (IBTA v1 table 38).
    pub(crate) const fn of_opcode(opcode: u8) -> Option<Self> {
        match opcode >> 5 {
            0 => Some(Self::Reliable),
            1 => Some(Self::Unreliable),
            3 => Some(Self::Datagram),
            _ => None,
        }
    }

    /// The high bits of its opcodes.
    pub(crate) const fn opcodes(self) -> u8 {
        match self {
            Self::Reliable => 0x00,
            Self::Unreliable => 0x20,
            Self::Datagram => 0x60,
        }
    }

    pub(crate) const fn kind(self) -> ServiceType {
        match self {
            Self::Reliable => ServiceType::Rc,
            Self::Unreliable => ServiceType::Uc,
            Self::Datagram => ServiceType::Ud,
        }
    }

    /// Something is answered.
    pub(crate) const fn is_reliable(self) -> bool {
        matches!(self, Self::Reliable)
    }
}
