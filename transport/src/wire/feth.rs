//! FLUSH extended transport header: the required state of earlier WRITEs when the FLUSH is answered
//! (annex A19).

/// A FLUSH extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feth {
    /// Placement type, bits of [`roced_types::flush`].
    pub placement: u8,
    /// Selectivity level: which memory, one of [`roced_types::flush`].
    pub selectivity: u8,
}

impl Feth {
    /// Bytes on the wire.
    pub const BYTES: usize = 4;

    /// The header in `bytes`. Reserved bits are not looked at.
    #[inline]
    pub const fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        Self { placement: bytes[3] & 0xf, selectivity: bytes[3] >> 4 & 3 }
    }

    /// The header as bytes.
    #[inline]
    pub const fn to_bytes(self) -> [u8; Self::BYTES] {
        [0, 0, 0, (self.selectivity & 3) << 4 | self.placement & 0xf]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_field_stands_in_its_place() {
        let feth = Feth { placement: 2, selectivity: 1 };
        assert_eq!((feth.to_bytes(), Feth::from_bytes(&[0xff, 0xff, 0xff, 0xd2])), ([0, 0, 0, 0x12], feth));
    }
}
