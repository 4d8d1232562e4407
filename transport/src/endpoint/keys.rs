//! Memory regions and windows of an endpoint, and the changes of their keys that queue pairs ask
//! for.

use roced_types::Qpn;

use super::Endpoint;
use crate::{
    clock::Nanos,
    io::App,
    mr::{Mr, MrKey},
    qp::{Context, KeyChange},
    reject::Reject,
};

impl Endpoint {
    /// Adds a memory region.
    ///
    /// # Errors
    /// [`Reject::NoRoom`].
    pub fn insert_mr(&mut self, mr: Mr) -> Result<(), Reject> {
        self.mrs.insert(mr)
    }

    /// Puts a memory region or window in the place of the one with its key's index, or adds it.
    ///
    /// # Errors
    /// [`Reject::NoRoom`].
    pub fn set_mr(&mut self, mr: Mr) -> Result<(), Reject> {
        self.mrs.set(mr)
    }

    /// Removes a memory region: from now on nothing reaches it.
    pub fn remove_mr(&mut self, key: MrKey) -> Option<Mr> {
        self.mrs.remove(key)
    }

    /// A change of keys that a queue pair waits for. It is to be made in the table of every
    /// endpoint of the device, this one too, and then [`Self::finish_key_change`] to be called
    /// here; until then the queue pair waits, and no other.
    pub fn poll_key_change(&mut self) -> Option<KeyChange> {
        while let Some(index) = self.key_changes.pop_front() {
            let Some(qp) = self.qps.get_mut(index) else { continue };
            let ticket = self.ticket + 1;
            let wish = qp.take_key_wish(ticket);
            if qp.has_key_wish() {
                self.key_changes.push_back(index);
            }
            if let Some(wish) = wish {
                self.ticket = ticket;
                return Some(KeyChange { qpn: qp.qpn(), ticket, wish });
            }
        }
        None
    }

    /// A change of keys was made on all workers (`done`), or is impossible: its work fails. Nothing
    /// happens if no work waits for it any more.
    pub fn finish_key_change(&mut self, now: Nanos, qpn: Qpn, ticket: u64, done: bool, app: &mut impl App) {
        let Some(index) = self.slot(qpn) else { return };
        if let Some(qp) = self.qps.get_mut(index) {
            qp.finish_key_change(
                ticket,
                done,
                &mut Context { now, mrs: &self.mrs, ahs: &self.ahs, srqs: &mut self.srqs, app },
            );
            // Packets that arrived while a SEND with invalidate waited may now be executed.
            self.after_packet(index, false, now, app);
            if let Some(qp) = self.qps.get_mut(index) {
                qp.ask_for_overtaken(now);
            }
            self.after(index);
        }
    }
}
