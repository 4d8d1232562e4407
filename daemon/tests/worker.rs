//! Workers as seen by their control thread and their clients: frames on the wrong queue, broken
//! clients, refusals.

mod rig;

use std::{
    collections::BTreeMap,
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use crossbeam::queue::ArrayQueue;
use nix::sys::eventfd::EventFd;
use rig::{Client, Rig};
use roced::worker::{
    client_fault::ClientFault,
    command::{Answer, Command, CommandRefused},
    events::WorkerEvent,
    idle::Policy,
    metrics::WorkerSnapshot,
    nic::Nic,
    poll_loop::{Worker, monotonic_now},
};
use roced_abi::wqe::SendWqe;
use roced_memory::backing::Backing;
use roced_transport::{
    clock::Nanos,
    counters::QpCount,
    io::{Abort, Egress, EmitError, FrameMut, Segments, Wire},
    mr::{Mr, MrKey, Scope},
    reject::DropReason,
};
use roced_types::{DeviceId, MemoryObjectId, Qpn, SendOp, Sge, Status, WorkerId, event};

/// A NIC queue that delivers all frames to one queue, as with an RSS of one queue.
struct Loop {
    queue: u32,
    can_transmit: bool,
    frames: Arc<ArrayQueue<Vec<u8>>>,
    socket: EventFd,
}

impl Loop {
    fn new(queue: u32, frames: &Arc<ArrayQueue<Vec<u8>>>) -> Self {
        let socket = EventFd::new().expect("an eventfd");
        Self { queue, can_transmit: true, frames: Arc::clone(frames), socket }
    }
}

impl Wire for Loop {
    fn emit(
        &mut self,
        _: Egress,
        frame_bytes: usize,
        fill: impl FnOnce(&mut FrameMut<'_>) -> Result<(), Abort>,
    ) -> Result<(), EmitError> {
        assert!(self.can_transmit, "the driver has no TX queue for it");
        if self.frames.is_full() {
            return Err(EmitError::Full);
        }
        let mut bytes = vec![0; frame_bytes];
        fill(&mut FrameMut::single(&mut bytes)).map_err(|Abort| EmitError::Aborted)?;
        self.frames.push(bytes).map_err(|_| EmitError::Full)
    }
}

impl Nic for Loop {
    fn queue(&self) -> u32 {
        self.queue
    }

    fn can_transmit(&self) -> bool {
        self.can_transmit
    }

    fn rx_burst(&mut self, budget: usize, mut on_frame: impl FnMut(&Segments<'_>)) -> usize {
        if self.queue != 0 {
            return 0;
        }
        let mut taken = 0;
        while taken < budget {
            let Some(frame) = self.frames.pop() else { break };
            let pieces: Vec<&[u8]> = frame.chunks(2048).collect();
            on_frame(&pieces);
            taken += 1;
        }
        taken
    }

    fn flush(&mut self) {}

    fn prepare_sleep(&mut self) -> bool {
        !self.frames.is_empty()
    }

    fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn counters(&self, count: &mut impl FnMut(&'static str, u64)) {
        count("looped", self.frames.capacity() as u64);
    }
}

/// A rig with NIC queues, one for each endpoint, that all lead to queue 0 of the first worker.
fn looped(served: &[(u32, u32)]) -> Rig<Loop> {
    let frames = Arc::new(ArrayQueue::new(256));
    Rig::start(served, Policy::Yield, |place| vec![Loop::new(place.worker.0, &frames)], Worker::run)
}

fn snapshot(rig: &mut Rig<Loop>, worker: u32) -> WorkerSnapshot {
    let empty = Box::new(WorkerSnapshot::new(8, 8, Some(0)));
    match rig.tell(WorkerId(worker), Command::Snapshot(empty)) {
        Answer::Snapshot(filled) => *filled,
        other => panic!("{other:?}"),
    }
}

fn write(client: &mut Client, from: usize, bytes: u32) {
    let (key, half) = (client.key, client.memory.len() / 2);
    let data: Vec<u8> = (0..bytes).map(|at| (at * 13 + from as u32) as u8).collect();
    client.memory.write(0, &data);
    client.qps[from].post_send(SendOp::Write, key, 0, bytes, (half, key));
    let completion = client.wait();
    assert_eq!(completion.status, 0, "{completion:?}");
    let mut arrived = vec![0; bytes as usize];
    client.memory.read(half, &mut arrived);
    assert!(arrived == data);
}

fn wait_for<T>(mut what: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(found) = what() {
            return found;
        }
        assert!(Instant::now() < deadline, "it never came");
        std::thread::yield_now();
    }
}

#[test]
fn frames_on_the_wrong_queue_reach_their_queue_pair_and_are_counted() {
    let mut rig = looped(&[(0, 0), (0, 1)]);
    let mut client = rig.client(0, 1 << 20, &[0, 1]);
    rig.connect(&client.qps[0], &client.qps[1], Egress::Nic { flow: 7 });
    write(&mut client, 0, 200_000);
    write(&mut client, 1, 200_000);
    let (first, second) = (snapshot(&mut rig, 0), snapshot(&mut rig, 1));
    assert!(first.handoff.forwarded >= 49, "{:?}", first.handoff);
    assert_eq!((second.handoff.forwarded_in, second.handoff.forwarded), (first.handoff.forwarded, 0));
    rig.stop();
}

#[test]
fn a_worker_gives_its_queues_back_and_goes_on_with_others() {
    // More than one poll looks at: the others are in an epoll set.
    const QUEUES: usize = 40;
    let frames = Arc::new(ArrayQueue::new(256));
    let queues = || (0..QUEUES as u32).map(|queue| Loop::new(queue, &frames)).collect::<Vec<_>>();
    let sleep = Policy::Sleep { spin: Nanos::from_micros(10) };
    let mut rig = Rig::start(&[(0, 0)], sleep, |_| queues(), Worker::run);
    let mut client = rig.client(0, 1 << 20, &[0, 0]);
    rig.connect(&client.qps[0], &client.qps[1], Egress::Nic { flow: 7 });
    write(&mut client, 0, 100_000);
    let before = rig.set_queues(WorkerId(0), DeviceId(0), Vec::new());
    assert_eq!(before.len(), QUEUES);
    assert_eq!(snapshot(&mut rig, 0).queues.len(), 0);
    drop(before);
    // Work waits, and is done as soon as there are queues.
    let key = client.key;
    client.qps[0].post_send(SendOp::Write, key, 0, 30_000, (500_000, key));
    std::thread::sleep(Duration::from_millis(20));
    assert!(client.poll().is_none());
    assert_eq!(rig.set_queues(WorkerId(0), DeviceId(0), queues()).len(), 0);
    assert_eq!(client.wait().status, 0);
    write(&mut client, 1, 100_000);
    rig.stop();
}

/// As those that virtio-net adds while an XDP program is attached.
#[test]
fn a_worker_sends_only_by_queues_that_can_and_receives_by_all() {
    // The frames arrive on the queue that does not send.
    let frames = Arc::new(ArrayQueue::new(256));
    let queues = || {
        let of = |queue, can_transmit| Loop { can_transmit, ..Loop::new(queue, &frames) };
        vec![of(1, true), of(2, true), of(0, false), of(3, false)]
    };
    let mut rig = Rig::start(&[(0, 0)], Policy::Yield, |_| queues(), Worker::run);
    let mut client = rig.client(0, 1 << 20, &[0; 16]);
    for (flow, pair) in (0..).zip([[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11], [12, 13], [14, 15]]) {
        rig.connect(&client.qps[pair[0]], &client.qps[pair[1]], Egress::Nic { flow });
        write(&mut client, pair[0], 10_000);
    }
    rig.stop();
}

#[test]
fn queue_pairs_of_a_device_fail_some_at_a_time_and_those_of_others_do_not() {
    let mut rig = looped(&[(0, 0), (1, 0)]);
    let mut ours = rig.client(0, 1 << 16, &[0, 0]);
    let mut theirs = rig.client(1, 1 << 20, &[1, 1]);
    rig.connect(&ours.qps[0], &ours.qps[1], Egress::HandOver { to: DeviceId(0) });
    rig.connect(&theirs.qps[0], &theirs.qps[1], Egress::HandOver { to: DeviceId(1) });
    ours.qps[0].post_recv(ours.key, 0, 64);
    match rig.tell(WorkerId(0), Command::FailQps(DeviceId(0), 0)) {
        Answer::NextSlot(None) => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(ours.wait().status, Status::WorkRequestFlushed as u8);
    let events: Vec<_> = (0..2).map(|_| wait_for(|| rig.events.pop())).collect();
    let fatal = |at: usize| WorkerEvent::Object {
        session: ours.session,
        handle: ours.qps[at].qpn.get(),
        kind: event::QP_FATAL,
    };
    assert!(events.contains(&fatal(0)) && events.contains(&fatal(1)), "{events:?}");
    write(&mut theirs, 0, 1000);
    rig.stop();
}

#[test]
fn an_acknowledgement_waits_for_an_answer_where_clients_may_run() {
    for (policy, waited) in [(Policy::Yield, 1), (Policy::Spin, 0)] {
        let frames = Arc::new(ArrayQueue::new(256));
        let mut rig = Rig::start(&[(0, 0)], policy, |place| vec![Loop::new(place.worker.0, &frames)], Worker::run);
        let mut client = rig.client(0, 1 << 16, &[0, 0]);
        rig.connect(&client.qps[0], &client.qps[1], Egress::Nic { flow: 7 });
        let key = client.key;
        client.qps[1].post_recv(key, 0, 64);
        client.qps[0].post_send(SendOp::Send, key, 64, 64, (0, key));
        // The receive, and the send: delayed frames are sent.
        let done = [client.wait(), client.wait()];
        assert!(done.iter().all(|completion| completion.status == 0), "{done:?}");
        assert_eq!(snapshot(&mut rig, 0).worker.acks_waited, waited, "{policy:?}");
        rig.stop();
    }
}

#[test]
fn a_frame_for_another_device_is_dropped_unless_it_was_handed_over() {
    let mut rig = looped(&[(0, 0), (1, 0)]);
    let mut ours = rig.client(0, 1 << 16, &[0]);
    let theirs = rig.client(1, 1 << 16, &[1]);
    rig.connect(&ours.qps[0], &theirs.qps[0], Egress::Nic { flow: 0 });
    ours.qps[0].post_send(SendOp::Write, ours.key, 0, 100, (0, theirs.key));
    // The loop is read as a queue of the first endpoint slot, device 0; the queue pair is one of
    // device
    // 1.
    let dropped = wait_for(|| {
        let dropped = snapshot(&mut rig, 0).endpoints[0].drops.get(DropReason::NoSuchQp);
        (dropped > 0).then_some(dropped)
    });
    assert!(dropped > 0 && ours.poll().is_none());
    rig.stop();

    let mut rig = looped(&[(0, 0), (1, 0)]);
    let mut ours = rig.client(0, 1 << 16, &[0]);
    let theirs = rig.client(1, 1 << 16, &[1]);
    rig.connect(&ours.qps[0], &theirs.qps[0], Egress::HandOver { to: DeviceId(0) });
    ours.memory.write(0, b"from one device to another");
    ours.qps[0].post_send(SendOp::Write, ours.key, 0, 26, (100, theirs.key));
    assert_eq!(ours.wait().status, 0);
    let mut arrived = [0; 26];
    theirs.memory.read(100, &mut arrived);
    assert_eq!(&arrived, b"from one device to another");
    rig.stop();
}

#[test]
fn a_client_that_breaks_the_rules_is_muted_and_named_and_others_go_on() {
    let mut rig = looped(&[(0, 0)]);
    let mut broken = rig.client(0, 1 << 16, &[0]);
    let mut sound = rig.client(0, 1 << 20, &[0, 0]);
    rig.connect(&sound.qps[0], &sound.qps[1], Egress::HandOver { to: DeviceId(0) });
    broken.qps[0].post_send_wqe(&SendWqe { opcode: 99, ..SendWqe::default() }, &Sge::default());
    let fault = wait_for(|| rig.events.pop());
    assert_eq!(fault, WorkerEvent::Fault { session: broken.session, fault: ClientFault::UnknownOpcode(99) });
    broken.qps[0].post_send_wqe(&SendWqe { opcode: 98, ..SendWqe::default() }, &Sge::default());
    write(&mut sound, 0, 100_000);
    assert_eq!(rig.events.pop(), None, "one fault is enough");
    rig.stop();
}

#[test]
fn work_that_a_shared_receive_queue_cannot_have_is_a_fault() {
    let mut rig = looped(&[(0, 0)]);
    for own in [true, false] {
        let mut broken = rig.sharing_client(0, 1 << 16, &[0]);
        let qpn = broken.qps[0].qpn;
        let expected = if own {
            // Its receives are the shared queue's.
            broken.qps[0].post_recv(broken.key, 0, 1);
            ClientFault::ReceiveOnShared(qpn)
        } else {
            broken.srq.as_mut().expect("it shares").post_nonsense();
            ClientFault::TooManySges { asked: 99, limit: 1 }
        };
        let fault = wait_for(|| rig.events.pop());
        assert_eq!(fault, WorkerEvent::Fault { session: broken.session, fault: expected });
    }
    rig.stop();
}

/// The limit of a shared receive queue counts the receives in its ring. They are taken in turn with
/// the work of others, not by the command.
#[test]
fn no_command_takes_a_whole_ring_of_receives() {
    const POSTED: u32 = 1000;
    for polls in [0, 1, 20] {
        let mut rig = looped(&[(0, 0)]);
        rig.srq_wrs = 1024;
        let mut client = rig.sharing_client(0, 1 << 16, &[0]);
        let mut worker = rig.stop().remove(0);
        let srq = client.srq.as_mut().expect("it shares");
        (0..POSTED).for_each(|_| srq.post_recv(client.key, 0, 1));
        let srqn = srq.config.srqn;
        assert!(matches!(worker.carry_out(Command::SetSrqLimit(srqn, POSTED)), Answer::Done));
        assert!(matches!(worker.carry_out(Command::SrqLimit(srqn)), Answer::SrqLimit(POSTED)));
        for _ in 0..polls {
            worker.poll(monotonic_now());
        }
        assert!(matches!(worker.carry_out(Command::SrqLimit(srqn)), Answer::SrqLimit(POSTED)), "no event");
        let Answer::Srq(srq, _) = worker.carry_out(Command::DropSrq(srqn)) else { panic!("a queue") };
        assert!(srq.len() <= polls * 256 && (polls < 20 || srq.len() == POSTED), "{} in {polls} turns", srq.len());
    }
}

/// A limit that the posted receives do not reach is told at once, one that they reach is not, even
/// if it is replaced before they are taken.
#[test]
fn a_limit_that_waits_for_receives_is_armed_once_they_are_taken() {
    let mut rig = looped(&[(0, 0)]);
    rig.srq_wrs = 256;
    let mut client = rig.sharing_client(0, 1 << 16, &[0]);
    let session = client.session;
    let srq = client.srq.as_mut().expect("it shares");
    let srqn = srq.config.srqn;
    let told = WorkerEvent::Object { session, handle: srqn.get(), kind: event::SRQ_LIMIT };
    (0..200).for_each(|_| srq.post_recv(client.key, 0, 1));
    for limit in [150, 0, 200] {
        rig.tell(WorkerId(0), Command::SetSrqLimit(srqn, limit));
        assert!(matches!(rig.tell(WorkerId(0), Command::SrqLimit(srqn)), Answer::SrqLimit(armed) if armed == limit));
    }
    wait_for(|| (snapshot(&mut rig, 0).worker.work_requests >= 200).then_some(()));
    assert_eq!(rig.events.pop(), None);
    rig.tell(WorkerId(0), Command::SetSrqLimit(srqn, 201));
    assert_eq!(wait_for(|| rig.events.pop()), told);
    assert!(matches!(rig.tell(WorkerId(0), Command::SrqLimit(srqn)), Answer::SrqLimit(0)));
    rig.stop();
}

#[test]
fn a_client_that_floods_does_not_stop_another() {
    let mut rig = looped(&[(0, 0)]);
    let mut flood = rig.client(0, 1 << 20, &[0, 0, 0, 0]);
    let mut calm = rig.client(0, 1 << 20, &[0, 0]);
    rig.connect(&flood.qps[0], &flood.qps[1], Egress::HandOver { to: DeviceId(0) });
    rig.connect(&flood.qps[2], &flood.qps[3], Egress::HandOver { to: DeviceId(0) });
    rig.connect(&calm.qps[0], &calm.qps[1], Egress::HandOver { to: DeviceId(0) });
    let key = flood.key;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..500 {
                for qp in &mut flood.qps {
                    qp.post_send(SendOp::Write, key, 0, 30_000, (500_000, key));
                }
                while flood.poll().is_some() {}
            }
        });
        for _ in 0..20 {
            write(&mut calm, 0, 1000);
        }
    });
    rig.stop();
}

/// Frames that arrive without end, none of them good: each poll iteration takes a bounded number,
/// so that commands are answered and clients are served.
#[test]
fn a_flood_of_frames_stops_neither_commands_nor_clients() {
    let frames = Arc::new(ArrayQueue::new(256));
    let queues = |place: roced::worker::endpoints::EndpointLocation| vec![Loop::new(place.worker.0, &frames)];
    let mut rig = Rig::start(&[(0, 0)], Policy::Yield, queues, Worker::run);
    let mut calm = rig.client(0, 1 << 20, &[0, 0]);
    rig.connect(&calm.qps[0], &calm.qps[1], Egress::HandOver { to: DeviceId(0) });
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                if frames.push(vec![0; 100]).is_err() {
                    std::thread::yield_now();
                }
            }
        });
        for _ in 0..20 {
            write(&mut calm, 0, 1000);
            snapshot(&mut rig, 0);
        }
        is_over.store(true, Ordering::Relaxed);
    });
    let mut worker = rig.stop().remove(0);
    while frames.push(vec![0; 100]).is_ok() {}
    for polls in 1..=4 {
        worker.poll(monotonic_now());
        assert_eq!(frames.len(), 256 - polls * 64, "one batch of each queue");
    }
}

/// The answer waits behind more frames than a poll iteration takes. A flood that goes on holds
/// timers for a bounded number of iterations.
#[test]
fn a_worker_that_stood_still_takes_waiting_frames_before_its_timers() {
    let frames = Arc::new(ArrayQueue::new(256));
    let queues = |place: roced::worker::endpoints::EndpointLocation| vec![Loop::new(place.worker.0, &frames)];
    let mut rig = Rig::start(&[(0, 0)], Policy::Yield, queues, Worker::run);
    let mut client = rig.client(0, 1 << 16, &[0, 0]);
    rig.connect(&client.qps[0], &client.qps[1], Egress::Nic { flow: 7 });
    let mut worker = rig.stop().remove(0);
    let (key, qpn) = (client.key, client.qps[0].qpn);
    let timeouts = |worker: &mut Worker<Loop>| match worker.carry_out(Command::CountersOfQp(qpn)) {
        Answer::Counters(counters) => counters.get(QpCount::AckTimeout),
        other => panic!("{other:?}"),
    };
    let mut now = monotonic_now();
    let mut poll = |worker: &mut Worker<Loop>, after: Nanos| {
        now = now + after;
        worker.poll(now);
    };
    let still = Nanos::from_millis(10_000);
    client.qps[0].post_send(SendOp::Write, key, 0, 100, (1000, key));
    poll(&mut worker, Nanos(1000));
    assert_eq!(frames.len(), 1, "the request");
    poll(&mut worker, Nanos(1000));
    let answer = frames.pop().expect("the answer");
    (0..150).for_each(|_| frames.push(vec![0; 100]).expect("room"));
    frames.push(answer).expect("room");
    poll(&mut worker, still);
    assert!(client.poll().is_none(), "the answer waits");
    (0..2).for_each(|_| poll(&mut worker, Nanos(1000)));
    assert_eq!(client.poll().expect("it is answered").status, 0);
    assert_eq!(timeouts(&mut worker), 0);

    client.qps[0].post_send(SendOp::Write, key, 0, 100, (1000, key));
    poll(&mut worker, Nanos(1000));
    assert_eq!(frames.pop().map(|_| frames.len()), Some(0), "the request is lost");
    let mut polls = 0;
    while timeouts(&mut worker) == 0 {
        while frames.push(vec![0; 100]).is_ok() {}
        poll(&mut worker, if polls == 0 { still } else { Nanos::from_micros(100) });
        polls += 1;
        assert!(polls <= 202, "a flood delays timers by 20 ms at most");
    }
    assert!(polls > 100, "{polls}");
}

#[test]
fn a_worker_returns_the_objects_of_refused_commands() {
    let mut rig = looped(&[(0, 0)]);
    let client = rig.client(0, 1 << 16, &[0]);
    let mut refused = |command| match rig.workers.call(WorkerId(0), command).expect("an answer") {
        Answer::Refused(why, command) => (why, command),
        other => panic!("{other:?}"),
    };
    assert!(matches!(refused(Command::DetachSession(client.session)), (CommandRefused::InUse, None)));
    assert!(matches!(refused(Command::DropCqRing(roced_types::Cqn(999))), (CommandRefused::NoSuchObject, None)));
    assert!(matches!(refused(Command::QueryQp(Qpn::from_wire(17))), (CommandRefused::NoSuchObject, None)));
    assert!(matches!(refused(Command::DropMr(DeviceId(3), MrKey(1))), (CommandRefused::NoSuchObject, None)));
    let second = Mr {
        key: MrKey(client.key.0 ^ 0x100),
        pd: client.pd,
        access: 0,
        va: 0,
        length: 1,
        object: MemoryObjectId(client_region(&client)),
        offset: 0,
        scope: Scope::Region,
    };
    match refused(Command::SetMr(DeviceId(3), second, Arc::clone(&client.memory).into())) {
        (CommandRefused::NoSuchObject, Some(Command::SetMr(_, _, Backing::Mapped(memory)))) => {
            assert!(Arc::ptr_eq(&memory, &client.memory))
        }
        other => panic!("{other:?}"),
    }
    let Answer::Qp(qp, rings) = rig.tell(WorkerId(0), Command::DropQp(client.qps[0].qpn)) else {
        panic!("a queue pair")
    };
    assert_eq!((qp.qpn(), rings.session), (client.qps[0].qpn, client.session));
    assert!(matches!(rig.tell(WorkerId(0), Command::DetachSession(client.session)), Answer::Session(_)));
    // Its memory is held only by the test and the worker, and there by the regions in it together.
    let memory = || Arc::clone(&client.memory).into();
    assert!(matches!(rig.tell(WorkerId(0), Command::SetMr(DeviceId(0), second, memory())), Answer::Memory(None)));
    assert!(matches!(rig.tell(WorkerId(0), Command::SetMr(DeviceId(0), second, memory())), Answer::Memory(None)));
    assert_eq!(Arc::strong_count(&client.memory), 2);
    assert!(matches!(rig.tell(WorkerId(0), Command::DropMr(DeviceId(0), client.key)), Answer::Memory(None)));
    assert!(matches!(rig.tell(WorkerId(0), Command::DropMr(DeviceId(0), second.key)), Answer::Memory(Some(_))));
    assert_eq!(Arc::strong_count(&client.memory), 1);
    rig.stop();
}

/// The rig numbers a client's session and region one after the other.
fn client_region(client: &Client) -> u32 {
    client.session.0 + 1
}

#[test]
fn a_snapshot_lists_the_queue_pairs_of_a_worker() {
    let mut rig = looped(&[(0, 0)]);
    let mut client = rig.client(0, 1 << 20, &[0, 0]);
    rig.connect(&client.qps[0], &client.qps[1], Egress::HandOver { to: DeviceId(0) });
    write(&mut client, 0, 50_000);
    let snapshot = snapshot(&mut rig, 0);
    let states: BTreeMap<u32, _> =
        snapshot.qps.iter().map(|qp| (qp.qpn.get(), (qp.state, qp.path, qp.session))).collect();
    assert_eq!(states.len(), 2);
    assert_eq!(states[&client.qps[0].qpn.get()], ("RTS", "local", client.session));
    assert_eq!(snapshot.next_entry, None);
    assert_eq!(snapshot.queues[0].iter().collect::<Vec<_>>(), [("looped", 256)]);
    assert!(snapshot.worker.polls > 0 && snapshot.worker.work_requests == 1);
    assert!(snapshot.handoff.handed_over >= 13);
    rig.stop();
}
