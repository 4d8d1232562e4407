//! Refused connections with their reasons, for the log of the host.

use core::fmt;

use roced_types::AccountId;

use crate::{
    connection::PeerAddress,
    wire::{ServiceId, reject_reason, sidr_status},
};

/// A request for a connection or a datagram service that was refused, by this host or by a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusedConnection {
    /// Peer.
    pub peer: PeerAddress,
    /// Service that was asked for.
    pub service_id: ServiceId,
    /// User of the program that asked or listens; `None` if the request is of no program of ours.
    pub account: Option<AccountId>,
    /// Reason.
    pub cause: RefusalCause,
}

/// Reason of a refusal. It shows itself in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalCause {
    /// No program listens on the port.
    NoListener,
    /// The program has not taken as many requests as its backlog.
    BacklogFull,
    /// As many requests wait for the confirmation of their peers as there may be.
    UnconfirmedFull,
    /// The limit of connections of the host.
    ConnectionsFull,
    /// The limit of identifiers of the user that listens, or of its program.
    IdentifiersFull,
    /// The peer's queue pair is connected already, as far as this host knows.
    Stale,
    /// The request does not fit the listener or the host: the reason that the peer is told.
    Unfit(u16),
    /// The program refused: the reason that the peer is told.
    ByProgram(u16),
    /// The peer refused a connection: its reason.
    ByPeer(u16),
    /// The peer refused a datagram service: its status.
    ServiceByPeer(u8),
    /// The peer did not answer.
    NoAnswer,
}

impl RefusalCause {
    /// A limit of this host is the reason.
    pub const fn is_limit(self) -> bool {
        matches!(self, Self::BacklogFull | Self::UnconfirmedFull | Self::ConnectionsFull | Self::IdentifiersFull)
    }
}

impl fmt::Display for RefusalCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NoListener => f.write_str("no program listens on the port"),
            Self::BacklogFull => f.write_str("the backlog of the listener is full: its program takes no requests"),
            Self::UnconfirmedFull => f.write_str("too many requests that their peers do not confirm: do these exist?"),
            Self::ConnectionsFull => f.write_str("too many connections (limits.cm.connections)"),
            Self::IdentifiersFull => f.write_str("too many identifiers of the account (limits.cm.ids_of_account)"),
            Self::Stale => f.write_str("the peer's queue pair is connected already: stale, it ends first"),
            Self::Unfit(reason) => write!(f, "{} ({reason})", words(reason)),
            Self::ByProgram(reason) => write!(f, "the program refused: {} ({reason})", words(reason)),
            Self::ByPeer(reason) => write!(f, "the peer refused: {} ({reason})", words(reason)),
            Self::ServiceByPeer(status) => write!(f, "the peer refused: {} ({status})", words_of_status(status)),
            Self::NoAnswer => f.write_str("the peer does not answer"),
        }
    }
}

/// The reason of a REJ in words.
const fn words(reason: u16) -> &'static str {
    match reason {
        reject_reason::NO_QP => "it has no queue pair",
        reject_reason::NO_RESOURCES => "it has no resources",
        reject_reason::TIMEOUT => "it gave the connection up",
        reject_reason::UNSUPPORTED => "it does not support the request",
        reject_reason::INVALID_COMM_ID => "it does not know the connection",
        reject_reason::INVALID_SERVICE_ID => "no listener on the port",
        reject_reason::INVALID_TRANSPORT_SERVICE => "the listener is not for that service",
        reject_reason::STALE_CONNECTION => "it takes the queue pair for connected: stale",
        reject_reason::INVALID_GID => "the addresses are not those of the packet",
        reject_reason::INVALID_PATH_MTU => "the path MTU is too large",
        reject_reason::CONSUMER_DEFINED => "decided by a program",
        reject_reason::VENDOR_OPTION_NOT_SUPPORTED => "options of a vendor are not supported",
        _ => "another reason",
    }
}

/// The status of a SIDR_REP in words.
const fn words_of_status(status: u8) -> &'static str {
    match status {
        sidr_status::UNSUPPORTED_SERVICE_ID => "no listener on the port",
        sidr_status::REJECTED => "decided by a program",
        sidr_status::NO_QP => "it has no queue pair",
        _ => "another reason",
    }
}
