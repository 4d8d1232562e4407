//! The client library against control thread and workers: data by every operation, threads,
//! waiting, events.

mod served;

use std::{
    collections::BTreeSet,
    os::fd::AsFd,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use nix::poll::{PollFd, PollFlags, poll};
use roced::{
    net::{NetworkChange, NextHop},
    worker::idle::Policy,
};
use roced_client::{
    Completion, CompletionOp, ConnectOptions, CqOptions, DeviceEvent, Error, Notify, RecvRequest, SendRequest,
};
use roced_transport::clock::Nanos;
use roced_types::DeviceId;
use served::{
    How, Served, eventually,
    pair::{NO_ACK_TIMER, Pair, SOON, open, pattern, reap},
};

#[test]
fn every_operation_moves_its_bytes() {
    let served = Served::start();
    for gid in [0, 2] {
        let pair = Pair::over(&served, gid);
        let memory = pair.memory();
        let remote = memory.remote();
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
    let memory = pair.memory();
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
    let memory = pair.memory();
    let write = SendRequest::write_inline(b"x", memory.remote());
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
    let memory = pair.memory();
    let seen = thread::scope(|scope| {
        for thread in 0..THREADS {
            let (pair, memory) = (&pair, &memory);
            scope.spawn(move || {
                for number in 0..EACH {
                    let request =
                        SendRequest::write_inline(b"data", memory.remote()).id(thread << 32 | number).signaled();
                    let begin = Instant::now();
                    while let Err(error) = pair.a.post_send(&request) {
                        assert!(matches!(error, Error::QueueFull { .. }), "{error}");
                        assert!(begin.elapsed() < SOON);
                        thread::yield_now();
                    }
                }
            });
        }
        let left = Arc::new(AtomicU64::new(THREADS * EACH));
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
fn waiting_sleeps_and_is_woken_with_any_idle_policy() {
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
        a.connect(&b.address(gid).expect("a GID"), &ConnectOptions::default()).expect("b is here");
        b.connect(&a.address(gid).expect("a GID"), &ConnectOptions::default()).expect("a is here");
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
            a.connect(&b.address(0).expect("a GID"), &ConnectOptions::default()).expect("b is here");
            b.connect(&a.address(0).expect("a GID"), &ConnectOptions::default()).expect("a is here");
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
    assert!(!readable(0), "no call asked");

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
fn a_queue_pair_works_again_after_a_reset() {
    let served = Served::start();
    let pair = Pair::new(&served);
    let memory = pair.memory();
    for round in 0..3 {
        // Receives without messages, and work that is not reaped.
        for _ in 0..20 {
            pair.b.post_recv(&RecvRequest::new(&[memory.sge(..8)]).id(666)).expect("room");
            pair.a.post_send(&SendRequest::write_inline(b"x", memory.remote()).id(666).signaled()).expect("room");
        }
        pair.a.reset().expect("alive");
        pair.b.reset().expect("alive");
        assert_eq!((pair.a.sends_outstanding(), pair.b.recvs_outstanding()), (0, 0));
        assert!(matches!(pair.a.post_send(&SendRequest::send_inline(b"")), Err(Error::NotReady { queue: "send" })));
        assert!(matches!(pair.a.post_recv(&RecvRequest::new(&[])), Err(Error::NotReady { queue: "receive" })));
        let options = ConnectOptions::default();
        pair.a.connect(&pair.b.address(0).expect("a GID"), &options).expect("b is here");
        pair.b.connect(&pair.a.address(0).expect("a GID"), &options).expect("a is here");
        pair.b.post_recv(&RecvRequest::new(&[memory.sge(..8)]).id(round)).expect("room");
        pair.a.post_send(&SendRequest::send_inline(b"again").id(round).signaled()).expect("room");
        for completion in pair.reap(2) {
            assert_eq!(completion.ok().expect("it arrived").wr_id, round, "no completion of forgotten work");
        }
    }
}

#[test]
fn statistics_count_sent_packets() {
    let served = Served::start();
    let pd = open(&served).protection_domain().expect("a domain");
    let pair = Pair::connected(&pd, 0, &ConnectOptions { timeout: NO_ACK_TIMER, ..ConnectOptions::default() });
    let memory = pair.memory();
    let before = pair.a.statistics().expect("alive");
    pair.a
        .post_send(&SendRequest::write(&[memory.sge(..40_960)], memory.remote().at(1 << 19)).signaled())
        .expect("room");
    pair.reap(1)[0].ok().expect("it arrived");
    let after = pair.a.statistics().expect("alive");
    assert_eq!(after.request_packets - before.request_packets, 10, "at path MTU 4096");
    assert_eq!(after.retransmitted_packets, 0);
}

#[test]
fn work_waits_while_the_next_hop_is_asked_for() {
    let served = Served::start();
    let device = open(&served);
    let pd = device.protection_domain().expect("a domain");
    let cq = device.completion_queue(16).expect("a queue");
    let (a, b) = (pd.queue_pair(&cq, &cq).create().expect("one"), pd.queue_pair(&cq, &cq).create().expect("two"));
    served.told.lock().expect("no thread panicked").hide_local = true;
    served.told.lock().expect("no thread panicked").elsewhere = Some(NextHop::Resolving);
    a.connect(&b.address(2).expect("a GID"), &ConnectOptions::default()).expect("a route");
    b.connect(&a.address(2).expect("a GID"), &ConnectOptions::default()).expect("a route");
    a.post_send(&SendRequest::write_inline(b"", Default::default()).signaled()).expect("room");
    assert_eq!(cq.wait(&mut [Completion::EMPTY], Duration::from_millis(50)).expect("alive"), 0);
    assert_eq!(a.query().expect("alive").path_resolving, 1);
    let followed = served.told.lock().expect("no thread panicked").followed.clone();
    let (follow, (_, followers)) = followed.first_key_value().expect("both follow the same");
    assert_eq!((followed.len(), *followers), (1, 2));
    served.change(vec![NetworkChange::NextHop(*follow, NextHop::Local(DeviceId(0)))]);
    assert_eq!(a.query().expect("alive").path_resolving, 0);
    reap(&cq, 1)[0].ok().expect("it has waited long enough");
}

#[test]
fn changes_of_the_device_are_events() {
    let served = Served::start();
    let device = open(&served);
    let device_id = DeviceId(0);
    let readable = || poll(&mut [PollFd::new(device.as_fd(), PollFlags::POLLIN)], 20_000u16).expect("poll") == 1;
    assert_eq!(device.next_event().expect("alive"), None);
    served.change(vec![NetworkChange::Gids(device_id)]);
    assert!(readable());
    assert_eq!(device.next_event().expect("alive"), Some(DeviceEvent::GidChange));
    served.told.lock().expect("no thread panicked").port.link_up = false;
    served.change(vec![NetworkChange::Link(device_id)]);
    assert!(readable());
    // A call in between finds the event on its way and keeps it: the fd stays readable.
    assert!(!device.port().expect("alive").active);
    assert!(readable());
    assert_eq!(device.next_event().expect("alive"), Some(DeviceEvent::PortDown));
    assert_eq!(device.next_event().expect("alive"), None);
    assert_eq!(poll(&mut [PollFd::new(device.as_fd(), PollFlags::POLLIN)], 0u8), Ok(0));
}

#[test]
fn the_last_byte_is_never_there_before_an_older_one() {
    let served = Served::start_as(How { policy: Policy::Yield, ..How::default() });
    let pair = Pair::new(&served);
    let memory = pair.memory();
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
fn objects_may_be_dropped_in_any_order() {
    let served = Served::start();
    let pair = Pair::new(&served);
    let memory = pair.memory();
    let Pair { device, pd, cq, a, b } = pair;
    drop((device, cq, pd));
    a.post_send(&SendRequest::write_inline(b"still", memory.remote()).signaled()).expect("room");
    reap(a.send_cq(), 1)[0].ok().expect("it arrived");
    drop(memory);
    drop(a);
    assert_eq!(served.sessions(), 1);
    drop(b);
    served.wait_until_empty();
    assert!(served.told.lock().expect("no thread panicked").followed.is_empty());
}
