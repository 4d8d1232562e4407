//! Cost of losses, in virtual time: WRITEs and READs of 1 MiB at path MTU 1024 over a link that
//! loses one frame in a thousand or in a hundred, either way. Each ratio is to the same link
//! without losses. One link is fast, and short of room for waiting frames; the other is slow and
//! has room for windows, as between two busy hosts.
//!
//! `cargo test -p roced-transport --test pair goodput -- --nocapture` prints them.

use std::collections::VecDeque;

use roced_transport::{
    clock::Nanos, congestion::control::CongestionControl, counters::QpCount, recovery::RecoveryConfig,
};
use roced_types::{SendOp, Status};

use crate::{
    fate::mark,
    faults::Random,
    host::{Pair, Settings, sge, work},
};

const MESSAGE: usize = 1 << 20;

/// A link, of either direction.
#[derive(Clone, Copy)]
struct Link {
    mbit_per_s: u64,
    one_way: Nanos,
    /// Frames that wait for it at most.
    queue: usize,
    /// Frames that may wait before more are marked.
    mark_above: usize,
}

/// The transport decides late about the next packet.
const FAST: Link = Link { mbit_per_s: 10_000, one_way: Nanos::from_micros(25), queue: 8, mark_above: usize::MAX };
/// The transport decides early, and a window takes half a millisecond.
const SLOW: Link = Link { mbit_per_s: 1_900, one_way: Nanos::from_micros(20), queue: 256, mark_above: usize::MAX };
/// The same, with a switch that marks.
const MARKING: Link = Link { mark_above: 20, ..SLOW };

impl Link {
    /// Time of a frame, with 24 bytes of preamble, checksum and gap.
    const fn duration(self, frame_bytes: usize) -> Nanos {
        Nanos((frame_bytes as u64 + 24) * 8000 / self.mbit_per_s)
    }
}

/// One direction of the link.
#[derive(Default)]
struct Direction {
    /// When it has sent all that was given to it.
    free_at: Nanos,
    /// Frames under way, with their arrival.
    frames: VecDeque<(Nanos, Vec<u8>)>,
}

#[derive(Clone, Copy)]
struct Load {
    op: SendOp,
    recovery: RecoveryConfig,
    window: u32,
    congestion: CongestionControl,
    messages: u64,
    seed: u64,
}

/// Carries the messages out, four at a time, while a frame in `loss` is lost (0: none). Gives the
/// time that they took, and the most frames that waited after the first two milliseconds.
fn transfer(net: Link, load: Load, loss: u64) -> (Nanos, Pair, usize) {
    let Load { op, recovery, window, congestion, messages, seed } = load;
    let settings = Settings {
        recovery: [recovery; 2],
        window,
        congestion: [congestion; 2],
        signal_all: true,
        ..Settings::default()
    };
    let mut pair = Pair::new(settings);
    let mut random = Random(seed);
    let mut directions = [Direction::default(), Direction::default()];
    let (start, mut posted, mut done, mut most_waiting) = (pair.now, 0, 0, 0);
    while done < messages {
        while posted < messages && posted < done + 4 {
            pair.hosts[0].post(&work(posted, op, &[sge(0, MESSAGE)], 0));
            posted += 1;
        }
        for at in 0..2 {
            while directions[1 - at].frames.front().is_some_and(|(arrival, _)| *arrival <= pair.now) {
                let (_, frame) = directions[1 - at].frames.pop_front().expect("it is there");
                pair.deliver(at, &frame);
            }
            let (now, host, link) = (pair.now, &mut pair.hosts[at], &mut directions[at]);
            host.endpoint.on_timeout(now, 16, &mut host.app);
            let waiting = (link.free_at - now).0.div_ceil(net.duration(1086).0) as usize;
            host.nic.room = net.queue.saturating_sub(waiting);
            host.endpoint.poll_transmit(now, 32, &mut host.app, &mut host.nic);
            for mut frame in host.nic.frames.drain(..) {
                let waiting = ((link.free_at - now).0 / net.duration(1086).0) as usize;
                if waiting >= net.mark_above {
                    mark(&mut frame);
                }
                if now - start > Nanos::from_millis(2) {
                    most_waiting = most_waiting.max(waiting);
                }
                link.free_at = link.free_at.max(now) + net.duration(frame.len());
                if loss == 0 || random.below(loss) != 0 {
                    link.frames.push_back((link.free_at + net.one_way, frame));
                }
            }
        }
        let completions = pair.hosts[0].take();
        assert!(completions.iter().all(|(_, status)| *status == Status::Success), "{completions:?}");
        done += completions.len() as u64;
        pair.hosts[0].app.writes.clear();
        pair.hosts[1].app.writes.clear();
        pair.hosts[0].last.clear();
        pair.hosts[1].last.clear();
        pair.now = pair.now + Nanos::from_micros(1);
    }
    (pair.now - start, pair, most_waiting)
}

#[test]
fn losses_cost_little() {
    const MESSAGES: u64 = 24;
    for (op, window) in [(SendOp::Write, 128), (SendOp::Write, 256), (SendOp::Read, 128), (SendOp::Read, 256)] {
        let load =
            |recovery| Load { op, recovery, window, congestion: CongestionControl::Off, messages: MESSAGES, seed: 7 };
        let (whole, ..) = transfer(FAST, load(RecoveryConfig::default()), 0);
        let gbit_per_s = (MESSAGES * MESSAGE as u64 * 8) as f64 / whole.0 as f64;
        println!("{op:?}, window {window}: {gbit_per_s:.2} Gbit/s without loss");
        assert!(gbit_per_s > 8.5);
        for (loss, least) in [(1000, 0.97), (100, if op == SendOp::Read { 0.7 } else { 0.8 })] {
            let ratio = |recovery| {
                let (took, pair, _) = transfer(FAST, load(recovery), loss);
                let host = &pair.hosts[0];
                let ratio = whole.0 as f64 / took.0 as f64;
                println!(
                    "  one in {loss:4}: {:5.1} % of that, {} packets sent again, {} probes, {} time-outs",
                    ratio * 100.0,
                    host.count(QpCount::RetransmittedPackets),
                    host.count(QpCount::AdaptiveRetransmission),
                    host.count(QpCount::AckTimeout)
                );
                ratio
            };
            let (ours, go_back_n) = (ratio(RecoveryConfig::default()), ratio(RecoveryConfig::GO_BACK_N));
            assert!(ours >= least, "{ours} at a window of {window}, one in {loss}");
            assert!(ours > go_back_n + 0.02, "{ours} and {go_back_n}");
        }
    }
}

/// Retransmissions wait behind a window of other frames, so that a peer which keeps packets is
/// known by other signs than its haste.
#[test]
fn losses_cost_little_behind_a_long_queue() {
    const MESSAGES: u64 = 64;
    for (op, floors) in [(SendOp::Write, [0.98, 0.93]), (SendOp::Read, [0.98, 0.84])] {
        let load = usual(op, CongestionControl::Off, MESSAGES);
        let (whole, ..) = transfer(SLOW, load, 0);
        for (loss, least) in [(1000, floors[0]), (100, floors[1])] {
            let (took, pair, _) = transfer(SLOW, load, loss);
            let ratio = whole.0 as f64 / took.0 as f64;
            let again = pair.hosts[0].count(QpCount::RetransmittedPackets);
            println!("{op:?}, one in {loss}: {:5.1} %, {again} packets sent again", ratio * 100.0);
            assert!(ratio >= least, "{op:?}, one in {loss}: {ratio}");
        }
    }
}

/// Work with the usual window and recovery.
fn usual(op: SendOp, congestion: CongestionControl, messages: u64) -> Load {
    Load { op, recovery: RecoveryConfig::default(), window: 128, congestion, messages, seed: 9 }
}

/// A loss makes a window smaller, although no queue was full: that costs little where a window
/// takes a few round trips to come back.
#[test]
fn losses_cost_little_with_a_congestion_window() {
    const MESSAGES: u64 = 24;
    for (net, op, floors) in [
        (FAST, SendOp::Write, [0.95, 0.75]),
        (FAST, SendOp::Read, [0.95, 0.65]),
        (SLOW, SendOp::Write, [0.98, 0.93]),
        (SLOW, SendOp::Read, [0.98, 0.82]),
    ] {
        let (whole, ..) = transfer(net, usual(op, CongestionControl::Off, MESSAGES), 0);
        for (loss, least) in [(0, 0.99), (1000, floors[0]), (100, floors[1])] {
            let (took, ..) = transfer(net, usual(op, CongestionControl::Window, MESSAGES), loss);
            let ratio = whole.0 as f64 / took.0 as f64;
            println!("{op:?} at {} Mbit/s, one in {loss}: {:5.1} %", net.mbit_per_s, ratio * 100.0);
            assert!(ratio >= least, "{op:?} at {} Mbit/s, one in {loss}: {ratio}", net.mbit_per_s);
        }
    }
}

/// Where a queue marks, it stays short, and the link busy.
#[test]
fn marks_keep_a_queue_short() {
    for op in [SendOp::Write, SendOp::Read] {
        let (free, _, long) = transfer(MARKING, usual(op, CongestionControl::Off, 24), 0);
        let (took, _, short) = transfer(MARKING, usual(op, CongestionControl::Window, 24), 0);
        let ratio = free.0 as f64 / took.0 as f64;
        println!("{op:?}: {long} frames wait without a reaction, {short} with one, {:.1} % of the rate", ratio * 100.0);
        assert!(long >= 70 && short <= 45, "{op:?}: {long}, {short}");
        assert!(ratio >= 0.97, "{op:?}: {ratio}");
    }
}
