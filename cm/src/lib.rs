//! The connection manager (IBTA v1 chapter 12), without sockets, clocks and threads.
//!
//! Connection managers exchange management datagrams (MADs) between queue pairs 1 of two hosts:
//! REQ, REP and RTU make a connection, DREQ and DREP end it, REJ refuses it, MRA asks for patience,
//! SIDR_REQ and SIDR_REP find the queue pair of a datagram service. [`wire`] is their form.
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

pub mod wire;
