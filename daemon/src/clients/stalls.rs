//! Accounts of sessions with memory that stalls workers.

use std::{collections::VecDeque, time::Duration};

use roced_types::{AccountId, SessionId};

/// Debt with which all sessions of an account end.
pub(super) const DEBT_MAX: Duration = Duration::from_secs(1);

/// Ended sessions with a known account: a stall is reported within a poll iteration.
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

    pub(super) fn account_of(&self, session: SessionId) -> Option<AccountId> {
        self.0.iter().rev().find(|(ended, _)| *ended == session).map(|(_, account)| *account)
    }
}
