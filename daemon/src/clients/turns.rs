//! Order in which sessions with calls are served.
//!
//! Users take turns, and the sessions of each: a user with many sessions that call without end has
//! the share of one user. A turn ends after some time, at any cost of the calls, and the rest is
//! served in the next one: the sockets stay readable.

use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant},
};

/// After this time the control thread does something else: its other work and its watchdog. A call
/// that is begun is carried out, and some take a millisecond.
const TIME_AT_ONCE: Duration = Duration::from_millis(2);

/// After this time another user is served.
const TIME_OF_A_SESSION: Duration = Duration::from_micros(500);

/// Users whose last session is remembered, at most; a guess.
const USERS: usize = 1024;

/// The user that was served last, and the session of each.
#[derive(Debug, Default)]
pub(super) struct Turns {
    user: u32,
    /// By user.
    sessions: BTreeMap<u32, u32>,
}

/// Sessions that have something to say, in the order of their service.
#[derive(Debug)]
pub(super) struct Turn<T> {
    users: VecDeque<(u32, VecDeque<(u32, T)>)>,
    ends: Instant,
}

impl Turns {
    /// Begins a turn of these sessions, each with its user.
    pub(super) fn begin<T>(&self, ready: impl Iterator<Item = (u32, u32, T)>) -> Turn<T> {
        let mut users = BTreeMap::<u32, VecDeque<(u32, T)>>::new();
        for (uid, session, what) in ready {
            users.entry(uid).or_default().push_back((session, what));
        }
        let mut users: VecDeque<_> = users.into_iter().collect();
        for (uid, sessions) in &mut users {
            sessions.make_contiguous().sort_by_key(|(session, _)| *session);
            if let Some(last) = self.sessions.get(uid) {
                sessions.rotate_left(sessions.partition_point(|(session, _)| session <= last) % sessions.len());
            }
        }
        if !users.is_empty() {
            users.rotate_left(users.partition_point(|(uid, _)| *uid <= self.user) % users.len());
        }
        Turn { users, ends: Instant::now() + TIME_AT_ONCE }
    }

    /// The next session of the turn, if there is time for one, and until when it may be served.
    pub(super) fn next<T>(&mut self, turn: &mut Turn<T>) -> Option<(u32, T, Instant)> {
        let now = Instant::now();
        if now >= turn.ends {
            return None;
        }
        let (uid, mut sessions) = turn.users.pop_front()?;
        let (session, what) = sessions.pop_front()?;
        if !sessions.is_empty() {
            turn.users.push_back((uid, sessions));
        }
        if self.sessions.len() >= USERS {
            self.sessions.clear();
        }
        self.user = uid;
        self.sessions.insert(uid, session);
        Some((session, what, now + TIME_OF_A_SESSION))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sessions are served as `numbers` of them have time each turn.
    fn served(turns: &mut Turns, ready: &[(u32, u32)], numbers: usize) -> Vec<u32> {
        let mut turn = turns.begin(ready.iter().map(|(uid, session)| (*uid, *session, ())));
        turn.ends += Duration::from_secs(100);
        (0..numbers).map_while(|_| turns.next(&mut turn)).map(|(session, (), _)| session).collect()
    }

    #[test]
    fn users_take_turns_and_so_do_their_sessions() {
        let mut turns = Turns::default();
        let ready = [(1, 10), (1, 11), (1, 12), (2, 20), (3, 30), (3, 31)];
        assert_eq!(served(&mut turns, &ready, 9), [10, 20, 30, 11, 31, 12]);
        assert_eq!(served(&mut turns, &ready, 4), [20, 30, 10, 31]);
        assert_eq!(served(&mut turns, &ready, 2), [11, 20], "each where it was");
        assert_eq!(served(&mut turns, &ready, 2), [30, 12]);
        assert!(served(&mut turns, &[], 2).is_empty());
    }

    #[test]
    fn a_turn_ends() {
        let mut turns = Turns::default();
        let mut turn = turns.begin([(1, 10, ())].into_iter());
        turn.ends = Instant::now();
        assert!(turns.next(&mut turn).is_none());
    }
}
