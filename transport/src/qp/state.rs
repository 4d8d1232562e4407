//! States of a queue pair, and which attributes each change of state demands and allows.

use roced_shared::abi::control::{QpAttributes, access, attribute, state};

use super::{retry::RETRY_MAX, service::ServiceType};
use crate::reject::Reject;

/// Where a queue pair is in its life (IBTA v1 10.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Made, or emptied: takes no work.
    Reset,
    /// Takes receive work; nothing moves.
    Init,
    /// Ready to receive.
    ReadyToReceive,
    /// Ready to send.
    ReadyToSend,
    /// A send of an unreliable service failed: sends are flushed, receives go on.
    SendQueueError,
    /// Failed: all work is flushed.
    Error,
}

impl State {
    /// The number of `abi::control::state`.
    pub const fn number(self) -> u32 {
        match self {
            Self::Reset => state::RESET,
            Self::Init => state::INIT,
            Self::ReadyToReceive => state::RTR,
            Self::ReadyToSend => state::RTS,
            Self::SendQueueError => state::SQE,
            Self::Error => state::ERR,
        }
    }

    /// The state of that number.
    pub const fn from_number(number: u32) -> Option<Self> {
        match number {
            state::RESET => Some(Self::Reset),
            state::INIT => Some(Self::Init),
            state::RTR => Some(Self::ReadyToReceive),
            state::RTS => Some(Self::ReadyToSend),
            state::SQE => Some(Self::SendQueueError),
            state::ERR => Some(Self::Error),
            _ => None,
        }
    }

    /// The short name that RDMA people use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reset => "RESET",
            Self::Init => "INIT",
            Self::ReadyToReceive => "RTR",
            Self::ReadyToSend => "RTS",
            Self::SendQueueError => "SQE",
            Self::Error => "ERR",
        }
    }
}

/// What one change of state demands and allows (IBTA v1 table 91; verbs' `ibv_modify_qp`).
#[derive(Clone, Copy)]
struct Change {
    from: State,
    to: State,
    required: u32,
    optional: u32,
}

const RC: [Change; 6] = [
    Change {
        from: State::Reset,
        to: State::Init,
        required: attribute::PKEY_INDEX | attribute::PORT | attribute::ACCESS_FLAGS,
        optional: 0,
    },
    Change {
        from: State::Init,
        to: State::Init,
        required: 0,
        optional: attribute::PKEY_INDEX | attribute::PORT | attribute::ACCESS_FLAGS,
    },
    Change {
        from: State::Init,
        to: State::ReadyToReceive,
        required: attribute::AV
            | attribute::PATH_MTU
            | attribute::DEST_QPN
            | attribute::RQ_PSN
            | attribute::MAX_DEST_RD_ATOMIC
            | attribute::MIN_RNR_TIMER,
        optional: attribute::PKEY_INDEX | attribute::ACCESS_FLAGS,
    },
    Change {
        from: State::ReadyToReceive,
        to: State::ReadyToSend,
        required: attribute::TIMEOUT
            | attribute::RETRY_CNT
            | attribute::RNR_RETRY
            | attribute::SQ_PSN
            | attribute::MAX_QP_RD_ATOMIC,
        optional: attribute::ACCESS_FLAGS | attribute::MIN_RNR_TIMER | attribute::RATE_LIMIT,
    },
    Change {
        from: State::ReadyToSend,
        to: State::ReadyToSend,
        required: 0,
        optional: attribute::ACCESS_FLAGS | attribute::MIN_RNR_TIMER | attribute::RATE_LIMIT,
    },
    Change { from: State::ReadyToReceive, to: State::ReadyToReceive, required: 0, optional: 0 },
];

/// As [`RC`] without what only acknowledgements need, and with the way back from SQE.
const UC: [Change; 7] = [
    RC[0],
    RC[1],
    Change {
        from: State::Init,
        to: State::ReadyToReceive,
        required: attribute::AV | attribute::PATH_MTU | attribute::DEST_QPN | attribute::RQ_PSN,
        optional: attribute::PKEY_INDEX | attribute::ACCESS_FLAGS,
    },
    Change {
        from: State::ReadyToReceive,
        to: State::ReadyToSend,
        required: attribute::SQ_PSN,
        optional: attribute::ACCESS_FLAGS | attribute::RATE_LIMIT,
    },
    Change {
        from: State::ReadyToSend,
        to: State::ReadyToSend,
        required: 0,
        optional: attribute::ACCESS_FLAGS | attribute::RATE_LIMIT,
    },
    Change { from: State::SendQueueError, to: State::ReadyToSend, required: 0, optional: attribute::ACCESS_FLAGS },
    RC[5],
];

const fn changes(service: ServiceType) -> &'static [Change] {
    match service {
        ServiceType::Rc => &RC,
        ServiceType::Uc => &UC,
    }
}

/// Checks a change from `from` with these attributes; gives the new state.
///
/// # Errors
/// [`Reject`]: the first thing that is wrong. Nothing may be changed then.
pub(crate) fn check_change(
    service: ServiceType,
    from: State,
    mask: u32,
    attributes: &QpAttributes,
) -> Result<State, Reject> {
    let to = if mask & attribute::STATE == 0 {
        from
    } else {
        State::from_number(attributes.state)
            .ok_or(Reject::InvalidAttribute { attribute: attribute::STATE, value: attributes.state.into() })?
    };
    let given = mask & !attribute::STATE;
    let (required, optional) = match to {
        // From anywhere, with nothing else.
        State::Reset | State::Error => (0, 0),
        _ => changes(service)
            .iter()
            .find(|change| change.from == from && change.to == to)
            .map(|change| (change.required, change.optional))
            .ok_or(Reject::InvalidState { from: from.number(), to: to.number() })?,
    };
    let (missing, excess) = (required & !given, given & !(required | optional));
    if missing | excess != 0 {
        return Err(Reject::InvalidMask { missing, excess });
    }
    check_values(given, attributes)?;
    Ok(to)
}

fn check_values(given: u32, attributes: &QpAttributes) -> Result<(), Reject> {
    let ranges = [
        (attribute::ACCESS_FLAGS, attributes.access & !access::ALL, 0),
        (attribute::PKEY_INDEX, attributes.pkey_index, 0),
        (attribute::DEST_QPN, attributes.dest_qpn, 0x00ff_ffff),
        (attribute::RQ_PSN, attributes.rq_psn, 0x00ff_ffff),
        (attribute::SQ_PSN, attributes.sq_psn, 0x00ff_ffff),
        (attribute::MIN_RNR_TIMER, attributes.min_rnr_timer, 31),
        (attribute::TIMEOUT, attributes.timeout, 31),
        (attribute::RETRY_CNT, attributes.retry_cnt, RETRY_MAX),
        (attribute::RNR_RETRY, attributes.rnr_retry, RETRY_MAX),
        (attribute::MAX_QP_RD_ATOMIC, attributes.max_rd_atomic, super::replay::DEPTH_MAX),
        (attribute::MAX_DEST_RD_ATOMIC, attributes.max_dest_rd_atomic, super::replay::DEPTH_MAX),
        (attribute::AV, attributes.flow_label, 0x000f_ffff),
        (attribute::AV, attributes.hop_limit, 255),
        (attribute::AV, attributes.traffic_class, 255),
        (attribute::AV, attributes.service_level, 7),
    ];
    for (attribute, value, most) in ranges {
        if given & attribute != 0 && value > most {
            return Err(Reject::InvalidAttribute { attribute, value: value.into() });
        }
    }
    let mtu = attributes.path_mtu_bytes;
    if given & attribute::PATH_MTU != 0 && !matches!(mtu, 256 | 512 | 1024 | 2048 | 4096) {
        return Err(Reject::InvalidAttribute { attribute: attribute::PATH_MTU, value: mtu.into() });
    }
    Ok(())
}

/// Copies the attributes that `mask` names.
pub(crate) fn apply(mask: u32, new: &QpAttributes, to: &mut QpAttributes) {
    let fields: [(u32, &mut u32, u32); 14] = [
        (attribute::ACCESS_FLAGS, &mut to.access, new.access),
        (attribute::PKEY_INDEX, &mut to.pkey_index, new.pkey_index),
        (attribute::PATH_MTU, &mut to.path_mtu_bytes, new.path_mtu_bytes),
        (attribute::DEST_QPN, &mut to.dest_qpn, new.dest_qpn),
        (attribute::RQ_PSN, &mut to.rq_psn, new.rq_psn),
        (attribute::SQ_PSN, &mut to.sq_psn, new.sq_psn),
        (attribute::MAX_QP_RD_ATOMIC, &mut to.max_rd_atomic, new.max_rd_atomic),
        (attribute::MAX_DEST_RD_ATOMIC, &mut to.max_dest_rd_atomic, new.max_dest_rd_atomic),
        (attribute::MIN_RNR_TIMER, &mut to.min_rnr_timer, new.min_rnr_timer),
        (attribute::TIMEOUT, &mut to.timeout, new.timeout),
        (attribute::RETRY_CNT, &mut to.retry_cnt, new.retry_cnt),
        (attribute::RNR_RETRY, &mut to.rnr_retry, new.rnr_retry),
        (attribute::AV, &mut to.flow_label, new.flow_label),
        (attribute::AV, &mut to.sgid_index, new.sgid_index),
    ];
    for (attribute, old, new) in fields {
        if mask & attribute != 0 {
            *old = new;
        }
    }
    if mask & attribute::AV != 0 {
        to.hop_limit = new.hop_limit;
        to.traffic_class = new.traffic_class;
        to.service_level = new.service_level;
        to.dgid = new.dgid;
    }
    if mask & attribute::RATE_LIMIT != 0 {
        to.rate_limit_bytes_per_s = new.rate_limit_bytes_per_s;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to(state: u32) -> QpAttributes {
        QpAttributes { state, path_mtu_bytes: 1024, ..QpAttributes::default() }
    }

    #[test]
    fn a_change_of_state_wants_exactly_its_attributes() {
        let full = attribute::STATE | RC[2].required;
        assert_eq!(check_change(ServiceType::Rc, State::Init, full, &to(state::RTR)), Ok(State::ReadyToReceive));
        for bit in (0..32).map(|bit| 1 << bit).filter(|bit| RC[2].required & bit != 0) {
            assert_eq!(
                check_change(ServiceType::Rc, State::Init, full & !bit, &to(state::RTR)),
                Err(Reject::InvalidMask { missing: bit, excess: 0 })
            );
        }
        assert_eq!(
            check_change(ServiceType::Rc, State::Init, full | attribute::TIMEOUT, &to(state::RTR)),
            Err(Reject::InvalidMask { missing: 0, excess: attribute::TIMEOUT })
        );
    }

    #[test]
    fn an_unreliable_connection_wants_nothing_that_only_acknowledgements_need() {
        let check = |from, mask, state| check_change(ServiceType::Uc, from, attribute::STATE | mask, &to(state));
        let to_rtr = attribute::AV | attribute::PATH_MTU | attribute::DEST_QPN | attribute::RQ_PSN;
        assert_eq!(check(State::Init, to_rtr, state::RTR), Ok(State::ReadyToReceive));
        for excess in [attribute::MIN_RNR_TIMER, attribute::MAX_DEST_RD_ATOMIC] {
            let refused = Err(Reject::InvalidMask { missing: 0, excess });
            assert_eq!(check(State::Init, to_rtr | excess, state::RTR), refused);
        }
        assert_eq!(check(State::ReadyToReceive, attribute::SQ_PSN, state::RTS), Ok(State::ReadyToSend));
        for excess in [attribute::TIMEOUT, attribute::RETRY_CNT, attribute::RNR_RETRY, attribute::MAX_QP_RD_ATOMIC] {
            let refused = Err(Reject::InvalidMask { missing: 0, excess });
            assert_eq!(check(State::ReadyToReceive, attribute::SQ_PSN | excess, state::RTS), refused);
        }
        let missing = Err(Reject::InvalidMask { missing: attribute::SQ_PSN, excess: 0 });
        assert_eq!(check(State::ReadyToReceive, 0, state::RTS), missing);
    }

    #[test]
    fn only_an_unreliable_service_comes_back_from_sqe_and_nobody_asks_for_it() {
        let check = |service, from, state| check_change(service, from, attribute::STATE, &to(state));
        assert_eq!(check(ServiceType::Uc, State::SendQueueError, state::RTS), Ok(State::ReadyToSend));
        assert!(check(ServiceType::Rc, State::SendQueueError, state::RTS).is_err());
        assert!(check(ServiceType::Uc, State::ReadyToSend, state::SQE).is_err());
        assert_eq!(check(ServiceType::Uc, State::SendQueueError, state::ERR), Ok(State::Error));
    }

    #[test]
    fn states_are_not_skipped() {
        assert!(matches!(
            check_change(ServiceType::Rc, State::Reset, attribute::STATE, &to(state::RTS)),
            Err(Reject::InvalidState { from: 0, to: 3 })
        ));
        assert!(check_change(ServiceType::Rc, State::ReadyToSend, attribute::STATE, &to(state::INIT)).is_err());
        assert!(check_change(ServiceType::Rc, State::Error, attribute::STATE, &to(state::RTS)).is_err());
        for from in [State::Reset, State::Init, State::ReadyToReceive, State::ReadyToSend, State::Error] {
            assert_eq!(check_change(ServiceType::Rc, from, attribute::STATE, &to(state::RESET)), Ok(State::Reset));
            assert_eq!(check_change(ServiceType::Rc, from, attribute::STATE, &to(state::ERR)), Ok(State::Error));
        }
    }

    #[test]
    fn values_out_of_range_are_named() {
        let mask = attribute::STATE | RC[2].required;
        let check = |attributes| check_change(ServiceType::Rc, State::Init, mask, &attributes).unwrap_err();
        let rtr = to(state::RTR);
        assert_eq!(
            check(QpAttributes { path_mtu_bytes: 1500, ..rtr }),
            Reject::InvalidAttribute { attribute: attribute::PATH_MTU, value: 1500 }
        );
        assert_eq!(
            check(QpAttributes { rq_psn: 1 << 24, ..rtr }),
            Reject::InvalidAttribute { attribute: attribute::RQ_PSN, value: 1 << 24 }
        );
        assert_eq!(
            check(QpAttributes { service_level: 8, ..rtr }),
            Reject::InvalidAttribute { attribute: attribute::AV, value: 8 }
        );
    }
}
