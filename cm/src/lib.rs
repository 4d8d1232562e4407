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
//! Example: a connection of two hosts. A function stands for the network between them.
//!
//! ```
//! use std::time::Duration;
//!
//! use roced_cm::{
//!     Accept, CmConfig, CmEvent, CmState, Connect, ConnectionManager, PeerAddress,
//!     wire::{CaGuid, ConnectionPath, PortSpace, ServiceId, TransportService},
//! };
//! use roced_types::{AccountId, DeviceId, Qpn};
//!
//! const NOW: Duration = Duration::ZERO;
//! let service_id = ServiceId::of(PortSpace::Tcp, 7174);
//! let device = DeviceId(0);
//! let to_passive = PeerAddress { device, vlan: None, local: [1; 16], remote: [2; 16] };
//! let to_active = PeerAddress { local: [2; 16], remote: [1; 16], ..to_passive };
//! let host = |number| {
//!     // A daemon takes the seed from the kernel.
//!     let mut manager = ConnectionManager::new(&CmConfig::new([number; 32], 100));
//!     manager.set_adapter(device, CaGuid(number.into()));
//!     manager
//! };
//! let (mut active, mut passive) = (host(1), host(2));
//! /// Delivers all datagrams of a host, from `address` as its peer sees it.
//! fn deliver(from: &mut ConnectionManager, address: PeerAddress, to: &mut ConnectionManager) {
//!     while let Some(transmit) = from.poll_transmit() {
//!         to.on_datagram(address, &transmit.mad.to_bytes(), NOW);
//!     }
//! }
//!
//! passive.listen(service_id, 16)?;
//! let id = active.connect(
//!     &Connect {
//!         peer: to_passive,
//!         account: AccountId(1000),
//!         service_id,
//!         service: TransportService::Rc,
//!         qpn: Qpn::from_wire(0x111),
//!         responder_resources: 1,
//!         initiator_depth: 1,
//!         flow_control: false,
//!         retry_count: 7,
//!         rnr_retry_count: 7,
//!         srq: false,
//!         pkey: 0xffff,
//!         path_mtu: 3,
//!         path: ConnectionPath::default(),
//!         packet_life_time: 16,
//!         ack_delay: 15,
//!         private_data: [0; 92],
//!     },
//!     NOW,
//! )?;
//! deliver(&mut active, to_active, &mut passive); // REQ
//!
//! let Some(CmEvent::Requested { id: theirs, .. }) = passive.poll_event() else { panic!("a REQ came") };
//! let how = Accept {
//!     qpn: Qpn::from_wire(0x222),
//!     responder_resources: 1,
//!     initiator_depth: 1,
//!     flow_control: false,
//!     rnr_retry_count: 7,
//!     srq: false,
//!     ack_delay: 15,
//!     private_data: [0; 196],
//!     patience: None,
//! };
//! passive.accept(theirs, &how, NOW)?;
//! deliver(&mut passive, to_passive, &mut active); // REP
//!
//! let Some(CmEvent::Accepted { rep, .. }) = active.poll_event() else { panic!("a REP came") };
//! assert_eq!(rep.qpn, how.qpn);
//! active.confirm(id, [0; 224], NOW)?;
//! deliver(&mut active, to_active, &mut passive); // RTU
//! assert_eq!(passive.poll_event(), Some(CmEvent::Established { id: theirs }));
//! assert_eq!(active.state(id), Some(CmState::Established));
//! # Ok::<(), roced_cm::CmError>(())
//! ```
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
