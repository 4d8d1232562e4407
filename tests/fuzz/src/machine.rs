//! Workers of the daemon in this thread, without NIC and network: they turn when they are told to,
//! and by a clock that stands still between.

use std::{
    cell::Cell,
    collections::BTreeMap,
    io,
    net::IpAddr,
    os::fd::BorrowedFd,
    sync::{Arc, atomic::AtomicU64},
};

use roced::{
    environment::{DevicePort, Network, WorkerAccess},
    net::{Asker, FollowId, GidTableEntry, NextHop, NoRoute, RoceVersion},
    worker::{
        command::{Answer, Command},
        endpoints::{EndpointLocation, Endpoints},
        events::{EventReceiver, events},
        handoff::handoffs,
        idle::Policy,
        mailbox::{CallError, mailbox},
        nic::Nic,
        poll_loop::{Worker, WorkerEndpoint, WorkerParts},
        received_mads::mads,
        sent_mads::{OutgoingMad, OutgoingMads},
        wake::Waker,
    },
};
use roced_memory::queues::SleepBoard;
use roced_transport::{
    clock::Nanos,
    endpoint::{Endpoint, EndpointConfig},
    io::{Abort, Egress, EmitError, FrameMut, Segments, Wire},
    partition::Partitions,
    recovery::RecoveryConfig,
};
use roced_types::{DeviceId, WorkerId};

/// The only device.
pub(crate) const DEVICE: DeviceId = DeviceId(0);
/// Queue pairs of each worker.
pub(crate) const QPS: u32 = 16;
/// Numbers of address handles, 0 included, which none has.
const AHS: u32 = 8;
/// Shared receive queues of the device.
pub(crate) const SRQS: u32 = 3;
const ATTACHMENTS: u32 = 4;

/// A NIC queue without any NIC: workers hand over to themselves and one another.
#[derive(Debug)]
pub(crate) enum NoNic {}

impl Wire for NoNic {
    fn emit(
        &mut self,
        _: Egress,
        _: usize,
        _: impl FnOnce(&mut FrameMut<'_>) -> Result<(), Abort>,
    ) -> Result<(), EmitError> {
        match *self {}
    }
}

impl Nic for NoNic {
    fn queue(&self) -> u32 {
        match *self {}
    }

    fn rx_burst(&mut self, _: usize, _: impl FnMut(&Segments<'_>)) -> usize {
        match *self {}
    }

    fn flush(&mut self) {
        match *self {}
    }

    fn prepare_sleep(&mut self) -> bool {
        match *self {}
    }

    fn socket(&self) -> BorrowedFd<'_> {
        match *self {}
    }

    fn counters(&self, _: &mut impl FnMut(&'static str, u64)) {
        match *self {}
    }
}

/// The workers.
#[derive(Debug)]
pub(crate) struct Crew {
    workers: Vec<Worker<NoNic>>,
    pub(crate) places: Vec<EndpointLocation>,
    pub(crate) events: EventReceiver,
    pub(crate) now: Nanos,
}

thread_local! {
    /// A crew that no client uses any more: to make one takes longer than a run.
    static SPARE: Cell<Option<Crew>> = const { Cell::new(None) };
}

impl Crew {
    /// `count` workers of the device.
    pub(crate) fn hire(count: u32, max_mrs: u32) -> Self {
        let mut crew = SPARE.take().unwrap_or_else(|| Self::new(count, max_mrs));
        assert_eq!(crew.workers.len(), count as usize, "a thread runs one target");
        crew.now = Nanos::from_millis(1);
        crew
    }

    /// The next run may have it. All that was given to the workers was taken back.
    pub(crate) fn release(self) {
        SPARE.set(Some(self));
    }

    fn new(count: u32, max_mrs: u32) -> Self {
        let endpoints = Endpoints::new((0..count).map(|worker| (DEVICE, WorkerId(worker)))).expect("few workers");
        let endpoints = Arc::new(endpoints);
        let wakers: Vec<_> = (0..count).map(|_| Arc::new(Waker::new().expect("an eventfd"))).collect();
        let (receiver, senders) = events(count as usize).expect("an eventfd");
        let (_, mad_senders) = mads(count as usize, 1000).expect("an eventfd");
        let senders = senders.into_iter().zip(mad_senders);
        let board = SleepBoard::create(count).expect("a memfd");
        let recovery = RecoveryConfig { out_of_order_packets: 32, ..RecoveryConfig::default() };
        let worker = |(((number, waker), handoff), (events, mads)): (((u32, &Arc<Waker>), _), _)| {
            let worker_endpoint = |place: EndpointLocation| WorkerEndpoint {
                place,
                endpoint: Endpoint::new(EndpointConfig {
                    id: place.endpoint,
                    max_mrs,
                    max_ahs: AHS,
                    // Two places are reserved.
                    max_srqs: SRQS + 2,
                    max_attachments: ATTACHMENTS,
                    max_qps: QPS,
                    total_window_packets: 512,
                    recovery,
                    partitions: Partitions::default(),
                })
                .with_ids(place.ids),
                queues: Vec::new(),
                max_qps: QPS,
            };
            Worker::new(WorkerParts {
                id: WorkerId(number),
                policy: Policy::Yield,
                worker_endpoints: endpoints.of_worker(WorkerId(number)).map(worker_endpoint).collect(),
                endpoints: Arc::clone(&endpoints),
                inbox: mailbox(Arc::clone(waker)).1,
                queue_inbox: mailbox(Arc::clone(waker)).1,
                handoff,
                events,
                mads,
                outgoing: OutgoingMads::new(),
                waker: Arc::clone(waker),
                state: board.worker(number),
                heartbeat: Arc::new(AtomicU64::new(0)),
                max_sessions: 4,
                max_objects: 32,
                max_cq_rings: 32,
            })
            .expect("a worker")
        };
        let workers = (0..).zip(&wakers).zip(handoffs(&wakers)).zip(senders).map(worker).collect();
        let places = endpoints.of_device(DEVICE).collect();
        Self { workers, places, events: receiver, now: Nanos::default() }
    }

    /// Every worker turns once. True when any had something to do.
    pub(crate) fn poll(&mut self) -> bool {
        // No short circuit: all turn.
        self.workers.iter_mut().fold(false, |did, worker| worker.poll(self.now) | did)
    }
}

impl WorkerAccess for Crew {
    fn call(&mut self, worker: WorkerId, command: Command) -> Result<Answer, CallError> {
        Ok(self.workers[worker.0 as usize].carry_out(command))
    }

    fn send_mad(&mut self, _: WorkerId, _: OutgoingMad) -> bool {
        false
    }
}

/// A network with two addresses of ours.
#[derive(Debug)]
pub(crate) struct Net {
    pub(crate) port: DevicePort,
    /// How others are reached; `None`: not at all.
    pub(crate) elsewhere: Option<NextHop>,
    /// Destinations that are followed, with the number of followers.
    pub(crate) followed: BTreeMap<FollowId, (IpAddr, u32)>,
    /// Multicast groups that were joined, each as often as it was.
    pub(crate) joined: Vec<IpAddr>,
    last: u64,
}

impl Net {
    pub(crate) fn new() -> Self {
        let port = DevicePort {
            mac: [2, 0, 0, 0, 0, 1],
            link_up: true,
            link_mtu_bytes: 4200,
            speed_mbit_per_s: 10_000,
            gid_entries: 3,
            strips_vlan_tags: false,
            ecn: true,
        };
        Self { port, elsewhere: Some(NextHop::Resolving), followed: BTreeMap::new(), joined: Vec::new(), last: 0 }
    }
}

impl Network for Net {
    fn port(&self, _: DeviceId) -> DevicePort {
        self.port
    }

    fn gid(&self, _: DeviceId, index: u32) -> Option<GidTableEntry> {
        let address = match index {
            0 => IpAddr::from([10, 9, 0, 1]),
            2 => IpAddr::from([0xfd00, 9, 0, 0, 0, 0, 0, 1]),
            _ => return None,
        };
        Some(GidTableEntry { address, ifindex: 7, vlan: None, prefix_len: 24, roce: RoceVersion::V2 })
    }

    fn has_address(&self, address: IpAddr) -> bool {
        (0..3).any(|index| self.gid(DeviceId(0), index).is_some_and(|gid| gid.address == address))
    }

    fn source_for(&mut self, destination: IpAddr, _: u32) -> Option<IpAddr> {
        let mut gids = (0..3).filter_map(|index| self.gid(DeviceId(0), index));
        gids.find(|gid| gid.address.is_ipv4() == destination.is_ipv4()).map(|gid| gid.address)
    }

    fn follow(
        &mut self,
        device: DeviceId,
        source: GidTableEntry,
        to: IpAddr,
        _: Asker,
    ) -> Result<(FollowId, NextHop), NoRoute> {
        let local = [0, 2].iter().any(|index| self.gid(device, *index).is_some_and(|gid| gid.address == to));
        let next = if local { Some(NextHop::Local(device)) } else { self.elsewhere };
        let next = next.ok_or(NoRoute { from: source.address, destination: to })?;
        let known = self.followed.iter().find(|(_, (address, _))| *address == to).map(|(id, _)| *id);
        let id = known.unwrap_or_else(|| {
            self.last += 1;
            FollowId::new(self.last)
        });
        self.followed.entry(id).or_insert((to, 0)).1 += 1;
        Ok((id, next))
    }

    fn must_ask(&mut self, _: DeviceId, _: GidTableEntry, _: IpAddr) -> bool {
        self.elsewhere == Some(NextHop::Resolving)
    }

    fn unfollow(&mut self, id: FollowId, _: Asker) {
        let followers = &mut self.followed.get_mut(&id).expect("it is followed").1;
        *followers -= 1;
        if *followers == 0 {
            self.followed.remove(&id);
        }
    }

    fn join(&mut self, _: DeviceId, _: GidTableEntry, group: IpAddr) -> io::Result<()> {
        self.joined.push(group);
        Ok(())
    }

    fn leave(&mut self, _: DeviceId, _: Option<u16>, group: IpAddr) {
        let at = self.joined.iter().position(|joined| *joined == group).expect("it was joined");
        self.joined.swap_remove(at);
    }
}
