//! Addresses of this host's devices: no frame from the network may name one of them as its source.

use alloc::{boxed::Box, vec::Vec};

use crate::{io::FrameOrigin, reject::DropReason};

/// GIDs of the devices of this host that frames cannot come from. Made where allocation is allowed
/// and looked at for datagrams only: a connection has one peer, and knows whether that is here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnAddresses(Box<[[u8; 16]]>);

impl OwnAddresses {
    /// These addresses, in any order.
    pub fn new(addresses: impl IntoIterator<Item = [u8; 16]>) -> Self {
        let mut addresses: Vec<_> = addresses.into_iter().collect();
        addresses.sort_unstable();
        addresses.dedup();
        Self(addresses.into_boxed_slice())
    }

    /// Checks the source address of a datagram.
    ///
    /// # Errors
    /// [`DropReason::ForgedSource`]: it comes from the network, and no other host has this address.
    pub(crate) fn check_source(&self, source: &[u8; 16], origin: FrameOrigin) -> Result<(), DropReason> {
        let is_forged = origin == FrameOrigin::Wire && (is_of_no_host(source) || self.0.binary_search(source).is_ok());
        if is_forged { Err(DropReason::ForgedSource) } else { Ok(()) }
    }
}

/// No frame on a network comes from this address: multicast, loopback, unspecified, or the limited
/// broadcast (RFC 1122 3.2.1.3, RFC 4291 2.5.2, 2.5.3, 2.7).
const fn is_of_no_host(gid: &[u8; 16]) -> bool {
    match gid {
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d] => {
            matches!((*a, *b, *c, *d), (0 | 127 | 224..=239, ..) | (255, 255, 255, 255))
        }
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 | 1] => true,
        [first, ..] => *first == 0xff,
    }
}

#[cfg(test)]
mod tests {
    use roced_types::gid_of;

    use super::*;

    #[test]
    fn no_frame_from_the_network_comes_from_here_or_from_no_host() {
        let gid = |address: &str| gid_of(address.parse().expect("an address"));
        let own = OwnAddresses::new(["10.0.0.1", "fd00::1", "10.0.0.1"].map(gid));
        let forged = |address: &str, origin| own.check_source(&gid(address), origin).is_err();
        for source in ["10.0.0.1", "fd00::1", "127.0.0.1", "0.0.0.0", "224.0.0.251", "239.1.2.3", "255.255.255.255"] {
            assert!(forged(source, FrameOrigin::Wire) && !forged(source, FrameOrigin::Local), "{source}");
        }
        for source in ["::", "::1", "ff02::1"] {
            assert!(forged(source, FrameOrigin::Wire), "{source}");
        }
        for source in ["10.0.0.2", "fd00::2", "fe80::1", "126.0.0.1", "128.0.0.1", "223.255.255.255", "240.0.0.1"] {
            assert!(!forged(source, FrameOrigin::Wire), "{source}");
        }
    }
}
