//! Routes of management datagrams to peers.
//!
//! Each follows the kernel's route and neighbor. It is kept while datagrams go there, and a few
//! datagrams wait while the neighbor is asked. An unknown peer can make this host ask for as many
//! neighbors as there are addresses, so routes for answers come at a bounded rate, and of each
//! purpose as many are being resolved as the network asks for at a time: the others are not made,
//! and do not wait in its line. A neighbor that the kernel knows need not be asked: a host that
//! exists has mostly asked for this one.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::{Duration, Instant},
};

use roced_cm::{PeerAddress, wire::MAD_BYTES};
use roced_transport::{
    io::Egress,
    wire::{
        Roce,
        path::{Path, PathSpec, Vlan, udp_source_port},
    },
};
use roced_types::{AccountId, Qpn, address_of};

use super::{
    CmDevice,
    host::entry_of,
    rate::{Rate, RateBudget},
    unsent::UnsentMads,
};
use crate::{
    environment::Environment,
    net::{ASKED_MAX, Asker, FollowId, NextHop},
    worker::sent_mads::OutgoingMad,
};

/// Datagrams that wait for a neighbor.
const WAITING_MAX: usize = 64;

/// Unused routes are forgotten after this time.
const UNUSED_MAX: Duration = Duration::from_secs(30);

/// A neighbor that does not answer is forgotten after this time.
const RESOLVING_KEPT: Duration = Duration::from_secs(5);

/// Routes beyond which those are forgotten that were used the longest ago: some 10 MiB with their
/// followed destinations. Known peers are a quarter as many; beyond that a route is kept by any
/// host that has itself answered every half minute, in the name of any address behind a gateway.
const ROUTES_MAX: usize = 1 << 14;

/// So many of them are forgotten at once: to find them is to look at all.
const FORGOTTEN_AT_ONCE: usize = ROUTES_MAX / 32;

/// Any host can name the peer of such routes.
const fn is_of_unknown_peer(purpose: Asker) -> bool {
    matches!(purpose, Asker::AnyHost | Asker::AnsweredUnknown)
}

/// New routes for unknown peers at once, and how soon another one.
const FOR_UNKNOWN: Rate = Rate { at_once: 256, every: Duration::from_millis(5) };

/// New routes for answers of programs to unknown peers, and the same to known peers: a thousand
/// hosts that start at one moment. How many unknown peers have a connection, listeners look after;
/// of those that a program refuses, or tells the queue pair of a datagram service, there may be any
/// number.
const FOR_ANSWERS: Rate = Rate { at_once: 1024, every: Duration::from_millis(2) };

/// Answers to one peer about connections that are not its, and to messages that came again. A flood
/// of datagrams in the name of a peer would otherwise become a flood of answers to it; they are
/// repeated by a peer that means them.
const TO_ANY_HOST: Rate = Rate { at_once: 1024, every: Duration::from_micros(250) };

const HOP_LIMIT: u8 = 64;

#[derive(Debug)]
struct MadRoute {
    follow: FollowId,
    next: NextHop,
    purpose: Asker,
    /// Others that wait for the neighbor as well, each in its own line; none once it is resolved.
    joined: BTreeSet<Asker>,
    to_any_host: RateBudget,
    waiting: VecDeque<[u8; MAD_BYTES]>,
    used: Instant,
}

/// Routes to peers.
#[derive(Debug)]
pub(super) struct MadRoutes {
    routes: BTreeMap<PeerAddress, MadRoute>,
    by_follow: BTreeMap<FollowId, Vec<PeerAddress>>,
    /// Routes of each kind, and those that it has joined, with a neighbor that is being asked.
    resolving: BTreeMap<Asker, usize>,
    unsent: UnsentMads,
    for_unknown: RateBudget,
    for_answers: RateBudget,
    for_known: RateBudget,
    /// The rates do not count.
    has_no_limits: bool,
    /// When unused routes were looked for.
    looked: Instant,
    /// Datagrams that were not sent: no route, or too many that wait.
    pub(super) dropped: u64,
}

impl Default for MadRoutes {
    fn default() -> Self {
        Self {
            routes: BTreeMap::new(),
            by_follow: BTreeMap::new(),
            resolving: BTreeMap::new(),
            unsent: UnsentMads::default(),
            for_unknown: RateBudget::new(FOR_UNKNOWN),
            for_answers: RateBudget::new(FOR_ANSWERS),
            for_known: RateBudget::new(FOR_ANSWERS),
            has_no_limits: false,
            looked: Instant::now(),
            dropped: 0,
        }
    }
}

impl MadRoutes {
    /// Neighbors that may be asked for a user now.
    pub(super) fn room_to_ask(&self, account: AccountId) -> usize {
        self.room_for(Asker::Account(account))
    }

    fn room_for(&self, purpose: Asker) -> usize {
        // Those to known peers have a rate, and wait for their turn.
        let most = if purpose == Asker::KnownPeer { usize::MAX } else { ASKED_MAX };
        most.saturating_sub(self.resolving.get(&purpose).map_or(0, |count| *count))
    }

    /// Counts a route that is being resolved from now on, or no longer.
    fn count_resolving(&mut self, purpose: Asker, before: bool, now: bool) {
        if before == now {
            return;
        }
        let count = self.resolving.entry(purpose).or_insert(0);
        *count = if now { *count + 1 } else { *count - 1 };
        if *count == 0 {
            self.resolving.remove(&purpose);
        }
    }

    /// Whether datagrams can be sent to a peer now; if not, its neighbor is asked from now on,
    /// unless the user has asked for many others.
    pub(super) fn is_reachable(
        &mut self,
        peer: PeerAddress,
        account: AccountId,
        environment: &mut Environment<'_>,
    ) -> bool {
        if !self.has(peer, account) && self.room_to_ask(account) == 0 {
            return false;
        }
        let next = self.route(peer, Asker::Account(account), environment).map(|route| route.next);
        matches!(next, Some(NextHop::Reachable { .. } | NextHop::Local(_)))
    }

    fn route(&mut self, peer: PeerAddress, purpose: Asker, environment: &mut Environment<'_>) -> Option<&mut MadRoute> {
        let now = Instant::now();
        if !self.routes.contains_key(&peer) {
            if self.routes.len() >= ROUTES_MAX {
                self.forget_oldest(environment);
            }
            let (follow, next) = follow(&peer, purpose, environment)?;
            self.by_follow.entry(follow).or_default().push(peer);
            self.count_resolving(purpose, false, next == NextHop::Resolving);
            self.routes.insert(
                peer,
                MadRoute {
                    follow,
                    next,
                    purpose,
                    joined: BTreeSet::new(),
                    to_any_host: RateBudget::new(TO_ANY_HOST),
                    waiting: VecDeque::new(),
                    used: now,
                },
            );
        }
        let has_room = self.room_for(purpose) > 0;
        let route = self.routes.get_mut(&peer)?;
        route.used = now;
        let is_another = purpose != route.purpose && !route.joined.contains(&purpose);
        if route.next == NextHop::Resolving && is_another && has_room {
            // The line of the other purpose may be long.
            match follow(&peer, purpose, environment) {
                Some((follow, _)) if follow == route.follow => {
                    route.joined.insert(purpose);
                    self.count_resolving(purpose, false, true);
                }
                Some((follow, _)) => environment.network.unfollow(follow, purpose),
                None => {}
            }
        }
        self.routes.get_mut(&peer)
    }

    /// Nothing of its purpose waits for a route that is being resolved: another that waits for it
    /// has it from now on. False if there is none.
    fn pass_on(&mut self, peer: &PeerAddress, environment: &mut Environment<'_>) -> bool {
        let Some(route) = self.routes.get_mut(peer) else { return false };
        let Some(heir) = route.joined.pop_first() else { return false };
        let (follow, purpose) = (route.follow, std::mem::replace(&mut route.purpose, heir));
        self.count_resolving(purpose, true, false);
        environment.network.unfollow(follow, purpose);
        true
    }

    /// The last program of a user has left: nothing of it waits for neighbors.
    pub(super) fn forget_account(&mut self, account: AccountId, environment: &mut Environment<'_>) {
        let asker = Asker::Account(account);
        let waits = |route: &MadRoute| route.purpose == asker || route.joined.contains(&asker);
        let resolving = self.routes.iter().filter(|(_, route)| route.next == NextHop::Resolving && waits(route));
        for peer in resolving.map(|(peer, _)| *peer).collect::<Vec<_>>() {
            let Some(route) = self.routes.get_mut(&peer) else { continue };
            if route.joined.remove(&asker) {
                let follow = route.follow;
                self.count_resolving(asker, true, false);
                environment.network.unfollow(follow, asker);
            } else if !self.pass_on(&peer, environment) && self.routes[&peer].waiting.is_empty() {
                self.remove(&peer, environment);
            }
        }
    }

    /// Whether there may be a new route for an answer now.
    fn may_have_route(&mut self, peer: &PeerAddress, purpose: Asker, environment: &mut Environment<'_>) -> bool {
        let rate = match purpose {
            Asker::AnyHost => &mut self.for_unknown,
            Asker::AnsweredUnknown => &mut self.for_answers,
            Asker::KnownPeer | Asker::Account(_) => &mut self.for_known,
        };
        if !rate.take(Instant::now()) {
            return false;
        }
        let must_ask = |environment: &mut Environment<'_>| {
            let source = entry_of(environment.network, peer);
            source.is_some_and(|it| environment.network.must_ask(peer.device, it, address_of(peer.remote)))
        };
        self.room_for(purpose) > 0 || !must_ask(environment)
    }

    /// New routes are no longer bounded by a rate.
    pub(super) fn lift_limits(&mut self) {
        self.has_no_limits = true;
    }

    /// There is a route to the peer; if its neighbor is being asked, for this user as well.
    pub(super) fn has(&self, peer: PeerAddress, account: AccountId) -> bool {
        let asker = Asker::Account(account);
        let is_of_user = |route: &MadRoute| route.purpose == asker || route.joined.contains(&asker);
        self.routes.get(&peer).is_some_and(|route| route.next != NextHop::Resolving || is_of_user(route))
    }

    /// Sends a datagram, now or when the neighbor has answered. A new route counts against the rate
    /// of those for known peers, or of one of those for unknown peers. `is_bounded`: any host can
    /// cause it in the name of the peer, which may be known not to be forged.
    pub(super) fn send(
        &mut self,
        peer: PeerAddress,
        bytes: [u8; MAD_BYTES],
        (is_bounded, is_known): (bool, bool),
        devices: &[CmDevice],
        environment: &mut Environment<'_>,
    ) {
        let has_limits = !self.has_no_limits;
        let purpose = match (is_known, is_bounded) {
            (true, _) => Asker::KnownPeer,
            (false, true) => Asker::AnyHost,
            (false, false) => Asker::AnsweredUnknown,
        };
        if has_limits && !self.routes.contains_key(&peer) && !self.may_have_route(&peer, purpose, environment) {
            self.dropped += 1;
            return;
        }
        let Some(route) = self.route(peer, purpose, environment) else {
            self.dropped += 1;
            return;
        };
        if is_bounded && has_limits && !route.to_any_host.take(Instant::now()) {
            self.dropped += 1;
            return;
        }
        match route.next {
            NextHop::Resolving if route.waiting.len() < WAITING_MAX => route.waiting.push_back(bytes),
            NextHop::Reachable { .. } => {
                let next = route.next;
                self.dropped += u64::from(!emit(&peer, next, bytes, devices, &mut self.unsent, environment));
            }
            NextHop::Resolving | NextHop::Unreachable | NextHop::Local(_) => self.dropped += 1,
        }
    }

    /// A followed destination is reached by another route: datagrams that waited are sent, or
    /// dropped if nothing leads there. Returns the peers that are reached now.
    pub(super) fn on_next_hop(
        &mut self,
        follow: FollowId,
        next: NextHop,
        devices: &[CmDevice],
        environment: &mut Environment<'_>,
    ) -> Vec<PeerAddress> {
        let peers = self.by_follow.get(&follow).cloned().unwrap_or_default();
        for peer in &peers {
            let Some(route) = self.routes.get_mut(peer) else { continue };
            let (purpose, before) = (route.purpose, std::mem::replace(&mut route.next, next));
            self.count_resolving(purpose, before == NextHop::Resolving, next == NextHop::Resolving);
            let Some(route) = self.routes.get_mut(peer) else { continue };
            if next != NextHop::Resolving {
                let joined = std::mem::take(&mut route.joined);
                self.leave(joined, follow, environment);
                let Some(route) = self.routes.get_mut(peer) else { continue };
                for bytes in route.waiting.drain(..) {
                    self.dropped += u64::from(!emit(peer, next, bytes, devices, &mut self.unsent, environment));
                }
            }
            // A followed one is asked again and again. Of hosts that do not exist there may be as
            // many as there are addresses, and a datagram now and then kept each of them.
            if next == NextHop::Unreachable && is_of_unknown_peer(purpose) {
                self.remove(peer, environment);
            }
        }
        if matches!(next, NextHop::Reachable { .. } | NextHop::Local(_)) { peers } else { Vec::new() }
    }

    /// When [`Self::on_deadline`] wants to be called.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let of_routes = (!self.routes.is_empty()).then_some(self.looked + RESOLVING_KEPT);
        of_routes.into_iter().chain(self.unsent.deadline()).min()
    }

    /// Sends datagrams that found no room before, and forgets the routes that were not used for
    /// long.
    pub(super) fn on_deadline(&mut self, now: Instant, environment: &mut Environment<'_>) {
        self.unsent.send_waiting(now, &mut *environment.workers);
        self.drop_unused(now, environment);
    }

    fn drop_unused(&mut self, now: Instant, environment: &mut Environment<'_>) {
        if self.looked + RESOLVING_KEPT > now {
            return;
        }
        self.looked = now;
        // A user may wait for the neighbor of another purpose's route.
        let heirs = |route: &MadRoute| matches!(route.joined.first(), Some(Asker::Account(_)));
        let is_unused = |route: &MadRoute| {
            // Unknown peers can name as many hosts that do not exist as there are addresses. Of a
            // user few are being resolved, which keep their places in line.
            let kept = match (route.next, route.purpose) {
                (NextHop::Resolving, Asker::Account(_)) => return false,
                (NextHop::Resolving | NextHop::Unreachable, _) => RESOLVING_KEPT,
                (NextHop::Reachable { .. } | NextHop::Local(_), _) => UNUSED_MAX,
            };
            route.used + kept <= now
        };
        let unused: Vec<(PeerAddress, bool)> = self
            .routes
            .iter()
            .filter(|(_, route)| is_unused(route))
            .map(|(peer, route)| (*peer, heirs(route)))
            .collect();
        for (peer, has_heir) in unused {
            if !has_heir || !self.pass_on(&peer, environment) {
                self.remove(&peer, environment);
            }
        }
    }

    /// Makes room for other routes. Those that are being resolved have bounds of their own, and
    /// stay.
    fn forget_oldest(&mut self, environment: &mut Environment<'_>) {
        let resolved = self.routes.iter().filter(|(_, route)| route.next != NextHop::Resolving);
        let mut by_use: Vec<_> = resolved.map(|(peer, route)| (route.used, *peer)).collect();
        by_use.sort_unstable();
        for (_, peer) in by_use.into_iter().take(FORGOTTEN_AT_ONCE) {
            self.remove(&peer, environment);
        }
    }

    /// These no longer wait for the neighbor of a route.
    fn leave(&mut self, joined: BTreeSet<Asker>, follow: FollowId, environment: &mut Environment<'_>) {
        for asker in joined {
            self.count_resolving(asker, true, false);
            environment.network.unfollow(follow, asker);
        }
    }

    fn remove(&mut self, peer: &PeerAddress, environment: &mut Environment<'_>) {
        let Some(route) = self.routes.remove(peer) else { return };
        self.count_resolving(route.purpose, route.next == NextHop::Resolving, false);
        self.dropped += route.waiting.len() as u64;
        self.leave(route.joined, route.follow, environment);
        environment.network.unfollow(route.follow, route.purpose);
        if let Some(peers) = self.by_follow.get_mut(&route.follow) {
            peers.retain(|other| other != peer);
            if peers.is_empty() {
                self.by_follow.remove(&route.follow);
            }
        }
    }
}

/// Follows the route to a peer. `None` without one.
fn follow(peer: &PeerAddress, asker: Asker, environment: &mut Environment<'_>) -> Option<(FollowId, NextHop)> {
    let source = entry_of(environment.network, peer)?;
    environment.network.follow(peer.device, source, address_of(peer.remote), asker).ok()
}

/// Gives a datagram to a worker, now or when that has room; false if too many wait.
fn emit(
    peer: &PeerAddress,
    next: NextHop,
    bytes: [u8; MAD_BYTES],
    devices: &[CmDevice],
    unsent: &mut UnsentMads,
    environment: &mut Environment<'_>,
) -> bool {
    let NextHop::Reachable { mac, vlan, source_mac, mtu_bytes: _ } = next else { return false };
    let Some(device) = devices.iter().find(|device| device.id == peer.device) else { return false };
    let port = environment.network.port(peer.device);
    let spec = PathSpec {
        via: Egress::Nic { flow: 0 },
        source_mac,
        dest_mac: mac,
        vlan: vlan.map(|id| Vlan { id, priority: 0, rx_stripped: port.strips_vlan_tags }),
        source: peer.local,
        destination: peer.remote,
        traffic_class: 0,
        hop_limit: HOP_LIMIT,
        flow_label: 0,
        roce: Roce::V2 { udp_source_port: udp_source_port(0, Qpn::GSI, Qpn::GSI) },
    };
    let Ok(path) = Path::new(&spec) else { return false };
    unsent.send(device.worker, OutgoingMad { device: peer.device, path, bytes }, &mut *environment.workers)
}

#[cfg(test)]
mod tests;
