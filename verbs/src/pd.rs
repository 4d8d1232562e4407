//! Protection domains, thread domains, and parent domains that join them.
#![expect(unsafe_code, reason = "objects of C")]

use std::ffi::c_int;

use roced_client::{NoCancellation, ProtectionDomain};

use crate::{
    abi::{
        attributes::{ParentDomainInitAttr, TdInitAttr},
        context::Context as Face,
        object::{Pd as PdFace, Td as TdFace},
    },
    context,
    errno::{self, Errno, Result},
    object::{Object, Pointer, Users},
};

/// A protection domain, or a parent domain, which is one under another name.
pub(crate) type Pd = Object<PdFace, PdState>;

/// A thread domain: a promise of the program that one thread at a time uses objects created in it.
/// Queue pairs, completion queues and shared receive queues then have no locks.
pub(crate) type Td = Object<TdFace, Users>;

/// The library's part of a protection domain.
pub(crate) struct PdState {
    pub(crate) pd: ProtectionDomain,
    pub(crate) users: Users,
    /// Of a parent domain: its parts.
    parent: Option<(Pointer<Pd>, Option<Pointer<Td>>)>,
}

impl PdState {
    /// The program promised that one thread at a time uses objects created in it.
    pub(crate) const fn is_of_one_thread(&self) -> bool {
        matches!(&self.parent, Some((_, Some(_))))
    }
}

/// `ibv_alloc_pd`.
pub(crate) unsafe extern "C" fn alloc(context: *mut Face) -> *mut PdFace {
    let _whole = NoCancellation::new();
    let made = || -> Result<*mut PdFace> {
        // SAFETY: the program's context is ours.
        let pd = unsafe { context::of(context) }.device.protection_domain()?;
        Ok(new(context, PdState { pd, users: Users::default(), parent: None }))
    };
    errno::pointer(made())
}

fn new(context: *mut Face, own: PdState) -> *mut PdFace {
    let handle = own.pd.handle();
    Pd::leak(PdFace { context, handle }, own).cast()
}

/// `ibv_dealloc_pd`.
pub(crate) unsafe extern "C" fn dealloc(pd: *mut PdFace) -> c_int {
    let _whole = NoCancellation::new();
    let ended = || -> Result<()> {
        // SAFETY: the program's domain is ours, and is unused when it has no objects.
        let own = unsafe {
            Pd::of(pd).own.users.none()?;
            Pd::free(pd)
        };
        if let Some((Pointer(pd), td)) = own.parent {
            // SAFETY: the parts of a parent domain outlive it.
            unsafe {
                (*pd).own.users.remove();
                if let Some(Pointer(td)) = td {
                    (*td).own.remove();
                }
            }
        }
        Ok(())
    };
    errno::number(ended())
}

/// `ibv_alloc_parent_domain`. Memory that it would allocate by the program's functions is the
/// daemon's here.
pub(crate) unsafe extern "C" fn alloc_parent(context: *mut Face, attr: *mut ParentDomainInitAttr) -> *mut PdFace {
    let _whole = NoCancellation::new();
    /// Allocators, and their context.
    const KNOWN: u32 = 1 << 0 | 1 << 1;
    let made = || -> Result<*mut PdFace> {
        // SAFETY: the program passed attributes with domains of ours.
        let attr = unsafe { &*attr };
        if attr.pd.is_null() {
            return Err(Errno::INVALID);
        }
        if attr.comp_mask & !KNOWN != 0 {
            return Err(Errno::UNSUPPORTED);
        }
        // SAFETY: as above.
        let pd = unsafe { Pd::of(attr.pd) };
        pd.own.users.add();
        let td = (!attr.td.is_null()).then(|| {
            // SAFETY: as above.
            let td = unsafe { Td::of(attr.td) };
            td.own.add();
            Pointer(std::ptr::from_ref(td))
        });
        let parent = Some((Pointer(std::ptr::from_ref(pd)), td));
        Ok(new(context, PdState { pd: pd.own.pd.clone(), users: Users::default(), parent }))
    };
    errno::pointer(made())
}

/// `ibv_alloc_td`.
pub(crate) unsafe extern "C" fn alloc_td(context: *mut Face, attr: *mut TdInitAttr) -> *mut TdFace {
    let _whole = NoCancellation::new();
    // SAFETY: the program gave attributes, or none.
    if !attr.is_null() && unsafe { (*attr).comp_mask } != 0 {
        return errno::pointer(Err(Errno::INVALID));
    }
    Td::leak(TdFace { context }, Users::default()).cast()
}

/// `ibv_dealloc_td`.
pub(crate) unsafe extern "C" fn dealloc_td(td: *mut TdFace) -> c_int {
    let _whole = NoCancellation::new();
    let ended = || -> Result<()> {
        // SAFETY: the program's domain is ours, and is unused when no parent domain uses it.
        unsafe {
            Td::of(td).own.none()?;
            Td::free(td);
        }
        Ok(())
    };
    errno::number(ended())
}
