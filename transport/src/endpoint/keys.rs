//! Memory regions and windows of an endpoint, and key changes that queue pairs request.

use roced_types::Qpn;

use super::Endpoint;
use crate::{
    clock::Nanos,
    io::App,
    mr::{Mr, MrKey},
    qp::KeyChange,
    reject::Reject,
};

impl Endpoint {
    /// Adds a memory region.
    ///
    /// # Errors
    /// [`Reject::NoRoom`].
    pub fn insert_mr(&mut self, mr: Mr) -> Result<(), Reject> {
        self.resources.mrs.insert(mr)
    }

    /// Replaces the memory region or window with the same key index, and returns it, or adds one.
    ///
    /// # Errors
    /// [`Reject::NoRoom`].
    pub fn set_mr(&mut self, mr: Mr) -> Result<Option<Mr>, Reject> {
        self.resources.mrs.set(mr)
    }

    /// Removes a memory region. Nothing accesses it from now on.
    pub fn remove_mr(&mut self, key: MrKey) -> Option<Mr> {
        self.resources.mrs.remove(key)
    }

    /// Takes a key change that a queue pair waits for. The caller applies it to the table of every
    /// endpoint of the device, including this one, and then calls [`Self::finish_key_change`] here.
    /// Until then only this queue pair waits.
    pub fn poll_key_change(&mut self) -> Option<KeyChange> {
        while let Some(index) = self.schedule.key_changes.pop_front() {
            let Some(qp) = self.qps.get_mut(index) else { continue };
            let ticket = self.ticket + 1;
            let wish = qp.take_key_wish(ticket);
            if qp.has_key_wish() {
                self.schedule.key_changes.push_back(index);
            }
            if let Some(wish) = wish {
                self.ticket = ticket;
                return Some(KeyChange { qpn: qp.qpn(), ticket, wish });
            }
        }
        None
    }

    /// Ends a key change: it was applied to all endpoints (`done`), or is impossible and its work
    /// fails. Does nothing if no work waits for it.
    pub fn finish_key_change(&mut self, now: Nanos, qpn: Qpn, ticket: u64, done: bool, app: &mut impl App) {
        let Some(index) = self.slot(qpn) else { return };
        if let Some(qp) = self.qps.get_mut(index) {
            qp.finish_key_change(ticket, done, &mut self.resources.context(now, app));
            // Packets that arrived while a SEND with invalidate waited may now be executed.
            self.after_packet(index, false, now, app);
            if let Some(qp) = self.qps.get_mut(index) {
                qp.ask_for_overtaken(now);
            }
            self.after(index);
        }
    }
}
