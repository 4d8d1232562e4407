//! Workers without a daemon: the test is their control thread and their client, and provides NIC
//! queues.
#![expect(unsafe_code, reason = "maps as a client does")]
#![allow(dead_code, reason = "each test uses its part")]

use std::{
    fs::File,
    io::Write as _,
    num::NonZeroUsize,
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, atomic::AtomicU64},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use nix::sys::mman::{MapFlags, ProtFlags, mmap};
use roced::worker::{
    command::{Answer, Command, QueueMailbox, SetQueues},
    endpoints::{EndpointLocation, Endpoints},
    events::{EventReceiver, events},
    handoff::handoffs,
    idle::Policy,
    mailbox::mailbox,
    nic::Nic,
    poll_loop::{Worker, WorkerEndpoint, WorkerParts},
    received_mads::{MadReceiver, mads},
    sent_mads::OutgoingMads,
    wake::Waker,
    workers::{WorkerHandle, Workers},
};
use roced_abi::{
    cqe::Cqe,
    doorbell::{MappedDoorbells, must_wake, ring_doorbell},
    layout::{CqLayout, QpLayout, SrqLayout, doorbell_block_offset, session_bytes},
    ring::{Consumer, MappedRing, Producer, RingShape},
    wqe::{RecvWqe, SendWqe},
};
use roced_memory::{
    client_memory::ClientMemory,
    queues::{SleepBoard, new_cq, new_qp, new_session, new_srq},
    quota::Room,
};
use roced_transport::{
    ah::AhEntry,
    endpoint::{Endpoint, EndpointConfig},
    io::Egress,
    mr::{Mr, MrKey, Scope},
    partition::Partitions,
    qp::{PathState, Qp, QpConfig, ReplayMemory, ServiceType},
    recovery::RecoveryConfig,
    srq::{Srq, SrqConfig},
    turns::fair::FairOwner,
    wire::{
        Roce,
        path::{Path, PathSpec},
    },
};
use roced_types::{
    AccountId, Cqn, DeviceId, EndpointId, MemoryObjectId, Pdn, QpAttributes, QpSizes, Qpn, SendOp, SessionId, Sge,
    Srqn, WorkerId, access, attribute, send_flags, state,
};
use zerocopy::{FromBytes, IntoBytes};

/// Queue pairs of each endpoint.
const MAX_QPS: u32 = 32;

/// Sizes of its queues.
const SIZES: QpSizes = QpSizes { send_wrs: 32, recv_wrs: 32, send_sges: 2, recv_sges: 1, inline_bytes: 32 };

/// Workers that turn in threads of their own.
pub(crate) struct Rig<N> {
    pub(crate) workers: Workers,
    queue_mailboxes: Vec<QueueMailbox<N>>,
    pub(crate) events: EventReceiver,
    pub(crate) mads: MadReceiver,
    board: SleepBoard,
    threads: Vec<JoinHandle<Worker<N>>>,
    next: u32,
    last_ah: u32,
    /// Receives that a shared receive queue holds.
    pub(crate) srq_wrs: u32,
    /// Account of clients made from now on.
    pub(crate) account: AccountId,
}

impl<N: Nic + Send + 'static> Rig<N> {
    /// Workers for the endpoints `served` (device, worker), with the NIC queues that `queues_of`
    /// returns for each; `run` is the main function of each worker's thread.
    pub(crate) fn start(
        served: &[(u32, u32)],
        policy: Policy,
        mut queues_of: impl FnMut(EndpointLocation) -> Vec<N>,
        run: fn(&mut Worker<N>),
    ) -> Self {
        let endpoints = Endpoints::new(served.iter().map(|(device, worker)| (DeviceId(*device), WorkerId(*worker))));
        let endpoints = Arc::new(endpoints.expect("few endpoints"));
        let count = served.iter().map(|(_, worker)| worker + 1).max().expect("a client is served");
        let wakers: Vec<_> = (0..count).map(|_| Arc::new(Waker::new().expect("an eventfd"))).collect();
        let (receiver, senders) = events(count as usize).expect("an eventfd");
        let (mads, mad_senders) = mads(count as usize, 1000).expect("an eventfd");
        let senders = senders.into_iter().zip(mad_senders);
        let board = SleepBoard::create(count).expect("a memfd");
        let (mut handles, mut queue_mailboxes, mut threads) = (Vec::new(), Vec::new(), Vec::new());
        for (((number, waker), handoff), (events, mads)) in (0..).zip(&wakers).zip(handoffs(&wakers)).zip(senders) {
            let (queue_mailbox, queue_inbox) = mailbox(Arc::clone(waker));
            let (mailbox, inbox) = mailbox(Arc::clone(waker));
            let heartbeat = Arc::new(AtomicU64::new(0));
            let outgoing = OutgoingMads::new();
            let worker_endpoint = |place: EndpointLocation| WorkerEndpoint {
                place,
                endpoint: Endpoint::new(EndpointConfig {
                    id: place.endpoint,
                    max_mrs: 32,
                    max_ahs: 8,
                    max_srqs: MAX_QPS,
                    max_attachments: 8,
                    max_qps: MAX_QPS,
                    total_window_packets: 1024,
                    recovery: RecoveryConfig::default(),
                    partitions: Partitions::default(),
                })
                .with_ids(place.ids),
                queues: queues_of(place),
                max_qps: MAX_QPS,
            };
            let mut worker = Worker::new(WorkerParts {
                id: WorkerId(number),
                policy,
                worker_endpoints: endpoints.of_worker(WorkerId(number)).map(worker_endpoint).collect(),
                endpoints: Arc::clone(&endpoints),
                inbox,
                queue_inbox,
                handoff,
                events,
                mads,
                outgoing: Arc::clone(&outgoing),
                waker: Arc::clone(waker),
                state: board.worker(number),
                heartbeat: Arc::clone(&heartbeat),
                max_sessions: 4,
                max_objects: 16,
                max_cq_rings: 16,
            })
            .expect("a worker");
            handles.push(WorkerHandle { mailbox, outgoing, waker: Arc::clone(waker), heartbeat });
            queue_mailboxes.push(queue_mailbox);
            threads.push(std::thread::spawn(move || {
                run(&mut worker);
                worker
            }));
        }
        let workers = Workers::new(handles, endpoints);
        Self {
            workers,
            queue_mailboxes,
            events: receiver,
            mads,
            board,
            threads,
            next: 1,
            last_ah: 0,
            srq_wrs: SIZES.recv_wrs,
            account: AccountId(0),
        }
    }

    /// Sends a command to a worker; it must be accepted.
    pub(crate) fn tell(&mut self, worker: WorkerId, command: Command) -> Answer {
        match self.workers.call(worker, command).expect("the worker answers") {
            Answer::Refused(why, command) => panic!("{why}: {command:?}"),
            answer => answer,
        }
    }

    /// Gives a worker other NIC queues of a device, and returns those that it had.
    pub(crate) fn set_queues(&mut self, worker: WorkerId, device: DeviceId, queues: Vec<N>) -> Vec<N> {
        let deadline = Instant::now() + Duration::from_secs(10);
        let answer = self.queue_mailboxes[worker.0 as usize].call(SetQueues { device, queues }, deadline);
        answer.expect("the worker answers").unwrap_or_else(|(_, refused)| panic!("{refused}"))
    }

    /// Ends all workers and gives them back.
    pub(crate) fn stop(mut self) -> Vec<Worker<N>> {
        for worker in 0..self.threads.len() {
            self.tell(WorkerId(worker as u32), Command::Stop);
        }
        self.threads.into_iter().map(|thread| thread.join().expect("the worker ended well")).collect()
    }

    fn number(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    /// A client of `device` with one memory region of `bytes`, one completion queue and one queue
    /// pair on each endpoint of `on`, all of them ready to be connected.
    pub(crate) fn client(&mut self, device: u32, bytes: u64, on: &[usize]) -> Client {
        self.client_as(device, bytes, on, false, ServiceType::Rc)
    }

    /// As [`Self::client`]; its last queue pair takes from a shared receive queue.
    pub(crate) fn sharing_client(&mut self, device: u32, bytes: u64, on: &[usize]) -> Client {
        self.client_as(device, bytes, on, true, ServiceType::Rc)
    }

    /// As [`Self::client`] with datagram queue pairs, which can send by [`Client::ah`], by `path`.
    /// Their sends complete silently.
    pub(crate) fn datagram_client(&mut self, device: u32, on: &[usize], path: Path) -> Client {
        let mut client = self.client_as(device, 4096, on, false, ServiceType::Ud);
        self.last_ah += 1;
        client.ah = self.last_ah;
        let device = DeviceId(device);
        let handle =
            AhEntry { pd: client.pd, path: PathState::Ready(path), mtu_bytes: 4096, static_rate_kbit_per_s: 0 };
        let workers: Vec<WorkerId> = self.workers.of_device(device).map(|place| place.worker).collect();
        for worker in workers {
            self.tell(worker, Command::AddAh(device, client.ah, handle));
        }
        let init = attribute::PKEY_INDEX | attribute::PORT | attribute::QKEY;
        for qp in &client.qps {
            for (state, mask) in [(state::INIT, init), (state::RTR, 0), (state::RTS, attribute::SQ_PSN)] {
                let attributes = QpAttributes { state, ..QpAttributes::default() };
                let replay = ReplayMemory::for_change(mask, &attributes);
                let mask = mask | attribute::STATE;
                self.tell(qp.worker, Command::ModifyQp { qpn: qp.qpn, mask, attributes, path: None, replay });
            }
        }
        client
    }

    fn client_as(&mut self, device: u32, bytes: u64, on: &[usize], shares: bool, service: ServiceType) -> Client {
        let device = DeviceId(device);
        let places: Vec<EndpointLocation> = self.workers.of_device(device).collect();
        let session = SessionId(self.number());
        let (halves, session_fd, wakes) =
            new_session(session, places.len() as u32, Room::default()).expect("a session");
        let region = MemoryObjectId(self.number());
        let (memory, memory_fd) = ClientMemory::create(bytes, Room::default()).expect("memory");
        File::from(memory_fd).write_all(&vec![0; bytes as usize]).expect("a client touches every page");
        let memory = Arc::new(memory);
        let cqn = Cqn(self.number());
        let cq_layout = CqLayout::new(256, places.len() as u32).expect("a small queue");
        let (cq_rings, cq_fd) = new_cq(cqn, session, cq_layout, None, Room::default()).expect("a completion queue");
        let key = MrKey(self.number() << 8);
        let pd = Pdn(self.number());
        let mr = Mr {
            key,
            pd,
            access: access::ALL,
            va: 0,
            length: memory.len(),
            object: region,
            offset: 0,
            scope: Scope::Region,
        };
        for ((place, mut half), cq_ring) in places.iter().zip(halves).zip(cq_rings) {
            half.account = self.account;
            self.tell(place.worker, Command::AttachSession(half));
            self.tell(place.worker, Command::AddCqRing(cqn, cq_ring));
            self.tell(place.worker, Command::SetMr(device, mr, Arc::clone(&memory).into()));
        }
        let doorbells = map(&session_fd, session_bytes(places.len() as u32));
        let cq = map(&cq_fd, cq_layout.bytes);
        let cq_rings = (0..places.len() as u32).map(|index| {
            // SAFETY: the layout places the CQ ring inside the mapping, which is never unmapped.
            Consumer::new(unsafe { MappedRing::new(cq.add(cq_layout.cq_ring_offset(index)), cq_layout.cq_ring, ()) })
        });
        let cq_rings = cq_rings.collect();
        let mut client = Client { session, memory, key, cqn, pd, cq_rings, qps: Vec::new(), srq: None, ah: 0 };
        for (at, endpoint) in on.iter().enumerate() {
            let number =
                places.iter().position(|place| place.endpoint.get() == *endpoint).expect("an endpoint of the device");
            let place = places[number];
            let index = 2 + self.number() % (MAX_QPS - 2);
            let endpoint = EndpointId::new(*endpoint).expect("few endpoints");
            let state = || self.board.worker(place.worker.0);
            let doorbell = |doorbell| Doorbell {
                doorbell: doorbell as u32,
                // SAFETY: the layout places the block inside the mapping, which is never unmapped.
                block: unsafe { MappedDoorbells::new(doorbells.add(doorbell_block_offset(number as u32)), ()) },
                wake: wakes[number].try_clone().expect("an fd"),
                state: state(),
            };
            let (own, shared) = (doorbell(at), doorbell(on.len()));
            if shares && at + 1 == on.len() {
                client.srq = Some(self.shared_queue(&client, place, Srqn::new(endpoint, index), shared));
            }
            client.qps.push(self.queue_pair(&client, place, Qpn::new(endpoint, index), own, service));
        }
        client
    }

    fn shared_queue(&mut self, client: &Client, place: EndpointLocation, srqn: Srqn, doorbell: Doorbell) -> ClientSrq {
        let sizes = QpSizes { recv_wrs: self.srq_wrs, ..SIZES };
        let config = SrqConfig { srqn, pd: client.pd, sizes };
        let (ring, fd) = new_srq(srqn, client.session, doorbell.doorbell, sizes, Room::default()).expect("a ring");
        self.tell(place.worker, Command::AddSrq(Box::new(Srq::new(config)), ring));
        let layout = SrqLayout::new(sizes);
        // SAFETY: the ring is all of the mapping, which is never unmapped.
        let recv = unsafe { MappedRing::new(map(&fd, layout.bytes), layout.recv, ()) };
        ClientSrq { config, doorbell, recv: Producer::new(recv) }
    }

    fn queue_pair(
        &mut self,
        client: &Client,
        place: EndpointLocation,
        qpn: Qpn,
        doorbell: Doorbell,
        service: ServiceType,
    ) -> ClientQp {
        let sizes = SIZES;
        let (mut rings, fd) = new_qp(qpn, client.session, doorbell.doorbell, sizes, Room::default()).expect("rings");
        let config = QpConfig {
            qpn,
            service,
            pd: client.pd,
            send_cq: client.cqn,
            recv_cq: client.cqn,
            sizes,
            signal_all: service == ServiceType::Rc,
            window_packets: 64,
            credits: true,
        };
        let mut qp = Qp::new(config).with_owner(FairOwner { account: self.account, client: client.session, weight: 1 });
        if let Some(srq) = &client.srq {
            qp = qp.with_srq(&srq.config);
            rings.shared = true;
        }
        self.tell(place.worker, Command::AddQp(Box::new(qp), rings));
        let layout = QpLayout::new(sizes);
        let base = map(&fd, layout.bytes);
        // SAFETY: the layout places both rings inside the mapping, which is never unmapped.
        let (send, recv) = unsafe {
            (MappedRing::new(base, layout.send, ()), MappedRing::new(base.add(layout.recv_offset), layout.recv, ()))
        };
        ClientQp {
            qpn,
            worker: place.worker,
            doorbell,
            send: Producer::new(send),
            recv: Producer::new(recv),
            shapes: (layout.send, layout.recv),
        }
    }

    /// Connects two queue pairs, each to RTS; `via` says how frames leave.
    pub(crate) fn connect(&mut self, a: &ClientQp, b: &ClientQp, via: Egress) {
        let address = |qp: &ClientQp| {
            let device = self.workers.of_qpn(qp.qpn).expect("an endpoint").device;
            std::net::Ipv4Addr::new(10, 0, device.0 as u8, 1).to_ipv6_mapped().octets()
        };
        let ends = [(a, address(a), b, address(b)), (b, address(b), a, address(a))];
        for (from, source, to, destination) in ends {
            let via = match via {
                Egress::HandOver { .. } => {
                    Egress::HandOver { to: self.workers.of_qpn(to.qpn).expect("an endpoint").device }
                }
                other => other,
            };
            let path = Path::new(&PathSpec {
                via,
                source_mac: [2, 0, 0, 0, 0, 1],
                dest_mac: [2, 0, 0, 0, 0, 2],
                vlan: None,
                source,
                destination,
                traffic_class: 0,
                hop_limit: 64,
                flow_label: 0,
                roce: Roce::V2 { udp_source_port: 0xc000 },
            });
            let path = PathState::Ready(path.expect("both are IPv4"));
            self.connect_one(from, to.qpn, destination, path);
        }
    }

    /// Takes a queue pair to RTS toward queue pair `peer` of `dgid`, reached by `path`.
    pub(crate) fn connect_one(&mut self, qp: &ClientQp, peer: Qpn, dgid: [u8; 16], path: PathState) {
        let attributes = QpAttributes {
            access: access::ALL,
            path_mtu_bytes: 4096,
            dest_qpn: peer.get(),
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            min_rnr_timer: 1,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            hop_limit: 64,
            dgid,
            ..QpAttributes::default()
        };
        let init = attribute::PKEY_INDEX | attribute::PORT | attribute::ACCESS_FLAGS;
        let rtr = attribute::AV
            | attribute::PATH_MTU
            | attribute::DEST_QPN
            | attribute::RQ_PSN
            | attribute::MAX_DEST_RD_ATOMIC
            | attribute::MIN_RNR_TIMER;
        let rts = attribute::TIMEOUT
            | attribute::RETRY_CNT
            | attribute::RNR_RETRY
            | attribute::SQ_PSN
            | attribute::MAX_QP_RD_ATOMIC;
        for (state, mask, path) in [(state::INIT, init, None), (state::RTR, rtr, Some(path)), (state::RTS, rts, None)] {
            let replay = ReplayMemory::for_change(mask, &attributes);
            let attributes = QpAttributes { state, ..attributes };
            let command = Command::ModifyQp { qpn: qp.qpn, mask: mask | attribute::STATE, attributes, path, replay };
            self.tell(qp.worker, command);
        }
    }
}

/// A client's session with its memory, completion queue and queue pairs.
pub(crate) struct Client {
    pub(crate) session: SessionId,
    pub(crate) memory: Arc<ClientMemory>,
    pub(crate) key: MrKey,
    pub(crate) cqn: Cqn,
    pub(crate) pd: Pdn,
    cq_rings: Vec<Consumer<MappedRing<()>>>,
    pub(crate) qps: Vec<ClientQp>,
    /// Where the last of them takes its receives from.
    pub(crate) srq: Option<ClientSrq>,
    /// Address handle of its datagrams.
    pub(crate) ah: u32,
}

/// How a queue's worker is told of work.
struct Doorbell {
    doorbell: u32,
    block: MappedDoorbells<()>,
    wake: OwnedFd,
    state: roced_abi::doorbell::WorkerState<Arc<roced_memory::mapping::Mapping>>,
}

/// The client's side of a shared receive queue.
pub(crate) struct ClientSrq {
    pub(crate) config: SrqConfig,
    doorbell: Doorbell,
    recv: Producer<MappedRing<()>>,
}

/// The client's side of a queue pair.
pub(crate) struct ClientQp {
    pub(crate) qpn: Qpn,
    pub(crate) worker: WorkerId,
    doorbell: Doorbell,
    send: Producer<MappedRing<()>>,
    recv: Producer<MappedRing<()>>,
    shapes: (RingShape, RingShape),
}

impl Client {
    /// The next completion of any CQ ring.
    pub(crate) fn poll(&mut self) -> Option<Cqe> {
        let mut words = [0; 8];
        let cq_ring = self
            .cq_rings
            .iter_mut()
            .find_map(|cq_ring| cq_ring.pop(&mut words).expect("a sound ring").then_some(cq_ring))?;
        cq_ring.release();
        Some(Cqe::read_from_bytes(words.as_bytes()).expect("a completion"))
    }

    /// The next completion, waited for.
    pub(crate) fn wait(&mut self) -> Cqe {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            if let Some(completion) = self.poll() {
                return completion;
            }
            assert!(Instant::now() < deadline, "no completion");
            std::thread::yield_now();
        }
    }
}

impl ClientQp {
    /// Posts one send work request on `length` bytes of local memory at `local`.
    pub(crate) fn post_send(&mut self, op: SendOp, key: MrKey, local: u64, length: u32, remote: (u64, MrKey)) {
        let wqe = SendWqe {
            wr_id: local,
            opcode: op as u8,
            flags: send_flags::SIGNALED,
            num_sge: 1,
            remote_va: remote.0,
            rkey: remote.1.0,
            ..SendWqe::default()
        };
        self.post_send_wqe(&wqe, &Sge { va: local, length, lkey: key.0 });
    }

    /// Posts a datagram without data to queue pair `to`, by address handle `ah`.
    pub(crate) fn post_datagram(&mut self, key: MrKey, ah: u32, to: Qpn) {
        let wqe = SendWqe { opcode: SendOp::Send as u8, num_sge: 1, ah, remote_qpn: to.get(), ..SendWqe::default() };
        self.post_send_wqe(&wqe, &Sge { va: 0, length: 0, lkey: key.0 });
    }

    /// Posts any `wqe`.
    pub(crate) fn post_send_wqe(&mut self, wqe: &SendWqe, sge: &Sge) {
        let mut words = [0; 10];
        wqe.write_to_prefix(words.as_mut_bytes()).expect("room");
        sge.write_to_suffix(words.as_mut_bytes()).expect("room");
        assert!(words.len() <= self.shapes.0.stride_words());
        push(&mut self.send, &words);
        self.doorbell.ring();
    }

    /// Posts one receive work request.
    pub(crate) fn post_recv(&mut self, key: MrKey, local: u64, length: u32) {
        push(&mut self.recv, &recv_words(key, local, length));
        self.doorbell.ring();
    }
}

impl ClientSrq {
    /// Posts one receive work request.
    pub(crate) fn post_recv(&mut self, key: MrKey, local: u64, length: u32) {
        push(&mut self.recv, &recv_words(key, local, length));
        self.doorbell.ring();
    }

    /// Posts one that names more scatter/gather entries than there can be.
    pub(crate) fn post_nonsense(&mut self) {
        push(&mut self.recv, &[0, u64::from_ne_bytes([99; 8]), 0, 0]);
        self.doorbell.ring();
    }
}

impl Doorbell {
    fn ring(&self) {
        ring_doorbell(&self.block, self.doorbell);
        if must_wake(self.state.asleep()) {
            nix::unistd::write(&self.wake, &1u64.to_ne_bytes()).expect("an eventfd");
        }
    }
}

fn recv_words(key: MrKey, local: u64, length: u32) -> [u64; 4] {
    let mut words = [0; 4];
    let wqe = RecvWqe { wr_id: local, num_sge: 1, ..RecvWqe::default() };
    wqe.write_to_prefix(words.as_mut_bytes()).expect("room");
    Sge { va: local, length, lkey: key.0 }.write_to_suffix(words.as_mut_bytes()).expect("room");
    words
}

fn push(ring: &mut Producer<MappedRing<()>>, words: &[u64]) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !ring.push(words).expect("a sound ring") {
        assert!(Instant::now() < deadline, "the ring stays full");
        std::thread::yield_now();
    }
    ring.publish();
}

fn map(fd: &impl AsFd, bytes: usize) -> std::ptr::NonNull<u8> {
    let length = NonZeroUsize::new(bytes).expect("something");
    // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
    let base = unsafe { mmap(None, length, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_SHARED, fd, 0) };
    base.expect("a mapping").cast()
}
