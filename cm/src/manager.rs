//! Connections of one host: calls of programs and datagrams in, datagrams and events out.
//!
//! The caller gives the time with each call, sends all of [`ConnectionManager::poll_transmit`], and
//! calls [`ConnectionManager::on_timeout`] at [`ConnectionManager::poll_timeout`] at the latest.

mod active;
mod ending;
mod orphans;
mod passive;
mod receive;
mod sidr;

use alloc::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};
use core::time::Duration;

use roced_types::{AccountId, DeviceId, Qpn};
use thiserror::Error;

use self::orphans::Orphans;
pub use self::{
    active::Connect,
    passive::Accept,
    sidr::{FindService, ServiceAnswer},
};
use crate::{
    connection::{CmConnection, CmState, PeerAddress, Repeated},
    counters::CmCounters,
    event::CmEvent,
    observer::CmObserver,
    random::{Generator, NumberUse},
    refused::{RefusalCause, RefusedConnection},
    time,
    wire::{
        AdditionalInfo, CaGuid, CmMessage, CommId, Mad, Rej, RejectedMessage, ServiceId, TransactionId, reject_reason,
    },
};

/// Reasons why a call was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CmError {
    /// No such connection.
    #[error("no connection of that number")]
    Unknown,
    /// The call does not fit the connection's state.
    #[error("the connection is in another state: {0:?}")]
    State(CmState),
    /// Another listener has the service ID.
    #[error("another listener has the service ID")]
    Listening,
    /// The limit of connections.
    #[error("too many connections")]
    Full,
}

/// A datagram to be sent to queue pair 1 of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmTransmit {
    /// Addresses.
    pub to: PeerAddress,
    /// Datagram.
    pub mad: Mad,
    /// An answer that any host can cause in the name of its receiver, without end: about a
    /// connection that is not the receiver's, or to a message that came again. To be sent at a
    /// bounded rate: its receiver repeats the message if it means it.
    pub is_bounded: bool,
}

/// Settings of a connection manager.
#[derive(Clone, Debug)]
pub struct CmConfig {
    /// Seed of unpredictable numbers: random bytes of the kernel, except in tests.
    pub seed: [u8; 32],
    /// Connections at a time, those in TIMEWAIT included.
    pub connections_max: usize,
    /// For threads that sort datagrams before they come here.
    pub observer: Arc<dyn CmObserver>,
}

impl CmConfig {
    /// Without an observer.
    pub fn new(seed: [u8; 32], connections_max: usize) -> Self {
        Self { seed, connections_max, observer: Arc::new(()) }
    }
}

/// Connections without their program, at most: this part of all. By default a user has half of
/// that.
const ORPHANS_PART: usize = 2;

/// Requests to one peer that are under way at a time: sent, not answered, and not repeated yet.
/// More at once would be lost in the queues of both hosts, each at the cost of a repetition.
const ASKED_MAX: usize = 64;

/// How long a peer that has not confirmed is disconnected: some repetitions, because there may be
/// none.
const WITHDRAWN: Duration = Duration::from_secs(10);

/// How long a DREQ counts as under way: 32,000 a second are told to a peer with a program that does
/// not answer them. A guess: more than a control thread serves.
const DREQ_COUNTED: Duration = Duration::from_millis(2);

/// Refusals that wait for the log, at most.
const REFUSED_MAX: usize = 64;

/// Requests to a peer.
#[derive(Clone, Debug, Default)]
struct PeerRequests {
    under_way: BTreeSet<CommId>,
    /// In their order, each with the time that it may take.
    waiting: VecDeque<(CommId, Duration)>,
}

#[derive(Clone, Copy, Debug)]
struct CmListener {
    generation: u64,
    backlog: u32,
    waiting: u32,
}

/// The key of a connection by its peer's numbers. Unknown peers cannot use it: the address is in
/// it.
type RemoteKey<Number> = (PeerAddress, CaGuid, Number);

/// The connections of one host.
#[derive(Debug)]
pub struct ConnectionManager {
    /// The adapters, by which peers tell hosts apart.
    adapters: BTreeMap<DeviceId, CaGuid>,
    connections_max: usize,
    random: Generator,
    /// Time of the last call that gave one.
    now: Duration,
    connections: BTreeMap<CommId, CmConnection>,
    observer: Arc<dyn CmObserver>,
    by_remote: BTreeMap<RemoteKey<CommId>, CommId>,
    by_remote_qpn: BTreeMap<RemoteKey<Qpn>, CommId>,
    /// Connections that have their queue pair of this host.
    with_qp: BTreeSet<(Qpn, CommId)>,
    /// Connections of each peer that it has confirmed, and that are not over.
    confirmed: BTreeMap<PeerAddress, u32>,
    /// Questions for datagram services, by their peer and its number.
    by_question: BTreeMap<(PeerAddress, CommId), CommId>,
    /// Answered ones that are kept, oldest first.
    answered: VecDeque<CommId>,
    orphans: Orphans,
    /// Requests that are under way to a peer for a user, and those that wait for their turn: DREQs
    /// (`true`) apart, for others wait for the peer's programs.
    asked: BTreeMap<(PeerAddress, AccountId, bool), PeerRequests>,
    listeners: BTreeMap<ServiceId, CmListener>,
    last_generation: u64,
    timers: BTreeSet<(Duration, CommId)>,
    outbox: VecDeque<CmTransmit>,
    events: VecDeque<CmEvent>,
    refused: VecDeque<RefusedConnection>,
    counters: CmCounters,
}

impl ConnectionManager {
    /// Without connections and listeners.
    pub fn new(config: &CmConfig) -> Self {
        Self {
            adapters: BTreeMap::new(),
            connections_max: config.connections_max,
            random: Generator::new(config.seed, NumberUse::Connections),
            now: Duration::ZERO,
            connections: BTreeMap::new(),
            observer: Arc::clone(&config.observer),
            by_remote: BTreeMap::new(),
            by_remote_qpn: BTreeMap::new(),
            with_qp: BTreeSet::new(),
            confirmed: BTreeMap::new(),
            by_question: BTreeMap::new(),
            answered: VecDeque::new(),
            orphans: Orphans::default(),
            asked: BTreeMap::new(),
            listeners: BTreeMap::new(),
            last_generation: 0,
            timers: BTreeSet::new(),
            outbox: VecDeque::new(),
            events: VecDeque::new(),
            refused: VecDeque::new(),
            counters: CmCounters::default(),
        }
    }

    /// Sets another limit of connections: those that are there stay.
    pub fn set_connections_max(&mut self, connections_max: usize) {
        self.connections_max = connections_max;
    }

    /// Names the adapter of a device: its node GUID.
    pub fn set_adapter(&mut self, device: DeviceId, ca: CaGuid) {
        self.adapters.insert(device, ca);
    }

    /// The next datagram to be sent.
    pub fn poll_transmit(&mut self) -> Option<CmTransmit> {
        self.outbox.pop_front()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<CmEvent> {
        self.events.pop_front()
    }

    /// The next refusal for the log. Those beyond 64 that were not taken are not kept.
    pub fn poll_refused(&mut self) -> Option<RefusedConnection> {
        self.refused.pop_front()
    }

    /// When [`Self::on_timeout`] is to be called.
    pub fn poll_timeout(&self) -> Option<Duration> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Counters so far.
    pub const fn counters(&self) -> &CmCounters {
        &self.counters
    }

    /// Connections, those in TIMEWAIT included.
    pub fn len(&self) -> usize {
        self.connections.len()
    }

    /// Connections of which a DREQ is not answered.
    pub fn disconnecting(&self) -> usize {
        self.connections.values().filter(|connection| connection.state == CmState::DreqSent).count()
    }

    /// Answers about datagram services that are kept for repetitions of the question; they count as
    /// connections.
    pub fn kept_answers(&self) -> usize {
        self.by_question.values().filter(|id| self.state(**id) == Some(CmState::TimeWait)).count()
    }

    /// No connection.
    pub fn is_empty(&self) -> bool {
        self.connections.is_empty() && self.confirmed.is_empty()
    }

    /// A connection causes no further event.
    pub(crate) fn is_silent(&self, id: CommId) -> bool {
        self.connections.get(&id).is_none_or(|connection| connection.is_orphan)
    }

    /// State of a connection.
    pub fn state(&self, id: CommId) -> Option<CmState> {
        self.connections.get(&id).map(|connection| connection.state)
    }

    /// Queue pairs of a connection, the peer's second; 0 before they are known.
    pub fn queue_pairs(&self, id: CommId) -> [Qpn; 2] {
        self.connections.get(&id).map_or([Qpn::from_wire(0); 2], |it| [it.qpn, it.remote_qpn])
    }

    /// Timers that have expired by `now`.
    pub fn on_timeout(&mut self, now: Duration) {
        self.now = now;
        while let Some((at, id)) = self.timers.first().copied().filter(|(at, _)| *at <= now) {
            self.timers.remove(&(at, id));
            let Some(connection) = self.connections.get_mut(&id) else { continue };
            connection.deadline = None;
            match connection.state {
                CmState::TimeWait => self.leave_time_wait(id),
                _ => self.repeat(id, now),
            }
        }
    }

    /// Sends the message of a connection once more, or gives it up.
    fn repeat(&mut self, id: CommId, now: Duration) {
        let random = self.random.next();
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let Some(repeated) = connection.repeated.as_mut().filter(|repeated| now < repeated.until) else {
            return self.give_up(id, now);
        };
        let of = (connection.peer, connection.account);
        // Repetitions of a SIDR_REQ come late, and a DREQ waits for the peer's program: others do
        // not wait for that.
        let is_slow = matches!(connection.state, CmState::SidrReqSent | CmState::DreqSent);
        if is_slow && core::mem::take(&mut repeated.is_counted) {
            let next = (now + interval(connection.state, 1, random)).min(repeated.until);
            self.set_deadline(id, Some(next));
            return self.no_longer_asks(id, of, now);
        }
        repeated.sent += 1;
        let is_first = repeated.sent == 2;
        let next = (now + interval(connection.state, repeated.sent, random)).min(repeated.until);
        let (to, mad) = (connection.peer, repeated.mad);
        // The time that an MRA asked for is over.
        connection.state = match connection.state {
            CmState::MraReqReceived => CmState::ReqSent,
            CmState::MraRepReceived => CmState::RepSent,
            state => state,
        };
        // A question whether the peer has forgotten the connection: any host can cause it.
        let is_bounded = matches!(mad.message, CmMessage::Dreq(_)) && connection.state != CmState::DreqSent;
        self.counters.of_mut(mad.message.attribute()).repeated += 1;
        self.outbox.push_back(CmTransmit { to, mad, is_bounded });
        self.set_deadline(id, Some(next));
        if is_first {
            self.no_longer_asks(id, of, now);
        }
    }

    /// The peer has not answered.
    fn give_up(&mut self, id: CommId, now: Duration) {
        let Some(connection) = self.connections.get(&id) else { return };
        if matches!(connection.state, CmState::ReqSent | CmState::MraReqReceived | CmState::SidrReqSent) {
            self.note_refused_connection(id, Some(connection.account), RefusalCause::NoAnswer);
        }
        let Some(connection) = self.connections.get(&id) else { return };
        match connection.state {
            CmState::DreqSent => {
                self.tell(id, CmEvent::Disconnected { id, timed_out: true });
                self.enter_time_wait(id, now);
            }
            // Without a time limit: the program has to act.
            CmState::RepReceived | CmState::Established | CmState::DreqReceived | CmState::TimeWait => {}
            CmState::SidrReqSent | CmState::SidrReqReceived => {
                self.tell(id, CmEvent::Unreachable { id });
                self.forget(id);
            }
            CmState::ReqSent | CmState::MraReqReceived => {
                self.send_rej(id, RejectedMessage::Other, reject_reason::TIMEOUT);
                self.tell(id, CmEvent::Unreachable { id });
                self.forget(id);
            }
            CmState::ReqReceived => {
                self.send_rej(id, RejectedMessage::Other, reject_reason::TIMEOUT);
                self.tell(id, CmEvent::Unreachable { id });
                self.enter_time_wait(id, now);
            }
            CmState::RepSent | CmState::MraRepReceived => {
                self.send_rej(id, RejectedMessage::Other, reject_reason::TIMEOUT);
                self.tell(id, CmEvent::Unreachable { id });
                self.withdraw(id, WITHDRAWN, now);
            }
        }
    }

    /// A queue pair was destroyed: its number may be another one's soon. Its connections stay until
    /// their programs end them, or their peers ask because of that other one.
    pub fn on_queue_pair_gone(&mut self, qpn: Qpn) {
        let of_it = (qpn, CommId(0))..=(qpn, CommId(u32::MAX));
        while let Some(&connection) = self.with_qp.range(of_it.clone()).next() {
            self.with_qp.remove(&connection);
        }
    }

    /// The user that a peer's request is for.
    pub(crate) fn set_account(&mut self, id: CommId, account: AccountId) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.account = account;
        }
    }

    fn ca(&self, device: DeviceId) -> CaGuid {
        self.adapters.get(&device).copied().unwrap_or_default()
    }

    /// The first message of a conversation names it.
    fn set_transaction(&mut self, id: CommId) {
        let transaction = TransactionId(u64::from(self.random.next()) << 32 | u64::from(id.0));
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.transaction = transaction;
        }
    }

    fn insert(&mut self, connection: CmConnection) -> Result<CommId, CmError> {
        if self.connections.len() >= self.connections_max {
            return Err(CmError::Full);
        }
        let id = loop {
            let id = CommId(self.random.next());
            if id != CommId(0) && !self.connections.contains_key(&id) {
                break id;
            }
        };
        self.observer.on_number(id, &connection.peer);
        self.connections.insert(id, connection);
        self.index(id);
        Ok(id)
    }

    /// Enters a connection under its peer's numbers, as far as they are known. Of several that name
    /// the same queue pair the last one counts, until the peer confirms one.
    fn index(&mut self, id: CommId) {
        let connection = &self.connections[&id];
        let CmConnection { peer, remote_ca, remote, remote_qpn, .. } = *connection;
        if remote != CommId(0) && remote_qpn != Qpn::from_wire(0) {
            self.by_remote.insert((peer, remote_ca, remote), id);
            self.by_remote_qpn.insert((peer, remote_ca, remote_qpn), id);
        }
    }

    fn set_deadline(&mut self, id: CommId, deadline: Option<Duration>) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if let Some(old) = connection.deadline {
            self.timers.remove(&(old, id));
        }
        connection.deadline = deadline;
        if let Some(at) = deadline {
            self.timers.insert((at, id));
        }
    }

    /// An event for the program, if that is still there.
    fn tell(&mut self, id: CommId, event: CmEvent) {
        if self.connections.get(&id).is_some_and(|connection| !connection.is_orphan) {
            self.events.push_back(event);
        }
    }

    /// Notes a refusal for the log.
    fn note_refused(&mut self, refused: RefusedConnection) {
        if self.refused.len() < REFUSED_MAX {
            self.refused.push_back(refused);
        }
    }

    /// Notes the refusal of a connection, of the program of user `account`, for the log.
    fn note_refused_connection(&mut self, id: CommId, account: Option<AccountId>, cause: RefusalCause) {
        if let Some(&CmConnection { peer, service_id, .. }) = self.connections.get(&id) {
            self.note_refused(RefusedConnection { peer, service_id, account, cause });
        }
    }

    /// Sends a message once.
    fn send(&mut self, to: PeerAddress, transaction: TransactionId, message: CmMessage) {
        self.counters.of_mut(message.attribute()).sent += 1;
        let mad = Mad { transaction, modifier: 0, message };
        self.outbox.push_back(CmTransmit { to, mad, is_bounded: false });
    }

    /// Sends an answer that any host can cause, see [`CmTransmit::is_bounded`].
    fn send_bounded(&mut self, to: PeerAddress, transaction: TransactionId, message: CmMessage) {
        self.counters.of_mut(message.attribute()).sent += 1;
        let mad = Mad { transaction, modifier: 0, message };
        self.outbox.push_back(CmTransmit { to, mad, is_bounded: true });
    }

    /// Sends an answer of [`Self::send_bounded`] again.
    fn send_again(&mut self, to: PeerAddress, mad: Mad) {
        self.counters.of_mut(mad.message.attribute()).repeated += 1;
        self.outbox.push_back(CmTransmit { to, mad, is_bounded: true });
    }

    /// Sends a message of a connection, and again until an answer comes or `total` is over.
    fn send_repeated(&mut self, id: CommId, message: CmMessage, now: Duration, total: Duration) {
        let random = self.random.next();
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let mad = Mad { transaction: connection.transaction, modifier: 0, message };
        connection.repeated = Some(Repeated { mad, sent: 1, is_counted: true, until: now + total });
        let to = connection.peer;
        self.counters.of_mut(message.attribute()).sent += 1;
        self.outbox.push_back(CmTransmit { to, mad, is_bounded: false });
        let first = match message {
            CmMessage::Dreq(_) => DREQ_COUNTED,
            _ => time::repetition(1, random),
        };
        let first = first.min(total);
        self.set_deadline(id, Some(now + first));
    }

    /// Sends a request as soon as not too many others are under way to its peer.
    fn ask(&mut self, id: CommId, message: CmMessage, now: Duration, total: Duration) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let is_end = matches!(message, CmMessage::Dreq(_));
        let asked = self.asked.entry((connection.peer, connection.account, is_end)).or_default();
        if asked.under_way.len() >= ASKED_MAX {
            let mad = Mad { transaction: connection.transaction, modifier: 0, message };
            connection.repeated = Some(Repeated { mad, sent: 0, is_counted: false, until: now + total });
            asked.waiting.push_back((id, total));
            // Of a message that is repeated no more.
            return self.set_deadline(id, None);
        }
        asked.under_way.insert(id);
        self.send_repeated(id, message, now, total);
    }

    /// A request is answered, repeated or given up: another one may be sent.
    fn no_longer_asks(&mut self, id: CommId, (peer, account): (PeerAddress, AccountId), now: Duration) {
        let mut lines = [false, true].map(|is_end| (peer, account, is_end)).into_iter();
        let line = lines.find(|line| self.asked.get_mut(line).is_some_and(|asked| asked.under_way.remove(&id)));
        let Some((of, asked)) = line.and_then(|of| Some((of, self.asked.get_mut(&of)?))) else { return };
        while let Some((next, total)) = asked.waiting.pop_front() {
            // Those that were destroyed meanwhile are skipped.
            let waits = self.connections.get(&next).and_then(|it| it.repeated.filter(|repeated| repeated.sent == 0));
            if let Some(Repeated { mad, .. }) = waits {
                asked.under_way.insert(next);
                return self.send_repeated(next, mad.message, now, total);
            }
        }
        if asked.under_way.is_empty() {
            self.asked.remove(&of);
        }
    }

    /// A connection goes on without its program. Of too many, one of the user with most is
    /// forgotten: programs that come and go take the places of no other user.
    fn keep_orphan(&mut self, id: CommId) {
        let Some(connection) = self.connections.get_mut(&id).filter(|it| it.orphan_place.is_none()) else { return };
        connection.orphan_place = Some(self.orphans.add(connection.account, id));
        if self.orphans.count() > (self.connections_max / ORPHANS_PART).max(1)
            && let Some(oldest) = self.orphans.oldest_of_most()
        {
            self.forget(oldest);
        }
    }

    /// Refuses a connection by a message of ours about `message`, and again if that shows that the
    /// REJ was lost.
    fn send_rej(&mut self, id: CommId, message: RejectedMessage, reason: u16) {
        let Some(connection) = self.connections.get(&id) else { return };
        let mut rej = Rej {
            local: id,
            remote: connection.remote,
            message,
            reason,
            info: AdditionalInfo::NONE,
            private_data: [0; 148],
        };
        if reason == reject_reason::TIMEOUT {
            // The peer may not know our number: it finds the connection by the adapter's.
            rej.info = AdditionalInfo::new(&self.ca(connection.peer.device).0.to_be_bytes());
        }
        let (to, transaction) = (connection.peer, connection.transaction);
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.answer = Some(Mad { transaction, modifier: 0, message: CmMessage::Rej(rej) });
        }
        self.send(to, transaction, CmMessage::Rej(rej));
    }

    /// The peer has named the connection by our number, and it is established.
    fn mark_confirmed(&mut self, id: CommId) {
        if let Some(connection) = self.connections.get_mut(&id)
            && !core::mem::replace(&mut connection.is_confirmed, true)
        {
            let count = self.confirmed.entry(connection.peer).or_insert(0);
            *count += 1;
            if *count == 1 {
                self.observer.on_connected(&connection.peer);
            }
        }
        self.note_confirmed(id);
    }

    /// The peer has said that it has the connection, or data of it has come.
    fn note_confirmed(&mut self, id: CommId) {
        if let Some(connection) = self.connections.get_mut(&id)
            && !core::mem::replace(&mut connection.was_confirmed, true)
        {
            self.index(id);
        }
    }

    /// The connection is over.
    fn unmark_confirmed(&mut self, id: CommId) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if core::mem::take(&mut connection.is_confirmed)
            && let Some(count) = self.confirmed.get_mut(&connection.peer)
        {
            *count -= 1;
            if *count == 0 {
                self.confirmed.remove(&connection.peer);
                self.observer.on_disconnected(&connection.peer);
            }
        }
    }

    /// The connection is over; its number stays until no packet of it is under way.
    fn enter_time_wait(&mut self, id: CommId, now: Duration) {
        self.leave_backlog(id);
        self.unmark_confirmed(id);
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.state = CmState::TimeWait;
        connection.repeated = None;
        let until = now + time::of_exponent(connection.ack_timeout);
        let of = (connection.peer, connection.account);
        self.set_deadline(id, Some(until));
        self.no_longer_asks(id, of, now);
    }

    fn leave_time_wait(&mut self, id: CommId) {
        self.tell(id, CmEvent::TimeWaitExit { id });
        self.forget(id);
    }

    /// Removes a connection and all that names it.
    fn forget(&mut self, id: CommId) {
        self.set_deadline(id, None);
        self.leave_backlog(id);
        self.unmark_confirmed(id);
        let Some(connection) = self.connections.remove(&id) else { return };
        self.observer.on_number_gone(id, &connection.peer);
        if let Some(place) = connection.orphan_place {
            self.orphans.remove(connection.account, place);
        }
        self.no_longer_asks(id, (connection.peer, connection.account), self.now);
        let CmConnection { peer, remote_ca, remote, qpn, remote_qpn, .. } = connection;
        self.with_qp.remove(&(qpn, id));
        if self.by_question.get(&(peer, remote)) == Some(&id) {
            self.by_question.remove(&(peer, remote));
        }
        if self.by_remote.get(&(peer, remote_ca, remote)) == Some(&id) {
            self.by_remote.remove(&(peer, remote_ca, remote));
        }
        if self.by_remote_qpn.get(&(peer, remote_ca, remote_qpn)) == Some(&id) {
            self.by_remote_qpn.remove(&(peer, remote_ca, remote_qpn));
        }
    }
}

/// Interval before repetition `sent`. A Linux peer takes a SIDR_REQ that comes again for another
/// one, so these are repeated as slowly as Linux does it.
fn interval(state: CmState, sent: u32, random: u32) -> Duration {
    match state {
        CmState::SidrReqSent => time::repetition(u32::MAX, random),
        _ => time::repetition(sent, random),
    }
}
