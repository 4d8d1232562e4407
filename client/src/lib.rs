//! Safe RDMA verbs over roced: devices, memory, completion queues and queue pairs.
//!
//! ```text
//!   Device ─► ProtectionDomain ─► MemoryRegion          memory that peers may reach
//!     │              ├──────────► MemoryWindow          a part of it, for a while
//!     │              ├──────────► SharedReceiveQueue    receives for many queue pairs
//!     │              ├──────────► AddressHandle         where datagrams go
//!     │              └──────────► QueuePair             one end of a connection, or of datagrams
//!     └─────► CompletionQueue ◄──────┘                  how work ended
//!                 └► CompletionChannel                  an fd that tells when
//! ```
//!
//! # Order of calls
//!
//! 1. [`Device::open`] opens a device; [`Device::list`] lists the names.
//! 2. [`Device::protection_domain`] allocates a protection domain. [`ProtectionDomain::allocate`]
//!    allocates and registers memory; [`ProtectionDomain::register_at`] registers memory of the
//!    program.
//! 3. [`Device::completion_queue`] creates a completion queue.
//! 4. [`ProtectionDomain::queue_pair`] configures a queue pair and [`QpBuilder::create`] creates
//!    it.
//! 5. [`QueuePair::address`] returns the [`QpAddress`] to send to the peer, and
//!    [`QueuePair::connect`] takes the address of the peer. A datagram queue pair needs
//!    [`QueuePair::activate`] instead, and an [`AddressHandle`] for each destination.
//!    [`Route`] and [`Listener`] do both by the connection manager, without a channel of the
//!    program's own.
//! 6. [`QueuePair::post_recv`] and [`QueuePair::post_send`] post work requests ([`RecvRequest`],
//!    [`SendRequest`]).
//! 7. [`CompletionQueue::poll`] or [`CompletionQueue::wait`] reaps completions; [`Completion::ok`]
//!    turns a failed one into an error.
//!
//! # A complete program
//!
//! A message from one host to another, connected by the connection manager. Programs that exchange
//! the addresses of their queue pairs over a socket of their own do as `examples/two_hosts.rs`. It
//! needs a running daemon on both hosts.
//!
#![doc = concat!("```no_run\n", include_str!("../examples/first.rs"), "```")]
//!
//!
//! # Verbs and methods
//!
//! | verbs | here |
//! |---|---|
//! | `ibv_get_device_list`, `ibv_open_device` | [`Device::list`], [`Device::open`] |
//! | `ibv_alloc_pd` | [`Device::protection_domain`] |
//! | `ibv_reg_mr`, `ibv_reg_mr_iova` | [`ProtectionDomain::register_at`]; [`ProtectionDomain::allocate`] also allocates |
//! | `ibv_create_cq`, `ibv_create_comp_channel` | [`Device::completion_queue_with`], [`Device::channel`] |
//! | `ibv_create_qp` | [`ProtectionDomain::queue_pair`], [`QpBuilder::create`] |
//! | `ibv_modify_qp` to RTR and RTS | [`QueuePair::connect`], [`QueuePair::activate`]; [`QueuePair::modify`] for single steps |
//! | `rdma_resolve_addr`, `rdma_connect`, `rdma_listen`, `rdma_accept` | [`Route::to`], [`Route::connect`], [`Listener`], [`ConnectionRequest::accept`] |
//! | `ibv_create_ah`, `ibv_create_srq`, `ibv_alloc_mw` | [`ProtectionDomain::address_handle`], [`ProtectionDomain::shared_receive_queue`], [`ProtectionDomain::memory_window`] |
//! | `ibv_post_send`, `ibv_post_recv` | [`QueuePair::post_send`], [`QueuePair::post_recv`] |
//! | `ibv_poll_cq`, `ibv_req_notify_cq` | [`CompletionQueue::poll`], [`CompletionQueue::arm`]; [`CompletionQueue::wait`] does both |
//!
//! # Rules
//!
//! - An [`Sge`] is an address, not a borrow: keep its [`MemoryRegion`] until the work request has
//!   completed. Work on a region that was dropped fails with an error completion; it never reaches
//!   other memory.
//! - Only signaled sends complete on success ([`SendRequest::signaled`],
//!   [`QpBuilder::signal_all`]). Sends complete in order, so a signaled one reports all before it.
//! - [`CompletionQueue::wait`] returns 0 on timeout.
//! - A child of `fork` has none of the parent's objects and opens its own device; `docs/memory.md`
//!   has the details of registered memory and fork.
//!
//! # Cost, threads and lifetimes
//!
//! Control calls go to the daemon over a socket and take some tens of microseconds. Posting work
//! and reaping completions touch only shared memory. Every object may be used from any thread at
//! any time; each queue has a lock of its own. Exceptions are queues without a lock, which the
//! program uses from one thread at a time: [`QpBuilder::single_threaded`],
//! [`Device::single_threaded_completion_queue`] and
//! [`ProtectionDomain::single_threaded_shared_receive_queue`]. An object keeps alive the objects it was created
//! from, so objects may be dropped in any order. [`AddressHandle`] is an exception with respect to
//! sends: keep it until the sends that use it have completed.
//!
//! Make queues larger than the number of outstanding requests: a full queue can answer
//! [`Error::QueueFull`] directly after a completion was reaped ([`QueuePair::post_send`]).
//!
//! # Failure of the daemon
//!
//! When the daemon dies, every object reports it within a second: outstanding work completes with
//! [`Status::Fatal`], waiting threads wake, file descriptors become readable, and calls return
//! [`Error::DaemonGone`].
//!
//! # Programs written for libibverbs
//!
//! Programs written for libibverbs load `libibverbs.so.1` (`verbs/`), which is built on this crate.

mod access;
mod ah;
mod batch;
mod cancellation;
mod channel;
pub mod cm;
mod completion;
mod connection;
mod connection_options;
mod cq;
mod device;
mod environment;
mod error;
mod exclusive;
mod gid;
mod mapping;
mod mr;
mod mw;
mod outstanding;
mod pd;
mod place;
mod post_side;
mod private_memory;
mod program;
mod qp;
mod qp_address;
mod readiness;
mod region_memory;
mod service;
mod shared_work;
mod socket;
mod srq;
mod work;
mod worker_completions;
mod yield_limiter;

pub use access::Access;
pub use ah::{AddressHandle, AddressOptions};
pub use batch::SendBatch;
#[doc(hidden)]
pub use cancellation::NoCancellation;
pub use channel::CompletionChannel;
pub use completion::Completion;
pub use connection::{Connection, ConnectionRequest, Listener, Route};
pub use connection_options::ConnectionOptions;
pub use cq::{CompletionQueue, CqOptions, Notify};
pub use device::{Device, DeviceAttributes, DeviceEvent, PortAttributes};
#[doc(hidden)]
pub use environment::trusted_variable;
pub use error::{Error, Result, Side, WorkError};
pub use gid::{Gid, GidEntry, RoceVersion};
pub use mr::{MemoryRegion, RemoteMemory, Reregistration};
pub use mw::{MemoryWindow, WindowBinding, WindowKind};
pub use pd::ProtectionDomain;
pub use private_memory::PrivateMemory;
pub use program::ExchangeCost;
pub use qp::{QpAttributes, QpBuilder, QpStatistics, QueuePair};
pub use qp_address::{ConnectOptions, NotAQpAddress, QpAddress};
pub use region_memory::RegionMemory;
pub use roced_abi::control::Refusal;
pub use roced_types::{CompletionOp, PKEYS_MAX, QpSizes, Sge, Status, attribute, mtu_code, mtu_of_code, state};
pub use service::{GRH_BYTES, MULTICAST_QPN, ServiceType};
pub use srq::SharedReceiveQueue;
pub use work::{RecvRequest, SendRequest};

/// Asserts that every object may be used from any thread.
const fn _every_object_is_shared<T: Send + Sync>() {}
const _: () = {
    _every_object_is_shared::<Device>();
    _every_object_is_shared::<ProtectionDomain>();
    _every_object_is_shared::<AddressHandle>();
    _every_object_is_shared::<MemoryRegion>();
    _every_object_is_shared::<MemoryWindow>();
    _every_object_is_shared::<Connection>();
    _every_object_is_shared::<Listener>();
    _every_object_is_shared::<CompletionChannel>();
    _every_object_is_shared::<CompletionQueue>();
    _every_object_is_shared::<QueuePair>();
    _every_object_is_shared::<SharedReceiveQueue>();
    _every_object_is_shared::<cm::CmSession>();
    _every_object_is_shared::<cm::CmChannel>();
};
