//! The table of identifiers: to which channel each belongs, and the state that replies and taken
//! events brought.

use std::collections::{HashMap, HashSet};

use nix::errno::Errno;
use roced_abi::control::{
    CM_NO_DEVICE, CmAddress, CmChannelEvent, CmParameters, CmRoute, Refusal, cm_event, cm_service,
};

use crate::error::{Error, Result};

/// Record of an identifier.
#[derive(Clone, Debug)]
pub struct CmIdentifier {
    /// The client's own number; 0 for a request that was not accepted yet.
    pub uid: u64,
    /// [`super::cm_port_space`].
    pub port_space: u32,
    /// [`super::cm_service`].
    pub service: u32,
    /// Addresses, device and path.
    pub route: CmRoute,
    /// ACK timeout that the program has set ([`super::cm_option::ACK_TIMEOUT`]).
    pub ack_timeout: Option<u8>,
    /// Properties of this end, from the call that connected or accepted.
    pub own: Option<CmParameters>,
    /// Properties of the connection, from the peer's request or response.
    pub connection: Option<CmNegotiation>,
    /// Handle of the channel.
    pub(super) channel: u32,
    /// Sequence number of the last event that was taken, or that is stale since a migration.
    pub(super) taken: u64,
    /// Number of events that were taken.
    events: u32,
}

/// Properties of a connection that the two ends have agreed on.
#[derive(Clone, Copy, Debug)]
pub struct CmNegotiation {
    /// True if the peer asked for the connection.
    pub is_passive: bool,
    /// Properties of the peer, with the depths as this end uses them.
    pub parameters: CmParameters,
    /// PSN that this end's queue pair expects first.
    pub starting_psn: u32,
    /// PSN that the peer's queue pair expects first.
    pub remote_starting_psn: u32,
    /// ACK timeout of this end's queue pair: exponent.
    pub ack_timeout: u32,
}

/// Membership of an identifier in a multicast group.
#[derive(Clone, Copy, Debug)]
pub(super) struct JoinedGroup {
    /// The identifier that joined.
    pub(super) owner: u32,
    pub(super) group: CmAddress,
    /// Number of its events that were taken.
    pub(super) events: u32,
}

/// Identifiers and memberships of a session, by number.
#[derive(Debug, Default)]
pub(super) struct IdentifierTable {
    all: HashMap<u32, CmIdentifier>,
    by_channel: HashMap<u32, HashSet<u32>>,
    memberships: HashMap<u32, JoinedGroup>,
    /// Memberships of each identifier.
    by_owner: HashMap<u32, HashSet<u32>>,
    /// Identifiers of a channel of which the removal is due, once the daemon is gone.
    removals: HashMap<u32, Vec<u32>>,
    /// Sequence number of the last event that was taken: an event of an earlier identifier of the
    /// same number is older.
    last_taken: u64,
}

impl CmIdentifier {
    pub(super) fn new(channel: u32, uid: u64, port_space: u32, service: u32) -> Self {
        let path = super::CmPath { device: CM_NO_DEVICE, ..super::CmPath::default() };
        Self {
            uid,
            port_space,
            service,
            route: CmRoute { path, ..CmRoute::default() },
            ack_timeout: None,
            own: None,
            connection: None,
            channel,
            taken: 0,
            events: 0,
        }
    }

    /// True for a service of datagrams.
    pub fn is_datagram(&self) -> bool {
        self.service == cm_service::UD
    }

    /// True if the identifier is bound to a device.
    pub fn has_device(&self) -> bool {
        self.route.path.device != CM_NO_DEVICE
    }

    /// The identifier of a peer's request to this listener.
    fn incoming(&self, event: &CmChannelEvent) -> Self {
        let mut new = Self::new(self.channel, 0, self.port_space, self.service);
        (new.route, new.taken) = (event.route, event.sequence);
        new.connection = Some(CmNegotiation::new(event, true));
        new
    }
}

impl CmNegotiation {
    fn new(event: &CmChannelEvent, is_passive: bool) -> Self {
        Self {
            is_passive,
            parameters: event.parameters,
            starting_psn: event.starting_psn,
            remote_starting_psn: event.remote_starting_psn,
            ack_timeout: event.ack_timeout,
        }
    }
}

impl IdentifierTable {
    pub(super) fn insert(&mut self, id: u32, identifier: CmIdentifier) {
        self.put(id, CmIdentifier { taken: self.last_taken, ..identifier });
    }

    fn put(&mut self, id: u32, identifier: CmIdentifier) {
        self.take_out(id);
        self.by_channel.entry(identifier.channel).or_default().insert(id);
        self.all.insert(id, identifier);
    }

    fn take_out(&mut self, id: u32) -> Option<CmIdentifier> {
        let removed = self.all.remove(&id)?;
        if let Some(of_channel) = self.by_channel.get_mut(&removed.channel) {
            of_channel.remove(&id);
            if of_channel.is_empty() {
                self.by_channel.remove(&removed.channel);
            }
        }
        Some(removed)
    }

    /// The identifier `id` of a channel. `ENOENT` if there is none of that number, `EINVAL` if it
    /// belongs to another channel, as in Linux.
    pub(super) fn of(&mut self, channel: u32, id: u32) -> Result<&mut CmIdentifier> {
        let found = self.all.get_mut(&id).ok_or_else(|| refused(Errno::ENOENT))?;
        if found.channel == channel { Ok(found) } else { Err(refused(Errno::EINVAL)) }
    }

    /// Removes an identifier with its memberships. Returns the number of its events that were
    /// taken.
    pub(super) fn remove(&mut self, id: u32) -> u32 {
        for membership in self.by_owner.remove(&id).unwrap_or_default() {
            self.memberships.remove(&membership);
        }
        self.take_out(id).map_or(0, |removed| removed.events)
    }

    /// The identifier belongs to another channel from now on, and its events up to `stale` are no
    /// longer taken on any: later ones take their place. Errors as [`Self::of`].
    pub(super) fn migrate(&mut self, id: u32, channel: u32, stale: u64) -> Result<()> {
        let identifier = self.take_out(id).ok_or_else(|| refused(Errno::ENOENT))?;
        self.put(id, CmIdentifier { channel, taken: stale, ..identifier });
        Ok(())
    }

    /// Removes the identifiers of a channel.
    pub(super) fn remove_channel(&mut self, channel: u32) {
        for id in self.by_channel.remove(&channel).unwrap_or_default() {
            self.remove(id);
        }
    }

    pub(super) fn insert_membership(&mut self, number: u32, membership: JoinedGroup) {
        // The daemon may have given a number of an earlier one.
        self.remove_membership(number);
        self.by_owner.entry(membership.owner).or_default().insert(number);
        self.memberships.insert(number, membership);
    }

    /// Number of events of a membership that were taken. Errors as [`Self::of`].
    pub(super) fn membership_events(&mut self, channel: u32, number: u32) -> Result<u32> {
        let membership = *self.memberships.get(&number).ok_or_else(|| refused(Errno::ENOENT))?;
        self.of(channel, membership.owner)?;
        Ok(membership.events)
    }

    pub(super) fn remove_membership(&mut self, number: u32) {
        let Some(membership) = self.memberships.remove(&number) else { return };
        if let Some(of_owner) = self.by_owner.get_mut(&membership.owner) {
            of_owner.remove(&number);
            if of_owner.is_empty() {
                self.by_owner.remove(&membership.owner);
            }
        }
    }

    /// The group of a membership.
    pub(super) fn group(&self, number: u32) -> Option<CmAddress> {
        self.memberships.get(&number).map(|membership| membership.group)
    }

    /// Number of events of an identifier that were taken.
    pub(super) fn events(&self, id: u32) -> u32 {
        self.all.get(&id).map_or(0, |identifier| identifier.events)
    }

    /// True if the event must not be returned on this channel.
    pub(super) fn is_stale(&self, channel: u32, event: &CmChannelEvent) -> bool {
        let Some(owner) = self.all.get(&event.owner) else { return true };
        let of_others = owner.channel != channel || event.sequence <= owner.taken;
        let of_no_member = is_of_membership(event) && !self.memberships.contains_key(&event.id);
        of_others || of_no_member || event.uid == 0
    }

    /// Counts an event that is returned, and updates the record of its identifier. Returns the
    /// service of the identifier.
    pub(super) fn take(&mut self, event: &CmChannelEvent) -> u32 {
        let Some(owner) = self.all.get_mut(&event.owner) else { return 0 };
        owner.events += 1;
        owner.taken = event.sequence;
        self.last_taken = self.last_taken.max(event.sequence);
        let service = owner.service;
        if event.kind == cm_event::CONNECT_REQUEST {
            let incoming = owner.incoming(event);
            self.put(event.id, incoming);
        } else if is_of_membership(event) {
            if let Some(membership) = self.memberships.get_mut(&event.id) {
                membership.events += 1;
            }
        } else if !matches!(event.kind, cm_event::USER | cm_event::INTERNAL) {
            // Events of the program itself are no news of the addresses.
            owner.route = event.route;
            if event.kind == cm_event::CONNECT_RESPONSE {
                owner.connection = Some(CmNegotiation::new(event, false));
            }
        }
        service
    }

    /// The removal of the device of one identifier of a channel, for a daemon that can no
    /// longer send events; once for each.
    pub(super) fn next_removal(&mut self, channel: u32) -> Option<(CmChannelEvent, u32)> {
        let all_of = || self.by_channel.get(&channel).into_iter().flatten().copied().collect();
        let due = self.removals.entry(channel).or_insert_with(all_of);
        let (id, identifier) = loop {
            let id = due.pop()?;
            let identifier = self.all.get_mut(&id).filter(|it| it.channel == channel && it.has_device() && it.uid != 0);
            if let Some(identifier) = identifier {
                break (id, identifier);
            }
        };
        identifier.events += 1;
        let event = CmChannelEvent {
            uid: identifier.uid,
            id,
            owner: id,
            kind: cm_event::DEVICE_REMOVAL,
            route: identifier.route,
            ..CmChannelEvent::default()
        };
        Some((event, identifier.service))
    }
}

/// True for events of a membership in a multicast group.
fn is_of_membership(event: &CmChannelEvent) -> bool {
    matches!(event.kind, cm_event::MULTICAST_JOIN | cm_event::MULTICAST_ERROR)
}

/// A refusal by this library, of a call that the daemon would refuse.
pub(super) fn refused(errno: Errno) -> Error {
    Error::Refused { call: "call", refusal: Refusal::Cm, detail: [errno as u64, 0] }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    /// As of synchronous identifiers, each with a channel of its own.
    #[test]
    fn identifiers_of_other_channels_are_not_looked_at() {
        let mut table = IdentifierTable::default();
        let start = Instant::now();
        for number in 1..=60_000 {
            table.insert(number, CmIdentifier::new(number, 1, 0, 0));
        }
        for number in 1..=60_000 {
            table.remove_channel(number);
            assert!(table.of(number, number).is_err());
        }
        assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
    }

    #[test]
    fn memberships_of_other_identifiers_are_not_looked_at() {
        let mut table = IdentifierTable::default();
        let start = Instant::now();
        for number in 1..=60_000 {
            table.insert(number, CmIdentifier::new(1, 1, 0, 0));
            table.insert_membership(
                100_000 + number,
                JoinedGroup { owner: number, group: CmAddress::default(), events: 0 },
            );
        }
        table.remove_membership(100_001);
        for number in 1..=60_000 {
            table.remove(number);
            assert!(table.group(100_000 + number).is_none());
        }
        assert!(table.memberships.is_empty() && table.by_owner.is_empty());
        assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
    }

    /// Of a channel with all identifiers of a program, or one of many channels.
    #[test]
    fn each_removal_is_found_without_looking_at_all_identifiers() {
        for channels in [1, 60_000] {
            let mut table = IdentifierTable::default();
            let start = Instant::now();
            for number in 1..=60_000 {
                let mut identifier = CmIdentifier::new(number % channels, 1, 0, 0);
                identifier.route.path.device = 0;
                table.insert(number, identifier);
            }
            let mut removed = 0;
            for channel in 0..channels {
                removed += std::iter::from_fn(|| table.next_removal(channel)).count();
            }
            assert_eq!(removed, 60_000);
            assert!(start.elapsed() < Duration::from_secs(4), "{channels} channels: {:?}", start.elapsed());
        }
    }

    #[test]
    fn the_end_of_a_channel_removes_its_identifiers() {
        let mut table = IdentifierTable::default();
        for number in 1..=3 {
            table.insert(number, CmIdentifier::new(1, 9, 0, 0));
        }
        table.remove(2);
        table.migrate(3, 2, 0).expect("it is there");
        let request = CmChannelEvent { id: 4, owner: 1, kind: cm_event::CONNECT_REQUEST, ..CmChannelEvent::default() };
        table.take(&request);
        table.remove_channel(1);
        let left: Vec<u32> = (1..=4).filter(|number| table.all.contains_key(number)).collect();
        assert_eq!(left, [3], "moved to another channel");
        table.remove_channel(2);
        assert!(table.all.is_empty() && table.by_channel.is_empty());
    }
}
