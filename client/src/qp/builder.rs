//! Creation of queue pairs: options, the call to the daemon, and mapping of the rings.

use std::sync::{Arc, atomic::AtomicU32};

use roced_abi::{
    control::{CreateQp, CreateQpRequest, DestroyQp, Handle},
    layout::QpLayout,
};
use roced_types::{QpSizes, state};

use super::QueuePair;
use crate::{
    cq::{CompletionQueue, QpWork},
    error::{Error, Result},
    exclusive::Exclusive,
    mapping::{ClientMapping, Mode, qp_rings},
    outstanding::Outstanding,
    pd::ProtectionDomain,
    post_side::PostSide,
    service::ServiceType,
    srq::SharedReceiveQueue,
};

/// Options of a queue pair to be created.
///
/// ```no_run
/// # fn main() -> roced_client::Result<()> {
/// # let device = roced_client::Device::open("roce0")?;
/// let (pd, cq) = (device.protection_domain()?, device.completion_queue(512)?);
/// let qp = pd.queue_pair(&cq, &cq).send_wrs(128).recv_wrs(128).inline_bytes(220).create()?;
/// println!("{}", qp.address(0)?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use = "it is made by `create`"]
pub struct QpBuilder<'a> {
    pd: &'a ProtectionDomain,
    send_cq: &'a CompletionQueue,
    recv_cq: &'a CompletionQueue,
    service: ServiceType,
    sizes: QpSizes,
    signal_all: bool,
    srq: Option<&'a SharedReceiveQueue>,
    single_threaded: bool,
    pkey_index: u32,
}

impl ProtectionDomain {
    /// Starts to configure a queue pair; its sends complete into `send_cq` and its receives into
    /// `recv_cq`.
    pub fn queue_pair<'a>(&'a self, send_cq: &'a CompletionQueue, recv_cq: &'a CompletionQueue) -> QpBuilder<'a> {
        QpBuilder::new(self, send_cq, recv_cq)
    }
}

impl<'a> QpBuilder<'a> {
    pub(crate) const fn new(
        pd: &'a ProtectionDomain,
        send_cq: &'a CompletionQueue,
        recv_cq: &'a CompletionQueue,
    ) -> Self {
        let sizes = QpSizes { send_wrs: 64, recv_wrs: 64, send_sges: 4, recv_sges: 4, inline_bytes: 64 };
        Self {
            pd,
            send_cq,
            recv_cq,
            service: ServiceType::Rc,
            sizes,
            signal_all: false,
            srq: None,
            single_threaded: false,
            pkey_index: 0,
        }
    }

    /// Sets the transport service. Default: reliable connection.
    pub const fn service(mut self, service: ServiceType) -> Self {
        self.service = service;
        self
    }

    /// Sets the number of send work requests outstanding at a time, rounded up to a power of two.
    /// Default: 64. Choose more than the program keeps outstanding, see [`QueuePair::post_send`].
    pub const fn send_wrs(mut self, wrs: u32) -> Self {
        self.sizes.send_wrs = wrs;
        self
    }

    /// Sets the number of receive work requests outstanding at a time, rounded up to a power of
    /// two. Default: 64. Choose more than the program keeps outstanding, see
    /// [`QueuePair::post_recv`].
    pub const fn recv_wrs(mut self, wrs: u32) -> Self {
        self.sizes.recv_wrs = wrs;
        self
    }

    /// Sets the number of scatter/gather entries of a send, at most 32. Default: 4.
    pub const fn send_sges(mut self, sges: u32) -> Self {
        self.sizes.send_sges = sges;
        self
    }

    /// Sets the number of scatter/gather entries of a receive, at most 32. Default: 4.
    pub const fn recv_sges(mut self, sges: u32) -> Self {
        self.sizes.recv_sges = sges;
        self
    }

    /// Sets the number of bytes of inline data of a send, at most 512. Default: 64.
    pub const fn inline_bytes(mut self, bytes: u32) -> Self {
        self.sizes.inline_bytes = bytes;
        self
    }

    /// Makes every send generate a completion, as if it were signaled.
    pub const fn signal_all(mut self) -> Self {
        self.signal_all = true;
        self
    }

    /// Makes the queue pair take its receives from a shared receive queue; its own receive sizes
    /// are ignored.
    pub const fn shared_receives(mut self, srq: &'a SharedReceiveQueue) -> Self {
        self.srq = Some(srq);
        self
    }

    /// Sets the partition, as an index of [`crate::PortAttributes::pkeys`]. Default: 0.
    pub const fn pkey_index(mut self, index: u32) -> Self {
        self.pkey_index = index;
        self
    }

    /// Omits the locks of the queue pair, which saves some ten nanoseconds for each call that
    /// posts.
    ///
    /// # Safety
    /// At any time, at most one thread posts to the queue pair, modifies it, or has a
    /// [`SendBatch`](crate::SendBatch) of it, and no thread does one of these in the middle of
    /// another.
    #[expect(unsafe_code, reason = "has preconditions that no type can express")]
    pub const unsafe fn single_threaded(mut self) -> Self {
        self.single_threaded = true;
        self
    }

    #[expect(unsafe_code, reason = "passes the preconditions on")]
    fn exclusive<T>(&self, value: T) -> Exclusive<T> {
        if self.single_threaded {
            // SAFETY: the caller of `single_threaded` promised it; each method releases its access
            // before it returns, except for the batch named in the promise.
            unsafe { Exclusive::promised(value) }
        } else {
            Exclusive::locked(value)
        }
    }

    /// Creates the queue pair, in state RESET.
    ///
    /// # Errors
    /// Sizes or the session's limits; objects of another device; no memory; the daemon is gone.
    pub fn create(self) -> Result<QueuePair> {
        QueuePair::create(&self)
    }
}

impl QueuePair {
    fn create(builder: &QpBuilder<'_>) -> Result<Self> {
        let pd = &builder.pd.inner;
        let device = &pd.device;
        let (send_cq, recv_cq) = (builder.send_cq, builder.recv_cq);
        for (object, there) in [
            ("the shared receive queue", builder.srq.map_or(device, |srq| &srq.inner.pd.device)),
            ("the completion queue of sends", &send_cq.inner.device),
            ("the completion queue of receives", &recv_cq.inner.device),
        ] {
            if !Arc::ptr_eq(there, device) {
                return Err(Error::OtherDevice { object, owner: "the protection domain" });
            }
        }
        let (reply, [fd]) = device.session.call_with_fds::<CreateQp, 1>(CreateQpRequest {
            pd: pd.handle,
            send_cq: send_cq.cqn(),
            recv_cq: recv_cq.cqn(),
            service: builder.service.number(),
            send_wrs: builder.sizes.send_wrs,
            recv_wrs: builder.sizes.recv_wrs,
            send_sges: builder.sizes.send_sges,
            recv_sges: builder.sizes.recv_sges,
            inline_bytes: builder.sizes.inline_bytes,
            signal_all: builder.signal_all.into(),
            srq: builder.srq.map_or(0, SharedReceiveQueue::srqn),
        })?;
        // The queue pair now exists in the daemon: every later failure must destroy it there as
        // well.
        let ended = |error| {
            let _ = device.session.call::<DestroyQp>(Handle { handle: reply.qpn });
            error
        };
        let sizes = reply.sizes();
        if sizes.granted() != Some(sizes) || reply.worker as usize >= device.workers.len() {
            return Err(ended(Error::Protocol { what: "an impossible queue pair" }));
        }
        let layout = QpLayout::new(sizes);
        let mapping = ClientMapping::new(&fd, layout.bytes, Mode::Populated).map_err(ended)?;
        let (send, recv) = qp_rings(&mapping, layout);
        let work = Arc::new(QpWork {
            tag: device.next_tag() & 0x7fff_ffff,
            send: Outstanding::new(sizes.send_wrs),
            recv: Outstanding::new(sizes.recv_wrs),
            shared: builder.srq.map(|srq| Arc::clone(&srq.inner.work)),
            send_cq: Arc::downgrade(&send_cq.inner),
            recv_cq: Arc::downgrade(&recv_cq.inner),
        });
        send_cq.inner.add(reply.qpn, &work);
        recv_cq.inner.add(reply.qpn, &work);
        Ok(Self {
            pd: Arc::clone(pd),
            send_cq: send_cq.clone(),
            recv_cq: recv_cq.clone(),
            srq: builder.srq.cloned(),
            qpn: reply.qpn,
            service: builder.service,
            pkey_index: builder.pkey_index,
            worker: reply.worker,
            doorbell: reply.doorbell,
            sizes,
            psn: random_psn().map_err(ended)?,
            state: AtomicU32::new(state::RESET),
            work,
            send: builder.exclusive(PostSide::new(send)),
            recv: builder.exclusive(PostSide::new(recv)),
        })
    }
}

/// Returns an unpredictable PSN.
fn random_psn() -> Result<u32> {
    let random = getrandom::u32().map_err(|_| Error::Kernel { call: "getrandom", errno: nix::errno::Errno::EIO })?;
    Ok(random & 0x00ff_ffff)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bit that is random is the same in all with a chance of 2^-63.
    #[test]
    fn first_psns_use_all_bits() {
        let psns = [(); 64].map(|()| random_psn().expect("the kernel has random numbers"));
        let varying = psns.iter().fold(0, |bits, psn| bits | psn ^ psns[0]);
        assert_eq!(varying, 0x00ff_ffff);
    }
}
