//! GIDs: addresses of device ports.

use std::{
    fmt,
    net::{AddrParseError, IpAddr},
    str::FromStr,
};

use roced_types::{address_of, gid_of, is_link_local};

/// Address of a device's port: an IPv6 address, or an IPv4 address mapped into one.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// IP address that the GID represents.
    pub fn address(self) -> IpAddr {
        address_of(self.0)
    }

    /// True if the GID represents an IPv4 address.
    pub fn is_ipv4(self) -> bool {
        self.address().is_ipv4()
    }

    pub(crate) fn is_link_local(self) -> bool {
        is_link_local(self.address())
    }
}

impl From<IpAddr> for Gid {
    fn from(address: IpAddr) -> Self {
        Self(gid_of(address))
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

/// RoCE version of a GID; the numbers are those of verbs (`ibv_gid_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoceVersion {
    /// RoCEv1: an Ethernet type of its own, for peers on the same segment.
    V1 = 1,
    /// RoCEv2: UDP over IP.
    V2 = 2,
}

/// Entry of a device's GID table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// Index in the table, stable while the address exists.
    pub index: u32,
    /// The GID.
    pub gid: Gid,
    /// Index of the network interface of the address.
    pub ifindex: u32,
    /// VLAN of that interface, if it is a VLAN interface.
    pub vlan: Option<u16>,
    /// RoCE version of the entry.
    pub roce: RoceVersion,
}
