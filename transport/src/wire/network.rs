//! Headers in front of the BTH: Ethernet, VLAN tags, and IPv4 or IPv6 with UDP (RoCEv2), or a GRH
//! (RoCEv1).
//!
//! A GRH has the fields of an IPv6 header in the same places (IBTA v1 8.3), and says "BTH" where
//! that names the next header.

use roced_types::ROCE_UDP_PORT;

use super::bytes_at;
use crate::reject::DropReason;

pub(super) const ETHERTYPE_IPV4: u16 = 0x0800;
pub(super) const ETHERTYPE_IPV6: u16 = 0x86dd;
pub(super) const ETHERTYPE_VLAN: u16 = 0x8100;
const ETHERTYPE_SERVICE_VLAN: u16 = 0x88a8;
pub(super) const ETHERTYPE_ROCE_V1: u16 = 0x8915;
pub(super) const PROTOCOL_UDP: u8 = 17;
/// The next header of a GRH: a BTH (IBTA v1 8.3).
pub(super) const PROTOCOL_BTH: u8 = 0x1b;

pub(super) const ETHERNET_BYTES: usize = 14;
pub(super) const VLAN_BYTES: usize = 4;
pub(super) const IPV4_BYTES: usize = 20;
pub(super) const IPV6_BYTES: usize = 40;
pub(super) const UDP_BYTES: usize = 8;

/// An IPv4 header with all the options it can have.
pub(super) const IP_BYTES_MAX: usize = 60;

/// Version of RoCE of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Roce {
    /// Behind a GRH, with an Ethernet type of its own (annex A16): for one Ethernet segment.
    V1,
    /// Behind IP and UDP (annex A17): routable.
    V2 {
        /// UDP source port.
        udp_source_port: u16,
    },
}

impl Roce {
    /// They are of one version.
    pub const fn is_same_version(self, other: Self) -> bool {
        matches!((self, other), (Self::V1, Self::V1) | (Self::V2 { .. }, Self::V2 { .. }))
    }

    /// The UDP source port, 0 where there is no UDP.
    pub const fn source_port(self) -> u16 {
        match self {
            Self::V1 => 0,
            Self::V2 { udp_source_port } => udp_source_port,
        }
    }

    /// Bytes between the IP header, or GRH, and the BTH.
    pub(super) const fn udp_bytes(self) -> usize {
        match self {
            Self::V1 => 0,
            Self::V2 { .. } => UDP_BYTES,
        }
    }
}

/// The headers in front of the BTH, checked against one another and against the frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct NetworkHeader {
    pub(super) vlan: Option<u16>,
    pub(super) source: [u8; 16],
    pub(super) destination: [u8; 16],
    pub(super) traffic_class: u8,
    pub(super) hop_limit: u8,
    pub(super) roce: Roce,
    /// Where the IP header or GRH begins in the frame.
    pub(super) ip_at: usize,
    /// Where the BTH begins in the frame.
    pub(super) bth_at: usize,
    /// Where the packet ends in the frame; behind it is Ethernet padding.
    pub(super) end: usize,
}

impl NetworkHeader {
    /// Reads the headers in front of the BTH of a frame of `frame_bytes` that begins with `first`.
    /// Inlined into its one caller, which keeps most of the result.
    #[inline(always)]
    pub(super) fn read(first: &[u8], frame_bytes: usize) -> Result<Self, DropReason> {
        let header = LinkHeader::read(first)?;
        let ip = match header.ethertype {
            ETHERTYPE_IPV4 => Ip::read_v4(first, header.ip_at, PROTOCOL_UDP)?,
            ETHERTYPE_IPV6 => Ip::read_v6(first, header.ip_at, PROTOCOL_UDP)?,
            ETHERTYPE_ROCE_V1 => return Self::read_v1(first, &header, frame_bytes),
            _ => return Err(DropReason::NotRoce),
        };
        let udp_at = header.ip_at + ip.header_bytes;
        let &[s0, s1, d0, d1, l0, l1, _, _] = bytes_at::<UDP_BYTES>(first, udp_at).ok_or(DropReason::BadLength)?;
        if u16::from_be_bytes([d0, d1]) != ROCE_UDP_PORT {
            return Err(DropReason::NotRoce);
        }
        let udp_bytes = usize::from(u16::from_be_bytes([l0, l1]));
        let end = udp_at + udp_bytes;
        // One length, said twice. A difference is a lie about where the ICRC lies.
        if udp_bytes != ip.payload_bytes || end > frame_bytes {
            return Err(DropReason::BadLength);
        }
        Ok(Self {
            vlan: header.vlan,
            source: ip.source,
            destination: ip.destination,
            traffic_class: ip.traffic_class,
            hop_limit: ip.hop_limit,
            roce: Roce::V2 { udp_source_port: u16::from_be_bytes([s0, s1]) },
            ip_at: header.ip_at,
            bth_at: udp_at + UDP_BYTES,
            end,
        })
    }

    fn read_v1(first: &[u8], header: &LinkHeader, frame_bytes: usize) -> Result<Self, DropReason> {
        let grh = Ip::read_v6(first, header.ip_at, PROTOCOL_BTH)?;
        let bth_at = header.ip_at + grh.header_bytes;
        let end = bth_at + grh.payload_bytes;
        if end > frame_bytes {
            return Err(DropReason::BadLength);
        }
        Ok(Self {
            vlan: header.vlan,
            source: grh.source,
            destination: grh.destination,
            traffic_class: grh.traffic_class,
            hop_limit: grh.hop_limit,
            roce: Roce::V1,
            ip_at: header.ip_at,
            bth_at,
            end,
        })
    }
}

/// Where the BTH of a RoCE frame begins, without checking more than that takes.
pub(super) fn peek_bth(first: &[u8]) -> Option<usize> {
    let header = LinkHeader::read(first).ok()?;
    let (protocol, header_bytes) = match header.ethertype {
        ETHERTYPE_IPV4 => {
            let header: &[u8; IPV4_BYTES] = bytes_at(first, header.ip_at)?;
            (header[9], usize::from(header[0] & 0x0f) * 4)
        }
        ETHERTYPE_IPV6 => (bytes_at::<IPV6_BYTES>(first, header.ip_at)?[6], IPV6_BYTES),
        ETHERTYPE_ROCE_V1 => {
            let next_header = bytes_at::<IPV6_BYTES>(first, header.ip_at)?[6];
            return (next_header == PROTOCOL_BTH).then_some(header.ip_at + IPV6_BYTES);
        }
        _ => return None,
    };
    let udp_at = header.ip_at + header_bytes;
    let &[_, _, d0, d1, ..] = bytes_at::<UDP_BYTES>(first, udp_at)?;
    (protocol == PROTOCOL_UDP && u16::from_be_bytes([d0, d1]) == ROCE_UDP_PORT).then_some(udp_at + UDP_BYTES)
}

/// Ethernet and up to two VLAN tags.
struct LinkHeader {
    ethertype: u16,
    /// The tag next to the IP header: behind a service tag it is the customer's.
    vlan: Option<u16>,
    ip_at: usize,
}

impl LinkHeader {
    #[inline(always)]
    fn read(first: &[u8]) -> Result<Self, DropReason> {
        let mut vlan = None;
        for tags in 0..=2 {
            let at = ETHERNET_BYTES - 2 + tags * VLAN_BYTES;
            let ethertype = u16::from_be_bytes(*bytes_at(first, at).ok_or(DropReason::BadLength)?);
            if ethertype != ETHERTYPE_VLAN && ethertype != ETHERTYPE_SERVICE_VLAN {
                return Ok(Self { ethertype, vlan, ip_at: at + 2 });
            }
            vlan = Some(u16::from_be_bytes(*bytes_at(first, at + 2).ok_or(DropReason::BadLength)?));
        }
        Err(DropReason::NotRoce)
    }
}

/// An IP header that carries UDP or ESP, or a GRH that carries a BTH.
pub(super) struct Ip {
    pub(super) source: [u8; 16],
    pub(super) destination: [u8; 16],
    traffic_class: u8,
    hop_limit: u8,
    pub(super) header_bytes: usize,
    pub(super) payload_bytes: usize,
}

impl Ip {
    /// The IP header of a frame that begins with `first`, and its place in the frame. It carries
    /// `protocol`: any other packet is [`DropReason::NotRoce`].
    #[inline(always)]
    pub(super) fn read(first: &[u8], protocol: u8) -> Result<(usize, Self), DropReason> {
        let header = LinkHeader::read(first)?;
        let ip = match header.ethertype {
            ETHERTYPE_IPV4 => Self::read_v4(first, header.ip_at, protocol)?,
            ETHERTYPE_IPV6 => Self::read_v6(first, header.ip_at, protocol)?,
            _ => return Err(DropReason::NotRoce),
        };
        Ok((header.ip_at, ip))
    }

    #[inline(always)]
    fn read_v4(first: &[u8], at: usize, protocol: u8) -> Result<Self, DropReason> {
        let header: &[u8; IPV4_BYTES] = bytes_at(first, at).ok_or(DropReason::BadLength)?;
        let &[version, tos, t0, t1, _, _, f0, f1, ttl, carried, _, _, s0, s1, s2, s3, d0, d1, d2, d3] = header;
        if version >> 4 != 4 {
            return Err(DropReason::NotRoce);
        }
        let header_bytes = usize::from(version & 0x0f) * 4;
        if header_bytes < IPV4_BYTES {
            return Err(DropReason::BadLength);
        }
        // "More fragments" or an offset: a piece of a packet is none.
        if carried != protocol || u16::from_be_bytes([f0, f1]) & 0x3fff != 0 {
            return Err(DropReason::NotRoce);
        }
        let sum = if header_bytes == IPV4_BYTES {
            sum_words(header)
        } else {
            sum_words(first.get(at..at + header_bytes).ok_or(DropReason::BadLength)?)
        };
        if fold(sum) != 0xffff {
            return Err(DropReason::BadIpChecksum);
        }
        let total_bytes = usize::from(u16::from_be_bytes([t0, t1]));
        Ok(Self {
            source: mapped([s0, s1, s2, s3]),
            destination: mapped([d0, d1, d2, d3]),
            traffic_class: tos,
            hop_limit: ttl,
            header_bytes,
            payload_bytes: total_bytes.checked_sub(header_bytes).ok_or(DropReason::BadLength)?,
        })
    }

    #[inline(always)]
    fn read_v6(first: &[u8], at: usize, protocol: u8) -> Result<Self, DropReason> {
        let header: &[u8; IPV6_BYTES] = bytes_at(first, at).ok_or(DropReason::BadLength)?;
        let &[version, flow, _, _, l0, l1, next_header, hop_limit, ..] = header;
        // Extension headers, fragments among them, are not for us: the XDP program leaves them to
        // the kernel.
        if version >> 4 != 6 || next_header != protocol {
            return Err(DropReason::NotRoce);
        }
        let &[_, _, _, _, _, _, _, _, ref addresses @ ..] = header;
        let (source, destination) = addresses.split_at(16);
        Ok(Self {
            source: source.try_into().expect("the first half of 32 bytes"),
            destination: destination.try_into().expect("the second half of 32 bytes"),
            traffic_class: version << 4 | flow >> 4,
            hop_limit,
            header_bytes: IPV6_BYTES,
            payload_bytes: usize::from(u16::from_be_bytes([l0, l1])),
        })
    }
}

/// An IPv4 address as a GID: `::ffff:a.b.c.d`.
pub(super) const fn mapped([a, b, c, d]: [u8; 4]) -> [u8; 16] {
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d]
}

/// The IPv4 address that a GID stands for, if it stands for one.
pub(super) const fn unmapped(gid: &[u8; 16]) -> Option<[u8; 4]> {
    match *gid {
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d] => Some([a, b, c, d]),
        _ => None,
    }
}

/// The 16-bit words of `bytes` added up; an odd last byte is the high half of a word. At most 128
/// KiB, so that it cannot overflow.
pub(super) fn sum_words(bytes: &[u8]) -> u32 {
    let (words, rest) = bytes.as_chunks::<2>();
    let last = rest.first().map_or(0, |byte| u32::from(*byte) << 8);
    words.iter().map(|word| u32::from(u16::from_be_bytes(*word))).sum::<u32>() + last
}

/// The one's complement sum (RFC 1071) in 16 bits.
pub(super) const fn fold(sum: u32) -> u16 {
    let once = (sum & 0xffff) + (sum >> 16);
    ((once & 0xffff) + (once >> 16)) as u16
}

/// Whether the UDP checksum of a packet holds, or is 0, which says that there is none: usual for
/// RoCE, also over IPv6.
///
/// `head` is the IP header and the contiguous bytes behind it, `pieces` the rest of the packet in
/// order.
pub(super) fn udp_checksum_holds<'a>(
    head: &'a [u8],
    ip_header_bytes: usize,
    pieces: impl Iterator<Item = &'a [u8]>,
) -> bool {
    let (ip, datagram) = head.split_at(ip_header_bytes);
    if datagram[6..8] == [0, 0] {
        return true;
    }
    // The pseudo-header: both addresses, the protocol, the UDP length.
    let addresses = if ip[0] >> 4 == 4 { &ip[12..20] } else { &ip[8..40] };
    let pseudo = sum_words(addresses) + u32::from(PROTOCOL_UDP) + sum_words(&datagram[4..6]);
    let (mut sum, mut odd) = (u32::from(fold(pseudo)), false);
    for piece in core::iter::once(datagram).chain(pieces) {
        // Behind an odd number of bytes words stand astride: their sum is the same with its bytes
        // swapped (RFC 1071, 2 B).
        let part = fold(sum_words(piece));
        sum += u32::from(if odd { part.swap_bytes() } else { part });
        odd ^= piece.len() % 2 == 1;
    }
    fold(sum) == 0xffff
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_mapped_address_is_ipv4() {
        assert_eq!(unmapped(&mapped([10, 77, 0, 1])), Some([10, 77, 0, 1]));
        let mut gid = mapped([10, 77, 0, 1]);
        gid[0] = 0xfe;
        assert_eq!(unmapped(&gid), None);
        assert_eq!(unmapped(&[0; 16]), None);
    }

    #[test]
    fn the_example_of_rfc_1071_adds_up() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(fold(sum_words(&bytes)), 0xddf2);
        assert_eq!(fold(sum_words(&bytes[..7])), fold(sum_words(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0x00])));
        assert_eq!(fold(sum_words(&[0xff; 65_536])), 0xffff);
    }
}
