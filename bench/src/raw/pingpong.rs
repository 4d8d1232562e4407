//! Raw frames there and back, one at a time. Both ends look all the time: nothing over AF_XDP is
//! faster.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::ensure;

use super::{RawEnd, frame::number};
use crate::{
    cpu,
    network::NetworkSide,
    sample::{Sample, Times},
};

/// Round trips before the ones that count.
const WARM_UP: u64 = 1000;

/// A frame that takes longer is lost.
const LOST: Duration = Duration::from_millis(100);

/// Round trips between `a` and `b` for `time`.
pub(super) fn run(a: &mut RawEnd, b: &mut RawEnd, frame_bytes: usize, time: Duration) -> anyhow::Result<Sample> {
    a.drain();
    b.drain();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            cpu::run_on(NetworkSide::B.core());
            echo(b, frame_bytes, &stop);
        });
        let sample = scope.spawn(|| {
            cpu::run_on(NetworkSide::A.core());
            let sample = ping(a, frame_bytes, time);
            stop.store(true, Ordering::Release);
            sample
        });
        sample.join().expect("no panic")
    })
}

fn ping(end: &mut RawEnd, frame_bytes: usize, time: Duration) -> anyhow::Result<Sample> {
    let template = end.template.sized(frame_bytes);
    let (mut times, mut begin) = (Times::new(), Instant::now());
    for sequence in 1.. {
        let sent = Instant::now();
        if sequence == WARM_UP {
            begin = sent;
        }
        ensure!(template.emit(&mut end.queue, frame_bytes, sequence).is_ok(), "no room for one raw frame");
        end.queue.flush();
        let (mut came, mut looks) = (0, 0_u32);
        while came < sequence {
            end.queue.rx_burst(1, |frame| came = number(frame).unwrap_or(0));
            std::hint::spin_loop();
            looks = looks.wrapping_add(1);
            ensure!(!looks.is_multiple_of(1024) || sent.elapsed() < LOST, "a raw frame was lost");
        }
        let now = Instant::now();
        if sequence >= WARM_UP {
            times.record(now - sent);
            if now - begin >= time {
                return Ok(times.sample(now - begin));
            }
        }
    }
    unreachable!("time passes")
}

fn echo(end: &mut RawEnd, frame_bytes: usize, stop: &AtomicBool) {
    let template = end.template.sized(frame_bytes);
    while !stop.load(Ordering::Acquire) {
        let mut came = None;
        end.queue.rx_burst(1, |frame| came = number(frame));
        match came {
            // One at a time: there is room.
            Some(number) => template.emit(&mut end.queue, frame_bytes, number).expect("room for one frame"),
            None => {
                std::hint::spin_loop();
                continue;
            }
        }
        end.queue.flush();
    }
}
