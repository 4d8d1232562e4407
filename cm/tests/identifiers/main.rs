//! Identifiers of programs on two hosts, over a network that loses datagrams by seed: the events,
//! errors and ports that programs see.

mod crowd;
mod fake_host;
mod limits;
mod refusals;
mod unconfirmed;
mod world;

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr, SocketAddrV6},
    time::{Duration, Instant},
};

use roced_cm::{
    CmConfig, PeerAddress,
    identifiers::{CmErrno, EventKind, IdKey, IdOption, IdService, Identifiers, OwnerId},
    wire::{CaGuid, CmMessage, Mad, PortSpace},
};
use roced_types::{AccountId, DeviceId, Qpn, gid_of};

use crate::world::{OWNER, PORT, SECOND, World, parameters};

#[test]
fn events_and_parameters_of_a_connection_are_those_of_linux() {
    let mut world = World::new();
    let listener = world.listen(IdService::Reliable, 0);
    let active = world.routed(IdService::Reliable);
    let route = world.ids[0].route(active).expect("it is there");
    assert_eq!(route.source.map(|it| it.ip()), Some(world.hosts[0].address()));
    assert_eq!(route.path.map(|path| path.mtu_bytes), Some(1024));
    world.connect(active, b"hello");
    let request = world.next(1);
    assert_eq!((request.kind, request.owner, request.status), (EventKind::ConnectRequest, listener, 0));
    assert_eq!((request.private_data_bytes, &request.private_data[..6]), (56, &b"hello\0"[..]));
    let seen = request.parameters;
    assert_eq!((seen.responder_resources, seen.initiator_depth), (5, 3), "as this end uses them");
    assert_eq!((seen.retry_count, seen.rnr_retry_count, seen.qpn.get()), (6, 7, active.number + 16));
    assert_eq!(request.route.destination, route.source, "with the port of the active side");
    let passive = request.key;
    world.ids[1].accept(passive, 555, &parameters(77), b"welcome", world.now).expect("it was requested");
    let response = world.next(0);
    assert_eq!((response.kind, response.parameters.qpn.get()), (EventKind::ConnectResponse, 77));
    assert_eq!((response.private_data_bytes, &response.private_data[..8]), (196, &b"welcome\0"[..]));
    assert_eq!(
        (response.starting_psn, response.remote_starting_psn),
        (request.remote_starting_psn, request.starting_psn)
    );
    assert_eq!((request.ack_timeout, response.ack_timeout), (17, 17));
    world.ids[0].confirm(active, world.now).expect("it was accepted");
    assert_eq!(world.next(1).kind, EventKind::Established);
    world.ids[1].disconnect(passive, world.now).expect("it is connected");
    assert_eq!(world.next(0).kind, EventKind::Disconnected);
    world.ids[0].disconnect(active, world.now).expect("the peer has");
    world.ids[0].disconnect(active, world.now).expect("twice is once");
    world.run(3 * SECOND);
    assert_eq!([world.next(1).kind, world.next(1).kind], [EventKind::Disconnected, EventKind::TimeWaitExit]);
    assert_eq!(world.next(0).kind, EventKind::TimeWaitExit);
    world.nothing(0);
    world.nothing(1);
    world.end();
}

/// A peer finds connections by it: without one, all hosts are the same.
#[test]
fn requests_and_replies_name_their_adapter() {
    let mut world = World::new();
    world.listen(IdService::Reliable, 0);
    world.drops = |_, mad| {
        match &mad.message {
            CmMessage::Req(req) => assert_eq!(req.local_ca, CaGuid(1)),
            CmMessage::Rep(rep) => assert_eq!(rep.local_ca, CaGuid(2)),
            _ => {}
        }
        false
    };
    world.connected();
    assert!(world.sent >= 3);
    world.end();
}

#[test]
fn datagram_services_are_found_and_refused() {
    let mut world = World::new();
    let listener = world.listen(IdService::Datagram, 4);
    for accepts in [true, false] {
        let active = world.routed(IdService::Datagram);
        world.connect(active, &[7; 180]);
        let request = world.next(1);
        assert_eq!((request.owner, request.private_data_bytes), (listener, 180));
        assert_eq!(request.private_data[..180], [7; 180]);
        if accepts {
            world.ids[1].accept(request.key, 9, &parameters(77), b"here", world.now).expect("it was requested");
            let found = world.next(0);
            assert_eq!((found.kind, found.parameters.qpn.get()), (EventKind::Established, 77));
            assert_eq!((found.parameters.qkey, found.private_data_bytes), (0x0123_4567, 136));
        } else {
            world.ids[1].reject(request.key, 0, b"no", world.now).expect("it was requested");
            let refused = world.next(0);
            assert_eq!(
                (refused.kind, refused.status, &refused.private_data[..2]),
                (EventKind::Unreachable, 2, &b"no"[..])
            );
        }
        world.ids[0].disconnect(active, world.now).expect("nothing to end");
    }
    world.destroy(1, listener);
    let active = world.routed(IdService::Datagram);
    world.connect(active, b"");
    assert_eq!((world.next(0).status, world.sent > 0), (1, true), "no such service");
    world.end();
}

#[test]
fn a_lost_answer_about_a_datagram_service_is_given_again_and_makes_no_second_request() {
    let mut world = World::new();
    world.drops = |_, mad| matches!(mad.message, CmMessage::SidrRep(_));
    world.listen(IdService::Datagram, 4);
    let active = world.routed(IdService::Datagram);
    world.connect(active, b"");
    let request = world.next(1);
    world.ids[1].accept(request.key, 9, &parameters(77), b"", world.now).expect("it was requested");
    world.run(SECOND);
    world.drops = |_, _| false;
    world.run(5 * SECOND);
    assert_eq!(world.next(0).kind, EventKind::Established);
    world.nothing(1);
    world.end();
}

#[test]
fn calls_out_of_order_are_refused_as_by_linux() {
    let mut world = World::new();
    let key = world.create(0, IdService::Reliable);
    let none = IdKey { number: 999, ..key };
    assert_eq!(world.ids[0].resolve_route(key), Err(CmErrno::Invalid));
    assert_eq!(world.ids[0].connect(key, &parameters(7), b"", SECOND), Err(CmErrno::Invalid));
    assert_eq!(world.ids[0].accept(key, 0, &parameters(7), b"", SECOND), Err(CmErrno::Invalid));
    assert_eq!(world.ids[0].disconnect(key, SECOND), Err(CmErrno::Invalid));
    assert_eq!(world.ids[0].confirm(key, SECOND), Err(CmErrno::Invalid));
    assert_eq!(world.ids[0].disconnect(none, SECOND), Err(CmErrno::NoEntry));
    let routed = world.routed(IdService::Reliable);
    assert_eq!(world.resolve(routed, [10, 0, 0, 2], PORT), Err(CmErrno::Invalid));
    assert_eq!(world.ids[0].connect(routed, &parameters(7), &[0; 57], SECOND), Err(CmErrno::Invalid));
    world.connect(routed, &[0; 56]);
    assert_eq!(world.ids[0].connect(routed, &parameters(7), b"", SECOND), Err(CmErrno::Invalid));
    let option = world.ids[0].set_option(routed, IdOption::FamilyOnly(true));
    assert_eq!(option, Err(CmErrno::Invalid), "before it is bound");
    world.end();
}

#[test]
fn addresses_that_are_bound_or_resolved_give_the_errors_of_linux() {
    let mut world = World::new();
    let bind = |world: &mut World, address: ([u8; 4], u16)| {
        let key = world.create(0, IdService::Reliable);
        world.ids[0].bind(key, SocketAddr::from(address), &mut world.hosts[0])
    };
    assert_eq!(bind(&mut world, ([10, 9, 9, 9], 7)), Err(CmErrno::AddressNotAvailable));
    assert_eq!(bind(&mut world, ([10, 1, 0, 1], 7000)), Err(CmErrno::NoDevice));
    assert_eq!(bind(&mut world, ([10, 0, 0, 1], 7)), Err(CmErrno::Access));
    world.hosts[0].is_privileged = true;
    assert_eq!(bind(&mut world, ([10, 0, 0, 1], 7)), Ok(()));
    assert_eq!(bind(&mut world, ([10, 0, 0, 1], 7)), Err(CmErrno::AddressInUse));
    assert_eq!(bind(&mut world, ([0, 0, 0, 0], 7)), Err(CmErrno::AddressNotAvailable));
    assert_eq!(bind(&mut world, ([127, 0, 0, 1], 8)), Ok(()), "as for all addresses");
    let key = world.create(0, IdService::Reliable);
    assert_eq!(world.resolve(key, [192, 168, 0, 1], 9), Err(CmErrno::NetUnreachable));
    world.nothing(0);
    world.resolve(key, [10, 1, 0, 9], 9).expect("an event says so");
    let event = world.next(0);
    assert_eq!((event.kind, event.status), (EventKind::AddressError, -19));
    world.resolve(key, [10, 0, 0, 2], 9).expect("it may be tried again");
    assert_eq!(world.next(0).kind, EventKind::AddressResolved);
    world.end();
}

#[test]
fn options_of_a_bound_identifier_count_from_then_on() {
    let mut world = World::new();
    let bind = |world: &mut World, address: IpAddr, option| {
        let key = world.create(0, IdService::Reliable);
        if let Some(option) = option {
            world.ids[0].set_option(key, option).expect("before it is bound");
        }
        world.ids[0].bind(key, SocketAddr::new(address, PORT), &mut world.hosts[0]).map(|()| key)
    };
    let (four, six) = (IpAddr::from([0; 4]), IpAddr::from([0; 16]));
    let shared = Some(IdOption::ReuseAddress(true));
    let first = bind(&mut world, six, None).expect("free");
    assert_eq!(bind(&mut world, four, None), Err(CmErrno::AddressNotAvailable));
    world.ids[0].set_option(first, IdOption::FamilyOnly(true)).expect("it is bound");
    let second = bind(&mut world, four, None).expect("of another family");
    assert_eq!(bind(&mut world, four, shared), Err(CmErrno::AddressNotAvailable));
    world.ids[0].set_option(second, IdOption::ReuseAddress(true)).expect("it is bound");
    let third = bind(&mut world, four, shared).expect("both share the port");
    assert_eq!(world.ids[0].set_option(third, IdOption::ReuseAddress(false)), Err(CmErrno::Invalid), "bound");
    world.ids[0].listen(first, 0, &mut world.hosts[0]).expect("free");
    assert_eq!(world.ids[0].set_option(first, IdOption::ReuseAddress(true)), Err(CmErrno::Invalid), "listening");
    assert_eq!(world.ids[0].set_option(first, IdOption::FamilyOnly(false)), Err(CmErrno::Invalid), "listening");
    let routed = world.routed(IdService::Reliable);
    world.ids[0].set_option(routed, IdOption::ReuseAddress(true)).expect("in any state but that of a listener");
    world.end();
}

/// Interfaces of one adapter have the same one: each is another address.
#[test]
fn a_link_local_address_is_one_of_its_interface() {
    let mut world = World::new();
    let at = |world: &World, scope| SocketAddr::from(SocketAddrV6::new(world.hosts[1].link_local(), PORT, 0, scope));
    let listeners = [5, 6].map(|scope| {
        let (key, address) = (world.create(1, IdService::Reliable), at(&world, scope));
        let (ids, host) = (&mut world.ids[1], &mut world.hosts[1]);
        ids.bind(key, address, host).expect("another interface");
        ids.listen(key, 0, host).expect("another interface");
        key
    });
    let (third, address) = (world.create(1, IdService::Reliable), at(&world, 6));
    assert_eq!(world.ids[1].bind(third, address, &mut world.hosts[1]), Err(CmErrno::AddressInUse));
    for (scope, listener) in [5, 6].into_iter().zip(listeners) {
        let (active, to) = (world.create(0, IdService::Reliable), at(&world, scope));
        let World { ids, hosts, now, .. } = &mut world;
        ids[0].resolve_address(active, None, to, SECOND, &mut hosts[0], *now).expect("it is on the link");
        let source = world.next(0).route.source.expect("it is resolved");
        let expected = SocketAddr::from(SocketAddrV6::new(world.hosts[0].link_local(), source.port(), 0, scope));
        assert_eq!(source, expected);
        world.ids[0].resolve_route(active).expect("the address is resolved");
        assert_eq!(world.next(0).kind, EventKind::RouteResolved);
        world.connect(active, b"");
        let request = world.next(1);
        assert_eq!((request.owner, request.route.source), (listener, Some(to)));
        assert_eq!(request.route.device.and_then(|device| device.vlan), Some(scope as u16));
    }
    world.end();
}

#[test]
fn a_silent_neighbor_is_given_up_and_a_late_one_is_found() {
    let mut world = World::new();
    world.hosts[0].is_neighbor_known = false;
    let keys = [0; 2].map(|_| world.create(0, IdService::Reliable));
    for key in keys {
        world.resolve(key, [10, 0, 0, 2], PORT).expect("there is a route");
    }
    world.nothing(0);
    world.destroy(0, keys[1]);
    world.run(3 * SECOND);
    let event = world.next(0);
    assert_eq!((event.kind, event.status, event.key), (EventKind::AddressError, -110, keys[0]));
    world.resolve(keys[0], [10, 0, 0, 2], PORT).expect("again");
    let peer = PeerAddress {
        device: DeviceId(0),
        vlan: None,
        local: gid_of(world.hosts[0].address()),
        remote: gid_of(world.hosts[1].address()),
    };
    world.ids[0].on_neighbor(peer);
    assert_eq!(world.next(0).kind, EventKind::AddressResolved);
    world.ids[0].on_neighbor(peer);
    world.nothing(0);
    world.run(3 * SECOND);
    world.nothing(0);
    world.end();
}

#[test]
fn a_request_that_is_not_accepted_has_no_events() {
    let mut world = World::new();
    world.listen(IdService::Reliable, 0);
    let active = world.routed(IdService::Reliable);
    world.connect(active, b"");
    let passive = world.next(1).key;
    world.destroy(0, active);
    world.nothing(1);
    assert_eq!(world.ids[1].accept(passive, 5, &parameters(77), b"", world.now), Err(CmErrno::Invalid));
    world.ids[1].on_device_removal(DeviceId(0), world.now);
    world.run(200 * SECOND);
    while let Some(event) = world.events[1].pop_front() {
        assert_ne!(event.key, passive, "a channel would be readable without an event");
    }
    world.end();
}

#[test]
fn either_side_gives_an_attempt_up_before_it_is_established() {
    let mut world = World::new();
    world.listen(IdService::Reliable, 0);
    // The active side, before an answer.
    let active = world.routed(IdService::Reliable);
    world.connect(active, b"");
    world.ids[0].reject(active, 0, b"", world.now).expect("it is asked for");
    assert_eq!(world.ids[0].reject(active, 0, b"", world.now), Err(CmErrno::Invalid), "once");
    let passive = world.next(1).key;
    world.ids[1].accept(passive, 5, &parameters(77), b"", world.now).expect("it was requested");
    let event = world.next(1);
    assert_eq!((event.kind, event.key, event.status), (EventKind::Rejected, passive, 6), "no such connection");
    world.nothing(0);
    // The passive side, before the confirmation.
    let active = world.routed(IdService::Reliable);
    world.connect(active, b"");
    let passive = world.next(1).key;
    world.ids[1].accept(passive, 5, &parameters(78), b"", world.now).expect("it was requested");
    assert_eq!(world.next(0).kind, EventKind::ConnectResponse);
    world.ids[1].reject(passive, 0, b"no", world.now).expect("it is not established");
    let event = world.next(0);
    assert_eq!((event.kind, event.status, &event.private_data[..2]), (EventKind::Rejected, 28, &b"no"[..]));
    assert_eq!(world.ids[0].confirm(active, world.now), Err(CmErrno::Invalid));
    let (_, passive) = world.connected();
    assert_eq!(world.ids[1].reject(passive, 0, b"", world.now), Err(CmErrno::Invalid), "it is established");
    world.end();
}

/// The confirmation of the peer is lost, and so is the refusal.
#[test]
fn a_peer_that_has_confirmed_is_told_that_the_attempt_was_given_up() {
    let ways: [fn(&mut World, IdKey); 3] = [
        |world, passive| world.ids[1].reject(passive, 0, b"", world.now).expect("it is not established"),
        |world, passive| world.destroy(1, passive),
        |world, _| world.run(66 * SECOND),
    ];
    for (at, give_up) in ways.into_iter().enumerate() {
        let mut world = World::new();
        world.listen(IdService::Reliable, 0);
        let active = world.routed(IdService::Reliable);
        world.connect(active, b"");
        let passive = world.next(1).key;
        world.ids[1].accept(passive, 555, &parameters(77), b"", world.now).expect("it was requested");
        assert_eq!(world.next(0).kind, EventKind::ConnectResponse);
        world.drops = |_, mad| matches!(mad.message, CmMessage::Rtu(_) | CmMessage::Rej(_));
        world.ids[0].confirm(active, world.now).expect("it was accepted");
        give_up(&mut world, passive);
        world.run(2 * SECOND);
        assert_eq!(world.next(0).kind, EventKind::Disconnected, "{at}");
        world.ids[0].disconnect(active, world.now).expect("the peer has");
        world.run(10 * SECOND);
        assert_eq!(world.next(0).kind, EventKind::TimeWaitExit, "{at}");
        world.nothing(0);
        let told: Vec<_> = world.events[1].iter().map(|event| event.kind).collect();
        assert_eq!(told, if at == 2 { vec![EventKind::Unreachable] } else { vec![] }, "nothing else, {at}");
        world.events[1].clear();
        world.end();
    }
}

#[test]
fn a_call_that_cannot_continue_an_attempt_refuses_it() {
    let mut world = World::new();
    world.listen(IdService::Reliable, 0);
    type Fails = fn(&mut World, IdKey) -> Result<(), CmErrno>;
    let calls: [(&str, Fails); 3] = [
        ("too much data", |world, key| world.ids[1].accept(key, 5, &parameters(77), &[0; 197], world.now)),
        ("a confirmation of a request", |world, key| world.ids[1].confirm(key, world.now)),
        ("a second acceptance", |world, key| {
            world.ids[1].accept(key, 5, &parameters(77), b"", world.now).expect("it was requested");
            assert_eq!(world.next(0).kind, EventKind::ConnectResponse);
            world.ids[1].accept(key, 5, &parameters(77), b"", world.now)
        }),
    ];
    for (name, call) in calls {
        let active = world.routed(IdService::Reliable);
        world.connect(active, b"");
        let passive = world.next(1).key;
        assert_eq!(call(&mut world, passive), Err(CmErrno::Invalid), "{name}");
        let event = world.next(0);
        assert_eq!((event.kind, event.key, event.status), (EventKind::Rejected, active, 28), "{name}");
        world.run(3 * SECOND);
        world.nothing(1);
    }
    world.listen(IdService::Datagram, 0);
    let active = world.routed(IdService::Datagram);
    world.connect(active, b"");
    let passive = world.next(1).key;
    let privileged = roced_cm::identifiers::Parameters { qkey: 1 << 31, ..parameters(77) };
    assert_eq!(world.ids[1].accept(passive, 5, &privileged, b"", world.now), Err(CmErrno::Invalid));
    let event = world.next(0);
    assert_eq!((event.kind, event.status), (EventKind::Unreachable, 2), "rejected by the service");
    world.end();
}

/// The number of a connection that has ended may be another one's: no call may act on that.
#[test]
fn an_ended_connection_is_not_the_identifiers_any_more() {
    let mut world = World::new();
    world.listen(IdService::Reliable, 0);
    let (active, passive) = world.connected();
    world.ids[0].disconnect(active, world.now).expect("it is connected");
    world.run(Duration::from_millis(10));
    world.ids[1].disconnect(passive, world.now).expect("the peer has");
    world.run(10 * SECOND);
    assert!(world.ids.iter().all(|ids| ids.connections().is_empty()));
    for (at, key) in [(0, active), (1, passive)] {
        assert_eq!(world.ids[at].reports().find(|report| report.key == key).and_then(|it| it.connection), None);
        assert_eq!(world.ids[at].confirm(key, world.now), Err(CmErrno::Invalid));
    }
    world.end();
}

#[test]
fn a_listener_that_goes_refuses_the_requests_that_wait_here() {
    let mut world = World::new();
    let listener = world.listen(IdService::Reliable, 0);
    let active = world.routed(IdService::Reliable);
    world.connect(active, b"");
    while let Some(transmit) = world.ids[0].poll_transmit() {
        let from = PeerAddress { local: transmit.to.remote, remote: transmit.to.local, ..transmit.to };
        world.ids[1].on_datagram(from, &transmit.mad.to_bytes(), &mut world.hosts[1], world.now);
    }
    // Its event is still in the queue.
    world.destroy(1, listener);
    world.nothing(1);
    let event = world.next(0);
    assert_eq!((event.kind, event.status), (EventKind::Rejected, 28));
    assert!(world.ids[1].is_empty());
    world.end();
}

#[test]
fn requests_that_do_not_fit_the_listener_are_refused() {
    let mut world = World::new();
    world.listen(IdService::Reliable, 0);
    let unreliable = world.routed(IdService::Unreliable);
    world.connect(unreliable, b"");
    assert_eq!(world.next(0).status, 28, "another service");
    // Another path MTU than this host carries.
    let active = world.routed(IdService::Reliable);
    world.connect(active, b"");
    let transmit = world.ids[0].poll_transmit().expect("a REQ");
    let from = PeerAddress { local: transmit.to.remote, remote: transmit.to.local, ..transmit.to };
    let refused = |world: &mut World, change: &dyn Fn(&mut roced_cm::wire::Req)| {
        let CmMessage::Req(mut req) = transmit.mad.message else { panic!("a REQ") };
        change(&mut req);
        let mad = Mad { message: CmMessage::Req(req), ..transmit.mad };
        world.ids[1].on_datagram(from, &mad.to_bytes(), &mut world.hosts[1], world.now);
        let answer = world.ids[1].poll_transmit().map(|answer| answer.mad.message);
        assert!(world.ids[1].poll_event().is_none() && world.ids[1].connections().is_empty());
        match answer {
            Some(CmMessage::Rej(rej)) => Some(rej.reason),
            _ => None,
        }
    };
    assert_eq!(refused(&mut world, &|req| req.path_mtu = 4), Some(26));
    assert_eq!(refused(&mut world, &|req| req.path_mtu = 9), Some(26));
    assert_eq!(refused(&mut world, &|req| req.primary.remote_gid = [3; 16]), Some(12));
    assert_eq!(refused(&mut world, &|req| req.private_data[0] = 1), Some(28));
    assert_eq!(refused(&mut world, &|req| req.private_data[19] = 77), Some(28), "another source address");
    assert_eq!(refused(&mut world, &|req| req.private_data[35] = 77), Some(28), "another destination");
    assert_eq!(refused(&mut world, &|req| req.service_id.0 += 1), Some(8));
    assert_eq!(refused(&mut world, &|req| req.qpn = Qpn::from_wire(1)), None, "in silence");
    world.end();
}

#[test]
fn a_gone_device_ends_its_identifiers_once() {
    let mut world = World::new();
    world.listen(IdService::Reliable, 0);
    let (active, _) = world.connected();
    world.ids[0].on_device_removal(DeviceId(0), world.now);
    world.ids[0].on_device_removal(DeviceId(0), world.now);
    let event = world.next(0);
    assert_eq!((event.kind, event.key), (EventKind::DeviceRemoval, active));
    world.nothing(0);
    assert_eq!(world.ids[0].resolve_route(active), Err(CmErrno::Invalid));
    assert_eq!(world.next(1).kind, EventKind::Disconnected, "the peer is told");
    world.end();
}

#[test]
fn events_follow_an_identifier_to_another_channel() {
    let mut world = World::new();
    let key = world.create(0, IdService::Reliable);
    world.resolve(key, [10, 0, 0, 2], PORT).expect("there is a route");
    world.ids[0].migrate(key, 5).expect("it is there");
    world.ids[0].write_event(key, 18, -3, 77).expect("it is there");
    let (resolved, written) = (world.next(0), world.next(0));
    assert_eq!((resolved.channel, resolved.kind), (5, EventKind::AddressResolved));
    assert_eq!((written.channel, written.kind, written.status), (5, EventKind::Written(18), -3));
    assert_eq!(world.ids[0].of_channel(OWNER, 5).collect::<Vec<_>>(), [key]);
    world.end();
}

/// Steps through all of an owner would take minutes.
#[test]
fn identifiers_of_other_channels_are_not_looked_at() {
    let mut ids = Identifiers::new(&CmConfig::new([1; 32], 1), 100_000);
    let start = Instant::now();
    for channel in 1..=40_000 {
        ids.create(OWNER, channel, 1, PortSpace::Tcp, IdService::Reliable).expect("there is room");
    }
    for channel in 1..=40_000 {
        let key = ids.of_channel(OWNER, channel).next().expect("one for each channel");
        ids.migrate(key, 50_000 + channel).expect("it is there");
        assert_eq!((ids.of_channel(OWNER, channel).next(), ids.of_channel(OwnerId(2), channel).next()), (None, None));
    }
    assert!(start.elapsed() < 10 * SECOND, "{:?}", start.elapsed());
}

#[test]
fn a_group_is_joined_and_left_with_its_identifier() {
    let mut world = World::new();
    world.ids[0].add_owner(OWNER, AccountId(7));
    let key = world.create(0, IdService::Datagram);
    let group = IpAddr::from([239, 1, 2, 3]);
    let join = |world: &mut World, key, send_only| {
        let (ids, host) = (&mut world.ids[0], &mut world.hosts[0]);
        ids.join(key, 9, group, send_only, host)
    };
    assert_eq!(join(&mut world, key, false), Err(CmErrno::Invalid), "it has no device");
    world.resolve(key, [239, 1, 2, 3], 0).expect("groups are on the link");
    assert_eq!(world.next(0).kind, EventKind::AddressResolved);
    let memberships: Vec<IdKey> =
        [false, true].map(|send_only| join(&mut world, key, send_only).expect("it has a device")).into();
    assert_eq!(world.hosts[0].joined, [group], "the second only sends");
    assert_eq!([7, 8].map(|account| world.ids[0].memberships_of(AccountId(account))), [2, 0]);
    for membership in &memberships {
        let event = world.next(0);
        assert_eq!((event.kind, event.key, event.owner, event.uid), (EventKind::MulticastJoin, *membership, key, 9));
        assert_eq!(event.parameters.qkey, 0x0123_4567);
    }
    world.ids[0].leave(memberships[1], &mut world.hosts[0]).expect("it is there");
    assert_eq!(world.ids[0].memberships_of(AccountId(7)), 1);
    world.destroy(0, key);
    assert!(world.hosts[0].joined.is_empty());
    world.end();
}

/// Many programs at once over a bad network, each killed, refused or done: in the end nothing is
/// left of identifiers, ports, memberships and connections.
#[test]
fn after_any_run_of_many_programs_nothing_is_left() {
    let mut ended = BTreeMap::<&str, u32>::new();
    for seed in 0..40_u64 {
        let mut world = World::new();
        world.drops = if seed % 2 == 0 { |_, _| false } else { |number, _| number * 2_654_435_761 % 100 < 30 };
        world.listen(IdService::Reliable, 0);
        let mut number = seed;
        let mut below = |limit: u64| {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (number >> 33) % limit
        };
        for _ in 0..40 {
            let active = world.routed_or_killed(below(6) == 0);
            if let Some(active) = active {
                world.connect(active, b"");
            }
            world.run(Duration::from_millis(below(400)));
            for at in 0..2 {
                while let Some(event) = world.events[at].pop_front() {
                    let key = event.key;
                    let now = world.now;
                    // Any of these may come too late.
                    let ids = &mut world.ids[at];
                    let _ = match (event.kind, below(4)) {
                        (_, 0) => ids.destroy(key, &mut world.hosts[at], now),
                        (EventKind::ConnectRequest, 1) => ids.reject(key, 28, b"", now),
                        (EventKind::ConnectRequest, _) => ids.accept(key, 1, &parameters(key.number + 16), b"", now),
                        (EventKind::ConnectResponse, _) => ids.confirm(key, now),
                        (EventKind::Established | EventKind::Disconnected, _) => ids.disconnect(key, now),
                        _ => Ok(()),
                    };
                    *ended.entry(name(event.kind)).or_default() += 1;
                }
            }
        }
        world.end();
    }
    for kind in ["request", "response", "established", "disconnected", "rejected"] {
        assert!(ended.get(kind).is_some_and(|count| *count > 50), "{ended:?}");
    }
}

const fn name(kind: EventKind) -> &'static str {
    match kind {
        EventKind::ConnectRequest => "request",
        EventKind::ConnectResponse => "response",
        EventKind::Established => "established",
        EventKind::Disconnected => "disconnected",
        EventKind::Rejected => "rejected",
        _ => "other",
    }
}
