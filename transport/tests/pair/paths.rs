//! Paths other than that of one room: slow, long, longer than before, with a jitter that keeps
//! order. A link has a rate and a delay, and losses are chosen. Packets that are not lost are not
//! retransmitted, and lost ones are found before the ACK timer.

use std::collections::VecDeque;

use roced_transport::{clock::Nanos, counters::QpCount, recovery::RecoveryConfig};
use roced_types::{SendOp, Status};

use crate::{
    faults::Random,
    host::{Pair, Settings, sge, work},
    selective::repairs,
};

/// One direction.
#[derive(Default)]
struct Direction {
    /// When it has sent all that was given to it.
    free_at: Nanos,
    /// Frames under way, with their arrival.
    frames: VecDeque<(Nanos, Vec<u8>)>,
    /// Frames that were given to it in this transfer.
    sent: usize,
}

#[derive(Clone, Copy)]
struct Path {
    mbit_per_s: u64,
    one_way: Nanos,
    /// Up to so much longer.
    jitter: Nanos,
}

const fn path(mbit_per_s: u64, one_way_us: u64, jitter_us: u64) -> Path {
    Path { mbit_per_s, one_way: Nanos::from_micros(one_way_us), jitter: Nanos::from_micros(jitter_us) }
}

/// Messages of one kind, so many at a time.
#[derive(Clone, Copy)]
struct Load {
    op: SendOp,
    bytes: usize,
    messages: u64,
    at_a_time: u64,
}

const fn load(op: SendOp, bytes: usize, messages: u64, at_a_time: u64) -> Load {
    Load { op, bytes, messages, at_a_time }
}

/// Nothing is lost.
const NONE: fn(usize, usize, &mut Random) -> bool = |_, _, _| false;

/// Two hosts with a path between them that may change.
struct Lab {
    pair: Pair,
    directions: [Direction; 2],
    random: Random,
}

impl Lab {
    fn new(settings: Settings) -> Self {
        Self { pair: Pair::new(settings), directions: Default::default(), random: Random(3) }
    }

    /// Carries `load` out; `lost` chooses by the sender of a frame and its number in this transfer.
    fn run(&mut self, path: Path, load: Load, lost: impl Fn(usize, usize, &mut Random) -> bool) {
        let (mut posted, mut done) = (0, 0);
        self.directions.iter_mut().for_each(|it| it.sent = 0);
        while done < load.messages {
            while posted < load.messages.min(done + load.at_a_time) {
                self.pair.hosts[0].post(&work(posted, load.op, &[sge(0, load.bytes)], 0));
                posted += 1;
            }
            (0..2).for_each(|at| self.turn(at, path, &lost));
            let completions = self.pair.hosts[0].take();
            assert!(completions.iter().all(|(_, status)| *status == Status::Success), "{completions:?}");
            done += completions.len() as u64;
            for host in &mut self.pair.hosts {
                host.app.writes.clear();
                host.last.clear();
            }
            self.pair.now = self.pair.now + Nanos::from_micros(1);
        }
    }

    fn turn(&mut self, at: usize, path: Path, lost: &impl Fn(usize, usize, &mut Random) -> bool) {
        let now = self.pair.now;
        while self.directions[1 - at].frames.front().is_some_and(|(arrival, _)| *arrival <= now) {
            let (_, frame) = self.directions[1 - at].frames.pop_front().expect("it is there");
            self.pair.deliver(at, &frame);
        }
        let duration = |bytes: usize| Nanos((bytes as u64 + 24) * 8000 / path.mbit_per_s);
        let full = duration(self.pair.settings.mtu as usize + 62);
        let (host, link) = (&mut self.pair.hosts[at], &mut self.directions[at]);
        host.endpoint.on_timeout(now, 16, &mut host.app);
        let waiting = (link.free_at - now).0.div_ceil(full.0) as usize;
        host.nic.room = 8usize.saturating_sub(waiting);
        host.endpoint.poll_transmit(now, 32, &mut host.app, &mut host.nic);
        for frame in host.nic.frames.drain(..) {
            link.free_at = link.free_at.max(now) + duration(frame.len());
            link.sent += 1;
            if !lost(at, link.sent - 1, &mut self.random) {
                let late = Nanos(self.random.below(path.jitter.0.max(1)));
                let last = link.frames.back().map_or(Nanos(0), |(arrival, _)| *arrival);
                link.frames.push_back(((link.free_at + path.one_way + late).max(last), frame));
            }
        }
    }

    fn probes(&self) -> u64 {
        self.pair.hosts[0].count(QpCount::AdaptiveRetransmission)
    }
}

fn lab(recovery: RecoveryConfig) -> Lab {
    Lab::new(Settings { recovery: [recovery; 2], window: 128, ..Settings::default() })
}

/// A few probes, until the wait is as long as the path: not one for each message.
#[test]
fn a_path_that_grows_longer_is_measured_soon() {
    let mut lab = lab(RecoveryConfig::default());
    lab.run(path(10_000, 25, 0), load(SendOp::Write, 1 << 20, 20, 2), NONE);
    assert_eq!(lab.probes(), 0);
    lab.run(path(10_000, 1000, 0), load(SendOp::Write, 1 << 20, 4, 2), NONE);
    assert!(lab.probes() <= 8, "{}", lab.probes());
}

/// A path longer than the presumed round trip before one is measured. Each probe meanwhile repeats
/// one packet, until the first measurement, and is no measurement itself.
#[test]
fn a_needless_probe_is_not_followed_by_others() {
    for (messages, bytes) in [(40, 64 << 10), (2000, 1024)] {
        for window in [16, 64, 128] {
            for one_way_us in [600, 2000] {
                let mut lab = Lab::new(Settings { window, ..Settings::default() });
                lab.run(path(10_000, one_way_us, 0), load(SendOp::Write, bytes, messages, 32), NONE);
                let [again, 0, probes] = repairs(&lab.pair) else { panic!("a time-out") };
                assert!(
                    again <= u64::from(window) + 8,
                    "{window}, {one_way_us} us: {again} sent again, {probes} probes"
                );
                assert!(probes <= 4, "{window}, {one_way_us} us: {again} sent again, {probes} probes");
            }
        }
    }
}

/// The round trip grows, and ACKs of packets that were sent once are as far from one another as a
/// round trip was before.
#[test]
fn acks_of_the_first_sending_are_not_taken_for_answers_to_the_second() {
    for (messages, bytes) in [(120, 64 << 10), (2000, 1024)] {
        for (window, before_us, one_way_us) in [(16, 5, 60), (16, 10, 60), (128, 10, 60), (16, 10, 600), (128, 10, 600)]
        {
            let mut lab = Lab::new(Settings { window, ..Settings::default() });
            lab.run(path(10_000, before_us, 0), load(SendOp::Write, 64, 20, 1), NONE);
            lab.run(path(400, one_way_us, 0), load(SendOp::Write, bytes, messages, 32), NONE);
            let [again, 0, probes] = repairs(&lab.pair) else { panic!("a time-out") };
            assert!(again <= u64::from(window) + 32, "{window}, {one_way_us} us: {again} sent again, {probes} probes");
        }
    }
}

#[test]
fn a_slow_link_is_measured_soon() {
    for (mbit_per_s, messages) in [(50, 3), (20, 2)] {
        let mut lab = lab(RecoveryConfig::default());
        lab.run(path(mbit_per_s, 25, 0), load(SendOp::Write, 1 << 20, messages, 2), NONE);
        assert!(lab.probes() <= 8, "{} at {mbit_per_s} Mbit/s", lab.probes());
    }
}

/// Its responses are farther from one another than a probe waits at least.
#[test]
fn a_slow_steady_read_is_not_probed() {
    let mut lab = lab(RecoveryConfig::default());
    lab.run(path(50, 25, 0), load(SendOp::Read, 1 << 20, 3, 2), NONE);
    assert_eq!(lab.probes(), 0);
}

#[test]
fn reads_with_losses_on_a_long_path_end_without_time_outs() {
    for retry_cnt in [7, 1] {
        let mut lab = Lab::new(Settings { window: 128, retry_cnt, ..Settings::default() });
        lab.run(path(10_000, 1000, 1000), load(SendOp::Read, 1 << 20, 12, 4), |_, _, random| random.below(100) == 0);
        assert_eq!(lab.pair.hosts[0].count(QpCount::AckTimeout), 0);
    }
}

/// The answer to a repetition takes a round trip, however soon those before it come.
#[test]
fn a_lost_response_on_a_long_path_is_asked_for_once() {
    let mut lab = lab(RecoveryConfig::default());
    lab.run(path(10_000, 500, 0), load(SendOp::Read, 128 * 1024, 20, 1), NONE);
    lab.run(path(10_000, 500, 0), load(SendOp::Read, 128 * 1024, 1, 1), |from, nth, _| from == 1 && nth == 10);
    assert_eq!((lab.probes(), lab.pair.hosts[0].count(QpCount::RetransmittedPackets)), (0, 1));
}

#[test]
fn go_back_n_does_not_probe() {
    let mut lab = lab(RecoveryConfig::GO_BACK_N);
    lab.run(path(10_000, 500, 0), load(SendOp::Read, 400 * 1024, 4, 1), NONE);
    lab.run(path(10_000, 500, 0), load(SendOp::Read, 400 * 1024, 1, 1), |from, nth, _| from == 1 && nth == 40);
    assert_eq!((lab.probes(), lab.pair.hosts[0].count(QpCount::ImpliedNak)), (0, 1));
}
