//! Completion queue entries as they lie in a CQ ring.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// One completion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Cqe {
    /// From the work request.
    pub wr_id: u64,
    /// The local queue pair.
    pub qpn: u32,
    /// A [`Status`](roced_types::Status).
    pub status: u8,
    /// A [`CompletionOp`](roced_types::CompletionOp); on an error only status, wr_id, qpn and
    /// vendor_error mean something.
    pub opcode: u8,
    /// [`completion_flags`](roced_types::completion_flags).
    pub flags: u8,
    /// Zero.
    pub reserved0: u8,
    /// Bytes received or read.
    pub byte_len: u32,
    /// Immediate data in wire order; with
    /// [`completion_flags::INVALIDATED`](roced_types::completion_flags::INVALIDATED) the key.
    pub imm: [u8; 4],
    /// Remote queue pair of a datagram; of a connected one, its peer.
    pub src_qpn: u32,
    /// More about an error, for support; 0 when there is none.
    pub vendor_error: u32,
    /// When it happened, nanoseconds of CLOCK_MONOTONIC, of the poll iteration that made it.
    pub timestamp_ns: u64,
    /// Zero; room for a datagram's path bits, SL, P_Key index and source.
    pub reserved1: [u64; 3],
}

const _: () = assert!(size_of::<Cqe>() == 64);
