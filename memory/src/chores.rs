//! Threads of users: work of the kernel that a client can make long.
//!
//! Closing a descriptor may linger or wait for a FUSE server, and freeing a large file takes a
//! second; a thread that does either serves no other client meanwhile. So each user has threads of
//! its own for that, begun when there is something to do. What one user makes long delays that user
//! alone.

use std::{
    collections::VecDeque,
    fmt,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use crate::thread_start::{self, HelperThread};

/// Threads of a user. One does all of it; others begin while it does not get on.
const THREADS_PER_USER_MAX: u32 = 4;

/// A chore that takes longer has the next one begun by another thread.
const STUCK_CHORE_TIME: Duration = Duration::from_millis(20);

/// So long without a new chore, and all threads of a user are given up. To unmap 8 GiB takes 1.1 s.
const STUCK_USER_TIME: Duration = Duration::from_secs(5);

/// How long a thread waits for more before it ends: beginning one costs some 50 us.
const IDLE_TIME_MAX: Duration = Duration::from_secs(2);

/// Room for so many chores is kept.
const QUEUE_CAPACITY_KEPT: usize = 64;

/// Something to do.
type Chore = Box<dyn FnOnce() + Send>;

/// The chores of one user, in order, and their threads.
#[derive(Debug, Default)]
pub(crate) struct Chores {
    state: Mutex<ChoreState>,
    came: Condvar,
}

#[derive(Default)]
struct ChoreState {
    queue: VecDeque<Chore>,
    /// Those that are being done.
    begun: u32,
    threads: u32,
    idle: u32,
    /// When a thread took a chore last.
    taken: Option<Instant>,
}

impl fmt::Debug for ChoreState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChoreState").field("queue", &self.queue.len()).field("begun", &self.begun).finish()
    }
}

impl Chores {
    /// Has a thread of the user do `chore`, after others.
    pub(crate) fn add(self: &Arc<Self>, chore: impl FnOnce() + Send + 'static) {
        let mut state = self.state();
        state.queue.push_back(Box::new(chore));
        if state.idle > 0 {
            self.came.notify_one();
        }
        self.begin_thread(state);
    }

    /// Begins a thread if one is missing. A thread of this crate begins none: its chores are done
    /// by a thread that there is, or by itself.
    fn begin_thread(self: &Arc<Self>, mut state: MutexGuard<'_, ChoreState>) {
        let is_helper = thread_start::is_helper();
        if !state.needs_thread() || is_helper && state.threads > 0 {
            return;
        }
        state.threads += 1;
        drop(state);
        if is_helper {
            return self.do_without_thread();
        }
        let chores = Arc::clone(self);
        let work = move || {
            thread_start::begin(HelperThread::User);
            chores.work();
        };
        let spawned = thread::Builder::new().name("roced-user".into()).spawn(work);
        if spawned.is_err() {
            self.do_without_thread();
        }
    }

    /// Chores that are not done. Those behind a stuck one get a thread.
    pub(crate) fn count(self: &Arc<Self>) -> usize {
        let state = self.state();
        let count = state.queue.len() + state.begun as usize;
        if !state.queue.is_empty() {
            self.begin_thread(state);
        }
        count
    }

    /// All threads that a user may have are at work, and none has got on for a while.
    pub(crate) fn are_stuck(self: &Arc<Self>) -> bool {
        self.count();
        let state = self.state();
        let is_gone = || state.taken.is_some_and(|taken| taken.elapsed() >= STUCK_USER_TIME);
        state.threads == THREADS_PER_USER_MAX && state.begun == THREADS_PER_USER_MAX && is_gone()
    }

    fn state(&self) -> MutexGuard<'_, ChoreState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// There is no thread for it. Where others are at work they do it later; else it is done here,
    /// for there is nothing else left to do.
    fn do_without_thread(&self) {
        let mut state = self.state();
        state.threads -= 1;
        while state.threads == 0
            && let Some(chore) = state.queue.pop_front()
        {
            drop(state);
            chore();
            state = self.state();
        }
    }

    /// Beside the table of users and one thread, something has the account.
    fn is_in_use(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) > 2
    }

    fn work(self: &Arc<Self>) {
        let mut state = self.state();
        loop {
            while let Some(chore) = state.queue.pop_front() {
                state.begun += 1;
                state.taken = Some(Instant::now());
                drop(state);
                chore();
                state = self.state();
                state.begun -= 1;
            }
            // A client with thousands of objects leaves as many chores: their room is not kept.
            if state.queue.capacity() > QUEUE_CAPACITY_KEPT {
                state.queue = VecDeque::new();
            }
            state.idle += 1;
            let (woken, waited) = self.came.wait_timeout(state, IDLE_TIME_MAX).unwrap_or_else(PoisonError::into_inner);
            state = woken;
            state.idle -= 1;
            // It begins now, and is not stuck since its last chore.
            state.taken = Some(Instant::now());
            // The last thread stays with the account: one that begins at the limit of mappings
            // would end the process.
            let is_needed = state.threads == 1 && self.is_in_use();
            if waited.timed_out() && state.queue.is_empty() && !is_needed {
                state.threads -= 1;
                return;
            }
        }
    }
}

impl ChoreState {
    fn needs_thread(&self) -> bool {
        let is_stuck = || self.taken.is_some_and(|taken| taken.elapsed() >= STUCK_CHORE_TIME);
        self.idle == 0 && (self.threads == 0 || self.threads < THREADS_PER_USER_MAX && is_stuck())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_chore_that_is_stuck_delays_none_of_the_next_three() {
        let chores = Arc::new(Chores::default());
        let (done, results) = mpsc::channel();
        let (release, wait) = mpsc::channel::<()>();
        chores.add(move || _ = wait.recv());
        for number in 0..100 {
            let done = done.clone();
            chores.add(move || done.send(number).expect("the test waits"));
        }
        thread::sleep(2 * STUCK_CHORE_TIME);
        let done_last = done.clone();
        chores.add(move || done_last.send(100).expect("the test waits"));
        let order: Vec<_> =
            (0..=100).map(|_| results.recv_timeout(Duration::from_secs(20)).expect("it is done")).collect();
        assert!(order.iter().copied().eq(0..=100), "one after the other");
        // The thread of the last one may have to count it yet.
        while chores.count() > 1 {
            thread::yield_now();
        }
        assert_eq!(chores.state().threads, 2);
        drop(release);
    }

    #[test]
    fn a_chore_behind_a_stuck_one_gets_a_thread_when_they_are_counted() {
        let chores = Arc::new(Chores::default());
        let (done, results) = mpsc::channel();
        let (release, wait) = mpsc::channel::<()>();
        chores.add(move || _ = wait.recv());
        chores.add(move || done.send(()).expect("the test waits"));
        thread::sleep(2 * STUCK_CHORE_TIME);
        assert!(results.try_recv().is_err());
        assert_eq!(chores.count(), 2);
        assert_eq!(results.recv_timeout(Duration::from_secs(20)), Ok(()));
        assert!(!chores.are_stuck(), "one thread is not");
        drop(release);
    }

    #[test]
    fn a_thread_of_a_user_begins_no_other() {
        let chores = Arc::new(Chores::default());
        let (done, results) = mpsc::channel();
        let alone = Arc::clone(&chores);
        let helper = thread::spawn(move || {
            thread_start::begin(HelperThread::User);
            alone.add(move || done.send(thread::current().id()).expect("the test waits"));
            let (release, wait) = mpsc::channel::<()>();
            (release, wait, thread::current().id())
        });
        let (release, wait, own) = helper.join().expect("it does not panic");
        assert_eq!((results.try_recv(), chores.state().threads), (Ok(own), 0), "there was no thread for it");

        chores.add(move || _ = wait.recv());
        thread::sleep(2 * STUCK_CHORE_TIME);
        let behind = Arc::clone(&chores);
        let helper = thread::spawn(move || {
            thread_start::begin(HelperThread::User);
            behind.add(|| {});
        });
        helper.join().expect("it does not panic");
        assert_eq!(chores.state().threads, 1, "the one that is there does it later");
        assert_eq!(chores.count(), 2);
        assert_eq!(chores.state().threads, 2, "the owner of the account begins another");
        drop(release);
    }

    #[test]
    fn the_number_of_threads_is_bounded() {
        let chores = Arc::new(Chores::default());
        let (release, wait) = mpsc::channel::<()>();
        let wait = Arc::new(Mutex::new(wait));
        for _ in 0..2 * THREADS_PER_USER_MAX {
            let wait = Arc::clone(&wait);
            chores.add(move || _ = wait.lock().map(|wait| wait.recv()));
            thread::sleep(2 * STUCK_CHORE_TIME);
        }
        assert_eq!((chores.count(), chores.state().threads), (2 * THREADS_PER_USER_MAX as usize, THREADS_PER_USER_MAX));
        drop(release);
        while chores.count() > 0 {
            thread::yield_now();
        }
    }
}
