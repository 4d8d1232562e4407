//! The side that asks for a connection.

use core::time::Duration;

use roced_types::{AccountId, Qpn};

use super::{CmError, ConnectionManager};
use crate::{
    connection::{CmConnection, CmState, PeerAddress, REFUSED_REPS},
    time,
    wire::{CaGuid, CmMessage, CommId, ConnectionPath, Mad, Req, Rtu, ServiceId, TransactionId, TransportService},
};

/// A connection that is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Connect {
    /// Peer.
    pub peer: PeerAddress,
    /// The user that asks: one with many requests does not keep those of others waiting.
    pub account: AccountId,
    /// The peer's listener.
    pub service_id: ServiceId,
    /// Service.
    pub service: TransportService,
    /// Our queue pair.
    pub qpn: Qpn,
    /// READ and atomic requests that our queue pair executes at a time.
    pub responder_resources: u8,
    /// READ and atomic requests that our queue pair issues at a time.
    pub initiator_depth: u8,
    /// Our queue pair grants credits.
    pub flow_control: bool,
    /// Retries of the peer's queue pair, at most 7.
    pub retry_count: u8,
    /// Retries of the peer's queue pair after RNR NAKs, at most 7.
    pub rnr_retry_count: u8,
    /// Our queue pair takes receives from a shared receive queue.
    pub srq: bool,
    /// Partition.
    pub pkey: u16,
    /// Path MTU in the code of IBTA.
    pub path_mtu: u8,
    /// Path; its ACK timeout is computed.
    pub path: ConnectionPath,
    /// Time for a packet to cross the network: exponent.
    pub packet_life_time: u8,
    /// Longest delay of our ACKs: exponent.
    pub ack_delay: u8,
    /// Private data, the CMA header included.
    pub private_data: [u8; 92],
}

/// How long an RTU is repeated if the peer was asked to wait for it: once, or twice.
const LATE_RTU_REPEATED: Duration = Duration::from_millis(800);

impl ConnectionManager {
    /// Asks for a connection. An event says how that ends.
    ///
    /// # Errors
    /// [`CmError::Full`].
    pub fn connect(&mut self, wanted: &Connect, now: Duration) -> Result<CommId, CmError> {
        let ack_timeout = time::ack_timeout(wanted.ack_delay, wanted.packet_life_time);
        let starting_psn = self.random.next() & 0x00ff_ffff;
        let connection = CmConnection {
            state: CmState::ReqSent,
            peer: wanted.peer,
            account: wanted.account,
            transaction: TransactionId(0),
            listener: None,
            service_id: wanted.service_id,
            is_orphan: false,
            is_hurried: false,
            is_confirmed: false,
            was_confirmed: false,
            is_doubted: false,
            was_asked: false,
            orphan_place: None,
            remote: CommId(0),
            remote_ca: CaGuid(0),
            qpn: wanted.qpn,
            remote_qpn: Qpn::from_wire(0),
            starting_psn,
            ack_timeout: ack_timeout.min(time::ACK_TIMEOUT_MAX),
            response_timeout: time::RESPONSE_TIMEOUT,
            retries: time::RETRIES,
            repeated: None,
            deadline: None,
            answer: None,
            refused: [CommId(0); REFUSED_REPS],
        };
        let id = self.insert(connection)?;
        self.with_qp.insert((wanted.qpn, id));
        self.set_transaction(id);
        let req = Req {
            local: id,
            ece_vendor: 0,
            service_id: wanted.service_id,
            local_ca: self.ca(wanted.peer.device),
            qkey: 0,
            qpn: wanted.qpn,
            responder_resources: wanted.responder_resources,
            initiator_depth: wanted.initiator_depth,
            local_eecn: 0,
            remote_eecn: 0,
            remote_response_timeout: time::RESPONSE_TIMEOUT,
            service: wanted.service,
            flow_control: wanted.flow_control,
            starting_psn,
            local_response_timeout: time::RESPONSE_TIMEOUT,
            retry_count: wanted.retry_count.min(7),
            pkey: wanted.pkey,
            path_mtu: wanted.path_mtu,
            rdc_exists: false,
            rnr_retry_count: wanted.rnr_retry_count.min(7),
            max_cm_retries: time::RETRIES,
            srq: wanted.srq,
            primary: ConnectionPath { ack_timeout, ..wanted.path },
            alternate: ConnectionPath::default(),
            private_data: wanted.private_data,
        };
        // As long as Linux waits: 16 times the way there and back and the peer's time to answer.
        let life_time = wanted.packet_life_time.min(time::PACKET_LIFE_TIME_MAX);
        let once = 2 * time::of_exponent(life_time) + time::of_exponent(time::RESPONSE_TIMEOUT);
        self.now = now;
        self.ask(id, CmMessage::Req(req), now, once * (1 + u32::from(time::RETRIES)));
        Ok(id)
    }

    /// PSN that our queue pair of a connection expects first.
    pub fn starting_psn(&self, id: CommId) -> Option<u32> {
        self.connections.get(&id).map(|connection| connection.starting_psn)
    }

    /// The queue pair is connected: confirms the peer's acceptance.
    ///
    /// # Errors
    /// [`CmError::Unknown`], [`CmError::State`].
    pub fn confirm(&mut self, id: CommId, private_data: [u8; 224], now: Duration) -> Result<(), CmError> {
        let connection = self.connections.get_mut(&id).ok_or(CmError::Unknown)?;
        if connection.state != CmState::RepReceived {
            return Err(CmError::State(connection.state));
        }
        connection.state = CmState::Established;
        let message = CmMessage::Rtu(Rtu { local: id, remote: connection.remote, private_data });
        let (to, transaction) = (connection.peer, connection.transaction);
        let answer = connection.answer.replace(Mad { transaction, modifier: 0, message });
        if matches!(answer, Some(Mad { message: CmMessage::Mra(_), .. })) {
            // The peer was asked to wait: it does not repeat its REP for a minute.
            self.send_repeated(id, message, now, LATE_RTU_REPEATED);
        } else {
            // The peer repeats its REP until this arrives.
            self.send(to, transaction, message);
        }
        self.mark_confirmed(id);
        Ok(())
    }
}
