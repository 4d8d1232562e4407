//! The objects that programs hold by pointer. Those of roced are larger: the library's part of an
//! object lies behind the part that the program sees.

use std::ffi::{c_int, c_void};

use libc::{pthread_cond_t, pthread_mutex_t};

use super::{c_struct, context::Context};

c_struct! {
    Pd = "struct ibv_pd" {
        context: *mut Context,
        handle: u32,
    }
    Td = "struct ibv_td" {
        context: *mut Context,
    }
    Mr = "struct ibv_mr" {
        context: *mut Context,
        pd: *mut Pd,
        addr: *mut c_void,
        length: usize,
        handle: u32,
        lkey: u32,
        rkey: u32,
    }
    Mw = "struct ibv_mw" {
        context: *mut Context,
        pd: *mut Pd,
        rkey: u32,
        handle: u32,
        r#type: u32,
    }
    Ah = "struct ibv_ah" {
        context: *mut Context,
        pd: *mut Pd,
        handle: u32,
    }
    CompChannel = "struct ibv_comp_channel" {
        context: *mut Context,
        fd: c_int,
        refcnt: c_int,
    }
    Cq = "struct ibv_cq" {
        context: *mut Context,
        channel: *mut CompChannel,
        cq_context: *mut c_void,
        handle: u32,
        cqe: c_int,
        mutex: pthread_mutex_t,
        cond: pthread_cond_t,
        comp_events_completed: u32,
        async_events_completed: u32,
    }
    Srq = "struct ibv_srq" {
        context: *mut Context,
        srq_context: *mut c_void,
        pd: *mut Pd,
        handle: u32,
        mutex: pthread_mutex_t,
        cond: pthread_cond_t,
        events_completed: u32,
    }
    Qp = "struct ibv_qp" {
        context: *mut Context,
        qp_context: *mut c_void,
        pd: *mut Pd,
        send_cq: *mut Cq,
        recv_cq: *mut Cq,
        srq: *mut Srq,
        handle: u32,
        qp_num: u32,
        state: u32,
        qp_type: u32,
        mutex: pthread_mutex_t,
        cond: pthread_cond_t,
        events_completed: u32,
    }
    PollCqAttr = "struct ibv_poll_cq_attr" {
        comp_mask: u32,
    }
    CqEx = "struct ibv_cq_ex" {
        context: *mut Context,
        channel: *mut CompChannel,
        cq_context: *mut c_void,
        handle: u32,
        cqe: c_int,
        mutex: pthread_mutex_t,
        cond: pthread_cond_t,
        comp_events_completed: u32,
        async_events_completed: u32,
        comp_mask: u32,
        status: u32,
        wr_id: u64,
        start_poll: Option<unsafe extern "C" fn(*mut CqEx, *mut PollCqAttr) -> c_int>,
        next_poll: Option<unsafe extern "C" fn(*mut CqEx) -> c_int>,
        end_poll: Option<unsafe extern "C" fn(*mut CqEx)>,
        read_opcode: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
        read_vendor_err: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
        read_byte_len: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
        read_imm_data: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
        read_qp_num: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
        read_src_qp: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
        read_wc_flags: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
        read_slid: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
        read_sl: Option<unsafe extern "C" fn(*mut CqEx) -> u8>,
        read_dlid_path_bits: Option<unsafe extern "C" fn(*mut CqEx) -> u8>,
        read_completion_ts: Option<unsafe extern "C" fn(*mut CqEx) -> u64>,
        read_cvlan: Option<unsafe extern "C" fn(*mut CqEx) -> u16>,
        read_flow_tag: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
        read_tm_info: Option<unsafe extern "C" fn(*mut CqEx, *mut c_void)>,
        read_completion_wallclock_ns: Option<unsafe extern "C" fn(*mut CqEx) -> u64>,
    }
}

// A program takes one for the other (`ibv_cq_ex_to_cq`).
const _: () = assert!(core::mem::offset_of!(CqEx, comp_mask) == core::mem::offset_of!(Cq, async_events_completed) + 4);
