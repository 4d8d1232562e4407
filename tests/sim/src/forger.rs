//! A forger off the path: it knows the addresses, the queue pair numbers and, by chance, the PSNs
//! of a connection, and not the UDP source port of its packets. Its frames come right before
//! genuine ones, with other bytes. None has any effect.
//!
//! The worst that it can do is to know the very PSN that is due, in the time in which a wrong guess
//! has barred other ports, to put a request with a fault in the place of the one that is due, and to
//! refuse the very request that is under way, or put it off.

use roced_transport::{
    io::{Egress, FrameMut},
    mr::MrKey,
    psn::Psn,
    wire::{Aeth, Headers, NakCode, Path, PathSpec, Roce, Syndrome, bth::Bth, opcode, parse, reth::Reth},
};

use crate::{frame::Seen, random::Random, service::Service};

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

    /// Whether one of that life was, at that host.
    pub(crate) fn has_heard(&self, life: u32, to: usize) -> bool {
        self.heard.contains(&(life, to))
    }

    /// It is to send before a frame.
    pub(crate) fn begins(&mut self) -> bool {
        self.random.chance(self.rate)
    }

    /// Frames for the place of a genuine one. A request that `is_behind` is a repetition.
    pub(crate) fn frames(&mut self, seen: &Seen<'_>, bytes: &[u8], is_behind: bool) -> Vec<Vec<u8>> {
        if seen.is_request() && self.random.one_in(3) && !is_behind {
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
            let miss = self.random.within(nearest, nearest + 192) as u32;
            vec![
                forged(bytes, |headers, psn| headers.bth.psn = psn.plus(miss)),
                forged(bytes, |headers, _| spoil_key(headers)),
            ]
        } else {
            let syndrome = self.random.pick(&[
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
