//! The clock jumps: a host that stood still (a stopped process, a paused virtual machine) goes on
//! with all the frames that came meanwhile. No connection of a healthy peer fails for it, though it
//! may not retry, and nothing is sent more often than a loss would cause. And a clock that goes
//! backwards, which a monotonic one does not, is a delay and no fault.

use roced_transport::{clock::Nanos, counters::QpCount, qp::ServiceType, recovery::RecoveryConfig};
use roced_types::{SendOp, Status};

use crate::host::{Pair, Settings, no_fault, sge, work};

const STILL: Nanos = Nanos::from_millis(10_000);

/// Each operation under way from host 0, and READs in the other direction.
fn under_way(settings: Settings) -> Pair {
    let mut pair = Pair::established(settings);
    post(&mut pair);
    pair
}

fn post(pair: &mut Pair) {
    pair.hosts[1].post_recv(9, &[sge(900_000, 30_000)]);
    for (wr_id, op, at) in
        [(1, SendOp::Write, 100_000), (2, SendOp::Read, 200_000), (3, SendOp::FetchAdd, 300_000), (4, SendOp::Send, 0)]
    {
        let bytes = if op == SendOp::FetchAdd { 8 } else { 30_000 };
        pair.hosts[0].post(&work(wr_id, op, &[sge(400_000 + 40_000 * wr_id, bytes)], at));
    }
    pair.hosts[1].post(&work(5, SendOp::Read, &[sge(700_000, 30_000)], 800_000));
}

fn all_succeeded(pair: &mut Pair, says: &str) {
    assert_eq!(pair.hosts[0].take(), [1, 2, 3, 4].map(|id| (id, Status::Success)), "{says}");
    let mut there = pair.hosts[1].take();
    there.sort_by_key(|(id, _)| *id);
    assert_eq!(there, [(5, Status::Success), (9, Status::Success)], "{says}");
}

fn healthy(recovery: RecoveryConfig) -> Settings {
    Settings { retry_cnt: 0, recovery: [recovery; 2], ..Settings::default() }
}

/// Both stand still at every turn of the transfer, one after the other.
#[test]
fn hosts_that_stand_still_at_any_time_spend_no_retry() {
    for recovery in [RecoveryConfig::default(), RecoveryConfig::GO_BACK_N] {
        for at in 0..40 {
            let mut pair = under_way(healthy(recovery));
            for turn in 0.. {
                let moved = pair.turn(&mut no_fault);
                pair.now = pair.now + if turn == at { STILL } else { Nanos::from_micros(5) };
                if !moved && turn > at {
                    break;
                }
            }
            pair.settle();
            all_succeeded(&mut pair, &format!("still at turn {at}"));
            for host in &pair.hosts {
                assert_eq!(host.count(QpCount::AckTimeout), 0, "still at turn {at}");
                assert!(host.count(QpCount::RetransmittedPackets) <= 64, "still at turn {at}");
            }
        }
    }
}

/// For all three services; steps of a microsecond to a second.
#[test]
fn a_clock_that_goes_backwards_delays_and_harms_nothing() {
    for service in [ServiceType::Rc, ServiceType::Uc] {
        for back in [1_000, 1_000_000, 100_000_000, 1_000_000_000] {
            let mut pair = Pair::new(Settings { service, ..Settings::default() });
            pair.now = Nanos::from_millis(20_000);
            for round in 0..20 {
                pair.hosts[1].post_recv(9, &[sge(900_000, 30_000)]);
                pair.hosts[0].post(&work(1, SendOp::Write, &[sge(0, 30_000)], 100_000));
                pair.hosts[0].post(&work(2, SendOp::Send, &[sge(0, 30_000)], 0));
                for turn in 0..5 {
                    pair.turn(&mut no_fault);
                    if turn == round % 5 {
                        pair.now = pair.now - Nanos(back);
                    }
                }
                pair.settle();
                let done = [(1, Status::Success), (2, Status::Success)];
                assert_eq!(pair.hosts[0].take(), done, "{service:?}, {back} ns, round {round}");
                assert_eq!(pair.hosts[1].take(), [(9, Status::Success)], "{service:?}, {back} ns, round {round}");
            }
            assert_eq!(pair.hosts[0].count(QpCount::RetryExceeded), 0);
        }
    }
}

/// The longest that a program can be asleep and go on.
#[test]
fn a_jump_of_years_ends_no_idle_connection() {
    let mut pair = under_way(healthy(RecoveryConfig::default()));
    pair.settle();
    all_succeeded(&mut pair, "before");
    pair.now = pair.now + Nanos(u64::MAX / 2);
    post(&mut pair);
    pair.settle();
    all_succeeded(&mut pair, "after");
}
