//! Number of registrations over each page.

use std::{collections::BTreeMap, ops::Range};

/// Ranges of addresses, each with a count. Addresses outside the ranges have count 0.
#[derive(Debug, Default)]
pub(super) struct PageCounts {
    /// Start to end and count. The ranges do not overlap, and no count is 0.
    ranges: BTreeMap<usize, (usize, u32)>,
}

impl PageCounts {
    pub(super) const fn new() -> Self {
        Self { ranges: BTreeMap::new() }
    }

    /// Increments the count of every address in `range`.
    pub(super) fn add(&mut self, range: &Range<usize>) {
        self.cut(range.start);
        self.cut(range.end);
        let mut next = range.start;
        let mut gaps = Vec::new();
        for (start, (end, count)) in self.ranges.range_mut(range.clone()) {
            if next < *start {
                gaps.push((next, *start));
            }
            *count += 1;
            next = *end;
        }
        if next < range.end {
            gaps.push((next, range.end));
        }
        self.ranges.extend(gaps.into_iter().map(|(start, end)| (start, (end, 1))));
    }

    /// Decrements the count of every address in `range`, which was added before. Returns the parts
    /// with count 0.
    pub(super) fn remove(&mut self, range: &Range<usize>) -> Vec<Range<usize>> {
        self.cut(range.start);
        self.cut(range.end);
        let mut free: Vec<Range<usize>> = Vec::new();
        for (start, (end, count)) in self.ranges.range_mut(range.clone()) {
            *count -= 1;
            match free.last_mut() {
                _ if *count > 0 => {}
                Some(last) if last.end == *start => last.end = *end,
                _ => free.push(*start..*end),
            }
        }
        self.ranges.retain(|_, (_, count)| *count > 0);
        free
    }

    /// Returns all ranges with a count above 0, in pieces.
    pub(super) fn all(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        self.ranges.iter().map(|(start, (end, _))| *start..*end)
    }

    /// Splits the range that contains `at`, so that one begins there.
    fn cut(&mut self, at: usize) {
        if let Some((_, whole)) = self.ranges.range_mut(..at).next_back()
            && whole.0 > at
        {
            let (end, count) = *whole;
            whole.0 = at;
            self.ranges.insert(at, (end, count));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(range: Range<usize>) -> Vec<Range<usize>> {
        std::iter::once(range).collect()
    }

    #[test]
    fn a_part_is_free_when_the_last_goes() {
        let mut counts = PageCounts::new();
        counts.add(&(10..20));
        counts.add(&(15..30));
        counts.add(&(12..14));
        counts.add(&(40..50));
        assert_eq!(counts.remove(&(10..20)), [10..12, 14..15]);
        assert_eq!(counts.remove(&(15..30)), one(15..30));
        assert_eq!(counts.all().collect::<Vec<_>>(), [12..14, 40..50]);
        assert_eq!(counts.remove(&(12..14)), one(12..14));
        assert_eq!(counts.remove(&(40..50)), one(40..50));
        assert_eq!(counts.all().count(), 0);
    }

    /// Compares with an array of counts, over a fixed pseudorandom sequence.
    #[test]
    fn it_counts_as_an_array_does() {
        let (mut counts, mut model) = (PageCounts::new(), [0u32; 64]);
        let mut live = Vec::new();
        let mut state = 1u64;
        for _ in 0..2000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (start, length) = ((state >> 33) as usize % 60, 1 + (state >> 43) as usize % 4);
            if state >> 63 == 0 || live.is_empty() {
                let range = start..start + length;
                counts.add(&range);
                range.clone().for_each(|at| model[at] += 1);
                live.push(range);
            } else {
                let range = live.swap_remove((state >> 20) as usize % live.len());
                range.clone().for_each(|at| model[at] -= 1);
                let expected: Vec<_> = range.clone().filter(|at| model[*at] == 0).collect();
                assert_eq!(counts.remove(&range).into_iter().flatten().collect::<Vec<_>>(), expected);
            }
            let held: Vec<_> = counts.all().flatten().collect();
            assert_eq!(held, (0..64).filter(|at| model[*at] > 0).collect::<Vec<_>>());
        }
    }
}
