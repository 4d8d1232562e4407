//! Raw frames one way.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::ensure;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::{
    RawEnd,
    frame::{FRAME_BYTES_MIN, number, roce_payload},
};
use crate::{cpu, network::NetworkSide, sample::Sample};

/// Frames in flight at most: beyond 512 veth and the rings begin to lose; with 256 frames of 1082
/// bytes were up to a fifth slower.
const WINDOW: u64 = 512;

/// Frames in flight at most where a thread runs the receiver's NAPI, which may not have its turn
/// before the sender is through: veth's ring has 256.
const WINDOW_MOVED: u64 = 192;

/// How long a receiver that shares its core with that thread sleeps at most.
const NAP: Duration = Duration::from_millis(1);

/// Frames sent with one flush.
const BURST: u64 = 128;

/// With fewer frames than that at a time the receiver lets more come before it looks again. A
/// receiver that looks all the time takes the rings' cache lines away from the sender with each
/// frame, which then is a fifth to a third slower than it could be: no limit to compare with.
/// Measured on 2 cores, veth, 64 to 4154 bytes: 0 to 60 us; from 12 us on it is the same.
const HARVEST: u64 = 32;
const PAUSE: Duration = Duration::from_micros(18);

/// The receiver says how far it came each so many frames: a fraction of the window, so that the
/// sender never waits for it.
const CREDIT_EVERY: u64 = 32;

/// After so long without a word the frames in flight count as lost. A thousand round trips.
const SILENCE: Duration = Duration::from_millis(20);

/// Sends from `a` to `b` for `time`.
pub(super) fn run(a: &mut RawEnd, b: &mut RawEnd, frame_bytes: usize, time: Duration) -> anyhow::Result<Sample> {
    a.drain();
    b.drain();
    let stop = AtomicBool::new(false);
    let (sent, received) = thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            cpu::run_on(NetworkSide::B.core());
            receive(b, &stop)
        });
        let sender = scope.spawn(|| {
            cpu::run_on(NetworkSide::A.core());
            let sent = send(a, frame_bytes, time);
            stop.store(true, Ordering::Release);
            sent
        });
        (sender.join().expect("no panic"), receiver.join().expect("no panic"))
    });
    ensure!(received.frames > 0, "no raw frame of {frame_bytes} bytes arrived");
    let mut sample = Sample::stream(received.frames, roce_payload(frame_bytes), sent.elapsed, sent.cpu + received.cpu);
    // A frame of the round before may come after all, behind `drain`.
    sample.retransmitted = Some(sent.frames.saturating_sub(received.frames));
    Ok(sample)
}

/// Work of one end.
struct Done {
    frames: u64,
    elapsed: Duration,
    cpu: Duration,
}

fn send(end: &mut RawEnd, frame_bytes: usize, time: Duration) -> Done {
    let template = end.template.sized(frame_bytes);
    let window = if end.napi_moved { WINDOW_MOVED } else { WINDOW };
    let (begin, cpu) = (Instant::now(), cpu::of_this_thread());
    let (mut sent, mut acknowledged, mut heard) = (0, 0, begin);
    loop {
        let now = Instant::now();
        if now - begin >= time && (sent == acknowledged || now - begin >= time + SILENCE) {
            return Done { frames: sent, elapsed: now - begin, cpu: cpu::of_this_thread() - cpu };
        }
        if end.queue.rx_burst(64, |frame| acknowledged = number(frame).unwrap_or(0).clamp(acknowledged, sent)) > 0 {
            heard = now;
        } else if now - heard > SILENCE {
            (acknowledged, heard) = (sent, now);
        }
        let room = if now - begin < time { (window - (sent - acknowledged)).min(BURST) } else { 0 };
        let wanted = sent + room;
        while sent < wanted && template.emit(&mut end.queue, frame_bytes, sent + 1).is_ok() {
            sent += 1;
        }
        end.queue.flush();
        if room == 0 {
            thread::yield_now();
        }
    }
}

fn receive(end: &mut RawEnd, stop: &AtomicBool) -> Done {
    let template = end.template.sized(FRAME_BYTES_MIN);
    let (begin, cpu) = (Instant::now(), cpu::of_this_thread());
    let (mut frames, mut highest, mut told) = (0, 0, 0);
    loop {
        let came = end.queue.rx_burst(64, |frame| highest = number(frame).unwrap_or(0).max(highest)) as u64;
        frames += came;
        // When nothing more comes for the moment, the remainder is reported as well.
        if highest - told >= CREDIT_EVERY || came == 0 && highest > told {
            if template.emit(&mut end.queue, FRAME_BYTES_MIN, highest).is_ok() {
                told = highest;
            }
            end.queue.flush();
        }
        if came == 0 && stop.load(Ordering::Acquire) {
            return Done { frames, elapsed: begin.elapsed(), cpu: cpu::of_this_thread() - cpu };
        }
        if end.napi_moved {
            if came == 0 && !end.queue.prepare_sleep() {
                let mut socket = [PollFd::new(end.queue.socket(), PollFlags::POLLIN)];
                // The result is ignored: frames are seen at the next look.
                let _ = poll(&mut socket, PollTimeout::try_from(NAP).expect("short"));
            }
        } else if came < HARVEST {
            let pause = Instant::now();
            while pause.elapsed() < PAUSE {
                std::hint::spin_loop();
            }
        }
    }
}
