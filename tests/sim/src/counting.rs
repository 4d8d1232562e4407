//! Memory that its application changes all the time: each word of eight bytes counts up between any
//! two calls of the transport, all words together. A READ of it tells when it was executed.
//!
//! A word is its own place in the top 16 bits and the count in the rest, so that bytes of another
//! place are seen as well.

/// Bytes of it.
pub(crate) const COUNTING_BYTES: u32 = 64 << 10;

const COUNT_BITS: u32 = 48;

/// Fills `into` with the bytes at `offset` of the memory at that count.
pub(crate) fn fill(offset: u32, count: u64, into: &mut [u8]) {
    for (at, byte) in (offset..).zip(into) {
        *byte = word(at / 8, count).to_be_bytes()[at as usize % 8];
    }
}

const fn word(place: u32, count: u64) -> u64 {
    (place as u64) << COUNT_BITS | count
}

/// The count of the word at `place`; `None` when it is none of that place.
pub(crate) fn count_of(place: u32, bytes: [u8; 8]) -> Option<u64> {
    let found = u64::from_be_bytes(bytes);
    (found >> COUNT_BITS == u64::from(place)).then_some(found & ((1 << COUNT_BITS) - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_tells_its_place_and_count() {
        let mut bytes = [0; 24];
        fill(80, 77, &mut bytes);
        assert_eq!(count_of(11, bytes[8..16].try_into().unwrap()), Some(77));
        assert_eq!(count_of(10, bytes[8..16].try_into().unwrap()), None, "another place");
        let mut part = [0; 5];
        fill(83, 77, &mut part);
        assert_eq!(part, bytes[3..8], "a part of a word is its part");
    }
}
