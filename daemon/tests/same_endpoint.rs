//! Queue pairs of one device: payload goes from memory to memory, in pieces that no wire would
//! carry, and yet all is as it is between hosts.

mod served;

use std::time::Duration;

use roced_client::{
    Access, Completion, CompletionQueue, ConnectOptions, Device, MemoryRegion, ProtectionDomain, QueuePair,
    RecvRequest, SendRequest, ServiceType, Sge, Status,
};
use served::{DEVICE, How, Served, pair::NO_ACK_TIMER};

const SOON: Duration = Duration::from_secs(20);

/// Around the end of a piece, around the eight bytes that are written last, and far beyond.
const LENGTHS: [usize; 14] = [0, 1, 7, 8, 9, 4095, 4097, 32_767, 32_768, 32_769, 65_536, 65_537, 100_003, 1 << 20];

/// One end, with a session of its own.
struct End {
    cq: CompletionQueue,
    qp: QueuePair,
    pd: ProtectionDomain,
    memory: MemoryRegion,
}

impl End {
    fn new(served: &Served, service: ServiceType) -> Self {
        let device = Device::open_at(&served.socket, DEVICE).expect("it is served");
        let pd = device.protection_domain().expect("a domain");
        let cq = device.completion_queue(64).expect("a queue");
        let qp = pd.queue_pair(&cq, &cq).service(service).send_sges(4).recv_sges(4).create().expect("a queue pair");
        let memory = pd.allocate(2 << 20, Access::ALL).expect("memory");
        Self { cq, qp, pd, memory }
    }

    /// `length` bytes from `at` in pieces of odd lengths.
    fn pieces(&self, at: usize, length: usize) -> [Sge; 3] {
        let (first, second) = (length / 5, length / 5 + length / 3);
        [(0, first), (first, second), (second, length)].map(|(from, to)| self.memory.sge(at + from..at + to))
    }

    fn next(&self) -> Completion {
        let mut one = [Completion::EMPTY];
        assert_eq!(self.cq.wait(&mut one, SOON).expect("the daemon lives"), 1, "it completes");
        one[0]
    }
}

fn connect(a: &End, b: &End, options: &ConnectOptions) {
    for qp in [&a.qp, &b.qp] {
        qp.reset().expect("from anywhere");
    }
    a.qp.connect(&b.qp.address(0).expect("a GID"), options).expect("b is here");
    b.qp.connect(&a.qp.address(0).expect("a GID"), options).expect("a is here");
}

fn pattern(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 31 + seed * 7 + at / 251) as u8).collect()
}

/// Everything of every length, gathered and scattered by pieces that are cut otherwise on either
/// side, arrives whole and touches nothing else.
fn exchange(a: &End, b: &End, ops: &[&str]) {
    const AT: usize = 4096 + 3;
    for (seed, length) in LENGTHS.into_iter().enumerate() {
        for op in ops {
            let data = pattern(length, seed);
            let (from, to) = if *op == "read" { (b, a) } else { (a, b) };
            to.memory.fill(0, AT + length + 64, 0xee);
            from.memory.write_at(AT + 5, &data);
            let remote = b.memory.remote().at(AT as u64);
            let (local, local_5) = (a.pieces(AT, length), a.pieces(AT + 5, length));
            let request = match *op {
                "write" => SendRequest::write(&local_5, remote),
                "read" => SendRequest::read(&local, b.memory.remote().at(AT as u64 + 5)),
                _ => {
                    b.qp.post_recv(&RecvRequest::new(&b.pieces(AT, length))).expect("room");
                    SendRequest::send(&local_5)
                }
            };
            a.qp.post_send(&request.signaled()).expect("room");
            assert_eq!(a.next().status, Status::Success, "{op} of {length}");
            if *op == "send" {
                let received = b.next();
                assert_eq!((received.status, received.byte_len as usize), (Status::Success, length));
            }
            assert!(to.memory.to_vec(AT, length) == data, "{op} of {length} differs from the sent bytes");
            let around = [to.memory.to_vec(0, AT), to.memory.to_vec(AT + length, 64)].concat();
            assert!(around.iter().all(|byte| *byte == 0xee), "{op} of {length} wrote beside it");
        }
    }
}

/// One worker: its queue pairs lend each other payload.
fn one_worker() -> Served {
    Served::start_as(How { workers: 1, ..How::default() })
}

/// Two workers, of which every second queue pair is on the other: they do not.
fn two_workers() -> Served {
    Served::start_as(How { workers: 2, ..How::default() })
}

#[test]
fn every_length_arrives_whole_on_one_worker_and_between_two() {
    for served in [one_worker(), two_workers()] {
        let (a, b) = (End::new(&served, ServiceType::Rc), End::new(&served, ServiceType::Rc));
        connect(&a, &b, &ConnectOptions::default());
        exchange(&a, &b, &["write", "read", "send"]);
        exchange(&b, &a, &["send", "read", "write"]);
    }
}

#[test]
fn an_unreliable_connection_lends_as_well() {
    for served in [one_worker(), two_workers()] {
        let (a, b) = (End::new(&served, ServiceType::Uc), End::new(&served, ServiceType::Uc));
        connect(&a, &b, &ConnectOptions::default());
        exchange(&a, &b, &["send"]);
    }
}

/// Sent data is the contents before the completion, for any later change by the program; with a
/// service that waits for no answer the completion comes first.
#[test]
fn a_buffer_is_its_owners_again_with_the_completion() {
    const LENGTH: usize = 1 << 20;
    for (served, service) in [
        (one_worker(), ServiceType::Uc),
        (two_workers(), ServiceType::Uc),
        (one_worker(), ServiceType::Rc),
        (two_workers(), ServiceType::Rc),
    ] {
        let (a, b) = (End::new(&served, service), End::new(&served, service));
        connect(&a, &b, &ConnectOptions::default());
        for round in 0..40 {
            let data = pattern(LENGTH, round);
            a.memory.write_at(0, &data);
            b.qp.post_recv(&RecvRequest::new(&[b.memory.sge(..LENGTH)])).expect("room");
            a.qp.post_send(&SendRequest::send(&[a.memory.sge(..LENGTH)]).signaled()).expect("room");
            assert_eq!(a.next().status, Status::Success);
            a.memory.fill(0, LENGTH, 0x5e);
            assert_eq!(b.next().status, Status::Success);
            assert!(b.memory.to_vec(0, LENGTH) == data, "{service:?}: bytes written after the completion were sent");
        }
    }
}

/// An invalidated key opens nothing, not even to a READ that is being answered: later writes there
/// do not reach it.
#[test]
fn bytes_written_after_invalidation_are_not_read() {
    const LENGTH: usize = 1 << 20;
    const READS: usize = 16;
    for served in [one_worker(), two_workers()] {
        let (a, b) = (End::new(&served, ServiceType::Rc), End::new(&served, ServiceType::Rc));
        for _ in 0..40 {
            connect(&a, &b, &ConnectOptions { timeout: 8, ..ConnectOptions::default() });
            let memory = a.pd.device().allocate(LENGTH).expect("memory");
            let own = a.pd.register(&memory, 0, LENGTH, Access::LOCAL_WRITE).expect("a region");
            let open = a.pd.register(&memory, 0, LENGTH, Access::REMOTE_READ).expect("a region");
            own.fill(0, LENGTH, 1);
            b.memory.fill(0, LENGTH, 0);
            for part in 0..READS {
                let (from, to) = (part * LENGTH / READS, (part + 1) * LENGTH / READS);
                let sge = [b.memory.sge(from..to)];
                let request = SendRequest::read(&sge, open.remote().at(from as u64)).signaled();
                b.qp.post_send(&request).expect("room");
            }
            drop(open);
            own.fill(0, LENGTH, 0x5e);
            for _ in 0..READS {
                b.next();
            }
            let arrived = b.memory.to_vec(0, LENGTH);
            assert!(!arrived.contains(&0x5e), "it was read after the key was gone");
        }
    }
}

/// The requested path MTU is reported to the program, and cuts nothing.
#[test]
fn local_messages_have_few_packets_at_any_path_mtu() {
    let served = one_worker();
    let (a, b) = (End::new(&served, ServiceType::Rc), End::new(&served, ServiceType::Rc));
    connect(&a, &b, &ConnectOptions { path_mtu_bytes: Some(256), timeout: NO_ACK_TIMER, ..ConnectOptions::default() });
    assert_eq!(a.qp.query().expect("it is there").path_mtu_bytes, 256);
    let sge = [a.memory.sge(..1 << 20)];
    a.qp.post_send(&SendRequest::write(&sge, b.memory.remote()).signaled()).expect("room");
    assert_eq!(a.next().status, Status::Success);
    assert_eq!(a.qp.statistics().expect("it is there").request_packets, 32);
}

/// Lent memory that overlaps its target is as if it had been read first, in each packet.
#[test]
fn memory_may_be_lent_to_itself() {
    let served = one_worker();
    let b = End::new(&served, ServiceType::Rc);
    for (from, to) in [(100, 164), (164, 100), (100, 100), (100, 101)] {
        let mut expected = pattern(8192, from);
        b.memory.write_at(0, &expected);
        expected.copy_within(from..from + 5000, to);
        let sge = [b.memory.sge(from..from + 5000)];
        // A region of the same memory for the peer to write to: a loopback queue pair of b's own
        // domain.
        let own = b.pd.queue_pair(&b.cq, &b.cq).create().expect("a queue pair");
        let other = b.pd.queue_pair(&b.cq, &b.cq).create().expect("a queue pair");
        let options = ConnectOptions::default();
        own.connect(&other.address(0).expect("a GID"), &options).expect("it is here");
        other.connect(&own.address(0).expect("a GID"), &options).expect("it is here");
        own.post_send(&SendRequest::write(&sge, b.memory.remote().at(to as u64)).signaled()).expect("room");
        assert_eq!(b.next().status, Status::Success);
        assert!(b.memory.to_vec(0, 8192) == expected, "{from} to {to}");
    }
}

#[test]
fn local_connections_refuse_the_same_requests_as_remote_ones() {
    for served in [one_worker(), two_workers()] {
        let (a, b) = (End::new(&served, ServiceType::Rc), End::new(&served, ServiceType::Rc));
        let options = ConnectOptions { rnr_retry: 1, min_rnr_timer: 1, ..ConnectOptions::default() };
        let sge = [a.memory.sge(..100_000)];
        let remote = b.memory.remote();
        let fails = |request: SendRequest<'_>, status: Status| {
            connect(&a, &b, &options);
            a.qp.post_send(&request.signaled()).expect("room");
            assert_eq!(a.next().status, status);
        };
        b.memory.fill(0, 2 << 20, 1);
        // One byte beyond the end of the peer's memory.
        fails(SendRequest::write(&sge, remote.at((2 << 20) - 99_999)), Status::RemoteAccess);
        fails(SendRequest::read(&sge, remote.at((2 << 20) - 99_999)), Status::RemoteAccess);
        fails(SendRequest::write(&[Sge { lkey: sge[0].lkey ^ 0x100, ..sge[0] }], remote), Status::LocalProtection);
        fails(SendRequest::send(&sge), Status::RnrRetryExceeded);
        assert!(b.memory.to_vec(0, 2 << 20).iter().all(|byte| *byte == 1), "nothing of it was written");

        // A receive that is too short: both hear of it.
        connect(&a, &b, &options);
        b.qp.post_recv(&RecvRequest::new(&[b.memory.sge(..99_999)])).expect("room");
        a.qp.post_send(&SendRequest::send(&sge).signaled()).expect("room");
        assert_eq!((a.next().status, b.next().status), (Status::RemoteInvalidRequest, Status::LocalLength));
    }
}

/// Memory that its client gave back is not lent any more, and no wait is endless.
#[test]
fn memory_that_is_gone_fails_the_work_that_named_it() {
    let served = one_worker();
    let (a, b) = (End::new(&served, ServiceType::Rc), End::new(&served, ServiceType::Rc));
    for _ in 0..20 {
        connect(&a, &b, &ConnectOptions { timeout: 8, ..ConnectOptions::default() });
        let gone = a.pd.allocate(1 << 20, Access::ALL).expect("memory");
        let sge = [gone.sge(..)];
        for _ in 0..8 {
            a.qp.post_send(&SendRequest::write(&sge, b.memory.remote()).signaled()).expect("room");
        }
        drop(gone);
        let ended: Vec<Status> = (0..8).map(|_| a.next().status).collect();
        let done = ended.iter().take_while(|status| **status == Status::Success).count();
        let failed = ended.get(done).is_none_or(|status| {
            // Found by the sender before it lent it, or by the receiver after.
            matches!(status, Status::LocalProtection | Status::RemoteAccess)
        });
        assert!(
            failed && ended[done..].iter().skip(1).all(|status| *status == Status::WorkRequestFlushed),
            "{ended:?}"
        );
    }
}
