//! Numbers of verbs in words.

use std::ffi::{CStr, c_char, c_int};

fn word(words: &[&'static CStr], number: c_int, otherwise: &'static CStr) -> *const c_char {
    usize::try_from(number).ok().and_then(|number| words.get(number)).unwrap_or(&otherwise).as_ptr()
}

/// `ibv_wc_status_str`.
pub(crate) extern "C" fn wc_status(status: c_int) -> *const c_char {
    const WORDS: &[&CStr] = &[
        c"success",
        c"local length error",
        c"local QP operation error",
        c"local EE context operation error",
        c"local protection error",
        c"Work Request Flushed Error",
        c"memory window bind error",
        c"bad response error",
        c"local access error",
        c"remote invalid request error",
        c"remote access error",
        c"remote operation error",
        c"transport retry counter exceeded",
        c"RNR retry counter exceeded",
        c"local RDD violation error",
        c"remote invalid RD request",
        c"aborted by the peer",
        c"invalid EE context number",
        c"invalid EE context state",
        c"fatal error",
        c"response timeout error",
        c"general error",
        c"tag matching error",
        c"tag matching rendezvous incomplete",
    ];
    word(WORDS, status, c"unknown")
}

/// `ibv_event_type_str`.
pub(crate) extern "C" fn event_type(event: c_int) -> *const c_char {
    const WORDS: &[&CStr] = &[
        c"CQ error",
        c"local work queue catastrophic error",
        c"invalid request local work queue error",
        c"local access violation work queue error",
        c"communication established",
        c"send queue drained",
        c"path migrated",
        c"path migration request error",
        c"local catastrophic error",
        c"port active",
        c"port error",
        c"LID change",
        c"P_Key table change",
        c"SM change",
        c"SRQ catastrophic error",
        c"SRQ limit reached",
        c"last WQE reached",
        c"client reregistration",
        c"GID table change",
        c"WQ fatal",
        c"device speed change",
    ];
    word(WORDS, event, c"unknown")
}

/// `ibv_wr_opcode_str`.
pub(crate) extern "C" fn wr_opcode(opcode: c_int) -> *const c_char {
    const WORDS: &[&CStr] = &[
        c"RDMA WRITE",
        c"RDMA WRITE with immediate",
        c"SEND",
        c"SEND with immediate",
        c"RDMA READ",
        c"compare and swap",
        c"fetch and add",
        c"local invalidate",
        c"bind memory window",
        c"SEND with invalidate",
        c"TSO",
        c"driver 1",
        c"unknown",
        c"unknown",
        c"FLUSH",
        c"ATOMIC WRITE",
    ];
    word(WORDS, opcode, c"unknown")
}

/// `ibv_port_state_str`.
pub(crate) extern "C" fn port_state(state: c_int) -> *const c_char {
    const WORDS: &[&CStr] = &[c"no state change (NOP)", c"DOWN", c"INIT", c"ARMED", c"ACTIVE", c"ACTIVE_DEFER"];
    word(WORDS, state, c"invalid state")
}

/// `ibv_node_type_str`.
pub(crate) extern "C" fn node_type(node: c_int) -> *const c_char {
    const WORDS: &[&CStr] = &[
        c"unknown",
        c"InfiniBand channel adapter",
        c"InfiniBand switch",
        c"InfiniBand router",
        c"iWARP NIC",
        c"usNIC",
        c"usNIC UDP",
        c"unspecified",
    ];
    word(WORDS, node, c"unknown")
}
