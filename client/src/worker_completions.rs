//! Completions of one worker that have not been reaped.

use std::collections::VecDeque;

use roced_abi::{cqe::Cqe, ring::RingCorrupt};
use zerocopy::{FromBytes, IntoBytes};

use crate::mapping::ConsumerRing;

/// A completion as it lies in a ring.
pub(crate) type CqeWords = [u64; size_of::<Cqe>() / 8];

pub(crate) fn cqe(words: &CqeWords) -> Cqe {
    Cqe::read_from_bytes(words.as_bytes()).expect("a completion is a whole number of words")
}

/// Completions of one worker, in order.
#[derive(Debug)]
pub(crate) struct WorkerCompletions {
    /// Completions that left the rings to make room there. They precede those in the rings.
    moved: VecDeque<CqeWords>,
    /// All rings but the last precede a resize: they are emptied first and receive no further
    /// completions.
    rings: VecDeque<ConsumerRing>,
}

impl WorkerCompletions {
    pub(crate) fn new(ring: ConsumerRing) -> Self {
        Self { moved: VecDeque::new(), rings: VecDeque::from([ring]) }
    }

    /// Adds the ring of all further completions.
    pub(crate) fn add_ring(&mut self, ring: ConsumerRing) {
        self.rings.push_back(ring);
    }

    /// Pops the next completion. Returns false if there is none.
    ///
    /// Its slot returns to the worker at once, before the caller completes the request: other
    /// threads may post into the room of the request, and their work may complete while this thread
    /// does not run. A queue of as many entries as requests can be outstanding never overruns.
    pub(crate) fn pop(&mut self, words: &mut CqeWords) -> Result<bool, RingCorrupt> {
        if let Some(moved) = self.moved.pop_front() {
            *words = moved;
            return Ok(true);
        }
        self.pop_from_rings(words)
    }

    fn pop_from_rings(&mut self, words: &mut CqeWords) -> Result<bool, RingCorrupt> {
        loop {
            if self.rings[0].pop(words)? {
                self.rings[0].release();
                return Ok(true);
            }
            if self.rings.len() == 1 {
                return Ok(false);
            }
            self.rings.pop_front();
        }
    }

    /// Number of completions.
    pub(crate) fn waiting(&mut self) -> Result<u32, RingCorrupt> {
        let in_rings: Result<u32, RingCorrupt> = self.rings.iter_mut().map(ConsumerRing::available).sum();
        Ok(in_rings? + self.moved.len() as u32)
    }

    /// Empties the rings. Completions for which `stays` returns true stay here, in order; the others
    /// are dropped.
    pub(crate) fn make_room(&mut self, mut stays: impl FnMut(&Cqe) -> bool) -> Result<(), RingCorrupt> {
        let mut in_rings = self.waiting()? - self.moved.len() as u32;
        self.moved.retain(|words| stays(&cqe(words)));
        let mut words = CqeWords::default();
        while in_rings > 0 && self.pop_from_rings(&mut words)? {
            in_rings -= 1;
            if stays(&cqe(&words)) {
                self.moved.push_back(words);
            }
        }
        Ok(())
    }
}
