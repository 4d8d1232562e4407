//! Waking clients: which thread does it.
//!
//! A message to a client's end of a socket, and one taken from there, has the kernel walk all that
//! wait at that end, and a client can make this walk as long as it wants: each entry of an epoll
//! set is a step. So a thread of the client's user does it. A thread of the daemon does it itself
//! only while there is no reason to expect a long walk:
//!
//! - the last message of that socket, in the same direction, is no older than [`QUICK_TRUST_NS`]
//!   and was quick: a walk cannot have become much longer since;
//! - and no walk of the same user was slow lately: for [`PENALTY_FACTOR`] times as long as each
//!   took, for a minute at least after a long one, threads of the user do all of it. The penalty is
//!   the user's, and outlives its sessions.
//!
//! A thread that has no core for a while has not walked, so that only the time counts that it
//! computed. But that clock costs more than the message: it is a system call that takes the
//! scheduler's lock, and showed in the round trips of honest clients. So a thread of the daemon
//! looks how much time has passed, for nothing. More than [`SLOW_MESSAGE_NS`] is a doubt: the
//! user's thread sends the next message, and measures it by the other clock. A user with doubts for
//! more than one part in [`DOUBT_FACTOR`] of the time has all messages measured so: one that makes
//! some walks long and others short has no more than that.
#![expect(unsafe_code, reason = "waits for a word of memory")]

use std::{
    collections::VecDeque,
    fmt, ptr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use nix::time::ClockId;

use crate::{
    clock::nanos_of,
    thread_start::{self, HelperThread, MissingThreads},
};

/// How long a quick message lets the next one be expected to be quick, ns. Within it a program adds
/// some ten thousand entries to an epoll set.
const QUICK_TRUST_NS: u64 = 100_000_000;

/// More than any message takes that wakes a few threads, ns.
const SLOW_MESSAGE_NS: u64 = 50_000;

/// A slow message has others of its user sent by its thread for so many times as long.
const PENALTY_FACTOR: u64 = 1000;

/// One that took so long is not explained by an interrupt, ns.
const LONG_MESSAGE_NS: u64 = 5_000_000;

/// The penalty for that, ns at least.
const LONG_PENALTY_MIN_NS: u64 = 60_000_000_000;

/// Doubts count for so many times as long.
const DOUBT_FACTOR: u64 = 100;

/// The sum of them, less the time since, that does not matter yet, ns: 10 ms of doubts.
const DOUBTS_ALLOWED_NS: u64 = 1_000_000_000;

/// How long a thread waits for more before it looks whether it is needed.
const IDLE: Duration = Duration::from_secs(2);

/// States of the bell: the thread is at work, has been rung for, or waits.
const AT_WORK: u32 = 0;
const RUNG: u32 = 1;
const WAITS: u32 = 2;

/// A channel in which workers leave events to the thread.
pub(crate) trait OwesEvents: Send + Sync {
    /// Sends all that it owes.
    fn send_owed(&self);
}

/// Something to do that wakes a client, or may.
type Job = Box<dyn FnOnce() + Send>;

/// The thread of one user that wakes its programs, and the knowledge of their wait queues.
#[derive(Debug, Default)]
pub(crate) struct Waking {
    state: Mutex<WakingState>,
    bell: AtomicU32,
    /// A completion channel owes events.
    owes: AtomicBool,
    /// Until then everything is left to the thread, ns of the monotonic clock.
    distrusted_until: AtomicU64,
    /// Until then its doubts count, ns of the monotonic clock.
    doubts: AtomicU64,
    /// Slow messages so far, in any thread.
    slow: AtomicU64,
    missing: Arc<MissingThreads>,
}

#[derive(Default)]
struct WakingState {
    jobs: VecDeque<Job>,
    channels: Vec<Weak<dyn OwesEvents>>,
    has_thread: bool,
}

impl fmt::Debug for WakingState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WakingState").field("jobs", &self.jobs.len()).field("channels", &self.channels.len()).finish()
    }
}

/// Until when messages of one socket in one direction are expected to be quick, ns of the monotonic
/// clock.
#[derive(Debug, Default)]
pub(crate) struct WakeTrust(AtomicU64);

impl WakeTrust {
    /// Of a socket of which its client has no descriptor yet.
    pub(crate) fn of_new() -> Self {
        Self(AtomicU64::new(now() + QUICK_TRUST_NS))
    }
}

fn now() -> u64 {
    nanos_of(ClockId::CLOCK_MONOTONIC)
}

/// Measures the time that this thread computes. That clock is not read at the end where the time
/// that has passed, which is no shorter, is not long.
struct Stopwatch {
    passed: u64,
    computed: u64,
}

impl Stopwatch {
    fn start() -> Self {
        let computed = nanos_of(ClockId::CLOCK_THREAD_CPUTIME_ID);
        Self { passed: now(), computed }
    }

    /// The time now, and how long it computed, at most.
    fn stop(self) -> (u64, u64) {
        let now = now();
        let passed = now.saturating_sub(self.passed);
        let took = if passed < SLOW_MESSAGE_NS {
            passed
        } else {
            nanos_of(ClockId::CLOCK_THREAD_CPUTIME_ID).saturating_sub(self.computed)
        };
        (now, took)
    }
}

impl Waking {
    /// Of a user; `missing` is told if its thread cannot be begun.
    pub(crate) fn new(missing: &Arc<MissingThreads>) -> Self {
        Self { missing: Arc::clone(missing), ..Self::default() }
    }

    /// Sends or takes a message here, if that can be expected to be quick. `act` returns its
    /// result, and whether there was a message.
    pub(crate) fn here<T>(&self, trust: &WakeTrust, act: impl FnOnce() -> (T, bool)) -> Option<T> {
        let begin = now();
        if begin >= trust.0.load(Ordering::Relaxed) || begin < self.distrusted_until.load(Ordering::Relaxed) {
            return None;
        }
        if self.doubts.load(Ordering::Relaxed) > begin + DOUBTS_ALLOWED_NS {
            return Some(self.measured(trust, act));
        }
        let (result, was_message) = act();
        let end = now();
        let passed = end.saturating_sub(begin);
        if passed >= SLOW_MESSAGE_NS {
            trust.0.store(0, Ordering::Relaxed);
            let doubts = self.doubts.load(Ordering::Relaxed).max(end);
            self.doubts.fetch_max(doubts.saturating_add(DOUBT_FACTOR.saturating_mul(passed)), Ordering::Relaxed);
        } else if was_message {
            trust.0.store(end + QUICK_TRUST_NS, Ordering::Relaxed);
        }
        Some(result)
    }

    /// Sends or takes a message, in whichever thread this is, and remembers how long that took.
    pub(crate) fn measured<T>(&self, trust: &WakeTrust, act: impl FnOnce() -> (T, bool)) -> T {
        let stopwatch = Stopwatch::start();
        let (result, was_message) = act();
        let (now, took) = stopwatch.stop();
        if took >= SLOW_MESSAGE_NS {
            trust.0.store(0, Ordering::Relaxed);
            let penalty =
                PENALTY_FACTOR.saturating_mul(took).max(if took >= LONG_MESSAGE_NS { LONG_PENALTY_MIN_NS } else { 0 });
            self.distrusted_until.fetch_max(now.saturating_add(penalty), Ordering::Relaxed);
            self.slow.fetch_add(1, Ordering::Relaxed);
        } else if was_message {
            trust.0.store(now + QUICK_TRUST_NS, Ordering::Relaxed);
        }
        result
    }

    /// The penalty is not over.
    pub(crate) fn is_distrusted(&self) -> bool {
        now() < self.distrusted_until.load(Ordering::Relaxed)
    }

    /// Slow messages so far.
    pub(crate) fn slow(&self) -> u64 {
        self.slow.load(Ordering::Relaxed)
    }

    /// Has the thread do something, after others. Not for workers.
    pub(crate) fn add(self: &Arc<Self>, job: impl FnOnce() + Send + 'static) {
        let mut state = self.state();
        state.jobs.push_back(Box::new(job));
        self.begin(state);
        self.ring();
    }

    /// The thread sends the events that this channel owes after [`Self::owe`]. Not for workers.
    pub(crate) fn watch(self: &Arc<Self>, channel: Weak<dyn OwesEvents>) {
        let mut state = self.state();
        if state.channels.len() == state.channels.capacity() {
            state.channels.retain(|channel| channel.strong_count() > 0);
        }
        state.channels.push(channel);
        self.begin(state);
    }

    /// A channel owes events: one system call at most, and no lock.
    pub(crate) fn owe(&self) {
        self.owes.store(true, Ordering::Release);
        self.ring();
    }

    fn state(&self) -> MutexGuard<'_, WakingState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ring(&self) {
        if self.bell.swap(RUNG, Ordering::AcqRel) == WAITS {
            // SAFETY: the word lives through the call, which only compares its address.
            let _ = unsafe {
                libc::syscall(libc::SYS_futex, self.bell.as_ptr(), libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, 1)
            };
        }
    }

    /// Waits for the bell; false if it did not ring.
    fn wait(&self) -> bool {
        if self.bell.compare_exchange(AT_WORK, WAITS, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            let patience = libc::timespec { tv_sec: IDLE.as_secs().cast_signed(), tv_nsec: 0 };
            // SAFETY: the word and the time live through the call, which reads both. A signal or a
            // change of the word ends it early, which is as good as the bell.
            let _ = unsafe {
                libc::syscall(
                    libc::SYS_futex,
                    self.bell.as_ptr(),
                    libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
                    WAITS,
                    &raw const patience,
                    ptr::null::<u32>(),
                )
            };
        }
        self.bell.swap(AT_WORK, Ordering::AcqRel) == RUNG
    }

    /// Begins the thread if there is none. Where the kernel refuses it, or has just refused
    /// another, [`Self::begin_missing`] tries again.
    fn begin(self: &Arc<Self>, mut state: MutexGuard<'_, WakingState>) {
        if state.has_thread || self.missing.are_missing() {
            return;
        }
        state.has_thread = true;
        drop(state);
        let waking = Arc::clone(self);
        let work = move || {
            thread_start::begin(HelperThread::User);
            waking.work();
        };
        if thread::Builder::new().name("roced-user".into()).spawn(work).is_err() {
            // No other thread may do it. Sessions with messages that wait for too long end.
            self.state().has_thread = false;
            self.missing.note();
        }
    }

    /// Begins the thread if one that could not be begun is needed still.
    pub(crate) fn begin_missing(self: &Arc<Self>) {
        let mut state = self.state();
        state.channels.retain(|channel| channel.strong_count() > 0);
        if !state.jobs.is_empty() || !state.channels.is_empty() {
            self.begin(state);
        }
    }

    fn do_jobs(&self) {
        loop {
            let Some(job) = self.state().jobs.pop_front() else { return };
            job();
        }
    }

    fn work(self: &Arc<Self>) {
        loop {
            self.do_jobs();
            if self.owes.swap(false, Ordering::AcqRel) {
                let channels = self.state().channels.clone();
                for channel in channels.iter().filter_map(Weak::upgrade) {
                    channel.send_owed();
                    // Jobs are replies, which no number of channels delays.
                    self.do_jobs();
                }
            }
            if !self.wait() {
                let mut state = self.state();
                // Beside the table of users and this thread nothing has it.
                if Arc::strong_count(self) <= 2 && state.jobs.is_empty() {
                    state.has_thread = false;
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn long_trust() -> WakeTrust {
        WakeTrust(AtomicU64::new(u64::MAX))
    }

    fn quick() -> ((), bool) {
        ((), true)
    }

    fn walk() -> ((), bool) {
        let begin = nanos_of(ClockId::CLOCK_THREAD_CPUTIME_ID);
        while nanos_of(ClockId::CLOCK_THREAD_CPUTIME_ID) < begin + 4 * LONG_MESSAGE_NS {}
        ((), true)
    }

    #[test]
    fn a_thread_without_a_core_is_a_doubt_and_no_walk() {
        let (waking, trust) = (Waking::default(), long_trust());
        let slept = waking.here(&trust, || {
            thread::sleep(Duration::from_nanos(2 * SLOW_MESSAGE_NS));
            ((), true)
        });
        assert!(slept.is_some());
        assert_eq!(waking.here(&trust, quick), None, "the user's thread measures the next one");
        waking.measured(&trust, quick);
        assert_eq!((waking.slow(), waking.is_distrusted()), (0, false));
        assert!(trust.0.load(Ordering::Relaxed) > 0, "it was quick");
    }

    /// The message that follows a long one is quick, and the user's thread learns nothing.
    #[test]
    fn walks_that_are_long_in_turns_are_found() {
        let waking = Waking::default();
        assert!(waking.here(&long_trust(), walk).is_some());
        assert_eq!(waking.slow(), 0);
        let trust = long_trust();
        assert!(waking.here(&trust, walk).is_some(), "of that socket nothing is known");
        assert_eq!((waking.slow(), waking.is_distrusted()), (1, true));
        assert_eq!(waking.here(&long_trust(), quick), None, "nor is any other of its sockets trusted");
    }
}
