//! Rates that a program sets: of a queue pair, of its path, and of an address handle.

use roced_transport::{ah::AhEntry, clock::Nanos, qp::PathState, qp::ServiceType, work::DatagramTo, work::SendWork};
use roced_types::{QpAttributes, SendOp, Status, attribute, state};

use crate::host::{AH, OUR_QKEY, PD, Pair, Settings, sge, work};

/// 1 MB/s, in kbit/s: a microsecond for each byte.
const MEGABYTE: u32 = 8000;

/// Bytes that Ethernet, IPv4, UDP and the ICRC add to each of these frames, for pacing.
const OVERHEAD: u64 = 46;

fn limit(pair: &mut Pair, kbit_per_s: u32, burst_bytes: u32) {
    let host = &mut pair.hosts[0];
    let limit = QpAttributes {
        rate_limit_kbit_per_s: kbit_per_s,
        rate_limit_burst_bytes: burst_bytes,
        ..QpAttributes::default()
    };
    host.endpoint.modify_qp(host.qpn, attribute::RATE_LIMIT, &limit, None).expect("allowed in RTS");
}

/// Time in which `count` messages of `bytes` are complete, microseconds.
fn time_of(pair: &mut Pair, op: SendOp, count: u64, bytes: usize) -> u64 {
    let begin = pair.now;
    for wr_id in 0..count {
        pair.hosts[0].post(&work(wr_id, op, &[sge(0, bytes)], 500_000));
    }
    pair.settle();
    let last = pair.hosts[0].app.completions.last().expect("all are complete").time;
    let expected: Vec<_> = (0..count).map(|wr_id| (wr_id, Status::Success)).collect();
    assert_eq!(pair.hosts[0].take(), expected);
    (last.0 - begin.0) / 1000
}

fn is_near(time_us: u64, expected_us: u64) -> bool {
    (expected_us * 97 / 100..expected_us * 106 / 100 + 500).contains(&time_us)
}

#[test]
fn messages_of_any_size_count_with_their_bytes() {
    for op in [SendOp::Write, SendOp::Read] {
        for bytes in [64_usize, 700, 1024, 1500] {
            let mut pair = Pair::new(Settings { mtu: 1024, ..Settings::default() });
            limit(&mut pair, MEGABYTE, 0);
            let frames = bytes.div_ceil(1024) as u64;
            let time = time_of(&mut pair, op, 60, bytes);
            let expected = 60 * (bytes as u64 + frames * OVERHEAD);
            assert!(is_near(time, expected), "{op:?} of {bytes}: {time} us, {expected} expected");
        }
    }
}

#[test]
fn a_burst_leaves_at_once_after_a_pause() {
    for (burst, at_once) in [(0, 0), (50_000, 50_000)] {
        let mut pair = Pair::new(Settings { mtu: 1024, ..Settings::default() });
        limit(&mut pair, MEGABYTE, burst);
        pair.now = pair.now + Nanos::from_millis(200);
        let time = time_of(&mut pair, SendOp::Write, 1, 100 * 1024);
        let expected = 100 * (1024 + OVERHEAD) - at_once;
        assert!(is_near(time, expected), "{burst}: {time} us, {expected} expected");
    }
}

/// Messages of 1000 bytes of services that acknowledge none.
#[test]
fn a_burst_of_unacknowledged_messages_leaves_at_once_after_a_pause() {
    for service in [ServiceType::Uc, ServiceType::Ud] {
        for burst in [0, 30_000] {
            let mut pair = Pair::new(Settings { service, mtu: 1024, ..Settings::default() });
            limit(&mut pair, MEGABYTE, burst);
            pair.now = pair.now + Nanos::from_millis(200);
            let (begin, data) = (pair.now, [sge(0, 1000)]);
            let to = DatagramTo { ah: AH, qpn: pair.hosts[1].qpn, qkey: OUR_QKEY };
            for wr_id in 0..60 {
                let send = work(wr_id, SendOp::Send, &data, 0);
                pair.hosts[0].post(&if service == ServiceType::Ud { SendWork { to, ..send } } else { send });
            }
            pair.settle();
            let last = pair.hosts[0].app.completions.last().expect("all left").time;
            assert_eq!(pair.hosts[0].take().last(), Some(&(59, Status::Success)));
            // The last one leaves once the rate has had time for those before it.
            let (time, expected) = ((last.0 - begin.0) / 1000, 59 * (1000 + OVERHEAD) - u64::from(burst));
            assert!(is_near(time, expected), "{service:?}, {burst}: {time} us, {expected} expected");
        }
    }
}

/// The lower one of both rates counts, and the queue pair's own is as it was when the path changes.
#[test]
fn the_rate_of_a_path_is_kept() {
    let mut pair = Pair::new(Settings { mtu: 1024, ..Settings::default() });
    limit(&mut pair, 4 * MEGABYTE, 0);
    for (path_rate, rate) in [(0, 4), (MEGABYTE, 1), (40 * MEGABYTE, 4)] {
        let path = PathState::Ready(pair.path(0));
        let host = &mut pair.hosts[0];
        let now = host.endpoint.query_qp(host.qpn).expect("there");
        let mut modify = |mask, attributes: QpAttributes, path| {
            host.endpoint.modify_qp(host.qpn, mask, &attributes, path).expect("allowed");
        };
        modify(attribute::STATE, QpAttributes { state: state::SQD, ..QpAttributes::default() }, None);
        let of_path = QpAttributes { static_rate_kbit_per_s: path_rate, ..now };
        modify(attribute::AV, of_path, Some(path));
        modify(attribute::STATE, QpAttributes { state: state::RTS, ..QpAttributes::default() }, None);
        let time = time_of(&mut pair, SendOp::Write, 1, 100 * 1024);
        let expected = 100 * (1024 + OVERHEAD) / rate;
        assert!(is_near(time, expected), "{path_rate}: {time} us, {expected} expected");
    }
}

#[test]
fn datagrams_have_the_rate_of_their_address() {
    for (own, of_address, rate) in [(0, MEGABYTE, 1), (MEGABYTE, 0, 1), (4 * MEGABYTE, 2 * MEGABYTE, 2)] {
        let mut pair = Pair::new(Settings { service: ServiceType::Ud, mtu: 1024, ..Settings::default() });
        if own > 0 {
            limit(&mut pair, own, 0);
        }
        let path = PathState::Ready(pair.path(0));
        pair.hosts[0].endpoint.remove_ah(AH);
        let handle = AhEntry { pd: PD, path, mtu_bytes: 1024, static_rate_kbit_per_s: of_address };
        pair.hosts[0].endpoint.insert_ah(AH, handle).expect("just removed");
        let (begin, data) = (pair.now, [sge(0, 1000)]);
        let to = DatagramTo { ah: AH, qpn: pair.hosts[1].qpn, qkey: OUR_QKEY };
        for wr_id in 0..50 {
            pair.hosts[0].post(&SendWork { to, ..work(wr_id, SendOp::Send, &data, 0) });
        }
        pair.settle();
        let last = pair.hosts[0].app.completions.last().expect("all left").time;
        assert_eq!(pair.hosts[0].take().last(), Some(&(49, Status::Success)));
        let (time, expected) = ((last.0 - begin.0) / 1000, 50 * (1000 + OVERHEAD) / rate);
        assert!(is_near(time, expected), "{own}, {of_address}: {time} us, {expected} expected");
    }
}
