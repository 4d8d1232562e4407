//! A forger off the path: it knows the addresses, the queue pair numbers and, by chance, the PSNs
//! of a connection, and not the UDP source port of its packets. Its frames come right before
//! genuine ones, with other bytes. None has any effect.
//!
//! The worst that it can do is to know the very PSN that is due, in the time in which a wrong guess
//! has barred other ports, to put a request with a fault in the place of the one that is due, and to
//! refuse the very request that is under way, or put it off.

use roced_transport::{
    clock::Nanos,
    io::{Egress, FrameMut},
    mr::MrKey,
    psn::Psn,
    reject::{Disposition, DropReason},
    wire::{Aeth, Headers, NakCode, Path, PathSpec, Roce, Syndrome, bth::Bth, opcode, parse, reth::Reth},
};

use crate::{
    arriving::Arriving,
    earlier::Port,
    frame::Seen,
    model::AppView,
    random::Random,
    say::say,
    service::Service,
    violation::{Checked, demand},
    world::World,
};

/// Distance of a wrong guess ahead of the genuine PSN, at least: beyond those that are accepted
/// from a peer that has changed its port.
const MISS: u64 = 8;

/// A repetition is no farther behind the PSN that is due.
const BEHIND: u64 = 10_000;

/// Bytes of a request with a fault.
const FAULTY_BYTES: usize = 24;

/// The party, in some of the seeds.
#[derive(Debug)]
pub(crate) struct Forger {
    random: Random,
    /// Parts per million of frames before which it sends.
    rate: u32,
    /// Last packet of an unreliable connection that was taken: its life and receiver.
    heard: Vec<(u32, usize)>,
    /// Frames that it sent.
    pub(crate) sent: u64,
}

impl Forger {
    pub(crate) fn draw(mut random: Random) -> Self {
        let rate = random.pick(&[0, 0, 0, 5_000, 50_000]);
        Self { random, rate, heard: Vec::new(), sent: 0 }
    }

    /// A packet of an unreliable connection was taken.
    pub(crate) fn hear(&mut self, life: u32, to: usize) {
        if self.rate > 0 && !self.heard.contains(&(life, to)) {
            self.heard.push((life, to));
        }
    }
}

/// The genuine frame with these changes, another port and other bytes.
fn forged(genuine: &[u8], change: impl FnOnce(&mut Headers, Psn)) -> Vec<u8> {
    let pieces = [genuine];
    let packet = parse(&pieces).expect("a frame of ours");
    let mut headers = Headers {
        bth: packet.bth,
        deth: packet.deth,
        feth: packet.feth,
        reth: packet.reth,
        atomic: packet.atomic,
        aeth: packet.aeth,
        atomic_ack: packet.atomic_ack,
        imm: packet.imm,
        ieth: packet.ieth,
    };
    let mut payload: Vec<u8> = packet.payload().flatten().map(|byte| !byte).collect();
    change(&mut headers, packet.bth.psn);
    if matches!(headers.bth.opcode, opcode::RC_WRITE_ONLY | opcode::UC_WRITE_ONLY)
        && headers.reth.is_some_and(|reth| reth.length == FAULTY_BYTES as u32)
    {
        payload = vec![0x5a; FAULTY_BYTES];
    }
    if headers.bth.opcode == opcode::RC_ACK {
        payload.clear();
    }
    let Roce::V2 { udp_source_port } = packet.roce else { unreachable!("hosts here speak RoCEv2") };
    let path = Path::new(&PathSpec {
        via: Egress::Nic { flow: 1 },
        source_mac: [2; 6],
        dest_mac: [4; 6],
        vlan: None,
        source: packet.source,
        destination: packet.destination,
        traffic_class: packet.traffic_class,
        hop_limit: packet.hop_limit,
        flow_label: 0,
        // Of all ports that hosts use this is none.
        roce: Roce::V2 { udp_source_port: udp_source_port ^ 0x4000 },
    })
    .expect("one address family");
    let mut bytes = vec![0; path.frame_bytes(&headers, payload.len())];
    let mut rest = &payload[..];
    let filled = path.fill(&mut FrameMut::single(&mut bytes), &headers, payload.len(), |piece| {
        let (now, later) = rest.split_at(piece.len());
        piece.copy_from_slice(now);
        rest = later;
        Ok(())
    });
    filled.expect("all bytes are there");
    bytes
}

/// A key has as many bits as it takes to be the peer's.
fn spoil_key(headers: &mut Headers) {
    let keys =
        [headers.reth.as_mut().map(|reth| &mut reth.rkey), headers.atomic.as_mut().map(|atomic| &mut atomic.rkey)];
    keys.into_iter().flatten().for_each(|key| *key = MrKey(key.0 ^ 0x5a5a_0000));
}

impl World {
    /// A genuine frame of connection `at` is about to reach host `to`, which hears it.
    pub(crate) fn forge(&mut self, at: usize, to: usize, seen: &Seen<'_>, bytes: &[u8]) {
        if !self.forger.random.chance(self.forger.rate) || !self.knows_port(at, to, seen) {
            return;
        }
        let is_behind = seen.is_request() && !self.is_not_behind(at, to, seen);
        let frames = if seen.is_request() && self.forger.random.one_in(3) && !is_behind {
            // A key of nothing.
            let opcode = if seen.service == Service::Reliable { opcode::RC_WRITE_ONLY } else { opcode::UC_WRITE_ONLY };
            vec![forged(bytes, |headers, _| {
                *headers = Headers {
                    reth: Some(Reth { va: 8, rkey: MrKey(0x5a5a_5a5a), length: FAULTY_BYTES as u32 }),
                    ..Headers::new(Bth { opcode, ..headers.bth })
                };
            })]
        } else if seen.is_request() {
            // From the place of a repetition a near one may be the one that is due, or be repeated.
            let nearest = if is_behind { BEHIND } else { MISS };
            let miss = self.forger.random.within(nearest, nearest + 192) as u32;
            vec![
                forged(bytes, |headers, psn| headers.bth.psn = psn.plus(miss)),
                forged(bytes, |headers, _| spoil_key(headers)),
            ]
        } else {
            let syndrome = self.forger.random.pick(&[
                Syndrome::Nak(NakCode::InvalidRequest),
                Syndrome::Nak(NakCode::RemoteAccess),
                Syndrome::Nak(NakCode::RemoteOperation),
                Syndrome::Rnr { timer: 0 },
            ]);
            vec![forged(bytes, |headers, _| {
                let msn = headers.aeth.map_or(0, |aeth| aeth.msn);
                headers.bth.opcode = opcode::RC_ACK;
                (headers.aeth, headers.atomic_ack) = (Some(Aeth { syndrome, msn }), None);
            })]
        };
        for frame in frames {
            let checked = self.give_forged(to, seen, &frame);
            self.model.note(checked);
        }
    }

    fn give_forged(&mut self, to: usize, seen: &Seen<'_>, frame: &[u8]) -> Checked {
        self.forger.sent += 1;
        self.model.hosts[to].tally.given += 1;
        self.model.arriving = Some(Arriving::nothing("forged", seen.psn));
        self.model.calls += 1;
        let mut app = AppView { model: &mut self.model, host: to };
        let disposition = self.endpoints[to].on_frame(Nanos(self.now), &[frame], &mut app);
        self.model.arriving = None;
        self.on_forged_frame(to, frame);
        if self.model.trace {
            say(format_args!("{:>12} host {to} <- forged, before PSN {}: {disposition:?}", self.now, seen.psn));
        }
        let is_refused = disposition == Disposition::Dropped(DropReason::OtherSourcePort);
        demand!(is_refused, "forged", "a forged frame before PSN {} is {disposition:?}", seen.psn);
        Ok(())
    }

    /// The genuine request is no repetition: one in its place is due, or early.
    fn is_not_behind(&mut self, at: usize, to: usize, seen: &Seen<'_>) -> bool {
        let stream = &mut self.model.connections[at].ends[1 - to].stream;
        let psn = stream.unwrap_psn(seen.psn);
        // Packets of an unreliable connection that come late are as many behind.
        psn >= if seen.service == Service::Unreliable { stream.inbox.expected } else { stream.expected().1 }
    }

    /// The receiver certainly knows the port of this life's packets, and that it is no past one's.
    fn knows_port(&mut self, at: usize, to: usize, seen: &Seen<'_>) -> bool {
        let connection = &mut self.model.connections[at];
        match seen.service {
            Service::Reliable => {
                let is_certain = !self.earlier.is_on() || self.earlier.changes_port(1 - to);
                // Requests and answers of a host come from one port: either shows it.
                is_certain && [true, false].map(|of| connection.knows_port(1 - to, of)).contains(&Port::Known)
            }
            Service::Unreliable => self.forger.heard.contains(&(connection.life, to)),
            Service::Datagram => false,
        }
    }
}
