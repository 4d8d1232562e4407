//! Requests of hosts that may not exist.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use roced_cm::{
    PeerAddress,
    identifiers::{EventKind, IdKey, IdService, Identifiers, OwnerId},
    wire::{
        Attribute, CaGuid, CmMessage, CmaAddress, CmaHeader, CommId, ConnectionPath, MAD_BYTES, Mad, PortSpace, Req,
        Rtu, ServiceId, TransactionId,
    },
};
use roced_types::{AccountId, DeviceId, Qpn, gid_of};

use crate::world::{CHANNEL, OWNER, PORT, SECOND, World, parameters};

/// Address of host 0 that may not exist.
pub(crate) const FIRST_HOST: u32 = 0x0b00_0001;

/// Of one listener, until a confirmation; and of one known peer.
const UNKNOWN_MAX: u32 = 128;
const PEER_MAX: u32 = 1024;

/// Requests of unknown peers may be as many as the backlog but for its last eighth, which known
/// peers have.
#[test]
fn known_peers_have_a_part_of_the_backlog_for_themselves() {
    let mut world = World::new();
    world.listen(IdService::Reliable, 16);
    let active: Vec<IdKey> = (0..20).map(|_| world.routed(IdService::Reliable)).collect();
    world.hosts[1].knows_peers = false;
    for key in &active {
        world.connect(*key, b"");
    }
    world.run(SECOND);
    assert_eq!(world.events[1].len(), 14);
    world.hosts[1].knows_peers = true;
    world.run(2 * SECOND);
    assert_eq!(world.events[1].len(), 16);
    world.end();
}

/// A program accepts all; the senders do not exist.
#[test]
fn unconfirmed_requests_of_unknown_peers_are_bounded_and_given_up_soon() {
    let mut world = World::new();
    world.ids[1] = Identifiers::new(&roced_cm::CmConfig::new([2; 32], 10_000), 5000);
    let listener = world.listen(IdService::Reliable, 0);
    world.hosts[1].knows_peers = false;
    let ask = |world: &mut World, number: u32| {
        let key = ask(world, request(number, number, world.hosts[1].address()), number);
        assert!(key.is_none_or(|(_, owner)| owner == listener));
        key
    };
    let accepted: Vec<_> = (0..2000).map_while(|number| ask(&mut world, number)).collect();
    assert_eq!(accepted.len(), UNKNOWN_MAX as usize);
    // One of them exists.
    let mut numbers = Vec::new();
    while let Some(transmit) = world.ids[1].poll_transmit() {
        if let CmMessage::Rep(rep) = transmit.mad.message {
            numbers.push((transmit.to, rep.local, rep.remote));
        }
    }
    let (first, local, remote) = numbers[0];
    let rtu = CmMessage::Rtu(Rtu { local: remote, remote: local, private_data: [0; 224] });
    let rtu = Mad { transaction: TransactionId(1), modifier: 0, message: rtu };
    world.ids[1].on_datagram(first, &rtu.to_bytes(), &mut world.hosts[1], world.now);
    assert_eq!(world.ids[1].poll_event().map(|event| event.kind), Some(EventKind::Established));
    assert!(ask(&mut world, 3000).is_some() && ask(&mut world, 3001).is_none(), "there was room for one");
    // A known peer has room all the same.
    world.hosts[1].knows_peers = true;
    assert!(ask(&mut world, 3002).is_some());
    // Those that came when there were many are given up soon: their peer has a minute else.
    world.now += 5 * SECOND;
    world.ids[1].on_timeout(&mut world.hosts[1], world.now);
    let ended: Vec<_> = std::iter::from_fn(|| world.ids[1].poll_event()).collect();
    assert!(ended.iter().all(|event| event.kind == EventKind::Unreachable));
    assert_eq!(ended.len(), UNKNOWN_MAX as usize / 2, "the later half");
    while world.ids[1].poll_transmit().is_some() {}
    for key in world.ids[1].of_channel(OWNER, CHANNEL).collect::<Vec<_>>() {
        world.destroy(1, key);
    }
    while world.ids[1].poll_transmit().is_some() {}
    assert!(world.ids[1].is_empty());
}

/// Hosts that come and go can have it forgotten, but for its connection.
#[test]
fn a_peer_with_a_connection_is_known() {
    for is_disconnected in [false, true] {
        let mut world = World::new();
        let listener = world.listen(IdService::Reliable, 0);
        let (active, passive) = world.connected();
        world.hosts[1].knows_peers = false;
        let to = world.hosts[1].address();
        let accepted = (0..200).take_while(|number| ask(&mut world, request(*number, *number, to), *number).is_some());
        assert_eq!(accepted.count(), UNKNOWN_MAX as usize);
        while world.ids[1].poll_transmit().is_some() {}
        if is_disconnected {
            world.ids[0].disconnect(active, world.now).expect("it is connected");
            world.settle();
            world.ids[1].disconnect(passive, world.now).expect("it was disconnected");
            world.settle();
        }
        world.events.iter_mut().for_each(|events| events.clear());
        let again = world.routed(IdService::Reliable);
        world.connect(again, b"");
        world.settle();
        assert_eq!(world.events[1].len(), usize::from(!is_disconnected));
        assert!(world.events[1].iter().all(|event| event.owner == listener));
    }
}

/// A host that is known opens connections without end, and confirms none.
#[test]
fn unconfirmed_requests_of_a_known_peer_are_bounded() {
    let mut world = World::new();
    world.ids[1] = Identifiers::new(&roced_cm::CmConfig::new([2; 32], 10_000), 5000);
    world.listen(IdService::Reliable, 0);
    let to = world.hosts[1].address();
    let accepted = (0..2000).take_while(|number| ask(&mut world, request(7, *number, to), *number).is_some()).count();
    assert_eq!(accepted, PEER_MAX as usize);
    assert_eq!(world.ids[1].counters().no_room, 1, "the one beyond is dropped");
    assert!(ask(&mut world, request(8, 3000, to), 3000).is_some(), "another peer");
}

/// A listener of which the program takes nothing, and another one.
#[test]
fn requests_that_a_program_does_not_take_keep_their_peer_from_no_other_listener() {
    for is_known in [true, false] {
        let mut world = World::new();
        world.ids[1] = Identifiers::new(&roced_cm::CmConfig::new([2; 32], 10_000), 5000);
        world.listen(IdService::Reliable, 0);
        let other = listen_too(&mut world, OWNER);
        (world.hosts[1].knows_peers, world.hosts[1].untaken) = (is_known, 2000);
        let to = world.hosts[1].address();
        for number in 0..2000 {
            let (from, mad) = request(7, number, to);
            world.ids[1].on_datagram(from, &mad.to_bytes(), &mut world.hosts[1], world.now);
        }
        let waiting = std::iter::from_fn(|| world.ids[1].poll_event()).count();
        assert_eq!(waiting, if is_known { PEER_MAX as usize } else { 64 });
        world.hosts[1].untaken = 0;
        let asked = ask(&mut world, of_other(request(7, 3000, to)), 3000);
        assert_eq!(asked.map(|(_, listener)| listener), Some(other), "{is_known}");
    }
}

/// Programs of one user at both hosts make requests and confirm none.
#[test]
fn unconfirmed_requests_for_a_user_keep_their_peer_from_no_other_user() {
    let mut world = World::new();
    world.ids[1] = Identifiers::new(&roced_cm::CmConfig::new([2; 32], 10_000), 5000);
    world.listen(IdService::Reliable, 0);
    world.ids[1].add_owner(OwnerId(2), AccountId(2000));
    let other = listen_too(&mut world, OwnerId(2));
    let to = world.hosts[1].address();
    let accepted = (0..2000).take_while(|number| ask(&mut world, request(7, *number, to), *number).is_some()).count();
    assert_eq!(accepted, PEER_MAX as usize);
    let asked = ask(&mut world, of_other(request(7, 3000, to)), 3000);
    assert_eq!(asked.map(|(_, listener)| listener), Some(other));
}

/// A listener at the next port.
fn listen_too(world: &mut World, owner: OwnerId) -> IdKey {
    let ids = &mut world.ids[1];
    let key = ids.create(owner, CHANNEL + 1, 200, PortSpace::Tcp, IdService::Reliable).expect("there is room");
    ids.bind(key, SocketAddr::from(([0, 0, 0, 0], PORT + 1)), &mut world.hosts[1]).expect("free");
    ids.listen(key, 0, &mut world.hosts[1]).expect("free");
    key
}

/// A request for that.
fn of_other((from, mad): (PeerAddress, Mad)) -> (PeerAddress, Mad) {
    let CmMessage::Req(req) = mad.message else { panic!("a REQ") };
    let req = Req { service_id: ServiceId::of(PortSpace::Tcp, PORT + 1), ..req };
    (from, Mad { message: CmMessage::Req(req), ..mad })
}

#[test]
fn a_request_beyond_the_identifiers_of_a_user_is_dropped_and_counted() {
    let mut world = World::new();
    world.ids[1] = Identifiers::new(&roced_cm::CmConfig::new([2; 32], 10_000), 3);
    world.listen(IdService::Reliable, 0);
    let to = world.hosts[1].address();
    let accepted = (0..10).filter(|number| ask(&mut world, request(7, *number, to), *number).is_some()).count();
    assert_eq!((accepted, world.ids[1].counters().no_room), (2, 8));
}

/// A request that the program accepts at once: its identifier and listener.
fn ask(world: &mut World, (from, mad): (PeerAddress, Mad), number: u32) -> Option<(IdKey, IdKey)> {
    world.ids[1].on_datagram(from, &mad.to_bytes(), &mut world.hosts[1], world.now);
    let event = world.ids[1].poll_event()?;
    assert_eq!(event.kind, EventKind::ConnectRequest);
    world.ids[1].accept(event.key, 1 + u64::from(number), &parameters(20 + number), b"", world.now).ok()?;
    Some((event.key, event.owner))
}

/// A REQ of a host.
pub(crate) fn request(host: u32, number: u32, to: IpAddr) -> (PeerAddress, Mad) {
    let source = Ipv4Addr::from(FIRST_HOST + host);
    let IpAddr::V4(destination) = to else { panic!("the hosts have IPv4 addresses") };
    let gids = [IpAddr::V4(source), to].map(gid_of);
    let addresses = CmaAddress::Ipv4([source.octets(), destination.octets()]);
    let mut private_data = [0; 92];
    private_data[..CmaHeader::BYTES].copy_from_slice(&CmaHeader { source_port: 1, addresses }.to_bytes());
    let mut zeros = [0; MAD_BYTES];
    zeros[..4].copy_from_slice(&[1, 7, 2, 3]);
    zeros[17] = Attribute::Req.number() as u8;
    let CmMessage::Req(req) = Mad::from_bytes(&zeros).expect("the header is right").message else { panic!("a REQ") };
    let req = Req {
        local: CommId(1 + number),
        service_id: ServiceId::of(PortSpace::Tcp, PORT),
        local_ca: CaGuid(u64::from(number) + 1),
        qpn: Qpn::from_wire(100 + number),
        path_mtu: 3,
        local_response_timeout: 20,
        max_cm_retries: 15,
        primary: ConnectionPath { local_gid: gids[0], remote_gid: gids[1], ack_timeout: 10, ..req.primary },
        private_data,
        ..req
    };
    let from = PeerAddress { device: DeviceId(0), vlan: None, local: gids[1], remote: gids[0] };
    (from, Mad { transaction: TransactionId(number.into()), modifier: 0, message: CmMessage::Req(req) })
}
