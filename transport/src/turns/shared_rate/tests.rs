//! Senders at a shared rate, in virtual time.

use alloc::{collections::BTreeSet, vec, vec::Vec};

use super::*;

/// 1 MB/s.
const MEGABYTE: u32 = 8000;

const START: Nanos = Nanos::from_millis(1000);

/// That of rates below 1 Gbit/s, bytes.
const BURST_BYTES: usize = (BURST_FRAMES * FULL_FRAME) as usize;

fn burst_bytes(kbit_per_s: u32) -> usize {
    (burst_of(kbit_per_s).0 * u64::from(kbit_per_s) / 8_000_000) as usize
}

fn shared(kbit_per_s: u32) -> Arc<SharedRate> {
    Arc::new(SharedRate::new(kbit_per_s))
}

/// Bytes that each of these sends in a second, a turn at a time. The first is looked at every
/// microsecond, the others 10 us after their deadlines.
fn sent(rates: &mut [RateTurns]) -> Vec<usize> {
    let mut sent = vec![0; rates.len()];
    let mut next = vec![START; rates.len()];
    let mut now = START;
    while now < START + Nanos::from_millis(1000) {
        for (at, rate) in rates.iter_mut().enumerate() {
            if next[at] > now {
                continue;
            }
            if rate.turn_begin(now) <= now {
                let bytes = rate.frames(TURN_FRAMES) * FULL_FRAME as usize;
                rate.on_sent(now, bytes);
                sent[at] += bytes;
            }
            let begin = rate.turn_begin(now).max(now);
            next[at] = if at == 0 { now } else { begin + Nanos::from_micros(10) };
        }
        now = now + Nanos::from_micros(1);
    }
    sent
}

#[test]
fn senders_share_a_rate() {
    for kbit_per_s in [1000, 100_000, 1_000_000, 10_000_000] {
        let (second, rate) = (kbit_per_s as usize * 125, shared(kbit_per_s));
        let sent = sent(&mut [(); 3].map(|()| RateTurns::new(rate.clone())));
        let all: usize = sent.iter().sum();
        // A burst, and a turn of each that ends later.
        let more = (bytes_of_turn(kbit_per_s) * 4) as usize + burst_bytes(kbit_per_s);
        assert!(all + second / 50 > second && all < second + second / 50 + more, "{sent:?} of {second}");
        assert!(sent.iter().all(|sent| sent * 4 > all), "each has its turns: {sent:?}");
    }
}

#[test]
fn rates_are_independent_of_each_other() {
    let sent = sent(&mut [(); 2].map(|()| RateTurns::new(shared(MEGABYTE))));
    assert!(sent.iter().all(|sent| sent.abs_diff(1_000_000 + BURST_BYTES) < 20_000), "{sent:?}");
}

/// Bytes of before the change are paid for as long as they would have been: a burst of it.
#[test]
fn a_new_rate_counts_from_the_next_turn_on() {
    let rate = shared(MEGABYTE);
    let (mut turns, mut now, mut bytes) = (RateTurns::new(rate.clone()), START, [0_usize; 2]);
    for (second, kbit_per_s) in [MEGABYTE, 4 * MEGABYTE].into_iter().enumerate() {
        rate.set(kbit_per_s);
        let (begin, burst) = (now, Nanos::from_micros(BURST_FRAMES * FULL_FRAME));
        while now < begin + burst + Nanos::from_millis(1000) {
            if turns.turn_begin(now) <= now {
                turns.on_sent(now, 4160);
                bytes[second] += if now < begin + burst { 0 } else { 4160 };
            }
            now = now + Nanos::from_micros(10);
        }
    }
    assert!(bytes[0].abs_diff(1_000_000) < 20_000 && bytes[1].abs_diff(4_000_000) < 80_000, "{bytes:?}");
    rate.set(0);
    assert_eq!((turns.turn_begin(now), turns.is_limited()), (Nanos(0), false));
}

/// As acknowledgments, which do not wait.
#[test]
fn bytes_without_a_turn_are_paid_before_the_next_one() {
    let rate = shared(MEGABYTE);
    let [mut turns, mut other] = [(); 2].map(|()| RateTurns::new(rate.clone()));
    turns.on_sent(START, BURST_BYTES + 4160);
    let booked = turns.turn_begin(START);
    assert_eq!(booked, START + Nanos::from_micros(4160));
    turns.on_sent(START, 1000);
    assert_eq!(turns.turn_begin(START), booked, "it is looked at when it begins");
    assert_eq!(turns.turn_begin(booked), booked + Nanos::from_micros(1000));
    assert_eq!(other.turn_begin(booked), booked + Nanos::from_micros(1000 + 4160), "behind it");
}

#[test]
fn the_next_turn_begins_when_the_bytes_of_the_last_have_passed() {
    let mut rate = RateTurns::new(shared(MEGABYTE));
    assert!(rate.turn_begin(START) <= START);
    rate.on_sent(START, BURST_BYTES + 1250);
    assert_eq!(rate.turn_begin(START), START + Nanos::from_micros(1250));
}

/// A turn that is not used is the next one's.
#[test]
fn a_booked_turn_without_frames_costs_nothing() {
    let mut rate = RateTurns::new(shared(MEGABYTE));
    for _ in 0..10 {
        assert!(rate.turn_begin(START) <= START);
        rate.on_sent(START, 0);
        rate.release();
    }
}

/// Each of many waits for its own turn, which another one's frame does not take back.
#[test]
fn many_senders_have_no_more_than_the_rate() {
    for (kbit_per_s, senders) in [(1000, 100), (10_000, 1000), (1_000_000, 4000)] {
        let rate = shared(kbit_per_s);
        let mut all: Vec<_> = (0..senders).map(|_| RateTurns::new(rate.clone())).collect();
        let (mut bytes, end) = (0, START + Nanos::from_millis(8000));
        let mut due: BTreeSet<(Nanos, usize)> = (0..senders).map(|at| (START, at)).collect();
        while let Some((now, at)) = due.pop_first().filter(|(now, _)| *now < end) {
            let turns = &mut all[at];
            if turns.turn_begin(now) <= now {
                // A bit more than its turn has.
                let sent = turns.frames(TURN_FRAMES) * FULL_FRAME as usize + 64;
                turns.on_sent(now, sent);
                bytes += sent;
            }
            due.insert((turns.turn_begin(now).max(now + Nanos(1)), at));
        }
        let (most, burst) = (kbit_per_s as usize * 125 * 8, 2 * burst_bytes(kbit_per_s));
        assert!(bytes + most / 50 > most && bytes < most + burst, "{senders} at {kbit_per_s}: {bytes} of {most}");
    }
}

/// Bytes that a sender sends in `time`; it begins with a small frame in each of its turns.
fn with_small_frames(turns: &mut RateTurns, now: Nanos) -> usize {
    if turns.turn_begin(now) > now {
        return 0;
    }
    let small = if turns.booked.bytes > 1000 { turns.booked.bytes as usize - 500 } else { 0 };
    let sent = if small > 0 { small } else { FULL_FRAME as usize };
    turns.on_sent(now, sent);
    sent
}

#[test]
fn turns_that_a_last_frame_exceeds_have_the_rate() {
    for (kbit_per_s, senders) in [(1000, 20), (1000, 200), (10_000, 1000), (100_000, 4000)] {
        let rate = shared(kbit_per_s);
        let mut all: Vec<_> = (0..senders).map(|_| RateTurns::new(rate.clone())).collect();
        let (mut bytes, end) = (0, START + Nanos::from_millis(20_000));
        let mut due: BTreeSet<(Nanos, usize)> = (0..senders).map(|at| (START, at)).collect();
        while let Some((now, at)) = due.pop_first().filter(|(now, _)| *now < end) {
            bytes += with_small_frames(&mut all[at], now);
            due.insert((all[at].turn_begin(now).max(now + Nanos(1)), at));
        }
        let most = kbit_per_s as usize * 125 * 20;
        assert!(bytes + most / 10 > most, "{senders} at {kbit_per_s}: {bytes} of {most}");
        assert!(bytes < most + 2 * burst_bytes(kbit_per_s), "{senders} at {kbit_per_s}: {bytes} of {most}");
    }
}

/// The next turns are later by as much, so that none of them has to be given up.
#[test]
fn turns_that_are_exceeded_are_farther_apart() {
    let rate = shared(1000);
    let mut all: Vec<_> = (0..20).map(|_| RateTurns::new(rate.clone())).collect();
    let end = START + Nanos::from_millis(30_000);
    let mut due: BTreeSet<(Nanos, usize)> = (0..20).map(|at| (START, at)).collect();
    let (mut last, mut longest) = ([START; 20], Nanos(0));
    while let Some((now, at)) = due.pop_first().filter(|(now, _)| *now < end) {
        if all[at].turn_begin(now) <= now {
            all[at].on_sent(now, 5160);
            // The first turn of each was booked without it.
            let is_later = last[at] > START + Nanos::from_millis(3000);
            longest = if is_later { longest.max(now - last[at]) } else { longest };
            last[at] = now;
        }
        due.insert((all[at].turn_begin(now).max(now + Nanos(1)), at));
    }
    // 20 turns of 5,160 bytes.
    assert!(longest < Nanos::from_millis(1000), "{longest:?}");
}

/// It may have bytes of which the new rate is far less.
#[test]
fn a_turn_of_a_higher_rate_is_void() {
    let rate = shared(10_000_000);
    let mut turns = RateTurns::new(rate.clone());
    for _ in 0..4 {
        assert!(turns.turn_begin(START) <= START);
        let bytes = turns.booked.bytes as usize;
        turns.on_sent(START, bytes);
    }
    assert!(turns.turn_begin(START) <= START);
    assert_eq!(turns.frames(TURN_FRAMES), TURN_FRAMES);
    rate.set(1000);
    turns.turn_begin(START);
    assert_eq!(turns.booked.bytes, FULL_FRAME as u32);
}

/// No worker looks for a while; after it all turns have begun.
#[test]
fn a_stall_leaves_a_burst() {
    for (kbit_per_s, senders, stall) in
        [(10_000_000, 1000, 50), (10_000_000, 1000, 110), (1_000_000, 1000, 20), (MEGABYTE, 100, 250)]
    {
        let rate = shared(kbit_per_s);
        let mut all: Vec<_> = (0..senders).map(|_| RateTurns::new(rate.clone())).collect();
        all.iter_mut().for_each(|turns| assert!(turns.turn_begin(START) > Nanos(0)));
        let mut now = START + Nanos::from_millis(stall);
        let (end, mut bytes, mut looks) = (now + Nanos::from_millis(20), 0, 0);
        let mut due: BTreeSet<(Nanos, usize)> = (0..senders).map(|at| (now, at)).collect();
        let mut most_at_once = 0;
        while let Some((time, at)) = due.pop_first().filter(|(time, _)| *time < end) {
            (now, looks) = (time.max(now), looks + 1);
            if all[at].turn_begin(now) <= now {
                let sent = bytes_of_turn(kbit_per_s) as usize;
                all[at].on_sent(now, sent);
                bytes += sent;
            }
            if now < START + Nanos::from_millis(stall) + Nanos::from_micros(10) {
                most_at_once = bytes;
            }
            due.insert((all[at].turn_begin(now).max(now + Nanos(1)), at));
        }
        let burst = burst_bytes(kbit_per_s) + 2 * bytes_of_turn(kbit_per_s) as usize;
        assert!(most_at_once <= burst + kbit_per_s as usize / 800, "{senders} at {kbit_per_s}: {most_at_once}");
        let due = kbit_per_s as usize * 125 / 50;
        assert!(bytes + due / 20 > due && bytes <= due + burst, "{senders} at {kbit_per_s}: {bytes} of {due}");
        assert!(looks < 4 * senders + 4 * bytes / FULL_FRAME as usize, "{looks} looks");
    }
}

/// Senders that wait and are gone take nothing with them, also while others wait.
#[test]
fn turns_of_those_that_are_gone_are_for_others() {
    let rate = shared(1000);
    let mut last = RateTurns::new(rate.clone());
    last.on_sent(START, BURST_BYTES + 4160);
    for _ in 0..2000 {
        let mut gone = RateTurns::new(rate.clone());
        assert!(gone.turn_begin(START) > START);
    }
    assert!(last.turn_begin(START) <= START + Nanos::from_millis(34), "{:?}", last.turn_begin(START));
}

/// One that waits behind them sees it when it looks again.
#[test]
fn the_turn_behind_those_that_are_gone_is_sooner() {
    let rate = shared(MEGABYTE);
    RateTurns::new(rate.clone()).on_sent(START, BURST_BYTES);
    let mut before: Vec<_> = (0..100).map(|_| RateTurns::new(rate.clone())).collect();
    before.iter_mut().for_each(|turns| assert!(turns.turn_begin(START) >= START));
    let mut last = RateTurns::new(rate.clone());
    assert_eq!(last.turn_begin(START), START + Nanos::from_micros(416_000));
    before.truncate(50);
    assert_eq!(last.turn_begin(START), START + Nanos::from_micros(208_000));
    assert_eq!(last.turn_begin(START), START + Nanos::from_micros(208_000));
}

/// Turns are booked and given back much later.
#[test]
fn time_without_frames_is_lost() {
    let rate = shared(1000);
    let mut idle: Vec<_> = (0..200).map(|_| RateTurns::new(rate.clone())).collect();
    idle.iter_mut().for_each(|turns| assert!(turns.turn_begin(START) > Nanos(0)));
    let begin = START + Nanos::from_millis(8000);
    idle.iter_mut().for_each(RateTurns::release);
    let mut all: Vec<_> = (0..100).map(|_| RateTurns::new(rate.clone())).collect();
    let mut due: BTreeSet<(Nanos, usize)> = (0..100).map(|at| (begin, at)).collect();
    let (mut bytes, end) = (0, begin + Nanos::from_millis(1000));
    while let Some((now, at)) = due.pop_first().filter(|(now, _)| *now < end) {
        if all[at].turn_begin(now) <= now {
            all[at].on_sent(now, 4160);
            bytes += 4160;
        }
        due.insert((all[at].turn_begin(now).max(now + Nanos(1)), at));
    }
    assert!((120_000..125_000 + 2 * BURST_BYTES).contains(&bytes), "{bytes}");
}

/// A program connects by another rule again and again.
#[test]
fn changes_of_the_rate_give_no_burst() {
    let rate = shared(1000);
    let (mut turns, mut bytes) = (RateTurns::new(rate.clone()), 0);
    for tick in 0..10_000 {
        let now = START + Nanos::from_micros(tick * 100);
        if tick % 300 == 0 {
            rate.set(if tick % 600 == 0 { 2000 } else { 1000 });
        }
        if turns.turn_begin(now) <= now {
            turns.on_sent(now, 4160);
            bytes += 4160;
        }
    }
    assert!(bytes < 250_000 + BURST_BYTES + 4160, "a second at 2 Mbit/s: {bytes}");
}

/// A turn is one of bytes, in as many visits as they take.
#[test]
fn small_frames_have_a_turn_together() {
    let mut turns = RateTurns::new(shared(MEGABYTE));
    turns.on_sent(START, BURST_BYTES + 1);
    let begin = turns.turn_begin(START);
    for _ in 0..40 {
        turns.on_sent(begin, 100);
        assert_eq!(turns.turn_begin(begin), begin);
    }
    turns.on_sent(begin, 100);
    assert!(turns.turn_begin(begin) > begin, "60 bytes are left, no frame");
}

#[test]
fn a_debt_is_bounded() {
    let mut rate = RateTurns::new(shared(MEGABYTE));
    rate.on_sent(START, 1 << 30);
    assert_eq!(rate.turn_begin(START), START + DEBT - burst_of(MEGABYTE));
}

#[test]
fn without_a_rate_nothing_is_closed() {
    let mut rate = RateTurns::new(shared(0));
    rate.on_sent(START, 1 << 30);
    assert!(rate.turn_begin(START) <= START);
}
