//! Memory windows and other keys that change, by the client library, against control thread and
//! several workers.

mod served;

use std::time::Duration;

use roced::config::{ClientLimits, LimitsConfig};
use roced_client::{
    Access, Completion, CompletionOp, CompletionQueue, ConnectOptions, Device, Error, MemoryRegion, ProtectionDomain,
    QueuePair, RecvRequest, Refusal, RemoteMemory, Reregistration, SendRequest, Status, WindowBinding, WindowKind,
};
use served::{DEVICE, How, Served};

const SOON: Duration = Duration::from_secs(20);

/// Access to the region of memory windows: peers reach it only by a window.
const BINDABLE: Access = Access::WINDOW_BIND;

/// One end: queue pairs that alternate between the workers, each with its own completion queue.
struct End {
    pd: ProtectionDomain,
    ends: Vec<(QueuePair, CompletionQueue)>,
    memory: MemoryRegion,
}

impl End {
    fn new(served: &Served, qps: usize, access: Access) -> Self {
        let device = Device::open_at(&served.socket, DEVICE).expect("it is served");
        let pd = device.protection_domain().expect("a domain");
        let ends = (0..qps).map(|_| queue_pair(&device, &pd)).collect();
        let memory = pd.allocate(1 << 16, access).expect("memory");
        Self { pd, ends, memory }
    }

    fn post(&self, at: usize, request: &SendRequest<'_>) -> Completion {
        let (qp, cq) = &self.ends[at];
        qp.post_send(&request.signaled()).expect("room");
        completion(cq)
    }

    fn bind(&self, at: usize, binding: &WindowBinding) -> Completion {
        self.post(at, &SendRequest::bind(binding))
    }

    fn write(&self, at: usize, value: u64, to: RemoteMemory) -> Status {
        self.post(at, &SendRequest::write_inline(&value.to_ne_bytes(), to)).status
    }
}

fn queue_pair(device: &Device, pd: &ProtectionDomain) -> (QueuePair, CompletionQueue) {
    let cq = device.completion_queue(256).expect("a queue");
    (pd.queue_pair(&cq, &cq).create().expect("a queue pair"), cq)
}

fn completion(cq: &CompletionQueue) -> Completion {
    let mut one = [Completion::EMPTY];
    assert_eq!(cq.wait(&mut one, SOON).expect("the daemon lives"), 1, "it completes");
    one[0]
}

fn connect(here: &End, there: &End, at: usize) {
    let options = ConnectOptions { access: Access::ALL, ..ConnectOptions::default() };
    let (a, b) = (&here.ends[at].0, &there.ends[at].0);
    for qp in [a, b] {
        // For any state before, and any remains of it.
        qp.reset().expect("from anywhere");
    }
    for (_, cq) in [&here.ends[at], &there.ends[at]] {
        while cq.poll(&mut [Completion::EMPTY; 8]).expect("the daemon lives") > 0 {}
    }
    a.connect(&b.address(0).expect("a GID"), &options).expect("b is here");
    b.connect(&a.address(0).expect("a GID"), &options).expect("a is here");
}

/// A server with memory to be accessed, and a client; each has a queue pair on each of two workers.
fn pair(served: &Served) -> (End, End) {
    let (server, client) = (End::new(served, 2, BINDABLE | Access::LOCAL_WRITE), End::new(served, 2, Access::ALL));
    (0..2).for_each(|at| connect(&server, &client, at));
    let workers: Vec<u32> = server.ends.iter().map(|(qp, _)| qp.qpn() >> 18).collect();
    assert_ne!(workers[0], workers[1], "on different workers");
    (server, client)
}

fn two_workers() -> Served {
    Served::start_as(How { workers: 2, ..How::default() })
}

fn word(server: &End, at: usize) -> u64 {
    server.memory.atomic(at).load(std::sync::atomic::Ordering::Acquire)
}

/// A window of type 1 is bound by the queue pair of one worker and used by that of the other. Once
/// its binding has completed it opens there, and once it is bound away it does not, not once.
#[test]
fn bound_on_one_worker_used_on_another_taken_back_and_refused() {
    let served = two_workers();
    let (server, client) = pair(&served);
    let window = server.pd.memory_window(WindowKind::One).expect("a window");
    for round in 0..40 {
        let binding = window.bind(&server.memory, 64..128, Access::REMOTE_WRITE);
        assert_eq!(server.bind(0, &binding).ok().expect("bound").op, CompletionOp::BindWindow);
        assert_eq!(client.write(1, round, binding.remote()), Status::Success);
        assert_eq!(word(&server, 64), round);
        // Bound elsewhere, or to nothing.
        let elsewhere = window.bind(&server.memory, if round % 2 == 0 { 256..320 } else { 0..0 }, Access::REMOTE_WRITE);
        assert_eq!(server.bind(0, &elsewhere).status, Status::Success);
        assert_eq!(client.write(1, 77, binding.remote()), Status::RemoteAccess, "round {round}");
        assert_eq!(word(&server, 64), round);
        connect(&server, &client, 1);
    }
}

/// The same under a stream of WRITEs: from the moment that the taking back has completed not a byte
/// changes any more.
#[test]
fn a_stream_through_a_window_ends_where_its_taking_back_completes() {
    let served = two_workers();
    let (server, client) = pair(&served);
    let window = server.pd.memory_window(WindowKind::One).expect("a window");
    for round in 0..20 {
        let binding = window.bind(&server.memory, 0..8, Access::REMOTE_WRITE);
        assert_eq!(server.bind(0, &binding).status, Status::Success);
        server.memory.fill(0, 8, 0);
        let (qp, cq) = &client.ends[1];
        let ended = std::thread::scope(|scope| {
            let stream = scope.spawn(|| {
                let mut value = 1_u64;
                let mut reaped = [Completion::EMPTY; 16];
                loop {
                    let bytes = value.to_ne_bytes();
                    let request = SendRequest::write_inline(&bytes, binding.remote());
                    if qp.post_send(&request.signaled()).is_ok() {
                        value += 1;
                    }
                    let count = cq.poll(&mut reaped).expect("the daemon lives");
                    if let Some(failed) = reaped[..count].iter().find(|completion| completion.status != Status::Success)
                    {
                        return failed.status;
                    }
                }
            });
            while word(&server, 0) < 20 {
                std::thread::yield_now();
            }
            let nothing = window.bind(&server.memory, 0..0, Access::REMOTE_WRITE);
            assert_eq!(server.bind(0, &nothing).status, Status::Success);
            let last = word(&server, 0);
            let ended = stream.join().expect("it ends");
            assert_eq!(word(&server, 0), last, "round {round}: nothing was written behind it");
            ended
        });
        assert_eq!(ended, Status::RemoteAccess);
        connect(&server, &client, 1);
    }
}

#[test]
fn a_window_of_type_two_is_its_queue_pairs_and_a_send_takes_it_back() {
    let served = two_workers();
    let (server, client) = pair(&served);
    let window = server.pd.memory_window(WindowKind::Two).expect("a window");
    let mut old = window.bind(&server.memory, 0..64, Access::REMOTE_WRITE);
    assert_eq!(server.bind(0, &old).status, Status::Success);
    assert_eq!(client.write(1, 1, old.remote()), Status::RemoteAccess, "another queue pair's");
    connect(&server, &client, 1);
    for round in 0..20 {
        assert_eq!(client.write(0, round, old.remote()), Status::Success);
        let (qp, cq) = &server.ends[0];
        qp.post_recv(&RecvRequest::new(&[]).id(round)).expect("room");
        if round % 2 == 0 {
            let sent = client.post(0, &SendRequest::send(&[]).invalidate(old.remote().rkey));
            assert_eq!(sent.status, Status::Success);
            let received = completion(cq).ok().expect("it arrived");
            assert_eq!((received.op, received.invalidated), (CompletionOp::Recv, Some(old.remote().rkey)));
        } else {
            let invalidated = server.post(0, &SendRequest::local_invalidate(old.remote().rkey));
            assert_eq!(invalidated.ok().expect("done").op, CompletionOp::LocalInvalidate);
        }
        let next = window.bind(&server.memory, 0..64, Access::REMOTE_WRITE);
        assert_ne!(next.remote().rkey, old.remote().rkey);
        if round % 5 == 4 {
            assert_eq!(client.write(0, 77, old.remote()), Status::RemoteAccess);
            connect(&server, &client, 0);
        }
        assert_eq!(server.bind(0, &next).status, Status::Success);
        if round % 5 == 3 {
            assert_eq!(client.write(0, 77, old.remote()), Status::RemoteAccess, "by its name of before");
            connect(&server, &client, 0);
        }
        assert_eq!(word(&server, 0), round);
        old = next;
    }
}

/// IBTA v1 10.6.7: only the queue pair to which a window of type 2B is bound takes it back by
/// LOCAL_INV.
#[test]
fn a_queue_pair_does_not_invalidate_the_window_of_another() {
    let served = two_workers();
    let (server, client) = pair(&served);
    let window = server.pd.memory_window(WindowKind::Two).expect("a window");
    let binding = window.bind(&server.memory, 0..64, Access::REMOTE_WRITE);
    assert_eq!(server.bind(0, &binding).status, Status::Success);
    let invalidate = SendRequest::local_invalidate(binding.remote().rkey);
    assert_eq!(server.post(1, &invalidate).status, Status::LocalQpOperation, "bound to the other queue pair");
    assert_eq!(client.write(0, 5, binding.remote()), Status::Success, "the window still opens");
    assert_eq!(word(&server, 0), 5);
    assert_eq!(server.post(0, &invalidate).status, Status::Success, "bound to this one");
    assert_eq!(client.write(0, 6, binding.remote()), Status::RemoteAccess);
    assert_eq!(word(&server, 0), 5);
}

#[test]
fn range_rights_and_addresses_are_the_windows() {
    let served = two_workers();
    let (server, client) = pair(&served);
    let window = server.pd.memory_window(WindowKind::Two).expect("a window");
    let check = |access, request: &dyn Fn(RemoteMemory) -> SendRequest<'static>, wanted| {
        let binding = window.bind(&server.memory, 800..1600, access).zero_based();
        assert_eq!(server.bind(0, &binding).status, Status::Success);
        let status = client.post(0, &request(binding.remote())).status;
        assert_eq!(status, wanted);
        if status != Status::Success {
            connect(&server, &client, 0);
        }
        assert_eq!(server.post(0, &SendRequest::local_invalidate(binding.remote().rkey)).status, Status::Success);
    };
    let write = |to: RemoteMemory| SendRequest::write_inline(&[7; 8], to);
    let at = |offset: u64| move |to: RemoteMemory| RemoteMemory { va: to.va.wrapping_add(offset), ..to };
    check(Access::REMOTE_WRITE, &|to| write(at(792)(to)), Status::Success);
    assert_eq!((server.memory.byte(1599), server.memory.byte(1591)), (7, 0), "from 0 on");
    check(Access::REMOTE_WRITE, &|to| write(at(793)(to)), Status::RemoteAccess);
    check(Access::REMOTE_WRITE, &|to| write(at(u64::MAX)(to)), Status::RemoteAccess);
    check(Access::REMOTE_READ, &write, Status::RemoteAccess);
    check(Access::REMOTE_WRITE, &|to| SendRequest::read(&[], RemoteMemory { va: 1 << 40, ..to }), Status::Success);
}

/// Bindings that complete with [`Status::WindowBind`], and the region that cannot be deregistered
/// while a window is bound to it.
#[test]
fn an_invalid_window_binding_is_refused() {
    let served = two_workers();
    let (server, client) = pair(&served);
    let refused = |binding: WindowBinding| {
        assert_eq!(server.bind(0, &binding).status, Status::WindowBind, "{binding:?}");
        connect(&server, &client, 0);
    };
    let (one, two) = (server.pd.memory_window(WindowKind::One), server.pd.memory_window(WindowKind::Two));
    let (one, two) = (one.expect("a window"), two.expect("a window"));
    let all = Access::REMOTE_WRITE | Access::REMOTE_READ;
    // A region without the right, one that local work cannot write, one of another domain.
    let closed = server.pd.allocate(4096, Access::ALL).expect("memory");
    let closed = {
        let mut closed = closed;
        let access = Some(Access::REMOTE_WRITE);
        closed.reregister(&Reregistration { access, ..Reregistration::default() }).expect("no window is bound");
        closed
    };
    refused(two.bind(&closed, .., all));
    let readable = server.pd.allocate(4096, BINDABLE).expect("memory");
    refused(two.bind(&readable, .., all));
    assert_eq!(server.bind(0, &two.bind(&readable, .., Access::REMOTE_READ)).status, Status::Success);
    let other = server.pd.device().protection_domain().expect("a domain");
    let foreign = other.allocate(4096, Access::ALL).expect("memory");
    refused(one.bind(&foreign, .., all));
    let foreign_window = other.memory_window(WindowKind::Two).expect("a window");
    refused(foreign_window.bind(&server.memory, .., all));
    // Zero-based is for type 2; no bytes are for type 1; a bound window is invalidated first.
    refused(one.bind(&server.memory, .., all).zero_based());
    refused(two.bind(&server.memory, .., all));
    let invalid = server.post(0, &SendRequest::local_invalidate(two.rkey()));
    assert_eq!(invalid.status, Status::LocalQpOperation, "that name was never given");
    connect(&server, &client, 0);

    let (readable, error) = readable.deregister().expect_err("a window is bound to it");
    assert!(matches!(error, Error::Refused { refusal: Refusal::InUse, detail: [1, 0], .. }), "{error}");
    drop(two);
    readable.deregister().map_err(|(_, error)| error).expect("no window is bound to it any more");
    let two = server.pd.memory_window(WindowKind::Two).expect("a window");
    refused(two.bind(&server.memory, 0..0, all));
}

/// A queue pair takes its windows with it: the next of its number does not have them.
#[test]
fn a_queue_pair_that_ends_takes_its_windows_with_it() {
    let served = two_workers();
    let (mut server, client) = pair(&served);
    let window = server.pd.memory_window(WindowKind::Two).expect("a window");
    assert_eq!(server.bind(0, &window.bind(&server.memory, .., Access::REMOTE_READ)).status, Status::Success);
    drop(server.ends.remove(0));
    let memory = server.memory.deregister().map_err(|(_, error)| error);
    memory.expect("no window is bound to it any more");
    drop(client);
}

#[test]
fn regions_and_windows_share_one_limit() {
    let client = ClientLimits { mrs: 3, ..ClientLimits::default() };
    let served = Served::start_as(How { limits: LimitsConfig { client, ..LimitsConfig::default() }, ..How::default() });
    let device = Device::open_at(&served.socket, DEVICE).expect("it is served");
    let pd = device.protection_domain().expect("a domain");
    let limit = |error: Error| matches!(error, Error::Refused { refusal: Refusal::Limit, .. });
    let _region = pd.allocate(4096, Access::ALL).expect("one");
    let _window = pd.memory_window(WindowKind::One).expect("two");
    let last = pd.memory_window(WindowKind::Two).expect("three");
    assert!(limit(pd.memory_window(WindowKind::Two).expect_err("four")));
    assert!(limit(pd.allocate(4096, Access::ALL).expect_err("four")));
    drop(last);
    let _region = pd.allocate(4096, Access::ALL).expect("three again");
}

#[test]
fn a_reregistered_region_is_another_under_its_old_keys() {
    let served = two_workers();
    let (server, client) = pair(&served);
    let mut region = server.pd.allocate(8192, Access::REMOTE_WRITE).expect("memory");
    let (keys, device) = ((region.lkey(), region.rkey()), server.pd.device());
    assert_eq!(client.write(1, 1, region.remote()), Status::Success);
    // Another memory, a part of it.
    let memory = device.allocate(16_384).expect("memory");
    region
        .reregister(&Reregistration { range: Some((&memory, 4096, 100)), ..Reregistration::default() })
        .expect("free");
    assert_eq!((region.len(), (region.lkey(), region.rkey())), (100, keys));
    assert_eq!(client.write(1, 2, region.remote().at(92)), Status::Success);
    assert_eq!(region.to_vec(92, 8), 2_u64.to_ne_bytes());
    assert_eq!(client.write(1, 3, RemoteMemory { length: 1000, ..region.remote() }.at(93)), Status::RemoteAccess);
    connect(&server, &client, 1);
    // Fewer rights.
    region
        .reregister(&Reregistration { access: Some(Access::LOCAL_WRITE), ..Reregistration::default() })
        .expect("free");
    assert_eq!(client.write(1, 4, region.remote()), Status::RemoteAccess);
    connect(&server, &client, 1);
    // Another domain.
    let pd = device.protection_domain().expect("a domain");
    let access = Some(Access::REMOTE_WRITE | BINDABLE);
    region.reregister(&Reregistration { pd: Some(&pd), access, ..Reregistration::default() }).expect("free");
    assert_eq!(client.write(1, 5, region.remote()), Status::RemoteAccess);
    connect(&server, &client, 1);
    let back = Reregistration { pd: Some(&server.pd), ..Reregistration::default() };
    region.reregister(&back).expect("free");
    assert_eq!(client.write(1, 6, region.remote()), Status::Success);
    // Not with a window bound to it, nor beyond its memory.
    let window = server.pd.memory_window(WindowKind::Two).expect("a window");
    assert_eq!(server.bind(0, &window.bind(&region, .., Access::REMOTE_READ)).status, Status::Success);
    let error = region.reregister(&back).expect_err("in use");
    assert!(matches!(error, Error::Refused { refusal: Refusal::InUse, .. }), "{error}");
    drop(window);
    let beyond = Reregistration { range: Some((&memory, 16_000, 385)), ..Reregistration::default() };
    assert!(matches!(region.reregister(&beyond), Err(Error::OutOfRange { .. })));
    assert_eq!(client.write(1, 7, region.remote()), Status::Success);
}
