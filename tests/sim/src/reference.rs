//! A second model of a queue pair of a reliable connection, written as the specification reads:
//! slow, plain, and separate from the transport. It shares no code with it.
//!
//! ```text
//!   Packet (packet, icrc)   a frame taken apart, and built
//!   Work (work)             a send work request and the packets that it becomes
//!   Memory (memory)         memory that keys open
//!   Responder               executes requests in PSN order
//!   Requester               sends work, takes answers, tries again
//!   Peer                    both, with the behavior of a make: a host of the network
//! ```
//!
//! PSNs are counted without end (`u64`); the low 24 bits are on the wire.

mod icrc;
mod make;
mod memory;
mod packet;
mod peer;
mod requester;
mod responder;
mod work;

pub(crate) use self::{
    icrc::icrc,
    make::Make,
    memory::{Memory, Open},
    packet::{Addresses, Packet},
    peer::Peer,
    requester::{Done, Status, Terms},
    responder::{Answer, Arrived, Effect, Receive, Responder, Verdict},
    work::{Op, Posted, Work},
};

/// The count with `psn` as its low 24 bits that is nearest to `near`.
pub(crate) fn unwrap(psn: u32, near: u64) -> u64 {
    let ahead = psn.wrapping_sub(near as u32) & 0x00ff_ffff;
    if ahead < 1 << 23 { near + u64::from(ahead) } else { near + u64::from(ahead) - (1 << 24) }
}

/// A PSN as it stands on the wire.
pub(crate) const fn wire(psn: u64) -> u32 {
    (psn & 0x00ff_ffff) as u32
}

/// Credits of an AETH's credit code (IBTA v1 table 46); `None` for the code that says nothing of
/// them.
pub(crate) const fn credits(code: u8) -> Option<u64> {
    match code & 0x1f {
        0x1f => None,
        code @ 0..=3 => Some(code as u64),
        // From 4 on each pair of codes doubles: 4, 6, 8, 12, 16, 24 ...
        code => Some((2 + code as u64 % 2) << (code / 2 - 1)),
    }
}

/// The time of an RNR timer code, in nanoseconds (IBTA v1 table 45).
pub(crate) const fn rnr_time(code: u8) -> u64 {
    let hundredths = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072,
        4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    hundredths[(code & 0x1f) as usize] * 10_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_psn_is_unwrapped_to_the_nearest_count() {
        assert_eq!(unwrap(5, (1 << 32) + 3), (1 << 32) + 5);
        assert_eq!(unwrap(0x00ff_ffff, 1 << 32), (1 << 32) - 1);
        assert_eq!(unwrap(1, (1 << 32) - 2), (1 << 32) + 1);
    }

    #[test]
    fn credit_codes_are_those_of_the_table() {
        let codes = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 30].map(credits);
        assert_eq!(codes, [0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32768].map(Some));
        assert_eq!(credits(31), None);
    }
}
