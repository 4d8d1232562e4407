//! Addresses of queue pairs, exchanged before a connection is made.

use std::{fmt, str::FromStr};

use thiserror::Error;

use crate::{access::Access, gid::Gid};

/// Address of one end of a connection, as needed by the other end. The program transports it, as
/// fields or as text (`10.10.0.1/0x040005/123456/4096`).
///
/// ```
/// use roced_client::QpAddress;
///
/// let text = "10.10.0.1/0x040005/123456/4096";
/// let address: QpAddress = text.parse()?;
/// assert_eq!((address.qpn, address.psn, address.mtu_bytes), (0x04_0005, 123_456, 4096));
/// assert_eq!(address.to_string(), text);
/// # Ok::<(), roced_client::NotAQpAddress>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QpAddress {
    /// GID of the device.
    pub gid: Gid,
    /// Number of the queue pair.
    pub qpn: u32,
    /// First PSN that the queue pair sends.
    pub psn: u32,
    /// Largest path MTU that its link carries, in bytes.
    pub mtu_bytes: u32,
}

impl fmt::Display for QpAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/0x{:06x}/{}/{}", self.gid, self.qpn, self.psn, self.mtu_bytes)
    }
}

/// Error of parsing a [`QpAddress`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("not a queue pair address (gid/0xqpn/psn/mtu)")]
pub struct NotAQpAddress;

impl FromStr for QpAddress {
    type Err = NotAQpAddress;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut parts = text.trim().split('/');
        let mut part = || parts.next().ok_or(NotAQpAddress);
        let (gid, qpn, psn, mtu) = (part()?, part()?, part()?, part()?);
        let qpn = qpn.strip_prefix("0x").ok_or(NotAQpAddress)?;
        if parts.next().is_some() {
            return Err(NotAQpAddress);
        }
        Ok(Self {
            gid: gid.parse().map_err(|_| NotAQpAddress)?,
            qpn: u32::from_str_radix(qpn, 16).map_err(|_| NotAQpAddress)?,
            psn: psn.parse().map_err(|_| NotAQpAddress)?,
            mtu_bytes: mtu.parse().map_err(|_| NotAQpAddress)?,
        })
    }
}

/// Options of a connection. The defaults suit a data-center network. An unreliable connection
/// ignores the options that only acknowledgments need: the two `rd_atomic`, `timeout`, the two
/// retry counts, `min_rnr_timer`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectOptions {
    /// Index of the local GID. `None` selects the GID that matches the peer's
    /// ([`crate::Device::gid_toward`]).
    pub sgid_index: Option<u32>,
    /// Path MTU in bytes: 256, 512, 1024, 2048 or 4096. `None` selects the largest that both links
    /// carry.
    pub path_mtu_bytes: Option<u32>,
    /// Rights of the peer on local memory; the rights of each region apply in addition.
    pub access: Access,
    /// READs and atomic operations outstanding at a time, at most 128.
    pub max_rd_atomic: u32,
    /// READs and atomic operations of the peer answered at a time: at least the peer's
    /// `max_rd_atomic`, at most 128.
    pub max_dest_rd_atomic: u32,
    /// Code of the ACK timeout: 4.096 us * 2^code; 0 waits forever. Codes 1 to 11 act as 12 (16.8
    /// ms), as on adapters.
    pub timeout: u32,
    /// Retries after a timeout or a lost packet, 0 to 7.
    pub retry_cnt: u32,
    /// Retries while the peer has no receive posted, 0 to 6; 7 retries forever.
    pub rnr_retry: u32,
    /// Code of the time that the peer is asked to wait while no receive is posted here, 0 to 31
    /// (IBTA v1 table 45; 12 is 0.64 ms).
    pub min_rnr_timer: u32,
    /// IP time to live or hop limit.
    pub hop_limit: u8,
    /// IP traffic class: DSCP in the upper six bits. The lower two bits (ECN) are the
    /// device's, and not looked at here.
    pub traffic_class: u8,
    /// IPv6 flow label, 20 bits. If not 0, the UDP source port is derived from it; if 0, the port
    /// differs in each life of the queue pair.
    pub flow_label: u32,
    /// Priority in the VLAN tag, if the frame has one, 0 to 7.
    pub service_level: u8,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self {
            sgid_index: None,
            path_mtu_bytes: None,
            access: Access::ALL,
            max_rd_atomic: 16,
            max_dest_rd_atomic: 16,
            // 67 ms, the default, or nearly, of perftest and NCCL; times seven retries.
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            hop_limit: 64,
            traffic_class: 0,
            flow_label: 0,
            service_level: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_survives_as_text() {
        for gid in ["10.10.0.1", "fd00:10::1"] {
            let gid = gid.parse().expect("an address");
            let endpoint = QpAddress { gid, qpn: 0x04_0005, psn: 77, mtu_bytes: 4096 };
            assert_eq!(endpoint.to_string().parse(), Ok(endpoint));
        }
        for wrong in
            ["", "10.10.0.1", "10.10.0.1/5/7/1024", "10.10.0.1/0x5/7", "10.10.0.1/0x5/7/1024/9", "a/0x5/7/1024"]
        {
            assert_eq!(wrong.parse::<QpAddress>(), Err(NotAQpAddress), "{wrong}");
        }
    }
}
