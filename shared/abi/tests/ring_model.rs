//! Rings against a plain queue, and against arbitrary writes of the other side, in any order of
//! steps.
#![cfg(not(loom))]

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
};

use proptest::prelude::*;
use roced_abi::ring::{Consumer, Producer, RingCorrupt, RingMemory, RingShape};

/// A ring in plain memory.
#[derive(Debug)]
struct Ring {
    shape: RingShape,
    produced: AtomicU32,
    consumed: AtomicU32,
    words: Vec<AtomicU64>,
}

#[derive(Clone, Debug)]
struct Shared(Arc<Ring>);

impl Shared {
    fn new(shape: RingShape) -> Self {
        let words = (0..shape.entries() as usize * shape.stride_words()).map(|_| AtomicU64::new(0)).collect();
        Self(Arc::new(Ring { shape, produced: AtomicU32::new(0), consumed: AtomicU32::new(0), words }))
    }
}

impl RingMemory for Shared {
    fn shape(&self) -> RingShape {
        self.0.shape
    }

    fn produced(&self) -> &AtomicU32 {
        &self.0.produced
    }

    fn consumed(&self) -> &AtomicU32 {
        &self.0.consumed
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        &self.0.words[index]
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Push(u64),
    Publish,
    Pop,
    Release,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => any::<u64>().prop_map(Step::Push),
        2 => Just(Step::Publish),
        4 => Just(Step::Pop),
        2 => Just(Step::Release),
    ]
}

/// Action of a hostile other side between two honest steps.
#[derive(Clone, Copy, Debug)]
enum Lie {
    Produced(u32),
    Consumed(u32),
    Word(usize, u64),
}

fn lie() -> impl Strategy<Value = Lie> {
    let index = prop_oneof![any::<u32>(), 0u32..40, (u32::MAX - 40)..=u32::MAX];
    prop_oneof![
        index.clone().prop_map(Lie::Produced),
        index.prop_map(Lie::Consumed),
        (any::<usize>(), any::<u64>()).prop_map(|(at, value)| Lie::Word(at, value)),
    ]
}

proptest! {
    /// Two queues as a model: entries pushed and not published, entries published and not popped;
    /// slots popped and not released are not free.
    #[test]
    fn a_ring_is_a_queue(log_entries in 0u32..5, stride_words in 1u32..4, steps in proptest::collection::vec(step(), 1..300)) {
        let shape = RingShape::new(1 << log_entries, stride_words * 8);
        let memory = Shared::new(shape);
        let (mut producer, mut consumer) = (Producer::new(memory.clone()), Consumer::new(memory));
        let (mut hidden, mut visible, mut unreleased) = (VecDeque::new(), VecDeque::new(), 0);
        for step in steps {
            match step {
                Step::Push(value) => {
                    let full = hidden.len() + visible.len() + unreleased == shape.entries() as usize;
                    prop_assert_eq!(producer.push(&vec![value; shape.stride_words()]), Ok(!full));
                    if !full {
                        hidden.push_back(value);
                    }
                }
                Step::Publish => {
                    producer.publish();
                    visible.append(&mut hidden);
                }
                Step::Pop => {
                    let mut words = vec![0; shape.stride_words()];
                    let expected = visible.pop_front();
                    prop_assert_eq!(consumer.pop(&mut words), Ok(expected.is_some()));
                    if let Some(value) = expected {
                        prop_assert!(words.iter().all(|word| *word == value));
                        unreleased += 1;
                    }
                }
                Step::Release => {
                    consumer.release();
                    unreleased = 0;
                }
            }
            prop_assert_eq!(consumer.available(), Ok(visible.len() as u32));
            let used = hidden.len() + visible.len() + unreleased;
            prop_assert_eq!(producer.room(), Ok(shape.entries() - used as u32));
        }
    }

    /// For any writes of the other side: no access leaves the ring (the vector would panic), an
    /// impossible index is an error, and a possible one never yields more than a ring full of
    /// entries.
    #[test]
    fn an_arbitrary_other_side_gets_errors_and_wrong_numbers(
        log_entries in 0u32..5,
        steps in proptest::collection::vec((step(), proptest::option::of(lie())), 1..300),
    ) {
        let shape = RingShape::new(1 << log_entries, 8);
        let memory = Shared::new(shape);
        let (mut producer, mut consumer) = (Producer::new(memory.clone()), Consumer::new(memory.clone()));
        for (step, lie) in steps {
            match step {
                Step::Push(value) => drop(producer.push(&[value])),
                Step::Publish => producer.publish(),
                Step::Pop => drop(consumer.pop(&mut [0])),
                Step::Release => consumer.release(),
            }
            match lie {
                Some(Lie::Produced(index)) => memory.produced().store(index, Ordering::Relaxed),
                Some(Lie::Consumed(index)) => memory.consumed().store(index, Ordering::Relaxed),
                Some(Lie::Word(at, value)) => memory.word(at % shape.entries() as usize).store(value, Ordering::Relaxed),
                None => {}
            }
            prop_assert!(producer.room().is_ok_and(|room| room <= shape.entries()) || producer.room() == Err(RingCorrupt));
            prop_assert!(consumer.available().is_ok_and(|filled| filled <= shape.entries()) || consumer.available() == Err(RingCorrupt));
        }
    }
}
