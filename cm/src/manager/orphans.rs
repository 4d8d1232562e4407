//! Connections without their program, by account.

use alloc::collections::BTreeMap;

use roced_types::AccountId;

use crate::wire::CommId;

/// Connections of programs that are gone, by account and in their order.
#[derive(Debug, Default)]
pub(super) struct Orphans {
    of_account: BTreeMap<AccountId, BTreeMap<u64, CommId>>,
    last: u64,
    count: usize,
}

impl Orphans {
    /// Adds a connection of a user, and returns its place.
    pub(super) fn add(&mut self, account: AccountId, id: CommId) -> u64 {
        self.last += 1;
        self.of_account.entry(account).or_default().insert(self.last, id);
        self.count += 1;
        self.last
    }

    pub(super) fn remove(&mut self, account: AccountId, place: u64) {
        let Some(of_it) = self.of_account.get_mut(&account) else { return };
        self.count -= usize::from(of_it.remove(&place).is_some());
        if of_it.is_empty() {
            self.of_account.remove(&account);
        }
    }

    pub(super) const fn count(&self) -> usize {
        self.count
    }

    /// The oldest connection of the user that has most.
    pub(super) fn oldest_of_most(&self) -> Option<CommId> {
        let of_it = self.of_account.values().max_by_key(|of_it| of_it.len())?;
        of_it.first_key_value().map(|(_, id)| *id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_of_the_user_with_most_goes_first() {
        let mut orphans = Orphans::default();
        orphans.add(AccountId(1), CommId(10));
        let places: alloc::vec::Vec<u64> = (20..23).map(|id| orphans.add(AccountId(2), CommId(id))).collect();
        assert_eq!((orphans.count(), orphans.oldest_of_most()), (4, Some(CommId(20))));
        orphans.remove(AccountId(2), places[0]);
        orphans.remove(AccountId(2), places[0]);
        assert_eq!((orphans.count(), orphans.oldest_of_most()), (3, Some(CommId(21))));
        for place in places {
            orphans.remove(AccountId(2), place);
        }
        assert_eq!((orphans.count(), orphans.oldest_of_most()), (1, Some(CommId(10))));
        assert_eq!(orphans.of_account.len(), 1, "nothing is left of the other");
    }
}
