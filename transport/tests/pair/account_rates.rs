//! Highest rate of an account: all of its queue pairs share it, answers to their peers included.

use std::sync::Arc;

use roced_transport::{
    clock::Nanos,
    counters::QpCount,
    io::Egress,
    qp::{PathState, ServiceType},
    turns::{fair::FairOwner, shared_rate::SharedRate},
    wire::opcode::Opcode,
    work::DatagramTo,
};
use roced_types::{AccountId, SendOp, SessionId, Status};

use crate::host::{AH, Fate, OUR_QKEY, Pair, Settings, no_fault, sge, work};

/// 1 MB/s, in kbit/s.
pub(crate) const MEGABYTE: u32 = 8000;

/// Bytes of a frame beside 1,024 of payload, nearly.
const OVERHEAD: u64 = 60;

/// Connections from `FIRST` on of an account with a rate, on one of the hosts.
pub(crate) const FIRST: u32 = 6;

pub(crate) fn limited(settings: Settings, at: usize, kbit_per_s: u32, connections: u32) -> (Pair, Arc<SharedRate>) {
    let rate = Arc::new(SharedRate::new(kbit_per_s));
    let mut pair = Pair::new(Settings { max_qps: 128, turn_frames: 64, ..settings });
    pair.account_rates[at] = Some(rate.clone());
    (FIRST..FIRST + connections).for_each(|index| pair.connect_another(index));
    (pair, rate)
}

/// Has a connection as many operations of these bytes as it may have.
pub(crate) fn fill(pair: &mut Pair, index: u32, op: SendOp, bytes: usize) {
    pair.turn_to(index);
    let to = DatagramTo { ah: AH, qpn: pair.hosts[1].qpn, qkey: OUR_QKEY };
    let host = &mut pair.hosts[0];
    while host.endpoint.send_room(host.qpn) > 0 {
        let data = [sge(0, bytes)];
        let mut work = work(u64::from(index), op, &data, 500_000);
        work.to = if pair.settings.service == ServiceType::Ud { to } else { work.to };
        host.post(&work);
    }
}

/// Bytes that each of these connections completes in this time, always with more to do.
fn completed(
    pair: &mut Pair,
    connections: u32,
    op: SendOp,
    bytes: usize,
    time: Nanos,
    mut fate: impl FnMut(usize, Opcode, usize) -> Fate,
) -> Vec<u64> {
    let mut all = vec![0; connections as usize];
    let end = pair.now + time;
    while pair.now < end {
        (FIRST..FIRST + connections).for_each(|index| fill(pair, index, op, bytes));
        pair.run_to_next(&mut fate);
        for (index, status) in pair.hosts[0].take() {
            assert_eq!(status, Status::Success, "of connection {index}");
            all[index as usize - FIRST as usize] += bytes as u64;
        }
        (pair.trace, pair.answers) = Default::default();
        pair.hosts.iter_mut().for_each(|host| host.last.clear());
    }
    all
}

fn is_near(bytes: u64, expected: u64) -> bool {
    bytes.abs_diff(expected) * 100 < expected * 4
}

#[test]
fn queue_pairs_of_an_account_share_its_rate() {
    for service in [ServiceType::Rc, ServiceType::Uc] {
        for (connections, total_window) in [(1, u32::MAX), (4, u32::MAX), (40, 64)] {
            let settings = Settings { service, total_window, ..Settings::default() };
            let (mut pair, _) = limited(settings, 0, 10 * MEGABYTE, connections);
            let all = completed(&mut pair, connections, SendOp::Write, 8192, Nanos::from_millis(500), no_fault);
            let sum: u64 = all.iter().sum();
            assert!(is_near(sum, 5_000_000 * 1024 / (1024 + OVERHEAD)), "{service:?}: {sum} of {all:?}");
            let mean = sum / u64::from(connections);
            assert!(all.iter().all(|bytes| bytes.abs_diff(mean) < mean / 4 + 16_384), "{service:?}: {all:?}");
        }
    }
}

#[test]
fn datagrams_and_read_responses_have_the_rate_of_their_account() {
    for (service, at, op, bytes) in [(ServiceType::Ud, 0, SendOp::Send, 1024), (ServiceType::Rc, 1, SendOp::Read, 8192)]
    {
        let (mut pair, _) = limited(Settings { service, ..Settings::default() }, at, 10 * MEGABYTE, 3);
        let all = completed(&mut pair, 3, op, bytes, Nanos::from_millis(500), no_fault);
        let sum: u64 = all.iter().sum();
        assert!(is_near(sum, 5_000_000 * 1024 / (1024 + OVERHEAD)), "{service:?}: {all:?}");
    }
}

/// Beside queue pairs of another account that fill the line for packets in flight.
#[test]
fn an_account_that_waits_in_line_as_well_has_its_rate() {
    for (connections, kbit_per_s, total_window) in
        [(6, 40 * MEGABYTE, 32), (40, 10 * MEGABYTE, 32), (40, 40 * MEGABYTE, 192)]
    {
        let settings = Settings { total_window, ..Settings::default() };
        let (mut pair, _) = limited(settings, 0, kbit_per_s, connections);
        pair.account_rates = [None, None];
        pair.owner = FairOwner { account: AccountId(1), client: SessionId(1), weight: 1 };
        let others = 60..100;
        others.clone().for_each(|index| pair.connect_another(index));
        let (end, mut bytes) = (pair.now + Nanos::from_millis(500), [0_u64; 2]);
        let mut late = |from, _, _| if from == 1 { Fate::Late(20) } else { Fate::Deliver };
        while pair.now < end {
            (FIRST..FIRST + connections)
                .chain(others.clone())
                .for_each(|index| fill(&mut pair, index, SendOp::Write, 1024));
            pair.run_to_next(&mut late);
            for (index, _) in pair.hosts[0].take() {
                bytes[usize::from(others.contains(&(index as u32)))] += 1024;
            }
            (pair.trace, pair.answers) = Default::default();
            pair.hosts.iter_mut().for_each(|host| host.last.clear());
        }
        let most = u64::from(kbit_per_s) * 125 / 2 * 1024 / (1024 + OVERHEAD);
        println!("{connections} at {kbit_per_s} in {total_window}: {bytes:?} of {most}");
        assert!(bytes[0].abs_diff(most) * 100 < most * 10, "{connections} at {kbit_per_s}: {bytes:?} of {most}");
    }
}

/// A peer's WRITEs are acknowledged without a wait, while READ responses of the same account wait
/// for seconds of its rate.
#[test]
fn acknowledgments_do_not_wait_for_the_rate_of_the_account() {
    let (mut pair, _) = limited(Settings::default(), 1, MEGABYTE / 10, 2);
    pair.turn_to(FIRST);
    pair.hosts[0].post(&work(1, SendOp::Read, &[sge(0, 200_000)], 500_000));
    pair.run(Nanos::from_millis(50), no_fault);
    assert_eq!(pair.hosts[0].take(), []);
    for index in [FIRST + 1, FIRST + 1, FIRST + 1] {
        pair.turn_to(index);
        let begin = pair.now;
        pair.hosts[0].post(&work(2, SendOp::Write, &[sge(0, 8192)], 500_000));
        while pair.hosts[0].app.completions.is_empty() {
            assert!(pair.run_to_next(&mut |_, _, _| Fate::Deliver));
        }
        assert_eq!(pair.hosts[0].take(), [(2, Status::Success)]);
        assert!(pair.now - begin < Nanos::from_micros(200), "{:?}", pair.now - begin);
    }
}

/// The turns of the account lie much farther apart than all ACK timeouts of a packet together.
#[test]
fn a_wait_for_the_rate_of_the_account_spends_no_retries() {
    let settings = Settings { timeout: 8, ..Settings::default() };
    let (mut pair, _) = limited(settings, 0, MEGABYTE, 48);
    let lost = |from, _, nth: usize| if from == 0 && nth % 11 == 3 { Fate::Drop } else { Fate::Deliver };
    let all = completed(&mut pair, 48, SendOp::Write, 2048, Nanos::from_millis(3000), lost);
    let sum: u64 = all.iter().sum();
    assert!(sum > 2_000_000 && all.iter().all(|bytes| *bytes > 10_000), "{all:?}");
    for index in FIRST..FIRST + 48 {
        pair.turn_to(index);
        assert_eq!(pair.hosts[0].state(), "RTS");
    }
    assert_eq!(pair.hosts[0].count(QpCount::RetryExceeded), 0);
}

#[test]
fn frames_to_this_host_have_no_rate() {
    for via in [Egress::SameDevice, Egress::Nic { flow: 1 }] {
        let (mut pair, _) = limited(Settings::default(), 0, MEGABYTE, 1);
        pair.turn_to(FIRST);
        for at in 0..2 {
            let path = PathState::Ready(pair.path_via(at, via));
            let host = &mut pair.hosts[at];
            host.endpoint.set_path(host.qpn, path).expect("it is there");
        }
        fill(&mut pair, FIRST, SendOp::Write, 8192);
        let begin = pair.now;
        pair.settle();
        let took = pair.now - begin;
        assert_eq!(took < Nanos::from_millis(20), via != Egress::Nic { flow: 1 }, "{via:?}: {took:?}");
    }
}

/// At the first rate the last one has its turn after three seconds.
#[test]
fn queue_pairs_that_wait_for_a_low_rate_go_on_at_once_without_it() {
    for kbit_per_s in [0, 800_000 * 1000] {
        let (mut pair, rate) = limited(Settings::default(), 0, 1000, 100);
        completed(&mut pair, 100, SendOp::Write, 2048, Nanos::from_millis(10), no_fault);
        rate.set(kbit_per_s);
        let all = completed(&mut pair, 100, SendOp::Write, 2048, Nanos::from_millis(110), no_fault);
        assert!(all.iter().all(|bytes| *bytes > 0), "{kbit_per_s}: {all:?}");
    }
}

#[test]
fn a_new_rate_is_that_of_queue_pairs_that_are_there() {
    let (mut pair, rate) = limited(Settings::default(), 0, 0, 2);
    for (kbit_per_s, expected) in [(10 * MEGABYTE, 2_000_000), (MEGABYTE, 200_000), (20 * MEGABYTE, 4_000_000)] {
        rate.set(kbit_per_s);
        // Turns that were booked before have the rate of before.
        completed(&mut pair, 2, SendOp::Write, 2048, Nanos::from_millis(60), no_fault);
        let all = completed(&mut pair, 2, SendOp::Write, 2048, Nanos::from_millis(200), no_fault);
        let (sum, expected) = (all.iter().sum::<u64>(), expected * 1024 / (1024 + OVERHEAD));
        assert!(sum.abs_diff(expected) < expected / 20 + 20_000, "{sum} of {expected}");
    }
}

/// After the end of its client, while the others of the account wait.
#[test]
fn the_rest_of_a_queue_pair_does_not_wait_for_the_rate_of_its_account() {
    let settings = Settings { service: ServiceType::Ud, ..Settings::default() };
    let (mut pair, _) = limited(settings, 0, MEGABYTE, 2);
    for index in [FIRST, FIRST + 1] {
        fill(&mut pair, index, SendOp::Send, 1024);
    }
    pair.turn_to(FIRST);
    let (now, host) = (pair.now, &mut pair.hosts[0]);
    let qpn = host.qpn;
    host.endpoint.silence(qpn);
    let mut visits = 0;
    loop {
        let sent = host.endpoint.transmit_of(now, qpn, 8, &mut host.app, &mut host.nic);
        visits += sent.visits;
        if !sent.is_left {
            break;
        }
    }
    assert!(visits >= 16, "{visits}");
    let before = host.nic.frames.len();
    host.endpoint.poll_transmit(now, 64, &mut host.app, &mut host.nic);
    assert_eq!(host.nic.frames.len(), before, "the other waits");
    assert!(host.endpoint.poll_timeout() > now + Nanos::from_millis(10));
}

/// One after the other posts all that it can and is destroyed: the rests leave at once until the
/// account has sent half a second of its rate in advance, and then wait.
#[test]
fn queue_pairs_that_are_destroyed_do_not_pass_by_the_rate_of_their_account() {
    let settings = Settings { service: ServiceType::Ud, ..Settings::default() };
    let (mut pair, _) = limited(settings, 0, MEGABYTE, 80);
    let mut bytes = 0;
    for index in FIRST..FIRST + 80 {
        fill(&mut pair, index, SendOp::Send, 1024);
        pair.now = pair.now + Nanos::from_millis(1);
        let (now, host) = (pair.now, &mut pair.hosts[0]);
        let sent = host.endpoint.transmit_of(now, host.qpn, 1000, &mut host.app, &mut host.nic);
        assert!(sent.is_left || sent.visits > 0, "a rest leaves, or waits");
        bytes += host.nic.frames.drain(..).map(|frame| frame.len()).sum::<usize>();
    }
    // 80 ms and the burst, and the debt of half a second with the rest that went beyond it.
    let most = 80_000 + 33_280 + 500_000 + 64 * 1100;
    assert!((400_000..most).contains(&bytes), "{bytes}");
}
