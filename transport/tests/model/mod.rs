//! Slow, plain models that the transport's wire code is compared with. They share no code with it,
//! and no table.
#![allow(dead_code, reason = "each test file uses some of it")]

use roced_transport::wire::{Headers, Packet};

pub(crate) mod frames;

/// Where the IP header begins in an Ethernet frame with any number of VLAN tags.
pub(crate) fn ip_at(frame: &[u8]) -> usize {
    let mut at = 12;
    while matches!(frame[at..at + 2], [0x81, 0x00] | [0x88, 0xa8]) {
        at += 4;
    }
    at + 2
}

/// Where the IP packet ends in the frame.
pub(crate) fn ip_end(frame: &[u8]) -> usize {
    let ip = ip_at(frame);
    let word = |at: usize| usize::from(frame[ip + at]) << 8 | usize::from(frame[ip + at + 1]);
    if frame[ip] >> 4 == 4 { ip + word(2) } else { ip + 40 + word(4) }
}

/// It is RoCEv1: it has a GRH and no UDP.
pub(crate) fn is_v1(frame: &[u8]) -> bool {
    let ip = ip_at(frame);
    frame[ip - 2..ip] == [0x89, 0x15]
}

/// Where the UDP header begins.
pub(crate) fn udp_at(frame: &[u8]) -> usize {
    let ip = ip_at(frame);
    if frame[ip] >> 4 == 4 { ip + usize::from(frame[ip] & 15) * 4 } else { ip + 40 }
}

/// Where the BTH begins.
pub(crate) fn bth_at(frame: &[u8]) -> usize {
    if is_v1(frame) { ip_at(frame) + 40 } else { udp_at(frame) + 8 }
}

/// The ICRC that a frame should end with, one bit at a time: the definition (IBTA v1 annex
/// A17.3.2), nothing clever.
pub(crate) fn icrc(frame: &[u8]) -> [u8; 4] {
    let (ip, bth, end) = (ip_at(frame), bth_at(frame), ip_end(frame) - 4);
    let udp_checksum = if is_v1(frame) { 0..0 } else { bth - 2..bth };
    let v4 = frame[ip] >> 4 == 4;
    let masked = |at: usize| {
        let in_ip = at - ip;
        match at {
            _ if udp_checksum.contains(&at) || at == bth + 4 => 0xff,
            _ if at >= udp_at(frame) => frame[at],
            _ if v4 && [1, 8, 10, 11].contains(&in_ip) => 0xff,
            _ if v4 => frame[at],
            _ if in_ip == 0 => frame[at] | 0x0f,
            _ if [1, 2, 3, 7].contains(&in_ip) => 0xff,
            _ => frame[at],
        }
    };
    let mut register = !0u32;
    for byte in std::iter::repeat_n(0xff, 8).chain((ip..end).map(masked)) {
        for bit in 0..8 {
            let feedback = (register & 1) ^ u32::from(byte >> bit & 1);
            register >>= 1;
            if feedback == 1 {
                register ^= 0xedb8_8320;
            }
        }
    }
    (!register).to_le_bytes()
}

/// Writes the ICRC that the frame should have.
pub(crate) fn fix_icrc(frame: &mut [u8]) {
    let (end, icrc) = (ip_end(frame), icrc(frame));
    frame[end - 4..end].copy_from_slice(&icrc);
}

/// Writes the IPv4 header checksum that the frame should have: the word that makes the sum, modulo
/// 0xffff, nothing.
pub(crate) fn fix_ipv4_checksum(frame: &mut [u8]) {
    let (ip, udp) = (ip_at(frame), udp_at(frame));
    frame[ip + 10..ip + 12].fill(0);
    let sum: u64 = frame[ip..udp].chunks(2).map(|word| u64::from(word[0]) * 256 + u64::from(word[1])).sum();
    frame[ip + 10..ip + 12].copy_from_slice(&(0xffff - (sum % 0xffff) as u16).to_be_bytes());
}

/// Writes the UDP checksum that the frame should have, never 0.
pub(crate) fn fix_udp_checksum(frame: &mut [u8]) {
    let (ip, udp, end) = (ip_at(frame), udp_at(frame), ip_end(frame));
    frame[udp + 6..udp + 8].fill(0);
    let addresses = if frame[ip] >> 4 == 4 { ip + 12..ip + 20 } else { ip + 8..ip + 40 };
    let mut summed = frame[addresses].to_vec();
    summed.extend([0, 17]);
    summed.extend(&frame[udp + 4..udp + 6]);
    summed.extend(&frame[udp..end]);
    let sum: u64 = summed.chunks(2).map(|word| u64::from(word[0]) * 256 + u64::from(*word.get(1).unwrap_or(&0))).sum();
    frame[udp + 6..udp + 8].copy_from_slice(&(0xffff - (sum % 0xffff) as u16).to_be_bytes());
}

/// `bytes` cut at the places in `cuts`, which ascend.
pub(crate) fn cut<'a>(bytes: &'a [u8], cuts: &[usize]) -> Vec<&'a [u8]> {
    let (mut pieces, mut from) = (Vec::new(), 0);
    for to in cuts.iter().copied().chain([bytes.len()]) {
        pieces.push(&bytes[from..to]);
        from = to;
    }
    pieces
}

/// Memory cut at the places in `cuts`, which ascend.
pub(crate) fn cut_mut<'a>(mut bytes: &'a mut [u8], cuts: &[usize]) -> Vec<&'a mut [u8]> {
    let (mut pieces, mut from) = (Vec::new(), 0);
    for to in cuts {
        let (piece, rest) = bytes.split_at_mut(to - from);
        pieces.push(piece);
        (bytes, from) = (rest, *to);
    }
    pieces.push(bytes);
    pieces
}

/// The headers that would make this packet.
pub(crate) fn headers_of(packet: &Packet<'_>) -> Headers {
    Headers {
        bth: packet.bth,
        deth: packet.deth,
        feth: packet.feth,
        reth: packet.reth,
        atomic: packet.atomic,
        aeth: packet.aeth,
        atomic_ack: packet.atomic_ack,
        imm: packet.imm,
        ieth: packet.ieth,
    }
}
