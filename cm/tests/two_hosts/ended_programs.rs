//! Connections of programs that have ended.

use std::time::Duration;

use roced_cm::{
    CmEvent, CmState, Connect, ConnectionManager,
    wire::{CaGuid, CmMessage, CommId, Mad, Rep, TransactionId},
};
use roced_types::{AccountId, Qpn};

use crate::{
    connected, pass,
    world::{Plan, SERVICE, acceptance, address, manager, wanted},
};

#[test]
fn the_peer_of_a_program_that_ends_is_told() {
    for host in 0..2 {
        let (mut world, ids) = connected(8);
        world.carry_out(host, ids[host], Plan::Destroy);
        world.run(world.now + Duration::from_millis(100));
        assert!(world.disconnected == 1 && world.known[1 - host][&ids[1 - host]].ended);
        world.end();
    }
}

/// A connection of a program of user `account` that ends, to a peer that is gone.
fn end_one(manager: &mut ConnectionManager, account: AccountId, number: u32) -> CommId {
    let wanted = Connect { account, ..wanted(SERVICE, 16 + number) };
    // The DREQs before it are not waited for any more.
    let now = Duration::from_millis(3) * number;
    manager.on_timeout(now);
    while manager.poll_transmit().is_some() {}
    let id = manager.connect(&wanted, now).expect("there is room");
    let CmMessage::Req(req) = manager.poll_transmit().expect("a REQ").mad.message else { panic!("a REQ") };
    let rep = Rep {
        local: CommId(number),
        remote: req.local,
        qkey: 0,
        qpn: Qpn::from_wire(16 + number),
        eecn: 0,
        ece_vendor: 0,
        starting_psn: 0,
        responder_resources: 1,
        initiator_depth: 1,
        target_ack_delay: 15,
        failover_accepted: 0,
        flow_control: false,
        rnr_retry_count: 7,
        srq: false,
        local_ca: CaGuid(101),
        private_data: [0; 196],
    };
    let mad = Mad { transaction: TransactionId(1), modifier: 0, message: CmMessage::Rep(rep) };
    manager.on_datagram(address(0), &mad.to_bytes(), now);
    manager.confirm(id, [0; 224], now).expect("it was accepted");
    manager.destroy(id, now).expect("it is there");
    while manager.poll_transmit().is_some() || manager.poll_event().is_some() {}
    id
}

/// More connections of ended programs than are kept: those of the user that has most are
/// forgotten.
#[test]
fn a_user_with_many_ended_programs_takes_no_places_of_others() {
    let mut manager = manager(0, 18, 1 << 15);
    let of_one = end_one(&mut manager, AccountId(1), 1);
    let of_other: Vec<CommId> = (2..17_000).map(|number| end_one(&mut manager, AccountId(2), number)).collect();
    assert_eq!(manager.state(of_one), Some(CmState::DreqSent), "the only one of its user");
    assert_eq!(manager.state(of_other[0]), None, "the oldest of the other");
    assert_eq!(manager.len(), 1 << 14);
}

/// A program of a user that has as many identifiers as it may: each peer is told, also if that
/// takes several tries.
#[test]
fn all_connections_of_the_largest_program_go_on_without_it() {
    let mut manager = manager(0, 18, 1 << 17);
    let ended: Vec<CommId> = (1..=20_000).map(|number| end_one(&mut manager, AccountId(1), number)).collect();
    assert!(ended.iter().all(|id| manager.state(*id) == Some(CmState::DreqSent)));
}

/// Of each end that gives up: the message that is answered by the refusal comes again.
#[test]
fn a_lost_refusal_of_a_program_that_ends_is_given_again() {
    for gives_up in [0, 1] {
        let mut managers = [0, 1].map(|host| manager(host, 19, 10));
        managers[1].listen(SERVICE, 10).expect("free");
        let now = Duration::from_secs(1);
        let active = managers[0].connect(&wanted(SERVICE, 20), now).expect("there is room");
        let req = managers[0].poll_transmit().expect("a REQ").mad.to_bytes();
        managers[1].on_datagram(address(1), &req, now);
        let Some(CmEvent::Requested { id: passive, .. }) = managers[1].poll_event() else { panic!("a request") };
        let again = if gives_up == 0 {
            managers[1].accept(passive, &acceptance(), now).expect("it was requested");
            let rep = managers[1].poll_transmit().expect("a REP").mad.to_bytes();
            managers[0].on_datagram(address(0), &rep, now);
            assert!(matches!(managers[0].poll_event(), Some(CmEvent::Accepted { .. })));
            rep
        } else {
            req
        };
        managers[gives_up].destroy([active, passive][gives_up], now).expect("it is there");
        pass(&mut managers, now, |message| matches!(message, CmMessage::Rej(_)));
        managers[gives_up].on_datagram(address(gives_up), &again, now);
        pass(&mut managers, now, |_| false);
        let told = managers[1 - gives_up].poll_event();
        assert!(matches!(told, Some(CmEvent::Rejected { .. })), "{gives_up}: {told:?}");
    }
}
