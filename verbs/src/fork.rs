//! Programs that fork. The daemon maps shared memory, which a fork leaves in place: there is
//! nothing to prepare.

use std::ffi::{c_int, c_void};

/// `IBV_FORK_UNNEEDED`.
const UNNEEDED: c_int = 2;

/// `ibv_fork_init`.
pub(crate) extern "C" fn init() -> c_int {
    0
}

/// `ibv_is_fork_initialized`.
pub(crate) extern "C" fn is_initialized() -> c_int {
    UNNEEDED
}

/// `ibv_dontfork_range`, `ibv_dofork_range`.
pub(crate) extern "C" fn range(_start: *mut c_void, _bytes: usize) -> c_int {
    0
}
