//! The daemon's control thread and its workers in this process, without NIC and netlink: peers are
//! on this host, reached by hand-over, and the network is defined by the test.
#![allow(dead_code, reason = "each test uses its part")]

mod ends;
mod network;
pub(crate) mod other_user;
pub(crate) mod pair;
pub(crate) mod uffd;

use std::{
    collections::BTreeMap,
    io::IoSlice,
    net::IpAddr,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
    path::{Path, PathBuf},
    process,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use nix::{
    poll::{PollFd, PollFlags, poll},
    sys::{
        eventfd::EventFd,
        socket::{
            AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, connect, recv, sendmsg, socket,
        },
    },
    time::{ClockId, clock_gettime},
    unistd::{Pid, gettid},
};
use roced::{
    accounts::access::AccessRules,
    calls::DeviceSetup,
    client_socket::listener::ClientListener,
    clients::Clients,
    config::{AccessRule, LimitsConfig, PacketPriorities},
    environment::{DevicePort, Environment, WorkerAccess},
    net::{FollowId, GidTableEntry, NetworkChange, NextHop, RoceVersion},
    worker::{
        command::{Answer, Command},
        endpoints::Endpoints,
        events::events,
        handoff::handoffs,
        idle::Policy,
        mailbox::{CallError, mailbox},
        metrics::WorkerSnapshot,
        nic::Nic,
        poll_loop::{Worker, WorkerEndpoint, WorkerParts},
        received_mads::mads,
        sent_mads::{OutgoingMad, OutgoingMads},
        wake::Waker,
        workers::{self, WorkerHandle},
    },
};
use roced_abi::control::{Call, Hello, HelloRequest, MESSAGE_BYTES, Message, Refusal};
use roced_memory::queues::SleepBoard;
use roced_transport::{
    clock::Nanos,
    counters::QpCount,
    endpoint::{Endpoint, EndpointConfig},
    io::{Abort, Egress, EmitError, FrameMut, Segments, Wire},
    partition::{Partitions, Pkey},
    recovery::RecoveryConfig,
};
use roced_types::{DeviceId, WorkerId};
use zerocopy::{FromBytes, IntoBytes};

use self::network::FakeNetwork;

/// Partition keys of the only device.
const PKEYS: [Pkey; 2] = [Pkey::DEFAULT, Pkey(0x8001)];

/// The name of the only device.
pub(crate) const DEVICE: &str = "test0";

/// An absent NIC queue: workers here hand over to one another.
pub(crate) enum NoNic {}

impl Wire for NoNic {
    fn emit(
        &mut self,
        _: Egress,
        _: usize,
        _: impl FnOnce(&mut FrameMut<'_>) -> Result<(), Abort>,
    ) -> Result<(), EmitError> {
        match *self {}
    }
}

impl Nic for NoNic {
    fn queue(&self) -> u32 {
        match *self {}
    }

    fn rx_burst(&mut self, _: usize, _: impl FnMut(&Segments<'_>)) -> usize {
        match *self {}
    }

    fn flush(&mut self) {
        match *self {}
    }

    fn prepare_sleep(&mut self) -> bool {
        match *self {}
    }

    fn socket(&self) -> BorrowedFd<'_> {
        match *self {}
    }

    fn counters(&self, _: &mut impl FnMut(&'static str, u64)) {
        match *self {}
    }
}

/// State of the network as defined by the test.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) port: DevicePort,
    pub(crate) gids: Vec<Option<GidTableEntry>>,
    /// How other hosts are reached; `None`: there is no route.
    pub(crate) elsewhere: Option<NextHop>,
    /// Our own addresses are reached like others.
    pub(crate) hide_local: bool,
    /// Workers do not answer.
    pub(crate) stuck: bool,
    /// How long they take to answer, beside the time that they need.
    pub(crate) delay: Duration,
    /// Commands that they were given.
    pub(crate) commands_given: u64,
    /// Followed destinations, with the number of followers.
    pub(crate) followed: BTreeMap<FollowId, (IpAddr, u32)>,
    /// Multicast groups that were joined, each as often as it was.
    pub(crate) joined: Vec<IpAddr>,
    /// No group can be joined.
    pub(crate) joins_nothing: bool,
    /// Names of commands to workers, once a test wants them.
    pub(crate) commands: Option<Vec<String>>,
    /// Frames of requests that had left when the first queue pair or session of a log ended.
    pub(crate) sent_at_end: Option<u64>,
}

impl Told {
    fn new() -> Self {
        let gid = |address: &str| {
            Some(GidTableEntry {
                address: address.parse().expect("an address"),
                ifindex: 7,
                vlan: None,
                prefix_len: 24,
                roce: RoceVersion::V2,
            })
        };
        Self {
            port: DevicePort {
                mac: [2, 0, 0, 0, 0, 1],
                link_up: true,
                link_mtu_bytes: 4200,
                speed_mbit_per_s: 10_000,
                gid_entries: 3,
                strips_vlan_tags: false,
                ecn: true,
            },
            gids: vec![gid("10.9.0.1"), None, gid("fd00:9::1")],
            elsewhere: Some(NextHop::Unreachable),
            hide_local: false,
            stuck: false,
            delay: Duration::ZERO,
            commands_given: 0,
            followed: BTreeMap::new(),
            joined: Vec::new(),
            joins_nothing: false,
            commands: None,
            sent_at_end: None,
        }
    }
}

/// Workers that answer unless the test says otherwise.
struct MaybeStuck {
    workers: workers::Workers,
    told: Arc<Mutex<Told>>,
}

impl WorkerAccess for MaybeStuck {
    fn call(&mut self, worker: WorkerId, command: Command) -> Result<Answer, CallError> {
        let (stuck, delay) = {
            let mut told = self.told.lock().expect("no test panics here");
            told.commands_given += 1;
            (told.stuck, told.delay)
        };
        if !delay.is_zero() {
            std::thread::sleep(delay);
        }
        if stuck {
            return Err(CallError::Timeout);
        }
        let mut is_first_end = false;
        let mut told = self.told.lock().expect("no test panics here");
        if let Some(commands) = &mut told.commands {
            let shown = format!("{command:?}");
            let name = shown.split(|letter: char| !letter.is_alphanumeric()).next().unwrap_or_default();
            commands.push(name.into());
            is_first_end = told.sent_at_end.is_none() && matches!(name, "EndSession" | "DropQp");
        }
        drop(told);
        let answer = self.workers.call(worker, command);
        if is_first_end {
            let sent = requests_sent(&mut self.workers, worker);
            self.told.lock().expect("no test panics here").sent_at_end = Some(sent);
        }
        answer
    }

    fn send_mad(&mut self, worker: WorkerId, mad: OutgoingMad) -> bool {
        self.workers.send_mad(worker, mad).is_ok()
    }
}

/// Frames of requests that left by a worker.
pub(crate) fn requests_sent(workers: &mut dyn WorkerAccess, worker: WorkerId) -> u64 {
    counted(workers, worker, QpCount::RequestPackets)
}

/// A counter of all queue pairs of a worker.
pub(crate) fn counted(workers: &mut dyn WorkerAccess, worker: WorkerId, count: QpCount) -> u64 {
    let empty = Box::new(WorkerSnapshot::new(1, 1, None));
    match workers.call(worker, Command::Snapshot(empty)) {
        Ok(Answer::Snapshot(filled)) => filled.endpoints.iter().map(|endpoint| endpoint.counters.get(count)).sum(),
        other => panic!("{other:?}"),
    }
}

/// Something that the control thread does for the test.
type Job = Box<dyn FnOnce(&mut Clients, &mut Environment<'_>) + Send>;

/// A daemon without a NIC.
pub(crate) struct Served {
    pub(crate) socket: PathBuf,
    pub(crate) told: Arc<Mutex<Told>>,
    workers: u32,
    /// Threads of the workers.
    worker_threads: Arc<Mutex<Vec<Pid>>>,
    jobs: mpsc::Sender<Job>,
    doorbell: Arc<EventFd>,
    /// Ends as if by SIGKILL, without notice.
    abandon: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    _folder: tempfile::TempDir,
}

/// How it is made.
#[derive(Clone)]
pub(crate) struct How {
    pub(crate) workers: u32,
    pub(crate) policy: Policy,
    pub(crate) limits: LimitsConfig,
    /// Queue pairs of each worker.
    pub(crate) qps: u32,
    /// Mappings of all users, and of one, if not as many as this machine allows.
    pub(crate) mappings: Option<(u32, u32)>,
    /// Rules of the operator.
    pub(crate) access: Vec<AccessRule>,
}

impl Default for How {
    fn default() -> Self {
        let policy = Policy::Sleep { spin: Nanos::from_micros(20) };
        Self { workers: 2, policy, limits: LimitsConfig::default(), qps: 64, mappings: None, access: Vec::new() }
    }
}

impl Served {
    pub(crate) fn start() -> Self {
        Self::start_as(How::default())
    }

    pub(crate) fn start_as(how: How) -> Self {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let socket = folder.path().join("roced.sock");
        let rules = AccessRules::look_up(&how.access, [DEVICE].into_iter()).expect("numbers");
        let listener = ClientListener::bind(&socket, None, 0o600).expect("a free path").with_rules(rules);
        let told = Arc::new(Mutex::new(Told::new()));
        let (jobs, todo) = mpsc::channel();
        let doorbell = Arc::new(EventFd::new().expect("an eventfd"));
        let abandon = Arc::new(AtomicBool::new(false));
        let network = FakeNetwork { told: Arc::clone(&told), last: 0 };
        let workers = how.workers;
        let worker_threads = Arc::default();
        let control = Control {
            how,
            network,
            todo,
            doorbell: Arc::clone(&doorbell),
            abandon: Arc::clone(&abandon),
            worker_threads: Arc::clone(&worker_threads),
        };
        let thread = ends::spawn(move || control.run(listener));
        Self { socket, told, workers, worker_threads, jobs, doorbell, abandon, thread: Some(thread), _folder: folder }
    }

    /// Does something on the control thread.
    pub(crate) fn on_control_thread<T: Send + 'static>(
        &self,
        act: impl FnOnce(&mut Clients, &mut Environment<'_>) -> T + Send + 'static,
    ) -> T {
        let (done, result) = mpsc::channel();
        let job: Job = Box::new(move |clients, environment| {
            // The test that does not wait for its result has failed already.
            let _ = done.send(act(clients, environment));
        });
        self.jobs.send(job).expect("the control thread lives");
        self.doorbell.write(1).expect("room");
        result.recv_timeout(Duration::from_secs(20)).expect("the control thread turns")
    }

    /// The network changes.
    pub(crate) fn change(&self, changes: Vec<NetworkChange>) {
        self.on_control_thread(move |clients, environment| clients.on_changes(&changes, environment));
    }

    /// Completions lost because their queue was full, on all workers.
    pub(crate) fn cq_overruns(&self) -> u64 {
        let workers = self.workers;
        self.on_control_thread(move |_, environment| {
            (0..workers).map(|worker| counted(environment.workers, WorkerId(worker), QpCount::CqOverrun)).sum()
        })
    }

    /// How long all workers have computed so far.
    pub(crate) fn workers_computed(&self) -> Duration {
        eventually("all workers run", || self.worker_threads.lock().expect("no panic").len() == self.workers as usize);
        let threads = self.worker_threads.lock().expect("no panic");
        // The kernel's number of the clock of a thread of this process.
        let clocks = threads.iter().map(|thread| ClockId::from_raw(!thread.as_raw() << 3 | 6));
        clocks.map(|clock| Duration::from(clock_gettime(clock).expect("it runs"))).sum()
    }

    /// Sessions that there are.
    pub(crate) fn sessions(&self) -> usize {
        self.on_control_thread(|clients, _| clients.len())
    }

    /// Waits until the daemon has noticed that its clients went.
    pub(crate) fn wait_until_empty(&self) {
        eventually("every session ended", || self.sessions() == 0);
    }

    /// Ends at once, as a killed daemon does: sockets close, nothing is said.
    pub(crate) fn kill(mut self) {
        self.abandon.store(true, Ordering::Relaxed);
        self.end();
    }

    fn end(&mut self) {
        let (nobody, _) = mpsc::channel();
        self.jobs = nobody;
        self.doorbell.write(1).expect("room");
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the control thread ended well");
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.end();
        }
    }
}

/// Initial state of the control thread.
struct Control {
    how: How,
    network: FakeNetwork,
    todo: mpsc::Receiver<Job>,
    doorbell: Arc<EventFd>,
    abandon: Arc<AtomicBool>,
    worker_threads: Arc<Mutex<Vec<Pid>>>,
}

impl Control {
    fn run(mut self, listener: ClientListener) {
        let how = self.how.clone();
        let device = DeviceId(0);
        let endpoints = Endpoints::new((0..how.workers).map(|worker| (device, WorkerId(worker))));
        let endpoints = Arc::new(endpoints.expect("few workers"));
        let wakers: Vec<_> = (0..how.workers).map(|_| Arc::new(Waker::new().expect("an eventfd"))).collect();
        let (events, senders) = events(how.workers as usize).expect("an eventfd");
        let (mads, mad_senders) = mads(how.workers as usize, 1000).expect("an eventfd");
        let senders = senders.into_iter().zip(mad_senders);
        let board = SleepBoard::create(how.workers).expect("a memfd");
        let (mut handles, mut threads) = (Vec::new(), Vec::new());
        for (((number, waker), handoff), (events, mads)) in (0..).zip(&wakers).zip(handoffs(&wakers)).zip(senders) {
            let (_, queue_inbox) = mailbox(Arc::clone(waker));
            let (mailbox, inbox) = mailbox(Arc::clone(waker));
            let heartbeat = Arc::new(AtomicU64::new(0));
            let outgoing = OutgoingMads::new();
            let worker_endpoints = endpoints.of_worker(WorkerId(number)).map(|place| WorkerEndpoint::<NoNic> {
                place,
                endpoint: Endpoint::new(EndpointConfig {
                    id: place.endpoint,
                    max_mrs: how.limits.device.mrs,
                    max_ahs: how.limits.device.ahs + 1,
                    max_srqs: how.limits.device.srq_places(),
                    max_attachments: how.limits.device.attachments,
                    max_qps: how.qps,
                    total_window_packets: 1024,
                    recovery: RecoveryConfig::default(),
                    partitions: Partitions::new(&PKEYS),
                })
                .with_ids(place.ids),
                queues: Vec::new(),
                max_qps: how.qps,
            });
            let mut worker = Worker::new(WorkerParts {
                id: WorkerId(number),
                policy: how.policy,
                worker_endpoints: worker_endpoints.collect(),
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
                max_sessions: how.limits.clients,
                max_objects: 256,
                max_cq_rings: 256,
            })
            .expect("a worker");
            handles.push(WorkerHandle { mailbox, outgoing, waker: Arc::clone(waker), heartbeat });
            let numbers = Arc::clone(&self.worker_threads);
            threads.push(ends::spawn(move || {
                numbers.lock().expect("no panic").push(gettid());
                worker.run()
            }));
        }
        let setup = DeviceSetup {
            id: device,
            name: DEVICE.into(),
            window_packets: 64,
            credits: true,
            priorities: PacketPriorities::default(),
            pkeys: PKEYS.to_vec(),
            endpoints: endpoints.of_device(device).collect(),
            qps_per_endpoint: how.qps,
        };
        let told = Arc::clone(&self.network.told);
        let mut workers = MaybeStuck { workers: workers::Workers::new(handles, endpoints), told };
        let rules = how.access.into_iter().map(|rule| rule.limits).collect();
        let mut clients =
            Clients::new(listener, vec![setup], how.limits, rules, board, mads.filters()).expect("an epoll set");
        if let Some((most, most_of_an_account)) = how.mappings {
            clients = clients.with_mappings(most, most_of_an_account);
        }
        loop {
            let mut fds =
                [clients.as_fd(), events.as_fd(), self.doorbell.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
            let wait =
                clients.deadline().map_or(Duration::from_secs(1), |due| due.saturating_duration_since(Instant::now()));
            poll(&mut fds, wait.as_millis().min(1000) as u16).expect("poll");
            let jobs_wait = fds[2].any() == Some(true);
            let mut environment = Environment { workers: &mut workers, network: &mut self.network };
            clients.on_readable(&mut environment);
            if clients.deadline().is_some_and(|due| due <= Instant::now()) {
                clients.on_deadline(Instant::now(), &mut environment);
            }
            events.clear();
            while let Some(event) = events.pop() {
                clients.on_worker_event(event, &mut environment);
            }
            if jobs_wait {
                let _ = self.doorbell.read().expect("it was readable");
                loop {
                    match self.todo.try_recv() {
                        Ok(job) => job(&mut clients, &mut environment),
                        Err(mpsc::TryRecvError::Empty) => break,
                        Err(mpsc::TryRecvError::Disconnected) => {
                            if !self.abandon.load(Ordering::Relaxed) {
                                clients.stop(&mut environment);
                                clients.destroy_objects(&mut environment);
                            }
                            drop(clients);
                            for worker in 0..threads.len() {
                                workers.call(WorkerId(worker as u32), Command::Stop).expect("it turns");
                            }
                            threads.into_iter().for_each(|thread| thread.join().expect("the worker ended well"));
                            return;
                        }
                    }
                }
            }
        }
    }
}

/// Waits until `what` holds.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Runs the test `name` in a process of its own, where nothing else maps or opens anything; true in
/// that process.
pub(crate) fn is_alone(name: &str) -> bool {
    let Some(mut alone) = alone(name) else { return true };
    let output = alone.arg("--nocapture").output().expect("this test runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    false
}

/// The test `name`, to be run in a process of its own; nothing in that process.
pub(crate) fn alone(name: &str) -> Option<process::Command> {
    const VARIABLE: &str = "ROCED_TEST_ALONE";
    if std::env::var_os(VARIABLE).is_some() {
        return None;
    }
    let mut alone = process::Command::new(std::env::current_exe().expect("a test"));
    alone.args(["--exact", name]).env(VARIABLE, "1");
    Some(alone)
}

/// A client that sends arbitrary messages.
pub(crate) struct Raw {
    socket: OwnedFd,
    sequence: u32,
}

impl Raw {
    pub(crate) fn connect(path: &Path) -> Self {
        let fd = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).expect("a socket");
        connect(fd.as_raw_fd(), &UnixAddr::new(path).expect("short")).expect("the daemon listens");
        Self { socket: fd, sequence: 0 }
    }

    /// One over a connected socket, that has shaken hands.
    pub(crate) fn over(socket: OwnedFd) -> Self {
        let mut raw = Self { socket, sequence: 0 };
        raw.call::<Hello>(HelloRequest { version: roced_abi::VERSION, program: [0; 16] }).expect("the right version");
        raw
    }

    /// One that has shaken hands.
    pub(crate) fn greeted(path: &Path) -> Self {
        let mut raw = Self::connect(path);
        raw.call::<Hello>(HelloRequest { version: roced_abi::VERSION, program: [0; 16] }).expect("the right version");
        raw
    }

    /// Sends bytes as one message, with file descriptors.
    pub(crate) fn put(&self, bytes: &[u8], fds: &[RawFd]) {
        let rights = [ControlMessage::ScmRights(fds)];
        let control = if fds.is_empty() { &[][..] } else { &rights[..] };
        let flags = MsgFlags::MSG_NOSIGNAL;
        sendmsg::<()>(self.socket.as_raw_fd(), &[IoSlice::new(bytes)], control, flags, None).expect("room");
    }

    /// The next message, or `None` when the daemon has closed.
    pub(crate) fn get(&self) -> Option<Message> {
        let mut fds = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
        assert_eq!(poll(&mut fds, 20_000u16), Ok(1), "the daemon answers or closes");
        let mut bytes = [0; MESSAGE_BYTES + 1];
        match recv(self.socket.as_raw_fd(), &mut bytes, MsgFlags::empty()) {
            Ok(0) | Err(nix::errno::Errno::ECONNRESET) => None,
            Ok(length) => Some(Message::read_from_bytes(&bytes[..length]).expect("a whole message")),
            Err(error) => panic!("recv: {error}"),
        }
    }

    /// A call; file descriptors beside its reply are dropped.
    pub(crate) fn call<C: Call>(&mut self, request: C::Request) -> Result<C::Reply, (Refusal, [u64; 2])> {
        self.call_with::<C>(request, &[])
    }

    /// A call with file descriptors beside it.
    pub(crate) fn call_with<C: Call>(
        &mut self,
        request: C::Request,
        fds: &[RawFd],
    ) -> Result<C::Reply, (Refusal, [u64; 2])> {
        let reply = self.say_with(C::OP, &request, fds).expect("the session lives");
        match Refusal::from_status(reply.header.status) {
            None => Ok(reply.body()),
            Some(refusal) => Err((refusal, reply.body())),
        }
    }

    /// Any operation with any body.
    pub(crate) fn say<B: IntoBytes + zerocopy::Immutable>(&mut self, op: u32, body: &B) -> Option<Message> {
        self.say_with(op, body, &[])
    }

    /// Any operation with any body and any file descriptors.
    pub(crate) fn say_with<B: IntoBytes + zerocopy::Immutable>(
        &mut self,
        op: u32,
        body: &B,
        fds: &[RawFd],
    ) -> Option<Message> {
        self.sequence += 1;
        self.put(Message::new(op, self.sequence, body).as_bytes(), fds);
        let reply = self.get()?;
        assert_eq!((reply.header.op, reply.header.sequence), (op, self.sequence));
        Some(reply)
    }

    /// True when the daemon has closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.get().is_none()
    }
}

impl AsFd for Raw {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
