//! Frames made for a test: right ones, and ones that lie in a single place.

use std::net::IpAddr;

use roced_types::{ROCE_UDP_PORT, gid_of};

/// Shape of a frame. [`Default`] is a RoCE frame as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Type and TCI of each VLAN tag, outermost first.
    pub tags: Vec<(u16, u16)>,
    /// Another Ethernet type than the address's family asks for.
    pub ether_type: Option<u16>,
    /// RoCEv1: a GRH, and no IP, no UDP. Options, fragment and port do not count.
    pub grh: bool,
    /// Where it goes; also decides between IPv4 and IPv6. The source is the same.
    pub destination: IpAddr,
    /// IPv4 options, a multiple of four bytes.
    pub options: Vec<u8>,
    /// IPv4 flags and fragment offset.
    pub fragment: u16,
    /// IPv4 protocol, or IPv6's or the GRH's next header; `None` for the right one.
    pub protocol: Option<u8>,
    /// UDP destination port.
    pub port: u16,
    /// Bytes after the UDP header.
    pub payload: Vec<u8>,
    /// Added to the length that the IP header says.
    pub ip_length_lie: i32,
    /// Added to the length that the UDP header says.
    pub udp_length_lie: i32,
    /// Bytes after the IP packet, as Ethernet pads.
    pub padding: usize,
}

impl Default for Frame {
    fn default() -> Self {
        Self {
            tags: Vec::new(),
            ether_type: None,
            grh: false,
            destination: "10.77.0.2".parse().expect("an address"),
            options: Vec::new(),
            fragment: 0x4000, // do not fragment
            protocol: None,
            port: ROCE_UDP_PORT,
            payload: (0..60).collect(),
            ip_length_lie: 0,
            udp_length_lie: 0,
            padding: 0,
        }
    }
}

impl Frame {
    /// The frame's bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0x52; 12];
        for (kind, tag) in &self.tags {
            bytes.extend(kind.to_be_bytes());
            bytes.extend(tag.to_be_bytes());
        }
        if self.grh {
            bytes.extend(self.ether_type.unwrap_or(0x8915).to_be_bytes());
            bytes.extend([0x60, 0, 0, 0]);
            bytes.extend(lie(self.payload.len(), self.ip_length_lie));
            bytes.extend([self.protocol.unwrap_or(0x1b), 64]);
            bytes.extend([gid_of(self.destination); 2].as_flattened());
            bytes.extend(&self.payload);
            bytes.resize(bytes.len() + self.padding, 0);
            return bytes;
        }
        let (udp, protocol) = (self.udp(), self.protocol.unwrap_or(17));
        match self.destination {
            IpAddr::V4(address) => {
                bytes.extend(self.ether_type.unwrap_or(0x0800).to_be_bytes());
                let header_bytes = 20 + self.options.len();
                bytes.extend([0x40 | (header_bytes / 4) as u8, 0]);
                bytes.extend(lie(header_bytes + udp.len(), self.ip_length_lie));
                bytes.extend([0, 0]);
                bytes.extend(self.fragment.to_be_bytes());
                bytes.extend([64, protocol, 0, 0]);
                bytes.extend(address.octets());
                bytes.extend(address.octets());
                bytes.extend(&self.options);
            }
            IpAddr::V6(address) => {
                bytes.extend(self.ether_type.unwrap_or(0x86dd).to_be_bytes());
                bytes.extend([0x60, 0, 0, 0]);
                bytes.extend(lie(udp.len(), self.ip_length_lie));
                bytes.extend([protocol, 64]);
                bytes.extend(address.octets());
                bytes.extend(address.octets());
            }
        }
        bytes.extend(udp);
        bytes.resize(bytes.len() + self.padding, 0);
        bytes
    }

    fn udp(&self) -> Vec<u8> {
        let mut udp = vec![0xc0, 0x01];
        udp.extend(self.port.to_be_bytes());
        udp.extend(lie(8 + self.payload.len(), self.udp_length_lie));
        udp.extend([0, 0]);
        udp.extend(&self.payload);
        udp
    }
}

fn lie(length: usize, by: i32) -> [u8; 2] {
    let told = length as i32 + by;
    u16::try_from(told).expect("a length that its field can hold").to_be_bytes()
}

/// A PFC frame as IEEE 802.3 annex 31D has it: priority 3 is paused for the longest time.
pub const PAUSE_OF_PRIORITY_3: &str =
    "0180c2000001 020000000001 8808 0101 0008 0000 0000 0000 ffff 0000 0000 0000 0000";

/// Bytes of a frame in hexadecimal digits, padded to the 60 that Ethernet has at least.
///
/// # Panics
/// On other characters than digits and spaces.
pub fn from_hex(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(|digit| *digit != b' ').collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).expect("ASCII"), 16).expect("hexadecimal");
    let mut bytes: Vec<u8> = digits.chunks_exact(2).map(byte).collect();
    bytes.resize(bytes.len().max(60), 0);
    bytes
}
