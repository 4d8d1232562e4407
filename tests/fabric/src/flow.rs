//! A flow: a connection that carries one message after the other in one direction.

use std::collections::VecDeque;

use hdrhistogram::Histogram;
use roced_transport::{
    clock::Nanos,
    endpoint::Endpoint,
    io::Egress,
    mr::{Mr, MrKey, Scope},
    qp::{PathState, Qp, QpConfig, ServiceType},
    wire::{
        Roce, ecn,
        path::{Path, PathSpec, udp_source_port},
    },
    work::{DatagramTo, SendWork, WorkData},
};
use roced_types::{
    Cqn, EndpointId, MemoryObjectId, Pdn, QpAttributes, QpSizes, Qpn, SendOp, Sge, access, attribute, send_flags, state,
};

use crate::{host::SimulatedHost, memory::REGION_BYTES};

const PD: Pdn = Pdn(1);
const MTU: u32 = 4096;
const FIRST_PSN: u32 = 0x00ff_ff00;

/// READs of a queue pair at once.
const RD_ATOMIC: u32 = 16;

/// A flow of a scenario.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlowSpec {
    /// The host that posts: the sender of WRITEs, the receiver of READs.
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) op: SendOp,
    /// Its class among eight.
    pub(crate) class: u8,
    pub(crate) begin: Nanos,
    pub(crate) end: Nanos,
    pub(crate) message_bytes: u32,
    /// Messages at once.
    pub(crate) depth: u32,
}

impl FlowSpec {
    /// WRITEs of 64 KiB without an end, as many as fill any window.
    pub(crate) const fn writes(from: usize, to: usize) -> Self {
        Self {
            from,
            to,
            op: SendOp::Write,
            class: 0,
            begin: Nanos(0),
            end: Nanos::NEVER,
            message_bytes: 64 << 10,
            depth: 16,
        }
    }
}

/// One end of a flow.
#[derive(Clone, Copy, Debug)]
struct FlowEnd {
    host: usize,
    qpn: Qpn,
    region: u32,
}

/// A flow of a run.
#[derive(Debug)]
pub(crate) struct Flow {
    pub(crate) spec: FlowSpec,
    ends: [FlowEnd; 2],
    posted: u64,
    completed: u64,
    /// When each message that is not complete was posted.
    posted_at: VecDeque<Nanos>,
    /// Nanoseconds from the post of a message to its completion, in the measured time.
    pub(crate) latencies: Histogram<u64>,
    is_open: bool,
    /// Status of the first work request that failed.
    pub(crate) failure: Option<String>,
}

/// GID of a host: an IPv6 address.
fn gid(host: usize) -> [u8; 16] {
    let mut gid = [0; 16];
    gid[0] = 0xfd;
    gid[14..].copy_from_slice(&(host as u16).to_be_bytes());
    gid
}

fn key(region: u32) -> u32 {
    region << 8 | 1
}

impl Flow {
    /// Connects both hosts of flow `number`.
    pub(crate) fn connect(number: usize, spec: FlowSpec, hosts: &mut [SimulatedHost]) -> Self {
        let ends = [spec.from, spec.to].map(|host| {
            let region = hosts[host].memory.add(number);
            FlowEnd { host, region, qpn: Qpn::new(EndpointId::new(1).expect("a small number"), region) }
        });
        for (own, peer) in [(ends[0], ends[1]), (ends[1], ends[0])] {
            let is_capable = hosts[own.host].options.is_capable;
            open(
                &mut hosts[own.host],
                own,
                peer,
                spec.class << 5 | if is_capable { ecn::CAPABLE } else { ecn::NOT_CAPABLE },
            );
        }
        let latencies = Histogram::new_with_bounds(1, 1 << 40, 3).expect("three digits");
        let posted_at = VecDeque::new();
        Self { spec, ends, posted: 0, completed: 0, posted_at, latencies, is_open: false, failure: None }
    }

    /// Its messages begin, or no more are added.
    pub(crate) fn set_open(&mut self, is_open: bool) {
        self.is_open = is_open;
    }

    /// A work request of the host's queue pair has completed at `now`.
    pub(crate) fn on_completed(&mut self, now: Nanos, is_measured: bool) {
        self.completed += 1;
        let posted_at = self.posted_at.pop_front().expect("it was posted");
        if is_measured {
            self.latencies.saturating_record((now - posted_at).0);
        }
    }

    /// Posts messages at `now`; returns true if there were any.
    pub(crate) fn post(&mut self, now: Nanos, endpoint: &mut Endpoint) -> bool {
        let before = self.posted;
        while self.is_open && self.failure.is_none() && self.posted - self.completed < u64::from(self.spec.depth) {
            let at = self.posted * u64::from(self.spec.message_bytes);
            let [own, peer] = self.ends;
            let sges = [Sge { va: at, length: self.spec.message_bytes, lkey: key(own.region) }];
            let work = SendWork {
                wr_id: self.posted,
                op: self.spec.op,
                flags: send_flags::SIGNALED,
                imm: [0; 4],
                remote_va: at,
                rkey: key(peer.region),
                swap_or_add: 0,
                compare: 0,
                to: DatagramTo::NOWHERE,
                data: WorkData::Sges(&sges),
            };
            if endpoint.post_send(own.qpn, &work).is_err() {
                break;
            }
            self.posted += 1;
            self.posted_at.push_back(now);
        }
        self.posted > before
    }

    /// The end that data goes to.
    const fn receiver(&self) -> FlowEnd {
        match self.spec.op {
            SendOp::Read => self.ends[0],
            _ => self.ends[1],
        }
    }

    /// Bytes that have arrived in memory.
    pub(crate) fn placed(&self, hosts: &[SimulatedHost]) -> u64 {
        let FlowEnd { host, region, .. } = self.receiver();
        hosts[host].memory.placed(region)
    }

    /// Bytes that have arrived in memory without a hole.
    pub(crate) fn whole(&self, hosts: &[SimulatedHost]) -> u64 {
        let FlowEnd { host, region, .. } = self.receiver();
        hosts[host].memory.whole(region)
    }

    /// Bytes that must have arrived, and that can have.
    pub(crate) fn bounds(&self) -> (u64, u64) {
        let bytes = u64::from(self.spec.message_bytes);
        (self.completed * bytes, self.posted * bytes)
    }

    pub(crate) const fn qpn(&self) -> Qpn {
        self.ends[0].qpn
    }
}

/// Adds memory and queue pair of an end of a flow, and takes that to RTS.
fn open(host: &mut SimulatedHost, own: FlowEnd, peer: FlowEnd, traffic_class: u8) {
    let region = Mr {
        key: MrKey(key(own.region)),
        pd: PD,
        access: access::ALL,
        va: 0,
        length: REGION_BYTES,
        object: MemoryObjectId(own.region),
        offset: 0,
        scope: Scope::Region,
    };
    host.endpoint.insert_mr(region).expect("room");
    let qp = Qp::new(QpConfig {
        qpn: own.qpn,
        service: ServiceType::Rc,
        pd: PD,
        send_cq: Cqn(1),
        recv_cq: Cqn(1),
        sizes: QpSizes { send_wrs: 64, recv_wrs: 1, send_sges: 1, recv_sges: 1, inline_bytes: 0 },
        signal_all: false,
        window_packets: host.options.window_packets,
        credits: false,
    });
    host.endpoint.insert_qp(Box::new(qp)).map_err(|(_, reject)| reject).expect("a number that is free");
    let path = Path::new(&PathSpec {
        via: Egress::Nic { flow: own.region },
        source_mac: [2, 0, 0, 0, 0, 1],
        dest_mac: [2, 0, 0, 0, 0, 2],
        vlan: None,
        source: gid(own.host),
        destination: gid(peer.host),
        traffic_class,
        hop_limit: 64,
        flow_label: 0,
        roce: Roce::V2 { udp_source_port: udp_source_port(0, own.qpn, peer.qpn) },
    })
    .expect("one address family");
    let attributes = QpAttributes {
        access: access::ALL,
        path_mtu_bytes: MTU,
        dest_qpn: peer.qpn.get(),
        sq_psn: FIRST_PSN,
        rq_psn: FIRST_PSN,
        max_rd_atomic: RD_ATOMIC,
        max_dest_rd_atomic: RD_ATOMIC,
        min_rnr_timer: 12,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        dgid: gid(peer.host),
        ..QpAttributes::default()
    };
    use attribute::*;
    let steps = [
        (state::INIT, PKEY_INDEX | PORT | ACCESS_FLAGS, None),
        (
            state::RTR,
            AV | PATH_MTU | DEST_QPN | RQ_PSN | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER,
            Some(PathState::Ready(path)),
        ),
        (state::RTS, SQ_PSN | TIMEOUT | RETRY_CNT | RNR_RETRY | MAX_QP_RD_ATOMIC, None),
    ];
    for (state, mask, path) in steps {
        host.endpoint
            .modify_qp(own.qpn, STATE | mask, &QpAttributes { state, ..attributes }, path)
            .expect("all attributes are given");
    }
}
