//! Accounts of users: descriptors that are being closed, stall budgets.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use super::stall_budget::StallBudget;

/// Descriptors of a user that are being closed by threads; beyond that no more are taken from it.
const CLOSING_PER_USER: u32 = 4;

/// The same of all users together: a bound on threads.
const CLOSING_OF_ALL: u32 = 64;

/// Accounts of all users of a daemon. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct UserAccounts(Arc<Accounts>);

#[derive(Debug, Default)]
struct Accounts {
    /// Descriptors that are being closed, by user.
    closing: Mutex<BTreeMap<u32, u32>>,
    /// By user. Unused ones with their whole budget are forgotten.
    budgets: Mutex<BTreeMap<u32, Arc<StallBudget>>>,
}

impl UserAccounts {
    /// The account of the user `uid`.
    pub fn user(&self, uid: u32) -> UserAccount {
        UserAccount { uid, users: self.clone() }
    }

    fn closing(&self) -> MutexGuard<'_, BTreeMap<u32, u32>> {
        self.0.closing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A user and its account.
#[derive(Clone, Debug)]
pub struct UserAccount {
    uid: u32,
    users: UserAccounts,
}

impl UserAccount {
    /// True if descriptors may be taken from this user now.
    pub(crate) fn may_pass_descriptors(&self) -> bool {
        let closing = self.users.closing();
        let of_user = closing.get(&self.uid).copied().unwrap_or(0);
        of_user < CLOSING_PER_USER && closing.values().sum::<u32>() < CLOSING_OF_ALL
    }

    /// Descriptors of this user that are being closed.
    pub fn closing(&self) -> u32 {
        self.users.closing().get(&self.uid).copied().unwrap_or(0)
    }

    /// Counts a descriptor of this user as being closed, for as long as the returned value lives.
    pub(crate) fn begin_closing(&self) -> Closing {
        *self.users.closing().entry(self.uid).or_default() += 1;
        Closing(self.clone())
    }

    /// The stall budget of this user, if half of it is left at least.
    pub(crate) fn stall_budget(&self) -> Option<Arc<StallBudget>> {
        let now = Instant::now();
        let mut budgets = self.users.0.budgets.lock().unwrap_or_else(PoisonError::into_inner);
        budgets.retain(|_, budget| Arc::strong_count(budget) > 1 || !budget.is_whole(now));
        let budget = budgets.entry(self.uid).or_insert_with(|| Arc::new(StallBudget::new(now)));
        budget.has_half(now).then(|| Arc::clone(budget))
    }
}

/// A descriptor that is being closed.
#[derive(Debug)]
pub(crate) struct Closing(UserAccount);

impl Drop for Closing {
    fn drop(&mut self) {
        let mut closing = self.0.users.closing();
        let count = closing.get_mut(&self.0.uid).expect("counted when it began");
        *count -= 1;
        if *count == 0 {
            closing.remove(&self.0.uid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_at_the_limit_of_closing_descriptors_may_pass_no_more() {
        let users = UserAccounts::default();
        let (this, other) = (users.user(1), users.user(2));
        let mut closing: Vec<_> = (0..CLOSING_PER_USER).map(|_| this.begin_closing()).collect();
        assert!(!this.may_pass_descriptors() && other.may_pass_descriptors());
        closing.pop();
        assert!(this.may_pass_descriptors());
        closing.extend((0..CLOSING_OF_ALL).map(|number| users.user(10 + number).begin_closing()));
        assert!(!other.may_pass_descriptors(), "the limit of all users together");
        drop(closing);
        assert_eq!((this.closing(), other.may_pass_descriptors()), (0, true));
    }
}
