//! Traffic classes of an endpoint over time: their parts of a line for packets in flight, of a wire
//! with little room, of frames to no NIC; the accuracy of rates.

use std::collections::BTreeMap;

use roced_transport::{
    ah::AhEntry,
    clock::Nanos,
    counters::QpCount,
    io::{Abort, Egress, EmitError, FrameMut, Wire},
    qp::{PathState, ServiceType},
    turns::{
        classes::{CLASSES, ClassConfig, Selection, TrafficClasses},
        fair::FairOwner,
    },
    wire::{
        dest_qpn,
        opcode::{self, Opcode},
        path::{Path, PathSpec},
    },
    work::{DatagramTo, SendWork},
};
use roced_types::{AccountId, QpAttributes, SendOp, SessionId, attribute, state};

use crate::host::{AH, Fate, OUR_QKEY, PD, Pair, Settings, no_fault, sge, work};

const NIC: Egress = Egress::Nic { flow: 1 };

/// Shares of the first classes; the others are strict.
fn shares<const N: usize>(percent: [u8; N]) -> TrafficClasses {
    let mut classes =
        TrafficClasses { config: [ClassConfig::new(Selection::Strict); CLASSES], ..TrafficClasses::default() };
    for (config, percent) in classes.config.iter_mut().zip(percent) {
        *config = ClassConfig::new(Selection::Ets { percent });
    }
    classes
}

/// Two classes with equal shares, the first of them with a rate.
fn limited(class: usize, kbit_per_s: u32) -> TrafficClasses {
    let mut classes = shares([50, 50]);
    classes.config[class].max_rate_kbit_per_s = kbit_per_s;
    classes
}

/// Has the packets of a queue pair this class and way out.
fn set_path(pair: &mut Pair, index: u32, class: u8, via: Egress) {
    pair.turn_to(index);
    for at in 0..2 {
        let spec = PathSpec { traffic_class: class << 5, via, ..pair.path_spec(at) };
        let path = PathState::Ready(Path::new(&spec).expect("one family"));
        let host = &mut pair.hosts[at];
        host.endpoint.set_path(host.qpn, path).expect("it is there");
    }
}

/// Queue pairs from 5 on, each of its account, with packets of these classes by these ways.
fn pair(settings: Settings, classes: &[(u8, Egress)]) -> Pair {
    let mut pair = Pair::new(Settings { max_qps: 64, ..settings });
    for (index, (class, via)) in (5..).zip(classes) {
        if index > 5 {
            pair.owner = FairOwner { account: AccountId(index), client: SessionId(index), weight: 1 };
            pair.connect_another(index);
        }
        set_path(&mut pair, index, *class, *via);
    }
    pair
}

/// Has queue pair `index` as many WRITEs of these bytes as it may have.
fn fill(pair: &mut Pair, index: u32, bytes: usize) {
    pair.turn_to(index);
    let host = &mut pair.hosts[0];
    while host.endpoint.send_room(host.qpn) > 0 {
        host.post(&work(u64::from(index), SendOp::Write, &[sge(0, bytes)], 500_000));
    }
}

/// Has all queue pairs, one for each of the classes `of`, WRITE these bytes at a time, always with more
/// to send; returns the bytes that each class completes in this time.
fn completed(
    settings: Settings,
    of: &[u8],
    bytes_of: fn(u8) -> usize,
    time: Nanos,
    mut fate: impl FnMut(usize, Opcode, usize) -> Fate,
) -> [usize; CLASSES] {
    let list: Vec<_> = of.iter().map(|class| (*class, NIC)).collect();
    let mut pair = pair(settings, &list);
    let mut completed = [0; CLASSES];
    let end = pair.now + time;
    while pair.now < end {
        for (index, class) in (5..).zip(of) {
            fill(&mut pair, index, bytes_of(*class));
        }
        pair.run_to_next(&mut fate);
        for (index, _) in pair.hosts[0].take() {
            let class = of[index as usize - 5];
            completed[usize::from(class)] += bytes_of(class);
        }
        (pair.trace, pair.answers) = Default::default();
        pair.hosts.iter_mut().for_each(|host| host.last.clear());
    }
    completed
}

const fn full(_: u8) -> usize {
    16_384
}

/// With at most `total_window` packets in flight.
fn in_line(classes: fn() -> TrafficClasses, of: &[u8], total_window: u32, time: Nanos) -> [usize; CLASSES] {
    let settings = Settings { classes: Some(classes), turn_frames: 256, total_window, ..Settings::default() };
    completed(settings, of, full, time, no_fault)
}

/// Part of all in percent.
fn part(completed: [usize; CLASSES], class: usize) -> f64 {
    completed[class] as f64 * 100.0 / completed.iter().sum::<usize>() as f64
}

#[test]
fn the_line_for_packets_in_flight_goes_around_by_shares() {
    let time = Nanos::from_millis(50);
    let of_two = [0, 0, 0, 0, 1, 1, 1, 1];
    for (classes, expected) in
        [((|| shares([70, 30])) as fn() -> _, 70.0), (|| shares([51, 49]), 51.0), (|| shares([1, 99]), 1.0)]
    {
        let part = part(in_line(classes, &of_two, 192, time), 0);
        assert!((part - expected).abs() < 2.0, "{part} % of {expected}");
    }
    let of_three = in_line(|| shares([6, 12, 82]), &[0, 0, 1, 1, 2, 2], 192, time);
    for (class, expected) in [6.0, 12.0, 82.0].into_iter().enumerate() {
        assert!((part(of_three, class) - expected).abs() < 2.0, "{of_three:?}");
    }
}

/// Of which each admission is a larger part.
#[test]
fn one_queue_pair_of_a_class_has_about_its_share_of_the_line() {
    for turn_frames in [16, 256] {
        for (classes, expected) in
            [((|| shares([90, 10])) as fn() -> _, 90.0), (|| shares([50, 50]), 50.0), (|| shares([10, 90]), 10.0)]
        {
            for of in [&[0, 1][..], &[0, 1, 1, 1, 1]] {
                let classes = Some(classes);
                let settings = Settings { classes, turn_frames, total_window: 192, window: 256, ..Settings::default() };
                let late = |from: usize, _, _| if from == 0 { Fate::Late(40) } else { Fate::Deliver };
                let part = part(completed(settings, of, full, Nanos::from_millis(60), late), 0);
                assert!((part - expected).abs() < 4.0, "{part} % of {expected}, {} queue pairs", of.len());
            }
        }
    }
}

/// The packets of a strict class are in flight, and the link is idle.
#[test]
fn a_strict_class_with_a_slow_peer_leaves_others_a_part_of_the_line() {
    let of = [0, 6, 6, 6, 6];
    let late = |from: usize, code, _: usize| {
        if from == 0 && code != opcode::RC_WRITE_ONLY { Fate::Late(400) } else { Fate::Deliver }
    };
    let bytes_of = |class| if class == 0 { 1024 } else { 16_384 };
    let bytes = |classes| {
        let settings = Settings { classes, turn_frames: 64, total_window: 192, window: 128, ..Settings::default() };
        completed(settings, &of, bytes_of, Nanos::from_millis(60), late)[0]
    };
    let (without, beside) = (bytes(None), bytes(Some(|| shares([100]))));
    assert!(beside * 8 > without, "{beside} bytes, {without} without classes");
}

/// One that waits for its rate holds no place in the line that others need.
#[test]
fn a_slow_class_does_not_keep_others_from_the_line() {
    let time = Nanos::from_millis(60);
    for other in [1, 6] {
        for total_window in [32, 192] {
            let of = [0, other, other, other, other];
            let beside = in_line(|| limited(0, 1000), &of, total_window, time)[usize::from(other)];
            let alone = in_line(|| limited(0, 1000), &of[1..], total_window, time)[usize::from(other)];
            assert!(beside * 10 > alone * 9, "class {other}, {total_window} packets: {beside} of {alone}");
        }
    }
}

/// Two classes with these shares, the others strict, and a rate of the device of 80 MB/s.
fn device_limited(percent: [u8; 2]) -> TrafficClasses {
    TrafficClasses { max_rate_kbit_per_s: 640_000, ..shares(percent) }
}

/// One account has two queue pairs of class 0, another one of class 1 and one of class 2, which is
/// strict and has a rate of its own.
#[test]
fn the_rate_of_a_device_is_that_of_its_classes_together() {
    let time = Nanos::from_millis(100);
    let settings = Settings { turn_frames: 64, mtu: 4096, ..Settings::default() };
    for (classes, of, expected) in [
        ((|| device_limited([70, 30])) as fn() -> _, &[0, 0, 1][..], [70, 30, 0]),
        (|| device_limited([50, 50]), &[0], [100, 0, 0]),
        (|| device_limited([20, 80]), &[0, 1, 2], [0, 0, 100]),
        (
            || {
                let mut classes = device_limited([25, 75]);
                classes.config[2].max_rate_kbit_per_s = 320_000;
                classes
            },
            &[0, 0, 1, 2],
            [13, 37, 50],
        ),
    ] {
        let settings = Settings { classes: Some(classes), ..settings };
        let all = completed(settings, of, full, time, no_fault);
        let sum: usize = all.iter().sum();
        assert!(sum.abs_diff(8_000_000) < 400_000, "{all:?}");
        for (class, expected) in expected.into_iter().enumerate() {
            assert!((part(all, class) - f64::from(expected)).abs() < 3.0, "{all:?} of {expected}");
        }
    }
}

/// The device waits for its rate, and frames to this host do not.
#[test]
fn frames_to_this_host_have_no_rate_of_the_device() {
    let settings = Settings {
        classes: Some(|| TrafficClasses { max_rate_kbit_per_s: 1000, ..shares([100]) }),
        window: 100_000,
        ..Settings::default()
    };
    let mut pair = pair(settings, &[(0, NIC), (0, Egress::SameDevice)]);
    (5..=6).for_each(|index| fill(&mut pair, index, 400_000));
    let mut wire = Chunks::default();
    for step in 0..100 {
        let (now, host) = (pair.now + Nanos::from_micros(step * 50), &mut pair.hosts[0]);
        wire.free = 1000;
        host.endpoint.poll_transmit(now, 64, &mut host.app, &mut wire);
    }
    let [to_nic, to_host] = [5, 6].map(|index| wire.sent(index));
    assert!(to_host > 1_500_000 && to_nic < 20_000, "{:?}", wire.sent);
}

/// A NIC with room for some chunks of 2,048 bytes, and a hand-over.
#[derive(Default)]
struct Chunks {
    free: usize,
    is_handover_full: bool,
    /// Bytes by the destination's queue pair.
    sent: BTreeMap<u32, usize>,
}

impl Chunks {
    fn sent(&self, index: u32) -> usize {
        self.sent.get(&index).copied().unwrap_or(0)
    }
}

impl Wire for Chunks {
    fn emit(
        &mut self,
        via: Egress,
        frame_bytes: usize,
        fill: impl FnOnce(&mut FrameMut<'_>) -> Result<(), Abort>,
    ) -> Result<(), EmitError> {
        let needed = if via == NIC { frame_bytes.div_ceil(2048) } else { 0 };
        if via == NIC && self.free < needed || via != NIC && self.is_handover_full {
            return Err(EmitError::Full);
        }
        let mut bytes = vec![0; frame_bytes];
        fill(&mut FrameMut::over(bytes.chunks_mut(frame_bytes))).map_err(|Abort| EmitError::Aborted)?;
        self.free -= needed;
        let index = dest_qpn(&[&bytes]).expect("a request").index();
        *self.sent.entry(index).or_default() += frame_bytes;
        Ok(())
    }
}

/// Calls in which queue pair 5 sends `bytes`, with more room in each.
fn calls_for(pair: &mut Pair, wire: &mut Chunks, budget: usize, room: usize, bytes: usize) -> usize {
    let (now, host) = (pair.now, &mut pair.hosts[0]);
    for calls in 0..2000 {
        if wire.sent(5) >= bytes {
            return calls;
        }
        wire.free = (wire.free + room).min(64);
        host.endpoint.poll_transmit(now, budget, &mut host.app, wire);
    }
    panic!("{} of {bytes} bytes", wire.sent(5));
}

#[test]
fn a_full_hand_over_does_not_hold_up_the_nic() {
    for classes in [None, Some((|| shares([50, 50])) as fn() -> _)] {
        for many in [1, 4, 15] {
            let mut list = vec![(1, NIC)];
            list.resize(1 + many, (0, Egress::SameDevice));
            let mut pair = pair(Settings { classes, window: 4096, ..Settings::default() }, &list);
            (5..6 + many as u32).rev().for_each(|index| fill(&mut pair, index, 60_000));
            let mut wire = Chunks { is_handover_full: true, ..Chunks::default() };
            let calls = calls_for(&mut pair, &mut wire, 16, 1000, 1_000_000);
            assert!(calls < 80, "{calls} calls beside {many}");
        }
    }
}

/// A frame of three chunks finds its room, although one of a single chunk would find it earlier.
#[test]
fn frames_of_many_chunks_have_their_share_of_a_ring_with_little_room() {
    for room in 1..=3 {
        let settings =
            Settings { classes: Some(|| shares([50, 50])), window: 100_000, mtu: 4096, ..Settings::default() };
        let mut pair = pair(settings, &[(0, NIC), (1, NIC)]);
        fill(&mut pair, 5, 100_000);
        fill(&mut pair, 6, 1024);
        let mut wire = Chunks::default();
        calls_for(&mut pair, &mut wire, 64, room, 200_000);
        assert!(wire.sent(6) * 3 > 60 * 1024, "{:?} with {room}", wire.sent);
    }
}

/// Frames to queue pairs of the same host have no class, and a rate is that of frames to the NIC.
#[test]
fn rates_are_those_of_frames_to_the_nic() {
    for limit in [None, Some(1000)] {
        let classes: fn() -> _ = if limit.is_some() { || limited(0, 1000) } else { || shares([50, 50]) };
        let settings = Settings { classes: Some(classes), window: 100_000, mtu: 4096, ..Settings::default() };
        let mut pair = pair(settings, &[(0, NIC), (0, Egress::SameDevice)]);
        (5..=6).for_each(|index| fill(&mut pair, index, 400_000));
        let mut wire = Chunks::default();
        for step in 0..100 {
            let (now, host) = (pair.now + Nanos::from_micros(step * 50), &mut pair.hosts[0]);
            wire.free = 1000;
            host.endpoint.poll_transmit(now, 64, &mut host.app, &mut wire);
        }
        let [to_nic, to_host] = [5, 6].map(|index| wire.sent(index));
        let counters = pair.hosts[0].endpoint.class_counters().expect("it has classes");
        let counted: Vec<u64> = counters.iter().map(|(_, count)| count).collect();
        assert_eq!((counted[1], &counted[2..]), (to_nic as u64, &[0; 14][..]), "bytes of frames to the NIC");
        assert!(counted[0] > 0 && counted[1] / counted[0] > 4096, "frames: {counted:?}");
        assert!(to_host > 5_000_000, "{:?}", wire.sent);
        match limit {
            None => assert!(to_nic * 10 > to_host * 9, "half of all: {:?}", wire.sent),
            Some(_) => assert!(to_nic < 20_000, "5 ms at 125 KB/s, and a frame: {:?}", wire.sent),
        }
    }
}

/// Datagrams have the class of priority 0, not that of frames to no NIC.
/// Puts another address handle there, with packets of this class.
fn insert_ah(pair: &mut Pair, number: u32, class: u8) {
    let path = Path::new(&PathSpec { traffic_class: class << 5, via: NIC, ..pair.path_spec(0) }).expect("one family");
    let handle = AhEntry { pd: PD, path: PathState::Ready(path), mtu_bytes: 1024, static_rate_kbit_per_s: 0 };
    pair.hosts[0].endpoint.insert_ah(number, handle).expect("its number is free");
}

/// Of priority 0 by one address handle, with a rate of 1 MB/s, and of priority 1 by another.
#[test]
fn datagrams_have_the_class_of_their_addresses() {
    let settings = Settings { service: ServiceType::Ud, classes: Some(|| limited(0, 8000)), ..Settings::default() };
    for (ahs, expected) in [([AH; 2], 9_000..15_000), ([3; 2], 500_000..usize::MAX), ([AH, 3], 18_000..30_000)] {
        let mut pair = Pair::new(settings);
        insert_ah(&mut pair, 3, 1);
        let (mut wire, mut next, qpn) = (Chunks::default(), 0, pair.hosts[1].qpn);
        for step in 0..1000 {
            let (now, host) = (pair.now + Nanos::from_micros(step * 10), &mut pair.hosts[0]);
            while host.endpoint.send_room(host.qpn) > 0 {
                let to = DatagramTo { ah: ahs[next % 2], qpn, qkey: OUR_QKEY };
                host.post(&SendWork { to, ..work(1, SendOp::Send, &[sge(0, 1024)], 0) });
                next += 1;
            }
            wire.free = 1000;
            host.endpoint.on_timeout(now, 16, &mut host.app);
            host.endpoint.poll_transmit(now, 64, &mut host.app, &mut wire);
            host.take();
        }
        assert!(expected.contains(&wire.sent(5)), "{ahs:?} in 10 ms: {:?}", wire.sent);
    }
}

/// The first datagram after a pause of the class of the last one is of another class.
#[test]
fn a_datagram_waits_for_the_pauses_of_its_own_class() {
    let settings = Settings { service: ServiceType::Ud, classes: Some(|| shares([50, 50])), ..Settings::default() };
    let mut pair = Pair::new(settings);
    insert_ah(&mut pair, 3, 1);
    let mut wire = Chunks { free: 1000, ..Chunks::default() };
    let (now, qpn) = (pair.now, pair.hosts[1].qpn);
    let host = &mut pair.hosts[0];
    let datagram = |ah| SendWork { to: DatagramTo { ah, qpn, qkey: OUR_QKEY }, ..work(1, SendOp::Send, &[], 0) };
    let mut until = [now; CLASSES];
    until[0] = now + Nanos::from_millis(5);
    host.endpoint.set_pauses(&until);
    for (ah, left) in [(3, 1), (3, 2), (AH, 2), (3, 2)] {
        host.post(&datagram(ah));
        host.endpoint.poll_transmit(now, 64, &mut host.app, &mut wire);
        assert_eq!(host.count(QpCount::RequestPackets), left, "address handle {ah}");
    }
    host.endpoint.on_timeout(until[0], 16, &mut host.app);
    host.endpoint.poll_transmit(until[0], 64, &mut host.app, &mut wire);
    assert_eq!(host.count(QpCount::RequestPackets), 4, "the one behind it has waited");
}

/// A queue pair that fails sends nothing, and completes its work beside a strict class with more than
/// a worker can send; so do frames to queue pairs of the same host.
#[test]
fn neither_a_flush_nor_local_frames_wait_for_a_strict_class() {
    let classes: Option<fn() -> _> = Some(|| shares([50, 50]));
    let settings = Settings { classes, window: 4_000_000, mtu: 4096, ..Settings::default() };
    let mut pair = pair(settings, &[(6, NIC), (0, NIC), (0, Egress::SameDevice)]);
    fill(&mut pair, 5, 1_000_000);
    [6, 7].into_iter().for_each(|index| fill(&mut pair, index, 1000));
    pair.turn_to(6);
    let host = &mut pair.hosts[0];
    let attributes = QpAttributes { state: state::ERR, ..QpAttributes::default() };
    host.endpoint.modify_qp(host.qpn, attribute::STATE, &attributes, None).expect("it may");
    let mut wire = Chunks::default();
    for step in 0..30 {
        wire.free = 1000;
        host.endpoint.poll_transmit(pair.now + Nanos::from_micros(step * 10), 64, &mut host.app, &mut wire);
    }
    let flushed = host.take().len();
    assert!(flushed == 64 && wire.sent(7) > 64_000 && wire.sent(5) > 1_000_000, "{flushed}, {:?}", wire.sent);
}

/// Those at which a frame takes longer than a worker is ever late as well.
#[test]
fn low_rates_hold() {
    for (mbit_per_s, classes) in [(1, (|| limited(0, 1000)) as fn() -> _), (3, || limited(0, 3000))] {
        let settings = Settings { classes: Some(classes), window: 100_000, mtu: 4096, ..Settings::default() };
        let mut pair = pair(settings, &[(0, NIC)]);
        fill(&mut pair, 5, 500_000);
        let mut wire = Chunks::default();
        for step in 0..20_000 {
            let (now, host) = (pair.now + Nanos::from_micros(step * 50), &mut pair.hosts[0]);
            wire.free = 1000;
            host.endpoint.poll_transmit(now, 64, &mut host.app, &mut wire);
        }
        let sent = wire.sent(5) as f64 * 8.0 / 1e6;
        assert!((0.95..1.05).contains(&(sent / f64::from(mbit_per_s))), "{sent} of {mbit_per_s} Mbit in a second");
    }
}

/// At three rates, by a worker that is on time or late by less than a burst.
#[test]
fn a_class_has_its_rate_when_workers_are_late() {
    for (classes, bytes_per_s) in [
        ((|| limited(0, 100_000)) as fn() -> _, 12.5e6),
        (|| limited(0, 1_000_000), 125e6),
        (|| limited(0, 10_000_000), 1250e6),
    ] {
        for late_us in [0, 60, 100] {
            let settings = Settings { classes: Some(classes), window: 4_000_000, mtu: 4096, ..Settings::default() };
            let mut pair = pair(settings, &[(0, NIC)]);
            fill(&mut pair, 5, 500_000);
            let (begin, mut wire, mut most_above) = (pair.now, Chunks::default(), 0.0_f64);
            let (mut now, end) = (begin, begin + Nanos::from_millis(20));
            while now < end {
                let host = &mut pair.hosts[0];
                wire.free = 1000;
                host.endpoint.on_timeout(now, 16, &mut host.app);
                host.endpoint.poll_transmit(now, 64, &mut host.app, &mut wire);
                most_above = most_above.max(wire.sent(5) as f64 - bytes_per_s * (now - begin).0 as f64 / 1e9);
                now = if host.endpoint.wants_transmit() {
                    now + Nanos(500)
                } else {
                    host.endpoint.poll_timeout().max(now) + Nanos::from_micros(late_us)
                };
            }
            let part = wire.sent(5) as f64 / (bytes_per_s * (now - begin).0 as f64 / 1e9);
            assert!((0.95..1.05).contains(&part), "{part} of {bytes_per_s} B/s, {late_us} us late");
            // A turn of 16 full frames, and the burst.
            let bound = 16.0 * 4200.0 + bytes_per_s * 250e-6;
            assert!(most_above < bound, "{most_above} bytes above {bytes_per_s} B/s, {late_us} us late");
        }
    }
}
