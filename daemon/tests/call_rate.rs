//! The rate of control calls: an account that calls faster is delayed, and others are not.

mod served;

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use nix::time::{ClockId, clock_gettime};
use roced::config::{AccessRule, AccountLimits, AccountName, LimitsConfig, RuleLimits};
use roced_abi::control::{
    AllocPd, Call as _, DeallocPd, DeviceName, Handle, Hello, HelloRequest, Message, Nothing, OpenDevice,
};
use served::{DEVICE, How, Raw, Served, other_user::as_unprivileged_user};
use zerocopy::IntoBytes as _;

const SESSIONS: usize = 4;

/// Users other than that of the test have the rate of a rule, which limits none.
fn served(control_calls_per_second: u32) -> Served {
    let account = AccountLimits { control_calls_per_second, ..AccountLimits::default() };
    let rule = AccessRule {
        users: vec![AccountName::Numbered(65534)],
        limits: RuleLimits { weight: 1, control_calls_per_second: Some(1_000_000), ..RuleLimits::default() },
        ..AccessRule::default()
    };
    let limits = LimitsConfig { account, ..LimitsConfig::default() };
    Served::start_as(How { limits, access: vec![rule], ..How::default() })
}

fn opened(served: &Served) -> Raw {
    let mut raw = Raw::greeted(&served.socket);
    raw.call::<OpenDevice>(DeviceName::new(DEVICE)).expect("it exists");
    raw
}

/// Two calls.
fn call(raw: &mut Raw) {
    let pd = raw.call::<AllocPd>(Nothing {}).expect("room").handle;
    raw.call::<DeallocPd>(Handle { handle: pd }).expect("unused");
}

/// Calls of one user from several sessions while `beside` runs, and how long that was.
fn calls_beside(served: &Served, beside: impl FnOnce()) -> (u32, Duration) {
    let (calls, ends) = (AtomicU32::new(0), AtomicBool::new(false));
    let mut sessions: Vec<_> = (0..SESSIONS).map(|_| opened(served)).collect();
    let begin = Instant::now();
    thread::scope(|scope| {
        for raw in &mut sessions {
            scope.spawn(|| {
                while !ends.load(Ordering::Relaxed) {
                    call(raw);
                    calls.fetch_add(2, Ordering::Relaxed);
                }
            });
        }
        beside();
        ends.store(true, Ordering::Relaxed);
    });
    (calls.into_inner(), begin.elapsed())
}

/// Durations of pairs of calls of another user, in the order of their lengths.
fn durations_of_another(served: &Served, count: u32) -> Vec<Duration> {
    as_unprivileged_user(served, || {
        let mut raw = opened(served);
        let duration = |_| {
            thread::sleep(Duration::from_millis(5));
            let begin = Instant::now();
            call(&mut raw);
            begin.elapsed()
        };
        let mut durations: Vec<_> = (0..count).map(duration).collect();
        durations.sort_unstable();
        durations
    })
}

/// How often calls of the user were delayed.
fn delayed(served: &Served, uid: u32) -> u64 {
    let reports = served.on_control_thread(|clients, _| clients.account_reports(&BTreeMap::new()));
    reports.iter().find(|report| report.uid == uid).map_or(0, |report| report.delayed_calls)
}

fn control_thread_computed(served: &Served) -> Duration {
    served.on_control_thread(|_, _| clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)).expect("it counts").into()
}

/// A user with four sessions that call without end has its rate, and the control thread sleeps in
/// between. Calls of another user are answered as if they were alone.
#[test]
fn a_user_that_calls_without_end_has_its_rate_and_another_does_not_wait() {
    const RATE: u32 = 2000;
    const OTHERS: u32 = 400;
    if !nix::unistd::geteuid().is_root() {
        return println!("skipped: needs root, to be two users");
    }
    let served = served(RATE);
    let before = control_thread_computed(&served);
    let mut durations = Vec::new();
    let (calls, took) = calls_beside(&served, || {
        durations = durations_of_another(&served, OTHERS);
    });
    let computed = control_thread_computed(&served) - before;
    let most = f64::from(RATE) * took.as_secs_f64() + 200.0 + 2.0 * SESSIONS as f64;
    // Calls that compute for more than 20 us count as more.
    assert!(f64::from(calls) <= most && f64::from(calls) >= most / 2.0, "{calls} of {most} calls in {took:?}");
    let (median, p90) = (durations[durations.len() / 2], durations[durations.len() * 9 / 10]);
    println!("{calls} of {most} calls in {took:?}, others {median:?}, p90 {p90:?}; computed {computed:?}");
    assert!(median < Duration::from_millis(4), "{median:?}: it does not wait for tokens");
    assert!(computed < took / 3, "{computed:?} of {took:?}");
    assert!(delayed(&served, 0) > 0 && delayed(&served, 65534) == 0);
}

/// A user that connects and leaves without end from four threads has its rate as well: the control
/// thread accepts few connections at a time, and rests from them in between.
#[test]
fn a_user_that_connects_without_end_has_its_rate_and_another_does_not_wait() {
    const RATE: u32 = 1000;
    const OTHERS: u32 = 400;
    if !nix::unistd::geteuid().is_root() {
        return println!("skipped: needs root, to be two users");
    }
    let served = served(RATE);
    let (before, begin) = (control_thread_computed(&served), Instant::now());
    let (connections, ends) = (AtomicU32::new(0), AtomicBool::new(false));
    let durations = thread::scope(|scope| {
        for _ in 0..SESSIONS {
            scope.spawn(|| {
                while !ends.load(Ordering::Relaxed) {
                    drop(Raw::connect(&served.socket));
                    connections.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let durations = durations_of_another(&served, OTHERS);
        ends.store(true, Ordering::Relaxed);
        durations
    });
    let (computed, took) = (control_thread_computed(&served) - before, begin.elapsed());
    let (median, p99) = (durations[durations.len() / 2], durations[durations.len() * 99 / 100]);
    println!("{connections:?} connections in {took:?}, others {median:?}, p99 {p99:?}; computed {computed:?}");
    assert!(computed < took / 2, "{computed:?} of {took:?}");
    assert!(median < Duration::from_millis(4), "{median:?}: it does not wait for connections");
    assert!(delayed(&served, 0) > 0 && delayed(&served, 65534) == 0);
    served.wait_until_empty();
    call(&mut opened(&served));
}

/// Connections that come at once beyond the rate are all served, the first first.
#[test]
fn early_connections_wait_and_are_not_turned_away() {
    const CONNECTIONS: u32 = 100;
    let served = served(100);
    let begin = Instant::now();
    let all: Vec<_> = (0..CONNECTIONS).map(|_| Raw::connect(&served.socket)).collect();
    let hello = HelloRequest { version: roced_abi::VERSION, program: [0; 16] };
    for (number, raw) in all.iter().enumerate() {
        raw.put(Message::new(Hello::OP, number as u32, &hello).as_bytes(), &[]);
    }
    for (number, raw) in all.iter().enumerate() {
        let reply = raw.get().expect("it is not turned away");
        assert_eq!((reply.header.sequence, reply.header.status), (number as u32, 0));
    }
    assert!(begin.elapsed() > Duration::from_millis(700), "{:?}", begin.elapsed());
    assert!(delayed(&served, nix::unistd::geteuid().as_raw()) > 0);
    drop(all);
    served.wait_until_empty();
}

/// Calls that come at once beyond the rate are all carried out, in their order.
#[test]
fn delayed_calls_are_neither_lost_nor_refused() {
    const CALLS: u32 = 150;
    let served = served(100);
    let raw = opened(&served);
    let begin = Instant::now();
    let (mut sent, mut answered) = (0, 0);
    // As many under way as the socket takes in any case.
    while answered < CALLS {
        while sent < CALLS && sent < answered + 8 {
            raw.put(Message::new(AllocPd::OP, 100 + sent, &Nothing {}).as_bytes(), &[]);
            sent += 1;
        }
        let reply = raw.get().expect("the session lives");
        assert_eq!((reply.header.sequence, reply.header.status), (100 + answered, 0));
        answered += 1;
    }
    assert!(begin.elapsed() > Duration::from_millis(700), "{:?}", begin.elapsed());
    assert!(delayed(&served, nix::unistd::geteuid().as_raw()) > 0);
}

/// A session that ends while its calls are delayed leaves nothing, and the next one is served.
#[test]
fn a_session_may_end_while_it_is_held_back() {
    let served = served(50);
    let mut first = opened(&served);
    // The calls that an account has at once are used up.
    for _ in 0..40 {
        call(&mut first);
    }
    drop(first);
    let uid = nix::unistd::geteuid().as_raw();
    for _ in 0..5 {
        let raw = opened(&served);
        let before = delayed(&served, uid);
        for _ in 0..30 {
            raw.put(Message::new(AllocPd::OP, 1, &Nothing {}).as_bytes(), &[]);
        }
        let begin = Instant::now();
        while delayed(&served, uid) == before {
            assert!(begin.elapsed() < Duration::from_secs(20), "30 calls at once are beyond the rate");
            thread::sleep(Duration::from_millis(1));
        }
        drop(raw);
        served.wait_until_empty();
    }
    call(&mut opened(&served));
}
