//! Two hosts with identifiers, and the network between them.

use std::{collections::VecDeque, net::SocketAddr, time::Duration};

use roced_cm::{
    CmConfig, PeerAddress,
    identifiers::{CmErrno, EventKind, IdEvent, IdKey, IdService, Identifiers, OwnerId, Parameters},
    wire::{Mad, PortSpace},
};
use roced_types::{Qpn, gid_of};

use crate::fake_host::FakeHost;

pub(crate) const PORT: u16 = 7174;
pub(crate) const OWNER: OwnerId = OwnerId(1);
pub(crate) const CHANNEL: u32 = 1;
pub(crate) const SECOND: Duration = Duration::from_secs(1);

pub(crate) struct World {
    pub(crate) now: Duration,
    pub(crate) hosts: [FakeHost; 2],
    pub(crate) ids: [Identifiers; 2],
    pub(crate) events: [VecDeque<IdEvent>; 2],
    /// Datagrams that are dropped, by their number.
    pub(crate) drops: fn(u64, &Mad) -> bool,
    pub(crate) sent: u64,
}

impl World {
    pub(crate) fn new() -> Self {
        let ids = |seed| Identifiers::new(&CmConfig::new([seed; 32], 10_000), 1000);
        Self {
            now: SECOND,
            hosts: [1, 2].map(|number| FakeHost::new(number, 40_000..=40_063)),
            ids: [ids(1), ids(2)],
            events: Default::default(),
            drops: |_, _| false,
            sent: 0,
        }
    }

    pub(crate) fn create(&mut self, at: usize, service: IdService) -> IdKey {
        let space = if service == IdService::Datagram { PortSpace::Udp } else { PortSpace::Tcp };
        self.ids[at].create(OWNER, CHANNEL, 100 + at as u64, space, service).expect("there is room")
    }

    pub(crate) fn listen(&mut self, service: IdService, backlog: u32) -> IdKey {
        let key = self.create(1, service);
        let address = SocketAddr::from(([0, 0, 0, 0], PORT));
        self.ids[1].bind(key, address, &mut self.hosts[1]).expect("free");
        self.ids[1].listen(key, backlog, &mut self.hosts[1]).expect("free");
        key
    }

    pub(crate) fn resolve(&mut self, key: IdKey, to: [u8; 4], port: u16) -> Result<(), CmErrno> {
        let Self { ids, hosts, now, .. } = self;
        ids[0].resolve_address(key, None, SocketAddr::from((to, port)), 2 * SECOND, &mut hosts[0], *now)
    }

    /// An identifier that is ready to connect.
    pub(crate) fn routed(&mut self, service: IdService) -> IdKey {
        let key = self.create(0, service);
        self.resolve(key, [10, 0, 0, 2], PORT).expect("there is a route");
        assert_eq!(self.next(0).kind, EventKind::AddressResolved);
        self.ids[0].resolve_route(key).expect("the address is resolved");
        assert_eq!(self.next(0).kind, EventKind::RouteResolved);
        key
    }

    pub(crate) fn connect(&mut self, key: IdKey, data: &[u8]) {
        self.ids[0].connect(key, &parameters(key.number + 16), data, self.now).expect("the route is resolved");
    }

    /// Passes datagrams and time until `end`.
    pub(crate) fn run(&mut self, during: Duration) {
        let end = self.now + during;
        loop {
            self.settle();
            let next = self.ids.iter().filter_map(Identifiers::poll_timeout).min();
            let Some(next) = next.filter(|next| *next <= end) else { break };
            self.now = self.now.max(next);
            for (ids, host) in self.ids.iter_mut().zip(&mut self.hosts) {
                ids.on_timeout(host, self.now);
            }
        }
        self.now = end;
    }

    pub(crate) fn settle(&mut self) {
        loop {
            let mut passed = false;
            for at in 0..2 {
                let requests = self.events[at].iter().filter(|it| it.kind == EventKind::ConnectRequest);
                self.hosts[at].untaken = requests.count() as u32;
                self.ids[at].admit_postponed(&mut self.hosts[at], self.now);
                while let Some(transmit) = self.ids[at].poll_transmit() {
                    passed = true;
                    self.sent += 1;
                    if (self.drops)(self.sent, &transmit.mad) {
                        continue;
                    }
                    let from = PeerAddress { local: transmit.to.remote, remote: transmit.to.local, ..transmit.to };
                    let other = 1 - at;
                    let addresses = [self.hosts[other].address(), self.hosts[other].link_local().into()];
                    assert!(addresses.map(gid_of).contains(&from.local));
                    let bytes = transmit.mad.to_bytes();
                    let requests = self.events[other].iter().filter(|it| it.kind == EventKind::ConnectRequest);
                    self.hosts[other].untaken = requests.count() as u32;
                    self.ids[other].on_datagram(from, &bytes, &mut self.hosts[other], self.now);
                }
                while let Some(event) = self.ids[at].poll_event() {
                    self.events[at].push_back(event);
                }
            }
            if !passed {
                return;
            }
        }
    }

    pub(crate) fn next(&mut self, at: usize) -> IdEvent {
        self.settle();
        self.events[at].pop_front().expect("an event")
    }

    pub(crate) fn nothing(&mut self, at: usize) {
        self.settle();
        assert_eq!(self.events[at].pop_front(), None);
    }

    pub(crate) fn destroy(&mut self, at: usize, key: IdKey) {
        self.ids[at].destroy(key, &mut self.hosts[at], self.now).expect("it is there");
    }

    /// A connection: the identifiers of both ends.
    pub(crate) fn connected(&mut self) -> (IdKey, IdKey) {
        let active = self.routed(IdService::Reliable);
        self.connect(active, b"hello");
        let request = self.next(1);
        assert_eq!((request.kind, request.uid), (EventKind::ConnectRequest, 101));
        let passive = request.key;
        self.ids[1].accept(passive, 555, &parameters(77), b"welcome", self.now).expect("it was requested");
        assert_eq!(self.next(0).kind, EventKind::ConnectResponse);
        self.ids[0].confirm(active, self.now).expect("it was accepted");
        let established = self.next(1);
        assert_eq!((established.kind, established.uid), (EventKind::Established, 555));
        (active, passive)
    }

    /// Programs end; then nothing is left at either host.
    pub(crate) fn end(&mut self) {
        for at in 0..2 {
            while let Some(key) = self.ids[at].first_of(OWNER) {
                self.destroy(at, key);
            }
            assert!(self.ids[at].is_empty(), "host {at}");
        }
        self.run(200 * SECOND);
        for at in 0..2 {
            assert!(self.ids[at].connections().is_empty(), "host {at}");
            assert_eq!(self.ids[at].poll_timeout(), None);
            assert!(self.hosts[at].joined.is_empty());
        }
    }
}

pub(crate) fn parameters(qpn: u32) -> Parameters {
    Parameters {
        qpn: Qpn::from_wire(qpn),
        responder_resources: 3,
        initiator_depth: 5,
        retry_count: 6,
        rnr_retry_count: 7,
        ..Parameters::default()
    }
}

impl World {
    /// An identifier with a route, or one of a program that ends before that.
    pub(crate) fn routed_or_killed(&mut self, is_killed: bool) -> Option<IdKey> {
        let key = self.create(0, IdService::Reliable);
        self.resolve(key, [10, 0, 0, 2], PORT).expect("there is a route");
        if is_killed {
            self.destroy(0, key);
            return None;
        }
        self.ids[0].resolve_route(key).expect("the address is resolved");
        Some(key)
    }
}
