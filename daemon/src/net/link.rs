//! Interfaces as the kernel has them: MAC address, MTU, up or down, and which VLAN of which parent.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use netlink_packet_route::{
    AddressFamily,
    link::{
        InfoData, InfoKind, InfoVlan, LinkAttribute, LinkFlags, LinkInfo, LinkLayerType, LinkMessage, VlanProtocol,
    },
};

/// An interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) name: String,
    pub(super) mac: [u8; 6],
    pub(super) mtu_bytes: u32,
    /// Frames are Ethernet frames.
    pub(super) is_ethernet: bool,
    /// Administratively up, and the link is there.
    pub(super) up: bool,
    /// For a VLAN interface: its parent and the VLAN.
    pub(super) vlan: Option<(u32, u16)>,
    /// The interface that this one is a port of: a bond, a bridge, a virtual NIC beside its VF.
    port_of: Option<u32>,
    /// The interface that it was made on, such as the parent of a VLAN or of a macvlan.
    made_on: Option<MadeOn>,
    /// RX queues that the kernel has made for it. Its driver may use fewer.
    pub(super) rx_queues: u32,
}

/// The interface that another one was made on: received frames pass from it to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MadeOn {
    Index(u32),
    /// One of another network namespace.
    Elsewhere,
}

/// The interfaces below one: those that receive its frames.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Below {
    /// Those of this network namespace, by index.
    pub interfaces: Vec<LowerInterface>,
    /// Others are in another network namespace, where nothing is known of them.
    pub others_elsewhere: bool,
}

/// An interface below another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LowerInterface {
    /// Its index.
    pub ifindex: u32,
    /// Its name.
    pub name: String,
    /// RX queues to assume if its driver does not say how many it uses: those that the kernel has
    /// made. None where interfaces below it decide: frames keep the number of their queue.
    pub rx_queues_made: Option<u32>,
}

/// All interfaces by index.
#[derive(Debug, Default)]
pub(super) struct Interfaces {
    links: BTreeMap<u32, Link>,
    /// Indices of interfaces that went away and were not taken by [`Self::take_removed`] yet: one
    /// may be back under the same index.
    removed: BTreeSet<u32>,
    /// Counts changes of `links`.
    changes: u64,
}

impl Interfaces {
    /// An interface is, or has changed.
    pub(super) fn set(&mut self, message: &LinkMessage) {
        if is_about_a_bridge_port(message) {
            return;
        }
        let flags = message.header.flags;
        let mut link = Link {
            name: String::new(),
            mac: [0; 6],
            mtu_bytes: 0,
            is_ethernet: message.header.link_layer_type == LinkLayerType::Ether,
            up: flags.contains(LinkFlags::Up | LinkFlags::LowerUp),
            vlan: None,
            port_of: None,
            made_on: None,
            rx_queues: 1,
        };
        let (mut parent, mut vlan, mut parent_is_here, mut is_peer) = (None, None, true, false);
        for attribute in &message.attributes {
            match attribute {
                LinkAttribute::IfName(name) => link.name.clone_from(name),
                LinkAttribute::Address(mac) => link.mac = mac.first_chunk().copied().unwrap_or_default(),
                LinkAttribute::Mtu(mtu) => link.mtu_bytes = *mtu,
                LinkAttribute::Link(index) => parent = Some(*index),
                // The parent's index is one of another network namespace.
                LinkAttribute::LinkNetNsId(_) => parent_is_here = false,
                LinkAttribute::Controller(index) => link.port_of = Some(*index),
                LinkAttribute::NumRxQueues(count) => link.rx_queues = *count,
                LinkAttribute::LinkInfo(infos) => {
                    vlan = infos.iter().find_map(vlan_of).or(vlan);
                    is_peer |= infos.iter().any(links_to_a_peer);
                }
                _ => {}
            }
        }
        link.vlan = parent.filter(|_| parent_is_here).zip(vlan);
        link.made_on = match parent {
            // Tunnels that are bound to no interface say 0.
            None | Some(0) => None,
            Some(_) if is_peer => None,
            Some(index) if parent_is_here => Some(MadeOn::Index(index)),
            Some(_) => Some(MadeOn::Elsewhere),
        };
        let index = message.header.index;
        if self.links.get(&index) != Some(&link) {
            self.links.insert(index, link);
            self.changes += 1;
        }
    }

    /// An interface is gone.
    pub(super) fn remove(&mut self, message: &LinkMessage) {
        if !is_about_a_bridge_port(message) {
            self.links.remove(&message.header.index);
            self.removed.insert(message.header.index);
            self.changes += 1;
        }
    }

    /// A number that grows with each change of an interface.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    /// These replace `earlier` ones, which may have missed changes.
    pub(super) fn count_changes_after(&mut self, earlier: &Self) {
        self.changes += earlier.changes + 1;
    }

    /// Indices of interfaces that went away since the last call.
    pub(super) fn take_removed(&mut self) -> BTreeSet<u32> {
        std::mem::take(&mut self.removed)
    }

    pub(super) fn get(&self, index: u32) -> Option<&Link> {
        self.links.get(&index)
    }

    /// The interface of that name.
    pub(super) fn by_name(&self, name: &str) -> Option<(u32, &Link)> {
        self.links.iter().find(|(_, link)| link.name == name).map(|(index, link)| (*index, link))
    }

    /// Other interfaces are ports of this one.
    pub(super) fn has_ports(&self, index: u32) -> bool {
        self.links.values().any(|link| link.port_of == Some(index))
    }

    /// The interfaces that receive the frames of this one: its ports, the interface that it was
    /// made on, and those below them.
    pub(super) fn below(&self, index: u32) -> Below {
        let (mut found, mut from) = (BTreeSet::new(), vec![index]);
        let ports_of = self.ports_by_controller();
        // Those that only pass on frames of others below them.
        let (mut passing, mut others_elsewhere) = (BTreeSet::new(), false);
        while let Some(upper) = from.pop() {
            let made_on = self.get(upper).and_then(|link| link.made_on);
            others_elsewhere |= made_on == Some(MadeOn::Elsewhere);
            let parent = match made_on {
                Some(MadeOn::Index(parent)) => Some(parent).filter(|parent| self.links.contains_key(parent)),
                Some(MadeOn::Elsewhere) | None => None,
            };
            let ports = ports_of.get(&upper).map_or(&[][..], Vec::as_slice);
            let lower: Vec<_> = ports.iter().copied().chain(parent).collect();
            if made_on.is_some() || !lower.is_empty() {
                passing.insert(upper);
            }
            from.extend(lower.into_iter().filter(|lower| found.insert(*lower)));
        }
        let interface = |ifindex: u32| {
            let link = self.get(ifindex)?;
            let rx_queues_made = (!passing.contains(&ifindex)).then_some(link.rx_queues);
            Some(LowerInterface { ifindex, name: link.name.clone(), rx_queues_made })
        };
        Below { interfaces: found.into_iter().filter_map(interface).collect(), others_elsewhere }
    }

    /// Ports by the interface that they are ports of, in one pass: a host may have thousands.
    fn ports_by_controller(&self) -> BTreeMap<u32, Vec<u32>> {
        let mut ports_of = BTreeMap::<u32, Vec<u32>>::new();
        for (port, link) in &self.links {
            if let Some(controller) = link.port_of {
                ports_of.entry(controller).or_default().push(*port);
            }
        }
        ports_of
    }

    /// Which VLAN `index` is of interface `parent`: `Some(None)` for the interface itself, `None`
    /// when it has nothing to do with it.
    pub(super) fn vlan_on(&self, index: u32, parent: u32) -> Option<Option<u16>> {
        if index == parent {
            return Some(None);
        }
        let (of, vlan) = self.get(index)?.vlan?;
        (of == parent).then_some(Some(vlan))
    }
}

/// A bridge reports its ports by the same messages: "new" and "gone" there are about the port, not
/// the interface.
fn is_about_a_bridge_port(message: &LinkMessage) -> bool {
    message.header.interface_family == AddressFamily::Bridge
}

/// The VLAN of an interface with 802.1Q tags; 802.1ad tags differ and are not supported.
fn vlan_of(info: &LinkInfo) -> Option<u16> {
    let LinkInfo::Data(InfoData::Vlan(infos)) = info else { return None };
    if infos.contains(&InfoVlan::Protocol(VlanProtocol::Ieee8021Ad)) {
        return None;
    }
    infos.iter().find_map(|info| match info {
        InfoVlan::Id(id) => Some(*id),
        _ => None,
    })
}

/// The other interface of an end of a pair is its peer, not one below it.
fn links_to_a_peer(info: &LinkInfo) -> bool {
    matches!(info, LinkInfo::Kind(InfoKind::Veth | InfoKind::Netkit | InfoKind::Vxcan))
}

/// Speed of an interface in Mbit/s; 0 when the driver does not say, as for veth without a peer.
/// /sys may be that of another network namespace, where the name means another interface, so the
/// index has to agree.
pub(super) fn speed_mbit_per_s(index: u32, name: &str) -> u32 {
    let read = |file: &str| {
        let text = fs::read_to_string(format!("/sys/class/net/{name}/{file}")).ok()?;
        text.trim().parse::<u32>().ok()
    };
    if read("ifindex") == Some(index) { read("speed").unwrap_or(0) } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLAGS: LinkFlags = LinkFlags::Up.union(LinkFlags::LowerUp);

    fn message(index: u32, name: &str, attributes: &[LinkAttribute]) -> LinkMessage {
        let mut message = LinkMessage::default();
        message.header.index = index;
        message.header.link_layer_type = LinkLayerType::Ether;
        message.header.flags = FLAGS;
        message.attributes = vec![
            LinkAttribute::IfName(name.to_owned()),
            LinkAttribute::Mtu(1500),
            LinkAttribute::Address(vec![2, 0, 0, 0, 0, index as u8]),
        ];
        message.attributes.extend_from_slice(attributes);
        message
    }

    fn vlan(id: u16, protocol: VlanProtocol) -> LinkAttribute {
        let infos = vec![InfoVlan::Protocol(protocol), InfoVlan::Id(id)];
        LinkAttribute::LinkInfo(vec![LinkInfo::Data(InfoData::Vlan(infos))])
    }

    fn links(messages: &[LinkMessage]) -> Interfaces {
        let mut links = Interfaces::default();
        messages.iter().for_each(|message| links.set(message));
        links
    }

    #[test]
    fn an_interface_is_read_from_its_message() {
        let mut down = message(3, "eth1", &[]);
        down.header.flags = LinkFlags::Up;
        let links = links(&[message(2, "eth0", &[]), down]);
        let (index, link) = links.by_name("eth0").expect("it was told of");
        assert_eq!((index, link.mac, link.mtu_bytes, link.up), (2, [2, 0, 0, 0, 0, 2], 1500, true));
        assert!(!links.get(3).expect("it was told of").up, "up without a carrier is down");
        assert!(links.by_name("eth2").is_none());
    }

    #[test]
    fn a_vlan_is_one_of_its_parent_only() {
        let tagged = message(3, "eth0.5", &[LinkAttribute::Link(2), vlan(5, VlanProtocol::Ieee8021Q)]);
        let links = links(&[message(2, "eth0", &[]), tagged]);
        assert_eq!((links.vlan_on(3, 2), links.vlan_on(2, 2)), (Some(Some(5)), Some(None)));
        assert_eq!((links.vlan_on(3, 4), links.vlan_on(2, 3), links.vlan_on(9, 2)), (None, None, None));
    }

    #[test]
    fn an_untaggable_vlan_or_one_with_a_foreign_parent_is_ignored() {
        let service = message(3, "eth0.5", &[LinkAttribute::Link(2), vlan(5, VlanProtocol::Ieee8021Ad)]);
        let elsewhere = [LinkAttribute::Link(2), LinkAttribute::LinkNetNsId(0), vlan(6, VlanProtocol::Ieee8021Q)];
        let veth = message(5, "veth", &[LinkAttribute::Link(2)]);
        let links = links(&[message(2, "eth0", &[]), service, message(4, "moved", &elsewhere), veth]);
        assert!([3, 4, 5].iter().all(|index| links.vlan_on(*index, 2).is_none()));
    }

    #[test]
    fn ports_of_an_interface_come_and_go() {
        let mut links = links(&[message(2, "eth0", &[LinkAttribute::Controller(3)]), message(3, "bond0", &[])]);
        assert_eq!((links.has_ports(3), links.has_ports(2)), (true, false));
        links.set(&message(2, "eth0", &[]));
        assert!(!links.has_ports(3));
    }

    #[test]
    fn ports_and_the_interfaces_below_them_receive() {
        let messages = [
            message(2, "eth0", &[]),
            message(
                3,
                "eth0.5",
                &[LinkAttribute::Link(2), vlan(5, VlanProtocol::Ieee8021Q), LinkAttribute::Controller(9)],
            ),
            message(4, "eth1", &[LinkAttribute::Controller(9)]),
            message(5, "eth2", &[]),
            message(9, "bond0", &[LinkAttribute::NumRxQueues(16)]),
        ];
        let mut links = links(&messages);
        assert_eq!(names_below(&links, 9), ["eth0", "eth0.5", "eth1"]);
        assert_eq!((links.get(9).map(|link| link.rx_queues), names_below(&links, 5)), (Some(16), vec![]));
        // A circle, of messages that came in another order, has an end.
        links.set(&message(9, "bond0", &[LinkAttribute::Controller(4)]));
        assert_eq!(names_below(&links, 9).len(), 4);
    }

    fn names_below(links: &Interfaces, index: u32) -> Vec<String> {
        links.below(index).interfaces.into_iter().map(|lower| lower.name).collect()
    }

    #[test]
    fn thousands_of_interfaces_below_are_found() {
        // Each of a thousand ports of the bridge is a bond with one port.
        let bonds = (10..1010).map(|index| message(index, "bond", &[LinkAttribute::Controller(9)]));
        let ports = (2010..3010).map(|index| message(index, "eth", &[LinkAttribute::Controller(index - 2000)]));
        let others = (4010..6010).map(|index| message(index, "other", &[]));
        let messages: Vec<_> =
            [message(9, "bridge0", &[])].into_iter().chain(bonds).chain(ports).chain(others).collect();
        let links = links(&messages);
        let below = links.below(9).interfaces;
        let (bonds, ports) = below.split_at(1000);
        assert!(bonds.iter().map(|lower| lower.ifindex).eq(10..1010), "{bonds:?}");
        assert!(ports.iter().map(|lower| lower.ifindex).eq(2010..3010), "{ports:?}");
        assert!(bonds.iter().all(|bond| bond.rx_queues_made.is_none()), "a bond passes on the frames of its port");
        let by_controller = links.ports_by_controller();
        assert_eq!((by_controller.len(), by_controller[&9].len(), &by_controller[&10]), (1001, 1000, &vec![2010]));
    }

    fn kind(kind: InfoKind) -> LinkAttribute {
        LinkAttribute::LinkInfo(vec![LinkInfo::Kind(kind)])
    }

    #[test]
    fn a_port_is_looked_through_to_the_interface_it_was_made_on() {
        let port = |index, name, more: &[LinkAttribute]| {
            message(index, name, &[&[LinkAttribute::Controller(9)], more].concat())
        };
        let messages = [
            message(2, "eth0", &[LinkAttribute::NumRxQueues(8)]),
            port(3, "macvlan0", &[LinkAttribute::Link(2), kind(InfoKind::MacVlan)]),
            message(4, "eth1", &[LinkAttribute::NumRxQueues(4)]),
            port(5, "eth1.7", &[LinkAttribute::Link(4), vlan(7, VlanProtocol::Ieee8021Ad)]),
            message(6, "peer", &[]),
            port(7, "veth0", &[LinkAttribute::Link(6), LinkAttribute::NumRxQueues(2), kind(InfoKind::Veth)]),
            port(8, "tunnel0", &[LinkAttribute::Link(0), kind(InfoKind::GreTap)]),
            message(9, "bond0", &[]),
        ];
        let links = links(&messages);
        assert_eq!(names_below(&links, 9), ["eth0", "macvlan0", "eth1", "eth1.7", "veth0", "tunnel0"]);
        let below = links.below(9);
        let made: Vec<_> = below.interfaces.iter().map(|lower| lower.rx_queues_made).collect();
        assert_eq!(
            made,
            [Some(8), None, Some(4), None, Some(2), Some(1)],
            "only the interface below a macvlan or VLAN counts"
        );
        assert!(!below.others_elsewhere);
    }

    #[test]
    fn an_interface_below_may_be_in_another_namespace() {
        let elsewhere = |kind| [LinkAttribute::Link(2), LinkAttribute::LinkNetNsId(0), kind];
        let vlan = vlan(5, VlanProtocol::Ieee8021Q);
        let port = [&elsewhere(vlan)[..], &[LinkAttribute::Controller(9)]].concat();
        let mut links = links(&[message(2, "unrelated", &[]), message(3, "eth0.5", &port), message(9, "bond0", &[])]);
        let below = links.below(9);
        assert_eq!((names_below(&links, 9), below.others_elsewhere), (vec!["eth0.5".to_owned()], true));
        assert_eq!(below.interfaces[0].rx_queues_made, None);
        assert!(links.below(3).others_elsewhere);
        links.set(&message(3, "veth0", &elsewhere(kind(InfoKind::Veth))));
        assert!(!links.below(3).others_elsewhere, "a peer is not below");
    }

    #[test]
    fn changes_of_interfaces_are_counted() {
        let mut links = links(&[message(2, "eth0", &[])]);
        let before = links.changes();
        links.set(&message(2, "eth0", &[]));
        assert_eq!(links.changes(), before, "nothing has changed");
        links.set(&message(2, "eth0", &[LinkAttribute::Controller(9)]));
        assert_eq!(links.changes(), before + 1);
        links.remove(&message(2, "eth0", &[]));
        assert_eq!(links.changes(), before + 2);
        let mut anew = Interfaces::default();
        anew.count_changes_after(&links);
        assert!(anew.changes() > links.changes());
    }

    #[test]
    fn a_bridge_speaking_of_its_port_says_nothing_of_the_interface() {
        let mut links = links(&[message(2, "eth0", &[LinkAttribute::Link(9), vlan(5, VlanProtocol::Ieee8021Q)])]);
        let before = links.get(2).cloned();
        let mut port = message(2, "eth0", &[]);
        port.header.interface_family = AddressFamily::Bridge;
        links.set(&port);
        links.remove(&port);
        assert_eq!(links.get(2).cloned(), before);
        links.remove(&message(2, "eth0", &[]));
        assert_eq!(links.get(2), None);
    }

    #[test]
    fn the_speed_is_not_that_of_a_namesake() {
        assert_eq!(speed_mbit_per_s(u32::MAX, "lo"), 0);
    }
}
