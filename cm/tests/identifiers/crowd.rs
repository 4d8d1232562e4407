//! Many new hosts that connect to one listener at one moment, beside hosts that do not exist. The
//! program accepts at once; each message takes a millisecond.

use std::time::Duration;

use roced_cm::{
    CmConfig, PeerAddress,
    identifiers::{EventKind, IdKey, IdService, Identifiers},
    wire::{
        AdditionalInfo, Attribute, CmMessage, CommId, Mad, PortSpace, Rej, RejectedMessage, Rtu, ServiceId, SidrReq,
        TransactionId, reject_reason,
    },
};

use crate::{
    unconfirmed::{FIRST_HOST, request},
    world::{PORT, SECOND, World, parameters},
};

const MILLISECOND: Duration = Duration::from_millis(1);

/// Requests that may wait for room.
const POSTPONED_MAX: usize = 4096;

/// A host with a listener, which knows no other host.
struct Crowd {
    world: World,
    listener: IdKey,
    /// Of these hosts.
    existing: std::ops::Range<u32>,
    /// Messages under way to the listener.
    coming: Vec<(PeerAddress, Mad)>,
    /// Hosts that are connected, or have the answer that they asked for.
    served: Vec<u32>,
}

impl Crowd {
    fn new(service: IdService, backlog: u32, existing: std::ops::Range<u32>) -> Self {
        let mut world = World::new();
        world.ids[1] = Identifiers::new(&CmConfig::new([2; 32], 100_000), 50_000);
        let listener = world.listen(service, backlog);
        world.hosts[1].knows_peers = false;
        Self { world, listener, existing, coming: Vec::new(), served: Vec::new() }
    }

    fn ask(&mut self, host: u32) {
        self.coming.push(request(host, host, self.world.hosts[1].address()));
    }

    /// Messages arrive, the program takes and accepts all requests, and peers that exist confirm.
    fn pass(&mut self) {
        let World { ids: [_, ids], hosts: [_, host], now, .. } = &mut self.world;
        *now += MILLISECOND;
        ids.on_timeout(host, *now);
        for (from, mad) in std::mem::take(&mut self.coming) {
            ids.on_datagram(from, &mad.to_bytes(), host, *now);
            ids.admit_postponed(host, *now);
        }
        ids.admit_postponed(host, *now);
        while let Some(event) = ids.poll_event() {
            match event.kind {
                EventKind::ConnectRequest => {
                    ids.accept(event.key, 1, &parameters(100 + event.key.number), b"", *now).expect("it was asked");
                    ids.admit_postponed(host, *now);
                }
                EventKind::Established => {}
                EventKind::Unreachable => ids.destroy(event.key, host, *now).expect("it is there"),
                kind => panic!("{kind:?}"),
            }
        }
        assert!(ids.postponed() <= POSTPONED_MAX);
        while let Some(transmit) = ids.poll_transmit() {
            let number = transmit.to.remote.last_chunk().map(|bytes| u32::from_be_bytes(*bytes)).expect("IPv4");
            let host = number - FIRST_HOST;
            if !self.existing.contains(&host) {
                continue;
            }
            match transmit.mad.message {
                CmMessage::Rep(rep) => {
                    let rtu = CmMessage::Rtu(Rtu { local: rep.remote, remote: rep.local, private_data: [0; 224] });
                    self.coming.push((transmit.to, Mad { transaction: TransactionId(1), modifier: 0, message: rtu }));
                    self.served.push(host);
                }
                CmMessage::SidrRep(rep) => {
                    assert_eq!(rep.status, 0);
                    self.served.push(host);
                }
                message => panic!("{message:?}"),
            }
        }
    }

    /// Passes time until all have been served: how much.
    fn serve_all(&mut self, limit: Duration) -> Duration {
        let begin = self.world.now;
        while self.served.len() < self.existing.len() && self.world.now - begin < limit {
            self.pass();
        }
        assert_eq!(self.served.len(), self.existing.len(), "after {limit:?}");
        self.served.sort_unstable();
        assert!(self.served.iter().copied().eq(self.existing.clone()), "each once");
        self.world.now - begin
    }
}

#[test]
fn a_thousand_new_hosts_connect_at_once_and_none_has_to_repeat_its_request() {
    for backlog in [0, 128, 10] {
        let mut crowd = Crowd::new(IdService::Reliable, backlog, 0..1000);
        (0..1000).for_each(|host| crowd.ask(host));
        let took = crowd.serve_all(10 * SECOND);
        // Unknown peers have 128 places, and the next request has one when a peer has confirmed.
        assert!(took <= 10 * MILLISECOND, "backlog {backlog}: {took:?}");
    }
}

#[test]
fn a_thousand_new_hosts_find_a_datagram_service_at_once() {
    let mut crowd = Crowd::new(IdService::Datagram, 16, 0..1000);
    for host in 0..1000 {
        let (from, mad) = request(host, host, crowd.world.hosts[1].address());
        let CmMessage::Req(req) = mad.message else { panic!("a REQ") };
        let mut private_data = [0; 216];
        private_data[..92].copy_from_slice(&req.private_data);
        let service_id = ServiceId::of(PortSpace::Udp, PORT);
        let message = CmMessage::SidrReq(SidrReq { request: req.local, pkey: 0xffff, service_id, private_data });
        crowd.coming.push((from, Mad { message, ..mad }));
    }
    let took = crowd.serve_all(10 * SECOND);
    assert!(took <= 10 * MILLISECOND, "{took:?}");
}

/// The requests of the flood have all places of unknown peers, and all room to wait. The hosts that
/// exist come last, and are served as soon as the places are given up.
#[test]
fn new_hosts_connect_after_a_flood_as_soon_as_its_requests_are_given_up() {
    let mut crowd = Crowd::new(IdService::Reliable, 0, 0..1000);
    for host in 10_000..30_000 {
        crowd.ask(host);
        if host % 100 == 0 {
            crowd.pass();
        }
    }
    assert_eq!(crowd.world.ids[1].postponed(), POSTPONED_MAX);
    (0..1000).for_each(|host| crowd.ask(host));
    let took = crowd.serve_all(10 * SECOND);
    assert!(took <= 4500 * MILLISECOND, "{took:?}");
}

/// Beside a flood a peer that is known connects as if there were none.
#[test]
fn requests_that_wait_keep_no_known_peer_waiting() {
    let mut crowd = Crowd::new(IdService::Reliable, 128, 0..1);
    (10_000..20_000).for_each(|host| crowd.ask(host));
    crowd.pass();
    crowd.world.hosts[1].knows_peers = true;
    crowd.ask(0);
    let took = crowd.serve_all(SECOND);
    assert!(took <= MILLISECOND, "{took:?}");
}

#[test]
fn requests_are_forgotten_when_their_peers_do_not_want_them_any_more() {
    let mut crowd = Crowd::new(IdService::Reliable, 0, 0..0);
    (10_000..10_300).for_each(|host| crowd.ask(host));
    crowd.pass();
    assert_eq!(crowd.world.ids[1].postponed(), 300 - 128);
    // One says so, and one takes back a request that is not its own.
    let to = crowd.world.hosts[1].address();
    for (host, of) in [(10_299, 10_299), (10_297, 10_298)] {
        let (from, mad) = request(host, of, to);
        let CmMessage::Req(req) = mad.message else { panic!("a REQ") };
        let rej = Rej {
            local: req.local,
            remote: CommId(0),
            message: RejectedMessage::Other,
            reason: reject_reason::TIMEOUT,
            info: AdditionalInfo::new(&req.local_ca.0.to_be_bytes()),
            private_data: [0; 148],
        };
        crowd.coming.push((from, Mad { message: CmMessage::Rej(rej), ..mad }));
    }
    crowd.pass();
    assert_eq!(crowd.world.ids[1].postponed(), 300 - 128 - 1);
    // One is repeated, the others are not: after eight seconds they wait no more.
    for _ in 0..6000 {
        crowd.pass();
    }
    crowd.ask(10_280);
    let left = crowd.world.ids[1].postponed();
    for _ in 0..3000 {
        crowd.pass();
    }
    assert!(left > 1 && crowd.world.ids[1].postponed() <= 1, "{left}");
    crowd.world.destroy(1, crowd.listener);
    assert_eq!(crowd.world.ids[1].postponed(), 0);
}

/// One address, with as many adapters and numbers as it likes.
#[test]
fn requests_of_one_peer_leave_room_for_others_to_wait() {
    let mut crowd = Crowd::new(IdService::Reliable, 0, 0..0);
    let to = crowd.world.hosts[1].address();
    (10_000..10_128).for_each(|host| crowd.ask(host));
    crowd.pass();
    crowd.coming = (0..10_000).map(|number| request(9_999, number, to)).collect();
    crowd.pass();
    assert_eq!(crowd.world.ids[1].postponed(), 256);
    crowd.ask(20_000);
    crowd.pass();
    assert_eq!(crowd.world.ids[1].postponed(), 257);
}

#[test]
fn requests_that_wait_are_bounded_and_the_oldest_goes_first() {
    let mut crowd = Crowd::new(IdService::Reliable, 0, 0..0);
    (10_000..20_000).for_each(|host| crowd.ask(host));
    crowd.pass();
    let ids = &crowd.world.ids[1];
    assert_eq!(ids.postponed(), POSTPONED_MAX);
    assert_eq!(ids.counters().of(Attribute::Req).received, 10_000);
    assert_eq!(ids.counters().no_room, 10_000 - 128 - POSTPONED_MAX as u64);
    // The newest is there, and again once: it is the same request.
    for (host, more) in [(19_999, 0), (10_200, 1)] {
        let before = crowd.world.ids[1].counters().no_room;
        crowd.ask(host);
        crowd.pass();
        assert_eq!(crowd.world.ids[1].counters().no_room, before + more, "host {host}");
    }
}
