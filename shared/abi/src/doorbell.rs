//! Doorbells: how a client tells a worker that a queue pair has new work, and how a sleeping worker
//! is woken.
//!
//! Each session has one [`DoorbellBlock`] for each worker in its session memfd, one bit for each
//! queue pair of that session on that worker, and a summary word with one bit for each 64 of them:
//!
//! ```text
//!   +0    summary  u64          bit w: look at words[w]
//!   +64   words    64 x u64     bit b of word w: queue pair with doorbell 64w + b has something
//! ```
//!
//! The client publishes the ring's index first, then rings; the worker takes a doorbell first, then
//! looks at the ring. Only a doorbell that was rung costs the worker a read-modify-write; silence
//! costs it one load a session.
//!
//! A worker that goes to sleep says so in the [`WorkerState`] of the state memfd (which clients map
//! read-only), looks at all doorbells once more, and blocks. A client that rings looks at that word
//! afterward and writes its wake eventfd when it is set. Both sides have a sequentially consistent
//! fence between the two steps, so that one of them sees the other.

use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// Doorbells of one session on one worker.
pub const DOORBELLS: u32 = 64 * 64;

/// Bytes of a doorbell block.
pub const DOORBELL_BLOCK_BYTES: usize = 1024;

/// Bytes of one worker's state in the state memfd.
pub const WORKER_STATE_BYTES: usize = 64;

/// Where one worker's doorbells of one session lie.
pub trait DoorbellBlock {
    /// The summary word.
    fn summary(&self) -> &AtomicU64;
    /// Word `index` of 64.
    fn word(&self, index: usize) -> &AtomicU64;
}

/// Rings `doorbell`. The ring's index was published before.
///
/// # Panics
/// When `doorbell` is not below [`DOORBELLS`].
pub fn ring_doorbell(block: &impl DoorbellBlock, doorbell: u32) {
    assert!(doorbell < DOORBELLS, "a doorbell of the block");
    let word = doorbell as usize / 64;
    block.word(word).fetch_or(1 << (doorbell % 64), Ordering::Release);
    block.summary().fetch_or(1 << word, Ordering::Release);
}

/// Words that the summary of a block named, and that the worker has not looked at yet. It lies in
/// the worker's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NamedWords(u64);

/// Takes the doorbells of at most `words` words, 64 doorbells each, and calls `on_doorbell` for
/// each that was rung; returns the number of words. The words that remain are `named`: they come
/// before others in the next call. Costs one load when no doorbell was rung.
pub fn drain_doorbells(
    block: &impl DoorbellBlock,
    named: &mut NamedWords,
    words: u32,
    mut on_doorbell: impl FnMut(u32),
) -> u32 {
    if named.0 == 0 {
        if block.summary().load(Ordering::Relaxed) == 0 || words == 0 {
            return 0;
        }
        named.0 = block.summary().swap(0, Ordering::Acquire);
    }
    let mut taken = 0;
    while named.0 != 0 && taken < words {
        let word = named.0.trailing_zeros();
        named.0 &= named.0 - 1;
        taken += 1;
        let mut doorbells = block.word(word as usize).swap(0, Ordering::Acquire);
        while doorbells != 0 {
            let bit = doorbells.trailing_zeros();
            doorbells &= doorbells - 1;
            on_doorbell(word * 64 + bit);
        }
    }
    taken
}

/// True when a doorbell waits to be drained.
pub fn any_doorbell(block: &impl DoorbellBlock, named: NamedWords) -> bool {
    named.0 != 0 || block.summary().load(Ordering::Relaxed) != 0
}

/// Announces the sleep of a worker, which must look at every doorbell once more after this, and only
/// then block.
pub fn announce_sleep(asleep: &AtomicU32) {
    asleep.store(1, Ordering::Relaxed);
    fence(Ordering::SeqCst);
}

/// Announces that a worker is awake again.
pub fn announce_awake(asleep: &AtomicU32) {
    asleep.store(0, Ordering::Relaxed);
}

/// Returns true if a client that rang must wake the worker by its eventfd.
pub fn must_wake(asleep: &AtomicU32) -> bool {
    fence(Ordering::SeqCst);
    asleep.load(Ordering::Relaxed) != 0
}

#[cfg(not(loom))]
pub use mapped::{MappedDoorbells, WorkerState};

#[cfg(not(loom))]
mod mapped {
    #![expect(unsafe_code, reason = "doorbells lie in memory shared with another process")]

    use core::ptr::NonNull;

    use super::{AtomicU32, AtomicU64, DOORBELL_BLOCK_BYTES, DoorbellBlock, WORKER_STATE_BYTES};

    /// A doorbell block inside a mapping. `K` keeps the mapping alive.
    #[derive(Debug)]
    pub struct MappedDoorbells<K> {
        base: NonNull<u8>,
        _keep: K,
    }

    // SAFETY: `base` points into a mapping that `_keep` keeps alive, reached only through atomics.
    unsafe impl<K: Send> Send for MappedDoorbells<K> {}
    // SAFETY: as above; every access is atomic.
    unsafe impl<K: Sync> Sync for MappedDoorbells<K> {}

    impl<K> MappedDoorbells<K> {
        /// The doorbell block that begins at `base`.
        ///
        /// # Safety
        /// From `base`, 64-byte aligned, [`DOORBELL_BLOCK_BYTES`] bytes must stay mapped readable
        /// and writable for the lifetime of `keep`, and this process may access them only through
        /// atomics.
        pub unsafe fn new(base: NonNull<u8>, keep: K) -> Self {
            assert!(base.as_ptr().addr().is_multiple_of(64), "a doorbell block begins on a cache line");
            Self { base, _keep: keep }
        }
    }

    impl<K> DoorbellBlock for MappedDoorbells<K> {
        fn summary(&self) -> &AtomicU64 {
            // SAFETY: the block's first bytes, aligned (checked in `new`), mapped while `self` lives
            // (`new`'s contract).
            unsafe { self.base.cast().as_ref() }
        }

        fn word(&self, index: usize) -> &AtomicU64 {
            const { assert!(64 + 64 * 8 <= DOORBELL_BLOCK_BYTES) };
            assert!(index < 64, "a word of the block");
            // SAFETY: `index < 64`, checked one line up, so 64 + 8 * index + 8 <=
            // DOORBELL_BLOCK_BYTES; 8-byte aligned.
            unsafe { self.base.add(64 + index * 8).cast().as_ref() }
        }
    }

    /// One worker's state inside the state memfd. `K` keeps the mapping alive.
    #[derive(Debug)]
    pub struct WorkerState<K> {
        base: NonNull<u8>,
        _keep: K,
    }

    // SAFETY: `base` points into a mapping that `_keep` keeps alive, reached only through atomics.
    unsafe impl<K: Send> Send for WorkerState<K> {}
    // SAFETY: as above; every access is atomic.
    unsafe impl<K: Sync> Sync for WorkerState<K> {}

    impl<K> WorkerState<K> {
        /// The worker state that begins at `base`.
        ///
        /// # Safety
        /// From `base`, 64-byte aligned, [`WORKER_STATE_BYTES`] bytes must stay mapped readable
        /// (and writable for the daemon, the only one that stores) for as long as `keep` lives.
        pub unsafe fn new(base: NonNull<u8>, keep: K) -> Self {
            const { assert!(WORKER_STATE_BYTES >= 4) };
            assert!(base.as_ptr().addr().is_multiple_of(64), "a worker state begins on a cache line");
            Self { base, _keep: keep }
        }

        /// 1 while the worker sleeps.
        pub fn asleep(&self) -> &AtomicU32 {
            // SAFETY: the state's first bytes, aligned (checked in `new`), mapped while `self`
            // lives (`new`'s contract).
            unsafe { self.base.cast().as_ref() }
        }
    }
}
