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

use crate::thread_start::{self, HelperThread, MissingThreads};

/// Threads of a user. One does all of it; others begin while it does not get on.
const THREADS_PER_ACCOUNT_MAX: u32 = 4;

/// A chore that takes longer has the next one begun by another thread.
const STUCK_CHORE_TIME: Duration = Duration::from_millis(20);

/// After this time without a new chore all threads of a user are given up. To unmap 8 GiB takes 1.1 s.
/// The same of a user of which the kernel refuses every thread.
const STUCK_USER_TIME: Duration = Duration::from_secs(5);

/// How long a thread waits for more before it ends: beginning one costs some 50 us.
const IDLE_TIME_MAX: Duration = Duration::from_secs(2);

/// Number of chores for which room is kept.
const QUEUE_CAPACITY_KEPT: usize = 64;

/// Something to do.
type Chore = Box<dyn FnOnce() + Send>;

/// The chores of one user, in order, and their threads.
#[derive(Debug, Default)]
pub(crate) struct Chores {
    state: Mutex<ChoreState>,
    came: Condvar,
    missing: Arc<MissingThreads>,
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
    /// There is no thread since then, although one is needed.
    missing_since: Option<Instant>,
}

impl fmt::Debug for ChoreState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChoreState").field("queue", &self.queue.len()).field("begun", &self.begun).finish()
    }
}

impl Chores {
    /// Of a user; `missing` is told of threads that cannot be begun.
    pub(crate) fn new(missing: &Arc<MissingThreads>) -> Self {
        Self { missing: Arc::clone(missing), ..Self::default() }
    }

    /// Has a thread of the user do `chore`, after others.
    pub(crate) fn add(self: &Arc<Self>, chore: impl FnOnce() + Send + 'static) {
        let mut state = self.state();
        state.queue.push_back(Box::new(chore));
        if state.idle > 0 {
            self.came.notify_one();
        }
        self.begin_thread(state);
    }

    /// Begins a thread before there is something to do, if there is none.
    pub(crate) fn begin(self: &Arc<Self>) {
        let state = self.state();
        if state.threads == 0 {
            self.begin_thread(state);
        }
    }

    /// Begins a thread if one is needed. A thread of this crate begins none, and none is begun
    /// while the kernel refuses them: the chores wait until [`Self::begin_missing`]. No other
    /// thread may do them.
    fn begin_thread(self: &Arc<Self>, mut state: MutexGuard<'_, ChoreState>) {
        if !state.needs_thread() {
            return;
        }
        if thread_start::is_helper() || self.missing.are_missing() {
            return self.is_missing(state);
        }
        state.threads += 1;
        drop(state);
        let chores = Arc::clone(self);
        let work = move || {
            thread_start::begin(HelperThread::User);
            chores.work();
        };
        let spawned = thread::Builder::new().name("roced-user".into()).spawn(work);
        let mut state = self.state();
        if spawned.is_ok() {
            state.missing_since = None;
        } else {
            state.threads -= 1;
            self.is_missing(state);
        }
    }

    /// A thread is needed and does not begin.
    fn is_missing(&self, mut state: MutexGuard<'_, ChoreState>) {
        if state.threads == 0 {
            state.missing_since.get_or_insert_with(Instant::now);
        }
        self.missing.note();
    }

    /// Begins a thread that could not be begun, if it is needed still.
    pub(crate) fn begin_missing(self: &Arc<Self>) {
        let state = self.state();
        // One stays with an account that is in use.
        if !state.queue.is_empty() || state.threads == 0 && Arc::strong_count(self) > 1 {
            self.begin_thread(state);
        }
    }

    /// None is left to do.
    pub(crate) fn are_done(&self) -> bool {
        self.state().queue.is_empty()
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

    /// All threads that a user may have are at work, and none has got on for a while; or there has
    /// been none for as long.
    pub(crate) fn are_stuck(self: &Arc<Self>) -> bool {
        self.count();
        let state = self.state();
        let is_long_ago = |since: Option<Instant>| since.is_some_and(|since| since.elapsed() >= STUCK_USER_TIME);
        match state.threads {
            0 => is_long_ago(state.missing_since),
            threads => {
                threads == THREADS_PER_ACCOUNT_MAX && state.begun == THREADS_PER_ACCOUNT_MAX && is_long_ago(state.taken)
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, ChoreState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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
        self.idle == 0 && (self.threads == 0 || self.threads < THREADS_PER_ACCOUNT_MAX && is_stuck())
    }
}

#[cfg(test)]
mod tests {
    use std::{os::fd::AsFd as _, sync::mpsc};

    use nix::sys::eventfd::{EfdFlags, EventFd};

    use super::*;
    use crate::thread_start::refused::{self, NoThreads};

    #[test]
    fn no_other_thread_does_the_chores_of_a_user_without_threads() {
        if !refused::is_alone("chores::tests::no_other_thread_does_the_chores_of_a_user_without_threads") {
            return;
        }
        let missing = Arc::new(MissingThreads::default());
        let chores = Arc::new(Chores::new(&missing));
        let no_threads = NoThreads::begin();
        let (done, results) = mpsc::channel();
        for number in 0..100 {
            let done = done.clone();
            chores.add(move || done.send((number, thread::current().id())).expect("the test waits"));
        }
        let begin = Instant::now();
        while begin.elapsed() < STUCK_USER_TIME {
            assert!(!chores.are_stuck(), "it may be for a moment");
            missing.clear();
            chores.begin_missing();
            assert!(missing.are_missing(), "nor this time");
            thread::sleep(Duration::from_millis(100));
        }
        assert_eq!(results.try_recv(), Err(mpsc::TryRecvError::Empty), "this thread does none of them");
        assert!(chores.are_stuck() && !chores.are_done());
        drop(no_threads);
        missing.clear();
        chores.begin_missing();
        assert!(!missing.are_missing() && !chores.are_stuck());
        for number in 0..100 {
            let (next, thread) = results.recv_timeout(Duration::from_secs(20)).expect("it is done");
            assert_eq!(next, number, "one after the other");
            assert_ne!(thread, thread::current().id());
        }
    }

    #[test]
    fn a_chore_that_is_stuck_delays_none_of_the_next_three() {
        let chores = Arc::new(Chores::default());
        let (done, results) = mpsc::channel();
        let (release, wait) = mpsc::channel::<()>();
        add_stuck(&chores, wait);
        for number in 0..100 {
            let done = done.clone();
            chores.add(move || done.send(number).expect("the test waits"));
        }
        thread::sleep(2 * STUCK_CHORE_TIME);
        let done_last = done.clone();
        chores.add(move || done_last.send(100).expect("the test waits"));
        // On a busy machine others count as stuck for a moment, and overtake one another.
        let mut done: Vec<_> =
            (0..=100).map(|_| results.recv_timeout(Duration::from_secs(20)).expect("it is done")).collect();
        done.sort_unstable();
        assert!(done.into_iter().eq(0..=100), "each once");
        // The thread of the last one may have to count it yet.
        while chores.count() > 1 {
            thread::yield_now();
        }
        assert!((2..=THREADS_PER_ACCOUNT_MAX).contains(&chores.state().threads));
        drop(release);
    }

    #[test]
    fn a_chore_behind_a_stuck_one_gets_a_thread_when_they_are_counted() {
        loop {
            let chores = Arc::new(Chores::default());
            let (done, results) = mpsc::channel();
            let (release, wait) = mpsc::channel::<()>();
            let begun = Instant::now();
            add_stuck(&chores, wait);
            chores.add(move || done.send(()).expect("the test waits"));
            if begun.elapsed() >= STUCK_CHORE_TIME {
                // A busy machine: it was added behind one that is stuck, and got a thread by that.
                continue;
            }
            assert!(results.try_recv().is_err());
            thread::sleep(2 * STUCK_CHORE_TIME);
            assert_eq!(chores.count(), 2);
            assert_eq!(results.recv_timeout(Duration::from_secs(20)), Ok(()));
            assert!(!chores.are_stuck(), "one thread is not");
            drop(release);
            break;
        }
    }

    /// A chore that waits, and is begun: time counts from then on.
    fn add_stuck(chores: &Arc<Chores>, wait: mpsc::Receiver<()>) {
        let (begun, begins) = mpsc::channel();
        chores.add(move || {
            begun.send(()).expect("the test waits");
            _ = wait.recv();
        });
        begins.recv_timeout(Duration::from_secs(20)).expect("a thread begins");
    }

    /// In a thread of another user, or one that copies.
    fn add_in_helper(chores: &Arc<Chores>, chore: impl FnOnce() + Send + 'static) {
        let chores = Arc::clone(chores);
        let helper = thread::spawn(move || {
            thread_start::begin(HelperThread::User);
            chores.add(chore);
        });
        helper.join().expect("it does not panic");
    }

    #[test]
    fn a_thread_of_a_user_begins_no_other_and_does_none_of_its_chores() {
        let chores = Arc::new(Chores::default());
        let bell = EventFd::from_flags(EfdFlags::EFD_NONBLOCK).expect("an eventfd");
        chores.missing.ring(bell.as_fd().try_clone_to_owned().expect("room"));
        let (release, wait) = mpsc::channel::<()>();
        add_in_helper(&chores, move || _ = wait.recv());
        assert_eq!(chores.state().threads, 0);
        assert!(!chores.are_done(), "it is for a thread of the user");
        assert_eq!(bell.read(), Ok(1), "the control thread wakes");
        assert!(chores.missing.clear(), "the control thread is told");
        chores.begin_missing();
        assert_eq!(chores.state().threads, 1);
        while chores.state().begun == 0 {
            thread::yield_now();
        }

        thread::sleep(2 * STUCK_CHORE_TIME);
        add_in_helper(&chores, || {});
        assert_eq!(chores.state().threads, 1, "the one that is there does it later");
        assert_eq!(bell.read(), Ok(1), "the control thread wakes again");
        assert!(chores.missing.clear(), "or another");
        assert_eq!(chores.count(), 2);
        assert_eq!(chores.state().threads, 2, "the owner of the account begins another");
        drop(release);
    }

    #[test]
    fn the_number_of_threads_is_bounded() {
        let chores = Arc::new(Chores::default());
        let (release, wait) = mpsc::channel::<()>();
        let wait = Arc::new(Mutex::new(wait));
        for _ in 0..2 * THREADS_PER_ACCOUNT_MAX {
            let wait = Arc::clone(&wait);
            chores.add(move || _ = wait.lock().map(|wait| wait.recv()));
            thread::sleep(2 * STUCK_CHORE_TIME);
        }
        assert_eq!(
            (chores.count(), chores.state().threads),
            (2 * THREADS_PER_ACCOUNT_MAX as usize, THREADS_PER_ACCOUNT_MAX)
        );
        drop(release);
        while chores.count() > 0 {
            thread::yield_now();
        }
    }
}
