//! Calls about identifiers. Each belongs to the channel on which it is made.

use std::sync::Arc;

use nix::errno::Errno;
use roced_abi::control::{
    AcceptCm, AcceptCmRequest, BindCm, BindCmRequest, CmAddress, CmParameters, CmRoute, ConfirmCm, ConnectCm,
    ConnectCmRequest, CreateCmId, CreateCmIdRequest, DestroyCmId, DestroyCmIdRequest, DisconnectCm, EstablishCm,
    Handle, JoinCmGroup, JoinCmGroupRequest, ListenCm, ListenCmRequest, MigrateCm, MigrateCmRequest, RejectCm,
    RejectCmRequest, ResolveCmAddress, ResolveCmAddressRequest, ResolveCmRoute, ResolveCmRouteRequest, SetCmOption,
    SetCmOptionRequest, WriteCmEvent, WriteCmEventRequest, cm_option,
};

use super::{
    channel::CmChannel,
    identifiers::{CmIdentifier, JoinedGroup, refused},
};
use crate::error::{Error, Result};

/// Longest private data of a connection and of a datagram service.
struct DataLimit {
    connection: usize,
    datagrams: usize,
}

const CONNECT: DataLimit = DataLimit { connection: 56, datagrams: 180 };
const REJECT: DataLimit = DataLimit { connection: 148, datagrams: 136 };

impl CmChannel {
    /// Creates an identifier, and returns its number. `uid` is in all of its events, and is not 0.
    ///
    /// # Errors
    /// The limit of the session; a service that the port space does not have; the daemon is gone.
    pub fn create_id(&self, uid: u64, port_space: u32, service: u32) -> Result<u32> {
        let mut identifiers = self.session.identifiers()?;
        let request = CreateCmIdRequest { uid, channel: self.handle, port_space, service, reserved: 0 };
        let id = self.session.daemon.call::<CreateCmId>(request)?.handle;
        identifiers.insert(id, CmIdentifier::new(self.handle, uid, port_space, service));
        Ok(id)
    }

    /// Destroys an identifier; events that were not taken are dropped. Returns the number of its
    /// events that were taken.
    ///
    /// # Errors
    /// No such identifier on this channel.
    pub fn destroy_id(&self, id: u32) -> Result<u32> {
        let mut identifiers = self.session.identifiers()?;
        let taken = identifiers.of(self.handle, id)?.taken;
        // Fails only if the daemon no longer has it.
        let _ = self.session.daemon.call::<DestroyCmId>(DestroyCmIdRequest { taken, id, reserved: 0 });
        let events = identifiers.remove(id);
        self.drop_stale(&identifiers);
        Ok(events)
    }

    /// Returns the record of an identifier.
    ///
    /// # Errors
    /// No such identifier on this channel.
    pub fn identifier(&self, id: u32) -> Result<CmIdentifier> {
        Ok(self.session.identifiers()?.of(self.handle, id)?.clone())
    }

    /// Binds an identifier to an address of this host.
    ///
    /// # Errors
    /// Those of `rdma_bind_addr`.
    pub fn bind(&self, id: u32, address: CmAddress) -> Result<()> {
        self.with_route(id, || self.session.daemon.call::<BindCm>(BindCmRequest { address, id }))
    }

    /// Finds device and neighbor that lead to `destination`; an event reports the result.
    ///
    /// # Errors
    /// Those of `rdma_resolve_addr`.
    pub fn resolve_address(&self, id: u32, source: CmAddress, destination: CmAddress, timeout_ms: u32) -> Result<()> {
        let request = ResolveCmAddressRequest { source, destination, id, timeout_ms };
        self.with_route(id, || self.session.daemon.call::<ResolveCmAddress>(request))
    }

    /// Fills in the path; an event reports the result.
    ///
    /// # Errors
    /// Those of `rdma_resolve_route`.
    pub fn resolve_route(&self, id: u32, timeout_ms: u32) -> Result<()> {
        let request = ResolveCmRouteRequest { id, timeout_ms };
        self.with_route(id, || self.session.daemon.call::<ResolveCmRoute>(request))
    }

    /// Listens on the address that the identifier is bound to.
    ///
    /// # Errors
    /// Those of `rdma_listen`.
    pub fn listen(&self, id: u32, backlog: u32) -> Result<()> {
        self.with_route(id, || self.session.daemon.call::<ListenCm>(ListenCmRequest { id, backlog }))
    }

    /// Asks the peer for a connection, or for the queue pair of a datagram service.
    ///
    /// # Errors
    /// Those of `rdma_connect`.
    pub fn connect(&self, id: u32, parameters: CmParameters, private_data: &[u8]) -> Result<()> {
        let mut identifiers = self.session.identifiers()?;
        let identifier = identifiers.of(self.handle, id)?;
        let (private_data, bytes) = padded(private_data, identifier, &CONNECT)?;
        let parameters = CmParameters { private_data_bytes: bytes, ..parameters };
        self.session.daemon.call::<ConnectCm>(ConnectCmRequest { id, parameters, private_data })?;
        identifier.own = Some(parameters);
        Ok(())
    }

    /// Accepts a request of a peer. `uid` is in all further events of the identifier.
    ///
    /// # Errors
    /// Those of `rdma_accept`. As with Linux, the peer is then refused.
    pub fn accept(&self, id: u32, uid: u64, parameters: CmParameters, private_data: &[u8]) -> Result<()> {
        let mut identifiers = self.session.identifiers()?;
        let identifier = identifiers.of(self.handle, id)?;
        let (private_data, bytes) = padded_or_too_long(private_data);
        let parameters = CmParameters { private_data_bytes: bytes, ..parameters };
        self.session.daemon.call::<AcceptCm>(AcceptCmRequest { uid, id, parameters, private_data })?;
        (identifier.uid, identifier.own) = (uid, Some(parameters));
        Ok(())
    }

    /// Confirms the peer's acceptance.
    ///
    /// # Errors
    /// Those of `rdma_establish`.
    pub fn confirm(&self, id: u32) -> Result<()> {
        self.with(id, || self.session.daemon.call::<ConfirmCm>(Handle { handle: id }))
    }

    /// Refuses a request of a peer. Reasons are 0 or 28 (the program's own) and 35 (vendor option).
    ///
    /// # Errors
    /// Those of `rdma_reject`.
    pub fn reject(&self, id: u32, reason: u32, private_data: &[u8]) -> Result<()> {
        let mut identifiers = self.session.identifiers()?;
        let (private_data, bytes) = padded(private_data, identifiers.of(self.handle, id)?, &REJECT)?;
        let request = RejectCmRequest { id, reason, private_data_bytes: bytes.into(), private_data };
        self.session.daemon.call::<RejectCm>(request)?;
        Ok(())
    }

    /// Disconnects; without a connection nothing happens.
    ///
    /// # Errors
    /// Those of `rdma_disconnect`.
    pub fn disconnect(&self, id: u32) -> Result<()> {
        self.with(id, || self.session.daemon.call::<DisconnectCm>(Handle { handle: id }))
    }

    /// Reports that the first packet of the peer came before its confirmation.
    ///
    /// # Errors
    /// Those of `rdma_notify`.
    pub fn establish(&self, id: u32) -> Result<()> {
        self.with(id, || self.session.daemon.call::<EstablishCm>(Handle { handle: id }))
    }

    /// Joins a multicast group, and returns the number of the membership; an event reports the
    /// result.
    ///
    /// # Errors
    /// Those of `rdma_join_multicast`.
    pub fn join(&self, id: u32, uid: u64, group: CmAddress, send_only: bool) -> Result<u32> {
        let mut identifiers = self.session.identifiers()?;
        identifiers.of(self.handle, id)?;
        let request = JoinCmGroupRequest { uid, group, id, send_only: send_only.into() };
        let number = self.session.daemon.call::<JoinCmGroup>(request)?.handle;
        identifiers.insert_membership(number, JoinedGroup { owner: id, group, events: 0 });
        Ok(number)
    }

    /// Leaves a multicast group. Returns the number of events of the membership that were taken.
    ///
    /// # Errors
    /// No such membership on this channel.
    pub fn leave(&self, membership: u32) -> Result<u32> {
        let mut identifiers = self.session.identifiers()?;
        let events = identifiers.membership_events(self.handle, membership)?;
        // Fails only if the daemon no longer has it.
        let request = DestroyCmIdRequest { taken: 0, id: membership, reserved: 0 };
        let _ = self.session.daemon.call::<DestroyCmId>(request);
        identifiers.remove_membership(membership);
        self.drop_stale(&identifiers);
        Ok(events)
    }

    /// Moves an identifier of `old`, with its events that were not taken, to this channel. Returns
    /// the number of its events that were taken.
    ///
    /// # Errors
    /// No such identifier on the channel; channels of different sessions; the daemon is gone.
    pub fn migrate(&self, old: &Self, id: u32) -> Result<u32> {
        if !Arc::ptr_eq(&self.session, &old.session) {
            return Err(refused(Errno::EINVAL));
        }
        let mut identifiers = self.session.identifiers()?;
        let identifier = identifiers.of(old.handle, id)?;
        let request = MigrateCmRequest { taken: identifier.taken, id, channel: self.handle };
        let stale = self.session.daemon.call::<MigrateCm>(request)?.stale;
        identifiers.migrate(id, self.handle, stale)?;
        old.drop_stale(&identifiers);
        Ok(identifiers.events(id))
    }

    /// Sets an option ([`cm_option`]).
    ///
    /// # Errors
    /// Those of `rdma_set_option`.
    pub fn set_option(&self, id: u32, option: u32, value: u32) -> Result<()> {
        let mut identifiers = self.session.identifiers()?;
        let identifier = identifiers.of(self.handle, id)?;
        self.session.daemon.call::<SetCmOption>(SetCmOptionRequest { id, option, value })?;
        if option == cm_option::ACK_TIMEOUT {
            identifier.ack_timeout = u8::try_from(value).ok();
        }
        Ok(())
    }

    /// Sends an event of kind [`super::cm_event::USER`] or [`super::cm_event::INTERNAL`] to the
    /// identifier's own channel.
    ///
    /// # Errors
    /// No such identifier on this channel; another kind; the daemon is gone.
    pub fn write_event(&self, id: u32, kind: u32, status: u32, argument: u64) -> Result<()> {
        let request = WriteCmEventRequest { argument, id, kind, status, reserved: 0 };
        self.with(id, || self.session.daemon.call::<WriteCmEvent>(request))
    }

    fn with<T>(&self, id: u32, call: impl FnOnce() -> Result<T>) -> Result<()> {
        let mut identifiers = self.session.identifiers()?;
        identifiers.of(self.handle, id)?;
        call().map(drop)
    }

    /// A call with the addresses of the identifier in its reply.
    fn with_route(&self, id: u32, call: impl FnOnce() -> Result<CmRoute>) -> Result<()> {
        let mut identifiers = self.session.identifiers()?;
        let identifier = identifiers.of(self.handle, id)?;
        identifier.route = call()?;
        Ok(())
    }
}

/// Private data of an acceptance with zeros behind it, and its length. The daemon refuses one that
/// is too long, by the length.
fn padded_or_too_long<const BYTES: usize>(private_data: &[u8]) -> ([u8; BYTES], u8) {
    let mut field = [0; BYTES];
    let part = &private_data[..private_data.len().min(BYTES)];
    field[..part.len()].copy_from_slice(part);
    (field, u8::try_from(private_data.len()).unwrap_or(u8::MAX))
}

/// Private data with zeros behind it, and its length.
fn padded<const BYTES: usize>(
    private_data: &[u8],
    identifier: &CmIdentifier,
    limit: &DataLimit,
) -> Result<([u8; BYTES], u8)> {
    let limit = if identifier.is_datagram() { limit.datagrams } else { limit.connection };
    let mut field = [0; BYTES];
    let place = field.get_mut(..private_data.len()).filter(|place| place.len() <= limit);
    place.ok_or_else::<Error, _>(|| refused(Errno::EINVAL))?.copy_from_slice(private_data);
    Ok((field, private_data.len() as u8))
}
