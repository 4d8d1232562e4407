//! The last work of programs: posted before they destroy its queue pair, or die.

mod served;

use std::{
    env,
    path::Path,
    process,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use nix::sys::signal::{Signal, raise};
use roced::net::NextHop;
use roced_client::{
    Access, AddressHandle, AddressOptions, Completion, CompletionQueue, Device, GRH_BYTES, MemoryRegion,
    ProtectionDomain, QueuePair, RecvRequest, SendRequest, ServiceType,
};
use roced_types::WorkerId;
use served::{DEVICE, How, Served, eventually, requests_sent};

const QKEY: u32 = 0x1234;

/// Bound on the frames of a session that has ended: as many as a queue pair can have posted, and
/// the rest of a batch.
const FRAMES: u64 = 4096 + 128;

/// How long work may find no room.
const LAST_WORK_TIME_MAX: Duration = Duration::from_secs(1);

/// Batches in that time: one a millisecond at most.
const BATCHES_MAX: usize = 1100;

const HERE: &str = "10.9.0.1";
const ELSEWHERE: &str = "10.9.0.77";

struct Program {
    _device: Device,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    memory: MemoryRegion,
}

impl Program {
    fn new(socket: &Path) -> Self {
        let device = Device::open_at(socket, DEVICE).expect("it is served");
        let pd = device.protection_domain().expect("a domain");
        let cq = device.completion_queue(4096).expect("a queue");
        let memory = pd.allocate(4096, Access::ALL).expect("memory");
        Self { _device: device, pd, cq, memory }
    }

    /// An active datagram queue pair.
    fn qp(&self, send_wrs: u32, recv_wrs: u32) -> QueuePair {
        let builder = self.pd.queue_pair(&self.cq, &self.cq).service(ServiceType::Ud);
        let qp = builder.send_wrs(send_wrs).recv_wrs(recv_wrs).create().expect("a queue pair");
        qp.activate(QKEY).expect("from RESET");
        qp
    }

    fn ah(&self, address: &str) -> AddressHandle {
        let gid = address.parse().expect("an address");
        self.pd.address_handle(&AddressOptions::new(gid)).expect("a route")
    }
}

fn post(qp: &QueuePair, ah: &AddressHandle, to: u32, count: u32) {
    for _ in 0..count {
        qp.post_send(&SendRequest::send_inline(b"the last").to(ah, to, QKEY)).expect("room");
    }
}

/// Names of the variables that tell a program of its task.
const SOCKET: &str = "ROCED_TEST_SOCKET";
const ADDRESS: &str = "ROCED_TEST_ADDRESS";
const TO: &str = "ROCED_TEST_TO";
const QPS: &str = "ROCED_TEST_QPS";
const EACH: &str = "ROCED_TEST_EACH";
const DESTROYS: &str = "ROCED_TEST_DESTROYS";

/// Not a test by itself: a program that posts datagrams on some queue pairs and is killed at once.
#[test]
fn program_that_posts_and_dies() {
    let Some(socket) = env::var_os(SOCKET) else { return };
    let number = |name| -> u32 { env::var(name).expect("it is told").parse().expect("a number") };
    let (to, each) = (number(TO), number(EACH));
    let program = Program::new(Path::new(&socket));
    let ah = program.ah(&env::var(ADDRESS).expect("it is told"));
    let qps: Vec<QueuePair> = (0..number(QPS)).map(|_| program.qp(each.max(1), 1)).collect();
    qps.iter().for_each(|qp| post(qp, &ah, to, each));
    if number(DESTROYS) > 0 {
        thread::spawn(|| drop(qps));
        // The call waits by then, and for long after.
        thread::sleep(Duration::from_millis(200));
    }
    raise(Signal::SIGKILL).expect("it ends here");
}

/// Runs it until its death.
fn run_and_die(served: &Served, address: &str, to: u32, qps: u32, each: u32) {
    run_until_death(served, address, [(TO, to), (QPS, qps), (EACH, each), (DESTROYS, 0)]);
}

fn run_until_death(served: &Served, address: &str, numbers: [(&str, u32); 4]) {
    let mut program = process::Command::new(env::current_exe().expect("a test"));
    program
        .args(["--exact", "program_that_posts_and_dies", "--nocapture"])
        .env(SOCKET, &served.socket)
        .env(ADDRESS, address);
    program.envs(numbers.map(|(name, number)| (name, number.to_string())));
    let output = program.output().expect("this test runs");
    use std::os::unix::process::ExitStatusExt as _;
    assert_eq!(output.status.signal(), Some(9), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn datagrams_of_a_program_that_posts_them_and_dies_at_once_are_sent() {
    let served = Served::start();
    let receiver = Program::new(&served.socket);
    let to = receiver.qp(1, 1024);
    for (qps, each) in [(1, 10), (1, 600), (20, 30)] {
        for _ in 0..qps * each {
            to.post_recv(&RecvRequest::new(&[receiver.memory.sge(..GRH_BYTES + 8)])).expect("room");
        }
        to.query().expect("its receives are there");
        run_and_die(&served, HERE, to.qpn(), qps, each);
        let mut received = 0;
        while received < (qps * each) as usize {
            let mut some = [Completion::EMPTY; 64];
            let got = receiver.cq.wait(&mut some, Duration::from_secs(20)).expect("the daemon lives");
            assert!(got > 0, "{received} of {qps} * {each} datagrams arrived");
            assert!(some[..got].iter().all(|one| one.ok().is_ok()), "{:?}", &some[..got]);
            received += got;
        }
    }
}

#[test]
fn a_program_that_dies_with_full_queues_sends_a_bounded_number_of_frames_after_its_death() {
    let served = Served::start_as(How { workers: 1, ..How::default() });
    let receiver = Program::new(&served.socket);
    let to = receiver.qp(1, 1);
    served.told.lock().expect("no test panics here").commands = Some(Vec::new());
    run_and_die(&served, HERE, to.qpn(), 60, 4096);
    eventually("its session ended", || served.sessions() == 1);
    let at_end = served.told.lock().expect("no test panics here").sent_at_end.expect("a session ended");
    let sent = served.on_control_thread(|_, environment| requests_sent(environment.workers, WorkerId(0)));
    assert!(sent - at_end <= FRAMES, "{} frames after the death of their program", sent - at_end);
}

/// [`ELSEWHERE`] is a neighbor, on a device without queues: no frame leaves.
fn reach_elsewhere(served: &Served) {
    let [mac, source_mac] = [[2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1]];
    let elsewhere = NextHop::Reachable { mac, vlan: None, source_mac, mtu_bytes: 4096 };
    let mut told = served.told.lock().expect("no test panics here");
    told.elsewhere = Some(elsewhere);
    told.commands = Some(Vec::new());
}

fn commands(served: &Served) -> Vec<String> {
    served.told.lock().expect("no test panics here").commands.clone().expect("they are logged")
}

fn first(commands: &[String], name: &str) -> usize {
    commands.iter().position(|one| one == name).unwrap_or_else(|| panic!("no {name}"))
}

fn count(commands: &[String], name: &str) -> usize {
    commands.iter().filter(|one| *one == name).count()
}

#[test]
fn calls_of_other_programs_are_served_while_a_destroyed_queue_pair_has_work_left() {
    const PROGRAMS: usize = 3;
    let served = Served::start();
    reach_elsewhere(&served);
    let other = Program::new(&served.socket);
    let qp = other.qp(1, 1);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                qp.query().expect("there");
            }
        });
        for _ in 0..PROGRAMS {
            let program = Program::new(&served.socket);
            let full = program.qp(16, 1);
            let ah = program.ah(ELSEWHERE);
            post(&full, &ah, 77, 16);
            drop(full);
        }
        is_over.store(true, Ordering::Relaxed);
    });
    let commands = commands(&served);
    assert_eq!(count(&commands, "DropQp"), PROGRAMS);
    for until_end in commands.split(|name| name == "DropQp").take(PROGRAMS) {
        let waiting = &until_end[first(until_end, "SendPosted")..];
        let batches = count(waiting, "SendPosted");
        assert!((2..BATCHES_MAX).contains(&batches), "{batches} batches");
        assert!(count(waiting, "QueryQp") > batches / 2, "{} queries in {batches} batches", count(waiting, "QueryQp"));
    }
}

#[test]
fn a_program_waits_once_for_a_nic_that_takes_nothing_however_many_queue_pairs_it_destroys() {
    let served = Served::start();
    reach_elsewhere(&served);
    let program = Program::new(&served.socket);
    let ah = program.ah(ELSEWHERE);
    let qps: Vec<QueuePair> = (0..20).map(|_| program.qp(16, 1)).collect();
    qps.iter().for_each(|qp| post(qp, &ah, 77, 16));
    let begin = Instant::now();
    drop(qps);
    let took = begin.elapsed();
    assert!(took >= LAST_WORK_TIME_MAX && took < 10 * LAST_WORK_TIME_MAX, "{took:?}");
    assert_eq!(count(&commands(&served), "DropQp"), 20);
}

#[test]
fn a_session_with_work_that_finds_no_room_ends_after_a_while() {
    let served = Served::start_as(How { workers: 1, ..How::default() });
    reach_elsewhere(&served);
    run_and_die(&served, ELSEWHERE, 77, 20, 16);
    let ends = || count(&commands(&served), "EndSession");
    eventually("its session ends", || ends() > 0);
    let begin = Instant::now();
    eventually("its session ended", || served.sessions() == 0);
    assert!(begin.elapsed() > LAST_WORK_TIME_MAX / 2, "a NIC may be slow: {:?}", begin.elapsed());
    let commands = commands(&served);
    let first_end = first(&commands, "DropQp");
    let batches = count(&commands[..first_end], "EndSession");
    assert!((2..BATCHES_MAX).contains(&batches), "{batches} batches");
    assert_eq!((count(&commands[first_end..], "EndSession"), count(&commands, "DropQp")), (0, 20));
}

#[test]
fn a_session_that_waits_for_room_delays_the_end_of_no_other() {
    let served = Served::start_as(How { workers: 1, ..How::default() });
    reach_elsewhere(&served);
    run_and_die(&served, ELSEWHERE, 77, 1, 16);
    run_and_die(&served, HERE, 77, 1, 0);
    eventually("both sessions ended", || served.sessions() == 0);
    let commands = commands(&served);
    let last_batch = commands.iter().rposition(|name| name == "EndSession").expect("some");
    assert!(first(&commands, "DropQp") < last_batch);
}

#[test]
fn a_program_that_dies_while_its_call_waits_is_ended_at_once() {
    let served = Served::start_as(How { workers: 1, ..How::default() });
    reach_elsewhere(&served);
    run_until_death(&served, ELSEWHERE, [(TO, 77), (QPS, 1), (EACH, 16), (DESTROYS, 1)]);
    eventually("its session ended", || served.sessions() == 0);
    let commands = commands(&served);
    let waited = count(&commands, "SendPosted");
    assert!(waited > 1, "the call waited");
    assert!(first(&commands, "EndSession") < first(&commands, "DropQp"), "after {waited} batches");
}

#[test]
fn one_command_looks_at_a_bounded_number_of_queue_pairs_of_a_dead_program() {
    let served = Served::start_as(How { workers: 1, qps: 700, ..How::default() });
    served.told.lock().expect("no test panics here").commands = Some(Vec::new());
    run_and_die(&served, HERE, 77, 600, 0);
    eventually("its session ended", || served.sessions() == 0);
    let commands = commands(&served);
    assert_eq!((count(&commands, "EndSession"), count(&commands, "DropQp")), (3, 600));
}
