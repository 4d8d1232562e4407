//! Log lines that clients can cause: a few a second, then a number.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use roced_types::AccountId;

/// Lines of one kind in [`INTERVAL`], of one account if programs cause them.
const LINES: u32 = 10;
/// Lines of one kind that all accounts cause together. The first line of each in an interval is
/// written all the same.
const LINES_OF_ALL: u32 = 100;
const INTERVAL: Duration = Duration::from_secs(1);
/// Accounts beyond which those without a recent line are forgotten. With that many recent ones all
/// others count as one.
const ACCOUNTS: usize = 64;

/// Counts lines of one kind.
#[derive(Debug, Default)]
pub(crate) struct LogLimiter {
    begin: Option<Instant>,
    lines: u32,
    held_back: u64,
}

impl LogLimiter {
    /// May a line be written now? If so, the number of lines held back since the last.
    pub(crate) fn admit(&mut self, now: Instant) -> Option<u64> {
        self.admit_up_to(LINES, now)
    }

    fn admit_up_to(&mut self, most: u32, now: Instant) -> Option<u64> {
        if !self.has_room(most, now) {
            self.held_back += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.held_back))
    }

    /// Fewer lines than that were written in the interval of `now`, which begins if none has.
    fn has_room(&mut self, most: u32, now: Instant) -> bool {
        if !self.is_recent(now) {
            self.begin = Some(now);
            self.lines = 0;
        }
        self.lines < most
    }

    /// There was a line in the interval of `now`.
    fn is_recent(&self, now: Instant) -> bool {
        self.begin.is_some_and(|begin| now.duration_since(begin) < INTERVAL)
    }
}

/// Counts lines of one kind for each account: no account's lines hold back those of another, but
/// for more than one in an interval when there are very many.
#[derive(Debug, Default)]
pub(crate) struct AccountLogLimiter {
    accounts: BTreeMap<AccountId, LogLimiter>,
    /// Accounts beyond those that are remembered.
    others: LogLimiter,
    all: LogLimiter,
}

impl AccountLogLimiter {
    /// As [`LogLimiter::admit`], for lines that programs of `account` caused.
    pub(crate) fn admit(&mut self, account: AccountId, now: Instant) -> Option<u64> {
        let is_full = |accounts: &BTreeMap<_, _>| accounts.len() >= ACCOUNTS && !accounts.contains_key(&account);
        if is_full(&self.accounts) {
            // Their numbers of lines held back are lost with them, after a quiet interval.
            self.accounts.retain(|_, limiter| limiter.is_recent(now));
        }
        let limiter =
            if is_full(&self.accounts) { &mut self.others } else { self.accounts.entry(account).or_default() };
        let most = if self.all.has_room(LINES_OF_ALL, now) { LINES } else { 1 };
        let admitted = limiter.admit_up_to(most, now);
        // Lines that are held back take nothing from the others.
        self.all.lines += u32::from(admitted.is_some());
        admitted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suppressed_lines_are_counted_in_the_next_line() {
        let mut log_limiter = LogLimiter::default();
        let begin = Instant::now();
        assert_eq!((0..25).filter_map(|_| log_limiter.admit(begin)).collect::<Vec<_>>(), [0; LINES as usize]);
        assert_eq!(log_limiter.admit(begin + INTERVAL), Some(15));
        assert_eq!(log_limiter.admit(begin + INTERVAL), Some(0));
    }

    #[test]
    fn lines_of_one_account_hold_back_none_of_another() {
        let mut limiter = AccountLogLimiter::default();
        let begin = Instant::now();
        let of_one = (0..25).filter_map(|_| limiter.admit(AccountId(1), begin)).count();
        assert_eq!((of_one, limiter.admit(AccountId(2), begin)), (LINES as usize, Some(0)));
        // Nor lines of it that were held back themselves.
        let held_back = (0..1000).filter_map(|_| limiter.admit(AccountId(1), begin)).count();
        assert_eq!(
            (held_back, (0..25).filter_map(|_| limiter.admit(AccountId(2), begin)).count()),
            (0, LINES as usize - 1)
        );
        for number in 3..1000 {
            assert_eq!(limiter.admit(AccountId(number), begin + INTERVAL * 2 * number), Some(0));
        }
        assert!(limiter.accounts.len() <= ACCOUNTS, "{}", limiter.accounts.len());
    }

    #[test]
    fn the_lines_of_very_many_accounts_are_bounded_and_a_quiet_one_is_heard() {
        let mut limiter = AccountLogLimiter::default();
        let now = Instant::now();
        let written =
            (0..10).flat_map(|_| 1000..2000).filter_map(|number| limiter.admit(AccountId(number), now)).count();
        assert!(written <= LINES_OF_ALL as usize + ACCOUNTS + 1, "{written}");
        assert!(limiter.accounts.len() <= ACCOUNTS);
        let mut limiter = AccountLogLimiter::default();
        (0..100).flat_map(|_| 1..40).for_each(|number| _ = limiter.admit(AccountId(number), now));
        assert_eq!((limiter.admit(AccountId(7), now), limiter.admit(AccountId(50), now)), (None, Some(0)));
    }
}
