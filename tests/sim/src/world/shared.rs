//! Shared receive queues of the hosts: receives for them, and their limit events.

use super::World;
use crate::{layout::SLOT_BYTES, say::say, shared::Shared};

impl World {
    /// The application of a host sees to its shared queue.
    pub(super) fn post_shared(&mut self, host: usize) {
        if self.model.connections.iter().any(|connection| connection.ends[host].is_shared) {
            let model = &mut self.model.hosts[host];
            let base = model.generations.len() as u32 * SLOT_BYTES;
            if let Some(shared) = &mut model.shared {
                shared.post(&mut self.random, &mut self.endpoints[host], (host, base), self.now);
            }
        }
    }

    /// Limit events of a host's endpoint for its shared queue.
    pub(super) fn take_limit_events(&mut self, host: usize) {
        let mut checked = Ok(());
        while let Some(srqn) = self.endpoints[host].poll_srq_limit() {
            if self.model.trace {
                say(format_args!("{:>12} host {host}   {srqn} fell below its limit", self.now));
            }
            let shared = self.model.hosts[host].shared.as_mut();
            checked = checked.and_then(|()| shared.map_or(Ok(()), Shared::check_event));
        }
        let told = self.model.hosts[host].shared.as_ref().map_or(Ok(()), Shared::check_told);
        self.model.note(checked.and(told));
    }
}
