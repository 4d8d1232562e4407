//! Invalidate extended transport header: the key that a SEND takes back (IBTA v1 9.3.7).

use crate::mr::MrKey;

/// An invalidate extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ieth {
    /// The key that no longer opens anything.
    pub rkey: MrKey,
}

impl Ieth {
    /// Bytes on the wire.
    pub const BYTES: usize = 4;

    /// The header in `bytes`.
    #[inline]
    pub const fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        Self { rkey: MrKey(u32::from_be_bytes(*bytes)) }
    }

    /// The header as bytes.
    #[inline]
    pub const fn to_bytes(self) -> [u8; Self::BYTES] {
        self.rkey.0.to_be_bytes()
    }
}
