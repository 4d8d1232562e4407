//! An endpoint with one queue pair, its client, its wire and its clock: the common part of the
//! targets of the transport.

use roced_transport::{
    ah::AhEntry,
    clock::Nanos,
    congestion::notification::{BYTES_PER_NOTIFICATION, NOTIFICATION_BURST, NOTIFICATION_BYTES},
    endpoint::{Endpoint, EndpointConfig},
    io::Egress,
    mr::{Mr, MrKey, Scope},
    partition::Partitions,
    psn::Psn,
    qp::{KeyChange, KeyRequest, PathState, Qp, QpConfig, ServiceType},
    recovery::{Recovery, RecoveryConfig},
    wire::{Packet, Path, PathSpec, Roce, parse},
    work::RecvWork,
};
use roced_types::{EndpointId, MemoryObjectId, Pdn, QpAttributes, QpSizes, Qpn, Sge, access, attribute, event, state};

use crate::{
    client::{Client, PD, RECV_CQ, SEND_CQ},
    input::Input,
    packet::{PEER, Recipe, Step, US, flags, gid},
    shared::{self, Arming},
    tap::Tap,
};

pub(crate) const SIZES: QpSizes = QpSizes { send_wrs: 8, recv_wrs: 8, send_sges: 4, recv_sges: 4, inline_bytes: 64 };
const INDEX: u32 = 5;
pub(crate) const PEER_QPN: u32 = 0x102;
/// Regions that there can be; a step may name more.
const MRS: u32 = 5;
/// Address handles: that of a peer, one of a foreign protection domain, none, and one with a narrow
/// path.
const AHS: u32 = 4;
/// The Q_Key of the queue pair and of its peers.
pub(crate) const OUR_QKEY: u32 = 0x1111_1111;

/// All of it.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) endpoint: Endpoint,
    pub(crate) client: Client,
    pub(crate) tap: Tap,
    pub(crate) now: Nanos,
    pub(crate) wr_id: u64,
    pub(crate) signal_all: bool,
    /// Since it was connected some frames may have been counted as sent, and not been seen: there
    /// was no peer to send them to.
    pub(crate) unreachable: bool,
    /// Local work that was done: keys that the queue pair's own client wanted changed.
    pub(crate) local_done: u64,
    /// Receives come from a queue that it shares.
    pub(crate) shares: bool,
    pub(crate) arming: Arming,
    /// Changes of keys that are under way.
    changing: Vec<KeyChange>,
    service: ServiceType,
    attributes: QpAttributes,
    frame: Vec<u8>,
    /// Bytes of frames given to the transport, as notifications are earned by them, and frames that
    /// a congested switch has marked.
    given_bytes: u64,
    marked: u64,
}

pub(crate) fn qpn() -> Qpn {
    Qpn::new(EndpointId::new(3).expect("small"), INDEX)
}

pub(crate) const fn mr_key(index: u32) -> MrKey {
    MrKey(index << 8 | 1)
}

/// Region `index` as it is when it is registered.
pub(crate) fn mr(index: u32) -> Mr {
    let (va, length, rights) = match index {
        0 => (0x1_0000, 40_000, access::ALL),
        1 => (0x10_0000, 1, access::ALL),
        2 => (u64::MAX - 20_000, 20_001, access::REMOTE_READ | access::REMOTE_WRITE),
        3 => (0x1_0000, 40_000, access::ALL),
        _ => (0x40_0000, 9_000, access::LOCAL_WRITE),
    };
    // The fourth is of a foreign protection domain.
    let pd = if index == 3 { Pdn(2) } else { PD };
    Mr {
        key: mr_key(index),
        pd,
        access: rights,
        va,
        length,
        object: MemoryObjectId(index),
        offset: 104,
        scope: Scope::Region,
    }
}

fn path() -> Path {
    Path::new(&PathSpec {
        via: Egress::Nic { flow: 0 },
        source_mac: [2; 6],
        dest_mac: [4; 6],
        vlan: None,
        source: gid(US),
        destination: gid(PEER),
        traffic_class: 0,
        hop_limit: 64,
        flow_label: 0,
        roce: Roce::V2 { udp_source_port: 50_000 },
    })
    .expect("one family")
}

impl World {
    /// A queue pair in RTS, made as the first bytes of the input say.
    pub(crate) fn new(service: ServiceType, input: &mut Input<'_>) -> Self {
        let id = EndpointId::new(3).expect("small");
        let first = input.byte();
        let psn = [0, 0x00ff_fff8, 0x007f_fffc, 0x00ff_ff00][usize::from(first & 3)];
        let recovery = RecoveryConfig {
            kind: if first & 4 != 0 { Recovery::GoBackN } else { Recovery::Selective },
            out_of_order_packets: [64, 0, 1, 8][usize::from(first >> 4 & 3)],
            reorder_delay: Nanos::from_micros([0, 20, 1000, 0][usize::from(first >> 6)]),
            ..RecoveryConfig::default()
        };
        let mtu = input.of(&[256, 1024, 512, 2048, 4096]);
        let few = input.byte();
        let attributes = QpAttributes {
            access: access::ALL,
            path_mtu_bytes: mtu,
            dest_qpn: PEER_QPN,
            rq_psn: psn,
            sq_psn: psn,
            max_rd_atomic: input.of(&[4, 1, 128, 0, 2]),
            max_dest_rd_atomic: input.of(&[4, 1, 128, 0, 2]),
            min_rnr_timer: 1,
            timeout: input.of(&[14, 8, 0, 1, 31]),
            retry_cnt: u32::from(few & 7),
            rnr_retry: u32::from(few >> 3 & 7),
            qkey: OUR_QKEY,
            dgid: gid(PEER),
            ..QpAttributes::default()
        };
        let window_packets = input.of(&[64, 1, 5, 0, 4096]);
        let countdowns = [input.byte(), input.byte()];
        let mut world = Self {
            endpoint: Endpoint::new(EndpointConfig {
                id,
                max_mrs: MRS,
                max_ahs: AHS,
                max_srqs: 1,
                max_attachments: 0,
                max_qps: INDEX + 1,
                total_window_packets: 512,
                recovery,
                partitions: Partitions::default(),
            }),
            client: Client {
                overrun_in: countdowns[0].saturating_sub(200).into(),
                fault_in: countdowns[1].saturating_sub(100).into(),
                ..Client::default()
            },
            tap: Tap::new(mtu as usize),
            now: Nanos::from_millis(1),
            wr_id: 0,
            signal_all: few & 0x40 != 0,
            unreachable: false,
            local_done: 0,
            shares: few & 0x80 != 0,
            arming: Arming::default(),
            changing: Vec::new(),
            service,
            attributes,
            frame: Vec::new(),
            given_bytes: 0,
            marked: 0,
        };
        (0..MRS).for_each(|index| world.insert_mr(index));
        if service == ServiceType::Ud {
            for (number, pd) in [(0, PD), (1, Pdn(2)), (3, PD)] {
                let mtu_bytes = world.ah_mtu(number);
                let handle = AhEntry { pd, path: PathState::Ready(path()), mtu_bytes, static_rate_kbit_per_s: 0 };
                world.endpoint.insert_ah(number, handle).expect("room");
            }
        }
        let sizes = if world.shares { QpSizes { recv_wrs: 1, ..SIZES } } else { SIZES };
        let config = QpConfig {
            qpn: qpn(),
            service,
            pd: PD,
            send_cq: SEND_CQ,
            recv_cq: RECV_CQ,
            sizes,
            signal_all: world.signal_all,
            window_packets,
            credits: true,
        };
        let mut qp = Qp::new(config);
        if world.shares {
            world.insert_shared();
            world.client.sharers = shared::SHARERS - 1;
            qp = qp.with_srq(&shared::config());
        }
        world.endpoint.insert_qp(Box::new(qp)).map_err(|(_, reject)| reject).expect("a free place");
        world.connect();
        world
    }

    pub(crate) fn mtu(&self) -> usize {
        self.tap.mtu
    }

    /// The longest datagram that this address handle may carry.
    pub(crate) fn ah_mtu(&self, number: u32) -> u32 {
        if number == 3 { 100 } else { self.attributes.path_mtu_bytes }
    }

    pub(crate) fn first_psn(&self) -> Psn {
        Psn::new(self.attributes.rq_psn)
    }

    pub(crate) fn max_rd_atomic(&self) -> u32 {
        self.attributes.max_rd_atomic
    }

    pub(crate) fn state(&self) -> &'static str {
        self.endpoint.qp(qpn()).expect("there").state_name()
    }

    /// From wherever it is to RTS; posted work is forgotten.
    pub(crate) fn connect(&mut self) {
        use attribute::*;
        let (to_rtr, to_rts) = match self.service {
            ServiceType::Rc => (MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER, TIMEOUT | RETRY_CNT | RNR_RETRY | MAX_QP_RD_ATOMIC),
            ServiceType::Uc | ServiceType::Ud => (0, 0),
        };
        let is_datagram = self.service == ServiceType::Ud;
        for (state, mask) in [
            (state::RESET, 0),
            (state::INIT, PKEY_INDEX | PORT | if is_datagram { QKEY } else { ACCESS_FLAGS }),
            (state::RTR, if is_datagram { 0 } else { AV | PATH_MTU | DEST_QPN | RQ_PSN | to_rtr }),
            (state::RTS, SQ_PSN | to_rts),
        ] {
            let path = (mask & AV != 0).then(|| PathState::Ready(path()));
            let attributes = QpAttributes { state, ..self.attributes };
            self.endpoint.modify_qp(qpn(), STATE | mask, &attributes, path).expect("the usual way");
            if state == state::RESET {
                // Packets that it still owed in the life that is over are not sent in the next one.
                self.tap.room = usize::MAX;
                self.endpoint.poll_transmit(self.now, 64, &mut self.client, &mut self.tap);
                self.tap.drain(|_| ());
            }
        }
        self.unreachable = false;
        self.client.sends.clear();
        // A shared receive that it had goes back.
        if !self.shares {
            self.client.recvs.clear();
        }
    }

    /// A queue pair of datagrams to RTS.
    pub(crate) fn connect_datagram(&mut self, qpn: Qpn) {
        use attribute::*;
        for (state, mask) in [(state::INIT, PKEY_INDEX | PORT | QKEY), (state::RTR, 0), (state::RTS, SQ_PSN)] {
            let attributes = QpAttributes { state, ..self.attributes };
            self.endpoint.modify_qp(qpn, STATE | mask, &attributes, None).expect("the usual way");
        }
    }

    /// The queue pair, or its send queue, has failed.
    pub(crate) fn has_failed(&self) -> bool {
        matches!(self.state(), "ERR" | "SQE")
    }

    /// To SQD or back to RTS, if that is allowed now.
    fn drain(&mut self, to: u32) {
        // From SQE an unreliable queue pair may go on, with PSNs that do not follow from the posted
        // work any more.
        if self.state() == "SQE" {
            return;
        }
        let mask = if to == state::SQD { attribute::SQ_DRAINED_EVENT } else { 0 };
        let attributes = QpAttributes { state: to, sq_drained_event: 1, ..QpAttributes::default() };
        // From most states, and while requests are not done, it is not.
        let _allowed = self.endpoint.modify_qp(qpn(), attribute::STATE | mask, &attributes, None);
    }

    pub(crate) fn fail(&mut self) {
        if self.state() == "ERR" {
            return;
        }
        let error = QpAttributes { state: state::ERR, ..QpAttributes::default() };
        self.endpoint.modify_qp(qpn(), attribute::STATE, &error, None).expect("allowed from every state but RESET");
    }

    pub(crate) fn insert_mr(&mut self, index: u32) {
        if index < MRS && self.endpoint.insert_mr(mr(index)).is_ok() {
            self.client.mrs.push(mr(index));
        }
    }

    pub(crate) fn remove_mr(&mut self, index: u32) {
        if let Some(gone) = self.endpoint.remove_mr(mr_key(index)) {
            self.client.mrs.retain(|other| other.key != gone.key);
        }
    }

    /// A change from outside, by one byte.
    pub(crate) fn control(&mut self, what: u8) {
        let index = u32::from(what >> 4);
        match what & 0x0f {
            0..4 => self.remove_mr(index),
            4..8 => self.insert_mr(index),
            8 => self.set_path(PathState::Resolving),
            9 => self.set_path(PathState::Unreachable),
            10 => self.drain(state::SQD),
            11 => self.drain(state::RTS),
            12 => self.begin_key_changes(),
            13 => self.end_key_changes(index & 1 == 0),
            14 if self.shares => self.arm_limit(index),
            _ => self.set_path(PathState::Ready(path())),
        }
    }

    /// Key changes that the queue pair wants are heard, and take their time.
    fn begin_key_changes(&mut self) {
        self.changing.extend(std::iter::from_fn(|| self.endpoint.poll_key_change()));
    }

    /// All that is under way is made or refused, whether a work request still waits for it or not.
    /// A window is not made: it opens nothing.
    fn end_key_changes(&mut self, done: bool) {
        self.begin_key_changes();
        for KeyChange { qpn, ticket, wish } in std::mem::take(&mut self.changing) {
            self.local_done += u64::from(done && !matches!(wish, KeyRequest::InvalidateRemotely(_)));
            if let KeyRequest::InvalidateLocally(key) | KeyRequest::InvalidateRemotely(key) = wish
                && done
                && self.endpoint.remove_mr(key).is_some()
            {
                self.client.mrs.retain(|mr| mr.key != key);
            }
            self.endpoint.finish_key_change(self.now, qpn, ticket, done, &mut self.client);
        }
    }

    fn set_path(&mut self, path: PathState) {
        if self.service == ServiceType::Ud {
            // A datagram to nowhere has no PSN, and is not seen either: a later datagram could not
            // be told from it.
            let path = if matches!(path, PathState::Unreachable) { PathState::Resolving } else { path };
            self.endpoint.set_ah_path(0, path, self.ah_mtu(0));
            return;
        }
        self.unreachable |= matches!(path, PathState::Unreachable);
        self.endpoint.set_path(qpn(), path).expect("there");
    }

    /// Scatter/gather entries: four bytes each.
    pub(crate) fn sges(input: &mut Input<'_>, count: u8) -> Vec<Sge> {
        (0..count % 5)
            .map(|_| {
                let (what, length, skip) = (input.byte(), input.u16(), input.byte());
                let index = u32::from(what & 7);
                let length = match what >> 4 {
                    15 => u32::MAX - u32::from(length),
                    14 => 1 << 31,
                    _ => u32::from(length),
                };
                Sge { va: mr(index).va.wrapping_add(u64::from(skip) * 13), length, lkey: mr_key(index).0 }
            })
            .collect()
    }

    pub(crate) fn post_recv(&mut self, input: &mut Input<'_>) {
        let count = input.byte();
        let sges = Self::sges(input, count);
        if self.shares {
            self.post_shared(&sges);
        } else if self.endpoint.recv_room(qpn()) > 0 {
            self.endpoint.post_recv(qpn(), &RecvWork { wr_id: self.wr_id, sges: &sges }).expect("there");
            self.client.recvs.push_back(self.wr_id);
            self.wr_id += 1;
        }
    }

    /// The packet of a step, given to the transport, with any outcome.
    pub(crate) fn deliver(
        &mut self,
        step: Step,
        psn: Psn,
        payload_bytes: usize,
    ) -> roced_transport::reject::Disposition {
        let index = u32::from(step.mr & 7);
        let scale = if step.mr & 0x80 != 0 { 1 } else { 8 };
        let recipe = Recipe {
            step,
            dest_qpn: if step.flags & flags::OTHER_QP != 0 {
                Qpn::from_wire(qpn().get() ^ 1 << (step.number % 24))
            } else {
                qpn()
            },
            psn,
            payload_bytes,
            va: mr(index).va.wrapping_add(u64::from(step.va) * scale),
            key: mr_key(index).0 ^ u32::from(step.mr >> 3 & 1),
            qkey: OUR_QKEY ^ u32::from(step.number >> 6 & 1),
        };
        let mut frame = std::mem::take(&mut self.frame);
        recipe.build(&mut frame);
        let disposition = if step.flags & flags::IN_PIECES != 0 && frame.len() > 150 {
            let (first, rest) = frame.split_at(150 + usize::from(step.number) % (frame.len() - 150));
            self.give(&[first, rest])
        } else {
            self.give(&[&frame])
        };
        self.frame = frame;
        disposition
    }

    /// A frame, given to the transport.
    pub(crate) fn give(&mut self, frame: &[&[u8]]) -> roced_transport::reject::Disposition {
        let disposition = self.endpoint.on_frame(self.now, frame, &mut self.client);
        self.marked += u64::from(parse(frame).is_ok_and(|packet| packet.is_marked() && packet.payload_len() > 0));
        self.given_bytes += NOTIFICATION_BYTES + frame.iter().map(|piece| piece.len() as u64).sum::<u64>();
        self.check_limit();
        disposition
    }

    /// Time goes on, by a byte: from nothing to many seconds.
    pub(crate) fn time(&mut self, what: u8) {
        // `2^(what / 4)` ns and quarters between: 255 is more than a minute.
        let step = (4 + u64::from(what & 3)) << (what >> 2) >> 2;
        self.now = self.now + Nanos(step.min(100_000_000_000));
        let fired = self.endpoint.on_timeout(self.now, 8, &mut self.client);
        assert!(fired < 8, "the timer of one queue pair comes to an end");
    }

    /// Sends into a wire with some room, by a byte, and looks at the packets sent.
    pub(crate) fn transmit(&mut self, what: u8, look: impl FnMut(&Packet<'_>)) {
        self.tap.room = [100, 1, 3, 0][usize::from(what & 3)];
        let budget = [64, 1, 5, 200][usize::from(what >> 2 & 3)];
        self.endpoint.poll_transmit(self.now, budget, &mut self.client, &mut self.tap);
        self.tap.drain(look);
        self.check_notifications();
    }

    /// Notifications answer marked data, and are few.
    fn check_notifications(&self) {
        let most = self.marked.min(NOTIFICATION_BURST + self.given_bytes / BYTES_PER_NOTIFICATION);
        assert!(self.tap.notifications <= most, "{} notifications, at most {most}", self.tap.notifications);
    }

    /// Nothing comes any more: there is an end to its packets.
    pub(crate) fn rest(&mut self, mut look: impl FnMut(&Packet<'_>)) {
        self.tap.room = usize::MAX;
        for _ in 0..2_000 {
            if !self.endpoint.wants_transmit() {
                return;
            }
            self.endpoint.poll_transmit(self.now, 64, &mut self.client, &mut self.tap);
            self.tap.drain(&mut look);
        }
        panic!("it comes to rest");
    }

    /// It comes to rest, and in state ERR all work ends.
    pub(crate) fn end(&mut self, mut look: impl FnMut(&Packet<'_>)) {
        self.rest(&mut look);
        self.fail();
        self.rest(look);
        self.check_notifications();
        self.check_left();
        assert!(self.client.sends.iter().all(|posted| !posted.signaled), "all sends end, or were done without a word");
        let room = (self.endpoint.send_room(qpn()), self.endpoint.recv_room(qpn()));
        let recv_wrs = if self.shares { 1 } else { SIZES.recv_wrs };
        assert_eq!(room, (SIZES.send_wrs, recv_wrs), "both queues are empty");
        let events: Vec<_> = std::iter::from_fn(|| self.endpoint.poll_event()).collect();
        let own = || events.iter().filter(|event| event.qpn == qpn());
        assert!(own().count() <= 8 && events.len() - own().count() <= 8, "one of a kind");
        let last_wqe = own().filter(|event| event.kind == event::QP_LAST_WQE).count();
        assert_eq!(last_wqe, usize::from(self.shares), "it is told that it takes no more");
    }
}
