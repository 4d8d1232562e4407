//! Files below `/sys` that programs read by functions of the library.
#![expect(unsafe_code, reason = "paths and texts of C")]

use roced_client::NoCancellation;
use std::{
    ffi::{CStr, OsStr, c_char, c_int},
    fs,
    os::unix::ffi::OsStrExt as _,
    path::Path,
};

use crate::{
    abi::context::Device as DeviceFace,
    errno::{self, Errno, Result},
};

/// `ibv_get_sysfs_path`.
pub(crate) extern "C" fn path() -> *const c_char {
    c"/sys".as_ptr()
}

/// `ibv_read_sysfs_file`: how many bytes, or -1.
pub(crate) unsafe extern "C" fn read_file(
    folder: *const c_char,
    file: *const c_char,
    to: *mut c_char,
    room: usize,
) -> c_int {
    let _whole = NoCancellation::new();
    // SAFETY: the program gave two paths, and room.
    unsafe { read(folder, file, to, room) }
}

/// `ibv_read_ibdev_sysfs_file`, without the arguments of the format that a file name may have: such
/// files are not there.
pub(crate) unsafe extern "C" fn read_device_file(
    to: *mut c_char,
    room: usize,
    device: *mut DeviceFace,
    file: *const c_char,
) -> c_int {
    let _whole = NoCancellation::new();
    // SAFETY: the program's device is ours, and its path is a text.
    unsafe { read((&raw const (*device).ibdev_path).cast(), file, to, room) }
}

unsafe fn read(folder: *const c_char, file: *const c_char, to: *mut c_char, room: usize) -> c_int {
    let read = || -> Result<c_int> {
        // SAFETY: the caller vouches for both texts.
        let (folder, file) = unsafe { (CStr::from_ptr(folder), CStr::from_ptr(file)) };
        let path = |text: &CStr| Path::new(OsStr::from_bytes(text.to_bytes())).to_owned();
        let mut text = fs::read(path(folder).join(path(file)))
            .map_err(|error| Errno(error.raw_os_error().unwrap_or(libc::EIO)))?;
        if text.last() == Some(&b'\n') {
            text.pop();
        }
        let bytes = text.len().min(room);
        // SAFETY: the caller gave room for `room`.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), to.cast(), bytes);
            if bytes < room {
                to.add(bytes).write(0);
            }
        }
        Ok(bytes as c_int)
    };
    read().unwrap_or_else(|error| errno::minus_one(Err(error)))
}
