//! States of single rules: a file of [`crate::check`] with a rule that remembers something about
//! a stream has its state here.

use std::collections::BTreeSet;

/// Knowledge of a requester's limit.
#[derive(Debug, Default)]
pub(crate) struct Credits {
    /// The last message that any answer allowed, counted without end; once the requester must have
    /// seen one.
    pub(crate) limit: u64,
    pub(crate) is_known: bool,
    /// The last packet that was sent beyond it for the first time, and the number of its message.
    pub(crate) probe: Option<(u64, u32)>,
}

/// The message that the receiver is in the middle of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inbox {
    /// The PSN behind the last that it listened to.
    pub(crate) expected: u64,
    /// The message of the packets that it has so far.
    pub(crate) under_way: Option<u64>,
}

/// The last RNR NAK of a request that was not the oldest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NotReady {
    pub(crate) psn: u64,
    pub(crate) delay: u64,
    /// When it is sent again at the latest; known when it is the oldest.
    pub(crate) due: Option<u64>,
}

/// Data that the READs of one queue pair brought so far.
#[derive(Debug, Default)]
pub(crate) struct ReadOrder {
    /// The READ that is being placed; the newest count of those before it, and with it.
    pub(crate) current: u64,
    pub(crate) before: u64,
    pub(crate) newest: u64,
    /// Bytes of the word that is being placed.
    pub(crate) word: [u8; 8],
    /// Of responses: which was the last to be sent of those that arrived, and PSNs of those that
    /// came behind a later one.
    pub(crate) last: u64,
    pub(crate) overtaken: BTreeSet<u64>,
}

/// Answers to READs and atomic operations of one queue pair, as the wire shows them.
#[derive(Debug)]
pub(crate) struct Owed {
    /// All before this was answered at least once; PSNs from it on that were.
    pub(crate) from: u64,
    pub(crate) replied: BTreeSet<u64>,
    /// READs up to here were answered to their end.
    pub(crate) answered: u64,
    /// Answers that the network lost, damaged or delayed, and may not have been made good.
    pub(crate) hit: Vec<Hit>,
    /// The request that the requester knows to be refused, and since when.
    pub(crate) refused: Option<(u64, u64)>,
    /// For answers that a refusal has overtaken its requester waits at least so long, in
    /// nanoseconds.
    pub(crate) patience: u64,
}

/// Network fault at the answer with this PSN.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hit {
    pub(crate) psn: u64,
    /// When it arrives; `None` if it does not.
    pub(crate) arrives_at: Option<u64>,
}

impl Owed {
    pub(crate) fn from(start: u64) -> Self {
        Self { from: start, replied: BTreeSet::new(), answered: start, hit: Vec::new(), refused: None, patience: 0 }
    }
}
