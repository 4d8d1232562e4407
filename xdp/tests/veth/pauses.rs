//! PFC frames of the other end of the link, as a worker learns of them.

use std::{sync::Arc, thread, time::Instant};

use nix::{
    sched::{CpuSet, sched_getcpu, sched_setaffinity},
    time::{ClockId, clock_gettime},
    unistd::Pid,
};
use roced_transport::clock::Nanos;
use roced_xdp::{GeneratedPauses, HonoredPauses, NicQueue, PausedNeighbor};

use crate::{
    frame::{TIMEOUT, counters, emit, frame, receive, send},
    needs_root,
    veth::{MODES, Pair},
};

/// XOFF of priority 3 for 0x1000 quanta and XON of priority 4.
fn pfc(quanta: u16) -> Vec<u8> {
    let mut bytes = vec![0x01, 0x80, 0xc2, 0, 0, 1, 2, 0, 0, 0, 0, 1, 0x88, 0x08, 1, 1, 0, 0b1_1000];
    bytes.extend([0; 6]);
    bytes.extend(quanta.to_be_bytes());
    bytes.resize(60, 0);
    bytes
}

fn now() -> Nanos {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("a clock");
    Nanos(time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64)
}

fn next_pauses(queue: &mut NicQueue) -> [Nanos; 8] {
    let begin = Instant::now();
    loop {
        if let Some(until) = queue.take_pauses(now()) {
            return until;
        }
        assert!(begin.elapsed() < TIMEOUT, "the pause arrives");
        thread::yield_now();
    }
}

#[test]
fn all_queues_learn_of_a_pause_and_of_its_end() {
    needs_root!();
    for mode in MODES {
        let pair = Pair::new(1500, 2, 2);
        let (mut a, mut b) = (pair.a.serve(mode, 2), pair.b.serve(mode, 1));
        let honored = HonoredPauses { priorities: [3, 4].into_iter().collect(), global: false, link_mbit_per_s: 1000 };
        let pauses = Arc::new(a.program.honor_pauses(honored).expect("a map of pauses"));
        a.queues.iter_mut().for_each(|queue| queue.set_pauses(Arc::clone(&pauses)));
        assert!(a.queues.iter_mut().all(|queue| queue.take_pauses(now()).is_none()));
        let before = now();
        send(&mut b.queues[0], &pfc(0x1000));
        for queue in &mut a.queues {
            let until = next_pauses(queue);
            let span = Nanos(0x1000 * 512);
            assert!(until[3] >= before + span && until[3] <= now() + span, "{mode:?}: {until:?}");
            assert!(until[4] <= now() && until[2] == Nanos(0));
            assert_eq!(queue.take_pauses(now()).map(|until| until[3]), Some(until[3]), "and once more");
            assert!(queue.take_pauses(now()).is_none(), "it is told twice");
        }
        send(&mut b.queues[0], &pfc(0));
        assert!(a.queues.iter_mut().all(|queue| next_pauses(queue)[3] <= now()));
        let mut counted = Vec::new();
        pauses.counters(now(), &mut |name, value| counted.push((name, value)));
        assert_eq!(counted.len(), 6);
        assert_eq!((counted[0], counted[3]), (("rx_prio3_pause", 2), ("rx_prio4_pause", 2)));
        assert_eq!(counted[1].0, "rx_prio3_pause_transition");
        assert_eq!(counted[1].1, 1, "{counted:?}");
        assert!((1..=0x1000 * 512 / 1000).contains(&counted[2].1), "{counted:?}");
        // Frames for us pass as before.
        send(&mut b.queues[0], &frame(pair.a.address, 100, 7));
        assert_eq!(receive(&mut a.queues[0], 1).len(), 1);
        assert_eq!(counters(&a.queues[0])["nic_rx_frames"], 1, "{mode:?}");
    }
}

#[test]
fn pauses_outlive_their_program_in_queues() {
    needs_root!();
    let pair = Pair::new(1500, 1, 1);
    let mut a = pair.a.serve(MODES[0], 1);
    let honored = HonoredPauses { global: true, link_mbit_per_s: 1000, ..HonoredPauses::default() };
    let pauses = Arc::new(a.program.honor_pauses(honored).expect("a map of pauses"));
    a.queues[0].set_pauses(Arc::clone(&pauses));
    let mut b = pair.b.serve(MODES[0], 1);
    let mut pause = pfc(0);
    pause[15..18].copy_from_slice(&[1, 0xff, 0xff]);
    pause[14] = 0;
    send(&mut b.queues[0], &pause);
    let begin = Instant::now();
    let count = |name: &str| {
        let mut value = None;
        pauses.counters(now(), &mut |counter, counted| value = value.or((counter == name).then_some(counted)));
        value.expect("a counter of global pauses")
    };
    while count("rx_global_pause") == 0 {
        assert!(begin.elapsed() < TIMEOUT, "the pause arrives");
    }
    drop(a.program);
    let until = next_pauses(&mut a.queues[0]);
    assert!(until.iter().all(|priority| *priority == until[0] && *priority > Nanos(0)));
    assert_eq!((count("rx_global_pause"), count("rx_global_pause_duration") > 0), (1, true));
}

/// Frames that a receiver lost and took that takes 4 in each turn, of a sender with 16 and of this
/// many in all; with `pauses` the receiver pauses it.
fn lost_and_taken(pauses: bool, frames: u64) -> (u64, u64) {
    // All on one core: no frame overtakes another in the kernel.
    let mut core = CpuSet::new();
    core.set(sched_getcpu().expect("a core")).expect("a core of this machine");
    sched_setaffinity(Pid::from_raw(0), &core).expect("it runs there");
    let pair = Pair::new(1500, 1, 1);
    let (mut a, mut b) = (pair.a.serve(MODES[0], 1), pair.b.serve(MODES[0], 1));
    let (receiver, sender) = (&mut a.queues[0], &mut b.queues[0]);
    let priorities = [3].into_iter().collect();
    if pauses {
        let pauses = GeneratedPauses { priorities, mac: [2, 0, 0, 0, 0, 1], most: Nanos::from_millis(500) };
        receiver.generate_pauses(pauses, PausedNeighbor::new(10_000));
    }
    let honored = HonoredPauses { priorities, global: false, link_mbit_per_s: 10_000 };
    sender.set_pauses(Arc::new(b.program.honor_pauses(honored).expect("a map of pauses")));
    let frame = frame(pair.a.address, 100, 7);
    let (mut paused, mut sent, mut taken, mut last) = (Nanos(0), 0, 0, now());
    // Frames may be with another thread of the kernel for a while.
    while sent < frames || now() < last + Nanos::from_millis(50) {
        let now = now();
        if let Some(until) = sender.take_pauses(now) {
            paused = until[3];
        }
        for _ in 0..16 {
            sent += u64::from(sent < frames && now >= paused && emit(sender, &frame));
        }
        sender.flush();
        receiver.pause_neighbor(now);
        let burst = receiver.rx_burst(4, |_| {});
        receiver.flush();
        taken += burst as u64;
        if burst > 0 || sent < frames {
            last = now;
        }
    }
    let counters = counters(receiver);
    assert_eq!(counters.get("nic_tx_pauses").is_some_and(|sent| *sent > 10), pauses, "{counters:?}");
    (counters["nic_rx_ring_full"] + counters["nic_rx_dropped"], taken)
}

#[test]
fn a_slow_receiver_that_pauses_its_neighbor_loses_nothing() {
    needs_root!();
    let (without, taken) = lost_and_taken(false, 20_000);
    assert!(without > 5000 && without + taken == 20_000, "{without} lost, {taken} taken");
    assert_eq!(lost_and_taken(true, 20_000), (0, 20_000));
}
