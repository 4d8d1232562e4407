//! Backlogs of listeners, and limits of users and of a host.

use std::net::SocketAddr;

use roced_cm::{
    CmConfig, PeerAddress,
    identifiers::{CmErrno, IdKey, IdService, Identifiers, OwnerId},
    wire::{CmMessage, CommId, Mad, PortSpace},
};
use roced_types::{AccountId, Qpn};

use crate::world::{CHANNEL, OWNER, PORT, SECOND, World};

#[test]
fn a_backlog_counts_requests_that_were_not_taken() {
    let mut world = World::new();
    world.listen(IdService::Reliable, 2);
    let active: Vec<IdKey> = (0..4).map(|_| world.routed(IdService::Reliable)).collect();
    for key in &active {
        world.connect(*key, b"");
    }
    world.settle();
    assert_eq!((world.events[1].len(), world.ids[1].connections().len()), (2, 2), "no state for more");
    world.run(SECOND / 2);
    assert_eq!(world.events[1].len(), 2, "the others repeat without an answer");
    world.events[1].pop_front();
    world.run(2 * SECOND);
    assert_eq!(world.events[1].len(), 2, "one taken, one more");
    world.events[1].clear();
    world.run(3 * SECOND);
    assert_eq!(world.events[1].len(), 1, "the last");
    world.end();
}

#[test]
fn requests_of_peers_count_against_the_user_that_listens() {
    let mut world = World::new();
    world.ids[1] = Identifiers::new(&CmConfig::new([2; 32], 10_000), 3);
    world.ids[1].add_owner(OWNER, AccountId(7));
    world.listen(IdService::Reliable, 0);
    let active: Vec<IdKey> = (0..5).map(|_| world.routed(IdService::Reliable)).collect();
    for key in &active {
        world.connect(*key, b"");
    }
    world.settle();
    assert_eq!((world.ids[1].len(), world.ids[1].connections().len()), (3, 2), "the listener and two requests");
    let refused = world.ids[1].create(OWNER, CHANNEL, 1, PortSpace::Tcp, IdService::Reliable);
    assert_eq!(refused, Err(CmErrno::NoMemory));
    let other = OwnerId(2);
    world.ids[1].add_owner(other, AccountId(8));
    let other = world.ids[1].create(other, CHANNEL, 1, PortSpace::Tcp, IdService::Reliable).expect("another user");
    world.destroy(1, other);
    world.end();
}

/// Requests count as connections of the user that listens, also after they were refused.
#[test]
fn refused_requests_of_a_user_take_no_places_of_others() {
    let mut world = World::new();
    world.ids[1] = Identifiers::new(&CmConfig::new([2; 32], 1 << 15), 1000);
    let owners = [(OWNER, AccountId(7)), (OwnerId(2), AccountId(8))];
    for (at, (owner, account)) in owners.into_iter().enumerate() {
        let (ids, host) = (&mut world.ids[1], &mut world.hosts[1]);
        ids.add_owner(owner, account);
        let key = ids.create(owner, CHANNEL, 1, PortSpace::Tcp, IdService::Reliable).expect("there is room");
        ids.bind(key, SocketAddr::from(([0, 0, 0, 0], PORT + at as u16)), host).expect("free");
        ids.listen(key, 0, host).expect("free");
    }
    let active = world.routed(IdService::Reliable);
    world.connect(active, b"");
    let transmit = world.ids[0].poll_transmit().expect("a REQ");
    let from = PeerAddress { local: transmit.to.remote, remote: transmit.to.local, ..transmit.to };
    let CmMessage::Req(req) = transmit.mad.message else { panic!("a REQ") };
    // Whether the request was a new one, which is refused.
    let mut refuse = |number: u32, port: u64| {
        let mut req = req;
        (req.local, req.qpn) = (CommId(number), Qpn::from_wire(16 + number));
        req.service_id.0 += port;
        let mad = Mad { message: CmMessage::Req(req), ..transmit.mad };
        let (ids, host) = (&mut world.ids[1], &mut world.hosts[1]);
        ids.on_datagram(from, &mad.to_bytes(), host, world.now);
        let request = ids.poll_event();
        if let Some(request) = request {
            ids.destroy(request.key, host, world.now).expect("it is there");
        }
        while ids.poll_transmit().is_some() {}
        request.is_some()
    };
    assert!(refuse(1, 0) && !refuse(1, 0), "a repetition is none");
    assert!((2..17_000).all(|number| refuse(number, 1)));
    assert!(!refuse(1, 0), "it is known still");
    assert!(refuse(2, 1), "the oldest of the other user is forgotten");
}

#[test]
fn other_limits_end_nothing_and_hold_from_then_on() {
    let mut world = World::new();
    let keys: Vec<IdKey> = (0..3).map(|_| world.create(1, IdService::Reliable)).collect();
    world.ids[1].set_limits(0, 2);
    let create = |world: &mut World| world.ids[1].create(OWNER, CHANNEL, 1, PortSpace::Tcp, IdService::Reliable);
    assert_eq!((create(&mut world), world.ids[1].len()), (Err(CmErrno::NoMemory), 3));
    world.ids[1].set_limits(0, 4);
    let more = create(&mut world).expect("one more");
    for key in keys.into_iter().chain([more]) {
        world.destroy(1, key);
    }
    world.listen(IdService::Reliable, 0);
    let active = world.routed(IdService::Reliable);
    world.connect(active, b"");
    world.run(SECOND / 2);
    assert_eq!(world.ids[1].connections().len(), 0, "no connection is permitted");
    world.ids[1].set_limits(1, 4);
    world.run(SECOND);
    assert_eq!(world.ids[1].connections().len(), 1, "the request comes again");
    world.end();
}
