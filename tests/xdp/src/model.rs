//! The rules of the XDP program as slow plain Rust: the C must agree with them on any frame.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use roced_steering::Verdict;
use roced_types::ROCE_UDP_PORT;

/// The verdict on a frame that lies in one buffer, when a socket is bound on its queue; `v1` when
/// RoCEv1 is taken as well.
pub fn judge(frame: &[u8], ours: &[IpAddr], v1: bool) -> Verdict {
    judge_or_reason(frame, ours, v1).err().unwrap_or(Verdict::Redirected)
}

/// A whole frame of priority flow control (IEEE 802.3 annex 31D), for the program to honor if it is
/// to.
pub fn is_pfc(frame: &[u8]) -> bool {
    frame.starts_with(&[0x01, 0x80, 0xc2, 0, 0, 1])
        && frame.get(12..16) == Some(&[0x88, 0x08, 1, 1])
        && frame.len() >= 34
}

fn judge_or_reason(frame: &[u8], ours: &[IpAddr], v1: bool) -> Result<(), Verdict> {
    let (mut ether_type, mut rest) = (number(take(frame, 12, 2)?), after(frame, 14)?);
    let mut tags = 0;
    while matches!(ether_type, 0x8100 | 0x88a8) && tags < 2 {
        (ether_type, rest) = (number(take(rest, 2, 2)?), after(rest, 4)?);
        tags += 1;
    }
    let (destination, udp) = match ether_type {
        0x0800 => ipv4(rest)?,
        0x86dd => ipv6(rest)?,
        0x8915 => {
            let destination = grh(rest)?;
            return if v1 && ours.contains(&destination) { Ok(()) } else { Err(Verdict::PassNotOurs) };
        }
        _ => return Err(Verdict::PassNotIp),
    };
    let header = take(udp.headers, 0, 8)?;
    if number(&header[2..4]) != usize::from(ROCE_UDP_PORT) {
        return Err(Verdict::PassNotRoce);
    }
    if !(8..=udp.bytes).contains(&number(&header[4..6])) {
        return Err(Verdict::PassMalformed);
    }
    if !ours.contains(&destination) {
        return Err(Verdict::PassNotOurs);
    }
    Ok(())
}

/// Payload of an IP packet: bytes to read headers from, and how many bytes it says that it has.
struct Payload<'a> {
    headers: &'a [u8],
    bytes: usize,
}

fn ipv4(packet: &[u8]) -> Result<(IpAddr, Payload<'_>), Verdict> {
    let header = take(packet, 0, 20)?;
    let header_bytes = usize::from(header[0] & 0xf) * 4;
    let total_bytes = number(&header[2..4]);
    if header[0] >> 4 != 4 || header_bytes < 20 {
        return Err(Verdict::PassMalformed);
    }
    if number(&header[6..8]) & 0x3fff != 0 {
        return Err(Verdict::PassFragment);
    }
    if header[9] != 17 {
        return Err(Verdict::PassNotRoce);
    }
    if !(header_bytes..=packet.len()).contains(&total_bytes) {
        return Err(Verdict::PassMalformed);
    }
    let destination = Ipv4Addr::from(<[u8; 4]>::try_from(&header[16..20]).expect("four bytes"));
    Ok((destination.into(), Payload { headers: after(packet, header_bytes)?, bytes: total_bytes - header_bytes }))
}

fn ipv6(packet: &[u8]) -> Result<(IpAddr, Payload<'_>), Verdict> {
    let header = take(packet, 0, 40)?;
    let payload_bytes = number(&header[4..6]);
    match (header[0] >> 4, header[6]) {
        (6, 17) => {}
        (6, 44) => return Err(Verdict::PassFragment),
        (6, _) => return Err(Verdict::PassNotRoce),
        _ => return Err(Verdict::PassMalformed),
    }
    if payload_bytes > packet.len() - 40 {
        return Err(Verdict::PassMalformed);
    }
    let destination = Ipv6Addr::from(<[u8; 16]>::try_from(&header[24..40]).expect("sixteen bytes"));
    // Not `to_canonical`: an IPv4 address mapped into IPv6 has no business on the wire and is none
    // of ours.
    Ok((destination.into(), Payload { headers: &packet[40..], bytes: payload_bytes }))
}

/// Its address may be IPv4: then it is mapped.
fn grh(packet: &[u8]) -> Result<IpAddr, Verdict> {
    let header = take(packet, 0, 40)?;
    match (header[0] >> 4, header[6]) {
        (6, 27) if number(&header[4..6]) <= packet.len() - 40 => {
            let destination = Ipv6Addr::from(<[u8; 16]>::try_from(&header[24..40]).expect("sixteen bytes"));
            Ok(destination.to_canonical())
        }
        (6, 27) => Err(Verdict::PassMalformed),
        (6, _) => Err(Verdict::PassNotRoce),
        _ => Err(Verdict::PassMalformed),
    }
}

fn take(bytes: &[u8], at: usize, length: usize) -> Result<&[u8], Verdict> {
    bytes.get(at..at + length).ok_or(Verdict::PassMalformed)
}

fn after(bytes: &[u8], at: usize) -> Result<&[u8], Verdict> {
    bytes.get(at..).ok_or(Verdict::PassMalformed)
}

/// Two bytes in network order.
fn number(bytes: &[u8]) -> usize {
    usize::from(u16::from_be_bytes([bytes[0], bytes[1]]))
}
