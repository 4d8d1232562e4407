//! The transport of RoCEv2 and RoCEv1 as a pure state machine.
//!
//! Time, frames and work requests go in; frames, completions and memory accesses come out through
//! the two traits of [`io`]. No clock, socket, thread or unsafe code is here, and nothing allocates
//! while packets flow.
//!
//! # Parts
//!
//! - An [`Endpoint`](endpoint::Endpoint) owns queue pairs ([`qp::Qp`]), memory keys ([`mr::Mr`]),
//!   address handles, shared receive queues and timers. One thread calls it.
//! - [`io::App`] is the memory and the completion queues of programs; [`io::Wire`] takes frames.
//!   The caller implements both.
//! - A [`wire::Path`] is a complete header template; [`wire`] builds and parses frames.
//!
//! # Order of calls
//!
//! | call | when |
//! |---|---|
//! | `set_notifications`, `set_congestion_control` | control: once, before the first `insert_qp`; the second is for queue pairs that are added from then on |
//! | `insert_mr`, `insert_ah`, `insert_srq`, `insert_qp` | control: once per object |
//! | `provide` | control: before a `modify_qp`, with `ReplayMemory::for_change`; without it `modify_qp` allocates |
//! | `modify_qp`, `remove_qp` | control: the states are those of verbs; `remove_qp` returns the queue pair |
//! | `set_path` | control: after each change of the next hop of a queue pair |
//! | `send_room`, `recv_room` | before posting; after a 0, `take_unblocked` names the queue pair when there is room |
//! | `post_send`, `post_recv` | for each work request, within the room |
//! | `srq_room` | before posting to a shared receive queue; after a 0, `take_unblocked_srq` names it when there is room |
//! | `post_srq_recv` | for each work request of a shared receive queue, within its room |
//! | `on_frame` | for each received frame; never sends |
//! | `on_borrowed_frame` | for a frame of a queue pair of the same endpoint, with payload in its memory; within the iteration that sent it |
//! | `on_timeout` | in each iteration, and at the latest at `poll_timeout` |
//! | `poll_transmit` | in each iteration, until its budget or the wire is exhausted |
//! | `transmit_of` | for one queue pair that is to end, at once; no other call than these two sends |
//! | `send_management` | for each management datagram, sent from queue pair 1 |
//! | `poll_management` | for management datagrams received by queue pair 1 |
//! | `poll_event` | for asynchronous events of queue pairs |
//! | `poll_failure` | for the causes of failed queue pairs, for a log |
//! | `poll_srq_limit` | for limit events of shared receive queues |
//! | `poll_key_change` | for LOCAL_INV, BIND_MW and SEND with invalidate: change the key wherever it is known, then call `finish_key_change` |
//!
//! # One iteration
//!
//! A worker polls. It may sleep when nothing is to be sent, until the next timer.
//!
//! ```
//! use roced_transport::{
//!     clock::Nanos,
//!     endpoint::Endpoint,
//!     io::{App, Wire},
//!     reject::DropReason,
//! };
//! # use roced_transport::{
//! #     endpoint::EndpointConfig,
//! #     io::{
//! #         Abort, AtomicOperation, BorrowedPayload, CqOverrun, Egress, EmitError, FrameMut,
//! #         MemoryFault, PlaceFault, WorkCompletion,
//! #     },
//! #     mr::MemSpan,
//! #     partition::Partitions,
//! #     recovery::RecoveryConfig,
//! # };
//! # use roced_types::{Cqn, EndpointId};
//! # struct NoClient;
//! # impl App for NoClient {
//! #     fn write(&mut self, _: MemSpan<'_>, _: &[u8]) -> Result<(), MemoryFault> {
//! #         Err(MemoryFault)
//! #     }
//! #     fn read(&mut self, _: MemSpan<'_>, _: &mut [u8]) -> Result<(), MemoryFault> {
//! #         Err(MemoryFault)
//! #     }
//! #     fn copy(&mut self, _: MemSpan<'_>, _: BorrowedPayload) -> Result<(), PlaceFault> {
//! #         Err(PlaceFault::Target)
//! #     }
//! #     fn atomic(&mut self, _: MemSpan<'_>, _: AtomicOperation) -> Result<u64, MemoryFault> {
//! #         Err(MemoryFault)
//! #     }
//! #     fn complete(&mut self, _: Cqn, _: &WorkCompletion) -> Result<(), CqOverrun> {
//! #         Err(CqOverrun)
//! #     }
//! # }
//! # struct NoLink;
//! # impl Wire for NoLink {
//! #     fn emit(
//! #         &mut self,
//! #         _: Egress,
//! #         _: usize,
//! #         _: impl FnOnce(&mut FrameMut<'_>) -> Result<(), Abort>,
//! #     ) -> Result<(), EmitError> {
//! #         Err(EmitError::Full)
//! #     }
//! # }
//! # let (mut client, mut wire) = (NoClient, NoLink);
//! # let mut endpoint = Endpoint::new(EndpointConfig {
//! #     id: EndpointId::new(0).expect("below 64"),
//! #     max_mrs: 0,
//! #     max_ahs: 0,
//! #     max_srqs: 0,
//! #     max_attachments: 0,
//! #     max_qps: 0,
//! #     total_window_packets: 128,
//! #     recovery: RecoveryConfig::default(),
//! #     partitions: Partitions::default(),
//! # });
//!
//! /// Returns the time until which the worker may sleep if neither frames nor work come.
//! fn iterate(
//!     endpoint: &mut Endpoint,
//!     now: Nanos,
//!     frames: &[&[u8]],
//!     app: &mut impl App,
//!     wire: &mut impl Wire,
//! ) -> Nanos {
//!     for frame in frames {
//!         endpoint.on_frame(now, &[frame], app);
//!     }
//!     endpoint.on_timeout(now, 64, app);
//!     endpoint.poll_transmit(now, 64, app, wire);
//!     while let Some(event) = endpoint.poll_event() {
//!         println!("{event:?}");
//!     }
//!     if endpoint.wants_transmit() { now } else { endpoint.poll_timeout() }
//! }
//!
//! // An endpoint without queue pairs has no timer and nothing to send. It drops and counts a frame
//! // of another protocol.
//! let until = iterate(&mut endpoint, Nanos(0), &[&[0; 60]], &mut client, &mut wire);
//! assert_eq!(until, Nanos::NEVER);
//! assert_eq!(endpoint.drops().get(DropReason::NotRoce), 1);
//! ```
//!
//! # A complete program
//!
#![doc = concat!("```\n", include_str!("../examples/two_endpoints.rs"), "```")]
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod ah;
pub mod clock;
pub mod congestion;
pub mod counters;
pub mod denied_sources;
pub mod endpoint;
#[cfg(test)]
mod guesses;
pub mod io;
pub mod management;
pub mod mr;
mod multicast;
mod out_of_order;
pub mod own_addresses;
pub mod partition;
mod path_state;
pub mod psn;
pub mod qp;
pub mod recovery;
mod recv_queue;
pub mod reject;
mod rtt;
mod slot_list;
pub mod srq;
pub mod table;
pub mod timers;
pub mod turns;
pub mod wire;
pub mod work;
