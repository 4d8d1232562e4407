//! Events of a run, by time. Those of one time keep the order in which they were added, so that a
//! seed always gives the same run.

use std::{
    cmp::{Ordering, Reverse},
    collections::BinaryHeap,
};

use roced_transport::clock::Nanos;

use crate::{frames::FrameId, topology::PortId};

/// Something that happens at its time.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// The worker of a host has a turn.
    Turn(usize),
    /// A frame has left a port whole, which is free for the next one.
    Sent(PortId),
    /// A frame has arrived at a port whole.
    Arrival(PortId, FrameId),
    /// A port learns that it must not send a class until a time; one in the past ends a pause.
    Pause(PortId, u8, Nanos),
    /// A pause of a port's class may be over: it looks again.
    Resume(PortId),
    /// A switch says again that the neighbor of this port must not send a class.
    Refresh(PortId, u8),
    /// A flow begins.
    Begin(usize),
    /// A flow sends no more messages.
    End(usize),
    /// Queues and rates are written down.
    Sample,
}

#[derive(Debug)]
struct Due {
    time: Nanos,
    sequence: u64,
    event: Event,
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.time, self.sequence).cmp(&(other.time, other.sequence))
    }
}

/// Events to come.
#[derive(Debug, Default)]
pub(crate) struct Agenda {
    heap: BinaryHeap<Reverse<Due>>,
    sequence: u64,
}

impl Agenda {
    pub(crate) fn add(&mut self, time: Nanos, event: Event) {
        self.sequence += 1;
        self.heap.push(Reverse(Due { time, sequence: self.sequence, event }));
    }

    /// The next event, if it is not later than `end`.
    pub(crate) fn next(&mut self, end: Nanos) -> Option<(Nanos, Event)> {
        if self.heap.peek()?.0.time > end {
            return None;
        }
        self.heap.pop().map(|Reverse(due)| (due.time, due.event))
    }

    /// Number of events that were added so far.
    pub(crate) const fn added(&self) -> u64 {
        self.sequence
    }
}
