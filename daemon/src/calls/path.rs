//! Conversion of a client's path attributes to the header template from which a worker builds
//! frames.

use std::net::IpAddr;

use roced_abi::control::Refusal;
use roced_transport::{
    io::Egress,
    qp::PathState,
    wire::{
        Roce, ecn,
        path::{Path, PathSpec, Vlan, largest_path_mtu, udp_source_port},
    },
};
use roced_types::{DeviceId, QpAttributes, Qpn, address_of, attribute, gid_of};

use super::refused::Refused;
use crate::config::PacketPriorities;
use crate::environment::DevicePort;
use crate::net::{FollowId, GidTableEntry, NextHop, RoceVersion};

/// Followers of the route to a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Follower {
    /// A queue pair, to its peer.
    Qp(Qpn),
    /// An address handle, to wherever it leads.
    Ah(u32),
}

/// Path of a queue pair or an address handle: the requested attributes, and the route to the
/// destination.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    /// `None` for a multicast group: its MAC address needs no neighbor.
    pub(crate) follow: Option<FollowId>,
    pub(crate) next: NextHop,
    pub(crate) wish: Wish,
}

impl Way {
    /// The part for the worker.
    pub(crate) fn state(&self, port: &DevicePort) -> PathState {
        // No event reports the path of a group when the device has another MAC address.
        self.wish.path(self.wish.group_hop(port).unwrap_or(self.next), port)
    }

    /// The longest packet payload that it carries, bytes.
    pub(crate) fn mtu_bytes(&self, port: &DevicePort) -> u32 {
        self.wish.largest_mtu(self.next, port)
    }
}

/// The address vector of a queue pair, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wish {
    device: DeviceId,
    local: Qpn,
    pub(crate) source: GidTableEntry,
    pub(crate) destination: IpAddr,
    /// With the ECN field.
    traffic_class: u8,
    hop_limit: u8,
    flow_label: u32,
    service_level: u8,
    udp_source_port: u16,
}

/// The UDP source port of a queue pair with flow label 0: random when the queue pair is created,
/// and the next one in each further life, so that a peer can tell frames of an earlier life from
/// those of this one. Nothing else changes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LifePort(u16);

impl LifePort {
    /// Bits that every port has: 0xc000 to 0xffff, the dynamic ports (annex A17.4.5.3.2 leaves the
    /// choice open).
    const BASE: u16 = 0xc000;

    /// The port of the first life, from random bits.
    pub(crate) const fn first(random: u32) -> Self {
        Self(random as u16 | Self::BASE)
    }

    /// The port of the life that follows.
    #[must_use]
    pub(crate) const fn next(self) -> Self {
        Self(self.0.wrapping_add(1) | Self::BASE)
    }

    /// The port of this life.
    pub(crate) const fn get(self) -> u16 {
        self.0
    }
}

/// Meaning of "0", as users of verbs expect it.
const HOP_LIMIT_DEFAULT: u8 = 64;

impl Wish {
    /// Path attributes in `attributes` for `local`, from the GID `source` of `device`. `life` is
    /// the port of a queue pair's present life; without it, or with a flow label, the port is
    /// derived as Linux does. `ecn` says that congested switches may mark packets of connections.
    ///
    /// # Errors
    /// A value out of its range, or a destination that no host can have.
    pub(crate) fn check(
        device: DeviceId,
        local: Qpn,
        attributes: &QpAttributes,
        source: &GidTableEntry,
        life: Option<LifePort>,
        ecn: bool,
    ) -> Result<Self, Refused> {
        let destination = address_of(attributes.dgid);
        let wrong = |value: u32| Refused::argument(attribute::AV.into(), value);
        let byte = |value: u32| u8::try_from(value).map_err(|_| wrong(value));
        if destination.is_unspecified() || destination.is_ipv4() != source.address.is_ipv4() {
            return Err(wrong(attributes.sgid_index));
        }
        if source.roce == RoceVersion::V1 && !destination.is_multicast() && !is_on_link(source, destination) {
            // RoCEv1 has no IP header that a router could read (annex A16).
            return Err(Refused::plain(Refusal::NoRoute));
        }
        if attributes.flow_label > 0x000f_ffff {
            return Err(wrong(attributes.flow_label));
        }
        if attributes.service_level > 7 {
            return Err(wrong(attributes.service_level));
        }
        let udp_source_port = match life {
            Some(life) if attributes.flow_label == 0 => life.get(),
            _ => udp_source_port(attributes.flow_label, local, Qpn::from_wire(attributes.dest_qpn)),
        };
        // The device decides, as adapters do, for any traffic class of the application. A receiver
        // of datagrams tells their sender nothing, and RoCEv1 knows no marks.
        let may_be_marked = ecn && life.is_some() && source.roce == RoceVersion::V2;
        let field = if may_be_marked { ecn::CAPABLE } else { ecn::NOT_CAPABLE };
        Ok(Self {
            device,
            local,
            source: *source,
            destination,
            traffic_class: byte(attributes.traffic_class)? & !ecn::MASK | field,
            hop_limit: match byte(attributes.hop_limit)? {
                0 => HOP_LIMIT_DEFAULT,
                hops => hops,
            },
            flow_label: attributes.flow_label,
            service_level: byte(attributes.service_level)?,
            udp_source_port,
        })
    }

    /// Priority of its packets.
    pub(crate) fn priority(&self, priorities: &PacketPriorities) -> u8 {
        priorities.of(self.traffic_class, self.source.vlan.map(|_| self.service_level))
    }

    /// The path to its destination if that is a multicast group: no neighbor is needed.
    pub(crate) fn group_hop(&self, port: &DevicePort) -> Option<NextHop> {
        let mac = match self.destination {
            group if !group.is_multicast() => return None,
            // RFC 1112 6.4: the lower 23 bits.
            IpAddr::V4(group) => {
                let [_, a, b, c] = group.octets();
                [0x01, 0x00, 0x5e, a & 0x7f, b, c]
            }
            // RFC 2464 7: the last four bytes.
            IpAddr::V6(group) => {
                let [.., a, b, c, d] = group.octets();
                [0x33, 0x33, a, b, c, d]
            }
        };
        // The MTU is the link's, as it is at any time.
        Some(NextHop::Reachable { mac, vlan: self.source.vlan, source_mac: port.mac, mtu_bytes: u32::MAX })
    }

    /// The path MTU that the way to the peer carries: that of the link, or of the route where it is
    /// known to be less.
    ///
    /// # Errors
    /// It is less than `asked_bytes`.
    pub(crate) fn check_mtu(&self, asked_bytes: u32, next: NextHop, port: &DevicePort) -> Result<(), Refused> {
        let largest = self.largest_mtu(next, port);
        if asked_bytes > largest {
            return Err(Refused::with(Refusal::PathMtu, asked_bytes, largest));
        }
        Ok(())
    }

    fn largest_mtu(&self, next: NextHop, port: &DevicePort) -> u32 {
        let link_mtu_bytes = match next {
            NextHop::Reachable { mtu_bytes, .. } => mtu_bytes.min(port.link_mtu_bytes),
            NextHop::Local(_) | NextHop::Resolving | NextHop::Unreachable => port.link_mtu_bytes,
        };
        // A GRH is as long as an IPv6 header.
        let ipv4 = self.source.address.is_ipv4() && self.source.roce == RoceVersion::V2;
        largest_path_mtu(link_mtu_bytes, ipv4).unwrap_or(0)
    }

    /// The path by `next`.
    fn path(&self, next: NextHop, port: &DevicePort) -> PathState {
        let (via, source_mac, dest_mac, vlan) = match next {
            NextHop::Resolving => return PathState::Resolving,
            NextHop::Unreachable => return PathState::Unreachable,
            // The frame goes to a worker of ours, which does not look at Ethernet; it is a frame
            // all the same.
            NextHop::Local(device) if device == self.device => (Egress::SameDevice, port.mac, port.mac, None),
            NextHop::Local(device) => (Egress::HandOver { to: device }, port.mac, port.mac, None),
            NextHop::Reachable { mac, vlan, source_mac, mtu_bytes: _ } => {
                let flow = self.local.get();
                let via = if self.destination.is_multicast() { Egress::Group { flow } } else { Egress::Nic { flow } };
                (via, source_mac, mac, vlan)
            }
        };
        let spec = PathSpec {
            via,
            source_mac,
            dest_mac,
            vlan: vlan.map(|id| Vlan { id, priority: self.service_level, rx_stripped: port.strips_vlan_tags }),
            source: gid_of(self.source.address),
            destination: gid_of(self.destination),
            traffic_class: self.traffic_class,
            hop_limit: self.hop_limit,
            flow_label: self.flow_label,
            roce: match self.source.roce {
                RoceVersion::V1 => Roce::V1,
                RoceVersion::V2 => Roce::V2 { udp_source_port: self.udp_source_port },
            },
        };
        PathState::Ready(Path::new(&spec).expect("both addresses are of one family, `check` saw to it"))
    }
}

/// Both addresses are of one network.
fn is_on_link(source: &GidTableEntry, destination: IpAddr) -> bool {
    let differ = match (source.address, destination) {
        (IpAddr::V4(a), IpAddr::V4(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
        (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
        _ => return false,
    };
    differ >= source.prefix_len.into()
}

#[cfg(test)]
mod tests {
    use roced_transport::{
        io::FrameMut,
        psn::Psn,
        wire::{bth::Bth, headers::Headers, opcode::UC_SEND_ONLY},
    };

    use super::*;

    const PORT: DevicePort = DevicePort {
        mac: [2; 6],
        link_up: true,
        link_mtu_bytes: 1500,
        speed_mbit_per_s: 0,
        gid_entries: 1,
        strips_vlan_tags: false,
        ecn: true,
    };
    const REACHABLE: NextHop = NextHop::Reachable { mac: [4; 6], vlan: Some(7), source_mac: [6; 6], mtu_bytes: 9000 };

    fn gid(address: &str) -> GidTableEntry {
        GidTableEntry {
            address: address.parse().expect("an address"),
            ifindex: 1,
            vlan: None,
            prefix_len: 24,
            roce: RoceVersion::V2,
        }
    }

    fn attributes(peer: &str) -> QpAttributes {
        let dgid = gid_of(peer.parse().expect("an address"));
        QpAttributes { dgid, dest_qpn: 5, ..QpAttributes::default() }
    }

    fn check(attributes: &QpAttributes) -> Result<Wish, Refused> {
        Wish::check(DeviceId(0), Qpn::from_wire(3), attributes, &gid("10.0.0.1"), None, true)
    }

    #[test]
    fn an_impossible_peer_address_is_refused() {
        assert!(check(&attributes("10.0.0.2")).is_ok());
        for peer in ["0.0.0.0", "::", "fd00::2"] {
            assert_eq!(
                check(&attributes(peer)).map_err(|refused| refused.why),
                Err(Refusal::InvalidArgument),
                "{peer}"
            );
        }
        for wrong in [
            QpAttributes { hop_limit: 256, ..attributes("10.0.0.2") },
            QpAttributes { traffic_class: 256, ..attributes("10.0.0.2") },
            QpAttributes { flow_label: 1 << 20, ..attributes("10.0.0.2") },
            QpAttributes { service_level: 8, ..attributes("10.0.0.2") },
        ] {
            assert_eq!(check(&wrong).map_err(|refused| refused.why), Err(Refusal::InvalidArgument), "{wrong:?}");
        }
    }

    /// A frame by the path of `attributes`, next hop `next`.
    fn frame(attributes: &QpAttributes, source: &str, life: Option<LifePort>, next: NextHop) -> Vec<u8> {
        let wish =
            Wish::check(DeviceId(0), Qpn::from_wire(3), attributes, &gid(source), life, true).expect("of one family");
        frame_by(&wish, next)
    }

    fn frame_by(wish: &Wish, next: NextHop) -> Vec<u8> {
        let PathState::Ready(path) = wish.path(next, &PORT) else { panic!("it is reachable") };
        let headers = Headers::new(Bth::new(UC_SEND_ONLY, Qpn::from_wire(5), Psn::new(0)));
        let mut frame = vec![0; path.frame_bytes(&headers, 0)];
        path.fill(&mut FrameMut::single(&mut frame), &headers, 0, |_| Ok(())).expect("nothing to copy");
        frame
    }

    fn parsed_port(frame: &[u8]) -> u16 {
        match roced_transport::wire::frame::parse(&[frame]).expect("our own").roce {
            Roce::V2 { udp_source_port } => udp_source_port,
            Roce::V1 => panic!("a frame of RoCEv1"),
        }
    }

    #[test]
    fn the_device_decides_about_the_ecn_bits_of_connections() {
        let life = Some(LifePort::first(7));
        for (peer, source) in [("10.0.0.2", "10.0.0.1"), ("fd00::2", "fd00::1")] {
            for (asked, dscp) in [(0b0110_1000, 0b0110_1000), (0b0110_1001, 0b0110_1000), (0xff, 0xfc), (0b11, 0)] {
                let asked = QpAttributes { traffic_class: asked, ..attributes(peer) };
                let sent = |life, ecn, roce| {
                    let source = GidTableEntry { roce, ..gid(source) };
                    let wish = Wish::check(DeviceId(0), Qpn::from_wire(3), &asked, &source, life, ecn);
                    let frame = frame_by(&wish.expect("of one family"), REACHABLE);
                    roced_transport::wire::frame::parse(&[&frame]).expect("our own").traffic_class
                };
                assert_eq!(sent(life, true, RoceVersion::V2), dscp | ecn::CAPABLE, "{asked:?}");
                assert_eq!(sent(life, false, RoceVersion::V2), dscp, "switched off");
                assert_eq!(sent(None, true, RoceVersion::V2), dscp, "of an address handle");
                assert_eq!(sent(life, true, RoceVersion::V1), dscp, "without an IP header");
            }
        }
    }

    #[test]
    fn the_source_port_belongs_to_the_life_unless_a_flow_label_is_given() {
        let life = LifePort::first(0x1234_5678);
        let (unlabeled, labeled) =
            (attributes("10.0.0.2"), QpAttributes { flow_label: 0xabcde, ..attributes("10.0.0.2") });
        let elsewhere = NextHop::Reachable { mac: [9; 6], vlan: None, source_mac: [8; 6], mtu_bytes: 1500 };
        for next in [REACHABLE, elsewhere, NextHop::Local(DeviceId(0)), NextHop::Local(DeviceId(1))] {
            let port = |attributes, life| parsed_port(&frame(attributes, "10.0.0.1", life, next));
            assert_eq!([port(&unlabeled, Some(life)), port(&unlabeled, Some(life.next()))], [0xd678, 0xd679]);
            let from_label = udp_source_port(0xabcde, Qpn::from_wire(3), Qpn::from_wire(5));
            assert_eq!([port(&labeled, Some(life)), port(&labeled, Some(life.next()))], [from_label; 2]);
            let from_numbers = udp_source_port(0, Qpn::from_wire(3), Qpn::from_wire(5));
            assert_eq!(port(&unlabeled, None), from_numbers, "of an address handle");
        }
    }

    #[test]
    fn the_ports_of_lives_stay_dynamic_ports() {
        assert_eq!(LifePort::first(0).get(), 0xc000);
        assert_eq!(LifePort::first(0xffff).next().get(), 0xc000);
        let mut life = LifePort::first(0x1_0007);
        let mut seen = std::collections::BTreeSet::new();
        while seen.insert(life.get()) {
            life = life.next();
        }
        assert_eq!((seen.len(), seen.first(), seen.last()), (0x4000, Some(&0xc000), Some(&0xffff)));
    }

    #[test]
    fn the_way_to_a_group_is_its_own_mac_address() {
        let mac = |attributes: &QpAttributes, source: &str| {
            let wish = Wish::check(DeviceId(0), Qpn::from_wire(3), attributes, &gid(source), None, true)
                .expect("of one family");
            match wish.group_hop(&PORT)? {
                NextHop::Reachable { mac, source_mac, .. } => Some((mac, source_mac)),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(mac(&attributes("239.129.2.3"), "10.0.0.1"), Some(([1, 0, 0x5e, 1, 2, 3], PORT.mac)));
        assert_eq!(mac(&attributes("ff0e::1:203"), "fd00::1"), Some(([0x33, 0x33, 0, 1, 2, 3], PORT.mac)));
        assert_eq!(mac(&attributes("10.0.0.2"), "10.0.0.1"), None);
        let wish = check(&attributes("239.1.2.3")).expect("of one family");
        let next = wish.group_hop(&PORT).expect("a group");
        let PathState::Ready(path) = wish.path(next, &PORT) else { panic!("it is known") };
        assert_eq!((path.via(), wish.largest_mtu(next, &PORT)), (Egress::Group { flow: 3 }, 1024));
        // It has no follower, and yet it is sent from the device's present MAC address.
        let way = Way { follow: None, next, wish };
        let source_mac = |port: &DevicePort| {
            let PathState::Ready(path) = way.state(port) else { panic!("it is known") };
            let headers = Headers::new(Bth::new(UC_SEND_ONLY, Qpn::MULTICAST, Psn::new(0)));
            let mut frame = vec![0; path.frame_bytes(&headers, 0)];
            path.fill(&mut FrameMut::single(&mut frame), &headers, 0, |_| Ok(())).expect("nothing to copy");
            frame[6..12].to_vec()
        };
        assert_eq!(source_mac(&PORT), PORT.mac);
        assert_eq!(source_mac(&DevicePort { mac: [8; 6], ..PORT }), [8; 6]);
    }

    #[test]
    fn rocev1_stays_on_its_segment() {
        let check = |peer| {
            let source = GidTableEntry { roce: RoceVersion::V1, ..gid("10.0.0.1") };
            Wish::check(DeviceId(0), Qpn::from_wire(3), &attributes(peer), &source, None, true)
        };
        assert_eq!(check("10.0.1.2").map_err(|refused| refused.why), Err(Refusal::NoRoute));
        let wish = check("10.0.0.255").expect("on the link");
        let PathState::Ready(path) = wish.path(REACHABLE, &PORT) else { panic!("it is reachable") };
        assert_eq!(path.roce(), Roce::V1);
        let link_mtu = |bytes| DevicePort { link_mtu_bytes: bytes, ..PORT };
        assert_eq!(wish.largest_mtu(NextHop::Resolving, &link_mtu(4160)), 2048, "a GRH is longer than an IPv4 header");
        assert_eq!(wish.largest_mtu(NextHop::Resolving, &link_mtu(4180)), 4096);
    }

    #[test]
    fn the_path_mtu_is_that_of_the_narrowest_part() {
        let wish = check(&attributes("10.0.0.2")).expect("reachable");
        assert_eq!(wish.check_mtu(1024, REACHABLE, &PORT), Ok(()));
        assert_eq!(wish.check_mtu(2048, REACHABLE, &PORT), Err(Refused::with(Refusal::PathMtu, 2048u32, 1024u32)));
        let jumbo = DevicePort { link_mtu_bytes: 4200, ..PORT };
        assert_eq!(wish.check_mtu(4096, NextHop::Resolving, &jumbo), Ok(()));
        let narrow = NextHop::Reachable { mac: [4; 6], vlan: None, source_mac: [6; 6], mtu_bytes: 600 };
        assert_eq!(wish.check_mtu(1024, narrow, &jumbo), Err(Refused::with(Refusal::PathMtu, 1024u32, 512u32)));
    }

    #[test]
    fn a_frame_without_a_tag_is_of_a_vlan_only_where_tags_are_taken_off() {
        let wish = check(&attributes("10.0.0.2")).expect("reachable");
        let takes = |next, strips_vlan_tags, id| match wish.path(next, &DevicePort { strips_vlan_tags, ..PORT }) {
            PathState::Ready(path) => path.takes_vlan(id),
            PathState::Resolving | PathState::Unreachable => panic!("it is reachable"),
        };
        let untagged = NextHop::Reachable { mac: [4; 6], vlan: None, source_mac: [6; 6], mtu_bytes: 9000 };
        for (next, strips, id, taken) in [
            (REACHABLE, false, Some(7), true),
            (REACHABLE, false, None, false),
            (REACHABLE, true, None, true),
            (REACHABLE, true, Some(8), false),
            (untagged, true, Some(7), false),
            (untagged, false, None, true),
            (NextHop::Local(DeviceId(0)), false, None, true),
        ] {
            assert_eq!(takes(next, strips, id), taken, "{next:?}, {strips}, {id:?}");
        }
    }

    #[test]
    fn the_next_hop_decides_how_frames_leave() {
        let wish = check(&attributes("10.0.0.2")).expect("reachable");
        let via = |next| match wish.path(next, &PORT) {
            PathState::Ready(path) => Some(path.via()),
            PathState::Resolving | PathState::Unreachable => None,
        };
        assert_eq!(via(REACHABLE), Some(Egress::Nic { flow: 3 }));
        assert_eq!(via(NextHop::Local(DeviceId(1))), Some(Egress::HandOver { to: DeviceId(1) }));
        assert_eq!(via(NextHop::Local(DeviceId(0))), Some(Egress::SameDevice), "the same memory is reached from there");
        assert_eq!(via(NextHop::Resolving), None);
        assert!(matches!(wish.path(NextHop::Unreachable, &PORT), PathState::Unreachable));
    }
}
