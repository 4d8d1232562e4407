//! The atomics that shared-memory code uses: core's, or loom's under `cfg(loom)`, so that the same
//! source is what ships and what every interleaving is tried on.

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
