//! Packet sequence numbers: 24 bits that wrap.

use core::{fmt, num::NonZeroU32};

/// A packet sequence number. It has no order, only a signed distance to another one (IBTA v1
/// 9.7.1): half the numbers are ahead of it, half behind.
///
/// Bit 24 is always set, which a difference does not see: so an `Option<Psn>`, of which a queue
/// pair has many, has no mark of its own.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Psn(NonZeroU32);

const _: () = assert!(size_of::<Option<Psn>>() == 4);

impl Psn {
    const MASK: u32 = 0x00ff_ffff;
    const SET: u32 = Self::MASK + 1;

    /// The low 24 bits of `value`.
    pub const fn new(value: u32) -> Self {
        match NonZeroU32::new(value & Self::MASK | Self::SET) {
            Some(number) => Self(number),
            None => unreachable!(),
        }
    }

    /// The number, below 2^24.
    pub const fn get(self) -> u32 {
        self.0.get() & Self::MASK
    }

    /// The PSN `packets` later.
    #[must_use]
    pub const fn plus(self, packets: u32) -> Self {
        Self::new(self.0.get().wrapping_add(packets))
    }

    /// The PSN `packets` earlier.
    #[must_use]
    pub const fn minus(self, packets: u32) -> Self {
        Self::new(self.0.get().wrapping_sub(packets))
    }

    /// How many packets `self` is after `base`: -2^23 to 2^23 - 1.
    pub const fn distance_from(self, base: Self) -> i32 {
        // The difference's top bit, moved to bit 31 and back, is its sign.
        ((self.0.get().wrapping_sub(base.0.get()) << 8) as i32) >> 8
    }

    /// How many packets `self` is after `base`, going forward only: 0 to 2^24 - 1.
    pub const fn offset_from(self, base: Self) -> u32 {
        self.0.get().wrapping_sub(base.0.get()) & Self::MASK
    }
}

impl Default for Psn {
    fn default() -> Self {
        Self::new(0)
    }
}

impl fmt::Debug for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Psn").field(&self.get()).finish()
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.get())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_wrap_is_one_step() {
        assert_eq!(Psn::new(0).distance_from(Psn::new(0x00ff_ffff)), 1);
        assert_eq!(Psn::new(0x00ff_ffff).distance_from(Psn::new(0)), -1);
        assert_eq!(Psn::new(0x0080_0000).distance_from(Psn::new(0)), -0x0080_0000);
        assert_eq!(Psn::new(0x007f_ffff).distance_from(Psn::new(0)), 0x007f_ffff);
    }

    proptest! {
        #[test]
        fn distance_undoes_plus_and_minus(base: u32, step in 0u32..0x0080_0000) {
            let base = Psn::new(base);
            prop_assert_eq!(base.plus(step).distance_from(base), step as i32);
            prop_assert_eq!(base.minus(step).distance_from(base), -(step as i32));
            prop_assert_eq!(base.plus(step).offset_from(base), step);
        }

        /// Against plain modular arithmetic, for any two numbers, near each other and half the
        /// circle apart.
        #[test]
        fn distance_is_the_short_way_round(base: u32, step in prop_oneof![any::<u32>(), 0x007f_fff0u32..0x0080_0010]) {
            const CIRCLE: i64 = 1 << 24;
            let (base, other) = (Psn::new(base), Psn::new(base.wrapping_add(step)));
            let forward = (i64::from(other.get()) - i64::from(base.get())).rem_euclid(CIRCLE);
            prop_assert_eq!(i64::from(other.offset_from(base)), forward);
            let short = if forward < CIRCLE / 2 { forward } else { forward - CIRCLE };
            prop_assert_eq!(i64::from(other.distance_from(base)), short);
            prop_assert_eq!(base.plus(step), other);
            prop_assert_eq!(other.minus(step), base);
        }
    }
}
