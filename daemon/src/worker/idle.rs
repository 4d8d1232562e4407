//! Idle policy of a worker: its action after a poll iteration without work.
//!
//! * **spin**: the next poll iteration at once. Lowest latency, and a whole core for this worker
//!   alone.
//! * **yield**: `sched_yield`, then the next poll iteration. Uses the core only while no other
//!   thread needs it.
//! * **sleep**: as yield for a configured time, then block until something happens; at once while
//!   other threads compute on the core, because the kernel prefers a thread that wakes to them, and
//!   one that yields waits for all of them ([`YieldPause`]).
//!
//! A worker blocks in one poll over its AF_XDP sockets and an epoll set of its [`Waker`]
//! and its sessions' wake eventfds. The sockets are in no set: a socket in a set always
//! has a waiter, and the kernel then walks to it for each batch of frames, whether the worker
//! sleeps or not (6 % of a sender's time on veth, where the frames arrive inside the system call of
//! the sender). Before it blocks, it announces this in two words, its waker's (for threads of
//! the daemon) and its [`WorkerState`]'s (for clients), and checks everything once more; a thread
//! that gives it work reads the word afterward. One of the two therefore sees the other.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, ppoll},
    sys::{
        epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout},
        time::TimeSpec,
    },
};
use roced_abi::{
    doorbell::{WorkerState, announce_awake, announce_sleep},
    yield_pause::YieldPause,
};
use roced_transport::clock::Nanos;

use super::wake::Waker;

/// A yield that took longer was used by a thread that computes or moves data, not by one that waits
/// for the worker. The shortest time slice of Linux is 0.7 ms.
const LONG_YIELD: Nanos = Nanos::from_micros(500);

/// How a worker waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Never gives the core away.
    Spin,
    /// Lets others run between two poll iterations.
    Yield,
    /// Yields for that long without work, then blocks.
    Sleep {
        /// Nanoseconds of yielding.
        spin: Nanos,
    },
}

/// Action after a poll iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// The next poll iteration at once.
    Again,
    /// Others may run first.
    Yield,
    /// Nothing happened for long: block until something does.
    Block,
}

/// Decides how to rest. Informed of every poll iteration.
#[derive(Clone, Copy, Debug)]
pub struct Idle {
    policy: Policy,
    last_work: Nanos,
    /// Begin of the last poll iteration, if the worker yielded after it.
    yielded: Option<Nanos>,
    pause: YieldPause,
}

impl Idle {
    /// For a worker that begins at `now`.
    pub const fn new(policy: Policy, now: Nanos) -> Self {
        Self { policy, last_work: now, yielded: None, pause: YieldPause::new(LONG_YIELD.0) }
    }

    /// Whether others may run on its core.
    pub fn offers_the_core(&self) -> bool {
        self.policy != Policy::Spin
    }

    /// Whether the worker may yield its core: not while other threads compute on it.
    pub fn may_yield(&self, now: Nanos) -> bool {
        self.pause.may_yield(now.0)
    }

    /// After the poll iteration that began at `now` and did something, or did not.
    pub fn after_poll(&mut self, now: Nanos, did_something: bool) -> Rest {
        if let Some(since) = self.yielded.take() {
            self.pause.on_return(since.0, now.0);
        }
        if did_something {
            self.last_work = now;
            return Rest::Again;
        }
        match self.policy {
            Policy::Spin => Rest::Again,
            Policy::Yield => Rest::Yield,
            Policy::Sleep { spin } if now - self.last_work < spin && self.pause.may_yield(now.0) => {
                self.yielded = Some(now);
                Rest::Yield
            }
            Policy::Sleep { .. } => Rest::Block,
        }
    }
}

/// Sockets that one poll looks at: more than a worker usually has, on its stack.
pub const SOCKETS_POLLED: usize = 32;

/// Where a worker blocks.
#[derive(Debug)]
pub struct WorkerSleeper<K> {
    epoll: Epoll,
    waker: Arc<Waker>,
    state: WorkerState<K>,
    sleeps: u64,
}

impl<K> WorkerSleeper<K> {
    /// Sleeper of the worker that `waker` wakes, with the word `state` for clients.
    ///
    /// # Errors
    /// The kernel's, when it gives no epoll set.
    pub fn new(waker: Arc<Waker>, state: WorkerState<K>) -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        epoll.add(waker.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
        Ok(Self { epoll, waker, state, sleeps: 0 })
    }

    /// Wakes when `socket` has something to read, one of those beyond [`SOCKETS_POLLED`].
    ///
    /// # Errors
    /// The kernel's.
    pub fn add_socket(&self, socket: BorrowedFd<'_>) -> Result<(), Errno> {
        self.epoll.add(socket, EpollEvent::new(EpollFlags::EPOLLIN, 0))
    }

    /// Undoes [`Self::add_socket`], if it was done.
    pub fn remove_socket(&self, socket: BorrowedFd<'_>) {
        let _ = self.epoll.delete(socket);
    }

    /// Wakes whenever a client writes its `wake` eventfd. Edge-triggered and never read, so that no
    /// client can take another's wake-up away.
    ///
    /// # Errors
    /// The kernel's.
    pub fn add_session(&self, wake: BorrowedFd<'_>) -> io::Result<()> {
        Ok(self.epoll.add(wake, EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, 0))?)
    }

    /// Undoes [`Self::add_session`].
    ///
    /// # Errors
    /// The kernel's.
    pub fn remove_session(&self, wake: BorrowedFd<'_>) -> io::Result<()> {
        Ok(self.epoll.delete(wake)?)
    }

    /// Blocks until something happens, which may be something to read in one of the first
    /// [`SOCKETS_POLLED`] of `sockets`, or `at_most` has passed, unless `has_work` (which looks at
    /// everything that others can leave: doorbells, mailbox, handed-over frames) says that it did
    /// already.
    ///
    /// # Errors
    /// The kernel's; [`Errno::EINTR`] is none.
    pub fn sleep<'f>(
        &mut self,
        at_most: Nanos,
        sockets: impl Iterator<Item = BorrowedFd<'f>>,
        has_work: impl FnOnce() -> bool,
    ) -> io::Result<()> {
        self.waker.announce_sleep();
        announce_sleep(self.state.asleep());
        let result = if has_work() { Ok(()) } else { self.block(at_most, sockets) };
        announce_awake(self.state.asleep());
        self.waker.announce_awake();
        result
    }

    /// Times it really blocked.
    pub const fn sleeps(&self) -> u64 {
        self.sleeps
    }

    fn block<'f>(&mut self, at_most: Nanos, sockets: impl Iterator<Item = BorrowedFd<'f>>) -> io::Result<()> {
        self.sleeps += 1;
        // ppoll counts in nanoseconds, epoll_wait in milliseconds; an epoll set can itself be
        // polled.
        let timeout = (at_most != Nanos::NEVER)
            .then(|| TimeSpec::new((at_most.0 / 1_000_000_000) as i64, (at_most.0 % 1_000_000_000) as i64));
        let mut polled: [_; 1 + SOCKETS_POLLED] =
            std::array::from_fn(|_| PollFd::new(self.epoll.0.as_fd(), PollFlags::POLLIN));
        let mut count = 1;
        for (slot, socket) in polled[1..].iter_mut().zip(sockets) {
            *slot = PollFd::new(socket, PollFlags::POLLIN);
            count += 1;
        }
        match ppoll(&mut polled[..count], timeout, None) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        // Removes the edges from the list. Their source does not matter: a poll iteration checks
        // everything.
        let mut events = [EpollEvent::empty(); 32];
        match self.epoll.wait(&mut events, EpollTimeout::ZERO) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        iter, thread,
        time::{Duration, Instant},
    };

    use nix::sys::eventfd::{EfdFlags, EventFd};

    use super::*;

    #[test]
    fn each_policy_rests_in_its_way() {
        let at = Nanos::from_micros;
        let rests = |policy| {
            let mut idle = Idle::new(policy, at(0));
            [(10, true), (59, false), (60, false), (61, true), (62, false)]
                .map(|(now, did)| idle.after_poll(at(now), did))
        };
        assert_eq!(rests(Policy::Spin), [Rest::Again; 5]);
        assert_eq!(rests(Policy::Yield), [Rest::Again, Rest::Yield, Rest::Yield, Rest::Again, Rest::Yield]);
        assert_eq!(
            rests(Policy::Sleep { spin: at(50) }),
            [Rest::Again, Rest::Yield, Rest::Block, Rest::Again, Rest::Yield]
        );
        assert_eq!(rests(Policy::Sleep { spin: at(0) })[1], Rest::Block);
    }

    /// A thread that computes uses its time slice at each yield.
    #[test]
    fn after_a_long_yield_it_blocks_at_once_for_a_while() {
        let at = Nanos::from_micros;
        let mut idle = Idle::new(Policy::Sleep { spin: at(50) }, at(0));
        let mut rests = |calls: &[(u64, bool)]| -> Vec<_> {
            calls.iter().map(|(now, did)| idle.after_poll(at(*now), *did)).collect()
        };
        assert_eq!(rests(&[(10, false), (3_000, true), (3_010, false)]), [Rest::Yield, Rest::Again, Rest::Block]);
        // A millisecond later it tries again; this yield is short, and so is the next pause.
        assert_eq!(rests(&[(4_010, true), (4_011, false), (4_020, true)]), [Rest::Again, Rest::Yield, Rest::Again]);
        assert_eq!(rests(&[(4_021, false), (7_000, true), (7_999, false)]), [Rest::Yield, Rest::Again, Rest::Block]);
        // Two long ones in a row: twice as long.
        assert_eq!(rests(&[(8_001, true), (8_002, false), (12_000, true)]), [Rest::Again, Rest::Yield, Rest::Again]);
        assert_eq!(rests(&[(13_900, true), (13_901, false), (14_001, true)]), [Rest::Again, Rest::Block, Rest::Again]);
        assert_eq!(rests(&[(14_002, false)]), [Rest::Yield]);
    }

    /// A worker state in a page of its own.
    fn sleeper() -> (WorkerSleeper<impl Sized>, Arc<Waker>) {
        let waker = Arc::new(Waker::new().expect("an eventfd"));
        (WorkerSleeper::new(Arc::clone(&waker), tests_state::state()).expect("an epoll set"), waker)
    }

    mod tests_state {
        #![expect(unsafe_code, reason = "lays a worker state over memory of the test")]

        use std::ptr::NonNull;

        use super::WorkerState;

        #[repr(align(64))]
        pub(super) struct Page([u8; 64]);

        pub(super) fn state() -> WorkerState<&'static Page> {
            let page: &'static mut Page = Box::leak(Box::new(Page([0; 64])));
            let base = NonNull::from(&mut page.0).cast();
            // SAFETY: 64 aligned bytes that live for ever, touched only through the state from here
            // on.
            unsafe { WorkerState::new(base, page) }
        }
    }

    #[test]
    fn a_sleep_ends_by_time_even_below_a_millisecond() {
        let (mut sleeper, _) = sleeper();
        let begin = Instant::now();
        sleeper.sleep(Nanos::from_micros(200), iter::empty(), || false).expect("sleep");
        assert!(begin.elapsed() >= Duration::from_micros(200) && begin.elapsed() < Duration::from_secs(5));
        assert_eq!(sleeper.sleeps(), 1);
    }

    #[test]
    fn work_seen_at_the_last_look_is_not_slept_over() {
        let (mut sleeper, _) = sleeper();
        sleeper.sleep(Nanos::NEVER, iter::empty(), || true).expect("no sleep");
        assert_eq!(sleeper.sleeps(), 0);
        assert_eq!(sleeper.state.asleep().load(std::sync::atomic::Ordering::Relaxed), 0);
    }

    #[test]
    fn an_alarm_between_the_last_look_and_the_block_is_not_lost() {
        let (mut sleeper, waker) = sleeper();
        // The last look sees nothing; the other thread gives work right after it and finds the word
        // set.
        sleeper
            .sleep(Nanos::NEVER, iter::empty(), || {
                waker.wake();
                false
            })
            .expect("sleep");
        assert!(!waker.is_asleep());
        // The alarm was taken: the next sleep is not cut short.
        let begin = Instant::now();
        sleeper.sleep(Nanos::from_millis(20), iter::empty(), || false).expect("sleep");
        assert!(begin.elapsed() >= Duration::from_millis(20));
    }

    #[test]
    fn a_socket_wakes_the_worker_whether_polled_or_in_the_set() {
        let sockets: Vec<_> = (0..=SOCKETS_POLLED).map(|_| EventFd::new().expect("an eventfd")).collect();
        for (at, readable) in sockets.iter().enumerate() {
            let (mut sleeper, _) = sleeper();
            sleeper.add_socket(sockets[SOCKETS_POLLED].as_fd()).expect("added");
            let all = || sockets.iter().map(AsFd::as_fd);
            sleeper.sleep(Nanos::from_micros(100), all(), || false).expect("sleep");
            readable.write(1).expect("write");
            let begin = Instant::now();
            sleeper.sleep(Nanos::from_millis(60_000), all(), || false).expect("sleep");
            assert!(begin.elapsed() < Duration::from_secs(30), "socket {at} woke no worker");
            readable.read().expect("read");
        }
    }

    #[test]
    fn a_client_wakes_the_worker_each_time_without_reads_of_the_eventfd() {
        let (mut sleeper, _) = sleeper();
        let wake = EventFd::from_flags(EfdFlags::EFD_NONBLOCK).expect("an eventfd");
        sleeper.add_session(wake.as_fd()).expect("added");
        for _ in 0..3 {
            thread::scope(|scope| {
                scope.spawn(|| {
                    thread::sleep(Duration::from_millis(5));
                    wake.write(1).expect("write");
                });
                sleeper.sleep(Nanos::NEVER, iter::empty(), || false).expect("sleep");
            });
            // One write is one wake-up, though the counter stays above zero.
            let begin = Instant::now();
            sleeper.sleep(Nanos::from_millis(10), iter::empty(), || false).expect("sleep");
            assert!(begin.elapsed() >= Duration::from_millis(10));
        }
        sleeper.remove_session(wake.as_fd()).expect("removed");
    }
}
