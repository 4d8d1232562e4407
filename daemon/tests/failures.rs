//! Failures in the client library: the party at fault, flushed work, undisturbed sessions, and the
//! daemon's death.

mod served;

use std::{
    collections::BTreeSet,
    fs,
    os::{
        fd::{AsFd, AsRawFd},
        unix::{fs::FileExt, net::UnixListener},
    },
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::socket::{
        AddressFamily, Backlog, MsgFlags, SockFlag, SockType, UnixAddr, accept, bind, listen, recv, send, socket,
    },
};
use roced::{
    config::{ClientLimits, LimitsConfig},
    net::NextHop,
    worker::idle::Policy,
};
use roced_abi::control::{Call, Hello, MESSAGE_BYTES, Message};
use roced_client::{
    Access, Completion, CompletionOp, CompletionQueue, ConnectOptions, CqOptions, Device, DeviceEvent, Error, Notify,
    QpAddress, RecvRequest, Refusal, RemoteMemory, SendRequest, Side, Status, state,
};
use roced_transport::clock::Nanos;
use served::{
    DEVICE, How, Served, eventually, is_alone,
    pair::{Pair, SOON, open, reap},
};
use zerocopy::{FromBytes, IntoBytes};

#[test]
fn failures_name_the_side_at_fault() {
    let served = Served::start();
    let pair = Pair::new(&served);
    let memory = pair.memory();
    // A key that the peer does not have.
    let nowhere = RemoteMemory { rkey: memory.rkey() ^ 0x100, ..memory.remote() };
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
    let memory = pair.memory();
    let gone = { pair.pd.allocate(4096, Access::ALL).expect("memory").sge(..) };
    pair.a.post_send(&SendRequest::write(&[gone], memory.remote()).id(3)).expect("room");
    let failed = pair.reap(1)[0].ok().expect_err("it is gone");
    assert_eq!((failed.status, failed.wr_id, failed.side()), (Status::LocalProtection, 3, Side::Yours));
    assert_eq!(pair.a.sends_outstanding(), 0);
}

/// As verbs have it: a program that polls the descriptor does not block in the call that follows.
#[test]
fn events_of_an_object_end_with_it() {
    let served = Served::start();
    let pair = Pair::new(&served);
    let memory = pair.memory();
    let nowhere = RemoteMemory { rkey: memory.rkey() ^ 0x100, ..memory.remote() };
    pair.a.post_send(&SendRequest::write_inline(b"x", nowhere)).expect("room");
    pair.reap(1);
    let is_readable = |device: &Device| {
        poll(&mut [PollFd::new(device.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO).expect("poll works") > 0
    };
    eventually("the peer's event waits", || is_readable(&pair.device));
    let Pair { device, a, b, .. } = pair;
    drop((a, b));
    assert!(!is_readable(&device) && device.next_event().expect("alive").is_none(), "an event of nothing");
}

#[test]
fn a_receive_queue_that_is_flushed_gives_every_wr_id_back() {
    let served = Served::start();
    let pair = Pair::new(&served);
    let memory = pair.memory();
    for wr_id in 0..10 {
        pair.b.post_recv(&RecvRequest::new(&[memory.sge(..8)]).id(wr_id)).expect("room");
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
fn a_peer_that_does_not_answer_ends_the_retries() {
    let served = Served::start();
    let device = open(&served);
    let pd = device.protection_domain().expect("a domain");
    let cq = device.completion_queue(16).expect("a queue");
    let qp = pd.queue_pair(&cq, &cq).create().expect("a queue pair");
    let nobody = QpAddress { gid: "10.9.0.77".parse().expect("an address"), qpn: 5, psn: 0, mtu_bytes: 1024 };
    let options = ConnectOptions { timeout: 8, retry_cnt: 1, ..ConnectOptions::default() };
    served.told.lock().expect("no thread panicked").elsewhere = None;
    let error = qp.connect(&nobody, &options).expect_err("no route");
    assert!(matches!(error, Error::Refused { refusal: Refusal::NoRoute, .. }), "{error}");
    assert_eq!(error.side(), Side::Peer);
    served.told.lock().expect("no thread panicked").elsewhere = Some(NextHop::Unreachable);
    qp.connect(&nobody, &options).expect("there is a route");
    qp.post_send(&SendRequest::send_inline(b"anybody?").id(9)).expect("room");
    let failed = reap(&cq, 1)[0].ok().expect_err("no answer comes");
    assert_eq!((failed.status, failed.side()), (Status::TransportRetryExceeded, Side::Peer));
}

#[test]
fn deregistering_under_a_stream_of_writes_fails_only_that_stream() {
    let served = Served::start();
    let (pair, other) = (Pair::new(&served), Pair::new(&served));
    let theirs = other.memory();
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
    other.a.post_send(&SendRequest::write_inline(b"fine", theirs.remote()).signaled()).expect("room");
    other.reap(1)[0].ok().expect("no other was disturbed");
}

#[test]
fn a_dead_daemon_is_learned_of_within_a_second_by_spinner_sleeper_and_poller() {
    for policy in [Policy::Yield, Policy::Sleep { spin: Nanos(0) }] {
        let served = Served::start_as(How { policy, ..How::default() });
        let pair = Pair::new(&served);
        let memory = pair.memory();
        let channel = pair.device.channel().expect("a channel");
        let options = CqOptions { channel: Some(&channel), ..CqOptions::default() };
        let polled = pair.device.completion_queue_with(&options).expect("a queue");
        let spun = pair.device.completion_queue(16).expect("a queue");
        let slept = pair.device.completion_queue(16).expect("a queue");
        let qp = |cq: &CompletionQueue| {
            let qp = pair.pd.queue_pair(cq, cq).create().expect("a queue pair");
            qp.to_init(Access::ALL).expect("alive");
            for wr_id in 0..5 {
                qp.post_recv(&RecvRequest::new(&[memory.sge(..8)]).id(wr_id)).expect("room");
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
        memory.write_at(0, b"mine");
        assert_eq!(memory.to_vec(0, 4), b"mine");
    }
}

#[test]
fn a_client_that_breaks_its_ring_is_ended_and_the_others_go_on() {
    if !is_alone("a_client_that_breaks_its_ring_is_ended_and_the_others_go_on") {
        return;
    }
    let served = Served::start();
    let other = Pair::new(&served);
    let theirs = other.memory();
    let before = ring_mappings();
    let broken = Pair::new(&served);
    // The library has no call for this: the producer's index of the send rings, in the mappings
    // that /proc shows.
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
    other.a.post_send(&SendRequest::write_inline(b"fine", theirs.remote()).signaled()).expect("room");
    other.reap(1)[0].ok().expect("no other was disturbed");
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
fn limits_and_wrong_use_give_advice() {
    let limits = LimitsConfig { client: ClientLimits { mrs: 1, ..ClientLimits::default() }, ..LimitsConfig::default() };
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
    assert!(matches!(pd.queue_pair(&cq, &cq).create(), Err(Error::OtherDevice { .. })));
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
fn a_daemon_of_another_version_is_refused() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let at = |name: &str| folder.path().join(name);
    let open = |name: &str| Device::open_at(&at(name), DEVICE).expect_err("no peer is there");
    assert!(matches!(open("nothing"), Error::NoDaemon { .. }));
    assert!(open("nothing").to_string().contains("ROCED_SOCKET"));
    let _stream = UnixListener::bind(at("stream")).expect("free");
    assert!(matches!(open("stream"), Error::NoDaemon { .. }));
    let long = "x".repeat(200);
    assert!(matches!(open(&long), Error::SocketPath { .. }));

    let answers: [(&str, Vec<u8>); 3] = [
        ("newer", Message::refusal(1, 1, Refusal::Version, [9, 1]).as_bytes().into()),
        ("unknown magic", vec![b'?'; MESSAGE_BYTES]),
        ("short", b"hello".into()),
    ];
    for (name, answer) in answers {
        let fd = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).expect("a socket");
        bind(fd.as_raw_fd(), &UnixAddr::new(&at(name)).expect("short")).expect("free");
        listen(&fd, Backlog::new(1).expect("small")).expect("bound");
        let fake = thread::spawn(move || {
            let client = accept(fd.as_raw_fd()).expect("it connects");
            let mut bytes = [0; MESSAGE_BYTES];
            assert_eq!(recv(client, &mut bytes, MsgFlags::empty()), Ok(MESSAGE_BYTES));
            let hello = Message::read_from_bytes(&bytes).expect("a message");
            assert_eq!(hello.header.op, Hello::OP);
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
