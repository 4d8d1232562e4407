//! Bounds on the doorbells that are taken in one poll iteration: for a session, for an account and
//! for all, in words of 64 doorbells.
//!
//! A client may ring all 4,096 doorbells of its block in every iteration, and has as many blocks as
//! it has sessions. The rest stays rung until the next one, which begins with the first session
//! that had to wait. Since an account has its own bound, other accounts do not wait for it.

use roced_types::AccountId;

/// Words of one session: the doorbells of 256 queue pairs, four times as many as are visited in
/// one poll iteration.
const SESSION_WORDS: u32 = 4;
/// Words of the sessions of one account.
const ACCOUNT_WORDS: u32 = 4 * SESSION_WORDS;
/// Words of all: some microseconds.
const ITERATION_WORDS: u32 = 128;

#[derive(Clone, Copy, Debug, Default)]
struct AccountWords {
    account: AccountId,
    /// Its sessions; without any its place is free.
    sessions: u32,
    /// Poll iteration in which it had these words.
    iteration: u64,
    words: u32,
}

/// Words taken in this poll iteration.
#[derive(Debug)]
pub(super) struct DoorbellBounds {
    accounts: Box<[AccountWords]>,
    iteration: u64,
    words: u32,
}

impl DoorbellBounds {
    /// Bounds for that many sessions.
    pub(super) fn new(max_sessions: u32) -> Self {
        Self { accounts: vec![AccountWords::default(); max_sessions as usize].into(), iteration: 0, words: 0 }
    }

    /// Adds a session of an account; returns the place of the account.
    pub(super) fn join(&mut self, account: AccountId) -> u32 {
        let its = |place: &AccountWords| place.sessions > 0 && place.account == account;
        let free = |place: &AccountWords| place.sessions == 0;
        let at = self.accounts.iter().position(its).or_else(|| self.accounts.iter().position(free));
        let at = at.expect("there are as many places as sessions");
        let place = &mut self.accounts[at];
        place.account = account;
        place.sessions += 1;
        at as u32
    }

    /// Removes a session of the account in this place.
    pub(super) fn leave(&mut self, place: u32) {
        self.accounts[place as usize].sessions -= 1;
    }

    /// A poll iteration begins.
    pub(super) fn begin(&mut self) {
        self.iteration += 1;
        self.words = 0;
    }

    /// Words that a session of the account in this place may have.
    pub(super) fn left(&self, place: u32) -> u32 {
        let AccountWords { iteration, words, .. } = self.accounts[place as usize];
        let of_account = if iteration == self.iteration { ACCOUNT_WORDS - words } else { ACCOUNT_WORDS };
        SESSION_WORDS.min(of_account).min(ITERATION_WORDS - self.words)
    }

    /// One had so many of them.
    pub(super) fn take(&mut self, place: u32, words: u32) {
        let AccountWords { iteration, words: had, .. } = &mut self.accounts[place as usize];
        *had = if *iteration == self.iteration { *had + words } else { words };
        *iteration = self.iteration;
        self.words += words;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_with_many_sessions_takes_its_part_and_leaves_the_others_theirs() {
        let mut bounds = DoorbellBounds::new(16);
        let places: Vec<u32> = (0..16).map(|session| bounds.join(AccountId(u32::from(session == 15)))).collect();
        for _ in 0..3 {
            bounds.begin();
            let mut words = 0;
            for place in &places[..15] {
                let left = bounds.left(*place);
                bounds.take(*place, left);
                words += left;
            }
            assert_eq!((words, bounds.left(places[15])), (ACCOUNT_WORDS, SESSION_WORDS));
        }
        places[..15].iter().for_each(|place| bounds.leave(*place));
        assert_eq!(bounds.join(AccountId(7)), places[0], "a place without sessions is free");
    }

    #[test]
    fn all_accounts_together_have_a_bound() {
        let mut bounds = DoorbellBounds::new(100);
        bounds.begin();
        let words = (0..100).map(|account| {
            let place = bounds.join(AccountId(account));
            let left = bounds.left(place);
            bounds.take(place, left);
            left
        });
        assert_eq!(words.sum::<u32>(), ITERATION_WORDS);
    }
}
