//! A peer that buffers no packets, and becomes faster: answers come sooner than any that was
//! measured before, and packets that were sent again twice are acknowledged twice. Neither
//! shows that the peer buffers packets.

use std::collections::VecDeque;

use roced_transport::{clock::Nanos, recovery::RecoveryConfig};
use roced_types::{SendOp, Status};

use crate::{
    faults::Random,
    host::{Pair, Settings, sge, work},
};

const STEP: Nanos = Nanos::from_micros(10);
const ONE_WAY: Nanos = Nanos::from_micros(50);

/// Carries out WRITEs of 64 packets over a path that loses a fiftieth of the frames, one after the
/// other, to a peer that takes a frame in `services` of time: of the first messages, and of the
/// others. Gives the time of the others.
fn transfer(recovery: RecoveryConfig, seed: u64, services: [Nanos; 2]) -> Nanos {
    const MESSAGES: [u64; 2] = [6, 40];
    let recovery = [recovery, RecoveryConfig::GO_BACK_N];
    let mut pair = Pair::new(Settings { recovery, window: 128, timeout: 16, signal_all: true, ..Settings::default() });
    let mut random = Random(seed);
    let mut toward: [VecDeque<(Nanos, Vec<u8>)>; 2] = Default::default();
    let (mut posted, mut done, mut free_at, mut changed) = (0, 0, Nanos(0), Nanos(0));
    while done < MESSAGES[0] + MESSAGES[1] {
        while posted < done + 4 {
            pair.hosts[0].post(&work(posted, SendOp::Write, &[sge(0, 64 << 10)], 0));
            posted += 1;
        }
        let service = services[usize::from(done >= MESSAGES[0])];
        for at in 0..2 {
            while toward[at].front().is_some_and(|(arrival, _)| *arrival <= pair.now)
                && (at == 0 || free_at <= pair.now)
            {
                let (_, frame) = toward[at].pop_front().expect("it is there");
                if at == 1 {
                    free_at = free_at.max(pair.now) + service;
                }
                pair.deliver(at, &frame);
            }
            let (now, host) = (pair.now, &mut pair.hosts[at]);
            host.endpoint.on_timeout(now, 16, &mut host.app);
            host.endpoint.poll_transmit(now, 128, &mut host.app, &mut host.nic);
            for frame in host.nic.frames.drain(..) {
                if random.below(50) != 0 {
                    toward[1 - at].push_back((now + ONE_WAY, frame));
                }
            }
        }
        let completions = pair.hosts[0].take();
        assert!(completions.iter().all(|(_, status)| *status == Status::Success), "{completions:?}");
        done += completions.len() as u64;
        if changed == Nanos(0) && done >= MESSAGES[0] {
            changed = pair.now;
        }
        pair.now = pair.now + STEP;
    }
    pair.now - changed
}

/// Once it is taken for one that buffers, each missing packet is sent alone, and those behind it
/// are as missing: a window of losses takes a round trip for each packet.
#[test]
fn a_peer_that_buffers_nothing_and_becomes_faster_is_served_as_well() {
    for services in [[300, 10], [30, 2]].map(|it| it.map(Nanos::from_micros)) {
        let mut sums = [0; 2];
        for seed in 1..=10 {
            let took = [RecoveryConfig::default(), RecoveryConfig::GO_BACK_N]
                .map(|recovery| transfer(recovery, seed, services).0 / 1_000_000);
            assert!(took[0] < 5_000, "{services:?}, seed {seed}: {} ms, by go-back-N {} ms", took[0], took[1]);
            sums = [0, 1].map(|at| sums[at] + took[at]);
        }
        println!("{services:?}: {} ms, by go-back-N {} ms", sums[0], sums[1]);
        assert!(sums[0] <= sums[1], "{services:?}: {sums:?}");
    }
}

/// The missing packet is on its way twice when the NAK comes: the first copy repairs the loss, and
/// the second is acknowledged as the duplicate it is.
#[test]
fn packets_that_were_on_their_way_twice_show_nothing_about_the_peer() {
    let mut pair = Pair::new(Settings {
        recovery: [RecoveryConfig::default(), RecoveryConfig::GO_BACK_N],
        signal_all: true,
        ..Settings::default()
    });
    for id in 0..8 {
        pair.hosts[0].post(&work(id, SendOp::Write, &[sge(0, 10)], 0));
        pair.settle();
    }
    pair.hosts[0].take();
    pair.hosts[0].post(&work(8, SendOp::Write, &[sge(0, 20 << 10)], 0));
    let first = flight(&mut pair, 0);
    assert_eq!(first.len(), 20);
    let nak = answers_to(&mut pair, &first[..5], &first[6..7]);
    for frame in &nak {
        pair.deliver(0, frame);
    }
    // Those packets are late, until the ACK timer expires and they are sent again.
    let mut again = vec![flight(&mut pair, 0)];
    let timer = pair.now + Nanos::from_millis(100);
    while pair.now < timer && again.len() < 2 {
        let host = &mut pair.hosts[0];
        host.endpoint.on_timeout(pair.now, 16, &mut host.app);
        again.extend(Some(flight(&mut pair, 0)).filter(|frames| frames.len() > 1));
    }
    assert_eq!([again[0].len(), again[1].len()], [15; 2], "everything from the missing packet on");
    let nak = answers_to(&mut pair, &again[0][..5], &again[0][6..7]);
    for frame in &nak {
        pair.deliver(0, frame);
    }
    let third = flight(&mut pair, 0);
    assert_eq!(third.len(), 10);
    for copies in [&again[1], &third] {
        for frame in answers_to(&mut pair, copies, &[]) {
            pair.deliver(0, &frame);
        }
    }
    assert_eq!(pair.hosts[0].take(), [(8, Status::Success)]);
    pair.hosts[0].post(&work(9, SendOp::Write, &[sge(0, 20 << 10)], 0));
    let next = flight(&mut pair, 0);
    for frame in answers_to(&mut pair, &next[..3], &next[4..5]) {
        pair.deliver(0, &frame);
    }
    assert_eq!(flight(&mut pair, 0).len(), 17, "the peer has nothing behind the missing packet");
}

/// Frames that a host sends now.
fn flight(pair: &mut Pair, at: usize) -> Vec<Vec<u8>> {
    pair.now = pair.now + Nanos::from_micros(40);
    let host = &mut pair.hosts[at];
    host.endpoint.poll_transmit(pair.now, 64, &mut host.app, &mut host.nic);
    host.nic.frames.drain(..).collect()
}

/// Answers of host 1 to some frames, and to some that follow behind a loss.
fn answers_to(pair: &mut Pair, frames: &[Vec<u8>], behind: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut answers = Vec::new();
    for frame in frames.iter().chain(behind) {
        pair.deliver(1, frame);
        let host = &mut pair.hosts[1];
        host.endpoint.poll_transmit(pair.now, 64, &mut host.app, &mut host.nic);
        answers.extend(host.nic.frames.drain(..));
    }
    answers
}
