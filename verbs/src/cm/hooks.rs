//! Functions in place of those of the C library that librdmacm calls.
#![expect(unsafe_code, reason = "functions of C, and pointers to the functions that they replace")]

use std::{
    ffi::{CStr, c_char, c_int, c_uint, c_void},
    mem,
    os::fd::BorrowedFd,
    ptr, slice,
    sync::atomic::{AtomicPtr, Ordering},
};

use libc::{size_t, ssize_t, stat as Stat};
use roced_client::NoCancellation;

use super::{
    command,
    event::Executed,
    table::{self, DEVICE, Found},
    unending,
};
use crate::errno::{self, Errno};

/// A function in place of one of the C library.
pub(super) struct Hook {
    pub(super) name: &'static CStr,
    pub(super) function: *mut c_void,
    /// The function that the slot named before.
    pub(super) next: &'static AtomicPtr<c_void>,
    pub(super) need: Need,
}

// SAFETY: the pointers are to functions and to a static.
unsafe impl Sync for Hook {}

/// Calls of which a module needs one variant each.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Need(u8);

impl Need {
    pub(super) const NONE: Self = Self(0);
    const OPEN: Self = Self(1);
    const STATUS: Self = Self(2);
    const WRITE: Self = Self(4);
    const CLOSE: Self = Self(8);
    pub(super) const ALL: Self = Self(15);

    pub(super) const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Defines hooks: each calls its body with the function that the slot named before.
macro_rules! hooks {
    ($($need:ident $name:ident($($argument:ident: $type:ty),+) -> $result:ty = $body:path;)*) => {
        $(
            mod $name {
                use super::*;

                pub(super) static NEXT: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

                pub(super) unsafe extern "C" fn hook($($argument: $type),+) -> $result {
                    // SAFETY: the slot named the function of this name, which has these arguments.
                    let next = unsafe {
                        mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),+) -> $result>(NEXT.load(Ordering::Acquire))
                    };
                    // SAFETY: the arguments are those of the caller.
                    unsafe { $body(next, $($argument),+) }
                }
            }
        )*

        static HOOKS: &[Hook] = &[$(
            Hook {
                // A text that ends, as the compiler checks.
                name: match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!("a name, and a zero"),
                },
                function: $name::hook as *mut c_void,
                next: &$name::NEXT,
                need: Need::$need,
            },
        )*];
    };
}

// `open` takes a mode with some flags only. Without it the register's content is passed on, which
// the next function ignores: on x86-64 and aarch64 a variadic argument is passed as any other.
hooks! {
    OPEN open(path: *const c_char, flags: c_int, mode: c_uint) -> c_int = open_any;
    OPEN open64(path: *const c_char, flags: c_int, mode: c_uint) -> c_int = open_any;
    OPEN __open_2(path: *const c_char, flags: c_int) -> c_int = open_fortified;
    OPEN __open64_2(path: *const c_char, flags: c_int) -> c_int = open_fortified;
    STATUS fstat(fd: c_int, into: *mut Stat) -> c_int = status_of;
    STATUS fstat64(fd: c_int, into: *mut Stat) -> c_int = status_of;
    STATUS __fxstat(version: c_int, fd: c_int, into: *mut Stat) -> c_int = status_of_version;
    STATUS __fxstat64(version: c_int, fd: c_int, into: *mut Stat) -> c_int = status_of_version;
    WRITE write(fd: c_int, from: *const c_void, length: size_t) -> ssize_t = write_any;
    CLOSE close(fd: c_int) -> c_int = close_any;
}

/// All hooks.
pub(super) fn hooks() -> &'static [Hook] {
    HOOKS
}

type Open = unsafe extern "C" fn(*const c_char, c_int, c_uint) -> c_int;
type OpenFortified = unsafe extern "C" fn(*const c_char, c_int) -> c_int;
type FileStatus = unsafe extern "C" fn(c_int, *mut Stat) -> c_int;
type StatusOfVersion = unsafe extern "C" fn(c_int, c_int, *mut Stat) -> c_int;
type Write = unsafe extern "C" fn(c_int, *const c_void, size_t) -> ssize_t;
type Close = unsafe extern "C" fn(c_int) -> c_int;

unsafe fn open_any(next: Open, path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    // SAFETY: the caller's path is a text or null, and the call goes on as it came.
    unsafe { if is_device(path) { open_channel() } else { next(path, flags, mode) } }
}

unsafe fn open_fortified(next: OpenFortified, path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: as above.
    unsafe { if is_device(path) { open_channel() } else { next(path, flags) } }
}

unsafe fn is_device(path: *const c_char) -> bool {
    // SAFETY: a text or null, as the caller vouches.
    !path.is_null() && unsafe { CStr::from_ptr(path) } == DEVICE
}

fn open_channel() -> c_int {
    let _whole = NoCancellation::new();
    table::open().unwrap_or_else(|error| errno::minus_one(Err(error)))
}

unsafe fn status_of(next: FileStatus, fd: c_int, into: *mut Stat) -> c_int {
    // SAFETY: the arguments are those of the caller.
    let result = unsafe { next(fd, into) };
    // SAFETY: the call has filled the struct if it succeeded.
    unsafe { show_device(result, fd, into) }
}

unsafe fn status_of_version(next: StatusOfVersion, version: c_int, fd: c_int, into: *mut Stat) -> c_int {
    // SAFETY: as above.
    let result = unsafe { next(version, fd, into) };
    // SAFETY: as above.
    unsafe { show_device(result, fd, into) }
}

/// Makes a channel look like the device file.
unsafe fn show_device(result: c_int, fd: c_int, into: *mut Stat) -> c_int {
    let _whole = NoCancellation::new();
    if result == 0 && !matches!(table::find(fd), Found::Other) {
        // SAFETY: a struct that was filled, as the caller vouches.
        unsafe { ((*into).st_mode, (*into).st_rdev) = (libc::S_IFCHR | 0o666, table::device_number()) };
    }
    result
}

unsafe fn write_any(next: Write, fd: c_int, from: *const c_void, length: size_t) -> ssize_t {
    let mut channel = None;
    loop {
        // SAFETY: the caller's buffer has `length` bytes.
        match (unsafe { attempt(fd, from, length, channel) }, channel) {
            // SAFETY: the arguments are those of the caller.
            (None, None) => return unsafe { next(fd, from, length) },
            // Another thread has closed it. A read of a device goes on in this case, and programs
            // count on that: it ends with the process.
            (None, Some(_)) => return failed(unending::wait()),
            (Some(Ok(Attempted::Done)), _) => return length.cast_signed(),
            (Some(Ok(Attempted::Empty(serial))), _) => channel = Some(serial),
            (Some(Err(error)), _) => return failed(error),
        }
        // The thread may be canceled here: it holds nothing.
        // SAFETY: the number named a channel a moment ago; the kernel refuses one that was closed.
        match command::wait_for_event(unsafe { BorrowedFd::borrow_raw(fd) }) {
            Ok(()) | Err(Errno(libc::EBADF)) => {}
            Err(error) => return failed(error),
        }
    }
}

/// Result of a command.
enum Attempted {
    Done,
    /// No event waits on the channel of this serial number.
    Empty(u64),
}

/// Executes the command if the descriptor is a channel; after the first attempt, if it still is the
/// same.
unsafe fn attempt(
    fd: c_int,
    from: *const c_void,
    length: size_t,
    channel: Option<u64>,
) -> Option<errno::Result<Attempted>> {
    let _whole = NoCancellation::new();
    match table::find(fd) {
        Found::Other => None,
        Found::OfParent => Some(Err(Errno(libc::ENODEV))),
        Found::Channel(found) if channel.is_some_and(|serial| serial != found.serial) => None,
        Found::Channel(found) => {
            // SAFETY: the caller vouches for the buffer; it changes only if the program breaks its
            // own contract with librdmacm.
            let bytes = unsafe { slice::from_raw_parts(from.cast::<u8>(), length) };
            let executed = command::execute(&found, bytes);
            Some(executed.map(|executed| match executed {
                Executed::Done => Attempted::Done,
                Executed::Empty => Attempted::Empty(found.serial),
            }))
        }
    }
}

fn failed(error: Errno) -> ssize_t {
    errno::set(error);
    -1
}

unsafe fn close_any(next: Close, fd: c_int) -> c_int {
    if closes_channel(fd) {
        return 0;
    }
    // SAFETY: the argument is that of the caller.
    unsafe { next(fd) }
}

fn closes_channel(fd: c_int) -> bool {
    let _whole = NoCancellation::new();
    table::close(fd)
}
