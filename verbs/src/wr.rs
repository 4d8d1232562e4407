//! Work requests call by call: `ibv_wr_start`, `ibv_wr_send`, `ibv_wr_set_sge`, ...,
//! `ibv_wr_complete`, which posts all of them or none.
#![expect(unsafe_code, reason = "functions that programs call through the queue pair's struct")]

use std::{
    ffi::{c_int, c_void},
    ops::Range,
    ptr, slice,
};

use roced_client::{RemoteMemory, SendRequest, ServiceType, Sge as ClientSge};

use crate::{
    abi::{
        attributes::MwBindInfo,
        object::{Ah as AhFace, Mw as MwFace, Qp as QpFace},
        work::{DataBuf, QpEx, Sge},
    },
    ah::Ah,
    errno::{self, Errno, Result},
    mw, post,
    qp::{Qp, QpState},
};

/// Work requests since `ibv_wr_start`. The memory is reused.
#[derive(Default)]
pub(crate) struct Batch {
    requests: Vec<Prepared>,
    sges: Vec<ClientSge>,
    inline: Vec<u8>,
    /// The first thing that cannot be.
    wrong: Option<Errno>,
}

struct Prepared {
    request: SendRequest<'static>,
    data: WrPayload,
}

/// A part of the batch's lists.
enum WrPayload {
    Sges(Range<usize>),
    Inline(Range<usize>),
}

/// `IBV_QP_EX_WITH_*` that a service has.
pub(crate) fn operations(service: ServiceType) -> u64 {
    const WRITES: u64 = 1 << 0 | 1 << 1;
    const SENDS: u64 = 1 << 2 | 1 << 3;
    const READ_AND_ATOMIC: u64 = 1 << 4 | 1 << 5 | 1 << 6;
    const WINDOWS: u64 = 1 << 7 | 1 << 8;
    const SEND_INVALIDATE: u64 = 1 << 9;
    const ATOMIC_WRITE: u64 = 1 << 12;
    match service {
        ServiceType::Rc => WRITES | SENDS | READ_AND_ATOMIC | WINDOWS | SEND_INVALIDATE | ATOMIC_WRITE,
        ServiceType::Uc => WRITES | SENDS | WINDOWS,
        ServiceType::Ud => SENDS,
    }
}

/// `ibv_qp_to_qp_ex`.
pub(crate) unsafe extern "C" fn of_qp(qp: *mut QpFace) -> *mut QpEx {
    // SAFETY: the program's queue pair is ours.
    let object = unsafe { Qp::of(qp) };
    errno::pointer(if object.own.extended { Ok(object.face()) } else { Err(Errno::UNSUPPORTED) })
}

/// Functions that the inlines of the header call.
pub(crate) fn give_functions(face: &mut QpEx) {
    face.wr_atomic_cmp_swp = Some(atomic_cmp_swp);
    face.wr_atomic_fetch_add = Some(atomic_fetch_add);
    face.wr_bind_mw = Some(bind_mw);
    face.wr_local_inv = Some(local_inv);
    face.wr_rdma_read = Some(rdma_read);
    face.wr_rdma_write = Some(rdma_write);
    face.wr_rdma_write_imm = Some(rdma_write_imm);
    face.wr_send = Some(send);
    face.wr_send_imm = Some(send_imm);
    face.wr_send_inv = Some(send_inv);
    face.wr_send_tso = Some(send_tso);
    face.wr_set_ud_addr = Some(set_ud_addr);
    face.wr_set_xrc_srqn = Some(set_xrc_srqn);
    face.wr_set_inline_data = Some(set_inline_data);
    face.wr_set_inline_data_list = Some(set_inline_data_list);
    face.wr_set_sge = Some(set_sge);
    face.wr_set_sge_list = Some(set_sge_list);
    face.wr_start = Some(start);
    face.wr_complete = Some(complete);
    face.wr_abort = Some(abort);
    face.wr_atomic_write = Some(atomic_write);
}

/// Work requests so far, and the queue pair.
///
/// # Safety
/// The program's thread is between `ibv_wr_start` and its end, where no other thread is.
unsafe fn open<'a>(face: *mut QpEx) -> (&'a mut Batch, &'a QpState) {
    // SAFETY: the program's queue pair is ours; the rest the caller vouches for.
    unsafe {
        let own = &Qp::of(face).own;
        (&mut *own.batch.get(), own)
    }
}

unsafe extern "C" fn start(face: *mut QpEx) {
    // SAFETY: the program's queue pair is ours, and its mutex lives as long; behind it the batch is
    // this thread's.
    unsafe {
        libc::pthread_mutex_lock(&raw mut (*face).qp_base.mutex);
        open(face).0.clear();
    }
}

unsafe extern "C" fn complete(face: *mut QpEx) -> c_int {
    // SAFETY: the program's thread began it.
    let posted = unsafe {
        let (batch, own) = open(face);
        let posted = batch.post(own);
        libc::pthread_mutex_unlock(&raw mut (*face).qp_base.mutex);
        posted
    };
    errno::number(posted)
}

unsafe extern "C" fn abort(face: *mut QpEx) {
    // SAFETY: the program's thread began it.
    unsafe { libc::pthread_mutex_unlock(&raw mut (*face).qp_base.mutex) };
}

impl Batch {
    fn clear(&mut self) {
        self.requests.clear();
        self.sges.clear();
        self.inline.clear();
        self.wrong = None;
    }

    fn post(&self, own: &QpState) -> Result<()> {
        if let Some(wrong) = self.wrong {
            return Err(wrong);
        }
        let mut batch = own.qp.send_batch();
        for Prepared { request, data } in &self.requests {
            batch.push(&match data {
                WrPayload::Sges(range) => request.with_sges(&self.sges[range.clone()]),
                WrPayload::Inline(range) => request.with_inline(&self.inline[range.clone()]),
            })?;
        }
        batch.commit();
        Ok(())
    }

    /// The next work request, with the program's wr_id and flags.
    unsafe fn add(face: *mut QpEx, request: SendRequest<'static>) {
        // SAFETY: the caller's thread began the batch; the program set both fields before.
        unsafe {
            let request = post::flagged(request, (*face).wr_flags).id((*face).wr_id);
            let batch = open(face).0;
            batch.requests.push(Prepared { request, data: WrPayload::Sges(0..0) });
        }
    }

    /// Says something of the last work request.
    fn set(&mut self, set: impl FnOnce(&mut Prepared)) {
        match self.requests.last_mut() {
            Some(last) => set(last),
            None => self.wrong = Some(Errno::INVALID),
        }
    }

    fn fail(&mut self, errno: Errno) {
        self.wrong.get_or_insert(errno);
    }
}

const fn at(va: u64, rkey: u32) -> RemoteMemory {
    RemoteMemory { va, length: 8, rkey }
}

macro_rules! requests {
    ($($name:ident($($argument:ident: $type:ty),*) => $request:expr;)*) => {
        $(unsafe extern "C" fn $name(face: *mut QpEx, $($argument: $type),*) {
            // SAFETY: the program's thread is between `ibv_wr_start` and its end, as verbs demand.
            unsafe { Batch::add(face, $request) };
        })*
    };
}

requests! {
    atomic_cmp_swp(rkey: u32, va: u64, compare: u64, swap: u64) => SendRequest::compare_swap(&[], at(va, rkey), compare, swap);
    atomic_fetch_add(rkey: u32, va: u64, add: u64) => SendRequest::fetch_add(&[], at(va, rkey), add);
    local_inv(rkey: u32) => SendRequest::local_invalidate(rkey);
    rdma_read(rkey: u32, va: u64) => SendRequest::read(&[], at(va, rkey));
    rdma_write(rkey: u32, va: u64) => SendRequest::write(&[], at(va, rkey));
    rdma_write_imm(rkey: u32, va: u64, imm: u32) => SendRequest::write(&[], at(va, rkey)).imm(imm.to_ne_bytes());
    send() => SendRequest::send(&[]);
    send_imm(imm: u32) => SendRequest::send(&[]).imm(imm.to_ne_bytes());
    send_inv(rkey: u32) => SendRequest::send(&[]).invalidate(rkey);
    atomic_write(rkey: u32, va: u64, bytes: *const c_void) => SendRequest::atomic_write(bytes.cast::<[u8; 8]>().read(), at(va, rkey));
}

unsafe extern "C" fn bind_mw(face: *mut QpEx, mw: *mut MwFace, rkey: u32, info: *const MwBindInfo) {
    // SAFETY: the program's thread is between `ibv_wr_start` and its end; window and region are
    // ours.
    unsafe {
        match mw::request(mw, rkey, &*info) {
            Ok(request) => Batch::add(face, request),
            Err(error) => open(face).0.fail(error),
        }
    }
}

unsafe extern "C" fn send_tso(face: *mut QpEx, _header: *mut c_void, _bytes: u16, _segment: u16) {
    // SAFETY: as above.
    unsafe { open(face).0.fail(Errno::UNSUPPORTED) };
}

unsafe extern "C" fn set_xrc_srqn(face: *mut QpEx, _srqn: u32) {
    // SAFETY: as above.
    unsafe { open(face).0.fail(Errno::UNSUPPORTED) };
}

unsafe extern "C" fn set_ud_addr(face: *mut QpEx, ah: *mut AhFace, qpn: u32, qkey: u32) {
    // SAFETY: as above, and the handle is ours.
    unsafe { open(face).0.set(|last| last.request = last.request.to(&Ah::of(ah).own, qpn, qkey)) };
}

unsafe extern "C" fn set_sge(face: *mut QpEx, lkey: u32, va: u64, length: u32) {
    // SAFETY: as above.
    unsafe { open(face).0.set_sges(&[ClientSge { va, length, lkey }]) };
}

unsafe extern "C" fn set_sge_list(face: *mut QpEx, count: usize, list: *const Sge) {
    if count > 0 {
        // SAFETY: as above; the program gave so many entries, which lie as ours do (`post` asserts
        // it).
        unsafe { open(face).0.set_sges(slice::from_raw_parts(list.cast(), count)) };
    }
}

unsafe extern "C" fn set_inline_data(face: *mut QpEx, from: *mut c_void, length: usize) {
    let one = DataBuf { addr: from, length };
    // SAFETY: as above.
    unsafe { set_inline_data_list(face, 1, ptr::from_ref(&one)) };
}

unsafe extern "C" fn set_inline_data_list(face: *mut QpEx, count: usize, list: *const DataBuf) {
    // SAFETY: as above; the program gave so many pieces of data.
    unsafe {
        let batch = open(face).0;
        let start = batch.inline.len();
        if count > 0 {
            for piece in slice::from_raw_parts(list, count).iter().filter(|piece| piece.length > 0) {
                batch.inline.extend_from_slice(slice::from_raw_parts(piece.addr.cast::<u8>(), piece.length));
            }
        }
        let range = start..batch.inline.len();
        batch.set(|last| last.data = WrPayload::Inline(range));
    }
}

impl Batch {
    fn set_sges(&mut self, sges: &[ClientSge]) {
        let start = self.sges.len();
        self.sges.extend_from_slice(sges);
        let range = start..self.sges.len();
        self.set(|last| last.data = WrPayload::Sges(range));
    }
}
