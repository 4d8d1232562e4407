//! Which worker runs which endpoint of which device. Made once at start-up, the same for every
//! thread.

use roced_types::{DeviceId, EndpointId, EndpointIds, Qpn, WorkerId};

/// Where an endpoint lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointLocation {
    /// Its number.
    pub endpoint: EndpointId,
    /// The numbers that stand for it in queue pair numbers, [`Self::endpoint`] and others.
    pub ids: EndpointIds,
    /// The device it belongs to.
    pub device: DeviceId,
    /// The worker that runs it.
    pub worker: WorkerId,
}

/// Every endpoint of the daemon.
#[derive(Clone, Debug)]
pub struct Endpoints {
    places: Vec<EndpointLocation>,
    /// By the number in a QPN; none without endpoints.
    by_id: Vec<EndpointLocation>,
}

impl Endpoints {
    /// Numbers the pairs of device and worker that `served` lists, in its order. `None` when there
    /// are more than queue pair numbers can tell apart.
    pub fn new(served: impl IntoIterator<Item = (DeviceId, WorkerId)>) -> Option<Self> {
        let served: Vec<_> = served.into_iter().collect();
        let count = served.len();
        if count > EndpointId::COUNT {
            return None;
        }
        let number = |(at, (device, worker))| {
            let endpoint = EndpointId::new(at)?;
            Some(EndpointLocation { endpoint, ids: EndpointIds::of(endpoint, count), device, worker })
        };
        let places: Vec<_> = served.into_iter().enumerate().map(number).collect::<Option<_>>()?;
        let by_id = places.iter().copied().cycle().take(EndpointId::COUNT).collect();
        Some(Self { places, by_id })
    }

    /// Where the queue pair `qpn` would live.
    pub fn of_qpn(&self, qpn: Qpn) -> Option<EndpointLocation> {
        self.by_id.get(qpn.endpoint().get()).copied()
    }

    /// The endpoints of a device, by worker: the order of a completion queue's rings and a
    /// session's doorbell block.
    pub fn of_device(&self, device: DeviceId) -> impl Iterator<Item = EndpointLocation> + '_ {
        self.places.iter().copied().filter(move |place| place.device == device)
    }

    /// The endpoints of a worker.
    pub fn of_worker(&self, worker: WorkerId) -> impl Iterator<Item = EndpointLocation> + '_ {
        self.places.iter().copied().filter(move |place| place.worker == worker)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_pair_number_finds_its_place() {
        let endpoints =
            Endpoints::new([(0, 0), (0, 1), (1, 1)].map(|(device, worker)| (DeviceId(device), WorkerId(worker))))
                .expect("three endpoints");
        let qpn = |endpoint| Qpn::new(EndpointId::new(endpoint).expect("below 64"), 5);
        let place = endpoints.of_qpn(qpn(2)).expect("it exists");
        assert_eq!((place.device, place.worker, place.endpoint.get()), (DeviceId(1), WorkerId(1), 2));
        for id in 0..EndpointId::COUNT {
            let place = endpoints.of_qpn(qpn(id)).expect("each number stands for one");
            assert_eq!(place.endpoint.get(), id % 3);
            let next = EndpointId::new(id + 1).is_some_and(|next| place.ids.contains(next));
            assert!(place.ids.contains(qpn(id).endpoint()) && !next);
        }
        let workers: Vec<_> = endpoints.of_device(DeviceId(0)).map(|place| place.worker.0).collect();
        assert_eq!(workers, [0, 1]);
        assert_eq!(endpoints.of_worker(WorkerId(1)).count(), 2);
        assert!(Endpoints::new((0..65).map(|worker| (DeviceId(0), WorkerId(worker)))).is_none());
    }
}
