//! Any two frames are lost, of either direction: all work ends as if none had been, and no time-out
//! is needed.

use roced_transport::{clock::Nanos, counters::QpCount, recovery::RecoveryConfig};
use roced_types::{SendOp, Status};

use crate::{
    host::{Fate, Pair, Settings, sge, work},
    selective::warm,
};

const CELL: u64 = 700_000;

/// Work that is posted at once: operation and bytes.
type Load = [(SendOp, usize)];

/// The cost, and the timeouts.
fn run(settings: Settings, load: &Load, lost: [usize; 2]) -> (Nanos, u64) {
    let mut pair = warm(settings);
    for (id, (op, bytes)) in (0_u64..).zip(load) {
        let (near, far) = match op {
            SendOp::Read => (100_000 + id * 8192, 600_000),
            SendOp::FetchAdd => (90_000 + id * 8, CELL),
            _ => (id * 8192, 800_000 + id * 8192),
        };
        if *op == SendOp::Send {
            pair.hosts[1].post_recv(id, &[sge(far, 8192)]);
        }
        pair.hosts[0].post(&work(id, *op, &[sge(near, *bytes)], far));
    }
    let (start, mut seen, mut done) = (pair.now, 0, Vec::new());
    while done.len() < load.len() {
        let mut fate = |_, _, _| {
            seen += 1;
            if lost.contains(&(seen - 1)) { Fate::Drop } else { Fate::Deliver }
        };
        if pair.turn(&mut fate) {
            pair.now = pair.now + Nanos::from_micros(5);
        } else {
            let next = pair.hosts.iter().map(|host| host.endpoint.poll_timeout()).min().expect("two hosts");
            assert!(next < Nanos::NEVER, "nothing is waited for, and {} of {} are done", done.len(), load.len());
            pair.now = next.max(pair.now + Nanos::from_micros(5));
        }
        done.extend(pair.hosts[0].take());
    }
    assert!(done.iter().zip(0..).all(|((id, status), at)| (*id, *status) == (at, Status::Success)), "{done:?}");
    check_memory(&pair, load);
    (pair.now - start, pair.hosts[0].count(QpCount::AckTimeout))
}

fn check_memory(pair: &Pair, load: &Load) {
    let [near, far] = [0, 1].map(|at| &pair.hosts[at].app.memory);
    for (id, (op, bytes)) in load.iter().enumerate() {
        let place = id * 8192;
        match op {
            SendOp::Read => assert!(near[100_000 + place..][..*bytes] == far[600_000..][..*bytes], "READ {id}"),
            SendOp::FetchAdd => {}
            _ => assert!(far[800_000 + place..][..*bytes] == near[place..][..*bytes], "{op:?} {id}"),
        }
    }
    let written = load.iter().filter(|(op, _)| matches!(op, SendOp::Send | SendOp::Write)).map(|(_, bytes)| *bytes);
    let bytes: usize = pair.hosts[1].app.writes.iter().map(|(_, bytes)| *bytes).sum();
    assert_eq!(bytes, written.sum::<usize>(), "each byte was placed once");
}

#[test]
fn any_two_losses_are_found_without_a_time_out() {
    use SendOp::{FetchAdd, Read, Send, Write};
    let mixed = [(Read, 2048), (Write, 512), (FetchAdd, 8), (Send, 2048), (Read, 2048), (Read, 2048)];
    let loads = [
        vec![(Read, 1024); 12],
        vec![(Read, 8192); 4],
        vec![(FetchAdd, 8); 12],
        vec![(Send, 3000); 6],
        [mixed, mixed].concat(),
    ];
    let mut worst = (Nanos(0), String::new());
    for load in &loads {
        for (window, rd_atomic) in [(3, 4), (64, 16)] {
            for out_of_order_packets in [0, 1024] {
                let recovery = RecoveryConfig { out_of_order_packets, ..RecoveryConfig::default() };
                let settings = Settings {
                    window,
                    rd_atomic,
                    recovery: [recovery; 2],
                    retry_cnt: 3,
                    timeout: 14,
                    ..Settings::default()
                };
                for (first, apart) in (0..26).flat_map(|first| [1, 2, 5, 13].map(|apart| (first, apart))) {
                    let (took, time_outs) = run(settings, load, [first, first + apart]);
                    let what = format!(
                        "{load:?}, window {window}, {rd_atomic} at a time, {out_of_order_packets} held, {first} {apart}"
                    );
                    assert_eq!(time_outs, 0, "{what}");
                    worst = worst.max((took, what));
                }
            }
        }
    }
    assert!(worst.0 < Nanos::from_millis(2), "{worst:?}");
}
