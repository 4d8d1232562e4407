//! RDMA endpoints over roced: the verbs, safe.
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
//! Control calls go to the daemon over a socket and take some tens of microseconds. Posting work and reaping completions touch
//! only shared memory. Any thread may use any object at any time; each queue has a lock of its own. Objects keep
//! alive what they were made from, so they may be dropped in any order.
//!
//! When the daemon dies, everything learns of it within a second: work that was under way completes with [`Status::Fatal`], waiting
//! threads wake, file descriptors turn readable, and calls give [`Error::DaemonGone`].
//!
//! Programs that know nothing of roced load `libibverbs.so.1` (`verbs/`), which is made of this.
//!
//! A first program, two queue pairs of one process: `examples/first.rs`.

mod ah;
mod batch;
mod channel;
mod cq;
mod device;
mod error;
mod exclusive;
mod gid;
mod mapping;
mod mr;
mod mw;
mod outstanding;
mod pd;
mod place;
mod program;
mod qp;
mod qp_address;
mod service;
mod socket;
mod srq;
mod work;

pub use ah::{AddressHandle, AddressOptions};
pub use batch::SendBatch;
pub use channel::CompletionChannel;
pub use cq::{Completion, CompletionQueue, CqOptions, Notify};
pub use device::{Device, DeviceAttributes, DeviceEvent, PortAttributes};
pub use error::{Error, Result, Side, WorkError};
pub use gid::{Gid, GidEntry, RoceVersion};
pub use mr::{Access, MemoryRegion, RegionMemory, RemoteMemory, Reregistration};
pub use mw::{MemoryWindow, WindowBinding, WindowKind};
pub use pd::ProtectionDomain;
pub use program::ExchangeCost;
pub use qp::{QpAttributes, QpBuilder, QpStatistics, QueuePair};
pub use qp_address::{ConnectOptions, NotAQpAddress, QpAddress};
pub use roced_shared::abi::{
    control::{PKEYS_MAX, Refusal, attribute, state},
    cqe::{CompletionOp, Status},
    layout::QpSizes,
    wqe::Sge,
};
pub use service::{GRH_BYTES, MULTICAST_QPN, ServiceType};
pub use srq::SharedReceiveQueue;
pub use work::{RecvRequest, SendRequest};

/// Every object may be used by any thread.
const fn _every_object_is_shared<T: Send + Sync>() {}
const _: () = {
    _every_object_is_shared::<Device>();
    _every_object_is_shared::<ProtectionDomain>();
    _every_object_is_shared::<AddressHandle>();
    _every_object_is_shared::<MemoryRegion>();
    _every_object_is_shared::<MemoryWindow>();
    _every_object_is_shared::<CompletionChannel>();
    _every_object_is_shared::<CompletionQueue>();
    _every_object_is_shared::<QueuePair>();
    _every_object_is_shared::<SharedReceiveQueue>();
};
