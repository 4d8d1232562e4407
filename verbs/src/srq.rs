//! Shared receive queues.
#![expect(unsafe_code, reason = "objects of C")]

use std::{ffi::c_int, mem};

use roced_client::{NoCancellation, SharedReceiveQueue};

pub(crate) use crate::abi::object::Srq as Face;
use crate::{
    abi::{
        attributes::{SrqAttr, SrqInitAttr, SrqInitAttrEx},
        context::Context as ContextFace,
        object::Pd as PdFace,
    },
    acknowledge::Acknowledgments,
    context,
    errno::{self, Errno, Result},
    object::{Object, Pointer, Users},
    pd::Pd,
};

/// Bits of `ibv_srq_attr_mask`.
const MAX_WR: c_int = 1 << 0;
const LIMIT: c_int = 1 << 1;

/// A shared receive queue.
pub(crate) type Srq = Object<Face, SrqState>;

/// The library's part of a shared receive queue.
pub(crate) struct SrqState {
    pub(crate) srq: SharedReceiveQueue,
    pub(crate) users: Users,
    pub(crate) events: Acknowledgments,
}

/// `ibv_create_srq`.
pub(crate) unsafe extern "C" fn create(pd: *mut PdFace, init: *mut SrqInitAttr) -> *mut Face {
    let _whole = NoCancellation::new();
    let made = || -> Result<*mut Face> {
        // SAFETY: the program's domain is ours, and it gave attributes.
        let (domain, init) = unsafe { (Pd::of(pd), &mut *init) };
        // SAFETY: as above.
        let (face_of_context, own) = unsafe { ((*pd).context, context::of((*pd).context)) };
        let most = &own.attributes;
        if init.attr.max_wr == 0 || init.attr.max_wr > most.max_qp_wrs || init.attr.max_sge > most.max_sges {
            return Err(Errno::INVALID);
        }
        let (pd_of_it, attr) = (&domain.own.pd, &init.attr);
        let srq = if domain.own.is_of_one_thread() {
            // SAFETY: the program created the domain with a thread domain, and thereby promises
            // that one thread at a time uses objects created in it.
            unsafe { pd_of_it.single_threaded_shared_receive_queue(attr.max_wr, attr.max_sge) }
        } else {
            pd_of_it.shared_receive_queue(attr.max_wr, attr.max_sge)
        }?;
        domain.own.users.add();
        (init.attr.max_wr, init.attr.max_sge) = (srq.wrs(), srq.sges());
        let srqn = srq.srqn();
        // SAFETY: zeros are numbers and null pointers.
        let mut face: Face = unsafe { mem::zeroed() };
        face.context = face_of_context;
        face.srq_context = init.srq_context;
        face.pd = pd;
        face.handle = srqn;
        face.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
        face.cond = libc::PTHREAD_COND_INITIALIZER;
        let queue = Srq::leak(face, SrqState { srq, users: Users::default(), events: Acknowledgments::default() });
        own.objects().srqs.insert(srqn, Pointer(queue.cast()));
        Ok(queue.cast())
    };
    errno::pointer(made())
}

/// `ibv_create_srq_ex`, for the cases that the inline does not turn into `ibv_create_srq` by
/// itself: XRC and tag matching, which are not supported.
pub(crate) unsafe extern "C" fn create_ex(_context: *mut ContextFace, _init: *mut SrqInitAttrEx) -> *mut Face {
    errno::pointer(Err(Errno::UNSUPPORTED))
}

/// `ibv_modify_srq`.
pub(crate) unsafe extern "C" fn modify(srq: *mut Face, attr: *mut SrqAttr, mask: c_int) -> c_int {
    let _whole = NoCancellation::new();
    let modified = || -> Result<()> {
        if mask & MAX_WR != 0 {
            return Err(Errno::UNSUPPORTED);
        }
        if mask & !LIMIT != 0 {
            return Err(Errno::INVALID);
        }
        if mask & LIMIT != 0 {
            // SAFETY: the program's queue is ours, and it gave attributes.
            unsafe { Srq::of(srq).own.srq.arm_limit((*attr).srq_limit) }?;
        }
        Ok(())
    };
    errno::number(modified())
}

/// `ibv_query_srq`.
pub(crate) unsafe extern "C" fn query(srq: *mut Face, attr: *mut SrqAttr) -> c_int {
    let _whole = NoCancellation::new();
    // SAFETY: the program's queue is ours.
    let queue = &unsafe { Srq::of(srq) }.own.srq;
    errno::number(queue.limit().map_err(Errno::from).map(|srq_limit| {
        // SAFETY: the program gave room for attributes.
        unsafe { attr.write(SrqAttr { max_wr: queue.wrs(), max_sge: queue.sges(), srq_limit }) };
    }))
}

/// `ibv_get_srq_num`.
pub(crate) unsafe extern "C" fn number(srq: *mut Face, number: *mut u32) -> c_int {
    // SAFETY: the program's queue is ours, and it gave room for a number.
    unsafe { number.write(Srq::of(srq).own.srq.srqn()) };
    0
}

/// `ibv_destroy_srq`: waits until its events are acknowledged.
pub(crate) unsafe extern "C" fn destroy(srq: *mut Face) -> c_int {
    let _whole = NoCancellation::new();
    let ended = || -> Result<()> {
        // SAFETY: the program's queue is ours, and so are its context and domain.
        unsafe {
            let queue = Srq::of(srq);
            queue.own.users.none()?;
            context::of((*srq).context).objects().srqs.remove(&queue.own.srq.srqn());
            queue.own.events.wait();
            let pd = (*srq).pd;
            drop(Srq::free(srq));
            Pd::of(pd).own.users.remove();
        }
        Ok(())
    };
    errno::number(ended())
}
