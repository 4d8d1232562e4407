//! Requests that their peers have not confirmed. A program has an identifier for each, and a queue
//! pair once it has accepted; a peer may have no intention to confirm, or not exist.

use alloc::collections::BTreeMap;

use roced_types::AccountId;

use super::IdKey;
use crate::connection::PeerAddress;

/// Of one listener at a time: a quarter of the identifiers of a user, by default.
const LISTENER_MAX: u32 = 8192;
/// Of unknown peers: more wait for a place. A session has 256 completion channels by default.
const UNKNOWN_MAX: u32 = 128;
/// Of one known peer: as many as the longest backlog. Those that programs have not accepted, which
/// any host can pile up at a program that is busy, count at their listener alone; the others, of
/// which the answers are repeated to the peer, at all listeners of a user.
const PEER_MAX: u32 = 1024;
/// Of one unknown peer, likewise.
const UNKNOWN_PEER_MAX: u32 = 64;

/// The listener of a request, and its user.
#[derive(Clone, Copy, Debug)]
pub(super) struct AskedListener {
    pub(super) key: IdKey,
    pub(super) account: AccountId,
}

/// A request.
#[derive(Clone, Copy, Debug)]
struct UnconfirmedRequest {
    listener: AskedListener,
    peer: PeerAddress,
    is_unknown: bool,
    is_accepted: bool,
}

/// Requests of a listener.
#[derive(Clone, Copy, Debug, Default)]
struct OfListener {
    all: u32,
    unknown: u32,
}

/// Unconfirmed requests by identifier, with their counts.
#[derive(Debug, Default)]
pub(super) struct Unconfirmed {
    requests: BTreeMap<IdKey, UnconfirmedRequest>,
    listeners: BTreeMap<IdKey, OfListener>,
    /// Those that are not accepted, of each peer at a listener.
    undecided: BTreeMap<(PeerAddress, IdKey), u32>,
    /// The others, of each peer for a user.
    accepted: BTreeMap<(PeerAddress, AccountId), u32>,
}

impl Unconfirmed {
    pub(super) fn add(&mut self, request: IdKey, listener: AskedListener, peer: PeerAddress, is_unknown: bool) {
        self.requests.insert(request, UnconfirmedRequest { listener, peer, is_unknown, is_accepted: false });
        let of_listener = self.listeners.entry(listener.key).or_default();
        of_listener.all += 1;
        of_listener.unknown += u32::from(is_unknown);
        *self.undecided.entry((peer, listener.key)).or_insert(0) += 1;
    }

    /// The program has accepted a request. Others are ignored.
    pub(super) fn accept(&mut self, request: IdKey) {
        let Some(of) = self.requests.get_mut(&request).filter(|of| !of.is_accepted) else { return };
        of.is_accepted = true;
        let UnconfirmedRequest { listener, peer, .. } = *of;
        uncount(&mut self.undecided, (peer, listener.key));
        *self.accepted.entry((peer, listener.account)).or_insert(0) += 1;
    }

    /// The peer has confirmed, or the request is over: its listener. Others are ignored.
    pub(super) fn remove(&mut self, request: IdKey) -> Option<IdKey> {
        let UnconfirmedRequest { listener, peer, is_unknown, is_accepted } = self.requests.remove(&request)?;
        if let Some(of_listener) = self.listeners.get_mut(&listener.key) {
            of_listener.all -= 1;
            of_listener.unknown -= u32::from(is_unknown);
            if of_listener.all == 0 {
                self.listeners.remove(&listener.key);
            }
        }
        if is_accepted {
            uncount(&mut self.accepted, (peer, listener.account));
        } else {
            uncount(&mut self.undecided, (peer, listener.key));
        }
        Some(listener.key)
    }

    /// The listener of a request.
    pub(super) fn listener_of(&self, request: IdKey) -> Option<IdKey> {
        self.requests.get(&request).map(|request| request.listener.key)
    }

    /// Whether a listener may have another one.
    pub(super) fn have_room_at(&self, listener: IdKey, is_unknown: bool) -> bool {
        self.percent_of_listener(listener, is_unknown) < 100
    }

    /// Whether a peer may have another one at a listener.
    pub(super) fn have_room_of(&self, peer: PeerAddress, listener: AskedListener, is_unknown: bool) -> bool {
        self.percent_of_peer(peer, listener, is_unknown) < 100
    }

    /// Whether there are so many that the peer of a request is waited for only shortly.
    pub(super) fn are_many_beside(&self, request: IdKey) -> bool {
        let request = self.requests.get(&request);
        request.is_some_and(|it| {
            let of_listener = self.percent_of_listener(it.listener.key, it.is_unknown);
            of_listener.max(self.percent_of_peer(it.peer, it.listener, it.is_unknown)) > 50
        })
    }

    /// The largest part of a limit of a listener that is in use.
    fn percent_of_listener(&self, listener: IdKey, is_unknown: bool) -> u32 {
        let of_listener = self.listeners.get(&listener).copied().unwrap_or_default();
        let of_unknown = if is_unknown { percent(of_listener.unknown, UNKNOWN_MAX) } else { 0 };
        percent(of_listener.all, LISTENER_MAX).max(of_unknown)
    }

    fn percent_of_peer(&self, peer: PeerAddress, listener: AskedListener, is_unknown: bool) -> u32 {
        let undecided = self.undecided.get(&(peer, listener.key)).copied().unwrap_or(0);
        let accepted = self.accepted.get(&(peer, listener.account)).copied().unwrap_or(0);
        percent(undecided + accepted, if is_unknown { UNKNOWN_PEER_MAX } else { PEER_MAX })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty() && self.listeners.is_empty() && self.undecided.is_empty() && self.accepted.is_empty()
    }
}

fn uncount<Key: Ord>(counts: &mut BTreeMap<Key, u32>, of: Key) {
    let Some(count) = counts.get_mut(&of) else { return };
    *count -= 1;
    if *count == 0 {
        counts.remove(&of);
    }
}

const fn percent(count: u32, max: u32) -> u32 {
    count * 100 / max
}
