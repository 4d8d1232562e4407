//! RoCEv1: everything as by RoCEv2, and neither hears the other.

use roced_shared::abi::{cqe::Status, wqe::SendOp};
use roced_transport::{
    clock::Nanos,
    qp::ServiceType,
    work::{DatagramTo, SendWork},
};

use crate::host::{AH, OUR_QKEY, Pair, Settings, no_fault, sge, work};

/// What host 0's work ended with, and host 1's receive.
fn converse(service: ServiceType, ipv6: bool, rocev1: [bool; 2]) -> Vec<Status> {
    let mut pair = Pair::new(Settings { service, ipv6, rocev1, timeout: 8, retry_cnt: 1, ..Settings::default() });
    let to = DatagramTo { ah: AH, qpn: pair.hosts[1].qpn, qkey: OUR_QKEY };
    pair.hosts[1].post_recv(7, &[sge(100_000, 20_000)]);
    let length = if service == ServiceType::Ud { 1000 } else { 5001 };
    pair.hosts[0].post(&SendWork { to, ..work(1, SendOp::Send, &[sge(3, length)], 0) });
    if service == ServiceType::Rc {
        pair.hosts[0].post(&work(2, SendOp::Write, &[sge(9, 9001)], 300_000));
        pair.hosts[0].post(&work(3, SendOp::Read, &[sge(200_000, 9001)], 400_000));
        pair.hosts[0].post(&work(4, SendOp::FetchAdd, &[sge(500_000, 8)], 500_008));
    }
    pair.run(Nanos::from_millis(100), no_fault);
    let ended: Vec<Status> = [0, 1].iter().flat_map(|at| pair.hosts[*at].take()).map(|(_, status)| status).collect();
    if rocev1[0] == rocev1[1] {
        let (here, there) = (&pair.hosts[0].app.memory, &pair.hosts[1].app.memory);
        // Behind the GRH of a datagram.
        let front = if service == ServiceType::Ud { 40 } else { 0 };
        assert!(there[100_000 + front..][..length] == here[3..][..length]);
        if service == ServiceType::Rc {
            assert!(
                there[300_000..][..9001] == here[9..][..9001] && here[200_000..][..9001] == there[400_000..][..9001]
            );
        }
        if service == ServiceType::Ud && rocev1[0] {
            assert_eq!((there[100_000] >> 4, there[100_006]), (6, 0x1b), "the GRH as it came");
        }
    }
    ended
}

#[test]
fn every_service_goes_by_rocev1() {
    for ipv6 in [false, true] {
        for (service, count) in [(ServiceType::Rc, 5), (ServiceType::Uc, 2), (ServiceType::Ud, 2)] {
            assert_eq!(converse(service, ipv6, [true; 2]), vec![Status::Success; count], "{service:?}, IPv6: {ipv6}");
        }
    }
}

/// A connection is of one version. Datagrams are taken from anybody.
#[test]
fn a_connection_does_not_hear_the_other_version() {
    for rocev1 in [[false, true], [true, false]] {
        assert_eq!(converse(ServiceType::Rc, false, rocev1)[0], Status::TransportRetryExceeded);
        assert_eq!(converse(ServiceType::Uc, false, rocev1), [Status::Success], "sent, and heard by nobody");
        assert_eq!(converse(ServiceType::Ud, false, rocev1), [Status::Success; 2]);
    }
}
