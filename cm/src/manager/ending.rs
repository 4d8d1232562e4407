//! The end of a connection, by its program or because that is gone.

use core::time::Duration;

use roced_types::Qpn;

use super::{CmError, ConnectionManager, ServiceAnswer};
use crate::{
    connection::{CmState, Repeated},
    time,
    wire::{CmMessage, CommId, Drep, Dreq, Mad, RejectedMessage, reject_reason, sidr_status},
};

/// How long a peer is asked whether it has forgotten a connection: four times.
const FORGOTTEN_QUESTION_TIME: Duration = Duration::from_secs(3);

/// How long a peer that may have forgotten a connection has to confirm it: some repetitions.
const FORGOTTEN_CONFIRMATION_TIMEOUT: Duration = Duration::from_secs(10);

impl ConnectionManager {
    /// Disconnects, or agrees that the peer does.
    ///
    /// # Errors
    /// [`CmError::Unknown`], [`CmError::State`].
    pub fn disconnect(&mut self, id: CommId, now: Duration) -> Result<(), CmError> {
        let connection = self.connections.get(&id).ok_or(CmError::Unknown)?;
        match connection.state {
            CmState::Established => self.send_dreq(id, now),
            CmState::DreqReceived => self.send_drep(id, now),
            state => return Err(CmError::State(state)),
        }
        Ok(())
    }

    /// The program gives the connection up, in any state. Its peer is told; no event comes any
    /// more.
    ///
    /// # Errors
    /// [`CmError::Unknown`].
    pub fn destroy(&mut self, id: CommId, now: Duration) -> Result<(), CmError> {
        self.now = now;
        let connection = self.connections.get_mut(&id).ok_or(CmError::Unknown)?;
        connection.is_orphan = true;
        let state = connection.state;
        self.leave_backlog(id);
        self.events.retain(|event| event.id() != id);
        match state {
            CmState::ReqSent | CmState::MraReqReceived => {
                self.send_rej(id, RejectedMessage::Other, reject_reason::TIMEOUT);
                self.forget(id);
            }
            CmState::SidrReqSent => self.forget(id),
            CmState::SidrReqReceived => {
                self.answer_service(id, &ServiceAnswer::refusal(sidr_status::REJECTED), now)?;
            }
            CmState::ReqReceived => {
                self.send_rej(id, RejectedMessage::Req, reject_reason::CONSUMER_DEFINED);
                self.enter_time_wait(id, now);
            }
            CmState::RepReceived => {
                self.send_rej(id, RejectedMessage::Rep, reject_reason::CONSUMER_DEFINED);
                self.enter_time_wait(id, now);
            }
            CmState::RepSent | CmState::MraRepReceived => {
                self.send_rej(id, RejectedMessage::Other, reject_reason::CONSUMER_DEFINED);
                self.send_dreq(id, now);
            }
            CmState::Established => self.send_dreq(id, now),
            CmState::DreqReceived => self.send_drep(id, now),
            // Goes on until the peer has answered, or no packet is under way.
            CmState::DreqSent | CmState::TimeWait => {}
        }
        self.keep_orphan(id);
        Ok(())
    }

    /// Gives up the attempt of a peer that was accepted, after a REJ. The peer may have confirmed:
    /// if that was lost, and the REJ as well, it would take the connection for established for
    /// ever. So it is disconnected, without the program.
    pub(super) fn withdraw(&mut self, id: CommId, most: Duration, now: Duration) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.is_orphan = true;
        self.send_dreq_for(id, most, now);
        self.keep_orphan(id);
    }

    pub(super) fn send_dreq(&mut self, id: CommId, now: Duration) {
        self.send_dreq_for(id, Duration::MAX, now);
    }

    /// Sends a DREQ, and again for as long as the peer may need, but no longer than `most`.
    fn send_dreq_for(&mut self, id: CommId, most: Duration, now: Duration) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.state = CmState::DreqSent;
        let dreq =
            Dreq { local: id, remote: connection.remote, remote_qpn: connection.remote_qpn, private_data: [0; 220] };
        let total = time::of_exponent(connection.response_timeout) * (1 + u32::from(connection.retries));
        // The connections of a program that ends, thousands at a time, are more than queues hold.
        self.ask(id, CmMessage::Dreq(dreq), now, total.min(most));
    }

    pub(super) fn send_drep(&mut self, id: CommId, now: Duration) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let message = CmMessage::Drep(Drep { local: id, remote: connection.remote, private_data: [0; 224] });
        let (to, transaction) = (connection.peer, connection.transaction);
        connection.answer = Some(Mad { transaction, modifier: 0, message });
        self.send(to, transaction, message);
        self.enter_time_wait(id, now);
    }

    /// The peer asks for a new connection of the same queue pair: it may have forgotten this one.
    /// But any host can send that in its name, and a queue pair number is guessed soon. So the peer
    /// decides: the connection is disconnected when it has answered a DREQ for no queue pair, which
    /// a peer that has the connection drops (as Linux does).
    pub(super) fn doubt(&mut self, id: CommId, now: Duration) {
        let random = self.random.next();
        let Some(connection) = self.connections.get_mut(&id) else { return };
        match connection.state {
            CmState::Established | CmState::RepSent | CmState::MraRepReceived | CmState::RepReceived => {}
            // The program was told, and may never disconnect; nor does the peer repeat its DREQ.
            CmState::DreqReceived => return self.send_drep(id, now),
            // These end by themselves: asked again, answered late, or over.
            CmState::ReqSent
            | CmState::MraReqReceived
            | CmState::ReqReceived
            | CmState::DreqSent
            | CmState::TimeWait
            | CmState::SidrReqSent
            | CmState::SidrReqReceived => return,
        }
        connection.is_doubted = true;
        let is_first = !core::mem::replace(&mut connection.was_asked, true);
        let (to, transaction) = (connection.peer, connection.transaction);
        let no_qp = Qpn::from_wire(0);
        let question = Dreq { local: id, remote: connection.remote, remote_qpn: no_qp, private_data: [0; 220] };
        let mad = Mad { transaction, modifier: 0, message: CmMessage::Dreq(question) };
        // Another message is repeated, or this one: then the peer's next request asks again.
        if connection.deadline.is_none() {
            connection.repeated =
                Some(Repeated { mad, sent: 1, is_counted: false, until: now + FORGOTTEN_QUESTION_TIME });
            self.set_deadline(id, Some(now + time::repetition(1, random)));
        }
        if is_first {
            self.send_bounded(to, transaction, mad.message);
        } else {
            self.send_again(to, mad);
        }
    }

    /// The peer may have forgotten a connection that it has not confirmed.
    pub(super) fn shorten(&mut self, id: CommId, now: Duration) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let Some(repeated) = connection.repeated.as_mut() else { return };
        repeated.until = repeated.until.min(now + FORGOTTEN_CONFIRMATION_TIMEOUT);
        let deadline = connection.deadline.map(|at| at.min(now + FORGOTTEN_CONFIRMATION_TIMEOUT));
        self.set_deadline(id, deadline);
    }
}
