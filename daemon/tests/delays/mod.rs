//! Delays of threads that write to memory all the time, and their causes.
//!
//! A clock shows that a few writes took long. The kernel reports the parts of this time in which
//! the thread waited for a core, ran, and slept; and the cores are watched for times in which the
//! host of a virtual machine has one of them. The shares of the program, the kernel and the host
//! are therefore told apart; and the same is measured while the same bytes are only copied, and
//! while nothing happens.

pub(crate) mod copy;
pub(crate) mod paused;

use std::{
    array,
    fs::File,
    ops::Range,
    os::unix::fs::FileExt,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
    time::Duration,
};

use nix::{
    sys::resource::{UsageWho, getrusage},
    time::{ClockId, clock_gettime},
};
use paused::Paused;

/// Activity while the threads write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doing {
    Nothing,
    Registering,
    Deregistering,
    Copying,
}

impl Doing {
    pub(crate) const ALL: [Self; 4] = [Self::Nothing, Self::Registering, Self::Deregistering, Self::Copying];
    const OVER: usize = Self::ALL.len();
}

/// The present activity.
#[derive(Debug, Default)]
pub(crate) struct Now(AtomicUsize);

impl Now {
    pub(crate) fn set(&self, doing: Doing) {
        self.0.store(doing as usize, Ordering::SeqCst);
    }

    pub(crate) fn end(&self) {
        self.0.store(Doing::OVER, Ordering::SeqCst);
    }

    fn get(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

/// Shorter is not counted.
const SHORTEST: Duration = Duration::from_micros(20);

/// Unacceptable duration of a delay.
pub(crate) const LIMIT: Duration = Duration::from_millis(5);

/// Cause of a delay other than waiting for a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// It slept: because of the exchange of pages, or for a lock.
    Others,
    /// It ran without progress: it was in the kernel, on behalf of any thread (interrupts and their
    /// consequences count as the thread's), or memory was slow.
    Kernel,
    /// It had its core, and did not run: the host had given the core away.
    Host,
}

impl By {
    pub(crate) const ALL: [Self; 3] = [Self::Others, Self::Kernel, Self::Host];
}

/// Delays, by cause.
#[derive(Clone, Debug, Default)]
pub(crate) struct Holds {
    pub(crate) times: u32,
    pub(crate) longest: Duration,
    /// Those over the limit: when, and for how long.
    over_limit: Vec<(Range<Duration>, Duration)>,
}

impl Holds {
    fn add(&mut self, time: &Range<Duration>, held: Duration) {
        self.times += 1;
        self.longest = self.longest.max(held);
        if held > LIMIT {
            self.over_limit.push((time.clone(), held));
        }
    }

    fn and(mut self, other: &Self) -> Self {
        self.times += other.times;
        self.longest = self.longest.max(other.longest);
        self.over_limit.extend_from_slice(&other.over_limit);
        self
    }

    /// How many are over the limit.
    pub(crate) fn over_limit(&self) -> usize {
        self.over_limit.len()
    }

    /// Of those over the limit the longest without the time in which a core stood still.
    pub(crate) fn longest_without(&self, paused: &Paused) -> Duration {
        let without = |(time, held): &(Range<Duration>, Duration)| {
            let moved = time.end - time.start - paused.part_of(time);
            moved.min(*held)
        };
        self.over_limit.iter().map(without).max().unwrap_or_default()
    }
}

/// Delays by activity and cause.
pub(crate) type Seen = [[Holds; By::ALL.len()]; Doing::ALL.len()];

/// The kernel's figures of this thread.
#[derive(Clone, Copy, Debug)]
struct Times {
    /// By `CLOCK_MONOTONIC`.
    at: Duration,
    ran: Duration,
    waited_for_core: Duration,
    sleeps: i64,
}

impl Times {
    /// Cause of the delay since `last`.
    fn held_by(&self, last: &Self, held: Duration) -> By {
        match self.ran - last.ran {
            _ if self.sleeps != last.sleeps => By::Others,
            ran if ran >= held / 2 => By::Kernel,
            _ => By::Host,
        }
    }
}

struct Clock {
    schedule: File,
}

impl Clock {
    /// All at one moment.
    fn now(&self) -> Times {
        loop {
            let begin = monotonic();
            let mut text = [0; 100];
            let length = self.schedule.read_at(&mut text, 0).expect("it can be read");
            let mut fields = std::str::from_utf8(&text[..length]).expect("numbers").split_whitespace();
            let waited_for_core = Duration::from_nanos(fields.nth(1).expect("three").parse().expect("a number"));
            let sleeps = getrusage(UsageWho::RUSAGE_THREAD).expect("it is told").voluntary_context_switches();
            let ran = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("it counts").into();
            let at = monotonic();
            // Otherwise an event came between, and the distribution over the numbers is unknown.
            if at - begin < MOMENT {
                return Times { at, ran, waited_for_core, sleeps };
            }
        }
    }
}

fn monotonic() -> Duration {
    clock_gettime(ClockId::CLOCK_MONOTONIC).expect("it goes").into()
}

/// Looking at the clocks takes a part of it.
const MOMENT: Duration = Duration::from_micros(15);

/// Writes made between two looks at the clock.
const WRITES: usize = 32;

/// Writes to a word of each page in turn during an activity; returns the delays of each.
pub(crate) fn write_all_over(words: &[AtomicU64], seed: usize, now: &Now) -> Seen {
    let clock = Clock { schedule: File::open("/proc/thread-self/schedstat").expect("the kernel counts") };
    let (mut seen, mut at, mut before, mut last) = (Seen::default(), seed * 64, now.get(), clock.now());
    while before < Doing::OVER {
        for _ in 0..WRITES {
            words[at % words.len()].fetch_add(1, Ordering::Relaxed);
            at += 512 * seed;
        }
        let (doing, times) = (now.get(), clock.now());
        let held = (times.at - last.at).saturating_sub(times.waited_for_core - last.waited_for_core);
        if held >= SHORTEST {
            let (by, time) = (times.held_by(&last, held), last.at..times.at);
            seen[before][by as usize].add(&time, held);
            if doing != before && doing < Doing::OVER {
                seen[doing][by as usize].add(&time, held);
            }
        }
        (before, last) = (doing, times);
    }
    seen
}

/// Of two threads.
pub(crate) fn both([one, other]: [Seen; 2]) -> Seen {
    array::from_fn(|doing| array::from_fn(|by| one[doing][by].clone().and(&other[doing][by])))
}
