//! Frames as a peer would build them that obeys no rule: any opcode, any field, any length, and
//! always a right ICRC.

use crc32fast::Hasher;
use roced_transport::{psn::Psn, wire::Opcode};
use roced_types::Qpn;

use crate::input::Input;

/// Bytes of Ethernet, IPv4 and UDP headers.
const FRONT_BYTES: usize = 14 + 20 + 8;

/// The peer's and our IPv4 address.
pub(crate) const PEER: [u8; 4] = [10, 0, 0, 2];
pub(crate) const US: [u8; 4] = [10, 0, 0, 1];
pub(crate) const UNKNOWN_PEER: [u8; 4] = [10, 0, 0, 9];

/// An IPv4 address as a GID.
pub(crate) const fn gid([a, b, c, d]: [u8; 4]) -> [u8; 16] {
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d]
}

/// Contents of a packet, as a step of a run gives them: `Step::BYTES` bytes that a mutation changes
/// one by one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) opcode: u8,
    pub(crate) flags: u8,
    /// Distance from where the peer is, or with [`flags::ABSOLUTE`] the PSN itself in `length`.
    pub(crate) psn: i16,
    /// Bytes of payload, or [`Step::MTU`], or [`Step::LEFT`].
    pub(crate) payload: u16,
    /// Which memory region, and where in it.
    pub(crate) mr: u8,
    pub(crate) va: u16,
    /// Of a RETH.
    pub(crate) length: u32,
    /// Of an AETH.
    pub(crate) syndrome: u8,
    /// Source of all other values: immediate data, pad, payload pattern and so on.
    pub(crate) number: u8,
}

/// Bits of [`Step::flags`].
pub(crate) mod flags {
    pub(crate) const SOLICITED: u8 = 1;
    pub(crate) const ACK_REQUEST: u8 = 2;
    pub(crate) const OTHER_PARTITION: u8 = 4;
    pub(crate) const UNKNOWN_PEER: u8 = 8;
    pub(crate) const ABSOLUTE: u8 = 16;
    pub(crate) const IN_PIECES: u8 = 32;
    pub(crate) const OTHER_PAD: u8 = 64;
    pub(crate) const OTHER_QP: u8 = 128;
}

impl Step {
    pub(crate) const MTU: u16 = 0xffff;
    pub(crate) const LEFT: u16 = 0xfffe;

    pub(crate) fn read(input: &mut Input<'_>) -> Self {
        Self {
            opcode: input.byte(),
            flags: input.byte(),
            psn: input.u16().cast_signed(),
            payload: input.u16(),
            mr: input.byte(),
            va: input.u16(),
            length: input.u32(),
            syndrome: input.byte(),
            number: input.byte(),
        }
    }

    pub(crate) fn write(&self, into: &mut Vec<u8>) {
        into.extend([self.opcode, self.flags]);
        into.extend(self.psn.to_le_bytes());
        into.extend(self.payload.to_le_bytes());
        into.push(self.mr);
        into.extend(self.va.to_le_bytes());
        into.extend(self.length.to_le_bytes());
        into.extend([self.syndrome, self.number]);
    }
}

/// A packet to be built.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recipe {
    pub(crate) step: Step,
    pub(crate) dest_qpn: Qpn,
    pub(crate) psn: Psn,
    pub(crate) payload_bytes: usize,
    /// Address and key that the step's region and offset stand for.
    pub(crate) va: u64,
    pub(crate) key: u32,
    pub(crate) qkey: u32,
}

impl Recipe {
    /// The frame. Its extension headers are those of the opcode, and a payload is there if a
    /// payload is asked for: whether the opcode has one is for the receiver to know.
    pub(crate) fn build(&self, into: &mut Vec<u8>) {
        let step = &self.step;
        let pad = if step.flags & flags::OTHER_PAD != 0 {
            step.number & 3
        } else {
            (self.payload_bytes as u8).wrapping_neg() & 3
        };
        let source = if step.flags & flags::UNKNOWN_PEER != 0 { UNKNOWN_PEER } else { PEER };
        into.clear();
        into.resize(FRONT_BYTES, 0);
        self.put_bth(pad, into);
        self.put_extensions(into);
        into.extend((0..self.payload_bytes).map(|at| (at as u8).wrapping_mul(5) ^ step.number));
        into.extend(&[0; 3][..usize::from(pad)]);
        into.extend([0; 4]);
        // The mark of a congested switch.
        let class = if step.number >= 0xc0 { 3 } else { 0 };
        put_front(source, class, into);
        seal(into);
    }

    fn put_bth(&self, pad: u8, into: &mut Vec<u8>) {
        let step = &self.step;
        let bit = |flag: u8, bit: u8| if step.flags & flag != 0 { bit } else { 0 };
        into.extend([step.opcode, bit(flags::SOLICITED, 0x80) | 0x40 | pad << 4]);
        into.extend(if step.flags & flags::OTHER_PARTITION != 0 { [0x7f, 0xfe] } else { [0xff, 0xff] });
        let [_, number @ ..] = self.dest_qpn.get().to_be_bytes();
        // BECN says something in a notification alone.
        into.push(if step.number & 0x20 == 0 { 0x40 } else { 0 });
        into.extend(number);
        into.extend((u32::from(bit(flags::ACK_REQUEST, 0x80)) << 24 | self.psn.get()).to_be_bytes());
    }

    fn put_extensions(&self, into: &mut Vec<u8>) {
        let Some(info) = Opcode(self.step.opcode).info() else { return };
        let begin = into.len();
        let number = self.step.number;
        if info.has_rdeth {
            into.extend([0, 0, 0, number]);
        }
        if info.has_deth {
            into.extend(self.qkey.to_be_bytes());
            into.extend([0, 0, 1, number]);
        }
        into.extend(&[number; 8][..usize::from(info.has_xrceth) * 4 + usize::from(info.has_feth) * 4]);
        if info.has_reth || info.has_atomic {
            into.extend(self.va.to_be_bytes());
            into.extend(self.key.to_be_bytes());
        }
        if info.has_reth {
            into.extend(self.step.length.to_be_bytes());
        }
        if info.has_atomic {
            into.extend(u64::from(number).to_be_bytes());
            into.extend(u64::from(self.step.length).to_be_bytes());
        }
        if info.has_aeth {
            into.extend([self.step.syndrome, 0, 0, number]);
        }
        if info.has_atomic_ack {
            into.extend([number; 8]);
        }
        if info.has_imm {
            into.extend([number; 4]);
        }
        if info.has_ieth {
            into.extend(self.key.to_be_bytes());
        }
        // Bytes that the table knows of and this does not, such as a CNP's reserved bytes.
        into.resize((begin + info.header_bytes).saturating_sub(12).max(into.len()), 0);
    }
}

/// Ethernet, IPv4 and UDP in front of a packet, with lengths that are right.
fn put_front(source: [u8; 4], class: u8, frame: &mut [u8]) {
    let ip_bytes = (frame.len() - 14) as u16;
    let [high, low] = ip_bytes.to_be_bytes();
    frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0]);
    frame[14..26].copy_from_slice(&[0x45, class, high, low, 0, 0, 0x40, 0, 64, 17, 0, 0]);
    frame[26..30].copy_from_slice(&source);
    frame[30..34].copy_from_slice(&US);
    let sum = frame[14..34].chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum::<u32>();
    let folded = (sum & 0xffff) + (sum >> 16);
    let checksum = !(((folded & 0xffff) + (folded >> 16)) as u16);
    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
    frame[34..38].copy_from_slice(&[0xc0, 1, 0x12, 0xb7]);
    frame[38..40].copy_from_slice(&(ip_bytes - 20).to_be_bytes());
}

/// Gives a frame of any kind the ICRC that its bytes ask for, if there is a place for one.
pub(crate) fn seal(frame: &mut [u8]) -> Option<()> {
    let icrc = icrc(frame)?;
    let end = ends_at(frame)?;
    frame[end - 4..end].copy_from_slice(&icrc);
    Some(())
}

/// The ICRC that a frame should have (IBTA v1 annex A17.3.2), by its own lengths. Written for
/// itself, not with the transport's.
pub(crate) fn icrc(frame: &[u8]) -> Option<[u8; 4]> {
    let (ip, end) = (ip_at(frame)?, ends_at(frame)?);
    let v4 = frame[ip] >> 4 == 4;
    let udp = if v4 { ip + usize::from(frame[ip] & 15) * 4 } else { ip + 40 };
    if udp + 8 + 12 + 4 > end {
        return None;
    }
    let mut masked = frame[ip..end - 4].to_vec();
    if v4 {
        [1, 8, 10, 11].into_iter().for_each(|at| masked[at] = 0xff);
    } else {
        masked[0] |= 0x0f;
        [1, 2, 3, 7].into_iter().for_each(|at| masked[at] = 0xff);
    }
    [6, 7, 12].into_iter().for_each(|at| masked[udp - ip + at] = 0xff);
    let mut hasher = Hasher::new();
    hasher.update(&[0xff; 8]);
    hasher.update(&masked);
    Some(hasher.finalize().to_le_bytes())
}

/// Where the IP header begins.
fn ip_at(frame: &[u8]) -> Option<usize> {
    let mut at = 12;
    while matches!(frame.get(at..at + 2)?, [0x81, 0x00] | [0x88, 0xa8]) {
        at += 4;
    }
    Some(at + 2)
}

/// Where the IP packet ends.
fn ends_at(frame: &[u8]) -> Option<usize> {
    let ip = ip_at(frame)?;
    let word = |at: usize| Some(usize::from(*frame.get(ip + at)?) << 8 | usize::from(*frame.get(ip + at + 1)?));
    let end = if frame.get(ip)? >> 4 == 4 { ip + word(2)? } else { ip + 40 + word(4)? };
    (end <= frame.len()).then_some(end)
}

/// A recorded frame that shall be for us: addresses, queue pair and PSN are put in, and nothing
/// else is changed.
pub(crate) fn readdress(frame: &mut [u8], dest_qpn: Qpn, psn: Psn) -> Option<()> {
    let ip = ip_at(frame)?;
    if frame.get(ip)? >> 4 != 4 {
        return None;
    }
    let udp = ip + usize::from(frame[ip] & 15) * 4;
    let bth = frame.get_mut(udp + 8..udp + 20)?;
    bth[5..8].copy_from_slice(&dest_qpn.get().to_be_bytes()[1..]);
    bth[9..12].copy_from_slice(&psn.get().to_be_bytes()[1..]);
    frame.get_mut(ip + 12..ip + 16)?.copy_from_slice(&PEER);
    frame.get_mut(ip + 16..ip + 20)?.copy_from_slice(&US);
    frame[ip + 10..ip + 12].fill(0);
    let sum = frame[ip..udp].chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum::<u32>();
    let folded = (sum & 0xffff) + (sum >> 16);
    let checksum = !(((folded & 0xffff) + (folded >> 16)) as u16);
    frame[ip + 10..ip + 12].copy_from_slice(&checksum.to_be_bytes());
    seal(frame)
}
