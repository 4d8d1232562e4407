//! Queue pairs: one end of a connection.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

pub use roced_shared::abi::control::{QpAttributes, QpStatistics};
use roced_shared::abi::{
    control::{
        AttachMulticast, CreateQp, CreateQpRequest, DestroyQp, DetachMulticast, Handle, ModifyQp, ModifyQpRequest,
        MulticastRequest, QueryQp, QueryQpStatistics, attribute, state,
    },
    layout::{QpLayout, QpSizes, RECV_SLOT_WORDS_MAX, SEND_SLOT_WORDS_MAX},
    wqe::RecvWqe,
};
use zerocopy::IntoBytes;

use crate::{
    batch::SendBatch,
    cq::{CompletionQueue, Work},
    device::{Device, DeviceInner},
    endpoint::{ConnectOptions, Endpoint},
    error::{Error, Result},
    exclusive::Exclusive,
    gid::Gid,
    mapping::{Filled, Mapping, Mode, qp_rings},
    mr::Access,
    outstanding::{Cookie, Outstanding, Queue},
    pd::{PdInner, ProtectionDomain},
    service::ServiceType,
    srq::SharedReceiveQueue,
    work::{Data, RecvRequest, SendRequest},
};

/// How long a reset waits until the daemon has emptied the rings. It does so within a few turns, microseconds each.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// A queue pair to be made.
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

    /// What it promises (a reliable connection).
    pub const fn service(mut self, service: ServiceType) -> Self {
        self.service = service;
        self
    }

    /// Send work requests outstanding at a time (64).
    pub const fn send_wrs(mut self, wrs: u32) -> Self {
        self.sizes.send_wrs = wrs;
        self
    }

    /// Receive work requests outstanding at a time (64).
    pub const fn recv_wrs(mut self, wrs: u32) -> Self {
        self.sizes.recv_wrs = wrs;
        self
    }

    /// Scatter/gather entries of a send (4, at most 32).
    pub const fn send_sges(mut self, sges: u32) -> Self {
        self.sizes.send_sges = sges;
        self
    }

    /// Scatter/gather entries of a receive (4, at most 32).
    pub const fn recv_sges(mut self, sges: u32) -> Self {
        self.sizes.recv_sges = sges;
        self
    }

    /// Bytes of inline data of a send (64, at most 512).
    pub const fn inline_bytes(mut self, bytes: u32) -> Self {
        self.sizes.inline_bytes = bytes;
        self
    }

    /// Every send makes a completion, as if it were signaled.
    pub const fn signal_all(mut self) -> Self {
        self.signal_all = true;
        self
    }

    /// It takes its receives from a shared queue; the sizes of receives do not count then.
    pub const fn shared_receives(mut self, srq: &'a SharedReceiveQueue) -> Self {
        self.srq = Some(srq);
        self
    }

    /// Its partition: an index of [`crate::PortAttributes::pkeys`] (0).
    pub const fn pkey_index(mut self, index: u32) -> Self {
        self.pkey_index = index;
        self
    }

    /// Leaves out its locks, some ten nanoseconds for each call that posts.
    ///
    /// # Safety
    /// One thread at a time posts to it, modifies it, or has a [`SendBatch`] of it, and none does the one in the middle of the other.
    #[expect(unsafe_code, reason = "the caller promises what no type can show")]
    pub const unsafe fn single_threaded(mut self) -> Self {
        self.single_threaded = true;
        self
    }

    #[expect(unsafe_code, reason = "passes on what was promised")]
    fn exclusive<T>(&self, value: T) -> Exclusive<T> {
        if self.single_threaded {
            // SAFETY: whoever called `single_threaded` promised it; each of our methods gives it up before it returns, but for the batch that
            // the promise names.
            unsafe { Exclusive::promised(value) }
        } else {
            Exclusive::locked(value)
        }
    }

    /// Makes it, in state RESET.
    ///
    /// # Errors
    /// Sizes or the session's limits; objects of another device; no memory; the daemon is gone.
    pub fn create(self) -> Result<QueuePair> {
        QueuePair::create(&self)
    }
}

/// A queue pair. Any thread may post at any time. Dropping it ends it: its work completes nothing any more.
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
    bell: u32,
    sizes: QpSizes,
    psn: u32,
    state: AtomicU32,
    work: Arc<Work>,
    send: Exclusive<PostSide<SEND_SLOT_WORDS_MAX>>,
    recv: Exclusive<PostSide<RECV_SLOT_WORDS_MAX>>,
}

/// A ring and room to write an entry before it goes there.
#[derive(Debug)]
pub(crate) struct PostSide<const WORDS: usize> {
    pub(crate) ring: Filled,
    slot: [u64; WORDS],
}

impl<const WORDS: usize> PostSide<WORDS> {
    pub(crate) const fn new(ring: Filled) -> Self {
        Self { ring, slot: [0; WORDS] }
    }

    /// Writes `parts`, whole words together, into the next entry of the ring; false when there is none.
    pub(crate) fn push(&mut self, parts: [&[u8]; 2]) -> Result<bool> {
        let bytes = self.slot.as_mut_bytes();
        let (head, rest) = bytes.split_at_mut(parts[0].len());
        head.copy_from_slice(parts[0]);
        rest[..parts[1].len()].copy_from_slice(parts[1]);
        let words = (parts[0].len() + parts[1].len()).div_ceil(8);
        self.ring.push(&self.slot[..words]).map_err(|_| Error::Protocol { what: "a ring index that cannot be true" })
    }
}

impl QueuePair {
    fn create(builder: &QpBuilder<'_>) -> Result<Self> {
        let pd = &builder.pd.inner;
        let device = &pd.device;
        let (send_cq, recv_cq) = (builder.send_cq, builder.recv_cq);
        if builder.srq.is_some_and(|srq| !Arc::ptr_eq(&srq.inner.pd.device, device)) {
            return Err(Error::OtherDevice);
        }
        if [send_cq, recv_cq].iter().any(|cq| !Arc::ptr_eq(&cq.inner.device, device)) {
            return Err(Error::OtherDevice);
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
        // From here on the daemon has it: whatever fails must end it there too.
        let ended = |error| {
            let _ = device.session.call::<DestroyQp>(Handle { handle: reply.qpn });
            error
        };
        let sizes = reply.sizes();
        if sizes.granted() != Some(sizes) || reply.worker as usize >= device.workers.len() {
            return Err(ended(Error::Protocol { what: "an impossible queue pair" }));
        }
        let layout = QpLayout::new(sizes);
        let mapping = Mapping::new(&fd, layout.bytes, Mode::Populated).map_err(ended)?;
        let (send, recv) = qp_rings(&mapping, layout);
        let work = Arc::new(Work {
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
            bell: reply.bell,
            sizes,
            psn: random_psn().map_err(ended)?,
            state: AtomicU32::new(state::RESET),
            work,
            send: builder.exclusive(PostSide::new(send)),
            recv: builder.exclusive(PostSide::new(recv)),
        })
    }

    /// Its number.
    pub fn qpn(&self) -> u32 {
        self.qpn
    }

    /// What it promises.
    pub fn service(&self) -> ServiceType {
        self.service
    }

    /// The sizes that it got, at least those asked for.
    pub fn sizes(&self) -> QpSizes {
        self.sizes
    }

    /// Where sends complete.
    pub fn send_cq(&self) -> &CompletionQueue {
        &self.send_cq
    }

    /// Where receives complete.
    pub fn recv_cq(&self) -> &CompletionQueue {
        &self.recv_cq
    }

    /// Where its receives come from, if not from its own queue.
    pub fn srq(&self) -> Option<&SharedReceiveQueue> {
        self.srq.as_ref()
    }

    /// Sends that have not been reaped yet.
    pub fn sends_outstanding(&self) -> u32 {
        self.work.send.len()
    }

    /// Receives that have not been reaped yet.
    pub fn recvs_outstanding(&self) -> u32 {
        self.work.recv.len()
    }

    /// What the peer must know to connect to us, over the GID at `sgid_index`.
    ///
    /// # Errors
    /// No GID there; the daemon is gone.
    pub fn endpoint(&self, sgid_index: u32) -> Result<Endpoint> {
        let device = self.device();
        let entry = device.gid(sgid_index)?.ok_or(Error::NoSuchGid { index: sgid_index })?;
        let mtu_bytes = device.port()?.active_mtu_bytes;
        Ok(Endpoint { gid: entry.gid, qpn: self.qpn, psn: self.psn, mtu_bytes })
    }

    /// Connects to `remote`: from RESET to RTS. Receives may be posted before, from [`Self::to_init`] on, and should be.
    ///
    /// # Errors
    /// No route to the peer; a path MTU that the link does not carry; a state other than RESET or INIT; the daemon is gone.
    /// Whether the peer is there shows when work is posted.
    pub fn connect(&self, remote: &Endpoint, options: &ConnectOptions) -> Result<()> {
        if self.state.load(Ordering::Acquire) == state::RESET {
            self.to_init(options.access)?;
        }
        self.to_rtr(remote, options)?;
        self.to_rts(options)
    }

    /// From RESET to INIT: receives may be posted from now on.
    ///
    /// # Errors
    /// Another state; the daemon is gone.
    pub fn to_init(&self, access: Access) -> Result<()> {
        let mask = attribute::STATE | attribute::PKEY_INDEX | attribute::PORT | attribute::ACCESS_FLAGS;
        let pkey_index = self.pkey_index;
        self.modify(
            mask,
            &QpAttributes { state: state::INIT, access: access.bits(), pkey_index, ..QpAttributes::default() },
        )
    }

    /// From INIT to RTR: ready to receive from `remote`.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub fn to_rtr(&self, remote: &Endpoint, options: &ConnectOptions) -> Result<()> {
        let device = self.device();
        let sgid_index = match options.sgid_index {
            Some(index) => index,
            None => device.gid_toward(remote.gid)?.index,
        };
        let path_mtu_bytes = match options.path_mtu_bytes {
            Some(bytes) => bytes,
            None => device.port()?.active_mtu_bytes.min(remote.mtu_bytes),
        };
        let acknowledged = match self.service {
            ServiceType::Rc => attribute::MAX_DEST_RD_ATOMIC | attribute::MIN_RNR_TIMER,
            ServiceType::Uc | ServiceType::Ud => 0,
        };
        let mask = attribute::STATE
            | attribute::AV
            | attribute::PATH_MTU
            | attribute::DEST_QPN
            | attribute::RQ_PSN
            | acknowledged;
        self.modify(
            mask,
            &QpAttributes {
                state: state::RTR,
                path_mtu_bytes,
                dest_qpn: remote.qpn,
                rq_psn: remote.psn,
                max_dest_rd_atomic: options.max_dest_rd_atomic,
                min_rnr_timer: options.min_rnr_timer,
                sgid_index,
                dgid: remote.gid.0,
                hop_limit: options.hop_limit.into(),
                traffic_class: options.traffic_class.into(),
                flow_label: options.flow_label,
                service_level: options.service_level.into(),
                ..QpAttributes::default()
            },
        )
    }

    /// From RTR to RTS: ready to send.
    ///
    /// # Errors
    /// Another state; the daemon is gone.
    pub fn to_rts(&self, options: &ConnectOptions) -> Result<()> {
        let acknowledged = match self.service {
            ServiceType::Rc => {
                attribute::TIMEOUT | attribute::RETRY_CNT | attribute::RNR_RETRY | attribute::MAX_QP_RD_ATOMIC
            }
            ServiceType::Uc | ServiceType::Ud => 0,
        };
        let mask = attribute::STATE | attribute::SQ_PSN | acknowledged;
        self.modify(
            mask,
            &QpAttributes {
                state: state::RTS,
                sq_psn: self.psn,
                max_rd_atomic: options.max_rd_atomic,
                timeout: options.timeout,
                retry_cnt: options.retry_cnt,
                rnr_retry: options.rnr_retry,
                ..QpAttributes::default()
            },
        )
    }

    /// From RTS to SQD: the sends that were begun go on to their end, no other begins; receiving goes on. With `event` the device
    /// tells when all are done ([`crate::DeviceEvent::SqDrained`]); [`Self::query`] says so too (`sq_draining`).
    /// From then on attributes can be changed ([`Self::modify`]), and [`Self::resume`] leads back.
    ///
    /// # Errors
    /// Another state; the daemon is gone.
    pub fn to_sqd(&self, event: bool) -> Result<()> {
        self.modify(
            attribute::STATE | attribute::SQ_DRAINED_EVENT,
            &QpAttributes { state: state::SQD, sq_drained_event: event.into(), ..QpAttributes::default() },
        )
    }

    /// From SQD back to RTS: sends go on.
    ///
    /// # Errors
    /// Sends are still under way; another state; the daemon is gone.
    pub fn resume(&self) -> Result<()> {
        let attributes = QpAttributes { state: state::RTS, current_state: state::SQD, ..QpAttributes::default() };
        self.modify(attribute::STATE | attribute::CURRENT_STATE, &attributes)
    }

    /// A datagram queue pair from RESET to RTS: datagrams that have `qkey` are let in from now on. One that comes before a receive is
    /// posted is lost.
    ///
    /// # Errors
    /// Another state or service; the daemon is gone.
    pub fn activate(&self, qkey: u32) -> Result<()> {
        let pkey_index = self.pkey_index;
        let attributes = QpAttributes { state: state::INIT, qkey, pkey_index, ..QpAttributes::default() };
        let mask = attribute::STATE | attribute::PKEY_INDEX | attribute::PORT | attribute::QKEY;
        self.modify(mask, &attributes)?;
        self.modify(attribute::STATE, &QpAttributes { state: state::RTR, ..attributes })?;
        let to_rts = attribute::STATE | attribute::SQ_PSN;
        self.modify(to_rts, &QpAttributes { state: state::RTS, sq_psn: self.psn, ..attributes })
    }

    /// Attaches a datagram queue pair to a multicast group: what is sent to it, here or elsewhere, arrives from now on. `sgid_index` says
    /// which of our GIDs' interface joins it; `None`: the one that fits ([`Device::gid_toward`]). Send to it with an [`crate::AddressHandle`] of the
    /// group and queue pair number [`crate::MULTICAST_QPN`].
    ///
    /// # Errors
    /// No multicast group; another service; the session's limit; the kernel does not join it; the daemon is gone.
    pub fn attach(&self, group: Gid, sgid_index: Option<u32>) -> Result<()> {
        let sgid_index = match sgid_index {
            Some(index) => index,
            None => self.device().gid_toward(group)?.index,
        };
        self.session().call::<AttachMulticast>(MulticastRequest { qpn: self.qpn, sgid_index, group: group.0 })?;
        Ok(())
    }

    /// Detaches it from a group.
    ///
    /// # Errors
    /// It is not attached; the daemon is gone.
    pub fn detach(&self, group: Gid) -> Result<()> {
        self.session().call::<DetachMulticast>(MulticastRequest { qpn: self.qpn, sgid_index: 0, group: group.0 })?;
        Ok(())
    }

    /// To the error state: all work is flushed to the completion queues.
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn to_error(&self) -> Result<()> {
        self.modify(attribute::STATE, &QpAttributes { state: state::ERR, ..QpAttributes::default() })
    }

    /// Back to RESET: all work is forgotten, without completions. A receive that it had taken from a shared queue and not completed goes back
    /// there.
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn reset(&self) -> Result<()> {
        self.modify(attribute::STATE, &QpAttributes { state: state::RESET, ..QpAttributes::default() })
    }

    /// Changes state or attributes as `mask` says ([`crate::attribute`] bits).
    ///
    /// # Errors
    /// What the present state does not allow; the daemon is gone.
    pub fn modify(&self, mask: u32, attributes: &QpAttributes) -> Result<()> {
        let request = ModifyQpRequest { qpn: self.qpn, mask, attributes: *attributes };
        let resets = mask & attribute::STATE != 0 && attributes.state == state::RESET;
        if !resets {
            self.session().call::<ModifyQp>(request)?;
            if mask & attribute::STATE != 0 {
                self.state.store(attributes.state, Ordering::Release);
            }
            return Ok(());
        }
        // Nobody posts while the rings are emptied.
        let (mut send, mut recv) = (self.send.enter(), self.recv.enter());
        self.session().call::<ModifyQp>(request)?;
        self.state.store(state::RESET, Ordering::Release);
        let deadline = Instant::now() + DRAIN_TIMEOUT;
        while !(is_drained(&mut send.ring, self.sizes.send_wrs)? && is_drained(&mut recv.ring, self.sizes.recv_wrs)?) {
            if self.session().look() {
                return Err(Error::DaemonGone);
            }
            if Instant::now() > deadline {
                return Err(Error::DaemonSilent { call: "reset", seconds: DRAIN_TIMEOUT.as_secs() });
            }
            thread::yield_now();
        }
        self.send_cq.inner.forget(&self.work.send);
        self.recv_cq.inner.forget(&self.work.recv);
        Ok(())
    }

    /// Its state and attributes.
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn query(&self) -> Result<QpAttributes> {
        self.session().call::<QueryQp>(Handle { handle: self.qpn })
    }

    /// What it has counted.
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn statistics(&self) -> Result<QpStatistics> {
        self.session().call::<QueryQpStatistics>(Handle { handle: self.qpn })
    }

    /// Posts a send work request.
    ///
    /// # Errors
    /// A full queue; a request beyond the sizes; a state that takes none; the daemon is gone. Nothing was posted then.
    pub fn post_send(&self, request: &SendRequest<'_>) -> Result<()> {
        self.post_sends(std::slice::from_ref(request)).map(drop)
    }

    /// Posts send work requests, in order, with one doorbell. Says how many: fewer than given when the queue is full or one
    /// of them is wrong; post the rest again to learn why.
    ///
    /// # Errors
    /// As [`Self::post_send`], when not even the first could be posted.
    pub fn post_sends(&self, requests: &[SendRequest<'_>]) -> Result<usize> {
        let mut side = self.send.enter();
        let posted = all_that_fit(requests, |request| self.push_send(&mut side, request));
        self.finish(&side.ring, posted)
    }

    /// Posts a receive work request.
    ///
    /// # Errors
    /// As [`Self::post_send`]; a shared receive queue, where receives are to be posted instead.
    pub fn post_recv(&self, request: &RecvRequest<'_>) -> Result<()> {
        self.post_recvs(std::slice::from_ref(request)).map(drop)
    }

    /// Posts receive work requests, as [`Self::post_sends`].
    ///
    /// # Errors
    /// As [`Self::post_sends`].
    pub fn post_recvs(&self, requests: &[RecvRequest<'_>]) -> Result<usize> {
        let mut side = self.recv.enter();
        let posted = all_that_fit(requests, |request| self.push_recv(&mut side, request));
        self.finish(&side.ring, posted)
    }

    /// Begins to post send work requests that go out together. Nobody else posts sends of this queue pair until it is done with.
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
            Data::Sges(sges) if sges.len() > self.sizes.send_sges as usize => {
                return Err(Error::TooManySges { asked: sges.len(), limit: self.sizes.send_sges });
            }
            Data::Inline(_) if !request.op.carries_data() => return Err(Error::InlineRead),
            Data::Inline(bytes) if bytes.len() > self.sizes.inline_bytes as usize => {
                return Err(Error::InlineTooLong { asked: bytes.len(), limit: self.sizes.inline_bytes });
            }
            Data::Sges(sges) => sges.as_bytes(),
            Data::Inline(bytes) => bytes,
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
        // A completion may be here before the daemon has given its slot back: then the ring is full for an instant.
        if !push(side, Cookie::new(queue, self.work.tag, sequence).0)? {
            return Err(full);
        }
        // Before the daemon sees it, so that its completion finds it.
        outstanding.add(wr_id, operation);
        Ok(())
    }

    /// Lets the daemon see what was posted.
    fn finish(&self, ring: &Filled, posted: Result<usize>) -> Result<usize> {
        if matches!(posted, Ok(1..)) {
            ring.publish();
            self.inner().ring(self.worker, self.bell);
        }
        posted
    }

    /// Lets the daemon see sends that were pushed.
    pub(crate) fn publish_sends(&self, side: &PostSide<SEND_SLOT_WORDS_MAX>) {
        side.ring.publish();
        self.inner().ring(self.worker, self.bell);
    }

    /// Forgets the last sends that were pushed.
    pub(crate) fn take_back_sends(&self, side: &mut PostSide<SEND_SLOT_WORDS_MAX>, requests: u32) {
        side.ring.take_back(requests);
        self.work.send.take_back(requests);
    }

    fn inner(&self) -> &DeviceInner {
        &self.pd.device
    }

    fn session(&self) -> &crate::socket::Session {
        &self.pd.device.session
    }

    fn device(&self) -> Device {
        Device { inner: Arc::clone(&self.pd.device) }
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // Fails only when the session is over, and then the queue pair is too.
        let _ = self.session().call::<DestroyQp>(Handle { handle: self.qpn });
        self.send_cq.inner.remove(self.qpn);
        self.recv_cq.inner.remove(self.qpn);
    }
}

/// Posts requests until one cannot be; an error only when that is the first.
pub(crate) fn all_that_fit<R>(requests: &[R], mut post: impl FnMut(&R) -> Result<()>) -> Result<usize> {
    for (posted, request) in requests.iter().enumerate() {
        match post(request) {
            Ok(()) => {}
            Err(error) if posted == 0 => return Err(error),
            Err(_) => return Ok(posted),
        }
    }
    Ok(requests.len())
}

fn is_drained(ring: &mut Filled, entries: u32) -> Result<bool> {
    ring.room().map(|room| room == entries).map_err(|_| Error::Protocol { what: "a ring index that cannot be true" })
}

/// A PSN that nobody can guess.
fn random_psn() -> Result<u32> {
    let random = getrandom::u32().map_err(|_| Error::Kernel { call: "getrandom", errno: nix::errno::Errno::EIO })?;
    Ok(random & 0x00ff_ffff)
}
