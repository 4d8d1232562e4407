//! Datagram extended transport header: the sender of a datagram, and its Q_Key (IBTA v1 9.3.2).

use roced_types::Qpn;

/// A datagram extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deth {
    /// Queue key.
    pub qkey: u32,
    /// The sender's queue pair.
    pub source_qpn: Qpn,
}

impl Deth {
    /// Bytes on the wire.
    pub const BYTES: usize = 8;

    /// The header in `bytes`.
    #[inline]
    pub const fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        let [k0, k1, k2, k3, _, q0, q1, q2] = *bytes;
        Self {
            qkey: u32::from_be_bytes([k0, k1, k2, k3]),
            source_qpn: Qpn::from_wire(u32::from_be_bytes([0, q0, q1, q2])),
        }
    }

    /// The header as bytes.
    #[inline]
    pub const fn to_bytes(self) -> [u8; Self::BYTES] {
        let [k0, k1, k2, k3] = self.qkey.to_be_bytes();
        let [_, q0, q1, q2] = self.source_qpn.get().to_be_bytes();
        [k0, k1, k2, k3, 0, q0, q1, q2]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_field_stands_in_its_place() {
        let deth = Deth { qkey: 0x0102_0304, source_qpn: Qpn::from_wire(0x06_0708) };
        assert_eq!(Deth::from_bytes(&[1, 2, 3, 4, 0xff, 6, 7, 8]), deth);
        assert_eq!(deth.to_bytes(), [1, 2, 3, 4, 0, 6, 7, 8]);
    }
}
