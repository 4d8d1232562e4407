//! Receives of a queue that the queue pair under test shares with another, which a peer of that
//! one's makes it take from.

use roced_transport::{
    psn::Psn,
    qp::{Qp, QpConfig, ServiceType},
    srq::{Srq, SrqConfig},
    wire::opcode::UD_SEND_ONLY,
    work::RecvWork,
};
use roced_types::{EndpointId, Qpn, Sge, Srqn};

use crate::{
    client::{PD, RECV_CQ, SEND_CQ},
    packet::{Recipe, Step},
    world::{OUR_QKEY, SIZES, World, qpn},
};

/// Queue pairs that take from it: each may have one receive that it has not used up.
pub(crate) const SHARERS: usize = 2;

/// Bytes in front of a datagram in its buffer.
pub(crate) const GRH_BYTES: u64 = 40;

/// The limit of a shared queue, as its user sees it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Arming {
    armed: u32,
    told: u32,
}

pub(crate) fn config() -> SrqConfig {
    SrqConfig { srqn: Srqn::new(EndpointId::new(3).expect("small"), 0), pd: PD, sizes: SIZES }
}

/// The other queue pair: it takes datagrams.
pub(crate) fn sharer() -> Qpn {
    Qpn::new(EndpointId::new(3).expect("small"), qpn().index() - 1)
}

impl World {
    /// A shared queue, and the other queue pair that takes from it.
    pub(crate) fn insert_shared(&mut self) {
        let srq = Box::new(Srq::new(config()));
        self.endpoint.insert_srq(srq).map_err(|(_, reject)| reject).expect("a free place");
        let sizes = roced_types::QpSizes { recv_wrs: 1, ..SIZES };
        let config = QpConfig {
            qpn: sharer(),
            service: ServiceType::Ud,
            pd: PD,
            send_cq: SEND_CQ,
            recv_cq: RECV_CQ,
            sizes,
            signal_all: false,
            window_packets: 1,
            credits: true,
        };
        let qp = Box::new(Qp::new(config).with_srq(&self::config()));
        self.endpoint.insert_qp(qp).map_err(|(_, reject)| reject).expect("a free place");
        self.connect_datagram(sharer());
    }

    /// A receive for any queue pair, where there is room for those too that the queue pairs may
    /// give back.
    pub(crate) fn post_shared(&mut self, sges: &[Sge]) {
        if self.endpoint.srq_room(config().srqn) > SHARERS as u32 {
            let work = RecvWork { wr_id: self.wr_id, sges };
            self.endpoint.post_srq_recv(config().srqn, &work).expect("it is there");
            self.client.recvs.push_back(self.wr_id);
            self.wr_id += 1;
        }
    }

    /// A datagram to the other queue pair; gives how many bytes it may write.
    pub(crate) fn steal(&mut self, bytes: u8) -> u64 {
        let step = Step { opcode: UD_SEND_ONLY.0, number: bytes, ..Step::default() };
        let (psn, payload_bytes) = (Psn::new(bytes.into()), usize::from(bytes));
        let recipe = Recipe { step, dest_qpn: sharer(), psn, payload_bytes, va: 0, key: 0, qkey: OUR_QKEY };
        let mut frame = Vec::new();
        recipe.build(&mut frame);
        self.give(&[&frame]);
        GRH_BYTES + u64::from(bytes)
    }

    pub(crate) fn arm_limit(&mut self, limit: u32) {
        self.endpoint.set_srq_limit(config().srqn, limit).expect("it is there");
        self.arming.armed += u32::from(limit > 0);
        self.check_limit();
    }

    /// One event for one arming, and none is due without being reported.
    pub(crate) fn check_limit(&mut self) {
        let Some(srq) = self.endpoint.srq(config().srqn) else { return };
        let (limit, len) = (srq.limit(), srq.len());
        assert!(len >= limit, "{len} receives, and an armed limit of {limit}");
        while let Some(srqn) = self.endpoint.poll_srq_limit() {
            assert_eq!(srqn, config().srqn);
            self.arming.told += 1;
        }
        assert!(
            self.arming.told + u32::from(limit > 0) <= self.arming.armed,
            "once for each arming: {:?}",
            self.arming
        );
    }

    /// Those that no queue pair took are there still, and the next takes them.
    pub(crate) fn check_left(&self) {
        let left = self.endpoint.srq(config().srqn).map_or(0, Srq::len);
        assert_eq!(self.client.recvs.len() as u32, left, "all receives that were taken end");
    }
}
