//! Questions for the neighbors of followed destinations: asked now, or in line.

use std::{collections::BTreeMap, time::Instant};

use roced_types::AccountId;
use tracing::debug;

use super::{
    Net,
    follow::{Follow, FollowId},
    neighbor::{self, Neighbor, NeighborChange, NeighborKey, NeighborNews},
    questions::{ASKED_MAX, Asker},
};

/// Destinations that leave the line in one step. A guess: each is a message to the kernel, some
/// microseconds.
const STEP: usize = 256;

impl Net {
    /// Questions that had to wait in line, by account.
    pub const fn delayed_neighbors(&self) -> &BTreeMap<AccountId, u64> {
        self.questions.delayed()
    }

    /// Asks for the neighbor of a destination that was taken out, if it is time to, or has it wait
    /// for its turn; and puts it back.
    pub(super) fn pass_time(&mut self, id: FollowId, mut follow: Follow, now: Instant) {
        if follow.must_ask(now) {
            let priority = follow.priority();
            let asker = self.questions.with_room(follow.askers.keys().copied(), priority);
            if !self.ask(&mut follow, asker, now) {
                let place = self.questions.last_place(priority);
                follow.place = Some(place);
                for asker in follow.askers.keys() {
                    self.questions.wait(*asker, place, id);
                }
                debug!(destination = %follow.destination, "its neighbor is asked for later: there are many others");
            }
        }
        self.follows.put(id, follow);
    }

    /// Asks for those that wait, as far as there is room.
    pub(super) fn ask_waiting(&mut self, now: Instant) {
        self.questions.set_left(None);
        for _ in 0..STEP {
            let Some((asker, id)) = self.questions.next() else { return };
            let mut follow = self.follows.take(id).expect("it leaves the line with its last follower");
            self.leave_line(&mut follow);
            self.ask(&mut follow, Some(asker), now);
            self.follows.put(id, follow);
        }
        self.questions.set_left(Some(now));
    }

    /// Has the kernel free the places of neighbors that did not answer, once all that follow them
    /// have seen that, or once these are many.
    pub(super) fn free_silent(&mut self, now: Instant) {
        if self.follows.are_outdated() && self.questions.silent() < ASKED_MAX {
            return;
        }
        for neighbor in self.questions.take_silent() {
            let (ifindex, address) = neighbor;
            // It may have answered meanwhile.
            if self.mirror.neighbors.get(ifindex, address) != Some(Neighbor::Silent) {
                self.questions.on_verdict(neighbor, false);
                continue;
            }
            let freed = neighbor::free(&mut self.requests, ifindex, address);
            if let Err(error) = &freed {
                debug!(neighbor = %address, %error, "the kernel would not forget a neighbor");
            }
            self.questions.on_freeing(neighbor, freed.is_ok(), now);
        }
    }

    pub(super) fn leave_line(&mut self, follow: &mut Follow) {
        let Some(place) = follow.place.take() else { return };
        for asker in follow.askers.keys() {
            self.questions.leave(*asker, place);
        }
    }

    /// The kernel has news about a neighbor.
    pub(super) fn on_neighbor(&mut self, news: NeighborNews, now: Instant) {
        let NeighborNews { neighbor, change, is_verdict } = news;
        if is_verdict {
            let is_silent = self.mirror.neighbors.get(neighbor.0, neighbor.1) == Some(Neighbor::Silent);
            self.questions.on_verdict(neighbor, is_silent);
        }
        let is_told = match change {
            NeighborChange::None => false,
            NeighborChange::Mac => self.follows.has_neighbor(neighbor) && self.mac_changes.on_change(neighbor, now),
            NeighborChange::Known => true,
        };
        if is_told {
            self.follows.on_neighbor(neighbor, now);
        }
    }

    /// Has the kernel look for the neighbor, at the expense of `asker`, or make sure of it; nothing
    /// if it is at it or sure already. False if it had to look and there is no asker.
    fn ask(&mut self, follow: &mut Follow, asker: Option<Asker>, now: Instant) -> bool {
        if let Some(neighbor) = follow.hop.map(|hop| (hop.ifindex, hop.neighbor)) {
            match self.mirror.neighbors.get(neighbor.0, neighbor.1) {
                Some(Neighbor::Known { stale, .. }) => {
                    // It has its place in the kernel's table.
                    if stale {
                        self.ask_kernel(neighbor);
                    }
                }
                _ if self.questions.is_open(neighbor) => {}
                _ => {
                    let Some(asker) = asker else { return false };
                    let is_refused = !self.ask_kernel(neighbor);
                    self.questions.open(neighbor, asker, follow.priority(), is_refused, now);
                }
            }
        }
        follow.on_asked(now, self.resolve_timeout);
        true
    }

    /// False if the kernel would not.
    fn ask_kernel(&mut self, neighbor: NeighborKey) -> bool {
        let (ifindex, address) = neighbor;
        match neighbor::ask(&mut self.requests, ifindex, address) {
            Ok(()) => self.mirror.neighbors.set_asked(ifindex, address),
            Err(error) => {
                debug!(neighbor = %address, %error, "the kernel would not ask for a neighbor");
                return false;
            }
        }
        true
    }
}
