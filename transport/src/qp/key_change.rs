//! Keys that change on the data path: BIND_MW, LOCAL_INV, SEND with invalidate.
//!
//! Every endpoint of a device has a key table of its own, so the owner of all tables, the control
//! side, makes the change. Only the queue pair that requests the change waits for it:
//!
//! ```text
//!   requester: BIND_MW or LOCAL_INV ─┐
//!   responder: SEND with invalidate ─┴► wanted ─► Endpoint::poll_key_change ─► tables ─► finish
//!
//!   finish ─┬► requester: the work completes
//!           └► responder: the receive completes
//! ```
//!
//! Hence once a completion reports a key invalid, no table accepts it, on any queue pair of any
//! worker; and once a completion reports a window bound, every table accepts its key.

use roced_types::{BindWindow, Qpn, SendOp, Status};

use super::send_queue::SendEntry;
use crate::mr::MrKey;

/// Key change that a queue pair requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyRequest {
    /// BIND_MW: the window with the index in `key` gets this key and opens the given range.
    Bind {
        /// New key.
        key: MrKey,
        /// Range and rights of the window.
        window: BindWindow,
    },
    /// LOCAL_INV: the key becomes invalid.
    InvalidateLocally(MrKey),
    /// SEND with invalidate: the key becomes invalid at the peer's request.
    InvalidateRemotely(MrKey),
}

impl KeyRequest {
    /// Key change of a BIND_MW or LOCAL_INV work request.
    pub(super) const fn of_work(entry: &SendEntry) -> Self {
        let key = MrKey(entry.rkey);
        match entry.op {
            SendOp::BindWindow => {
                let window = BindWindow::from_operands(entry.remote_va, entry.swap_or_add, entry.compare);
                Self::Bind { key, window }
            }
            _ => Self::InvalidateLocally(key),
        }
    }

    /// Completion status of the work request if the change cannot be made.
    pub(super) const fn refusal(entry: &SendEntry) -> Status {
        match entry.op {
            SendOp::BindWindow => Status::WindowBind,
            _ => Status::LocalQpOperation,
        }
    }
}

/// Key change request and its origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyChange {
    /// Queue pair that waits.
    pub qpn: Qpn,
    /// Ticket to return when the change is made. Tickets are unique, so that no queue pair mistakes
    /// the answer to another request for its own.
    pub ticket: u64,
    /// Requested change.
    pub wish: KeyRequest,
}

/// Half of a queue pair that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiter {
    Requester,
    Responder,
}

#[derive(Clone, Copy, Debug)]
enum KeyChangeStage<Wish> {
    /// Requested; not yet passed on.
    Wanted(Wish),
    /// In progress, under this ticket.
    Asked(u64),
}

/// Pending key changes of the two halves of a queue pair: one each.
#[derive(Debug, Default)]
pub(crate) struct KeyChanges {
    requester: Option<KeyChangeStage<KeyRequest>>,
    /// A key that becomes invalid at the peer's request: a responder wants nothing else.
    responder: Option<KeyChangeStage<MrKey>>,
}

impl KeyChanges {
    /// Requests a change for the requester, which waits from now on.
    pub(crate) const fn want(&mut self, wish: KeyRequest) {
        self.requester = Some(KeyChangeStage::Wanted(wish));
    }

    /// Requests that a key becomes invalid for the responder, which waits from now on.
    pub(crate) const fn want_invalid(&mut self, key: MrKey) {
        self.responder = Some(KeyChangeStage::Wanted(key));
    }

    /// This half waits.
    pub(crate) const fn waits(&self, waiter: Waiter) -> bool {
        match waiter {
            Waiter::Requester => self.requester.is_some(),
            Waiter::Responder => self.responder.is_some(),
        }
    }

    /// A request is not yet passed on.
    pub(crate) const fn has_wish(&self) -> bool {
        matches!(self.requester, Some(KeyChangeStage::Wanted(_)))
            || matches!(self.responder, Some(KeyChangeStage::Wanted(_)))
    }

    /// Takes a request that is not yet passed on and gives it this ticket.
    pub(crate) fn take_wish(&mut self, ticket: u64) -> Option<KeyRequest> {
        if let Some(KeyChangeStage::Wanted(wish)) = self.requester {
            self.requester = Some(KeyChangeStage::Asked(ticket));
            return Some(wish);
        }
        let Some(KeyChangeStage::Wanted(key)) = self.responder else { return None };
        self.responder = Some(KeyChangeStage::Asked(ticket));
        Some(KeyRequest::InvalidateRemotely(key))
    }

    /// Ends the wait for the change under this ticket; `None` when neither half waits for it any
    /// more.
    pub(crate) fn finish(&mut self, ticket: u64) -> Option<Waiter> {
        if matches!(self.requester, Some(KeyChangeStage::Asked(asked)) if asked == ticket) {
            self.requester = None;
            return Some(Waiter::Requester);
        }
        if matches!(self.responder, Some(KeyChangeStage::Asked(asked)) if asked == ticket) {
            self.responder = None;
            return Some(Waiter::Responder);
        }
        None
    }

    /// Ends all waits.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_change_is_answered_once_to_its_requester() {
        let mut changes = KeyChanges::default();
        changes.want(KeyRequest::InvalidateLocally(MrKey(1)));
        changes.want_invalid(MrKey(2));
        assert_eq!(changes.finish(0), None, "no question was sent yet");
        assert_eq!(changes.take_wish(7), Some(KeyRequest::InvalidateLocally(MrKey(1))));
        assert_eq!(changes.take_wish(8), Some(KeyRequest::InvalidateRemotely(MrKey(2))));
        assert!(!changes.has_wish() && changes.take_wish(9).is_none());
        assert_eq!((changes.finish(8), changes.finish(8)), (Some(Waiter::Responder), None));
        assert!(changes.waits(Waiter::Requester) && !changes.waits(Waiter::Responder));
        changes.clear();
        assert_eq!(changes.finish(7), None, "the queue pair was reset");
    }
}
