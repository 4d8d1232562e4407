//! Completions and events.

use std::ffi::c_void;

use super::c_struct;

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
    AsyncEvent = "struct ibv_async_event" {
        element: *mut c_void,
        event_type: u32,
    }
}
