//! The objects that programs hold by pointer. Ours are larger: what the library knows of one lies
//! behind what the program sees.

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
}
