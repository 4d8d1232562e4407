//! Very many queue pairs: the cost of each for an idle daemon, and complete release.
//!
//! The allocator of this program counts the allocations of the control thread, which creates and
//! frees every object, and of threads of users, which unmap.
#![expect(unsafe_code, reason = "counts for the system's allocator")]

mod served;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    collections::BTreeMap,
    sync::atomic::{AtomicIsize, Ordering},
};

use roced::config::LimitsConfig;
use roced_client::{ConnectOptions, Device, QpAddress, QueuePair};
use served::{DEVICE, How, Served, eventually};

struct Counting;

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
    /// Whether this thread is a user's, once that is known, and calls until it is not.
    static OF_USER: Cell<(bool, u8)> = const { Cell::new((false, 64)) };
}

/// Bytes that threads of users have allocated less those that they have freed: memory that the
/// control thread hands over to them is freed there.
static LIVE_OF_USERS: AtomicIsize = AtomicIsize::new(0);

fn count(bytes: isize) {
    if is_of_user() {
        LIVE_OF_USERS.fetch_add(bytes, Ordering::Relaxed);
    } else {
        LIVE.with(|live| live.set(live.get() + bytes));
    }
}

/// The calling thread is a user's, by its name, which it has soon after its begin.
fn is_of_user() -> bool {
    OF_USER.with(|of_user| {
        let (is_of_user, calls) = of_user.get();
        if is_of_user || calls == 0 {
            return is_of_user;
        }
        let mut name = [0u8; 16];
        // SAFETY: PR_GET_NAME writes 16 bytes at most.
        unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
        of_user.set((name.starts_with(b"roced-user"), calls - 1));
        of_user.get().0
    })
}

// SAFETY: everything is the system allocator's; the counter is a thread-local without a destructor,
// so it needs no memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as isize - layout.size() as isize);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A session's doorbells on one worker.
const QPS_OF_A_CLIENT: usize = 4096;

fn serve(qps: u32) -> Served {
    let mut limits = LimitsConfig::default();
    (limits.client.qps, limits.device.qps, limits.account.share_percent) = (qps, qps, 100);
    Served::start_as(How { workers: 1, qps: qps.next_power_of_two(), limits, ..How::default() })
}

fn live(served: &Served) -> isize {
    served.on_control_thread(|_, _| LIVE.with(Cell::get)) + LIVE_OF_USERS.load(Ordering::Relaxed)
}

/// Mappings of this process that have this name.
fn mappings(name: &str) -> usize {
    std::fs::read_to_string("/proc/self/maps").expect("readable").lines().filter(|line| line.contains(name)).count()
}

/// `count` queue pairs, each connected to another of them.
fn connected(device: &Device, count: usize, options: &ConnectOptions) -> Vec<QueuePair> {
    let pd = device.protection_domain().expect("a domain");
    let cq = device.completion_queue(16).expect("a queue");
    let make = |_| {
        let builder = pd.queue_pair(&cq, &cq).send_wrs(16).recv_wrs(1).send_sges(1).recv_sges(1).inline_bytes(0);
        builder.create().expect("there is room")
    };
    let qps: Vec<_> = (0..count).map(make).collect();
    let first = qps[0].address(0).expect("a GID");
    let ends: Vec<_> = qps.iter().map(|qp| QpAddress { qpn: qp.qpn(), ..first }).collect();
    for (at, qp) in qps.iter().enumerate() {
        qp.connect(&ends[(at ^ 1).min(count - 1)], options).expect("it is on this host");
    }
    qps
}

fn options() -> ConnectOptions {
    ConnectOptions { sgid_index: Some(0), path_mtu_bytes: Some(4096), ..ConnectOptions::default() }
}

/// Of the sizes of a program with small requests, and thousands of them, so that memory allocated
/// in advance by tables does not count.
#[test]
fn an_idle_connected_queue_pair_costs_less_than_four_kib() {
    const QPS: usize = 4000;
    let served = serve(2 * QPS as u32);
    let device = Device::open_at(&served.socket, DEVICE).expect("it is served");
    let warm = connected(&device, 2, &options());
    let before = live(&served);
    let qps = connected(&device, QPS, &options());
    let each = (live(&served) - before) / QPS as isize;
    println!("{each} bytes each");
    assert!((1..4096).contains(&each), "an idle queue pair costs {each} bytes");
    drop((qps, warm));
}

/// As many as a large machine would have, of several clients; then they are gone, and so is all
/// that they had.
#[test]
fn ten_thousand_queue_pairs_come_and_go_and_leave_nothing() {
    if !served::is_alone("ten_thousand_queue_pairs_come_and_go_and_leave_nothing") {
        return;
    }
    const QPS: usize = 10_000;
    let served = serve(QPS as u32);
    drop(connected(&Device::open_at(&served.socket, DEVICE).expect("it is served"), 2, &options()));
    served.wait_until_empty();
    let (before, mapped) = (live(&served), mappings("roced-qp"));
    let mut clients = Vec::new();
    let mut left = QPS;
    while left > 0 {
        let device = Device::open_at(&served.socket, DEVICE).expect("it is served");
        let count = left.min(QPS_OF_A_CLIENT);
        clients.push((connected(&device, count, &options()), device));
        left -= count;
    }
    let mut states = BTreeMap::new();
    for (qps, _) in &clients {
        for qp in qps.iter().step_by(97) {
            *states.entry(qp.query().expect("it is there").state).or_insert(0) += 1;
        }
    }
    assert_eq!(states.keys().copied().collect::<Vec<_>>(), [roced_types::state::RTS]);
    // Each is mapped twice here: by the daemon, and by the client.
    assert_eq!(mappings("roced-qp") - mapped, 2 * QPS);
    // One client destroys its objects, one after the other; the others end like clients that die.
    drop(clients.swap_remove(0));
    eventually("a client's queue pairs ended", || served.sessions() == clients.len());
    drop(clients);
    served.wait_until_empty();
    eventually("all is unmapped", || mappings("roced-qp") == mapped);
    // Numbers rest for 2 s, and are remembered until the next one comes or goes.
    std::thread::sleep(std::time::Duration::from_secs(2));
    drop(connected(&Device::open_at(&served.socket, DEVICE).expect("it is served"), 2, &options()));
    served.wait_until_empty();
    // A list that has grown keeps its room, some 13 bytes of each; anything leaked for a queue pair
    // would come on top.
    let left = live(&served) - before;
    assert!(left < 16 * QPS as isize, "{left} bytes are left");
}
