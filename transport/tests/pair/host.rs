//! A host: an endpoint, memory, completion queues. And a network of two of them on a virtual clock.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use roced_transport::{
    ah::AhEntry,
    clock::Nanos,
    congestion::{control::CongestionControl, dcqcn::DcqcnParameters},
    counters::QpCount,
    endpoint::{Endpoint, EndpointConfig},
    io::{Egress, FrameMut, FrameOrigin},
    mr::{Mr, MrKey, Scope},
    partition::{Partitions, Pkey},
    psn::Psn,
    qp::{KeyChange, KeyRequest, PathState, Qp, QpConfig, ServiceType},
    recovery::RecoveryConfig,
    reject::Disposition,
    srq::{Srq, SrqConfig},
    turns::{classes::TrafficClasses, fair::FairOwner, shared_rate::SharedRate},
    wire::{
        Roce,
        aeth::Aeth,
        bth::Bth,
        dest_qpn,
        headers::Headers,
        opcode::{Opcode, Operation},
        parse,
        path::{Path, PathSpec, udp_source_port},
    },
    work::{DatagramTo, RecvWork, SendWork, WorkData},
};
use roced_types::{
    EndpointId, Pdn, QpAttributes, QpSizes, Qpn, SendOp, Sge, Srqn, Status, access, attribute, send_flags, state,
};

use crate::fate::mark;
pub(crate) use crate::{
    application::{Application, CQ, MEMORY, Nic},
    fate::Fate,
};

pub(crate) const PD: Pdn = Pdn(1);
pub(crate) const MEMORY_BYTES: usize = 1 << 20;
pub(crate) const VA: u64 = 0x7000_0000;
pub(crate) const OUR_QKEY: u32 = 0x1122_3344;
/// Number of the address handle of the other host.
pub(crate) const AH: u32 = 2;
pub(crate) const KEY: MrKey = MrKey(0x00ab_cd01);

pub(crate) const SIZES: QpSizes =
    QpSizes { send_wrs: 64, recv_wrs: 64, send_sges: 32, recv_sges: 32, inline_bytes: 256 };

/// Partition keys of both hosts: the default one, a full and a limited member of one partition,
/// another partition.
pub(crate) const PKEYS: [Pkey; 4] = [Pkey::DEFAULT, Pkey(0x8007), Pkey(0x0007), Pkey(0x8008)];

/// One end.
pub(crate) struct Host {
    pub(crate) endpoint: Endpoint,
    pub(crate) app: Application,
    pub(crate) nic: Nic,
    pub(crate) qpn: Qpn,
    pub(crate) gid: [u8; 16],
    mac: [u8; 6],
    pub(crate) last: Vec<Disposition>,
    /// Changes of keys that wait for the control side.
    pub(crate) key_changes: VecDeque<KeyChange>,
    /// The control side takes its time.
    pub(crate) holds_keys: bool,
}

impl Host {
    fn new(number: u8, settings: &Settings) -> Self {
        let id = EndpointId::new(number.into()).expect("a small number");
        let recovery = settings.recovery[usize::from(number) - 1];
        let mut endpoint = Endpoint::new(EndpointConfig {
            id,
            max_mrs: 16,
            max_ahs: 4,
            max_srqs: 2,
            max_attachments: 5,
            max_qps: settings.max_qps,
            total_window_packets: settings.total_window,
            recovery,
            partitions: Partitions::new(&PKEYS),
        });
        endpoint.set_delay_guard(settings.delay_guard);
        settings.classes.into_iter().for_each(|classes| endpoint.set_classes(classes()));
        let mut memory = vec![0; MEMORY_BYTES];
        memory.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at * 7 + (at >> 8) * 3) as u8 ^ number);
        endpoint
            .insert_mr(Mr {
                key: KEY,
                pd: PD,
                access: access::ALL,
                va: VA,
                length: MEMORY_BYTES as u64,
                object: MEMORY,
                offset: 0,
                scope: Scope::Region,
            })
            .expect("room");
        let mut gid = [0; 16];
        if settings.ipv6 {
            gid[0] = 0xfd;
        } else {
            gid[10..14].copy_from_slice(&[0xff, 0xff, 10, 10]);
        }
        gid[15] = number;
        Self {
            endpoint,
            app: Application { memory, cq_room: usize::MAX, ..Application::default() },
            nic: Nic { room: 4096, ahead_max: usize::MAX, ..Nic::default() },
            qpn: Qpn::new(id, 5),
            gid,
            mac: [2, 0, 0, 0, 0, number],
            last: Vec::new(),
            key_changes: VecDeque::new(),
            holds_keys: false,
        }
    }

    pub(crate) fn post(&mut self, work: &SendWork<'_>) {
        assert!(self.endpoint.send_room(self.qpn) > 0);
        self.endpoint.post_send(self.qpn, work).expect("a queue pair that is there");
    }

    pub(crate) fn post_recv(&mut self, wr_id: u64, sges: &[Sge]) {
        assert!(self.endpoint.recv_room(self.qpn) > 0);
        self.endpoint.post_recv(self.qpn, &RecvWork { wr_id, sges }).expect("a queue pair that is there");
    }

    /// Takes the completions so far as (wr_id, status).
    pub(crate) fn take(&mut self) -> Vec<(u64, Status)> {
        self.app.completions.drain(..).map(|cqe| (cqe.wr_id, cqe.status)).collect()
    }

    /// Performs key changes as the control side of a daemon, unless it is told to delay them.
    /// Windows of an even index are of type 2.
    fn change_keys(&mut self, now: Nanos) -> bool {
        while let Some(change) = self.endpoint.poll_key_change() {
            self.key_changes.push_back(change);
        }
        if self.holds_keys {
            return false;
        }
        let mut changed = false;
        while let Some(KeyChange { qpn, ticket, wish }) = self.key_changes.pop_front() {
            changed = true;
            let done = match wish {
                KeyRequest::InvalidateLocally(key) | KeyRequest::InvalidateRemotely(key) => {
                    self.endpoint.remove_mr(key).is_some()
                }
                KeyRequest::Bind { key, window } => {
                    let skip = window.va - VA;
                    let scope = if key.0 >> 8 & 1 == 0 { Scope::WindowOf(qpn) } else { Scope::Window };
                    let mr = Mr {
                        key,
                        pd: PD,
                        access: window.access,
                        va: window.va,
                        length: window.length,
                        object: MEMORY,
                        offset: skip,
                        scope,
                    };
                    window.lkey == KEY.0 && self.endpoint.set_mr(mr).is_ok()
                }
            };
            self.endpoint.finish_key_change(now, qpn, ticket, done, &mut self.app);
        }
        changed
    }

    pub(crate) fn count(&self, what: QpCount) -> u64 {
        self.endpoint.counters().get(what)
    }

    pub(crate) fn state(&self) -> &'static str {
        self.endpoint.qp(self.qpn).expect("there").state_name()
    }

    pub(crate) fn drops(&self) -> BTreeMap<&'static str, u64> {
        self.endpoint.drops().iter().filter(|(_, count)| *count > 0).collect()
    }
}

/// Settings of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) service: ServiceType,
    pub(crate) mtu: u32,
    pub(crate) ipv6: bool,
    pub(crate) psn: u32,
    pub(crate) timeout: u32,
    pub(crate) retry_cnt: u32,
    pub(crate) rnr_retry: u32,
    pub(crate) min_rnr_timer: u32,
    pub(crate) rd_atomic: u32,
    pub(crate) window: u32,
    /// Of all queue pairs of a host together.
    pub(crate) total_window: u32,
    pub(crate) signal_all: bool,
    pub(crate) access: u32,
    /// Of each host.
    pub(crate) recovery: [RecoveryConfig; 2],
    /// Host 1's queue pairs take from one shared receive queue, with work that may name the regions
    /// of this domain.
    pub(crate) srq: Option<Pdn>,
    /// Of each host: which of [`PKEYS`].
    pub(crate) pkey_index: [u32; 2],
    /// Of each host: it speaks RoCEv1.
    pub(crate) rocev1: [bool; 2],
    /// Of each host: it has end-to-end flow control.
    pub(crate) credits: [bool; 2],
    /// Of each host.
    pub(crate) congestion: [CongestionControl; 2],
    pub(crate) delay_guard: Nanos,
    /// Of both hosts, if they have any.
    pub(crate) classes: Option<fn() -> TrafficClasses>,
    /// Queue pairs that a host can have.
    pub(crate) max_qps: u32,
    /// Frames that a host sends in a turn.
    pub(crate) turn_frames: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            service: ServiceType::Rc,
            mtu: 1024,
            ipv6: false,
            psn: 0x00ff_fff0,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            rd_atomic: 16,
            window: 64,
            total_window: u32::MAX,
            signal_all: false,
            access: access::ALL,
            recovery: [RecoveryConfig::default(); 2],
            srq: None,
            pkey_index: [0; 2],
            rocev1: [false; 2],
            credits: [true; 2],
            congestion: [CongestionControl::Off; 2],
            delay_guard: Nanos(0),
            classes: None,
            max_qps: 16,
            turn_frames: 32,
        }
    }
}

/// Two connected hosts. `fate` decides about each frame by its sender (0 or 1), its opcode and how
/// many of that opcode it sent.
pub(crate) struct Pair {
    pub(crate) hosts: [Host; 2],
    pub(crate) now: Nanos,
    pub(crate) settings: Settings,
    /// Increment of the UDP source port of paths made from now on.
    pub(crate) life: u16,
    /// Owner of queue pairs made from now on.
    pub(crate) owner: FairOwner,
    /// Of each host: rate of the account of queue pairs made from now on.
    pub(crate) account_rates: [Option<Arc<SharedRate>>; 2],
    flying: [VecDeque<(usize, Vec<u8>)>; 2],
    seen: BTreeMap<(usize, u8), usize>,
    /// (sender, opcode, PSN) of every frame sent.
    pub(crate) trace: Vec<(usize, Opcode, u32)>,
    /// (sender, PSN, AETH) of every answer sent that has one.
    pub(crate) answers: Vec<(usize, u32, Aeth)>,
}

impl Pair {
    pub(crate) fn new(settings: Settings) -> Self {
        let mut pair = Self::unconnected(settings);
        pair.connect();
        pair
    }

    /// A pair with a request and an answer accepted at each end: from then on both may buffer
    /// out-of-order packets. The next PSN is the first of the settings.
    pub(crate) fn established(settings: Settings) -> Self {
        let mut pair = Self::new(Settings { psn: settings.psn.wrapping_sub(1) & 0x00ff_ffff, ..settings });
        for at in 0..2 {
            pair.hosts[at].post(&work(0, SendOp::Write, &[], 0));
        }
        pair.settle();
        for host in &mut pair.hosts {
            assert_eq!(host.take(), [(0, Status::Success)]);
            host.last.clear();
        }
        pair.settings.psn = settings.psn;
        (pair.trace, pair.seen) = Default::default();
        pair
    }

    pub(crate) fn unconnected(settings: Settings) -> Self {
        let mut pair = Self {
            hosts: [Host::new(1, &settings), Host::new(2, &settings)],
            now: Nanos::from_millis(1),
            settings,
            life: 0,
            owner: FairOwner::default(),
            account_rates: [None, None],
            flying: Default::default(),
            seen: BTreeMap::new(),
            trace: Vec::new(),
            answers: Vec::new(),
        };
        if let Some(pd) = settings.srq {
            let srq = SrqConfig { srqn: pair.srqn(), pd, sizes: SIZES };
            pair.hosts[1].endpoint.insert_srq(Box::new(Srq::new(srq))).map_err(|(_, reject)| reject).expect("free");
        }
        pair.insert_qps();
        pair
    }

    /// The shared receive queue of host 1.
    pub(crate) fn srqn(&self) -> Srqn {
        Srqn::new(self.hosts[1].qpn.endpoint(), 1)
    }

    fn insert_qps(&mut self) {
        let srqn = self.srqn();
        for (at, host) in self.hosts.iter_mut().enumerate() {
            host.endpoint.set_congestion_control(self.settings.congestion[at], DcqcnParameters::default());
            let config = QpConfig {
                qpn: host.qpn,
                service: self.settings.service,
                pd: PD,
                send_cq: CQ,
                recv_cq: CQ,
                sizes: SIZES,
                signal_all: self.settings.signal_all,
                window_packets: self.settings.window,
                credits: self.settings.credits[at],
            };
            let mut qp = Qp::new(config);
            if at == 1 && self.settings.srq.is_some() {
                let srq = host.endpoint.srq(srqn).expect("made before");
                qp = Qp::new(QpConfig { sizes: QpSizes { recv_wrs: 1, ..SIZES }, ..config }).with_srq(srq.config());
            }
            let mut qp = qp.with_owner(self.owner);
            qp = self.account_rates[at].iter().fold(qp, |qp, rate| qp.with_account_rate(rate.clone()));
            host.endpoint.insert_qp(Box::new(qp)).map_err(|(_, reject)| reject).expect("free");
        }
    }

    /// Makes another connection between the hosts, of queue pairs `index`, and turns to it:
    /// `host.qpn` is the new one.
    pub(crate) fn connect_another(&mut self, index: u32) {
        for host in &mut self.hosts {
            host.qpn = Qpn::new(host.qpn.endpoint(), index);
        }
        self.insert_qps();
        self.connect();
    }

    /// Turns back to the connection of queue pairs `index`.
    pub(crate) fn turn_to(&mut self, index: u32) {
        for host in &mut self.hosts {
            host.qpn = Qpn::new(host.qpn.endpoint(), index);
        }
    }

    /// Takes both queue pairs to RTS, as a client would.
    pub(crate) fn connect(&mut self) {
        for at in 0..2 {
            self.connect_one(at);
        }
    }

    pub(crate) fn connect_one(&mut self, at: usize) {
        self.take_to(at, state::RTS);
    }

    /// Takes one queue pair to RTR.
    pub(crate) fn connect_to_rtr(&mut self, at: usize) {
        self.take_to(at, state::RTR);
    }

    fn take_to(&mut self, at: usize, last: u32) {
        let (settings, path) = (self.settings, self.path(at));
        let peer = (self.hosts[1 - at].qpn, self.hosts[1 - at].gid);
        let host = &mut self.hosts[at];
        let attributes = QpAttributes {
            qkey: OUR_QKEY,
            access: settings.access,
            path_mtu_bytes: settings.mtu,
            dest_qpn: peer.0.get(),
            rq_psn: settings.psn,
            sq_psn: settings.psn,
            max_rd_atomic: settings.rd_atomic,
            max_dest_rd_atomic: settings.rd_atomic,
            min_rnr_timer: settings.min_rnr_timer,
            timeout: settings.timeout,
            retry_cnt: settings.retry_cnt,
            rnr_retry: settings.rnr_retry,
            dgid: peer.1,
            pkey_index: settings.pkey_index[at],
            ..QpAttributes::default()
        };
        use attribute::*;
        // Used only by acknowledgments.
        let (to_rtr, to_rts) = match settings.service {
            ServiceType::Rc => (MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER, TIMEOUT | RETRY_CNT | RNR_RETRY | MAX_QP_RD_ATOMIC),
            ServiceType::Uc | ServiceType::Ud => (0, 0),
        };
        if settings.service == ServiceType::Ud {
            let handle =
                AhEntry { pd: PD, path: PathState::Ready(path), mtu_bytes: settings.mtu, static_rate_kbit_per_s: 0 };
            // One of an earlier connection leads to the same host.
            host.endpoint.remove_ah(AH);
            host.endpoint.insert_ah(AH, handle).expect("its number is free");
            for (state, mask) in [(state::INIT, PKEY_INDEX | PORT | QKEY), (state::RTR, 0), (state::RTS, SQ_PSN)] {
                let attributes = QpAttributes { state, ..attributes };
                host.endpoint.modify_qp(host.qpn, STATE | mask, &attributes, None).expect("all that it wants");
            }
            return;
        }
        let steps = [
            (state::INIT, PKEY_INDEX | PORT | ACCESS_FLAGS, None),
            (state::RTR, AV | PATH_MTU | DEST_QPN | RQ_PSN | to_rtr, Some(PathState::Ready(path))),
            (state::RTS, SQ_PSN | to_rts, None),
        ];
        for (state, mask, path) in steps.into_iter().filter(|(state, ..)| *state <= last) {
            host.endpoint
                .modify_qp(host.qpn, STATE | mask, &QpAttributes { state, ..attributes }, path)
                .expect("all attributes are given");
        }
    }

    pub(crate) fn path(&self, at: usize) -> Path {
        self.path_via(at, Egress::Nic { flow: 1 })
    }

    pub(crate) fn path_via(&self, at: usize, via: Egress) -> Path {
        self.path_to(at, via, self.hosts[1 - at].gid)
    }

    /// A path of host `at` to any GID.
    pub(crate) fn path_to(&self, at: usize, via: Egress, destination: [u8; 16]) -> Path {
        Path::new(&PathSpec { via, destination, ..self.path_spec(at) }).expect("one address family")
    }

    /// Parts of the path of host `at` to the other.
    pub(crate) fn path_spec(&self, at: usize) -> PathSpec {
        let (from, to) = (&self.hosts[at], &self.hosts[1 - at]);
        PathSpec {
            via: Egress::Nic { flow: 1 },
            source_mac: from.mac,
            dest_mac: to.mac,
            vlan: None,
            source: from.gid,
            destination: to.gid,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
            roce: if self.settings.rocev1[at] {
                Roce::V1
            } else {
                Roce::V2 { udp_source_port: udp_source_port(0, from.qpn, to.qpn).wrapping_add(self.life) }
            },
        }
    }

    /// One turn of each host: frames in, timers, frames out.
    pub(crate) fn turn(&mut self, fate: &mut impl FnMut(usize, Opcode, usize) -> Fate) -> bool {
        let mut moved = false;
        for at in 0..2 {
            let arrived: Vec<_> = self.flying[at].drain(..).collect();
            for (late, frame) in arrived {
                moved = true;
                if late > 0 {
                    self.flying[at].push_back((late - 1, frame));
                    continue;
                }
                self.deliver(at, &frame);
            }
            let host = &mut self.hosts[at];
            host.endpoint.on_timeout(self.now, 16, &mut host.app);
            host.endpoint.poll_transmit(self.now, self.settings.turn_frames, &mut host.app, &mut host.nic);
            moved |= self.hosts[at].change_keys(self.now);
            while let Some(frame) = self.hosts[at].nic.frames.pop_front() {
                moved = true;
                self.send(at, frame, fate);
            }
        }
        moved
    }

    /// A frame as host `from` would send it to the other.
    pub(crate) fn frame(&self, from: usize, headers: &Headers, payload: &[u8]) -> Vec<u8> {
        let path = self.path(from);
        let mut bytes = vec![0; path.frame_bytes(headers, payload.len())];
        let mut rest = payload;
        path.fill(&mut FrameMut::single(&mut bytes), headers, payload.len(), |piece| {
            let (now, later) = rest.split_at(piece.len());
            piece.copy_from_slice(now);
            rest = later;
            Ok(())
        })
        .expect("filled");
        bytes
    }

    /// A frame arrives at host `at`, in pieces as AF_XDP would give them.
    pub(crate) fn deliver(&mut self, at: usize, frame: &[u8]) -> Disposition {
        let host = &mut self.hosts[at];
        let pieces: Vec<&[u8]> = frame.chunks(3840).collect();
        let is_local = |qp: &Qp| matches!(qp.path(), PathState::Ready(path) if path.via().is_local());
        let receiver = dest_qpn(&pieces).and_then(|qpn| host.endpoint.qp(qpn));
        let origin = match receiver.is_some_and(is_local) {
            true => FrameOrigin::Local,
            false => FrameOrigin::Wire,
        };
        let disposition = host.endpoint.on_frame_from(origin, self.now, &pieces, &mut host.app);
        host.last.push(disposition);
        disposition
    }

    fn send(&mut self, from: usize, frame: Vec<u8>, fate: &mut impl FnMut(usize, Opcode, usize) -> Fate) {
        let pieces: Vec<&[u8]> = frame.chunks(3840).collect();
        let packet = parse(&pieces).expect("our frame parses");
        packet.check_integrity().expect("our frame is whole");
        let opcode = packet.bth.opcode;
        self.trace.push((from, opcode, packet.bth.psn.get()));
        self.answers.extend(packet.aeth.map(|aeth| (from, packet.bth.psn.get(), aeth)));
        let seen = self.seen.entry((from, opcode.0)).or_default();
        let nth = *seen;
        *seen += 1;
        let flying = &mut self.flying[1 - from];
        match fate(from, opcode, nth) {
            Fate::Deliver => flying.push_back((0, frame)),
            Fate::Drop => {}
            Fate::Duplicate => flying.extend([(0, frame.clone()), (0, frame)]),
            Fate::Corrupt => {
                let mut frame = frame;
                let at = frame.len() - 5;
                frame[at] ^= 0x10;
                flying.push_back((0, frame));
            }
            Fate::Late(turns) => flying.push_back((turns, frame)),
            Fate::Mark => {
                let mut frame = frame;
                mark(&mut frame);
                flying.push_back((0, frame));
            }
        }
    }

    /// One turn, after which the clock goes on to the next one; false when nothing is to come.
    pub(crate) fn run_to_next(&mut self, fate: &mut impl FnMut(usize, Opcode, usize) -> Fate) -> bool {
        let soon = self.now + Nanos::from_micros(5);
        if self.turn(fate) {
            self.now = soon;
            return true;
        }
        let next = self.hosts.iter().map(|host| host.endpoint.poll_timeout()).min().unwrap_or(Nanos::NEVER);
        let is_over = next == Nanos::NEVER && self.hosts.iter().all(|host| !host.endpoint.wants_transmit());
        self.now = if is_over { self.now } else { next.max(soon) };
        !is_over
    }

    /// Runs until nothing moves and no timer runs, or `limit` of virtual time is over; gives
    /// whether it came to rest.
    pub(crate) fn run(&mut self, limit: Nanos, mut fate: impl FnMut(usize, Opcode, usize) -> Fate) -> bool {
        let end = self.now + limit;
        while self.now < end {
            if !self.run_to_next(&mut fate) {
                return true;
            }
            self.now = self.now.min(end);
        }
        false
    }

    /// Runs over a network without faults.
    pub(crate) fn settle(&mut self) {
        assert!(self.run(Nanos::from_millis(60_000), |_, _, _| Fate::Deliver), "it comes to rest");
    }

    /// How many frames of this operation host `from` sent.
    pub(crate) fn sent(&self, from: usize, operation: Operation) -> usize {
        self.trace
            .iter()
            .filter(|(sender, opcode, _)| *sender == from && opcode.info().expect("known").operation == operation)
            .count()
    }
}

/// A piece of the registered memory.
pub(crate) fn sge(offset: u64, length: usize) -> Sge {
    Sge { va: VA + offset, length: length as u32, lkey: KEY.0 }
}

/// Signaled work on registered memory; the remote side is at `remote`.
pub(crate) fn work<'a>(wr_id: u64, op: SendOp, sges: &'a [Sge], remote: u64) -> SendWork<'a> {
    SendWork {
        wr_id,
        op,
        flags: send_flags::SIGNALED,
        imm: [1, 2, 3, 4],
        remote_va: VA + remote,
        rkey: KEY.0,
        swap_or_add: 0,
        compare: 0,
        to: DatagramTo::NOWHERE,
        data: WorkData::Sges(sges),
    }
}

/// Nothing goes wrong.
pub(crate) fn no_fault(_: usize, _: Opcode, _: usize) -> Fate {
    Fate::Deliver
}

/// The `nth` frame of `opcode` that host `from` sends has this fate.
pub(crate) fn one(from: usize, opcode: Opcode, nth: usize, fate: Fate) -> impl FnMut(usize, Opcode, usize) -> Fate {
    move |sender, seen, count| {
        if (sender, seen, count) == (from, opcode, nth) { fate } else { Fate::Deliver }
    }
}

/// A frame as host 0 would send it to host 1, but with these headers.
pub(crate) fn forged(pair: &Pair, headers: &Headers, payload: &[u8]) -> Vec<u8> {
    pair.frame(0, headers, payload)
}

/// A BTH from host 0 to host 1 with the first PSN.
pub(crate) fn bth(pair: &Pair, opcode: Opcode) -> Bth {
    Bth::new(opcode, pair.hosts[1].qpn, Psn::new(pair.settings.psn))
}
