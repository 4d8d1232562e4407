//! The kernel's network as the daemon sees it, in network namespaces of the test's own: needs root
//! and iproute2.

mod floods;
mod namespace;

use std::{net::IpAddr, time::Duration};

use namespace::{Namespace, Watched};
use roced::net::{FollowId, GidTableEntry, NetError, NetworkChange, NextHop};
use roced_types::DeviceId;

const NEIGHBOR_TIMEOUT: Duration = Duration::from_millis(700);
const PEER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0xb];

/// Two hosts joined by a cable: a has 10.1.0.1 and fd01::1 on eth0, b has 10.1.0.2 and fd01::2 and
/// a MAC address that we know. They can be used, and so can the link-local ones.
fn two_hosts() -> Option<(Namespace, Namespace)> {
    let (a, b) = (Namespace::new("a")?, Namespace::new("b")?);
    a.join("eth0", &b, "eth0");
    b.ip("link set eth0 address 02:00:00:00:00:0b");
    for (host, number) in [(&a, 1), (&b, 2)] {
        host.ip(&format!("address add 10.1.0.{number}/24 dev eth0"));
        host.ip(&format!("address add fd01::{number}/64 dev eth0"));
    }
    for host in [&a, &b] {
        // A later opener finds them in one piece, so in the order in which Linux returns them.
        open(host).until("the addresses of eth0 can be used", |net| net.addresses().len() == 3);
    }
    Some((a, b))
}

fn open(host: &Namespace) -> Watched {
    host.open(&["eth0"], NEIGHBOR_TIMEOUT).expect("eth0 is there")
}

fn mac_of(net: &Watched, id: FollowId) -> Option<[u8; 6]> {
    match net.hop(id) {
        NextHop::Reachable { mac, .. } => Some(mac),
        _ => None,
    }
}

#[test]
fn addresses_mtu_and_link_are_followed() {
    let Some((a, b)) = two_hosts() else { return };
    let mut net = open(&a);
    let first = net.addresses();
    assert!(first[0].starts_with("fe80::") && first[1..] == ["10.1.0.1", "fd01::1"], "{first:?}");
    assert!(net.device().link_up && net.device().link_mtu_bytes == 1500);

    a.ip("address add 10.1.0.7/24 dev eth0");
    net.until("the new address is a GID", |net| net.addresses().len() == 4);
    assert_eq!(net.heard, [NetworkChange::Gids(DeviceId(0))]);
    a.ip("address del 10.1.0.1/24 dev eth0");
    net.until("the old one is none", |net| !net.addresses().contains(&"10.1.0.1".to_owned()));
    assert_eq!(net.device().gids.get(1), None, "its index is empty");
    a.ip("address add 10.1.0.1/24 dev eth0");
    net.until("the old one is back in its place", |net| {
        net.device().gids.get(1).is_some_and(|gid| gid.address.to_string() == "10.1.0.1")
    });

    a.ip("link set eth0 mtu 4200");
    net.until("the MTU is followed", |net| net.device().link_mtu_bytes == 4200);
    assert!(net.heard.contains(&NetworkChange::Link(DeviceId(0))));
    b.ip("link set eth0 down");
    net.until("the carrier is followed", |net| !net.device().link_up);
    b.ip("link set eth0 up");
    net.until("the carrier is back", |net| net.device().link_up);
    a.ip("link set eth0 address 02:00:00:00:00:0a");
    net.until("the MAC address is followed", |net| net.device().mac == [2, 0, 0, 0, 0, 0xa]);
    a.ip("link del eth0");
    net.until("nothing is left of it", |net| !net.device().link_up && net.addresses().is_empty());
}

#[test]
fn an_address_is_a_gid_only_when_it_is_known_to_be_unique() {
    let Some((a, b)) = two_hosts() else { return };
    a.sysctl("net.ipv6.conf.eth0.accept_dad=1");
    b.ip("address add fd01::d/64 dev eth0");
    let mut net = open(&a);
    a.ip("address add fd01::c/64 dev eth0");
    a.ip("address add fd01::d/64 dev eth0");
    net.pass(Duration::from_millis(100));
    assert!(!net.addresses().contains(&"fd01::c".to_owned()), "it is tentative");
    net.until("detection ends well", |net| net.addresses().contains(&"fd01::c".to_owned()));
    net.pass(Duration::from_millis(1500));
    assert!(!net.addresses().contains(&"fd01::d".to_owned()), "b has that one");
    assert!(!open(&a).addresses().contains(&"fd01::d".to_owned()), "to a follower that reads everything anew as well");
}

#[test]
fn a_neighbor_is_resolved() {
    let Some((a, _b)) = two_hosts() else { return };
    let mut net = open(&a);
    let ours = net.addresses()[0].clone();
    let link_local = open(&_b).addresses()[0].clone();
    for (source, destination) in [("10.1.0.1", "10.1.0.2"), ("fd01::1", "fd01::2"), (&ours, &link_local)] {
        let id = net.follow(source, destination);
        net.until("it is reachable", |net| mac_of(net, id).is_some());
        let source_mac = net.device().mac;
        let expected = NextHop::Reachable { mac: PEER_MAC, vlan: None, source_mac, mtu_bytes: 1500 };
        assert_eq!(net.hop(id), expected, "{destination}");
        assert_eq!(net.follow(source, destination), id, "followers of the same get the same");
    }
    a.ip("link set eth0 mtu 1400");
    let id = net.follow("10.1.0.1", "10.1.0.2");
    net.until("its MTU is followed", |net| matches!(net.hop(id), NextHop::Reachable { mtu_bytes: 1400, .. }));
}

#[test]
fn a_neighbor_that_does_not_answer_is_unreachable_in_time_and_until_it_does() {
    let Some((a, b)) = two_hosts() else { return };
    let mut net = open(&a);
    for (source, destination) in [("10.1.0.1", "10.1.0.99"), ("fd01::1", "fd01::99")] {
        let id = net.follow(source, destination);
        assert_eq!(net.hop(id), NextHop::Resolving);
        let took = net.until("it is given up", |net| net.hop(id) == NextHop::Unreachable);
        assert!(took >= NEIGHBOR_TIMEOUT - Duration::from_millis(50) && took < NEIGHBOR_TIMEOUT * 2, "{took:?}");
        // A second one, while the kernel still holds the first failure, gets the same patience.
        net.net.unfollow(id, Watched::ASKER);
        net.pass(Duration::from_secs(4));
        let id = net.follow(source, destination);
        assert_eq!(net.hop(id), NextHop::Resolving, "{destination}");
        net.until("it is given up again", |net| net.hop(id) == NextHop::Unreachable);
        let length = if destination.contains(':') { 64 } else { 24 };
        b.ip(&format!("address add {destination}/{length} dev eth0"));
        net.until("it came up after all", |net| mac_of(net, id) == Some(PEER_MAC));
    }
}

#[test]
fn another_mac_address_is_noticed_without_traffic_of_the_kernel() {
    let Some((a, b)) = two_hosts() else { return };
    for family in ["ipv4", "ipv6"] {
        // Seconds instead of a minute. With no delay at all the kernel probes only neighbors that
        // are in use.
        a.sysctl(&format!("net.{family}.neigh.eth0.base_reachable_time_ms=500"));
        a.sysctl(&format!("net.{family}.neigh.eth0.delay_first_probe_time=0"));
        a.sysctl(&format!("net.{family}.neigh.eth0.retrans_time_ms=100"));
    }
    let mut net = open(&a);
    let ids = [net.follow("10.1.0.1", "10.1.0.2"), net.follow("fd01::1", "fd01::2")];
    net.until("both are reachable", |net| ids.iter().all(|id| mac_of(net, *id) == Some(PEER_MAC)));
    net.until("the kernel has lost interest", |_| ["10.1.0.2", "fd01::2"].iter().all(|peer| a.calls_stale(peer)));
    b.ip("link set eth0 address 02:00:00:00:00:0c");
    net.until("the new MAC address", |net| ids.iter().all(|id| mac_of(net, *id) == Some([2, 0, 0, 0, 0, 0xc])));
    let gave_up = |change: &NetworkChange| matches!(change, NetworkChange::NextHop(_, NextHop::Unreachable));
    assert!(!net.heard.iter().any(gave_up), "it was resolved anew, never unreachable: {:?}", net.heard);
    b.ip("address flush dev eth0");
    net.until("it is gone", |net| ids.iter().all(|id| net.hop(*id) == NextHop::Unreachable));
}

#[test]
fn a_gateway_is_the_next_hop_and_routes_are_followed() {
    let Some((a, r)) = two_hosts() else { return };
    r.ip("address add 10.1.0.3/24 dev eth0");
    a.ip("route add 10.2.0.0/24 via 10.1.0.2 mtu 1300");
    a.ip("route add fd02::/64 via fd01::2");
    let mut net = open(&a);
    let (v4, v6) = (net.follow("10.1.0.1", "10.2.0.5"), net.follow("fd01::1", "fd02::5"));
    net.until("both go by the router", |net| [v4, v6].iter().all(|id| mac_of(net, *id) == Some(PEER_MAC)));
    assert!(matches!(net.hop(v4), NextHop::Reachable { mtu_bytes: 1300, .. }), "{:?}", net.hop(v4));

    a.ip("route change 10.2.0.0/24 via 10.1.0.77");
    net.until("a gateway that is not there", |net| net.hop(v4) == NextHop::Unreachable);
    a.ip("route change 10.2.0.0/24 via 10.1.0.3");
    net.until("one that is", |net| mac_of(net, v4) == Some(PEER_MAC));
    a.ip("route add 10.2.0.0/24 via inet6 fd01::2 metric 5");
    a.ip("route del 10.2.0.0/24 via 10.1.0.3");
    net.until("an IPv6 gateway of an IPv4 route", |net| mac_of(net, v4) == Some(PEER_MAC));
    a.ip("route del 10.2.0.0/24 via inet6 fd01::2");
    a.ip("route del fd02::/64");
    net.until("no way any more", |net| [v4, v6].iter().all(|id| net.hop(*id) == NextHop::Unreachable));
    let source = net.gid(0, "10.1.0.1");
    assert!(net.net.follow(DeviceId(0), source, [10, 2, 0, 5].into(), Watched::ASKER).is_ok(), "it is still followed");
    let error =
        net.net.follow(DeviceId(0), source, [10, 2, 0, 6].into(), Watched::ASKER).expect_err("there is no route");
    assert_eq!(error.to_string(), "no route to 10.2.0.6 from 10.1.0.1 by that device");
    a.ip("route add 10.2.0.0/24 via 10.1.0.2");
    net.until("a way again", |net| mac_of(net, v4) == Some(PEER_MAC));
}

/// More of them than lines of the log about them are written.
#[test]
fn each_neighbor_that_does_not_answer_is_told() {
    let Some((a, _b)) = two_hosts() else { return };
    let mut net = open(&a);
    let ids: Vec<FollowId> = (100..150).map(|last| net.follow("10.1.0.1", &format!("10.1.0.{last}"))).collect();
    net.until("all are unreachable", |net| ids.iter().all(|id| net.hop(*id) == NextHop::Unreachable));
}

/// They are looked at in steps.
#[test]
fn hundreds_of_destinations_follow_a_link() {
    let Some((a, _b)) = two_hosts() else { return };
    let addresses: Vec<String> = (0..700).map(|at| format!("10.1.{}.{}", 1 + at / 250, 1 + at % 250)).collect();
    a.ip("route add 10.1.0.0/16 dev eth0");
    let lines = addresses
        .iter()
        .map(|address| format!("neigh add {address} lladdr 02:00:00:00:00:0b dev eth0 nud permanent\n"));
    a.ip_batch(&lines.collect::<String>());
    let mut net = open(&a);
    let ids: Vec<FollowId> = addresses.iter().map(|address| net.follow("10.1.0.1", address)).collect();
    let reached = |net: &Watched| ids.iter().filter(|id| mac_of(net, **id) == Some(PEER_MAC)).count();
    assert_eq!(reached(&net), ids.len());
    a.ip("link set eth0 mtu 1400");
    let is_narrow = |hop| matches!(hop, NextHop::Reachable { mtu_bytes: 1400, .. });
    let took = net.until("all have the new MTU", |net| ids.iter().all(|id| is_narrow(net.hop(*id))));
    assert!(took < Duration::from_secs(2), "{took:?}");
}

#[test]
fn a_rule_that_leads_elsewhere_is_followed() {
    let Some((a, b)) = two_hosts() else { return };
    b.ip("address add 10.1.0.3/24 dev eth0");
    a.ip("route add 10.2.0.0/24 via 10.1.0.77");
    a.ip("route add 10.2.0.0/24 via 10.1.0.3 table 100");
    let mut net = open(&a);
    let id = net.follow("10.1.0.1", "10.2.0.5");
    net.until("the gateway is not there", |net| net.hop(id) == NextHop::Unreachable);
    a.ip("rule add from 10.1.0.1 lookup 100");
    net.until("the rule leads to the other", |net| mac_of(net, id) == Some(PEER_MAC));
}

#[test]
fn vlan_interfaces_give_gids_and_tags() {
    let Some((a, b)) = two_hosts() else { return };
    let mut net = open(&a);
    for (host, number) in [(&a, 1), (&b, 2)] {
        if !host.add_vlan("eth0", 5) {
            return;
        }
        host.ip(&format!("address add 10.5.0.{number}/24 dev eth0.5"));
    }
    a.ip("link add link eth0 name eth0.6 type vlan proto 802.1ad id 6");
    a.ip("address add 10.6.0.1/24 dev eth0.6");
    net.until("the VLAN's address is a GID", |net| net.addresses().contains(&"10.5.0.1".to_owned()));
    net.until("so is its link-local address", |net| net.addresses().len() == 5);
    let gid = net.gid(0, "10.5.0.1");
    assert_eq!(gid.vlan, Some(5));
    let id = net.follow_from(gid, "10.5.0.2");
    net.until("it is reached with a tag", |net| {
        matches!(net.hop(id), NextHop::Reachable { mac: PEER_MAC, vlan: Some(5), .. })
    });

    // The same link-local addresses are on eth0 and on eth0.5.
    let peer = open(&b).device().gids.get(0).expect("b has a link-local address").address.to_string();
    for tag in [None, Some(5)] {
        let ours = |gid: &GidTableEntry| gid.vlan == tag && gid.address.to_string().starts_with("fe80");
        let gid = net.device().gids.entries().map(|(_, gid)| *gid).find(ours).expect("both have one");
        let id = net.follow_from(gid, &peer);
        let tagged = |hop| matches!(hop, NextHop::Reachable { mac: PEER_MAC, vlan, .. } if vlan == tag);
        net.until("the peer's link-local address on that link", |net| tagged(net.hop(id)));
    }

    a.ip("link del eth0.5");
    net.until("its GIDs go with it", |net| net.addresses().len() == 3 && net.hop(id) == NextHop::Unreachable);
}

/// The parent's index is one of the other namespace, where it happens to be that of our device
/// here.
#[test]
fn a_vlan_interface_of_another_namespaces_interface_is_not_ours() {
    let Some((a, _b)) = two_hosts() else { return };
    let index = open(&a).device().ifindex;
    let c = Namespace::new("c").expect("the others could be made");
    c.ip(&format!("link add trunk index {index} type bridge"));
    if !c.add_vlan("trunk", 9) {
        return;
    }
    c.ip(&format!("link set trunk.9 netns {}", a.name()));
    a.ip("address add 10.9.0.1/24 dev trunk.9");
    let net = open(&a);
    assert!(!net.addresses().contains(&"10.9.0.1".to_owned()), "{:?}", net.addresses());
}

#[test]
fn addresses_of_our_own_devices_are_local() {
    let Some((a, b)) = two_hosts() else { return };
    a.join("eth1", &b, "eth1");
    a.ip("address add 10.3.0.1/24 dev eth1");
    let mut net = a.open(&["eth0", "eth1"], NEIGHBOR_TIMEOUT).expect("both are there");
    let (own, other) = (net.follow("10.1.0.1", "10.1.0.1"), net.follow("10.1.0.1", "10.3.0.1"));
    assert_eq!((net.hop(own), net.hop(other)), (NextHop::Local(DeviceId(0)), NextHop::Local(DeviceId(1))));
    // Not a GID of any device, though it is the host's own.
    let source = net.gid(0, "10.1.0.1");
    net.net.follow(DeviceId(0), source, [127, 0, 0, 1].into(), Watched::ASKER).expect_err("loopback is no device");
    a.ip("address del 10.3.0.1/24 dev eth1");
    net.until("it has no owner now", |net| net.hop(other) == NextHop::Unreachable);
}

#[test]
fn the_kernel_is_a_member_of_a_group_while_a_queue_pair_is_attached() {
    let Some((a, b)) = two_hosts() else { return };
    a.join("eth1", &b, "eth1");
    a.ip("address add 10.3.0.1/24 dev eth1");
    a.ip("address add fd03::1/64 dev eth1");
    let mut net = a.open(&["eth0", "eth1"], NEIGHBOR_TIMEOUT).expect("both are there");
    for (sources, group) in [(["10.1.0.1", "10.3.0.1"], "239.1.2.3"), (["fd01::1", "fd03::1"], "ff0e::1:203")] {
        let places = [0, 1].map(|device| (DeviceId(device), net.gid(device, sources[device as usize])));
        let address: IpAddr = group.parse().expect("an address");
        let [(first, source), (second, other)] = places;
        let is_member = || [a.is_member(group, "eth0"), a.is_member(group, "eth1")];
        a.inside(|| net.net.join(first, &source, address)).expect("the kernel joins");
        a.inside(|| net.net.join(first, &source, address)).expect("it has joined");
        assert_eq!(is_member(), [true, false], "{group}");
        a.inside(|| net.net.join(second, &other, address)).expect("the kernel joins");
        assert_eq!(is_member(), [true, true], "{group}");
        let is_ours = |net: &Watched| net.net.groups(first).any(|group| group == address);
        assert!(is_ours(&net));
        net.net.leave(first, source.vlan, address);
        assert_eq!(is_member(), [true, true], "one wants it still");
        net.net.leave(first, source.vlan, address);
        assert_eq!((is_member(), is_ours(&net)), ([false, true], false), "{group}");
        // For any end of this process: the sockets are all of its state.
        a.inside(|| net.net.join(first, &source, address)).expect("the kernel joins");
    }
    drop(net);
    for group in ["239.1.2.3", "ff0e::1:203"] {
        assert!(!a.is_member(group, "eth0") && !a.is_member(group, "eth1"), "{group}");
    }
}

/// Also with a VLAN, and if the next interface has the index of the earlier one.
#[test]
fn groups_are_joined_again_on_an_interface_that_returns() {
    let Some((a, b)) = two_hosts() else { return };
    let has_vlan = a.add_vlan("eth0", 7);
    if has_vlan {
        a.ip("address add 10.7.0.1/24 dev eth0.7");
    }
    let mut net = open(&a);
    let mut groups = vec![("10.1.0.1", "239.1.2.3", "eth0"), ("fd01::1", "ff0e::1:203", "eth0")];
    if has_vlan {
        groups.push(("10.7.0.1", "239.1.2.3", "eth0.7"));
    }
    let joined = groups.iter().map(|(source, group, _)| (net.gid(0, source), group.parse().expect("an address")));
    let joined: Vec<(GidTableEntry, IpAddr)> = joined.collect();
    for (source, group) in &joined {
        a.inside(|| net.net.join(DeviceId(0), source, *group)).expect("the kernel joins");
    }
    let index = net.device().ifindex;
    for next in [index + 50, index + 50, index] {
        a.ip("link del eth0");
        a.ip(&format!("link add eth0 index {next} type veth peer name eth0 netns {}", b.name()));
        a.ip("link set eth0 up");
        b.ip("link set eth0 up");
        a.ip("address add 10.1.0.1/24 dev eth0");
        a.ip("address add fd01::1/64 dev eth0");
        if has_vlan {
            a.add_vlan("eth0", 7);
            a.ip("address add 10.7.0.1/24 dev eth0.7");
        }
        for (_, group, interface) in &groups {
            let is_member = |_: &Watched| a.is_member(group, interface);
            a.inside(|| net.until(&format!("{group} is joined again on {interface}"), is_member));
        }
    }
    for ((source, address), (_, group, interface)) in joined.iter().zip(&groups) {
        net.net.leave(DeviceId(0), source.vlan, *address);
        assert!(!a.is_member(group, interface), "{group} on {interface} is left by the GID of the earlier interface");
    }
}

/// A device is its interface, under any name; after the end of the interface it is the next one
/// with the name of the config.
#[test]
fn an_interface_is_followed_through_a_rename() {
    let Some((a, b)) = two_hosts() else { return };
    let mut net = open(&a);
    let ifindex = net.device().ifindex;
    a.ip("link set eth0 down");
    a.ip("link set eth0 name lan0");
    net.until("the new name is known", |net| net.device().name == "lan0");
    assert!(net.device().present && net.device().ifindex == ifindex);
    a.join("eth0", &b, "eth1");
    net.pass(Duration::from_millis(200));
    assert_eq!(net.device().ifindex, ifindex, "another interface has the name of the config now");
    a.ip("link del lan0");
    net.until("the other one takes its place", |net| net.device().present && net.device().ifindex != ifindex);
    assert_eq!(net.device().name, "eth0");
}

/// The kernel gives a socket twenty groups of IPv4 unless told otherwise; that is no limit of ours.
#[test]
fn there_may_be_more_groups_than_one_socket_has_and_a_refusal_is_told() {
    let Some((a, _b)) = two_hosts() else { return };
    let mut net = open(&a);
    let source = net.gid(0, "10.1.0.1");
    for last in 1..=50 {
        a.inside(|| net.net.join(DeviceId(0), &source, [239, 9, 9, last].into())).expect("the kernel joins");
    }
    assert_eq!(net.net.groups(DeviceId(0)).count(), 50);
    assert!(a.is_member("239.9.9.1", "eth0") && a.is_member("239.9.9.50", "eth0"));
    a.sysctl("net.ipv4.igmp_max_memberships=0");
    let refused = a.inside(|| net.net.join(DeviceId(0), &source, [239, 9, 9, 51].into()));
    assert_eq!(refused.map_err(|error| error.raw_os_error()), Err(Some(libc::ENOBUFS)));
    assert!(!a.is_member("239.9.9.51", "eth0") && net.net.groups(DeviceId(0)).count() == 50);
}

#[test]
fn two_devices_in_one_network_keep_to_their_interfaces() {
    let Some((a, b)) = two_hosts() else { return };
    a.join("eth1", &b, "eth1");
    b.ip("link set eth1 address 02:00:00:00:01:0b");
    b.sysctl("net.ipv4.conf.all.arp_ignore=1");
    a.ip("address add 10.1.0.11/24 dev eth1");
    b.ip("address add 10.1.0.12/24 dev eth1");
    let mut net = a.open(&["eth0", "eth1"], NEIGHBOR_TIMEOUT).expect("both are there");
    let source = net.gid(1, "10.1.0.11");
    let destination = [10, 1, 0, 12].into();
    // The kernel's first choice is eth0, with the older route.
    let (id, _) = net.net.follow(DeviceId(1), source, destination, Watched::ASKER).expect("eth1 leads there as well");
    let mac = |change: &NetworkChange| match change {
        NetworkChange::NextHop(heard, NextHop::Reachable { mac, .. }) if *heard == id => Some(*mac),
        _ => None,
    };
    net.until("it is reached by eth1", |net| net.heard.iter().any(|change| mac(change) == Some([2, 0, 0, 0, 1, 0xb])));
}

#[test]
fn changes_lost_in_a_flood_are_made_up_for() {
    let Some((a, _b)) = two_hosts() else { return };
    a.ip("link add flood type veth peer name other");
    a.ip("link set flood up");
    a.ip("link set other up");
    let mut net = open(&a);
    let id = net.follow("10.1.0.1", "10.1.0.2");
    net.until("it is reachable", |net| mac_of(net, id).is_some());
    let lines: Vec<String> =
        (0..6000).map(|n| format!("route add 10.{}.{}.0/24 dev flood\n", 100 + n / 250, n % 250)).collect();
    a.ip_batch(&lines.concat());
    // These come when there is no more room to tell of them.
    a.ip("address add 10.1.0.8/24 dev eth0");
    a.ip("address del fd01::1/64 dev eth0");
    a.ip("link set eth0 mtu 1450");
    net.until("all is known", |net| {
        let addresses = net.addresses();
        addresses.contains(&"10.1.0.8".to_owned()) && !addresses.contains(&"fd01::1".to_owned())
    });
    assert_eq!(net.device().link_mtu_bytes, 1450);
    net.until("the next hop is right again", |net| matches!(net.hop(id), NextHop::Reachable { mtu_bytes: 1450, .. }));
}

#[test]
fn an_interface_that_will_not_do_is_refused_by_name() {
    let Some((a, _b)) = two_hosts() else { return };
    let error = |name: &str| a.open(&[name], NEIGHBOR_TIMEOUT).err().expect("it will not do");
    assert!(matches!(error("eth7"), NetError::NoSuchInterface(name) if name == "eth7"));
    assert!(matches!(error("lo"), NetError::NotEthernet(name) if name == "lo"));
    assert_eq!(
        error("eth7").to_string(),
        "there is no network interface eth7: `ip link` shows those that are there, and an altname does not do"
    );
}
