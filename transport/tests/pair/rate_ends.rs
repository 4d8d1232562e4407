//! Highest rates of accounts, classes and devices beside queue pairs that fail, end or are
//! destroyed.

use roced_transport::{
    clock::Nanos,
    counters::QpCount,
    mr::MrKey,
    psn::Psn,
    qp::{PathState, ServiceType},
    turns::{
        class_pause::PauseWatchdog,
        classes::{CLASSES, TrafficClasses},
        fair::FairOwner,
    },
    wire::{bth::Bth, headers::Headers, opcode, reth::Reth},
};
use roced_types::{AccountId, QpAttributes, SendOp, SessionId, Status, attribute, state};

use crate::{
    account_rates::{FIRST, MEGABYTE, fill, limited},
    host::{Fate, KEY, Pair, Settings, VA, no_fault, sge, work},
    selective::warm,
};

/// Forgets the records that other tests look at.
fn tidy(pair: &mut Pair) {
    (pair.trace, pair.answers) = Default::default();
    pair.hosts.iter_mut().for_each(|host| host.last.clear());
}

/// Time until host 0 completes one small WRITE, at most 10 s.
fn time_of_one(pair: &mut Pair) -> Nanos {
    let begin = pair.now;
    pair.hosts[0].post(&work(1, SendOp::Write, &[sge(0, 100)], 500_000));
    while pair.now < begin + Nanos::from_millis(10_000) {
        // Beside it work of failed queue pairs is flushed.
        if let Some((_, status)) = pair.hosts[0].take().into_iter().find(|(id, _)| *id == 1) {
            assert_eq!(status, Status::Success);
            break;
        }
        pair.run_to_next(&mut |_, _, _| Fate::Deliver);
    }
    pair.now - begin
}

#[test]
fn queue_pairs_that_end_while_they_wait_take_no_time_with_them() {
    for end in ["failed", "destroyed", "reset"] {
        let (mut pair, _) = limited(Settings::default(), 0, MEGABYTE, 100);
        (FIRST..FIRST + 100).for_each(|index| fill(&mut pair, index, SendOp::Write, 2048));
        pair.run(Nanos::from_millis(20), no_fault);
        for index in FIRST..FIRST + 100 {
            pair.turn_to(index);
            let host = &mut pair.hosts[0];
            match end {
                "failed" => drop(host.endpoint.fail_qps(0, 128)),
                "destroyed" => drop(host.endpoint.remove_qp(host.qpn)),
                _ => {
                    let reset = QpAttributes { state: state::RESET, ..Default::default() };
                    host.endpoint.modify_qp(host.qpn, attribute::STATE, &reset, None).expect("always");
                }
            }
        }
        pair.run(Nanos::from_millis(1), no_fault);
        pair.connect_another(FIRST + 100);
        let took = time_of_one(&mut pair);
        // It may have booked its turn before all others had ended, and looks ten times a second.
        assert!(took < Nanos::from_millis(110), "{end}: {took:?}");
    }
}

/// Each program posts, waits, and gives up.
#[test]
fn connections_made_again_and_again_do_not_silence_their_account() {
    let (mut pair, _) = limited(Settings::default(), 0, 1000, 1);
    for _ in 0..20 {
        for index in 20..100 {
            pair.connect_another(index);
            pair.hosts[0].post(&work(1, SendOp::Write, &[sge(0, 1024)], 500_000));
        }
        pair.run(Nanos::from_millis(1), no_fault);
        for index in 20..100 {
            pair.turn_to(index);
            let now = pair.now;
            for host in &mut pair.hosts {
                host.endpoint.silence(host.qpn);
                host.endpoint.transmit_of(now, host.qpn, 64, &mut host.app, &mut host.nic);
                drop(host.endpoint.remove_qp(host.qpn));
            }
        }
        tidy(&mut pair);
    }
    pair.turn_to(FIRST);
    let took = time_of_one(&mut pair);
    // The rests of those that were served, and the turns of this one.
    assert!(took < Nanos::from_millis(2500), "{took:?}");
}

/// Host 1 takes a READ of so many bytes, and behind it a WRITE that it refuses: it fails.
fn fail_behind_a_read(pair: &mut Pair, psn: Psn, bytes: usize) {
    let headers = |opcode, psn, rkey, length: usize| {
        let reth = Reth { va: VA, rkey, length: length as u32 };
        Headers { reth: Some(reth), ..Headers::new(Bth::new(opcode, pair.hosts[1].qpn, psn)) }
    };
    let responses = bytes.div_ceil(pair.settings.mtu as usize) as u32;
    let read = headers(opcode::RC_READ_REQUEST, psn, KEY, bytes);
    let bad = headers(opcode::RC_WRITE_ONLY, psn.plus(responses), MrKey(0xdead), 8);
    for (headers, payload) in [(read, &[][..]), (bad, &[7; 8])] {
        let frame = pair.frame(0, &headers, payload);
        pair.deliver(1, &frame);
    }
    assert_eq!(pair.hosts[1].state(), "ERR");
}

/// Frames of READ responses, and of NAKs, that host 1 sends in this time.
fn answers(pair: &mut Pair, time: Nanos) -> (usize, usize) {
    let (end, mut all) = (pair.now + time, (0, 0));
    while pair.now < end {
        let (now, host) = (pair.now, &mut pair.hosts[1]);
        host.endpoint.on_timeout(now, 16, &mut host.app);
        host.endpoint.poll_transmit(now, 64, &mut host.app, &mut host.nic);
        for frame in host.nic.frames.drain(..) {
            match frame[42] {
                0x0d..=0x10 => all.0 += 1,
                0x11 => all.1 += 1,
                _ => {}
            }
        }
        pair.now = pair.now + Nanos::from_micros(10);
    }
    all
}

#[test]
fn a_queue_pair_that_fails_while_its_account_waits_says_so_later() {
    let settings = Settings { retry_cnt: 7, timeout: 14, ..Settings::default() };
    let (mut pair, _) = limited(settings, 1, MEGABYTE / 10, 2);
    // The rest of another one: half a second of the rate.
    pair.turn_to(FIRST + 1);
    for _ in 0..5 {
        pair.hosts[1].post(&work(9, SendOp::Write, &[sge(0, 16_384)], 0));
    }
    let (now, host) = (pair.now, &mut pair.hosts[1]);
    while host.endpoint.transmit_of(now, host.qpn, 1000, &mut host.app, &mut host.nic).visits > 0 {}
    let rest = host.nic.frames.drain(..).count();
    assert!((45..60).contains(&rest), "{rest}");
    pair.turn_to(FIRST);
    let psn = Psn::new(pair.settings.psn);
    fail_behind_a_read(&mut pair, psn, 20_000);
    assert_eq!(answers(&mut pair, Nanos::from_millis(100)), (0, 0));
    assert_eq!(answers(&mut pair, Nanos::from_millis(2000)), (20, 1));
}

fn without_watchdog() -> TrafficClasses {
    let watchdog = PauseWatchdog { detection: Nanos::NEVER, ..PauseWatchdog::default() };
    TrafficClasses { watchdog, ..TrafficClasses::default() }
}

fn device_of_a_megabyte() -> TrafficClasses {
    TrafficClasses { max_rate_kbit_per_s: MEGABYTE, ..without_watchdog() }
}

fn classes_of_a_megabyte() -> TrafficClasses {
    let mut classes = without_watchdog();
    classes.config.iter_mut().for_each(|config| config.max_rate_kbit_per_s = MEGABYTE);
    classes
}

#[test]
fn the_last_answers_of_a_failed_queue_pair_wait_as_those_of_others() {
    for limit in ["pause", "device", "class"] {
        let classes = match limit {
            "device" => device_of_a_megabyte,
            "class" => classes_of_a_megabyte,
            _ => without_watchdog,
        };
        let mut pair = warm(Settings { classes: Some(classes), ..Settings::default() });
        let until = pair.now + Nanos::from_millis(30);
        if limit == "pause" {
            pair.hosts[1].endpoint.set_pauses(&[until; CLASSES]);
        }
        for _ in 0..12 {
            pair.hosts[1].post_recv(3, &[sge(0, 8)]);
        }
        let psn = Psn::new(pair.settings.psn).plus(20);
        fail_behind_a_read(&mut pair, psn, 200_000);
        let (responses, naks) = answers(&mut pair, Nanos::from_millis(29));
        // A burst of eight full frames and 29 ms.
        let most = if limit == "pause" { 0 } else { 62_500 / 1024 + 4 };
        assert!(responses <= most && naks == 0, "{limit}: {responses} responses, {naks} NAKs");
        let flushed = pair.hosts[1].take();
        assert_eq!(flushed.len(), 12, "{limit}: work is flushed at once: {flushed:?}");
        let (rest, naks) = answers(&mut pair, Nanos::from_millis(300));
        assert_eq!((responses + rest, naks), (196, 1), "{limit}");
    }
}

/// An account has its work sent as the rest of queue pairs, one after the other, another one by
/// turns, where the device or their class has a highest rate.
#[test]
fn rests_leave_others_half_of_the_rate_of_a_device_or_class() {
    let device: fn() -> TrafficClasses = || TrafficClasses { max_rate_kbit_per_s: 10 * MEGABYTE, ..without_watchdog() };
    let class: fn() -> TrafficClasses = || {
        let mut classes = without_watchdog();
        classes.config[0].max_rate_kbit_per_s = 10 * MEGABYTE;
        classes
    };
    for (name, classes, is_first) in
        [("device", device, true), ("device", device, false), ("class", class, true), ("class", class, false)]
    {
        let settings = Settings { service: ServiceType::Uc, mtu: 4096, classes: Some(classes), ..Settings::default() };
        let mut pair = Pair::new(Settings { max_qps: 16, turn_frames: 64, ..settings });
        pair.owner = FairOwner { account: AccountId(1), client: SessionId(1), weight: 1 };
        pair.connect_another(FIRST);
        let qpn = pair.hosts[0].qpn;
        pair.hosts[0].endpoint.silence(qpn);
        pair.owner = FairOwner { account: AccountId(2), client: SessionId(2), weight: 1 };
        pair.connect_another(FIRST + 1);
        let (end, mut bytes) = (pair.now + Nanos::from_millis(1000), [0_u64; 2]);
        while pair.now < end {
            // The worker sends the rest before or after its turns of others.
            for is_rest in [is_first, !is_first] {
                if is_rest {
                    fill(&mut pair, FIRST, SendOp::Write, 4096);
                    let (now, host) = (pair.now, &mut pair.hosts[0]);
                    let sent = host.endpoint.transmit_of(now, host.qpn, 1000, &mut host.app, &mut host.nic);
                    bytes[0] += 4096 * sent.visits as u64;
                } else {
                    fill(&mut pair, FIRST + 1, SendOp::Write, 4096);
                    pair.turn(&mut no_fault);
                }
            }
            pair.now = pair.now + Nanos::from_micros(20);
            let done = pair.hosts[0].take();
            bytes[1] += 4096 * done.iter().filter(|(id, _)| *id == u64::from(FIRST) + 1).count() as u64;
            tidy(&mut pair);
        }
        let all = bytes[0] + bytes[1];
        assert!((9_300_000..10_200_000).contains(&all), "{name}: {bytes:?}");
        assert!(bytes.iter().all(|bytes| *bytes * 100 > all * 40), "{name}, {is_first}: {bytes:?}");
    }
}

/// Two queue pairs with large messages and a hundred with one small one each, beside each other:
/// the rate is used.
#[test]
fn small_messages_beside_large_ones_leave_the_rate_in_use() {
    for (service, kbit_per_s, total_window) in
        [(ServiceType::Uc, 100_000, u32::MAX), (ServiceType::Rc, 100_000, 64), (ServiceType::Rc, 1_000_000, u32::MAX)]
    {
        let settings = Settings { service, total_window, mtu: 4096, ..Settings::default() };
        let (mut pair, _) = limited(settings, 0, kbit_per_s, 102);
        let sent =
            |pair: &Pair| pair.hosts[0].count(QpCount::SentBytes) + 74 * pair.hosts[0].count(QpCount::RequestPackets);
        let mut is_posted = [false; 128];
        let (begin, mut half) = (pair.now, 0);
        while pair.now < begin + Nanos::from_millis(400) {
            for index in [FIRST, FIRST + 1] {
                fill(&mut pair, index, SendOp::Write, 65_536);
            }
            for index in FIRST + 2..FIRST + 102 {
                if !core::mem::replace(&mut is_posted[index as usize], true) {
                    pair.turn_to(index);
                    pair.hosts[0].post(&work(u64::from(index), SendOp::Write, &[sge(0, 100)], 500_000));
                }
            }
            pair.run_to_next(&mut no_fault);
            for (index, status) in pair.hosts[0].take() {
                assert_eq!(status, Status::Success);
                is_posted[index as usize] = false;
            }
            tidy(&mut pair);
            half = if pair.now < begin + Nanos::from_millis(200) { sent(&pair) } else { half };
        }
        let (bytes, most) = (sent(&pair) - half, u64::from(kbit_per_s) * 25);
        assert!(bytes * 100 > most * 90 && bytes * 100 < most * 105, "{service:?} {kbit_per_s}: {bytes} of {most}");
    }
}

/// It has turns as long as those of the others.
#[test]
fn a_stream_of_small_messages_has_its_share_beside_large_ones() {
    for kbit_per_s in [10_000, 1_000_000] {
        let settings = Settings { service: ServiceType::Uc, mtu: 4096, ..Settings::default() };
        let (mut pair, _) = limited(settings, 0, kbit_per_s, 3);
        let (end, mut bytes) = (pair.now + Nanos::from_millis(500), [0_u64; 2]);
        while pair.now < end {
            for (index, bytes) in [(FIRST, 65_536), (FIRST + 1, 65_536), (FIRST + 2, 64)] {
                fill(&mut pair, index, SendOp::Write, bytes);
            }
            pair.turn(&mut no_fault);
            pair.now = pair.now + Nanos::from_micros(2);
            for (index, _) in pair.hosts[0].take() {
                let is_small = index == u64::from(FIRST) + 2;
                bytes[usize::from(is_small)] += if is_small { 64 + 74 } else { 65_536 };
            }
            tidy(&mut pair);
        }
        let all = bytes[0] + bytes[1];
        assert!(all * 100 > u64::from(kbit_per_s) * 125 / 2 * 90, "{kbit_per_s}: {bytes:?}");
        assert!(bytes[1] * 4 > all, "{kbit_per_s}: {bytes:?}");
    }
}

/// A message of each of many queue pairs at once, as at a barrier.
#[test]
fn a_small_message_of_each_of_many_queue_pairs_does_not_wait_for_full_turns() {
    let (mut pair, _) = limited(Settings::default(), 0, 10_000, 100);
    for round in 0..3 {
        let begin = pair.now;
        for index in FIRST..FIRST + 100 {
            pair.turn_to(index);
            pair.hosts[0].post(&work(1, SendOp::Write, &[sge(0, 100)], 500_000));
        }
        let mut done = 0;
        while done < 100 {
            pair.run_to_next(&mut no_fault);
            done += pair.hosts[0].take().len();
        }
        // 17 KB; the first turns are of full frames.
        let took = pair.now - begin;
        assert!(took < Nanos::from_millis(if round == 0 { 340 } else { 30 }), "round {round}: {took:?}");
        pair.now = pair.now + Nanos::from_millis(100);
        tidy(&mut pair);
    }
}

/// Queue pairs are filled and destroyed without end, at a rate of which a visit has seconds.
#[test]
fn rests_have_the_rate_of_their_account_in_the_long_run() {
    let settings = Settings { service: ServiceType::Uc, mtu: 4096, ..Settings::default() };
    let (mut pair, _) = limited(settings, 0, 1000, 1);
    pair.turn_to(FIRST);
    let (begin, mut bytes) = (pair.now, 0);
    while pair.now < begin + Nanos::from_millis(30_000) {
        fill(&mut pair, FIRST, SendOp::Write, 65_536);
        let (now, host) = (pair.now, &mut pair.hosts[0]);
        host.endpoint.transmit_of(now, host.qpn, 128, &mut host.app, &mut host.nic);
        bytes += host.nic.frames.drain(..).map(|frame| frame.len()).sum::<usize>();
        host.take();
        pair.now = pair.now + Nanos::from_millis(5);
    }
    assert!((3_600_000..3_750_000 + 80_000).contains(&bytes), "{bytes} of 3,750,000 and half a second");
}

/// A program goes on to post receives to a failed queue pair with last answers that are held up.
#[test]
fn work_that_is_posted_after_a_failure_is_flushed_at_once() {
    let mut pair = warm(Settings { classes: Some(without_watchdog), ..Settings::default() });
    let until = pair.now + Nanos::from_millis(30);
    pair.hosts[1].endpoint.set_pauses(&[until; CLASSES]);
    let psn = Psn::new(pair.settings.psn).plus(20);
    fail_behind_a_read(&mut pair, psn, 20_000);
    assert_eq!(answers(&mut pair, Nanos::from_millis(1)), (0, 0));
    pair.hosts[1].take();
    for _ in 0..12 {
        pair.hosts[1].post_recv(3, &[sge(0, 8)]);
    }
    assert_eq!(answers(&mut pair, Nanos::from_millis(1)), (0, 0));
    assert_eq!(pair.hosts[1].take().len(), 12);
    pair.hosts[1].post(&work(4, SendOp::Write, &[sge(0, 8)], 8));
    assert_eq!(answers(&mut pair, Nanos::from_millis(1)), (0, 0));
    assert_eq!(pair.hosts[1].take().len(), 1);
    assert_eq!(answers(&mut pair, Nanos::from_millis(40)), (20, 1));
}

/// A rest is of a class without a rate, beside a class with a low one that always has work.
#[test]
fn a_rest_does_not_wait_for_classes_that_wait_themselves() {
    let classes: fn() -> TrafficClasses = || {
        let mut classes = TrafficClasses { max_rate_kbit_per_s: 100 * MEGABYTE, ..without_watchdog() };
        classes.config[1].max_rate_kbit_per_s = 1000;
        classes
    };
    let settings = Settings { service: ServiceType::Uc, mtu: 4096, classes: Some(classes), ..Settings::default() };
    let mut pair = Pair::new(Settings { max_qps: 16, turn_frames: 64, ..settings });
    pair.connect_another(FIRST);
    let qpn = pair.hosts[0].qpn;
    pair.hosts[0].endpoint.silence(qpn);
    pair.connect_another(FIRST + 1);
    let path = pair.path(0).with_class(8 << 2, 0);
    let host = &mut pair.hosts[0];
    host.endpoint.set_path(host.qpn, PathState::Ready(path)).expect("it is there");
    let (begin, mut bytes) = (pair.now, 0);
    while pair.now < begin + Nanos::from_millis(200) {
        fill(&mut pair, FIRST + 1, SendOp::Write, 4096);
        pair.turn(&mut no_fault);
        fill(&mut pair, FIRST, SendOp::Write, 4096);
        let (now, host) = (pair.now, &mut pair.hosts[0]);
        let sent = host.endpoint.transmit_of(now, host.qpn, 1000, &mut host.app, &mut host.nic);
        bytes += 4096 * sent.visits;
        pair.now = pair.now + Nanos::from_micros(20);
        pair.hosts[0].take();
        tidy(&mut pair);
    }
    assert!(bytes > 15_000_000, "{bytes} of 20,000,000");
}

/// Those of a peer that has a key.
#[test]
fn answers_to_atomic_operations_have_the_rate_of_their_account() {
    let (mut pair, _) = limited(Settings::default(), 1, MEGABYTE, 4);
    let (end, mut done) = (pair.now + Nanos::from_millis(300), 0);
    while pair.now < end {
        for index in FIRST..FIRST + 4 {
            pair.turn_to(index);
            while pair.hosts[0].endpoint.send_room(pair.hosts[0].qpn) > 0 {
                pair.hosts[0].post(&work(1, SendOp::FetchAdd, &[sge(0, 8)], 8));
            }
        }
        pair.run_to_next(&mut no_fault);
        done += pair.hosts[0].take().len();
        tidy(&mut pair);
    }
    // 70 bytes each, of 300 KB and the burst.
    assert!((3500..5000).contains(&done), "{done}");
}

/// The last frame of a turn may exceed it, which the next one pays for.
#[test]
fn small_messages_before_a_large_one_have_the_rate_of_their_account() {
    let settings = Settings { service: ServiceType::Uc, mtu: 4096, ..Settings::default() };
    let (mut pair, _) = limited(settings, 0, 1000, 100);
    let (end, mut count) = (pair.now + Nanos::from_millis(10_000), 0_u32);
    while pair.now < end {
        for index in FIRST..FIRST + 100 {
            pair.turn_to(index);
            let host = &mut pair.hosts[0];
            while host.endpoint.send_room(host.qpn) > 0 {
                count += 1;
                let size = if count.is_multiple_of(25) { 4096 } else { 80 };
                host.post(&work(u64::from(index), SendOp::Write, &[sge(0, size)], 500_000));
            }
        }
        pair.run_to_next(&mut no_fault);
        pair.hosts[0].take();
        tidy(&mut pair);
    }
    let host = &pair.hosts[0];
    let bytes = host.count(QpCount::SentBytes) + 74 * host.count(QpCount::RequestPackets);
    assert!((1_100_000..1_250_000 + 80_000).contains(&bytes), "{bytes} in ten seconds of 125,000");
}
