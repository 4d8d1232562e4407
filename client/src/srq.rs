//! Shared receive queues: receives for many queue pairs.

use std::sync::Arc;

use roced_abi::{
    control::{CreateSrq, CreateSrqRequest, DestroySrq, Handle, ModifySrq, ModifySrqRequest, QuerySrq},
    layout::{RECV_SLOT_WORDS_MAX, SrqLayout},
    wqe::RecvWqe,
};
use roced_types::{QpSizes, event::EventSubject};
use zerocopy::IntoBytes;

use crate::{
    error::{Error, Result},
    exclusive::Exclusive,
    mapping::{ClientMapping, Mode, srq_ring},
    outstanding::{Cookie, Queue},
    pd::{PdInner, ProtectionDomain},
    post_side::{PostSide, all_that_fit},
    shared_work::SharedWork,
    work::RecvRequest,
};

/// A queue of receives shared by all queue pairs made with [`crate::QpBuilder::shared_receives`].
/// Each of them takes the oldest receive when a message for it begins.
///
/// A receive completes in the completion queue of the queue pair that took it. Clones name the same
/// queue, which is destroyed when the last clone and every queue pair that uses it are gone. The
/// receives left in it do not complete, nor do they when the daemon dies.
///
/// A queue pair that fails flushes the receive that it had taken, if any, and no other; the device
/// reports when that is done ([`crate::DeviceEvent::LastWqe`]).
///
/// ```no_run
/// # use roced_client::{Access, Device, RecvRequest};
/// # fn main() -> roced_client::Result<()> {
/// # let device = Device::open("roce0")?;
/// # let (pd, cq) = (device.protection_domain()?, device.completion_queue(64)?);
/// let srq = pd.shared_receive_queue(256, 1)?;
/// let memory = pd.allocate(256 * 4096, Access::LOCAL_WRITE)?;
/// for slot in 0..256 {
///     let sges = [memory.sge(slot * 4096..(slot + 1) * 4096)];
///     srq.post_recv(&RecvRequest::new(&sges).id(slot as u64))?;
/// }
/// let a = pd.queue_pair(&cq, &cq).shared_receives(&srq).create()?;
/// let b = pd.queue_pair(&cq, &cq).shared_receives(&srq).create()?;
/// # let _ = (a, b);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct SharedReceiveQueue {
    pub(crate) inner: Arc<SrqInner>,
}

/// Producer side of a shared receive queue.
pub(crate) type SrqPost = PostSide<RECV_SLOT_WORDS_MAX>;

#[derive(Debug)]
pub(crate) struct SrqInner {
    pub(crate) pd: Arc<PdInner>,
    srqn: u32,
    worker: u32,
    doorbell: u32,
    sizes: QpSizes,
    pub(crate) work: Arc<SharedWork>,
    side: Exclusive<SrqPost>,
}

impl ProtectionDomain {
    /// Creates a shared receive queue for at least `wrs` receives of at most `sges` scatter/gather
    /// entries (32 at most), into memory of this domain.
    ///
    /// A full queue can refuse a receive directly after a completion was reaped: see
    /// [`SharedReceiveQueue::post_recv`] for the size to choose.
    ///
    /// # Errors
    /// Sizes or the session's limits; no memory; the daemon is gone.
    pub fn shared_receive_queue(&self, wrs: u32, sges: u32) -> Result<SharedReceiveQueue> {
        SharedReceiveQueue::create(self, wrs, sges, Exclusive::locked)
    }

    /// Creates a shared receive queue as [`Self::shared_receive_queue`], but without the lock for
    /// posting.
    ///
    /// # Safety
    /// At any time, at most one thread posts to the queue. (Any thread may reap completions
    /// meanwhile.)
    ///
    /// # Errors
    /// Those of [`Self::shared_receive_queue`].
    #[expect(unsafe_code, reason = "has preconditions that no type can express")]
    pub unsafe fn single_threaded_shared_receive_queue(&self, wrs: u32, sges: u32) -> Result<SharedReceiveQueue> {
        // SAFETY: the caller promised it; posting releases its access before it returns.
        SharedReceiveQueue::create(self, wrs, sges, |side| unsafe { Exclusive::promised(side) })
    }
}

impl SharedReceiveQueue {
    /// Creates a shared receive queue. `exclusive` wraps its producer side in the lock, or promise,
    /// that keeps threads apart.
    pub(crate) fn create(
        pd: &ProtectionDomain,
        wrs: u32,
        sges: u32,
        exclusive: impl FnOnce(SrqPost) -> Exclusive<SrqPost>,
    ) -> Result<Self> {
        let pd = &pd.inner;
        let device = &pd.device;
        let request = CreateSrqRequest { pd: pd.handle, wrs, sges };
        let (reply, [fd]) = device.session.call_with_fds::<CreateSrq, 1>(request)?;
        // The queue now exists in the daemon: every later failure must destroy it there as well.
        let ended = |error| {
            let _ = device.session.call::<DestroySrq>(Handle { handle: reply.srqn });
            error
        };
        let got = CreateSrqRequest { pd: pd.handle, wrs: reply.wrs, sges: reply.sges };
        let sizes = got.sizes().granted().filter(|sizes| (sizes.recv_wrs, sizes.recv_sges) == (reply.wrs, reply.sges));
        let sizes = sizes.filter(|_| (reply.worker as usize) < device.workers.len());
        let sizes = sizes.ok_or_else(|| ended(Error::Protocol { what: "an impossible shared receive queue" }))?;
        let layout = SrqLayout::new(sizes);
        let mapping = ClientMapping::new(&fd, layout.bytes, Mode::Populated).map_err(ended)?;
        let inner = SrqInner {
            pd: Arc::clone(pd),
            srqn: reply.srqn,
            worker: reply.worker,
            doorbell: reply.doorbell,
            sizes,
            work: Arc::new(SharedWork::new(device.next_tag() & 0x7fff_ffff, sizes.recv_wrs)),
            side: exclusive(PostSide::new(srq_ring(&mapping, layout))),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Number of the queue.
    pub fn srqn(&self) -> u32 {
        self.inner.srqn
    }

    /// Number of receives that the queue holds, at least the number requested.
    pub fn wrs(&self) -> u32 {
        self.inner.sizes.recv_wrs
    }

    /// Scatter/gather entries per receive.
    pub fn sges(&self) -> u32 {
        self.inner.sizes.recv_sges
    }

    /// Number of receives that have not been reaped.
    pub fn outstanding(&self) -> u32 {
        self.inner.work.len()
    }

    /// Posts a receive.
    ///
    /// The queue can be full ([`Error::QueueFull`]) directly after a completion was reaped: a
    /// completion may arrive before the daemon's worker has released the slot of its receive. Make
    /// the queue larger than the number of receives outstanding at a time, or post again.
    ///
    /// # Errors
    /// A full queue; more scatter/gather entries than the queue supports; the daemon is gone. No
    /// receive was posted on error.
    pub fn post_recv(&self, request: &RecvRequest<'_>) -> Result<()> {
        self.post_recvs(std::slice::from_ref(request)).map(drop)
    }

    /// Posts receives, in order, with one doorbell. Returns the number posted: fewer than given if
    /// the queue is full or a receive is invalid; post the rest again to obtain the error.
    ///
    /// # Errors
    /// Those of [`Self::post_recv`], if the first receive could not be posted.
    pub fn post_recvs(&self, requests: &[RecvRequest<'_>]) -> Result<usize> {
        let inner = &*self.inner;
        let mut side = inner.side.enter();
        let posted = all_that_fit(requests, |request| inner.push(&mut side, request));
        if matches!(posted, Ok(1..)) {
            side.ring.publish();
            inner.pd.device.ring(inner.worker, inner.doorbell);
        }
        posted
    }

    /// Requests one event when the queue has fewer than `limit` receives
    /// ([`crate::DeviceEvent::SrqLimit`]); 0 disarms. A queue that already has fewer reports at
    /// once: post before arming again.
    ///
    /// # Errors
    /// A limit above the capacity; the daemon is gone.
    pub fn arm_limit(&self, limit: u32) -> Result<()> {
        self.inner.pd.device.session.call::<ModifySrq>(ModifySrqRequest { srqn: self.inner.srqn, limit }).map(drop)
    }

    /// Returns the armed limit; 0 if it has fired or none was set.
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn limit(&self) -> Result<u32> {
        Ok(self.inner.pd.device.session.call::<QuerySrq>(Handle { handle: self.inner.srqn })?.limit)
    }
}

impl SrqInner {
    fn push(&self, side: &mut PostSide<RECV_SLOT_WORDS_MAX>, request: &RecvRequest<'_>) -> Result<()> {
        if request.sges.len() > self.sizes.recv_sges as usize {
            return Err(Error::TooManySges { asked: request.sges.len(), limit: self.sizes.recv_sges });
        }
        if self.pd.device.session.is_gone() {
            return Err(Error::DaemonGone);
        }
        let full = || Error::QueueFull { queue: "shared receive", depth: self.sizes.recv_wrs };
        let number = self.work.add(request.wr_id).ok_or_else(full)?;
        let cookie = Cookie::new(Queue::Recv, self.work.tag, number);
        let wqe = RecvWqe { wr_id: cookie.0, num_sge: request.sges.len() as u8, ..RecvWqe::default() };
        match side.push([wqe.as_bytes(), request.sges.as_bytes()]) {
            Ok(true) => Ok(()),
            // A completion may arrive before the daemon has returned its slot: the ring is full for
            // that moment.
            Ok(false) => {
                self.work.complete(cookie);
                Err(full())
            }
            Err(error) => {
                self.work.complete(cookie);
                Err(error)
            }
        }
    }
}

impl Drop for SrqInner {
    fn drop(&mut self) {
        self.pd.device.session.destroy::<DestroySrq>(EventSubject::Srq, self.srqn);
    }
}
