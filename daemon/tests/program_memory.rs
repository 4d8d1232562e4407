//! Memory of the program itself, registered: data by every operation, and memory that no client may
//! have the daemon map.
#![expect(unsafe_code, reason = "registers memory that the daemon writes to behind the compiler's back")]

mod delays;
mod served;
mod shared_mapping;

use std::{
    fs::{self, File, OpenOptions, Permissions},
    os::{
        fd::{AsFd, AsRawFd, OwnedFd, RawFd},
        unix::fs::{FileExt, PermissionsExt},
    },
    ptr::NonNull,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use delays::{By, Doing, LIMIT, Now, both, copy::copy_elsewhere, paused, write_all_over};
use nix::{
    errno::Errno,
    fcntl::{FcntlArg, SealFlag, fcntl},
    sys::{
        memfd::{MFdFlags, memfd_create},
        mman::{MmapAdvise, ProtFlags, madvise},
        socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket},
        stat::fstat,
    },
    unistd::ftruncate,
};
use roced::config::{ClientLimits, LimitsConfig};
use roced_abi::control::{
    AllocPd, DeregMrAndFree, DeviceName, FreeMemory, Handle, MapAndRegMr, MapAndRegMrRequest, MapMemory,
    MapMemoryRequest, Nothing, OpenDevice, RegMr, RegMrRequest, ReregMr, ReregMrRequest, origin, rereg,
};
use roced_client::{
    Access, Device, Error, ExchangeCost, MemoryRegion, RecvRequest, Refusal, Reregistration, SendRequest, Status,
};
use roced_memory::first_touch;
use roced_report::MemoryReport;
use roced_types::access;
use served::{
    DEVICE, How, Raw, Served, is_alone,
    pair::{Pair, pattern},
};
use shared_mapping::Mapped;

#[test]
fn heap_and_stack_are_reached_by_every_operation() {
    let served = Served::start();
    let pair = Pair::new(&served);
    let bytes = 300_001;
    let (mut heap, mut stack) = (pattern(1, bytes), [0u8; 5000]);
    // SAFETY: both live until the regions are dropped; bytes written by peers are read by the
    // regions' own methods.
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
        pair.reap(1)[0].ok().expect(what);
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

/// Overlapping regions of two devices' sessions: writes of one are visible in the other.
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
fn deregistered_memory_is_inaccessible() {
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
    let served = Served::start_as(How { limits: LimitsConfig { client, ..LimitsConfig::default() }, ..How::default() });
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

const ALL: MapMemoryRequest = MapMemoryRequest { offset: 0, bytes: 4 * 4096, writable: 1, origin: origin::FILE_BACKED };

#[test]
fn memory_that_cannot_be_mapped_is_refused_and_named() {
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
    let unwritable = memfd(SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_FUTURE_WRITE);
    assert_eq!(refused(ALL, &[unwritable.as_raw_fd()]), bad(Errno::EPERM));
    let disk = tempfile::tempfile_in(env!("CARGO_TARGET_TMPDIR")).expect("a scratch file");
    assert_eq!(refused(ALL, &[disk.as_raw_fd()]), bad(Errno::EINVAL), "a file on a disk");
    assert_eq!(
        refused(ALL, &[std::os::unix::net::UnixDatagram::unbound().expect("a socket").as_raw_fd()]),
        bad(Errno::EINVAL),
        "a socket"
    );
    // Nothing of it was kept, and mappable memory is mapped.
    let report = served.on_control_thread(|clients, _| clients.reports().next()).expect("one session");
    let handle = raw.call_with::<MapMemory>(ALL, &[fd]).expect("it can be mapped").handle;
    let now = served.on_control_thread(|clients, _| clients.reports().next()).expect("one session");
    assert_eq!(now.memory_bytes, report.memory_bytes + 4 * 4096);
    raw.call::<FreeMemory>(Handle { handle }).expect("nothing lies in it");
    assert_eq!(served.on_control_thread(|clients, _| clients.reports().next()), Some(report));
}

#[test]
fn memory_and_a_region_in_it_are_mapped_and_registered_in_one_call() {
    let served = Served::start();
    let mut raw = opened(&served);
    let file = memfd(SealFlag::F_SEAL_SHRINK);
    let fds = [file.as_raw_fd()];
    let pd = raw.call::<AllocPd>(Nothing {}).expect("below the limit").handle;
    let report = |served: &Served| served.on_control_thread(|clients, _| clients.reports().next());
    let before = report(&served);
    let region = RegMrRequest { pd, offset: 4096, length: 100, access: access::ALL, ..RegMrRequest::default() };
    let request = |region| MapAndRegMrRequest { memory: ALL, region };
    for (request, refusal, place, value) in [
        (MapAndRegMrRequest { memory: MapMemoryRequest { bytes: 1, ..ALL }, region }, Refusal::InvalidArgument, 1, 1),
        (request(RegMrRequest { length: ALL.bytes, ..region }), Refusal::InvalidArgument, 7, ALL.bytes),
        (request(RegMrRequest { access: 1 << 31, ..region }), Refusal::InvalidArgument, 9, 1 << 31),
        (request(RegMrRequest { pd: 99, ..region }), Refusal::NoSuchObject, 99, 0),
    ] {
        assert_eq!(raw.call_with::<MapAndRegMr>(request, &fds), Err((refusal, [place, value])));
        // Nothing of it was kept.
        assert_eq!(report(&served), before);
    }
    assert_eq!(
        raw.call_with::<MapAndRegMr>(request(region), &[]),
        Err((Refusal::BadFile, [Errno::EBADF as u64, 0])),
        "no descriptor"
    );
    let made = raw.call_with::<MapAndRegMr>(request(region), &fds).expect("it can be mapped");
    // The memory ends with the last region in it.
    let other = raw.call::<RegMr>(RegMrRequest { memory: made.memory, ..region }).expect("below the limit").handle;
    raw.call::<DeregMrAndFree>(Handle { handle: made.region.handle }).expect("registered");
    assert_eq!(raw.call::<FreeMemory>(Handle { handle: made.memory }), Err((Refusal::InUse, [1, 0])));
    raw.call::<DeregMrAndFree>(Handle { handle: other }).expect("registered");
    assert_eq!(
        raw.call::<FreeMemory>(Handle { handle: made.memory }),
        Err((Refusal::NoSuchObject, [made.memory.into(), 0]))
    );
    assert_eq!(report(&served), before);
}

/// Memory that is read-only to a client is not written by its peers, for any requested rights.
#[test]
fn the_daemon_does_not_write_memory_that_is_read_only_to_its_client() {
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

const READ_WRITE: ProtFlags = ProtFlags::PROT_READ.union(ProtFlags::PROT_WRITE);

/// Bytes by the way in which the daemon reaches them: made, replaced, shared.
fn bytes_by_way(served: &Served) -> [u64; 3] {
    let report = served.on_control_thread(|clients, _| clients.reports().next()).expect("one session");
    let MemoryReport { allocated_bytes, migrated_bytes, file_backed_bytes, proxied_bytes } = report.memory;
    assert_eq!(proxied_bytes, 0, "all of it can be mapped");
    [allocated_bytes, migrated_bytes, file_backed_bytes]
}

#[test]
fn memory_shared_by_the_program_is_not_moved() {
    let served = Served::start();
    let pair = Pair::new(&served);
    let local = pair.pd.allocate(4096, Access::ALL).expect("memory");
    local.write_at(0, b"hello");
    // By a descriptor that is open, and by a name.
    let file = memfd(SealFlag::empty());
    let named = tempfile::NamedTempFile::new_in("/dev/shm").expect("a scratch file");
    named.as_file().set_len(4 * 4096).expect("four pages");
    let by_fd = Mapped::new(&file, 4096, 2 * 4096, READ_WRITE);
    let by_name = Mapped::new(named.as_file(), 0, 4 * 4096, READ_WRITE);
    let path = named.into_temp_path();
    for (mapped, file_offset) in [(&by_fd, 4096 + 100), (&by_name, 100)] {
        let region = mapped.register(&pair.pd, 100..5000, Access::ALL).expect("its file is found");
        assert_eq!(bytes_by_way(&served), [4096, 0, 8192]);
        pair.send(&SendRequest::write(&[local.sge(..5)], region.remote())).ok().expect("it arrived");
        assert_eq!(region.to_vec(0, 5), b"hello");
        let mut bytes = [0; 5];
        let from = if file_offset > 4096 {
            file.try_clone().expect("a copy").into()
        } else {
            File::open(&path).expect("there")
        };
        from.read_exact_at(&mut bytes, file_offset).expect("inside");
        assert_eq!(&bytes, b"hello", "the file has it: nothing was replaced");
    }
    assert_eq!(bytes_by_way(&served), [4096, 0, 0]);
    // Memory allocated by the library stays in place, for any address in it, from its first byte to
    // its last.
    let address = local.as_ptr();
    // SAFETY: it lives until the regions are dropped.
    let register =
        |offset: usize, length| unsafe { pair.pd.register_at(address.wrapping_add(offset), length, 0, Access::ALL) };
    let again = register(1, 4095).expect("inside");
    assert_eq!((again.to_vec(0, 4), bytes_by_way(&served)), (b"ello".to_vec(), [4096, 0, 0]));
    drop(again);
    let heap = vec![0u8; 5000];
    // SAFETY: as above.
    let replaced = unsafe { pair.pd.register_at(heap.as_ptr().cast_mut(), 1, 0, Access::NONE) }.expect("heap");
    assert_eq!(bytes_by_way(&served), [4096, 4096, 0]);
    drop(replaced);
}

#[test]
fn a_region_moves_to_other_memory_and_keeps_its_keys() {
    let served = Served::start();
    let pair = Pair::new(&served);
    let (mut first, mut second) = (vec![1u8; 9000], vec![2u8; 9000]);
    // SAFETY: both live until the region is dropped.
    let mut region =
        unsafe { pair.pd.register_at(first.as_mut_ptr(), 9000, 0x1000, Access::REMOTE_READ) }.expect("heap");
    let local = pair.pd.allocate(4096, Access::ALL).expect("memory");
    let (old, keys) = (region.remote(), (region.lkey(), region.rkey()));
    let change = Reregistration { access: Some(Access::ALL), ..Reregistration::default() };
    // SAFETY: as above.
    unsafe { region.reregister_at(&change, second.as_mut_ptr(), 8000, 0x5000) }.expect("heap");
    assert_eq!(((region.lkey(), region.rkey()), region.remote().va, region.len()), (keys, 0x5000, 8000));
    pair.send(&SendRequest::read(&[local.sge(..10)], region.remote())).ok().expect("it came");
    assert_eq!(local.to_vec(0, 10), [2; 10]);
    pair.send(&SendRequest::write(&[local.sge(..10)], region.remote().at(7990))).ok().expect("it may write now");
    let refused = pair.send(&SendRequest::read(&[local.sge(..10)], old));
    assert_eq!(refused.ok().expect_err("nothing lies there any more").status, Status::RemoteAccess);
    drop(region);
    assert!(first.iter().all(|byte| *byte == 1) && second.iter().all(|byte| *byte == 2));
}

/// A file that is truncated under the daemon costs its owner the session, and no other client
/// anything.
#[test]
fn a_file_that_shrinks_ends_its_session_and_no_other() {
    let served = Served::start();
    let (pair, bystander) = (Pair::new(&served), Pair::new(&served));
    let file = memfd(SealFlag::empty());
    let mapped = Mapped::new(&file, 0, 4 * 4096, READ_WRITE);
    let region = mapped.register(&pair.pd, 0..4 * 4096, Access::ALL).expect("its file is found");
    let local = pair.pd.allocate(4096, Access::ALL).expect("memory");
    pair.send(&SendRequest::write(&[local.sge(..)], region.remote())).ok().expect("it arrived");
    ftruncate(&file, 0).expect("nothing forbids it");
    pair.a.post_send(&SendRequest::write(&[local.sge(..)], region.remote().at(8192)).signaled()).expect("room");
    served::eventually("the session ended", || served.sessions() == 1);
    assert!(matches!(pair.pd.allocate(1, Access::ALL), Err(Error::DaemonGone)));
    drop(region);
    let mut bytes = vec![1u8; 100];
    // SAFETY: it lives until the region is dropped.
    let other = unsafe { bystander.pd.register_at(bytes.as_mut_ptr(), 100, 0, Access::ALL) }.expect("heap");
    bystander.send(&SendRequest::write(&[other.sge(..50)], other.remote().at(50))).ok().expect("it is served on");
}

fn blocks(file: impl AsFd) -> i64 {
    fstat(file).expect("a file").st_blocks
}

/// The first touch of a page decides the control group that it counts for.
#[test]
fn pages_that_the_program_has_not_touched_are_touched_by_its_registration() {
    let served = Served::start();
    let pair = Pair::new(&served);
    let file = memfd(SealFlag::empty());
    let mapped = Mapped::new(&file, 0, 4 * 4096, READ_WRITE);
    assert_eq!(blocks(&file), 0);
    let _region = mapped.register(&pair.pd, 4096..2 * 4096, Access::ALL).expect("its file is found");
    assert_eq!(blocks(&file), 8, "of 512 bytes");
    let readable = Mapped::new(&file, 2 * 4096, 4096, ProtFlags::PROT_READ);
    let _region = readable.register(&pair.pd, 0..4096, Access::REMOTE_READ).expect("its file is found");
    assert_eq!(blocks(&file), 16);
}

#[test]
fn the_daemon_makes_no_page_for_a_hole_in_registered_memory() {
    if !is_alone("the_daemon_makes_no_page_for_a_hole_in_registered_memory") {
        return;
    }
    let served = Served::start();
    if first_touch::clients_pay().is_err() {
        return println!("skipped: no userfaultfd here");
    }
    let bystander = Pair::new(&served);
    let punched = |at: *mut u8| {
        let at = NonNull::new(at).expect("it is mapped");
        // SAFETY: a page of shared memory, of which no code has references.
        unsafe { madvise(at.cast(), 4096, MmapAdvise::MADV_REMOVE) }.expect("it is shared");
    };
    let file = memfd(SealFlag::empty());
    let mapped = Mapped::new(&file, 0, 4 * 4096, READ_WRITE);
    for write in [false, true] {
        let pair = Pair::new(&served);
        let region = mapped.register(&pair.pd, 0..4 * 4096, Access::ALL).expect("its file is found");
        let local = pair.pd.allocate(4096, Access::ALL).expect("memory");
        let there = region.remote().at(8192);
        pair.send(&SendRequest::write(&[local.sge(..)], there)).ok().expect("a page that is there");
        punched(region.as_ptr().wrapping_add(8192));
        let before = blocks(&file);
        let sge = [local.sge(..)];
        let request = if write { SendRequest::write(&sge, there) } else { SendRequest::read(&sge, there) };
        pair.a.post_send(&request.signaled()).expect("room");
        served::eventually("the session ended", || served.sessions() == 1);
        assert_eq!(blocks(&file), before, "write: {write}");
    }
    let memory = bystander.pd.allocate(4096, Access::ALL).expect("it is served");
    bystander.send(&SendRequest::write(&[memory.sge(..5)], memory.remote().at(8))).ok().expect("it is served on");
}

/// A readable file of another user, in a program without privileges: for any attempt, no peer of it
/// writes there.
#[test]
fn a_file_that_a_user_may_only_read_is_not_written_for_it() {
    const NAME: &str = "a_file_that_a_user_may_only_read_is_not_written_for_it";
    if !nix::unistd::geteuid().is_root() {
        return println!("skipped: needs root, to be two users");
    }
    if !is_alone(NAME) {
        return;
    }
    let served = Served::start();
    let file = tempfile::NamedTempFile::new_in("/dev/shm").expect("a scratch file");
    file.as_file().write_all_at(&[7; 4096], 0).expect("room");
    fs::set_permissions(file.path(), Permissions::from_mode(0o644)).expect("it is ours");
    let connect = || {
        let fd = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).expect("a socket");
        connect(fd.as_raw_fd(), &UnixAddr::new(&served.socket).expect("short")).expect("the peer listens");
        fd
    };
    let (for_library, for_raw) = (connect(), connect());
    let as_unprivileged_user = || {
        // SAFETY: this thread is the only one of the forked child. The library's wrapper would look
        // for others.
        assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) }, 0);
        assert!(OpenOptions::new().write(true).open(file.path()).is_err(), "it may not write");
        let read_only = File::open(file.path()).expect("it may read");
        let mapped = Mapped::new(&read_only, 0, 4096, ProtFlags::PROT_READ);
        let device = Device::open_over(for_library, DEVICE).expect("it is served");
        let pd = device.protection_domain().expect("a domain");
        for access in [Access::LOCAL_WRITE, Access::REMOTE_WRITE, Access::REMOTE_ATOMIC, Access::ALL] {
            let refused = mapped.register(&pd, 0..4096, access).expect_err("it may not write");
            assert!(matches!(refused, Error::NoRights { .. }), "{refused}");
        }
        let mut region = mapped.register(&pd, 0..4096, Access::REMOTE_READ).expect("to read");
        let change = Reregistration { access: Some(Access::ALL), ..Reregistration::default() };
        assert!(matches!(region.reregister(&change), Err(Error::Refused { refusal: Refusal::InvalidArgument, .. })));
        // Without the library as well.
        let mut raw = Raw::over(for_raw);
        raw.call::<OpenDevice>(DeviceName::new(DEVICE)).expect("it exists");
        let request = MapMemoryRequest { bytes: 4096, ..ALL };
        let refused = raw.call_with::<MapMemory>(request, &[read_only.as_raw_fd()]);
        assert_eq!(refused, Err((Refusal::BadFile, [Errno::EACCES as u64, 0])));
    };
    // SAFETY: the child runs the code above, and ends.
    match unsafe { libc::fork() } {
        0 => {
            let good = std::panic::catch_unwind(std::panic::AssertUnwindSafe(as_unprivileged_user)).is_ok();
            // SAFETY: ends the process at once.
            unsafe { libc::_exit(if good { 42 } else { 1 }) }
        }
        child => {
            let status = nix::sys::wait::waitpid(nix::unistd::Pid::from_raw(child), None).expect("it ends");
            assert!(matches!(status, nix::sys::wait::WaitStatus::Exited(_, 42)), "{status:?}");
        }
    }
    let mut bytes = [0; 4096];
    file.as_file().read_exact_at(&mut bytes, 0).expect("inside");
    assert_eq!(bytes, [7; 4096]);
}

#[test]
fn the_cost_of_a_registration_is_reported() {
    let served = Served::start();
    let pd = Pair::new(&served).pd;
    let mut bytes = vec![1u8; 5 << 20];
    // SAFETY: it lives until the regions are dropped.
    let mut register =
        |length| unsafe { pd.register_at(bytes.as_mut_ptr(), length, 0, Access::ALL) }.expect("heap").exchange_cost();
    let cost = register(5 << 20).expect("its pages were exchanged");
    assert!(cost.pieces >= 3 && cost.pieces_waited_for <= cost.pieces, "{cost:?}");
    assert!(cost.longest > Duration::ZERO && cost.longest < cost.took, "{cost:?}");
    let made = pd.allocate(4096, Access::ALL).expect("memory");
    assert_eq!(made.exchange_cost(), None);
}

/// Sizes to measure with, and how often.
const MEASURED: [(usize, u32); 4] = [(4096, 200), (1 << 20, 100), (64 << 20, 8), (1 << 30, 3)];

#[test]
#[ignore = "a measurement: run it on a quiet machine"]
fn cost_of_registration() {
    let served = Served::start();
    let device = Device::open_at(&served.socket, DEVICE).expect("it is served");
    let pd = device.protection_domain().expect("a domain");
    println!("{:>12} {:>14} {:>14} {:>14}", "bytes", "register us", "once more us", "deregister us");
    for (bytes, rounds) in MEASURED {
        let words: Vec<AtomicU64> = (0..bytes / 8).map(|_| AtomicU64::new(1)).collect();
        // SAFETY: `words` lives until the regions are dropped, and is made of atomics.
        let register =
            || unsafe { pd.register_at(words.as_ptr().cast_mut().cast(), bytes, 0, Access::ALL) }.expect("heap");
        let mut sums = [Duration::ZERO; 3];
        let mut timed = |which: usize, begin: Instant| sums[which] += begin.elapsed();
        for _ in 0..rounds {
            let begin = Instant::now();
            let region = register();
            timed(0, begin);
            let begin = Instant::now();
            let second = register();
            timed(1, begin);
            drop(second);
            let begin = Instant::now();
            drop(region);
            timed(2, begin);
        }
        let [first, again, end] = sums.map(|sum| sum.as_secs_f64() * 1e6 / f64::from(rounds));
        println!("{bytes:>12} {first:>14.1} {again:>14.1} {end:>14.1}");
    }
}

/// Duration for which a registration, or its end, delays one of two threads that write all over the
/// memory meanwhile, and the cause; and the same while another thread only copies as much, and
/// while nothing happens. Waiting for a core is not counted, and neither is, of a long delay, the
/// time of a virtual machine's host.
#[test]
#[ignore = "a measurement: run it on a quiet machine"]
fn threads_held_up_by_registration() {
    let served = Served::start();
    let device = Device::open_at(&served.socket, DEVICE).expect("it is served");
    let pd = device.protection_domain().expect("a domain");
    let mut longest = Duration::ZERO;
    for (bytes, rounds) in MEASURED {
        let words: Vec<AtomicU64> = (0..bytes / 8).map(|_| AtomicU64::new(1)).collect();
        let (now, mut cost, mut lasted) = (Now::default(), ExchangeCost::default(), [Duration::ZERO; 4]);
        let over = AtomicBool::new(false);
        let (seen, paused) = std::thread::scope(|scope| {
            let watcher = scope.spawn(|| paused::watch(&over));
            let writers = [1, 3].map(|seed| {
                let (words, now) = (&words, &now);
                scope.spawn(move || write_all_over(words, seed, now))
            });
            for _ in 0..rounds {
                let mut during = |doing: Doing, act: &mut dyn FnMut()| {
                    now.set(doing);
                    let begin = Instant::now();
                    act();
                    lasted[doing as usize] += begin.elapsed();
                    begin.elapsed()
                };
                let mut region = None;
                let took = during(Doing::Registering, &mut || {
                    // SAFETY: `words` lives until the region is dropped, and is made of atomics.
                    let made = unsafe { pd.register_at(words.as_ptr().cast_mut().cast(), bytes, 0, Access::ALL) };
                    region = Some(made.expect("heap"));
                });
                let one = region.as_ref().and_then(MemoryRegion::exchange_cost).expect("its pages were exchanged");
                cost.pieces += one.pieces;
                cost.pieces_waited_for += one.pieces_waited_for;
                cost.longest = cost.longest.max(one.longest);
                during(Doing::Deregistering, &mut || region = None);
                during(Doing::Copying, &mut || copy_elsewhere(&words));
                during(Doing::Nothing, &mut || std::thread::sleep(took));
            }
            now.end();
            let seen = both(writers.map(|writer| writer.join().expect("it counts")));
            over.store(true, Ordering::SeqCst);
            (seen, watcher.join().expect("it watches"))
        });
        let (pieces, waited_for) = (cost.pieces, cost.pieces_waited_for);
        println!("{bytes} bytes: {pieces} pieces, {waited_for} waited for, told as their longest {:?}", cost.longest);
        let (times, still) = paused.told();
        println!("{:>16}{:>10}  cores stood still at {times} looks, in all for {still:.1?}", "", "seconds");
        println!("{:>26}  held by: times, longest us; over {LIMIT:?}, without those that stood still", "");
        for doing in Doing::ALL {
            let held = By::ALL.map(|by| {
                let holds = &seen[doing as usize][by as usize];
                let (over, without) = (holds.over_limit(), holds.longest_without(&paused).as_micros());
                let text = format!("{by:?}: {}, {}; {over}, {without}", holds.times, holds.longest.as_micros());
                format!("  {text:<32}")
            });
            println!("{:>16}{:>10.2}{}", format!("{doing:?}"), lasted[doing as usize].as_secs_f64(), held.join(""));
        }
        let ours = [Doing::Registering, Doing::Deregistering].map(|doing| &seen[doing as usize]);
        // Time that the kernel attributes to the host is not the program's.
        let held =
            ours.into_iter().flat_map(|by| [By::Others, By::Kernel].map(|it| by[it as usize].longest_without(&paused)));
        longest = held.max().unwrap_or_default();
    }
    // Of the largest. With small ones threads sleep more often, and a core that the host gives back
    // late wakes them late.
    assert!(longest <= LIMIT, "a thread was held for {longest:?} while all cores went on");
}
