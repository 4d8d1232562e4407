//! Partitions: queue pairs receive from their own, for any service.

use roced_transport::{
    clock::Nanos,
    qp::ServiceType,
    reject::{DropReason, Reject},
    work::{DatagramTo, SendWork},
};
use roced_types::{QpAttributes, SendOp, Status, attribute, state};

use crate::host::{AH, OUR_QKEY, Pair, Settings, no_fault, sge, work};

/// Indices of the hosts' tables: see `host::PKEYS`.
const DEFAULT: u32 = 0;
const FULL: u32 = 1;
const LIMITED: u32 = 2;
const OTHER: u32 = 3;

/// A message each way, READ and atomic as well where the service has them; returns the messages
/// that each host accepted, and dropped for its P_Key.
fn converse(service: ServiceType, pkey_index: [u32; 2]) -> ([bool; 2], [u64; 2]) {
    let mut pair = Pair::new(Settings { service, pkey_index, timeout: 10, retry_cnt: 1, ..Settings::default() });
    for from in [0, 1] {
        let to = DatagramTo { ah: AH, qpn: pair.hosts[1 - from].qpn, qkey: OUR_QKEY };
        pair.hosts[1 - from].post_recv(7, &[sge(100_000, 5000)]);
        pair.hosts[from].post(&SendWork { to, ..work(1, SendOp::Send, &[sge(0, 900)], 0) });
        if service == ServiceType::Rc {
            pair.hosts[from].post(&work(2, SendOp::Read, &[sge(200_000, 3000)], 300_000));
            pair.hosts[from].post(&work(3, SendOp::FetchAdd, &[sge(400_000, 8)], 400_008));
        }
    }
    pair.run(Nanos::from_millis(100), no_fault);
    let took = [0, 1].map(|at| {
        let done = pair.hosts[at].take();
        let all_well = done.iter().all(|(_, status)| *status == Status::Success);
        all_well && done.iter().any(|(wr_id, _)| *wr_id == 7)
    });
    (took, [0, 1].map(|at| pair.hosts[at].drops().get(DropReason::BadPkey.name()).copied().unwrap_or_default()))
}

#[test]
fn members_of_a_partition_reach_only_each_other() {
    for service in [ServiceType::Rc, ServiceType::Uc, ServiceType::Ud] {
        for together in [[DEFAULT, DEFAULT], [FULL, FULL], [FULL, LIMITED], [LIMITED, FULL]] {
            assert_eq!(converse(service, together), ([true; 2], [0; 2]), "{service:?} {together:?}");
        }
        for apart in [[LIMITED, LIMITED], [FULL, OTHER], [DEFAULT, FULL], [OTHER, LIMITED]] {
            let (took, dropped) = converse(service, apart);
            assert_eq!(took, [false; 2], "{service:?} {apart:?}");
            assert!(dropped.iter().all(|count| *count > 0), "{service:?} {apart:?}: {dropped:?}");
        }
    }
}

#[test]
fn an_index_that_the_table_does_not_have_is_refused() {
    let mut pair = Pair::new(Settings::default());
    let host = &mut pair.hosts[0];
    let to = |state, pkey_index| QpAttributes { state, pkey_index, ..QpAttributes::default() };
    host.endpoint.modify_qp(host.qpn, attribute::STATE, &to(state::RESET, 0), None).expect("from anywhere");
    let mask = attribute::STATE | attribute::PKEY_INDEX | attribute::PORT | attribute::ACCESS_FLAGS;
    let refused = Reject::InvalidAttribute { attribute: attribute::PKEY_INDEX, value: 4 };
    assert_eq!(host.endpoint.modify_qp(host.qpn, mask, &to(state::INIT, 4), None), Err(refused));
    assert_eq!(host.state(), "RESET");
    host.endpoint.modify_qp(host.qpn, mask, &to(state::INIT, OTHER), None).expect("the last there is");
    assert_eq!(host.endpoint.query_qp(host.qpn).expect("there").pkey_index, OTHER);
}
