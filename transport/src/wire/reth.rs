//! RDMA extended transport header: which remote memory a WRITE or READ is about (IBTA v1 9.3.3).

use crate::mr::MrKey;

/// An RDMA extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reth {
    /// Remote virtual address.
    pub va: u64,
    /// Remote key.
    pub rkey: MrKey,
    /// Bytes of the whole message.
    pub length: u32,
}

impl Reth {
    /// Bytes on the wire.
    pub const BYTES: usize = 16;

    /// The header in `bytes`.
    #[inline]
    pub const fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        let [v0, v1, v2, v3, v4, v5, v6, v7, k0, k1, k2, k3, l0, l1, l2, l3] = *bytes;
        Self {
            va: u64::from_be_bytes([v0, v1, v2, v3, v4, v5, v6, v7]),
            rkey: MrKey(u32::from_be_bytes([k0, k1, k2, k3])),
            length: u32::from_be_bytes([l0, l1, l2, l3]),
        }
    }

    /// The header as bytes.
    #[inline]
    pub const fn to_bytes(self) -> [u8; Self::BYTES] {
        let [v0, v1, v2, v3, v4, v5, v6, v7] = self.va.to_be_bytes();
        let [k0, k1, k2, k3] = self.rkey.0.to_be_bytes();
        let [l0, l1, l2, l3] = self.length.to_be_bytes();
        [v0, v1, v2, v3, v4, v5, v6, v7, k0, k1, k2, k3, l0, l1, l2, l3]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_field_stands_in_its_place() {
        let bytes = core::array::from_fn(|at| at as u8 + 1);
        let reth = Reth { va: 0x0102_0304_0506_0708, rkey: MrKey(0x090a_0b0c), length: 0x0d0e_0f10 };
        assert_eq!((Reth::from_bytes(&bytes), reth.to_bytes()), (reth, bytes));
    }
}
