//! Sequence numbers: those that a sender takes, and the half that is not sent.

use core::sync::atomic::{AtomicU64, Ordering};

use thiserror::Error;

/// The number of a packet. The first of a security association is 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EspSequence(u64);

impl EspSequence {
    pub(super) const fn new(number: u64) -> Self {
        Self(number)
    }

    /// All 64 bits; without extended numbers the high half is 0.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The half that is sent.
    pub const fn low(self) -> u32 {
        self.0 as u32
    }
}

/// Numbers of a security association.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numbering {
    /// 32 bits.
    Short,
    /// 64 bits, the high half of which is not sent (ESN, RFC 4303 2.2.1).
    Extended,
}

impl Numbering {
    /// The last number: none wraps, because a receiver would take it for a repetition. One number
    /// of 64 bits stays unused, so that the number behind the last exists.
    const fn last(self) -> u64 {
        match self {
            Self::Short => u32::MAX as u64,
            Self::Extended => u64::MAX - 1,
        }
    }

    /// The number of a received packet with the half `low`, where `top` is the highest number that
    /// was authenticated and `window` numbers up to it may still come. `None` if it would be in
    /// front of the first number or behind the last (RFC 4303 appendix A2.2).
    ///
    /// The number lies in the 2^32 numbers from `top - window + 1`, which is the bottom of the
    /// window.
    pub(super) const fn of_received(self, low: u32, top: u64, window: u32) -> Option<u64> {
        if matches!(self, Self::Short) {
            return Some(low as u64);
        }
        let (top_high, top_low) = ((top >> 32) as u32, top as u32);
        let bottom_low = top_low.wrapping_sub(window - 1);
        let high = if top_low >= window - 1 {
            // The window lies in one range of the low half.
            if low >= bottom_low { Some(top_high) } else { top_high.checked_add(1) }
        } else {
            // Its bottom is in the range before.
            if low >= bottom_low { top_high.checked_sub(1) } else { Some(top_high) }
        };
        match high {
            Some(high) => Some((high as u64) << 32 | low as u64),
            None => None,
        }
    }
}

/// Every number that the security association may use was used: it needs another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("all sequence numbers are used")]
pub struct SequenceSpent;

/// Gives each number of an outbound security association once, from 1.
///
/// Several workers may share it: each reserves a run of few numbers, sends with them and returns
/// the rest, so that no worker holds numbers that fall behind the receiver's window.
///
/// ```
/// use roced_transport::wire::esp::{Numbering, SequenceSource};
///
/// let source = SequenceSource::new(Numbering::Extended, None, None);
/// let mut run = source.reserve(16)?;
/// assert_eq!(run.next().map(|number| number.get()), Some(1));
/// source.give_back(run);
/// assert_eq!(source.reserve(1)?.next().map(|number| number.get()), Some(2));
/// # Ok::<(), roced_transport::wire::esp::SequenceSpent>(())
/// ```
#[derive(Debug)]
pub struct SequenceSource {
    next: AtomicU64,
    soft: u64,
    last: u64,
}

impl SequenceSource {
    /// Numbers from 1. The security association ends after `hard_packets`, at the latest with its
    /// last number, and wants another after `soft_packets`, at the latest when three quarters of
    /// its numbers are used.
    pub fn new(numbering: Numbering, soft_packets: Option<u64>, hard_packets: Option<u64>) -> Self {
        let last = numbering.last().min(hard_packets.unwrap_or(u64::MAX));
        let three_quarters = numbering.last() / 4 * 3 + 3;
        Self { next: AtomicU64::new(1), soft: three_quarters.min(soft_packets.unwrap_or(u64::MAX)).min(last), last }
    }

    /// Up to `count` numbers for one sender, at least one.
    ///
    /// # Errors
    /// [`SequenceSpent`], for ever.
    ///
    /// # Panics
    /// When `count` is 0.
    pub fn reserve(&self, count: u32) -> Result<SequenceRun, SequenceSpent> {
        assert!(count > 0, "a run has a number");
        let end_of = |next: u64| Some(next.saturating_add(count.into()).min(self.last + 1)).filter(|end| *end > next);
        let reserved = self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, end_of);
        let next = reserved.map_err(|_| SequenceSpent)?;
        Ok(SequenceRun { next, end: end_of(next).ok_or(SequenceSpent)? })
    }

    /// Takes back the rest of a run if no number behind it was reserved. Otherwise the rest is
    /// lost: a receiver expects gaps.
    pub fn give_back(&self, run: SequenceRun) {
        let _is_behind = self.next.compare_exchange(run.end, run.next, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// How many numbers were given.
    pub fn given(&self) -> u64 {
        self.next.load(Ordering::Relaxed) - 1
    }

    /// Another security association should take its place soon.
    pub fn is_soft_spent(&self) -> bool {
        self.given() >= self.soft
    }
}

/// Numbers reserved by one sender, each used once.
#[derive(Debug)]
pub struct SequenceRun {
    next: u64,
    end: u64,
}

impl SequenceRun {
    /// A run without a number.
    pub const EMPTY: Self = Self { next: 0, end: 0 };

    /// Whether no number is left.
    pub const fn is_empty(&self) -> bool {
        self.next == self.end
    }
}

impl Iterator for SequenceRun {
    type Item = EspSequence;

    fn next(&mut self) -> Option<EspSequence> {
        let number = self.next;
        (number < self.end).then(|| {
            self.next += 1;
            EspSequence(number)
        })
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::vec::Vec;

    use super::*;

    /// A source that has given `given` numbers.
    fn after(given: u64, source: SequenceSource) -> SequenceSource {
        SequenceSource { next: AtomicU64::new(given + 1), ..source }
    }

    #[test]
    fn the_first_number_is_1_and_none_comes_twice() {
        let source = SequenceSource::new(Numbering::Short, None, None);
        let (first, second) = (source.reserve(3).expect("many"), source.reserve(2).expect("many"));
        let numbers: Vec<u64> = first.chain(second).map(EspSequence::get).collect();
        assert_eq!(numbers, [1, 2, 3, 4, 5]);
        assert_eq!(source.given(), 5);
    }

    #[test]
    fn a_returned_rest_is_given_again_unless_a_later_run_exists() {
        let source = SequenceSource::new(Numbering::Short, None, None);
        let mut run = source.reserve(16).expect("many");
        assert_eq!(run.next().map(EspSequence::get), Some(1));
        source.give_back(run);
        let (first, mut second) = (source.reserve(4).expect("many"), source.reserve(4).expect("many"));
        source.give_back(first);
        assert_eq!(second.next().map(EspSequence::get), Some(6));
        source.give_back(second);
        assert_eq!(source.given(), 6);
        // A spent run returns nothing, and neither does an empty one.
        source.give_back(SequenceRun::EMPTY);
        assert_eq!(source.given(), 6);
    }

    #[test]
    fn numbers_end_and_never_wrap() {
        for (numbering, last) in [(Numbering::Short, u64::from(u32::MAX)), (Numbering::Extended, u64::MAX - 1)] {
            let source = after(last - 3, SequenceSource::new(numbering, None, None));
            let numbers: Vec<u64> = source.reserve(16).expect("three are left").map(EspSequence::get).collect();
            assert_eq!(numbers, [last - 2, last - 1, last]);
            for _ in 0..3 {
                assert_eq!(source.reserve(1).err(), Some(SequenceSpent));
            }
            assert_eq!(source.given(), last);
        }
    }

    #[test]
    fn the_soft_limit_is_three_quarters_or_the_one_that_is_set() {
        let at = 3 << 30;
        let source = |soft, hard| SequenceSource::new(Numbering::Short, soft, hard);
        assert!(!after(at - 1, source(None, None)).is_soft_spent());
        assert!(after(at, source(None, None)).is_soft_spent());
        assert!(!after(9, source(Some(10), None)).is_soft_spent());
        assert!(after(10, source(Some(10), None)).is_soft_spent());
        // A later limit than the numbers allow.
        assert!(after(at, source(Some(u64::MAX), Some(u64::MAX))).is_soft_spent());
        // A hard limit without a soft one, and below it.
        assert!(after(10, source(Some(20), Some(10))).is_soft_spent());
        assert_eq!(after(9, source(None, Some(10))).reserve(5).expect("one").count(), 1);
        assert_eq!(after(10, source(None, Some(10))).reserve(5).err(), Some(SequenceSpent));
        assert_eq!(SequenceSource::new(Numbering::Extended, None, None).soft >> 62, 3);
    }
}
