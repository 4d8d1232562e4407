//! Tests of the routes of management datagrams.

use std::{io, net::IpAddr};

use roced_types::{DeviceId, WorkerId};

use super::*;
use crate::{
    environment::{DevicePort, WorkerAccess},
    net::{GidTableEntry, NoRoute, RoceVersion},
    worker::{
        command::{Answer, Command},
        mailbox::CallError,
    },
};

const GID: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1];

/// All hosts are neighbors, of which hosts 0 to 99 answer.
#[derive(Default)]
struct OneLink {
    unfollowed: usize,
    followed: Vec<Asker>,
}

fn answers(host: IpAddr) -> bool {
    matches!(host, IpAddr::V4(v4) if v4.to_bits() & 0xffff < 100)
}

impl crate::environment::Network for OneLink {
    fn port(&self, _: DeviceId) -> DevicePort {
        DevicePort {
            mac: [2, 0, 0, 0, 0, 1],
            link_up: true,
            link_mtu_bytes: 1500,
            speed_mbit_per_s: 10_000,
            gid_entries: 1,
            strips_vlan_tags: false,
            ecn: true,
        }
    }

    fn gid(&self, _: DeviceId, _: u32) -> Option<GidTableEntry> {
        let address = address_of(GID);
        Some(GidTableEntry { address, ifindex: 1, vlan: None, prefix_len: 8, roce: RoceVersion::V2 })
    }

    fn has_address(&self, address: IpAddr) -> bool {
        address == address_of(GID)
    }

    fn source_for(&mut self, _: IpAddr, _: u32) -> Option<IpAddr> {
        Some(address_of(GID))
    }

    fn follow(
        &mut self,
        _: DeviceId,
        _: GidTableEntry,
        to: IpAddr,
        asker: Asker,
    ) -> Result<(FollowId, NextHop), NoRoute> {
        self.followed.push(asker);
        let IpAddr::V4(v4) = to else { unreachable!("the hosts have IPv4 addresses") };
        let mac = [4; 6];
        let reachable = NextHop::Reachable { mac, vlan: None, source_mac: [2; 6], mtu_bytes: 1500 };
        Ok((FollowId::new(v4.to_bits().into()), if answers(to) { reachable } else { NextHop::Resolving }))
    }

    fn must_ask(&mut self, _: DeviceId, _: GidTableEntry, to: IpAddr) -> bool {
        !answers(to)
    }

    fn unfollow(&mut self, _: FollowId, asker: Asker) {
        self.unfollowed += 1;
        let at = self.followed.iter().position(|followed| *followed == asker).expect("it was followed so");
        self.followed.swap_remove(at);
    }

    fn join(&mut self, _: DeviceId, _: GidTableEntry, _: IpAddr) -> io::Result<()> {
        Ok(())
    }

    fn leave(&mut self, _: DeviceId, _: Option<u16>, _: IpAddr) {}
}

/// Sends all, and counts.
struct CountedSends(u32);

impl WorkerAccess for CountedSends {
    fn call(&mut self, _: WorkerId, _: Command) -> Result<Answer, CallError> {
        Err(CallError::Timeout)
    }

    fn send_mad(&mut self, _: WorkerId, _: OutgoingMad) -> bool {
        self.0 += 1;
        true
    }
}

/// A flood in the name of a peer does not become one to it, and takes nothing from others.
#[test]
fn answers_that_any_host_can_cause_are_bounded_for_each_peer() {
    let devices = [CmDevice { id: DeviceId(0), worker: WorkerId(0) }];
    let (mut routes, mut workers) = (MadRoutes::default(), CountedSends(0));
    let mut environment = Environment { workers: &mut workers, network: &mut OneLink::default() };
    let peer = |host| {
        let mut remote = GID;
        remote[15] = host;
        PeerAddress { device: DeviceId(0), vlan: None, local: GID, remote }
    };
    for _ in 0..100_000 {
        routes.send(peer(2), [0; MAD_BYTES], (true, true), &devices, &mut environment);
    }
    let dropped = routes.dropped;
    for _ in 0..1000 {
        routes.send(peer(3), [0; MAD_BYTES], (true, true), &devices, &mut environment);
        routes.send(peer(2), [0; MAD_BYTES], (false, true), &devices, &mut environment);
    }
    assert_eq!(routes.dropped, dropped, "another peer, and messages of connections");
    assert_eq!(u64::from(workers.0) + dropped, 102_000);
    // The machine may be slow: 4,000 more a second.
    assert!(dropped > 50_000, "{dropped}");
}

/// New routes in forged names, without end, keep none from a known peer.
#[test]
fn routes_for_unknown_peers_leave_known_peers_theirs() {
    let devices = [CmDevice { id: DeviceId(0), worker: WorkerId(0) }];
    let (mut routes, mut workers) = (MadRoutes::default(), CountedSends(0));
    let mut environment = Environment { workers: &mut workers, network: &mut OneLink::default() };
    let peer = |host: u16| {
        let mut remote = GID;
        remote[14..].copy_from_slice(&host.to_be_bytes());
        PeerAddress { device: DeviceId(0), vlan: None, local: GID, remote }
    };
    // Also those that a program answers: refusals, and queue pairs of datagram services.
    for (is_bounded, known) in [(true, 2), (false, 3)] {
        let names = 1000 * known..11_000 * known;
        for host in names {
            routes.send(peer(host), [0; MAD_BYTES], (is_bounded, false), &devices, &mut environment);
        }
        assert!(routes.dropped > 5000, "{}", routes.dropped);
        let dropped = routes.dropped;
        for is_bounded in [true, false] {
            routes.send(peer(known), [0; MAD_BYTES], (is_bounded, true), &devices, &mut environment);
        }
        assert_eq!(routes.dropped, dropped);
    }
}

/// The kernel has room for a thousand neighbors that do not answer, of all its programs.
#[test]
fn few_neighbors_are_asked_for_unknown_peers_at_a_time() {
    let devices = [CmDevice { id: DeviceId(0), worker: WorkerId(0) }];
    let (mut routes, mut workers) = (MadRoutes::default(), CountedSends(0));
    let mut network = OneLink::default();
    let mut environment = Environment { workers: &mut workers, network: &mut network };
    let peer = |host: u16| {
        let mut remote = GID;
        remote[14..].copy_from_slice(&host.to_be_bytes());
        PeerAddress { device: DeviceId(0), vlan: None, local: GID, remote }
    };
    let is_asked = |routes: &MadRoutes, host| routes.routes.contains_key(&peer(host));
    // The rates give as many within the seconds in which the kernel asks.
    let fast = Rate { at_once: 10_000, ..FOR_UNKNOWN };
    (routes.for_unknown, routes.for_answers) = (RateBudget::new(fast), RateBudget::new(fast));
    for (is_bounded, host) in (1000..3000).flat_map(|host| [(true, host), (false, 20_000 + host)]) {
        routes.send(peer(host), [0; MAD_BYTES], (is_bounded, false), &devices, &mut environment);
    }
    let asked = routes.resolving.values().sum::<usize>();
    assert_eq!(asked, 2 * ASKED_MAX);
    // A host that the kernel knows and a known peer need not wait.
    for (host, is_known) in [(60_000, false), (7, false), (60_001, true)] {
        routes.send(peer(host), [0; MAD_BYTES], (true, is_known), &devices, &mut environment);
    }
    assert_eq!([60_000, 7, 60_001].map(|host| is_asked(&routes, host)), [false, true, true]);
    // One that does not answer is not asked any more, and makes room for another one.
    let silent = peer(1000);
    let follow = routes.routes[&silent].follow;
    routes.on_next_hop(follow, NextHop::Unreachable, &devices, &mut environment);
    routes.send(peer(60_002), [0; MAD_BYTES], (true, false), &devices, &mut environment);
    assert_eq!((routes.routes.contains_key(&silent), is_asked(&routes, 60_002)), (false, true));
    assert_eq!(network.unfollowed, 1);
}

/// The line of the first one may be long.
#[test]
fn each_user_that_waits_for_a_neighbor_is_in_its_own_line() {
    let devices = [CmDevice { id: DeviceId(0), worker: WorkerId(0) }];
    let (mut routes, mut workers) = (MadRoutes::default(), CountedSends(0));
    let mut network = OneLink::default();
    let mut environment = Environment { workers: &mut workers, network: &mut network };
    let mut remote = GID;
    remote[14] = 10;
    let peer = PeerAddress { device: DeviceId(0), vlan: None, local: GID, remote };
    for account in [1, 2, 1, 2].map(AccountId) {
        assert!(!routes.is_reachable(peer, account, &mut environment));
        assert_eq!((routes.has(peer, account), routes.has(peer, AccountId(3))), (true, false));
    }
    routes.send(peer, [0; MAD_BYTES], (true, true), &devices, &mut environment);
    assert_eq!(routes.resolving.values().sum::<usize>(), 3, "it counts for each");
    let all = [1, 2].map(|account| Asker::Account(AccountId(account)));
    assert_eq!(network.followed, [all[0], all[1], Asker::KnownPeer]);
    let mut environment = Environment { workers: &mut workers, network: &mut network };
    // It stays while it waits for its turn, whether or not any program still waits for it.
    routes.drop_unused(Instant::now() + 10 * RESOLVING_KEPT, &mut environment);
    assert!(routes.has(peer, AccountId(1)));
    let follow = routes.routes[&peer].follow;
    routes.on_next_hop(follow, NextHop::Unreachable, &devices, &mut environment);
    assert!(routes.resolving.is_empty());
    assert_eq!(network.followed, all[..1], "the others wait no more");
    let mut environment = Environment { workers: &mut workers, network: &mut network };
    routes.drop_unused(Instant::now() + 20 * RESOLVING_KEPT, &mut environment);
    assert_eq!((routes.has(peer, AccountId(1)), network.followed), (false, Vec::new()));
}

/// Whichever of the two had the kernel asked first.
#[test]
fn a_route_outlives_the_purpose_that_it_was_made_for_and_no_user_that_has_left() {
    let devices = [CmDevice { id: DeviceId(0), worker: WorkerId(0) }];
    let (mut routes, mut workers) = (MadRoutes::default(), CountedSends(0));
    let mut network = OneLink::default();
    let mut environment = Environment { workers: &mut workers, network: &mut network };
    let peer = |host: u8| {
        let mut remote = GID;
        (remote[14], remote[15]) = (10, host);
        PeerAddress { device: DeviceId(0), vlan: None, local: GID, remote }
    };
    for host in [1, 2] {
        routes.send(peer(host), [0; MAD_BYTES], (true, false), &devices, &mut environment);
    }
    assert!(!routes.is_reachable(peer(1), AccountId(1), &mut environment));
    assert_eq!(routes.room_for(Asker::AnyHost), ASKED_MAX - 2);
    routes.drop_unused(Instant::now() + 2 * RESOLVING_KEPT, &mut environment);
    assert_eq!([1, 2].map(|host| routes.routes.contains_key(&peer(host))), [true, false]);
    assert_eq!((routes.room_for(Asker::AnyHost), routes.room_to_ask(AccountId(1))), (ASKED_MAX, ASKED_MAX - 1));

    assert!(
        !routes.is_reachable(peer(1), AccountId(2), &mut environment)
            && !routes.is_reachable(peer(3), AccountId(2), &mut environment)
    );
    routes.forget_account(AccountId(1), &mut environment);
    assert!(routes.has(peer(1), AccountId(2)) && routes.has(peer(3), AccountId(2)));
    assert_eq!((routes.room_to_ask(AccountId(1)), routes.room_to_ask(AccountId(2))), (ASKED_MAX, ASKED_MAX - 2));
    routes.forget_account(AccountId(2), &mut environment);
    assert_eq!(routes.routes.keys().collect::<Vec<_>>(), [&peer(1)], "a datagram waits for it");
    let follow = routes.routes[&peer(1)].follow;
    routes.on_next_hop(follow, NextHop::Unreachable, &devices, &mut environment);
    routes.drop_unused(Instant::now() + 9 * RESOLVING_KEPT, &mut environment);
    assert!(routes.routes.is_empty() && routes.resolving.is_empty() && network.followed.is_empty());
}

#[test]
fn a_user_joins_no_more_routes_than_it_may_have() {
    let devices = [CmDevice { id: DeviceId(0), worker: WorkerId(0) }];
    let (mut routes, mut workers) = (MadRoutes::default(), CountedSends(0));
    let mut network = OneLink::default();
    let mut environment = Environment { workers: &mut workers, network: &mut network };
    for host in 0..2 * ASKED_MAX as u8 {
        let mut remote = GID;
        (remote[14], remote[15]) = (10, host);
        let peer = PeerAddress { device: DeviceId(0), vlan: None, local: GID, remote };
        routes.send(peer, [0; MAD_BYTES], (true, true), &devices, &mut environment);
        assert!(!routes.is_reachable(peer, AccountId(1), &mut environment));
    }
    let of_user = Asker::Account(AccountId(1));
    assert_eq!((routes.room_to_ask(AccountId(1)), routes.resolving[&of_user]), (0, ASKED_MAX));
    assert_eq!(network.followed.iter().filter(|asker| **asker == of_user).count(), ASKED_MAX);
}

#[test]
fn routes_are_bounded_and_those_in_use_stay() {
    let devices = [CmDevice { id: DeviceId(0), worker: WorkerId(0) }];
    let (mut routes, mut workers) = (MadRoutes::default(), CountedSends(0));
    let mut network = OneLink::default();
    let mut environment = Environment { workers: &mut workers, network: &mut network };
    // 100 hosts of each of 256 networks, all of which answer.
    let peer = |number: u32| {
        let mut remote = GID;
        (remote[13], remote[15]) = ((number / 100) as u8, (number % 100) as u8);
        PeerAddress { device: DeviceId(0), vlan: None, local: GID, remote }
    };
    routes.lift_limits();
    for number in 0..ROUTES_MAX as u32 + 5000 {
        for peer in [peer(number), peer(7)] {
            routes.send(peer, [0; MAD_BYTES], (false, true), &devices, &mut environment);
        }
        assert!(routes.routes.len() <= ROUTES_MAX);
    }
    assert!(routes.routes.len() > ROUTES_MAX - FORGOTTEN_AT_ONCE);
    assert_eq!([7, 8, 4999].map(|number| routes.routes.contains_key(&peer(number))), [true, false, false]);
    assert_eq!((routes.dropped, network.followed.len()), (0, routes.routes.len()));
}
