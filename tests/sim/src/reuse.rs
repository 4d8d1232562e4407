//! Applications that use the memory of a message again as soon as the peer's application says that
//! the message arrived, before any completion of their own says so.
//!
//! Each slot of a host has source memory of its own with a key of its own. Messages from it ask the
//! peer's application for an answer, a SEND the other way. When that is here the bytes are
//! overwritten, or the region is deregistered and another is registered. The content is a stretch
//! of the sea that moves with each version.

use roced_transport::{
    endpoint::Endpoint,
    mr::{Mr, MrKey, Scope},
};

use crate::{
    layout::{PD, REUSE_BYTES, REUSE_VA, reuse_key, reuse_region},
    pattern::{SOURCE_BYTES, sea},
};

/// Source memory of a slot that is used again.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reuse {
    /// Of the key that is good.
    pub(crate) generation: u32,
    /// Of the bytes.
    pub(crate) version: u32,
}

impl Reuse {
    /// Where in the sea its bytes are, of that host.
    pub(crate) fn sea_at(&self, host: usize) -> usize {
        let room = SOURCE_BYTES - REUSE_BYTES as usize;
        host * SOURCE_BYTES + self.version as usize * 40_961 % room
    }

    /// The present content.
    pub(crate) fn bytes(&self, host: usize, offset: usize, length: usize) -> &'static [u8] {
        &sea()[self.sea_at(host) + offset..][..length]
    }

    /// Registers it.
    pub(crate) fn insert(&self, endpoint: &mut Endpoint, slot: usize) {
        let mr = Mr {
            key: MrKey(reuse_key(slot, self.generation)),
            pd: PD,
            access: 0,
            va: REUSE_VA,
            length: REUSE_BYTES.into(),
            object: reuse_region(slot, self.generation),
            offset: 0,
            scope: Scope::Region,
        };
        endpoint.insert_mr(mr).expect("room");
    }
}

/// Knowledge of one end about the messages with memory that it will use again.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Told {
    /// The last message of the peer that has arrived here, as far as completed receives tell;
    /// messages sent from now on say so.
    pub(crate) heard: Option<u64>,
    /// The last message of its own that the peer has said to have.
    pub(crate) told: Option<u64>,
    /// The last message from its memory: until the peer has that one, nothing else uses the memory.
    pub(crate) until: Option<u64>,
    /// The peer waits to be told.
    pub(crate) asked: bool,
}
