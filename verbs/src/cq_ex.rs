//! Completion queues that give their completions field by field, between `ibv_start_poll` and
//! `ibv_end_poll`.
#![expect(unsafe_code, reason = "functions that programs call through the queue's struct")]

use std::{ffi::c_int, time::Duration};

use roced_client::{Completion, NoCancellation};

use crate::{
    abi::{
        attributes::CqInitAttrEx,
        context::Context as ContextFace,
        object::{CqEx as Face, PollCqAttr},
    },
    cq::{self, Cq, CqRequest},
    errno::{self, Errno, Result},
    pd::Pd,
};

/// `IBV_WC_EX_WITH_*` that we have: standard ones, both kinds of time stamps.
const FIELDS: u64 = 0x7f | 1 << 7 | 1 << 11;
/// `IBV_CQ_INIT_ATTR_MASK_FLAGS` and `_PD`.
const KNOWN: u32 = 1 << 0 | MASK_PD;
const MASK_PD: u32 = 1 << 1;
/// `IBV_CREATE_CQ_ATTR_SINGLE_THREADED` and `_IGNORE_OVERRUN`, which are optional.
const FLAGS: u32 = 1 << 0 | 1 << 1;
const SINGLE_THREADED: u32 = 1 << 0;

/// `ibv_create_cq_ex`.
pub(crate) unsafe extern "C" fn create(context: *mut ContextFace, attr: *mut CqInitAttrEx) -> *mut Face {
    let _whole = NoCancellation::new();
    let made = || -> Result<*mut Face> {
        // SAFETY: the program gave attributes.
        let attr = unsafe { &*attr };
        if attr.comp_mask & !KNOWN != 0 || attr.wc_flags & !FIELDS != 0 {
            return Err(Errno::UNSUPPORTED);
        }
        let flags = if attr.comp_mask & 1 == 0 { 0 } else { attr.flags };
        if flags & !FLAGS != 0 {
            return Err(Errno::UNSUPPORTED);
        }
        // SAFETY: the program's domain is ours.
        let is_of_one_thread = attr.comp_mask & MASK_PD != 0
            && !attr.parent_domain.is_null()
            && unsafe { Pd::of(attr.parent_domain) }.own.is_of_one_thread();
        let wanted = CqRequest {
            entries: attr.cqe,
            cq_context: attr.cq_context,
            channel: attr.channel,
            vector: attr.comp_vector,
            single_threaded: flags & SINGLE_THREADED != 0 || is_of_one_thread,
        };
        // SAFETY: the program's context and channel are ours.
        unsafe { cq::make(context, &wanted) }
    };
    errno::pointer(made())
}

/// Functions that the inlines of the header call.
pub(crate) fn give_functions(face: &mut Face) {
    face.start_poll = Some(start_poll);
    face.next_poll = Some(next_poll);
    face.end_poll = Some(end_poll);
    face.read_opcode = Some(read_opcode);
    face.read_vendor_err = Some(read_vendor_err);
    face.read_byte_len = Some(read_byte_len);
    face.read_imm_data = Some(read_imm_data);
    face.read_qp_num = Some(read_qp_num);
    face.read_src_qp = Some(read_src_qp);
    face.read_wc_flags = Some(read_wc_flags);
    face.read_slid = Some(read_slid);
    face.read_sl = Some(read_sl);
    face.read_dlid_path_bits = Some(read_none);
    face.read_completion_ts = Some(read_completion_ts);
    face.read_completion_wallclock_ns = Some(read_completion_wallclock_ns);
}

unsafe extern "C" fn start_poll(face: *mut Face, attr: *mut PollCqAttr) -> c_int {
    // SAFETY: the program gave attributes, or none.
    if !attr.is_null() && unsafe { (*attr).comp_mask } != 0 {
        return libc::EINVAL;
    }
    // SAFETY: the program's queue is ours.
    let queue = unsafe { Cq::of(face) };
    if !queue.own.single_threaded {
        // SAFETY: the mutex lives as long as the queue, and was initialized with it.
        unsafe { libc::pthread_mutex_lock(queue.own.taking.get()) };
    }
    // SAFETY: as above; the taking is ours from here on.
    let polled = unsafe { next_poll(face) };
    if polled != 0 {
        leave(queue);
    }
    polled
}

unsafe extern "C" fn next_poll(face: *mut Face) -> c_int {
    // SAFETY: the program's queue is ours.
    let queue = unsafe { Cq::of(face) };
    let mut one = [Completion::EMPTY];
    match queue.own.take(&mut one) {
        Ok(0) => libc::ENOENT,
        Ok(_) => {
            // SAFETY: between the beginning of a poll and its end no other thread accesses these.
            unsafe {
                (*face).wr_id = one[0].wr_id;
                (*face).status = one[0].status as u32;
                *queue.own.current.get() = one[0];
            }
            0
        }
        Err(Errno(number)) => number,
    }
}

unsafe extern "C" fn end_poll(face: *mut Face) {
    // SAFETY: the program's queue is ours.
    leave(unsafe { Cq::of(face) });
}

fn leave(queue: &Cq) {
    if !queue.own.single_threaded {
        // SAFETY: the thread that begins a taking ends it.
        unsafe { libc::pthread_mutex_unlock(queue.own.taking.get()) };
    }
}

/// The completion that is being read.
unsafe fn current<'a>(face: *mut Face) -> &'a Completion {
    // SAFETY: the program's queue is ours, and it reads between the beginning of a taking and its
    // end.
    unsafe { &*Cq::of(face).own.current.get() }
}

macro_rules! readers {
    ($($name:ident -> $type:ty: $it:ident => $value:expr;)*) => {
        $(unsafe extern "C" fn $name(face: *mut Face) -> $type {
            // SAFETY: as for `current`, which verbs require of programs.
            let $it = unsafe { current(face) };
            $value
        })*
    };
}

readers! {
    read_opcode -> u32: it => it.op as u32;
    read_vendor_err -> u32: it => it.vendor_error;
    read_byte_len -> u32: it => it.byte_len;
    read_imm_data -> u32: it => u32::from_ne_bytes(cq::imm_data(it));
    read_qp_num -> u32: it => it.qpn;
    read_src_qp -> u32: it => it.src_qpn;
    read_wc_flags -> u32: it => cq::flags(it);
    read_sl -> u8: it => cq::service_level(it);
    read_completion_ts -> u64: it => it.timestamp_ns;
    read_completion_wallclock_ns -> u64: it => wall_clock(it.timestamp_ns);
}

/// LIDs and path bits are of InfiniBand.
extern "C" fn read_slid(_face: *mut Face) -> u32 {
    0
}

extern "C" fn read_none(_face: *mut Face) -> u8 {
    0
}

/// Nanoseconds since 1970 of a time on CLOCK_MONOTONIC.
fn wall_clock(monotonic_ns: u64) -> u64 {
    let now = |clock| {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: both clocks are always there, and `time` has room.
        unsafe { libc::clock_gettime(clock, &raw mut time) };
        Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32).as_nanos() as u64
    };
    let ago = now(libc::CLOCK_MONOTONIC).saturating_sub(monotonic_ns);
    now(libc::CLOCK_REALTIME).saturating_sub(ago)
}
