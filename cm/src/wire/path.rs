//! The path of a connection, as a REQ names it (IBTA v1 12.6.5).

use super::body::{BodyReader, BodyWriter};

/// A path of a connection, seen from the sender of the REQ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionPath {
    /// LID of the sender; 0xffff on Ethernet.
    pub local_lid: u16,
    /// LID of the receiver; 0xffff on Ethernet.
    pub remote_lid: u16,
    /// GID of the sender: an IPv6 address, or an IPv4 address as `::ffff:a.b.c.d`.
    pub local_gid: [u8; 16],
    /// GID of the receiver.
    pub remote_gid: [u8; 16],
    /// Flow label of the frames, 20 bits.
    pub flow_label: u32,
    /// Rate of the link, in the code of IBTA, 6 bits.
    pub rate: u8,
    /// Traffic class of the frames.
    pub traffic_class: u8,
    /// Hop limit of the frames.
    pub hop_limit: u8,
    /// Service level, 4 bits.
    pub service_level: u8,
    /// No router lies between.
    pub subnet_local: bool,
    /// Timeout of ACKs for the receiver's queue pair: 4.096 us to the power of two of it, 5 bits.
    pub ack_timeout: u8,
}

impl ConnectionPath {
    pub(super) fn read(body: BodyReader<'_>, at: usize) -> Self {
        Self {
            local_lid: body.u16(at),
            remote_lid: body.u16(at + 2),
            local_gid: body.bytes(at + 4),
            remote_gid: body.bytes(at + 20),
            flow_label: body.u32(at + 36) >> 12,
            rate: body.bits(at + 39, 5, 0),
            traffic_class: body.u8(at + 40),
            hop_limit: body.u8(at + 41),
            service_level: body.bits(at + 42, 7, 4),
            subnet_local: body.bit(at + 42, 3),
            ack_timeout: body.bits(at + 43, 7, 3),
        }
    }

    pub(super) fn write(&self, body: &mut BodyWriter<'_>, at: usize) {
        body.u16(at, self.local_lid);
        body.u16(at + 2, self.remote_lid);
        body.bytes(at + 4, self.local_gid);
        body.bytes(at + 20, self.remote_gid);
        body.u32(at + 36, self.flow_label << 12);
        body.bits(at + 39, 5, 0, self.rate);
        body.u8(at + 40, self.traffic_class);
        body.u8(at + 41, self.hop_limit);
        body.bits(at + 42, 7, 4, self.service_level);
        body.bit(at + 42, 3, self.subnet_local);
        body.bits(at + 43, 7, 3, self.ack_timeout);
    }
}
