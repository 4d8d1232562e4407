//! Completions: status, operation, flags.

/// How a work request ended; names and numbers are those of verbs
/// (`ibv_wc_status`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Status {
    /// Done.
    Success = 0,
    /// A local buffer is too short for the message, or the message is longer than allowed.
    LocalLength = 1,
    /// The queue pair broke its own rules.
    LocalQpOperation = 2,
    /// A local key, range or right did not hold.
    LocalProtection = 4,
    /// The queue pair went to the error state before this request was done.
    WorkRequestFlushed = 5,
    /// A memory window could not be bound.
    WindowBind = 6,
    /// An answer came that fits no request.
    BadResponse = 7,
    /// The responder found the request invalid.
    RemoteInvalidRequest = 9,
    /// The responder refused key, range or right.
    RemoteAccess = 10,
    /// The responder could not carry it out.
    RemoteOperation = 11,
    /// No answer within `retry_cnt` tries.
    TransportRetryExceeded = 12,
    /// The responder was not ready within `rnr_retry` tries.
    RnrRetryExceeded = 13,
    /// The daemon is gone, or failed: nothing is known of this request.
    Fatal = 19,
}

impl Status {
    /// The status that a byte from a ring names.
    pub const fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            0 => Self::Success,
            1 => Self::LocalLength,
            2 => Self::LocalQpOperation,
            4 => Self::LocalProtection,
            5 => Self::WorkRequestFlushed,
            6 => Self::WindowBind,
            7 => Self::BadResponse,
            9 => Self::RemoteInvalidRequest,
            10 => Self::RemoteAccess,
            11 => Self::RemoteOperation,
            12 => Self::TransportRetryExceeded,
            13 => Self::RnrRetryExceeded,
            19 => Self::Fatal,
            _ => return None,
        })
    }
}

/// The completed operation; numbers are those of verbs (`ibv_wc_opcode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum CompletionOp {
    /// A SEND, with or without immediate.
    Send = 0,
    /// An RDMA WRITE, with or without immediate.
    Write = 1,
    /// An RDMA READ.
    Read = 2,
    /// An atomic compare and swap.
    CompareSwap = 3,
    /// An atomic fetch and add.
    FetchAdd = 4,
    /// A memory window was bound.
    BindWindow = 5,
    /// A key was taken back.
    LocalInvalidate = 6,
    /// A FLUSH.
    Flush = 8,
    /// An atomic WRITE.
    AtomicWrite = 9,
    /// A SEND arrived.
    Recv = 128,
    /// The immediate of an RDMA WRITE arrived.
    RecvWriteImm = 129,
}

impl CompletionOp {
    /// The operation that a byte from a ring names.
    pub const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            0 => Some(Self::Send),
            1 => Some(Self::Write),
            2 => Some(Self::Read),
            3 => Some(Self::CompareSwap),
            4 => Some(Self::FetchAdd),
            5 => Some(Self::BindWindow),
            6 => Some(Self::LocalInvalidate),
            8 => Some(Self::Flush),
            9 => Some(Self::AtomicWrite),
            128 => Some(Self::Recv),
            129 => Some(Self::RecvWriteImm),
            _ => None,
        }
    }
}

/// Bits of the flags of a completion; numbers of the client ABI, not of verbs (`ibv_wc_flags`).
pub mod completion_flags {
    /// `imm` holds immediate data.
    pub const IMM: u8 = 1 << 0;
    /// The message asked for a solicited event.
    pub const SOLICITED: u8 = 1 << 1;
    /// A datagram: the first 40 bytes of the buffer are the place of a GRH, and `byte_len` counts
    /// them. An IPv6 header fills it, an IPv4 header its last 20 bytes.
    pub const GRH: u8 = 1 << 2;
    /// `imm` holds a key of ours that no longer opens anything, in this machine's byte order.
    pub const INVALIDATED: u8 = 1 << 3;
    /// With [`GRH`]: the header is that of IPv4 (IBTA A17.4.5.1: the completion of a datagram
    /// says which it is).
    pub const IPV4: u8 = 1 << 4;
}
