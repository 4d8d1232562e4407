//! Atomics of shared-memory code: those of core, or of loom under `cfg(loom)`, so that loom tries
//! every interleaving of the shipped source.

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
