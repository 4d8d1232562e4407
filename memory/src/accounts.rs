//! Accounts of clients: threads, descriptors that are being closed, stall budgets.

use std::{
    collections::BTreeMap,
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use nix::sys::socket::{Shutdown, shutdown};
use roced_types::AccountId;

use super::{
    chores::Chores,
    held_charge::HeldCharge,
    spare_numbers::usual_limit,
    stall_budget::StallBudget,
    thread_start::MissingThreads,
    unread::{EndedSocket, UnreadDescriptors},
    waking::Waking,
};

/// Descriptors of a user that wait to be closed; beyond that no more are taken from it until some
/// are closed. A message brings 253 at most, so there are some more.
const CLOSING_PER_ACCOUNT: u32 = 64;

/// The same of all users together: a bound on descriptors. A user that has none may pass some.
const CLOSING_OF_ALL: u32 = 4096;

/// Descriptors of ours that were a user's and wait for its threads, while these do not come back;
/// beyond that the user is served no more. A session that ends leaves thousands for a moment.
const UNCLOSED_PER_ACCOUNT: u32 = 256;

/// A thread that does not come back counts as so many descriptors: a user has 4 of them at most.
pub(crate) const OF_A_THREAD: u32 = CLOSING_PER_ACCOUNT / 4;

/// Accounts of all clients of a daemon. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct ClientAccounts(Arc<AccountsState>);

#[derive(Debug, Default)]
struct AccountsState {
    /// Descriptors that are being closed, by account.
    closing: Mutex<BTreeMap<AccountId, u32>>,
    /// Descriptors of ours that wait to be closed, by account.
    unclosed: Mutex<BTreeMap<AccountId, u32>>,
    /// By account. Unused ones with their whole budget are forgotten.
    budgets: Mutex<BTreeMap<AccountId, Arc<StallBudget>>>,
    /// By account. Those without a thread, an account in use and anything to do are forgotten.
    chores: Mutex<BTreeMap<AccountId, Arc<Chores>>>,
    /// By account. Unused ones without a penalty are forgotten.
    wakings: Mutex<BTreeMap<AccountId, Arc<Waking>>>,
    /// In replies that were not received.
    unread: UnreadDescriptors,
    /// Some of these have no thread, and need one.
    missing: Arc<MissingThreads>,
}

impl ClientAccounts {
    /// The account with this number.
    pub fn account(&self, account: AccountId) -> ClientAccount {
        let mut all = self.0.chores.lock().unwrap_or_else(PoisonError::into_inner);
        let known = all.get(&account).map(Arc::clone);
        let chores = known.unwrap_or_else(|| {
            all.retain(|_, chores| Arc::strong_count(chores) > 1 || !chores.are_done());
            Arc::clone(all.entry(account).or_insert_with(|| Arc::new(Chores::new(&self.0.missing))))
        });
        drop(all);
        ClientAccount { id: account, accounts: self.clone(), chores, waking: self.waking(account) }
    }

    fn waking(&self, account: AccountId) -> Arc<Waking> {
        let mut all = self.0.wakings.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = all.get(&account) {
            return Arc::clone(known);
        }
        all.retain(|_, waking| Arc::strong_count(waking) > 1 || waking.is_distrusted());
        Arc::clone(all.entry(account).or_insert_with(|| Arc::new(Waking::new(&self.0.missing))))
    }

    /// The kernel has refused a thread of a user, or a thread that may begin none needs one. Work
    /// of the user waits until [`Self::begin_missing_threads`] has begun it.
    pub fn are_threads_missing(&self) -> bool {
        self.0.missing.are_missing()
    }

    /// Has `reports` turn readable when threads are missing, whichever thread needs them.
    ///
    /// # Errors
    /// The kernel's: no file descriptor.
    pub fn ring_for_missing_threads(&self, reports: impl AsFd) -> io::Result<()> {
        self.0.missing.ring(reports.as_fd().try_clone_to_owned()?);
        Ok(())
    }

    /// Tries again to begin such threads.
    pub fn begin_missing_threads(&self) {
        // The first one that is refused sets it again, and the others are not tried.
        self.0.missing.clear();
        let wakings = self.0.wakings.lock().unwrap_or_else(PoisonError::into_inner);
        wakings.values().for_each(Waking::begin_missing);
        drop(wakings);
        let chores = self.0.chores.lock().unwrap_or_else(PoisonError::into_inner);
        chores.values().for_each(Chores::begin_missing);
    }

    /// Messages that had the kernel wake very many waiters, by account, of those that have had some
    /// lately.
    pub fn slow_wakes(&self) -> BTreeMap<AccountId, u64> {
        let all = self.0.wakings.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().map(|(account, waking)| (*account, waking.slow())).filter(|(_, slow)| *slow > 0).collect()
    }

    fn closing(&self) -> MutexGuard<'_, BTreeMap<AccountId, u32>> {
        self.0.closing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unclosed(&self) -> MutexGuard<'_, BTreeMap<AccountId, u32>> {
        self.0.unclosed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An account, with the threads of its user.
#[derive(Clone, Debug)]
pub struct ClientAccount {
    id: AccountId,
    accounts: ClientAccounts,
    chores: Arc<Chores>,
    waking: Arc<Waking>,
}

impl ClientAccount {
    /// Its number.
    pub const fn id(&self) -> AccountId {
        self.id
    }

    /// Has a thread of this user do something that its programs can make long.
    pub(crate) fn later(&self, chore: impl FnOnce() + Send + 'static) {
        self.chores.add(chore);
    }

    /// Its thread that wakes its programs.
    pub(crate) fn waking(&self) -> &Arc<Waking> {
        &self.waking
    }

    /// Begins a thread for chores before there are any, if there is none.
    pub fn begin_thread(&self) {
        self.chores.begin();
    }

    /// Chores of this user that its threads have not done.
    pub fn chores(&self) -> usize {
        self.chores.count()
    }

    /// True if descriptors may be taken from this user now.
    pub(crate) fn may_pass_descriptors(&self) -> bool {
        let closing = self.accounts.closing();
        let of_account = closing.get(&self.id).copied().unwrap_or(0);
        of_account == 0 || of_account < CLOSING_PER_ACCOUNT && closing.values().sum::<u32>() < CLOSING_OF_ALL
    }

    /// Descriptors of this user that are being closed.
    pub fn closing(&self) -> u32 {
        self.accounts.closing().get(&self.id).copied().unwrap_or(0)
    }

    /// Counts that many descriptors of this user as being closed, for as long as the returned value
    /// lives.
    pub(crate) fn begin_closing(&self, count: u32) -> Closing {
        *self.accounts.closing().entry(self.id).or_default() += count;
        Closing { account: self.clone(), count }
    }

    /// Closing its descriptors occupies all of its threads, or the kernel gives it none, and very
    /// many others wait for them: each is one less for all users. Nothing of it is to be served
    /// until they come back.
    pub fn is_stuck(&self) -> bool {
        let unclosed = self.accounts.unclosed().get(&self.id).copied().unwrap_or(0);
        unclosed >= UNCLOSED_PER_ACCOUNT && (self.chores.are_stuck() || u64::from(unclosed) >= usual_limit() / 4)
    }

    /// Counts so many descriptors as sent to programs of the user and not received. False if that
    /// is more than its share.
    pub(crate) fn charge_unread(&self, count: u32) -> bool {
        self.accounts.0.unread.charge(usual_limit() / 2, self.id, count)
    }

    /// So many of them were received, or were not sent.
    pub(crate) fn release_unread(&self, count: u32) {
        self.accounts.0.unread.release(self.id, count);
    }

    /// Descriptors that were sent to programs of the user, and that they have not received.
    pub fn unread(&self) -> u32 {
        self.accounts.0.unread.count(self.id)
    }

    /// Ends a socket with `count` descriptors at its other end, which count until they are received
    /// or that end is closed; `charge` lasts as long.
    pub(crate) fn end_unread(&self, fd: OwnedFd, count: u32, charge: Option<HeldCharge>) {
        let accounts = self.accounts.clone();
        self.later_with(fd, move |account, fd| {
            // The other end is told, which may wake very many waiters.
            let _ = shutdown(fd.as_raw_fd(), Shutdown::Both);
            accounts.0.unread.keep(EndedSocket::new(account, fd, count, charge));
        });
    }

    /// True if ended sessions and channels of this user have left unread replies and events in as
    /// many sockets as they may.
    pub fn leaves_much_unread(&self) -> bool {
        self.close_ended();
        self.accounts.0.unread.has_many_ended(self.id)
    }

    /// Closes some sockets of ended sessions, of this user and of others, with nothing left at the
    /// other end.
    pub(crate) fn close_ended(&self) {
        for EndedSocket { account, fd, charge, .. } in self.accounts.0.unread.take_empty(self.id) {
            self.accounts.account(account).close_later(fd, move |_| drop(charge));
        }
    }

    /// Has a thread of the user do something with a descriptor of ours and close it.
    pub(crate) fn close_later(&self, fd: OwnedFd, before: impl FnOnce(&OwnedFd) + Send + 'static) {
        self.later_with(fd, |_, fd| before(&fd));
    }

    /// Has a thread of the user do something with a descriptor of ours, which counts until it is
    /// done.
    fn later_with(&self, fd: OwnedFd, act: impl FnOnce(AccountId, OwnedFd) + Send + 'static) {
        *self.accounts.unclosed().entry(self.id).or_default() += 1;
        let account = self.clone();
        self.later(move || {
            act(account.id, fd);
            let mut unclosed = account.accounts.unclosed();
            let count = unclosed.get_mut(&account.id).expect("counted before");
            *count -= 1;
            if *count == 0 {
                unclosed.remove(&account.id);
            }
        });
    }

    /// Mapped memory of this user had a worker wait for that long; returns how much longer its memory
    /// has had workers wait than it may.
    pub fn charge_stall(&self, time: Duration) -> Duration {
        let now = Instant::now();
        self.budget(now).charge(time, now)
    }

    /// How long nothing more is mapped for this user, because its memory has stalled workers.
    pub fn stall_debt(&self) -> Option<Duration> {
        let now = Instant::now();
        let budgets = self.accounts.0.budgets.lock().unwrap_or_else(PoisonError::into_inner);
        budgets.get(&self.id).map(|budget| budget.until_paid(now)).filter(|time| !time.is_zero())
    }

    fn budget(&self, now: Instant) -> Arc<StallBudget> {
        let mut budgets = self.accounts.0.budgets.lock().unwrap_or_else(PoisonError::into_inner);
        budgets.retain(|_, budget| Arc::strong_count(budget) > 1 || !budget.is_whole(now));
        Arc::clone(budgets.entry(self.id).or_insert_with(|| Arc::new(StallBudget::new(now))))
    }

    /// The stall budget of this user, if half of it is left at least.
    pub(crate) fn stall_budget(&self) -> Option<Arc<StallBudget>> {
        let now = Instant::now();
        let budget = self.budget(now);
        budget.has_half(now).then_some(budget)
    }
}

/// Descriptors that are being closed.
#[derive(Debug)]
pub(crate) struct Closing {
    account: ClientAccount,
    count: u32,
}

impl Drop for Closing {
    fn drop(&mut self) {
        let mut closing = self.account.accounts.closing();
        let count = closing.get_mut(&self.account.id).expect("counted when it began");
        *count -= self.count;
        if *count == 0 {
            closing.remove(&self.account.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs::File, sync::mpsc, thread};

    use super::*;
    use crate::thread_start::refused::{self, NoThreads};

    #[test]
    fn a_user_without_threads_is_stuck_with_very_many_descriptors_and_loses_no_work() {
        const NAME: &str =
            "accounts::tests::a_user_without_threads_is_stuck_with_very_many_descriptors_and_loses_no_work";
        if !refused::is_alone(NAME) {
            return;
        }
        let accounts = ClientAccounts::default();
        let no_threads = NoThreads::begin();
        let this = accounts.account(AccountId(1));
        this.begin_thread();
        assert!(accounts.are_threads_missing(), "before there is anything to do");
        for _ in 0..UNCLOSED_PER_ACCOUNT {
            this.close_later(File::open("/dev/null").expect("room").into(), |_| {});
        }
        assert!(!this.is_stuck(), "it may be for a moment");
        thread::sleep(Duration::from_secs(6));
        assert!(this.is_stuck() && !accounts.account(AccountId(2)).is_stuck());
        drop(this);

        // Nothing but the chore itself is of that user.
        let (done, is_done) = mpsc::channel();
        accounts.account(AccountId(3)).later(move || done.send(thread::current().id()).expect("it is waited for"));
        drop(accounts.account(AccountId(4)));
        drop(no_threads);
        accounts.begin_missing_threads();
        assert!(!accounts.are_threads_missing());
        let by = is_done.recv_timeout(Duration::from_secs(20)).expect("it is done");
        assert_ne!(by, thread::current().id());
        let begin = Instant::now();
        while accounts.account(AccountId(1)).chores() > 0 {
            assert!(begin.elapsed() < Duration::from_secs(20), "they are not closed");
            thread::yield_now();
        }
        assert!(!accounts.account(AccountId(1)).is_stuck());
    }

    #[test]
    fn a_user_at_the_limit_of_closing_descriptors_may_pass_no_more() {
        let accounts = ClientAccounts::default();
        let (this, other) = (accounts.account(AccountId(1)), accounts.account(AccountId(2)));
        let mut closing: Vec<_> = (0..CLOSING_PER_ACCOUNT).map(|_| this.begin_closing(1)).collect();
        assert!(!this.may_pass_descriptors() && other.may_pass_descriptors());
        closing.pop();
        assert!(this.may_pass_descriptors());
        closing.extend((0..CLOSING_OF_ALL).map(|number| accounts.account(AccountId(10 + number)).begin_closing(1)));
        assert!(other.may_pass_descriptors(), "it has none");
        closing.push(other.begin_closing(1));
        assert!(!other.may_pass_descriptors(), "the limit of all users together");
        drop(closing);
        assert_eq!((this.closing(), other.may_pass_descriptors()), (0, true));
    }
}
