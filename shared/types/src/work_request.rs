//! Send and receive work requests: operations, flags, operands.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::completion::CompletionOp;

/// The operation of a send work request; the numbers are those of verbs (`ibv_wr_opcode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum SendOp {
    /// RDMA WRITE.
    Write = 0,
    /// RDMA WRITE that takes a receive work request at its end and hands over 32 bits.
    WriteImm = 1,
    /// SEND.
    Send = 2,
    /// SEND that hands over 32 bits.
    SendImm = 3,
    /// RDMA READ.
    Read = 4,
    /// Atomic compare and swap of eight remote bytes.
    CompareSwap = 5,
    /// Atomic fetch and add of eight remote bytes.
    FetchAdd = 6,
    /// Takes a key of ours back (LOCAL_INV).
    LocalInvalidate = 7,
    /// Binds a memory window (BIND_MW); see [`BindWindow`].
    BindWindow = 8,
    /// SEND that takes a key of the receiver's back.
    SendInvalidate = 9,
    /// Makes earlier WRITEs to remote memory visible there; see [`flush`].
    Flush = 14,
    /// Writes eight remote bytes at once.
    AtomicWrite = 15,
}

impl SendOp {
    /// Nothing of it goes to the peer.
    pub const fn is_local(self) -> bool {
        matches!(self, Self::LocalInvalidate | Self::BindWindow)
    }

    /// It takes data of ours to the peer.
    pub const fn carries_data(self) -> bool {
        matches!(self, Self::Write | Self::WriteImm | Self::Send | Self::SendImm | Self::SendInvalidate)
    }

    /// The operation that the completion reports.
    pub const fn completion(self) -> CompletionOp {
        match self {
            Self::Send | Self::SendImm | Self::SendInvalidate => CompletionOp::Send,
            Self::Write | Self::WriteImm => CompletionOp::Write,
            Self::Read => CompletionOp::Read,
            Self::CompareSwap => CompletionOp::CompareSwap,
            Self::FetchAdd => CompletionOp::FetchAdd,
            Self::LocalInvalidate => CompletionOp::LocalInvalidate,
            Self::BindWindow => CompletionOp::BindWindow,
            Self::Flush => CompletionOp::Flush,
            Self::AtomicWrite => CompletionOp::AtomicWrite,
        }
    }

    /// The operation that a byte from a ring names.
    pub const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            0 => Some(Self::Write),
            1 => Some(Self::WriteImm),
            2 => Some(Self::Send),
            3 => Some(Self::SendImm),
            4 => Some(Self::Read),
            5 => Some(Self::CompareSwap),
            6 => Some(Self::FetchAdd),
            7 => Some(Self::LocalInvalidate),
            8 => Some(Self::BindWindow),
            9 => Some(Self::SendInvalidate),
            14 => Some(Self::Flush),
            15 => Some(Self::AtomicWrite),
            _ => None,
        }
    }
}

/// Bits of the flags of a send work request.
pub mod send_flags {
    /// Begin only when all earlier READs and atomic operations of this queue are complete.
    pub const FENCE: u8 = 1 << 0;
    /// Make a completion also on success.
    pub const SIGNALED: u8 = 1 << 1;
    /// The receiver's completion counts as a solicited event.
    pub const SOLICITED: u8 = 1 << 2;
    /// The data stands in the entry itself; `inline_bytes` says how much.
    pub const INLINE: u8 = 1 << 3;
    /// All flags that exist.
    pub const ALL: u8 = FENCE | SIGNALED | SOLICITED | INLINE;
}

/// Operands of a FLUSH (annex A19), with the numbers of verbs (`ibv_placement_type`,
/// `ibv_selectivity_level`).
pub mod flush {
    /// Placement: every processor and device of the responder sees it.
    pub const GLOBAL: u8 = 1 << 0;
    /// Placement: it outlives a power failure. No memory here does.
    pub const PERSISTENT: u8 = 1 << 1;
    /// Selectivity: the range that the request names.
    pub const RANGE: u8 = 0;
    /// Selectivity: the whole memory region.
    pub const REGION: u8 = 1;

    /// As the `compare` operand of the work request carries it.
    pub const fn operand(placement: u8, selectivity: u8) -> u64 {
        (selectivity as u64) << 4 | placement as u64
    }
}

/// Range and rights of a memory window: a part of a memory region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BindWindow {
    /// Address of its first byte, as the region was registered.
    pub va: u64,
    /// Bytes; 0 unbinds a window of type 1.
    pub length: u64,
    /// Local key of the region.
    pub lkey: u32,
    /// [`access`](crate::access) bits.
    pub access: u32,
}

impl BindWindow {
    /// As the `compare` operand of the work request carries it.
    pub const fn compare(&self) -> u64 {
        (self.access as u64) << 32 | self.lkey as u64
    }

    /// From the operands of the work request.
    pub const fn from_operands(remote_va: u64, swap_or_add: u64, compare: u64) -> Self {
        Self { va: remote_va, length: swap_or_add, lkey: compare as u32, access: (compare >> 32) as u32 }
    }
}

/// One piece of local memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Sge {
    /// Virtual address, as the memory region was registered.
    pub va: u64,
    /// Bytes.
    pub length: u32,
    /// Local key of the memory region.
    pub lkey: u32,
}

const _: () = assert!(size_of::<Sge>() == 16);
