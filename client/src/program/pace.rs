//! Piece size and cost of page exchange.

use std::time::Duration;

/// Cost of the page exchange for a registration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExchangeCost {
    /// Total time, from the start of the thread that performs the exchange.
    pub took: Duration,
    /// Number of pieces; writers are blocked for one piece at a time.
    pub pieces: u32,
    /// Number of pieces that a thread of the program was seen to wait for.
    pub pieces_waited_for: u32,
    /// Longest time that a thread may have waited. It can include time in which the exchanging
    /// thread had no core, or waited for a kernel lock with a holder that had no core, or for
    /// another core to respond; in a virtual machine, it can include time in which the host took
    /// any of these cores.
    pub longest: Duration,
}

/// Size of the pieces.
#[derive(Debug)]
pub(super) struct Pace {
    bytes: usize,
}

/// Largest piece: copying it takes some tenths of a millisecond. The rest of the work takes as long
/// again, independent of the size.
const LARGEST: usize = 2 << 20;

/// Smallest piece: smaller ones would not be much quicker.
const SMALLEST: usize = 128 << 10;

/// Copy time above which a piece was too large: for memory that the host of a virtual machine has
/// to fault in first, or for a slow machine.
const TOO_LONG: Duration = Duration::from_micros(800);

impl Pace {
    pub(super) const fn new() -> Self {
        Self { bytes: LARGEST }
    }

    /// Returns the end of the piece that begins at `start`. Pieces end on boundaries of huge pages,
    /// or of regular parts of them.
    pub(super) fn end(&self, start: usize) -> usize {
        (start / self.bytes + 1) * self.bytes
    }

    /// Adapts the piece size to the time `took` for a copy of `bytes`.
    pub(super) fn copied(&mut self, bytes: usize, took: Duration) {
        if took > TOO_LONG {
            self.bytes = (self.bytes / 2).max(SMALLEST);
        } else if bytes == self.bytes && took < TOO_LONG / 4 {
            self.bytes = (self.bytes * 2).min(LARGEST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the sizes of the pieces of `range` if each KiB takes `ns_per_kib` to copy.
    fn pieces(range: std::ops::Range<usize>, ns_per_kib: u64) -> Vec<usize> {
        let (mut pace, mut start, mut pieces) = (Pace::new(), range.start, Vec::new());
        while start < range.end {
            let end = pace.end(start).min(range.end);
            pace.copied(end - start, Duration::from_nanos(ns_per_kib * (end - start) as u64 / 1024));
            pieces.push(end - start);
            start = end;
        }
        pieces
    }

    #[test]
    fn quick_memory_is_exchanged_in_large_pieces() {
        assert_eq!(pieces(0..6 << 20, 100), [2 << 20; 3]);
        assert_eq!(pieces(4096..3 << 20, 100), [(2 << 20) - 4096, 1 << 20]);
    }

    #[test]
    fn slow_memory_is_exchanged_in_small_pieces_and_no_byte_is_left_out() {
        let slow = pieces(4096..64 << 20, 4000);
        assert_eq!(slow.iter().sum::<usize>(), (64 << 20) - 4096);
        // The first pieces are measured; later ones take no longer than they should.
        assert!(slow[4..].iter().all(|bytes| *bytes <= 256 << 10), "{slow:?}");
        assert!(pieces(0..8 << 20, 1_000_000).iter().all(|bytes| *bytes >= SMALLEST));
    }

    #[test]
    fn chunks_grow_again_after_a_slow_copy() {
        let mut pace = Pace::new();
        (0..10).for_each(|_| pace.copied(pace.bytes, Duration::from_millis(8)));
        assert_eq!(pace.end(0), SMALLEST);
        (0..10).for_each(|_| pace.copied(pace.bytes, Duration::from_micros(10)));
        assert_eq!(pace.end(0), LARGEST);
    }
}
