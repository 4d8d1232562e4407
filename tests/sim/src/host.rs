//! Parts of a host besides its model: addresses, memory regions, queue pairs as a client takes them
//! to RTS.

use roced_transport::{
    ah::AhEntry,
    clock::Nanos,
    congestion::{control::CongestionControl, dcqcn::DcqcnParameters},
    endpoint::{Endpoint, EndpointConfig},
    io::{Abort, Egress, EmitError, FrameMut, Wire},
    mr::{Mr, MrKey, Scope},
    partition::Partitions,
    qp::{PathState, Qp, QpConfig, State},
    recovery::{Recovery, RecoveryConfig},
    srq::SrqConfig,
    turns::{
        class_pause::{PauseWatchdog, StormAction},
        classes::{ClassConfig, Selection, TrafficClasses},
    },
    wire::{
        Roce,
        path::{Path, PathSpec},
    },
};
use roced_types::{EndpointId, QpAttributes, QpSizes, Qpn, access, attribute, state};

use crate::{
    counting::COUNTING_BYTES,
    layout::{
        COUNTING, COUNTING_KEY, COUNTING_VA, FORBIDDEN, HANDLES, OTHER_PD, OTHER_PD_AH, OTHER_PD_KEY, PD, READ_KEY,
        SINK, SINK_KEY, SINK_VA, SOURCE, SOURCE_KEY, SOURCE_VA, own_key, own_region, sink_bytes, slot_key, slot_region,
    },
    model::{HostModel, RECV_CQ, SEND_CQ},
    pattern::SOURCE_BYTES,
    random::Random,
    service::Service,
    settings::Settings,
};

/// Queue pairs that one host can make in a seed; at the most.
pub(crate) const QPS_MAX: u32 = 1024;

/// Send and receive work requests of a queue pair.
pub(crate) const WORK_REQUESTS: u32 = 64;

/// Classes of connections, which have the DSCPs of these by their number.
const CLASSES: [u8; 3] = [0, 1, 6];

/// The class of these with a rate.
const RATED_CLASS: u8 = 1;
pub(crate) const RATE_KBIT_PER_S: u32 = 4_000_000;

/// The connections of a slot are in the class with a rate, on a host with classes.
pub(crate) const fn has_rate(slot: usize) -> bool {
    CLASSES[slot % CLASSES.len()] == RATED_CLASS
}

/// Storms are those pauses that take as long.
pub(crate) const WATCHDOG: PauseWatchdog =
    PauseWatchdog { detection: Nanos::from_millis(1), restoration: Nanos::from_millis(1), action: StormAction::Ignore };

/// Class 6 is strict, class 1 has a share and a rate, class 0 has the other share.
fn classes() -> TrafficClasses {
    let mut classes = TrafficClasses { ahead_bytes_max: 9000, watchdog: WATCHDOG, ..TrafficClasses::default() };
    classes.config[0] = ClassConfig::new(Selection::Ets { percent: 10 });
    classes.config[usize::from(RATED_CLASS)] =
        ClassConfig { selection: Selection::Ets { percent: 90 }, max_rate_kbit_per_s: RATE_KBIT_PER_S };
    classes.config[6] = ClassConfig::new(Selection::Strict);
    classes
}

/// The endpoint of a host with memory for `slots` connections.
pub(crate) fn endpoint(
    host: usize,
    slots: usize,
    model: &HostModel,
    recovery: RecoveryConfig,
    congestion: CongestionControl,
    has_classes: bool,
) -> Endpoint {
    let id = EndpointId::new(host + 1).expect("a small number");
    let mut endpoint = Endpoint::new(EndpointConfig {
        id,
        max_mrs: 24,
        max_ahs: HANDLES,
        max_srqs: 1,
        max_attachments: 0,
        max_qps: QPS_MAX,
        // Less than the windows of all its queue pairs together.
        total_window_packets: 96,
        recovery,
        partitions: Partitions::default(),
    });
    endpoint.set_congestion_control(congestion, DcqcnParameters::default());
    if has_classes {
        endpoint.set_classes(classes());
    }
    let sink_bytes = sink_bytes(slots) as u64;
    let source = Mr {
        key: MrKey(SOURCE_KEY),
        pd: PD,
        access: access::REMOTE_READ,
        va: SOURCE_VA,
        length: SOURCE_BYTES as u64,
        object: SOURCE,
        offset: 0,
        scope: Scope::Region,
    };
    let sink =
        Mr { key: MrKey(SINK_KEY), access: access::ALL, va: SINK_VA, length: sink_bytes, object: SINK, ..source };
    let regions = [
        source,
        sink,
        Mr { key: MrKey(COUNTING_KEY), va: COUNTING_VA, length: COUNTING_BYTES.into(), object: COUNTING, ..source },
        Mr { key: MrKey(READ_KEY), access: access::REMOTE_READ, ..sink },
        Mr { key: MrKey(OTHER_PD_KEY), pd: OTHER_PD, object: FORBIDDEN, ..sink },
    ];
    for mr in regions {
        endpoint.insert_mr(mr).expect("room");
    }
    for (slot, generation) in model.generations.iter().enumerate() {
        insert_slot_key(&mut endpoint, slots, slot, *generation, Scope::Region);
    }
    for (slot, generation) in model.own_generations.iter().enumerate() {
        insert_own_key(&mut endpoint, slots, slot, *generation);
    }
    for (slot, reuse) in model.reuse.iter().enumerate() {
        reuse.insert(&mut endpoint, slot);
    }
    if let Some(shared) = &model.shared {
        endpoint.insert_srq(shared.make(host)).map_err(|(_, reject)| reject).expect("room");
    }
    endpoint
}

/// A host that bears it when frames overtake others by up to 100 us.
pub(crate) const BEARING: RecoveryConfig = RecoveryConfig {
    kind: Recovery::Selective,
    reorder_delay: Nanos(100_000),
    probe_floor: Nanos(1_000_000),
    out_of_order_packets: 1_024,
};

/// How a host recovers lost packets: one in three as go-back-N does; the others with room for few
/// packets or many.
pub(crate) fn draw_recovery(random: &mut Random) -> RecoveryConfig {
    RecoveryConfig {
        kind: if random.one_in(3) { Recovery::GoBackN } else { Recovery::Selective },
        reorder_delay: Nanos(random.pick(&[0, 0, 5_000, 100_000])),
        probe_floor: Nanos(random.pick(&[20_000, 100_000, 1_000_000])),
        out_of_order_packets: random.pick(&[8, 64, 1_024]),
    }
}

/// Opens the sink by the slot's key of this generation.
pub(crate) fn insert_slot_key(endpoint: &mut Endpoint, slots: usize, slot: usize, generation: u32, scope: Scope) {
    endpoint
        .insert_mr(Mr {
            key: MrKey(slot_key(slot, generation)),
            pd: PD,
            access: access::ALL,
            va: SINK_VA,
            length: sink_bytes(slots) as u64,
            object: slot_region(slot, generation),
            offset: 0,
            scope,
        })
        .expect("room");
}

/// Opens the sink by the host's own key of this generation.
pub(crate) fn insert_own_key(endpoint: &mut Endpoint, slots: usize, slot: usize, generation: u32) {
    endpoint
        .insert_mr(Mr {
            key: MrKey(own_key(slot, generation)),
            pd: PD,
            access: access::LOCAL_WRITE,
            va: SINK_VA,
            length: sink_bytes(slots) as u64,
            object: own_region(slot, generation),
            offset: 0,
            scope: Scope::Region,
        })
        .expect("room");
}

/// The number of a host's queue pair.
pub(crate) fn qpn(host: usize, index: u32) -> Qpn {
    Qpn::new(EndpointId::new(host + 1).expect("a small number"), index)
}

pub(crate) fn gid(host: usize, ipv6: bool) -> [u8; 16] {
    let mut gid = [0; 16];
    if ipv6 {
        gid[0] = 0xfd;
    } else {
        gid[10..14].copy_from_slice(&[0xff, 0xff, 10, 10]);
    }
    gid[15] = host as u8 + 1;
    gid
}

/// Makes a queue pair.
pub(crate) fn insert(endpoint: &mut Endpoint, own: Qpn, settings: &Settings, srq: Option<&SrqConfig>) {
    // Of a shared queue it has one receive at a time.
    let recv_wrs = if srq.is_some() { 1 } else { WORK_REQUESTS };
    let recv_sges = srq.map_or(settings.sges.max(2), |srq| srq.sizes.recv_sges);
    let sizes = QpSizes {
        send_wrs: WORK_REQUESTS,
        recv_wrs,
        send_sges: settings.sges.max(2),
        recv_sges,
        inline_bytes: settings.inline_bytes,
    };
    let config = QpConfig {
        qpn: own,
        service: settings.service.kind(),
        pd: PD,
        send_cq: SEND_CQ,
        recv_cq: RECV_CQ,
        sizes,
        signal_all: settings.signal_all,
        window_packets: settings.window,
        credits: settings.credits,
    };
    let qp = Qp::new(config);
    let qp = if let Some(srq) = srq { qp.with_srq(srq) } else { qp };
    endpoint.insert_qp(Box::new(qp)).map_err(|(_, reject)| reject).expect("a number that is free");
}

/// The attributes of a host's queue pair.
fn attributes(host: usize, peer: u32, settings: &Settings, psns: [u32; 2]) -> QpAttributes {
    QpAttributes {
        access: access::ALL,
        path_mtu_bytes: settings.mtu,
        dest_qpn: peer,
        sq_psn: psns[host],
        rq_psn: psns[1 - host],
        max_rd_atomic: settings.rd_atomic,
        max_dest_rd_atomic: settings.rd_atomic,
        min_rnr_timer: settings.min_rnr_timer,
        timeout: settings.timeout,
        retry_cnt: settings.retry_cnt,
        rnr_retry: settings.rnr_retry,
        qkey: settings.qkey,
        dgid: gid(1 - host, settings.ipv6),
        ..QpAttributes::default()
    }
}

/// Takes a queue pair to RTR, or to RTS if it sends datagrams. Its frames leave from that UDP
/// source port.
///
/// `slot` is the number of its address handle, if it sends datagrams.
pub(crate) fn connect(
    endpoint: &mut Endpoint,
    (host, slot): (usize, usize),
    own: Qpn,
    peer: Qpn,
    settings: &Settings,
    psns: [u32; 2],
    udp_source_port: u16,
) {
    let path = Path::new(&PathSpec {
        via: Egress::Nic { flow: 1 },
        source_mac: [2, 0, 0, 0, 0, host as u8],
        dest_mac: [2, 0, 0, 0, 0, 1 - host as u8],
        vlan: None,
        source: gid(host, settings.ipv6),
        destination: gid(1 - host, settings.ipv6),
        traffic_class: CLASSES[slot % CLASSES.len()] << 5 | 2,
        hop_limit: 64,
        flow_label: 0,
        roce: Roce::V2 { udp_source_port },
    })
    .expect("one address family");
    let attributes = attributes(host, peer.get(), settings, psns);
    use attribute::*;
    // IBTA v1 table 91: attributes for answers only are not attributes of a service without them.
    let to_receive = if settings.service.is_reliable() { MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER } else { 0 };
    if settings.service == Service::Datagram {
        let handle =
            AhEntry { pd: PD, path: PathState::Ready(path), mtu_bytes: settings.mtu, static_rate_kbit_per_s: 0 };
        for (number, pd) in [(slot as u32, PD), (OTHER_PD_AH, OTHER_PD)] {
            endpoint.remove_ah(number);
            endpoint.insert_ah(number, AhEntry { pd, ..handle }).expect("just removed");
        }
    }
    let connected = [
        (state::INIT, PKEY_INDEX | PORT | ACCESS_FLAGS, None),
        (state::RTR, AV | PATH_MTU | DEST_QPN | RQ_PSN | to_receive, Some(PathState::Ready(path))),
    ];
    let steps = match settings.service {
        Service::Datagram => [(state::INIT, PKEY_INDEX | PORT | QKEY, None), (state::RTR, 0, None)],
        Service::Reliable | Service::Unreliable => connected,
    };
    for (state, mask, path) in steps {
        endpoint
            .modify_qp(own, STATE | mask, &QpAttributes { state, ..attributes }, path)
            .expect("all attributes are given");
    }
}

/// Takes a queue pair from RTR to RTS.
pub(crate) fn make_ready(
    endpoint: &mut Endpoint,
    host: usize,
    own: Qpn,
    peer: u32,
    settings: &Settings,
    psns: [u32; 2],
) {
    use attribute::*;
    let to_send = if settings.service.is_reliable() { TIMEOUT | RETRY_CNT | RNR_RETRY | MAX_QP_RD_ATOMIC } else { 0 };
    let attributes = QpAttributes { state: state::RTS, ..attributes(host, peer, settings, psns) };
    endpoint.modify_qp(own, STATE | SQ_PSN | to_send, &attributes, None).expect("all attributes are given");
}

/// Takes a queue pair to RESET.
pub(crate) fn reset(endpoint: &mut Endpoint, own: Qpn) {
    let reset = QpAttributes { state: state::RESET, ..QpAttributes::default() };
    endpoint.modify_qp(own, attribute::STATE, &reset, None).expect("from anywhere");
}

/// Takes a queue pair to the error state.
pub(crate) fn end(endpoint: &mut Endpoint, own: Qpn) {
    let error = QpAttributes { state: state::ERR, ..QpAttributes::default() };
    endpoint.modify_qp(own, attribute::STATE, &error, None).expect("from anywhere");
}

/// A queue pair in this state takes frames.
pub(crate) const fn hears(state: State) -> bool {
    matches!(state, State::ReadyToReceive | State::ReadyToSend | State::SendQueueDrain | State::SendQueueError)
}

/// A NIC with room for so many frames.
pub(crate) struct Nic<'n> {
    pub(crate) room: usize,
    /// Bytes with which it has no room either.
    pub(crate) ahead_max: usize,
    pub(crate) spare: &'n mut Vec<Vec<u8>>,
    pub(crate) frames: &'n mut Vec<Vec<u8>>,
}

impl Wire for Nic<'_> {
    fn emit(
        &mut self,
        _via: Egress,
        frame_bytes: usize,
        fill: impl FnOnce(&mut FrameMut<'_>) -> Result<(), Abort>,
    ) -> Result<(), EmitError> {
        let ahead: usize = self.frames.iter().map(Vec::len).sum();
        if self.frames.len() >= self.room || ahead >= self.ahead_max {
            return Err(EmitError::Full);
        }
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.resize(frame_bytes, 0);
        let filled = {
            // A long frame lies in two pieces, as in AF_XDP chunks.
            let mut frame = FrameMut::over(bytes.chunks_mut(3840));
            fill(&mut frame)
        };
        if filled.is_err() {
            self.spare.push(bytes);
            return Err(EmitError::Aborted);
        }
        self.frames.push(bytes);
        Ok(())
    }

    fn limit_ahead(&mut self, bytes: usize) {
        self.ahead_max = bytes;
    }
}
