//! Refused requests are noted, with user and reason.

use roced_cm::{
    PeerAddress, RefusalCause,
    identifiers::{EventKind, IdService},
    wire::{CmMessage, reject_reason},
};
use roced_types::{AccountId, DeviceId};

use crate::world::{OWNER, SECOND, World};

/// The causes of all refusals that `at` has noted, with their users.
fn refusals(world: &mut World, at: usize) -> Vec<(Option<AccountId>, RefusalCause)> {
    std::iter::from_fn(|| world.ids[at].poll_refused()).map(|refused| (refused.account, refused.cause)).collect()
}

#[test]
fn refusals_are_noted_with_user_and_reason_at_both_ends() {
    let mut world = World::new();
    world.ids[0].add_owner(OWNER, AccountId(6));
    world.ids[1].add_owner(OWNER, AccountId(7));
    let connect = |world: &mut World| {
        world.events[0].clear();
        let active = world.routed(IdService::Reliable);
        world.connect(active, b"");
        world.run(SECOND / 10);
    };
    // A port without a listener.
    connect(&mut world);
    assert_eq!(refusals(&mut world, 1), [(None, RefusalCause::NoListener)]);
    assert_eq!(refusals(&mut world, 0), [(Some(AccountId(6)), RefusalCause::ByPeer(8))]);
    // A program that takes nothing, then refuses.
    let listener = world.listen(IdService::Reliable, 1);
    connect(&mut world);
    connect(&mut world);
    assert_eq!(refusals(&mut world, 1), [(Some(AccountId(7)), RefusalCause::BacklogFull)]);
    // The other request has its place at once, but for the limit of the user.
    world.ids[1].set_limits(1000, 2);
    let passive = world.next(1).key;
    world.ids[1].reject(passive, 0, b"no", world.now).expect("it waits for that");
    world.run(SECOND / 10);
    let causes = [RefusalCause::ByProgram(28), RefusalCause::IdentifiersFull];
    assert_eq!(refusals(&mut world, 1), causes.map(|cause| (Some(AccountId(7)), cause)));
    assert_eq!(refusals(&mut world, 0), [(Some(AccountId(6)), RefusalCause::ByPeer(28))]);
    // The limit of the host: the request comes again.
    world.ids[1].set_limits(0, 1000);
    world.run(2 * SECOND);
    assert_eq!(refusals(&mut world, 1).first(), Some(&(None, RefusalCause::ConnectionsFull)));
    // Nothing comes back.
    world.drops = |_, _| true;
    world.run(100 * SECOND);
    assert_eq!(refusals(&mut world, 0), [(Some(AccountId(6)), RefusalCause::NoAnswer)]);
    world.drops = |_, _| false;
    world.destroy(1, listener);
    // A datagram service that is not there.
    world.events[0].clear();
    let active = world.routed(IdService::Datagram);
    world.connect(active, b"");
    world.run(SECOND / 10);
    assert_eq!(refusals(&mut world, 1), [(None, RefusalCause::NoListener)]);
    assert_eq!(refusals(&mut world, 0), [(Some(AccountId(6)), RefusalCause::ServiceByPeer(1))]);
    world.end();
}

#[test]
fn refusals_that_are_not_taken_are_bounded() {
    let mut world = World::new();
    for _ in 0..100 {
        let active = world.routed(IdService::Reliable);
        world.connect(active, b"");
        world.run(SECOND / 10);
        world.events[0].clear();
        world.destroy(0, active);
    }
    assert_eq!(refusals(&mut world, 1).len(), 64);
    world.end();
}

/// Also a listener on all addresses, which is bound to no device.
#[test]
fn a_listener_hears_nothing_of_a_device_that_its_owner_may_not_use() {
    for forbidden in [false, true] {
        let mut world = World::new();
        world.ids[1].add_owner(OWNER, AccountId(7));
        let listener = world.listen(IdService::Reliable, 8);
        if forbidden {
            (0..64).for_each(|device| world.ids[1].forbid(OWNER, DeviceId(device)));
        }
        let active = world.routed(IdService::Reliable);
        world.connect(active, b"");
        world.run(SECOND / 10);
        assert_eq!(world.events[1].is_empty(), forbidden);
        let is_refused = refusals(&mut world, 0).iter().any(|(_, cause)| *cause == RefusalCause::ByPeer(8));
        assert_eq!(is_refused, forbidden);
        world.destroy(1, listener);
        world.end();
    }
}

/// In the path, or in the addresses that a program would be told. The answer goes to the sender, and
/// to no host that the request names.
#[test]
fn a_request_that_names_other_hosts_than_its_packet_is_refused() {
    const THIRD: u8 = 9;
    let (in_path, in_header) = (reject_reason::INVALID_GID, reject_reason::CONSUMER_DEFINED);
    // Which of the addresses is another, and the reason of the refusal: source and destination of
    // the path, of the header, and both sources alike.
    let changes = [
        ([true, false, false, false], in_path),
        ([false, true, false, false], in_path),
        ([false, false, true, false], in_header),
        ([false, false, false, true], in_header),
        ([true, false, true, false], in_header),
    ];
    let mut world = World::new();
    let listener = world.listen(IdService::Reliable, 8);
    for (is_other, reason) in changes {
        let active = world.routed(IdService::Reliable);
        world.connect(active, b"");
        let request = world.ids[0].poll_transmit().expect("a REQ");
        let mut mad = request.mad;
        let CmMessage::Req(req) = &mut mad.message else { panic!("{mad:?}") };
        let (path, header) = (&mut req.primary, &mut req.private_data[..36]);
        let (sources, destinations) = header.split_at_mut(20);
        let bytes = [&mut path.local_gid[15], &mut path.remote_gid[15], &mut sources[19], &mut destinations[15]];
        bytes.into_iter().zip(is_other).filter(|(_, is_other)| *is_other).for_each(|(byte, _)| *byte = THIRD);
        let from = PeerAddress { local: request.to.remote, remote: request.to.local, ..request.to };
        let World { ids, hosts, now, .. } = &mut world;
        ids[1].on_datagram(from, &mad.to_bytes(), &mut hosts[1], *now);
        let answer = ids[1].poll_transmit().expect("a REJ");
        let CmMessage::Rej(rej) = answer.mad.message else { panic!("{:?}", answer.mad) };
        assert_eq!((answer.to, rej.reason), (from, reason), "{is_other:?}");
        assert!(ids[1].poll_transmit().is_none() && ids[1].poll_event().is_none(), "{is_other:?}");
        world.destroy(0, active);
        world.run(SECOND);
        world.events[0].clear();
    }
    world.nothing(1);
    let active = world.routed(IdService::Reliable);
    world.connect(active, b"");
    assert_eq!(world.next(1).kind, EventKind::ConnectRequest, "the same without a change");
    world.destroy(1, listener);
    world.end();
}
