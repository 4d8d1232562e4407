//! Work requests, and the queue pair that takes them call by call (`ibv_wr_*`).

use std::ffi::{c_int, c_void};

use super::{
    attributes::MwBindInfo,
    c_struct,
    object::{Ah, Mw, Qp},
};

c_struct! {
    Sge = "struct ibv_sge" {
        addr: u64,
        length: u32,
        lkey: u32,
    }
    RecvWr = "struct ibv_recv_wr" {
        wr_id: u64,
        next: *mut RecvWr,
        sg_list: *mut Sge,
        num_sge: c_int,
    }
    SendWr = "struct ibv_send_wr" {
        wr_id: u64,
        next: *mut SendWr,
        sg_list: *mut Sge,
        num_sge: c_int,
        opcode: u32,
        send_flags: u32,
        imm_data: [u8; 4],
        wr: SendTarget,
        qp_type: u32,
        bind_mw: BindMw,
    }
    DataBuf = "struct ibv_data_buf" {
        addr: *mut c_void,
        length: usize,
    }
    QpEx = "struct ibv_qp_ex" {
        qp_base: Qp,
        comp_mask: u64,
        wr_id: u64,
        wr_flags: u32,
        wr_atomic_cmp_swp: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, u64, u64)>,
        wr_atomic_fetch_add: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, u64)>,
        wr_bind_mw: Option<unsafe extern "C" fn(*mut QpEx, *mut Mw, u32, *const MwBindInfo)>,
        wr_local_inv: Option<unsafe extern "C" fn(*mut QpEx, u32)>,
        wr_rdma_read: Option<unsafe extern "C" fn(*mut QpEx, u32, u64)>,
        wr_rdma_write: Option<unsafe extern "C" fn(*mut QpEx, u32, u64)>,
        wr_rdma_write_imm: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, u32)>,
        wr_send: Option<unsafe extern "C" fn(*mut QpEx)>,
        wr_send_imm: Option<unsafe extern "C" fn(*mut QpEx, u32)>,
        wr_send_inv: Option<unsafe extern "C" fn(*mut QpEx, u32)>,
        wr_send_tso: Option<unsafe extern "C" fn(*mut QpEx, *mut c_void, u16, u16)>,
        wr_set_ud_addr: Option<unsafe extern "C" fn(*mut QpEx, *mut Ah, u32, u32)>,
        wr_set_xrc_srqn: Option<unsafe extern "C" fn(*mut QpEx, u32)>,
        wr_set_inline_data: Option<unsafe extern "C" fn(*mut QpEx, *mut c_void, usize)>,
        wr_set_inline_data_list: Option<unsafe extern "C" fn(*mut QpEx, usize, *const DataBuf)>,
        wr_set_sge: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, u32)>,
        wr_set_sge_list: Option<unsafe extern "C" fn(*mut QpEx, usize, *const Sge)>,
        wr_start: Option<unsafe extern "C" fn(*mut QpEx)>,
        wr_complete: Option<unsafe extern "C" fn(*mut QpEx) -> c_int>,
        wr_abort: Option<unsafe extern "C" fn(*mut QpEx)>,
        wr_atomic_write: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, *const c_void)>,
    }
}

/// `ibv_send_wr::wr`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) union SendTarget {
    pub(crate) rdma: RdmaTarget,
    pub(crate) atomic: AtomicTarget,
    pub(crate) ud: UdTarget,
}

/// `ibv_send_wr::wr.rdma`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct RdmaTarget {
    pub(crate) remote_addr: u64,
    pub(crate) rkey: u32,
}

/// `ibv_send_wr::wr.atomic`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct AtomicTarget {
    pub(crate) remote_addr: u64,
    pub(crate) compare_add: u64,
    pub(crate) swap: u64,
    pub(crate) rkey: u32,
}

/// `ibv_send_wr::wr.ud`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct UdTarget {
    pub(crate) ah: *mut Ah,
    pub(crate) remote_qpn: u32,
    pub(crate) remote_qkey: u32,
}

/// `ibv_send_wr::bind_mw`, which is longer than the other member of its union.
#[repr(C)]
pub(crate) struct BindMw {
    pub(crate) mw: *mut Mw,
    pub(crate) rkey: u32,
    pub(crate) bind_info: MwBindInfo,
}
