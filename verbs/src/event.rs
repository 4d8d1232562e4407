//! Asynchronous events.
#![expect(unsafe_code, reason = "objects of C, and events in the program's memory")]

use std::{
    ffi::{c_int, c_void},
    os::fd::{AsFd as _, AsRawFd as _},
    ptr,
    sync::atomic::Ordering,
};

use roced_client::{DeviceEvent, Error};

use crate::{
    abi::{completion::AsyncEvent, context::Context as Face, object::CqEx, work::QpEx},
    context,
    cq::Cq,
    errno::{self, Errno, Result},
    qp::Qp,
    query::PORT,
    srq::{self, Srq},
};

/// Numbers of `enum ibv_event_type`.
mod kind {
    pub(super) const CQ_ERR: u32 = 0;
    pub(super) const QP_FATAL: u32 = 1;
    pub(super) const QP_REQ_ERR: u32 = 2;
    pub(super) const QP_ACCESS_ERR: u32 = 3;
    pub(super) const COMM_EST: u32 = 4;
    pub(super) const SQ_DRAINED: u32 = 5;
    pub(super) const PATH_MIG: u32 = 6;
    pub(super) const PATH_MIG_ERR: u32 = 7;
    pub(super) const DEVICE_FATAL: u32 = 8;
    pub(super) const PORT_ACTIVE: u32 = 9;
    pub(super) const PORT_ERR: u32 = 10;
    pub(super) const SRQ_ERR: u32 = 14;
    pub(super) const SRQ_LIMIT_REACHED: u32 = 15;
    pub(super) const QP_LAST_WQE_REACHED: u32 = 16;
    pub(super) const GID_CHANGE: u32 = 18;
}

/// `ibv_get_async_event`.
pub(crate) unsafe extern "C" fn get(context: *mut Face, to: *mut AsyncEvent) -> c_int {
    // SAFETY: the program's context is ours.
    let own = unsafe { context::of(context) };
    errno::minus_one(next(own).map(|event| {
        // SAFETY: the program gave room for an event.
        unsafe { to.write(event) };
    }))
}

fn next(own: &context::ContextState) -> Result<AsyncEvent> {
    loop {
        match own.device.next_event() {
            Ok(Some(event)) => {
                // An object that is gone meanwhile has no receiver of its event.
                if let Some(event) = give(own, event) {
                    return Ok(event);
                }
            }
            Ok(None) => wait(own)?,
            // The device is lost: this is told once, and is the last that is told.
            Err(Error::DaemonGone) if !own.told_fatal.swap(true, Ordering::Relaxed) => {
                return Ok(AsyncEvent { element: ptr::null_mut(), event_type: kind::DEVICE_FATAL });
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Waits for the fd, unless the program made it one that does not wait.
fn wait(own: &context::ContextState) -> Result<()> {
    let fd = own.device.as_fd().as_raw_fd();
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: the fd lives as long as the device; `poll` is one entry.
    unsafe {
        if libc::fcntl(fd, libc::F_GETFL) & libc::O_NONBLOCK != 0 {
            return Err(Errno(libc::EAGAIN));
        }
        if libc::poll(&raw mut poll, 1, -1) < 0 {
            return Err(Errno(*libc::__errno_location()));
        }
    }
    Ok(())
}

/// The event as the program sees it; it counts as given out from here on.
fn give(own: &context::ContextState, event: DeviceEvent) -> Option<AsyncEvent> {
    let objects = own.objects();
    let (element, event_type): (*mut c_void, u32) = match event {
        DeviceEvent::QpFatal { qpn } => (qp(&objects, qpn)?, kind::QP_FATAL),
        DeviceEvent::QpRequestError { qpn } => (qp(&objects, qpn)?, kind::QP_REQ_ERR),
        DeviceEvent::QpAccessError { qpn } => (qp(&objects, qpn)?, kind::QP_ACCESS_ERR),
        DeviceEvent::CommunicationEstablished { qpn } => (qp(&objects, qpn)?, kind::COMM_EST),
        DeviceEvent::SqDrained { qpn } => (qp(&objects, qpn)?, kind::SQ_DRAINED),
        DeviceEvent::LastWqe { qpn } => (qp(&objects, qpn)?, kind::QP_LAST_WQE_REACHED),
        DeviceEvent::SrqLimit { srqn } => {
            // SAFETY: destruction of an object removes it from the table first, and the table is
            // locked.
            let srq = unsafe { Srq::of(objects.srqs.get(&srqn)?.0.cast_mut()) };
            srq.own.events.give();
            (srq.face().cast(), kind::SRQ_LIMIT_REACHED)
        }
        DeviceEvent::CqError { cqn } => {
            // SAFETY: as above.
            let cq = unsafe { Cq::of(objects.cqs.get(&cqn)?.0.cast_mut()) };
            cq.own.events.give();
            (cq.face().cast(), kind::CQ_ERR)
        }
        DeviceEvent::DeviceFatal => (ptr::null_mut(), kind::DEVICE_FATAL),
        DeviceEvent::PortActive => (port(), kind::PORT_ACTIVE),
        DeviceEvent::PortDown => (port(), kind::PORT_ERR),
        DeviceEvent::GidChange => (port(), kind::GID_CHANGE),
        // Of a later library.
        _ => return None,
    };
    Some(AsyncEvent { element, event_type })
}

fn qp(objects: &context::ContextObjects, qpn: u32) -> Option<*mut c_void> {
    // SAFETY: as above.
    let qp = unsafe { Qp::of(objects.qps.get(&qpn)?.0.cast_mut()) };
    qp.own.events.give();
    Some(qp.face().cast())
}

/// The number of the port, in the first bytes of the union.
fn port() -> *mut c_void {
    ptr::without_provenance_mut(PORT.into())
}

/// `ibv_ack_async_event`.
pub(crate) unsafe extern "C" fn ack(event: *mut AsyncEvent) {
    // SAFETY: the program returns an event as it received it, so its object still exists.
    unsafe {
        let AsyncEvent { element, event_type } = event.read();
        match event_type {
            kind::QP_FATAL
            | kind::QP_REQ_ERR
            | kind::QP_ACCESS_ERR
            | kind::COMM_EST
            | kind::SQ_DRAINED
            | kind::PATH_MIG
            | kind::PATH_MIG_ERR
            | kind::QP_LAST_WQE_REACHED => Qp::of(element.cast::<QpEx>()).own.events.acknowledge(1),
            kind::SRQ_ERR | kind::SRQ_LIMIT_REACHED => {
                Srq::of(element.cast::<srq::Face>()).own.events.acknowledge(1);
            }
            kind::CQ_ERR => Cq::of(element.cast::<CqEx>()).own.events.acknowledge(1),
            _ => {}
        }
    }
}
