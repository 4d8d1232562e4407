//! The transport service of a queue pair.

use roced_types::service;

use crate::wire::opcode::Service;

/// Transport service of a queue pair, chosen at creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ServiceType {
    /// Reliable connection: SEND, WRITE, READ and atomic operations, each acknowledged, in order,
    /// once.
    #[default]
    Rc,
    /// Unreliable connection: SEND and WRITE; a message that loses any packet is dropped whole.
    Uc,
    /// Unreliable datagram: SEND of one packet to any destination; each may be lost.
    Ud,
}

impl ServiceType {
    /// Service with this number of `roced_types::service`.
    pub const fn from_number(number: u32) -> Option<Self> {
        match number {
            service::RC => Some(Self::Rc),
            service::UC => Some(Self::Uc),
            service::UD => Some(Self::Ud),
            _ => None,
        }
    }

    /// Name of the service.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
        }
    }

    /// Service in the opcodes of its packets.
    pub const fn wire(self) -> Service {
        match self {
            Self::Rc => Service::Rc,
            Self::Uc => Service::Uc,
            Self::Ud => Service::Ud,
        }
    }
}
