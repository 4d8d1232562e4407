//! Opening of devices: the session, and the table of functions that the inlines of the header call.
#![expect(unsafe_code, reason = "the struct that the inlines of the header call through")]

use roced_client::NoCancellation;
use std::{
    ffi::c_int,
    mem,
    os::fd::{AsFd as _, AsRawFd as _},
    ptr,
    sync::{Mutex, atomic::AtomicBool},
};

use crate::{
    abi::context::{Context as Face, ContextOps, Device as DeviceFace, VerbsContext},
    context::{Context, ContextState},
    cq, cq_ex,
    device::Device,
    errno::{self, Result},
    modify, mw, pd, post, qp, query, srq,
};

/// `ibv_open_device`.
pub(crate) unsafe extern "C" fn open(device: *mut DeviceFace) -> *mut Face {
    let _whole = NoCancellation::new();
    // SAFETY: the program's device is one of ours.
    errno::pointer(unsafe { open_session(device) })
}

unsafe fn open_session(device: *mut DeviceFace) -> Result<*mut Face> {
    // SAFETY: the caller vouches for it.
    let session = unsafe { Device::of(device) }.own.open()?;
    let attributes = session.attributes()?;
    let async_fd = session.as_fd().as_raw_fd();
    let own =
        ContextState { device: session, attributes, objects: Mutex::default(), told_fatal: AtomicBool::new(false) };
    let context = Context::leak(face(device, async_fd), own);
    // SAFETY: it was made one line up.
    Ok(unsafe { &raw mut (*(*context).face()).context })
}

fn face(device: *mut DeviceFace, async_fd: c_int) -> VerbsContext {
    // SAFETY: zeros are numbers, null pointers, and operations that are not there.
    let mut face: VerbsContext = unsafe { mem::zeroed() };
    face.query_port = Some(query::port);
    face.alloc_parent_domain = Some(pd::alloc_parent);
    face.alloc_td = Some(pd::alloc_td);
    face.dealloc_td = Some(pd::dealloc_td);
    face.query_rt_values = Some(query::clock);
    face.modify_qp_rate_limit = Some(modify::rate_limit);
    face.create_cq_ex = Some(cq_ex::create);
    face.query_device_ex = Some(query::device_ex);
    face.create_qp_ex = Some(qp::create_ex);
    face.get_srq_num = Some(srq::number);
    face.create_srq_ex = Some(srq::create_ex);
    face.sz = size_of::<VerbsContext>();
    face.context = Face {
        device,
        ops: ContextOps {
            alloc_mw: Some(mw::alloc),
            bind_mw: Some(mw::bind),
            dealloc_mw: Some(mw::dealloc),
            poll_cq: Some(cq::poll),
            req_notify_cq: Some(cq::req_notify),
            post_srq_recv: Some(post::srq_recv),
            post_send: Some(post::send),
            post_recv: Some(post::recv),
            ..face.context.ops
        },
        // There is no file of the kernel's behind it; but some programs expect one that is open.
        cmd_fd: async_fd,
        async_fd,
        num_comp_vectors: 1,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        // Says that there is a `verbs_context` around it.
        abi_compat: ptr::without_provenance_mut(usize::MAX),
    };
    face
}
