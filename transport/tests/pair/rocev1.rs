//! RoCEv1: everything as by RoCEv2, and neither hears the other.

use roced_captures::rocev1_frames_of;
use roced_transport::{
    clock::Nanos,
    qp::ServiceType,
    reject::Disposition,
    work::{DatagramTo, SendWork},
};
use roced_types::{SendOp, Status};

use crate::host::{AH, Host, OUR_QKEY, Pair, Settings, no_fault, sge, work};

/// Completions of host 0's work, and of host 1's receive.
fn converse(service: ServiceType, ipv6: bool, rocev1: [bool; 2]) -> Vec<Status> {
    let mut pair = Pair::new(Settings {
        service,
        ipv6,
        rocev1,
        timeout: 8,
        retry_cnt: 1,
        credits: [false; 2],
        ..Settings::default()
    });
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

/// A connection is of one version. Datagrams are accepted from any sender.
#[test]
fn a_connection_does_not_hear_the_other_version() {
    for rocev1 in [[false, true], [true, false]] {
        assert_eq!(converse(ServiceType::Rc, false, rocev1)[0], Status::TransportRetryExceeded);
        assert_eq!(converse(ServiceType::Uc, false, rocev1), [Status::Success], "sent, and received by no peer");
        assert_eq!(converse(ServiceType::Ud, false, rocev1), [Status::Success; 2]);
    }
}

/// The dialog of scapy's two hosts (`tests/captures/rocev1.py`): roced's hosts send the same byte
/// for byte for the same work: each frame that one of them would send, and each of scapy's is
/// accepted in place of it.
#[test]
fn the_frames_are_those_that_an_independent_implementation_writes() {
    let mut compared = 0;
    for (service, name) in [(ServiceType::Rc, "rc"), (ServiceType::Uc, "uc"), (ServiceType::Ud, "ud")] {
        for (ipv6, family) in [(false, "ipv4"), (true, "ipv6")] {
            let file = format!("{name}_{family}.pcap");
            let mut theirs = rocev1_frames_of(&file).into_iter();
            let mut pair = Pair::new(Settings {
                service,
                ipv6,
                rocev1: [true; 2],
                mtu: 256,
                credits: [false; 2],
                // A READ of all is one request.
                rd_atomic: 4,
                ..Settings::default()
            });
            let to = DatagramTo { ah: AH, qpn: pair.hosts[1].qpn, qkey: OUR_QKEY };
            for asked in asked_for(service) {
                pair.hosts[1].post_recv(7, &[sge(100_000, 20_000)]);
                pair.hosts[0].post(&SendWork {
                    to,
                    swap_or_add: asked.operands[0],
                    compare: asked.operands[1],
                    ..work(1, asked.op, &[sge(asked.from, asked.length)], asked.remote)
                });
                for from in [0, 1] {
                    for ours in emitted(&mut pair.hosts[from], pair.now) {
                        let theirs = theirs.next().unwrap_or_else(|| panic!("{file}: {asked:?} makes more frames"));
                        assert!(
                            ours == theirs.bytes,
                            "{file} {}: {asked:?}\n{ours:02x?}\n{:02x?}",
                            theirs.index,
                            theirs.bytes
                        );
                        assert_eq!(
                            pair.deliver(1 - from, &theirs.bytes),
                            Disposition::Accepted,
                            "{file} {}",
                            theirs.index
                        );
                        compared += 1;
                    }
                }
                let statuses: Vec<_> = pair.hosts.iter_mut().flat_map(Host::take).map(|(_, status)| status).collect();
                assert!(
                    statuses.iter().all(|status| *status == Status::Success) && !statuses.is_empty(),
                    "{file}: {asked:?}"
                );
            }
            assert_eq!(theirs.next(), None, "{file}: they say more");
        }
    }
    assert_eq!(compared, 190);
}

/// The frames that a host has to send.
fn emitted(host: &mut Host, now: Nanos) -> Vec<Vec<u8>> {
    host.endpoint.poll_transmit(now, 64, &mut host.app, &mut host.nic);
    host.nic.frames.drain(..).collect()
}

/// A line of `conversation` in `rocev1.py`.
#[derive(Debug)]
struct Asked {
    op: SendOp,
    from: u64,
    length: usize,
    remote: u64,
    operands: [u64; 2],
}

fn asked_for(service: ServiceType) -> Vec<Asked> {
    let one = |op, from, length, remote| Asked { op, from, length, remote, operands: [0; 2] };
    let send = |length| one(SendOp::Send, 16, length, 0);
    if service == ServiceType::Ud {
        let mut asked: Vec<_> = [0, 1, 100, 256].map(send).into();
        asked.push(one(SendOp::SendImm, 16, 61, 0));
        return asked;
    }
    let mut asked: Vec<_> = [600, 0, 1, 62, 63, 64, 256, 257].map(send).into();
    asked.extend([61, 512].map(|length| one(SendOp::SendImm, 16, length, 0)));
    asked.push(one(SendOp::Write, 32, 2000, 0x40000));
    asked.push(one(SendOp::Write, 32, 10, 0x40001));
    asked.push(one(SendOp::WriteImm, 32, 10, 0x40002));
    asked.push(one(SendOp::WriteImm, 32, 300, 0x40003));
    if service == ServiceType::Rc {
        // Where nothing else lies.
        asked.extend([600, 0, 1, 256, 2049].map(|length| one(SendOp::Read, 0x80000, length, 0x60000)));
        asked.push(Asked { operands: [7, 0], ..one(SendOp::FetchAdd, 0x90000, 8, 0x70000) });
        asked.push(Asked { operands: [0x1122_3344_5566_7788, 99], ..one(SendOp::CompareSwap, 0x90000, 8, 0x70008) });
    }
    asked
}
