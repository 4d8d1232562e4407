//! Networks whose hosts the operator keeps out: no frame from them is accepted.

use alloc::boxed::Box;

use crate::{io::FrameOrigin, reject::DropReason};

/// Prefix of addresses: a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidPrefix {
    bits: u128,
    mask: u128,
}

impl GidPrefix {
    /// The network of `gid` by its first `length` bits. IPv4 addresses are those of `::ffff:0:0/96`.
    ///
    /// # Panics
    /// With more than 128 bits.
    pub fn new(gid: [u8; 16], length: u8) -> Self {
        assert!(length <= 128, "an address has 128 bits");
        let mask = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
        Self { bits: u128::from_be_bytes(gid) & mask, mask }
    }

    /// The address is in the network.
    pub(crate) fn has(self, gid: &[u8; 16]) -> bool {
        u128::from_be_bytes(*gid) & self.mask == self.bits
    }
}

/// Networks with denied sources. Every frame is compared with each, so they should be few.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeniedSources(Box<[GidPrefix]>);

impl DeniedSources {
    /// Creates the list from prefixes.
    pub fn new(prefixes: impl IntoIterator<Item = GidPrefix>) -> Self {
        Self(prefixes.into_iter().collect())
    }

    /// Checks the source address of a frame.
    ///
    /// # Errors
    /// [`DropReason::DeniedSource`].
    #[inline]
    pub(crate) fn check(&self, source: &[u8; 16], origin: FrameOrigin) -> Result<(), DropReason> {
        if self.0.is_empty() { Ok(()) } else { self.look_up(source, origin) }
    }

    #[cold]
    fn look_up(&self, source: &[u8; 16], origin: FrameOrigin) -> Result<(), DropReason> {
        let is_denied = origin == FrameOrigin::Wire && self.0.iter().any(|prefix| prefix.has(source));
        if is_denied { Err(DropReason::DeniedSource) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use roced_types::gid_of;

    use super::*;

    #[test]
    fn frames_of_a_denied_network_are_refused_and_those_of_this_host_are_not() {
        let gid = |address: &str| gid_of(address.parse().expect("an address"));
        let denied = DeniedSources::new([
            GidPrefix::new(gid("10.9.0.0"), 96 + 16),
            GidPrefix::new(gid("fd00::1"), 128),
            GidPrefix::new(gid("2001:db8:8000::"), 33),
        ]);
        let is_denied = |address: &str, origin| denied.check(&gid(address), origin).is_err();
        for source in ["10.9.0.0", "10.9.255.255", "fd00::1", "2001:db8:8000::", "2001:db8:ffff::7"] {
            assert!(is_denied(source, FrameOrigin::Wire) && !is_denied(source, FrameOrigin::Local), "{source}");
        }
        for source in ["10.8.255.255", "10.10.0.0", "fd00::2", "fd00::", "2001:db8:7fff::", "0.10.9.0"] {
            assert!(!is_denied(source, FrameOrigin::Wire), "{source}");
        }
        let all = DeniedSources::new([GidPrefix::new([7; 16], 0)]);
        assert!(all.check(&gid("10.0.0.1"), FrameOrigin::Wire).is_err());
        assert!(DeniedSources::default().check(&gid("10.9.0.1"), FrameOrigin::Wire).is_ok());
    }
}
