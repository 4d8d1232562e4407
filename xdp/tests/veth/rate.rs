//! Frames a second between two queues, sender and receiver a thread each. Not a test but a
//! measurement: `cargo test -p roced --release --test xdp -- --ignored --nocapture frames_a_second`

use std::{
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use roced_xdp::{NicQueue, NicQueueConfig};

use crate::{
    frame::{counters, emit, frame},
    needs_root,
    veth::{MODES, Pair, config},
};

/// How long each measurement runs; the median of [`RUNS`] is printed.
const RUN: Duration = Duration::from_millis(500);
const RUNS: usize = 5;

/// Frames emitted before a flush, as a worker's turn does.
const BURST: usize = 32;

/// Frames in flight at most: more than the receiver's rings hold would be lost.
const WINDOW: u64 = 256;

#[test]
#[ignore = "a measurement: run it in release mode, on a quiet machine"]
fn frames_a_second() {
    needs_root!();
    for mode in MODES {
        for (mtu, length) in [(1500, 64), (1500, 1082), (4200, 2106), (4200, 4154)] {
            let pair = Pair::new(mtu, 1, 1);
            let sizes = NicQueueConfig {
                umem_frames: 4096,
                rx_ring_entries: 2048,
                tx_ring_entries: 2048,
                fill_ring_entries: 2048,
                completion_ring_entries: 2048,
                ..config()
            };
            let one = |host: &crate::veth::Host| host.serve_with(mode, std::iter::once(sizes.clone()));
            let (mut a, mut b) = (one(&pair.a), one(&pair.b));
            let bytes = frame(pair.b.address, length, 1);
            let mut runs: Vec<_> = (0..RUNS).map(|_| run(&mut a.queues[0], &mut b.queues[0], &bytes)).collect();
            runs.sort_by(f64::total_cmp);
            let per_second = runs[RUNS / 2];
            let (tx, rx) = (counters(&a.queues[0]), counters(&b.queues[0]));
            println!(
                "{:?} {length:>5} B: {:.3} Mframes/s, {:.2} Gbit/s; {:.1} frames a system call, {} of {} calls cut short, {} lost",
                mode.1,
                per_second / 1e6,
                per_second * length as f64 * 8.0 / 1e9,
                tx["nic_tx_frames"] as f64 / tx["nic_tx_kicks"] as f64,
                tx["nic_tx_kicks_cut_short"],
                tx["nic_tx_kicks"],
                tx["nic_tx_frames"] - rx["nic_rx_frames"],
            );
        }
    }
}

/// Frames received a second.
fn run(a: &mut NicQueue, b: &mut NicQueue, bytes: &[u8]) -> f64 {
    let (sent, received) = (AtomicU64::new(0), AtomicU64::new(0));
    let begin = Instant::now();
    thread::scope(|scope| {
        scope.spawn(|| {
            while begin.elapsed() < RUN {
                let room = WINDOW - (sent.load(Ordering::Relaxed) - received.load(Ordering::Relaxed)).min(WINDOW);
                let emitted = (0..BURST.min(room as usize)).take_while(|_| emit(a, bytes)).count();
                a.flush();
                sent.fetch_add(emitted as u64, Ordering::Relaxed);
                if emitted == 0 {
                    thread::yield_now();
                }
            }
        });
        while begin.elapsed() < RUN {
            let count = b.rx_burst(64, |segments| assert!(segments[0].len() >= 64));
            b.flush();
            received.fetch_add(count as u64, Ordering::Relaxed);
            if count == 0 {
                thread::yield_now();
            }
        }
    });
    let received_in_time = received.load(Ordering::Relaxed) as f64 / begin.elapsed().as_secs_f64();
    // Frames still in flight belong to no run.
    while b.rx_burst(64, |_| ()) > 0 {}
    received_in_time
}
