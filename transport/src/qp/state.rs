//! States of a queue pair, and the attributes that each transition requires and allows.

use roced_types::{QpAttributes, access, attribute, state};

use super::{retry::RETRY_MAX, service_type::ServiceType};
use crate::reject::Reject;

/// State of a queue pair (IBTA v1 10.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Created or reset: accepts no work.
    Reset,
    /// Accepts receive work; processes no packets.
    Init,
    /// Ready to receive.
    ReadyToReceive,
    /// Ready to send.
    ReadyToSend,
    /// Requests that were begun continue to their end, no others begin; receiving continues.
    SendQueueDrain,
    /// A send of an unreliable service failed: sends are flushed, receiving continues.
    SendQueueError,
    /// Failed: all work is flushed.
    Error,
}

impl State {
    /// Number in `roced_types::state`.
    pub const fn number(self) -> u32 {
        match self {
            Self::Reset => state::RESET,
            Self::Init => state::INIT,
            Self::ReadyToReceive => state::RTR,
            Self::ReadyToSend => state::RTS,
            Self::SendQueueDrain => state::SQD,
            Self::SendQueueError => state::SQE,
            Self::Error => state::ERR,
        }
    }

    /// State with this number.
    pub const fn from_number(number: u32) -> Option<Self> {
        match number {
            state::RESET => Some(Self::Reset),
            state::INIT => Some(Self::Init),
            state::RTR => Some(Self::ReadyToReceive),
            state::RTS => Some(Self::ReadyToSend),
            state::SQD => Some(Self::SendQueueDrain),
            state::SQE => Some(Self::SendQueueError),
            state::ERR => Some(Self::Error),
            _ => None,
        }
    }

    /// Short name that is usual for RDMA.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reset => "RESET",
            Self::Init => "INIT",
            Self::ReadyToReceive => "RTR",
            Self::ReadyToSend => "RTS",
            Self::SendQueueDrain => "SQD",
            Self::SendQueueError => "SQE",
            Self::Error => "ERR",
        }
    }

    /// Sends requests that were begun, and accepts their answers.
    pub(crate) const fn sends(self) -> bool {
        matches!(self, Self::ReadyToSend | Self::SendQueueDrain)
    }

    /// Accepts the peer's requests.
    pub(crate) const fn receives(self) -> bool {
        matches!(self, Self::ReadyToReceive | Self::ReadyToSend | Self::SendQueueDrain | Self::SendQueueError)
    }
}

/// Attributes that one transition requires and allows (IBTA v1 table 91; verbs' `ibv_modify_qp`).
/// Alternate paths (APM) are unsupported; no transition accepts their attributes.
#[derive(Clone, Copy)]
struct Transition {
    from: State,
    to: State,
    required: u32,
    optional: u32,
}

/// Transitions of a reliable connection. RESET and ERR can be entered from any state, with no
/// attributes.
const RC: [Transition; 8] = [
    Transition {
        from: State::Reset,
        to: State::Init,
        required: attribute::PKEY_INDEX | attribute::PORT | attribute::ACCESS_FLAGS,
        optional: 0,
    },
    Transition {
        from: State::Init,
        to: State::Init,
        required: 0,
        optional: attribute::PKEY_INDEX | attribute::PORT | attribute::ACCESS_FLAGS,
    },
    Transition {
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
    Transition {
        from: State::ReadyToReceive,
        to: State::ReadyToSend,
        required: attribute::TIMEOUT
            | attribute::RETRY_CNT
            | attribute::RNR_RETRY
            | attribute::SQ_PSN
            | attribute::MAX_QP_RD_ATOMIC,
        optional: attribute::CURRENT_STATE | attribute::ACCESS_FLAGS | attribute::MIN_RNR_TIMER | attribute::RATE_LIMIT,
    },
    Transition {
        from: State::ReadyToSend,
        to: State::ReadyToSend,
        required: 0,
        optional: attribute::CURRENT_STATE | attribute::ACCESS_FLAGS | attribute::MIN_RNR_TIMER | attribute::RATE_LIMIT,
    },
    Transition {
        from: State::ReadyToSend,
        to: State::SendQueueDrain,
        required: 0,
        optional: attribute::SQ_DRAINED_EVENT,
    },
    Transition {
        from: State::SendQueueDrain,
        to: State::ReadyToSend,
        required: 0,
        optional: attribute::CURRENT_STATE | attribute::ACCESS_FLAGS | attribute::MIN_RNR_TIMER | attribute::RATE_LIMIT,
    },
    Transition {
        from: State::SendQueueDrain,
        to: State::SendQueueDrain,
        required: 0,
        optional: attribute::PKEY_INDEX
            | attribute::PORT
            | attribute::ACCESS_FLAGS
            | attribute::AV
            | attribute::TIMEOUT
            | attribute::RETRY_CNT
            | attribute::RNR_RETRY
            | attribute::MAX_QP_RD_ATOMIC
            | attribute::MAX_DEST_RD_ATOMIC
            | attribute::MIN_RNR_TIMER
            | attribute::RATE_LIMIT,
    },
];

/// Transitions of an unreliable connection: as [`RC`] without the attributes that only
/// acknowledgments need, and with the transition from SQE back to RTS.
const UC: [Transition; 9] = [
    RC[0],
    RC[1],
    Transition {
        from: State::Init,
        to: State::ReadyToReceive,
        required: attribute::AV | attribute::PATH_MTU | attribute::DEST_QPN | attribute::RQ_PSN,
        optional: attribute::PKEY_INDEX | attribute::ACCESS_FLAGS,
    },
    Transition {
        from: State::ReadyToReceive,
        to: State::ReadyToSend,
        required: attribute::SQ_PSN,
        optional: attribute::CURRENT_STATE | attribute::ACCESS_FLAGS | attribute::RATE_LIMIT,
    },
    Transition {
        from: State::ReadyToSend,
        to: State::ReadyToSend,
        required: 0,
        optional: attribute::CURRENT_STATE | attribute::ACCESS_FLAGS | attribute::RATE_LIMIT,
    },
    RC[5],
    Transition {
        from: State::SendQueueDrain,
        to: State::ReadyToSend,
        required: 0,
        optional: attribute::CURRENT_STATE | attribute::ACCESS_FLAGS | attribute::RATE_LIMIT,
    },
    Transition {
        from: State::SendQueueDrain,
        to: State::SendQueueDrain,
        required: 0,
        optional: attribute::PKEY_INDEX
            | attribute::PORT
            | attribute::ACCESS_FLAGS
            | attribute::AV
            | attribute::RATE_LIMIT,
    },
    Transition {
        from: State::SendQueueError,
        to: State::ReadyToSend,
        required: 0,
        optional: attribute::CURRENT_STATE | attribute::ACCESS_FLAGS,
    },
];

/// Transitions of datagrams, which have no fixed peer.
const UD: [Transition; 9] = [
    Transition {
        from: State::Reset,
        to: State::Init,
        required: attribute::PKEY_INDEX | attribute::PORT | attribute::QKEY,
        optional: 0,
    },
    Transition {
        from: State::Init,
        to: State::Init,
        required: 0,
        optional: attribute::PKEY_INDEX | attribute::PORT | attribute::QKEY,
    },
    Transition {
        from: State::Init,
        to: State::ReadyToReceive,
        required: 0,
        optional: attribute::PKEY_INDEX | attribute::QKEY,
    },
    Transition {
        from: State::ReadyToReceive,
        to: State::ReadyToSend,
        required: attribute::SQ_PSN,
        optional: attribute::CURRENT_STATE | attribute::QKEY | attribute::RATE_LIMIT,
    },
    Transition {
        from: State::ReadyToSend,
        to: State::ReadyToSend,
        required: 0,
        optional: attribute::CURRENT_STATE | attribute::QKEY | attribute::RATE_LIMIT,
    },
    RC[5],
    Transition {
        from: State::SendQueueDrain,
        to: State::ReadyToSend,
        required: 0,
        optional: attribute::CURRENT_STATE | attribute::QKEY | attribute::RATE_LIMIT,
    },
    Transition {
        from: State::SendQueueDrain,
        to: State::SendQueueDrain,
        required: 0,
        optional: attribute::PKEY_INDEX | attribute::QKEY | attribute::RATE_LIMIT,
    },
    Transition {
        from: State::SendQueueError,
        to: State::ReadyToSend,
        required: 0,
        optional: attribute::CURRENT_STATE | attribute::QKEY,
    },
];

const fn changes(service: ServiceType) -> &'static [Transition] {
    match service {
        ServiceType::Rc => &RC,
        ServiceType::Uc => &UC,
        ServiceType::Ud => &UD,
    }
}

/// Checks a transition from `from` with these attributes; returns the new state.
///
/// # Errors
/// [`Reject`] for the first violation. The caller must change nothing.
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
        // From any state, with no other attribute.
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
    if given & attribute::CURRENT_STATE != 0 && attributes.current_state != from.number() {
        let value = attributes.current_state.into();
        return Err(Reject::InvalidAttribute { attribute: attribute::CURRENT_STATE, value });
    }
    check_values(given, attributes)?;
    Ok(to)
}

fn check_values(given: u32, attributes: &QpAttributes) -> Result<(), Reject> {
    let ranges = [
        (attribute::SQ_DRAINED_EVENT, attributes.sq_drained_event, 1),
        (attribute::ACCESS_FLAGS, attributes.access & !access::ALL, 0),
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

/// Copies the attributes named by `mask`.
pub(crate) fn apply(mask: u32, new: &QpAttributes, to: &mut QpAttributes) {
    let fields: [(u32, &mut u32, u32); 15] = [
        (attribute::QKEY, &mut to.qkey, new.qkey),
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
        to.static_rate_kbit_per_s = new.static_rate_kbit_per_s;
    }
    if mask & attribute::RATE_LIMIT != 0 {
        to.rate_limit_kbit_per_s = new.rate_limit_kbit_per_s;
        to.rate_limit_burst_bytes = new.rate_limit_burst_bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::{
        ServiceType::{Rc, Uc, Ud},
        *,
    };

    const ALL: [State; 7] = [
        State::Reset,
        State::Init,
        State::ReadyToReceive,
        State::ReadyToSend,
        State::SendQueueDrain,
        State::SendQueueError,
        State::Error,
    ];

    fn to(state: u32) -> QpAttributes {
        QpAttributes { state, path_mtu_bytes: 1024, ..QpAttributes::default() }
    }

    /// Compares the printed table of the specification with every pair of states and every
    /// attribute by itself.
    #[test]
    fn every_change_wants_exactly_the_attributes_of_the_specification() {
        const NAMES: [(&str, u32); 20] = [
            ("cur", attribute::CURRENT_STATE),
            ("sqd_event", attribute::SQ_DRAINED_EVENT),
            ("access", attribute::ACCESS_FLAGS),
            ("pkey", attribute::PKEY_INDEX),
            ("port", attribute::PORT),
            ("qkey", attribute::QKEY),
            ("av", attribute::AV),
            ("mtu", attribute::PATH_MTU),
            ("timeout", attribute::TIMEOUT),
            ("retry", attribute::RETRY_CNT),
            ("rnr_retry", attribute::RNR_RETRY),
            ("rq_psn", attribute::RQ_PSN),
            ("rd", attribute::MAX_QP_RD_ATOMIC),
            ("alt_path", 1 << 14),
            ("rnr_timer", attribute::MIN_RNR_TIMER),
            ("sq_psn", attribute::SQ_PSN),
            ("dest_rd", attribute::MAX_DEST_RD_ATOMIC),
            ("path_mig", 1 << 18),
            ("dest", attribute::DEST_QPN),
            ("rate", attribute::RATE_LIMIT),
        ];
        const TABLE: [(&[ServiceType], &str, &str, &str, &str); 22] = [
            (&[Rc, Uc], "RESET", "INIT", "pkey port access", ""),
            (&[Rc, Uc], "INIT", "INIT", "", "pkey port access"),
            (&[Rc], "INIT", "RTR", "av mtu dest rq_psn dest_rd rnr_timer", "pkey access"),
            (&[Uc], "INIT", "RTR", "av mtu dest rq_psn", "pkey access"),
            (&[Rc], "RTR", "RTS", "timeout retry rnr_retry sq_psn rd", "cur access rnr_timer rate"),
            (&[Uc], "RTR", "RTS", "sq_psn", "cur access rate"),
            (&[Rc], "RTS", "RTS", "", "cur access rnr_timer rate"),
            (&[Uc], "RTS", "RTS", "", "cur access rate"),
            (&[Ud], "RESET", "INIT", "pkey port qkey", ""),
            (&[Ud], "INIT", "INIT", "", "pkey port qkey"),
            (&[Ud], "INIT", "RTR", "", "pkey qkey"),
            (&[Ud], "RTR", "RTS", "sq_psn", "cur qkey rate"),
            (&[Ud], "RTS", "RTS", "", "cur qkey rate"),
            (&[Ud], "SQD", "RTS", "", "cur qkey rate"),
            (&[Ud], "SQD", "SQD", "", "pkey qkey rate"),
            (&[Ud], "SQE", "RTS", "", "cur qkey"),
            (&[Rc, Uc, Ud], "RTS", "SQD", "", "sqd_event"),
            (&[Rc], "SQD", "RTS", "", "cur access rnr_timer rate"),
            (&[Uc], "SQD", "RTS", "", "cur access rate"),
            (&[Rc], "SQD", "SQD", "", "pkey port access av timeout retry rnr_retry rd dest_rd rnr_timer rate"),
            (&[Uc], "SQD", "SQD", "", "pkey port access av rate"),
            (&[Uc], "SQE", "RTS", "", "cur access"),
        ];
        let bits = |names: &str| -> u32 {
            let bit = |name| NAMES.iter().find(|known| known.0 == name).expect("a name of the list").1;
            names.split_whitespace().map(bit).sum()
        };
        let changes = ALL.into_iter().flat_map(|from| ALL.map(|to| (from, to)));
        for (service, (from, to)) in changes.flat_map(|change| [Rc, Uc, Ud].map(|service| (service, change))) {
            let row = TABLE.iter().find(|row| row.0.contains(&service) && (row.1, row.2) == (from.name(), to.name()));
            let anywhere = matches!(to, State::Reset | State::Error);
            let attributes = QpAttributes { current_state: from.number(), ..self::to(to.number()) };
            let check = |mask| check_change(service, from, attribute::STATE | mask, &attributes);
            if row.is_none() && !anywhere {
                let refused = Reject::InvalidState { from: from.number(), to: to.number() };
                assert_eq!(check(0), Err(refused), "{service:?} {from:?} {to:?}");
                continue;
            }
            let (required, optional) = row.map_or((0, 0), |row| (bits(row.3), bits(row.4)));
            assert_eq!(check(required), Ok(to));
            assert_eq!(check(required | optional), Ok(to));
            for (name, bit) in NAMES {
                let expected = if required & bit != 0 {
                    Err(Reject::InvalidMask { missing: bit, excess: 0 })
                } else if optional & bit == 0 {
                    Err(Reject::InvalidMask { missing: 0, excess: bit })
                } else {
                    Ok(to)
                };
                assert_eq!(check(required ^ bit), expected, "{service:?} {from:?} {to:?} {name}");
            }
        }
    }

    #[test]
    fn a_client_that_is_mistaken_about_the_state_is_told() {
        let mask = attribute::CURRENT_STATE;
        let sure = |current_state| QpAttributes { current_state, ..QpAttributes::default() };
        assert_eq!(check_change(Rc, State::ReadyToSend, mask, &sure(state::RTS)), Ok(State::ReadyToSend));
        let refused = Reject::InvalidAttribute { attribute: mask, value: state::SQD.into() };
        assert_eq!(check_change(Rc, State::ReadyToSend, mask, &sure(state::SQD)), Err(refused));
    }

    #[test]
    fn only_unreliable_services_leave_sqe_and_no_transition_enters_it() {
        let check = |service, from, state| check_change(service, from, attribute::STATE, &to(state));
        assert_eq!(check(Uc, State::SendQueueError, state::RTS), Ok(State::ReadyToSend));
        assert!(check(Rc, State::SendQueueError, state::RTS).is_err());
        assert!(check(Uc, State::ReadyToSend, state::SQE).is_err());
        assert_eq!(check(Uc, State::SendQueueError, state::ERR), Ok(State::Error));
    }

    #[test]
    fn states_are_not_skipped() {
        assert!(matches!(
            check_change(Rc, State::Reset, attribute::STATE, &to(state::RTS)),
            Err(Reject::InvalidState { from: 0, to: 3 })
        ));
        assert!(check_change(Rc, State::ReadyToSend, attribute::STATE, &to(state::INIT)).is_err());
        assert!(check_change(Rc, State::Error, attribute::STATE, &to(state::RTS)).is_err());
        for from in ALL {
            assert_eq!(check_change(Rc, from, attribute::STATE, &to(state::RESET)), Ok(State::Reset));
            assert_eq!(check_change(Rc, from, attribute::STATE, &to(state::ERR)), Ok(State::Error));
        }
    }

    #[test]
    fn values_out_of_range_are_named() {
        let mask = attribute::STATE | RC[2].required;
        let check = |attributes| check_change(Rc, State::Init, mask, &attributes).unwrap_err();
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
