//! The side that listens.

use core::time::Duration;

use roced_types::{AccountId, Qpn};

use super::{CmError, CmListener, ConnectionManager};
use crate::{
    connection::{CmState, ListenerRef},
    event::CmEvent,
    refused::RefusalCause,
    time,
    wire::{AdditionalInfo, CmMessage, CommId, Mad, Rej, RejectedMessage, Rep, ServiceId, reject_reason},
};

/// How a connection is accepted.
#[derive(Clone, Copy, Debug)]
pub struct Accept {
    /// Our queue pair.
    pub qpn: Qpn,
    /// READ and atomic requests that our queue pair executes at a time.
    pub responder_resources: u8,
    /// READ and atomic requests that our queue pair issues at a time.
    pub initiator_depth: u8,
    /// Our queue pair grants credits.
    pub flow_control: bool,
    /// Retries of the peer's queue pair after RNR NAKs, at most 7.
    pub rnr_retry_count: u8,
    /// Our queue pair takes receives from a shared receive queue.
    pub srq: bool,
    /// Longest delay of our ACKs: exponent.
    pub ack_delay: u8,
    /// Private data.
    pub private_data: [u8; 196],
    /// Longest time for the peer's confirmation, if that is not the peer's to say: it cannot ask
    /// for more.
    pub patience: Option<Duration>,
}

impl ConnectionManager {
    /// Listens. REQs beyond `backlog` that the program has not seen to are dropped: peers repeat
    /// them.
    ///
    /// # Errors
    /// [`CmError::Listening`].
    pub fn listen(&mut self, service_id: ServiceId, backlog: u32) -> Result<(), CmError> {
        if self.listeners.contains_key(&service_id) {
            return Err(CmError::Listening);
        }
        self.last_generation += 1;
        self.listeners.insert(service_id, CmListener { generation: self.last_generation, backlog, waiting: 0 });
        Ok(())
    }

    /// Stops listening. Connections stay.
    pub fn unlisten(&mut self, service_id: ServiceId) {
        self.listeners.remove(&service_id);
    }

    /// Refuses a request on which nothing is to be kept: one that comes again is refused again.
    /// `account` has the listener.
    pub fn refuse(&mut self, id: CommId, reason: u16, account: Option<AccountId>) {
        let Some(connection) = self.connections.get(&id).filter(|it| it.state == CmState::ReqReceived) else { return };
        let (to, transaction) = (connection.peer, connection.transaction);
        let rej = Rej::of_unknown_peer(connection.remote, RejectedMessage::Req, reason);
        self.send_bounded(to, transaction, CmMessage::Rej(rej));
        let cause = match reason {
            reject_reason::INVALID_SERVICE_ID => RefusalCause::NoListener,
            _ => RefusalCause::Unfit(reason),
        };
        self.note_refused_connection(id, account, cause);
        self.forget(id);
    }

    /// Forgets a request as if it had not come: the peer repeats it. `account` has the listener,
    /// unless an unknown peer asks: it must not use up the lines of the user's log.
    pub fn ignore(&mut self, id: CommId, account: Option<AccountId>, cause: RefusalCause) {
        self.note_refused_connection(id, account, cause);
        if self.state(id).is_some_and(|state| matches!(state, CmState::ReqReceived | CmState::SidrReqReceived)) {
            self.forget(id);
        }
    }

    /// Forgets a request that [`Self::on_postponed`] brings again, or the peer does: the datagram.
    pub(crate) fn postpone(
        &mut self,
        id: CommId,
        account: Option<AccountId>,
        cause: RefusalCause,
        message: CmMessage,
    ) -> Option<Mad> {
        let transaction = self.connections.get(&id)?.transaction;
        self.ignore(id, account, cause);
        Some(Mad { transaction, modifier: 0, message })
    }

    /// A request is dropped, after it was ignored or while it waited.
    pub(crate) fn count_no_room(&mut self) {
        self.counters.no_room += 1;
    }

    /// Accepts a connection. An event says when the peer has confirmed.
    ///
    /// # Errors
    /// [`CmError::Unknown`], [`CmError::State`].
    pub fn accept(&mut self, id: CommId, how: &Accept, now: Duration) -> Result<(), CmError> {
        let connection = self.connections.get(&id).ok_or(CmError::Unknown)?;
        if connection.state != CmState::ReqReceived {
            return Err(CmError::State(connection.state));
        }
        let local_ca = self.ca(connection.peer.device);
        let Some(connection) = self.connections.get_mut(&id) else { return Err(CmError::Unknown) };
        connection.state = CmState::RepSent;
        connection.qpn = how.qpn;
        connection.is_hurried = how.patience.is_some();
        let rep = Rep {
            local: id,
            remote: connection.remote,
            qkey: 0,
            qpn: how.qpn,
            eecn: 0,
            ece_vendor: 0,
            starting_psn: connection.starting_psn,
            responder_resources: how.responder_resources,
            initiator_depth: how.initiator_depth,
            target_ack_delay: how.ack_delay,
            failover_accepted: 0,
            flow_control: how.flow_control,
            rnr_retry_count: how.rnr_retry_count.min(7),
            srq: how.srq,
            local_ca,
            private_data: how.private_data,
        };
        let total = time::of_exponent(connection.response_timeout) * (1 + u32::from(connection.retries));
        let total = how.patience.map_or(total, |patience| total.min(patience));
        self.with_qp.insert((how.qpn, id));
        self.leave_backlog(id);
        self.send_repeated(id, CmMessage::Rep(rep), now, total);
        Ok(())
    }

    /// Refuses a connection before it is established, on either side, for a program of user
    /// `account`. It is forgotten, and it causes no further event, except the end of TIMEWAIT if
    /// this end had not accepted it.
    ///
    /// # Errors
    /// [`CmError::Unknown`], [`CmError::State`].
    pub fn reject(
        &mut self,
        id: CommId,
        account: AccountId,
        reason: u16,
        private_data: [u8; 148],
        now: Duration,
    ) -> Result<(), CmError> {
        self.now = now;
        let connection = self.connections.get(&id).ok_or(CmError::Unknown)?;
        let message = match connection.state {
            CmState::ReqReceived => RejectedMessage::Req,
            CmState::RepReceived => RejectedMessage::Rep,
            // As Linux: the program gives the attempt up before the peer has answered.
            CmState::ReqSent | CmState::MraReqReceived | CmState::RepSent | CmState::MraRepReceived => {
                RejectedMessage::Other
            }
            state => return Err(CmError::State(state)),
        };
        let rej =
            Rej { local: id, remote: connection.remote, message, reason, info: AdditionalInfo::NONE, private_data };
        let (to, transaction) = (connection.peer, connection.transaction);
        self.send(to, transaction, CmMessage::Rej(rej));
        if rej.remote == CommId(0) {
            // The peer does not know it yet: its REP will be refused, as that of an unknown peer.
            self.forget(id);
            return Ok(());
        }
        // A REQ that comes again, because the REJ was lost, is answered in the same way.
        let is_accepted = self.state(id).is_some_and(|it| matches!(it, CmState::RepSent | CmState::MraRepReceived));
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.answer = Some(Mad { transaction, modifier: 0, message: CmMessage::Rej(rej) });
        }
        self.note_refused_connection(id, Some(account), RefusalCause::ByProgram(reason));
        if is_accepted {
            self.withdraw(id, Duration::MAX, now);
        } else {
            self.enter_time_wait(id, now);
        }
        Ok(())
    }

    /// The first packet of the peer has come to the queue pair: it is as good as a confirmation.
    ///
    /// # Errors
    /// [`CmError::Unknown`], [`CmError::State`].
    pub fn establish(&mut self, id: CommId) -> Result<(), CmError> {
        let connection = self.connections.get_mut(&id).ok_or(CmError::Unknown)?;
        match connection.state {
            CmState::RepSent | CmState::MraRepReceived => {
                connection.state = CmState::Established;
                connection.repeated = None;
                connection.is_doubted = false;
                self.set_deadline(id, None);
                self.note_confirmed(id);
                self.tell(id, CmEvent::Established { id });
                Ok(())
            }
            CmState::Established => Ok(()),
            state => Err(CmError::State(state)),
        }
    }

    /// A request waits for the program of its listener.
    pub(super) fn enter_backlog(&mut self, id: CommId, service_id: ServiceId) {
        let Some(listener) = self.listeners.get_mut(&service_id) else { return };
        listener.waiting += 1;
        let generation = listener.generation;
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.listener = Some(ListenerRef { service_id, generation });
        }
    }

    /// A new connection has been seen to: its listener has room for another.
    pub(super) fn leave_backlog(&mut self, id: CommId) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let Some(ListenerRef { service_id, generation }) = connection.listener.take() else { return };
        if let Some(listener) = self.listeners.get_mut(&service_id).filter(|it| it.generation == generation) {
            listener.waiting -= 1;
        }
    }
}
