//! Mappings, of which a process has a limited number: clients cannot bring the daemon to that
//! limit, and at it nothing of theirs breaks.
#![expect(unsafe_code, reason = "maps memory, and registers it")]

mod served;

use std::{
    collections::BTreeMap,
    num::NonZeroUsize,
    os::fd::{AsRawFd, OwnedFd},
    ptr::NonNull,
    time::Duration,
};

use nix::{
    sys::{
        memfd::{MFdFlags, memfd_create},
        mman::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap},
    },
    unistd::ftruncate,
};
use roced_abi::control::{
    AllocMemory, AllocPd, CreateCq, CreateCqRequest, CreateQp, CreateQpRequest, CreateSrq, CreateSrqRequest, DestroyCq,
    DeviceName, FreeMemory, Handle, MapMemory, MapMemoryRequest, MemoryRequest, Nothing, OpenDevice, ResizeCq,
    ResizeCqRequest, limit, origin,
};
use roced_client::{Access, Error, MemoryRegion, Refusal, SendRequest};
use roced_types::service;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
use served::{DEVICE, How, Raw, Served, eventually, is_alone, pair::Pair};

const PAGE: usize = 4096;

fn opened(served: &Served) -> Raw {
    let mut raw = Raw::greeted(&served.socket);
    raw.call::<OpenDevice>(DeviceName::new(DEVICE)).expect("it exists");
    raw
}

fn memfd(pages: usize) -> OwnedFd {
    let fd = memfd_create(c"mappings", MFdFlags::MFD_CLOEXEC).expect("a memfd");
    ftruncate(&fd, (pages * PAGE) as i64).expect("some pages");
    fd
}

fn part(page: usize, pages: usize) -> MapMemoryRequest {
    let (offset, bytes) = ((page * PAGE) as u64, (pages * PAGE) as u64);
    MapMemoryRequest { offset, bytes, writable: 1, origin: origin::FILE_BACKED }
}

#[test]
fn all_that_is_mapped_counts_and_a_user_has_a_share() {
    let served = Served::start_as(How { mappings: Some((100, 8)), ..How::default() });
    let file = memfd(1);
    // One of each kind, beside those of the session itself.
    let (mut raw, mut other) = (opened(&served), opened(&served));
    let memory = raw.call::<AllocMemory>(MemoryRequest { bytes: 1 }).expect("room").handle;
    raw.call_with::<MapMemory>(part(0, 1), &[file.as_raw_fd()]).expect("room");
    let pd = raw.call::<AllocPd>(Nothing {}).expect("no mapping").handle;
    let cq = raw.call::<CreateCq>(CreateCqRequest { entries: 1, channel: 0 }).expect("room").cqn;
    let qp = CreateQpRequest { pd, send_cq: cq, recv_cq: cq, service: service::RC, ..CreateQpRequest::default() };
    raw.call::<CreateQp>(qp).expect("room");
    let srq = CreateSrqRequest { pd, wrs: 1, sges: 1 };
    raw.call::<CreateSrq>(srq).expect("room");
    let spare = other.call::<CreateCq>(CreateCqRequest { entries: 1, channel: 0 }).expect("the last one").cqn;

    let refused = (Refusal::Limit, [8, limit::MAPPINGS_OF_ACCOUNT]);
    let bytes =
        served.on_control_thread(|clients, _| clients.reports().map(|session| session.memory_bytes).sum::<u64>());
    for raw in [&mut raw, &mut other] {
        let alloc = raw.call::<AllocMemory>(MemoryRequest { bytes: 1 });
        assert_eq!(alloc.expect_err("one too many"), refused, "whichever session of the user's it is");
    }
    let map = raw.call_with::<MapMemory>(part(0, 1), &[file.as_raw_fd()]);
    assert_eq!(map.expect_err("one too many"), refused);
    let more = CreateCqRequest { entries: 1, channel: 0 };
    assert_eq!(raw.call::<CreateCq>(more).expect_err("one too many"), refused);
    assert_eq!(raw.call::<ResizeCq>(ResizeCqRequest { cqn: cq, entries: 9 }).expect_err("one too many"), refused);
    assert_eq!(raw.call::<CreateQp>(qp).expect_err("one too many"), refused);
    assert_eq!(raw.call::<CreateSrq>(srq).expect_err("one too many"), refused);
    let third = Raw::greeted(&served.socket).call::<OpenDevice>(DeviceName::new(DEVICE));
    assert_eq!(third.expect_err("one too many"), refused);
    let now = served.on_control_thread(|clients, _| clients.reports().map(|session| session.memory_bytes).sum::<u64>());
    assert_eq!(now, bytes, "a refused mapping counts as nothing");

    // Every way to end a mapping makes room: destroy, resize, free, end of the session.
    other.call::<DestroyCq>(Handle { handle: spare }).expect("unused");
    raw.call::<ResizeCq>(ResizeCqRequest { cqn: cq, entries: 9 }).expect("room");
    raw.call::<FreeMemory>(Handle { handle: memory }).expect("unused");
    raw.call::<ResizeCq>(ResizeCqRequest { cqn: cq, entries: 99 }).expect("room, and the ring of before is gone");
    raw.call::<AllocMemory>(MemoryRequest { bytes: 1 }).expect("room");
    assert_eq!(raw.call::<AllocMemory>(MemoryRequest { bytes: 1 }).expect_err("one too many"), refused);
    drop(raw);
    eventually("the session ended", || served.sessions() == 1);
    for _ in 0..7 {
        other.call::<AllocMemory>(MemoryRequest { bytes: 1 }).expect("room");
    }
    drop(other);
    served.wait_until_empty();
}

#[test]
fn reaching_the_mapping_limit_gives_advice() {
    for (mappings, says) in [((4, 2), "one user"), ((2, 4), "all programs")] {
        let served = Served::start_as(How { mappings: Some(mappings), ..How::default() });
        let device = roced_client::Device::open_at(&served.socket, DEVICE).expect("room");
        let pd = device.protection_domain().expect("no mapping");
        let first = pd.allocate(1, Access::ALL).expect("room");
        let refused = pd.allocate(1, Access::ALL).expect_err("one too many");
        let text = refused.to_string();
        assert!(matches!(refused, Error::Refused { refusal: Refusal::Limit, .. }), "{text}");
        assert!(text.contains(says) && text.contains("vm.max_map_count") && text.contains("larger"), "{text}");
        drop(first);
        drop(pd.allocate(1, Access::ALL).expect("room again"));
    }
}

/// Mappings of this process's own, as many as it may have.
struct Full(Vec<usize>);

impl Full {
    fn new() -> Self {
        let mut pages = Vec::with_capacity(1 << 22);
        let length = NonZeroUsize::new(PAGE).expect("a page");
        for protection in [ProtFlags::PROT_READ, ProtFlags::PROT_NONE].into_iter().cycle() {
            // Neighbors of other rights stay apart.
            // SAFETY: a new mapping touches nothing that exists.
            match unsafe { mmap_anonymous(None, length, protection, MapFlags::MAP_PRIVATE) } {
                Ok(page) => pages.push(page.as_ptr().expose_provenance()),
                Err(_) => break,
            }
            assert!(pages.len() < 1 << 22, "more than any limit allows");
        }
        let mut full = Self(pages);
        // Now there is one more than may be when one is split, and than the heap bears.
        full.less();
        full
    }

    fn less(&mut self) {
        let page = self.0.pop().expect("many");
        // SAFETY: a mapping of our own, which is unused.
        unsafe { munmap(NonNull::new(std::ptr::with_exposed_provenance_mut(page)).expect("mapped"), PAGE) }
            .expect("whole");
    }
}

impl Drop for Full {
    fn drop(&mut self) {
        while !self.0.is_empty() {
            self.less();
        }
    }
}

/// Pages of one file one behind the other, which the kernel would make one mapping of: at the limit
/// none could be taken out of it again.
#[test]
fn memory_is_freed_where_nothing_more_can_be_mapped() {
    if !is_alone("memory_is_freed_where_nothing_more_can_be_mapped") {
        return;
    }
    let served = Served::start();
    let mut raw = opened(&served);
    let file = memfd(64);
    let map =
        |raw: &mut Raw, page| raw.call_with::<MapMemory>(part(page, 1), &[file.as_raw_fd()]).expect("room").handle;
    let downward: Vec<u32> = (0..64).rev().map(|page| map(&mut raw, page)).collect();
    let upward: Vec<u32> = (0..64).map(|page| map(&mut raw, page)).collect();
    let full = Full::new();
    for memory in [downward[32], upward[32], downward[7]] {
        raw.call::<FreeMemory>(Handle { handle: memory }).expect("nothing lies in it");
    }
    drop(raw);
    served.wait_until_empty();
    // A thread of the user's unmaps it.
    std::thread::sleep(Duration::from_millis(200));
    drop(full);
    eventually("all of it is unmapped", || mapped().is_empty());
    opened(&served).call::<AllocMemory>(MemoryRequest { bytes: 1 }).expect("it is served on");
}

/// A mapping that was merged with others after all is unmapped as soon as possible, and counts
/// until then.
#[test]
fn a_failed_unmapping_is_retried() {
    if !is_alone("a_failed_unmapping_is_retried") {
        return;
    }
    without_userfaultfd();
    let served = Served::start_as(How { mappings: Some((100, 2)), ..How::default() });
    let mut raw = opened(&served);
    let file = memfd(3);
    let memory = raw.call_with::<MapMemory>(part(1, 1), &[file.as_raw_fd()]).expect("room").handle;
    let [(start, end)] = mapped()[..] else { panic!("one page: {:x?}", mapped()) };
    for (page, at) in [(0, start - PAGE), (2, end)] {
        let (length, at) = (NonZeroUsize::new(PAGE).expect("a page"), NonZeroUsize::new(at));
        let (protection, flags) = (ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_SHARED);
        // SAFETY: nothing is there that would be replaced.
        let base =
            unsafe { mmap(at, length, protection, flags | MapFlags::MAP_FIXED_NOREPLACE, &file, page * PAGE as i64) };
        let base = base.expect("beside it nothing is mapped");
        // SAFETY: it changes no byte.
        assert_eq!(unsafe { libc::mlock2(base.as_ptr(), PAGE, libc::MLOCK_ONFAULT) }, 0);
    }
    assert_eq!(mapped(), [(start - PAGE, end + PAGE)], "the kernel merges them");
    let full = Full::new();
    raw.call::<FreeMemory>(Handle { handle: memory }).expect("nothing lies in it");
    // A thread of the user's tries.
    std::thread::sleep(Duration::from_millis(200));
    drop(full);
    assert_eq!(mapped(), [(start - PAGE, end + PAGE)], "it could not be split");
    raw.call::<AllocMemory>(MemoryRequest { bytes: 1 }).expect("room");
    assert_eq!(mapped(), [(start - PAGE, start), (end, end + PAGE)]);
}

/// As on hosts that forbid it: the kernel merges no mapping that is registered with one.
fn without_userfaultfd() {
    let rules = BTreeMap::from([(libc::SYS_userfaultfd, Vec::new())]);
    let forbidden = SeccompAction::Errno(libc::EPERM as u32);
    let target = std::env::consts::ARCH.try_into().expect("a target with seccomp");
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, forbidden, target).expect("a filter");
    let program: BpfProgram = filter.try_into().expect("a program");
    // Threads that start from now on inherit it.
    seccompiler::apply_filter(&program).expect("this kernel has seccomp");
}

/// Where this process has mapped the tests' files.
fn mapped() -> Vec<(usize, usize)> {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("procfs");
    let number = |text| usize::from_str_radix(text, 16).expect("an address");
    let ours = maps.lines().filter(|line| line.contains("/memfd:mappings"));
    let ranges = ours.map(|line| line.split([' ', '-']).map(number).take(2).collect::<Vec<_>>());
    ranges.map(|range| (range[0], range[1])).collect()
}

/// The same, where pages are missing when a peer writes there.
#[test]
fn a_file_that_shrinks_where_nothing_more_can_be_mapped_ends_its_session_and_no_other() {
    if !is_alone("a_file_that_shrinks_where_nothing_more_can_be_mapped_ends_its_session_and_no_other") {
        return;
    }
    let served = Served::start();
    let (pair, mut bystander) = (Pair::new(&served), opened(&served));
    let file = memfd(8);
    let length = NonZeroUsize::new(8 * PAGE).expect("eight pages");
    let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: a new mapping touches nothing that exists.
    let base = unsafe { mmap(None, length, protection, MapFlags::MAP_SHARED, &file, 0) }.expect("eight pages");
    let register = |page: usize| -> MemoryRegion {
        let start = base.cast::<u8>().as_ptr().wrapping_add(page * PAGE);
        // SAFETY: it stays mapped until the process ends, and no code accesses it.
        unsafe { pair.pd.register_at(start, PAGE, 0, Access::ALL) }.expect("its file is found")
    };
    let regions: Vec<MemoryRegion> = (0..8).rev().map(register).collect();
    let local = pair.pd.allocate(PAGE, Access::ALL).expect("memory");
    pair.send(&SendRequest::write(&[local.sge(..)], regions[4].remote())).ok().expect("it arrived");
    ftruncate(&file, 0).expect("nothing forbids it");
    let full = Full::new();
    pair.a.post_send(&SendRequest::write(&[local.sge(..)], regions[4].remote()).signaled()).expect("room");
    eventually("the session ended", || served.sessions() == 1);
    drop(full);
    bystander.call::<AllocMemory>(MemoryRequest { bytes: 1 }).expect("it is served on");
}
