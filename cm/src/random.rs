//! Numbers that peers cannot predict, from a seed: the same seed gives the same run.

use chacha20::{
    ChaCha20Rng,
    rand_core::{Rng, SeedableRng},
};

/// The key stream of `ChaCha20` (RFC 8439). A peer sees much of it, as communication IDs and
/// PSNs; from a generator with an invertible step it would learn all later numbers.
#[derive(Debug)]
pub(crate) struct Generator(ChaCha20Rng);

/// Use of the numbers: each has a key stream of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NumberUse {
    /// Connections: communication IDs, PSNs, transaction IDs.
    Connections,
    /// Identifiers: ports.
    Identifiers,
}

impl Generator {
    pub(crate) fn new(seed: [u8; 32], of: NumberUse) -> Self {
        let mut stream = ChaCha20Rng::from_seed(seed);
        stream.set_stream(of as u64);
        Self(stream)
    }

    pub(crate) fn next(&mut self) -> u32 {
        self.0.next_u32()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(seed: [u8; 32], of: NumberUse) -> [u32; 4] {
        let mut numbers = Generator::new(seed, of);
        [(); 4].map(|()| numbers.next())
    }

    /// RFC 8439, appendix A.1, test vector 1.
    #[test]
    fn numbers_are_the_key_stream_of_chacha20() {
        let stream = first([0; 32], NumberUse::Connections);
        assert_eq!(stream, [0xade0_b876, 0x903d_f1a0, 0xe56a_5d40, 0x28bd_8653]);
    }

    #[test]
    fn each_byte_of_the_seed_and_each_use_give_other_numbers() {
        let of_zeros = first([0; 32], NumberUse::Connections);
        for at in 0..32 {
            let mut seed = [0; 32];
            seed[at] = 1;
            assert_ne!(first(seed, NumberUse::Connections), of_zeros, "byte {at}");
        }
        assert_ne!(first([0; 32], NumberUse::Identifiers), of_zeros);
    }
}
