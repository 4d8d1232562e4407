//! Events of identifiers, and those of connections that become such.

use core::time::Duration;

use super::{CmErrno, Host, IdKey, IdRoute, IdService, IdState, Identifiers, Parameters};
use crate::{
    event::CmEvent,
    time,
    wire::{CommId, Rep, SidrRep, sidr_status},
};

/// Kinds of event, by the names of rdma_cm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// The destination and its device are known.
    AddressResolved,
    /// They are not.
    AddressError,
    /// The path is known.
    RouteResolved,
    /// A peer asks.
    ConnectRequest,
    /// The peer accepted.
    ConnectResponse,
    /// The peer does not answer, or has no such service.
    Unreachable,
    /// The peer refused.
    Rejected,
    /// The connection is established, or the queue pair of the datagram service is known.
    Established,
    /// The connection is over.
    Disconnected,
    /// The device is gone.
    DeviceRemoval,
    /// The multicast group is joined.
    MulticastJoin,
    /// It is not.
    MulticastError,
    /// Packets of the connection are no longer under way.
    TimeWaitExit,
    /// Of the program itself, with a number of its own.
    Written(u32),
}

/// An event of an identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdEvent {
    /// Channel.
    pub channel: u32,
    /// The uid of `owner` when the event happened; of a membership its own.
    pub uid: u64,
    /// Identifier or membership that the event is about.
    pub key: IdKey,
    /// Identifier that the event belongs to: the listener of a request, the identifier that joined
    /// a group.
    pub owner: IdKey,
    /// Kind.
    pub kind: EventKind,
    /// 0, a negative errno, or the peer's reason.
    pub status: i32,
    /// Addresses of the identifier.
    pub route: IdRoute,
    /// Properties of the peer, with depths as this end uses them.
    pub parameters: Parameters,
    /// PSN that this end's queue pair expects first.
    pub starting_psn: u32,
    /// PSN that the peer's queue pair expects first.
    pub remote_starting_psn: u32,
    /// ACK timeout of this end's queue pair: exponent.
    pub ack_timeout: u8,
    /// Bytes of private data.
    pub private_data_bytes: u8,
    /// Private data, then zeros.
    pub private_data: [u8; 196],
}

impl IdEvent {
    pub(super) fn with_data(mut self, data: &[u8]) -> Self {
        self.private_data[..data.len()].copy_from_slice(data);
        self.private_data_bytes = data.len() as u8;
        self
    }
}

impl Identifiers {
    /// An event of an identifier about itself, without details. One with uid 0 has none: its
    /// program has not accepted the request of which it is.
    pub(super) fn event(&self, key: IdKey, kind: EventKind, status: i32) -> Option<IdEvent> {
        let id = self.ids.get(&key)?;
        if id.uid == 0 && kind != EventKind::ConnectRequest {
            return None;
        }
        Some(IdEvent {
            channel: id.channel,
            uid: id.uid,
            key,
            owner: key,
            kind,
            status,
            route: id.route(),
            parameters: Parameters::default(),
            starting_psn: 0,
            remote_starting_psn: 0,
            ack_timeout: 0,
            private_data_bytes: 0,
            private_data: [0; 196],
        })
    }

    pub(super) fn tell(&mut self, key: IdKey, kind: EventKind, status: i32) {
        let event = self.event(key, kind, status);
        self.events.extend(event);
    }

    /// An event of the program for itself.
    ///
    /// # Errors
    /// [`CmErrno::NoEntry`].
    pub fn write_event(&mut self, key: IdKey, kind: u32, status: i32, argument: u64) -> Result<(), CmErrno> {
        let event = self.event(key, EventKind::Written(kind), status).ok_or(CmErrno::NoEntry)?;
        self.events.push_back(event.with_data(&argument.to_ne_bytes()));
        Ok(())
    }

    /// Events of connections become events of identifiers.
    pub(super) fn take_events(&mut self, host: &mut impl Host, now: Duration) {
        while let Some(event) = self.manager.poll_event() {
            match event {
                CmEvent::Requested { id, req, peer } => self.on_request(id, &req, peer, host, now),
                CmEvent::ServiceRequested { id, req, peer } => self.on_service_request(id, &req, peer, host, now),
                _ => {
                    self.on_event(&event);
                    self.forget_ended(event.id());
                }
            }
        }
    }

    /// The number of a connection that has ended may be given to another one, also when its program
    /// hears nothing of that.
    pub(super) fn forget_ended(&mut self, connection: CommId) {
        if self.manager.is_silent(connection)
            && let Some(key) = self.by_connection.remove(&connection)
            && let Some(id) = self.ids.get_mut(&key)
        {
            id.connection = None;
        }
    }

    fn on_event(&mut self, event: &CmEvent) {
        let connection = event.id();
        let Some(&key) = self.by_connection.get(&connection) else { return };
        self.no_longer_unconfirmed(key);
        let Some(id) = self.ids.get_mut(&key) else { return };
        let is_connecting = id.state == IdState::Connect;
        if is_connecting == matches!(event, CmEvent::TimeWaitExit { .. }) {
            return;
        }
        match event {
            CmEvent::Accepted { rep, .. } => self.on_accepted(key, connection, rep),
            CmEvent::Established { .. } => self.tell(key, EventKind::Established, 0),
            CmEvent::Rejected { rej, .. } => {
                let event = self.event(key, EventKind::Rejected, rej.reason.into());
                self.events.extend(event.map(|event| event.with_data(&rej.private_data)));
            }
            CmEvent::Unreachable { .. } => self.tell(key, EventKind::Unreachable, -CmErrno::TimedOut.number()),
            CmEvent::Disconnected { timed_out, .. } => {
                id.state = IdState::Disconnected;
                let status = if *timed_out { -CmErrno::TimedOut.number() } else { 0 };
                self.tell(key, EventKind::Disconnected, status);
            }
            CmEvent::TimeWaitExit { .. } => self.tell(key, EventKind::TimeWaitExit, 0),
            CmEvent::ServiceFound { rep, .. } => self.on_service_found(key, rep),
            CmEvent::Requested { .. } | CmEvent::ServiceRequested { .. } => {}
        }
    }

    fn on_accepted(&mut self, key: IdKey, connection: CommId, rep: &Rep) {
        let Some(event) = self.event(key, EventKind::ConnectResponse, 0) else { return };
        let Some(id) = self.ids.get(&key) else { return };
        let life_time = id.path.map_or(0, |path| path.packet_life_time);
        let ack_timeout = time::ack_timeout(rep.target_ack_delay, life_time);
        let parameters = Parameters {
            qpn: rep.qpn,
            qkey: 0,
            responder_resources: rep.initiator_depth,
            initiator_depth: rep.responder_resources,
            flow_control: rep.flow_control,
            retry_count: 0,
            rnr_retry_count: rep.rnr_retry_count,
            srq: rep.srq,
        };
        let event = IdEvent {
            parameters,
            starting_psn: self.manager.starting_psn(connection).unwrap_or(0),
            remote_starting_psn: rep.starting_psn,
            ack_timeout: id.options.ack_timeout.unwrap_or(ack_timeout),
            ..event
        };
        self.events.push_back(event.with_data(&rep.private_data));
    }

    fn on_service_found(&mut self, key: IdKey, rep: &SidrRep) {
        let found = rep.status == sidr_status::VALID;
        let (kind, status) =
            if found { (EventKind::Established, 0) } else { (EventKind::Unreachable, i32::from(rep.status)) };
        let Some(event) = self.event(key, kind, status) else { return };
        debug_assert_eq!(self.ids[&key].service, IdService::Datagram);
        let parameters = Parameters { qpn: rep.qpn, qkey: rep.qkey, ..Parameters::default() };
        let event = IdEvent { parameters: if found { parameters } else { Parameters::default() }, ..event };
        self.events.push_back(event.with_data(&rep.private_data));
    }
}
