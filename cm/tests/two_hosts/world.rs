//! Two hosts with connections, and the network between them, by seed.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use roced_cm::{
    Accept, CmConfig, CmEvent, CmObserver, Connect, ConnectionManager, PeerAddress,
    wire::{
        CaGuid, CommId, ConnectionPath, MAD_BYTES, PortSpace, ServiceId, TransportService, receiver_number,
        reject_reason,
    },
};
use roced_types::{AccountId, DeviceId, Qpn};

pub(crate) const SERVICE: ServiceId = ServiceId::of(PortSpace::Tcp, 7174);
pub(crate) const GIDS: [[u8; 16]; 2] = [[1; 16], [2; 16]];

/// SplitMix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// True in so many of a hundred cases.
    pub(crate) fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// How a run goes wrong, percent.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    pub(crate) lost: u64,
    pub(crate) twice: u64,
    /// Programs that end at any moment.
    pub(crate) killed: u64,
    /// Listeners that refuse, or take seconds.
    pub(crate) unwilling: u64,
}

/// A connection in the view of its program.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Known {
    pub(crate) established: bool,
    /// It was told of the end.
    pub(crate) ended: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Plan {
    Accept,
    Reject,
    Disconnect,
    Destroy,
}

pub(crate) struct World {
    pub(crate) now: Duration,
    pub(crate) random: Random,
    pub(crate) faults: Faults,
    pub(crate) managers: [ConnectionManager; 2],
    observed: [Arc<Observed>; 2],
    /// By arrival: receiving host, addresses, bytes.
    pub(crate) network: BTreeMap<(Duration, u64), (usize, PeerAddress, Vec<u8>)>,
    pub(crate) plans: BTreeSet<(Duration, usize, CommId, Plan)>,
    pub(crate) known: [BTreeMap<CommId, Known>; 2],
    pub(crate) sent: u64,
    pub(crate) qpns: u32,
    pub(crate) established: [usize; 2],
    /// Of those that asked.
    pub(crate) refused: usize,
    pub(crate) unreachable: usize,
    pub(crate) disconnected: usize,
}

pub(crate) fn address(host: usize) -> PeerAddress {
    PeerAddress { device: DeviceId(0), vlan: None, local: GIDS[host], remote: GIDS[1 - host] }
}

pub(crate) fn wanted(service_id: ServiceId, qpn: u32) -> Connect {
    Connect {
        peer: address(0),
        account: AccountId(0),
        service_id,
        service: TransportService::Rc,
        qpn: Qpn::from_wire(qpn),
        responder_resources: 1,
        initiator_depth: 1,
        flow_control: false,
        retry_count: 7,
        rnr_retry_count: 7,
        srq: false,
        pkey: 0xffff,
        path_mtu: 3,
        path: ConnectionPath::default(),
        packet_life_time: 16,
        ack_delay: 15,
        private_data: [0; 92],
    }
}

/// By this a worker would tell datagrams apart.
#[derive(Debug, Default)]
pub(crate) struct Observed {
    numbers: Mutex<BTreeSet<(CommId, PeerAddress)>>,
    peers: Mutex<BTreeSet<PeerAddress>>,
}

impl Observed {
    fn names(&self, datagram: &[u8; MAD_BYTES], from: &PeerAddress) -> bool {
        receiver_number(datagram).is_some_and(|id| self.numbers.lock().expect("no panic").contains(&(id, *from)))
    }

    fn is_empty(&self) -> bool {
        self.numbers.lock().expect("no panic").is_empty() && self.peers.lock().expect("no panic").is_empty()
    }
}

impl CmObserver for Observed {
    fn on_number(&self, id: CommId, peer: &PeerAddress) {
        assert!(self.numbers.lock().expect("no panic").insert((id, *peer)), "told twice");
    }

    fn on_number_gone(&self, id: CommId, peer: &PeerAddress) {
        assert!(self.numbers.lock().expect("no panic").remove(&(id, *peer)), "it was not told");
    }

    fn on_connected(&self, peer: &PeerAddress) {
        assert!(self.peers.lock().expect("no panic").insert(*peer), "told twice");
    }

    fn on_disconnected(&self, peer: &PeerAddress) {
        assert!(self.peers.lock().expect("no panic").remove(peer), "it was not told");
    }
}

pub(crate) fn manager(host: u64, seed: u64, connections_max: usize) -> ConnectionManager {
    observed_manager(host, seed, connections_max, Arc::new(()))
}

fn observed_manager(host: u64, seed: u64, connections_max: usize, observer: Arc<dyn CmObserver>) -> ConnectionManager {
    let mut bytes = [host as u8; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = CmConfig { observer, ..CmConfig::new(bytes, connections_max) };
    let mut manager = ConnectionManager::new(&config);
    manager.set_adapter(DeviceId(0), CaGuid(100 + host));
    manager
}

impl World {
    pub(crate) fn new(seed: u64, faults: Faults) -> Self {
        let observed = [0, 1].map(|_| Arc::<Observed>::default());
        let managers = [0, 1].map(|host| observed_manager(host, seed, 1000, observed[host as usize].clone()));
        Self {
            now: Duration::ZERO,
            random: Random(seed),
            faults,
            managers,
            observed,
            network: BTreeMap::new(),
            plans: BTreeSet::new(),
            known: Default::default(),
            sent: 0,
            qpns: 16,
            established: [0; 2],
            refused: 0,
            unreachable: 0,
            disconnected: 0,
        }
    }

    /// A host loses all that it knows.
    pub(crate) fn restart(&mut self, host: usize, seed: u64, connections_max: usize) {
        self.observed[host] = Arc::default();
        self.managers[host] = observed_manager(host as u64, seed, connections_max, self.observed[host].clone());
    }

    pub(crate) fn qpn(&mut self) -> Qpn {
        self.qpns += 1;
        Qpn::from_wire(self.qpns)
    }

    pub(crate) fn connect(&mut self, service_id: ServiceId) -> CommId {
        let wanted = wanted(service_id, self.qpn().get());
        let id = self.managers[0].connect(&wanted, self.now).expect("there is room");
        self.known[0].insert(id, Known::default());
        id
    }

    /// Sends waiting messages and takes the events.
    pub(crate) fn settle(&mut self) {
        for host in 0..2 {
            while let Some(transmit) = self.managers[host].poll_transmit() {
                assert_eq!(transmit.to, address(host), "messages go to the peer");
                let copies = 1 + u64::from(self.random.percent(self.faults.twice));
                for _ in 0..copies {
                    if self.random.percent(self.faults.lost) {
                        continue;
                    }
                    // Reordered: from 10 us to 20 ms.
                    let delay = Duration::from_micros(10 + self.random.below(20_000));
                    self.sent += 1;
                    let from = address(1 - host);
                    self.network
                        .insert((self.now + delay, self.sent), (1 - host, from, transmit.mad.to_bytes().into()));
                }
            }
            while let Some(event) = self.managers[host].poll_event() {
                self.on_event(host, event);
            }
        }
    }

    pub(crate) fn plan(&mut self, host: usize, id: CommId, plan: Plan, within: Duration) {
        let at = self.now + Duration::from_micros(self.random.below(1 + within.as_micros() as u64));
        self.plans.insert((at, host, id, plan));
    }

    pub(crate) fn on_event(&mut self, host: usize, event: CmEvent) {
        let id = event.id();
        let soon = Duration::from_millis(500);
        if let CmEvent::Requested { req, peer, .. } = event {
            assert_eq!((host, req.service_id, peer), (1, SERVICE, address(1)));
            assert!(self.known[1].insert(id, Known::default()).is_none(), "a number that is in use");
            let unwilling = self.random.percent(self.faults.unwilling);
            let hesitates = self.random.percent(self.faults.unwilling);
            let plan = if unwilling { Plan::Reject } else { Plan::Accept };
            return self.plan(1, id, plan, if hesitates { Duration::from_secs(20) } else { Duration::ZERO });
        }
        let known = self.known[host].get_mut(&id).unwrap_or_else(|| panic!("{event:?} of nothing at {host}"));
        match event {
            CmEvent::Requested { .. } => unreachable!("above"),
            CmEvent::Accepted { .. } => {
                assert!(host == 0 && !known.established && !known.ended);
                known.established = true;
                self.established[0] += 1;
                self.managers[0].confirm(id, [0; 224], self.now).expect("it waits for that");
                self.plan(0, id, Plan::Disconnect, Duration::from_secs(5));
            }
            CmEvent::Established { .. } => {
                assert!(host == 1 && !known.established && !known.ended);
                known.established = true;
                self.established[1] += 1;
            }
            CmEvent::Rejected { .. } | CmEvent::Unreachable { .. } => {
                assert!(!known.ended, "told twice: {event:?}");
                known.ended = true;
                match event {
                    CmEvent::Rejected { .. } if host == 0 => self.refused += 1,
                    CmEvent::Unreachable { .. } if host == 0 => self.unreachable += 1,
                    _ => {}
                }
                if self.managers[host].state(id).is_some() {
                    self.plan(host, id, Plan::Destroy, soon);
                } else {
                    self.known[host].remove(&id);
                }
            }
            CmEvent::Disconnected { .. } => {
                assert!(!known.ended, "disconnected twice at {host}");
                known.ended = true;
                self.disconnected += 1;
                self.plan(host, id, Plan::Disconnect, soon);
                self.plan(host, id, Plan::Destroy, Duration::from_secs(3));
            }
            CmEvent::ServiceRequested { .. } | CmEvent::ServiceFound { .. } => {
                panic!("no datagram services: {event:?}")
            }
            CmEvent::TimeWaitExit { .. } => {
                self.known[host].remove(&id);
            }
        }
    }

    pub(crate) fn carry_out(&mut self, host: usize, id: CommId, plan: Plan) {
        let manager = &mut self.managers[host];
        let now = self.now;
        match plan {
            Plan::Accept => {
                let qpn = Qpn::from_wire({
                    self.qpns += 1;
                    self.qpns
                });
                // The peer may have given up.
                let _ = manager.accept(id, &Accept { qpn, ..acceptance() }, now);
            }
            Plan::Reject => {
                let _ = manager.reject(id, AccountId(0), reject_reason::CONSUMER_DEFINED, [0; 148], now);
                self.plan(host, id, Plan::Destroy, Duration::from_secs(1));
            }
            Plan::Disconnect => {
                let _ = manager.disconnect(id, now);
            }
            Plan::Destroy => {
                if manager.destroy(id, now).is_ok() {
                    self.known[host].remove(&id);
                }
            }
        }
    }

    /// Until `end`, or nothing more happens.
    pub(crate) fn run(&mut self, end: Duration) {
        self.settle();
        loop {
            let next = [
                self.network.first_key_value().map(|((at, _), _)| *at),
                self.plans.first().map(|(at, ..)| *at),
                self.managers[0].poll_timeout(),
                self.managers[1].poll_timeout(),
            ];
            let Some(next) = next.into_iter().flatten().min().filter(|next| *next <= end) else { break };
            self.now = self.now.max(next);
            while let Some(entry) = self.network.first_entry().filter(|entry| entry.key().0 <= self.now) {
                let (host, from, bytes) = entry.remove();
                let manager = &mut self.managers[host];
                let datagram = bytes.as_slice().try_into().expect("a whole datagram");
                let is_answer = manager.is_answer(from, datagram);
                let is_for_workers = self.observed[host].names(datagram, &from);
                assert_eq!(is_answer, is_for_workers, "workers tell it apart likewise");
                manager.on_datagram(from, &bytes, self.now);
                self.settle();
            }
            while let Some((at, host, id, plan)) = self.plans.first().copied().filter(|(at, ..)| *at <= self.now) {
                self.plans.remove(&(at, host, id, plan));
                self.carry_out(host, id, plan);
                self.settle();
            }
            for host in 0..2 {
                self.managers[host].on_timeout(self.now);
                self.settle();
            }
            if self.random.below(1000) < self.faults.killed {
                let host = self.random.below(2) as usize;
                let ids: Vec<_> = self.known[host].keys().copied().collect();
                if !ids.is_empty() {
                    let id = ids[self.random.below(ids.len() as u64) as usize];
                    self.carry_out(host, id, Plan::Destroy);
                    self.settle();
                }
            }
        }
        self.now = self.now.max(end);
    }

    /// All programs end; then nothing is left, however the network is.
    pub(crate) fn end(&mut self) {
        for host in 0..2 {
            for id in self.known[host].keys().copied().collect::<Vec<_>>() {
                self.carry_out(host, id, Plan::Destroy);
            }
        }
        self.run(self.now + Duration::from_secs(400));
        for (host, manager) in self.managers.iter().enumerate() {
            assert!(manager.is_empty(), "host {host} keeps {} connections", manager.len());
            assert_eq!(manager.poll_timeout(), None, "host {host} has a timer for nothing");
            assert!(self.observed[host].is_empty(), "host {host} has not told that connections are gone");
        }
    }
}

pub(crate) fn acceptance() -> Accept {
    Accept {
        qpn: Qpn::from_wire(77),
        responder_resources: 1,
        initiator_depth: 1,
        flow_control: false,
        rnr_retry_count: 7,
        srq: false,
        ack_delay: 15,
        private_data: [0; 196],
        patience: None,
    }
}
