//! Calls about shared receive queues.

use std::time::Instant;

use roced_abi::{
    control::{
        CreateSrq, CreateSrqReply, CreateSrqRequest, DestroySrq, Handle, ModifySrq, ModifySrqRequest, QuerySrq,
        Refusal, SrqAttributes,
    },
    layout::SrqLayout,
};
use roced_memory::queues::new_srq;
use roced_transport::srq::{Srq, SrqConfig};
use roced_types::{QpSizes, Qpn, Srqn};
use tracing::debug;

use super::{
    CallHandler, CallReply,
    mr::{check_unused, nothing},
    refused::Refused,
    session::{SrqObject, check_limit, find},
    unsealed::QueueFile,
};
use crate::{
    accounts::ledger::Charge,
    numbers::random,
    worker::{
        command::{Answer, Command},
        endpoints::EndpointLocation,
    },
};

/// Where a queue to be made will live.
struct SrqPlacement {
    cq_ring: usize,
    place: EndpointLocation,
    srqn: Srqn,
    doorbell: u32,
}

impl CallHandler<'_, '_> {
    pub(super) fn create_srq(&mut self, request: CreateSrqRequest) -> CallReply<CreateSrq> {
        let limits = &self.registry.limits;
        check_limit(&self.objects.srqs, limits.client.srqs)?;
        let sizes = check_sizes(&request)?;
        find(&mut self.objects.pds, request.pd)?;
        self.seal([QueueFile::Doorbells])?;
        let bytes = SrqLayout::new(sizes).bytes as u64;
        self.objects.srq_charges.add(Srq::memory_bytes(&sizes))?;
        let charged = self.objects.charge(bytes, &self.registry.limits.client);
        let mapped = charged.inspect_err(|_| self.objects.srq_charges.remove(Srq::memory_bytes(&sizes)))?;
        let made = self.find_srq_home().and_then(|home| {
            let made = self.make_srq(&request, sizes, &home, mapped);
            // A worker that did not answer may have the queue still: its number and doorbell stay
            // in use.
            if made.as_ref().is_err_and(|refused| refused.why != Refusal::WorkerTimeout) {
                self.give_back_srq(&home);
            }
            made
        });
        if made.is_err() {
            self.objects.give_back(bytes);
            self.objects.srq_charges.remove(Srq::memory_bytes(&sizes));
        }
        made
    }

    /// A free number and doorbell on the worker with the fewest queues of the device: the queue
    /// pairs that come will live there.
    fn find_srq_home(&mut self) -> Result<SrqPlacement, Refused> {
        let limit = self.registry.limits.device.srqs;
        let client_limit = self.registry.limits.client.srqs;
        let device = self.registry.device(self.objects.device);
        if device.srqs >= limit {
            return Err(Refused::limit(limit));
        }
        let queues = device.qpns.iter().zip(&device.srqns).map(|(qpns, srqns)| qpns.len() + srqns.len());
        let (cq_ring, _) = queues.enumerate().min_by_key(|(_, queues)| *queues).expect("a device has a worker");
        // Numbered as queue pairs are: the same 24 bits, the same reserved ones left out, so that
        // none is 0.
        let taken =
            random().and_then(|bits| device.srqns[cq_ring].take(bits, Instant::now())).ok_or(Refused::limit(limit))?;
        let place = device.setup.endpoints[cq_ring];
        let srqn = Srqn::new(place.endpoint, taken.index());
        let Some(doorbell) = self.objects.doorbells[cq_ring].take() else {
            device.srqns[cq_ring].give_back(taken, Instant::now());
            return Err(Refused::limit(client_limit));
        };
        device.srqs += 1;
        Ok(SrqPlacement { cq_ring, place, srqn, doorbell })
    }

    fn give_back_srq(&mut self, home: &SrqPlacement) {
        let device = self.registry.device(self.objects.device);
        device.srqns[home.cq_ring].give_back(Qpn::new(home.srqn.endpoint(), home.srqn.index()), Instant::now());
        device.srqs -= 1;
        self.objects.doorbells[home.cq_ring].give_back(home.doorbell);
    }

    fn make_srq(
        &mut self,
        request: &CreateSrqRequest,
        sizes: QpSizes,
        home: &SrqPlacement,
        mapped: Option<Charge>,
    ) -> CallReply<CreateSrq> {
        let bytes = SrqLayout::new(sizes).bytes as u64;
        let &SrqPlacement { cq_ring, place, srqn, doorbell } = home;
        let pd = find(&mut self.objects.pds, request.pd)?;
        let config = SrqConfig { srqn, pd: pd.pdn, sizes };
        let (ring, fd) = new_srq(srqn, self.session, doorbell, sizes, self.room(mapped)?)?;
        let kept = self.keep_file(&fd)?;
        let limit = self.registry.limits.device.srqs.into();
        self.tell(place.worker, Command::AddSrq(Box::new(Srq::new(config)), ring), limit)?;
        find(&mut self.objects.pds, request.pd)?.users += 1;
        let object = SrqObject { config, worker: place.worker, cq_ring, doorbell, pd: request.pd, bytes, users: 0 };
        self.objects.srqs.insert(srqn.get(), object);
        self.objects.unsealed.add(QueueFile::Srq(srqn.get()), kept);
        debug!(session = %self.session, %srqn, worker = %place.worker, "shared receive queue made");
        let (wrs, sges) = (sizes.recv_wrs, sizes.recv_sges);
        Ok((CreateSrqReply { srqn: srqn.get(), worker: cq_ring as u32, doorbell, wrs, sges }, vec![fd]))
    }

    pub(super) fn modify_srq(&mut self, request: ModifySrqRequest) -> CallReply<ModifySrq> {
        let &mut SrqObject { config, worker, .. } = find(&mut self.objects.srqs, request.srqn)?;
        if request.limit > config.sizes.recv_wrs {
            return Err(Refused::argument(1, request.limit));
        }
        self.tell(worker, Command::SetSrqLimit(config.srqn, request.limit), 0)?;
        Ok(nothing(()))
    }

    pub(super) fn query_srq(&mut self, request: Handle) -> CallReply<QuerySrq> {
        let &mut SrqObject { config, worker, .. } = find(&mut self.objects.srqs, request.handle)?;
        match self.tell(worker, Command::SrqLimit(config.srqn), 0)? {
            Answer::SrqLimit(limit) => {
                let QpSizes { recv_wrs: wrs, recv_sges: sges, .. } = config.sizes;
                Ok((SrqAttributes { wrs, sges, limit }, Vec::new()))
            }
            other => unreachable!("SrqLimit is answered by a limit, not {other:?}"),
        }
    }

    pub(super) fn destroy_srq(&mut self, request: Handle) -> CallReply<DestroySrq> {
        self.end_srq(request.handle).map(nothing)
    }

    pub(super) fn end_srq(&mut self, number: u32) -> Result<(), Refused> {
        let &mut SrqObject { config, worker, users, .. } = find(&mut self.objects.srqs, number)?;
        check_unused(users)?;
        self.take_back(worker, Command::DropSrq(config.srqn))?;
        let object = self.objects.srqs.remove(&number).expect("found a few lines up");
        self.objects.unsealed.forget(QueueFile::Srq(number));
        let place = self.registry.device(self.objects.device).setup.endpoints[object.cq_ring];
        self.give_back_srq(&SrqPlacement {
            cq_ring: object.cq_ring,
            place,
            srqn: config.srqn,
            doorbell: object.doorbell,
        });
        self.objects.give_back(object.bytes);
        self.objects.srq_charges.remove(Srq::memory_bytes(&config.sizes));
        find(&mut self.objects.pds, object.pd)?.users -= 1;
        debug!(session = %self.session, srqn = %config.srqn, "shared receive queue ended");
        Ok(())
    }
}

/// Grants sizes for a request; refuses the first one that is too large.
fn check_sizes(request: &CreateSrqRequest) -> Result<QpSizes, Refused> {
    let asked = request.sizes();
    asked.granted().ok_or_else(|| match (QpSizes { recv_sges: 0, ..asked }).granted() {
        None => Refused::argument(1, request.wrs),
        Some(_) => Refused::argument(2, request.sges),
    })
}

#[cfg(test)]
mod tests {
    use roced_types::{SGE_MAX, WORK_REQUESTS_MAX};

    use super::*;

    #[test]
    fn the_size_that_is_too_much_is_named() {
        let check = |wrs, sges| check_sizes(&CreateSrqRequest { pd: 1, wrs, sges }).map_err(|refused| refused.detail);
        assert!(check(WORK_REQUESTS_MAX, SGE_MAX).is_ok());
        assert_eq!(check(WORK_REQUESTS_MAX + 1, SGE_MAX), Err([1, u64::from(WORK_REQUESTS_MAX) + 1]));
        assert_eq!(check(1, SGE_MAX + 1), Err([2, u64::from(SGE_MAX) + 1]));
        assert_eq!(check(0, 0).map(|sizes| (sizes.recv_wrs, sizes.recv_sges)), Ok((1, 1)));
    }
}
