//! Numbers that strangers cannot guess, from a seed: the same seed gives the same run.

/// A generator (SplitMix64). The seed comes from the kernel, or from a test.
#[derive(Clone, Debug)]
pub(crate) struct Generator(u64);

impl Generator {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) const fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ mixed >> 31) >> 32) as u32
    }
}
