//! Shared receive queues, by the client library and by messages of its own on the socket, against
//! control thread and workers.

mod served;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::FileExt,
    time::Duration,
};

use roced::config::{AccountLimits, ClientLimits, DeviceLimits, LimitsConfig};
use roced_abi::control::{
    AllocPd, CreateCq, CreateCqRequest, CreateQp, CreateQpRequest, CreateSrq, CreateSrqReply, CreateSrqRequest,
    DeallocPd, DestroyQp, DestroySrq, DeviceName, Handle, ModifySrq, ModifySrqRequest, Nothing, OpenDevice, QuerySrq,
};
use roced_client::{
    Access, Completion, CompletionOp, CompletionQueue, ConnectOptions, Device, DeviceEvent, Error, MemoryRegion,
    ProtectionDomain, QueuePair, RecvRequest, Refusal, SendRequest, SharedReceiveQueue, Status,
};
use roced_types::service;
use served::{DEVICE, How, Raw, Served, eventually, is_alone};

const SOON: Duration = Duration::from_secs(20);

/// Bytes of each receive's buffer, several packets.
const BUFFER: usize = 10_000;

/// One program with a shared receive queue, and queue pairs that take from it, each connected to a
/// queue pair of another program.
struct Hub {
    device: Device,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    srq: SharedReceiveQueue,
    buffers: MemoryRegion,
    spokes: Vec<(QueuePair, Spoke)>,
}

/// The other end.
struct Spoke {
    qp: QueuePair,
    memory: MemoryRegion,
}

impl Hub {
    fn new(served: &Served, wrs: u32) -> Self {
        let device = open(served);
        let pd = device.protection_domain().expect("a domain");
        let cq = device.completion_queue(1024).expect("a queue");
        let srq = pd.shared_receive_queue(wrs, 2).expect("a shared queue");
        let buffers = pd.allocate(srq.wrs() as usize * BUFFER, Access::LOCAL_WRITE).expect("memory");
        Self { device, pd, cq, srq, buffers, spokes: Vec::new() }
    }

    /// With `count` queue pairs, and other programs at their other ends.
    fn with(served: &Served, wrs: u32, count: usize) -> Self {
        let mut hub = Self::new(served, wrs);
        for _ in 0..count {
            hub.add_spoke(served);
        }
        hub
    }

    fn add_spoke(&mut self, served: &Served) {
        let device = open(served);
        let pd = device.protection_domain().expect("a domain");
        let cq = device.completion_queue(256).expect("a queue");
        let there = pd.queue_pair(&cq, &cq).send_wrs(128).create().expect("a queue pair");
        let here = self.pd.queue_pair(&self.cq, &self.cq).shared_receives(&self.srq).create().expect("a queue pair");
        let options = ConnectOptions::default();
        here.connect(&there.address(0).expect("a GID"), &options).expect("it is there");
        there.connect(&here.address(0).expect("a GID"), &options).expect("it is here");
        let memory = pd.allocate(BUFFER, Access::LOCAL_WRITE).expect("memory");
        self.spokes.push((here, Spoke { qp: there, memory }));
    }

    /// The receive `number`, into the buffer of that number.
    fn post(&self, number: usize) {
        let at = number * BUFFER;
        let (first, second) = (self.buffers.sge(at..at + 100), self.buffers.sge(at + 100..at + BUFFER));
        let sges = [first, second];
        let request = RecvRequest::new(&sges).id(number as u64);
        eventually("room", || match self.srq.post_recv(&request) {
            Ok(()) => true,
            // The ring may be full an instant longer than the queue.
            Err(Error::QueueFull { .. }) if self.srq.outstanding() < self.srq.wrs() => false,
            Err(error) => panic!("{error}"),
        });
    }

    fn reap(&self) -> Completion {
        let mut one = [Completion::EMPTY];
        assert_eq!(self.cq.wait(&mut one, SOON).expect("the daemon lives"), 1, "a completion");
        one[0]
    }

    fn event(&self) -> DeviceEvent {
        let mut event = None;
        eventually("an event", || {
            event = self.device.next_event().expect("alive");
            event.is_some()
        });
        event.expect("it came")
    }

    fn no_event(&self) {
        // A worker has reported all earlier events before it answered this.
        self.srq.limit().expect("alive");
        self.device.port().expect("alive");
        assert_eq!(self.device.next_event().expect("alive"), None);
    }
}

impl Spoke {
    /// Sends `bytes` of a pattern that `seed` makes, and waits until they have arrived.
    fn send(&self, seed: usize, bytes: usize) {
        self.memory.write_at(0, &pattern(seed, bytes));
        self.qp.post_send(&SendRequest::send(&[self.memory.sge(..bytes)]).signaled()).expect("room");
        let mut one = [Completion::EMPTY];
        assert_eq!(self.qp.send_cq().wait(&mut one, SOON).expect("the daemon lives"), 1, "it arrives");
        one[0].ok().expect("it arrived");
    }
}

fn open(served: &Served) -> Device {
    Device::open_at(&served.socket, DEVICE).expect("it is served")
}

fn pattern(seed: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 31 + at / 251 + seed * 7) as u8).collect()
}

/// Six programs send at the same time, messages of many lengths, to one that has fewer receives
/// than they send: each message takes one receive, has it for itself, and of each queue pair they
/// come in order.
#[test]
fn many_queue_pairs_take_from_one_queue() {
    const MESSAGES: usize = 100;
    let served = Served::start();
    let hub = Hub::with(&served, 8, 6);
    let workers: BTreeSet<u32> = hub.spokes.iter().map(|(qp, _)| (qp.qpn() >> 18) % 2).collect();
    assert_eq!(workers.len(), 1, "all live with the queue");
    let length = |spoke: usize, message: usize| (spoke * 7919 + message * 373) % BUFFER;
    (0..hub.srq.wrs() as usize).for_each(|number| hub.post(number));
    assert!(matches!(
        hub.srq.post_recv(&RecvRequest::new(&[])),
        Err(Error::QueueFull { queue: "shared receive", depth: 8 })
    ));
    std::thread::scope(|scope| {
        for (at, (_, spoke)) in hub.spokes.iter().enumerate() {
            scope.spawn(move || (0..MESSAGES).for_each(|message| spoke.send(at * 1000 + message, length(at, message))));
        }
        let numbers: BTreeMap<u32, usize> = hub.spokes.iter().zip(0..).map(|((qp, _), at)| (qp.qpn(), at)).collect();
        let mut next = [0; 6];
        for _ in 0..6 * MESSAGES {
            let received = hub.reap().ok().expect("it arrived");
            let (at, number) = (numbers[&received.qpn], received.wr_id as usize);
            let bytes = length(at, next[at]);
            assert_eq!((received.op, received.byte_len as usize), (CompletionOp::Recv, bytes));
            let arrived = hub.buffers.to_vec(number * BUFFER, bytes);
            assert!(arrived == pattern(at * 1000 + next[at], bytes), "message {} of {at}", next[at]);
            next[at] += 1;
            hub.post(number);
        }
        assert_eq!(next, [MESSAGES; 6]);
    });
    assert_eq!(hub.srq.outstanding(), 8);
}

#[test]
fn queues_are_spread_over_the_workers() {
    let served = Served::start();
    let pd = open(&served).protection_domain().expect("a domain");
    let srqs: Vec<_> = (0..4).map(|_| pd.shared_receive_queue(1, 1).expect("below the limit")).collect();
    let workers: BTreeSet<u32> = srqs.iter().map(|srq| srq.srqn() >> 18).collect();
    assert_eq!(workers.len(), 2);
}

#[test]
fn the_limit_is_told_once_for_each_time_that_it_is_armed() {
    let served = Served::start();
    let hub = Hub::with(&served, 256, 2);
    let told = DeviceEvent::SrqLimit { srqn: hub.srq.srqn() };
    // More than a worker takes in one poll iteration: all of them count, whenever it takes them.
    (0..200).for_each(|number| hub.post(number));
    hub.srq.arm_limit(198).expect("no more than it holds");
    assert_eq!(hub.srq.limit().expect("alive"), 198);
    let send = |seed: usize| {
        hub.spokes[seed % 2].1.send(seed, 10);
        hub.reap().ok().expect("it arrived");
    };
    (0..2).for_each(send);
    hub.no_event();
    send(2);
    assert_eq!(hub.event(), told);
    assert_eq!(hub.srq.limit().expect("alive"), 0, "disarmed by that");
    (3..6).for_each(send);
    hub.no_event();
    // Below it already.
    hub.srq.arm_limit(256).expect("no more than it holds");
    assert_eq!(hub.event(), told);
    hub.srq.arm_limit(190).expect("no more than it holds");
    hub.srq.arm_limit(0).expect("off");
    (6..20).for_each(send);
    hub.no_event();
}

#[test]
fn a_queue_pair_that_fails_tells_its_last_wqe_and_leaves_the_others_theirs() {
    let served = Served::start();
    let mut hub = Hub::with(&served, 4, 2);
    (0..4).for_each(|number| hub.post(number));
    hub.spokes[0].0.to_error().expect("from anywhere");
    assert_eq!(hub.event(), DeviceEvent::LastWqe { qpn: hub.spokes[0].0.qpn() });
    for number in 0..2 {
        hub.spokes[1].1.send(number, 50);
        assert_eq!(hub.reap().ok().expect("it arrived").wr_id, number as u64);
    }
    // A queue pair that fails by itself flushes the receive that it had taken, and that alone.
    hub.spokes[1].1.memory.write_at(0, &[1; BUFFER]);
    let long = [hub.spokes[1].1.memory.sge(..), hub.spokes[1].1.memory.sge(..1)];
    hub.spokes[1].1.qp.post_send(&SendRequest::send(&long)).expect("room");
    let failed = hub.reap();
    assert_eq!((failed.wr_id, failed.status), (2, Status::LocalLength));
    let qpn = hub.spokes[1].0.qpn();
    assert_eq!([hub.event(), hub.event()], [DeviceEvent::QpRequestError { qpn }, DeviceEvent::LastWqe { qpn }]);
    assert_eq!(hub.srq.outstanding(), 1);
    hub.add_spoke(&served);
    hub.spokes[2].1.send(9, 50);
    assert_eq!(hub.reap().ok().expect("it arrived").wr_id, 3);
    assert_eq!(hub.srq.outstanding(), 0);
}

/// Receives with unreaped completions, of a queue pair that was destroyed before, return their
/// room.
#[test]
fn unreaped_receives_are_executed() {
    let served = Served::start();
    let mut hub = Hub::with(&served, 8, 2);
    (0..8).for_each(|number| hub.post(number));
    for _ in 0..2 {
        hub.spokes[0].1.send(1, 10);
        hub.spokes[1].1.send(1, 10);
    }
    assert_eq!(hub.srq.outstanding(), 8);
    hub.spokes.remove(0);
    assert_eq!((hub.srq.outstanding(), hub.cq.waiting().expect("alive")), (6, 2), "two have no owner");
    let mut reaped = [Completion::EMPTY; 8];
    let mut rest = 0;
    eventually("the other queue pair's", || {
        rest += hub.cq.poll(&mut reaped[rest..]).expect("alive");
        rest == 2
    });
    assert_eq!(hub.srq.outstanding(), 4, "two are reaped");
    hub.spokes[0].1.send(1, 10);
    assert_eq!(hub.srq.outstanding(), 4);
    hub.spokes.clear();
    assert_eq!(hub.srq.outstanding(), 3);
    hub.cq = hub.device.completion_queue(64).expect("a queue");
    assert_eq!(hub.srq.outstanding(), 3);
    (0..5).for_each(|number| hub.post(number));
    hub.add_spoke(&served);
    for _ in 0..8 {
        hub.spokes[0].1.send(1, 10);
        hub.reap().ok().expect("it arrived");
    }
    assert_eq!(hub.srq.outstanding(), 0);
}

#[test]
fn wrong_use_of_a_shared_receive_queue_gives_advice() {
    let served = Served::start();
    let hub = Hub::with(&served, 5, 1);
    assert_eq!((hub.srq.wrs(), hub.srq.sges()), (8, 2), "the next power of two");
    assert_eq!(hub.device.attributes().expect("alive").max_srqs, ClientLimits::default().srqs);
    let qp = &hub.spokes[0].0;
    let error = qp.post_recv(&RecvRequest::new(&[])).expect_err("not there");
    assert!(matches!(error, Error::SharedReceives) && error.to_string().contains("post them there"), "{error}");
    assert_eq!(qp.srq().map(SharedReceiveQueue::srqn), Some(hub.srq.srqn()));
    let three = [hub.buffers.sge(..1); 3];
    let outcome = hub.srq.post_recv(&RecvRequest::new(&three));
    assert!(matches!(outcome, Err(Error::TooManySges { asked: 3, limit: 2 })), "{outcome:?}");
    let outcome = hub.srq.arm_limit(9);
    let refused = |place, value| (Refusal::InvalidArgument, [place, value]);
    assert_eq!(refusal(outcome), refused(1, 9));
    assert_eq!(refusal(hub.pd.shared_receive_queue(1, 33).map(drop)), refused(2, 33));
    let other = open(&served);
    let (pd, cq) = (other.protection_domain().expect("a domain"), other.completion_queue(1).expect("a queue"));
    assert!(matches!(pd.queue_pair(&cq, &cq).shared_receives(&hub.srq).create(), Err(Error::OtherDevice { .. })));
    // The queue lives as long as a queue pair is on it.
    let Hub { srq, buffers, spokes, cq, .. } = hub;
    srq.post_recv(&RecvRequest::new(&[buffers.sge(..10)]).id(77)).expect("room");
    drop(srq);
    spokes[0].1.send(1, 10);
    let mut one = [Completion::EMPTY];
    assert_eq!(cq.wait(&mut one, SOON).expect("alive"), 1);
    assert_eq!(one[0].ok().expect("it arrived").wr_id, 77);
}

fn refusal(outcome: Result<(), Error>) -> (Refusal, [u64; 2]) {
    match outcome {
        Err(Error::Refused { refusal, detail, .. }) => (refusal, detail),
        other => panic!("a refusal, not {other:?}"),
    }
}

#[test]
fn a_dead_daemon_is_an_error_to_all_users_of_the_queue() {
    let served = Served::start();
    let hub = Hub::with(&served, 4, 1);
    hub.post(0);
    served.kill();
    let mut one = [Completion::EMPTY];
    assert!(matches!(hub.cq.wait(&mut one, SOON), Err(Error::DaemonGone)));
    assert!(matches!(hub.srq.post_recv(&RecvRequest::new(&[])), Err(Error::DaemonGone)));
    assert!(matches!(hub.srq.arm_limit(1), Err(Error::DaemonGone)));
}

#[test]
fn a_client_that_breaks_a_shared_ring_is_ended_and_the_others_go_on() {
    if !is_alone("a_client_that_breaks_a_shared_ring_is_ended_and_the_others_go_on") {
        return;
    }
    let served = Served::start();
    let sound = Hub::with(&served, 4, 1);
    let before = shared_rings();
    let broken = Hub::new(&served, 4);
    let ring = *shared_rings().difference(&before).next().expect("it is mapped");
    // An impossible action of a library: the producer's index, behind the back of the library and
    // the worker.
    let memory = fs::File::options().write(true).open("/proc/self/mem").expect("procfs");
    memory.write_all_at(&0x0bad_0bad_u32.to_ne_bytes(), ring).expect("it is mapped for writing");
    // The worker looks at the ring for this, and finds the lie.
    let _refused_or_not = broken.srq.arm_limit(1);
    eventually("its session ends", || served.sessions() == 2);
    sound.post(0);
    sound.spokes[0].1.send(1, 100);
    sound.reap().ok().expect("no other was disturbed");
}

/// Where rings of shared receive queues are mapped in this process, which is client and daemon.
fn shared_rings() -> BTreeSet<u64> {
    let maps = fs::read_to_string("/proc/self/maps").expect("procfs");
    let rings = maps.lines().filter(|line| line.contains("/memfd:roced-srq"));
    rings
        .map(|line| u64::from_str_radix(line.split('-').next().expect("an address"), 16).expect("an address"))
        .collect()
}

fn opened(served: &Served) -> Raw {
    let mut raw = Raw::greeted(&served.socket);
    raw.call::<OpenDevice>(DeviceName::new(DEVICE)).expect("it exists");
    raw
}

fn alloc_pd(raw: &mut Raw) -> u32 {
    raw.call::<AllocPd>(Nothing {}).expect("below the limit").handle
}

fn create(raw: &mut Raw, pd: u32) -> Result<CreateSrqReply, (Refusal, [u64; 2])> {
    raw.call::<CreateSrq>(CreateSrqRequest { pd, wrs: 4, sges: 1 })
}

fn on(raw: &mut Raw, pd: u32, srq: u32) -> Result<u32, (Refusal, [u64; 2])> {
    let cq = raw.call::<CreateCq>(CreateCqRequest { entries: 4, channel: 0 }).expect("below the limit").cqn;
    let request =
        CreateQpRequest { pd, send_cq: cq, recv_cq: cq, service: service::RC, srq, ..CreateQpRequest::default() };
    raw.call::<CreateQp>(request).map(|reply| reply.qpn)
}

#[test]
fn a_queue_of_another_client_is_none() {
    let served = Served::start();
    let (mut owner, mut thief) = (opened(&served), opened(&served));
    let (pd, other) = (alloc_pd(&mut owner), alloc_pd(&mut thief));
    let srqn = create(&mut owner, pd).expect("below the limit").srqn;
    let none = Err((Refusal::NoSuchObject, [srqn.into(), 0]));
    assert_eq!(on(&mut thief, other, srqn), none);
    assert_eq!(thief.call::<ModifySrq>(ModifySrqRequest { srqn, limit: 1 }).map(drop), none.map(drop));
    assert_eq!(thief.call::<QuerySrq>(Handle { handle: srqn }).map(drop), none.map(drop));
    assert_eq!(thief.call::<DestroySrq>(Handle { handle: srqn }).map(drop), none.map(drop));
    assert_eq!(create(&mut thief, pd).map(drop), Err((Refusal::NoSuchObject, [pd.into(), 0])));
    assert_eq!(owner.call::<QuerySrq>(Handle { handle: srqn }).expect("it is there").wrs, 4);
}

#[test]
fn a_queue_in_use_does_not_end_and_neither_does_its_domain() {
    let served = Served::start();
    let mut raw = opened(&served);
    let (own, shared) = (alloc_pd(&mut raw), alloc_pd(&mut raw));
    let srqn = create(&mut raw, shared).expect("below the limit").srqn;
    let qps = [(); 2].map(|()| on(&mut raw, own, srqn).expect("the domains may differ"));
    let in_use = |users| Err((Refusal::InUse, [users, 0]));
    assert_eq!(raw.call::<DestroySrq>(Handle { handle: srqn }).map(drop), in_use(2));
    assert_eq!(raw.call::<DeallocPd>(Handle { handle: shared }).map(drop), in_use(1));
    for qp in qps {
        raw.call::<DestroyQp>(Handle { handle: qp }).expect("it is there");
    }
    raw.call::<DestroySrq>(Handle { handle: srqn }).expect("unused now");
    raw.call::<DeallocPd>(Handle { handle: shared }).expect("unused now");
    let gone = raw.call::<DestroySrq>(Handle { handle: srqn }).map(drop);
    assert_eq!(gone, Err((Refusal::NoSuchObject, [srqn.into(), 0])));
}

/// A client's limit, the device's, and that of its memory; and that a client that dies, its queue
/// pairs in the middle of messages, leaves nothing.
#[test]
fn queues_have_limits_and_those_of_a_client_that_dies_make_room() {
    let client = ClientLimits { srqs: 2, memory_mib: 1, ..ClientLimits::default() };
    let account = AccountLimits { share_percent: 100, ..AccountLimits::default() };
    let device = DeviceLimits { srqs: 3, ..DeviceLimits::default() };
    let served = Served::start_as(How {
        limits: LimitsConfig { client, device, account, ..LimitsConfig::default() },
        ..How::default()
    });
    for _round in 0..3 {
        let (mut first, mut second) = (opened(&served), opened(&served));
        let (pd, other) = (alloc_pd(&mut first), alloc_pd(&mut second));
        let limit = |limit: u64| Err((Refusal::Limit, [limit, 0]));
        let big = CreateSrqRequest { pd, wrs: 16_384, sges: 32 };
        assert_eq!(first.call::<CreateSrq>(big).map(drop), limit(1 << 20), "its ring is the client's memory");
        let one = create(&mut first, pd).expect("below the limit");
        on(&mut first, pd, one.srqn).expect("its own");
        create(&mut first, pd).expect("below the limit");
        assert_eq!(create(&mut first, pd).map(drop), limit(2));
        create(&mut second, other).expect("below both limits");
        assert_eq!(create(&mut second, other).map(drop), limit(3));
        drop(first);
        eventually("room", || create(&mut second, other).is_ok());
        drop(second);
        served.wait_until_empty();
    }
}
