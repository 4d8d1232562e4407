//! Faults of clients that end their sessions.

use roced_types::{Qpn, Srqn};
use thiserror::Error;

/// A violation of the client ABI. Its session ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ClientFault {
    /// A ring index outside its range.
    #[error("a ring index of queue pair {0} is out of range")]
    RingCorrupt(Qpn),
    /// An opcode byte that names no operation.
    #[error("work request opcode {0} is unknown")]
    UnknownOpcode(u8),
    /// Flag bits that do not exist.
    #[error("work request flags 0x{0:02x} are unknown")]
    UnknownFlags(u8),
    /// More scatter/gather entries than the queue pair has.
    #[error("{asked} scatter/gather entries where the queue pair has {limit}")]
    TooManySges {
        /// In the work request.
        asked: u32,
        /// Of the queue pair.
        limit: u32,
    },
    /// More inline data than the queue pair has room for, or inline data for an operation that
    /// receives data: a READ, an atomic operation.
    #[error("{asked} bytes of inline data where {limit} are allowed")]
    InlineTooLong {
        /// In the work request.
        asked: u32,
        /// Allowed here.
        limit: u32,
    },
    /// A datagram to a queue pair number of more than 24 bits.
    #[error("remote queue pair 0x{0:x} has more than 24 bits")]
    RemoteQpn(u32),
    /// As [`Self::RingCorrupt`], of a shared receive queue.
    #[error("a ring index of {0} is out of range")]
    SharedRingCorrupt(Srqn),
    /// Receive work for a queue pair that takes its own from a shared queue.
    #[error("receive work for queue pair {0}, which has a shared receive queue")]
    ReceiveOnShared(Qpn),
    /// Work for a shared receive queue that is not there.
    #[error("no {0}")]
    NoSuchSrq(Srqn),
    /// More doorbells without a queue than queues that were destroyed explain.
    #[error("doorbells were rung of queue pairs and shared receive queues that were never there")]
    StrayDoorbells,
    /// A doorbell for a queue pair that is not there.
    #[error("no queue pair {0}")]
    NoSuchQp(Qpn),
}
