//! Queue pairs: ends of connections or datagrams, and posting of work requests.

mod builder;
mod states;

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

pub use roced_abi::control::QpStatistics;
use roced_abi::{
    control::{DestroyQp, Handle, QueryQp, QueryQpStatistics},
    layout::{RECV_SLOT_WORDS_MAX, SEND_SLOT_WORDS_MAX},
    wqe::RecvWqe,
};
pub use roced_types::QpAttributes;
use roced_types::{QpSizes, event::EventSubject, state};
use zerocopy::IntoBytes;

pub use self::builder::QpBuilder;
use crate::{
    batch::SendBatch,
    cq::{CompletionQueue, QpWork},
    device::{Device, DeviceInner},
    error::{Error, Result},
    exclusive::Exclusive,
    mapping::ProducerRing,
    outstanding::{Cookie, Queue},
    pd::PdInner,
    post_side::{PostSide, all_that_fit},
    qp_address::QpAddress,
    service::ServiceType,
    srq::SharedReceiveQueue,
    work::{RecvRequest, SendRequest, WorkPayload},
};

/// A queue pair. Any thread may post at any time. Dropping it destroys it; its work completes no
/// more.
///
/// ```no_run
/// use roced_client::{Access, ConnectOptions, Device, QpAddress, RecvRequest, SendRequest};
///
/// # fn exchange(address: QpAddress) -> roced_client::Result<QpAddress> { Ok(address) }
/// # fn main() -> roced_client::Result<()> {
/// let device = Device::open("roce0")?;
/// let (pd, cq) = (device.protection_domain()?, device.completion_queue(16)?);
/// let qp = pd.queue_pair(&cq, &cq).create()?;
/// // The peer gets this address, and sends its own, by a channel of the program: a TCP connection.
/// let peer: QpAddress = exchange(qp.address(1)?)?;
/// let memory = pd.allocate(4096, Access::LOCAL_WRITE)?;
/// qp.connect(&peer, &ConnectOptions::default())?;
/// qp.post_recv(&RecvRequest::new(&[memory.sge(..)]).id(1))?;
/// qp.post_send(&SendRequest::send_inline(b"hello").id(2).signaled())?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct QueuePair {
    pd: Arc<PdInner>,
    send_cq: CompletionQueue,
    recv_cq: CompletionQueue,
    srq: Option<SharedReceiveQueue>,
    qpn: u32,
    service: ServiceType,
    pkey_index: u32,
    worker: u32,
    doorbell: u32,
    sizes: QpSizes,
    psn: u32,
    state: AtomicU32,
    work: Arc<QpWork>,
    send: Exclusive<PostSide<SEND_SLOT_WORDS_MAX>>,
    recv: Exclusive<PostSide<RECV_SLOT_WORDS_MAX>>,
}

impl QueuePair {
    /// State that this program has moved it to: the daemon may have moved it on, to an error.
    pub(crate) fn known_state(&self) -> u32 {
        self.state.load(Ordering::Acquire)
    }

    /// Number of the queue pair.
    pub fn qpn(&self) -> u32 {
        self.qpn
    }

    /// Transport service of the queue pair.
    pub fn service(&self) -> ServiceType {
        self.service
    }

    /// Granted sizes, at least the requested ones.
    pub fn sizes(&self) -> QpSizes {
        self.sizes
    }

    /// Completion queue of the sends.
    pub fn send_cq(&self) -> &CompletionQueue {
        &self.send_cq
    }

    /// Completion queue of the receives.
    pub fn recv_cq(&self) -> &CompletionQueue {
        &self.recv_cq
    }

    /// Shared receive queue of the queue pair, if it uses one.
    pub fn srq(&self) -> Option<&SharedReceiveQueue> {
        self.srq.as_ref()
    }

    /// Number of sends that have not been reaped.
    pub fn sends_outstanding(&self) -> u32 {
        self.work.send.len()
    }

    /// Number of receives that have not been reaped.
    pub fn recvs_outstanding(&self) -> u32 {
        self.work.recv.len()
    }

    /// Returns the address that the peer needs to connect to this queue pair, with the GID at
    /// `sgid_index`.
    ///
    /// # Errors
    /// No GID at that index; the daemon is gone.
    pub fn address(&self, sgid_index: u32) -> Result<QpAddress> {
        let device = self.device();
        let entry = device.gid(sgid_index)?.ok_or(Error::NoSuchGid { index: sgid_index })?;
        let mtu_bytes = device.port()?.active_mtu_bytes;
        Ok(QpAddress { gid: entry.gid, qpn: self.qpn, psn: self.psn, mtu_bytes })
    }

    /// Queries state and attributes.
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn query(&self) -> Result<QpAttributes> {
        self.session().call::<QueryQp>(Handle { handle: self.qpn })
    }

    /// Queries the counters.
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn statistics(&self) -> Result<QpStatistics> {
        self.session().call::<QueryQpStatistics>(Handle { handle: self.qpn })
    }

    /// Posts a send work request.
    ///
    /// The queue can be full ([`Error::QueueFull`]) directly after a completion was reaped: a
    /// completion may arrive before the daemon's worker has released the slot of its request. Make
    /// the queue larger than the number of requests outstanding at a time
    /// ([`QpBuilder::send_wrs`]), or post again.
    ///
    /// # Errors
    /// A full queue; a request that exceeds the sizes; a state that accepts no sends; the daemon is
    /// gone. No request was posted on error.
    pub fn post_send(&self, request: &SendRequest<'_>) -> Result<()> {
        self.post_sends(std::slice::from_ref(request)).map(drop)
    }

    /// Posts send work requests, in order, with one doorbell. Returns the number posted: fewer than
    /// given if the queue is full or a request is invalid; post the rest again to obtain the error.
    ///
    /// # Errors
    /// Those of [`Self::post_send`], if the first request could not be posted.
    pub fn post_sends(&self, requests: &[SendRequest<'_>]) -> Result<usize> {
        let mut side = self.send.enter();
        let posted = all_that_fit(requests, |request| self.push_send(&mut side, request));
        self.finish(&side.ring, posted)
    }

    /// Posts a receive work request. The queue can be full directly after a completion was reaped,
    /// as for [`Self::post_send`].
    ///
    /// # Errors
    /// Those of [`Self::post_send`]; a queue pair with a shared receive queue, which takes the
    /// receives instead.
    pub fn post_recv(&self, request: &RecvRequest<'_>) -> Result<()> {
        self.post_recvs(std::slice::from_ref(request)).map(drop)
    }

    /// Posts receive work requests, as [`Self::post_sends`].
    ///
    /// # Errors
    /// Those of [`Self::post_sends`].
    pub fn post_recvs(&self, requests: &[RecvRequest<'_>]) -> Result<usize> {
        let mut side = self.recv.enter();
        let posted = all_that_fit(requests, |request| self.push_recv(&mut side, request));
        self.finish(&side.ring, posted)
    }

    /// Starts a batch of send work requests, published together. Other threads cannot post sends to
    /// this queue pair until the batch is committed or dropped.
    pub fn send_batch(&self) -> SendBatch<'_> {
        SendBatch::new(self, self.send.enter())
    }

    pub(crate) fn push_send(&self, side: &mut PostSide<SEND_SLOT_WORDS_MAX>, request: &SendRequest<'_>) -> Result<()> {
        if !matches!(self.state.load(Ordering::Acquire), state::RTS | state::SQD | state::ERR) {
            return Err(Error::NotReady { queue: "send" });
        }
        if !self.service.has(request.op) {
            return Err(Error::WrongService { service: self.service.name(), operation: request.name() });
        }
        if self.service == ServiceType::Ud && !request.has_address() {
            return Err(Error::NoAddress);
        }
        let data = match request.data {
            WorkPayload::Sges(sges) if sges.len() > self.sizes.send_sges as usize => {
                return Err(Error::TooManySges { asked: sges.len(), limit: self.sizes.send_sges });
            }
            WorkPayload::Inline(_) if !request.op.carries_data() => return Err(Error::InlineRead),
            WorkPayload::Inline(bytes) if bytes.len() > self.sizes.inline_bytes as usize => {
                return Err(Error::InlineTooLong { asked: bytes.len(), limit: self.sizes.inline_bytes });
            }
            WorkPayload::Sges(sges) => sges.as_bytes(),
            WorkPayload::Inline(bytes) => bytes,
        };
        self.push(Queue::Send, side, request.wr_id(), request.completion_op() as u8, |side, cookie| {
            side.push([request.wqe(cookie).as_bytes(), data])
        })
    }

    fn push_recv(&self, side: &mut PostSide<RECV_SLOT_WORDS_MAX>, request: &RecvRequest<'_>) -> Result<()> {
        if self.srq.is_some() {
            return Err(Error::SharedReceives);
        }
        if self.state.load(Ordering::Acquire) == state::RESET {
            return Err(Error::NotReady { queue: "receive" });
        }
        if request.sges.len() > self.sizes.recv_sges as usize {
            return Err(Error::TooManySges { asked: request.sges.len(), limit: self.sizes.recv_sges });
        }
        let wqe = |cookie| RecvWqe { wr_id: cookie, num_sge: request.sges.len() as u8, ..RecvWqe::default() };
        self.push(Queue::Recv, side, request.wr_id, 0, |side, cookie| {
            side.push([wqe(cookie).as_bytes(), request.sges.as_bytes()])
        })
    }

    fn push<const WORDS: usize>(
        &self,
        queue: Queue,
        side: &mut PostSide<WORDS>,
        wr_id: u64,
        operation: u8,
        push: impl FnOnce(&mut PostSide<WORDS>, u64) -> Result<bool>,
    ) -> Result<()> {
        if self.session().is_gone() {
            return Err(Error::DaemonGone);
        }
        let (outstanding, name) = match queue {
            Queue::Send => (&self.work.send, "send"),
            Queue::Recv => (&self.work.recv, "receive"),
        };
        let full = Error::QueueFull { queue: name, depth: outstanding.depth() };
        let Some(sequence) = outstanding.next_sequence() else { return Err(full) };
        // A completion may arrive before the daemon has returned its slot: the ring is full for
        // that moment.
        if !push(side, Cookie::new(queue, self.work.tag, sequence).0)? {
            return Err(full);
        }
        // Before the daemon sees the request, so that its completion finds it.
        outstanding.add(wr_id, operation);
        Ok(())
    }

    /// Publishes posted requests to the daemon.
    fn finish(&self, ring: &ProducerRing, posted: Result<usize>) -> Result<usize> {
        if matches!(posted, Ok(1..)) {
            ring.publish();
            self.inner().ring(self.worker, self.doorbell);
        }
        posted
    }

    /// Publishes pushed sends to the daemon.
    pub(crate) fn publish_sends(&self, side: &PostSide<SEND_SLOT_WORDS_MAX>) {
        side.ring.publish();
        self.inner().ring(self.worker, self.doorbell);
    }

    /// Removes the last pushed sends.
    pub(crate) fn take_back_sends(&self, side: &mut PostSide<SEND_SLOT_WORDS_MAX>, requests: u32) {
        side.ring.take_back(requests);
        self.work.send.take_back(requests);
    }

    fn inner(&self) -> &DeviceInner {
        &self.pd.device
    }

    fn session(&self) -> &crate::socket::DaemonSession {
        &self.pd.device.session
    }

    fn device(&self) -> Device {
        Device { inner: Arc::clone(&self.pd.device) }
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        self.session().destroy::<DestroyQp>(EventSubject::Qp, self.qpn);
        self.send_cq.inner.remove(self.qpn);
        self.recv_cq.inner.remove(self.qpn);
    }
}
