//! Packets of peers: mostly continuations of their state, sometimes arbitrary ones. The ICRC is
//! always right.

use roced_transport::{
    io::FrameMut,
    mr::MrKey,
    partition::Pkey,
    psn::Psn,
    qp::ServiceType,
    reject::{Disposition, DropReason},
    wire::{
        Aeth, AtomicAck, AtomicEth, Bth, Deth, Feth, Headers, Ieth, Opcode, OpcodeInfo, Operation, Position, Reth,
        Service, opcode,
    },
};
use roced_types::Qpn;

use crate::{GROUP, OUR_QKEY, PEER, QPS, UNKNOWN_PEER, US, World, path, qpn};

impl World {
    pub(crate) fn frame(&mut self) {
        let index = self.random.below(QPS.into()) as u32;
        let peer = 0x100 + index;
        let mtu = self.tap.mtus.get(&peer).copied().unwrap_or(256);
        let polite = !self.random.once_in(20);
        let (opcode, is_request) = self.opcode(index, polite);
        let info = opcode.info().expect("known");
        let near = if is_request { self.tap.answered.get(&peer) } else { self.tap.requested.get(&peer) };
        let near = near.copied().unwrap_or_default();
        let psn = self.psn(near, is_request, polite);
        let payload = match (info.payload, info.position) {
            (false, _) => 0,
            _ if polite && info.operation == Operation::AtomicWrite => 8,
            (_, Position::First | Position::Middle) if polite => mtu.min(4096),
            (_, Position::Last) if polite => self.message[index as usize].map_or(1, |(_, left)| left.min(mtu)),
            _ => self.random.below(mtu.min(4096) as u64 + if polite { 1 } else { 40 }) as usize,
        };
        let length = match self.random.below(if polite { 300 } else { 8 }) {
            0 => u32::MAX,
            1 => 1 << 31,
            2 => 0,
            3 => self.random.next() as u32,
            _ if info.position == Position::Only && info.payload => payload as u32,
            _ if info.position == Position::First => (payload + 1) as u32 + self.random.below(1000) as u32,
            _ => self.random.below(6000) as u32,
        };
        let length = if polite && info.operation == Operation::Flush { length.min(1000) } else { length };
        let mr = if polite { 0 } else { self.random.below(5) };
        let va =
            0x10_0000 * mr + if self.random.once_in(30) { self.random.next() << 40 } else { self.random.below(2000) };
        let alignment = if self.random.once_in(20) { 0 } else { 7 };
        let va = if info.operation == Operation::AtomicWrite { va & !alignment } else { va };
        let reth = Reth { va, rkey: MrKey((mr as u32) << 8 | 1), length };
        let aeth = self.aeth();
        let to_group = info.has_deth && self.random.once_in(4);
        let dest_qpn = match self.random.below(50) {
            0 => qpn(7),
            1..26 if to_group => Qpn::MULTICAST,
            _ => qpn(index),
        };
        let headers = Headers {
            bth: Bth {
                solicited: self.random.once_in(2),
                pkey: Pkey(if polite { 0xffff } else { self.random.of(&[0x7fff, 0x7ffe, 0]) }),
                ack_request: self.random.once_in(2),
                becn: self.frames.is_multiple_of(3),
                ..Bth::new(opcode, dest_qpn, psn)
            },
            deth: info.has_deth.then_some(Deth { qkey: if polite { OUR_QKEY } else { 1 }, source_qpn: Qpn::GSI }),
            feth: info.has_feth.then(|| {
                Feth::from_bytes(&[0, 0, 0, if polite { 1 } else { self.random.of(&[0x11, 0, 2, 0x21, 0xff]) }])
            }),
            reth: info.has_reth.then_some(reth),
            atomic: info.has_atomic.then_some(AtomicEth {
                va: va & !alignment,
                rkey: reth.rkey,
                swap_or_add: 1,
                compare: 2,
            }),
            aeth: info.has_aeth.then_some(aeth),
            atomic_ack: info.has_atomic_ack.then_some(AtomicAck { original: 5 }),
            imm: info.has_imm.then_some([4; 4]),
            ieth: info.has_ieth.then_some(Ieth { rkey: if polite { MrKey(1 << 8 | 1) } else { reth.rkey } }),
        };
        let is_unknown = self.random.once_in(20);
        let destination = match self.random.once_in(50) {
            _ if to_group => GROUP,
            true => UNKNOWN_PEER,
            false => US,
        };
        // The mark of a congested switch.
        let class = if self.frames.is_multiple_of(4) { 3 } else { 0 };
        let path = path(if is_unknown { UNKNOWN_PEER } else { PEER }, destination).with_class(class, 0);
        let mut bytes = vec![3; path.frame_bytes(&headers, payload)];
        path.fill(&mut FrameMut::single(&mut bytes), &headers, payload, |_| Ok(())).expect("filled");
        let disposition = self.endpoint.on_frame(self.now, &[&bytes], &mut self.client);
        self.frames += 1;
        self.accepted += u64::from(disposition == Disposition::Accepted);
        let both = to_group && dest_qpn == Qpn::MULTICAST;
        assert!(
            both || !to_group || matches!(disposition, Disposition::Dropped(_)),
            "an address and a number that differ"
        );
        if info.service == Service::Ud {
            return;
        }
        assert!(!is_unknown || matches!(disposition, Disposition::Dropped(_)), "an unknown peer is not heard");
        if info.service == Service::Cnp {
            return;
        }
        if info.service == Service::Uc && disposition != Disposition::Accepted {
            // A peer without an answer continues, for any fate of its packets; a late or repeated
            // packet is an earlier one.
            // So is one of an unlikely place.
            let is_elsewhere = [DropReason::Duplicate, DropReason::BeyondWindow].map(Disposition::Dropped);
            if !is_elsewhere.contains(&disposition) {
                self.tap.answered.insert(peer, psn.plus(1));
                self.message[index as usize] = None;
            }
        } else if is_request && disposition == Disposition::Accepted {
            let packets = if info.operation == Operation::ReadRequest { length.div_ceil(mtu as u32).max(1) } else { 1 };
            self.tap.answered.insert(peer, psn.plus(packets));
            self.continue_message(index, info, payload, length);
        }
        assert_ne!(disposition, Disposition::Dropped(DropReason::BadIcrc), "all have a right ICRC");
    }

    /// A PSN near the next one of the peer, or an arbitrary one.
    fn psn(&mut self, near: Psn, is_request: bool, polite: bool) -> Psn {
        match self.random.below(if polite { 40 } else { 10 }) {
            0 => Psn::new(self.random.next() as u32),
            1 => near.plus(self.random.below(20) as u32),
            2..5 => near.minus(self.random.below(20) as u32),
            _ if is_request => near,
            _ => near.minus(1 + self.random.below(4) as u32),
        }
    }

    /// An ACK, or sometimes one of the NAKs and reserved syndromes.
    fn aeth(&mut self) -> Aeth {
        let syndromes =
            [0x20, 0x21, 0x21, 0x21, 0x3f, 0x60, 0x60, 0x60, 0x60, 0x60, 0x61, 0x62, 0x63, 0x64, 0x7f, 0xff];
        let syndrome = if self.random.once_in(8) { self.random.of(&syndromes) } else { 0x1f };
        Aeth::from_bytes(&[syndrome, 0, 0, 9])
    }

    /// The state of the peer's message behind an accepted packet of it.
    fn continue_message(&mut self, index: u32, info: &OpcodeInfo, payload: usize, length: u32) {
        let left = match self.message[index as usize] {
            Some((_, left)) => left.saturating_sub(payload),
            None => (length as usize).saturating_sub(payload),
        };
        self.message[index as usize] = Some((info.operation, left))
            .filter(|_| info.payload && matches!(info.position, Position::First | Position::Middle));
    }

    /// A packet that fits the peer's state, if it is polite.
    fn opcode(&mut self, index: u32, polite: bool) -> (Opcode, bool) {
        let opcode = if polite && self.service(index) == ServiceType::Ud {
            self.random.of(&[opcode::UD_SEND_ONLY, opcode::UD_SEND_ONLY_IMM])
        } else if polite && self.service(index) == ServiceType::Uc {
            let (operation, position) = match self.message[index as usize] {
                Some((operation, left)) => {
                    let mtu = self.tap.mtus.get(&(0x100 + index)).copied().unwrap_or(256);
                    (operation, if left > mtu { Position::Middle } else { Position::Last })
                }
                None => {
                    let operation = self.random.of(&[Operation::Send, Operation::Write]);
                    (operation, self.random.of(&[Position::First, Position::Only]))
                }
            };
            opcode::uc(operation, position, position.ends() && self.random.once_in(2))
        } else if polite {
            match (self.random.below(3), self.message[index as usize]) {
                (0, _) => self.random.of(&[
                    opcode::RC_ACK,
                    opcode::RC_ACK,
                    opcode::RC_READ_RESPONSE_FIRST,
                    opcode::RC_READ_RESPONSE_MIDDLE,
                    opcode::RC_READ_RESPONSE_LAST,
                    opcode::RC_READ_RESPONSE_ONLY,
                    opcode::RC_ATOMIC_ACK,
                ]),
                (_, Some((operation, left))) => {
                    let mtu = self.tap.mtus.get(&(0x100 + index)).copied().unwrap_or(256);
                    let position = if left > mtu { Position::Middle } else { Position::Last };
                    opcode::rc(operation, position, position == Position::Last && self.random.once_in(2))
                }
                // It ends the queue pair more often than not: its key is seldom there.
                _ if self.random.once_in(40) => opcode::RC_SEND_ONLY_INVALIDATE,
                _ => self.random.of(&[
                    opcode::RC_SEND_FIRST,
                    opcode::RC_SEND_ONLY,
                    opcode::RC_SEND_ONLY_IMM,
                    opcode::RC_WRITE_FIRST,
                    opcode::RC_WRITE_ONLY,
                    opcode::RC_WRITE_ONLY_IMM,
                    opcode::RC_READ_REQUEST,
                    opcode::RC_COMPARE_SWAP,
                    opcode::RC_FETCH_ADD,
                    opcode::RC_FLUSH,
                    opcode::RC_ATOMIC_WRITE,
                ]),
            }
        } else {
            loop {
                let codes = self.random.of(&[0x20, 0x20, 0x30, 0x100]);
                let opcode = Opcode(self.random.below(codes) as u8);
                // Those that nothing builds yet.
                if opcode.info().is_some_and(|info| !(info.has_rdeth || info.has_xrceth)) {
                    break opcode;
                }
            }
        };
        (opcode, !opcode.info().expect("known").operation.is_response())
    }
}
