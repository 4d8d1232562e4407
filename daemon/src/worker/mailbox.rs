//! Commands from the control thread to a worker, and the worker's answers.
//!
//! The control thread creates objects, sends them in commands and receives them back in answers:
//! the worker neither allocates nor frees. A [`Mailbox::call`] waits for its answer, which a worker
//! gives within two poll iterations; a deadline covers a worker that does not.
//!
//! ```text
//!   Mailbox (control thread)  ── commands ──►  Inbox (worker)
//!                             ◄── answers ──
//! ```

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crossbeam::{
    queue::ArrayQueue,
    sync::{Parker, Unparker},
};
use thiserror::Error;

use super::wake::Waker;

/// Commands that wait at a time. One is the rule, for calls wait; the rest is room for calls that
/// were given up.
const DEPTH: usize = 64;

/// How long a call looks for its answer, yielding, before it sleeps: a worker that is awake answers
/// within two poll iterations, a few microseconds, and being woken costs ten times that.
const POLL_BEFORE_SLEEP: Duration = Duration::from_micros(50);

/// Why a call has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CallError {
    /// No answer before the deadline. The command may still be executed; its objects are then freed
    /// at the next call.
    #[error("the worker did not answer in time")]
    Timeout,
    /// The worker's thread has ended.
    #[error("the worker has ended")]
    Gone,
}

#[derive(Debug)]
struct SharedInbox<C, A> {
    commands: ArrayQueue<(u64, C)>,
    answers: ArrayQueue<(u64, A)>,
    /// The worker's side was dropped.
    ended: AtomicBool,
}

/// The control thread's side.
#[derive(Debug)]
pub struct Mailbox<C, A> {
    shared: Arc<SharedInbox<C, A>>,
    waker: Arc<Waker>,
    answered: Parker,
    ticket: u64,
}

/// The worker's side.
#[derive(Debug)]
pub struct Inbox<C, A> {
    shared: Arc<SharedInbox<C, A>>,
    answered: Unparker,
}

/// Both sides of a new mailbox of the worker that `waker` wakes.
pub fn mailbox<C, A>(waker: Arc<Waker>) -> (Mailbox<C, A>, Inbox<C, A>) {
    let shared = Arc::new(SharedInbox {
        commands: ArrayQueue::new(DEPTH),
        answers: ArrayQueue::new(DEPTH),
        ended: AtomicBool::new(false),
    });
    let answered = Parker::new();
    let inbox = Inbox { shared: Arc::clone(&shared), answered: answered.unparker().clone() };
    (Mailbox { shared, waker, answered, ticket: 0 }, inbox)
}

impl<C, A> Mailbox<C, A> {
    /// Sends `command` and waits for its answer.
    ///
    /// # Errors
    /// [`CallError`] when there is none by `deadline`, or will never be.
    pub fn call(&mut self, command: C, deadline: Instant) -> Result<A, CallError> {
        self.ticket += 1;
        if self.shared.commands.push((self.ticket, command)).is_err() {
            // As many calls were given up as the box holds: this worker no longer makes progress.
            return Err(if self.has_ended() { CallError::Gone } else { CallError::Timeout });
        }
        self.waker.wake();
        let look_until = Instant::now() + POLL_BEFORE_SLEEP;
        loop {
            // Before the answers, so that a worker that answered and then ended is not taken for
            // one that only ended.
            let ended = self.has_ended();
            while let Some((ticket, answer)) = self.shared.answers.pop() {
                // Others are late answers to abandoned calls: their objects are freed here.
                if ticket == self.ticket {
                    return Ok(answer);
                }
            }
            if ended {
                return Err(CallError::Gone);
            }
            let now = Instant::now();
            if now >= deadline {
                return Err(CallError::Timeout);
            }
            if now < look_until {
                thread::yield_now();
            } else {
                self.answered.park_deadline(deadline);
            }
        }
    }

    /// True when the worker's side is no more.
    pub fn has_ended(&self) -> bool {
        self.shared.ended.load(Ordering::Acquire)
    }
}

impl<C, A> Inbox<C, A> {
    /// Carries out at most `budget` commands by `carry_out` and returns their number. Costs one
    /// load when there is none.
    pub fn drain(&mut self, budget: usize, mut carry_out: impl FnMut(C) -> A) -> usize {
        let mut done = 0;
        // A command is taken only when its answer has room.
        while done < budget && !self.shared.commands.is_empty() && !self.shared.answers.is_full() {
            let Some((ticket, command)) = self.shared.commands.pop() else { break };
            let answer = carry_out(command);
            if self.shared.answers.push((ticket, answer)).is_err() {
                unreachable!("only this thread adds answers, and there was room");
            }
            done += 1;
        }
        if done > 0 {
            self.answered.unpark();
        }
        done
    }

    /// Commands that wait, at most `limit`. Costs one load when there is none.
    pub fn waiting(&self, limit: usize) -> usize {
        if self.is_empty() { 0 } else { self.shared.commands.len().min(limit) }
    }

    /// No command waits.
    pub fn is_empty(&self) -> bool {
        self.shared.commands.is_empty()
    }
}

impl<C, A> Drop for Inbox<C, A> {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Release);
        self.answered.unpark();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Number = Box<u32>;

    fn pair() -> (Mailbox<Number, Number>, Inbox<Number, Number>) {
        mailbox(Arc::new(Waker::new().expect("an eventfd")))
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(10)
    }

    #[test]
    fn a_call_brings_its_object_back() {
        let (mut mailbox, mut inbox) = pair();
        let worker = thread::spawn(move || {
            let mut left = 3;
            while left > 0 {
                left -= inbox.drain(1, |mut number| {
                    *number *= 2;
                    number
                });
                thread::yield_now();
            }
        });
        for number in 1..=3 {
            assert_eq!(mailbox.call(Box::new(number), soon()), Ok(Box::new(number * 2)));
        }
        worker.join().expect("the worker ended well");
        assert_eq!(mailbox.call(Box::new(9), soon()), Err(CallError::Gone));
    }

    #[test]
    fn a_worker_that_does_not_answer_costs_the_deadline_and_a_late_answer_is_not_mistaken() {
        let (mut mailbox, mut inbox) = pair();
        let begin = Instant::now();
        let deadline = begin + Duration::from_millis(20);
        assert_eq!(mailbox.call(Box::new(1), deadline), Err(CallError::Timeout));
        assert!(begin.elapsed() >= Duration::from_millis(20));

        let worker = thread::spawn(move || {
            let mut left = 2;
            while left > 0 {
                left -= inbox.drain(8, |number| number);
                thread::yield_now();
            }
            inbox
        });
        assert_eq!(mailbox.call(Box::new(2), soon()), Ok(Box::new(2)));
        worker.join().expect("the worker ended well");
    }

    #[test]
    fn a_full_box_refuses_at_once() {
        let (mut mailbox, _inbox) = pair();
        for _ in 0..DEPTH {
            assert_eq!(mailbox.call(Box::new(0), Instant::now()), Err(CallError::Timeout));
        }
        let begin = Instant::now();
        assert_eq!(mailbox.call(Box::new(0), soon()), Err(CallError::Timeout));
        assert!(begin.elapsed() < Duration::from_secs(5));
    }

    #[test]
    fn a_drain_is_bounded_and_takes_only_commands_with_room_for_the_answer() {
        let (mut mailbox, mut inbox) = pair();
        let give_up = |mailbox: &mut Mailbox<_, _>| {
            assert_eq!(mailbox.call(Box::new(7), Instant::now()), Err(CallError::Timeout));
        };
        for _ in 0..3 {
            give_up(&mut mailbox);
        }
        assert_eq!((inbox.waiting(2), inbox.waiting(64)), (2, 3));
        assert_eq!(inbox.drain(2, |number| number), 2);
        assert_eq!(inbox.drain(2, |number| number), 1);
        assert!(inbox.is_empty() && inbox.waiting(2) == 0);
    }

    #[test]
    fn only_a_sleeping_worker_is_woken() {
        let waker = Arc::new(Waker::new().expect("an eventfd"));
        let (mut mailbox, _inbox) = mailbox::<u32, u32>(Arc::clone(&waker));
        let readable = |waker: &Waker| {
            use std::os::fd::AsFd;
            let mut fds = [nix::poll::PollFd::new(waker.as_fd(), nix::poll::PollFlags::POLLIN)];
            nix::poll::poll(&mut fds, 0u8).expect("poll") == 1
        };
        assert_eq!(mailbox.call(1, Instant::now()), Err(CallError::Timeout));
        assert!(!readable(&waker));
        waker.announce_sleep();
        assert_eq!(mailbox.call(2, Instant::now()), Err(CallError::Timeout));
        assert!(readable(&waker));
        waker.announce_awake();
        assert!(!readable(&waker));
    }
}
