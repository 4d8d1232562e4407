//! Answers that queue pairs owed when they were removed or reset: sent before anything else as soon
//! as the wire has room.
//!
//! An executed message must be acknowledged, even if its queue pair is removed before a full TX
//! ring has drained: without the ACK its sender retries until it gives up, and reports an executed
//! message as failed.

use alloc::collections::VecDeque;

use super::{Endpoint, transmission::Transmitted};
use crate::{
    counters::QpCount,
    io::{EmitError, Wire},
    qp::Qp,
    wire::{headers::Headers, path::Path},
};

/// Maximum number of answers kept. A guess: more queue pairs than are removed while one TX ring
/// drains; 16 KiB.
const FINAL_ANSWERS_MAX: usize = 64;

/// Number of kept answers at which a repetition finds no room. Repetitions come at the pace of the
/// peers, and again; an owed answer is sent once.
const REPEATED_MAX: usize = FINAL_ANSWERS_MAX / 2;

/// Final answers of queue pairs, ready to be sent.
#[derive(Debug)]
pub(super) struct FinalAnswers {
    waiting: VecDeque<(Path, Headers)>,
}

impl FinalAnswers {
    /// Creates an empty list with room for [`FINAL_ANSWERS_MAX`].
    pub(super) fn new() -> Self {
        Self { waiting: VecDeque::with_capacity(FINAL_ANSWERS_MAX) }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Keeps the answers that a queue pair about to be removed owes its peer; returns the number
    /// without room.
    pub(super) fn keep(&mut self, qp: &Qp) -> u64 {
        let mut lost = 0;
        qp.final_answers(|path, headers| {
            if self.waiting.len() < FINAL_ANSWERS_MAX {
                self.waiting.push_back((path, headers));
            } else {
                lost += 1;
            }
        });
        lost
    }

    /// Keeps the answer of a queue pair that was removed before; returns false without room. The
    /// newest serves for repetitions that follow each other.
    pub(super) fn repeat(&mut self, path: &Path, headers: &Headers) -> bool {
        let is_same = |waiting: &(Path, Headers)| (&waiting.0, &waiting.1) == (path, headers);
        if self.waiting.back().is_some_and(is_same) {
            return true;
        }
        let has_room = self.waiting.len() < REPEATED_MAX;
        if has_room {
            self.waiting.push_back((*path, *headers));
        }
        has_room
    }

    /// Discards all but the first `count`: the queue pair that they were kept for is not removed.
    pub(super) fn truncate(&mut self, count: usize) {
        self.waiting.truncate(count);
    }
}

impl Endpoint {
    /// Sends the answers of removed queue pairs, each once, at most `budget`. An answer without
    /// room does not delay the next, which may leave by another queue.
    pub(super) fn transmit_final_answers(&mut self, budget: usize, wire: &mut impl Wire) -> Transmitted {
        let mut sent = Transmitted::default();
        for _ in 0..self.final_answers.waiting.len() {
            if sent.visits == budget {
                break;
            }
            let Some((path, headers)) = self.final_answers.waiting.pop_front() else { break };
            let bytes = path.frame_bytes(&headers, 0);
            match wire.emit(path.via(), bytes, |frame| path.fill(frame, &headers, 0, |_| Ok(()))) {
                Err(EmitError::Full) => self.final_answers.waiting.push_back((path, headers)),
                // Without payload nothing can be aborted.
                Ok(()) | Err(EmitError::Aborted) => {
                    self.totals.add(QpCount::ResponsePackets, 1);
                    sent += Transmitted { visits: 1, acks: 1 };
                }
            }
        }
        sent
    }
}
