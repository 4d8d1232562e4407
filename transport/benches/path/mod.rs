//! The path that the frames of the benchmarks take.

use roced_transport::{
    io::Egress,
    wire::{Path, PathSpec, Roce},
};

/// Prefix of mapped IPv4 addresses.
pub(crate) const IPV4: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

/// A GID that begins with `family`, and its number.
pub(crate) fn gid(family: [u8; 12], number: u8) -> [u8; 16] {
    let mut gid = [0; 16];
    gid[..12].copy_from_slice(&family);
    gid[12..].copy_from_slice(&[10, 0, 0, number]);
    gid
}

/// By the NIC, from one of them to another.
pub(crate) fn path(family: [u8; 12], source: u8, destination: u8) -> Path {
    let spec = PathSpec {
        via: Egress::Nic { flow: 0 },
        source_mac: [2; 6],
        dest_mac: [4; 6],
        vlan: None,
        source: gid(family, source),
        destination: gid(family, destination),
        traffic_class: 0,
        hop_limit: 64,
        flow_label: 0,
        roce: Roce::V2 { udp_source_port: 0xc000 },
    };
    Path::new(&spec).expect("both are of one family")
}
