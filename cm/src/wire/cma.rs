//! CMA header: addresses and the port of the active side, at the front of the private data of REQ
//! and SIDR_REQ in the port spaces of IP (IBTA annex A11).

use thiserror::Error;

/// A CMA header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmaHeader {
    /// Port of the active side.
    pub source_port: u16,
    /// Source and destination.
    pub addresses: CmaAddress,
}

/// Addresses of a CMA header, source first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CmaAddress {
    /// IPv4.
    Ipv4([[u8; 4]; 2]),
    /// IPv6.
    Ipv6([[u8; 16]; 2]),
}

/// Reasons why bytes are no CMA header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CmaHeaderError {
    /// Another version of the header.
    #[error("version {0} of the CMA header, not 0")]
    Version(u8),
    /// Another version of IP.
    #[error("IP version {0}")]
    IpVersion(u8),
}

impl CmaHeader {
    /// Bytes at the front of the private data.
    pub const BYTES: usize = 36;

    /// The header in `bytes`.
    ///
    /// # Errors
    /// [`CmaHeaderError`].
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Result<Self, CmaHeaderError> {
        if bytes[0] != 0 {
            return Err(CmaHeaderError::Version(bytes[0]));
        }
        let addresses = match bytes[1] >> 4 {
            // In the last four of sixteen bytes.
            4 => CmaAddress::Ipv4([part(bytes, 16), part(bytes, 32)]),
            6 => CmaAddress::Ipv6([part(bytes, 4), part(bytes, 20)]),
            other => return Err(CmaHeaderError::IpVersion(other)),
        };
        Ok(Self { source_port: u16::from_be_bytes(part(bytes, 2)), addresses })
    }

    /// The header as bytes.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[2..4].copy_from_slice(&self.source_port.to_be_bytes());
        match self.addresses {
            CmaAddress::Ipv4([source, destination]) => {
                bytes[1] = 4 << 4;
                bytes[16..20].copy_from_slice(&source);
                bytes[32..36].copy_from_slice(&destination);
            }
            CmaAddress::Ipv6([source, destination]) => {
                bytes[1] = 6 << 4;
                bytes[4..20].copy_from_slice(&source);
                bytes[20..36].copy_from_slice(&destination);
            }
        }
        bytes
    }
}

fn part<const BYTES: usize>(bytes: &[u8; CmaHeader::BYTES], at: usize) -> [u8; BYTES] {
    core::array::from_fn(|byte| bytes[at + byte])
}
