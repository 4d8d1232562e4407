//! A worker allocates and frees nothing: not in a poll iteration with traffic, not for a command,
//! not when it sleeps and wakes.
//!
//! The allocator of this program counts the allocations of the worker's thread, from its first poll
//! iteration to its last.
#![expect(unsafe_code, reason = "counts for the system's allocator")]

mod rig;
#[path = "../../xdp/tests/veth/veth.rs"]
#[expect(dead_code, reason = "made for the tests of xdp")]
mod veth;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    convert::Infallible,
    os::fd::BorrowedFd,
};

use rig::{Client, Rig};
use roced::worker::{
    command::Command, idle::Policy, nic::Nic, poll_loop::Worker, received_mads::MadRoom, sent_mads::OutgoingMad,
};
use roced_transport::{
    clock::Nanos,
    io::{Abort, Egress, EmitError, FrameMut, Segments, Wire},
    management::MAD_BYTES,
    qp::PathState,
    wire::{
        Roce,
        path::{Path, PathSpec},
    },
};
use roced_types::{DeviceId, SendOp, WorkerId, gid_of};
use veth::{Host, INTERFACE, MODES, Pair};

struct Counting;

thread_local! {
    static CALLS: Cell<Option<u64>> = const { Cell::new(None) };
}

fn count() {
    CALLS.with(|calls| calls.set(calls.get().map(|calls| calls + 1)));
}

// SAFETY: everything is the system allocator's; the counter is a thread-local without a destructor,
// so it needs no memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count();
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's promise is passed on.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// No NIC: all frames are handed over.
struct NoNic(Infallible);

impl Wire for NoNic {
    fn emit(
        &mut self,
        _: Egress,
        _: usize,
        _: impl FnOnce(&mut FrameMut<'_>) -> Result<(), Abort>,
    ) -> Result<(), EmitError> {
        match self.0 {}
    }
}

impl Nic for NoNic {
    fn queue(&self) -> u32 {
        match self.0 {}
    }
    fn rx_burst(&mut self, _: usize, _: impl FnMut(&Segments<'_>)) -> usize {
        match self.0 {}
    }
    fn flush(&mut self) {
        match self.0 {}
    }
    fn prepare_sleep(&mut self) -> bool {
        match self.0 {}
    }
    fn socket(&self) -> BorrowedFd<'_> {
        match self.0 {}
    }
    fn counters(&self, _: &mut impl FnMut(&'static str, u64)) {
        match self.0 {}
    }
}

fn run_counted<N: Nic>(worker: &mut Worker<N>) {
    CALLS.with(|calls| calls.set(Some(0)));
    worker.run();
    let calls = CALLS.with(Cell::take).expect("it was counting");
    assert_eq!(calls, 0, "calls of the allocator on the worker's thread");
}

/// SEND, WRITE and READ of `bytes`, and an atomic operation, between the client's two queue pairs,
/// `rounds` times, data compared.
fn exchange(client: &mut Client, rounds: u64, bytes: u32) {
    let (key, half) = (client.key, client.memory.len() / 2);
    let mut data = vec![0; bytes as usize];
    for round in 0..rounds {
        for (at, op) in [SendOp::Send, SendOp::Write, SendOp::Read].into_iter().enumerate() {
            let (source, target) = (at as u64 * 65536, half + at as u64 * 65536);
            data.iter_mut().zip(0u64..).for_each(|(byte, at)| *byte = (round * 31 + at * 7) as u8);
            client.memory.write(source, &data);
            let mut completions = 1;
            match op {
                SendOp::Read => client.qps[0].post_send(op, key, target, bytes, (source, key)),
                SendOp::Write => client.qps[0].post_send(op, key, source, bytes, (target, key)),
                _ => {
                    match &mut client.srq {
                        Some(srq) => srq.post_recv(key, target, bytes),
                        None => client.qps[1].post_recv(key, target, bytes),
                    }
                    client.qps[0].post_send(op, key, source, bytes, (0, key));
                    completions = 2;
                }
            }
            for _ in 0..completions {
                let completion = client.wait();
                assert_eq!(completion.status, 0, "{completion:?}");
            }
            let mut arrived = vec![0; bytes as usize];
            client.memory.read(target, &mut arrived);
            assert!(arrived == data, "{op:?} of round {round}");
        }
        client.qps[0].post_send(SendOp::FetchAdd, key, 0, 8, (half, key));
        let completion = client.wait();
        assert_eq!(completion.status, 0, "{completion:?}");
    }
}

fn check(served: &[(u32, u32)], policy: Policy, on: &[usize]) {
    let mut rig = Rig::start(served, policy, |_| Vec::new(), run_counted::<NoNic>);
    let other = Egress::HandOver { to: DeviceId(0) };
    for (via, shares) in [(other, false), (other, true), (Egress::SameDevice, false), (Egress::SameDevice, true)] {
        let mut client = if shares { rig.sharing_client(0, 1 << 20, on) } else { rig.client(0, 1 << 20, on) };
        rig.connect(&client.qps[0], &client.qps[1], via);
        exchange(&mut client, 50, 60_000);
        exchange(&mut client, 50, 0);
        exchange(&mut client, 50, 64);
        for (worker, qp) in client.qps.iter().map(|qp| (qp.worker, qp.qpn)) {
            rig.tell(worker, Command::DropQp(qp));
        }
        if let Some(srq) = &client.srq {
            rig.tell(client.qps[1].worker, Command::DropSrq(srq.config.srqn));
        }
    }
    exchange_mads(&mut rig);
    rig.stop();
}

/// Management datagrams from the control thread to the first worker, which receives them itself,
/// and back. More than one address has in the queue at a time: some are dropped.
fn exchange_mads<N: Nic + Send + 'static>(rig: &mut Rig<N>) {
    let spec = PathSpec {
        via: Egress::HandOver { to: DeviceId(0) },
        source_mac: [2; 6],
        dest_mac: [4; 6],
        vlan: None,
        source: gid_of([10, 0, 0, 1].into()),
        destination: gid_of([10, 0, 0, 2].into()),
        traffic_class: 0,
        hop_limit: 64,
        flow_label: 0,
        roce: Roce::V2 { udp_source_port: 0xc000 },
    };
    let path = Path::new(&spec).expect("both are IPv4");
    let (mut taken, mut sent) = (0, 0);
    while taken < 300 {
        for _ in 0..100 {
            sent += u32::from(
                rig.workers
                    .send_mad(WorkerId(0), OutgoingMad { device: DeviceId(0), path, bytes: [7; MAD_BYTES] })
                    .is_ok(),
            );
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
        rig.mads.drain(MadRoom::FULL, |mad| {
            assert_eq!(mad.bytes, [7; MAD_BYTES]);
            taken += 1;
        });
        assert!(sent < 1_000_000, "none comes back");
    }
}

#[test]
fn the_counter_counts() {
    CALLS.with(|calls| calls.set(Some(0)));
    drop(std::hint::black_box(Box::new(1)));
    assert_eq!(CALLS.with(Cell::take), Some(2));
}

#[test]
fn two_queue_pairs_of_one_worker_move_data_without_allocation() {
    check(&[(0, 0)], Policy::Yield, &[0, 0]);
}

#[test]
fn two_workers_move_data_without_allocation() {
    check(&[(0, 0), (0, 1)], Policy::Yield, &[0, 1]);
}

#[test]
fn a_worker_that_sleeps_is_woken_for_each_message_and_allocates_nothing() {
    check(&[(0, 0), (0, 1)], Policy::Sleep { spin: Nanos(0) }, &[0, 1]);
}

#[test]
fn two_hosts_move_data_through_af_xdp_without_allocation() {
    if !nix::unistd::Uid::effective().is_root() {
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), "SKIPPED, needs root: a test in {}:{}", file!(), line!());
        return;
    }
    let pair = Pair::new(4200, 1, 1);
    let (mut here, mut there) = (pair.a.serve(MODES[0], 1), pair.b.serve(MODES[0], 1));
    let policy = Policy::Sleep { spin: Nanos::from_micros(50) };
    let mut rig_here = Rig::start(&[(0, 0)], policy, |_| std::mem::take(&mut here.queues), run_counted);
    let mut rig_there = Rig::start(&[(0, 0)], policy, |_| std::mem::take(&mut there.queues), run_counted);
    let (mut a, b) = (rig_here.client(0, 1 << 20, &[0]), rig_there.client(0, 1 << 20, &[0]));
    let path = |from: &Host, to: &Host| {
        let spec = PathSpec {
            via: Egress::Nic { flow: 0 },
            source_mac: mac(from),
            dest_mac: mac(to),
            vlan: None,
            source: gid_of(from.address),
            destination: gid_of(to.address),
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
            roce: Roce::V2 { udp_source_port: 0xc000 },
        };
        PathState::Ready(Path::new(&spec).expect("both are IPv4"))
    };
    rig_here.connect_one(&a.qps[0], b.qps[0].qpn, gid_of(pair.b.address), path(&pair.a, &pair.b));
    rig_there.connect_one(&b.qps[0], a.qps[0].qpn, gid_of(pair.a.address), path(&pair.b, &pair.a));
    for (round, bytes) in [(1, 100_000), (2, 64), (3, 400_000)] {
        let data: Vec<u8> = (0..bytes).map(|at: u32| (at * round) as u8).collect();
        a.memory.write(0, &data);
        let (key, remote) = (a.key, (0, b.key));
        a.qps[0].post_send(SendOp::Write, key, 0, bytes, remote);
        assert_eq!(a.wait().status, 0);
        a.qps[0].post_send(SendOp::Read, key, 500_000, bytes, remote);
        assert_eq!(a.wait().status, 0);
        let mut arrived = [vec![0; bytes as usize], vec![0; bytes as usize]];
        b.memory.read(0, &mut arrived[0]);
        a.memory.read(500_000, &mut arrived[1]);
        assert!(arrived.iter().all(|arrived| *arrived == data), "round {round}");
    }
    rig_here.stop();
    rig_there.stop();
}

fn mac(host: &Host) -> [u8; 6] {
    let shown = host.ip(&["-o", "link", "show", INTERFACE]);
    let text = shown.split_whitespace().skip_while(|word| *word != "link/ether").nth(1).expect("an Ethernet interface");
    let bytes: Vec<u8> = text.split(':').map(|byte| u8::from_str_radix(byte, 16).expect("hexadecimal")).collect();
    bytes.try_into().expect("six bytes")
}
