//! Destinations that queue pairs send to, and how each is reached now.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    num::NonZeroU64,
    time::{Duration, Instant},
};

use roced_types::DeviceId;

use super::{
    gid::GidTableEntry,
    questions::{Asker, Place, Priority},
    route::Hop,
};

/// A followed destination. Followers of the same one from the same address share an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FollowId(NonZeroU64);

impl FollowId {
    /// The one before all others.
    pub const FIRST: Self = Self(NonZeroU64::MIN);
    /// The one after all others.
    pub const LAST: Self = Self(NonZeroU64::MAX);

    /// The id with this number, of which there are 2^64 - 1; 0 is [`Self::FIRST`].
    ///
    /// # Panics
    /// With the last one.
    pub const fn new(number: u64) -> Self {
        Self(NonZeroU64::MIN.checked_add(number).expect("fewer are ever followed"))
    }
}

impl Default for FollowId {
    fn default() -> Self {
        Self::FIRST
    }
}

/// How a destination is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextHop {
    /// It is a GID of this device of ours.
    Local(DeviceId),
    /// The neighbor is being asked for its MAC address, or is about to be.
    Resolving,
    /// By Ethernet.
    Reachable {
        /// MAC address of the next hop.
        mac: [u8; 6],
        /// VLAN that it is in.
        vlan: Option<u16>,
        /// MAC address to send from.
        source_mac: [u8; 6],
        /// MTU of the way, bytes.
        mtu_bytes: u32,
    },
    /// No route, link down, or a neighbor that does not answer. It is tried again.
    Unreachable,
}

/// The first pause before asking again a neighbor that does not answer; each later one is twice as
/// long.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// RoCE frames pass the kernel by, so it never learns from them that a neighbor still is there: it
/// is asked this often to make sure of one that is stale.
const CONFIRM_EVERY: Duration = Duration::from_secs(5);

/// Known route to a destination, without waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum View {
    /// The next hop, complete.
    Known(NextHop),
    /// There is a way, but the neighbor's MAC address is not known.
    Asked,
    /// There is a way, and the kernel has no answer from the neighbor.
    Silent,
    /// No route, or the link is down.
    NoWay,
}

/// Past of a neighbor, since the way leads by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NeighborPast {
    /// Its MAC address was never known.
    Unknown,
    /// Its MAC address was known, and it has not been given up since.
    Known,
    /// It has not answered in time.
    GivenUp,
}

/// One followed destination.
///
/// ```text
///              no way                     no way
///   Unreachable ◄──────────── Resolving ◄──────────── Reachable
///        │  ▲   silent, or too long │  ▲   no longer known    │
///        │  └───────────────────────┤  └──────────────────────┘
///        │ answer                   │ answer
///        └──────────► Reachable ◄───┘
/// ```
///
/// An abandoned destination stays unreachable, and is probed ever more rarely, until there is an
/// answer or another route.
#[derive(Debug)]
pub(super) struct Follow {
    pub(super) device: DeviceId,
    pub(super) source: GidTableEntry,
    pub(super) destination: IpAddr,
    /// Numbers of its followers: those that ask for its neighbor.
    pub(super) askers: BTreeMap<Asker, u32>,
    pub(super) hop: Option<Hop>,
    pub(super) next: NextHop,
    past: NeighborPast,
    /// The neighbor has been asked since it is being resolved.
    is_asked: bool,
    /// When "resolving" has lasted long enough.
    give_up_at: Option<Instant>,
    /// When the neighbor is to be asked.
    ask_at: Option<Instant>,
    asked_last: Option<Instant>,
    pause: Duration,
    /// The neighbor is asked for when this place in line has its turn.
    pub(super) place: Option<Place>,
}

impl Follow {
    pub(super) fn new(device: DeviceId, source: GidTableEntry, destination: IpAddr) -> Self {
        Self {
            device,
            source,
            destination,
            askers: BTreeMap::new(),
            hop: None,
            next: NextHop::Unreachable,
            past: NeighborPast::Unknown,
            is_asked: false,
            give_up_at: None,
            ask_at: None,
            asked_last: None,
            pause: PAUSE_MIN,
            place: None,
        }
    }

    /// The way leads by another hop now: whether an earlier one answered means nothing.
    pub(super) fn set_hop(&mut self, hop: Option<Hop>, now: Instant) {
        if self.hop == hop {
            return;
        }
        self.hop = hop;
        self.past = NeighborPast::Unknown;
        if self.next == NextHop::Resolving {
            self.is_asked = false;
            self.give_up_at = None;
            self.ask_at = Some(now);
        }
    }

    /// Evaluates the view; returns true if the next hop differs from the previous one.
    pub(super) fn see(&mut self, view: View, now: Instant) -> bool {
        let before = self.next;
        self.next = match view {
            View::Known(next) => next,
            View::NoWay => NextHop::Unreachable,
            // Believed only of a neighbor that was probed on our behalf; earlier findings of the
            // kernel may be outdated.
            View::Silent if before == NextHop::Resolving && self.is_asked => {
                self.past = NeighborPast::GivenUp;
                NextHop::Unreachable
            }
            View::Asked | View::Silent if self.past == NeighborPast::GivenUp => NextHop::Unreachable,
            View::Asked | View::Silent => NextHop::Resolving,
        };
        self.past = match (view, self.next, self.past) {
            (_, NextHop::Reachable { .. }, _) => NeighborPast::Known,
            (View::Known(_) | View::NoWay, _, NeighborPast::GivenUp) => NeighborPast::Unknown,
            (.., past) => past,
        };
        let changed = self.next != before;
        match self.next {
            NextHop::Resolving if changed => (self.is_asked, self.ask_at) = (false, Some(now)),
            NextHop::Resolving => {}
            NextHop::Reachable { .. } if changed => {
                (self.give_up_at, self.ask_at) = (None, Some(now + CONFIRM_EVERY));
            }
            NextHop::Reachable { .. } => {}
            NextHop::Unreachable if self.past == NeighborPast::GivenUp => {
                self.give_up_at = None;
                if changed {
                    self.pause_from(now);
                }
            }
            // No neighbor to probe: only a change of routes or links helps.
            NextHop::Unreachable | NextHop::Local(_) => (self.give_up_at, self.ask_at) = (None, None),
        }
        changed
    }

    /// Something has changed: a neighbor that was given up may answer now, and is asked soon.
    pub(super) fn hope(&mut self, now: Instant) {
        if self.past == NeighborPast::GivenUp {
            self.pause = PAUSE_MIN;
            // Events may come in swarms, questions must not.
            let soonest = self.asked_last.map_or(now, |last| now.max(last + PAUSE_MIN));
            self.ask_at = Some(self.ask_at.map_or(soonest, |at| at.min(soonest)));
        }
    }

    /// When [`Self::give_up`] wants to be called, or the neighbor to be asked.
    pub(super) fn deadline(&self) -> Option<Instant> {
        [self.give_up_at, self.ask_at.filter(|_| self.place.is_none())].into_iter().flatten().min()
    }

    /// Time has passed; true if "resolving" just became "unreachable".
    pub(super) fn give_up(&mut self, now: Instant) -> bool {
        let gives_up = self.give_up_at.is_some_and(|at| at <= now);
        if gives_up {
            (self.next, self.past, self.give_up_at) = (NextHop::Unreachable, NeighborPast::GivenUp, None);
            self.pause_from(now);
        }
        gives_up
    }

    /// The neighbor is to be asked now.
    pub(super) fn must_ask(&self, now: Instant) -> bool {
        self.place.is_none() && self.ask_at.is_some_and(|at| at <= now)
    }

    /// There is a neighbor of which the MAC address is not known.
    pub(super) fn lacks_neighbor(&self) -> bool {
        self.next == NextHop::Resolving || self.past == NeighborPast::GivenUp
    }

    /// Of the question for its neighbor.
    pub(super) const fn priority(&self) -> Priority {
        match self.past {
            NeighborPast::GivenUp => Priority::Again,
            NeighborPast::Known => Priority::Lost,
            NeighborPast::Unknown => Priority::New,
        }
    }

    /// The neighbor is asked now, and has `patience` to answer.
    pub(super) fn on_asked(&mut self, now: Instant, patience: Duration) {
        (self.asked_last, self.is_asked) = (Some(now), true);
        let pause = match self.next {
            NextHop::Reachable { .. } => CONFIRM_EVERY,
            NextHop::Resolving => {
                self.give_up_at.get_or_insert(now + patience);
                PAUSE_MIN
            }
            NextHop::Local(_) => PAUSE_MIN,
            NextHop::Unreachable => {
                let pause = self.pause;
                self.pause = (pause * 2).min(PAUSE_MAX);
                pause
            }
        };
        self.ask_at = Some(now + pause);
    }

    fn pause_from(&mut self, now: Instant) {
        self.pause = PAUSE_MIN;
        self.ask_at = Some(now + self.pause);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::RoceVersion;

    const NEIGHBOR_TIMEOUT: Duration = Duration::from_secs(3);

    /// A followed destination and a clock that only goes when told to.
    struct Bench {
        follow: Follow,
        now: Instant,
    }

    impl Bench {
        fn new() -> Self {
            let source = GidTableEntry {
                address: [10, 0, 0, 1].into(),
                ifindex: 2,
                vlan: None,
                prefix_len: 24,
                roce: RoceVersion::V2,
            };
            Self { follow: Follow::new(DeviceId(0), source, [10, 0, 0, 2].into()), now: Instant::now() }
        }

        fn see(&mut self, view: View) -> bool {
            self.follow.see(view, self.now)
        }

        /// Lets time pass; counts how often the neighbor was asked and whether it was given up.
        fn pass(&mut self, seconds: u64) -> (u32, bool) {
            let end = self.now + Duration::from_secs(seconds);
            let (mut asked, mut gave_up) = (0, false);
            while let Some(due) = self.follow.deadline().filter(|due| *due <= end) {
                self.now = self.now.max(due);
                gave_up |= self.follow.give_up(self.now);
                if self.follow.must_ask(self.now) {
                    self.follow.on_asked(self.now, NEIGHBOR_TIMEOUT);
                    asked += 1;
                }
            }
            self.now = end;
            (asked, gave_up)
        }
    }

    fn known(last: u8) -> View {
        View::Known(NextHop::Reachable { mac: [2, 0, 0, 0, 0, last], vlan: None, source_mac: [2; 6], mtu_bytes: 1500 })
    }

    fn hop(last: u8) -> Option<Hop> {
        Some(Hop { ifindex: 2, neighbor: [10, 0, 0, last].into(), mtu_bytes: None })
    }

    #[test]
    fn a_neighbor_that_does_not_answer_is_given_up_in_time_and_asked_again_ever_more_rarely() {
        let mut bench = Bench::new();
        assert!(bench.see(View::Asked));
        assert_eq!((bench.follow.next, bench.pass(0)), (NextHop::Resolving, (1, false)));
        assert_eq!(bench.pass(2), (2, false));
        assert_eq!(bench.pass(1), (0, true));
        assert_eq!(bench.follow.next, NextHop::Unreachable);
        assert!(!bench.see(View::Asked) && !bench.see(View::Silent), "asking goes on, hope does not");
        // After 1, 1, 2, 4, 8, 16, 30, 30, ... seconds.
        assert_eq!(bench.pass(62), (7, false));
        assert_eq!(bench.pass(600), (20, false));
        assert!(bench.see(known(1)));
    }

    #[test]
    fn the_kernel_giving_up_is_believed_of_a_neighbor_that_we_asked_for() {
        let mut bench = Bench::new();
        assert!(bench.see(View::Silent));
        assert_eq!(bench.follow.next, NextHop::Resolving, "that verdict is from before we asked");
        assert!(!bench.see(View::Silent), "so is this one");
        assert_eq!(bench.pass(0), (1, false));
        assert!(bench.see(View::Silent));
        assert_eq!(bench.follow.next, NextHop::Unreachable);
    }

    #[test]
    fn a_neighbor_that_stops_answering_is_asked_for_anew_at_once() {
        let mut bench = Bench::new();
        bench.see(known(1));
        assert_eq!(bench.pass(1), (0, false));
        assert!(bench.see(View::Silent));
        assert_eq!((bench.follow.next, bench.pass(0)), (NextHop::Resolving, (1, false)));
        assert!(bench.see(known(2)), "it has another MAC address now");
    }

    #[test]
    fn a_path_that_was_in_use_comes_before_new_ones_and_those_that_did_not_answer() {
        let mut bench = Bench::new();
        assert!(bench.see(View::Asked));
        assert_eq!(bench.follow.priority(), Priority::New);
        bench.see(known(1));
        bench.see(View::NoWay);
        bench.see(View::Asked);
        assert_eq!(bench.follow.priority(), Priority::Lost, "the link was down, and is up again");
        assert!(bench.pass(10).1);
        assert_eq!(bench.follow.priority(), Priority::Again);
        bench.see(View::NoWay);
        bench.see(View::Asked);
        assert_eq!(bench.follow.priority(), Priority::New, "it was not in use when the link went down");
    }

    #[test]
    fn a_reachable_neighbor_is_confirmed_now_and_then() {
        let mut bench = Bench::new();
        assert!(bench.see(known(1)));
        assert!(!bench.see(known(1)));
        assert_eq!(bench.pass(60), (12, false));
    }

    #[test]
    fn another_hop_is_asked_at_once_and_gets_all_of_the_patience() {
        let mut bench = Bench::new();
        bench.follow.set_hop(hop(2), bench.now);
        bench.see(View::Asked);
        bench.pass(2);
        bench.follow.set_hop(hop(3), bench.now);
        assert!(!bench.see(View::Asked));
        assert_eq!(bench.pass(2), (3, false));
        assert_eq!(bench.pass(1), (0, true));
        bench.follow.set_hop(hop(4), bench.now);
        assert!(bench.see(View::Asked), "that the other one was given up says nothing of this one");
        assert_eq!(bench.pass(0), (1, false));
    }

    #[test]
    fn without_a_route_no_neighbor_is_probed_and_with_one_at_once_again() {
        let mut bench = Bench::new();
        bench.see(known(1));
        assert!(bench.see(View::NoWay));
        assert_eq!((bench.follow.next, bench.pass(1000)), (NextHop::Unreachable, (0, false)));
        assert!(bench.see(View::Asked));
        assert_eq!((bench.follow.next, bench.pass(0)), (NextHop::Resolving, (1, false)));
    }

    #[test]
    fn a_swarm_of_changes_is_no_swarm_of_questions() {
        let mut bench = Bench::new();
        bench.see(View::Asked);
        bench.pass(40);
        let mut asked = 0;
        for _ in 0..1000 {
            bench.follow.hope(bench.now);
            bench.see(View::Asked);
            asked += bench.pass(0).0;
        }
        assert!(asked <= 1, "{asked}");
        bench.follow.hope(bench.now);
        assert_eq!(bench.pass(1).0, 1, "but it is asked soon");
    }
}
