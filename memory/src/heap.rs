//! The daemon's own heap.
#![expect(unsafe_code, reason = "sets options of the C library's allocator")]

/// Blocks of this size and more are mappings of their own: of the queues of a queue pair each is,
/// once it has a few thousand entries. The allocator's usual start.
const OWN_MAPPING_BYTES: libc::c_int = 128 << 10;

/// Such mappings at a time; further blocks come from the heap. A quarter of the kernel's usual
/// limit is left for all that is not clients' memory ([`Quota`](crate::quota::Quota)); this is a
/// quarter of that.
const OWN_MAPPINGS_MAX: libc::c_int = 4096;

/// Makes the allocator return large blocks to the system when they are freed. Otherwise it keeps the
/// memory of one client for as long as the daemon lives: each freed block raises the size from
/// which blocks are mappings, up to 32 MiB.
///
/// ```
/// roced_memory::heap::return_large_blocks();
/// ```
pub fn return_large_blocks() {
    for (option, value) in [(libc::M_MMAP_THRESHOLD, OWN_MAPPING_BYTES), (libc::M_MMAP_MAX, OWN_MAPPINGS_MAX)] {
        // SAFETY: it changes where later blocks come from, and takes any value.
        let accepted = unsafe { libc::mallopt(option, value) };
        debug_assert_eq!(accepted, 1, "an option that every glibc has");
    }
}
