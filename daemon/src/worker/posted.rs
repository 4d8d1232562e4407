//! Work that was posted before a command that takes away a means of sending it: it is sent first,
//! in a bounded number of rounds, for an adapter would have sent it by then.

use roced_types::Qpn;

use super::{nic::Nic, poll_loop::Worker, qp_table::entry_of};

/// Rounds for one queue pair, each of a batch of frames: others have their turns in them.
const ROUNDS_OF_QP: usize = 32;
/// Rounds without a send of the queue pair, whose turn comes in one of them if it can send at all.
const FRUITLESS_ROUNDS: usize = 4;
/// Rounds for all queue pairs, as any of them may have work that names an address handle.
const ROUNDS: usize = 4;

impl<N: Nic> Worker<N> {
    /// Sends the work of a queue pair whose sends end when they leave.
    pub(super) fn send_posted_of(&mut self, qpn: Qpn) {
        let Some(at) = self.endpoint_slot_of(qpn) else { return };
        let Some(entry) = entry_of(self.first_entries[at], &self.worker_endpoints[at].endpoint, qpn) else { return };
        let mut fruitless = 0;
        for _ in 0..ROUNDS_OF_QP {
            if fruitless == FRUITLESS_ROUNDS || self.has_fault() {
                return;
            }
            let endpoint = &mut self.worker_endpoints[at].endpoint;
            let served = self.qp_table.serve(entry, endpoint);
            if let Some((session, fault)) = served.fault {
                return self.note_fault(session, fault);
            }
            let room = |worker: &Self| {
                let qp = worker.worker_endpoints[at].endpoint.qp(qpn)?;
                Some((qp.send_room(), qp.config().sizes.send_wrs))
            };
            let Some((before, all)) = room(self) else { return };
            if before == all {
                return;
            }
            self.send_more();
            let is_same = room(self).is_some_and(|(after, _)| after == before);
            fruitless = if is_same && served.taken == 0 { fruitless + 1 } else { 0 };
        }
    }

    /// Sends the work of all queue pairs, as far as a few rounds go.
    pub(super) fn send_posted(&mut self) {
        for _ in 0..ROUNDS {
            let taken = self.take_doorbells() + self.take_work();
            if taken + self.send_more() == 0 {
                return;
            }
        }
    }
}
