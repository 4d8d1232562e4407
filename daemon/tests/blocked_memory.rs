//! A page of a client's memory that is long in coming: whose it is shows while a worker waits for it.
#![expect(unsafe_code, reason = "maps memory and registers it")]

mod served;

use std::num::NonZeroUsize;

use nix::{
    sys::{
        memfd::{MFdFlags, memfd_create},
        mman::{MapFlags, ProtFlags, mmap},
    },
    unistd::ftruncate,
};
use roced::clients::touched::who_blocks;
use roced_client::{Access, SendRequest};
use roced_shared::ids::{SessionId, WorkerId};
use served::{How, Served, eventually, is_alone, pair::Pair, uffd::withhold};

const BYTES: usize = 4 * 4096;

/// Where this process has mapped the test's file.
fn mapped() -> Vec<usize> {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("procfs");
    let ours = maps.lines().filter(|line| line.contains("/memfd:blocked"));
    let start = |line: &str| usize::from_str_radix(line.split('-').next().expect("a range"), 16).expect("an address");
    ours.map(start).collect()
}

fn newest(served: &Served) -> SessionId {
    let newest = served.on_control_thread(|clients, _| clients.reports().map(|report| report.session).max());
    SessionId(newest.expect("there is one"))
}

#[test]
fn whose_memory_has_a_worker_wait_is_known_and_ends_its_session_and_no_other() {
    if !is_alone("whose_memory_has_a_worker_wait_is_known_and_ends_its_session_and_no_other") {
        return;
    }
    // One worker, which both sessions need.
    let served = Served::start_as(How { workers: 1, ..How::default() });
    let bystander = Pair::new(&served);
    let file = memfd_create(c"blocked", MFdFlags::MFD_CLOEXEC).expect("a memfd");
    ftruncate(&file, BYTES as i64).expect("four pages");
    let (length, protection) = (NonZeroUsize::new(BYTES).expect("some"), ProtFlags::PROT_READ | ProtFlags::PROT_WRITE);
    // SAFETY: a new mapping touches nothing that exists.
    let base = unsafe { mmap(None, length, protection, MapFlags::MAP_SHARED, &file, 0) }.expect("four pages");
    let before = mapped();
    let pair = Pair::new(&served);
    let session = newest(&served);
    // SAFETY: it stays mapped until the process ends, and nobody looks at it.
    let region =
        unsafe { pair.pd.register_at(base.cast().as_ptr(), BYTES, 0, Access::ALL) }.expect("its file is found");
    let daemons = mapped().into_iter().find(|start| !before.contains(start)).expect("the daemon maps it, too");
    let Some(held) = withhold(daemons, BYTES) else { return println!("skipped: no userfaultfd here") };
    let local = pair.pd.allocate(4096, Access::ALL).expect("memory");
    let worker = WorkerId(0);
    assert_eq!(who_blocks(worker), None);

    pair.a.post_send(&SendRequest::write(&[local.sge(..)], region.remote()).signaled()).expect("room");
    eventually("the worker waits", || who_blocks(worker) == Some([session; 2]));
    drop(held);
    assert!(pair.reap(1)[0].ok().is_ok(), "it goes on");
    eventually("it turns or sleeps", || who_blocks(worker).is_none());

    served.on_control_thread(move |clients, _| clients.on_blocked([session; 2]));
    eventually("the session ended", || served.sessions() == 1);
    let memory = bystander.pd.allocate(4096, Access::ALL).expect("it is served");
    bystander.send(&SendRequest::write(&[memory.sge(..5)], memory.remote().at(8))).ok().expect("it arrived");
}

/// Whose memory was read and whose was written cannot be told apart by who is left: the guilty one may have left in time.
#[test]
fn who_leaves_before_the_worker_goes_on_has_no_other_ended() {
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
