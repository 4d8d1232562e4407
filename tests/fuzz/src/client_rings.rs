//! Target `client_rings`: memory that a hostile client shares with a worker, written against all
//! rules: ring indices, work requests, doorbells, arm words, CQ ring indices; of queue pairs with
//! receives of their own and of some that share a receive queue. Beside it, a client of good
//! manners on the same worker.
//!
//! The worker ends at most the hostile session, once, and looks at its rings no more; it touches
//! nothing outside a region, its own client's or another's; and the other client's work is done all
//! the same.

use std::{
    fs::File,
    io::Write as _,
    os::{fd::OwnedFd, unix::fs::FileExt},
    sync::Arc,
};

use roced::{
    environment::WorkerAccess,
    worker::{
        command::{Answer, Command},
        events::WorkerEvent,
    },
};
use roced_abi::{
    cqe::Cqe,
    layout::{CqLayout, QpLayout, SrqLayout},
    ring::RingShape,
    wqe::{RecvWqe, SendWqe},
};
use roced_memory::{
    channel::CqChannel,
    client_memory::ClientMemory,
    queues::{new_cq, new_qp, new_session, new_srq},
    quota::Room,
};
use roced_transport::{
    clock::Nanos,
    io::Egress,
    mr::{Mr, MrKey, Scope},
    qp::{KeyChange, PathState, Qp, QpConfig, ReplayMemory, ServiceType},
    srq::{Srq, SrqConfig},
    wire::{Path, PathSpec, Roce},
};
use roced_types::{
    Cqn, MemoryObjectId, Pdn, QpAttributes, QpSizes, Qpn, SendOp, SessionId, Sge, Srqn, WorkerId, access, attribute,
    send_flags, state,
};
use zerocopy::{FromBytes, IntoBytes};

use crate::{
    client_ring::{Ring, read_u32, write},
    input::Input,
    machine::{Crew, DEVICE},
    packet::{US, gid},
};

/// Steps of one run.
const STEPS_MAX: usize = 100;
const SIZES: QpSizes = QpSizes { send_wrs: 8, recv_wrs: 8, send_sges: 2, recv_sges: 2, inline_bytes: 32 };
const CQ_ENTRIES: u32 = 16;
const WORKER: WorkerId = WorkerId(0);
/// A client's memory; the region is its middle, and no worker may touch the bytes around it.
const MEMORY_BYTES: u64 = 16_384;
const REGION: std::ops::Range<u64> = 4096..12_288;
const UNTOUCHED: u8 = 0xa7;

/// Numbers of a client's objects.
const HOSTILE: u32 = 1;
const POLITE: u32 = 2;

/// Queue pairs of a client: the first two, and the other two, are each other's peers.
const QPS: u32 = 4;
/// From this one on they share a receive queue, with its doorbell behind theirs.
const SHARERS: std::ops::Range<u32> = 2..QPS;

/// A queue pair as its client has it.
struct ClientQp {
    rings: File,
    bytes: u64,
    send: Ring,
    recv: Ring,
}

/// A client as its own process sees it.
struct Client {
    number: u32,
    session: File,
    memory: Arc<ClientMemory>,
    cq_rings: File,
    layout: CqLayout,
    qps: Vec<ClientQp>,
    shared: File,
    shared_ring: Ring,
    /// Completions taken.
    consumed: u32,
    /// It said that it took others than it did: an overwritten completion is its own fault.
    lied: bool,
    _events: OwnedFd,
}

fn key(number: u32) -> MrKey {
    MrKey(number << 8)
}

fn qpn(crew: &Crew, number: u32, index: u32) -> Qpn {
    Qpn::new(crew.places[0].endpoint, number * 4 + index)
}

fn srq(crew: &Crew, number: u32) -> SrqConfig {
    let srqn = Srqn::new(crew.places[0].endpoint, number);
    SrqConfig { srqn, pd: Pdn(number), sizes: SIZES.granted().expect("within every limit") }
}

fn tell(crew: &mut Crew, command: Command) {
    if let Answer::Refused(why, command) = crew.call(WORKER, command).expect("it answers at once") {
        panic!("{why}: {command:?}");
    }
}

/// One run.
pub(crate) fn run(bytes: &[u8]) {
    let mut input = Input(bytes);
    let mut crew = Crew::hire(1, 4);
    let mut hostile = Client::new(&mut crew, HOSTILE);
    let mut polite = Client::new(&mut crew, POLITE);
    let mut faults = 0;
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        hostile.step(&mut crew, &mut polite, &mut input);
        faults += faults_of(&mut crew);
        assert!(faults <= 1, "a session ends once");
    }
    polite.transfer(&mut crew);
    faults += faults_of(&mut crew);
    if faults > 0 {
        hostile.check_muted(&mut crew);
    }
    hostile.check_memory();
    polite.check_memory();
    hostile.leave(&mut crew);
    polite.leave(&mut crew);
    crew.release();
}

/// Faults that the worker has told of since the last time: only one client can have them, or keys
/// that it wants changed.
fn faults_of(crew: &mut Crew) -> u32 {
    crew.events.clear();
    let mut faults = 0;
    while let Some(event) = crew.events.pop() {
        match event {
            WorkerEvent::Fault { session, .. } => {
                assert_eq!(session, SessionId(HOSTILE), "the other did nothing wrong");
                faults += 1;
            }
            WorkerEvent::Key { session, change: KeyChange { qpn, ticket, .. } } => {
                assert_eq!(session, SessionId(HOSTILE), "the other wants none changed");
                tell(crew, Command::FinishKeyChange { qpn, ticket, done: ticket & 1 == 0 });
            }
            WorkerEvent::Stalled { .. } | WorkerEvent::PauseStorm { .. } => {}
            WorkerEvent::Object { session, .. } | WorkerEvent::Failed { session, .. } => {
                assert_eq!(session, SessionId(HOSTILE), "its queue pairs are well")
            }
        }
    }
    faults
}

impl Client {
    /// One with all its queue pairs.
    fn new(crew: &mut Crew, number: u32) -> Self {
        let (halves, session, _wakes) = new_session(SessionId(number), 1, Room::default()).expect("a small session");
        let (memory, memory_fd) = ClientMemory::create(MEMORY_BYTES, Room::default()).expect("memory");
        File::from(memory_fd).write_all(&[0; MEMORY_BYTES as usize]).expect("a client touches every page");
        let memory = Arc::new(memory);
        memory.write(0, &[UNTOUCHED; REGION.start as usize]);
        memory.write(REGION.end, &[UNTOUCHED; (MEMORY_BYTES - REGION.end) as usize]);
        let layout = CqLayout::new(CQ_ENTRIES, 1).expect("a small queue");
        let (channel, events) = CqChannel::create(None).expect("a socket pair");
        let (cq_rings, cq_rings_fd) =
            new_cq(Cqn(number), SessionId(number), layout, Some(&channel), Room::default()).expect("a small queue");
        let mr = Mr {
            key: key(number),
            pd: Pdn(number),
            access: access::ALL,
            va: REGION.start,
            length: REGION.end - REGION.start,
            object: MemoryObjectId(number),
            offset: REGION.start,
            scope: Scope::Region,
        };
        halves.into_iter().for_each(|half| tell(crew, Command::AttachSession(half)));
        cq_rings.into_iter().for_each(|cq_ring| tell(crew, Command::AddCqRing(Cqn(number), cq_ring)));
        tell(crew, Command::SetMr(DEVICE, mr, Arc::clone(&memory).into()));
        let config = srq(crew, number);
        let (ring, shared) =
            new_srq(config.srqn, SessionId(number), QPS, config.sizes, Room::default()).expect("a small ring");
        tell(crew, Command::AddSrq(Box::new(Srq::new(config)), ring));
        let qps = (0..QPS).map(|index| ClientQp::new(crew, number, index)).collect();
        let client = Self {
            number,
            session: session.into(),
            memory,
            cq_rings: cq_rings_fd.into(),
            layout,
            qps,
            shared: shared.into(),
            shared_ring: Ring { shape: SrqLayout::new(config.sizes).recv, offset: 0, next: 0 },
            consumed: 0,
            lied: false,
            _events: events,
        };
        client.connect(crew);
        client
    }

    /// All queue pairs from wherever they are to RTS.
    fn connect(&self, crew: &mut Crew) {
        use attribute::*;
        let spec = PathSpec {
            via: Egress::SameDevice,
            source_mac: [2; 6],
            dest_mac: [2; 6],
            vlan: None,
            source: gid(US),
            destination: gid(US),
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
            roce: Roce::V2 { udp_source_port: 0xc001 },
        };
        let path = Path::new(&spec).expect("one family");
        for index in 0..QPS {
            for (state, mask) in [
                (state::RESET, 0),
                (state::INIT, PKEY_INDEX | PORT | ACCESS_FLAGS),
                (state::RTR, AV | PATH_MTU | DEST_QPN | RQ_PSN | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER),
                (state::RTS, TIMEOUT | RETRY_CNT | RNR_RETRY | SQ_PSN | MAX_QP_RD_ATOMIC),
            ] {
                let attributes = QpAttributes {
                    state,
                    access: access::ALL,
                    path_mtu_bytes: 1024,
                    dest_qpn: qpn(crew, self.number, index ^ 1).get(),
                    max_rd_atomic: 4,
                    max_dest_rd_atomic: 4,
                    timeout: 14,
                    retry_cnt: 7,
                    rnr_retry: 7,
                    dgid: gid(US),
                    ..QpAttributes::default()
                };
                let path = (mask & AV != 0).then_some(PathState::Ready(path));
                let qpn = qpn(crew, self.number, index);
                let replay = ReplayMemory::for_change(mask, &attributes);
                tell(crew, Command::ModifyQp { qpn, mask: mask | STATE, attributes, path, replay });
            }
        }
    }

    /// Regardless of its actions, all that it had can be taken from the worker.
    fn leave(self, crew: &mut Crew) {
        (0..2).for_each(|_| tell(crew, Command::EndSession(SessionId(self.number))));
        for index in 0..QPS {
            let qpn = qpn(crew, self.number, index);
            tell(crew, Command::DropQp(qpn));
        }
        tell(crew, Command::DropSrq(srq(crew, self.number).srqn));
        tell(crew, Command::DropMr(DEVICE, key(self.number)));
        tell(crew, Command::DropCqRing(Cqn(self.number)));
        tell(crew, Command::DetachSession(SessionId(self.number)));
    }

    /// A step of the input.
    fn step(&mut self, crew: &mut Crew, other: &mut Self, input: &mut Input<'_>) {
        let step = input.byte();
        let index = usize::from(step >> 7 | step >> 3 & 2);
        let is_send = step & 0x40 != 0;
        let is_shared = step & 0x20 != 0;
        match step % 16 {
            0..3 => self.post_send(index, input),
            3 => self.post_recv(if is_shared { None } else { Some(index) }, input),
            4 | 5 => {
                let (file, bytes) = if is_shared {
                    (&self.shared, SrqLayout::new(SIZES.granted().expect("within every limit")).bytes as u64)
                } else {
                    (&self.qps[index].rings, self.qps[index].bytes)
                };
                let at = u64::from(input.u16()) % bytes;
                let count = usize::from(input.byte() % 80);
                write(file, at, input.take(count.min((bytes - at) as usize)));
            }
            6 => {
                let (file, ring) = self.any_ring(index, is_send, is_shared);
                ring.next = ring.next.wrapping_add(i32::from(input.byte().cast_signed()).cast_unsigned());
                write(file, ring.offset, &ring.next.to_le_bytes());
            }
            7 => {
                let (file, ring) = self.any_ring(index, is_send, is_shared);
                write(file, ring.offset, &input.array::<4>());
            }
            8 => {
                let word = u64::from(input.byte() % 65);
                // The summary, or one of the words behind its cache line.
                write(&self.session, if word == 0 { 0 } else { 56 + 8 * word }, &input.array::<8>());
            }
            9 => write(&self.cq_rings, 0, &input.array::<4>()),
            10 => {
                let value = if is_send { input.u32() } else { self.produced().wrapping_add(input.byte().into()) };
                write(&self.cq_rings, self.layout.cq_ring_offset(0) as u64 + 64, &value.to_le_bytes());
                self.lied = true;
            }
            11 => while self.poll().is_some() {},
            12 | 13 => {
                crew.now = crew.now + Nanos(1 << (input.byte() % 34));
                crew.poll();
            }
            14 if is_shared => {
                let limit = u32::from(input.byte() % 10);
                tell(crew, Command::SetSrqLimit(srq(crew, self.number).srqn, limit));
            }
            14 => other.transfer(crew),
            _ => self.connect(crew),
        }
    }

    /// A ring of a queue pair, or the shared one.
    fn any_ring(&mut self, index: usize, is_send: bool, is_shared: bool) -> (&File, &mut Ring) {
        if is_shared {
            return (&self.shared, &mut self.shared_ring);
        }
        let qp = &mut self.qps[index];
        (&qp.rings, if is_send { &mut qp.send } else { &mut qp.recv })
    }

    fn sge(&self, input: &mut Input<'_>) -> Sge {
        let what = input.byte();
        let lkey = if what & 0x80 != 0 { key(POLITE).0 } else { key(self.number).0 };
        let length = if what & 0x40 != 0 { input.u32() } else { u32::from(input.u16() % 3000) };
        Sge { va: REGION.start + u64::from(what & 0x3f) * 130, length, lkey }
    }

    /// Work that is mostly as a library would write it.
    fn post_send(&mut self, index: usize, input: &mut Input<'_>) {
        let (op, flags, count) = (input.byte(), input.byte(), input.byte());
        let is_inline = flags & send_flags::INLINE != 0;
        let op = if op & 0x80 != 0 { op } else { op % 16 };
        let wqe = SendWqe {
            wr_id: u64::from(count),
            opcode: op,
            flags: if flags & 0x80 != 0 { flags } else { flags & send_flags::ALL },
            num_sge: if count & 0x80 != 0 { count } else { count % 3 },
            remote_va: REGION.start + u64::from(input.u16() % 8200),
            rkey: if flags & 0x40 != 0 { key(POLITE).0 } else { key(self.number).0 },
            inline_bytes: if is_inline { u32::from(count % 40) } else { 0 },
            swap_or_add: 1,
            ..SendWqe::default()
        };
        let sges = [self.sge(input), self.sge(input)];
        let qp = &mut self.qps[index];
        qp.send.push(&qp.rings, &[wqe.as_bytes(), sges.as_bytes()].concat());
        self.ring(index);
    }

    /// A receive of a queue pair's own, or one of the shared queue.
    fn post_recv(&mut self, index: Option<usize>, input: &mut Input<'_>) {
        let count = input.byte();
        let wqe = RecvWqe {
            wr_id: u64::from(count),
            num_sge: if count & 0x80 != 0 { count } else { count % 3 },
            ..RecvWqe::default()
        };
        let sges = [self.sge(input), self.sge(input)];
        let entry = [wqe.as_bytes(), sges.as_bytes()].concat();
        let Some(index) = index else {
            self.shared_ring.push(&self.shared, &entry);
            return self.ring(QPS as usize);
        };
        let qp = &mut self.qps[index];
        qp.recv.push(&qp.rings, &entry);
        self.ring(index);
    }

    fn ring(&self, index: usize) {
        // All doorbells lie in the first word; another's is rung as well, which is noise and no
        // more.
        write(&self.session, 64, &[1 << index | 1, 0, 0, 0, 0, 0, 0, 0]);
        write(&self.session, 0, &[1, 0, 0, 0, 0, 0, 0, 0]);
    }

    /// Entries that the worker has put into the CQ ring.
    fn produced(&self) -> u32 {
        read_u32(&self.cq_rings, self.layout.cq_ring_offset(0) as u64)
    }

    /// The next completion.
    fn poll(&mut self) -> Option<Cqe> {
        let base = self.layout.cq_ring_offset(0) as u64;
        let behind = self.produced().wrapping_sub(self.consumed);
        assert!(behind <= CQ_ENTRIES || self.lied, "no completion is written over one that was not taken");
        if behind == 0 || behind > CQ_ENTRIES {
            return None;
        }
        let mut bytes = [0; size_of::<Cqe>()];
        let slot = u64::from(self.consumed % CQ_ENTRIES) * bytes.len() as u64;
        self.cq_rings.read_exact_at(&mut bytes, base + RingShape::INDEX_BYTES as u64 + slot).expect("inside its file");
        self.consumed = self.consumed.wrapping_add(1);
        write(&self.cq_rings, base + 64, &self.consumed.to_le_bytes());
        Some(Cqe::read_from_bytes(&bytes).expect("a completion"))
    }

    /// Work of good manners, which is done within a bounded number of turns.
    fn transfer(&mut self, crew: &mut Crew) {
        let pattern: Vec<u8> = (0..1500).map(|at| (at * 7) as u8 ^ self.consumed as u8).collect();
        let target = REGION.start + 4096;
        self.memory.write(REGION.start, &pattern);
        let wqe = SendWqe {
            wr_id: self.consumed.into(),
            opcode: SendOp::Write as u8,
            flags: send_flags::SIGNALED,
            num_sge: 1,
            remote_va: target,
            rkey: key(self.number).0,
            ..SendWqe::default()
        };
        let sge = Sge { va: REGION.start, length: 1500, lkey: key(self.number).0 };
        let qp = &mut self.qps[0];
        qp.send.push(&qp.rings, &[wqe.as_bytes(), sge.as_bytes()].concat());
        self.ring(0);
        for _ in 0..200 {
            crew.poll();
            if let Some(completion) = self.poll() {
                assert_eq!((completion.wr_id, completion.status), (wqe.wr_id, 0), "{completion:?}");
                let mut arrived = vec![0; pattern.len()];
                self.memory.read(target, &mut arrived);
                assert!(arrived == pattern, "the data is there when the completion is");
                return;
            }
        }
        panic!("its work is not done in 200 turns");
    }

    /// The worker looks at its rings no more.
    fn check_muted(&mut self, crew: &mut Crew) {
        let taken = |client: &Self| {
            let rings = client.qps.iter().flat_map(|qp| [(&qp.rings, qp.send.offset), (&qp.rings, qp.recv.offset)]);
            let rings = rings.chain([(&client.shared, 0)]);
            rings.map(|(file, offset)| read_u32(file, offset + 64)).collect::<Vec<_>>()
        };
        let before = taken(self);
        for qp in [Some(0), Some(1), None] {
            self.post_recv(qp, &mut Input(&[]));
        }
        (0..4).for_each(|_| _ = crew.poll());
        assert_eq!(taken(self), before, "a muted session's work stays where it is");
        assert_eq!(faults_of(crew), 0, "it was told of once");
    }

    /// Nothing outside the region was touched.
    fn check_memory(&self) {
        for (from, to) in [(0, REGION.start), (REGION.end, MEMORY_BYTES)] {
            let mut bytes = vec![0; (to - from) as usize];
            self.memory.read(from, &mut bytes);
            assert!(bytes.iter().all(|byte| *byte == UNTOUCHED), "no worker may write between {from} and {to}");
        }
    }
}

impl ClientQp {
    fn new(crew: &mut Crew, number: u32, index: u32) -> Self {
        let shares = SHARERS.contains(&index);
        let sizes = if shares { QpSizes { recv_wrs: 1, ..SIZES } } else { SIZES };
        let sizes = sizes.granted().expect("within every limit");
        let qpn = qpn(crew, number, index);
        let (mut rings, fd) = new_qp(qpn, SessionId(number), index, sizes, Room::default()).expect("small rings");
        let config = QpConfig {
            qpn,
            service: ServiceType::Rc,
            pd: Pdn(number),
            send_cq: Cqn(number),
            recv_cq: Cqn(number),
            sizes,
            signal_all: false,
            window_packets: 64,
            credits: true,
        };
        rings.shared = shares;
        let qp = Qp::new(config);
        let qp = if shares { qp.with_srq(&srq(crew, number)) } else { qp };
        tell(crew, Command::AddQp(Box::new(qp), rings));
        let layout = QpLayout::new(sizes);
        Self {
            rings: fd.into(),
            bytes: layout.bytes as u64,
            send: Ring { shape: layout.send, offset: 0, next: 0 },
            recv: Ring { shape: layout.recv, offset: layout.recv_offset as u64, next: 0 },
        }
    }
}
