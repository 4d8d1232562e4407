//! Work queue entries as they lie in a queue pair's rings: plain bytes, no state in them.
//!
//! ```text
//!   send slot   SendWqe (64 bytes), then num_sge x Sge, or inline_bytes of data
//!   receive     RecvWqe (16 bytes), then num_sge x Sge
//! ```

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The fixed part of a send work request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SendWqe {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// A [`SendOp`](roced_types::SendOp).
    pub opcode: u8,
    /// [`send_flags`](roced_types::send_flags).
    pub flags: u8,
    /// Scatter/gather entries behind this header.
    pub num_sge: u8,
    /// Zero.
    pub reserved0: u8,
    /// Immediate data, in the order in which the bytes stand on the wire.
    pub imm: [u8; 4],
    /// Remote virtual address of a WRITE, READ, FLUSH or atomic operation. Of BIND_MW:
    /// [`BindWindow::va`](roced_types::BindWindow).
    pub remote_va: u64,
    /// Remote key of a WRITE, READ, FLUSH or atomic operation. Of LOCAL_INV and SEND with
    /// invalidate: the key that no longer opens anything. Of BIND_MW: the key that the window has
    /// afterward.
    pub rkey: u32,
    /// Bytes of inline data behind this header, with
    /// [`send_flags::INLINE`](roced_types::send_flags::INLINE).
    pub inline_bytes: u32,
    /// Of an atomic operation: the value to store or to add. Of an atomic WRITE: the eight bytes in
    /// memory order. Of a FLUSH: bytes, below 2^32. Of BIND_MW:
    /// [`BindWindow::length`](roced_types::BindWindow).
    pub swap_or_add: u64,
    /// Of compare and swap: the expected value. Of a FLUSH:
    /// [`flush::operand`](roced_types::flush::operand). Of BIND_MW:
    /// [`BindWindow::lkey`](roced_types::BindWindow) in the lower half,
    /// [`BindWindow::access`](roced_types::BindWindow) in the upper.
    pub compare: u64,
    /// Of a datagram: the address handle.
    pub ah: u32,
    /// Of a datagram: the queue pair that it is for, 24 bits.
    pub remote_qpn: u32,
    /// Of a datagram: its Q_Key; with the top bit set, that of the sending queue pair is used.
    pub qkey: u32,
    /// Zero.
    pub reserved1: u32,
}

/// The fixed part of a receive work request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RecvWqe {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// Scatter/gather entries behind this header.
    pub num_sge: u8,
    /// Zero.
    pub reserved: [u8; 7],
}

const _: () = assert!(size_of::<SendWqe>() == 64 && size_of::<RecvWqe>() == 16);
