//! Terms of IBTA and of verbs that every part of roced uses: numbers of objects, work requests,
//! completions, queue pairs, access rights, events.
//!
//! Names and numbers are those of verbs unless their documentation says otherwise. The transport
//! gives the terms their meaning, and the client ABI (`roced-abi`) their place in shared memory.
#![no_std]

pub mod access;
mod completion;
pub mod event;
mod gid;
mod ids;
mod mtu;
mod qp;
mod work_request;

pub use completion::{CompletionOp, Status, completion_flags};
pub use gid::{address_of, gid_of, is_link_local, node_guid};
pub use ids::{
    AccountId, Cqn, DeviceId, EndpointId, EndpointIds, MemoryObjectId, Pdn, Qpn, SessionId, Srqn, WORKERS_MAX, WorkerId,
};
pub use mtu::{mtu_code, mtu_of_code};
pub use qp::{
    INLINE_BYTES_MAX, PKEYS_MAX, PRIVILEGED_QKEY, QpAttributes, QpSizes, SGE_MAX, WORK_REQUESTS_MAX, attribute,
    service, state,
};
pub use work_request::{BindWindow, SendOp, Sge, flush, send_flags};

/// UDP destination port of RoCEv2 (IANA; IBTA annex A17).
pub const ROCE_UDP_PORT: u16 = 4791;
