//! The data that is sent, made so that wrong bytes, old bytes and bytes of another message are all
//! told apart.
//!
//! Both ends make the same *tape* of pseudo-random words from a seed that is new in every run.
//! Message `n` of queue pair `q` is the piece of the tape that begins at [`offset`]`(q, n)`;
//! neighbors begin 8 bytes or more apart, so that a buffer that still holds an earlier message, or
//! part of one, differs in nearly every word. A sender sends from its tape as it lies there; a
//! receiver compares with its own tape. Neither has to make a pattern per message, so that
//! verifying costs no more than one `memcmp`.

use crate::cli::DEPTH_MAX;

/// Places where a message may begin on the tape. A prime above [`DEPTH_MAX`], so that the messages
/// that follow one another in a buffer never begin at the same place.
const PLACES: u64 = 8191;

/// Bytes from place to place.
const STRIDE: u64 = 8;

const _: () = assert!((DEPTH_MAX as u64) < PLACES);

/// Bytes of a tape for messages of `size` bytes.
pub(crate) const fn tape_bytes(size: u64) -> u64 {
    size + (PLACES - 1) * STRIDE
}

/// Where on the tape message `sequence` of queue pair `qp` (its place in the run, not its QPN)
/// begins.
pub(crate) const fn offset(qp: u32, sequence: u64) -> u64 {
    // Both factors are prime to PLACES: successive messages are far apart, and queue pairs run out
    // of step. The sum cannot overflow: each term is below 2^46.
    ((sequence % PLACES) * 2719 + (qp as u64) * 1117) % PLACES * STRIDE
}

/// Bytes that are made or compared at a time: they stay in the core's own cache.
const CHUNK_BYTES: usize = 16 << 10;

/// Makes the tape of `seed` for messages of `size` bytes, piece by piece from its beginning.
pub(crate) fn make(seed: u64, size: u64, mut piece: impl FnMut(usize, &[u8])) {
    let total = tape_bytes(size) as usize;
    let mut chunk = vec![0; CHUNK_BYTES.min(total)];
    for begin in (0..total).step_by(CHUNK_BYTES) {
        let bytes = CHUNK_BYTES.min(total - begin);
        for (word, index) in chunk.chunks_mut(8).zip(begin as u64 / 8..) {
            word.copy_from_slice(&tape_word(seed, index).to_le_bytes()[..word.len()]);
        }
        piece(begin, &chunk[..bytes]);
    }
}

/// Word `index` of the tape of `seed`: a step of SplitMix64, which may start anywhere.
const fn tape_word(seed: u64, index: u64) -> u64 {
    let mut word = seed.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// A seed that the last run did not have.
pub(crate) fn fresh_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    // The standard library seeds every RandomState from the kernel.
    RandomState::new().hash_one(0)
}

/// Expected data of a receiver.
#[derive(Debug)]
pub(crate) struct Expected {
    tape: Vec<u8>,
    size: usize,
    chunk: Vec<u8>,
}

impl Expected {
    /// Contents of messages of `size` bytes from `seed`.
    pub(crate) fn new(seed: u64, size: u64) -> Self {
        let mut tape = Vec::with_capacity(tape_bytes(size) as usize);
        make(seed, size, |_, piece| tape.extend_from_slice(piece));
        Self { tape, size: size as usize, chunk: vec![0; CHUNK_BYTES] }
    }

    /// The bytes of message `sequence` of queue pair `qp`.
    pub(crate) fn message(&self, qp: u32, sequence: u64) -> &[u8] {
        let begin = offset(qp, sequence) as usize;
        &self.tape[begin..begin + self.size]
    }

    /// Compares every byte of a message that lies in memory from which `read` copies.
    ///
    /// # Errors
    /// The difference.
    pub(crate) fn compare(&mut self, qp: u32, sequence: u64, read: impl Fn(usize, &mut [u8])) -> Result<(), Mismatch> {
        let mut chunk = std::mem::take(&mut self.chunk);
        let expected = self.message(qp, sequence);
        let same = (0..expected.len()).step_by(CHUNK_BYTES).all(|begin| {
            let end = expected.len().min(begin + CHUNK_BYTES);
            let found = &mut chunk[..end - begin];
            read(begin, found);
            found == &expected[begin..end]
        });
        let result = if same {
            Ok(())
        } else {
            let mut found = vec![0; expected.len()];
            read(0, &mut found);
            Err(Mismatch::between(qp, sequence, expected, &found))
        };
        self.chunk = chunk;
        result
    }
}

/// Received data differs from the sent data.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Mismatch {
    /// Place of the queue pair in the run.
    qp: u32,
    /// The message, from 0.
    sequence: u64,
    /// Bytes found, and bytes sent.
    bytes: [u64; 2],
    /// The first byte that differs.
    first: u64,
    /// How many bytes differ.
    differing: u64,
    /// Up to eight bytes from there on: as sent.
    expected: Vec<u8>,
    /// ... and as found.
    found: Vec<u8>,
}

impl Mismatch {
    /// Difference between two messages.
    pub(crate) fn between(qp: u32, sequence: u64, expected: &[u8], found: &[u8]) -> Self {
        let pairs = || expected.iter().zip(found);
        let shorter = expected.len().min(found.len());
        let first = pairs().position(|(a, b)| a != b).unwrap_or(shorter);
        let sample = |bytes: &[u8]| bytes[first..bytes.len().min(first + 8)].to_vec();
        Self {
            qp,
            sequence,
            bytes: [found.len() as u64, expected.len() as u64],
            first: first as u64,
            differing: (pairs().filter(|(a, b)| a != b).count() + expected.len().abs_diff(found.len())) as u64,
            expected: sample(expected),
            found: sample(found),
        }
    }
}

impl std::fmt::Display for Mismatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { qp, sequence, bytes: [found_bytes, sent_bytes], first, differing, expected, found } = self;
        write!(f, "message {sequence} of queue pair {qp} (from 0): ")?;
        if found_bytes != sent_bytes {
            write!(f, "{found_bytes} bytes where {sent_bytes} were sent; ")?;
        }
        write!(
            f,
            "{differing} of {sent_bytes} bytes differ, the first at {first}: {found:02x?} where {expected:02x?} was sent"
        )
    }
}

impl std::error::Error for Mismatch {}

#[cfg(test)]
mod tests {
    use super::*;

    const SEED: u64 = 0x1234_5678_9abc_def0;

    fn compare(receiver: &mut Expected, qp: u32, sequence: u64, found: &[u8]) -> Result<(), Mismatch> {
        receiver.compare(qp, sequence, |at, into| into.copy_from_slice(&found[at..at + into.len()]))
    }

    #[test]
    fn both_ends_make_the_same_message() {
        for size in [1, 1000, CHUNK_BYTES, CHUNK_BYTES + 1, 5 * CHUNK_BYTES - 1] {
            let mut sender = vec![0; tape_bytes(size as u64) as usize];
            make(SEED, size as u64, |at, piece| sender[at..at + piece.len()].copy_from_slice(piece));
            let mut receiver = Expected::new(SEED, size as u64);
            for (qp, sequence) in [(0, 0), (0, 1), (3, 8190), (3, 8191), (63, u64::MAX)] {
                let begin = offset(qp, sequence) as usize;
                assert_eq!(compare(&mut receiver, qp, sequence, &sender[begin..begin + size]), Ok(()));
            }
        }
    }

    #[test]
    fn the_last_place_ends_where_the_tape_ends() {
        let furthest = (0..PLACES).map(|sequence| offset(0, sequence)).max();
        assert_eq!(furthest, Some(tape_bytes(0)));
    }

    /// A buffer that was not written at all, or not to its end, holds data of an earlier message.
    #[test]
    fn every_earlier_message_of_the_same_buffer_differs() {
        for depth in [1, 2, 64, u64::from(DEPTH_MAX)] {
            let mut receiver = Expected::new(SEED, 64);
            for pass in 1..1000 {
                let (old, new) = ((pass - 1) * depth, pass * depth);
                let mut stale = receiver.message(0, new).to_vec();
                stale[63] = receiver.message(0, old)[63];
                // One stale byte is the same by chance once in 256; a whole stale word never.
                stale[48..56].copy_from_slice(&receiver.message(0, old)[48..56]);
                let mismatch = compare(&mut receiver, 0, new, &stale).expect_err("stale bytes are found");
                assert_eq!((mismatch.first / 8, mismatch.sequence), (6, new));
            }
        }
    }

    #[test]
    fn messages_under_way_at_a_time_all_differ() {
        let places: std::collections::HashSet<u64> = (0..PLACES).map(|sequence| offset(5, sequence)).collect();
        assert_eq!(places.len() as u64, PLACES);
        assert_ne!(offset(0, 7), offset(1, 7), "queue pairs are told apart");
    }

    #[test]
    fn another_seed_is_another_tape() {
        let message = Expected::new(SEED, 64).message(0, 0).to_vec();
        let mismatch = compare(&mut Expected::new(SEED + 1, 64), 0, 0, &message).expect_err("another run's data");
        assert!(mismatch.differing > 56, "nearly all of 64 bytes differ: {mismatch}");
        assert_ne!(fresh_seed(), fresh_seed());
    }

    #[test]
    fn one_wrong_bit_is_found_and_located() {
        let mut receiver = Expected::new(SEED, 100);
        let mut found = receiver.message(2, 9).to_vec();
        found[99] ^= 0x80;
        let mismatch = compare(&mut receiver, 2, 9, &found).expect_err("the last byte is wrong");
        assert_eq!((mismatch.first, mismatch.differing, mismatch.found.len()), (99, 1, 1));
        assert!(mismatch.to_string().contains("message 9 of queue pair 2"), "{mismatch}");
    }

    #[test]
    fn a_wrong_byte_behind_the_first_chunk_is_found() {
        let mut receiver = Expected::new(SEED, 3 * CHUNK_BYTES as u64);
        for wrong in [CHUNK_BYTES - 1, CHUNK_BYTES, 3 * CHUNK_BYTES - 1] {
            let mut found = receiver.message(0, 0).to_vec();
            found[wrong] ^= 1;
            let mismatch = compare(&mut receiver, 0, 0, &found).expect_err("one bit is wrong");
            assert_eq!((mismatch.first, mismatch.differing), (wrong as u64, 1));
        }
    }

    #[test]
    fn missing_bytes_differ() {
        let receiver = Expected::new(SEED, 100);
        let expected = receiver.message(0, 0);
        let mismatch = Mismatch::between(0, 0, expected, &expected[..90]);
        assert_eq!((mismatch.first, mismatch.differing), (90, 10));
        assert!(mismatch.to_string().contains("90 bytes where 100 were sent"), "{mismatch}");
    }
}
