//! The fixed parts of a queue pair.

use roced_types::{Cqn, Pdn, QpSizes, Qpn};

use super::service_type::ServiceType;

/// Creation parameters of a queue pair; constant for its life.
///
/// ```
/// use roced_transport::{
///     endpoint::Endpoint,
///     qp::{Qp, QpConfig, ServiceType, State},
///     reject::Reject,
/// };
/// use roced_types::{Cqn, EndpointId, Pdn, QpAttributes, QpSizes, Qpn, attribute, state};
/// # use roced_transport::{
/// #     endpoint::EndpointConfig, partition::Partitions, recovery::RecoveryConfig,
/// # };
/// # let id = EndpointId::new(0).expect("below 64");
/// # let mut endpoint = Endpoint::new(EndpointConfig {
/// #     id,
/// #     max_mrs: 0,
/// #     max_ahs: 0,
/// #     max_srqs: 0,
/// #     max_attachments: 0,
/// #     max_qps: 1,
/// #     total_window_packets: 128,
/// #     recovery: RecoveryConfig::default(),
/// #     partitions: Partitions::default(),
/// # });
///
/// let wanted =
///     QpSizes { send_wrs: 100, recv_wrs: 1, send_sges: 1, recv_sges: 1, inline_bytes: 0 };
/// let qp = Qp::new(QpConfig {
///     qpn: Qpn::new(id, 7),
///     service: ServiceType::Rc,
///     pd: Pdn(1),
///     send_cq: Cqn(1),
///     recv_cq: Cqn(1),
///     sizes: wanted.granted().expect("within the limits"),
///     signal_all: false,
///     window_packets: 128,
///     credits: true,
/// });
/// assert_eq!((qp.state(), qp.send_room()), (State::Reset, 128));
/// let qpn = qp.qpn();
/// assert!(endpoint.insert_qp(Box::new(qp)).is_ok());
///
/// // A step names its attributes by a mask; a refused one changes nothing.
/// let step = attribute::PKEY_INDEX | attribute::PORT | attribute::ACCESS_FLAGS;
/// let to_init = QpAttributes { state: state::INIT, ..QpAttributes::default() };
/// let refused = endpoint.modify_qp(qpn, attribute::STATE, &to_init, None);
/// assert_eq!(refused, Err(Reject::InvalidMask { missing: step, excess: 0 }));
/// assert_eq!(endpoint.modify_qp(qpn, attribute::STATE | step, &to_init, None), Ok(()));
///
/// // The endpoint returns it, to be freed elsewhere.
/// let qp = endpoint.remove_qp(qpn).expect("it is there");
/// assert_eq!(qp.state(), State::Init);
/// let refused = endpoint.modify_qp(qpn, attribute::STATE, &to_init, None);
/// assert_eq!(refused, Err(Reject::NoSuchQp(qpn)));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct QpConfig {
    /// Its number; the endpoint in it is that of
    /// [`insert_qp`](crate::endpoint::Endpoint::insert_qp).
    pub qpn: Qpn,
    /// Its transport service.
    pub service: ServiceType,
    /// Protection domain of the memory regions that it may name.
    pub pd: Pdn,
    /// Completion queue of sends.
    pub send_cq: Cqn,
    /// Completion queue of receives.
    pub recv_cq: Cqn,
    /// Granted sizes ([`QpSizes::granted`]); the numbers of work requests are powers of two.
    pub sizes: QpSizes,
    /// Every send adds a completion.
    pub signal_all: bool,
    /// Maximum number of packets in flight to the peer, or of READ responses requested from it: 1
    /// to 2^22, to which other values are limited. Only reliable connections have a window.
    pub window_packets: u32,
    /// End-to-end flow control (IBTA v1 9.7.7.2), for reliable connections: advertises posted
    /// receives to the peer and obeys the credits that the peer advertises.
    pub credits: bool,
}
