//! Nothing is left of programs that are gone, by the reports of a host and by the calls of other
//! programs.

use std::{net::SocketAddr, time::Duration};

use roced_cm::{
    identifiers::{IdKey, IdService, OwnerId},
    wire::PortSpace,
};

use crate::{
    connections::{
        machine::{Machine, OWNERS, account_of},
        manners::Manners,
        surroundings::address,
    },
    violation::{Checked, demand},
};

/// Ports of listeners.
pub(crate) const PORTS: [u16; 4] = [7001, 7002, 7003, 7004];

/// Port spaces of listeners.
const PORT_SPACES: [PortSpace; 2] = [PortSpace::Tcp, PortSpace::Udp];

/// Everything has ended, and enough time has passed.
pub(crate) fn check(host: usize, machine: &mut Machine, manners: &Manners, now: Duration) -> Checked {
    let ids = &machine.ids;
    let left = (ids.len(), ids.listeners(), ids.memberships(), ids.connections().len());
    demand!(left == (0, 0, 0, 0), "leftover", "host {host}: (identifiers, listeners, groups, connections) {left:?}");
    demand!(ids.is_empty(), "leftover", "host {host}: something of programs is left: {ids:?}");
    let timer = ids.poll_timeout();
    demand!(timer.is_none(), "leftover", "host {host}: a timer at {timer:?}");
    check_accounts(host, machine, manners, now)?;
    check_ports(host, machine, manners, now)
}

/// Each user may have as many identifiers as at first, and no more.
fn check_accounts(host: usize, machine: &mut Machine, manners: &Manners, now: Duration) -> Checked {
    for owner in [OWNERS, OWNERS + 1].map(OwnerId) {
        machine.ids.add_owner(owner, account_of(owner));
        let created: Vec<_> = (0..=manners.of_account_max)
            .map_while(|_| machine.ids.create(owner, 1, 1, PortSpace::Tcp, IdService::Reliable).ok())
            .collect();
        let count = created.len() as u32;
        demand!(count == manners.of_account_max, "account", "host {host}: {owner:?} may have {count} identifiers");
        destroy(machine, &created, now);
    }
    Ok(())
}

/// Each port is free, those of listeners for a listener.
fn check_ports(host: usize, machine: &mut Machine, manners: &Manners, now: Duration) -> Checked {
    let owner = OwnerId(OWNERS);
    machine.surroundings.account = account_of(owner);
    let ephemeral = *manners.ephemeral.start()..=*manners.ephemeral.start() + 1;
    for space in PORT_SPACES {
        for port in PORTS.into_iter().chain(ephemeral.clone()) {
            for is_ipv6 in [false, true] {
                let service = if space == PortSpace::Udp { IdService::Datagram } else { IdService::Reliable };
                let Ok(key) = machine.ids.create(owner, 1, 1, space, service) else { continue };
                let at = SocketAddr::new(address(host, is_ipv6), port);
                let bound = machine.ids.bind(key, at, &mut machine.surroundings);
                demand!(bound.is_ok(), "port", "host {host}: {at} of {space:?} is not free: {bound:?}");
                let listens = machine.ids.listen(key, 0, &mut machine.surroundings);
                demand!(listens.is_ok(), "port", "host {host}: {at} of {space:?} has a listener: {listens:?}");
                destroy(machine, &[key], now);
            }
        }
    }
    demand!(machine.ids.is_empty(), "leftover", "host {host}: something of the last programs is left");
    Ok(())
}

fn destroy(machine: &mut Machine, keys: &[IdKey], now: Duration) {
    for key in keys {
        machine.ids.destroy(*key, &mut machine.surroundings, now).expect("it was created");
    }
}
