//! Opened devices.
#![expect(unsafe_code, reason = "the struct that the inlines of the header call through")]

use std::{
    collections::HashMap,
    ffi::c_int,
    mem,
    sync::{Mutex, MutexGuard, PoisonError, atomic::AtomicBool},
};

use roced_client::{Device as ClientDevice, DeviceAttributes, NoCancellation};

use crate::{
    abi::{
        context::{Context as Face, VerbsContext},
        object::{Cq as CqFace, Qp as QpFace, Srq as SrqFace},
    },
    object::{Object, Pointer},
};

/// An opened device: a session with the daemon.
pub(crate) type Context = Object<VerbsContext, ContextState>;

/// The library's part of a context.
pub(crate) struct ContextState {
    pub(crate) device: ClientDevice,
    /// They do not change while the session lasts.
    pub(crate) attributes: DeviceAttributes,
    /// Targets of events.
    pub(crate) objects: Mutex<ContextObjects>,
    /// A program was told that the device is lost.
    pub(crate) told_fatal: AtomicBool,
}

/// Objects by their numbers.
#[derive(Default)]
pub(crate) struct ContextObjects {
    pub(crate) qps: HashMap<u32, Pointer<QpFace>>,
    pub(crate) cqs: HashMap<u32, Pointer<CqFace>>,
    pub(crate) srqs: HashMap<u32, Pointer<SrqFace>>,
}

impl ContextState {
    /// The table of objects.
    pub(crate) fn objects(&self) -> MutexGuard<'_, ContextObjects> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The context that a program's pointer names, which points to the last part of it.
///
/// # Safety
/// It came from `ibv_open_device` and was not closed.
pub(crate) unsafe fn of<'a>(context: *mut Face) -> &'a ContextState {
    // SAFETY: the caller vouches that it is one of ours.
    &unsafe { Context::of(whole(context)) }.own
}

fn whole(context: *mut Face) -> *mut VerbsContext {
    context.wrapping_byte_sub(mem::offset_of!(VerbsContext, context)).cast()
}

/// `ibv_close_device`. The session ends when the last object made of it does.
pub(crate) unsafe extern "C" fn close(context: *mut Face) -> c_int {
    let _whole = NoCancellation::new();
    // SAFETY: it is one of ours, and the program no longer uses it.
    drop(unsafe { Context::free(whole(context)) });
    0
}
