//! Target `datagram`: services that answer nothing, any packets of theirs and any work, every
//! packet with a right ICRC.
//!
//! Nothing that arrives is answered; packets sent agree with the posted work, each PSN once and in
//! order; receives complete once each and in order; no more is written than came.

use roced_transport::{
    psn::Psn,
    qp::ServiceType,
    reject::Disposition,
    wire::{Opcode, Position},
};

use crate::{
    completer::Model,
    input::Input,
    packet::{self, Step, flags},
    world::{World, qpn},
};

/// Steps of one run.
const STEPS_MAX: usize = 300;

/// Bytes in front of a datagram in its buffer.
const GRH_BYTES: usize = 40;

/// Kinds of steps, by their first byte.
pub(crate) mod kind {
    pub(crate) const PACKET: u8 = 0;
    pub(crate) const POST: u8 = 8;
    pub(crate) const RECV: u8 = 9;
    pub(crate) const TRANSMIT: u8 = 10;
    pub(crate) const RECORDED: u8 = 15;
}

/// Packets that the peer has sent.
#[derive(Debug)]
struct Peer {
    next: Psn,
    sent_bytes: u64,
    /// Bytes of the message under way that are left.
    left: usize,
}

/// One run.
pub(crate) fn run(bytes: &[u8]) {
    let mut input = Input(bytes);
    let service = if bytes.first().is_some_and(|first| first & 8 != 0) { ServiceType::Ud } else { ServiceType::Uc };
    let mut world = World::new(service, &mut input);
    let mut model = Model::new(service, &world);
    let mut peer = Peer { next: world.first_psn(), sent_bytes: 0, left: 0 };
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        match input.byte() % 16 {
            0..8 => peer.send(&mut world, Step::read(&mut input)),
            kind::POST => model.post(&mut world, &mut input),
            kind::RECV => world.post_recv(&mut input),
            kind::TRANSMIT..12 => world.transmit(input.byte(), |packet| model.hear(packet)),
            12 => world.time(input.byte()),
            13 => {
                world.control(input.byte());
                model.unseen |= world.unreachable;
            }
            14 if world.has_failed() => {
                world.rest(|packet| model.hear(packet));
                model.check(&world.client.ended, world.local_done);
                world.connect();
                world.client.ended.clear();
                model = Model::new(service, &world);
                peer = Peer { next: world.first_psn(), left: 0, ..peer };
            }
            14 if world.shares => peer.sent_bytes += world.steal(input.byte()),
            14 => {}
            _ => peer.send_recorded(&mut world, &mut input),
        }
        assert!(world.client.written <= peer.sent_bytes, "no more is written than was sent");
    }
    world.end(|packet| model.hear(packet));
    model.check(&world.client.ended, world.local_done);
}

impl Peer {
    fn send(&mut self, world: &mut World, step: Step) {
        let payload = match step.payload {
            Step::MTU => world.mtu(),
            Step::LEFT => self.left.min(world.mtu()),
            bytes => usize::from(bytes) % (world.mtu() + 64),
        };
        let psn = if step.flags & flags::ABSOLUTE != 0 {
            Psn::new(step.length)
        } else {
            self.next.plus(i32::from(step.psn).cast_unsigned())
        };
        self.sent_bytes += (GRH_BYTES + payload) as u64;
        // Its fate is not reported: an orderly peer goes on.
        let in_turn = psn == self.next;
        if world.deliver(step, psn, payload) == Disposition::Accepted || in_turn {
            self.next = psn.plus(1);
            let begins = Opcode(step.opcode).info().is_some_and(|info| info.position == Position::First);
            let total = if begins { step.length as usize } else { self.left };
            self.left = total.saturating_sub(payload);
        }
    }

    /// A frame as it was recorded, put into this conversation.
    fn send_recorded(&mut self, world: &mut World, input: &mut Input<'_>) {
        let bytes = usize::from(input.u16()) % 5000;
        let distance = i32::from(input.byte().cast_signed());
        let mut frame = input.take(bytes).to_vec();
        let psn = self.next.plus(distance.cast_unsigned());
        if packet::readdress(&mut frame, qpn(), psn).is_some() {
            self.sent_bytes += frame.len() as u64;
            if world.give(&[&frame]) == Disposition::Accepted {
                self.next = psn.plus(1);
            }
        }
    }
}
