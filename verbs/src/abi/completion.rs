//! Completions, events, and the completion queue that gives them field by field.

use std::ffi::{c_int, c_void};

use super::{c_struct, object::Cq};

c_struct! {
    Wc = "struct ibv_wc" {
        wr_id: u64,
        status: u32,
        opcode: u32,
        vendor_err: u32,
        byte_len: u32,
        imm_data: [u8; 4],
        qp_num: u32,
        src_qp: u32,
        wc_flags: u32,
        pkey_index: u16,
        slid: u16,
        sl: u8,
        dlid_path_bits: u8,
    }
    Grh = "struct ibv_grh" {
        version_tclass_flow: [u8; 4],
        paylen: [u8; 2],
        next_hdr: u8,
        hop_limit: u8,
        sgid: super::attributes::Gid8,
        dgid: super::attributes::Gid8,
    }
    AsyncEvent = "struct ibv_async_event" {
        element: *mut c_void,
        event_type: u32,
    }
    PollCqAttr = "struct ibv_poll_cq_attr" {
        comp_mask: u32,
    }
    CqEx = "struct ibv_cq_ex" {
        context: *mut super::context::Context,
        channel: *mut super::object::CompChannel,
        cq_context: *mut c_void,
        handle: u32,
        cqe: c_int,
        mutex: libc::pthread_mutex_t,
        cond: libc::pthread_cond_t,
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
