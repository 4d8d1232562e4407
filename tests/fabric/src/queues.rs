//! Eight queues of frames in front of a link, and the order in which they leave it.

use std::collections::VecDeque;

use roced_transport::clock::Nanos;

use crate::frames::FrameId;

/// Number of classes.
pub(crate) const CLASSES: usize = 8;

/// Bytes that a class with a weight of one may send in its turn: a frame of path MTU 4096.
const QUANTUM_BYTES: u64 = 4300;

/// A frame in a queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    pub(crate) frame: FrameId,
    pub(crate) wire_bytes: u64,
    /// Port that it came in by.
    pub(crate) ingress: usize,
    pub(crate) class: u8,
}

/// Order of classes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClassOrder {
    /// Classes with a weight share the link by deficit round robin; those with 0 go ahead of them,
    /// the highest number first.
    pub(crate) weights: [u64; CLASSES],
}

/// Queues in front of one link.
#[derive(Debug)]
pub(crate) struct EgressQueues {
    order: ClassOrder,
    queues: [VecDeque<Waiting>; CLASSES],
    bytes: [u64; CLASSES],
    /// Bytes that a class may still send in its turn.
    deficits: [u64; CLASSES],
    turn: usize,
    /// The neighbor takes no frames of a class before this time.
    paused_until: [Nanos; CLASSES],
    /// A frame is being sent.
    pub(crate) is_sending: bool,
}

impl EgressQueues {
    pub(crate) fn new(order: ClassOrder) -> Self {
        Self {
            order,
            queues: Default::default(),
            bytes: [0; CLASSES],
            deficits: [0; CLASSES],
            turn: 0,
            paused_until: [Nanos(0); CLASSES],
            is_sending: false,
        }
    }

    pub(crate) fn push(&mut self, waiting: Waiting) {
        let class = usize::from(waiting.class);
        self.bytes[class] += waiting.wire_bytes;
        self.queues[class].push_back(waiting);
    }

    /// Bytes that wait in a class.
    pub(crate) const fn waiting_bytes(&self, class: u8) -> u64 {
        self.bytes[class as usize]
    }

    /// Bytes that wait in all classes.
    pub(crate) fn all_bytes(&self) -> u64 {
        self.bytes.iter().sum()
    }

    /// Frames that wait in all classes.
    pub(crate) fn frames(&self) -> usize {
        self.queues.iter().map(VecDeque::len).sum()
    }

    pub(crate) fn pause(&mut self, class: u8, until: Nanos) {
        self.paused_until[usize::from(class)] = until;
    }

    /// A class that has frames may send.
    fn is_ready(&self, class: usize, now: Nanos) -> bool {
        !self.queues[class].is_empty() && self.paused_until[class] <= now
    }

    /// A class has frames that may be sent.
    pub(crate) fn has_ready(&self, now: Nanos) -> bool {
        (0..CLASSES).any(|class| self.is_ready(class, now))
    }

    /// Takes the next frame out.
    pub(crate) fn pop(&mut self, now: Nanos) -> Option<Waiting> {
        let is_strict = |class: &usize| self.order.weights[*class] == 0;
        let strict = (0..CLASSES).rev().filter(is_strict).find(|class| self.is_ready(*class, now));
        let class = strict.or_else(|| self.next_by_weight(now))?;
        let waiting = self.queues[class].pop_front()?;
        self.bytes[class] -= waiting.wire_bytes;
        if strict.is_none() {
            self.deficits[class] -= waiting.wire_bytes;
            if self.queues[class].is_empty() {
                // Time without frames earns nothing.
                self.deficits[class] = 0;
            }
        }
        Some(waiting)
    }

    fn next_by_weight(&mut self, now: Nanos) -> Option<usize> {
        let weights = self.order.weights;
        if !(0..CLASSES).any(|class| weights[class] > 0 && self.is_ready(class, now)) {
            return None;
        }
        loop {
            let class = self.turn;
            if weights[class] > 0
                && self.is_ready(class, now)
                && let Some(first) = self.queues[class].front()
                && first.wire_bytes <= self.deficits[class]
            {
                return Some(class);
            }
            self.turn = (self.turn + 1) % CLASSES;
            if weights[self.turn] > 0 && self.is_ready(self.turn, now) {
                self.deficits[self.turn] += weights[self.turn] * QUANTUM_BYTES;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frames::Frames;

    fn full(queues: &mut EgressQueues, classes: &[u8], wire_bytes: u64) {
        let frame = Frames::default().add(Vec::new());
        for class in classes {
            (0..1000).for_each(|_| queues.push(Waiting { frame, wire_bytes, ingress: 0, class: *class }));
        }
    }

    fn shares(queues: &mut EgressQueues, frames: usize) -> [u64; CLASSES] {
        let mut bytes = [0; CLASSES];
        for waiting in (0..frames).map_while(|_| queues.pop(Nanos(1))) {
            bytes[usize::from(waiting.class)] += waiting.wire_bytes;
        }
        bytes
    }

    #[test]
    fn classes_with_weights_share_by_bytes() {
        let mut queues = EgressQueues::new(ClassOrder { weights: [7, 3, 0, 0, 0, 0, 0, 0] });
        full(&mut queues, &[0], 300);
        full(&mut queues, &[1], 4200);
        let shares = shares(&mut queues, 1000);
        let ratio = shares[0] as f64 / shares[1] as f64;
        assert!((2.2..2.5).contains(&ratio), "{ratio}");
    }

    #[test]
    fn a_strict_class_goes_first_and_a_paused_one_waits() {
        let mut queues = EgressQueues::new(ClassOrder { weights: [1, 1, 1, 1, 1, 1, 0, 0] });
        full(&mut queues, &[0, 6], 1000);
        assert_eq!(shares(&mut queues, 10)[6], 10_000);
        queues.pause(6, Nanos(5));
        assert_eq!(shares(&mut queues, 10), [10_000, 0, 0, 0, 0, 0, 0, 0]);
        queues.pause(0, Nanos(5));
        assert!(queues.pop(Nanos(4)).is_none());
        assert_eq!(queues.pop(Nanos(5)).map(|waiting| waiting.class), Some(6));
    }
}
