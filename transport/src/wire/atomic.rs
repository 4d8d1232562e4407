//! Atomic operations: request (IBTA v1 9.3.4) and answer (9.3.5.3).

use crate::mr::MrKey;

/// An atomic extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicEth {
    /// Remote virtual address of eight bytes.
    pub va: u64,
    /// Remote key.
    pub rkey: MrKey,
    /// Value to store or to add.
    pub swap_or_add: u64,
    /// Expected value, for compare and swap.
    pub compare: u64,
}

impl AtomicEth {
    /// Bytes on the wire.
    pub const BYTES: usize = 28;

    /// The header in `bytes`.
    #[inline]
    pub const fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        let [v0, v1, v2, v3, v4, v5, v6, v7, k0, k1, k2, k3, rest @ ..] = *bytes;
        let [s0, s1, s2, s3, s4, s5, s6, s7, c0, c1, c2, c3, c4, c5, c6, c7] = rest;
        Self {
            va: u64::from_be_bytes([v0, v1, v2, v3, v4, v5, v6, v7]),
            rkey: MrKey(u32::from_be_bytes([k0, k1, k2, k3])),
            swap_or_add: u64::from_be_bytes([s0, s1, s2, s3, s4, s5, s6, s7]),
            compare: u64::from_be_bytes([c0, c1, c2, c3, c4, c5, c6, c7]),
        }
    }

    /// The header as bytes.
    #[inline]
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.va.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.rkey.0.to_be_bytes());
        bytes[12..20].copy_from_slice(&self.swap_or_add.to_be_bytes());
        bytes[20..].copy_from_slice(&self.compare.to_be_bytes());
        bytes
    }
}

/// An atomic ACK extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicAck {
    /// Value before the operation.
    pub original: u64,
}

impl AtomicAck {
    /// Bytes on the wire.
    pub const BYTES: usize = 8;

    /// The header in `bytes`.
    #[inline]
    pub const fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        Self { original: u64::from_be_bytes(*bytes) }
    }

    /// The header as bytes.
    #[inline]
    pub const fn to_bytes(self) -> [u8; Self::BYTES] {
        self.original.to_be_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_field_stands_in_its_place() {
        let bytes = core::array::from_fn(|at| at as u8 + 1);
        let atomic = AtomicEth {
            va: 0x0102_0304_0506_0708,
            rkey: MrKey(0x090a_0b0c),
            swap_or_add: 0x0d0e_0f10_1112_1314,
            compare: 0x1516_1718_191a_1b1c,
        };
        assert_eq!((AtomicEth::from_bytes(&bytes), atomic.to_bytes()), (atomic, bytes));
    }
}
