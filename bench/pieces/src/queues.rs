//! Rings between processes, and timers.

use std::{
    hint::black_box,
    sync::atomic::{AtomicU32, AtomicU64},
};

use roced_abi::ring::{Consumer, Producer, RingMemory, RingShape};
use roced_transport::{clock::Nanos, timers::Timers};

use crate::TIMES;

/// Every piece once.
pub(crate) fn run() {
    let shape = RingShape::new(256, 64);
    let words = (0..256 * shape.stride_words()).map(|_| AtomicU64::new(0)).collect();
    let memory = QueueMemory { shape, produced: AtomicU32::new(0), consumed: AtomicU32::new(0), words };
    piece_ring_push_and_pop(&mut Producer::new(&memory), &mut Consumer::new(&memory));
    let mut timers = Timers::new(TIMES);
    (0..TIMES).for_each(|index| timers.add(index));
    piece_timer_armed(&mut timers);
    piece_timer_moved_later(&mut timers);
    piece_timer_fired(&mut timers);
}

/// A ring's memory, without a mapping.
struct QueueMemory {
    shape: RingShape,
    produced: AtomicU32,
    consumed: AtomicU32,
    words: Box<[AtomicU64]>,
}

impl RingMemory for &QueueMemory {
    fn shape(&self) -> RingShape {
        self.shape
    }

    fn produced(&self) -> &AtomicU32 {
        &self.produced
    }

    fn consumed(&self) -> &AtomicU32 {
        &self.consumed
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        &self.words[index]
    }
}

/// An entry of 64 bytes at a time, each published and given back.
#[inline(never)]
fn piece_ring_push_and_pop(producer: &mut Producer<&QueueMemory>, consumer: &mut Consumer<&QueueMemory>) {
    let (entry, mut out) = ([7; 8], [0; 8]);
    for _ in 0..TIMES {
        assert_eq!(producer.push(black_box(&entry)), Ok(true));
        producer.publish();
        assert_eq!(consumer.pop(&mut out), Ok(true));
        consumer.release();
    }
}

/// Deadlines all over a second.
fn deadline(index: u32) -> Nanos {
    Nanos(u64::from(index.wrapping_mul(0x9e37_79b1) % 1_000_000) * 1000)
}

#[inline(never)]
fn piece_timer_armed(timers: &mut Timers) {
    for index in 0..TIMES {
        timers.ensure(index, black_box(deadline(index)));
    }
}

/// The timer change of every ACK.
#[inline(never)]
fn piece_timer_moved_later(timers: &mut Timers) {
    for index in 0..TIMES {
        timers.ensure(index, black_box(deadline(index) + Nanos::from_millis(1)));
    }
}

#[inline(never)]
fn piece_timer_fired(timers: &mut Timers) {
    let mut fired = 0;
    while timers.poll(black_box(Nanos::from_millis(2000))).is_some() {
        fired += 1;
    }
    assert_eq!(fired, TIMES);
}
