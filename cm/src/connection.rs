//! One connection: its state, its peer, and the message that it repeats.

use core::time::Duration;

use roced_types::{AccountId, DeviceId, Qpn};

use crate::{
    time,
    wire::{CaGuid, CommId, Mad, Req, ServiceId, TransactionId},
};

/// Addresses of a datagram. Answers go back along them; a message of another peer than a
/// connection's is not for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerAddress {
    /// Device.
    pub device: DeviceId,
    /// VLAN, if frames have a tag.
    pub vlan: Option<u16>,
    /// GID of this end.
    pub local: [u8; 16],
    /// GID of the other end.
    pub remote: [u8; 16],
}

/// State of a connection, by the names of IBTA v1 12.9.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CmState {
    /// Active: the REQ is repeated until an answer comes.
    ReqSent,
    /// Active: the peer needs time for its answer.
    MraReqReceived,
    /// Active: the peer accepted; the program has to connect its queue pair.
    RepReceived,
    /// Passive: the program has to accept or reject.
    ReqReceived,
    /// Passive: the REP is repeated until an RTU comes.
    RepSent,
    /// Passive: the peer needs time for its RTU.
    MraRepReceived,
    /// Connected.
    Established,
    /// The DREQ is repeated until a DREP comes.
    DreqSent,
    /// The peer disconnects; the program has to do so as well.
    DreqReceived,
    /// Packets of the connection may still be under way.
    TimeWait,
    /// Active: the SIDR_REQ is repeated until an answer comes.
    SidrReqSent,
    /// Passive: the program has to answer.
    SidrReqReceived,
}

/// A message that is repeated until an answer comes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Repeated {
    pub(crate) mad: Mad,
    pub(crate) sent: u32,
    /// It counts as under way to its peer.
    pub(crate) is_counted: bool,
    /// No repetition after that.
    pub(crate) until: Duration,
}

/// A listener: another one may have its service ID later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ListenerRef {
    pub(crate) service_id: ServiceId,
    pub(crate) generation: u64,
}

/// REPs of one request that are kept as refused: each comes some seconds after the one before.
pub(crate) const REFUSED_REPS: usize = 8;

#[derive(Clone, Debug)]
pub(crate) struct CmConnection {
    pub(crate) state: CmState,
    pub(crate) peer: PeerAddress,
    /// The user that asked for it, or that listens.
    pub(crate) account: AccountId,
    pub(crate) transaction: TransactionId,
    /// Of the listener, for its backlog: passive connections that the program has not seen to.
    pub(crate) listener: Option<ListenerRef>,
    /// The service that was asked for.
    pub(crate) service_id: ServiceId,
    /// The program is gone: no events, and the connection ends with the last message.
    pub(crate) is_orphan: bool,
    /// Place among the orphans.
    pub(crate) orphan_place: Option<u64>,
    /// Its peer is not given more time when it asks for that.
    pub(crate) is_hurried: bool,
    /// Its peer has confirmed it, or accepted and was told so, and it is not over.
    pub(crate) is_confirmed: bool,
    /// The peer has said at any time that it has the connection: a REQ of the same queue pair says
    /// then that it has forgotten.
    pub(crate) was_confirmed: bool,
    /// Its peer was asked whether it has forgotten it, and has not confirmed it since.
    pub(crate) is_doubted: bool,
    /// Its peer was asked at any time whether it has forgotten the connection: another such
    /// question repeats the first.
    pub(crate) was_asked: bool,
    /// 0 before the peer has told it.
    pub(crate) remote: CommId,
    pub(crate) remote_ca: CaGuid,
    pub(crate) qpn: Qpn,
    pub(crate) remote_qpn: Qpn,
    /// PSN that our queue pair expects first.
    pub(crate) starting_psn: u32,
    /// Time for packets to leave the network: exponent.
    pub(crate) ack_timeout: u8,
    /// Times of the peer's answers: exponent, and how often ours are repeated.
    pub(crate) response_timeout: u8,
    pub(crate) retries: u8,
    pub(crate) repeated: Option<Repeated>,
    pub(crate) deadline: Option<Duration>,
    /// The last RTU, DREP, REJ, MRA or SIDR_REP, for duplicates of the message that it answered.
    pub(crate) answer: Option<Mad>,
    /// The last REPs that were refused as stale, by the peer's number: they stay refused.
    pub(crate) refused: [CommId; REFUSED_REPS],
}

impl CmConnection {
    /// Of a question for a datagram service: no queue pair is connected.
    pub(crate) const fn of_question(peer: PeerAddress) -> Self {
        Self {
            state: CmState::SidrReqSent,
            peer,
            account: AccountId(0),
            transaction: TransactionId(0),
            listener: None,
            service_id: ServiceId(0),
            is_orphan: false,
            is_hurried: false,
            is_confirmed: false,
            was_confirmed: false,
            is_doubted: false,
            was_asked: false,
            orphan_place: None,
            remote: CommId(0),
            remote_ca: CaGuid(0),
            qpn: Qpn::from_wire(0),
            remote_qpn: Qpn::from_wire(0),
            starting_psn: 0,
            ack_timeout: 0,
            response_timeout: 0,
            retries: 0,
            repeated: None,
            deadline: None,
            answer: None,
            refused: [CommId(0); REFUSED_REPS],
        }
    }

    /// Of the passive side.
    pub(crate) fn of_req(req: &Req, peer: PeerAddress, transaction: TransactionId, starting_psn: u32) -> Self {
        Self {
            state: CmState::ReqReceived,
            peer,
            account: AccountId(0),
            transaction,
            listener: None,
            service_id: req.service_id,
            is_orphan: false,
            is_hurried: false,
            is_confirmed: false,
            was_confirmed: false,
            is_doubted: false,
            was_asked: false,
            orphan_place: None,
            remote: req.local,
            remote_ca: req.local_ca,
            qpn: Qpn::from_wire(0),
            remote_qpn: req.qpn,
            starting_psn,
            ack_timeout: req.primary.ack_timeout.min(time::ACK_TIMEOUT_MAX),
            response_timeout: req.local_response_timeout.min(time::RESPONSE_TIMEOUT_MAX),
            retries: req.max_cm_retries,
            repeated: None,
            deadline: None,
            answer: None,
            refused: [CommId(0); REFUSED_REPS],
        }
    }

    /// Whether the peer may take its queue pair for connected.
    pub(crate) const fn is_live(&self) -> bool {
        !matches!(self.state, CmState::TimeWait)
    }
}
