//! How long the clients of a user may have workers wait for their memory.
//!
//! Memory that the kernel copies is slower than mapped memory, through no fault of the client. In
//! each poll iteration of a worker some waiting is therefore free, and more for each byte that is
//! moved. All beyond is charged to the stall budget of the user, for any reason: a page that must
//! be brought or made, a lock, or very many small pieces. The free part bounds a poll iteration,
//! and the budget bounds all else.
//!
//! Mapped memory cannot be given up while a worker waits for it. Its stalls are charged afterward,
//! and may leave a debt, which elapsed time pays as it fills the budget.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use roced_types::WORKERS_MAX;

use super::poll_id::PollId;
use crate::accounts::{ClientAccount, Closing, OF_A_THREAD};

/// Maximum that can be spent at once. A guess: some pages from a disk.
const BUDGET_MAX: Duration = Duration::from_millis(200);

/// Fraction of elapsed time that is returned: a twentieth of a worker. A guess, because a program
/// with threads that map memory all the time keeps its own address space locked now and then.
const RETURN_DIVISOR: u32 = 20;

/// Free part of a poll iteration: some two hundred accesses, one for each frame of a full iteration
/// where each is of another queue pair than its neighbors. One takes 5 to 7 us without obstacles
/// (up to 4 KiB, copy thread awake; a virtual machine of 2 cores, Linux 6.18).
const FREE_PER_POLL: Duration = Duration::from_millis(1);

/// Free part for each byte, in nanoseconds: some five times the kernel's time to copy it, including
/// the lookup of its page (64 KiB in 15 to 25 us, same machine).
const FREE_NS_PER_BYTE: u64 = 1;

/// Abandoned threads of a user that have not come back; beyond that no more of them are awaited.
const ABANDONED_THREADS_MAX: u32 = 4;

/// Time that a user's clients may have others wait.
#[derive(Debug)]
pub(crate) struct StallBudget {
    account: Mutex<Account>,
    given_up: AtomicU32,
    /// Looks of the control thread at memory of the user.
    looks: AtomicU64,
}

#[derive(Debug)]
struct Account {
    left: Duration,
    /// Spent beyond that.
    debt: Duration,
    since: Instant,
    /// The last poll iteration of each worker that has waited, and its remaining free part.
    polls: Vec<(PollId, Duration)>,
}

impl Account {
    fn at(&mut self, now: Instant) -> &mut Duration {
        let returned = now.saturating_duration_since(self.since) / RETURN_DIVISOR;
        self.left = BUDGET_MAX.min(self.left + returned.saturating_sub(self.debt));
        self.debt = self.debt.saturating_sub(returned);
        self.since = now;
        &mut self.left
    }

    fn free_in(&mut self, poll: PollId) -> &mut Duration {
        let index = match self.polls.iter().position(|(last, _)| last.worker() == poll.worker()) {
            Some(index) => index,
            None => {
                // There is room for every worker and the control thread.
                self.polls.push((poll, FREE_PER_POLL));
                self.polls.len() - 1
            }
        };
        let (last, free) = &mut self.polls[index];
        if *last != poll {
            (*last, *free) = (poll, FREE_PER_POLL);
        }
        free
    }
}

impl StallBudget {
    pub(crate) fn new(now: Instant) -> Self {
        let polls = Vec::with_capacity(WORKERS_MAX as usize + 1);
        let account = Mutex::new(Account { left: BUDGET_MAX, debt: Duration::ZERO, since: now, polls });
        Self { account, given_up: AtomicU32::new(0), looks: AtomicU64::new(0) }
    }

    /// The next look of the control thread at memory of the user.
    pub(crate) fn next_look(&self) -> PollId {
        PollId::of_control(self.looks.fetch_add(1, Ordering::Relaxed))
    }

    /// True if nothing of it is used up.
    pub(crate) fn is_whole(&self, now: Instant) -> bool {
        self.left_at(now) == BUDGET_MAX
    }

    /// True if half of it is left at least.
    pub(crate) fn has_half(&self, now: Instant) -> bool {
        self.left_at(now) >= BUDGET_MAX / 2
    }

    fn account(&self) -> MutexGuard<'_, Account> {
        self.account.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Permitted wait after so many bytes were moved since the last call. `None`: none, because too
    /// many threads are abandoned.
    pub(crate) fn most(&self, poll: PollId, bytes: u64) -> Option<Duration> {
        (self.given_up.load(Ordering::Relaxed) < ABANDONED_THREADS_MAX)
            .then(|| self.most_at(poll, bytes, Instant::now()))
    }

    fn most_at(&self, poll: PollId, bytes: u64, now: Instant) -> Duration {
        let mut account = self.account();
        let free = account.free_in(poll);
        *free += Duration::from_nanos(bytes * FREE_NS_PER_BYTE);
        *free + *account.at(now)
    }

    /// Uses up `time`. False when there was not as much.
    pub(crate) fn spend(&self, poll: PollId, time: Duration) -> bool {
        self.spend_at(poll, time, Instant::now())
    }

    fn spend_at(&self, poll: PollId, time: Duration, now: Instant) -> bool {
        let mut account = self.account();
        let free = account.free_in(poll);
        let beyond = time.saturating_sub(*free);
        *free = free.saturating_sub(time);
        let left = account.at(now);
        let enough = *left >= beyond;
        *left = left.saturating_sub(beyond);
        enough
    }

    /// Uses up `time` that a worker has waited for mapped memory; returns the debt.
    pub(crate) fn charge(&self, time: Duration, now: Instant) -> Duration {
        let mut account = self.account();
        let left = account.at(now);
        let beyond = time.saturating_sub(*left);
        *left = left.saturating_sub(time);
        account.debt += beyond;
        account.debt
    }

    /// How long until nothing is owed.
    pub(crate) fn until_paid(&self, now: Instant) -> Duration {
        let mut account = self.account();
        account.at(now);
        account.debt * RETURN_DIVISOR
    }

    fn left_at(&self, now: Instant) -> Duration {
        *self.account().at(now)
    }
}

/// An abandoned thread, until it comes back. It has a descriptor of its user that does not close.
#[derive(Debug)]
pub(crate) struct AbandonedThread {
    stall_budget: Arc<StallBudget>,
    _closing: Closing,
}

impl AbandonedThread {
    pub(crate) fn begin(stall_budget: &Arc<StallBudget>, account: &ClientAccount) -> Self {
        stall_budget.given_up.fetch_add(1, Ordering::Relaxed);
        Self { stall_budget: Arc::clone(stall_budget), _closing: account.begin_closing(OF_A_THREAD) }
    }
}

impl Drop for AbandonedThread {
    fn drop(&mut self) {
        self.stall_budget.given_up.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use roced_types::{AccountId, WorkerId};

    use super::*;
    use crate::accounts::ClientAccounts;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_stalling_user_gets_a_shrinking_budget() {
        let (begin, poll) = (Instant::now(), PollId::of_control(0));
        let stall_budget = StallBudget::new(begin);
        assert!(stall_budget.spend_at(poll, FREE_PER_POLL + BUDGET_MAX, begin));
        assert!(!stall_budget.spend_at(poll, Duration::from_nanos(1), begin));
        let later = begin + Duration::from_secs(1);
        assert!(stall_budget.spend_at(poll, Duration::from_secs(1) / RETURN_DIVISOR, later), "its share of a second");
        assert!(!stall_budget.spend_at(poll, MS, later));
        assert_eq!(stall_budget.left_at(later + Duration::from_secs(1000)), BUDGET_MAX);
    }

    /// A user that moves bytes as fast as the kernel copies spends nothing, for any time; a user
    /// that accesses single bytes has no more than the free part of a poll iteration, for any
    /// number of pieces and sessions.
    #[test]
    fn some_waiting_per_poll_is_free_and_more_for_bytes() {
        let begin = Instant::now();
        let stall_budget = StallBudget::new(begin);
        let mut poll = PollId::first(WorkerId(0));
        for _ in 0..10_000 {
            poll = poll.next();
            for _ in 0..20 {
                stall_budget.most_at(poll, 64 << 10, begin);
                assert!(stall_budget.spend_at(poll, Duration::from_micros(65), begin));
            }
        }
        assert_eq!(stall_budget.left_at(begin), BUDGET_MAX, "for bytes");
        let other = PollId::first(WorkerId(1));
        for (poll, _) in [(poll.next(), 0), (other, 1), (other.next(), 1)] {
            let before = stall_budget.left_at(begin);
            for _ in 0..2000 {
                stall_budget.most_at(poll, 1, begin);
                assert!(stall_budget.spend_at(poll, Duration::from_micros(10), begin));
            }
            let beyond = 20 * MS - FREE_PER_POLL - Duration::from_nanos(2000 * FREE_NS_PER_BYTE);
            assert_eq!(before - stall_budget.left_at(begin), beyond, "all but the free part of a poll iteration");
        }
    }

    /// For any number of sessions of a user: each has only the rest of the budget.
    #[test]
    fn many_sessions_share_one_budget() {
        let begin = Instant::now();
        let stall_budget = StallBudget::new(begin);
        let mut poll = PollId::first(WorkerId(0));
        let mut held = Duration::ZERO;
        for _ in 0..256 {
            poll = poll.next();
            let waits = stall_budget.most_at(poll, 0, begin).min(20 * MS);
            held += waits;
            stall_budget.spend_at(poll, waits, begin);
        }
        assert_eq!(held, BUDGET_MAX + 256 * FREE_PER_POLL);
    }

    #[test]
    fn after_abandoned_threads_no_more_threads_of_the_user_are_awaited() {
        let account = ClientAccounts::default().account(AccountId(1));
        let stall_budget = account.stall_budget().expect("all of it");
        let poll = PollId::first(WorkerId(0));
        let mut given_up: Vec<_> =
            (0..ABANDONED_THREADS_MAX).map(|_| AbandonedThread::begin(&stall_budget, &account)).collect();
        assert_eq!(stall_budget.most(poll, 0), None);
        given_up.pop();
        assert!(stall_budget.most(poll, 0).is_some(), "one has come back");
    }

    #[test]
    fn a_debt_is_paid_by_time() {
        let begin = Instant::now();
        let stall_budget = StallBudget::new(begin);
        assert_eq!(stall_budget.charge(BUDGET_MAX, begin), Duration::ZERO);
        assert_eq!(stall_budget.charge(50 * MS, begin), 50 * MS);
        assert_eq!(stall_budget.until_paid(begin), Duration::from_secs(1));
        let later = begin + Duration::from_millis(1200);
        assert_eq!((stall_budget.until_paid(later), stall_budget.left_at(later)), (Duration::ZERO, 10 * MS));
        assert_eq!(stall_budget.charge(11 * MS, later), MS);
    }

    #[test]
    fn a_new_session_does_not_bring_a_new_budget() {
        let accounts = ClientAccounts::default();
        let stall_budget = accounts.account(AccountId(1)).stall_budget().expect("all of it");
        assert!(stall_budget.spend(stall_budget.next_look(), FREE_PER_POLL + BUDGET_MAX / 4 * 3));
        drop(stall_budget);
        assert!(accounts.account(AccountId(1)).stall_budget().is_none());
        assert!(accounts.account(AccountId(2)).stall_budget().is_some(), "another user's is another");
    }
}
