//! The invariant CRC: over everything that a router may not change (IBTA v1 annex A17.3.2).
//!
//! A reflected CRC-32 over eight bytes of ones (in place of InfiniBand's local header), IP header
//! and UDP header (of RoCEv1: GRH), BTH and the rest up to the ICRC itself. Fields that a router
//! may change are taken as ones. Ethernet and VLAN are not covered.

use crc32fast::Hasher;

use super::{
    network::{IP_BYTES_MAX, Roce, UDP_BYTES},
    opcode::HEADER_BYTES_MAX,
};

/// Bytes on the wire.
pub(super) const ICRC_BYTES: usize = 4;

/// Most bytes from the IP header to the last extension header.
pub(super) const HEAD_BYTES_MAX: usize = IP_BYTES_MAX + UDP_BYTES + HEADER_BYTES_MAX;

/// State of the register after the eight bytes of ones, as the hasher counts it (complemented).
const AFTER_ONES: u32 = crc_of_ones(8);

/// An ICRC over the bytes added so far.
pub(super) struct Icrc(Hasher);

impl Icrc {
    /// Over `head`: IP header or GRH of `ip_header_bytes`, UDP header if it is RoCEv2, BTH and
    /// extension headers.
    ///
    /// # Panics
    /// When `head` ends before the BTH or is longer than [`HEAD_BYTES_MAX`].
    pub(super) fn over_headers(head: &[u8], ip_header_bytes: usize, roce: Roce) -> Self {
        let mut masked = [0; HEAD_BYTES_MAX];
        let masked = &mut masked[..head.len()];
        masked.copy_from_slice(head);
        let (ip, datagram) = masked.split_at_mut(ip_header_bytes);
        if ip[0] >> 4 == 4 {
            ip[1] = 0xff; // type of service
            ip[8] = 0xff; // time to live
            ip[10..12].fill(0xff); // header checksum
        } else {
            ip[0] |= 0x0f; // traffic class and flow label
            ip[1..4].fill(0xff);
            ip[7] = 0xff; // hop limit
        }
        let udp_bytes = roce.udp_bytes();
        if udp_bytes > 0 {
            datagram[6..8].fill(0xff); // UDP checksum
        }
        datagram[udp_bytes + 4] = 0xff; // FECN, BECN, reserved
        let mut hasher = Hasher::new_with_initial(AFTER_ONES);
        hasher.update(masked);
        Self(hasher)
    }

    /// The next bytes behind the headers.
    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// As it stands on the wire: the only field that is little-endian.
    pub(super) fn finish(self) -> [u8; ICRC_BYTES] {
        self.0.finalize().to_le_bytes()
    }
}

/// CRC-32 of `count` bytes of ones, bit by bit.
const fn crc_of_ones(count: usize) -> u32 {
    let mut register = u32::MAX;
    let mut bit = 0;
    while bit < count * 8 {
        let feedback = (register ^ 1) & 1;
        register = (register >> 1) ^ (0xedb8_8320 * feedback);
        bit += 1;
    }
    !register
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_is_that_of_eight_bytes_of_ones() {
        assert_eq!(AFTER_ONES, crc32fast::hash(&[0xff; 8]));
    }
}
