//! Addresses of devices.

use std::{
    fmt,
    net::{AddrParseError, IpAddr},
    str::FromStr,
};

use roced_shared::steer::{address_key, key_address};

/// The address of a device's port: an IPv6 address, or an IPv4 address mapped into one.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The IP address that it stands for.
    pub fn address(self) -> IpAddr {
        key_address(self.0)
    }

    /// True for a GID that stands for an IPv4 address.
    pub fn is_ipv4(self) -> bool {
        self.address().is_ipv4()
    }

    pub(crate) fn is_link_local(self) -> bool {
        matches!(self.address(), IpAddr::V6(v6) if v6.is_unicast_link_local())
    }
}

impl From<IpAddr> for Gid {
    fn from(address: IpAddr) -> Self {
        Self(address_key(address))
    }
}

impl FromStr for Gid {
    type Err = AddrParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse::<IpAddr>().map(Self::from)
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address().fmt(f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

/// By which RoCE a GID speaks; the numbers are those of verbs (`ibv_gid_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoceVersion {
    /// RoCEv1: an Ethernet type of its own, for peers on the same segment.
    V1 = 1,
    /// RoCEv2: by UDP over IP.
    V2 = 2,
}

/// An entry of a device's GID table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// Its index, stable while the address exists.
    pub index: u32,
    /// The GID.
    pub gid: Gid,
    /// Interface of the address.
    pub ifindex: u32,
    /// VLAN of that interface, if it is one.
    pub vlan: Option<u16>,
    /// By which RoCE it speaks.
    pub roce: RoceVersion,
}
