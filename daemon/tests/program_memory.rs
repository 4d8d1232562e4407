//! Memory of the program itself, registered: data by every operation, and what no client may have the daemon map.
#![expect(unsafe_code, reason = "registers memory that the daemon writes to behind the compiler's back")]

mod served;

use std::{
    fs::{File, OpenOptions},
    os::fd::{AsRawFd, OwnedFd, RawFd},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, SealFlag, fcntl},
    sys::memfd::{MFdFlags, memfd_create},
    unistd::ftruncate,
};
use roced::config::{ClientLimits, Limits};
use roced_client::{
    Access, Completion, CompletionQueue, ConnectOptions, Device, Error, ProtectionDomain, QueuePair, RecvRequest,
    Refusal, SendRequest, Status,
};
use roced_shared::abi::control::{
    AllocPd, DeviceName, FreeMemory, Handle, MapMemory, MapMemoryRequest, Nothing, OpenDevice, RegMr, RegMrRequest,
    ReregMr, ReregMrRequest, access, origin, rereg,
};
use served::{DEVICE, How, Raw, Served};

/// Two connected queue pairs of one program.
struct Pair {
    pd: ProtectionDomain,
    cq: CompletionQueue,
    a: QueuePair,
    b: QueuePair,
}

impl Pair {
    fn new(served: &Served) -> Self {
        let device = Device::open_at(&served.socket, DEVICE).expect("it is served");
        let pd = device.protection_domain().expect("a domain");
        let cq = device.completion_queue(64).expect("a queue");
        let make = || pd.queue_pair(&cq, &cq).create().expect("a queue pair");
        let (a, b) = (make(), make());
        let options = ConnectOptions::default();
        a.connect(&b.endpoint(0).expect("a GID"), &options).expect("b is here");
        b.connect(&a.endpoint(0).expect("a GID"), &options).expect("a is here");
        Self { pd, cq, a, b }
    }

    /// Posts, and waits for its end.
    fn send(&self, request: &SendRequest<'_>) -> Completion {
        self.a.post_send(&(*request).signaled()).expect("room");
        self.reap()
    }

    fn reap(&self) -> Completion {
        let mut one = [Completion::EMPTY];
        assert_eq!(
            self.cq.wait(&mut one, Duration::from_secs(20)).expect("the daemon lives"),
            1,
            "a completion is missing"
        );
        one[0]
    }
}

fn pattern(seed: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 31 + at / 251 + seed) as u8).collect()
}

#[test]
fn heap_and_stack_are_reached_by_every_operation() {
    let served = Served::start();
    let pair = Pair::new(&served);
    let bytes = 300_001;
    let (mut heap, mut stack) = (pattern(1, bytes), [0u8; 5000]);
    // SAFETY: both live until the regions are dropped; what peers write is looked at by the regions' own methods.
    let (source, target) = unsafe {
        let source = pair.pd.register_at(heap.as_mut_ptr(), bytes, heap.as_ptr().addr() as u64, Access::ALL);
        // Under addresses of its own.
        (
            source.expect("heap"),
            pair.pd.register_at(stack.as_mut_ptr(), 5000, 0x77_0000_0001, Access::ALL).expect("stack"),
        )
    };
    assert_eq!((target.remote().va, target.remote().length), (0x77_0000_0001, 5000));
    assert_eq!(target.sge(5..7).va, 0x77_0000_0006);

    pair.send(&SendRequest::write(&[source.sge(100..5100)], target.remote())).ok().expect("it arrived");
    assert!(target.to_vec(0, 5000) == pattern(1, bytes)[100..5100]);
    target.fill(0, 100, 9);
    pair.send(&SendRequest::read(&[source.sge(bytes - 100..)], target.remote())).ok().expect("it came");
    assert_eq!(source.to_vec(bytes - 100, 100), [9; 100]);
    pair.b.post_recv(&RecvRequest::new(&[target.sge(..1000)])).expect("room");
    pair.a.post_send(&SendRequest::send(&[source.sge(..1000)]).signaled()).expect("room");
    for what in ["sent", "received"] {
        pair.reap().ok().expect(what);
    }
    assert!(target.to_vec(0, 1000) == pattern(1, 1000));

    // The last byte is inside and the next is not.
    let last = pair.send(&SendRequest::write(&[source.sge(..1)], target.remote().at(4999)));
    assert!(last.ok().is_ok() && target.byte(4999) == source.byte(0));
    drop((source, target));
    // It is the program's alone again, as it was left.
    assert!(heap[..bytes - 100] == pattern(1, bytes)[..bytes - 100] && heap[bytes - 100..] == [9; 100]);
    assert!(stack[..1000] == pattern(1, 1000) && stack[4999] == heap[0]);
}

/// Regions over one another, of two devices' sessions, and what one writes the other reads.
#[test]
fn regions_over_the_same_pages_show_the_same_bytes() {
    let served = Served::start();
    let (first, second) = (Pair::new(&served), Pair::new(&served));
    let words: Vec<AtomicU64> = (0..2048).map(AtomicU64::new).collect();
    let (base, address) = (words.as_ptr().cast_mut().cast::<u8>(), words.as_ptr().addr() as u64);
    let register = |pair: &Pair, range: std::ops::Range<usize>| {
        // SAFETY: `words` lives until the end, and is made of atomics.
        let region = unsafe {
            pair.pd.register_at(base.add(range.start), range.len(), address + range.start as u64, Access::ALL)
        };
        region.expect("heap")
    };
    let (whole, inner, other) =
        (register(&first, 0..16384), register(&first, 4096..8192), register(&second, 1000..9000));
    let mut results = [0u64; 1];
    // SAFETY: it lives until the region is dropped, and is not looked at before.
    let result =
        unsafe { first.pd.register_at(results.as_mut_ptr().cast(), 8, 0, Access::LOCAL_WRITE) }.expect("stack");
    let entry = [result.sge(..)];
    let add = |remote| SendRequest::fetch_add(&entry, remote, 1000);
    first.send(&add(inner.remote().at(0))).ok().expect("done");
    assert_eq!((whole.atomic(4096).load(Ordering::Acquire), words[512].load(Ordering::Acquire)), (1512, 1512));
    words[512].fetch_add(1, Ordering::AcqRel);
    assert_eq!(other.to_vec(3096, 8), 1513u64.to_ne_bytes());
    drop(whole);
    first.send(&add(inner.remote().at(0))).ok().expect("done");
    drop(inner);
    assert_eq!(words[512].load(Ordering::Acquire), 2513);
    second.send(&SendRequest::write(&[other.sge(..8)], other.remote().at(3096))).ok().expect("written");
    drop(other);
    assert_eq!((words[512].load(Ordering::Acquire), words[125].load(Ordering::Acquire)), (125, 125));
    assert_eq!(result.to_vec(0, 8), 1513u64.to_ne_bytes());
}

#[test]
fn what_was_deregistered_is_out_of_reach() {
    let served = Served::start();
    let pair = Pair::new(&served);
    let mut bytes = vec![1u8; 10_000];
    // SAFETY: it lives until the region is dropped.
    let region = unsafe { pair.pd.register_at(bytes.as_mut_ptr(), 10_000, 0, Access::ALL) }.expect("heap");
    let (remote, local) = (region.remote(), pair.pd.allocate(4096, Access::ALL).expect("memory"));
    drop(region);
    let refused = pair.send(&SendRequest::write(&[local.sge(..10)], remote));
    assert_eq!(refused.ok().expect_err("its key is gone").status, Status::RemoteAccess);
    assert!(bytes.iter().all(|byte| *byte == 1));
}

#[test]
fn it_counts_against_the_limits() {
    let client = ClientLimits { memory_mib: 1, ..ClientLimits::default() };
    let served = Served::start_as(How { limits: Limits { client, ..Limits::default() }, ..How::default() });
    let device = Device::open_at(&served.socket, DEVICE).expect("it is served");
    let pd = device.protection_domain().expect("a domain");
    let mut bytes = vec![3u8; 2 << 20];
    // SAFETY: it lives until the regions are dropped.
    let mut register = |length| unsafe { pd.register_at(bytes.as_mut_ptr(), length, 0, Access::ALL) };
    let refused = register(1 << 20).expect_err("with the session's own page it is too much");
    assert!(matches!(refused, Error::Refused { refusal: Refusal::Limit, .. }), "{refused}");
    drop(register(500 << 10).expect("it fits"));
    drop(register(900 << 10).expect("there is room again"));
    assert!(bytes.iter().all(|byte| *byte == 3));
}

fn memfd(seals: SealFlag) -> OwnedFd {
    let fd = memfd_create(c"test", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING).expect("a memfd");
    ftruncate(&fd, 4 * 4096).expect("four pages");
    fcntl(&fd, FcntlArg::F_ADD_SEALS(seals)).expect("it can be sealed");
    fd
}

fn opened(served: &Served) -> Raw {
    let mut raw = Raw::greeted(&served.socket);
    raw.call::<OpenDevice>(DeviceName::new(DEVICE)).expect("it exists");
    raw
}

const ALL: MapMemoryRequest = MapMemoryRequest { offset: 0, bytes: 4 * 4096, writable: 1, origin: origin::SHARED };

#[test]
fn what_cannot_be_mapped_is_refused_and_named() {
    let served = Served::start();
    let mut raw = opened(&served);
    let sealed = memfd(SealFlag::F_SEAL_SHRINK);
    let mut refused = |request, fds: &[RawFd]| raw.call_with::<MapMemory>(request, fds).expect_err("it is refused");
    let bad = |errno: Errno| (Refusal::BadFile, [errno as u64, 0]);
    assert_eq!(refused(ALL, &[]), bad(Errno::EBADF));
    let fd = sealed.as_raw_fd();
    for (request, place, value) in [
        (MapMemoryRequest { offset: 1, ..ALL }, 0, 1),
        (MapMemoryRequest { bytes: 0, ..ALL }, 1, 0),
        (MapMemoryRequest { bytes: 4095, ..ALL }, 1, 4095),
        (MapMemoryRequest { offset: u64::MAX - 4095, bytes: 4096, ..ALL }, 1, 4096),
        (MapMemoryRequest { writable: 2, ..ALL }, 2, 2),
        (MapMemoryRequest { origin: 0, ..ALL }, 3, 0),
    ] {
        assert_eq!(refused(request, &[fd]), (Refusal::InvalidArgument, [place, value]));
    }
    assert_eq!(refused(MapMemoryRequest { offset: 4096, ..ALL }, &[fd]), bad(Errno::EOVERFLOW), "beyond the end");
    let too_much = MapMemoryRequest { bytes: 1 << 47, ..ALL };
    assert_eq!(refused(too_much, &[fd]).0, Refusal::Limit);
    assert_eq!(refused(ALL, &[memfd(SealFlag::empty()).as_raw_fd()]), bad(Errno::EOPNOTSUPP), "it could shrink");
    let unwritable = memfd(SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_FUTURE_WRITE);
    assert_eq!(refused(ALL, &[unwritable.as_raw_fd()]), bad(Errno::EPERM));
    let disk = tempfile::tempfile_in(env!("CARGO_TARGET_TMPDIR")).expect("a scratch file");
    assert_eq!(refused(ALL, &[disk.as_raw_fd()]), bad(Errno::EINVAL), "a file on a disk");
    assert_eq!(
        refused(ALL, &[std::os::unix::net::UnixDatagram::unbound().expect("a socket").as_raw_fd()]),
        bad(Errno::EINVAL),
        "a socket"
    );
    // Nothing of it was kept, and what can be mapped is.
    let report = served.on_control_thread(|clients, _| clients.reports().next()).expect("one session");
    let handle = raw.call_with::<MapMemory>(ALL, &[fd]).expect("it can be mapped").handle;
    let now = served.on_control_thread(|clients, _| clients.reports().next()).expect("one session");
    assert_eq!(now.memory_bytes, report.memory_bytes + 4 * 4096);
    raw.call::<FreeMemory>(Handle { handle }).expect("nothing lies in it");
    assert_eq!(served.on_control_thread(|clients, _| clients.reports().next()), Some(report));
}

/// What a client may only read no peer of it writes, whatever it asks for.
#[test]
fn what_a_client_may_not_write_the_daemon_does_not_write_for_it() {
    let served = Served::start();
    let mut raw = opened(&served);
    let file = memfd(SealFlag::F_SEAL_SHRINK);
    let read_only = File::from(file.try_clone().expect("a copy"));
    let read_only = OpenOptions::new().read(true).open(format!("/proc/self/fd/{}", read_only.as_raw_fd()));
    let fd = read_only.expect("it can be opened");
    let fd = fd.as_raw_fd();
    assert_eq!(raw.call_with::<MapMemory>(ALL, &[fd]), Err((Refusal::BadFile, [Errno::EACCES as u64, 0])));
    let request = MapMemoryRequest { writable: 0, ..ALL };
    let memory = raw.call_with::<MapMemory>(request, &[fd]).expect("to read").handle;
    let pd = raw.call::<AllocPd>(Nothing {}).expect("below the limit").handle;
    let reg = |access| RegMrRequest { pd, memory, length: 100, access, ..RegMrRequest::default() };
    for bits in [access::LOCAL_WRITE, access::LOCAL_WRITE | access::REMOTE_WRITE, access::ALL] {
        assert_eq!(raw.call::<RegMr>(reg(bits)), Err((Refusal::InvalidArgument, [5, bits.into()])));
    }
    let mr = raw.call::<RegMr>(reg(access::REMOTE_READ | access::WINDOW_BIND)).expect("to read").handle;
    // Nor by a change: of the rights, or of the memory under them.
    let change = |handle, changes, access| ReregMrRequest {
        handle,
        changes,
        memory,
        length: 100,
        access,
        ..ReregMrRequest::default()
    };
    let refused = Err((Refusal::InvalidArgument, [7, access::ALL.into()]));
    assert_eq!(raw.call::<ReregMr>(change(mr, rereg::ACCESS, access::ALL)), refused);
    let writable = raw.call_with::<MapMemory>(ALL, &[file.as_raw_fd()]).expect("to write").handle;
    let other = raw.call::<RegMr>(RegMrRequest { memory: writable, ..reg(access::ALL) }).expect("to write").handle;
    assert_eq!(raw.call::<ReregMr>(change(other, rereg::TRANSLATION, 0)), refused);
    raw.call::<ReregMr>(change(other, rereg::TRANSLATION | rereg::ACCESS, access::REMOTE_READ)).expect("to read");
}
