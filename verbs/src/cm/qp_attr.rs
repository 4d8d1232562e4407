//! Attributes of a queue pair for the connection of an identifier (INIT_QP_ATTR).

use roced_client::{
    cm::{CmIdentifier, CmNegotiation, CmPath, cm_service},
    mtu_code,
};

use super::{
    body::{AnswerRoom, Body, read},
    table::{DeviceChannel, errno_of},
};
use crate::{
    abi::{
        kernel::{KernelAhAttr, KernelQpAttr, KernelRoute},
        rdma_cm::UcmInitQpAttr,
    },
    errno::{Errno, Result},
    query::PORT,
};

/// States that a program asks for (`enum ibv_qp_state`).
const INIT: u32 = 1;
const RTR: u32 = 2;
const RTS: u32 = 3;

/// Bits of `ibv_qp_attr_mask`.
mod mask {
    pub(super) const STATE: u32 = 1 << 0;
    pub(super) const ACCESS_FLAGS: u32 = 1 << 3;
    pub(super) const PKEY_INDEX: u32 = 1 << 4;
    pub(super) const PORT: u32 = 1 << 5;
    pub(super) const QKEY: u32 = 1 << 6;
    pub(super) const AV: u32 = 1 << 7;
    pub(super) const PATH_MTU: u32 = 1 << 8;
    pub(super) const TIMEOUT: u32 = 1 << 9;
    pub(super) const RETRY_CNT: u32 = 1 << 10;
    pub(super) const RNR_RETRY: u32 = 1 << 11;
    pub(super) const RQ_PSN: u32 = 1 << 12;
    pub(super) const MAX_QP_RD_ATOMIC: u32 = 1 << 13;
    pub(super) const MIN_RNR_TIMER: u32 = 1 << 15;
    pub(super) const SQ_PSN: u32 = 1 << 16;
    pub(super) const MAX_DEST_RD_ATOMIC: u32 = 1 << 17;
    pub(super) const DEST_QPN: u32 = 1 << 20;
}

/// Bits of `ibv_access_flags`.
const REMOTE_WRITE: u32 = 1 << 1;
const REMOTE_READ: u32 = 1 << 2;
const REMOTE_ATOMIC: u32 = 1 << 3;

/// Q_Key of datagrams of the connection manager (`RDMA_UDP_QKEY`).
pub(super) const DATAGRAM_QKEY: u32 = 0x0123_4567;

/// Wait that a peer is asked for when no receive is posted: 0.64 ms, the code that programs which
/// connect their queue pairs by hand use. Linux has 0 here, which means 655 ms.
const MIN_RNR_TIMER: u8 = 12;

/// Most retries of a queue pair.
const RETRIES_MAX: u8 = 7;

pub(super) fn init(channel: &DeviceChannel, body: &Body<'_>) -> Result<()> {
    let command: UcmInitQpAttr = read(body.bytes, size_of::<UcmInitQpAttr>())?;
    let room = AnswerRoom::new(command.response, body.out, size_of::<KernelQpAttr>())?;
    let identifier = channel.channel.identifier(command.id).map_err(errno_of)?;
    room.write(&attributes(&identifier, command.qp_state)?);
    Ok(())
}

fn attributes(identifier: &CmIdentifier, state: u32) -> Result<KernelQpAttr> {
    if !identifier.has_device() || !(INIT..=RTS).contains(&state) {
        return Err(Errno::INVALID);
    }
    let mut attributes = empty(state);
    let is_connected = identifier.own.is_some() || identifier.connection.is_some();
    if identifier.is_datagram() || !is_connected {
        init_unconnected(&mut attributes, identifier.is_datagram());
        return Ok(attributes);
    }
    match (state, &identifier.connection) {
        (INIT, _) => init_connected(&mut attributes, identifier),
        (RTR, Some(connection)) => ready_to_receive(&mut attributes, identifier, connection),
        (RTS, Some(connection)) => ready_to_send(&mut attributes, identifier, connection),
        _ => return Err(Errno::INVALID),
    }
    Ok(attributes)
}

fn init_unconnected(to: &mut KernelQpAttr, is_datagram: bool) {
    to.qp_attr_mask |= mask::PKEY_INDEX | mask::PORT;
    if is_datagram {
        to.qp_attr_mask |= mask::QKEY;
        to.qkey = DATAGRAM_QKEY;
    } else {
        to.qp_attr_mask |= mask::ACCESS_FLAGS;
    }
}

fn init_connected(to: &mut KernelQpAttr, identifier: &CmIdentifier) {
    to.qp_attr_mask |= mask::ACCESS_FLAGS | mask::PKEY_INDEX | mask::PORT;
    to.qp_access_flags = REMOTE_WRITE;
    if depths(identifier).responder_resources > 0 {
        to.qp_access_flags |= REMOTE_READ | REMOTE_ATOMIC;
    }
}

fn ready_to_receive(to: &mut KernelQpAttr, identifier: &CmIdentifier, connection: &CmNegotiation) {
    let path = &identifier.route.path;
    to.qp_attr_mask |= mask::AV | mask::PATH_MTU | mask::DEST_QPN | mask::RQ_PSN;
    to.ah_attr = ah_attr(path, path.remote_gid);
    to.path_mtu = mtu_code(path.mtu_bytes).into();
    to.dest_qp_num = connection.parameters.qpn;
    to.rq_psn = connection.starting_psn;
    if identifier.service == cm_service::RC {
        to.qp_attr_mask |= mask::MAX_DEST_RD_ATOMIC | mask::MIN_RNR_TIMER;
        to.max_dest_rd_atomic = depths(identifier).responder_resources;
        to.min_rnr_timer = MIN_RNR_TIMER;
    }
}

fn ready_to_send(to: &mut KernelQpAttr, identifier: &CmIdentifier, connection: &CmNegotiation) {
    to.qp_attr_mask |= mask::SQ_PSN;
    to.sq_psn = connection.remote_starting_psn;
    if identifier.service == cm_service::RC {
        to.qp_attr_mask |= mask::RETRY_CNT | mask::RNR_RETRY | mask::MAX_QP_RD_ATOMIC | mask::TIMEOUT;
        // A response has no count of retries: it is that of the call that connected.
        let own = identifier.own.filter(|_| !connection.is_passive);
        to.retry_cnt = own.unwrap_or(connection.parameters).retry_count.min(RETRIES_MAX);
        to.rnr_retry = connection.parameters.rnr_retry_count.min(RETRIES_MAX);
        to.max_rd_atomic = depths(identifier).initiator_depth;
        to.timeout = identifier.ack_timeout.unwrap_or(connection.ack_timeout.min(31) as u8);
    }
}

/// READ and atomic requests of a queue pair.
struct Depths {
    responder_resources: u8,
    initiator_depth: u8,
}

/// The depths of the connection: those of the peer's message, which a call that accepts replaces;
/// before any message of the peer, those of the call that connected.
fn depths(identifier: &CmIdentifier) -> Depths {
    let of_peer = identifier.connection.as_ref();
    let parameters = match (of_peer, &identifier.own) {
        (Some(connection), Some(own)) if connection.is_passive => own,
        (Some(connection), _) => &connection.parameters,
        (None, Some(own)) => own,
        (None, None) => return Depths { responder_resources: 0, initiator_depth: 0 },
    };
    Depths { responder_resources: parameters.responder_resources, initiator_depth: parameters.initiator_depth }
}

/// Address of a peer, or of a group.
pub(super) fn ah_attr(path: &CmPath, dgid: [u8; 16]) -> KernelAhAttr {
    let grh = KernelRoute {
        dgid,
        flow_label: path.flow_label,
        sgid_index: path.gid_index as u8,
        hop_limit: path.hop_limit,
        traffic_class: path.traffic_class,
        reserved: 0,
    };
    KernelAhAttr {
        grh,
        dlid: 0,
        sl: path.service_level,
        src_path_bits: 0,
        // That of the peer's link, which it has told, is no limit here.
        static_rate: 0,
        is_global: 1,
        port_num: PORT,
        reserved: 0,
    }
}

fn no_ah_attr() -> KernelAhAttr {
    KernelAhAttr { is_global: 0, port_num: 0, ..ah_attr(&CmPath::default(), [0; 16]) }
}

fn empty(state: u32) -> KernelQpAttr {
    KernelQpAttr {
        qp_attr_mask: mask::STATE,
        qp_state: state,
        cur_qp_state: 0,
        path_mtu: 0,
        path_mig_state: 0,
        qkey: 0,
        rq_psn: 0,
        sq_psn: 0,
        dest_qp_num: 0,
        qp_access_flags: 0,
        ah_attr: no_ah_attr(),
        alt_ah_attr: no_ah_attr(),
        max_send_wr: 0,
        max_recv_wr: 0,
        max_send_sge: 0,
        max_recv_sge: 0,
        max_inline_data: 0,
        pkey_index: 0,
        alt_pkey_index: 0,
        en_sqd_async_notify: 0,
        sq_draining: 0,
        max_rd_atomic: 0,
        max_dest_rd_atomic: 0,
        min_rnr_timer: 0,
        port_num: PORT,
        timeout: 0,
        retry_cnt: 0,
        rnr_retry: 0,
        alt_port_num: 0,
        alt_timeout: 0,
        reserved: [0; 5],
    }
}
