//! Datagram services: one message asks for the queue pair of a service, one answers (IBTA v1
//! 12.11).

use core::time::Duration;

use roced_types::{AccountId, Qpn};

use super::{CmError, ConnectionManager};
use crate::{
    connection::{CmConnection, CmState, PeerAddress},
    event::CmEvent,
    refused::{RefusalCause, RefusedConnection},
    time,
    wire::{
        AdditionalInfo, Attribute, CaGuid, CmMessage, CommId, Mad, ServiceId, SidrRep, SidrReq, TransactionId,
        sidr_status,
    },
};

/// Answers that are kept for repetitions of the question, at most.
const ANSWERS_MAX: usize = 4096;

/// A datagram service to be found.
#[derive(Clone, Copy, Debug)]
pub struct FindService {
    /// Peer.
    pub peer: PeerAddress,
    /// The user that asks.
    pub account: AccountId,
    /// The peer's listener.
    pub service_id: ServiceId,
    /// Partition.
    pub pkey: u16,
    /// Private data, the CMA header included.
    pub private_data: [u8; 216],
}

/// An answer to a peer that asks for the queue pair of a datagram service.
#[derive(Clone, Copy, Debug)]
pub struct ServiceAnswer {
    /// Result: [`sidr_status`].
    pub status: u8,
    /// The queue pair.
    pub qpn: Qpn,
    /// Q_Key of its datagrams.
    pub qkey: u32,
    /// Private data.
    pub private_data: [u8; 136],
}

impl ServiceAnswer {
    /// A refusal.
    pub const fn refusal(status: u8) -> Self {
        Self { status, qpn: Qpn::from_wire(0), qkey: 0, private_data: [0; 136] }
    }
}

impl ConnectionManager {
    /// Asks for the queue pair of a datagram service. An event says how that ends.
    ///
    /// # Errors
    /// [`CmError::Full`].
    pub fn find_service(&mut self, wanted: &FindService, now: Duration) -> Result<CommId, CmError> {
        let (account, service_id) = (wanted.account, wanted.service_id);
        let question = CmConnection { account, service_id, ..CmConnection::of_question(wanted.peer) };
        let id = self.insert(question)?;
        self.set_transaction(id);
        let req = SidrReq {
            request: id,
            pkey: wanted.pkey,
            service_id: wanted.service_id,
            private_data: wanted.private_data,
        };
        let once = time::of_exponent(time::RESPONSE_TIMEOUT);
        self.now = now;
        self.ask(id, CmMessage::SidrReq(req), now, once * (1 + u32::from(time::RETRIES)));
        Ok(id)
    }

    /// Answers a [`CmEvent::ServiceRequested`]. The answer is kept for repetitions of the question;
    /// no further event comes.
    ///
    /// # Errors
    /// [`CmError::Unknown`], [`CmError::State`].
    pub fn answer_service(&mut self, id: CommId, answer: &ServiceAnswer, now: Duration) -> Result<(), CmError> {
        let connection = self.connections.get_mut(&id).ok_or(CmError::Unknown)?;
        if connection.state != CmState::SidrReqReceived {
            return Err(CmError::State(connection.state));
        }
        let service_id = connection.service_id;
        let message = CmMessage::SidrRep(sidr_rep(connection.remote, service_id, answer));
        let (to, transaction) = (connection.peer, connection.transaction);
        connection.answer = Some(Mad { transaction, modifier: 0, message });
        connection.is_orphan = true;
        connection.state = CmState::TimeWait;
        if answer.status == sidr_status::UNSUPPORTED_SERVICE_ID {
            self.send_bounded(to, transaction, message);
        } else {
            self.send(to, transaction, message);
        }
        self.leave_backlog(id);
        self.set_deadline(id, Some(now + time::of_exponent(time::MRA_SERVICE_TIMEOUT)));
        self.keep_answer(id);
        Ok(())
    }

    fn keep_answer(&mut self, id: CommId) {
        self.answered.push_back(id);
        if self.answered.len() > ANSWERS_MAX
            && let Some(oldest) = self.answered.pop_front()
            && self.connections.get(&oldest).is_some_and(|it| it.state == CmState::TimeWait && it.remote_ca == NO_CA)
        {
            self.forget(oldest);
        }
    }

    pub(super) fn on_sidr_req(&mut self, from: PeerAddress, req: &SidrReq, transaction: TransactionId, now: Duration) {
        if let Some(&known) = self.by_question.get(&(from, req.request)) {
            self.counters.of_mut(Attribute::SidrReq).duplicates += 1;
            if let Some(mad) = self.connections[&known].answer {
                self.send_again(from, mad);
            }
            return;
        }
        let note = |manager: &mut Self, cause| {
            manager.note_refused(RefusedConnection { peer: from, service_id: req.service_id, account: None, cause });
        };
        let Some(listener) = self.listeners.get(&req.service_id) else {
            let refusal = ServiceAnswer::refusal(sidr_status::UNSUPPORTED_SERVICE_ID);
            let rep = sidr_rep(req.request, req.service_id, &refusal);
            note(self, RefusalCause::NoListener);
            return self.send_bounded(from, transaction, CmMessage::SidrRep(rep));
        };
        // In silence: the peer repeats its question.
        if listener.waiting >= listener.backlog {
            self.counters.no_room += 1;
            note(self, RefusalCause::BacklogFull);
            return;
        }
        let connection = CmConnection {
            state: CmState::SidrReqReceived,
            transaction,
            remote: req.request,
            service_id: req.service_id,
            ..CmConnection::of_question(from)
        };
        let Ok(id) = self.insert(connection) else {
            self.counters.no_room += 1;
            note(self, RefusalCause::ConnectionsFull);
            return;
        };
        self.enter_backlog(id, req.service_id);
        self.by_question.insert((from, req.request), id);
        self.set_deadline(id, Some(now + time::of_exponent(time::MRA_SERVICE_TIMEOUT)));
        self.events.push_back(CmEvent::ServiceRequested { id, req: *req, peer: from });
    }

    pub(super) fn on_sidr_rep(&mut self, from: PeerAddress, rep: &SidrRep) {
        let id = rep.request;
        let Some(connection) = self.of_peer(id, from) else { return };
        if connection.state != CmState::SidrReqSent {
            self.counters.out_of_state += 1;
            return;
        }
        if rep.status != sidr_status::VALID {
            let account = connection.account;
            self.note_refused_connection(id, Some(account), RefusalCause::ServiceByPeer(rep.status));
        }
        self.tell(id, CmEvent::ServiceFound { id, rep: *rep });
        self.forget(id);
    }
}

/// Of connections that are questions.
const NO_CA: CaGuid = CaGuid(0);

const fn sidr_rep(request: CommId, service_id: ServiceId, answer: &ServiceAnswer) -> SidrRep {
    SidrRep {
        request,
        status: answer.status,
        ece_vendor: 0,
        qpn: answer.qpn,
        service_id,
        qkey: answer.qkey,
        info: AdditionalInfo::NONE,
        private_data: answer.private_data,
    }
}
