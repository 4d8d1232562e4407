//! Frames between two queues arrive unchanged, in order, of any length, and every chunk comes back.

use std::{
    iter,
    time::{Duration, Instant},
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use roced_steering::{self, Verdict};
use roced_transport::io::{Abort, Egress, EmitError, Wire as _};
use roced_types::DeviceId;
use roced_xdp::{AttachedMode, NicQueue, NicQueueConfig};

use crate::{
    frame::{TIMEOUT, counters, emit, frame, receive, send},
    needs_root,
    veth::{MODES, Pair, config},
};

/// Each link MTU with the lengths of frames that go over it: 64 B, path MTU 1024 and 4096, and the
/// longest.
const LINKS: [(u32, &[usize]); 3] =
    [(1500, &[64, 1082, 1514]), (4200, &[64, 1082, 4154, 4214]), (9000, &[64, 1082, 3840, 3841, 4154, 8999, 9014])];

#[test]
fn frames_arrive_byte_for_byte_both_ways() {
    needs_root!();
    for (mtu, lengths) in LINKS {
        let pair = Pair::new(mtu, 1, 1);
        for mode in MODES {
            let (mut a, mut b) = (pair.a.serve(mode, 1), pair.b.serve(mode, 1));
            let (nic_a, nic_b) = (&mut a.queues[0], &mut b.queues[0]);
            assert!(!nic_a.is_zerocopy(), "veth copies");
            for &length in lengths {
                // More than there are chunks, so that all have been round.
                for seed in 0..200 {
                    let (to_b, to_a) =
                        (frame(pair.b.address, length, seed), frame(pair.a.address, length, seed.wrapping_add(99)));
                    send(nic_a, &to_b);
                    send(nic_b, &to_a);
                    assert!(receive(nic_b, 1) == [to_b], "{length} bytes from a to b, MTU {mtu}, {mode:?}");
                    assert!(receive(nic_a, 1) == [to_a], "{length} bytes from b to a, MTU {mtu}, {mode:?}");
                }
            }
            let frames = 200 * lengths.len() as u64;
            for end in [&a, &b] {
                let counters = counters(&end.queues[0]);
                assert_eq!((counters["nic_tx_frames"], counters["nic_rx_frames"]), (frames, frames), "{counters:?}");
                let bytes = 200 * lengths.iter().sum::<usize>() as u64;
                assert_eq!((counters["nic_tx_bytes"], counters["nic_rx_bytes"]), (bytes, bytes), "{counters:?}");
                let verdicts = end.program.verdicts().expect("counters");
                assert_eq!(verdicts[Verdict::Redirected as usize], frames, "{verdicts:?}");
            }
        }
    }
}

#[test]
fn bursts_arrive_in_order() {
    needs_root!();
    let pair = Pair::new(9000, 1, 1);
    for mode in MODES {
        let (mut a, mut b) = (pair.a.serve(mode, 1), pair.b.serve(mode, 1));
        for round in 0..40u8 {
            let lengths = [64, 4154, 1082, 9014, 3840, 3841, 7680, 7681];
            let burst: Vec<_> = (0..24)
                .map(|at| frame(pair.b.address, lengths[(usize::from(round) + at) % lengths.len()], at as u8))
                .collect();
            for frame in &burst {
                assert!(emit(&mut a.queues[0], frame), "room for a burst");
            }
            a.queues[0].flush();
            // A budget that cuts frames in the middle of a batch.
            let mut frames = Vec::new();
            while frames.len() < burst.len() {
                let budget = 1 + usize::from(round) % 7;
                let count = b.queues[0].rx_burst(budget, |segments| frames.push(segments.concat()));
                assert!(count <= budget);
                a.queues[0].flush();
            }
            assert!(frames == burst, "round {round}, {mode:?}");
        }
    }
}

/// In native mode TX queue k goes to the peer's RX queue k. In generic mode the kernel reads the
/// queue number that the sender left in the skb, its TX queue, as an RX queue plus one, so on veth
/// frames of TX queue 1 arrive on RX queue 0. Either way they reach the socket of the queue of
/// their arrival, and no other.
#[test]
fn several_queues_do_not_mix() {
    needs_root!();
    let pair = Pair::new(4200, 3, 3);
    for mode in MODES {
        let (mut a, mut b) = (pair.a.serve(mode, 3), pair.b.serve(mode, 3));
        for seed in 0..60 {
            for tx_queue in 0..3 {
                let bytes = frame(pair.b.address, 4154, seed * 3 + tx_queue as u8);
                send(&mut a.queues[tx_queue], &bytes);
                let rx_queue = match mode.1 {
                    AttachedMode::Native => tx_queue,
                    AttachedMode::Generic => tx_queue.saturating_sub(1),
                };
                assert!(receive(&mut b.queues[rx_queue], 1) == [bytes], "TX queue {tx_queue}, {mode:?}");
                let strays: usize = b.queues.iter_mut().map(|queue| queue.rx_burst(8, |_| ())).sum();
                assert_eq!(strays, 0, "TX queue {tx_queue}, {mode:?}");
            }
        }
    }
}

/// Tags are in the bytes that the program sees and in those that arrive.
#[test]
fn tagged_frames_arrive_with_their_tags() {
    needs_root!();
    let pair = Pair::new(4200, 1, 1);
    for mode in MODES {
        let (mut a, mut b) = (pair.a.serve(mode, 1), pair.b.serve(mode, 1));
        for tags in [&[0x81, 0x00, 0x60, 0x64][..], &[0x88, 0xa8, 0, 7, 0x81, 0x00, 0xe0, 0x64]] {
            for length in [64, 4154] {
                let mut bytes = frame(pair.b.address, length, 1);
                bytes.splice(12..12, tags.iter().copied());
                send(&mut a.queues[0], &bytes);
                assert!(receive(&mut b.queues[0], 1) == [bytes], "{tags:x?}, {length} bytes, {mode:?}");
            }
        }
    }
}

/// A frame in more chunks than the transport takes is dropped whole and counted, and the frames
/// around it are not harmed.
#[test]
fn a_frame_of_too_many_chunks_is_dropped_and_counted() {
    needs_root!();
    let pair = Pair::new(9000, 1, 1);
    for mode in MODES {
        let small = NicQueueConfig { chunk_bytes: 2048, ..config() };
        let (mut a, mut b) = (pair.a.serve(mode, 1), pair.b.serve_with(mode, iter::once(small)));
        let fits = b.queues[0].frame_bytes_max();
        assert_eq!(fits, 4 * (2048 - 256));
        for seed in 0..200 {
            let right = frame(pair.b.address, fits, seed);
            send(&mut a.queues[0], &frame(pair.b.address, fits + 1, seed)); // five chunks
            send(&mut a.queues[0], &frame(pair.b.address, 9014, seed)); // six
            send(&mut a.queues[0], &right);
            assert!(receive(&mut b.queues[0], 1) == [right], "{mode:?}");
        }
        let counters = counters(&b.queues[0]);
        assert_eq!((counters["nic_rx_too_long"], counters["nic_rx_frames"]), (400, 200), "{counters:?}");
    }
}

/// Several chunks are asked for only where frames need them: with some drivers they cost zero-copy.
#[test]
fn a_frame_of_a_small_mtu_is_one_chunk() {
    needs_root!();
    let pair = Pair::new(1500, 1, 1);
    for (link_mtu_bytes, chunks) in [(1500, 1), (9000, 4)] {
        let config = NicQueueConfig { link_mtu_bytes, ..config() };
        let one = pair.b.serve_with(MODES[0], iter::once(config.clone()));
        let frame_bytes = config.chunk_bytes as usize - 256;
        assert_eq!(one.queues[0].frame_bytes_max(), chunks * frame_bytes, "MTU {link_mtu_bytes}");
        assert!(!one.queues[0].is_zerocopy());
        assert_ne!(one.queues[0].mode_reason(), "");
    }
}

/// The receiver does not poll while its rings overflow. Missing frames are counted, and afterwards
/// all is as before.
#[test]
fn an_overrun_loses_frames_and_nothing_else() {
    needs_root!();
    let pair = Pair::new(4200, 1, 1);
    for mode in MODES {
        let (mut a, mut b) = (pair.a.serve(mode, 1), pair.b.serve(mode, 1));
        let bytes = frame(pair.b.address, 4154, 5);
        for _ in 0..3 {
            for _ in 0..2000 {
                send(&mut a.queues[0], &bytes);
            }
            while b.queues[0].rx_burst(64, |segments| assert!(segments.concat() == bytes)) > 0 {}
        }
        let counted = counters(&b.queues[0]);
        let lost = counted["nic_rx_dropped"] + counted["nic_rx_ring_full"];
        assert_eq!(counted["nic_rx_frames"] + lost, 6000, "{counted:?}, {mode:?}");
        assert!(lost > 3000, "rings for 128 frames ran over: {counted:?}");
        for seed in 0..100 {
            let bytes = frame(pair.b.address, 4154, seed);
            send(&mut a.queues[0], &bytes);
            assert!(receive(&mut b.queues[0], 1) == [bytes]);
        }
    }
}

/// No room is said before the frame is written, and the room comes back.
#[test]
fn a_full_queue_says_so_and_an_aborted_frame_costs_nothing() {
    needs_root!();
    let pair = Pair::new(4200, 1, 1);
    let (mut a, mut b) = (pair.a.serve(MODES[0], 1), pair.b.serve(MODES[0], 1));
    let (nic_a, nic_b) = (&mut a.queues[0], &mut b.queues[0]);
    for _ in 0..1000 {
        assert_eq!(nic_a.emit(Egress::HandOver { to: DeviceId(0) }, 4154, |_| Err(Abort)), Err(EmitError::Aborted));
    }
    let bytes = frame(pair.b.address, 4154, 1);
    let in_flight = iter::repeat_with(|| emit(nic_a, &bytes)).take_while(|&emitted| emitted).count();
    assert_eq!(in_flight, 64, "128 chunks, two each");
    assert!(nic_a.has_pending_tx());
    let called = |frame: &mut roced_transport::io::FrameMut<'_>| unreachable!("no room, and yet {frame:?}");
    assert_eq!(nic_a.emit(Egress::HandOver { to: DeviceId(0) }, 4154, called), Err(EmitError::Full));
    nic_a.flush();
    assert_eq!(receive(nic_b, 64), vec![bytes.clone(); 64]);
    assert!(!nic_a.has_pending_tx());
    nic_a.flush();
    assert!(emit(nic_a, &bytes));
    let counters = counters(nic_a);
    // One by `take_while`, one by the test above.
    assert_eq!((counters["nic_tx_full"], counters["nic_tx_frames"]), (2, 65), "{counters:?}");
}

/// A frame waits while too many bytes are before it, and the worker does not sleep over their end.
#[test]
fn bytes_ahead_have_a_limit() {
    needs_root!();
    let pair = Pair::new(4200, 1, 1);
    let (mut a, mut b) = (pair.a.serve(MODES[0], 1), pair.b.serve(MODES[0], 1));
    let (nic_a, nic_b) = (&mut a.queues[0], &mut b.queues[0]);
    let bytes = frame(pair.b.address, 4154, 1);
    nic_a.limit_ahead(10_000);
    for _ in 0..3 {
        let taken = iter::repeat_with(|| emit(nic_a, &bytes)).take_while(|&emitted| emitted).count();
        assert_eq!(taken, 3, "8,308 bytes are below the limit");
        nic_a.limit_ahead(usize::MAX);
        assert!(emit(nic_a, &bytes), "a frame of another class");
        nic_a.limit_ahead(10_000);
        nic_a.flush();
        assert_eq!(receive(nic_b, 4), vec![bytes.clone(); 4]);
        nic_a.flush();
        assert!(!nic_a.prepare_sleep(), "all have left");
    }
    let counters = counters(nic_a);
    assert_eq!((counters["nic_tx_ahead_full"], counters["nic_tx_full"]), (3, 0), "{counters:?}");
}

/// An address that comes or goes decides at once, and does not disturb the others.
#[test]
fn only_our_addresses_are_redirected() {
    needs_root!();
    let pair = Pair::new(1500, 1, 1);
    let (mut a, mut b) = (pair.a.serve(MODES[0], 1), pair.b.serve(MODES[0], 1));
    let extra = "10.77.0.77".parse().expect("an address");
    let mut expected = [0; Verdict::ALL.len()];
    for addresses in
        [vec![pair.b.address], vec![pair.b.address, extra], vec![extra], vec![], vec![extra, pair.b.address]]
    {
        b.program.set_addresses(&addresses, roced_steering::ROCE_V2).expect("room for addresses");
        for destination in [pair.b.address, extra] {
            let bytes = frame(destination, 64, 7);
            send(&mut a.queues[0], &bytes);
            let ours = addresses.contains(&destination);
            expected[if ours { Verdict::Redirected } else { Verdict::PassNotOurs } as usize] += 1;
            if ours {
                assert!(receive(&mut b.queues[0], 1) == [bytes]);
            }
            // The kernel may be late with a frame that passes; other addresses must not decide of
            // it.
            let passed = Verdict::PassNotOurs as usize;
            let begin = Instant::now();
            while b.program.verdicts().expect("counters")[passed] < expected[passed] {
                assert!(begin.elapsed() < TIMEOUT, "{:?}", b.program.verdicts());
            }
        }
    }
    // The kernel of b talks on the side (neighbor discovery), but not RoCE.
    let verdicts = b.program.verdicts().expect("counters");
    for verdict in [Verdict::Redirected, Verdict::PassNotOurs, Verdict::PassNoSocket, Verdict::PassMalformed] {
        assert_eq!(verdicts[verdict as usize], expected[verdict as usize], "{verdict:?}");
    }
}

#[test]
fn a_frame_wakes_a_polling_thread() {
    needs_root!();
    let pair = Pair::new(1500, 1, 1);
    let (mut a, mut b) = (pair.a.serve(MODES[0], 1), pair.b.serve(MODES[0], 1));
    let ready = |nic: &NicQueue, timeout: Duration| {
        let timeout = PollTimeout::try_from(timeout).expect("a short time");
        poll(&mut [PollFd::new(nic.socket(), PollFlags::POLLIN)], timeout).expect("poll(2)") == 1
    };
    assert!(!b.queues[0].prepare_sleep(), "no work: may sleep");
    assert!(!ready(&b.queues[0], Duration::from_millis(20)));
    let bytes = frame(pair.b.address, 64, 1);
    let sleeper = std::thread::spawn(move || {
        assert!(ready(&b.queues[0], Duration::from_secs(5)), "woken");
        b
    });
    std::thread::sleep(Duration::from_millis(20));
    send(&mut a.queues[0], &bytes);
    let mut b = sleeper.join().expect("no panic");
    assert!(b.queues[0].prepare_sleep(), "a frame is there: no sleep");
    assert!(receive(&mut b.queues[0], 1) == [bytes]);
    assert!(!b.queues[0].prepare_sleep());
}

/// Frames cannot leave while the link is down. That is counted, and is no reason to stay awake.
#[test]
fn a_link_that_is_down_does_not_keep_us_awake() {
    needs_root!();
    let pair = Pair::new(1500, 1, 1);
    let (mut a, mut b) = (pair.a.serve(MODES[0], 1), pair.b.serve(MODES[0], 1));
    pair.a.ip(&["link", "set", "veth0", "down"]);
    let bytes = frame(pair.b.address, 64, 1);
    // Bytes that cannot leave are before no other frame.
    a.queues[0].limit_ahead(100);
    assert!(emit(&mut a.queues[0], &bytes) && emit(&mut a.queues[0], &bytes) && !emit(&mut a.queues[0], &bytes));
    a.queues[0].flush();
    assert!(!a.queues[0].prepare_sleep());
    assert_eq!(counters(&a.queues[0])["nic_tx_kicks_failed"], 1);
    pair.a.ip(&["link", "set", "veth0", "up"]);
    let bytes = frame(pair.b.address, 64, 2);
    send(&mut a.queues[0], &bytes);
    assert!(receive(&mut b.queues[0], 3).contains(&bytes));
    assert!(!a.queues[0].prepare_sleep());
}
