//! How much is exchanged at a time, and what it cost.

use std::time::Duration;

/// What exchanging the pages under a registration cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExchangeCost {
    /// All of it, once there was a thread to do it.
    pub took: Duration,
    /// Pieces in which it was done: of one at a time writers are held.
    pub pieces: u32,
    /// Pieces for which some thread of the program was seen to wait.
    pub pieces_waited_for: u32,
    /// The longest that a thread may have waited. Some of it may be time in which the thread that exchanges had no core, or waited for
    /// a lock of the kernel whose holder had none, or for another core to take note; in a virtual machine, time in which the host had any of them.
    pub longest: Duration,
}

/// How large pieces are.
#[derive(Debug)]
pub(super) struct Pace {
    bytes: usize,
}

/// Copying that takes some tenths of a millisecond. What else there is to do takes as long again, and is the same for any length.
const LARGEST: usize = 2 << 20;

/// Smaller ones would not be quicker by much.
const SMALLEST: usize = 128 << 10;

/// A copy that takes longer was of too much: of memory that the host of a virtual machine has to bring first, of a slow machine.
const TOO_LONG: Duration = Duration::from_micros(800);

impl Pace {
    pub(super) const fn new() -> Self {
        Self { bytes: LARGEST }
    }

    /// The end of the piece that begins at `start`. Pieces end where huge pages do, or regular parts of them.
    pub(super) fn end(&self, start: usize) -> usize {
        (start / self.bytes + 1) * self.bytes
    }

    /// A piece of `bytes` took so long to copy.
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

    /// Bytes of the pieces of `range` when each byte takes `ns_per_kib` to copy.
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
        // The first tells; from then on none takes longer than it should.
        assert!(slow[4..].iter().all(|bytes| *bytes <= 256 << 10), "{slow:?}");
        assert!(pieces(0..8 << 20, 1_000_000).iter().all(|bytes| *bytes >= SMALLEST));
    }

    #[test]
    fn what_was_slow_once_is_large_again() {
        let mut pace = Pace::new();
        (0..10).for_each(|_| pace.copied(pace.bytes, Duration::from_millis(8)));
        assert_eq!(pace.end(0), SMALLEST);
        (0..10).for_each(|_| pace.copied(pace.bytes, Duration::from_micros(10)));
        assert_eq!(pace.end(0), LARGEST);
    }
}
