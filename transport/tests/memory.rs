//! Memory of queue pairs and shared receive queues: no more than their sizes say.
//!
//! An owner of queue pairs counts that memory before it makes them, so that no client can have
//! more.

#![expect(unsafe_code, reason = "counts for the system's allocator")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

use roced_transport::{
    qp::{Qp, QpConfig, ReplayMemory, ServiceType},
    srq::{Srq, SrqConfig},
};
use roced_types::{Cqn, EndpointId, Pdn, QpAttributes, QpSizes, Qpn, Srqn, attribute};

/// Counts the bytes that this thread has allocated and not freed.
struct CountingAllocator;

thread_local! {
    static ALLOCATED: Cell<i64> = const { Cell::new(0) };
}

fn count(bytes: i64) {
    // At the end of a thread its counter is gone.
    let _ = ALLOCATED.try_with(|allocated| allocated.set(allocated.get() + bytes));
}

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: as for this call.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: as for this call.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: as for this call.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Bytes that `make` allocates for its result.
fn allocated<T>(make: impl FnOnce() -> T) -> u64 {
    let before = ALLOCATED.get();
    let made = make();
    let after = ALLOCATED.get();
    drop(made);
    u64::try_from(after - before).expect("nothing else was freed")
}

fn sizes() -> Vec<QpSizes> {
    let size = |send_wrs, recv_wrs, send_sges, recv_sges, inline_bytes| {
        QpSizes { send_wrs, recv_wrs, send_sges, recv_sges, inline_bytes }.granted().expect("within the limits")
    };
    vec![
        size(1, 1, 1, 1, 0),
        size(128, 128, 4, 4, 64),
        size(1, 32_768, 1, 32, 0),
        size(32_768, 1, 32, 1, 512),
        size(32_768, 32_768, 32, 32, 512),
        size(300, 77, 3, 5, 100),
    ]
}

#[test]
fn a_queue_pair_allocates_no_more_than_it_is_charged_for() {
    let endpoint = EndpointId::new(0).expect("there is one");
    for sizes in sizes() {
        let config = QpConfig {
            qpn: Qpn::new(endpoint, 2),
            service: ServiceType::Rc,
            pd: Pdn(1),
            send_cq: Cqn(1),
            recv_cq: Cqn(1),
            sizes,
            signal_all: false,
            window_packets: 128,
            credits: true,
        };
        let attributes = QpAttributes { max_dest_rd_atomic: 128, ..QpAttributes::default() };
        let used = allocated(|| {
            let qp = Box::new(Qp::new(config));
            (qp, ReplayMemory::for_change(attribute::MAX_DEST_RD_ATOMIC, &attributes))
        });
        let charged = Qp::memory_bytes(&sizes);
        assert!(used <= charged && charged - used < 1024, "{sizes:?}: {used} of {charged} bytes");
    }
}

#[test]
fn a_shared_receive_queue_allocates_no_more_than_it_is_charged_for() {
    let endpoint = EndpointId::new(0).expect("there is one");
    for sizes in sizes() {
        let used = allocated(|| Box::new(Srq::new(SrqConfig { srqn: Srqn::new(endpoint, 2), pd: Pdn(1), sizes })));
        let charged = Srq::memory_bytes(&sizes);
        assert!(used <= charged && charged - used < 1024, "{sizes:?}: {used} of {charged} bytes");
    }
}
