//! Ports of a host: one table for each port space. They are not those of the kernel's TCP and UDP.

use alloc::{collections::BTreeMap, vec::Vec};
use core::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    ops::RangeInclusive,
};

use roced_types::AccountId;

use super::{CmErrno, IdKey, any_of};
use crate::wire::PortSpace;

/// The use of a port by an identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PortUse {
    pub(super) key: IdKey,
    /// Address; unspecified for all.
    pub(super) address: IpAddr,
    /// Interface of a link-local address; each interface of a host may have the same one.
    pub(super) scope: u32,
    /// For one family alone, if the address is for all.
    pub(super) is_family_only: bool,
    pub(super) may_share: bool,
    pub(super) listens: bool,
    /// It is one of the ports to choose from.
    pub(super) is_chosen: bool,
    /// Peer, for which the port may be shared if it was chosen here.
    pub(super) chosen_for: Option<SocketAddr>,
    /// The user that has it.
    pub(super) account: AccountId,
}

impl PortUse {
    fn is_any(&self) -> bool {
        self.address.is_unspecified()
    }

    /// A frame may be for either.
    fn overlaps(&self, other: &Self) -> bool {
        let covers = |any: &Self, it: &Self| any.address.is_ipv6() && !any.is_family_only || same_family(any, it);
        match (self.is_any(), other.is_any()) {
            (true, true) => covers(self, other) || covers(other, self),
            (true, false) => covers(self, other),
            (false, true) => covers(other, self),
            (false, false) => (self.address, self.scope) == (other.address, other.scope),
        }
    }

    /// The error of Linux about two that overlap.
    fn conflict(&self, other: &Self) -> CmErrno {
        if self.is_any() || other.is_any() { CmErrno::AddressNotAvailable } else { CmErrno::AddressInUse }
    }
}

fn same_family(one: &PortUse, other: &PortUse) -> bool {
    one.address.is_ipv4() == other.address.is_ipv4()
}

/// Ports that are looked at for one that can be shared: each look costs, and a program tries again.
const SHARED_TRIES: usize = 1024;

/// The listener of an address.
#[derive(Clone, Copy, Debug)]
struct PortListener {
    key: IdKey,
    is_family_only: bool,
}

/// Ports in use.
#[derive(Debug, Default)]
pub(super) struct Ports {
    uses: BTreeMap<(PortSpace, u16), Vec<PortUse>>,
    /// By port, address and interface.
    listeners: BTreeMap<(PortSpace, u16, IpAddr, u32), PortListener>,
    last_chosen: u16,
    /// Ports of those to choose from that each user has.
    chosen: BTreeMap<(PortSpace, AccountId), u32>,
}

impl Ports {
    /// Takes `port`.
    ///
    /// # Errors
    /// [`CmErrno::AddressInUse`], or [`CmErrno::AddressNotAvailable`] if one of both is for all
    /// addresses: as Linux.
    pub(super) fn take(
        &mut self,
        space: PortSpace,
        port: u16,
        range: &RangeInclusive<u16>,
        wanted: PortUse,
    ) -> Result<(), CmErrno> {
        let is_chosen = range.contains(&port);
        if is_chosen && !self.has_room(space, range, wanted.account) {
            return Err(CmErrno::AddressNotAvailable);
        }
        let uses = self.uses.entry((space, port)).or_default();
        let others = uses.iter().filter(|other| other.key != wanted.key && other.overlaps(&wanted));
        for other in others {
            if other.may_share && wanted.may_share && !other.listens {
                continue;
            }
            let error = other.conflict(&wanted);
            self.drop_empty(space, port);
            return Err(error);
        }
        uses.push(PortUse { is_chosen, ..wanted });
        self.count(space, is_chosen, wanted.account);
        Ok(())
    }

    fn count(&mut self, space: PortSpace, is_chosen: bool, account: AccountId) {
        if is_chosen {
            *self.chosen.entry((space, account)).or_insert(0) += 1;
        }
    }

    /// A user takes half of the ports to choose from at most.
    fn has_room(&self, space: PortSpace, range: &RangeInclusive<u16>, account: AccountId) -> bool {
        let half = (u32::from(range.end().saturating_sub(*range.start())) + 1).div_ceil(2);
        self.chosen.get(&(space, account)).is_none_or(|count| *count < half)
    }

    /// Takes a free port of `range`, the search for which begins at a random one. If there is none,
    /// or its user has half of them, identifiers with other peers share one.
    ///
    /// # Errors
    /// [`CmErrno::AddressNotAvailable`].
    pub(super) fn take_free(
        &mut self,
        space: PortSpace,
        range: &RangeInclusive<u16>,
        random: u32,
        wanted: PortUse,
    ) -> Result<u16, CmErrno> {
        let count = u32::from(range.end().saturating_sub(*range.start())) + 1;
        let candidates = || (0..count).map(|at| range.start() + ((random % count + at) % count) as u16);
        let is_free = |port: &u16| !self.uses.contains_key(&(space, *port)) && *port != self.last_chosen;
        let is_shared = |port: &u16| {
            let Some(uses) = self.uses.get(&(space, *port)) else { return false };
            let mut peers = uses.iter().map(|other| other.chosen_for);
            wanted.chosen_for.is_some() && peers.all(|peer| peer.is_some() && peer != wanted.chosen_for)
        };
        let has_room = self.has_room(space, range, wanted.account);
        let free = if has_room { candidates().find(is_free) } else { None };
        let port = free.or_else(|| candidates().take(SHARED_TRIES).find(is_shared));
        let port = port.ok_or(CmErrno::AddressNotAvailable)?;
        self.last_chosen = port;
        self.uses.entry((space, port)).or_default().push(PortUse { is_chosen: true, ..wanted });
        self.count(space, true, wanted.account);
        Ok(port)
    }

    /// The use of a port by an identifier, to change after it was bound.
    pub(super) fn use_of(&mut self, space: PortSpace, port: u16, key: IdKey) -> Option<&mut PortUse> {
        self.uses.get_mut(&(space, port))?.iter_mut().find(|it| it.key == key)
    }

    /// Marks an identifier's port as that of a listener. As with Linux no other one may have it
    /// then, also if both would share it, and whether or not that listens.
    ///
    /// # Errors
    /// [`CmErrno::AddressInUse`], or [`CmErrno::AddressNotAvailable`] if one of both is for all
    /// addresses.
    pub(super) fn listen(&mut self, space: PortSpace, port: u16, key: IdKey) -> Result<(), CmErrno> {
        let Some(uses) = self.uses.get_mut(&(space, port)) else { return Err(CmErrno::Invalid) };
        let own = *uses.iter().find(|it| it.key == key).ok_or(CmErrno::Invalid)?;
        let mut others = uses.iter().filter(|other| other.key != key && other.overlaps(&own));
        if let Some(other) = others.next() {
            return Err(other.conflict(&own));
        }
        uses.iter_mut().filter(|it| it.key == key).for_each(|it| it.listens = true);
        let listener = PortListener { key, is_family_only: own.is_family_only };
        self.listeners.insert((space, port, own.address, own.scope), listener);
        Ok(())
    }

    /// The listener for a request to `address`, on interface `scope` if it is link-local: that of
    /// the address itself before one for all.
    pub(super) fn listener(&self, space: PortSpace, port: u16, address: IpAddr, scope: u32) -> Option<IdKey> {
        let at = |address, scope| self.listeners.get(&(space, port, address, scope));
        let of_both = || at(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0).filter(|it| !it.is_family_only);
        let found = at(address, scope).or_else(|| at(any_of(address), 0)).or_else(of_both);
        found.map(|listener| listener.key)
    }

    /// Whether an identifier listens at the port.
    pub(super) fn is_listening(&self, space: PortSpace, port: u16) -> bool {
        let first = (space, port, IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
        self.listeners.range(first..).next().is_some_and(|((of, at, ..), _)| (*of, *at) == (space, port))
    }

    /// Gives an identifier's port back.
    pub(super) fn give_back(&mut self, space: PortSpace, port: u16, key: IdKey) {
        let Some(uses) = self.uses.get_mut(&(space, port)) else { return };
        let Some(at) = uses.iter().position(|it| it.key == key) else { return };
        let PortUse { is_chosen, account, listens, address, scope, .. } = uses.swap_remove(at);
        if listens {
            self.listeners.remove(&(space, port, address, scope));
        }
        if let Some(count) = self.chosen.get_mut(&(space, account)).filter(|_| is_chosen) {
            *count -= 1;
            if *count == 0 {
                self.chosen.remove(&(space, account));
            }
        }
        self.drop_empty(space, port);
    }

    /// No port is in use.
    pub(super) fn is_empty(&self) -> bool {
        self.uses.is_empty() && self.listeners.is_empty() && self.chosen.is_empty()
    }

    fn drop_empty(&mut self, space: PortSpace, port: u16) {
        if self.uses.get(&(space, port)).is_some_and(Vec::is_empty) {
            self.uses.remove(&(space, port));
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::{super::OwnerId, *};

    const SPACE: PortSpace = PortSpace::Tcp;

    fn used(number: u32, address: &str) -> PortUse {
        PortUse {
            key: IdKey { owner: OwnerId(1), number },
            address: address.parse().expect("an address"),
            scope: 0,
            is_family_only: false,
            may_share: false,
            listens: false,
            is_chosen: false,
            chosen_for: None,
            account: AccountId(7),
        }
    }

    #[test]
    fn a_port_is_taken_once_for_each_address() {
        let mut ports = Ports::default();
        ports.take(SPACE, 7, &(50..=53), used(1, "10.0.0.1")).expect("free");
        assert_eq!(ports.take(SPACE, 7, &(50..=53), used(2, "10.0.0.1")), Err(CmErrno::AddressInUse));
        assert_eq!(ports.take(SPACE, 7, &(50..=53), used(2, "0.0.0.0")), Err(CmErrno::AddressNotAvailable));
        assert_eq!(ports.take(SPACE, 7, &(50..=53), used(2, "::")), Err(CmErrno::AddressNotAvailable));
        let only = PortUse { is_family_only: true, ..used(2, "::") };
        ports.take(SPACE, 7, &(50..=53), only).expect("IPv6 alone");
        ports.take(SPACE, 7, &(50..=53), used(3, "10.0.0.2")).expect("another address");
        ports.take(PortSpace::Udp, 7, &(50..=53), used(4, "10.0.0.1")).expect("another port space");
        for number in 1..=4 {
            ports.give_back(SPACE, 7, IdKey { owner: OwnerId(1), number });
            ports.give_back(PortSpace::Udp, 7, IdKey { owner: OwnerId(1), number });
        }
        assert!(ports.is_empty());
    }

    #[test]
    fn interfaces_with_the_same_link_local_address_have_ports_of_their_own() {
        let mut ports = Ports::default();
        let on = |number, scope| PortUse { scope, ..used(number, "fe80::1") };
        for (number, scope) in [(1, 5), (2, 6)] {
            ports.take(SPACE, 7, &(50..=53), on(number, scope)).expect("another interface");
            ports.listen(SPACE, 7, on(number, scope).key).expect("another interface");
        }
        assert_eq!(ports.take(SPACE, 7, &(50..=53), on(3, 6)), Err(CmErrno::AddressInUse));
        assert_eq!(ports.take(SPACE, 7, &(50..=53), used(3, "::")), Err(CmErrno::AddressNotAvailable));
        let address = "fe80::1".parse().expect("an address");
        let found = [5, 6, 7].map(|scope| ports.listener(SPACE, 7, address, scope).map(|key| key.number));
        assert_eq!(found, [Some(1), Some(2), None]);
    }

    /// As `cma_check_port` of Linux: before an identifier listens, all others must have left.
    #[test]
    fn a_shared_port_has_no_listener_before_one_identifier_alone_is_left() {
        let mut ports = Ports::default();
        let shared = |number, address| PortUse { may_share: true, ..used(number, address) };
        for (first, second, error) in [
            ("10.0.0.1", "10.0.0.1", CmErrno::AddressInUse),
            ("10.0.0.1", "0.0.0.0", CmErrno::AddressNotAvailable),
            ("::", "10.0.0.1", CmErrno::AddressNotAvailable),
            ("0.0.0.0", "0.0.0.0", CmErrno::AddressNotAvailable),
        ] {
            let both = [shared(1, first), shared(2, second)];
            for one in both {
                ports.take(SPACE, 7, &(50..=53), one).expect("both share");
            }
            for one in both {
                assert_eq!(ports.listen(SPACE, 7, one.key), Err(error), "{first} {second}");
            }
            ports.give_back(SPACE, 7, both[0].key);
            ports.listen(SPACE, 7, both[1].key).expect("alone");
            assert_eq!(ports.take(SPACE, 7, &(50..=53), both[0]), Err(error), "it listens");
            ports.give_back(SPACE, 7, both[1].key);
        }
        assert!(ports.is_empty());
    }

    #[test]
    fn sharing_ends_at_a_listener() {
        let mut ports = Ports::default();
        let shared = |number| PortUse { may_share: true, ..used(number, "10.0.0.1") };
        ports.take(SPACE, 7, &(50..=53), shared(1)).expect("free");
        ports.listen(SPACE, 7, shared(1).key).expect("alone");
        assert_eq!(ports.take(SPACE, 7, &(50..=53), shared(3)), Err(CmErrno::AddressInUse));
        assert_eq!(ports.listener(SPACE, 7, "10.0.0.1".parse().expect("an address"), 0), Some(shared(1).key));
        assert_eq!(ports.listener(SPACE, 7, "10.0.0.2".parse().expect("an address"), 0), None);
    }

    #[test]
    fn a_listener_for_all_addresses_has_requests_to_each() {
        let mut ports = Ports::default();
        ports.take(SPACE, 7, &(50..=53), used(1, "::")).expect("free");
        ports.listen(SPACE, 7, used(1, "::").key).expect("alone");
        for address in ["10.0.0.1", "10.0.0.2", "fd00::1"] {
            let found = ports.listener(SPACE, 7, address.parse().expect("an address"), 0);
            assert_eq!(found, Some(used(1, "::").key), "{address}");
        }
        assert!(ports.is_listening(SPACE, 7) && !ports.is_listening(SPACE, 8));
    }

    /// Each request of a peer looks for one: steps through all would take a minute.
    #[test]
    fn identifiers_that_share_the_port_of_a_listener_are_not_looked_at() {
        let mut ports = Ports::default();
        let shared = |number: u32| PortUse { may_share: true, ..used(number, "10.0.0.2") };
        for number in 2..8000 {
            ports.take(SPACE, 7, &(50..=53), shared(number)).expect("all share");
        }
        ports.take(SPACE, 7, &(50..=53), used(1, "10.0.0.1")).expect("another address");
        ports.listen(SPACE, 7, used(1, "10.0.0.1").key).expect("the only one");
        let address = "10.0.0.1".parse().expect("an address");
        let start = std::time::Instant::now();
        for _ in 0..2_000_000 {
            assert_eq!(ports.listener(SPACE, 7, address, 0).map(|key| key.number), Some(1));
        }
        let took = start.elapsed();
        assert!(took < std::time::Duration::from_secs(6), "{took:?}");
    }

    #[test]
    fn ports_of_the_range_that_a_user_names_count_as_well() {
        let mut ports = Ports::default();
        let range = 50..=53;
        for port in 50..52 {
            ports.take(SPACE, port, &range, used(1, "::")).expect("free");
        }
        assert_eq!(ports.take(SPACE, 52, &range, used(2, "::")), Err(CmErrno::AddressNotAvailable));
        ports.take(SPACE, 60, &range, used(2, "::")).expect("none of those to choose from");
        let other = PortUse { account: AccountId(8), ..used(3, "::") };
        assert!(ports.take_free(SPACE, &range, 0, other).is_ok(), "the other half");
    }

    #[test]
    fn chosen_ports_differ_until_there_is_no_other() {
        let mut ports = Ports::default();
        let to = |number: u32, peer: &str| PortUse {
            chosen_for: Some(peer.parse().expect("an address")),
            ..used(number, "10.0.0.1")
        };
        let mut take = |number: u32| {
            let wanted = PortUse { account: AccountId(number / 2), ..to(number, "10.0.0.2:9") };
            ports.take_free(SPACE, &(50..=53), 2, wanted)
        };
        let mut chosen: Vec<_> = (0..2).map(&mut take).collect();
        assert_eq!(take(1), Err(CmErrno::AddressNotAvailable), "half of them for each user");
        chosen.extend((2..4).map(&mut take));
        chosen.sort_unstable_by_key(|port| port.unwrap_or(0));
        assert_eq!(chosen, [50, 51, 52, 53].map(Ok));
        assert_eq!(ports.take_free(SPACE, &(50..=53), 0, to(9, "10.0.0.2:9")), Err(CmErrno::AddressNotAvailable));
        assert!(ports.take_free(SPACE, &(50..=53), 0, to(9, "10.0.0.3:9")).is_ok(), "another peer");
        assert_eq!(ports.take_free(SPACE, &(50..=53), 0, used(9, "::")), Err(CmErrno::AddressNotAvailable));
    }
}
