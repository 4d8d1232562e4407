//! Keys that change on the data path: BIND_MW, LOCAL_INV, SEND with invalidate.
//!
//! Every endpoint of a device has a table of keys of its own, so a change is made by whoever owns
//! them all, the control side. The queue pair asks, and waits, it and no other:
//!
//! ```text
//!   requester, at BIND_MW or LOCAL_INV ─┐                                                          ┌─► that work completes
//!   responder, at SEND with invalidate ─┴► wanted ─ Endpoint::poll_key_change ─► every table ─ finish ─┴─► the receive completes
//! ```
//!
//! So once a completion says that a key is invalid, no table opens it, whichever queue pair of
//! whichever worker it is tried on; and once a completion says that a window is bound, every table
//! opens it.

use roced_types::{BindWindow, Qpn, SendOp, Status};

use super::send_queue::SendEntry;
use crate::mr::MrKey;

/// What a queue pair wants to be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyRequest {
    /// BIND_MW: the window whose index `key` has gets this key, and opens that range.
    Bind {
        /// From now on.
        key: MrKey,
        /// Of what.
        window: BindWindow,
    },
    /// LOCAL_INV: the key opens nothing any more.
    InvalidateLocally(MrKey),
    /// SEND with invalidate: the same, for a peer.
    InvalidateRemotely(MrKey),
}

impl KeyRequest {
    /// What BIND_MW or LOCAL_INV asks for.
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

    /// How that work ends when it cannot be done.
    pub(super) const fn refusal(entry: &SendEntry) -> Status {
        match entry.op {
            SendOp::BindWindow => Status::WindowBind,
            _ => Status::LocalQpOperation,
        }
    }
}

/// A wish, and who waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyChange {
    /// The queue pair.
    pub qpn: Qpn,
    /// To be given back when all is done: no two are the same, so that nobody takes the answer to
    /// another's wish for its own.
    pub ticket: u64,
    /// What is wanted.
    pub wish: KeyRequest,
}

/// Which half of a queue pair waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiter {
    Requester,
    Responder,
}

#[derive(Clone, Copy, Debug)]
enum KeyChangeStage {
    /// Nobody was told yet.
    Wanted(KeyRequest),
    /// Under way.
    Asked(u64),
}

/// What the two halves of one queue pair wait for: one change each.
#[derive(Debug, Default)]
pub(crate) struct KeyChanges {
    requester: Option<KeyChangeStage>,
    responder: Option<KeyChangeStage>,
}

impl KeyChanges {
    /// This half waits for that from now on.
    pub(crate) fn want(&mut self, waiter: Waiter, wish: KeyRequest) {
        *self.of(waiter) = Some(KeyChangeStage::Wanted(wish));
    }

    /// This half waits.
    pub(crate) const fn waits(&self, waiter: Waiter) -> bool {
        match waiter {
            Waiter::Requester => self.requester.is_some(),
            Waiter::Responder => self.responder.is_some(),
        }
    }

    /// There is a wish that nobody was told of.
    pub(crate) const fn has_wish(&self) -> bool {
        matches!(self.requester, Some(KeyChangeStage::Wanted(_)))
            || matches!(self.responder, Some(KeyChangeStage::Wanted(_)))
    }

    /// A wish that nobody was told of, which goes under this ticket.
    pub(crate) fn take_wish(&mut self, ticket: u64) -> Option<KeyRequest> {
        for stage in [&mut self.requester, &mut self.responder] {
            if let Some(KeyChangeStage::Wanted(wish)) = *stage {
                *stage = Some(KeyChangeStage::Asked(ticket));
                return Some(wish);
            }
        }
        None
    }

    /// What went under this ticket is done; `None` when nobody waits for it any more.
    pub(crate) fn finish(&mut self, ticket: u64) -> Option<Waiter> {
        for waiter in [Waiter::Requester, Waiter::Responder] {
            let stage = self.of(waiter);
            if matches!(stage, Some(KeyChangeStage::Asked(asked)) if *asked == ticket) {
                *stage = None;
                return Some(waiter);
            }
        }
        None
    }

    /// Nobody waits any more.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    const fn of(&mut self, waiter: Waiter) -> &mut Option<KeyChangeStage> {
        match waiter {
            Waiter::Requester => &mut self.requester,
            Waiter::Responder => &mut self.responder,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_reaches_who_asked_and_once() {
        let mut changes = KeyChanges::default();
        changes.want(Waiter::Requester, KeyRequest::InvalidateLocally(MrKey(1)));
        changes.want(Waiter::Responder, KeyRequest::InvalidateRemotely(MrKey(2)));
        assert_eq!(changes.finish(0), None, "nobody was asked yet");
        assert_eq!(changes.take_wish(7), Some(KeyRequest::InvalidateLocally(MrKey(1))));
        assert_eq!(changes.take_wish(8), Some(KeyRequest::InvalidateRemotely(MrKey(2))));
        assert!(!changes.has_wish() && changes.take_wish(9).is_none());
        assert_eq!((changes.finish(8), changes.finish(8)), (Some(Waiter::Responder), None));
        assert!(changes.waits(Waiter::Requester) && !changes.waits(Waiter::Responder));
        changes.clear();
        assert_eq!(changes.finish(7), None, "the queue pair was reset");
    }
}
