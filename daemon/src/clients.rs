//! Clients: their connections, the order in which their calls are served, and their ends.
//!
//! The control thread owns everything here. Parts for a worker are prepared in
//! [`memory`](roced_memory) and handed over completely, so that no lock lies between a client and
//! its packets.
//!
//! ```text
//!   listener ─► connection ─► session: objects      messages in, replies and events out
//!                                │ calls            check, act, reply
//!                                ▼
//!                      workers     network          by the traits of `crate::environment`
//! ```
//!
//! Nothing here waits for a client: after an incomplete message, or one without room, another
//! client is served.

mod admission;
mod cm;
mod ending;
mod path_changes;
mod reports;
mod serving;
mod stalls;
mod throttled;
mod turns;

use std::{
    collections::{BTreeMap, VecDeque},
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout},
};
use roced_abi::control::{EVENT, Event, Message};
use roced_memory::{
    client_socket::{SentMessage, ThreadReports},
    queues::SleepBoard,
    quota::Quota,
    sigbus,
};
use roced_transport::qp::{LossCounts, QpFailure};
use roced_types::{
    AccountId, DeviceId, SessionId, address_of,
    event::{self, EventSubject},
};
use tracing::{debug, info, warn};

use self::{
    ending::EndingSessions,
    path_changes::PathChanges,
    serving::{ServiceStep, listen},
    stalls::{DEBT_MAX, RecentlyEnded},
    throttled::{ThrottledSessions, is_throttled},
    turns::Turns,
};
use crate::{
    accounts::call_rate::{CallClock, CallRates},
    calls::{
        CallHandler, DeviceSetup, Registry,
        session::{Session, SessionStage, WaitingCall},
    },
    client_socket::{connection::ClientProcess, listener::ClientListener},
    config::{LimitsConfig, RuleLimits},
    environment::Environment,
    log_limiter::AccountLogLimiter,
    net::NetworkChange,
    worker::{
        command::{Answer, Command},
        events::WorkerEvent,
        mad_filters::MadFilters,
    },
};

/// Messages of one session before the next has its turn.
const MESSAGES_A_TURN: usize = 16;

/// How long after a failure a thread of a user is begun again.
const THREAD_PAUSE: Duration = Duration::from_millis(100);

/// Sockets looked at in one go: all that have something, with the usual limits, so that their users
/// take turns.
const EVENTS: usize = 1024;

/// In the epoll set: the listener. Sessions stand there under their numbers, which begin at 1.
const LISTENER: u64 = 0;

/// In the epoll set: event channels of the connection manager stand there under their numbers, with
/// this bit.
const CM_CHANNEL: u64 = 1 << 32;

/// The other end of a socket is closed, or does not write any longer.
const CLOSED: EpollFlags = EpollFlags::EPOLLHUP.union(EpollFlags::EPOLLRDHUP).union(EpollFlags::EPOLLERR);

/// In the epoll set: threads of users have sent or received messages.
const REPORTS: u64 = u64::MAX - 1;

/// In the epoll set: memory was lost.
const LOST: u64 = u64::MAX;

/// All clients.
#[derive(Debug)]
pub struct Clients {
    listener: ClientListener,
    epoll: Epoll,
    sessions: BTreeMap<u32, Session>,
    /// Sessions that are over, of which something is left.
    ending: EndingSessions,
    /// Changes of paths that wait.
    path_changes: PathChanges,
    /// Sessions of which a call waits, until when.
    waiting: VecDeque<(u32, Instant)>,
    /// Deadlines for opening a device, in that order; connections that have opened one are still
    /// listed.
    handshakes: VecDeque<(Instant, u32)>,
    last_session: u32,
    recently_ended: RecentlyEnded,
    registry: Registry,
    faults: AccountLogLimiter,
    failures: AccountLogLimiter,
    comings: AccountLogLimiter,
    turns: Turns,
    /// Turns of the sessions of which a call waits.
    waiting_turns: Turns,
    call_rates: CallRates,
    /// Sessions of accounts that call faster than they may.
    throttled: ThrottledSessions,
    /// When connections are accepted again, if they are not now.
    accepts_at: Option<Instant>,
    /// When threads of users that could not be begun are tried again.
    threads_due: Instant,
    reports: ThreadReports,
    /// Room for events of the epoll set.
    events: Vec<EpollEvent>,
}

/// Why a session ends.
enum SessionEnd {
    /// The client has closed.
    Closed,
    /// It violated the ABI.
    Fault(String),
    /// The daemon stops.
    Stopping,
}

impl Clients {
    /// Clients of these devices, that come by `listener`; its rules have these limits. `board` has
    /// a place for each worker.
    ///
    /// # Errors
    /// The kernel's: no file descriptors, no random bytes.
    pub fn new(
        listener: ClientListener,
        devices: Vec<DeviceSetup>,
        limits: LimitsConfig,
        rules: Vec<RuleLimits>,
        board: SleepBoard,
        filters: &Arc<MadFilters>,
    ) -> Result<Self, Errno> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        epoll.add(&listener, EpollEvent::new(EpollFlags::EPOLLIN, LISTENER))?;
        epoll.add(sigbus::doorbell()?, EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, LOST))?;
        let reports = ThreadReports::new()?;
        let errno = |error: std::io::Error| error.raw_os_error().map_or(Errno::EIO, Errno::from_raw);
        listener.accounts().ring_for_missing_threads(&reports).map_err(errno)?;
        epoll.add(&reports, EpollEvent::new(EpollFlags::EPOLLIN, REPORTS))?;
        let registry = Registry::new(devices, limits, board, listener.accounts().clone(), rules, filters)?;
        let sessions = BTreeMap::new();
        Ok(Self {
            listener,
            epoll,
            sessions,
            ending: EndingSessions::default(),
            path_changes: PathChanges::default(),
            waiting: VecDeque::new(),
            handshakes: VecDeque::new(),
            last_session: 0,
            recently_ended: RecentlyEnded::default(),
            registry,
            faults: AccountLogLimiter::default(),
            failures: AccountLogLimiter::default(),
            comings: AccountLogLimiter::default(),
            turns: Turns::default(),
            waiting_turns: Turns::default(),
            call_rates: CallRates::default(),
            throttled: ThrottledSessions::default(),
            accepts_at: None,
            threads_due: Instant::now(),
            reports,
            events: vec![EpollEvent::empty(); EVENTS],
        })
    }

    /// Limits mappings of all clients to `most`, and those of one account to `most_of_an_account`,
    /// in place of the limits derived from the kernel's.
    #[must_use]
    pub fn with_mappings(mut self, most: u32, most_of_an_account: u32) -> Self {
        self.registry.quota = Quota::new(most, most_of_an_account).unmapped_by(self.listener.accounts().clone());
        self
    }

    /// Sets the limits that can change while the daemon runs: those of each client, and of the
    /// connection manager. A session with more than they allow keeps its objects.
    pub fn set_limits(&mut self, limits: &LimitsConfig) {
        let LimitsConfig { clients: _, account, client, device: _, cm } = limits;
        self.registry.limits.client = client.clone();
        self.registry.ledger.set_limits(account);
        self.registry.cm.set_limits(*cm);
    }

    /// Accepts connections and serves calls. To be called when [`AsFd::as_fd`] is readable;
    /// remaining work keeps it so.
    pub fn on_readable(&mut self, environment: &mut Environment<'_>) {
        let mut events = std::mem::take(&mut self.events);
        let ready = match self.epoll.wait(&mut events, EpollTimeout::ZERO) {
            Ok(ready) => ready,
            Err(Errno::EINTR) => 0,
            Err(error) => panic!("an epoll set of our own can be polled: {error}"),
        };
        self.serve_ready(&events[..ready], environment);
        self.events = events;
        self.ending.end_some(&mut self.registry, environment);
        self.end_some_ids(environment);
    }

    /// Serves sockets with events for a while, in the order of [`Turns`].
    fn serve_ready(&mut self, events: &[EpollEvent], environment: &mut Environment<'_>) {
        if events.iter().any(|event| event.data() == LOST) {
            self.end_sessions_with_lost_memory();
        }
        if events.iter().any(|event| event.data() == REPORTS) {
            self.take_reports();
        }
        let sockets =
            events.iter().filter(|event| !matches!(event.data(), LISTENER | LOST | REPORTS)).filter_map(|event| {
                let number = event.data() as u32;
                if event.data() & CM_CHANNEL != 0 {
                    // A number of its own: channels take turns with sessions.
                    return Some((self.registry.cm.account_of_channel(number)?, number, *event));
                }
                let session = self.sessions.get(&number)?;
                Some((session.connection.process().account, number, *event))
            });
        let mut turn = self.turns.begin(sockets);
        while let Some((number, event, until)) = self.turns.next(&mut turn) {
            if event.data() & CM_CHANNEL != 0 {
                self.on_cm_channel(number, event.events(), environment);
            } else {
                self.on_socket(number, event.events(), until, environment);
            }
        }
        // Afterward: a place of a session that has ended is not free before its objects are
        // destroyed.
        if events.iter().any(|event| event.data() == LISTENER) {
            let mut closed = events.iter().filter(|event| event.events().intersects(CLOSED));
            let has_closed =
                closed.any(|event| u32::try_from(event.data()).is_ok_and(|number| self.sessions.contains_key(&number)));
            self.accept(has_closed);
        }
    }

    /// When [`Self::on_deadline`] wants to be called.
    pub fn deadline(&self) -> Option<Instant> {
        let ending = self.registry.cm.is_ending().then(Instant::now);
        let waiting = self.waiting.iter().map(|(_, due)| *due);
        let threads = self.listener.accounts().are_threads_missing().then_some(self.threads_due);
        let changing = (!self.path_changes.is_empty()).then(Instant::now);
        let own = [
            ending,
            changing,
            threads,
            self.accepts_at,
            self.ending.due(),
            self.handshake_due(),
            self.throttled.due(),
            self.cm_deadline(),
        ];
        own.into_iter().flatten().chain(waiting).min()
    }

    /// Continues work of several steps, and closes connections that take too long to open a device.
    pub fn on_deadline(&mut self, now: Instant, environment: &mut Environment<'_>) {
        self.end_handshakes(now);
        self.release_throttled(now);
        self.end_pause(now);
        if self.threads_due <= now && self.listener.accounts().are_threads_missing() {
            self.listener.accounts().begin_missing_threads();
            self.threads_due = now + THREAD_PAUSE;
        }
        self.serve_waiting(now, environment);
        self.change_some_paths(environment);
        self.ending.end_some(&mut self.registry, environment);
        self.end_some_ids(environment);
        self.on_cm_deadline(now, environment);
        self.watch_cm_channels();
    }

    /// Continues calls that wait and are due: one step of each session, for a while, in the order
    /// of [`Turns`].
    fn serve_waiting(&mut self, now: Instant, environment: &mut Environment<'_>) {
        let due = self.waiting.iter().filter(|(_, due)| *due <= now).filter_map(|(number, _)| {
            let session = self.sessions.get(number)?;
            Some((session.connection.process().account, *number, ()))
        });
        let mut turn = self.waiting_turns.begin(due);
        // Those that have ended have no turn.
        self.waiting.retain(|(number, _)| self.sessions.contains_key(number));
        while let Some((number, (), _)) = self.waiting_turns.next(&mut turn) {
            self.waiting.retain(|(waiting, _)| *waiting != number);
            self.serve(number, now, environment);
        }
    }

    /// A worker has an event.
    pub fn on_worker_event(&mut self, event: WorkerEvent, environment: &mut Environment<'_>) {
        match event {
            WorkerEvent::Fault { session, fault } => self.end(session.0, &SessionEnd::Fault(fault.to_string())),
            WorkerEvent::Key { session, change } => {
                let Some(Session { stage: SessionStage::Open(objects), .. }) = self.sessions.get_mut(&session.0) else {
                    return;
                };
                CallHandler { registry: &mut self.registry, session, objects, environment }.change_key(change);
            }
            WorkerEvent::Stalled { sessions, time } => self.on_stalled(sessions, time),
            // Of no session.
            WorkerEvent::PauseStorm { .. } => {}
            WorkerEvent::Failed { session, failure } => self.note_failure(session, failure),
            WorkerEvent::Object { session, handle, kind } => {
                // The object may have been destroyed while the event was on its way.
                let session = session.0;
                if let Some(Session { stage: SessionStage::Open(objects), .. }) = self.sessions.get(&session)
                    && objects.has(EventSubject::of(kind), handle)
                {
                    self.tell(session, Event { kind, handle });
                }
            }
        }
    }

    /// The network is not as it was.
    pub fn on_changes(&mut self, changes: &[NetworkChange], environment: &mut Environment<'_>) {
        for change in changes {
            match *change {
                NetworkChange::Gone(device) => self.on_gone(device, environment),
                // Its link follows as soon as frames come and go.
                NetworkChange::Returned(_) | NetworkChange::Renamed(_) => {}
                NetworkChange::Link(device) => self.on_link(device, environment),
                NetworkChange::Gids(device) => self.tell_all(device, Event { kind: event::GID_CHANGE, handle: 0 }),
                NetworkChange::NextHop(follow, next) => {
                    self.registry.cm.on_next_hop(follow, next, environment);
                    self.on_next_hop(follow, next);
                }
            }
        }
        self.change_some_paths(environment);
    }

    /// Memory of one of these sessions stalled a worker for longer than any poll iteration: the
    /// session ends. If they are of two different users, the cause is unknown, and neither may
    /// cause the end of the other; nor may a session that has left meanwhile.
    pub fn on_blocked(&mut self, sessions: [SessionId; 2]) {
        let processes =
            sessions.map(|session| self.sessions.get(&session.0).map(|session| session.connection.process()));
        if !matches!(processes, [Some(one), Some(other)] if one.account == other.account) {
            // Of either of both; root's if both are gone.
            let account = processes.iter().flatten().next().map_or(AccountId(0), |process| process.account);
            return self.note_fault(account, |held_back| {
                warn!(?processes, held_back, "memory of one of two clients had a worker wait for a second or more")
            });
        }
        self.end_all(&sessions, "memory that it registered had a worker wait for a second or more");
    }

    /// Memory of these sessions, or of one of them, stalled a worker. Their account is charged; one
    /// that owes time loses these sessions, and all of them when it owes much. Of two accounts
    /// neither is charged, because the cause is unknown.
    pub fn on_stalled(&mut self, sessions: [SessionId; 2], time: Duration) {
        let accounts = sessions.map(|session| match self.sessions.get(&session.0) {
            Some(session) => Some(session.connection.process().account),
            None => self.recently_ended.account_of(session),
        });
        let (Some(account), true) = (accounts[0], accounts[0] == accounts[1]) else {
            let account = accounts.into_iter().flatten().next().unwrap_or(AccountId(0));
            return self.note_fault(account, |held_back| {
                warn!(?accounts, ?time, held_back, "memory of one of two users stalled a worker")
            });
        };
        let debt = self.listener.accounts().account(account).charge_stall(time);
        if debt > DEBT_MAX {
            let of_account = self.sessions.values().filter(|session| session.connection.process().account == account);
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

    /// Sessions that there are, those included of which something is left.
    pub fn len(&self) -> usize {
        self.sessions.len() + self.ending.len()
    }

    /// No session.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Ends every session, because the daemon stops. Peers of connections are told, and answer
    /// while any is [`Self::disconnecting`]; objects are left for [`Self::destroy_objects`]. No
    /// connection is accepted afterward.
    pub fn stop(&mut self, environment: &mut Environment<'_>) {
        let numbers: Vec<u32> = self.sessions.keys().copied().collect();
        for number in numbers {
            self.end(number, &SessionEnd::Stopping);
        }
        self.registry.cm.answer_all();
        while self.registry.cm.is_ending() {
            self.registry.cm.end_some(environment);
        }
    }

    /// Destroys the objects of all ended sessions. Drop it afterward.
    pub fn destroy_objects(&mut self, environment: &mut Environment<'_>) {
        while let Some(due) = self.ending.due() {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            self.ending.end_some(&mut self.registry, environment);
        }
    }

    /// Connections of ended sessions of which the peers have not answered yet that they end.
    pub fn disconnecting(&self) -> usize {
        self.registry.cm.disconnecting()
    }

    fn on_socket(&mut self, number: u32, events: EpollFlags, until: Instant, environment: &mut Environment<'_>) {
        let waits = self.sessions.get(&number).is_some_and(|session| session.waiting.is_some());
        if !waits {
            self.serve(number, until, environment);
        } else if events.intersects(CLOSED) {
            // Its work has the bound of the dead from now on.
            self.end(number, &SessionEnd::Closed);
        }
    }

    /// Serves calls of a session: one, and others until `until`.
    fn serve(&mut self, number: u32, until: Instant, environment: &mut Environment<'_>) {
        let mut clock = CallClock::start();
        for at in 0..MESSAGES_A_TURN {
            if at > 0 && clock.now() >= until {
                return;
            }
            let Some(session) = self.sessions.get(&number) else { return };
            let (account, waits) = (session.connection.process().account, session.waiting.is_some());
            // A call that waits was let through before.
            if !waits && self.throttles(number, account, clock.now()) {
                return;
            }
            let step = self.serve_one(number, environment);
            self.call_rates.charge(account, clock.lap(), step.is_call());
            match step {
                ServiceStep::GoOn => {}
                ServiceStep::Nothing | ServiceStep::Last => return,
                ServiceStep::Wait(due, call) => return self.wait(number, due, call),
                ServiceStep::End(why) => return self.end(number, &why),
            }
        }
    }

    /// Writes a log line if that session has just opened a device.
    pub(super) fn note_opened(&mut self, number: u32) {
        let Some(session) = self.sessions.get(&number) else { return };
        let SessionStage::Open(objects) = &session.stage else { return };
        let (id, device) = (session.id, objects.device);
        let ClientProcess { pid, uid, account, .. } = session.connection.process();
        self.note_coming(account, |held_back| {
            info!(session = %id, pid, uid, account = account.0, %device, held_back, "client opened a device");
        });
    }

    /// Threads of users have sent or received messages: calls that waited for it are served.
    fn take_reports(&mut self) {
        let now = Instant::now();
        for token in self.reports.take() {
            if token & CM_CHANNEL != 0 {
                self.registry.cm.write(token as u32);
                continue;
            }
            let waiting = self.waiting.iter_mut().find(|(number, _)| u64::from(*number) == token);
            if let Some((_, due)) = waiting {
                *due = now;
            }
        }
        self.watch_cm_channels();
    }

    /// A call of a session waits; until `due` no other of it is read.
    fn wait(&mut self, number: u32, due: Instant, call: WaitingCall) {
        let Some(session) = self.sessions.get_mut(&number) else { return };
        listen(&self.epoll, session, false);
        session.waiting = Some(call);
        self.waiting.push_back((number, due));
    }

    fn end(&mut self, number: u32, why: &SessionEnd) {
        let Some(session) = self.sessions.remove(&number) else { return };
        // It fails for one that has not begun: its socket was not added.
        let _ = self.epoll.delete(&session.connection);
        let (id, process) = (session.id, session.connection.process());
        if is_throttled(&session) {
            self.throttled.forget(process.account, number);
        }
        self.recently_ended.add(id, process.account);
        // Its socket is closed by a thread of its user's.
        match session.stage {
            SessionStage::Open(objects) => self.ending.add(id, objects),
            SessionStage::Cm => {
                for fd in self.registry.cm.channel_fds_of(id) {
                    // One that is closed already is not in the set.
                    let _ = self.epoll.delete(fd);
                }
                self.registry.cm.close(id);
            }
            SessionStage::OneTooMany(_) | SessionStage::Connected | SessionStage::Greeted => {}
        }
        match why {
            SessionEnd::Closed => self.note_coming(process.account, |held_back| info!(session = %id, pid = process.pid, held_back, "client gone")),
            SessionEnd::Stopping => debug!(session = %id, pid = process.pid, "client's session ends with the daemon"),
            SessionEnd::Fault(what) => self.note_fault(process.account, |held_back| {
                let ClientProcess { pid, uid, account, .. } = process;
                warn!(session = %id, pid, uid, account = account.0, fault = what, held_back, "client's session ended: its fault");
            }),
        }
    }

    /// Ends the sessions with lost memory: writes of peers to it are lost as well.
    fn end_sessions_with_lost_memory(&mut self) {
        let lost = |session: &Session| match &session.stage {
            SessionStage::Open(objects) => objects.memories.values().any(|object| object.memory.is_lost()),
            _ => false,
        };
        let numbers: Vec<u32> =
            self.sessions.iter().filter(|(_, session)| lost(session)).map(|(number, _)| *number).collect();
        for number in numbers {
            let what = "memory that it registered is gone or takes too long: its file was cut short, a page of it was never touched or punched out, or its program has unmapped it";
            self.end(number, &SessionEnd::Fault(what.into()));
        }
    }

    /// The device's queue pairs fail; its sessions and their other objects stay.
    fn on_gone(&mut self, device: DeviceId, environment: &mut Environment<'_>) {
        self.registry.cm.on_gone(device, environment);
        self.tell_all(device, Event { kind: event::DEVICE_FATAL, handle: 0 });
        for place in &self.registry.device(device).setup.endpoints {
            let mut from = Some(0);
            while let Some(slot) = from {
                from = match environment.workers.call(place.worker, Command::FailQps(device, slot)) {
                    Ok(Answer::NextSlot(next)) => next,
                    other => {
                        warn!(worker = %place.worker, answer = ?other.err(), "a worker does not fail its queue pairs");
                        None
                    }
                };
            }
        }
    }

    /// Tells a session something that it did not ask for. One that does not read loses it, not its
    /// session: only replies are owed.
    fn tell(&self, number: u32, event: Event) {
        let Some(session) = self.sessions.get(&number) else { return };
        let message = Message::new(EVENT, 0, &event);
        if !matches!(session.connection.send_if_room(&message), SentMessage::Yes | SentMessage::Later) {
            debug!(session = number, kind = event.kind, "an event was lost: the client does not read");
        }
    }

    fn tell_all(&self, device: DeviceId, event: Event) {
        for session in self.sessions.values() {
            if matches!(&session.stage, SessionStage::Open(objects) if objects.device == device) {
                self.tell(session.id.0, event);
            }
        }
    }

    /// Writes a log line about a queue pair that failed, unless there were many.
    fn note_failure(&mut self, session: SessionId, failure: QpFailure) {
        let Some(Session { connection, program, .. }) = self.sessions.get(&session.0) else { return };
        let ClientProcess { pid, uid, account, .. } = connection.process();
        let Some(held_back) = self.failures.admit(account, Instant::now()) else { return };
        let QpFailure { qpn, peer, peer_qpn, cause, losses } = failure;
        let LossCounts { retransmitted_packets, ack_timeouts, sequence_naks, rnr_naks } = losses;
        let peer = address_of(peer);
        warn!(
            %session, pid, uid, account = account.0, program, %qpn, %peer, %peer_qpn, %cause, retransmitted_packets,
            ack_timeouts, sequence_naks, rnr_naks, held_back, "queue pair failed"
        );
    }

    /// Writes a log line about a fault of a user's program, unless there were many.
    fn note_fault(&mut self, account: AccountId, write: impl FnOnce(u64)) {
        if let Some(held_back) = self.faults.admit(account, Instant::now()) {
            write(held_back);
        }
    }

    /// Writes a log line about a user's client that connects or leaves, unless there were many.
    fn note_coming(&mut self, account: AccountId, write: impl FnOnce(u64)) {
        if let Some(held_back) = self.comings.admit(account, Instant::now()) {
            write(held_back);
        }
    }
}

impl AsFd for Clients {
    /// Readable when [`Self::on_readable`] has something to do.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }
}
