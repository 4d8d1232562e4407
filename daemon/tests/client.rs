//! The client library against control thread and workers: data by every operation, threads, waiting, errors, and the daemon's death.

mod served;

use std::{
    collections::BTreeSet,
    fs,
    os::{
        fd::{AsFd, AsRawFd},
        unix::{fs::FileExt, net::UnixListener},
    },
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use nix::{
    poll::{PollFd, PollFlags, poll},
    sys::socket::{AddressFamily, Backlog, MsgFlags, SockFlag, SockType, UnixAddr, bind, listen, recv, send, socket},
};
use roced::{
    config::{ClientLimits, Limits},
    net::{Change, NextHop},
    worker::idle::Policy,
};
use roced_client::{
    Access, Completion, CompletionOp, CompletionQueue, ConnectOptions, CqOptions, Device, DeviceEvent, Error,
    MemoryRegion, Notify, ProtectionDomain, QueuePair, RecvRequest, Refusal, SendRequest, Side, Status, state,
};
use roced_shared::abi::control::{Hello, MESSAGE_BYTES, Message};
use roced_transport::clock::Nanos;
use served::{DEVICE, How, Served, eventually, is_alone};
use zerocopy::{FromBytes, IntoBytes};

const SOON: Duration = Duration::from_secs(20);

fn open(served: &Served) -> Device {
    Device::open_at(&served.socket, DEVICE).expect("it is served")
}

/// Two connected queue pairs of one program.
struct Pair {
    device: Device,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    a: QueuePair,
    b: QueuePair,
    memory: MemoryRegion,
}

impl Pair {
    fn new(served: &Served) -> Self {
        Self::over(open(served), 0, &ConnectOptions::default())
    }

    fn over(device: Device, gid: u32, options: &ConnectOptions) -> Self {
        let pd = device.protection_domain().expect("a domain");
        let cq = device.completion_queue(256).expect("a queue");
        let make =
            || pd.queue_pair(&cq, &cq).send_sges(32).recv_sges(32).inline_bytes(512).create().expect("a queue pair");
        let (a, b) = (make(), make());
        a.connect(&b.endpoint(gid).expect("a GID"), options).expect("b is here");
        b.connect(&a.endpoint(gid).expect("a GID"), options).expect("a is here");
        let memory = pd.allocate(1 << 20, Access::ALL).expect("memory");
        Self { device, pd, cq, a, b, memory }
    }

    fn reap(&self, count: usize) -> Vec<Completion> {
        reap(&self.cq, count)
    }
}

/// Waits for `count` completions.
fn reap(cq: &CompletionQueue, count: usize) -> Vec<Completion> {
    let mut all = Vec::new();
    while all.len() < count {
        let mut some = [Completion::EMPTY; 7];
        let room = some.len().min(count - all.len());
        let got = cq.wait(&mut some[..room], SOON).expect("the daemon lives");
        assert!(got > 0, "completions are missing: {all:?}");
        all.extend_from_slice(&some[..got]);
    }
    all
}

fn pattern(seed: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 31 + at / 251 + seed) as u8).collect()
}

#[test]
fn every_operation_moves_its_bytes() {
    let served = Served::start();
    for gid in [0, 2] {
        let pair = Pair::over(open(&served), gid, &ConnectOptions::default());
        let (memory, remote) = (&pair.memory, pair.memory.remote());
        let half = memory.len() / 2;
        for (turn, bytes) in [1, 7, 8, 4095, 4096, 4097, 300_001].into_iter().enumerate() {
            let data = pattern(turn, bytes);
            // WRITE, then READ it back elsewhere.
            memory.write_at(0, &data);
            pair.a
                .post_send(&SendRequest::write(&[memory.sge(..bytes)], remote.at(half as u64)).id(1).signaled())
                .expect("room");
            assert_eq!(pair.reap(1)[0].ok().expect("it arrived").op, CompletionOp::Write);
            assert!(memory.to_vec(half, bytes) == data);
            memory.fill(0, bytes, 0);
            pair.b
                .post_send(&SendRequest::read(&[memory.sge(..bytes)], remote.at(half as u64)).id(2).signaled())
                .expect("room");
            let read = pair.reap(1)[0].ok().expect("it came");
            assert_eq!((read.op, read.wr_id, read.qpn), (CompletionOp::Read, 2, pair.b.qpn()));
            assert!(memory.to_vec(0, bytes) == data);

            // SEND with immediate data into two pieces.
            memory.fill(half, bytes, 0);
            let (first, second) = (bytes / 3, bytes - bytes / 3);
            let pieces = [memory.sge(half..half + first), memory.sge(half + first..half + first + second)];
            pair.b.post_recv(&RecvRequest::new(&pieces).id(3)).expect("room");
            pair.a
                .post_send(&SendRequest::send(&[memory.sge(..bytes)]).imm(*b"imm!").solicited().id(4).signaled())
                .expect("room");
            let mut done = pair.reap(2);
            done.sort_by_key(|completion| completion.wr_id);
            let received = done[0].ok().expect("it arrived");
            assert_eq!((received.op, received.wr_id, received.byte_len), (CompletionOp::Recv, 3, bytes as u32));
            assert_eq!((received.imm, received.solicited), (Some(*b"imm!"), true));
            assert_eq!((done[1].op, done[1].wr_id, done[1].imm), (CompletionOp::Send, 4, None));
            assert!(memory.to_vec(half, bytes) == data);
        }
        // WRITE with immediate data takes a receive without pieces.
        pair.b.post_recv(&RecvRequest::new(&[]).id(5)).expect("room");
        pair.a.post_send(&SendRequest::write_inline(b"inline", remote).imm([9; 4])).expect("room");
        let arrived = pair.reap(1)[0].ok().expect("it arrived");
        assert_eq!((arrived.op, arrived.imm, arrived.byte_len), (CompletionOp::RecvWriteImm, Some([9; 4]), 6));
        assert_eq!(memory.to_vec(0, 6), b"inline");
        assert_eq!(memory.byte(5), b'e');
    }
}

#[test]
fn thirty_two_pieces_gather_and_scatter() {
    let served = Served::start();
    let pair = Pair::new(&served);
    let memory = &pair.memory;
    let data = pattern(5, 32 * 100);
    memory.write_at(0, &data);
    let from: Vec<_> = (0..32).map(|piece| memory.sge(piece * 100..(piece + 1) * 100)).collect();
    let to: Vec<_> =
        (0..32).rev().map(|piece| memory.sge(100_000 + piece * 100..100_000 + (piece + 1) * 100)).collect();
    pair.b.post_recv(&RecvRequest::new(&to)).expect("room");
    pair.a.post_send(&SendRequest::send(&from).signaled()).expect("room");
    for completion in pair.reap(2) {
        completion.ok().expect("it arrived");
    }
    for piece in 0..32 {
        assert_eq!(memory.to_vec(100_000 + (31 - piece) * 100, 100), data[piece * 100..(piece + 1) * 100]);
    }
    let too_many = vec![memory.sge(..1); 33];
    assert!(matches!(
        pair.a.post_send(&SendRequest::send(&too_many)),
        Err(Error::TooManySges { asked: 33, limit: 32 })
    ));
    assert!(matches!(pair.a.post_recv(&RecvRequest::new(&too_many)), Err(Error::TooManySges { .. })));
    assert!(matches!(
        pair.a.post_send(&SendRequest::send_inline(&[0; 513])),
        Err(Error::InlineTooLong { asked: 513, limit: 512 })
    ));
}

#[test]
fn a_full_queue_says_so_and_unsignaled_work_frees_its_room_with_the_next_signaled() {
    let served = Served::start();
    let pair = Pair::new(&served);
    let write = SendRequest::write_inline(b"x", pair.memory.remote());
    for round in 0..5 {
        let depth = pair.a.sizes().send_wrs;
        for at in 0..depth {
            let last = at + 1 == depth;
            let request = if last { write.id(round).signaled() } else { write };
            eventually("the ring has room", || match pair.a.post_send(&request) {
                Ok(()) => true,
                // The ring may be full an instant longer than the queue.
                Err(Error::QueueFull { .. }) if pair.a.sends_outstanding() < depth => false,
                Err(error) => panic!("{error}"),
            });
        }
        assert!(matches!(pair.a.post_send(&write), Err(Error::QueueFull { queue: "send", depth: d }) if d == depth));
        assert_eq!(pair.reap(1)[0].ok().expect("it arrived").wr_id, round);
        assert_eq!(pair.a.sends_outstanding(), 0);
    }
    let recv = RecvRequest::new(&[]);
    let posted = pair.b.post_recvs(&vec![recv; 1000]).expect("some fit");
    assert_eq!(posted, pair.b.sizes().recv_wrs as usize);
    assert!(matches!(pair.b.post_recv(&recv), Err(Error::QueueFull { queue: "receive", .. })));
}

#[test]
fn many_threads_share_one_queue_pair_and_one_completion_queue() {
    const THREADS: u64 = 4;
    const EACH: u64 = 500;
    let served = Served::start();
    let pair = Pair::new(&served);
    let seen = thread::scope(|scope| {
        for thread in 0..THREADS {
            let pair = &pair;
            scope.spawn(move || {
                for number in 0..EACH {
                    let request =
                        SendRequest::write_inline(b"data", pair.memory.remote()).id(thread << 32 | number).signaled();
                    let begin = Instant::now();
                    while let Err(error) = pair.a.post_send(&request) {
                        assert!(matches!(error, Error::QueueFull { .. }), "{error}");
                        assert!(begin.elapsed() < SOON);
                        thread::yield_now();
                    }
                }
            });
        }
        let left = Arc::new(std::sync::atomic::AtomicU64::new(THREADS * EACH));
        let reapers: Vec<_> = (0..3)
            .map(|_| {
                let (pair, left) = (&pair, Arc::clone(&left));
                scope.spawn(move || {
                    let mut seen = Vec::new();
                    let begin = Instant::now();
                    while left.load(Ordering::Relaxed) > 0 {
                        let mut some = [Completion::EMPTY; 3];
                        let got = pair.cq.wait(&mut some, Duration::from_millis(50)).expect("the daemon lives");
                        left.fetch_sub(got as u64, Ordering::Relaxed);
                        seen.extend(some[..got].iter().map(|completion| completion.ok().expect("it arrived").wr_id));
                        assert!(begin.elapsed() < SOON, "completions are missing");
                    }
                    seen
                })
            })
            .collect();
        reapers.into_iter().flat_map(|reaper| reaper.join().expect("it reaped")).collect::<Vec<_>>()
    });
    let distinct: BTreeSet<_> = seen.iter().copied().collect();
    assert_eq!((seen.len(), distinct.len()), ((THREADS * EACH) as usize, (THREADS * EACH) as usize));
}

#[test]
fn waiting_sleeps_and_is_woken_whatever_the_workers_do() {
    for policy in [Policy::Spin, Policy::Yield, Policy::Sleep { spin: Nanos(0) }] {
        let served = Served::start_as(How { policy, ..How::default() });
        let device = open(&served);
        let (pd, gid) = (device.protection_domain().expect("a domain"), 0);
        let cq = || {
            let options = CqOptions { entries: 16, spin: Duration::ZERO, ..CqOptions::default() };
            device.completion_queue_with(&options).expect("a queue")
        };
        let (cq_a, cq_b) = (cq(), cq());
        let (a, b) = (
            pd.queue_pair(&cq_a, &cq_a).create().expect("a queue pair"),
            pd.queue_pair(&cq_b, &cq_b).create().expect("a queue pair"),
        );
        a.connect(&b.endpoint(gid).expect("a GID"), &ConnectOptions::default()).expect("b is here");
        b.connect(&a.endpoint(gid).expect("a GID"), &ConnectOptions::default()).expect("a is here");
        let begin = Instant::now();
        assert_eq!(cq_a.wait(&mut [Completion::EMPTY], Duration::from_millis(30)).expect("alive"), 0);
        assert!(begin.elapsed() >= Duration::from_millis(30));
        // Ping-pong of two threads that sleep.
        thread::scope(|scope| {
            let echo = scope.spawn(|| {
                for _ in 0..200 {
                    b.post_recv(&RecvRequest::new(&[])).expect("room");
                    assert_eq!(reap(&cq_b, 1)[0].ok().expect("a ping").op, CompletionOp::Recv);
                    b.post_send(&SendRequest::send_inline(b"")).expect("room");
                    if b.sends_outstanding() > 32 {
                        b.post_send(&SendRequest::write_inline(b"", Default::default()).signaled()).expect("room");
                        assert_eq!(reap(&cq_b, 1)[0].ok().expect("nothing was asked").op, CompletionOp::Write);
                    }
                }
            });
            for _ in 0..200 {
                a.post_recv(&RecvRequest::new(&[])).expect("room");
                a.post_send(&SendRequest::send_inline(b"").signaled()).expect("room");
                for completion in reap(&cq_a, 2) {
                    completion.ok().expect("a pong");
                }
            }
            echo.join().expect("it echoed");
        });
    }
}

#[test]
fn a_channel_tells_which_queue_and_fits_a_programs_own_poll() {
    let served = Served::start();
    let pair = Pair::new(&served);
    let channel = pair.device.channel().expect("a channel");
    let options = CqOptions { entries: 16, channel: Some(&channel), ..CqOptions::default() };
    let queues: Vec<_> = (0..3).map(|_| pair.device.completion_queue_with(&options).expect("a queue")).collect();
    let qps: Vec<_> = queues
        .iter()
        .map(|cq| {
            let (a, b) = (
                pair.pd.queue_pair(cq, cq).create().expect("one"),
                pair.pd.queue_pair(&pair.cq, &pair.cq).create().expect("two"),
            );
            a.connect(&b.endpoint(0).expect("a GID"), &ConnectOptions::default()).expect("b is here");
            b.connect(&a.endpoint(0).expect("a GID"), &ConnectOptions::default()).expect("a is here");
            (a, b)
        })
        .collect();
    assert!(matches!(queues[0].wait(&mut [Completion::EMPTY], SOON), Err(Error::SharedChannel)));
    let readable = |milliseconds: u16| {
        poll(&mut [PollFd::new(channel.as_fd(), PollFlags::POLLIN)], milliseconds).expect("poll") == 1
    };
    let nop = SendRequest::write_inline(b"", Default::default()).signaled();

    qps[1].0.post_send(&nop).expect("room");
    let mut done = [Completion::EMPTY; 4];
    eventually("it completes", || queues[1].poll(&mut done).expect("alive") == 1);
    assert!(!readable(0), "nobody asked");

    queues[1].arm(Notify::Any);
    queues[2].arm(Notify::Solicited);
    qps[1].0.post_send(&nop).expect("room");
    qps[2].0.post_send(&nop).expect("room");
    assert!(readable(20_000));
    assert_eq!(channel.next_event().expect("alive").expect("it fired").cqn(), queues[1].cqn());
    eventually("the unsolicited one completes", || queues[2].poll(&mut done).expect("alive") == 1);
    assert!(channel.next_event().expect("alive").is_none(), "it was not solicited");
    qps[2].0.post_recv(&RecvRequest::new(&[])).expect("room");
    qps[2].1.post_send(&SendRequest::send_inline(b"").solicited()).expect("room");
    assert_eq!(channel.wait(SOON).expect("alive").expect("it fired").cqn(), queues[2].cqn());
    assert!(channel.wait(Duration::from_millis(5)).expect("alive").is_none());
    assert_eq!(queues[2].poll(&mut done).expect("alive"), 1);
}

#[test]
fn failures_say_whose_doing_they_were() {
    let served = Served::start();
    let pair = Pair::new(&served);
    let memory = &pair.memory;
    // A key that the peer does not have.
    let nowhere = roced_client::RemoteMemory { rkey: pair.memory.rkey() ^ 0x100, ..memory.remote() };
    pair.a.post_send(&SendRequest::write_inline(b"x", nowhere).id(1)).expect("room");
    pair.a.post_send(&SendRequest::write_inline(b"x", memory.remote()).id(2)).expect("room");
    let done = pair.reap(2);
    let failed = done[0].ok().expect_err("the peer refuses");
    assert_eq!((failed.status, failed.wr_id, failed.side()), (Status::RemoteAccess, 1, Side::Peer));
    let flushed = done[1].ok().expect_err("flushed");
    assert_eq!((flushed.status, flushed.wr_id, flushed.side()), (Status::WorkRequestFlushed, 2, Side::Yours));
    assert_eq!(done[0].op, CompletionOp::Write);
    eventually(
        "the event came",
        || matches!(pair.device.next_event().expect("alive"), Some(DeviceEvent::QpAccessError { qpn }) if qpn == pair.b.qpn()),
    );
    assert_eq!(pair.a.query().expect("alive").state, state::ERR);

    // A region that is gone.
    let pair = Pair::new(&served);
    let gone = { pair.pd.allocate(4096, Access::ALL).expect("memory").sge(..) };
    pair.a.post_send(&SendRequest::write(&[gone], pair.memory.remote()).id(3)).expect("room");
    let failed = pair.reap(1)[0].ok().expect_err("it is gone");
    assert_eq!((failed.status, failed.wr_id, failed.side()), (Status::LocalProtection, 3, Side::Yours));
    assert_eq!(pair.a.sends_outstanding(), 0);
}

#[test]
fn a_receive_queue_that_is_flushed_gives_every_wr_id_back() {
    let served = Served::start();
    let pair = Pair::new(&served);
    for wr_id in 0..10 {
        pair.b.post_recv(&RecvRequest::new(&[pair.memory.sge(..8)]).id(wr_id)).expect("room");
    }
    pair.b.to_error().expect("alive");
    let done = pair.reap(10);
    assert_eq!(done.iter().map(|completion| completion.wr_id).collect::<Vec<_>>(), (0..10).collect::<Vec<_>>());
    assert!(
        done.iter()
            .all(|completion| completion.status == Status::WorkRequestFlushed && completion.op == CompletionOp::Recv)
    );
    assert_eq!(pair.b.recvs_outstanding(), 0);
}

#[test]
fn a_queue_pair_works_again_after_a_reset() {
    let served = Served::start();
    let pair = Pair::new(&served);
    for round in 0..3 {
        // Receives that nobody takes, and work that is not reaped.
        for _ in 0..20 {
            pair.b.post_recv(&RecvRequest::new(&[pair.memory.sge(..8)]).id(666)).expect("room");
            pair.a.post_send(&SendRequest::write_inline(b"x", pair.memory.remote()).id(666).signaled()).expect("room");
        }
        pair.a.reset().expect("alive");
        pair.b.reset().expect("alive");
        assert_eq!((pair.a.sends_outstanding(), pair.b.recvs_outstanding()), (0, 0));
        assert!(matches!(pair.a.post_send(&SendRequest::send_inline(b"")), Err(Error::NotReady { queue: "send" })));
        assert!(matches!(pair.a.post_recv(&RecvRequest::new(&[])), Err(Error::NotReady { queue: "receive" })));
        let options = ConnectOptions::default();
        pair.a.connect(&pair.b.endpoint(0).expect("a GID"), &options).expect("b is here");
        pair.b.connect(&pair.a.endpoint(0).expect("a GID"), &options).expect("a is here");
        pair.b.post_recv(&RecvRequest::new(&[pair.memory.sge(..8)]).id(round)).expect("room");
        pair.a.post_send(&SendRequest::send_inline(b"again").id(round).signaled()).expect("room");
        for completion in pair.reap(2) {
            assert_eq!(completion.ok().expect("it arrived").wr_id, round, "no completion of what was forgotten");
        }
    }
}

#[test]
fn statistics_count_what_was_sent() {
    let served = Served::start();
    let pair = Pair::new(&served);
    let before = pair.a.statistics().expect("alive");
    pair.a
        .post_send(&SendRequest::write(&[pair.memory.sge(..40_960)], pair.memory.remote().at(1 << 19)).signaled())
        .expect("room");
    pair.reap(1)[0].ok().expect("it arrived");
    let after = pair.a.statistics().expect("alive");
    // The peer is beside it: packets of 32 KiB.
    assert_eq!(after.request_packets - before.request_packets, 2);
    assert_eq!(after.retransmitted_packets, 0);
}

#[test]
fn a_peer_that_does_not_answer_ends_the_retries() {
    let served = Served::start();
    let device = open(&served);
    let pd = device.protection_domain().expect("a domain");
    let cq = device.completion_queue(16).expect("a queue");
    let qp = pd.queue_pair(&cq, &cq).create().expect("a queue pair");
    let nobody =
        roced_client::Endpoint { gid: "10.9.0.77".parse().expect("an address"), qpn: 5, psn: 0, mtu_bytes: 1024 };
    let options = ConnectOptions { timeout: 8, retry_cnt: 1, ..ConnectOptions::default() };
    served.told.lock().expect("nobody panicked").elsewhere = None;
    let error = qp.connect(&nobody, &options).expect_err("no route");
    assert!(matches!(error, Error::Refused { refusal: Refusal::NoRoute, .. }), "{error}");
    assert_eq!(error.side(), Side::Peer);
    served.told.lock().expect("nobody panicked").elsewhere = Some(NextHop::Unreachable);
    qp.connect(&nobody, &options).expect("there is a route");
    qp.post_send(&SendRequest::send_inline(b"anybody?").id(9)).expect("room");
    let failed = reap(&cq, 1)[0].ok().expect_err("nobody answers");
    assert_eq!((failed.status, failed.side()), (Status::TransportRetryExceeded, Side::Peer));
}

#[test]
fn work_waits_while_the_next_hop_is_asked_for() {
    let served = Served::start();
    let device = open(&served);
    let pd = device.protection_domain().expect("a domain");
    let cq = device.completion_queue(16).expect("a queue");
    let (a, b) = (pd.queue_pair(&cq, &cq).create().expect("one"), pd.queue_pair(&cq, &cq).create().expect("two"));
    served.told.lock().expect("nobody panicked").hide_local = true;
    served.told.lock().expect("nobody panicked").elsewhere = Some(NextHop::Resolving);
    a.connect(&b.endpoint(2).expect("a GID"), &ConnectOptions::default()).expect("a route");
    b.connect(&a.endpoint(2).expect("a GID"), &ConnectOptions::default()).expect("a route");
    a.post_send(&SendRequest::write_inline(b"", Default::default()).signaled()).expect("room");
    assert_eq!(cq.wait(&mut [Completion::EMPTY], Duration::from_millis(50)).expect("alive"), 0);
    assert_eq!(a.query().expect("alive").path_resolving, 1);
    let followed = served.told.lock().expect("nobody panicked").followed.clone();
    let (follow, (_, followers)) = followed.first_key_value().expect("both follow the same");
    assert_eq!((followed.len(), *followers), (1, 2));
    served.change(vec![Change::NextHop(*follow, NextHop::Local(roced_shared::ids::DeviceId(0)))]);
    assert_eq!(a.query().expect("alive").path_resolving, 0);
    reap(&cq, 1)[0].ok().expect("it has waited long enough");
}

#[test]
fn changes_of_the_device_are_events() {
    let served = Served::start();
    let device = open(&served);
    let device_id = roced_shared::ids::DeviceId(0);
    let readable = || poll(&mut [PollFd::new(device.as_fd(), PollFlags::POLLIN)], 20_000u16).expect("poll") == 1;
    assert_eq!(device.next_event().expect("alive"), None);
    served.change(vec![Change::Gids(device_id)]);
    assert!(readable());
    assert_eq!(device.next_event().expect("alive"), Some(DeviceEvent::GidChange));
    served.told.lock().expect("nobody panicked").port.link_up = false;
    served.change(vec![Change::Link(device_id)]);
    assert!(readable());
    // A call in between finds the event on its way and keeps it: the fd stays readable.
    assert!(!device.port().expect("alive").active);
    assert!(readable());
    assert_eq!(device.next_event().expect("alive"), Some(DeviceEvent::PortDown));
    assert_eq!(device.next_event().expect("alive"), None);
    assert_eq!(poll(&mut [PollFd::new(device.as_fd(), PollFlags::POLLIN)], 0u8), Ok(0));
}

#[test]
fn deregistering_under_a_stream_of_writes_ends_in_an_error_and_disturbs_nobody() {
    let served = Served::start();
    let (pair, other) = (Pair::new(&served), Pair::new(&served));
    let source = pair.pd.allocate(1 << 20, Access::ALL).expect("memory");
    let target = pair.pd.allocate(1 << 20, Access::ALL).expect("memory");
    let all = [source.sge(..)];
    let write = SendRequest::write(&all, target.remote()).signaled();
    for _ in 0..16 {
        pair.a.post_send(&write).expect("room");
    }
    drop(target);
    let statuses: Vec<_> = pair.reap(16).iter().map(|completion| completion.status).collect();
    let failed = statuses.iter().position(|status| *status != Status::Success).expect("some came too late");
    assert_eq!(statuses[failed], Status::RemoteAccess, "{statuses:?}");
    assert!(statuses[failed + 1..].iter().all(|status| *status == Status::WorkRequestFlushed), "{statuses:?}");
    other.a.post_send(&SendRequest::write_inline(b"fine", other.memory.remote()).signaled()).expect("room");
    other.reap(1)[0].ok().expect("nobody else was disturbed");
}

#[test]
fn the_last_byte_is_never_there_before_an_older_one() {
    let served = Served::start_as(How { policy: Policy::Yield, ..How::default() });
    let pair = Pair::new(&served);
    let memory = &pair.memory;
    let half = memory.len() / 2;
    for round in 1..60u8 {
        for bytes in [1, 2, 9, 100, 4096, 4097, 20_000] {
            memory.fill(0, bytes, round);
            memory.fill(half, bytes, 0);
            pair.a
                .post_send(&SendRequest::write(&[memory.sge(..bytes)], memory.remote().at(half as u64)).signaled())
                .expect("room");
            let begin = Instant::now();
            while memory.byte(half + bytes - 1) != round {
                assert!(begin.elapsed() < SOON, "it never came");
                thread::yield_now();
            }
            assert!(memory.to_vec(half, bytes).iter().all(|byte| *byte == round), "{bytes} bytes, round {round}");
            pair.reap(1)[0].ok().expect("it arrived");
        }
    }
}

#[test]
fn a_dead_daemon_is_learned_of_within_a_second_by_spinner_sleeper_and_poller() {
    for policy in [Policy::Yield, Policy::Sleep { spin: Nanos(0) }] {
        let served = Served::start_as(How { policy, ..How::default() });
        let pair = Pair::new(&served);
        let channel = pair.device.channel().expect("a channel");
        let options = CqOptions { channel: Some(&channel), ..CqOptions::default() };
        let polled = pair.device.completion_queue_with(&options).expect("a queue");
        let spun = pair.device.completion_queue(16).expect("a queue");
        let slept = pair.device.completion_queue(16).expect("a queue");
        let qp = |cq: &CompletionQueue| {
            let qp = pair.pd.queue_pair(cq, cq).create().expect("a queue pair");
            qp.to_init(Access::ALL).expect("alive");
            for wr_id in 0..5 {
                qp.post_recv(&RecvRequest::new(&[pair.memory.sge(..8)]).id(wr_id)).expect("room");
            }
            qp
        };
        let (qp_polled, qp_spun, qp_slept) = (qp(&polled), qp(&spun), qp(&slept));
        let killed = AtomicBool::new(false);
        let fatal = |cq: &CompletionQueue, first: &[Completion]| {
            let mut all = first.to_vec();
            let mut more = [Completion::EMPTY; 2];
            let error = loop {
                match cq.poll(&mut more) {
                    Ok(got) => all.extend_from_slice(&more[..got]),
                    Err(error) => break error,
                }
            };
            assert!(matches!(error, Error::DaemonGone), "{error}");
            assert_eq!(error.side(), Side::Daemon);
            assert_eq!(all.iter().map(|completion| completion.wr_id).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
            assert!(
                all.iter().all(|completion| completion.status == Status::Fatal && completion.op == CompletionOp::Recv)
            );
        };
        thread::scope(|scope| {
            let spinner = scope.spawn(|| {
                let mut one = [Completion::EMPTY];
                while spun.poll(&mut one).expect("completions before the error") == 0 {}
                assert!(killed.load(Ordering::SeqCst));
                fatal(&spun, &one);
                Instant::now()
            });
            let sleeper = scope.spawn(|| {
                let mut one = [Completion::EMPTY];
                assert_eq!(slept.wait(&mut one, SOON).expect("completions before the error"), 1);
                assert!(killed.load(Ordering::SeqCst));
                fatal(&slept, &one);
                Instant::now()
            });
            let poller = scope.spawn(|| {
                polled.arm(Notify::Any);
                let mut fds = [PollFd::new(channel.as_fd(), PollFlags::POLLIN)];
                assert_eq!(poll(&mut fds, 20_000u16), Ok(1));
                assert!(killed.load(Ordering::SeqCst));
                assert!(matches!(channel.next_event(), Err(Error::DaemonGone)));
                fatal(&polled, &[]);
                Instant::now()
            });
            let watcher = scope.spawn(|| {
                let mut fds = [PollFd::new(pair.device.as_fd(), PollFlags::POLLIN)];
                assert_eq!(poll(&mut fds, 20_000u16), Ok(1));
                assert!(killed.load(Ordering::SeqCst));
                assert!(matches!(pair.device.next_event(), Err(Error::DaemonGone)));
                Instant::now()
            });
            thread::sleep(Duration::from_millis(100));
            let begin = Instant::now();
            killed.store(true, Ordering::SeqCst);
            served.kill();
            for (who, learner) in [("spinner", spinner), ("sleeper", sleeper), ("poller", poller), ("watcher", watcher)]
            {
                let learned = learner.join().expect(who).duration_since(begin);
                assert!(learned < Duration::from_secs(1), "{who}: {learned:?}");
            }
        });
        assert!(matches!(pair.device.port(), Err(Error::DaemonGone)));
        assert!(matches!(pair.device.channel(), Err(Error::DaemonGone)));
        assert!(!pair.device.is_alive());
        for qp in [qp_polled, qp_spun, qp_slept] {
            assert!(matches!(qp.post_recv(&RecvRequest::new(&[])), Err(Error::DaemonGone)));
            assert_eq!(qp.recvs_outstanding(), 0);
        }
        // Memory stays as long as the program holds it.
        pair.memory.write_at(0, b"mine");
        assert_eq!(pair.memory.to_vec(0, 4), b"mine");
    }
}

#[test]
fn a_client_that_breaks_its_ring_is_ended_and_the_others_go_on() {
    if !is_alone("a_client_that_breaks_its_ring_is_ended_and_the_others_go_on") {
        return;
    }
    let served = Served::start();
    let other = Pair::new(&served);
    let before = ring_mappings();
    let broken = Pair::new(&served);
    // The library has no call for this: the producer's index of the send rings, in the mappings that /proc shows.
    let memory = fs::File::options().write(true).open("/proc/self/mem").expect("procfs");
    for mapping in ring_mappings().difference(&before) {
        memory.write_all_at(&0x0bad_0bad_u32.to_ne_bytes(), *mapping).expect("it is mapped for writing");
    }
    broken.b.post_recv(&RecvRequest::new(&[])).expect("room");
    let mut done = [Completion::EMPTY; 4];
    assert_eq!(broken.cq.wait(&mut done, SOON).expect("completions before the error"), 1);
    assert_eq!((done[0].status, done[0].op), (Status::Fatal, CompletionOp::Recv));
    assert!(matches!(broken.cq.wait(&mut done, SOON), Err(Error::DaemonGone)));
    assert_eq!(served.sessions(), 1);
    other.a.post_send(&SendRequest::write_inline(b"fine", other.memory.remote()).signaled()).expect("room");
    other.reap(1)[0].ok().expect("nobody else was disturbed");
}

/// Where rings of queue pairs are mapped in this process.
fn ring_mappings() -> BTreeSet<u64> {
    let maps = fs::read_to_string("/proc/self/maps").expect("procfs");
    let rings = maps.lines().filter(|line| line.contains("/memfd:roced-qp"));
    rings
        .map(|line| u64::from_str_radix(line.split('-').next().expect("an address"), 16).expect("an address"))
        .collect()
}

#[test]
fn objects_may_be_dropped_in_any_order() {
    let served = Served::start();
    let pair = Pair::new(&served);
    let Pair { device, pd, cq, a, b, memory } = pair;
    drop((device, cq, pd));
    a.post_send(&SendRequest::write_inline(b"still", memory.remote()).signaled()).expect("room");
    reap(a.send_cq(), 1)[0].ok().expect("it arrived");
    drop(memory);
    drop(a);
    assert_eq!(served.sessions(), 1);
    drop(b);
    served.wait_until_empty();
    assert!(served.told.lock().expect("nobody panicked").followed.is_empty());
}

#[test]
fn limits_and_wrong_use_are_errors_that_say_what_to_do() {
    let limits = Limits { client: ClientLimits { mrs: 1, ..ClientLimits::default() }, ..Limits::default() };
    let served = Served::start_as(How { limits, ..How::default() });
    let (device, other) = (open(&served), open(&served));
    let pd = device.protection_domain().expect("a domain");
    let region = pd.allocate(100, Access::ALL).expect("below the limit");
    assert_eq!(region.len(), 100);
    let error = pd.allocate(100, Access::ALL).expect_err("one is the limit");
    assert!(error.to_string().contains("limit of 1") && error.to_string().contains("[limits]"), "{error}");
    assert_eq!(error.side(), Side::Yours);
    drop(region);
    let memory = device.allocate(10_000).expect("room again");
    assert!(matches!(pd.register(&memory, 9_999, 2, Access::NONE), Err(Error::OutOfRange { size: 10_000, .. })));
    let part = pd.register(&memory, 9_000, 1_000, Access::NONE).expect("inside");
    part.write_at(999, &[7]);
    assert_eq!(part.byte(999), 7);
    assert!(std::panic::catch_unwind(|| part.byte(1_000)).is_err());
    assert!(std::panic::catch_unwind(|| part.sge(1..1_001)).is_err());

    let cq = other.completion_queue(1).expect("a queue");
    assert!(matches!(pd.queue_pair(&cq, &cq).create(), Err(Error::OtherDevice)));
    let cq = device.completion_queue(1).expect("a queue");
    let error = pd.queue_pair(&cq, &cq).send_sges(33).create().expect_err("too many");
    assert!(matches!(error, Error::Refused { refusal: Refusal::InvalidArgument, detail: [6, 33], .. }), "{error}");
    assert!(matches!(
        device.gid_toward("::ffff:0:1".parse().expect("an address")),
        Err(Error::NoSourceGid { .. }) | Ok(_)
    ));
    assert!(matches!(
        Device::open_at(&served.socket, "nonesuch"),
        Err(Error::Refused { refusal: Refusal::NoSuchDevice, .. })
    ));
    assert_eq!(Device::list_at(&served.socket).expect("served"), [DEVICE]);
}

#[test]
fn what_answers_must_be_a_roced_of_this_version() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let at = |name: &str| folder.path().join(name);
    let open = |name: &str| Device::open_at(&at(name), DEVICE).expect_err("nobody there");
    assert!(matches!(open("nothing"), Error::NoDaemon { .. }));
    assert!(open("nothing").to_string().contains("ROCED_SOCKET"));
    let _stream = UnixListener::bind(at("stream")).expect("free");
    assert!(matches!(open("stream"), Error::NoDaemon { .. }));
    let long = "x".repeat(200);
    assert!(matches!(open(&long), Error::SocketPath { .. }));

    let answers: [(&str, Vec<u8>); 3] = [
        ("newer", Message::refusal(1, 1, Refusal::Version, [9, 1]).as_bytes().into()),
        ("stranger", vec![b'?'; MESSAGE_BYTES]),
        ("short", b"hello".into()),
    ];
    for (name, answer) in answers {
        let fd = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).expect("a socket");
        bind(fd.as_raw_fd(), &UnixAddr::new(&at(name)).expect("short")).expect("free");
        listen(&fd, Backlog::new(1).expect("small")).expect("bound");
        let fake = thread::spawn(move || {
            let client = nix::sys::socket::accept(fd.as_raw_fd()).expect("it connects");
            let mut bytes = [0; MESSAGE_BYTES];
            assert_eq!(recv(client, &mut bytes, MsgFlags::empty()), Ok(MESSAGE_BYTES));
            let hello = Message::read_from_bytes(&bytes).expect("a message");
            assert_eq!(hello.header.op, <Hello as roced_shared::abi::control::Call>::OP);
            send(client, &answer, MsgFlags::empty()).expect("room");
            nix::unistd::close(client).expect("ours");
        });
        let error = open(name);
        match name {
            "newer" => {
                assert!(matches!(error, Error::Version { daemon: 9 }), "{error}");
                assert!(error.to_string().contains("version 9") && error.to_string().contains("update"), "{error}");
            }
            _ => assert!(matches!(error, Error::Protocol { .. }), "{error}"),
        }
        assert_eq!(error.side(), Side::Daemon);
        fake.join().expect("it answered");
    }
}
