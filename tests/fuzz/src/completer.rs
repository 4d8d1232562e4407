//! Target `completer`: work of a client, then any sequence of ACKs, NAKs, READ responses, ATOMIC
//! ACKs and time, every packet with a right ICRC.
//!
//! PSNs follow from the posted work, so the contents of each request packet are known from outside,
//! and so are the answers that must have come before a send may succeed. Data of a READ goes where
//! that READ was told to put it, and nowhere else.

use roced_transport::{
    psn::Psn,
    qp::ServiceType,
    wire::{Opcode, Operation, Packet, Position, Reth, Service, Syndrome, opcode},
    work::{DatagramTo, SendWork, WorkData},
};
use roced_types::{Qpn, SendOp, Sge, send_flags};

use crate::{
    client::{Ended, Posted},
    input::Input,
    packet::{Step, flags},
    world::{OUR_QKEY, PEER_QPN, SIZES, World, mr, mr_key, qpn},
};

/// Steps of one run.
const STEPS_MAX: usize = 300;
/// Longest message of the standard.
const MESSAGE_BYTES_MAX: u64 = 1 << 31;

const OPS: [SendOp; 12] = [
    SendOp::Write,
    SendOp::Send,
    SendOp::Read,
    SendOp::WriteImm,
    SendOp::SendImm,
    SendOp::CompareSwap,
    SendOp::FetchAdd,
    SendOp::LocalInvalidate,
    SendOp::BindWindow,
    SendOp::SendInvalidate,
    SendOp::Flush,
    SendOp::AtomicWrite,
];

/// Kinds of steps, by their first byte.
pub(crate) mod kind {
    pub(crate) const ANSWER: u8 = 0;
    pub(crate) const POST: u8 = 8;
    pub(crate) const TRANSMIT: u8 = 10;
    pub(crate) const TIME: u8 = 13;
}

/// It ends with an answer of its own.
const fn wants_answer(op: SendOp) -> bool {
    matches!(op, SendOp::Read | SendOp::CompareSwap | SendOp::FetchAdd | SendOp::Flush | SendOp::AtomicWrite)
}

/// A send as the client knows it.
#[derive(Clone, Copy, Debug)]
struct Sent {
    wr_id: u64,
    op: SendOp,
    length: u64,
    remote_va: u64,
    rkey: u32,
    /// Its PSNs, as offsets from the first of all.
    first: u32,
    packets: u32,
}

/// Work that the client posted, and answers of the peer.
#[derive(Debug)]
pub(crate) struct Model {
    service: ServiceType,
    first: Psn,
    mtu: usize,
    sent: Vec<Sent>,
    /// Behind the last PSN of all that was posted, and that anything was sent of.
    posted: u32,
    seen: u32,
    /// Any of it may have been sent without being seen.
    pub(crate) unseen: bool,
    /// Some message cannot be sent: nothing behind it ever has a PSN.
    unsent: bool,
    /// Behind the last PSN that an answer acknowledged; PSNs of READ responses and ATOMIC ACKs.
    acknowledged: u32,
    responses: Vec<u32>,
    reads: bool,
}

/// One run.
pub(crate) fn run(bytes: &[u8]) {
    let mut input = Input(bytes);
    let mut world = World::new(ServiceType::Rc, &mut input);
    world.client.only_into = Some(Vec::new());
    let mut model = Model::new(ServiceType::Rc, &world);
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        match input.byte() % 16 {
            0..8 => model.answer(&mut world, Step::read(&mut input)),
            kind::POST..10 => model.post(&mut world, &mut input),
            kind::TRANSMIT..13 => world.transmit(input.byte(), |packet| model.hear(packet)),
            kind::TIME => world.time(input.byte()),
            14 => {
                world.control(input.byte());
                model.unseen |= world.unreachable;
            }
            _ if world.has_failed() => {
                world.rest(|packet| model.hear(packet));
                model.check(&world.client.ended, world.local_done);
                world.connect();
                world.client.ended.clear();
                world.client.only_into = Some(Vec::new());
                model = Model::new(ServiceType::Rc, &world);
            }
            _ => {}
        }
    }
    world.end(|packet| model.hear(packet));
    model.check(&world.client.ended, world.local_done);
}

impl Model {
    pub(crate) fn new(service: ServiceType, world: &World) -> Self {
        Self {
            service,
            first: world.first_psn(),
            mtu: world.mtu(),
            sent: Vec::new(),
            posted: 0,
            seen: 0,
            unseen: world.unreachable,
            unsent: false,
            acknowledged: 0,
            responses: Vec::new(),
            reads: service == ServiceType::Rc && world.max_rd_atomic() > 0,
        }
    }

    pub(crate) fn post(&mut self, world: &mut World, input: &mut Input<'_>) {
        let op = input.of(&OPS);
        let brings_in = matches!(op, SendOp::Read | SendOp::CompareSwap | SendOp::FetchAdd);
        let mut flags = input.byte() & 7;
        let count = input.byte();
        let (remote_va, rkey) = (u64::from(input.u16()) << 3, u32::from(input.byte()));
        let inline = [7; SIZES.inline_bytes as usize];
        let mut sges = World::sges(input, count);
        if matches!(op, SendOp::CompareSwap | SendOp::FetchAdd) && count & 0x40 == 0 {
            sges = vec![Sge { va: mr(0).va, length: 8, lkey: mr_key(0).0 }];
        }
        let is_bare = op.is_local() || matches!(op, SendOp::Flush | SendOp::AtomicWrite);
        if is_bare {
            sges.clear();
        }
        let data = if count & 0x80 != 0 && !brings_in && !is_bare {
            flags |= send_flags::INLINE;
            WorkData::Inline(&inline[..usize::from(count & 0x3f)])
        } else {
            WorkData::Sges(&sges)
        };
        if world.endpoint.send_room(qpn()) == 0 {
            return;
        }
        let wr_id = world.wr_id;
        let work = SendWork {
            wr_id,
            op,
            flags,
            imm: [1; 4],
            remote_va,
            rkey,
            swap_or_add: remote_va ^ 5,
            compare: wr_id,
            to: self.destination(rkey),
            data,
        };
        world.endpoint.post_send(qpn(), &work).expect("there");
        world.wr_id += 1;
        let signaled = flags & send_flags::SIGNALED != 0 || world.signal_all;
        world.client.sends.push_back(Posted { wr_id, signaled });
        if brings_in && let Some(into) = &mut world.client.only_into {
            into.extend(&sges);
        }
        self.remember(&work, world);
    }

    /// Where a datagram goes: by one of the address handles, or one that there is none of, with the
    /// Q_Key of the queue pair or one that is the same.
    fn destination(&self, which: u32) -> DatagramTo {
        if self.service != ServiceType::Ud {
            return DatagramTo::NOWHERE;
        }
        let qkey = if which & 4 != 0 { 1 << 31 } else { OUR_QKEY };
        DatagramTo { ah: which & 3, qpn: Qpn::from_wire(PEER_QPN), qkey }
    }

    fn remember(&mut self, work: &SendWork<'_>, world: &World) {
        let length = match work.data {
            WorkData::Inline(bytes) => bytes.len() as u64,
            WorkData::Sges(sges) => sges.iter().map(|sge: &Sge| u64::from(sge.length)).sum(),
        };
        let is_atomic = matches!(work.op, SendOp::CompareSwap | SendOp::FetchAdd);
        let is_reliable_only = matches!(work.op, SendOp::SendInvalidate | SendOp::Flush | SendOp::AtomicWrite);
        self.unsent |= self.service == ServiceType::Ud
            && (!matches!(work.op, SendOp::Send | SendOp::SendImm)
                || matches!(work.to.ah, 1 | 2)
                || length > u64::from(world.ah_mtu(work.to.ah)));
        self.unsent |= length > MESSAGE_BYTES_MAX
            || (is_reliable_only && self.service != ServiceType::Rc)
            || (is_atomic && length != 8)
            || (wants_answer(work.op) && !self.reads);
        if self.unsent {
            return;
        }
        let packets = if work.op.is_local() { 0 } else { length.div_ceil(self.mtu as u64).max(1) as u32 };
        let SendWork { wr_id, op, remote_va, rkey, .. } = *work;
        // Offsets do not wrap: a few hundred messages, of which eight are outstanding; PSNs are
        // compared modulo 2^24.
        self.sent.push(Sent { wr_id, op, length, remote_va, rkey, first: self.posted, packets });
        self.posted = self.posted.wrapping_add(packets);
    }

    /// An answer. Its PSN counts from behind the packet sent last, or from the acknowledged PSN.
    fn answer(&mut self, world: &mut World, step: Step) {
        let base = if step.number & 0x80 != 0 { self.seen } else { self.acknowledged };
        let offset = base.wrapping_add(i32::from(step.psn).cast_unsigned());
        let psn = if step.flags & flags::ABSOLUTE != 0 { Psn::new(step.length) } else { self.first.plus(offset) };
        let payload = match step.payload {
            Step::MTU => self.mtu,
            // As long as a response at that place is.
            Step::LEFT => self
                .at(offset)
                .map_or(0, |(sent, at)| (sent.length - u64::from(at) * self.mtu as u64).min(self.mtu as u64) as usize),
            bytes => usize::from(bytes) % (self.mtu + 64),
        };
        if let Some(info) = Opcode(step.opcode).info() {
            // Requests are the responder's business, which has a target of its own.
            if info.service == Service::Rc && !info.operation.is_response() {
                return;
            }
            let offset = psn.offset_from(self.first);
            match info.operation {
                Operation::ReadResponse | Operation::AtomicAck => {
                    self.responses.push(offset);
                    self.acknowledge(offset);
                }
                Operation::Ack if matches!(Syndrome::from_byte(step.syndrome), Syndrome::Ack { .. }) => {
                    self.acknowledge(offset + 1)
                }
                Operation::Ack => self.acknowledge(offset),
                _ => {}
            }
        }
        world.deliver(step, psn, payload);
    }

    /// All before `to` is acknowledged, if it was sent: an answer to an unsent packet belongs to no
    /// request.
    fn acknowledge(&mut self, to: u32) {
        if to <= self.sent_to() {
            self.acknowledged = self.acknowledged.max(to);
        }
    }

    /// Behind the last PSN that may have been sent.
    const fn sent_to(&self) -> u32 {
        if self.unseen { self.posted } else { self.seen }
    }

    /// The message that a PSN lies in, and which of its packets it is.
    fn at(&self, offset: u32) -> Option<(&Sent, u32)> {
        let sent = self.sent.iter().find(|sent| offset.wrapping_sub(sent.first) < sent.packets)?;
        Some((sent, offset - sent.first))
    }

    /// A duplicate of no bytes, of an acknowledged packet and of its class, which asks for an ACK.
    /// One of a WRITE before the first packet asks where nothing was acknowledged yet.
    fn asks_only(&self, packet: &Packet<'_>, offset: u32) -> bool {
        if !packet.bth.ack_request || packet.payload_len() > 0 {
            return false;
        }
        let how = (packet.bth.opcode, packet.reth);
        let write = (opcode::RC_WRITE_ONLY, Some(Reth { va: 0, rkey: roced_transport::mr::MrKey(0), length: 0 }));
        let of_its_class = match self.at(offset) {
            Some((sent, _)) if !matches!(sent.op, SendOp::Write | SendOp::WriteImm) => (opcode::RC_SEND_ONLY, None),
            _ => write,
        };
        let is_acknowledged =
            offset < self.acknowledged || (offset < self.sent_to() && self.responses.contains(&offset));
        // The model may take a packet for acknowledged that the completer had reasons to doubt.
        let is_before_all = packet.bth.psn.plus(1) == self.first;
        (is_before_all && how == write) || (is_acknowledged && how == of_its_class)
    }

    /// A request agrees with the posted work.
    pub(crate) fn hear(&mut self, packet: &Packet<'_>) {
        let info = packet.info;
        assert!(!info.operation.is_response(), "the peer made no request to respond to");
        assert_eq!(info.service == Service::Rc, self.service == ServiceType::Rc);
        let offset = packet.bth.psn.offset_from(self.first);
        if self.asks_only(packet, offset) {
            return;
        }
        if self.service == ServiceType::Ud {
            let deth = packet.deth.expect("a datagram has one");
            assert_eq!((deth.qkey, deth.source_qpn, packet.bth.dest_qpn), (OUR_QKEY, qpn(), Qpn::from_wire(PEER_QPN)));
        }
        if self.service != ServiceType::Rc {
            assert!(offset == self.seen || (self.unseen && offset > self.seen), "each is sent once, in order");
        }
        let (sent, at) = self.at(offset).expect("a PSN of a message");
        let skip = u64::from(at) * self.mtu as u64;
        let mut packets = 1;
        if sent.op == SendOp::Read {
            let reth = packet.reth.expect("a READ request has one");
            assert_eq!(info.operation, Operation::ReadRequest);
            assert_eq!((reth.va, reth.rkey.0), (sent.remote_va.wrapping_add(skip), sent.rkey));
            assert!(u64::from(reth.length) <= sent.length - skip && (reth.length > 0 || sent.length == 0));
            packets = reth.length.div_ceil(self.mtu as u32).max(1);
        } else if matches!(sent.op, SendOp::CompareSwap | SendOp::FetchAdd) {
            let atomic = packet.atomic.expect("an atomic request has one");
            let operation = if sent.op == SendOp::FetchAdd { Operation::FetchAdd } else { Operation::CompareSwap };
            assert_eq!(info.operation, operation);
            assert_eq!((atomic.va, atomic.rkey.0), (sent.remote_va, sent.rkey));
            assert_eq!((atomic.swap_or_add, atomic.compare), (sent.remote_va ^ 5, sent.wr_id));
        } else if sent.op == SendOp::Flush {
            let reth = packet.reth.expect("a FLUSH has one");
            assert_eq!((info.operation, packet.feth.is_some()), (Operation::Flush, true));
            assert_eq!((reth.va, reth.rkey.0), (sent.remote_va, sent.rkey));
            assert_eq!(u64::from(reth.length), sent.remote_va ^ 5);
        } else if sent.op == SendOp::AtomicWrite {
            let reth = packet.reth.expect("an atomic WRITE has one");
            assert_eq!((info.operation, packet.payload_len()), (Operation::AtomicWrite, 8));
            assert_eq!((reth.va, reth.rkey.0, reth.length), (sent.remote_va, sent.rkey, 8));
        } else {
            let position = match (at == 0, at + 1 == sent.packets) {
                (true, true) => Position::Only,
                (true, false) => Position::First,
                (false, true) => Position::Last,
                (false, false) => Position::Middle,
            };
            let (operation, immediate) = match sent.op {
                SendOp::Send | SendOp::SendInvalidate => (Operation::Send, false),
                SendOp::SendImm => (Operation::Send, true),
                SendOp::WriteImm => (Operation::Write, true),
                _ => (Operation::Write, false),
            };
            assert_eq!((info.operation, info.position), (operation, position));
            assert_eq!(packet.imm.is_some(), immediate && position.ends());
            let invalidates = (sent.op == SendOp::SendInvalidate && position.ends()).then_some(sent.rkey);
            assert_eq!(packet.ieth.map(|ieth| ieth.rkey.0), invalidates);
            assert_eq!(packet.payload_len() as u64, (sent.length - skip).min(self.mtu as u64));
            if operation == Operation::Write && position.begins() {
                let reth = packet.reth.expect("a WRITE's first packet has one");
                assert_eq!((reth.va, reth.rkey.0, u64::from(reth.length)), (sent.remote_va, sent.rkey, sent.length));
            }
        }
        self.seen = self.seen.max(offset + packets);
    }

    /// Work that succeeded was answered; local work was done.
    pub(crate) fn check(&mut self, ended: &[Ended], local_done: u64) {
        self.responses.sort_unstable();
        let mut local = 0;
        for Ended { wr_id, .. } in ended.iter().filter(|ended| ended.success) {
            let sent = self.sent.iter().find(|sent| sent.wr_id == *wr_id).expect("it could be sent");
            let end = sent.first + sent.packets;
            local += u64::from(sent.op.is_local());
            assert!(end <= self.sent_to(), "{sent:?} succeeded and was not sent to its end");
            if wants_answer(sent.op) {
                let answered = (sent.first..end).all(|offset| self.responses.binary_search(&offset).is_ok());
                assert!(answered, "{sent:?} succeeded, and not all its answers came");
            } else if self.service == ServiceType::Rc && !sent.op.is_local() {
                assert!(end <= self.acknowledged, "{sent:?} succeeded, {} is acknowledged", self.acknowledged);
            }
        }
        assert!(local <= local_done, "{local} local work requests succeeded, {local_done} were done");
    }
}
