//! Memory of the program that no other process can map, registered: it stays in place. Data by
//! every operation, and no advantage for any client.
#![expect(unsafe_code, reason = "registers memory that the daemon writes to behind the compiler's back")]

mod private_mapping;
mod served;

use std::{
    collections::BTreeSet,
    fs::{File, OpenOptions},
    io::{IoSlice, Write},
    num::NonZeroUsize,
    os::{
        fd::{AsRawFd, OwnedFd, RawFd},
        unix::fs::FileExt,
    },
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, SealFlag, fcntl},
    sys::{
        memfd::{MFdFlags, memfd_create},
        mman::{MapFlags, MmapAdvise, madvise, mmap},
        resource::{Resource, setrlimit},
        socket::{AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, sendmsg, socketpair},
    },
};
use private_mapping::{Private, READ_WRITE};
use roced::{
    config::{ClientLimits, LimitsConfig, ProxiedChoice, UnsealedChoice},
    worker::worker_memory::WorkerMemory,
};
use roced_abi::control::{
    AllocMemory, AllocPd, DeviceName, MapMemory, MapMemoryRequest, MemoryRequest, Nothing, OpenDevice, RegMr,
    RegMrRequest, origin,
};
use roced_client::{
    Access, AddressOptions, Completion, Device, Error, GRH_BYTES, MemoryRegion, RecvRequest, Refusal, Reregistration,
    SendRequest, ServiceType, Status, WindowKind,
};
use roced_memory::{
    accounts::ClientAccounts,
    backing::Backing,
    descriptor,
    proxied::{CopyThread, ProxiedMemory},
};
use roced_transport::{
    io::App as _,
    mr::{Mr, MrKey, MrTable, Right, Scope},
};
use roced_types::{AccountId, MemoryObjectId, Pdn, WorkerId, access, state};
use served::{
    DEVICE, How, Raw, Served, eventually, is_alone,
    pair::{Pair, pattern},
    uffd::withhold,
};

fn all() -> Access {
    Access::ALL
}

fn proxied_bytes(served: &Served) -> u64 {
    served.on_control_thread(|clients, _| clients.reports().map(|report| report.memory.proxied_bytes).sum())
}

/// The key of the config, and the error of the program.
#[test]
fn a_config_may_forbid_it() {
    let client = ClientLimits { proxied_memory: ProxiedChoice::Off, ..ClientLimits::default() };
    let limits = LimitsConfig { client, ..LimitsConfig::default() };
    let served = Served::start_as(How { limits, ..How::default() });
    let device = Device::open_at(&served.socket, DEVICE).expect("the device");
    let pd = device.protection_domain().expect("a domain");
    let memory = Private::of_file(4096);
    let refused = memory.register(&pd, all()).expect_err("the config forbids it");
    assert!(matches!(refused, Error::Refused { refusal: Refusal::NotProxied, .. }), "{refused:?}");
    assert!(refused.to_string().contains("proxied_memory under [limits.client]"), "{refused}");
    assert_eq!(proxied_bytes(&served), 0);
    pd.allocate(4096, all()).expect("memory of the daemon");
    // Applied by a reload.
    let client = ClientLimits { proxied_memory: ProxiedChoice::On, ..ClientLimits::default() };
    served.on_control_thread(move |clients, _| {
        clients.set_limits(&LimitsConfig { client: client.clone(), ..LimitsConfig::default() })
    });
    memory.register(&pd, all()).expect("the config permits it");
}

fn served_to_unknown_peers() -> Served {
    let client = ClientLimits { unsealed_memory: UnsealedChoice::Refused, ..ClientLimits::default() };
    Served::start_as(How { limits: LimitsConfig { client, ..LimitsConfig::default() }, ..How::default() })
}

/// Where the config says so no client can take pages of memory that the daemon maps, and have those
/// wait that copy there: allocated memory is sealed, all else is left in place.
#[test]
fn no_client_can_punch_holes_in_mapped_memory_where_the_config_forbids_it() {
    if !is_alone("no_client_can_punch_holes_in_mapped_memory_where_the_config_forbids_it") {
        return;
    }
    let served = served_to_unknown_peers();
    let pair = Pair::new(&served);
    let allocated = pair.pd.allocate(2 * 4096, all()).expect("memory of the daemon");
    assert_eq!(proxied_bytes(&served), 0);
    let at = NonNull::new(allocated.as_ptr()).expect("it is mapped");
    // SAFETY: a page of shared memory, of which no code has references.
    let punched = unsafe { madvise(at.cast(), 4096, MmapAdvise::MADV_REMOVE) };
    assert_eq!(punched, Err(Errno::EPERM));

    let file = memfd_create(c"test", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING).expect("a memfd");
    File::from(file.try_clone().expect("a descriptor")).set_len(8192).expect("two pages");
    // SAFETY: a new mapping touches nothing that exists.
    let shared =
        unsafe { mmap(None, NonZeroUsize::MIN.saturating_add(8191), READ_WRITE, MapFlags::MAP_SHARED, &file, 0) };
    let shared = Private { base: shared.expect("two pages").cast(), bytes: 8192 };
    let private = Private::of_file(8192);
    let mut expected = 0;
    for memory in [&shared, &private, &shared, &private] {
        let region = memory.register(&pair.pd, all()).expect("in place");
        expected += 8192;
        assert_eq!(proxied_bytes(&served), expected);
        allocated.write_at(0, b"hello");
        pair.send(&SendRequest::write(&[allocated.sge(..5)], region.remote().at(4096))).ok().expect("it arrived");
        assert_eq!(region.to_vec(4096, 5), b"hello");
        std::mem::forget(region);
    }
}

/// Descriptors in this process of memory that the daemon has allocated.
fn kept() -> Vec<OwnedFd> {
    let fds = std::fs::read_dir("/proc/self/fd").expect("procfs").flatten();
    let is_memory = |path: &std::path::PathBuf| {
        std::fs::read_link(path).is_ok_and(|name| name.to_string_lossy().starts_with("/memfd:roced-memory"))
    };
    let open = |path| OpenOptions::new().read(true).write(true).open(path).expect("its own memory").into();
    let paths: Vec<_> = fds.map(|entry| entry.path()).filter(is_memory).collect();
    paths.into_iter().map(open).collect()
}

/// A client that does not seal its memory has no region in it.
#[test]
fn memory_that_must_be_sealed_has_no_region_before() {
    if !is_alone("memory_that_must_be_sealed_has_no_region_before") {
        return;
    }
    let served = served_to_unknown_peers();
    let mut raw = Raw::greeted(&served.socket);
    raw.call::<OpenDevice>(DeviceName::new(DEVICE)).expect("it exists");
    let pd = raw.call::<AllocPd>(Nothing {}).expect("a domain").handle;
    let memory = raw.call::<AllocMemory>(MemoryRequest { bytes: 4096 }).expect("room");
    let region = RegMrRequest { pd, memory: memory.handle, length: 4096, ..RegMrRequest::default() };
    let refused = Err((Refusal::BadFile, [Errno::EPERM as u64, 0]));
    assert_eq!(raw.call::<RegMr>(region).map(drop), refused);
    let seal =
        |fd: &OwnedFd| fcntl(fd, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_FUTURE_WRITE)).expect("it can be sealed");
    seal(&kept().pop().expect("the daemon has its descriptor"));
    raw.call::<RegMr>(region).expect("it is sealed");
    eventually("the descriptor is not needed any more", || kept().is_empty());
    // Its own file can be mapped for reading when it is sealed.
    let file = memfd_create(c"test", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING).expect("a memfd");
    File::from(file.try_clone().expect("a descriptor")).set_len(4096).expect("a page");
    let request = MapMemoryRequest { offset: 0, bytes: 4096, writable: 0, origin: origin::FILE_BACKED };
    let mut map = |writable| raw.call_with::<MapMemory>(MapMemoryRequest { writable, ..request }, &[file.as_raw_fd()]);
    assert_eq!((map(0).map(drop), map(1).map(drop)), (refused, refused));
    seal(&file);
    assert_eq!(map(0).map(drop), refused, "it can be cut");
    fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK)).expect("it can be sealed");
    assert_eq!((map(0).map(drop), map(1).map(drop)), (Ok(()), refused));
    // Each has a descriptor of the daemon until it is sealed.
    let more = (0..100).map(|_| raw.call::<AllocMemory>(MemoryRequest { bytes: 4096 }).map(drop));
    assert_eq!(more.take_while(Result::is_ok).count(), 64);
}

const DATA_BYTES: usize = 200_000;

/// Begins with something other than zeros, so it lies in the file of this program.
static mut DATA: [u8; DATA_BYTES] = [0x77; DATA_BYTES];

/// Moves data by every operation between `region` and memory that is mapped, in lengths at which
/// accesses end differently.
fn every_operation(pair: &Pair, region: &MemoryRegion) {
    let bytes = region.len();
    let other = pair.pd.allocate(bytes, Access::ALL).expect("memory");
    for (round, length) in [1, 7, 8, 9, 1024, 4097, 65_536, 65_537, bytes - 5].into_iter().enumerate() {
        let skip = round % 5;
        let (here, there) = ([region.sge(skip..skip + length)], [other.sge(skip..skip + length)]);
        let same = |what| {
            assert!(region.to_vec(skip, length) == other.to_vec(skip, length), "{what}, {length} bytes");
        };
        other.write_at(skip, &pattern(round, length));
        pair.send(&SendRequest::write(&there, region.remote().at(skip as u64))).ok().expect("it arrived");
        same("written to it");
        region.write_at(skip, &pattern(round + 100, length));
        pair.send(&SendRequest::write(&here, other.remote().at(skip as u64))).ok().expect("it arrived");
        same("written from it");
        region.write_at(skip, &pattern(round + 200, length));
        pair.send(&SendRequest::read(&there, region.remote().at(skip as u64))).ok().expect("it came");
        same("read from it");
        other.write_at(skip, &pattern(round + 300, length));
        pair.send(&SendRequest::read(&here, other.remote().at(skip as u64))).ok().expect("it came");
        same("read to it");
        for (from, to, seed) in [(&here, &there, 400), (&there, &here, 500)] {
            let source = if seed == 400 { region } else { &other };
            source.write_at(skip, &pattern(round + seed, length));
            pair.b.post_recv(&RecvRequest::new(to)).expect("room");
            pair.a.post_send(&SendRequest::send(from).signaled()).expect("room");
            for what in ["sent", "received"] {
                pair.reap(1)[0].ok().expect(what);
            }
            same("sent");
        }
    }
    // The last byte is inside and the next is not; other bytes are unchanged.
    region.fill(0, 10, 3);
    pair.send(&SendRequest::write(&[other.sge(..1)], region.remote().at(bytes as u64 - 1))).ok().expect("inside");
    let beyond = pair.send(&SendRequest::write(&[other.sge(..2)], region.remote().at(bytes as u64 - 1)));
    assert_eq!(beyond.ok().expect_err("outside").status, Status::RemoteAccess);
    assert_eq!((region.byte(bytes - 1), region.to_vec(0, 10)), (other.byte(0), vec![3; 10]));
}

#[test]
fn variables_of_the_program_are_reached_by_every_operation() {
    let served = Served::start();
    let pair = Pair::new(&served);
    let address = (&raw mut DATA).cast::<u8>();
    // SAFETY: it lives as long as the program, and is looked at by the region's methods.
    let region = unsafe { pair.pd.register_at(address, DATA_BYTES, 0x1_0000_0001, all()) }.expect("a variable");
    assert_eq!(region.to_vec(5, 5), [0x77; 5]);
    let start = address.addr() / 4096 * 4096;
    let pages = (address.addr() + DATA_BYTES).next_multiple_of(4096) - start;
    assert_eq!(proxied_bytes(&served), pages as u64, "whole pages");
    every_operation(&pair, &region);
    drop(region);
    assert_eq!(proxied_bytes(&served), 0);
}

#[test]
fn files_mapped_privately_are_reached_and_not_changed() {
    let served = Served::start();
    let (pair, mapped) = (Pair::new(&served), Private::of_file(150_000));
    let region = mapped.register(&pair.pd, all()).expect("a private mapping");
    assert!(proxied_bytes(&served) > 0);
    every_operation(&pair, &region);
}

/// The library has the file open, by its name or by a descriptor, but its pages may have to come
/// from a disk.
#[test]
fn files_on_a_disk_mapped_shared_are_reached_by_every_operation() {
    let served = Served::start();
    let pair = Pair::new(&served);
    let mut file = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a scratch file");
    file.write_all(&vec![0x55; 150_000]).expect("room");
    let length = NonZeroUsize::new(150_000).expect("some");
    // SAFETY: a new mapping touches nothing that exists.
    let base = unsafe { mmap(None, length, READ_WRITE, MapFlags::MAP_SHARED, &file, 0) };
    let mapped = Private { base: base.expect("it can be mapped").cast(), bytes: length.get() };
    let region = mapped.register(&pair.pd, all()).expect("a shared mapping of a file on a disk");
    assert!(proxied_bytes(&served) > 0);
    every_operation(&pair, &region);
    let mut bytes = [0; 4];
    file.as_file().read_exact_at(&mut bytes, 0).expect("it is open");
    assert_eq!(bytes, [3; 4], "the file has the peers' bytes");
}

#[test]
fn huge_pages_are_reached_by_every_operation() {
    let served = Served::start();
    let pair = Pair::new(&served);
    let length = NonZeroUsize::new(2 << 20).expect("some");
    let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_HUGETLB;
    // SAFETY: a new mapping touches nothing that exists.
    let Ok(base) = (unsafe { nix::sys::mman::mmap_anonymous(None, length, READ_WRITE, flags) }) else {
        return println!("skipped: no huge pages (sysctl vm.nr_hugepages)");
    };
    let mapped = Private { base: base.cast(), bytes: length.get() };
    let region = mapped.register(&pair.pd, all()).expect("huge pages");
    assert_eq!(proxied_bytes(&served), 2 << 20);
    every_operation(&pair, &region);
}

/// Where pages cannot be exchanged, registering costs more and works all the same.
#[test]
fn pages_that_cannot_be_exchanged_are_registered_as_proxied() {
    const NAME: &str = "pages_that_cannot_be_exchanged_are_registered_as_proxied";
    if !is_alone(NAME) {
        return;
    }
    // A limit on the size of files rules out the file that is as large as the address space.
    setrlimit(Resource::RLIMIT_FSIZE, 1 << 40, 1 << 40).expect("it can be lowered");
    let served = Served::start();
    let pair = Pair::new(&served);
    let mut heap = pattern(9, 200_000);
    // SAFETY: it lives until the region is dropped, and is looked at by the region's methods.
    let region = unsafe { pair.pd.register_at(heap.as_mut_ptr(), heap.len(), 0, all()) }.expect("heap");
    assert!(proxied_bytes(&served) >= 200_000);
    every_operation(&pair, &region);
}

/// Queue pairs of several workers add to one number: each finds another value, and none is lost.
/// WRITEs and READs around it go on meanwhile.
#[test]
fn atomic_operations_of_peers_are_exact() {
    const PAIRS: usize = 8;
    const ADDS: usize = 100;
    let served = Served::start();
    let (pair, mapped) = (Pair::new(&served), Private::of_file(8192));
    let region = mapped.register(&pair.pd, all()).expect("a private mapping");
    region.write_at(4096, &[0; 16]);
    let pairs: Vec<Pair> = (0..PAIRS).map(|_| Pair::of(&pair.pd, 0)).collect();
    let answers = pair.pd.allocate(8 * PAIRS * ADDS, Access::LOCAL_WRITE).expect("memory");
    let other = pair.pd.allocate(64, Access::LOCAL_WRITE).expect("memory");
    for round in 0..ADDS / 4 {
        for (number, pair) in pairs.iter().enumerate() {
            // The two ends are at different workers, so that both workers answer.
            let from = if number % 2 == 0 { &pair.a } else { &pair.b };
            for add in 4 * round..4 * round + 4 {
                let at = 8 * (number * ADDS + add);
                let entry = [answers.sge(at..at + 8)];
                from.post_send(&SendRequest::fetch_add(&entry, region.remote().at(4096), 1)).expect("room");
            }
            let entry = [other.sge(..)];
            let [write, read] = [4104, 4000].map(|at| region.remote().at(at));
            from.post_send(&SendRequest::write(&entry, write)).expect("room");
            from.post_send(&SendRequest::read(&entry, read).signaled()).expect("room");
        }
        for pair in &pairs {
            pair.reap(1)[0].ok().expect("all are executed");
        }
    }
    let answers = answers.to_vec(0, 8 * PAIRS * ADDS);
    let found = answers.chunks(8).map(|bytes| u64::from_ne_bytes(bytes.try_into().expect("eight")));
    let found: BTreeSet<u64> = found.collect();
    assert_eq!((found.len(), found.last()), (PAIRS * ADDS, Some(&((PAIRS * ADDS - 1) as u64))));
    assert_eq!(region.to_vec(4096, 8), ((PAIRS * ADDS) as u64).to_ne_bytes());

    let entry = [other.sge(..8)];
    let value = (PAIRS * ADDS) as u64;
    for (compare, swap, after) in [(value + 1, 7, value), (value, 7, 7)] {
        let request = SendRequest::compare_swap(&entry, region.remote().at(4096), compare, swap);
        pair.send(&request).ok().expect("it is executed");
        assert_eq!(other.to_vec(0, 8), value.to_ne_bytes());
        assert_eq!(region.to_vec(4096, 8), after.to_ne_bytes());
    }
    let window = pair.pd.memory_window(WindowKind::Two).expect("below the limit");
    let binding = window.bind(&region, 0..4096, Access::REMOTE_READ | Access::REMOTE_ATOMIC);
    pair.send(&SendRequest::bind(&binding)).ok().expect("it is bound");
}

/// Connections on one device lend each other payload; datagrams go in frames, as to other hosts.
#[test]
fn frames_carry_it_both_ways() {
    const QKEY: u32 = 7;
    let served = Served::start();
    let (pair, mapped) = (Pair::new(&served), Private::of_file(50_000));
    let region = mapped.register(&pair.pd, all()).expect("a private mapping");
    let other = pair.pd.allocate(50_000, all()).expect("memory");
    let qp = pair.pd.queue_pair(&pair.cq, &pair.cq).service(ServiceType::Ud).create().expect("a queue pair");
    qp.activate(QKEY).expect("from RESET");
    let gid = "10.9.0.1".parse().expect("an address");
    let ah = pair.pd.address_handle(&AddressOptions::new(gid)).expect("a route");
    for (round, bytes) in [1, 8, 9, 500, 1024, 1024, 1024].into_iter().enumerate() {
        // Each goes on where the one before stopped, so that bytes are read ahead.
        let at = 1024 * round;
        for (from, to) in [(&region, &other), (&other, &region), (&region, &region)] {
            from.write_at(at, &pattern(round, bytes));
            let into = 25_000 + at;
            qp.post_recv(&RecvRequest::new(&[to.sge(into..into + GRH_BYTES), to.sge(into + GRH_BYTES..into + 2000)]))
                .expect("room");
            // Its worker has taken it when it answers.
            qp.query().expect("there");
            let entry = [from.sge(at..at + bytes)];
            qp.post_send(&SendRequest::send(&entry).to(&ah, qp.qpn(), QKEY).signaled()).expect("room");
            for what in ["sent", "received"] {
                pair.reap(1)[0].ok().expect(what);
            }
            assert!(to.to_vec(into + GRH_BYTES, bytes) == pattern(round, bytes), "round {round}");
            to.fill(into, 2000, 0);
        }
    }
}

/// Reported data is visible, also in memory of another kind; and the last byte of a WRITE comes
/// last.
#[test]
fn proxied_writes_become_visible_in_order() {
    let served = Served::start();
    let (pair, mapped) = (Pair::new(&served), Private::of_file(40_000));
    let region = mapped.register(&pair.pd, all()).expect("a private mapping");
    let (source, flag) =
        (pair.pd.allocate(40_000, all()).expect("memory"), pair.pd.allocate(1, all()).expect("memory"));
    for round in 1..=100u8 {
        source.fill(0, 40_000, round);
        pair.a.post_send(&SendRequest::write(&[source.sge(..)], region.remote())).expect("room");
        pair.a.post_send(&SendRequest::write_inline(&[round], flag.remote()).signaled()).expect("room");
        let watched = [(&region, 39_999), (&flag, 0)][usize::from(round % 2)];
        let begin = Instant::now();
        while watched.0.byte(watched.1) != round {
            assert!(begin.elapsed() < Duration::from_secs(20), "it never comes");
            thread::yield_now();
        }
        assert!(region.to_vec(0, 40_000).iter().all(|byte| *byte == round), "round {round}");
        pair.reap(1)[0].ok().expect("both arrived");
    }
}

/// Both ends keep observing their results.
fn is_served_on(bystander: &Pair) {
    let memory = bystander.pd.allocate(4096, Access::ALL).expect("it is served on");
    bystander.send(&SendRequest::write(&[memory.sge(..50)], memory.remote().at(50))).ok().expect("it is served on");
}

#[test]
fn memory_that_is_gone_ends_its_session_and_no_other() {
    let served = Served::start();
    let (reader, writer, bystander) = (Pair::new(&served), Pair::new(&served), Pair::new(&served));
    for (left, pair, reads) in [(2, &reader, true), (1, &writer, false)] {
        let mapped = Private::of_file(4 * 4096);
        let region = mapped.register(&pair.pd, all()).expect("a private mapping");
        let local = pair.pd.allocate(4096, Access::ALL).expect("memory");
        pair.send(&SendRequest::write(&[local.sge(..)], region.remote())).ok().expect("it arrived");
        mapped.replace(8192, false);
        let (entry, remote) = ([local.sge(..)], region.remote().at(8192));
        let request = if reads { SendRequest::read(&entry, remote) } else { SendRequest::write(&entry, remote) };
        pair.a.post_send(&request.signaled()).expect("room");
        eventually("the session ended", || served.sessions() == left);
        assert!(matches!(pair.pd.allocate(1, Access::ALL), Err(Error::DaemonGone)));
        drop(region);
    }
    is_served_on(&bystander);
}

/// Borrowed payload is read when it arrives. Its absence is a fault of its owner: the receiver, or
/// a requester of it, loses its peer and nothing else.
#[test]
fn a_receiver_is_not_blamed_for_borrowed_memory_that_is_gone() {
    for operation in ["send", "write", "read"] {
        let served = Served::start_as(How { workers: 1, ..How::default() });
        let (lender, pair) = (Pair::new(&served), Pair::new(&served));
        lender.connect_first(&pair);
        let mapped = Private::of_file(4 * 4096);
        let region = mapped.register(&lender.pd, all()).expect("a private mapping");
        let local = pair.pd.allocate(4096, Access::ALL).expect("memory");
        mapped.replace(8192, false);
        let (lent, ours) = ([region.sge(8192..12_288)], [local.sge(..)]);
        let (poster, request) = match operation {
            "send" => (&lender.a, SendRequest::send(&lent)),
            "write" => (&lender.a, SendRequest::write(&lent, local.remote())),
            _ => (&pair.a, SendRequest::read(&ours, region.remote().at(8192))),
        };
        pair.a.post_recv(&RecvRequest::new(&ours)).expect("room");
        poster.post_send(&request.signaled()).expect("room");
        eventually("the lender's session ended", || served.sessions() == 1);
        if operation == "read" {
            let error = pair.reap(1)[0].ok().expect_err("its peer is gone");
            assert_eq!(error.status, Status::TransportRetryExceeded);
        } else {
            // It waits on, as for any peer that says nothing.
            assert_eq!(pair.cq.poll(&mut [Completion::EMPTY]).expect("the daemon lives"), 0, "{operation}");
            assert_eq!(pair.a.query().expect("it is there").state, state::RTS, "{operation}");
        }
        drop(region);
        pair.pd.allocate(4096, Access::ALL).expect("it is served on");
    }
}

/// A page that its program blocks delays only its own session, and that not for long.
#[test]
fn memory_that_does_not_answer_ends_its_session_and_holds_no_other() {
    const NAME: &str = "memory_that_does_not_answer_ends_its_session_and_holds_no_other";
    if !nix::unistd::geteuid().is_root() {
        return println!("skipped: needs root, to hold the kernel's own accesses");
    }
    if !is_alone(NAME) {
        return;
    }
    // One worker, which both sessions need.
    let served = Served::start_as(How { workers: 1, ..How::default() });
    let (pair, bystander) = (Pair::new(&served), Pair::new(&served));
    let mapped = Private::of_file(4 * 4096);
    let region = mapped.register(&pair.pd, all()).expect("a private mapping");
    let local = pair.pd.allocate(4096, Access::ALL).expect("memory");
    mapped.replace(0, true);
    let Some(held) = withhold(mapped.base.as_ptr().addr(), mapped.bytes) else {
        return println!("skipped: no userfaultfd here");
    };
    let stop = AtomicBool::new(false);
    let longest = thread::scope(|scope| {
        let other = scope.spawn(|| {
            let (memory, mut longest) = (bystander.pd.allocate(4096, Access::ALL).expect("memory"), Duration::ZERO);
            while !stop.load(Ordering::Relaxed) {
                let begin = Instant::now();
                bystander.send(&SendRequest::write(&[memory.sge(..50)], memory.remote().at(50))).ok().expect("served");
                longest = longest.max(begin.elapsed());
            }
            longest
        });
        pair.a.post_send(&SendRequest::write(&[local.sge(..)], region.remote()).signaled()).expect("room");
        eventually("the session ended", || served.sessions() == 1);
        stop.store(true, Ordering::Relaxed);
        other.join().expect("it is served")
    });
    // As long as a starved copy thread is waited for, and not for ever.
    assert!(longest < Duration::from_secs(5), "others were held for {longest:?}");
    drop(region);
    drop(held);
    is_served_on(&bystander);
}

fn whole(fd: &impl AsRawFd, mapped: &Private) -> (MapMemoryRequest, RawFd) {
    let offset = mapped.base.as_ptr().addr() as u64;
    (MapMemoryRequest { offset, bytes: 4096, writable: 1, origin: origin::PROXIED }, fd.as_raw_fd())
}

/// The daemon acts on a descriptor that the client has opened, and only if it is of some process's
/// memory.
#[test]
fn descriptors_of_anything_else_are_refused() {
    let served = Served::start();
    let mut raw = Raw::greeted(&served.socket);
    raw.call::<OpenDevice>(DeviceName::new(DEVICE)).expect("it exists");
    let mapped = Private::of_file(8192);
    let open = |path: &str, write| OpenOptions::new().read(true).write(write).open(path).expect("it can be opened");
    let adjustment = || std::fs::read("/proc/self/oom_score_adj").expect("there");
    let before = adjustment();
    let (pipe, _other_end) = std::os::unix::net::UnixStream::pair().expect("sockets");
    let scratch = tempfile::tempfile_in(env!("CARGO_TARGET_TMPDIR")).expect("a scratch file");
    let refused: [(&str, OwnedFd); 6] = [
        ("a device", open("/dev/zero", true).into()),
        ("memory to read only", open("/proc/self/mem", false).into()),
        ("another file of procfs", open("/proc/self/oom_score_adj", true).into()),
        ("a file of procfs that has bytes there", open("/proc/self/pagemap", false).into()),
        ("a socket", pipe.into()),
        ("a file", scratch.into()),
    ];
    for (what, fd) in refused {
        let (request, fd) = whole(&fd, &mapped);
        let refusal = raw.call_with::<MapMemory>(request, &[fd]).expect_err(what).0;
        assert_eq!(refusal, Refusal::BadFile, "{what}");
    }
    assert_eq!(adjustment(), before);
    let memory = File::options().read(true).write(true).open("/proc/self/mem").expect("our own");
    let (request, fd) = whole(&memory, &mapped);
    for request in [
        MapMemoryRequest { offset: 0, ..request },
        MapMemoryRequest { offset: 1 << 62, bytes: 1 << 20, ..request },
        MapMemoryRequest { offset: 64 << 10, ..request },
    ] {
        assert_eq!(raw.call_with::<MapMemory>(request, &[fd]).expect_err("nothing is there").0, Refusal::BadFile);
    }
    assert_eq!(raw.call_with::<MapMemory>(request, &[]).expect_err("none was passed").0, Refusal::BadFile);
    raw.call_with::<MapMemory>(request, &[fd]).expect("memory of this very process");
    // The daemon has it from now on, and would only have to close another one.
    raw.call_with::<MapMemory>(request, &[]).expect("the same memory");
}

/// Operations forbidden to the program itself are forbidden to its peers.
#[test]
fn read_only_memory_is_not_registered_for_writing() {
    let served = Served::start();
    let device = Device::open_at(&served.socket, DEVICE).expect("it is served");
    let pd = device.protection_domain().expect("a domain");
    static CONSTANT: [u8; 5000] = [7; 5000];
    let at = (&raw const CONSTANT).cast_mut().cast::<u8>();
    // SAFETY: it lives as long as the program, and is never written.
    let register = |access| unsafe { pd.register_at(at, 5000, 0, access) };
    for access in [Access::LOCAL_WRITE, Access::REMOTE_WRITE, Access::ALL] {
        assert!(matches!(register(access), Err(Error::NoRights { .. })), "{access:?}");
    }
    let mut region = register(Access::REMOTE_READ).expect("to read");
    assert_eq!((region.to_vec(0, 10), proxied_bytes(&served) > 0), (vec![7; 10], true));
    let change = Reregistration { access: Some(Access::REMOTE_WRITE), ..Reregistration::default() };
    let refused = region.reregister(&change).expect_err("it is constant");
    assert!(matches!(refused, Error::Refused { refusal: Refusal::InvalidArgument, .. }), "{refused}");
}

/// A worker that gives memory back has written everything to it: written later, bytes would
/// replace newer ones of the program.
#[test]
fn released_memory_is_written_before_and_not_after() {
    let (ours, theirs) =
        socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).expect("ends");
    let own = OpenOptions::new().read(true).write(true).open("/proc/self/mem").expect("procfs");
    let descriptors = [own.as_raw_fd()];
    let message = [ControlMessage::ScmRights(&descriptors)];
    sendmsg::<()>(ours.as_raw_fd(), &[IoSlice::new(b"x")], &message, MsgFlags::empty(), None).expect("room");
    let incoming =
        descriptor::receive(&theirs, &mut [0; 8], &ClientAccounts::default().account(AccountId(1))).expect("a message");
    let mut incoming = incoming.expect("its user has none in closing");
    let copies = CopyThread::new(incoming.descriptors.remove(0)).expect("a thread");

    let memories = [Private::of_file(4096), Private::of_file(4096)];
    let mut table = MrTable::new(4);
    let mut worker = WorkerMemory::new(WorkerId(0), 4, 4);
    for (number, memory) in (1..).zip(&memories) {
        let va = memory.base.as_ptr().expose_provenance() as u64;
        let (key, access, object) =
            (MrKey(number << 8), access::LOCAL_WRITE | access::REMOTE_WRITE, MemoryObjectId(number));
        let mr = Mr { key, pd: Pdn(1), access, va, length: 4096, object, offset: 0, scope: Scope::Region };
        table.set(mr).expect("room");
        let backing = ProxiedMemory::new(&copies, &(va..va + 4096), true).expect("it is mapped");
        assert!(worker.hold(object, Backing::Proxied(Arc::new(backing))).is_ok(), "room");
    }
    let span = |number: usize| {
        let va = memories[number].base.as_ptr().addr() as u64;
        table.check(Pdn(1), MrKey((number as u32 + 1) << 8), Right::RemoteWrite, va, 4).expect("it is registered")
    };
    // SAFETY: our own mapping; the copy thread has answered when it is read.
    let byte = || unsafe { memories[0].base.as_ptr().read_volatile() };
    worker.write(span(0), &[7; 4]).expect("it is staged");
    drop(worker.release(MemoryObjectId(1)));
    assert_eq!(byte(), 7);
    // SAFETY: our own mapping, which the daemon has given back.
    unsafe { memories[0].base.as_ptr().write_volatile(1) };
    worker.write(span(1), &[9; 4]).expect("it is staged");
    worker.publish();
    assert_eq!(byte(), 1);
}
