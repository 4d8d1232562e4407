//! Socket addresses as bytes.

use roced_client::cm::{CmAddress, cm_family};

use crate::errno::{Errno, Result};

/// `AF_IB`.
const AF_IB: u16 = 27;

/// Bytes of a `sockaddr_ib`.
pub(super) const IB_BYTES: usize = 48;

const IPV4_BYTES: usize = 16;
const IPV6_BYTES: usize = 28;

/// A socket address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SocketAddress {
    /// An IP address; also none, of family 0.
    Ip(CmAddress),
    /// An address of `AF_IB`.
    Ib([u8; IB_BYTES]),
}

impl SocketAddress {
    /// Reads an address of a length that its family determines. No bytes are no address.
    pub(super) fn of_length(bytes: &[u8], length: u16) -> Result<Self> {
        let length = usize::from(length);
        if length == 0 {
            return Ok(Self::Ip(CmAddress::default()));
        }
        let address = bytes.get(..length).ok_or(Errno::INVALID)?;
        let fits = match family(address) {
            cm_family::IPV4 => length == IPV4_BYTES,
            cm_family::IPV6 => length == IPV6_BYTES,
            AF_IB => length == IB_BYTES,
            _ => false,
        };
        if fits { Self::of(address) } else { Err(Errno::INVALID) }
    }

    /// Reads an address. Family 0 is no address.
    pub(super) fn of(bytes: &[u8]) -> Result<Self> {
        let mut address = CmAddress::default();
        let family = family(bytes);
        let port = u16::from_be_bytes([bytes[2], bytes[3]]);
        match family {
            cm_family::NONE => return Ok(Self::Ip(address)),
            cm_family::IPV4 => address.address[..4].copy_from_slice(&bytes[4..8]),
            cm_family::IPV6 if bytes.len() >= IPV6_BYTES => {
                address.address.copy_from_slice(&bytes[8..24]);
                address.scope = u32::from_ne_bytes([bytes[24], bytes[25], bytes[26], bytes[27]]);
            }
            AF_IB => {
                let whole = bytes.first_chunk().ok_or(Errno::INVALID)?;
                return Ok(Self::Ib(*whole));
            }
            _ => return Err(Errno(libc::EAFNOSUPPORT)),
        }
        (address.family, address.port) = (family, port);
        Ok(Self::Ip(address))
    }

    /// The IP address; `AF_IB` has none.
    pub(super) fn ip(self) -> Result<CmAddress> {
        match self {
            Self::Ip(address) => Ok(address),
            Self::Ib(_) => Err(Errno(libc::EAFNOSUPPORT)),
        }
    }
}

fn family(bytes: &[u8]) -> u16 {
    bytes.first_chunk().map_or(cm_family::NONE, |family| u16::from_ne_bytes(*family))
}

/// Writes an address as a `sockaddr_in` or `sockaddr_in6`, and returns its length: 0 for none.
pub(super) fn write_ip(address: &CmAddress, into: &mut [u8]) -> u16 {
    let length = match address.family {
        cm_family::IPV4 => {
            into[4..8].copy_from_slice(&address.address[..4]);
            IPV4_BYTES
        }
        cm_family::IPV6 => {
            into[8..24].copy_from_slice(&address.address);
            into[24..28].copy_from_slice(&address.scope.to_ne_bytes());
            IPV6_BYTES
        }
        _ => return 0,
    };
    into[..2].copy_from_slice(&address.family.to_ne_bytes());
    into[2..4].copy_from_slice(&address.port.to_be_bytes());
    length as u16
}

/// Writes a GID as a `sockaddr_ib`, and returns its length.
pub(super) fn write_ib(gid: &[u8; 16], pkey: u16, service_id: u64, into: &mut [u8]) -> u16 {
    into[..2].copy_from_slice(&AF_IB.to_ne_bytes());
    into[2..4].copy_from_slice(&pkey.to_be_bytes());
    into[8..24].copy_from_slice(gid);
    into[24..32].copy_from_slice(&service_id.to_be_bytes());
    IB_BYTES as u16
}

/// The GID of a multicast group, in RoCEv2.
pub(super) fn group_gid(group: &CmAddress) -> [u8; 16] {
    if group.family != cm_family::IPV4 {
        return group.address;
    }
    let mut gid = [0; 16];
    gid[10..12].fill(0xff);
    gid[12..].copy_from_slice(&group.address[..4]);
    gid
}
