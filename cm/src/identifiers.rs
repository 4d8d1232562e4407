//! Identifiers (`rdma_cm_id`): addresses, ports and events of programs, above connections.
//!
//! ```text
//!            bind           resolve_address             resolve_route         connect
//!   idle ─────────► bound ─────────► (query) ─► resolved ─────────► routed ─────────► connect
//!                     │ listen                                        accept, reject ─►  │
//!                     └──────► listening ── CONNECT_REQUEST ─► new identifier ──────►    │
//!                                                                    disconnected ◄──────┘
//! ```
//!
//! A call returns at once; results come as [`IdEvent`]s. Rules and errors are those of Linux's
//! rdma_cm.

mod address;
mod connecting;
mod errno;
mod events;
mod host;
mod listening;
mod multicast;
mod neighbor_waits;
mod ports;
mod postponed;
mod unconfirmed;

use alloc::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    vec::Vec,
};
use core::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use roced_types::{AccountId, DeviceId, Qpn, gid_of};

pub use self::{
    address::{IdOption, IdPath},
    connecting::Parameters,
    errno::CmErrno,
    events::{EventKind, IdEvent},
    host::{DeviceAddress, Host},
};
use self::{neighbor_waits::NeighborWaits, ports::Ports, postponed::Postponed, unconfirmed::Unconfirmed};
use crate::{
    connection::{CmState, PeerAddress},
    counters::CmCounters,
    manager::{CmConfig, CmTransmit, ConnectionManager},
    random::{Generator, NumberUse},
    refused::RefusedConnection,
    wire::{Attribute, CommId, Mad, PortSpace},
};

/// A program that has identifiers: a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnerId(pub u32);

/// An identifier, or a membership of a multicast group: numbers are the owner's, 1 to 65,535.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IdKey {
    /// Owner.
    pub owner: OwnerId,
    /// Number.
    pub number: u32,
}

/// Service of an identifier's queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdService {
    /// Reliable connection.
    Reliable,
    /// Unreliable connection.
    Unreliable,
    /// Datagrams.
    Datagram,
}

/// State of an identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdState {
    /// Created.
    Idle,
    /// It has a local address.
    Bound,
    /// The neighbor is asked.
    AddressQuery,
    /// The destination and its device are known.
    AddressResolved,
    /// The path is known.
    RouteResolved,
    /// Requests of peers come to it.
    Listening,
    /// A connection is being made, or is established.
    Connect,
    /// The connection is over.
    Disconnected,
    /// The device is gone.
    Removed,
}

/// Highest number of an identifier: librdmacm has a table of that size.
const NUMBER_MAX: u32 = 65_535;

/// Requests of a listener that its program has not taken, at most.
const BACKLOG_MAX: u32 = 1024;

/// Options of an identifier, as far as its program has set any.
#[derive(Clone, Copy, Debug, Default)]
struct Options {
    type_of_service: Option<u8>,
    may_share_port: bool,
    is_family_only: Option<bool>,
    ack_timeout: Option<u8>,
}

#[derive(Clone, Debug)]
struct Identifier {
    uid: u64,
    channel: u32,
    port_space: PortSpace,
    service: IdService,
    state: IdState,
    source: Option<SocketAddr>,
    destination: Option<SocketAddr>,
    device: Option<DeviceAddress>,
    options: Options,
    path: Option<IdPath>,
    /// Of the address resolution.
    deadline: Option<Duration>,
    connection: Option<CommId>,
    /// Of a listener.
    backlog: u32,
    /// Of a listener: requests that its program has not taken, at most.
    waiting: u32,
    /// Numbers of its memberships of multicast groups.
    memberships: BTreeSet<u32>,
}

/// IdNumbers of an owner's identifiers.
#[derive(Clone, Copy, Debug, Default)]
struct IdNumbers {
    /// Devices that it may not use, by their numbers.
    forbidden: u64,
    /// The user that has the owner.
    account: AccountId,
    last: u32,
    count: u32,
}

/// A membership of a multicast group.
#[derive(Clone, Copy, Debug)]
struct GroupMembership {
    id: IdKey,
    group: IpAddr,
    source: DeviceAddress,
    is_joined: bool,
}

/// All identifiers of a host, with their connections.
#[derive(Debug)]
pub struct Identifiers {
    manager: ConnectionManager,
    ids: BTreeMap<IdKey, Identifier>,
    memberships: BTreeMap<IdKey, GroupMembership>,
    /// Memberships of each user.
    memberships_of_account: BTreeMap<AccountId, u32>,
    numbers: BTreeMap<OwnerId, IdNumbers>,
    /// Identifiers and memberships of each user.
    of_account: BTreeMap<AccountId, u32>,
    of_account_max: u32,
    by_connection: BTreeMap<CommId, IdKey>,
    by_channel: BTreeSet<(u32, IdKey)>,
    neighbor_waits: NeighborWaits<IdKey>,
    timers: BTreeSet<(Duration, IdKey)>,
    unconfirmed: Unconfirmed,
    /// Requests that wait for room at their listener.
    postponed: Postponed,
    /// Listeners that may have room for some of them.
    roomy: BTreeSet<IdKey>,
    ports: Ports,
    random: Generator,
    events: VecDeque<IdEvent>,
}

/// Addresses of an identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdRoute {
    /// Of this end.
    pub source: Option<SocketAddr>,
    /// Of the other end.
    pub destination: Option<SocketAddr>,
    /// Local address on its device.
    pub device: Option<DeviceAddress>,
    /// Path, if it is known.
    pub path: Option<IdPath>,
}

/// An identifier as operators see it.
#[derive(Clone, Copy, Debug)]
pub struct IdReport {
    /// Identifier.
    pub key: IdKey,
    /// Port space.
    pub port_space: PortSpace,
    /// State.
    pub state: IdState,
    /// State of its connection, if it has one.
    pub connection: Option<CmState>,
    /// Queue pair of the connection; 0 before it is known.
    pub qpn: Qpn,
    /// The peer's.
    pub peer_qpn: Qpn,
    /// Addresses.
    pub route: IdRoute,
}

impl Identifiers {
    /// Without identifiers. A user has `of_account_max` at most, memberships and requests of peers
    /// included.
    pub fn new(config: &CmConfig, of_account_max: u32) -> Self {
        Self {
            manager: ConnectionManager::new(config),
            of_account: BTreeMap::new(),
            of_account_max,
            ids: BTreeMap::new(),
            memberships: BTreeMap::new(),
            memberships_of_account: BTreeMap::new(),
            numbers: BTreeMap::new(),
            by_connection: BTreeMap::new(),
            by_channel: BTreeSet::new(),
            neighbor_waits: NeighborWaits::default(),
            timers: BTreeSet::new(),
            unconfirmed: Unconfirmed::default(),
            postponed: Postponed::default(),
            roomy: BTreeSet::new(),
            ports: Ports::default(),
            random: Generator::new(config.seed, NumberUse::Identifiers),
            events: VecDeque::new(),
        }
    }

    /// Sets other limits of connections, and of identifiers of a user: nothing that is there ends.
    pub fn set_limits(&mut self, connections_max: usize, of_account_max: u32) {
        self.manager.set_connections_max(connections_max);
        self.of_account_max = of_account_max;
    }

    /// Owner `owner` is of user `account`.
    pub fn add_owner(&mut self, owner: OwnerId, account: AccountId) {
        self.numbers.entry(owner).or_default().account = account;
    }

    /// Owner `owner` may not use `device`: its listeners hear of no request there.
    ///
    /// # Panics
    /// With the 65th device.
    pub fn forbid(&mut self, owner: OwnerId, device: DeviceId) {
        assert!(device.0 < u64::BITS, "a host has at most 64 devices");
        self.numbers.entry(owner).or_default().forbidden |= 1 << device.0;
    }

    /// Creates an identifier of `owner`; its events go to `channel` with `uid`.
    ///
    /// # Errors
    /// [`CmErrno::NoMemory`]: `owner` has 65,535, or its user has as many as it may.
    pub fn create(
        &mut self,
        owner: OwnerId,
        channel: u32,
        uid: u64,
        port_space: PortSpace,
        service: IdService,
    ) -> Result<IdKey, CmErrno> {
        let key = self.free_key(owner)?;
        self.insert(key, Identifier::new(uid, channel, port_space, service));
        Ok(key)
    }

    fn insert(&mut self, key: IdKey, id: Identifier) {
        self.by_channel.insert((id.channel, key));
        self.ids.insert(key, id);
        self.count(key);
    }

    fn count(&mut self, key: IdKey) {
        let numbers = self.numbers.entry(key.owner).or_default();
        numbers.count += 1;
        *self.of_account.entry(numbers.account).or_insert(0) += 1;
    }

    fn uncount(&mut self, key: IdKey) {
        let Some(numbers) = self.numbers.get_mut(&key.owner) else { return };
        numbers.count -= 1;
        if let Some(count) = self.of_account.get_mut(&numbers.account) {
            *count -= 1;
            if *count == 0 {
                self.of_account.remove(&numbers.account);
            }
        }
    }

    /// The user of an owner.
    fn account_of(&self, owner: OwnerId) -> AccountId {
        self.numbers.get(&owner).map_or(AccountId(0), |numbers| numbers.account)
    }

    /// A number that was not in use for long.
    fn free_key(&mut self, owner: OwnerId) -> Result<IdKey, CmErrno> {
        let numbers = self.numbers.entry(owner).or_default();
        if self.of_account.get(&numbers.account).is_some_and(|count| *count >= self.of_account_max) {
            return Err(CmErrno::NoMemory);
        }
        if numbers.count >= NUMBER_MAX {
            // Looking for a free one would take long, and unknown peers can cause it.
            return Err(CmErrno::NoMemory);
        }
        let last = &mut numbers.last;
        let numbers = (0..NUMBER_MAX).map(|at| (*last + at) % NUMBER_MAX + 1);
        let mut keys = numbers.map(|number| IdKey { owner, number });
        let key = keys.find(|key| !self.ids.contains_key(key) && !self.memberships.contains_key(key));
        let key = key.ok_or(CmErrno::NoMemory)?;
        *last = key.number;
        Ok(key)
    }

    /// Destroys an identifier. Its peer is told; it causes no further event.
    ///
    /// # Errors
    /// [`CmErrno::NoEntry`].
    pub fn destroy(&mut self, key: IdKey, host: &mut impl Host, now: Duration) -> Result<(), CmErrno> {
        let id = self.ids.get(&key).ok_or(CmErrno::NoEntry)?;
        let connection = id.connection;
        // Requests with an event that is still here go with their listener.
        let untold =
            |event: &&IdEvent| event.owner == key && event.key != key && event.kind == EventKind::ConnectRequest;
        let untold: VecDeque<IdKey> = self.events.iter().filter(untold).map(|event| event.key).collect();
        self.cancel_resolution(key);
        self.give_port_back(key);
        if let Some(connection) = connection {
            self.by_connection.remove(&connection);
            // It may be over already.
            let _ = self.manager.destroy(connection, now);
        }
        self.events.retain(|event| event.key != key && event.owner != key);
        while let Some(number) = self.ids.get(&key).and_then(|id| id.memberships.first().copied()) {
            self.leave(IdKey { number, ..key }, host)?;
        }
        self.no_longer_unconfirmed(key);
        self.postponed.remove_listener(key);
        self.roomy.remove(&key);
        let gone = self.ids.remove(&key);
        if let Some(gone) = &gone {
            self.by_channel.remove(&(gone.channel, key));
        }
        // A listener has a backlog, also when its device is gone.
        if let Some(Identifier { backlog: 1.., port_space, source: Some(source), .. }) = gone {
            self.unlisten_unused(port_space, source.port());
        }
        self.uncount(key);
        untold.into_iter().try_for_each(|id| self.destroy(id, host, now))
    }

    /// An owner is gone, after all its identifiers.
    pub fn forget_owner(&mut self, owner: OwnerId) {
        self.numbers.remove(&owner);
    }

    /// The first identifier of an owner.
    pub fn first_of(&self, owner: OwnerId) -> Option<IdKey> {
        let [first, last] = range_of(owner);
        self.ids.range(first..=last).next().map(|(key, _)| *key)
    }

    /// Identifiers of an owner with events that go to `channel`.
    pub fn of_channel(&self, owner: OwnerId, channel: u32) -> impl Iterator<Item = IdKey> + '_ {
        let [first, last] = range_of(owner);
        self.by_channel.range((channel, first)..=(channel, last)).map(|(_, key)| *key)
    }

    /// Identifiers.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// The next user, behind `last`, with identifiers that wait for a neighbor.
    pub fn account_that_waits(&self, last: Option<AccountId>) -> Option<AccountId> {
        self.neighbor_waits.account_behind(last)
    }

    /// Up to `count` of the peers of which a user waits for the neighbor, but for those that `skip`
    /// names. Each has its turn in one of the calls.
    pub fn waiting_for(
        &mut self,
        account: AccountId,
        count: usize,
        skip: impl Fn(PeerAddress) -> bool,
    ) -> Vec<PeerAddress> {
        self.neighbor_waits.take_turns(account, count, skip)
    }

    /// Identifiers that listen.
    pub fn listeners(&self) -> usize {
        self.ids.values().filter(|id| id.state == IdState::Listening).count()
    }

    /// Memberships of a user.
    pub fn memberships_of(&self, account: AccountId) -> u32 {
        self.memberships_of_account.get(&account).copied().unwrap_or(0)
    }

    /// Whether a number is that of a membership of a multicast group.
    pub fn is_member(&self, key: IdKey) -> bool {
        self.memberships.contains_key(&key)
    }

    /// Memberships of multicast groups.
    pub fn memberships(&self) -> usize {
        self.memberships.len()
    }

    /// Requests of peers that wait for room at their listener.
    pub fn postponed(&self) -> usize {
        self.postponed.len()
    }

    /// Nothing is left of any program: no identifier, port or membership. Connections may remain
    /// for a while, until their peers know.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
            && self.memberships.is_empty()
            && self.memberships_of_account.is_empty()
            && self.ports.is_empty()
            && self.by_connection.is_empty()
            && self.by_channel.is_empty()
            && self.neighbor_waits.is_empty()
            && self.timers.is_empty()
            && self.unconfirmed.is_empty()
            && self.postponed.is_empty()
            && self.roomy.is_empty()
            && self.of_account.is_empty()
    }

    /// Connections.
    pub const fn connections(&self) -> &ConnectionManager {
        &self.manager
    }

    /// Counters so far.
    pub const fn counters(&self) -> &CmCounters {
        self.manager.counters()
    }

    /// Events of an identifier go to another channel from now on.
    ///
    /// # Errors
    /// [`CmErrno::NoEntry`].
    pub fn migrate(&mut self, key: IdKey, channel: u32) -> Result<(), CmErrno> {
        let id = self.ids.get_mut(&key).ok_or(CmErrno::NoEntry)?;
        let old = core::mem::replace(&mut id.channel, channel);
        self.by_channel.remove(&(old, key));
        self.by_channel.insert((channel, key));
        let events = self.events.iter_mut().filter(|event| event.owner == key);
        events.for_each(|event| event.channel = channel);
        Ok(())
    }

    /// Channel of an identifier.
    ///
    /// # Errors
    /// [`CmErrno::NoEntry`].
    pub fn channel(&self, key: IdKey) -> Result<u32, CmErrno> {
        Ok(self.ids.get(&key).ok_or(CmErrno::NoEntry)?.channel)
    }

    /// Channel of an identifier, or of the one that a membership belongs to.
    ///
    /// # Errors
    /// [`CmErrno::NoEntry`].
    pub fn channel_of_any(&self, key: IdKey) -> Result<u32, CmErrno> {
        self.channel(self.memberships.get(&key).map_or(key, |membership| membership.id))
    }

    /// Addresses of an identifier.
    ///
    /// # Errors
    /// [`CmErrno::NoEntry`].
    pub fn route(&self, key: IdKey) -> Result<IdRoute, CmErrno> {
        Ok(self.ids.get(&key).ok_or(CmErrno::NoEntry)?.route())
    }

    /// All identifiers, for operators.
    pub fn reports(&self) -> impl Iterator<Item = IdReport> + '_ {
        self.ids.iter().map(|(key, id)| {
            let [qpn, peer_qpn] = id.connection.map_or([Qpn::from_wire(0); 2], |it| self.manager.queue_pairs(it));
            IdReport {
                key: *key,
                port_space: id.port_space,
                state: id.state,
                connection: id.connection.and_then(|connection| self.manager.state(connection)),
                qpn,
                peer_qpn,
                route: id.route(),
            }
        })
    }

    /// The next datagram to be sent.
    pub fn poll_transmit(&mut self) -> Option<CmTransmit> {
        self.manager.poll_transmit()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<IdEvent> {
        self.events.pop_front()
    }

    /// The next refusal for the log: [`ConnectionManager::poll_refused`].
    pub fn poll_refused(&mut self) -> Option<RefusedConnection> {
        self.manager.poll_refused()
    }

    /// When [`Self::on_timeout`] is to be called.
    pub fn poll_timeout(&self) -> Option<Duration> {
        let own = self.timers.first().map(|(at, _)| *at);
        [own, self.manager.poll_timeout()].into_iter().flatten().min()
    }

    /// Timers that have expired by `now`.
    pub fn on_timeout(&mut self, host: &mut impl Host, now: Duration) {
        while let Some((_, key)) = self.timers.first().copied().filter(|(at, _)| *at <= now) {
            self.give_up_neighbor(key);
        }
        self.manager.on_timeout(now);
        self.take_events(host, now);
    }

    /// The payload of a datagram to queue pair 1.
    pub fn on_datagram(&mut self, from: PeerAddress, bytes: &[u8], host: &mut impl Host, now: Duration) {
        // One in a flood of requests is not read twice: only a refusal takes one back.
        let is_refusal = bytes.get(16..18) == Some(&Attribute::Rej.number().to_be_bytes()[..]);
        if is_refusal
            && !self.postponed.is_empty()
            && let Ok(mad) = Mad::from_bytes(bytes)
        {
            self.postponed.forget(from, &mad.message);
        }
        self.manager.on_datagram(from, bytes, now);
        self.take_events(host, now);
    }

    /// A device is gone: its identifiers with it.
    pub fn on_device_removal(&mut self, device: DeviceId, now: Duration) {
        let on_device =
            |id: &Identifier| id.state != IdState::Removed && id.device.is_some_and(|address| address.device == device);
        let gone: VecDeque<IdKey> = self.ids.iter().filter(|(_, id)| on_device(id)).map(|(key, _)| *key).collect();
        for key in gone {
            self.cancel_resolution(key);
            let Some(id) = self.ids.get_mut(&key) else { continue };
            id.state = IdState::Removed;
            let connection = id.connection.take();
            self.no_longer_unconfirmed(key);
            self.postponed.remove_listener(key);
            if let Some(connection) = connection {
                self.by_connection.remove(&connection);
                let _ = self.manager.destroy(connection, now);
            }
            self.tell(key, EventKind::DeviceRemoval, 0);
        }
    }

    /// A queue pair was destroyed: [`ConnectionManager::on_queue_pair_gone`].
    pub fn on_queue_pair_gone(&mut self, qpn: Qpn) {
        self.manager.on_queue_pair_gone(qpn);
    }

    fn id(&mut self, key: IdKey) -> Result<&mut Identifier, CmErrno> {
        self.ids.get_mut(&key).ok_or(CmErrno::NoEntry)
    }

    fn give_port_back(&mut self, key: IdKey) {
        let Some(id) = self.ids.get(&key) else { return };
        if let Some(source) = id.source {
            self.ports.give_back(id.port_space, source.port(), key);
        }
    }
}

impl Identifier {
    const fn new(uid: u64, channel: u32, port_space: PortSpace, service: IdService) -> Self {
        Self {
            uid,
            channel,
            port_space,
            service,
            state: IdState::Idle,
            source: None,
            destination: None,
            device: None,
            options: Options { type_of_service: None, may_share_port: false, is_family_only: None, ack_timeout: None },
            path: None,
            deadline: None,
            connection: None,
            backlog: 0,
            waiting: 0,
            memberships: BTreeSet::new(),
        }
    }

    const fn route(&self) -> IdRoute {
        IdRoute { source: self.source, destination: self.destination, device: self.device, path: self.path }
    }

    /// Addresses of its datagrams.
    fn peer(&self) -> Result<PeerAddress, CmErrno> {
        let (Some(device), Some(destination)) = (self.device, self.destination) else { return Err(CmErrno::Invalid) };
        Ok(PeerAddress {
            device: device.device,
            vlan: device.vlan,
            local: gid_of(device.address),
            remote: gid_of(destination.ip()),
        })
    }
}

/// First and last of the numbers of an owner.
const fn range_of(owner: OwnerId) -> [IdKey; 2] {
    [IdKey { owner, number: 0 }, IdKey { owner, number: u32::MAX }]
}

/// The address for all, of the same family.
const fn any_of(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => IpAddr::V4(core::net::Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(core::net::Ipv6Addr::UNSPECIFIED),
    }
}
