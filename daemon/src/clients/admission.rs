//! Admission control.
//!
//! Limits clients in total and per account, so that others find a place. A connection must open a
//! device within seconds; one that does not is closed.
//!
//! A connection counts as a call of its account. One that comes when its account may not call waits
//! as a call does, with its place: it is not watched, and one without a place is turned away
//! untold. As connections wait in one line for all users, these are accepted as well, but a bounded
//! number a second: the listener rests after some.

use std::time::{Duration, Instant};

use nix::sys::epoll::{EpollEvent, EpollFlags};
use roced_abi::control::limit::AccountResource;
use roced_types::SessionId;
use tracing::{debug, warn};

use super::{Clients, LISTENER, SessionEnd};
use crate::{
    accounts::{
        call_rate::{CallClock, PAUSE},
        ledger::{Charge, SharedPool},
    },
    calls::{
        refused::Refused,
        session::{Session, SessionStage, WaitingCall},
    },
    client_socket::connection::{ClientConnection, ClientProcess},
};

/// Connections accepted in one step: as many as sockets that are served in one.
const CONNECTIONS_A_TURN: usize = 64;

/// Time for which connections are accepted in one step.
const ACCEPTING_AT_ONCE: Duration = Duration::from_micros(500);

/// Sessions beyond the limits that are told so; more are dropped at once.
const ONE_TOO_MANY: usize = 16;

/// Sessions of one account beyond the limits that are told so.
const ONE_TOO_MANY_OF_AN_ACCOUNT: usize = 4;

/// Time from connecting to an open device. The library does all of it in one go; a guess for a
/// machine with far more programs than cores.
const HANDSHAKE_MAX: Duration = Duration::from_secs(5);

impl Clients {
    /// Accepts some connections. `has_closed`: the programs of some sessions have closed their
    /// sockets, and these sessions have not ended: there was no time, or calls are throttled.
    pub(super) fn accept(&mut self, has_closed: bool) {
        let mut clock = CallClock::start();
        let until = clock.now() + ACCEPTING_AT_ONCE;
        let mut is_flood = false;
        // No more: a client that closes as fast as it connects would occupy this thread for ever.
        // While places are being freed, a new connection waits for one in the backlog.
        for _ in 0..CONNECTIONS_A_TURN {
            let is_freed_soon = has_closed || !self.ending.is_empty();
            if is_freed_soon && self.len() >= self.registry.limits.clients as usize {
                break;
            }
            let Some(connection) = self.listener.accept() else { break };
            let process = connection.process();
            self.registry.ledger.set_rule(process.account, process.access.rule);
            let per_second = self.registry.ledger.calls_per_second(process.account);
            let is_early = !self.call_rates.admits(process.account, per_second, clock.now());
            self.admit(connection, is_early);
            let took = clock.lap();
            if is_early {
                // It counts when its turn has come: no account owes more than a call.
                is_flood = true;
            } else {
                self.call_rates.charge(process.account, took, true);
            }
            if clock.now() >= until {
                break;
            }
        }
        if is_flood {
            self.listen_to_connections(false);
            self.accepts_at = Some(clock.now() + PAUSE);
        }
    }

    /// Accepts connections again.
    pub(super) fn end_pause(&mut self, now: Instant) {
        if self.accepts_at.take_if(|due| *due <= now).is_some() {
            self.listen_to_connections(true);
        }
    }

    fn listen_to_connections(&self, whether: bool) {
        let interest = if whether { EpollFlags::EPOLLIN } else { EpollFlags::empty() };
        // It cannot fail: the listener is in the set.
        let _ = self.epoll.modify(&self.listener, &mut EpollEvent::new(interest, LISTENER));
    }

    /// Admits a connection, or turns it away. `is_early`: its account may not call now.
    fn admit(&mut self, connection: ClientConnection, is_early: bool) {
        let process = connection.process();
        let ClientProcess { pid, uid, account, .. } = process;
        if connection.account().is_stuck() {
            self.note_fault(account, |held_back| {
                warn!(pid, uid, account = account.0, held_back, "descriptors of its user do not close: turned away")
            });
            return connection.turn_away();
        }
        if connection.account().leaves_much_unread() {
            return self.note_fault(account, |held_back| {
                warn!(
                    pid,
                    uid,
                    account = account.0,
                    held_back,
                    "replies of many ended sessions of its user are unread: turned away"
                )
            });
        }
        let (stage, charge) = match self.stage_for(process, is_early) {
            Ok(admitted) => admitted,
            Err(limit) => {
                self.note_fault(account, |held_back| {
                    warn!(pid, uid, account = account.0, limit, held_back, "too many clients: turned away")
                });
                return;
            }
        };
        let number = self.next_number();
        connection.report_to(&self.reports, number.into());
        debug!(session = number, pid, uid, account = account.0, is_early, "client connected");
        self.sessions.insert(
            number,
            Session {
                id: SessionId(number),
                connection,
                place: charge,
                program: String::new(),
                stage,
                waiting: is_early.then_some(WaitingCall::Connection),
                was_refused: false,
                stuck_since: None,
                unmapping_since: None,
            },
        );
        if is_early {
            self.enqueue(number, process.account, Instant::now());
        } else {
            self.begin(number);
        }
    }

    /// Serves a session from now on.
    pub(super) fn begin(&mut self, number: u32) {
        let Some(session) = self.sessions.get(&number) else { return };
        let (process, interest) = (session.connection.process(), EpollFlags::EPOLLIN | EpollFlags::EPOLLRDHUP);
        if let Err(errno) = self.epoll.add(&session.connection, EpollEvent::new(interest, number.into())) {
            self.sessions.remove(&number);
            return self.note_fault(
                process.account,
                |held_back| warn!(pid = process.pid, %errno, held_back, "a client cannot be watched: turned away"),
            );
        }
        self.handshakes.push_back((Instant::now() + HANDSHAKE_MAX, number));
    }

    /// Where a client begins, and the charge for its place; the limit that is reached when there is
    /// not even room to tell it.
    fn stage_for(&self, process: ClientProcess, is_early: bool) -> Result<(SessionStage, Option<Charge>), u64> {
        // An ending session no longer counts for its account: the next run of a large job
        // begins as the last one ends. (It has a place with the workers until the end, for which
        // `accept` makes new connections wait.)
        let limits = &self.registry.limits;
        let reached = match self.registry.ledger.take(process.account, SharedPool::Daemon(AccountResource::Clients), 1)
        {
            Ok(charge) if self.admitted() < limits.clients as usize => {
                return Ok((SessionStage::Connected, Some(charge)));
            }
            Ok(_) => Refused::limit(limits.clients),
            Err(reached) => reached.into(),
        };
        if is_early {
            return Err(reached.detail[0]);
        }
        let beyond = || self.sessions.values().filter(|session| matches!(session.stage, SessionStage::OneTooMany(_)));
        let of_account = beyond().filter(|session| session.connection.process().account == process.account).count();
        let is_room = beyond().count() < ONE_TOO_MANY && of_account < ONE_TOO_MANY_OF_AN_ACCOUNT;
        if is_room { Ok((SessionStage::OneTooMany(reached), None)) } else { Err(reached.detail[0]) }
    }

    /// Sessions with a place.
    fn admitted(&self) -> usize {
        self.sessions.values().filter(|session| session.place.is_some()).count()
    }

    fn next_number(&mut self) -> u32 {
        loop {
            self.last_session = self.last_session.wrapping_add(1).max(1);
            let number = self.last_session;
            if !self.sessions.contains_key(&number) && !self.ending.contains(SessionId(number)) {
                return number;
            }
        }
    }

    /// Deadline for opening a device.
    pub(super) fn handshake_due(&self) -> Option<Instant> {
        self.handshakes.front().map(|(due, _)| *due)
    }

    /// Closes the connections that have not opened a device in time.
    pub(super) fn end_handshakes(&mut self, now: Instant) {
        while let Some((_, number)) = self.handshakes.pop_front_if(|(due, _)| *due <= now) {
            if self
                .sessions
                .get(&number)
                .is_some_and(|session| !matches!(session.stage, SessionStage::Open(_) | SessionStage::Cm))
            {
                self.end(number, &SessionEnd::Fault("it does not open a device".into()));
            }
        }
    }
}
