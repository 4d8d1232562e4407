//! Admission control: limits, time to open a device, and the end of many sessions at once.

mod served;

use std::time::{Duration, Instant};

use roced::config::{AccountLimits, LimitsConfig};
use roced_abi::{
    VERSION,
    control::{
        AllocMemory, AllocPd, Call as _, DeviceName, Hello, HelloRequest, MemoryRequest, Message, Nothing, OpenDevice,
        Refusal, RegMr, RegMrRequest, limit::AccountResource,
    },
};
use served::{DEVICE, How, Raw, Served, eventually, other_user::as_unprivileged_user};
use zerocopy::IntoBytes as _;

fn opened(served: &Served) -> Raw {
    let mut raw = Raw::greeted(&served.socket);
    raw.call::<OpenDevice>(DeviceName::new(DEVICE)).expect("it exists");
    raw
}

fn hello(raw: &mut Raw) -> Result<(), (Refusal, [u64; 2])> {
    raw.call::<Hello>(HelloRequest { version: VERSION, program: [0; 16] }).map(drop)
}

#[test]
fn one_account_leaves_places_for_others() {
    if !nix::unistd::geteuid().is_root() {
        return println!("skipped: needs root, to be two users");
    }
    let limits = LimitsConfig { clients: 4, ..LimitsConfig::default() };
    let served = Served::start_as(How { limits, ..How::default() });
    let mut ours = [(); 3].map(|()| opened(&served));
    // Some learn of the limit, and further connections are closed; others find room all the same.
    let mut beyond: Vec<Raw> = (0..20).map(|_| Raw::connect(&served.socket)).collect();
    eventually("some were let in to be told", || served.sessions() == 3 + 4);
    assert_eq!(hello(&mut beyond[0]), Err((Refusal::Limit, [3, AccountResource::Clients.share()])));
    assert!(beyond[0].is_closed());
    assert!(beyond[19].is_closed());
    let mut theirs = as_unprivileged_user(&served, || {
        let mut first = opened(&served);
        let mut second = Raw::connect(&served.socket);
        let share = AccountResource::Clients.share();
        assert_eq!(hello(&mut second), Err((Refusal::Limit, [1, share])), "now all places are taken");
        first.call::<AllocPd>(Nothing {}).expect("it is served");
        first
    });
    for raw in ours.iter_mut().chain([&mut theirs]) {
        raw.call::<AllocPd>(Nothing {}).expect("it is served");
    }
    drop((ours, beyond));
    eventually("the others are gone", || served.sessions() == 1);
    drop([(); 3].map(|()| opened(&served)));
}

/// However fast they come: between so many and so many others are served, and the watchdog hears
/// that the control thread lives.
#[test]
fn many_connections_at_once_are_accepted_in_batches() {
    const CROWD: usize = 100;
    let served = Served::start();
    let path = served.socket.clone();
    let (crowd, let_in) = served.on_control_thread(move |clients, environment| {
        let crowd: Vec<Raw> = (0..CROWD).map(|_| Raw::connect(&path)).collect();
        let mut let_in = vec![0];
        while let_in.last() < Some(&CROWD) {
            clients.on_readable(environment);
            let_in.push(clients.len());
        }
        (crowd, let_in)
    });
    assert!(let_in.windows(2).all(|turn| (1..=64).contains(&(turn[1] - turn[0]))), "{let_in:?}");
    drop(crowd);
    served.wait_until_empty();
}

/// A new connection to a full daemon finds a place when ending sessions have left.
#[test]
fn a_connection_waits_while_ending_sessions_occupy_its_place() {
    connect_while_sessions_end(AccountLimits::default().control_calls_per_second);
}

/// Nor do calls of their user that are throttled turn it away.
#[test]
fn a_connection_waits_while_closed_sessions_are_throttled() {
    connect_while_sessions_end(200);
}

fn connect_while_sessions_end(control_calls_per_second: u32) {
    let account = AccountLimits { share_percent: 100, control_calls_per_second, ..AccountLimits::default() };
    let limits = LimitsConfig { clients: 3, account, ..LimitsConfig::default() };
    let served = Served::start_as(How { limits, ..How::default() });
    let busy = opened(&served);
    let leaving = [(); 2].map(|()| {
        let mut raw = opened(&served);
        for _ in 0..100 {
            raw.call::<AllocPd>(Nothing {}).expect("below the limit");
        }
        raw
    });
    // None of these sessions is throttled when it is closed.
    std::thread::sleep(Duration::from_millis(400));
    let path = served.socket.clone();
    let (mut next, _busy) = served.on_control_thread(move |clients, environment| {
        for sequence in 100..200 {
            busy.put(Message::new(AllocPd::OP, sequence, &Nothing {}).as_bytes(), &[]);
        }
        for _ in 0..8 {
            clients.on_readable(environment);
        }
        drop(leaving);
        let next = Raw::connect(&path);
        clients.on_readable(environment);
        assert_eq!(clients.len(), 3, "some of their objects are left");
        clients.on_readable(environment);
        (next, busy)
    });
    hello(&mut next).expect("there is a place");
}

/// Guarantee of the default config.
#[test]
fn a_large_job_of_one_user_finds_room() {
    let limits = LimitsConfig::default();
    let of_account = limits.clients * limits.account.share_percent / 100;
    assert!(of_account >= 3 * 200 && limits.clients - of_account >= 200);
}

#[test]
fn a_connection_that_opens_no_device_is_closed() {
    let served = Served::start();
    let silent = Raw::connect(&served.socket);
    let (greeted, mut open) = (Raw::greeted(&served.socket), opened(&served));
    eventually("all are in", || served.sessions() == 3);
    let due = served.on_control_thread(|clients, _| clients.deadline()).expect("a client has not opened a device");
    assert!(due <= Instant::now() + Duration::from_secs(10));
    let on_time = |at: Instant| {
        served.on_control_thread(move |clients, environment| {
            clients.on_deadline(at, environment);
            clients.len()
        })
    };
    assert_eq!(on_time(due.checked_sub(Duration::from_millis(1)).expect("later than 1970")), 3);
    assert_eq!(on_time(due + Duration::from_secs(10)), 1);
    assert!(silent.is_closed() && greeted.is_closed());
    open.call::<AllocPd>(Nothing {}).expect("it is served");
    assert_eq!(served.on_control_thread(|clients, _| clients.deadline()), None);
}

/// The objects of a session are destroyed in pieces: in between the control thread serves others.
#[test]
fn a_large_session_ends_without_delaying_others() {
    const REGIONS: usize = 200;
    let served = Served::start();
    let leave = |_| {
        let mut raw = opened(&served);
        let pd = raw.call::<AllocPd>(Nothing {}).expect("below the limit").handle;
        let memory = raw.call::<AllocMemory>(MemoryRequest { bytes: 4096 }).expect("below the limit").handle;
        for _ in 0..REGIONS {
            raw.call::<RegMr>(RegMrRequest { pd, memory, ..RegMrRequest::default() }).expect("below the limit");
        }
        raw
    };
    let all: Vec<Raw> = (0..3).map(leave).collect();
    let turns = served.on_control_thread(move |clients, environment| {
        drop(all);
        let mut turns = 0;
        while !clients.is_empty() {
            // A thread of their user's may be the first to see that they are gone.
            turns += usize::from(clients.deadline().is_some_and(|due| due <= Instant::now()));
            clients.on_readable(environment);
            if clients.deadline().is_some_and(|due| due <= Instant::now()) {
                clients.on_deadline(Instant::now(), environment);
                turns += 1;
            }
        }
        turns
    });
    assert!(turns >= 3 * REGIONS / 100, "{turns} turns");
}
