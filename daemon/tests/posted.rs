//! Work that was posted before the end of a queue pair or a session, as a worker sends it: in
//! batches, each by a command.

mod rig;

use std::{
    collections::BTreeMap,
    net::Ipv4Addr,
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use nix::sys::eventfd::EventFd;
use rig::{Client, Rig};
use roced::worker::{
    command::{Answer, Command},
    idle::Policy,
    metrics::WorkerSnapshot,
    nic::Nic,
    poll_loop::Worker,
};
use roced_transport::{
    io::{Abort, Egress, EmitError, FrameMut, Segments, Wire},
    wire::{
        Roce,
        path::{Path, PathSpec},
    },
};
use roced_types::{AccountId, Qpn, WorkerId};

const WORKER: WorkerId = WorkerId(0);

/// Frames of a batch.
const BATCH: u32 = 128;

/// Datagrams that a queue pair can have posted: as many in its ring as in its send queue.
const POSTED: u32 = 64;

/// Frames that left, and whether there is room for any.
#[derive(Debug, Default)]
struct Cable {
    has_room: AtomicBool,
    /// Source queue pair of each, in order.
    sent_by: Mutex<Vec<u32>>,
}

impl Cable {
    fn count(&self) -> usize {
        self.sent_by.lock().expect("no test panics here").len()
    }

    /// Number of frames by source.
    fn counts(&self) -> BTreeMap<u32, u32> {
        let mut counts = BTreeMap::new();
        self.sent_by.lock().expect("no test panics here").iter().for_each(|qpn| *counts.entry(*qpn).or_default() += 1);
        counts
    }
}

struct Port {
    cable: Arc<Cable>,
    socket: EventFd,
}

impl Wire for Port {
    fn emit(
        &mut self,
        _: Egress,
        frame_bytes: usize,
        fill: impl FnOnce(&mut FrameMut<'_>) -> Result<(), Abort>,
    ) -> Result<(), EmitError> {
        if !self.cable.has_room.load(Ordering::Relaxed) {
            return Err(EmitError::Full);
        }
        let mut bytes = vec![0; frame_bytes];
        fill(&mut FrameMut::single(&mut bytes)).map_err(|Abort| EmitError::Aborted)?;
        // Ethernet, IPv4, UDP, BTH, and the Q_Key in the DETH.
        let at = 14 + 20 + 8 + 12 + 4;
        let source = u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        self.cable.sent_by.lock().expect("no test panics here").push(source);
        Ok(())
    }
}

impl Nic for Port {
    fn queue(&self) -> u32 {
        0
    }

    fn rx_burst(&mut self, _: usize, _: impl FnMut(&Segments<'_>)) -> usize {
        0
    }

    fn flush(&mut self) {}

    fn prepare_sleep(&mut self) -> bool {
        false
    }

    fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn counters(&self, _: &mut impl FnMut(&'static str, u64)) {}
}

/// A worker with a NIC queue that has no room yet.
fn stopped() -> (Rig<Port>, Arc<Cable>) {
    let cable = Arc::new(Cable::default());
    let queues = |_| vec![Port { cable: Arc::clone(&cable), socket: EventFd::new().expect("an eventfd") }];
    (Rig::start(&[(0, 0)], Policy::Yield, queues, Worker::run), cable)
}

/// A client with so many datagram queue pairs that have posted as much as they can, to elsewhere.
fn full(rig: &mut Rig<Port>, qps: usize) -> Client {
    let spec = PathSpec {
        via: Egress::Nic { flow: 0 },
        source_mac: [2, 0, 0, 0, 0, 1],
        dest_mac: [2, 0, 0, 0, 0, 2],
        vlan: None,
        source: Ipv4Addr::new(10, 0, 0, 1).to_ipv6_mapped().octets(),
        destination: Ipv4Addr::new(10, 0, 0, 2).to_ipv6_mapped().octets(),
        traffic_class: 0,
        hop_limit: 64,
        flow_label: 0,
        roce: Roce::V2 { udp_source_port: 0xc000 },
    };
    let mut client = rig.datagram_client(0, &vec![0; qps], Path::new(&spec).expect("both are IPv4"));
    let (key, ah) = (client.key, client.ah);
    for qp in &mut client.qps {
        (0..POSTED).for_each(|_| qp.post_datagram(key, ah, Qpn::from_wire(77)));
    }
    client
}

/// So many poll iterations pass at least.
fn pass(rig: &mut Rig<Port>, iterations: u32) {
    for _ in 0..iterations {
        rig.tell(WORKER, Command::Snapshot(Box::new(WorkerSnapshot::new(0, 0, None))));
    }
}

fn batch(rig: &mut Rig<Port>, command: Command) -> (u32, bool) {
    match rig.tell(WORKER, command) {
        Answer::Sent { frames, is_left } => (frames, is_left),
        other => panic!("{other:?}"),
    }
}

fn remove(rig: &mut Rig<Port>, client: &Client) {
    for qp in &client.qps {
        assert!(matches!(rig.tell(WORKER, Command::DropQp(qp.qpn)), Answer::Qp(..)));
    }
    assert!(matches!(rig.tell(WORKER, Command::DetachSession(client.session)), Answer::Session(_)));
}

#[test]
fn an_ended_session_sends_only_when_asked_and_its_queue_pairs_take_turns() {
    const QPS: u32 = 24;
    let (mut rig, cable) = stopped();
    let client = full(&mut rig, QPS as usize);
    let end = || Command::EndSession(client.session);
    assert_eq!(batch(&mut rig, end()), (0, true), "no room");
    cable.has_room.store(true, Ordering::Relaxed);
    pass(&mut rig, 200);
    assert_eq!(cable.count(), 0, "frames of an ended session in ordinary iterations");
    assert_eq!(batch(&mut rig, end()), (BATCH, true));
    pass(&mut rig, 50);
    assert_eq!(cable.count(), BATCH as usize);
    let counts = cable.counts();
    assert!(counts.len() == 8 && counts.values().all(|count| *count == 16), "{counts:?}");
    let mut sent = BATCH;
    loop {
        let (frames, is_left) = batch(&mut rig, end());
        assert!(frames <= BATCH, "{frames} frames by one command");
        sent += frames;
        if !is_left {
            break;
        }
    }
    assert_eq!((sent, cable.count()), (QPS * POSTED, (QPS * POSTED) as usize));
    assert!(cable.counts().values().all(|count| *count == POSTED), "{:?}", cable.counts());
    assert_eq!(batch(&mut rig, end()), (0, false));
    remove(&mut rig, &client);
    rig.stop();
}

#[test]
fn work_that_an_ended_session_has_left_leaves_with_its_queue_pairs_and_others_continue() {
    let (mut rig, cable) = stopped();
    let (gone, stays) = (full(&mut rig, 8), full(&mut rig, 3));
    assert_eq!(batch(&mut rig, Command::EndSession(gone.session)), (0, true));
    cable.has_room.store(true, Ordering::Relaxed);
    pass(&mut rig, 200);
    remove(&mut rig, &gone);
    let counts = cable.counts();
    let expected = stays.qps.iter().map(|qp| (qp.qpn.get(), POSTED)).collect();
    assert_eq!(counts, expected, "the other session's datagrams and no others");
    remove(&mut rig, &stays);
    rig.stop();
}

#[test]
fn a_queue_pair_that_is_to_end_sends_a_batch_by_each_command() {
    let (mut rig, cable) = stopped();
    // Two of one session: the command is for one.
    let client = full(&mut rig, 2);
    let [first, second] = [0, 1].map(|at| client.qps[at].qpn);
    assert_eq!(batch(&mut rig, Command::SendPosted(first)), (0, true), "no room");
    assert_eq!(batch(&mut rig, Command::EndSession(client.session)), (0, true));
    cable.has_room.store(true, Ordering::Relaxed);
    assert_eq!(batch(&mut rig, Command::SendPosted(first)), (POSTED, false));
    assert_eq!(cable.counts(), BTreeMap::from([(first.get(), POSTED)]));
    assert_eq!(batch(&mut rig, Command::SendPosted(first)), (0, false));
    assert_eq!(batch(&mut rig, Command::SendPosted(second)), (POSTED, false));
    remove(&mut rig, &client);
    rig.stop();
}

/// Work is taken and sent by account: two clients with 18 queue pairs do not take more than their
/// half from one with one queue pair.
#[test]
fn an_account_with_one_queue_pair_has_its_half_beside_one_with_many() {
    let (mut rig, cable) = stopped();
    let many = [full(&mut rig, 9), full(&mut rig, 9)];
    rig.account = AccountId(1);
    let one = full(&mut rig, 1);
    cable.has_room.store(true, Ordering::Relaxed);
    pass(&mut rig, 200);
    let qpn = one.qps[0].qpn.get();
    let last = cable.sent_by.lock().expect("no test panics here").iter().rposition(|from| *from == qpn);
    // An iteration takes a queue of 32, of which it may send all before the others are done.
    assert!(last.is_some_and(|last| last < 224), "it has sent {POSTED} at {last:?}");
    many.iter().chain([&one]).for_each(|client| remove(&mut rig, client));
    rig.stop();
}
