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
    connection::Phase,
    layout::{PD, REUSE_BYTES, REUSE_VA, reuse_key, reuse_region},
    operation,
    pattern::{SOURCE_BYTES, sea},
    say::say,
    world::World,
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

impl World {
    /// Applications of a host have taken the messages that arrived: memory that is free by that is
    /// used again at once.
    pub(crate) fn reuse_memory(&mut self, at: usize, host: usize) {
        let end = &mut self.model.connections[at].ends[host];
        let Some(until) = end.told.until else { return };
        if end.gone || end.failed || end.told.told.is_none_or(|told| told < until) {
            return;
        }
        end.told.until = None;
        let deregister = self.random.one_in(2);
        end.stream.on_reused(until, deregister);
        let slot = self.model.connections[at].slot;
        let reuse = &mut self.model.hosts[host].reuse[slot];
        reuse.version += 1;
        if deregister {
            self.endpoints[host].remove_mr(MrKey(reuse_key(slot, reuse.generation))).expect("it is good");
            reuse.generation += 1;
            reuse.insert(&mut self.endpoints[host], slot);
        }
        if self.model.trace {
            let what = if deregister { "deregisters" } else { "overwrites" };
            say(format_args!(
                "{:>12} host {host}   {what} the source memory of slot {slot}, used up to {until:#x}",
                self.now
            ));
        }
    }

    /// The peer's application waits for the answer that a message is here.
    pub(crate) fn answer(&mut self, at: usize, host: usize) {
        let end = &mut self.model.connections[at].ends[host];
        let can = end.ready && !end.gone && !end.failed && self.model.connections[at].phase == Phase::Open;
        if can && std::mem::take(&mut self.model.connections[at].ends[host].told.asked) {
            let (operation, row) = operation::answer();
            self.post_drawn(at, host, operation, row);
        }
    }
}
