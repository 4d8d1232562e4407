//! Operations that roced does not have: each returns an error, none crashes. They have names of
//! many signatures; in the C ABI a function may ignore its arguments.

use std::{ffi::c_int, ptr};

use crate::errno::{self, Errno};

/// An error number.
pub(crate) extern "C" fn unsupported() -> c_int {
    errno::number(Err(Errno::UNSUPPORTED))
}

/// -1 and an error number, where a file descriptor is returned.
pub(crate) extern "C" fn minus_one() -> c_int {
    errno::minus_one(Err(Errno::UNSUPPORTED))
}

/// No object.
pub(crate) extern "C" fn null() -> *mut () {
    errno::set(Errno::UNSUPPORTED);
    ptr::null_mut()
}

/// 0.
pub(crate) extern "C" fn zero() -> c_int {
    0
}

/// Nothing.
pub(crate) extern "C" fn nothing() {}
