//! Interfaces as the kernel has them: MAC address, MTU, up or down, and which VLAN of which parent.

use std::{collections::BTreeMap, fs};

use netlink_packet_route::link::{InfoData, InfoVlan, LinkAttribute, LinkFlags, LinkInfo, LinkMessage};

/// An interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) name: String,
    pub(super) mac: [u8; 6],
    pub(super) mtu_bytes: u32,
    /// Administratively up, and the link is there.
    pub(super) up: bool,
    /// For a VLAN interface: its parent and the VLAN.
    pub(super) vlan: Option<(u32, u16)>,
}

/// All interfaces by index.
#[derive(Debug, Default)]
pub(super) struct Links(BTreeMap<u32, Link>);

impl Links {
    /// An interface is, or has changed.
    pub(super) fn set(&mut self, message: &LinkMessage) {
        let index = message.header.index;
        let mut link = Link {
            name: String::new(),
            mac: [0; 6],
            mtu_bytes: 0,
            up: message.header.flags.contains(LinkFlags::Up | LinkFlags::LowerUp),
            vlan: None,
        };
        let (mut parent, mut vlan) = (None, None);
        for attribute in &message.attributes {
            match attribute {
                LinkAttribute::IfName(name) => link.name.clone_from(name),
                LinkAttribute::Address(mac) => link.mac = mac.first_chunk().copied().unwrap_or_default(),
                LinkAttribute::Mtu(mtu) => link.mtu_bytes = *mtu,
                LinkAttribute::Link(index) => parent = Some(*index),
                LinkAttribute::LinkInfo(infos) => vlan = infos.iter().find_map(vlan_of).or(vlan),
                _ => {}
            }
        }
        link.vlan = parent.zip(vlan);
        self.0.insert(index, link);
    }

    /// An interface is gone.
    pub(super) fn remove(&mut self, message: &LinkMessage) {
        self.0.remove(&message.header.index);
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    pub(super) fn get(&self, index: u32) -> Option<&Link> {
        self.0.get(&index)
    }

    /// The interface of that name.
    pub(super) fn by_name(&self, name: &str) -> Option<(u32, &Link)> {
        self.0.iter().find(|(_, link)| link.name == name).map(|(index, link)| (*index, link))
    }

    /// Which VLAN `index` is of interface `parent`: `Some(None)` for the interface itself, `None` when it has nothing to do
    /// with it.
    pub(super) fn vlan_on(&self, index: u32, parent: u32) -> Option<Option<u16>> {
        if index == parent {
            return Some(None);
        }
        let (of, vlan) = self.get(index)?.vlan?;
        (of == parent).then_some(Some(vlan))
    }
}

fn vlan_of(info: &LinkInfo) -> Option<u16> {
    let LinkInfo::Data(InfoData::Vlan(infos)) = info else { return None };
    infos.iter().find_map(|info| match info {
        InfoVlan::Id(id) => Some(*id),
        _ => None,
    })
}

/// Speed of an interface in Mbit/s; 0 when the driver does not say, as for veth without a peer.
pub(super) fn speed_mbit_per_s(name: &str) -> u32 {
    fs::read_to_string(format!("/sys/class/net/{name}/speed"))
        .ok()
        .and_then(|speed| speed.trim().parse().ok())
        .unwrap_or(0)
}
