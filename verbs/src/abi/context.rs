//! The device and the opened device. The static inlines of the header go through the operations
//! here, not through symbols.
#![expect(non_snake_case, reason = "names of the header")]

use std::ffi::{c_char, c_int, c_void};

use super::{
    attributes::{
        CqInitAttrEx, DeviceAttrEx, MwBind, ParentDomainInitAttr, PortAttr, QpInitAttrEx, QpRateLimitAttr,
        QueryDeviceExInput, SrqInitAttrEx, TdInitAttr, ValuesEx,
    },
    c_struct,
    completion::Wc,
    object::CqEx,
    object::{Cq, Mw, Pd, Qp, Srq, Td},
    work::{RecvWr, SendWr},
};

/// An operation that the library does not have. The inlines answer EOPNOTSUPP by themselves where
/// it is null.
pub(crate) type Absent = Option<unsafe extern "C" fn() -> *mut c_void>;

c_struct! {
    Device = "struct ibv_device" {
        _ops: [Absent; 2],
        node_type: c_int,
        transport_type: c_int,
        name: [c_char; 64],
        dev_name: [c_char; 64],
        dev_path: [c_char; 256],
        ibdev_path: [c_char; 256],
    }
    ContextOps = "struct ibv_context_ops" {
        _compat_query_device: Absent,
        _compat_query_port: Absent,
        _compat_alloc_pd: Absent,
        _compat_dealloc_pd: Absent,
        _compat_reg_mr: Absent,
        _compat_rereg_mr: Absent,
        _compat_dereg_mr: Absent,
        alloc_mw: Option<unsafe extern "C" fn(*mut Pd, u32) -> *mut Mw>,
        bind_mw: Option<unsafe extern "C" fn(*mut Qp, *mut Mw, *mut MwBind) -> c_int>,
        dealloc_mw: Option<unsafe extern "C" fn(*mut Mw) -> c_int>,
        _compat_create_cq: Absent,
        poll_cq: Option<unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int>,
        req_notify_cq: Option<unsafe extern "C" fn(*mut Cq, c_int) -> c_int>,
        _compat_cq_event: Absent,
        _compat_resize_cq: Absent,
        _compat_destroy_cq: Absent,
        _compat_create_srq: Absent,
        _compat_modify_srq: Absent,
        _compat_query_srq: Absent,
        _compat_destroy_srq: Absent,
        post_srq_recv: Option<unsafe extern "C" fn(*mut Srq, *mut RecvWr, *mut *mut RecvWr) -> c_int>,
        _compat_create_qp: Absent,
        _compat_query_qp: Absent,
        _compat_modify_qp: Absent,
        _compat_destroy_qp: Absent,
        post_send: Option<unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int>,
        post_recv: Option<unsafe extern "C" fn(*mut Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int>,
        _compat_create_ah: Absent,
        _compat_destroy_ah: Absent,
        _compat_attach_mcast: Absent,
        _compat_detach_mcast: Absent,
        _compat_async_event: Absent,
    }
    Context = "struct ibv_context" {
        device: *mut Device,
        ops: ContextOps,
        cmd_fd: c_int,
        async_fd: c_int,
        num_comp_vectors: c_int,
        mutex: libc::pthread_mutex_t,
        abi_compat: *mut c_void,
    }
    VerbsContext = "struct verbs_context" {
        query_port: Option<unsafe extern "C" fn(*mut Context, u8, *mut PortAttr, usize) -> c_int>,
        advise_mr: Absent,
        alloc_null_mr: Absent,
        read_counters: Absent,
        attach_counters_point_flow: Absent,
        create_counters: Absent,
        destroy_counters: Absent,
        reg_dm_mr: Absent,
        alloc_dm: Absent,
        free_dm: Absent,
        modify_flow_action_esp: Absent,
        destroy_flow_action: Absent,
        create_flow_action_esp: Absent,
        modify_qp_rate_limit: Option<unsafe extern "C" fn(*mut Qp, *mut QpRateLimitAttr) -> c_int>,
        alloc_parent_domain: Option<unsafe extern "C" fn(*mut Context, *mut ParentDomainInitAttr) -> *mut Pd>,
        dealloc_td: Option<unsafe extern "C" fn(*mut Td) -> c_int>,
        alloc_td: Option<unsafe extern "C" fn(*mut Context, *mut TdInitAttr) -> *mut Td>,
        modify_cq: Absent,
        post_srq_ops: Absent,
        destroy_rwq_ind_table: Absent,
        create_rwq_ind_table: Absent,
        destroy_wq: Absent,
        modify_wq: Absent,
        create_wq: Absent,
        query_rt_values: Option<unsafe extern "C" fn(*mut Context, *mut ValuesEx) -> c_int>,
        create_cq_ex: Option<unsafe extern "C" fn(*mut Context, *mut CqInitAttrEx) -> *mut CqEx>,
        r#priv: *mut c_void,
        query_device_ex: Option<
            unsafe extern "C" fn(*mut Context, *const QueryDeviceExInput, *mut DeviceAttrEx, usize) -> c_int,
        >,
        ibv_destroy_flow: Absent,
        ABI_placeholder2: Absent,
        ibv_create_flow: Absent,
        ABI_placeholder1: Absent,
        open_qp: Absent,
        create_qp_ex: Option<unsafe extern "C" fn(*mut Context, *mut QpInitAttrEx) -> *mut Qp>,
        get_srq_num: Option<unsafe extern "C" fn(*mut Srq, *mut u32) -> c_int>,
        create_srq_ex: Option<unsafe extern "C" fn(*mut Context, *mut SrqInitAttrEx) -> *mut Srq>,
        open_xrcd: Absent,
        close_xrcd: Absent,
        _ABI_placeholder3: u64,
        sz: usize,
        context: Context,
    }
}
