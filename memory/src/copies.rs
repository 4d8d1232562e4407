//! Copies and atomic operations on memory that other processes change at any moment: by raw pointers
//! and atomics, never by a Rust reference to the bytes.
#![expect(unsafe_code, reason = "copies to and from memory that is shared with clients")]

use std::{
    ptr::NonNull,
    sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, fence},
};

use roced_transport::io::AtomicOperation;

/// Bytes at the end of a write that become visible last, in order: programs poll them.
const TAIL_BYTES: usize = 8;

/// Copies `bytes` to `to`. A program that polls the last byte, or the last aligned 2, 4 or 8 bytes,
/// sees all older bytes of this call and of every earlier one once it sees those.
///
/// # Safety
/// `bytes.len()` bytes must be mapped for writing from `to`, not overlap `bytes`, and this process
/// may hold no reference to them. Other processes may change them; the bytes are mixed then.
pub(super) unsafe fn write(to: NonNull<u8>, bytes: &[u8]) {
    let (body, tail) = bytes.split_at(bytes.len().saturating_sub(TAIL_BYTES));
    // SAFETY: the caller's promise, for the first part of `bytes`.
    unsafe { to.copy_from_nonoverlapping(NonNull::from(body).cast(), body.len()) };
    // Everything older, the packets before this one included, is there before the tail.
    fence(Ordering::Release);
    // SAFETY: `tail` follows `body` inside the range that the caller vouches for.
    unsafe { store_ascending(to.add(body.len()), tail) };
}

/// Copies `bytes` bytes from `from` to `to`, in the order of [`write`]; the ranges may overlap.
///
/// # Safety
/// As for [`write`], for both ranges; `from` must be mapped for reading.
pub(super) unsafe fn copy(to: NonNull<u8>, from: NonNull<u8>, bytes: usize) {
    let body = bytes.saturating_sub(TAIL_BYTES);
    let mut tail = [0; TAIL_BYTES];
    let tail = &mut tail[..bytes - body];
    // SAFETY: `tail` is as long as the rest behind `body`, and this function's own memory.
    unsafe { from.add(body).copy_to_nonoverlapping(NonNull::from(&mut *tail).cast(), tail.len()) };
    // SAFETY: the caller's promise, for the first part of both ranges.
    unsafe { to.copy_from(from, body) };
    fence(Ordering::Release);
    // SAFETY: `tail` goes behind `body` inside the range that the caller vouches for.
    unsafe { store_ascending(to.add(body), tail) };
}

/// Copies the bytes from `from` on to `into`.
///
/// # Safety
/// `into.len()` bytes must be mapped for reading from `from`, and not overlap `into`.
pub(super) unsafe fn read(from: NonNull<u8>, into: &mut [u8]) {
    // SAFETY: the caller's promise.
    unsafe { from.copy_to_nonoverlapping(NonNull::from(&mut *into).cast(), into.len()) };
}

/// Executes an atomic operation on the eight bytes at `at` and returns the value before.
///
/// # Safety
/// Eight bytes must be mapped for writing from `at`, a multiple of eight, and this process may hold
/// no reference to them except as atomics.
pub(super) unsafe fn atomic(at: NonNull<u8>, operation: AtomicOperation) -> u64 {
    // SAFETY: the caller's promise.
    let word: &AtomicU64 = unsafe { at.cast().as_ref() };
    // Earlier writes of peers are visible to a reader of the new value, and the other way round.
    match operation {
        AtomicOperation::CompareSwap { compare, swap } => {
            let (Ok(before) | Err(before)) = word.compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire);
            before
        }
        AtomicOperation::FetchAdd { add } => word.fetch_add(add, Ordering::AcqRel),
        AtomicOperation::Write { value } => word.swap(value, Ordering::AcqRel),
    }
}

/// Stores `bytes` in the largest aligned units that fit, ascending, each after all before it.
///
/// # Safety
/// `bytes.len()` bytes must be mapped for writing from `to`, and this process may hold no reference
/// to them.
unsafe fn store_ascending(mut to: NonNull<u8>, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let aligned = |unit: usize| bytes.len() >= unit && to.as_ptr().addr().is_multiple_of(unit);
        let unit = if aligned(8) {
            // SAFETY: 8 bytes are mapped from `to` (the caller's promise for `bytes`, which is at
            // least that long), aligned to 8.
            let word: &AtomicU64 = unsafe { to.cast().as_ref() };
            word.store(u64::from_ne_bytes(array(bytes)), Ordering::Release);
            8
        } else if aligned(4) {
            // SAFETY: as above, with 4.
            let word: &AtomicU32 = unsafe { to.cast().as_ref() };
            word.store(u32::from_ne_bytes(array(bytes)), Ordering::Release);
            4
        } else if aligned(2) {
            // SAFETY: as above, with 2.
            let word: &AtomicU16 = unsafe { to.cast().as_ref() };
            word.store(u16::from_ne_bytes(array(bytes)), Ordering::Release);
            2
        } else {
            // SAFETY: as above, with 1.
            let byte: &AtomicU8 = unsafe { to.cast().as_ref() };
            byte.store(bytes[0], Ordering::Release);
            1
        };
        bytes = &bytes[unit..];
        // SAFETY: at most one past the end of the range.
        to = unsafe { to.add(unit) };
    }
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    *bytes.first_chunk().expect("the caller compared the length with N")
}

#[cfg(test)]
mod tests {
    use std::{cell::UnsafeCell, thread};

    use proptest::prelude::*;

    use super::*;

    const BYTES: usize = 256;

    /// Memory like that of a client: aligned to words, without references to it.
    struct Shared(Box<[UnsafeCell<u64>]>);

    // SAFETY: its words are accessed through the functions above only.
    unsafe impl Sync for Shared {}

    impl Shared {
        fn new() -> Self {
            Self((0..BYTES / 8).map(|_| UnsafeCell::new(0)).collect())
        }

        fn at(&self, offset: usize, bytes: usize) -> NonNull<u8> {
            assert!(offset + bytes <= BYTES);
            // SAFETY: inside the words, or one past them, as just checked; they are cells, which
            // may be written to.
            unsafe { NonNull::from(&*self.0).cast::<u8>().add(offset) }
        }

        fn write(&self, offset: usize, bytes: &[u8]) {
            // SAFETY: `at` checks the range; `bytes` is other memory.
            unsafe { write(self.at(offset, bytes.len()), bytes) };
        }

        fn read(&self, offset: usize, bytes: usize) -> Vec<u8> {
            let mut into = vec![0xee; bytes];
            // SAFETY: `at` checks the range; `into` is other memory.
            unsafe { read(self.at(offset, bytes), &mut into) };
            into
        }
    }

    #[test]
    fn atomic_operations_of_threads_are_not_lost() {
        const ROUNDS: u64 = if cfg!(miri) { 50 } else { 10_000 };
        let shared = &Shared::new();
        // SAFETY: `at` checks the range, and 8 is a multiple of eight.
        let operate = |operation| unsafe { atomic(shared.at(8, 8), operation) };
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| (0..ROUNDS).for_each(|_| _ = operate(AtomicOperation::FetchAdd { add: 1 })));
            }
        });
        assert_eq!(operate(AtomicOperation::CompareSwap { compare: 2 * ROUNDS, swap: 7 }), 2 * ROUNDS);
        assert_eq!(operate(AtomicOperation::CompareSwap { compare: 8, swap: 9 }), 7, "not equal: unchanged");
        assert_eq!(operate(AtomicOperation::Write { value: 11 }), 7);
        assert_eq!(shared.read(8, 8), 11u64.to_ne_bytes());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 16 } else { 256 }))]

        /// Against a plain vector: any place and length, so that every alignment of the tail and
        /// every overlap occurs.
        #[test]
        fn bytes_are_those_of_a_plain_vector(
            steps in proptest::collection::vec((0..BYTES, 0..BYTES, 0..40usize, any::<u8>(), any::<bool>()), 1..12),
        ) {
            let (shared, mut model) = (Shared::new(), vec![0; BYTES]);
            for (to, from, length, value, copies) in steps {
                let length = length.min(BYTES - to).min(BYTES - from);
                if copies {
                    // SAFETY: `at` checks both ranges.
                    unsafe { copy(shared.at(to, length), shared.at(from, length), length) };
                    model.copy_within(from..from + length, to);
                } else {
                    let bytes: Vec<u8> = (0..length).map(|place| value.wrapping_add(place as u8)).collect();
                    shared.write(to, &bytes);
                    model[to..to + length].copy_from_slice(&bytes);
                }
                prop_assert_eq!(shared.read(0, BYTES), &*model);
                prop_assert_eq!(shared.read(from, length), &model[from..from + length]);
            }
        }
    }
}
