//! Routes: which interface and which next hop lead to an address.

use std::{io, net::IpAddr};

use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    route::{RouteAddress, RouteAttribute, RouteMessage, RouteMetric, RouteType, RouteVia},
};

use super::socket::Requests;

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

/// Asks the kernel for the way from `source` to `destination`, by interface `out` if it is given. `None` when there is none, or
/// when it leads to this host itself.
pub(super) fn find(
    requests: &mut Requests,
    source: IpAddr,
    destination: IpAddr,
    out: Option<u32>,
) -> io::Result<Option<Hop>> {
    let mut question = RouteMessage::default();
    let (family, bits) = match destination {
        IpAddr::V4(_) => (AddressFamily::Inet, 32),
        IpAddr::V6(_) => (AddressFamily::Inet6, 128),
    };
    question.header.address_family = family;
    question.header.destination_prefix_length = bits;
    question.header.source_prefix_length = bits;
    question.attributes.push(RouteAttribute::Destination(destination.into()));
    question.attributes.push(RouteAttribute::Source(source.into()));
    question.attributes.extend(out.map(RouteAttribute::Oif));
    match requests.get(RouteNetlinkMessage::GetRoute(question)) {
        Ok(answers) => Ok(answers.iter().find_map(|answer| match answer {
            RouteNetlinkMessage::NewRoute(route) => hop_of(route, destination),
            _ => None,
        })),
        // No route, prohibited, unreachable; a source that is not ours any more.
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
