//! Frames in and out cost no allocation: the allocator of this program counts the requests of one
//! thread.
#![expect(unsafe_code, reason = "counts for the system's allocator")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    time::{Duration, Instant},
};

use crate::{
    frame::{emit, frame},
    needs_root,
    veth::{MODES, Pair},
};

struct Counting;

thread_local! {
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: everything is the system allocator's; the counter is a thread-local without a destructor,
// so it needs no memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.with(|calls| calls.set(calls.get() + 1));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        CALLS.with(|calls| calls.set(calls.get() + 1));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        CALLS.with(|calls| calls.set(calls.get() + 1));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn frames_in_and_out_allocate_nothing() {
    needs_root!();
    let pair = Pair::new(9000, 1, 1);
    for mode in MODES {
        let (mut a, mut b) = (pair.a.serve(mode, 1), pair.b.serve(mode, 1));
        let (nic_a, nic_b) = (&mut a.queues[0], &mut b.queues[0]);
        let frames = [64, 1082, 4154, 9014].map(|length| frame(pair.b.address, length, 3));
        let mut received = 0;
        let before = CALLS.get();
        assert!(before > 0, "the allocator counts");
        let deadline = Instant::now() + Duration::from_secs(20);
        let mut rounds = 0;
        // The kernel moves frames when it has a processor for that.
        while (rounds < 200 || received <= 10_000) && Instant::now() < deadline {
            rounds += 1;
            // More than there is room for, so that a full queue is covered as well.
            for bytes in frames.iter().cycle().take(100) {
                emit(nic_a, bytes);
            }
            nic_a.flush();
            received += nic_b.rx_burst(64, |segments| assert!(!segments.is_empty()));
            nic_b.flush();
            nic_a.prepare_sleep();
            nic_b.prepare_sleep();
        }
        assert_eq!(CALLS.get() - before, 0, "{mode:?}");
        assert!(received > 10_000, "{received} frames, {mode:?}");
    }
}
