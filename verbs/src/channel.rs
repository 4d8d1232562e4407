//! Completion channels. The fd that a program polls is the client's end of the socket by which the
//! daemon tells: it turns readable by itself when the daemon dies, and the program's O_NONBLOCK on
//! it decides whether we wait.
#![expect(unsafe_code, reason = "objects of C")]

use std::{
    collections::HashMap,
    ffi::{c_int, c_void},
    os::fd::{AsFd as _, AsRawFd as _},
    sync::{Mutex, MutexGuard, PoisonError},
};

use roced_client::{CompletionChannel, NoCancellation};

use crate::{
    abi::{
        context::Context as Face,
        object::{CompChannel as ChannelFace, Cq as CqFace},
    },
    context,
    cq::Cq,
    errno::{self, Errno, Result},
    object::{Object, Pointer},
};

/// A completion channel.
pub(crate) type VerbsChannel = Object<ChannelFace, ChannelState>;

/// The library's part of a channel.
pub(crate) struct ChannelState {
    pub(crate) channel: CompletionChannel,
    /// The queues that report to it, by number.
    cqs: Mutex<HashMap<u32, Pointer<Cq>>>,
}

impl ChannelState {
    /// The queues that report to it.
    pub(crate) fn cqs(&self) -> MutexGuard<'_, HashMap<u32, Pointer<Cq>>> {
        self.cqs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `ibv_create_comp_channel`.
pub(crate) unsafe extern "C" fn create(context: *mut Face) -> *mut ChannelFace {
    let _whole = NoCancellation::new();
    let made = || -> Result<*mut ChannelFace> {
        // SAFETY: the program's context is ours.
        let channel = unsafe { context::of(context) }.device.channel()?;
        let fd = channel.as_fd().as_raw_fd();
        // The daemon made both ends in one call, as such that do not wait. Whether ours does is the
        // program's choice, which begins with waiting. SAFETY: two calls that change nothing but
        // the flags of this fd.
        unsafe { libc::fcntl(fd, libc::F_SETFL, libc::fcntl(fd, libc::F_GETFL) & !libc::O_NONBLOCK) };
        let face = ChannelFace { context, fd, refcnt: 0 };
        Ok(VerbsChannel::leak(face, ChannelState { channel, cqs: Mutex::default() }).cast())
    };
    errno::pointer(made())
}

/// `ibv_destroy_comp_channel`.
pub(crate) unsafe extern "C" fn destroy(channel: *mut ChannelFace) -> c_int {
    let _whole = NoCancellation::new();
    // SAFETY: the program's channel is ours, and is unused when no queue reports to it.
    unsafe {
        if !VerbsChannel::of(channel).own.cqs().is_empty() {
            return errno::number(Err(Errno::BUSY));
        }
        drop(VerbsChannel::free(channel));
    }
    0
}

/// `ibv_get_cq_event`.
pub(crate) unsafe extern "C" fn get_event(
    channel: *mut ChannelFace,
    cq: *mut *mut CqFace,
    cq_context: *mut *mut c_void,
) -> c_int {
    // SAFETY: the program's channel is ours.
    let own = &unsafe { VerbsChannel::of(channel) }.own;
    let next = || -> Result<()> {
        loop {
            let cqn = own.channel.receive()?;
            // The destruction of a queue removes it from the table first, and waits for
            // acknowledgment of delivered events.
            let cqs = own.cqs();
            let Some(Pointer(found)) = cqs.get(&cqn) else { continue };
            // SAFETY: it is in the table; the program gave room for both pointers.
            unsafe {
                (**found).own.completions.give();
                let face = (**found).face();
                cq.write(face.cast());
                cq_context.write((*face).cq_context);
            }
            return Ok(());
        }
    };
    errno::minus_one(next())
}

/// `ibv_ack_cq_events`.
pub(crate) unsafe extern "C" fn ack(cq: *mut CqFace, events: u32) {
    // SAFETY: the program's queue is ours.
    unsafe { Cq::of(cq) }.own.completions.acknowledge(events);
}
