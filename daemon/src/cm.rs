//! The connection manager: identifiers of programs (`roced-cm`), their event channels, and the way
//! of management datagrams.
//!
//! ```text
//!   session ── calls ─► ConnectionService ── datagrams ─► MadRoutes ─► worker, queue pair 1
//!      ▲                   │   ▲    ▲                                     │
//!      └─ event channel ◄──┘   │    └──────────── datagrams ◄─────────────┘
//!                           Network
//! ```

mod abi;
mod calls;
mod channel;
mod counters;
mod host;
mod intake;
mod known_peers;
mod mad_routes;
mod rate;
mod refusals;
mod unsent;

use std::{
    collections::{BTreeMap, VecDeque},
    os::fd::{BorrowedFd, OwnedFd},
    sync::Arc,
    time::{Duration, Instant},
};

use nix::errno::Errno;
use roced_abi::control::{CmChannelEvent, cm_event, limit::AccountResource};
use roced_cm::{
    CmConfig, PeerAddress,
    identifiers::{CmErrno, IdKey, Identifiers, OwnerId},
    wire::MAD_BYTES,
};
use roced_memory::{accounts::ClientAccount, client_socket::ThreadReports};
use roced_types::{AccountId, DeviceId, Qpn, SessionId, WorkerId};
use tracing::debug;

pub(crate) use self::calls::{CallRefused, Caller};
use self::{
    channel::{CHANNEL_BYTES, EventChannel, OWN_EVENTS_MAX, WriteState},
    host::CmHost,
    intake::{IncomingMad, Intake},
    known_peers::KnownPeers,
    mad_routes::MadRoutes,
    refusals::RefusalLog,
};
use crate::{
    accounts::{
        access::DeviceSet,
        ledger::{Ledger, SharedPool, eighth_of_open_files},
    },
    client_socket::connection::ClientProcess,
    config::CmLimits,
    environment::Environment,
    net::{FollowId, NextHop},
    worker::{
        mad_filters::MadFilters,
        received_mads::{MadRoom, ReceivedMad},
    },
};

/// Event channels of a user by default, at most: some hundred MiB if none is read.
const CHANNELS_MAX: u64 = 4096;

/// Datagrams handed over to this host itself in one go: no exchange has more without a program.
const HANDED_OVER_MAX: usize = 4096;

/// A device of the connection manager.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CmDevice {
    pub(crate) id: DeviceId,
    /// Its worker that sends datagrams.
    pub(crate) worker: WorkerId,
}

/// Connections of all programs of this host.
#[derive(Debug)]
pub(crate) struct ConnectionService {
    ids: Identifiers,
    devices: Vec<CmDevice>,
    routes: MadRoutes,
    channels: BTreeMap<u32, EventChannel>,
    last_channel: u32,
    /// Sequence number of the last event, by session.
    sequences: BTreeMap<SessionId, u64>,
    /// User and privilege of each session with identifiers.
    owners: BTreeMap<SessionId, IdOwner>,
    /// Sessions and channels that are gone, with identifiers that are left.
    ending: VecDeque<Departed>,
    /// Channels of each user.
    channels_of_account: BTreeMap<AccountId, u64>,
    limits: CmLimits,
    /// Memory of channels counts for their accounts.
    ledger: Ledger,
    /// Queue pairs of all sessions, with their users: a program names none but its user's.
    qps: BTreeMap<Qpn, u32>,
    /// New channels, and those that wait for room or no longer do.
    changed: BTreeMap<u32, Interest>,
    /// Received datagrams that wait.
    intake: Intake,
    known: KnownPeers,
    /// Datagrams to an address or VLAN that the device does not have, or from one of this host.
    wrong_address: u64,
    refusals: RefusalLog,
    epoch: Instant,
}

/// Gone with identifiers.
#[derive(Clone, Copy, Debug)]
enum Departed {
    Session(SessionId),
    Channel(SessionId, u32),
}

#[derive(Clone, Debug)]
struct IdOwner {
    uid: u32,
    /// Devices that it may use.
    devices: DeviceSet,
    /// Account that it counts for, and its threads that close channels.
    account: ClientAccount,
    is_privileged: bool,
}

/// Interest in events of a channel's socket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Interest {
    /// It is not watched yet.
    pub(crate) is_new: bool,
    /// Events wait for room in it.
    pub(crate) wants_room: bool,
}

/// Identifiers of gone sessions that are destroyed in one go.
const ENDED_AT_ONCE: usize = 256;

impl ConnectionService {
    /// `filters`: by these workers tell datagrams apart. `ledger`: there memory of channels counts.
    pub(crate) fn new(
        devices: Vec<CmDevice>,
        limits: CmLimits,
        seed: [u8; 32],
        filters: &Arc<MadFilters>,
        ledger: Ledger,
    ) -> Self {
        let config = CmConfig {
            seed,
            connections_max: limits.connections as usize,
            observer: Arc::<MadFilters>::clone(filters),
        };
        Self {
            ids: Identifiers::new(&config, limits.ids_of_account),
            limits,
            ledger,
            devices,
            routes: MadRoutes::default(),
            channels: BTreeMap::new(),
            last_channel: 0,
            sequences: BTreeMap::new(),
            owners: BTreeMap::new(),
            ending: VecDeque::new(),
            channels_of_account: BTreeMap::new(),
            qps: BTreeMap::new(),
            changed: BTreeMap::new(),
            intake: Intake::default(),
            known: KnownPeers::new(Arc::clone(filters)),
            wrong_address: 0,
            refusals: RefusalLog::default(),
            epoch: Instant::now(),
        }
    }

    /// Sets other limits. Programs with more than they allow keep all of it.
    pub(crate) fn set_limits(&mut self, limits: CmLimits) {
        self.limits = limits;
        self.ids.set_limits(limits.connections as usize, limits.ids_of_account);
    }

    /// A session opens the connection manager.
    pub(crate) fn open(
        &mut self,
        session: SessionId,
        process: ClientProcess,
        account: ClientAccount,
        is_privileged: bool,
    ) {
        let ClientProcess { uid, access, .. } = process;
        self.ids.add_owner(owner_of(session), account.id());
        for device in self.devices.iter().filter(|device| !access.devices.has(device.id)) {
            self.ids.forbid(owner_of(session), device.id);
        }
        self.owners.insert(session, IdOwner { uid, account, devices: access.devices, is_privileged });
    }

    /// A session is gone: its channels at once, its identifiers by and by.
    pub(crate) fn close(&mut self, session: SessionId) {
        if self.owners.contains_key(&session) {
            let of_session = self.channels.iter().filter(|(_, channel)| channel.session == session);
            for number in of_session.map(|(number, _)| *number).collect::<Vec<_>>() {
                self.remove_channel(number);
            }
            self.ending.push_back(Departed::Session(session));
        }
    }

    /// From now on no rate bounds new routes to peers: the daemon stops, and tells all.
    pub(crate) fn answer_all(&mut self) {
        self.routes.lift_limits();
    }

    /// Something of a gone session is left.
    pub(crate) fn is_ending(&self) -> bool {
        !self.ending.is_empty()
    }

    /// Destroys some identifiers of gone sessions.
    pub(crate) fn end_some(&mut self, environment: &mut Environment<'_>) {
        let now = self.now();
        for _ in 0..ENDED_AT_ONCE {
            let Some(gone) = self.ending.front().copied() else { break };
            let left = match gone {
                Departed::Session(session) => self.ids.first_of(owner_of(session)),
                Departed::Channel(session, channel) => self.ids.of_channel(owner_of(session), channel).next(),
            };
            let Some(key) = left else {
                if let Departed::Session(session) = gone {
                    self.ids.forget_owner(owner_of(session));
                    let owner = self.owners.remove(&session);
                    self.sequences.remove(&session);
                    let account = owner.map(|owner| owner.account.id());
                    if let Some(account) = account
                        && self.owners.values().all(|owner| owner.account.id() != account)
                    {
                        self.routes.forget_account(account, environment);
                    }
                }
                self.ending.pop_front();
                continue;
            };
            let mut host =
                CmHost::new(&self.devices, &self.known, &mut self.routes, &mut self.channels, environment, None);
            // It is there.
            let _ = self.ids.destroy(key, &mut host, now);
        }
        self.flush(environment);
    }

    /// Number of connections that end with a peer that has not answered yet.
    pub(crate) fn disconnecting(&self) -> usize {
        self.ids.connections().disconnecting()
    }

    /// A queue pair of a session of user `uid` was created.
    pub(crate) fn add_qp(&mut self, qpn: Qpn, uid: u32) {
        self.qps.insert(qpn, uid);
    }

    /// It was destroyed.
    pub(crate) fn remove_qp(&mut self, qpn: Qpn) {
        self.qps.remove(&qpn);
        self.ids.on_queue_pair_gone(qpn);
    }

    /// A datagram to queue pair 1. It waits for [`Self::take_datagrams`].
    pub(crate) fn on_mad(&mut self, mad: &ReceivedMad, environment: &Environment<'_>) {
        let Some(from) = host::peer_of(mad, environment) else {
            self.wrong_address += 1;
            return;
        };
        let now = Instant::now();
        let connections = self.ids.connections();
        let is_answer = connections.is_answer(from, &mad.bytes);
        if !self.known.contains(&from) && connections.is_connected(&from) {
            // It was silent for long, while many others were heard.
            self.known.heard(from, now);
        }
        self.intake.put(IncomingMad { from, bytes: mad.bytes }, is_answer, &mut self.known, now);
    }

    /// Handles up to `budget` of the datagrams that wait; true if some are left.
    pub(crate) fn take_datagrams(&mut self, budget: usize, environment: &mut Environment<'_>) -> bool {
        let now = Instant::now();
        for _ in 0..budget {
            let Some(IncomingMad { from, bytes }) = self.intake.take(now) else { break };
            self.take_datagram(from, &bytes, environment);
            self.flush(environment);
        }
        self.intake.is_ready(now)
    }

    fn take_datagram(&mut self, from: PeerAddress, bytes: &[u8; MAD_BYTES], environment: &mut Environment<'_>) {
        let now = self.now();
        let mut host = CmHost::new(&self.devices, &self.known, &mut self.routes, &mut self.channels, environment, None);
        self.ids.on_datagram(from, bytes, &mut host, now);
    }

    /// How a followed destination is reached.
    pub(crate) fn on_next_hop(&mut self, follow: FollowId, next: NextHop, environment: &mut Environment<'_>) {
        for peer in self.routes.on_next_hop(follow, next, &self.devices, environment) {
            self.ids.on_neighbor(peer);
        }
        self.ask_neighbors(environment);
        self.flush(environment);
    }

    /// A device's interface is gone.
    pub(crate) fn on_gone(&mut self, device: DeviceId, environment: &mut Environment<'_>) {
        let now = self.now();
        self.ids.on_device_removal(device, now);
        self.flush(environment);
    }

    /// When [`Self::on_deadline`] wants to be called.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let ids = self.ids.poll_timeout().map(|at| self.epoch + at);
        ids.into_iter().chain(self.routes.deadline()).chain(self.intake.deadline()).min()
    }

    /// Time has passed.
    pub(crate) fn on_deadline(&mut self, environment: &mut Environment<'_>) {
        let now = self.now();
        let mut host = CmHost::new(&self.devices, &self.known, &mut self.routes, &mut self.channels, environment, None);
        self.ids.on_timeout(&mut host, now);
        self.routes.on_deadline(Instant::now(), environment);
        self.ask_neighbors(environment);
        self.flush(environment);
    }

    /// Room for datagrams that workers keep.
    pub(crate) fn room_for_mads(&mut self) -> MadRoom {
        self.intake.room(Instant::now())
    }

    /// Datagrams that waited for a rate are to be taken, here and from workers.
    pub(crate) fn are_mads_due(&self, now: Instant) -> bool {
        self.intake.deadline().is_some_and(|due| due <= now)
    }

    /// Asks for neighbors that identifiers wait for, and for which there was no room before.
    fn ask_neighbors(&mut self, environment: &mut Environment<'_>) {
        let mut last = None;
        while let Some(account) = self.ids.account_that_waits(last) {
            last = Some(account);
            let room = self.routes.room_to_ask(account);
            for peer in self.ids.waiting_for(account, room, |peer| self.routes.has(peer, account)) {
                if self.routes.is_reachable(peer, account, environment) {
                    self.ids.on_neighbor(peer);
                }
            }
        }
    }

    /// Requests that wait for room at their listener come in as soon as there is some.
    fn admit_postponed(&mut self, environment: &mut Environment<'_>) {
        let now = self.now();
        let mut host = CmHost::new(&self.devices, &self.known, &mut self.routes, &mut self.channels, environment, None);
        self.ids.admit_postponed(&mut host, now);
    }

    /// Sends datagrams, and writes events to their channels.
    pub(crate) fn flush(&mut self, environment: &mut Environment<'_>) {
        for _ in 0..HANDED_OVER_MAX {
            self.admit_postponed(environment);
            let Some(transmit) = self.ids.poll_transmit() else { break };
            let bytes = transmit.mad.to_bytes();
            if let Some(from) = host::handed_over(&transmit.to, &self.devices, environment) {
                self.take_datagram(from, &bytes, environment);
            } else {
                let causes = (transmit.is_bounded, self.known.contains(&transmit.to));
                self.routes.send(transmit.to, bytes, causes, &self.devices, environment);
            }
        }
        while let Some(refused) = self.ids.poll_refused() {
            self.refusals.note(&refused, Instant::now());
        }
        while let Some(event) = self.ids.poll_event() {
            let session = SessionId(event.owner.owner.0);
            let sequence = self.sequences.entry(session).or_insert(0);
            *sequence += 1;
            let message = abi::event_message(&event, *sequence, &self.devices);
            if let Some(channel) = self.channels.get_mut(&event.channel) {
                channel.push(event.owner, message);
            }
            self.write(event.channel);
        }
    }

    /// Writes waiting events as far as there is room.
    pub(crate) fn write(&mut self, number: u32) {
        let Some(channel) = self.channels.get_mut(&number) else { return };
        let wants_room = channel.write() == WriteState::Full;
        if wants_room != std::mem::replace(&mut channel.wants_room, wants_room) {
            self.changed.entry(number).or_insert(Interest { is_new: false, wants_room }).wants_room = wants_room;
        }
    }

    /// A channel's socket has room.
    pub(crate) fn on_room(&mut self, number: u32) {
        if let Some(channel) = self.channels.get(&number) {
            channel.on_room();
        }
        self.write(number);
    }

    /// Threads of its user report by this token when they have written events to a channel.
    pub(crate) fn report_to(&mut self, number: u32, reports: &ThreadReports, token: u64) {
        if let Some(channel) = self.channels.get(&number) {
            channel.report_to(reports, token);
        }
        self.write(number);
    }

    /// Channels that are to be watched in another way than before.
    pub(crate) fn take_changed_channels(&mut self) -> BTreeMap<u32, Interest> {
        std::mem::take(&mut self.changed)
    }

    /// Programs closed these channels without a call: their identifiers go.
    pub(crate) fn on_channel_closed(&mut self, number: u32, environment: &mut Environment<'_>) {
        let Some(session) = self.remove_channel(number) else { return };
        debug!(%session, channel = number, "event channel closed");
        // A few are gone at once, thousands by and by.
        self.ending.push_front(Departed::Channel(session, number));
        self.end_some(environment);
    }

    fn remove_channel(&mut self, number: u32) -> Option<SessionId> {
        let session = self.channels.remove(&number)?.session;
        if let Some(count) =
            self.owners.get(&session).and_then(|owner| self.channels_of_account.get_mut(&owner.account.id()))
        {
            *count -= 1;
        }
        Some(session)
    }

    fn account_of(&self, session: SessionId) -> AccountId {
        self.owners.get(&session).map_or(AccountId(0), |owner| owner.account.id())
    }

    /// Socket of a channel, to be watched for its end.
    pub(crate) fn channel_fd(&self, number: u32) -> Option<BorrowedFd<'_>> {
        self.channels.get(&number).map(EventChannel::fd)
    }

    /// Sockets of a session's channels.
    pub(crate) fn channel_fds_of(&self, session: SessionId) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.channels.values().filter(move |channel| channel.session == session).map(EventChannel::fd)
    }

    /// Account of a channel's user.
    pub(crate) fn account_of_channel(&self, number: u32) -> Option<AccountId> {
        let session = self.channels.get(&number)?.session;
        self.owners.get(&session).map(|owner| owner.account.id())
    }

    fn new_channel(&mut self, session: SessionId) -> Result<(u32, OwnedFd), CallRefused> {
        let account = self.account_of(session);
        let count = self.channels_of_account.entry(account).or_insert(0);
        if *count >= channels_of_account_max(&self.limits) {
            self.refusals.note_limit(account, "limits.cm.channels_of_account");
            return Err(CallRefused::Errno(Errno::EMFILE as i32));
        }
        *count += 1;
        let made = self.make_channel(session);
        if made.is_err()
            && let Some(count) = self.channels_of_account.get_mut(&account)
        {
            *count -= 1;
        }
        made
    }

    fn make_channel(&mut self, session: SessionId) -> Result<(u32, OwnedFd), CallRefused> {
        let account = self.owners.get(&session).map(|owner| owner.account.clone());
        let account = account.ok_or(CallRefused::Errno(Errno::EINVAL as i32))?;
        if account.leaves_much_unread() {
            return Err(CallRefused::Errno(Errno::ENOBUFS as i32));
        }
        let memory = SharedPool::Daemon(AccountResource::DaemonMemory);
        let charge = self.ledger.take(account.id(), memory, CHANNEL_BYTES as u64).map_err(|reached| {
            self.refusals.note_limit(account.id(), "limits.account.daemon_memory_mib");
            CallRefused::Account(reached)
        })?;
        let made = EventChannel::new(session, account, charge);
        let (channel, theirs) = made.map_err(|errno| CallRefused::Errno(errno as i32))?;
        loop {
            self.last_channel = self.last_channel.wrapping_add(1).max(1);
            if !self.channels.contains_key(&self.last_channel) {
                break;
            }
        }
        self.channels.insert(self.last_channel, channel);
        self.changed.insert(self.last_channel, Interest { is_new: true, wants_room: false });
        Ok((self.last_channel, theirs))
    }

    /// Events of an identifier move to another channel, but for those that its program has taken.
    /// They have new sequence numbers, because their copies stay where they were written. Returns
    /// the last number of before.
    fn migrate(&mut self, key: IdKey, channel: u32, taken: u64) -> Result<u64, CallRefused> {
        let old = self.ids.channel(key)?;
        let session = SessionId(key.owner.0);
        if self.channels.get(&channel).is_none_or(|channel| channel.session != session) {
            return Err(CmErrno::Invalid.into());
        }
        // Events that a program has sent to itself have no other bound.
        let own = self.channels.get(&old).map_or(0, |channel| channel.own_events(key, taken));
        let there = self.channels.get(&channel).map_or(0, EventChannel::own_waiting);
        if own > 0 && there + own > OWN_EVENTS_MAX {
            return Err(CmErrno::NoMemory.into());
        }
        self.ids.migrate(key, channel)?;
        let moved: Vec<CmChannelEvent> =
            self.channels.get_mut(&old).map_or_else(Vec::new, |channel| channel.take_events(key, taken));
        let sequence = self.sequences.entry(session).or_insert(0);
        let stale = *sequence;
        for mut event in moved {
            *sequence += 1;
            event.sequence = *sequence;
            // The new identifier of a request is of the channel on which the request is taken.
            if event.kind == cm_event::CONNECT_REQUEST {
                let _ = self.ids.migrate(IdKey { number: event.id, ..key }, channel);
            }
            if let Some(new) = self.channels.get_mut(&channel) {
                new.push(key, event);
            }
        }
        self.write(channel);
        Ok(stale)
    }

    fn now(&self) -> Duration {
        self.epoch.elapsed()
    }
}

/// Event channels that an account may have.
fn channels_of_account_max(limits: &CmLimits) -> u64 {
    limits.channels_of_account.map_or_else(|| eighth_of_open_files().min(CHANNELS_MAX), u64::from)
}

/// A session is an owner of identifiers.
const fn owner_of(session: SessionId) -> OwnerId {
    OwnerId(session.0)
}
