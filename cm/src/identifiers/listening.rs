//! Listeners, and requests of peers that become identifiers.

use core::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6},
    time::Duration,
};

use roced_types::{address_of, mtu_of_code};

use super::{
    BACKLOG_MAX, CmErrno, DeviceAddress, EventKind, Host, IdEvent, IdKey, IdPath, IdService, IdState, Identifier,
    Identifiers, Parameters,
    address::{ANYWHERE, link_scope},
    connecting::is_datagram,
    postponed::WaitingLine,
    unconfirmed::AskedListener,
};
use crate::{
    connection::PeerAddress,
    manager::ServiceAnswer,
    refused::RefusalCause,
    wire::{
        CmMessage, CmaAddress, CmaHeader, CommId, PortSpace, Req, ServiceId, SidrReq, TransportService, reject_reason,
        sidr_status,
    },
};

/// Requests of one service ID in the connection manager, at most: backlogs are those of listeners.
const REQUESTS_MAX: u32 = 1 << 16;

/// A request of a peer, checked.
struct Request {
    peer: PeerAddress,
    listener: IdKey,
    space: PortSpace,
    service: IdService,
    device: DeviceAddress,
    source: SocketAddr,
    destination: SocketAddr,
}

impl Identifiers {
    /// Listens. `backlog` bounds the requests that the program has not taken; 0 and more than 1,024
    /// are 1,024.
    ///
    /// # Errors
    /// [`CmErrno::Invalid`], [`CmErrno::AddressInUse`].
    pub fn listen(&mut self, key: IdKey, backlog: u32, host: &mut impl Host) -> Result<(), CmErrno> {
        if self.id(key)?.state == IdState::Idle {
            self.bind(key, ANYWHERE, host)?;
        }
        let id = self.ids.get_mut(&key).ok_or(CmErrno::NoEntry)?;
        let Some(source) = id.source.filter(|_| id.state == IdState::Bound) else { return Err(CmErrno::Invalid) };
        self.ports.listen(id.port_space, source.port(), key)?;
        id.backlog = if backlog == 0 { BACKLOG_MAX } else { backlog.min(BACKLOG_MAX) };
        id.state = IdState::Listening;
        let service_id = ServiceId::of(id.port_space, source.port());
        // Another listener of the port, for another address, may have it already.
        let _ = self.manager.listen(service_id, REQUESTS_MAX);
        Ok(())
    }

    /// A listener of the port is gone, maybe the last one.
    pub(super) fn unlisten_unused(&mut self, space: PortSpace, port: u16) {
        if !self.ports.is_listening(space, port) {
            self.manager.unlisten(ServiceId::of(space, port));
        }
    }

    pub(super) fn on_request(
        &mut self,
        connection: CommId,
        req: &Req,
        peer: PeerAddress,
        host: &mut impl Host,
        now: Duration,
    ) {
        let (header, data) = req.private_data.split_first_chunk().expect("it is longer than the header");
        let mut request = match self.check(req.service_id, header, peer, host) {
            Ok(request) => request,
            Err(reason) => return self.manager.refuse(connection, reason, None),
        };
        let account = self.account_of(request.listener.owner);
        let refuse = |ids: &mut Self, reason| ids.manager.refuse(connection, reason, Some(account));
        request.service = match req.service {
            TransportService::Rc => IdService::Reliable,
            TransportService::Uc => IdService::Unreliable,
            _ => return refuse(self, reject_reason::INVALID_TRANSPORT_SERVICE),
        };
        let mtu_bytes = mtu_of_code(req.path_mtu).filter(|bytes| *bytes <= request.device.mtu_bytes);
        let Some(mtu_bytes) = mtu_bytes else { return refuse(self, reject_reason::INVALID_PATH_MTU) };
        if self.ids[&request.listener].service != request.service {
            return refuse(self, reject_reason::CONSUMER_DEFINED);
        }
        if (req.primary.remote_gid, req.primary.local_gid) != (peer.local, peer.remote) {
            return refuse(self, reject_reason::INVALID_GID);
        }
        self.manager.set_adapter(request.device.device, request.device.adapter);
        let message = CmMessage::Req(*req);
        let Some(key) = self.insert_request(connection, &request, message, host, now) else { return };
        let parameters = Parameters {
            qpn: req.qpn,
            qkey: 0,
            responder_resources: req.initiator_depth,
            initiator_depth: req.responder_resources,
            flow_control: req.flow_control,
            retry_count: req.retry_count,
            rnr_retry_count: req.rnr_retry_count,
            srq: req.srq,
        };
        let starting_psn = self.manager.starting_psn(connection).unwrap_or(0);
        let id = self.ids.get_mut(&key).expect("just inserted");
        id.path = Some(IdPath {
            mtu_bytes,
            flow_label: req.primary.flow_label,
            traffic_class: req.primary.traffic_class,
            hop_limit: req.primary.hop_limit,
            service_level: req.primary.service_level,
            packet_life_time: req.primary.ack_timeout.saturating_sub(1),
            rate: req.primary.rate,
        });
        let ack_timeout = id.options.ack_timeout.unwrap_or(req.primary.ack_timeout);
        self.tell_request(key, request.listener, data, |event| IdEvent {
            parameters,
            starting_psn,
            remote_starting_psn: req.starting_psn,
            ack_timeout,
            ..event
        });
    }

    pub(super) fn on_service_request(
        &mut self,
        connection: CommId,
        req: &SidrReq,
        peer: PeerAddress,
        host: &mut impl Host,
        now: Duration,
    ) {
        let (header, data) = req.private_data.split_first_chunk().expect("it is longer than the header");
        let request = match self.check(req.service_id, header, peer, host) {
            Ok(request) if self.ids[&request.listener].service == IdService::Datagram => request,
            _ => {
                // It is there: it just came.
                let refusal = ServiceAnswer::refusal(sidr_status::UNSUPPORTED_SERVICE_ID);
                let _ = self.manager.answer_service(connection, &refusal, now);
                return;
            }
        };
        if let Some(key) = self.insert_request(connection, &request, CmMessage::SidrReq(*req), host, now) {
            self.tell_request(key, request.listener, data, |event| event);
        }
    }

    /// The listener of a request, and the addresses of its CMA header.
    fn check(
        &self,
        service_id: ServiceId,
        header: &[u8; CmaHeader::BYTES],
        peer: PeerAddress,
        host: &mut impl Host,
    ) -> Result<Request, u16> {
        let (space, port) = service_id.port().ok_or(reject_reason::INVALID_SERVICE_ID)?;
        let refused = reject_reason::CONSUMER_DEFINED;
        let header = CmaHeader::from_bytes(header).map_err(|_| refused)?;
        let [from, to] = match header.addresses {
            CmaAddress::Ipv4(addresses) => addresses.map(|it| IpAddr::V4(Ipv4Addr::from(it))),
            CmaAddress::Ipv6(addresses) => addresses.map(|it| IpAddr::V6(Ipv6Addr::from(it))),
        };
        // The header says which address the peer asked for; the datagram came to one of this host.
        let local = address_of(peer.local);
        if to != local || from != address_of(peer.remote) || from.is_multicast() || from.is_unspecified() {
            return Err(refused);
        }
        let device = host.local_on(peer);
        let scope = device.as_ref().map_or(0, |device| host.scope_of(device));
        let asked = socket_address(to, port, scope);
        let listener = self.ports.listener(space, port, to, link_scope(asked));
        let listener = listener.ok_or(reject_reason::INVALID_SERVICE_ID)?;
        let device = device.map_err(|_| refused)?;
        let id = &self.ids[&listener];
        if self.numbers.get(&listener.owner).is_some_and(|owner| owner.forbidden >> device.device.0 & 1 != 0) {
            return Err(reject_reason::INVALID_SERVICE_ID);
        }
        if id.device.is_some_and(|bound| bound.device != device.device) {
            return Err(reject_reason::INVALID_SERVICE_ID);
        }
        Ok(Request {
            peer,
            listener,
            space,
            service: if is_datagram(space) { IdService::Datagram } else { IdService::Reliable },
            device,
            source: asked,
            destination: socket_address(from, header.source_port, scope),
        })
    }

    /// The new identifier of a request, which is `message`. `None` if its listener has no room, and
    /// it waits, or if its owner has no number: the peer repeats it.
    fn insert_request(
        &mut self,
        connection: CommId,
        request: &Request,
        message: CmMessage,
        host: &mut impl Host,
        now: Duration,
    ) -> Option<IdKey> {
        let channel = self.ids.get(&request.listener)?.channel;
        let is_unknown = !host.is_known(&request.peer) && !self.manager.is_connected(&request.peer);
        let line = WaitingLine { listener: request.listener, is_of_unknown: is_unknown };
        let asked = AskedListener { key: request.listener, account: self.account_of(request.listener.owner) };
        let account = (!is_unknown).then_some(asked.account);
        if !self.unconfirmed.have_room_of(request.peer, asked, is_unknown) {
            self.manager.ignore(connection, account, RefusalCause::UnconfirmedFull);
            self.manager.count_no_room();
            return None;
        }
        if let Err(cause) = self.look_for_room(line, host) {
            let mad = self.manager.postpone(connection, account, cause, message)?;
            if !self.postponed.add(line, request.peer, &mad, now) {
                self.manager.count_no_room();
            }
            return None;
        }
        let Ok(key) = self.free_key(request.listener.owner) else {
            self.manager.ignore(connection, account, RefusalCause::IdentifiersFull);
            self.manager.count_no_room();
            return None;
        };
        // It may have come again while it waited.
        self.postponed.forget(request.peer, &message);
        self.ids.get_mut(&request.listener)?.waiting += 1;
        let mut id = Identifier::new(0, channel, request.space, request.service);
        id.state = IdState::Connect;
        (id.source, id.destination) = (Some(request.source), Some(request.destination));
        (id.device, id.connection) = (Some(request.device), Some(connection));
        self.insert(key, id);
        self.by_connection.insert(connection, key);
        self.manager.set_account(connection, self.account_of(key.owner));
        self.unconfirmed.add(key, asked, request.peer, is_unknown);
        Some(key)
    }

    /// Whether a listener has room for another request. The count of its backlog goes down only
    /// here: there is no call of a program that takes an event. The last eighth of a backlog is for
    /// known peers.
    fn look_for_room(&mut self, line: WaitingLine, host: &mut impl Host) -> Result<(), RefusalCause> {
        let WaitingLine { listener: key, is_of_unknown } = line;
        if !self.unconfirmed.have_room_at(key, is_of_unknown) {
            return Err(RefusalCause::UnconfirmedFull);
        }
        let Some(listener) = self.ids.get_mut(&key) else { return Err(RefusalCause::NoListener) };
        let kept = if is_of_unknown { listener.backlog / 8 } else { 0 };
        let room = listener.backlog - kept;
        if listener.waiting >= room {
            let is_request = |event: &&IdEvent| event.owner == key && event.key != key;
            let unsent = self.events.iter().filter(is_request).count() as u32;
            listener.waiting = listener.waiting.min(unsent + host.untaken_requests(listener.channel, key));
        }
        if listener.waiting < room { Ok(()) } else { Err(RefusalCause::BacklogFull) }
    }

    /// The peer has confirmed a request, or it is over.
    pub(super) fn no_longer_unconfirmed(&mut self, key: IdKey) {
        let listener = self.unconfirmed.remove(key);
        self.look_at_postponed_of(listener);
    }

    /// There may be room at a listener.
    pub(super) fn look_at_postponed_of(&mut self, listener: Option<IdKey>) {
        self.roomy.extend(listener.filter(|listener| self.postponed.are_at(*listener)));
    }

    /// Requests that waited, and for which there is room by now, come in. To be called after each
    /// call and datagram, before datagrams and events are taken.
    pub fn admit_postponed(&mut self, host: &mut impl Host, now: Duration) {
        while let Some(listener) = self.roomy.pop_first() {
            for line in WaitingLine::all_of(listener) {
                while self.postponed.waits(line, now) && self.look_for_room(line, host).is_ok() {
                    let Some((peer, mad)) = self.postponed.take(line) else { break };
                    self.manager.on_postponed(peer, &mad, now);
                    self.take_events(host, now);
                }
            }
        }
    }

    fn tell_request(&mut self, key: IdKey, listener: IdKey, data: &[u8], with: impl FnOnce(IdEvent) -> IdEvent) {
        let Some(event) = self.event(key, EventKind::ConnectRequest, 0) else { return };
        let (Some(listening), Some(id)) = (self.ids.get(&listener), self.ids.get(&key)) else { return };
        let event = IdEvent { uid: listening.uid, channel: listening.channel, owner: listener, ..with(event) };
        let event = event.with_data(&data[..id.request_data_bytes()]);
        self.events.push_back(event);
    }
}

fn socket_address(address: IpAddr, port: u16, scope: u32) -> SocketAddr {
    match address {
        IpAddr::V6(v6) if v6.is_unicast_link_local() => SocketAddrV6::new(v6, port, 0, scope).into(),
        _ => SocketAddr::new(address, port),
    }
}
