//! Unavailable resources are refused with a helpful message.

use std::{
    thread,
    time::{Duration, Instant},
};

use caps::{CapSet, Capability};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use roced_xdp::{CopyMode, NicQueue, NicQueueConfig, XdpError, XdpMode, XdpProgram};

use crate::{
    needs_root,
    veth::{INTERFACE, Pair, config},
};

fn refused(pair: &Pair, config: &NicQueueConfig) -> XdpError {
    pair.a.try_open(config).expect_err("this cannot be had")
}

#[test]
fn a_queue_in_use_is_named_after_the_deadline() {
    needs_root!();
    let pair = Pair::new(1500, 2, 2);
    let taken = NicQueueConfig { queue: 1, ..config() };
    let _holder = pair.a.open(&taken);
    let begin = Instant::now();
    let error = refused(&pair, &NicQueueConfig { busy_deadline: Duration::from_millis(150), ..taken });
    let waited = begin.elapsed();
    assert!((150..2000).contains(&waited.as_millis()), "{waited:?}");
    assert!(matches!(error, XdpError::QueueBusy { queue: 1, .. }), "{error:?}");
    assert!(
        error.to_string().starts_with("queue 1 of veth0 is in use: is another AF_XDP socket bound to it?"),
        "{error}"
    );
    drop(pair.a.open(&config()));
}

#[test]
fn a_queue_that_becomes_free_in_time_is_taken() {
    needs_root!();
    let pair = Pair::new(1500, 1, 1);
    let holder = pair.a.open(&config());
    let releaser = thread::spawn(move || {
        thread::sleep(Duration::from_millis(200));
        drop(holder);
    });
    drop(pair.a.open(&config()));
    releaser.join().expect("no panic");
    // Just released, over and over.
    for _ in 0..20 {
        drop(pair.a.open(&config()));
    }
}

#[test]
fn a_missing_interface_or_queue_is_named() {
    needs_root!();
    let pair = Pair::new(1500, 1, 1);
    let error = pair.a.run(|| XdpProgram::attach("nowhere0", XdpMode::Auto)).expect_err("no such interface");
    assert_eq!(error.to_string(), "there is no network interface nowhere0");
    let error = refused(&pair, &NicQueueConfig { interface: "nowhere0".into(), ..config() });
    assert_eq!(error.to_string(), "there is no network interface nowhere0");
    let error = refused(&pair, &NicQueueConfig { queue: 7, ..config() });
    assert!(matches!(error, XdpError::QueueRefused { queue: 7, .. }), "{error:?}");
    assert!(error.to_string().contains("`ethtool -l veth0`"), "{error}");
    let error = refused(&pair, &NicQueueConfig { copy_mode: CopyMode::Zerocopy, ..config() });
    assert!(matches!(error, XdpError::NoZeroCopy { .. }), "{error:?}");
    assert!(!pair.a.open(&NicQueueConfig { copy_mode: CopyMode::Copy, ..config() }).is_zerocopy());
}

#[test]
fn sizes_that_do_not_go_together_are_refused() {
    needs_root!();
    let pair = Pair::new(1500, 1, 1);
    let wrong = [
        NicQueueConfig { umem_frames: 128, ..config() },
        NicQueueConfig { umem_frames: 0, ..config() },
        NicQueueConfig { umem_frames: u32::MAX, chunk_bytes: 1024, ..config() },
        NicQueueConfig { chunk_bytes: 3000, ..config() },
        NicQueueConfig { chunk_bytes: 1024, ..config() },
        NicQueueConfig { rx_ring_entries: 100, ..config() },
        NicQueueConfig { tx_ring_entries: 0, ..config() },
        NicQueueConfig { fill_ring_entries: 3, ..config() },
        NicQueueConfig { completion_ring_entries: 0, ..config() },
    ];
    for config in wrong {
        let error = refused(&pair, &config);
        assert!(matches!(error, XdpError::BadSizes { .. }), "{config:?}: {error:?}");
    }
    // A chunk larger than a page is for the kernel to refuse.
    let error = refused(&pair, &NicQueueConfig { chunk_bytes: 8192, ..config() });
    assert!(matches!(error, XdpError::Umem { .. }), "{error:?}");
}

/// Capabilities belong to threads, and `run` works in one of its own.
fn without<T: Send>(pair: &Pair, capabilities: &[Capability], work: impl FnOnce() -> T + Send) -> T {
    pair.a.run(|| {
        for &capability in capabilities {
            caps::drop(None, CapSet::Effective, capability).expect("giving up is always allowed");
        }
        work()
    })
}

#[test]
fn a_missing_capability_is_named() {
    needs_root!();
    use Capability::{CAP_BPF, CAP_NET_ADMIN, CAP_NET_RAW, CAP_SYS_ADMIN};
    let pair = Pair::new(1500, 1, 1);
    let attach = || XdpProgram::attach(INTERFACE, XdpMode::Auto).map(drop);
    let open = || NicQueue::open(&config()).map(drop);
    for (missing, work) in [
        (CAP_BPF, &attach as &(dyn Fn() -> Result<(), XdpError> + Sync)),
        (CAP_NET_ADMIN, &attach),
        (CAP_NET_RAW, &open),
    ] {
        // CAP_SYS_ADMIN stands in for some of the others.
        let error = without(&pair, &[missing, CAP_SYS_ADMIN], work).expect_err("not permitted");
        let XdpError::MissingCapability { capability, .. } = error else { panic!("{missing}: {error:?}") };
        assert_eq!(capability, missing);
        assert!(error.to_string().starts_with(&format!("{missing} is missing: ")), "{error}");
    }
    // The capabilities of the service are enough.
    without(&pair, &[CAP_SYS_ADMIN], || attach().and_then(|()| open())).expect("permitted");
}

/// The limit is the whole process's; the other tests have the capability and do not notice.
#[test]
fn a_limit_on_locked_memory_is_named() {
    needs_root!();
    let pair = Pair::new(1500, 1, 1);
    let (soft, hard) = getrlimit(Resource::RLIMIT_MEMLOCK).expect("a limit");
    setrlimit(Resource::RLIMIT_MEMLOCK, 64 << 10, hard).expect("lowering is always allowed");
    let result = without(&pair, &[Capability::CAP_IPC_LOCK], || NicQueue::open(&config()).map(drop));
    setrlimit(Resource::RLIMIT_MEMLOCK, soft, hard).expect("back to the earlier value");
    let error = result.expect_err("512 frames are 2 MiB");
    assert!(matches!(error, XdpError::LockedMemory { bytes: 2_097_152, .. }), "{error:?}");
    assert!(error.to_string().contains("CAP_IPC_LOCK"), "{error}");
}
