//! Shared receive queues: receives for many queue pairs.

use std::sync::{Arc, Mutex};

use roced_shared::abi::{
    control::{CreateSrq, CreateSrqRequest, DestroySrq, Handle, ModifySrq, ModifySrqRequest, QuerySrq},
    layout::{QpSizes, RECV_SLOT_WORDS_MAX, SrqLayout},
    wqe::RecvWqe,
};
use zerocopy::IntoBytes;

use crate::{
    error::{Error, Result},
    exclusive::Exclusive,
    mapping::{ClientMapping, Mode, srq_ring},
    outstanding::{Cookie, Queue},
    pd::{PdInner, ProtectionDomain},
    qp::{PostSide, all_that_fit},
    socket::lock,
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
        // Fails only if the session has ended, which destroys the queue as well.
        let _ = self.pd.device.session.call::<DestroySrq>(Handle { handle: self.srqn });
    }
}

/// Outstanding receives of a shared receive queue. Each has a slot, because several queue pairs
/// take receives and complete them in any order.
#[derive(Debug)]
pub(crate) struct SharedWork {
    pub(crate) tag: u32,
    slots: Mutex<Slots>,
}

#[derive(Debug)]
struct Slots {
    /// For each slot, the program's `wr_id` and the number by which the daemon knows the receive:
    /// the slot in the low bits, and above them a use count, so that an old number matches no
    /// receive.
    slots: Box<[SrqSlot]>,
    free: Vec<u32>,
}

#[derive(Clone, Copy, Debug)]
struct SrqSlot {
    wr_id: u64,
    number: u32,
    outstanding: bool,
}

impl SharedWork {
    /// Creates slots for `depth` receives, a power of two.
    fn new(tag: u32, depth: u32) -> Self {
        assert!(depth.is_power_of_two(), "granted sizes are powers of two");
        let slot = |number| SrqSlot { wr_id: 0, number, outstanding: false };
        let slots = Slots { slots: (0..depth).map(slot).collect(), free: (0..depth).rev().collect() };
        Self { tag, slots: Mutex::new(slots) }
    }

    fn len(&self) -> u32 {
        let slots = lock(&self.slots);
        (slots.slots.len() - slots.free.len()) as u32
    }

    /// Records a receive and returns its number for the daemon; `None` if there is no room.
    fn add(&self, wr_id: u64) -> Option<u32> {
        let mut slots = lock(&self.slots);
        let at = slots.free.pop()?;
        let slot = &mut slots.slots[at as usize];
        (slot.wr_id, slot.outstanding) = (wr_id, true);
        Some(slot.number)
    }

    /// Completes the receive of `cookie` and returns its `wr_id`. `None` if it is not outstanding,
    /// or belongs to another queue.
    pub(crate) fn complete(&self, cookie: Cookie) -> Option<u64> {
        if cookie.queue() != Queue::Recv || cookie.tag() != self.tag {
            return None;
        }
        let mut slots = lock(&self.slots);
        let depth = slots.slots.len() as u32;
        let at = cookie.sequence() & (depth - 1);
        let slot = &mut slots.slots[at as usize];
        if !slot.outstanding || slot.number != cookie.sequence() {
            return None;
        }
        slot.outstanding = false;
        slot.number = slot.number.wrapping_add(depth);
        let wr_id = slot.wr_id;
        slots.free.push(at);
        Some(wr_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cookie(number: u32) -> Cookie {
        Cookie::new(Queue::Recv, 5, number)
    }

    #[test]
    fn receives_complete_in_any_order_each_once() {
        let work = SharedWork::new(5, 4);
        let numbers: Vec<_> = (10..14).map(|wr_id| work.add(wr_id).expect("room")).collect();
        assert_eq!((work.add(14), work.len()), (None, 4));
        assert_eq!(work.complete(cookie(numbers[2])), Some(12));
        assert_eq!(work.complete(cookie(numbers[2])), None, "done before");
        assert_eq!(work.complete(Cookie::new(Queue::Recv, 6, numbers[1])), None, "of another queue");
        assert_eq!(work.complete(Cookie::new(Queue::Send, 5, numbers[1])), None, "no receive");
        assert_eq!((work.complete(cookie(numbers[0])), work.len()), (Some(10), 2));
        // The slot is reused, with another number.
        let again = work.add(20).expect("room");
        assert!(!numbers.contains(&again));
        assert_eq!(work.complete(cookie(numbers[0])), None, "an old number");
        assert_eq!(work.complete(cookie(again)), Some(20));
    }

    #[test]
    fn numbers_wrap() {
        let work = SharedWork::new(5, 1);
        for wr_id in 0..3 {
            lock(&work.slots).slots[0].number = u32::MAX - 1 + wr_id as u32 % 2;
            let number = work.add(wr_id).expect("room");
            assert_eq!(work.complete(cookie(number)), Some(wr_id));
        }
    }
}
