//! GIDs of IP addresses.

use core::net::{IpAddr, Ipv6Addr};

/// Returns the GID of an address, in network byte order: the IPv6 address itself, or the IPv4
/// address mapped into IPv6 (`::ffff:a.b.c.d`).
///
/// ```
/// let gid = roced_types::gid_of("10.0.0.1".parse().unwrap());
/// assert_eq!(gid[10..], [0xff, 0xff, 10, 0, 0, 1]);
/// ```
pub const fn gid_of(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// Returns true if the address is a unicast IPv6 address of one link (`fe80::/10`).
pub const fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

/// Returns the node GUID of a device: the EUI-64 of its MAC address, with the universal bit turned
/// (RFC 4291, appendix A).
pub const fn node_guid([a, b, c, d, e, f]: [u8; 6]) -> [u8; 8] {
    [a ^ 2, b, c, 0xff, 0xfe, d, e, f]
}

/// Returns the address of a GID: IPv4 if the GID is an IPv4 address mapped into IPv6.
pub fn address_of(gid: [u8; 16]) -> IpAddr {
    Ipv6Addr::from(gid).to_canonical()
}
