//! Management datagrams between the wire and the control thread, through running workers.

mod rig;

use std::{
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use crossbeam::queue::ArrayQueue;
use nix::{
    poll::{PollFd, PollFlags, poll},
    sys::eventfd::EventFd,
};
use rig::Rig;
use roced::worker::{
    command::{Answer, Command},
    idle::Policy,
    metrics::{WorkerCounters, WorkerSnapshot},
    nic::Nic,
    poll_loop::Worker,
    received_mads::{MadRoom, ReceivedMad},
    sent_mads::OutgoingMad,
};
use roced_cm::wire::Attribute;
use roced_transport::{
    clock::Nanos,
    io::{Abort, Egress, EmitError, FrameMut, Segments, Wire},
    management::MAD_BYTES,
    psn::Psn,
    qp::PathState,
    reject::DropReason,
    wire::{Bth, Deth, Headers, Path, PathSpec, Roce, opcode, parse},
};
use roced_types::{DeviceId, Qpn, Status, WorkerId};

/// A NIC queue of the test: frames to the worker, and frames from it.
struct TestNic {
    number: u32,
    arriving: Arc<ArrayQueue<Vec<u8>>>,
    sent: Arc<ArrayQueue<Vec<u8>>>,
    /// Frames wait while it is set, and then arrive in one burst.
    holds: Arc<AtomicBool>,
    /// Time that each frame takes to be emitted.
    emit_time: Duration,
    socket: EventFd,
}

impl Wire for TestNic {
    fn emit(
        &mut self,
        _: Egress,
        frame_bytes: usize,
        fill: impl FnOnce(&mut FrameMut<'_>) -> Result<(), Abort>,
    ) -> Result<(), EmitError> {
        if self.sent.is_full() {
            return Err(EmitError::Full);
        }
        std::thread::sleep(self.emit_time);
        let mut bytes = vec![0; frame_bytes];
        fill(&mut FrameMut::single(&mut bytes)).map_err(|Abort| EmitError::Aborted)?;
        self.sent.push(bytes).map_err(|_| EmitError::Full)
    }
}

impl Nic for TestNic {
    fn queue(&self) -> u32 {
        self.number
    }

    fn rx_burst(&mut self, budget: usize, mut on_frame: impl FnMut(&Segments<'_>)) -> usize {
        let budget = if self.holds.load(Ordering::Acquire) { 0 } else { budget };
        (0..budget).map_while(|_| self.arriving.pop()).map(|frame| on_frame(&[&frame])).count()
    }

    fn flush(&mut self) {}

    fn prepare_sleep(&mut self) -> bool {
        !self.arriving.is_empty()
    }

    fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn counters(&self, _: &mut impl FnMut(&'static str, u64)) {}
}

/// Workers with a NIC queue for each endpoint; the test has the other ends.
struct Bench {
    rig: Rig<TestNic>,
    arriving: Vec<Arc<ArrayQueue<Vec<u8>>>>,
    sent: Vec<Arc<ArrayQueue<Vec<u8>>>>,
    holds: Arc<AtomicBool>,
}

impl Bench {
    fn new(served: &[(u32, u32)], policy: Policy, tx_room: usize) -> Self {
        Self::with_emit_time(served, policy, tx_room, Duration::ZERO)
    }

    fn with_emit_time(served: &[(u32, u32)], policy: Policy, tx_room: usize, emit_time: Duration) -> Self {
        Self::with_queues(served, policy, tx_room, emit_time, 1)
    }

    /// Each endpoint has so many NIC queues, in their order.
    fn with_queues(
        served: &[(u32, u32)],
        policy: Policy,
        tx_room: usize,
        emit_time: Duration,
        of_endpoint: usize,
    ) -> Self {
        let queues =
            |room| (0..served.len() * of_endpoint).map(|_| Arc::new(ArrayQueue::new(room))).collect::<Vec<_>>();
        let (arriving, sent) = (queues(8192), queues(tx_room));
        let (to_nic, from_nic) = (arriving.clone(), sent.clone());
        let holds = Arc::new(AtomicBool::new(false));
        let held = Arc::clone(&holds);
        let nic = move |number: usize| TestNic {
            number: number as u32,
            arriving: Arc::clone(&to_nic[number]),
            sent: Arc::clone(&from_nic[number]),
            holds: Arc::clone(&held),
            emit_time,
            socket: EventFd::new().expect("an eventfd"),
        };
        let rig = Rig::start(
            served,
            policy,
            |place| {
                let first = place.endpoint.get() * of_endpoint;
                (first..first + of_endpoint).map(&nic).collect()
            },
            Worker::run,
        );
        Self { rig, arriving, sent, holds }
    }

    fn snapshot(&mut self, worker: u32) -> WorkerSnapshot {
        let empty = Box::new(WorkerSnapshot::new(8, 8, None));
        match self.rig.tell(WorkerId(worker), Command::Snapshot(empty)) {
            Answer::Snapshot(filled) => *filled,
            other => panic!("{other:?}"),
        }
    }

    /// Waits until a worker has processed that many datagrams.
    fn wait_until_processed(&mut self, worker: u32, count: u64) -> WorkerSnapshot {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let snapshot = self.snapshot(worker);
            let lost = snapshot.endpoints.iter().map(|endpoint| endpoint.drops.get(DropReason::ManagementQueueFull));
            let counters = &snapshot.worker;
            let dropped = counters.mads_queue_full + counters.mads_share_full + counters.mads_unknown_dropped;
            let passed = counters.mads_received + dropped;
            if passed + lost.sum::<u64>() >= count {
                return snapshot;
            }
            assert!(Instant::now() < deadline, "{counters:?}");
        }
    }

    fn drain(&self) -> Vec<ReceivedMad> {
        let mut taken = Vec::new();
        self.rig.mads.drain(MadRoom::FULL, |mad| taken.push(mad));
        taken
    }

    /// The fd of the receiver becomes readable.
    fn is_readable(&self, wait_ms: u16) -> bool {
        poll(&mut [PollFd::new(self.rig.mads.as_fd(), PollFlags::POLLIN)], wait_ms).expect("poll") == 1
    }
}

const US: [u8; 16] = gid([10, 0, 0, 1]);

const fn gid(address: [u8; 4]) -> [u8; 16] {
    let [a, b, c, d] = address;
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d]
}

fn path(source: [u8; 16], destination: [u8; 16]) -> Path {
    Path::new(&PathSpec {
        via: Egress::Nic { flow: 0 },
        source_mac: [2; 6],
        dest_mac: [4; 6],
        vlan: None,
        source,
        destination,
        traffic_class: 0x20,
        hop_limit: 64,
        flow_label: 0,
        roce: Roce::V2 { udp_source_port: 55_410 },
    })
    .expect("both are IPv4")
}

/// A request; bytes of `number` but for its kind.
fn request(number: u8) -> [u8; MAD_BYTES] {
    let mut bytes = [number; MAD_BYTES];
    bytes[..4].copy_from_slice(&[1, 7, 2, 3]);
    bytes[16..18].copy_from_slice(&Attribute::Req.number().to_be_bytes());
    bytes
}

/// A request that `remote` sends to us.
fn frame(remote: [u8; 16], number: u8) -> Vec<u8> {
    let headers = Headers {
        deth: Some(Deth { qkey: 0x8001_0000, source_qpn: Qpn::GSI }),
        ..Headers::new(Bth::new(opcode::UD_SEND_ONLY, Qpn::GSI, Psn::new(0)))
    };
    filled(remote, &headers, &request(number))
}

fn filled(remote: [u8; 16], headers: &Headers, payload: &[u8]) -> Vec<u8> {
    let (path, mut rest) = (path(remote, US), payload);
    let mut bytes = vec![0; path.frame_bytes(headers, payload.len())];
    path.fill(&mut FrameMut::single(&mut bytes), headers, payload.len(), |piece| {
        let (now, later) = rest.split_at(piece.len());
        piece.copy_from_slice(now);
        rest = later;
        Ok(())
    })
    .expect("filled");
    bytes
}

fn mad(device: u32, number: u8) -> OutgoingMad {
    OutgoingMad { device: DeviceId(device), path: path(US, gid([10, 0, 0, 2])), bytes: [number; MAD_BYTES] }
}

/// The second endpoint is not the one that QPN 1 would belong to as a place.
#[test]
fn a_datagram_stays_on_its_worker_and_names_its_device() {
    let mut bench = Bench::new(&[(0, 0), (0, 1), (1, 1)], Policy::Yield, 8);
    for endpoint in 0..3 {
        let remote = gid([10, 0, 0, 10 + endpoint]);
        bench.arriving[usize::from(endpoint)].push(frame(remote, endpoint)).expect("room");
        assert!(bench.is_readable(20_000), "endpoint {endpoint}");
        let expected = ReceivedMad {
            device: DeviceId(u32::from(endpoint / 2)),
            vlan: None,
            local: US,
            remote,
            traffic_class: 0x20,
            is_roce_v1: false,
            bytes: request(endpoint),
        };
        assert_eq!(bench.drain(), [expected]);
        assert!(!bench.is_readable(0));
    }
    let (first, second) = (bench.snapshot(0), bench.snapshot(1));
    assert_eq!((first.worker.mads_received, second.worker.mads_received), (1, 2));
    assert_eq!((first.handoff.forwarded, second.handoff.forwarded), (0, 0));
    bench.rig.stop();
}

#[test]
fn a_flood_from_one_address_leaves_room_for_others() {
    const FLOOD: u64 = 5000;
    let mut bench = Bench::new(&[(0, 0), (0, 1)], Policy::Yield, 8);
    for number in 0..FLOOD {
        bench.arriving[0].push(frame(gid([10, 0, 0, 66]), number as u8)).expect("room");
    }
    let first = bench.wait_until_processed(0, FLOOD);
    assert_eq!((first.worker.mads_received, first.worker.mads_queue_full), (512, 0));
    assert_eq!(first.worker.mads_share_full, FLOOD - 512);
    // Several, because one of 256 addresses has the share of the flood.
    for host in 1..=8 {
        bench.arriving[1].push(frame(gid([10, 0, 1, host]), host)).expect("room");
    }
    let second = bench.wait_until_processed(1, 8);
    let taken = bench.drain();
    let others = taken.iter().filter(|mad| mad.remote[14] == 1).count() as u64;
    assert!(others > 0 && others == second.worker.mads_received);
    assert_eq!(taken.len() as u64, 512 + others);
    bench.rig.stop();
}

/// As many as a worker takes from a queue at a time come by the first one.
#[test]
fn datagrams_of_a_queue_leave_those_of_another_room() {
    let mut bench = Bench::with_queues(&[(0, 0)], Policy::Yield, 8, Duration::ZERO, 2);
    bench.holds.store(true, Ordering::Release);
    for host in 0..64 {
        bench.arriving[0].push(frame(gid([10, 1, 1, host]), host)).expect("room");
    }
    bench.arriving[1].push(frame(gid([10, 1, 2, 1]), 7)).expect("room");
    bench.holds.store(false, Ordering::Release);
    let counters = bench.wait_until_processed(0, 65);
    let lost = counters.endpoints.iter().map(|endpoint| endpoint.drops.get(DropReason::ManagementQueueFull));
    assert_eq!((lost.sum::<u64>(), counters.worker.mads_received), (0, 65));
    bench.rig.stop();
}

/// More hosts than the queue has places.
#[test]
fn a_full_queue_is_counted_by_the_worker() {
    let mut bench = Bench::new(&[(0, 0)], Policy::Yield, 8);
    for host in 0..5000u16 {
        let [high, low] = host.to_be_bytes();
        bench.arriving[0].push(frame(gid([10, 1, high, low]), 0)).expect("room");
    }
    let worker = bench.wait_until_processed(0, 5000).worker;
    assert_eq!(worker.mads_received, 4096);
    assert_eq!(worker.mads_queue_full + worker.mads_share_full, 5000 - 4096);
    assert!(worker.mads_queue_full > 500, "{worker:?}");
    bench.rig.stop();
}

#[test]
fn a_sleeping_worker_sends_a_datagram_by_the_queue_of_its_device() {
    let bench = Bench::new(&[(0, 0), (1, 0)], Policy::Sleep { spin: Nanos(0) }, 8);
    for (number, device) in [0, 1, 1, 0].into_iter().enumerate() {
        std::thread::sleep(Duration::from_millis(5));
        let posted = Instant::now();
        bench.rig.workers.send_mad(WorkerId(0), mad(device, number as u8)).expect("room");
        let sent = loop {
            if let Some(sent) = bench.sent[device as usize].pop() {
                break sent;
            }
            // Without a wake-up it would be the half second of the longest sleep.
            assert!(posted.elapsed() < Duration::from_millis(400), "datagram {number} is late");
            std::thread::yield_now();
        };
        let pieces = [&sent[..]];
        let packet = parse(&pieces).expect("our frame parses");
        packet.check_integrity().expect("our frame is whole");
        assert_eq!((packet.bth.dest_qpn, packet.payload_len()), (Qpn::GSI, MAD_BYTES));
        assert!(packet.payload().flatten().all(|byte| *byte == number as u8));
    }
    bench.rig.stop();
}

/// As many as the worker's queue holds, faster than an endpoint sends them.
#[test]
fn a_burst_of_datagrams_waits_for_room_in_the_endpoint() {
    let mut bench = Bench::new(&[(0, 0), (1, 0)], Policy::Sleep { spin: Nanos(0) }, 8192);
    let mut posted = 0;
    let deadline = Instant::now() + Duration::from_secs(20);
    for _ in 0..4 {
        let burst = (0..=255).take_while(|number| {
            let device = u32::from(number % 8 == 7);
            bench.rig.workers.send_mad(WorkerId(0), mad(device, *number)).is_ok()
        });
        posted += burst.count() as u64;
        let processed = |worker: &WorkerCounters| worker.mads_sent + worker.mads_send_dropped;
        while processed(&bench.snapshot(0).worker) < posted {
            assert!(Instant::now() < deadline, "{:?}", bench.snapshot(0).worker);
        }
    }
    let worker = bench.snapshot(0).worker;
    assert!(posted >= 256);
    assert_eq!((worker.mads_sent, worker.mads_send_dropped), (posted, 0));
    bench.rig.stop();
}

#[test]
fn datagrams_without_room_or_device_are_dropped_and_counted() {
    let mut bench = Bench::new(&[(0, 0)], Policy::Yield, 1);
    bench.rig.workers.send_mad(WorkerId(0), mad(1, 0)).expect("room");
    let counted = |bench: &mut Bench, count| {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let worker = bench.snapshot(0).worker;
            if worker.mads_sent + worker.mads_send_dropped >= count {
                return (worker.mads_sent, worker.mads_send_dropped);
            }
            assert!(Instant::now() < deadline, "{worker:?}");
        }
    };
    assert_eq!(counted(&mut bench, 1), (0, 1), "no such device");
    // One frame finds room on the wire, 64 wait in the endpoint.
    for number in 0..200 {
        let mut waiting = Some(mad(0, number));
        while let Some(mad) = waiting.take() {
            waiting = bench.rig.workers.send_mad(WorkerId(0), mad).err();
        }
        counted(&mut bench, u64::from(number) + 2);
    }
    assert_eq!(counted(&mut bench, 201), (65, 136));
    bench.rig.stop();
}

/// A peer that sends its last message and disconnects. A program destroys its queue pair when it
/// hears of that, and with it the completions that it has not seen. The emission of the answer
/// gives the control thread time to be early.
#[test]
fn completions_are_published_before_the_datagrams_behind_them() {
    const PEER: [u8; 16] = gid([10, 0, 0, 2]);
    let mut bench = Bench::with_emit_time(&[(0, 0)], Policy::Yield, 8, Duration::from_millis(100));
    let mut client = bench.rig.client(0, 4096, &[0]);
    let qpn = client.qps[0].qpn;
    bench.rig.connect_one(&client.qps[0], Qpn::new(qpn.endpoint(), 1), PEER, PathState::Ready(path(US, PEER)));
    let key = client.key;
    client.qps[0].post_recv(key, 64, 8);
    bench.holds.store(true, Ordering::Release);
    let last = Headers::new(Bth { ack_request: true, ..Bth::new(opcode::RC_SEND_ONLY, qpn, Psn::new(0)) });
    bench.arriving[0].push(filled(PEER, &last, &[5; 8])).expect("room");
    bench.arriving[0].push(frame(PEER, 7)).expect("room");
    bench.holds.store(false, Ordering::Release);
    assert!(bench.is_readable(20_000), "the datagram");
    assert_eq!(bench.drain().len(), 1);
    let completion = client.poll().expect("the completion of the message that came before the datagram");
    assert_eq!((completion.wr_id, completion.status, completion.byte_len), (64, Status::Success as u8, 8));
    bench.rig.stop();
}
