//! An endpoint with one queue pair, its client, its wire and its clock: what the targets of the engine have in common.

use roced_shared::{
    abi::{
        control::{QpAttributes, access, attribute, state},
        layout::QpSizes,
        wqe::Sge,
    },
    ids::{EndpointId, Pdn, Qpn, RegionId},
};
use roced_transport::{
    clock::Nanos,
    endpoint::{Endpoint, EndpointConfig},
    io::Via,
    mr::{Mr, MrKey, Scope},
    psn::Psn,
    qp::{PathState, Qp, QpConfig, ServiceType},
    recovery::RecoveryConfig,
    wire::{Packet, Path, PathSpec},
    work::RecvWork,
};

use crate::{
    client::{Client, PD, RECV_CQ, SEND_CQ},
    input::Input,
    packet::{PEER, Recipe, Step, US, flags, gid},
    tap::Tap,
};

pub(crate) const SIZES: QpSizes = QpSizes { send_wrs: 8, recv_wrs: 8, send_sges: 4, recv_sges: 4, inline_bytes: 64 };
const INDEX: u32 = 5;
const PEER_QPN: u32 = 0x102;
/// Regions that there can be; a step may name more.
const MRS: u32 = 5;

/// All of it.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) endpoint: Endpoint,
    pub(crate) client: Client,
    pub(crate) tap: Tap,
    pub(crate) now: Nanos,
    pub(crate) wr_id: u64,
    pub(crate) signal_all: bool,
    attributes: QpAttributes,
    frame: Vec<u8>,
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
    // The fourth is somebody else's.
    let pd = if index == 3 { Pdn(2) } else { PD };
    Mr {
        key: mr_key(index),
        pd,
        access: rights,
        va,
        length,
        region: RegionId(index),
        offset: 104,
        scope: Scope::Region,
    }
}

fn path() -> Path {
    Path::new(&PathSpec {
        via: Via::Nic { flow: 0 },
        source_mac: [2; 6],
        dest_mac: [4; 6],
        vlan: None,
        source: gid(US),
        destination: gid(PEER),
        traffic_class: 0,
        hop_limit: 64,
        flow_label: 0,
        udp_source_port: 50_000,
    })
    .expect("one family")
}

impl World {
    /// A queue pair in RTS, made as the first bytes of the input say.
    pub(crate) fn new(input: &mut Input<'_>) -> Self {
        let id = EndpointId::new(3).expect("small");
        let psn = [0, 0x00ff_fff8, 0x007f_fffc, 0x00ff_ff00][usize::from(input.byte() & 3)];
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
            dgid: gid(PEER),
            ..QpAttributes::default()
        };
        let window_packets = input.of(&[64, 1, 5, 0, 4096]);
        let countdowns = [input.byte(), input.byte()];
        let mut world = Self {
            endpoint: Endpoint::new(EndpointConfig {
                id,
                max_mrs: MRS,
                max_ahs: 0,
                max_qps: INDEX + 1,
                recovery: RecoveryConfig::default(),
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
            attributes,
            frame: Vec::new(),
        };
        (0..MRS).for_each(|index| world.insert_mr(index));
        let config = QpConfig {
            qpn: qpn(),
            service: ServiceType::Rc,
            pd: PD,
            send_cq: SEND_CQ,
            recv_cq: RECV_CQ,
            sizes: SIZES,
            signal_all: world.signal_all,
            window_packets,
        };
        world.endpoint.insert_qp(Box::new(Qp::new(config))).map_err(|(_, reject)| reject).expect("a free place");
        world.connect();
        world
    }

    pub(crate) fn mtu(&self) -> usize {
        self.tap.mtu
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

    /// From wherever it is to RTS; what was posted is forgotten.
    pub(crate) fn connect(&mut self) {
        use attribute::*;
        for (state, mask) in [
            (state::RESET, 0),
            (state::INIT, PKEY_INDEX | PORT | ACCESS_FLAGS),
            (state::RTR, AV | PATH_MTU | DEST_QPN | RQ_PSN | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER),
            (state::RTS, TIMEOUT | RETRY_CNT | RNR_RETRY | SQ_PSN | MAX_QP_RD_ATOMIC),
        ] {
            let path = (mask & AV != 0).then(|| PathState::Ready(path()));
            let attributes = QpAttributes { state, ..self.attributes };
            self.endpoint.modify_qp(qpn(), STATE | mask, &attributes, path).expect("the usual way");
        }
        self.client.sends.clear();
        self.client.recvs.clear();
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
            _ => self.set_path(PathState::Ready(path())),
        }
    }

    fn set_path(&mut self, path: PathState) {
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
        if self.endpoint.recv_room(qpn()) > 0 {
            self.endpoint.post_recv(qpn(), &RecvWork { wr_id: self.wr_id, sges: &sges }).expect("there");
            self.client.recvs.push_back(self.wr_id);
            self.wr_id += 1;
        }
    }

    /// The packet of a step, given to the engine; whatever becomes of it.
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
            qkey: 0x1111_1111,
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

    /// A frame, given to the engine.
    pub(crate) fn give(&mut self, frame: &[&[u8]]) -> roced_transport::reject::Disposition {
        self.endpoint.on_frame(self.now, frame, &mut self.client)
    }

    /// Time goes on, by a byte: from nothing to many seconds.
    pub(crate) fn time(&mut self, what: u8) {
        // 2^(what / 4) ns and quarters between: 255 is more than a minute.
        let step = (4 + u64::from(what & 3)) << (what >> 2) >> 2;
        self.now = self.now + Nanos(step.min(100_000_000_000));
        let fired = self.endpoint.on_timeout(self.now, 8, &mut self.client);
        assert!(fired < 8, "the timer of one queue pair comes to an end");
    }

    /// Sends into a wire with some room, by a byte, and looks at what was sent.
    pub(crate) fn transmit(&mut self, what: u8, look: impl FnMut(&Packet<'_>)) {
        self.tap.room = [100, 1, 3, 0][usize::from(what & 3)];
        let budget = [64, 1, 5, 200][usize::from(what >> 2 & 3)];
        self.endpoint.poll_transmit(self.now, budget, &mut self.client, &mut self.tap);
        self.tap.drain(look);
    }

    /// Nothing comes any more: there is an end to what it sends.
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
        assert!(self.client.recvs.is_empty(), "all receives end");
        assert!(self.client.sends.iter().all(|posted| !posted.signaled), "all sends end, or were done without a word");
        let room = (self.endpoint.send_room(qpn()), self.endpoint.recv_room(qpn()));
        assert_eq!(room, (SIZES.send_wrs, SIZES.recv_wrs), "both queues are empty");
        let events = std::iter::from_fn(|| self.endpoint.poll_event()).count();
        assert!(events <= 4, "one of a kind");
    }
}
