//! Frames out: a [`Path`] is a finished header template, and [`Path::fill`] builds a whole frame
//! from it in place.

use roced_types::{Qpn, ROCE_UDP_PORT};
use thiserror::Error;

use super::{
    Headers,
    icrc::{ICRC_BYTES, Icrc},
    network::{
        ETHERNET_BYTES, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_ROCE_V1, ETHERTYPE_VLAN, IPV4_BYTES, IPV6_BYTES,
        PROTOCOL_BTH, PROTOCOL_UDP, Roce, UDP_BYTES, VLAN_BYTES, fold, sum_words, unmapped,
    },
    opcode::{self, HEADER_BYTES_MAX, Opcode},
    pad_bytes,
};
use crate::io::{Abort, Egress, FrameMut};

/// Parts of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathSpec {
    /// Egress of the frames.
    pub via: Egress,
    /// Our MAC address.
    pub source_mac: [u8; 6],
    /// MAC address of the next hop.
    pub dest_mac: [u8; 6],
    /// VLAN tag, if frames carry one.
    pub vlan: Option<Vlan>,
    /// Our GID.
    pub source: [u8; 16],
    /// The peer's GID.
    pub destination: [u8; 16],
    /// DSCP, the upper six bits, and ECN.
    pub traffic_class: u8,
    /// Time to live or hop limit, in hops.
    pub hop_limit: u8,
    /// IPv6 flow label, the low 20 bits. IPv4 has none.
    pub flow_label: u32,
    /// Version of RoCE; for its UDP source port see [`udp_source_port`].
    pub roce: Roce,
}

/// A VLAN tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vlan {
    /// The low 12 bits.
    pub id: u16,
    /// Priority code point, the low 3 bits.
    pub priority: u8,
    /// The NIC takes the tag off frames that arrive, so that one without a tag may be of this VLAN.
    pub rx_stripped: bool,
}

/// One address is IPv4, the other is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("source and destination GID are of different address families")]
pub struct MixedFamilies;

/// Where the priority of a VLAN tag is: behind both MAC addresses and the type of the tag.
const VLAN_CONTROL_AT: usize = 14;

const TEMPLATE_BYTES_MAX: usize = ETHERNET_BYTES + VLAN_BYTES + IPV6_BYTES + UDP_BYTES;
const _: () = assert!(TEMPLATE_BYTES_MAX <= u8::MAX as usize);

/// The headers in front of the BTH, finished but for lengths and the checksum that covers them.
/// Every frame is built from one.
///
/// A path is a copy of its [`PathSpec`]: a change of the next hop makes another path. Lengths are
/// in bytes and include neither the Ethernet FCS nor padding of short frames.
///
/// ```
/// use roced_transport::{
///     io::{Egress, FrameMut},
///     psn::Psn,
///     wire::{Bth, Headers, MixedFamilies, Path, PathSpec, Roce, opcode, parse},
/// };
/// use roced_types::{Qpn, gid_of};
///
/// let spec = PathSpec {
///     via: Egress::Nic { flow: 0 },
///     source_mac: [2, 0, 0, 0, 0, 1],
///     dest_mac: [2, 0, 0, 0, 0, 2],
///     vlan: None,
///     source: gid_of([10, 0, 0, 1].into()),
///     destination: gid_of([10, 0, 0, 2].into()),
///     traffic_class: 0,
///     hop_limit: 64,
///     flow_label: 0,
///     roce: Roce::V2 { udp_source_port: 0xc000 },
/// };
/// let path = Path::new(&spec)?;
/// // Ethernet 14, IPv4 20, UDP 8 and ICRC 4.
/// assert_eq!(path.overhead_bytes(), 46);
/// // A link with an MTU of 1500 bytes has room for 1024 of payload and not for 2048.
/// assert_eq!(path.largest_mtu(1500), Some(1024));
///
/// // Five bytes of payload, a pad of three, and a BTH of twelve.
/// let headers = Headers::new(Bth::new(opcode::RC_SEND_ONLY, Qpn::from_wire(0x123), Psn::new(7)));
/// let mut frame = vec![0; path.frame_bytes(&headers, 5)];
/// assert_eq!(frame.len(), 46 + 12 + 5 + 3);
/// path.fill(&mut FrameMut::single(&mut frame), &headers, 5, |piece| {
///     piece.copy_from_slice(b"hello");
///     Ok(())
/// })
/// .expect("the payload is there");
/// let frame = [&frame[..]];
/// let packet = parse(&frame).expect("a frame of RoCEv2");
/// assert_eq!(packet.check_integrity(), Ok(()));
/// assert_eq!((packet.bth.dest_qpn, packet.bth.psn), (headers.bth.dest_qpn, headers.bth.psn));
/// assert_eq!(packet.payload().collect::<Vec<_>>(), [b"hello"]);
///
/// // Both GIDs are of one address family.
/// let mixed = PathSpec { destination: gid_of("fd00::2".parse().expect("IPv6")), ..spec };
/// assert_eq!(Path::new(&mixed), Err(MixedFamilies));
/// # Ok::<(), MixedFamilies>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    template: [u8; TEMPLATE_BYTES_MAX],
    // Each queue pair has a path: a length of few bytes takes one.
    template_bytes: u8,
    ip_at: u8,
    roce: Roce,
    /// Sum of the IPv4 header's words without the length; `None` for IPv6 and a GRH, which have no
    /// checksum.
    ipv4_sum: Option<u32>,
    source: [u8; 16],
    destination: [u8; 16],
    via: Egress,
    vlan: Option<Vlan>,
}

impl Path {
    /// The path that `spec` describes: of RoCEv2 over IPv4 if both GIDs are mapped IPv4 addresses,
    /// IPv6 if neither is.
    ///
    /// # Errors
    /// [`MixedFamilies`].
    pub fn new(spec: &PathSpec) -> Result<Self, MixedFamilies> {
        let mut template = HeaderTemplate { bytes: [0; TEMPLATE_BYTES_MAX], used: 0 };
        template.put(&spec.dest_mac);
        template.put(&spec.source_mac);
        if let Some(vlan) = spec.vlan {
            let control = u16::from(vlan.priority & 7) << 13 | vlan.id & 0x0fff;
            template.put(&ETHERTYPE_VLAN.to_be_bytes());
            template.put(&control.to_be_bytes());
        }
        let ip_at = template.used + 2;
        let ipv4_sum = match (spec.roce, unmapped(&spec.source), unmapped(&spec.destination)) {
            (Roce::V1, Some(_), Some(_)) | (Roce::V1, None, None) => {
                template.put(&ETHERTYPE_ROCE_V1.to_be_bytes());
                template.put(&ipv6_header(spec, PROTOCOL_BTH));
                None
            }
            (Roce::V2 { .. }, Some(source), Some(destination)) => {
                let header = ipv4_header(spec, source, destination);
                template.put(&ETHERTYPE_IPV4.to_be_bytes());
                template.put(&header);
                Some(sum_words(&header))
            }
            (Roce::V2 { .. }, None, None) => {
                template.put(&ETHERTYPE_IPV6.to_be_bytes());
                template.put(&ipv6_header(spec, PROTOCOL_UDP));
                None
            }
            _ => return Err(MixedFamilies),
        };
        if let Roce::V2 { udp_source_port } = spec.roce {
            template.put(&udp_source_port.to_be_bytes());
            template.put(&ROCE_UDP_PORT.to_be_bytes());
            // Length: for each frame. Checksum: none, as usual for RoCE: the ICRC says more.
            template.put(&[0; 4]);
        }
        Ok(Self {
            template: template.bytes,
            template_bytes: template.used as u8,
            ip_at: ip_at as u8,
            roce: spec.roce,
            ipv4_sum,
            source: spec.source,
            destination: spec.destination,
            via: spec.via,
            vlan: spec.vlan,
        })
    }

    /// The same path with another traffic class, and priority in its VLAN tag, if it has one.
    #[must_use]
    pub fn with_class(mut self, traffic_class: u8, priority: u8) -> Self {
        if self.vlan.is_some() {
            let control = &mut self.template[VLAN_CONTROL_AT];
            *control = *control & 0x1f | (priority & 7) << 5;
        }
        let ip = &mut self.template[usize::from(self.ip_at)..];
        if self.ipv4_sum.is_some() {
            ip[1] = traffic_class;
            self.ipv4_sum = Some(sum_words(&ip[..IPV4_BYTES]));
        } else {
            ip[0] = ip[0] & 0xf0 | traffic_class >> 4;
            ip[1] = ip[1] & 0x0f | traffic_class << 4;
        }
        self
    }

    /// DSCP, the upper six bits, and ECN of its packets.
    pub fn traffic_class(&self) -> u8 {
        let ip = &self.template[usize::from(self.ip_at)..];
        if self.ipv4_sum.is_some() { ip[1] } else { ip[0] << 4 | ip[1] >> 4 }
    }

    /// Priority code point of its packets; `None` without a VLAN tag.
    pub fn vlan_priority(&self) -> Option<u8> {
        self.vlan.map(|_| self.template[VLAN_CONTROL_AT] >> 5)
    }

    /// A packet that came by this VLAN may have come by this path. One without may have lost its
    /// tag on the way in, where the NIC takes it off.
    pub const fn takes_vlan(&self, id: Option<u16>) -> bool {
        match (self.vlan, id) {
            (None, None) => true,
            (Some(own), Some(id)) => own.id & 0x0fff == id,
            (Some(own), None) => own.rx_stripped || own.id & 0x0fff == 0,
            (None, Some(_)) => false,
        }
    }

    /// Version of RoCE of its frames.
    pub const fn roce(&self) -> Roce {
        self.roce
    }

    /// Egress of the frames.
    pub const fn via(&self) -> Egress {
        self.via
    }

    /// Our GID.
    pub const fn source(&self) -> &[u8; 16] {
        &self.source
    }

    /// The peer's GID.
    pub const fn destination(&self) -> &[u8; 16] {
        &self.destination
    }

    /// Bytes of a frame besides BTH, extension headers, payload and pad: Ethernet to UDP or GRH,
    /// and the ICRC.
    pub const fn overhead_bytes(&self) -> usize {
        self.template_bytes as usize + ICRC_BYTES
    }

    /// Largest path MTU for which the longest packet fits a link with an MTU of `link_mtu_bytes`,
    /// or `None` if even 256 does not.
    pub const fn largest_mtu(&self, link_mtu_bytes: u32) -> Option<u32> {
        largest_path_mtu(link_mtu_bytes, self.ipv4_sum.is_some())
    }

    /// Bytes of the frame that [`Self::fill`] fills.
    ///
    /// # Panics
    /// With an undefined opcode: the transport sends only opcodes of the table.
    pub fn frame_bytes(&self, headers: &Headers, payload_bytes: usize) -> usize {
        self.overhead_bytes() + headers.info().header_bytes + payload_bytes + pad_bytes(payload_bytes)
    }

    /// Fills a whole frame, nothing of which was filled before: template, headers, the payload that
    /// `payload` writes (called for each piece of frame memory that it falls into, in order; it
    /// must fill each), pad, ICRC. The payload is summed in the frame and not at its source, so
    /// that a concurrent change by the client cannot make payload and ICRC differ.
    ///
    /// # Errors
    /// [`Abort`] when `payload` gave up: the frame is not to be sent.
    ///
    /// # Panics
    /// When `frame` is shorter than [`Self::frame_bytes`], when the extension headers are not those
    /// of the opcode, or when the packet is longer than IP can say.
    pub fn fill(
        &self,
        frame: &mut FrameMut<'_>,
        headers: &Headers,
        payload_bytes: usize,
        payload: impl FnMut(&mut [u8]) -> Result<(), Abort>,
    ) -> Result<(), Abort> {
        let pad = pad_bytes(payload_bytes);
        let mut head = EMPTY_HEAD;
        let head = self.write_head(&mut head, headers, payload_bytes);
        frame.put(head);
        frame.put_with(payload_bytes, payload)?;
        frame.put(&[0; 3][..pad]);
        let mut icrc = Icrc::over_headers(&head[usize::from(self.ip_at)..], self.ip_header_bytes(), self.roce);
        let mut skip = head.len();
        for piece in frame.filled() {
            let (_, behind) = piece.split_at(skip.min(piece.len()));
            skip -= piece.len() - behind.len();
            if !behind.is_empty() {
                icrc.add(behind);
            }
        }
        frame.put(&icrc.finish());
        Ok(())
    }

    /// Bytes of the frame that [`Self::fill_borrowed`] fills.
    ///
    /// # Panics
    /// As [`Self::frame_bytes`].
    pub fn borrowed_frame_bytes(&self, headers: &Headers, payload_bytes: usize) -> usize {
        self.frame_bytes(headers, 0) + pad_bytes(payload_bytes)
    }

    /// Fills a frame and passes it to `borrow` to add borrowed payload. Its ICRC has no meaning: it is never
    /// sent to a wire.
    ///
    /// # Errors
    /// [`Abort`] if `borrow` aborts; the frame must not be sent.
    ///
    /// # Panics
    /// As [`Self::fill`], of [`Self::borrowed_frame_bytes`].
    pub fn fill_borrowed(
        &self,
        frame: &mut FrameMut<'_>,
        headers: &Headers,
        payload_bytes: usize,
        borrow: impl FnOnce(&mut FrameMut<'_>) -> Result<(), Abort>,
    ) -> Result<(), Abort> {
        let mut head = EMPTY_HEAD;
        frame.put(self.write_head(&mut head, headers, payload_bytes));
        borrow(frame)?;
        frame.put(&[0; 3 + ICRC_BYTES][..pad_bytes(payload_bytes) + ICRC_BYTES]);
        Ok(())
    }

    /// Writes the headers of a frame with that much payload into `head`, and returns them. They are
    /// not returned by value: a copy of bytes that were just written one by one waits until they
    /// have left the store buffer.
    fn write_head<'a>(&self, head: &'a mut Head, headers: &Headers, payload_bytes: usize) -> &'a [u8] {
        let pad = pad_bytes(payload_bytes);
        head[..TEMPLATE_BYTES_MAX].copy_from_slice(&self.template);
        let transport_bytes = headers.write(&mut head[usize::from(self.template_bytes)..], pad);
        let ip_payload_bytes = self.roce.udp_bytes() + transport_bytes + payload_bytes + pad + ICRC_BYTES;
        self.patch_lengths(&mut head[..usize::from(self.template_bytes)], ip_payload_bytes);
        &head[..usize::from(self.template_bytes) + transport_bytes]
    }

    const fn ip_header_bytes(&self) -> usize {
        if self.ipv4_sum.is_some() { IPV4_BYTES } else { IPV6_BYTES }
    }

    /// Writes the lengths into a copy of the template, and the IPv4 checksum.
    fn patch_lengths(&self, template: &mut [u8], ip_payload_bytes: usize) {
        let (front, udp) = template.split_at_mut(usize::from(self.ip_at) + self.ip_header_bytes());
        let ip = &mut front[usize::from(self.ip_at)..];
        let length = |bytes: usize| u16::try_from(bytes).expect("a packet is a path MTU and some headers");
        let said = length(ip_payload_bytes);
        if let Some(udp_length) = udp.get_mut(4..6) {
            udp_length.copy_from_slice(&said.to_be_bytes());
        }
        if let Some(sum) = self.ipv4_sum {
            let total = length(IPV4_BYTES + ip_payload_bytes);
            ip[2..4].copy_from_slice(&total.to_be_bytes());
            ip[10..12].copy_from_slice(&(!fold(sum + u32::from(total))).to_be_bytes());
        } else {
            ip[4..6].copy_from_slice(&said.to_be_bytes());
        }
    }
}

/// Room for the headers of a frame.
type Head = [u8; TEMPLATE_BYTES_MAX + HEADER_BYTES_MAX];

const EMPTY_HEAD: Head = [0; TEMPLATE_BYTES_MAX + HEADER_BYTES_MAX];

/// A template as it grows.
struct HeaderTemplate {
    bytes: [u8; TEMPLATE_BYTES_MAX],
    used: usize,
}

impl HeaderTemplate {
    fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.used..self.used + bytes.len()].copy_from_slice(bytes);
        self.used += bytes.len();
    }
}

/// Without length and checksum. Never fragmented (annex A17.4.5.2), so that it needs no
/// identification either (RFC 6864).
fn ipv4_header(spec: &PathSpec, source: [u8; 4], destination: [u8; 4]) -> [u8; IPV4_BYTES] {
    let ([s0, s1, s2, s3], [d0, d1, d2, d3]) = (source, destination);
    let dont_fragment = 0x40;
    let (tos, ttl) = (spec.traffic_class, spec.hop_limit);
    [0x45, tos, 0, 0, 0, 0, dont_fragment, 0, ttl, PROTOCOL_UDP, 0, 0, s0, s1, s2, s3, d0, d1, d2, d3]
}

/// Without length. A GRH is the same with another next header.
fn ipv6_header(spec: &PathSpec, next_header: u8) -> [u8; IPV6_BYTES] {
    let version = 6 << 28 | u32::from(spec.traffic_class) << 20 | spec.flow_label & 0x000f_ffff;
    let mut header = [0; IPV6_BYTES];
    header[..4].copy_from_slice(&version.to_be_bytes());
    header[6] = next_header;
    header[7] = spec.hop_limit;
    header[8..24].copy_from_slice(&spec.source);
    header[24..].copy_from_slice(&spec.destination);
    header
}

/// The UDP source port of a connection, constant for its life, so that switches spread connections
/// but keep each in order (annex A17.4.5.3.2 leaves the choice open; Linux does the same,
/// `rdma_get_udp_sport`).
pub const fn udp_source_port(flow_label: u32, local: Qpn, remote: Qpn) -> u16 {
    let mut label = flow_label & 0x000f_ffff;
    if label == 0 {
        let mut mixed = local.get() as u64 * remote.get() as u64;
        mixed ^= mixed >> 20;
        mixed ^= mixed >> 40;
        label = mixed as u32 & 0x000f_ffff;
    }
    (((label & 0x3fff) ^ (label >> 14)) | 0xc000) as u16
}

/// Largest path MTU (256 to 4096) for which the longest packet, a WRITE with immediate data in one
/// piece, fits a link with an MTU of `link_mtu_bytes`, or `None` if even 256 does not. A link that
/// must carry both address families has the path MTU of IPv6.
pub const fn largest_path_mtu(link_mtu_bytes: u32, ipv4: bool) -> Option<u32> {
    let ip_bytes = if ipv4 { IPV4_BYTES } else { IPV6_BYTES };
    let overhead = (ip_bytes + UDP_BYTES + header_bytes(opcode::RC_WRITE_ONLY_IMM) + ICRC_BYTES) as u32;
    let mut mtu = 4096;
    while mtu >= 256 {
        if link_mtu_bytes >= mtu + overhead {
            return Some(mtu);
        }
        mtu /= 2;
    }
    None
}

const fn header_bytes(opcode: Opcode) -> usize {
    match opcode.info() {
        Some(info) => info.header_bytes,
        None => 0,
    }
}
