//! The connection manager, as close to the daemon as a program can be: channels, identifiers and
//! events, with the numbers of rdma_cm.
//!
//! ```text
//!   CmSession ─► CmChannel ─► identifiers (rdma_cm_id), by number
//!                    └ a socket: one message an event
//! ```
//!
//! A [`CmSession`] is a session of its own with the daemon; it needs no device. Each identifier
//! belongs to one [`CmChannel`]; its events arrive on the socket of the channel. A channel's descriptor is
//! readable if and only if an event waits, so a program can poll it, wait for edges, or block on it
//! ([`CmChannel::receive`]).
//!
//! A table in this process has a record of each identifier ([`CmIdentifier`]): the addresses and
//! the path that replies brought, or events that the program has taken. Events that are still in
//! the socket change nothing, so the record and the program's own view are the same. Calls take
//! the table's lock before they ask the daemon: no event is taken, or dropped as stale, between a
//! reply and its entry in the table.
//!
//! An event is stale, and never returned, if its identifier was destroyed, belongs to another
//! channel now, or has taken it already on the channel that it came from; and if it has uid 0,
//! which is the uid of an incoming request that was not accepted.

mod calls;
mod channel;
mod identifiers;
mod qp;
mod session;
#[cfg(test)]
mod tests;

pub use channel::{CmChannel, TakenCmEvent};
pub use identifiers::{CmIdentifier, CmNegotiation};
pub use roced_abi::control::{
    CM_NO_DEVICE, CmAddress, CmChannelEvent, CmParameters, CmPath, CmRoute, cm_event, cm_family, cm_option,
    cm_port_space, cm_service,
};
pub use session::CmSession;
