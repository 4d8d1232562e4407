//! The connection manager (IBTA v1 chapter 12), without sockets, clocks and threads.
//!
//! Connection managers exchange management datagrams (MADs) between queue pairs 1 of two hosts:
//! REQ, REP and RTU make a connection, DREQ and DREP end it, REJ refuses it, MRA asks for patience,
//! SIDR_REQ and SIDR_REP find the queue pair of a datagram service. [`wire`] is their form.
//!
//! [`ConnectionManager`] is the state of all connections of a host: calls of programs and datagrams
//! go in, datagrams and events come out. It has no time of its own, and the same seed gives the
//! same run.
//!
//! # Order of calls
//!
//! | call | when |
//! |---|---|
//! | `connect`; `confirm` after [`CmEvent::Accepted`] | active: REQ, RTU |
//! | `listen`; `accept` or `reject` after [`CmEvent::Requested`] | passive: REP, REJ |
//! | `disconnect` | of an established connection, and after [`CmEvent::Disconnected`]: DREQ, DREP |
//! | `destroy` | once for each connection, in any state |
//! | `on_datagram` | for each datagram to queue pair 1 |
//! | `on_timeout` | at `poll_timeout` at the latest |
//! | `poll_transmit`, `poll_event` | after each of these, until both are exhausted |
//! | `poll_refused` | likewise, for a log: connections that were refused, with the reason |
//!
//! Example: a request to disconnect as bytes, and back.
//!
//! ```
//! use roced_cm::wire::{CommId, Dreq, Mad, CmMessage, TransactionId};
//! use roced_types::Qpn;
//!
//! let dreq = Dreq {
//!     local: CommId(7),
//!     remote: CommId(9),
//!     remote_qpn: Qpn::from_wire(0x222),
//!     private_data: [0; 220],
//! };
//! let mad = Mad { transaction: TransactionId(1), modifier: 0, message: CmMessage::Dreq(dreq) };
//! assert_eq!(Mad::from_bytes(&mad.to_bytes()), Ok(mad));
//! ```
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod connection;
mod counters;
mod event;
pub mod identifiers;
mod manager;
mod observer;
mod random;
mod refused;
pub mod time;
pub mod wire;

pub use connection::{CmState, PeerAddress};
pub use counters::{CmCounters, MessageCounts};
pub use event::CmEvent;
pub use manager::{Accept, CmConfig, CmError, CmTransmit, Connect, ConnectionManager, FindService, ServiceAnswer};
pub use observer::CmObserver;
pub use refused::{RefusalCause, RefusedConnection};
