//! Bytes to meaning and back.
//!
//! ```text
//!   in    frame ── parse ──► Packet ── check_integrity ──► the transport
//!   out   Path (template) + Headers + payload ── Path::fill ──► frame
//!
//!   Ethernet  VLAN?  IPv4 | IPv6  UDP   BTH  extension headers   payload  pad  ICRC
//!   └────────── network ───────────┘   └── the opcode says which ──┘
//! ```
//!
//! [`opcode`] is the one table that defines packets and their headers. Nothing here allocates,
//! keeps state or panics on bytes of the network: [`frame::parse`] checks every length once and
//! returns a [`Packet`] with infallible accessors.

pub mod aeth;
pub mod atomic;
pub mod bth;
pub mod deth;
pub mod ecn;
pub mod esp;
pub mod feth;
pub mod frame;
pub mod headers;
mod icrc;
pub mod ieth;
pub mod imm;
mod network;
pub mod opcode;
pub mod path;
pub mod reth;

pub use aeth::{Aeth, NakCode, Syndrome};
pub use atomic::{AtomicAck, AtomicEth};
pub use bth::Bth;
pub use deth::Deth;
pub use feth::Feth;
pub use frame::{Packet, dest_qpn, parse};
pub use headers::Headers;
pub use ieth::Ieth;
pub use imm::Imm;
pub use network::Roce;
pub use opcode::{Opcode, OpcodeInfo, Operation, Position, Service};
pub use path::{MixedFamilies, Path, PathSpec, Vlan, largest_path_mtu, udp_source_port};
pub use reth::Reth;

/// Zero bytes behind a payload of `payload_bytes`, so that the ICRC lies on a multiple of four
/// (IBTA v1 9.2.4).
pub const fn pad_bytes(payload_bytes: usize) -> usize {
    payload_bytes.wrapping_neg() & 3
}

/// The `N` bytes at `at`, or `None` when `bytes` ends before.
fn bytes_at<const N: usize>(bytes: &[u8], at: usize) -> Option<&[u8; N]> {
    bytes.get(at..)?.first_chunk()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pad_fills_up_to_four() {
        assert_eq!([0, 1, 2, 3, 4, 4095].map(pad_bytes), [0, 3, 2, 1, 0, 1]);
    }
}
