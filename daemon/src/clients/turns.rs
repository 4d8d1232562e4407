//! Order in which sessions with calls are served.
//!
//! Accounts take turns, and the sessions of each: an account with many sessions that call without
//! end has the share of one. A turn ends after some time, at any cost of the calls, and the rest is
//! served in the next one: the sockets stay readable. One session is served in any turn, however
//! late this thread runs.

use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant},
};

use roced_types::AccountId;

/// After this time the control thread does something else: its other work and its watchdog. A call
/// that is begun is carried out, and some take a millisecond.
const TIME_AT_ONCE: Duration = Duration::from_millis(2);

/// After this time another account is served.
const TIME_OF_A_SESSION: Duration = Duration::from_micros(500);

/// Accounts whose last session is remembered, at most; a guess.
const ACCOUNTS_MAX: usize = 1024;

/// The account that was served last, and the session of each.
#[derive(Debug, Default)]
pub(super) struct Turns {
    account: AccountId,
    /// By account.
    sessions: BTreeMap<AccountId, u32>,
}

/// Sessions that have something to say, in the order of their service.
#[derive(Debug)]
pub(super) struct Turn<T> {
    accounts: VecDeque<(AccountId, VecDeque<(u32, T)>)>,
    ends: Instant,
    has_served: bool,
}

impl Turns {
    /// Begins a turn of these sessions, each with its account.
    pub(super) fn begin<T>(&self, ready: impl Iterator<Item = (AccountId, u32, T)>) -> Turn<T> {
        let mut accounts = BTreeMap::<AccountId, VecDeque<(u32, T)>>::new();
        for (account, session, what) in ready {
            accounts.entry(account).or_default().push_back((session, what));
        }
        let mut accounts: VecDeque<_> = accounts.into_iter().collect();
        for (account, sessions) in &mut accounts {
            sessions.make_contiguous().sort_by_key(|(session, _)| *session);
            if let Some(last) = self.sessions.get(account) {
                sessions.rotate_left(sessions.partition_point(|(session, _)| session <= last) % sessions.len());
            }
        }
        if !accounts.is_empty() {
            accounts.rotate_left(accounts.partition_point(|(account, _)| *account <= self.account) % accounts.len());
        }
        Turn { accounts, ends: Instant::now() + TIME_AT_ONCE, has_served: false }
    }

    /// The next session of the turn, if there is time for one, and until when it may be served.
    pub(super) fn next<T>(&mut self, turn: &mut Turn<T>) -> Option<(u32, T, Instant)> {
        let now = Instant::now();
        if turn.has_served && now >= turn.ends {
            return None;
        }
        turn.has_served = true;
        let (account, mut sessions) = turn.accounts.pop_front()?;
        let (session, what) = sessions.pop_front()?;
        if !sessions.is_empty() {
            turn.accounts.push_back((account, sessions));
        }
        if self.sessions.len() >= ACCOUNTS_MAX {
            self.sessions.clear();
        }
        self.account = account;
        self.sessions.insert(account, session);
        Some((session, what, now + TIME_OF_A_SESSION))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sessions are served as `numbers` of them have time each turn.
    fn served(turns: &mut Turns, ready: &[(u32, u32)], numbers: usize) -> Vec<u32> {
        let mut turn = turns.begin(ready.iter().map(|(account, session)| (AccountId(*account), *session, ())));
        turn.ends += Duration::from_secs(100);
        (0..numbers).map_while(|_| turns.next(&mut turn)).map(|(session, (), _)| session).collect()
    }

    #[test]
    fn accounts_take_turns_and_so_do_their_sessions() {
        let mut turns = Turns::default();
        let ready = [(1, 10), (1, 11), (1, 12), (2, 20), (3, 30), (3, 31)];
        assert_eq!(served(&mut turns, &ready, 9), [10, 20, 30, 11, 31, 12]);
        assert_eq!(served(&mut turns, &ready, 4), [20, 30, 10, 31]);
        assert_eq!(served(&mut turns, &ready, 2), [11, 20], "each where it was");
        assert_eq!(served(&mut turns, &ready, 2), [30, 12]);
        assert!(served(&mut turns, &[], 2).is_empty());
    }

    #[test]
    fn a_late_turn_serves_one_session() {
        let mut turns = Turns::default();
        let mut turn = turns.begin([(AccountId(1), 10, ()), (AccountId(1), 11, ())].into_iter());
        turn.ends = Instant::now();
        assert_eq!(turns.next(&mut turn).map(|(session, ..)| session), Some(10));
        assert!(turns.next(&mut turn).is_none());
    }
}
