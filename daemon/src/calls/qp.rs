//! Calls about queue pairs.

use std::time::Instant;

use roced_abi::{
    control::{
        CreateQp, CreateQpReply, CreateQpRequest, DestroyQp, Handle, ModifyQp, ModifyQpRequest, QpStatistics, QueryQp,
        QueryQpStatistics, Refusal,
    },
    layout::QpLayout,
};
use roced_memory::queues::new_qp;
use roced_transport::{
    counters::{QpCount, QpCounters},
    qp::{PathState, Qp, QpConfig, ReplayMemory, ServiceType},
    turns::fair::FairOwner,
};
use roced_types::{PRIVILEGED_QKEY, QpSizes, Qpn, address_of, attribute, state};
use tracing::debug;

use super::{
    CallHandler, CallReply,
    mr::nothing,
    path::{Follower, LifePort, Way},
    refused::Refused,
    session::{QpObject, check_limit, find},
    unsealed::QueueFile,
};
use crate::{
    accounts::ledger::Charge,
    last_work::SentBatch,
    numbers::random,
    worker::{
        command::{Answer, Command},
        endpoints::EndpointLocation,
    },
};

/// Where a queue pair to be made will live.
struct QpPlacement {
    cq_ring: usize,
    place: EndpointLocation,
    qpn: Qpn,
    doorbell: u32,
    life: LifePort,
}

impl CallHandler<'_, '_> {
    pub(super) fn create_qp(&mut self, request: CreateQpRequest) -> CallReply<CreateQp> {
        let limits = &self.registry.limits;
        check_limit(&self.objects.qps, limits.client.qps)?;
        let service = ServiceType::from_number(request.service).ok_or(Refused::plain(Refusal::NotSupported))?;
        if request.signal_all > 1 {
            return Err(Refused::argument(9, request.signal_all));
        }
        let srq = match request.srq {
            0 => None,
            number => Some(find(&mut self.objects.srqs, number)?),
        };
        let cq_ring = srq.as_ref().map(|srq| srq.cq_ring);
        // With a shared queue, its own queue holds the receive that it has taken from there, one at
        // a time.
        let request = srq.map_or(request, |srq| CreateQpRequest {
            recv_wrs: 0,
            recv_sges: srq.config.sizes.recv_sges,
            ..request
        });
        let sizes = check_sizes(&request)?;
        find(&mut self.objects.pds, request.pd)?;
        find(&mut self.objects.cqs, request.send_cq)?;
        find(&mut self.objects.cqs, request.recv_cq)?;
        let queues = [QueueFile::Doorbells, QueueFile::Cq(request.send_cq), QueueFile::Cq(request.recv_cq)];
        self.seal(queues.into_iter().chain((request.srq != 0).then_some(QueueFile::Srq(request.srq))))?;
        let bytes = QpLayout::new(sizes).bytes as u64;
        self.objects.qp_charges.add(memory_kib(&sizes) << 10)?;
        let charged = self.objects.charge(bytes, &self.registry.limits.client);
        let mapped = charged.inspect_err(|_| self.objects.qp_charges.remove(memory_kib(&sizes) << 10))?;
        let made = self.find_home(cq_ring).and_then(|home| {
            let made = self.make_qp(service, &request, sizes, &home, mapped);
            if let Err(refused) = &made {
                self.leave_home(&home, refused);
            }
            made
        });
        if made.is_err() {
            self.objects.give_back(bytes);
            self.objects.qp_charges.remove(memory_kib(&sizes) << 10);
        }
        made
    }

    /// A free number and doorbell on the worker at `cq_ring`, if one must be, or else the one with
    /// the fewest queue pairs of the device.
    fn find_home(&mut self, cq_ring: Option<usize>) -> Result<QpPlacement, Refused> {
        let limit = self.registry.limits.device.qps;
        let device = self.registry.device(self.objects.device);
        if device.qps >= limit {
            return Err(Refused::limit(limit));
        }
        let cq_rings =
            device.qpns.iter_mut().enumerate().filter(|(at, _)| cq_ring.is_none_or(|cq_ring| cq_ring == *at));
        let (cq_ring, qpns) = cq_rings.min_by_key(|(_, qpns)| qpns.len()).expect("a device has a worker");
        let life = random().map(LifePort::first).ok_or(Refused::limit(limit))?;
        let qpn = random().and_then(|bits| qpns.take(bits, Instant::now())).ok_or(Refused::limit(limit))?;
        let place = device.setup.endpoints[cq_ring];
        let Some(doorbell) = self.objects.doorbells[cq_ring].take() else {
            device.qpns[cq_ring].give_back(qpn, Instant::now());
            return Err(Refused::limit(self.registry.limits.client.qps));
        };
        self.registry.device(self.objects.device).qps += 1;
        Ok(QpPlacement { cq_ring, place, qpn, doorbell, life })
    }

    fn leave_home(&mut self, home: &QpPlacement, why: &Refused) {
        // A worker that did not answer may have the queue pair still: its number and doorbell stay
        // in use.
        if why.why != Refusal::WorkerTimeout {
            self.give_back_numbers(home.cq_ring, home.qpn, home.doorbell);
        }
    }

    fn give_back_numbers(&mut self, cq_ring: usize, qpn: Qpn, doorbell: u32) {
        let device = self.registry.device(self.objects.device);
        device.qpns[cq_ring].give_back(qpn, Instant::now());
        device.qps -= 1;
        self.objects.doorbells[cq_ring].give_back(doorbell);
    }

    fn make_qp(
        &mut self,
        service: ServiceType,
        request: &CreateQpRequest,
        sizes: QpSizes,
        home: &QpPlacement,
        mapped: Option<Charge>,
    ) -> CallReply<CreateQp> {
        let bytes = QpLayout::new(sizes).bytes as u64;
        let &QpPlacement { cq_ring, place, qpn, doorbell, .. } = home;
        let setup = &self.registry.device(self.objects.device).setup;
        let (window_packets, credits) = (setup.window_packets, setup.credits);
        let config = QpConfig {
            qpn,
            service,
            pd: find(&mut self.objects.pds, request.pd)?.pdn,
            send_cq: find(&mut self.objects.cqs, request.send_cq)?.cqn,
            recv_cq: find(&mut self.objects.cqs, request.recv_cq)?.cqn,
            sizes,
            signal_all: request.signal_all == 1,
            window_packets,
            credits,
        };
        let (mut rings, fd) = new_qp(qpn, self.session, doorbell, sizes, self.room(mapped)?)?;
        let kept = self.keep_file(&fd)?;
        let owner = FairOwner {
            account: self.objects.process.account,
            client: self.session,
            weight: self.registry.ledger.weight(self.objects.process.access.rule),
        };
        let mut qp = Qp::new(config).with_owner(owner).with_account_rate(self.registry.ledger.send_rate(owner.account));
        let srq = (request.srq != 0).then_some(request.srq);
        if let Some(number) = srq {
            qp = qp.with_srq(&find(&mut self.objects.srqs, number)?.config);
            rings.shared = true;
        }
        let limit = self.registry.limits.device.qps.into();
        self.tell(place.worker, Command::AddQp(Box::new(qp), rings), limit)?;
        find(&mut self.objects.pds, request.pd)?.users += 1;
        find(&mut self.objects.cqs, request.send_cq)?.users += 1;
        find(&mut self.objects.cqs, request.recv_cq)?.users += 1;
        if let Some(number) = srq {
            find(&mut self.objects.srqs, number)?.users += 1;
        }
        let object = QpObject {
            qpn,
            service,
            worker: place.worker,
            cq_ring: cq_ring as u8,
            doorbell,
            pd: request.pd,
            send_cq: request.send_cq,
            recv_cq: request.recv_cq,
            srq,
            mapped_kib: u16::try_from(bytes >> 10).expect("the largest has less than 64 MiB"),
            path: None,
            life: home.life,
            memory_kib: memory_kib(&sizes) as u16,
        };
        self.objects.qps.insert(qpn.get(), object);
        self.objects.unsealed.add(QueueFile::Qp(qpn.get()), kept);
        self.registry.cm.add_qp(qpn, self.objects.process.uid);
        debug!(session = %self.session, %qpn, worker = %place.worker, "queue pair made");
        let reply = CreateQpReply {
            qpn: qpn.get(),
            worker: cq_ring as u32,
            doorbell,
            send_wrs: sizes.send_wrs,
            recv_wrs: sizes.recv_wrs,
            send_sges: sizes.send_sges,
            recv_sges: sizes.recv_sges,
            inline_bytes: sizes.inline_bytes,
        };
        Ok((reply, vec![fd]))
    }

    pub(super) fn modify_qp(&mut self, request: ModifyQpRequest) -> CallReply<ModifyQp> {
        let ModifyQpRequest { qpn, mask, attributes } = request;
        let &mut QpObject { qpn, worker, .. } = find(&mut self.objects.qps, qpn)?;
        self.seal([QueueFile::Qp(qpn.get())])?;
        check_qkey(&request, self.objects.process.uid == 0)?;
        let path = if mask & attribute::AV != 0 { Some(self.find_path(qpn, &request)?) } else { None };
        let port = self.environment.network.port(self.objects.device);
        let (path_state, replay) = (path.map(|path| path.state(&port)), ReplayMemory::for_change(mask, &attributes));
        let command = Command::ModifyQp { qpn, mask, attributes, path: path_state, replay };
        if let Err(refused) = self.tell(worker, command, 0) {
            self.unfollow(Follower::Qp(qpn), path);
            return Err(refused);
        }
        let forgets = mask & attribute::STATE != 0 && attributes.state == state::RESET;
        if path.is_some() || forgets {
            let object = find(&mut self.objects.qps, qpn.get())?;
            let old = std::mem::replace(&mut object.path, path);
            // A life that had no path sent nothing.
            if forgets && old.is_some() {
                object.life = object.life.next();
            }
            self.unfollow(Follower::Qp(qpn), old);
        }
        debug!(session = %self.session, %qpn, mask = format_args!("0x{mask:x}"), state = attributes.state, "queue pair changed");
        Ok(nothing(()))
    }

    /// The path that the address vector of `request` asks for; its destination is followed from now
    /// on.
    fn find_path(&mut self, qpn: Qpn, request: &ModifyQpRequest) -> Result<Way, Refused> {
        let attributes = &request.attributes;
        // A group is no peer.
        if address_of(attributes.dgid).is_multicast() {
            return Err(Refused::argument(attribute::AV.into(), attributes.sgid_index));
        }
        let life = find(&mut self.objects.qps, qpn.get())?.life;
        let way = self.follow(Follower::Qp(qpn), qpn, attributes, Some(life))?;
        if request.mask & attribute::PATH_MTU != 0 {
            let port = self.environment.network.port(self.objects.device);
            way.wish
                .check_mtu(attributes.path_mtu_bytes, way.next, &port)
                .inspect_err(|_| self.unfollow(Follower::Qp(qpn), Some(way)))?;
        }
        Ok(way)
    }

    pub(super) fn query_qp(&mut self, request: Handle) -> CallReply<QueryQp> {
        let &mut QpObject { qpn, worker, .. } = find(&mut self.objects.qps, request.handle)?;
        match self.tell(worker, Command::QueryQp(qpn), 0)? {
            Answer::Attributes(attributes) => Ok((attributes, Vec::new())),
            other => unreachable!("QueryQp is answered by attributes, not {other:?}"),
        }
    }

    pub(super) fn query_qp_statistics(&mut self, request: Handle) -> CallReply<QueryQpStatistics> {
        let &mut QpObject { qpn, worker, .. } = find(&mut self.objects.qps, request.handle)?;
        match self.tell(worker, Command::CountersOfQp(qpn), 0)? {
            Answer::Counters(counters) => Ok((statistics(&counters), Vec::new())),
            other => unreachable!("CountersOfQp is answered by counters, not {other:?}"),
        }
    }

    /// A batch of the work is sent that was posted to a queue pair before it is destroyed.
    pub(crate) fn send_posted(&mut self, request: Handle) -> SentBatch {
        let Some(object) = self.objects.qps.get(&request.handle) else { return SentBatch::default() };
        // A program knows of the sends of a reliable connection which have arrived.
        if object.service == ServiceType::Rc {
            return SentBatch::default();
        }
        let (worker, qpn) = (object.worker, object.qpn);
        match self.tell(worker, Command::SendPosted(qpn), 0) {
            Ok(Answer::Sent { frames, is_left }) => SentBatch { frames, is_left },
            _ => SentBatch::default(),
        }
    }

    pub(super) fn destroy_qp(&mut self, request: Handle) -> CallReply<DestroyQp> {
        self.end_qp(request.handle).map(nothing)
    }

    pub(super) fn end_qp(&mut self, number: u32) -> Result<(), Refused> {
        let &mut QpObject { qpn, worker, .. } = find(&mut self.objects.qps, number)?;
        self.detach_from_all(qpn)?;
        self.take_back(worker, Command::DropQp(qpn))?;
        // The next queue pair of that number must not have its windows.
        self.unbind_all_of(qpn)?;
        let object = self.objects.qps.remove(&number).expect("found a few lines up");
        self.objects.unsealed.forget(QueueFile::Qp(number));
        self.registry.cm.remove_qp(qpn);
        self.unfollow(Follower::Qp(qpn), object.path);
        self.give_back_numbers(object.cq_ring.into(), qpn, object.doorbell);
        self.objects.give_back(u64::from(object.mapped_kib) << 10);
        self.objects.qp_charges.remove(u64::from(object.memory_kib) << 10);
        find(&mut self.objects.pds, object.pd)?.users -= 1;
        find(&mut self.objects.cqs, object.send_cq)?.users -= 1;
        find(&mut self.objects.cqs, object.recv_cq)?.users -= 1;
        if let Some(number) = object.srq {
            find(&mut self.objects.srqs, number)?.users -= 1;
        }
        debug!(session = %self.session, %qpn, "queue pair ended");
        Ok(())
    }

    /// The way of queue pair `qpn` is another now.
    pub(crate) fn set_path(&mut self, qpn: Qpn, path: PathState) -> Result<(), Refused> {
        let &mut QpObject { worker, .. } = find(&mut self.objects.qps, qpn.get())?;
        self.tell(worker, Command::SetPath(qpn, path), 0).map(drop)
    }
}

/// Memory of the worker for a queue pair, in whole KiB.
const fn memory_kib(sizes: &QpSizes) -> u64 {
    let kib = Qp::memory_bytes(sizes).div_ceil(1024);
    assert!(kib <= u16::MAX as u64, "the largest has 51 MiB");
    kib
}

/// Grants sizes for a request; refuses the first one that is too large.
fn check_sizes(request: &CreateQpRequest) -> Result<QpSizes, Refused> {
    let asked = request.sizes();
    if let Some(granted) = asked.granted() {
        return Ok(granted);
    }
    // One at a time, to name the field.
    let none = QpSizes { send_wrs: 0, recv_wrs: 0, send_sges: 0, recv_sges: 0, inline_bytes: 0 };
    let alone = [
        (4, asked.send_wrs, QpSizes { send_wrs: asked.send_wrs, ..none }),
        (5, asked.recv_wrs, QpSizes { recv_wrs: asked.recv_wrs, ..none }),
        (6, asked.send_sges, QpSizes { send_sges: asked.send_sges, ..none }),
        (7, asked.recv_sges, QpSizes { recv_sges: asked.recv_sges, ..none }),
        (8, asked.inline_bytes, QpSizes { inline_bytes: asked.inline_bytes, ..none }),
    ];
    let (place, value, _) =
        alone.into_iter().find(|(_, _, sizes)| sizes.granted().is_none()).expect("one of them is too much");
    Err(Refused::argument(place, value))
}

fn statistics(counters: &QpCounters) -> QpStatistics {
    let count = |what| counters.get(what);
    QpStatistics {
        request_packets: count(QpCount::RequestPackets),
        response_packets: count(QpCount::ResponsePackets),
        received_packets: count(QpCount::ReceivedPackets),
        retransmitted_packets: count(QpCount::RetransmittedPackets),
        ack_timeouts: count(QpCount::AckTimeout),
        sequence_naks_received: count(QpCount::SequenceNakReceived),
        sequence_naks_sent: count(QpCount::SequenceNakSent),
        implied_naks: count(QpCount::ImpliedNak),
        rnr_naks_received: count(QpCount::RnrNakReceived),
        rnr_naks_sent: count(QpCount::RnrNakSent),
        duplicate_requests: count(QpCount::DuplicateRequest),
    }
}

/// A Q_Key with the top bit set is the connection managers' and subnet management's: a program that
/// had one for its own could speak to those of other hosts as one of them. Linux asks for a
/// privilege, too.
fn check_qkey(request: &ModifyQpRequest, is_privileged: bool) -> Result<(), Refused> {
    let asks = request.mask & attribute::QKEY != 0 && request.attributes.qkey & PRIVILEGED_QKEY != 0;
    if asks && !is_privileged { Err(Refused::plain(Refusal::NotPermitted)) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use roced_types::{INLINE_BYTES_MAX, QpAttributes, SGE_MAX, WORK_REQUESTS_MAX};

    use super::*;

    const fn symmetric(wrs: u32, sges: u32, inline_bytes: u32) -> QpSizes {
        QpSizes { send_wrs: wrs, recv_wrs: wrs, send_sges: sges, recv_sges: sges, inline_bytes }
    }

    // As config/roced.toml says for `daemon_memory_mib`.
    const _: () = {
        assert!(memory_kib(&symmetric(128, 1, 0)) == 22);
        assert!(memory_kib(&symmetric(128, 1, 224)) == 50);
        assert!(memory_kib(&symmetric(WORK_REQUESTS_MAX, SGE_MAX, INLINE_BYTES_MAX)).div_ceil(1024) == 51);
    };

    #[test]
    fn only_root_has_a_privileged_qkey() {
        let ask = |mask, qkey| ModifyQpRequest {
            mask,
            attributes: QpAttributes { qkey, ..QpAttributes::default() },
            ..ModifyQpRequest::default()
        };
        let refused = |request, privileged| check_qkey(&request, privileged).err().map(|refused| refused.why);
        assert_eq!(refused(ask(attribute::QKEY, 0x8001_0000), false), Some(Refusal::NotPermitted));
        assert_eq!(refused(ask(attribute::QKEY, 0x8001_0000), true), None);
        assert_eq!(refused(ask(attribute::QKEY, 0x7fff_ffff), false), None);
        assert_eq!(refused(ask(attribute::STATE, u32::MAX), false), None, "it is not taken over");
    }

    #[test]
    fn the_size_that_is_too_much_is_named() {
        let most = CreateQpRequest {
            send_wrs: WORK_REQUESTS_MAX,
            recv_wrs: WORK_REQUESTS_MAX,
            send_sges: SGE_MAX,
            recv_sges: SGE_MAX,
            inline_bytes: INLINE_BYTES_MAX,
            ..CreateQpRequest::default()
        };
        assert!(check_sizes(&most).is_ok());
        let named = |request| check_sizes(&request).expect_err("too much").detail;
        assert_eq!(named(CreateQpRequest { recv_wrs: u32::MAX, ..most }), [5, u32::MAX.into()]);
        assert_eq!(named(CreateQpRequest { send_sges: SGE_MAX + 1, ..most }), [6, u64::from(SGE_MAX) + 1]);
        assert_eq!(named(CreateQpRequest { inline_bytes: 513, ..most }), [8, 513]);
    }
}
