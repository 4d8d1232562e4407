//! Which of the device's GIDs a run uses: the address that the control connection has on this host,
//! so that the network that the user named is the network that is measured.

use std::net::IpAddr;

/// An entry of the device's GID table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GidChoice {
    /// Index in the table.
    pub(crate) index: u32,
    /// The address.
    pub(crate) address: IpAddr,
    /// It speaks RoCEv1, not RoCEv2.
    pub(crate) rocev1: bool,
}

/// The GID of this version of RoCE for a control connection between `local` and `remote`, which is
/// the peer's GID where that is known: the one that is `local`, else, where control runs over
/// another network, the one of the same family nearest to `remote`.
pub(crate) fn choose(gids: &[GidChoice], rocev1: bool, local: IpAddr, remote: IpAddr) -> Option<GidChoice> {
    let same_family = || gids.iter().filter(|gid| gid.rocev1 == rocev1 && gid.address.is_ipv4() == remote.is_ipv4());
    same_family()
        .find(|gid| gid.address == local)
        .or_else(|| same_family().max_by_key(|gid| (common_bits(gid.address, remote), std::cmp::Reverse(gid.index))))
        .copied()
}

/// Leading bits that two addresses of one family share.
fn common_bits(a: IpAddr, b: IpAddr) -> u32 {
    match (a, b) {
        (IpAddr::V4(a), IpAddr::V4(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
        (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn table() -> Vec<GidChoice> {
        ["10.10.0.1", "fe80::1", "fd00:10::1", "192.168.7.1", "fd00:20::1"]
            .iter()
            .zip([0, 1, 2, 5, 6])
            .map(|(address, index)| GidChoice { index, address: ip(address), rocev1: false })
            .collect()
    }

    fn chosen(local: &str, remote: &str) -> Option<u32> {
        choose(&table(), false, ip(local), ip(remote)).map(|gid| gid.index)
    }

    #[test]
    fn the_address_of_the_control_connection_is_taken() {
        assert_eq!(chosen("192.168.7.1", "10.10.0.2"), Some(5));
        assert_eq!(chosen("fe80::1", "fe80::2"), Some(1));
        assert_eq!(chosen("fd00:20::1", "fd00:10::2"), Some(6));
    }

    #[test]
    fn without_it_the_nearest_of_the_peers_family_is() {
        assert_eq!(chosen("172.16.0.1", "192.168.7.9"), Some(5));
        assert_eq!(chosen("172.16.0.1", "10.10.0.2"), Some(0));
        assert_eq!(chosen("2001:db8::1", "fd00:10::2"), Some(2));
        assert_eq!(chosen("10.10.0.1", "fd00:10::2"), Some(2), "the family of the peer's GID decides");
    }

    #[test]
    fn no_address_of_the_family_is_no_gid() {
        assert_eq!(choose(&table()[..1], false, ip("::1"), ip("::2")), None);
        assert_eq!(choose(&[], false, ip("10.0.0.1"), ip("10.0.0.2")), None);
    }

    #[test]
    fn the_version_of_roce_is_that_which_was_asked_for() {
        let table: Vec<GidChoice> = (0..)
            .zip([true, false])
            .map(|(index, rocev1)| GidChoice { index, address: ip("10.0.0.1"), rocev1 })
            .collect();
        let chosen = |rocev1| choose(&table, rocev1, ip("10.0.0.1"), ip("10.0.0.2")).map(|gid| gid.index);
        assert_eq!((chosen(true), chosen(false)), (Some(0), Some(1)));
        assert_eq!(choose(&table[1..], true, ip("10.0.0.1"), ip("10.0.0.2")), None);
    }
}
