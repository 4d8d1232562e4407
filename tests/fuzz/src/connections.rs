//! Target `connections`: calls of two programs about identifiers, and datagrams of two peers, in
//! any order.
//!
//! Numbers in calls and datagrams are mostly those that exist. Each call gives a result and no
//! panic; a datagram is answered by two at most; no event names an identifier that is not there;
//! an identifier ends at most once; and when the programs have gone and time has passed, nothing is
//! left of identifiers, ports, memberships, connections and timers.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use roced_cm::{
    CmConfig, PeerAddress,
    identifiers::{CmErrno, EventKind, IdEvent, IdKey, IdOption, IdService, Identifiers, OwnerId, Parameters},
    wire::{MAD_BYTES, Mad, PortSpace},
};
use roced_types::{DeviceId, Qpn, gid_of};

use crate::{fake_host::FakeHost, input::Input, seeds::Seed};

const OWNERS: [OwnerId; 2] = [OwnerId(1), OwnerId(2)];
/// Address of host 1.
const OWN: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
const PEERS: [[u8; 4]; 2] = [[10, 0, 0, 2], [10, 0, 0, 3]];
const PORTS: [u16; 4] = [0, 7, 7174, 7175];
const CONNECTIONS_MAX: usize = 16;

/// Longer than any timeout of this end or of a peer that is believed.
const TIMEOUT_MAX: Duration = Duration::from_secs(2000);

struct Machine {
    ids: Identifiers,
    network: FakeHost,
    now: Duration,
    /// Identifiers and memberships that are there.
    keys: Vec<IdKey>,
    /// Identifiers that were told of an end.
    ended: BTreeSet<IdKey>,
    /// The last datagrams that were sent: their numbers are those of connections.
    sent: Vec<(PeerAddress, Mad)>,
}

/// One run.
pub(crate) fn run(bytes: &[u8]) {
    let mut input = Input(bytes);
    let mut machine = Machine {
        ids: Identifiers::new(&CmConfig::new([1; 32], CONNECTIONS_MAX), 1000),
        network: FakeHost::new(1, 50_000..=50_003),
        now: Duration::from_secs(1),
        keys: Vec::new(),
        ended: BTreeSet::new(),
        sent: Vec::new(),
    };
    while !input.is_empty() {
        match input.byte() % 20 {
            0..=11 => machine.call(&mut input),
            12..=17 => machine.datagram(&mut input),
            18 => machine.pass(Duration::from_millis(u64::from(input.u16()) * 4)),
            _ => machine.change_network(&mut input),
        }
        machine.settle();
    }
    machine.end();
}

impl Machine {
    /// Mostly one that is there.
    fn key(&self, input: &mut Input<'_>) -> IdKey {
        let number = input.byte();
        match self.keys.get(usize::from(number) % (self.keys.len() + 1)) {
            Some(key) => *key,
            None => IdKey { owner: OWNERS[usize::from(number) % 2], number: number.into() },
        }
    }

    fn address(input: &mut Input<'_>) -> SocketAddr {
        let port = input.of(&PORTS);
        let address = input.of(&[[10, 0, 0, 1], PEERS[0], PEERS[1], [0; 4], [127, 0, 0, 1], [239, 1, 2, 3]]);
        if input.byte().is_multiple_of(8) {
            SocketAddr::from(([0; 16], port))
        } else {
            SocketAddr::from((address, port))
        }
    }

    fn call(&mut self, input: &mut Input<'_>) {
        let (key, now) = (self.key(input), self.now);
        let (ids, network) = (&mut self.ids, &mut self.network);
        let parameters = Parameters { qpn: Qpn::from_wire(u32::from(input.byte()) + 16), ..Parameters::default() };
        let data = [7; 200];
        let data = &data[..usize::from(input.byte()) % 200];
        // Refusals are as good as results.
        let _ = match input.byte() % 16 {
            0 | 1 => {
                let service = input.of(&[IdService::Reliable, IdService::Unreliable, IdService::Datagram]);
                let space = if service == IdService::Datagram { PortSpace::Udp } else { PortSpace::Tcp };
                let created = ids.create(input.of(&OWNERS), u32::from(input.byte() % 3), 9, space, service);
                created.map(|key| self.keys.push(key))
            }
            2 => ids.bind(key, Self::address(input), network),
            3 | 4 => {
                let timeout = Duration::from_millis(input.u16().into());
                ids.resolve_address(key, None, Self::address(input), timeout, network, now)
            }
            5 => ids.resolve_route(key),
            6 => ids.listen(key, u32::from(input.byte() % 5), network),
            7 => ids.connect(key, &parameters, data, now),
            8 => ids.accept(key, 5, &parameters, data, now),
            9 => ids.confirm(key, now),
            10 => ids.reject(key, u16::from(input.byte()), data, now),
            11 => ids.disconnect(key, now),
            12 => ids.establish(key, network, now),
            13 => {
                let group = IpAddr::from([239, 0, 0, input.byte()]);
                ids.join(key, 3, group, input.byte().is_multiple_of(2), network)
                    .map(|membership| self.keys.push(membership))
            }
            14 => {
                let value = input.byte();
                let option = input.of(&[
                    IdOption::TypeOfService(value),
                    IdOption::ReuseAddress(value.is_multiple_of(2)),
                    IdOption::FamilyOnly(value.is_multiple_of(2)),
                    IdOption::AckTimeout(value),
                ]);
                ids.set_option(key, option)
            }
            _ => self.destroy(key),
        };
    }

    fn destroy(&mut self, key: IdKey) -> Result<(), CmErrno> {
        let (ids, network) = (&mut self.ids, &mut self.network);
        let ended = ids.leave(key, network).or_else(|_| ids.destroy(key, network, self.now));
        self.ended.remove(&key);
        self.forget_gone();
        ended
    }

    /// A listener takes its requests along, an identifier its memberships.
    fn forget_gone(&mut self) {
        let ids = &self.ids;
        self.keys.retain(|key| ids.route(*key).is_ok() || ids.is_member(*key));
    }

    fn datagram(&mut self, input: &mut Input<'_>) {
        let peer = PEERS[usize::from(input.byte()) % 2];
        let from =
            PeerAddress { device: DeviceId(0), vlan: None, local: gid_of(OWN), remote: gid_of(IpAddr::from(peer)) };
        let mut bytes = [0; MAD_BYTES];
        bytes[..4].copy_from_slice(&[1, 7, 2, 3]);
        bytes[17] = 0x0f + input.byte() % 13;
        let some = input.array::<72>();
        bytes[24..96].copy_from_slice(&some);
        let known = self.sent.get(usize::from(input.byte()) % (self.sent.len() + 1));
        if let Some((_, mad)) = known {
            let theirs = mad.to_bytes();
            // Its number is the receiver's own; the peer's is the one in answers to it.
            bytes[28..32].copy_from_slice(&theirs[24..28]);
            bytes[24..28].copy_from_slice(&u32::from(input.byte() % 4).to_be_bytes());
        }
        if matches!(bytes[17], 0x10 | 0x17) {
            self.make_request(&mut bytes, from, input);
        }
        self.ids.on_datagram(from, &bytes, &mut self.network, self.now);
        let answers = self.take_sent();
        assert!(answers <= 2, "{answers} answers to attribute {:#x}", bytes[17]);
    }

    /// Fields by which a request finds a listener, where chance would not.
    fn make_request(&self, bytes: &mut [u8; MAD_BYTES], from: PeerAddress, input: &mut Input<'_>) {
        let is_question = bytes[17] == 0x17;
        let space: u64 = if is_question { 0x0111 } else { 0x0106 };
        let service = (space << 16 | u64::from(input.of(&PORTS))).to_be_bytes();
        bytes[24..28].copy_from_slice(&u32::from(input.byte() % 8).to_be_bytes());
        bytes[32..40].copy_from_slice(&service);
        let header = if is_question { 24 + 16 } else { 24 + 140 };
        bytes[header..header + 2].copy_from_slice(&[0, 0x40]);
        bytes[header + 16..header + 20].copy_from_slice(&from.remote[12..]);
        bytes[header + 32..header + 36].copy_from_slice(&from.local[12..]);
        if !is_question {
            bytes[24 + 50] = 3 << 4;
            bytes[24 + 56..24 + 72].copy_from_slice(&from.remote);
            bytes[24 + 72..24 + 88].copy_from_slice(&from.local);
        }
    }

    fn change_network(&mut self, input: &mut Input<'_>) {
        match input.byte() % 4 {
            0 => self.network.is_neighbor_known ^= true,
            1 => self.ids.on_device_removal(DeviceId(0), self.now),
            2 => self.network.untaken = (self.network.untaken + 1) % 4,
            _ => {
                let remote = gid_of(IpAddr::from(input.of(&PEERS)));
                let peer = PeerAddress { device: DeviceId(0), vlan: None, local: gid_of(OWN), remote };
                self.ids.on_neighbor(peer);
            }
        }
    }

    /// Time passes, timer by timer.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(at) = self.ids.poll_timeout().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.ids.on_timeout(&mut self.network, self.now);
            self.settle();
        }
        self.now = end;
    }

    fn take_sent(&mut self) -> usize {
        let mut count = 0;
        while let Some(transmit) = self.ids.poll_transmit() {
            count += 1;
            assert!(transmit.mad.message.attribute() as u16 >= 0x10);
            self.sent.push((transmit.to, transmit.mad));
        }
        let excess = self.sent.len().saturating_sub(8);
        self.sent.drain(..excess);
        count
    }

    fn settle(&mut self) {
        self.ids.admit_postponed(&mut self.network, self.now);
        self.take_sent();
        while let Some(event) = self.ids.poll_event() {
            self.check(&event);
        }
        self.forget_gone();
        assert!(self.ids.connections().len() <= CONNECTIONS_MAX);
    }

    fn check(&mut self, event: &IdEvent) {
        assert!(self.ids.route(event.owner).is_ok(), "an event of nothing: {event:?}");
        assert!(usize::from(event.private_data_bytes) <= event.private_data.len());
        match event.kind {
            EventKind::ConnectRequest => {
                assert!(!self.keys.contains(&event.key), "a number that is in use: {event:?}");
                self.keys.push(event.key);
            }
            EventKind::Disconnected | EventKind::Rejected | EventKind::Unreachable | EventKind::DeviceRemoval => {
                let is_first = self.ended.insert(event.key);
                assert!(is_first || event.kind == EventKind::DeviceRemoval, "it ends twice: {event:?}");
            }
            _ => {}
        }
    }

    fn end(&mut self) {
        for owner in OWNERS {
            while let Some(key) = self.ids.first_of(owner) {
                let _ = self.destroy(key);
            }
        }
        self.settle();
        assert!(self.ids.is_empty(), "something is left of gone programs");
        assert!(self.network.joined.is_empty(), "groups are left");
        self.pass(TIMEOUT_MAX);
        assert!(self.ids.connections().is_empty(), "connections are left");
        assert_eq!(self.ids.poll_timeout(), None, "a timer of nothing");
    }
}

/// A listener and requests; a connection that is asked for.
pub(crate) fn seeds() -> Vec<Seed> {
    let create = |service: u8| vec![0, 0, 16, 0, 0, service, 0, 1];
    let seed = |name: &str, parts: &[Vec<u8>]| Seed { name: name.to_owned(), bytes: parts.concat() };
    // Call, key, queue pair, length of data, kind, then its own bytes.
    let call = |kind: u8, rest: &[u8]| [&[0, 0, 16, 0, kind], rest].concat();
    let request = |attribute: u8| [&[12, 0, attribute][..], &[5; 72], &[0, 2, 1]].concat();
    vec![
        seed("a-listener-and-requests", &[create(0), call(2, &[2, 3, 1]), call(6, &[3]), request(1), request(1)]),
        seed("time-that-passes", &[create(0), vec![18, 0xff, 0xff], create(2), vec![19, 0]]),
        seed("a-device-that-goes", &[create(0), call(3, &[0, 1, 2, 1, 1]), vec![19, 1]]),
        seed("a-datagram-service", &[create(2), call(2, &[2, 3, 1]), call(6, &[3]), request(8)]),
        seed("a-connection", &[create(0), call(3, &[0, 1, 2, 1, 1]), call(5, &[]), call(7, &[]), vec![18, 0, 9]]),
    ]
}
