//! Numbers that a seed repeats (SplitMix64).

/// A sequence of numbers.
#[derive(Clone, Debug)]
pub(crate) struct Seeded(u64);

impl Seeded {
    /// The sequence of this seed.
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub(crate) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// A number below `limit`, which is not 0.
    pub(crate) const fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// True once in `times`.
    pub(crate) const fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// One of `all`.
    pub(crate) fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}
