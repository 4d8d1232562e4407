//! Rings with a lying index of the other side: detected at once, without access outside the ring.
#![cfg(not(loom))]

use std::{cell::Cell, rc::Rc, sync::Arc};

use roced_abi::{
    ring::{Consumer, Producer, RingCorrupt, RingMemory, RingShape},
    sync::{AtomicU32, AtomicU64, Ordering},
};

const SHAPE: RingShape = RingShape::new(4, 16);

#[derive(Clone)]
struct PlainRing(Arc<(AtomicU32, AtomicU32, Vec<AtomicU64>)>);

impl PlainRing {
    fn new() -> Self {
        let words = (0..SHAPE.entries() as usize * SHAPE.stride_words()).map(|_| AtomicU64::new(0)).collect();
        Self(Arc::new((AtomicU32::new(0), AtomicU32::new(0), words)))
    }
}

impl RingMemory for PlainRing {
    fn shape(&self) -> RingShape {
        SHAPE
    }

    fn produced(&self) -> &AtomicU32 {
        &self.0.0
    }

    fn consumed(&self) -> &AtomicU32 {
        &self.0.1
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        &self.0.2[index]
    }
}

#[test]
fn entries_come_out_as_they_went_in_round_after_round() {
    let ring = PlainRing::new();
    let (mut producer, mut consumer) = (Producer::new(ring.clone()), Consumer::new(ring));
    let (mut pushed, mut popped) = (0_u64, 0_u64);
    for burst in (1..=4).cycle().take(1000) {
        for _ in 0..burst {
            pushed += u64::from(producer.push(&[pushed, !pushed]).expect("honest"));
        }
        producer.publish();
        let mut entry = [0; 2];
        for _ in 0..burst.min(3) {
            if consumer.pop(&mut entry).expect("honest") {
                assert_eq!(entry, [popped, !popped]);
                popped += 1;
            }
        }
        consumer.release();
        assert!(pushed - popped <= u64::from(SHAPE.entries()));
    }
    assert!(popped > 1000);
}

#[test]
fn unpublished_entries_are_invisible_and_a_full_ring_refuses_more() {
    let ring = PlainRing::new();
    let (mut producer, mut consumer) = (Producer::new(ring.clone()), Consumer::new(ring));
    let mut entry = [0; 2];
    for number in 0..4 {
        assert_eq!(producer.push(&[number]), Ok(true));
        assert_eq!(consumer.pop(&mut entry), Ok(false));
    }
    assert_eq!(producer.push(&[4]), Ok(false));
    producer.publish();
    assert_eq!((consumer.available(), consumer.pop(&mut entry)), (Ok(4), Ok(true)));
    assert_eq!(producer.push(&[4]), Ok(false), "the slot is the consumer's until it is released");
    consumer.release();
    assert_eq!(producer.push(&[4]), Ok(true));
}

#[test]
fn an_index_of_the_producer_that_cannot_be_true_is_told() {
    // Honest state: two produced, one consumed.
    for lie in [0, 6, 100, u32::MAX, 1 << 31] {
        let ring = PlainRing::new();
        let mut consumer = Consumer::new(ring.clone());
        ring.produced().store(2, Ordering::Release);
        assert_eq!(consumer.pop(&mut [0; 2]), Ok(true));
        ring.produced().store(lie, Ordering::Release);
        assert_eq!(consumer.available(), Err(RingCorrupt), "{lie}");
    }
}

#[test]
fn an_index_of_the_consumer_that_cannot_be_true_is_told() {
    // Honest state: three produced, one consumed.
    for lie in [0, 4, 100, u32::MAX, 1 << 31] {
        let ring = PlainRing::new();
        let mut producer = Producer::new(ring.clone());
        for _ in 0..3 {
            assert_eq!(producer.push(&[0]), Ok(true));
        }
        ring.consumed().store(1, Ordering::Release);
        assert_eq!(producer.room(), Ok(2));
        ring.consumed().store(lie, Ordering::Release);
        assert_eq!(producer.room(), Err(RingCorrupt), "{lie}");
    }
}

/// A ring that changes each word of an entry between two reads of it.
struct ChangingRing(PlainRing, Rc<Cell<usize>>);

impl RingMemory for ChangingRing {
    fn shape(&self) -> RingShape {
        SHAPE
    }

    fn produced(&self) -> &AtomicU32 {
        self.0.produced()
    }

    fn consumed(&self) -> &AtomicU32 {
        self.0.consumed()
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        self.1.set(self.1.get() + 1);
        let word = self.0.word(index);
        word.fetch_add(1, Ordering::Relaxed);
        word
    }
}

/// A later change by the producer does not reach the copy, and no word is read twice.
#[test]
fn each_word_of_an_entry_is_read_once() {
    let (plain, reads) = (PlainRing::new(), Rc::new(Cell::new(0)));
    let mut producer = Producer::new(plain.clone());
    let mut consumer = Consumer::new(ChangingRing(plain.clone(), Rc::clone(&reads)));
    assert_eq!(producer.push(&[10, 20]), Ok(true));
    producer.publish();
    let mut entry = [0; 2];
    assert_eq!(consumer.pop(&mut entry), Ok(true));
    plain.word(0).store(99, Ordering::Relaxed);
    assert_eq!((entry, reads.get()), ([11, 21], SHAPE.stride_words()));
}
