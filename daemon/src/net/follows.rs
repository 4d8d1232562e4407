//! All followed destinations, and those that a change concerns.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    ops::{Bound, RangeInclusive},
    time::Instant,
};

use roced_types::DeviceId;

use super::{
    follow::{Follow, FollowId, NextHop},
    gid::GidTableEntry,
    neighbor::NeighborKey,
    questions::{Asker, Place},
};

/// Destinations handled in one step. A guess: each is a query of the kernel, some microseconds.
const STEP: usize = 256;

/// Device, GID and destination: followers of the same share a [`Follow`].
type FollowedRoute = (DeviceId, GidTableEntry, IpAddr);

/// All followed destinations. One is changed between [`Self::take`] and
/// [`Self::put`].
#[derive(Debug, Default)]
pub(super) struct Follows {
    follows: BTreeMap<FollowId, Follow>,
    by_route: BTreeMap<FollowedRoute, FollowId>,
    /// By interface and neighbor.
    by_neighbor: BTreeSet<(u32, IpAddr, FollowId)>,
    by_deadline: BTreeSet<(Instant, FollowId)>,
    /// Those to be looked at again, because their neighbor has changed or routes have: whether the
    /// route has to be queried.
    outdated: BTreeMap<FollowId, bool>,
    /// Since there are such.
    outdated_since: Option<Instant>,
    /// The last of them that was taken. Those behind it come next: changes without end must not
    /// bring the first ones back again and again.
    last_taken: FollowId,
    last_id: u64,
}

impl Follows {
    /// One follower more, if the destination is followed already; with its place in line if it is
    /// the first one of its asker.
    pub(super) fn join(&mut self, route: FollowedRoute, asker: Asker) -> Option<(FollowId, NextHop, Option<Place>)> {
        let id = *self.by_route.get(&route)?;
        let follow = self.follows.get_mut(&id)?;
        let followers = follow.askers.entry(asker).or_insert(0);
        *followers += 1;
        let place = follow.place.filter(|_| *followers == 1);
        Some((id, follow.next, place))
    }

    /// A destination that is not followed yet, and its first follower.
    pub(super) fn add(&mut self, mut follow: Follow, asker: Asker) -> FollowId {
        self.last_id += 1;
        let id = FollowId::new(self.last_id);
        follow.askers.insert(asker, 1);
        self.by_route.insert(route_of(&follow), id);
        self.put(id, follow);
        id
    }

    /// One follower less; gives the destination's place in line if it was the last one of its
    /// asker.
    pub(super) fn leave(&mut self, id: FollowId, asker: Asker) -> Option<Place> {
        let mut follow = self.take(id)?;
        let followers = follow.askers.get_mut(&asker).expect("it is one of its followers");
        *followers -= 1;
        let is_last = *followers == 0;
        if is_last {
            follow.askers.remove(&asker);
        }
        let place = follow.place.filter(|_| is_last);
        if follow.askers.is_empty() {
            self.by_route.remove(&route_of(&follow));
            self.outdated.remove(&id);
            if self.outdated.is_empty() {
                self.outdated_since = None;
            }
        } else {
            self.put(id, follow);
        }
        place
    }

    /// Takes a destination out, to change it.
    pub(super) fn take(&mut self, id: FollowId) -> Option<Follow> {
        let follow = self.follows.remove(&id)?;
        if let Some(hop) = follow.hop {
            self.by_neighbor.remove(&(hop.ifindex, hop.neighbor, id));
        }
        if let Some(deadline) = follow.deadline() {
            self.by_deadline.remove(&(deadline, id));
        }
        Some(follow)
    }

    /// Puts back a destination that was taken out.
    pub(super) fn put(&mut self, id: FollowId, follow: Follow) {
        if let Some(hop) = follow.hop {
            self.by_neighbor.insert((hop.ifindex, hop.neighbor, id));
        }
        if let Some(deadline) = follow.deadline() {
            self.by_deadline.insert((deadline, id));
        }
        self.follows.insert(id, follow);
    }

    /// A neighbor has changed: those that are reached by it are outdated.
    pub(super) fn on_neighbor(&mut self, neighbor: NeighborKey, now: Instant) {
        for (.., id) in self.by_neighbor.range(reached_by(neighbor)) {
            self.outdated.entry(*id).or_insert(false);
            self.outdated_since.get_or_insert(now);
        }
    }

    /// Some are reached by the neighbor.
    pub(super) fn has_neighbor(&self, neighbor: NeighborKey) -> bool {
        self.by_neighbor.range(reached_by(neighbor)).next().is_some()
    }

    /// Routes have changed: all are outdated.
    pub(super) fn on_routes(&mut self, now: Instant) {
        self.outdated.extend(self.follows.keys().map(|id| (*id, true)));
        if !self.outdated.is_empty() {
            self.outdated_since.get_or_insert(now);
        }
    }

    /// When something is to be done: the first deadline, or at once if some are outdated.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let first = self.by_deadline.first().map(|(deadline, _)| *deadline);
        first.into_iter().chain(self.outdated_since).min()
    }

    /// Some of those with a deadline that has passed.
    pub(super) fn due(&self, now: Instant) -> Vec<FollowId> {
        self.by_deadline.iter().take_while(|(deadline, _)| *deadline <= now).map(|(_, id)| *id).take(STEP).collect()
    }

    /// Some are to be looked at again.
    pub(super) fn are_outdated(&self) -> bool {
        !self.outdated.is_empty()
    }

    /// Some of those that are outdated, which are looked at now; with each, whether its route has
    /// to be queried.
    pub(super) fn take_outdated(&mut self) -> Vec<(FollowId, bool)> {
        let behind = self.outdated.range((Bound::Excluded(self.last_taken), Bound::Unbounded));
        let before = self.outdated.range(..=self.last_taken);
        let taken: Vec<_> = behind.chain(before).take(STEP).map(|(id, routes)| (*id, *routes)).collect();
        for (id, _) in &taken {
            self.outdated.remove(id);
            self.last_taken = *id;
        }
        if self.outdated.is_empty() {
            self.outdated_since = None;
        }
        taken
    }
}

fn reached_by((ifindex, address): NeighborKey) -> RangeInclusive<(u32, IpAddr, FollowId)> {
    (ifindex, address, FollowId::FIRST)..=(ifindex, address, FollowId::LAST)
}

fn route_of(follow: &Follow) -> FollowedRoute {
    (follow.device, follow.source, follow.destination)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{super::gid::RoceVersion, *};
    use crate::net::{
        questions::{Priority, Questions},
        route::Hop,
    };

    const ONE: Asker = Asker::AnyHost;
    const OTHER: Asker = Asker::KnownPeer;

    fn follow(last: u8, neighbor: Option<u8>) -> Follow {
        let address = IpAddr::from([10, 0, 0, 1]);
        let source = GidTableEntry { address, ifindex: 2, vlan: None, prefix_len: 24, roce: RoceVersion::V2 };
        let mut follow = Follow::new(DeviceId(0), source, [10, 0, 0, last].into());
        let hop = neighbor.map(|last| Hop { ifindex: 2, neighbor: [10, 0, 0, last].into(), mtu_bytes: None });
        follow.set_hop(hop, Instant::now());
        follow
    }

    #[test]
    fn followers_of_the_same_destination_share_it() {
        let mut follows = Follows::default();
        let route = route_of(&follow(2, None));
        assert_eq!(follows.join(route, ONE), None);
        let id = follows.add(follow(2, Some(9)), ONE);
        assert_eq!(follows.join(route, OTHER), Some((id, NextHop::Unreachable, None)));
        follows.leave(id, ONE);
        let now = Instant::now();
        follows.on_neighbor((2, [10, 0, 0, 9].into()), now);
        assert_eq!(follows.take_outdated(), [(id, false)]);
        follows.on_routes(now);
        assert_eq!(follows.deadline(), Some(now));
        follows.leave(id, OTHER);
        assert_eq!(follows.join(route, ONE), None);
        follows.on_neighbor((2, [10, 0, 0, 9].into()), now);
        assert_eq!((follows.take_outdated(), follows.deadline()), (Vec::new(), None));
        assert!(follows.take(id).is_none());
    }

    /// Also one that is alone in leaving, and the first and last of several followers.
    #[test]
    fn the_place_in_line_is_that_of_each_asker() {
        let mut follows = Follows::default();
        let id = follows.add(follow(2, Some(9)), ONE);
        let place = Some(Questions::default().last_place(Priority::New));
        let mut waiting = follows.take(id).expect("it is there");
        waiting.place = place;
        follows.put(id, waiting);
        let joined = |follows: &mut Follows, asker| {
            let (_, _, place) = follows.join(route_of(&follow(2, None)), asker).expect("it is followed");
            place
        };
        assert_eq!([OTHER, OTHER, ONE].map(|asker| joined(&mut follows, asker)), [place, None, None]);
        assert_eq!([OTHER, OTHER, ONE, ONE].map(|asker| follows.leave(id, asker)), [None, place, None, place]);
        assert!(follows.take(id).is_none() && !follows.has_neighbor((2, [10, 0, 0, 9].into())));
    }

    #[test]
    fn a_change_of_the_neighbor_or_deadline_is_found_by_the_new_one() {
        let mut follows = Follows::default();
        let (id, other) = (follows.add(follow(2, Some(8)), ONE), follows.add(follow(3, Some(9)), ONE));
        let mut changed = follows.take(id).expect("it is there");
        let now = Instant::now();
        changed.set_hop(follow(2, Some(9)).hop, now);
        changed.see(super::super::follow::View::Asked, now);
        follows.put(id, changed);
        follows.on_neighbor((2, [10, 0, 0, 8].into()), now);
        assert_eq!(follows.take_outdated(), []);
        follows.on_neighbor((2, [10, 0, 0, 9].into()), now);
        assert_eq!(follows.take_outdated(), [(id, false), (other, false)]);
        assert_eq!((follows.deadline(), follows.due(now)), (Some(now), vec![id]));
        let mut changed = follows.take(id).expect("it is there");
        changed.on_asked(now, Duration::from_secs(3));
        follows.put(id, changed);
        assert_eq!(follows.due(now), []);
    }

    #[test]
    fn each_outdated_one_is_taken_once_in_bounded_steps() {
        let mut follows = Follows::default();
        for number in 0..600u32 {
            let [.., high, low] = number.to_be_bytes();
            let mut other = follow(2, None);
            other.destination = [10, 0, high, low].into();
            follows.add(other, ONE);
        }
        let now = Instant::now();
        follows.on_routes(now);
        follows.on_neighbor((2, [10, 0, 0, 9].into()), now);
        let steps: Vec<usize> = (0..4).map(|_| follows.take_outdated().len()).collect();
        assert_eq!(steps, [STEP, STEP, 600 - 2 * STEP, 0]);
        // However often routes change, each has its turn.
        let mut turns = BTreeMap::new();
        for _ in 0..9 {
            follows.on_routes(now);
            for (id, queries) in follows.take_outdated() {
                *turns.entry(id).or_insert(0) += 1;
                assert!(queries);
            }
        }
        assert!(turns.len() == 600 && turns.values().all(|turns| (3..=4).contains(turns)), "{turns:?}");
    }
}
