//! Refused requests are noted, with user and reason.

use roced_cm::{RefusalCause, identifiers::IdService};
use roced_types::DeviceId;

use crate::world::{OWNER, SECOND, World};

/// The causes of all refusals that `at` has noted, with their users.
fn refusals(world: &mut World, at: usize) -> Vec<(Option<u32>, RefusalCause)> {
    std::iter::from_fn(|| world.ids[at].poll_refused()).map(|refused| (refused.account, refused.cause)).collect()
}

#[test]
fn refusals_are_noted_with_user_and_reason_at_both_ends() {
    let mut world = World::new();
    world.ids[0].add_owner(OWNER, 6);
    world.ids[1].add_owner(OWNER, 7);
    let connect = |world: &mut World| {
        world.events[0].clear();
        let active = world.routed(IdService::Reliable);
        world.connect(active, b"");
        world.run(SECOND / 10);
    };
    // A port without a listener.
    connect(&mut world);
    assert_eq!(refusals(&mut world, 1), [(None, RefusalCause::NoListener)]);
    assert_eq!(refusals(&mut world, 0), [(Some(6), RefusalCause::ByPeer(8))]);
    // A program that takes nothing, then refuses.
    let listener = world.listen(IdService::Reliable, 1);
    connect(&mut world);
    connect(&mut world);
    assert_eq!(refusals(&mut world, 1), [(Some(7), RefusalCause::BacklogFull)]);
    // The other request has its place at once, but for the limit of the user.
    world.ids[1].set_limits(1000, 2);
    let passive = world.next(1).key;
    world.ids[1].reject(passive, 0, b"no", world.now).expect("it waits for that");
    world.run(SECOND / 10);
    let causes = [RefusalCause::ByProgram(28), RefusalCause::IdentifiersFull];
    assert_eq!(refusals(&mut world, 1), causes.map(|cause| (Some(7), cause)));
    assert_eq!(refusals(&mut world, 0), [(Some(6), RefusalCause::ByPeer(28))]);
    // The limit of the host: the request comes again.
    world.ids[1].set_limits(0, 1000);
    world.run(2 * SECOND);
    assert_eq!(refusals(&mut world, 1).first(), Some(&(None, RefusalCause::ConnectionsFull)));
    // Nothing comes back.
    world.drops = |_, _| true;
    world.run(100 * SECOND);
    assert_eq!(refusals(&mut world, 0), [(Some(6), RefusalCause::NoAnswer)]);
    world.drops = |_, _| false;
    world.destroy(1, listener);
    // A datagram service that is not there.
    world.events[0].clear();
    let active = world.routed(IdService::Datagram);
    world.connect(active, b"");
    world.run(SECOND / 10);
    assert_eq!(refusals(&mut world, 1), [(None, RefusalCause::NoListener)]);
    assert_eq!(refusals(&mut world, 0), [(Some(6), RefusalCause::ServiceByPeer(1))]);
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
        world.ids[1].add_owner(OWNER, 7);
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
