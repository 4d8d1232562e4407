//! Multicast groups.
#![expect(unsafe_code, reason = "reads a GID of the program")]

use std::ffi::c_int;

use roced_client::{Gid, NoCancellation};

use crate::{
    abi::{attributes, object::Qp as QpFace},
    errno::{self, Errno},
    qp::Qp,
};

/// `ibv_attach_mcast`. Groups of RoCE are IP's, so the LID says nothing.
pub(crate) unsafe extern "C" fn attach(qp: *mut QpFace, gid: *const attributes::IbvGid, _lid: u16) -> c_int {
    let _whole = NoCancellation::new();
    // SAFETY: the program's queue pair is ours, and it gave a GID.
    let attached = unsafe { Qp::of(qp).own.qp.attach(Gid(gid.read()), None) };
    errno::number(attached.map_err(Errno::from))
}

/// `ibv_detach_mcast`.
pub(crate) unsafe extern "C" fn detach(qp: *mut QpFace, gid: *const attributes::IbvGid, _lid: u16) -> c_int {
    let _whole = NoCancellation::new();
    // SAFETY: as above.
    let detached = unsafe { Qp::of(qp).own.qp.detach(Gid(gid.read())) };
    errno::number(detached.map_err(Errno::from))
}
