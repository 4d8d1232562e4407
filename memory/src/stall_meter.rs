//! Time that a worker waits for pages of mapped memory, by session.
//!
//! Usually an access to memory of a client records its session with one store
//! (`access_log.rs`), and the worker reads its clock once a poll iteration. A poll iteration that
//! takes long, and in which the thread was blocked and had a page fault, shows that memory of a
//! session stalls the worker, but not of which. The worker then measures for a hundred times as
//! long: each access reads the clock, and a long time to the next one is the stall of the session
//! of that memory, if the thread was blocked and had a page fault meanwhile. A thread without a
//! core is not blocked. So a stall that is not attributed is at most a hundredth of the time.
//!
//! ```text
//!   usual ── long poll, blocked, page fault ──► measured: a clock read for each access
//!     ▲                                           │ each stall goes on with it
//!     └──── 100 times as long without a stall ────┘
//! ```

use std::{
    cell::Cell,
    sync::atomic::{AtomicU64, Ordering},
};

use nix::{
    sys::resource::{UsageWho, getrusage},
    time::ClockId,
};

use crate::clock::nanos_of;

/// A poll iteration takes longer only where something is amiss: usual ones take some ten to a
/// hundred microseconds.
const LONG_POLL_NS: u64 = 1_000_000;

/// Time between two accesses that is looked at while a worker measures. To be blocked and woken
/// takes some ten microseconds; a guess.
const LONG_ACCESS_NS: u64 = 100_000;

/// The worker measures for as many times as long as a stall was.
const MEASURED: u64 = 100;

/// The shortest and the longest time for that.
const MEASURED_MIN: u64 = 100_000_000;
const MEASURED_MAX: u64 = 60_000_000_000;

/// Different pairs of sessions with stalls in one poll iteration; stalls of others are charged when
/// they do it again.
const STALLS: usize = 16;

/// A stall: both sessions, or one twice, of the memory; nanoseconds.
type Stall = (u64, u64);

/// The meter of this thread. Only cells: the handler of SIGBUS writes here as well.
struct StallMeter {
    /// Record of the worker's last access, if this thread is a worker.
    place: Cell<Option<&'static AtomicU64>>,
    /// Begin of the poll iteration, 0 while there is none.
    begin: Cell<u64>,
    /// When the worker began to rest, 0 if it does not.
    rest: Cell<u64>,
    /// It measures until then; 0 if it does not.
    until: Cell<u64>,
    /// The last access, in this poll iteration.
    access: Cell<Stall>,
    usage: Cell<ThreadUsage>,
    /// Sessions and time of the last access without a page.
    lost: Cell<Stall>,
    stalls: [Cell<Stall>; STALLS],
    count: Cell<usize>,
}

/// Counts by the kernel of this thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ThreadUsage {
    faults: i64,
    /// How often it waited for something other than a core.
    blocks: i64,
}

impl ThreadUsage {
    fn now() -> Self {
        let usage = getrusage(UsageWho::RUSAGE_THREAD).expect("every Linux counts for threads");
        let faults = usage.minor_page_faults() + usage.major_page_faults();
        Self { faults, blocks: usage.voluntary_context_switches() }
    }
}

thread_local! {
    static METER: StallMeter = const {
        StallMeter {
            place: Cell::new(None),
            begin: Cell::new(0),
            rest: Cell::new(0),
            until: Cell::new(0),
            access: Cell::new((0, 0)),
            usage: Cell::new(ThreadUsage { faults: 0, blocks: 0 }),
            lost: Cell::new((0, 0)),
            stalls: [const { Cell::new((0, 0)) }; STALLS],
            count: Cell::new(0),
        }
    };
}

fn clock() -> u64 {
    nanos_of(ClockId::CLOCK_MONOTONIC)
}

impl StallMeter {
    const fn is_measuring(&self) -> bool {
        self.until.get() != 0
    }

    /// The time of the last access is over; the next begins.
    fn access(&self, sessions: u64, now: u64) {
        let (before, since) = self.access.replace((sessions, now));
        let time = now.saturating_sub(since);
        if time >= LONG_ACCESS_NS && self.was_blocked(since) {
            self.go_on(now, time);
            if before != 0 {
                self.add(before, time);
            }
        }
    }

    /// Since the last call, by a page of memory.
    fn was_blocked(&self, since: u64) -> bool {
        let usage = ThreadUsage::now();
        let before = self.usage.replace(usage);
        let is_lost = self.lost.get().1 >= since && self.lost.get().1 != 0;
        usage.blocks > before.blocks && (usage.faults > before.faults || is_lost)
    }

    /// Earlier faults are not those of a sleep, and a sleep is no block of the polls behind it. The
    /// first accesses to the memory of a new client have faults, and most sleeps are long: together
    /// they would have the worker measure whenever a client begins.
    fn count_anew(&self) {
        if !self.is_measuring() {
            self.usage.set(ThreadUsage::now());
        }
    }

    /// Measures for a while.
    fn go_on(&self, now: u64, time: u64) {
        let until = now + (MEASURED * time).clamp(MEASURED_MIN, MEASURED_MAX);
        self.until.set(self.until.get().max(until));
    }

    fn add(&self, sessions: u64, time: u64) {
        let count = self.count.get();
        let stalls = &self.stalls[..count];
        if let Some(known) = stalls.iter().find(|known| known.get().0 == sessions) {
            known.set((sessions, known.get().1 + time));
        } else if count < STALLS {
            self.stalls[count].set((sessions, time));
            self.count.set(count + 1);
        }
    }

    /// A poll iteration that was not measured is over, or the sleep after one.
    fn look_back(&self, since: u64, now: u64, is_poll: bool) {
        let time = now.saturating_sub(since);
        if since == 0 || time < LONG_POLL_NS || !self.was_blocked(since) {
            return;
        }
        let (sessions, at) = self.lost.get();
        if is_poll && at >= since && sessions != 0 {
            self.add(sessions, time);
        }
        // A sleep may be long without a stall.
        self.go_on(now, if is_poll { time } else { 0 });
    }
}

/// This thread is a worker's, with that record of its last access.
pub(crate) fn begin(place: &'static AtomicU64) {
    METER.with(|meter| meter.place.set(Some(place)));
}

/// An access of a thread that measures, or is no worker.
#[cold]
pub(crate) fn on_access(sessions: u64) {
    METER.with(|meter| {
        if let Some(place) = meter.place.get() {
            place.store(sessions, Ordering::Relaxed);
            meter.access(sessions, clock());
        }
    });
}

/// An access of this thread has met no page, and does not wait for one. For a handler of signals.
pub(crate) fn on_loss() {
    METER.with(|meter| {
        if let Some(place) = meter.place.get() {
            meter.lost.set((place.load(Ordering::Relaxed), clock()));
        }
    });
}

/// A poll iteration of this worker begins. True if it measures.
pub(crate) fn on_poll(now: u64) -> bool {
    METER.with(|meter| {
        let rest = meter.rest.replace(0);
        let begin = meter.begin.replace(now);
        if meter.is_measuring() {
            meter.access(0, now);
            if now >= meter.until.get() {
                meter.until.set(0);
            } else {
                meter.usage.set(ThreadUsage::now());
                meter.access.set((0, now));
            }
        } else if rest != 0 {
            meter.look_back(rest, now, false);
            meter.count_anew();
        } else {
            meter.look_back(begin, now, true);
        }
        meter.is_measuring()
    })
}

/// The worker does something other than access memory.
pub(crate) fn on_pause() {
    METER.with(|meter| {
        if meter.is_measuring() {
            meter.access(0, clock());
        }
    });
}

/// A poll iteration is over, and the worker rests. True if it measures.
pub(crate) fn on_rest(now: u64) -> bool {
    METER.with(|meter| {
        if meter.is_measuring() {
            meter.access(0, now);
        } else {
            meter.look_back(meter.begin.get(), now, true);
            meter.count_anew();
        }
        meter.begin.set(0);
        meter.rest.set(now);
        meter.is_measuring()
    })
}

/// The next stall that was found.
pub(crate) fn take_stall() -> Option<Stall> {
    METER.with(|meter| {
        let last = meter.count.get().checked_sub(1)?;
        meter.count.set(last);
        Some(meter.stalls[last].get())
    })
}

#[cfg(test)]
mod tests {
    use std::{thread, time::Duration};

    use super::*;

    /// Touches new memory: the heap keeps no block of this size.
    fn fault() {
        let mut new = vec![0_u8; 40 << 20];
        new[1 << 20] = 1;
        std::hint::black_box(new);
    }

    fn sleep() {
        thread::sleep(Duration::from_nanos(2 * LONG_POLL_NS));
    }

    /// Whether a worker measures behind a poll iteration, and behind the sleep after it.
    fn measures(in_poll: fn(), in_sleep: fn()) -> [bool; 2] {
        static PLACE: AtomicU64 = AtomicU64::new(0);
        let worker = move || {
            begin(&PLACE);
            let _first = on_poll(clock());
            in_poll();
            let in_poll = on_rest(clock());
            in_sleep();
            [in_poll, on_poll(clock())]
        };
        thread::spawn(worker).join().expect("no panic")
    }

    #[test]
    fn a_worker_measures_after_a_fault_and_a_block_in_one_poll_or_sleep() {
        assert_eq!(measures(|| (), sleep), [false, false]);
        assert_eq!(measures(fault, sleep), [false, false], "first accesses to memory, and a sleep");
        let both = || {
            fault();
            sleep();
        };
        assert_eq!(measures(|| (), both), [false, true]);
        assert!(measures(both, || ())[0]);
    }

    #[test]
    fn a_sleep_is_no_block_of_the_polls_behind_it() {
        static PLACE: AtomicU64 = AtomicU64::new(0);
        let worker = || {
            begin(&PLACE);
            let now = on_poll(clock());
            let rest = on_rest(clock());
            sleep();
            let woken = on_poll(clock());
            fault();
            // A long iteration of a thread that was never blocked.
            let late = on_poll(clock() + 2 * LONG_POLL_NS);
            [now, rest, woken, late]
        };
        assert_eq!(thread::spawn(worker).join().expect("no panic"), [false; 4]);
    }
}
