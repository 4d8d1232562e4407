//! Producer side of a queue of work requests.

use zerocopy::IntoBytes;

use crate::{
    error::{Error, Result},
    mapping::ProducerRing,
};

/// A producer ring and a buffer to compose an entry in.
#[derive(Debug)]
pub(crate) struct PostSide<const WORDS: usize> {
    pub(crate) ring: ProducerRing,
    slot: [u64; WORDS],
}

impl<const WORDS: usize> PostSide<WORDS> {
    pub(crate) const fn new(ring: ProducerRing) -> Self {
        Self { ring, slot: [0; WORDS] }
    }

    /// Writes `parts`, whole words together, into the next entry of the ring. Returns false if the
    /// ring is full.
    pub(crate) fn push(&mut self, parts: [&[u8]; 2]) -> Result<bool> {
        let bytes = self.slot.as_mut_bytes();
        let (head, rest) = bytes.split_at_mut(parts[0].len());
        head.copy_from_slice(parts[0]);
        rest[..parts[1].len()].copy_from_slice(parts[1]);
        let words = (parts[0].len() + parts[1].len()).div_ceil(8);
        self.ring.push(&self.slot[..words]).map_err(|_| Error::Protocol { what: "a ring index out of range" })
    }
}

/// Posts requests until one fails. Returns an error only if the first one fails.
pub(crate) fn all_that_fit<R>(requests: &[R], mut post: impl FnMut(&R) -> Result<()>) -> Result<usize> {
    for (posted, request) in requests.iter().enumerate() {
        match post(request) {
            Ok(()) => {}
            Err(error) if posted == 0 => return Err(error),
            Err(_) => return Ok(posted),
        }
    }
    Ok(requests.len())
}
