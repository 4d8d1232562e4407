//! Connections and datagram services of identifiers, asked for and answered.

use core::{net::SocketAddr, time::Duration};

use roced_types::{AccountId, Qpn, mtu_code};

use super::{CmErrno, Host, IdKey, IdService, IdState, Identifier, Identifiers};
use crate::{
    connection::CmState,
    manager::{Accept, CmError, Connect, FindService, ServiceAnswer},
    wire::{
        CmaAddress, CmaHeader, CommId, ConnectionPath, PortSpace, ServiceId, TransportService, reject_reason,
        sidr_status,
    },
};

/// How long the confirmation of a peer is waited for while many others are. A guess: some
/// repetitions of a REP.
const SHORT_CONFIRMATION_TIMEOUT: Duration = Duration::from_secs(4);

/// Longest delay of our ACKs: exponent, as Linux announces it.
const ACK_DELAY: u8 = 15;

/// Default Q_Key of datagram services (`RDMA_UDP_QKEY`).
pub(super) const UDP_QKEY: u32 = 0x0123_4567;

/// Bit of Q_Keys that only privileged programs may set.
const PRIVILEGED_QKEY: u32 = 1 << 31;

/// Longest private data of each message: that of a program, without the CMA header.
const REQ_DATA_BYTES: usize = 92 - CmaHeader::BYTES;
const SIDR_REQ_DATA_BYTES: usize = 216 - CmaHeader::BYTES;
const REP_DATA_BYTES: usize = 196;
const REJ_DATA_BYTES: usize = 148;
const SIDR_REP_DATA_BYTES: usize = 136;

/// Properties of one end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// Queue pair.
    pub qpn: Qpn,
    /// Q_Key, of datagram services.
    pub qkey: u32,
    /// READ and atomic requests executed at a time.
    pub responder_resources: u8,
    /// READ and atomic requests issued at a time.
    pub initiator_depth: u8,
    /// End-to-end credits.
    pub flow_control: bool,
    /// Retries of the queue pair.
    pub retry_count: u8,
    /// Retries after RNR NAKs.
    pub rnr_retry_count: u8,
    /// Receives come from a shared receive queue.
    pub srq: bool,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            qpn: Qpn::from_wire(0),
            qkey: 0,
            responder_resources: 0,
            initiator_depth: 0,
            flow_control: false,
            retry_count: 0,
            rnr_retry_count: 0,
            srq: false,
        }
    }
}

impl From<CmError> for CmErrno {
    fn from(error: CmError) -> Self {
        match error {
            CmError::Unknown | CmError::State(_) => Self::Invalid,
            CmError::Listening => Self::AddressInUse,
            CmError::Full => Self::NoMemory,
        }
    }
}

impl Identifiers {
    /// Asks for a connection, or for the queue pair of a datagram service. An event says how that
    /// ends. The caller has checked that the queue pair is the program's.
    ///
    /// # Errors
    /// [`CmErrno::Invalid`], [`CmErrno::NoMemory`].
    pub fn connect(
        &mut self,
        key: IdKey,
        parameters: &Parameters,
        private_data: &[u8],
        now: Duration,
    ) -> Result<(), CmErrno> {
        let id = self.ids.get(&key).ok_or(CmErrno::NoEntry)?;
        if id.state != IdState::RouteResolved {
            return Err(CmErrno::Invalid);
        }
        let header = id.cma_header()?.to_bytes();
        let account = self.account_of(key.owner);
        let connection = if id.service == IdService::Datagram {
            let private_data = behind(header, private_data, SIDR_REQ_DATA_BYTES)?;
            let wanted =
                FindService { peer: id.peer()?, account, service_id: id.service_id()?, pkey: PKEY, private_data };
            self.manager.find_service(&wanted, now)?
        } else {
            if parameters.qpn.is_reserved() {
                return Err(CmErrno::Invalid);
            }
            let private_data = behind(header, private_data, REQ_DATA_BYTES)?;
            let wanted = Connect { account, ..id.wanted(parameters, private_data)? };
            let device = id.device.ok_or(CmErrno::Invalid)?;
            self.manager.set_adapter(device.device, device.adapter);
            self.manager.connect(&wanted, now)?
        };
        let id = self.id(key)?;
        (id.connection, id.state) = (Some(connection), IdState::Connect);
        self.by_connection.insert(connection, key);
        Ok(())
    }

    /// Accepts a peer's request. `uid` is the identifier's from now on. As with Linux, an attempt
    /// that cannot be accepted is refused: peer and program see the same end.
    ///
    /// # Errors
    /// [`CmErrno::Invalid`].
    pub fn accept(
        &mut self,
        key: IdKey,
        uid: u64,
        parameters: &Parameters,
        private_data: &[u8],
        now: Duration,
    ) -> Result<(), CmErrno> {
        let accepted = self.try_accept(key, parameters, private_data, now);
        if accepted.is_ok() {
            self.id(key)?.uid = uid;
        } else {
            self.refuse_attempt(key, now);
        }
        accepted
    }

    /// Refuses the attempt of an identifier that a call could not continue, if there is one.
    pub fn refuse_attempt(&mut self, key: IdKey, now: Duration) {
        // In another state there is none.
        let _ = self.reject(key, reject_reason::CONSUMER_DEFINED, &[], now);
    }

    fn try_accept(
        &mut self,
        key: IdKey,
        parameters: &Parameters,
        private_data: &[u8],
        now: Duration,
    ) -> Result<(), CmErrno> {
        let id = self.ids.get(&key).ok_or(CmErrno::NoEntry)?;
        let (IdState::Connect, Some(connection)) = (id.state, id.connection) else { return Err(CmErrno::Invalid) };
        if id.service == IdService::Datagram {
            let qkey = if parameters.qkey == 0 { UDP_QKEY } else { parameters.qkey };
            if qkey & PRIVILEGED_QKEY != 0 {
                return Err(CmErrno::Invalid);
            }
            let private_data = padded(private_data, SIDR_REP_DATA_BYTES)?;
            let answer = ServiceAnswer { status: sidr_status::VALID, qpn: parameters.qpn, qkey, private_data };
            self.manager.answer_service(connection, &answer, now)?;
            self.answered(key, connection);
        } else {
            let how = Accept {
                qpn: parameters.qpn,
                responder_resources: parameters.responder_resources,
                initiator_depth: parameters.initiator_depth,
                flow_control: parameters.flow_control,
                rnr_retry_count: parameters.rnr_retry_count,
                srq: parameters.srq,
                ack_delay: ACK_DELAY,
                private_data: padded(private_data, REP_DATA_BYTES)?,
                patience: self.unconfirmed.are_many_beside(key).then_some(SHORT_CONFIRMATION_TIMEOUT),
            };
            self.manager.accept(connection, &how, now)?;
            self.unconfirmed.accept(key);
            // The program has taken the request: its listener's backlog has room.
            self.look_at_postponed_of(self.unconfirmed.listener_of(key));
        }
        Ok(())
    }

    /// A question is answered: it is no longer the identifier's.
    fn answered(&mut self, key: IdKey, connection: CommId) {
        self.no_longer_unconfirmed(key);
        self.by_connection.remove(&connection);
        if let Some(id) = self.ids.get_mut(&key) {
            id.connection = None;
        }
    }

    /// Confirms the peer's acceptance: the queue pair is connected. An attempt in another state is
    /// refused, as by [`Self::accept`].
    ///
    /// # Errors
    /// [`CmErrno::Invalid`].
    pub fn confirm(&mut self, key: IdKey, now: Duration) -> Result<(), CmErrno> {
        let id = self.ids.get(&key).ok_or(CmErrno::NoEntry)?;
        let connection = id.connection.ok_or(CmErrno::Invalid)?;
        let confirmed = self.manager.confirm(connection, [0; 224], now);
        if confirmed.is_err() {
            self.refuse_attempt(key, now);
        }
        Ok(confirmed?)
    }

    /// Refuses a peer's request or its acceptance, or gives an attempt up that is not established.
    /// Reason 0 is 28, the program's own.
    ///
    /// # Errors
    /// [`CmErrno::Invalid`].
    pub fn reject(&mut self, key: IdKey, reason: u16, private_data: &[u8], now: Duration) -> Result<(), CmErrno> {
        let id = self.ids.get(&key).ok_or(CmErrno::NoEntry)?;
        let (IdState::Connect, Some(connection)) = (id.state, id.connection) else { return Err(CmErrno::Invalid) };
        let reason = match reason {
            0 | reject_reason::CONSUMER_DEFINED => reject_reason::CONSUMER_DEFINED,
            reject_reason::VENDOR_OPTION_NOT_SUPPORTED => reject_reason::VENDOR_OPTION_NOT_SUPPORTED,
            _ => return Err(CmErrno::Invalid),
        };
        if id.service == IdService::Datagram {
            let private_data = padded(private_data, SIDR_REP_DATA_BYTES)?;
            let answer = ServiceAnswer { private_data, ..ServiceAnswer::refusal(sidr_status::REJECTED) };
            self.manager.answer_service(connection, &answer, now)?;
            self.answered(key, connection);
        } else {
            let account = self.account_of(key.owner);
            self.manager.reject(connection, account, reason, padded(private_data, REJ_DATA_BYTES)?, now)?;
            self.no_longer_unconfirmed(key);
            self.forget_ended(connection);
        }
        Ok(())
    }

    /// Disconnects. Where there is no connection to end, nothing happens.
    ///
    /// # Errors
    /// [`CmErrno::Invalid`] before a connection was asked for.
    pub fn disconnect(&mut self, key: IdKey, now: Duration) -> Result<(), CmErrno> {
        let id = self.ids.get(&key).ok_or(CmErrno::NoEntry)?;
        if !matches!(id.state, IdState::Connect | IdState::Disconnected) {
            return Err(CmErrno::Invalid);
        }
        if let Some(connection) = id.connection {
            // In any other state there is nothing to end.
            let _ = self.manager.disconnect(connection, now);
        }
        Ok(())
    }

    /// The first packet of the peer has come before its confirmation.
    ///
    /// # Errors
    /// [`CmErrno::IsConnected`], [`CmErrno::Invalid`].
    pub fn establish(&mut self, key: IdKey, host: &mut impl Host, now: Duration) -> Result<(), CmErrno> {
        let id = self.ids.get(&key).ok_or(CmErrno::NoEntry)?;
        let connection = id.connection.ok_or(CmErrno::Invalid)?;
        if self.manager.state(connection) == Some(CmState::Established) {
            return Err(CmErrno::IsConnected);
        }
        self.manager.establish(connection)?;
        self.take_events(host, now);
        Ok(())
    }
}

/// The default partition.
const PKEY: u16 = 0xffff;

/// LID of a path on Ethernet.
const NO_LID: u16 = 0xffff;

impl Identifier {
    fn service_id(&self) -> Result<ServiceId, CmErrno> {
        Ok(ServiceId::of(self.port_space, self.destination.ok_or(CmErrno::Invalid)?.port()))
    }

    fn cma_header(&self) -> Result<CmaHeader, CmErrno> {
        let (Some(source), Some(destination)) = (self.source, self.destination) else { return Err(CmErrno::Invalid) };
        let addresses = match (source, destination) {
            (SocketAddr::V4(from), SocketAddr::V4(to)) => CmaAddress::Ipv4([from.ip().octets(), to.ip().octets()]),
            (SocketAddr::V6(from), SocketAddr::V6(to)) => CmaAddress::Ipv6([from.ip().octets(), to.ip().octets()]),
            _ => return Err(CmErrno::Invalid),
        };
        Ok(CmaHeader { source_port: source.port(), addresses })
    }

    fn wanted(&self, parameters: &Parameters, private_data: [u8; 92]) -> Result<Connect, CmErrno> {
        let path = self.path.ok_or(CmErrno::Invalid)?;
        let peer = self.peer()?;
        let service = if self.service == IdService::Reliable { TransportService::Rc } else { TransportService::Uc };
        Ok(Connect {
            peer,
            account: AccountId(0),
            service_id: self.service_id()?,
            service,
            qpn: parameters.qpn,
            responder_resources: parameters.responder_resources,
            initiator_depth: parameters.initiator_depth,
            flow_control: parameters.flow_control,
            retry_count: parameters.retry_count,
            rnr_retry_count: parameters.rnr_retry_count,
            srq: parameters.srq,
            pkey: PKEY,
            path_mtu: mtu_code(path.mtu_bytes),
            path: ConnectionPath {
                local_lid: NO_LID,
                remote_lid: NO_LID,
                local_gid: peer.local,
                remote_gid: peer.remote,
                flow_label: path.flow_label,
                rate: path.rate,
                traffic_class: path.traffic_class,
                hop_limit: path.hop_limit,
                service_level: path.service_level,
                subnet_local: false,
                ack_timeout: 0,
            },
            packet_life_time: path.packet_life_time,
            ack_delay: ACK_DELAY,
            private_data,
        })
    }

    /// Bytes of private data that a program gets with a request, all of them.
    pub(super) const fn request_data_bytes(&self) -> usize {
        match self.service {
            IdService::Datagram => SIDR_REQ_DATA_BYTES,
            IdService::Reliable | IdService::Unreliable => REQ_DATA_BYTES,
        }
    }
}

/// `data` in front of zeros.
fn padded<const BYTES: usize>(data: &[u8], max: usize) -> Result<[u8; BYTES], CmErrno> {
    if data.len() > max {
        return Err(CmErrno::Invalid);
    }
    let mut bytes = [0; BYTES];
    bytes[..data.len()].copy_from_slice(data);
    Ok(bytes)
}

/// `data` behind a CMA header, in front of zeros.
fn behind<const BYTES: usize>(header: [u8; CmaHeader::BYTES], data: &[u8], max: usize) -> Result<[u8; BYTES], CmErrno> {
    if data.len() > max {
        return Err(CmErrno::Invalid);
    }
    let mut bytes = [0; BYTES];
    bytes[..CmaHeader::BYTES].copy_from_slice(&header);
    bytes[CmaHeader::BYTES..][..data.len()].copy_from_slice(data);
    Ok(bytes)
}

/// Port space of the service that an identifier of it has unless it says otherwise.
pub(super) const fn is_datagram(space: PortSpace) -> bool {
    matches!(space, PortSpace::Udp | PortSpace::Ipoib)
}
