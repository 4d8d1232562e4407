//! Messages that make a connection: REQ, REP and RTU (IBTA v1 12.6.5, 12.6.8, 12.6.9).

use roced_types::Qpn;

use super::{
    CaGuid, CommId, ConnectionPath, ServiceId,
    body::{BodyReader, BodyWriter},
};

/// Service of the queue pairs to be connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransportService {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Reliable datagram, not in use.
    Rd,
    /// Extended reliable connection.
    Xrc,
    /// An extended service without a name.
    Reserved(ReservedService),
}

/// Number of an extended service without a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservedService(u8);

/// REQ: asks for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Req {
    /// The sender's number of the connection.
    pub local: CommId,
    /// Vendor of the options in the MAD's modifier, 24 bits; 0 without options.
    pub ece_vendor: u32,
    /// The listener.
    pub service_id: ServiceId,
    /// The sender's adapter.
    pub local_ca: CaGuid,
    /// Q_Key of reliable datagrams.
    pub qkey: u32,
    /// The sender's queue pair.
    pub qpn: Qpn,
    /// READ and atomic requests that the sender's queue pair executes at a time.
    pub responder_resources: u8,
    /// READ and atomic requests that the sender's queue pair issues at a time.
    pub initiator_depth: u8,
    /// EE context of reliable datagrams, 24 bits.
    pub local_eecn: u32,
    /// Its peer, 24 bits.
    pub remote_eecn: u32,
    /// Time for the receiver's answer: 4.096 us to the power of two of it, 5
    /// bits.
    pub remote_response_timeout: u8,
    /// Service.
    pub service: TransportService,
    /// The sender's queue pair grants credits.
    pub flow_control: bool,
    /// PSN that the sender's queue pair expects first, 24 bits: where the receiver's begins.
    pub starting_psn: u32,
    /// Time in which the sender answers, as `remote_response_timeout`.
    pub local_response_timeout: u8,
    /// Retries of the receiver's queue pair, 3 bits.
    pub retry_count: u8,
    /// Partition.
    pub pkey: u16,
    /// Path MTU in the code of IBTA (1 is 256 bytes, 5 is 4096), 4 bits.
    pub path_mtu: u8,
    /// An RD channel exists.
    pub rdc_exists: bool,
    /// Retries of the receiver's queue pair after RNR NAKs, 3 bits; 7 has no end.
    pub rnr_retry_count: u8,
    /// Repetitions of an unanswered REP, 4 bits.
    pub max_cm_retries: u8,
    /// The sender's queue pair takes receives from a shared receive queue.
    pub srq: bool,
    /// Path.
    pub primary: ConnectionPath,
    /// Path after a migration; zero without one.
    pub alternate: ConnectionPath,
    /// Private data, the CMA header included.
    pub private_data: [u8; 92],
}

impl Req {
    pub(super) fn read(body: BodyReader<'_>) -> Self {
        let service = match (body.bits(43, 2, 1), body.bits(51, 2, 0)) {
            (0, _) => TransportService::Rc,
            (1, _) => TransportService::Uc,
            (2, _) => TransportService::Rd,
            (_, 1) => TransportService::Xrc,
            (_, other) => TransportService::Reserved(ReservedService(other)),
        };
        Self {
            local: CommId(body.u32(0)),
            ece_vendor: body.u24(5),
            service_id: ServiceId(body.u64(8)),
            local_ca: CaGuid(body.u64(16)),
            qkey: body.u32(28),
            qpn: body.qpn(32),
            responder_resources: body.u8(35),
            local_eecn: body.u24(36),
            initiator_depth: body.u8(39),
            remote_eecn: body.u24(40),
            remote_response_timeout: body.bits(43, 7, 3),
            service,
            flow_control: body.bit(43, 0),
            starting_psn: body.u24(44),
            local_response_timeout: body.bits(47, 7, 3),
            retry_count: body.bits(47, 2, 0),
            pkey: body.u16(48),
            path_mtu: body.bits(50, 7, 4),
            rdc_exists: body.bit(50, 3),
            rnr_retry_count: body.bits(50, 2, 0),
            max_cm_retries: body.bits(51, 7, 4),
            srq: body.bit(51, 3),
            primary: ConnectionPath::read(body, 52),
            alternate: ConnectionPath::read(body, 96),
            private_data: body.bytes(140),
        }
    }

    pub(super) fn write(&self, body: &mut BodyWriter<'_>) {
        let (service, extended) = match self.service {
            TransportService::Rc => (0, 0),
            TransportService::Uc => (1, 0),
            TransportService::Rd => (2, 0),
            TransportService::Xrc => (3, 1),
            TransportService::Reserved(ReservedService(other)) => (3, other),
        };
        body.u32(0, self.local.0);
        body.u24(5, self.ece_vendor);
        body.u64(8, self.service_id.0);
        body.u64(16, self.local_ca.0);
        body.u32(28, self.qkey);
        body.qpn(32, self.qpn);
        body.u8(35, self.responder_resources);
        body.u24(36, self.local_eecn);
        body.u8(39, self.initiator_depth);
        body.u24(40, self.remote_eecn);
        body.bits(43, 7, 3, self.remote_response_timeout);
        body.bits(43, 2, 1, service);
        body.bit(43, 0, self.flow_control);
        body.u24(44, self.starting_psn);
        body.bits(47, 7, 3, self.local_response_timeout);
        body.bits(47, 2, 0, self.retry_count);
        body.u16(48, self.pkey);
        body.bits(50, 7, 4, self.path_mtu);
        body.bit(50, 3, self.rdc_exists);
        body.bits(50, 2, 0, self.rnr_retry_count);
        body.bits(51, 7, 4, self.max_cm_retries);
        body.bit(51, 3, self.srq);
        body.bits(51, 2, 0, extended);
        self.primary.write(body, 52);
        self.alternate.write(body, 96);
        body.bytes(140, self.private_data);
    }
}

/// REP: accepts the connection that a REQ asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rep {
    /// The sender's number of the connection.
    pub local: CommId,
    /// The number in the REQ.
    pub remote: CommId,
    /// Q_Key of reliable datagrams.
    pub qkey: u32,
    /// The sender's queue pair.
    pub qpn: Qpn,
    /// EE context of reliable datagrams, or queue pair of an XRC target, 24 bits.
    pub eecn: u32,
    /// Vendor of the options in the MAD's modifier, 24 bits; 0 without options.
    pub ece_vendor: u32,
    /// PSN that the sender's queue pair expects first, 24 bits: where the receiver's begins.
    pub starting_psn: u32,
    /// READ and atomic requests that the sender's queue pair executes at a time.
    pub responder_resources: u8,
    /// READ and atomic requests that the sender's queue pair issues at a time.
    pub initiator_depth: u8,
    /// Longest delay of the sender's ACKs, as a timeout, 5 bits.
    pub target_ack_delay: u8,
    /// Acceptance of the alternate path, 2 bits; 0 is accepted.
    pub failover_accepted: u8,
    /// The sender's queue pair grants credits.
    pub flow_control: bool,
    /// Retries of the receiver's queue pair after RNR NAKs, 3 bits; 7 has no end.
    pub rnr_retry_count: u8,
    /// The sender's queue pair takes receives from a shared receive queue.
    pub srq: bool,
    /// The sender's adapter.
    pub local_ca: CaGuid,
    /// Private data.
    pub private_data: [u8; 196],
}

impl Rep {
    pub(super) fn read(body: BodyReader<'_>) -> Self {
        let [high, middle, low] = [15, 19, 23].map(|at| body.u8(at));
        Self {
            local: CommId(body.u32(0)),
            remote: CommId(body.u32(4)),
            qkey: body.u32(8),
            qpn: body.qpn(12),
            eecn: body.u24(16),
            ece_vendor: u32::from_be_bytes([0, high, middle, low]),
            starting_psn: body.u24(20),
            responder_resources: body.u8(24),
            initiator_depth: body.u8(25),
            target_ack_delay: body.bits(26, 7, 3),
            failover_accepted: body.bits(26, 2, 1),
            flow_control: body.bit(26, 0),
            rnr_retry_count: body.bits(27, 7, 5),
            srq: body.bit(27, 4),
            local_ca: CaGuid(body.u64(28)),
            private_data: body.bytes(36),
        }
    }

    pub(super) fn write(&self, body: &mut BodyWriter<'_>) {
        let [_, high, middle, low] = self.ece_vendor.to_be_bytes();
        body.u32(0, self.local.0);
        body.u32(4, self.remote.0);
        body.u32(8, self.qkey);
        body.qpn(12, self.qpn);
        body.u8(15, high);
        body.u24(16, self.eecn);
        body.u8(19, middle);
        body.u24(20, self.starting_psn);
        body.u8(23, low);
        body.u8(24, self.responder_resources);
        body.u8(25, self.initiator_depth);
        body.bits(26, 7, 3, self.target_ack_delay);
        body.bits(26, 2, 1, self.failover_accepted);
        body.bit(26, 0, self.flow_control);
        body.bits(27, 7, 5, self.rnr_retry_count);
        body.bit(27, 4, self.srq);
        body.u64(28, self.local_ca.0);
        body.bytes(36, self.private_data);
    }
}

/// RTU: the sender of the REQ has connected its queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rtu {
    /// The sender's number of the connection.
    pub local: CommId,
    /// The receiver's.
    pub remote: CommId,
    /// Private data.
    pub private_data: [u8; 224],
}

impl Rtu {
    pub(super) fn read(body: BodyReader<'_>) -> Self {
        Self { local: CommId(body.u32(0)), remote: CommId(body.u32(4)), private_data: body.bytes(8) }
    }

    pub(super) fn write(&self, body: &mut BodyWriter<'_>) {
        body.u32(0, self.local.0);
        body.u32(4, self.remote.0);
        body.bytes(8, self.private_data);
    }
}
