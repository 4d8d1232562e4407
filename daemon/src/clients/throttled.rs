//! Sessions of accounts that call faster than they may.
//!
//! Their calls stay in their sockets, which are not watched meanwhile, until the account has calls
//! again: nothing is lost or refused. As many sessions as it has calls then are watched again, the
//! first first; they take turns with all others. New connections of the account wait in the same
//! line.

use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant},
};

use roced_types::AccountId;

use super::{Clients, serving::listen};
use crate::{
    accounts::call_rate::PAUSE,
    calls::session::{Session, WaitingCall},
};

/// Sessions that are throttled, by account.
#[derive(Debug, Default)]
pub(super) struct ThrottledSessions(BTreeMap<AccountId, ThrottledAccount>);

#[derive(Debug)]
struct ThrottledAccount {
    due: Instant,
    sessions: VecDeque<u32>,
}

impl ThrottledSessions {
    /// When some are to be watched again.
    pub(super) fn due(&self) -> Option<Instant> {
        self.0.values().map(|throttled| throttled.due).min()
    }

    /// A session ends.
    pub(super) fn forget(&mut self, account: AccountId, number: u32) {
        if let Some(throttled) = self.0.get_mut(&account) {
            throttled.sessions.retain(|session| *session != number);
            if throttled.sessions.is_empty() {
                self.0.remove(&account);
            }
        }
    }
}

impl Clients {
    /// Throttles a session of an account without calls left. Returns true if it is not to be served
    /// now.
    pub(super) fn throttles(&mut self, number: u32, account: AccountId, now: Instant) -> bool {
        let per_second = self.registry.ledger.calls_per_second(account);
        if self.call_rates.admits(account, per_second, now) {
            return false;
        }
        let Some(session) = self.sessions.get_mut(&number) else { return true };
        listen(&self.epoll, session, false);
        session.waiting = Some(WaitingCall::Throttled);
        self.enqueue(number, account, now);
        true
    }

    /// Puts a session into the line of its account.
    pub(super) fn enqueue(&mut self, number: u32, account: AccountId, now: Instant) {
        let per_second = self.registry.ledger.calls_per_second(account);
        self.registry.ledger.note_delayed_call(account);
        let due = self.call_rates.due(account, per_second, now);
        let throttled =
            self.throttled.0.entry(account).or_insert_with(|| ThrottledAccount { due, sessions: VecDeque::new() });
        throttled.sessions.push_back(number);
    }

    /// Watches sessions again that were throttled.
    pub(super) fn release_throttled(&mut self, now: Instant) {
        let due: Vec<_> = self
            .throttled
            .0
            .iter()
            .filter(|(_, throttled)| throttled.due <= now)
            .map(|(account, _)| *account)
            .collect();
        for account in due {
            let per_second = self.registry.ledger.calls_per_second(account);
            let calls = self.call_rates.calls(account, per_second, now);
            let throttled = self.throttled.0.get_mut(&account).expect("found above");
            let numbers: Vec<_> = throttled.sessions.drain(..calls.min(throttled.sessions.len())).collect();
            if throttled.sessions.is_empty() {
                self.throttled.0.remove(&account);
            } else {
                // Those that are watched again use up the calls.
                throttled.due = now + PAUSE;
            }
            for number in numbers {
                let Some(session) = self.sessions.get_mut(&number) else { continue };
                match session.waiting.take_if(|call| is_in_line(call)) {
                    Some(WaitingCall::Connection) => {
                        self.call_rates.charge(account, Duration::ZERO, true);
                        self.begin(number);
                    }
                    _ => listen(&self.epoll, session, true),
                }
            }
        }
    }
}

/// Returns true if the session is throttled.
pub(super) fn is_throttled(session: &Session) -> bool {
    session.waiting.as_ref().is_some_and(is_in_line)
}

const fn is_in_line(call: &WaitingCall) -> bool {
    matches!(call, WaitingCall::Throttled | WaitingCall::Connection)
}
