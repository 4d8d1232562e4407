//! The base transport header, first of every packet (IBTA v1 9.2).
//!
//! ```text
//!   0 opcode   1 SE:1 MigReq:1 pad:2 TVer:4   2..4 P_Key
//!   4 FECN:1 BECN:1 reserved:6                5..8 destination QPN
//!   8 AckReq:1 reserved:7                     9..12 PSN
//! ```

use roced_types::Qpn;

use super::opcode::Opcode;
use crate::{partition::Pkey, psn::Psn};

/// A base transport header. Its version is 0, the only one there is; reserved bits are sent as 0
/// and not looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bth {
    /// The opcode.
    pub opcode: Opcode,
    /// The receiver's completion counts as a solicited event.
    pub solicited: bool,
    /// Path migration state: 1 is "migrated", the value of a port without migration.
    pub mig_req: bool,
    /// Zero bytes behind the payload, 0 to 3.
    pub pad: u8,
    /// Partition key of the sender.
    pub pkey: Pkey,
    /// Forward congestion notification.
    pub fecn: bool,
    /// Backward congestion notification.
    pub becn: bool,
    /// The destination.
    pub dest_qpn: Qpn,
    /// The sender wants an ACK.
    pub ack_request: bool,
    /// Its number.
    pub psn: Psn,
}

impl Bth {
    /// Bytes on the wire.
    pub const BYTES: usize = 12;

    /// A header as roced sends it: default partition, and MigReq 1 as adapters do (Linux rxe sends
    /// 0; receivers take both).
    pub const fn new(opcode: Opcode, dest_qpn: Qpn, psn: Psn) -> Self {
        Self {
            opcode,
            solicited: false,
            mig_req: true,
            pad: 0,
            pkey: Pkey::DEFAULT,
            fecn: false,
            becn: false,
            dest_qpn,
            ack_request: false,
            psn,
        }
    }

    /// The transport header version in `bytes`.
    pub(super) const fn version(bytes: &[u8; Self::BYTES]) -> u8 {
        bytes[1] & 0x0f
    }

    /// The header in `bytes`.
    #[inline]
    pub const fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        let [opcode, flags, pkey0, pkey1, congestion, qpn0, qpn1, qpn2, ack, psn0, psn1, psn2] = *bytes;
        Self {
            opcode: Opcode(opcode),
            solicited: flags & 0x80 != 0,
            mig_req: flags & 0x40 != 0,
            pad: flags >> 4 & 3,
            pkey: Pkey(u16::from_be_bytes([pkey0, pkey1])),
            fecn: congestion & 0x80 != 0,
            becn: congestion & 0x40 != 0,
            dest_qpn: Qpn::from_wire(u32::from_be_bytes([0, qpn0, qpn1, qpn2])),
            ack_request: ack & 0x80 != 0,
            psn: Psn::new(u32::from_be_bytes([0, psn0, psn1, psn2])),
        }
    }

    /// The header as bytes.
    #[inline]
    pub const fn to_bytes(self) -> [u8; Self::BYTES] {
        let flags = (self.solicited as u8) << 7 | (self.mig_req as u8) << 6 | (self.pad & 3) << 4;
        let [pkey0, pkey1] = self.pkey.0.to_be_bytes();
        let congestion = (self.fecn as u8) << 7 | (self.becn as u8) << 6;
        let [_, qpn0, qpn1, qpn2] = self.dest_qpn.get().to_be_bytes();
        let [_, psn0, psn1, psn2] = self.psn.get().to_be_bytes();
        let ack = (self.ack_request as u8) << 7;
        [self.opcode.0, flags, pkey0, pkey1, congestion, qpn0, qpn1, qpn2, ack, psn0, psn1, psn2]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_field_stands_in_its_place() {
        let bytes = [0x04, 0xf0, 0xab, 0xcd, 0xc0, 1, 2, 3, 0x80, 4, 5, 6];
        let bth = Bth {
            opcode: Opcode(4),
            solicited: true,
            mig_req: true,
            pad: 3,
            pkey: Pkey(0xabcd),
            fecn: true,
            becn: true,
            dest_qpn: Qpn::from_wire(0x01_0203),
            ack_request: true,
            psn: Psn::new(0x04_0506),
        };
        assert_eq!(Bth::from_bytes(&bytes), bth);
        assert_eq!(bth.to_bytes(), bytes);
    }

    /// One bit at a time: defined bits come back, reserved bits are ignored.
    #[test]
    fn every_bit_comes_back_but_the_reserved_ones() {
        for bit in 0..96 {
            let mut bytes = [0u8; 12];
            bytes[bit / 8] = 0x80 >> (bit % 8);
            let reserved = (12..16).contains(&bit) || (34..40).contains(&bit) || (65..72).contains(&bit);
            assert_eq!(Bth::from_bytes(&bytes).to_bytes(), if reserved { [0; 12] } else { bytes }, "bit {bit}");
        }
    }

    #[test]
    fn sent_packets_are_migrated_and_of_the_default_partition() {
        let bytes = Bth::new(Opcode(4), Qpn::from_wire(0x01_0203), Psn::new(0x04_0506)).to_bytes();
        assert_eq!(bytes, [0x04, 0x40, 0xff, 0xff, 0, 1, 2, 3, 0, 4, 5, 6]);
    }
}
