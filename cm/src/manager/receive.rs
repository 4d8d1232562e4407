//! Messages of peers, by the table of IBTA v1 12.9 and as Linux reads it.

use core::time::Duration;

use roced_types::Qpn;

use super::ConnectionManager;
use crate::{
    connection::{CmConnection, CmState, PeerAddress},
    event::CmEvent,
    refused::{RefusalCause, RefusedConnection},
    time,
    wire::{
        CaGuid, CmMessage, CommId, Drep, Dreq, MAD_BYTES, Mad, Mra, Rej, RejectedMessage, Rep, Req, Rtu, TransactionId,
        receiver_number, reject_reason,
    },
};

impl ConnectionManager {
    /// Whether a datagram names a connection with its sender: no other host can know the number.
    pub fn is_answer(&self, from: PeerAddress, bytes: &[u8; MAD_BYTES]) -> bool {
        let connection = receiver_number(bytes).and_then(|id| self.connections.get(&id));
        connection.is_some_and(|connection| connection.peer == from)
    }

    /// Whether a host has a connection: it has named one by the number that only the peer can know,
    /// and that is not over.
    pub fn is_connected(&self, peer: &PeerAddress) -> bool {
        self.confirmed.contains_key(peer)
    }

    /// The payload of a datagram to queue pair 1.
    pub fn on_datagram(&mut self, from: PeerAddress, bytes: &[u8], now: Duration) {
        self.now = now;
        match Mad::from_bytes(bytes) {
            Ok(mad) => self.on_mad(from, &mad, now),
            Err(_) => self.counters.discarded += 1,
        }
    }

    /// A request that was postponed, as if it had just come.
    pub(crate) fn on_postponed(&mut self, from: PeerAddress, mad: &Mad, now: Duration) {
        self.now = now;
        match &mad.message {
            CmMessage::Req(req) => self.on_req(from, req, mad.transaction, now),
            CmMessage::SidrReq(req) => self.on_sidr_req(from, req, mad.transaction, now),
            _ => {}
        }
    }

    fn on_mad(&mut self, from: PeerAddress, mad: &Mad, now: Duration) {
        self.counters.of_mut(mad.message.attribute()).received += 1;
        let transaction = mad.transaction;
        match &mad.message {
            CmMessage::Req(req) => self.on_req(from, req, transaction, now),
            CmMessage::Mra(mra) => self.on_mra(from, mra, now),
            CmMessage::Rej(rej) => self.on_rej(from, rej, now),
            CmMessage::Rep(rep) => self.on_rep(from, rep, transaction, now),
            CmMessage::Rtu(rtu) => self.on_rtu(from, rtu),
            CmMessage::Dreq(dreq) => self.on_dreq(from, dreq, transaction, now),
            CmMessage::Drep(drep) => self.on_drep(from, drep, now),
            CmMessage::SidrReq(req) => self.on_sidr_req(from, req, transaction, now),
            CmMessage::SidrRep(rep) => self.on_sidr_rep(from, rep),
        }
    }

    fn on_req(&mut self, from: PeerAddress, req: &Req, transaction: TransactionId, now: Duration) {
        // By number 0 none of its messages could name it.
        if req.qpn.is_reserved() || req.local == CommId(0) {
            self.counters.discarded += 1;
            return;
        }
        if let Some(&known) = self.by_remote.get(&(from, req.local_ca, req.local)) {
            return self.on_req_again(known, req);
        }
        let refuse = |reason| Rej::of_unknown_peer(req.local, RejectedMessage::Req, reason);
        let note = |manager: &mut Self, cause| {
            manager.note_refused(RefusedConnection { peer: from, service_id: req.service_id, account: None, cause });
        };
        let stale = self.by_remote_qpn.get(&(from, req.local_ca, req.qpn)).copied();
        if let Some(old) = stale.filter(|old| self.connections[old].is_live()) {
            // Any host can have asked for that in the peer's name, which is no reason to refuse the
            // peer: it confirms its own of the two attempts.
            let is_proof = self.connections[&old].was_confirmed;
            if is_proof {
                self.send_bounded(from, transaction, CmMessage::Rej(refuse(reject_reason::STALE_CONNECTION)));
                note(self, RefusalCause::Stale);
            }
            self.doubt(old, now);
            if is_proof {
                return;
            }
        }
        let Some(listener) = self.listeners.get(&req.service_id) else {
            note(self, RefusalCause::NoListener);
            return self.send_bounded(from, transaction, CmMessage::Rej(refuse(reject_reason::INVALID_SERVICE_ID)));
        };
        // In silence: the peer repeats its REQ.
        if listener.waiting >= listener.backlog {
            note(self, RefusalCause::BacklogFull);
            self.counters.no_room += 1;
            return;
        }
        let starting_psn = self.random.next() & 0x00ff_ffff;
        let Ok(id) = self.insert(CmConnection::of_req(req, from, transaction, starting_psn)) else {
            self.counters.no_room += 1;
            note(self, RefusalCause::ConnectionsFull);
            return;
        };
        self.enter_backlog(id, req.service_id);
        // The peer gives up before that: the program is no longer waited for.
        let patience = time::of_exponent(time::MRA_SERVICE_TIMEOUT) * 2;
        self.set_deadline(id, Some(now + patience));
        self.events.push_back(CmEvent::Requested { id, req: *req, peer: from });
    }

    fn on_req_again(&mut self, id: CommId, req: &Req) {
        self.counters.of_mut(crate::wire::Attribute::Req).duplicates += 1;
        let connection = &self.connections[&id];
        let (to, transaction) = (connection.peer, connection.transaction);
        match (connection.state, connection.answer) {
            // The program has not decided.
            (CmState::ReqReceived, _) => {
                let mra = Mra::new(id, req.local, RejectedMessage::Req, time::MRA_SERVICE_TIMEOUT);
                self.send_bounded(to, transaction, CmMessage::Mra(mra));
            }
            // It was refused, and the refusal was lost.
            (CmState::TimeWait | CmState::DreqSent, Some(mad @ Mad { message: CmMessage::Rej(_), .. })) => {
                self.send_again(to, mad);
            }
            // The REP is repeated by its own timer.
            _ => {}
        }
    }

    /// The connection of that number, if it is this peer's.
    pub(super) fn of_peer(&mut self, id: CommId, from: PeerAddress) -> Option<&mut CmConnection> {
        let Some(connection) = self.connections.get_mut(&id) else {
            self.counters.unknown += 1;
            return None;
        };
        if connection.peer != from {
            self.counters.other_peer += 1;
            return None;
        }
        Some(connection)
    }

    /// The connection of that number, if it is this peer's and has the peer's number.
    fn of_both(&mut self, id: CommId, remote: CommId, from: PeerAddress) -> Option<&mut CmConnection> {
        let fits = self.of_peer(id, from)?.remote == remote;
        if !fits {
            self.counters.unknown += 1;
            return None;
        }
        self.connections.get_mut(&id)
    }

    fn on_mra(&mut self, from: PeerAddress, mra: &Mra, now: Duration) {
        let Some(connection) = self.of_peer(mra.remote, from) else { return };
        connection.state = match (connection.state, mra.message) {
            (CmState::ReqSent, RejectedMessage::Req) => CmState::MraReqReceived,
            (CmState::RepSent, RejectedMessage::Rep) if connection.remote == mra.local && !connection.is_hurried => {
                CmState::MraRepReceived
            }
            // A second one asks for no more time: a peer could ask without end.
            (CmState::MraReqReceived, RejectedMessage::Req) | (CmState::MraRepReceived, RejectedMessage::Rep) => {
                self.counters.of_mut(crate::wire::Attribute::Mra).duplicates += 1;
                return;
            }
            _ => {
                self.counters.out_of_state += 1;
                return;
            }
        };
        let service_timeout = mra.service_timeout.min(time::MRA_SERVICE_TIMEOUT);
        let until = now + time::of_exponent(service_timeout) + time::of_exponent(connection.ack_timeout);
        if let Some(repeated) = &mut connection.repeated {
            repeated.until = repeated.until.max(until);
        }
        let of = (from, connection.account);
        self.set_deadline(mra.remote, Some(until));
        self.no_longer_asks(mra.remote, of, now);
    }

    fn on_rep(&mut self, from: PeerAddress, rep: &Rep, transaction: TransactionId, now: Duration) {
        let id = rep.remote;
        // As a REQ of that number.
        if rep.local == CommId(0) {
            self.counters.discarded += 1;
            return;
        }
        let Some(connection) = self.of_peer(id, from) else {
            // So that the peer need not repeat it for a minute.
            let rej = Rej::of_unknown_peer(rep.local, RejectedMessage::Rep, reject_reason::INVALID_COMM_ID);
            return self.send_bounded(from, transaction, CmMessage::Rej(rej));
        };
        if !matches!(connection.state, CmState::ReqSent | CmState::MraReqReceived) {
            return self.on_rep_again(id, rep);
        }
        // It was refused as stale. Whether the other connection is over by now changes nothing: the
        // peer has heard of the refusal.
        if connection.refused.contains(&rep.local) {
            let rej = refused_rep(id, rep.local);
            return self.send_again(from, Mad { transaction, modifier: 0, message: CmMessage::Rej(rej) });
        }
        let key = (from, rep.local_ca, rep.qpn);
        // A request that no peer has confirmed proves nothing, and this REP is the peer's.
        let is_proof = |old: &CommId| self.connections[old].is_live() && self.connections[old].was_confirmed;
        if let Some(old) = self.by_remote_qpn.get(&key).copied().filter(is_proof) {
            let rej = refused_rep(id, rep.local);
            if let Some(connection) = self.connections.get_mut(&id) {
                connection.answer = Some(Mad { transaction, modifier: 0, message: CmMessage::Rej(rej) });
                connection.refused.rotate_right(1);
                connection.refused[0] = rep.local;
            }
            self.send(from, transaction, CmMessage::Rej(rej));
            return self.doubt(old, now);
        }
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.state = CmState::RepReceived;
        connection.remote = rep.local;
        connection.remote_ca = rep.local_ca;
        connection.remote_qpn = rep.qpn;
        connection.repeated = None;
        let of = (from, connection.account);
        self.set_deadline(id, None);
        self.no_longer_asks(id, of, now);
        self.note_confirmed(id);
        self.tell(id, CmEvent::Accepted { id, rep: *rep });
    }

    fn on_rep_again(&mut self, id: CommId, rep: &Rep) {
        self.counters.of_mut(crate::wire::Attribute::Rep).duplicates += 1;
        let connection = &self.connections[&id];
        let (to, transaction) = (connection.peer, connection.transaction);
        if connection.remote != rep.local {
            self.counters.unknown += 1;
            return;
        }
        match (connection.state, connection.answer) {
            (CmState::Established, Some(rtu)) => self.send_again(to, rtu),
            // It was refused, and the refusal was lost.
            (CmState::TimeWait, Some(mad @ Mad { message: CmMessage::Rej(_), .. })) => self.send_again(to, mad),
            (CmState::RepReceived, _) => {
                let mra = CmMessage::Mra(Mra::new(id, rep.local, RejectedMessage::Rep, time::MRA_SERVICE_TIMEOUT));
                if let Some(connection) = self.connections.get_mut(&id) {
                    connection.answer = Some(Mad { transaction, modifier: 0, message: mra });
                }
                self.send_bounded(to, transaction, mra);
            }
            _ => {}
        }
    }

    fn on_rtu(&mut self, from: PeerAddress, rtu: &Rtu) {
        let id = rtu.remote;
        let Some(connection) = self.of_both(id, rtu.local, from) else { return };
        match connection.state {
            CmState::RepSent | CmState::MraRepReceived => {
                connection.state = CmState::Established;
                connection.repeated = None;
                // An answer that comes yet is about the time before.
                connection.is_doubted = false;
                self.set_deadline(id, None);
                self.tell(id, CmEvent::Established { id });
                self.mark_confirmed(id);
            }
            CmState::Established => {
                self.counters.of_mut(crate::wire::Attribute::Rtu).duplicates += 1;
                // The program has said before that the connection is established.
                self.mark_confirmed(id);
            }
            state => {
                // The peer has confirmed an attempt that was given up.
                let (to, answer) = (connection.peer, connection.answer);
                self.counters.of_mut(crate::wire::Attribute::Rtu).duplicates += 1;
                if let (CmState::TimeWait, Some(mad @ Mad { message: CmMessage::Rej(_), .. })) = (state, answer) {
                    self.send_again(to, mad);
                }
            }
        }
    }

    fn on_rej(&mut self, from: PeerAddress, rej: &Rej, now: Duration) {
        let ca = rej.info.as_bytes().first_chunk().filter(|_| rej.reason == reject_reason::TIMEOUT);
        // Of a peer that may not know our number: none that has heard of it, lest one number be
        // enough to end a connection.
        let early = ca.filter(|_| rej.remote == CommId(0)).and_then(|ca| {
            let ca = CaGuid(u64::from_be_bytes(*ca));
            self.by_remote.get(&(from, ca, rej.local)).copied().filter(|id| self.is_unanswered_request(*id))
        });
        let id = early.unwrap_or(rej.remote);
        let Some(connection) = self.of_peer(id, from) else { return };
        // A peer that refuses a REQ may have no number, and a REP's is not known yet.
        let knows = matches!(connection.state, CmState::ReqSent | CmState::MraReqReceived)
            || connection.remote == rej.local
            || (rej.local == CommId(0) && matches!(connection.state, CmState::RepSent | CmState::MraRepReceived));
        if !knows {
            self.counters.unknown += 1;
            return;
        }
        let (state, account) = (connection.state, connection.account);
        match state {
            CmState::ReqSent | CmState::MraReqReceived => {
                self.note_refused_connection(id, Some(account), RefusalCause::ByPeer(rej.reason));
                self.tell(id, CmEvent::Rejected { id, rej: *rej });
                self.forget(id);
            }
            CmState::ReqReceived
            | CmState::RepSent
            | CmState::MraRepReceived
            | CmState::RepReceived
            | CmState::Established => {
                self.tell(id, CmEvent::Rejected { id, rej: *rej });
                self.enter_time_wait(id, now);
            }
            CmState::DreqSent => {
                self.tell(id, CmEvent::Disconnected { id, timed_out: false });
                self.enter_time_wait(id, now);
            }
            CmState::DreqReceived | CmState::TimeWait | CmState::SidrReqSent | CmState::SidrReqReceived => {
                self.counters.out_of_state += 1;
            }
        }
    }

    /// A request of a peer that may not have heard our number.
    fn is_unanswered_request(&self, id: CommId) -> bool {
        let state = self.state(id);
        state.is_some_and(|it| matches!(it, CmState::ReqReceived | CmState::RepSent | CmState::MraRepReceived))
    }

    fn on_dreq(&mut self, from: PeerAddress, dreq: &Dreq, transaction: TransactionId, now: Duration) {
        let id = dreq.remote;
        // It has overtaken the REP, which makes a connection that has to be ended. It comes again.
        let is_asking = |it: &CmConnection| matches!(it.state, CmState::ReqSent | CmState::MraReqReceived);
        if self.connections.get(&id).is_some_and(|it| it.peer == from && is_asking(it)) {
            self.counters.out_of_state += 1;
            return;
        }
        let Some(connection) = self.of_both(id, dreq.local, from) else {
            // Nothing else ends the peer's repetitions.
            let drep = Drep { local: dreq.remote, remote: dreq.local, private_data: [0; 224] };
            return self.send_bounded(from, transaction, CmMessage::Drep(drep));
        };
        let (to, state, answer, qpn) = (connection.peer, connection.state, connection.answer, connection.qpn);
        // One that asks whether a connection is forgotten names no queue pair. This one is over, or
        // its queue pair is gone: another user's may have the number, and must not be refused.
        let has_none = state == CmState::TimeWait || !self.with_qp.contains(&(qpn, id));
        if qpn != dreq.remote_qpn && !(has_none && dreq.remote_qpn == Qpn::from_wire(0)) {
            self.counters.out_of_state += 1;
            return;
        }
        match state {
            CmState::RepSent | CmState::MraRepReceived | CmState::Established | CmState::RepReceived => {
                if let Some(connection) = self.connections.get_mut(&id) {
                    connection.state = CmState::DreqReceived;
                    connection.transaction = transaction;
                    connection.repeated = None;
                }
                self.set_deadline(id, None);
                self.tell(id, CmEvent::Disconnected { id, timed_out: false });
            }
            // Both disconnect.
            CmState::DreqSent => {
                if let Some(connection) = self.connections.get_mut(&id) {
                    connection.transaction = transaction;
                }
                self.tell(id, CmEvent::Disconnected { id, timed_out: false });
                self.send_drep(id, now);
            }
            // A program that does not disconnect must not keep its peer repeating.
            CmState::DreqReceived => {
                self.counters.of_mut(crate::wire::Attribute::Dreq).duplicates += 1;
                self.send_drep(id, now);
            }
            CmState::TimeWait => {
                self.counters.of_mut(crate::wire::Attribute::Dreq).duplicates += 1;
                let drep = CmMessage::Drep(Drep { local: id, remote: dreq.local, private_data: [0; 224] });
                match answer {
                    Some(mad @ Mad { message: CmMessage::Drep(_), .. }) => self.send_again(to, mad),
                    _ => self.send_bounded(to, transaction, drep),
                }
            }
            CmState::ReqSent
            | CmState::MraReqReceived
            | CmState::ReqReceived
            | CmState::SidrReqSent
            | CmState::SidrReqReceived => self.counters.out_of_state += 1,
        }
    }

    fn on_drep(&mut self, from: PeerAddress, drep: &Drep, now: Duration) {
        let id = drep.remote;
        let Some(connection) = self.of_both(id, drep.local, from) else { return };
        match connection.state {
            CmState::DreqSent => {
                self.tell(id, CmEvent::Disconnected { id, timed_out: false });
                self.enter_time_wait(id, now);
            }
            // It has forgotten the connection. But some hosts answer so about one that they have:
            // both ends of it hear of the end.
            CmState::Established | CmState::RepReceived if connection.is_doubted => self.send_dreq(id, now),
            // A peer that asks and has not heard of our number answers likewise: it has time for
            // the next REPs, and none if it has forgotten.
            CmState::RepSent | CmState::MraRepReceived if connection.is_doubted => self.shorten(id, now),
            _ => self.counters.out_of_state += 1,
        }
    }
}

/// Refuses a REP as stale, by the number of the connection and the peer's.
fn refused_rep(id: CommId, remote: CommId) -> Rej {
    let rej = Rej::of_unknown_peer(remote, RejectedMessage::Rep, reject_reason::STALE_CONNECTION);
    Rej { local: id, ..rej }
}
