//! Execution of the control thread's commands by a worker. See [`Command`] for their meaning.

use std::{mem, os::fd::AsFd};

use nix::errno::Errno;
use roced_memory::{
    backing::Backing,
    queues::{CqRing, CqRingPlace, QpRings, SrqRing, WorkerSession},
};
use roced_transport::{
    endpoint::Endpoint,
    mr::{Mr, MrKey, Scope},
    qp::{PathState, Qp, ReplayMemory},
    reject::Reject,
    srq::Srq,
};
use roced_types::{Cqn, DeviceId, QpAttributes, Qpn, SessionId, Srqn};

use super::{
    command::{Answer, Command, CommandRefused, QueuesSet, SetQueues},
    metrics::{EndpointSnapshot, QPS_PER_SNAPSHOT, QpSnapshot, QueueSnapshot, WorkerSnapshot},
    nic::Nic,
    poll_loop::{Worker, WorkerEndpoint, monotonic_now},
    qp_table::entry_of,
};

/// Entries of queue pairs that one snapshot visits, occupied or not: some microseconds.
const ENTRIES_PER_SNAPSHOT: u32 = 4096;

/// Slots of queue pairs that one command fails: some microseconds.
const SLOTS_FAILED: u32 = 256;

/// Refused, and nothing to give back.
fn refuse(why: impl Into<CommandRefused>) -> Answer {
    Answer::Refused(why.into(), None)
}

fn done_or_refused(result: Result<(), Reject>) -> Answer {
    result.map_or_else(refuse, |()| Answer::Done)
}

impl<N: Nic> Worker<N> {
    /// Executes one command of the control thread completely.
    pub fn carry_out(&mut self, command: Command) -> Answer {
        let missing = || refuse(CommandRefused::NoSuchObject);
        match command {
            Command::AttachSession(session) => self.attach_session(session),
            Command::DetachSession(session) => self.detach_session(session),
            Command::AddCqRing(cqn, cq_ring) => self.add_cq_ring(cqn, cq_ring),
            Command::ChangeRing(cqn, ring) => self.change_ring(cqn, ring),
            Command::DropCqRing(cqn) => {
                self.worker_memory.remove_cq_ring(cqn).map_or_else(missing, Answer::MappedCqRing)
            }
            Command::SetMr(device, mr, memory) => self.set_mr(device, mr, memory),
            Command::SetMw(device, window) => {
                self.at_endpoint(device, |endpoint| done_or_refused(endpoint.set_mr(window).map(|_| ())))
            }
            Command::DropMr(device, key) => self.drop_mr(device, key),
            Command::AddAh(device, number, handle) => {
                self.at_endpoint(device, |endpoint| done_or_refused(endpoint.insert_ah(number, handle)))
            }
            Command::SetAhPath { device, number, path, mtu_bytes } => {
                let endpoint = self.endpoint_of(device);
                let there = endpoint.is_some_and(|endpoint| endpoint.set_ah_path(number, path, mtu_bytes));
                if there { Answer::Done } else { missing() }
            }
            Command::DropAh(device, number) => self.drop_ah(device, number),
            Command::SetOwnAddresses(device, addresses) => self.at_endpoint(device, |endpoint| {
                endpoint.set_own_addresses(addresses);
                Answer::Done
            }),
            Command::SetDeniedSources(device, denied) => self.at_endpoint(device, |endpoint| {
                endpoint.set_denied_sources(denied);
                Answer::Done
            }),
            Command::Attach { device, qpn, group } => {
                self.at_endpoint(device, |endpoint| done_or_refused(endpoint.attach(qpn, group)))
            }
            Command::Detach { device, qpn, group } => {
                let there = self.endpoint_of(device).is_some_and(|endpoint| endpoint.detach(qpn, group));
                if there { Answer::Done } else { missing() }
            }
            Command::AddQp(qp, rings) => self.add_qp(qp, rings),
            Command::AddSrq(srq, ring) => self.add_srq(srq, ring),
            Command::SetSrqLimit(srqn, limit) => self.set_srq_limit(srqn, limit),
            Command::SrqLimit(srqn) => self.srq_limit(srqn),
            Command::DropSrq(srqn) => self.drop_srq(srqn),
            Command::ModifyQp { qpn, mask, attributes, path, replay } => {
                self.modify_qp(qpn, mask, attributes, path, replay)
            }
            Command::FinishKeyChange { qpn, ticket, done } => self.finish_key_change(qpn, ticket, done),
            Command::SetPath(qpn, path) => self.set_path(qpn, path),
            Command::QueryQp(qpn) => self.qp(qpn).map_or_else(missing, |qp| Answer::Attributes(qp.attributes())),
            Command::CountersOfQp(qpn) => self.qp(qpn).map_or_else(missing, |qp| Answer::Counters(*qp.counters())),
            Command::FailQps(device, from) => {
                self.at_endpoint(device, |endpoint| Answer::NextSlot(endpoint.fail_qps(from, SLOTS_FAILED)))
            }
            Command::SendPosted(qpn) => self.send_posted_of(qpn),
            Command::DropQp(qpn) => self.drop_qp(qpn),
            Command::EndSession(session) => self.end_session(session),
            Command::Snapshot(mut snapshot) => {
                self.fill(&mut snapshot);
                Answer::Snapshot(snapshot)
            }
            Command::Stop => {
                self.stopping = true;
                Answer::Done
            }
        }
    }

    /// Replaces the NIC queues of a device.
    pub(super) fn set_queues(&mut self, SetQueues { device, queues }: SetQueues<N>) -> QueuesSet<N> {
        let found = self.worker_endpoints.iter().position(|worker_endpoint| worker_endpoint.place.device == device);
        let Some(at) = found else { return Err((queues, CommandRefused::NoSuchObject)) };
        let before = self.replace_queues(at, queues);
        match self.watch_sockets() {
            Ok(()) => Ok(before),
            Err(errno) => {
                self.unwatch_sockets();
                let refused = self.replace_queues(at, before);
                // They were watched a moment ago.
                let _ = self.watch_sockets();
                Err((refused, CommandRefused::Kernel(errno)))
            }
        }
    }

    fn replace_queues(&mut self, at: usize, queues: Vec<N>) -> Vec<N> {
        self.unwatch_sockets();
        let before = mem::replace(&mut self.worker_endpoints[at].queues, queues);
        self.worker_endpoints[at].make_room_for_mads();
        before
    }

    fn attach_session(&mut self, session: WorkerSession) -> Answer {
        // Watched first: a session that cannot be woken by would hang.
        if let Err(error) = self.sleeper.add_session(session.wake.as_fd()) {
            let errno = error.raw_os_error().map_or(Errno::UnknownErrno, Errno::from_raw);
            return Answer::Refused(CommandRefused::Kernel(errno), Some(Command::AttachSession(session)));
        }
        match self.qp_table.add_session(session) {
            Ok(()) => Answer::Done,
            Err(session) => {
                self.unwatch(&session);
                Answer::Refused(CommandRefused::NoRoom, Some(Command::AttachSession(session)))
            }
        }
    }

    fn detach_session(&mut self, session: SessionId) -> Answer {
        if !self.qp_table.has_session(session) {
            return refuse(CommandRefused::NoSuchObject);
        }
        match self.qp_table.remove_session(session) {
            Some(session) => {
                self.unwatch(&session);
                Answer::Session(session)
            }
            None => refuse(CommandRefused::InUse),
        }
    }

    fn unwatch(&self, session: &WorkerSession) {
        self.sleeper.remove_session(session.wake.as_fd()).expect("it was added when the session was attached");
    }

    fn add_cq_ring(&mut self, cqn: Cqn, cq_ring: CqRing) -> Answer {
        match self.worker_memory.add_cq_ring(cqn, cq_ring) {
            Ok(()) => Answer::Done,
            Err(cq_ring) => Answer::Refused(CommandRefused::NoRoom, Some(Command::AddCqRing(cqn, cq_ring))),
        }
    }

    fn change_ring(&mut self, cqn: Cqn, ring: CqRingPlace) -> Answer {
        match self.worker_memory.change_ring(cqn, ring) {
            Ok(before) => Answer::Ring(before),
            Err(ring) => Answer::Refused(CommandRefused::NoSuchObject, Some(Command::ChangeRing(cqn, ring))),
        }
    }

    fn set_mr(&mut self, device: DeviceId, mr: Mr, memory: Backing) -> Answer {
        let give_back = |why, memory| Answer::Refused(why, Some(Command::SetMr(device, mr, memory)));
        if self.endpoint_of(device).is_none() {
            return give_back(CommandRefused::NoSuchObject, memory);
        }
        if let Err(memory) = self.worker_memory.hold(mr.object, memory) {
            return give_back(CommandRefused::NoRoom, memory);
        }
        let endpoint = self.endpoint_of(device).expect("just found");
        match endpoint.set_mr(mr) {
            Ok(old) => Answer::Memory(old.and_then(|old| self.worker_memory.release(old.object))),
            Err(why) => match self.worker_memory.release(mr.object) {
                Some(memory) => give_back(why.into(), memory),
                None => refuse(why),
            },
        }
    }

    fn drop_mr(&mut self, device: DeviceId, key: MrKey) -> Answer {
        let Some(mr) = self.endpoint_of(device).and_then(|endpoint| endpoint.remove_mr(key)) else {
            return refuse(CommandRefused::NoSuchObject);
        };
        Answer::Memory(match mr.scope {
            Scope::Region => self.worker_memory.release(mr.object),
            // A window holds nothing: its region does.
            Scope::Window | Scope::WindowOf(_) => None,
        })
    }

    fn set_path(&mut self, qpn: Qpn, path: PathState) -> Answer {
        let Some(endpoint_slot) = self.slot_of_qpn(qpn) else { return refuse(CommandRefused::NoSuchObject) };
        done_or_refused(self.worker_endpoints[endpoint_slot].endpoint.set_path(qpn, path))
    }

    fn finish_key_change(&mut self, qpn: Qpn, ticket: u64, done: bool) -> Answer {
        let Some(endpoint_slot) = self.slot_of_qpn(qpn) else { return refuse(CommandRefused::NoSuchObject) };
        let endpoint = &mut self.worker_endpoints[endpoint_slot].endpoint;
        endpoint.finish_key_change(monotonic_now(), qpn, ticket, done, &mut self.worker_memory);
        Answer::Done
    }

    fn add_qp(&mut self, qp: Box<Qp>, rings: QpRings) -> Answer {
        let give_back = |why, qp, rings| Answer::Refused(why, Some(Command::AddQp(qp, rings)));
        let Some(endpoint_slot) = self.slot_of_qpn(rings.qpn).filter(|_| qp.qpn() == rings.qpn) else {
            return give_back(CommandRefused::NoSuchObject, qp, rings);
        };
        if !self.qp_table.has_doorbell_for(&rings) {
            return give_back(CommandRefused::NoRoom, qp, rings);
        }
        let endpoint = &mut self.worker_endpoints[endpoint_slot].endpoint;
        match endpoint.insert_qp(qp) {
            Ok(()) => {
                let entry = entry_of(self.first_entries[endpoint_slot], endpoint, rings.qpn);
                self.qp_table.add_qp(entry.expect("it was just inserted"), rings);
                Answer::Done
            }
            Err((qp, why)) => give_back(why.into(), qp, rings),
        }
    }

    fn add_srq(&mut self, srq: Box<Srq>, ring: SrqRing) -> Answer {
        let srqn = ring.srqn;
        let endpoint_slot = self.slot_of_endpoint(srqn.endpoint()).filter(|_| srq.config().srqn == srqn);
        let Some(endpoint_slot) = endpoint_slot else {
            return Answer::Refused(CommandRefused::NoSuchObject, Some(Command::AddSrq(srq, ring)));
        };
        let index = self.first_srqs[endpoint_slot] + srqn.index();
        let endpoint = &mut self.worker_endpoints[endpoint_slot].endpoint;
        if srqn.index() >= endpoint.max_srqs() || !self.qp_table.has_srq_room(index, &ring) {
            return Answer::Refused(CommandRefused::NoRoom, Some(Command::AddSrq(srq, ring)));
        }
        match endpoint.insert_srq(srq) {
            Ok(()) => {
                self.qp_table.add_srq(index, ring);
                Answer::Done
            }
            Err((srq, why)) => Answer::Refused(why.into(), Some(Command::AddSrq(srq, ring))),
        }
    }

    fn set_srq_limit(&mut self, srqn: Srqn, limit: u32) -> Answer {
        let Some(endpoint_slot) = self.slot_of_endpoint(srqn.endpoint()) else {
            return refuse(CommandRefused::NoSuchObject);
        };
        let index = self.first_srqs[endpoint_slot] + srqn.index();
        let endpoint = &mut self.worker_endpoints[endpoint_slot].endpoint;
        done_or_refused(self.qp_table.set_srq_limit(index, limit, endpoint, srqn))
    }

    fn srq_limit(&self, srqn: Srqn) -> Answer {
        let Some(at) = self.slot_of_endpoint(srqn.endpoint()) else { return refuse(CommandRefused::NoSuchObject) };
        let Some(srq) = self.worker_endpoints[at].endpoint.srq(srqn) else {
            return refuse(CommandRefused::NoSuchObject);
        };
        let to_be_armed = self.qp_table.srq_arming(self.first_srqs[at] + srqn.index());
        Answer::SrqLimit(to_be_armed.unwrap_or_else(|| srq.limit()))
    }

    fn drop_srq(&mut self, srqn: Srqn) -> Answer {
        let Some(endpoint_slot) = self.slot_of_endpoint(srqn.endpoint()) else {
            return refuse(CommandRefused::NoSuchObject);
        };
        match self.worker_endpoints[endpoint_slot].endpoint.remove_srq(srqn) {
            Some(srq) => {
                let ring = self.qp_table.remove_srq(self.first_srqs[endpoint_slot] + srqn.index());
                Answer::Srq(srq, ring.expect("a shared receive queue of an endpoint has an entry"))
            }
            None => refuse(CommandRefused::NoSuchObject),
        }
    }

    fn modify_qp(
        &mut self,
        qpn: Qpn,
        mask: u32,
        attributes: QpAttributes,
        path: Option<PathState>,
        replay: ReplayMemory,
    ) -> Answer {
        let (why, replay) = match self.slot_of_qpn(qpn) {
            None => (CommandRefused::NoSuchObject, replay),
            Some(endpoint_slot) => {
                let endpoint = &mut self.worker_endpoints[endpoint_slot].endpoint;
                let replay = endpoint.provide(qpn, replay);
                match endpoint.modify_qp(qpn, mask, &attributes, path) {
                    Ok(()) => return Answer::Changed(replay),
                    Err(why) => (why.into(), replay),
                }
            }
        };
        Answer::Refused(why, Some(Command::ModifyQp { qpn, mask, attributes, path, replay }))
    }

    fn drop_ah(&mut self, device: DeviceId, number: u32) -> Answer {
        self.send_posted();
        // Datagrams that wait for its neighbor are lost, as those to a neighbor that is not there.
        if self.endpoint_of(device).is_some_and(|endpoint| endpoint.abandon_ah(number)) {
            self.send_more();
        }
        let removed = self.endpoint_of(device).and_then(|endpoint| endpoint.remove_ah(number));
        removed.map_or_else(|| refuse(CommandRefused::NoSuchObject), |_| Answer::Done)
    }

    fn drop_qp(&mut self, qpn: Qpn) -> Answer {
        let Some(endpoint_slot) = self.slot_of_qpn(qpn) else { return refuse(CommandRefused::NoSuchObject) };
        let endpoint = &mut self.worker_endpoints[endpoint_slot].endpoint;
        let entry = entry_of(self.first_entries[endpoint_slot], endpoint, qpn);
        match (endpoint.remove_qp(qpn), entry) {
            (Some(qp), Some(entry)) => {
                let rings = self.qp_table.remove_qp(entry);
                Answer::Qp(qp, rings.expect("a queue pair of an endpoint has an entry"))
            }
            _ => refuse(CommandRefused::NoSuchObject),
        }
    }

    /// The answer of the device's endpoint, if this worker has one.
    fn at_endpoint(&mut self, device: DeviceId, execute: impl FnOnce(&mut Endpoint) -> Answer) -> Answer {
        self.endpoint_of(device).map_or_else(|| refuse(CommandRefused::NoSuchObject), execute)
    }

    fn endpoint_of(&mut self, device: DeviceId) -> Option<&mut Endpoint> {
        let worker_endpoint =
            self.worker_endpoints.iter_mut().find(|worker_endpoint| worker_endpoint.place.device == device)?;
        Some(&mut worker_endpoint.endpoint)
    }

    fn qp(&self, qpn: Qpn) -> Option<&Qp> {
        self.worker_endpoints[self.slot_of_qpn(qpn)?].endpoint.qp(qpn)
    }

    /// Fills a snapshot up to the room that was made for it.
    fn fill(&self, snapshot: &mut WorkerSnapshot) {
        snapshot.worker = self.counters;
        snapshot.handoff = *self.handoff.counters();
        for WorkerEndpoint { place, endpoint, queues, .. } in &self.worker_endpoints {
            if snapshot.endpoints.len() < snapshot.endpoints.capacity() {
                snapshot.endpoints.push(EndpointSnapshot {
                    endpoint: place.endpoint,
                    device: place.device,
                    counters: endpoint.counters(),
                    drops: *endpoint.drops(),
                    notifications: *endpoint.notification_counters(),
                    classes: endpoint.class_counters().copied(),
                });
            }
            for queue in queues {
                if snapshot.queues.len() < snapshot.queues.capacity() {
                    let mut counted = QueueSnapshot::new(place.device, queue.queue());
                    queue.counters(&mut |name, value| counted.put(name, value));
                    snapshot.queues.push(counted);
                }
            }
        }
        if let Some(from) = snapshot.next_entry {
            snapshot.next_entry = self.fill_qps(snapshot, from);
        }
    }

    /// Adds queue pairs from entry `from` on; gives the entry at which it ran out of room, or had
    /// looked at enough of them for a poll iteration.
    fn fill_qps(&self, snapshot: &mut WorkerSnapshot, from: u32) -> Option<u32> {
        let room = snapshot.qps.capacity().min(QPS_PER_SNAPSHOT);
        for entry in from..self.qp_table.max_qps() {
            if snapshot.qps.len() >= room || entry - from >= ENTRIES_PER_SNAPSHOT {
                return Some(entry);
            }
            let Some(rings) = self.qp_table.rings(entry) else { continue };
            let qp = self.qp(rings.qpn).expect("an entry is of a queue pair of an endpoint");
            let attributes = qp.attributes();
            snapshot.qps.push(QpSnapshot {
                qpn: rings.qpn,
                session: rings.session,
                service: qp.config().service.name(),
                state: qp.state_name(),
                path: qp.path_name(),
                peer: attributes.dgid,
                dest_qpn: attributes.dest_qpn,
                path_mtu_bytes: attributes.path_mtu_bytes,
                progress: qp.progress(),
                counters: *qp.counters(),
            });
        }
        None
    }
}
