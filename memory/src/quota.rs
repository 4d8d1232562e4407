//! How many mappings the daemon has for its clients.
//!
//! A process may have a limited number of mappings (`vm.max_map_count`). At that limit the kernel
//! creates no mapping, splits none, and does not let the heap grow, which would end the daemon.
//! Each mapping for a client is therefore counted, in total and for its user, and refused long
//! before. The count lasts as long as the mapping, on any worker.

use std::{
    collections::BTreeMap,
    fs,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use roced_types::AccountId;

use super::{
    accounts::{ClientAccount, ClientAccounts},
    held_charge::HeldCharge,
    mapping::Leftover,
    sigbus,
};

/// Default of `vm.max_map_count` in Linux.
const USUAL_MAX_MAP_COUNT: u32 = 65_530;

/// Mappings of a copy thread: its stack, that of its signals, and a guard before each.
pub const OF_A_COPY_THREAD: u32 = 4;

/// Counts mappings. Clones are the same.
#[derive(Clone, Debug)]
pub struct Quota(Arc<QuotaState>);

#[derive(Debug)]
struct QuotaState {
    counts: Mutex<MappingCounts>,
    /// Ranges that the kernel would not unmap. They still count, and are tried again before the
    /// next mapping is counted.
    leftovers: Mutex<Vec<Leftover>>,
    /// Users of which threads unmap their mappings; without any, they are unmapped where they are
    /// dropped.
    accounts: Option<ClientAccounts>,
}

/// Why there is no room; the number is that limit, in mappings, but for the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaExceeded {
    /// The user has its share.
    OfAccount(u32),
    /// All users together share the total.
    OfAll(u32),
    /// Memory of the user has stalled workers for longer than it may; milliseconds until it has
    /// not.
    Stalled(u32),
}

#[derive(Debug)]
struct MappingCounts {
    most: u32,
    most_of_an_account: u32,
    all: u32,
    accounts: BTreeMap<AccountId, u32>,
}

impl Quota {
    /// As many as this kernel allows, with a quarter left for everything else: heap, threads,
    /// programs, frames. A user may have half of them.
    pub fn of_kernel() -> Self {
        let told = fs::read_to_string("/proc/sys/vm/max_map_count").ok();
        let allowed = told.and_then(|number| number.trim().parse().ok()).unwrap_or(USUAL_MAX_MAP_COUNT);
        let most = (allowed / 4 * 3).min(sigbus::PLACES as u32);
        Self::new(most, most / 2)
    }

    /// Creates a quota of `most` mappings in total and `most_of_an_account` for each account.
    pub fn new(most: u32, most_of_an_account: u32) -> Self {
        Self::with_threads(most, most_of_an_account, None)
    }

    /// The same quota of mappings that threads of these users unmap.
    #[must_use]
    pub fn unmapped_by(&self, accounts: ClientAccounts) -> Self {
        let MappingCounts { most, most_of_an_account, .. } = *self.counts();
        Self::with_threads(most, most_of_an_account, Some(accounts))
    }

    fn with_threads(most: u32, most_of_an_account: u32, accounts: Option<ClientAccounts>) -> Self {
        let counts = Mutex::new(MappingCounts { most, most_of_an_account, all: 0, accounts: BTreeMap::new() });
        Self(Arc::new(QuotaState { counts, leftovers: Mutex::default(), accounts }))
    }

    /// The account, if its user has threads.
    pub fn account(&self, account: AccountId) -> Option<ClientAccount> {
        self.0.accounts.as_ref().map(|accounts| accounts.account(account))
    }

    /// A call of this user may be refused for mappings that its threads are about to unmap.
    pub fn is_nearly_used(&self, account: &ClientAccount) -> bool {
        self.unmap_leftovers();
        if account.chores() == 0 {
            return false;
        }
        let counts = self.counts();
        let of_account = counts.accounts.get(&account.id()).copied().unwrap_or(0);
        of_account + OF_A_COPY_THREAD > counts.most_of_an_account || counts.all + OF_A_COPY_THREAD > counts.most
    }

    /// Room for so many mappings of this account.
    pub fn take(&self, account: AccountId, mappings: u32) -> Result<Room, QuotaExceeded> {
        self.unmap_leftovers();
        if let Some(debt) = self.account(account).filter(|_| mappings > 0).and_then(|account| account.stall_debt()) {
            return Err(QuotaExceeded::Stalled(u32::try_from(debt.as_millis() + 1).unwrap_or(u32::MAX)));
        }
        let mut counts = self.counts();
        let of_account = counts.accounts.get(&account).copied().unwrap_or(0);
        if mappings > counts.most_of_an_account.saturating_sub(of_account) {
            return Err(QuotaExceeded::OfAccount(counts.most_of_an_account));
        }
        if mappings > counts.most.saturating_sub(counts.all) {
            return Err(QuotaExceeded::OfAll(counts.most));
        }
        if mappings == 0 {
            return Ok(Room::default());
        }
        counts.all += mappings;
        counts.accounts.insert(account, of_account + mappings);
        drop(counts);
        Ok(Room { taken: Some(Taken { quota: self.clone(), account, mappings }), _charge: None })
    }

    fn counts(&self) -> MutexGuard<'_, MappingCounts> {
        self.0.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn leftovers(&self) -> MutexGuard<'_, Vec<Leftover>> {
        self.0.leftovers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tries again to unmap the remaining ranges.
    fn unmap_leftovers(&self) {
        // An unmapped range returns its room after the list is unlocked.
        let all = std::mem::take(&mut *self.leftovers());
        for leftover in all {
            match leftover.room().account() {
                Some(account) => account.later(|| leftover.unmap()),
                None => leftover.unmap(),
            }
        }
    }
}

/// Room for mappings, for as long as this lives: until they are unmapped. By default it belongs to
/// no client: the daemon's own.
#[derive(Debug, Default)]
pub struct Room {
    taken: Option<Taken>,
    /// A pointer of one word: there is a room for each queue pair.
    _charge: Option<Box<CarriedCharge>>,
}

impl Room {
    /// The same, with a charge for the bytes that are mapped.
    #[must_use]
    pub fn with_charge(self, charge: HeldCharge) -> Self {
        Self { _charge: Some(Box::new(CarriedCharge { _charge: charge })), ..self }
    }

    /// Room for no mapping, in the same quota.
    pub(crate) fn uncounted(&self) -> Self {
        let uncounted =
            |Taken { quota, account, .. }: &Taken| Taken { quota: quota.clone(), account: *account, mappings: 0 };
        Self { taken: self.taken.as_ref().map(uncounted), _charge: None }
    }

    /// The user, if it has threads that unmap.
    pub(crate) fn account(&self) -> Option<ClientAccount> {
        self.taken.as_ref().and_then(|Taken { quota, account, .. }| quota.account(*account))
    }

    /// Keeps a range that cannot be unmapped now, with its room, for later. A range that counts for
    /// no user stays mapped.
    pub(crate) fn keep(leftover: Leftover) {
        if let Some(Taken { quota, .. }) = &leftover.room().taken {
            quota.clone().leftovers().push(leftover);
        }
    }
}

#[derive(Debug)]
struct CarriedCharge {
    _charge: HeldCharge,
}

#[derive(Debug)]
struct Taken {
    quota: Quota,
    account: AccountId,
    mappings: u32,
}

impl Drop for Taken {
    fn drop(&mut self) {
        if self.mappings == 0 {
            return;
        }
        let mut counts = self.quota.counts();
        counts.all -= self.mappings;
        let of_account = counts.accounts.get_mut(&self.account).expect("counted when it was taken");
        *of_account -= self.mappings;
        if *of_account == 0 {
            counts.accounts.remove(&self.account);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_a_share_and_all_have_no_more_than_there_is() {
        let quota = Quota::new(10, 6);
        let refused = |account, mappings| quota.take(AccountId(account), mappings).map(drop).expect_err("too many");
        let first = quota.take(AccountId(1), 5).expect("below its share");
        assert_eq!(refused(1, 2), QuotaExceeded::OfAccount(6));
        let last = quota.take(AccountId(1), 1).expect("the last one of its share");
        assert_eq!(refused(1, 1), QuotaExceeded::OfAccount(6));
        let others = quota.take(AccountId(2), 4).expect("the rest");
        assert_eq!(refused(2, 1), QuotaExceeded::OfAll(10));
        drop((first, others));
        let again = quota.take(AccountId(2), 6).expect("room again");
        drop((last, again));
        assert!(quota.counts().accounts.is_empty() && quota.counts().all == 0);
    }

    #[test]
    fn the_kernels_limit_is_never_reached() {
        let quota = Quota::of_kernel();
        let counts = quota.counts();
        assert!(
            counts.most >= 1000 && counts.most <= sigbus::PLACES as u32 && counts.most_of_an_account == counts.most / 2
        );
    }
}
