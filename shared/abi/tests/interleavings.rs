//! Every interleaving of accesses of two processes to shared memory, tried by loom:
//! `RUSTFLAGS="--cfg loom" cargo test -p roced-abi --release` (`scripts/test --full` runs it).
#![cfg(loom)]

use loom::{sync::Arc, thread};
use roced_abi::{
    arm::{CompletionRequest, arm, fire},
    doorbell::{DoorbellBlock, NamedWords, announce_sleep, any_doorbell, drain_doorbells, must_wake, ring_doorbell},
    ring::{Consumer, Producer, RingMemory, RingShape},
    sync::{AtomicU32, AtomicU64, Ordering},
};

/// A ring in loom's memory.
#[derive(Clone)]
struct LoomRing(Arc<(AtomicU32, AtomicU32, Vec<AtomicU64>)>);

/// Two slots of two words: enough to wrap, and to tear.
const SHAPE: RingShape = RingShape::new(2, 16);

impl LoomRing {
    fn ends() -> (Producer<Self>, Consumer<Self>) {
        let words = (0..4).map(|_| AtomicU64::new(0)).collect();
        let ring = Self(Arc::new((AtomicU32::new(0), AtomicU32::new(0), words)));
        (Producer::new(ring.clone()), Consumer::new(ring))
    }
}

impl RingMemory for LoomRing {
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
fn a_ring_hands_over_whole_entries_in_order() {
    const ENTRIES: u64 = 3;
    loom::model(|| {
        let (mut producer, mut consumer) = LoomRing::ends();
        let produce = thread::spawn(move || {
            for number in 1..=ENTRIES {
                while !producer.push(&[number, !number]).expect("an honest consumer") {
                    thread::yield_now();
                }
                producer.publish();
            }
        });
        let mut expected = 1;
        while expected <= ENTRIES {
            let mut entry = [0; 2];
            if consumer.pop(&mut entry).expect("an honest producer") {
                assert_eq!(entry, [expected, !expected]);
                consumer.release();
                expected += 1;
            } else {
                thread::yield_now();
            }
        }
        produce.join().expect("the producer ended well");
    });
}

/// A doorbell block of which the first word is used.
struct LoomDoorbells {
    summary: AtomicU64,
    words: Vec<AtomicU64>,
}

impl LoomDoorbells {
    fn new() -> Self {
        Self { summary: AtomicU64::new(0), words: vec![AtomicU64::new(0), AtomicU64::new(0)] }
    }
}

impl DoorbellBlock for LoomDoorbells {
    fn summary(&self) -> &AtomicU64 {
        &self.summary
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        &self.words[index]
    }
}

#[test]
fn a_worker_that_goes_to_sleep_sees_the_doorbell_or_is_woken() {
    loom::model(|| {
        let shared = Arc::new((LoomDoorbells::new(), AtomicU32::new(0)));
        let client = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                ring_doorbell(&shared.0, 3);
                must_wake(&shared.1)
            })
        };
        announce_sleep(&shared.1);
        let stays_awake = any_doorbell(&shared.0, NamedWords::default());
        let is_woken = client.join().expect("the client ended well");
        assert!(stays_awake || is_woken, "asleep with a doorbell rung and no one to wake it");
    });
}

#[test]
fn no_doorbell_is_lost_while_others_are_drained() {
    loom::model(|| {
        let shared = Arc::new((LoomDoorbells::new(), AtomicU64::new(0)));
        let client = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                for (doorbell, work) in [(3, 1), (70, 2)] {
                    shared.1.fetch_add(work, Ordering::Relaxed);
                    ring_doorbell(&shared.0, doorbell);
                }
            })
        };
        let (mut rung, mut named) = (Vec::new(), NamedWords::default());
        // One word: that of the other doorbell may remain named.
        drain_doorbells(&shared.0, &mut named, 1, |doorbell| {
            // Entries published before the doorbell are visible after it.
            let seen = shared.1.load(Ordering::Relaxed);
            assert!(
                seen >= if doorbell == 3 { 1 } else { 3 },
                "doorbell {doorbell}, but its work is not there: {seen}"
            );
            rung.push(doorbell);
        });
        client.join().expect("the client ended well");
        while any_doorbell(&shared.0, named) {
            drain_doorbells(&shared.0, &mut named, 1, |doorbell| rung.push(doorbell));
        }
        rung.sort_unstable();
        rung.dedup();
        assert_eq!(rung, [3, 70]);
    });
}

#[test]
fn a_client_that_arms_sees_the_completion_or_is_told_and_told_once() {
    loom::model(|| {
        // The arm word, and the published indices of two workers' CQ rings.
        let shared = Arc::new((AtomicU32::new(0), [AtomicU32::new(0), AtomicU32::new(0)]));
        let workers = [0, 1].map(|cq_ring| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                shared.1[cq_ring].store(1, Ordering::Release);
                fire(&shared.0, false)
            })
        });
        arm(&shared.0, CompletionRequest::Any);
        let seen = shared.1.iter().any(|cq_ring| cq_ring.load(Ordering::Acquire) == 1);
        let events: Vec<_> = workers.into_iter().filter_map(|worker| worker.join().expect("ended well")).collect();
        assert!(seen || !events.is_empty(), "a client that waits for ever");
        assert!(events.len() <= 1, "one request, {} events", events.len());
    });
}
