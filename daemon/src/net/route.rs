//! Routes: which interface and which next hop lead to an address.

use std::{io, net::IpAddr};

use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    route::{RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteMetric, RouteType, RouteVia},
};
use roced_xdp::netlink::Requests;

/// The first step to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hop {
    /// Leaves by this interface.
    pub(super) ifindex: u32,
    /// To this neighbor: a gateway, or the destination itself.
    pub(super) neighbor: IpAddr,
    /// MTU of the route, if it has one of its own.
    pub(super) mtu_bytes: Option<u32>,
}

/// Asks the kernel for the way from `source` to `destination`, by interface `out` if it is given.
/// `None` when there is none, or when it leads to this host itself.
pub(super) fn find(
    requests: &mut Requests,
    source: IpAddr,
    destination: IpAddr,
    out: Option<u32>,
) -> io::Result<Option<Hop>> {
    let mut question = question(Some(source), destination, out);
    // Where no route fits a given interface, IPv4 "assumes that the destination is on link"
    // (ip_route_output_key_hash_rcu). We do not: the table itself must have a route.
    if destination.is_ipv4() && out.is_some() {
        question.header.flags = RouteFlags::FibMatch;
        if first_route(requests, question.clone())?.is_none() {
            return Ok(None);
        }
        question.header.flags = RouteFlags::empty();
    }
    let route = first_route(requests, question)?;
    Ok(route.and_then(|route| hop_of(&route, destination)))
}

/// Asks the kernel for the address from which it sends to `destination`, by interface `out` if it
/// is given; the destination may be of this host itself. `None` without a route.
pub(super) fn source(requests: &mut Requests, destination: IpAddr, out: Option<u32>) -> io::Result<Option<IpAddr>> {
    let route = first_route(requests, question(None, destination, out))?;
    let attributes = route.map(|route| route.attributes).unwrap_or_default();
    Ok(attributes.into_iter().find_map(|attribute| match attribute {
        RouteAttribute::PrefSource(RouteAddress::Inet(address)) => Some(address.into()),
        RouteAttribute::PrefSource(RouteAddress::Inet6(address)) => Some(address.into()),
        _ => None,
    }))
}

fn question(source: Option<IpAddr>, destination: IpAddr, out: Option<u32>) -> RouteMessage {
    let mut question = RouteMessage::default();
    let (family, bits) = match destination {
        IpAddr::V4(_) => (AddressFamily::Inet, 32),
        IpAddr::V6(_) => (AddressFamily::Inet6, 128),
    };
    question.header.address_family = family;
    question.header.destination_prefix_length = bits;
    question.header.source_prefix_length = if source.is_some() { bits } else { 0 };
    question.attributes.push(RouteAttribute::Destination(destination.into()));
    question.attributes.extend(source.map(|source| RouteAttribute::Source(source.into())));
    question.attributes.extend(out.map(RouteAttribute::Oif));
    question
}

fn first_route(requests: &mut Requests, question: RouteMessage) -> io::Result<Option<RouteMessage>> {
    match requests.get(RouteNetlinkMessage::GetRoute(question)) {
        Ok(answers) => Ok(answers.into_iter().find_map(|answer| match answer {
            RouteNetlinkMessage::NewRoute(route) => Some(route),
            _ => None,
        })),
        // No route, prohibited, unreachable; a source that is no longer ours.
        Err(error) if is_no_route(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_no_route(error: &io::Error) -> bool {
    let codes = [libc::ENETUNREACH, libc::EHOSTUNREACH, libc::EACCES, libc::EINVAL, libc::ENODEV, libc::ENETDOWN];
    error.raw_os_error().is_some_and(|code| codes.contains(&code))
}

fn hop_of(route: &RouteMessage, destination: IpAddr) -> Option<Hop> {
    if route.header.kind != RouteType::Unicast {
        return None;
    }
    let mut hop = Hop { ifindex: 0, neighbor: destination, mtu_bytes: None };
    for attribute in &route.attributes {
        match attribute {
            RouteAttribute::Oif(index) => hop.ifindex = *index,
            RouteAttribute::Gateway(RouteAddress::Inet(gateway)) => hop.neighbor = (*gateway).into(),
            RouteAttribute::Gateway(RouteAddress::Inet6(gateway)) => hop.neighbor = (*gateway).into(),
            // An IPv6 gateway of an IPv4 route (RFC 5549).
            RouteAttribute::Via(RouteVia::Inet(gateway)) => hop.neighbor = (*gateway).into(),
            RouteAttribute::Via(RouteVia::Inet6(gateway)) => hop.neighbor = (*gateway).into(),
            RouteAttribute::Metrics(metrics) => {
                hop.mtu_bytes = metrics.iter().find_map(|metric| match metric {
                    RouteMetric::Mtu(mtu) => Some(*mtu),
                    _ => None,
                });
            }
            _ => {}
        }
    }
    (hop.ifindex != 0).then_some(hop)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    const DESTINATION: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 2, 0, 1));

    fn hop(kind: RouteType, attributes: &[RouteAttribute]) -> Option<Hop> {
        let mut route = RouteMessage::default();
        route.header.kind = kind;
        route.attributes = attributes.to_vec();
        hop_of(&route, DESTINATION)
    }

    #[test]
    fn a_route_without_gateway_leads_to_the_destination_itself() {
        let expected = Hop { ifindex: 3, neighbor: DESTINATION, mtu_bytes: None };
        assert_eq!(hop(RouteType::Unicast, &[RouteAttribute::Oif(3)]), Some(expected));
        assert_eq!(hop(RouteType::Unicast, &[]), None, "it leads out by no interface");
        for kind in [RouteType::Local, RouteType::Broadcast, RouteType::Multicast, RouteType::Unreachable] {
            assert_eq!(hop(kind, &[RouteAttribute::Oif(3)]), None, "{kind:?}");
        }
    }

    #[test]
    fn a_gateway_of_either_family_and_an_mtu_are_taken() {
        let v4 = Ipv4Addr::new(10, 0, 0, 254);
        let v6 = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
        let mtu = RouteAttribute::Metrics(vec![RouteMetric::Hoplimit(64), RouteMetric::Mtu(1300)]);
        let gateways: [(RouteAttribute, IpAddr); 3] = [
            (RouteAttribute::Gateway(v4.into()), v4.into()),
            (RouteAttribute::Via(RouteVia::Inet6(v6)), v6.into()),
            (RouteAttribute::Gateway(v6.into()), v6.into()),
        ];
        for (attribute, neighbor) in gateways {
            let expected = Hop { ifindex: 3, neighbor, mtu_bytes: Some(1300) };
            assert_eq!(hop(RouteType::Unicast, &[attribute, RouteAttribute::Oif(3), mtu.clone()]), Some(expected));
        }
    }
}
