//! Memory regions: any memory of the program, which `roced-client` makes reachable for the daemon.
#![expect(unsafe_code, reason = "objects of C, and memory of the program")]

use std::{
    ffi::{c_int, c_void},
    sync::{Mutex, PoisonError},
};

use roced_client::{Access, MemoryRegion, NoCancellation, Reregistration};

use crate::{
    abi::object::{Mr as Face, Pd as PdFace},
    buf::Buf,
    errno::{self, Errno, Result},
    object::Object,
    pd::Pd,
};

/// Bits of `enum ibv_access_flags` that need nothing from us: huge pages, and those that the header
/// calls optional, of which relaxed ordering is the first.
const IGNORED: u32 = 1 << 7 | 0x3ff << 20;
/// `IBV_ACCESS_ZERO_BASED`.
const ZERO_BASED: u32 = 1 << 5;
/// `IBV_ACCESS_ON_DEMAND`.
const ON_DEMAND: u32 = 1 << 6;
/// Remote writes imply local writes (IBTA v1 C10-57).
const NEEDS_LOCAL_WRITE: u32 = 1 << 1 | 1 << 3;
const LOCAL_WRITE: u32 = 1 << 0;

/// A memory region. It is there until the program ends it.
pub(crate) type Mr = Object<Face, Mutex<Option<MemoryRegion>>>;

/// `ibv_reg_mr`.
pub(crate) unsafe extern "C" fn register(
    pd: *mut PdFace,
    address: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut Face {
    let _whole = NoCancellation::new();
    // SAFETY: as the program vouches.
    unsafe { register_iova(pd, address, length, address.addr() as u64, access.cast_unsigned()) }
}

/// `ibv_reg_mr_iova`, `ibv_reg_mr_iova2`.
pub(crate) unsafe extern "C" fn register_iova(
    pd: *mut PdFace,
    address: *mut c_void,
    length: usize,
    iova: u64,
    flags: u32,
) -> *mut Face {
    let _whole = NoCancellation::new();
    let made = || -> Result<*mut Face> {
        let access = rights(flags)?;
        let iova = if flags & ZERO_BASED == 0 { iova } else { 0 };
        // SAFETY: the program's domain is ours, and it vouches for the memory until the region
        // ends, as verbs demand.
        let (domain, region) = unsafe {
            let domain = Pd::of(pd);
            (domain, domain.own.pd.register_at(address.cast(), length, iova, access)?)
        };
        domain.own.users.add();
        let (lkey, rkey) = (region.lkey(), region.rkey());
        // SAFETY: as above.
        let context = unsafe { (*pd).context };
        let face = Face { context, pd, addr: address, length, handle: lkey >> 8, lkey, rkey };
        Ok(Mr::leak(face, Mutex::new(Some(region))).cast())
    };
    errno::pointer(made())
}

/// `struct ibv_mr_init_attr` of rdma-core 59 and later, as far as it is used here. Distributions have
/// older headers, so no test compares it with theirs.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct MrInitAttr {
    length: usize,
    access: c_int,
    comp_mask: u64,
    iova: u64,
    addr: *mut c_void,
}

/// The same of rdma-core 65.
#[repr(C)]
struct MrInitAttrOfBuf {
    common: MrInitAttr,
    fd: c_int,
    fd_offset: u64,
    dmah: *mut c_void,
    buf: *mut Buf,
}

/// Bits of `enum ibv_mr_init_attr_mask`.
const IOVA: u64 = 1 << 0;
const ADDRESS: u64 = 1 << 1;
const FD: u64 = 1 << 2;
const FD_OFFSET: u64 = 1 << 3;
const BUF: u64 = 1 << 5;

/// `ibv_reg_mr_ex`, for memory of the program and buffers: no dma-buf, no DMA handle.
pub(crate) unsafe extern "C" fn register_ex(pd: *mut PdFace, attributes: *mut MrInitAttr) -> *mut Face {
    let _whole = NoCancellation::new();
    // SAFETY: the program's attributes, which it has filled as far as the mask says.
    let MrInitAttr { length, access, comp_mask, iova, addr } = unsafe { attributes.read() };
    let of_buf = comp_mask & BUF != 0;
    if of_buf && comp_mask & (FD | FD_OFFSET) != 0 {
        return errno::pointer(Err(Errno::INVALID));
    }
    if comp_mask & !(IOVA | ADDRESS | BUF) != 0 {
        return errno::pointer(Err(Errno::UNSUPPORTED));
    }
    if comp_mask & ADDRESS == 0 {
        return errno::pointer(Err(Errno::INVALID));
    }
    if of_buf {
        // SAFETY: a program that knows the bit passes the larger struct, and a buffer of ours in it.
        let buf = unsafe { &*(*attributes.cast::<MrInitAttrOfBuf>()).buf };
        if let Err(errno) = buf.check(pd, addr, length) {
            return errno::pointer(Err(errno));
        }
    }
    let iova = if comp_mask & IOVA == 0 { addr.addr() as u64 } else { iova };
    // SAFETY: as the program vouches.
    unsafe { register_iova(pd, addr, length, iova, access.cast_unsigned()) }
}

fn rights(flags: u32) -> Result<Access> {
    if flags & ON_DEMAND != 0 {
        return Err(Errno::UNSUPPORTED);
    }
    if flags & NEEDS_LOCAL_WRITE != 0 && flags & LOCAL_WRITE == 0 {
        return Err(Errno::INVALID);
    }
    Access::from_bits(flags & !(IGNORED | ZERO_BASED)).ok_or(Errno::INVALID)
}

/// `ibv_rereg_mr`: 0, or a negative number that says whether the region is as it was.
pub(crate) unsafe extern "C" fn reregister(
    mr: *mut Face,
    flags: c_int,
    pd: *mut PdFace,
    address: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    let _whole = NoCancellation::new();
    /// `IBV_REREG_MR_ERR_INPUT`: the region is as it was. So it always is with us.
    const AS_IT_WAS: c_int = -1;
    const TRANSLATION: c_int = 1 << 0;
    const PD: c_int = 1 << 1;
    const ACCESS: c_int = 1 << 2;
    let changed = || -> Result<()> {
        let has = |bit| flags & bit != 0;
        if flags & !(TRANSLATION | PD | ACCESS) != 0 || flags == 0 {
            return Err(Errno::INVALID);
        }
        if has(PD) && pd.is_null() || has(TRANSLATION) && (address.is_null() || length == 0) {
            return Err(Errno::INVALID);
        }
        let access = if has(ACCESS) { Some(rights(access.cast_unsigned())?) } else { None };
        // SAFETY: region and domains are ours.
        let (object, before, after) = unsafe { (Mr::of(mr), Pd::of((*mr).pd), has(PD).then(|| Pd::of(pd))) };
        let mut region = object.own.lock().unwrap_or_else(PoisonError::into_inner);
        let region = region.as_mut().ok_or(Errno::INVALID)?;
        let change = Reregistration { pd: after.map(|after| &after.own.pd), access, ..Reregistration::default() };
        if has(TRANSLATION) {
            // SAFETY: the program vouches for the memory until the region ends, as verbs demand.
            unsafe { region.reregister_at(&change, address.cast(), length, address.addr() as u64) }?;
        } else {
            region.reregister(&change)?;
        }
        // SAFETY: as above.
        unsafe {
            if let Some(after) = after {
                after.own.users.add();
                before.own.users.remove();
                (*mr).pd = pd;
            }
            if has(TRANSLATION) {
                ((*mr).addr, (*mr).length) = (address, length);
            }
        }
        Ok(())
    };
    changed().map_or_else(
        |error| {
            errno::set(error);
            AS_IT_WAS
        },
        |()| 0,
    )
}

/// `ibv_dereg_mr`. A region that a memory window is bound to stays.
pub(crate) unsafe extern "C" fn deregister(mr: *mut Face) -> c_int {
    let _whole = NoCancellation::new();
    let ended = || -> Result<()> {
        // SAFETY: the program's region is ours, and so is its domain.
        let (object, domain) = unsafe { (Mr::of(mr), Pd::of((*mr).pd)) };
        let mut own = object.own.lock().unwrap_or_else(PoisonError::into_inner);
        match own.take().ok_or(Errno::INVALID)?.deregister() {
            // With the daemon, regions are gone.
            Err((region, error)) if !error.is_fatal() => {
                *own = Some(region);
                return Err(error.into());
            }
            _ => drop(own),
        }
        // SAFETY: the program no longer uses it.
        drop(unsafe { Mr::free(mr) });
        domain.own.users.remove();
        Ok(())
    };
    errno::number(ended())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Beside any other right, also where it would open all of the address space.
    #[test]
    fn on_demand_paging_is_refused() {
        for others in [0, LOCAL_WRITE, LOCAL_WRITE | NEEDS_LOCAL_WRITE] {
            assert_eq!(rights(others | ON_DEMAND).err(), Some(Errno::UNSUPPORTED));
        }
        assert!(rights(LOCAL_WRITE | NEEDS_LOCAL_WRITE).is_ok());
    }
}
