//! Requests without room at their listener. They wait for it here: a Linux peer repeats one only
//! after four seconds.
//!
//! The newest has its turn first, because its peer surely waits for an answer. So those of a flood
//! that is over, from hosts that do not exist, delay no other. A peer that repeats its request is
//! the newest again.

use alloc::collections::{BTreeMap, BTreeSet};
use core::time::Duration;

use super::IdKey;
use crate::{
    connection::PeerAddress,
    wire::{CaGuid, CmMessage, CommId, Mad, reject_reason},
};

/// At all listeners: 2 MiB. A guess: hosts that start at one moment.
const POSTPONED_MAX: usize = 4096;

/// Of one peer. A guess.
const OF_PEER_MAX: usize = 256;

/// A request that was not repeated for so long is given up by its peer: Linux repeats it after
/// 4.6 s, and before version 6.2 after 6.1 s.
const KEPT_TIME: Duration = Duration::from_secs(8);

/// Requests with the same right to a place: those of known peers at a listener, or of unknown
/// peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct WaitingLine {
    pub(super) listener: IdKey,
    pub(super) is_of_unknown: bool,
}

impl WaitingLine {
    /// The lines of a listener. Known peers have their turn first.
    pub(super) fn all_of(listener: IdKey) -> [Self; 2] {
        [false, true].map(|is_of_unknown| Self { listener, is_of_unknown })
    }
}

/// A request by its peer's numbers.
type RequestName = (PeerAddress, CaGuid, CommId);

#[derive(Clone, Copy, Debug)]
struct PostponedRequest {
    name: RequestName,
    mad: Mad,
    until: Duration,
}

/// Requests that wait for room.
#[derive(Debug, Default)]
pub(super) struct Postponed {
    places: BTreeMap<RequestName, (WaitingLine, u64)>,
    /// Oldest first.
    lines: BTreeMap<WaitingLine, BTreeMap<u64, PostponedRequest>>,
    by_length: BTreeSet<(usize, WaitingLine)>,
    last: u64,
}

impl Postponed {
    /// Adds a request, once. False if its peer has too many, or if another one had to go: the
    /// oldest of the longest line.
    pub(super) fn add(&mut self, line: WaitingLine, peer: PeerAddress, mad: &Mad, now: Duration) -> bool {
        let Some(name) = name_of(peer, &mad.message) else { return true };
        self.remove(&name);
        let of_peer = self.places.range((peer, CaGuid(0), CommId(0))..).take_while(|((of, ..), _)| *of == peer);
        if of_peer.take(OF_PEER_MAX).count() == OF_PEER_MAX {
            return false;
        }
        let has_room = self.places.len() < POSTPONED_MAX;
        if !has_room
            && let Some(&(_, longest)) = self.by_length.last()
            && let Some((_, oldest)) = self.change(longest, BTreeMap::pop_first)
        {
            self.places.remove(&oldest.name);
        }
        self.last += 1;
        let number = self.last;
        self.places.insert(name, (line, number));
        let request = PostponedRequest { name, mad: *mad, until: now + KEPT_TIME };
        self.change(line, |requests| requests.insert(number, request));
        has_room
    }

    /// A request waits in the line, and its peer for an answer. If none does the line is emptied.
    pub(super) fn waits(&mut self, line: WaitingLine, now: Duration) -> bool {
        let newest = self.lines.get(&line).and_then(BTreeMap::last_key_value);
        let waits = newest.is_some_and(|(_, request)| request.until > now);
        if !waits {
            self.remove_line(line);
        }
        waits
    }

    /// Takes the newest request of a line.
    pub(super) fn take(&mut self, line: WaitingLine) -> Option<(PeerAddress, Mad)> {
        let (_, PostponedRequest { name, mad, .. }) = self.change(line, BTreeMap::pop_last)?;
        self.places.remove(&name);
        Some((name.0, mad))
    }

    /// The message is a request that waits, or its end: it no longer waits.
    pub(super) fn forget(&mut self, peer: PeerAddress, message: &CmMessage) {
        if let Some(name) = name_of(peer, message) {
            self.remove(&name);
        }
    }

    /// Requests wait at a listener.
    pub(super) fn are_at(&self, listener: IdKey) -> bool {
        WaitingLine::all_of(listener).iter().any(|line| self.lines.contains_key(line))
    }

    /// A listener is gone.
    pub(super) fn remove_listener(&mut self, listener: IdKey) {
        WaitingLine::all_of(listener).into_iter().for_each(|line| self.remove_line(line));
    }

    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.places.is_empty() && self.lines.is_empty() && self.by_length.is_empty()
    }

    fn remove(&mut self, name: &RequestName) {
        if let Some((line, number)) = self.places.remove(name) {
            self.change(line, |requests| requests.remove(&number));
        }
    }

    fn remove_line(&mut self, line: WaitingLine) {
        let Some(requests) = self.lines.remove(&line) else { return };
        self.by_length.remove(&(requests.len(), line));
        for request in requests.values() {
            self.places.remove(&request.name);
        }
    }

    /// Changes a line, and enters its new length.
    fn change<T>(&mut self, line: WaitingLine, change: impl FnOnce(&mut BTreeMap<u64, PostponedRequest>) -> T) -> T {
        let requests = self.lines.entry(line).or_default();
        self.by_length.remove(&(requests.len(), line));
        let changed = change(requests);
        if requests.is_empty() {
            self.lines.remove(&line);
        } else {
            self.by_length.insert((requests.len(), line));
        }
        changed
    }
}

/// The request that a message is, or that it takes back. A question has no adapter.
fn name_of(peer: PeerAddress, message: &CmMessage) -> Option<RequestName> {
    match message {
        CmMessage::Req(req) => Some((peer, req.local_ca, req.local)),
        CmMessage::SidrReq(req) => Some((peer, CaGuid(0), req.request)),
        CmMessage::Rej(rej) if rej.reason == reject_reason::TIMEOUT => {
            let ca = rej.info.as_bytes().first_chunk()?;
            Some((peer, CaGuid(u64::from_be_bytes(*ca)), rej.local))
        }
        _ => None,
    }
}
