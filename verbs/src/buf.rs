//! Buffers (`struct ibv_buf`, since rdma-core 65): memory that the library allocates for a program,
//! in pages of its own, which the daemon can map.
#![expect(unsafe_code, reason = "memory and objects of C")]

use roced_client::NoCancellation;
use std::{
    alloc::{self, Layout},
    ffi::{c_int, c_void},
    ptr,
};

use crate::{
    abi::object::{Mr, Pd as PdFace},
    errno::{self, Errno, Result},
    mr,
};

/// Alignment and unit of the size: a page of x86-64, and of most systems of arm64.
const PAGE_BYTES: usize = 4096;

/// A buffer; the struct is opaque to programs.
pub(crate) struct Buf {
    pd: *mut PdFace,
    address: *mut u8,
    /// As the program asked.
    length: usize,
    layout: Layout,
}

impl Buf {
    /// # Errors
    /// `ENOMEM`.
    fn new(pd: *mut PdFace, length: usize) -> Result<Self> {
        const NO_MEMORY: Errno = Errno(libc::ENOMEM);
        let bytes = length.max(1).checked_next_multiple_of(PAGE_BYTES).ok_or(NO_MEMORY)?;
        let layout = Layout::from_size_align(bytes, PAGE_BYTES).map_err(|_| NO_MEMORY)?;
        // SAFETY: the layout is of at least one page.
        let address = unsafe { alloc::alloc_zeroed(layout) };
        if address.is_null() {
            return Err(NO_MEMORY);
        }
        Ok(Self { pd, address, length, layout })
    }

    /// Whether memory of `length` bytes at `address` may be registered in a domain as part of the
    /// buffer: it lies within, and the domain is the buffer's.
    ///
    /// # Errors
    /// `EINVAL`.
    pub(crate) fn check(&self, pd: *mut PdFace, address: *mut c_void, length: usize) -> Result<()> {
        let offset = address.addr().checked_sub(self.address.addr()).ok_or(Errno::INVALID)?;
        let fits = self.length.checked_sub(offset).is_some_and(|rest| length <= rest);
        if fits && ptr::eq(pd, self.pd) { Ok(()) } else { Err(Errno::INVALID) }
    }
}

/// `ibv_alloc_buf`.
pub(crate) unsafe extern "C" fn allocate(pd: *mut PdFace, length: usize, buf: *mut *mut Buf) -> *mut c_void {
    let _whole = NoCancellation::new();
    let made = || -> Result<*mut c_void> {
        let made = Buf::new(pd, length)?;
        let address = made.address.cast();
        // SAFETY: the program gave room for a pointer.
        unsafe { buf.write(Box::into_raw(Box::new(made))) };
        Ok(address)
    };
    errno::pointer(made())
}

/// `ibv_free_buf`: regions in the buffer have ended before.
pub(crate) unsafe extern "C" fn free(buf: *mut Buf) {
    let _whole = NoCancellation::new();
    // SAFETY: it came from `allocate`, which leaked it with memory of this layout, and the program
    // vouches that this is its end.
    unsafe {
        let buf = Box::from_raw(buf);
        alloc::dealloc(buf.address, buf.layout);
    }
}

/// `ibv_reg_buf_mr`.
pub(crate) unsafe extern "C" fn register(
    pd: *mut PdFace,
    buf: *mut Buf,
    address: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut Mr {
    let _whole = NoCancellation::new();
    // SAFETY: the program's buffer came from `allocate`.
    if let Err(errno) = unsafe { &*buf }.check(pd, address, length) {
        return errno::pointer(Err(errno));
    }
    // SAFETY: as the program vouches.
    unsafe { mr::register(pd, address, length, access) }
}

/// `ibv_export_buf_dmabuf_fd`: no buffer has a dma-buf.
pub(crate) extern "C" fn no_dmabuf(_buf: *mut Buf) -> c_int {
    errno::minus_one(Err(Errno(libc::ENODATA)))
}
