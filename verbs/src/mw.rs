//! Memory windows.
#![expect(unsafe_code, reason = "objects of C")]

use std::ffi::c_int;

use roced_client::{Access, MemoryWindow, NoCancellation, SendRequest, WindowBinding, WindowKind};

use crate::{
    abi::{
        attributes::{MwBind, MwBindInfo},
        object::{Mw as Face, Pd as PdFace, Qp as QpFace},
    },
    errno::{self, Errno, Result},
    object::Object,
    pd::Pd,
    post,
    qp::Qp,
};

/// A memory window.
pub(crate) type Mw = Object<Face, MemoryWindow>;

/// `ibv_alloc_mw`.
pub(crate) unsafe extern "C" fn alloc(pd: *mut PdFace, kind: u32) -> *mut Face {
    let _whole = NoCancellation::new();
    let made = || -> Result<*mut Face> {
        let wanted = match kind {
            1 => WindowKind::One,
            2 => WindowKind::Two,
            _ => return Err(Errno::INVALID),
        };
        // SAFETY: the program's domain is ours.
        let (domain, context) = unsafe { (Pd::of(pd), (*pd).context) };
        let window = domain.own.pd.memory_window(wanted)?;
        domain.own.users.add();
        let face = Face { context, pd, rkey: window.rkey(), handle: window.rkey() >> 8, r#type: kind };
        Ok(Mw::leak(face, window).cast())
    };
    errno::pointer(made())
}

/// `ibv_dealloc_mw`.
pub(crate) unsafe extern "C" fn dealloc(mw: *mut Face) -> c_int {
    let _whole = NoCancellation::new();
    // SAFETY: the program's window is ours, so is its domain, and it no longer uses it.
    unsafe {
        let pd = (*mw).pd;
        drop(Mw::free(mw));
        Pd::of(pd).own.users.remove();
    }
    0
}

/// Parameters of a binding.
///
/// # Safety
/// Window and region are ours.
pub(crate) unsafe fn request(mw: *mut Face, rkey: u32, info: &MwBindInfo) -> Result<SendRequest<'static>> {
    if mw.is_null() {
        return Err(Errno::INVALID);
    }
    // SAFETY: the caller vouches for both; a missing region unbinds.
    let lkey = if info.mr.is_null() { 0 } else { unsafe { (*info.mr).lkey } };
    // SAFETY: as above.
    let kept = unsafe { (*mw).rkey } & !0xff;
    if rkey & !0xff != kept {
        return Err(Errno::INVALID);
    }
    let access = Access::from_bits(info.mw_access_flags).ok_or(Errno::INVALID)?;
    Ok(SendRequest::bind(&WindowBinding::new(rkey, lkey, info.addr, info.length, access)))
}

/// `ibv_bind_mw`, of a window of type 1.
pub(crate) unsafe extern "C" fn bind(qp: *mut QpFace, mw: *mut Face, bind: *mut MwBind) -> c_int {
    let bound = || -> Result<()> {
        // SAFETY: queue pair, window and region are ours; the program gave the rest.
        unsafe {
            let rkey = (*mw).rkey & !0xff | (*mw).rkey.wrapping_add(1) & 0xff;
            let request = request(mw, rkey, &(*bind).bind_info)?;
            let request = post::flagged(request, (*bind).send_flags).id((*bind).wr_id);
            Qp::of(qp).own.qp.post_send(&request)?;
            (*mw).rkey = rkey;
        }
        Ok(())
    };
    errno::number(bound())
}
