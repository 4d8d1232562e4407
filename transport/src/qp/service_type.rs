//! The transport service of a queue pair.

use roced_types::service;

use crate::wire::opcode::Service;

/// What a queue pair promises, chosen when it is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ServiceType {
    /// Reliable connection: SEND, WRITE and READ, each acknowledged, in order, once.
    #[default]
    Rc,
    /// Unreliable connection: SEND and WRITE; a message may be lost whole.
    Uc,
    /// Unreliable datagram: SEND of one packet to anybody; each may be lost.
    Ud,
}

impl ServiceType {
    /// The service of that number of `abi::control::service`.
    pub const fn from_number(number: u32) -> Option<Self> {
        match number {
            service::RC => Some(Self::Rc),
            service::UC => Some(Self::Uc),
            service::UD => Some(Self::Ud),
            _ => None,
        }
    }

    /// The service that its packets' opcodes name.
    pub const fn wire(self) -> Service {
        match self {
            Self::Rc => Service::Rc,
            Self::Uc => Service::Uc,
            Self::Ud => Service::Ud,
        }
    }
}
