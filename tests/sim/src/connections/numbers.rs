//! Queue pair numbers of a host, private data of ends, and digests.

use std::{collections::VecDeque, time::Duration};

use crate::random::Random;

/// How long a number rests, as in the daemon.
pub(crate) const REST: Duration = Duration::from_secs(2);

/// First number of a host: below it numbers are reserved.
const FIRST: u32 = 0x100;

/// Queue pair numbers of a host.
#[derive(Debug)]
pub(crate) struct QueuePairNumbers {
    used: Vec<bool>,
    resting: VecDeque<(Duration, u32)>,
}

impl QueuePairNumbers {
    pub(crate) fn new(count: usize) -> Self {
        Self { used: vec![false; count], resting: VecDeque::new() }
    }

    /// A number that does not rest, from a random place on.
    pub(crate) fn take(&mut self, random: &mut Random, now: Duration) -> Option<u32> {
        while let Some((_, number)) = self.resting.pop_front_if(|(since, _)| now - *since >= REST) {
            self.used[number as usize] = false;
        }
        let count = self.used.len();
        let start = random.below(count as u64) as usize;
        let free = (start..count).chain(0..start).find(|number| !self.used[*number])?;
        self.used[free] = true;
        Some(FIRST + free as u32)
    }

    /// A queue pair is destroyed.
    pub(crate) fn give_back(&mut self, number: u32, now: Duration) {
        self.resting.push_back((now, number - FIRST));
    }
}

/// Private data of end `end`: its number, and bytes that follow from it.
pub(crate) fn private_data(end: usize, bytes: usize) -> Vec<u8> {
    let head = (end as u64 + 1).to_be_bytes();
    let tail = (0..bytes).map(|at| (end * 31 + at * 7) as u8);
    head.into_iter().chain(tail).collect()
}

/// The end of private data, if that is all there and followed by zeros.
pub(crate) fn end_of(data: &[u8]) -> Option<usize> {
    let (head, rest) = data.split_first_chunk()?;
    let end = u64::from_be_bytes(*head).checked_sub(1)? as usize;
    let expected = private_data(end, data_bytes(end));
    let is_whole = rest.starts_with(&expected[8..]) && rest[data_bytes(end)..].iter().all(|byte| *byte == 0);
    is_whole.then_some(end)
}

/// Bytes that the private data of an end has behind its number.
pub(crate) const fn data_bytes(end: usize) -> usize {
    end * 13 % 49
}

/// FNV-1a.
pub(crate) fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}
