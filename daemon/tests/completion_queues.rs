//! One completion queue, two workers that complete into it: it grows and shrinks meanwhile, and a
//! request makes one event.

mod served;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    os::fd::AsFd,
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use nix::{
    fcntl::{FcntlArg, OFlag, fcntl},
    poll::{PollFd, PollFlags, PollTimeout, poll},
};
use roced_abi::COMPLETIONS_MAX;
use roced_client::{
    Completion, CompletionChannel, CompletionQueue, ConnectOptions, CqOptions, Device, Error, Notify, ProtectionDomain,
    QueuePair, Refusal, SendRequest, Status,
};
use served::{
    DEVICE, How, Served, eventually,
    pair::{NO_ACK_TIMER, SOON},
    uffd::hold_writes,
};

/// Two queue pairs connected to one another, of different workers, that complete into one queue.
struct Pair {
    device: Device,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    qps: [QueuePair; 2],
}

fn open(served: &Served) -> Device {
    Device::open_at(&served.socket, DEVICE).expect("it is served")
}

impl Pair {
    fn new(served: &Served) -> Self {
        Self::of(&open(served), None)
    }

    fn with_channel(served: &Served) -> (Self, CompletionChannel) {
        let device = open(served);
        let channel = device.channel().expect("a channel");
        (Self::of(&device, Some(&channel)), channel)
    }

    fn of(device: &Device, channel: Option<&CompletionChannel>) -> Self {
        let pd = device.protection_domain().expect("a domain");
        let options = CqOptions { entries: 128, channel, ..CqOptions::default() };
        let cq = device.completion_queue_with(&options).expect("a queue");
        let qps = Self::connected(&pd, &cq);
        Self { device: device.clone(), pd, cq, qps }
    }

    fn connected(pd: &ProtectionDomain, cq: &CompletionQueue) -> [QueuePair; 2] {
        let qps = [0, 1].map(|_| pd.queue_pair(cq, cq).send_wrs(64).create().expect("a queue pair"));
        Self::connect(&qps);
        qps
    }

    /// Without an ACK timer: where no packet is lost it only ends the connection to a worker that
    /// does not get its core for half a second.
    fn connect(qps: &[QueuePair; 2]) {
        let options = ConnectOptions { timeout: NO_ACK_TIMER, ..ConnectOptions::default() };
        for at in 0..2 {
            qps[at].connect(&qps[1 - at].address(0).expect("a GID"), &options).expect("it is here");
        }
    }

    fn post(&self, at: usize, wr_id: u64) -> Result<(), Error> {
        self.qps[at].post_send(&SendRequest::write_inline(b"", Default::default()).id(wr_id).signaled())
    }

    /// State and counters of both queue pairs, for the message of a failure.
    fn describe(&self, served: &Served) -> String {
        let mut text = format!("{} CQ overruns", served.cq_overruns());
        for qp in &self.qps {
            let state = qp.query().map(|attributes| attributes.state);
            let _ = write!(text, "\nqueue pair {}: {state:?} {:?}", qp.qpn(), qp.statistics());
        }
        text
    }
}

/// Queue pairs of both workers work without a pause while the queue changes its size, to one that
/// holds only the work in flight and back. Each completion comes once, and those of a queue pair in
/// order.
#[test]
fn a_queue_that_changes_its_size_loses_and_reorders_nothing() {
    const ROUNDS: u32 = 200;
    let served = Served::start();
    let pair = Pair::new(&served);
    let end = AtomicBool::new(false);
    let reaped = thread::scope(|scope| {
        for at in 0..2 {
            let (pair, end) = (&pair, &end);
            scope.spawn(move || {
                let mut next = 0;
                while !end.load(Ordering::Relaxed) {
                    match pair.post(at, next) {
                        Ok(()) => next += 1,
                        Err(Error::QueueFull { .. }) => thread::yield_now(),
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
        let resizing = scope.spawn(|| {
            for round in 0..ROUNDS {
                let entries = [64, 4096, 65, 1000][round as usize % 4];
                pair.cq.resize(entries).expect("within limits");
                assert_eq!(pair.cq.entries(), entries.next_power_of_two());
                thread::yield_now();
            }
            end.store(true, Ordering::Relaxed);
        });
        let mut next: BTreeMap<u32, u64> = pair.qps.iter().map(|qp| (qp.qpn(), 0)).collect();
        let mut done = [Completion::EMPTY; 32];
        let mut last = Instant::now();
        loop {
            let idle = resizing.is_finished() && pair.qps.iter().all(|qp| qp.sends_outstanding() == 0);
            let count = pair.cq.wait(&mut done, Duration::from_millis(20)).expect("alive");
            for completion in &done[..count] {
                let next = next.get_mut(&completion.qpn).expect("one of two");
                let is_next = completion.status == Status::Success && completion.wr_id == *next;
                assert!(is_next, "not {next}, but {completion:?}; {}", pair.describe(&served));
                *next += 1;
            }
            if idle && count == 0 {
                break next;
            }
            last = if count > 0 { Instant::now() } else { last };
            assert!(last.elapsed() < SOON, "a completion is lost: {}", pair.describe(&served));
        }
    });
    assert!(reaped.values().all(|count| *count > u64::from(ROUNDS)), "both worked meanwhile: {reaped:?}");
    assert!(pair.qps.iter().all(|qp| qp.sends_outstanding() == 0));
}

/// A thread is stopped in the middle of a poll, after completions whose requests are known to be
/// done. Another thread posts as many new ones: they complete, although the queue holds no more
/// completions than requests can be outstanding.
#[test]
fn a_poll_that_is_stopped_midway_leaves_room_for_completions() {
    const DEPTH: u64 = 64;
    const PAGE: usize = 4096;
    let served = Served::start();
    let (pair, channel) = Pair::with_channel(&served);
    pair.cq.resize(DEPTH as u32).expect("within limits");
    (0..DEPTH).for_each(|wr_id| pair.post(0, wr_id).expect("room"));
    eventually("all completed", || pair.cq.waiting().expect("alive") == DEPTH as usize);

    // The poll cannot write its ninth completion, which lies on a page that is held.
    let mut done = vec![Completion::EMPTY; 4 * PAGE / size_of::<Completion>()];
    let start = done.as_ptr().addr();
    let page = (start + PAGE).next_multiple_of(PAGE);
    let ninth = (page - start) / size_of::<Completion>();
    let Some(held) = hold_writes(page, PAGE) else {
        return eprintln!("skipped: no userfaultfd here");
    };
    let into = &mut done[ninth - 8..][..32];
    let reaped = thread::scope(|scope| {
        let reaping = scope.spawn(|| pair.cq.poll(into).expect("alive"));
        // Dropped when an assertion fails, so that the thread ends.
        let held = held;
        eventually("the poll is stopped", || pair.qps[0].sends_outstanding() == DEPTH as u32 - 9);
        pair.cq.arm(Notify::Any);
        for wr_id in DEPTH..DEPTH + 9 {
            eventually("there is room", || pair.post(0, wr_id).is_ok());
        }
        let overruns = || served.cq_overruns();
        eventually("one completed", || channel.next_event().expect("alive").is_some() || overruns() > 0);
        assert_eq!(overruns(), 0, "{}", pair.describe(&served));
        drop(held);
        reaping.join().expect("it reaped")
    });
    let mut all = done[ninth - 8..][..reaped].to_vec();
    eventually("all completed", || {
        let count = pair.cq.poll(&mut done[..32]).expect("alive");
        all.extend_from_slice(&done[..count]);
        all.len() as u64 == DEPTH + 9
    });
    assert!(all.iter().all(|completion| completion.status == Status::Success), "{}", pair.describe(&served));
    assert!(all.iter().map(|completion| completion.wr_id).eq(0..DEPTH + 9), "in order");
}

/// Completions that a program has not reaped when it resets or destroys their queue pair are never
/// reaped. They occupy no room of those of the next life, nor of the next queue pair. Completions of
/// other queue pairs between them stay, in order.
#[test]
fn completions_of_an_ended_life_leave_their_room() {
    const DEPTH: u64 = 64;
    let served = Served::start_as(How { workers: 1, ..How::default() });
    let mut pair = Pair::new(&served);
    let other = Pair::connected(&pair.pd, &pair.cq);
    let post_other = |wr_id| {
        other[0].post_send(&SendRequest::write_inline(b"", Default::default()).id(wr_id).signaled()).expect("room");
    };
    assert_eq!(u64::from(pair.cq.entries()), 2 * DEPTH, "for two queue pairs");
    let overruns = || served.cq_overruns();
    let mut others = 0;
    for life in 0..4 {
        for wr_id in 0..DEPTH {
            if wr_id % 8 == 0 {
                post_other(others);
                others += 1;
            }
            pair.post(0, wr_id).expect("room");
        }
        let completed = others + DEPTH;
        eventually("all completed", || pair.cq.waiting().expect("alive") as u64 == completed || overruns() > 0);
        assert_eq!(overruns(), 0, "in life {life}, {}", pair.describe(&served));
        if life == 2 {
            // They are in the old ring.
            pair.cq.resize(2 * DEPTH as u32).expect("within limits");
        }
        if life % 2 == 0 {
            pair.qps.iter().for_each(|qp| qp.reset().expect("from anywhere"));
            Pair::connect(&pair.qps);
        } else {
            pair.qps = Pair::connected(&pair.pd, &pair.cq);
        }
    }
    let mut done = [Completion::EMPTY; 64];
    let mut reaped = Vec::new();
    while let count @ 1.. = pair.cq.poll(&mut done).expect("alive") {
        reaped.extend_from_slice(&done[..count]);
    }
    assert!(reaped.iter().all(|completion| completion.qpn == other[0].qpn()), "{reaped:?}");
    assert!(reaped.iter().map(|completion| completion.wr_id).eq(0..others), "{reaped:?}");
}

#[test]
fn a_size_beyond_the_limits_is_refused_and_changes_nothing() {
    let served = Served::start();
    let pair = Pair::new(&served);
    let refused = pair.cq.resize(COMPLETIONS_MAX + 1);
    assert!(matches!(refused, Err(Error::Refused { refusal: Refusal::InvalidArgument, .. })), "{refused:?}");
    assert_eq!(pair.cq.entries(), 128);
    pair.post(0, 7).expect("room");
    let mut one = [Completion::EMPTY];
    assert_eq!(pair.cq.wait(&mut one, SOON).expect("alive"), 1);
}

/// The request of before a resize is answered by a completion after it, of whichever worker.
#[test]
fn one_request_makes_one_event_with_two_workers_and_over_a_resize() {
    let served = Served::start();
    let (pair, channel) = Pair::with_channel(&served);
    let mut done = [Completion::EMPTY; 64];
    for round in 0..50 {
        pair.cq.arm(Notify::Any);
        if round % 2 == 1 {
            pair.cq.resize(64 + round * 10).expect("within limits");
        }
        for wr_id in 0..8 {
            pair.post(0, wr_id).expect("room");
            pair.post(1, wr_id).expect("room");
        }
        let told = channel.wait(SOON).expect("alive").expect("an event");
        assert_eq!(told.cqn(), pair.cq.cqn());
        let mut reaped = 0;
        eventually("all completed", || {
            reaped += pair.cq.poll(&mut done).expect("alive");
            reaped == 16
        });
        assert!(channel.next_event().expect("alive").is_none(), "one request, one event");
    }
    assert!(pair.device.is_alive());
}

/// A thread waits as programs of verbs do, in a call that blocks, while another destroys a queue. No
/// event of the other queue is lost, and the end of the daemon ends the call.
#[test]
fn a_thread_that_blocks_loses_no_event_while_queues_are_destroyed() {
    let served = Served::start();
    let device = open(&served);
    let channel = device.channel().expect("a channel");
    fcntl(channel.as_fd(), FcntlArg::F_SETFL(OFlag::empty())).expect("it can block");
    let alive = Pair::of(&device, Some(&channel));
    let (told, heard) = mpsc::channel();
    let (go, wanted) = mpsc::channel::<()>();
    thread::scope(|scope| {
        let waiting = &channel;
        scope.spawn(move || {
            while wanted.recv().is_ok() {
                let Ok(cqn) = waiting.receive() else { return };
                told.send(cqn).expect("the test hears it");
            }
        });
        let mut lost = false;
        'rounds: for _ in 0..200 {
            let gone = Pair::of(&device, Some(&channel));
            for pair in [&gone, &alive] {
                pair.cq.arm(Notify::Any);
                pair.post(0, 1).expect("room");
                let mut one = [Completion::EMPTY];
                eventually("it completed", || pair.cq.poll(&mut one).expect("alive") == 1);
            }
            go.send(()).expect("it waits");
            drop(gone);
            loop {
                match heard.recv_timeout(SOON) {
                    Ok(cqn) if cqn == alive.cq.cqn() => break,
                    Ok(_) => go.send(()).expect("it waits"),
                    // The thread must end first.
                    Err(_) => {
                        lost = true;
                        break 'rounds;
                    }
                }
            }
        }
        go.send(()).expect("it waits");
        drop(served);
        assert!(!lost, "an event was lost");
    });
}

/// As verbs have it: a program that polls the descriptor does not block in the call that follows.
/// Events of other queues stay, whether they came earlier or later.
#[test]
fn events_of_a_queue_end_with_it() {
    let served = Served::start();
    let device = open(&served);
    let channel = device.channel().expect("a channel");
    let is_readable =
        || poll(&mut [PollFd::new(channel.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO).expect("poll works") > 0;
    // Each set of queues that end, of three with an event each.
    for ends in 0..8 {
        let mut pairs: Vec<_> = (0..3).map(|_| Pair::of(&device, Some(&channel))).collect();
        for pair in &pairs {
            pair.cq.arm(Notify::Any);
            pair.post(0, 1).expect("room");
            let mut one = [Completion::EMPTY];
            eventually("it completed", || pair.cq.poll(&mut one).expect("alive") == 1);
            eventually("an event came", is_readable);
        }
        let mut at = 0;
        pairs.retain(|_| {
            at += 1;
            ends >> (at - 1) & 1 == 0
        });
        let told = pairs.iter().map(|_| channel.wait(SOON).expect("alive").expect("an event").cqn());
        let told: BTreeSet<_> = told.collect();
        assert_eq!(told, pairs.iter().map(|pair| pair.cq.cqn()).collect());
        assert!(!is_readable() && channel.next_event().expect("alive").is_none(), "an event of nothing: {ends:03b}");
    }
}

/// A channel has room for an event of each queue that reported to it at one time. Events of queues
/// that have ended occupy some of it while an earlier one waits, so the room never shrinks: the
/// event of a later queue would be lost.
#[test]
fn the_room_of_a_channel_never_shrinks() {
    let served = Served::start();
    let device = Device::open_at(&served.socket, DEVICE).expect("it is served");
    let channel = device.channel().expect("a channel");
    let report = |pair: &Pair| {
        pair.cq.arm(Notify::Any);
        pair.post(0, 1).expect("room");
        let mut one = [Completion::EMPTY];
        eventually("it completed", || pair.cq.poll(&mut one).expect("alive") == 1);
    };
    let options = CqOptions { entries: 1, channel: Some(&channel), ..CqOptions::default() };
    let queues: Vec<_> = (0..48).map(|_| device.completion_queue_with(&options).expect("a queue")).collect();
    let first = Pair::of(&device, Some(&channel));
    report(&first);
    // More than a channel of two queues has room for, and fewer than this one has.
    for _ in 0..32 {
        report(&Pair::of(&device, Some(&channel)));
    }
    drop(queues);
    let last = Pair::of(&device, Some(&channel));
    report(&last);
    let told = [&first, &last].map(|_| channel.wait(Duration::from_secs(2)).expect("alive").map(|queue| queue.cqn()));
    assert_eq!(told, [Some(first.cq.cqn()), Some(last.cq.cqn())]);
}
