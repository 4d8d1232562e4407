//! Answers that queue pairs owed when they were removed or reset: sent before anything else as soon as the wire has room.
//!
//! A message that was executed is to be acknowledged, though the queue pair that executed it is gone before a full TX ring has drained: without the
//! ACK its sender retries until it gives up, and reports as failed what was done.

use alloc::collections::VecDeque;

use super::{Endpoint, Transmitted};
use crate::{
    counters::QpCount,
    io::{EmitError, Wire},
    reject::DropReason,
    wire::{headers::Headers, path::Path},
};

/// Answers kept. A guess: more queue pairs than go within the drain of one TX ring, and 16 KiB.
const FAREWELLS_MAX: usize = 64;

/// The last answers of queue pairs, ready to be sent.
#[derive(Debug)]
pub(super) struct Farewells {
    waiting: VecDeque<(Path, Headers)>,
}

impl Farewells {
    /// None, and room for [`FAREWELLS_MAX`].
    pub(super) fn new() -> Self {
        Self { waiting: VecDeque::with_capacity(FAREWELLS_MAX) }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

impl Endpoint {
    /// Keeps what the queue pair in a slot, which is about to go, owes its peer.
    pub(super) fn note_farewell(&mut self, slot: u32) {
        let farewell = self.qps.get(slot).and_then(|qp| qp.farewell());
        self.keep_farewell(farewell);
    }

    /// Keeps an answer of a queue pair that is gone, or counts it as lost when there are too many.
    pub(super) fn keep_farewell(&mut self, farewell: Option<(Path, Headers)>) {
        let Some(farewell) = farewell else { return };
        if self.farewells.waiting.len() < FAREWELLS_MAX {
            self.farewells.waiting.push_back(farewell);
        } else {
            self.drops.count(DropReason::FarewellLost);
        }
    }

    /// Sends what queue pairs that are gone owed, each once, at most `budget`. One that finds no room does not hold up the next, which may leave
    /// by another queue.
    pub(super) fn transmit_farewells(&mut self, budget: usize, wire: &mut impl Wire) -> Transmitted {
        let mut sent = Transmitted::default();
        for _ in 0..self.farewells.waiting.len() {
            if sent.visits == budget {
                break;
            }
            let Some((path, headers)) = self.farewells.waiting.pop_front() else { break };
            let bytes = path.frame_bytes(&headers, 0);
            match wire.emit(path.via(), bytes, |frame| path.fill(frame, &headers, 0, |_| Ok(()))) {
                Err(EmitError::Full) => self.farewells.waiting.push_back((path, headers)),
                // Nothing gives up where there is no payload.
                Ok(()) | Err(EmitError::Aborted) => {
                    self.totals.add(QpCount::ResponsePackets, 1);
                    sent += Transmitted { visits: 1, acks: 1 };
                }
            }
        }
        sent
    }
}
