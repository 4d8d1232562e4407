//! Sessions with memory that stalls workers: charges, and ends.

use std::{collections::VecDeque, time::Duration};

use roced_types::{AccountId, SessionId};
use tracing::warn;

use super::{Clients, SessionEnd};

/// Debt with which all sessions of an account end.
const DEBT_MAX: Duration = Duration::from_secs(1);

/// Ended sessions whose account is known: a stall is reported within a poll iteration.
const ENDED: usize = 4096;

/// Accounts of sessions that have ended lately: one that leaves after a stall is charged.
#[derive(Debug, Default)]
pub(super) struct RecentlyEnded(VecDeque<(SessionId, AccountId)>);

impl RecentlyEnded {
    pub(super) fn add(&mut self, session: SessionId, account: AccountId) {
        if self.0.len() == ENDED {
            self.0.pop_front();
        }
        self.0.push_back((session, account));
    }

    fn account_of(&self, session: SessionId) -> Option<AccountId> {
        self.0.iter().rev().find(|(ended, _)| *ended == session).map(|(_, account)| *account)
    }
}

impl Clients {
    /// Memory of one of these sessions stalled a worker for longer than any poll iteration: the
    /// session ends. If they are of two different users, the cause is unknown, and neither may
    /// cause the end of the other; nor may a session that has left meanwhile.
    pub fn on_blocked(&mut self, sessions: [SessionId; 2]) {
        let peers = sessions.map(|session| self.sessions.get(&session.0).map(|session| session.connection.peer()));
        if !matches!(peers, [Some(one), Some(other)] if one.account == other.account) {
            // Of either of both; root's if both are gone.
            let account = peers.iter().flatten().next().map_or(AccountId(0), |peer| peer.account);
            return self.note_fault(account, |held_back| {
                warn!(?peers, held_back, "memory of one of two clients had a worker wait for a second or more")
            });
        }
        self.end_all(&sessions, "memory that it registered had a worker wait for a second or more");
    }

    /// Memory of these sessions, or of one of them, stalled a worker. Their account is charged; one
    /// that owes time loses these sessions, and all of them when it owes much. Of two accounts
    /// neither is charged, for the cause is unknown.
    pub fn on_stalled(&mut self, sessions: [SessionId; 2], time: Duration) {
        let accounts = sessions.map(|session| match self.sessions.get(&session.0) {
            Some(session) => Some(session.connection.peer().account),
            None => self.recently_ended.account_of(session),
        });
        let (Some(account), true) = (accounts[0], accounts[0] == accounts[1]) else {
            let account = accounts.into_iter().flatten().next().unwrap_or(AccountId(0));
            return self.note_fault(account, |held_back| {
                warn!(?accounts, ?time, held_back, "memory of one of two users stalled a worker")
            });
        };
        let debt = self.listener.users().user(account.0).charge_stall(time);
        if debt > DEBT_MAX {
            let of_account = self.sessions.values().filter(|session| session.connection.peer().account == account);
            let all: Vec<_> = of_account.map(|session| session.id).collect();
            self.end_all(&all, "memory of its user has had workers wait for a second longer than its stall budget");
        } else if !debt.is_zero() {
            self.end_all(&sessions, "memory that it registered has had workers wait for longer than its stall budget");
        }
    }

    fn end_all(&mut self, sessions: &[SessionId], why: &str) {
        for session in sessions {
            self.end(session.0, &SessionEnd::Fault(why.into()));
        }
    }
}
