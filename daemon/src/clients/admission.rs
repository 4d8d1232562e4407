//! Admission control.
//!
//! Limits clients in total and per account, so that others find a place. A connection must open a
//! device within seconds; one that does not is closed.

use std::time::{Duration, Instant};

use nix::sys::epoll::{EpollEvent, EpollFlags};
use roced_abi::control::limit::AccountResource;
use roced_types::SessionId;
use tracing::{debug, warn};

use super::{
    Clients, SessionEnd,
    refused::Refused,
    session::{Session, SessionStage},
};
use crate::{
    accounts::ledger::{Charge, SharedPool},
    client_socket::connection::{ClientConnection, ClientProcess},
};

/// Connections accepted in one step: as many as sockets that are served in one.
const CONNECTIONS_A_TURN: usize = 64;

/// Sessions beyond the limits that are told so; more are dropped at once.
const ONE_TOO_MANY: usize = 16;

/// The same of one account.
const ONE_TOO_MANY_OF_AN_ACCOUNT: usize = 4;

/// From connecting to an open device. The library does all of it in one go; a guess for a machine
/// with far more programs than cores.
const HANDSHAKE_MAX: Duration = Duration::from_secs(5);

impl Clients {
    pub(super) fn accept(&mut self) {
        // No more: a client that closes as fast as it connects would occupy this thread for ever.
        // While places are being freed, a new connection waits for one in the backlog.
        for _ in 0..CONNECTIONS_A_TURN {
            if !self.ending.is_empty() && self.len() >= self.registry.limits.clients as usize {
                return;
            }
            let Some(connection) = self.listener.accept() else { return };
            self.admit(connection);
        }
    }

    fn admit(&mut self, connection: ClientConnection) {
        let peer = connection.peer();
        if connection.user().is_stuck() {
            self.note_fault(peer.account, |held_back| {
                warn!(pid = peer.pid, uid = peer.uid, held_back, "descriptors of its user do not close: turned away")
            });
            return connection.turn_away();
        }
        if connection.user().leaves_much_unread() {
            return self.note_fault(peer.account, |held_back| {
                let ClientProcess { pid, uid, .. } = peer;
                warn!(pid, uid, held_back, "replies of many ended sessions of its user are unread: turned away")
            });
        }
        let (stage, charge) = match self.stage_for(peer) {
            Ok(admitted) => admitted,
            Err(limit) => {
                let ClientProcess { pid, uid, account, .. } = peer;
                self.note_fault(account, |held_back| {
                    warn!(pid, uid, limit, held_back, "too many clients: turned away")
                });
                return;
            }
        };
        let number = self.next_number();
        let interest = EpollFlags::EPOLLIN | EpollFlags::EPOLLRDHUP;
        if let Err(errno) = self.epoll.add(&connection, EpollEvent::new(interest, number.into())) {
            self.note_fault(
                peer.account,
                |held_back| warn!(pid = peer.pid, %errno, held_back, "a client cannot be watched: turned away"),
            );
            return;
        }
        connection.report_to(&self.reports, number.into());
        debug!(session = number, pid = peer.pid, uid = peer.uid, "client connected");
        self.handshakes.push_back((Instant::now() + HANDSHAKE_MAX, number));
        self.sessions.insert(
            number,
            Session {
                id: SessionId(number),
                connection,
                place: charge,
                program: String::new(),
                stage,
                waiting: None,
                was_refused: false,
                stuck_since: None,
                unmapping_since: None,
            },
        );
    }

    /// Where a client begins, and the charge for its place; the limit that is reached when there is
    /// not even room to tell it.
    fn stage_for(&self, peer: ClientProcess) -> Result<(SessionStage, Option<Charge>), u64> {
        // An ending session does not count for its account any more: the next run of a large job
        // begins as the last one ends. (It has a place with the workers until the end, for which
        // `accept` makes new connections wait.)
        let limits = &self.registry.limits;
        self.registry.ledger.set_rule(peer.account, peer.access.rule);
        let reached = match self.registry.ledger.take(peer.account, SharedPool::Daemon(AccountResource::Clients), 1) {
            Ok(charge) if self.admitted() < limits.clients as usize => {
                return Ok((SessionStage::Connected, Some(charge)));
            }
            Ok(_) => Refused::limit(limits.clients),
            Err(reached) => reached.into(),
        };
        let beyond = || self.sessions.values().filter(|session| matches!(session.stage, SessionStage::OneTooMany(_)));
        let of_account = beyond().filter(|session| session.connection.peer().account == peer.account).count();
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
