//! GIDs: the addresses of a device's interface and of its VLAN interfaces, each at an index that it
//! keeps.

use std::{collections::BTreeMap, net::IpAddr};

use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage};

use super::link::Interfaces;

/// By which RoCE a GID speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RoceVersion {
    /// RoCEv1.
    V1 = 1,
    /// RoCEv2.
    V2 = 2,
}

/// A GID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GidTableEntry {
    /// The address that it is.
    pub address: IpAddr,
    /// The interface that has the address.
    pub ifindex: u32,
    /// The VLAN of that interface.
    pub vlan: Option<u16>,
    /// Length of the address's network prefix.
    pub prefix_len: u8,
    /// By which RoCE it speaks. A [`GidTable`] has each address once, for RoCEv2.
    pub roce: RoceVersion,
}

/// Indices that a table gives out before an index is given to a second address.
const INDICES: usize = 256;

/// The GIDs of a device. Clients name them by index, so an index belongs to an address for as long as
/// the daemon runs, also while the address is away; beyond 256 addresses the one that went
/// away first loses its index.
///
/// Index 0 is that of the interface's link-local IPv6 address and of no other, as with the adapters
/// of Linux. It is empty while there is none: until duplicate address detection has ended, and
/// without IPv6. So the index of an IPv4 address does not depend on whether it came first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GidTable {
    /// The first is for the link-local address.
    slots: Vec<GidSlot>,
    /// Changes so far.
    changes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GidSlot {
    /// Never used.
    Empty,
    Present(GidTableEntry),
    /// The address is away since this change.
    Away(GidTableEntry, u64),
}

impl GidSlot {
    const fn entry(&self) -> Option<&GidTableEntry> {
        match self {
            Self::Empty => None,
            Self::Present(entry) | Self::Away(entry, _) => Some(entry),
        }
    }

    const fn present(&self) -> Option<&GidTableEntry> {
        match self {
            Self::Present(entry) => Some(entry),
            Self::Empty | Self::Away(..) => None,
        }
    }
}

impl Default for GidTable {
    fn default() -> Self {
        Self { slots: vec![GidSlot::Empty], changes: 0 }
    }
}

impl GidTable {
    /// Indices in use or once in use, and index 0.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// No GID.
    pub fn is_empty(&self) -> bool {
        self.entries().next().is_none()
    }

    /// The GID at `index`.
    pub fn get(&self, index: u32) -> Option<&GidTableEntry> {
        self.slots.get(index as usize).and_then(GidSlot::present)
    }

    /// Every GID with its index.
    pub fn entries(&self) -> impl Iterator<Item = (u32, &GidTableEntry)> {
        self.slots.iter().zip(0..).filter_map(|(slot, at)| Some((at, slot.present()?)))
    }

    /// One of the GIDs is `address`.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.entries().any(|(_, entry)| entry.address == address)
    }

    /// Makes the table hold exactly `now`; says whether anything changed.
    pub(super) fn update(&mut self, now: &[GidTableEntry]) -> bool {
        let before = self.slots.clone();
        self.changes += 1;
        for slot in &mut self.slots {
            if let GidSlot::Present(entry) = *slot
                && !now.iter().any(|one| is_same(one, &entry))
            {
                *slot = GidSlot::Away(entry, self.changes);
            }
        }
        for entry in now {
            let own = self.slots.iter().position(|slot| slot.entry().is_some_and(|known| is_same(known, entry)));
            let at = own.unwrap_or_else(|| self.index_for(entry));
            self.slots[at] = GidSlot::Present(*entry);
        }
        self.slots != before
    }

    /// The place of a new address.
    fn index_for(&mut self, entry: &GidTableEntry) -> usize {
        if is_default(entry) && self.slots[0].present().is_none() {
            return 0;
        }
        let away = |slot: &GidSlot| match slot {
            GidSlot::Away(_, since) => Some(*since),
            _ => None,
        };
        let longest_away =
            (1..self.slots.len()).filter(|at| away(&self.slots[*at]).is_some()).min_by_key(|at| away(&self.slots[*at]));
        match longest_away {
            Some(at) if self.slots.len() >= INDICES => at,
            _ => {
                self.slots.push(GidSlot::Empty);
                self.slots.len() - 1
            }
        }
    }
}

/// The GID that an adapter has at index 0.
const fn is_default(entry: &GidTableEntry) -> bool {
    matches!(entry.address, IpAddr::V6(v6) if v6.is_unicast_link_local()) && entry.vlan.is_none()
}

/// The index of an interface changes when it goes away and returns; a device has one interface of
/// each VLAN.
fn is_same(a: &GidTableEntry, b: &GidTableEntry) -> bool {
    (a.address, a.vlan) == (b.address, b.vlan)
}

/// All addresses of all interfaces.
#[derive(Debug, Default)]
pub(super) struct Addresses(BTreeMap<(u32, IpAddr), u8>);

impl Addresses {
    /// An address is, or has changed. One that is not yet known to be unique, or known not to be,
    /// is none.
    pub(super) fn set(&mut self, message: &AddressMessage) {
        let Some(address) = address_of(message) else { return };
        let key = (message.header.index, address);
        if is_usable(message) {
            self.0.insert(key, message.header.prefix_len);
        } else {
            self.0.remove(&key);
        }
    }

    /// An interface has the address.
    pub(super) fn contains(&self, address: IpAddr) -> bool {
        self.0.keys().any(|(_, known)| *known == address)
    }

    /// An address is gone.
    pub(super) fn remove(&mut self, message: &AddressMessage) {
        if let Some(address) = address_of(message) {
            self.0.remove(&(message.header.index, address));
        }
    }

    /// The GIDs of the device on interface `ifindex`: link-local IPv6 first, then IPv4, then other
    /// IPv6, as Linux orders those of an adapter.
    pub(super) fn gids(&self, ifindex: u32, links: &Interfaces) -> Vec<GidTableEntry> {
        let mut gids: Vec<GidTableEntry> = self
            .0
            .iter()
            .filter_map(|((index, address), prefix_len)| {
                let vlan = links.vlan_on(*index, ifindex)?;
                Some(GidTableEntry {
                    address: *address,
                    ifindex: *index,
                    vlan,
                    prefix_len: *prefix_len,
                    roce: RoceVersion::V2,
                })
            })
            .collect();
        gids.sort_by_key(|gid| {
            let order = match gid.address {
                IpAddr::V6(v6) if v6.is_unicast_link_local() => 0,
                IpAddr::V4(_) => 1,
                IpAddr::V6(_) => 2,
            };
            (gid.vlan, order, gid.address)
        });
        gids
    }
}

/// IPv4 says its own address in `Local` (`Address` is the peer's on a point-to-point link), IPv6 in
/// `Address`.
fn address_of(message: &AddressMessage) -> Option<IpAddr> {
    let find = |local: bool| {
        message.attributes.iter().find_map(|attribute| match attribute {
            AddressAttribute::Local(address) if local => Some(*address),
            AddressAttribute::Address(address) if !local => Some(*address),
            _ => None,
        })
    };
    find(true).or_else(|| find(false))
}

fn is_usable(message: &AddressMessage) -> bool {
    let flags = message.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Flags(flags) => Some(*flags),
        _ => None,
    });
    match flags {
        Some(flags) => !flags.intersects(AddressFlags::Tentative | AddressFlags::Dadfailed),
        None => !message.header.flags.intersects(AddressHeaderFlags::Tentative | AddressHeaderFlags::Dadfailed),
    }
}

#[cfg(test)]
mod tests {
    use netlink_packet_route::link::{InfoData, InfoVlan, LinkAttribute, LinkInfo, LinkMessage};

    use super::*;

    fn gid(last: u8) -> GidTableEntry {
        GidTableEntry {
            address: IpAddr::from([10, 0, 0, last]),
            ifindex: 2,
            vlan: None,
            prefix_len: 24,
            roce: RoceVersion::V2,
        }
    }

    fn link_local(last: u16) -> GidTableEntry {
        GidTableEntry { address: IpAddr::from([0xfe80, 0, 0, 0, 0, 0, 0, last]), ..gid(0) }
    }

    #[test]
    fn an_address_keeps_its_index_while_it_is_away() {
        let mut table = GidTable::default();
        assert!(table.update(&[gid(1), gid(2), gid(3)]));
        assert!(!table.update(&[gid(3), gid(1), gid(2)]));
        assert!(table.update(&[gid(1), gid(3)]));
        assert_eq!(table.get(2), None);
        assert_eq!(table.get(3), Some(&gid(3)));
        assert!(table.update(&[gid(1), gid(3), gid(4)]));
        assert_eq!((table.get(2), table.get(4)), (None, Some(&gid(4))), "a new one gets a new index");
        assert!(table.update(&[gid(1), gid(2), gid(3)]));
        assert_eq!(table.get(2), Some(&gid(2)), "back in its place");
        // Also under another index of the interface.
        assert!(table.update(&[]) && table.is_empty());
        let elsewhere = GidTableEntry { ifindex: 9, ..gid(3) };
        assert!(table.update(&[elsewhere]));
        assert_eq!(table.get(3), Some(&elsewhere));
        assert!(table.contains(gid(3).address) && !table.contains(gid(2).address));
    }

    #[test]
    fn index_0_belongs_to_the_link_local_address_in_any_order_of_arrival() {
        for order in [[link_local(1), gid(1)], [gid(1), link_local(1)]] {
            let mut table = GidTable::default();
            assert!(table.update(&order[..1]) && table.update(&order));
            assert_eq!((table.get(0), table.get(1)), (Some(&link_local(1)), Some(&gid(1))));
        }
        let mut table = GidTable::default();
        let tagged = GidTableEntry { vlan: Some(5), ..link_local(1) };
        assert!(table.update(&[tagged, link_local(1), link_local(2)]));
        assert_eq!(
            (table.get(0), table.get(1), table.get(2)),
            (Some(&link_local(1)), Some(&tagged), Some(&link_local(2)))
        );
        // The interface returned with another MAC address.
        assert!(table.update(&[]) && table.update(&[link_local(3)]));
        assert_eq!(table.get(0), Some(&link_local(3)));
    }

    #[test]
    fn an_endless_stream_of_addresses_does_not_grow_the_table_for_ever() {
        let mut table = GidTable::default();
        for number in 0..10_000_u32 {
            let address = IpAddr::from(number.to_be_bytes());
            assert!(table.update(&[gid(1), GidTableEntry { address, ..gid(2) }]));
            assert_eq!(table.get(1), Some(&gid(1)));
        }
        assert_eq!(table.len(), INDICES);
    }

    fn message(last: u8, attributes: &[AddressAttribute]) -> AddressMessage {
        let mut message = AddressMessage::default();
        message.header.index = 2;
        message.header.prefix_len = 24;
        message.attributes.push(AddressAttribute::Address(gid(last).address));
        message.attributes.extend_from_slice(attributes);
        message
    }

    #[test]
    fn an_address_is_our_own_and_not_the_other_end_of_a_point_to_point_link() {
        let mut addresses = Addresses::default();
        addresses.set(&message(9, &[AddressAttribute::Local(gid(1).address)]));
        assert_eq!(addresses.gids(2, &Interfaces::default()), [gid(1)]);
        assert_eq!(addresses.gids(3, &Interfaces::default()), []);
        addresses.remove(&message(9, &[AddressAttribute::Local(gid(1).address)]));
        assert_eq!(addresses.gids(2, &Interfaces::default()), []);
    }

    #[test]
    fn an_address_that_may_be_anothers_is_none_and_a_deprecated_one_still_is() {
        let mut addresses = Addresses::default();
        for (flags, usable) in [
            (AddressFlags::Permanent, true),
            (AddressFlags::Deprecated, true),
            (AddressFlags::Tentative, false),
            (AddressFlags::Permanent, true),
            (AddressFlags::Dadfailed | AddressFlags::Permanent, false),
        ] {
            addresses.set(&message(1, &[AddressAttribute::Flags(flags)]));
            assert_eq!(!addresses.gids(2, &Interfaces::default()).is_empty(), usable, "{flags:?}");
        }
    }

    #[test]
    fn link_local_addresses_come_first_and_ipv4_before_ipv6() {
        let mut addresses = Addresses::default();
        for address in ["fd00::1", "10.0.0.1", "fe80::1", "10.0.0.0"] {
            let mut message = AddressMessage::default();
            message.header.index = 2;
            message.attributes.push(AddressAttribute::Address(address.parse().expect("an address")));
            addresses.set(&message);
        }
        let gids = addresses.gids(2, &Interfaces::default());
        let order: Vec<String> = gids.iter().map(|gid| gid.address.to_string()).collect();
        assert_eq!(order, ["fe80::1", "10.0.0.0", "10.0.0.1", "fd00::1"]);
    }

    #[test]
    fn addresses_of_a_vlan_interface_are_gids_with_its_tag() {
        let mut vlan = LinkMessage::default();
        vlan.header.index = 7;
        let infos = vec![LinkInfo::Data(InfoData::Vlan(vec![InfoVlan::Id(5)]))];
        vlan.attributes = vec![LinkAttribute::Link(2), LinkAttribute::LinkInfo(infos)];
        let mut links = Interfaces::default();
        links.set(&vlan);
        let mut addresses = Addresses::default();
        for (index, last) in [(7, 1), (2, 2), (8, 3)] {
            let mut message = message(last, &[]);
            message.header.index = index;
            addresses.set(&message);
        }
        let tagged = GidTableEntry { ifindex: 7, vlan: Some(5), ..gid(1) };
        assert_eq!(addresses.gids(2, &links), [gid(2), tagged]);
    }
}
