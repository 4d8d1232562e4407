//! Queue pairs of connections.

use roced_types::{QpAttributes, attribute, state};

use super::{CmIdentifier, CmParameters, CmRoute};
use crate::{
    connection_options::ConnectionOptions,
    error::{Error, Result},
    qp::QueuePair,
};

/// Code of the time that a peer is asked to wait while no receive is posted: 0.64 ms.
const MIN_RNR_TIMER: u32 = 12;

impl ConnectionOptions<'_> {
    /// Properties of this end, for the calls that connect and accept.
    pub fn parameters(&self, qp: &QueuePair) -> CmParameters {
        CmParameters {
            qpn: qp.qpn(),
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            retry_count: self.retry_count,
            rnr_retry_count: self.rnr_retry_count,
            srq: qp.srq().is_some().into(),
            ..CmParameters::default()
        }
    }
}

impl CmIdentifier {
    /// Moves a queue pair in RESET or INIT to RTS, by the numbers of the connection.
    ///
    /// # Errors
    /// There is no request or answer of a peer yet; those of [`QueuePair::modify`].
    pub fn connect_qp(&self, qp: &QueuePair, options: &ConnectionOptions<'_>) -> Result<()> {
        let Some(connection) = self.connection else { return Err(Error::DaemonGone) };
        let CmRoute { path, .. } = self.route;
        if qp.known_state() == state::RESET {
            qp.to_init(options.access)?;
        }
        let depths = if connection.is_passive {
            (options.responder_resources, options.initiator_depth)
        } else {
            (connection.parameters.responder_resources, connection.parameters.initiator_depth)
        };
        let to_rtr = attribute::STATE
            | attribute::AV
            | attribute::PATH_MTU
            | attribute::DEST_QPN
            | attribute::RQ_PSN
            | attribute::MAX_DEST_RD_ATOMIC
            | attribute::MIN_RNR_TIMER;
        let attributes = QpAttributes {
            state: state::RTR,
            path_mtu_bytes: path.mtu_bytes,
            dest_qpn: connection.parameters.qpn,
            rq_psn: connection.starting_psn,
            max_dest_rd_atomic: depths.0.into(),
            min_rnr_timer: MIN_RNR_TIMER,
            sgid_index: path.gid_index,
            dgid: path.remote_gid,
            hop_limit: path.hop_limit.into(),
            traffic_class: path.traffic_class.into(),
            flow_label: path.flow_label,
            service_level: path.service_level.into(),
            ..QpAttributes::default()
        };
        qp.modify(to_rtr, &attributes)?;
        let to_rts = attribute::STATE
            | attribute::SQ_PSN
            | attribute::TIMEOUT
            | attribute::RETRY_CNT
            | attribute::RNR_RETRY
            | attribute::MAX_QP_RD_ATOMIC;
        let retry_count = if connection.is_passive { connection.parameters.retry_count } else { options.retry_count };
        let attributes = QpAttributes {
            state: state::RTS,
            sq_psn: connection.remote_starting_psn,
            max_rd_atomic: depths.1.into(),
            timeout: connection.ack_timeout.min(31),
            retry_cnt: retry_count.min(7).into(),
            rnr_retry: connection.parameters.rnr_retry_count.min(7).into(),
            ..QpAttributes::default()
        };
        qp.modify(to_rts, &attributes)
    }
}
