//! Applications that use memory again as soon as their peers say that it is free, and that say so.

use roced_transport::mr::MrKey;

use super::World;
use crate::{connection::Phase, layout::reuse_key, operation, say::say};

impl World {
    /// Applications of a host have taken the messages that arrived: memory that is free by that is
    /// used again at once.
    pub(super) fn reuse_memory(&mut self, at: usize, host: usize) {
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
    pub(super) fn answer(&mut self, at: usize, host: usize) {
        let end = &mut self.model.connections[at].ends[host];
        let can = end.ready && !end.gone && !end.failed && self.model.connections[at].phase == Phase::Open;
        if can && std::mem::take(&mut self.model.connections[at].ends[host].told.asked) {
            let (operation, row) = operation::answer();
            self.post_drawn(at, host, operation, row);
        }
    }
}
