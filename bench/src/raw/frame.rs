//! A raw frame: Ethernet, IPv4 and UDP to RoCE's port, so that the daemon's XDP program takes it,
//! and a number.

use std::net::Ipv4Addr;

use roced_transport::io::{Egress, EmitError, Segments, Wire as _};
use roced_types::ROCE_UDP_PORT;
use roced_xdp::NicQueue;

const ETHERNET: usize = 14;
const IPV4: usize = 20;
const UDP: usize = 8;

/// Bytes of the headers.
const HEADERS: usize = ETHERNET + IPV4 + UDP;

/// Bytes of headers and number: the shortest frame.
pub(super) const FRAME_BYTES_MIN: usize = HEADERS + 8;

/// Bytes of a RoCE frame over IPv4 that are not payload: the headers here, BTH and ICRC.
const ROCE_OVERHEAD: usize = HEADERS + 12 + 4;

/// The headers of every frame of one end, but for lengths.
#[derive(Clone, Debug)]
pub(super) struct FrameTemplate([u8; HEADERS]);

impl FrameTemplate {
    /// From the first of `macs` and `addresses` to the second.
    pub(super) fn new(macs: [[u8; 6]; 2], addresses: [Ipv4Addr; 2]) -> Self {
        let mut bytes = [0; HEADERS];
        bytes[..6].copy_from_slice(&macs[1]);
        bytes[6..12].copy_from_slice(&macs[0]);
        bytes[12..14].copy_from_slice(&[0x08, 0x00]);
        let ip = &mut bytes[ETHERNET..];
        // Version 4, 5 words; don't fragment; 64 hops; UDP.
        (ip[0], ip[6], ip[8], ip[9]) = (0x45, 0x40, 64, 17);
        ip[12..16].copy_from_slice(&addresses[0].octets());
        ip[16..20].copy_from_slice(&addresses[1].octets());
        let udp = &mut bytes[ETHERNET + IPV4..];
        udp[..2].copy_from_slice(&0xc000_u16.to_be_bytes());
        udp[2..4].copy_from_slice(&ROCE_UDP_PORT.to_be_bytes());
        Self(bytes)
    }

    /// As [`Self::new`], with the lengths of a frame.
    ///
    /// # Panics
    /// Below [`FRAME_BYTES_MIN`].
    pub(super) fn sized(&self, frame_bytes: usize) -> Self {
        assert!(frame_bytes >= FRAME_BYTES_MIN, "a raw frame has a number");
        let mut bytes = self.0;
        let ip_bytes = u16::try_from(frame_bytes - ETHERNET).expect("a link carries no longer frame");
        bytes[16..18].copy_from_slice(&ip_bytes.to_be_bytes());
        bytes[38..40].copy_from_slice(&(ip_bytes - IPV4 as u16).to_be_bytes());
        let checksum = internet_checksum(&bytes[ETHERNET..ETHERNET + IPV4]);
        bytes[24..26].copy_from_slice(&checksum.to_be_bytes());
        Self(bytes)
    }

    /// Puts a frame with `number` into the queue. The bytes behind the number are not written.
    pub(super) fn emit(&self, queue: &mut NicQueue, frame_bytes: usize, number: u64) -> Result<(), EmitError> {
        queue.emit(Egress::Nic { flow: 0 }, frame_bytes, |frame| {
            frame.put(&self.0);
            frame.put(&number.to_be_bytes());
            frame.put_with(frame_bytes - FRAME_BYTES_MIN, |_| Ok(()))
        })
    }
}

/// The number in a frame that arrived.
pub(super) fn number(frame: &Segments<'_>) -> Option<u64> {
    frame.first()?.get(HEADERS..)?.first_chunk().copied().map(u64::from_be_bytes)
}

/// Bytes of RoCE payload that a middle packet of this size has.
pub(super) const fn roce_payload(frame_bytes: usize) -> u64 {
    frame_bytes.saturating_sub(ROCE_OVERHEAD) as u64
}

/// RFC 1071.
fn internet_checksum(header: &[u8]) -> u16 {
    let words = header.chunks_exact(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_and_checksum_fit_the_frame() {
        let template = FrameTemplate::new([[1; 6], [2; 6]], [Ipv4Addr::new(10, 11, 0, 1), Ipv4Addr::new(10, 11, 0, 2)]);
        let bytes = template.sized(4154).0;
        assert_eq!(bytes[16..18], 4140_u16.to_be_bytes());
        assert_eq!(bytes[38..40], 4120_u16.to_be_bytes());
        // A header that is whole sums to nothing.
        assert_eq!(internet_checksum(&bytes[ETHERNET..ETHERNET + IPV4]), 0);
    }

    #[test]
    fn a_frame_of_the_path_mtu_carries_the_path_mtu() {
        assert_eq!([4154, 1082].map(roce_payload), [4096, 1024]);
        assert_eq!(roce_payload(50), 0);
    }

    #[test]
    fn the_number_comes_back() {
        let mut frame = vec![0; HEADERS];
        assert_eq!(number(&[&frame]), None);
        frame.extend_from_slice(&77_u64.to_be_bytes());
        assert_eq!(number(&[&frame, &[1, 2]]), Some(77));
        assert_eq!(number(&[]), None);
    }
}
