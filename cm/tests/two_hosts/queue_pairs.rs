//! Queue pair numbers that do not prove that a connection exists.

use std::{iter::from_fn, time::Duration};

use roced_cm::{
    CmEvent, CmState, Connect, ConnectionManager,
    wire::{PortSpace, ServiceId},
};
use roced_types::{AccountId, Qpn};

use crate::{
    connect, pass,
    world::{SERVICE, acceptance, address, manager, wanted},
};

const NOW: Duration = Duration::from_secs(1);

/// An unknown peer guesses the queue pair number that a host uses next, and asks in its name, at a
/// listener that takes its time, has answered, or has answered and ends the attempt. The host
/// itself asks later, at any listener.
#[test]
fn a_forged_request_keeps_no_queue_pair_of_its_victim_from_a_connection() {
    let other = ServiceId::of(PortSpace::Tcp, 7175);
    for (is_accepted, is_ended) in [(false, false), (true, false), (true, true)] {
        let mut managers = [manager(0, 41, 10), manager(1, 42, 10)];
        [SERVICE, other].into_iter().for_each(|service| managers[1].listen(service, 10).expect("free"));
        let mut forger = manager(0, 43, 10);
        forger.connect(&wanted(SERVICE, 99), NOW).expect("there is room");
        let forged = forger.poll_transmit().expect("a REQ").mad.to_bytes();
        managers[1].on_datagram(address(1), &forged, NOW);
        let of_forger = managers[1].poll_event().expect("a request").id();
        if is_accepted {
            managers[1].accept(of_forger, &acceptance(), NOW).expect("it was requested");
            // The answer is under way.
            assert!(managers[1].poll_transmit().is_some());
        }
        if is_ended {
            managers[1].reject(of_forger, AccountId(0), 28, [0; 148], NOW).expect("it was accepted");
            assert_eq!(managers[1].state(of_forger), Some(CmState::DreqSent));
            assert_eq!(from_fn(|| managers[1].poll_transmit()).count(), 2, "REJ and DREQ, which are lost");
        }
        let active = managers[0].connect(&wanted(other, 99), NOW).expect("there is room");
        pass(&mut managers, NOW, |_| false);
        let Some(CmEvent::Requested { id: passive, .. }) = managers[1].poll_event() else {
            panic!("{is_accepted}, {is_ended}: refused: {:?}", managers[0].poll_event())
        };
        managers[1].accept(passive, &acceptance(), NOW).expect("it was requested");
        pass(&mut managers, NOW, |_| false);
        assert!(matches!(managers[0].poll_event(), Some(CmEvent::Accepted { id, .. }) if id == active));
        managers[0].confirm(active, [0; 224], NOW).expect("it was accepted");
        pass(&mut managers, NOW, |_| false);
        assert_eq!(managers[1].poll_event(), Some(CmEvent::Established { id: passive }));
        // That of the forger ends, and the other one is found by its queue pair all the same.
        let mut now = NOW;
        for _ in 0..400 {
            now += Duration::from_secs(1);
            managers.iter_mut().for_each(|manager| manager.on_timeout(now));
            pass(&mut managers, now, |_| false);
        }
        assert_eq!(managers[1].state(of_forger), None);
        assert_eq!(managers[1].state(passive), Some(CmState::Established));
        while managers[1].poll_event().is_some() {}
        managers[0] = manager(0, 44, 10);
        managers[0].connect(&wanted(other, 99), now).expect("there is room");
        pass(&mut managers, now, |_| false);
        assert_eq!(managers[1].poll_event(), Some(CmEvent::Disconnected { id: passive, timed_out: false }));
    }
}

/// The same of a queue pair with which a host accepts: it was guessed before.
#[test]
fn a_forged_request_keeps_no_host_from_accepting() {
    let mut managers = [manager(0, 47, 10), manager(1, 48, 10)];
    managers.iter_mut().for_each(|manager| manager.listen(SERVICE, 10).expect("free"));
    let mut forger = manager(1, 49, 10);
    forger.connect(&wanted(SERVICE, 77), NOW).expect("there is room");
    let forged = forger.poll_transmit().expect("a REQ").mad.to_bytes();
    managers[0].on_datagram(address(0), &forged, NOW);
    let of_forger = managers[0].poll_event().expect("a request").id();
    let [active, passive] = connect(&mut managers, 99);
    assert!(matches!(managers[0].poll_event(), Some(CmEvent::Accepted { id, .. }) if id == active), "refused as stale");
    managers[0].confirm(active, [0; 224], NOW).expect("it was accepted");
    pass(&mut managers, NOW, |_| false);
    assert_eq!(managers[1].poll_event(), Some(CmEvent::Established { id: passive }));
    assert_eq!(managers[0].state(of_forger), Some(CmState::ReqReceived));
}

/// A program destroys a queue pair and keeps its connection. Another program gets the number.
#[test]
fn a_connection_without_its_queue_pair_keeps_no_other_from_the_number() {
    for from in [0, 1] {
        let mut managers = [manager(0, 45, 10), manager(1, 46, 10)];
        managers.iter_mut().for_each(|manager| manager.listen(SERVICE, 10).expect("free"));
        let old = connect(&mut managers, 99);
        managers[0].confirm(old[0], [0; 224], NOW).expect("it was accepted");
        pass(&mut managers, NOW, |_| false);
        managers.iter_mut().for_each(|manager| while manager.poll_event().is_some() {});
        let qpn = [99, 77][from];
        managers[from].on_queue_pair_gone(Qpn::from_wire(qpn));
        assert_eq!(managers.each_ref().map(ConnectionManager::poll_timeout), [None; 2], "until the peer asks");
        let wanted = Connect { peer: address(from), ..wanted(SERVICE, qpn) };
        managers[from].connect(&wanted, NOW).expect("there is room");
        pass(&mut managers, NOW, |_| false);
        let refused = managers[from].poll_event();
        assert!(matches!(refused, Some(CmEvent::Rejected { .. })), "the first proves it: {refused:?}");
        // Neither program takes note of the end.
        for tenth in 0..10 {
            let now = NOW + Duration::from_millis(100) * tenth;
            managers.iter_mut().for_each(|manager| manager.on_timeout(now));
            pass(&mut managers, now, |_| false);
        }
        for host in [0, 1] {
            let ended = from_fn(|| managers[host].poll_event());
            let ended = ended.filter(|event| *event == CmEvent::Disconnected { id: old[host], timed_out: false });
            assert_eq!(ended.count(), 1, "host {host} hears of the end");
        }
        managers[from].connect(&wanted, NOW).expect("there is room");
        pass(&mut managers, NOW, |_| false);
        let event = managers[1 - from].poll_event();
        assert!(matches!(event, Some(CmEvent::Requested { .. })), "refused as stale, again and again: {event:?}");
    }
}
