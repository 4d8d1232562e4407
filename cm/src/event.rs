//! Events for the program that owns a connection.

use crate::{
    connection::PeerAddress,
    wire::{CommId, Rej, Rep, Req, SidrRep, SidrReq},
};

/// An event of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CmEvent {
    /// A listener's new connection: accept or reject it.
    Requested {
        /// Number of the new connection.
        id: CommId,
        /// The request.
        req: Req,
        /// Peer.
        peer: PeerAddress,
    },
    /// The peer accepted: connect the queue pair, then confirm.
    Accepted {
        /// Connection.
        id: CommId,
        /// The acceptance.
        rep: Rep,
    },
    /// The peer confirmed.
    Established {
        /// Connection.
        id: CommId,
    },
    /// The peer refused.
    Rejected {
        /// Connection.
        id: CommId,
        /// The refusal.
        rej: Rej,
    },
    /// The peer did not answer.
    Unreachable {
        /// Connection.
        id: CommId,
    },
    /// The connection is over.
    Disconnected {
        /// Connection.
        id: CommId,
        /// The peer did not answer the DREQ.
        timed_out: bool,
    },
    /// A peer asks for the queue pair of a datagram service: answer it.
    ServiceRequested {
        /// Number of the question.
        id: CommId,
        /// The question.
        req: SidrReq,
        /// Peer.
        peer: PeerAddress,
    },
    /// The peer answered a question for the queue pair of a datagram service, which is over.
    ServiceFound {
        /// Number of the question.
        id: CommId,
        /// The answer; its status says whether there is such a queue pair.
        rep: SidrRep,
    },
    /// Packets of the connection are no longer under way: its number is free.
    TimeWaitExit {
        /// Connection.
        id: CommId,
    },
}

impl CmEvent {
    /// Its connection.
    pub const fn id(&self) -> CommId {
        match *self {
            Self::Requested { id, .. }
            | Self::Accepted { id, .. }
            | Self::Established { id }
            | Self::Rejected { id, .. }
            | Self::Unreachable { id }
            | Self::Disconnected { id, .. }
            | Self::ServiceRequested { id, .. }
            | Self::ServiceFound { id, .. }
            | Self::TimeWaitExit { id } => id,
        }
    }
}
