//! Two hosts and a network that loses, repeats and reorders datagrams, by seed. Programs connect,
//! accept, refuse, hesitate, disconnect and end at any moment. The rules are those of programs:
//! each connection that was asked for ends in one event, each end is told once, and nothing is
//! left.

mod ended_programs;
mod forged;
mod queue_pairs;
mod world;

use std::time::Duration;

use roced_cm::{
    CmEvent, CmState, Connect, ConnectionManager, FindService, PeerAddress,
    wire::{
        AdditionalInfo, Attribute, CmMessage, CommId, Drep, Dreq, Mad, Mra, PortSpace, Rej, RejectedMessage, ServiceId,
        TransactionId, reject_reason,
    },
};
use roced_types::{AccountId, Qpn};

use crate::world::{Faults, Known, Plan, Random, SERVICE, World, acceptance, address, manager, wanted};

#[test]
fn a_connection_is_made_and_ended() {
    let mut world = World::new(1, Faults::default());
    world.managers[1].listen(SERVICE, 10).expect("free");
    let id = world.connect(SERVICE);
    world.run(Duration::from_millis(100));
    assert_eq!(world.managers[0].state(id), Some(CmState::Established));
    assert_eq!((world.established, world.refused), ([1, 1], 0));
    world.run(Duration::from_secs(30));
    assert_eq!(world.disconnected, 2, "each side is told once");
    world.end();
    let counters = world.managers[0].counters();
    assert_eq!((counters.unknown, counters.out_of_state, counters.discarded), (0, 0, 0));
}

#[test]
fn a_port_without_a_listener_refuses_at_once() {
    let mut world = World::new(2, Faults::default());
    world.connect(SERVICE);
    world.run(Duration::from_millis(100));
    assert_eq!((world.refused, world.managers[0].len()), (1, 0));
    assert_eq!(world.managers[0].poll_timeout(), None);
    world.end();
}

#[test]
fn a_silent_peer_is_given_up_after_as_long_as_linux_waits() {
    let mut world = World::new(3, Faults { lost: 100, ..Faults::default() });
    world.connect(SERVICE);
    world.run(Duration::from_secs(73));
    assert_eq!(world.unreachable, 0);
    world.run(Duration::from_secs(75));
    assert_eq!(world.unreachable, 1);
    world.end();
}

#[test]
fn one_lost_datagram_costs_a_fraction_of_a_second() {
    for lost in 0..3 {
        let mut world = World::new(4, Faults::default());
        world.managers[1].listen(SERVICE, 10).expect("free");
        world.connect(SERVICE);
        let mut seen = 0;
        while world.established != [1, 1] {
            world.settle();
            if let Some(entry) = world.network.first_entry() {
                let key = *entry.key();
                if seen == lost {
                    entry.remove();
                }
                seen += 1;
                world.run(key.0);
            } else {
                world.run(world.now + Duration::from_millis(1));
            }
            assert!(world.now < Duration::from_millis(400), "REQ, REP, RTU: {lost}");
        }
    }
}

#[test]
fn a_flood_of_requests_stops_at_the_backlog() {
    let mut world = World::new(5, Faults { unwilling: 100, ..Faults::default() });
    world.managers[1].listen(SERVICE, 3).expect("free");
    for _ in 0..100 {
        world.connect(SERVICE);
    }
    world.run(Duration::from_millis(30));
    assert!(world.managers[1].len() <= 3, "{}", world.managers[1].len());
    world.run(Duration::from_secs(200));
    // Three at a time for up to 20 s each; the others wait, and some of them without success.
    assert!(world.refused >= 10, "{}", world.refused);
    assert_eq!(world.refused + world.unreachable, 100, "each ends");
    world.end();
}

/// Exponent 31 is more than two hours.
#[test]
fn long_timeouts_of_a_program_keep_no_connection() {
    let mut world = World::new(16, Faults::default());
    world.managers[1].listen(SERVICE, 10).expect("free");
    let wanted = Connect { packet_life_time: 30, ..wanted(SERVICE, 99) };
    let id = world.managers[0].connect(&wanted, world.now).expect("there is room");
    world.known[0].insert(id, Known::default());
    world.run(Duration::from_millis(100));
    assert_eq!(world.established, [1, 1]);
    world.plans.clear();
    for host in 0..2 {
        for id in world.known[host].keys().copied().collect::<Vec<_>>() {
            world.carry_out(host, id, Plan::Destroy);
        }
    }
    world.run(world.now + Duration::from_secs(10));
    assert!(world.managers.iter().all(ConnectionManager::is_empty), "both are gone after TIMEWAIT");
    // A peer that does not answer is given up as soon as with the shortest.
    world.faults.lost = 100;
    let id = world.managers[0].connect(&wanted, world.now).expect("there is room");
    world.known[0].insert(id, Known::default());
    world.run(world.now + Duration::from_secs(100));
    assert_eq!(world.unreachable, 1);
}

#[test]
fn many_connections_at_once_are_asked_for_in_turn() {
    let mut world = World::new(14, Faults::default());
    world.managers[1].listen(SERVICE, 1000).expect("free");
    for _ in 0..500 {
        world.connect(SERVICE);
    }
    world.settle();
    assert_eq!(world.network.len(), 64, "more would be lost in queues");
    world.run(Duration::from_millis(900));
    assert_eq!(world.established, [500, 500]);
    let repeated = world.managers[0].counters().of(Attribute::Req).repeated;
    assert_eq!(repeated, 0, "an answer makes room for another");
    world.end();
}

/// A program with thousands of connections ends, or its daemon: peers are told at once all the
/// same.
#[test]
fn many_connections_that_end_at_once_are_told_in_turn() {
    let mut world = World::new(18, Faults::default());
    world.managers[1].listen(SERVICE, 1000).expect("free");
    for _ in 0..500 {
        world.connect(SERVICE);
    }
    for _ in 0..90 {
        world.run(world.now + Duration::from_millis(10));
        world.plans.retain(|(.., plan)| *plan != Plan::Disconnect);
    }
    assert_eq!((world.established, world.disconnected), ([500, 500], 0));
    for id in world.known[0].keys().copied().collect::<Vec<_>>() {
        world.carry_out(0, id, Plan::Destroy);
    }
    world.settle();
    assert_eq!(world.network.len(), 64, "more would be lost in queues");
    // Although their programs answer within half a second.
    world.run(world.now + Duration::from_millis(50));
    assert_eq!((world.disconnected, world.managers[0].counters().of(Attribute::Dreq).sent), (500, 500));
    world.end();
}

#[test]
fn the_requests_of_a_user_do_not_keep_those_of_another_waiting() {
    let mut manager = manager(0, 17, 1000);
    for number in 0..200 {
        let service = FindService {
            peer: address(0),
            account: AccountId(1),
            service_id: ServiceId::of(PortSpace::Udp, number),
            pkey: 0xffff,
            private_data: [0; 216],
        };
        manager.find_service(&service, Duration::ZERO).expect("there is room");
    }
    let sent = |manager: &mut ConnectionManager| std::iter::from_fn(|| manager.poll_transmit()).count();
    assert_eq!(sent(&mut manager), 64);
    manager.connect(&Connect { account: AccountId(2), ..wanted(SERVICE, 99) }, Duration::ZERO).expect("there is room");
    assert_eq!(sent(&mut manager), 1, "another user's");
    // Nor do silent questions wait for their repetition, after four seconds.
    let end = Duration::from_secs(2);
    let mut others = 0;
    while let Some(at) = manager.poll_timeout().filter(|at| *at <= end) {
        manager.on_timeout(at);
        while let Some(transmit) = manager.poll_transmit() {
            others += usize::from(matches!(transmit.mad.message, CmMessage::SidrReq(_)));
        }
    }
    assert_eq!(others, 200 - 64);
}

#[test]
fn a_silent_listener_does_not_keep_others_waiting_for_long() {
    let mut world = World::new(15, Faults::default());
    world.managers[1].listen(SERVICE, 0).expect("free");
    let silent: Vec<CommId> = (0..200).map(|_| world.connect(SERVICE)).collect();
    // Those that are destroyed while they wait are never sent.
    for id in &silent[100..] {
        world.carry_out(0, *id, Plan::Destroy);
    }
    let last = world.managers[0].connect(&wanted(ServiceId::of(PortSpace::Tcp, 1), 9999), world.now).expect("room");
    world.known[0].insert(last, Known::default());
    world.run(Duration::from_millis(700));
    assert_eq!(world.refused, 1, "the port has no listener");
    world.end();
}

#[test]
fn a_host_that_forgot_its_connections_may_use_its_queue_pairs_again() {
    let mut world = World::new(6, Faults::default());
    world.managers[1].listen(SERVICE, 10).expect("free");
    world.connect(SERVICE);
    world.run(Duration::from_millis(100));
    assert_eq!(world.established, [1, 1]);
    // Started anew: the same adapter, the same first queue pair number.
    world.restart(0, 77, 10);
    world.known[0].clear();
    world.plans.clear();
    world.qpns = 16;
    world.connect(SERVICE);
    world.run(Duration::from_secs(10));
    assert_eq!((world.refused, world.disconnected), (1, 1), "the old connection ends, the request is refused as stale");
    world.connect(SERVICE);
    world.run(world.now + Duration::from_millis(200));
    assert_eq!(world.established, [2, 2]);
    world.end();
}

/// A connection, without plans of its programs; its numbers at both hosts.
fn connected(seed: u64) -> (World, [CommId; 2]) {
    let mut world = World::new(seed, Faults::default());
    world.managers[1].listen(SERVICE, 10).expect("free");
    let id = world.connect(SERVICE);
    world.run(Duration::from_millis(100));
    assert_eq!(world.established, [1, 1]);
    world.plans.clear();
    let other = *world.known[1].keys().next().expect("the other end");
    (world, [id, other])
}

/// Passes all messages of both hosts, but for those that are dropped.
fn pass(managers: &mut [ConnectionManager; 2], now: Duration, is_dropped: impl Fn(&CmMessage) -> bool) {
    while let Some((host, transmit)) = (0..2).find_map(|host| Some((host, managers[host].poll_transmit()?))) {
        if !is_dropped(&transmit.mad.message) {
            managers[1 - host].on_datagram(address(1 - host), &transmit.mad.to_bytes(), now);
        }
    }
}

/// A connection between the two: its numbers here and there.
fn connect(managers: &mut [ConnectionManager; 2], qpn: u32) -> [CommId; 2] {
    let active = managers[0].connect(&wanted(SERVICE, qpn), Duration::ZERO).expect("there is room");
    pass(managers, Duration::ZERO, |_| false);
    let passive = managers[1].poll_event().expect("a request").id();
    managers[1].accept(passive, &acceptance(), Duration::ZERO).expect("it waits for that");
    pass(managers, Duration::ZERO, |_| false);
    [active, passive]
}

/// A peer that does not exist for its program could hold a queue pair for ever.
#[test]
fn a_peer_asks_for_patience_once() {
    let mut managers = [manager(0, 21, 10), manager(1, 22, 10)];
    managers[1].listen(SERVICE, 10).expect("free");
    let [active, passive] = connect(&mut managers, 99);
    let mra = CmMessage::Mra(Mra {
        local: active,
        remote: passive,
        message: RejectedMessage::Rep,
        service_timeout: 24,
        private_data: [0; 222],
    });
    let mra = Mad { transaction: TransactionId(1), modifier: 0, message: mra }.to_bytes();
    managers[1].on_datagram(address(1), &mra, Duration::from_secs(1));
    assert_eq!(managers[1].state(passive), Some(CmState::MraRepReceived));
    let until = managers[1].poll_timeout();
    managers[1].on_datagram(address(1), &mra, Duration::from_secs(30));
    assert_eq!((managers[1].poll_timeout(), managers[1].counters().of(Attribute::Mra).duplicates), (until, 1));
}

/// The peer's programs take their time with requests.
#[test]
fn a_disconnect_does_not_wait_for_requests() {
    let mut managers = [manager(0, 23, 1000), manager(1, 24, 10)];
    managers[1].listen(SERVICE, 10).expect("free");
    let [active, _] = connect(&mut managers, 99);
    managers[0].confirm(active, [0; 224], Duration::ZERO).expect("it was accepted");
    for number in 0..100 {
        managers[0].connect(&wanted(SERVICE, 200 + number), Duration::ZERO).expect("there is room");
    }
    while managers[0].poll_transmit().is_some() {}
    managers[0].disconnect(active, Duration::ZERO).expect("it is connected");
    let sent = managers[0].poll_transmit().map(|transmit| transmit.mad.message.attribute());
    assert_eq!(sent, Some(Attribute::Dreq));
}

/// A peer that was asked for patience does not repeat its REP for a minute.
#[test]
fn a_late_confirmation_that_is_lost_comes_again() {
    let mut managers = [manager(0, 19, 10), manager(1, 20, 10)];
    managers[1].listen(SERVICE, 10).expect("free");
    let active = managers[0].connect(&wanted(SERVICE, 99), Duration::ZERO).expect("there is room");
    pass(&mut managers, Duration::ZERO, |_| false);
    let passive = managers[1].poll_event().expect("a request").id();
    let how = acceptance();
    managers[1].accept(passive, &how, Duration::ZERO).expect("it waits for that");
    pass(&mut managers, Duration::ZERO, |_| false);
    // The program is slow: the REP is repeated, and answered by an MRA.
    let mut now = Duration::from_millis(300);
    managers[1].on_timeout(now);
    pass(&mut managers, now, |_| false);
    assert_eq!(managers[1].state(passive), Some(CmState::MraRepReceived));
    managers[0].confirm(active, [0; 224], now).expect("it waits for that");
    pass(&mut managers, now, |message| matches!(message, CmMessage::Rtu(_)));
    for _ in 0..100 {
        now += Duration::from_millis(10);
        managers.iter_mut().for_each(|manager| manager.on_timeout(now));
        pass(&mut managers, now, |_| false);
    }
    assert_eq!(managers[1].state(passive), Some(CmState::Established));
    assert_eq!(managers[0].poll_timeout(), None, "it is not repeated for ever");
}

#[test]
fn a_queue_pair_number_is_free_again_once_both_have_disconnected() {
    let (mut world, ids) = connected(9);
    for (host, id) in ids.into_iter().enumerate() {
        world.carry_out(host, id, Plan::Disconnect);
        world.run(world.now + Duration::from_millis(50));
    }
    assert_eq!(world.managers[1].state(ids[1]), Some(CmState::TimeWait));
    world.qpns = 16;
    world.connect(SERVICE);
    world.run(world.now + Duration::from_millis(100));
    assert_eq!((world.established, world.refused), ([2, 2], 0));
}

/// From the right address, with a number of ours, but about another connection or queue pair.
#[test]
fn a_message_with_a_wrong_number_changes_nothing() {
    let (mut world, [id, other]) = connected(10);
    let rej = Rej {
        local: CommId(other.0 ^ 1),
        remote: id,
        message: RejectedMessage::Other,
        reason: reject_reason::CONSUMER_DEFINED,
        info: AdditionalInfo::NONE,
        private_data: [0; 148],
    };
    let dreq = Dreq { local: other, remote: id, remote_qpn: Qpn::from_wire(0xabc), private_data: [0; 220] };
    let drep = Drep { local: other, remote: id, private_data: [0; 224] };
    for message in [CmMessage::Rej(rej), CmMessage::Dreq(dreq), CmMessage::Drep(drep)] {
        let bytes = Mad { transaction: TransactionId(5), modifier: 0, message }.to_bytes();
        world.managers[0].on_datagram(address(0), &bytes, world.now);
        assert!(world.managers[0].poll_event().is_none() && world.managers[0].poll_transmit().is_none());
        assert_eq!(world.managers[0].state(id), Some(CmState::Established), "{message:?}");
    }
    world.end();
}

#[test]
fn a_lost_refusal_is_given_again() {
    let mut world = World::new(11, Faults::default());
    world.managers[1].listen(SERVICE, 10).expect("free");
    world.connect(SERVICE);
    world.faults.unwilling = 100;
    world.run(Duration::from_millis(25));
    world.plans.clear();
    let id = *world.known[1].keys().next().expect("it was asked");
    world.managers[1]
        .reject(id, AccountId(0), reject_reason::CONSUMER_DEFINED, [3; 148], world.now)
        .expect("it waits for that");
    assert!(world.managers[1].poll_transmit().is_some() && world.refused == 0, "lost");
    world.run(Duration::from_secs(1));
    assert_eq!(world.refused, 1);
}

/// A program accepts and ends. Its REJ is lost, and the DREQ overtakes the REP: a peer that
/// answered it would not be told any more that the connection it is about to establish is over.
#[test]
fn a_disconnect_that_overtakes_the_acceptance_is_not_answered() {
    let mut managers = [0, 1].map(|host| manager(host, 18, 10));
    managers[1].listen(SERVICE, 10).expect("free");
    let mut now = Duration::from_secs(1);
    let active = managers[0].connect(&wanted(SERVICE, 20), now).expect("there is room");
    pass(&mut managers, now, |_| false);
    let Some(CmEvent::Requested { id: passive, .. }) = managers[1].poll_event() else { panic!("a request") };
    managers[1].accept(passive, &acceptance(), now).expect("it was requested");
    let rep = managers[1].poll_transmit().expect("a REP").mad.to_bytes();
    managers[1].destroy(passive, now).expect("it is there");
    pass(&mut managers, now, |message| matches!(message, CmMessage::Rej(_)));
    managers[0].on_datagram(address(0), &rep, now);
    assert!(matches!(managers[0].poll_event(), Some(CmEvent::Accepted { .. })));
    managers[0].confirm(active, [0; 224], now).expect("it waits for that");
    for _ in 0..2 {
        now += Duration::from_millis(300);
        managers.iter_mut().for_each(|manager| manager.on_timeout(now));
        pass(&mut managers, now, |message| matches!(message, CmMessage::Rej(_)));
    }
    assert_eq!(managers[0].poll_event(), Some(CmEvent::Disconnected { id: active, timed_out: false }));
}

/// It was refused because the peer seemed to have another connection of that queue pair, which is
/// over when the REP comes once more. The peer has heard of the refusal.
#[test]
fn an_acceptance_that_was_refused_as_stale_stays_refused() {
    let mut managers = [0, 1].map(|host| manager(host, 20, 10));
    managers[1].listen(SERVICE, 10).expect("free");
    let now = Duration::from_secs(1);
    let [old, _] = connect(&mut managers, 20);
    managers[0].confirm(old, [0; 224], now).expect("it was accepted");
    pass(&mut managers, now, |_| false);
    // The peer starts again, and takes the same queue pair.
    managers[1] = manager(1, 21, 10);
    managers[1].listen(SERVICE, 10).expect("free");
    while managers[0].poll_event().is_some() {}
    let active = managers[0].connect(&wanted(SERVICE, 21), now).expect("there is room");
    pass(&mut managers, now, |_| false);
    // Twice, because at first the question whether the old connection is forgotten is lost.
    let (mut refused, mut now) = (Vec::new(), now);
    for is_lost in [true, false] {
        let Some(CmEvent::Requested { id: passive, .. }) = managers[1].poll_event() else { panic!("a request") };
        managers[1].accept(passive, &acceptance(), now).expect("it was requested");
        let rep = managers[1].poll_transmit().expect("a REP").mad.to_bytes();
        managers[0].on_datagram(address(0), &rep, now);
        refused.push(rep);
        pass(&mut managers, now, |message| is_lost && matches!(message, CmMessage::Dreq(_)));
        assert!(matches!(managers[1].poll_event(), Some(CmEvent::Rejected { .. })));
        managers[1].destroy(passive, now).expect("it is there");
        // The question is asked four times, and the request comes again.
        for _ in 0..if is_lost { 100 } else { 0 } {
            now += Duration::from_millis(100);
            managers.iter_mut().for_each(|manager| manager.on_timeout(now));
            pass(&mut managers, now, |message| matches!(message, CmMessage::Dreq(_)));
        }
    }
    assert_eq!(managers[0].poll_event(), Some(CmEvent::Disconnected { id: old, timed_out: false }));
    for rep in refused {
        managers[0].on_datagram(address(0), &rep, now);
        assert_eq!(managers[0].poll_event(), None);
        assert!(matches!(managers[0].state(active), Some(CmState::ReqSent | CmState::MraReqReceived)));
        let again = managers[0].poll_transmit().map(|transmit| transmit.mad.message);
        assert!(matches!(again, Some(CmMessage::Rej(rej)) if rej.reason == reject_reason::STALE_CONNECTION));
    }
}

/// The program of the old connection does not read its events. A peer that loses its power does not
/// repeat its DREQ.
#[test]
fn a_program_that_takes_no_note_of_the_end_keeps_no_queue_pair_of_a_host_that_starts_anew() {
    let mut managers = [manager(0, 25, 10), manager(1, 26, 10)];
    managers[1].listen(SERVICE, 10).expect("free");
    let now = Duration::from_secs(1);
    let [active, passive] = connect(&mut managers, 20);
    managers[0].confirm(active, [0; 224], now).expect("it was accepted");
    pass(&mut managers, now, |_| false);
    managers[0].destroy(active, now).expect("it is there");
    pass(&mut managers, now, |_| false);
    assert_eq!(managers[1].state(passive), Some(CmState::DreqReceived));
    managers[0] = manager(0, 27, 10);
    while managers[1].poll_event().is_some() {}
    let refused = managers[0].connect(&wanted(SERVICE, 20), now).expect("there is room");
    pass(&mut managers, now, |_| false);
    let event = managers[0].poll_event();
    assert!(
        matches!(event, Some(CmEvent::Rejected { id, rej }) if (id, rej.reason) == (refused, reject_reason::STALE_CONNECTION))
    );
    managers[0].connect(&wanted(SERVICE, 20), now).expect("there is room");
    pass(&mut managers, now, |_| false);
    assert!(matches!(managers[1].poll_event(), Some(CmEvent::Requested { .. })), "refused as stale, again and again");
    assert!(managers[0].poll_event().is_none());
}

/// Its time begins when it is sent, not at the call before.
#[test]
fn a_request_that_follows_one_that_was_given_up_has_its_whole_time() {
    let mut manager = manager(0, 22, 100);
    let ids: Vec<CommId> = (0..65)
        .map(|number| manager.connect(&wanted(SERVICE, 20 + number), Duration::ZERO).expect("there is room"))
        .collect();
    let now = Duration::from_secs(100);
    manager
        .reject(ids[0], AccountId(0), reject_reason::CONSUMER_DEFINED, [0; 148], now)
        .expect("it is not established");
    for id in &ids[1..64] {
        manager.destroy(*id, now).expect("it is there");
    }
    assert!(manager.poll_timeout() >= Some(now + Duration::from_millis(250)), "{:?}", manager.poll_timeout());
}

#[test]
fn a_listener_hears_that_the_peer_has_given_up() {
    let mut world = World::new(12, Faults::default());
    world.managers[1].listen(SERVICE, 10).expect("free");
    let id = world.connect(SERVICE);
    world.faults.unwilling = 100;
    world.run(Duration::from_millis(25));
    world.plans.clear();
    let other = *world.known[1].keys().next().expect("it was asked");
    // Before the peer knows the listener's number.
    world.carry_out(0, id, Plan::Destroy);
    world.run(world.now + Duration::from_millis(50));
    assert!(world.known[1][&other].ended && world.managers[0].is_empty());
    world.end();
}

#[test]
fn a_request_that_the_program_does_not_answer_ends() {
    let mut world = World::new(13, Faults::default());
    world.managers[1].listen(SERVICE, 10).expect("free");
    let id = world.connect(SERVICE);
    world.faults.unwilling = 100;
    world.run(Duration::from_millis(25));
    world.plans.clear();
    let other = *world.known[1].keys().next().expect("it was asked");
    world.faults.lost = 100;
    world.carry_out(0, id, Plan::Destroy);
    world.run(Duration::from_secs(130));
    assert!(!world.known[1][&other].ended);
    world.run(Duration::from_secs(132));
    assert!(world.known[1].get(&other).is_none_or(|known| known.ended), "its peer is not there any more");
}

#[test]
fn unknown_peers_end_no_connection() {
    let mut world = World::new(7, Faults::default());
    world.managers[1].listen(SERVICE, 10).expect("free");
    let id = world.connect(SERVICE);
    let mut heard = Vec::new();
    while world.established != [1, 1] {
        world.settle();
        heard.extend(world.network.values().cloned());
        world.run(world.now + Duration::from_millis(1));
    }
    world.plans.clear();
    // Each message of the connection again, and ends of it with the right numbers, from elsewhere.
    let unknown_peer = |host: usize| PeerAddress { remote: [9; 16], ..address(host) };
    for (host, _, bytes) in &heard {
        world.managers[*host].on_datagram(unknown_peer(*host), bytes, world.now);
        for attribute in [0x12, 0x15, 0x16] {
            let mut forged = bytes.clone();
            forged[17] = attribute;
            world.managers[*host].on_datagram(unknown_peer(*host), &forged, world.now);
        }
    }
    for manager in &mut world.managers {
        while manager.poll_transmit().is_some() {}
        assert!(manager.poll_event().is_none_or(|event| matches!(event, CmEvent::Requested { .. })));
    }
    assert_eq!(world.managers[0].state(id), Some(CmState::Established));
}

#[test]
fn after_any_faults_of_network_and_programs_nothing_is_left() {
    let mut totals = ([0; 2], 0, 0, 0);
    for seed in 0..300 {
        let mut random = Random(seed);
        let faults = Faults {
            lost: [0, 5, 20, 40][random.below(4) as usize],
            twice: random.below(30),
            killed: [0, 10, 50][random.below(3) as usize],
            unwilling: random.below(30),
        };
        let mut world = World::new(seed, faults);
        world.managers[1].listen(SERVICE, 5).expect("free");
        for _ in 0..20 {
            world.connect(SERVICE);
            let pause = world.random.below(300_000);
            world.run(world.now + Duration::from_micros(pause));
        }
        world.run(world.now + Duration::from_secs(60));
        world.end();
        if faults.killed == 0 {
            assert_eq!(world.unreachable, 0, "seed {seed}, {faults:?}: the network is not that bad");
        }
        let (established, refused, unreachable, disconnected) = &mut totals;
        (0..2).for_each(|host| established[host] += world.established[host]);
        *refused += world.refused;
        *unreachable += world.unreachable;
        *disconnected += world.disconnected;
    }
    let (established, refused, ..) = totals;
    assert!(established.iter().all(|count| *count > 3000) && refused > 500, "the runs reach every case: {totals:?}");
}
