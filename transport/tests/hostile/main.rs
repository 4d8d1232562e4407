//! An endpoint among enemies: peers that send anything with a right ICRC, clients that post any
//! work, control calls in any order, a wire that is often full, completion queues that are
//! sometimes, clocks that jump. By seeds; thousands of runs.
//!
//! For any input, the endpoint does not panic, touches client memory only where a region that is
//! registered at that moment gives the right, sends no frame longer than the path MTU and its
//! headers, completes nothing that was not posted and nothing twice or out of order, and comes to
//! rest. In state ERR all work ends.

mod client;
mod peer;
mod random;
mod tap;

use roced_transport::{
    ah::AhEntry,
    clock::Nanos,
    endpoint::{Endpoint, EndpointConfig},
    io::Egress,
    mr::{Mr, MrKey, Scope},
    partition::Partitions,
    psn::Psn,
    qp::{KeyChange, KeyRequest, PathState, Qp, QpConfig, ServiceType},
    recovery::{Recovery, RecoveryConfig},
    wire::{Operation, Path, PathSpec, Roce},
    work::{DatagramTo, RecvWork, SendWork, WorkData},
};
use roced_types::{
    Cqn, EndpointId, INLINE_BYTES_MAX, MemoryObjectId, Pdn, QpAttributes, QpSizes, Qpn, SendOp, Sge, access, attribute,
    send_flags, state,
};

use crate::{
    client::{Client, Posted},
    random::Random,
    tap::Tap,
};

const QPS: u32 = 3;
const PD: Pdn = Pdn(1);
const SIZES: QpSizes = QpSizes { send_wrs: 8, recv_wrs: 8, send_sges: 4, recv_sges: 4, inline_bytes: 64 };
const ENDPOINT: usize = 3;
const OUR_QKEY: u32 = 0x77;
/// Destinations of datagrams.
const DATAGRAM_PEER: u32 = 0x200;
/// A multicast group.
const GROUP: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 0, 0, 1];
const US: [u8; 16] = gid(1);
const PEER: [u8; 16] = gid(2);
const UNKNOWN_PEER: [u8; 16] = gid(9);
/// Ethernet, IPv4, UDP, BTH, RETH, immediate, ICRC: the longest headers that we send.
const OVERHEAD_MAX: usize = 14 + 20 + 8 + 12 + 16 + 4 + 4;

const fn gid(last: u8) -> [u8; 16] {
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, last]
}

struct World {
    random: Random,
    endpoint: Endpoint,
    client: Client,
    tap: Tap,
    now: Nanos,
    wr_id: u64,
    /// The message that each peer is in, and the bytes that are left of it.
    message: [Option<(Operation, usize)>; QPS as usize],
    /// Changes of keys that wait.
    changes: Vec<KeyChange>,
    frames: u64,
    accepted: u64,
}

fn qpn(index: u32) -> Qpn {
    Qpn::new(EndpointId::new(ENDPOINT).expect("small"), index)
}

fn path(source: [u8; 16], destination: [u8; 16]) -> Path {
    Path::new(&PathSpec {
        via: Egress::Nic { flow: 0 },
        source_mac: [2; 6],
        dest_mac: [4; 6],
        vlan: None,
        source,
        destination,
        traffic_class: 0,
        hop_limit: 64,
        flow_label: 0,
        roce: Roce::V2 { udp_source_port: 50_000 },
    })
    .expect("one family")
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let id = EndpointId::new(ENDPOINT).expect("small");
        let client = Client {
            random: seed,
            overrun: random.of(&[0, 0, 0, 20]),
            fault: random.of(&[0, 0, 0, 50]),
            ..Client::default()
        };
        let recovery = RecoveryConfig {
            kind: random.of(&[Recovery::Selective, Recovery::Selective, Recovery::GoBackN]),
            reorder_delay: Nanos::from_micros(random.of(&[0, 0, 20, 1000])),
            out_of_order_packets: random.of(&[0, 1, 8, 64]),
            ..RecoveryConfig::default()
        };
        let mut world = Self {
            random,
            endpoint: Endpoint::new(EndpointConfig {
                id,
                max_mrs: 4,
                max_ahs: 3,
                max_srqs: 0,
                max_attachments: 2,
                max_qps: QPS,
                total_window_packets: 64,
                recovery,
                partitions: Partitions::default(),
            }),
            client,
            tap: Tap::default(),
            now: Nanos::from_millis(1),
            wr_id: 0,
            message: [None; QPS as usize],
            changes: Vec::new(),
            frames: 0,
            accepted: 0,
        };
        for index in 0..4 {
            world.insert_mr(index);
        }
        for _ in 0..6 {
            world.change_handle();
        }
        // Limits of address handles.
        world.tap.mtus.insert(DATAGRAM_PEER, 4096);
        for index in 0..QPS {
            world.insert_qp(index);
            world.connect(index);
        }
        world
    }

    fn insert_mr(&mut self, index: u32) {
        let mr = Mr {
            key: MrKey(index << 8 | 1),
            pd: if index == 3 { Pdn(2) } else { PD },
            access: if index == 0 { access::ALL } else { self.random.below(16) as u32 },
            va: if index == 2 { u64::MAX - 20_000 } else { 0x10_0000 * u64::from(index) },
            length: [8192, 1, 20_000, 8192][index as usize],
            object: MemoryObjectId(index),
            offset: 104,
            scope: match index {
                1 => Scope::WindowOf(qpn(self.random.below(QPS.into()) as u32)),
                3 => self.random.of(&[Scope::Region, Scope::Window]),
                _ => Scope::Region,
            },
        };
        if self.endpoint.insert_mr(mr).is_ok() {
            self.client.mrs.push(mr);
        }
    }

    fn remove_mr(&mut self, index: u32) {
        if let Some(mr) = self.endpoint.remove_mr(MrKey(index << 8 | 1)) {
            self.client.mrs.retain(|other| other.key != mr.key);
        }
    }

    fn insert_qp(&mut self, index: u32) {
        let signal_all = self.random.once_in(2);
        let config = QpConfig {
            qpn: qpn(index),
            service: self.random.of(&[ServiceType::Rc, ServiceType::Rc, ServiceType::Uc, ServiceType::Ud]),
            pd: PD,
            send_cq: Cqn(1),
            recv_cq: Cqn(2),
            sizes: SIZES,
            signal_all,
            window_packets: self.random.of(&[0, 1, 5, 64, 4096]),
            credits: true,
        };
        if self.endpoint.insert_qp(Box::new(Qp::new(config))).is_ok() {
            self.client.posted.insert(qpn(index).get(), Posted { signal_all, ..Posted::default() });
        }
    }

    /// The usual way to RTS, or a part of it.
    fn connect(&mut self, index: u32) {
        use attribute::*;
        let (to_rtr, to_rts) = match self.service(index) {
            ServiceType::Rc => (MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER, TIMEOUT | RETRY_CNT | RNR_RETRY | MAX_QP_RD_ATOMIC),
            ServiceType::Uc => (0, 0),
            ServiceType::Ud => return self.open(index),
        };
        for (state, mask) in [
            (state::RESET, 0),
            (state::INIT, PKEY_INDEX | PORT | ACCESS_FLAGS),
            (state::RTR, AV | PATH_MTU | DEST_QPN | RQ_PSN | to_rtr),
            (state::RTS, SQ_PSN | to_rts),
        ] {
            let path = PathState::Ready(path(US, PEER));
            self.modify(index, STATE | mask, state, Some(path).filter(|_| mask & AV != 0));
            if self.random.once_in(50) {
                break;
            }
        }
    }

    /// The usual way to RTS of a datagram queue pair.
    fn open(&mut self, index: u32) {
        use attribute::*;
        let steps = [(state::RESET, 0), (state::INIT, PKEY_INDEX | PORT | QKEY), (state::RTR, 0), (state::RTS, SQ_PSN)];
        for (state, mask) in steps {
            self.modify(index, STATE | mask, state, None);
        }
        if self.random.once_in(2) {
            // A third one has no room.
            _ = self.endpoint.attach(qpn(index), GROUP);
        }
    }

    /// Address handles come, change and go.
    fn change_handle(&mut self) {
        let number = self.random.below(4) as u32;
        let paths = [PathState::Resolving, PathState::Unreachable, PathState::Ready(path(US, PEER))];
        let (path, mtu_bytes) = (self.random.of(&paths), self.random.of(&[256, 1024, 4096]));
        let pd = if self.random.once_in(4) { Pdn(2) } else { PD };
        match self.random.below(4) {
            0 => _ = self.endpoint.remove_ah(number),
            1 => _ = self.endpoint.set_ah_path(number, path, mtu_bytes),
            // One that is taken is refused.
            _ => _ = self.endpoint.insert_ah(number, AhEntry { pd, path, mtu_bytes, static_rate_kbit_per_s: 0 }),
        }
    }

    fn service(&self, index: u32) -> ServiceType {
        self.endpoint.qp(qpn(index)).map_or(ServiceType::Rc, |qp| qp.config().service)
    }

    fn modify(&mut self, index: u32, mask: u32, state: u32, path: Option<PathState>) {
        let random = &mut self.random;
        let path_mtu_bytes = random.of(&[256, 256, 1024, 4096, 1500]);
        let attributes = QpAttributes {
            state,
            access: if random.once_in(10) { random.below(16) as u32 } else { access::ALL },
            path_mtu_bytes: if random.once_in(30) { random.next() as u32 } else { path_mtu_bytes.min(4096) },
            dest_qpn: 0x100 + index,
            rq_psn: 0x00ff_fff0 + random.below(17) as u32,
            sq_psn: 0x00ff_fff0 + random.below(16) as u32,
            max_rd_atomic: random.below(129) as u32,
            max_dest_rd_atomic: random.of(&[0, 1, 2, 16, 128]),
            min_rnr_timer: random.below(32) as u32,
            timeout: random.of(&[0, 1, 8, 14, 31]),
            retry_cnt: random.below(8) as u32,
            rnr_retry: random.below(8) as u32,
            dgid: PEER,
            qkey: OUR_QKEY,
            rate_limit_kbit_per_s: random.of(&[0, 1, 8000, u32::MAX]),
            ..QpAttributes::default()
        };
        if self.endpoint.modify_qp(qpn(index), mask, &attributes, path).is_err() {
            return;
        }
        let now = self.endpoint.query_qp(qpn(index)).expect("there");
        self.tap.mtus.insert(0x100 + index, now.path_mtu_bytes as usize);
        match now.state {
            state::RESET => {
                let posted = self.client.posted.get_mut(&qpn(index).get()).expect("there");
                posted.sends.clear();
                posted.recvs.clear();
            }
            state::RTR => {
                self.tap.answered.insert(0x100 + index, Psn::new(now.rq_psn));
                self.message[index as usize] = None;
            }
            state::RTS => _ = self.tap.requested.entry(0x100 + index).or_insert(Psn::new(now.sq_psn)),
            _ => {}
        }
    }

    fn control(&mut self) {
        let index = self.random.below(QPS.into()) as u32;
        match self.random.below(28) {
            24.. => self.change_handle(),
            0..3 => {
                let bits = [0, 3, 4, 6, 5, 7, 8, 9, 10, 11, 12, 13, 15, 16, 17, 20, 25, 31];
                let mask = (0..self.random.below(4)).fold(0, |mask, _| mask | 1 << self.random.of(&bits));
                let state = self.random.below(8) as u32;
                self.modify(index, mask, state, None);
            }
            3..6 => {
                let state = self.random.of(&[state::RESET, state::ERR, state::INIT, state::RTS]);
                self.modify(index, attribute::STATE, state, None);
            }
            6..10 => {
                let paths = [PathState::Resolving, PathState::Unreachable, PathState::Ready(path(US, PEER))];
                let path = self.random.of(&paths);
                // One that is gone is refused, and that is all.
                _ = self.endpoint.set_path(qpn(index), path);
            }
            10..13 => {
                let mr = self.random.below(5) as u32;
                self.remove_mr(mr);
            }
            13..18 => {
                let mr = self.random.below(4) as u32;
                self.insert_mr(mr);
            }
            18 => {
                let removed = self.endpoint.remove_qp(qpn(index));
                match removed {
                    Some(qp) if self.random.once_in(2) => {
                        self.endpoint.insert_qp(qp).map_err(|(_, reject)| reject).expect("its place is free");
                    }
                    Some(_) => _ = self.client.posted.remove(&qpn(index).get()),
                    None => {}
                }
            }
            _ => {
                self.insert_qp(index);
                self.connect(index);
            }
        }
    }

    /// Nothing happens to queue pairs that have failed: most begin anew.
    fn revive(&mut self) {
        for index in 0..QPS {
            if self.endpoint.qp(qpn(index)).is_none_or(|qp| qp.state_name() != "RTS") {
                self.insert_qp(index);
                self.connect(index);
            }
        }
    }

    fn sges(&mut self) -> Vec<Sge> {
        (0..self.random.below(5))
            .map(|_| {
                let index = if self.random.once_in(40) { self.random.below(8) } else { 0 };
                Sge {
                    va: index * 0x10_0000
                        + if self.random.once_in(100) { self.random.next() } else { self.random.below(4000) },
                    length: match self.random.below(200) {
                        0 => self.random.next() as u32,
                        1 => u32::MAX,
                        2..20 => 0,
                        _ => self.random.below(4000) as u32,
                    },
                    lkey: (index as u32) << 8 | 1,
                }
            })
            .collect()
    }

    fn post(&mut self) {
        let index = self.random.below(QPS.into()) as u32;
        let (qpn, wr_id) = (qpn(index), self.wr_id);
        let sges = self.sges();
        let in_reset = self.endpoint.qp(qpn).is_none_or(|qp| qp.state_name() == "RESET");
        if self.random.once_in(2) {
            if self.endpoint.recv_room(qpn) > 0 {
                self.endpoint.post_recv(qpn, &RecvWork { wr_id, sges: &sges }).expect("there");
                if !in_reset {
                    self.client.posted.get_mut(&qpn.get()).expect("there").recvs.push_back(wr_id);
                }
            }
        } else if self.endpoint.send_room(qpn) > 0 {
            let op = self.random.of(&[
                SendOp::Write,
                SendOp::WriteImm,
                SendOp::Send,
                SendOp::SendImm,
                SendOp::Read,
                SendOp::CompareSwap,
                SendOp::FetchAdd,
                SendOp::SendInvalidate,
                SendOp::LocalInvalidate,
                SendOp::BindWindow,
                SendOp::Flush,
                SendOp::AtomicWrite,
            ]);
            let is_atomic = matches!(op, SendOp::CompareSwap | SendOp::FetchAdd);
            let sges = if is_atomic && !self.random.once_in(5) {
                vec![Sge { va: self.random.below(4000), length: 8, lkey: 1 }]
            } else if matches!(op, SendOp::Flush | SendOp::AtomicWrite) && !self.random.once_in(5) {
                Vec::new()
            } else {
                sges
            };
            let inline = [7; INLINE_BYTES_MAX as usize];
            let mut flags = self.random.below(8) as u8;
            let data = if op.carries_data() && self.random.once_in(5) {
                flags |= send_flags::INLINE;
                WorkData::Inline(&inline[..self.random.below(65) as usize])
            } else {
                WorkData::Sges(&sges)
            };
            let (remote_va, rkey) = (self.random.next(), self.random.next() as u32);
            let to = DatagramTo {
                ah: self.random.below(4) as u32,
                qpn: Qpn::from_wire(DATAGRAM_PEER),
                qkey: self.random.of(&[OUR_QKEY, 1 << 31, 9]),
            };
            let (swap_or_add, compare) = (1, 2);
            let work = SendWork { wr_id, op, flags, imm: [1; 4], remote_va, rkey, swap_or_add, compare, to, data };
            self.endpoint.post_send(qpn, &work).expect("there");
            if !in_reset {
                let posted = self.client.posted.get_mut(&qpn.get()).expect("there");
                posted.sends.push_back((wr_id, flags & send_flags::SIGNALED != 0));
            }
        }
        self.wr_id += 1;
    }

    fn time(&mut self) {
        let step = self.random.of(&[1, 1_000, 10_000, 700_000, 70_000_000, 5_000_000_000]);
        self.now = self.now + Nanos(step);
        let fired = self.endpoint.on_timeout(self.now, 64, &mut self.client);
        assert!(fired < 64, "timers of {QPS} queue pairs come to an end");
    }

    /// The control side makes changes of keys, or not, now or later, and some twice.
    fn change_keys(&mut self) {
        while let Some(change) = self.endpoint.poll_key_change() {
            self.changes.push(change);
        }
        self.changes.truncate(100);
        while let Some(KeyChange { qpn, ticket, wish }) = self.changes.last().copied() {
            if !self.random.once_in(5) {
                self.changes.pop();
            }
            let done = match wish {
                KeyRequest::InvalidateLocally(key) | KeyRequest::InvalidateRemotely(key) => {
                    self.remove_mr(key.0 >> 8);
                    true
                }
                KeyRequest::Bind { .. } => !self.random.once_in(10),
            };
            self.endpoint.finish_key_change(self.now, qpn, ticket, done, &mut self.client);
            if self.random.once_in(9) {
                break;
            }
        }
    }

    fn transmit(&mut self) {
        self.tap.room = self.random.of(&[0, 1, 3, 100]);
        let budget = self.random.of(&[1, 5, 64]);
        self.endpoint.poll_transmit(self.now, budget, &mut self.client, &mut self.tap);
    }

    /// No more input: it stops sending.
    fn rest(&mut self) {
        self.tap.room = usize::MAX;
        for _ in 0..20_000 {
            if !self.endpoint.wants_transmit() {
                return;
            }
            self.endpoint.poll_transmit(self.now, 64, &mut self.client, &mut self.tap);
        }
        panic!("it comes to rest");
    }

    fn end(&mut self) {
        self.rest();
        let error = QpAttributes { state: state::ERR, ..QpAttributes::default() };
        for index in 0..QPS {
            // It may be gone.
            _ = self.endpoint.modify_qp(qpn(index), attribute::STATE, &error, None);
        }
        self.rest();
        for posted in self.client.posted.values() {
            assert!(posted.recvs.is_empty(), "all receives end");
            let silent = posted.sends.iter().all(|(_, signaled)| !signaled && !posted.signal_all);
            assert!(silent, "all sends end, or were done without a word");
        }
        for index in 0..QPS {
            let room = (self.endpoint.send_room(qpn(index)), self.endpoint.recv_room(qpn(index)));
            assert!(self.endpoint.qp(qpn(index)).is_none() || room == (SIZES.send_wrs, SIZES.recv_wrs));
        }
        let events = std::iter::from_fn(|| self.endpoint.poll_event()).count();
        assert!(events <= 7 * QPS as usize, "one of a kind for each queue pair");
    }
}

#[test]
fn the_endpoint_keeps_its_invariants_for_any_input() {
    let seeds = std::env::var("ROCED_HOSTILE_SEEDS").map_or(4000, |seeds| seeds.parse().expect("a number of seeds"));
    let first = std::env::var("ROCED_HOSTILE_FIRST").map_or(0, |seed| seed.parse().expect("a seed"));
    let (mut frames, mut accepted) = (0, 0);
    for seed in first..first + seeds {
        let outcome = std::panic::catch_unwind(|| {
            let mut world = World::new(seed);
            for _ in 0..200 {
                match world.random.below(16) {
                    0..7 => world.frame(),
                    7..10 => world.post(),
                    10..14 => {
                        world.transmit();
                        world.change_keys();
                    }
                    14 => world.time(),
                    _ if world.random.once_in(4) => world.control(),
                    _ => world.revive(),
                }
            }
            world.end();
            (world.frames, world.accepted)
        });
        let Ok(counts) = outcome else { panic!("seed {seed}") };
        (frames, accepted) = (frames + counts.0, accepted + counts.1);
    }
    // A test of frames that are all dropped at the first check would be none.
    assert!(accepted * 5 > frames, "{accepted} of {frames} accepted");
}
