//! Queue pairs: made and ended.
#![expect(unsafe_code, reason = "objects of C")]

use std::{cell::UnsafeCell, ffi::c_int, mem};

use roced_client::{NoCancellation, QueuePair, ServiceType};

use crate::{
    abi::{
        attributes::{QpCap, QpInitAttr, QpInitAttrEx},
        context::Context as ContextFace,
        object::{Cq as CqFace, Pd as PdFace, Qp as QpFace, Srq as SrqFace},
        work::QpEx,
    },
    acknowledge::Acknowledgments,
    context,
    cq::Cq,
    errno::{self, Errno, Result},
    object::{Object, Pointer, Users},
    pd::Pd,
    srq::Srq,
    wr::{self, Batch},
};

/// A queue pair. Every one has the fields of an extended one.
pub(crate) type Qp = Object<QpEx, QpState>;

/// The library's part of a queue pair.
pub(crate) struct QpState {
    pub(crate) qp: QueuePair,
    pub(crate) signal_all: bool,
    pub(crate) events: Acknowledgments,
    /// Work requests between `ibv_wr_start` and `ibv_wr_complete`, which the mutex of the struct
    /// guards.
    pub(crate) batch: UnsafeCell<Batch>,
    /// Made for `ibv_wr_*`.
    pub(crate) extended: bool,
}

/// Numbers of `enum ibv_qp_type`.
pub(crate) mod kind {
    pub(crate) const RC: u32 = 2;
    pub(crate) const UC: u32 = 3;
    pub(crate) const UD: u32 = 4;
}

/// Parameters of a new queue pair.
struct QpRequest<'a> {
    init: &'a QpInitAttr,
    pd: *mut PdFace,
    /// For `ibv_wr_*`: these operations.
    operations: Option<u64>,
}

/// `ibv_create_qp`.
pub(crate) unsafe extern "C" fn create(pd: *mut PdFace, init: *mut QpInitAttr) -> *mut QpFace {
    let _whole = NoCancellation::new();
    // SAFETY: the program's domain is ours; it passed attributes with objects of ours.
    errno::pointer(unsafe {
        make(&QpRequest { init: &*init, pd, operations: None }).map(|(qp, cap)| {
            (*init).cap = cap;
            qp
        })
    })
}

/// `ibv_create_qp_ex`, for the cases that the inline does not turn into `ibv_create_qp` by itself.
pub(crate) unsafe extern "C" fn create_ex(_context: *mut ContextFace, init: *mut QpInitAttrEx) -> *mut QpFace {
    let _whole = NoCancellation::new();
    const PD: u32 = 1 << 0;
    const CREATE_FLAGS: u32 = 1 << 2;
    const OPERATIONS: u32 = 1 << 6;
    let made = || -> Result<*mut QpFace> {
        // SAFETY: the program gave attributes.
        let ex = unsafe { &mut *init };
        if ex.comp_mask & PD == 0 {
            return Err(Errno::INVALID);
        }
        let flags = if ex.comp_mask & CREATE_FLAGS == 0 { 0 } else { ex.create_flags };
        if ex.comp_mask & !(PD | CREATE_FLAGS | OPERATIONS) != 0 || flags != 0 {
            return Err(Errno::UNSUPPORTED);
        }
        let operations = (ex.comp_mask & OPERATIONS != 0).then_some(ex.send_ops_flags);
        // SAFETY: both begin with the same fields (asserted below); the domain and the objects in
        // them are ours.
        let (qp, cap) = unsafe { make(&QpRequest { init: &*init.cast::<QpInitAttr>(), pd: ex.pd, operations }) }?;
        ex.cap = cap;
        Ok(qp)
    };
    errno::pointer(made())
}

const _: () = assert!(mem::offset_of!(QpInitAttr, sq_sig_all) == mem::offset_of!(QpInitAttrEx, sq_sig_all));

unsafe fn make(wanted: &QpRequest<'_>) -> Result<(*mut QpFace, QpCap)> {
    let QpRequest { init, pd, operations } = *wanted;
    let service = match init.qp_type {
        kind::RC => ServiceType::Rc,
        kind::UC => ServiceType::Uc,
        kind::UD => ServiceType::Ud,
        _ => return Err(Errno::UNSUPPORTED),
    };
    if operations.is_some_and(|operations| operations & !wr::operations(service) != 0) {
        return Err(Errno::UNSUPPORTED);
    }
    if pd.is_null() || init.send_cq.is_null() || init.recv_cq.is_null() {
        return Err(Errno::INVALID);
    }
    // SAFETY: the caller vouches that domain and queues are ours.
    let (domain, send_cq, recv_cq) = unsafe { (Pd::of(pd), Cq::of(init.send_cq), Cq::of(init.recv_cq)) };
    // SAFETY: as above, and so is the context.
    let own = unsafe { context::of((*pd).context) };
    let srq = (!init.srq.is_null()).then(|| {
        // SAFETY: as above.
        unsafe { Srq::of(init.srq) }
    });
    let (cap, most) = (&init.cap, &own.attributes);
    if cap.max_send_wr > most.max_qp_wrs
        || cap.max_send_sge > most.max_sges
        || cap.max_inline_data > most.max_inline_bytes
        || srq.is_none() && (cap.max_recv_wr > most.max_qp_wrs || cap.max_recv_sge > most.max_sges)
    {
        return Err(Errno::INVALID);
    }
    let mut builder = domain
        .own
        .pd
        .queue_pair(&send_cq.own.cq, &recv_cq.own.cq)
        .service(service)
        .send_wrs(cap.max_send_wr)
        .send_sges(cap.max_send_sge)
        .inline_bytes(cap.max_inline_data);
    builder = match srq {
        Some(srq) => builder.recv_wrs(0).recv_sges(0).shared_receives(&srq.own.srq),
        None => builder.recv_wrs(cap.max_recv_wr).recv_sges(cap.max_recv_sge),
    };
    if domain.own.is_of_one_thread() {
        // SAFETY: the program created the domain with a thread domain, and thereby promises that
        // one thread at a time uses objects created in it.
        builder = unsafe { builder.single_threaded() };
    }
    let signal_all = init.sq_sig_all != 0;
    let qp = if signal_all { builder.signal_all() } else { builder }.create()?;
    let granted = granted(&qp);
    let face = face(&qp, init, pd);
    let qpn = qp.qpn();
    let batch = UnsafeCell::new(Batch::default());
    let made = QpState { qp, signal_all, events: Acknowledgments::default(), batch, extended: operations.is_some() };
    let object = Qp::leak(face, made);
    own.objects().qps.insert(qpn, Pointer(object.cast()));
    for users in users(domain, send_cq, recv_cq, srq) {
        users.add();
    }
    Ok((object.cast(), granted))
}

fn face(qp: &QueuePair, init: &QpInitAttr, pd: *mut PdFace) -> QpEx {
    // SAFETY: zeros are numbers, null pointers, and functions that are not there.
    let mut face: QpEx = unsafe { mem::zeroed() };
    face.qp_base = QpFace {
        // SAFETY: the domain is ours.
        context: unsafe { (*pd).context },
        qp_context: init.qp_context,
        pd,
        send_cq: init.send_cq,
        recv_cq: init.recv_cq,
        srq: init.srq,
        handle: qp.qpn(),
        qp_num: qp.qpn(),
        state: 0,
        qp_type: init.qp_type,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        events_completed: 0,
    };
    wr::give_functions(&mut face);
    face
}

/// The granted sizes.
pub(crate) fn granted(qp: &QueuePair) -> QpCap {
    let sizes = qp.sizes();
    let own_receives = qp.srq().is_none();
    QpCap {
        max_send_wr: sizes.send_wrs,
        max_recv_wr: if own_receives { sizes.recv_wrs } else { 0 },
        max_send_sge: sizes.send_sges,
        max_recv_sge: if own_receives { sizes.recv_sges } else { 0 },
        max_inline_data: sizes.inline_bytes,
    }
}

/// Objects that a queue pair uses.
fn users<'a>(pd: &'a Pd, send_cq: &'a Cq, recv_cq: &'a Cq, srq: Option<&'a Srq>) -> impl Iterator<Item = &'a Users> {
    [&pd.own.users, &send_cq.own.users, &recv_cq.own.users].into_iter().chain(srq.map(|srq| &srq.own.users))
}

/// `ibv_destroy_qp`: waits until its events are acknowledged.
pub(crate) unsafe extern "C" fn destroy(qp: *mut QpFace) -> c_int {
    let _whole = NoCancellation::new();
    // SAFETY: the program's queue pair is ours, so is all that it was made with, and the program
    // no longer uses it.
    unsafe {
        let object = Qp::of(qp);
        context::of((*qp).context).objects().qps.remove(&object.own.qp.qpn());
        object.own.events.wait();
        let (pd, send_cq, recv_cq, srq): (_, *mut CqFace, *mut CqFace, *mut SrqFace) =
            ((*qp).pd, (*qp).send_cq, (*qp).recv_cq, (*qp).srq);
        drop(Qp::free(qp));
        let srq = (!srq.is_null()).then(|| Srq::of(srq));
        for users in users(Pd::of(pd), Cq::of(send_cq), Cq::of(recv_cq), srq) {
            users.remove();
        }
    }
    0
}
