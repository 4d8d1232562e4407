//! Words by which programs ask for events of completion queues.
#![expect(unsafe_code, reason = "lays words over mappings")]

use std::{
    ptr::NonNull,
    sync::{Arc, atomic::AtomicU32},
};

use super::mapping::Mapping;

/// The arm word of a completion queue.
#[derive(Debug)]
pub(crate) struct ArmWord {
    word: NonNull<AtomicU32>,
    pub(crate) _keep: Arc<Mapping>,
}

// SAFETY: `word` points into the mapping that `_keep` keeps alive, reached only as an atomic.
unsafe impl Send for ArmWord {}

// SAFETY: the same.
unsafe impl Sync for ArmWord {}

impl ArmWord {
    pub(crate) fn new(mapping: &Arc<Mapping>) -> Self {
        Self { word: mapping.at(0, 4).cast(), _keep: Arc::clone(mapping) }
    }

    pub(crate) fn word(&self) -> &AtomicU32 {
        // SAFETY: the first bytes of a mapping (page-aligned), checked in `new`, mapped while
        // `_keep` lives; all code of this process accesses them as an atomic.
        unsafe { self.word.as_ref() }
    }
}
