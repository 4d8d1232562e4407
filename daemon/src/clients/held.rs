//! Sessions of accounts that call faster than they may.
//!
//! Their calls stay in their sockets, which are not watched meanwhile, until the account has calls
//! again: nothing is lost or refused. As many sessions as it has calls then are watched again, the
//! first first; they take turns with all others.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Instant,
};

use roced_types::AccountId;

use super::{
    Clients,
    serving::listen,
    session::{Session, WaitingCall},
};
use crate::accounts::call_rate::PAUSE;

/// Sessions that are held back, by account.
#[derive(Debug, Default)]
pub(super) struct HeldSessions(BTreeMap<AccountId, HeldAccount>);

#[derive(Debug)]
struct HeldAccount {
    due: Instant,
    sessions: VecDeque<u32>,
}

impl HeldSessions {
    /// When some are to be watched again.
    pub(super) fn due(&self) -> Option<Instant> {
        self.0.values().map(|held| held.due).min()
    }

    /// A session ends.
    pub(super) fn forget(&mut self, account: AccountId, number: u32) {
        if let Some(held) = self.0.get_mut(&account) {
            held.sessions.retain(|session| *session != number);
            if held.sessions.is_empty() {
                self.0.remove(&account);
            }
        }
    }
}

impl Clients {
    /// True if a session of `account` is not to be served now, for which it is held back.
    pub(super) fn is_held_back(&mut self, number: u32, account: AccountId, now: Instant) -> bool {
        let per_second = self.registry.ledger.calls_per_second(account);
        if self.call_rates.admits(account, per_second, now) {
            return false;
        }
        let Some(session) = self.sessions.get_mut(&number) else { return true };
        listen(&self.epoll, session, false);
        session.waiting = Some(WaitingCall::HeldBack);
        self.registry.ledger.note_delayed_call(account);
        let due = self.call_rates.due(account, per_second, now);
        let held = self.held.0.entry(account).or_insert_with(|| HeldAccount { due, sessions: VecDeque::new() });
        held.sessions.push_back(number);
        true
    }

    /// Watches sessions again that were held back.
    pub(super) fn release_held(&mut self, now: Instant) {
        let due: Vec<_> = self.held.0.iter().filter(|(_, held)| held.due <= now).map(|(account, _)| *account).collect();
        for account in due {
            let per_second = self.registry.ledger.calls_per_second(account);
            let calls = self.call_rates.calls(account, per_second, now);
            let held = self.held.0.get_mut(&account).expect("found above");
            for number in held.sessions.drain(..calls.min(held.sessions.len())) {
                let Some(session) = self.sessions.get_mut(&number) else { continue };
                session.waiting.take_if(|call| matches!(call, WaitingCall::HeldBack));
                listen(&self.epoll, session, true);
            }
            if held.sessions.is_empty() {
                self.held.0.remove(&account);
            } else {
                // Those that are watched again use up the calls.
                held.due = now + PAUSE;
            }
        }
    }
}

/// The session is held back.
pub(super) const fn is_held(session: &Session) -> bool {
    matches!(session.waiting, Some(WaitingCall::HeldBack))
}
