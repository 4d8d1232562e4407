//! Fields of a message at their offsets. Bits of a byte are written `high..low`, as in IBTA.

use roced_types::Qpn;

/// Bytes of a message behind the MAD header.
pub(super) const BODY_BYTES: usize = 232;

/// A message in its bytes, to be read.
#[derive(Clone, Copy)]
pub(super) struct BodyReader<'a>(pub(super) &'a [u8; BODY_BYTES]);

/// A message in its bytes, to be written: zero at first, as reserved fields stay.
pub(super) struct BodyWriter<'a>(pub(super) &'a mut [u8; BODY_BYTES]);

impl BodyReader<'_> {
    /// The `BYTES` bytes at `at`.
    pub(super) fn bytes<const BYTES: usize>(self, at: usize) -> [u8; BYTES] {
        core::array::from_fn(|byte| self.0[at + byte])
    }

    pub(super) fn u8(self, at: usize) -> u8 {
        self.0[at]
    }

    pub(super) fn u16(self, at: usize) -> u16 {
        u16::from_be_bytes(self.bytes(at))
    }

    pub(super) fn u24(self, at: usize) -> u32 {
        let [high, middle, low] = self.bytes(at);
        u32::from_be_bytes([0, high, middle, low])
    }

    pub(super) fn u32(self, at: usize) -> u32 {
        u32::from_be_bytes(self.bytes(at))
    }

    pub(super) fn u64(self, at: usize) -> u64 {
        u64::from_be_bytes(self.bytes(at))
    }

    pub(super) fn qpn(self, at: usize) -> Qpn {
        Qpn::from_wire(self.u24(at))
    }

    /// Bits `high..low` of the byte at `at`.
    pub(super) fn bits(self, at: usize, high: u32, low: u32) -> u8 {
        self.0[at] >> low & mask(high, low)
    }

    pub(super) fn bit(self, at: usize, bit: u32) -> bool {
        self.bits(at, bit, bit) != 0
    }
}

impl BodyWriter<'_> {
    pub(super) fn bytes<const BYTES: usize>(&mut self, at: usize, value: [u8; BYTES]) {
        self.0[at..at + BYTES].copy_from_slice(&value);
    }

    pub(super) fn u8(&mut self, at: usize, value: u8) {
        self.0[at] = value;
    }

    pub(super) fn u16(&mut self, at: usize, value: u16) {
        self.bytes(at, value.to_be_bytes());
    }

    /// The low 24 bits of `value`.
    pub(super) fn u24(&mut self, at: usize, value: u32) {
        let [_, high, middle, low] = value.to_be_bytes();
        self.bytes(at, [high, middle, low]);
    }

    pub(super) fn u32(&mut self, at: usize, value: u32) {
        self.bytes(at, value.to_be_bytes());
    }

    pub(super) fn u64(&mut self, at: usize, value: u64) {
        self.bytes(at, value.to_be_bytes());
    }

    pub(super) fn qpn(&mut self, at: usize, value: Qpn) {
        self.u24(at, value.get());
    }

    /// Bits `high..low` of the byte at `at`, which are zero; higher bits of `value` are dropped.
    pub(super) fn bits(&mut self, at: usize, high: u32, low: u32, value: u8) {
        self.0[at] |= (value & mask(high, low)) << low;
    }

    pub(super) fn bit(&mut self, at: usize, bit: u32, value: bool) {
        self.bits(at, bit, bit, value.into());
    }
}

const fn mask(high: u32, low: u32) -> u8 {
    0xff >> (7 - (high - low))
}
