//! Target `responder`: any sequence of requests, every one with a right ICRC, against a whole
//! endpoint.
//!
//! Its answers are checked from outside: it acknowledges nothing that was not offered, its ACKs do
//! not go back, a NAK names a PSN that comes next, a READ response carries the bytes that a READ at
//! that PSN asked for, an ATOMIC ACK tells the same of its PSN each time and of no other, and no
//! more is written than was sent.

use std::collections::BTreeMap;

use roced_transport::{
    psn::Psn,
    qp::ServiceType,
    reject::Disposition,
    wire::{NakCode, Opcode, Operation, Packet, Position, Syndrome},
};
use roced_types::access;

use crate::{
    client::byte_at,
    input::Input,
    packet::{self, Step, flags},
    shared::GRH_BYTES,
    world::{World, mr, qpn},
};

/// Steps of one run.
const STEPS_MAX: usize = 300;

/// Kinds of steps, by their first byte.
pub(crate) mod kind {
    pub(crate) const PACKET: u8 = 0;
    pub(crate) const RECV: u8 = 9;
    pub(crate) const TRANSMIT: u8 = 10;
    pub(crate) const RECORDED: u8 = 15;
}

/// A READ that was asked for.
#[derive(Clone, Copy, Debug)]
struct Asked {
    psn: Psn,
    packets: u32,
    mr: u32,
    skip: u64,
    length: u32,
}

/// Packets that the peer has sent, and answers that it had.
#[derive(Debug)]
struct Peer {
    first: Psn,
    mtu: usize,
    /// Where an orderly peer would go on.
    next: Psn,
    /// Packets that wait for their turn, and behind which it would go on: PSN and PSNs that it
    /// takes.
    held: BTreeMap<u32, u32>,
    /// PSNs that were offered, as ranges of offsets from the first; those that leave no gap are in
    /// `whole`.
    offered: Vec<(u32, u32)>,
    whole: u32,
    acknowledged: u32,
    asked: Vec<Asked>,
    /// Original values of atomic operations, by the PSN of their answer.
    found: BTreeMap<u32, u64>,
    /// PSNs of atomic requests, and the operations that were carried out before the first of them.
    atomics: Vec<Psn>,
    atomics_before: u64,
    sent_bytes: u64,
    /// Bytes of the message under way that are left.
    left: usize,
}

/// One run.
pub(crate) fn run(bytes: &[u8]) {
    let mut input = Input(bytes);
    let mut world = World::new(ServiceType::Rc, &mut input);
    let mut peer = Peer::new(&world);
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        match input.byte() % 16 {
            0..9 => peer.send(&mut world, Step::read(&mut input)),
            kind::RECV => world.post_recv(&mut input),
            kind::TRANSMIT..12 => world.transmit(input.byte(), |packet| peer.hear(packet)),
            12 => world.time(input.byte()),
            13 => world.control(input.byte()),
            14 if world.has_failed() => {
                world.connect();
                world.tap.drain(|_| ());
                peer = Peer::new(&world);
            }
            14 if world.shares => peer.sent_bytes += world.steal(input.byte()),
            14 => {}
            _ => peer.send_recorded(&mut world, &mut input),
        }
        assert!(world.client.written <= peer.sent_bytes, "no more is written than was sent");
        let atomics = world.client.atomics - peer.atomics_before;
        assert!(atomics <= peer.atomics.len() as u64, "each atomic request is executed once at most");
    }
    world.end(|packet| peer.hear(packet));
}

impl Peer {
    fn new(world: &World) -> Self {
        Self {
            first: world.first_psn(),
            mtu: world.mtu(),
            next: world.first_psn(),
            held: BTreeMap::new(),
            offered: Vec::new(),
            whole: 0,
            acknowledged: 0,
            asked: Vec::new(),
            found: BTreeMap::new(),
            atomics: Vec::new(),
            atomics_before: world.client.atomics,
            sent_bytes: world.client.written,
            left: 0,
        }
    }

    fn send(&mut self, world: &mut World, step: Step) {
        let payload = match step.payload {
            Step::MTU => self.mtu,
            Step::LEFT => self.left.min(self.mtu),
            bytes => usize::from(bytes) % (self.mtu + 64),
        };
        let psn = if step.flags & flags::ABSOLUTE != 0 {
            Psn::new(step.length)
        } else {
            self.next.plus(i32::from(step.psn).cast_unsigned())
        };
        let info = Opcode(step.opcode).info();
        if info.is_some_and(|info| info.operation == Operation::Cnp) {
            world.deliver(step, psn, payload);
            return;
        }
        let packets = match info {
            Some(info) if info.has_reth && info.operation == Operation::ReadRequest => {
                let (mr, skip) = (u32::from(step.mr & 7), u64::from(step.va) * if step.mr & 0x80 != 0 { 1 } else { 8 });
                let packets = step.length.div_ceil(self.mtu as u32).max(1);
                self.asked.push(Asked { psn, packets, mr, skip, length: step.length });
                packets
            }
            Some(info) if matches!(info.operation, Operation::Flush | Operation::AtomicWrite) => {
                // Answered by a READ response of no bytes.
                self.asked.push(Asked { psn, packets: 1, mr: u32::from(step.mr & 7), skip: 0, length: 0 });
                1
            }
            _ => 1,
        };
        if info.is_some_and(|info| info.has_atomic) && !self.atomics.contains(&psn) {
            self.atomics.push(psn);
        }
        self.offer(psn, packets);
        // To another queue pair it may be a datagram, which comes behind its header.
        let header = if step.flags & flags::OTHER_QP != 0 { GRH_BYTES } else { 0 };
        self.sent_bytes += header + payload as u64;
        let disposition = world.deliver(step, psn, payload);
        if disposition == Disposition::Buffered {
            self.held.insert(psn.get(), packets);
        }
        if disposition == Disposition::Accepted && psn == self.next {
            self.next = psn.plus(packets);
            while let Some(packets) = self.held.remove(&self.next.get()) {
                self.next = self.next.plus(packets);
            }
            let total = if info.is_some_and(|info| info.position == Position::First) {
                step.length as usize
            } else {
                self.left
            };
            self.left = total.saturating_sub(payload);
        }
    }

    /// A frame as it was recorded, put into this conversation.
    fn send_recorded(&mut self, world: &mut World, input: &mut Input<'_>) {
        let bytes = usize::from(input.u16()) % 5000;
        let distance = i32::from(input.byte().cast_signed());
        let mut frame = input.take(bytes).to_vec();
        let psn = self.next.plus(distance.cast_unsigned());
        if packet::readdress(&mut frame, qpn(), psn).is_none() {
            return;
        }
        let pieces = [&frame[..]];
        let Ok(packet) = roced_transport::wire::parse(&pieces) else {
            world.give(&pieces);
            return;
        };
        let packets = match (packet.info.operation, packet.reth) {
            (Operation::ReadRequest, Some(reth)) => {
                let packets = reth.length.div_ceil(self.mtu as u32).max(1);
                let region = reth.rkey.0 >> 8;
                self.asked.push(Asked {
                    psn,
                    packets,
                    mr: region,
                    skip: reth.va.wrapping_sub(mr(region).va),
                    length: reth.length,
                });
                packets
            }
            (Operation::Flush | Operation::AtomicWrite, Some(reth)) => {
                self.asked.push(Asked { psn, packets: 1, mr: reth.rkey.0 >> 8, skip: 0, length: 0 });
                1
            }
            _ => 1,
        };
        if packet.atomic.is_some() && !self.atomics.contains(&psn) {
            self.atomics.push(psn);
        }
        self.offer(psn, packets);
        self.sent_bytes += packet.payload_len() as u64;
        if world.give(&pieces) == Disposition::Accepted && distance == 0 {
            self.next = psn.plus(packets);
        }
    }

    fn offer(&mut self, psn: Psn, packets: u32) {
        let begin = psn.offset_from(self.first);
        self.offered.push((begin, begin + packets));
        while let Some(at) = self.offered.iter().position(|(begin, _)| *begin <= self.whole) {
            let (_, end) = self.offered.swap_remove(at);
            self.whole = self.whole.max(end);
        }
    }

    /// Answers of the transport are true.
    fn hear(&mut self, packet: &Packet<'_>) {
        let psn = packet.bth.psn;
        match packet.info.operation {
            Operation::Ack => {
                let syndrome = packet.aeth.expect("an ACK has one").syndrome;
                // IBTA v1 9.7.5.2.6: in the place of a READ response that cannot be given, also
                // where the READ is asked for again.
                if syndrome == Syndrome::Nak(NakCode::RemoteAccess)
                    && self.asked.iter().any(|asked| psn.offset_from(asked.psn) < asked.packets)
                {
                    return;
                }
                let is_ack = matches!(syndrome, Syndrome::Ack { .. });
                let next = if is_ack { psn.plus(1) } else { psn }.offset_from(self.first);
                assert!(next <= self.whole, "{next} of {} is acknowledged by {syndrome:?}", self.whole);
                assert!(next >= self.acknowledged, "after {} it goes back to {next}", self.acknowledged);
                self.acknowledged = next;
            }
            Operation::ReadResponse => {
                let fits = self.asked.iter().any(|asked| asked.is_answered_by(packet, self.mtu));
                assert!(fits, "a request asked for the READ response of {psn}");
            }
            Operation::AtomicAck => {
                assert!(self.atomics.contains(&psn), "a request asked for {psn}");
                let found = packet.atomic_ack.expect("an ATOMIC ACK has one").original;
                let first = *self.found.entry(psn.get()).or_insert(found);
                assert_eq!(found, first, "{psn} is told the same again");
                assert_eq!(self.found.values().filter(|other| **other == found).count(), 1, "{found} is told once");
            }
            other => panic!("a responder does not send {other:?}"),
        }
    }
}

impl Asked {
    /// The response brings the bytes that were asked for at its PSN, from a region that may be
    /// read.
    fn is_answered_by(&self, packet: &Packet<'_>, mtu: usize) -> bool {
        let at = packet.bth.psn.offset_from(self.psn);
        let mr = mr(self.mr);
        let done = u64::from(at) * mtu as u64;
        if at >= self.packets || packet.payload_len() as u64 != (u64::from(self.length) - done).min(mtu as u64) {
            return false;
        }
        let from = mr.offset.wrapping_add(self.skip).wrapping_add(done);
        let readable = self.length == 0 || mr.access & access::REMOTE_READ != 0;
        readable && packet.payload().flatten().zip(from..).all(|(byte, offset)| *byte == byte_at(mr.object, offset))
    }
}
