//! Cancellation of threads: a thread that is canceled while it holds a lock, or memory that Rust
//! must free, never releases them.
#![expect(unsafe_code, reason = "a call of the C library")]

use std::{ffi::c_int, ptr};

/// `PTHREAD_CANCEL_DISABLE`.
const DISABLE: c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// The thread cannot be canceled while this lives.
#[derive(Debug)]
pub struct NoCancellation {
    before: c_int,
}

impl NoCancellation {
    /// From now on.
    #[expect(clippy::new_without_default, reason = "a guard is not a value")]
    pub fn new() -> Self {
        let mut before = 0;
        // SAFETY: room for the state. The call fails for unknown states only.
        unsafe { pthread_setcancelstate(DISABLE, &raw mut before) };
        Self { before }
    }
}

impl Drop for NoCancellation {
    fn drop(&mut self) {
        // SAFETY: a state that the C library gave; the old one may be null.
        unsafe { pthread_setcancelstate(self.before, ptr::null_mut()) };
    }
}
