//! A packet of a reliable connection: a frame taken apart, and built.

use super::icrc::icrc;
use crate::{
    frame::{self, Aeth, AtomicEth, Kind, Reth},
    host::gid,
    service::Service,
};

/// Content of a frame.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Packet {
    pub(crate) opcode: u8,
    pub(crate) solicited: bool,
    pub(crate) mig_req: bool,
    pub(crate) ack_request: bool,
    pub(crate) dest_qpn: u32,
    pub(crate) psn: u32,
    pub(crate) reth: Option<Reth>,
    pub(crate) atomic: Option<AtomicEth>,
    pub(crate) aeth: Option<Aeth>,
    pub(crate) original: Option<u64>,
    pub(crate) imm: Option<[u8; 4]>,
    pub(crate) payload: Vec<u8>,
}

/// Source and destination of a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Addresses {
    pub(crate) from: usize,
    pub(crate) ipv6: bool,
    pub(crate) udp_source_port: u16,
}

impl Packet {
    /// Takes a frame apart; `None` when its ICRC does not hold or it is none of a reliable
    /// connection.
    pub(crate) fn parse(frame: &[u8]) -> Option<Self> {
        let (body, sum) = frame.split_last_chunk::<4>()?;
        if icrc(body, frame::bth_at(frame)) != *sum {
            return None;
        }
        Self::parse_unchecked(frame)
    }

    /// As [`Self::parse`], of a frame of which the ICRC has been checked.
    pub(crate) fn parse_unchecked(frame: &[u8]) -> Option<Self> {
        let seen = frame::parse(frame).filter(|seen| seen.service == Service::Reliable)?;
        Some(Self {
            opcode: seen.opcode,
            solicited: seen.solicited,
            mig_req: frame[frame::bth_at(frame) + 1] & 0x40 != 0,
            ack_request: seen.ack_request,
            dest_qpn: seen.dest_qpn,
            psn: seen.psn,
            reth: seen.reth,
            atomic: seen.atomic,
            aeth: seen.aeth,
            original: seen.original,
            imm: seen.imm,
            payload: seen.payload.to_vec(),
        })
    }

    /// The frame that says this.
    pub(crate) fn build(&self, addresses: &Addresses) -> Vec<u8> {
        let mut transport = Vec::with_capacity(64 + self.payload.len());
        let pad = (4 - self.payload.len() % 4) % 4;
        transport.push(self.opcode);
        transport.push(u8::from(self.solicited) << 7 | u8::from(self.mig_req) << 6 | (pad as u8) << 4);
        transport.extend([0xff, 0xff]);
        transport.extend(self.dest_qpn.to_be_bytes());
        transport.extend((u32::from(self.ack_request) << 31 | self.psn).to_be_bytes());
        if let Some(Reth { va, rkey, length }) = self.reth {
            transport.extend(va.to_be_bytes());
            transport.extend(rkey.to_be_bytes());
            transport.extend(length.to_be_bytes());
        }
        if let Some(AtomicEth { va, rkey, swap_or_add, compare }) = self.atomic {
            transport.extend(va.to_be_bytes());
            transport.extend(rkey.to_be_bytes());
            transport.extend(swap_or_add.to_be_bytes());
            transport.extend(compare.to_be_bytes());
        }
        if let Some(Aeth { syndrome, msn }) = self.aeth {
            transport.extend((u32::from(syndrome) << 24 | msn).to_be_bytes());
        }
        transport.extend(self.original.iter().flat_map(|original| original.to_be_bytes()));
        transport.extend(self.imm.into_iter().flatten());
        transport.extend(&self.payload);
        transport.extend(std::iter::repeat_n(0, pad));
        let mut frame = head(addresses, transport.len() as u16 + 4);
        let bth = frame.len();
        frame.extend(transport);
        let sum = icrc(&frame, bth);
        frame.extend(sum);
        frame
    }

    /// The kind that its opcode names, and whether it begins and ends a message.
    pub(crate) fn kind(&self) -> (Kind, bool, bool) {
        frame::kind(self.opcode).expect("only known opcodes are parsed and built")
    }

    pub(crate) fn is_request(&self) -> bool {
        !matches!(self.kind().0, Kind::ReadResponse | Kind::Ack | Kind::AtomicAck)
    }
}

/// Ethernet, IP and UDP headers in front of so many bytes, ICRC included.
fn head(addresses: &Addresses, bytes: u16) -> Vec<u8> {
    let Addresses { from, ipv6, udp_source_port } = *addresses;
    let mut head = vec![2, 0, 0, 0, 0, 1 - from as u8, 2, 0, 0, 0, 0, from as u8];
    let udp_bytes = 8 + bytes;
    if ipv6 {
        head.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        head.extend(udp_bytes.to_be_bytes());
        head.extend([17, 64]);
        head.extend(gid(from, true));
        head.extend(gid(1 - from, true));
    } else {
        head.extend([0x08, 0x00, 0x45, 0]);
        head.extend((20 + udp_bytes).to_be_bytes());
        head.extend([0, 0, 0x40, 0, 64, 17, 0, 0]);
        head.extend(&gid(from, false)[12..]);
        head.extend(&gid(1 - from, false)[12..]);
        let mut sum: u32 = head[14..34].chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        head[24..26].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    }
    head.extend(udp_source_port.to_be_bytes());
    head.extend(4791u16.to_be_bytes());
    head.extend(udp_bytes.to_be_bytes());
    head.extend([0, 0]);
    head
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_packets_parse_to_the_same_fields() {
        for ipv6 in [false, true] {
            let packet = Packet {
                opcode: 0x0b,
                mig_req: true,
                ack_request: true,
                dest_qpn: 0x01_0203,
                psn: 0x00ff_fffe,
                reth: Some(Reth { va: 0x1234_5678_9abc, rkey: 7, length: 5 }),
                imm: Some([1, 2, 3, 4]),
                payload: vec![9; 5],
                ..Packet::default()
            };
            let frame = packet.build(&Addresses { from: 1, ipv6, udp_source_port: 0xc123 });
            assert_eq!(Packet::parse(&frame), Some(packet), "ipv6 {ipv6}");
            let mut wrong = frame.clone();
            *wrong.last_mut().expect("a frame") ^= 1;
            assert_eq!(Packet::parse(&wrong), None, "an ICRC that does not hold");
        }
    }
}
