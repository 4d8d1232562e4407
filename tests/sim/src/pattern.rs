//! The bytes that applications send: a fixed sea of noise in which each message is a few pieces, so
//! that a model need not keep data, only where in the sea it comes from. Bytes from the wrong
//! place, or of the wrong message, differ from the first on.

use std::sync::OnceLock;

use crate::random::Random;

/// Source bytes of one host.
pub(crate) const SOURCE_BYTES: usize = 1 << 19;

/// Most pieces of one message.
pub(crate) const PIECES_MAX: usize = 32;

/// The sea: the first half is host 0's source memory, the second host 1's.
pub(crate) fn sea() -> &'static [u8] {
    static SEA: OnceLock<Vec<u8>> = OnceLock::new();
    SEA.get_or_init(|| {
        let mut random = Random::new(4791);
        (0..2 * SOURCE_BYTES / 8).flat_map(|_| random.next().to_le_bytes()).collect()
    })
}

/// Pieces of memory, (offset, bytes) each: of the sea, or of a host's sink.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pieces {
    list: Vec<(u32, u32)>,
}

impl Pieces {
    pub(crate) fn push(&mut self, offset: u32, bytes: u32) {
        assert!(self.list.len() < PIECES_MAX, "a work request has so many pieces");
        self.list.push((offset, bytes));
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.list.iter().copied()
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// All bytes.
    pub(crate) fn bytes(&self) -> u32 {
        self.iter().map(|(_, bytes)| bytes).sum()
    }

    /// The place of byte `skip`, and how many bytes follow there in one run; `None` at the end.
    pub(crate) fn at(&self, mut skip: u32) -> Option<(u32, u32)> {
        for (offset, bytes) in self.iter() {
            if skip < bytes {
                return Some((offset + skip, bytes - skip));
            }
            skip -= bytes;
        }
        None
    }

    /// The sea's bytes from byte `skip` of these pieces on are `found`.
    pub(crate) fn holds(&self, skip: u32, found: &[u8]) -> bool {
        let (mut skip, mut rest) = (skip, found);
        while !rest.is_empty() {
            let Some((offset, run)) = self.at(skip) else { return false };
            let now = rest.len().min(run as usize);
            if rest[..now] != sea()[offset as usize..][..now] {
                return false;
            }
            skip += now as u32;
            rest = &rest[now..];
        }
        true
    }
}

/// A receive buffer in up to `most` pieces.
pub(crate) fn split(random: &mut Random, base: u32, bytes: u32, most: u32) -> Pieces {
    let count = if most > 1 && random.one_in(2) { random.within(2, most.into()) as u32 } else { 1 };
    let mut pieces = Pieces::default();
    let mut done = 0;
    for piece in 1..=count {
        let now = if piece == count { bytes - done } else { random.below(u64::from(bytes - done) / 2 + 1) as u32 };
        pieces.push(base + done, now);
        done += now;
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_read_one_behind_the_other() {
        let mut pieces = Pieces::default();
        pieces.push(100, 3);
        pieces.push(50, 0);
        pieces.push(900, 4);
        let bytes: Vec<u8> = [&sea()[100..103], &sea()[900..904]].concat();
        assert!(pieces.holds(0, &bytes) && pieces.holds(2, &bytes[2..]) && pieces.holds(7, &[]));
        assert!(!pieces.holds(1, &bytes[2..]), "another place");
        assert!(!pieces.holds(3, &bytes[2..]), "and past the end");
        assert_eq!((pieces.at(2), pieces.at(3), pieces.at(7)), (Some((102, 1)), Some((900, 4)), None));
    }
}
