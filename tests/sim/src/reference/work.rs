//! A send work request, and the packets that it becomes.

use super::{packet::Packet, wire};
use crate::frame::{AtomicEth, Reth};

/// Operation of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Send,
    Write,
    Read,
    CompareSwap,
    FetchAdd,
    /// An opcode that the specification gives no meaning, as masked atomic operations of some
    /// adapters have it.
    Reserved(u8),
}

/// A send work request.
#[derive(Clone, Debug)]
pub(crate) struct Work {
    pub(crate) id: u64,
    pub(crate) op: Op,
    pub(crate) imm: Option<[u8; 4]>,
    pub(crate) solicited: bool,
    pub(crate) signaled: bool,
    pub(crate) fenced: bool,
    /// Where its bytes are in the source, or where the bytes that it brings go in the sink.
    pub(crate) local: u32,
    pub(crate) length: u32,
    pub(crate) remote_va: u64,
    pub(crate) rkey: u32,
    pub(crate) swap_or_add: u64,
    pub(crate) compare: u64,
}

/// A work request with its PSNs.
#[derive(Clone, Debug)]
pub(crate) struct Posted {
    pub(crate) work: Work,
    pub(crate) first: u64,
    pub(crate) end: u64,
    /// Its number, from 1 on: the SSN.
    pub(crate) ssn: u64,
}

impl Op {
    /// It has an answer of its own; no ACK ends it.
    pub(crate) const fn is_answered(self) -> bool {
        matches!(self, Self::Read | Self::CompareSwap | Self::FetchAdd)
    }

    pub(crate) const fn is_atomic(self) -> bool {
        matches!(self, Self::CompareSwap | Self::FetchAdd)
    }
}

impl Work {
    pub(crate) const fn takes_receive(&self) -> bool {
        matches!(self.op, Op::Send) || self.imm.is_some()
    }

    /// PSNs that it takes.
    pub(crate) const fn psns(&self, mtu: u32) -> u64 {
        let packets = self.length.div_ceil(mtu) as u64;
        if packets == 0 || self.op.is_atomic() { 1 } else { packets }
    }
}

impl Posted {
    /// Packet `psn` of it as a requester sends it, without destination and AckReq. Of a READ: the
    /// request for `count` responses from there on.
    pub(crate) fn packet(&self, psn: u64, count: u64, mtu: u32, source: &[u8]) -> Packet {
        let work = &self.work;
        let skip = (psn - self.first) as u32 * mtu;
        let left = work.length.saturating_sub(skip);
        let (begins, ends) = (psn == self.first, psn + 1 == self.end);
        let reth = Reth { va: work.remote_va, rkey: work.rkey, length: work.length };
        let mut packet = Packet { psn: wire(psn), ..Packet::default() };
        match work.op {
            Op::Read => {
                packet.opcode = 0x0c;
                let length = left.min((count as u32).saturating_mul(mtu));
                packet.reth = Some(Reth { va: work.remote_va + u64::from(skip), length, ..reth });
                return packet;
            }
            Op::CompareSwap | Op::FetchAdd => {
                packet.opcode = if work.op == Op::FetchAdd { 0x14 } else { 0x13 };
                let compare = if work.op == Op::FetchAdd { 0 } else { work.compare };
                packet.atomic =
                    Some(AtomicEth { va: work.remote_va, rkey: work.rkey, swap_or_add: work.swap_or_add, compare });
                return packet;
            }
            Op::Reserved(opcode) => {
                packet.opcode = opcode;
                packet.payload = source[work.local as usize..][..work.length as usize].to_vec();
                return packet;
            }
            Op::Send | Op::Write => {}
        }
        let base = if work.op == Op::Send { 0x00 } else { 0x06 };
        packet.opcode = base
            + match (begins, ends, work.imm.is_some()) {
                (true, false, _) => 0,
                (false, false, _) => 1,
                (false, true, false) => 2,
                (false, true, true) => 3,
                (true, true, false) => 4,
                (true, true, true) => 5,
            };
        packet.reth = (work.op == Op::Write && begins).then_some(reth);
        packet.imm = work.imm.filter(|_| ends);
        packet.solicited = work.solicited && ends && work.takes_receive();
        packet.payload = source[(work.local + skip) as usize..][..left.min(mtu) as usize].to_vec();
        packet
    }
}
