//! A slow page of a client's memory: its owner is known while a worker waits for it.
#![expect(unsafe_code, reason = "maps memory and registers it")]

mod served;

use std::{
    fs::File,
    num::NonZeroUsize,
    os::fd::OwnedFd,
    path::PathBuf,
    ptr::{self, NonNull},
    thread,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    fcntl::{FallocateFlags, FcntlArg, SealFlag, fallocate, fcntl},
    sys::{
        memfd::{MFdFlags, memfd_create},
        mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, mmap_anonymous},
    },
    unistd::ftruncate,
};
use roced::config::{ClientLimits, LimitsConfig, UnsealedChoice};
use roced_abi::control::{
    AllocPd, CreateCq, CreateCqRequest, CreateQp, CreateQpRequest, DeviceName, Nothing, OpenDevice, Refusal, limit,
};
use roced_client::{Access, MemoryRegion, SendRequest};
use roced_memory::access_log::blocking_sessions;
use roced_types::{SessionId, WorkerId, service};
use served::{
    DEVICE, How, Raw, Served, eventually, is_alone,
    other_user::as_unprivileged_user,
    pair::{Pair, pattern},
    uffd::withhold,
};

const PAGE: usize = 4096;

const BYTES: usize = 64 * PAGE;

/// Where this process, which is daemon and client, has mapped files of that name.
fn mapped(name: &str) -> Vec<usize> {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("procfs");
    let ours = maps.lines().filter(|line| line.contains(&format!("/memfd:{name} ")));
    let start = |line: &str| usize::from_str_radix(line.split('-').next().expect("a range"), 16).expect("an address");
    ours.map(start).collect()
}

fn newest(served: &Served) -> SessionId {
    let newest = served.on_control_thread(|clients, _| clients.reports().map(|report| report.session).max());
    SessionId(newest.expect("there is one"))
}

/// Registers a file of holes, and says where the daemon has mapped it.
fn register_holes(pair: &Pair) -> (MemoryRegion, usize) {
    let file = memfd_create(c"blocked", MFdFlags::MFD_CLOEXEC).expect("a memfd");
    ftruncate(&file, BYTES as i64).expect("four pages");
    let (length, protection) = (NonZeroUsize::new(BYTES).expect("some"), ProtFlags::PROT_READ | ProtFlags::PROT_WRITE);
    // SAFETY: a new mapping touches nothing that exists.
    let base = unsafe { mmap(None, length, protection, MapFlags::MAP_SHARED, &file, 0) }.expect("four pages");
    let before = mapped("blocked");
    // SAFETY: it stays mapped until the process ends, and no code accesses it.
    let region =
        unsafe { pair.pd.register_at(base.cast().as_ptr(), BYTES, 0, Access::ALL) }.expect("its file is found");
    let daemons = mapped("blocked").into_iter().find(|start| !before.contains(start));
    let daemons = daemons.expect("the daemon maps it as well");
    fallocate(&file, FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE, 0, BYTES as i64)
        .expect("a hole");
    // Another mapping in its place, in which accesses wait for missing pages: in the daemon's own
    // they end the session.
    // SAFETY: it replaces one of the same file, and no code has references to it.
    unsafe {
        mmap(NonZeroUsize::new(daemons), length, protection, MapFlags::MAP_SHARED | MapFlags::MAP_FIXED, &file, 0)
    }
    .expect("the same pages");
    (region, daemons)
}

#[test]
fn memory_that_stalls_a_worker_ends_only_its_own_session() {
    if !is_alone("memory_that_stalls_a_worker_ends_only_its_own_session") {
        return;
    }
    // One worker, which both sessions need.
    let served = Served::start_as(How { workers: 1, ..How::default() });
    let bystander = Pair::new(&served);
    let pair = Pair::new(&served);
    let session = newest(&served);
    let (region, daemons) = register_holes(&pair);
    let Some(held) = withhold(daemons, BYTES) else { return println!("skipped: no userfaultfd here") };
    let local = pair.pd.allocate(4096, Access::ALL).expect("memory");
    let worker = WorkerId(0);
    assert_eq!(blocking_sessions(worker), None);

    pair.a.post_send(&SendRequest::write(&[local.sge(..)], region.remote()).signaled()).expect("room");
    eventually("the worker waits", || blocking_sessions(worker) == Some([session; 2]));
    drop(held);
    assert!(pair.reap(1)[0].ok().is_ok(), "it goes on");
    eventually("it turns or sleeps", || blocking_sessions(worker).is_none());

    served.on_control_thread(move |clients, _| clients.on_blocked([session; 2]));
    eventually("the session ended", || served.sessions() == 1);
    let memory = bystander.pd.allocate(4096, Access::ALL).expect("it is served");
    bystander.send(&SendRequest::write(&[memory.sge(..5)], memory.remote().at(8))).ok().expect("it arrived");
}

/// Has a hole at these places, where one file is mapped, and makes every accessing thread wait. That
/// file is sealed: the hole is of another.
fn punch(places: &[usize]) -> Option<Vec<OwnedFd>> {
    let hole = memfd_create(c"hole", MFdFlags::MFD_CLOEXEC).expect("a memfd");
    ftruncate(&hole, PAGE as i64).expect("a page");
    let length = NonZeroUsize::new(PAGE).expect("some");
    let (protection, flags) =
        (ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_SHARED | MapFlags::MAP_FIXED);
    for start in places {
        // SAFETY: a page of rings or doorbells without any bytes still in use, of which no code has
        // references.
        unsafe { mmap(NonZeroUsize::new(*start), length, protection, flags, &hole, 0) }.expect("a hole");
    }
    places.iter().map(|start| withhold(*start, PAGE)).collect()
}

/// The client library seals its queues.
#[test]
fn no_client_can_punch_holes_in_its_queues() {
    if !is_alone("no_client_can_punch_holes_in_its_queues") {
        return;
    }
    let served = Served::start();
    let names = ["roced-cq", "roced-session", "roced-qp"];
    let (pair, _, places) = pair_with(&served, names);
    for (name, places) in names.iter().zip(&places) {
        assert!(places.len() > 1, "{name} is mapped by the daemon and its client");
        for start in places {
            let at = NonNull::new(ptr::with_exposed_provenance_mut(*start)).expect("it is mapped");
            // SAFETY: a page of shared memory, of which no code has references.
            let punched = unsafe { madvise(at, PAGE, MmapAdvise::MADV_REMOVE) };
            assert_eq!(punched, Err(Errno::EPERM), "{name}");
        }
    }
    let memory = pair.memory();
    pair.send(&SendRequest::write(&[memory.sge(..5)], memory.remote().at(8))).ok().expect("it arrived");
}

/// Files of that name that this process, client and daemon, has open.
fn opened(name: &str) -> Vec<File> {
    let fds = std::fs::read_dir("/proc/self/fd").expect("procfs").flatten();
    let named = |path: &PathBuf| {
        std::fs::read_link(path).is_ok_and(|target| target.to_string_lossy() == format!("/memfd:{name} (deleted)"))
    };
    fds.map(|entry| entry.path()).filter(named).filter_map(|path| File::open(path).ok()).collect()
}

fn is_sealed(file: &File) -> bool {
    let seals = SealFlag::from_bits_retain(fcntl(file, FcntlArg::F_GET_SEALS).expect("it is a memfd"));
    seals.contains(SealFlag::F_SEAL_FUTURE_WRITE | SealFlag::F_SEAL_SEAL)
}

/// A client that does not seal its queues has it done by the daemon when it uses them, or cannot use
/// them, as the config says.
#[test]
fn queues_are_sealed_when_they_are_used() {
    if !is_alone("queues_are_sealed_when_they_are_used") {
        return;
    }
    for choice in [UnsealedChoice::Mapped, UnsealedChoice::Refused] {
        let client = ClientLimits { unsealed_memory: choice, ..ClientLimits::default() };
        let limits = LimitsConfig { client, ..LimitsConfig::default() };
        let served = Served::start_as(How { limits, ..How::default() });
        let mut raw = Raw::greeted(&served.socket);
        raw.call::<OpenDevice>(DeviceName::new(DEVICE)).expect("it exists");
        let pd = raw.call::<AllocPd>(Nothing {}).expect("a domain").handle;
        let cq = raw.call::<CreateCq>(CreateCqRequest { entries: 4, channel: 0 }).expect("a queue").cqn;
        let files: Vec<_> = ["roced-cq", "roced-session"].into_iter().flat_map(opened).collect();
        assert!(files.len() >= 2 && !files.iter().any(is_sealed), "the client does not");
        let service = service::RC;
        let request = CreateQpRequest { pd, send_cq: cq, recv_cq: cq, service, ..CreateQpRequest::default() };
        let made = raw.call::<CreateQp>(request).map(drop);
        if choice == UnsealedChoice::Refused {
            assert_eq!(made, Err((Refusal::BadFile, [Errno::EPERM as u64, 0])));
            continue;
        }
        made.expect("the daemon seals them");
        eventually("they are sealed", || files.iter().all(is_sealed));
        drop(files);
        eventually("the daemon needs them no more", || opened("roced-cq").is_empty());
    }
}

/// A pair of a session that maps these files of queues.
fn pair_with<const N: usize>(served: &Served, names: [&str; N]) -> (Pair, SessionId, [Vec<usize>; N]) {
    let before = names.map(mapped);
    let pair = Pair::new(served);
    let mut places = names.map(mapped);
    places.iter_mut().zip(&before).for_each(|(places, before)| places.retain(|start| !before.contains(start)));
    (pair, newest(served), places)
}

/// Makes the worker wait for the second page of the CQ ring at these places, until the returned
/// value is closed.
fn block_by_completions(pair: &Pair, empty: &SendRequest<'_>, cq_rings: &[usize]) -> Option<Vec<OwnedFd>> {
    let held = punch(&cq_rings.iter().map(|start| start + PAGE).collect::<Vec<_>>())?;
    let complete = |count| (0..count).for_each(|_| pair.a.post_send(empty).expect("room"));
    complete(50);
    pair.reap(50);
    complete(50);
    Some(held)
}

/// The worker waits for memory of this session, and goes on waiting. On a busy machine it may have
/// waited for something else for a moment: the kernel's lock of all mappings of this process.
#[track_caller]
fn waits_for(session: SessionId, what: &str) {
    let is_waiting = || blocking_sessions(WorkerId(0)) == Some([session; 2]);
    eventually(what, is_waiting);
    for _ in 0..20 {
        thread::sleep(Duration::from_millis(1));
        assert!(is_waiting(), "no longer: {what}");
    }
}

/// A client has the files of its queues as well, and can punch holes there: the owner of the memory
/// accessed before is not at fault.
#[test]
fn queues_that_stall_a_worker_are_attributed() {
    if !is_alone("queues_that_stall_a_worker_are_attributed") {
        return;
    }
    let served = Served::start_as(How { workers: 1, ..How::default() });
    let bystander = Pair::new(&served);
    let memory = bystander.memory();
    let write = |pair: &Pair| {
        let local = [memory.sge(..5)];
        pair.a.post_send(&SendRequest::write(&local, memory.remote().at(8)).signaled()).expect("room");
    };
    // Of each session once: it may end for its stall, as soon as those of its user sum to much.
    let [cq_rings, first, second] = [(); 3].map(|()| pair_with(&served, ["roced-cq"]));
    let doorbells = pair_with(&served, ["roced-session"]);
    let rings = pair_with(&served, ["roced-qp"]);
    // It touches no memory but that of queues.
    let empty = SendRequest::write(&[], memory.remote()).signaled();
    let blocked_by = |(pair, session, [places]): &(Pair, SessionId, [Vec<usize>; 1])| {
        write(&bystander);
        bystander.reap(1);
        let held = block_by_completions(pair, &empty, places)?;
        waits_for(*session, "for completions");
        Some(held)
    };

    let Some(held) = blocked_by(&cq_rings) else { return println!("skipped: no userfaultfd here") };
    drop(held);

    // The hole is punched while the worker is elsewhere: an access before the page is withheld would
    // make it.
    let elsewhere = blocked_by(&first);
    let (_, session, [places]) = &doorbells;
    let held = punch(places);
    write(&bystander);
    drop(elsewhere);
    waits_for(*session, "for doorbells");
    drop(held);
    bystander.reap(1);

    // Posting fills the page, likewise.
    let elsewhere = blocked_by(&second);
    let (pair, session, [places]) = &rings;
    pair.a.post_send(&empty).expect("room");
    let held = punch(places);
    drop(elsewhere);
    waits_for(*session, "for work");
    drop(held);
    write(&bystander);
    bystander.reap(1);
}

/// Each is far below a second; the session ends before they sum to much, and its user is refused
/// until it owes nothing. Another user is served.
#[test]
fn short_stalls_end_their_session_and_their_user_is_refused() {
    const STALL: Duration = Duration::from_millis(150);
    if !is_alone("short_stalls_end_their_session_and_their_user_is_refused") {
        return;
    }
    let served = Served::start_as(How { workers: 1, ..How::default() });
    let open = || {
        let mut raw = Raw::greeted(&served.socket);
        raw.call::<OpenDevice>(DeviceName::new(DEVICE)).map(|_| raw)
    };
    let other = nix::unistd::geteuid().is_root().then(|| as_unprivileged_user(&served, open).expect("it exists"));
    let pair = Pair::new(&served);
    let (region, daemons) = register_holes(&pair);
    let local = pair.pd.allocate(PAGE, Access::ALL).expect("memory");
    let worker = WorkerId(0);
    let mut stalls = 0;
    for page in 0..BYTES / PAGE {
        let Some(held) = withhold(daemons + page * PAGE, PAGE) else {
            return println!("skipped: no userfaultfd here");
        };
        let all = [local.sge(..)];
        let request = SendRequest::write(&all, region.remote().at((page * PAGE) as u64)).signaled();
        if pair.a.post_send(&request).is_err() {
            break;
        }
        let begin = Instant::now();
        while blocking_sessions(worker).is_none() && begin.elapsed() < STALL {
            thread::yield_now();
        }
        thread::sleep(STALL);
        drop(held);
        stalls += 1;
        // Its session ends within that, if it does.
        thread::sleep(Duration::from_millis(100));
        if pair.pd.allocate(PAGE, Access::ALL).is_err() {
            break;
        }
    }
    assert!(stalls < 6, "{stalls} stalls of {STALL:?}");
    let (refusal, [millis, which]) = open().map(drop).expect_err("it owes time");
    assert_eq!((refusal, which), (Refusal::Limit, limit::STALLS));
    assert!((1..10_000).contains(&millis), "{millis} ms");
    if let Some(mut other) = other {
        other.call::<AllocPd>(Nothing {}).expect("another user's session lives");
        as_unprivileged_user(&served, open).expect("another user is served");
    }
    eventually("nothing is owed any more", || open().is_ok());
}

/// A debt ends the session that stalls a worker, and one of more than a second all of its user's.
#[test]
fn a_debt_of_more_than_a_second_ends_all_sessions_of_its_user() {
    if !nix::unistd::geteuid().is_root() {
        return println!("skipped: needs root, to be two users");
    }
    let served = Served::start();
    let open = || {
        let mut raw = Raw::greeted(&served.socket);
        raw.call::<OpenDevice>(DeviceName::new(DEVICE)).map(|_| raw)
    };
    let opened = || (open().expect("it exists"), newest(&served));
    let stall = |session: SessionId, time: Duration| {
        served.on_control_thread(move |clients, _| clients.on_stalled([session; 2], time));
    };
    let mut other = as_unprivileged_user(&served, open).expect("it exists");
    let [(first, gone), (second, guilty), (mut third, _), (fourth, _)] = [(); 4].map(|()| opened());
    drop(first);
    eventually("it is gone", || served.sessions() == 4);

    stall(guilty, Duration::from_millis(600));
    assert!(second.is_closed(), "it owes some 0.4 s");
    third.call::<AllocPd>(Nothing {}).expect("another session of the user lives");
    // One that has left is charged as well.
    stall(gone, Duration::from_millis(800));
    assert!(third.is_closed() && fourth.is_closed(), "it owes some 1.2 s");
    other.call::<AllocPd>(Nothing {}).expect("another user's session lives");
    let (refusal, [millis, which]) = open().map(drop).expect_err("it owes time");
    assert_eq!((refusal, which), (Refusal::Limit, limit::STALLS));
    assert!(millis > 10_000, "{millis} ms: the debt is paid by a twentieth of the time");
}

/// A program has the kernel make huge pages of memory while a peer writes to it. Its pages are
/// moved one after the other, with the worker's own mapping of them: no page is missing there, no
/// write is lost, and no stall is long enough to count.
#[test]
fn memory_that_its_program_collapses_to_huge_pages_is_written_on() {
    const HUGE: usize = 2 << 20;
    const AREAS: usize = 8;
    /// `MADV_COLLAPSE` of Linux 6.1.
    const COLLAPSE: i32 = 25;
    if !is_alone("memory_that_its_program_collapses_to_huge_pages_is_written_on") {
        return;
    }
    let served = Served::start_as(How { workers: 1, ..How::default() });
    let pair = Pair::new(&served);
    let file = memfd_create(c"blocked", MFdFlags::MFD_CLOEXEC).expect("a memfd");
    ftruncate(&file, (AREAS * HUGE) as i64).expect("a size");
    let length = NonZeroUsize::new((AREAS + 1) * HUGE).expect("some");
    // SAFETY: a new mapping touches nothing that exists.
    let room = unsafe { mmap_anonymous(None, length, ProtFlags::PROT_NONE, MapFlags::MAP_PRIVATE) }.expect("addresses");
    let start = room.addr().get().next_multiple_of(HUGE);
    let (bytes, protection) = (AREAS * HUGE, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE);
    let (at, whole) = (NonZeroUsize::new(start), NonZeroUsize::new(bytes).expect("some"));
    // SAFETY: it replaces addresses that were reserved just now.
    let base = unsafe { mmap(at, whole, protection, MapFlags::MAP_SHARED | MapFlags::MAP_FIXED, &file, 0) }
        .expect("an aligned mapping");
    // SAFETY: it stays mapped until the process ends, and is only read by volatile accesses.
    let region = unsafe { pair.pd.register_at(base.cast().as_ptr(), bytes, 0, Access::ALL) }.expect("registered");
    let local = pair.pd.allocate(AREAS * PAGE, Access::ALL).expect("memory");

    let (mut collapsed, mut refusal) = (0, None);
    for area in 0..AREAS {
        let content = pattern(area, PAGE);
        local.write_at(area * PAGE, &content);
        let sges = [local.sge(area * PAGE..(area + 1) * PAGE)];
        let pages = (0..HUGE / PAGE).step_by(4).map(|page| area * HUGE + page * PAGE);
        let writer = |at: usize| SendRequest::write(&sges, region.remote().at(at as u64)).signaled();
        let mut under_way = 0;
        for (count, at) in pages.clone().enumerate() {
            pair.a.post_send(&writer(at)).expect("room");
            under_way += 1;
            if count == 16 {
                let begin = base.as_ptr().wrapping_byte_add(area * HUGE);
                // SAFETY: the kernel moves bytes of this program's mapping, and changes none.
                let result = unsafe { libc::madvise(begin, HUGE, COLLAPSE) };
                match Errno::result(result) {
                    Ok(_) => collapsed += 1,
                    Err(errno) => refusal = Some(errno),
                }
            }
            if under_way == 32 {
                assert!(pair.reap(under_way).iter().all(|completion| completion.ok().is_ok()), "it is written");
                under_way = 0;
            }
        }
        assert!(pair.reap(under_way).iter().all(|completion| completion.ok().is_ok()), "it is written");
        for at in pages {
            let page = base.as_ptr().wrapping_byte_add(at).cast::<u8>();
            // SAFETY: a byte of the mapping, which lives until the process ends.
            let found = (0..PAGE).map(|at| unsafe { page.wrapping_add(at).read_volatile() });
            assert!(found.eq(content.iter().copied()), "area {area}, byte {at}");
        }
    }
    if collapsed == 0 {
        println!("skipped in part: the kernel has made no huge page of this memory: {refusal:?}");
    }
    pair.pd.allocate(PAGE, Access::ALL).expect("its user owes nothing");
}

/// For any path of a worker to memory: neither the requester nor the last one visited is named.
#[test]
fn access_to_memory_is_attributed_to_its_session() {
    if !is_alone("access_to_memory_is_attributed_to_its_session") {
        return;
    }
    let served = Served::start();
    // Its second queue pair, which is asked, is the other worker's.
    let pair = Pair::new(&served);
    let (session, worker) = (newest(&served), WorkerId(1));
    let _looked_at_last = Pair::new(&served);
    let (region, daemons) = register_holes(&pair);
    let local = pair.pd.allocate(PAGE, Access::ALL).expect("memory");
    let (all, eight) = ([local.sge(..)], [local.sge(..8)]);
    let at = |page: usize| region.remote().at((page * PAGE) as u64);
    let requests =
        [SendRequest::write(&all, at(0)), SendRequest::read(&all, at(1)), SendRequest::fetch_add(&eight, at(2), 1)];
    for (page, request) in requests.into_iter().enumerate() {
        let Some(held) = withhold(daemons + page * PAGE, PAGE) else { return println!("skipped: no userfaultfd here") };
        pair.a.post_send(&request.signaled()).expect("room");
        eventually("the worker waits", || blocking_sessions(worker).is_some());
        assert_eq!(blocking_sessions(worker), Some([session; 2]), "page {page}");
        drop(held);
        assert!(pair.reap(1)[0].ok().is_ok(), "it goes on");
    }
}

#[test]
fn copies_are_attributed_to_both_sessions() {
    if !is_alone("copies_are_attributed_to_both_sessions") {
        return;
    }
    let served = Served::start_as(How { workers: 1, ..How::default() });
    let lender = Pair::new(&served);
    let source_session = newest(&served);
    let pair = Pair::new(&served);
    let session = newest(&served);
    lender.connect_first(&pair);
    let (region, daemons) = register_holes(&pair);
    let local = lender.pd.allocate(PAGE, Access::ALL).expect("memory");
    let Some(held) = withhold(daemons, PAGE) else { return println!("skipped: no userfaultfd here") };
    lender.a.post_send(&SendRequest::write(&[local.sge(..)], region.remote()).signaled()).expect("room");
    eventually("the worker waits", || blocking_sessions(WorkerId(0)).is_some());
    assert_eq!(blocking_sessions(WorkerId(0)), Some([source_session, session]));
    drop(held);
    assert!(lender.reap(1)[0].ok().is_ok(), "it goes on");
}

/// The cause is either of both, so no session ends because of another user's.
#[test]
fn of_two_users_neither_has_the_other_ended() {
    if !nix::unistd::geteuid().is_root() {
        return println!("skipped: needs root, to be two users");
    }
    let served = Served::start();
    let bystander = Pair::new(&served);
    let ours = newest(&served);
    let mut other = as_unprivileged_user(&served, || {
        let mut raw = Raw::greeted(&served.socket);
        raw.call::<OpenDevice>(DeviceName::new(DEVICE)).expect("it exists");
        raw
    });
    let theirs = newest(&served);
    served.on_control_thread(move |clients, _| clients.on_blocked([theirs, ours]));
    other.call::<AllocPd>(Nothing {}).expect("it is served");
    bystander.pd.allocate(PAGE, Access::ALL).expect("it is served");
    served.on_control_thread(move |clients, _| clients.on_blocked([theirs; 2]));
    assert!(other.is_closed(), "it was no other client");
}

/// If one of the two sessions has left, the fault of the other is unproven: the guilty one may have
/// left in time.
#[test]
fn a_session_that_leaves_during_a_stall_ends_no_other_session() {
    let served = Served::start();
    let bystander = Pair::new(&served);
    let left_behind = newest(&served);
    let guilty = Pair::new(&served);
    let gone = newest(&served);
    drop(guilty);
    eventually("it is gone", || served.sessions() == 1);
    for sessions in [[gone, left_behind], [left_behind, gone], [gone; 2]] {
        let left = served.on_control_thread(move |clients, _| {
            clients.on_blocked(sessions);
            clients.reports().count()
        });
        assert_eq!(left, 1, "{sessions:?}");
    }
    let memory = bystander.pd.allocate(4096, Access::ALL).expect("it is served");
    bystander.send(&SendRequest::write(&[memory.sge(..5)], memory.remote().at(8))).ok().expect("it arrived");
}
